// Part of kernels_body.h: dots, softmax and weighted sums over positions of a cache.

INLINE vf load_part(const float *p, int n) {
    if (n >= LANES) return v_load(p);
    float part[LANES] = {0};
    memcpy(part, p, (size_t)n * sizeof *p);
    return v_load(part);
}

// Queries that go through keys and values together, as many as there are registers for their sums.
enum { most_queries = LANES == 16 ? 4 : 3 };

INLINE void dot_part(const int Q, const int T, const float *const *q, int q_offset, const float *const *k, int dim, vf acc[most_queries][8]) {
    int c = 0;
    for (; c + LANES <= dim; c += LANES) {
        vf qv[most_queries];
        UNROLL for (int i = 0; i < Q; i++) qv[i] = v_load(q[i] + q_offset + c);
        UNROLL for (int t = 0; t < T; t++) {
            const vf kv = v_load(k[t] + c);
            UNROLL for (int i = 0; i < Q; i++) acc[i][t] = v_fma(qv[i], kv, acc[i][t]);
        }
    }
    if (c < dim) {
        for (int t = 0; t < T; t++) {
            vf kv = load_part(k[t] + c, dim - c);
            for (int i = 0; i < Q; i++) acc[i][t] = v_fma(v_load(q[i] + q_offset + c), kv, acc[i][t]);
        }
    }
}

INLINE void dot_tile(const int Q, const int T, const float *const *q, const float *const *ka, int dim_a, const float *const *kb, int dim_b, float *out,
                     int stride) {
    vf acc[most_queries][8];
    UNROLL for (int i = 0; i < Q; i++) UNROLL for (int t = 0; t < T; t++) acc[i][t] = v_zero();
    dot_part(Q, T, q, 0, ka, dim_a, acc);
    if (dim_b) dot_part(Q, T, q, (dim_a + LANES - 1) / LANES * LANES, kb, dim_b, acc);
    UNROLL for (int i = 0; i < Q; i++) {
        if (T % 4 == 0) {
            UNROLL for (int t = 0; t < T; t += 4) v4_store(out + i * stride + t, v_sum4(acc[i][t], acc[i][t + 1], acc[i][t + 2], acc[i][t + 3]));
        } else {
            UNROLL for (int t = 0; t < T; t++) out[i * stride + t] = v_sum(acc[i][t]);
        }
    }
}

// Brings every passes-th line of rows into the cache, from the pass-th on: positions of a cache lie apart, so that the hardware's own guessing
// restarts at every one.
INLINE void fetch_rows(const float *const *rows, int count, int dim, int pass, int passes) {
    for (int t = 0; t < count; t++) {
        for (int c = pass * 16; c < dim; c += passes * 16) __builtin_prefetch(rows[t] + c);
    }
}

// What a pass over the positions fetches beside its work.
typedef struct {
    const float *const *rows;
    int dim, pass, passes;
} fetched;

// T positions at a time keep the multipliers busy; what is left of positions goes one by one.
INLINE void dot_tiles(const int Q, const int T, const float *const *q, const float *const *ka, int dim_a, const float *const *kb, int dim_b, int positions,
                      float *out, int stride, const fetched *f) {
    int t = 0;
#ifndef LANES_PORTABLE
    for (; t + T <= positions; t += T) {
        if (f->rows) fetch_rows(f->rows + t, T, f->dim, f->pass, f->passes);
        dot_tile(Q, T, q, ka + t, dim_a, kb + t, dim_b, out + t, stride);
    }
#else
    (void)T;
#endif
    if (f->rows) fetch_rows(f->rows + t, positions - t, f->dim, f->pass, f->passes);
    for (; t < positions; t++) dot_tile(Q, 1, q, ka + t, dim_a, kb + t, dim_b, out + t, stride);
}

// Positions that all queries go through before the next: with 160 floats of a key 10 KiB, which stay in a first-level cache beside the queries.
enum { score_stretch = 16 };

static void scores(const float *const *q, int n, const float *const *ka, int dim_a, const float *const *kb, int dim_b, int positions, float *out,
                   int stride, const float *const *fetch, int fetch_dim) {
    const int step = n > most_queries ? score_stretch : positions;
    for (int t = 0; t < positions; t += step) {
        const int count = positions - t < step ? positions - t : step;
        const float *const *a = ka + t, *const *b = kb + t;
        int i = 0;
        fetched f = {fetch ? fetch + t : NULL, fetch_dim, 0, n < most_queries ? 1 : n / most_queries};
#ifndef LANES_PORTABLE
        for (; most_queries == 4 && n - i >= 4; i += 4, f.pass++) dot_tiles(4, 4, q + i, a, dim_a, b, dim_b, count, out + i * stride + t, stride, &f);
        for (; n - i > 4 || n - i == 3; i += 3, f.pass++) dot_tiles(3, 4, q + i, a, dim_a, b, dim_b, count, out + i * stride + t, stride, &f);
        for (; n - i >= 2; i += 2, f.pass++) dot_tiles(2, 4, q + i, a, dim_a, b, dim_b, count, out + i * stride + t, stride, &f);
#endif
        for (; i < n; i++, f.pass++) dot_tiles(1, 8, q + i, a, dim_a, b, dim_b, count, out + i * stride + t, stride, &f);
    }
}

static void index_scores(const float *const *q, int n, const float *weight, float factor, const float *const *k, int dim, int positions, float *out) {
    float dots[4 * attention_tile];
    for (int t = 0; t < positions; t++) out[t] = 0;
    for (int i = 0; i < n; i += 4) {
        int m = n - i < 4 ? n - i : 4;
        scores(q + i, m, k, dim, k, 0, positions, dots, attention_tile, NULL, 0);
        for (int j = 0; j < m; j++) {
            for (int t = 0; t < positions; t++) {
                float d = dots[j * attention_tile + t] * factor;
                // not fmaxf: NaN must stay NaN
                out[t] += weight[i + j] * (d < 0 ? 0 : d);
            }
        }
    }
}

static float softmax_step(float *s, int n, float *maximum, float *sum) {
    float m = *maximum, lanes[LANES];
    int t = 0;
    if (n >= LANES) {
        vf most = v_load(s);
        for (t = LANES; t + LANES <= n; t += LANES) most = v_max(v_load(s + t), most);
        v_store(lanes, most);
        for (int w = LANES / 2; w > 0; w /= 2) {
            for (int j = 0; j < w; j++) lanes[j] = lanes[j + w] > lanes[j] ? lanes[j + w] : lanes[j];
        }
        m = lanes[0] > m ? lanes[0] : m;
    }
    for (; t < n; t++) m = s[t] > m ? s[t] : m;
    vf acc = v_zero();
    for (t = 0; t + LANES <= n; t += LANES) {
        vf e = v_exp(v_sub(v_load(s + t), v_set(m)));
        v_store(s + t, e);
        acc = v_add(acc, e);
    }
    float total = v_sum(acc);
    if (t < n) {
        for (int j = 0; j < LANES; j++) lanes[j] = t + j < n ? s[t + j] : m;
        v_store(lanes, v_exp(v_sub(v_load(lanes), v_set(m))));
        for (int j = 0; j < LANES && t < n; t++, j++) {
            s[t] = lanes[j];
            total += lanes[j];
        }
    }
    v_store(lanes, v_exp(v_set(*maximum - m)));
    *maximum = m;
    *sum = *sum * lanes[0] + total;
    return lanes[0];
}

INLINE void weigh_tile(const int Q, const int C, float *const *out, const float *factor, const float *p, int stride, const float *const *v, int c,
                       int positions, const float *const *fetch) {
    vf acc[most_queries][8];
    UNROLL for (int i = 0; i < Q; i++) UNROLL for (int j = 0; j < C; j++)
        acc[i][j] = v_mul(v_load(out[i] + c + j * LANES), v_set(factor[i]));
    for (int t = 0; t < positions; t++) {
        if (fetch) {
            UNROLL for (int line = 0; line < C * LANES; line += 16) __builtin_prefetch(fetch[t] + c + line);
        }
        vf pv[most_queries];
        UNROLL for (int i = 0; i < Q; i++) pv[i] = v_set(p[i * stride + t]);
        UNROLL for (int j = 0; j < C; j++) {
            const vf vv = v_load(v[t] + c + j * LANES);
            UNROLL for (int i = 0; i < Q; i++) acc[i][j] = v_fma(pv[i], vv, acc[i][j]);
        }
    }
    UNROLL for (int i = 0; i < Q; i++) UNROLL for (int j = 0; j < C; j++) v_store(out[i] + c + j * LANES, acc[i][j]);
}

// Vectors of columns c on, for all queries before the next columns: 64 positions of 32 columns are 8 KiB, which stay in a first-level cache.
INLINE void weigh_columns(const int C, float *const *out, const float *factor, int n, const float *p, int stride, const float *const *v, int c,
                          int positions, const float *const *fetch) {
    int i = 0;
#ifndef LANES_PORTABLE
    for (; most_queries == 4 && n - i >= 4; i += 4) weigh_tile(4, C, out + i, factor + i, p + i * stride, stride, v, c, positions, i == 0 ? fetch : NULL);
    for (; n - i > 4 || n - i == 3; i += 3) weigh_tile(3, C, out + i, factor + i, p + i * stride, stride, v, c, positions, i == 0 ? fetch : NULL);
    for (; n - i >= 2; i += 2) weigh_tile(2, C, out + i, factor + i, p + i * stride, stride, v, c, positions, i == 0 ? fetch : NULL);
#endif
    for (; i < n; i++) weigh_tile(1, C, out + i, factor + i, p + i * stride, stride, v, c, positions, i == 0 ? fetch : NULL);
}

static void weigh(float *const *out, const float *factor, int n, const float *p, int stride, const float *const *v, int dim, int positions,
                  const float *const *fetch) {
    int c = 0;
#ifndef LANES_PORTABLE
    if (n == 1) {
        for (; c + 8 * LANES <= dim; c += 8 * LANES) weigh_tile(1, 8, out, factor, p, stride, v, c, positions, fetch);
    }
    for (; c + 4 * LANES <= dim; c += 4 * LANES) weigh_columns(4, out, factor, n, p, stride, v, c, positions, fetch);
#endif
    for (; c + LANES <= dim; c += LANES) weigh_columns(1, out, factor, n, p, stride, v, c, positions, fetch);
    if (c < dim) {
        size_t bytes = (size_t)(dim - c) * sizeof(float);
        for (int i = 0; i < n; i++) {
            float a[LANES] = {0};
            memcpy(a, out[i] + c, bytes);
            vf acc = v_mul(v_load(a), v_set(factor[i]));
            for (int t = 0; t < positions; t++) acc = v_fma(v_set(p[i * stride + t]), load_part(v[t] + c, dim - c), acc);
            v_store(a, acc);
            memcpy(out[i] + c, a, bytes);
        }
    }
}
