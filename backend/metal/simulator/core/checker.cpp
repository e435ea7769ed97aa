#include "checker.h"
#include "engine.h"
#include "executor.h"

#include <algorithm>
#include <cstring>
#include <dlfcn.h>
#include <link.h>
#include <map>
#include <mutex>
#include <sys/mman.h>
#include <unordered_map>

namespace sim {
namespace {

// ---- who wrote and who read device memory: a cell for every four bytes of pages that were ever written

struct Cell {
    uint64_t writer, reader;        // group << 12 | thread
    uint32_t writeSerial, readSerial; // dispatch; 0: none
    uint32_t writeEpoch, readEpoch;   // device barriers of the group, simdgroup_barriers of the SIMD-group
    uint32_t writeSimdEpoch, readSimdEpoch;
    uint8_t writeBytes, readBytes;    // which of the four
    bool writeAtomic, readAtomic, readers; // readers: more than one thread read
};
enum : uint64_t { PAGE = 4096, CELLS = PAGE / 4, PAGES = GPU_SPACE_BYTES / PAGE };

Cell **pages() {
    static Cell **table = [] {
        void *p = mmap(nullptr, PAGES * sizeof(Cell *), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) { perror("metal simulator: shadow of device memory"); abort(); }
        return (Cell **)p;
    }();
    return table;
}

std::mutex cellsMutex; // a buffer may be released while a kernel runs

// Dispatches that later ones may overlap. A serial that is not here is ordered before everything that runs now.
struct Ran {
    uint64_t buffer;
    uint32_t encoder, phase;
    std::vector<uint64_t> unfinished;
    std::string name; // "kernel of command buffer 3"
};
std::unordered_map<uint32_t, Ran> ran;

// ---- who wrote and who read threadgroup memory since the last barrier: an entry for every byte

struct Byte {
    uint32_t generation; // of the threadgroup; another one: not written, not read
    uint32_t writeBarrier, writeEpoch, readBarrier, readEpoch;
    uint16_t writer, reader;
    bool written, writeAtomic, readAtomic;
    uint8_t readers; // 0, 1: `reader`; 2: several lanes of its SIMD-group; 3: several SIMD-groups
};
enum { SHADOW_BYTES = 128 * 1024 };
Byte *shadow() {
    static Byte *s = (Byte *)calloc(SHADOW_BYTES, sizeof(Byte));
    return s;
}
uint32_t generation;

struct Image { uintptr_t from = 0, to = 0; };
Image imageOf(const msl_library *library) {
    static std::map<const msl_library *, Image> known;
    Image &image = known[library];
    if (image.to) return image;
    Dl_info info;
    if (!dladdr(library, &info)) return image;
    struct Search { uintptr_t base; Image *image; } search{(uintptr_t)info.dli_fbase, &image};
    dl_iterate_phdr([](dl_phdr_info *object, size_t, void *data) {
        Search *s = (Search *)data;
        uintptr_t from = ~(uintptr_t)0, to = 0;
        for (int i = 0; i < object->dlpi_phnum; i++) {
            const auto &h = object->dlpi_phdr[i];
            if (h.p_type != PT_LOAD) continue;
            from = std::min(from, (uintptr_t)(object->dlpi_addr + h.p_vaddr));
            to = std::max(to, (uintptr_t)(object->dlpi_addr + h.p_vaddr + h.p_memsz));
        }
        if (s->base < from || s->base >= to) return 0;
        *s->image = {from, to};
        return 1;
    }, &search);
    return image;
}

struct Range {
    uintptr_t from, to;
    Buffer *buffer; // null: an argument given by setBytes
    bool writable;
};

struct Strict : Checker {
    CommandBuffer &work;
    const Command &command;
    std::vector<Range> ranges; // what this dispatch may touch, by address
    size_t recent = 0;
    Image image;
    char *threadgroup = nullptr;
    std::set<std::pair<std::string, const void *>> seen;

    Strict(CommandBuffer &b, const Command &c) : work(b), command(c), image(imageOf(c.pipeline->compiled.code)) {
        std::map<Buffer *, bool> resident;
        for (size_t i = 0; i < work.sets.size(); i++) {
            std::lock_guard<std::mutex> lock(work.sets[i]->mutex);
            // Resident when the command buffer was committed, and still.
            for (Buffer *buffer : work.resident[i]) if (work.sets[i]->committed.count(buffer)) resident[buffer] = true;
        }
        const EncoderState &e = work.encoders[command.encoder];
        for (size_t i = 0; i < command.resources; i++) {
            bool &writable = resident[e.resources[i].first];
            writable = writable || (e.resources[i].second & 2) != 0;
        }
        for (auto &entry : resident) if (entry.first->live) ranges.push_back({entry.first->gpu, entry.first->gpu + entry.first->length, entry.first, entry.second});
        for (auto &a : command.arguments) if (a.address) ranges.push_back({(uintptr_t)a.address, (uintptr_t)a.address + a.length, nullptr, false});
        std::sort(ranges.begin(), ranges.end(), [](const Range &x, const Range &y) { return x.from < y.from; });
        std::vector<Buffer *> wrapped;
        for (auto &entry : resident) wrapped.push_back(entry.first);
        for (Buffer *gone : hostMemoryGone(wrapped)) violation("memory freed under a buffer", gone->name() + ": its memory was unmapped while the buffer still wrapped it", nullptr, nullptr);
        // Forget dispatches that are ordered before this one and everything after it.
        for (auto i = ran.begin(); i != ran.end();) {
            bool needed = i->second.buffer == work.id || std::find(work.unfinished.begin(), work.unfinished.end(), i->second.buffer) != work.unfinished.end() || bufferInFlight(i->second.buffer);
            i = needed ? std::next(i) : ran.erase(i);
        }
        ran[(uint32_t)command.serial] = {work.id, command.encoder, command.phase, work.unfinished, std::string(command.pipeline->kernel->name) + " of " + work.name()};
    }

    void violation(const char *rule, const std::string &what, const Access *a, const void *site) {
        if (!seen.insert({rule, site}).second) return;
        std::string where = std::string("kernel ") + command.pipeline->kernel->name + " of " + work.name();
        if (site) where += " at " + describe(site);
        if (a) where += ", threadgroup " + place(a->thread->group->position) + " thread " + std::to_string(a->thread->index);
        report(rule, what + " [" + where + "]");
    }
    static std::string place(const msl_u32 *p) { return "(" + std::to_string(p[0]) + ", " + std::to_string(p[1]) + ", " + std::to_string(p[2]) + ")"; }

    void kernelViolation(const uint32_t group[3], uint32_t thread, const std::string &what, const void *site) override {
        const char *rule = what.find("barrier") != std::string::npos ? "barrier divergence" : "shader";
        if (!seen.insert({rule + what, site}).second) return;
        report(rule, what + " [kernel " + command.pipeline->kernel->name + " of " + work.name() + " at " + describe(site) + ", threadgroup " + place(group) + " thread " + std::to_string(thread) + "]");
    }

    void beginGroup(char *memory) override {
        threadgroup = memory;
        generation++;
    }

    void access(const Access &a) override {
        if (a.address - a.stackFrom < a.stackTo - a.stackFrom) return;
        if (a.address - (uintptr_t)threadgroup < THREADGROUP_ARENA_BYTES) return threadgroupAccess(a);
        if (isGpuAddress(a.address)) return deviceAccess(a);
        if (a.address - image.from < image.to - image.from) {
            if (a.kind & MSL_WRITE) violation("write to constant memory", "a store to a program-scope constant", &a, a.site);
            return;
        }
        violation("access outside GPU memory", explainAddress(a.address, false), &a, a.site);
    }

    // ---- threadgroup memory

    void threadgroupAccess(const Access &a) {
        uint64_t at = a.address - (uintptr_t)threadgroup;
        const msl_kernel &kernel = *command.pipeline->kernel;
        const msl_threadgroup_variable *variable = nullptr;
        for (msl_u32 v = 0; v < kernel.variable_count; v++) {
            const msl_threadgroup_variable &candidate = command.pipeline->compiled.code->variables[kernel.first_variable + v];
            if (at >= candidate.offset) variable = &candidate;
        }
        if (!variable || at + a.bytes > variable->offset + variable->bytes || at + a.bytes > SHADOW_BYTES) {
            violation("out of bounds", "access of " + std::to_string(a.bytes) + " bytes at offset " + std::to_string(variable ? at - variable->offset : at) + " of threadgroup variable " +
                      (variable ? variable->name : "?") + ", which has " + std::to_string(variable ? variable->bytes : 0) + " bytes", &a, a.site);
            return;
        }
        uint16_t me = (uint16_t)a.thread->index, simd = me / MSL_LANES;
        uint32_t epoch = a.thread->simd->epoch;
        bool write = a.kind & MSL_WRITE, atomic = a.kind & MSL_ATOMIC;
        for (uint64_t i = at; i < at + a.bytes; i++) {
            Byte &b = shadow()[i];
            if (b.generation != generation) { b = Byte(); b.generation = generation; }
            auto name = [&] { return std::string("threadgroup variable ") + variable->name + ", byte " + std::to_string(i - variable->offset); };
            if ((!write || atomic) && !b.written)
                return violation("uninitialised read", name() + " is read before anything was written to it", &a, a.site);
            bool afterWrite = b.writer == me || b.writeBarrier != a.barriers || (b.writer / MSL_LANES == simd && b.writeEpoch != epoch);
            if (b.written && !afterWrite && !(atomic && b.writeAtomic))
                return violation("data race", name() + (write ? " is written by two threads" : " is read") + " without a barrier after thread " + std::to_string(b.writer) + " wrote it", &a, a.site);
            if (write && b.readers && b.readBarrier == a.barriers && !(atomic && b.readAtomic)) {
                bool sameSimd = b.reader / MSL_LANES == simd;
                bool ordered = b.readers == 1 ? b.reader == me || (sameSimd && b.readEpoch != epoch) : b.readers == 2 ? sameSimd && b.readEpoch != epoch : false;
                if (!ordered) return violation("data race", name() + " is written without a barrier after thread " + std::to_string(b.reader) + " read it", &a, a.site);
            }
            if (write) {
                b.written = true;
                b.writer = me;
                b.writeBarrier = a.barriers;
                b.writeEpoch = epoch;
                b.writeAtomic = atomic;
            } else {
                bool same = b.readers && b.readBarrier == a.barriers;
                if (!same || (b.readers < 3 && b.reader / MSL_LANES == simd && b.readEpoch != epoch)) b.readers = 1;
                else if (b.reader / MSL_LANES != simd) b.readers = 3;
                else if (b.reader != me && b.readers == 1) b.readers = 2;
                b.reader = me;
                b.readBarrier = a.barriers;
                b.readEpoch = epoch;
                b.readAtomic = atomic;
            }
        }
    }

    // ---- device memory

    const Range *rangeOf(uintptr_t address) {
        if (recent < ranges.size() && address - ranges[recent].from < ranges[recent].to - ranges[recent].from) return &ranges[recent];
        auto i = std::upper_bound(ranges.begin(), ranges.end(), address, [](uintptr_t x, const Range &r) { return x < r.from; });
        if (i == ranges.begin()) return nullptr;
        --i;
        if (address >= i->to) return nullptr;
        recent = (size_t)(i - ranges.begin());
        return &*i;
    }

    void deviceAccess(const Access &a) {
        const Range *r = rangeOf(a.address);
        if (!r || a.address + a.bytes > r->to) return outside(a, r);
        if ((a.kind & MSL_WRITE) && !r->writable) {
            if (!r->buffer) return violation("write to constant memory", "a store to an argument given by setBytes", &a, a.site);
            return violation("resource usage", r->buffer->name() + " is written, but useResource: declared it for reading only", &a, a.site);
        }
        if (r->buffer) order(a, r->buffer);
    }

    void outside(const Access &a, const Range *r) {
        std::string access = std::string((a.kind & MSL_WRITE) ? "store" : "load") + " of " + std::to_string(a.bytes) + " bytes";
        if (r && !r->buffer) return violation("out of bounds", access + " at offset " + std::to_string(a.address - r->from) + " of an argument of " + std::to_string(r->to - r->from) + " bytes", &a, a.site);
        for (auto &argument : command.arguments)
            if (argument.address && a.address - (uintptr_t)argument.address < argument.length + 64)
                return violation("out of bounds", access + " " + std::to_string(a.address - (uintptr_t)argument.address - argument.length) + " bytes past the end of an argument of " + std::to_string(argument.length) + " bytes", &a, a.site);
        Buffer *b = bufferBefore(a.address);
        if (!b) return violation("access outside GPU memory", explainAddress(a.address, false), &a, a.site);
        if (!b->live) return violation("released buffer", access + ": " + explainAddress(a.address, false), &a, a.site);
        if (a.address + a.bytes > b->gpu + b->length) {
            uint64_t end = a.address + a.bytes - b->gpu;
            return violation("out of bounds", access + " at offset " + std::to_string(a.address - b->gpu) + " of " + b->name() + ": " + std::to_string(end - b->length) + " bytes too far", &a, a.site);
        }
        std::string why = "it is neither in a residency set of the queue nor declared with useResource:";
        for (size_t i = 0; i < work.sets.size(); i++) {
            ResidencySet &s = *work.sets[i];
            std::lock_guard<std::mutex> lock(s.mutex);
            if (work.resident[i].count(b)) why = s.name() + " held it when the command buffer was committed, and it was removed while the command buffer was in flight";
            else if (s.committed.count(b)) why = "it was added to " + s.name() + " after the command buffer was committed";
            else if (s.isStaged(b)) why = "it was added to " + s.name() + ", but the set was not committed";
        }
        violation("not resident", access + " at offset " + std::to_string(a.address - b->gpu) + " of " + b->name() + ": " + why, &a, a.site);
    }

    // Whether the dispatch `serial` has finished before this one may start.
    bool before(uint32_t serial, std::string &name) const {
        auto i = ran.find(serial);
        if (i == ran.end()) return true;
        const Ran &other = i->second;
        name = other.name;
        if (other.buffer == work.id) return other.encoder == command.encoder && other.phase != command.phase;
        return std::find(work.unfinished.begin(), work.unfinished.end(), other.buffer) == work.unfinished.end() &&
               std::find(other.unfinished.begin(), other.unfinished.end(), work.id) == other.unfinished.end();
    }

    void order(const Access &a, Buffer *buffer) {
        std::lock_guard<std::mutex> lock(cellsMutex);
        bool write = a.kind & MSL_WRITE, atomic = a.kind & MSL_ATOMIC;
        const msl_group &g = *a.thread->group;
        uint64_t group = g.position[0] + (uint64_t)g.groups[0] * (g.position[1] + (uint64_t)g.groups[1] * g.position[2]);
        uint64_t me = group << 12 | a.thread->index;
        uint32_t serial = (uint32_t)command.serial, simdEpoch = a.thread->simd->epoch;
        for (uintptr_t at = a.address; at < a.address + a.bytes; at = (at & ~(uintptr_t)3) + 4) {
            uint64_t offset = at - gpuBase();
            Cell *&page = pages()[offset / PAGE];
            if (!page) {
                if (!write) { at |= PAGE - 4; continue; } // nobody has written here: nothing to compare with
                page = (Cell *)calloc(CELLS, sizeof(Cell));
            }
            Cell &c = page[offset % PAGE / 4];
            uint8_t bytes = 0;
            for (uintptr_t i = at; i < a.address + a.bytes && i < (at & ~(uintptr_t)3) + 4; i++) bytes |= (uint8_t)(1 << (i & 3));
            auto conflict = [&](uint32_t other, uint64_t who, uint32_t epoch, uint32_t otherSimdEpoch, const char *did) {
                std::string name;
                if (other != serial) {
                    if (before(other, name)) return false;
                    violation("unordered access", buffer->name() + " offset " + std::to_string(at - buffer->gpu) + ": " + (write ? "written" : "read") + " although " + name + " " + did +
                              " it and nothing orders the two (barrier in one encoder, or completion before commit)", &a, a.site);
                    return true;
                }
                if (who == me) return false;
                if (who >> 12 != group) {
                    violation("data race", buffer->name() + " offset " + std::to_string(at - buffer->gpu) + ": " + (write ? "written" : "read") + " by threadgroup " + std::to_string(group) +
                              " although threadgroup " + std::to_string(who >> 12) + " of the same dispatch " + did + " it", &a, a.site);
                    return true;
                }
                bool sameSimd = (who & 4095) / MSL_LANES == a.thread->index / MSL_LANES;
                if (epoch != a.deviceBarriers || (sameSimd && otherSimdEpoch != simdEpoch)) return false;
                violation("data race", buffer->name() + " offset " + std::to_string(at - buffer->gpu) + ": " + (write ? "written" : "read") + " although thread " + std::to_string(who & 4095) + " of the same threadgroup " +
                          did + " it and no barrier with mem_device lies between", &a, a.site);
                return true;
            };
            if (c.writeSerial && (c.writeBytes & bytes) && !(atomic && c.writeAtomic) && conflict(c.writeSerial, c.writer, c.writeEpoch, c.writeSimdEpoch, "wrote")) return;
            if (write && c.readSerial && (c.readBytes & bytes) && !(atomic && c.readAtomic)) {
                // Of several readers one is kept; another thread's read conflicts as well.
                uint64_t who = c.readers && c.readSerial == serial && c.reader == me ? me ^ 1 : c.reader;
                if (conflict(c.readSerial, who, c.readEpoch, c.readSimdEpoch, "read")) return;
            }
            if (write) {
                bool same = c.writeSerial == serial && c.writer == me && c.writeEpoch == a.deviceBarriers;
                c.writeBytes = same ? c.writeBytes | bytes : bytes;
                c.writeSerial = serial;
                c.writer = me;
                c.writeEpoch = a.deviceBarriers;
                c.writeSimdEpoch = simdEpoch;
                c.writeAtomic = atomic;
            } else {
                bool same = c.readSerial == serial && c.readEpoch == a.deviceBarriers;
                c.readers = same && (c.readers || c.reader != me);
                c.readBytes = same ? c.readBytes | bytes : bytes;
                c.readSerial = serial;
                c.reader = me;
                c.readEpoch = a.deviceBarriers;
                c.readSimdEpoch = simdEpoch;
                c.readAtomic = atomic;
            }
        }
    }
};

} // namespace

std::unique_ptr<Checker> makeChecker(CommandBuffer &work, const Command &command) { return std::make_unique<Strict>(work, command); }

void forgetAccesses(Buffer *b) {
    if (!options().strict) return;
    std::lock_guard<std::mutex> lock(cellsMutex);
    for (uint64_t at = b->gpu - gpuBase(); at < b->gpu - gpuBase() + b->mapped; at += PAGE) {
        free(pages()[at / PAGE]);
        pages()[at / PAGE] = nullptr;
    }
}

} // namespace sim
