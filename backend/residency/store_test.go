package residency

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"colibri/backend/telemetry"
)

// ledger is a Registrar and an allocator that know what is mapped and registered, and complain about every wrong order.
type ledger struct {
	mu         sync.Mutex
	mapped     map[uintptr]int64
	registered map[uintptr]bool
	bytes      int64
	peak       int64
	failAlloc  int // fail the n-th allocation from now (1: the next); 0: never
	failReg    int
	faults     []string
}

func newLedger() *ledger { return &ledger{mapped: map[uintptr]int64{}, registered: map[uintptr]bool{}} }

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

func (g *ledger) alloc(n int64) ([]byte, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.failAlloc > 0 {
		if g.failAlloc--; g.failAlloc == 0 {
			return nil, errors.New("out of memory (injected)")
		}
	}
	b, err := mapMemory(n)
	if err == nil {
		g.mapped[address(b)] = n
		g.bytes += n
		g.peak = max(g.peak, g.bytes)
	}
	return b, err
}

func (g *ledger) release(b []byte) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.registered[address(b)] {
		g.faults = append(g.faults, "unmapped while registered")
	}
	if g.mapped[address(b)] != int64(len(b)) {
		g.faults = append(g.faults, "unmapped what was not mapped")
	}
	g.bytes -= int64(len(b))
	delete(g.mapped, address(b))
	return unmapMemory(b)
}

func (g *ledger) Register(b []byte) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.failReg > 0 {
		if g.failReg--; g.failReg == 0 {
			return errors.New("too many buffers (injected)")
		}
	}
	if g.mapped[address(b)] == 0 {
		g.faults = append(g.faults, "registered what is not mapped")
	}
	g.registered[address(b)] = true
	return nil
}

func (g *ledger) Unregister(b []byte) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.registered[address(b)] {
		g.faults = append(g.faults, "unregistered what is not registered")
	}
	delete(g.registered, address(b))
	return nil
}

func (g *ledger) check(t testing.TB, wantEmpty bool) {
	t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, f := range g.faults {
		t.Error(f)
	}
	if wantEmpty && (len(g.mapped) != 0 || len(g.registered) != 0 || g.bytes != 0) {
		t.Errorf("left behind: %d mappings, %d registrations, %d bytes", len(g.mapped), len(g.registered), g.bytes)
	}
}

func (g *ledger) options(o Options) Options {
	o.alloc, o.release = g.alloc, g.release
	return o
}

func openStore(t testing.TB, c *testContainer, o Options) (*Store, *ledger) {
	t.Helper()
	g := newLedger()
	s, err := Open(c.Source, g, g.options(o))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		g.check(t, true)
	})
	return s, g
}

// fetchAll acquires experts, checks every byte and returns the experts in order of arrival. It releases unless keep is set.
func fetchAll(t testing.TB, s *Store, c *testContainer, layer int, ids ...int32) (hits, misses []int32) {
	t.Helper()
	l, err := s.Acquire(t.Context(), layer, ids)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Release()
	for _, lease := range l.Ready() {
		if err := c.verify(layer, lease); err != nil {
			t.Error(err)
		}
		hits = append(hits, lease.Expert)
	}
	for {
		more, err := l.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(more) == 0 {
			return hits, misses
		}
		for _, lease := range more {
			if err := c.verify(layer, lease); err != nil {
				t.Error(err)
			}
			misses = append(misses, lease.Expert)
		}
	}
}

func TestLeasesHoldTheRightBytes(t *testing.T) {
	for _, shape := range []testShape{
		{layers: 4, experts: 16},
		{layers: 4, experts: 16, published: true, files: 3},
		{layers: 4, experts: 16, wideLayer: 2, files: 2},
		{layers: 4, experts: 16, wideLayer: 2, published: true},
	} {
		for _, slots := range []int{4, 9, 1000} {
			t.Run(fmt.Sprintf("%+v/%d", shape, slots), func(t *testing.T) {
				c := generate(t, shape)
				recorder := telemetry.New(4, 16)
				s, _ := openStore(t, c, Options{LimitBytes: int64(slots)*3*testSlotBytes + 1<<20, LeastSlots: 4, Readers: 3, Telemetry: recorder})
				random := rand.New(rand.NewPCG(1, uint64(slots)))
				var bytes int64
				for range 200 {
					layer := 1 + random.IntN(3)
					ids := random.Perm(16)[:4]
					_, misses := fetchAll(t, s, c, layer, int32(ids[0]), int32(ids[1]), int32(ids[2]), int32(ids[3]))
					for _, e := range misses {
						bytes += c.recordBytes(layer, int(e))
					}
				}
				snapshot := recorder.Snapshot()
				if snapshot.ReadBytes != uint64(bytes) {
					t.Errorf("read %d bytes; the misses' records have %d", snapshot.ReadBytes, bytes)
				}
				if snapshot.Hits+snapshot.Misses != 800 || snapshot.Misses != snapshot.Reads {
					t.Errorf("%d hits, %d misses, %d reads", snapshot.Hits, snapshot.Misses, snapshot.Reads)
				}
			})
		}
	}
}

func TestAnExpertStaysUntilSomethingElseNeedsTheSlot(t *testing.T) {
	c := generate(t, testShape{layers: 2, experts: 8})
	s, _ := openStore(t, c, Options{LimitBytes: 4 * testSlotBytes, LeastSlots: 4, Policy: NewLRU(Shape{2, 8})})
	fetchAll(t, s, c, 1, 0, 1, 2, 3)
	if hits, misses := fetchAll(t, s, c, 1, 3, 4); !slices.Equal(hits, []int32{3}) || !slices.Equal(misses, []int32{4}) {
		t.Errorf("hits %v, misses %v", hits, misses)
	}
	// 0 was the least recently used (first among equals) and made way for 4.
	if hits, _ := fetchAll(t, s, c, 1, 1, 2, 3, 4); len(hits) != 4 {
		t.Errorf("hits %v", hits)
	}
}

func TestConcurrentRequestsShareOneRead(t *testing.T) {
	c := generate(t, testShape{layers: 2, experts: 8})
	gate := &gatedFiles{gate: make(chan struct{})}
	recorder := telemetry.New(2, 8)
	s, _ := openStore(t, c, Options{LimitBytes: 8 * testSlotBytes, Telemetry: recorder, open: gate.open})
	var all []*Leases
	for range 5 {
		l, err := s.Acquire(t.Context(), 1, []int32{6, 6})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, l)
	}
	close(gate.gate)
	for _, l := range all {
		got, err := l.Next(t.Context())
		if err != nil || len(got) != 1 {
			t.Fatal(got, err)
		}
		if err := c.verify(1, got[0]); err != nil {
			t.Error(err)
		}
		l.Release()
	}
	if n := recorder.Snapshot(); n.Reads != 1 || n.Joined != 4 {
		t.Errorf("%d reads, %d joined", n.Reads, n.Joined)
	}
}

func TestALeasedSlotIsNeverTaken(t *testing.T) {
	c := generate(t, testShape{layers: 2, experts: 8})
	s, _ := openStore(t, c, Options{LimitBytes: 3 * testSlotBytes})
	held, err := s.Acquire(t.Context(), 1, []int32{0})
	if err != nil {
		t.Fatal(err)
	}
	got, err := held.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		fetchAll(t, s, c, 1, int32(1+i%7), int32(1+(i+1)%7))
		if err := c.verify(1, got[0]); err != nil {
			t.Fatal(err)
		}
	}
	// With another two leased, a third request has to wait, and gives up when it is told to.
	l, err := s.Acquire(t.Context(), 1, []int32{1, 2})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Acquire(ctx, 1, []int32{3}); !errors.Is(err, context.Canceled) {
		t.Errorf("a request without a slot and with a cancelled context: %v", err)
	}
	waiting := make(chan error)
	go func() {
		l, err := s.Acquire(t.Context(), 1, []int32{3})
		if err == nil {
			l.Release()
		}
		waiting <- err
	}()
	l.Release()
	if err := <-waiting; err != nil {
		t.Error(err)
	}
	held.Release()
}

func TestARequestThatCannotEverFitIsRefusedInWords(t *testing.T) {
	c := generate(t, testShape{layers: 2, experts: 8})
	s, _ := openStore(t, c, Options{LimitBytes: 2 * testSlotBytes})
	_, err := s.Acquire(t.Context(), 1, []int32{0, 1, 2})
	if err == nil || !strings.Contains(err.Error(), "raise the memory limit") {
		t.Error(err)
	}
	if n := s.AtOnce(1); n != 2 {
		t.Errorf("capacity %d", n)
	}
	if _, err := s.Acquire(t.Context(), 1, []int32{8}); err == nil {
		t.Error("expert 8 of 8")
	}
	if _, err := s.Acquire(t.Context(), 0, []int32{0}); err == nil {
		t.Error("an expert of a dense layer")
	}
	if _, err := Open(c.Source, newLedger(), Options{LimitBytes: 3 * testSlotBytes, LeastSlots: 4}); err == nil || !strings.Contains(err.Error(), "131.1 kB") {
		t.Errorf("a limit below one token's experts of a layer: %v", err)
	}
}

func TestResizeKeepsTheLimitAndTheLeases(t *testing.T) {
	c := generate(t, testShape{layers: 3, experts: 16})
	s, g := openStore(t, c, Options{LimitBytes: 32 * testSlotBytes, LeastSlots: 2})
	for layer := 1; layer < 3; layer++ {
		for e := range int32(16) {
			fetchAll(t, s, c, layer, e)
		}
	}
	if g.bytes != 32*testSlotBytes {
		t.Fatalf("%d bytes mapped", g.bytes)
	}
	l, err := s.Acquire(t.Context(), 1, []int32{3, 4})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- s.Resize(context.Background(), 2*testSlotBytes) }()
	// The leased experts' mappings stay as long as they are leased.
	for range 100 {
		runtime.Gosched()
		for _, lease := range l.Ready() {
			if err := c.verify(1, lease); err != nil {
				t.Fatal(err)
			}
		}
	}
	l.Release()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	g.check(t, false)
	if g.bytes > 2*testSlotBytes {
		t.Errorf("%d bytes mapped under a limit of %d", g.bytes, 2*testSlotBytes)
	}
	if err := s.Resize(t.Context(), testSlotBytes); err == nil {
		t.Error("a limit below the least was accepted")
	}
	if err := s.Resize(t.Context(), 20*testSlotBytes); err != nil {
		t.Fatal(err)
	}
	for e := range int32(16) {
		fetchAll(t, s, c, 1, e, (e+1)%16)
	}
	if g.bytes > 20*testSlotBytes || s.AtOnce(1) != 20 {
		t.Errorf("%d bytes, capacity %d", g.bytes, s.AtOnce(1))
	}
}

func TestResizeGivesUpWithItsContext(t *testing.T) {
	c := generate(t, testShape{layers: 2, experts: 8})
	s, _ := openStore(t, c, Options{LimitBytes: 8 * testSlotBytes})
	l, err := s.Acquire(t.Context(), 1, []int32{0, 1, 2, 3, 4, 5, 6, 7})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Resize(ctx, testSlotBytes); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	l.Release()
	fetchAll(t, s, c, 1, 5) // still works
	if err := s.Resize(t.Context(), testSlotBytes); err != nil {
		t.Error(err)
	}
}

func TestAllocationFailures(t *testing.T) {
	c := generate(t, testShape{layers: 2, experts: 64, published: true})
	shape := Options{LimitBytes: 66*testSlotBytes + 1<<20, LeastSlots: 2, Readers: 2}
	// Staging memory cannot be had: nothing opens, nothing is left.
	for n := 1; n <= 2; n++ {
		g := newLedger()
		g.failAlloc = n
		if _, err := Open(c.Source, g, g.options(shape)); err == nil || !strings.Contains(err.Error(), "no memory") {
			t.Errorf("allocation %d failed: %v", n, err)
		}
		g.check(t, true)
	}
	// The arena cannot grow or be registered half-way: the model goes on with what it has, and says so.
	for _, fail := range []func(*ledger){func(g *ledger) { g.failAlloc = 3 }, func(g *ledger) { g.failReg = 3 }} {
		recorder := telemetry.New(2, 64)
		o := shape
		o.Telemetry = recorder
		s, g := openStore(t, c, o)
		fail(g)
		for e := range int32(64) {
			fetchAll(t, s, c, 1, e, (e+1)%64)
		}
		if n := s.AtOnce(1); n < 2 || n >= 64 {
			t.Errorf("capacity %d", n)
		}
		if notices := recorder.Snapshot().Notices; len(notices) == 0 || !strings.Contains(notices[0], "goes on with") {
			t.Errorf("notices %q", notices)
		}
		g.check(t, false)
	}
	// The very first mapping fails: the request does, in words.
	s, g := openStore(t, c, shape)
	g.failAlloc = 1
	if _, err := s.Acquire(t.Context(), 1, []int32{0}); err == nil || !strings.Contains(err.Error(), "memory") {
		t.Error(err)
	}
}

func TestCloseFailsWhoeverWaits(t *testing.T) {
	c := generate(t, testShape{layers: 2, experts: 8})
	gate := &gatedFiles{gate: make(chan struct{})}
	s, _ := openStore(t, c, Options{LimitBytes: 8 * testSlotBytes, Readers: 1, open: gate.open})
	l, err := s.Acquire(t.Context(), 1, []int32{0, 1, 2})
	if err != nil {
		t.Fatal(err)
	}
	closed := make(chan error)
	go func() { closed <- s.Close() }()
	close(gate.gate)
	for {
		got, err := l.Next(t.Context())
		if len(got) == 0 && err == nil {
			break
		}
		if err != nil && !errors.Is(err, ErrClosed) {
			t.Fatal(err)
		}
	}
	l.Release()
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if _, err := s.Acquire(t.Context(), 1, []int32{0}); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if err := s.Resize(t.Context(), 4*testSlotBytes); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error("closing again:", err)
	}
}

// gatedFiles makes every read wait until gate is closed.
type gatedFiles struct{ gate chan struct{} }

func (g *gatedFiles) open(path string, direct bool) (rawFile, error) {
	f, err := openSystem(path, direct)
	return &gatedFile{f, g}, err
}

type gatedFile struct {
	rawFile
	g *gatedFiles
}

func (f *gatedFile) Pread(p []byte, offset int64) (int, error) {
	<-f.g.gate
	return f.rawFile.Pread(p, offset)
}

// Leases that are used again serve one request after the other, also where the one before was given up while its reads were under way; where all
// experts are in memory they allocate nothing. A second Release, and using them while they are held, do no harm.
func TestLeasesAreUsedAgain(t *testing.T) {
	c := generate(t, testShape{layers: 3, experts: 16})
	s, _ := openStore(t, c, Options{LimitBytes: 32 * testSlotBytes, LeastSlots: 4})
	var l Leases
	ids := []int32{1, 3, 8, 9}
	request := func(layer int) {
		if err := s.AcquireInto(t.Context(), &l, layer, ids); err != nil {
			t.Fatal(err)
		}
	}
	for layer := 1; layer < 3; layer++ {
		request(layer)
		l.Release() // perhaps before, perhaps after its reads
		request(layer)
		got := slices.Clone(l.Ready())
		if err := s.AcquireInto(t.Context(), &l, layer, ids); err == nil {
			t.Fatal("leases that were held were used for another request")
		}
		for {
			more, err := l.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if len(more) == 0 {
				break
			}
			got = append(got, more...)
		}
		if len(got) != len(ids) {
			t.Fatalf("%d leases of %d experts", len(got), len(ids))
		}
		for _, lease := range got {
			if err := c.verify(layer, lease); err != nil {
				t.Error(err)
			}
		}
		l.Release()
		l.Release()
	}
	layer := 0
	if n := testing.AllocsPerRun(100, func() {
		layer = layer%2 + 1
		request(layer)
		if len(l.Ready()) != len(ids) {
			t.Fatal("an expert is not in memory")
		}
		l.Release()
	}); n > 0 {
		t.Errorf("%v allocations a request", n)
	}
}
