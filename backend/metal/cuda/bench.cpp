// Runs the shaders' PTX on an NVIDIA GPU: checks products against sums in double precision, and prints bytes per second beside the GPU's
// own copy rate. The driver is loaded at run time, so this builds anywhere. usage: bench <folder with *.ptx> [encoding …]
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <vector>

#define COLI_HOST 1
#include "../shaders/abi.h"

// ---- the driver interface, as far as it is used

typedef int Status;
typedef unsigned long long Address;
typedef struct Opaque *Handle;
static void *library;
template <class F> static F symbol(const char *name) {
    void *at = dlsym(library, name);
    if (!at) { fprintf(stderr, "the driver has no %s\n", name); exit(1); }
    return (F)at;
}
static void check(Status status, const char *what) {
    if (status != 0) { fprintf(stderr, "%s: CUDA error %d\n", what, status); exit(1); }
}
static Status (*launchKernel)(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void **, void **);
static Status (*allocate)(Address *, size_t);
static Status (*toDevice)(Address, const void *, size_t);
static Status (*toHost)(void *, Address, size_t);
static Status (*copyAsync)(Address, Address, size_t, Handle);
static Status (*eventRecord)(Handle, Handle);
static Status (*eventSynchronise)(Handle);
static Status (*eventElapsed)(float *, Handle, Handle);
static Status (*beginCapture)(Handle, int);
static Status (*endCapture)(Handle, Handle *);
static Status (*instantiate)(Handle *, Handle, unsigned long long);
static Status (*graphLaunch)(Handle, Handle);
static Status (*waitEvent)(Handle, Handle, unsigned);
static Status (*attribute)(int *, int, Handle);
static Status (*synchronise)();
static Status (*release)(Address);
static Status (*moduleLoad)(Handle *, const void *);
static Status (*moduleFunction)(Handle *, Handle, const char *);
static Handle stream, side, eventBegin, eventEnd, forked, joined;

static void openDriver() {
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) { fprintf(stderr, "no NVIDIA driver here: %s\n", dlerror()); exit(1); }
    launchKernel = symbol<decltype(launchKernel)>("cuLaunchKernel");
    allocate = symbol<decltype(allocate)>("cuMemAlloc_v2");
    toDevice = symbol<decltype(toDevice)>("cuMemcpyHtoD_v2");
    toHost = symbol<decltype(toHost)>("cuMemcpyDtoH_v2");
    copyAsync = symbol<decltype(copyAsync)>("cuMemcpyDtoDAsync_v2");
    eventRecord = symbol<decltype(eventRecord)>("cuEventRecord");
    eventSynchronise = symbol<decltype(eventSynchronise)>("cuEventSynchronize");
    eventElapsed = symbol<decltype(eventElapsed)>("cuEventElapsedTime");
    beginCapture = symbol<decltype(beginCapture)>("cuStreamBeginCapture_v2");
    endCapture = symbol<decltype(endCapture)>("cuStreamEndCapture");
    instantiate = symbol<decltype(instantiate)>("cuGraphInstantiateWithFlags");
    graphLaunch = symbol<decltype(graphLaunch)>("cuGraphLaunch");
    waitEvent = symbol<decltype(waitEvent)>("cuStreamWaitEvent");
    attribute = symbol<decltype(attribute)>("cuFuncGetAttribute");
    synchronise = symbol<decltype(synchronise)>("cuCtxSynchronize");
    release = symbol<decltype(release)>("cuMemFree_v2");
    moduleLoad = symbol<decltype(moduleLoad)>("cuModuleLoadData");
    moduleFunction = symbol<decltype(moduleFunction)>("cuModuleGetFunction");
    check(symbol<Status (*)(unsigned)>("cuInit")(0), "init");
    int device;
    Handle context;
    char name[128];
    check(symbol<Status (*)(int *, int)>("cuDeviceGet")(&device, 0), "device");
    check(symbol<Status (*)(char *, int, int)>("cuDeviceGetName")(name, sizeof name, device), "name");
    check(symbol<Status (*)(Handle *, int)>("cuDevicePrimaryCtxRetain")(&context, device), "context");
    check(symbol<Status (*)(Handle)>("cuCtxSetCurrent")(context), "context");
    auto newStream = symbol<Status (*)(Handle *, unsigned)>("cuStreamCreate");
    check(newStream(&stream, 1), "stream");
    check(newStream(&side, 1), "stream");
    auto newEvent = symbol<Status (*)(Handle *, unsigned)>("cuEventCreate");
    check(newEvent(&eventBegin, 0), "event");
    check(newEvent(&eventEnd, 0), "event");
    check(newEvent(&forked, 2), "event"); // 2: without timing
    check(newEvent(&joined, 2), "event");
    printf("device: %s\n", name);
}

static std::vector<Address> rooms;
static Address room(size_t bytes) {
    Address at;
    check(allocate(&at, bytes), "memory");
    rooms.push_back(at);
    return at;
}
template <class T> static Address upload(const std::vector<T> &v) {
    Address at = room(v.size() * sizeof(T));
    check(toDevice(at, v.data(), v.size() * sizeof(T)), "upload");
    return at;
}

struct Kernels {
    Handle module;
    Handle function(const char *name) const {
        Handle f;
        check(moduleFunction(&f, module, (std::string(name) + "_entry").c_str()), name);
        return f;
    }
};
static Kernels load(const std::string &path) {
    std::ifstream in(path);
    std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    if (text.empty()) { fprintf(stderr, "%s is missing\n", path.c_str()); exit(1); }
    Kernels k;
    check(moduleLoad(&k.module, text.c_str()), path.c_str());
    return k;
}
template <class P> static void launch(Handle f, const P &p, unsigned x, unsigned y, unsigned threads, Handle on = stream) {
    void *arguments[] = {(void *)&p};
    check(launchKernel(f, x, y, 1, threads, 1, 1, 0, on, arguments, nullptr), "launch");
}
static unsigned up(unsigned a, unsigned b) { return (a + b - 1) / b; }

// ---- weights

static std::mt19937_64 rng(20260105);

static double fp8(uint8_t b) {
    int e = b >> 3 & 15, m = b & 7;
    double v = e ? std::ldexp(1 + m / 8.0, e - 7) : std::ldexp(m / 8.0, -6);
    return b & 128 ? -v : v;
}

struct Weight {
    Matrix matrix;
    std::vector<uint8_t> data;
    std::vector<float> scales;
    uint32_t format;
    double value(uint32_t row, uint32_t c) const {
        const uint8_t *d = data.data() + (size_t)row * matrix.row_bytes;
        switch (format) {
        case FORMAT_INT4_ROW:
        case FORMAT_INT4_GROUP: return ((d[c / 2] >> 4 * (c % 2) & 15) - 8) * (double)scales[(size_t)row * matrix.row_groups + c / (format == FORMAT_INT4_ROW ? matrix.columns : 64)];
        case FORMAT_INT2_ROW: return ((d[c / 4] >> 2 * (c % 4) & 3) - 2) * (double)scales[row];
        case FORMAT_BF16: { uint32_t bits = (uint32_t)(d[2 * c] | d[2 * c + 1] << 8) << 16; float f; memcpy(&f, &bits, 4); return f; }
        case FORMAT_F16: {
            unsigned bits = d[2 * c] | d[2 * c + 1] << 8, e = bits >> 10 & 31, m = bits & 1023;
            double v = e ? std::ldexp(1 + m / 1024.0, (int)e - 15) : std::ldexp(m / 1024.0, -14);
            return bits & 0x8000 ? -v : v;
        }
        case FORMAT_INT8_ROW: return (int8_t)d[c] * (double)scales[row];
        case FORMAT_INT3_GROUP64: {
            const uint8_t *g = d + c / 64 * 24;
            unsigned k = c % 64, q = (g[k / 4] >> 2 * (k % 4) & 3) | (g[16 + k / 8] >> k % 8 & 1) << 2;
            return ((int)q - 4) * (double)scales[(size_t)row * matrix.row_groups + c / 64];
        }
        case FORMAT_FP8_BLOCK128: return fp8(d[c]) * (double)scales[(size_t)(row / 128) * matrix.row_groups + c / 128];
        default: { float f; memcpy(&f, d + 4 * (size_t)c, 4); return f; }
        }
    }
    size_t bytes() const { return data.size() + 4 * scales.size(); }
};

static Weight weight(uint32_t format, uint32_t rows, uint32_t columns) {
    Weight w;
    w.format = format;
    w.matrix.rows = rows;
    w.matrix.columns = columns;
    uint32_t scaleRows = rows;
    switch (format) {
    case FORMAT_INT4_GROUP: w.matrix.row_bytes = columns / 2, w.matrix.row_groups = columns / 64; break;
    case FORMAT_INT4_ROW: w.matrix.row_bytes = columns / 2, w.matrix.row_groups = 1; break;
    case FORMAT_INT2_ROW: w.matrix.row_bytes = columns / 4, w.matrix.row_groups = 1; break;
    case FORMAT_BF16:
    case FORMAT_F16: w.matrix.row_bytes = columns * 2, w.matrix.row_groups = 0; break;
    case FORMAT_INT8_ROW: w.matrix.row_bytes = columns, w.matrix.row_groups = 1; break;
    case FORMAT_INT3_GROUP64: w.matrix.row_bytes = columns / 64 * 24, w.matrix.row_groups = columns / 64; break;
    case FORMAT_FP8_BLOCK128: w.matrix.row_bytes = columns, w.matrix.row_groups = columns / 128, scaleRows = up(rows, 128); break;
    default: w.matrix.row_bytes = columns * 4, w.matrix.row_groups = 0;
    }
    w.data.resize((size_t)rows * w.matrix.row_bytes);
    w.scales.resize((size_t)scaleRows * w.matrix.row_groups);
    for (size_t i = 0; i + 8 <= w.data.size(); i += 8) {
        uint64_t bits = rng();
        memcpy(&w.data[i], &bits, 8);
    }
    if (format == FORMAT_F32) for (size_t i = 0; i < w.data.size(); i += 4) { float f = (float)(rng() % 2001) / 1000 - 1; memcpy(&w.data[i], &f, 4); }
    if (format == FORMAT_FP8_BLOCK128) for (auto &b : w.data) if ((b & 127) == 127) b ^= 1;
    if (format == FORMAT_BF16 || format == FORMAT_F16) { // exponents around one
        for (size_t i = 1; i < w.data.size(); i += 2) w.data[i] = (w.data[i] & 0x87) | (format == FORMAT_BF16 ? 0x38 : 0x30);
    }
    for (auto &s : w.scales) s = (0.5f + (float)(rng() % 1000) / 1000) / 64;
    w.matrix.data = upload(w.data);
    w.matrix.scales = w.scales.empty() ? 0 : upload(w.scales);
    return w;
}

static std::vector<float> numbers(size_t n) {
    std::vector<float> v(n);
    for (auto &x : v) x = (float)(rng() % 20001) / 10000 - 1;
    return v;
}

// The same numbers at another address.
static Weight again(const Weight &of) {
    Weight w = of;
    w.matrix.data = upload(w.data);
    if (!w.scales.empty()) w.matrix.scales = upload(w.scales);
    return w;
}

static bool failed = false;
static void compare(const std::string &what, const std::vector<double> &want, const std::vector<double> &got) {
    double size = 0, worst = 0;
    for (size_t i = 0; i < want.size(); i++) {
        const double d = std::fabs(want[i] - got[i]);
        size = std::fmax(size, std::fabs(want[i]));
        worst = d <= 1e30 ? std::fmax(worst, d) : 1e30; // NaN fails
    }
    const bool good = worst / size < 1e-4;
    failed |= !good;
    printf("    %-40s differs by %.1e of the largest%s\n", what.c_str(), worst / size, good ? "" : "  FAILED");
}

// Seconds of `work`, captured once: the median of 20 replays.
template <class F> static double seconds(F work) {
    Handle graph, executable;
    check(beginCapture(stream, 2), "capture");
    work();
    check(endCapture(stream, &graph), "capture");
    check(instantiate(&executable, graph, 0), "graph");
    std::vector<float> times;
    for (int i = 0; i < 25; i++) {
        float milliseconds;
        check(eventRecord(eventBegin, stream), "event");
        check(graphLaunch(executable, stream), "launch");
        check(eventRecord(eventEnd, stream), "event");
        check(eventSynchronise(eventEnd), "run");
        check(eventElapsed(&milliseconds, eventBegin, eventEnd), "time");
        if (i >= 5) times.push_back(milliseconds);
    }
    std::sort(times.begin(), times.end());
    return times[10] / 1e3;
}

// The best of eight copies of 4 GiB, read and written bytes counted. (Captured in a graph the driver copies at two thirds of that.)
static double copyRate() {
    const size_t bytes = (size_t)4 << 30;
    Address from = room(bytes), to = room(bytes);
    double best = 0;
    for (int i = 0; i < 8; i++) {
        float milliseconds;
        check(eventRecord(eventBegin, stream), "event");
        check(copyAsync(to, from, bytes, stream), "copy");
        check(eventRecord(eventEnd, stream), "event");
        check(eventSynchronise(eventEnd), "copy");
        check(eventElapsed(&milliseconds, eventBegin, eventEnd), "time");
        best = std::fmax(best, 2e3 * bytes / milliseconds);
    }
    return best;
}

struct Encoding {
    const char *name;
    uint32_t id, group_units;
};
static const Encoding encodings[] = {{"int4-g64", FORMAT_INT4_GROUP, 8}, {"int8-row", FORMAT_INT8_ROW, 1}, {"int4-row", FORMAT_INT4_ROW, 1}, {"int3-g64", FORMAT_INT3_GROUP64, 1}, {"int2-row", FORMAT_INT2_ROW, 1},
                                     {"fp8", FORMAT_FP8_BLOCK128, 1}, {"bf16", FORMAT_BF16, 1}, {"f16", FORMAT_F16, 1}, {"f32", FORMAT_F32, 1}};

// GLM-5.2: 8 experts of 6144 × 2048; a layer's projections in the phases in which a layer runs them.
static constexpr uint32_t HIDDEN = 6144, INNER = 2048, EXPERTS = 8, SETS = 6, LAYERS = 12, WIDEST = 16384, VOCABULARY = 154880;
enum { QUERY_A, KV_A, INDEX_KEY, QUERY_B, INDEX_QUERY, OUTPUT, ROUTER, SHAPES };
static const struct { const char *name; uint32_t rows, columns; } shapes[SHAPES] = {{"q_a", 2048, 6144}, {"kv_a", 576, 6144}, {"index key", 128, 6144}, {"q_b", 16384, 2048}, {"index query", 4096, 2048}, {"o", 6144, 16384}, {"router", 256, 6144}};

static void measure(const std::string &folder, const Encoding &e, double copied) {
    const Kernels wide = load(folder + e.name + "-x1-wide.ptx"), few = load(folder + e.name + "-x1-few.ptx"), own = load(folder + e.name + "-x1-own.ptx");
    const Kernels four = load(folder + e.name + "-x4-wide.ptx"), fourOwn = load(folder + e.name + "-x4-own.ptx");
    const bool staged = stages(e.id, e.group_units);
    auto registers = [](Handle f) {
        int n, local;
        check(attribute(&n, 4, f), "attribute");
        check(attribute(&local, 3, f), "attribute");
        return std::to_string(n) + " registers" + (local ? ", " + std::to_string(local) + " bytes of local memory" : "");
    };
    auto report = [&](const char *what, double time, double bytes, const std::string &note) {
        printf("%-9s %-34s %6.1f us %5.0f GB/s %5.1f %% of copy  %s\n", e.name, what, time * 1e6, bytes / time / 1e9, 100 * bytes / time / copied, note.c_str());
        fflush(stdout);
    };
    std::vector<Weight> gates, ups, downs, layers[LAYERS];
    for (uint32_t i = 0; i < EXPERTS * SETS; i++) { // a few weights of random bytes, each at several addresses: over 1 GB, so that no cache holds them
        gates.push_back(i < EXPERTS ? weight(e.id, INNER, HIDDEN) : again(gates[i % EXPERTS]));
        ups.push_back(i < EXPERTS ? weight(e.id, INNER, HIDDEN) : again(ups[i % EXPERTS]));
        downs.push_back(i < EXPERTS ? weight(e.id, HIDDEN, INNER) : again(downs[i % EXPERTS]));
    }
    for (uint32_t l = 0; l < LAYERS; l++) {
        for (int i = 0; i < SHAPES; i++) layers[l].push_back(l == 0 ? weight(e.id, shapes[i].rows, shapes[i].columns) : again(layers[0][i]));
    }
    const Weight head = weight(e.id, VOCABULARY, HIDDEN); // larger than the cache
    const std::vector<float> x = numbers(4 * HIDDEN), wideX = numbers(4 * WIDEST);
    const Address input = upload(x), inner = room(4 * EXPERTS * INNER * 4), output = room((size_t)4 * EXPERTS * HIDDEN * 4), from = upload(wideX), to = room(4 * VOCABULARY * 4), beside = room(WIDEST * 4);
    std::vector<ExpertItem> items;
    std::vector<Pair> pairs;
    for (uint32_t i = 0; i < EXPERTS * SETS; i++) items.push_back({gates[i].matrix, ups[i].matrix, downs[i].matrix, i % EXPERTS, 1});
    for (uint32_t i = 0; i < EXPERTS * SETS; i++) items.push_back({gates[i].matrix, ups[i].matrix, downs[i].matrix, i % EXPERTS * 4, 4});
    for (uint32_t i = 0; i < 4 * EXPERTS; i++) pairs.push_back({i % 4, i});
    ExpertParams p = {};
    p.items = upload(items), p.pairs = upload(pairs), p.input = input, p.inner = inner, p.output = output, p.hidden = HIDDEN, p.inner_width = INNER;

    auto gateUp = [&](uint32_t first, uint32_t count, uint32_t xrows) {
        const bool fewer = few_gate_rows(staged, xrows, INNER, count);
        p.first_item = first + (xrows == 1 ? 0 : EXPERTS * SETS);
        launch((xrows != 1 ? four : fewer ? few : wide).function("expert_gate_up"), p, up(INNER, MATVEC_SIMDGROUPS * gate_rows(staged, xrows, fewer)), count, MATVEC_SIMDGROUPS * LANES);
    };
    auto down = [&](uint32_t first, uint32_t count, uint32_t xrows) {
        p.first_item = first + (xrows == 1 ? 0 : EXPERTS * SETS);
        launch((xrows == 1 ? wide : four).function("expert_down"), p, up(HIDDEN, MATVEC_SIMDGROUPS * down_rows(staged, xrows)), count, MATVEC_SIMDGROUPS * LANES);
    };
    auto form = [&](const Weight &w, uint32_t xrows) { // of matvec, and its weight rows per threadgroup
        if (share_columns(e.id, e.group_units, w.matrix.rows, w.matrix.columns)) return std::make_pair((xrows == 1 ? wide : four).function("matvec"), (uint32_t)MATVEC_ROWS);
        const bool fewer = few_own_rows(w.matrix.rows, xrows);
        return std::make_pair((xrows != 1 ? fourOwn : fewer ? few : own).function("matvec"), MATVEC_SIMDGROUPS * own_rows(xrows, fewer));
    };
    auto project = [&](const Weight &w, Address y, Handle on, uint32_t xrows = 1) {
        const auto [kernel, rows] = form(w, xrows);
        MatvecParams m = {};
        m.w = w.matrix, m.x = from, m.y = y, m.x_stride = w.matrix.columns, m.y_stride = w.matrix.rows, m.count = xrows, m.outputs = w.matrix.rows;
        launch(kernel, m, up(w.matrix.rows, rows), 1, MATVEC_SIMDGROUPS * LANES, on);
    };
    // Runs what belongs to one phase side by side, as a concurrent encoder does between two barriers.
    auto phase = [&](auto main, auto aside) {
        check(eventRecord(forked, stream), "fork");
        check(waitEvent(side, forked, 0), "fork");
        main(); // in the order in which a layer encodes them
        aside();
        check(eventRecord(joined, side), "join");
        check(waitEvent(stream, joined, 0), "join");
    };

    // numbers
    const std::vector<float> nothing(4 * EXPERTS * HIDDEN, NAN);
    for (uint32_t xrows : {1u, 4u}) {
        check(toDevice(inner, nothing.data(), 4 * EXPERTS * INNER * 4), "fill");
        check(toDevice(output, nothing.data(), 4 * EXPERTS * HIDDEN * 4), "fill");
        gateUp(0, EXPERTS, xrows), down(0, EXPERTS, xrows);
        check(synchronise(), "run");
        std::vector<float> act(xrows * EXPERTS * INNER), result((size_t)xrows * EXPERTS * HIDDEN);
        check(toHost(act.data(), inner, act.size() * 4), "read");
        check(toHost(result.data(), output, result.size() * 4), "read");
        std::vector<double> want, got;
        for (int i = 0; i < 300; i++) {
            const uint32_t expert = rng() % EXPERTS, t = rng() % xrows, r = rng() % INNER, row = (expert * xrows + t) % 4;
            double g = 0, u = 0;
            for (uint32_t c = 0; c < HIDDEN; c++) g += gates[expert].value(r, c) * x[row * HIDDEN + c], u += ups[expert].value(r, c) * x[row * HIDDEN + c];
            want.push_back(g / (1 + std::exp(-g)) * u), got.push_back(act[(expert * xrows + t) * INNER + r]);
        }
        compare(std::string(e.name) + " gate and up, rows: " + std::to_string(xrows), want, got);
        want.clear(), got.clear();
        for (int i = 0; i < 300; i++) {
            const uint32_t expert = rng() % EXPERTS, t = rng() % xrows, r = rng() % HIDDEN;
            double v = 0;
            for (uint32_t c = 0; c < INNER; c++) v += downs[expert].value(r, c) * act[(expert * xrows + t) * INNER + c];
            want.push_back(v), got.push_back(result[(size_t)(expert * xrows + t) * HIDDEN + r]);
        }
        compare(std::string(e.name) + " down, rows: " + std::to_string(xrows), want, got);
    }
    for (int i = 0; i <= SHAPES; i++) {
        const Weight &w = i < SHAPES ? layers[0][i] : head;
        const uint32_t rows = w.matrix.rows, columns = w.matrix.columns;
        for (uint32_t xrows : {1u, 4u}) {
            std::vector<float> y(xrows * rows, NAN);
            check(toDevice(to, y.data(), y.size() * 4), "fill");
            project(w, to, stream, xrows);
            check(synchronise(), "run");
            check(toHost(y.data(), to, y.size() * 4), "read");
            std::vector<double> want, got;
            for (int k = 0; k < 200; k++) {
                const uint32_t r = k == 0 ? rows - 1 : rng() % rows, t = k % xrows;
                double v = 0;
                for (uint32_t c = 0; c < columns; c++) v += w.value(r, c) * wideX[t * columns + c];
                want.push_back(v), got.push_back(y[(size_t)t * rows + r]);
            }
            compare(std::string(e.name) + " " + (i < SHAPES ? shapes[i].name : "head") + ", rows: " + std::to_string(xrows), want, got);
        }
    }

    // times
    const double third = (double)gates[0].bytes();
    report("gate and up of 8 experts", seconds([&] { for (uint32_t s = 0; s < SETS; s++) gateUp(s * EXPERTS, EXPERTS, 1); }) / SETS, EXPERTS * third * 2, registers(wide.function("expert_gate_up")));
    report("down of 8 experts", seconds([&] { for (uint32_t s = 0; s < SETS; s++) down(s * EXPERTS, EXPERTS, 1); }) / SETS, EXPERTS * third, registers(wide.function("expert_down")));
    report("moe_block, 8 experts", seconds([&] { for (uint32_t s = 0; s < SETS; s++) gateUp(s * EXPERTS, EXPERTS, 1), down(s * EXPERTS, EXPERTS, 1); }) / SETS, EXPERTS * third * 3, "");
    report("moe_block, 8 experts of 4 rows", seconds([&] { for (uint32_t s = 0; s < SETS; s++) gateUp(s * EXPERTS, EXPERTS, 4), down(s * EXPERTS, EXPERTS, 4); }) / SETS, EXPERTS * third * 3,
           registers(four.function("expert_gate_up")));
    for (int i = 0; i < SHAPES; i++) {
        report(shapes[i].name, seconds([&] { for (auto &l : layers) project(l[i], to, stream); }) / LAYERS, layers[0][i].bytes(), registers(form(layers[0][i], 1).first));
    }
    report("head", seconds([&] { project(head, to, stream); }), head.bytes(), registers(form(head, 1).first));
    const uint32_t shared = EXPERTS * SETS;
    report("shared expert", seconds([&] { for (uint32_t i = 0; i < shared; i++) gateUp(i, 1, 1), down(i, 1, 1); }) / shared, third * 3, registers(few.function("expert_gate_up")));
    auto layer = [&](uint32_t l, bool all) {
        const auto &w = layers[l];
        phase([&] { project(w[QUERY_A], to, stream); }, [&] { project(w[KV_A], beside, side); if (all) project(w[INDEX_KEY], beside, side); });
        if (all) {
            phase([&] { project(w[QUERY_B], to, stream); }, [&] { project(w[INDEX_QUERY], beside, side); });
        } else {
            project(w[QUERY_B], to, stream);
        }
        project(w[OUTPUT], to, stream);
        if (all) {
            phase([&] { gateUp(l, 1, 1); }, [&] { project(w[ROUTER], beside, side); });
        } else {
            gateUp(l, 1, 1);
        }
        down(l, 1, 1);
    };
    double some = third * 3, every = third * 3;
    for (int i = 0; i < SHAPES; i++) {
        every += layers[0][i].bytes();
        if (i == QUERY_A || i == KV_A || i == QUERY_B || i == OUTPUT) some += layers[0][i].bytes();
    }
    report("layer: q_a kv_a q_b o, shared expert", seconds([&] { for (uint32_t l = 0; l < LAYERS; l++) layer(l, false); }) / LAYERS, some, "");
    report("layer: indexer and router too", seconds([&] { for (uint32_t l = 0; l < LAYERS; l++) layer(l, true); }) / LAYERS, every, "");
}

int main(int count, char **arguments) {
    if (count < 2) { fprintf(stderr, "usage: bench <folder with *.ptx> [encoding ...]\n"); return 2; }
    openDriver();
    const double copied = copyRate();
    printf("copy: %.0f GB/s read and written\n", copied / 1e9);
    for (const Encoding &e : encodings) {
        bool wanted = count == 2;
        for (int i = 2; i < count; i++) wanted |= std::string(arguments[i]) == e.name;
        if (!wanted) continue;
        for (Address at : rooms) check(release(at), "release");
        rooms.clear();
        measure(std::string(arguments[1]) + "/", e, copied);
    }
    return failed;
}
