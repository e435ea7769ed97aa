//go:build (darwin && cgo) || metalsim

package metal

/*
#include "colibri_metal.h"
*/
import "C"

import (
	"unsafe"

	"colibri/backend/compute"
	"colibri/backend/container"
)

func floats(x []float32) *C.float { return (*C.float)(unsafe.Pointer(unsafe.SliceData(x))) }
func ints(x []int32) *C.int32_t   { return (*C.int32_t)(unsafe.Pointer(unsafe.SliceData(x))) }

func block(w *container.Block) C.coli_block {
	return C.coli_block{
		data: unsafe.Pointer(unsafe.SliceData(w.Data)), scales: floats(w.Scales), data_bytes: C.uint64_t(len(w.Data)), scale_count: C.uint64_t(len(w.Scales)),
		rows: C.uint32_t(w.Rows), columns: C.uint32_t(w.Columns), format: C.uint32_t(w.Format), group: C.uint32_t(w.Group),
	}
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
	var reason C.coli_metal_error
	w := block(table)
	err := failure("embed", C.coli_metal_embed(b.c, &w, ints(ids), floats(x), C.uint32_t(len(ids)), &reason), &reason)
	return b.settle(err, func(f compute.Backend) error { return f.Embed(table, ids, x) })
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
	var reason C.coli_metal_error
	cw := block(w)
	err := failure("linear", C.coli_metal_gemm(b.c, &cw, floats(x), floats(y), C.uint32_t(rows), &reason), &reason)
	return b.settle(err, func(f compute.Backend) error { return f.Linear(w, x, y, rows) })
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
	in := x
	if unsafe.SliceData(x) == unsafe.SliceData(y) {
		in = b.keep(x[:rows*len(weight)])
	}
	var reason C.coli_metal_error
	err := failure("normalise", C.coli_metal_norm(b.c, floats(weight), C.float(epsilon), floats(x), floats(y), C.uint32_t(len(weight)), C.uint32_t(rows), &reason), &reason)
	return b.settle(err, func(f compute.Backend) error { return f.Normalise(weight, epsilon, in, y, rows) })
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
	var reason C.coli_metal_error
	w := block(h.Head)
	err := failure("head", C.coli_metal_head(b.c, floats(h.Norm), C.float(h.Epsilon), &w, floats(h.X), floats(h.Normed), floats(h.Logits), C.uint32_t(h.Rows), &reason), &reason)
	return b.settle(err, func(f compute.Backend) error { return f.Head(h) })
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
	before := b.keep(c.X[:c.Rows*c.Hidden])
	var reason C.coli_metal_error
	err := failure("combine", C.coli_metal_combine(b.c, floats(c.Gates), floats(c.Output), floats(c.Shared), floats(c.X), C.uint32_t(c.Rows), C.uint32_t(c.PerToken),
		C.uint32_t(c.Hidden), &reason), &reason)
	return b.settle(err, func(f compute.Backend) error {
		copy(c.X, before)
		return f.Combine(c)
	})
}

// keep copies rows that a call will change, so that it can be repeated. Without a fallback nothing is kept.
func (b *Backend) keep(x []float32) []float32 {
	if b.fallback == nil {
		return nil
	}
	b.before = append(b.before[:0], x...)
	return b.before
}

// pending is a MoE block under way.
type pending struct {
	b      *Backend
	call   *compute.MoECall
	submit *C.coli_metal_submit
}

// Wait waits for the block and checks how it ended.
func (p *pending) Wait() error {
	if err := p.b.enter(); err != nil {
		return err
	}
	defer p.b.leave()
	var reason C.coli_metal_error
	err := failure("experts", C.coli_metal_moe_block_end(p.b.c, p.submit, &reason), &reason)
	return p.b.settle(err, func(f compute.Backend) error { return repeatMoE(f, p.call) })
}

func repeatMoE(f compute.Backend, call *compute.MoECall) error {
	again, err := f.MoEBegin(call)
	if err != nil {
		return err
	}
	return again.Wait()
}

// finished is work that was done before MoEBegin returned.
type finished struct{}

func (finished) Wait() error { return nil }

// MoEBegin submits experts and returns; several submits may be under way.
func (b *Backend) MoEBegin(m *compute.MoECall) (compute.Pending, error) {
	if err := checkMoE(m); err != nil {
		return nil, err
	}
	if err := b.enter(); err != nil {
		return nil, err
	}
	defer b.leave()
	experts, err := b.experts.grow(len(m.Work))
	if err != nil {
		return nil, err
	}
	b.inputs, b.outputs = b.inputs[:0], b.outputs[:0]
	for i := range m.Work {
		w := &m.Work[i]
		experts[i] = C.coli_expert{gate: block(&w.Gate), up: block(&w.Up), down: block(&w.Down), first: C.uint32_t(len(b.inputs)), count: C.uint32_t(len(w.Rows))}
		b.inputs = append(b.inputs, w.Rows...)
		b.outputs = append(b.outputs, w.Slots...)
	}
	if len(b.inputs) == 0 {
		return finished{}, nil
	}
	call := C.coli_moe_call{
		hidden: C.uint32_t(m.Hidden), inner: C.uint32_t(m.Inner), input_rows: C.uint32_t(len(m.Input) / m.Hidden), output_rows: C.uint32_t(len(m.Output) / m.Hidden),
		experts: C.uint32_t(len(m.Work)), pairs: C.uint32_t(len(b.inputs)),
	}
	p := &pending{b: b, call: m}
	var reason C.coli_metal_error
	err = failure("experts", C.coli_metal_moe_block_begin(b.c, &call, floats(m.Input), floats(m.Output), &experts[0], ints(b.inputs), ints(b.outputs), &p.submit, &reason), &reason)
	if err != nil {
		return finished{}, b.settle(err, func(f compute.Backend) error { return repeatMoE(f, m) })
	}
	return p, nil
}

// Layer runs a layer up to its expert ids.
func (b *Backend) Layer(l *compute.LayerCall) error {
	return b.runLayer(l, true, func(f compute.Backend) error {
		if err := f.Layer(l); err != nil {
			return err
		}
		return f.SharedExperts(l)
	})
}

// SharedExperts has nothing to do: they are part of the layer's command buffer.
func (b *Backend) SharedExperts(*compute.LayerCall) error { return nil }

func (b *Backend) runLayer(l *compute.LayerCall, network bool, repeat func(compute.Backend) error) error {
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
		caches[i] = C.coli_cache{latent: floats(c.Latent), rope: floats(c.Rope), index: floats(c.Index), keys: floats(c.Keys), values: floats(c.Values),
			capacity: C.uint64_t(c.Capacity)}
	}
	b.rows = b.rows[:0]
	for _, r := range l.Rows {
		b.rows = append(b.rows, C.coli_row{position: C.uint32_t(r.Position), cache: C.uint32_t(r.Cache), tie_span: C.uint32_t(r.TieSpan)})
	}
	describe(b.layer, l)
	before := b.keep(l.X[:len(l.Rows)*l.Config.Hidden])
	var counts, positions, tied []int32
	if l.Selection != nil {
		counts, positions, tied = l.Selection.Counts, l.Selection.Positions, l.Selection.Tied
	}
	var reason C.coli_metal_error
	var status C.int
	if network {
		status = C.coli_metal_layer_decode(b.c, b.layer, &b.rows[0], &caches[0], floats(l.Cos), floats(l.Sin), ints(counts), ints(positions), ints(tied), ints(l.Experts), floats(l.Gates), &reason)
	} else {
		status = C.coli_metal_attn_decode(b.c, b.layer, &b.rows[0], &caches[0], floats(l.Cos), floats(l.Sin), ints(counts), ints(positions), ints(tied), &reason)
	}
	return b.settle(failure("layer", status, &reason), func(f compute.Backend) error {
		copy(l.X, before)
		return repeat(f)
	})
}

func flag(b bool) C.uint32_t {
	if b {
		return 1
	}
	return 0
}

// shape is a layer's dimensions; index −1 stands for a sparse layer with every part that any layer has.
func shape(config *container.Config, index int, gate int) C.coli_layer_shape {
	a, moe := &config.Attention, &config.MoE
	s := C.coli_layer_shape{
		hidden: C.uint32_t(config.Hidden), heads: C.uint32_t(a.Heads), latent: flag(a.Kind == container.MLA),
		query_rank: C.uint32_t(a.QueryRank), kv_rank: C.uint32_t(a.KVRank), nope: C.uint32_t(a.NopeDim), rope: C.uint32_t(config.RoPE.Dim), value_dim: C.uint32_t(a.ValueDim),
		key_heads: C.uint32_t(a.KVHeads), head_dim: C.uint32_t(a.HeadDim), head_norm: flag(a.QKNorm == container.QKNormHead), full_norm: flag(a.QKNorm == container.QKNormFull),
		interleaved: flag(config.RoPE.Interleaved), index_heads: C.uint32_t(a.Index.Heads), index_dim: C.uint32_t(a.Index.HeadDim), index_top_k: C.uint32_t(a.Index.TopK),
		index_full: flag(a.Index.Heads > 0 && (index < 0 || a.Index.Full[index])), sparse: flag(moe.Experts > 0 && (index < 0 || config.Sparse[index])), inner: C.uint32_t(gate),
		experts: C.uint32_t(moe.Experts), per_token: C.uint32_t(moe.PerToken), groups: C.uint32_t(max(moe.Groups, 1)), top_groups: C.uint32_t(max(moe.TopGroups, 1)),
		sigmoid: flag(moe.Scoring == container.Sigmoid), normalise: flag(moe.Normalise), epsilon: C.float(config.NormEpsilon), latent_epsilon: C.float(a.LatentNormEpsilon), scale: C.float(a.Scale), clip: C.float(a.ClipQKV),
		route_scale: C.float(moe.Scale),
	}
	return s
}

func describe(call *C.coli_layer_call, l *compute.LayerCall) {
	w := l.Weights
	call.shape = shape(l.Config, l.Index, w.Gate.Rows)
	call.rows, call.caches, call.caches_only = C.uint32_t(len(l.Rows)), C.uint32_t(len(l.Caches)), flag(l.CachesOnly)
	call.x, call.normed, call.shared = floats(l.X), floats(l.Normed), floats(l.Shared)
	call.weights = C.coli_layer_weights{
		query_a: block(&w.QueryA), query_b: block(&w.QueryB), kv_a: block(&w.KVA), kv_b: block(&w.KVB),
		query: block(&w.Query), key: block(&w.Key), value: block(&w.Value), output: block(&w.Output),
		index_query: block(&w.IndexQuery), index_key: block(&w.IndexKey), index_score: block(&w.IndexScore),
		gate: block(&w.Gate), up: block(&w.Up), down: block(&w.Down), router: block(&w.Router),
		input_norm: floats(w.InputNorm), post_norm: floats(w.PostNorm), query_a_norm: floats(w.QueryANorm), kv_a_norm: floats(w.KVANorm),
		query_norm: floats(w.QueryNorm), key_norm: floats(w.KeyNorm), query_bias: floats(w.QueryBias), key_bias: floats(w.KeyBias), value_bias: floats(w.ValueBias),
		index_key_norm: floats(w.IndexKeyNorm), index_key_norm_bias: floats(w.IndexKeyNormBias), router_bias: floats(w.RouterBias),
	}
	// What the configuration does not ask for is not used, even if the file has it.
	if !l.Config.Attention.Bias {
		call.weights.query_bias, call.weights.key_bias, call.weights.value_bias = nil, nil, nil
	}
	if !l.Config.MoE.SelectionBias {
		call.weights.router_bias = nil
	}
}

// ScratchBytes is the working memory of layer calls, and of the experts of as many rows.
func (b *Backend) ScratchBytes(config *container.Config, rows, positions int) int64 {
	s := shape(config, -1, max(config.DenseInner, config.MoE.SharedInner))
	layer := int64(C.coli_metal_scratch_bytes(&s, C.uint32_t(rows), C.uint32_t(positions)))
	pairs := int64(rows) * int64(config.MoE.PerToken)
	experts := pairs * (int64(config.MoE.Inner)*4 + 256)
	// Sizes are rounded up by up to a half when buffers are made.
	return (layer + experts) * 3 / 2
}
