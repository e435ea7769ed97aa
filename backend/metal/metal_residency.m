//go:build darwin || metalsim

// The residency set: which memory the GPU may count on without being told in every command buffer. Additions wait until
// the next submit, so that loading a model costs one commit; removals are committed at once, because the memory is freed next.
#include "metal_internal.h"
#include <stdlib.h>
#include <string.h>

void coli_residency_open(coli_metal *metal, int resset) {
    if (resset == COLI_METAL_RESSET_OFF) return;
#if COLI_RESIDENCY_SETS
    coli_residency *r = &metal->residency;
    if (![metal->device respondsToSelector:@selector(newResidencySetWithDescriptor:error:)]) return;
    if (@available(macOS 15.0, *)) {
        MTLResidencySetDescriptor *descriptor = [[MTLResidencySetDescriptor alloc] init];
        descriptor.initialCapacity = 64;
        NSError *reason = nil;
        id<MTLResidencySet> set = [metal->device newResidencySetWithDescriptor:descriptor error:&reason];
        [descriptor release];
        if (set != nil) {
            r->supported = r->enabled = true;
            r->set = set;
            [metal->queue addResidencySet:set];
        }
    }
#else
    (void)metal;
#endif
}

void coli_residency_close(coli_metal *metal) {
    coli_residency *r = &metal->residency;
#if COLI_RESIDENCY_SETS
    if (r->enabled) {
        if (@available(macOS 15.0, *)) {
            id<MTLResidencySet> set = r->set;
            [metal->queue removeResidencySet:set];
            [set endResidency];
            [set removeAllAllocations];
            [set commit];
            [set release];
        }
    }
#endif
    free(r->waiting);
    r->waiting = NULL;
    r->waiting_count = 0;
    r->enabled = false;
}

bool coli_residency_add(coli_metal *metal, id<MTLBuffer> buffer) {
    coli_residency *r = &metal->residency;
    if (!r->enabled) return true;
    bool added = true;
    coli_lock_set(metal);
    if (r->waiting_count == r->waiting_capacity) {
        const uint32_t capacity = r->waiting_capacity ? 2 * r->waiting_capacity : 64;
        id<MTLBuffer> *grown = realloc(r->waiting, capacity * sizeof *grown);
        if (grown == NULL) {
            added = false;
        } else {
            r->waiting = grown;
            r->waiting_capacity = capacity;
        }
    }
    if (added) r->waiting[r->waiting_count++] = buffer;
    coli_unlock_set(metal);
    return added;
}

#if COLI_RESIDENCY_SETS
// Drops a buffer that was not added yet; false when it was.
static bool forget_waiting(coli_residency *r, id<MTLBuffer> buffer) {
    for (uint32_t i = 0; i < r->waiting_count; i++) {
        if (r->waiting[i] == buffer) {
            r->waiting[i] = r->waiting[--r->waiting_count];
            return true;
        }
    }
    return false;
}
#endif

void coli_residency_remove(coli_metal *metal, const coli_piece *pieces, uint32_t count) {
    coli_residency *r = &metal->residency;
    if (!r->enabled) return;
#if COLI_RESIDENCY_SETS
    if (@available(macOS 15.0, *)) {
        id<MTLResidencySet> set = r->set;
        coli_lock_set(metal);
        const uint64_t begin = coli_now();
        uint32_t removed = 0;
        for (uint32_t i = 0; i < count; i++) {
            if (forget_waiting(r, pieces[i].buffer)) continue;
            [set removeAllocation:pieces[i].buffer];
            removed++;
        }
        if (removed > 0) {
            [set commit];
            r->removals += removed;
            r->members -= removed;
            r->commits++;
            r->commit_nanoseconds += coli_now() - begin;
        }
        coli_unlock_set(metal);
    }
#else
    (void)pieces, (void)count;
#endif
}

void coli_residency_flush(coli_metal *metal) {
    coli_residency *r = &metal->residency;
    if (!r->enabled) return;
#if COLI_RESIDENCY_SETS
    if (@available(macOS 15.0, *)) {
        id<MTLResidencySet> set = r->set;
        coli_lock_set(metal);
        if (r->waiting_count > 0) {
            const uint64_t begin = coli_now();
            for (uint32_t i = 0; i < r->waiting_count; i++) [set addAllocation:r->waiting[i]];
            [set commit];
            r->adds += r->waiting_count;
            r->members += r->waiting_count;
            r->waiting_count = 0;
            r->commits++;
            r->commit_nanoseconds += coli_now() - begin;
        }
        coli_unlock_set(metal);
    }
#endif
}

void coli_metal_heartbeat(coli_metal *metal, int wire) {
    coli_residency *r = &metal->residency;
    if (!r->enabled) return;
#if COLI_RESIDENCY_SETS
    @autoreleasepool {
        if (@available(macOS 15.0, *)) {
            id<MTLResidencySet> set = r->set;
            coli_lock_set(metal);
            if (wire) {
                [set requestResidency];
            } else {
                [set endResidency];
            }
            coli_unlock_set(metal);
        }
    }
#else
    (void)wire;
#endif
}

void coli_metal_resset_stats(coli_metal *metal, coli_metal_resset_statistics *statistics) {
    coli_residency *r = &metal->residency;
    coli_lock_set(metal);
    *statistics = (coli_metal_resset_statistics){
        .supported = r->supported, .enabled = r->enabled, .members = r->members, .waiting = r->waiting_count,
        .adds = r->adds, .removals = r->removals, .commits = r->commits, .commit_nanoseconds = r->commit_nanoseconds};
    coli_unlock_set(metal);
}
