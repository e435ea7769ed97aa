// Products of a few activation rows with a weight: bound by the reading of the weight. A SIMD-group takes MATVEC_ROWS weight rows,
// a threadgroup MATVEC_SIMDGROUPS times as many; XROWS activation rows share one reading.

kernel void matvec(constant MatvecParams &p [[buffer(0)]],
                   uint3 group [[threadgroup_position_in_grid]],
                   uint simdgroup [[simdgroup_index_in_threadgroup]],
                   uint lane [[thread_index_in_simdgroup]]) {
    const uint output = (group.x * MATVEC_SIMDGROUPS + simdgroup) * MATVEC_ROWS;
    if (output >= p.outputs) return;
    const Matrix w = p.w;
    const uint base = group.z * p.block_rows + p.block_first;
    const uint t0 = group.y * XROWS;
    uint offsets[MAX_XROWS];
    for (uint t = 0; t < XROWS; t++) offsets[t] = min(t0 + t, p.count - 1) * p.x_stride + group.z * p.x_block;
    float sums[MATVEC_ROWS * MAX_XROWS];
    multiply_rows<MATVEC_ROWS>(w, base + output, base + p.outputs - 1, lane, floats_at(p.x), offsets, sums);
    for (uint r = 0; r < MATVEC_ROWS; r++) {
        const uint o = output + r;
        if (o >= p.outputs) break;
        for (uint t = 0; t < XROWS; t++) {
            float v = finish_row(FORMAT, w, base + o, sums[r * MAX_XROWS + t]);
            if (lane != 0 || t0 + t >= p.count) continue;
            device float *y = mutable_floats_at(p.y) + ulong(t0 + t) * p.y_stride + group.z * p.y_block + o;
            if (p.flags & MATVEC_BIAS) v += floats_at(p.bias)[o];
            *y = (p.flags & MATVEC_ADD) ? *y + v : v;
        }
    }
}
