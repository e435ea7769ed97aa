package app

import (
	"context"
	"runtime"
	"sync"
	"time"

	"colibri/backend/container"
	"colibri/backend/residency"
)

// expect adds to a description what running the model will take and give on this machine, from the planner. Where something cannot be
// measured the figures stay 0 and the window shows none: a wrong promise is worse.
func expect(ctx context.Context, c *Container, d *container.Description, memoryBytes int64) {
	load := residency.LoadOf(d, plannedTurns)
	// The least it runs in: what always stays, and the experts of one token in one layer.
	c.NeedBytes = load.ResidentBytes + load.ScratchBytes + load.KVBytesPerToken*int64(load.Context) + int64(load.PerToken)*load.ExpertBytes
	state, err := residency.ReadMemory()
	if err != nil {
		return
	}
	disk, err := residency.MeasureDisk(ctx, d.Dir, residency.QuickProbe)
	if err != nil {
		return
	}
	plan, err := residency.NewPlan(residency.Machine{
		MemoryBytes: state.TotalBytes, OthersBytes: state.OthersBytes, DiskBytesPerSecond: disk,
		WeightBytesPerSecond: kernelShare * readBandwidth(), LayerSeconds: layerSeconds,
		OpsPerSecond: opsPerCore * float64(runtime.NumCPU()),
	}, load, memoryBytes)
	if err != nil {
		return // it does not fit at the moment; loading says why, with the arithmetic
	}
	c.SpeedLow, c.SpeedHigh = plan.TokensPerSecond.Low, plan.TokensPerSecond.High
}

const (
	kernelShare  = 0.6    // of the memory's read bandwidth that the kernels reach on matrices larger than the cache
	layerSeconds = 100e-6 // launching and waiting, a layer
	opsPerCore   = 20e9   // of a prompt's matrix products, with 8-wide fused multiply-add
	plannedTurns = 4096   // tokens of context that a description counts on
)

// readBandwidth measures, once, how many bytes a second all processors together read from memory.
var readBandwidth = sync.OnceValue(func() float64 {
	const words = 8 << 20 // 64 MB, larger than any cache
	memory := make([]uint64, words)
	for i := range memory { // touched, so that the pages are there
		memory[i] = uint64(i)
	}
	workers := runtime.NumCPU()
	part := words / workers
	var work sync.WaitGroup
	sums := make([]uint64, workers)
	began := time.Now()
	for w := range workers {
		work.Go(func() {
			var a, b, c, d uint64
			mine := memory[w*part : (w+1)*part]
			for i := 0; i+4 <= len(mine); i += 4 {
				a += mine[i]
				b += mine[i+1]
				c += mine[i+2]
				d += mine[i+3]
			}
			sums[w] = a + b + c + d
		})
	}
	work.Wait()
	return float64(part*workers*8) / time.Since(began).Seconds()
})
