#include "kernels.h"

#ifdef __x86_64__
#ifdef __clang__
#include <immintrin.h>
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif

#include "lanes_avx2.h"

#include "kernels_body.h"

static const cpu_kernels kernels = KERNELS("avx2");
#ifdef __clang__
#pragma clang attribute pop
#endif
const cpu_kernels *cpu_kernels_avx2(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") ? &kernels : NULL;
}
#else
const cpu_kernels *cpu_kernels_avx2(void) { return NULL; }
#endif
