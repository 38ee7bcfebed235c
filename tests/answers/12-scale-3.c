/* Milliseconds until a rank is done that is so many ranks away from the slow one. */
static double done(int distance)
{
    return distance == 0 ? 8 * 2.0 : (7 - distance) * 2.0 + distance * 0.35 + 1.0;
}
