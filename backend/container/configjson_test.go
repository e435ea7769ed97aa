package container

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func readConfig(t *testing.T, dir string) map[string]any {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(testdata, dir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(text, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

func parse(t *testing.T, m map[string]any) (*Config, error) {
	t.Helper()
	text, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return ParseConfig(text, nil)
}

func TestFamilies(t *testing.T) {
	for family, check := range map[string]func(c *Config) bool{
		"glm_moe_dsa": func(c *Config) bool {
			x := c.Attention.Index
			return c.Attention.Kind == MLA && x.Heads == 4 && x.HeadDim == 32 && x.TopK == 16 && slices.Equal(x.Full, []bool{true, false, true, true}) &&
				c.RoPE.Interleaved && c.RoPE.Dim == 16 && c.MoE.Groups == 1 && c.MoE.Scale == 2.5 && c.MTPLayers == 0
		},
		"glm4_moe_lite": func(c *Config) bool {
			return c.Attention.QueryRank == 64 && c.Attention.KVRank == 64 && c.Attention.NopeDim == 32 && c.Attention.ValueDim == 32 &&
				c.RoPE.InverseFrequencies[1] == math.Pow(1e6, -2./16) && slices.Equal(c.Sparse, []bool{false, true, true, true})
		},
		"deepseek_v3": func(c *Config) bool {
			m := 0.1*math.Log(4) + 1
			return c.MoE.Groups == 4 && c.MoE.TopGroups == 2 && c.MTPLayers == 1 && len(c.Sparse) == 5 && c.RoPE.Magnitude == 1 &&
				math.Abs(float64(c.Attention.Scale)-m*m/math.Sqrt(48)) < 1e-7
		},
		"glm4_moe": func(c *Config) bool {
			return c.Attention.Kind == GQA && c.Attention.Bias && c.Attention.QKNorm == QKNormHead && c.RoPE.Dim == 16 && !c.RoPE.Interleaved &&
				c.Attention.KVHeads == 2 && c.Attention.HeadDim == 32 && c.MoE.Scoring == Sigmoid && c.MoE.SharedInner == 64
		},
		"qwen3_moe": func(c *Config) bool {
			return c.MoE.Scoring == Softmax && c.MoE.Normalise && c.MoE.Experts == 16 && !slices.Contains(c.Sparse, false) && c.DenseInner == 0 &&
				c.RoPE.Dim == 32 && c.MoE.SharedInner == 0 && !c.MoE.SelectionBias
		},
		"olmoe": func(c *Config) bool {
			return c.Attention.QKNorm == QKNormFull && c.MoE.Inner == 192 && !c.MoE.Normalise && c.Attention.HeadDim == 32 && c.Attention.ClipQKV == 0
		},
	} {
		c, err := parse(t, readConfig(t, "oracles/"+family))
		if err != nil {
			t.Errorf("%s: %v", family, err)
		} else if !check(c) {
			t.Errorf("%s: %+v", family, c)
		}
	}
}

// The frequencies of the deepseek_v3 configuration (theta 10000, 16 dimensions, factor 4, original context 64), worked out by
// hand: pair 8·ln(64/(32·2π))/ln(10000)·… turns 32 times at −0.9 → 0, once at 2.02 → 3.
func TestYaRNFrequencies(t *testing.T) {
	c, err := parse(t, readConfig(t, "oracles/deepseek_v3"))
	if err != nil {
		t.Fatal(err)
	}
	for j, kept := range []float64{1, 2. / 3, 1. / 3, 0, 0, 0, 0, 0} {
		plain := math.Pow(10000, -float64(j)/8)
		want := plain*kept + plain/4*(1-kept)
		if got := c.RoPE.InverseFrequencies[j]; math.Abs(got-want) > 1e-12 {
			t.Errorf("pair %d: %v, want %v", j, got, want)
		}
	}
}

// Both spellings of the rotary embedding give the same Config.
func TestOldRoPEKeys(t *testing.T) {
	for _, family := range []string{"deepseek_v3", "qwen3_moe"} {
		m := readConfig(t, "oracles/"+family)
		want, err := parse(t, m)
		if err != nil {
			t.Fatal(err)
		}
		scaling := m["rope_parameters"].(map[string]any)
		delete(m, "rope_parameters")
		m["rope_theta"] = scaling["rope_theta"]
		delete(scaling, "rope_theta")
		scaling["type"] = scaling["rope_type"]
		delete(scaling, "rope_type")
		m["rope_scaling"] = scaling
		if scaling["type"] == "default" {
			m["rope_scaling"] = nil
		}
		got, err := parse(t, m)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got.RoPE.InverseFrequencies, want.RoPE.InverseFrequencies) || got.Attention.Scale != want.Attention.Scale || got.RoPE.Magnitude != want.RoPE.Magnitude {
			t.Errorf("%s: %+v, want %+v", family, got.RoPE, want.RoPE)
		}
	}
}

func TestYaRNWithoutMscaleTurnsTheDefaultMagnitude(t *testing.T) {
	m := readConfig(t, "oracles/qwen3_moe")
	m["rope_parameters"] = map[string]any{"rope_type": "yarn", "factor": 4, "rope_theta": 1e6, "original_max_position_embeddings": 32768}
	c, err := parse(t, m)
	if err != nil || math.Abs(float64(c.RoPE.Magnitude)-(0.1*math.Log(4)+1)) > 1e-6 || math.Abs(float64(c.Attention.Scale)-1/math.Sqrt(32)) > 1e-7 {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestLayerPatterns(t *testing.T) {
	glm := readConfig(t, "oracles/glm_moe_dsa")
	delete(glm, "mlp_layer_types")
	delete(glm, "indexer_types")
	glm["num_hidden_layers"] = 9
	glm["first_k_dense_replace"] = 2
	glm["index_topk_freq"] = 3
	glm["layer_types"] = nil
	c, err := parse(t, glm)
	if err != nil {
		t.Fatal(err)
	}
	// max(0, i − 2 + 1) % 3 == 0 for i = 0, 1, 4, 7
	if !slices.Equal(c.Attention.Index.Full, []bool{true, true, false, false, true, false, false, true, false}) {
		t.Errorf("full layers %v", c.Attention.Index.Full)
	}
	if !slices.Equal(c.Sparse, []bool{false, false, true, true, true, true, true, true, true}) {
		t.Errorf("sparse layers %v", c.Sparse)
	}
	glm["index_topk_pattern"] = "FSSFSSFSS"
	if c, err = parse(t, glm); err != nil || !slices.Equal(c.Attention.Index.Full, []bool{true, false, false, true, false, false, true, false, false}) {
		t.Errorf("pattern: %v, %v", c, err)
	}
	qwen := readConfig(t, "oracles/qwen3_moe")
	qwen["decoder_sparse_step"] = 2
	qwen["mlp_only_layers"] = []int{3}
	if c, err = parse(t, qwen); err != nil || !slices.Equal(c.Sparse, []bool{false, true, false, false}) || c.DenseInner != 192 {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestStopTokensAreAUnion(t *testing.T) {
	m := readConfig(t, "oracles/glm_moe_dsa")
	m["eos_token_id"] = []int{7, 1}
	text, _ := json.Marshal(m)
	c, err := ParseConfig(text, []byte(`{"eos_token_id":[9,7]}`))
	if err != nil || !slices.Equal(c.EOS, []int{1, 7, 9}) {
		t.Errorf("%v, %v", c, err)
	}
	if c, err = ParseConfig(text, []byte(`{"eos_token_id":3}`)); err != nil || !slices.Equal(c.EOS, []int{1, 3, 7}) {
		t.Errorf("%v, %v", c, err)
	}
	if _, err = ParseConfig(text, []byte(`{"eos_token_id":512}`)); err == nil {
		t.Error("a stop token outside the vocabulary was accepted")
	}
}

// One change each to a valid configuration, and a word that the refusal must contain.
func TestConfigRefusals(t *testing.T) {
	for _, c := range []struct {
		family, key string
		value       any
		says        string
	}{
		{"qwen3_moe", "model_type", "llama", "llama"},
		{"qwen3_moe", "model_type", nil, "model_type"},
		{"qwen3_moe", "hidden_size", nil, "hidden_size"},
		{"qwen3_moe", "hidden_size", 0, "hidden_size"},
		{"qwen3_moe", "hidden_size", -4, "hidden_size"},
		{"qwen3_moe", "hidden_size", 1.5, "hidden_size"},
		{"qwen3_moe", "hidden_size", "big", "hidden_size"},
		{"qwen3_moe", "hidden_size", 1e300, "hidden_size"},
		{"qwen3_moe", "num_hidden_layers", 100000, "num_hidden_layers"},
		{"qwen3_moe", "num_local_experts", 1 << 14, "supported"}, // with 1024 layers, see below
		{"qwen3_moe", "num_experts", 17, "two numbers of experts"},
		{"qwen3_moe", "num_experts_per_tok", 17, "num_experts_per_tok"},
		{"qwen3_moe", "num_key_value_heads", 3, "heads"},
		{"qwen3_moe", "head_dim", 33, "pairs"},
		{"qwen3_moe", "hidden_act", "gelu", "gelu"},
		{"qwen3_moe", "use_sliding_window", true, "sliding"},
		{"qwen3_moe", "attention_bias", true, "attention_bias"},
		{"qwen3_moe", "rms_norm_eps", 0, "rms_norm_eps"},
		{"qwen3_moe", "rope_parameters", map[string]any{"rope_type": "llama3"}, "llama3"},
		{"qwen3_moe", "rope_parameters", map[string]any{"rope_type": "yarn"}, "factor"},
		{"qwen3_moe", "rope_parameters", map[string]any{"rope_theta": "x"}, "rope_theta"},
		{"qwen3_moe", "rope_parameters", []int{1}, "rope_parameters"},
		{"qwen3_moe", "layer_types", []string{"sliding_attention"}, "sliding_attention"},
		{"deepseek_v3", "n_group", 3, "groups"},
		{"deepseek_v3", "topk_group", 5, "groups"},
		{"deepseek_v3", "scoring_func", "softmax", "softmax"},
		{"deepseek_v3", "routed_scaling_factor", nil, "routed_scaling_factor"},
		{"deepseek_v3", "attention_bias", true, "attention_bias"},
		{"deepseek_v3", "moe_layer_freq", 2, "moe_layer_freq"},
		{"glm_moe_dsa", "indexer_types", []string{"shared", "full", "full", "full"}, "first layer"},
		{"glm_moe_dsa", "indexer_types", []string{"full"}, "1 entries"},
		{"glm_moe_dsa", "mlp_layer_types", []string{"dense", "sparse", "sparse", "other"}, "other"},
		{"glm_moe_dsa", "index_head_dim", 8, "index_head_dim"},
		{"glm_moe_dsa", "rope_interleave", false, "rope_interleave"},
		{"glm_moe_dsa", "eos_token_id", -1, "eos_token_id"},
		{"glm_moe_dsa", "eos_token_id", "no", "eos_token_id"},
	} {
		m := readConfig(t, "oracles/"+c.family)
		m[c.key] = c.value
		if c.says == "supported" {
			m["num_hidden_layers"] = 1024
		}
		if _, err := parse(t, m); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s with %s = %v: %v", c.family, c.key, c.value, err)
		}
	}
	for _, text := range []string{"", "[]", "{", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n"} {
		if _, err := ParseConfig([]byte(text), nil); err == nil {
			t.Errorf("%q was accepted", text)
		}
	}
}

// Whatever the text, ParseConfig answers; what it accepts is within its limits.
func FuzzConfig(f *testing.F) {
	dirs, _ := filepath.Glob(filepath.Join(testdata, "oracles", "*", "config.json"))
	for _, name := range dirs {
		if text, err := os.ReadFile(name); err == nil {
			f.Add(text)
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := ParseConfig(text, nil)
		if err != nil {
			return
		}
		if c.Layers < 1 || len(c.Sparse) != c.Layers+c.MTPLayers || c.RoPE.Dim != 2*len(c.RoPE.InverseFrequencies) || c.MoE.PerToken > c.MoE.Experts ||
			c.Hidden < 1 || !(c.Attention.Scale > 0) || !(c.RoPE.Magnitude > 0) {
			t.Fatalf("%+v from %s", c, text)
		}
		for _, f := range c.RoPE.InverseFrequencies {
			if math.IsNaN(f) || f < 0 || f > 1 {
				t.Fatalf("frequency %v from %s", f, text)
			}
		}
	})
}
