/* Chapter 08, Manners, exercise 5: the smallest stride first, each over the reach so far. */
static bool may_meet(struct axis *axis, int n, int D)
{
    int reach = D;
    for (int i = 0; i < n; i++) {
        int least = i;
        for (int j = i + 1; j < n; j++)
            if (axis[j].stride < axis[least].stride)
                least = j;
        struct axis next = axis[least];
        axis[least] = axis[i];
        if (next.count == 1)
            continue;
        if (next.stride < reach)
            return true;
        reach += next.stride * (next.count - 1);
    }
    return false;
}
