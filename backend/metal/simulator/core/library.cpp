#include "library.h"
#include "executor.h"
#include "translate.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <mutex>
#include <regex>
#include <sys/stat.h>
#include <unistd.h>

namespace sim {
namespace {

const char runtimeText[] = {
#embed "msl_runtime.h"
    , 0};
const char standardLibraryText[] = {
#embed "metal_stdlib"
    , 0};

const char declarationsText[] = {
#embed "metal_declarations"
    , 0};

// Names that metal_stdlib defines as macros.
const char macroText[] =
    "#define INFINITY (as_type<float>(0x7f800000u))\n#define NAN (as_type<float>(0x7fc00000u))\n#define MAXFLOAT 3.402823466e+38f\n#define HUGE_VALF INFINITY\n"
    "#define FLT_MAX 3.402823466e+38f\n#define FLT_MIN 1.175494351e-38f\n#define FLT_EPSILON 1.192092896e-07f\n#define HALF_MAX 65504.0h\n"
    "#define INT_MAX 2147483647\n#define INT_MIN (-2147483647 - 1)\n#define UINT_MAX 4294967295u\n#define USHRT_MAX 65535\n#define CHAR_BIT 8\n"
    "#define M_PI_F 3.14159265f\n#define M_E_F 2.71828183f\n#define M_LOG2E_F 1.44269504f\n#define M_LN2_F 0.693147181f\n#define M_SQRT2_F 1.41421356f\n";

// Calls that wait for other lanes keep their place: not merged from two branches, not copied into them, not turned into jumps.
const char commonFlags[] = " -x c++ -std=c++14 -march=native -fPIC -shared -nostdinc -fno-exceptions -fno-rtti -ffp-contract=on -fno-math-errno -fconvergent-functions -fstack-clash-protection -fno-optimize-sibling-calls -fvisibility=hidden -gline-tables-only"
                           " -Wall -Wextra -Werror -Wdouble-promotion -Wno-unused-function -Wno-unused-parameter -Wno-unknown-attributes -Wno-duplicate-decl-specifier -Wno-unknown-pragmas -Wno-undefined-internal";
const char fastFlags[] = " -O2";
const char strictFlags[] = " -O1 -DMSL_STRICT -fsanitize=kernel-address -fsanitize-recover=kernel-address -mllvm -asan-instrumentation-with-call-threshold=0 -mllvm -asan-stack=0"
                           " -fsanitize=alignment,shift-exponent,integer-divide-by-zero,float-cast-overflow,bounds -fsanitize-recover=all"
                           " -mllvm -asan-globals=0 -mllvm -asan-opt-same-temp=0 -mllvm -asan-kernel-mem-intrinsic-prefix=1";

std::string hash(const std::string &s) {
    uint64_t a = 0xcbf29ce484222325ull, b = 0x84222325cbf29ce4ull;
    for (unsigned char c : s) {
        a = (a ^ c) * 0x100000001b3ull;
        b = (b ^ (c + 0x9e)) * 0x100000001b5ull;
        b ^= b >> 29;
    }
    char text[40];
    snprintf(text, sizeof text, "%016lx%016lx", (unsigned long)a, (unsigned long)b);
    return text;
}

std::string readFile(const std::string &path) {
    std::string s;
    if (FILE *f = fopen(path.c_str(), "rb")) {
        char part[65536];
        size_t n;
        while ((n = fread(part, 1, sizeof part, f)) > 0) s.append(part, n);
        fclose(f);
    }
    return s;
}

bool writeFile(const std::string &path, const std::string &s) {
    FILE *f = fopen(path.c_str(), "wb");
    if (!f) return false;
    bool ok = fwrite(s.data(), 1, s.size(), f) == s.size();
    return fclose(f) == 0 && ok;
}

std::string compiler() {
    const char *c = getenv("COLIBRI_SIM_CLANG");
    return c ? c : "clang++-19";
}

// Results depend on the machine's instruction set and on the compiler.
std::string machine() {
    std::string info = readFile("/proc/cpuinfo"), flags;
    size_t at = info.find("\nflags");
    if (at != std::string::npos) flags = info.substr(at, info.find('\n', at + 1) - at);
    struct stat st;
    std::string where = "/usr/bin/" + compiler();
    if (stat(where.c_str(), &st) == 0) flags += std::to_string((long)st.st_mtime) + std::to_string((long)st.st_size);
    return flags;
}

std::string cacheFolder() {
    std::string dir;
    if (const char *c = getenv("COLIBRI_SIM_CACHE")) dir = c;
    else if (const char *x = getenv("XDG_CACHE_HOME")) dir = std::string(x) + "/colibri-metal-simulator";
    else if (const char *h = getenv("HOME")) dir = std::string(h) + "/.cache/colibri-metal-simulator";
    else dir = "/tmp/colibri-metal-simulator-" + std::to_string(getuid());
    for (size_t i = 1; i <= dir.size(); i++)
        if (i == dir.size() || dir[i] == '/') mkdir(dir.substr(0, i).c_str(), 0700);
    return dir;
}

int runCommand(const std::string &command, std::string &output) {
    FILE *f = popen((command + " 2>&1").c_str(), "r");
    if (!f) return -1;
    char part[4096];
    size_t n;
    while ((n = fread(part, 1, sizeof part, f)) > 0) output.append(part, n);
    return pclose(f);
}

// Preprocessed text; <metal_…> headers stand before the text already.
bool preprocess(const CompileRequest &r, const std::string &stem, std::string &out, std::string &error) {
    static const std::regex include("(^|\n)[ \t]*#[ \t]*include[ \t]*<metal_[a-z_]*>[^\n]*");
    std::string text = std::string("# 1 \"metal_stdlib\" 3\n") + macroText + "# 1 \"program_source\"\n" + std::regex_replace(r.source, include, "$1");
    if (!writeFile(stem + ".metal", text)) { error = "cannot write " + stem + ".metal"; return false; }
    std::string command = compiler() + " -E -x c++ -std=c++14 -nostdinc -D__METAL_VERSION__=" + std::to_string(r.languageVersion);
    for (auto &m : r.macros) command += " '-D" + m.first + "=" + m.second + "'";
    bool ok = runCommand(command + " -o " + stem + ".ii " + stem + ".metal", error) == 0;
    out = readFile(stem + ".ii");
    unlink((stem + ".ii").c_str());
    unlink((stem + ".metal").c_str());
    return ok;
}

// Address spaces are types in Metal and nothing in C++: a compiler that knows them reads the text, twice (see Reading).
bool checkAddressSpaces(const std::string &preprocessed, const std::string &stem, std::string &error) {
    for (Reading reading : {Reading::ThreadAndThreadgroup, Reading::Constant}) {
        std::string text = std::string(reading == Reading::Constant ? "#define MSL_THREADGROUP_IS_GLOBAL\n" : "") + "# 1 \"metal_declarations\" 3\n" + declarationsText + translate(preprocessed, reading).cpp;
        if (!writeFile(stem + ".clcpp", text)) { error = "cannot write " + stem + ".clcpp"; return false; }
        std::string said;
        int status = runCommand(compiler() + " -x clcpp -cl-std=clc++2021 -target spir64 -Xclang -cl-ext=+all -fsyntax-only -w " + stem + ".clcpp", said);
        if (status != 0 && getenv("COLIBRI_SIM_KEEP")) fprintf(stderr, "metal simulator: kept %s.clcpp\n", stem.c_str());
        else unlink((stem + ".clcpp").c_str());
        if (status != 0) { error = "address spaces: " + said; return false; }
    }
    return true;
}

bool load(const std::string &path, Library &library, std::string &error) {
    void *handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!handle) { error = dlerror(); return false; }
    library.code = (const msl_library *)dlsym(handle, "msl_exported_library");
    if (!library.code) { error = path + " exports no library"; return false; }
    place(library.code, library.code->runtime);
    return true;
}

} // namespace

bool compile(const CompileRequest &r, Library &library, std::string &error, bool onlyCached) {
    static std::mutex one;
    std::lock_guard<std::mutex> lock(one);
    std::string flags = std::string(commonFlags) + (r.strict ? strictFlags : fastFlags) + (r.kernel.empty() ? "" : " -w"); // what constants leave of other branches may warn
    std::string key = r.source + "\1" + std::to_string(r.languageVersion) + flags + machine() + runtimeText + standardLibraryText + declarationsText + macroText + TRANSLATOR_HASH;
    for (auto &m : r.macros) key += "\1" + m.first + "=" + m.second;
    if (!r.kernel.empty()) key += "\2" + r.kernel;
    for (auto &c : r.constants) key += "\2" + std::to_string(c.first) + "=" + c.second;
    library.request = r;
    std::string path = cacheFolder() + "/" + hash(key) + ".so", stem = path + "." + std::to_string(getpid());
    if (access(path.c_str(), R_OK) == 0 && load(path, library, error)) return true;
    error.clear();
    if (onlyCached) return false;

    std::string preprocessed;
    if (!preprocess(r, stem, preprocessed, error)) return false;
    Translation t = translate(preprocessed, Reading::Run, r.kernel, r.constants);
    if (!t.errors.empty()) { error = t.errors; return false; }
    std::string text = std::string("# 1 \"msl_runtime.h\" 3\n") + runtimeText + "\n# 1 \"metal_stdlib\" 3\n" + standardLibraryText + "\n# 1 \"launchers\" 3\n" + t.cpp;
    if (!writeFile(stem + ".cpp", text)) { error = "cannot write " + stem + ".cpp"; return false; }
    int status = runCommand(compiler() + flags + " -o " + stem + ".so " + stem + ".cpp -lm", error);
    if (status != 0) {
        if (getenv("COLIBRI_SIM_KEEP")) fprintf(stderr, "metal simulator: kept %s.cpp\n", stem.c_str());
        else unlink((stem + ".cpp").c_str());
        unlink((stem + ".so").c_str());
        if (error.empty()) error = "the compiler ended with status " + std::to_string(status);
        return false;
    }
    unlink((stem + ".cpp").c_str());
    if (r.kernel.empty() && !checkAddressSpaces(preprocessed, stem, error)) { unlink((stem + ".so").c_str()); return false; }
    if (rename((stem + ".so").c_str(), path.c_str()) != 0) { error = "cannot write " + path; return false; }
    return load(path, library, error);
}

} // namespace sim
