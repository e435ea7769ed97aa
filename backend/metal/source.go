package metal

import (
	"embed"
	"fmt"
	"strings"
)

//go:embed shaders/abi.h shaders/*.metal
var shaders embed.FS

// sourceFiles in the order in which they are compiled: one text, so that there is one library.
var sourceFiles = []string{"abi.h", "common.metal", "matvec.metal", "moe.metal", "rows.metal", "attention.metal", "select.metal", "gemm.metal", "prefill.metal"}

// Source is the text of all kernels. Line directives name the files, so that messages of the GPU's compiler do.
func Source() string {
	var b strings.Builder
	for _, name := range sourceFiles {
		text, err := shaders.ReadFile("shaders/" + name)
		if err != nil { // not in the binary: a mistake of the build that every test meets
			panic(err)
		}
		fmt.Fprintf(&b, "#line 1 \"%s\"\n%s\n", name, text)
	}
	return b.String()
}
