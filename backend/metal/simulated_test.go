//go:build metalsim && linux

package metal

import (
	"testing"

	"colibri/backend/metal/simulator"
)

// openTest opens a backend on a simulated machine and fails the test on anything that the validator reports, and on objects
// that outlive the backend.
func openTest(t testing.TB, machine simulator.Options, options Options) *Backend {
	t.Helper()
	machine.Collect = true
	simulator.Configure(machine)
	b, err := OpenWith(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if err := simulator.Check(); err != nil {
			t.Error(err)
		}
		if n := simulator.LiveObjects(""); n != 0 {
			t.Errorf("%d Metal objects outlive the backend", n)
		}
	})
	return b
}

func open(t testing.TB) *Backend {
	return openTest(t, simulator.Options{}, Options{})
}
