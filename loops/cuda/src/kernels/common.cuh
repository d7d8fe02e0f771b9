// What every kernel shares: formats of matrices, exact arithmetic, and the words that differ
// between a GPU's compiler and the emulator (emulator.h), which runs these same sources on the
// processor.
//
// The arithmetic is that of the processor's kernels (../simd.rs), operation by operation: every
// output is one f32 accumulator over ascending inputs with fused multiply-add, every reduction of
// a row has sixteen lanes and one tree. The results are therefore equal bit for bit.
#pragma once
#include <stdint.h>

// What is copied at once.
struct Piece {
    void *to;
    const void *from;
    uint32_t bytes;
};

#ifdef HONE_EMULATOR
#include "emulator.h"
#else
// The next kernel may begin from here on; what it reads of this one's it waits for.
__device__ __forceinline__ void let_follow() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Waits until all kernels before are done.
__device__ __forceinline__ void wait_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// A kernel that waits by itself, before it reads or writes what others write or read.
#define HONE_KERNEL_AHEAD(name, Args)                                                              \
    static __device__ __forceinline__ void name##_body(const Args &args);                          \
    extern "C" __global__ void name(const __grid_constant__ Args args) {                           \
        let_follow();                                                                              \
        name##_body(args);                                                                         \
    }                                                                                              \
    static __device__ __forceinline__ void name##_body(const Args &args)
#define HONE_KERNEL(name, Args)                                                                    \
    static __device__ __forceinline__ void name##_body(const Args &args);                          \
    extern "C" __global__ void name(const __grid_constant__ Args args) {                           \
        let_follow();                                                                              \
        wait_before();                                                                             \
        name##_body(args);                                                                         \
    }                                                                                              \
    static __device__ __forceinline__ void name##_body(const Args &args)
#define HONE_INLINE __device__ __forceinline__
#define HONE_SHARED __shared__
#define HONE_SYNC() __syncthreads()
__device__ __forceinline__ float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
__device__ __forceinline__ float bits_float(uint32_t bits) { return __uint_as_float(bits); }
__device__ __forceinline__ uint32_t float_bits(float x) { return __float_as_uint(x); }
// Adds to a number that other threads of the block add to as well; what it was before.
__device__ __forceinline__ uint32_t add_shared(uint32_t *to, uint32_t x) { return atomicAdd(to, x); }
// Copies sixteen bytes to memory of the block while the thread goes on.
__device__ __forceinline__ void copy_ahead(void *to, const void *from) {
    uint32_t at = (uint32_t)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}
// Ends a group of the thread's copies.
__device__ __forceinline__ void copies_end() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most N of the thread's groups are under way.
template <int N> __device__ __forceinline__ void copies_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
// Asks for bytes, whole sixteens, to come to the device's cache.
__device__ __forceinline__ void ask_ahead(const void *from, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}
// Waits for the other threads of the warp.
#define HONE_WARP_SYNC() __syncwarp()
// Memory of a block that its launch asks for.
#define HONE_ROOM(name) extern __shared__ __align__(128) unsigned char name[]

// How it is looked whether all have come; from compute capability 9.0 on that waits a while.
#if __CUDA_ARCH__ >= 900
#define HONE_LOOK "mbarrier.try_wait.parity.shared.b64"
#else
#define HONE_LOOK "mbarrier.test_wait.parity.shared.b64"
#endif

// Where threads and copies of a block report that they are done. Each time all have, it begins anew, and those
// that wait for that time, counted from 0, go on.
struct Arrivals {
    uint64_t word;
    __device__ __forceinline__ uint32_t at() const { return (uint32_t)__cvta_generic_to_shared(&word); }
    // For so many threads. One thread does it, before a barrier.
    __device__ __forceinline__ void begin(uint32_t threads) {
        asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at()), "r"(threads) : "memory");
#if __CUDA_ARCH__ >= 900
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
    }
    // For a warp's copies, where `by_threads` says so those of its threads as well.
    __device__ __forceinline__ void begin_copies(bool by_threads) {
#if __CUDA_ARCH__ >= 900
        begin(by_threads ? 33 : 1);
#else
        begin(32);
#endif
    }
    // A thread is done.
    __device__ __forceinline__ void arrive() {
        uint64_t before;
        asm volatile("mbarrier.arrive.shared.b64 %0, [%1];" : "=l"(before) : "r"(at()) : "memory");
    }
    // Waits for that time.
    __device__ __forceinline__ void wait(uint32_t time) const {
        uint32_t done = 0;
        while (!done) {
            asm volatile("{ .reg .pred p; " HONE_LOOK " p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                         : "=r"(done)
                         : "r"(at()), "r"(time & 1)
                         : "memory");
        }
    }
    // A warp announces copies of so many bytes. Those may begin before.
    __device__ __forceinline__ void announce(uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
        uint64_t before;
        if (threadIdx.x % 32 == 0)
            asm volatile("mbarrier.arrive.expect_tx.shared.b64 %0, [%1], %2;"
                         : "=l"(before)
                         : "r"(at()), "r"(bytes)
                         : "memory");
#endif
    }
    // A warp has begun all copies of this time; `by_threads` as for `begin_copies`.
    __device__ __forceinline__ void begun(bool by_threads) {
#if __CUDA_ARCH__ >= 900
        if (!by_threads) return;
#endif
        asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(at()) : "memory");
    }
    // A warp begins `count` copies: of piece(i), whole sixteens of bytes. The copy engine takes as long for a small
    // one as for some kilobytes.
    template <typename Each> __device__ __forceinline__ void copy(uint32_t count, Each piece) {
        const uint32_t t = threadIdx.x % 32;
#if __CUDA_ARCH__ >= 900
        for (uint32_t i = t; i < count; i += 32) {
            const Piece own = piece(i);
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                             (uint32_t)__cvta_generic_to_shared(own.to)),
                         "l"(own.from), "r"(own.bytes), "r"(at())
                         : "memory");
        }
#else
        for (uint32_t i = 0; i < count; i++) {
            const Piece own = piece(i);
            for (uint32_t j = t * 16; j < own.bytes; j += 512) copy_ahead((char *)own.to + j, (const char *)own.from + j);
        }
#endif
    }
};
#endif

// Tokens per key-value block.
constexpr uint32_t BLOCK_TOKENS = 32;
// Lanes of a row's reduction.
constexpr uint32_t LANES = 16;
// Outputs of a matrix that lie side by side.
constexpr uint32_t GROUP_OUT = 32;
// Inputs of one output that lie side by side.
constexpr uint32_t GROUP_IN = 8;

// How a matrix is stored. The numbers are those of `Format` in ../device/args.rs.
constexpr uint32_t F32 = 0, BF16 = 1, Q8 = 2, Q4 = 3;

// A matrix [out, in] as [ceil(out / 32)][ceil(in / 8)][32][8], zero padded; quantised ones have
// f16 scales [ceil(out / 32)][ceil(in / 32)][32].
struct Matrix {
    const void *data;
    const uint16_t *scales;
    uint32_t out;
    uint32_t inp;
    uint32_t format;
    uint32_t unused;
};

// Sixteen bytes that are read at once.
struct alignas(16) Bytes16 {
    uint32_t w[4];
};
struct alignas(8) Bytes8 {
    uint32_t w[2];
};

HONE_INLINE float half_float(uint16_t half) {
    // The exponent is moved by a multiplication, which is exact for subnormal numbers too.
    float magnitude = bits_float((uint32_t)(half & 0x7fff) << 13) * bits_float(0x77800000u);
    return (half & 0x8000) ? -magnitude : magnitude;
}

HONE_INLINE uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

HONE_INLINE uint32_t groups_in(uint32_t inp) { return (inp + GROUP_IN - 1) / GROUP_IN; }

// Where a group of eight inputs of one output stands, counted in such groups.
HONE_INLINE uint64_t eight_at(const Matrix &m, uint32_t out, uint32_t group) {
    return ((uint64_t)(out / GROUP_OUT) * groups_in(m.inp) + group) * GROUP_OUT + out % GROUP_OUT;
}

// Eight inputs of one output as they are stored, so that many can be under way before the first
// is used; the place is counted in such eights, the scale is that of a quantised one.
template <uint32_t F> struct Packed;

// Bytes of such an eight.
template <uint32_t F> constexpr uint32_t EIGHT_BYTES = F == F32 ? 32 : F == BF16 ? 16 : F == Q8 ? 8 : 4;

template <> struct Packed<F32> {
    Bytes16 a, b;
    HONE_INLINE void read(const void *data, const uint16_t *, uint64_t at) {
        const Bytes16 *from = (const Bytes16 *)data + at * 2;
        a = from[0];
        b = from[1];
    }
    HONE_INLINE void widen(float *to) const {
        for (int i = 0; i < 4; i++) {
            to[i] = bits_float(a.w[i]);
            to[4 + i] = bits_float(b.w[i]);
        }
    }
};

template <> struct Packed<BF16> {
    Bytes16 a;
    HONE_INLINE void read(const void *data, const uint16_t *, uint64_t at) { a = ((const Bytes16 *)data)[at]; }
    HONE_INLINE void widen(float *to) const {
        for (int i = 0; i < 4; i++) {
            to[2 * i] = bits_float(a.w[i] << 16);
            to[2 * i + 1] = bits_float(a.w[i] & 0xffff0000u);
        }
    }
};

template <> struct Packed<Q8> {
    Bytes8 a;
    uint16_t scale;
    HONE_INLINE void read(const void *data, const uint16_t *own, uint64_t at) {
        a = ((const Bytes8 *)data)[at];
        scale = *own;
    }
    HONE_INLINE void widen(float *to) const {
        float s = half_float(scale);
        for (int i = 0; i < 8; i++) {
            to[i] = (float)(int8_t)(uint8_t)(a.w[i / 4] >> (i % 4 * 8)) * s;
        }
    }
};

// Input i of a group of eight stands in bits 4 i.
template <> struct Packed<Q4> {
    uint32_t a;
    uint16_t scale;
    HONE_INLINE void read(const void *data, const uint16_t *own, uint64_t at) {
        a = ((const uint32_t *)data)[at];
        scale = *own;
    }
    HONE_INLINE void widen(float *to) const {
        float s = half_float(scale);
        for (int i = 0; i < 8; i++) {
            to[i] = ((float)(a >> (i * 4) & 15u) - 8.0f) * s;
        }
    }
};

// Eight inputs of one output of a matrix.
template <uint32_t F> HONE_INLINE Packed<F> fetch(const Matrix &m, uint32_t out, uint32_t group) {
    uint64_t groups = (m.inp + 31) / 32;
    const uint16_t *scale =
        m.scales + ((out / GROUP_OUT) * groups + group * GROUP_IN / 32) * GROUP_OUT + out % GROUP_OUT;
    Packed<F> packed;
    packed.read(m.data, scale, eight_at(m, out, group));
    return packed;
}

// step(i, read(i)) for i = first, first + stride and so on below `count`, in that order. AHEAD reads are
// under way at a time.
template <int AHEAD, typename Read, typename Step>
HONE_INLINE void ahead(uint32_t first, uint32_t stride, uint32_t count, Read read, Step step) {
    uint32_t i = first;
    for (; i < count && count - i > (AHEAD - 1) * stride; i += AHEAD * stride) {
        decltype(read(i)) values[AHEAD];
#pragma unroll
        for (uint32_t j = 0; j < AHEAD; j++) values[j] = read(i + j * stride);
#pragma unroll
        for (uint32_t j = 0; j < AHEAD; j++) step(i + j * stride, values[j]);
    }
    for (; i < count; i += stride) step(i, read(i));
}

// e^x as in ../simd.rs: the same polynomial in the same order.
HONE_INLINE float exp_exact(float x) {
    const float magic = 12582912.0f, low = -87.3f, top = 88.0f;
    float capped = top < x ? top : x;
    float safe = capped < low ? low : capped;
    float t = fused(safe, 1.44269504088896340736f, magic);
    float n = t - magic;
    float r = fused(n, -0.6933594f, safe);
    r = fused(n, 2.1219444e-4f, r);
    float p = 1.9875692e-4f;
    p = fused(p, r, 1.3981999e-3f);
    p = fused(p, r, 8.333452e-3f);
    p = fused(p, r, 4.1665796e-2f);
    p = fused(p, r, 1.6666665e-1f);
    p = fused(p, r, 0.5f);
    float one_plus_r = r + 1.0f;
    float power = bits_float((float_bits(t) + 127u) << 23);
    float e = fused(p, r * r, one_plus_r) * power;
    return x < low ? 0.0f : e;
}

HONE_INLINE float sigmoid_exact(float x) { return 1.0f / (1.0f + exp_exact(0.0f - x)); }

// Sum of sixteen lanes by the one tree.
HONE_INLINE float sum_lanes(const float *lanes) {
    float s[16];
    for (int i = 0; i < 16; i++) s[i] = lanes[i];
    for (int width = 8; width >= 1; width /= 2) {
        for (int i = 0; i < width; i++) s[i] = s[i] + s[i + width];
    }
    return s[0];
}
