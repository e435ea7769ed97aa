// Threads of a threadgroup: barriers, races, SIMD-groups.
#include "rig.h"

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

const Case thread_cases[] = {CASE(barrier_not_reached), CASE(different_barriers), CASE(data_race_in_a_threadgroup), CASE(write_after_read), CASE(data_race_between_lanes), CASE(uninitialised_read), CASE(past_a_threadgroup_variable), CASE(data_race_between_threadgroups), CASE(data_race_in_device_memory), CASE(shuffle_from_an_inactive_lane), CASE(misaligned_access), CASE(stack_overflow), CASE(collectives), CASE(matrices), {0, 0}};
