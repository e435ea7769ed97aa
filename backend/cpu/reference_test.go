package cpu

import (
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"testing"

	"colibri/backend/compute"
	"colibri/backend/container"
)

// A layer in float64 from its definition: keys and values expanded for every position, softmax over all of them at once, the
// indexer and the router by sorting. It keeps its own caches.

type refLayer struct {
	config *container.Config
	index  int
	w      *compute.LayerWeights
	seq    []refSequence

	decoded map[*container.Block][]float64
}

type refSequence struct{ expanded, rope, index, keys, values [][]float64 }

type refOutput struct {
	x, normed, shared [][]float64
	experts           [][]int
	gates             [][]float64
	selected          [][]int
	tied              []bool // equal index scores were told apart
}

func matvec(b *container.Block, x []float64) []float64 { return product(decode(b), x) }

func product(w, x []float64) []float64 {
	y := make([]float64, len(w)/len(x))
	for r := range y {
		y[r] = dot(w[r*len(x):(r+1)*len(x)], x)
	}
	return y
}

func (l *refLayer) multiply(b *container.Block, x []float64) []float64 {
	if l.decoded == nil {
		l.decoded = map[*container.Block][]float64{}
	}
	if l.decoded[b] == nil {
		l.decoded[b] = decode(b)
	}
	return product(l.decoded[b], x)
}

func rms(x []float64, weight []float32, epsilon float32) []float64 {
	sum := 0.0
	for _, v := range x {
		sum += v * v
	}
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = v / math.Sqrt(sum/float64(len(x))+float64(epsilon)) * float64(weight[i])
	}
	return y
}

func rotate(x []float64, interleaved bool, cos, sin []float32) []float64 {
	half := len(cos)
	y := append([]float64(nil), x...)
	for j := range half {
		a, b := x[j], x[j+half]
		if interleaved {
			a, b = x[2*j], x[2*j+1]
		}
		y[j] = a*float64(cos[j]) - b*float64(sin[j])
		y[j+half] = b*float64(cos[j]) + a*float64(sin[j])
	}
	return y
}

func dot(a, b []float64) float64 {
	s := 0.0
	for i := range a {
		s += a[i] * b[i]
	}
	return s
}

func swiglu(gate, up []float64) []float64 {
	h := make([]float64, len(gate))
	for i := range h {
		h[i] = gate[i] / (1 + math.Exp(-gate[i])) * up[i]
	}
	return h
}

// attendTo is softmax(scale·q·k)·v over the given positions.
func attendTo(q []float64, k, v func(int) []float64, positions []int, scale float64) []float64 {
	scores, most := make([]float64, len(positions)), math.Inf(-1)
	for i, p := range positions {
		scores[i] = scale * dot(q, k(p))
		most = max(most, scores[i])
	}
	sum := 0.0
	var out []float64
	for i, p := range positions {
		e := math.Exp(scores[i] - most)
		sum += e
		value := v(p)
		if out == nil {
			out = make([]float64, len(value))
		}
		for j := range value {
			out[j] += e * value[j]
		}
	}
	for j := range out {
		out[j] /= sum
	}
	return out
}

// best gives the ids of the n best of the allowed, ascending: larger first, equal by lower id, NaN last.
func best(scores []float64, allowed func(int) bool, n int) []int {
	var ids []int
	for i := range scores {
		if allowed(i) {
			ids = append(ids, i)
		}
	}
	sort.SliceStable(ids, func(a, b int) bool {
		x, y := scores[ids[a]], scores[ids[b]]
		return x > y || (x == x && y != y)
	})
	ids = ids[:n]
	sort.Ints(ids)
	return ids
}

func refRoute(m *container.MoE, logits []float64, bias []float32) (ids []int, gates []float64) {
	score := make([]float64, m.Experts)
	if m.Scoring == container.Sigmoid {
		for e, l := range logits {
			score[e] = 1 / (1 + math.Exp(-l))
		}
	} else {
		most, sum := math.Inf(-1), 0.0
		for _, l := range logits {
			if l > most {
				most = l
			}
		}
		for e, l := range logits {
			score[e] = math.Exp(l - most)
			if l == l {
				sum += score[e]
			}
		}
		for e := range score {
			score[e] /= sum
		}
	}
	choice := append([]float64(nil), score...)
	if m.SelectionBias {
		for e := range choice {
			choice[e] += float64(bias[e])
		}
	}
	allowed := func(int) bool { return true }
	if m.TopGroups < m.Groups {
		size := m.Experts / m.Groups
		sums := make([]float64, m.Groups)
		for g := range sums {
			for _, e := range best(choice[g*size:(g+1)*size], func(int) bool { return true }, min(2, size)) {
				sums[g] += choice[g*size+e]
			}
		}
		groups := best(sums, func(int) bool { return true }, m.TopGroups)
		allowed = func(e int) bool {
			for _, g := range groups {
				if e/size == g {
					return true
				}
			}
			return false
		}
	}
	ids = best(choice, allowed, m.PerToken)
	sum := 0.0
	for _, e := range ids {
		gates = append(gates, score[e])
		sum += score[e]
	}
	for i := range gates {
		if m.Normalise {
			gates[i] /= sum + 1e-20
		}
		gates[i] *= float64(m.Scale)
	}
	return ids, gates
}

// run computes one row after the other. selection is what a shared layer is given; a full one returns its own.
func (l *refLayer) run(rows []compute.Row, cos, sin []float32, x [][]float64, selection [][]int) refOutput {
	c, a, w := l.config, &l.config.Attention, l.w
	var out refOutput
	half := c.RoPE.Dim / 2
	for i, row := range rows {
		s := &l.seq[row.Cache]
		cr, sr := cos[i*half:(i+1)*half], sin[i*half:(i+1)*half]
		rope := func(v []float64) []float64 { return rotate(v, c.RoPE.Interleaved, cr, sr) }
		n := rms(x[i], w.InputNorm, c.NormEpsilon)
		var visible []int
		for p := 0; p <= row.Position; p++ {
			visible = append(visible, p)
		}
		var context []float64
		if a.Kind == container.MLA {
			latent := n
			if a.QueryRank > 0 {
				latent = rms(l.multiply(&w.QueryA, n), w.QueryANorm, a.LatentNormEpsilon)
			}
			q := l.multiply(&w.QueryB, latent)
			kv := l.multiply(&w.KVA, n)
			s.expanded = append(s.expanded, l.multiply(&w.KVB, rms(kv[:a.KVRank], w.KVANorm, a.LatentNormEpsilon)))
			s.rope = append(s.rope, rope(kv[a.KVRank:]))
			if a.Index.Heads > 0 && a.Index.Full[l.index] {
				chosen, tied := l.refIndex(s, n, latent, visible, rope)
				out.selected, out.tied = append(out.selected, chosen), append(out.tied, tied)
			} else if a.Index.Heads > 0 {
				out.selected = append(out.selected, selection[i])
			}
			if a.Index.Heads > 0 && out.selected[i] != nil {
				visible = out.selected[i]
			}
			for h := range a.Heads {
				qh := q[h*(a.NopeDim+c.RoPE.Dim) : (h+1)*(a.NopeDim+c.RoPE.Dim)]
				query := append(append([]float64(nil), qh[:a.NopeDim]...), rope(qh[a.NopeDim:])...)
				at := h * (a.NopeDim + a.ValueDim)
				key := func(p int) []float64 {
					return append(append([]float64(nil), s.expanded[p][at:at+a.NopeDim]...), s.rope[p]...)
				}
				value := func(p int) []float64 { return s.expanded[p][at+a.NopeDim : at+a.NopeDim+a.ValueDim] }
				context = append(context, attendTo(query, key, value, visible, float64(a.Scale))...)
			}
		} else {
			prepare := func(b *container.Block, bias, norm []float32, heads int, rotated bool) []float64 {
				v := l.multiply(b, n)
				for j := range bias {
					v[j] += float64(bias[j])
				}
				if a.QKNorm == container.QKNormFull && norm != nil {
					v = rms(v, norm, c.NormEpsilon)
				}
				var out []float64
				for h := range heads {
					head := v[h*a.HeadDim : (h+1)*a.HeadDim]
					if a.QKNorm == container.QKNormHead && norm != nil {
						head = rms(head, norm, c.NormEpsilon)
					}
					if clip := float64(a.ClipQKV); clip > 0 {
						for j := range head {
							head[j] = max(-clip, min(clip, head[j]))
						}
					}
					if rotated {
						head = rope(head)
					}
					out = append(out, head...)
				}
				return out
			}
			q := prepare(&w.Query, w.QueryBias, w.QueryNorm, a.Heads, true)
			s.keys = append(s.keys, prepare(&w.Key, w.KeyBias, w.KeyNorm, a.KVHeads, true))
			s.values = append(s.values, prepare(&w.Value, w.ValueBias, nil, a.KVHeads, false))
			for h := range a.Heads {
				g := h / (a.Heads / a.KVHeads)
				part := func(rows [][]float64) func(int) []float64 {
					return func(p int) []float64 { return rows[p][g*a.HeadDim : (g+1)*a.HeadDim] }
				}
				context = append(context, attendTo(q[h*a.HeadDim:(h+1)*a.HeadDim], part(s.keys), part(s.values), visible, float64(a.Scale))...)
			}
		}
		y := append([]float64(nil), x[i]...)
		for j, v := range l.multiply(&w.Output, context) {
			y[j] += v
		}
		h := rms(y, w.PostNorm, c.NormEpsilon)
		ffn := make([]float64, c.Hidden)
		if w.Gate.Present() {
			ffn = l.multiply(&w.Down, swiglu(l.multiply(&w.Gate, h), l.multiply(&w.Up, h)))
		}
		if !c.Sparse[l.index] {
			for j := range y {
				y[j] += ffn[j]
			}
		} else {
			ids, gates := refRoute(&c.MoE, l.multiply(&w.Router, h), w.RouterBias)
			out.experts, out.gates = append(out.experts, ids), append(out.gates, gates)
		}
		out.x, out.normed, out.shared = append(out.x, y), append(out.normed, h), append(out.shared, ffn)
	}
	return out
}

func (l *refLayer) refIndex(s *refSequence, n, latent []float64, visible []int, rope func([]float64) []float64) (chosen []int, tied bool) {
	x, w := &l.config.Attention.Index, l.w
	k := l.multiply(&w.IndexKey, n)
	mean, variance := 0.0, 0.0
	for _, v := range k {
		mean += v / float64(len(k))
	}
	for _, v := range k {
		variance += (v - mean) * (v - mean) / float64(len(k))
	}
	for j := range k {
		k[j] = (k[j]-mean)/math.Sqrt(variance+1e-6)*float64(w.IndexKeyNorm[j]) + float64(w.IndexKeyNormBias[j])
	}
	s.index = append(s.index, rope(k))
	if len(visible) <= x.TopK {
		return nil, false
	}
	q, weight := l.multiply(&w.IndexQuery, latent), l.multiply(&w.IndexScore, n)
	scores := make([]float64, len(visible))
	for h := range x.Heads {
		qh := rope(q[h*x.HeadDim : (h+1)*x.HeadDim])
		for p := range scores {
			scores[p] += weight[h] / math.Sqrt(float64(x.Heads)) * max(0, dot(qh, s.index[p])/math.Sqrt(float64(x.HeadDim)))
		}
	}
	chosen = best(scores, func(int) bool { return true }, x.TopK)
	for p, score := range scores {
		for _, c := range chosen {
			same := score == scores[c] || math.IsNaN(score) && math.IsNaN(scores[c])
			tied = tied || same && !slices.Contains(chosen, p)
		}
	}
	return chosen, tied
}

// testConfig is one layer's worth of configuration.
type testConfig struct {
	name   string
	config container.Config
	dense  container.Encoding
}

func newWeights(r *rand.Rand, c *container.Config, e container.Encoding, sparse bool) *compute.LayerWeights {
	a, w := &c.Attention, &compute.LayerWeights{}
	block := func(rows, columns int) container.Block {
		return randomBlock(r, e, rows, columns, 1/math.Sqrt(float64(columns)))
	}
	norm := func(n int) []float32 {
		x := normals(r, n, 0.1)
		for i := range x {
			x[i]++
		}
		return x
	}
	w.InputNorm, w.PostNorm = norm(c.Hidden), norm(c.Hidden)
	if a.Kind == container.MLA {
		input := c.Hidden
		if a.QueryRank > 0 {
			input = a.QueryRank
			w.QueryA, w.QueryANorm = block(a.QueryRank, c.Hidden), norm(a.QueryRank)
		}
		w.QueryB = block(a.Heads*(a.NopeDim+c.RoPE.Dim), input)
		w.KVA, w.KVANorm = block(a.KVRank+c.RoPE.Dim, c.Hidden), norm(a.KVRank)
		w.KVB = block(a.Heads*(a.NopeDim+a.ValueDim), a.KVRank)
		w.Output = block(c.Hidden, a.Heads*a.ValueDim)
		if x := &a.Index; x.Heads > 0 && x.Full[0] {
			w.IndexQuery, w.IndexKey, w.IndexScore = block(x.Heads*x.HeadDim, a.QueryRank), block(x.HeadDim, c.Hidden), block(x.Heads, c.Hidden)
			w.IndexKeyNorm, w.IndexKeyNormBias = norm(x.HeadDim), normals(r, x.HeadDim, 0.1)
		}
	} else {
		q, kv := a.Heads*a.HeadDim, a.KVHeads*a.HeadDim
		w.Query, w.Key, w.Value, w.Output = block(q, c.Hidden), block(kv, c.Hidden), block(kv, c.Hidden), block(c.Hidden, q)
		if a.Bias {
			w.QueryBias, w.KeyBias, w.ValueBias = normals(r, q, 0.3), normals(r, kv, 0.3), normals(r, kv, 0.3)
		}
		switch a.QKNorm {
		case container.QKNormHead:
			w.QueryNorm, w.KeyNorm = norm(a.HeadDim), norm(a.HeadDim)
		case container.QKNormFull:
			w.QueryNorm, w.KeyNorm = norm(q), norm(kv)
		}
	}
	inner := c.DenseInner
	if sparse {
		inner = c.MoE.SharedInner
		w.Router = randomBlock(r, container.Encoding{Format: container.F32}, c.MoE.Experts, c.Hidden, 2/math.Sqrt(float64(c.Hidden)))
		if c.MoE.SelectionBias {
			w.RouterBias = normals(r, c.MoE.Experts, 0.2)
		}
	}
	if inner > 0 {
		w.Gate, w.Up, w.Down = block(inner, c.Hidden), block(inner, c.Hidden), block(c.Hidden, inner)
	}
	return w
}

func newCache(c *container.Config, capacity int) compute.Cache {
	a := &c.Attention
	cache := compute.Cache{Capacity: capacity}
	make32 := func(n int) []float32 {
		x := make([]float32, capacity*n)
		for i := range x {
			x[i] = float32(math.NaN()) // what was never written must not matter
		}
		return x
	}
	if a.Kind == container.MLA {
		cache.Latent, cache.Rope = make32(a.KVRank), make32(c.RoPE.Dim)
		if a.Index.Heads > 0 {
			cache.Index = make32(a.Index.HeadDim)
		}
	} else {
		cache.Keys, cache.Values = make32(a.KVHeads*a.HeadDim), make32(a.KVHeads*a.HeadDim)
	}
	return cache
}

func angles(c *container.Config, rows []compute.Row) (cos, sin []float32) {
	for _, r := range rows {
		for j := range c.RoPE.Dim / 2 {
			angle := float64(r.Position) * math.Pow(10000, -2*float64(j)/float64(c.RoPE.Dim))
			cos, sin = append(cos, float32(math.Cos(angle))), append(sin, float32(math.Sin(angle)))
		}
	}
	return cos, sin
}

// newCall makes a layer call with its outputs; selection may be nil.
func newCall(c *container.Config, w *compute.LayerWeights, rows []compute.Row, caches []compute.Cache, x []float32) *compute.LayerCall {
	n := len(rows)
	call := &compute.LayerCall{Config: c, Weights: w, Rows: rows, Caches: caches, X: append([]float32(nil), x...), Normed: make([]float32, n*c.Hidden),
		Shared: make([]float32, n*c.Hidden), Experts: make([]int32, n*c.MoE.PerToken), Gates: make([]float32, n*c.MoE.PerToken)}
	call.Cos, call.Sin = angles(c, rows)
	if k := c.Attention.Index.TopK; c.Attention.Index.Heads > 0 {
		call.Selection = &compute.Selection{Counts: make([]int32, n), Positions: make([]int32, n*k), Tied: make([]int32, n)}
	}
	return call
}

func widen(x []float32, width int) [][]float64 {
	var out [][]float64
	for i := 0; i < len(x); i += width {
		row := make([]float64, width)
		for j := range row {
			row[j] = float64(x[i+j])
		}
		out = append(out, row)
	}
	return out
}

func compareRows(t *testing.T, what string, got []float32, want [][]float64, tolerance float64) {
	t.Helper()
	for i := range want {
		most := 1e-6
		for _, v := range want[i] {
			most = max(most, math.Abs(v))
		}
		for j, v := range want[i] {
			if g := float64(got[i*len(want[i])+j]); !(math.Abs(g-v) <= tolerance*most) {
				t.Fatalf("%s row %d column %d: %g, want %g (largest %g)", what, i, j, g, v, most)
			}
		}
	}
}
