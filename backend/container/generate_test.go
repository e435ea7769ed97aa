package container

import (
	"context"
	"encoding/json"
	"maps"
	"math"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// Random weights of every format are symmetric, of the intended spread, finite, and the same again for the same seed.
func TestGeneratedWeights(t *testing.T) {
	m := readConfig(t, "oracles/glm_moe_dsa")
	m["num_nextn_predict_layers"] = 1
	config, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	for _, format := range []string{"f32", "bf16", "int8", "int4-g64", "int4", "int3", "int2", "fp8"} {
		dir := filepath.Join(t.TempDir(), format)
		if _, err := generate(context.Background(), dir, config, all(enc(t, format)), 7, nil, &killed{}); err != nil {
			t.Fatal(err)
		}
		c := open(t, dir)
		if c.Config.MTPLayers != 1 || len(c.Ignored) > 0 {
			t.Errorf("%s: %d MTP layers, unused %v", format, c.Config.MTPLayers, c.Ignored)
		}
		for _, name := range []string{"model.layers.1.mlp.experts.2.gate_proj.weight", "model.layers.0.self_attn.o_proj.weight", "model.layers.4.eh_proj.weight", "model.layers.1.mlp.gate.weight"} {
			values, err := c.Floats(name)
			if err != nil {
				t.Fatal(err)
			}
			w, _ := c.Weight(name)
			var sum, squares float64
			for _, v := range values {
				sum += float64(v)
				squares += float64(v) * float64(v)
			}
			n := float64(len(values))
			want := 1 / math.Sqrt(float64(w.Columns))
			if strings.HasSuffix(name, "mlp.gate.weight") {
				want *= 2
			}
			// Scales vary by a quarter; over many of them that averages out.
			allowed := 0.1
			if w.Scales.Bytes > 0 && w.Scales.Bytes < 4*64 {
				allowed = 0.3
			}
			if deviation := math.Sqrt(squares / n); math.Abs(sum/n) > 4*want/math.Sqrt(n) || math.Abs(deviation/want-1) > allowed {
				t.Errorf("%s: %s has mean %.3g and deviation %.3g, want 0 and %.3g", format, name, sum/n, deviation, want)
			}
		}
		a, _ := c.Floats("model.layers.1.mlp.experts.2.up_proj.weight")
		b, _ := c.Floats("model.layers.1.mlp.experts.3.up_proj.weight")
		if a[0] == b[0] && a[1] == b[1] && a[2] == b[2] && a[3] == b[3] {
			t.Errorf("%s: two experts begin alike", format)
		}
		again := filepath.Join(t.TempDir(), "again")
		if _, err := generate(context.Background(), again, config, all(enc(t, format)), 7, nil, &killed{}); err != nil {
			t.Fatal(err)
		}
		if !maps.Equal(contentsOf(t, dir), contentsOf(t, again)) {
			t.Errorf("%s: the same seed gave other bytes", format)
		}
	}
}

func TestPresetsAreValid(t *testing.T) {
	for _, name := range Presets() {
		config, o, err := Preset(name)
		if err != nil {
			t.Fatal(err)
		}
		c, err := ParseConfig(config, nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		t.Logf("%s: %+v", name, SizeOf(c, o))
	}
	config, o, _ := Preset("streaming-4gb")
	c, _ := ParseConfig(config, nil)
	if s := SizeOf(c, o); s.ExpertBytes < 4e9 || s.ExpertBytes > 4.5e9 || s.ResidentBytes > 200e6 {
		t.Errorf("%+v", s)
	}
	if _, _, err := Preset("none"); err == nil {
		t.Error("an unknown shape was accepted")
	}
}

// Converting needs memory for a few experts and bands, however many there are: here 38 million weights, of which four
// experts of half a million are in flight.
func TestConvertMemoryIsBounded(t *testing.T) {
	const inner, hidden = 512, 1024
	config := map[string]any{"model_type": "qwen3_moe", "vocab_size": 512, "hidden_size": hidden, "moe_intermediate_size": inner, "num_hidden_layers": 2, "num_attention_heads": 8,
		"num_key_value_heads": 2, "head_dim": 64, "num_experts": 12, "num_experts_per_tok": 4, "max_position_embeddings": 128, "rope_theta": 10000}
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	in := filepath.Join(t.TempDir(), "in")
	if _, err := generate(context.Background(), in, text, all(Encoding{Format: Int8Row}), 1, nil, &killed{}); err != nil {
		t.Fatal(err)
	}
	heap := func() uint64 {
		runtime.GC() // live memory, not garbage
		var now runtime.MemStats
		runtime.ReadMemStats(&now)
		return now.HeapAlloc
	}
	before, peak, writes := heap(), uint64(0), 0
	d := &sampledDisk{each: func() {
		if writes++; writes%7 == 0 {
			peak = max(peak, heap())
		}
	}}
	if _, err := convert(context.Background(), in, filepath.Join(t.TempDir(), "out"), Options{Experts: Encoding{Int4Group, 64}, ShardBytes: 8 << 20}, nil, d); err != nil {
		t.Fatal(err)
	}
	// In flight are GOMAXPROCS + 2 experts, each with one matrix as float32 twice (the weights, and unpacked again to measure
	// the error), its source and its result, and the record it becomes. A megabyte is for headers and buffers.
	inFlight := min(runtime.GOMAXPROCS(0), 8) + 2
	limit := uint64(inFlight*(inner*hidden*(4+4+1+1)+inner*hidden*3) + 1<<20)
	t.Logf("live heap grew by %d KB, limit %d KB", (peak-before)>>10, limit>>10)
	if peak-before > limit {
		t.Errorf("the live heap grew by %d KB, more than %d KB", (peak-before)>>10, limit>>10)
	}
}
