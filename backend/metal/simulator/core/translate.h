// Metal Shading Language to C++: rewrites preprocessed shader text so that it compiles after metal_stdlib, appends a launcher
// for each kernel, and refuses what Apple's compiler would refuse but a C++ compiler accepts.
#pragma once
#include <map>
#include <string>

struct Translation {
    std::string cpp;    // to be compiled after msl_runtime.h and metal_stdlib
    std::string errors; // one "file:line: error: …" a line; empty when the text is accepted
};

// For running, or for a check of the address spaces: read as C++ for OpenCL, where mixing them is a type error. That language cannot copy
// structures out of __constant, so the spaces are told apart in two readings: first thread, threadgroup and the rest, then constant and the rest.
enum class Reading { Run, ThreadAndThreadgroup, Constant };

// kernel, constants: of a specialised library (library.h).
Translation translate(const std::string &preprocessed, Reading reading, const std::string &kernel = "", const std::map<unsigned, std::string> &constants = {});
