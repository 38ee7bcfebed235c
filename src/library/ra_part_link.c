/* ra_part_link: some ranks of a link, as a link of their own. See ra_part_link.h.
 *
 * Chapter 12.
 */
#include "ra_part_link.h"

/* How far away in the link of all is the rank that is so far away in the part? */
static int distance_of(const struct ra_part *part, int distance)
{
    int block = part->block, place = part->all->rank % block;
    if (part->across)
        return distance * block;
    return (place + distance % block + block) % block - place;
}

static bool send(void *self, enum ra_message message, int hop, int distance, const void *from,
                 int64_t bytes)
{
    const struct ra_part *part = self;
    return part->all->send(part->all->self, message, hop, distance_of(part, distance), from, bytes);
}

static bool receive(void *self, enum ra_message message, int hop, int distance, void *into,
                    int64_t bytes)
{
    const struct ra_part *part = self;
    return part->all->receive(part->all->self, message, hop, distance_of(part, distance), into,
                              bytes);
}

static bool poll(void *self)
{
    const struct ra_link *all = ((const struct ra_part *)self)->all;
    return all->poll(all->self);
}

static bool wait(void *self, enum ra_message message)
{
    const struct ra_link *all = ((const struct ra_part *)self)->all;
    return all->wait(all->self, message);
}

static void fail(void *self, const char *reason)
{
    const struct ra_link *all = ((const struct ra_part *)self)->all;
    all->fail(all->self, reason);
}

static const char *error_of(void *self)
{
    const struct ra_link *all = ((const struct ra_part *)self)->all;
    return all->error(all->self);
}

static bool arrival(void *self, enum ra_message message, int *hop, double *start, double *end)
{
    const struct ra_link *all = ((const struct ra_part *)self)->all;
    return all->arrival && all->arrival(all->self, message, hop, start, end);
}

struct ra_link ra_part_link(struct ra_part *part)
{
    const struct ra_link *all = part->all;
    return (struct ra_link){.rank =
                                part->across ? all->rank / part->block : all->rank % part->block,
                            .size = part->across ? all->size / part->block : part->block,
                            .sharing = all->sharing,
                            .device_memory = all->device_memory,
                            .self = part,
                            .send = send,
                            .receive = receive,
                            .poll = poll,
                            .wait = wait,
                            .fail = fail,
                            .error = error_of,
                            .arrival = arrival};
}
