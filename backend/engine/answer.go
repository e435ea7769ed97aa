package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"colibri/backend/tokenizer"
)

// answer is one Generate under way.
type answer struct {
	session *Session
	request *Request
	emit    func(Piece) error
	result  Result

	sampler  *sampler
	stream   *tokenizer.Stream // nil without a tokenizer: ids only
	stops    stopMatcher
	loop     loopDetector
	text     strings.Builder
	thinking bool
	limit    int // tokens at most
	limited  FinishReason

	began, prefilled, first, ended time.Time
	prefilledTokens, taken         int
	drafted, accepted              int
	batch                          []int32 // reused
	times                          times
}

// prepare checks the request before anything is computed.
func (a *answer) prepare() error {
	m, r := a.session.model, a.request
	if a.session.closed {
		return errors.New("the conversation is closed")
	}
	if err := m.checkPrompt(r.Prompt); err != nil {
		return err
	}
	if r.MaxTokens < 0 {
		return fmt.Errorf("at most %d tokens were asked for; use 0 for no limit but the context", r.MaxTokens)
	}
	if slices.Contains(r.StopStrings, "") {
		return errors.New("a stop string is empty; remove it")
	}
	sampler, err := newSampler(r.Sampling, r.Prompt)
	if err != nil {
		return err
	}
	a.sampler, a.result.Seed = sampler, sampler.Seed
	a.stops.stops, a.thinking = r.StopStrings, r.ThinkingOpen
	if m.tokenizer != nil {
		a.stream = m.tokenizer.NewStream()
	}
	a.limit, a.limited = m.config.MaxPositions-len(r.Prompt), FinishContext
	if r.MaxTokens > 0 && r.MaxTokens < a.limit {
		a.limit, a.limited = r.MaxTokens, FinishLength
	}
	// The last token of the prompt is computed again even if the session holds it: its logits are not kept.
	s := a.session
	s.cut(min(commonPrefix(s.tokens, r.Prompt), len(r.Prompt)-1, s.standing(len(r.Prompt))))
	a.result.ReusedTokens = len(s.tokens)
	return nil
}

func commonPrefix(a, b []int32) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// run generates until something ends the answer.
func (a *answer) run(ctx context.Context) error {
	s, m := a.session, a.session.model
	a.prefilledTokens = len(a.request.Prompt) - len(s.tokens)
	chosen, err := a.prefill(ctx, a.request.Prompt, make([]int32, 0, headRows))
	a.prefilled = time.Now()
	if err != nil {
		return err
	}
	for {
		for _, id := range chosen {
			done, err := a.take(id)
			if done || err != nil {
				return err
			}
		}
		began := time.Now()
		if text := len(a.request.Prompt) + len(a.result.IDs); s.standing(text) < len(s.tokens) {
			s.cut(s.standing(text))
			chosen, err = a.prefill(ctx, slices.Concat(a.request.Prompt, a.result.IDs), chosen[:0])
		} else {
			chosen, err = a.round(ctx, chosen[len(chosen)-1], chosen[:0])
		}
		if err != nil {
			return err
		}
		for range chosen {
			m.recorder.Token(time.Since(began) / time.Duration(len(chosen)))
		}
	}
}

// round computes the answer's last token, and a draft of what follows it, and appends the tokens chosen next: one more than
// drafts were right.
func (a *answer) round(ctx context.Context, last int32, chosen []int32) ([]int32, error) {
	s, m := a.session, a.session.model
	err := a.turn(ctx, func() error {
		began, before := time.Now(), len(s.tokens)
		depth := a.depth()
		// Room for the drafts too, before the prediction layer writes to it.
		if err := s.cache.reserve(ctx, before+1+depth, before); err != nil {
			return err
		}
		a.batch = append(a.batch[:0], last)
		if depth > 0 {
			drafts, err := s.propose(ctx, last, depth, func(logits []float32, i int) (int32, error) {
				return a.sampler.choose(logits, len(a.result.IDs)+i)
			})
			if err != nil {
				return err
			}
			a.batch = append(a.batch, drafts...)
		}
		if err := s.extend(ctx, a.batch, 0, 0, a.request.Route); err != nil {
			return err
		}
		logits, err := m.logitsOf(firstRows[:len(a.batch)])
		if err != nil {
			return err
		}
		for i := range a.batch {
			id, err := a.choose(logits[i*m.config.Vocabulary:][:m.config.Vocabulary], len(a.result.IDs)+i)
			if err != nil {
				s.settle(before, i)
				return err
			}
			chosen = append(chosen, id)
			a.sampler.accept(id)
			if i+1 < len(a.batch) && a.batch[i+1] != id || s.standing(before+i+2) <= before+i {
				break
			}
		}
		s.settle(before, len(chosen))
		if s.drafts() {
			m.pace.spent(depth, len(chosen), time.Since(began))
		}
		m.guesser.trial.spent(len(chosen), time.Since(began))
		a.drafted += depth
		a.accepted += len(chosen) - 1
		return nil
	})
	return chosen, err
}

var firstRows = []int{0, 1, 2, 3, 4, 5, 6, 7}[:headRows]

// depth is the number of tokens to draft: no more than may still be wanted, or fit the context.
func (a *answer) depth() int {
	s, m := a.session, a.session.model
	if !s.drafts() || a.request.Route != nil {
		return 0
	}
	return max(0, min(m.pace.depth(), a.limit-len(a.result.IDs)-1, m.config.MaxPositions-len(s.tokens)-1))
}

// choose picks the n-th token of the answer.
func (a *answer) choose(logits []float32, n int) (int32, error) {
	id, err := a.sampler.choose(logits, n)
	if errors.Is(err, errNaN) {
		return 0, &NumberError{Layer: -1, Position: len(a.session.tokens) - 1}
	}
	return id, err
}

// take adds one token to the answer, and says whether the answer ends with or before it.
func (a *answer) take(id int32) (done bool, err error) {
	if a.first.IsZero() {
		a.first = time.Now()
	}
	a.ended = time.Now()
	a.taken++
	if slices.Contains(a.request.StopIDs, id) {
		a.result.FinishReason, a.result.StopID = FinishStop, id
		return true, nil
	}
	a.result.IDs = append(a.result.IDs, id)
	stopped, err := a.show(id)
	if err != nil {
		return true, err
	}
	if stopped {
		a.result.FinishReason = FinishStop
		return true, nil
	}
	if period, found := a.loop.push(a.result.IDs); found {
		notice := fmt.Sprintf("The answer repeats the same %d tokens. Stop it, or raise the temperature or the repetition penalty.", period)
		if period == 1 {
			notice = "The answer repeats the same token. Stop it, or raise the temperature or the repetition penalty."
		}
		if err := a.emit(Piece{ID: -1, Thinking: a.thinking, Notice: notice}); err != nil {
			return true, err
		}
	}
	if len(a.result.IDs) >= a.limit {
		a.result.FinishReason = a.limited
		return true, nil
	}
	return false, nil
}

// show emits the piece of a token.
func (a *answer) show(id int32) (stopped bool, err error) {
	opens := a.request.ThinkStartID > 0 && id == a.request.ThinkStartID
	closes := a.request.ThinkEndID > 0 && id == a.request.ThinkEndID
	if opens || closes {
		if err := a.flush(); err != nil {
			return true, err
		}
		err := a.emit(Piece{ID: id, Thinking: true})
		a.thinking = opens
		return false, err
	}
	text := ""
	if a.stream != nil {
		text, stopped = a.stops.push(a.stream.Push(id))
	}
	a.text.WriteString(text)
	return stopped, a.emit(Piece{ID: id, Text: text, Thinking: a.thinking})
}

// flush emits what was held back: the rest of a character, the beginning of a stop string that did not come.
func (a *answer) flush() error {
	if a.stream == nil {
		return nil
	}
	text := ""
	if a.result.FinishReason != FinishStop || a.result.StopID >= 0 {
		shown, _ := a.stops.push(a.stream.Flush())
		text = shown + a.stops.flush()
	}
	if text == "" {
		return nil
	}
	a.text.WriteString(text)
	return a.emit(Piece{ID: -1, Text: text, Thinking: a.thinking})
}

// prefill computes a text but for what the session holds of it, and appends the token chosen after it. The text is the prompt, or
// the answer too where its rows do not stand.
func (a *answer) prefill(ctx context.Context, text, chosen []int32) ([]int32, error) {
	s, m := a.session, a.session.model
	route, progress := a.request.Route, a.request.Progress
	if len(a.result.IDs) > 0 { // all but the last token have been reported
		route, progress = route.from(len(text)-1), nil
	}
	for done := len(s.tokens); done < len(text); done = len(s.tokens) {
		if progress != nil {
			progress(done, len(text))
		}
		part := text[done:min(len(text), done+m.scratch.rows)]
		err := a.turn(ctx, func() error {
			if s.drafts() {
				if _, err := s.catchUp(ctx, part[0]); err != nil {
					return err
				}
			}
			// Of a prompt the last token's output is wanted; the prediction layer's caches, and a trace, need all.
			wanted := 0
			if !s.drafts() && route == nil {
				wanted = min(len(text)-1-done, len(part))
			}
			if err := s.extend(ctx, part, len(text), wanted, route); err != nil {
				return err
			}
			if len(s.tokens) == len(text) {
				logits, err := m.logitsOf([]int{len(part) - 1})
				if err != nil {
					return err
				}
				id, err := a.choose(logits, len(a.result.IDs))
				if err != nil {
					return err
				}
				a.sampler.accept(id)
				chosen = append(chosen, id)
			}
			if s.drafts() {
				return s.draftPrompt(ctx, text)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	if progress != nil {
		progress(len(text), len(text))
	}
	return chosen, nil
}
