/* When the last SM is done, in steps. */
static double last_done(double average, double longest)
{
    return average + longest / 2;
}
