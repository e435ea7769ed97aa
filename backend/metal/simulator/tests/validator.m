// Breaks every rule of the validator on purpose and sees it caught, with the buffer and the line where there are such; and keeps
// every rule once, and sees nothing. Each case is a process of its own when Go runs it: validator-tests NAME. Without a name: all.
#import <Metal/Metal.h>
#include "../colibri_sim.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const char *const source =
    "#include <metal_stdlib>\n"
    "using namespace metal;\n"
    "struct Params { ulong a; ulong b; uint n; uint m; };\n"
    "inline device float *floats_at(ulong a) { return reinterpret_cast<device float *>(a); }\n"
    "inline device uchar *bytes_at(ulong a) { return reinterpret_cast<device uchar *>(a); }\n"
    "#define ARGUMENTS constant Params &p [[buffer(0)]], uint3 group [[threadgroup_position_in_grid]], uint i [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]\n"
    "kernel void copy(ARGUMENTS) {\n"
    "    uint at = group.x * 64 + i;\n"
    "    if (at >= p.n) return;\n"
    "    float x = floats_at(p.a)[at]; // LINE load\n"
    "    floats_at(p.b)[at] = x; // LINE store\n"
    "}\n"
    "kernel void one_byte(ARGUMENTS) {\n"
    "    if (i == 5) bytes_at(p.b)[p.n] = uchar(1); // LINE byte\n"
    "}\n"
    "kernel void divergent(ARGUMENTS) {\n"
    "    if (i < 32) { threadgroup_barrier(mem_flags::mem_threadgroup); } // LINE divergent\n"
    "    else floats_at(p.b)[i] = 1.0f;\n"
    "}\n"
    "kernel void two_barriers(ARGUMENTS) {\n"
    "    if (i < 32) { threadgroup_barrier(mem_flags::mem_threadgroup); } // LINE one\n"
    "    else { threadgroup_barrier(mem_flags::mem_device); } // LINE other\n"
    "    floats_at(p.b)[i] = float(lane);\n"
    "}\n"
    "kernel void race(ARGUMENTS) {\n"
    "    threadgroup float shared[64];\n"
    "    shared[i] = float(i);\n"
    "    if (p.n == 1u) threadgroup_barrier(mem_flags::mem_threadgroup);\n"
    "    floats_at(p.b)[i] = shared[63 - i]; // LINE race\n"
    "}\n"
    "kernel void overwrite(ARGUMENTS) {\n"
    "    threadgroup float shared[64];\n"
    "    shared[i] = float(i);\n"
    "    threadgroup_barrier(mem_flags::mem_threadgroup);\n"
    "    float x = shared[(i + 40) % 64];\n"
    "    if (p.n == 1u) threadgroup_barrier(mem_flags::mem_threadgroup);\n"
    "    shared[i] = x; // LINE overwrite\n"
    "    floats_at(p.b)[i] = x;\n"
    "}\n"
    "kernel void lanes_race(ARGUMENTS) {\n"
    "    threadgroup float shared[64];\n"
    "    shared[i] = float(i);\n"
    "    if (p.n == 1u) simdgroup_barrier(mem_flags::mem_threadgroup);\n"
    "    floats_at(p.b)[i] = shared[i ^ 1]; // LINE lanes\n"
    "}\n"
    "kernel void uninitialised(ARGUMENTS) {\n"
    "    threadgroup float shared[64];\n"
    "    if (i != 7 || p.n == 1u) shared[i] = 0.0f;\n"
    "    threadgroup_barrier(mem_flags::mem_threadgroup);\n"
    "    floats_at(p.b)[i] = shared[i]; // LINE uninitialised\n"
    "}\n"
    "kernel void past_shared(ARGUMENTS) {\n"
    "    threadgroup float shared[64];\n"
    "    threadgroup float next[64];\n"
    "    next[i] = shared[i] = 0.0f;\n"
    "    threadgroup float *from = shared;\n"
    "    floats_at(p.b)[i] = from[i + p.n] + next[i]; // LINE past\n"
    "}\n"
    "kernel void groups_race(ARGUMENTS) {\n"
    "    if (i == 0) floats_at(p.b)[p.n == 1u ? group.x : 0u] = 1.0f; // LINE groups\n"
    "}\n"
    "kernel void device_race(ARGUMENTS) {\n"
    "    floats_at(p.b)[i] = float(i);\n"
    "    threadgroup_barrier(p.n == 1u ? mem_flags::mem_device : mem_flags::mem_threadgroup);\n"
    "    floats_at(p.a)[i] = floats_at(p.b)[63 - i]; // LINE device\n"
    "}\n"
    "kernel void inactive_lane(ARGUMENTS) {\n"
    "    float x = float(i);\n"
    "    if (lane < 16 || p.n == 1u) x = simd_shuffle(x, ushort(20)); // LINE inactive\n"
    "    floats_at(p.b)[i] = x;\n"
    "}\n"
    "kernel void misaligned(ARGUMENTS) {\n"
    "    if (i == 0) { float4 x = *reinterpret_cast<device float4 *>(p.a + p.n); floats_at(p.b)[0] = x.x + x.w; } // LINE misaligned\n"
    "}\n"
    "kernel void argument_end(ARGUMENTS) {\n"
    "    constant uint *words = reinterpret_cast<constant uint *>(&p);\n"
    "    if (i == 0) floats_at(p.b)[0] = float(words[p.n]); // LINE argument\n"
    "}\n"
    "kernel void deep(ARGUMENTS) {\n"
    "    float big[65536];\n"
    "    for (uint k = 0; k < 65536; k++) big[(k * 7u + p.n) % 65536u] = float(k);\n"
    "    floats_at(p.b)[i] = big[i];\n"
    "}\n"
    "kernel void collectives(ARGUMENTS) {\n"
    "    float x = floats_at(p.a)[i];\n"
    "    device float *out = floats_at(p.b) + i * 8;\n"
    "    out[0] = simd_sum(x); out[1] = simd_max(x); out[2] = simd_min(x); out[3] = simd_prefix_exclusive_sum(x);\n"
    "    out[4] = simd_shuffle_xor(x, 3); out[5] = simd_broadcast(x, 9);\n"
    "    if (lane & 1) out[6] = simd_sum(x); else out[6] = simd_sum(-x);\n"
    "    out[7] = lane < 10 ? simd_sum(1.0f) : 0.0f;\n"
    "}\n"
    "kernel void matrices(ARGUMENTS) {\n"
    "    threadgroup float left[64];\n"
    "    left[i] = floats_at(p.a)[i]; left[i + 32] = floats_at(p.a)[i + 32];\n"
    "    threadgroup_barrier(mem_flags::mem_threadgroup);\n"
    "    simdgroup_float8x8 a, b, c = make_filled_simdgroup_matrix<float, 8, 8>(1.0f);\n"
    "    simdgroup_load(a, left, 8);\n"
    "    simdgroup_load(b, floats_at(p.a) + 64, 8, ulong2(0, 0), true);\n"
    "    simdgroup_multiply_accumulate(c, a, b, c);\n"
    "    simdgroup_store(c, floats_at(p.b), 8);\n"
    "}\n";

static int failures;
static const char *current;
#define FAIL(...) (failures++, printf("%s: ", current), printf(__VA_ARGS__), printf("\n"))

static int line_of(const char *mark) {
    char wanted[64];
    snprintf(wanted, sizeof wanted, "// LINE %s\n", mark);
    const char *at = strstr(source, wanted);
    int line = 1;
    for (const char *c = source; c < at; c++) line += *c == '\n';
    return line;
}

// The reports since the start of the case: exactly one, of this rule, that holds all of the texts.
static void expect(const char *rule, const char *mark, const char *text) {
    char report[2048], place[64] = "";
    size_t count = colibri_sim_report_count();
    if (mark) snprintf(place, sizeof place, "program_source:%d", line_of(mark));
    int found = 0;
    for (size_t i = 0; i < count; i++) {
        colibri_sim_report(i, report, sizeof report);
        if (strncmp(report, rule, strlen(rule)) == 0 && strstr(report, place) && (!text || strstr(report, text))) found++;
    }
    if (found) {
        colibri_sim_clear_reports();
        return;
    }
    FAIL("expected '%s' at %s with '%s', got %zu reports", rule, place, text ? text : "", count);
    for (size_t i = 0; i < count; i++) {
        colibri_sim_report(i, report, sizeof report);
        printf("    %s\n", report);
    }
    colibri_sim_clear_reports();
}

static void expect_nothing(void) {
    char report[2048];
    for (size_t i = 0; i < colibri_sim_report_count(); i++) {
        colibri_sim_report(i, report, sizeof report);
        FAIL("unexpected report: %s", report);
    }
    colibri_sim_clear_reports();
}

// ---- a device with a queue, a residency set on it, and two buffers in the set

typedef struct { uint64_t a, b; uint32_t n, m; } Params;
static id<MTLDevice> device;
static id<MTLCommandQueue> queue;
static id<MTLLibrary> library;
static id<MTLResidencySet> set;
static id<MTLBuffer> a, b;

static id<MTLLibrary> compile(const char *text, char *why, size_t capacity) {
    MTLCompileOptions *options = [[MTLCompileOptions alloc] init];
    options.languageVersion = MTLLanguageVersion3_0;
    options.mathMode = MTLMathModeSafe;
    NSError *error = nil;
    id<MTLLibrary> result = [device newLibraryWithSource:[NSString stringWithUTF8String:text] options:options error:&error];
    [options release];
    if (result == nil && why) snprintf(why, capacity, "%s", [[error localizedDescription] UTF8String]);
    return result;
}

static id<MTLComputePipelineState> pipeline(const char *name) {
    MTLFunctionConstantValues *values = [[MTLFunctionConstantValues alloc] init];
    NSError *error = nil;
    id<MTLFunction> function = [library newFunctionWithName:[NSString stringWithUTF8String:name] constantValues:values error:&error];
    [values release];
    id<MTLComputePipelineState> state = function ? [device newComputePipelineStateWithFunction:function error:&error] : nil;
    [function release];
    if (!state) FAIL("no pipeline for %s: %s", name, [[error localizedDescription] UTF8String]);
    return [state autorelease];
}

static id<MTLBuffer> buffer(NSUInteger length, const char *label) {
    id<MTLBuffer> result = [device newBufferWithLength:length options:MTLResourceHazardTrackingModeUntracked];
    [result setLabel:[NSString stringWithUTF8String:label]];
    return result;
}

static void setup(void) {
    colibri_sim_options options = {.strict = 1, .collect = 1};
    colibri_sim_configure(&options);
    device = MTLCreateSystemDefaultDevice();
    queue = [device newCommandQueue];
    char why[4096];
    library = compile(source, why, sizeof why);
    if (!library) { printf("%s\n", why); exit(1); }
    MTLResidencySetDescriptor *descriptor = [[MTLResidencySetDescriptor alloc] init];
    descriptor.label = @"weights";
    set = [device newResidencySetWithDescriptor:descriptor error:NULL];
    [descriptor release];
    [queue addResidencySet:set];
    a = buffer(4096, "alpha");
    b = buffer(4096, "beta");
    for (int i = 0; i < 1024; i++) ((float *)[a contents])[i] = (float)(i % 50);
    [set addAllocation:a];
    [set addAllocation:b];
    [set commit];
}

static void teardown(void) {
    [queue removeResidencySet:set];
    [set removeAllAllocations];
    [set commit];
    [set release];
    [a release];
    [b release];
    [library release];
    [queue release];
    [device release];
}

static void encode(id<MTLComputeCommandEncoder> encoder, const char *kernel, Params params, unsigned groups) {
    [encoder setComputePipelineState:pipeline(kernel)];
    [encoder setBytes:&params length:sizeof params atIndex:0];
    [encoder dispatchThreadgroups:MTLSizeMake(groups, 1, 1) threadsPerThreadgroup:MTLSizeMake(64, 1, 1)];
}

static id<MTLCommandBuffer> committed(const char *kernel, Params params, unsigned groups) {
    id<MTLCommandBuffer> work = [queue commandBuffer];
    id<MTLComputeCommandEncoder> encoder = [work computeCommandEncoderWithDispatchType:MTLDispatchTypeConcurrent];
    encode(encoder, kernel, params, groups);
    [encoder endEncoding];
    [work commit];
    return work;
}

static id<MTLCommandBuffer> run(const char *kernel, uint32_t n, unsigned groups) {
    id<MTLCommandBuffer> work = committed(kernel, (Params){[a gpuAddress], [b gpuAddress], n, 0}, groups);
    [work waitUntilCompleted];
    return work;
}

static void copy_between(id<MTLBuffer> from, id<MTLBuffer> to, uint32_t n) {
    [committed("copy", (Params){[from gpuAddress], [to gpuAddress], n, 0}, (n + 63) / 64) waitUntilCompleted];
}

static char *map(size_t bytes) { // at a multiple of 16 KiB
    char *p = mmap(NULL, bytes + 16384, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return (char *)(((uintptr_t)p + 16383) & ~(uintptr_t)16383);
}

// ---- residency

static void resident_memory_is_fine(void) {
    run("copy", 1024, 16);
    if (memcmp([a contents], [b contents], 4096) != 0) FAIL("the copy differs");
}

static void memory_in_no_set(void) {
    id<MTLBuffer> c = buffer(4096, "gamma");
    copy_between(c, b, 64);
    expect("not resident", "load", "'gamma'");
    copy_between(a, c, 64);
    expect("not resident", "store", "'gamma'");
    [c release];
}

static void set_change_without_commit(void) {
    id<MTLBuffer> c = buffer(4096, "gamma");
    [set addAllocation:c];
    copy_between(c, b, 64);
    expect("not resident", "load", "'gamma' (4096 bytes): it was added to residency set");
    [set commit];
    copy_between(c, b, 64);
    expect_nothing();
    [set removeAllocation:c];
    [set commit];
    copy_between(c, b, 64);
    expect("not resident", "load", "neither in a residency set");
    [c release];
}

static void removed_while_in_flight(void) {
    id<MTLBuffer> c = buffer(4096, "gamma");
    [set addAllocation:c];
    [set commit];
    colibri_sim_hold(1);
    id<MTLCommandBuffer> work = committed("copy", (Params){[c gpuAddress], [b gpuAddress], 64, 0}, 1);
    [set removeAllocation:c];
    [set commit];
    colibri_sim_hold(0);
    [work waitUntilCompleted];
    expect("not resident", "load", "removed while the command buffer was in flight");
    [c release];
}

static void added_after_commit(void) {
    id<MTLBuffer> c = buffer(4096, "gamma");
    colibri_sim_hold(1);
    id<MTLCommandBuffer> work = committed("copy", (Params){[c gpuAddress], [b gpuAddress], 64, 0}, 1);
    [set addAllocation:c];
    [set commit];
    colibri_sim_hold(0);
    [work waitUntilCompleted];
    expect("not resident", "load", "after the command buffer was committed");
    [set removeAllocation:c];
    [set commit];
    [c release];
}

static void declared_resources(void) {
    id<MTLBuffer> c = buffer(4096, "gamma");
    for (int usage = 1; usage <= 3; usage += 2) {
        id<MTLCommandBuffer> work = [queue commandBuffer];
        id<MTLComputeCommandEncoder> encoder = [work computeCommandEncoderWithDispatchType:MTLDispatchTypeConcurrent];
        [encoder useResource:c usage:(MTLResourceUsage)usage];
        encode(encoder, "copy", (Params){[a gpuAddress], [c gpuAddress], 64, 0}, 1);
        [encoder endEncoding];
        [work commit];
        [work waitUntilCompleted];
        if (usage == 1) expect("resource usage", "store", "'gamma'");
        else expect_nothing();
    }
    // A declaration holds for the encoder it was made in, from then on.
    id<MTLCommandBuffer> work = [queue commandBuffer];
    id<MTLComputeCommandEncoder> encoder = [work computeCommandEncoderWithDispatchType:MTLDispatchTypeConcurrent];
    encode(encoder, "copy", (Params){[c gpuAddress], [b gpuAddress], 64, 0}, 1);
    [encoder useResource:c usage:MTLResourceUsageRead];
    [encoder endEncoding];
    [work commit];
    [work waitUntilCompleted];
    expect("not resident", "load", "'gamma'");
    [c release];
}

static void released_buffer_address(void) {
    id<MTLBuffer> c = buffer(4096, "gamma");
    uint64_t address = [c gpuAddress];
    [c release];
    id<MTLCommandBuffer> work = committed("copy", (Params){address, [b gpuAddress], 64, 0}, 1);
    [work waitUntilCompleted];
    if ([work status] != MTLCommandBufferStatusError || [[work error] code] != MTLCommandBufferErrorPageFault) FAIL("an access to released memory is a page fault");
    expect("released buffer", "load", "'gamma'");
}

static void host_pointer_as_address(void) {
    id<MTLCommandBuffer> work = committed("copy", (Params){(uint64_t)(uintptr_t)[a contents], [b gpuAddress], 64, 0}, 1);
    [work waitUntilCompleted];
    expect("access outside GPU memory", "load", "host's pointer into buffer");
    char *wild = map(16384);
    [committed("copy", (Params){(uint64_t)(uintptr_t)wild, [b gpuAddress], 64, 0}, 1) waitUntilCompleted];
    expect("access outside GPU memory", "load", "no registered range");
    [committed("copy", (Params){64, [b gpuAddress], 64, 0}, 1) waitUntilCompleted];
    expect("access outside GPU memory", "load", NULL);
}

static void one_byte_out_of_bounds(void) {
    run("one_byte", 4095, 1);
    expect_nothing();
    run("one_byte", 4096, 1);
    expect("out of bounds", "byte", "'beta' (4096 bytes): 1 bytes too far");
    id<MTLBuffer> c = buffer(100, "gamma");
    [set addAllocation:c];
    [set commit];
    [committed("one_byte", (Params){0, [c gpuAddress], 99, 0}, 1) waitUntilCompleted];
    expect_nothing();
    [committed("one_byte", (Params){0, [c gpuAddress], 100, 0}, 1) waitUntilCompleted];
    expect("out of bounds", "byte", "'gamma' (100 bytes): 1 bytes too far");
    [set removeAllocation:c];
    [set commit];
    [c release];
}

static void argument_out_of_bounds(void) {
    run("argument_end", 5, 1);
    expect_nothing();
    run("argument_end", 6, 1);
    expect("out of bounds", "argument", "argument of 24 bytes");
}

// ---- wrapping the host's memory

static void misaligned_wraps(void) {
    char *p = map(65536);
    id<MTLBuffer> c = [device newBufferWithBytesNoCopy:p + 4096 length:16384 options:0 deallocator:nil];
    if (c != nil) FAIL("a base at 4096 was accepted");
    expect("misaligned wrap", NULL, "16384");
    c = [device newBufferWithBytesNoCopy:p length:16384 + 4096 options:0 deallocator:nil];
    if (c != nil) FAIL("a length of 20480 was accepted");
    expect("misaligned wrap", NULL, "20480");
    c = [device newBufferWithBytesNoCopy:p length:32768 options:0 deallocator:nil];
    expect_nothing();
    [c release];
    munmap(p, 65536);
}

static void wrapped_memory_is_shared(void) {
    char *p = map(32768);
    for (int i = 0; i < 64; i++) ((float *)p)[i] = (float)i; // before it is wrapped
    id<MTLBuffer> c = [device newBufferWithBytesNoCopy:p length:32768 options:0 deallocator:nil];
    if ([c contents] != p) FAIL("contents differ from the wrapped pointer");
    [set addAllocation:c];
    [set commit];
    copy_between(c, b, 64);
    if (((float *)[b contents])[63] != 63) FAIL("the GPU does not see what was there before the wrap");
    ((float *)p)[63] = 7;
    copy_between(c, b, 64);
    if (((float *)[b contents])[63] != 7) FAIL("the GPU does not see what the host wrote");
    copy_between(a, c, 64);
    if (((float *)p)[63] != 13) FAIL("the host does not see what the GPU wrote");
    [set removeAllocation:c];
    [set commit];
    [c release];
    if (((float *)p)[63] != 13) FAIL("the host's memory changed when the wrapper went");
    c = [device newBufferWithBytesNoCopy:p length:32768 options:0 deallocator:nil]; // again
    if (((float *)[c contents])[63] != 13) FAIL("wrapping again lost the contents");
    [c release];
    munmap(p, 32768);
}

static void wrap_of_a_file(void) {
    char name[] = "/tmp/colibri-wrap-XXXXXX";
    int fd = mkstemp(name);
    if (ftruncate(fd, 65536) != 0) FAIL("ftruncate");
    char *room = map(65536), *p = mmap(room, 65536, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
    id<MTLBuffer> c = [device newBufferWithBytesNoCopy:p length:65536 options:0 deallocator:nil];
    if (c != nil) FAIL("a mapped file was wrapped");
    expect("wrap of a mapped file", NULL, name);
    munmap(p, 65536);
    c = [device newBufferWithBytesNoCopy:p length:65536 options:0 deallocator:nil];
    if (c != nil) FAIL("unmapped memory was wrapped");
    expect("wrap of unmapped memory", NULL, NULL);
    close(fd);
    unlink(name);
}

static void memory_freed_under_a_buffer(void) {
    char *p = map(32768);
    id<MTLBuffer> c = [device newBufferWithBytesNoCopy:p length:32768 options:0 deallocator:nil];
    [c setLabel:@"gamma"];
    [set addAllocation:c];
    [set commit];
    munmap(p, 32768);
    copy_between(c, b, 64);
    expect("memory freed under a buffer", NULL, "'gamma'");
    [set removeAllocation:c];
    [set commit];
    [c release];
    expect("memory freed under a buffer", NULL, "'gamma'");
}

static void released_while_in_a_set(void) {
    id<MTLBuffer> c = buffer(4096, "gamma");
    [set addAllocation:c];
    [set commit];
    [set removeAllocation:c]; // not committed
    [c release];
    expect("released while in a residency set", NULL, "'gamma'");
}

static void released_before_completion(void) {
    id<MTLBuffer> c = buffer(4096, "gamma");
    colibri_sim_hold(1);
    id<MTLCommandBuffer> work = [queue commandBuffer];
    id<MTLComputeCommandEncoder> encoder = [work computeCommandEncoderWithDispatchType:MTLDispatchTypeConcurrent];
    [encoder useResource:c usage:MTLResourceUsageRead];
    encode(encoder, "copy", (Params){[c gpuAddress], [b gpuAddress], 64, 0}, 1);
    [encoder endEncoding];
    [work commit];
    [c release];
    expect("buffer released before completion", NULL, "'gamma'");
    colibri_sim_hold(0);
    [work waitUntilCompleted];
    expect("released buffer", "load", "'gamma'");
}

// ---- order

static void scratch_reused_in_flight(void) {
    colibri_sim_hold(1);
    id<MTLCommandBuffer> first = committed("copy", (Params){[a gpuAddress], [b gpuAddress], 64, 0}, 1);
    id<MTLCommandBuffer> second = committed("copy", (Params){[a gpuAddress] + 256, [b gpuAddress], 64, 0}, 1);
    colibri_sim_hold(0);
    [first waitUntilCompleted];
    [second waitUntilCompleted];
    expect("unordered access", "store", "'beta'");
    first = committed("copy", (Params){[a gpuAddress], [b gpuAddress], 64, 0}, 1);
    [first waitUntilCompleted];
    second = committed("copy", (Params){[a gpuAddress] + 256, [b gpuAddress], 64, 0}, 1);
    [second waitUntilCompleted];
    expect_nothing();
}

static void missing_barrier_between_dispatches(void) {
    for (int barrier = 0; barrier < 2; barrier++) {
        id<MTLBuffer> c = buffer(4096, "gamma");
        [set addAllocation:c];
        [set commit];
        id<MTLCommandBuffer> work = [queue commandBuffer];
        id<MTLComputeCommandEncoder> encoder = [work computeCommandEncoderWithDispatchType:MTLDispatchTypeConcurrent];
        encode(encoder, "copy", (Params){[a gpuAddress], [b gpuAddress], 64, 0}, 1);
        if (barrier) [encoder memoryBarrierWithScope:MTLBarrierScopeBuffers];
        encode(encoder, "copy", (Params){[b gpuAddress], [c gpuAddress], 64, 0}, 1);
        [encoder endEncoding];
        [work commit];
        [work waitUntilCompleted];
        if (barrier) expect_nothing();
        else expect("unordered access", "load", "'beta'");
        [set removeAllocation:c];
        [set commit];
        [c release];
    }
}

// ---- threads of a threadgroup

static void barrier_not_reached(void) {
    run("divergent", 0, 1);
    expect("barrier divergence", "divergent", "32 of 64 threads have returned");
}

static void different_barriers(void) {
    run("two_barriers", 0, 1);
    expect("barrier divergence", "one", "different barriers");
}

static void data_race_in_a_threadgroup(void) {
    run("race", 0, 1);
    expect("data race", "race", "threadgroup variable shared");
    run("race", 1, 1);
    expect_nothing();
}

static void write_after_read(void) {
    run("overwrite", 0, 1);
    expect("data race", "overwrite", "threadgroup variable shared");
    run("overwrite", 1, 1);
    expect_nothing();
}

static void data_race_between_lanes(void) {
    run("lanes_race", 0, 1);
    expect("data race", "lanes", "threadgroup variable shared");
    run("lanes_race", 1, 1);
    expect_nothing();
}

static void uninitialised_read(void) {
    run("uninitialised", 0, 1);
    expect("uninitialised read", "uninitialised", "shared, byte 28");
    run("uninitialised", 1, 1);
    expect_nothing();
}

static void past_a_threadgroup_variable(void) {
    run("past_shared", 0, 1);
    expect_nothing();
    run("past_shared", 1, 1);
    expect("out of bounds", "past", "threadgroup variable shared");
}

static void data_race_between_threadgroups(void) {
    run("groups_race", 0, 4);
    expect("data race", "groups", "'beta'");
    run("groups_race", 1, 4);
    expect_nothing();
}

static void data_race_in_device_memory(void) {
    run("device_race", 0, 1);
    expect("data race", "device", "no barrier with mem_device");
    run("device_race", 1, 1);
    expect_nothing();
}

static void shuffle_from_an_inactive_lane(void) {
    run("inactive_lane", 0, 1);
    expect("shader", "inactive", "takes no part");
    run("inactive_lane", 1, 1);
    expect_nothing();
}

static void misaligned_access(void) {
    run("misaligned", 16, 1);
    expect_nothing();
    run("misaligned", 4, 1);
    expect("shader", "misaligned", "not aligned");
}

static void stack_overflow(void) {
    id<MTLCommandBuffer> work = run("deep", 0, 1);
    if ([work status] != MTLCommandBufferStatusError) FAIL("a kernel with 256 KiB of variables ran");
    expect("page fault", NULL, "stack");
}

static void collectives(void) {
    run("collectives", 0, 1);
    float *x = [a contents], *y = [b contents];
    for (int i = 0; i < 64; i++) {
        float sum = 0, low = x[i], high = x[i], prefix = 0, half = 0;
        for (int j = i / 32 * 32; j < i / 32 * 32 + 32; j++) {
            sum += x[j];
            if (x[j] < low) low = x[j];
            if (x[j] > high) high = x[j];
            if (j < i) prefix += x[j];
            if (j % 2 == i % 2) half += i % 2 ? x[j] : -x[j];
        }
        float want[8] = {sum, high, low, prefix, x[i ^ 3], x[i / 32 * 32 + 9], half, i % 32 < 10 ? 10 : 0};
        for (int k = 0; k < 8; k++) if (y[i * 8 + k] != want[k]) FAIL("thread %d, result %d: %g instead of %g", i, k, (double)y[i * 8 + k], (double)want[k]);
    }
}

static void matrices(void) {
    id<MTLCommandBuffer> work = [queue commandBuffer];
    id<MTLComputeCommandEncoder> encoder = [work computeCommandEncoderWithDispatchType:MTLDispatchTypeSerial];
    Params params = {[a gpuAddress], [b gpuAddress], 0, 0};
    [encoder setComputePipelineState:pipeline("matrices")];
    [encoder setBytes:&params length:sizeof params atIndex:0];
    [encoder dispatchThreadgroups:MTLSizeMake(1, 1, 1) threadsPerThreadgroup:MTLSizeMake(32, 1, 1)];
    [encoder endEncoding];
    [work commit];
    [work waitUntilCompleted];
    float *x = [a contents], *y = [b contents];
    for (int r = 0; r < 8; r++)
        for (int c = 0; c < 8; c++) {
            float want = 1;
            for (int k = 0; k < 8; k++) want += x[r * 8 + k] * x[64 + c * 8 + k];
            if (y[r * 8 + c] != want) FAIL("element %d, %d: %g instead of %g", r, c, (double)y[r * 8 + c], (double)want);
        }
}

// ---- use of the interface

static void encoder_not_ended(void) {
    @autoreleasepool {
        id<MTLCommandBuffer> work = [queue commandBuffer];
        id<MTLComputeCommandEncoder> encoder = [work computeCommandEncoderWithDispatchType:MTLDispatchTypeConcurrent];
        encode(encoder, "copy", (Params){[a gpuAddress], [b gpuAddress], 64, 0}, 1);
        [work commit];
        expect("encoder not ended", NULL, "committed with an open encoder");
        if ([work computeCommandEncoderWithDispatchType:MTLDispatchTypeConcurrent] != nil) FAIL("two encoders are open");
        expect("encoder not ended", NULL, "second encoder");
    }
    expect("encoder not ended", NULL, "released before endEncoding");
}

static void misused_command_buffers(void) {
    id<MTLCommandBuffer> work = [queue commandBuffer];
    [work waitUntilCompleted];
    expect("command buffer", NULL, "never committed");
    id<MTLComputeCommandEncoder> encoder = [work computeCommandEncoderWithDispatchType:MTLDispatchTypeConcurrent];
    [encoder dispatchThreadgroups:MTLSizeMake(1, 1, 1) threadsPerThreadgroup:MTLSizeMake(64, 1, 1)];
    expect("dispatch", NULL, "no pipeline state");
    [encoder setComputePipelineState:pipeline("copy")];
    [encoder dispatchThreadgroups:MTLSizeMake(1, 1, 1) threadsPerThreadgroup:MTLSizeMake(64, 1, 1)];
    expect("dispatch", NULL, "nothing is set for argument p");
    char large[4096] = {0};
    [encoder setBytes:large length:sizeof large atIndex:0];
    expect("setBytes", NULL, "4096");
    [encoder setBytes:large length:20 atIndex:0];
    [encoder dispatchThreadgroups:MTLSizeMake(1, 1, 1) threadsPerThreadgroup:MTLSizeMake(64, 1, 1)];
    expect("dispatch", NULL, "a structure of 24 bytes, given 20");
    [encoder setBytes:large length:24 atIndex:0];
    [encoder dispatchThreadgroups:MTLSizeMake(0, 1, 1) threadsPerThreadgroup:MTLSizeMake(64, 1, 1)];
    expect("dispatch", NULL, "dimension is 0");
    [encoder dispatchThreadgroups:MTLSizeMake(1, 1, 1) threadsPerThreadgroup:MTLSizeMake(1025, 1, 1)];
    expect("dispatch", NULL, "1025 threads");
    [encoder endEncoding];
    [encoder endEncoding];
    expect("encoder used after endEncoding", NULL, NULL);
    [work commit];
    [work commit];
    expect("command buffer", NULL, "committed twice");
    [work computeCommandEncoderWithDispatchType:MTLDispatchTypeConcurrent];
    expect("command buffer", NULL, "after commit");
    [work waitUntilCompleted];
}

static void queue_gives_64_command_buffers(void) {
    // Committed ones come back as they complete, however many are asked for.
    for (int i = 0; i < 100; i++) committed("copy", (Params){[a gpuAddress], [b gpuAddress] + 0, 0, 0}, 1);
    expect_nothing();
    @autoreleasepool {
        id<MTLCommandBuffer> last = run("copy", 0, 1);
        (void)last;
        for (int i = 0; i < 65; i++) [queue commandBuffer];
        expect("command buffer", NULL, "none is committed");
        colibri_sim_clear_reports();
    }
    [queue commandBuffer];
    expect_nothing();
}

static void *without_pool(void *unused) {
    (void)unused;
    id<MTLCommandBuffer> work = [queue commandBuffer];
    expect("no autorelease pool", NULL, "commandBuffer");
    [work release]; // as the pool would have
    return NULL;
}

static void thread_without_a_pool(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, without_pool, NULL);
    pthread_join(thread, NULL);
}

static void message_to_a_released_object(void) {
    id<MTLBuffer> c = buffer(4096, "gamma");
    [c release];
    [c length];
    expect("released object", NULL, "message length to a MTLBuffer");
    [c release];
    expect("released object", NULL, "message release to a MTLBuffer");
}

static void metal_call_under_a_lock(void) {
    colibri_sim_lock("registry", 0);
    [set containsAllocation:a];
    colibri_sim_unlock("registry");
    expect("Metal call under a lock", NULL, "containsAllocation: is called while 'registry' is held");
    colibri_sim_lock("set", 1);
    [set containsAllocation:a];
    expect_nothing();
    colibri_sim_lock("registry", 0);
    expect("locks held together", NULL, "'registry' is taken while 'set' is held");
    colibri_sim_unlock("registry");
    colibri_sim_unlock("set");
    expect_nothing();
    colibri_sim_unlock("set");
    expect("locks", NULL, "not held");
}

static void *hammer(void *unused) {
    (void)unused;
    @autoreleasepool {
        for (int i = 0; i < 20000 && colibri_sim_report_count() == 0; i++) [set requestResidency];
    }
    return NULL;
}

static void set_used_by_two_threads(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, hammer, NULL);
    hammer(NULL);
    pthread_join(thread, NULL);
    expect("residency set used by two threads at once", NULL, "'weights'");
}

// ---- the machine and its faults

static void failing_command_buffer(void) {
    memset([b contents], 0, 4096);
    colibri_sim_fail_command_buffer(1, MTLCommandBufferErrorOutOfMemory);
    id<MTLCommandBuffer> first = run("copy", 64, 1), second = run("copy", 64, 1), third = run("copy", 64, 1);
    if ([first status] != MTLCommandBufferStatusCompleted || [third status] != MTLCommandBufferStatusCompleted) FAIL("the wrong command buffer failed");
    if ([second status] != MTLCommandBufferStatusError || [[second error] code] != MTLCommandBufferErrorOutOfMemory) FAIL("the command buffer did not fail");
    if (![[[second error] domain] isEqual:MTLCommandBufferErrorDomain]) FAIL("the error's domain is wrong");
    colibri_sim_lose_device(1);
    if ([run("copy", 64, 1) status] != MTLCommandBufferStatusError) FAIL("a lost device completed a command buffer");
    colibri_sim_lose_device(0);
    if ([run("copy", 64, 1) status] != MTLCommandBufferStatusCompleted) FAIL("the device did not come back");
}

static void failing_allocations(void) {
    colibri_sim_fail_allocation(1);
    id<MTLBuffer> first = buffer(64, "first"), second = buffer(64, "second"), third = buffer(64, "third");
    if (!first || second || !third) FAIL("the wrong allocation failed");
    [first release];
    [third release];
    colibri_sim_fail_pipeline("copy");
    NSError *error = nil;
    MTLFunctionConstantValues *values = [[MTLFunctionConstantValues alloc] init];
    id<MTLFunction> function = [library newFunctionWithName:@"copy" constantValues:values error:&error];
    if ([device newComputePipelineStateWithFunction:function error:&error] != nil || error == nil) FAIL("the pipeline did not fail");
    error = nil;
    if ([library newFunctionWithName:@"absent" constantValues:values error:&error] != nil || error == nil) FAIL("a kernel that is not there was found");
    [function release];
    [values release];
}

static void other_machines(void) {
    colibri_sim_options options = {.strict = 1, .collect = 1, .max_buffer_length = 65536, .working_set = 1 << 20, .residency_sets = 1};
    colibri_sim_configure(&options);
    if ([device maxBufferLength] != 65536 || [device recommendedMaxWorkingSetSize] != 1 << 20) FAIL("limits");
    if (buffer(65537, "large") != nil) FAIL("a buffer above maxBufferLength");
    char *p = map(131072);
    if ([device newBufferWithBytesNoCopy:p length:131072 options:0 deallocator:nil] != nil) FAIL("a wrap above maxBufferLength");
    MTLResidencySetDescriptor *descriptor = [[MTLResidencySetDescriptor alloc] init];
    NSError *error = nil;
    if ([device newResidencySetWithDescriptor:descriptor error:&error] != nil || error == nil) FAIL("a residency set on a device without");
    options.residency_sets = 2;
    colibri_sim_configure(&options);
    if ([(NSObject *)device respondsToSelector:@selector(newResidencySetWithDescriptor:error:)]) FAIL("macOS 14 knows residency sets");
    [device newResidencySetWithDescriptor:descriptor error:&error];
    expect("residency set", NULL, "does not know");
    [descriptor release];
    options.no_device = 1;
    colibri_sim_configure(&options);
    if (MTLCreateSystemDefaultDevice() != nil) FAIL("a device on a machine without");
    munmap(p, 131072);
}

static void order_is_drawn_from_the_seed(void) {
    // Four command buffers wait; with different seeds they end in different orders, with one seed always in the same.
    char orders[8][8] = {{0}};
    int different = 0;
    for (int round = 0; round < 8; round++) {
        colibri_sim_options options = {.strict = 1, .collect = 1, .seed = 1 + (uint64_t)round / 2};
        colibri_sim_configure(&options);
        colibri_sim_hold(1);
        id<MTLCommandBuffer> work[4];
        for (int i = 0; i < 4; i++) work[i] = committed("copy", (Params){[a gpuAddress], [b gpuAddress] + (uint64_t)i * 1024, 256, 0}, 4);
        colibri_sim_hold(0);
        for (int i = 0; i < 4; i++) [work[i] waitUntilCompleted];
        for (int i = 0; i < 4; i++) {
            int before = 0;
            for (int j = 0; j < 4; j++) before += [work[j] GPUEndTime] < [work[i] GPUEndTime];
            orders[round][before] = (char)('0' + i);
        }
        if (round % 2 && strcmp(orders[round], orders[round - 1]) != 0) FAIL("seed %d gave %s and %s", 1 + round / 2, orders[round - 1], orders[round]);
        if (strcmp(orders[round], orders[0]) != 0) different = 1;
    }
    if (!different) FAIL("four seeds, one order: %s", orders[0]);
}

static void objects_are_counted(void) {
    int64_t all = colibri_sim_live_objects(NULL), buffers = colibri_sim_live_objects("MTLBuffer");
    id<MTLBuffer> c = buffer(64, "gamma");
    if (colibri_sim_live_objects("MTLBuffer") != buffers + 1 || colibri_sim_live_objects(NULL) != all + 1) FAIL("a new buffer is not counted");
    [c release];
    if (colibri_sim_live_objects("MTLBuffer") != buffers) FAIL("a released buffer is counted");
    uint64_t calls = colibri_sim_calls("MTLResidencySet.commit");
    [set commit];
    if (colibri_sim_calls("MTLResidencySet.commit") != calls + 1) FAIL("the call is not counted");
}

// ---- what Apple's compiler refuses

static void refused_shaders(void) {
    static const struct { const char *text, *why; } cases[] = {
        {"float first(float *p) { return p[0]; }", "must name its address space"},
        {"float first(thread float &p) { return p; }\nfloat second(const float &p) { return first(p); }", "must name its address space"},
        {"struct S { uint n; };\nuint n(S *s) { return s->n; }", "must name its address space"},
        {"template <typename T> T first(T *p) { return p[0]; }", "must name its address space"},
        {"kernel void k(device float *x [[buffer(0)]], uint i [[thread_position_in_grid]]) { float *p = (float *)x; p[i] = 1.0f; }", "must name its address space"},
        {"float twice(float x) { double d = x; return float(d) * 2.0f; }", "double"},
        {"uint f(uint n) { return n == 0u ? 1u : n * f(n - 1u); }", "calls itself"},
        {"uint odd(uint n);\nuint even(uint n) { return n == 0u ? 1u : odd(n - 1u); }\nuint odd(uint n) { return n == 0u ? 0u : even(n - 1u); }", "calls itself"},
        {"float table[4] = {1, 2, 3, 4};", "constant address space"},
        {"float f() { static uint calls = 0u; return float(calls++); }", "static"},
        {"float f(float x) { threadgroup float t[4]; t[0] = x; return t[0]; }", "kernels only"},
        {"kernel void k(device float *x [[buffer(0)]]) { threadgroup float t[4] = {0, 0, 0, 0}; x[0] = t[0]; }", "initialised"},
        {"kernel void k(device float *x [[buffer(0)]], device float *y [[buffer(0)]]) { x[0] = y[0]; }", "share buffer(0)"},
        {"kernel void k(device float *x [[buffer(0)]], uint i [[thread_index]]) { x[i] = 0.0f; }", "unknown kernel argument attribute"},
        {"kernel void k(device float *x) { x[0] = 0.0f; }", "without an attribute"},
        {"constant uint N [[function_constant(0)]];\nkernel void k(device float *x [[buffer(0)]]) { threadgroup float t[N]; t[0] = 0.0f; x[0] = t[0]; }", "cannot be an array size"},
        {"long long wide(uint x) { return x; }", "long long"},
        {"float f(float x) { return std::sqrt(x); }", "standard library"},
        {"float f(float x) { return sqrtf(x); }", "sqrtf"},
        {"#include <cmath>\nfloat f(float x) { return x; }", "cmath"},
        {"float f(half x) { return float(metal::max(x, 0.0f)); }", "max"},
        {"float f(float x) { goto end; end: return x; }", "goto"},
        {"struct A { virtual float f() { return 0.0f; } };", "virtual"},
        {"float f(float x) { if constexpr (true) return x; }", "C++17"},
        {"float f(uint n) { float t[n]; t[0] = 1.0f; return t[0]; }", "variable length"},
        {"float f(float x) { float unused = x; return 1.0f; }", "unused"},
        {"float f(float2 v) { return float3(v).x; }", "error"},
        {"uint f(uint x) { return uint(__builtin_popcount(x)); }", "built-ins"},
        {"inline float first(thread float *p) { return p[0]; }\nkernel void k(device float *x [[buffer(0)]]) { x[0] = first(x); }", "address space"},
        {"inline float first(device float *p) { return p[0]; }\nkernel void k(device float *x [[buffer(0)]]) { float a[4] = {1, 2, 3, 4}; x[0] = first(a); }", "address space"},
        {"inline float first(device float *p) { return p[0]; }\nkernel void k(device float *x [[buffer(0)]]) { threadgroup float t[4]; t[0] = 1.0f; x[0] = first(t); }", "address space"},
        {"struct P { float n; };\ninline float n(device const P *p) { return p->n; }\nkernel void k(device float *x [[buffer(0)]], constant P &p [[buffer(1)]]) { x[0] = n(&p); }", "address space"},
        {"struct P { float n; };\ninline float n(thread const P &p) { return p.n; }\nkernel void k(device float *x [[buffer(0)]], constant P &p [[buffer(1)]]) { x[0] = n(p); }", "address space"},
        {"kernel void k(device float *x [[buffer(0)]]) { threadgroup float t[4]; device float *p = reinterpret_cast<device float *>(t); x[0] = p[0]; }", "address space"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[2048], why[8192] = "";
        snprintf(text, sizeof text, "#include <metal_stdlib>\nusing namespace metal;\n%s\n", cases[i].text);
        id<MTLLibrary> l = compile(text, why, sizeof why);
        if (l) FAIL("accepted: %s", cases[i].text);
        else if (!strstr(why, cases[i].why)) FAIL("refused for another reason: %s\n%s", cases[i].text, why);
        [l release];
    }
}

static void accepted_shaders(void) {
    static const char *const cases[] = {
        "constant float table[4] = {1, 2, 3, 4};\nfloat f(uint i) { return table[i & 3]; }",
        "template <typename T> inline T twice(T x) { return x * T(2); }\ninline float4 f(float4 x) { return twice(x); }",
        "inline float f(float x) { return x * 0.5; }", // an unmarked literal is a float
        "inline half f(half x) { return x * 1.5h; }",
        "struct Pair { float x, y; };\ninline float f(thread const Pair &p) { return p.x * p.y; }",
        "inline float f(device const float *p, uint n) { float a = 0.0f, b = 1.0f; for (uint i = 0; i < n; i++) a += p[i] * b; return a; }",
        "constant uint N [[function_constant(0)]];\nconstant bool LARGE = N > 4;\nkernel void k(device float *x [[buffer(0)]]) { if (LARGE) x[0] = float(N); }",
        "inline uint f(float4 v) { uchar4 b = uchar4(v); float4 w = float4(b); return as_type<uint>(w.x) + uint(float2(w.zw).y); }",
        "inline void f(threadgroup float *t, thread float (&out)[4]) { for (uint i = 0; i < 4; i++) out[i] = t[i]; }",
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[2048], why[8192] = "";
        snprintf(text, sizeof text, "#include <metal_stdlib>\nusing namespace metal;\n%s\n", cases[i]);
        id<MTLLibrary> l = compile(text, why, sizeof why);
        if (!l) FAIL("refused: %s\n%s", cases[i], why);
        [l release];
    }
}

// A pipeline that has run long enough is compiled again with its constants in it; nothing else changes.
static void specialised_pipelines(void) {
    static const char text[] =
        "#include <metal_stdlib>\nusing namespace metal;\n"
        "struct Params { ulong a; ulong b; uint n; uint m; };\n"
        "constant uint FACTOR [[function_constant(4)]];\nconstant bool NEGATE [[function_constant(7)]];\nconstant uint TWICE = FACTOR * 2;\n"
        "kernel void scale(constant Params &p [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {\n"
        "    threadgroup float t[64];\n    t[i] = reinterpret_cast<device const float *>(p.a)[i];\n    threadgroup_barrier(mem_flags::mem_threadgroup);\n"
        "    float x = t[63 - i] * float(TWICE);\n    reinterpret_cast<device float *>(p.b)[i] = NEGATE ? -x : x;\n}\n";
    colibri_sim_options options = {.collect = 1};
    colibri_sim_configure(&options);
    setenv("COLIBRI_SIM_SPECIALISE", "-1", 1);
    id<MTLLibrary> own = compile(text, NULL, 0);
    for (uint32_t factor = 3; factor < 6; factor++) {
        const uint8_t negate = factor & 1;
        MTLFunctionConstantValues *values = [[MTLFunctionConstantValues alloc] init];
        [values setConstantValue:&factor type:MTLDataTypeUInt atIndex:4];
        NSError *error = nil;
        if ([own newFunctionWithName:@"scale" constantValues:values error:&error] != nil) FAIL("a constant is missing and nothing says so");
        [values setConstantValue:&factor type:MTLDataTypeUInt atIndex:7];
        if ([own newFunctionWithName:@"scale" constantValues:values error:&error] != nil) FAIL("a constant has the wrong type and nothing says so");
        [values setConstantValue:&negate type:MTLDataTypeBool atIndex:7];
        id<MTLFunction> function = [own newFunctionWithName:@"scale" constantValues:values error:&error];
        id<MTLComputePipelineState> state = [device newComputePipelineStateWithFunction:function error:&error];
        id<MTLCommandBuffer> work = [queue commandBuffer];
        id<MTLComputeCommandEncoder> encoder = [work computeCommandEncoderWithDispatchType:MTLDispatchTypeSerial];
        Params params = {[a gpuAddress], [b gpuAddress], 0, 0};
        [encoder setComputePipelineState:state];
        [encoder setBytes:&params length:sizeof params atIndex:0];
        [encoder dispatchThreadgroups:MTLSizeMake(1, 1, 1) threadsPerThreadgroup:MTLSizeMake(64, 1, 1)];
        [encoder endEncoding];
        [work commit];
        [work waitUntilCompleted];
        float *x = [a contents], *y = [b contents];
        for (int i = 0; i < 64; i++) {
            float want = x[63 - i] * (float)(2 * factor) * (negate ? -1 : 1);
            if (y[i] != want) FAIL("factor %u, thread %d: %g instead of %g", factor, i, (double)y[i], (double)want);
        }
        [state release];
        [function release];
        [values release];
    }
    unsetenv("COLIBRI_SIM_SPECIALISE");
    [own release];
}

static const struct { const char *name; void (*run)(void); } cases[] = {
#define CASE(f) {#f, f}
    CASE(resident_memory_is_fine), CASE(memory_in_no_set), CASE(set_change_without_commit), CASE(removed_while_in_flight), CASE(added_after_commit), CASE(declared_resources),
    CASE(released_buffer_address), CASE(host_pointer_as_address), CASE(one_byte_out_of_bounds), CASE(argument_out_of_bounds), CASE(misaligned_wraps), CASE(wrapped_memory_is_shared),
    CASE(wrap_of_a_file), CASE(memory_freed_under_a_buffer), CASE(released_while_in_a_set), CASE(released_before_completion), CASE(scratch_reused_in_flight),
    CASE(missing_barrier_between_dispatches), CASE(barrier_not_reached), CASE(different_barriers), CASE(data_race_in_a_threadgroup), CASE(write_after_read), CASE(data_race_between_lanes),
    CASE(uninitialised_read), CASE(past_a_threadgroup_variable), CASE(data_race_between_threadgroups), CASE(data_race_in_device_memory), CASE(shuffle_from_an_inactive_lane),
    CASE(misaligned_access), CASE(stack_overflow), CASE(collectives), CASE(matrices), CASE(encoder_not_ended), CASE(misused_command_buffers), CASE(queue_gives_64_command_buffers), CASE(thread_without_a_pool), CASE(message_to_a_released_object),
    CASE(metal_call_under_a_lock), CASE(set_used_by_two_threads), CASE(failing_command_buffer), CASE(failing_allocations), CASE(other_machines), CASE(order_is_drawn_from_the_seed),
    CASE(objects_are_counted), CASE(specialised_pipelines), CASE(refused_shaders), CASE(accepted_shaders),
};

int main(int count, char **arguments) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (count > 1 && strcmp(arguments[1], "-list") == 0) {
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) puts(cases[i].name);
        return 0;
    }
    int ran = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (count > 1 && strcmp(arguments[1], cases[i].name) != 0) continue;
        current = cases[i].name;
        ran++;
        @autoreleasepool {
            setup();
            cases[i].run();
            teardown();
        }
        expect_nothing();
        if (colibri_sim_live_objects(NULL) != 0) FAIL("%ld objects outlive the case", (long)colibri_sim_live_objects(NULL));
    }
    if (ran == 0) { printf("no case of that name\n"); return 2; }
    return failures ? 1 : 0;
}
