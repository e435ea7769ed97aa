//go:build (darwin && cgo) || metalsim

package metal

/*
#cgo CFLAGS: -O2 -Wall -Wextra -Werror
#cgo darwin CFLAGS: -fno-objc-arc -mmacosx-version-min=13.0
#cgo darwin LDFLAGS: -framework Foundation -framework Metal -framework CoreGraphics -mmacosx-version-min=13.0
#cgo linux CFLAGS: -fblocks -isystem ${SRCDIR}/../../build/simulator/include -I${SRCDIR}/declarations/metal
#cgo linux LDFLAGS: -lgnustep-base -l:libobjc.so.4 -lm
#include <stdlib.h>
#include "colibri_metal.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"colibri/backend/compute"
	"colibri/backend/container"
)

// Backend is an Apple GPU as a compute.Backend.
type Backend struct {
	name     string
	fallback compute.Backend
	repeated atomic.Uint64

	// Registered memory may come and go while a call runs; closing waits for both.
	open sync.RWMutex
	c    *C.coli_metal

	drive   sync.Mutex // calls are one at a time
	layer   *C.coli_layer_call
	caches  list[C.coli_cache]
	experts list[C.coli_expert]
	rows    []C.coli_row
	inputs  []int32
	outputs []int32
	before  []float32 // the residual stream before a call that changes it, for repeating

	lastUse atomic.Int64 // Unix nanoseconds
	stop    chan struct{}
	stopped sync.WaitGroup
}

var _ compute.Backend = (*Backend)(nil)

var errClosed = errors.New("metal: the backend is closed")

// Available says whether this system has a GPU that Open can use.
func Available() bool { return C.coli_metal_available() != 0 }

// OpenWith opens the GPU and compiles its kernels.
func OpenWith(o Options) (*Backend, error) {
	mode := C.int(C.COLI_METAL_RESSET_UNSET)
	switch o.ResidencySet {
	case "":
	case "0":
		mode = C.COLI_METAL_RESSET_OFF
	case "1":
		mode = C.COLI_METAL_RESSET_ON
	default:
		return nil, fmt.Errorf("metal: COLI_METAL_RESSET is %q; use 0, 1 or leave it unset", o.ResidencySet)
	}
	source := C.CString(Source())
	defer C.free(unsafe.Pointer(source))
	b := &Backend{fallback: o.Fallback, stop: make(chan struct{})}
	var reason C.coli_metal_error
	if status := C.coli_metal_init(source, mode, &b.c, &reason); status != C.COLI_METAL_OK {
		return nil, failure("open", status, &reason)
	}
	b.name = "metal (" + C.GoString(C.coli_metal_device_name(b.c)) + ")"
	b.layer = (*C.coli_layer_call)(C.calloc(1, C.sizeof_coli_layer_call))
	var set C.coli_metal_resset_statistics
	C.coli_metal_resset_stats(b.c, &set)
	if mode == C.COLI_METAL_RESSET_ON && set.enabled == 0 {
		notices := o.Notices
		if notices == nil {
			notices = os.Stderr
		}
		fmt.Fprintln(notices, "METAL-RESSET: this system has no residency sets (macOS 15 has); buffers are declared one by one")
	}
	b.lastUse.Store(time.Now().UnixNano())
	if set.enabled != 0 {
		b.stopped.Add(1)
		go b.keepWired()
	}
	return b, nil
}

func (b *Backend) keepWired() {
	defer b.stopped.Done()
	ticker := time.NewTicker(heartbeatPeriod)
	defer ticker.Stop()
	claimed := false
	for {
		select {
		case <-b.stop:
			return
		case now := <-ticker.C:
			claimed = b.heartbeat(now, claimed)
		}
	}
}

// heartbeat is one beat; it takes whether the memory is claimed and returns whether it is now.
func (b *Backend) heartbeat(now time.Time, claimed bool) bool {
	switch nextBeat(now.Sub(time.Unix(0, b.lastUse.Load())), claimed) {
	case wire:
		C.coli_metal_heartbeat(b.c, 1)
		return true
	case letGo:
		C.coli_metal_heartbeat(b.c, 0)
		return false
	}
	return claimed
}

// Close waits for what is under way and releases everything.
func (b *Backend) Close() error {
	b.drive.Lock()
	defer b.drive.Unlock()
	b.open.Lock()
	defer b.open.Unlock()
	if b.c == nil {
		return nil
	}
	close(b.stop)
	b.stopped.Wait()
	C.coli_metal_shutdown(b.c)
	C.free(unsafe.Pointer(b.layer))
	b.caches.free()
	b.experts.free()
	b.c = nil
	if b.fallback == nil {
		return nil
	}
	return b.fallback.Close()
}

// Name names the GPU.
func (b *Backend) Name() string { return b.name }

// Counters may be read from any goroutine.
func (b *Backend) Counters() Counters {
	b.open.RLock()
	defer b.open.RUnlock()
	if b.c == nil {
		return Counters{}
	}
	var c C.coli_metal_counters
	var s C.coli_metal_resset_statistics
	var m C.coli_metal_memory
	var ranges, bytes C.uint64_t
	C.coli_metal_read_counters(b.c, &c)
	C.coli_metal_resset_stats(b.c, &s)
	C.coli_metal_mem_info(b.c, &m)
	C.coli_metal_stats(b.c, &ranges, &bytes)
	return Counters{
		Blocks: uint64(c.blocks), BlocksFailed: uint64(c.blocks_failed), Repeated: b.repeated.Load(), Experts: uint64(c.experts), Layers: uint64(c.layers),
		CommandBuffers: uint64(c.command_buffers), Dispatches: uint64(c.dispatches), UnalignedProducts: uint64(c.unaligned_products),
		ScratchAllocations: uint64(c.scratch_allocations), ResourcesDeclared: uint64(c.resources_declared),
		SetUp: time.Duration(c.setup_nanoseconds), Waiting: time.Duration(c.wait_nanoseconds), GPU: time.Duration(c.gpu_nanoseconds),
		Scatter: time.Duration(c.scatter_nanoseconds), ResidencySet: s.enabled != 0, SetMembers: uint64(s.members), SetAdds: uint64(s.adds),
		SetRemovals: uint64(s.removals), SetCommits: uint64(s.commits), SetCommit: time.Duration(s.commit_nanoseconds),
		Ranges: uint64(ranges), Bytes: uint64(bytes), Allocated: uint64(m.allocated), WorkingSet: uint64(m.working_set),
	}
}

// deviceError is a call that the GPU did not complete. Its outputs are garbage, its inputs intact: it may be repeated elsewhere.
type deviceError struct{ text string }

func (e *deviceError) Error() string { return e.text }

func failure(call string, status C.int, reason *C.coli_metal_error) error {
	if status == C.COLI_METAL_OK {
		return nil
	}
	text := fmt.Sprintf("metal: %s: %s", call, C.GoString(&reason.text[0]))
	if status == C.COLI_METAL_DEVICE || status == C.COLI_METAL_MEMORY {
		return &deviceError{text}
	}
	return errors.New(text)
}

// enter takes the GPU for one call; leave gives it back.
func (b *Backend) enter() error {
	b.drive.Lock()
	if b.c == nil {
		b.drive.Unlock()
		return errClosed
	}
	b.lastUse.Store(time.Now().UnixNano())
	return nil
}

func (b *Backend) leave() { b.drive.Unlock() }

// settle is the end of a call: what the GPU did not complete is repeated on the fallback, if there is one.
func (b *Backend) settle(err error, repeat func(compute.Backend) error) error {
	var lost *deviceError
	if err == nil || b.fallback == nil || !errors.As(err, &lost) {
		return err
	}
	if again := repeat(b.fallback); again != nil {
		return fmt.Errorf("%w; repeating it on %s failed too: %w", err, b.fallback.Name(), again)
	}
	b.repeated.Add(1)
	return nil
}

// Supports builds the kernels of an encoding.
func (b *Backend) Supports(e container.Encoding) bool {
	if b.enter() != nil {
		return false
	}
	defer b.leave()
	var reason C.coli_metal_error
	return C.coli_metal_prepare(b.c, C.uint32_t(e.Format), C.uint32_t(e.Group), &reason) == C.COLI_METAL_OK
}

// Register wraps memory for the GPU; registering an address again replaces its wrapper.
func (b *Backend) Register(memory []byte) error {
	b.open.RLock()
	defer b.open.RUnlock()
	if b.c == nil {
		return errClosed
	}
	var reason C.coli_metal_error
	return failure("register", C.coli_metal_register(b.c, unsafe.Pointer(unsafe.SliceData(memory)), C.uint64_t(len(memory)), &reason), &reason)
}

// Unregister takes memory back; it waits for command buffers that use it.
func (b *Backend) Unregister(memory []byte) error {
	b.open.RLock()
	defer b.open.RUnlock()
	if b.c == nil {
		return errClosed
	}
	var reason C.coli_metal_error
	return failure("unregister", C.coli_metal_unregister(b.c, unsafe.Pointer(unsafe.SliceData(memory)), &reason), &reason)
}

// list is an array in C memory that grows and is used again.
type list[T any] struct {
	first *T
	n     int
}

func (l *list[T]) grow(n int) ([]T, error) {
	if n > l.n {
		var zero T
		p := C.realloc(unsafe.Pointer(l.first), C.size_t(n)*C.size_t(unsafe.Sizeof(zero)))
		if p == nil {
			return nil, errors.New("metal: the system refused memory for a call")
		}
		l.first, l.n = (*T)(p), n
	}
	return unsafe.Slice(l.first, n), nil
}

func (l *list[T]) free() { C.free(unsafe.Pointer(l.first)) }
