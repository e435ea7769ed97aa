//go:build darwin || metalsim

// Registered memory: which ranges the GPU knows, and the way from an address to a GPU address. Lookups are binary searches.
#include "metal_internal.h"
#include <stdlib.h>
#include <string.h>

// The index of the first mapping that ends beyond `at`. Under registry_lock.
static uint32_t find_mapping(const coli_metal *metal, uintptr_t at) {
    uint32_t low = 0, high = metal->mapping_count;
    while (low < high) {
        const uint32_t middle = (low + high) / 2;
        const coli_mapping *m = metal->mappings[middle];
        if (m->base + m->length <= at) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static bool wrap(coli_metal *metal, uintptr_t base, uint64_t length, coli_piece *piece) {
    id<MTLBuffer> buffer = [metal->device newBufferWithBytesNoCopy:(void *)base
                                                            length:length
                                                           options:MTLResourceStorageModeShared | MTLResourceHazardTrackingModeUntracked
                                                       deallocator:nil];
    if (buffer == nil) return false;
    *piece = (coli_piece){.base = base, .length = length, .gpu = [buffer gpuAddress], .buffer = buffer};
    if (coli_residency_add(metal, buffer)) return true;
    [buffer release];
    return false;
}

// Takes a mapping's buffers out of the set and lets go of them. No submit may use it any more.
static void discard(coli_metal *metal, coli_mapping *mapping) {
    coli_residency_remove(metal, mapping->pieces, mapping->count);
    for (uint32_t i = 0; i < mapping->count; i++) [mapping->pieces[i].buffer release];
    free(mapping->pieces);
    free(mapping);
}

static coli_mapping *open_mapping(coli_metal *metal, uintptr_t base, uint64_t length, coli_metal_error *error) {
    uint64_t stride = metal->max_buffer_length / COLI_METAL_PAGE * COLI_METAL_PAGE;
    if (stride > length) stride = length;
    coli_mapping *mapping = stride ? calloc(1, sizeof *mapping) : NULL;
    const uint64_t pieces = stride ? (length + stride - 1) / stride : 0;
    if (mapping != NULL) mapping->pieces = calloc(pieces, sizeof *mapping->pieces);
    if (mapping == NULL || mapping->pieces == NULL) {
        free(mapping);
        coli_fail(error, COLI_METAL_MEMORY, "no memory to register %llu bytes", (unsigned long long)length);
        return NULL;
    }
    mapping->base = base;
    mapping->length = length;
    mapping->stride = stride;
    for (uint64_t at = 0; at < length; at += stride) {
        const uint64_t part = length - at < stride ? length - at : stride;
        if (!wrap(metal, base + at, part, &mapping->pieces[mapping->count])) {
            coli_fail(error, COLI_METAL_MEMORY, "the GPU does not accept memory of %llu bytes at %p (piece %u of %llu)", (unsigned long long)length, (void *)base,
                      mapping->count + 1, (unsigned long long)pieces);
            discard(metal, mapping);
            return NULL;
        }
        mapping->count++;
    }
    mapping->ordered = mapping->count;
    return mapping;
}

static bool uses(const coli_metal_submit *submit, const coli_mapping *mapping) {
    for (uint32_t i = 0; i < submit->used_count; i++) {
        if (submit->used[i] == mapping) return true;
    }
    return false;
}

// Waits until no command buffer that could touch the mapping is under way. The mapping has left the registry, so no new one will.
static void drain(coli_metal *metal, const coli_mapping *mapping) {
    coli_lock_registry(metal);
    coli_metal_submit *submit = metal->submits;
    while (submit != NULL) {
        if (submit->state == SUBMIT_IDLE || submit->completed || !uses(submit, mapping)) {
            submit = submit->next;
            continue;
        }
        if (submit->state == SUBMIT_BUILDING) {
            coli_wait_registry(metal);
            continue; // looks at the same submit again
        }
        submit->waiters++; // keeps its command buffers
        coli_unlock_registry(metal);
        for (uint32_t i = 0; i < submit->buffer_count; i++) [submit->buffers[i] waitUntilCompleted];
        coli_lock_registry(metal);
        submit->waiters--;
        submit->completed = true;
        pthread_cond_broadcast(&metal->registry_changed);
    }
    coli_unlock_registry(metal);
}

int coli_metal_register(coli_metal *metal, void *pointer, uint64_t length, coli_metal_error *error) {
    const uintptr_t base = (uintptr_t)pointer;
    if (base == 0 || length == 0 || base % COLI_METAL_PAGE != 0 || length % COLI_METAL_PAGE != 0 || base + length < base) {
        return coli_fail(error, COLI_METAL_ARGUMENT, "memory of %llu bytes at %p cannot be registered: address and length must be multiples of %d",
                         (unsigned long long)length, pointer, COLI_METAL_PAGE);
    }
    int status = COLI_METAL_OK;
    @autoreleasepool {
        coli_mapping *mapping = open_mapping(metal, base, length, error);
        coli_mapping *replaced = NULL;
        if (mapping == NULL) {
            status = COLI_METAL_MEMORY;
        } else {
            coli_lock_registry(metal);
            uint32_t at = find_mapping(metal, base);
            if (at < metal->mapping_count && metal->mappings[at]->base == base) replaced = metal->mappings[at];
            const uint32_t next = replaced ? at + 1 : at;
            if (next < metal->mapping_count && metal->mappings[next]->base < base + length) {
                status = coli_fail(error, COLI_METAL_ARGUMENT, "memory of %llu bytes at %p overlaps %llu bytes registered at %p", (unsigned long long)length, pointer,
                                   (unsigned long long)metal->mappings[next]->length, (void *)metal->mappings[next]->base);
            } else if (replaced != NULL) {
                metal->mappings[at] = mapping;
            } else {
                if (metal->mapping_count == metal->mapping_capacity) {
                    const uint32_t capacity = metal->mapping_capacity ? 2 * metal->mapping_capacity : 64;
                    coli_mapping **grown = realloc(metal->mappings, capacity * sizeof(coli_mapping *));
                    if (grown == NULL) {
                        status = coli_fail(error, COLI_METAL_MEMORY, "no memory to register %llu bytes", (unsigned long long)length);
                    } else {
                        metal->mappings = grown;
                        metal->mapping_capacity = capacity;
                    }
                }
                if (status == COLI_METAL_OK) {
                    memmove(metal->mappings + at + 1, metal->mappings + at, (metal->mapping_count - at) * sizeof(coli_mapping *));
                    metal->mappings[at] = mapping;
                    metal->mapping_count++;
                }
            }
            coli_unlock_registry(metal);
            if (status != COLI_METAL_OK) {
                discard(metal, mapping);
            } else if (replaced != NULL) {
                drain(metal, replaced);
                discard(metal, replaced);
            }
        }
    }
    return status;
}

int coli_metal_unregister(coli_metal *metal, void *pointer, coli_metal_error *error) {
    const uintptr_t base = (uintptr_t)pointer;
    coli_lock_registry(metal);
    const uint32_t at = find_mapping(metal, base);
    coli_mapping *mapping = at < metal->mapping_count && metal->mappings[at]->base == base ? metal->mappings[at] : NULL;
    if (mapping != NULL) {
        metal->mapping_count--;
        memmove(metal->mappings + at, metal->mappings + at + 1, (metal->mapping_count - at) * sizeof(coli_mapping *));
    }
    coli_unlock_registry(metal);
    if (mapping == NULL) return coli_fail(error, COLI_METAL_ARGUMENT, "no memory is registered at %p", pointer);
    @autoreleasepool {
        drain(metal, mapping);
        discard(metal, mapping);
    }
    return COLI_METAL_OK;
}

void coli_metal_stats(coli_metal *metal, uint64_t *ranges, uint64_t *bytes) {
    coli_lock_registry(metal);
    *ranges = metal->mapping_count;
    *bytes = 0;
    for (uint32_t i = 0; i < metal->mapping_count; i++) *bytes += metal->mappings[i]->length;
    coli_unlock_registry(metal);
}

void coli_registry_close(coli_metal *metal) {
    for (uint32_t i = 0; i < metal->mapping_count; i++) discard(metal, metal->mappings[i]);
    metal->mapping_count = 0;
    free(metal->mappings);
    metal->mappings = NULL;
}

static const coli_piece *covering(const coli_mapping *mapping, uintptr_t at, uint64_t bytes) {
    const coli_piece *piece = &mapping->pieces[(at - mapping->base) / mapping->stride];
    if (at + bytes <= piece->base + piece->length) return piece;
    for (uint32_t i = mapping->ordered; i < mapping->count; i++) {
        piece = &mapping->pieces[i];
        if (at >= piece->base && at + bytes <= piece->base + piece->length) return piece;
    }
    return NULL;
}

static bool pin(coli_metal_submit *submit, coli_mapping *mapping) {
    if (uses(submit, mapping)) return true;
    if (submit->used_count == submit->used_capacity) {
        const uint32_t capacity = submit->used_capacity ? 2 * submit->used_capacity : 64;
        coli_mapping **grown = realloc(submit->used, capacity * sizeof(coli_mapping *));
        if (grown == NULL) return false;
        submit->used = grown;
        submit->used_capacity = capacity;
    }
    submit->used[submit->used_count++] = mapping;
    return true;
}

// Finds the buffer that holds [pointer, pointer+bytes) and pins its mapping until the submit is closed.
int coli_resolve(coli_metal_submit *submit, const void *pointer, uint64_t bytes, const char *what, coli_piece *out) {
    coli_metal *metal = submit->metal;
    const uintptr_t at = (uintptr_t)pointer;
    coli_lock_registry(metal);
    const uint32_t index = find_mapping(metal, at);
    coli_mapping *mapping = index < metal->mapping_count ? metal->mappings[index] : NULL;
    const bool known = mapping != NULL && at >= mapping->base && bytes <= mapping->base + mapping->length - at;
    const bool pinned = known && pin(submit, mapping);
    const coli_piece *piece = pinned ? covering(mapping, at, bytes) : NULL;
    if (piece != NULL) *out = *piece;
    coli_unlock_registry(metal);
    if (!known) {
        return coli_submit_fail(submit, COLI_METAL_ARGUMENT, "%s: %llu bytes at %p are not in registered memory", what, (unsigned long long)bytes, pointer);
    }
    if (!pinned) return coli_submit_fail(submit, COLI_METAL_MEMORY, "no memory to keep track of the memory in use");
    if (piece != NULL) return COLI_METAL_OK;

    // Across two pieces. The mapping is pinned: nobody takes it away meanwhile, and only this thread appends to it.
    const uintptr_t first = at / COLI_METAL_PAGE * COLI_METAL_PAGE;
    const uintptr_t end = (at + bytes + COLI_METAL_PAGE - 1) / COLI_METAL_PAGE * COLI_METAL_PAGE;
    if (end - first > metal->max_buffer_length) {
        return coli_submit_fail(submit, COLI_METAL_ARGUMENT, "%s: %llu bytes are more than one buffer of this GPU holds (%llu)", what, (unsigned long long)bytes,
                                (unsigned long long)metal->max_buffer_length);
    }
    coli_piece bridge;
    if (!wrap(metal, first, end - first, &bridge)) return coli_submit_fail(submit, COLI_METAL_MEMORY, "%s: the GPU does not accept a buffer across pieces", what);
    coli_lock_registry(metal);
    coli_piece *grown = realloc(mapping->pieces, (mapping->count + 1) * sizeof *grown);
    if (grown != NULL) {
        mapping->pieces = grown;
        mapping->pieces[mapping->count++] = bridge;
    }
    coli_unlock_registry(metal);
    if (grown == NULL) {
        coli_residency_remove(metal, &bridge, 1);
        [bridge.buffer release];
        return coli_submit_fail(submit, COLI_METAL_MEMORY, "no memory to register a buffer across pieces");
    }
    *out = bridge;
    return COLI_METAL_OK;
}
