package container

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
)

// Generate writes a container of our own form with random weights for a configuration, for tests and measurements of any size.
// Weights are scaled by the width they sum over, so that activations stay finite and the router's choices vary; the
// same seed gives the same bytes. Packed formats are filled directly, at the speed of the disk.
func Generate(ctx context.Context, dir string, configJSON []byte, options Options, seed uint64, progress func(Progress)) (*Report, error) {
	return generate(ctx, dir, configJSON, options, seed, progress, realDisk{})
}

func generate(ctx context.Context, dir string, configJSON []byte, options Options, seed uint64, progress func(Progress), d disk) (*Report, error) {
	c, err := ParseConfig(configJSON, nil)
	if err != nil {
		return nil, err
	}
	shards, err := plan(c, options.shardBytes(), func(_ string, class Class) Encoding { return options.encoding(class, Encoding{}) })
	if err != nil {
		return nil, err
	}
	h := fnv.New64a()
	h.Write(configJSON)
	sw := &shardWriter{dir: dir, disk: d, contents: &randomWeights{seed}}
	m := &manifest{Version: 1, Source: fmt.Sprintf("random weights %d for %x", seed, h.Sum64()), Formats: formatsOf(shards), ShardBytes: options.shardBytes()}
	return sw.run(ctx, shards, m, progress, func() error { return sw.writeSmall("config.json", configJSON) })
}

// randomWeights makes rows from the seed, the weight's name and the row's number, in any order.
type randomWeights struct{ seed uint64 }

func (g *randomWeights) rows(w *plannedWeight, first, last int) ([]byte, []float32, errorStat, error) {
	e := w.Encoding
	rowBytes, perRow := int(e.DataBytes(1, w.Columns)), int(e.ScaleCount(1, w.Columns))
	data := make([]byte, (last-first)*rowBytes)
	scales := make([]float32, e.ScaleCount(last-first, w.Columns))
	deviation, mean := spread(w)
	name := fnv.New64a()
	name.Write([]byte(w.Name))
	err := parallel(last-first, func(i int) error {
		random := rand.NewPCG(g.seed^name.Sum64(), uint64(first+i))
		row := data[i*rowBytes : (i+1)*rowBytes]
		if e.Format.IsFloat() {
			normal := rand.New(random)
			values := make([]float32, w.Columns)
			for k := range values {
				values[k] = float32(mean + deviation*normal.NormFloat64())
			}
			return quantiseBand(e, w.Columns, values, row, nil)
		}
		fillPacked(e.Format, row, random)
		if e.Format == Int4Row || e.Format == Int4Group {
			if w.Columns%2 == 1 {
				row[len(row)-1] &= 15
			}
		}
		if e.Format == FP8Block128 {
			if i%Block128 != 0 {
				return nil
			}
			i /= Block128
		}
		for g := range perRow {
			// Scales differ by up to a quarter either way, so that a kernel that mixes them up is noticed.
			vary := 0.75 + 0.5*float64(random.Uint64()>>40)/(1<<24)
			scales[i*perRow+g] = float32(deviation / packedDeviation(e.Format) * vary)
		}
		return nil
	})
	return data, scales, errorStat{Count: int64(len(data))}, err
}

// spread is the standard deviation and the mean of a weight's numbers.
func spread(w *plannedWeight) (deviation, mean float64) {
	switch {
	case strings.HasSuffix(w.Name, "norm.weight"), strings.HasSuffix(w.Name, "layernorm.weight"):
		return 0.1, 1
	case strings.HasSuffix(w.Name, "bias"):
		return 0.02, 0
	case strings.HasSuffix(w.Name, "embed_tokens.weight"):
		return 1, 0
	case strings.HasSuffix(w.Name, "mlp.gate.weight"):
		return 2 / math.Sqrt(float64(w.Columns)), 0 // logits with a deviation of 2: distinct, not all to one expert
	}
	return 1 / math.Sqrt(float64(w.Columns)), 0
}

// fillPacked fills a row with random numbers of a packed format, symmetric about zero: the code without a positive
// counterpart (−8, −2, −4) becomes zero.
func fillPacked(f Format, row []byte, random *rand.PCG) {
	for at := 0; at < len(row); at += 8 {
		x := random.Uint64()
		switch f {
		case Int4Row, Int4Group:
			some := x | x>>1
			some |= some >> 2
			x |= ^some & 0x1111111111111111 << 3
		case Int2Row:
			x |= ^(x | x>>1) & 0x5555555555555555 << 1
		case FP8Block128:
			// Exponents 4 to 7: numbers of 1/8 to 2, and never a NaN code.
			x = x&0x9F9F9F9F9F9F9F9F | 0x2020202020202020
		}
		var eight [8]byte
		binary.LittleEndian.PutUint64(eight[:], x)
		copy(row[at:], eight[:])
	}
	if f == Int3Group64 {
		for group := 0; group < len(row); group += 24 {
			for k := range 64 {
				low := row[group+k/4] >> (k % 4 * 2) & 3
				if low == 0 {
					row[group+16+k/8] |= 1 << (k % 8)
				}
			}
		}
	}
}

// packedDeviation is the standard deviation of what fillPacked makes.
func packedDeviation(f Format) float64 {
	switch f {
	case Int8Row:
		return 256 / math.Sqrt(12)
	case Int4Row, Int4Group:
		return math.Sqrt(17.5) // −7 to 7, zero twice
	case Int3Group64:
		return math.Sqrt(3.5)
	case Int2Row:
		return math.Sqrt(0.5)
	case FP8Block128:
		sum := 0.0
		for code := 0x20; code < 0x40; code++ {
			sum += float64(e4m3[code]) * float64(e4m3[code])
		}
		return math.Sqrt(sum / 32)
	}
	return 1
}

// presets are shapes to generate. Keys are those of config.json.
var presets = map[string]struct {
	config  string
	options Options
}{
	// 4 GB of experts (4,608 of 0.9 MB), 150 MB resident: what must run within a few hundred megabytes.
	"streaming-4gb": {config: `{"model_type":"glm_moe_dsa","vocab_size":8192,"hidden_size":1024,"intermediate_size":2048,"moe_intermediate_size":512,
"num_hidden_layers":25,"num_attention_heads":16,"num_key_value_heads":16,"q_lora_rank":384,"kv_lora_rank":256,"qk_nope_head_dim":64,"qk_rope_head_dim":32,
"v_head_dim":64,"n_routed_experts":192,"num_experts_per_tok":8,"n_shared_experts":1,"n_group":1,"topk_group":1,"norm_topk_prob":true,"routed_scaling_factor":2.5,
"first_k_dense_replace":1,"index_topk":512,"index_n_heads":8,"index_head_dim":64,"index_topk_freq":4,"index_skip_topk_offset":2,"max_position_embeddings":8192,
"rms_norm_eps":1e-5,"rope_parameters":{"rope_type":"default","rope_theta":1000000},"tie_word_embeddings":false,"hidden_act":"silu"}`},
	// Layers of GLM-4.7-Flash, one dense and five sparse: 1.9 GB with everything at 4 bits.
	"glm4-lite-bench": {config: `{"model_type":"glm4_moe_lite","vocab_size":8192,"hidden_size":2048,"intermediate_size":10240,"moe_intermediate_size":1536,
"num_hidden_layers":6,"num_attention_heads":20,"num_key_value_heads":20,"q_lora_rank":768,"kv_lora_rank":512,"qk_nope_head_dim":192,"qk_rope_head_dim":64,
"v_head_dim":256,"n_routed_experts":64,"num_experts_per_tok":4,"n_shared_experts":1,"n_group":1,"topk_group":1,"norm_topk_prob":true,"routed_scaling_factor":1.8,
"mlp_layer_types":["dense","sparse","sparse","sparse","sparse","sparse"],"max_position_embeddings":8192,"rms_norm_eps":1e-5,
"rope_parameters":{"rope_type":"default","rope_theta":1000000},"tie_word_embeddings":false,"hidden_act":"silu"}`, options: benchFormats},
	// Layers of Qwen3-30B-A3B with 64 experts instead of 128: 1.5 GB with everything at 4 bits.
	"qwen3-moe-bench": {config: `{"model_type":"qwen3_moe","vocab_size":8192,"hidden_size":2048,"intermediate_size":6144,"moe_intermediate_size":768,
"num_hidden_layers":8,"num_attention_heads":32,"num_key_value_heads":4,"head_dim":128,"num_experts":64,"num_experts_per_tok":8,"norm_topk_prob":true,
"decoder_sparse_step":1,"mlp_only_layers":[],"max_position_embeddings":8192,"rms_norm_eps":1e-6,"rope_theta":1000000,"tie_word_embeddings":false,"hidden_act":"silu"}`,
		options: benchFormats},
}

// benchFormats: 4.5 bits everywhere, as the engines compared with use; the output head is one tensor class with the
// embeddings and stays at 8.
var benchFormats = Options{SharedExperts: Encoding{Int4Group, 64}, Attention: Encoding{Int4Group, 64}, DenseMLP: Encoding{Int4Group, 64}}

// Presets lists the names that Preset knows.
func Presets() []string { return slices.Sorted(maps.Keys(presets)) }

// Preset gives a configuration to generate, and the formats it is meant to have.
func Preset(name string) (configJSON []byte, options Options, err error) {
	p, ok := presets[name]
	if !ok {
		return nil, Options{}, fmt.Errorf("there is no shape %q to generate; use one of %s, or a config.json", name, strings.Join(Presets(), ", "))
	}
	return []byte(p.config), p.options, nil
}
