// What the host and the kernels agree on: the parameter struct of every kernel and the numbers of its function constants.
// This text is C for the host and the first part of the shader source for the GPU, so that the two cannot differ.
// Addresses are GPU addresses (a buffer's gpuAddress plus an offset); every struct is a multiple of 8 bytes.
#ifdef COLI_HOST
#include <stdbool.h>
#include <stdint.h>
typedef uint64_t address_t;
typedef uint32_t uint_t;
#define COLI_INLINE static inline
#else
typedef ulong address_t;
typedef uint uint_t;
#define COLI_INLINE inline
#endif

// Formats carry the numbers of container.Format.
enum WeightFormat {
    FORMAT_F32 = 1,
    FORMAT_BF16 = 2,
    FORMAT_F16 = 3,
    FORMAT_INT8_ROW = 4,
    FORMAT_INT4_ROW = 5,
    FORMAT_INT2_ROW = 6,
    FORMAT_INT4_GROUP = 7,
    FORMAT_INT3_GROUP64 = 8,
    FORMAT_FP8_BLOCK128 = 9
};

// A unit is eight consecutive columns of a weight row, a span two or four units (span_units). No scale changes within a span.
enum Geometry {
    LANES = 32,
    UNIT_COLUMNS = 8,
    SPAN_MAX_UNITS = 4,
    SPAN_MAX_WORDS = 16,     // two units of f32
    STAGE_COLUMNS = 1024,    // activations in threadgroup memory at a time: a unit for each of MATVEC_SIMDGROUPS · LANES threads
    MATVEC_SIMDGROUPS = 4,   // per threadgroup, in matvec, expert_gate_up and expert_down
    MATVEC_ROWS = 4,         // weight rows per threadgroup in matvec where its SIMD-groups share the columns
    GATE_ROWS = 2,           // weight rows per SIMD-group and matrix in expert_gate_up: see gate_rows
    DOWN_ROWS = 4,           // weight rows per SIMD-group in expert_down: see down_rows
    STAGED_ROWS = 3,         // in both, with one row of staged activations
    FEW_GROUPS = 512,        // threadgroups below which a kernel takes its form for few: see gate_rows, own_rows
    SHARED_COLUMNS = 4096,   // columns from which four SIMD-groups have enough to share, and …
    SHARED_ROWS = 4096,      // … rows from which they are busy without
    MAX_XROWS = 4,           // activation rows that share one reading of the weights
    NORM_THREADS = 256,      // rms_norm
    ELEMENT_THREADS = 256,   // combine, embed
    ABSORB_SIMDGROUPS = 8,
    ABSORB_MAX_RANK = 512,
    ATTEND_SIMDGROUPS = 4,
    ATTEND_MAX_DIM_A = 512,  // kv_lora_rank, or the head dimension of grouped-query attention
    ATTEND_MAX_DIM_B = 128,  // rotated dimensions of MLA
    ATTEND_CHUNK = 128,      // positions per split of a row's context, more in long contexts: see attend_chunk
    ATTEND_MAX_SPLITS = 64,
    TILE_QUERIES = 8,        // attend_tiles: queries of a tile, heads_per_simd of them from each row
    HEAD_MAX_DIM = 1024,     // head_transform
    SCORE_THREADS = 128,     // index_scores: one position per thread
    SCORE_HEADS = 16,        // heads held in registers at a time
    SELECT_THREADS = 1024,   // index_select
    ROUTE_THREADS = 256,
    ROUTE_MAX_EXPERTS = 1024,
    GEMM_OUTPUTS = 64,       // tile of a gemm: weight rows (half of them gate, half up, where the two are fused)
    GEMM_ROWS = 32,          // by activation rows
    GEMM_DEPTH = 32          // by columns at a time
};

COLI_INLINE bool few_bits(uint_t format) {
    return format == FORMAT_INT4_ROW || format == FORMAT_INT4_GROUP || format == FORMAT_INT2_ROW || format == FORMAT_INT3_GROUP64;
}
// Units that a lane reads of a row at a time.
COLI_INLINE uint_t span_units(uint_t format, uint_t group_units) {
    return few_bits(format) && (format != FORMAT_INT4_GROUP || group_units % 4 == 0) ? 4 : 2;
}
// A weight whose columns are a multiple of this can be read in spans.
COLI_INLINE uint_t span_columns(uint_t format) { return few_bits(format) ? SPAN_MAX_UNITS * UNIT_COLUMNS : 2 * UNIT_COLUMNS; }
// Weights of few bits are computed as fast as they are read only if their activations cost little: a threadgroup keeps them for all its rows.
COLI_INLINE bool stages(uint_t format, uint_t group_units) { return span_units(format, group_units) == SPAN_MAX_UNITS; }
// Rows per SIMD-group and matrix: three where only one activation row has to be kept beside them.
COLI_INLINE uint_t gate_rows(bool staged, uint_t xrows, bool few) { return !staged || xrows != 1 ? (uint_t)GATE_ROWS : few ? 1 : (uint_t)STAGED_ROWS; }
COLI_INLINE bool few_gate_rows(bool staged, uint_t xrows, uint_t width, uint_t items) {
    const uint_t rows = MATVEC_SIMDGROUPS * STAGED_ROWS;
    return staged && xrows == 1 && items < FEW_GROUPS && (width + rows - 1) / rows * items < FEW_GROUPS;
}
COLI_INLINE uint_t down_rows(bool staged, uint_t xrows) { return staged && xrows == 1 ? (uint_t)STAGED_ROWS : (uint_t)DOWN_ROWS; }
// Whether SIMD-groups share a row's columns in matvec. It follows from the weight alone, as it decides the order of additions.
COLI_INLINE bool share_columns(uint_t format, uint_t group_units, uint_t rows, uint_t columns) {
    return span_units(format, group_units) != SPAN_MAX_UNITS || (columns >= SHARED_COLUMNS && rows < SHARED_ROWS);
}
// Rows per SIMD-group in matvec where they do not. In few threadgroups there are registers for one more, and for reading ahead.
COLI_INLINE uint_t own_rows(uint_t xrows, bool few) { return xrows == 1 && !few ? (uint_t)STAGED_ROWS : (uint_t)DOWN_ROWS; }
COLI_INLINE bool few_own_rows(uint_t outputs, uint_t xrows) { return xrows == 1 && outputs < FEW_GROUPS * MATVEC_SIMDGROUPS * DOWN_ROWS; }

// Indexes of the function constants (see common.metal).
enum FunctionConstant {
    CONSTANT_FORMAT = 0,
    CONSTANT_GROUP_UNITS = 1,
    CONSTANT_WHOLE = 2,
    CONSTANT_FORMAT_B = 3,
    CONSTANT_GROUP_UNITS_B = 4,
    CONSTANT_WHOLE_B = 5,
    CONSTANT_XROWS = 6,
    CONSTANT_DIM_A = 7,
    CONSTANT_DIM_B = 8,
    CONSTANT_SHARED_VALUES = 9,
    CONSTANT_HEADS_PER_SIMD = 10,
    CONSTANT_SHARE_COLUMNS = 11,
    CONSTANT_FEW = 12
};

// A weight of rows by columns. row_groups is the number of scales of a row (of a row of tiles, for fp8).
typedef struct Matrix {
    address_t data;
    address_t scales;
    uint_t rows;
    uint_t columns;
    uint_t row_bytes;
    uint_t row_groups;
} Matrix;

// One token of a layer call: where the caches of its sequence begin and which position it has.
// cache: MLA latent, rope, index; grouped-query: keys, values, none.
typedef struct RowInfo {
    address_t cache[3];
    uint_t position;
    uint_t tie_span; // see compute.Row.TieSpan; 0: equal index scores go to the lower position
} RowInfo;

enum MatvecFlags { MATVEC_ADD = 1, MATVEC_BIAS = 2 };

// y[t][block·y_block + o] = W[block·block_rows + block_first + o] · x[t][block·x_block …]
typedef struct MatvecParams {
    Matrix w;
    address_t x, y, bias;
    uint_t x_stride, y_stride;
    uint_t count;   // activation rows
    uint_t outputs; // weight rows per block
    uint_t block_rows, block_first, x_block, y_block;
    uint_t flags, reserved;
} MatvecParams;

// Rows of one expert that are computed together: pairs first … first+count−1.
typedef struct ExpertItem {
    Matrix gate, up, down;
    uint_t first, count;
} ExpertItem;

// Where a pair's activation comes from and where its result goes.
typedef struct Pair {
    uint_t input, output;
} Pair;

typedef struct ExpertParams {
    address_t items, pairs;
    address_t input;  // [rows, hidden]
    address_t inner;  // [pairs, inner_width]
    address_t output; // [slots, hidden]
    uint_t hidden, inner_width;
    uint_t first_item;
    uint_t flags; // MATVEC_ADD: output += result
} ExpertParams;

typedef struct CombineParams {
    address_t gates, output, shared_output, x;
    uint_t rows, per_token, hidden, reserved;
} CombineParams;

typedef struct EmbedParams {
    Matrix table;
    address_t ids, x;
    uint_t count, reserved;
} EmbedParams;

typedef struct NormParams {
    address_t x, weight, y;
    uint_t width, x_stride, y_stride;
    float epsilon;
} NormParams;

enum HeadNorm { HEAD_NORM_NONE = 0, HEAD_NORM_RMS = 1, HEAD_NORM_LAYER = 2 };

// For every row and head: take dim numbers, normalise and clip them, rotate `rotated` of them from `rotate_from` on, write them to
// out[row] or to the row's cache at its position.
typedef struct HeadParams {
    address_t in, out, weight, bias, rows, cos, sin;
    uint_t in_stride, in_head_stride, in_offset;
    uint_t out_stride, out_head_stride;
    uint_t dim, rotate_from, rotated;
    uint_t interleaved, norm;
    uint_t cache; // 0: out; n: RowInfo.cache[n−1]
    float epsilon;
    float clip; // 0: off; limits the normalised numbers to ±clip
    uint_t reserved;
} HeadParams;

// absorbed[row][head][c] = Σ_d q[row][head][d] · W[head·block_rows + d][c], d < nope
typedef struct AbsorbParams {
    Matrix w;
    address_t q, absorbed;
    uint_t q_stride, q_head_stride;
    uint_t heads, nope, block_rows, count;
} AbsorbParams;

// Consecutive rows of one sequence that share a tile.
typedef struct RowTile {
    uint_t first, count;
} RowTile;

typedef struct AttendParams {
    address_t rows;              // RowInfo
    address_t counts, positions; // selection of the DSA indexer, or 0
    address_t query_a, query_b;  // [rows, heads, DIM_A], [rows, heads, DIM_B]
    address_t partial;           // [rows, heads, splits, DIM_A + 2]
    address_t out;               // [rows, heads, DIM_A]
    address_t tiles;             // RowTile, attend_tiles only
    uint_t heads, heads_per_key; // query heads that share a key head
    uint_t key_stride;           // floats from one position to the next, in the caches A (and values) and …
    uint_t key_stride_b;         // … B
    uint_t top_k;                // row length of positions
    uint_t splits;               // allocated per head
    float scale;
    uint_t reserved;
} AttendParams;

typedef struct IndexParams {
    address_t rows, query, weights; // query [rows, heads, dim] rotated, weights [rows, heads]
    address_t scores;               // [rows, score_stride]
    address_t counts, positions;
    address_t tied;  // 1 for a row some of whose equal scores were chosen and others not
    address_t order; // [rows, order_stride], for ties
    uint_t heads, dim, score_stride, top_k;
    uint_t order_stride, reserved;
    float scale_query, scale_heads;
} IndexParams;

enum RouteFlags { ROUTE_SIGMOID = 1, ROUTE_NORMALISE = 2, ROUTE_BIAS = 4 };

typedef struct RouteParams {
    address_t logits, bias, experts, gates;
    uint_t experts_count, per_token, groups, top_groups;
    uint_t flags;
    float scale;
} RouteParams;
