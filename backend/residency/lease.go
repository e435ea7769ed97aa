package residency

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"colibri/backend/container"
)

// Lease is an expert in memory that stays there, unmoved, until it is released.
type Lease struct {
	Expert         int32
	Gate, Up, Down container.Block
}

// Leases are the experts of one request, and can be used for another once they were released. They belong to one goroutine.
type Leases struct {
	store       *Store
	keys        []int
	experts     []int32
	ready       []Lease
	held        []*slot      // one reference each
	landed      chan landing // room for every outstanding load: senders never block
	outstanding int
}

// Acquire is AcquireInto with new Leases.
func (s *Store) Acquire(ctx context.Context, layer int, experts []int32) (*Leases, error) {
	l := new(Leases)
	if err := s.AcquireInto(ctx, l, layer, experts); err != nil {
		return nil, err
	}
	return l, nil
}

// AcquireInto asks for experts of a layer. Those in memory are leased at once (Ready), the others are read and come through Next.
// It blocks only while other requests' leases leave too few slots. The policy counts the request as one token's use.
// Experts named twice are leased once. Whoever asks for every token gives the same Leases again: where all experts are in memory nothing is
// allocated then.
func (s *Store) AcquireInto(ctx context.Context, l *Leases, layer int, experts []int32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(l.held) > 0 {
		return errors.New("these leases are still held: release them before they are used again")
	}
	keys, err := s.keys(l.keys[:0], layer, experts)
	if err != nil {
		return err
	}
	l.keys = keys
	if err := s.await(ctx, keys, len(keys)); err != nil {
		return err
	}
	l.experts = l.experts[:0]
	for _, key := range keys {
		l.experts = append(l.experts, int32(key%s.shape.Experts))
	}
	s.policy.Use(layer, l.experts)
	l.begin(s)
	// Hits first: once leased, they are no victims for the misses.
	for _, key := range keys {
		if t := s.slots[key]; t != nil && t.state == ready {
			s.countUse(key, true)
			s.keep(t)
			l.hold(t)
			l.ready = append(l.ready, l.lease(t))
		}
	}
	for _, key := range keys {
		t := s.slots[key]
		if t != nil && t.state == ready {
			continue
		}
		s.countUse(key, false)
		if t == nil {
			t = s.take(key)
			s.read(t, demand)
		} else { // being read for someone else
			s.telemetry.Joined()
			s.queue.raise(t.load, demand)
		}
		l.await(t)
	}
	s.judge(layer)
	s.report()
	return nil
}

// begin prepares leases that hold nothing. What an earlier request left on its way was not received, and is not this one's.
func (l *Leases) begin(s *Store) {
	l.store, l.ready, l.outstanding = s, l.ready[:0], 0
	for len(l.landed) > 0 {
		<-l.landed
	}
}

// await makes the leases wait for a slot's load. The store's lock is held, and no load sends without it: the channel can still be changed.
func (l *Leases) await(t *slot) {
	if cap(l.landed) < len(l.keys) {
		l.landed = make(chan landing, len(l.keys))
	}
	l.hold(t)
	t.load.waiters = append(t.load.waiters, l)
	l.outstanding++
}

// read queues the read of a slot that take has prepared.
func (s *Store) read(t *slot, u urgency) {
	t.load = &load{slot: t, urgency: u, guessed: u == guess}
	s.queue.push(t.load)
	s.work.Signal()
}

// keys checks a request, and appends its keys without repetitions.
func (s *Store) keys(keys []int, layer int, experts []int32) ([]int, error) {
	if layer < 0 || layer >= s.shape.Layers {
		return nil, fmt.Errorf("layer %d has no experts", layer)
	}
	for _, e := range experts {
		if e < 0 || int(e) >= s.source.Counts[layer] {
			return nil, fmt.Errorf("layer %d has %d experts; expert %d was asked for", layer, s.source.Counts[layer], e)
		}
		if key := s.shape.key(layer, e); !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	return keys, nil
}

// await waits, first come first served, until slots for the keys can be had all at once; whoever waits holds nothing, so that
// no two requests can wait for each other. need is how many of them must have one at the same time.
func (s *Store) await(ctx context.Context, keys []int, need int) error {
	if len(keys) == 0 {
		return s.usable(ctx)
	}
	c := s.classOf[keys[0]]
	var mine *turn
	for {
		if err := s.usable(ctx); err != nil {
			s.leaveLine(mine)
			return err
		}
		first := mine == nil && len(s.turns) == 0 || mine != nil && s.turns[0] == mine
		if first && s.fits(c, keys, need) {
			s.leaveLine(mine)
			return nil
		}
		if total := s.capacity(c); need > total {
			s.leaveLine(mine)
			return fmt.Errorf("%d experts are needed at once, and there is memory for %d: raise the memory limit", need, total)
		}
		if mine == nil {
			mine = &turn{need: need}
			s.turns = append(s.turns, mine)
			stop := context.AfterFunc(ctx, s.wake)
			defer stop()
		}
		s.changed.Wait()
	}
}

// fits says whether need of the keys can be in slots at the same time, now; it maps memory for them where the limit allows.
func (s *Store) fits(c *class, keys []int, need int) bool {
	have := 0
	for _, key := range keys {
		if s.slots[key] != nil {
			have++
		}
	}
	if need > s.capacity(c) {
		c.target = c.planned // an earlier allocation failed; this request fails if it still does
	}
	s.provide(c, need-have)
	return need-have <= s.spare(c, keys)
}

func (s *Store) usable(ctx context.Context) error {
	if s.closed {
		return ErrClosed
	}
	return ctx.Err()
}

func (s *Store) leaveLine(mine *turn) {
	if mine == nil {
		return
	}
	s.turns = slices.DeleteFunc(s.turns, func(t *turn) bool { return t == mine })
	s.changed.Broadcast() // the next in line may fit
}

func (s *Store) countUse(key int, hit bool) {
	layer, expert := s.shape.at(key)
	s.telemetry.Use(layer, expert, hit)
	if t := s.slots[key]; t != nil && t.guessed {
		s.guessUsed(t)
	}
}

func (s *Store) guessUsed(t *slot) {
	t.guessed = false
	s.guessing.outcome(true)
	s.telemetry.GuessUsed()
}

// keep makes a slot that a sweep took from the cache part of the cache again: decoding wants what it holds.
func (s *Store) keep(t *slot) {
	if t.transit {
		t.transit = false
		s.classOf[t.key].transit--
	}
}

// Ready are the experts that were in memory when they were asked for.
func (l *Leases) Ready() []Lease { return l.ready }

// Next waits until at least one more expert has been read and returns all that have; nothing, once all are delivered. An error
// is about one expert that could not be read, or about ctx; the leases got so far stay valid until Release.
func (l *Leases) Next(ctx context.Context) ([]Lease, error) {
	if l.outstanding == 0 {
		return nil, nil
	}
	start := time.Now()
	var first landing
	select {
	case first = <-l.landed:
	default:
		select {
		case first = <-l.landed:
			l.store.telemetry.Waited(time.Since(start))
		case <-ctx.Done():
			l.store.telemetry.Waited(time.Since(start))
			return nil, ctx.Err()
		}
	}
	var leases []Lease
	var errs []error
	for {
		l.outstanding--
		if first.err != nil {
			errs = append(errs, first.err)
		} else {
			leases = append(leases, l.lease(first.slot))
		}
		select {
		case first = <-l.landed:
			continue
		default:
		}
		return leases, errors.Join(errs...)
	}
}

// Release returns everything: leases, and interest in what is still being read. Releasing again does nothing.
func (l *Leases) Release() {
	s := l.store
	s.mu.Lock()
	defer s.mu.Unlock()
	l.release()
}

func (l *Leases) release() {
	s := l.store
	for _, t := range l.held {
		s.unref(t, l)
	}
	l.held, l.ready, l.outstanding = l.held[:0], l.ready[:0], 0
	s.report()
	s.changed.Broadcast()
}

// hold takes a reference. The store's lock is held.
func (l *Leases) hold(t *slot) {
	if t.refs == 0 {
		l.store.leased++
	}
	t.refs++
	l.held = append(l.held, t)
}

// drop forgets a slot whose load failed. The store's lock is held.
func (l *Leases) drop(t *slot) {
	l.held = slices.DeleteFunc(l.held, func(h *slot) bool { return h == t })
}

// unref gives a reference back; a queued load that nobody wants any more is taken out.
func (s *Store) unref(t *slot, l *Leases) {
	t.refs--
	if t.refs == 0 {
		s.leased--
	}
	if t.state != loading {
		return
	}
	t.load.waiters = slices.DeleteFunc(t.load.waiters, func(w *Leases) bool { return w == l })
	if t.refs == 0 && s.queue.remove(t.load) {
		s.abandon(t)
	}
}

func (l *Leases) lease(t *slot) Lease {
	layout := l.store.classOf[t.key].layout
	gate, up, down := layout.Blocks(t.memory)
	return Lease{Expert: int32(t.key % l.store.shape.Experts), Gate: gate, Up: up, Down: down}
}
