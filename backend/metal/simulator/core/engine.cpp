#include "engine.h"
#include "checker.h"
#include "executor.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <sched.h>
#include <thread>
#include <time.h>

namespace sim {
namespace {

struct State {
    std::mutex mutex;
    colibri_sim_options options{};
    std::map<std::string, uint64_t> calls;
    int64_t failBufferAfter = -1, failAllocationAfter = -1;
    int failBufferCode = 0;
    std::string failPipeline;
    bool lost = false;
    State() {
        if (const char *s = getenv("COLIBRI_SIM_STRICT")) options.strict = atoi(s);
        if (const char *s = getenv("COLIBRI_SIM_SEED")) options.seed = strtoull(s, nullptr, 10);
    }
};
State &state() {
    static State *s = new State();
    return *s;
}

struct HeldLock { std::string name; bool metalAllowed; };
thread_local std::vector<HeldLock> heldLocks;

double now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

double specialiseAfterSeconds() {
    const char *s = getenv("COLIBRI_SIM_SPECIALISE");
    return s ? atof(s) : 2; // compiling takes about one
}

// The GPU: one thread that takes dispatches from the command buffers in flight.
struct Gpu {
    std::mutex mutex;
    std::condition_variable work, finished;
    std::deque<std::shared_ptr<CommandBuffer>> inFlight;
    std::vector<uint64_t> unobserved; // committed, and not known to be complete by the host
    bool held = false;
    uint64_t random = 0, serials = 0;
    Gpu() { std::thread([this] { loop(); }).detach(); }

    uint64_t draw() {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        return random;
    }

    void loop() {
        std::unique_lock<std::mutex> lock(mutex);
        while (true) {
            work.wait(lock, [&] { return !held && !inFlight.empty(); });
            uint64_t seed = options().seed;
            if (seed && !random) random = seed * 0x9e3779b97f4a7c15ull | 1;
            std::shared_ptr<CommandBuffer> c = inFlight[seed ? draw() % inFlight.size() : 0];
            if (c->next == 0) {
                c->start = now();
                c->status = Status::Scheduled;
            }
            if (c->errorCode == 0 && c->next < c->commands.size()) {
                // Dispatches of one phase are not ordered: any of them may be next.
                size_t end = c->next + 1;
                while (end < c->commands.size() && c->commands[end].encoder == c->commands[c->next].encoder && c->commands[end].phase == c->commands[c->next].phase) end++;
                if (seed && end - c->next > 1) std::swap(c->commands[c->next], c->commands[c->next + draw() % (end - c->next)]);
                Command &command = c->commands[c->next++];
                lock.unlock();
                run(*c, command, seed ? seed ^ command.serial * 0x2545f4914f6cdd1dull : 0);
                lock.lock();
                if (c->errorCode == 0 && c->next < c->commands.size()) continue;
            }
            if (c->errorCode == 0) c->errorCode = c->failCode;
            complete(c);
        }
    }

    void run(CommandBuffer &c, const Command &command, uint64_t seed) {
        Dispatch d{};
        Pipeline &pipeline = *command.pipeline;
        if (!pipeline.settled && pipeline.seconds > specialiseAfterSeconds()) pipeline.specialise(false);
        d.kernel = pipeline.specialised.code ? pipeline.specialised.code->kernels : pipeline.kernel;
        for (int i = 0; i < MSL_BUFFER_SLOTS; i++) d.buffers[i] = command.arguments[i].address;
        memcpy(d.groups, command.groups, sizeof d.groups);
        memcpy(d.threads, command.threads, sizeof d.threads);
        d.seed = seed;
        if (!pipeline.specialised.code) {
            const msl_library *code = pipeline.compiled.code;
            for (msl_u32 i = 0; i < code->constant_count; i++) *code->constants[i].defined = false;
            for (auto &v : pipeline.values) {
                memcpy(v.first->value, v.second.data(), v.second.size());
                *v.first->defined = true;
            }
        }
        std::unique_ptr<Checker> checker;
        if (options().strict) checker = makeChecker(c, command);
        d.checker = checker.get();
        double before = now();
        Outcome o = execute(d);
        pipeline.seconds += now() - before;
        if (o.fault) {
            report("page fault", c.name() + ": " + o.message);
            c.errorText = "Caused GPU Address Fault Error (0000000b:kIOGPUCommandBufferCallbackErrorPageFault)";
            c.errorCode = 3;
        }
    }

    void complete(std::shared_ptr<CommandBuffer> c) { // with the lock held
        inFlight.erase(std::find(inFlight.begin(), inFlight.end(), c));
        for (auto &chunk : c->chunks) giveChunk(chunk);
        c->chunks.clear();
        c->queue->outstanding--;
        c->end = c->start + (now() - c->start) * (double)std::max<uint64_t>(options().gpu_clock_factor, 1);
        c->status = c->errorCode ? Status::Error : Status::Completed;
        finished.notify_all();
    }
};
Gpu &gpu() {
    static Gpu *g = new Gpu();
    return *g;
}

std::atomic<uint64_t> ids{0};

struct Inside { // notices a second thread in a residency set
    ResidencySet &set;
    Inside(ResidencySet &s) : set(s) {
        if (set.inside.fetch_add(1) != 0) report("residency set used by two threads at once", set.name());
        if (options().strict) sched_yield(); // lets a second thread in, if there is one
    }
    ~Inside() { set.inside.fetch_sub(1); }
};

} // namespace

const colibri_sim_options &options() { return state().options; }

void called(const char *method) {
    for (auto &l : heldLocks)
        if (!l.metalAllowed) report("Metal call under a lock", std::string(method) + " is called while '" + l.name + "' is held");
    State &s = state();
    std::lock_guard<std::mutex> lock(s.mutex);
    s.calls[method]++;
}

bool takeAllocationFault() {
    State &s = state();
    std::lock_guard<std::mutex> lock(s.mutex);
    return s.failAllocationAfter >= 0 && s.failAllocationAfter-- == 0;
}

bool takePipelineFault(const std::string &kernel) {
    State &s = state();
    std::lock_guard<std::mutex> lock(s.mutex);
    return !s.failPipeline.empty() && s.failPipeline == kernel;
}

uint64_t nextId() { return ++ids; }

void Pipeline::specialise(bool onlyCached) {
    if (compiled.request.strict || values.empty()) { settled = true; return; }
    CompileRequest r = compiled.request;
    r.kernel = kernel->name;
    for (auto &v : values) {
        uint32_t number = 0;
        memcpy(&number, v.second.data(), v.second.size());
        bool needed = false;
        for (msl_u32 n = 0; n < kernel->constant_count; n++) needed |= &compiled.code->constants[kernel->constants[n]] == v.first;
        r.constants[v.first->index] = needed ? std::to_string(number) + (std::string(v.first->type).find("uint") == 0 ? "u" : "") : "0";
    }
    std::string why;
    if (compile(r, specialised, why, onlyCached)) settled = true;
    else if (!onlyCached) {
        settled = true;
        report("specialising " + r.kernel, why);
    }
}

std::string ResidencySet::name() const { return "residency set " + std::to_string(id) + (label.empty() ? "" : " '" + label + "'"); }

void ResidencySet::add(Buffer *b) {
    Inside in(*this);
    if (!b->live) { report("released object", name() + ": addAllocation: of " + b->name() + ", which has been released"); return; }
    std::lock_guard<std::mutex> lock(mutex);
    if (staged.insert(b).second && !committed.count(b)) b->sets++;
}

void ResidencySet::remove(Buffer *b) {
    Inside in(*this);
    std::lock_guard<std::mutex> lock(mutex);
    if (staged.erase(b) && !committed.count(b)) b->sets--;
}

void ResidencySet::removeAll() {
    Inside in(*this);
    std::lock_guard<std::mutex> lock(mutex);
    for (Buffer *b : staged) if (!committed.count(b)) b->sets--;
    staged.clear();
}

void ResidencySet::commit() {
    Inside in(*this);
    std::lock_guard<std::mutex> lock(mutex);
    for (Buffer *b : committed) if (!staged.count(b)) b->sets--;
    committed = staged;
}

void ResidencySet::enter() { Inside in(*this); }

std::string CommandBuffer::name() const { return "command buffer " + std::to_string(id) + (label.empty() ? "" : " '" + label + "'"); }

CommandBuffer::CommandBuffer(std::shared_ptr<QueueState> q) : id(nextId()), queue(std::move(q)) {
    Gpu &g = gpu();
    std::unique_lock<std::mutex> lock(g.mutex);
    if (queue->outstanding >= QUEUE_COMMAND_BUFFERS && g.inFlight.empty())
        report("command buffer", std::to_string(queue->outstanding) + " command buffers of a queue exist and none is committed: the next one never comes");
    else g.finished.wait(lock, [&] { return queue->outstanding < QUEUE_COMMAND_BUFFERS || g.inFlight.empty(); });
    queue->outstanding++;
}

CommandBuffer::~CommandBuffer() {
    if (status == Status::NotEnqueued) {
        std::lock_guard<std::mutex> lock(gpu().mutex);
        queue->outstanding--;
    }
    for (auto &chunk : chunks) giveChunk(chunk);
}

void *CommandBuffer::copyArgument(const void *bytes, uint64_t length) {
    uint64_t room = (length + 63) / 64 * 64 + 64; // a gap behind each, so that running off the end is not the next
    if (chunks.empty() || chunks.back().used + room > ARGUMENT_CHUNK_BYTES) chunks.push_back(takeChunk());
    ArgumentChunk &c = chunks.back();
    void *at = c.base + c.used;
    memcpy(at, bytes, length);
    c.used += room;
    return at;
}

void CommandBuffer::commit() {
    sets = queue->sets;
    for (auto &s : sets) {
        std::lock_guard<std::mutex> lock(s->mutex);
        resident.push_back(s->committed);
    }
    {
        State &s = state();
        std::lock_guard<std::mutex> lock(s.mutex);
        if (s.lost) { errorCode = 4; errorText = "Ignored (for causing prior/excessive GPU errors) (00000004:kIOGPUCommandBufferCallbackErrorSubmissionsIgnored)"; commands.clear(); }
        else if (s.failBufferAfter >= 0 && s.failBufferAfter-- == 0) {
            commands.resize(commands.size() / 2);
            errorText = s.failBufferCode == 8 ? "Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)" : "Injected error (" + std::to_string(s.failBufferCode) + ")";
            failCode = s.failBufferCode;
        }
    }
    Gpu &g = gpu();
    std::lock_guard<std::mutex> lock(g.mutex);
    unfinished = g.unobserved;
    g.unobserved.push_back(id);
    for (auto &c : commands) c.serial = ++g.serials;
    status = Status::Committed;
    g.inFlight.push_back(shared_from_this());
    g.work.notify_all();
}

void CommandBuffer::wait() {
    Gpu &g = gpu();
    std::unique_lock<std::mutex> lock(g.mutex);
    g.finished.wait(lock, [&] { return status == Status::Completed || status == Status::Error; });
    std::erase(g.unobserved, id);
}

void CommandBuffer::observed() {
    Gpu &g = gpu();
    std::lock_guard<std::mutex> lock(g.mutex);
    std::erase(g.unobserved, id);
}

bool bufferInFlight(uint64_t commandBuffer) {
    Gpu &g = gpu();
    std::lock_guard<std::mutex> lock(g.mutex);
    for (auto &c : g.inFlight) if (c->id == commandBuffer) return true;
    return false;
}

bool inFlight(Buffer *b) {
    Gpu &g = gpu();
    std::lock_guard<std::mutex> lock(g.mutex);
    for (auto &c : g.inFlight)
        for (auto &e : c->encoders)
            for (auto &r : e.resources) if (r.first == b) return true;
    return false;
}

} // namespace sim

using namespace sim;

void colibri_sim_configure(const colibri_sim_options *o) {
    State &s = state();
    {
        Gpu &g = gpu();
        std::lock_guard<std::mutex> lock(g.mutex);
        if (!g.inFlight.empty()) report("configure", std::to_string(g.inFlight.size()) + " command buffers are in flight");
        g.random = 0;
        g.held = false;
        g.work.notify_all();
    }
    std::lock_guard<std::mutex> lock(s.mutex);
    s.options = *o;
    s.calls.clear();
    s.failBufferAfter = s.failAllocationAfter = -1;
    s.failPipeline.clear();
    s.lost = false;
    clearReports();
    collectReports(o->collect);
}

size_t colibri_sim_report_count(void) { return reports().size(); }
size_t colibri_sim_report(size_t index, char *text, size_t capacity) {
    std::vector<std::string> all = reports();
    if (index >= all.size()) return 0;
    if (text && capacity) snprintf(text, capacity, "%s", all[index].c_str());
    return all[index].size();
}
void colibri_sim_clear_reports(void) { clearReports(); }

uint64_t colibri_sim_calls(const char *method) {
    State &s = state();
    std::lock_guard<std::mutex> lock(s.mutex);
    auto i = s.calls.find(method);
    return i == s.calls.end() ? 0 : i->second;
}

void colibri_sim_fail_command_buffer(uint64_t after, int code) {
    State &s = state();
    std::lock_guard<std::mutex> lock(s.mutex);
    s.failBufferAfter = (int64_t)after;
    s.failBufferCode = code;
}
void colibri_sim_fail_allocation(uint64_t after) {
    State &s = state();
    std::lock_guard<std::mutex> lock(s.mutex);
    s.failAllocationAfter = (int64_t)after;
}
void colibri_sim_fail_pipeline(const char *kernel) {
    State &s = state();
    std::lock_guard<std::mutex> lock(s.mutex);
    s.failPipeline = kernel ? kernel : "";
}
void colibri_sim_lose_device(int lost) {
    State &s = state();
    std::lock_guard<std::mutex> lock(s.mutex);
    s.lost = lost != 0;
}
void colibri_sim_hold(int held) {
    Gpu &g = gpu();
    std::lock_guard<std::mutex> lock(g.mutex);
    g.held = held != 0;
    g.work.notify_all();
}

void colibri_sim_lock(const char *name, int metalAllowed) {
    if (!heldLocks.empty()) report("locks held together", std::string("'") + name + "' is taken while '" + heldLocks.back().name + "' is held");
    heldLocks.push_back({name, metalAllowed != 0});
}
void colibri_sim_unlock(const char *name) {
    for (size_t i = heldLocks.size(); i-- > 0;)
        if (heldLocks[i].name == name) { heldLocks.erase(heldLocks.begin() + (long)i); return; }
    report("locks", std::string("'") + name + "' is released but not held by this thread");
}
