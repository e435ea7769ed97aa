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

// cudaSource is the shader text for clang's CUDA mode: function constants become compile-time ones, kernels get a wrapper that finds
// their position, threadgroup arrays become shared. Matrix instructions are left out.
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
	return strings.ReplaceAll(s, "kernel void ", "static void ") + wrappers.String() + "#pragma clang force_cuda_host_device end\n"
}

// TestShadersCompileAsCUDA compiles the kernels to PTX for the encodings that matter, and leaves the PTX in COLIBRI_PTX_DIR if that is set.
func TestShadersCompileAsCUDA(t *testing.T) {
	clang, err := exec.LookPath("clang++-19")
	if err != nil {
		t.Skip("no clang++-19 here: the shaders were not compiled as CUDA")
	}
	encodings := map[string][]string{"int4-g64": {"7", "8"}}
	dir := os.Getenv("COLIBRI_PTX_DIR")
	if dir == "" {
		dir = t.TempDir()
	} else if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if os.Getenv("COLIBRI_PTX_DIR") != "" { // all that the bench runs
		for name, constants := range map[string][]string{"int8-row": {"4", "1"}, "f32": {"1", "1"}, "int3-g64": {"8", "1"}, "fp8": {"9", "1"}} {
			encodings[name] = constants
		}
	}
	source := filepath.Join(t.TempDir(), "shaders.cu")
	if err := os.WriteFile(source, []byte(cudaSource(t)), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, constants := range encodings {
		const rows = "1"
		out := filepath.Join(dir, name+"-x"+rows+".ptx")
		arguments := []string{"-x", "cuda", "--cuda-device-only", "--cuda-gpu-arch=sm_90", "--cuda-feature=+ptx80", "-nocudainc", "-nocudalib", "-O3", "-S", "-std=c++17", "-I", "cuda",
			"-Wall", "-Werror", "-Wno-unused-function", "-Wno-unused-const-variable", "-Wno-pragma-once-outside-header", "-Wno-unknown-cuda-version"}
		for i, v := range []string{constants[0], constants[1], "true", constants[0], constants[1], "true", rows, "512", "64", "true", "2"} {
			arguments = append(arguments, fmt.Sprintf("-DCONSTANT_VALUE_%d=%s", i, v))
		}
		if text, err := exec.Command(clang, append(arguments, source, "-o", out)...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%.3000s", name, err, text)
		}
	}
}
