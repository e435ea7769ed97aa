package engine

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"colibri/backend/container"
)

// rounds tells a trial of n tokens, each of which took what cost says, and returns how many were generated with guesses.
func rounds(t *guessTrial, n int, cost func(token int, guesses bool) time.Duration) (guessed int) {
	for i := range n {
		guesses := t.guesses()
		if guesses {
			guessed++
		}
		t.spent(1, cost(i, guesses))
	}
	return guessed
}

func TestGuessesAreKeptOnlyIfTheyGain(t *testing.T) {
	const trial = guessBlocks * guessBlockTokens
	for _, c := range []struct {
		name string
		cost func(token int, guesses bool) time.Duration
		want bool
	}{
		{"a gain of a tenth", func(_ int, guesses bool) time.Duration {
			if guesses {
				return 90 * time.Millisecond
			}
			return 100 * time.Millisecond
		}, true},
		{"a loss", func(_ int, guesses bool) time.Duration {
			if guesses {
				return 110 * time.Millisecond
			}
			return 100 * time.Millisecond
		}, false},
		{"too little to tell", func(_ int, guesses bool) time.Duration {
			if guesses {
				return 99 * time.Millisecond
			}
			return 100 * time.Millisecond
		}, false},
		// A cache that fills makes every token faster than the one before: no merit of guesses.
		{"a cache that fills", func(token int, _ bool) time.Duration {
			return time.Duration(200-2*token) * time.Millisecond
		}, false},
		{"a small loss while the cache fills", func(token int, guesses bool) time.Duration {
			d := time.Duration(200-2*token) * time.Millisecond
			if guesses {
				d += 2 * time.Millisecond
			}
			return d
		}, false},
	} {
		g := newGuessTrial(GuessMeasured)
		if n := rounds(&g, trial, c.cost); n != trial/2 {
			t.Errorf("%s: %d of %d tokens of the trial with guesses", c.name, n, trial)
		}
		if g.guesses() != c.want {
			t.Errorf("%s: guesses are %v afterwards", c.name, g.guesses())
		}
		if n := rounds(&g, guessesHold-1, c.cost); c.want && n != guessesHold-1 || !c.want && n != 0 {
			t.Errorf("%s: %d guesses while the outcome holds", c.name, n)
		}
		rounds(&g, 1, c.cost)
		if n := rounds(&g, trial, c.cost); n != trial/2 {
			t.Errorf("%s: there is no second trial", c.name)
		}
	}
	for mode, want := range map[GuessMode]bool{GuessOff: false, GuessAlways: true} {
		g := newGuessTrial(mode)
		rounds(&g, 3*trial, func(int, bool) time.Duration { return time.Second })
		if g.guesses() != want {
			t.Errorf("mode %d: %v", mode, g.guesses())
		}
	}
}

func TestTheLikeliestExpertsAreNamed(t *testing.T) {
	c := &container.Config{Layers: 5, Sparse: []bool{false, true, false, true, true}}
	c.MoE = container.MoE{Experts: 6, PerToken: 4, Scoring: container.Sigmoid}
	g := newGuesser(c, GuessAlways)
	if want := []int{1, 3, 3, 4, 0}; !slices.Equal(g.next, want) {
		t.Errorf("the next sparse layers are %v", g.next)
	}
	logits := []float32{0, 3, -1, 2, 1, -2}
	if got := g.likeliest(logits, nil, c); !slices.Equal(got, []int32{1, 3, 4}) {
		t.Errorf("%v", got)
	}
	bias := []float32{0, 0, 0, -1, 0, 2} // sigmoids: .5 .95 .27 .88 .73 .12
	if got := g.likeliest(logits, bias, c); !slices.Equal(got, []int32{5, 1, 4}) {
		t.Errorf("with a bias %v", got)
	}
	c.MoE.Scoring = container.Softmax // .04 .64 .01 .24 .09 .00
	if got := g.likeliest(logits, []float32{0, 0, .5, 0, 0, .2}, c); !slices.Equal(got, []int32{1, 2, 3}) {
		t.Errorf("softmax with a bias %v", got)
	}
}

// setting is a way of streaming that must not show in the words.
type setting struct {
	slots   int // experts that fit
	guesses GuessMode
	readers int
}

// soakPrompts are token ids of ordinary questions and of random lengths, from one token to several sweeps.
func soakPrompts(t *testing.T, m *Model, n int) [][]int32 {
	t.Helper()
	texts := []string{"The weather today is", "Write a short story about a lighthouse keeper who", "2 + 2 =", "def fibonacci(n):", "Le chat est", "What is the capital of France?"}
	random := rand.New(rand.NewPCG(20, 4))
	prompts := make([][]int32, n)
	for i := range prompts {
		if i < len(texts) && i%2 == 0 && m.tokenizer != nil {
			ids, err := m.tokenizer.Encode(texts[i])
			if err != nil {
				t.Fatal(err)
			}
			prompts[i] = ids
			continue
		}
		for range 1 + random.IntN(1<<min(i, 8)) {
			prompts[i] = append(prompts[i], random.Int32N(int32(m.config.Vocabulary)))
		}
	}
	return prompts
}

// TestTheSameWordsHoweverExpertsAreRead generates from prompts at limits from one layer's experts of one token (fewer cannot be) to all of them, with and without
// speculative reads, with 1 to 16 readers. With COLIBRI_SOAK=1 it is 20 prompts and all combinations.
func TestTheSameWordsHoweverExpertsAreRead(t *testing.T) {
	dir := bundledDir(t)
	count, tokens := 3, 12
	settings := []setting{{4, GuessAlways, 1}, {28, GuessAlways, 16}, {28, GuessOff, 16}, {28, GuessMeasured, 3}} // 4 of a layer's 32 are used
	if os.Getenv("COLIBRI_SOAK") != "" {
		count, tokens = 20, 32
		settings = nil
		for _, slots := range []int{4, 28, 70, 140, 224} {
			for _, guesses := range []GuessMode{GuessOff, GuessAlways} {
				for _, readers := range []int{1, 2, 4, 8, 16} {
					settings = append(settings, setting{slots, guesses, readers})
				}
			}
		}
	}
	free, err := loadWith(t, dir, Options{Backend: "cpu", Guesses: GuessOff})
	if err != nil {
		t.Fatal(err)
	}
	prompts := soakPrompts(t, free, count)
	want := make([][]int32, count)
	for i, prompt := range prompts {
		want[i] = generate(t, free, prompt, tokens)
	}
	generated, limits := 0, map[int]int64{}
	for _, s := range settings {
		name := fmt.Sprintf("%d slots, guesses %d, %d readers", s.slots, s.guesses, s.readers)
		if limits[s.slots] == 0 {
			limits[s.slots] = leastLimit(t, dir, s.slots)
		}
		limit := limits[s.slots]
		m, err := loadWith(t, dir, Options{Backend: "cpu", MemoryBytes: limit, Guesses: s.guesses, Readers: s.readers})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for i, prompt := range prompts {
			if got := generate(t, m, prompt, tokens); !slices.Equal(got, want[i]) {
				t.Errorf("%s, prompt %d: %v, with everything resident %v", name, i, got, want[i])
			}
			generated++
		}
		stats := m.Stats()
		if stats.PeakBytes > limit {
			t.Errorf("%s: the peak of %d bytes is above the limit of %d", name, stats.PeakBytes, limit)
		}
		if s.slots < 100 && stats.Evictions == 0 {
			t.Errorf("%s: nothing was evicted", name)
		}
		if guessed := stats.GuessedReads > 0; guessed != (s.guesses == GuessAlways) && s.guesses != GuessMeasured && s.slots < 100 {
			t.Errorf("%s: %d speculative reads", name, stats.GuessedReads)
		}
		t.Logf("%s: %d hits, %d misses, %d of %d guesses used, %d slots", name, stats.Hits, stats.Misses, stats.GuessedUsed, stats.GuessedReads, stats.CachedSlots+stats.FreeSlots)
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
	t.Logf("%d answers of %d tokens in %d settings", generated, tokens, len(settings))
}

// leastLimit finds the least limit, to 64 KiB, under which slots experts of a size fit.
func leastLimit(t *testing.T, dir string, slots int) int64 {
	t.Helper()
	low, high := int64(0), int64(1<<30)
	for high-low > 64<<10 {
		limit := (low + high) / 2
		fits := false
		if m, err := Load(t.Context(), dir, Options{Backend: "cpu", MemoryBytes: limit}); err == nil {
			fits = m.experts.AtOnce(slices.Index(m.config.Sparse, true)) >= slots
			if err := m.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if fits {
			high = limit
		} else {
			low = limit
		}
	}
	return high
}

func loadWith(t *testing.T, dir string, options Options) (*Model, error) {
	t.Helper()
	m, err := Load(t.Context(), dir, options)
	if err == nil {
		t.Cleanup(func() { _ = m.Close() }) // again: errors were seen the first time
	}
	return m, err
}
