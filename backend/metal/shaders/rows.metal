// Work on single rows: embedding, norms, and the per-head step between projections and attention.

kernel void embed(constant EmbedParams &p [[buffer(0)]],
                  uint3 group [[threadgroup_position_in_grid]],
                  uint thread_index [[thread_index_in_threadgroup]]) {
    const Matrix table = p.table;
    const uint unit = group.x * ELEMENT_THREADS + thread_index;
    if (unit * 8 >= table.columns) return;
    float v[8];
    weights8(FORMAT, GROUP_UNITS, WHOLE, table, uints_at(p.ids)[group.y], unit, v);
    device float *x = mutable_floats_at(p.x) + ulong(group.y) * table.columns + unit * 8;
    for (uint k = 0; k < 8; k++) {
        if (unit * 8 + k < table.columns) x[k] = v[k];
    }
}

// y = x · weight / sqrt(mean(x²) + epsilon); x and y may be the same rows.
kernel void rms_norm(constant NormParams &p [[buffer(0)]],
                     uint3 group [[threadgroup_position_in_grid]],
                     uint simdgroup [[simdgroup_index_in_threadgroup]],
                     uint lane [[thread_index_in_simdgroup]],
                     uint thread_index [[thread_index_in_threadgroup]]) {
    threadgroup float partial[NORM_THREADS / LANES];
    device const float *x = floats_at(p.x) + ulong(group.x) * p.x_stride;
    device float *y = mutable_floats_at(p.y) + ulong(group.x) * p.y_stride;
    device const float *weight = floats_at(p.weight);
    float squares = 0.0f;
    for (uint i = thread_index; i < p.width; i += NORM_THREADS) squares = fma(x[i], x[i], squares);
    squares = threadgroup_sum(squares, partial, NORM_THREADS / LANES, simdgroup, lane);
    const float scale = 1.0f / sqrt(squares / float(p.width) + p.epsilon);
    for (uint i = thread_index; i < p.width; i += NORM_THREADS) y[i] = x[i] * scale * weight[i];
}

// One head of one row: norm, rotation, and the way to where attention expects it. Rotation takes pairs (2j, 2j+1) or (j, j+half)
// and always leaves them split, (j, j+half): queries and keys are permuted alike, so their products are unchanged.
kernel void head_transform(constant HeadParams &p [[buffer(0)]],
                           uint3 group [[threadgroup_position_in_grid]],
                           uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float v[HEAD_MAX_DIM];
    const uint head = group.x;
    const uint row = group.y;
    device const float *in = floats_at(p.in) + ulong(row) * p.in_stride + head * p.in_head_stride + p.in_offset;
    float sum = 0.0f;
    float squares = 0.0f;
    for (uint i = lane; i < p.dim; i += LANES) {
        sum += in[i];
        squares = fma(in[i], in[i], squares);
    }
    float mean = 0.0f;
    float scale = 1.0f;
    if (p.norm == HEAD_NORM_RMS) {
        scale = 1.0f / sqrt(simd_sum(squares) / float(p.dim) + p.epsilon);
    } else if (p.norm == HEAD_NORM_LAYER) {
        mean = simd_sum(sum) / float(p.dim);
        float deviations = 0.0f;
        for (uint i = lane; i < p.dim; i += LANES) deviations = fma(in[i] - mean, in[i] - mean, deviations);
        scale = 1.0f / sqrt(simd_sum(deviations) / float(p.dim) + p.epsilon);
    }
    for (uint i = lane; i < p.dim; i += LANES) {
        float x = in[i];
        if (p.norm != HEAD_NORM_NONE) x = (x - mean) * scale * floats_at(p.weight)[i];
        if (p.norm == HEAD_NORM_LAYER) x += floats_at(p.bias)[i];
        if (p.clip != 0.0f) x = clamp(x, -p.clip, p.clip);
        v[i] = x;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    device float *out = mutable_floats_at(p.out) + ulong(row) * p.out_stride;
    if (p.cache != 0) {
        device const RowInfo *info = rows_at(p.rows) + row;
        out = mutable_floats_at(info->cache[p.cache - 1]) + ulong(info->position) * p.out_stride;
    }
    out += head * p.out_head_stride;
    const uint half_rotated = p.rotated / 2;
    for (uint i = lane; i < p.dim; i += LANES) {
        const uint at = i - p.rotate_from;
        if (i < p.rotate_from || at >= p.rotated) {
            out[i] = v[i];
        } else if (at < half_rotated) {
            const uint first = p.rotate_from + (p.interleaved ? 2 * at : at);
            const uint second = p.rotate_from + (p.interleaved ? 2 * at + 1 : at + half_rotated);
            const float c = floats_at(p.cos)[row * half_rotated + at];
            const float s = floats_at(p.sin)[row * half_rotated + at];
            out[p.rotate_from + at] = v[first] * c - v[second] * s;
            out[p.rotate_from + at + half_rotated] = v[second] * c + v[first] * s;
        }
    }
}
