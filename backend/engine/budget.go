package engine

import (
	"context"
	"fmt"
	"sync"
	"time"

	"colibri/backend/compute"
	"colibri/backend/container"
	"colibri/backend/residency"
	"colibri/backend/telemetry"
)

// Need is the memory a model takes beside its experts.
type Need struct{ WeightBytes, CacheBytes, ScratchBytes int64 }

// Total is the sum.
func (n Need) Total() int64 { return n.WeightBytes + n.CacheBytes + n.ScratchBytes }

// budget divides the memory limit: weights and working memory are fixed, conversations take what they need, experts get the rest, or less
// where the governor has found that less is faster or that the system is short of memory.
type budget struct {
	limitBytes int64 // of everything; 0: the system did not say how much there is, and the user set none
	need       Need
	experts    int64 // bytes of all experts, in memory or not
	floor      int64 // the least that experts need
	staging    int64 // of reads in flight

	mu       sync.Mutex
	cache    int64 // keys and values of all conversations
	reserved int64 // what experts leave for them
	governed int64 // the most that experts may take, as the governor sees it
}

// leftForExperts is what the limit leaves them beside reads in flight.
func (b *budget) leftForExperts(reserved int64) int64 {
	return b.limitBytes - b.need.WeightBytes - b.workingBytes() - reserved - b.staging
}

// workingBytes is the working memory, and what the program itself takes.
func (b *budget) workingBytes() int64 {
	return b.need.ScratchBytes + residency.ProgramBytes(b.limitBytes)
}

// automaticLimit is what the program may use when the user has set no limit: see residency.Budget. A machine whose memory is taken at
// the moment still gives a quarter, for the others may be about to leave; the governor gives back what they want.
func automaticLimit(backend compute.Backend, recorder *telemetry.Recorder) int64 {
	state, err := residency.ReadMemory()
	if err != nil {
		recorder.Notice(fmt.Sprintf("The system does not say how much memory is free (%v); the model takes what it needs. Set a limit if that is too much.", err))
		return 0
	}
	machine := residency.Machine{MemoryBytes: state.TotalBytes, OthersBytes: state.OthersBytes}
	least := state.TotalBytes / 4
	if gpu, ok := backend.(interface{ WorkingSetBytes() int64 }); ok {
		machine.WorkingSetBytes = gpu.WorkingSetBytes()
		if machine.WorkingSetBytes > 0 {
			least = min(least, machine.WorkingSetBytes/2)
		}
	}
	return max(residency.Budget(machine), least)
}

// openStore gives the experts what the limit leaves, and refuses a limit that leaves too little, with the arithmetic.
func (m *Model) openStore(source *container.Container, options Options) error {
	c, b := m.config, &m.budget
	counts := make([]int, layerCount(c))
	var largest int64
	classes := map[container.ExpertLayout]int{}
	for layer := range counts {
		if !c.Sparse[layer] {
			continue
		}
		counts[layer] = c.MoE.Experts
		for index := range c.MoE.Experts {
			e, err := source.Expert(layer, index)
			if err != nil {
				return err
			}
			b.experts += e.Layout.SlotBytes
			largest = max(largest, e.Layout.SlotBytes)
			classes[e.Layout]++
		}
	}
	for layout, n := range classes {
		b.floor += int64(min(n, c.MoE.PerToken)) * layout.SlotBytes
	}
	b.reserved, b.governed = b.need.CacheBytes, b.experts
	left := b.leftForExperts(b.reserved)
	refuse := func(reason error) error {
		return fmt.Errorf("%s: the memory limit is %s; %s for weights, %s for a first conversation and %s to work in leave %s for experts: %w; raise the limit or choose a smaller model",
			source.Dir, bytesText(b.limitBytes), bytesText(b.need.WeightBytes), bytesText(b.need.CacheBytes), bytesText(b.workingBytes()), bytesText(max(left, 0)), reason)
	}
	if b.experts == 0 {
		if b.limitBytes > 0 && left < 0 {
			return refuse(fmt.Errorf("%s are missing", bytesText(-left)))
		}
		return nil
	}
	// Readers' windows take at most an eighth of what the store is given: more than that for everything is never used.
	if everything := b.experts + b.experts/4 + 64*largest; b.limitBytes == 0 || left > everything {
		left = everything
	}
	files := make([]string, len(source.Files))
	for i, f := range source.Files {
		files[i] = f.Path
	}
	if options.History {
		m.recall(source.Dir, residency.Shape{Layers: len(counts), Experts: c.MoE.Experts})
	}
	store, err := residency.Open(residency.Source{Files: files, Counts: counts, Expert: source.Expert}, m.backend, residency.Options{
		LimitBytes: left, LeastSlots: c.MoE.PerToken, Telemetry: m.recorder, History: m.history,
		Readers: options.Readers, Guess: options.Guesses != GuessOff,
	})
	if err != nil {
		if b.limitBytes > 0 {
			return refuse(err)
		}
		return fmt.Errorf("%s: %w", source.Dir, err)
	}
	m.store, m.experts = store, &stored{Store: store}
	m.streams = left < b.experts
	b.staging = m.recorder.Snapshot().StagingBytes
	if size := m.learned.best().SlotBytes; size > 0 && size+b.staging < left {
		b.governed = max(size, b.floor)
		return m.store.Resize(context.Background(), b.governed+b.staging) // nothing is in it yet
	}
	return nil
}

// claimCache counts memory for keys and values before it is mapped. Where the limit leaves none, experts give way; what would leave too
// few of them is refused. The caller holds no experts.
func (m *Model) claimCache(ctx context.Context, bytes int64) error {
	b := &m.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	total := b.cache + bytes
	if b.limitBytes > 0 && total > b.reserved {
		left := b.leftForExperts(total)
		var err error
		switch {
		case left < b.floor:
			err = fmt.Errorf("at least %s are needed", bytesText(b.floor))
		case m.store != nil:
			err = m.store.Resize(ctx, min(left, b.governed)+b.staging)
		}
		if err != nil {
			fixed := b.need.WeightBytes + b.workingBytes()
			return fmt.Errorf("the conversation has no room to grow: %s for conversations and %s for the model leave %s of the limit of %s for experts: %w; raise the limit, or start a new conversation",
				bytesText(total), bytesText(fixed), bytesText(max(left, 0)), bytesText(b.limitBytes), err)
		}
		b.reserved = total
	}
	b.cache = total
	m.recorder.SetMemory(telemetry.KV, b.cache)
	return nil
}

// returnCache takes memory for keys and values back. It stays reserved: the next conversation will want it.
func (m *Model) returnCache(bytes int64) {
	b := &m.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cache -= bytes
	m.recorder.SetMemory(telemetry.KV, b.cache)
}

// governEvery is often enough to give memory back before the system takes it.
const governEvery = 2 * time.Second

// govern moves the experts' memory with the system's signals and the measured speed, until ctx is done.
func (m *Model) govern(ctx context.Context) {
	var governor residency.Governor
	begin, before := time.Now(), m.recorder.Snapshot()
	var lastThrash uint64
	var lastSeconds float64
	residency.WatchMemory(ctx, governEvery, func(state residency.MemoryState, err error) {
		if err != nil {
			m.recorder.Notice(fmt.Sprintf("The system's memory figures cannot be read: %v.", err))
			return
		}
		now := m.recorder.Snapshot()
		r := residency.Reading{Seconds: time.Since(begin).Seconds(), FloorBytes: m.budget.floor, Pressure: state.Pressure, Tokens: int(now.Tokens - before.Tokens)}
		if r.Tokens > 0 {
			r.TokenMillis = millis(now.TokenTime-before.TokenTime) / float64(r.Tokens)
		}
		if passed := r.Seconds - lastSeconds; lastThrash > 0 && passed > 0 {
			r.ThrashBytesPerSecond = float64(state.ThrashBytes-lastThrash) / passed
		}
		before, lastThrash, lastSeconds = now, state.ThrashBytes, r.Seconds
		b := &m.budget
		b.mu.Lock()
		defer b.mu.Unlock()
		r.CeilingBytes = min(b.experts, b.leftForExperts(b.reserved))
		r.SlotBytes = min(b.governed, r.CeilingBytes)
		if r.SlotBytes == b.experts && r.Pressure == residency.Calm {
			return // everything is in memory and nobody minds: no smaller size can be faster
		}
		var decision residency.Decision
		governor, decision = residency.Govern(governor, r)
		b.governed = decision.SlotBytes
		if size, tokenMillis, ok := governor.Settled(); ok {
			m.learned.settled(residency.Best{SlotBytes: size, TokenMillis: tokenMillis}, r.CeilingBytes)
		}
		if decision.SlotBytes == r.SlotBytes {
			return
		}
		m.recorder.Notice(decision.Reason)
		if err := m.store.Resize(ctx, decision.SlotBytes+b.staging); err != nil && ctx.Err() == nil {
			m.recorder.Notice(fmt.Sprintf("The experts' memory could not be changed: %v.", err))
		}
	})
}
