#import <Metal/Metal.h>
#include "../colibri_sim.h"
#include <stdio.h>
#include <string.h>
static const char *src =
"#include <metal_stdlib>\nusing namespace metal;\n"
"struct Params { ulong x; ulong y; uint n; uint pad; };\n"
"constant uint SCALE [[function_constant(3)]];\n"
"constant uint TWICE = SCALE * 2;\n"
"inline device float *floats_at(ulong a) { return reinterpret_cast<device float *>(a); }\n"
"kernel void scale(constant Params &p [[buffer(0)]], uint3 group [[threadgroup_position_in_grid]], uint i [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {\n"
"  threadgroup float t[64];\n"
"  uint at = group.x * 64 + i;\n"
"  t[i] = at < p.n ? floats_at(p.x)[at] : 0.0f;\n"
"  threadgroup_barrier(mem_flags::mem_threadgroup);\n"
"  float s = simd_sum(t[63 - i]);\n"
"  if (at < p.n) floats_at(p.y)[at] = t[i] * float(TWICE) + s + 0.5 * float(lane);\n"
"}\n";
int main(void) {
    @autoreleasepool {
        id<MTLDevice> d = MTLCreateSystemDefaultDevice();
        id<MTLCommandQueue> q = [d newCommandQueue];
        MTLCompileOptions *o = [[MTLCompileOptions alloc] init];
        o.languageVersion = MTLLanguageVersion3_0;
        o.mathMode = MTLMathModeSafe;
        NSError *e = nil;
        id<MTLLibrary> l = [d newLibraryWithSource:[NSString stringWithUTF8String:src] options:o error:&e];
        if (!l) { printf("%s\n", [[e localizedDescription] UTF8String]); return 1; }
        MTLFunctionConstantValues *v = [[MTLFunctionConstantValues alloc] init];
        uint32_t three = 3;
        [v setConstantValue:&three type:MTLDataTypeUInt atIndex:3];
        id<MTLFunction> f = [l newFunctionWithName:@"scale" constantValues:v error:&e];
        id<MTLComputePipelineState> p = [d newComputePipelineStateWithFunction:f error:&e];
        printf("tg memory %lu\n", (unsigned long)[p staticThreadgroupMemoryLength]);
        id<MTLBuffer> x = [d newBufferWithLength:400 options:0], y = [d newBufferWithLength:400 options:0];
        for (int i = 0; i < 100; i++) ((float *)[x contents])[i] = (float)i;
        MTLResidencySetDescriptor *sd = [[MTLResidencySetDescriptor alloc] init];
        id<MTLResidencySet> set = [d newResidencySetWithDescriptor:sd error:&e];
        [set addAllocation:x]; [set addAllocation:y]; [set commit];
        [q addResidencySet:set];
        struct { uint64_t x, y; uint32_t n, pad; } params = {[x gpuAddress], [y gpuAddress], 100, 0};
        id<MTLCommandBuffer> b = [q commandBuffer];
        id<MTLComputeCommandEncoder> c = [b computeCommandEncoderWithDispatchType:MTLDispatchTypeConcurrent];
        [c setComputePipelineState:p];
        [c setBytes:&params length:sizeof params atIndex:0];
        [c dispatchThreadgroups:MTLSizeMake(2, 1, 1) threadsPerThreadgroup:MTLSizeMake(64, 1, 1)];
        [c endEncoding];
        [b commit];
        [b waitUntilCompleted];
        printf("status %lu y[5] = %g, y[70] = %g (%.0f us)\n", (unsigned long)[b status], (double)((float *)[y contents])[5], (double)((float *)[y contents])[70], ([b GPUEndTime] - [b GPUStartTime]) * 1e6);
        [set removeAllAllocations]; [set commit]; [q removeResidencySet:set];
        [set release]; [sd release]; [x release]; [y release]; [p release]; [f release]; [v release]; [l release]; [o release]; [q release]; [d release];
    }
    printf("live %ld reports %zu\n", (long)colibri_sim_live_objects(NULL), colibri_sim_report_count());
    return 0;
}
