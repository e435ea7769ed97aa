// Breaks every rule of the validator on purpose and sees it caught, with the buffer and the line where there are such; and keeps
// every rule once, and sees nothing. Each case is a process of its own when Go runs it: validator-tests NAME. Without a name: all.
#include "rig.h"
#include <sys/mman.h>

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

int failures;
const char *current;

static int line_of(const char *mark) {
    char wanted[64];
    snprintf(wanted, sizeof wanted, "// LINE %s\n", mark);
    const char *at = strstr(source, wanted);
    int line = 1;
    for (const char *c = source; c < at; c++) line += *c == '\n';
    return line;
}

void expect(const char *rule, const char *mark, const char *text) {
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

void expect_nothing(void) {
    char report[2048];
    for (size_t i = 0; i < colibri_sim_report_count(); i++) {
        colibri_sim_report(i, report, sizeof report);
        FAIL("unexpected report: %s", report);
    }
    colibri_sim_clear_reports();
}

id<MTLDevice> device;
id<MTLCommandQueue> queue;
id<MTLLibrary> library;
id<MTLResidencySet> set;
id<MTLBuffer> a, b;

id<MTLLibrary> compile(const char *text, char *why, size_t capacity) {
    MTLCompileOptions *options = [[MTLCompileOptions alloc] init];
    options.languageVersion = MTLLanguageVersion3_0;
    options.mathMode = MTLMathModeSafe;
    NSError *error = nil;
    id<MTLLibrary> result = [device newLibraryWithSource:[NSString stringWithUTF8String:text] options:options error:&error];
    [options release];
    if (result == nil && why) snprintf(why, capacity, "%s", [[error localizedDescription] UTF8String]);
    return result;
}

id<MTLComputePipelineState> pipeline(const char *name) {
    MTLFunctionConstantValues *values = [[MTLFunctionConstantValues alloc] init];
    NSError *error = nil;
    id<MTLFunction> function = [library newFunctionWithName:[NSString stringWithUTF8String:name] constantValues:values error:&error];
    [values release];
    id<MTLComputePipelineState> state = function ? [device newComputePipelineStateWithFunction:function error:&error] : nil;
    [function release];
    if (!state) FAIL("no pipeline for %s: %s", name, [[error localizedDescription] UTF8String]);
    return [state autorelease];
}

id<MTLBuffer> buffer(NSUInteger length, const char *label) {
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

void let_in(id<MTLBuffer> c) {
    [set addAllocation:c];
    [set commit];
}

void put_out(id<MTLBuffer> c) {
    [set removeAllocation:c];
    [set commit];
}

void encode(id<MTLComputeCommandEncoder> encoder, const char *kernel, Params params, unsigned groups) {
    [encoder setComputePipelineState:pipeline(kernel)];
    [encoder setBytes:&params length:sizeof params atIndex:0];
    [encoder dispatchThreadgroups:MTLSizeMake(groups, 1, 1) threadsPerThreadgroup:MTLSizeMake(64, 1, 1)];
}

id<MTLCommandBuffer> committed(const char *kernel, Params params, unsigned groups) {
    id<MTLCommandBuffer> work = [queue commandBuffer];
    id<MTLComputeCommandEncoder> encoder = [work computeCommandEncoderWithDispatchType:MTLDispatchTypeConcurrent];
    encode(encoder, kernel, params, groups);
    [encoder endEncoding];
    [work commit];
    return work;
}

id<MTLCommandBuffer> run(const char *kernel, uint32_t n, unsigned groups) {
    id<MTLCommandBuffer> work = committed(kernel, (Params){[a gpuAddress], [b gpuAddress], n, 0}, groups);
    [work waitUntilCompleted];
    return work;
}

id<MTLCommandBuffer> committed_copy(id<MTLBuffer> from, id<MTLBuffer> to) {
    return committed("copy", (Params){[from gpuAddress], [to gpuAddress], 64, 0}, 1);
}

void copy_between(id<MTLBuffer> from, id<MTLBuffer> to, uint32_t n) {
    [committed("copy", (Params){[from gpuAddress], [to gpuAddress], n, 0}, (n + 63) / 64) waitUntilCompleted];
}

char *map(size_t bytes) {
    char *p = mmap(NULL, bytes + 16384, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return (char *)(((uintptr_t)p + 16383) & ~(uintptr_t)16383);
}

extern const Case memory_cases[], thread_cases[], interface_cases[], shader_cases[];
static const Case *const lists[] = {memory_cases, thread_cases, interface_cases, shader_cases};
enum { LISTS = sizeof lists / sizeof lists[0] };

int main(int count, char **arguments) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (count > 1 && strcmp(arguments[1], "-list") == 0) {
        for (size_t l = 0; l < LISTS; l++)
            for (const Case *c = lists[l]; c->name; c++) puts(c->name);
        return 0;
    }
    int ran = 0;
    for (size_t l = 0; l < LISTS; l++) {
        for (const Case *c = lists[l]; c->name; c++) {
            if (count > 1 && strcmp(arguments[1], c->name) != 0) continue;
            current = c->name;
            ran++;
            @autoreleasepool {
                setup();
                c->run();
                teardown();
            }
            expect_nothing();
            if (colibri_sim_live_objects(NULL) != 0) FAIL("%ld objects outlive the case", (long)colibri_sim_live_objects(NULL));
        }
    }
    if (ran == 0) { printf("no case of that name\n"); return 2; }
    return failures ? 1 : 0;
}
