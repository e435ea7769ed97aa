package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"colibri/backend/container"
	"colibri/backend/engine"
	"colibri/backend/residency"
)

// calibrationModel is generated, measured and deleted: past every cache, with some 32 rows of a prompt for each expert, as usual.
const (
	calibrationModel = `{"model_type":"glm4_moe_lite","vocab_size":4096,"hidden_size":1536,"intermediate_size":6144,"moe_intermediate_size":1024,
"num_hidden_layers":4,"num_attention_heads":16,"num_key_value_heads":16,"q_lora_rank":512,"kv_lora_rank":384,"qk_nope_head_dim":128,"qk_rope_head_dim":64,
"v_head_dim":128,"n_routed_experts":64,"num_experts_per_tok":4,"n_shared_experts":1,"n_group":1,"topk_group":1,"norm_topk_prob":true,"routed_scaling_factor":1,
"mlp_layer_types":["dense","sparse","sparse","sparse"],"max_position_embeddings":2048,
"rms_norm_eps":1e-5,"rope_parameters":{"rope_type":"default","rope_theta":1000000},"tie_word_embeddings":false,"hidden_act":"silu"}`
	calibrationPrompt = 512
	calibrationRounds = 3
)

// diskProbe is long enough to leave behind what a disk delivers in a burst.
var diskProbe = residency.Probe{PieceBytes: 4 << 20, TotalBytes: 8 << 30, Readers: 4, Time: 3 * time.Second}

// measureMachine describes this machine as readMachine reads it: the disk below dir, kernels by encoding, and what the engine makes of
// random models that have nothing to do with the one that is planned for.
func measureMachine(ctx context.Context, dir string, notes io.Writer) (*machineFile, error) {
	state, err := residency.ReadMemory()
	if err != nil {
		return nil, err
	}
	m := &machineFile{MemoryBytes: state.TotalBytes, OthersBytes: state.OthersBytes,
		KernelBytesPerSecond: map[string]float64{}}
	fmt.Fprintln(notes, "disk …")
	if m.DiskBytesPerSecond, err = residency.MeasureDisk(ctx, dir, diskProbe); err != nil {
		return nil, err
	}
	fmt.Fprintln(notes, "kernels …")
	var kernels benchReport
	if err := benchKernels(ctx, &kernels, calibrationRounds); err != nil {
		return nil, err
	}
	m.Name, m.WeightBytesPerSecond = runtime.GOOS+"/"+runtime.GOARCH+kernels.Machine, kernels.ReadBandwidth
	for _, k := range kernels.Kernels {
		// Half of the bytes in either shape: the times add up.
		m.KernelBytesPerSecond[k.Format] += 0.5 / k.BytesPerSecond
	}
	for format, seconds := range m.KernelBytesPerSecond {
		m.KernelBytesPerSecond[format] = 1 / seconds
	}
	fmt.Fprintln(notes, "a layer …")
	if m.LayerSeconds, err = engine.MeasureLayer(ctx, m.machine()); err != nil {
		return nil, err
	}
	fmt.Fprintln(notes, "prefill …")
	load, seconds, err := measurePrompt(ctx)
	if err != nil {
		return nil, err
	}
	products := seconds - float64(load.Layers)*m.LayerSeconds*float64(calibrationPrompt)/float64(load.BatchToken)
	m.OpsPerSecond = 2 * calibrationPrompt * float64(load.TokenWeights) / max(products, seconds/2)
	return m, nil
}

// measurePrompt measures how long the calibration model takes for a prompt.
func measurePrompt(ctx context.Context) (load residency.Load, seconds float64, err error) {
	work, err := os.MkdirTemp("", "colibri-plan-")
	if err != nil {
		return load, 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	dir := filepath.Join(work, "model.colibri")
	if _, err := container.Generate(ctx, dir, []byte(calibrationModel), container.Options{}, 1, nil); err != nil {
		return load, 0, err
	}
	d, err := container.Describe(dir)
	if err != nil {
		return load, 0, err
	}
	load = residency.LoadOf(d, calibrationPrompt)
	model, err := engine.Load(ctx, dir, engine.Options{Drafts: engine.DraftsOff})
	if err != nil {
		return load, 0, err
	}
	defer func() { err = errors.Join(err, model.Close()) }()
	prompt := randomPrompt(calibrationPrompt, d.Vocabulary)
	var times []float64
	for round := range calibrationRounds + 1 {
		answer, err := greedy(ctx, model, prompt, 1)
		if err != nil {
			return load, 0, err
		}
		if round > 0 { // the first one read the experts
			times = append(times, calibrationPrompt/answer.Stats.PrefillTokensPerSecond)
		}
	}
	return load, middle(times), nil
}

func (m *machineFile) write(path string) error {
	content, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(content, '\n'), 0o644)
}
