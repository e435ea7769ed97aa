// The rig of the validator's tests: a simulated device with a queue, a residency set on it and two buffers in the set; kernels that can be told
// to break a rule; what reports a case expects.
#pragma once
#import <Metal/Metal.h>
#include "../colibri_sim.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { uint64_t a, b; uint32_t n, m; } Params; // of every kernel in rig.m
typedef struct { const char *name; void (*run)(void); } Case;
#define CASE(f) {#f, f}

extern id<MTLDevice> device;
extern id<MTLCommandQueue> queue;
extern id<MTLLibrary> library;
extern id<MTLResidencySet> set;
extern id<MTLBuffer> a, b; // "alpha" with numbers in it, "beta"

extern int failures;
extern const char *current;
#define FAIL(...) (failures++, printf("%s: ", current), printf(__VA_ARGS__), printf("\n"))

// Among the reports since the last call is one of this rule, at the kernels' line marked so, that holds the text.
void expect(const char *rule, const char *mark, const char *text);
void expect_nothing(void);

id<MTLLibrary> compile(const char *text, char *why, size_t capacity);
id<MTLComputePipelineState> pipeline(const char *name); // autoreleased
id<MTLBuffer> buffer(NSUInteger length, const char *label);
char *map(size_t bytes); // at a multiple of 16 KiB

void let_in(id<MTLBuffer> c);  // to the set, committed
void put_out(id<MTLBuffer> c); // of it, committed

void encode(id<MTLComputeCommandEncoder> encoder, const char *kernel, Params params, unsigned groups);
id<MTLCommandBuffer> committed(const char *kernel, Params params, unsigned groups);
id<MTLCommandBuffer> run(const char *kernel, uint32_t n, unsigned groups); // from a to b, completed
id<MTLCommandBuffer> committed_copy(id<MTLBuffer> from, id<MTLBuffer> to); // of 64 numbers
void copy_between(id<MTLBuffer> from, id<MTLBuffer> to, uint32_t n);
