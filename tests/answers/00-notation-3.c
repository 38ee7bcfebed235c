/* What the machines of a and b would have computed as one. */
static struct part join(struct part a, struct part b)
{
    double sum = a.sum + b.sum;
    return (struct part){(a.o * a.sum + b.o * b.sum) / sum, sum};
}
