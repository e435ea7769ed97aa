// Choices: the indexer's positions and the router's experts. Both are exact: equal numbers go to the lower position or id, NaN ranks
// below every number.

// scores[row][t] = scale · Σ_h weight[h] · relu(query[h] · key[t]), for rows whose context is longer than top_k. One position per thread.
kernel void index_scores(constant IndexParams &p [[buffer(0)]],
                         uint3 group [[threadgroup_position_in_grid]],
                         uint thread_index [[thread_index_in_threadgroup]]) {
    const uint row = group.y;
    const uint position = group.x * SCORE_THREADS + thread_index;
    device const RowInfo *info = rows_at(p.rows) + row;
    if (info->position < p.top_k || position > info->position) return;
    device const float *key = floats_at(info->cache[2]) + ulong(position) * p.dim;
    device const float *weights = floats_at(p.weights) + ulong(row) * p.heads;
    float score = 0.0f;
    for (uint h0 = 0; h0 < p.heads; h0 += SCORE_HEADS) {
        const uint heads = min(p.heads - h0, uint(SCORE_HEADS));
        device const float *query = floats_at(p.query) + (ulong(row) * p.heads + h0) * p.dim;
        float dots[SCORE_HEADS];
        for (uint h = 0; h < SCORE_HEADS; h++) dots[h] = 0.0f;
        for (uint d = 0; d < p.dim; d++) {
            const float k = key[d];
            for (uint h = 0; h < SCORE_HEADS; h++) dots[h] = fma(query[min(h, heads - 1) * p.dim + d], k, dots[h]);
        }
        for (uint h = 0; h < SCORE_HEADS; h++) {
            const float dot = dots[h] * p.scale_query;
            if (h < heads) score = fma(weights[h0 + h], dot < 0.0f ? 0.0f : dot, score); // NaN stays NaN
        }
    }
    mutable_floats_at(p.scores)[ulong(row) * p.score_stride + position] = score * p.scale_heads;
}

// What order entry i points at: positions from n on count as −∞.
inline uint tie_rank(device const float *scores, uint n, device const uint *order, uint i) {
    return order[i] < n ? order_key(scores[order[i]]) : 0x007FFFFFu; // order_key of −∞
}

// Puts the `count` best of `span` positions first, in the order in which Hugging Face's implementation on a CPU (torch.topk, by libstdc++'s
// nth_element) leaves them: which of several equal scores it keeps is an accident of that algorithm, and following it makes results
// comparable. One thread; only where scores tie at the threshold, which needs all index heads closed at once.
inline void tie_order(device const float *scores, uint n, uint count, uint span, device uint *order) {
    for (uint i = 0; i < span; i++) order[i] = i;
    uint first = 0;
    uint last = span;
    while (last - first > 3) {
        const uint a = first + 1;
        const uint b = first + (last - first) / 2;
        const uint c = last - 1;
        const uint ra = tie_rank(scores, n, order, a);
        const uint rb = tie_rank(scores, n, order, b);
        const uint rc = tie_rank(scores, n, order, c);
        const uint median = ra > rb ? (rb > rc ? b : ra > rc ? c : a) : (ra > rc ? a : rb > rc ? c : b);
        uint kept = order[first];
        order[first] = order[median];
        order[median] = kept;
        uint low = first + 1;
        uint high = last;
        const uint pivot = tie_rank(scores, n, order, first);
        for (;; low++) {
            while (tie_rank(scores, n, order, low) > pivot) low++;
            high--;
            while (pivot > tie_rank(scores, n, order, high)) high--;
            if (low >= high) break;
            kept = order[low];
            order[low] = order[high];
            order[high] = kept;
        }
        if (low < count) {
            first = low;
        } else {
            last = low;
        }
    }
    for (uint i = first + 1; i < last; i++) {
        for (uint j = i; j > first && tie_rank(scores, n, order, j) > tie_rank(scores, n, order, j - 1); j--) {
            const uint kept = order[j];
            order[j] = order[j - 1];
            order[j - 1] = kept;
        }
    }
}

// The top_k highest scores of a row, as ascending positions. The lowest chosen score is found two bits at a time, then every thread
// compacts its own run of positions.
kernel void index_select(constant IndexParams &p [[buffer(0)]],
                         uint3 group [[threadgroup_position_in_grid]],
                         uint simdgroup [[simdgroup_index_in_threadgroup]],
                         uint lane [[thread_index_in_simdgroup]],
                         uint thread_index [[thread_index_in_threadgroup]]) {
    threadgroup uint counts[3 * SELECT_THREADS / LANES];
    const uint row = group.x;
    device const RowInfo *info = rows_at(p.rows) + row;
    if (info->position < p.top_k) {
        if (thread_index == 0) {
            mutable_uints_at(p.counts)[row] = 0xFFFFFFFFu; // −1: all positions
            mutable_uints_at(p.tied)[row] = 0;
        }
        return;
    }
    const uint positions = info->position + 1;
    device const float *scores = floats_at(p.scores) + ulong(row) * p.score_stride;
    uint threshold = 0; // the highest key that at least top_k keys reach
    for (int shift = 30; shift >= 0; shift -= 2) {
        uint reach1 = 0, reach2 = 0, reach3 = 0;
        for (uint t = thread_index; t < positions; t += SELECT_THREADS) {
            const uint key = order_key(scores[t]);
            reach1 += key >= threshold + (1u << shift) ? 1 : 0;
            reach2 += key >= threshold + (2u << shift) ? 1 : 0;
            reach3 += key >= threshold + (3u << shift) ? 1 : 0;
        }
        reach1 = simd_sum(reach1);
        reach2 = simd_sum(reach2);
        reach3 = simd_sum(reach3);
        if (lane == 0) {
            counts[3 * simdgroup] = reach1;
            counts[3 * simdgroup + 1] = reach2;
            counts[3 * simdgroup + 2] = reach3;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        uint all1 = 0, all2 = 0, all3 = 0;
        for (uint i = 0; i < SELECT_THREADS / LANES; i++) {
            all1 += counts[3 * i];
            all2 += counts[3 * i + 1];
            all3 += counts[3 * i + 2];
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        const uint digit = all3 >= p.top_k ? 3 : all2 >= p.top_k ? 2 : all1 >= p.top_k ? 1 : 0;
        threshold += digit << shift;
    }

    const uint run = (positions + SELECT_THREADS - 1) / SELECT_THREADS;
    const uint begin = min(thread_index * run, positions);
    const uint end = min(begin + run, positions);
    uint above = 0, equal = 0;
    for (uint t = begin; t < end; t++) {
        const uint key = order_key(scores[t]);
        above += key > threshold ? 1 : 0;
        equal += key == threshold ? 1 : 0;
    }
    uint above_before = simd_prefix_exclusive_sum(above);
    uint equal_before = simd_prefix_exclusive_sum(equal);
    if (lane == LANES - 1) {
        counts[2 * simdgroup] = above_before + above;
        counts[2 * simdgroup + 1] = equal_before + equal;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint above_all = 0;
    uint equal_all = 0;
    for (uint i = 0; i < SELECT_THREADS / LANES; i++) {
        if (i < simdgroup) {
            above_before += counts[2 * i];
            equal_before += counts[2 * i + 1];
        }
        above_all += counts[2 * i];
        equal_all += counts[2 * i + 1];
    }
    const uint wanted = p.top_k - above_all; // of the equal ones, the first in position
    device uint *chosen = mutable_uints_at(p.positions) + ulong(row) * p.top_k;
    if (thread_index == 0) mutable_uints_at(p.tied)[row] = equal_all > wanted ? 1 : 0;
    if (equal_all > wanted && info->tie_span >= positions) {
        if (thread_index != 0) return;
        device uint *order = mutable_uints_at(p.order) + ulong(row) * p.order_stride;
        tie_order(scores, positions, p.top_k, info->tie_span, order);
        const uint mark = 0x80000000u;
        for (uint i = 0; i < p.top_k; i++) {
            const uint at = order[i] & ~mark;
            if (at < positions) order[at] |= mark;
        }
        uint k = 0;
        for (uint t = 0; t < positions; t++) {
            if (order[t] & mark) chosen[k++] = t;
        }
        mutable_uints_at(p.counts)[row] = k;
        return;
    }
    for (uint t = begin; t < end; t++) {
        const uint key = order_key(scores[t]);
        if (key > threshold) {
            chosen[above_before + min(equal_before, wanted)] = t;
            above_before++;
        } else if (key == threshold) {
            if (equal_before < wanted) chosen[above_before + equal_before] = t;
            equal_before++;
        }
    }
    if (thread_index == 0) mutable_uints_at(p.counts)[row] = p.top_k;
}

// What experts are chosen by: the score, with the selection bias where the model has one.
inline float choice_of(constant RouteParams &p, threadgroup const float *score, uint expert) {
    return (p.flags & ROUTE_BIAS) ? score[expert] + floats_at(p.bias)[expert] : score[expert];
}

// The router: scores from logits, groups, the per_token best, their weights. One threadgroup per row.
kernel void route(constant RouteParams &p [[buffer(0)]],
                  uint3 group [[threadgroup_position_in_grid]],
                  uint simdgroup [[simdgroup_index_in_threadgroup]],
                  uint lane [[thread_index_in_simdgroup]],
                  uint thread_index [[thread_index_in_threadgroup]]) {
    threadgroup float score[ROUTE_MAX_EXPERTS];
    threadgroup uint key[ROUTE_MAX_EXPERTS];
    threadgroup uint group_key[ROUTE_MAX_EXPERTS];
    threadgroup uint eligible[ROUTE_MAX_EXPERTS];
    threadgroup uint chosen[ROUTE_MAX_EXPERTS];
    threadgroup float partial[ROUTE_THREADS / LANES];
    const uint row = group.x;
    const uint n = p.experts_count;
    device const float *logits = floats_at(p.logits) + ulong(row) * n;

    if (p.flags & ROUTE_SIGMOID) {
        for (uint e = thread_index; e < n; e += ROUTE_THREADS) score[e] = sigmoid(logits[e]);
    } else {
        float highest = -3.0e38f;
        for (uint e = thread_index; e < n; e += ROUTE_THREADS) highest = logits[e] > highest ? logits[e] : highest;
        highest = simd_max(highest);
        if (lane == 0) partial[simdgroup] = highest;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = 0; i < ROUTE_THREADS / LANES; i++) highest = max(highest, partial[i]);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        float sum = 0.0f;
        for (uint e = thread_index; e < n; e += ROUTE_THREADS) {
            score[e] = exp(logits[e] - highest);
            if (!isnan(score[e])) sum += score[e];
        }
        sum = threadgroup_sum(sum, partial, ROUTE_THREADS / LANES, simdgroup, lane);
        for (uint e = thread_index; e < n; e += ROUTE_THREADS) score[e] /= sum;
    }
    for (uint e = thread_index; e < n; e += ROUTE_THREADS) {
        key[e] = order_key(choice_of(p, score, e));
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    // Group-limited routing: a group is worth the sum of its two best choices; only the top_groups best groups may be chosen from.
    const uint size = n / p.groups;
    for (uint g = thread_index; g < p.groups; g += ROUTE_THREADS) {
        uint best = g * size;
        for (uint e = g * size; e < (g + 1) * size; e++) best = key[e] > key[best] ? e : best;
        uint second = best == g * size ? best + 1 : g * size;
        for (uint e = g * size; e < (g + 1) * size; e++) second = e != best && key[e] > key[second] ? e : second;
        float worth = choice_of(p, score, best);
        if (size > 1 && key[second] != 0) worth += choice_of(p, score, second);
        group_key[g] = order_key(worth);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint e = thread_index; e < n; e += ROUTE_THREADS) {
        const uint mine = e / size;
        uint better = 0;
        for (uint g = 0; g < p.groups; g++) better += group_key[g] > group_key[mine] || (group_key[g] == group_key[mine] && g < mine) ? 1 : 0;
        eligible[e] = better < p.top_groups ? 1 : 0;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint e = thread_index; e < n; e += ROUTE_THREADS) {
        uint better = 0;
        for (uint i = 0; i < n; i++) better += eligible[i] != 0 && (key[i] > key[e] || (key[i] == key[e] && i < e)) ? 1 : 0;
        chosen[e] = eligible[e] != 0 && better < p.per_token ? 1 : 0;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (thread_index == 0) {
        float sum = 0.0f;
        uint k = 0;
        device uint *experts = mutable_uints_at(p.experts) + ulong(row) * p.per_token;
        device float *gates = mutable_floats_at(p.gates) + ulong(row) * p.per_token;
        for (uint e = 0; e < n; e++) {
            if (chosen[e] == 0) continue;
            experts[k] = e;
            sum += score[e];
            k++;
        }
        const float total = (p.flags & ROUTE_NORMALISE) ? sum + 1e-20f : 1.0f;
        for (uint i = 0; i < k; i++) gates[i] = score[experts[i]] / total * p.scale;
    }
}
