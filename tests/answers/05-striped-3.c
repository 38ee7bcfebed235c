/* Stripe j of J: the rows j, j + J, j + 2J, ... */
static struct ra_span stripe(int64_t length, int64_t J, int64_t j)
{
    return (struct ra_span){j, J, ra_ceiling_division(length - j, J)};
}

struct ra_span ra_layout_span(struct ra_layout layout, int rank, int64_t s)
{
    int64_t P = layout.ranks, length = layout.length;
    switch (layout.kind) {
    case RA_STRIPED:
        return stripe(length, P * layout.stripes, rank * layout.stripes + s);
    case RA_ZIGZAG:
        return stripe(length, 2 * P, s == 0 ? rank : 2 * P - 1 - rank);
    default:
        return ra_span_chunk(length, P, rank);
    }
}
