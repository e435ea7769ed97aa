package engine

import (
	"context"
	"runtime"
	"slices"
	"testing"
)

// Where all experts are in memory a token allocates nothing, drafted or not: what remains are lists that grow with the answer, less than
// one allocation in two tokens. The least of a few answers counts, because the governor allocates now and then.
func TestATokenAllocatesNothing(t *testing.T) {
	m := openModel(t, bundledDir(t), Options{})
	prompt, err := m.Tokenizer().Encode("One day two brothers who")
	if err != nil {
		t.Fatal(err)
	}
	const from, to = 30, 90
	for depth := range 2 {
		m.pace = fixedPace(depth)
		var counts []float64
		for range 4 { // the first one brings the experts into memory
			s, tokens := newSession(t, m), 0
			var before, after runtime.MemStats
			_, err := s.Generate(context.Background(), Request{Prompt: prompt, MaxTokens: to, Sampling: Greedy()}, func(Piece) error {
				if tokens++; tokens == from {
					runtime.ReadMemStats(&before)
				}
				if tokens == to {
					runtime.ReadMemStats(&after)
				}
				return nil
			})
			if err != nil || tokens < to {
				t.Fatalf("%d tokens, %v", tokens, err)
			}
			counts = append(counts, float64(after.Mallocs-before.Mallocs)/(to-from))
		}
		if least := slices.Min(counts); least > 0.5 {
			t.Errorf("depth %d: %.2f allocations a token", depth, least)
		}
	}
}
