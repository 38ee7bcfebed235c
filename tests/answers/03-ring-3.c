/* The same with the gradients of these keys, from step 1 on: this rank's own share stays at home.
 * Where the keys go no further, they go straight home. */
static void pass_gradients(struct ra_ring *ring, int step)
{
    int rank = ring->link->rank, next = step + 1, last = ring->schedule.last[rank];
    int64_t bytes = ra_ring_rows(ring, rank, step) * ring->gradient_bytes;
    const float *share = ring->gradients[ra_ring_slot(step)];

    /* Sums arrive for steps 2 and later. After the last of them their place is free for what the
     * other ranks have made of this rank's own gradients. */
    if (step > 0 && next < ring->schedule.count && ra_ring_receives(ring, rank, next))
        receive(ring, RA_GRADIENTS, ring->schedule.hop[step], -ra_ring_stride(ring, step),
                ring->gradients[3], ra_ring_rows(ring, rank, next) * ring->gradient_bytes);
    if (next == ring->schedule.count && ra_ring_sends(ring, rank, 0))
        receive(ring, RA_GRADIENTS_RETURN, last, last, ring->gradients[3],
                ring->rows[rank] * ring->gradient_bytes);
    if (step > 0 && ra_ring_sends(ring, rank, step))
        send(ring, RA_GRADIENTS, step, ra_ring_stride(ring, step), share, bytes);
    else if (ra_ring_sends_home(ring, rank, step))
        send(ring, RA_GRADIENTS_RETURN, step, -ring->schedule.hop[step], share, bytes);
}

/* Adds to this rank's share what rounding lost of it and, from step 2 on, the sum of those
 * before. */
static void add_gradients(struct ra_ring *ring, int step)
{
    float *share = ring->gradients[ra_ring_slot(step)], *arrived = ring->gradients[3];
    int64_t bytes = ra_ring_rows(ring, ring->link->rank, step) * ring->gradient_bytes;
    for (int64_t e = 0; step > 0 && e < bytes / (int64_t)sizeof(float); e++)
        share[e] = (float)((double)share[e] + ring->comp[e] + (step > 1 ? arrived[e] : 0));
}

bool ra_ring_backward(struct ra_ring *ring)
{
    if (!ra_ring_begin(ring, RA_CALL_BACKWARD))
        return false;
    int last = ring->schedule.count - 1, rank = ring->link->rank;
    for (int step = 0; step <= last; step++) {
        pass_keys(ring, step);
        clear_gradients(ring, step);
        ra_ring_fold(ring, step, true);
        if (!wait_for(ring, RA_GRADIENTS, step, true))
            return false;
        add_gradients(ring, step);
        pass_gradients(ring, step);
        if (!wait_for(ring, RA_KEYS, step, true))
            return false;
    }
    if (!wait_for(ring, RA_GRADIENTS, last, true) ||
        !wait_for(ring, RA_GRADIENTS_RETURN, last, true))
        return false;

    /* What has come home, to what stayed. One rank alone has sent nothing out. */
    int64_t numbers = ring->rows[rank] * ring->gradient_bytes / (int64_t)sizeof(float);
    for (int64_t e = 0; ra_ring_sends(ring, rank, 0) && e < numbers; e++)
        ring->gradients[0][e] += ring->gradients[3][e];
    return true;
}
