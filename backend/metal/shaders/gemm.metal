// Products of many activation rows with a weight: bound by arithmetic, so the SIMD-group matrix instructions carry them. A
// threadgroup of four SIMD-groups computes a tile of GEMM_OUTPUTS outputs by GEMM_ROWS rows; weights are unpacked to f32 in threadgroup
// memory once per tile. Accumulation is f32 throughout.
//
// In the fused gate-and-up kernel half of the tile's outputs are gate rows, the other half the same rows of up.

enum GemmTile {
    GEMM_THREADS = 128,
    GEMM_STRIDE = GEMM_DEPTH + 4 // keeps the rows of a tile off each other's banks
};

// Puts the tile's weights for columns first … first+GEMM_DEPTH−1 into `tile`. Outputs past the weight's last row are zero.
inline void stage_weights(uint format, uint group_units, bool whole, thread const Matrix &w, uint row0, uint rows, uint to, uint first,
                          uint thread_index, threadgroup float *tile) {
    for (uint i = thread_index; i < rows * (GEMM_DEPTH / 8); i += GEMM_THREADS) {
        const uint r = i / (GEMM_DEPTH / 8);
        const uint unit = i % (GEMM_DEPTH / 8);
        float q[8];
        for (uint k = 0; k < 8; k++) q[k] = 0.0f;
        if (row0 + r < w.rows && first + unit * 8 < w.columns) {
            weights8(format, group_units, whole, w, row0 + r, first / 8 + unit, q);
        }
        for (uint k = 0; k < 8; k++) tile[(to + r) * GEMM_STRIDE + unit * 8 + k] = q[k];
    }
}

// result[row · GEMM_OUTPUTS + output] of a tile; staging areas and result share `memory`.
// rows_at_offsets: where activation row r of the tile begins in x.
inline void gemm_tile(bool fused, thread const Matrix &w, thread const Matrix &w_b, uint row0, device const float *x,
                      threadgroup const uint *offsets, uint count, uint simdgroup, uint thread_index, threadgroup float *memory) {
    threadgroup float *weights = memory;
    threadgroup float *inputs = memory + GEMM_OUTPUTS * GEMM_STRIDE;
    simdgroup_float8x8 sums[8];
    for (uint i = 0; i < 8; i++) sums[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    const uint output0 = (simdgroup & 1) * 32;
    const uint input0 = (simdgroup >> 1) * 16;
    for (uint first = 0; first < w.columns; first += GEMM_DEPTH) {
        if (fused) {
            stage_weights(FORMAT, GROUP_UNITS, WHOLE, w, row0, GEMM_OUTPUTS / 2, 0, first, thread_index, weights);
            stage_weights(FORMAT_B, GROUP_UNITS_B, WHOLE_B, w_b, row0, GEMM_OUTPUTS / 2, GEMM_OUTPUTS / 2, first, thread_index, weights);
        } else {
            stage_weights(FORMAT, GROUP_UNITS, WHOLE, w, row0, GEMM_OUTPUTS, 0, first, thread_index, weights);
        }
        for (uint i = thread_index; i < GEMM_ROWS * (GEMM_DEPTH / 8); i += GEMM_THREADS) {
            const uint r = i / (GEMM_DEPTH / 8);
            const uint unit = i % (GEMM_DEPTH / 8);
            float v[8];
            for (uint k = 0; k < 8; k++) v[k] = 0.0f;
            if (r < count && first + unit * 8 < w.columns) load8(WHOLE, x + offsets[r], first / 8 + unit, w.columns, v);
            for (uint k = 0; k < 8; k++) inputs[r * GEMM_STRIDE + unit * 8 + k] = v[k];
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint k = 0; k < GEMM_DEPTH; k += 8) {
            simdgroup_float8x8 a[2];
            simdgroup_float8x8 b[4];
            for (uint i = 0; i < 2; i++) simdgroup_load(a[i], inputs + (input0 + i * 8) * GEMM_STRIDE + k, GEMM_STRIDE);
            for (uint i = 0; i < 4; i++) simdgroup_load(b[i], weights + (output0 + i * 8) * GEMM_STRIDE + k, GEMM_STRIDE, ulong2(0, 0), true);
            for (uint i = 0; i < 2; i++) {
                for (uint j = 0; j < 4; j++) simdgroup_multiply_accumulate(sums[i * 4 + j], a[i], b[j], sums[i * 4 + j]);
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    for (uint i = 0; i < 2; i++) {
        for (uint j = 0; j < 4; j++) {
            simdgroup_store(sums[i * 4 + j], memory + (input0 + i * 8) * GEMM_OUTPUTS + output0 + j * 8, GEMM_OUTPUTS);
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
}

kernel void gemm(constant MatvecParams &p [[buffer(0)]],
                 uint3 group [[threadgroup_position_in_grid]],
                 uint simdgroup [[simdgroup_index_in_threadgroup]],
                 uint thread_index [[thread_index_in_threadgroup]]) {
    threadgroup float memory[(GEMM_OUTPUTS + GEMM_ROWS) * GEMM_STRIDE];
    threadgroup uint offsets[GEMM_ROWS];
    Matrix w = p.w;
    const uint base = group.z * p.block_rows + p.block_first;
    w.rows = base + p.outputs; // rows past this block's last count as absent
    const uint output0 = group.x * GEMM_OUTPUTS;
    const uint t0 = group.y * GEMM_ROWS;
    const uint count = min(p.count - t0, uint(GEMM_ROWS));
    if (thread_index < GEMM_ROWS) offsets[thread_index] = (t0 + thread_index) * p.x_stride + group.z * p.x_block;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    gemm_tile(false, w, w, base + output0, floats_at(p.x), offsets, count, simdgroup, thread_index, memory);
    for (uint i = thread_index; i < GEMM_ROWS * GEMM_OUTPUTS; i += GEMM_THREADS) {
        const uint t = i / GEMM_OUTPUTS;
        const uint o = output0 + i % GEMM_OUTPUTS;
        if (t >= count || o >= p.outputs) continue;
        float v = memory[i];
        if (p.flags & MATVEC_BIAS) v += floats_at(p.bias)[o];
        device float *y = mutable_floats_at(p.y) + ulong(t0 + t) * p.y_stride + group.z * p.y_block + o;
        *y = (p.flags & MATVEC_ADD) ? *y + v : v;
    }
}

kernel void expert_gemm_gate_up(constant ExpertParams &p [[buffer(0)]],
                                uint3 group [[threadgroup_position_in_grid]],
                                uint simdgroup [[simdgroup_index_in_threadgroup]],
                                uint thread_index [[thread_index_in_threadgroup]]) {
    threadgroup float memory[(GEMM_OUTPUTS + GEMM_ROWS) * GEMM_STRIDE];
    threadgroup uint offsets[GEMM_ROWS];
    device const ExpertItem *item = items_at(p.items) + p.first_item + group.y;
    const Matrix gate = item->gate;
    const Matrix up = item->up;
    const uint count = item->count;
    if (thread_index < count) offsets[thread_index] = pairs_at(p.pairs)[item->first + thread_index].input * p.hidden;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint output0 = group.x * (GEMM_OUTPUTS / 2);
    gemm_tile(true, gate, up, output0, floats_at(p.input), offsets, count, simdgroup, thread_index, memory);
    for (uint i = thread_index; i < GEMM_ROWS * (GEMM_OUTPUTS / 2); i += GEMM_THREADS) {
        const uint t = i / (GEMM_OUTPUTS / 2);
        const uint o = i % (GEMM_OUTPUTS / 2);
        if (t >= count || output0 + o >= p.inner_width) continue;
        const float g = memory[t * GEMM_OUTPUTS + o];
        const float u = memory[t * GEMM_OUTPUTS + GEMM_OUTPUTS / 2 + o];
        mutable_floats_at(p.inner)[ulong(item->first + t) * p.inner_width + output0 + o] = silu(g) * u;
    }
}

kernel void expert_gemm_down(constant ExpertParams &p [[buffer(0)]],
                             uint3 group [[threadgroup_position_in_grid]],
                             uint simdgroup [[simdgroup_index_in_threadgroup]],
                             uint thread_index [[thread_index_in_threadgroup]]) {
    threadgroup float memory[(GEMM_OUTPUTS + GEMM_ROWS) * GEMM_STRIDE];
    threadgroup uint offsets[GEMM_ROWS];
    device const ExpertItem *item = items_at(p.items) + p.first_item + group.y;
    device const Pair *pairs = pairs_at(p.pairs) + item->first;
    const Matrix down = item->down;
    const uint count = item->count;
    if (thread_index < GEMM_ROWS) offsets[thread_index] = (item->first + thread_index) * p.inner_width;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint output0 = group.x * GEMM_OUTPUTS;
    gemm_tile(false, down, down, output0, floats_at(p.inner), offsets, count, simdgroup, thread_index, memory);
    for (uint i = thread_index; i < GEMM_ROWS * GEMM_OUTPUTS; i += GEMM_THREADS) {
        const uint t = i / GEMM_OUTPUTS;
        const uint o = output0 + i % GEMM_OUTPUTS;
        if (t >= count || o >= p.hidden) continue;
        device float *y = mutable_floats_at(p.output) + ulong(pairs[t].output) * p.hidden + o;
        *y = (p.flags & MATVEC_ADD) ? *y + memory[i] : memory[i];
    }
}
