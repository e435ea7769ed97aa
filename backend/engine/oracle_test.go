package engine

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// tolerance is the project's bound for max|Δlogit| / max|logit| with float32 activations.
const tolerance = 1e-4

// loadModel loads a model whose numbers are compared with others'.
func loadModel(t testing.TB, dir string) *Model {
	t.Helper()
	return openModel(t, dir, Options{Backend: "cpu", Precise: true})
}

func openModel(t testing.TB, dir string, options Options) *Model {
	t.Helper()
	m, err := Load(context.Background(), dir, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Errorf("closing: %v", err)
		}
		if used := m.Stats().KVBytes; used != 0 {
			t.Errorf("%d bytes of keys and values are left after closing", used)
		}
	})
	return m
}

// evaluate gives all logits as float64, and the routed experts by layer, [position·perToken].
func evaluate(t testing.TB, m *Model, ids []int32) (logits []float64, routes map[int][]int32) {
	t.Helper()
	routes = map[int][]int32{}
	err := m.Logits(context.Background(), ids, func(_, layer int, experts []int32) {
		routes[layer] = append(routes[layer], experts...)
	}, func(_ int, row []float32) error {
		for _, l := range row {
			logits = append(logits, float64(l))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return logits, routes
}

// generate gives the greedy continuation, stop ids ignored.
func generate(t testing.TB, m *Model, prompt []int32, n int) []int32 {
	t.Helper()
	s, err := m.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	r, err := s.Generate(context.Background(), Request{Prompt: prompt, MaxTokens: n, Sampling: Greedy()}, func(Piece) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	return r.IDs
}

func compareRoutes(t *testing.T, o *oracle, routes map[int][]int32, positions int) {
	t.Helper()
	layers := 0
	for name, want := range o.tensors {
		var layer int
		if n, _ := fmt.Sscanf(name, "router.model.layers.%d.mlp.gate.2", &layer); n != 1 || name != fmt.Sprintf("router.model.layers.%d.mlp.gate.2", layer) {
			continue
		}
		layers++
		k := want.shape[1]
		for p := range positions {
			var ids []int32
			for _, id := range want.data[p*k:][:k] {
				ids = append(ids, int32(id))
			}
			slices.Sort(ids)
			if got := routes[layer][p*k:][:k]; !slices.Equal(got, ids) {
				t.Fatalf("layer %d routes position %d to %v, not %v", layer, p, got, ids)
			}
		}
	}
	if layers != len(routes) {
		t.Errorf("%d layers were routed, the reference has %d", len(routes), layers)
	}
}

func checkAgainst(t *testing.T, o *oracle, m *Model) map[int][]int32 {
	t.Helper()
	logits, routes := evaluate(t, m, o.Prompt)
	if e := furthest(logits, o.tensors["logits"].data); e > tolerance {
		t.Errorf("logits differ by %.2g", e)
	}
	if got := generate(t, m, o.Prompt, len(o.Greedy)); !slices.Equal(got, o.Greedy) {
		t.Errorf("greedy tokens %v, not %v", got, o.Greedy)
	}
	return routes
}

func TestOracles(t *testing.T) {
	for _, name := range oracleNames {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join("../../testdata/oracles", name)
			o := loadOracle(t, dir)
			compareRoutes(t, o, checkAgainst(t, o, loadModel(t, dir)), len(o.Prompt))
		})
	}
}

func TestPublishedContainers(t *testing.T) {
	dirs, err := filepath.Glob("../../testdata/containers/*")
	if err != nil || len(dirs) < 7 {
		t.Fatalf("%d containers (%v)", len(dirs), err)
	}
	for _, dir := range dirs {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			checkAgainst(t, loadOracle(t, dir), loadModel(t, dir))
		})
	}
}

// The model that ships, before its conversion. Its checkpoint is too large for the repository: COLIBRI_REFERENCE_MODEL names
// a folder that holds it with its reference.json and reference.safetensors.
func TestReferenceModel(t *testing.T) {
	dir := os.Getenv("COLIBRI_REFERENCE_MODEL")
	if dir == "" {
		t.Skip("the bundled model's checkpoint is not in the repository: name its folder in COLIBRI_REFERENCE_MODEL to check 96 greedy tokens; TestOracles checks the families")
	}
	o, m := loadOracle(t, dir), loadModel(t, dir)
	logits, _ := evaluate(t, m, o.Prompt)
	if e := furthest(logits, o.tensors["logits"].data); e > tolerance {
		t.Errorf("logits differ by %.2g", e)
	}
	if got := generate(t, m, o.Prompt, len(o.Greedy)); !slices.Equal(got, o.Greedy) {
		t.Errorf("greedy tokens %v, not %v", got, o.Greedy)
	}
}
