package engine

import (
	"context"
	"errors"
	"fmt"
	"math"
)

// Logits computes the logits of every position of ids and hands them to emit in order; the slice is lent. route may be nil.
func (m *Model) Logits(ctx context.Context, ids []int32, route Route, emit func(position int, logits []float32) error) (err error) {
	if len(ids) == 0 {
		return errors.New("there are no ids to evaluate")
	}
	if len(ids) > m.config.MaxPositions {
		return fmt.Errorf("%d ids were given and the model holds %d; give fewer", len(ids), m.config.MaxPositions)
	}
	if err := m.checkIDs(ids); err != nil {
		return err
	}
	s, err := m.NewSession()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	rows := make([]int, 0, headRows)
	for done := 0; done < len(ids); done = len(s.tokens) {
		part := ids[done:min(len(ids), done+m.scratch.rows)]
		err := m.turn(ctx, func() error {
			if err := s.extend(ctx, part, len(ids), 0, route); err != nil {
				return err
			}
			for first := 0; first < len(part); first += headRows {
				rows = rows[:0]
				for r := first; r < min(first+headRows, len(part)); r++ {
					rows = append(rows, r)
				}
				logits, err := m.logitsOf(rows)
				if err != nil {
					return err
				}
				for i, r := range rows {
					if err := emit(done+r, logits[i*m.config.Vocabulary:][:m.config.Vocabulary]); err != nil {
						return err
					}
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Perplexity is how well a model predicts a text.
type Perplexity struct {
	Tokens     int     // predicted ones: all but the first
	NatsTotal  float64 // −Σ log p
	Windows    int
	Perplexity float64 // exp(NatsTotal / Tokens)
}

// mostWindow is the longest context a token is predicted from: longer ones change the figure little and cost more.
const mostWindow = 2048

// Perplexity scores ids in windows that overlap by half, so that every token but those of the first window is predicted from
// half a window of text at least. progress may be nil.
func (m *Model) Perplexity(ctx context.Context, ids []int32, progress func(done, total int)) (Perplexity, error) {
	var p Perplexity
	if len(ids) < 2 {
		return p, errors.New("the text has fewer than two tokens; there is nothing to predict")
	}
	window := min(mostWindow, m.config.MaxPositions)
	scored := 1 // ids below this one have been predicted, or are the first
	for start := 0; scored < len(ids); start += max(1, window/2) {
		part := ids[start:min(len(ids), start+window)]
		err := m.Logits(ctx, part, nil, func(position int, logits []float32) error {
			next := start + position + 1
			if next < scored || next >= len(ids) || position+1 >= len(part) {
				return nil
			}
			nats, err := surprise(logits, ids[next])
			if err != nil {
				return &NumberError{Layer: -1, Position: next - 1}
			}
			p.NatsTotal += nats
			p.Tokens++
			scored = next + 1
			return nil
		})
		if err != nil {
			return p, err
		}
		p.Windows++
		if progress != nil {
			progress(scored, len(ids))
		}
	}
	p.Perplexity = math.Exp(p.NatsTotal / float64(p.Tokens))
	return p, nil
}

// surprise is −log of the probability that logits give to id.
func surprise(logits []float32, id int32) (float64, error) {
	best, err := likeliest(logits)
	if err != nil {
		return 0, err
	}
	top, total := float64(logits[best]), 0.0
	for _, l := range logits {
		total += math.Exp(float64(l) - top)
	}
	return math.Log(total) - (float64(logits[id]) - top), nil
}
