// What Apple's compiler refuses and a C++ compiler would not; what it accepts; function constants.
#include "rig.h"

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

const Case shader_cases[] = {CASE(refused_shaders), CASE(accepted_shaders), CASE(specialised_pipelines), {0, 0}};
