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

// The state of the pool in one word: the region's number, whether it may still be joined, and how many workers have joined and not left. A
// worker joins an open region by changing the word, the caller closes it and waits for those that joined: one that comes too late never touches the
// region's context. So nobody who is awake takes a lock: a region of eight tiny units takes 0.47 microseconds, where it took 0.61 with one.
enum { joined_bits = 15 };
static const uint64_t joined_mask = (1u << joined_bits) - 1, open_flag = 1u << joined_bits, region_step = 1u << (joined_bits + 1);

// A thread takes units from its own stretch one after the other: what a unit fetches behind its weights' last rows is the thread's next.
// With nothing left there, it takes the others'.
typedef struct {
    _Alignas(64) atomic_int next;
    int end;
} unit_range;

struct cpu_pool {
    int threads, workers; // workers: started threads, threads-1 of them
    pthread_t *handles;

    _Atomic uint64_t state;
    // Of the open region; written while none is open and nobody has joined.
    cpu_unit *fn;
    void *context;
    unit_range *ranges; // of each thread

    atomic_int looking; // workers awake between regions
    atomic_int stopping;

    // For those that sleep. A sleeper says so before it looks at the state for the last time, and whoever changes the state looks for sleepers after
    // that: both in sequential consistency, so that one of them sees the other.
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    atomic_int asleep;        // workers
    atomic_int caller_asleep; // 0 or 1
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

// Whether there is something to do for a worker whose last region was seen.
static int called(cpu_pool *p, uint64_t seen) {
    const uint64_t state = atomic_load(&p->state);
    return atomic_load(&p->stopping) || ((state & open_flag) && state / region_step != seen);
}

// Looks until called; gives up when its patience ends.
static void look_for_region(cpu_pool *p, uint64_t seen) {
    atomic_fetch_add_explicit(&p->looking, 1, memory_order_relaxed);
    for (int64_t end = now_nanos() + patience_nanos; now_nanos() < end;) {
        for (int i = 0; i < 16; i++) {
            if (called(p, seen)) goto found;
            relax();
        }
    }
found:
    atomic_fetch_sub_explicit(&p->looking, 1, memory_order_relaxed);
}

static void sleep_until_called(cpu_pool *p, uint64_t seen) {
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->asleep, 1);
    while (!called(p, seen)) pthread_cond_wait(&p->work, &p->lock);
    atomic_fetch_sub(&p->asleep, 1);
    pthread_mutex_unlock(&p->lock);
}

static void take_units(cpu_pool *p, cpu_unit *fn, void *context, int thread) {
    for (int i = 0; i < p->threads; i++) {
        unit_range *r = &p->ranges[(thread + i) % p->threads];
        for (int u; (u = atomic_fetch_add_explicit(&r->next, 1, memory_order_relaxed)) < r->end;) fn(context, u, thread);
    }
}

static void *worker(void *argument) {
    worker_start start = *(worker_start *)argument;
    free(argument);
    cpu_pool *p = start.pool;
    uint64_t seen = 0;
    for (;;) {
        if (!called(p, seen)) look_for_region(p, seen);
        if (!called(p, seen)) sleep_until_called(p, seen);
        if (atomic_load(&p->stopping)) return NULL;
        uint64_t state = atomic_load(&p->state);
        if (!(state & open_flag) || !atomic_compare_exchange_strong(&p->state, &state, state + 1)) continue;
        seen = state / region_step;
        take_units(p, p->fn, p->context, start.thread);
        if (atomic_fetch_sub(&p->state, 1) % open_flag == 1 && atomic_load(&p->caller_asleep)) {
            pthread_mutex_lock(&p->lock);
            pthread_cond_signal(&p->done);
            pthread_mutex_unlock(&p->lock);
        }
    }
}

cpu_pool *cpu_pool_new(int threads) {
    cpu_pool *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    p->threads = threads;
    p->handles = calloc((size_t)threads, sizeof *p->handles);
    p->ranges = aligned_alloc(_Alignof(unit_range), (size_t)threads * sizeof *p->ranges);
    if (!p->handles || !p->ranges || pthread_mutex_init(&p->lock, NULL) != 0) {
        free(p->ranges);
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
    atomic_store(&p->stopping, 1);
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->workers; i++) pthread_join(p->handles[i], NULL);
    pthread_cond_destroy(&p->work);
    pthread_cond_destroy(&p->done);
    pthread_mutex_destroy(&p->lock);
    free(p->ranges);
    free(p->handles);
    free(p);
}

int cpu_pool_threads(const cpu_pool *p) { return p->threads; }

// Looks until those that joined have left; 0 when its patience ends before.
static int joined_end(cpu_pool *p) {
    for (int64_t end = 0;;) {
        for (int i = 0; i < 64; i++) {
            if (!(atomic_load(&p->state) & joined_mask)) return 1;
            relax();
        }
        const int64_t now = now_nanos();
        if (end == 0) end = now + patience_nanos;
        if (now > end) return 0;
    }
}

void cpu_pool_run(cpu_pool *p, cpu_unit *fn, void *context, int units, int64_t cost) {
    const int awake = atomic_load_explicit(&p->looking, memory_order_relaxed) > 0;
    if (units <= 1 || p->workers == 0 || cost < (awake ? worth_sharing : worth_waking)) {
        for (int u = 0; u < units; u++) fn(context, u, 0);
        return;
    }
    p->fn = fn;
    p->context = context;
    for (int t = 0; t < p->threads; t++) {
        p->ranges[t].end = (int)((int64_t)units * (t + 1) / p->threads);
        atomic_store_explicit(&p->ranges[t].next, (int)((int64_t)units * t / p->threads), memory_order_relaxed);
    }
    atomic_store(&p->state, (atomic_load(&p->state) / region_step + 1) * region_step + open_flag);
    if (atomic_load(&p->asleep) > 0) {
        pthread_mutex_lock(&p->lock);
        if (units - 1 >= p->workers) {
            pthread_cond_broadcast(&p->work);
        } else {
            for (int i = 1; i < units; i++) pthread_cond_signal(&p->work);
        }
        pthread_mutex_unlock(&p->lock);
    }
    take_units(p, fn, context, 0);
    atomic_fetch_and(&p->state, ~open_flag);
    if (joined_end(p)) return;
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->caller_asleep, 1);
    while (atomic_load(&p->state) & joined_mask) pthread_cond_wait(&p->done, &p->lock);
    atomic_store(&p->caller_asleep, 0);
    pthread_mutex_unlock(&p->lock);
}
