package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"colibri/backend/container"
	"colibri/backend/cpu"
	"colibri/backend/metal"
	"colibri/backend/residency"
)

// Rates are what this machine computes with, measured: what residency.Machine needs beside memory and disk.
type Rates struct {
	ReadBytesPerSecond   float64            `json:"readBytesPerSecond"`   // of memory, by all threads
	KernelBytesPerSecond map[string]float64 `json:"kernelBytesPerSecond"` // of the CPU's products with one row, by encoding
	LayerSeconds         float64            `json:"layerSeconds"`         // of a layer beyond its bytes
}

// Has says whether the rates cover a model's encodings.
func (r *Rates) Has(multiplied map[string]int64) bool {
	for encoding := range multiplied {
		if _, ok := r.KernelBytesPerSecond[encoding]; !ok && !gpuComputes() {
			return false
		}
	}
	return r.ReadBytesPerSecond > 0
}

// gpuComputes says whether "auto" takes the GPU: its products go at the speed of memory, not at that of the CPU's kernels.
func gpuComputes() bool { return runtime.GOOS == "darwin" && metal.Available() }

// rateRows and rateColumns are of a usual matrix; kernels of one encoding differ little between shapes past the caches.
const rateRows, rateColumns = 2048, 2048

// MeasureRates adds to known rates what a model with these encodings needs: about a third of a second for each encoding, and half a second,
// once, for the layers of a small random model that is generated, run and deleted.
func MeasureRates(ctx context.Context, known Rates, multiplied map[string]int64) (_ Rates, err error) {
	r := Rates{known.ReadBytesPerSecond, map[string]float64{}, known.LayerSeconds}
	for encoding, rate := range known.KernelBytesPerSecond {
		r.KernelBytesPerSecond[encoding] = rate
	}
	first := r.ReadBytesPerSecond == 0
	backend, err := cpu.New(min(threads(), cpu.MaxThreads))
	if err != nil {
		return known, err
	}
	measure := func() error {
		if first {
			if r.ReadBytesPerSecond, err = backend.MeasureReadBandwidth(); err != nil {
				return err
			}
		}
		for name := range multiplied {
			if _, there := r.KernelBytesPerSecond[name]; there || gpuComputes() {
				continue
			}
			encoding, err := container.ParseEncoding(name)
			if err != nil {
				return err
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			if r.KernelBytesPerSecond[name], err = backend.KernelBandwidth(encoding, rateRows, rateColumns); err != nil {
				return err
			}
		}
		return nil
	}
	if err := errors.Join(measure(), backend.Close()); err != nil {
		return known, fmt.Errorf("the speed of this machine cannot be measured: %w", err)
	}
	if first {
		machine := residency.Machine{WeightBytesPerSecond: r.ReadBytesPerSecond, KernelBytesPerSecond: r.KernelBytesPerSecond}
		layer, err := MeasureLayer(ctx, machine)
		if err != nil {
			return known, fmt.Errorf("the speed of this machine cannot be measured: %w", err)
		}
		r.LayerSeconds = layer.Seconds
	}
	return r, nil
}

// smallModel is all overhead: what its tokens take beyond their bytes is what a layer costs by itself.
const smallModel = `{"model_type":"glm4_moe_lite","vocab_size":1024,"hidden_size":256,"intermediate_size":512,"moe_intermediate_size":128,
"num_hidden_layers":12,"num_attention_heads":4,"num_key_value_heads":4,"q_lora_rank":128,"kv_lora_rank":128,"qk_nope_head_dim":64,"qk_rope_head_dim":32,
"v_head_dim":64,"n_routed_experts":16,"num_experts_per_tok":4,"n_shared_experts":1,"n_group":1,"topk_group":1,"norm_topk_prob":true,"routed_scaling_factor":1,
"mlp_layer_types":["dense","sparse","sparse","sparse","sparse","sparse","sparse","sparse","sparse","sparse","sparse","sparse"],"max_position_embeddings":2048,
"rms_norm_eps":1e-5,"rope_parameters":{"rope_type":"default","rope_theta":1000000},"tie_word_embeddings":false,"hidden_act":"silu"}`

// The longer prompt's attention takes half of its time.
const smallModelTokens, smallModelPrompt, smallModelLonger = 96, 512, 3

// LayerCost is what a layer takes beyond its products: for each pass, and for each token of a prompt; and the speed of a prompt's attention.
type LayerCost struct{ Seconds, RowSeconds, AttentionOpsPerSecond float64 }

// MeasureLayer measures it, with products at the machine's rates: 0 where it is too little to measure. Prompts are left out where the machine's
// rate for their products is not known.
func MeasureLayer(ctx context.Context, machine residency.Machine) (cost LayerCost, err error) {
	work, err := os.MkdirTemp("", "colibri-rates-")
	if err != nil {
		return cost, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	dir := filepath.Join(work, "model.colibri")
	if _, err := container.Generate(ctx, dir, []byte(smallModel), container.Options{}, 1, nil); err != nil {
		return cost, err
	}
	d, err := container.Describe(dir)
	if err != nil {
		return cost, err
	}
	m, err := Load(ctx, dir, Options{Drafts: DraftsOff})
	if err != nil {
		return cost, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	prompt := make([]int32, smallModelPrompt*smallModelLonger)
	for i := range prompt {
		prompt[i] = int32(i * 37 % d.Vocabulary)
	}
	load, layers := residency.LoadOf(d, smallModelPrompt), float64(d.Layers)
	// The first of four rounds reads the experts.
	middle := func(prompt []int32, tokens int, speed func(*Stats) float64) (float64, error) {
		var speeds []float64
		for range 4 {
			s, err := m.NewSession()
			if err != nil {
				return 0, err
			}
			result, err := s.Generate(ctx, Request{Prompt: prompt, MaxTokens: tokens, Sampling: Greedy()}, func(Piece) error { return nil })
			if err = errors.Join(err, s.Close(), ctx.Err()); err != nil {
				return 0, err
			}
			speeds = append(speeds, speed(&result.Stats))
		}
		slices.Sort(speeds[1:])
		if speeds[2] <= 0 {
			return 0, errors.New("the small model gave no tokens")
		}
		return speeds[2], nil
	}
	decode, err := middle(prompt[:1], smallModelTokens, func(s *Stats) float64 { return s.TokensPerSecond })
	if err != nil {
		return cost, err
	}
	cost.Seconds = max(0, 1/decode-machine.MultiplySeconds(load)) / layers
	if machine.OpsPerSecond > 0 {
		prefill := func(tokens int) (seconds float64, err error) {
			rate, err := middle(prompt[:tokens], 1, func(s *Stats) float64 { return s.PrefillTokensPerSecond })
			return float64(tokens) / rate, err
		}
		short, err := prefill(smallModelPrompt)
		if err != nil {
			return cost, err
		}
		long, err := prefill(len(prompt))
		if err != nil {
			return cost, err
		}
		// All else grows as the prompt does, attention as its square.
		const square = smallModelPrompt * smallModelPrompt
		pairs := float64(square*smallModelLonger*(smallModelLonger-1)) / 2
		if attention := long - smallModelLonger*short; attention > 0 {
			cost.AttentionOpsPerSecond = pairs * float64(load.AttentionOps) / attention
		}
		machine.AttentionOpsPerSecond = cost.AttentionOpsPerSecond
		passes := residency.Passes(smallModelPrompt)
		rest := short - machine.ProductSeconds(load, smallModelPrompt, passes) - machine.AttentionSeconds(load, smallModelPrompt)
		cost.RowSeconds = max(0, rest-float64(passes)*layers*cost.Seconds) / (smallModelPrompt * layers)
	}
	return cost, nil
}
