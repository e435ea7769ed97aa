#include "translate.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <set>
#include <vector>

namespace {

enum Kind { Word, Number, Text, Mark, Line }; // Line: a preprocessor line, linemarkers included
struct Token {
    Kind kind;
    std::string s;
    std::string space; // what stood before it
    int line = 0;
    std::string file;
};
using Tokens = std::vector<Token>;

bool wordStart(char c) { return isalpha((unsigned char)c) || c == '_'; }
bool wordPart(char c) { return isalnum((unsigned char)c) || c == '_'; }

Tokens tokenize(const std::string &in) {
    Tokens out;
    size_t i = 0;
    int line = 1;
    std::string file = "program_source", space;
    bool lineStart = true;
    auto add = [&](Kind kind, size_t from, size_t to) {
        out.push_back({kind, in.substr(from, to - from), space, line, file});
        space.clear();
        lineStart = false;
    };
    while (i < in.size()) {
        char c = in[i];
        if (c == '\n') { space += c; line++; i++; lineStart = true; continue; }
        if (isspace((unsigned char)c)) { space += c; i++; continue; }
        size_t j = i;
        if (c == '#' && lineStart) {
            while (j < in.size() && in[j] != '\n') j++;
            add(Line, i, j);
            int number; char name[256];
            if (sscanf(out.back().s.c_str(), "# %d \"%255[^\"]\"", &number, name) == 2) { line = number - 1; file = name; }
        } else if (wordStart(c)) {
            while (j < in.size() && wordPart(in[j])) j++;
            add(Word, i, j);
        } else if (isdigit((unsigned char)c) || (c == '.' && i + 1 < in.size() && isdigit((unsigned char)in[i + 1]))) {
            bool hex = c == '0' && i + 1 < in.size() && (in[i + 1] == 'x' || in[i + 1] == 'X');
            while (j < in.size() && (wordPart(in[j]) || in[j] == '.' || ((in[j] == '+' || in[j] == '-') && strchr(hex ? "pP" : "eE", in[j - 1])))) j++;
            add(Number, i, j);
        } else if (c == '"' || c == '\'') {
            for (j++; j < in.size() && in[j] != c; j++) if (in[j] == '\\') j++;
            add(Text, i, j + 1);
            j++;
        } else {
            static const char *const pairs[] = {"[[", "]]", "::", "->", "<<", ">>", "<=", ">=", "==", "!=", "&&", "||", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "++", "--"};
            j = i + 1;
            for (const char *p : pairs) if (in.compare(i, 2, p) == 0) j = i + 2;
            // ">>" closes two template lists or shifts, "]]" closes two indices or an attribute: kept single, joined by context.
            if (in.compare(i, 2, ">>") == 0 || in.compare(i, 2, "]]") == 0 || in.compare(i, 2, "[[") == 0) j = i + 1;
            add(Mark, i, j);
        }
        i = j;
    }
    return out;
}

const std::set<std::string> spaces = {"device", "constant", "threadgroup", "thread", "threadgroup_imageblock", "ray_data", "object_data"};
const std::set<std::string> scalars = {"bool", "char", "uchar", "short", "ushort", "int", "uint", "long", "ulong", "half", "bfloat", "float", "size_t", "void", "auto", "unsigned", "signed",
    "int8_t", "uint8_t", "int16_t", "uint16_t", "int32_t", "uint32_t", "int64_t", "uint64_t", "atomic_int", "atomic_uint", "atomic_float",
    "simdgroup_float8x8", "simdgroup_half8x8", "simdgroup_bfloat8x8"};
const std::map<std::string, std::string> positions = {
    {"threadgroup_position_in_grid", "t->group->position"}, {"threadgroups_per_grid", "t->group->groups"},
    {"threads_per_threadgroup", "t->group->threads_per_group"}, {"threads_per_grid", "t->group->threads_per_grid"},
    {"thread_position_in_threadgroup", "t->position_in_threadgroup"}, {"thread_position_in_grid", "t->position_in_grid"},
    {"thread_index_in_threadgroup", "&t->index"}, {"thread_index_in_simdgroup", "&t->lane"},
    {"simdgroup_index_in_threadgroup", "msl_list{t->index / MSL_LANES}.v"}, {"simdgroups_per_threadgroup", "&t->group->simds"},
    {"threads_per_simdgroup", "msl_list{MSL_LANES}.v"}, {"thread_execution_width", "msl_list{MSL_LANES}.v"}};
const std::map<std::string, std::string> refused = {
    {"double", "Metal has no double"}, {"goto", "Metal has no goto"}, {"new", "Metal has no new"}, {"delete", "Metal has no delete"}, {"virtual", "Metal has no virtual functions"},
    {"try", "Metal has no exceptions"}, {"throw", "Metal has no exceptions"}, {"catch", "Metal has no exceptions"}, {"dynamic_cast", "Metal has no run-time types"},
    {"typeid", "Metal has no run-time types"}, {"thread_local", "Metal has no thread_local"}, {"register", "Metal has no register"}, {"asm", "Metal has no asm"},
    {"noexcept", "Metal has no noexcept"}, {"std", "Metal has no C++ standard library"}, {"wchar_t", "Metal has no wchar_t"}, {"__asm__", "Metal has no asm"}};

bool isVector(const std::string &s) {
    static const char *const bases[] = {"float", "half", "bfloat", "char", "uchar", "short", "ushort", "int", "uint", "long", "ulong"};
    if (s.size() < 4 || s.back() < '2' || s.back() > '4') return false;
    std::string base = s.substr(0, s.size() - 1);
    if (base.compare(0, 7, "packed_") == 0) base = base.substr(7);
    return std::any_of(std::begin(bases), std::end(bases), [&](const char *b) { return base == b; });
}

struct Constant { std::string name, type, index; };
struct Variable { std::string name, type; };
struct Argument { std::string name, kind, index, type; bool writable, reference; };
struct Kernel {
    std::string name;
    std::vector<std::string> call;
    std::vector<Argument> arguments;
    std::string maxThreads = "0";
    size_t firstVariable = 0, variables = 0;
};

struct Translator {
    Reading reading;
    std::string onlyKernel;
    std::map<unsigned, std::string> given; // function constants compiled in
    Tokens in;
    Tokens out;
    std::string errors;
    std::set<std::string> types, typeParameters;
    std::vector<Constant> constants;
    std::set<std::string> derived; // program-scope constants that depend on function constants
    std::vector<Variable> variables;
    std::vector<Kernel> kernels;
    std::map<std::string, std::set<std::string>> calls; // function → what it calls
    std::map<std::string, std::set<std::string>> uses;  // function, or constant derived from others → program-scope constants

    void fail(const Token &t, const std::string &what) { errors += t.file + ":" + std::to_string(t.line) + ": error: " + what + "\n"; }
    bool is(size_t i, const char *s) const { return i < in.size() && in[i].s == s; }
    bool word(size_t i) const { return i < in.size() && in[i].kind == Word; }
    bool typeName(size_t i) const { return word(i) && (scalars.count(in[i].s) || isVector(in[i].s) || types.count(in[i].s)); }
    void emit(const Token &t) { out.push_back(t); }
    void emit(const std::string &s, const Token &at) { Token t = at; t.s = s; t.kind = Mark; if (t.space.empty()) t.space = " "; out.push_back(t); }
    void emitLineOnly(const Token &at) { Token t = at; t.s.clear(); out.push_back(t); }

    // The index behind the bracket that closes the one at i.
    size_t closing(size_t i) const {
        std::string open = in[i].s, close = open == "(" ? ")" : open == "[" ? "]" : open == "{" ? "}" : ">";
        int depth = 0;
        for (; i < in.size(); i++) {
            if (in[i].s == open) depth++;
            else if (in[i].s == close && --depth == 0) return i + 1;
        }
        return in.size();
    }
    std::string join(size_t from, size_t to) const {
        std::string s;
        for (size_t i = from; i < to; i++) if (in[i].kind != Line) s += (s.empty() ? "" : " ") + in[i].s;
        return s;
    }
    // What an address space is called in the reading.
    std::string space(const std::string &name) const {
        if (reading == Reading::Run) return name == "constant" ? "const" : "";
        bool first = reading == Reading::ThreadAndThreadgroup;
        if (name == "thread") return "__private";
        if (name == "constant") return first ? "__global const" : table ? "__constant" : "__local const"; // nothing at program scope may be __local
        return first && name == "threadgroup" ? "__local" : "__global";
    }
    // The type written in [from, to), without address spaces for running; constant becomes const.
    std::string plainType(size_t from, size_t to) const {
        std::string s;
        for (size_t i = from; i < to; i++) {
            if (in[i].kind == Line) continue;
            if (reading != Reading::Run && spaces.count(in[i].s)) { s += space(in[i].s) + " "; continue; }
            if (in[i].s == "constant") s += "const ";
            else if (!spaces.count(in[i].s) && in[i].s != "volatile") s += in[i].s + " ";
        }
        return s;
    }

    void collectTypes() {
        for (size_t i = 0; i + 1 < in.size(); i++) {
            if ((is(i, "struct") || is(i, "class") || is(i, "enum") || is(i, "union")) && word(i + 1)) types.insert(in[i + 1].s == "class" ? in[i + 2].s : in[i + 1].s);
            if (is(i, "using") && word(i + 1) && is(i + 2, "=")) { types.insert(in[i + 1].s); typeParameters.insert(in[i + 1].s); }
            if ((is(i, "typename") || is(i, "class")) && word(i + 1) && i > 0 && (is(i - 1, "<") || is(i - 1, ","))) { types.insert(in[i + 1].s); typeParameters.insert(in[i + 1].s); }
            if (is(i, "typedef")) {
                size_t j = i;
                while (j < in.size() && !is(j, ";")) j = is(j, "{") ? closing(j) : j + 1;
                if (word(j - 1)) { types.insert(in[j - 1].s); typeParameters.insert(in[j - 1].s); }
            }
        }
    }

    // A * or & that declares a pointer or reference: what stands before it is a type. In Metal each names its address space.
    void checkPointer(size_t i) {
        size_t j = i;
        while (j > 0 && (is(j - 1, "const") || is(j - 1, "volatile") || is(j - 1, "*") || in[j - 1].kind == Line)) j--;
        if (j == 0) return;
        bool type = typeName(j - 1);
        if (is(j - 1, ">")) { // a template-id, as in simdgroup_matrix<float, 8, 8> &
            int depth = 0;
            size_t k = j;
            while (k > 0) {
                k--;
                if (is(k, ">")) depth++;
                else if (is(k, "<") && --depth == 0) break;
                else if (is(k, ";") || is(k, "{")) return;
            }
            type = k > 0 && word(k - 1) && (is(k - 1, "simdgroup_matrix") || is(k - 1, "vec") || is(k - 1, "atomic") || types.count(in[k - 1].s));
            j = k;
        }
        if (!type) return;
        if (is(i - 1, "*") && i - 1 >= j) return; // the inner pointer was checked; the outer one lies where the variable lies
        for (size_t k = j; k > 0; k--) {
            const Token &t = in[k - 1];
            if (spaces.count(t.s)) return;
            bool specifier = t.kind == Word || t.s == "::" || t.kind == Line || is(k - 1, ">") ;
            if (!specifier) break;
        }
        for (size_t k = j; k < i; k++) if (spaces.count(in[k].s)) return; // float device *p
        fail(in[i], std::string(is(i, "*") ? "pointer" : "reference") + " type must name its address space (device, constant, threadgroup or thread)");
    }

    std::string literal(const Token &t) {
        std::string s = t.s;
        bool hex = s.size() > 1 && (s[1] == 'x' || s[1] == 'X');
        bool real = hex ? s.find_first_of("pP.") != std::string::npos : s.find_first_of(".eE") != std::string::npos || s.back() == 'h' || s.back() == 'f' || s.back() == 'H' || s.back() == 'F';
        if (!real) {
            if (s.size() > 2 && (s.substr(s.size() - 2) == "ll" || s.substr(s.size() - 2) == "LL")) fail(t, "Metal has no long long");
            return s;
        }
        if (!hex && s.size() > 2 && s.substr(s.size() - 2) == "bf") return "((bfloat)" + s.substr(0, s.size() - 2) + "f)";
        if (!hex && (s.back() == 'h' || s.back() == 'H')) return "((half)" + s.substr(0, s.size() - 1) + "f)";
        if (s.back() == 'f' || s.back() == 'F') return s;
        if (s.back() == 'l' || s.back() == 'L') fail(t, "Metal has no long double");
        return s + "f"; // an unmarked literal is a float
    }

    // Emits the tokens [from, to) of a function body or an initialiser; kernel: threadgroup variables are allowed.
    void body(size_t from, size_t to, bool kernel, const std::string &function) {
        for (size_t i = from; i < to;) i = step(i, kernel, function);
    }

    size_t step(size_t i, bool kernel, const std::string &function) {
        const Token &t = in[i];
        if (t.kind == Line) {
            if (t.s.find("#pragma METAL fp contract(off)") == 0) emit("#pragma clang fp contract(off)", t);
            else if (t.s.find("#pragma METAL") == 0) emitLineOnly(t);
            else emit(t);
            return i + 1;
        }
        if (t.kind == Number) { Token n = t; n.s = literal(t); emit(n); return i + 1; }
        if (is(i, "[") && is(i + 1, "[") && in[i + 1].space.empty()) { fail(t, "attribute outside a kernel's argument list: " + join(i, closing(i))); return closing(i); }
        if (is(i, "*") || is(i, "&") || is(i, "&&")) checkPointer(i);
        if (t.kind != Word) { emit(t); return i + 1; }

        auto refuse = refused.find(t.s);
        if (refuse != refused.end()) fail(t, refuse->second);
        if (t.s == "long" && is(i + 1, "long")) fail(t, "Metal has no long long");
        if (t.s == "static" && !function.empty()) fail(t, "Metal has no static variables in functions");
        if (t.s == "if" && is(i + 1, "constexpr")) fail(t, "if constexpr is C++17: Metal 3 is C++14");
        if (t.s.compare(0, 9, "__builtin") == 0) fail(t, "compiler built-ins do not exist in Metal: " + t.s);
        if (!function.empty() && is(i + 1, "(") && !is(i - 1, ".")) calls[function].insert(t.s);
        if (!function.empty() && is(i + 1, "<")) calls[function].insert(t.s); // name<T>(…)

        if (t.s == "threadgroup") {
            // `threadgroup T name[n];` is a variable; `threadgroup T *name` a pointer into threadgroup memory.
            size_t j = i + 1;
            while (j < in.size() && (word(j) || is(j, "::") || is(j, "<"))) {
                if (is(j, "<")) { j = closing(j); continue; }
                j++;
            }
            bool variable = !function.empty() && (is(j, "[") || is(j, ";") || is(j, ",") || is(j, "=")) && j - i > 2 && (is(i - 1, ";") || is(i - 1, "{") || is(i - 1, "}"));
            if (variable) return threadgroupVariable(i, j - 1, kernel);
            if (reading == Reading::Run) emitLineOnly(t);
            else emit(space(t.s), t);
            return i + 1;
        }
        if (t.s == "coherent" && is(i + 1, "(")) { emitLineOnly(t); return closing(i + 1); }
        if (spaces.count(t.s)) { Token c = t; c.s = space(t.s); emit(c); return i + 1; }
        const std::string &user = function.empty() ? initialising : function;
        if (!user.empty() && (derived.count(t.s) || functionConstant(t.s))) uses[user].insert(t.s);
        if (derived.count(t.s)) { Token c = t; c.s = "msl_derived_" + t.s + "()"; emit(c); return i + 1; }
        if (t.s == "is_function_constant_defined" && is(i + 1, "(")) { Token c = t; c.s = "msl_defined_" + in[i + 2].s; emit(c); if (!user.empty()) uses[user].insert("?" + in[i + 2].s); return closing(i + 1); }
        if (is(i + 1, "(") && i > 0 && !is(i - 1, "operator") && !is(i - 1, "struct") && !(function.empty() && typeParameters.count(t.s) && !typeUse(i))) {
            if (isVector(t.s) && t.s.compare(0, 7, "packed_") != 0) { Token c = t; c.s = "::metal::make<" + t.s + ">"; emit(c); return i + 1; }
            if (typeParameters.count(t.s)) { Token c = t; c.s = "::metal::make_any<" + t.s + ">"; emit(c); return i + 1; }
        }
        if (t.s == "vec" && is(i + 1, "<")) {
            size_t j = closing(i + 1);
            if (is(j, "(")) { Token c = t; c.s = "::metal::make<" + plainType(i, j) + ">"; emit(c); return j; }
        }
        emit(t);
        return i + 1;
    }
    bool functionConstant(const std::string &name) const {
        return std::any_of(constants.begin(), constants.end(), [&](const Constant &c) { return c.name == name; });
    }
    // Positions of the function constants that a function needs, through what it calls.
    std::vector<size_t> needed(const std::string &function) {
        std::set<std::string> reached;
        std::vector<std::string> open{function};
        std::set<size_t> found;
        while (!open.empty()) {
            std::string f = open.back();
            open.pop_back();
            if (!reached.insert(f).second) continue;
            for (auto &c : calls[f]) if (calls.count(c)) open.push_back(c);
            for (auto &u : uses[f]) {
                if (derived.count(u)) open.push_back(u);
                for (size_t i = 0; i < constants.size(); i++) if (constants[i].name == u) found.insert(i);
            }
        }
        return {found.begin(), found.end()};
    }
    bool typeUse(size_t i) const { return i > 0 && (is(i - 1, "=") || is(i - 1, "(") || is(i - 1, ",") || is(i - 1, "return")); }

    // threadgroup TYPE a[n][m], b;  →  a reference into the group's memory for each name
    size_t threadgroupVariable(size_t i, size_t name, bool kernel) {
        const Token &at = in[i];
        if (!kernel) fail(at, "threadgroup variables can be declared in kernels only");
        std::string type = (reading == Reading::Run ? "" : space("threadgroup") + " ") + plainType(i + 1, name);
        while (true) {
            size_t dims = name + 1, end = dims;
            while (is(end, "[")) end = closing(end);
            if (is(end, "=")) { fail(at, "threadgroup variables cannot be initialised"); while (!is(end, ";")) end++; }
            std::string id = std::to_string(variables.size()), size;
            for (size_t k = dims; k < end; k++) {
                if (word(k)) for (auto &c : constants) if (c.name == in[k].s) fail(in[k], "a function constant cannot be an array size");
                size += in[k].s + " ";
            }
            variables.push_back({in[name].s, "msl_variable_type_" + id});
            if (reading != Reading::Run) {
                emit(type + " (&" + in[name].s + ")" + size + " = *(" + type + " (*)" + size + ")0;", at);
                if (is(end, ",")) { name = end + 1; continue; }
                return end + 1;
            }
            emit("typedef " + type + " msl_variable_type_" + id + " " + size + "; auto &" + in[name].s + " = msl_threadgroup_variable_at<msl_variable_type_" + id + ", " + id +
                 ">(msl_variables); msl_note_variable<msl_variable_type_" + id + ", " + id + ">();", at);
            if (is(end, ",")) { name = end + 1; continue; }
            return end + 1;
        }
    }

    void kernelFunction(size_t i) { // i: at "kernel"; emits up to the body's end and moves `at`
        const Token start = in[i];
        Kernel k;
        size_t j = i + 1;
        if (!is(j, "void")) fail(start, "a kernel returns void");
        k.name = in[j + 1].s;
        if (!is(j + 2, "(")) { fail(start, "kernel name expected"); at = j; return; }
        size_t open = j + 2, close = closing(open) - 1;
        emit("static void", start);
        emit(in[j + 1]);
        emit("(", in[open]);
        std::set<std::string> seen;
        for (size_t from = open + 1; from < close;) {
            size_t to = from, attribute = 0;
            int depth = 0;
            for (; to < close; to++) {
                if (is(to, "[") && is(to + 1, "[") && !attribute) attribute = to;
                if (is(to, "(") || is(to, "[") || is(to, "<")) depth++;
                if (is(to, ")") || is(to, "]") || is(to, ">")) depth--;
                if (is(to, ",") && depth == 0) break;
            }
            argument(k, from, attribute ? attribute : to, to, seen, from == open + 1);
            from = to + 1;
        }
        emit(")", in[close]);
        j = close + 1;
        if (is(j, "[")) { // [[max_total_threads_per_threadgroup(n)]]
            size_t e = closing(j);
            if (is(j + 2, "max_total_threads_per_threadgroup")) k.maxThreads = join(j + 4, closing(j + 3) - 1);
            j = e;
        }
        if (!is(j, "{")) { fail(start, "a kernel is defined where it is declared"); at = j; return; }
        if (!pendingMaxThreads.empty()) { k.maxThreads = pendingMaxThreads; pendingMaxThreads.clear(); }
        k.firstVariable = variables.size();
        size_t end = closing(j);
        body(j, end, true, k.name);
        k.variables = variables.size() - k.firstVariable;
        for (auto &other : kernels) if (other.name == k.name) fail(start, "kernels cannot be overloaded: " + k.name);
        if (onlyKernel.empty() || onlyKernel == k.name) kernels.push_back(k);
        at = end;
    }

    void argument(Kernel &k, size_t from, size_t attribute, size_t to, std::set<std::string> &seen, bool first) {
        size_t name = attribute;
        while (name > from && !word(name - 1)) name--;
        if (name == from || attribute == to) { if (to > from) fail(in[from], "kernel argument without an attribute: " + join(from, to)); return; }
        name--;
        if (!first) emit(",", in[from]);
        for (size_t i = from; i < name; i++) step(i, false, "");
        emit(in[name]);
        std::string what = in[attribute + 2].s, type = plainType(from, name), index;
        if (is(attribute + 3, "(")) index = join(attribute + 4, closing(attribute + 3) - 1);
        if (what == "buffer" || what == "threadgroup") {
            bool device = false, constant = false, group = false, pointer = false, reference = false, isConst = false;
            for (size_t i = from; i < name; i++) {
                device |= is(i, "device"); constant |= is(i, "constant"); group |= is(i, "threadgroup");
                pointer |= is(i, "*"); reference |= is(i, "&"); isConst |= is(i, "const");
            }
            if (what == "threadgroup" ? !group : !(device || constant)) fail(in[from], "kernel argument " + in[name].s + " must be a " + (what == "threadgroup" ? "threadgroup" : "device or constant") + " pointer");
            if (!pointer && !reference) { fail(in[from], "kernel argument " + in[name].s + " must be a pointer or a reference"); return; }
            if (!seen.insert(what + index).second) fail(in[from], "two kernel arguments share " + what + "(" + index + ")");
            std::string slot = (what == "buffer" ? "t->group->buffers[" : "t->group->threadgroup[") + index + "]";
            std::string target = type.substr(0, type.find_last_of(reference ? '&' : '*'));
            k.call.push_back((reference ? "*(" : "(") + target + "*)" + slot);
            k.arguments.push_back({in[name].s, what == "threadgroup" ? "MSL_ARGUMENT_THREADGROUP" : device ? "MSL_ARGUMENT_DEVICE" : "MSL_ARGUMENT_CONSTANT", index, target, device && !isConst, reference});
            return;
        }
        auto p = positions.find(what);
        if (p == positions.end()) { fail(in[attribute + 2], "unknown kernel argument attribute [[" + what + "]]"); return; }
        k.call.push_back("msl_position<" + type + ">::of(" + p->second + ")");
    }

    // constant T NAME [[function_constant(n)]];
    size_t functionConstant(size_t i, size_t end) {
        size_t attribute = i;
        while (!is(attribute, "[")) attribute++;
        std::string name = in[attribute - 1].s, type = plainType(i + 1, attribute - 1), index = join(attribute + 4, closing(attribute + 3) - 1);
        auto value = onlyKernel.empty() || index.find_first_not_of("0123456789") != std::string::npos ? given.end() : given.find((unsigned)std::stoul(index));
        if (value != given.end()) {
            emit("static constexpr " + type + " " + name + " = " + value->second + "; static constexpr bool msl_defined_" + name + " = true;", in[i]);
            return end + 1;
        }
        if (reading == Reading::Run) emit("static " + type + " " + name + "; static bool msl_defined_" + name + ";", in[i]);
        else emit("extern __constant " + in[attribute - 2].s + " " + name + "; extern __constant bool msl_defined_" + name + ";", in[i]);
        constants.push_back({name, type, index});
        return end + 1;
    }

    std::string pendingMaxThreads, initialising;
    bool table = false; // in a program-scope constant
    size_t at = 0;

    void run() {
        collectTypes();
        std::vector<int> braces;  // of namespaces
        while (at < in.size()) {
            size_t i = at;
            const Token &t = in[i];
            if (t.kind == Line) { at = step(i, false, ""); continue; }
            if (is(i, "[") && is(i + 1, "[")) {
                if (is(i + 2, "max_total_threads_per_threadgroup")) { pendingMaxThreads = join(i + 4, closing(i + 3) - 1); at = closing(i); continue; }
                if (is(i + 2, "kernel")) { Token k = t; at = closing(i); in[at - 1].s = "kernel"; in[at - 1].kind = Word; kernelFunction(at - 1); continue; }
            }
            if (is(i, "kernel")) { kernelFunction(i); continue; }
            if (is(i, "using") && is(i + 1, "namespace")) { while (!is(at, ";")) emit(in[at++]); emit(in[at++]); continue; }
            if (is(i, "namespace")) { while (!is(at, "{")) emit(in[at++]); emit(in[at++]); braces.push_back(1); continue; }
            if (is(i, "}") && !braces.empty()) { braces.pop_back(); emit(in[at++]); continue; }
            if (is(i, ";")) { emit(in[at++]); continue; }
            declaration();
        }
    }

    // A program-scope declaration: a type, a function, a template of either, or a constant.
    void declaration() {
        size_t i = at, j = i;
        bool isTemplate = is(i, "template");
        if (isTemplate && is(i + 1, "<")) j = closing(i + 1);
        else if (isTemplate) { fail(in[i], "explicit instantiations are not supported: write kernels out"); while (at < in.size() && !is(at, ";")) at++; return; }
        size_t head = j;
        bool type = is(j, "struct") || is(j, "enum") || is(j, "union") || is(j, "class") || is(j, "typedef") || is(j, "using") || is(j, "static_assert");
        // to the first ; { or = outside parentheses
        size_t paren = 0;
        while (j < in.size() && !is(j, ";") && !is(j, "{") && !(is(j, "=") && !is(j - 1, "operator"))) {
            if (is(j, "kernel")) { fail(in[j], "template kernels are not supported: write kernels out"); }
            if (is(j, "(")) { if (!paren && !is(j - 1, "alignas")) paren = j; j = closing(j); continue; }
            if (is(j, "[")) { j = closing(j); continue; }
            j++;
        }
        bool function = !type && paren && (is(j, "{") || is(j, ";"));
        size_t end = j;
        if (is(j, "{")) end = closing(j);
        if (function && is(j, "{")) {
            body(i, j, false, "");
            std::string name = in[paren - 1].s;
            calls[name];
            body(j, end, false, name);
            at = end;
            return;
        }
        while (end < in.size() && !is(end, ";")) end = is(end, "{") ? closing(end) : end + 1;
        if (type || function) {
            body(i, std::min(end + 1, in.size()), false, "");
            at = end + 1;
            return;
        }
        // a variable
        bool isConstant = false, isFunctionConstant = false, dependent = false;
        for (size_t k = head; k < end; k++) {
            if (is(k, "constant") && k < j) isConstant = true;
            if (is(k, "function_constant")) isFunctionConstant = true;
            if (k > j && (derived.count(in[k].s) || functionConstant(in[k].s))) dependent = true;
        }
        if (!isConstant) fail(in[i], "program scope variable must reside in constant address space");
        if (isFunctionConstant) { at = functionConstant(i, end); return; }
        if (dependent) {
            std::string name = in[j - 1].s;
            std::string type = plainType(head, j - 1);
            while (type.find("const ") == 0 || type.find("__") == 0) type = type.substr(type.find(' ') + 1);
            emit("static inline " + type + " msl_derived_" + name + "() { return ", in[i]);
            initialising = name;
            body(j + 1, end, false, "");
            initialising.clear();
            emit("; }", in[end]);
            derived.insert(name);
            at = end + 1;
            return;
        }
        if (reading == Reading::Run) emit("static", in[i]);
        table = true;
        body(i, end + 1, false, "");
        table = false;
        at = end + 1;
    }

    void checkRecursion() {
        for (auto &entry : calls) {
            std::set<std::string> reached;
            std::vector<std::string> open(entry.second.begin(), entry.second.end());
            while (!open.empty()) {
                std::string f = open.back();
                open.pop_back();
                if (!calls.count(f) || !reached.insert(f).second) continue;
                open.insert(open.end(), calls[f].begin(), calls[f].end());
            }
            if (reached.count(entry.first)) errors += "program_source: error: " + entry.first + " calls itself: recursion needs a call stack that Metal does not size by default\n";
        }
    }

    std::string finish() {
        std::string s;
        for (auto &t : out) s += t.space + t.s;
        if (reading != Reading::Run) return "# 1 \"program_source\"\n" + s + "\n";
        std::string head = "struct msl_list { msl_u32 v[1]; };\nstatic msl_threadgroup_variable msl_variables[" + std::to_string(variables.size() + 1) + "] = {";
        for (auto &v : variables) head += "{\"" + v.name + "\", 0, 0}, ";
        head += "};\ntemplate <class T, int ID> struct msl_noted { static bool done; };\n"
                "template <class T, int ID> bool msl_noted<T, ID>::done = (msl_variables[ID].bytes = sizeof(T), true);\n"
                "template <class T, int ID> MSL_UNCHECKED static inline void msl_note_variable() { (void)&msl_noted<T, ID>::done; }\n"
                "# 1 \"program_source\"\n";
        s = head + s + "\n# 1 \"launchers\"\n";
        std::string table;
        for (size_t n = 0; n < kernels.size(); n++) {
            Kernel &k = kernels[n];
            std::string id = std::to_string(n), call;
            for (auto &c : k.call) call += (call.empty() ? "" : ", ") + c;
            s += "MSL_UNCHECKED static void msl_launch_" + id + "(msl_thread *t) { (void)t; " + k.name + "(" + call + "); }\n";
            s += "static const msl_argument msl_arguments_" + id + "[] = {";
            for (auto &a : k.arguments)
                s += "{\"" + a.name + "\", " + a.kind + ", " + a.index + ", " + (a.writable ? "true" : "false") + ", sizeof(" + a.type + "), " + (a.reference ? "true" : "false") + "}, ";
            s += "{}};\nstatic const msl_u32 msl_needs_" + id + "[] = {";
            std::vector<size_t> needs = needed(k.name);
            for (size_t n : needs) s += std::to_string(n) + ", ";
            s += "0};\n";
            table += "{\"" + k.name + "\", msl_launch_" + id + ", msl_arguments_" + id + ", " + std::to_string(k.arguments.size()) + ", " + std::to_string(k.firstVariable) + ", " +
                     std::to_string(k.variables) + ", " + k.maxThreads + ", msl_needs_" + id + ", " +
                     std::to_string(needs.size()) + "}, ";
        }
        s += "static const msl_kernel msl_kernels[] = {" + table + "{}};\nstatic const msl_constant msl_constants[] = {";
        for (auto &c : constants) s += "{\"" + c.name + "\", " + c.index + ", sizeof(" + c.name + "), (void *)&" + c.name + ", &msl_defined_" + c.name + ", \"" + c.type + "\"}, ";
        s += "{}};\nextern \"C\" __attribute__((visibility(\"default\"))) const msl_library msl_exported_library = {msl_kernels, msl_variables, msl_constants, " + std::to_string(kernels.size()) + ", " +
             std::to_string(variables.size()) + ", " + std::to_string(constants.size()) + ", &msl_rt};\n";
        return s;
    }
};

} // namespace

Translation translate(const std::string &preprocessed, Reading reading, const std::string &kernel, const std::map<unsigned, std::string> &constants) {
    Translator t;
    t.reading = reading;
    t.onlyKernel = kernel;
    t.given = constants;
    t.in = tokenize(preprocessed);
    t.run();
    t.checkRecursion();
    return {t.finish(), t.errors};
}
