// Products of a few activation rows with a weight: bound by the reading of the weight; XROWS activation rows share one reading. Either the
// SIMD-groups of a threadgroup share the columns of MATVEC_ROWS weight rows, so that weights of few rows keep a GPU busy too, or each
// has rows of its own, where there are enough, or they are so short that there is little to share (share_columns decides, from the weight alone).

// One output, past the weight's scale of a row.
inline void matvec_store(constant MatvecParams &p, uint block, uint row, uint o, float v) {
    device float *y = mutable_floats_at(p.y) + ulong(row) * p.y_stride + block * p.y_block + o;
    if (p.flags & MATVEC_BIAS) v += floats_at(p.bias)[o];
    *y = (p.flags & MATVEC_ADD) ? *y + v : v;
}

template <uint ROWS, bool AHEAD>
inline void matvec_rows(constant MatvecParams &p, uint3 group, uint simdgroup, uint lane, thread const uint *offsets, threadgroup float *staged) {
    const uint output = (group.x * MATVEC_SIMDGROUPS + simdgroup) * ROWS;
    const Matrix w = p.w;
    const uint base = group.z * p.block_rows + p.block_first;
    const uint last = base + p.outputs - 1;
    float sums[ROWS * MAX_XROWS];
    multiply_rows<ROWS, false, true, AHEAD>(w, w, SPAN_MAX_UNITS, min(base + output, last), last, lane, LANES, simdgroup * LANES + lane,
                                              floats_at(p.x), offsets, staged, sums, sums);
    for (uint t = 0; t < XROWS; t++) {
        const float v = gather_rows<ROWS>(FORMAT, w, base + output, last, t, lane, sums);
        const uint row = group.y * XROWS + t;
        if (lane < ROWS && output + lane < p.outputs && row < p.count) matvec_store(p, group.z, row, output + lane, v);
    }
}

kernel void matvec(constant MatvecParams &p [[buffer(0)]],
                   uint3 group [[threadgroup_position_in_grid]],
                   uint simdgroup [[simdgroup_index_in_threadgroup]],
                   uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float staged[STAGE_COLUMNS]; // or each SIMD-group's share of the sums
    uint offsets[MAX_XROWS];
    for (uint t = 0; t < XROWS; t++) offsets[t] = min(group.y * XROWS + t, p.count - 1) * p.x_stride + group.z * p.x_block;
    if (!SHARE_COLUMNS) { // weights of few bits only
        if (XROWS != 1) {
            matvec_rows<DOWN_ROWS, false>(p, group, simdgroup, lane, offsets, staged);
        } else if (FEW) {
            matvec_rows<DOWN_ROWS, true>(p, group, simdgroup, lane, offsets, staged);
        } else {
            matvec_rows<STAGED_ROWS, false>(p, group, simdgroup, lane, offsets, staged);
        }
        return;
    }
    const Matrix w = p.w;
    const uint output = group.x * MATVEC_ROWS;
    const uint base = group.z * p.block_rows + p.block_first;
    float sums[MATVEC_ROWS * MAX_XROWS];
    multiply_rows<MATVEC_ROWS, false, false, false>(w, w, 2, base + output, base + p.outputs - 1, simdgroup * LANES + lane, MATVEC_SIMDGROUPS * LANES, 0,
                                                    floats_at(p.x), offsets, staged, sums, sums);
    for (uint r = 0; r < MATVEC_ROWS; r++) {
        for (uint t = 0; t < XROWS; t++) {
            const float share = simd_sum(sums[r * MAX_XROWS + t]);
            if (lane == 0) staged[(simdgroup * MATVEC_ROWS + r) * MAX_XROWS + t] = share;
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint r = lane / MAX_XROWS;
    const uint t = lane % MAX_XROWS;
    const uint o = output + r;
    const uint row = group.y * XROWS + t;
    if (simdgroup != 0 || r >= MATVEC_ROWS || t >= XROWS || o >= p.outputs || row >= p.count) return;
    float v = 0.0f;
    for (uint i = 0; i < MATVEC_SIMDGROUPS; i++) v += staged[(i * MATVEC_ROWS + r) * MAX_XROWS + t];
    if (scale_per_row(FORMAT)) v *= floats_at(w.scales)[base + o];
    matvec_store(p, group.z, row, o, v);
}
