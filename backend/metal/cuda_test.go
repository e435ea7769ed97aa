package metal

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// cudaSource is the shader text for clang's CUDA mode: function constants become compile-time ones, addresses point to global memory,
// everything is inlined as Apple's compiler does, kernels get a wrapper that finds their position, threadgroup arrays become shared.
// Matrix instructions are left out.
func cudaSource(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("#include \"shim.h\"\n")
	for _, name := range sourceFiles {
		if name == "gemm.metal" || name == "prefill.metal" {
			continue
		}
		text, err := shaders.ReadFile("shaders/" + name)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "#line 1 \"%s\"\n%s\n", name, text)
	}
	s := strings.ReplaceAll(b.String(), "#include <metal_stdlib>", "")
	s = regexp.MustCompile(`constant (uint|bool) (\w+) \[\[function_constant\((\d+)\)\]\];`).ReplaceAllString(s, "constexpr $1 $2 = CONSTANT_VALUE_$3;")
	s = regexp.MustCompile(`(?m)^(\s+)threadgroup (\w+ \w+\[[^\]]+\];)`).ReplaceAllString(s, "${1}SHARED $2")
	s = regexp.MustCompile(`reinterpret_cast<device ([\w ]+) \*>\(address\)`).ReplaceAllString(s, "($1 *)($1 GLOBAL_MEMORY *)(address)")
	kernels := regexp.MustCompile(`kernel void (\w+)\(constant (\w+) &p \[\[buffer\(0\)\]\],([^)]*(?:\([^)]*\)[^)]*)*)\) \{`)
	var wrappers strings.Builder
	for _, m := range kernels.FindAllStringSubmatch(s, -1) {
		var arguments []string
		for _, a := range strings.Split(m[3], ",") {
			value := map[string]string{"threadgroup_position_in_grid": "threadgroup_position()", "simdgroup_index_in_threadgroup": "thread_number() / 32",
				"thread_index_in_simdgroup": "thread_number() % 32", "thread_index_in_threadgroup": "thread_number()"}[regexp.MustCompile(`\[\[(\w+)\]\]`).FindStringSubmatch(a)[1]]
			if value == "" {
				t.Fatalf("kernel %s has an argument that is not known here: %s", m[1], a)
			}
			arguments = append(arguments, value)
		}
		fmt.Fprintf(&wrappers, "extern \"C\" GLOBAL void %s_entry(%s p) { %s(p, %s); }\n", m[1], m[2], m[1], strings.Join(arguments, ", "))
	}
	s = regexp.MustCompile(` \[\[\w+(\(\d+\))?\]\]`).ReplaceAllString(s, "")
	s = regexp.MustCompile(`(?m)^inline `).ReplaceAllString(s, "INLINED ")
	return strings.ReplaceAll(s, "kernel void ", "INLINED void ") + wrappers.String() + "#pragma clang force_cuda_host_device end\n"
}

var (
	ptxAnd = regexp.MustCompile(`^\s*and\.b32\s+(%r\d+), (%r\d+), (\d+);`)
	ptxOr  = regexp.MustCompile(`^\s*or\.b32\s+(%r\d+), (%r\d+), (\d+);`)
	ptxReg = regexp.MustCompile(`%r\d+\b`)
)

// joinMasks makes one lop3 of an `and` and an `or` with constants, which changes no number: NVIDIA's own compiler does, clang 19 does not.
// Registers are numbered anew in every kernel.
func joinMasks(ptx string) string {
	kernels := strings.Split(ptx, ".visible .entry")
	for i, kernel := range kernels {
		uses := map[string]int{}
		for _, register := range ptxReg.FindAllString(kernel, -1) {
			uses[register]++
		}
		type mask struct {
			from, constant string
			line           int
		}
		masks := map[string]mask{}
		var out []string
		for line := range strings.Lines(kernel) {
			if m := ptxAnd.FindStringSubmatch(line); m != nil && uses[m[1]] == 2 {
				masks[m[1]] = mask{m[2], m[3], len(out)}
			}
			if m := ptxOr.FindStringSubmatch(line); m != nil {
				if a, ok := masks[m[2]]; ok {
					out[a.line] = ""
					line = fmt.Sprintf("\tlop3.b32 \t%s, %s, %s, %s, 0xEA;\n", m[1], a.from, a.constant, m[3])
				}
			}
			out = append(out, line)
		}
		kernels[i] = strings.Join(out, "")
	}
	return strings.Join(kernels, ".visible .entry")
}

// TestShadersCompileAsCUDA compiles the kernels to PTX: for the encoding that matters most, and where COLIBRI_PTX_DIR names a folder for every
// encoding and into it, for the bench. "wide", "few" and "own" are forms of matvec, the first two of expert_gate_up as well.
func TestShadersCompileAsCUDA(t *testing.T) {
	clang, err := exec.LookPath("clang++-19")
	if err != nil {
		t.Skip("clang++-19 is not installed: the shaders were not compiled as CUDA; what they compute is for the tests with -tags metalsim, or a Mac's")
	}
	encodings := map[string][2]string{"int4-g64": {"7", "8"}}
	rows := []string{"1"}
	dir := os.Getenv("COLIBRI_PTX_DIR")
	if dir == "" {
		dir = t.TempDir()
	} else {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for i, name := range []string{"f32", "bf16", "f16", "int8-row", "int4-row", "int2-row", "", "int3-g64", "fp8"} {
			if name != "" {
				encodings[name] = [2]string{fmt.Sprint(i + 1), "1"}
			}
		}
		rows = []string{"1", "4"}
	}
	source := filepath.Join(t.TempDir(), "shaders.cu")
	if err := os.WriteFile(source, []byte(cudaSource(t)), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, encoding := range encodings {
		for _, xrows := range rows {
			for form, flags := range map[string][2]string{"wide": {"true", "false"}, "few": {"false", "true"}, "own": {"false", "false"}} {
				out := filepath.Join(dir, name+"-x"+xrows+"-"+form+".ptx")
				arguments := []string{"-x", "cuda", "--cuda-device-only", "--cuda-gpu-arch=sm_90", "--cuda-feature=+ptx80", "-nocudainc", "-nocudalib", "-O3", "-S", "-std=c++17", "-I", "cuda",
					"-ffp-contract=off", "-Wall", "-Werror", "-Wno-unused-function", "-Wno-unused-const-variable", "-Wno-pragma-once-outside-header", "-Wno-unknown-cuda-version"}
				for i, v := range []string{encoding[0], encoding[1], "true", encoding[0], encoding[1], "true", xrows, "512", "64", "true", "2", flags[0], flags[1]} {
					arguments = append(arguments, fmt.Sprintf("-DCONSTANT_VALUE_%d=%s", i, v))
				}
				if text, err := exec.Command(clang, append(arguments, source, "-o", out)...).CombinedOutput(); err != nil {
					t.Fatalf("%s: %v\n%.3000s", name, err, text)
				}
				ptx, err := os.ReadFile(out)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(out, []byte(joinMasks(string(ptx))), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}
