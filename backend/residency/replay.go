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
