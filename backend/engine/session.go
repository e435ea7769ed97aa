package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Session is one conversation: the keys and values of its tokens so far. Sessions of a model may generate at the same
// time, taking turns token by token; each session does one thing at a time.
type Session struct {
	model  *Model
	mu     sync.Mutex
	cache  kvCache
	tokens []int32 // whose keys and values the cache holds
	draft  drafting
	kept   keptFile // what SaveKV and LoadKV left on disk
	tied   int      // the first of tokens whose row chose among equal index scores, noTie if none: see ties.go
	closed bool
}

// Request is one question.
type Request struct {
	Prompt      []int32 // the whole conversation; what the session already holds of it is not computed again
	MaxTokens   int     // a ceiling within the remaining context; 0: none but the context
	Sampling    Sampling
	StopStrings []string
	StopIDs     []int32

	// ThinkingOpen says that the prompt ends inside the model's thinking; ThinkStartID and ThinkEndID are the tokens that
	// open and close it (0: the model has none). They are marks, not text: their pieces are empty.
	ThinkingOpen             bool
	ThinkStartID, ThinkEndID int32

	Route    Route                 // optional: told of every routed expert, also of the prompt's; no tokens are drafted then
	Progress func(done, total int) // optional: prompt tokens computed so far, the reused ones included
}

// Piece is what one token adds to the answer. Text may be empty where a character is not complete or a stop string may
// be beginning; it comes with a later piece then.
type Piece struct {
	ID       int32 // −1: only text that had been held back, or a notice
	Text     string
	Thinking bool
	Notice   string // something the user should see beside the text
}

// FinishReason says why an answer ended.
type FinishReason string

const (
	FinishStop      FinishReason = "stop"      // a stop id or stop string
	FinishLength    FinishReason = "length"    // Request.MaxTokens
	FinishContext   FinishReason = "context"   // the model's context is full
	FinishCancelled FinishReason = "cancelled" // the context was cancelled
	FinishError     FinishReason = "error"     // Generate returned an error too
)

// Result is an answer, also of one that was cancelled or failed half-way.
type Result struct {
	IDs          []int32 // without the stop id
	Text         string  // thinking included, the marks not
	PromptTokens int
	ReusedTokens int // of them, taken from the session's cache
	FinishReason FinishReason
	StopID       int32 // the id that ended the answer, −1 otherwise
	Seed         int64 // what to set Sampling.Seed to for the same answer
	Stats        Stats
}

// NewSession begins a conversation. It takes memory when its first tokens come.
func (m *Model) NewSession() (*Session, error) {
	s := &Session{model: m, tied: noTie}
	s.cache.model = m
	m.sessions.Lock()
	defer m.sessions.Unlock()
	if m.closed.Load() {
		return nil, errClosed
	}
	m.open[s] = struct{}{}
	return s, nil
}

var errClosed = errors.New("the model is closed")

// Close gives the session's memory back. It waits for a Generate under way; cancel that first.
func (s *Session) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	s.model.sessions.Lock()
	delete(s.model.open, s)
	s.model.sessions.Unlock()
	return s.cache.free()
}

// Tokens is a copy of the ids the session holds keys and values of.
func (s *Session) Tokens() []int32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]int32(nil), s.tokens...)
}

// Truncate forgets all but the first n tokens.
func (s *Session) Truncate(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cut(n)
}

// cut forgets all but the first n tokens, or one fewer: see cutDrafting.
func (s *Session) cut(n int) {
	s.keep(s.cutDrafting(min(max(n, 0), len(s.tokens))))
}

func (s *Session) keep(n int) {
	s.tokens = s.tokens[:n]
	if s.tied >= n {
		s.tied = noTie
	}
}

// Generate answers a prompt. emit is called in order from this goroutine; an error of emit ends the answer and is
// returned. Whatever ends it, the result holds what was generated.
func (s *Session) Generate(ctx context.Context, request Request, emit func(Piece) error) (Result, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := &answer{session: s, request: &request, emit: emit, began: time.Now()}
	a.result = Result{PromptTokens: len(request.Prompt), StopID: -1, FinishReason: FinishError}
	if err := a.prepare(); err != nil {
		return a.result, err
	}
	before := s.model.counters()
	err := a.run(ctx)
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		if ctx.Err() != nil {
			a.result.FinishReason, err = FinishCancelled, nil
		}
	}
	if flushed := a.flush(); err == nil {
		err = flushed
	}
	if err != nil {
		a.result.FinishReason = FinishError
	}
	a.result.Text = a.text.String()
	a.result.Stats = a.stats(before)
	return a.result, err
}

// extend computes ids after the session's tokens as parts of a text of textTokens tokens (0: one that ends with each of them), and
// adds them to these once it succeeded. Of those before wanted only what is cached is computed, not the output. The caller has the model's turn.
func (s *Session) extend(ctx context.Context, ids []int32, textTokens, wanted int, route Route) error {
	start := len(s.tokens)
	if err := s.cache.reserve(ctx, start+len(ids), start); err != nil {
		return err
	}
	s.model.batch = append(s.model.batch[:0], segment{&s.cache, start, ids, textTokens})
	if err := s.model.forward(ctx, s.model.batch, wanted, route); err != nil {
		return err
	}
	s.tokens = append(s.tokens, ids...)
	s.tied = min(s.tied, s.model.tied)
	return nil
}

// checkPrompt refuses prompts that cannot be computed, with the counts.
func (m *Model) checkPrompt(prompt []int32) error {
	if len(prompt) == 0 {
		return errors.New("the prompt is empty")
	}
	if len(prompt) >= m.config.MaxPositions {
		return fmt.Errorf("the prompt has %d tokens and the model holds %d, the answer included; shorten it or start a new conversation", len(prompt), m.config.MaxPositions)
	}
	return m.checkIDs(prompt)
}

func (m *Model) checkIDs(ids []int32) error {
	for i, id := range ids {
		if id < 0 || int(id) >= m.config.Vocabulary {
			return fmt.Errorf("token %d has the id %d, which is not one of the model's %d; the tokenizer belongs to another model", i, id, m.config.Vocabulary)
		}
	}
	return nil
}
