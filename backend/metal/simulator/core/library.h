// Shader text to a loaded library: preprocess, translate, compile with clang, keep the result in a cache named by a hash of everything that went in.
#pragma once
#include "msl_runtime.h"
#include <map>
#include <string>

namespace sim {

struct Library {
    const msl_library *code = nullptr;
    std::string path; // of the compiled library
};

struct CompileRequest {
    std::string source;
    std::map<std::string, std::string> macros;
    unsigned languageVersion = 300; // __METAL_VERSION__
    bool strict = false;            // with a call to the checker at every access
};

// False with the compiler's text in `error` when Apple's compiler would refuse the source, or clang does.
bool compile(const CompileRequest &request, Library &library, std::string &error);

} // namespace sim
