package residency

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// syntheticTrace makes a trace of tokens over layers 1 … layers−1 with experts drawn by draw.
func syntheticTrace(layers, experts, tokens int, draw func(token, layer int) []int32) *Trace {
	t := &Trace{Shape: Shape{layers, experts}}
	for token := range tokens {
		for layer := 1; layer < layers; layer++ {
			ids := draw(token, layer)
			slices.Sort(ids)
			t.Steps = append(t.Steps, Step{token, layer, slices.Compact(ids)})
		}
	}
	return t
}

// zipf draws k experts whose popularity falls as 1/rank, in an order that depends on layer and topic.
func zipf(random *rand.Rand, experts, k, layer, topic int) []int32 {
	order := rand.New(rand.NewPCG(uint64(layer), uint64(topic))).Perm(experts)
	var ids []int32
	for len(ids) < k {
		rank := int(math.Exp(random.Float64()*math.Log(float64(experts)+1))) - 1
		if id := int32(order[min(rank, experts-1)]); !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

func syntheticTraces() map[string]*Trace {
	random := rand.New(rand.NewPCG(7, 7))
	return map[string]*Trace{
		"uniform": syntheticTrace(5, 32, 400, func(int, int) []int32 {
			return []int32{int32(random.IntN(32)), int32(random.IntN(32)), int32(random.IntN(32))}
		}),
		"zipf":         syntheticTrace(5, 32, 800, func(_, layer int) []int32 { return zipf(random, 32, 3, layer, 0) }),
		"topic switch": syntheticTrace(5, 32, 1200, func(token, layer int) []int32 { return zipf(random, 32, 3, layer, token/300) }),
		"round robin":  syntheticTrace(5, 32, 400, func(token, _ int) []int32 { return []int32{int32(token % 32)} }),
	}
}

// bruteForce finds the fewest misses possible by trying every eviction.
func bruteForce(steps []Step, experts, slots int) int {
	type state struct {
		at     int
		memory string
	}
	seen := map[state]int{}
	var best func(at int, memory []int) int
	best = func(at int, memory []int) int {
		if at == len(steps) {
			return 0
		}
		slices.Sort(memory)
		key := state{at, fmt.Sprint(memory)}
		if m, ok := seen[key]; ok {
			return m
		}
		s := steps[at]
		var want []int
		for _, e := range s.Experts {
			want = append(want, s.Layer*experts+int(e))
		}
		missing := 0
		next := slices.Clone(memory)
		for _, k := range want {
			if !slices.Contains(memory, k) {
				missing++
				next = append(next, k)
			}
		}
		// Choose which others to drop, in every way.
		var drop func(m []int, from int) int
		drop = func(m []int, from int) int {
			if len(m) <= slots {
				return best(at+1, slices.Clone(m))
			}
			least := math.MaxInt
			for i := from; i < len(m); i++ {
				if !slices.Contains(want, m[i]) {
					least = min(least, drop(slices.Delete(slices.Clone(m), i, i+1), i))
				}
			}
			return least
		}
		m := missing + drop(next, 0)
		seen[key] = m
		return m
	}
	return best(0, nil)
}

func TestBeladyIsTheOptimum(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 1))
	for range 12 {
		trace := syntheticTrace(3, 4, 8, func(int, int) []int32 { return []int32{int32(random.IntN(4)), int32(random.IntN(4))} })
		for slots := 2; slots <= 5; slots++ {
			got, err := Belady(trace, slots)
			if err != nil {
				t.Fatal(err)
			}
			if want := bruteForce(trace.Steps, 4, slots); got.Misses != want {
				t.Fatalf("%d slots: %d misses, %d are possible: %v", slots, got.Misses, want, trace.Steps)
			}
		}
	}
}

func TestNoPolicyBeatsTheOptimumAndCountsAddUp(t *testing.T) {
	for name, trace := range syntheticTraces() {
		uses := 0
		for _, s := range trace.Steps {
			uses += len(s.Experts)
		}
		for _, slots := range []int{3, 32, 128} {
			best, err := ReplayByName(trace, slots, "belady")
			if err != nil {
				t.Fatal(err)
			}
			for _, policy := range ReplayPolicies() {
				c, err := ReplayByName(trace, slots, policy)
				if err != nil {
					t.Fatal(err)
				}
				if c.Hits+c.Misses != uses || c.Misses < best.Misses {
					t.Errorf("%s, %d slots, %s: %+v of %d uses, optimum %+v", name, slots, policy, c, uses, best)
				}
				if slots >= 128 && c.Misses != best.Misses {
					t.Errorf("%s: %s misses %d where everything fits and %d are cold", name, policy, c.Misses, best.Misses)
				}
			}
		}
	}
}

func TestForecastOnSyntheticTraces(t *testing.T) {
	for _, name := range []string{"zipf", "topic switch"} {
		trace := syntheticTraces()[name]
		for _, slots := range []int{12, 32, 64} {
			misses := map[string]int{}
			for _, policy := range ReplayPolicies() {
				c, err := ReplayByName(trace, slots, policy)
				if err != nil {
					t.Fatal(err)
				}
				misses[policy] = c.Misses
			}
			t.Log(name, slots, misses)
			// Popularity that never changes is LFU's home ground; the price of following topics there was 0.3, 5 and 12 %.
			within := map[string]float64{"zipf": 1.13, "topic switch": 1}[name]
			if misses["forecast"] >= misses["lru"] || float64(misses["forecast"]) > within*float64(misses["lfu"]) {
				t.Errorf("%s, %d slots: %v", name, slots, misses)
			}
		}
	}
}

// recordedChats are 43 chats of 1 to 4 questions with the bundled model (5,921 tokens, temperature 0.7), recorded with `colibri run
// --trace`: 7 layers of 32 experts, 4 used. The forecast's parameters were chosen on other chats.
func recordedChats(t testing.TB) *Trace {
	t.Helper()
	packed, err := os.ReadFile("testdata/chats.jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	lines, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	trace, err := ReadTrace(lines)
	if err != nil {
		t.Fatal(err)
	}
	return trace
}

func TestForecastOnRecordedChats(t *testing.T) {
	trace := recordedChats(t)
	tokens := 0
	for _, s := range trace.Steps {
		if s.Layer == 1 {
			tokens++
		}
	}
	if tokens < 5000 {
		t.Fatalf("%d tokens", tokens)
	}
	all := (trace.Shape.Layers - 1) * trace.Shape.Experts
	// Against the optimum, what the forecast reaches with a little room: 1.23, 1.47 and 1.81 measured.
	for percent, within := range map[int]float64{10: 1.24, 25: 1.48, 50: 1.82} {
		misses := map[string]int{}
		for _, policy := range ReplayPolicies() {
			c, err := ReplayByName(trace, all*percent/100, policy)
			if err != nil {
				t.Fatal(err)
			}
			misses[policy] = c.Misses
		}
		t.Logf("%2d %%: forecast %d, LRU %d, LFU %d, optimum %d: forecast/optimum %.3f", percent, misses["forecast"], misses["lru"], misses["lfu"], misses["belady"],
			float64(misses["forecast"])/float64(misses["belady"]))
		if misses["forecast"] >= misses["lru"] || misses["forecast"] >= misses["lfu"] || float64(misses["forecast"]) > within*float64(misses["belady"]) {
			t.Errorf("%d %%: %v", percent, misses)
		}
	}
}

func TestMoreSlotsMissLess(t *testing.T) {
	trace := recordedChats(t)
	trace.Steps = trace.Steps[:5000]
	previous := math.MaxInt
	for slots := 28; slots <= 224; slots += 28 {
		c, err := Replay(trace, slots, NewForecast(trace.Shape, nil))
		if err != nil {
			t.Fatal(err)
		}
		if c.Misses > previous {
			t.Errorf("%d slots: %d misses, %d with fewer slots", slots, c.Misses, previous)
		}
		previous = c.Misses
	}
}

func TestAHistoryHelpsTheFirstTokens(t *testing.T) {
	trace := recordedChats(t)
	half := len(trace.Steps) / 2
	history := NewUsage(trace.Shape)
	for _, s := range trace.Steps[:half] {
		for _, e := range s.Experts {
			history.Uses[trace.Shape.key(s.Layer, e)]++
		}
	}
	// The first 100 tokens of later chats.
	later := &Trace{Shape: trace.Shape, Steps: trace.Steps[half : half+700]}
	cold, err := Replay(later, 56, NewForecast(trace.Shape, nil))
	if err != nil {
		t.Fatal(err)
	}
	warm, err := Replay(later, 56, NewForecast(trace.Shape, history))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("misses of 100 tokens: %d without, %d with a history", cold.Misses, warm.Misses)
	if warm.Misses >= cold.Misses {
		t.Error("the history does not help")
	}
}

// TestTheStoreDoesWhatReplaySays runs a trace through a store and compares.
func TestTheStoreDoesWhatReplaySays(t *testing.T) {
	c := generate(t, testShape{layers: 4, experts: 16})
	random := rand.New(rand.NewPCG(11, 1))
	trace := syntheticTrace(4, 16, 150, func(token, layer int) []int32 { return zipf(random, 16, 3, layer, token/50) })
	for _, slots := range []int{3, 9, 20, 40} {
		want, err := Replay(trace, slots, NewForecast(trace.Shape, nil))
		if err != nil {
			t.Fatal(err)
		}
		s, _ := openStore(t, c, Options{LimitBytes: int64(slots) * testSlotBytes, LeastSlots: 3})
		var got Count
		for _, step := range trace.Steps {
			hits, misses := fetchAll(t, s, c, step.Layer, step.Experts...)
			got.Hits, got.Misses = got.Hits+len(hits), got.Misses+len(misses)
		}
		if got != want {
			t.Errorf("%d slots: the store %+v, the replay %+v", slots, got, want)
		}
	}
}

func TestTraces(t *testing.T) {
	steps := []Step{{0, 1, []int32{3, 7}}, {0, 2, []int32{0, 1}}, {1, 1, []int32{2}}}
	var b bytes.Buffer
	for _, s := range steps {
		if err := WriteStep(&b, s); err != nil {
			t.Fatal(err)
		}
	}
	if first, _, _ := strings.Cut(b.String(), "\n"); first != `{"token":0,"layer":1,"experts":[3,7]}` {
		t.Errorf("a line is %s", first)
	}
	back, err := ReadTrace(&b)
	if err != nil || !reflect.DeepEqual(back, &Trace{Shape: Shape{3, 8}, Steps: steps}) {
		t.Errorf("%+v, %v", back, err)
	}
	for text, want := range map[string]string{
		"":                                   "empty",
		"{\"token\":0,\"layer\":1":           "line 1",
		"\n{\"layer\":-1,\"experts\":[1]}":   "line 2 of the trace names layer -1",
		"{\"layer\":1,\"experts\":[-1]}":     "expert -1",
		"{\"layer\":1,\"experts\":[999999]}": "expert 999999",
		"{\"layer\":1,\"experts\":\"all\"}":  "line 1",
	} {
		if _, err := ReadTrace(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := Replay(back, 1, NewLRU(back.Shape)); err == nil || !strings.Contains(err.Error(), "1 slots cannot hold") {
		t.Errorf("fewer slots than one token's experts: %v", err)
	}
	if _, err := ReplayByName(back, 5, "magic"); err == nil {
		t.Error("an unknown policy")
	}
}
