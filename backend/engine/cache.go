package engine

import (
	"context"
	"errors"

	"colibri/backend/compute"
	"colibri/backend/container"
	"colibri/backend/hugepages"
)

// firstCapacity is the number of positions a conversation has room for before it first grows.
const firstCapacity = 256

// kvCache is one sequence's memory of all layers, the multi-token-prediction layer's included where it is used. It grows by
// doubling, layer by layer: the room it needs beyond the old and the new cache is that of one layer.
type kvCache struct {
	model    *Model
	layers   []cachedLayer
	capacity int
	bytes    int64 // mapped, and counted with the model
}

type cachedLayer struct {
	memory *mapping
	view   compute.Cache
}

// cacheWidths are the float32s one position takes in a layer.
type cacheWidths struct{ latent, rope, index, keys, values int }

func widthsOf(c *container.Config, layer int) cacheWidths {
	a := &c.Attention
	if a.Kind == container.GQA {
		return cacheWidths{keys: a.KVHeads * a.HeadDim, values: a.KVHeads * a.HeadDim}
	}
	w := cacheWidths{latent: a.KVRank, rope: c.RoPE.Dim}
	if a.Index.Heads > 0 && a.Index.Full[layer] {
		w.index = a.Index.HeadDim
	}
	return w
}

func (w cacheWidths) bytes(positions int) int64 {
	total := int64(0)
	for _, width := range []int{w.latent, w.rope, w.index, w.keys, w.values} {
		total += roundUp(int64(width)*int64(positions)*4, carveAlignment)
	}
	return roundUp(total, pageBytes)
}

// cacheBytes is the memory of a sequence with room for positions in the first layers layers.
func cacheBytes(c *container.Config, layers, positions int) int64 {
	total := int64(0)
	for l := range layers {
		total += widthsOf(c, l).bytes(positions)
	}
	return total
}

// capacityFor doubles until positions fit, without going past what the model can use.
func capacityFor(c *container.Config, current, positions int) int {
	capacity := max(current, firstCapacity)
	for capacity < positions {
		capacity *= 2
	}
	return min(capacity, max(c.MaxPositions, positions))
}

// reserve makes room for positions positions, of which used are to be kept. When memory runs out half-way, layers
// have different capacities, all at least the old one: the conversation stays usable.
func (k *kvCache) reserve(ctx context.Context, positions, used int) error {
	if positions <= k.capacity {
		return nil
	}
	m := k.model
	layers := m.layerCount()
	capacity := capacityFor(m.config, k.capacity, positions)
	if k.layers == nil {
		k.layers = make([]cachedLayer, layers)
	}
	// Old and new rows of one layer are mapped at the same time.
	var transient int64
	for l := range k.layers {
		transient = max(transient, k.layers[l].bytes())
	}
	more := cacheBytes(m.config, layers, capacity) + transient - k.bytes
	if err := m.claimCache(ctx, more); err != nil {
		return err
	}
	defer func() {
		claimed := k.bytes + more
		k.count()
		m.returnCache(claimed - k.bytes)
	}()
	for l := range k.layers {
		if err := k.growLayer(l, capacity, used); err != nil {
			return err
		}
	}
	k.capacity = capacity
	return nil
}

func (k *kvCache) growLayer(l, capacity, used int) error {
	old := k.layers[l]
	if old.view.Capacity >= capacity {
		return nil
	}
	widths := widthsOf(k.model.config, l)
	memory, err := newMapping(k.model.backend, widths.bytes(capacity))
	if err != nil {
		return err
	}
	hugepages.Prefer(memory.bytes)
	view := widths.carve(memory, capacity)
	copyRows(view.Latent, old.view.Latent, used*widths.latent)
	copyRows(view.Rope, old.view.Rope, used*widths.rope)
	copyRows(view.Index, old.view.Index, used*widths.index)
	copyRows(view.Keys, old.view.Keys, used*widths.keys)
	copyRows(view.Values, old.view.Values, used*widths.values)
	k.layers[l] = cachedLayer{memory, view}
	return old.memory.free()
}

// bytes is what the layer has mapped.
func (l *cachedLayer) bytes() int64 {
	if l.memory == nil {
		return 0
	}
	return int64(len(l.memory.bytes))
}

// count sets bytes to what is mapped.
func (k *kvCache) count() {
	k.bytes = 0
	for l := range k.layers {
		k.bytes += k.layers[l].bytes()
	}
}

func copyRows(to, from []float32, n int) {
	if n > 0 {
		copy(to, from[:n])
	}
}

func (w cacheWidths) carve(memory *mapping, capacity int) compute.Cache {
	c := carver{bytes: memory.bytes}
	return compute.Cache{
		Capacity: capacity,
		Latent:   c.floats(w.latent * capacity),
		Rope:     c.floats(w.rope * capacity),
		Index:    c.floats(w.index * capacity),
		Keys:     c.floats(w.keys * capacity),
		Values:   c.floats(w.values * capacity),
	}
}

func (k *kvCache) free() error {
	var errs []error
	for l := range k.layers {
		errs = append(errs, k.layers[l].memory.free())
	}
	k.model.returnCache(k.bytes)
	k.layers, k.capacity, k.bytes = nil, 0, 0
	return errors.Join(errs...)
}
