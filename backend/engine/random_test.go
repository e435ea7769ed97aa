package engine

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"testing"
)

// checkpoint collects random float32 tensors and writes them as a Hugging Face checkpoint.
type checkpoint struct {
	random  *rand.Rand
	config  map[string]any
	tensors map[string]tensor
}

func newCheckpoint(seed uint64, config map[string]any) *checkpoint {
	return &checkpoint{rand.New(rand.NewPCG(seed, 1)), config, map[string]tensor{}}
}

func (c *checkpoint) tensor(name string, shape ...int) {
	n := 1
	for _, s := range shape {
		n *= s
	}
	data := make([]float64, n)
	for i := range data {
		v := c.random.NormFloat64() * 0.15
		if strings.HasSuffix(name, "norm.weight") {
			v = 1 + v
		}
		data[i] = float64(float32(v))
	}
	c.tensors[name] = tensor{shape, data}
}

func (c *checkpoint) mlp(prefix string, hidden, inner int) {
	c.tensor(prefix+"gate_proj.weight", inner, hidden)
	c.tensor(prefix+"up_proj.weight", inner, hidden)
	c.tensor(prefix+"down_proj.weight", hidden, inner)
}

// write makes the tensors that the configuration promises, and the folder.
func (c *checkpoint) write(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	number := func(key string) int {
		switch v := c.config[key].(type) {
		case int:
			return v
		case float64:
			return int(v)
		}
		return 0
	}
	d, layers := number("hidden_size"), number("num_hidden_layers")
	c.tensor("model.embed_tokens.weight", number("vocab_size"), d)
	if c.config["tie_word_embeddings"] != true {
		c.tensor("lm_head.weight", number("vocab_size"), d)
	}
	c.tensor("model.norm.weight", d)
	for l := range layers + number("num_nextn_predict_layers") {
		p := fmt.Sprintf("model.layers.%d.", l)
		a := p + "self_attn."
		c.tensor(p+"input_layernorm.weight", d)
		c.tensor(p+"post_attention_layernorm.weight", d)
		heads := number("num_attention_heads")
		if rank := number("kv_lora_rank"); rank > 0 {
			nope, rope, value, queryRank := number("qk_nope_head_dim"), number("qk_rope_head_dim"), number("v_head_dim"), number("q_lora_rank")
			if queryRank > 0 {
				c.tensor(a+"q_a_proj.weight", queryRank, d)
				c.tensor(a+"q_a_layernorm.weight", queryRank)
				c.tensor(a+"q_b_proj.weight", heads*(nope+rope), queryRank)
			} else {
				c.tensor(a+"q_proj.weight", heads*(nope+rope), d)
			}
			c.tensor(a+"kv_a_proj_with_mqa.weight", rank+rope, d)
			c.tensor(a+"kv_a_layernorm.weight", rank)
			c.tensor(a+"kv_b_proj.weight", heads*(nope+value), rank)
			c.tensor(a+"o_proj.weight", d, heads*value)
			if types, ok := c.config["indexer_types"].([]string); ok && l < len(types) && types[l] == "full" {
				n, dim := number("index_n_heads"), number("index_head_dim")
				c.tensor(a+"indexer.wq_b.weight", n*dim, queryRank)
				c.tensor(a+"indexer.wk.weight", dim, d)
				c.tensor(a+"indexer.weights_proj.weight", n, d)
				c.tensor(a+"indexer.k_norm.weight", dim)
				c.tensor(a+"indexer.k_norm.bias", dim)
			}
		} else {
			kv, dim := number("num_key_value_heads"), number("head_dim")
			c.tensor(a+"q_proj.weight", heads*dim, d)
			c.tensor(a+"k_proj.weight", kv*dim, d)
			c.tensor(a+"v_proj.weight", kv*dim, d)
			c.tensor(a+"o_proj.weight", d, heads*dim)
			if c.config["attention_bias"] == true {
				c.tensor(a+"q_proj.bias", heads*dim)
				c.tensor(a+"k_proj.bias", kv*dim)
				c.tensor(a+"v_proj.bias", kv*dim)
			}
			switch c.config["model_type"] {
			case "qwen3_moe":
				c.tensor(a+"q_norm.weight", dim)
				c.tensor(a+"k_norm.weight", dim)
			case "olmoe":
				c.tensor(a+"q_norm.weight", heads*dim)
				c.tensor(a+"k_norm.weight", kv*dim)
			}
		}
		experts, inner := number("n_routed_experts")+number("num_experts"), number("moe_intermediate_size")
		if c.config["model_type"] == "olmoe" {
			inner = number("intermediate_size")
		}
		if l < number("first_k_dense_replace") {
			c.mlp(p+"mlp.", d, number("intermediate_size"))
			continue
		}
		c.tensor(p+"mlp.gate.weight", experts, d)
		if kind := c.config["model_type"]; kind != "qwen3_moe" && kind != "olmoe" {
			c.tensor(p+"mlp.gate.e_score_correction_bias", experts)
		}
		for e := range experts {
			c.mlp(fmt.Sprintf("%smlp.experts.%d.", p, e), d, inner)
		}
		if shared := number("n_shared_experts"); shared > 0 {
			c.mlp(p+"mlp.shared_experts.", d, shared*inner)
		}
		if l >= layers {
			c.tensor(p+"enorm.weight", d)
			c.tensor(p+"hnorm.weight", d)
			c.tensor(p+"eh_proj.weight", d, 2*d)
			c.tensor(p+"shared_head.norm.weight", d)
		}
	}
	header := map[string]any{}
	var data bytes.Buffer
	names := make([]string, 0, len(c.tensors))
	for name := range c.tensors {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		begin := data.Len()
		for _, v := range c.tensors[name].data {
			_ = binary.Write(&data, binary.LittleEndian, math.Float32bits(float32(v)))
		}
		header[name] = map[string]any{"dtype": "F32", "shape": c.tensors[name].shape, "data_offsets": []int{begin, data.Len()}}
	}
	text, err := json.Marshal(header)
	if err != nil {
		t.Fatal(err)
	}
	file := binary.LittleEndian.AppendUint64(nil, uint64(len(text)))
	file = append(append(file, text...), data.Bytes()...)
	config, err := json.Marshal(c.config)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"model.safetensors": file, "config.json": config} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func ropeDefault() map[string]any {
	return map[string]any{"rope_type": "default", "rope_theta": 10000.0}
}

// oddModels are configurations whose sizes are none of the oracles' and divide nothing evenly.
func oddModels() map[string]map[string]any {
	mla := func(changes map[string]any) map[string]any {
		c := map[string]any{
			"model_type": "glm4_moe_lite", "architectures": []string{"Glm4MoeLiteForCausalLM"}, "vocab_size": 101, "hidden_size": 60, "num_hidden_layers": 3,
			"num_attention_heads": 3, "num_key_value_heads": 3, "q_lora_rank": 37, "kv_lora_rank": 29,
			"qk_nope_head_dim": 14, "qk_rope_head_dim": 10, "v_head_dim": 18, "intermediate_size": 75, "moe_intermediate_size": 27,
			"n_routed_experts": 7, "num_experts_per_tok": 3, "n_shared_experts": 2, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
			"norm_topk_prob": true, "routed_scaling_factor": 1.3, "rms_norm_eps": 1e-6, "max_position_embeddings": 700,
			"rope_parameters": ropeDefault(), "eos_token_id": 1, "hidden_act": "silu", "tie_word_embeddings": false,
		}
		for k, v := range changes {
			c[k] = v
		}
		return c
	}
	gqa := func(changes map[string]any) map[string]any {
		c := map[string]any{
			"model_type": "qwen3_moe", "architectures": []string{"Qwen3MoeForCausalLM"}, "vocab_size": 97, "hidden_size": 52, "num_hidden_layers": 2,
			"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 10, "intermediate_size": 66, "moe_intermediate_size": 22,
			"num_experts": 5, "num_experts_per_tok": 2, "norm_topk_prob": false, "decoder_sparse_step": 1, "mlp_only_layers": []int{},
			"rms_norm_eps": 1e-6, "max_position_embeddings": 640, "rope_parameters": ropeDefault(), "eos_token_id": 1, "hidden_act": "silu", "tie_word_embeddings": false,
		}
		for k, v := range changes {
			c[k] = v
		}
		return c
	}
	return map[string]map[string]any{
		"mla":              mla(nil),
		"mla direct query": mla(map[string]any{"model_type": "deepseek_v3", "architectures": []string{"DeepseekV3ForCausalLM"}, "q_lora_rank": nil, "n_shared_experts": 1}),
		"mla groups, MTP": mla(map[string]any{
			"model_type": "deepseek_v3", "architectures": []string{"DeepseekV3ForCausalLM"}, "n_routed_experts": 9, "n_group": 3, "topk_group": 2, "num_experts_per_tok": 4, "num_nextn_predict_layers": 1,
		}),
		"mla all sparse, tied": mla(map[string]any{"first_k_dense_replace": 0, "tie_word_embeddings": true, "num_experts_per_tok": 1}),
		"dsa": mla(map[string]any{
			"model_type": "glm_moe_dsa", "architectures": []string{"GlmMoeDsaForCausalLM"}, "num_hidden_layers": 4, "index_n_heads": 9, "index_head_dim": 22, "index_topk": 13,
			"indexer_types": []string{"full", "shared", "full", "shared"},
		}),
		"gqa":           gqa(nil),
		"gqa one head":  gqa(map[string]any{"num_attention_heads": 5, "num_key_value_heads": 1}),
		"gqa glm, bias": gqa(map[string]any{"model_type": "glm4_moe", "architectures": []string{"Glm4MoeForCausalLM"}, "attention_bias": true, "use_qk_norm": false, "head_dim": 12, "partial_rotary_factor": 0.5, "num_experts": nil, "n_routed_experts": 6, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.0}),
		"olmoe, clip":   gqa(map[string]any{"model_type": "olmoe", "architectures": []string{"OlmoeForCausalLM"}, "hidden_size": 60, "head_dim": 10, "num_attention_heads": 6, "num_key_value_heads": 6, "clip_qkv": 0.9, "moe_intermediate_size": nil, "intermediate_size": 31}),
	}
}

func randomIDs(random *rand.Rand, n, vocabulary int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(random.IntN(vocabulary))
	}
	return ids
}

func TestOtherSizesAgreeWithTheReference(t *testing.T) {
	for name, config := range oddModels() {
		t.Run(name, func(t *testing.T) {
			const seed = 7
			dir := newCheckpoint(seed, config).write(t)
			m := loadModel(t, dir)
			ids := randomIDs(rand.New(rand.NewPCG(seed, 2)), 40, m.config.Vocabulary)
			logits, routes := evaluate(t, m, ids)
			want := loadReference(t, dir).forward(ids)
			if e := furthest(logits, flatten(want.logits)); e > tolerance {
				t.Errorf("logits differ by %.2g", e)
			}
			k := m.config.MoE.PerToken
			for p, layers := range want.routes {
				for l, experts := range layers {
					for i, e := range experts {
						if routes[l][p*k+i] != int32(e) {
							t.Fatalf("layer %d routes position %d to %v, not %v", l, p, routes[l][p*k:][:k], experts)
						}
					}
				}
			}
		})
	}
}

// logitsAfter computes ids in a session in batches of the given sizes and returns the logits of the last token.
func logitsAfter(t *testing.T, m *Model, s *Session, ids []int32, batches ...int) []float32 {
	t.Helper()
	var last []float32
	for _, n := range batches {
		err := m.turn(context.Background(), func() error {
			if err := s.extend(context.Background(), ids[:n], 0, 0, nil); err != nil {
				return err
			}
			logits, err := m.logitsOf([]int{n - 1})
			last = slices.Clone(logits)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		ids = ids[n:]
	}
	return last
}

func newSession(t *testing.T, m *Model) *Session {
	t.Helper()
	s, err := m.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// However a text is cut into batches, its logits are the same, bit for bit: a prompt in one batch, token by token, and in drafts of a few.
func TestBatchesDoNotChangeLogits(t *testing.T) {
	for name, config := range oddModels() {
		t.Run(name, func(t *testing.T) {
			m := loadModel(t, newCheckpoint(8, config).write(t))
			ids := randomIDs(rand.New(rand.NewPCG(8, 2)), 31, m.config.Vocabulary)
			whole := logitsAfter(t, m, newSession(t, m), ids, 31)
			for _, batches := range [][]int{slices.Repeat([]int{1}, 31), {3, 4, 2, 2, 20}, {20, 1, 3, 3, 4}} {
				if got := logitsAfter(t, m, newSession(t, m), ids, batches...); !slices.Equal(got, whole) {
					wide := func(x []float32) (y []float64) {
						for _, v := range x {
							y = append(y, float64(v))
						}
						return y
					}
					t.Errorf("batches of %v change the logits by %.2g", batches, furthest(wide(got), wide(whole)))
				}
			}
		})
	}
}
