package residency

import "fmt"

// Count is the outcome of a replay.
type Count struct {
	Hits   int `json:"hits"`
	Misses int `json:"misses"`
}

// MissRate is the share of uses that would have read from the disk.
func (c Count) MissRate() float64 {
	if c.Hits+c.Misses == 0 {
		return 0
	}
	return float64(c.Misses) / float64(c.Hits+c.Misses)
}

// ReplayPolicies are the policies that can be replayed by name. The first is the one that the store uses.
func ReplayPolicies() []string { return []string{"forecast", "lru", "lfu", "belady"} }

// ReplayByName replays a trace over slots equal slots under a policy of ReplayPolicies.
func ReplayByName(t *Trace, slots int, name string) (Count, error) {
	switch name {
	case "forecast":
		return Replay(t, slots, NewForecast(t.Shape, nil))
	case "lru":
		return Replay(t, slots, NewLRU(t.Shape))
	case "lfu":
		return Replay(t, slots, NewLFU(t.Shape))
	case "belady":
		return Belady(t, slots)
	}
	return Count{}, fmt.Errorf("there is no policy %q; there are %q", name, ReplayPolicies())
}

// Replay runs a policy over a trace as the store would: all of a step's experts are held at once, those in memory first; each
// other one takes an empty slot or that of the unheld expert of least worth.
func Replay(t *Trace, slots int, policy Policy) (Count, error) {
	return replay(t, slots, func(step int) { policy.Use(t.Steps[step].Layer, t.Steps[step].Experts) }, func(key int) float64 {
		return policy.Worth(key/t.Shape.Experts, int32(key%t.Shape.Experts))
	})
}

// HitCurve replays a trace at growing shares of the experts under the store's policy. The first half of the trace fills the cache and does
// not count: a plan is for the tokens after that.
func HitCurve(t *Trace, experts int) ([]HitPoint, error) {
	half := &Trace{Shape: t.Shape, Steps: t.Steps[:len(t.Steps)/2]}
	var curve []HitPoint
	for _, share := range []float64{0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75} {
		slots := max(t.widest(), int(share*float64(experts)))
		before, err := Replay(half, slots, NewForecast(t.Shape, nil))
		if err != nil {
			return nil, err
		}
		all, err := Replay(t, slots, NewForecast(t.Shape, nil))
		if err != nil {
			return nil, err
		}
		later := Count{all.Hits - before.Hits, all.Misses - before.Misses}
		curve = append(curve, HitPoint{Fraction: float64(slots) / float64(experts), Hits: 1 - later.MissRate()})
	}
	return curve, nil
}

// widest is the largest number of experts that a token uses in a layer.
func (t *Trace) widest() (n int) {
	for _, s := range t.Steps {
		n = max(n, len(s.Experts))
	}
	return n
}

// TouchCurve counts the share of a layer's experts that consecutive tokens of a trace use between them, for growing numbers of them.
func TouchCurve(t *Trace, experts int) (curve []TouchPoint) {
	var layers [][][]int32 // by layer: the experts of each token
	for _, s := range t.Steps {
		for s.Layer >= len(layers) {
			layers = append(layers, nil)
		}
		layers[s.Layer] = append(layers[s.Layer], s.Experts)
	}
	for tokens := 1; ; tokens *= 2 {
		touched, windows := 0, 0
		for _, steps := range layers {
			for ; len(steps) >= tokens; steps = steps[tokens:] {
				seen := map[int32]bool{}
				for _, ids := range steps[:tokens] {
					for _, id := range ids {
						seen[id] = true
					}
				}
				touched += len(seen)
				windows++
			}
		}
		if windows == 0 {
			return curve
		}
		curve = append(curve, TouchPoint{tokens, float64(touched) / float64(windows*experts)})
	}
}

// Belady is the optimum that knows the future: it evicts what is needed furthest ahead. No policy misses less.
func Belady(t *Trace, slots int) (Count, error) {
	keys := t.Shape.Layers * t.Shape.Experts
	// following[i][j] is the step that uses expert j of step i again.
	never := len(t.Steps)
	following := make([][]int, len(t.Steps))
	next := make([]int, keys)
	for k := range next {
		next[k] = never
	}
	for i := len(t.Steps) - 1; i >= 0; i-- {
		following[i] = make([]int, len(t.Steps[i].Experts))
		for j, e := range t.Steps[i].Experts {
			key := t.Shape.key(t.Steps[i].Layer, e)
			following[i][j] = next[key]
			next[key] = i
		}
	}
	return replay(t, slots, func(step int) {
		for j, e := range t.Steps[step].Experts {
			next[t.Shape.key(t.Steps[step].Layer, e)] = following[step][j]
		}
	}, func(key int) float64 { return -float64(next[key]) })
}

func replay(t *Trace, slots int, use func(step int), worth func(key int) float64) (Count, error) {
	var count Count
	resident := make([]bool, t.Shape.Layers*t.Shape.Experts)
	heldAt := make([]int, len(resident)) // the step that holds it, +1
	var inMemory []int
	for i, s := range t.Steps {
		if len(s.Experts) > slots {
			return Count{}, fmt.Errorf("a token uses %d experts at once in layer %d; %d slots cannot hold them", len(s.Experts), s.Layer, slots)
		}
		use(i)
		for _, e := range s.Experts {
			heldAt[t.Shape.key(s.Layer, e)] = i + 1
		}
		for _, e := range s.Experts {
			key := t.Shape.key(s.Layer, e)
			if resident[key] {
				count.Hits++
				continue
			}
			count.Misses++
			resident[key] = true
			if len(inMemory) < slots {
				inMemory = append(inMemory, key)
				continue
			}
			worst := -1
			var least float64
			for at, k := range inMemory {
				if heldAt[k] == i+1 {
					continue
				}
				if w := worth(k); worst < 0 || w < least || w == least && k < inMemory[worst] {
					worst, least = at, w
				}
			}
			resident[inMemory[worst]] = false
			inMemory[worst] = key
		}
	}
	return count, nil
}
