// Shader text to a loaded library: preprocess, translate, compile with clang, keep the result in a cache named by a hash of everything that went in.
#pragma once
#include "msl_runtime.h"
#include <map>
#include <string>

namespace sim {

struct CompileRequest {
    std::string source;
    std::map<std::string, std::string> macros;
    unsigned languageVersion = 300; // __METAL_VERSION__
    bool strict = false;            // with a call to the checker at every access
    // A specialised library: one kernel, its function constants (index and value) compiled in. Without it, they are variables.
    std::string kernel;
    std::map<unsigned, std::string> constants;
};

struct Library {
    const msl_library *code = nullptr;
    CompileRequest request;
};

// False with the compiler's text in `error` when Apple's compiler would refuse the source, or clang does.
// onlyCached: false as well when the result is not in the cache.
bool compile(const CompileRequest &request, Library &library, std::string &error, bool onlyCached = false);

} // namespace sim
