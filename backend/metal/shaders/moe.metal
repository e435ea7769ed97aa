// Feed-forward networks with SwiGLU: routed experts, and with one item the shared experts and dense layers.
// An item is one expert with up to XROWS of the rows that chose it. Gate and up are computed together and multiplied in registers.

kernel void expert_gate_up(constant ExpertParams &p [[buffer(0)]],
                           uint3 group [[threadgroup_position_in_grid]],
                           uint simdgroup [[simdgroup_index_in_threadgroup]],
                           uint lane [[thread_index_in_simdgroup]]) {
    const uint output = (group.x * MATVEC_SIMDGROUPS + simdgroup) * GATE_ROWS;
    if (output >= p.inner_width) return;
    device const ExpertItem *item = items_at(p.items) + p.first_item + group.y;
    device const Pair *pairs = pairs_at(p.pairs) + item->first;
    const Matrix gate = item->gate;
    const Matrix up = item->up;
    const uint count = item->count;
    uint offsets[MAX_XROWS];
    for (uint t = 0; t < XROWS; t++) offsets[t] = pairs[min(t, count - 1)].input * p.hidden;
    float gates[GATE_ROWS * MAX_XROWS];
    float ups[GATE_ROWS * MAX_XROWS];
    const uint last = p.inner_width - 1;
    multiply_two<GATE_ROWS>(gate, up, output, last, lane, floats_at(p.input), offsets, gates, ups);
    for (uint r = 0; r < GATE_ROWS; r++) {
        const uint o = output + r;
        if (o >= p.inner_width) break;
        for (uint t = 0; t < XROWS; t++) {
            const float g = finish_row(FORMAT, gate, o, gates[r * MAX_XROWS + t]);
            const float u = finish_row(FORMAT_B, up, o, ups[r * MAX_XROWS + t]);
            if (lane == 0 && t < count) mutable_floats_at(p.inner)[ulong(item->first + t) * p.inner_width + o] = silu(g) * u;
        }
    }
}

kernel void expert_down(constant ExpertParams &p [[buffer(0)]],
                        uint3 group [[threadgroup_position_in_grid]],
                        uint simdgroup [[simdgroup_index_in_threadgroup]],
                        uint lane [[thread_index_in_simdgroup]]) {
    const uint output = (group.x * MATVEC_SIMDGROUPS + simdgroup) * MATVEC_ROWS;
    if (output >= p.hidden) return;
    device const ExpertItem *item = items_at(p.items) + p.first_item + group.y;
    device const Pair *pairs = pairs_at(p.pairs) + item->first;
    const Matrix down = item->down;
    const uint count = item->count;
    uint offsets[MAX_XROWS];
    for (uint t = 0; t < XROWS; t++) offsets[t] = (item->first + min(t, count - 1)) * p.inner_width;
    float sums[MATVEC_ROWS * MAX_XROWS];
    multiply_rows<MATVEC_ROWS>(down, output, p.hidden - 1, lane, floats_at(p.inner), offsets, sums);
    for (uint r = 0; r < MATVEC_ROWS; r++) {
        const uint o = output + r;
        if (o >= p.hidden) break;
        for (uint t = 0; t < XROWS; t++) {
            const float v = finish_row(FORMAT, down, o, sums[r * MAX_XROWS + t]);
            if (lane != 0 || t >= count) continue;
            device float *y = mutable_floats_at(p.output) + ulong(pairs[t].output) * p.hidden + o;
            *y = (p.flags & MATVEC_ADD) ? *y + v : v;
        }
    }
}

// x[r] += (Σ_k gates[r,k] · output[r·per_token + k]) + shared[r], experts in ascending order whoever computed them first.
kernel void combine(constant CombineParams &p [[buffer(0)]],
                    uint3 group [[threadgroup_position_in_grid]],
                    uint thread_index [[thread_index_in_threadgroup]]) {
    const uint i = group.x * ELEMENT_THREADS + thread_index;
    if (i >= p.hidden) return;
    const uint row = group.y;
    device const float *gates = floats_at(p.gates) + row * p.per_token;
    device const float *output = floats_at(p.output) + ulong(row) * p.per_token * p.hidden + i;
    float sum = 0.0f;
    for (uint k = 0; k < p.per_token; k++) sum = fma(gates[k], output[ulong(k) * p.hidden], sum);
    const ulong at = ulong(row) * p.hidden + i;
    mutable_floats_at(p.x)[at] += sum + floats_at(p.shared_output)[at];
}
