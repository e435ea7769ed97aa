// Products of a few activation rows with a weight: bound by the reading of the weight. A threadgroup takes MATVEC_ROWS weight rows, and its
// SIMD-groups share their columns, so that weights of few rows keep a GPU busy too; XROWS activation rows share one reading.

kernel void matvec(constant MatvecParams &p [[buffer(0)]],
                   uint3 group [[threadgroup_position_in_grid]],
                   uint simdgroup [[simdgroup_index_in_threadgroup]],
                   uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float partial[MATVEC_SIMDGROUPS * MATVEC_ROWS * MAX_XROWS];
    const uint output = group.x * MATVEC_ROWS;
    const Matrix w = p.w;
    const uint base = group.z * p.block_rows + p.block_first;
    const uint t0 = group.y * XROWS;
    uint offsets[MAX_XROWS];
    for (uint t = 0; t < XROWS; t++) offsets[t] = min(t0 + t, p.count - 1) * p.x_stride + group.z * p.x_block;
    float sums[MATVEC_ROWS * MAX_XROWS];
    multiply_rows<MATVEC_ROWS>(w, base + output, base + p.outputs - 1, simdgroup * LANES + lane, MATVEC_SIMDGROUPS * LANES,
                               floats_at(p.x), offsets, sums);
    for (uint r = 0; r < MATVEC_ROWS; r++) {
        for (uint t = 0; t < XROWS; t++) {
            const float share = simd_sum(sums[r * MAX_XROWS + t]);
            if (lane == 0) partial[(simdgroup * MATVEC_ROWS + r) * MAX_XROWS + t] = share;
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint r = lane / MAX_XROWS;
    const uint t = lane % MAX_XROWS;
    const uint o = output + r;
    if (simdgroup != 0 || r >= MATVEC_ROWS || t >= XROWS || o >= p.outputs || t0 + t >= p.count) return;
    float v = 0.0f;
    for (uint i = 0; i < MATVEC_SIMDGROUPS; i++) v += partial[(i * MATVEC_ROWS + r) * MAX_XROWS + t];
    if (scale_per_row(FORMAT)) v *= floats_at(w.scales)[base + o];
    device float *y = mutable_floats_at(p.y) + ulong(t0 + t) * p.y_stride + group.z * p.y_block + o;
    if (p.flags & MATVEC_BIAS) v += floats_at(p.bias)[o];
    *y = (p.flags & MATVEC_ADD) ? *y + v : v;
}
