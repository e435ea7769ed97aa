// The GPU's address space. Every buffer is mapped twice: where the host sees it and, elsewhere, where kernels see it, so that a host pointer
// handed to a kernel, an access after release and a step off the end of a buffer fault as they would on the device.
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace sim {

enum { APPLE_PAGE = 16384, THREADGROUP_MEMORY_BYTES = 32768, THREADGROUP_ARENA_BYTES = 1 << 20 };

struct Buffer {
    uint64_t id;
    uintptr_t gpu; // the address kernels use
    uint64_t length, mapped;
    char *host;
    bool wrapped; // newBufferWithBytesNoCopy: the memory is the caller's
    std::atomic<bool> live{true};
    std::atomic<int> sets{0}; // residency sets that hold it, staged or committed
    std::mutex labelMutex;
    std::string label;
    std::string name(); // "buffer 7 'scratch' (16384 bytes)"
};

// Null, with a reason, when the request is one that Metal refuses.
Buffer *createBuffer(uint64_t length, std::string &error);
Buffer *wrapBuffer(void *pointer, uint64_t length, std::string &error);
// Takes the memory out of the GPU's address space for good: its addresses are not used again. The record stays, for messages.
void destroyBuffer(Buffer *b);
uint64_t allocatedBytes();

bool isGpuAddress(uintptr_t address);
uintptr_t gpuBase();
enum : uint64_t { GPU_SPACE_BYTES = 1ull << 42 };
Buffer *bufferAt(uintptr_t address); // the buffer that the address belonged to last, released ones included; null between buffers
Buffer *bufferBefore(uintptr_t address); // the nearest one that starts at or before
std::string explainAddress(uintptr_t address, bool notCanonical);
std::vector<Buffer *> hostMemoryGone(const std::vector<Buffer *> &buffers); // those that wrap pages which their owner has unmapped

// Memory for one command buffer's setBytes: chunks of the GPU's address space, reused.
struct ArgumentChunk { char *base; uint64_t used; };
enum { ARGUMENT_CHUNK_BYTES = 65536 };
ArgumentChunk takeChunk();
void giveChunk(ArgumentChunk chunk);

// A finding of the validator. Recorded; printed unless a test collects them.
void report(const std::string &rule, const std::string &text);
std::vector<std::string> reports();
void clearReports();
void collectReports(bool quietly);

} // namespace sim
