// What kernels may touch, what may be wrapped, and in which order memory is used.
#include "rig.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

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
    put_out(c);
    copy_between(c, b, 64);
    expect("not resident", "load", "neither in a residency set");
    [c release];
}

static void removed_while_in_flight(void) {
    id<MTLBuffer> c = buffer(4096, "gamma");
    let_in(c);
    colibri_sim_hold(1);
    id<MTLCommandBuffer> work = committed_copy(c, b);
    put_out(c);
    colibri_sim_hold(0);
    [work waitUntilCompleted];
    expect("not resident", "load", "removed while the command buffer was in flight");
    [c release];
}

static void added_after_commit(void) {
    id<MTLBuffer> c = buffer(4096, "gamma");
    colibri_sim_hold(1);
    id<MTLCommandBuffer> work = committed_copy(c, b);
    let_in(c);
    colibri_sim_hold(0);
    [work waitUntilCompleted];
    expect("not resident", "load", "after the command buffer was committed");
    put_out(c);
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
    let_in(c);
    [committed("one_byte", (Params){0, [c gpuAddress], 99, 0}, 1) waitUntilCompleted];
    expect_nothing();
    [committed("one_byte", (Params){0, [c gpuAddress], 100, 0}, 1) waitUntilCompleted];
    expect("out of bounds", "byte", "'gamma' (100 bytes): 1 bytes too far");
    put_out(c);
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
    let_in(c);
    copy_between(c, b, 64);
    if (((float *)[b contents])[63] != 63) FAIL("the GPU does not see what was there before the wrap");
    ((float *)p)[63] = 7;
    copy_between(c, b, 64);
    if (((float *)[b contents])[63] != 7) FAIL("the GPU does not see what the host wrote");
    copy_between(a, c, 64);
    if (((float *)p)[63] != 13) FAIL("the host does not see what the GPU wrote");
    put_out(c);
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
    let_in(c);
    munmap(p, 32768);
    copy_between(c, b, 64);
    expect("memory freed under a buffer", NULL, "'gamma'");
    put_out(c);
    [c release];
    expect("memory freed under a buffer", NULL, "'gamma'");
}

static void released_while_in_a_set(void) {
    id<MTLBuffer> c = buffer(4096, "gamma");
    let_in(c);
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
    id<MTLCommandBuffer> first = committed_copy(a, b);
    id<MTLCommandBuffer> second = committed("copy", (Params){[a gpuAddress] + 256, [b gpuAddress], 64, 0}, 1);
    colibri_sim_hold(0);
    [first waitUntilCompleted];
    [second waitUntilCompleted];
    expect("unordered access", "store", "'beta'");
    first = committed_copy(a, b);
    [first waitUntilCompleted];
    second = committed("copy", (Params){[a gpuAddress] + 256, [b gpuAddress], 64, 0}, 1);
    [second waitUntilCompleted];
    expect_nothing();
}

static void missing_barrier_between_dispatches(void) {
    for (int barrier = 0; barrier < 2; barrier++) {
        id<MTLBuffer> c = buffer(4096, "gamma");
        let_in(c);
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
        put_out(c);
        [c release];
    }
}

const Case memory_cases[] = {
    CASE(resident_memory_is_fine), CASE(memory_in_no_set), CASE(set_change_without_commit), CASE(removed_while_in_flight),
    CASE(added_after_commit), CASE(declared_resources), CASE(released_buffer_address), CASE(host_pointer_as_address),
    CASE(one_byte_out_of_bounds), CASE(argument_out_of_bounds), CASE(misaligned_wraps), CASE(wrapped_memory_is_shared),
    CASE(wrap_of_a_file), CASE(memory_freed_under_a_buffer), CASE(released_while_in_a_set), CASE(released_before_completion),
    CASE(scratch_reused_in_flight), CASE(missing_barrier_between_dispatches), {0, 0},
};
