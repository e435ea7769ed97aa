//go:build (darwin && cgo) || metalsim

package metal

import (
	"cmp"
	"math"
	"slices"
	"testing"
	"unsafe"

	"colibri/backend/container"
)

// The router: its choice in double precision, and what it chooses among scores that do not decide.

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
