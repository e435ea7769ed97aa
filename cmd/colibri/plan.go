package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"colibri/backend/container"
	"colibri/backend/residency"
)

// machineFile describes a machine for colibri plan. Rates are measured ones: colibri plan --measure writes such a file on the machine itself.
type machineFile struct {
	Name                 string  `json:"name"`
	MemoryBytes          int64   `json:"memory_bytes"`
	WorkingSetBytes      int64   `json:"working_set_bytes"` // what the GPU may hold; 0 without one
	OthersBytes          int64   `json:"others_bytes"`
	DiskBytesPerSecond   float64 `json:"disk_bytes_per_second"`
	ReadSeconds          float64 `json:"read_seconds,omitempty"` // of one read, beside its bytes
	WeightBytesPerSecond float64 `json:"weight_bytes_per_second"`
	LayerSeconds         float64 `json:"layer_seconds"`
	StreamSeconds        float64 `json:"stream_seconds,omitempty"` // a layer's that reads experts, waits left out
	RowSeconds           float64 `json:"row_seconds,omitempty"`    // of a prompt's token in a layer, beside its products and attention
	OpsPerSecond         float64 `json:"ops_per_second"`
	AttentionOps         float64 `json:"attention_ops_per_second,omitempty"`
	CacheBytes           int64   `json:"cache_bytes,omitempty"`        // of the processor's last cache
	BeyondCache          float64 `json:"beyond_cache_share,omitempty"` // of the rates of a prompt's products, in a model larger than that

	// By encoding; others go by weight_bytes_per_second and ops_per_second.
	KernelBytesPerSecond map[string]float64 `json:"kernel_bytes_per_second,omitempty"`
	CachedBytesPerSecond map[string]float64 `json:"cached_bytes_per_second,omitempty"` // of a model that the cache holds
	PassBytesPerSecond   map[string]float64 `json:"pass_bytes_per_second,omitempty"`   // of a prompt's pass, beside its operations
	KernelOpsPerSecond   map[string]float64 `json:"kernel_ops_per_second,omitempty"`
}

func (m *machineFile) machine() residency.Machine {
	return residency.Machine{MemoryBytes: m.MemoryBytes, WorkingSetBytes: m.WorkingSetBytes, OthersBytes: m.OthersBytes,
		DiskBytesPerSecond: m.DiskBytesPerSecond, WeightBytesPerSecond: m.WeightBytesPerSecond, KernelBytesPerSecond: m.KernelBytesPerSecond,
		LayerSeconds: m.LayerSeconds, OpsPerSecond: m.OpsPerSecond, ReadSeconds: m.ReadSeconds, RowSeconds: m.RowSeconds, StreamSeconds: m.StreamSeconds, KernelOpsPerSecond: m.KernelOpsPerSecond,
		CacheBytes: m.CacheBytes, BeyondCache: m.BeyondCache, CachedBytesPerSecond: m.CachedBytesPerSecond, PassBytesPerSecond: m.PassBytesPerSecond, AttentionOpsPerSecond: m.AttentionOps}
}

func readMachine(path string) (*machineFile, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var m machineFile
	if err := json.Unmarshal(content, &m); err != nil {
		return nil, fmt.Errorf("%s does not describe a machine: %w", path, err)
	}
	if m.MemoryBytes <= 0 || m.DiskBytesPerSecond <= 0 || m.WeightBytesPerSecond <= 0 || m.OpsPerSecond <= 0 || m.LayerSeconds < 0 || m.ReadSeconds < 0 || m.RowSeconds < 0 || m.StreamSeconds < 0 {
		return nil, fmt.Errorf("%s: memory_bytes, disk_bytes_per_second, weight_bytes_per_second and ops_per_second must be above 0", path)
	}
	return &m, nil
}

// planOutput is the object that --json prints.
type planOutput struct {
	Machine       string          `json:"machine"`
	Model         string          `json:"model"`
	LimitBytes    int64           `json:"limit_bytes"`
	ResidentBytes int64           `json:"resident_bytes"`
	KVBytes       int64           `json:"kv_bytes"`
	ScratchBytes  int64           `json:"scratch_bytes"`
	SlotBytes     int64           `json:"slot_bytes"`
	Slots         int             `json:"slots"`
	PassTokens    int             `json:"pass_tokens"`
	MemoryBytes   int64           `json:"memory_bytes"` // of the process at its peak
	Speed         residency.Range `json:"tokens_per_second"`
	FirstWord     residency.Range `json:"first_word_seconds"`
}

// planCommand predicts a machine that may be elsewhere. With a trace of the model, hits are counted by replaying it; without, they are
// taken from what published runs of other models reached, and the range is wide.
func planCommand(ctx context.Context, args []string, out, notes io.Writer) error {
	flags := flag.NewFlagSet("plan", flag.ContinueOnError)
	machinePath := flags.String("machine", "", "`FILE` that describes the machine (JSON: memory_bytes, disk_bytes_per_second, …)")
	measure := flags.Bool("measure", false, "measure this machine and write the --machine file first (half a minute)")
	dir := flags.String("container", "", "the model's `DIR`")
	contextTokens := flags.Int("context", 4096, "`N` tokens of conversation to keep")
	promptTokens := flags.Int("prompt", 512, "tokens of the prompt for the first word, `N`")
	tracePath := flags.String("trace", "", "a routing trace of this model, `FILE`, as colibri run --trace writes it")
	var memory byteSize
	flags.Var(&memory, "memory", "the limit a user would set (default: what the machine can spare)")
	asJSON := flags.Bool("json", false, "print one JSON object")
	rest, err := parse(flags, args, notes)
	switch {
	case err != nil:
		return err
	case len(rest) > 0:
		return usagef("unexpected argument %q", rest[0])
	case *machinePath == "" || *dir == "":
		return usagef("give --machine FILE and --container DIR")
	case *contextTokens < 1 || *promptTokens < 1:
		return usagef("--context and --prompt must be at least 1")
	}
	if *measure {
		here, err := measureMachine(ctx, *dir, notes)
		if err == nil {
			err = here.write(*machinePath)
		}
		if err != nil {
			return err
		}
	}
	m, err := readMachine(*machinePath)
	if err != nil {
		return err
	}
	d, err := container.Describe(*dir)
	if err != nil {
		return err
	}
	load := residency.LoadOf(d, *contextTokens)
	load.PromptTokens = *promptTokens
	if *tracePath != "" {
		if err := useTrace(*tracePath, &load); err != nil {
			return err
		}
	}
	p, err := residency.NewPlan(m.machine(), load, int64(memory))
	if err != nil {
		return err
	}
	if *asJSON {
		return json.NewEncoder(out).Encode(planOutput{m.Name, d.Name, p.LimitBytes, p.ResidentBytes, p.KVBytes, p.ScratchBytes,
			p.SlotBytes, p.Slots, p.PassTokens, p.MemoryBytes, p.TokensPerSecond, p.FirstWordSeconds})
	}
	fmt.Fprintf(out, "%s on %s\n", d.Name, m.Name)
	for _, line := range p.Sum {
		fmt.Fprintln(out, " ", line)
	}
	fmt.Fprintf(out, "%s of memory at the peak\n", formatBytes(p.MemoryBytes))
	fmt.Fprintf(out, "%.3g tok/s expected (%.3g to %.3g)\n", p.TokensPerSecond.Expected, p.TokensPerSecond.Low, p.TokensPerSecond.High)
	fmt.Fprintf(out, "%.3g s to the first word of an answer to %d tokens (%.3g to %.3g)\n", p.FirstWordSeconds.Expected, load.PromptTokens,
		p.FirstWordSeconds.Low, p.FirstWordSeconds.High)
	return nil
}

// useTrace takes from a trace what it says of the model: how often experts are found in memory, and how many a pass touches.
func useTrace(path string, load *residency.Load) (err error) {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	trace, err := residency.ReadTrace(file)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if load.Hits, err = residency.HitCurve(trace, load.SparseLayers*load.Experts); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	load.Touched = residency.TouchCurve(trace, load.Experts)
	return nil
}
