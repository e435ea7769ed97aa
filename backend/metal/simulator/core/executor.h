// Runs one dispatch of a compiled kernel on the CPU: a fiber for each GPU thread that has to wait, SIMD-groups of 32 that meet in
// collectives, threadgroups spread over worker threads. Knows nothing of command buffers or of Objective-C.
#pragma once
#include "msl_runtime.h"
#include <cstdint>
#include <string>

namespace sim {

struct Checker; // checker.h; null in fast mode

struct Dispatch {
    const msl_kernel *kernel;
    void *buffers[MSL_BUFFER_SLOTS];
    uint32_t groups[3], threads[3];
    uint64_t seed;     // 0: threadgroups and threads start in order; else in an order drawn from the seed
    Checker *checker;
};

struct Outcome {
    bool fault = false;   // the kernel touched memory that is not mapped, or overran its stack
    std::string message;
};

Outcome execute(const Dispatch &dispatch);

// Gives the library's threadgroup variables their offsets; returns the bytes that the kernel's variables need on the device.
void place(const msl_library *library, const msl_runtime **runtime);
uint64_t threadgroupBytes(const msl_library *library, const msl_kernel *kernel);

// "file:line (function)" of an address in a compiled library.
std::string describe(const void *site);

} // namespace sim
