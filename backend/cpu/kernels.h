// The arithmetic that is written once and compiled for each instruction set: a table of functions per variant.
//
// A matrix product reads its activations from a panel: a copy of the row in the order in which the weights' bits come out
// of a register, in blocks, so that unpacking needs neither shifts nor shuffles. Every output is accumulated in one order,
// which depends on the variant only: not on how many rows are multiplied together, nor on which thread does it.
#ifndef COLIBRI_CPU_KERNELS_H
#define COLIBRI_CPU_KERNELS_H
#include <stddef.h>
#include <stdint.h>

// Numbered as container.Format is; the Go side asserts it.
enum {
    format_f32 = 1,
    format_bf16,
    format_f16,
    format_int8_row,
    format_int4_row,
    format_int2_row,
    format_int4_group,
    format_int3_g64,
    format_fp8_b128,
};

// A weight [rows, columns]; scales as its format has them. A precise one is multiplied with float32 activations,
// whatever its format: see kernels_bytes.h and kernels_short.h.
typedef struct {
    int32_t format, group, rows, columns, precise;
    const void *data;
    const float *scales;
} cpu_weight;

// How a panel is laid out. whole: in order. nibbles and crumbs: as 4-bit and 2-bit fields of 32-bit words, with
// the correction for the fields' offset (8 or 2 times the sum of the inputs, subtracted) before each block.
// short: 16-bit numbers (see kernels_short.h), where the variant has them. The byte ones: 8-bit numbers (see kernels_bytes.h).
enum { layout_whole, layout_nibbles, layout_crumbs, layout_short, layout_byte_nibbles, layout_byte_crumbs, layouts };

enum {
    product_batch = 128, // most rows of one call of product
    attention_tile = 64, // positions that share one rescaling of the online softmax
};

typedef struct {
    const char *name;
    int lanes;
    size_t product_scratch;    // floats of scratch memory that product needs
    size_t transposed_scratch; // floats a column that transposed needs

    int (*layout)(const cpu_weight *w); // of the activations that a weight is multiplied with
    size_t (*panel_floats)(int layout, int columns);
    void (*prepare)(int layout, const float *x, int columns, float *panel);
    // y[i][r-row0] = W[r]·x[i] for row0 <= r < row1, i < n <= product_batch; x are panels in the layout of the weight.
    void (*product)(const cpu_weight *w, int row0, int row1, int n, const float *const *x, float *const *y, float *scratch);
    // out[i][c] = sum over rows row0 <= r < row1, in order, of q[i][r-row0]·W[r][c].
    void (*transposed)(const cpu_weight *w, int row0, int row1, int n, const float *const *q, float *const *out, float *scratch);
    // One row of numbers.
    void (*unpack)(const cpu_weight *w, int row, float *out);

    void (*normalise)(const float *x, const float *weight, float epsilon, int n, float *y);
    void (*silu_multiply)(float *gate, const float *up, int n);
    void (*add)(float *x, const float *y, int n);
    // x[i] += (sum over k, in order, of gates[k]·outputs[k][i]) + shared[i]
    void (*combine)(float *x, const float *gates, const float *outputs, size_t stride, int k, const float *shared, int n);

    // out[i·stride+t] = q[i]·(ka[t], kb[t]) for i < n, t < positions; q[i] holds both parts, each padded with zeros to lanes.
    // Meanwhile rows of fetch, as many as positions and fetch_dim wide, are brought into the cache; NULL: none.
    void (*scores)(const float *const *q, int n, const float *const *ka, int dim_a, const float *const *kb, int dim_b, int positions,
                   float *out, int stride, const float *const *fetch, int fetch_dim);
    // The indexer: out[t] = sum over i, in order, of weight[i]·max(0, scale·q[i]·k[t]).
    void (*index_scores)(const float *const *q, int n, const float *weight, float scale, const float *const *k, int dim, int positions, float *out);
    // One step of the online softmax: p = exp(s - new maximum) in place for s[0 … n-1]; returns what earlier sums are multiplied with.
    float (*softmax_step)(float *s, int n, float *maximum, float *sum);
    // out[i] = out[i]·factor[i] + sum over t < positions, in order, of p[i·stride+t]·v[t]. Meanwhile rows of fetch, as many as positions and
    // dim wide, are brought into the cache; NULL: none.
    void (*weigh)(float *const *out, const float *factor, int n, const float *p, int stride, const float *const *v, int dim, int positions,
                  const float *const *fetch);
    void (*scale)(float *x, float factor, int n);

    // XOR of a stretch of memory, to measure how fast it is read.
    uint64_t (*read)(const void *memory, size_t bytes);
    // steps times multiply_adds multiply-adds in registers alone, to measure how many a second there can be.
    float (*multiply_add)(int64_t steps, float x);
    int multiply_adds;
} cpu_kernels;

// NULL where this machine or this build lacks the variant.
const cpu_kernels *cpu_kernels_portable(void);
const cpu_kernels *cpu_kernels_avx2(void);
const cpu_kernels *cpu_kernels_avx512(void);
const cpu_kernels *cpu_kernels_neon(void);
// The variant of that name, or the best one for an empty name.
const cpu_kernels *cpu_kernels_named(const char *name);

size_t cpu_row_bytes(const cpu_weight *w);
#endif
