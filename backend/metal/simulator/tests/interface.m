// Use of the interface, and the machines and faults that can be simulated.
#include "rig.h"
#include <pthread.h>
#include <sys/mman.h>

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

const Case interface_cases[] = {CASE(encoder_not_ended), CASE(misused_command_buffers), CASE(queue_gives_64_command_buffers), CASE(thread_without_a_pool), CASE(message_to_a_released_object), CASE(metal_call_under_a_lock), CASE(set_used_by_two_threads), CASE(failing_command_buffer), CASE(failing_allocations), CASE(other_machines), CASE(order_is_drawn_from_the_seed), CASE(objects_are_counted), {0, 0}};
