#include "kernels.h"

#include <string.h>

const cpu_kernels *cpu_kernels_named(const char *name) {
    const cpu_kernels *all[] = {cpu_kernels_avx512(), cpu_kernels_avx2(), cpu_kernels_neon(), cpu_kernels_portable()};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (all[i] && (!*name || strcmp(name, all[i]->name) == 0)) return all[i];
    }
    return NULL;
}

size_t cpu_row_bytes(const cpu_weight *w) {
    size_t c = (size_t)w->columns;
    switch (w->format) {
    case format_f32: return c * 4;
    case format_bf16:
    case format_f16: return c * 2;
    case format_int4_row:
    case format_int4_group: return (c + 1) / 2;
    case format_int2_row: return (c + 3) / 4;
    case format_int3_g64: return (c + 63) / 64 * 24;
    default: return c;
    }
}
