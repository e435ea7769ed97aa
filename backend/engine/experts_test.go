package engine

import (
	"context"
	"slices"
	"testing"

	"colibri/backend/compute"
)

// watchedExperts tells when experts of a layer are asked for and when a sweep has handed out its first ones.
type watchedExperts struct {
	Experts
	tell func(string)
}

func (w watchedExperts) Acquire(ctx context.Context, layer int, ids []int32) (Leases, error) {
	w.tell("reads")
	return w.Experts.Acquire(ctx, layer, ids)
}

func (w watchedExperts) Sweep(layer int, ids []int32) (Sweep, error) {
	w.tell("reads")
	return w.Experts.Sweep(layer, ids)
}

// Where experts may have to be read, a layer's reads begin before its shared experts are computed, for a token as for a prompt. Where all are in memory there
// is nothing to overlap, and shared experts stay part of the layer.
func TestSharedExpertsAreComputedWhileExpertsAreRead(t *testing.T) {
	dir := bundledDir(t)
	for _, c := range []struct {
		name    string
		limit   int64
		streams bool
	}{{"28 slots", leastLimit(t, dir, 28), true}, {"everything", 0, false}} {
		m, hooked := loadHooked(t, dir, 1, Options{MemoryBytes: c.limit, Guesses: GuessOff, Drafts: DraftsOff})
		var events []string
		tell := func(what string) { events = append(events, what) }
		m.experts = watchedExperts{m.experts, tell}
		hooked.layer = func(call *compute.LayerCall) error {
			if m.config.Sparse[call.Index] && !call.CachesOnly {
				tell("layer")
			}
			return nil
		}
		hooked.shared = func() { tell("shared") }
		want := []string{"layer", "reads"}
		if c.streams {
			want = append(want, "shared")
		}
		for _, prompt := range [][]int32{{7}, slices.Repeat([]int32{5, 9, 11}, 20)} {
			events = nil
			generate(t, m, prompt, 2)
			if len(events) == 0 || len(events)%len(want) != 0 {
				t.Fatalf("%s: %v", c.name, events)
			}
			for part := range slices.Chunk(events, len(want)) {
				if !slices.Equal(part, want) {
					t.Fatalf("%s, a prompt of %d: %v, want %v", c.name, len(prompt), part, want)
				}
			}
		}
	}
}
