// Attention of single rows over their caches. A row's context is split into chunks that run in parallel; each chunk leaves its
// maximum, its sum and its weighted values, and attend_merge adds the chunks in order. The split depends on the row's context
// alone, so a row's result does not depend on what else is in the batch.
//
// MLA runs absorbed: queries are taken into the latent space (absorb), where all heads share one key, the latent (A) beside
// its rotated part (B), and the latent is the value too. Grouped-query attention has keys (A) and values of their own.

inline uint attend_chunk(uint positions) {
    const uint share = (positions + ATTEND_MAX_SPLITS - 1) / ATTEND_MAX_SPLITS;
    return max(uint(ATTEND_CHUNK), (share + LANES - 1) / LANES * LANES);
}

// The positions that a row sees: all up to its own, or the indexer's choice (then `chosen` is where it begins).
inline uint attended(constant AttendParams &p, uint row, thread bool &selected) {
    selected = false;
    if (p.counts != 0) {
        const int count = int(uints_at(p.counts)[row]);
        if (count >= 0) {
            selected = true;
            return uint(count);
        }
    }
    return rows_at(p.rows)[row].position + 1;
}

kernel void absorb(constant AbsorbParams &p [[buffer(0)]],
                   uint3 group [[threadgroup_position_in_grid]],
                   uint simdgroup [[simdgroup_index_in_threadgroup]],
                   uint lane [[thread_index_in_simdgroup]],
                   uint thread_index [[thread_index_in_threadgroup]]) {
    threadgroup float partial[ABSORB_SIMDGROUPS * ABSORB_MAX_RANK];
    const Matrix w = p.w;
    const uint head = group.x;
    const uint t0 = group.y * XROWS;
    const uint units = (w.columns + 7) / 8;
    float sums[MAX_XROWS * 2 * 8];
    for (uint i = 0; i < MAX_XROWS * 2 * 8; i++) sums[i] = 0.0f;
    for (uint d = simdgroup; d < p.nope; d += ABSORB_SIMDGROUPS) {
        float q[MAX_XROWS];
        for (uint t = 0; t < XROWS; t++) {
            q[t] = floats_at(p.q)[ulong(min(t0 + t, p.count - 1)) * p.q_stride + head * p.q_head_stride + d];
        }
        for (uint j = 0; j < 2; j++) {
            const uint unit = lane + j * LANES;
            if (unit >= units) break;
            float v[8];
            weights8(FORMAT, GROUP_UNITS, WHOLE, w, head * p.block_rows + d, unit, v);
            for (uint t = 0; t < XROWS; t++) {
                for (uint k = 0; k < 8; k++) sums[(t * 2 + j) * 8 + k] = fma(q[t], v[k], sums[(t * 2 + j) * 8 + k]);
            }
        }
    }
    for (uint t = 0; t < XROWS; t++) {
        for (uint j = 0; j < 2; j++) {
            const uint unit = lane + j * LANES;
            for (uint k = 0; k < 8; k++) {
                if (unit * 8 + k < w.columns) partial[simdgroup * ABSORB_MAX_RANK + unit * 8 + k] = sums[(t * 2 + j) * 8 + k];
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (t0 + t < p.count) {
            device float *out = mutable_floats_at(p.absorbed) + (ulong(t0 + t) * p.heads + head) * w.columns;
            for (uint c = thread_index; c < w.columns; c += ABSORB_SIMDGROUPS * LANES) {
                float sum = 0.0f;
                for (uint i = 0; i < ABSORB_SIMDGROUPS; i++) sum += partial[i * ABSORB_MAX_RANK + c];
                out[c] = sum;
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
}

// A SIMD-group takes HEADS_PER_SIMD heads that share a key head and one chunk of positions, 32 of them at a time: their scores
// first, then one exponential per lane, then their values. Lanes hold every 32nd number of queries, keys and values.
kernel void attend(constant AttendParams &p [[buffer(0)]],
                   uint3 group [[threadgroup_position_in_grid]],
                   uint simdgroup [[simdgroup_index_in_threadgroup]],
                   uint lane [[thread_index_in_simdgroup]]) {
    const uint head = (group.x * ATTEND_SIMDGROUPS + simdgroup) * HEADS_PER_SIMD;
    const uint row = group.z;
    if (head >= p.heads) return;
    bool selected;
    const uint positions = attended(p, row, selected);
    const uint chunk = attend_chunk(positions);
    const uint begin = group.y * chunk;
    if (begin >= positions) return;
    const uint end = min(begin + chunk, positions);

    device const RowInfo *info = rows_at(p.rows) + row;
    device const uint *chosen = uints_at(p.positions) + ulong(row) * p.top_k;
    const uint key_offset = (head / p.heads_per_key) * DIM_A;
    device const float *keys = floats_at(info->cache[0]) + key_offset;
    device const float *other = floats_at(info->cache[1]) + (SHARED_VALUES ? 0 : key_offset);

    const uint slots_a = (DIM_A + LANES - 1) / LANES;
    const uint slots_b = (DIM_B + LANES - 1) / LANES;
    float query_a[2][ATTEND_MAX_DIM_A / LANES];
    float query_b[2][ATTEND_MAX_DIM_B / LANES];
    float values[2][ATTEND_MAX_DIM_A / LANES];
    float maximum[2];
    float total[2];
    for (uint h = 0; h < HEADS_PER_SIMD; h++) {
        device const float *a = floats_at(p.query_a) + (ulong(row) * p.heads + head + h) * DIM_A;
        for (uint i = 0; i < slots_a; i++) {
            const uint d = lane + i * LANES;
            query_a[h][i] = d < DIM_A ? a[d] : 0.0f;
            values[h][i] = 0.0f;
        }
        if (DIM_B != 0) {
            device const float *b = floats_at(p.query_b) + (ulong(row) * p.heads + head + h) * DIM_B;
            for (uint i = 0; i < slots_b; i++) {
                const uint d = lane + i * LANES;
                query_b[h][i] = d < DIM_B ? b[d] : 0.0f;
            }
        }
        maximum[h] = -3.0e38f;
        total[h] = 0.0f;
    }

    for (uint first = begin; first < end; first += LANES) {
        const uint tile = min(end - first, uint(LANES));
        // Lane j looks up position j of the tile and later weighs it.
        uint place = 0;
        if (lane < tile) place = selected ? chosen[first + lane] : first + lane;
        float score[2] = {-3.0e38f, -3.0e38f};
        for (uint j = 0; j < tile; j++) {
            const uint at = simd_broadcast(place, ushort(j));
            device const float *key = keys + ulong(at) * p.key_stride;
            float sum[2] = {0.0f, 0.0f};
            for (uint i = 0; i < slots_a; i++) {
                const uint d = lane + i * LANES;
                const float k = d < DIM_A ? key[d] : 0.0f;
                for (uint h = 0; h < HEADS_PER_SIMD; h++) sum[h] = fma(query_a[h][i], k, sum[h]);
            }
            if (DIM_B != 0) {
                device const float *rotated = other + ulong(at) * p.key_stride_b;
                for (uint i = 0; i < slots_b; i++) {
                    const uint d = lane + i * LANES;
                    const float k = d < DIM_B ? rotated[d] : 0.0f;
                    for (uint h = 0; h < HEADS_PER_SIMD; h++) sum[h] = fma(query_b[h][i], k, sum[h]);
                }
            }
            for (uint h = 0; h < HEADS_PER_SIMD; h++) {
                const float s = simd_sum(sum[h]) * p.scale;
                if (lane == j) score[h] = s;
            }
        }
        float weight[2] = {0.0f, 0.0f};
        for (uint h = 0; h < HEADS_PER_SIMD; h++) {
            const float highest = max(maximum[h], simd_max(score[h]));
            const float correction = exp(maximum[h] - highest);
            maximum[h] = highest;
            weight[h] = lane < tile ? exp(score[h] - highest) : 0.0f;
            total[h] = total[h] * correction + simd_sum(weight[h]);
            for (uint i = 0; i < slots_a; i++) values[h][i] *= correction;
        }
        for (uint j = 0; j < tile; j++) {
            const uint at = simd_broadcast(place, ushort(j));
            device const float *value = SHARED_VALUES ? keys + ulong(at) * p.key_stride : other + ulong(at) * p.key_stride;
            float share[2] = {0.0f, 0.0f};
            for (uint h = 0; h < HEADS_PER_SIMD; h++) share[h] = simd_broadcast(weight[h], ushort(j));
            for (uint i = 0; i < slots_a; i++) {
                const uint d = lane + i * LANES;
                const float v = d < DIM_A ? value[d] : 0.0f;
                for (uint h = 0; h < HEADS_PER_SIMD; h++) values[h][i] = fma(share[h], v, values[h][i]);
            }
        }
    }

    for (uint h = 0; h < HEADS_PER_SIMD; h++) {
        device float *out = mutable_floats_at(p.partial) + ((ulong(row) * p.heads + head + h) * p.splits + group.y) * (DIM_A + 2);
        for (uint i = 0; i < slots_a; i++) {
            const uint d = lane + i * LANES;
            if (d < DIM_A) out[d] = values[h][i];
        }
        if (lane == 0) {
            out[DIM_A] = maximum[h];
            out[DIM_A + 1] = total[h];
        }
    }
}

kernel void attend_merge(constant AttendParams &p [[buffer(0)]],
                         uint3 group [[threadgroup_position_in_grid]],
                         uint lane [[thread_index_in_simdgroup]]) {
    const uint head = group.x;
    const uint row = group.y;
    bool selected;
    const uint positions = attended(p, row, selected);
    const uint chunk = attend_chunk(positions);
    const uint splits = (positions + chunk - 1) / chunk;
    device const float *partial = floats_at(p.partial) + (ulong(row) * p.heads + head) * p.splits * (DIM_A + 2);
    float maximum = -3.0e38f;
    for (uint i = 0; i < splits; i++) maximum = max(maximum, partial[i * (DIM_A + 2) + DIM_A]);
    float total = 0.0f;
    for (uint i = 0; i < splits; i++) {
        total = fma(exp(partial[i * (DIM_A + 2) + DIM_A] - maximum), partial[i * (DIM_A + 2) + DIM_A + 1], total);
    }
    device float *out = mutable_floats_at(p.out) + (ulong(row) * p.heads + head) * DIM_A;
    for (uint d = lane; d < DIM_A; d += LANES) {
        float sum = 0.0f;
        for (uint i = 0; i < splits; i++) {
            sum = fma(exp(partial[i * (DIM_A + 2) + DIM_A] - maximum), partial[i * (DIM_A + 2) + d], sum);
        }
        out[d] = sum / total;
    }
}
