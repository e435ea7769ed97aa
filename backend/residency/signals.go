package residency

import (
	"context"
	"time"
)

// MemoryState is what the system says of memory at one moment, in bytes.
type MemoryState struct {
	TotalBytes  int64 // installed, or the control group's limit
	OthersBytes int64 // wired, anonymous and compressed memory that is not this process's
	OwnBytes    int64 // this process's footprint: dirty, compressed and GPU memory, without clean file pages
	// CompressedBytes is what the compressor takes (macOS) or what was swapped out (Linux).
	CompressedBytes int64
	// ThrashBytes counts, since the system started, memory that was brought back because someone used it: decompressed, swapped
	// in, or, on Linux, anonymous pages refaulted.
	ThrashBytes uint64
	Pressure    Pressure
}

// ReadMemory asks the system. On macOS more than one call a second gets old figures.
func ReadMemory() (MemoryState, error) { return readMemory() }

// WatchMemory calls tell every interval, and at once when the system reports pressure, until ctx is done. A failed reading is told
// as such and tried again.
func WatchMemory(ctx context.Context, every time.Duration, tell func(MemoryState, error)) {
	events, stop := pressureEvents()
	defer stop()
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		pressed := Calm
		select {
		case <-ctx.Done():
			return
		case pressed = <-events:
		case <-ticker.C:
		}
		state, err := readMemory()
		// The event is newer than what the system's counters say of it.
		state.Pressure = max(state.Pressure, pressed)
		tell(state, err)
	}
}
