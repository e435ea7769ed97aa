// Runs the shaders' PTX on an NVIDIA GPU: checks products against sums in double precision, and prints bytes per second beside the GPU's
// own copy rate. The driver is loaded at run time, so this builds anywhere. usage: bench <folder with *.ptx>
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
static Status (*moduleLoad)(Handle *, const void *);
static Status (*moduleFunction)(Handle *, Handle, const char *);
static Handle stream, eventBegin, eventEnd;

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
    check(symbol<Status (*)(Handle *, unsigned)>("cuStreamCreate")(&stream, 1), "stream");
    auto newEvent = symbol<Status (*)(Handle *, unsigned)>("cuEventCreate");
    check(newEvent(&eventBegin, 0), "event");
    check(newEvent(&eventEnd, 0), "event");
    printf("device: %s\n", name);
}

static Address room(size_t bytes) {
    Address at;
    check(allocate(&at, bytes), "memory");
    return at;
}
template <class T> static Address upload(const std::vector<T> &v) {
    Address at = room(v.size() * sizeof(T));
    check(toDevice(at, v.data(), v.size() * sizeof(T)), "upload");
    return at;
}

struct Kernels {
    Handle module;
    Handle function(const char *name) {
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
template <class P> static void launch(Handle f, const P &p, unsigned x, unsigned y, unsigned threads) {
    void *arguments[] = {(void *)&p};
    check(launchKernel(f, x, y, 1, threads, 1, 1, 0, stream, arguments, nullptr), "launch");
}
static unsigned up(unsigned a, unsigned b) { return (a + b - 1) / b; }

// Seconds of one run of `work`, which is captured once and replayed: the best of five series of 20.
template <class F> static double seconds(F work) {
    Handle graph, executable;
    check(beginCapture(stream, 2), "capture");
    work();
    check(endCapture(stream, &graph), "capture");
    check(instantiate(&executable, graph, 0), "graph");
    double best = 1e9;
    for (int series = 0; series < 6; series++) {
        check(eventRecord(eventBegin, stream), "event");
        for (int i = 0; i < 20; i++) check(graphLaunch(executable, stream), "launch");
        check(eventRecord(eventEnd, stream), "event");
        check(eventSynchronise(eventEnd), "run");
        float milliseconds;
        check(eventElapsed(&milliseconds, eventBegin, eventEnd), "time");
        if (series > 0) best = std::fmin(best, milliseconds / 20e3);
    }
    return best;
}

// ---- weights

struct Format {
    const char *name;
    uint32_t id;
};
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
        case FORMAT_INT4_GROUP: return ((d[c / 2] >> 4 * (c % 2) & 15) - 8) * (double)scales[(size_t)row * matrix.row_groups + c / 64];
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

static bool failed = false;
static void compare(const char *what, const std::vector<double> &want, const std::vector<double> &got) {
    double size = 0, worst = 0;
    for (size_t i = 0; i < want.size(); i++) size = std::fmax(size, std::fabs(want[i])), worst = std::fmax(worst, std::fabs(want[i] - got[i]));
    bool good = worst / size < 1e-4;
    failed |= !good;
    printf("%-44s differs by %.2g of the largest%s\n", what, worst / size, good ? "" : "  FAILED");
}

int main(int count, char **arguments) {
    if (count != 2) { fprintf(stderr, "usage: bench <folder with *.ptx>\n"); return 2; }
    const std::string folder = std::string(arguments[1]) + "/";
    openDriver();

    const size_t copied = (size_t)1 << 30;
    Address from = room(copied), to = room(copied);
    const double copySeconds = seconds([&] { check(copyAsync(to, from, copied, stream), "copy"); });
    const double copyRate = 2 * copied / copySeconds; // read and written
    printf("copy: %.0f GB/s read and written\n", copyRate / 1e9);

    const Format formats[] = {{"int4-g64", FORMAT_INT4_GROUP}, {"int8-row", FORMAT_INT8_ROW}, {"int3-g64", FORMAT_INT3_GROUP64}, {"fp8", FORMAT_FP8_BLOCK128}, {"f32", FORMAT_F32}};
    for (const Format &format : formats) {
        Kernels kernels = load(folder + format.name + "-x1.ptx");
        Handle matvec = kernels.function("matvec"), gateUp = kernels.function("expert_gate_up"), down = kernels.function("expert_down");

        // moe_block: eight experts of 6144 × 2048, one row each; different experts in every run of a series, so that nothing is cached.
        const uint32_t hidden = 6144, inner = 2048, experts = 8, sets = 4;
        std::vector<float> x = numbers(hidden);
        Address input = upload(x), innerRows = room(experts * inner * 4), output = room((size_t)experts * hidden * 4);
        std::vector<Weight> gates, ups, downs;
        std::vector<ExpertItem> items;
        std::vector<Pair> pairs;
        size_t bytes = 0;
        const uint32_t made = format.id == FORMAT_F32 ? 2 : experts * sets;
        for (uint32_t e = 0; e < made; e++) {
            gates.push_back(weight(format.id, inner, hidden));
            ups.push_back(weight(format.id, inner, hidden));
            downs.push_back(weight(format.id, hidden, inner));
        }
        for (uint32_t e = 0; e < experts * sets; e++) {
            ExpertItem item = {gates[e % made].matrix, ups[e % made].matrix, downs[e % made].matrix, e % experts, 1};
            items.push_back(item);
        }
        for (uint32_t e = 0; e < experts; e++) pairs.push_back({0, e});
        bytes = experts * (gates[0].bytes() + ups[0].bytes() + downs[0].bytes());
        ExpertParams p = {};
        p.items = upload(items), p.pairs = upload(pairs), p.input = input, p.inner = innerRows, p.output = output, p.hidden = hidden, p.inner_width = inner;
        auto block = [&](uint32_t set) {
            p.first_item = set * experts;
            launch(gateUp, p, up(inner, MATVEC_SIMDGROUPS * gate_rows(format.id, format.id, 1)), experts, MATVEC_SIMDGROUPS * LANES);
            launch(down, p, up(hidden, MATVEC_SIMDGROUPS * down_rows(format.id, 1)), experts, MATVEC_SIMDGROUPS * LANES);
        };
        double time = seconds([&] { for (uint32_t s = 0; s < sets; s++) block(s); }) / sets;
        if (format.id != FORMAT_F32) printf("%-10s moe_block 8 × 6144 × 2048: %6.1f µs, %5.0f GB/s, %3.0f %% of copy\n", format.name, time * 1e6, bytes / time / 1e9, 100 * bytes / time / copyRate);
        block(0);
        std::vector<float> result((size_t)experts * hidden), act(experts * inner);
        check(symbol<Status (*)()>("cuCtxSynchronize")(), "run");
        check(toHost(result.data(), output, result.size() * 4), "read");
        check(toHost(act.data(), innerRows, act.size() * 4), "read");
        std::vector<double> want, got;
        for (int i = 0; i < 400; i++) {
            uint32_t e = rng() % experts, r = rng() % inner;
            double g = 0, u = 0;
            for (uint32_t c = 0; c < hidden; c++) g += gates[e % made].value(r, c) * x[c], u += ups[e % made].value(r, c) * x[c];
            want.push_back(g / (1 + std::exp(-g)) * u), got.push_back(act[e * inner + r]);
        }
        compare((std::string(format.name) + " gate and up").c_str(), want, got);
        want.clear(), got.clear();
        for (int i = 0; i < 400; i++) {
            uint32_t e = rng() % experts, r = rng() % hidden;
            double v = 0;
            for (uint32_t c = 0; c < inner; c++) v += downs[e % made].value(r, c) * act[e * inner + c];
            want.push_back(v), got.push_back(result[(size_t)e * hidden + r]);
        }
        compare((std::string(format.name) + " down").c_str(), want, got);

        // layer_decode's projections, one after the other as a layer needs them. Two layers alternate.
        struct Shape { const char *name; uint32_t rows, columns; };
        const Shape shapes[] = {{"q_a", 2048, 6144}, {"q_b", 16384, 2048}, {"kv_a", 576, 6144}, {"o", 6144, 16384}, {"shared gate", 2048, 6144}, {"shared up", 2048, 6144}, {"shared down", 6144, 2048}};
        Address wide = upload(numbers(16384)), y = room(16384 * 4);
        std::vector<Weight> layers[2];
        size_t layerBytes = 0;
        for (auto &layer : layers) for (const Shape &s : shapes) layer.push_back(weight(format.id, s.rows, s.columns));
        for (const Weight &w : layers[0]) layerBytes += w.bytes();
        auto projection = [&](const Weight &w) {
            MatvecParams m = {};
            m.w = w.matrix, m.x = wide, m.y = y, m.x_stride = w.matrix.columns, m.y_stride = w.matrix.rows, m.count = 1, m.outputs = w.matrix.rows;
            launch(matvec, m, up(w.matrix.rows, MATVEC_ROWS), 1, MATVEC_SIMDGROUPS * LANES);
        };
        time = seconds([&] { for (auto &layer : layers) for (const Weight &w : layer) projection(w); }) / 2;
        printf("%-10s projections of a layer, in turn: %6.1f µs, %5.0f GB/s, %3.0f %% of copy\n", format.name, time * 1e6, layerBytes / time / 1e9, 100 * layerBytes / time / copyRate);
        for (size_t i = 0; i < layers[0].size(); i++) {
            double one = seconds([&] { for (int k = 0; k < 4; k++) for (auto &layer : layers) projection(layer[i]); }) / 8;
            printf("    %-12s %5u × %-5u %6.1f µs, %5.0f GB/s, %3.0f %%\n", shapes[i].name, shapes[i].rows, shapes[i].columns, one * 1e6, layers[0][i].bytes() / one / 1e9,
                   100 * layers[0][i].bytes() / one / copyRate);
        }
    }
    return failed;
}
