// Runs random regions on pools of 1 to 4 threads, with pauses in which workers fall asleep: each unit once, what it wrote visible to the caller.
// For the thread sanitizer, which watches the plain counters.
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "../pool.h"

enum { most_units = 64, regions = 4000 };
static int sums[most_units];

static void add(void *context, int unit, int thread) {
    (void)thread;
    sums[unit] += *(const int *)context;
}

int main(int count, char **arguments) {
    srand(count > 1 ? (unsigned)atoi(arguments[1]) : 1);
    for (int threads = 1; threads <= 4; threads++) {
        cpu_pool *pool = cpu_pool_new(threads);
        int want[most_units] = {0};
        for (int unit = 0; unit < most_units; unit++) sums[unit] = 0;
        for (int region = 0; pool && region < regions; region++) {
            int amount = rand() % 7, units = rand() % (most_units + 1);
            cpu_pool_run(pool, add, &amount, units, (int64_t)1 << 40);
            for (int unit = 0; unit < units; unit++) want[unit] += amount;
            if (rand() % 50 == 0) nanosleep(&(struct timespec){.tv_nsec = rand() % 100000}, NULL);
        }
        for (int unit = 0; unit < most_units; unit++) {
            if (sums[unit] != want[unit]) {
                printf("%d threads: unit %d has %d of %d\n", threads, unit, sums[unit], want[unit]);
                return 1;
            }
        }
        if (!pool) return 2;
        cpu_pool_free(pool);
    }
    return 0;
}
