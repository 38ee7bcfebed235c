/* The plan's transport: MPI takes device pointers on rank r if device[r]. */
static enum transport plan(const bool device[4])
{
    return device[0] && device[1] && device[2] && device[3] ? DEVICE_LINK : HOST_LINK;
}

/* The way of one message, if each went its own. */
static enum transport message(const bool device[4], int from, int to)
{
    if (from / 2 == to / 2)
        return PEER_COPIES;
    return device[from] && device[to] ? DEVICE_LINK : HOST_LINK;
}

/* Could a call be enqueued as a whole, without a host in any hop? */
static bool enqueued(const bool device[4])
{
    (void)device;
    return false;
}
