package cpu

import (
	"encoding/binary"
	"math"
	"slices"
	"testing"
	"unsafe"

	"colibri/backend/compute"
	"colibri/backend/container"
)

func putFloat(b []byte, f float32) { binary.LittleEndian.PutUint32(b, math.Float32bits(f)) }

// moeCall routes rows to experts at random: some get none, one gets all.
func moeCall(t *testing.T, hidden, inner, experts, rows, perToken int, encodings []container.Encoding) *compute.MoECall {
	r := newRandom(t)
	m := &compute.MoECall{Hidden: hidden, Inner: inner, Input: normals(r, rows*hidden, 1), Output: make([]float32, rows*perToken*hidden)}
	for e := range experts {
		w := compute.ExpertWork{}
		for _, b := range []*container.Block{&w.Gate, &w.Up} {
			*b = randomBlock(r, encodings[r.IntN(len(encodings))], inner, hidden, 1/math.Sqrt(float64(hidden)))
		}
		w.Down = randomBlock(r, encodings[e%len(encodings)], hidden, inner, 1/math.Sqrt(float64(inner)))
		m.Work = append(m.Work, w)
	}
	for row := range rows {
		ids := append([]int{1}, r.Perm(experts - 2)[:perToken-1]...)
		for k, id := range ids {
			if k > 0 {
				id += 2 // expert 0 gets none
			}
			m.Work[id].Rows = append(m.Work[id].Rows, int32(row))
			m.Work[id].Slots = append(m.Work[id].Slots, int32(row*perToken+k))
		}
	}
	return m
}

func TestExperts(t *testing.T) {
	for _, variant := range variants(t) {
		for name, s := range map[string]struct{ hidden, inner, experts, rows, perToken int }{
			"one token": {320, 128, 8, 1, 4}, "odd": {77, 35, 6, 5, 3}, "many": {64, 48, 5, 400, 3}, "middle": {96, 130, 9, 40, 4}, "wide": {640, 576, 9, 5, 3},
		} {
			t.Run(variant+"/"+name, func(t *testing.T) {
				m := moeCall(t, s.hidden, s.inner, s.experts, s.rows, s.perToken, allEncodings)
				b, precise := open(t, 2, variant), open(t, 2, variant)
				run := func(b *Backend) {
					pending, err := b.MoEBegin(m)
					if err != nil {
						t.Fatal(err)
					}
					if err := pending.Wait(); err != nil {
						t.Fatal(err)
					}
				}
				run(b)
				rounded := slices.Clone(m.Output)
				precise.KeepActivations()
				run(precise)
				for e := range m.Work {
					w := &m.Work[e]
					gate, up, down := decode(&w.Gate), decode(&w.Up), decode(&w.Down)
					for i, row := range w.Rows {
						g, _ := multiply(gate, s.inner, s.hidden, m.Input[int(row)*s.hidden:])
						u, _ := multiply(up, s.inner, s.hidden, m.Input[int(row)*s.hidden:])
						h := swiglu(g, u)
						want, most := make([]float64, s.hidden), 0.0
						for r := range want {
							want[r] = dot(down[r*s.inner:(r+1)*s.inner], h)
							most = max(most, math.Abs(want[r]))
						}
						for c, v := range want {
							if got := float64(m.Output[int(w.Slots[i])*s.hidden+c]); !(math.Abs(got-v) <= 1e-5*most) {
								t.Fatalf("expert %d (%s, %s, %s) row %d column %d: %g, want %g", e, w.Gate.Encoding, w.Up.Encoding, w.Down.Encoding, row, c, got, v)
							}
							// Rounded to 8 bits, inputs and inner activations add less than 1e-2 each (TestActivationsRoundLittle), and gate and up multiply.
							if got := float64(rounded[int(w.Slots[i])*s.hidden+c]); !(math.Abs(got-v) <= 4e-2*most) {
								t.Fatalf("expert %d (%s, %s, %s) row %d column %d: %g with rounded activations, want %g", e, w.Gate.Encoding, w.Up.Encoding, w.Down.Encoding, row, c, got, v)
							}
						}
					}
				}
				// In two calls, in another order, with other threads: the same bits.
				clear(m.Output)
				four := open(t, 4, variant)
				half := len(m.Work) / 2
				for _, work := range [][]compute.ExpertWork{m.Work[half:], m.Work[:half]} {
					part := *m
					part.Work = slices.Clone(work)
					slices.Reverse(part.Work)
					if _, err := four.MoEBegin(&part); err != nil {
						t.Fatal(err)
					}
				}
				if !slices.Equal(m.Output, rounded) {
					t.Fatal("the result depends on how the experts were submitted")
				}
				if used, bound := b.scratchInUse(), b.ScratchBytes(&container.Config{Hidden: s.hidden, Attention: container.Attention{Kind: container.GQA, Heads: 1, KVHeads: 1, HeadDim: 8},
					MoE: container.MoE{Experts: s.experts, PerToken: s.perToken, Inner: s.inner}}, s.rows, 1); used > bound {
					t.Errorf("%d bytes in use, the bound is %d", used, bound)
				}
			})
		}
	}
}

func TestCombineHeadNormalise(t *testing.T) {
	for _, variant := range variants(t) {
		t.Run(variant, func(t *testing.T) {
			r := newRandom(t)
			b := open(t, 2, variant)
			for _, hidden := range []int{1, 8, 77, 320} {
				const rows, perToken, vocabulary = 5, 3, 90
				gates, output := normals(r, rows*perToken, 1), normals(r, rows*perToken*hidden, 1)
				shared, x := normals(r, rows*hidden, 1), normals(r, rows*hidden, 1)
				want, magnitude := widen(x, hidden), widen(x, hidden)
				for i := range rows {
					for c := range hidden {
						terms := []float64{float64(shared[i*hidden+c])}
						for k := range perToken {
							terms = append(terms, float64(gates[i*perToken+k])*float64(output[(i*perToken+k)*hidden+c]))
						}
						magnitude[i][c] = math.Abs(want[i][c])
						for _, v := range terms {
							want[i][c] += v
							magnitude[i][c] += math.Abs(v)
						}
					}
				}
				if err := b.Combine(&compute.CombineCall{Rows: rows, PerToken: perToken, Hidden: hidden, Gates: gates, Output: output, Shared: shared, X: x}); err != nil {
					t.Fatal(err)
				}
				for i := range x {
					if w := want[i/hidden][i%hidden]; !(math.Abs(float64(x[i])-w) <= 3e-7*magnitude[i/hidden][i%hidden]) {
						t.Fatalf("combine %d: %g, want %g", i, x[i], w)
					}
				}

				norm, head := normals(r, hidden, 1), randomBlock(r, container.Encoding{Format: container.BF16}, vocabulary, hidden, 1)
				call := &compute.HeadCall{Rows: rows, Norm: norm, Epsilon: 1e-5, Head: &head, X: x, Normed: make([]float32, rows*hidden), Logits: make([]float32, rows*vocabulary)}
				if err := b.Head(call); err != nil {
					t.Fatal(err)
				}
				var normed, logits [][]float64
				for _, row := range widen(x, hidden) {
					n := rms(row, norm, 1e-5)
					normed, logits = append(normed, n), append(logits, matvec(&head, n))
				}
				compareRows(t, "normed", call.Normed, normed, 1e-6)
				compareRows(t, "logits", call.Logits, logits, 3e-6)
				if err := b.Normalise(norm, 1e-5, x, x, rows); err != nil {
					t.Fatal(err)
				}
				compareRows(t, "in place", x, normed, 1e-6)
			}
		})
	}
}

func TestCallsRefuseWhatDoesNotFit(t *testing.T) {
	r := newRandom(t)
	b := open(t, 1, "")
	w := randomBlock(r, container.Encoding{Format: container.Int8Row}, 4, 8, 1)
	x := make([]float32, 8)
	for name, err := range map[string]error{
		"short x":       b.Linear(&w, x[1:], x, 1),
		"short y":       b.Linear(&w, x, x[:3], 1),
		"rows":          b.Linear(&w, x, x, -1),
		"no weight":     b.Linear(nil, x, x, 1),
		"token":         b.Embed(&w, []int32{4}, x),
		"negative":      b.Embed(&w, []int32{-1}, x),
		"no table":      b.Embed(nil, []int32{0}, x),
		"no norm":       b.Normalise(nil, 1, x, x, 1),
		"head":          b.Head(&compute.HeadCall{Rows: 1, Norm: x, Head: &w, X: x, Normed: x, Logits: x[:3]}),
		"no head":       b.Head(&compute.HeadCall{Rows: 1}),
		"combine":       b.Combine(&compute.CombineCall{Rows: 1, PerToken: 1, Hidden: 8, Gates: x, Output: x[1:], Shared: x, X: x}),
		"combine width": b.Combine(&compute.CombineCall{Rows: 1}),
		"register":      b.Register(make([]byte, 100)),
		"unregister":    b.Unregister(nil),
	} {
		if err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	m := moeCall(t, 8, 4, 4, 2, 2, allEncodings[:1])
	m.Work[1].Rows[0] = 2
	if _, err := b.MoEBegin(m); err == nil {
		t.Error("a row beyond the input was accepted")
	}
	m.Work[1].Rows[0], m.Work[1].Slots[0] = 0, 4
	if _, err := b.MoEBegin(m); err == nil {
		t.Error("a slot beyond the output was accepted")
	}
	if _, err := New(0); err == nil {
		t.Error("no threads were accepted")
	}
	if _, err := newVariant(1, "sse9"); err == nil {
		t.Error("an unknown instruction set was accepted")
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if err := b.Linear(&w, x, x[:4], 1); err == nil {
		t.Error("a closed backend calculates")
	}
	if err := b.Close(); err != nil {
		t.Error("closing twice:", err)
	}
}

func TestSupportsEveryEncoding(t *testing.T) {
	b := open(t, 1, "")
	for _, e := range allEncodings {
		if !b.Supports(e) {
			t.Errorf("no kernel for %s", e)
		}
	}
	for _, e := range []container.Encoding{{}, {Format: 99}, {Format: container.Int4Group}, {Format: container.Int4Group, Group: 24}} {
		if b.Supports(e) {
			t.Errorf("%v is supported", e)
		}
	}
	memory := make([]byte, 3*page)
	at := int(-uintptr(unsafe.Pointer(&memory[0])) % page)
	if err := b.Register(memory[at : at+page]); err != nil {
		t.Error(err)
	}
}

func TestMeasurements(t *testing.T) {
	if testing.Short() {
		t.Skip("-short is for sanitizers, and every figure goes through 256 MB: go test without -short measures")
	}
	b := open(t, 2, "")
	rate, err := b.MeasureReadBandwidth()
	if err != nil || rate <= 0 {
		t.Fatalf("%g bytes a second, %v", rate, err)
	}
	if rate, err = b.KernelBandwidth(container.Encoding{Format: container.Int8Row}, 512, 4096); err != nil || rate <= 0 {
		t.Fatalf("%g bytes a second, %v", rate, err)
	}
	if _, err := b.KernelBandwidth(container.Encoding{Format: 99}, 8, 8); err == nil {
		t.Error("an unknown format was measured")
	}
	if rate, err = b.CachedKernelBandwidth(container.Encoding{Format: container.Int8Row}, 512, 4096); err != nil || rate <= 0 {
		t.Errorf("%g bytes a second from the cache, %v", rate, err)
	}
	if bytes := CacheBytes(); bytes < 0 || bytes > 4<<30 {
		t.Errorf("a cache of %d bytes", bytes)
	}
	if rate, err = b.MeasurePeak(); err != nil || rate <= 0 {
		t.Errorf("peak %g, %v", rate, err)
	}
	if rate, err = b.ProductRate(container.Encoding{Format: container.Int4Group, Group: 64}, 96, 300, 20); err != nil || rate <= 0 {
		t.Errorf("product %g, %v", rate, err)
	}
	if _, err := b.ProductRate(container.Encoding{Format: container.Int8Row}, 8, 8, 0); err == nil {
		t.Error("no error for a batch of no rows")
	}
}
