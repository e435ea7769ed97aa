//go:build darwin || metalsim

// Submits: one piece of work for the GPU from the first resolved address to the checked status. A submit's first failure sticks
// and turns everything after it into nothing, so that encoding code need not check each step.
#include "metal_internal.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int coli_submit_fail(coli_metal_submit *submit, int status, const char *format, ...) {
    if (submit->status == COLI_METAL_OK) {
        submit->status = status;
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(submit->error.text, sizeof submit->error.text, format, arguments);
        va_end(arguments);
    }
    return submit->status;
}

// ---- scratch

// Returns the index of a free buffer of at least `bytes`, made if there is none; −1 after a failure. Sizes are rounded up so
// that a conversation growing token by token reuses what it has; a free buffer that is too small is given up for the larger one.
static int32_t scratch_acquire(coli_metal *metal, uint64_t bytes, coli_metal_error *error) {
    uint64_t size = 1 << 16;
    while (size < bytes) size += size / 2;
    size = (size + COLI_METAL_PAGE - 1) / COLI_METAL_PAGE * COLI_METAL_PAGE;

    coli_lock_registry(metal);
    int32_t found = -1, outgrown = -1;
    for (uint32_t i = 0; i < metal->scratch_count; i++) {
        const coli_scratch *s = &metal->scratches[i];
        if (s->busy) continue;
        if (s->bytes < bytes) {
            outgrown = (int32_t)i;
        } else if (found < 0 || s->bytes < metal->scratches[found].bytes) {
            found = (int32_t)i;
        }
    }
    coli_piece old = {0};
    if (found >= 0) {
        metal->scratches[found].busy = true;
    } else if (outgrown >= 0) {
        found = outgrown;
        old.buffer = metal->scratches[found].buffer;
        metal->scratches[found] = (coli_scratch){.busy = true};
        outgrown = -2;
    } else {
        if (metal->scratch_count == metal->scratch_capacity) {
            const uint32_t capacity = metal->scratch_capacity ? 2 * metal->scratch_capacity : 16;
            coli_scratch *grown = realloc(metal->scratches, capacity * sizeof *grown);
            if (grown != NULL) {
                metal->scratches = grown;
                metal->scratch_capacity = capacity;
            }
        }
        if (metal->scratch_count < metal->scratch_capacity) {
            found = (int32_t)metal->scratch_count++;
            metal->scratches[found] = (coli_scratch){.busy = true};
            outgrown = -2;
        }
    }
    const bool make = outgrown == -2;
    coli_unlock_registry(metal);
    if (found < 0) {
        coli_fail(error, COLI_METAL_MEMORY, "no memory for working buffers");
        return -1;
    }
    if (!make) return found;

    if (old.buffer != nil) {
        coli_residency_remove(metal, &old, 1);
        [old.buffer release];
    }
    id<MTLBuffer> buffer = [metal->device newBufferWithLength:size options:MTLResourceStorageModeShared | MTLResourceHazardTrackingModeUntracked];
    if (buffer != nil && !coli_residency_add(metal, buffer)) {
        [buffer release];
        buffer = nil;
    }
    coli_count(metal, &metal->counters.scratch_allocations, 1);
    coli_lock_registry(metal);
    metal->scratches[found] = (coli_scratch){.buffer = buffer, .bytes = buffer ? size : 0, .busy = buffer != nil};
    coli_unlock_registry(metal);
    if (buffer != nil) return found;
    coli_fail(error, COLI_METAL_MEMORY, "the GPU gives no working buffer of %llu MiB", (unsigned long long)(size >> 20));
    return -1;
}

void *coli_scratch_take(coli_metal_submit *submit, uint64_t bytes, uint64_t *gpu) {
    const uint64_t at = (submit->scratch_used + 255) / 256 * 256;
    if (submit->status != COLI_METAL_OK || at + bytes > submit->scratch_bytes) {
        coli_submit_fail(submit, COLI_METAL_ARGUMENT, "working memory of %llu bytes is too small for this call", (unsigned long long)submit->scratch_bytes);
        *gpu = 0;
        return NULL;
    }
    submit->scratch_used = at + bytes;
    *gpu = submit->scratch_gpu + at;
    return submit->scratch_memory + at;
}

uint64_t coli_scratch_copy(coli_metal_submit *submit, const void *from, uint64_t bytes) {
    uint64_t gpu;
    void *to = coli_scratch_take(submit, bytes, &gpu);
    if (to != NULL) memcpy(to, from, bytes);
    return gpu;
}

// ---- opening and closing

coli_metal_submit *coli_submit_open(coli_metal *metal, uint64_t scratch_bytes, coli_metal_error *error) {
    const uint64_t started = coli_now();
    coli_lock_registry(metal);
    coli_metal_submit *submit = metal->submits;
    while (submit != NULL && submit->state != SUBMIT_IDLE) submit = submit->next;
    if (submit != NULL) {
        submit->state = SUBMIT_BUILDING;
    }
    coli_unlock_registry(metal);
    if (submit == NULL) {
        submit = calloc(1, sizeof *submit);
        if (submit == NULL) {
            coli_fail(error, COLI_METAL_MEMORY, "no memory for a submit");
            return NULL;
        }
        submit->metal = metal;
        submit->state = SUBMIT_BUILDING;
        coli_lock_registry(metal);
        submit->next = metal->submits;
        metal->submits = submit;
        coli_unlock_registry(metal);
    }
    submit->status = COLI_METAL_OK;
    submit->started = started;
    submit->buffer_count = submit->checked = 0;
    submit->declared_count = 0;
    submit->experts = 0;
    submit->products = submit->committed_products = 0;
    submit->scratch_used = 0;
    submit->scratch = scratch_acquire(metal, scratch_bytes, error);
    if (submit->scratch < 0) {
        coli_submit_fail(submit, COLI_METAL_MEMORY, "%s", error->text);
        coli_submit_close(submit, error);
        return NULL;
    }
    const coli_scratch *scratch = &metal->scratches[submit->scratch];
    submit->scratch_memory = [scratch->buffer contents];
    submit->scratch_gpu = [scratch->buffer gpuAddress];
    submit->scratch_bytes = scratch->bytes;
    return submit;
}

// An encoder that is not committed, after a failure: its command buffer is dropped.
static void abandon_encoder(coli_metal_submit *submit) {
    [submit->encoder endEncoding];
    [submit->encoder release];
    submit->encoder = nil;
    [submit->buffers[submit->buffer_count] release];
    submit->buffers[submit->buffer_count] = nil;
}

int coli_submit_close(coli_metal_submit *submit, coli_metal_error *error) {
    coli_metal *metal = submit->metal;
    if (submit->encoder != nil) abandon_encoder(submit);
    coli_submit_wait(submit);
    const int status = submit->status;
    if (status != COLI_METAL_OK) *error = submit->error;
    coli_lock_registry(metal);
    submit->completed = true; // waits have returned, or nothing was committed
    pthread_cond_broadcast(&metal->registry_changed);
    while (submit->waiters > 0) coli_wait_registry(metal);
    coli_unlock_registry(metal);
    for (uint32_t i = 0; i < submit->buffer_count; i++) {
        [submit->buffers[i] release];
        submit->buffers[i] = nil;
    }
    coli_lock_registry(metal);
    submit->used_count = 0;
    submit->buffer_count = 0;
    if (submit->scratch >= 0) metal->scratches[submit->scratch].busy = false;
    submit->scratch = -1;
    submit->state = SUBMIT_IDLE;
    submit->completed = false;
    pthread_cond_broadcast(&metal->registry_changed);
    coli_unlock_registry(metal);
    return status;
}

void coli_submits_close(coli_metal *metal) {
    coli_metal_error ignored;
    for (coli_metal_submit *submit = metal->submits; submit != NULL; submit = submit->next) {
        if (submit->state == SUBMIT_IDLE) continue;
        coli_submit_wait(submit);
        coli_submit_close(submit, &ignored);
    }
    while (metal->submits != NULL) {
        coli_metal_submit *submit = metal->submits;
        metal->submits = submit->next;
        free(submit->used);
        free(submit->declared);
        free(submit);
    }
    for (uint32_t i = 0; i < metal->scratch_count; i++) {
        const coli_piece piece = {.buffer = metal->scratches[i].buffer};
        if (piece.buffer == nil) continue;
        coli_residency_remove(metal, &piece, 1);
        [piece.buffer release];
    }
    free(metal->scratches);
    metal->scratches = NULL;
    metal->scratch_count = 0;
}

// ---- encoding

// Plain path: tells the open encoder that the command buffer will touch a buffer, once.
static void declare(coli_metal_submit *submit, id<MTLBuffer> buffer) {
    coli_metal *metal = submit->metal;
    if (metal->residency.enabled) return;
    for (uint32_t i = 0; i < submit->declared_count; i++) {
        if (submit->declared[i] == buffer) return;
    }
    if (submit->declared_count == submit->declared_capacity) {
        const uint32_t capacity = submit->declared_capacity ? 2 * submit->declared_capacity : 64;
        id<MTLBuffer> *grown = realloc(submit->declared, capacity * sizeof *grown);
        if (grown == NULL) {
            coli_submit_fail(submit, COLI_METAL_MEMORY, "no memory to declare the buffers in use");
            return;
        }
        submit->declared = grown;
        submit->declared_capacity = capacity;
    }
    submit->declared[submit->declared_count++] = buffer;
    if (submit->encoder != nil) {
        [submit->encoder useResource:buffer usage:MTLResourceUsageRead | MTLResourceUsageWrite];
        coli_count(metal, &metal->counters.resources_declared, 1);
    }
}

uint64_t coli_address(coli_metal_submit *submit, const void *pointer, uint64_t bytes, const char *what) {
    if (submit->status != COLI_METAL_OK) return 0;
    coli_piece piece;
    if (coli_resolve(submit, pointer, bytes, what, &piece) != COLI_METAL_OK) return 0;
    declare(submit, piece.buffer);
    return piece.gpu + ((uintptr_t)pointer - piece.base);
}

void coli_encode_begin(coli_metal_submit *submit) {
    if (submit->status != COLI_METAL_OK) return;
    coli_metal *metal = submit->metal;
    if (submit->buffer_count == SUBMIT_COMMAND_BUFFERS) {
        coli_submit_fail(submit, COLI_METAL_ARGUMENT, "one call needs more than %d command buffers", SUBMIT_COMMAND_BUFFERS);
        return;
    }
    id<MTLCommandBuffer> buffer = [metal->queue commandBuffer];
    id<MTLComputeCommandEncoder> encoder = [buffer computeCommandEncoderWithDispatchType:MTLDispatchTypeConcurrent];
    if (buffer == nil || encoder == nil) {
        coli_submit_fail(submit, COLI_METAL_DEVICE, "the GPU gives no command buffer");
        return;
    }
    declare(submit, metal->scratches[submit->scratch].buffer);
    submit->buffers[submit->buffer_count] = [buffer retain];
    submit->encoder = [encoder retain];
    if (metal->residency.enabled) return;
    for (uint32_t i = 0; i < submit->declared_count; i++) {
        [encoder useResource:submit->declared[i] usage:MTLResourceUsageRead | MTLResourceUsageWrite];
    }
    coli_count(metal, &metal->counters.resources_declared, submit->declared_count);
}

void coli_encode_barrier(coli_metal_submit *submit) {
    if (submit->status == COLI_METAL_OK) [submit->encoder memoryBarrierWithScope:MTLBarrierScopeBuffers];
}

void coli_encode(coli_metal_submit *submit, coli_kernel kernel, const coli_constants *constants, const void *params, uint32_t params_bytes,
                 uint32_t x, uint32_t y, uint32_t z) {
    if (submit->status != COLI_METAL_OK || x == 0 || y == 0 || z == 0) return;
    coli_metal_error error;
    id<MTLComputePipelineState> state = coli_pipeline_for(submit->metal, kernel, constants, &error);
    if (state == nil) {
        coli_submit_fail(submit, COLI_METAL_COMPILE, "%s", error.text);
        return;
    }
    [submit->encoder setComputePipelineState:state];
    [submit->encoder setBytes:params length:params_bytes atIndex:0];
    [submit->encoder dispatchThreadgroups:MTLSizeMake(x, y, z) threadsPerThreadgroup:MTLSizeMake(coli_kernel_threads(kernel), 1, 1)];
    coli_count(submit->metal, &submit->metal->counters.dispatches, 1);
}

void coli_encode_commit(coli_metal_submit *submit) {
    if (submit->encoder == nil) return;
    coli_metal *metal = submit->metal;
    if (submit->status != COLI_METAL_OK) {
        abandon_encoder(submit);
        return;
    }
    [submit->encoder endEncoding];
    [submit->encoder release];
    submit->encoder = nil;
    coli_residency_flush(metal);
    [submit->buffers[submit->buffer_count] commit];
    submit->buffer_count++;
    submit->committed_products += submit->products;
    submit->products = 0;
    coli_count(metal, &metal->counters.command_buffers, 1);
}

void coli_submit_seal(coli_metal_submit *submit) {
    coli_metal *metal = submit->metal;
    coli_lock_registry(metal);
    submit->state = SUBMIT_COMMITTED;
    pthread_cond_broadcast(&metal->registry_changed);
    coli_unlock_registry(metal);
    const uint64_t now = coli_now();
    coli_count(metal, &metal->counters.submits, 1);
    coli_count(metal, &metal->counters.setup_nanoseconds, now - submit->started);
}

uint64_t coli_command_buffer_products(coli_metal *metal) {
    static const double max_seconds = 0.2;
    return (uint64_t)(metal->products_per_second * max_seconds);
}

void coli_submit_wait(coli_metal_submit *submit) {
    coli_metal *metal = submit->metal;
    if (submit->checked == submit->buffer_count) return;
    const uint64_t begin = coli_now();
    double seconds = 0;
    for (; submit->checked < submit->buffer_count; submit->checked++) {
        id<MTLCommandBuffer> buffer = submit->buffers[submit->checked];
        [buffer waitUntilCompleted];
        if ([buffer status] != MTLCommandBufferStatusCompleted) {
            NSError *reason = [buffer error];
            const char *text = reason ? [[reason localizedDescription] UTF8String] : NULL;
            coli_submit_fail(submit, COLI_METAL_DEVICE, "the GPU did not complete a command buffer (code %ld): %s", reason ? (long)[reason code] : 0L,
                             text ? text : "no reason given");
        } else {
            seconds += [buffer GPUEndTime] - [buffer GPUStartTime];
        }
    }
    pthread_mutex_lock(&metal->counter_lock);
    metal->counters.wait_nanoseconds += coli_now() - begin;
    if (seconds > 0) metal->counters.gpu_nanoseconds += (uint64_t)(seconds * 1e9);
    pthread_mutex_unlock(&metal->counter_lock);
    // Short command buffers say little about the GPU's speed.
    if (submit->status == COLI_METAL_OK && seconds > 0.005) {
        double rate = 0.5 * metal->products_per_second + 0.5 * (double)submit->committed_products / seconds;
        if (rate < 1e9) rate = 1e9;
        if (rate > 5e13) rate = 5e13;
        metal->products_per_second = rate;
    }
    submit->committed_products = 0;
    if (submit->state == SUBMIT_BUILDING) { // nobody else waits for them: room for the next
        for (uint32_t i = 0; i < submit->buffer_count; i++) {
            [submit->buffers[i] release];
            submit->buffers[i] = nil;
        }
        submit->buffer_count = submit->checked = 0;
    }
}
