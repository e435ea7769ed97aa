package engine

import (
	"context"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"colibri/backend/bundled"
)

func oracleDir(name string) string { return filepath.Join("../../testdata/oracles", name) }

func bundledDir(t testing.TB) string {
	t.Helper()
	dir, err := bundled.Path(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func ask(t *testing.T, s *Session, request Request) (Result, []Piece) {
	t.Helper()
	var pieces []Piece
	r, err := s.Generate(context.Background(), request, func(p Piece) error {
		pieces = append(pieces, p)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return r, pieces
}

func greedyRequest(prompt []int32, n int) Request {
	return Request{Prompt: prompt, MaxTokens: n, Sampling: Greedy()}
}

func TestTwoConversationsDoNotDisturbEachOther(t *testing.T) {
	for _, name := range []string{"deepseek_v3", "qwen3_moe", "glm_moe_dsa_dense"} {
		o, m := loadOracle(t, oracleDir(name)), loadModel(t, oracleDir(name))
		other := slices.Clone(o.Prompt[:29])
		slices.Reverse(other)
		want := [][]int32{o.Greedy, generate(t, m, other, len(o.Greedy))}

		// Turn by turn.
		sessions := []*Session{newSession(t, m), newSession(t, m)}
		texts := [][]int32{slices.Clone(o.Prompt), slices.Clone(other)}
		for range 8 {
			for i, s := range sessions {
				r, _ := ask(t, s, greedyRequest(texts[i], 4))
				texts[i] = append(texts[i], r.IDs...)
			}
		}
		for i, start := range []int{len(o.Prompt), len(other)} {
			if got := texts[i][start:]; !slices.Equal(got, want[i]) {
				t.Errorf("%s: conversation %d gives %v, alone %v", name, i, got, want[i])
			}
		}

		// In one batch: rows of different sequences and positions.
		a, b := newSession(t, m), newSession(t, m)
		logitsAfter(t, m, a, o.Prompt[:20], 20)
		logitsAfter(t, m, b, other[:7], 7)
		var got [][]float32
		err := m.turn(context.Background(), func() error {
			for _, s := range []*Session{a, b} {
				if err := s.cache.reserve(context.Background(), 30, len(s.tokens)); err != nil {
					return err
				}
			}
			batch := []segment{{&a.cache, 20, o.Prompt[20:23], 0}, {&b.cache, 7, other[7:12], 0}}
			if err := m.forward(context.Background(), batch, 0, nil); err != nil {
				return err
			}
			logits, err := m.logitsOf([]int{2, 7})
			v := m.config.Vocabulary
			got = [][]float32{slices.Clone(logits[:v]), slices.Clone(logits[v:])}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		for i, text := range [][]int32{o.Prompt[:23], other[:12]} {
			if alone := logitsAfter(t, m, newSession(t, m), text, len(text)); !slices.Equal(got[i], alone) {
				t.Errorf("%s: sequence %d of a batch has other logits than alone", name, i)
			}
		}
	}
}

func TestThreadsDoNotChangeLogits(t *testing.T) {
	for _, name := range []string{"glm_moe_dsa", "glm4_moe"} {
		o := loadOracle(t, oracleDir(name))
		var want []float64
		for _, threads := range []int{1, 2, 5} {
			m, _ := loadHooked(t, oracleDir(name), threads, Options{})
			got, _ := evaluate(t, m, o.Prompt)
			if want == nil {
				want = got
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: %d threads change the logits", name, threads)
			}
		}
	}
}

func TestWhatASessionHoldsIsNotComputedAgain(t *testing.T) {
	o, m := loadOracle(t, oracleDir("glm4_moe_lite")), loadModel(t, oracleDir("glm4_moe_lite"))
	s := newSession(t, m)
	first, _ := ask(t, s, greedyRequest(o.Prompt, 10))
	if first.ReusedTokens != 0 || first.PromptTokens != len(o.Prompt) || first.FinishReason != FinishLength {
		t.Errorf("the first answer reused %d of %d tokens and ended with %q", first.ReusedTokens, first.PromptTokens, first.FinishReason)
	}
	longer := slices.Concat(o.Prompt, first.IDs, []int32{5, 9})
	second, _ := ask(t, s, greedyRequest(longer, 6))
	// The last token of an answer is chosen, not computed.
	if want := len(o.Prompt) + 9; second.ReusedTokens != want {
		t.Errorf("%d tokens were reused, not %d", second.ReusedTokens, want)
	}
	if want := generate(t, m, longer, 6); !slices.Equal(second.IDs, want) {
		t.Errorf("after reuse %v, from nothing %v", second.IDs, want)
	}
	edited := slices.Clone(longer)
	edited[30] ^= 1
	third, _ := ask(t, s, greedyRequest(edited, 6))
	if third.ReusedTokens != 30 {
		t.Errorf("%d tokens before the edit were reused", third.ReusedTokens)
	}
	if want := generate(t, m, edited, 6); !slices.Equal(third.IDs, want) {
		t.Errorf("after an edit %v, from nothing %v", third.IDs, want)
	}
	again, _ := ask(t, s, greedyRequest(edited, 6))
	if again.ReusedTokens != len(edited)-1 || !slices.Equal(again.IDs, third.IDs) {
		t.Errorf("asked again: %d reused, %v", again.ReusedTokens, again.IDs)
	}
	s.Truncate(12)
	if got := s.Tokens(); !slices.Equal(got, edited[:12]) {
		t.Errorf("cut to 12 tokens, the session holds %v", got)
	}
}

func TestCachesGrowWithTheConversation(t *testing.T) {
	for name, config := range oddModels() {
		if name != "dsa" && name != "gqa" && name != "mla groups, MTP" {
			continue
		}
		m := loadModel(t, newCheckpoint(3, config).write(t))
		ids := randomIDs(rand.New(rand.NewPCG(3, 3)), 600, m.config.Vocabulary)
		s := newSession(t, m)
		logitsAfter(t, m, s, ids[:10], 10)
		small := m.Stats().KVBytes
		if want := cacheBytes(m.config, m.layerCount(), firstCapacity); small != want {
			t.Errorf("%s: ten tokens take %d bytes, not %d", name, small, want)
		}
		got := logitsAfter(t, m, s, ids[10:], 200, 190, 200)
		if large := m.Stats().KVBytes; large != cacheBytes(m.config, m.layerCount(), min(1024, m.config.MaxPositions)) {
			t.Errorf("%s: 600 tokens take %d bytes", name, large)
		}
		roomy := newSession(t, m)
		if err := m.turn(context.Background(), func() error { return roomy.cache.reserve(context.Background(), 600, 0) }); err != nil {
			t.Fatal(err)
		}
		if want := logitsAfter(t, m, roomy, ids, 200, 200, 200); !slices.Equal(got, want) {
			t.Errorf("%s: growing changed the logits", name)
		}
	}
}

func TestAnswersEndWithTheContext(t *testing.T) {
	o, m := loadOracle(t, oracleDir("olmoe")), loadModel(t, oracleDir("olmoe"))
	s := newSession(t, m)
	prompt := slices.Repeat(o.Prompt[:25], 10)
	// More than fits is a ceiling, not an error.
	r, _ := ask(t, s, greedyRequest(prompt, 1000))
	if room := m.config.MaxPositions - len(prompt); len(r.IDs) != room || r.FinishReason != FinishContext {
		t.Errorf("%d tokens in a room of %d, ended with %q", len(r.IDs), room, r.FinishReason)
	}
	full := slices.Repeat(o.Prompt[:32], 8)
	_, err := s.Generate(context.Background(), greedyRequest(full, 5), nil)
	if err == nil || !strings.Contains(err.Error(), "256") {
		t.Errorf("a prompt as long as the context gives %v", err)
	}
	for name, bad := range map[string]Request{
		"no prompt":         greedyRequest(nil, 5),
		"foreign ids":       greedyRequest([]int32{1, 99999}, 5),
		"negative length":   greedyRequest([]int32{1}, -1),
		"empty stop string": {Prompt: []int32{1}, Sampling: Greedy(), StopStrings: []string{""}},
		"zero sampling":     {Prompt: []int32{1}},
	} {
		if _, err := s.Generate(context.Background(), bad, nil); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

func TestStopIDsEndAnAnswer(t *testing.T) {
	o, m := loadOracle(t, oracleDir("qwen3_moe")), loadModel(t, oracleDir("qwen3_moe"))
	s := newSession(t, m)
	stop := o.Greedy[9]
	at := slices.Index(o.Greedy, stop)
	request := greedyRequest(o.Prompt, 32)
	request.StopIDs = []int32{-5, stop, 4000}
	r, pieces := ask(t, s, request)
	if !slices.Equal(r.IDs, o.Greedy[:at]) || r.FinishReason != FinishStop || r.StopID != stop || len(pieces) != at {
		t.Errorf("%v, ended by %d with %q, %d pieces", r.IDs, r.StopID, r.FinishReason, len(pieces))
	}
}

func TestRoutesAreReported(t *testing.T) {
	o, m := loadOracle(t, oracleDir("glm4_moe_lite")), loadModel(t, oracleDir("glm4_moe_lite"))
	type key struct{ position, layer int }
	seen := map[key][]int32{}
	request := greedyRequest(o.Prompt, 5)
	request.Route = func(position, layer int, experts []int32) {
		k := key{position, layer}
		if seen[k] != nil {
			t.Errorf("position %d, layer %d was reported twice", position, layer)
		}
		seen[k] = slices.Clone(experts)
	}
	ask(t, newSession(t, m), request)
	// Four tokens were fed back, in three sparse layers.
	if want := (len(o.Prompt) + 4) * 3; len(seen) != want {
		t.Errorf("%d routes, not %d", len(seen), want)
	}
	for k, experts := range seen {
		if len(experts) != m.config.MoE.PerToken || !slices.IsSorted(experts) {
			t.Fatalf("%v: %v", k, experts)
		}
	}
}

func TestConversationsAtTheSameTime(t *testing.T) {
	o, m := loadOracle(t, oracleDir("deepseek_v3")), loadModel(t, oracleDir("deepseek_v3"))
	var wait sync.WaitGroup
	for range 4 {
		s := newSession(t, m)
		wait.Go(func() {
			r, err := s.Generate(context.Background(), greedyRequest(o.Prompt, 32), func(Piece) error { return nil })
			if err != nil || !slices.Equal(r.IDs, o.Greedy) {
				t.Errorf("%v, %v", r.IDs, err)
			}
		})
	}
	wait.Wait()
}
