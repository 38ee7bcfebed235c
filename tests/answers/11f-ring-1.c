/* The step of the message that comes into the same slot after this one; perhaps in the next
 * call. */
static int next_in_slot(int step, int *call)
{
    if (step + 3 < GPUS)
        return step + 3;
    ++*call;
    return slot(step);
}

/* Before the first call, the slots are empty: there is a credit for the first message in each. */
static void begin(int credit[])
{
    credit[1] = credit[2] = credit[3] = 1;
}
