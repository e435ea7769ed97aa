#include "matrix.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

cpu_backend *cpu_backend_new(int threads, const char *variant) {
    const cpu_kernels *kernels = cpu_kernels_named(variant);
    cpu_backend *b = calloc(1, sizeof *b);
    if (!kernels || !b) {
        free(b);
        return NULL;
    }
    b->kernels = kernels;
    b->thread = calloc((size_t)threads, sizeof *b->thread);
    b->pool = b->thread ? cpu_pool_new(threads) : NULL;
    if (!b->pool || cpu_thread_grow(b, kernels->product_scratch) != 0) {
        cpu_backend_free(b);
        return NULL;
    }
    return b;
}

void cpu_backend_free(cpu_backend *b) {
    if (!b) return;
    int threads = b->pool ? cpu_pool_threads(b->pool) : 0;
    cpu_pool_free(b->pool);
    for (int t = 0; t < threads; t++) free(b->thread[t].memory);
    free(b->thread);
    for (int i = 0; i < buffers; i++) free(b->buffer[i].memory);
    free(b);
}

int64_t cpu_backend_bytes(const cpu_backend *b) {
    size_t floats = 0;
    for (int i = 0; i < buffers; i++) floats += b->buffer[i].floats;
    for (int t = 0; t < cpu_pool_threads(b->pool); t++) floats += b->thread[t].floats;
    return (int64_t)(floats * sizeof(float));
}

float *cpu_buffer_grow(cpu_buffer *buffer, size_t floats) {
    if (floats <= buffer->floats && buffer->memory) return buffer->memory;
    floats = (floats + 15) / 16 * 16 + 16;
    free(buffer->memory);
    buffer->memory = aligned_alloc(64, floats * sizeof(float));
    buffer->floats = buffer->memory ? floats : 0;
    return buffer->memory;
}

int cpu_thread_grow(cpu_backend *b, size_t floats) {
    for (int t = 0; t < cpu_pool_threads(b->pool); t++) {
        if (!cpu_buffer_grow(&b->thread[t], floats)) return -1;
    }
    return 0;
}

// ---- stretches of rows ----

typedef struct {
    cpu_rows *fn;
    void *context;
    int rows, block;
} rows_region;

static void rows_unit(void *context, int unit, int thread) {
    rows_region *r = context;
    int row0 = unit * r->block, row1 = row0 + r->block < r->rows ? row0 + r->block : r->rows;
    r->fn(r->context, row0, row1, thread);
}

void cpu_rows_run(cpu_backend *b, cpu_rows *fn, void *context, int rows, int64_t cost) {
    int parts = 4 * cpu_pool_threads(b->pool);
    rows_region r = {fn, context, rows, (rows + parts - 1) / parts};
    if (rows > 0) cpu_pool_run(b->pool, rows_unit, &r, (rows + r.block - 1) / r.block, cost * rows);
}

// ---- panels ----

cpu_panels cpu_panels_of(const float *x, int rows, int columns) { return (cpu_panels){.x = x, .rows = rows, .columns = columns}; }

typedef struct {
    const cpu_kernels *kernels;
    cpu_panels *set;
    int layout;
} prepare_region;

static void prepare_rows(void *context, int row0, int row1, int thread) {
    (void)thread;
    prepare_region *p = context;
    cpu_panels *set = p->set;
    for (int r = row0; r < row1; r++) {
        p->kernels->prepare(p->layout, set->x + (size_t)r * (size_t)set->columns, set->columns,
                            set->panel[p->layout] + (size_t)r * set->stride[p->layout]);
    }
}

int cpu_panels_prepare(cpu_backend *b, cpu_panels *set, const cpu_weight *w) {
    int layout = b->kernels->layout(w);
    if (set->panel[layout]) return 0;
    set->stride[layout] = b->kernels->panel_floats(layout, set->columns);
    set->panel[layout] = cpu_buffer_grow(&b->buffer[buffer_panel + layout], set->stride[layout] * (size_t)set->rows);
    if (!set->panel[layout]) return -1;
    prepare_region p = {b->kernels, set, layout};
    cpu_rows_run(b, prepare_rows, &p, set->rows, 4 * (int64_t)set->columns);
    return 0;
}

// ---- products ----

typedef struct {
    cpu_backend *b;
    cpu_product *list;
    int count;
} products_region;

static void products_unit(void *context, int unit, int thread) {
    products_region *region = context;
    const cpu_kernels *k = region->b->kernels;
    int low = 0, high = region->count - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (region->list[middle].first_unit <= unit) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    const cpu_product *p = &region->list[low];
    int row0 = (unit - p->first_unit) * p->unit_rows, row1 = row0 + p->unit_rows;
    if (row1 > p->w->rows) row1 = p->w->rows;
    for (int i0 = 0; i0 < p->n; i0 += product_batch) {
        const float *x[product_batch], *x_up[product_batch];
        float *y[product_batch], *y_up[product_batch];
        int n = p->n - i0 < product_batch ? p->n - i0 : product_batch;
        for (int i = 0; i < n; i++) {
            size_t from = (size_t)(p->xrow ? p->xrow[i0 + i] : i0 + i), to = (size_t)(p->yrow ? p->yrow[i0 + i] : i0 + i);
            x[i] = p->panel + from * p->stride;
            y[i] = p->y + to * p->y_stride + row0;
            if (p->up) {
                x_up[i] = p->up_panel + from * p->up_stride;
                y_up[i] = p->y_up + to * p->y_stride + row0;
            }
        }
        k->product(p->w, row0, row1, n, x, y, region->b->thread[thread].memory);
        if (!p->up) continue;
        k->product(p->up, row0, row1, n, x_up, y_up, region->b->thread[thread].memory);
        for (int i = 0; i < n; i++) k->silu_multiply(y[i], y_up[i], row1 - row0);
    }
}

void cpu_products_run(cpu_backend *b, cpu_product *list, int count) {
    int64_t total = 0;
    for (int i = 0; i < count; i++) {
        total += (int64_t)list[i].n * list[i].w->rows * list[i].w->columns * (list[i].up ? 2 : 1);
    }
    // Eight units a thread even out what the threads are late; 16 rows are the least that a tile repays.
    int64_t share = total / (8 * cpu_pool_threads(b->pool)) + 1;
    int units = 0;
    for (int i = 0; i < count; i++) {
        cpu_product *p = &list[i];
        // Rounded down where a tile's 16 rows are work enough: 11 units of 32 rows leave one of two threads without the last.
        int64_t row = (int64_t)p->n * p->w->columns * (p->up ? 2 : 1), rows = row > 0 ? (share / row + (p->n < 16 ? 15 : 0)) / 16 * 16 : 16;
        if (rows < 16) rows = 16;
        p->unit_rows = rows < p->w->rows ? (int)rows : p->w->rows;
        p->first_unit = units;
        units += p->n > 0 ? (p->w->rows + p->unit_rows - 1) / p->unit_rows : 0;
    }
    products_region region = {b, list, count};
    cpu_pool_run(b->pool, products_unit, &region, units, total);
}

int cpu_product_add(cpu_backend *b, cpu_product *list, int *count, cpu_panels *set, const cpu_weight *w, float *y) {
    if (cpu_panels_prepare(b, set, w) != 0) return -1;
    int layout = b->kernels->layout(w);
    list[(*count)++] = (cpu_product){
        .w = w, .panel = set->panel[layout], .stride = set->stride[layout], .y = y, .y_stride = (size_t)w->rows, .n = set->rows};
    return 0;
}

int cpu_linear(cpu_backend *b, const cpu_weight *w, const float *x, float *y, int rows) {
    cpu_panels set = cpu_panels_of(x, rows, w->columns);
    cpu_product product;
    int count = 0;
    if (cpu_product_add(b, &product, &count, &set, w, y) != 0) return -1;
    cpu_products_run(b, &product, count);
    return 0;
}

typedef struct {
    const cpu_kernels *kernels;
    const float *weight, *x;
    float *y, epsilon;
    int columns;
} normalise_region;

static void normalise_rows(void *context, int row0, int row1, int thread) {
    (void)thread;
    normalise_region *n = context;
    for (int r = row0; r < row1; r++) {
        size_t at = (size_t)r * (size_t)n->columns;
        n->kernels->normalise(n->x + at, n->weight, n->epsilon, n->columns, n->y + at);
    }
}

void cpu_normalise(cpu_backend *b, const float *weight, float epsilon, const float *x, float *y, int rows, int columns) {
    normalise_region n = {b->kernels, weight, x, y, epsilon, columns};
    cpu_rows_run(b, normalise_rows, &n, rows, 2 * (int64_t)columns);
}

// ---- measuring ----

typedef struct {
    const cpu_kernels *kernels;
    const char *memory;
    int64_t part;
    uint64_t *folded;
} read_region;

static void read_unit(void *context, int unit, int thread) {
    read_region *r = context;
    r->folded[thread * 8] ^= r->kernels->read(r->memory + unit * r->part, (size_t)r->part);
}

// The shortest time of a few passes over all units.
static double best_seconds(cpu_backend *b, void (*unit)(void *, int, int), void *context, int units, int passes) {
    double best = INFINITY;
    for (int pass = 0; pass < passes; pass++) {
        struct timespec from, to;
        clock_gettime(CLOCK_MONOTONIC, &from);
        cpu_pool_run(b->pool, unit, context, units, INT64_MAX);
        clock_gettime(CLOCK_MONOTONIC, &to);
        double seconds = (double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) * 1e-9;
        if (seconds < best) best = seconds;
    }
    return best;
}

double cpu_read_bandwidth(cpu_backend *b, const void *memory, int64_t bytes, int passes) {
    int threads = cpu_pool_threads(b->pool), units = 8 * threads;
    int64_t part = bytes / units / 4096 * 4096;
    uint64_t *folded = calloc((size_t)threads * 8, sizeof *folded);
    if (!folded || part == 0) {
        free(folded);
        return -1;
    }
    read_region r = {b->kernels, memory, part, folded};
    double seconds = best_seconds(b, read_unit, &r, units, passes);
    free(folded);
    return (double)(part * units) / seconds;
}

enum { peak_steps = 200 * 1000 }; // of a unit: a few milliseconds at most

typedef struct {
    const cpu_kernels *kernels;
    volatile float kept; // so that the sums are needed
} peak_region;

static void peak_unit(void *context, int unit, int thread) {
    (void)thread;
    peak_region *p = context;
    float sum = p->kernels->multiply_add(peak_steps, 0.5f);
    if (unit == 0) p->kept = sum;
}

double cpu_peak_rate(cpu_backend *b, int passes) {
    int units = 4 * cpu_pool_threads(b->pool);
    peak_region p = {.kernels = b->kernels};
    return 2.0 * units * peak_steps * b->kernels->multiply_adds / best_seconds(b, peak_unit, &p, units, passes);
}
