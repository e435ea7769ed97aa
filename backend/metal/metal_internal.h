// Shared by the host's files; not for callers. Ownership: the context owns everything; a mapping owns its buffers; a submit owns its
// command buffers and borrows a scratch buffer and the mappings it has resolved addresses in.
//
// Locks: registry_lock guards mappings, submits' states and the scratch list; set_lock guards the residency set. They are never
// held together, and no Metal call is made under registry_lock.
#pragma once
#define COLI_HOST 1
#import <Metal/Metal.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include "colibri_metal.h"
#include "shaders/abi.h"

// The residency set exists from SDK 15 on; a build against an older one leaves it out and takes the plain path.
#if !defined(__APPLE__) || (defined(__MAC_OS_X_VERSION_MAX_ALLOWED) && __MAC_OS_X_VERSION_MAX_ALLOWED >= 150000)
#define COLI_RESIDENCY_SETS 1
#else
#define COLI_RESIDENCY_SETS 0
#endif

// ---- numbers

static inline uint32_t divide_up(uint64_t a, uint64_t b) { return (uint32_t)((a + b - 1) / b); }
static inline uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

// ---- locks

#ifdef __APPLE__
#define COLI_LOCKED(name, metal_allowed) ((void)0)
#define COLI_UNLOCKED(name) ((void)0)
#else // the simulator checks that no Metal call is made under a lock that forbids it
#include "simulator/colibri_sim.h"
#define COLI_LOCKED(name, metal_allowed) colibri_sim_lock(name, metal_allowed)
#define COLI_UNLOCKED(name) colibri_sim_unlock(name)
#endif

// ---- kernels

typedef enum {
    KERNEL_MATVEC,
    KERNEL_EXPERT_GATE_UP,
    KERNEL_EXPERT_DOWN,
    KERNEL_COMBINE,
    KERNEL_EMBED,
    KERNEL_RMS_NORM,
    KERNEL_HEAD_TRANSFORM,
    KERNEL_ABSORB,
    KERNEL_ATTEND,
    KERNEL_ATTEND_MERGE,
    KERNEL_ATTEND_TILES,
    KERNEL_INDEX_SCORES,
    KERNEL_INDEX_SELECT,
    KERNEL_ROUTE,
    KERNEL_GEMM,
    KERNEL_EXPERT_GEMM_GATE_UP,
    KERNEL_EXPERT_GEMM_DOWN,
    KERNEL_COUNT
} coli_kernel;

// Function constants of a pipeline; 0 where its kernel does not read them, so that equal pipelines have equal keys.
typedef struct {
    uint32_t format, group_units, whole;
    uint32_t format_b, group_units_b, whole_b;
    uint32_t xrows;
    uint32_t dim_a, dim_b, shared_values, heads_per_simd;
    uint32_t share_columns, few;
} coli_constants;

typedef struct {
    coli_kernel kernel;
    coli_constants constants;
    id<MTLComputePipelineState> state; // nil: free entry
} coli_pipeline;
enum { PIPELINE_SLOTS = 2048 }; // open addressing; a model uses some dozens

// ---- memory

typedef struct {
    uintptr_t base;
    uint64_t length;
    uint64_t gpu;
    id<MTLBuffer> buffer;
} coli_piece;

// A registered range. Pieces cover it in order, each at most max_buffer_length long; an operand that lies across two of them
// gets a piece of its own when it is first used, appended behind the ordered ones.
typedef struct coli_mapping {
    uintptr_t base;
    uint64_t length;
    uint64_t stride; // length of every ordered piece but the last
    coli_piece *pieces;
    uint32_t ordered, count;
} coli_mapping;

typedef struct coli_scratch {
    id<MTLBuffer> buffer;
    uint64_t bytes;
    bool busy;
} coli_scratch;

typedef struct {
#if COLI_RESIDENCY_SETS
    id set; // id<MTLResidencySet>; nil on the plain path
#endif
    pthread_mutex_t lock;
    id<MTLBuffer> *waiting; // not yet added; owned by their mappings
    uint32_t waiting_count, waiting_capacity;
    bool supported, enabled;
    uint64_t members, adds, removals, commits, commit_nanoseconds;
} coli_residency;

// ---- submits

enum { SUBMIT_COMMAND_BUFFERS = 32 };
typedef enum { SUBMIT_IDLE, SUBMIT_BUILDING, SUBMIT_COMMITTED } coli_submit_state;

struct coli_metal_submit {
    coli_metal *metal;
    struct coli_metal_submit *next; // all submits ever made, idle ones included
    coli_submit_state state;        // under registry_lock; BUILDING until everything is committed
    bool completed;                 // under registry_lock
    uint32_t waiters;               // unregistering threads that wait for the command buffers; under registry_lock
    id<MTLCommandBuffer> buffers[SUBMIT_COMMAND_BUFFERS];
    uint32_t buffer_count, checked;
    id<MTLComputeCommandEncoder> encoder;
    int32_t scratch; // index into the context's list, −1: none
    uint8_t *scratch_memory;
    uint64_t scratch_gpu, scratch_used, scratch_bytes;
    coli_mapping **used; // pinned: their buffers outlive this submit's command buffers
    uint32_t used_count, used_capacity;
    id<MTLBuffer> *declared; // plain path: each resource once per encoder
    uint32_t declared_count, declared_capacity;
    int status; // the first failure; later steps do nothing
    coli_metal_error error;
    uint64_t started; // nanoseconds
    uint64_t products, committed_products; // multiply-adds in the open command buffer, and in those not waited for
    uint32_t experts;
};

struct coli_metal {
    id<MTLDevice> device;
    id<MTLCommandQueue> queue;
    id<MTLLibrary> compiled;
    char name[128];
    uint64_t max_buffer_length;
    coli_pipeline pipelines[PIPELINE_SLOTS];

    pthread_mutex_t registry_lock;
    pthread_cond_t registry_changed;
    coli_mapping **mappings; // by base
    uint32_t mapping_count, mapping_capacity;
    coli_metal_submit *submits;
    coli_scratch *scratches;
    uint32_t scratch_count, scratch_capacity;

    coli_residency residency;

    pthread_mutex_t counter_lock;
    coli_metal_counters counters;
    double products_per_second; // multiply-adds the GPU was last seen to do; decides how much goes into a command buffer
};

static inline void coli_lock_registry(coli_metal *metal) {
    pthread_mutex_lock(&metal->registry_lock);
    COLI_LOCKED("registry", 0);
}
static inline void coli_unlock_registry(coli_metal *metal) {
    COLI_UNLOCKED("registry");
    pthread_mutex_unlock(&metal->registry_lock);
}
static inline void coli_wait_registry(coli_metal *metal) {
    COLI_UNLOCKED("registry");
    pthread_cond_wait(&metal->registry_changed, &metal->registry_lock);
    COLI_LOCKED("registry", 0);
}
static inline void coli_lock_set(coli_metal *metal) {
    pthread_mutex_lock(&metal->residency.lock);
    COLI_LOCKED("residency set", 1);
}
static inline void coli_unlock_set(coli_metal *metal) {
    COLI_UNLOCKED("residency set");
    pthread_mutex_unlock(&metal->residency.lock);
}

// metal_device.m
uint64_t coli_now(void);
int coli_fail(coli_metal_error *error, int status, const char *format, ...) __attribute__((format(printf, 3, 4)));
id<MTLComputePipelineState> coli_pipeline_for(coli_metal *metal, coli_kernel kernel, const coli_constants *constants, coli_metal_error *error);
uint32_t coli_kernel_threads(coli_kernel kernel);
void coli_count(coli_metal *metal, uint64_t *counter, uint64_t amount);

// metal_residency.m: the set. All take set_lock themselves.
void coli_residency_open(coli_metal *metal, int resset);
void coli_residency_close(coli_metal *metal);
bool coli_residency_add(coli_metal *metal, id<MTLBuffer> buffer); // false: out of memory
void coli_residency_remove(coli_metal *metal, const coli_piece *pieces, uint32_t count);
void coli_residency_flush(coli_metal *metal);

// metal_registry.m
int coli_resolve(coli_metal_submit *submit, const void *pointer, uint64_t bytes, const char *what, coli_piece *piece);
void coli_registry_close(coli_metal *metal);

// metal_submit.m
coli_metal_submit *coli_submit_open(coli_metal *metal, uint64_t scratch_bytes, coli_metal_error *error);
int coli_submit_fail(coli_metal_submit *submit, int status, const char *format, ...) __attribute__((format(printf, 3, 4)));
void *coli_scratch_take(coli_metal_submit *submit, uint64_t bytes, uint64_t *gpu); // 256-byte aligned; null after a failure
uint64_t coli_scratch_copy(coli_metal_submit *submit, const void *from, uint64_t bytes);
uint64_t coli_address(coli_metal_submit *submit, const void *pointer, uint64_t bytes, const char *what);
void coli_encode_begin(coli_metal_submit *submit);
void coli_encode_barrier(coli_metal_submit *submit);
void coli_encode(coli_metal_submit *submit, coli_kernel kernel, const coli_constants *constants, const void *params, uint32_t params_bytes,
                 uint32_t x, uint32_t y, uint32_t z);
void coli_encode_commit(coli_metal_submit *submit);
// Waits for the command buffers committed so far and checks each one's status.
void coli_submit_wait(coli_metal_submit *submit);
// Gives everything back; returns the submit's status.
int coli_submit_close(coli_metal_submit *submit, coli_metal_error *error);
// All command buffers are committed: unregistering threads may wait for them.
void coli_submit_seal(coli_metal_submit *submit);
// GPU time per command buffer is capped, because a long one starves the display and is killed by the system: this many multiply-adds.
uint64_t coli_command_buffer_products(coli_metal *metal);
void coli_submits_close(coli_metal *metal);

// metal_products.m: weights resolved for the GPU, and products with them.
typedef struct {
    Matrix matrix;
    uint32_t format, group_units;
    bool whole;
} coli_operand;
int coli_block_check(const coli_block *block, const char *what, uint32_t rows, uint32_t columns, coli_metal_error *error);
coli_operand coli_weight(coli_metal_submit *submit, const coli_block *block, const char *what);
uint64_t coli_floats(coli_metal_submit *submit, const float *pointer, uint64_t count, const char *what);

typedef struct {
    uint64_t x, y, bias;
    uint32_t x_stride, y_stride, count;
    bool many; // the call has at least GEMM_MIN_ROWS rows
    uint32_t blocks, outputs, block_rows, block_first, x_block, y_block; // blocks 1, outputs 0: the whole weight
    uint32_t flags;
} coli_product;
void coli_multiply(coli_metal_submit *submit, const coli_operand *w, coli_product product);
void coli_encode_norm(coli_metal_submit *submit, uint64_t x, uint64_t weight, uint64_t y, uint32_t width, uint32_t rows, float epsilon);

// metal_experts.m
// Encodes down(silu(gate x) ⊙ (up x)) for `rows` consecutive rows as one expert: shared experts and dense layers, in two phases
// that the caller separates with a barrier.
typedef struct {
    coli_operand gate, up, down;
    uint64_t items, pairs, inner;
    uint32_t item_count, hidden, inner_width, rows, xrows;
} coli_network;
uint64_t coli_network_bytes(uint32_t rows, uint32_t inner);
coli_network coli_network_open(coli_metal_submit *submit, coli_operand gate, coli_operand up, coli_operand down, uint32_t rows, uint32_t hidden, uint32_t inner,
                               bool many);
void coli_network_gate_up(coli_metal_submit *submit, const coli_network *network, uint64_t input);
void coli_network_down(coli_metal_submit *submit, const coli_network *network, uint64_t output, uint32_t flags);

// Rows from which matrix instructions pay: below, weights are read once for up to MAX_XROWS rows and arithmetic is free. The two add in
// different orders, so the choice follows from the rows of a call (of an expert), never from how a call is cut into parts.
enum { GEMM_MIN_ROWS = 16 };
// #488: one dispatch of more than some 3·10^7 outputs corrupts memory on some systems.
enum { MAX_DISPATCH_OUTPUTS = 1 << 25 };
