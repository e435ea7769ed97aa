#include "pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

// Waking a sleeping thread and sleeping again until it is done takes some 10 to 30 microseconds; a core does about
// 8 multiply-adds a nanosecond. Below this many the caller is done before help arrives.
enum { worth_waking = 300 * 1000 };

struct cpu_pool {
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    int threads, workers; // workers: started threads, threads-1 of them
    pthread_t *handles;

    // Guarded by lock. A worker joins a region while it is open and the caller waits for those that joined: one that wakes too
    // late finds the region closed and never touches its context.
    uint64_t region;
    int open, joined, stopping;
    cpu_unit *fn;
    void *context;
    int units;
    atomic_int next;
};

typedef struct {
    cpu_pool *pool;
    int thread;
} worker_start;

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
    if (units <= 1 || p->workers == 0 || cost < worth_waking) {
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
    if (units - 1 >= p->workers) {
        pthread_cond_broadcast(&p->work);
    } else {
        for (int i = 1; i < units; i++) pthread_cond_signal(&p->work);
    }
    pthread_mutex_unlock(&p->lock);
    take_units(p, fn, context, units, 0);
    pthread_mutex_lock(&p->lock);
    p->open = 0;
    while (p->joined > 0) pthread_cond_wait(&p->done, &p->lock);
    pthread_mutex_unlock(&p->lock);
}
