//go:build (darwin && cgo) || metalsim

package metal

import (
	"fmt"
	"slices"
	"testing"

	"colibri/backend/compute"
	"colibri/backend/container"
)

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

// Rows that are only cached get the entries that the whole layer makes, in the same bits, and nothing else is touched or needed.
func TestCachesOnlyIsTheSameCaches(t *testing.T) {
	b := open(t)
	a := newArena(t, b, 64<<20)
	direct := mla()
	direct.Attention.QueryRank, direct.Attention.Index = 0, container.Indexer{}
	whole := gqa()
	whole.Attention.QKNorm = container.QKNormFull
	for name, c := range map[string]*container.Config{"MLA": mla(), "MLA with direct queries": direct, "GQA": gqa(), "GQA, whole norm": whole} {
		for _, rows := range [][]compute.Row{rowsAt(0, 150, 1), rowsAt(0, 140, 35)} {
			rng := newQuietRand(uint64(len(rows)), 1)
			a.used = 0
			call := a.layerCall(rng, c, 1, a.layerWeights(rng, c, 1, one(encodings[6])), rows, 1, 200)
			cache := &call.Caches[0]
			parts := [][]float32{cache.Latent, cache.Rope, cache.Index, cache.Keys, cache.Values}
			var before, want [5][]float32
			for i, part := range parts {
				before[i] = slices.Clone(part)
			}
			x := slices.Clone(call.X)
			if err := b.Layer(call); err != nil {
				t.Fatal(err)
			}
			for i, part := range parts {
				want[i] = slices.Clone(part)
				copy(part, before[i])
			}
			copy(call.X, x)
			call.CachesOnly, call.Normed, call.Shared, call.Experts, call.Gates = true, nil, nil, nil, nil
			if err := b.Layer(call); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(call.X, x) {
				t.Errorf("%s, %d rows: the residual stream has changed", name, len(rows))
			}
			for i, part := range parts {
				if !slices.Equal(part, want[i]) {
					t.Errorf("%s, %d rows: other entries in part %d of the cache", name, len(rows), i)
				}
			}
		}
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
	long(t, "TestLayersMatchReference")
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
