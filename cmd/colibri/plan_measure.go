package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"colibri/backend/container"
	"colibri/backend/cpu"
	"colibri/backend/engine"
	"colibri/backend/residency"
)

// calibrationModel is generated, measured and deleted: past every cache, with 32 rows of a pass for each expert, as usual.
const (
	calibrationModel = `{"model_type":"glm4_moe_lite","vocab_size":4096,"hidden_size":1536,"intermediate_size":6144,"moe_intermediate_size":1024,
"num_hidden_layers":4,"num_attention_heads":16,"num_key_value_heads":16,"q_lora_rank":512,"kv_lora_rank":384,"qk_nope_head_dim":128,"qk_rope_head_dim":64,
"v_head_dim":128,"n_routed_experts":32,"num_experts_per_tok":4,"n_shared_experts":1,"n_group":1,"topk_group":1,"norm_topk_prob":true,"routed_scaling_factor":1,
"mlp_layer_types":["dense","sparse","sparse","sparse"],"max_position_embeddings":2048,
"rms_norm_eps":1e-5,"rope_parameters":{"rope_type":"default","rope_theta":1000000},"tie_word_embeddings":false,"hidden_act":"silu"}`
	calibrationPrompt = 512
	calibrationDecode = 48
	calibrationRounds = 3
)

// measureMachine describes this machine as readMachine reads it: the disk below dir, kernels by encoding, and what the engine makes of
// random models that have nothing to do with the one that is planned for.
func measureMachine(ctx context.Context, dir string, notes io.Writer) (*machineFile, error) {
	state, err := residency.ReadMemory()
	if err != nil {
		return nil, err
	}
	m := &machineFile{MemoryBytes: state.TotalBytes, OthersBytes: state.OthersBytes, CacheBytes: cpu.CacheBytes(), KernelBytesPerSecond: map[string]float64{},
		CachedBytesPerSecond: map[string]float64{}, PassBytesPerSecond: map[string]float64{}, KernelOpsPerSecond: map[string]float64{}}
	fmt.Fprintln(notes, "disk …")
	if err := m.measureDisk(ctx, dir); err != nil {
		return nil, err
	}
	fmt.Fprintln(notes, "kernels …")
	if err := m.measureKernels(ctx); err != nil {
		return nil, err
	}
	fmt.Fprintln(notes, "a layer …")
	layer, err := engine.MeasureLayer(ctx, m.machine())
	if err != nil {
		return nil, err
	}
	m.LayerSeconds, m.RowSeconds, m.AttentionOps = layer.Seconds, layer.RowSeconds, layer.AttentionOpsPerSecond
	fmt.Fprintln(notes, "a model …")
	c, err := measureCalibration(ctx)
	if err != nil {
		return nil, err
	}
	m.calibrate(c)
	return m, nil
}

// measureDisk reads records of the model's size, as many at once as the engine does, for long enough to leave behind what a disk delivers in a
// burst; and one at a time.
func (m *machineFile) measureDisk(ctx context.Context, dir string) error {
	d, err := container.Describe(dir)
	if err != nil {
		return err
	}
	load := residency.LoadOf(d, 1)
	probe := residency.Probe{PieceBytes: min(max(load.ExpertBytes, 256<<10), 32<<20), TotalBytes: 8 << 30, Readers: 8, Time: 3 * time.Second}
	if m.DiskBytesPerSecond, err = residency.MeasureDisk(ctx, dir, probe); err != nil {
		return err
	}
	probe.Readers, probe.Time = 1, time.Second
	single, err := residency.MeasureDisk(ctx, dir, probe)
	if err != nil {
		return err
	}
	m.ReadSeconds = max(0, float64(probe.PieceBytes)/single-float64(probe.PieceBytes)/m.DiskBytesPerSecond)
	return nil
}

// Products of usual matrices: with one row for an answer, with as few as an expert has of a prompt, and with a whole pass. calibrate turns rates into a model's.
// Models that a cache holds have smaller matrices, of which the engine gives the threads several at a time: to wake them counts.
const (
	kernelRows, kernelColumns = 2048, 2048
	cachedRows, cachedColumns = 1024, 1024
	fewTokens, manyTokens     = 16, 256
)

func (m *machineFile) measureKernels(ctx context.Context) (err error) {
	backend, err := cpu.New(runtime.NumCPU())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, backend.Close()) }()
	m.Name = runtime.GOOS + "/" + runtime.GOARCH + ", " + backend.Name()
	if m.WeightBytesPerSecond, err = median(calibrationRounds, backend.MeasureReadBandwidth); err != nil {
		return err
	}
	// Encodings take turns: a machine that changes its speed meanwhile does so for all, and what counts most is how they compare.
	measured := map[string][]kernelRates{}
	for range calibrationRounds {
		for _, name := range benchEncodings {
			encoding, err := container.ParseEncoding(name)
			if err != nil {
				return err
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			rates, err := measureKernel(backend, encoding)
			if err != nil {
				return err
			}
			measured[encoding.String()] = append(measured[encoding.String()], rates)
		}
	}
	for name, rounds := range measured {
		middleOf := func(rate func(kernelRates) float64) float64 {
			var values []float64
			for _, r := range rounds {
				values = append(values, rate(r))
			}
			return middle(values)
		}
		m.KernelBytesPerSecond[name] = middleOf(func(r kernelRates) float64 { return r.beyondCache })
		m.CachedBytesPerSecond[name] = middleOf(func(r kernelRates) float64 { return r.cached })
		m.PassBytesPerSecond[name] = middleOf(func(r kernelRates) float64 { return r.pass })
		m.KernelOpsPerSecond[name] = middleOf(func(r kernelRates) float64 { return r.ops })
	}
	m.OpsPerSecond = m.KernelOpsPerSecond["f32"]
	return nil
}

// kernelRates are bytes of weights a second, and operations.
type kernelRates struct{ beyondCache, cached, pass, ops float64 }

func measureKernel(backend *cpu.Backend, encoding container.Encoding) (r kernelRates, err error) {
	if r.beyondCache, err = backend.KernelBandwidth(encoding, kernelRows, kernelColumns); err != nil {
		return r, err
	}
	if r.cached, err = backend.CachedKernelBandwidth(encoding, cachedRows, cachedColumns); err != nil {
		return r, err
	}
	few, err := backend.ProductRate(encoding, kernelRows, kernelColumns, fewTokens)
	if err != nil {
		return r, err
	}
	many, err := backend.ProductRate(encoding, kernelRows, kernelColumns, manyTokens)
	bytes := encoding.DataBytes(kernelRows, kernelColumns) + 4*encoding.ScaleCount(kernelRows, kernelColumns)
	r.pass, r.ops = passRates(few, many, float64(bytes)/(kernelRows*kernelColumns))
	return r, err
}

// passRates takes apart what a product of many rows does, from its operations a second with few and with many: each weight is taken in once, and
// multiplied with each row.
func passRates(few, many, bytesPerWeight float64) (bytesPerSecond, opsPerSecond float64) {
	fewSeconds, manySeconds := 2*fewTokens/few, 2*manyTokens/many // of one weight
	// Noise must turn neither part into nothing.
	row := max((manySeconds-fewSeconds)/(manyTokens-fewTokens), manySeconds/manyTokens/2)
	once := max(fewSeconds-fewTokens*row, fewSeconds/fewTokens)
	return bytesPerWeight / once, 2 / row
}

// calibration is what the calibration model takes: for a prompt, for a token behind nothing, and for one when half of the experts are on the
// disk, its waits left out.
type calibration struct {
	load                                       residency.Load
	promptSeconds, tokenSeconds, streamSeconds float64
	misses                                     float64 // of a token that streams
}

// calibrate turns the rates of kernels by themselves into those that they reach inside a model, where matrices are smaller and
// everything else is done between two of them, by the same factor for all.
func (m *machineFile) calibrate(c *calibration) {
	machine, layers := m.machine(), float64(c.load.Layers)
	// Faster than by themselves kernels are only where a cache still has a part of the last token's weights: larger models have no such luck.
	share := min(1, machine.MultiplySeconds(c.load)/max(c.tokenSeconds-layers*m.LayerSeconds, c.tokenSeconds/2))
	for format := range m.KernelBytesPerSecond {
		m.KernelBytesPerSecond[format] *= share
	}
	passes := residency.Passes(calibrationPrompt)
	rest := c.promptSeconds - layers*(calibrationPrompt*m.RowSeconds+float64(passes)*m.LayerSeconds) - machine.AttentionSeconds(c.load, calibrationPrompt)
	m.BeyondCache = machine.ProductSeconds(c.load, calibrationPrompt, passes) / max(rest, c.promptSeconds/2)
	uses := float64(c.load.SparseLayers * c.load.PerToken)
	reading := float64(c.load.SparseLayers) * (1 - math.Pow(1-c.misses/uses, float64(c.load.PerToken)))
	if reading > 0 {
		m.StreamSeconds = max(0, c.streamSeconds-c.tokenSeconds) / reading
	}
}

func measureCalibration(ctx context.Context) (_ *calibration, err error) {
	work, err := os.MkdirTemp("", "colibri-plan-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	dir := filepath.Join(work, "model.colibri")
	if _, err := container.Generate(ctx, dir, []byte(calibrationModel), container.Options{}, 1, nil); err != nil {
		return nil, err
	}
	d, err := container.Describe(dir)
	if err != nil {
		return nil, err
	}
	c := &calibration{load: residency.LoadOf(d, calibrationPrompt)}
	return c, errors.Join(c.resident(ctx, dir, d), c.streaming(ctx, dir, d))
}

func (c *calibration) resident(ctx context.Context, dir string, d *container.Description) (err error) {
	model, err := engine.Load(ctx, dir, engine.Options{Drafts: engine.DraftsOff})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, model.Close()) }()
	prompt := randomPrompt(calibrationPrompt, d.Vocabulary)
	var prompts, tokens []float64
	for round := range calibrationRounds + 1 {
		long, err := greedy(ctx, model, prompt, 1)
		if err != nil {
			return err
		}
		short, err := greedy(ctx, model, prompt[:1], calibrationDecode)
		if err != nil {
			return err
		}
		if round > 0 { // the first one read the experts
			prompts = append(prompts, calibrationPrompt/long.Stats.PrefillTokensPerSecond)
			tokens = append(tokens, 1/short.Stats.TokensPerSecond)
		}
	}
	c.promptSeconds, c.tokenSeconds = middle(prompts), middle(tokens)
	return nil
}

func (c *calibration) streaming(ctx context.Context, dir string, d *container.Description) (err error) {
	limit := d.ResidentBytes + d.ExpertBytes/2
	limit += residency.ProgramBytes(limit) + d.ExpertBytes/10 // a sixth of what is left is for prompts
	model, err := engine.Load(ctx, dir, engine.Options{Drafts: engine.DraftsOff, MemoryBytes: limit})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, model.Close()) }()
	var tokens, misses []float64
	for round := range calibrationRounds + 1 {
		// Other tokens in each round: one text's experts soon fit.
		answer, err := greedy(ctx, model, []int32{int32(round + 1)}, calibrationDecode)
		if err != nil {
			return err
		}
		if round > 0 {
			tokens = append(tokens, 1/answer.Stats.TokensPerSecond-answer.Stats.WaitMillis/1e3/calibrationDecode)
			misses = append(misses, float64(answer.Stats.ExpertMisses)/calibrationDecode)
		}
	}
	c.streamSeconds, c.misses = middle(tokens), middle(misses)
	return nil
}

func (m *machineFile) write(path string) error {
	content, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(content, '\n'), 0o644)
}
