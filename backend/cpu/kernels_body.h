// The kernels, in terms of the lanes that one of the lanes_*.h has defined. Included once in every variant's file.
#include <string.h>

#include "kernels.h"

#ifdef __has_feature
#if __has_feature(address_sanitizer) || __has_feature(undefined_behavior_sanitizer)
#define SANITIZED
#endif
#endif
#if defined(LANES_PORTABLE) || defined(SANITIZED) || defined(__SANITIZE_ADDRESS__)
// Loops left to the compiler: everything unrolled takes it minutes here, and gains nothing.
#define INLINE static inline
#define UNROLL
#else
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")
#endif

// The end of a row, completed with zeros to a block; zeros of the panel meet them.
static const uint8_t *padded(uint8_t *rest, const uint8_t *raw, size_t bytes, size_t block) {
    memset(rest, 0, block);
    memcpy(rest, raw, bytes);
    return rest;
}

// Rows that are multiplied together lie one behind the other. What is fetched meanwhile are the next such rows, line by line in the order of
// memory and not row by row: so read, the hardware's own guessing goes along (int4-g64 of 768x2048 beyond the caches: 12.8 to 17.9 GB/s of 21.9).
// Octets do so however long their rows are (24 KiB a step, int4-g64 of 2048x6144: 12.7 to 15.3 GB/s), others as fetch_block says. Behind a weight's
// last rows there may be nothing at these addresses: a fetch from nowhere does nothing.
INLINE void fetch_lines(const uint8_t *from, const int bytes) {
    UNROLL for (int line = 0; line < bytes; line += 64) __builtin_prefetch(from + line);
}

#include "kernels_formats.h"
#include "kernels_octets.h"
#include "kernels_short.h"
#include "kernels_bytes.h"
#include "kernels_panels.h"
#include "kernels_product.h"
#include "kernels_vectors.h"
#include "kernels_attention.h"

static uint64_t read_memory(const void *memory, size_t bytes) {
    vi acc[8];
    UNROLL for (int i = 0; i < 8; i++) acc[i] = vi_set(0);
    const char *p = memory;
    for (size_t o = 0; o + 32 * LANES <= bytes; o += 32 * LANES) {
        UNROLL for (int i = 0; i < 8; i++) acc[i] = vi_xor(acc[i], vi_load(p + o + (size_t)i * 4 * LANES));
    }
    UNROLL for (int i = 1; i < 8; i++) acc[0] = vi_xor(acc[0], acc[i]);
    return vi_fold(acc[0]);
}

enum { peak_sums = 12 }; // as many as a tile has, enough to hide the latency of each

static float multiply_add(int64_t steps, float x) {
    vf sum[peak_sums], factor = v_set(x);
    UNROLL for (int i = 0; i < peak_sums; i++) sum[i] = v_set((float)i);
    for (int64_t s = 0; s < steps; s++) {
        UNROLL for (int i = 0; i < peak_sums; i++) sum[i] = v_fma(sum[i], factor, factor);
    }
    UNROLL for (int i = 1; i < peak_sums; i++) sum[0] = v_add(sum[0], sum[i]);
    return v_sum(sum[0]);
}

#define KERNELS(label)                                                                                                                      \
    {                                                                                                                                       \
        .name = label, .lanes = LANES, .product_scratch = product_scratch, .transposed_scratch = transposed_rows,       \
        .layout = layout_of, .panel_floats = panel_floats, .prepare = prepare, .product = product, .transposed = transposed, .unpack = unpack,                   \
        .normalise = normalise, .silu_multiply = silu_multiply, .add = add, .combine = combine, .scores = scores,                           \
        .index_scores = index_scores, .softmax_step = softmax_step, .weigh = weigh, .scale = scale, .read = read_memory,                    \
        .multiply_add = multiply_add, .multiply_adds = peak_sums * LANES,                                                                   \
    }
