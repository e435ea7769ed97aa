package engine

import (
	"testing"

	"colibri/backend/compute"
	"colibri/backend/cpu"
)

// testBackend is the CPU with hooks.
type testBackend struct {
	compute.Backend
	layer  func(*compute.LayerCall) error // before a layer
	shared func()                         // before shared experts that were left for later
	script []int32                        // the tokens whose logits are made the greatest, one for each row of the head
}

func (b *testBackend) Layer(call *compute.LayerCall) error {
	if b.layer != nil {
		if err := b.layer(call); err != nil {
			return err
		}
	}
	return b.Backend.Layer(call)
}

func (b *testBackend) SharedExperts(call *compute.LayerCall) error {
	if b.shared != nil {
		b.shared()
	}
	return b.Backend.SharedExperts(call)
}

func (b *testBackend) Head(call *compute.HeadCall) error {
	if err := b.Backend.Head(call); err != nil {
		return err
	}
	vocabulary := len(call.Logits) / call.Rows
	for r := range call.Rows {
		if len(b.script) > 0 {
			clear(call.Logits[r*vocabulary:][:vocabulary])
			call.Logits[r*vocabulary+int(b.script[0])] = 1
			b.script = b.script[1:]
		}
	}
	return nil
}

// loadHooked loads a model on a testBackend with threads threads.
func loadHooked(t *testing.T, dir string, threads int, options Options) (*Model, *testBackend) {
	t.Helper()
	var hooked *testBackend
	registerBackend("test", func() (compute.Backend, error) {
		b, err := cpu.New(threads)
		hooked = &testBackend{Backend: b}
		return hooked, err
	})
	options.Backend = "test"
	m := openModel(t, dir, options) // sets hooked
	return m, hooked
}
