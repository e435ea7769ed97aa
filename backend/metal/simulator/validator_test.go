//go:build metalsim && linux

package simulator

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestRules runs the cases in tests/, which break each rule of the validator on purpose; their program is built beside the library.
func TestRules(t *testing.T) {
	folder := "../../../build/simulator"
	if sanitized {
		folder = "../../../build/simulator-asan"
	}
	program := folder + "/validator-tests"
	for _, file := range []string{program, folder + "/libcolibri-metal-sim.so"} { // also tells go test's cache what the result depends on
		if _, err := os.Stat(file); err != nil {
			t.Fatalf("%v: run make -C backend/metal/simulator", err)
		}
	}
	list, err := exec.Command(program, "-list").Output()
	if err != nil {
		t.Fatal(err)
	}
	names := strings.Fields(string(list))
	if len(names) < 40 {
		t.Fatalf("%d cases, expected 40 and more", len(names))
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			if out, err := exec.Command(program, name).CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
