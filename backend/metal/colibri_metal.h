// The Metal backend's C interface: what Go calls. Dimensions are parameters, handles are opaque, every function that can fail
// returns a status and writes a sentence into `error`.
//
// Memory: weights, caches and activations are named by address and lie in ranges given to coli_metal_register; the GPU reads and
// writes them in place. Small tables (rows, ids, counts, angles, gates) are copied and may lie anywhere.
//
// Threads: register, unregister, statistics and heartbeat may be called from any thread at any time; everything else from one thread at
// a time. Whatever is given to a call stays untouched by others until it returns (moe_block: until moe_block_end returns).
#pragma once
#include <stddef.h>
#include <stdint.h>

typedef struct coli_metal coli_metal;               // the device and all that belongs to it
typedef struct coli_metal_submit coli_metal_submit; // experts under way

enum coli_metal_status {
    COLI_METAL_OK = 0,
    COLI_METAL_ARGUMENT = 1,    // the caller's mistake: sizes, alignment, unregistered memory
    COLI_METAL_UNAVAILABLE = 2, // this system has no GPU that can do it
    COLI_METAL_COMPILE = 3,     // a kernel was refused by the GPU's compiler; the message names it
    COLI_METAL_MEMORY = 4,      // the system gave no memory for a buffer
    COLI_METAL_DEVICE = 5,      // a command buffer failed: its outputs are garbage, its inputs intact
};

typedef struct coli_metal_error {
    char text[512];
} coli_metal_error;

enum { COLI_METAL_PAGE = 16384 };

// COLI_METAL_RESSET: unset, 0 or 1.
enum coli_metal_resset { COLI_METAL_RESSET_UNSET = -1, COLI_METAL_RESSET_OFF = 0, COLI_METAL_RESSET_ON = 1 };

int coli_metal_available(void); // a device of the Apple 7 family (M1) or newer with Metal 3
// source is the text of all kernels (shaders/). Builds every kernel once.
int coli_metal_init(const char *source, int resset, coli_metal **out, coli_metal_error *error);
// Waits for what is under way, then releases everything. Registered memory is taken back first.
void coli_metal_shutdown(coli_metal *metal);
const char *coli_metal_device_name(coli_metal *metal);

typedef struct coli_metal_memory {
    uint64_t allocated;         // by this process on the device
    uint64_t working_set;       // what the system recommends to stay below
    uint64_t max_buffer_length; // of one buffer; longer ranges are wrapped in pieces
} coli_metal_memory;
void coli_metal_mem_info(coli_metal *metal, coli_metal_memory *info);

// Wraps [base, base+length) for the GPU without copying. Both are multiples of COLI_METAL_PAGE. An address that is registered
// already gets a new wrapper and the old one leaves the residency set.
int coli_metal_register(coli_metal *metal, void *base, uint64_t length, coli_metal_error *error);
// Takes the range back. Waits for command buffers that use it; when it returns, the GPU does not know the memory any more.
int coli_metal_unregister(coli_metal *metal, void *base, coli_metal_error *error);
void coli_metal_stats(coli_metal *metal, uint64_t *ranges, uint64_t *bytes);

typedef struct coli_metal_resset_statistics {
    int supported, enabled;
    uint64_t members, waiting; // in the set; to be added at the next submit
    uint64_t adds, removals, commits, commit_nanoseconds;
} coli_metal_resset_statistics;
void coli_metal_resset_stats(coli_metal *metal, coli_metal_resset_statistics *statistics);
// wire: asks the system to keep the set's memory wired, which it undoes by itself after about a second without GPU work;
// otherwise lets it go. Without a set nothing happens.
void coli_metal_heartbeat(coli_metal *metal, int wire);

typedef struct coli_metal_counters {
    uint64_t blocks, blocks_failed, experts, layers, submits, command_buffers, dispatches;
    uint64_t unaligned_products;   // products that took the byte-wise path because a weight was not 16-byte aligned or odd in width
    uint64_t scratch_allocations;  // grows while sizes are new, then stands still
    uint64_t resources_declared;   // useResource calls: none while a residency set is in use
    uint64_t setup_nanoseconds, wait_nanoseconds, gpu_nanoseconds, scatter_nanoseconds;
} coli_metal_counters;
void coli_metal_read_counters(coli_metal *metal, coli_metal_counters *counters);

typedef struct coli_block {
    const void *data;
    const float *scales;
    uint64_t data_bytes, scale_count;
    uint32_t rows, columns, format, group; // rows 0: absent
} coli_block;

// Builds the kernels of an encoding. COLI_METAL_ARGUMENT: there are none for it.
int coli_metal_prepare(coli_metal *metal, uint32_t format, uint32_t group, coli_metal_error *error);

// y[i] = W·x[i]
int coli_metal_gemm(coli_metal *metal, const coli_block *w, const float *x, float *y, uint32_t rows, coli_metal_error *error);
int coli_metal_embed(coli_metal *metal, const coli_block *table, const int32_t *ids, float *x, uint32_t rows, coli_metal_error *error);
int coli_metal_norm(coli_metal *metal, const float *weight, float epsilon, const float *x, float *y, uint32_t width, uint32_t rows,
                    coli_metal_error *error);
int coli_metal_head(coli_metal *metal, const float *norm, float epsilon, const coli_block *head, const float *x, float *normed, float *logits,
                    uint32_t rows, coli_metal_error *error);

// Rows rows[first … first+count−1] of input, computed by one expert into slots[first …] of output.
typedef struct coli_expert {
    coli_block gate, up, down;
    uint32_t first, count;
} coli_expert;
typedef struct coli_moe_call {
    uint32_t hidden, inner;
    uint32_t input_rows, output_rows; // sizes of input and output
    uint32_t experts, pairs;          // lengths of the lists
} coli_moe_call;
int coli_metal_moe_block_begin(coli_metal *metal, const coli_moe_call *call, const float *input, float *output, const coli_expert *experts,
                               const int32_t *rows, const int32_t *slots, coli_metal_submit **out, coli_metal_error *error);
int coli_metal_moe_block_end(coli_metal *metal, coli_metal_submit *submit, coli_metal_error *error);
int coli_metal_moe_block(coli_metal *metal, const coli_moe_call *call, const float *input, float *output, const coli_expert *experts, const int32_t *rows,
                         const int32_t *slots, coli_metal_error *error);
// x[r] += (Σ_k gates[r,k] · output[r·per_token+k]) + shared[r]
int coli_metal_combine(coli_metal *metal, const float *gates, const float *output, const float *shared, float *x, uint32_t rows, uint32_t per_token,
                       uint32_t hidden, coli_metal_error *error);

typedef struct coli_layer_shape {
    uint32_t hidden, heads;
    uint32_t latent; // 1: MLA, 0: grouped-query attention
    uint32_t query_rank, kv_rank, nope, rope, value_dim;
    uint32_t key_heads, head_dim, head_norm, full_norm; // head_norm, full_norm: queries and keys are normalised per head, or whole
    uint32_t interleaved;
    uint32_t index_heads, index_dim, index_top_k; // 0: no indexer in the model
    uint32_t index_full;                          // this layer computes its own selection
    uint32_t sparse, inner;                       // inner: width of the dense network or of the shared experts, 0 without
    uint32_t experts, per_token, groups, top_groups, sigmoid, normalise;
    float epsilon, latent_epsilon, scale, clip, route_scale; // latent_epsilon: of the norms of the query and key-value latents
} coli_layer_shape;

typedef struct coli_layer_weights {
    coli_block query_a, query_b, kv_a, kv_b;
    coli_block query, key, value, output;
    coli_block index_query, index_key, index_score;
    coli_block gate, up, down, router;
    const float *input_norm, *post_norm, *query_a_norm, *kv_a_norm;
    const float *query_norm, *key_norm, *query_bias, *key_bias, *value_bias;
    const float *index_key_norm, *index_key_norm_bias;
    const float *router_bias;
} coli_layer_weights;

typedef struct coli_row {
    uint32_t position, cache, tie_span;
} coli_row;
typedef struct coli_cache {
    float *latent, *rope, *index, *keys, *values;
    uint64_t capacity; // positions
} coli_cache;

typedef struct coli_layer_call {
    coli_layer_shape shape;
    coli_layer_weights weights;
    uint32_t rows, caches;
    uint32_t caches_only; // as compute.LayerCall.CachesOnly
    float *x, *normed, *shared;
} coli_layer_call;
// Tables that are copied: in rows, caches, cos, sin; in and out counts, positions (null without an
// indexer); out tied (of layers with an indexer: compute.Selection.Tied), experts, gates.
int coli_metal_layer_decode(coli_metal *metal, const coli_layer_call *call, const coli_row *rows, const coli_cache *caches, const float *cos,
                            const float *sin, int32_t *counts, int32_t *positions, int32_t *tied, int32_t *experts, float *gates, coli_metal_error *error);
// The attention half alone: x += attention(norm(x)).
int coli_metal_attn_decode(coli_metal *metal, const coli_layer_call *call, const coli_row *rows, const coli_cache *caches, const float *cos,
                           const float *sin, int32_t *counts, int32_t *positions, int32_t *tied, coli_metal_error *error);
// Working memory that layer calls of a shape need.
uint64_t coli_metal_scratch_bytes(const coli_layer_shape *shape, uint32_t rows, uint32_t positions);
