#include "memory.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <iterator>
#include <map>
#include <sys/mman.h>
#include <unistd.h>

namespace sim {
namespace {

enum : uint64_t { GUARD_BYTES = 1 << 20 }; // unmapped between buffers

struct Space {
    std::mutex mutex;
    uintptr_t base = 0, next = 0;
    std::map<uintptr_t, Buffer *> buffers; // by GPU address, released ones too
    std::vector<ArgumentChunk> chunks;
    uint64_t ids = 0;
    std::atomic<uint64_t> allocated{0};
    Space() {
        void *p = mmap(nullptr, GPU_SPACE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) { perror("metal simulator: cannot reserve the GPU's address space"); abort(); }
        base = next = ((uintptr_t)p + APPLE_PAGE - 1) / APPLE_PAGE * APPLE_PAGE;
    }
    uintptr_t reserve(uint64_t bytes) { // with the lock held
        uintptr_t at = next;
        next += (bytes + APPLE_PAGE - 1) / APPLE_PAGE * APPLE_PAGE + GUARD_BYTES;
        if (next > base + GPU_SPACE_BYTES - APPLE_PAGE) { fprintf(stderr, "metal simulator: the GPU's address space is used up\n"); abort(); }
        return at;
    }
};
Space &space() {
    static Space *s = new Space();
    return *s;
}

struct Reports {
    std::mutex mutex;
    std::vector<std::string> list;
    bool quiet = false;
};
Reports &theReports() {
    static Reports *r = new Reports();
    return *r;
}

const char memoryName[] = "colibri-metal-sim";

// A part of this process's memory as /proc/self/maps tells it.
struct Segment {
    uintptr_t from, to;
    bool ours, anonymous;
    std::string path;
};

// The mappings of this process at one moment: reading them costs more than running a small kernel, so they are read once for all questions.
class Mappings {
    std::string text;
    struct Line { uintptr_t from, to; size_t name, end; }; // ascending; the name is a part of the text
    std::vector<Line> lines;

public:
    Mappings() {
        int file = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
        if (file < 0) return;
        size_t used = 0;
        for (ssize_t got = 1; got > 0; used += (size_t)got) {
            text.resize(used + 65536);
            got = read(file, text.data() + used, 65536);
            if (got < 0) got = 0;
        }
        close(file);
        text.resize(used);
        for (size_t at = 0, end; at < used; at = end + 1) { // from-to permissions offset device inode name
            end = std::min(text.find('\n', at), used);
            char *next;
            Line line{};
            line.from = strtoull(text.c_str() + at, &next, 16);
            line.to = strtoull(next + 1, &next, 16);
            line.name = (size_t)(next - text.c_str());
            line.end = end;
            lines.push_back(line);
        }
    }
    // What covers [p, p+length); empty when a part is not mapped.
    std::vector<Segment> covering(uintptr_t p, uint64_t length) const {
        std::vector<Segment> found;
        uintptr_t covered = p;
        auto line = std::upper_bound(lines.begin(), lines.end(), p, [](uintptr_t address, const Line &l) { return address < l.to; });
        for (; covered < p + length && line != lines.end() && line->from <= covered; ++line) {
            size_t at = line->name;
            for (int field = 0; field < 4 && at < line->end; field++) at = std::min(text.find(' ', at + 1), line->end);
            at = std::min(text.find_first_not_of(' ', at), line->end);
            std::string name = text.substr(at, line->end - at);
            uintptr_t end = std::min(line->to, (uintptr_t)(p + length));
            bool anonymous = name.empty() || name.compare(0, 5, "[anon") == 0 || name == "[heap]";
            found.push_back({covered, end, name.find(memoryName) != std::string::npos, anonymous, name});
            covered = end;
        }
        if (covered < p + length) found.clear();
        return found;
    }
};

// Private memory cannot be mapped a second time: its pages are moved, in place, to a shared mapping with the same contents.
bool makeShared(const Segment &s) {
    uint64_t length = s.to - s.from;
    int fd = memfd_create(memoryName, MFD_CLOEXEC);
    if (fd < 0) return false;
    bool ok = ftruncate(fd, (off_t)length) == 0;
    static const char zeros[4096] = {0};
    for (uint64_t at = 0; ok && at < length; at += sizeof zeros)
        if (memcmp((char *)s.from + at, zeros, sizeof zeros) != 0) ok = pwrite(fd, (char *)s.from + at, sizeof zeros, (off_t)at) == (ssize_t)sizeof zeros;
    ok = ok && mmap((void *)s.from, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED;
    close(fd);
    return ok;
}

} // namespace

std::string Buffer::name() {
    std::lock_guard<std::mutex> lock(labelMutex);
    return "buffer " + std::to_string(id) + (label.empty() ? "" : " '" + label + "'") + " (" + std::to_string(length) + " bytes" + (wrapped ? ", wrapped" : "") + ")";
}

static Buffer *mapBuffer(uint64_t length, char *host, bool wrapped, int fd) {
    Space &s = space();
    uint64_t mapped = (length + APPLE_PAGE - 1) / APPLE_PAGE * APPLE_PAGE;
    Buffer *b = new Buffer();
    std::lock_guard<std::mutex> lock(s.mutex);
    b->id = ++s.ids;
    b->length = length;
    b->mapped = mapped;
    b->wrapped = wrapped;
    b->host = host;
    b->gpu = s.reserve(mapped);
    void *at;
    if (wrapped) {
        // A second view of a shared mapping: old size 0 copies the mapping instead of moving it. The range may reach over several
        // earlier wraps, each a file of its own.
        at = (void *)b->gpu;
        for (const Segment &part : Mappings().covering((uintptr_t)host, mapped))
            if (mremap((void *)part.from, 0, part.to - part.from, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)(b->gpu + part.from - (uintptr_t)host)) == MAP_FAILED) at = MAP_FAILED;
    } else {
        at = mmap((void *)b->gpu, mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
    }
    if (at == MAP_FAILED) { perror("metal simulator: mapping a buffer"); abort(); }
    s.buffers[b->gpu] = b;
    s.allocated += mapped;
    return b;
}

Buffer *createBuffer(uint64_t length, std::string &error) {
    if (length == 0) { error = "a buffer of no bytes"; return nullptr; }
    uint64_t mapped = (length + APPLE_PAGE - 1) / APPLE_PAGE * APPLE_PAGE;
    int fd = memfd_create(memoryName, MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)mapped) != 0) { error = "out of memory"; if (fd >= 0) close(fd); return nullptr; }
    // The host's view ends in a guard, too.
    char *host = (char *)mmap(nullptr, mapped + APPLE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (host == MAP_FAILED || mmap(host, mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) { error = "out of memory"; close(fd); return nullptr; }
    Buffer *b = mapBuffer(length, host, false, fd);
    close(fd);
    return b;
}

Buffer *wrapBuffer(void *pointer, uint64_t length, std::string &error) {
    uintptr_t p = (uintptr_t)pointer;
    if (p == 0 || length == 0 || p % APPLE_PAGE || length % APPLE_PAGE) {
        char text[160];
        snprintf(text, sizeof text, "newBufferWithBytesNoCopy: base %p and length %lu must be multiples of the page size, %d bytes", pointer, (unsigned long)length, APPLE_PAGE);
        error = text;
        report("misaligned wrap", error);
        return nullptr;
    }
    std::vector<Segment> segments = Mappings().covering(p, length);
    if (segments.empty()) { error = "newBufferWithBytesNoCopy: part of the range is not mapped"; report("wrap of unmapped memory", error); return nullptr; }
    for (const Segment &s : segments)
        if (!s.ours && !s.anonymous) { error = "newBufferWithBytesNoCopy: the range is a mapping of " + s.path + "; a mapped file is never given to the GPU"; report("wrap of a mapped file", error); return nullptr; }
    for (const Segment &s : segments)
        if (s.anonymous && !makeShared(s)) { error = "out of memory"; return nullptr; }
    return mapBuffer(length, (char *)pointer, true, -1);
}

void destroyBuffer(Buffer *b) {
    Space &s = space();
    if (!hostMemoryGone({b}).empty()) report("memory freed under a buffer", b->name() + ": its memory was unmapped while the buffer still wrapped it; release the buffer first");
    std::lock_guard<std::mutex> lock(s.mutex);
    b->live = false;
    mmap((void *)b->gpu, b->mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    if (!b->wrapped) munmap(b->host, b->mapped + APPLE_PAGE);
    s.allocated -= b->mapped;
}

uint64_t allocatedBytes() { return space().allocated; }
uintptr_t gpuBase() { return space().base; }
bool isGpuAddress(uintptr_t a) { return a - space().base < GPU_SPACE_BYTES; }

Buffer *bufferBefore(uintptr_t address) {
    Space &s = space();
    std::lock_guard<std::mutex> lock(s.mutex);
    auto i = s.buffers.upper_bound(address);
    return i == s.buffers.begin() ? nullptr : std::prev(i)->second;
}

Buffer *bufferAt(uintptr_t address) {
    Buffer *b = bufferBefore(address);
    return b && address - b->gpu < b->mapped ? b : nullptr;
}

std::vector<Buffer *> hostMemoryGone(const std::vector<Buffer *> &buffers) {
    std::vector<Buffer *> wrapped, gone;
    std::copy_if(buffers.begin(), buffers.end(), std::back_inserter(wrapped), [](const Buffer *b) { return b->wrapped; });
    if (wrapped.empty()) return gone;
    const Mappings mappings;
    for (Buffer *b : wrapped) {
        std::vector<Segment> segments = mappings.covering((uintptr_t)b->host, b->length);
        if (segments.empty() || std::any_of(segments.begin(), segments.end(), [](const Segment &s) { return !s.ours; })) gone.push_back(b);
    }
    return gone;
}

std::string explainAddress(uintptr_t address, bool notCanonical) {
    char text[64];
    snprintf(text, sizeof text, "%#lx", (unsigned long)address);
    std::string at = std::string("address ") + text;
    if (notCanonical) return "access through a null, wild or misaligned address (" + at + ")";
    if (!isGpuAddress(address)) {
        Space &s = space();
        std::lock_guard<std::mutex> lock(s.mutex);
        for (auto &entry : s.buffers) {
            Buffer *b = entry.second;
            if (b->live && address - (uintptr_t)b->host < b->mapped) return at + " is the host's pointer into " + b->name() + ", not its gpuAddress";
        }
        return at + " is not GPU memory: no registered range holds it";
    }
    Buffer *b = bufferBefore(address);
    if (!b) return at + " lies before every buffer";
    uint64_t offset = address - b->gpu;
    if (offset >= b->length)
        return at + " lies " + std::to_string(offset - b->length) + " bytes past the end of " + b->name() + (b->live ? "" : ", which has been released");
    return at + " is offset " + std::to_string(offset) + " of " + b->name() + (b->live ? "" : ", which has been released");
}

ArgumentChunk takeChunk() {
    Space &s = space();
    std::lock_guard<std::mutex> lock(s.mutex);
    if (!s.chunks.empty()) {
        ArgumentChunk c = s.chunks.back();
        s.chunks.pop_back();
        c.used = 0;
        return c;
    }
    uintptr_t at = s.reserve(ARGUMENT_CHUNK_BYTES);
    if (mmap((void *)at, ARGUMENT_CHUNK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) { perror("metal simulator: arguments"); abort(); }
    return {(char *)at, 0};
}

void giveChunk(ArgumentChunk chunk) {
    Space &s = space();
    std::lock_guard<std::mutex> lock(s.mutex);
    s.chunks.push_back(chunk);
}

void report(const std::string &rule, const std::string &text) {
    Reports &r = theReports();
    std::lock_guard<std::mutex> lock(r.mutex);
    r.list.push_back(rule + ": " + text);
    if (!r.quiet) fprintf(stderr, "metal validator: %s: %s\n", rule.c_str(), text.c_str());
}

std::vector<std::string> reports() {
    Reports &r = theReports();
    std::lock_guard<std::mutex> lock(r.mutex);
    return r.list;
}

void clearReports() {
    Reports &r = theReports();
    std::lock_guard<std::mutex> lock(r.mutex);
    r.list.clear();
}

void collectReports(bool quietly) {
    Reports &r = theReports();
    std::lock_guard<std::mutex> lock(r.mutex);
    r.quiet = quietly;
}

} // namespace sim
