//go:build (darwin && cgo) || metalsim

package metal

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"colibri/backend/compute"
	"colibri/backend/container"
)

func siluDouble(x float64) float64 { return x / (1 + math.Exp(-x)) }

// network is down(silu(gate x) ⊙ (up x)) for every row of x.
func network(gate, up, down *container.Block, x []float64) []float64 {
	g, u := product(gate, x), product(up, x)
	for i := range g {
		g[i] = siluDouble(g[i]) * u[i]
	}
	return product(down, g)
}

// experts builds a call of one expert for each of counts, which says how many rows choose it; encodings gives each expert's gate, up
// and down. Slots are handed out in a shuffled order.
func (a *arena) experts(rng *rand.Rand, hidden, inner, rows int, counts []int, encoding func(expert int) [3]container.Encoding) *compute.MoECall {
	pairs := 0
	for _, n := range counts {
		pairs += n
	}
	m := &compute.MoECall{Hidden: hidden, Inner: inner, Input: a.random(rng, rows*hidden), Output: a.floats(pairs * hidden)}
	slots := rng.Perm(pairs)
	for i, n := range counts {
		e := encoding(i)
		w := compute.ExpertWork{Gate: a.randomWeight(rng, e[0], inner, hidden), Up: a.randomWeight(rng, e[1], inner, hidden), Down: a.randomWeight(rng, e[2], hidden, inner)}
		for _, r := range rng.Perm(rows)[:n] {
			w.Rows = append(w.Rows, int32(r))
			w.Slots = append(w.Slots, int32(slots[0]))
			slots = slots[1:]
		}
		m.Work = append(m.Work, w)
	}
	return m
}

func checkExperts(t testing.TB, what string, m *compute.MoECall) {
	t.Helper()
	want := make([]float64, len(m.Output))
	for i := range m.Work {
		w := &m.Work[i]
		var x []float64
		for _, r := range w.Rows {
			x = append(x, doubles(m.Input[int(r)*m.Hidden:(int(r)+1)*m.Hidden])...)
		}
		y := network(&w.Gate, &w.Up, &w.Down, x)
		for j, slot := range w.Slots {
			copy(want[int(slot)*m.Hidden:], y[j*m.Hidden:(j+1)*m.Hidden])
		}
	}
	closeTo(t, what, m.Output, want, productLimit)
}

func runExperts(t testing.TB, b compute.Backend, m *compute.MoECall) {
	t.Helper()
	p, err := b.MoEBegin(m)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(); err != nil {
		t.Fatal(err)
	}
}

func all(e container.Encoding) func(int) [3]container.Encoding {
	return func(int) [3]container.Encoding { return [3]container.Encoding{e, e, e} }
}

func TestExpertsMatchReferenceForEveryEncoding(t *testing.T) {
	b := open(t)
	a := newArena(t, b, 64<<20)
	for _, e := range encodings {
		for _, shape := range [][2]int{{64, 32}, {201, 75}, {256, 192}} {
			a.used = 0
			m := a.experts(newQuietRand(uint64(shape[0]), 3), shape[0], shape[1], 40, []int{1, 3, 0, 1, 4, 2, 17, 5, 40}, all(e))
			runExperts(t, b, m)
			checkExperts(t, fmt.Sprintf("%v %v", e, shape), m)
		}
	}
}

// Experts of one block may have different encodings, even within an expert: each is read as what it is.
func TestExpertsOfMixedEncodings(t *testing.T) {
	b := open(t)
	a := newArena(t, b, 64<<20)
	rng := newQuietRand(4, 4)
	counts := make([]int, 40)
	for i := range counts {
		counts[i] = 1 + i%3
		if i%13 == 0 {
			counts[i] = 18
		}
	}
	m := a.experts(rng, 192, 128, 18, counts, func(i int) [3]container.Encoding {
		if i%2 == 0 {
			return [3]container.Encoding{encodings[i%len(encodings)], encodings[i%len(encodings)], encodings[i%len(encodings)]}
		}
		return [3]container.Encoding{encodings[rng.IntN(len(encodings))], encodings[rng.IntN(len(encodings))], encodings[rng.IntN(len(encodings))]}
	})
	runExperts(t, b, m)
	checkExperts(t, "mixed encodings", m)
}

// GLM-5.2's decode shape.
func TestExpertsAtModelShape(t *testing.T) {
	b := open(t)
	a := newArena(t, b, 400<<20)
	for _, k := range []struct {
		e      container.Encoding
		counts []int
	}{{encodings[6], []int{1, 1, 1}}, {encodings[4], []int{3, 1, 2}}, {container.Encoding{Format: container.Int4Group, Group: 128}, []int{1, 5}}, {encodings[9], []int{1}}, {encodings[10], []int{1, 2}}} {
		a.used = 0
		m := a.experts(newQuietRand(5, 5), 6144, 2048, 6, k.counts, all(k.e))
		runExperts(t, b, m)
		checkExperts(t, k.e.String(), m)
	}
}

// Whatever is submitted first, a result is the same, and several blocks may be under way.
func TestExpertsDoNotDependOnHowTheyAreSubmitted(t *testing.T) {
	b := open(t)
	a := newArena(t, b, 64<<20)
	rng := newQuietRand(6, 6)
	m := a.experts(rng, 256, 128, 4, []int{1, 2, 1, 4, 3, 1, 2, 1}, all(encodings[6]))
	runExperts(t, b, m)
	whole := slices.Clone(m.Output)
	for range 10 {
		clear(m.Output)
		order := rng.Perm(len(m.Work))
		var waiting []compute.Pending
		for len(order) > 0 {
			n := 1 + rng.IntN(len(order))
			part := *m
			part.Work = nil
			for _, i := range order[:n] {
				part.Work = append(part.Work, m.Work[i])
			}
			order = order[n:]
			p, err := b.MoEBegin(&part)
			if err != nil {
				t.Fatal(err)
			}
			waiting = append(waiting, p)
		}
		rng.Shuffle(len(waiting), func(i, j int) { waiting[i], waiting[j] = waiting[j], waiting[i] })
		for _, p := range waiting {
			if err := p.Wait(); err != nil {
				t.Fatal(err)
			}
		}
		if !slices.Equal(whole, m.Output) {
			t.Fatal("outputs differ between one submit and several")
		}
	}
	made := b.Counters().ScratchAllocations
	for range 5 {
		runExperts(t, b, m)
	}
	if n := b.Counters().ScratchAllocations; n != made {
		t.Errorf("%d working buffers were made although the sizes were known", n-made)
	}
}

func TestCombineMatchesReference(t *testing.T) {
	b := open(t)
	a := newArena(t, b, 16<<20)
	for _, shape := range [][3]int{{1, 8, 6144}, {3, 1, 5}, {5, 4, 257}} {
		rows, k, hidden := shape[0], shape[1], shape[2]
		rng := newQuietRand(uint64(hidden), 12)
		a.used = 0
		c := compute.CombineCall{Rows: rows, PerToken: k, Hidden: hidden, Gates: a.random(rng, rows*k), Output: a.random(rng, rows*k*hidden), Shared: a.random(rng, rows*hidden), X: a.random(rng, rows*hidden)}
		want := doubles(c.X)
		for r := range rows {
			for i := range hidden {
				for j := range k {
					want[r*hidden+i] += float64(c.Gates[r*k+j]) * float64(c.Output[(r*k+j)*hidden+i])
				}
				want[r*hidden+i] += float64(c.Shared[r*hidden+i])
			}
		}
		if err := b.Combine(&c); err != nil {
			t.Fatal(err)
		}
		closeTo(t, "combine", c.X, want, 1e-6)
	}
}

func TestExpertsThatNameRowsOrSlotsThatAreNotThereAreRefused(t *testing.T) {
	b := open(t)
	a := newArena(t, b, 4<<20)
	for _, spoil := range []func(*compute.MoECall){
		func(m *compute.MoECall) { m.Work[0].Rows[0] = 2 },
		func(m *compute.MoECall) { m.Work[0].Rows[0] = -1 },
		func(m *compute.MoECall) { m.Work[1].Slots[0] = 2 },
		func(m *compute.MoECall) { m.Work[1].Slots = nil },
		func(m *compute.MoECall) { m.Work[1].Down.Rows-- },
		func(m *compute.MoECall) { m.Work[0].Up.Data = m.Work[0].Up.Data[1:] },
		func(m *compute.MoECall) { m.Work[0].Gate.Format = 77 },
	} {
		a.used = 0
		m := a.experts(newQuietRand(1, 1), 64, 32, 2, []int{1, 1}, all(encodings[6]))
		spoil(m)
		if _, err := b.MoEBegin(m); err == nil {
			t.Error("a block that cannot be right is accepted")
		}
	}
}
