/* The carry of the keys of a and of b. */
static struct carry merge(struct carry a, struct carry b)
{
    double mu = fmax(a.mu, b.mu), reference = mu == -INFINITY ? 0 : mu;
    double of_a = exp(a.mu - reference), of_b = exp(b.mu - reference);
    return (struct carry){mu, a.l * of_a + b.l * of_b, a.u * of_a + b.u * of_b};
}
