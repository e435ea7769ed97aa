// What strict mode checks at every access of a kernel: is the memory resident for this command buffer, is it inside a buffer,
// is it ordered after the accesses of other threads. Runs on the fiber that makes the access.
#pragma once
#include "msl_runtime.h"
#include <cstdint>
#include <string>

namespace sim {

struct Access {
    uintptr_t address;
    uint64_t bytes;
    uint32_t kind; // MSL_WRITE | MSL_ATOMIC
    const void *site;
    const msl_thread *thread;
    uintptr_t stackFrom, stackTo;      // of the thread's fiber
    uint32_t barriers, deviceBarriers; // threadgroup barriers that the group has passed; those that order device memory
};

struct Checker {
    virtual void access(const Access &a) = 0;
    // Found outside an access: by the executor, or by metal_stdlib.
    virtual void kernelViolation(const uint32_t group[3], uint32_t thread, const std::string &what, const void *site) = 0;
    virtual void beginGroup(char *threadgroupMemory) = 0;
    virtual ~Checker() = default;
};

} // namespace sim
