package app

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"

	"colibri/backend/container"
	"colibri/backend/engine"
	"colibri/backend/residency"
	"colibri/backend/version"
)

// plannedTokens is how much conversation a description counts on.
const plannedTokens = 4096

// expectedSpeed is the planner's estimate for this machine. Where it cannot tell, it is zero and the window shows none: a wrong promise
// is worse.
func expectedSpeed(ctx context.Context, dir string, load residency.Load, rates engine.Rates, memoryBytes int64) residency.Range {
	state, err := residency.ReadMemory()
	if err != nil {
		return residency.Range{}
	}
	disk, err := residency.MeasureDisk(ctx, dir, residency.QuickProbe)
	if err != nil {
		return residency.Range{}
	}
	plan, err := residency.NewPlan(residency.Machine{
		MemoryBytes: state.TotalBytes, OthersBytes: state.OthersBytes, DiskBytesPerSecond: disk,
		WeightBytesPerSecond: rates.ReadBytesPerSecond, KernelBytesPerSecond: rates.KernelBytesPerSecond, LayerSeconds: rates.LayerSeconds,
		OpsPerSecond: rates.ReadBytesPerSecond, // for the first word, which is not asked for here
	}, load, memoryBytes)
	if err != nil {
		return residency.Range{} // it does not fit at the moment; loading says why, with the arithmetic
	}
	return plan.TokensPerSecond
}

// measuredRates are the machine's rates on disk: they are measured once for each build and machine.
type measuredRates struct {
	path string
	mu   sync.Mutex
	read bool
	file ratesFile
}

type ratesFile struct {
	For   string       `json:"for"` // the build and the machine
	Rates engine.Rates `json:"rates"`
}

func thisMachine() string {
	return fmt.Sprintf("Colibri %s, %s/%s, %d threads", version.Number, runtime.GOOS, runtime.GOARCH, runtime.NumCPU())
}

// known are the rates measured so far.
func (m *measuredRates) known() engine.Rates {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.knownLocked()
}

func (m *measuredRates) knownLocked() engine.Rates {
	if !m.read {
		m.read = true
		if _, err := readJSON(m.path, "machine's rates", &m.file); err != nil || m.file.For != thisMachine() {
			m.file = ratesFile{For: thisMachine()} // measured again
		}
	}
	return m.file.Rates
}

// measure adds what a model needs. A cache that cannot be written is measured again at the next start.
func (m *measuredRates) measure(ctx context.Context, d *container.Description) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	rates := m.knownLocked()
	if rates.Has(d.Multiplied) {
		return nil
	}
	rates, err := engine.MeasureRates(ctx, rates, d.Multiplied)
	if err != nil {
		return err
	}
	m.file.Rates = rates
	if err := os.MkdirAll(filepath.Dir(m.path), 0o700); err != nil {
		return err
	}
	return writeJSON(m.path, m.file)
}
