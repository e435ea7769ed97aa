// Feed-forward networks with SwiGLU: routed experts, and with one item the shared experts and dense layers.
// An item is one expert with up to XROWS of the rows that chose it. Gate and up are computed together and multiplied in registers.

template <uint ROWS, bool STAGED>
inline void expert_gate_up_rows(constant ExpertParams &p, uint3 group, uint simdgroup, uint lane, threadgroup float *staged) {
    const uint output = (group.x * MATVEC_SIMDGROUPS + simdgroup) * ROWS;
    if (!STAGED && output >= p.inner_width) return;
    device const ExpertItem *item = items_at(p.items) + p.first_item + group.y;
    device const Pair *pairs = pairs_at(p.pairs) + item->first;
    const Matrix gate = item->gate;
    const Matrix up = item->up;
    const uint first = item->first;
    const uint count = item->count;
    uint offsets[MAX_XROWS];
    for (uint t = 0; t < XROWS; t++) offsets[t] = pairs[min(t, count - 1)].input * p.hidden;
    float gates[ROWS * MAX_XROWS];
    float ups[ROWS * MAX_XROWS];
    const uint last = p.inner_width - 1;
    multiply_rows<ROWS, true, STAGED, false>(gate, up, min(span_units(FORMAT, GROUP_UNITS), span_units(FORMAT_B, GROUP_UNITS_B)), min(output, last), last, lane,
                                             LANES, simdgroup * LANES + lane, floats_at(p.input), offsets, staged, gates, ups);
    for (uint t = 0; t < XROWS; t++) {
        const float g = gather_rows<ROWS>(FORMAT, gate, output, last, t, lane, gates);
        const float u = gather_rows<ROWS>(FORMAT_B, up, output, last, t, lane, ups);
        if (lane < ROWS && output + lane <= last && t < count) {
            mutable_floats_at(p.inner)[ulong(first + t) * p.inner_width + output + lane] = silu(g) * u;
        }
    }
}

kernel void expert_gate_up(constant ExpertParams &p [[buffer(0)]],
                           uint3 group [[threadgroup_position_in_grid]],
                           uint simdgroup [[simdgroup_index_in_threadgroup]],
                           uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float staged[STAGE_COLUMNS];
    if (stages(FORMAT, GROUP_UNITS) && stages(FORMAT_B, GROUP_UNITS_B)) {
        if (XROWS != 1) {
            expert_gate_up_rows<GATE_ROWS, true>(p, group, simdgroup, lane, staged);
        } else if (FEW) {
            expert_gate_up_rows<1, true>(p, group, simdgroup, lane, staged);
        } else {
            expert_gate_up_rows<STAGED_ROWS, true>(p, group, simdgroup, lane, staged);
        }
    } else {
        expert_gate_up_rows<GATE_ROWS, false>(p, group, simdgroup, lane, staged);
    }
}

template <uint ROWS, bool STAGED>
inline void expert_down_rows(constant ExpertParams &p, uint3 group, uint simdgroup, uint lane, threadgroup float *staged) {
    const uint output = (group.x * MATVEC_SIMDGROUPS + simdgroup) * ROWS;
    if (!STAGED && output >= p.hidden) return;
    device const ExpertItem *item = items_at(p.items) + p.first_item + group.y;
    device const Pair *pairs = pairs_at(p.pairs) + item->first;
    const Matrix down = item->down;
    const uint count = item->count;
    uint offsets[MAX_XROWS];
    uint places[MAX_XROWS];
    for (uint t = 0; t < XROWS; t++) {
        offsets[t] = (item->first + min(t, count - 1)) * p.inner_width;
        places[t] = pairs[min(t, count - 1)].output;
    }
    float sums[ROWS * MAX_XROWS];
    const uint last = p.hidden - 1;
    multiply_rows<ROWS, false, STAGED, false>(down, down, span_units(FORMAT, GROUP_UNITS), min(output, last), last, lane, LANES, simdgroup * LANES + lane,
                                              floats_at(p.inner), offsets, staged, sums, sums);
    for (uint t = 0; t < XROWS; t++) {
        const float v = gather_rows<ROWS>(FORMAT, down, output, last, t, lane, sums);
        if (lane >= ROWS || output + lane > last || t >= count) continue;
        device float *y = mutable_floats_at(p.output) + ulong(places[t]) * p.hidden + output + lane;
        *y = (p.flags & MATVEC_ADD) ? *y + v : v;
    }
}

kernel void expert_down(constant ExpertParams &p [[buffer(0)]],
                        uint3 group [[threadgroup_position_in_grid]],
                        uint simdgroup [[simdgroup_index_in_threadgroup]],
                        uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float staged[STAGE_COLUMNS];
    if (!stages(FORMAT, GROUP_UNITS)) {
        expert_down_rows<DOWN_ROWS, false>(p, group, simdgroup, lane, staged);
    } else if (XROWS == 1) {
        expert_down_rows<STAGED_ROWS, true>(p, group, simdgroup, lane, staged);
    } else {
        expert_down_rows<DOWN_ROWS, true>(p, group, simdgroup, lane, staged);
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
