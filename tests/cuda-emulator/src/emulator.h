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
// Waits for the other threads of the warp.
void emulator_warp_sync();
// Lets others go on until one of them has done something that counts.
void emulator_wait();
// Says that something was done that others may wait for.
void emulator_did();
// Memory of a block that its launch asks for.
constexpr uint32_t ROOM_MAX = 256 << 10;
extern unsigned char emulator_room[ROOM_MAX];
// Makes a kernel known by its name.
struct Registered {
    Registered(const char *name, void (*run)(const void *));
};

#define HONE_INLINE inline
#define HONE_SHARED static
#define HONE_SYNC() emulator_sync()
#define HONE_WARP_SYNC() emulator_warp_sync()
#define HONE_ROOM(name) unsigned char *name = emulator_room
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
static inline void ask_ahead(const void *, uint32_t) {}
// As in common.cuh.
struct Arrivals {
    uint32_t all, left, times;
    int32_t bytes;
    void begin(uint32_t threads) {
        all = left = threads;
        times = 0;
        bytes = 0;
    }
    void begin_copies(bool by_threads) { begin(by_threads ? 33 : 1); }
    void arrive() {
        left--;
        look();
    }
    void wait(uint32_t time) const {
        while (times <= time) emulator_wait();
    }
    void announce(uint32_t count) {
        if (threadIdx.x % 32 != 0) return;
        bytes += count;
        arrive();
    }
    void begun(bool by_threads) {
        if (by_threads) arrive();
    }
    template <typename Each> void copy(uint32_t count, Each piece) {
        for (uint32_t i = threadIdx.x % 32; i < count; i += 32) {
            const Piece own = piece(i);
            memcpy(own.to, own.from, own.bytes);
            bytes -= own.bytes;
            look();
        }
    }

  private:
    void look() {
        if (left != 0 || bytes != 0) return;
        left = all;
        times++;
        emulator_did();
    }
};
