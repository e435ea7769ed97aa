package engine

import (
	"context"

	"colibri/backend/residency"
)

// Experts is where the forward pass gets routed experts from: all that it knows of their residency. Ids are ascending and distinct.
type Experts interface {
	// Acquire asks for a few tokens' experts of a layer, AtOnce at most; it does not wait for reads.
	Acquire(ctx context.Context, layer int, ids []int32) (Leases, error)
	// AtOnce is the largest number of a layer's experts that can be held at the same time.
	AtOnce(layer int) int
	// Guess names experts of a layer that will probably be asked for soon, the likeliest first; they may be read ahead.
	Guess(layer int, ids []int32)
	// Sweep goes through a prompt's experts of a layer, of any number, once.
	Sweep(layer int, ids []int32) (Sweep, error)
}

// Lease is one expert in memory, valid until it is released.
type Lease = residency.Lease

// Leases are experts that are held, or on their way, until Release.
type Leases interface {
	// Ready are the experts that were in memory.
	Ready() []Lease
	// Next waits until more have landed, each delivered once; it is empty when all are delivered.
	Next(ctx context.Context) ([]Lease, error)
	Release()
}

// Sweep hands experts out in any order, each once.
type Sweep interface {
	// Next takes the experts of the last call back, so all work with them must be done, and waits until more have
	// landed; it is empty when all were handed out.
	Next(ctx context.Context) ([]Lease, error)
	Release()
}

// stored are the experts of a residency store, for whoever has the model's turn.
type stored struct {
	*residency.Store
	leases residency.Leases // of the one request at a time: a token allocates nothing
}

func (s *stored) Acquire(ctx context.Context, layer int, ids []int32) (Leases, error) {
	if err := s.AcquireInto(ctx, &s.leases, layer, ids); err != nil {
		return nil, err // not the leases: a nil pointer in an interface is not nil
	}
	return &s.leases, nil
}

func (s *stored) Sweep(layer int, ids []int32) (Sweep, error) {
	w, err := s.Store.Sweep(layer, ids)
	if err != nil {
		return nil, err
	}
	return w, nil
}
