package residency

import (
	"testing"

	"colibri/backend/telemetry"
)

// settle waits until no read is queued or under way.
func settle(s *Store) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.atWork > 0 || s.queue.waiting() > 0 {
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
	c := generate(t, testShape{layers: 2, experts: 64})
	recorder := telemetry.New(2, 64)
	s, _ := openStore(t, c, Options{LimitBytes: 8 * testSlotBytes, Telemetry: recorder})
	s.Guess(1, []int32{1, 2, 3})
	settle(s)
	if n := recorder.Snapshot(); n.Reads != 0 {
		t.Errorf("%d reads", n.Reads)
	}

	// While a demand read is under way there are no guesses; a guess that is wanted meanwhile is read once.
	gate := &gatedFiles{gate: make(chan struct{})}
	s, _ = openStore(t, c, Options{LimitBytes: 8 * testSlotBytes, Readers: 1, Guess: true, Telemetry: recorder, open: gate.open})
	l, err := s.Acquire(t.Context(), 1, []int32{9})
	if err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	for s.atWork == 0 {
		s.mu.Unlock()
		s.mu.Lock()
	}
	s.mu.Unlock()
	s.Guess(1, []int32{10})
	close(gate.gate)
	if _, err := l.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.Release()
	settle(s)
	if n := recorder.Snapshot(); n.Reads != 1 {
		t.Errorf("%d reads", n.Reads)
	}
	s.Guess(1, []int32{11})
	fetchAll(t, s, c, 1, 11)
	settle(s)
	if n := recorder.Snapshot(); n.Reads != 2 || n.GuessedReads != 1 || n.GuessedUsed != 1 {
		t.Errorf("%d reads, %d guessed, %d used", n.Reads, n.GuessedReads, n.GuessedUsed)
	}
	if err := s.Resize(t.Context(), 1*testSlotBytes); err != nil {
		t.Fatal(err)
	}
	s.Guess(5, []int32{99}) // nonsense is ignored
}
