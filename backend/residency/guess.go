package residency

import "slices"

// guessing keeps the score of speculative reads and switches them off when they do not pay. A wrong guess costs a slot, disk time
// and memory bandwidth: published gains range from +14 % to −38 %, so nothing is believed that was not measured here and now: precision
// here, time by whoever asks (engine.GuessMeasured).
//
// Measured on a 4 GB container of random weights under 600 MB (two cores, a disk of 0.6 to 0.9 GB/s), the next layer's router on the state
// before this layer's experts, blocks of 8 tokens with and without in turn, 64 tokens each: the 6 likeliest of 8, two at once, made a
// token 15 and 17 % slower to produce without them; the 4 likeliest, two at once, 9 to 18 % (six times); all 8, two at once, 7 to 28 %
// (six times); 4 at once 7 and 8 %; 6, three at once, −1 and 1 %; all 8, one at a time, 6 and 13 %. 92 % of what was read was used.
// Waiting until the disk is idle is what makes the difference: all 8 queued at once were a loss.
type guessing struct {
	wanted bool  // Options.Guess
	named  []int // keys of a coming layer that are not read yet, the likeliest first
	open   []int // keys whose layers have not had their turn yet; their slots are marked as guessed
	used   int   // outcomes since the last judgement
	wasted int
	muted  int // calls of Guess still to be ignored
}

const (
	// guessOutcomes is the number of outcomes after which guesses are judged.
	guessOutcomes = 32
	// guessPrecision: at least this share must have been used. A wasted read delays demand reads by up to one read; a used one saves
	// at most one, and only where the disk would have idled.
	guessPrecision = 0.6
	// guessesAtOnce is how many guesses are read at the same time: enough to use a disk, few enough to be out of the way soon.
	guessesAtOnce = 2
	// guessMuted is how many guesses are ignored after a bad judgement, before another trial.
	guessMuted = 1000
)

func (g *guessing) outcome(used bool) {
	if used {
		g.used++
	} else {
		g.wasted++
	}
	if n := g.used + g.wasted; n >= guessOutcomes {
		if float64(g.used) < guessPrecision*float64(n) {
			g.muted = guessMuted
		}
		g.used, g.wasted = 0, 0
	}
}

// judge closes the guesses about a layer whose turn it is: those that are still marked were not asked for.
func (s *Store) judge(layer int) {
	g := &s.guessing
	of := func(key int) bool { return key/s.shape.Experts == layer }
	g.named = slices.DeleteFunc(g.named, of)
	g.open = slices.DeleteFunc(g.open, func(key int) bool {
		if !of(key) {
			return false
		}
		if t := s.slots[key]; t != nil && t.guessed {
			t.guessed = false
			g.outcome(false)
		}
		return true
	})
}

// Guess names experts of a layer that will probably be asked for soon, the likeliest first; earlier names are forgotten. They are read only
// if the store was opened with Guess, if guesses have been good lately, while no other read waits or is under way, and into
// slots that nobody uses. Nothing is promised and nothing is returned: Acquire finds what is there.
func (s *Store) Guess(layer int, experts []int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := &s.guessing
	if !g.wanted || s.closed {
		return
	}
	g.named = g.named[:0]
	if g.muted > 0 {
		g.muted--
		return
	}
	keys, err := s.keys(nil, layer, experts)
	if err != nil {
		return // a guess may be wrong in this way too
	}
	g.named = append(g.named, keys...)
	s.speculate()
	s.report()
}

// speculate begins reads of what was named, if the disk has nothing else to do. It is called when there are names and when a read has
// ended. The caller holds mu.
func (s *Store) speculate() {
	g := &s.guessing
	for len(g.named) > 0 && !s.closed && len(s.turns) == 0 && s.idleFor(guessesAtOnce) {
		key := g.named[0]
		g.named = g.named[1:]
		if s.slots[key] != nil {
			continue
		}
		c := s.classOf[key]
		if s.provide(c, 1); len(c.free) == 0 && s.victim(c, unguessed) == nil {
			return
		}
		t := s.take(key)
		t.guessed = true
		g.open = append(g.open, key)
		s.read(t, guess)
	}
}

// idleFor says whether nothing but guesses is read or waits to be read, and fewer than n of them.
func (s *Store) idleFor(n int) bool {
	for _, l := range s.atWork {
		if l.urgency < guess {
			return false
		}
	}
	waiting := s.queue.waiting()
	return waiting == len(s.queue[guess]) && waiting+len(s.atWork) < n
}
