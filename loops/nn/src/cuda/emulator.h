// The words of a GPU's compiler, for a processor's: see emulator.cpp.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

struct Dim {
    uint32_t x, y, z;
};
extern Dim threadIdx, blockIdx, blockDim, gridDim;

// Waits for the other threads of the block.
void emulator_sync();
// Makes a kernel known by its name.
struct Registered {
    Registered(const char *name, void (*run)(const void *));
};

#define HONE_INLINE inline
#define HONE_SHARED static
#define HONE_SYNC() emulator_sync()
#define HONE_KERNEL(name, Args)                                                                    \
    static void name##_kernel(const Args args);                                                    \
    static Registered name##_known(#name, [](const void *args) {                                   \
        name##_kernel(*(const Args *)args);                                                        \
    });                                                                                            \
    static void name##_kernel(const Args args)

#define HONE_KERNEL_AHEAD HONE_KERNEL

static inline float fused(float a, float b, float c) { return fmaf(a, b, c); }
static inline float bits_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
static inline uint32_t float_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}
// Threads take turns at barriers only, so nothing comes between.
static inline uint32_t add_shared(uint32_t *to, uint32_t x) {
    uint32_t before = *to;
    *to = before + x;
    return before;
}
// Copies are done at once; the emulator does not see a wait that is missing.
static inline void copy_ahead(void *to, const void *from) { memcpy(to, from, 16); }
static inline void copies_end() {}
template <int N> static inline void copies_wait() {}
// One kernel follows the other.
static inline void wait_before() {}
