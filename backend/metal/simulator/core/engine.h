// The GPU behind the Metal classes: residency sets, command buffers and their execution, and the rules that concern them.
#pragma once
#include "colibri_sim.h"
#include "library.h"
#include "memory.h"
#include <condition_variable>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace sim {

const colibri_sim_options &options();
// Counts a call of a Metal method and checks the rules that hold for every one of them.
void called(const char *method);
bool takeAllocationFault();
bool takePipelineFault(const std::string &kernel);

struct Pipeline {
    Library compiled;
    const msl_kernel *kernel = nullptr;
    std::vector<std::pair<const msl_constant *, std::string>> values; // function constants
    // A pipeline that has run for a while is compiled again with its constants in it: twice as fast, the same results.
    Library specialised;
    bool settled = false; // specialised, or not to be
    double seconds = 0;
    void specialise(bool onlyCached);
    uint64_t maxThreads() const { return kernel->max_threads ? kernel->max_threads : 1024; }
};

// One thread at a time, as Metal demands: a second one inside is a report.
struct ResidencySet {
    uint64_t id;
    std::string label;
    std::set<Buffer *> staged, committed;
    std::atomic<int> inside{0};
    std::mutex mutex; // against the GPU's thread
    bool isStaged(Buffer *b) const { return staged.count(b) != 0; }
    void add(Buffer *b);
    void remove(Buffer *b);
    void removeAll();
    void commit();
    void enter(); // for the calls that change nothing here
    std::string name() const;
};
using SetRef = std::shared_ptr<ResidencySet>;

struct Argument { void *address = nullptr; uint64_t length = 0; };
struct Command {
    std::shared_ptr<Pipeline> pipeline;
    Argument arguments[MSL_BUFFER_SLOTS];
    uint32_t groups[3], threads[3];
    uint32_t encoder, phase;   // dispatches of one phase of one encoder are not ordered
    uint64_t serial = 0;       // given at commit: unique for the process
    uint32_t resources = 0;    // of the encoder's, declared before it
};
struct EncoderState {
    std::vector<std::pair<Buffer *, uint64_t>> resources; // useResource: with usage
    uint32_t phase = 0;
    bool serial = false;
};

enum class Status { NotEnqueued, Enqueued, Committed, Scheduled, Completed, Error };

// A queue gives out this many command buffers that are not yet complete; asking for one more blocks.
enum { QUEUE_COMMAND_BUFFERS = 64 };
struct QueueState {
    std::vector<SetRef> sets;
    int outstanding = 0; // under the GPU's lock
};

struct CommandBuffer : std::enable_shared_from_this<CommandBuffer> {
    uint64_t id;
    std::string label;
    std::vector<Command> commands;
    std::vector<EncoderState> encoders;
    std::vector<ArgumentChunk> chunks;
    std::vector<SetRef> sets;                        // attached when it was committed
    std::vector<std::set<Buffer *>> resident;        // what each held then
    std::vector<uint64_t> unfinished;                // command buffers that the host had not seen complete then
    size_t next = 0;                                 // command to run
    std::atomic<Status> status{Status::NotEnqueued};
    int errorCode = 0;                               // of MTLCommandBufferErrorDomain
    int failCode = 0;                                // injected: takes effect when the commands have run
    std::string errorText;
    double start = 0, end = 0;
    std::shared_ptr<QueueState> queue;
    explicit CommandBuffer(std::shared_ptr<QueueState> q); // waits while the queue has none to give
    ~CommandBuffer();
    void *copyArgument(const void *bytes, uint64_t length);
    void commit();
    void wait();
    void observed(); // the host has seen it complete
    std::string name() const;
};

uint64_t nextId();
bool bufferInFlight(uint64_t commandBuffer);
bool inFlight(Buffer *b); // declared with useResource: by a command buffer in flight

// checker.cpp
struct Checker;
std::unique_ptr<Checker> makeChecker(CommandBuffer &buffer, const Command &command);
void forgetAccesses(Buffer *b);

} // namespace sim
