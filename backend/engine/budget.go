package engine

import (
	"context"
	"fmt"

	"colibri/backend/container"
	"colibri/backend/residency"
	"colibri/backend/telemetry"
)

// Need is the memory a model takes beside its experts.
type Need struct{ WeightBytes, CacheBytes, ScratchBytes int64 }

// Total is the sum.
func (n Need) Total() int64 { return n.WeightBytes + n.CacheBytes + n.ScratchBytes }

// openStore gives the experts what the limit leaves, and refuses a limit that leaves too little, with the arithmetic.
func (m *Model) openStore(source *container.Container) error {
	c, need := m.config, m.need
	counts := make([]int, layerCount(c))
	var largest int64
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
			m.expertBytes += e.Layout.SlotBytes
			largest = max(largest, e.Layout.SlotBytes)
		}
	}
	left := m.limitBytes - need.Total()
	refuse := func(reason error) error {
		return fmt.Errorf("%s: the memory limit is %s; %s for weights, %s for a first conversation and %s to work in leave %s for experts: %w; raise the limit or choose a smaller model",
			source.Dir, bytesText(m.limitBytes), bytesText(need.WeightBytes), bytesText(need.CacheBytes), bytesText(need.ScratchBytes), bytesText(max(left, 0)), reason)
	}
	if m.expertBytes == 0 {
		if m.limitBytes > 0 && left < 0 {
			return refuse(fmt.Errorf("%s are missing", bytesText(-left)))
		}
		return nil
	}
	if m.limitBytes == 0 {
		// Everything, and readers whose windows take at most an eighth of what they are given.
		left = m.expertBytes + m.expertBytes/4 + 64*largest
	}
	files := make([]string, len(source.Files))
	for i, f := range source.Files {
		files[i] = f.Path
	}
	store, err := residency.Open(residency.Source{Files: files, Counts: counts, Expert: source.Expert}, m.backend, residency.Options{
		LimitBytes: left, LeastSlots: c.MoE.PerToken, Telemetry: m.recorder,
	})
	if err != nil {
		if m.limitBytes > 0 {
			return refuse(err)
		}
		return fmt.Errorf("%s: %w", source.Dir, err)
	}
	m.store, m.experts = store, stored{store}
	m.reservedBytes = need.CacheBytes
	return nil
}

// claimCache counts memory for keys and values before it is mapped. Where the limit leaves none, experts give way; what would leave too
// few of them is refused. The caller has the model's turn, so no experts are in use.
func (m *Model) claimCache(ctx context.Context, bytes int64) error {
	m.cacheMu.Lock()
	defer m.cacheMu.Unlock()
	total := m.cacheBytes + bytes
	if m.limitBytes > 0 && total > m.reservedBytes {
		fixed := m.need.WeightBytes + m.need.ScratchBytes
		left := m.limitBytes - fixed - total
		var err error
		if m.store != nil {
			err = m.store.Resize(ctx, left)
		} else if left < 0 {
			err = fmt.Errorf("%s are missing", bytesText(-left))
		}
		if err != nil {
			return fmt.Errorf("the conversation has no room to grow: %s for conversations and %s for the model leave %s of the limit of %s for experts (%w); raise the limit, or start a new conversation",
				bytesText(total), bytesText(fixed), bytesText(max(left, 0)), bytesText(m.limitBytes), err)
		}
		m.reservedBytes = total
	}
	m.cacheBytes = total
	m.recorder.SetMemory(telemetry.KV, m.cacheBytes)
	return nil
}

// returnCache takes memory for keys and values back. It stays reserved: the next conversation will want it.
func (m *Model) returnCache(bytes int64) {
	m.cacheMu.Lock()
	defer m.cacheMu.Unlock()
	m.cacheBytes -= bytes
	m.recorder.SetMemory(telemetry.KV, m.cacheBytes)
}
