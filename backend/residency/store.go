package residency

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"colibri/backend/container"
	"colibri/backend/telemetry"
)

// Source is what the store needs of a container.
type Source struct {
	// Files are the paths that container.Read.File indexes.
	Files []string
	// Counts is the number of routed experts of every layer, 0 for dense ones. Multi-token-prediction layers belong to it if
	// they will be used: their experts take a share of the memory.
	Counts []int
	// Expert describes one expert. It is called at opening for all experts, then once for each read, from any goroutine.
	Expert func(layer, index int) (container.Expert, error)
}

// Options of a Store.
type Options struct {
	// LimitBytes covers the arena and the readers' staging memory.
	LimitBytes int64
	// LeastSlots is the number of experts of one layer that are used at once: the experts a token uses. At least 1.
	LeastSlots int
	// Readers is the number of concurrent reads; 0 means 8, which reaches the bandwidth of an Apple SSD with
	// records of megabytes (14 GB/s with one, 20 with four to eight on an M5 Max).
	Readers int
	// History is what past sessions used, for the default policy; nil: nothing is known.
	History *Usage
	// Policy decides what stays; nil means NewForecast.
	Policy Policy
	// Guess allows speculative reads (Store.Guess). Off unless measured to help on this machine with this model.
	Guess bool
	// Telemetry receives the counts; nil means nobody looks.
	Telemetry *telemetry.Recorder

	open    openFunc                    // tests inject faults here
	alloc   func(int64) ([]byte, error) // and here
	release func([]byte) error          // and here
}

const defaultReaders = 8

// ErrClosed is returned to whoever uses a store that is closed or closes meanwhile.
var ErrClosed = errors.New("the model is being closed")

// Store keeps experts in memory. All methods may be called from any goroutine. A goroutine must release its leases before
// it acquires more, resizes or closes: those wait for leases to come back.
type Store struct {
	source    Source
	shape     Shape
	telemetry *telemetry.Recorder
	least     int
	staging   [][]byte      // one a reader, empty where no record needs it
	verified  []atomic.Bool // by key: the expert's checksum was right once
	files     []*expertFile
	readers   sync.WaitGroup

	resizing sync.Mutex // one Resize or Close at a time; taken before mu

	mu      sync.Mutex
	changed *sync.Cond // a slot became idle or empty, the arena changed, the store closed
	work    *sync.Cond // a load was queued, or the store closed
	policy  Policy
	arena   arena
	classOf []*class // by key; nil where there is no such expert
	slots   []*slot  // by key; nil: on disk
	queue   queue
	turns   []*turn // acquirers waiting for slots, first come first served
	limit   int64
	leased  int
	atWork  []*load // loads that readers are reading
	closed  bool

	guessing  guessing
	favourite []bool // by key: see Usage.Favourites; nil without a history
}

// turn is a place in the line of acquirers; need makes it an address of its own.
type turn struct{ need int }

func (s Shape) at(key int) (layer, expert int) { return key / s.Experts, key % s.Experts }

// Open prepares a store. Experts are read when they are asked for.
func Open(source Source, memory Registrar, options Options) (*Store, error) {
	s := &Store{source: source, policy: options.Policy, telemetry: options.Telemetry, least: max(options.LeastSlots, 1),
		guessing: guessing{wanted: options.Guess}}
	s.changed, s.work = sync.NewCond(&s.mu), sync.NewCond(&s.mu)
	for _, n := range source.Counts {
		s.shape.Experts = max(s.shape.Experts, n)
	}
	s.shape.Layers = len(source.Counts)
	if s.shape.Experts == 0 {
		return nil, errors.New("this model has no routed experts to keep")
	}
	if s.telemetry == nil {
		s.telemetry = &telemetry.Recorder{}
	}
	if s.policy == nil {
		s.policy = NewForecast(s.shape, options.History)
	}
	s.arena = arena{backend: memory, alloc: options.alloc, release: options.release}
	if s.arena.alloc == nil {
		s.arena.alloc, s.arena.release = mapMemory, unmapMemory
	}
	if options.open == nil {
		options.open = openSystem
	}

	window, err := s.describe()
	if err != nil {
		return nil, err
	}
	readers := options.Readers
	if readers <= 0 {
		readers = defaultReaders
	}
	// Staging may take an eighth of the limit: fewer readers leave more experts in memory.
	for readers > 1 && int64(readers)*window > options.LimitBytes/8 {
		readers--
	}
	if err := s.setTargets(options.LimitBytes, int64(readers)*window); err != nil {
		return nil, err
	}
	for _, c := range s.arena.classes {
		// Tens of mappings: each is one wrapped buffer for a GPU, and the unit in which memory is given back.
		c.perMapping = max(1, min(c.target/mappingsWanted, int(maxMappingBytes/c.layout.SlotBytes)))
	}
	if options.History != nil && options.History.Shape == s.shape {
		slots := 0
		for _, c := range s.arena.classes {
			slots += c.target
		}
		s.favourite = options.History.Favourites(slots)
	}
	if err := s.openFiles(options.open); err != nil {
		return nil, err
	}
	if err := s.mapStaging(readers, window); err != nil {
		return nil, errors.Join(err, s.closeFiles())
	}
	s.telemetry.SetMemory(telemetry.Staging, int64(readers)*window)
	for i := range readers {
		s.readers.Add(1)
		go s.reader(s.staging[i])
	}
	return s, nil
}

const (
	mappingsWanted  = 32
	maxMappingBytes = 1 << 30
)

// describe asks the source for every expert: it sets the classes and returns the largest staging window.
func (s *Store) describe() (window int64, err error) {
	keys := s.shape.Layers * s.shape.Experts
	s.classOf, s.slots, s.verified = make([]*class, keys), make([]*slot, keys), make([]atomic.Bool, keys)
	byLayout := map[container.ExpertLayout]*class{}
	for layer, n := range s.source.Counts {
		for index := range n {
			e, err := s.source.Expert(layer, index)
			if err != nil {
				return 0, fmt.Errorf("expert %d of layer %d: %w", index, layer, err)
			}
			if err := s.check(&e); err != nil {
				return 0, fmt.Errorf("expert %d of layer %d: %w", index, layer, err)
			}
			c := byLayout[e.Layout]
			if c == nil {
				c = &class{layout: e.Layout}
				byLayout[e.Layout] = c
				s.arena.classes = append(s.arena.classes, c)
			}
			c.experts++
			s.classOf[s.shape.key(layer, int32(index))] = c
			for i := range e.Reads {
				if len(e.Reads[i].Pieces) > 0 {
					_, w := directWindow(&e.Reads[i])
					window = max(window, (w+container.ExpertAlignment-1)&^(container.ExpertAlignment-1))
				}
			}
		}
	}
	return window, nil
}

// check refuses a description that would make a reader write outside a slot; after it, reads are trusted.
func (s *Store) check(e *container.Expert) error {
	size := e.Layout.SlotBytes
	if size <= 0 || size%container.ExpertAlignment != 0 {
		return fmt.Errorf("its slot of %d bytes is not a multiple of %d", size, container.ExpertAlignment)
	}
	for _, p := range []container.Placement{e.Layout.Gate, e.Layout.Up, e.Layout.Down} {
		if p.DataOffset < 0 || p.DataBytes < 0 || p.DataOffset > size-p.DataBytes ||
			p.ScaleOffset < 0 || p.ScaleBytes < 0 || p.ScaleOffset > size-p.ScaleBytes {
			return errors.New("a matrix lies outside its slot")
		}
	}
	for _, r := range e.Reads {
		if r.File < 0 || r.File >= len(s.source.Files) || r.Offset < 0 || r.Bytes <= 0 {
			return errors.New("a read names no place in the container's files")
		}
		if len(r.Pieces) == 0 && r.Bytes > size {
			return fmt.Errorf("a read of %d bytes does not fit its slot of %d", r.Bytes, size)
		}
		for _, p := range r.Pieces {
			if p.From < 0 || p.Bytes < 0 || p.To < 0 || p.From > r.Bytes-p.Bytes || p.To > size-p.Bytes {
				return errors.New("a piece of a read lies outside the read or its slot")
			}
		}
	}
	return nil
}

// setTargets divides a limit among the classes. The caller holds mu or is alone.
func (s *Store) setTargets(limit, staging int64) error {
	slots, err := divide(s.arena.classes, limit-staging, s.least)
	if err != nil {
		if staging > 0 {
			err = fmt.Errorf("%w after %s for reads in flight", err, formatBytes(staging))
		}
		return err
	}
	for i, c := range s.arena.classes {
		c.planned, c.target = slots[i], slots[i]
	}
	s.limit = limit
	return nil
}

func (s *Store) openFiles(open openFunc) error {
	for _, path := range s.source.Files {
		f, err := openExpertFile(path, open, s.telemetry.Notice)
		if err != nil {
			return errors.Join(err, s.closeFiles())
		}
		s.files = append(s.files, f)
	}
	return nil
}

func (s *Store) closeFiles() error {
	var errs []error
	for _, f := range s.files {
		errs = append(errs, f.close())
	}
	return errors.Join(errs...)
}

func (s *Store) mapStaging(readers int, window int64) error {
	s.staging = make([][]byte, readers)
	if window == 0 {
		return nil
	}
	for i := range s.staging {
		memory, err := s.arena.alloc(window)
		if err != nil {
			return errors.Join(fmt.Errorf("no memory for reads (%s): %w", formatBytes(window), err), s.unmapStaging())
		}
		s.staging[i] = memory
	}
	return nil
}

func (s *Store) unmapStaging() error {
	var errs []error
	for i, memory := range s.staging {
		if memory != nil {
			errs = append(errs, s.arena.release(memory))
			s.staging[i] = nil
		}
	}
	return errors.Join(errs...)
}

// AtOnce is the number of experts of a layer that can be leased at once.
func (s *Store) AtOnce(layer int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if layer < 0 || layer >= s.shape.Layers || s.source.Counts[layer] == 0 {
		return 0
	}
	return s.capacity(s.classOf[s.shape.key(layer, 0)])
}

// capacity is the number of slots a class has or may map.
func (s *Store) capacity(c *class) int { return max(c.live(), c.target) }

// provide maps memory until a class has n empty slots or may not grow any more. Callers hold mu.
func (s *Store) provide(c *class, n int) {
	for len(c.free) < n && c.growable() > 0 {
		s.telemetry.SetMemory(telemetry.Slots, s.arena.bytes+int64(min(c.perMapping, c.growable()))*c.layout.SlotBytes)
		if err := s.arena.grow(c); err != nil {
			// What is mapped works; asking again for every miss would only fail again.
			c.target = c.live()
			s.telemetry.Notice(fmt.Sprintf("%v. The model goes on with %d experts in memory, more slowly", err, c.target))
			s.changed.Broadcast()
		}
		s.telemetry.SetMemory(telemetry.Slots, s.arena.bytes)
	}
}

// spare is the number of slots of a class that can be had now without growing: empty ones, and idle ones but for those
// that hold one of the wanted keys.
func (s *Store) spare(c *class, wanted []int) int {
	n := len(c.free)
	for _, m := range c.mappings {
		if m.retiring {
			continue
		}
		for _, t := range m.slots {
			if t.idle() && !slices.Contains(wanted, t.key) {
				n++
			}
		}
	}
	return n
}

// take puts key into an empty slot, or into the slot of the idle expert of least worth, and marks it as loading. It
// returns nil if every slot is in use. Callers hold mu.
func (s *Store) take(key int) *slot {
	c := s.classOf[key]
	if len(c.free) == 0 {
		t := s.victim(c, unguessed)
		if t == nil {
			t = s.victim(c, nil)
		}
		if t == nil {
			return nil
		}
		s.evict(t)
	}
	t := c.free[len(c.free)-1]
	c.free = c.free[:len(c.free)-1]
	s.occupy(t, key)
	return t
}

func (s *Store) occupy(t *slot, key int) {
	t.key, t.state = key, loading
	s.slots[key] = t
	s.setTier(key, telemetry.OnDisk, telemetry.Loading)
}

// victim is the idle slot whose expert is worth least among those that only allows (nil: all), nil if there is none.
func (s *Store) victim(c *class, only func(*slot) bool) *slot {
	var worst *slot
	var least float64
	for _, m := range c.mappings {
		if m.retiring {
			continue
		}
		for _, t := range m.slots {
			if !t.idle() || only != nil && !only(t) {
				continue
			}
			layer, expert := s.shape.at(t.key)
			w := s.policy.Worth(layer, int32(expert))
			if worst == nil || w < least || w == least && t.key < worst.key {
				worst, least = t, w
			}
		}
	}
	return worst
}

// unguessed spares what was read speculatively until its layer has had its turn: it has no uses yet that a policy could see.
func unguessed(t *slot) bool { return !t.guessed }

// evict empties an idle slot for another expert.
func (s *Store) evict(t *slot) {
	s.setTier(t.key, s.tierOf(t.key), telemetry.OnDisk)
	s.telemetry.Evicted()
	s.empty(t)
}

// empty takes the key off a slot and puts it with the free ones.
func (s *Store) empty(t *slot) {
	c := s.classOf[t.key]
	if t.transit {
		c.transit--
	}
	s.slots[t.key] = nil
	t.state, t.key, t.transit, t.guessed, t.load = empty, 0, false, false, nil
	if !t.mapping.retiring {
		c.free = append(c.free, t)
	}
}

// tierOf is the tier of an expert in memory.
func (s *Store) tierOf(key int) telemetry.Tier {
	if s.favourite != nil && s.favourite[key] {
		return telemetry.Pinned
	}
	return telemetry.Cached
}

func (s *Store) setTier(key int, from, to telemetry.Tier) {
	layer, expert := s.shape.at(key)
	s.telemetry.SetTier(layer, expert, from, to)
}

// report tells telemetry how many slots are in which state. Callers hold mu.
func (s *Store) report() {
	free, mappings := 0, 0
	for _, c := range s.arena.classes {
		free += len(c.free)
		mappings += len(c.mappings)
	}
	s.telemetry.SetSlots(free, s.leased, mappings)
}

// Resize changes the limit. Growing takes effect as experts are read. Shrinking empties whole mappings, unregisters and unmaps
// them, and returns when the arena is within the new limit: it waits for leases in the mappings it gives up, or for ctx.
func (s *Store) Resize(ctx context.Context, limitBytes int64) error {
	s.resizing.Lock()
	defer s.resizing.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	if err := s.setTargets(limitBytes, s.stagingBytes()); err != nil {
		return err
	}
	s.changed.Broadcast() // acquirers that no longer fit must say so
	var errs []error
	for _, c := range s.arena.classes {
		for c.live() > c.target {
			if err := s.retire(ctx, c, emptiest(c, c.live()-c.target)); err != nil {
				errs = append(errs, err)
				break
			}
		}
	}
	return errors.Join(errs...)
}

func (s *Store) stagingBytes() int64 {
	var n int64
	for _, b := range s.staging {
		n += int64(len(b))
	}
	return n
}

// emptiest is the mapping to give up first when excess slots must go: one that frees enough and loses the fewest experts.
func emptiest(c *class, excess int) *mapping {
	var best *mapping
	var bestCost int
	for _, m := range c.mappings {
		if m.retiring {
			continue
		}
		// A mapping that frees less than is needed costs another one later.
		cost := max(excess-len(m.slots), 0)
		for _, t := range m.slots {
			if t.state != empty {
				cost++
			}
		}
		if best == nil || cost < bestCost || cost == bestCost && len(m.slots) < len(best.slots) {
			best, bestCost = m, cost
		}
	}
	return best
}

// retire empties a mapping, then unregisters it, then unmaps it. The lock is held on entry and exit, not while waiting nor while
// the backend lets go.
func (s *Store) retire(ctx context.Context, c *class, m *mapping) error {
	m.retiring = true
	kept := c.free[:0]
	for _, t := range c.free {
		if t.mapping != m {
			kept = append(kept, t)
		}
	}
	c.free = kept
	stop := context.AfterFunc(ctx, s.wake)
	defer stop()
	for {
		for _, t := range m.slots {
			if t.state == loading && t.refs == 0 && s.queue.remove(t.load) {
				s.abandon(t)
			}
			if t.idle() {
				s.evict(t)
			}
		}
		if !m.busy() {
			break
		}
		if err := ctx.Err(); err != nil {
			m.retiring = false
			for _, t := range m.slots {
				if t.state == empty {
					c.free = append(c.free, t)
				}
			}
			s.changed.Broadcast()
			return err
		}
		s.changed.Wait()
	}
	c.detach(m)
	s.mu.Unlock()
	err := s.arena.destroy(m)
	s.mu.Lock()
	if err == nil {
		s.arena.bytes -= int64(len(m.memory))
	}
	s.telemetry.SetMemory(telemetry.Slots, s.arena.bytes)
	s.report()
	return err
}

// abandon takes back a slot whose queued load nobody wants any more; the load is out of the queue.
func (s *Store) abandon(t *slot) {
	s.setTier(t.key, telemetry.Loading, telemetry.OnDisk)
	s.empty(t)
}

// wake makes everyone who waits look again.
func (s *Store) wake() {
	s.mu.Lock()
	s.changed.Broadcast()
	s.mu.Unlock()
}

// Close fails all waiting requests, waits for reads under way and for leases to be returned, and gives all memory and files
// back. Closing again does nothing.
func (s *Store) Close() error {
	s.resizing.Lock()
	defer s.resizing.Unlock()
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	for l := s.queue.pop(); l != nil; l = s.queue.pop() {
		s.landed(l, ErrClosed)
	}
	s.work.Broadcast()
	s.changed.Broadcast()
	s.mu.Unlock()
	s.readers.Wait()

	var errs []error
	s.mu.Lock()
	for _, c := range s.arena.classes {
		c.target = 0
		for len(c.mappings) > 0 {
			errs = append(errs, s.retire(context.Background(), c, c.mappings[0]))
		}
	}
	s.mu.Unlock()
	errs = append(errs, s.unmapStaging(), s.closeFiles())
	s.telemetry.SetMemory(telemetry.Staging, 0)
	return errors.Join(errs...)
}
