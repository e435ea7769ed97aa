// How tests steer the simulator and read what it saw. Plain C, so that the Objective-C host and Go can both call it.
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// The machine that MTLCreateSystemDefaultDevice describes, and how it behaves. Zero is the default of every field.
typedef struct {
    int strict;                  // check every access of every kernel; must be set before the library is compiled
    uint64_t seed;               // 0: dispatches run in order; else command buffers in flight interleave, independent dispatches, threadgroups and threads are shuffled
    uint64_t max_buffer_length;  // 0: 1 << 40
    uint64_t working_set;        // 0: 1 << 40
    int no_device;               // MTLCreateSystemDefaultDevice gives nil
    int residency_sets;          // 0: available; 1: newResidencySetWithDescriptor gives nil; 2: the device does not know the method (macOS 14)
    int collect;                 // reports are kept, not printed
    uint64_t gpu_clock_factor;   // 0: 1; command buffers report so many times the GPU time they took
} colibri_sim_options;
// Also forgets reports, counts and faults. No command buffer may be in flight.
void colibri_sim_configure(const colibri_sim_options *options);

// Reports of the validator since the last configure or clear. text may be null; returns the report's length without the final zero.
size_t colibri_sim_report_count(void);
size_t colibri_sim_report(size_t index, char *text, size_t capacity);
void colibri_sim_clear_reports(void);

// Objective-C objects of the simulator that exist now; the name of a class, "MTLBuffer" for instance, or null for all.
int64_t colibri_sim_live_objects(const char *kind);
// How often a method was called since the last configure: "useResource:usage:", "MTLResidencySet.commit".
uint64_t colibri_sim_calls(const char *method);

// Faults. after: 0 is the next one. A failed command buffer has run the first half of its dispatches.
void colibri_sim_fail_command_buffer(uint64_t after, int code);
void colibri_sim_fail_allocation(uint64_t after);      // newBuffer… gives nil
void colibri_sim_fail_pipeline(const char *kernel);    // null: none
void colibri_sim_lose_device(int lost);                // every command buffer fails from now on

// While held, committed command buffers wait.
void colibri_sim_hold(int held);

// The host's locks report here under the simulator. metal_allowed: 0 for a lock under which no Metal call may be made.
void colibri_sim_lock(const char *name, int metal_allowed);
void colibri_sim_unlock(const char *name);

#ifdef __cplusplus
}
#endif
