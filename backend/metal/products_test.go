//go:build (darwin && cgo) || metalsim

package metal

import (
	"fmt"
	"math"
	"testing"
	"unsafe"

	"colibri/backend/compute"
	"colibri/backend/container"
)

const productLimit = 1e-4 // max|Δ| / max|reference| of products, as the project states it

// Every encoding at odd, short, single-row and whole shapes, with as many rows as each kernel takes.
func TestLinearMatchesReferenceForEveryEncoding(t *testing.T) {
	b := open(t)
	a := newArena(t, b, 64<<20)
	for _, e := range encodings {
		for _, shape := range [][2]int{{1, 1}, {1, 64}, {3, 40}, {5, 201}, {6, 200}, {129, 128}, {128, 129}, {130, 200}, {64, 512}, {201, 320}} {
			for _, rows := range []int{1, 2, 3, 5, 16, 33} {
				rng := newQuietRand(uint64(shape[0]*1000+shape[1]), uint64(rows))
				a.used = 0
				w := a.randomWeight(rng, e, shape[0], shape[1])
				x, y := a.random(rng, rows*shape[1]), a.floats(rows*shape[0])
				if err := b.Linear(&w, x, y, rows); err != nil {
					t.Fatal(err)
				}
				closeTo(t, fmt.Sprintf("%v %v with %d rows", e, shape, rows), y, product(&w, doubles(x)), productLimit)
			}
		}
	}
}

// GLM-5.2's shapes. Values are compared on every output for one row and few rows.
func TestLinearAtModelShapes(t *testing.T) {
	b := open(t)
	a := newArena(t, b, 512<<20)
	type task struct {
		e             container.Encoding
		outputs, rows int
		columns       int
	}
	g64, f32, int8, fp8 := encodings[6], encodings[0], encodings[3], encodings[10]
	tasks := []task{
		{g64, 2048, 1, 6144}, {g64, 6144, 4, 2048}, {int8, 2048, 1, 6144}, {int8, 576, 4, 6144}, {fp8, 2048, 1, 6144}, {fp8, 6144, 1, 2048}, {f32, 256, 3, 6144},
		{g64, 512, 1, 16384}, {g64, 1024, 2, 12288}, {encodings[9], 2048, 1, 6144}, {encodings[4], 2048, 2, 6144}, {encodings[5], 2048, 1, 6144}, {encodings[1], 512, 1, 6144},
		{g64, 192, 40, 6144}, {int8, 130, 64, 6144},
		// SIMD-groups with rows of their own, in few threadgroups and in many: see share_columns and few_own_rows.
		{g64, 4099, 1, 4096}, {g64, 4099, 2, 4096}, {encodings[9], 4099, 1, 4096}, {g64, 8200, 1, 480}, {g64, 8200, 3, 480}, {encodings[4], 8200, 1, 480}, {encodings[5], 8200, 1, 4096},
	}
	for _, k := range tasks {
		rng := newQuietRand(uint64(k.outputs), uint64(k.columns))
		a.used = 0
		w := a.randomWeight(rng, k.e, k.outputs, k.columns)
		x, y := a.random(rng, k.rows*k.columns), a.floats(k.rows*k.outputs)
		if err := b.Linear(&w, x, y, k.rows); err != nil {
			t.Fatal(err)
		}
		closeTo(t, fmt.Sprintf("%v %d×%d with %d rows", k.e, k.outputs, k.columns, k.rows), y, product(&w, doubles(x)), productLimit)
	}
}

// Weights may begin at any multiple of four bytes; the result is the same number, and the slower path is counted.
func TestUnalignedWeightsGiveTheSameNumbers(t *testing.T) {
	b := open(t)
	a := newArena(t, b, 16<<20)
	for _, e := range encodings {
		rng := newQuietRand(7, 7)
		a.used = 0
		w := a.randomWeight(rng, e, 70, 192)
		x, y, z := a.random(rng, 3*192), a.floats(3*70), a.floats(3*70)
		moved := w
		moved.Data = a.bytes(len(w.Data), 16, 4)
		copy(moved.Data, w.Data)
		before := b.Counters().UnalignedProducts
		if err := b.Linear(&w, x, y, 3); err != nil {
			t.Fatal(err)
		}
		if n := b.Counters().UnalignedProducts; n != before {
			t.Errorf("%v: %d aligned products counted as unaligned", e, n-before)
		}
		if err := b.Linear(&moved, x, z, 3); err != nil {
			t.Fatal(err)
		}
		if n := b.Counters().UnalignedProducts; n == before {
			t.Errorf("%v: an unaligned product was not counted", e)
		}
		for i := range y {
			if y[i] != z[i] {
				t.Fatalf("%v: output %d is %g aligned and %g unaligned", e, i, y[i], z[i])
			}
		}
	}
}

// A row's numbers do not depend on the rows beside it, as long as the same kind of kernel takes them.
func TestRowsDoNotInfluenceEachOther(t *testing.T) {
	b := open(t)
	a := newArena(t, b, 16<<20)
	for _, e := range encodings {
		rng := newQuietRand(8, 8)
		a.used = 0
		w := a.randomWeight(rng, e, 66, 256)
		x := a.random(rng, 15*256)
		together, alone := a.floats(15*66), a.floats(66)
		if err := b.Linear(&w, x, together, 15); err != nil {
			t.Fatal(err)
		}
		for r := range 15 {
			if err := b.Linear(&w, x[r*256:(r+1)*256], alone, 1); err != nil {
				t.Fatal(err)
			}
			for i := range alone {
				if alone[i] != together[r*66+i] {
					t.Fatalf("%v: row %d output %d is %g alone and %g in company", e, r, i, alone[i], together[r*66+i])
				}
			}
		}
	}
}

// All 256 codes of fp8, the two NaNs included, in both kinds of kernel.
func TestFP8CodesAreExact(t *testing.T) {
	b := open(t)
	a := newArena(t, b, 4<<20)
	w := container.Block{Encoding: container.Encoding{Format: container.FP8Block128}, Rows: 256, Columns: 8, Data: a.bytes(256*8, 16, 0), Scales: a.copy([]float32{1, 1})}
	for r := range 256 {
		w.Data[r*8] = byte(r)
	}
	x, y := a.floats(16*8), a.floats(16*256)
	for r := range 16 {
		x[r*8] = 1
	}
	for _, rows := range []int{1, 16} {
		if err := b.Linear(&w, x, y, rows); err != nil {
			t.Fatal(err)
		}
		for code := range 256 {
			want := fp8Value(byte(code))
			if got := float64(y[code]); got != want && !(got != got && want != want) {
				t.Errorf("%d rows: code %#x is %g, %g expected", rows, code, got, want)
			}
		}
	}
}

func TestEmbedMatchesReference(t *testing.T) {
	b := open(t)
	a := newArena(t, b, 16<<20)
	for _, e := range encodings {
		for _, columns := range []int{64, 201, 6144} {
			rng := newQuietRand(9, uint64(columns))
			a.used = 0
			table := a.randomWeight(rng, e, 300, columns)
			ids := []int32{0, 299, 17, 17, 128}
			x := a.floats(len(ids) * columns)
			if err := b.Embed(&table, ids, x); err != nil {
				t.Fatal(err)
			}
			var want []float64
			for _, id := range ids {
				want = append(want, row(&table, int(id))...)
			}
			closeTo(t, fmt.Sprintf("%v of %d columns", e, columns), x, want, 1e-6)
		}
	}
	table := a.randomWeight(newQuietRand(1, 1), encodings[0], 4, 4)
	for _, id := range []int32{-1, 4} {
		if err := b.Embed(&table, []int32{id}, a.floats(4)); err == nil {
			t.Errorf("token %d of 4 is accepted", id)
		}
	}
}

func normalised(x []float64, weight []float32, epsilon float64) []float64 {
	y := make([]float64, len(x))
	n := len(weight)
	for r := 0; r < len(x); r += n {
		sum := 0.0
		for _, v := range x[r : r+n] {
			sum += v * v
		}
		for i := range n {
			y[r+i] = x[r+i] * float64(weight[i]) / math.Sqrt(sum/float64(n)+epsilon)
		}
	}
	return y
}

func TestNormaliseAndHeadMatchReference(t *testing.T) {
	b := open(t)
	a := newArena(t, b, 64<<20)
	for _, width := range []int{1, 31, 255, 6144} {
		rng := newQuietRand(10, uint64(width))
		a.used = 0
		weight, x, y := a.random(rng, width), a.random(rng, 3*width), a.floats(3*width)
		want := normalised(doubles(x), weight, 1e-5)
		if err := b.Normalise(weight, 1e-5, x, y, 3); err != nil {
			t.Fatal(err)
		}
		closeTo(t, fmt.Sprintf("norm of width %d", width), y, want, 1e-6)
		if err := b.Normalise(weight, 1e-5, x, x, 3); err != nil {
			t.Fatal(err)
		}
		closeTo(t, fmt.Sprintf("norm of width %d in place", width), x, want, 1e-6)
	}
	for _, rows := range []int{1, 3, 20} {
		rng := newQuietRand(11, 11)
		a.used = 0
		head := a.randomWeight(rng, encodings[3], 1000, 320)
		call := compute.HeadCall{Rows: rows, Norm: a.random(rng, 320), Epsilon: 1e-6, Head: &head, X: a.random(rng, rows*320), Normed: a.floats(rows * 320), Logits: a.floats(rows * 1000)}
		if err := b.Head(&call); err != nil {
			t.Fatal(err)
		}
		normed := normalised(doubles(call.X), call.Norm, 1e-6)
		closeTo(t, "normed rows", call.Normed, normed, 1e-6)
		closeTo(t, "logits", call.Logits, product(&head, normed), productLimit)
	}
}

// Calls that name memory the GPU does not know, or weights that are not what they say, are refused before anything runs.
func TestCallsWithBadMemoryAreRefused(t *testing.T) {
	b := open(t)
	a := newArena(t, b, 1<<20)
	w := a.randomWeight(newQuietRand(1, 1), encodings[0], 8, 8)
	x, y := a.floats(8), a.floats(8)
	outside := unsafe.Slice((*float32)(unsafe.Pointer(&mapMemory(t, page)[0])), 8)
	if err := b.Linear(&w, x, outside, 1); err == nil {
		t.Error("an output outside registered memory is accepted")
	}
	if err := b.Linear(&w, outside, y, 1); err == nil {
		t.Error("an input outside registered memory is accepted")
	}
	short := w
	short.Data = w.Data[:len(w.Data)-1]
	if err := b.Linear(&short, x, y, 1); err == nil {
		t.Error("a weight with too few bytes is accepted")
	}
	for _, e := range []container.Encoding{{}, {Format: 10}, {Format: container.Int4Group, Group: 8}, {Format: container.Int4Group}} {
		if b.Supports(e) {
			t.Errorf("%v is supported", e)
		}
		strange := w
		strange.Encoding = e
		if err := b.Linear(&strange, x, y, 1); err == nil {
			t.Errorf("a weight of %v is accepted", e)
		}
	}
	for _, e := range encodings {
		if !b.Supports(e) {
			t.Errorf("%v is not supported", e)
		}
	}
}

// A dispatch of more than some 3·10^7 outputs corrupts memory on some systems: large products are cut, and every output is right.
func TestProductsOfManyOutputsAreCut(t *testing.T) {
	long(t, "TestLinearMatchesReferenceForEveryEncoding")
	const outputs, columns, rows = 1 << 21, 8, 33 // 6.9·10^7 outputs: three dispatches, the last one of few rows
	b := open(t)
	a := newArena(t, b, 400<<20)
	rng := newQuietRand(26, 26)
	w := a.randomWeight(rng, encodings[3], outputs, columns)
	x, y := a.random(rng, rows*columns), a.floats(rows*outputs)
	before := b.Counters().Dispatches
	if err := b.Linear(&w, x, y, rows); err != nil {
		t.Fatal(err)
	}
	if n := b.Counters().Dispatches - before; n < 3 {
		t.Errorf("%d dispatches for %d outputs", n, outputs*rows)
	}
	for _, r := range []int{0, 15, 16, 31, 32} {
		for range 1000 {
			o := rng.IntN(outputs)
			want := 0.0
			for c := range columns {
				want += value(&w, o, c) * float64(x[r*columns+c])
			}
			if got := float64(y[r*outputs+o]); math.Abs(got-want) > 1e-4*20 {
				t.Fatalf("row %d output %d is %g, %g expected", r, o, got, want)
			}
		}
	}
}
