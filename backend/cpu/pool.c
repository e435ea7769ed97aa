#include "pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

// Waking a sleeping thread takes some 20 to 50 microseconds, and the regions of a token follow each other in fewer: a thread that
// has finished looks for the next one, or for the others' end, so long before it sleeps. Between tokens' layers nothing sleeps then,
// and nothing is awake while experts are read or nobody asks.
enum { patience_nanos = 30 * 1000 };

// A core does about 8 multiply-adds a nanosecond. Below the first many the caller is done before a sleeper helps, below the
// second before one that is looking does.
enum { worth_waking = 300 * 1000, worth_sharing = 60 * 1000 };

struct cpu_pool {
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    int threads, workers; // workers: started threads, threads-1 of them
    pthread_t *handles;

    // Guarded by lock. A worker joins a region while it is open and the caller waits for those that joined: one that wakes too
    // late finds the region closed and never touches its context.
    uint64_t region;
    int open, stopping;
    atomic_int joined; // read without the lock, as is announced, by those who look
    cpu_unit *fn;
    void *context;
    int units;
    atomic_int next;
    atomic_ullong announced; // region, or more than any when stopping
    atomic_int looking;      // workers awake between regions
};

typedef struct {
    cpu_pool *pool;
    int thread;
} worker_start;

static int64_t now_nanos(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

// Looks until there is another region than seen; gives up when its patience ends.
static void look_for_region(cpu_pool *p, uint64_t seen) {
    atomic_fetch_add_explicit(&p->looking, 1, memory_order_relaxed);
    for (int64_t end = now_nanos() + patience_nanos; now_nanos() < end;) {
        for (int i = 0; i < 16; i++) {
            if (atomic_load_explicit(&p->announced, memory_order_acquire) != seen) goto found;
            relax();
        }
    }
found:
    atomic_fetch_sub_explicit(&p->looking, 1, memory_order_relaxed);
}

static void look_for_end(cpu_pool *p) {
    for (int64_t end = now_nanos() + patience_nanos; now_nanos() < end;) {
        for (int i = 0; i < 16; i++) {
            if (atomic_load_explicit(&p->joined, memory_order_acquire) == 0) return;
            relax();
        }
    }
}

static void take_units(cpu_pool *p, cpu_unit *fn, void *context, int units, int thread) {
    for (int u; (u = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed)) < units;) fn(context, u, thread);
}

static void *worker(void *argument) {
    worker_start start = *(worker_start *)argument;
    free(argument);
    cpu_pool *p = start.pool;
    uint64_t seen = 0;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (!p->stopping && (!p->open || p->region == seen)) pthread_cond_wait(&p->work, &p->lock);
        if (p->stopping) break;
        seen = p->region;
        p->joined++;
        cpu_unit *fn = p->fn;
        void *context = p->context;
        int units = p->units;
        pthread_mutex_unlock(&p->lock);
        take_units(p, fn, context, units, start.thread);
        pthread_mutex_lock(&p->lock);
        if (--p->joined == 0 && !p->open) pthread_cond_signal(&p->done);
        pthread_mutex_unlock(&p->lock);
        look_for_region(p, seen);
        pthread_mutex_lock(&p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

cpu_pool *cpu_pool_new(int threads) {
    cpu_pool *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    p->threads = threads;
    p->handles = calloc((size_t)threads, sizeof *p->handles);
    if (!p->handles || pthread_mutex_init(&p->lock, NULL) != 0) {
        free(p->handles);
        free(p);
        return NULL;
    }
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->done, NULL);
    for (int t = 1; t < threads; t++) {
        worker_start *start = malloc(sizeof *start);
        if (!start) break;
        *start = (worker_start){p, t};
        if (pthread_create(&p->handles[p->workers], NULL, worker, start) != 0) {
            free(start);
            break;
        }
        p->workers++;
    }
    if (p->workers != threads - 1) {
        cpu_pool_free(p);
        return NULL;
    }
    return p;
}

void cpu_pool_free(cpu_pool *p) {
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    p->stopping = 1;
    atomic_store_explicit(&p->announced, UINT64_MAX, memory_order_release);
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->workers; i++) pthread_join(p->handles[i], NULL);
    pthread_cond_destroy(&p->work);
    pthread_cond_destroy(&p->done);
    pthread_mutex_destroy(&p->lock);
    free(p->handles);
    free(p);
}

int cpu_pool_threads(const cpu_pool *p) { return p->threads; }

void cpu_pool_run(cpu_pool *p, cpu_unit *fn, void *context, int units, int64_t cost) {
    const int awake = atomic_load_explicit(&p->looking, memory_order_relaxed) > 0;
    if (units <= 1 || p->workers == 0 || cost < (awake ? worth_sharing : worth_waking)) {
        for (int u = 0; u < units; u++) fn(context, u, 0);
        return;
    }
    pthread_mutex_lock(&p->lock);
    p->fn = fn;
    p->context = context;
    p->units = units;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    p->region++;
    p->open = 1;
    atomic_store_explicit(&p->announced, p->region, memory_order_release);
    if (units - 1 >= p->workers) {
        pthread_cond_broadcast(&p->work);
    } else {
        for (int i = 1; i < units; i++) pthread_cond_signal(&p->work);
    }
    pthread_mutex_unlock(&p->lock);
    take_units(p, fn, context, units, 0);
    pthread_mutex_lock(&p->lock);
    p->open = 0;
    pthread_mutex_unlock(&p->lock);
    look_for_end(p);
    pthread_mutex_lock(&p->lock);
    while (p->joined > 0) pthread_cond_wait(&p->done, &p->lock);
    pthread_mutex_unlock(&p->lock);
}
