//go:build (darwin && cgo) || metalsim

package metal

import (
	"cmp"
	"math"
	"slices"

	"colibri/backend/compute"
	"colibri/backend/container"
)

// A layer in double precision, from compute.LayerCall's description: not absorbed, no chunks, no phases. It shares nothing with the reference of
// backend/cpu, so that each backend is held to a reading of its own; TestOraclesGiveTheProcessorsTokens compares the two.

const (
	attentionLimit = 2e-4
	cacheLimit     = 1e-4
)

func rotate(v []float64, cos, sin []float32, interleaved bool) {
	half := len(cos)
	out := make([]float64, 2*half)
	for j := range half {
		a, b := v[j], v[j+half]
		if interleaved {
			a, b = v[2*j], v[2*j+1]
		}
		c, s := float64(cos[j]), float64(sin[j])
		out[j], out[j+half] = a*c-b*s, b*c+a*s
	}
	copy(v, out)
}

func layerNorm(x []float64, weight, bias []float32) {
	mean, variance := 0.0, 0.0
	for _, v := range x {
		mean += v / float64(len(x))
	}
	for _, v := range x {
		variance += (v - mean) * (v - mean) / float64(len(x))
	}
	for i := range x {
		x[i] = (x[i]-mean)/math.Sqrt(variance+1e-6)*float64(weight[i]) + float64(bias[i])
	}
}

func softmax(x []float64) {
	highest, sum := math.Inf(-1), 0.0
	for _, v := range x {
		highest = max(highest, v)
	}
	for i := range x {
		x[i] = math.Exp(x[i] - highest)
		sum += x[i]
	}
	for i := range x {
		x[i] /= sum
	}
}

// expected is what a layer call must give.
type expected struct {
	x, normed, shared []float64
	experts           []int32
	gates             []float64
	counts, tied      []int32
	positions         [][]int32
	caches            []expectedCache
}

type expectedCache struct{ latent, rope, index, keys, values []float64 }

func reference(l *compute.LayerCall) *expected {
	c, w, a := l.Config, l.Weights, &l.Config.Attention
	out := &expected{x: doubles(l.X[:len(l.Rows)*c.Hidden]), counts: make([]int32, len(l.Rows)), tied: make([]int32, len(l.Rows)), positions: make([][]int32, len(l.Rows))}
	for i := range l.Caches {
		k := &l.Caches[i]
		out.caches = append(out.caches, expectedCache{doubles(k.Latent), doubles(k.Rope), doubles(k.Index), doubles(k.Keys), doubles(k.Values)})
	}
	h := normalised(out.x, w.InputNorm, float64(c.NormEpsilon))
	var context []float64
	if a.Kind == container.MLA {
		context = referenceMLA(l, out, h)
	} else {
		context = referenceGQA(l, out, h)
	}
	for i, v := range product(&w.Output, context) {
		out.x[i] += v
	}
	h = normalised(out.x, w.PostNorm, float64(c.NormEpsilon))
	var shared []float64
	if w.Gate.Present() {
		shared = network(&w.Gate, &w.Up, &w.Down, h)
	} else {
		shared = make([]float64, len(h))
	}
	if !c.Sparse[l.Index] {
		for i, v := range shared {
			out.x[i] += v
		}
		return out
	}
	out.normed, out.shared = h, shared
	logits := product(&w.Router, h)
	for r := range l.Rows {
		ids, gates := referenceRoute(&c.MoE, logits[r*c.MoE.Experts:(r+1)*c.MoE.Experts], w.RouterBias)
		out.experts, out.gates = append(out.experts, ids...), append(out.gates, gates...)
	}
	return out
}

func rowAngles(l *compute.LayerCall, r int) (cos, sin []float32) {
	half := l.Config.RoPE.Dim / 2
	return l.Cos[r*half : (r+1)*half], l.Sin[r*half : (r+1)*half]
}

func referenceMLA(l *compute.LayerCall, out *expected, h []float64) []float64 {
	c, w, a := l.Config, l.Weights, &l.Config.Attention
	rope, head := c.RoPE.Dim, a.NopeDim+c.RoPE.Dim
	low := h
	if a.QueryRank > 0 {
		low = normalised(product(&w.QueryA, h), w.QueryANorm, float64(a.LatentNormEpsilon))
	}
	query, kv := product(&w.QueryB, low), product(&w.KVA, h)
	full := a.Index.Heads > 0 && a.Index.Full[l.Index]
	var indexQuery, indexKey, indexWeight []float64
	if full {
		indexQuery, indexKey, indexWeight = product(&w.IndexQuery, low), product(&w.IndexKey, h), product(&w.IndexScore, h)
	}
	for r, at := range l.Rows {
		cos, sin := rowAngles(l, r)
		cache := &out.caches[at.Cache]
		copy(cache.latent[at.Position*a.KVRank:], normalised(kv[r*(a.KVRank+rope):r*(a.KVRank+rope)+a.KVRank], w.KVANorm, float64(a.LatentNormEpsilon)))
		key := slices.Clone(kv[r*(a.KVRank+rope)+a.KVRank : (r+1)*(a.KVRank+rope)])
		rotate(key, cos, sin, c.RoPE.Interleaved)
		copy(cache.rope[at.Position*rope:], key)
		for i := range a.Heads {
			rotate(query[(r*a.Heads+i)*head+a.NopeDim:(r*a.Heads+i+1)*head], cos, sin, c.RoPE.Interleaved)
		}
		if full {
			dim := a.Index.HeadDim
			key := indexKey[r*dim : (r+1)*dim]
			layerNorm(key, w.IndexKeyNorm, w.IndexKeyNormBias)
			rotate(key[:rope], cos, sin, c.RoPE.Interleaved)
			copy(cache.index[at.Position*dim:], key)
			for i := range a.Index.Heads {
				rotate(indexQuery[(r*a.Index.Heads+i)*dim:(r*a.Index.Heads+i)*dim+rope], cos, sin, c.RoPE.Interleaved)
			}
		}
	}
	// keys and values of every position that a row sees, expanded
	expanded := make([][]float64, len(l.Caches))
	for i := range l.Caches {
		seen := 0
		for _, at := range l.Rows {
			if at.Cache == i {
				seen = max(seen, at.Position+1)
			}
		}
		expanded[i] = product(&w.KVB, out.caches[i].latent[:seen*a.KVRank])
	}
	context := make([]float64, len(l.Rows)*a.Heads*a.ValueDim)
	for r, at := range l.Rows {
		cache := &out.caches[at.Cache]
		seen := make([]int, at.Position+1)
		for i := range seen {
			seen[i] = i
		}
		out.counts[r] = -1
		if full && at.Position+1 > a.Index.TopK {
			dim := a.Index.HeadDim
			scores := make([]float64, at.Position+1)
			for t := range scores {
				for i := range a.Index.Heads {
					dot := 0.0
					for d := range dim {
						dot += indexQuery[(r*a.Index.Heads+i)*dim+d] * cache.index[t*dim+d]
					}
					scores[t] += indexWeight[r*a.Index.Heads+i] * max(dot/math.Sqrt(float64(dim)), 0) / math.Sqrt(float64(a.Index.Heads))
				}
			}
			slices.SortStableFunc(seen, func(i, j int) int { return cmp.Compare(scores[j], scores[i]) })
			if scores[seen[a.Index.TopK-1]] == scores[seen[a.Index.TopK]] {
				out.tied[r] = 1
			}
			seen = seen[:a.Index.TopK]
			slices.Sort(seen)
			out.counts[r] = int32(a.Index.TopK)
		} else if a.Index.Heads > 0 && !full && l.Selection.Counts[r] >= 0 {
			out.counts[r] = l.Selection.Counts[r]
			seen = nil
			for _, p := range l.Selection.Positions[r*a.Index.TopK:][:out.counts[r]] {
				seen = append(seen, int(p))
			}
		}
		for _, p := range seen {
			out.positions[r] = append(out.positions[r], int32(p))
		}
		width := a.NopeDim + a.ValueDim
		for i := range a.Heads {
			q := query[(r*a.Heads+i)*head : (r*a.Heads+i+1)*head]
			scores := make([]float64, len(seen))
			for n, t := range seen {
				key := expanded[at.Cache][(t*a.Heads+i)*width:]
				for d := range a.NopeDim {
					scores[n] += q[d] * key[d]
				}
				for d := range rope {
					scores[n] += q[a.NopeDim+d] * cache.rope[t*rope+d]
				}
				scores[n] *= float64(a.Scale)
			}
			softmax(scores)
			for n, t := range seen {
				v := expanded[at.Cache][(t*a.Heads+i)*width+a.NopeDim:]
				for d := range a.ValueDim {
					context[(r*a.Heads+i)*a.ValueDim+d] += scores[n] * v[d]
				}
			}
		}
	}
	return context
}

func referenceGQA(l *compute.LayerCall, out *expected, h []float64) []float64 {
	c, w, a := l.Config, l.Weights, &l.Config.Attention
	dim, narrow := a.HeadDim, a.KVHeads*a.HeadDim
	prepare := func(w *container.Block, bias, norm []float32, heads int, isValue bool) []float64 {
		x := product(w, h)
		if a.Bias {
			for i := range x {
				x[i] += float64(bias[i%len(bias)])
			}
		}
		if !isValue && a.QKNorm != container.NoQKNorm {
			x = normalised(x, norm, float64(c.NormEpsilon))
		}
		if a.ClipQKV > 0 {
			for i := range x {
				x[i] = min(max(x[i], -float64(a.ClipQKV)), float64(a.ClipQKV))
			}
		}
		for r := range l.Rows {
			cos, sin := rowAngles(l, r)
			for i := 0; i < heads && !isValue; i++ {
				rotate(x[(r*heads+i)*dim:(r*heads+i)*dim+c.RoPE.Dim], cos, sin, c.RoPE.Interleaved)
			}
		}
		return x
	}
	query := prepare(&w.Query, w.QueryBias, w.QueryNorm, a.Heads, false)
	key := prepare(&w.Key, w.KeyBias, w.KeyNorm, a.KVHeads, false)
	val := prepare(&w.Value, w.ValueBias, nil, a.KVHeads, true)
	for r, at := range l.Rows {
		copy(out.caches[at.Cache].keys[at.Position*narrow:], key[r*narrow:(r+1)*narrow])
		copy(out.caches[at.Cache].values[at.Position*narrow:], val[r*narrow:(r+1)*narrow])
	}
	context := make([]float64, len(l.Rows)*a.Heads*dim)
	for r, at := range l.Rows {
		cache := &out.caches[at.Cache]
		for i := range a.Heads {
			q, group := query[(r*a.Heads+i)*dim:(r*a.Heads+i+1)*dim], i/(a.Heads/a.KVHeads)
			scores := make([]float64, at.Position+1)
			for t := range scores {
				for d := range dim {
					scores[t] += q[d] * cache.keys[t*narrow+group*dim+d]
				}
				scores[t] *= float64(a.Scale)
			}
			softmax(scores)
			for t, p := range scores {
				for d := range dim {
					context[(r*a.Heads+i)*dim+d] += p * cache.values[t*narrow+group*dim+d]
				}
			}
		}
	}
	return context
}
