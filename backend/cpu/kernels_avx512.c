#include "kernels.h"

#ifdef __x86_64__
#ifdef __clang__
#include <immintrin.h>
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")
#endif

#include "lanes_avx512.h"

#include "kernels_body.h"

static const cpu_kernels kernels = KERNELS("avx512");
#ifdef __clang__
#pragma clang attribute pop
#endif
const cpu_kernels *cpu_kernels_avx512(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                   __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni")
               ? &kernels
               : NULL;
}
#else
const cpu_kernels *cpu_kernels_avx512(void) { return NULL; }
#endif
