// The worker pool: threads that sleep until there is a region of work, look a few microseconds for the next one, and sleep again.
#ifndef COLIBRI_CPU_POOL_H
#define COLIBRI_CPU_POOL_H
#include <stdint.h>

typedef struct cpu_pool cpu_pool;

// A unit of a region. thread is 0 … cpu_pool_threads-1 and no two units run on one thread number at a time: it
// chooses the scratch memory of the unit.
typedef void cpu_unit(void *context, int unit, int thread);

// The pool has threads threads, the caller's included; threads is at least 1. NULL when memory or threads are refused.
cpu_pool *cpu_pool_new(int threads);
void cpu_pool_free(cpu_pool *pool);
int cpu_pool_threads(const cpu_pool *pool);

// Runs units 0 … units-1 and returns when all are done. cost is the estimated work of the whole region in multiply-adds;
// a region too small to repay waking a sleeper runs on the caller's thread.
void cpu_pool_run(cpu_pool *pool, cpu_unit *fn, void *context, int units, int64_t cost);
#endif
