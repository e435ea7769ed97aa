package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"runtime"

	"colibri/backend/container"
	"colibri/backend/cpu"
	"colibri/backend/engine"
	"colibri/backend/residency"
	"colibri/backend/version"
)

// doctorReport says what this machine is and what would run on it.
type doctorReport struct {
	Version  string          `json:"version"`
	System   string          `json:"system"`
	Cores    int             `json:"cores"`
	Memory   memoryReport    `json:"memory"`
	Backends []backendReport `json:"backends"`
	Model    *modelReport    `json:"model,omitempty"`
	Problems []string        `json:"problems"`
}

type memoryReport struct {
	TotalBytes      int64   `json:"total_bytes"`
	OthersBytes     int64   `json:"others_bytes"`      // what other programs hold and will not give up
	WorkingSetBytes int64   `json:"working_set_bytes"` // what the GPU may hold at once; 0 without one
	BudgetBytes     int64   `json:"budget_bytes"`      // what a model may take when no limit is set
	BytesPerSecond  float64 `json:"read_bytes_per_second"`
}

type backendReport struct {
	Name   string `json:"name"`
	Device string `json:"device,omitempty"`
	Reason string `json:"unavailable_because,omitempty"`
}

type modelReport struct {
	Dir                    string  `json:"dir"`
	Name                   string  `json:"name"`
	ResidentBytes          int64   `json:"resident_bytes"`
	ExpertBytes            int64   `json:"expert_bytes"`
	BytesPerToken          int64   `json:"bytes_per_token"`
	DiskBytesPerSecond     float64 `json:"disk_bytes_per_second"`
	FitsWhole              bool    `json:"fits_whole"`
	Experts                int     `json:"experts"`           // routed ones, of all layers
	ExpertsInMemory        int     `json:"experts_in_memory"` // for which the budget has room, beside a conversation
	SecondsPerTokenFromAll float64 `json:"seconds_per_token_reading_everything"`
}

func doctorCommand(ctx context.Context, args []string, out, notes io.Writer) error {
	var m modelFlags
	flags := flag.NewFlagSet("doctor", flag.ContinueOnError)
	flags.StringVar(&m.dir, "model", "", "`DIR` of a container or checkpoint to judge (default: the bundled model)")
	asJSON := flags.Bool("json", false, "print one JSON object")
	rest, err := parse(flags, args, notes)
	if err != nil {
		return err
	}
	if len(rest) > 0 {
		return usagef("unexpected argument %q", rest[0])
	}
	r := doctorReport{Version: version.Number, System: runtime.GOOS + "/" + runtime.GOARCH, Cores: runtime.NumCPU(), Problems: []string{}}
	r.checkMemory()
	r.checkBackends()
	r.Memory.BudgetBytes = residency.Budget(r.machine())
	if err := r.checkModel(ctx, &m); err != nil {
		r.Problems = append(r.Problems, err.Error())
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if *asJSON {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(r)
	}
	r.print(out)
	return nil
}

func (r *doctorReport) checkMemory() {
	state, err := residency.ReadMemory()
	if err != nil {
		r.Problems = append(r.Problems, err.Error())
		return
	}
	r.Memory.TotalBytes, r.Memory.OthersBytes = state.TotalBytes, state.OthersBytes
	if state.Pressure != residency.Calm {
		r.Problems = append(r.Problems, fmt.Sprintf("the system reports memory pressure (%s): close other programs for better speed", state.Pressure))
	}
}

// machine is what a plan needs to know of this one to divide its memory.
func (r *doctorReport) machine() residency.Machine {
	return residency.Machine{MemoryBytes: r.Memory.TotalBytes, OthersBytes: r.Memory.OthersBytes, WorkingSetBytes: r.Memory.WorkingSetBytes}
}

// checkBackends starts each backend for a moment.
func (r *doctorReport) checkBackends() {
	for _, name := range engine.Backends() {
		report := backendReport{Name: name}
		backend, err := engine.OpenBackend(name)
		if err != nil {
			report.Reason = err.Error()
			r.Backends = append(r.Backends, report)
			continue
		}
		report.Device = backend.Name()
		if c, ok := backend.(*cpu.Backend); ok {
			if r.Memory.BytesPerSecond, err = c.MeasureReadBandwidth(); err != nil {
				r.Problems = append(r.Problems, err.Error())
			}
		}
		if gpu, ok := backend.(interface{ WorkingSetBytes() int64 }); ok {
			r.Memory.WorkingSetBytes = gpu.WorkingSetBytes()
		}
		if err := backend.Close(); err != nil {
			r.Problems = append(r.Problems, err.Error())
		}
		r.Backends = append(r.Backends, report)
	}
}

// doctorContext is the conversation, in tokens, that a model is judged with.
const doctorContext = 4096

func (r *doctorReport) checkModel(ctx context.Context, m *modelFlags) error {
	dir, err := m.path(ctx)
	if err != nil {
		return err
	}
	c, err := container.Open(dir)
	if err != nil {
		return err
	}
	d, err := c.Describe()
	if err = errors.Join(err, c.Close()); err != nil {
		return err
	}
	r.Problems = append(r.Problems, d.Warnings...)
	r.Model = &modelReport{Dir: dir, Name: d.Name, ResidentBytes: d.ResidentBytes, ExpertBytes: d.ExpertBytes, BytesPerToken: d.BytesPerToken,
		Experts: d.SparseLayers * d.Experts}
	plan, err := residency.NewPlan(r.machine(), residency.LoadOf(d, doctorContext), 0)
	if err != nil {
		r.Problems = append(r.Problems, err.Error()) // with the arithmetic
	}
	r.Model.ExpertsInMemory = plan.Slots
	r.Model.FitsWhole = d.ResidentBytes <= r.Memory.BudgetBytes && plan.Slots == r.Model.Experts
	rate, err := residency.MeasureDisk(ctx, dir, residency.QuickProbe)
	if err != nil {
		return err
	}
	r.Model.DiskBytesPerSecond = rate
	r.Model.SecondsPerTokenFromAll = float64(d.BytesPerToken) / rate
	return nil
}

func (r *doctorReport) print(w io.Writer) {
	fmt.Fprintf(w, "Colibri %s on %s, %d cores\n", r.Version, r.System, r.Cores)
	fmt.Fprintf(w, "memory   %s, of which others hold %s; a model may take %s; read at %.1f GB/s\n", formatBytes(r.Memory.TotalBytes),
		formatBytes(r.Memory.OthersBytes), formatBytes(r.Memory.BudgetBytes), r.Memory.BytesPerSecond/1e9)
	for _, b := range r.Backends {
		if b.Reason != "" {
			fmt.Fprintf(w, "%-8s not available: %s\n", b.Name, b.Reason)
		} else {
			fmt.Fprintf(w, "%-8s %s\n", b.Name, b.Device)
		}
	}
	if m := r.Model; m != nil {
		fmt.Fprintf(w, "model    %s: %s stay in memory, %s of experts\n", m.Name, formatBytes(m.ResidentBytes), formatBytes(m.ExpertBytes))
		if m.DiskBytesPerSecond > 0 {
			fmt.Fprintf(w, "disk     %.2f GB/s in reads of expert size\n", m.DiskBytesPerSecond/1e9)
		}
		switch {
		case m.FitsWhole:
			fmt.Fprintln(w, "         fits in memory as a whole")
		case m.SecondsPerTokenFromAll > 0:
			fmt.Fprintf(w, "         larger than memory: %d of %d experts fit; a word takes up to %.2g s of reading when nothing is cached\n", m.ExpertsInMemory, m.Experts, m.SecondsPerTokenFromAll)
		}
	}
	for _, p := range r.Problems {
		fmt.Fprintln(w, "note:", p)
	}
}
