package cpu

import (
	"bytes"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
)

// The worker pool under the thread sanitizer: every unit of a region runs once, and nothing is read while it is written.
func TestPoolRunsEveryUnitOnce(t *testing.T) {
	program := filepath.Join(t.TempDir(), "pool_run")
	build := exec.Command("cc", "-O1", "-g", "-fsanitize=thread", "-Wall", "-Wextra", "-Werror", "-o", program, "testdata/pool_run.c", "pool.c", "-lpthread")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	seed := strconv.Itoa(int(rand.Uint32() >> 1))
	out, err := exec.Command(program, seed).CombinedOutput()
	if bytes.Contains(out, []byte("unexpected memory mapping")) {
		// The kernel has put the program where the sanitizer's shadow must be; setarch keeps it from that.
		out, err = exec.Command("setarch", "--addr-no-randomize", program, seed).CombinedOutput()
	}
	if err != nil {
		t.Fatalf("seed %s: %v\n%s", seed, err, out)
	}
}
