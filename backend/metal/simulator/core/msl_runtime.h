// The contract between a compiled shader library and the executor that runs it (executor.cpp): how a GPU thread finds
// itself, meets the others of its SIMD-group and threadgroup, and how kernels describe themselves. Included by both
// sides; needs no header of the system, so that shader text sees nothing but Metal's own names.
#pragma once

typedef unsigned int msl_u32;
typedef unsigned long msl_u64;

enum { MSL_LANES = 32, MSL_BUFFER_SLOTS = 31, MSL_THREADGROUP_SLOTS = 31 };

// Lane values of one collective, an array for each operand size so that lanes in different branches cannot overlap.
struct alignas(64) msl_slots {
    unsigned char b16[MSL_LANES * 16], b8[MSL_LANES * 8], b4[MSL_LANES * 4], b2[MSL_LANES * 2], b1[MSL_LANES];
};

// One SIMD-group in flight. A bit of a mask is a lane.
struct msl_simd {
    msl_slots slots[2];
    msl_u32 filling;       // the half that arriving lanes write; the other holds the last completed collective
    msl_u32 alive;         // not yet returned from the kernel
    msl_u32 at_collective; // waiting in a collective
    msl_u32 at_barrier;    // waiting in threadgroup_barrier
    msl_u32 members;       // took part in the last completed collective
    msl_u32 epoch;         // simdgroup_barriers passed, for the race check
    const void *site[MSL_LANES]; // where each lane waits,
    msl_u32 depth[MSL_LANES];    // and how deep its stack is there
};

struct msl_group;

// One GPU thread.
struct msl_thread {
    msl_group *group;
    msl_simd *simd;
    msl_u32 index, lane; // in the threadgroup, in the SIMD-group
    msl_u32 position_in_threadgroup[3], position_in_grid[3];
    const void *fiber;
};

// The thread that runs now, on this worker; the executor sets it at every switch.
extern "C" __attribute__((tls_model("initial-exec"))) __thread msl_thread *msl_current;

// What all threads of a threadgroup share. The executor's own state follows behind it.
struct msl_group {
    void *buffers[MSL_BUFFER_SLOTS];
    void *threadgroup[MSL_THREADGROUP_SLOTS]; // dynamic threadgroup memory
    char *statics;                            // threadgroup variables, at msl_threadgroup_variable.offset
    msl_u32 position[3], groups[3], threads_per_group[3], threads_per_grid[3];
    msl_u32 threads, simds;
};

// Calls from kernels into the executor.
struct msl_runtime {
    // site: the place in the shader, or null for the caller's return address
    void (*collective)(msl_thread *, const void *site);
    void (*simdgroup_barrier)(msl_thread *, msl_u32 flags, const void *site);
    void (*threadgroup_barrier)(msl_thread *, msl_u32 flags, const void *site); // flags: metal::mem_flags
    void (*access)(const void *address, msl_u64 bytes, msl_u32 kind, const void *site); // strict builds only; kind: MSL_WRITE | MSL_ATOMIC
    void (*violation)(const char *what, const void *site);
};
enum { MSL_READ = 0, MSL_WRITE = 1, MSL_ATOMIC = 2 };

enum { MSL_ARGUMENT_DEVICE, MSL_ARGUMENT_CONSTANT, MSL_ARGUMENT_THREADGROUP };
struct msl_argument {
    const char *name;
    msl_u32 kind, index;
    bool writable;         // a device pointer to non-const
    msl_u64 element_bytes; // of what it points to
    bool reference;
};

struct msl_threadgroup_variable {
    const char *name;
    msl_u64 bytes, offset; // offset is filled in by the executor when it loads the library
};

struct msl_kernel {
    const char *name;
    void (*run)(msl_thread *);
    const msl_argument *arguments;
    msl_u32 argument_count, first_variable, variable_count, max_threads; // max_threads 0: not declared
    const msl_u32 *constants; // function constants that it or what it calls uses: positions in msl_library.constants
    msl_u32 constant_count;
};

struct msl_constant {
    const char *name;
    msl_u32 index, bytes;
    void *value;
    bool *defined;
    const char *type;
};

struct msl_library {
    const msl_kernel *kernels;
    msl_threadgroup_variable *variables;
    const msl_constant *constants;
    msl_u32 kernel_count, variable_count, constant_count;
    const msl_runtime **runtime;
};
