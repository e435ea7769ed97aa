//go:build (darwin && cgo) || metalsim

package metal

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"colibri/backend/compute"
	"colibri/backend/container"
	"colibri/backend/cpu"
)

// A layer in double precision, from compute.LayerCall's description: not absorbed, no chunks, no phases.

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

func ranksBefore(a float64, i int, b float64, j int) bool {
	if math.IsNaN(a) || math.IsNaN(b) {
		if math.IsNaN(a) == math.IsNaN(b) {
			return i < j
		}
		return math.IsNaN(b)
	}
	return a > b || (a == b && i < j)
}

func referenceRoute(m *container.MoE, logits []float64, bias []float32) ([]int32, []float64) {
	scores := slices.Clone(logits)
	if m.Scoring == container.Sigmoid {
		for i, v := range scores {
			scores[i] = 1 / (1 + math.Exp(-v))
		}
	} else {
		softmax(scores)
	}
	choice := slices.Clone(scores)
	if m.SelectionBias {
		for i := range choice {
			choice[i] += float64(bias[i])
		}
	}
	size := m.Experts / m.Groups
	groups := make([]int, m.Groups)
	worth := make([]float64, m.Groups)
	for g := range groups {
		groups[g] = g
		best := slices.Clone(choice[g*size : (g+1)*size])
		slices.SortFunc(best, func(a, b float64) int { return cmp.Compare(b, a) }) // NaN last
		worth[g] = best[0]
		if size > 1 && !math.IsNaN(best[1]) {
			worth[g] += best[1]
		}
	}
	slices.SortFunc(groups, func(a, b int) int {
		if ranksBefore(worth[a], a, worth[b], b) {
			return -1
		}
		return 1
	})
	var ids []int
	for _, g := range groups[:m.TopGroups] {
		for e := g * size; e < (g+1)*size; e++ {
			ids = append(ids, e)
		}
	}
	slices.SortFunc(ids, func(a, b int) int {
		if ranksBefore(choice[a], a, choice[b], b) {
			return -1
		}
		return 1
	})
	ids = ids[:m.PerToken]
	slices.Sort(ids)
	var out []int32
	gates := make([]float64, len(ids))
	sum := 0.0
	for i, e := range ids {
		out = append(out, int32(e))
		gates[i] = scores[e]
		sum += scores[e]
	}
	for i := range gates {
		if m.Normalise {
			gates[i] /= sum + 1e-20
		}
		gates[i] *= float64(m.Scale)
	}
	return out, gates
}

// ---- layers to try

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

func checkLayerAgainst(t testing.TB, what string, l *compute.LayerCall, want *expected) {
	t.Helper()
	closeTo(t, what+": x", l.X, want.x, attentionLimit)
	for i := range l.Caches {
		closeTo(t, what+": latent cache", l.Caches[i].Latent, want.caches[i].latent, cacheLimit)
		closeTo(t, what+": rotated cache", l.Caches[i].Rope, want.caches[i].rope, cacheLimit)
		closeTo(t, what+": index cache", l.Caches[i].Index, want.caches[i].index, cacheLimit)
		closeTo(t, what+": key cache", l.Caches[i].Keys, want.caches[i].keys, cacheLimit)
		closeTo(t, what+": value cache", l.Caches[i].Values, want.caches[i].values, cacheLimit)
	}
	if l.Selection != nil && l.Config.Attention.Index.Full[l.Index] {
		for r := range l.Rows {
			if l.Selection.Counts[r] != want.counts[r] {
				t.Fatalf("%s: row %d has %d positions selected, %d expected", what, r, l.Selection.Counts[r], want.counts[r])
			}
			if l.Selection.Tied[r] != want.tied[r] {
				t.Fatalf("%s: row %d: a choice among equal scores is said to be %d, %d expected", what, r, l.Selection.Tied[r], want.tied[r])
			}
			if n := want.counts[r]; n >= 0 && !slices.Equal(l.Selection.Positions[r*l.Config.Attention.Index.TopK:][:n], want.positions[r]) {
				t.Fatalf("%s: row %d selects %v, %v expected", what, r, l.Selection.Positions[r*l.Config.Attention.Index.TopK:][:n], want.positions[r])
			}
		}
	}
	if l.Config.Sparse[l.Index] {
		closeTo(t, what+": normed", l.Normed, want.normed, attentionLimit)
		closeTo(t, what+": shared experts", l.Shared, want.shared, attentionLimit)
		if !slices.Equal(l.Experts, want.experts) {
			t.Fatalf("%s: experts %v, %v expected", what, l.Experts, want.experts)
		}
		closeTo(t, what+": gates", l.Gates, want.gates, attentionLimit)
	}
}

func tryLayer(t testing.TB, b compute.Backend, what string, l *compute.LayerCall) {
	t.Helper()
	want := reference(l)
	if err := b.Layer(l); err != nil {
		t.Fatal(what, err)
	}
	checkLayerAgainst(t, what, l, want)
}

func one(e container.Encoding) func(int) container.Encoding {
	return func(int) container.Encoding { return e }
}

// rowsAt gives consecutive rows of a cache.
func rowsAt(cache, position, n int) []compute.Row {
	var rows []compute.Row
	for i := range n {
		rows = append(rows, compute.Row{Position: position + i, Cache: cache})
	}
	return rows
}

var rowSets = map[string][]compute.Row{
	"first token":            rowsAt(0, 0, 1),
	"one row":                rowsAt(0, 37, 1),
	"four rows":              rowsAt(0, 12, 4),
	"prompt":                 rowsAt(0, 0, 21),
	"prompt after a history": rowsAt(1, 140, 35),
	"three sequences":        append(append(rowsAt(2, 150, 1), rowsAt(0, 3, 2)...), rowsAt(1, 60, 1)...),
}

func TestLayersMatchReference(t *testing.T) {
	b := open(t)
	a := newArena(t, b, 64<<20)
	noIndexer, directQuery, plainRoute := mla(), mla(), mla()
	noIndexer.Attention.Index = container.Indexer{}
	directQuery.Attention.QueryRank, directQuery.Attention.Index = 0, container.Indexer{}
	directQuery.RoPE.Interleaved = false
	plainRoute.MoE.Groups, plainRoute.MoE.TopGroups, plainRoute.MoE.SelectionBias, plainRoute.MoE.Normalise = 1, 1, false, false
	whole, clipped, single := gqa(), gqa(), gqa()
	whole.Attention.QKNorm, whole.Attention.Bias = container.QKNormFull, false
	clipped.Attention.QKNorm, clipped.Attention.ClipQKV, clipped.RoPE.Interleaved, clipped.MoE.SharedInner = container.NoQKNorm, 0.7, true, 32
	single.Attention.KVHeads, single.Attention.HeadDim, single.RoPE.Dim = 6, 64, 64
	clipped.Attention.Heads, clipped.Attention.HeadDim, clipped.RoPE.Dim = 8, 32, 32
	for name, c := range map[string]*container.Config{"MLA with indexer": mla(), "MLA": noIndexer, "MLA with direct queries": directQuery, "MLA, plain routing": plainRoute,
		"GQA": gqa(), "GQA, whole norm": whole, "GQA, clipped": clipped, "MHA": single} {
		for rowsName, rows := range rowSets {
			for index := range 2 {
				if index == 0 && rowsName != "one row" && rowsName != "prompt" {
					continue // attention is the same in dense layers
				}
				rng := newQuietRand(uint64(len(rows)), uint64(index))
				a.used = 0
				w := a.layerWeights(rng, c, index, one(encodings[0]))
				tryLayer(t, b, fmt.Sprintf("%s, %s, layer %d", name, rowsName, index), a.layerCall(rng, c, index, w, rows, 3, 200))
			}
		}
	}
}

// Every weight of a layer may have any encoding.
func TestLayersInEveryEncoding(t *testing.T) {
	b := open(t)
	a := newArena(t, b, 64<<20)
	for i, e := range encodings {
		for _, rows := range [][]compute.Row{rowsAt(0, 37, 1), rowsAt(0, 30, 20)} {
			for name, c := range map[string]*container.Config{"MLA": mla(), "GQA": gqa()} {
				rng := newQuietRand(uint64(i), 1)
				a.used = 0
				w := a.layerWeights(rng, c, 1, one(e))
				tryLayer(t, b, fmt.Sprintf("%s in %v, %d rows", name, e, len(rows)), a.layerCall(rng, c, 1, w, rows, 1, 64))
				a.used = 0
				w = a.layerWeights(rng, c, 1, func(n int) container.Encoding { return encodings[(n+i)%len(encodings)] })
				tryLayer(t, b, fmt.Sprintf("%s of mixed encodings from %v on, %d rows", name, e, len(rows)), a.layerCall(rng, c, 1, w, rows, 1, 64))
			}
		}
	}
}

// A shared layer reads the selection of the full layer before it; a selection of everything equals none.
func TestSharedLayersUseTheSelection(t *testing.T) {
	b := open(t)
	a := newArena(t, b, 64<<20)
	c := mla()
	c.Attention.Index.Full = []bool{true, false}
	rng := newQuietRand(3, 3)
	w := a.layerWeights(rng, c, 1, one(encodings[0]))
	rows := append(rowsAt(0, 5, 1), rowsAt(1, 40, 2)...)
	l := a.layerCall(rng, c, 1, w, rows, 2, 64)
	l.Selection.Counts = []int32{-1, 16, 3}
	for i, p := range []int{0, 2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 38, 39, 40} {
		l.Selection.Positions[16+i] = int32(p)
	}
	copy(l.Selection.Positions[32:], []int32{1, 2, 41})
	tryLayer(t, b, "a shared layer", l)

	for r := range rows[:1] { // everything selected: the same numbers as no selection
		l := a.layerCall(rng, c, 1, w, rowsAt(0, 15, 1), 1, 64)
		x := slices.Clone(l.X)
		l.Selection.Counts[r] = -1
		if err := b.Layer(l); err != nil {
			t.Fatal(err)
		}
		all := slices.Clone(l.X)
		copy(l.X, x)
		l.Selection.Counts[r] = 16
		for i := range 16 {
			l.Selection.Positions[i] = int32(i)
		}
		if err := b.Layer(l); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(all, l.X) {
			t.Error("selecting every position is not the same as selecting none")
		}
	}
	for _, spoil := range []func(){func() { l.Selection.Counts[0] = 0 }, func() { l.Selection.Counts[0] = 17 }, func() { l.Selection.Counts[0], l.Selection.Positions[0] = 1, 6 }, func() { l.Selection = nil }} {
		spoil()
		if err := b.Layer(l); err == nil {
			t.Error("a selection that cannot be right is accepted")
		}
	}
}

// How a long call is cut, which follows from how fast the GPU has been, changes no number.
func TestLongCallsMayBeCutAnywhere(t *testing.T) {
	b := open(t)
	a := newArena(t, b, 64<<20)
	for name, c := range map[string]*container.Config{"MLA": mla(), "GQA": gqa()} {
		c.Attention.Index.TopK = 30 // crossed within the call
		if c.Attention.Kind == container.GQA {
			c.Attention.HeadDim, c.RoPE.Dim = 32, 32
		}
		rng := newQuietRand(5, 5)
		a.used = 0
		w := a.layerWeights(rng, c, 1, one(encodings[6]))
		whole := a.layerCall(rng, c, 1, w, rowsAt(0, 7, 57), 1, 80)
		x := slices.Clone(whole.X)
		if err := b.Layer(whole); err != nil {
			t.Fatal(err)
		}
		together := slices.Clone(whole.X)
		for _, cut := range []int{16, 23, 41} {
			copy(whole.X, x)
			half := c.RoPE.Dim / 2
			for _, r := range [][2]int{{0, cut}, {cut, 57}} {
				p := *whole
				p.Rows, p.X = whole.Rows[r[0]:r[1]], whole.X[r[0]*c.Hidden:r[1]*c.Hidden]
				p.Cos, p.Sin = whole.Cos[r[0]*half:r[1]*half], whole.Sin[r[0]*half:r[1]*half]
				if err := b.Layer(&p); err != nil {
					t.Fatal(err)
				}
			}
			if !slices.Equal(together, whole.X) {
				t.Fatalf("%s: cut at %d, numbers differ", name, cut)
			}
		}
	}
}

// The router's choice is exact: equal scores go to the lower id, NaN ranks below every number, in groups too.
func TestRoutingSettlesTiesAndNaN(t *testing.T) {
	b := open(t)
	a := newArena(t, b, 64<<20)
	for i, m := range []container.MoE{
		{Experts: 8, PerToken: 2, Scoring: container.Softmax, Groups: 1, TopGroups: 1, Normalise: true, Scale: 1},
		{Experts: 257, PerToken: 8, Scoring: container.Sigmoid, SelectionBias: true, Groups: 1, TopGroups: 1, Normalise: true, Scale: 2.5},
		{Experts: 256, PerToken: 8, Scoring: container.Sigmoid, Groups: 8, TopGroups: 4, Normalise: true, Scale: 2.5},
		{Experts: 168, PerToken: 6, Scoring: container.Sigmoid, SelectionBias: true, Groups: 4, TopGroups: 1, Scale: 1},
		{Experts: 24, PerToken: 24, Scoring: container.Sigmoid, Groups: 24, TopGroups: 24, Scale: 1},
	} {
		for _, kind := range []string{"random", "all equal", "three levels", "NaN", "all NaN"} {
			c := gqa()
			m.Inner = 64
			c.MoE = m
			rng := newQuietRand(uint64(i), 21)
			a.used = 0
			w := a.layerWeights(rng, c, 1, one(encodings[0]))
			router := unsafe.Slice((*float32)(unsafe.Pointer(&w.Router.Data[0])), m.Experts*c.Hidden)
			bias := w.RouterBias
			for e := range m.Experts {
				row := router[e*c.Hidden : (e+1)*c.Hidden]
				copied := map[string]int{"all equal": 0, "three levels": rng.IntN(min(3, m.Experts))}
				if from, ok := copied[kind]; ok {
					copy(row, router[from*c.Hidden:(from+1)*c.Hidden])
					if bias != nil {
						bias[e] = bias[from]
					}
				}
				if kind == "all NaN" || kind == "NaN" && rng.IntN(3) == 0 && m.Scoring == container.Sigmoid {
					row[0] = float32(math.NaN())
				}
			}
			l := a.layerCall(rng, c, 1, w, rowsAt(0, 3, 4), 1, 8)
			want := reference(l)
			if err := b.Layer(l); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(l.Experts, want.experts) {
				t.Fatalf("%d experts, %s: %v chosen, %v expected", m.Experts, kind, l.Experts, want.experts)
			}
			for j, g := range want.gates {
				if (g != g) != (l.Gates[j] != l.Gates[j]) || math.Abs(g-float64(l.Gates[j])) > 1e-4 {
					t.Fatalf("%d experts, %s: gate %d is %g, %g expected", m.Experts, kind, j, l.Gates[j], g)
				}
			}
		}
	}
}

// Equal index scores go to the lower position, or where a row asks for it to those that the reference implementation keeps; NaN is
// chosen last. The index weights are zero except where a case wants scores, so ties abound.
func TestSelectionSettlesTies(t *testing.T) {
	b := open(t)
	processor, err := cpu.New(1)
	if err != nil {
		t.Fatal(err)
	}
	defer processor.Close()
	a := newArena(t, b, 64<<20)
	ties := 0
	for seed := range uint64(12) {
		c := mla()
		rng := newQuietRand(seed, 17)
		a.used = 0
		w := a.layerWeights(rng, c, 1, one(encodings[0]))
		var rows []compute.Row
		for _, r := range rowsAt(0, 20+int(seed)*7, 5) {
			r.TieSpan = []int{0, r.Position + 1, 130}[seed%3]
			rows = append(rows, r)
		}
		l := a.layerCall(rng, c, 1, w, rows, 1, 130)
		dim := c.Attention.Index.HeadDim
		for p := range rows[0].Position {
			switch key := l.Caches[0].Index[p*dim : (p+1)*dim]; rng.IntN(3) {
			case 0:
				copy(key, l.Caches[0].Index[:dim]) // duplicates
			case 1:
				clear(key) // a score of exactly 0
			}
			if seed%4 == 3 && p%5 == 0 {
				l.Caches[0].Index[p*dim] = float32(math.NaN())
			}
		}
		other := *l
		other.X, other.Selection = slices.Clone(l.X), &compute.Selection{Counts: make([]int32, len(rows)), Positions: make([]int32, len(rows)*c.Attention.Index.TopK), Tied: make([]int32, len(rows))}
		if err := b.Layer(l); err != nil {
			t.Fatal(err)
		}
		selected := slices.Clone(l.Selection.Positions)
		if err := processor.Layer(&other); err != nil { // the caches' entries are written again with the same numbers
			t.Fatal(err)
		}
		if !slices.Equal(l.Selection.Counts, other.Selection.Counts) || !slices.Equal(selected, other.Selection.Positions) {
			t.Fatalf("seed %d, rows %v: the GPU selects %v, the processor %v", seed, rows, selected, other.Selection.Positions)
		}
		if !slices.Equal(l.Selection.Tied, other.Selection.Tied) {
			t.Fatalf("seed %d, rows %v: the GPU chose among equal scores in %v, the processor in %v", seed, rows, l.Selection.Tied, other.Selection.Tied)
		}
		for _, tied := range l.Selection.Tied {
			ties += int(tied)
		}
	}
	if ties < 5 {
		t.Errorf("only %d choices among equal scores were tried", ties)
	}
}

// Contexts of many chunks, and ones where chunks grow.
func TestLongContexts(t *testing.T) {
	b := open(t)
	a := newArena(t, b, 256<<20)
	for _, position := range []int{127, 128, 129, 1000, 8190, 8200, 12345} {
		c := mla()
		c.Attention.Heads, c.Attention.Index.TopK = 2, 2048
		rng := newQuietRand(uint64(position), 0)
		a.used = 0
		w := a.layerWeights(rng, c, 1, one(encodings[0]))
		tryLayer(t, b, fmt.Sprintf("position %d", position), a.layerCall(rng, c, 1, w, rowsAt(0, position, 1), 1, position+1))
	}
}

// A layer at GLM-5.2's shape: 64 heads of 192+64 and 256, ranks 2048 and 512.
func TestLayerAtModelShape(t *testing.T) {
	long(t)
	b := open(t)
	a := newArena(t, b, 512<<20)
	c := &container.Config{Hidden: 6144, NormEpsilon: 1e-5, Sparse: []bool{true},
		Attention: container.Attention{Kind: container.MLA, Heads: 64, Scale: 1.0 / 16, QueryRank: 2048, KVRank: 512, NopeDim: 192, ValueDim: 256, LatentNormEpsilon: 1e-6,
			Index: container.Indexer{Heads: 32, HeadDim: 128, TopK: 2048, Full: []bool{true}}},
		RoPE: container.RoPE{Dim: 64, Interleaved: true}, MoE: container.MoE{Experts: 256, PerToken: 8, Inner: 2048, SharedInner: 2048, Scoring: container.Sigmoid, SelectionBias: true, Groups: 1, TopGroups: 1, Normalise: true, Scale: 2.5}}
	rng := newQuietRand(52, 52)
	w := a.layerWeights(rng, c, 0, one(encodings[6]))
	tryLayer(t, b, "GLM-5.2's layer", a.layerCall(rng, c, 0, w, rowsAt(0, 37, 1), 1, 40))
}
