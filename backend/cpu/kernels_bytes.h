// Part of kernels_body.h: products of few-bit weights (int4 with one scale a row or for multiples of 64 columns, int3, int2) with activations
// of 8 bits, one scale for 64 columns.
//
// The rule: activations may be rounded where that adds at least an order of magnitude less than the weights' own rounding did.
// Rounding to whole steps errs by a step's 12th root; an activation's step is the 127th part of the largest of 64 columns, a 4-bit weight's
// the 7.5th part of its group's largest, so that 4-bit weights and fewer are 17 times as coarse and more. Weights of 8 bits are as fine as
// such activations, and get 16 bits (kernels_short.h). The bound, for each output and each group of 64 columns: half a step, that is
// the 254th part of the group's largest activation, times the sum of the weights' sizes. For activations like a model's that is
// 1e-2 of the largest output at most (rounding_test.go). Weights marked precise, for evaluations, are multiplied with float32 activations.
// So are those of fewer columns than byte_columns, for which no gain was measured.
//
// Within a group everything is exact. An unsigned weight is 15 at most and an activation 127, so that the 16 products which a 16-bit sum takes are
// 30,480 at most whatever the input; the weights' offset (8, 4 or 2 times the sum of the activations) is subtracted from the 32-bit sum.
// One float step a group, in one order however many rows are multiplied together.

enum {
    byte_group = 64,    // columns that share a scale
    byte_columns = 128, // least columns of a weight that is multiplied so
};

// ---- formats: spans of a row whose fields pair with a panel's vectors ----

// int4 has two fields in a byte, and 64 columns in 32 bytes; int2 and int3's low planes have four, and two groups in 32 bytes, the
// first in the lower half of a vector.
INLINE int byte_fields(int format) { return format == format_int2_row || format == format_int3_g64 ? 4 : 2; }
INLINE int byte_span(int format) { return byte_fields(format) / 2; } // groups
INLINE int byte_span_bytes(int format) { return format == format_int3_g64 ? 48 : 32; }
INLINE int byte_offset_bits(int format) { return format == format_int2_row ? 1 : format == format_int3_g64 ? 2 : 3; }
INLINE int byte_offset(int format) { return 1 << byte_offset_bits(format); }
INLINE int byte_scale_step(const cpu_weight *w) { // groups a scale; 0: one a row
    return w->format == format_int4_group ? w->group / byte_group : w->format == format_int3_g64;
}

static int byte_fits(const cpu_weight *w) {
    if (w->precise || w->columns < byte_columns) return 0;
    return w->format == format_int4_row || w->format == format_int2_row || w->format == format_int3_g64 ||
           (w->format == format_int4_group && w->group % byte_group == 0);
}

// ---- panels: the numbers in spans, then a scale and a sum for each group ----

// A panel begins with its row's groups rounded up to spans of two.
INLINE int byte_groups(int columns) { return (columns + 2 * byte_group - 1) / (2 * byte_group) * 2; }
static size_t byte_panel_floats(int columns) { return (size_t)byte_groups(columns) * (byte_group / 4 + 2); }
INLINE const int8_t *byte_numbers(const float *panel) { return (const int8_t *)(const void *)panel; }
INLINE const float *byte_scales(const float *panel, int groups) { return panel + (size_t)groups * (byte_group / 4); }
INLINE const int32_t *byte_sums(const float *panel, int groups) { return (const int32_t *)(const void *)(panel + (size_t)groups * (byte_group / 4 + 1)); }

// Where column c of a group is in a panel, from the group's span on.
INLINE int byte_place(int fields, int group, int c) {
    return fields == 2 ? c % 2 * 32 + c / 2 : c % 4 * 32 + group % 2 * 16 + c / 4;
}

#ifdef LANES_SHORT
#include "kernels_bytes_x86.h"
#else
#include "kernels_bytes_plain.h"
#endif

static void byte_product(const cpu_weight *w, int row0, int row1, int n, const float *const *x, float *const *y, void *scratch) {
    switch (w->format) {
    case format_int4_row: byte_rows_of(format_int4_row, 0, w, row0, row1, n, x, y, scratch); return;
    case format_int2_row: byte_rows_of(format_int2_row, 0, w, row0, row1, n, x, y, scratch); return;
    case format_int3_g64: byte_rows_of(format_int3_g64, 1, w, row0, row1, n, x, y, scratch); return;
    default: byte_rows_of(format_int4_group, 1, w, row0, row1, n, x, y, scratch);
    }
}
