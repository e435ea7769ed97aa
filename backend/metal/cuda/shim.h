// Metal's standard library as far as Colibri's matrix-vector kernels use it, for clang's CUDA mode without a CUDA toolkit. Warps take the
// place of SIMD-groups. Used to run the kernels' arithmetic and time their memory traffic on an NVIDIA GPU; see README.md.
#pragma once
#pragma clang force_cuda_host_device begin
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef _Float16 half;
#define VECTOR(T, N) typedef T T##N __attribute__((ext_vector_type(N)));
VECTOR(float, 2) VECTOR(float, 4) VECTOR(uint, 2) VECTOR(uint, 3) VECTOR(uint, 4)

#define device
#define constant const
#define thread
#define threadgroup
#define GLOBAL __attribute__((global))
#define GLOBAL_MEMORY __attribute__((address_space(1)))
#define INLINED __attribute__((always_inline)) static inline
#define SHARED __attribute__((shared))

namespace metal {
enum class mem_flags { mem_none, mem_device, mem_threadgroup };
inline void threadgroup_barrier(mem_flags) { __syncthreads(); }
template <class T, class U> inline T as_type(U v) { return __builtin_bit_cast(T, v); }
inline bool isnan(float v) { return v != v; }
inline float abs(float v) { return __builtin_fabsf(v); }
inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float exp(float v) { return __nvvm_ex2_approx_f(v * 1.44269504088896341f); }
inline float sqrt(float v) { return __nvvm_sqrt_rn_f(v); }
template <class T> inline T min(T a, T b) { return b < a ? b : a; }
template <class T> inline T max(T a, T b) { return a < b ? b : a; }
inline float clamp(float v, float low, float high) { return min(max(v, low), high); }

inline float simd_shuffle_xor(float v, uint mask) { return __nvvm_shfl_sync_bfly_f32(0xffffffff, v, mask, 31); }
inline uint simd_shuffle_xor(uint v, uint mask) { return __nvvm_shfl_sync_bfly_i32(0xffffffff, v, mask, 31); }
inline float simd_broadcast(float v, ushort lane) { return __nvvm_shfl_sync_idx_f32(0xffffffff, v, lane, 31); }
inline uint simd_broadcast(uint v, ushort lane) { return __nvvm_shfl_sync_idx_i32(0xffffffff, v, lane, 31); }
template <class T> inline T simd_sum(T v) {
    for (uint m = 16; m; m >>= 1) v += simd_shuffle_xor(v, m);
    return v;
}
template <class T> inline T simd_max(T v) {
    for (uint m = 16; m; m >>= 1) v = max(v, simd_shuffle_xor(v, m));
    return v;
}
inline uint simd_prefix_exclusive_sum(uint v) {
    uint sum = 0;
    const uint lane = __nvvm_read_ptx_sreg_tid_x() & 31;
    for (uint i = 0; i < 31; i++) {
        const uint other = simd_broadcast(v, ushort(i));
        sum += i < lane ? other : 0;
    }
    return sum;
}
} // namespace metal
inline uint3 threadgroup_position() {
    return (uint3){(uint)__nvvm_read_ptx_sreg_ctaid_x(), (uint)__nvvm_read_ptx_sreg_ctaid_y(), (uint)__nvvm_read_ptx_sreg_ctaid_z()};
}
inline uint thread_number() { return __nvvm_read_ptx_sreg_tid_x(); }
