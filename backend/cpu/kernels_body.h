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

// ---- fetching ----

// Rows that are multiplied together, a step, lie one behind the other. Meanwhile the next step is fetched, line by line in the order of memory and
// not row by row: so read, the hardware's own guessing goes along (int4-g64 of 768x2048 beyond the caches: 12.8 to 17.9 GB/s of 21.9).
// Two steps that do not fit a first-level cache together push each other out: such are fetched into the second (int4-g64 of 2048x6144: 31 to 55 GB/s
// of 68, f32 38 to 40 of 40), shorter ones into the first (int2 of 6144x2048: 26 to 38). Rows of 128 KiB are no exception. Behind a
// weight's last rows there may be nothing at these addresses: a fetch from nowhere does nothing.
enum { fetch_near = 16384 };
INLINE int fetch_far(size_t step) { return step > fetch_near; }

INLINE void fetch_line(const uint8_t *line, const int far) {
    if (far) __builtin_prefetch(line, 0, 2);
    else __builtin_prefetch(line);
}
INLINE void fetch_lines(const uint8_t *from, size_t bytes, const int far) {
    UNROLL for (size_t line = 0; line < bytes; line += 64) fetch_line(from + line, far);
}
// The lines that begin in one of the parts of a stretch, each of so many bytes: fetched one by one between other work. Many at once
// wait for each other, and what comes behind waits with them (int3 of 6144x2048: 9.9 to 11.7 GB/s of 14.3).
INLINE void fetch_part(const uint8_t *from, const int bytes, const int part, const int far) {
    UNROLL for (int line = (part * bytes + 63) / 64 * 64; line < (part + 1) * bytes; line += 64) {
        fetch_line(from + line, far);
        __asm__ volatile(""); // compilers would put it beside the others
    }
}
// For more rows of activations the instructions are the limit, and their order is the compiler's (fp8 of three rows: a tenth faster so).
INLINE int fetch_between(const int M) { return M == 1; }

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
