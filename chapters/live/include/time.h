#pragma once

/* Nothing here waits. */
struct timespec {
    long tv_sec, tv_nsec;
};
enum { CLOCK_MONOTONIC };
int clock_gettime(int clock, struct timespec *time);
int nanosleep(const struct timespec *time, struct timespec *left);
