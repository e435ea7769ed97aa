package app

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"colibri/backend/chat"
	"colibri/backend/telemetry"
)

// memoryStore keeps conversations in memory, with the store's semantics.
type memoryStore struct {
	mu            sync.Mutex
	conversations map[string]Conversation
	messages      map[string]Message
	order         []string
	deleted       map[string]bool
	appended      map[string]string // what AppendText was given, by message
	fail          error             // returned by every write
}

func newMemoryStore() *memoryStore {
	return &memoryStore{
		conversations: map[string]Conversation{}, messages: map[string]Message{}, deleted: map[string]bool{}, appended: map[string]string{},
	}
}

func (s *memoryStore) Conversations() ([]Conversation, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := []Conversation{}
	for id, c := range s.conversations {
		if !s.deleted[id] {
			out = append(out, c)
		}
	}
	slices.SortFunc(out, func(a, b Conversation) int { return cmp.Compare(b.Updated, a.Updated) })
	return out, nil
}

func (s *memoryStore) Conversation(id string) (Conversation, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.conversations[id]
	if !ok || s.deleted[id] {
		return c, errors.New("this conversation is gone")
	}
	return c, nil
}

func (s *memoryStore) Messages(conversation string) ([]Message, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := []Message{}
	for _, id := range s.order {
		if m := s.messages[id]; m.Conversation == conversation {
			out = append(out, m)
		}
	}
	return out, nil
}

func (s *memoryStore) PutConversation(c Conversation) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail != nil {
		return s.fail
	}
	s.conversations[c.ID] = c
	return nil
}

func (s *memoryStore) PutMessage(m Message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail != nil {
		return s.fail
	}
	if _, there := s.messages[m.ID]; !there {
		s.order = append(s.order, m.ID)
	}
	s.messages[m.ID] = m
	return nil
}

func (s *memoryStore) PutAll(conversations []Conversation, messages []Message) error {
	for _, c := range conversations {
		if err := s.PutConversation(c); err != nil {
			return err
		}
	}
	for _, m := range messages {
		if err := s.PutMessage(m); err != nil {
			return err
		}
	}
	return nil
}

func (s *memoryStore) AppendText(message, text, thinking string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail != nil {
		return s.fail
	}
	m := s.messages[message]
	m.Text += text
	m.Thinking += thinking
	s.messages[message] = m
	s.appended[message] += text + thinking
	return nil
}

func (s *memoryStore) Delete(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deleted[id] = true
	return nil
}

func (s *memoryStore) Restore(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.deleted, id)
	return nil
}

func (s *memoryStore) Search(string, int) ([]Hit, error) { return nil, nil }
func (s *memoryStore) Close() error                      { return nil }

// scriptedEngine does what a test tells it, step by step.
type scriptedEngine struct {
	loads    chan string // receives each directory that is loaded
	proceed  chan error  // one value lets one load end, with that error
	models   []*scriptedModel
	describe func(dir string) (Container, error)
	measure  func() // called by Measure

	mu       sync.Mutex
	measured int
	put      map[string]bool // conversations of which something is put away
}

func (e *scriptedEngine) Forget(conversation string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.put, conversation)
	return nil
}

func (e *scriptedEngine) Sweep(living []string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for id := range e.put {
		if !slices.Contains(living, id) {
			delete(e.put, id)
		}
	}
	return nil
}

// putAway lists the conversations of which something is on the engine's disk.
func (e *scriptedEngine) putAway() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Sorted(maps.Keys(e.put))
}

func newScriptedEngine() *scriptedEngine {
	return &scriptedEngine{loads: make(chan string, 10), proceed: make(chan error, 10), put: map[string]bool{}}
}

func (e *scriptedEngine) Describe(_ context.Context, dir string, _ int64) (Container, error) {
	if e.describe != nil {
		return e.describe(dir)
	}
	return Container{Family: "glm4_moe_lite", Bytes: 1000, Context: 100, SpeedLow: 1, SpeedHigh: 2}, nil
}

func (e *scriptedEngine) Measure(context.Context, string) error {
	if e.measure != nil {
		e.measure()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.measured++
	return nil
}

func (e *scriptedEngine) Load(ctx context.Context, dir, _ string, _ int64, progress func(string, float64)) (Model, error) {
	progress("reading", 0.5)
	e.loads <- dir
	select {
	case err := <-e.proceed:
		if err != nil {
			return nil, err
		}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	m := &scriptedModel{engine: e, dir: dir, requests: make(chan Request, 10), tokens: make(chan Token), end: make(chan answerEnd), closed: make(chan struct{})}
	e.models = append(e.models, m)
	return m, nil
}

type answerEnd struct {
	answered Answered
	err      error
}

type scriptedModel struct {
	engine   *scriptedEngine
	dir      string
	requests chan Request
	tokens   chan Token
	end      chan answerEnd
	closed   chan struct{}
}

func (m *scriptedModel) Backend() string           { return "test" }
func (m *scriptedModel) ContextTokens() int        { return 100 }
func (m *scriptedModel) Stats() telemetry.Snapshot { return telemetry.Snapshot{} }
func (m *scriptedModel) Atlas() telemetry.Atlas    { return telemetry.Atlas{} }
func (m *scriptedModel) Close() error              { close(m.closed); return nil }

// CountTokens counts a token for each byte.
func (m *scriptedModel) CountTokens(messages []chat.Message) (int, error) {
	return countBytes(messages)
}

func countBytes(messages []chat.Message) (int, error) {
	n := 0
	for _, t := range messages {
		n += len(t.Text)
	}
	return n, nil
}

func (m *scriptedModel) Answer(ctx context.Context, r Request, emit func(Token) error) (Answered, error) {
	m.requests <- r
	defer func() {
		m.engine.mu.Lock()
		m.engine.put[r.Conversation] = true
		m.engine.mu.Unlock()
	}()
	out := Answered{PromptTokens: 7, Seed: 42}
	for {
		select {
		case <-ctx.Done():
			out.FinishReason = "cancelled"
			return out, nil
		case t := <-m.tokens:
			out.Tokens++
			if emit(t) != nil {
				out.FinishReason = "cancelled"
				return out, nil
			}
		case e := <-m.end:
			e.answered.Tokens, e.answered.PromptTokens = out.Tokens, 7
			return e.answered, e.err
		}
	}
}

// fixture is an app with doubles, and what it sent.
type fixture struct {
	*App
	t      *testing.T
	engine *scriptedEngine
	store  *memoryStore
	events chan Event
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t, engine: newScriptedEngine(), store: newMemoryStore(), events: make(chan Event, 10_000)}
	var err error
	f.App, err = New(Options{
		DataDir: t.TempDir(), Engine: f.engine, Store: f.store,
		Bundled: func(context.Context) (string, error) { return "/bundled", nil },
		Send:    func(e Event) { f.events <- e },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := f.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return f
}

// wait returns the next event of a kind that satisfies the check.
func (f *fixture) wait(kind string, check func(Event) bool) Event {
	f.t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		select {
		case e := <-f.events:
			if e.Kind == kind && (check == nil || check(e)) {
				return e
			}
		case <-deadline:
			f.t.Fatalf("no event %q came", kind)
		}
	}
}

// ready loads the bundled model.
func (f *fixture) ready() *scriptedModel {
	f.t.Helper()
	f.must(f.LoadModel(BundledID))
	<-f.engine.loads
	f.engine.proceed <- nil
	f.wait("model", func(e Event) bool { return contains(e, `"phase":"ready"`) })
	return f.engine.models[len(f.engine.models)-1]
}

func (f *fixture) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) newChat() string {
	f.t.Helper()
	c, err := f.NewConversation()
	f.must(err)
	return c.ID
}

func (f *fixture) send(conversation, parent, text string) Generated {
	f.t.Helper()
	g, err := f.Generate(GenerateRequest{Conversation: conversation, Mode: "send", Parent: parent, Text: text})
	f.must(err)
	return g
}

// finished waits for the end of an answer and returns it as stored.
func (f *fixture) finished(id string) Message {
	f.t.Helper()
	f.wait("message", func(e Event) bool { return contains(e, id) })
	f.store.mu.Lock()
	defer f.store.mu.Unlock()
	return f.store.messages[id]
}
