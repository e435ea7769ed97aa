package residency

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"colibri/backend/telemetry"
)

// faultyFiles is a file layer that fails as it is told. Its fields may be changed while files are open, under mu.
type faultyFiles struct {
	mu          sync.Mutex
	failAt      map[int64]error // reads that begin at this offset fail …
	failTimes   int             // … this many times; negative: always
	shortReads  int             // no read returns more than this many bytes (0: no bound)
	interrupt   bool            // every other call is interrupted
	noDirect    bool            // opening for direct reads is refused
	lateEINVAL  bool            // direct opening works, direct reads do not
	unplugged   bool            // everything fails
	calls       int
	slow        bool // every read yields a few hundred times first
	openedCount int
	openNow     int
}

func (f *faultyFiles) open(path string, direct bool) (rawFile, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.unplugged {
		return nil, &os.PathError{Op: "open", Path: path, Err: syscall.ENOENT}
	}
	if direct && f.noDirect {
		return nil, errNotDirect
	}
	raw, err := openSystem(path, direct)
	if err == nil {
		f.openedCount++
		f.openNow++
	}
	return &faultyFile{raw, f, direct}, err
}

type faultyFile struct {
	rawFile
	f      *faultyFiles
	direct bool
}

func (r *faultyFile) Pread(p []byte, offset int64) (int, error) {
	f := r.f
	f.mu.Lock()
	f.calls++
	slow, short := f.slow, f.shortReads
	var err error
	switch {
	case f.unplugged:
		err = syscall.EIO
	case r.direct && f.lateEINVAL:
		err = syscall.EINVAL
	case f.interrupt && f.calls%2 == 0:
		err = syscall.EINTR
	case f.failAt[offset] != nil && f.failTimes != 0:
		f.failTimes--
		err = f.failAt[offset]
	}
	f.mu.Unlock()
	if err != nil {
		return 0, err
	}
	if slow {
		for range 300 {
			runtime.Gosched()
		}
	}
	n, err := r.rawFile.Pread(p, offset)
	if short > 0 {
		n = min(n, short) // the rest arrived, but nobody may know
		clear(p[max(n, 0):])
	}
	return n, err
}

func (r *faultyFile) Close() error {
	r.f.mu.Lock()
	r.f.openNow--
	r.f.mu.Unlock()
	return r.rawFile.Close()
}

func (f *faultyFiles) set(change func(*faultyFiles)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

// tryFetch is fetchAll for requests that may fail; what arrives is checked.
func tryFetch(ctx context.Context, s *Store, c *testContainer, layer int, ids ...int32) (got int, err error) {
	return tryFetchInto(ctx, s, new(Leases), c, layer, ids...)
}

func tryFetchInto(ctx context.Context, s *Store, l *Leases, c *testContainer, layer int, ids ...int32) (got int, err error) {
	if err := s.AcquireInto(ctx, l, layer, ids); err != nil {
		return 0, err
	}
	wanted := slices.Clone(ids)
	defer l.Release()
	more := l.Ready()
	for {
		for _, lease := range more {
			if err := c.verify(layer, lease); err != nil {
				return got, fmt.Errorf("WRONG BYTES: %w", err)
			}
			if !slices.Contains(wanted, lease.Expert) {
				return got, fmt.Errorf("expert %d came twice, or for an earlier request", lease.Expert)
			}
			wanted = slices.DeleteFunc(wanted, func(e int32) bool { return e == lease.Expert })
			got++
		}
		var next error
		more, next = l.Next(ctx)
		err = errors.Join(err, next)
		if ctx.Err() != nil {
			return got, ctx.Err()
		}
		if next == nil && len(more) == 0 {
			return got, err
		}
	}
}

func TestShortReadsInterruptsAndFileSystemsWithoutDirectReads(t *testing.T) {
	for name, change := range map[string]func(*faultyFiles){
		"short":       func(f *faultyFiles) { f.shortReads = 4096 },
		"odd short":   func(f *faultyFiles) { f.shortReads = 5000 },
		"interrupted": func(f *faultyFiles) { f.interrupt = true },
		"no O_DIRECT": func(f *faultyFiles) { f.noDirect = true },
		"late EINVAL": func(f *faultyFiles) { f.lateEINVAL = true },
		"all":         func(f *faultyFiles) { f.shortReads, f.interrupt, f.lateEINVAL = 777, true, true },
	} {
		for _, published := range []bool{false, true} {
			t.Run(fmt.Sprint(name, published), func(t *testing.T) {
				files := &faultyFiles{}
				change(files)
				recorder := telemetry.New(2, 8)
				c := generate(t, testShape{layers: 2, experts: 8, published: published})
				s, _ := openStore(t, c, Options{LimitBytes: 8*testSlotBytes + 1<<20, Readers: 2, open: files.open, Telemetry: recorder})
				for e := range int32(8) {
					if got, err := tryFetch(t.Context(), s, c, 1, e); got != 1 || err != nil {
						t.Errorf("expert %d: %v", e, err)
					}
				}
				n := recorder.Snapshot()
				if buffered := files.noDirect || files.lateEINVAL; buffered != (len(n.Notices) == 1 && strings.Contains(n.Notices[0], "page cache")) {
					t.Errorf("notices: %q", n.Notices)
				}
				if n.FailedReads != 0 {
					t.Errorf("%d reads failed", n.FailedReads)
				}
			})
		}
	}
}

func TestOneUnreadableExpertFailsOnlyWhoNeedsIt(t *testing.T) {
	c := generate(t, testShape{layers: 2, experts: 8})
	bad := c.records[1003].Reads[0].Offset
	files := &faultyFiles{failAt: map[int64]error{bad: syscall.EIO}, failTimes: -1}
	recorder := telemetry.New(2, 8)
	s, _ := openStore(t, c, Options{LimitBytes: 8 * testSlotBytes, Readers: 2, open: files.open, Telemetry: recorder})
	got, err := tryFetch(t.Context(), s, c, 1, 1, 2, 3, 4)
	if got != 3 || !errors.Is(err, syscall.EIO) || !strings.Contains(err.Error(), "expert 3 of layer 1") || !strings.Contains(err.Error(), c.Files[0]) {
		t.Errorf("got %d, %v", got, err)
	}
	if got, err := tryFetch(t.Context(), s, c, 1, 1, 2, 4, 5); got != 4 || err != nil {
		t.Errorf("the others: got %d, %v", got, err)
	}
	if n := recorder.Snapshot(); n.FailedReads != 1 || n.Retries != 1 || n.LoadingSlots != 0 || n.LeasedSlots != 0 {
		t.Errorf("%+v", n)
	}
	// One failure is not the end: it is read again.
	files.set(func(f *faultyFiles) { f.failTimes = 1 })
	if got, err := tryFetch(t.Context(), s, c, 1, 3); got != 1 || err != nil {
		t.Errorf("after one failure: got %d, %v", got, err)
	}
}

func TestADiskThatIsUnpluggedAndBack(t *testing.T) {
	c := generate(t, testShape{layers: 2, experts: 8})
	files := &faultyFiles{}
	s, _ := openStore(t, c, Options{LimitBytes: 4 * testSlotBytes, Readers: 3, open: files.open})
	if _, err := tryFetch(t.Context(), s, c, 1, 0, 1); err != nil {
		t.Fatal(err)
	}
	files.set(func(f *faultyFiles) { f.unplugged = true })
	for range 3 {
		if _, err := tryFetch(t.Context(), s, c, 1, 4, 5); err == nil {
			t.Fatal("reads from a disk that is not there")
		}
	}
	if hits, err := tryFetch(t.Context(), s, c, 1, 0, 1); hits != 2 || err != nil {
		t.Errorf("what is in memory needs no disk: %d, %v", hits, err)
	}
	files.set(func(f *faultyFiles) { f.unplugged = false })
	if got, err := tryFetch(t.Context(), s, c, 1, 4, 5); got != 2 || err != nil {
		t.Errorf("after the disk came back: %d, %v", got, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if files.openNow != 0 {
		t.Errorf("%d descriptors left open", files.openNow)
	}
}

func TestAFileThatChangesUnderTheModel(t *testing.T) {
	for name, test := range map[string]struct {
		change func(path string) error
		want   string
	}{
		"cut":          {func(p string) error { return os.Truncate(p, 3*testSlotBytes+100) }, "it was cut since the model was loaded"},
		"cut, earlier": {func(p string) error { return os.Truncate(p, 7*testSlotBytes) }, "has changed since the model was loaded"},
		"written over": {func(p string) error {
			if err := os.WriteFile(p, make([]byte, 8*testSlotBytes), 0o600); err != nil {
				return err
			}
			return os.Chtimes(p, fixedTime, fixedTime)
		}, "has changed since the model was loaded"},
	} {
		t.Run(name, func(t *testing.T) {
			c := generate(t, testShape{layers: 2, experts: 8})
			s, _ := openStore(t, c, Options{LimitBytes: 8 * testSlotBytes})
			fetchAll(t, s, c, 1, 0)
			if err := test.change(c.Files[0]); err != nil {
				t.Fatal(err)
			}
			expert := int32(1)
			if name == "cut" {
				expert = 3 // its record ends beyond the cut
			}
			if _, err := tryFetch(t.Context(), s, c, 1, expert); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Error(err)
			}
			fetchAll(t, s, c, 1, 0) // what was read before is as it was
		})
	}
	t.Run("replaced", func(t *testing.T) {
		// A file renamed over ours leaves our descriptor on the old one: the bytes stay the model's.
		c := generate(t, testShape{layers: 2, experts: 8})
		files := &faultyFiles{}
		s, _ := openStore(t, c, Options{LimitBytes: 8 * testSlotBytes, open: files.open})
		other := c.Files[0] + ".new"
		if err := errors.Join(os.WriteFile(other, make([]byte, 8*testSlotBytes), 0o600), os.Chtimes(other, fixedTime, fixedTime), os.Rename(other, c.Files[0])); err != nil {
			t.Fatal(err)
		}
		fetchAll(t, s, c, 1, 2)
		// After a failure the path is opened again, and the stranger is noticed.
		files.set(func(f *faultyFiles) {
			f.failAt, f.failTimes = map[int64]error{c.records[1005].Reads[0].Offset: io.ErrNoProgress}, 1
		})
		if _, err := tryFetch(t.Context(), s, c, 1, 5); err == nil || !strings.Contains(err.Error(), "has changed since the model was loaded") {
			t.Error(err)
		}
	})
	t.Run("damaged", func(t *testing.T) {
		// One flipped bit that was there before opening: only the checksum can tell.
		c := generate(t, testShape{layers: 2, experts: 8})
		content, err := os.ReadFile(c.Files[0])
		if err != nil {
			t.Fatal(err)
		}
		content[c.records[1006].Reads[0].Offset+777] ^= 4
		if err := os.WriteFile(c.Files[0], content, 0o600); err != nil {
			t.Fatal(err)
		}
		s, _ := openStore(t, c, Options{LimitBytes: 8 * testSlotBytes})
		if _, err := tryFetch(t.Context(), s, c, 1, 6); err == nil || !strings.Contains(err.Error(), "expert 6 of layer 1") || !strings.Contains(err.Error(), "damaged") {
			t.Error(err)
		}
	})
}

func TestRandomOperations(t *testing.T) {
	for _, capacity := range []int64{1, 3, 8, 40} {
		t.Run(fmt.Sprint(capacity), func(t *testing.T) { randomOperations(t, capacity, 2500) })
	}
}

// randomOperations runs operations of acquire, release, cancel, sweep, resize and pressure from several goroutines over files that
// fail, and checks that nothing is lost: every byte that arrives is right, the limit holds at every moment, all
// leases come back and everything is closed. Four capacities make 10,000 operations.
func randomOperations(t *testing.T, capacity int64, operations int) {
	const workers, layers, experts = 5, 3, 16
	c := generate(t, testShape{layers: layers, experts: experts, published: capacity == 3, files: 2})
	files := &faultyFiles{failAt: map[int64]error{c.records[1007].Reads[0].Offset: syscall.EIO}, failTimes: -1, interrupt: true, slow: true}
	recorder := telemetry.New(layers, experts)
	var staging int64
	if capacity == 3 {
		staging = 1 << 18
	}
	limit := capacity*testSlotBytes + staging
	s, g := openStore(t, c, Options{LimitBytes: limit, Readers: 3, Guess: capacity == 8, open: files.open, Telemetry: recorder})
	var group sync.WaitGroup
	for worker := range workers {
		seed := rand.NewPCG(uint64(capacity), uint64(worker))
		t.Logf("worker %d: seed %d, %d", worker, capacity, worker)
		group.Go(func() {
			random := rand.New(seed)
			var leases Leases // one request after the other, whatever became of the one before
			for range operations / workers {
				randomOperation(t, s, &leases, c, random, limit, staging)
			}
		})
	}
	group.Wait()
	settle(s) // reads that nobody waits for any more may still be under way
	n := recorder.Snapshot()
	if n.LeasedSlots != 0 || n.LoadingSlots != 0 {
		t.Errorf("left: %d leased, %d loading", n.LeasedSlots, n.LoadingSlots)
	}
	if g.peak > limit || n.PeakBytes > limit {
		t.Errorf("peak %d (telemetry: %d) above the limit of %d", g.peak, n.PeakBytes, limit)
	}
	if len(s.turns) != 0 || s.leased != 0 {
		t.Errorf("%d in line, %d leased", len(s.turns), s.leased)
	}
	g.check(t, false)
}

func randomOperation(t *testing.T, s *Store, l *Leases, c *testContainer, random *rand.Rand, limit, staging int64) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	layer := 1 + random.IntN(2)
	tolerable := func(err error) bool {
		return err == nil || errors.Is(err, syscall.EIO) || errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "raise the memory limit")
	}
	ids := make([]int32, 1+random.IntN(4))
	for i := range ids {
		ids[i] = int32(random.IntN(16))
	}
	if random.IntN(4) == 0 {
		go cancel()
	}
	if random.IntN(3) == 0 {
		s.Guess(layer, ids[:1])
	}
	switch op := random.IntN(10); {
	case op < 5:
		if _, err := tryFetchInto(ctx, s, l, c, layer, ids...); !tolerable(err) {
			t.Error(err)
		}
	case op < 6: // leave without having waited for anything
		err := s.AcquireInto(ctx, l, layer, ids)
		if !tolerable(err) {
			t.Error(err)
		}
		if err == nil {
			l.Release()
			l.Release()
		}
	case op < 9:
		w, err := s.Sweep(layer, ids)
		if err != nil {
			t.Error(err)
			return
		}
		for {
			batch, err := w.Next(ctx)
			if !tolerable(err) {
				t.Error(err)
			}
			for _, lease := range batch {
				if err := c.verify(layer, lease); err != nil {
					t.Error("WRONG BYTES:", err)
				}
			}
			if ctx.Err() != nil || len(batch) == 0 && err == nil || random.IntN(20) == 0 {
				break
			}
		}
		w.Release()
	default: // pressure
		to := staging + testSlotBytes + random.Int64N(limit-staging-testSlotBytes+1)
		if err := s.Resize(ctx, to); !tolerable(err) {
			t.Error(err)
		}
	}
}

func TestNothingIsLeftAfterAThousandModels(t *testing.T) {
	c := generate(t, testShape{layers: 2, experts: 8, published: true})
	before, descriptors := runtime.NumGoroutine(), openDescriptors(t)
	for i := range 1000 {
		g := newLedger()
		s, err := Open(c.Source, g, g.options(Options{LimitBytes: 4*testSlotBytes + 1<<20, Readers: 2}))
		if err != nil {
			t.Fatal(err)
		}
		if i%3 > 0 { // some are closed without use, some with reads under way
			l, err := s.Acquire(t.Context(), 1, []int32{int32(i % 8)})
			if err != nil {
				t.Fatal(err)
			}
			if i%3 == 1 {
				if _, err := l.Next(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			l.Release()
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		g.check(t, true)
	}
	for range 1_000_000 { // a goroutine that has said it is done may still be on its way out
		if runtime.NumGoroutine() <= before {
			break
		}
		runtime.Gosched()
	}
	if after := runtime.NumGoroutine(); after > before {
		t.Errorf("%d goroutines before, %d after", before, after)
	}
	if after := openDescriptors(t); after != descriptors {
		t.Errorf("%d descriptors before, %d after", descriptors, after)
	}
}

func openDescriptors(t *testing.T) int {
	dir := "/dev/fd" // on macOS; on Linux it leads to /proc/self/fd
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// fixedTime is a modification time that no file of a test was written at.
var fixedTime = time.Unix(1_000_000_000, 0)
