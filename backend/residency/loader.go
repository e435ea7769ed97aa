package residency

import (
	"fmt"
	"hash/crc32"
	"slices"
	"time"

	"colibri/backend/container"
	"colibri/backend/telemetry"
)

// urgency orders reads: an answer waits for demand reads; a sweep's read-ahead comes next; preloads and guesses get what is left.
type urgency int

const (
	demand urgency = iota
	sweep
	guess
	urgencies
)

// load is one read of one expert into one slot, shared by all who want that expert.
type load struct {
	slot    *slot
	urgency urgency
	guessed bool // began as a guess, whatever its urgency became
	waiters []*Leases
}

// landing is what a load tells its waiters: the slot, or why there is none.
type landing struct {
	slot *slot
	key  int
	err  error
}

// queue holds the loads that no reader has taken yet, one list an urgency, first come first served.
type queue [urgencies][]*load

func (q *queue) push(l *load) { q[l.urgency] = append(q[l.urgency], l) }

func (q *queue) pop() *load {
	for u := range q {
		if len(q[u]) > 0 {
			l := q[u][0]
			q[u] = q[u][1:]
			return l
		}
	}
	return nil
}

// waiting is the number of queued loads.
func (q *queue) waiting() (n int) {
	for u := range q {
		n += len(q[u])
	}
	return n
}

// remove takes a load out; it reports whether it was there.
func (q *queue) remove(l *load) bool {
	list := q[l.urgency]
	for i := range list {
		if list[i] == l {
			q[l.urgency] = append(list[:i:i], list[i+1:]...)
			return true
		}
	}
	return false
}

// raise gives a load more urgency; one that is being read already only counts as urgent from now on.
func (q *queue) raise(l *load, u urgency) {
	if u >= l.urgency {
		return
	}
	queued := q.remove(l)
	if l.urgency = u; queued {
		q.push(l)
	}
}

// reader is one of the pool of threads that wait in pread. On Linux io_uring was compared with such a pool (fio, O_DIRECT, random
// records of 4 and 20 MB of a 4 GB file on a virtual disk, depth or threads 1, 4 and 8, two rounds of 4 s): 0.25 to 0.59 and 0.24 to 0.77
// GB/s, each ahead as often as the other, at the same processor time. Records of megabytes leave a submission
// queue nothing to save, so there is one way for all systems.
func (s *Store) reader(staging []byte) {
	defer s.readers.Done()
	for {
		s.mu.Lock()
		l := s.queue.pop()
		for l == nil && !s.closed {
			s.work.Wait()
			l = s.queue.pop()
		}
		if l == nil {
			s.mu.Unlock()
			return
		}
		s.atWork = append(s.atWork, l)
		s.mu.Unlock()

		layer, expert := s.shape.at(l.slot.key)
		bytes, err := s.fetch(l.slot.memory, staging, layer, expert)

		s.mu.Lock()
		switch {
		case err != nil:
			s.telemetry.ReadFailed()
		case l.guessed:
			s.telemetry.Guessed(bytes)
		case l.urgency == sweep:
			s.telemetry.Swept()
		}
		s.atWork = slices.DeleteFunc(s.atWork, func(other *load) bool { return other == l })
		s.landed(l, err)
		s.speculate()
		s.mu.Unlock()
	}
}

// fetch reads an expert's record into slot.
func (s *Store) fetch(slot, staging []byte, layer, expert int) (int64, error) {
	record, err := s.source.Expert(layer, expert)
	if err != nil {
		return 0, fmt.Errorf("expert %d of layer %d: %w", expert, layer, err)
	}
	var total int64
	start := time.Now()
	for i := range record.Reads {
		if err := s.fetchPart(slot, staging, &record.Reads[i]); err != nil {
			return 0, fmt.Errorf("expert %d of layer %d: %w", expert, layer, err)
		}
		total += record.Reads[i].Bytes
	}
	s.telemetry.Read(total, time.Since(start))
	if key := s.shape.key(layer, int32(expert)); record.HasSum && !s.verified[key].Load() {
		if crc32.Checksum(slot, castagnoli) != record.Sum {
			return 0, fmt.Errorf("expert %d of layer %d (%s) is damaged: its checksum does not match; download or convert the model again",
				expert, layer, s.source.Files[record.Reads[0].File])
		}
		s.verified[key].Store(true)
	}
	return total, nil
}

// castagnoli sums are checked the first time that an expert is read: damage on the disk is found then, and later reads of the
// same bytes need not be slowed down (a core sums 5 to 20 GB/s, a fast disk delivers as much).
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (s *Store) fetchPart(slot, staging []byte, r *container.Read) error {
	f := s.files[r.File]
	if len(r.Pieces) == 0 {
		return f.read(slot[:r.Bytes], r.Offset, r.Bytes, s.telemetry.ReadRetried)
	}
	from, window := directWindow(r)
	head := r.Offset - from
	if err := f.read(staging[:window], from, head+r.Bytes, s.telemetry.ReadRetried); err != nil {
		return err
	}
	for _, p := range r.Pieces {
		copy(slot[p.To:p.To+p.Bytes], staging[head+p.From:])
	}
	return nil
}

// directWindow widens a read to whole blocks.
func directWindow(r *container.Read) (from, bytes int64) {
	from = r.Offset &^ (directAlignment - 1)
	end := (r.Offset + r.Bytes + directAlignment - 1) &^ (directAlignment - 1)
	return from, end - from
}

// landed ends a load under the store's lock: the slot is ready, or empty again, and everyone who waited knows.
func (s *Store) landed(l *load, err error) {
	t := l.slot
	key := t.key
	t.load = nil
	if err == nil {
		t.state = ready
		s.setTier(key, telemetry.Loading, s.tierOf(key))
	} else {
		// Only the waiters hold references to a slot being loaded; they get the error instead of a lease.
		for _, w := range l.waiters {
			w.drop(t)
		}
		if t.refs > 0 {
			t.refs = 0
			s.leased--
		}
		s.setTier(key, telemetry.Loading, telemetry.OnDisk)
		s.empty(t)
	}
	for _, w := range l.waiters {
		w.landed <- landing{slot: t, key: key, err: err}
	}
	s.changed.Broadcast()
}
