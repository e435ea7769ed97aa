package engine

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

var inf = float32(math.Inf(1))

func mustSampler(t *testing.T, s Sampling, prompt ...int32) *sampler {
	t.Helper()
	sampler, err := newSampler(s, prompt)
	if err != nil {
		t.Fatal(err)
	}
	return sampler
}

func mustChoose(t *testing.T, s *sampler, logits []float32, n int) int32 {
	t.Helper()
	id, err := s.choose(logits, n)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// histogram counts what is drawn for the first n tokens.
func histogram(t *testing.T, s Sampling, logits []float32, n int) []int {
	t.Helper()
	sampler := mustSampler(t, s)
	counts := make([]int, len(logits))
	for i := range n {
		counts[mustChoose(t, sampler, logits, i)]++
	}
	return counts
}

func TestSettingsWithoutMeaningAreRefused(t *testing.T) {
	nan := math.NaN()
	for name, change := range map[string]func(*Sampling){
		"temperature NaN":        func(s *Sampling) { s.Temperature = nan },
		"temperature infinite":   func(s *Sampling) { s.Temperature = math.Inf(1) },
		"top-k negative":         func(s *Sampling) { s.TopK = -1 },
		"top-p 0":                func(s *Sampling) { s.TopP = 0 },
		"top-p 1.1":              func(s *Sampling) { s.TopP = 1.1 },
		"top-p NaN":              func(s *Sampling) { s.TopP = nan },
		"min-p 2":                func(s *Sampling) { s.MinP = 2 },
		"min-p NaN":              func(s *Sampling) { s.MinP = nan },
		"repetition penalty 0":   func(s *Sampling) { s.RepetitionPenalty = 0 },
		"repetition penalty -1":  func(s *Sampling) { s.RepetitionPenalty = -1 },
		"repetition penalty NaN": func(s *Sampling) { s.RepetitionPenalty = nan },
		"repetition penalty Inf": func(s *Sampling) { s.RepetitionPenalty = math.Inf(1) },
		"presence penalty NaN":   func(s *Sampling) { s.PresencePenalty = nan },
		"seed -2":                func(s *Sampling) { s.Seed = -2 },
	} {
		settings := DefaultSampling()
		change(&settings)
		if _, err := newSampler(settings, nil); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	for _, settings := range []Sampling{DefaultSampling(), Greedy()} {
		if err := settings.Validate(); err != nil {
			t.Errorf("%+v: %v", settings, err)
		}
	}
}

func TestGreedyTakesTheLowestIDAmongEquals(t *testing.T) {
	negative := Greedy()
	negative.Temperature = -1 // some clients say "greedy" so; dividing by it would turn −Inf into +Inf
	one := DefaultSampling()
	one.TopK = 1
	for _, settings := range []Sampling{Greedy(), negative, one} {
		for n := range 100 {
			if id := mustChoose(t, mustSampler(t, settings), []float32{-inf, 1, 3, 3, 0}, n); id != 2 {
				t.Fatalf("%+v chose %d", settings, id)
			}
		}
	}
}

func TestMaskedTokensAreNeverChosen(t *testing.T) {
	hot := Sampling{Temperature: 100, TopP: 1, RepetitionPenalty: 1.5, PresencePenalty: 1, Seed: 3}
	sampler := mustSampler(t, hot, 0, 1)
	sampler.accept(2)
	for n := range 1000 {
		if id := mustChoose(t, sampler, []float32{-inf, 0, 0, -inf}, n); id != 1 && id != 2 {
			t.Fatalf("a masked token was chosen: %d", id)
		}
	}
}

func TestDamagedLogits(t *testing.T) {
	nan := float32(math.NaN())
	for _, settings := range []Sampling{Greedy(), DefaultSampling()} {
		if _, err := mustSampler(t, settings).choose([]float32{1, nan, 0}, 0); !errors.Is(err, errNaN) {
			t.Errorf("a NaN gives %v", err)
		}
		if _, err := mustSampler(t, settings).choose([]float32{-inf, -inf}, 0); !errors.Is(err, errNoChoice) {
			t.Errorf("nothing to choose from gives %v", err)
		}
		if id := mustChoose(t, mustSampler(t, settings), []float32{1, inf, 0}, 0); id != 1 {
			t.Errorf("an infinite logit is passed over for %d", id)
		}
	}
}

func TestRepetitionPenaltyNeverRewards(t *testing.T) {
	settings := Greedy()
	settings.RepetitionPenalty = 1.5
	// −2 is seen: −3 after the penalty; dividing would have made it −1.33. 2 is seen: 1.33.
	sampler := mustSampler(t, settings, 0)
	if got := sampler.penalise([]float32{-2, -1}); got[0] != -3 || got[1] != -1 {
		t.Errorf("negative logits become %v", got)
	}
	if got := sampler.penalise([]float32{3, 1}); got[0] != 2 || got[1] != 1 {
		t.Errorf("positive logits become %v", got)
	}
	// A token of both prompt and answer is penalised once.
	sampler.accept(0)
	if got := sampler.penalise([]float32{3, 1}); got[0] != 2 {
		t.Errorf("penalised twice: %v", got)
	}
}

func TestPresencePenaltyCountsTheAnswerOnly(t *testing.T) {
	settings := Greedy()
	settings.PresencePenalty = 0.5
	sampler := mustSampler(t, settings, 0)
	sampler.accept(1)
	sampler.accept(1)
	if got := sampler.penalise([]float32{1, 1, 1}); !slices.Equal(got, []float32{1, 0.5, 1}) {
		t.Errorf("%v", got)
	}
	logits := []float32{1, 1, 1}
	sampler.penalise(logits)
	if !slices.Equal(logits, []float32{1, 1, 1}) {
		t.Errorf("the caller's logits were changed: %v", logits)
	}
}

func TestTopK(t *testing.T) {
	logits := []float32{1, 5, 4, 3, 2}
	settings := Sampling{Temperature: 5, TopK: 3, TopP: 1, RepetitionPenalty: 1, Seed: 1}
	if counts := histogram(t, settings, logits, 2000); counts[0] != 0 || counts[4] != 0 || counts[1] == 0 || counts[2] == 0 || counts[3] == 0 {
		t.Errorf("top-k 3 draws %v", counts)
	}
	for _, off := range []int{0, 5, 1000} {
		settings.TopK = off
		if counts := histogram(t, settings, logits, 2000); slices.Contains(counts, 0) {
			t.Errorf("top-k %d draws %v", off, counts)
		}
	}
	// Equals at the edge: the lower id stays.
	settings.TopK = 2
	if counts := histogram(t, settings, []float32{1, 1, 1}, 500); counts[2] != 0 || counts[0] == 0 || counts[1] == 0 {
		t.Errorf("ties at the edge of top-k draw %v", counts)
	}
}

func TestTopPKeepsTheSmallestSetThatReachesIt(t *testing.T) {
	// Probabilities 0.5, 0.3, 0.15, 0.05.
	logits := make([]float32, 4)
	for i, p := range []float64{0.15, 0.5, 0.05, 0.3} {
		logits[i] = float32(math.Log(p))
	}
	for _, c := range []struct {
		p    float64
		kept []int32
	}{{1e-9, []int32{1}}, {0.45, []int32{1}}, {0.6, []int32{1, 3}}, {0.9, []int32{1, 3, 0}}, {0.96, []int32{1, 3, 0, 2}}, {1, []int32{0, 1, 2, 3}}} {
		sampler := mustSampler(t, Sampling{Temperature: 1, TopP: c.p, RepetitionPenalty: 1, Seed: 1})
		mustChoose(t, sampler, logits, 0)
		var kept []int32
		for _, k := range sampler.candidates {
			kept = append(kept, k.id)
		}
		if !slices.Equal(kept, c.kept) {
			t.Errorf("top-p %g keeps %v, not %v", c.p, kept, c.kept)
		}
	}
}

// The shortcut that drops unlikely tokens before sorting must not change the nucleus.
func TestTopPEqualsTheDefinition(t *testing.T) {
	const seed = 11
	random := rand.New(rand.NewPCG(seed, 0))
	for trial := range 300 {
		logits := make([]float32, 1+random.IntN(200))
		for i := range logits {
			logits[i] = float32(random.NormFloat64() * 4 * random.Float64())
		}
		p := 1 - random.Float64()*random.Float64()
		sampler := mustSampler(t, Sampling{Temperature: 1, TopP: min(p, 0.9999), RepetitionPenalty: 1})
		mustChoose(t, sampler, logits, 0)

		order := make([]int32, len(logits))
		total := 0.0
		for i := range order {
			order[i] = int32(i)
			total += math.Exp(float64(logits[i]))
		}
		slices.SortStableFunc(order, func(a, b int32) int {
			if logits[a] > logits[b] {
				return -1
			} else if logits[a] < logits[b] {
				return 1
			}
			return 0
		})
		reached, n := 0.0, 0
		for reached < sampler.TopP*total*(1-1e-12) && n < len(order) {
			reached += math.Exp(float64(logits[order[n]]))
			n++
		}
		if len(sampler.candidates) != n {
			t.Fatalf("seed %d trial %d: top-p %g of %d tokens keeps %d, not %d", seed, trial, sampler.TopP, len(logits), len(sampler.candidates), n)
		}
	}
}

func TestMinP(t *testing.T) {
	logits := []float32{0, float32(math.Log(0.5)), float32(math.Log(0.09))}
	settings := Sampling{Temperature: 1, TopP: 1, MinP: 0.1, RepetitionPenalty: 1, Seed: 5}
	if counts := histogram(t, settings, logits, 2000); counts[2] != 0 || counts[1] == 0 {
		t.Errorf("min-p 0.1 draws %v", counts)
	}
	settings.MinP = 1
	if counts := histogram(t, settings, logits, 200); counts[0] != 200 {
		t.Errorf("min-p 1 draws %v", counts)
	}
}

func TestDrawsFollowTheProbabilities(t *testing.T) {
	want := []float64{0.1, 0.2, 0.3, 0.4}
	logits := make([]float32, len(want))
	for i, p := range want {
		logits[i] = float32(math.Log(p)) + 7
	}
	const n = 40000
	counts := histogram(t, Sampling{Temperature: 1, TopP: 1, RepetitionPenalty: 1, Seed: 9}, logits, n)
	for i, c := range counts {
		// Five standard deviations.
		if got := float64(c) / n; math.Abs(got-want[i]) > 5*math.Sqrt(want[i]*(1-want[i])/n) {
			t.Errorf("token %d has probability %g and was drawn with %g", i, want[i], got)
		}
	}
}

func TestSeeds(t *testing.T) {
	logits := make([]float32, 50)
	draw := func(seed int64) []int32 {
		settings := Sampling{Temperature: 1, TopP: 1, RepetitionPenalty: 1, Seed: seed}
		sampler := mustSampler(t, settings)
		var ids []int32
		for n := range 30 {
			ids = append(ids, mustChoose(t, sampler, logits, n))
		}
		return ids
	}
	if !slices.Equal(draw(42), draw(42)) {
		t.Error("the same seed gives different tokens")
	}
	if slices.Equal(draw(42), draw(43)) {
		t.Error("different seeds give the same tokens")
	}
	if slices.Equal(draw(-1), draw(-1)) {
		t.Error("a fresh seed is not fresh")
	}
	fresh := mustSampler(t, DefaultSampling())
	if fresh.Seed < 0 || fresh.Seed >= 1<<53 {
		t.Errorf("the fresh seed %d cannot be shown and typed back", fresh.Seed)
	}
}
