package residency

import (
	"testing"

	"colibri/backend/telemetry"
)

// settle waits until no read is queued or under way.
func settle(s *Store) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.atWork) > 0 || s.queue.waiting() > 0 {
		s.changed.Wait()
	}
}

func TestGoodGuessesBecomeHits(t *testing.T) {
	c := generate(t, testShape{layers: 2, experts: 64})
	recorder := telemetry.New(2, 64)
	s, _ := openStore(t, c, Options{LimitBytes: 8 * testSlotBytes, LeastSlots: 2, Readers: 2, Guess: true, Telemetry: recorder})
	for e := range int32(60) {
		s.Guess(1, []int32{e})
		settle(s)
		fetchAll(t, s, c, 1, e)
	}
	n := recorder.Snapshot()
	if n.GuessedReads < 55 || n.GuessedUsed < 55 || n.Hits < 55 {
		t.Errorf("%d guessed, %d used, %d hits", n.GuessedReads, n.GuessedUsed, n.Hits)
	}
	if s.guessing.muted != 0 {
		t.Error("good guesses were switched off")
	}
}

func TestBadGuessesAreSwitchedOff(t *testing.T) {
	c := generate(t, testShape{layers: 2, experts: 64})
	recorder := telemetry.New(2, 64)
	s, _ := openStore(t, c, Options{LimitBytes: 8 * testSlotBytes, Readers: 2, Guess: true, Telemetry: recorder})
	for e := range int32(300) {
		s.Guess(1, []int32{32 + e%32})
		settle(s)
		fetchAll(t, s, c, 1, e%32)
	}
	if n := recorder.Snapshot(); n.GuessedReads == 0 || n.GuessedReads > guessOutcomes+8 {
		t.Errorf("%d useless reads", n.GuessedReads)
	}
}

func TestGuessesAreOffByDefaultAndGiveWay(t *testing.T) {
	c := generate(t, testShape{layers: 3, experts: 64})
	recorder := telemetry.New(3, 64)
	s, _ := openStore(t, c, Options{LimitBytes: 8 * testSlotBytes, Telemetry: recorder})
	s.Guess(1, []int32{1, 2, 3})
	settle(s)
	if n := recorder.Snapshot(); n.Reads != 0 {
		t.Errorf("%d reads", n.Reads)
	}

	// While a demand read is under way guesses wait; those whose layer has its turn meanwhile are forgotten.
	gate := &gatedFiles{gate: make(chan struct{})}
	s, _ = openStore(t, c, Options{LimitBytes: 8 * testSlotBytes, Readers: 4, Guess: true, Telemetry: recorder, open: gate.open})
	l, err := s.Acquire(t.Context(), 1, []int32{9})
	if err != nil {
		t.Fatal(err)
	}
	s.Guess(2, []int32{10})
	s.Guess(1, []int32{11}) // the last word counts
	s.mu.Lock()
	if n := s.queue.waiting() + len(s.atWork); n != 1 {
		t.Errorf("%d reads instead of the one that is demanded", n)
	}
	s.mu.Unlock()
	close(gate.gate)
	if _, err := l.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.Release()
	settle(s)
	fetchAll(t, s, c, 1, 11)
	if n := recorder.Snapshot(); n.Reads != 2 || n.GuessedReads != 1 || n.GuessedUsed != 1 {
		t.Errorf("%d reads, %d guessed, %d used", n.Reads, n.GuessedReads, n.GuessedUsed)
	}
	s.Guess(2, []int32{1, 2, 3, 4, 5})
	s.mu.Lock()
	if n := s.queue.waiting() + len(s.atWork); n > guessesAtOnce {
		t.Errorf("%d guesses are read at the same time", n)
	}
	s.mu.Unlock()
	fetchAll(t, s, c, 2, 60)
	if len(s.guessing.named) > 0 {
		t.Error("names outlive the turn of their layer")
	}
	settle(s)
	if err := s.Resize(t.Context(), 1*testSlotBytes); err != nil {
		t.Fatal(err)
	}
	s.Guess(5, []int32{99}) // nonsense is ignored
}
