// Attention of many rows over their caches, with matrix instructions. A threadgroup takes TILE_QUERIES queries that share a key head (heads of
// one row first, then further rows of the same sequence) and walks the positions 32 at a time: scores, running maximum and sum, weighted
// values. Each SIMD-group computes the scores of eight positions and keeps a quarter of the values' columns.
//
// Blocks begin at multiples of 32 whatever the tile, and a position that a row does not see weighs exactly 0: a row's numbers do not
// depend on the rows it shares a tile with.

enum TileGeometry {
    TILE_SIMDGROUPS = 4,
    TILE_THREADS = TILE_SIMDGROUPS * LANES,
    TILE_POSITIONS = 32
};

// Eight positions by eight columns; positions from `end` on are absent and count as 0.
inline void load_positions(thread simdgroup_float8x8 &block, device const float *base, uint stride, uint first, uint end, bool transposed,
                           threadgroup float *edge, uint lane) {
    if (first + 8 <= end) {
        simdgroup_load(block, base + ulong(first) * stride, stride, ulong2(0, 0), transposed);
        return;
    }
    for (uint i = lane; i < 64; i += LANES) edge[i] = first + i / 8 < end ? base[ulong(first + i / 8) * stride + i % 8] : 0.0f;
    simdgroup_barrier(mem_flags::mem_threadgroup);
    simdgroup_load(block, edge, 8, ulong2(0, 0), transposed);
    simdgroup_barrier(mem_flags::mem_threadgroup);
}

kernel void attend_tiles(constant AttendParams &p [[buffer(0)]],
                         uint3 group [[threadgroup_position_in_grid]],
                         uint simdgroup [[simdgroup_index_in_threadgroup]],
                         uint lane [[thread_index_in_simdgroup]],
                         uint thread_index [[thread_index_in_threadgroup]]) {
    threadgroup float queries[TILE_QUERIES * (ATTEND_MAX_DIM_A + ATTEND_MAX_DIM_B)]; // the result at the end
    threadgroup float scores[TILE_QUERIES * TILE_POSITIONS];
    threadgroup float weights[TILE_QUERIES * TILE_POSITIONS];
    threadgroup float corrections[TILE_QUERIES * TILE_QUERIES]; // a diagonal matrix
    threadgroup float maximum[TILE_QUERIES];
    threadgroup float total[TILE_QUERIES];
    threadgroup uint seen[TILE_QUERIES];
    threadgroup float edges[TILE_SIMDGROUPS * 64];

    const RowTile tile = row_tiles_at(p.tiles)[group.y];
    const uint head0 = group.x * HEADS_PER_SIMD; // heads per tile
    const uint width = DIM_A + DIM_B;
    for (uint i = thread_index; i < TILE_QUERIES * width; i += TILE_THREADS) {
        const uint q = i / width;
        const uint d = i % width;
        const uint head = head0 + q % HEADS_PER_SIMD;
        float v = 0.0f;
        if (q / HEADS_PER_SIMD < tile.count) {
            const ulong at = ulong(tile.first + q / HEADS_PER_SIMD) * p.heads + head;
            v = d < DIM_A ? floats_at(p.query_a)[at * DIM_A + d] : floats_at(p.query_b)[at * DIM_B + d - DIM_A];
        }
        queries[i] = v;
    }
    if (thread_index < TILE_QUERIES * TILE_QUERIES) corrections[thread_index] = 0.0f;
    if (thread_index < TILE_QUERIES) {
        const uint row = thread_index / HEADS_PER_SIMD;
        seen[thread_index] = row < tile.count ? rows_at(p.rows)[tile.first + row].position + 1 : 1;
        maximum[thread_index] = -3.0e38f;
        total[thread_index] = 0.0f;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    device const RowInfo *info = rows_at(p.rows) + tile.first; // of one sequence: all rows have the same caches
    const uint end = rows_at(p.rows)[tile.first + tile.count - 1].position + 1;
    const uint key_offset = (head0 / p.heads_per_key) * DIM_A;
    device const float *keys = floats_at(info->cache[0]) + key_offset;
    device const float *other = floats_at(info->cache[1]) + (SHARED_VALUES ? 0 : key_offset);
    device const float *values = SHARED_VALUES ? keys : other;
    threadgroup float *edge = edges + simdgroup * 64;
    const uint columns = DIM_A / 8 / TILE_SIMDGROUPS; // blocks of eight columns that this SIMD-group keeps
    simdgroup_float8x8 sums[ATTEND_MAX_DIM_A / 8 / TILE_SIMDGROUPS];
    for (uint j = 0; j < columns; j++) sums[j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);

    for (uint first = 0; first < end; first += TILE_POSITIONS) {
        const uint block = first + simdgroup * 8;
        simdgroup_float8x8 score = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        simdgroup_float8x8 a;
        simdgroup_float8x8 b;
        if (block < end) {
            for (uint k = 0; k < DIM_A; k += 8) {
                simdgroup_load(a, queries + k, width);
                load_positions(b, keys + k, p.key_stride, block, end, true, edge, lane);
                simdgroup_multiply_accumulate(score, a, b, score);
            }
            for (uint k = 0; k < DIM_B; k += 8) {
                simdgroup_load(a, queries + DIM_A + k, width);
                load_positions(b, other + k, p.key_stride_b, block, end, true, edge, lane);
                simdgroup_multiply_accumulate(score, a, b, score);
            }
        }
        simdgroup_store(score, scores + simdgroup * 8, TILE_POSITIONS);
        threadgroup_barrier(mem_flags::mem_threadgroup);

        for (uint q = simdgroup * 2; q < simdgroup * 2 + 2; q++) {
            const bool visible = first + lane < seen[q];
            const float s = visible ? scores[q * TILE_POSITIONS + lane] * p.scale : -3.0e38f;
            const float highest = max(maximum[q], simd_max(s));
            const float correction = exp(maximum[q] - highest);
            const float weight = visible ? exp(s - highest) : 0.0f;
            const float sum = total[q] * correction + simd_sum(weight);
            weights[q * TILE_POSITIONS + lane] = weight;
            simdgroup_barrier(mem_flags::mem_threadgroup); // all lanes have read what lane 0 now writes
            if (lane == 0) {
                maximum[q] = highest;
                total[q] = sum;
                corrections[q * TILE_QUERIES + q] = correction;
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);

        simdgroup_float8x8 scale;
        simdgroup_load(scale, corrections, TILE_QUERIES);
        for (uint j = 0; j < columns; j++) {
            simdgroup_float8x8 scaled = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
            simdgroup_multiply_accumulate(scaled, scale, sums[j], scaled);
            sums[j] = scaled;
        }
        for (uint k = 0; k < TILE_POSITIONS; k += 8) {
            if (first + k >= end) break;
            simdgroup_load(a, weights + k, TILE_POSITIONS);
            for (uint j = 0; j < columns; j++) {
                load_positions(b, values + (simdgroup * columns + j) * 8, p.key_stride, first + k, end, false, edge, lane);
                simdgroup_multiply_accumulate(sums[j], a, b, sums[j]);
            }
        }
    }

    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint j = 0; j < columns; j++) simdgroup_store(sums[j], queries + (simdgroup * columns + j) * 8, DIM_A);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = thread_index; i < TILE_QUERIES * DIM_A; i += TILE_THREADS) {
        const uint q = i / DIM_A;
        if (q / HEADS_PER_SIMD >= tile.count) continue;
        const ulong at = ulong(tile.first + q / HEADS_PER_SIMD) * p.heads + head0 + q % HEADS_PER_SIMD;
        mutable_floats_at(p.out)[at * DIM_A + i % DIM_A] = queries[i] / total[q];
    }
}
