#include "executor.h"
#include "checker.h"
#include "memory.h"

#include <atomic>
#include <boost/context/detail/fcontext.hpp>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <map>
#include <mutex>
#include <sys/mman.h>
#include <thread>
#include <utility>
#include <ucontext.h>
#include <unistd.h>
#include <vector>

extern "C" __attribute__((tls_model("initial-exec"))) __thread msl_thread *msl_current = nullptr;

namespace sim {
namespace {

using namespace boost::context::detail;

enum { STACK_BYTES = 128 * 1024 };

struct alignas(64) Fiber {
    fcontext_t context;
    char *stack; // its lowest page is a guard
    char *top;
    msl_thread thread;
};

uint64_t mix(uint64_t x) { // splitmix64
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

struct Worker;
enum { GROUP_THREADS_MAX = 1024 };

// The executor's half of a threadgroup.
struct Group : msl_group {
    Worker *worker;
    const Dispatch *dispatch;
    msl_simd simdgroups[GROUP_THREADS_MAX / MSL_LANES];
    uint32_t started, finished, atBarrier;
    uint32_t barriers, deviceBarriers; // passed so far
    const void *barrierSite;
    uint32_t barrierFlags;
    uint32_t barrierThread;
    uint16_t order[GROUP_THREADS_MAX]; // the order in which threads start
    Fiber *byThread[GROUP_THREADS_MAX];
    Fiber *ready[GROUP_THREADS_MAX]; // a ring
    uint32_t readyHead, readyCount;
    void wake(Fiber *f) { ready[(readyHead + readyCount++) % GROUP_THREADS_MAX] = f; }
};

struct Worker {
    Group group;
    Fiber main;                 // the worker's own stack
    std::vector<Fiber *> fibers, idle;
    char *statics;
    bool aborted;
    Outcome outcome;
};

// Static storage, so that the signal handler can read it on any thread.
__attribute__((tls_model("initial-exec"))) thread_local Worker *current;

void fiberMain(transfer_t from);

Fiber *newFiber(Worker *w) {
    char *stack = (char *)mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED) { perror("metal simulator: fiber stack"); abort(); }
    mprotect(stack, 4096, PROT_NONE);
    Fiber *f = new Fiber();
    f->stack = stack;
    // Stacks start at different distances from a page's end: the lanes of a SIMD-group would share one set of the cache otherwise.
    size_t shift = w->fibers.size() * 832 % 16384;
    f->top = stack + STACK_BYTES - 64 - shift;
    f->context = make_fcontext(f->top, STACK_BYTES - 64 - shift - 4096, fiberMain);
    w->fibers.push_back(f);
    return f;
}

Fiber *fiberOf(msl_thread *t) { return (Fiber *)t->fiber; }

void jump(Fiber *from, Fiber *to) {
    transfer_t r = jump_fcontext(to->context, from);
    ((Fiber *)r.data)->context = r.fctx;
    msl_current = &from->thread;
}

// Gives the CPU to a thread that can go on: one that was woken, or one that has not started.
void switchAway(Group &g, Fiber *me) {
    Fiber *next;
    if (g.readyCount) {
        next = g.ready[g.readyHead];
        g.readyHead = (g.readyHead + 1) % GROUP_THREADS_MAX;
        g.readyCount--;
        if (next == me) return;
    } else if (g.started < g.threads) {
        Worker *w = g.worker;
        if (w->idle.empty()) next = newFiber(w);
        else { next = w->idle.back(); w->idle.pop_back(); }
    } else next = &g.worker->main;
    jump(me, next);
}

void completeCollective(Group &g, msl_simd &s) {
    // All lanes usually wait at one place. Where they have diverged, those furthest behind go on, so that they can catch up with the others:
    // the deepest in calls, then the earliest in the code. The others wait on.
    uint32_t first = (uint32_t)__builtin_ctz(s.at_collective), members = 0;
    for (uint32_t m = s.at_collective; m; m &= m - 1) {
        uint32_t l = (uint32_t)__builtin_ctz(m);
        if (s.depth[l] > s.depth[first] || (s.depth[l] == s.depth[first] && s.site[l] < s.site[first])) first = l;
    }
    for (uint32_t m = s.at_collective; m; m &= m - 1) {
        uint32_t l = (uint32_t)__builtin_ctz(m);
        if (s.site[l] == s.site[first] && s.depth[l] == s.depth[first]) members |= 1u << l;
    }
    uint32_t rest = s.at_collective & ~members;
    s.members = members;
    s.filling ^= 1;
    if (rest) s.slots[s.filling] = s.slots[s.filling ^ 1];
    s.at_collective = rest;
    uint32_t base = (uint32_t)(&s - g.simdgroups) * MSL_LANES;
    for (uint32_t m = members; m; m &= m - 1) g.wake(g.byThread[base + (uint32_t)__builtin_ctz(m)]);
}

// A SIMD-group's collective is complete when every lane that is alive waits somewhere.
void settle(Group &g, msl_simd &s) {
    if (s.at_collective && (s.at_collective | s.at_barrier) == s.alive) completeCollective(g, s);
}

void settleBarrier(Group &g) {
    if (!g.atBarrier || g.atBarrier != g.threads - g.finished) return;
    if (g.started < g.threads) return;
    if (g.finished && g.dispatch->checker)
        g.dispatch->checker->kernelViolation(g.position, g.barrierThread,
            "threadgroup_barrier that not all threads reach: " + std::to_string(g.finished) + " of " + std::to_string(g.threads) + " threads have returned", g.barrierSite);
    g.atBarrier = 0;
    g.barriers++;
    if (g.barrierFlags & 1) g.deviceBarriers++;
    for (uint32_t i = 0; i < g.simds; i++) {
        msl_simd &s = g.simdgroups[i];
        for (uint32_t m = s.at_barrier; m; m &= m - 1) g.wake(g.byThread[i * MSL_LANES + (uint32_t)__builtin_ctz(m)]);
        s.at_barrier = 0;
    }
}

void waitForLanes(msl_thread *t, const void *site, const void *frame) {
    Group &g = *(Group *)t->group;
    msl_simd &s = *t->simd;
    s.site[t->lane] = site;
    s.depth[t->lane] = (uint32_t)((uintptr_t)fiberOf(t)->top - (uintptr_t)frame);
    s.at_collective |= 1u << t->lane;
    settle(g, s);
    switchAway(g, fiberOf(t));
}

void collective(msl_thread *t, const void *site) { waitForLanes(t, site ? site : __builtin_return_address(0), __builtin_frame_address(0)); }

void simdgroupBarrier(msl_thread *t, msl_u32, const void *site) {
    msl_simd &s = *t->simd;
    uint32_t before = s.epoch;
    waitForLanes(t, site ? site : __builtin_return_address(0), __builtin_frame_address(0));
    if (s.epoch == before) s.epoch++; // the first lane to go on
}

void threadgroupBarrier(msl_thread *t, msl_u32 flags, const void *site) {
    Group &g = *(Group *)t->group;
    msl_simd &s = *t->simd;
    if (!site) site = __builtin_return_address(0);
    if (!g.atBarrier) { g.barrierSite = site; g.barrierThread = t->index; }
    else if (g.barrierSite != site)
        report("barrier divergence", std::string("threads of one threadgroup wait at different barriers: thread ") + std::to_string(t->index) + " at " + describe(site) + ", thread " +
            std::to_string(g.barrierThread) + " at " + describe(g.barrierSite) + ", kernel " + g.dispatch->kernel->name);
    g.atBarrier++;
    g.barrierFlags = flags;
    s.at_barrier |= 1u << t->lane;
    settleBarrier(g);
    settle(g, s);
    switchAway(g, fiberOf(t));
}

void accessFromKernel(const void *address, msl_u64 bytes, msl_u32 kind, const void *site) {
    msl_thread *t = msl_current;
    Group &g = *(Group *)t->group;
    uintptr_t stack = (uintptr_t)fiberOf(t)->stack;
    Access a{(uintptr_t)address, bytes, kind, site, t, stack, stack + STACK_BYTES, g.barriers, g.deviceBarriers};
    g.dispatch->checker->access(a);
}

void violationFromKernel(const char *what, const void *site) {
    msl_thread *t = msl_current;
    Group &g = *(Group *)t->group;
    if (!site) site = __builtin_return_address(0);
    if (g.dispatch->checker) g.dispatch->checker->kernelViolation(g.position, t->index, what, site);
    else report("shader", std::string(what) + ": kernel " + g.dispatch->kernel->name + " at " + describe(site));
}

const msl_runtime runtimeFunctions = {collective, simdgroupBarrier, threadgroupBarrier, accessFromKernel, violationFromKernel};

// A fiber runs threads one after another; only a thread that waits keeps its fiber.
void fiberMain(transfer_t from) {
    ((Fiber *)from.data)->context = from.fctx;
    Worker *w = current;
    Fiber *me = nullptr;
    for (Fiber *f : w->fibers) if ((uintptr_t)__builtin_frame_address(0) - (uintptr_t)f->stack < STACK_BYTES) me = f;
    Group &g = w->group;
    msl_thread *t = &me->thread;
    msl_current = t;
    while (true) {
        while (g.started < g.threads && !g.readyCount) {
            uint32_t i = g.order[g.started++];
            const uint32_t *b = g.threads_per_group;
            t->group = &g;
            t->simd = &g.simdgroups[i / MSL_LANES];
            t->index = i;
            t->lane = i % MSL_LANES;
            t->fiber = me;
            uint32_t p[3] = {i % b[0], i / b[0] % b[1], i / (b[0] * b[1])};
            for (int d = 0; d < 3; d++) {
                t->position_in_threadgroup[d] = p[d];
                t->position_in_grid[d] = g.position[d] * b[d] + p[d];
            }
            g.byThread[i] = me;
            g.dispatch->kernel->run(t);
            msl_simd &s = *t->simd;
            s.alive &= ~(1u << t->lane);
            g.finished++;
            settle(g, s);
            settleBarrier(g);
        }
        w->idle.push_back(me);
        switchAway(g, me);
        // resumed from idle to start another thread
    }
}

void abandonFibers(Worker *w) {
    for (Fiber *f : w->fibers) {
        munmap(f->stack, STACK_BYTES);
        delete f;
    }
    w->fibers.clear();
    w->idle.clear();
}

void runGroup(Worker *w, const Dispatch &d, uint64_t linear) {
    Group &g = w->group;
    g.dispatch = &d;
    g.worker = w;
    g.position[0] = (uint32_t)(linear % d.groups[0]);
    g.position[1] = (uint32_t)(linear / d.groups[0] % d.groups[1]);
    g.position[2] = (uint32_t)(linear / ((uint64_t)d.groups[0] * d.groups[1]));
    g.started = g.finished = g.atBarrier = g.readyHead = g.readyCount = 0;
    g.barriers = g.deviceBarriers = 0;
    for (uint32_t i = 0; i < g.simds; i++) {
        uint32_t lanes = g.threads - i * MSL_LANES < MSL_LANES ? g.threads - i * MSL_LANES : MSL_LANES;
        msl_simd &s = g.simdgroups[i];
        s.alive = lanes == MSL_LANES ? ~0u : (1u << lanes) - 1;
        s.at_collective = s.at_barrier = s.filling = s.epoch = 0;
    }
    if (d.seed) {
        uint64_t r = mix(d.seed ^ mix(linear));
        if (r & 1) for (uint32_t i = 0; i < g.threads; i++) g.order[i] = (uint16_t)(g.threads - 1 - i);
        else for (uint32_t i = 0; i < g.threads; i++) g.order[i] = (uint16_t)i;
        if (r & 2)
            for (uint32_t i = g.threads - 1; i > 0; i--) {
                r = mix(r);
                uint32_t j = (uint32_t)(r % (i + 1));
                std::swap(g.order[i], g.order[j]);
            }
    }
    if (d.checker) d.checker->beginGroup(g.statics);
    switchAway(g, &w->main);
    if (w->aborted) return;
    if (g.finished != g.threads) { fprintf(stderr, "metal simulator: %u of %u threads of %s are stuck\n", g.threads - g.finished, g.threads, d.kernel->name); abort(); }
}

void prepare(Worker *w, const Dispatch &d) {
    Group &g = w->group;
    memcpy(g.buffers, d.buffers, sizeof g.buffers);
    memset(g.threadgroup, 0, sizeof g.threadgroup);
    g.statics = w->statics;
    memcpy(g.groups, d.groups, sizeof g.groups);
    memcpy(g.threads_per_group, d.threads, sizeof g.threads_per_group);
    for (int i = 0; i < 3; i++) g.threads_per_grid[i] = d.groups[i] * d.threads[i];
    g.threads = d.threads[0] * d.threads[1] * d.threads[2];
    g.simds = (g.threads + MSL_LANES - 1) / MSL_LANES;
    for (uint32_t i = 0; i < g.threads; i++) g.order[i] = (uint16_t)i;
    w->aborted = false;
    w->outcome = Outcome();
}

// ---- faults: an access to unmapped GPU memory ends the dispatch with an error, as a page fault does on the device

struct sigaction previousSegv, previousBus;

void abortGroup() { // runs on the faulting fiber's stack, or on the worker's if the stack itself overflowed
    Worker *w = current;
    w->aborted = true;
    Fiber dead{};
    jump(&dead, &w->main);
    __builtin_unreachable();
}

alignas(64) char overflowStack[64][16384];

void onFault(int signal, siginfo_t *info, void *context) {
    Worker *w = current;
    uintptr_t address = (uintptr_t)info->si_addr;
    ucontext_t *u = (ucontext_t *)context;
#if defined(__x86_64__)
    uintptr_t pc = (uintptr_t)u->uc_mcontext.gregs[REG_RIP], sp = (uintptr_t)u->uc_mcontext.gregs[REG_RSP];
#else
    uintptr_t pc = u->uc_mcontext.pc, sp = u->uc_mcontext.sp;
#endif
    bool onFiber = false, overflow = false;
    if (w)
        for (Fiber *f : w->fibers) {
            if (sp - (uintptr_t)f->stack < STACK_BYTES) onFiber = true;
            if (address - (uintptr_t)f->stack < 4096) overflow = true;
        }
    if (!w || !(onFiber || overflow)) {
        struct sigaction &old = signal == SIGSEGV ? previousSegv : previousBus;
        if (old.sa_flags & SA_SIGINFO) { old.sa_sigaction(signal, info, context); return; }
        if (old.sa_handler != SIG_DFL && old.sa_handler != SIG_IGN) { old.sa_handler(signal); return; }
        sigaction(signal, &old, nullptr);
        return;
    }
    // The worker allocates while the kernel cannot hold a lock: kernels call nothing that takes one.
    w->outcome.fault = true;
    const Dispatch &d = *w->group.dispatch;
    w->outcome.message = overflow ? "kernel " + std::string(d.kernel->name) + " needs more stack than " + std::to_string(STACK_BYTES) + " bytes"
                                  : "kernel " + std::string(d.kernel->name) + " at " + describe((void *)(pc + 1)) + ": " + explainAddress(address, signal == SIGBUS || address == 0);
    static std::atomic<int> next{0};
    uintptr_t newStack = overflow ? (uintptr_t)overflowStack[next++ % 64] + 16384 - 64 : (sp & ~(uintptr_t)15) - 1024;
#if defined(__x86_64__)
    u->uc_mcontext.gregs[REG_RSP] = (greg_t)(newStack - 8);
    u->uc_mcontext.gregs[REG_RIP] = (greg_t)(uintptr_t)abortGroup;
#else
    u->uc_mcontext.sp = newStack;
    u->uc_mcontext.pc = (uintptr_t)abortGroup;
#endif
}

void installFaultHandler() {
    static std::once_flag once;
    std::call_once(once, [] {
        struct sigaction a{};
        a.sa_sigaction = onFault;
        a.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
        sigemptyset(&a.sa_mask);
        sigaction(SIGSEGV, &a, &previousSegv);
        sigaction(SIGBUS, &a, &previousBus);
    });
}

// ---- workers

struct Pool {
    std::mutex mutex;
    std::condition_variable work, done;
    const Dispatch *dispatch = nullptr;
    std::atomic<uint64_t> next{0};
    std::atomic<bool> stop{false};
    uint64_t total = 0, chunk = 1, generation = 0;
    unsigned helpers = 0, running = 0;
    Outcome outcome;

    static Worker *makeWorker() {
        Worker *w = new Worker();
        w->statics = (char *)mmap(nullptr, THREADGROUP_ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        stack_t alternate{};
        alternate.ss_size = 256 * 1024;
        alternate.ss_sp = mmap(nullptr, alternate.ss_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        sigaltstack(&alternate, nullptr);
        current = w;
        return w;
    }

    uint64_t permuted(uint64_t i) const { // a bijection of [0, total) drawn from the seed
        if (!dispatch->seed) return i;
        uint64_t r = mix(dispatch->seed);
        i = (i + r % total) % total;
        return r & 1ull << 40 ? total - 1 - i : i;
    }

    void share(Worker *w) {
        prepare(w, *dispatch);
        while (!stop) {
            uint64_t from = next.fetch_add(chunk);
            if (from >= total) break;
            uint64_t to = from + chunk < total ? from + chunk : total;
            for (uint64_t i = from; i < to && !stop; i++) {
                runGroup(w, *dispatch, permuted(i));
                if (w->aborted) {
                    abandonFibers(w);
                    stop = true;
                    std::lock_guard<std::mutex> lock(mutex);
                    if (!outcome.fault) outcome = w->outcome;
                }
            }
        }
    }

    void helper() {
        Worker *w = makeWorker();
        uint64_t seen = 0;
        std::unique_lock<std::mutex> lock(mutex);
        while (true) {
            work.wait(lock, [&] { return generation != seen; });
            seen = generation;
            lock.unlock();
            share(w);
            lock.lock();
            if (--running == 0) done.notify_all();
        }
    }

    Pool() {
        const char *wanted = getenv("COLIBRI_SIM_THREADS");
        unsigned n = wanted ? (unsigned)atoi(wanted) : std::thread::hardware_concurrency();
        for (unsigned i = 1; i < n && i < 16; i++) {
            std::thread([this] { helper(); }).detach();
            helpers++;
        }
    }

    Outcome run(const Dispatch &d) {
        static std::mutex one; // dispatches run one at a time: function constants are variables of the library
        std::lock_guard<std::mutex> serial(one);
        if (!current) makeWorker();
        dispatch = &d;
        total = (uint64_t)d.groups[0] * d.groups[1] * d.groups[2];
        chunk = total / ((helpers + 1) * 8) + 1;
        outcome = Outcome();
        next = 0;
        stop = false;
        bool alone = d.checker || total < 4 || !helpers; // the checker sees one thread at a time
        if (!alone) {
            std::lock_guard<std::mutex> lock(mutex);
            running = helpers;
            generation++;
            work.notify_all();
        }
        share(current);
        if (!alone) {
            std::unique_lock<std::mutex> lock(mutex);
            done.wait(lock, [&] { return running == 0; });
        }
        return outcome;
    }
};

Pool &pool() {
    static Pool *p = new Pool();
    return *p;
}

} // namespace

Outcome execute(const Dispatch &dispatch) {
    installFaultHandler();
    return pool().run(dispatch);
}

void place(const msl_library *library, const msl_runtime **runtime) {
    *runtime = &runtimeFunctions;
    for (msl_u32 k = 0; k < library->kernel_count; k++) {
        const msl_kernel &kernel = library->kernels[k];
        uint64_t at = 0;
        for (msl_u32 v = 0; v < kernel.variable_count; v++) {
            msl_threadgroup_variable &variable = library->variables[kernel.first_variable + v];
            variable.offset = at;
            at = (at + variable.bytes + 15) / 16 * 16 + 64; // a gap, so that running off the end of one is not the next
        }
    }
}

uint64_t threadgroupBytes(const msl_library *library, const msl_kernel *kernel) {
    uint64_t bytes = 0;
    for (msl_u32 v = 0; v < kernel->variable_count; v++) bytes += (library->variables[kernel->first_variable + v].bytes + 15) / 16 * 16;
    return bytes;
}

static std::string symbolize(const void *site);

std::string describe(const void *site) {
    static std::mutex mutex;
    static std::map<const void *, std::string> &known = *new std::map<const void *, std::string>();
    std::lock_guard<std::mutex> lock(mutex);
    auto i = known.find(site);
    return i != known.end() ? i->second : known[site] = symbolize(site);
}

static std::string symbolize(const void *site) {
    Dl_info info;
    if (!site || !dladdr(site, &info) || !info.dli_fname) return "an unknown place";
    char command[1024], line[512];
    // The return address lies behind the call; one byte back is inside it.
    snprintf(command, sizeof command, "llvm-symbolizer-19 --no-demangle --functions=none --inlines --obj='%s' %#lx 2>/dev/null || true", info.dli_fname,
             (unsigned long)((const char *)site - (const char *)info.dli_fbase - 1));
    std::string place = "an unknown place";
    if (FILE *f = popen(command, "r")) {
        while (fgets(line, sizeof line, f)) {
            std::string s(line);
            while (!s.empty() && (s.back() == '\n' || s.back() == ' ')) s.pop_back();
            // file:line:column, innermost first: the first line outside our own headers is the shader's.
            if (s.empty() || s.find("metal_stdlib") != std::string::npos || s.find("launchers") != std::string::npos || s.find("??") != std::string::npos) continue;
            size_t slash = s.rfind('/');
            if (slash != std::string::npos) s = s.substr(slash + 1);
            size_t column = s.rfind(':');
            place = column == std::string::npos ? s : s.substr(0, column);
            break;
        }
        pclose(f);
    }
    return place;
}

} // namespace sim
