//go:build darwin || metalsim

// The device: opening and closing it, its pipelines, its counters.
#include "metal_internal.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

uint64_t coli_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

int coli_fail(coli_metal_error *error, int status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->text, sizeof error->text, format, arguments);
    va_end(arguments);
    return status;
}

void coli_count(coli_metal *metal, uint64_t *counter, uint64_t amount) {
    pthread_mutex_lock(&metal->counter_lock);
    *counter += amount;
    pthread_mutex_unlock(&metal->counter_lock);
}

// What a kernel is called, how many threads a threadgroup of it has, and which function constants it reads.
enum { READS_WEIGHT = 1, READS_SECOND = 2, READS_XROWS = 4, READS_ATTENTION = 8 };
static const struct {
    const char *name;
    uint32_t threads, reads;
} kernels[KERNEL_COUNT] = {
    [KERNEL_MATVEC] = {"matvec", MATVEC_SIMDGROUPS * LANES, READS_WEIGHT | READS_XROWS},
    [KERNEL_EXPERT_GATE_UP] = {"expert_gate_up", MATVEC_SIMDGROUPS * LANES, READS_WEIGHT | READS_SECOND | READS_XROWS},
    [KERNEL_EXPERT_DOWN] = {"expert_down", MATVEC_SIMDGROUPS * LANES, READS_WEIGHT | READS_XROWS},
    [KERNEL_COMBINE] = {"combine", ELEMENT_THREADS, 0},
    [KERNEL_EMBED] = {"embed", ELEMENT_THREADS, READS_WEIGHT},
    [KERNEL_RMS_NORM] = {"rms_norm", NORM_THREADS, 0},
    [KERNEL_HEAD_TRANSFORM] = {"head_transform", LANES, 0},
    [KERNEL_ABSORB] = {"absorb", ABSORB_SIMDGROUPS * LANES, READS_WEIGHT | READS_XROWS},
    [KERNEL_ATTEND] = {"attend", ATTEND_SIMDGROUPS * LANES, READS_ATTENTION},
    [KERNEL_ATTEND_MERGE] = {"attend_merge", LANES, READS_ATTENTION},
    [KERNEL_ATTEND_TILES] = {"attend_tiles", 128, READS_ATTENTION},
    [KERNEL_INDEX_SCORES] = {"index_scores", SCORE_THREADS, 0},
    [KERNEL_INDEX_SELECT] = {"index_select", SELECT_THREADS, 0},
    [KERNEL_ROUTE] = {"route", ROUTE_THREADS, 0},
    [KERNEL_GEMM] = {"gemm", 128, READS_WEIGHT},
    [KERNEL_EXPERT_GEMM_GATE_UP] = {"expert_gemm_gate_up", 128, READS_WEIGHT | READS_SECOND},
    [KERNEL_EXPERT_GEMM_DOWN] = {"expert_gemm_down", 128, READS_WEIGHT},
};

uint32_t coli_kernel_threads(coli_kernel kernel) { return kernels[kernel].threads; }

static void copy_text(char *to, size_t bytes, NSString *text) {
    const char *utf8 = text ? [text UTF8String] : NULL;
    snprintf(to, bytes, "%s", utf8 ? utf8 : "no reason given");
}

static id<MTLComputePipelineState> build_pipeline(coli_metal *metal, coli_kernel kernel, const coli_constants *c, coli_metal_error *error) {
    const uint32_t numbers[] = {c->format, c->group_units, c->whole, c->format_b,      c->group_units_b,  c->whole_b,       c->xrows,
                                c->dim_a,  c->dim_b,       c->shared_values, c->heads_per_simd, c->share_columns, c->few};
    MTLFunctionConstantValues *values = [[MTLFunctionConstantValues alloc] init];
    for (uint32_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        if (i == CONSTANT_WHOLE || i == CONSTANT_WHOLE_B || i == CONSTANT_SHARED_VALUES || i == CONSTANT_SHARE_COLUMNS || i == CONSTANT_FEW) {
            const uint8_t flag = numbers[i] != 0;
            [values setConstantValue:&flag type:MTLDataTypeBool atIndex:i];
        } else {
            [values setConstantValue:&numbers[i] type:MTLDataTypeUInt atIndex:i];
        }
    }
    NSError *reason = nil;
    char text[256];
    id<MTLFunction> function = [metal->compiled newFunctionWithName:[NSString stringWithUTF8String:kernels[kernel].name]
                                                     constantValues:values
                                                              error:&reason];
    [values release];
    if (function == nil) {
        copy_text(text, sizeof text, [reason localizedDescription]);
        coli_fail(error, COLI_METAL_COMPILE, "kernel %s (format %u, group units %u) could not be specialised: %s", kernels[kernel].name, c->format,
                  c->group_units, text);
        return nil;
    }
    reason = nil;
    id<MTLComputePipelineState> state = [metal->device newComputePipelineStateWithFunction:function error:&reason];
    [function release];
    if (state == nil) {
        copy_text(text, sizeof text, [reason localizedDescription]);
        coli_fail(error, COLI_METAL_COMPILE, "kernel %s (format %u, group units %u) could not be compiled: %s", kernels[kernel].name, c->format,
                  c->group_units, text);
        return nil;
    }
    if ([state threadExecutionWidth] != LANES || [state maxTotalThreadsPerThreadgroup] < kernels[kernel].threads) {
        coli_fail(error, COLI_METAL_COMPILE, "kernel %s needs SIMD-groups of %d and %u threads a group; this GPU gives %lu and %lu", kernels[kernel].name,
                  LANES, kernels[kernel].threads, (unsigned long)[state threadExecutionWidth], (unsigned long)[state maxTotalThreadsPerThreadgroup]);
        [state release];
        return nil;
    }
    return state;
}

id<MTLComputePipelineState> coli_pipeline_for(coli_metal *metal, coli_kernel kernel, const coli_constants *constants, coli_metal_error *error) {
    coli_constants key = *constants;
    const uint32_t reads = kernels[kernel].reads;
    if (!(reads & READS_WEIGHT)) key.format = key.group_units = key.whole = 0;
    if (!(reads & READS_SECOND)) key.format_b = key.group_units_b = key.whole_b = 0;
    if (!(reads & READS_XROWS)) key.xrows = 0;
    if (kernel != KERNEL_MATVEC) key.share_columns = 0;
    if (kernel != KERNEL_EXPERT_GATE_UP && kernel != KERNEL_MATVEC) key.few = 0;
    if (!(reads & READS_ATTENTION)) key.dim_a = key.dim_b = key.shared_values = key.heads_per_simd = 0;
    const uint8_t *bytes = (const uint8_t *)&key;
    uint32_t hash = 2166136261u ^ (uint32_t)kernel;
    for (size_t i = 0; i < sizeof key; i++) hash = (hash ^ bytes[i]) * 16777619u;
    for (uint32_t probe = 0; probe < PIPELINE_SLOTS; probe++) {
        coli_pipeline *slot = &metal->pipelines[(hash + probe) % PIPELINE_SLOTS];
        if (slot->state == nil) {
            // A kernel must not be built with 0 where it divides by a constant.
            coli_constants values = key;
            if (values.group_units == 0) values.group_units = 1;
            if (values.group_units_b == 0) values.group_units_b = 1;
            if (values.xrows == 0) values.xrows = 1;
            if (values.dim_a == 0) values.dim_a = LANES;
            if (values.heads_per_simd == 0) values.heads_per_simd = 1;
            slot->state = build_pipeline(metal, kernel, &values, error);
            slot->kernel = kernel;
            slot->constants = key;
            return slot->state;
        }
        if (slot->kernel == kernel && memcmp(&slot->constants, &key, sizeof key) == 0) return slot->state;
    }
    coli_fail(error, COLI_METAL_COMPILE, "more than %d specialised kernels", PIPELINE_SLOTS);
    return nil;
}

int coli_metal_prepare(coli_metal *metal, uint32_t format, uint32_t group, coli_metal_error *error) {
    if (format < FORMAT_F32 || format > FORMAT_FP8_BLOCK128) return coli_fail(error, COLI_METAL_ARGUMENT, "format %u has no Metal kernel", format);
    if (format == FORMAT_INT4_GROUP && (group < 16 || group % 16 != 0)) {
        return coli_fail(error, COLI_METAL_ARGUMENT, "int4 in groups of %u has no Metal kernel: a group is a multiple of 16", group);
    }
    int status = COLI_METAL_OK;
    @autoreleasepool {
        coli_constants c = {.format = format, .whole = 1, .format_b = format, .whole_b = 1, .share_columns = 1};
        c.group_units = c.group_units_b = format == FORMAT_INT4_GROUP ? group / UNIT_COLUMNS : 1;
        const coli_kernel users[] = {KERNEL_MATVEC, KERNEL_EXPERT_GATE_UP, KERNEL_EXPERT_DOWN,         KERNEL_EMBED,
                                     KERNEL_ABSORB, KERNEL_GEMM,           KERNEL_EXPERT_GEMM_GATE_UP, KERNEL_EXPERT_GEMM_DOWN};
        for (size_t i = 0; status == COLI_METAL_OK && i < sizeof users / sizeof users[0]; i++) {
            for (c.xrows = 1; status == COLI_METAL_OK && c.xrows <= MAX_XROWS; c.xrows *= 2) {
                if (coli_pipeline_for(metal, users[i], &c, error) == nil) status = COLI_METAL_COMPILE;
            }
        }
        c.share_columns = 0; // the other forms of two kernels
        for (c.xrows = 1; status == COLI_METAL_OK && stages(format, c.group_units) && c.xrows <= MAX_XROWS; c.xrows *= 2) {
            if (coli_pipeline_for(metal, KERNEL_MATVEC, &c, error) == nil) status = COLI_METAL_COMPILE;
        }
        c.xrows = c.few = 1;
        if (status == COLI_METAL_OK && stages(format, c.group_units) &&
            (coli_pipeline_for(metal, KERNEL_MATVEC, &c, error) == nil || coli_pipeline_for(metal, KERNEL_EXPERT_GATE_UP, &c, error) == nil)) {
            status = COLI_METAL_COMPILE;
        }
    }
    return status;
}

// Every kernel once, so that a text that does not compile is found here and not in the middle of an answer; other encodings
// are built by prepare, when a model is loaded.
static int build_all(coli_metal *metal, coli_metal_error *error) {
    const coli_constants c = {.format = FORMAT_F32, .group_units = 1, .whole = 1, .format_b = FORMAT_F32, .group_units_b = 1, .whole_b = 1,
                              .xrows = 1, .dim_a = 128, .dim_b = 0, .shared_values = 0, .heads_per_simd = 1, .share_columns = 1};
    for (int kernel = 0; kernel < KERNEL_COUNT; kernel++) {
        if (coli_pipeline_for(metal, (coli_kernel)kernel, &c, error) == nil) return COLI_METAL_COMPILE;
    }
    return COLI_METAL_OK;
}

static bool suitable(id<MTLDevice> device) {
    return [device hasUnifiedMemory] && [device supportsFamily:MTLGPUFamilyApple7] && [device supportsFamily:MTLGPUFamilyMetal3];
}

int coli_metal_available(void) {
    int result = 0;
    @autoreleasepool {
        id<MTLDevice> device = MTLCreateSystemDefaultDevice();
        result = device != nil && suitable(device);
        [device release];
    }
    return result;
}

static int open_library(coli_metal *metal, const char *source, coli_metal_error *error) {
    MTLCompileOptions *options = [[MTLCompileOptions alloc] init];
    options.languageVersion = MTLLanguageVersion3_0;
    // Safe arithmetic: NaN and infinity keep their meaning, sums keep their order. Fused multiply-add is written out where it matters.
#if COLI_RESIDENCY_SETS
    if (@available(macOS 15.0, *)) {
        options.mathMode = MTLMathModeSafe;
        options.mathFloatingPointFunctions = MTLMathFloatingPointFunctionsPrecise;
    } else {
        options.fastMathEnabled = NO;
    }
#else
    options.fastMathEnabled = NO;
#endif
    NSError *reason = nil;
    metal->compiled = [metal->device newLibraryWithSource:[NSString stringWithUTF8String:source] options:options error:&reason];
    [options release];
    if (metal->compiled != nil) return COLI_METAL_OK; // reason may hold warnings
    char text[448];
    copy_text(text, sizeof text, [reason localizedDescription]);
    return coli_fail(error, COLI_METAL_COMPILE, "the kernels do not compile: %s", text);
}

// Runs combine on four numbers. It tells a GPU that computes from one that only accepts work, and works around systems that keep memory
// wired after release if the process never ran a GPU command.
static int try_device(coli_metal *metal, coli_metal_error *error) {
    coli_metal_submit *submit = coli_submit_open(metal, 4096, error);
    if (submit == NULL) return COLI_METAL_MEMORY;
    CombineParams p = {.rows = 1, .per_token = 2, .hidden = 1};
    float *gates = coli_scratch_take(submit, 2 * sizeof(float), &p.gates);
    float *output = coli_scratch_take(submit, 2 * sizeof(float), &p.output);
    float *shared = coli_scratch_take(submit, sizeof(float), &p.shared_output);
    float *x = coli_scratch_take(submit, sizeof(float), &p.x);
    if (submit->status == COLI_METAL_OK) {
        gates[0] = 2, gates[1] = 3, output[0] = 5, output[1] = 7, shared[0] = 11, x[0] = 13;
        const coli_constants none = {0};
        coli_encode_begin(submit);
        coli_encode(submit, KERNEL_COMBINE, &none, &p, sizeof p, 1, 1, 1);
        coli_encode_commit(submit);
        coli_submit_wait(submit);
        if (submit->status == COLI_METAL_OK && x[0] != 55.0f) coli_submit_fail(submit, COLI_METAL_DEVICE, "the GPU computes 2·5+3·7+11+13 as %g", (double)x[0]);
    }
    return coli_submit_close(submit, error);
}

int coli_metal_init(const char *source, int resset, coli_metal **out, coli_metal_error *error) {
    *out = NULL;
    coli_metal *metal = calloc(1, sizeof *metal);
    if (metal == NULL) return coli_fail(error, COLI_METAL_MEMORY, "no memory for the device context");
    pthread_mutex_init(&metal->registry_lock, NULL);
    pthread_cond_init(&metal->registry_changed, NULL);
    pthread_mutex_init(&metal->counter_lock, NULL);
    pthread_mutex_init(&metal->residency.lock, NULL);
    metal->products_per_second = 2.5e11; // a cautious first guess, an M1's half: measured from then on
    int status = COLI_METAL_OK;
    @autoreleasepool {
        metal->device = MTLCreateSystemDefaultDevice();
        if (metal->device == nil) {
            status = coli_fail(error, COLI_METAL_UNAVAILABLE, "this system has no Metal device");
        } else if (!suitable(metal->device)) {
            char name[128];
            copy_text(name, sizeof name, [metal->device name]);
            status = coli_fail(error, COLI_METAL_UNAVAILABLE, "%s cannot run Colibri's kernels: an Apple GPU of the M1 generation or later is needed", name);
        }
        if (status == COLI_METAL_OK) {
            copy_text(metal->name, sizeof metal->name, [metal->device name]);
            metal->max_buffer_length = [metal->device maxBufferLength];
            metal->queue = [metal->device newCommandQueue];
            if (metal->queue == nil) status = coli_fail(error, COLI_METAL_MEMORY, "%s gives no command queue", metal->name);
        }
        if (status == COLI_METAL_OK) status = open_library(metal, source, error);
        if (status == COLI_METAL_OK) status = build_all(metal, error);
        if (status == COLI_METAL_OK) {
            coli_residency_open(metal, resset);
            status = try_device(metal, error);
        }
    }
    if (status != COLI_METAL_OK) {
        coli_metal_shutdown(metal);
        return status;
    }
    *out = metal;
    return COLI_METAL_OK;
}

void coli_metal_shutdown(coli_metal *metal) {
    if (metal == NULL) return;
    @autoreleasepool {
        coli_submits_close(metal);
        coli_registry_close(metal);
        coli_residency_close(metal);
        for (uint32_t i = 0; i < PIPELINE_SLOTS; i++) [metal->pipelines[i].state release];
        [metal->compiled release];
        [metal->queue release];
        [metal->device release];
    }
    pthread_mutex_destroy(&metal->residency.lock);
    pthread_mutex_destroy(&metal->counter_lock);
    pthread_cond_destroy(&metal->registry_changed);
    pthread_mutex_destroy(&metal->registry_lock);
    free(metal);
}

const char *coli_metal_device_name(coli_metal *metal) { return metal->name; }

void coli_metal_mem_info(coli_metal *metal, coli_metal_memory *info) {
    @autoreleasepool {
        info->allocated = [metal->device currentAllocatedSize];
        info->working_set = [metal->device recommendedMaxWorkingSetSize];
        info->max_buffer_length = metal->max_buffer_length;
    }
}

void coli_metal_read_counters(coli_metal *metal, coli_metal_counters *counters) {
    pthread_mutex_lock(&metal->counter_lock);
    *counters = metal->counters;
    pthread_mutex_unlock(&metal->counter_lock);
}
