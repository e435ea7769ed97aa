package cpu

// #include "attention.h"
import "C"

import "colibri/backend/container"

// ScratchBytes bounds the working memory for calls of up to rows rows at contexts of up to positions, whatever the weights' formats.
func (b *Backend) ScratchBytes(config *container.Config, rows, positions int) int64 {
	a, m := &config.Attention, &config.MoE
	floats := 0
	// Inputs in all layouts at once take less than three rows of the widest, 9/8 of a row and 16 lanes' block each: whole ones 1 row, nibbles 9/8,
	// numbers of 16 bits 33/64, of 8 bits 9/32 in either order, and crumbs, where those are, 272 floats, for they are left to fewer than 128 columns.
	// With float32 activations kept there are whole ones, nibbles and crumbs only, of 17/16.
	panel := func(columns int) int { return columns + columns/8 + 18*16 }
	width := a.Heads * a.HeadDim
	call := C.cpu_layer_call{heads: C.int32_t(a.Heads), head_dim: C.int32_t(a.HeadDim)}
	if a.Kind == container.MLA {
		width = a.Heads * max(a.ValueDim, a.NopeDim+config.RoPE.Dim)
		call.mla, call.kv_rank, call.rope_dim = 1, C.int32_t(a.KVRank), C.int32_t(config.RoPE.Dim)
		floats += rows * (a.QueryRank + a.KVRank + config.RoPE.Dim)
	}
	inner := max(config.DenseInner, m.SharedInner)
	slots := min(rows*m.PerToken, 1024)
	floats += 3 * rows * max(panel(config.Hidden), panel(width), panel(inner), panel(a.QueryRank))
	floats += rows * (2*config.Hidden + width + m.Experts + 2*a.KVHeads*a.HeadDim)
	floats += 2 * max(rows*inner, slots*m.Inner)
	floats += max(rows*width, slots*panel(m.Inner))
	if x := &a.Index; x.Heads > 0 {
		floats += rows*(2*x.Heads*(x.HeadDim+16)+x.HeadDim+x.Heads) + 2*min(rows, 16)*positions
	}
	floats += 4*rows*a.Heads + 64*m.Experts // descriptions of units and products
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if b.c != nil {
		floats += b.threads * int(max(C.cpu_attention_scratch(b.c, &call), b.c.kernels.product_scratch))
	}
	floats += 64 * (int(C.buffers) + b.threads) // rounding
	return 4 * int64(floats)
}

// scratchInUse is what the backend has taken so far.
func (b *Backend) scratchInUse() int64 { return int64(C.cpu_backend_bytes(b.c)) }
