//go:build metalsim && linux

package metal_test

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"colibri/backend/bundled"
	"colibri/backend/engine"
	"colibri/backend/metal/simulator"
)

// Whole models through the engine, on the GPU and on the processor: the same greedy tokens, the same experts, logits as close as two orders of
// summation are.

// modelLimit is max|Δlogit| / max|logit| between the two backends: float32 sums of every layer in two orders; 1.3e-6 was the most seen.
const modelLimit = 1e-5

type answer struct {
	logits []float32
	routes map[int][]int32
	greedy []int32
}

func ask(t *testing.T, dir, backend string, prompt []int32, tokens int) answer {
	t.Helper()
	m, err := engine.Load(context.Background(), dir, engine.Options{Backend: backend, Precise: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}()
	a := answer{routes: map[int][]int32{}}
	err = m.Logits(context.Background(), prompt, func(_, layer int, experts []int32) {
		a.routes[layer] = append(a.routes[layer], experts...)
	}, func(_ int, row []float32) error {
		a.logits = append(a.logits, row...)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	s, err := m.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	r, err := s.Generate(context.Background(), engine.Request{Prompt: prompt, MaxTokens: tokens, Sampling: engine.Greedy()}, func(engine.Piece) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	a.greedy = r.IDs
	return a
}

func compare(t *testing.T, gpu, processor answer, limit float64) {
	t.Helper()
	size, worst := 0.0, 0.0
	for i, v := range processor.logits {
		size = max(size, math.Abs(float64(v)))
		worst = max(worst, math.Abs(float64(v)-float64(gpu.logits[i])))
	}
	t.Logf("logits differ by %.2g of the largest", worst/size)
	if !(worst/size <= limit) {
		t.Errorf("logits differ by %.2g of the largest, at most %.0e allowed", worst/size, limit)
	}
	if !slices.Equal(gpu.greedy, processor.greedy) {
		t.Errorf("greedy tokens %v on the GPU, %v on the processor", gpu.greedy, processor.greedy)
	}
	for layer, ids := range processor.routes {
		if !slices.Equal(gpu.routes[layer], ids) {
			t.Errorf("layer %d is routed differently", layer)
		}
	}
}

func modelDirs(t *testing.T) []string {
	t.Helper()
	dirs, err := filepath.Glob("../../testdata/oracles/*")
	if err != nil {
		t.Fatal(err)
	}
	containers, err := filepath.Glob("../../testdata/containers/*")
	if err != nil {
		t.Fatal(err)
	}
	if len(dirs) < 7 || len(containers) < 7 {
		t.Fatalf("%d reference checkpoints and %d containers", len(dirs), len(containers))
	}
	return append(dirs, containers...)
}

func TestOraclesGiveTheProcessorsTokens(t *testing.T) {
	for _, dir := range modelDirs(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join(dir, "reference.json"))
			if err != nil {
				t.Fatal(err)
			}
			var reference struct {
				Prompt []int32 `json:"prompt"`
				Greedy []int32 `json:"greedy"`
			}
			if err := json.Unmarshal(text, &reference); err != nil || len(reference.Prompt) == 0 {
				t.Fatalf("%v: %d prompt ids", err, len(reference.Prompt))
			}
			simulator.Configure(simulator.Options{Collect: true})
			gpu := ask(t, dir, "metal", reference.Prompt, len(reference.Greedy))
			if err := simulator.Check(); err != nil {
				t.Error(err)
			}
			if n := simulator.LiveObjects(""); n != 0 {
				t.Errorf("%d Metal objects outlive the model", n)
			}
			compare(t, gpu, ask(t, dir, "cpu", reference.Prompt, len(reference.Greedy)), modelLimit)
		})
	}
}

// Command buffers that fail while a whole model answers are repeated on the processor: the same tokens, and a count that says so.
func TestAnAnswerOutlastsFailingCommandBuffers(t *testing.T) {
	dir := "../../testdata/oracles/glm_moe_dsa"
	prompt := []int32{5, 17, 200, 3, 88, 41, 9, 120, 33, 7, 64, 11}
	simulator.Configure(simulator.Options{Collect: true})
	m, err := engine.Load(context.Background(), dir, engine.Options{Backend: "metal"})
	if err != nil {
		t.Fatal(err)
	}
	s, err := m.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	const tokens = 8
	code := 1
	simulator.FailCommandBuffer(2, code) // in the prompt
	r, err := s.Generate(context.Background(), engine.Request{Prompt: prompt, MaxTokens: tokens, Sampling: engine.Greedy()}, func(engine.Piece) error {
		code = code%14 + 1
		simulator.FailCommandBuffer(uint64(code), code) // one of the next token's, another each time
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	gpu := m.Stats().GPU
	if gpu == nil || gpu.FallenBack < tokens {
		t.Errorf("%d tokens with a failure each: %+v", tokens, gpu)
	}
	s.Close()
	if err := errors.Join(m.Close(), simulator.Check()); err != nil {
		t.Error(err)
	}
	if processor := ask(t, dir, "cpu", prompt, tokens); !slices.Equal(r.IDs, processor.greedy) {
		t.Errorf("tokens %v, %v expected", r.IDs, processor.greedy)
	}
}

// A model's outputs are the same to the bit whether memory is declared by a residency set, one by one, or the system has no sets.
func TestTheResidencySetDoesNotChangeAModelsLogits(t *testing.T) {
	prompt := []int32{5, 17, 200, 3, 88, 41, 9, 120, 33, 7, 64, 11}
	for _, name := range []string{"glm_moe_dsa", "qwen3_moe"} {
		var want answer
		for _, mode := range []struct {
			gate string
			sets simulator.ResidencySets
		}{{"1", simulator.Available}, {"0", simulator.Available}, {"", simulator.Unavailable}, {"", simulator.Unknown}} {
			t.Setenv("COLI_METAL_RESSET", mode.gate)
			simulator.Configure(simulator.Options{Collect: true, ResidencySets: mode.sets})
			got := ask(t, "../../testdata/oracles/"+name, "metal", prompt, 4)
			if err := simulator.Check(); err != nil {
				t.Error(err)
			}
			if want.logits == nil {
				want = got
			}
			if !slices.Equal(got.logits, want.logits) || !slices.Equal(got.greedy, want.greedy) {
				t.Errorf("%s with gate %q and sets %d: other logits or tokens than with the set on", name, mode.gate, mode.sets)
			}
		}
	}
}

// The model that ships, as it ships.
func TestTheBundledModelGivesTheProcessorsTokens(t *testing.T) {
	if os.Getenv("COLIBRI_METAL_LONG") == "" {
		t.Skip("not run: it takes a minute of a processor; COLIBRI_METAL_LONG=1 runs it, TestOraclesGiveTheProcessorsTokens covers small models")
	}
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	dir, err := bundled.Path(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	var prompt []int32
	for i := range int32(40) {
		prompt = append(prompt, 100+i*i%977)
	}
	simulator.Configure(simulator.Options{Collect: true})
	gpu := ask(t, dir, "metal", prompt, 32)
	if err := simulator.Check(); err != nil {
		t.Error(err)
	}
	compare(t, gpu, ask(t, dir, "cpu", prompt, 32), modelLimit)
}
