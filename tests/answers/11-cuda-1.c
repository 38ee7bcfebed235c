double clocks(int rows)
{
    return 2 + 5 * rows;
}
