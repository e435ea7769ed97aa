package residency

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"

	"colibri/backend/telemetry"
)

// sweepAll sweeps over experts, checks every byte, and returns them in the order they came.
func sweepAll(t testing.TB, s *Store, c *testContainer, layer int, ids ...int32) []int32 {
	t.Helper()
	w, err := s.Sweep(layer, ids)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Release()
	var got []int32
	for {
		batch, err := w.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(batch) == 0 {
			return got
		}
		for _, lease := range batch {
			if err := c.verify(layer, lease); err != nil {
				t.Error(err)
			}
			got = append(got, lease.Expert)
		}
	}
}

func TestASweepBringsEveryExpertOnceInDiskOrder(t *testing.T) {
	for _, published := range []bool{false, true} {
		for _, slots := range []int64{1, 2, 5, 64} {
			c := generate(t, testShape{layers: 2, experts: 40, published: published})
			log := &readLog{}
			s, _ := openStore(t, c, Options{LimitBytes: slots*testSlotBytes + 1<<18, Readers: 1, open: log.open})
			ids := make([]int32, 40)
			for i, e := range rand.New(rand.NewPCG(3, 4)).Perm(40) {
				ids[i] = int32(e)
			}
			got := sweepAll(t, s, c, 1, ids...)
			slices.Sort(got)
			for e := range int32(40) {
				if got[e] != e {
					t.Fatalf("%d slots: %v", slots, got)
				}
			}
			if !slices.IsSorted(log.offsets) {
				t.Errorf("%d slots: read at %v", slots, log.offsets)
			}
		}
	}
}

// readLog notes where reads begin.
type readLog struct {
	mu      sync.Mutex
	offsets []int64
}

func (r *readLog) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.offsets)
}

func (r *readLog) open(path string, direct bool) (rawFile, error) {
	f, err := openSystem(path, direct)
	return &loggedFile{f, r}, err
}

type loggedFile struct {
	rawFile
	log *readLog
}

func (f *loggedFile) Pread(p []byte, offset int64) (int, error) {
	f.log.mu.Lock()
	f.log.offsets = append(f.log.offsets, offset)
	f.log.mu.Unlock()
	return f.rawFile.Pread(p, offset)
}

func TestASweepLeavesTheCacheToDecoding(t *testing.T) {
	c := generate(t, testShape{layers: 4, experts: 32})
	recorder := telemetry.New(4, 32)
	// Four readers would like eight reads under way and as many experts in use; the cache lends an eighth of its slots.
	s, _ := openStore(t, c, Options{LimitBytes: 32 * testSlotBytes, LeastSlots: 4, Readers: 4, Telemetry: recorder})
	// Decoding has warmed the cache: 32 experts, each used several times.
	for range 3 {
		for e := range int32(16) {
			fetchAll(t, s, c, 1, e)
			fetchAll(t, s, c, 2, e)
		}
	}
	warm := recorder.Snapshot()
	all := make([]int32, 32)
	for i := range all {
		all[i] = int32(i)
	}
	for range 2 {
		for layer := 1; layer < 4; layer++ {
			sweepAll(t, s, c, layer, all...)
		}
	}
	swept := recorder.Snapshot()
	if swept.SweptReads == 0 || swept.Reads-warm.Reads != swept.SweptReads {
		t.Errorf("%d reads, %d of them swept", swept.Reads-warm.Reads, swept.SweptReads)
	}
	lost := 0
	for e := range int32(16) {
		for layer := 1; layer < 3; layer++ {
			if s.slots[s.shape.key(layer, e)] == nil {
				lost++
			}
		}
	}
	if lost > 32/8 {
		t.Errorf("192 swept experts cost decoding %d of 32 cached ones", lost)
	}
}

func TestDemandComesBeforeReadAhead(t *testing.T) {
	c := generate(t, testShape{layers: 3, experts: 16})
	files := &gatedFiles{gate: make(chan struct{})}
	log := &readLog{}
	s, _ := openStore(t, c, Options{LimitBytes: 32 * testSlotBytes, Readers: 1, open: func(path string, direct bool) (rawFile, error) {
		f, err := files.open(path, direct)
		return &loggedFile{f, log}, err
	}})
	// A sweep has the reader at work on its first expert and the second queued.
	w, err := s.Sweep(1, []int32{0, 1, 2, 3})
	if err != nil {
		t.Fatal(err)
	}
	swept := make(chan error)
	go func() {
		_, err := w.Next(t.Context())
		swept <- err
	}()
	for log.count() == 0 {
		runtime.Gosched()
	}
	// Decoding wants another expert, and the one that the sweep has queued.
	other, err := s.Acquire(t.Context(), 2, []int32{9})
	if err != nil {
		t.Fatal(err)
	}
	shared, err := s.Acquire(t.Context(), 1, []int32{1})
	if err != nil {
		t.Fatal(err)
	}
	close(files.gate)
	if err := <-swept; err != nil {
		t.Fatal(err)
	}
	for _, l := range []*Leases{other, shared} {
		if _, err := l.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
		l.Release()
	}
	w.Release()
	settle(s)
	at := func(layer, expert int) int64 { return c.records[layer*1000+expert].Reads[0].Offset }
	if want := []int64{at(1, 0), at(2, 9), at(1, 1)}; !slices.Equal(log.offsets[:3], want) {
		t.Errorf("read at %v, want %v first", log.offsets, want)
	}
}

func TestAQueuedReadAheadBecomesUrgentWhenDecodingWantsIt(t *testing.T) {
	var q queue
	first, second, wanted := &load{urgency: sweep}, &load{urgency: sweep}, &load{urgency: guess}
	for _, l := range []*load{first, second, wanted} {
		q.push(l)
	}
	q.raise(second, demand)
	q.raise(wanted, sweep)
	q.raise(wanted, guess) // never lowered
	for i, want := range []*load{second, first, wanted, nil} {
		if got := q.pop(); got != want {
			t.Errorf("place %d", i)
		}
	}
}

func TestASweepSharesWithDecoding(t *testing.T) {
	c := generate(t, testShape{layers: 3, experts: 32})
	s, _ := openStore(t, c, Options{LimitBytes: 5 * testSlotBytes, LeastSlots: 2, Readers: 2})
	var workers sync.WaitGroup
	for worker := range 4 {
		workers.Go(func() {
			random := rand.New(rand.NewPCG(5, uint64(worker)))
			for range 30 {
				layer := 1 + random.IntN(2)
				if worker%2 == 0 {
					l, err := s.Acquire(t.Context(), layer, []int32{int32(random.IntN(32)), int32(random.IntN(32))})
					if err != nil {
						t.Error(err)
						return
					}
					for more := l.Ready(); ; {
						for _, lease := range more {
							if err := c.verify(layer, lease); err != nil {
								t.Error(err)
							}
						}
						if more, err = l.Next(t.Context()); err != nil || len(more) == 0 {
							break
						}
					}
					l.Release()
				} else {
					ids := make([]int32, 20)
					for i := range ids {
						ids[i] = int32(random.IntN(32))
					}
					sweepAll(t, s, c, layer, ids...)
				}
			}
		})
	}
	workers.Wait()
}

func TestASweepEndsWithAReadErrorAndWithClose(t *testing.T) {
	c := generate(t, testShape{layers: 2, experts: 8})
	s, _ := openStore(t, c, Options{LimitBytes: 8 * testSlotBytes})
	w, err := s.Sweep(1, []int32{0, 1, 2})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.Release()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if w, err = s.Sweep(1, []int32{3}); err == nil {
		_, err = w.Next(t.Context())
	}
	if !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}
