package engine

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"colibri/backend/bundled"
	"colibri/backend/compute"
	"colibri/backend/cpu"
	"colibri/backend/residency"
)

// testBackend is the CPU with hooks.
type testBackend struct {
	compute.Backend
	layer  func(*compute.LayerCall) error // before a layer
	script []int32                        // the tokens whose logits are made the greatest, one for each row of the head
}

func (b *testBackend) Layer(call *compute.LayerCall) error {
	if b.layer != nil {
		if err := b.layer(call); err != nil {
			return err
		}
	}
	return b.Backend.Layer(call)
}

func (b *testBackend) Head(call *compute.HeadCall) error {
	if err := b.Backend.Head(call); err != nil {
		return err
	}
	vocabulary := len(call.Logits) / call.Rows
	for r := range call.Rows {
		if len(b.script) > 0 {
			clear(call.Logits[r*vocabulary:][:vocabulary])
			call.Logits[r*vocabulary+int(b.script[0])] = 1
			b.script = b.script[1:]
		}
	}
	return nil
}

// loadHooked loads a model on a testBackend with threads threads.
func loadHooked(t *testing.T, dir string, threads int, options Options) (*Model, *testBackend) {
	t.Helper()
	var hooked *testBackend
	registerBackend("test", func() (compute.Backend, error) {
		b, err := cpu.New(threads)
		hooked = &testBackend{Backend: b}
		return hooked, err
	})
	options.Backend = "test"
	m, err := Load(context.Background(), dir, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Errorf("closing: %v", err)
		}
		if used := m.Stats().KVBytes; used != 0 {
			t.Errorf("%d bytes of keys and values are left after closing", used)
		}
	})
	return m, hooked
}

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
			if err := m.forward(context.Background(), batch, nil); err != nil {
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

func TestCancellationKeepsWhatWasGenerated(t *testing.T) {
	o := loadOracle(t, oracleDir("deepseek_v3"))
	m, hooked := loadHooked(t, oracleDir("deepseek_v3"), 1, Options{})
	layers := m.config.Layers
	for _, at := range []int{0, 2, layers, 5*layers + 1, 9 * layers} {
		s := newSession(t, m)
		ctx, cancel := context.WithCancel(context.Background())
		count := 0
		hooked.layer = func(*compute.LayerCall) error {
			if count == at {
				cancel()
			}
			count++
			return nil
		}
		r, err := s.Generate(ctx, greedyRequest(o.Prompt, 32), func(Piece) error { return nil })
		hooked.layer = nil
		cancel()
		if err != nil || r.FinishReason != FinishCancelled {
			t.Errorf("cancelled in layer %d: %q, %v", at, r.FinishReason, err)
		}
		if !slices.Equal(r.IDs, o.Greedy[:len(r.IDs)]) || len(r.IDs) < at/layers-1 || len(r.IDs) > at/layers+1 {
			t.Errorf("cancelled in layer %d: %v", at, r.IDs)
		}
		// The session goes on as if nothing had happened.
		if again, _ := ask(t, s, greedyRequest(o.Prompt, 32)); !slices.Equal(again.IDs, o.Greedy) {
			t.Errorf("after a cancellation in layer %d: %v", at, again.IDs)
		}
	}
	s := newSession(t, m)
	gone := errors.New("the window is gone")
	n := 0
	r, err := s.Generate(context.Background(), greedyRequest(o.Prompt, 32), func(Piece) error {
		if n++; n == 4 {
			return gone
		}
		return nil
	})
	if !errors.Is(err, gone) || r.FinishReason != FinishError || len(r.IDs) != 4 {
		t.Errorf("a failing emit gives %v, %q, %d tokens", err, r.FinishReason, len(r.IDs))
	}
}

func TestNumbersThatAreNoneEndAnAnswerAndAreTraced(t *testing.T) {
	o := loadOracle(t, oracleDir("glm4_moe"))
	m, hooked := loadHooked(t, oracleDir("glm4_moe"), 1, Options{})
	for _, value := range []float32{float32(math.NaN()), float32(math.Inf(1))} {
		s := newSession(t, m)
		hooked.layer = func(call *compute.LayerCall) error {
			if call.Index == 2 && call.Rows[0].Position == len(o.Prompt)+3 {
				call.X[17] = value
			}
			return nil
		}
		r, err := s.Generate(context.Background(), greedyRequest(o.Prompt, 32), func(Piece) error { return nil })
		hooked.layer = nil
		var number *NumberError
		if !errors.As(err, &number) || number.Layer != 2 || number.Position != len(o.Prompt)+3 {
			t.Errorf("%v in layer 2 gives %v", value, err)
		}
		if !slices.Equal(r.IDs, o.Greedy[:4]) || r.FinishReason != FinishError {
			t.Errorf("the answer so far: %v, %q", r.IDs, r.FinishReason)
		}
		if again, _ := ask(t, s, greedyRequest(o.Prompt, 32)); !slices.Equal(again.IDs, o.Greedy) {
			t.Errorf("after the fault: %v", again.IDs)
		}
	}
}

func TestBackendErrorsEndAnAnswer(t *testing.T) {
	o := loadOracle(t, oracleDir("glm4_moe"))
	m, hooked := loadHooked(t, oracleDir("glm4_moe"), 1, Options{})
	fault := errors.New("the processor is on fire")
	n := 0
	hooked.layer = func(*compute.LayerCall) error {
		if n++; n > 3*m.config.Layers {
			return fault
		}
		return nil
	}
	r, err := newSession(t, m).Generate(context.Background(), greedyRequest(o.Prompt, 32), func(Piece) error { return nil })
	if !errors.Is(err, fault) || len(r.IDs) != 3 {
		t.Errorf("%v after %d tokens", err, len(r.IDs))
	}
}

func TestTheSameWordsAtAnyMemoryLimit(t *testing.T) {
	for _, name := range []string{"deepseek_v3", "olmoe"} {
		o := loadOracle(t, oracleDir(name))
		free := loadModel(t, oracleDir(name))
		base := free.budget.need.Total()
		all := free.budget.experts
		for _, share := range []float64{0.35, 0.5, 0.8, 1.3} {
			limit := base + int64(share*float64(all))
			m, err := Load(context.Background(), oracleDir(name), Options{Backend: "cpu", MemoryBytes: limit})
			if err != nil {
				t.Fatalf("%s at %.0f %%: %v", name, share*100, err)
			}
			got := generate(t, m, o.Prompt, len(o.Greedy))
			logits, _ := evaluate(t, m, o.Prompt)
			peak := m.Stats().PeakBytes
			if err := m.Close(); err != nil {
				t.Error(err)
			}
			if !slices.Equal(got, o.Greedy) {
				t.Errorf("%s at %.0f %% of the experts: %v", name, share*100, got)
			}
			if e := furthest(logits, o.tensors["logits"].data); e > tolerance {
				t.Errorf("%s at %.0f %% of the experts: logits differ by %.2g", name, share*100, e)
			}
			if peak > limit {
				t.Errorf("%s: the peak of %d bytes is above the limit of %d", name, peak, limit)
			}
		}
	}
}

func TestLimitsThatAreTooSmallAreRefusedWithTheArithmetic(t *testing.T) {
	for _, limit := range []int64{1, 1 << 20} {
		_, err := Load(context.Background(), oracleDir("olmoe"), Options{Backend: "cpu", MemoryBytes: limit})
		if err == nil || !strings.Contains(err.Error(), "weights") || !strings.Contains(err.Error(), "limit") || strings.Contains(err.Error(), "\n") {
			t.Errorf("a limit of %d gives %v", limit, err)
		}
	}
}

func TestConversationsStayWithinTheLimit(t *testing.T) {
	dir := newCheckpoint(3, oddModels()["gqa"]).write(t)
	free := loadModel(t, dir)
	limit := free.budget.need.Total() + free.budget.experts + 2*free.budget.need.CacheBytes
	m, err := Load(context.Background(), dir, Options{Backend: "cpu", MemoryBytes: limit})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	var sessions []*Session
	for i := range 200 {
		s := newSession(t, m)
		sessions = append(sessions, s)
		if _, err = s.Generate(context.Background(), greedyRequest([]int32{1, 2, 3}, 2), func(Piece) error { return nil }); err != nil {
			if i < 2 {
				t.Errorf("conversation %d found no room: %v", i, err)
			}
			break
		}
	}
	if err == nil || !strings.Contains(err.Error(), "no room to grow") {
		t.Errorf("200 conversations in %d bytes: %v", limit, err)
	}
	if s := m.Stats(); s.PeakBytes > limit {
		t.Errorf("the peak of %d bytes is above the limit of %d", s.PeakBytes, limit)
	}
	// The others still answer.
	if _, err := sessions[0].Generate(context.Background(), greedyRequest([]int32{1, 2, 3, 4}, 2), func(Piece) error { return nil }); err != nil {
		t.Errorf("after the refusal: %v", err)
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

func TestUnknownBackends(t *testing.T) {
	if _, err := Load(context.Background(), oracleDir("olmoe"), Options{Backend: "abacus"}); err == nil || !strings.Contains(err.Error(), "abacus") {
		t.Errorf("%v", err)
	}
}

func TestAutoSaysWhyItRunsOnTheCPU(t *testing.T) {
	registerBackend("metal", func() (compute.Backend, error) { return nil, errors.New("there is no device") })
	defer func() {
		openersMu.Lock()
		delete(openers, "metal")
		openersMu.Unlock()
	}()
	m, err := Load(context.Background(), oracleDir("olmoe"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if notices := strings.Join(m.Stats().Notices, " "); !strings.Contains(notices, "there is no device") {
		t.Errorf("the notices say %q", notices)
	}
	if _, err := Load(context.Background(), oracleDir("olmoe"), Options{Backend: "metal"}); err == nil {
		t.Error("metal was asked for and something else was used")
	}
}

func TestLoadingReportsProgressAndCanBeCancelled(t *testing.T) {
	var last Progress
	m, err := Load(context.Background(), oracleDir("olmoe"), Options{Backend: "cpu", Progress: func(p Progress) {
		if p.DoneBytes < last.DoneBytes {
			t.Errorf("progress fell from %d to %d", last.DoneBytes, p.DoneBytes)
		}
		last = p
	}})
	if err != nil {
		t.Fatal(err)
	}
	if last.DoneBytes == 0 || last.DoneBytes != last.TotalBytes {
		t.Errorf("loading ended at %d of %d bytes", last.DoneBytes, last.TotalBytes)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Load(ctx, oracleDir("olmoe"), Options{Backend: "cpu"}); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled load gives %v", err)
	}
}

func TestTextOfAnAnswer(t *testing.T) {
	m, hooked := loadHooked(t, bundledDir(t), 1, Options{Drafts: DraftsOff})
	encode := func(text string) []int32 {
		ids, err := m.Tokenizer().Encode(text)
		if err != nil {
			t.Fatal(err)
		}
		return ids
	}
	prompt := encode("Hello")
	open, _ := m.Tokenizer().TokenID("<think>")
	closing, found := m.Tokenizer().TokenID("</think>")
	if !found {
		t.Fatal("the bundled model has no </think>")
	}
	say := func(ids []int32, request Request) (Result, []Piece) {
		hooked.script = slices.Clone(ids)
		request.Prompt, request.MaxTokens, request.Sampling = prompt, len(ids), Greedy()
		r, pieces := ask(t, newSession(t, m), request)
		var all strings.Builder
		for _, p := range pieces {
			all.WriteString(p.Text)
			if strings.ContainsRune(p.Text, '\uFFFD') {
				t.Errorf("half a character was shown: %q", p.Text)
			}
		}
		if all.String() != r.Text {
			t.Errorf("pieces say %q, the result %q", all.String(), r.Text)
		}
		return r, pieces
	}

	for _, text := range []string{"a plain answer.", "naïve 日本語 👍🏽 done", "tabs\tand\n\nlines"} {
		if r, _ := say(encode(text), Request{}); r.Text != text || r.FinishReason != FinishLength {
			t.Errorf("%q became %q (%s)", text, r.Text, r.FinishReason)
		}
	}

	r, _ := say(encode("one two STOP three"), Request{StopStrings: []string{"STOP", "never"}})
	if r.Text != "one two " || r.FinishReason != FinishStop || r.StopID != -1 {
		t.Errorf("a stop string gives %q, %q", r.Text, r.FinishReason)
	}
	if r, _ := say(encode("it ends in ST"), Request{StopStrings: []string{"STOP"}}); r.Text != "it ends in ST" {
		t.Errorf("the beginning of a stop string was lost: %q", r.Text)
	}

	thought, answered := encode("hm, STO"), encode("P it is")
	ids := slices.Concat(thought, []int32{closing}, answered)
	r, pieces := say(ids, Request{ThinkingOpen: true, ThinkStartID: open, ThinkEndID: closing, StopStrings: []string{"STOP"}})
	if r.Text != "hm, STOP it is" {
		t.Errorf("thinking and answer: %q", r.Text)
	}
	var thinking, visible strings.Builder
	for _, p := range pieces {
		if p.Thinking {
			thinking.WriteString(p.Text)
		} else {
			visible.WriteString(p.Text)
		}
	}
	if thinking.String() != "hm, STO" || visible.String() != "P it is" {
		t.Errorf("thinking %q, visible %q", thinking.String(), visible.String())
	}
	// The same characters as plain text are text.
	if r, pieces := say(encode("a</thi"), Request{ThinkingOpen: true, ThinkEndID: closing}); r.Text != "a</thi" || !pieces[len(pieces)-1].Thinking {
		t.Errorf("text that looks like a tag: %q", r.Text)
	}

	loop := slices.Repeat(encode("again")[:1], 100)
	_, pieces = say(loop, Request{})
	notices := 0
	for _, p := range pieces {
		if p.Notice != "" {
			notices++
		}
	}
	if notices != 1 {
		t.Errorf("%d notices about a loop", notices)
	}
}

// Drafts change the speed only: same tokens, greedy and sampled, whatever is accepted, also after reuse and edits.
func TestDraftsDoNotChangeTheText(t *testing.T) {
	dirs := map[string]string{"bundled": bundledDir(t), "random": newCheckpoint(5, oddModels()["mla groups, MTP"]).write(t)}
	for name, dir := range dirs {
		t.Run(name, func(t *testing.T) {
			plain, err := Load(context.Background(), dir, Options{Drafts: DraftsOff})
			if err != nil {
				t.Fatal(err)
			}
			defer plain.Close()
			drafting := loadModel(t, dir)
			random := rand.New(rand.NewPCG(4, 4))
			accepted := 0
			for round := range 6 {
				sampling := Greedy()
				if round%2 == 1 {
					sampling = Sampling{Temperature: 0.8, TopP: 0.95, RepetitionPenalty: 1.1, PresencePenalty: 0.2, Seed: int64(round)}
				}
				prompt := randomIDs(random, 5+random.IntN(30), plain.config.Vocabulary)
				if name == "bundled" {
					if prompt, err = plain.Tokenizer().Encode("The little cat went to the river and"); err != nil {
						t.Fatal(err)
					}
				}
				depth := 1 + round%mostDrafts
				drafting.pace = &pace{least: depth, left: math.MaxInt}
				drafting.pace.tried[depth] = trial{tokens: 1, time: 1}
				a, b := newSession(t, plain), newSession(t, drafting)
				for turn := range 3 {
					request := Request{Prompt: prompt, MaxTokens: 40 + turn, Sampling: sampling}
					want, _ := ask(t, a, request)
					got, _ := ask(t, b, request)
					if !slices.Equal(got.IDs, want.IDs) || got.Text != want.Text || got.FinishReason != want.FinishReason {
						t.Fatalf("trial %d turn %d depth %d: %v with drafts, %v without", round, turn, depth, got.IDs, want.IDs)
					}
					if got.Stats.DraftTokens == 0 {
						t.Fatal("nothing was drafted")
					}
					// What is kept belongs to the text: nothing of drafts that were wrong.
					if held, text := b.Tokens(), slices.Concat(prompt, got.IDs); len(held) < len(text)-1 || !slices.Equal(held[:len(text)-1], text[:len(text)-1]) {
						t.Fatalf("the session holds %v of %v", held, text)
					}
					accepted += got.Stats.AcceptedTokens
					prompt = slices.Concat(prompt, want.IDs)
					if turn == 1 {
						prompt = slices.Concat(prompt[:len(prompt)-17], []int32{2, 3})
					}
				}
			}
			if name == "bundled" && accepted == 0 {
				t.Error("no draft of the bundled model was ever right")
			}
		})
	}
}

// The pace settles on whichever depth takes the least time, drafting or not.
func TestPaceFindsTheFastestDepth(t *testing.T) {
	for want := range mostDrafts + 1 {
		p := newPace(DraftsMeasured)
		for range 2000 {
			depth := p.depth()
			// Every depth gives depth+1 tokens; the wanted one takes the least for each.
			cost := 10 * (depth + 1)
			if depth == want {
				cost = 9 * (depth + 1)
			}
			p.spent(depth, depth+1, time.Duration(cost))
		}
		if p.best() != want {
			t.Errorf("best is %d, not %d: %+v", p.best(), want, p.tried)
		}
		// It notices a change.
		for range 4000 {
			depth := p.depth()
			cost := 10 * (depth + 1)
			if depth == mostDrafts-want {
				cost = 7 * (depth + 1)
			}
			p.spent(depth, depth+1, time.Duration(cost))
		}
		if got := p.best(); got != mostDrafts-want {
			t.Errorf("after the change best is %d, not %d: %+v", got, mostDrafts-want, p.tried)
		}
	}
}

// What was used is remembered beside the model, and added to.
func TestTheUsageHistoryIsKept(t *testing.T) {
	dir := newCheckpoint(3, oddModels()["gqa"]).write(t)
	var totals []uint64
	for range 2 {
		m, err := Load(context.Background(), dir, Options{Backend: "cpu", History: true})
		if err != nil {
			t.Fatal(err)
		}
		generate(t, m, []int32{1, 2, 3}, 10)
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		usage, notice := residency.ReadUsage(filepath.Join(dir, residency.UsageFile), residency.Shape{Layers: m.config.Layers, Experts: m.config.MoE.Experts}, m.config.Layers, m.config.Family)
		if notice != "" {
			t.Fatal(notice)
		}
		totals = append(totals, usage.Total())
	}
	// Three tokens of the prompt and nine of the answer were computed, each in every layer.
	if totals[0] == 0 || totals[1] != 2*totals[0] {
		t.Errorf("uses after one and two sessions: %v", totals)
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

func TestClosingAModelEndsItsAnswers(t *testing.T) {
	o := loadOracle(t, oracleDir("deepseek_v3"))
	m, err := Load(context.Background(), oracleDir("deepseek_v3"), Options{Backend: "cpu"})
	if err != nil {
		t.Fatal(err)
	}
	s, err := m.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	begun, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		first := true
		r, err := s.Generate(context.Background(), greedyRequest(o.Prompt, 200), func(Piece) error {
			if first {
				close(begun)
				first = false
			}
			return nil
		})
		if len(r.IDs) == 0 || r.FinishReason != FinishError && r.FinishReason != FinishLength && r.FinishReason != FinishContext {
			t.Errorf("%d tokens, %q", len(r.IDs), r.FinishReason)
		}
		ended <- err
	}()
	<-begun
	if err := m.Close(); err != nil {
		t.Errorf("closing: %v", err)
	}
	if err := <-ended; err != nil && !errors.Is(err, errClosed) {
		t.Errorf("the answer ended with %v", err)
	}
	if _, err := m.NewSession(); !errors.Is(err, errClosed) {
		t.Errorf("a closed model begins a conversation: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("closing again: %v", err)
	}
}
