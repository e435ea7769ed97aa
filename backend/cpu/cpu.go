// Package cpu executes the operations of a forward pass on the processor: it is the compute.Backend that every machine has,
// and the reference for the others. The arithmetic is C (NEON, AVX2, AVX-512, or plain C, chosen when the backend is made); this
// side checks every size, so that the C side can trust them, and hands over one call per operation.
//
// Activations and sums are float32; large products round their activations, by rules stated in kernels_bytes.h and kernels_short.h. A result depends on the instruction set only: not on the number of threads, nor on how
// many rows are computed together. The package knows nothing of files, tokens, or which experts are in memory.
package cpu

/*
// -Wno-psabi: the portable lanes are wider than the baseline's registers, and every function that passes them is inlined.
#cgo CFLAGS: -O2 -g0 -Wall -Wextra -Werror -Wno-psabi
#cgo LDFLAGS: -lm -lpthread
#include <stdlib.h>
#include "layer.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"unsafe"

	"colibri/backend/compute"
	"colibri/backend/container"
)

// MaxThreads bounds the worker pool; more than this is a typing error, not a machine.
const MaxThreads = 1024

// Backend is the processor as a compute.Backend.
type Backend struct {
	threads int
	name    string
	precise C.int32_t

	mutex sync.Mutex // calls are one at a time
	c     *C.cpu_backend
	// The call as the C side sees it, kept so that a token allocates nothing. It points to Go memory, which pins holds still meanwhile.
	call    *C.cpu_layer_call
	block   *C.cpu_weight // the one weight of a simple call
	caches  list[C.cpu_cache]
	experts list[C.cpu_expert]
	numbers list[C.int32_t] // the experts' rows and slots: pinning parts of one array again and again allocates
	pins    runtime.Pinner
}

var _ compute.Backend = (*Backend)(nil)

// New makes a backend that calculates with threads threads, the caller's included.
func New(threads int) (*Backend, error) { return newVariant(threads, "") }

// newVariant is New with a given instruction set: "portable", "avx2", "avx512", "neon", or "" for the best one.
func newVariant(threads int, variant string) (*Backend, error) {
	if threads < 1 || threads > MaxThreads {
		return nil, fmt.Errorf("cpu: %d threads; use 1 to %d", threads, MaxThreads)
	}
	name := C.CString(variant)
	defer C.free(unsafe.Pointer(name))
	if C.cpu_kernels_named(name) == nil {
		return nil, fmt.Errorf("cpu: this machine has no %s instructions", variant)
	}
	b := &Backend{threads: threads, c: C.cpu_backend_new(C.int(threads), name)}
	if b.c == nil {
		return nil, fmt.Errorf("cpu: the system refused %d threads or their memory", threads)
	}
	b.name = "cpu (" + variantNames[C.GoString(b.c.kernels.name)] + ")"
	b.call = (*C.cpu_layer_call)(C.calloc(1, C.sizeof_cpu_layer_call))
	b.block = (*C.cpu_weight)(C.calloc(1, C.sizeof_cpu_weight))
	return b, nil
}

var variantNames = map[string]string{"portable": "portable C", "avx2": "AVX2", "avx512": "AVX-512", "neon": "NEON"}

// Close ends the threads. Further calls fail.
func (b *Backend) Close() error {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if b.c == nil {
		return nil
	}
	C.cpu_backend_free(b.c)
	C.free(unsafe.Pointer(b.call))
	C.free(unsafe.Pointer(b.block))
	b.caches.free()
	b.experts.free()
	b.numbers.free()
	b.c = nil
	return nil
}

// Name says which instructions are used.
func (b *Backend) Name() string { return b.name }

// KeepActivations makes products keep float32 activations, for evaluations, where they would round them to 8 or 16 bits.
func (b *Backend) KeepActivations() {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	b.precise = 1
}

// Threads is the number of threads that calculate.
func (b *Backend) Threads() int { return b.threads }

// Supports is true of every encoding that a container can have.
func (b *Backend) Supports(e container.Encoding) bool { return supported(e) == nil }

const page = container.ExpertAlignment

// Register and Unregister have nothing to do, for the processor reaches all memory; they hold callers to the contract.
func (b *Backend) Register(memory []byte) error { return pageAligned(memory) }

// Unregister: see Register.
func (b *Backend) Unregister(memory []byte) error { return pageAligned(memory) }

func pageAligned(memory []byte) error {
	address := uintptr(unsafe.Pointer(unsafe.SliceData(memory)))
	if len(memory) == 0 || address%page != 0 || len(memory)%page != 0 {
		return fmt.Errorf("cpu: memory of %d bytes at %#x; address and length must be multiples of %d", len(memory), address, page)
	}
	return nil
}

var (
	errClosed = errors.New("cpu: the backend is closed")
	errMemory = errors.New("cpu: the system refused memory for intermediate results; use a smaller batch or close other programs")
)

// enter takes the backend for one call; leave gives it back.
func (b *Backend) enter() error {
	b.mutex.Lock()
	if b.c == nil {
		b.mutex.Unlock()
		return errClosed
	}
	return nil
}

func (b *Backend) leave() {
	b.pins.Unpin()
	b.mutex.Unlock()
}

func outcome(status C.int) error {
	if status != 0 {
		return errMemory
	}
	return nil
}

// Embed writes rows of a table.
func (b *Backend) Embed(table *container.Block, ids []int32, x []float32) error {
	if err := checkEmbed(table, ids, x); err != nil || len(ids) == 0 {
		return err
	}
	if err := b.enter(); err != nil {
		return err
	}
	defer b.leave()
	*b.block = b.weight(table)
	C.cpu_embed(b.c, b.block, ints(b, ids), C.int(len(ids)), floats(b, x))
	return nil
}

// Linear multiplies rows by a weight.
func (b *Backend) Linear(w *container.Block, x, y []float32, rows int) error {
	if err := checkLinear(w, x, y, rows); err != nil || rows == 0 {
		return err
	}
	if err := b.enter(); err != nil {
		return err
	}
	defer b.leave()
	*b.block = b.weight(w)
	return outcome(C.cpu_linear(b.c, b.block, floats(b, x), floats(b, y), C.int(rows)))
}

// Normalise is the RMS norm of rows.
func (b *Backend) Normalise(weight []float32, epsilon float32, x, y []float32, rows int) error {
	if err := checkNormalise(weight, x, y, rows); err != nil || rows == 0 {
		return err
	}
	if err := b.enter(); err != nil {
		return err
	}
	defer b.leave()
	C.cpu_normalise(b.c, floats(b, weight), C.float(epsilon), floats(b, x), floats(b, y), C.int(rows), C.int(len(weight)))
	return nil
}

// Head computes logits.
func (b *Backend) Head(h *compute.HeadCall) error {
	if err := checkHead(h); err != nil || h.Rows == 0 {
		return err
	}
	if err := b.enter(); err != nil {
		return err
	}
	defer b.leave()
	*b.block = b.weight(h.Head)
	return outcome(C.cpu_head(b.c, C.int(h.Rows), floats(b, h.Norm), C.float(h.Epsilon), b.block, floats(b, h.X), floats(b, h.Normed), floats(b, h.Logits)))
}

// Combine adds the experts' outputs to the residual stream.
func (b *Backend) Combine(c *compute.CombineCall) error {
	if err := checkCombine(c); err != nil || c.Rows == 0 {
		return err
	}
	if err := b.enter(); err != nil {
		return err
	}
	defer b.leave()
	C.cpu_combine(b.c, C.int(c.Rows), C.int(c.PerToken), C.int(c.Hidden), floats(b, c.Gates), floats(b, c.Output), floats(b, c.Shared), floats(b, c.X))
	return nil
}

// finished is the Pending of work that was done before MoEBegin returned.
type finished struct{}

func (finished) Wait() error { return nil }

// MoEBegin computes the experts before it returns: the processor has no queue of its own to leave them to.
func (b *Backend) MoEBegin(m *compute.MoECall) (compute.Pending, error) {
	if err := checkMoE(m); err != nil {
		return nil, err
	}
	if len(m.Work) == 0 {
		return finished{}, nil
	}
	if err := b.enter(); err != nil {
		return nil, err
	}
	defer b.leave()
	experts, err := b.experts.grow(len(m.Work))
	if err != nil {
		return nil, err
	}
	total := 0
	for i := range m.Work {
		total += len(m.Work[i].Rows)
	}
	numbers, err := b.numbers.grow(2 * total)
	if err != nil {
		return nil, err
	}
	for i := range m.Work {
		w, n := &m.Work[i], len(m.Work[i].Rows)
		for j := range n {
			numbers[j], numbers[n+j] = C.int32_t(w.Rows[j]), C.int32_t(w.Slots[j])
		}
		experts[i] = C.cpu_expert{gate: b.weight(&w.Gate), up: b.weight(&w.Up), down: b.weight(&w.Down), count: C.int32_t(n)}
		if n > 0 {
			experts[i].rows, experts[i].slots = &numbers[0], &numbers[n]
		}
		numbers = numbers[2*n:]
	}
	status := C.cpu_experts(b.c, C.int(m.Hidden), C.int(m.Inner), C.int(len(m.Input)/m.Hidden), floats(b, m.Input), &experts[0], C.int(len(experts)),
		floats(b, m.Output))
	return finished{}, outcome(status)
}

// Layer runs a layer up to its expert ids.
func (b *Backend) Layer(l *compute.LayerCall) error {
	if err := checkLayer(l); err != nil || len(l.Rows) == 0 {
		return err
	}
	if err := b.enter(); err != nil {
		return err
	}
	defer b.leave()
	caches, err := b.caches.grow(len(l.Caches))
	if err != nil {
		return err
	}
	for i := range l.Caches {
		c := &l.Caches[i]
		caches[i] = C.cpu_cache{latent: floats(b, c.Latent), rope: floats(b, c.Rope), index: floats(b, c.Index), keys: floats(b, c.Keys),
			values: floats(b, c.Values)}
	}
	b.describe(b.call, l)
	b.call.caches = &caches[0]
	return outcome(C.cpu_layer(b.c, b.call))
}

// SharedExperts computes what Layer left of a call with SharedLater.
func (b *Backend) SharedExperts(l *compute.LayerCall) error {
	if !l.SharedLater {
		return nil
	}
	if err := checkShared(l); err != nil || len(l.Rows) == 0 {
		return err
	}
	if err := b.enter(); err != nil {
		return err
	}
	defer b.leave()
	w := l.Weights
	*b.call = C.cpu_layer_call{hidden: C.int32_t(l.Config.Hidden), row_count: C.int32_t(len(l.Rows)),
		gate: b.weight(&w.Gate), up: b.weight(&w.Up), down: b.weight(&w.Down), normed: floats(b, l.Normed), shared: floats(b, l.Shared)}
	return outcome(C.cpu_shared_experts(b.c, b.call))
}

// describe writes the call for the C side.
func (b *Backend) describe(c *C.cpu_layer_call, l *compute.LayerCall) {
	config, w := l.Config, l.Weights
	a, m := &config.Attention, &config.MoE
	*c = C.cpu_layer_call{
		hidden: C.int32_t(config.Hidden), epsilon: C.float(config.NormEpsilon), latent_epsilon: C.float(a.LatentNormEpsilon),
		mla: flag(a.Kind == container.MLA), heads: C.int32_t(a.Heads), kv_heads: C.int32_t(a.KVHeads), head_dim: C.int32_t(a.HeadDim),
		qk_norm: C.int32_t(a.QKNorm), clip: C.float(a.ClipQKV), scale: C.float(a.Scale),
		query_rank: C.int32_t(a.QueryRank), kv_rank: C.int32_t(a.KVRank), nope_dim: C.int32_t(a.NopeDim), value_dim: C.int32_t(a.ValueDim),
		rope_dim: C.int32_t(config.RoPE.Dim), interleaved: flag(config.RoPE.Interleaved),
		input_norm: floats(b, w.InputNorm), post_norm: floats(b, w.PostNorm),
		output: b.weight(&w.Output), gate: b.weight(&w.Gate), up: b.weight(&w.Up), down: b.weight(&w.Down),
		row_count: C.int32_t(len(l.Rows)), rows: (*C.cpu_row)(pinned(b, l.Rows)), cos: floats(b, l.Cos), sin: floats(b, l.Sin), x: floats(b, l.X),
		caches_only: flag(l.CachesOnly),
	}
	if a.Kind == container.MLA {
		c.query_a, c.query_b, c.kv_a, c.kv_b = b.weight(&w.QueryA), b.weight(&w.QueryB), b.weight(&w.KVA), b.weight(&w.KVB)
		c.query_a_norm, c.kv_a_norm = floats(b, w.QueryANorm), floats(b, w.KVANorm)
	} else {
		c.query, c.key, c.value = b.weight(&w.Query), b.weight(&w.Key), b.weight(&w.Value)
		c.query_bias, c.key_bias, c.value_bias = floats(b, w.QueryBias), floats(b, w.KeyBias), floats(b, w.ValueBias)
		c.query_norm, c.key_norm = floats(b, w.QueryNorm), floats(b, w.KeyNorm)
	}
	if a.Index.Heads > 0 {
		c.index_topk = C.int32_t(a.Index.TopK)
		c.selection_counts, c.selection_positions, c.selection_tied = ints(b, l.Selection.Counts), ints(b, l.Selection.Positions), ints(b, l.Selection.Tied)
		if a.Index.Full[l.Index] {
			c.index_heads, c.index_dim = C.int32_t(a.Index.Heads), C.int32_t(a.Index.HeadDim)
			c.index_query, c.index_key, c.index_score = b.weight(&w.IndexQuery), b.weight(&w.IndexKey), b.weight(&w.IndexScore)
			c.index_key_norm, c.index_key_norm_bias = floats(b, w.IndexKeyNorm), floats(b, w.IndexKeyNormBias)
		}
	}
	if config.Sparse[l.Index] {
		c.sparse, c.shared_later = 1, flag(l.SharedLater)
		c.experts, c.per_token, c.sigmoid = C.int32_t(m.Experts), C.int32_t(m.PerToken), flag(m.Scoring == container.Sigmoid)
		c.groups, c.top_groups, c.normalise_gates, c.routed_scale = C.int32_t(m.Groups), C.int32_t(m.TopGroups), flag(m.Normalise), C.float(m.Scale)
		c.router = b.weight(&w.Router)
		if m.SelectionBias {
			c.router_bias = floats(b, w.RouterBias)
		}
		c.normed, c.shared, c.gates, c.expert_ids = floats(b, l.Normed), floats(b, l.Shared), floats(b, l.Gates), ints(b, l.Experts)
	}
}

func flag(on bool) C.int32_t {
	if on {
		return 1
	}
	return 0
}

// weight describes a block for the C side; an absent one has no rows.
func (b *Backend) weight(w *container.Block) C.cpu_weight {
	return C.cpu_weight{format: C.int32_t(w.Format), group: C.int32_t(w.Group), rows: C.int32_t(w.Rows), columns: C.int32_t(w.Columns),
		precise: b.precise, data: pinned(b, w.Data), scales: floats(b, w.Scales)}
}

// pinned is the address of a slice for the rest of the call. Most of it is not Go's memory, for which Pin does nothing.
func pinned[T any](b *Backend, s []T) unsafe.Pointer {
	if len(s) == 0 {
		return nil
	}
	p := unsafe.SliceData(s)
	b.pins.Pin(p)
	return unsafe.Pointer(p)
}

func floats(b *Backend, s []float32) *C.float { return (*C.float)(pinned(b, s)) }
func ints(b *Backend, s []int32) *C.int32_t   { return (*C.int32_t)(pinned(b, s)) }

// list is C memory that grows and is kept.
type list[T any] struct {
	memory *T
	room   int
}

func (l *list[T]) grow(n int) ([]T, error) {
	if n > l.room {
		var one T
		l.free()
		l.memory = (*T)(C.calloc(C.size_t(n), C.size_t(unsafe.Sizeof(one))))
		if l.memory == nil {
			return nil, errMemory
		}
		l.room = n
	}
	return unsafe.Slice(l.memory, n), nil
}

func (l *list[T]) free() {
	C.free(unsafe.Pointer(l.memory))
	l.memory, l.room = nil, 0
}
