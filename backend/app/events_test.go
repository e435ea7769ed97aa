package app

import (
	"context"
	"encoding/json"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"colibri/backend/telemetry"
)

// collect gathers what an emitter sends.
type collect struct {
	mu     sync.Mutex
	events []Event
}

func (c *collect) send(e Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events = append(c.events, e)
}

func TestEventsAreNumberedInOrderFromManyGoroutines(t *testing.T) {
	var c collect
	e := newEmitter(c.send, slog.New(slog.DiscardHandler))
	var work sync.WaitGroup
	for g := range 4 {
		work.Add(1)
		go func() {
			defer work.Done()
			for range 500 {
				e.piece(Piece{Message: string(rune('a' + g)), Text: "x"})
				e.post("stats", "stats", g)
			}
		}()
	}
	work.Wait()
	e.close()
	texts := map[string]int{}
	for i, event := range c.events {
		if event.Seq != int64(i+1) {
			t.Fatalf("event %d has number %d", i+1, event.Seq)
		}
		if len(event.Data) > 8<<10 {
			t.Errorf("event %d is %d bytes", i, len(event.Data))
		}
		if event.Kind == "piece" {
			var p Piece
			if err := json.Unmarshal(event.Data, &p); err != nil {
				t.Fatal(err)
			}
			texts[p.Message] += len(p.Text)
		}
	}
	for name, n := range texts {
		if n != 500 {
			t.Errorf("message %s received %d of 500", name, n)
		}
	}
}

func TestOnlyTheNewestOfAKeyIsSentAndCausesStayBeforeEffects(t *testing.T) {
	var c collect
	e := &emitter{send: c.send, log: slog.New(slog.DiscardHandler), wake: make(chan struct{}, 1)}
	e.post("generation", "c", "decode")
	e.piece(Piece{Message: "m", Text: "last words"})
	e.post("generation", "c", "done")
	e.flush()
	if len(c.events) != 2 || c.events[0].Kind != "piece" || string(c.events[1].Data) != `"done"` {
		t.Errorf("%+v", c.events)
	}
}

// A frame's tokens are one event, with one of the figures that were posted after each.
func TestTheTokensOfAFrameAreOneEvent(t *testing.T) {
	e := &emitter{log: slog.New(slog.DiscardHandler), wake: make(chan struct{}, 1)} // nobody sends: one endless frame
	for i := range 50 {
		e.piece(Piece{Message: "m", Text: "word "})
		e.post("generation", "c", GenerationStatus{Tokens: i + 1})
		if i%10 == 0 {
			e.post("stats", "stats", Stats{})
		}
	}
	e.seal()
	if len(e.outbox) != 3 || e.outbox[0].Kind != "piece" || !contains(e.outbox[0], strings.Repeat("word ", 50)) || !contains(e.outbox[2], `"tokens":50`) {
		t.Errorf("%d events: %v", len(e.outbox), e.outbox)
	}
	// What is no figure keeps its place among the words.
	e.piece(Piece{Message: "m", Text: "a"})
	e.post("message", "m", Message{ID: "m"})
	e.piece(Piece{Message: "m", Text: "b"})
	e.piece(Piece{Message: "m", Text: "c", Thinking: true})
	e.piece(Piece{Message: "m", Text: "d"})
	e.seal()
	var kinds []string
	for _, event := range e.outbox[3:] {
		kinds = append(kinds, event.Kind)
	}
	if got := strings.Join(kinds, " "); got != "piece message piece piece piece" {
		t.Errorf("order: %s", got)
	}
}

func TestSealNumbersWhatWasPosted(t *testing.T) {
	var c collect
	e := &emitter{send: c.send, log: slog.New(slog.DiscardHandler), wake: make(chan struct{}, 1)}
	e.post("a", "", 1)
	e.post("b", "", 2)
	if seq := e.seal(); seq != 2 {
		t.Errorf("sealed at %d", seq)
	}
	e.post("a", "", 3)
	e.flush()
	if len(c.events) != 3 || c.events[2].Seq != 3 {
		t.Errorf("%+v", c.events)
	}
}

func TestLongTextIsCutBetweenCharacters(t *testing.T) {
	var c collect
	e := &emitter{send: c.send, log: slog.New(slog.DiscardHandler), wake: make(chan struct{}, 1)}
	e.piece(Piece{Message: "m", Text: strings.Repeat("é\x01漢🙂", 3000)})
	e.post("big", "", strings.Repeat("x", 10_000))
	e.flush()
	for _, event := range c.events {
		if len(event.Data) > 8<<10 || !utf8.Valid(event.Data) {
			t.Errorf("%d bytes, valid %v", len(event.Data), utf8.Valid(event.Data))
		}
	}
	if last := c.events[len(c.events)-1]; last.Kind != "resync" {
		t.Errorf("an event that is too large became %q", last.Kind)
	}
}

func TestFiniteCleansWithoutTouchingTheOriginal(t *testing.T) {
	inner := &Receipt{TokensPerSecond: math.NaN(), Seed: 5}
	list := []Container{{SpeedLow: math.Inf(1)}}
	in := struct {
		R *Receipt
		L []Container
		F float32
		N *Receipt
	}{inner, list, float32(math.Inf(-1)), nil}
	out := Finite(in)
	if out.R.TokensPerSecond != 0 || out.R.Seed != 5 || out.L[0].SpeedLow != 0 || out.F != 0 || out.N != nil {
		t.Errorf("%+v %+v", out, out.R)
	}
	if !math.IsNaN(inner.TokensPerSecond) || !math.IsInf(list[0].SpeedLow, 1) {
		t.Error("the original was changed")
	}
}

func TestCommandsTakeEffectInTheirOrder(t *testing.T) {
	g := newGate(func(time.Duration) <-chan time.Time { return nil }) // endless patience
	session := g.open()
	var mu sync.Mutex
	var done []int64
	var work sync.WaitGroup
	for _, n := range []int64{5, 3, 1, 4, 2} {
		work.Add(1)
		go func() {
			defer work.Done()
			leave, err := g.enter(context.Background(), Command{session, n})
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			done = append(done, n)
			mu.Unlock()
			leave()
		}()
	}
	work.Wait()
	for i, n := range done {
		if n != int64(i+1) {
			t.Fatalf("order %v", done)
		}
	}
	if _, err := g.enter(context.Background(), Command{session, 3}); err == nil {
		t.Error("a number was used twice")
	}
	if _, err := g.enter(context.Background(), Command{"forged", 1}); err == nil {
		t.Error("a made-up session was let in")
	}
}

func TestALostCommandDoesNotStopTheOthersForEver(t *testing.T) {
	patience := make(chan time.Time)
	g := newGate(func(time.Duration) <-chan time.Time { return patience })
	session := g.open()
	order := make(chan int64, 2)
	for _, n := range []int64{3, 2} { // 1 never comes
		go func() {
			leave, err := g.enter(context.Background(), Command{session, n})
			if err != nil {
				t.Error(err)
			} else {
				order <- n
				leave()
			}
		}()
	}
	waitFor(t, func() bool { g.mu.Lock(); defer g.mu.Unlock(); return len(g.sessions[session].waiting) == 2 })
	close(patience)
	if a, b := <-order, <-order; a != 2 || b != 3 {
		t.Errorf("carried out %d, then %d", a, b)
	}
	if _, err := g.enter(context.Background(), Command{session, 1}); err == nil {
		t.Error("the lost command was carried out after those that followed it")
	}
}

func waitFor(t *testing.T, check func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !check(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("waited in vain")
		}
	}
}

func TestOldSessionsEnd(t *testing.T) {
	g := newGate(time.After)
	first := g.open()
	for range maxSessions {
		g.open()
	}
	if _, err := g.enter(context.Background(), Command{first, 1}); err == nil {
		t.Error("the oldest session is still open")
	}
}

func TestTheTimeSplitIsThatOfTheLastSecond(t *testing.T) {
	var r rates
	began := time.Now()
	r.add(began, telemetry.Snapshot{})
	first := telemetry.Snapshot{Tokens: 4, Attention: 40 * time.Millisecond, Experts: 20 * time.Millisecond, Wait: 30 * time.Millisecond, Other: 10 * time.Millisecond}
	r.add(began.Add(time.Second), first)
	if want := (TimeSplit{Tokens: 4, AttentionMillis: 40, ExpertMillis: 20, WaitMillis: 30, OtherMillis: 10}); r.split != want {
		t.Errorf("%+v", r.split)
	}
	second := first
	second.Tokens, second.Attention = 5, 47*time.Millisecond
	r.add(began.Add(1500*time.Millisecond), second) // too soon
	r.add(began.Add(2*time.Second), second)
	if want := (TimeSplit{Tokens: 1, AttentionMillis: 7}); r.split != want {
		t.Errorf("%+v", r.split)
	}
	r.add(began.Add(3*time.Second), telemetry.Snapshot{Tokens: 1}) // another model
	if r.split != (TimeSplit{}) {
		t.Errorf("%+v", r.split)
	}
}

func TestLicencesAreServed(t *testing.T) {
	f := newFixture(t)
	answer := httptest.NewRecorder()
	f.Middleware(http.NotFoundHandler()).ServeHTTP(answer, httptest.NewRequest("GET", "/data/licences", nil))
	var works []struct{ Name, SPDX, Part, Text string }
	if err := json.Unmarshal(answer.Body.Bytes(), &works); err != nil || len(works) < 10 || works[0].Name != "Colibri" || !strings.Contains(works[0].Text, "MIT") {
		t.Errorf("%d works, %v", len(works), err)
	}
	if policy := answer.Header().Get("Content-Security-Policy"); policy != Policy {
		t.Errorf("policy: %q", policy)
	}
}
