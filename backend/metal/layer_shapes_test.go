//go:build (darwin && cgo) || metalsim

package metal

import (
	"math"
	"math/rand/v2"
	"unsafe"

	"colibri/backend/compute"
	"colibri/backend/container"
)

// Small models, and weights and calls of their layers.

// mla is a small model with latent attention; sizes are chosen so that every loop has a remainder.
func mla() *container.Config {
	return &container.Config{
		Hidden: 128, NormEpsilon: 1e-5, DenseInner: 96, Sparse: []bool{false, true},
		Attention: container.Attention{Kind: container.MLA, Heads: 6, Scale: 0.2, QueryRank: 72, KVRank: 64, NopeDim: 24, ValueDim: 40, LatentNormEpsilon: 1e-3,
			Index: container.Indexer{Heads: 5, HeadDim: 32, TopK: 16, Full: []bool{true, true}}},
		RoPE: container.RoPE{Dim: 16, Interleaved: true},
		MoE:  container.MoE{Experts: 20, PerToken: 4, Inner: 64, SharedInner: 48, Scoring: container.Sigmoid, SelectionBias: true, Groups: 4, TopGroups: 2, Normalise: true, Scale: 2.5},
	}
}

func gqa() *container.Config {
	return &container.Config{
		Hidden: 136, NormEpsilon: 1e-6, DenseInner: 80, Sparse: []bool{false, true},
		Attention: container.Attention{Kind: container.GQA, Heads: 6, KVHeads: 2, HeadDim: 40, Scale: 0.15, QKNorm: container.QKNormHead, Bias: true},
		RoPE:      container.RoPE{Dim: 20},
		MoE:       container.MoE{Experts: 24, PerToken: 3, Inner: 64, Scoring: container.Softmax, Groups: 1, TopGroups: 1, Normalise: true, Scale: 1},
	}
}

// layerWeights makes a layer's weights; pick gives the encoding of the n-th.
func (a *arena) layerWeights(rng *rand.Rand, c *container.Config, index int, pick func(n int) container.Encoding) *compute.LayerWeights {
	n := 0
	weight := func(rows, columns int) container.Block {
		n++
		b := a.randomWeight(rng, pick(n-1), rows, columns)
		// Unit variance through the layer keeps the softmax away from a single position.
		for i := range b.Scales {
			b.Scales[i] *= float32(8 / math.Sqrt(float64(columns)))
		}
		if b.Format == container.F32 {
			f := unsafe.Slice((*float32)(unsafe.Pointer(&b.Data[0])), rows*columns)
			for i := range f {
				f[i] *= float32(1.5 / math.Sqrt(float64(columns)))
			}
		}
		return b
	}
	near1 := func(n int) []float32 {
		x := a.random(rng, n)
		for i := range x {
			x[i] = 1 + x[i]/4
		}
		return x
	}
	t := &c.Attention
	w := &compute.LayerWeights{InputNorm: near1(c.Hidden), PostNorm: near1(c.Hidden)}
	if t.Kind == container.MLA {
		low := c.Hidden
		if t.QueryRank > 0 {
			w.QueryA, w.QueryANorm, low = weight(t.QueryRank, c.Hidden), near1(t.QueryRank), t.QueryRank
		}
		w.QueryB = weight(t.Heads*(t.NopeDim+c.RoPE.Dim), low)
		w.KVA, w.KVANorm = weight(t.KVRank+c.RoPE.Dim, c.Hidden), near1(t.KVRank)
		w.KVB = weight(t.Heads*(t.NopeDim+t.ValueDim), t.KVRank)
		w.Output = weight(c.Hidden, t.Heads*t.ValueDim)
		if t.Index.Heads > 0 && t.Index.Full[index] {
			w.IndexQuery, w.IndexKey, w.IndexScore = weight(t.Index.Heads*t.Index.HeadDim, t.QueryRank), weight(t.Index.HeadDim, c.Hidden), weight(t.Index.Heads, c.Hidden)
			w.IndexKeyNorm, w.IndexKeyNormBias = near1(t.Index.HeadDim), a.random(rng, t.Index.HeadDim)
		}
	} else {
		w.Query, w.Key, w.Value = weight(t.Heads*t.HeadDim, c.Hidden), weight(t.KVHeads*t.HeadDim, c.Hidden), weight(t.KVHeads*t.HeadDim, c.Hidden)
		w.Output = weight(c.Hidden, t.Heads*t.HeadDim)
		if t.Bias {
			w.QueryBias, w.KeyBias, w.ValueBias = a.random(rng, t.Heads*t.HeadDim), a.random(rng, t.KVHeads*t.HeadDim), a.random(rng, t.KVHeads*t.HeadDim)
		}
		switch t.QKNorm {
		case container.QKNormHead:
			w.QueryNorm, w.KeyNorm = near1(t.HeadDim), near1(t.HeadDim)
		case container.QKNormFull:
			w.QueryNorm, w.KeyNorm = near1(t.Heads*t.HeadDim), near1(t.KVHeads*t.HeadDim)
		}
	}
	inner := c.DenseInner
	if c.Sparse[index] {
		inner = c.MoE.SharedInner
		w.Router = a.randomWeight(rng, encodings[0], c.MoE.Experts, c.Hidden)
		if c.MoE.SelectionBias {
			w.RouterBias = a.random(rng, c.MoE.Experts)
		}
	}
	if inner > 0 {
		w.Gate, w.Up, w.Down = weight(inner, c.Hidden), weight(inner, c.Hidden), weight(c.Hidden, inner)
	}
	return w
}

// layerCall makes a call of layer index for rows, in caches of capacity positions whose earlier entries are random.
func (a *arena) layerCall(rng *rand.Rand, c *container.Config, index int, w *compute.LayerWeights, rows []compute.Row, caches, capacity int) *compute.LayerCall {
	t, half := &c.Attention, c.RoPE.Dim/2
	l := &compute.LayerCall{Config: c, Index: index, Weights: w, Rows: rows, X: a.random(rng, len(rows)*c.Hidden), Normed: a.floats(len(rows) * c.Hidden), Shared: a.floats(len(rows) * c.Hidden)}
	for i := range l.Shared {
		l.Shared[i] = float32(math.NaN()) // must be written, not added to
	}
	for _, r := range rows {
		for j := range half {
			angle := float64(r.Position) * math.Pow(10000, -float64(j)/float64(half))
			l.Cos, l.Sin = append(l.Cos, float32(math.Cos(angle))), append(l.Sin, float32(math.Sin(angle)))
		}
	}
	for range caches {
		k := compute.Cache{Capacity: capacity}
		if t.Kind == container.MLA {
			k.Latent, k.Rope = a.random(rng, capacity*t.KVRank), a.random(rng, capacity*c.RoPE.Dim)
			if t.Index.Heads > 0 && t.Index.Full[index] {
				k.Index = a.random(rng, capacity*t.Index.HeadDim)
			}
		} else {
			k.Keys, k.Values = a.random(rng, capacity*t.KVHeads*t.HeadDim), a.random(rng, capacity*t.KVHeads*t.HeadDim)
		}
		l.Caches = append(l.Caches, k)
	}
	if t.Index.Heads > 0 {
		l.Selection = &compute.Selection{Counts: make([]int32, len(rows)), Positions: make([]int32, len(rows)*t.Index.TopK), Tied: make([]int32, len(rows))}
	}
	if c.Sparse[index] {
		l.Experts, l.Gates = make([]int32, len(rows)*c.MoE.PerToken), make([]float32, len(rows)*c.MoE.PerToken)
	}
	return l
}
