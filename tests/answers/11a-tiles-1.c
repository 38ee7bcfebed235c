double intensity(int stay, int pass, int dim)
{
    double operations = 4.0 * stay * pass * dim, bytes = 8.0 * pass * dim;
    return operations / bytes;
}
