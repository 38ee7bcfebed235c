bool will_do(int pad)
{
    return pad % 8 == 4;
}
