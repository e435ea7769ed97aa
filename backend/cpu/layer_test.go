package cpu

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"syscall"
	"testing"
	"unsafe"

	"colibri/backend/compute"
	"colibri/backend/container"
)

func layerConfigs() []testConfig {
	encoding := func(name string) container.Encoding {
		e, err := container.ParseEncoding(name)
		if err != nil {
			panic(err)
		}
		return e
	}
	mla := func(heads, queryRank, kvRank, nope, value int) container.Attention {
		return container.Attention{Kind: container.MLA, Heads: heads, QueryRank: queryRank, KVRank: kvRank, NopeDim: nope, ValueDim: value,
			Scale: 0.2, LatentNormEpsilon: 1e-6}
	}
	gqa := func(heads, kv, dim int, norm container.QKNorm) container.Attention {
		return container.Attention{Kind: container.GQA, Heads: heads, KVHeads: kv, HeadDim: dim, QKNorm: norm, Scale: 0.25}
	}
	moe := container.MoE{Experts: 16, PerToken: 4, Inner: 24, SharedInner: 40, Scoring: container.Sigmoid, SelectionBias: true, Groups: 1, TopGroups: 1,
		Normalise: true, Scale: 2.5}
	grouped, softmax, bare := moe, moe, moe
	grouped.Groups, grouped.TopGroups = 4, 2
	softmax.Scoring, softmax.SelectionBias, softmax.Normalise, softmax.SharedInner = container.Softmax, false, false, 0
	bare.Experts, bare.PerToken, bare.Groups, bare.TopGroups, bare.SelectionBias = 6, 2, 6, 3, false
	base := func(hidden, rope int, interleaved bool, a container.Attention, m container.MoE) container.Config {
		return container.Config{Hidden: hidden, NormEpsilon: 1e-5, DenseInner: 72, Attention: a, MoE: m, Sparse: []bool{true},
			RoPE: container.RoPE{Dim: rope, Interleaved: interleaved, Magnitude: 1}}
	}
	dsa := func(full bool, topK int) container.Attention {
		a := mla(5, 48, 32, 24, 16)
		a.Index = container.Indexer{Heads: 6, HeadDim: 20, TopK: topK, Full: []bool{full}}
		return a
	}
	biased, clipped := gqa(8, 2, 32, container.QKNormHead), gqa(4, 4, 16, container.QKNormFull)
	biased.Bias = true
	clipped.ClipQKV = 1.5
	all := []testConfig{
		{"mla", base(96, 16, true, mla(4, 64, 64, 32, 32), moe), encoding("bf16")},
		{"mla without query rank, odd sizes", base(70, 6, false, mla(3, 0, 19, 11, 13), grouped), encoding("int8")},
		{"mla int4", base(128, 8, true, mla(5, 64, 72, 16, 24), bare), encoding("int4-g32")},
		{"mla of many heads", base(64, 8, true, mla(40, 32, 32, 8, 8), moe), encoding("fp8")},
		{"dsa full", base(80, 8, true, dsa(true, 7), moe), encoding("int8")},
		{"dsa shared", base(80, 8, true, dsa(false, 7), moe), encoding("f32")},
		{"gqa", base(96, 16, false, biased, moe), encoding("f16")},
		{"gqa full norm, clipped", base(64, 16, false, clipped, softmax), encoding("f32")},
		{"gqa one key head", base(64, 6, true, gqa(70, 1, 9, container.NoQKNorm), moe), encoding("int3")},
	}
	dense := all[0]
	dense.name, dense.config.Sparse = "dense", []bool{false}
	return append(all, dense)
}

// Batches of several sequences, of prefill and of single rows, that continue each other, against the definition. The caches
// hold NaN beyond what was written.
func TestLayer(t *testing.T) {
	for _, variant := range variants(t) {
		b := open(t, 3, variant)
		b.KeepActivations() // what their rounding adds is tested product by product
		for _, tc := range layerConfigs() {
			t.Run(variant+"/"+tc.name, func(t *testing.T) {
				r := newRandom(t)
				c := &tc.config
				w := newWeights(r, c, tc.dense, c.Sparse[0])
				ref := &refLayer{config: c, w: w, seq: make([]refSequence, 3)}
				caches := []compute.Cache{newCache(c, 90), newCache(c, 30), newCache(c, 5)}
				next := make([]int, len(caches))
				take := func(cache, n int) (rows []compute.Row) {
					for range n {
						rows = append(rows, compute.Row{Position: next[cache], Cache: cache})
						next[cache]++
					}
					return rows
				}
				batches := [][]compute.Row{
					take(0, 1), take(1, 5), append(take(0, 9), take(2, 1)...), take(0, 1), slices.Concat(take(1, 1), take(0, 1), take(2, 1)),
					append(take(0, 67), take(1, 17)...), slices.Concat(take(0, 1), take(1, 1), take(0, 1), take(1, 1)), take(0, 1),
				}
				for n, rows := range batches {
					x := normals(r, len(rows)*c.Hidden, 1)
					call := newCall(c, w, rows, caches, x)
					var chosen [][]int
					if i := &c.Attention.Index; i.Heads > 0 && !i.Full[0] {
						for j, row := range rows {
							var positions []int
							call.Selection.Counts[j] = -1
							if row.Position >= i.TopK {
								positions = r.Perm(row.Position + 1)[:1+r.IntN(i.TopK)]
								slices.Sort(positions)
								call.Selection.Counts[j] = int32(len(positions))
								for k, p := range positions {
									call.Selection.Positions[j*i.TopK+k] = int32(p)
								}
							}
							chosen = append(chosen, positions)
						}
					}
					want := ref.run(rows, call.Cos, call.Sin, widen(x, c.Hidden), chosen)
					if err := b.Layer(call); err != nil {
						t.Fatal(err)
					}
					what := fmt.Sprint("batch ", n)
					for j, positions := range want.selected {
						if !c.Attention.Index.Full[0] {
							break
						}
						count := int32(-1)
						if positions != nil {
							count = int32(len(positions))
						}
						if call.Selection.Counts[j] != count {
							t.Fatalf("%s row %d: %d positions chosen, want %d", what, j, call.Selection.Counts[j], count)
						}
						for k, p := range positions {
							if int(call.Selection.Positions[j*c.Attention.Index.TopK+k]) != p {
								t.Fatalf("%s row %d: chosen %v, want %v", what, j, call.Selection.Positions[j*c.Attention.Index.TopK:][:count], positions)
							}
						}
					}
					// float32 through norms, softmax and five products of a few dozen terms
					compareRows(t, what+" x", call.X, want.x, 1e-5)
					if !c.Sparse[0] {
						continue
					}
					compareRows(t, what+" normed", call.Normed, want.normed, 1e-5)
					compareRows(t, what+" shared", call.Shared, want.shared, 2e-5)
					compareRows(t, what+" gates", call.Gates, want.gates, 1e-5)
					for j, ids := range want.experts {
						for k, id := range ids {
							if int(call.Experts[j*c.MoE.PerToken+k]) != id {
								t.Fatalf("%s row %d: experts %v, want %v", what, j, call.Experts[j*c.MoE.PerToken:][:c.MoE.PerToken], ids)
							}
						}
					}
				}
			})
		}
	}
}

// The same bits whether rows come one by one or together, with one thread or four.
func TestLayerIsTheSameForAnyBatchAndThreads(t *testing.T) {
	for _, variant := range variants(t) {
		one, four := open(t, 1, variant), open(t, 4, variant)
		for _, tc := range layerConfigs() {
			if i := &tc.config.Attention.Index; i.Heads > 0 && !i.Full[0] {
				continue // its selection comes from outside
			}
			t.Run(variant+"/"+tc.name, func(t *testing.T) {
				r := newRandom(t)
				c := &tc.config
				w := newWeights(r, c, tc.dense, c.Sparse[0])
				const total = 100
				x := normals(r, total*c.Hidden, 1)
				run := func(b *Backend, batch int) (out []float32, experts []int32) {
					caches := []compute.Cache{newCache(c, total)}
					for p := 0; p < total; p += batch {
						n := min(batch, total-p)
						var rows []compute.Row
						for i := range n {
							rows = append(rows, compute.Row{Position: p + i})
						}
						call := newCall(c, w, rows, caches, x[p*c.Hidden:(p+n)*c.Hidden])
						if err := b.Layer(call); err != nil {
							t.Fatal(err)
						}
						out = append(append(out, call.X...), call.Shared...)
						experts = append(experts, call.Experts...)
						if batch == total {
							continue
						}
					}
					// rows of different batches in one order: x of all, then shared of all
					var xs, shared []float32
					at := 0
					for p := 0; p < total; p += batch {
						n := min(batch, total-p) * c.Hidden
						xs, shared = append(xs, out[at:at+n]...), append(shared, out[at+n:at+2*n]...)
						at += 2 * n
					}
					return append(xs, shared...), experts
				}
				want, ids := run(one, 1)
				for _, batch := range []int{1, 3, 16, total} {
					for _, b := range []*Backend{one, four} {
						got, gotIDs := run(b, batch)
						if !slices.Equal(got, want) || !slices.Equal(gotIDs, ids) {
							t.Fatalf("batches of %d with %d threads differ from rows one by one", batch, b.Threads())
						}
					}
				}
			})
		}
	}
}

// Ties, NaN and duplicates in the router: lower ids first, NaN below every number.
func TestRouterTiesAndNaN(t *testing.T) {
	r := newRandom(t)
	b := open(t, 1, "")
	const hidden = 8
	nan := float32(math.NaN())
	for trial := range 300 {
		c := layerConfigs()[0].config
		c.Hidden, c.MoE.SharedInner = hidden, 0
		c.MoE.Experts, c.MoE.PerToken = 12, 1+r.IntN(6)
		c.MoE.Groups, c.MoE.TopGroups = 1, 1
		if trial%3 == 0 {
			c.MoE.Groups, c.MoE.TopGroups = 4, 2
		}
		c.MoE.SelectionBias = trial%2 == 0
		if trial%5 == 0 {
			c.MoE.Scoring = container.Softmax
		}
		w := newWeights(r, &c, container.Encoding{Format: container.F32}, true)
		// Routers of few different rows, so that scores are equal exactly, with NaN rows among them.
		router := make([][]float32, 3)
		for i := range router {
			router[i] = normals(r, hidden, 1)
		}
		var ids []int
		for e := range c.MoE.Experts {
			pick := r.IntN(len(router))
			ids = append(ids, pick)
			for k := range hidden {
				v := router[pick][k]
				if trial%4 == 1 && e%4 == 3 && c.MoE.Groups == 1 {
					v = nan
				}
				putFloat(w.Router.Data[4*(e*hidden+k):], v)
			}
			if c.MoE.SelectionBias {
				w.RouterBias[e] = float32(r.IntN(2)) // steps larger than any sigmoid
			}
		}
		rows := []compute.Row{{}}
		caches := []compute.Cache{newCache(&c, 1)}
		call := newCall(&c, w, rows, caches, normals(r, hidden, 1))
		if err := b.Layer(call); err != nil {
			t.Fatal(err)
		}
		// The reference routes from the float32 logits, where equal rows give equal scores.
		logits := make([]float32, c.MoE.Experts)
		if err := b.Linear(&w.Router, call.Normed, logits, 1); err != nil {
			t.Fatal(err)
		}
		wide := make([]float64, len(logits))
		for e, l := range logits {
			wide[e] = float64(l)
		}
		want, _ := refRoute(&c.MoE, wide, w.RouterBias)
		for k, id := range want {
			if int(call.Experts[k]) != id {
				t.Fatalf("trial %d: experts %v, want %v of rows %v, bias %v, logits %v", trial, call.Experts, want, ids, w.RouterBias, logits)
			}
		}
	}
}

// Equal index scores go to the lower position, and NaN is below every number. Without rotation equal rows have equal keys.
func TestIndexerTiesAndNaN(t *testing.T) {
	r := newRandom(t)
	ties := map[bool]int{}
	defer func() {
		if ties[true] == 0 || ties[false] == 0 {
			t.Errorf("the boundary of the selection was tied and not tied this often: %v", ties)
		}
	}()
	for _, variant := range variants(t) {
		b := open(t, 2, variant)
		for trial := range 20 {
			c := layerConfigs()[4].config
			w := newWeights(r, &c, container.Encoding{Format: container.F32}, true)
			ref := &refLayer{config: &c, w: w, seq: make([]refSequence, 1)}
			caches := []compute.Cache{newCache(&c, 40)}
			kinds := [][]float32{normals(r, c.Hidden, 1), normals(r, c.Hidden, 1), normals(r, c.Hidden, 1), make([]float32, c.Hidden)}
			for i := range kinds[3] {
				kinds[3][i] = float32(math.NaN())
			}
			for p := range 40 {
				x := kinds[r.IntN(len(kinds))]
				call := newCall(&c, w, []compute.Row{{Position: p}}, caches, x)
				for j := range call.Cos {
					call.Cos[j], call.Sin[j] = 1, 0
				}
				if err := b.Layer(call); err != nil {
					t.Fatal(err)
				}
				reference := ref.run(call.Rows, call.Cos, call.Sin, widen(x, c.Hidden), nil)
				want := reference.selected[0]
				var got []int
				for k := range max(call.Selection.Counts[0], 0) {
					got = append(got, int(call.Selection.Positions[k]))
				}
				if !slices.Equal(got, want) {
					t.Fatalf("%s trial %d position %d: %v, want %v", variant, trial, p, got, want)
				}
				if tied := call.Selection.Tied[0] == 1; tied != reference.tied[0] {
					t.Fatalf("%s trial %d position %d: tied %v, want %v", variant, trial, p, tied, reference.tied[0])
				}
				ties[reference.tied[0]]++
			}
		}
	}
}

func TestLayerRefusesWhatDoesNotFit(t *testing.T) {
	r := newRandom(t)
	b := open(t, 1, "")
	configs := layerConfigs()
	breaks := map[string]func(*compute.LayerCall){
		"short x":       func(l *compute.LayerCall) { l.X = l.X[1:] },
		"short normed":  func(l *compute.LayerCall) { l.Normed = nil },
		"short experts": func(l *compute.LayerCall) { l.Experts = l.Experts[1:] },
		"position":      func(l *compute.LayerCall) { l.Rows[1].Position = l.Caches[0].Capacity },
		"negative":      func(l *compute.LayerCall) { l.Rows[0].Position = -1 },
		"cache":         func(l *compute.LayerCall) { l.Rows[0].Cache = 1 },
		"short cache":   func(l *compute.LayerCall) { l.Caches[0].Latent = l.Caches[0].Latent[1:] },
		"cos":           func(l *compute.LayerCall) { l.Cos = l.Cos[1:] },
		"layer":         func(l *compute.LayerCall) { l.Index = 1 },
		"weight rows":   func(l *compute.LayerCall) { l.Weights.KVB.Rows++ },
		"weight data":   func(l *compute.LayerCall) { l.Weights.Output.Data = l.Weights.Output.Data[4:] },
		"weight scales": func(l *compute.LayerCall) { l.Weights.Down.Scales = l.Weights.Down.Scales[1:] },
		"format":        func(l *compute.LayerCall) { l.Weights.QueryA.Format = 77 },
		"group": func(l *compute.LayerCall) {
			l.Weights.QueryA.Encoding = container.Encoding{Format: container.Int4Group, Group: 20}
		},
		"biases":           func(l *compute.LayerCall) { l.Weights.QueryA.Biases = make([]float32, 4) },
		"missing":          func(l *compute.LayerCall) { l.Weights.KVA = container.Block{} },
		"norm":             func(l *compute.LayerCall) { l.Weights.InputNorm = nil },
		"no selection":     func(l *compute.LayerCall) { l.Selection = nil },
		"small selection":  func(l *compute.LayerCall) { l.Selection.Positions = l.Selection.Positions[1:] },
		"per token":        func(l *compute.LayerCall) { l.Config.MoE.PerToken = 17 },
		"unaligned weight": func(l *compute.LayerCall) { l.Weights.KVA.Data = append(make([]byte, 1), l.Weights.KVA.Data...)[1:] },
	}
	for name, breakIt := range breaks {
		t.Run(name, func(t *testing.T) {
			c := configs[4].config // dsa full, int8
			w := newWeights(r, &c, configs[4].dense, true)
			call := newCall(&c, w, []compute.Row{{Position: 0}, {Position: 1}}, []compute.Cache{newCache(&c, 4)}, normals(r, 2*c.Hidden, 1))
			breakIt(call)
			err := b.Layer(call)
			if err == nil {
				t.Fatal("accepted")
			}
			t.Log(err)
		})
	}
	t.Run("selection of a shared layer", func(t *testing.T) {
		c := configs[5].config
		w := newWeights(r, &c, configs[5].dense, true)
		for _, bad := range []compute.Selection{{Counts: []int32{-2}}, {Counts: []int32{2}}, {Counts: []int32{1}, Positions: []int32{1}}, {Counts: []int32{0}}} {
			call := newCall(&c, w, []compute.Row{{Position: 0}}, []compute.Cache{newCache(&c, 4)}, normals(r, c.Hidden, 1))
			copy(call.Selection.Counts, bad.Counts)
			copy(call.Selection.Positions, bad.Positions)
			if err := b.Layer(call); err == nil {
				t.Errorf("selection %v accepted", bad)
			}
		}
	})
}

// moveOut moves the slices of a structure, and those of the blocks in it, to memory outside Go's heap, where the engine has them.
func moveOut(t *testing.T, v reflect.Value) {
	for i := range v.NumField() {
		switch f := v.Field(i).Addr().Interface().(type) {
		case *[]float32:
			outside(t, f)
		case *[]int32:
			outside(t, f)
		case *[]byte:
			outside(t, f)
		case *container.Block:
			moveOut(t, reflect.ValueOf(f).Elem())
		}
	}
}

func outside[T any](t *testing.T, s *[]T) {
	if len(*s) == 0 {
		return
	}
	bytes := len(*s) * int(unsafe.Sizeof((*s)[0]))
	memory, err := syscall.Mmap(-1, 0, bytes, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Munmap(memory) })
	moved := unsafe.Slice((*T)(unsafe.Pointer(&memory[0])), len(*s))
	copy(moved, *s)
	*s = moved
}

// newCallFromStart is a call for the first rows of an empty cache, which see all positions, also where a layer shares another's selection.
func newCallFromStart(c *container.Config, w *compute.LayerWeights, x []float32) *compute.LayerCall {
	rows := make([]compute.Row, len(x)/c.Hidden)
	for i := range rows {
		rows[i].Position = i
	}
	call := newCall(c, w, rows, []compute.Cache{newCache(c, len(rows))}, x)
	if call.Selection != nil {
		for i := range call.Selection.Counts {
			call.Selection.Counts[i] = -1
		}
	}
	return call
}

func TestNothingIsAllocatedPerToken(t *testing.T) {
	r := newRandom(t)
	b := open(t, 2, "")
	for _, tc := range layerConfigs() {
		c := &tc.config
		w := newWeights(r, c, tc.dense, c.Sparse[0])
		caches := []compute.Cache{newCache(c, 64)}
		call := newCall(c, w, []compute.Row{{Position: 0}}, caches, normals(r, c.Hidden, 1))
		if call.Selection != nil {
			call.Selection.Counts[0] = -1
			moveOut(t, reflect.ValueOf(call.Selection).Elem())
		}
		moveOut(t, reflect.ValueOf(w).Elem())
		moveOut(t, reflect.ValueOf(&call.Caches[0]).Elem())
		moveOut(t, reflect.ValueOf(call).Elem())
		if err := b.Layer(call); err != nil {
			t.Fatal(err)
		}
		if n := testing.AllocsPerRun(10, func() {
			if err := b.Layer(call); err != nil {
				t.Fatal(err)
			}
		}); n > 0 {
			t.Errorf("%s: %v allocations a layer", tc.name, n)
		}
	}
}

func TestScratchStaysWithinItsBound(t *testing.T) {
	r := newRandom(t)
	for _, tc := range layerConfigs() {
		for _, n := range []int{1, 7, 90} {
			c := &tc.config
			b := open(t, 2, "")
			w := newWeights(r, c, tc.dense, c.Sparse[0])
			call := newCallFromStart(c, w, normals(r, n*c.Hidden, 1))
			if err := b.Layer(call); err != nil {
				t.Fatal(err)
			}
			if used, bound := b.scratchInUse(), b.ScratchBytes(c, n, n); used > bound {
				t.Errorf("%s, %d rows: %d bytes in use, the bound is %d", tc.name, n, used, bound)
			}
		}
	}
}

// Rows that are only cached get the entries that the whole layer makes, in the same bits, and nothing else is touched or needed.
func TestCachesOnlyIsTheSameCaches(t *testing.T) {
	for _, variant := range variants(t) {
		b := open(t, 3, variant)
		for _, tc := range layerConfigs() {
			t.Run(variant+"/"+tc.name, func(t *testing.T) {
				r := newRandom(t)
				c := &tc.config
				w := newWeights(r, c, tc.dense, c.Sparse[0])
				for _, count := range []int{1, 21} {
					x := normals(r, count*c.Hidden, 1)
					run := func(only bool) *compute.LayerCall {
						call := newCallFromStart(c, w, x)
						if only {
							call.CachesOnly, call.Normed, call.Shared, call.Experts, call.Gates = true, nil, nil, nil, nil
						}
						if err := b.Layer(call); err != nil {
							t.Fatal(err)
						}
						return call
					}
					want, got := run(false), run(true)
					if !slices.Equal(got.X, x) {
						t.Errorf("%d rows: the residual stream has changed", count)
					}
					a, b := &want.Caches[0], &got.Caches[0]
					for name, pair := range map[string][2][]float32{"latent": {a.Latent, b.Latent}, "rope": {a.Rope, b.Rope}, "index": {a.Index, b.Index},
						"keys": {a.Keys, b.Keys}, "values": {a.Values, b.Values}} {
						if !slices.EqualFunc(pair[0], pair[1], func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) }) {
							t.Errorf("%d rows: other entries in %s", count, name)
						}
					}
				}
			})
		}
	}
}

// Shared experts that were left for later are the same bits, and the rest of the layer does not wait for them.
func TestSharedExpertsLaterAreTheSame(t *testing.T) {
	nan := float32(math.NaN())
	for _, variant := range variants(t) {
		b := open(t, 3, variant)
		for _, tc := range layerConfigs() {
			t.Run(variant+"/"+tc.name, func(t *testing.T) {
				r := newRandom(t)
				c := &tc.config
				w := newWeights(r, c, tc.dense, c.Sparse[0])
				for _, count := range []int{1, 5} {
					x := normals(r, count*c.Hidden, 1)
					run := func(later bool) *compute.LayerCall {
						call := newCallFromStart(c, w, x)
						call.SharedLater = later
						for i := range call.Shared {
							call.Shared[i] = nan
						}
						if err := b.Layer(call); err != nil {
							t.Fatal(err)
						}
						return call
					}
					want, got := run(false), run(true)
					if c.Sparse[0] {
						if !math.IsNaN(float64(got.Shared[0])) || math.IsNaN(float64(want.Shared[0])) {
							t.Fatal("the shared experts are computed with the layer, or not at all")
						}
						if err := b.SharedExperts(got); err != nil {
							t.Fatal(err)
						}
					}
					for name, pair := range map[string][2][]float32{"x": {want.X, got.X}, "shared": {want.Shared, got.Shared}, "gates": {want.Gates, got.Gates}} {
						if c.Sparse[0] && !slices.Equal(pair[0], pair[1]) {
							t.Errorf("%d rows: %s differs", count, name)
						}
					}
					if !slices.Equal(want.X, got.X) || c.Sparse[0] && !slices.Equal(want.Experts, got.Experts) {
						t.Errorf("%d rows: another layer", count)
					}
				}
			})
		}
	}
	b := open(t, 1, "")
	for name, call := range map[string]*compute.LayerCall{"nothing": {SharedLater: true}, "a dense layer": {SharedLater: true, Config: &container.Config{Sparse: []bool{false}}, Weights: &compute.LayerWeights{}}} {
		if err := b.SharedExperts(call); err == nil {
			t.Errorf("shared experts of %s were computed", name)
		}
	}
	if err := b.SharedExperts(&compute.LayerCall{}); err != nil {
		t.Errorf("nothing was left for later: %v", err)
	}
}
