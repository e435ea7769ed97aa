// Part of kernels_body.h: panels of activations, in the layouts that pair with the weights.

static int layout_of(const cpu_weight *w) {
    if (byte_fits(w)) return byte_fields(w->format) == 2 ? layout_byte_nibbles : layout_byte_crumbs;
#ifdef LANES_SHORT
    if (short_fits(w)) return layout_short;
#endif
    switch (w->format) {
    case format_int4_row:
    case format_int4_group:
    case format_int3_g64: return layout_nibbles;
    case format_int2_row: return layout_crumbs;
    default: return layout_whole;
    }
}

static size_t panel_floats(int layout, int columns) {
    size_t c = (size_t)columns;
    switch (layout) {
#ifdef LANES_SHORT
    case layout_short: return short_panel_floats(columns);
#endif
    case layout_byte_nibbles:
    case layout_byte_crumbs: return byte_panel_floats(columns);
    case layout_nibbles: return (c + 8 * LANES - 1) / (8 * LANES) * (9 * LANES);
    case layout_crumbs: return (c + 16 * LANES - 1) / (16 * LANES) * (17 * LANES);
    default: return (c + 127) / 128 * 128; // a multiple of every block
    }
}

INLINE void prepare_fields(const int vectors, int bits, float offset, const float *x, int columns, float *panel) {
    for (int c = 0; c < columns; c += vectors * LANES, panel += (vectors + 1) * LANES) {
        float rest[16 * LANES];
        const float *from = x + c;
        if (columns - c < vectors * LANES) {
            memset(rest, 0, sizeof rest);
            memcpy(rest, from, (size_t)(columns - c) * sizeof *rest);
            from = rest;
        }
        vf sum = v_zero();
        for (int k0 = 0; k0 < vectors; k0 += 8) {
            vf column[8];
            v_columns(from + k0, vectors, column);
            UNROLL for (int k = 0; k < 8; k++) {
                float power = k0 + k == vectors - 1 ? 1 : 1 / (float)(1u << (bits * (k0 + k)));
                sum = v_add(sum, column[k]);
                v_store(panel + (1 + k0 + k) * LANES, v_mul(column[k], v_set(power)));
            }
        }
        v_store(panel, v_mul(sum, v_set(-offset)));
    }
}

static void prepare(int layout, const float *x, int columns, float *panel) {
    switch (layout) {
#ifdef LANES_SHORT
    case layout_short: short_prepare(x, columns, panel); break;
#endif
    case layout_byte_nibbles: byte_prepare(2, x, columns, panel); break;
    case layout_byte_crumbs: byte_prepare(4, x, columns, panel); break;
    case layout_nibbles: prepare_fields(8, 4, 8, x, columns, panel); break;
    case layout_crumbs: prepare_fields(16, 2, 2, x, columns, panel); break;
    default:
        memcpy(panel, x, (size_t)columns * sizeof *x);
        memset(panel + columns, 0, (panel_floats(layout, columns) - (size_t)columns) * sizeof *x);
    }
}
