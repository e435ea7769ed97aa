//go:build (darwin && cgo) || metalsim

package metal

import (
	"math"
	"slices"
	"testing"

	"colibri/backend/compute"
	"colibri/backend/cpu"
)

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

	// Everything selected: the same numbers as no selection.
	every := a.layerCall(rng, c, 1, w, rowsAt(0, 15, 1), 1, 64)
	x := slices.Clone(every.X)
	every.Selection.Counts[0] = -1
	if err := b.Layer(every); err != nil {
		t.Fatal(err)
	}
	all := slices.Clone(every.X)
	copy(every.X, x)
	every.Selection.Counts[0] = 16
	for i := range every.Selection.Positions {
		every.Selection.Positions[i] = int32(i)
	}
	if err := b.Layer(every); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(all, every.X) {
		t.Error("selecting every position is not the same as selecting none")
	}
	for _, spoil := range []func(){func() { l.Selection.Counts[0] = 0 }, func() { l.Selection.Counts[0] = 17 }, func() { l.Selection.Counts[0], l.Selection.Positions[0] = 1, 6 }, func() { l.Selection = nil }} {
		spoil()
		if err := b.Layer(l); err == nil {
			t.Error("a selection that cannot be right is accepted")
		}
	}
}

// Equal index scores go to the lower position, or where a row asks for it to those that the reference implementation keeps; NaN is
// chosen last. A third of the cached keys are copies of one and a third are zero, so ties abound.
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
