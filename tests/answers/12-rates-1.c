static void predict(double rows)
{
    double done[SMS] = {0}, time = 0, tiles = ceil(rows / QUERIES);
    for (int i = 0; i < HEADS * tiles; i++) {
        double last_row = rows - i / HEADS * QUERIES;
        int next = 0;
        for (int s = 1; s < SMS; s++)
            next = done[s] < done[next] ? s : next;
        done[next] += ceil(last_row / KEYS) + ONCE;
        time = fmax(time, done[next]);
    }
    double asked = HEADS * rows * (rows + 1) / 2 / QUERIES / KEYS;
    double share = asked / (SMS * time);
    printf("%6.0f%8.0f%8.2f%8.0f%8.0f %%%8.0f\n", rows, HEADS * tiles, HEADS * tiles / SMS, time,
           100 * share, BEST * share);
}
