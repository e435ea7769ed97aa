package app

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/google/uuid"
)

// gate lets the state-changing calls of a page through one at a time, in the order of their numbers. Wails runs every call in a
// goroutine of its own, so "stop" then "send" may arrive as "send" then "stop".
type gate struct {
	after func(time.Duration) <-chan time.Time

	mu       sync.Mutex
	sessions map[string]*session
	order    []string // oldest first
}

type session struct {
	next    int64          // the number whose turn it is
	changed chan struct{}  // closed and replaced when next moves
	waiting map[int64]bool // numbers that have arrived early
	busy    bool
}

const (
	// maxSessions pages are remembered: the window, and whatever was reloaded a moment ago.
	maxSessions = 8
	// missingWait is how long a call waits for one with a lower number. A call that got lost must not stop the window for ever.
	missingWait = 2 * time.Second
)

func newGate(after func(time.Duration) <-chan time.Time) *gate {
	return &gate{after: after, sessions: map[string]*session{}}
}

// open makes a session for a page that was just loaded.
func (g *gate) open() string {
	id := uuid.NewString()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sessions[id] = &session{next: 1, changed: make(chan struct{}), waiting: map[int64]bool{}}
	g.order = append(g.order, id)
	if len(g.order) > maxSessions {
		delete(g.sessions, g.order[0])
		g.order = g.order[1:]
	}
	return id
}

// errClosing is what every call meets while the program ends.
var errClosing = errors.New("the program is closing")

var errStale = errors.New("this page is out of date; it is being refreshed")

// enter waits for the command's turn and returns the function that ends it.
func (g *gate) enter(ctx context.Context, c Command) (leave func(), err error) {
	var patience <-chan time.Time
	for {
		g.mu.Lock()
		s := g.sessions[c.Session]
		if s == nil {
			g.mu.Unlock()
			return nil, errStale
		}
		if c.Number < s.next {
			g.mu.Unlock()
			return nil, fmt.Errorf("command %d came too late and was not carried out", c.Number)
		}
		if c.Number == s.next && !s.busy {
			s.busy = true
			delete(s.waiting, c.Number)
			g.mu.Unlock()
			return func() { g.advance(s, c.Number+1) }, nil
		}
		s.waiting[c.Number] = true
		changed := s.changed
		busy := s.busy
		g.mu.Unlock()

		if patience == nil && !busy {
			patience = g.after(missingWait)
		}
		select {
		case <-ctx.Done():
			return nil, errClosing
		case <-changed:
			patience = nil // something moved: the missing one may be next
		case <-patience:
			g.skip(s)
			patience = nil
		}
	}
}

func (g *gate) advance(s *session, next int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s.busy = false
	s.next = max(s.next, next)
	close(s.changed)
	s.changed = make(chan struct{})
}

// skip gives up on the numbers below the lowest that has arrived, unless one of them is being carried out.
func (g *gate) skip(s *session) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if s.busy {
		return
	}
	lowest := int64(math.MaxInt64)
	for n := range s.waiting {
		lowest = min(lowest, n)
	}
	if lowest <= s.next || lowest == math.MaxInt64 {
		return
	}
	s.next = lowest
	close(s.changed)
	s.changed = make(chan struct{})
}
