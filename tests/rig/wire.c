/* wire: a long cable between two network namespaces. tests/hosts runs the ring over it.
 *
 * Usage: wire DEVICE DEVICE SECONDS
 *
 * Makes two TUN devices. What one sends comes out of the other so many seconds later, as fast as it
 * was sent; the rate is the business of the devices (tc qdisc add ... tbf). The devices may be
 * moved to other namespaces, and are gone when the program ends. (The queueing discipline netem
 * delays packets as well, but many kernels are built without it.)
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <unistd.h>
#include "ra_clock.h"

/* Packets under way in one direction, of so many bytes at most. */
enum { PACKETS = 1 << 14, MOST = 9216 };

/* One direction. */
struct way {
    int from, to;
    double delay;
    int first, count;
    struct packet {
        double due;
        ssize_t bytes;
        char data[MOST];
    } * packets;
};

static int open_device(const char *name)
{
    struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI};
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", name);
    int device = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (device < 0 || ioctl(device, TUNSETIFF, &request) != 0) {
        fprintf(stderr, "wire: %s: %s\n", name, strerror(errno));
        exit(1);
    }
    return device;
}

/* Takes a packet from the sender; false if there is none. */
static bool take(struct way *way)
{
    struct packet *packet = &way->packets[(way->first + way->count) % PACKETS];
    packet->bytes = read(way->from, packet->data, MOST);
    if (packet->bytes <= 0)
        return false;
    packet->due = ra_seconds() + way->delay;
    way->count++;
    return true;
}

static void *run(void *argument)
{
    struct way *way = argument;
    prctl(PR_SET_TIMERSLACK, 1);
    for (;;) {
        double left = 1;
        while (way->count > 0 && (left = way->packets[way->first].due - ra_seconds()) <= 0) {
            /* A receiver that is down or full loses the packet, as on any network. */
            const struct packet *packet = &way->packets[way->first];
            if (write(way->to, packet->data, (size_t)packet->bytes) < 0 && errno == EBADF)
                return NULL;
            way->first = (way->first + 1) % PACKETS;
            way->count--;
            left = 1;
        }

        /* A full wire takes nothing, and the sender's queue grows. */
        struct pollfd sender = {.fd = way->count < PACKETS ? way->from : -1, .events = POLLIN};
        struct timespec time = {(time_t)left, (long)(1e9 * (left - (double)(time_t)left))};
        if (ppoll(&sender, 1, &time, NULL) > 0)
            while (way->count < PACKETS && take(way))
                ;
    }
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: wire DEVICE DEVICE SECONDS\n");
        return 2;
    }
    int device[] = {open_device(argv[1]), open_device(argv[2])};
    struct way ways[2];
    pthread_t other;
    for (int i = 0; i < 2; i++) {
        ways[i] = (struct way){.from = device[i], .to = device[1 - i], .delay = atof(argv[3])};
        ways[i].packets = malloc(PACKETS * sizeof *ways[i].packets);
        if (!ways[i].packets)
            return 1;
    }
    if (pthread_create(&other, NULL, run, &ways[0]) != 0)
        return 1;
    run(&ways[1]);
    return 0;
}
