// Matrix products and the backend they run on: threads, the variant of the kernels, working memory.
#ifndef COLIBRI_CPU_MATRIX_H
#define COLIBRI_CPU_MATRIX_H
#include "kernels.h"
#include "pool.h"

typedef struct {
    float *memory;
    size_t floats;
} cpu_buffer;

// Working memory by purpose. It grows to what the largest call needed and stays: no call allocates in a settled state.
enum {
    buffer_panel, // one for each layout
    buffer_xnorm = buffer_panel + layouts,
    buffer_query_latent,
    buffer_query,
    buffer_kv,
    buffer_context,
    buffer_hidden,
    buffer_gate,
    buffer_up,
    buffer_logits,
    buffer_index_query,
    buffer_index_padded,
    buffer_index_key,
    buffer_index_weight,
    buffer_index_scores,
    buffer_index_order,
    buffer_units,
    buffer_products,
    buffers,
};

typedef struct {
    cpu_pool *pool;
    const cpu_kernels *kernels;
    cpu_buffer buffer[buffers];
    cpu_buffer *thread; // scratch of each thread
} cpu_backend;

// NULL when memory or threads are refused; variant "" is the best this machine has.
cpu_backend *cpu_backend_new(int threads, const char *variant);
void cpu_backend_free(cpu_backend *b);
int64_t cpu_backend_bytes(const cpu_backend *b);

// At least so many floats, 64-byte aligned; contents are lost when it grows. NULL when memory is refused.
float *cpu_buffer_grow(cpu_buffer *buffer, size_t floats);
// The same for every thread's scratch; 0 or -1.
int cpu_thread_grow(cpu_backend *b, size_t floats);

// Calls fn for stretches of 0 … rows-1; cost is multiply-adds a row.
typedef void cpu_rows(void *context, int row0, int row1, int thread);
void cpu_rows_run(cpu_backend *b, cpu_rows *fn, void *context, int rows, int64_t cost);

// Rows of activations, and their panels in the layouts asked for so far. All sets share the panel buffers: making
// one ends the one before.
typedef struct {
    const float *x;
    int rows, columns;
    float *panel[layouts];
    size_t stride[layouts];
} cpu_panels;
cpu_panels cpu_panels_of(const float *x, int rows, int columns);
// Makes the panel for a weight; 0 or -1.
int cpu_panels_prepare(cpu_backend *b, cpu_panels *set, const cpu_weight *w);

// y[yrow[i]] = W·x[xrow[i]] for i < n; with up, silu(W·x) ⊙ (up·x). Missing row lists count up from 0.
typedef struct {
    const cpu_weight *w, *up;
    const float *panel, *up_panel;
    size_t stride, up_stride;
    const int32_t *xrow, *yrow;
    float *y, *y_up; // y_up: memory for up·x, as y
    size_t y_stride;
    int n;
    int first_unit, unit_rows; // set by cpu_products_run
} cpu_product;
void cpu_products_run(cpu_backend *b, cpu_product *list, int count);
// One product of a set's rows; 0 or -1.
int cpu_product_add(cpu_backend *b, cpu_product *list, int *count, cpu_panels *set, const cpu_weight *w, float *y);

int cpu_linear(cpu_backend *b, const cpu_weight *w, const float *x, float *y, int rows);
void cpu_normalise(cpu_backend *b, const float *weight, float epsilon, const float *x, float *y, int rows, int columns);
// Best of several passes over the memory, with all threads: bytes a second.
double cpu_read_bandwidth(cpu_backend *b, const void *memory, int64_t bytes, int passes);
// Best of several passes of multiply-adds in registers, with all threads: floating-point operations a second, two a multiply-add.
double cpu_peak_rate(cpu_backend *b, int passes);
#endif
