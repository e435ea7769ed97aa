package engine

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"time"

	"colibri/backend/container"
)

// GuessMode says whether experts of the next layer are read before its router has chosen, when the disk has nothing else to do. The text is the
// same either way.
type GuessMode uint8

const (
	GuessMeasured GuessMode = iota // if that makes this machine faster with this model
	GuessOff
	GuessAlways // for measurements
)

// guesser names experts of the next sparse layer: those that its router would choose from the state that it would see if this layer's
// routed experts, and the next layer's attention, added nothing. The state changes little from layer to layer, so that most of the likeliest
// are right. It belongs to whoever has the model's turn.
type guesser struct {
	trial  guessTrial
	next   []int // by layer: the next sparse layer, 0 after the last
	scores []float32
	ranked []int32
	ids    []int32
}

func newGuesser(c *container.Config, mode GuessMode) guesser {
	g := guesser{trial: newGuessTrial(mode), next: make([]int, c.Layers)}
	following := 0
	for layer := c.Layers - 1; layer >= 0; layer-- {
		g.next[layer] = following
		if c.Sparse[layer] {
			following = layer
		}
	}
	return g
}

// guessNext names experts of the layer that follows to the store, while those of this layer are on their way.
func (m *Model) guessNext(layer, rows int) error {
	g := &m.guesser
	if !m.streams || rows > fewRows || layer >= len(g.next) || g.next[layer] == 0 || !g.trial.guesses() {
		return nil
	}
	next := g.next[layer]
	s, d, experts, w := &m.scratch, m.config.Hidden, m.config.MoE.Experts, &m.weights.layers[next]
	began := time.Now()
	defer func() { m.times.other += time.Since(began) }()
	state, scores := s.guessState[:rows*d], s.guessScores[:rows*experts]
	for i, x := range m.call.X {
		state[i] = x + m.call.Shared[i]
	}
	err := errors.Join(
		m.backend.Normalise(w.PostNorm, m.config.NormEpsilon, state, state, rows),
		m.backend.Linear(&w.Router, state, scores, rows),
	)
	if err != nil {
		return fmt.Errorf("guessing experts of layer %d: %w", next, err)
	}
	g.ids = g.ids[:0]
	for r := range rows {
		g.ids = append(g.ids, g.likeliest(scores[r*experts:][:experts], w.RouterBias, m.config)...)
	}
	m.experts.Guess(next, g.ids)
	return nil
}

// likeliest are the surer three quarters of a token's experts, the likeliest first (of 8 on a 4 GB random model under 600 MB: see
// residency.Store.Guess). Groups of experts are left out of account: a guess may be wrong.
func (g *guesser) likeliest(logits, bias []float32, c *container.Config) []int32 {
	g.scores = append(g.scores[:0], logits...)
	if bias != nil { // without one the logits are in the order of the scores
		scoresOf(g.scores, c.MoE.Scoring)
		for e := range g.scores {
			g.scores[e] += bias[e]
		}
	}
	g.ranked = g.ranked[:0]
	for e := range g.scores {
		g.ranked = append(g.ranked, int32(e))
	}
	slices.SortFunc(g.ranked, func(a, b int32) int { return cmp.Compare(g.scores[b], g.scores[a]) })
	return g.ranked[:(3*c.MoE.PerToken+3)/4]
}

// scoresOf turns logits into a router's scores.
func scoresOf(x []float32, scoring container.Scoring) {
	if scoring == container.Sigmoid {
		for i := range x {
			x[i] = float32(1 / (1 + math.Exp(-float64(x[i]))))
		}
		return
	}
	most, sum := slices.Max(x), 0.0
	for i := range x {
		e := math.Exp(float64(x[i] - most))
		x[i] = float32(e)
		sum += e
	}
	for i := range x {
		x[i] /= float32(sum)
	}
}

// guessTrial finds out whether guesses make tokens faster, by trying: it lets them be made for a few tokens and not for the next few, in an
// order in which a steady change of speed (a cache that fills) cancels out, and keeps them if that was clearly faster. What precision they
// have is judged by the store. It is a pure value.
type guessTrial struct {
	mode  GuessMode
	block int      // of the trial, guessBlocks when it is over
	left  int      // tokens until the block, or what follows the trial, ends
	tried [2]trial // without guesses, and with them
	keeps bool     // the outcome of the last trial
}

const (
	// A block is long against the ups and downs of single tokens, the trial short against an answer.
	guessBlockTokens = 8
	guessBlocks      = 8
	// guessesHold is how many tokens the outcome holds: machines and texts change.
	guessesHold = 1024
	// guessGain is the least gain that counts: differences of a few percent are noise, and a guess that gains nothing costs energy.
	guessGain = 1.03
)

func newGuessTrial(mode GuessMode) guessTrial { return guessTrial{mode: mode, left: guessBlockTokens} }

// guesses says whether guesses are to be made now.
func (t *guessTrial) guesses() bool {
	switch t.mode {
	case GuessOff:
		return false
	case GuessAlways:
		return true
	}
	if t.block == guessBlocks {
		return t.keeps
	}
	return t.inBlock()
}

// inBlock: the Thue-Morse sequence 0 1 1 0 1 0 0 1 cancels changes that are linear or quadratic in time.
func (t *guessTrial) inBlock() bool { return bits.OnesCount(uint(t.block))%2 == 1 }

// spent records a round of tokens.
func (t *guessTrial) spent(tokens int, d time.Duration) {
	if t.mode != GuessMeasured {
		return
	}
	if t.block < guessBlocks {
		i := 0
		if t.inBlock() {
			i = 1
		}
		t.tried[i].tokens += tokens
		t.tried[i].time += d
	}
	if t.left -= tokens; t.left > 0 {
		return
	}
	switch {
	case t.block == guessBlocks:
		*t = guessTrial{mode: t.mode, left: guessBlockTokens, keeps: t.keeps}
	case t.block == guessBlocks-1:
		t.block, t.left, t.keeps = guessBlocks, guessesHold, t.tried[1].perToken()*guessGain < t.tried[0].perToken()
	default:
		t.block, t.left = t.block+1, guessBlockTokens
	}
}
