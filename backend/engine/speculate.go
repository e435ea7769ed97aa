package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"colibri/backend/container"
)

// Speculative decoding with the model's own multi-token-prediction layer: it drafts a few tokens, the main layers compute them in one
// batch, and those that the sampler would have chosen anyway are kept. The sampler draws each token exactly as it
// would without drafts, from the main layers' logits and the random number that belongs to the token's place; a draft is accepted if it
// equals that choice. This is the rejection rule of speculative sampling with both draws made from one random number, so that
// not only the distribution but the text is the same as without. Drafting with the same random number makes it agree more often
// than a greedy draft would.

// mostDrafts bounds a draft.
const mostDrafts = 3

// drafting is what a session keeps for its drafts. The prediction layer's row of a position needs the main layers' output there
// and the token after it; the last rows are computed when the next draft is made.
type drafting struct {
	rows          int       // the prediction layer's cache holds this many positions
	hidden        []float32 // the main layers' normalised output of the positions after those, up to the session's last token
	stopped       bool      // the gap became too long to fill; the session drafts again once it begins anew
	ids, proposed []int32   // reused
}

// longestGap is the number of tokens generated without drafts after which a session drafts no more: filling the gap would cost
// more than drafts gain.
const longestGap = 256

// drafts says whether the session can draft.
func (s *Session) drafts() bool { return s.model.drafts && !s.draft.stopped }

// cutDrafting prepares for a cut of the session to its first n tokens, and returns how many of them can be kept: one fewer where the main
// layers' output at the last one would be needed and is gone.
func (s *Session) cutDrafting(n int) int {
	g, d := &s.draft, s.model.config.Hidden
	switch {
	case n == 0:
		*g = drafting{hidden: g.hidden[:0]}
	case !s.drafts():
	case n > g.rows:
		g.hidden = g.hidden[:(n-g.rows)*d]
	default:
		n--
		g.rows, g.hidden = n, g.hidden[:0]
	}
	return n
}

// predict runs the prediction layer for positions from start on: hidden holds the main layers' output at these
// positions (further ahead, the layer's own), ids the tokens after them. Afterwards scratch.x holds its output from the first wanted position on; those
// before it are cached.
func (m *Model) predict(ctx context.Context, cache *kvCache, start int, hidden []float32, ids []int32, wanted int) error {
	m.batch = append(m.batch[:0], segment{cache, start, ids, 0})
	rows, err := m.beginBatch(m.batch)
	if err != nil {
		return err
	}
	began := time.Now()
	s, d, w, epsilon := &m.scratch, m.config.Hidden, &m.weights.mtp, m.config.NormEpsilon
	copy(s.hidden, hidden)
	for r := range min(rows, len(s.selection.Counts)) {
		// A layer without an indexer of its own attends to every position: the last selection was made for other rows.
		s.selection.Counts[r] = -1
	}
	err = errors.Join(
		m.backend.Embed(&m.weights.embedding, m.ids, s.x[:rows*d]),
		m.backend.Normalise(w.embeddingNorm, epsilon, s.x[:rows*d], s.normed[:rows*d], rows),
		m.backend.Normalise(w.hiddenNorm, epsilon, s.hidden[:rows*d], s.shared[:rows*d], rows),
	)
	if err != nil {
		return fmt.Errorf("drafting: %w", err)
	}
	for r := range rows {
		copy(s.joined[2*r*d:][:d], s.normed[r*d:][:d])
		copy(s.joined[(2*r+1)*d:][:d], s.shared[r*d:][:d])
	}
	if err := m.backend.Linear(&w.join, s.joined[:2*rows*d], s.x[:rows*d], rows); err != nil {
		return fmt.Errorf("drafting: %w", err)
	}
	m.times.other += time.Since(began)
	return m.layer(ctx, m.config.Layers, m.batch, wanted, nil)
}

// catchUp computes the prediction layer's rows that are missing up to the session's last token, which next follows. The last
// row of scratch.x, whose number it returns, then predicts the token after next.
func (s *Session) catchUp(ctx context.Context, next int32) (row int, err error) {
	m, g, d := s.model, &s.draft, s.model.config.Hidden
	for g.rows < len(s.tokens) {
		n := min(len(s.tokens)-g.rows, m.scratch.rows)
		g.ids = append(g.ids[:0], s.tokens[g.rows+1:min(g.rows+1+n, len(s.tokens))]...)
		if len(g.ids) < n {
			g.ids = append(g.ids, next)
		}
		wanted := n
		if g.rows+n == len(s.tokens) {
			wanted--
		}
		if err := m.predict(ctx, &s.cache, g.rows, g.hidden[:n*d], g.ids, wanted); err != nil {
			return 0, err
		}
		g.rows += n
		g.hidden = append(g.hidden[:0], g.hidden[n*d:]...)
		row = n - 1
	}
	return row, nil
}

// draftPrompt computes the prediction layer's rows for the part of the prompt that forward has just computed, but for the last
// token's, whose successor is not known yet. It uses up the residual stream.
func (s *Session) draftPrompt(ctx context.Context, prompt []int32) error {
	m, g, d := s.model, &s.draft, s.model.config.Hidden
	rows := len(s.tokens) - g.rows
	hidden := m.scratch.hidden[:rows*d]
	if err := m.backend.Normalise(m.weights.finalNorm, m.config.NormEpsilon, m.scratch.x[:rows*d], hidden, rows); err != nil {
		return fmt.Errorf("drafting: %w", err)
	}
	known := min(rows, len(prompt)-1-g.rows)
	g.hidden = append(g.hidden[:0], hidden[known*d:]...)
	if known == 0 {
		return nil
	}
	if err := m.predict(ctx, &s.cache, g.rows, hidden[:known*d], prompt[g.rows+1:][:known], known); err != nil {
		return err
	}
	g.rows += known
	return nil
}

// propose drafts depth tokens to follow next, which is to follow the session's tokens. choose picks the i-th of them; the logits that it is
// given end where draftHead does. The result is valid until the next call.
func (s *Session) propose(ctx context.Context, next int32, depth int, choose func(logits []float32, i int) (int32, error)) ([]int32, error) {
	m, g, d := s.model, &s.draft, s.model.config.Hidden
	row, err := s.catchUp(ctx, next)
	if err != nil {
		return nil, err
	}
	g.proposed = g.proposed[:0]
	for i := range depth {
		if i > 0 {
			// Further ahead the layer's own output stands in for the main layers'. These rows are computed again when that is known.
			if err := m.predict(ctx, &s.cache, g.rows+i-1, m.scratch.headNorm[:d], g.proposed[i-1:], 0); err != nil {
				return nil, err
			}
			row = 0
		}
		logits, err := m.headOf(m.weights.mtp.headNorm, &m.weights.mtp.head, []int{row})
		if err != nil {
			return nil, err
		}
		id, err := choose(logits, i)
		if err != nil {
			return nil, err
		}
		g.proposed = append(g.proposed, id)
	}
	return g.proposed, nil
}

// draftHead is what of an output head drafts use: the first half of the vocabulary, where byte-pair encoding has the frequent tokens. A draft may be
// wrong, and the head is the dearest part of one. With a quarter the bundled model's stories lost no right draft, its answers about itself 6 of 85; of
// the words in these one is beyond the half. Small vocabularies stay whole, and those whose half is not whole blocks of scales.
func draftHead(head *container.Block) container.Block {
	const blockRows, least = 128, 4096
	half := *head
	if half.Rows /= 2; head.Rows < least || half.Rows%blockRows != 0 {
		return *head
	}
	half.Data, half.Scales = head.Data[:len(head.Data)/2], head.Scales[:len(head.Scales)/2]
	return half
}

// settle records the main layers' output of the first n rows whose logits were computed last, and cuts the session to n tokens more
// than before.
func (s *Session) settle(before, n int) {
	s.keep(before + n)
	if !s.drafts() {
		return
	}
	d := s.model.config.Hidden
	s.draft.hidden = append(s.draft.hidden, s.model.scratch.headNorm[:n*d]...)
	if len(s.draft.hidden) > longestGap*d {
		s.draft = drafting{stopped: true}
	}
}

// pace finds the depth of drafts that takes the least time per token on this machine, by trying: what a batch of two to four costs depends on
// processor, disk and how many experts it touches beside those of one token. It never changes a token.
type pace struct {
	tried [mostDrafts + 1]trial // by depth; 0: no drafts
	least int                   // the least depth to use
	queue []int                 // depths under trial, the next one first: they take turns, so that a disturbance meets all alike
	left  int                   // tokens until the next trials begin
}

type trial struct {
	tokens int
	time   time.Duration
}

const (
	// trialTokens is enough to average over the ups and downs of acceptance, and short against trialEvery.
	trialTokens = 24
	trialEvery  = 768
	// A depth that takes half as long again as another, each after hopelessAfter tokens, is tried no further.
	hopelessAfter = 8
	hopeless      = 1.5
)

func newPace(mode DraftMode) *pace {
	p := &pace{}
	if mode == DraftsAlways {
		p.least = 1
	}
	p.tryAll()
	return p
}

// tryAll begins trials of all depths, the likeliest to be best first: many answers are short.
func (p *pace) tryAll() {
	p.queue = p.queue[:0]
	for _, d := range [...]int{1, 0, 2, 3} {
		if d >= p.least {
			p.queue, p.tried[d] = append(p.queue, d), trial{}
		}
	}
}

// depth is how many tokens to draft next.
func (p *pace) depth() int {
	if len(p.queue) > 0 {
		return p.queue[0]
	}
	return p.best()
}

// best is the depth with the least time per token so far; untried ones do not count.
func (p *pace) best() int {
	best := p.least
	for d := p.least; d <= mostDrafts; d++ {
		if p.tried[d].tokens > 0 && (p.tried[best].tokens == 0 || p.tried[d].perToken() < p.tried[best].perToken()) {
			best = d
		}
	}
	return best
}

func (t trial) perToken() float64 { return float64(t.time) / float64(t.tokens) }

// spent records a round: its depth, the tokens it gave, the time it took.
func (p *pace) spent(depth, tokens int, d time.Duration) {
	t := &p.tried[depth]
	if t.tokens >= 4*trialTokens {
		// Older rounds count less and less: machines get warm, caches fill, texts change.
		t.tokens, t.time = t.tokens*3/4, t.time*3/4
	}
	t.tokens += tokens
	t.time += d
	if len(p.queue) == 0 {
		if p.left -= tokens; p.left <= 0 {
			p.tryAll()
		}
		return
	}
	if depth != p.queue[0] {
		return // the answer had no room for as many; see answer.depth
	}
	copy(p.queue, p.queue[1:])
	p.queue = p.queue[:len(p.queue)-1]
	if best := p.tried[p.best()]; t.tokens < trialTokens && (min(t.tokens, best.tokens) < hopelessAfter || t.perToken() < hopeless*best.perToken()) {
		p.queue = append(p.queue, depth)
	}
	if len(p.queue) == 0 {
		p.left = trialEvery
	}
}
