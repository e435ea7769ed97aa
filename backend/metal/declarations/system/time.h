#pragma once
struct timespec {
    long tv_sec, tv_nsec;
};
typedef enum { CLOCK_MONOTONIC = 6 } clockid_t;
int clock_gettime(clockid_t clock, struct timespec *time);
