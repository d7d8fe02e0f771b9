// y = x W^T for up to some rows: weights and rows stream through a block's memory, brought by one warp while others add.
#pragma once
#include "linear.cuh"

// Most parts that a block's memory holds.
constexpr uint32_t PARTS_MAX = 16;

// What a block has at a time: IN inputs of ROWS rows, and of STRIPS times thirty-two outputs.
template <uint32_t F, uint32_t ROWS, uint32_t STRIPS, uint32_t IN> struct Part {
    static constexpr uint32_t GROUP_BYTES = GROUP_OUT * EIGHT_BYTES<F>;
    static constexpr bool SCALED = F == Q8 || F == Q4;
    // Bytes of a strip's weights and scales, and of a row.
    static constexpr uint32_t W = IN / GROUP_IN * GROUP_BYTES, SCALES = SCALED ? IN / 32 * GROUP_OUT * 2 : 0, X = IN * 4;
    static constexpr uint32_t BYTES = STRIPS * (W + SCALES) + ROWS * X;
};

// Which of a block's parts have come, and which have been used.
struct Parts {
    Arrivals full[PARTS_MAX];
    Arrivals empty[PARTS_MAX];
};

// The warp that brings.
template <uint32_t F, uint32_t ROWS, uint32_t STRIPS, uint32_t IN>
HONE_INLINE void bring(const Linear &a, uint32_t strip0, uint32_t row0, Parts &parts, unsigned char *room, uint32_t count) {
    typedef Part<F, ROWS, STRIPS, IN> Own;
    const uint32_t steps = (a.w.inp + IN - 1) / IN, groups = groups_in(a.w.inp), each_scale = (a.w.inp + 31) / 32;
    const uint32_t strips = least(STRIPS, (a.w.out + GROUP_OUT - 1) / GROUP_OUT - strip0);
    const uint32_t rows = least(ROWS, a.rows - row0);
    auto in_step = [&](uint32_t step) { return least(IN / GROUP_IN, groups - step * (IN / GROUP_IN)); };
    auto weights = [&](uint32_t step, uint32_t at) {
        const uint32_t own = in_step(step), scales = Own::SCALED ? (own + 3) / 4 * GROUP_OUT * 2 : 0;
        unsigned char *to = room + at * Own::BYTES;
        parts.full[at].announce(strips * (own * Own::GROUP_BYTES + scales) + rows * own * GROUP_IN * 4);
        parts.full[at].copy(strips, [&](uint32_t s) {
            const uint64_t from = (uint64_t)(strip0 + s) * groups + step * (IN / GROUP_IN);
            return Piece{to + s * Own::W, (const char *)a.w.data + from * Own::GROUP_BYTES, own * Own::GROUP_BYTES};
        });
        if (!Own::SCALED) return;
        parts.full[at].copy(strips, [&](uint32_t s) {
            const uint64_t from = (uint64_t)(strip0 + s) * each_scale + step * (IN / 32);
            return Piece{to + STRIPS * Own::W + s * Own::SCALES, a.w.scales + from * GROUP_OUT, scales};
        });
    };
    auto inputs = [&](uint32_t step, uint32_t at) {
        unsigned char *to = room + at * Own::BYTES + STRIPS * (Own::W + Own::SCALES);
        const uint32_t bytes = in_step(step) * GROUP_IN * 4;
        parts.full[at].copy(rows, [&](uint32_t r) {
            return Piece{to + r * Own::X, row_of(a, row0 + r) + step * IN, bytes};
        });
        parts.full[at].begun();
    };
    // A share of what comes after is asked for with every step.
    const uint32_t block = blockIdx.y * gridDim.x + blockIdx.x;
    const uint64_t share = a.next_bytes / ((uint64_t)gridDim.x * gridDim.y * steps) / 128 * 128;
    auto after = [&](uint32_t step) {
        if (share > 0 && threadIdx.x % 32 == 0)
            ask_ahead((const char *)a.next + ((uint64_t)block * steps + step) * share, (uint32_t)share);
    };
    // Weights are the same whatever the kernels before do.
    for (uint32_t step = 0; step < count && step < steps; step++) {
        weights(step, step);
        after(step);
    }
    wait_before();
    for (uint32_t step = 0; step < count && step < steps; step++) inputs(step, step);
    uint32_t at = 0, time = 0;
    for (uint32_t step = count; step < steps; step++) {
        parts.empty[at].wait(time);
        weights(step, at);
        inputs(step, at);
        after(step);
        if (++at == count) {
            at = 0;
            time++;
        }
    }
}

// Eight inputs of a thread's outputs and rows.
template <uint32_t F, uint32_t EACH, uint32_t STRIPS> struct Taken {
    Packed<F> w[STRIPS];
    Bytes16 x[EACH][2];
};

// A warp that adds: EACH rows from the block's row `first` on, a thread one output of every strip, inputs ascending.
// AHEAD groups are taken before they are used.
template <uint32_t F, uint32_t EACH, uint32_t ROWS, uint32_t STRIPS, uint32_t IN, uint32_t AHEAD>
HONE_INLINE void add_parts(const Linear &a, uint32_t first, Parts &parts, const unsigned char *room, uint32_t count,
                           float sum[EACH][STRIPS]) {
    typedef Part<F, ROWS, STRIPS, IN> Own;
    typedef Taken<F, EACH, STRIPS> Some;
    constexpr uint32_t GROUPS = IN / GROUP_IN;
    const uint32_t t = threadIdx.x % 32, steps = a.w.inp / IN;
    auto take = [&](uint32_t at, uint32_t group) {
        const unsigned char *from = room + at * Own::BYTES;
        Some taken;
#pragma unroll
        for (uint32_t s = 0; s < STRIPS; s++) {
            const uint16_t *scales = (const uint16_t *)(from + STRIPS * Own::W + s * Own::SCALES);
            taken.w[s].read(from + s * Own::W, scales + group / 4 * GROUP_OUT + t, group * GROUP_OUT + t);
        }
#pragma unroll
        for (uint32_t r = 0; r < EACH; r++) {
            const Bytes16 *x = (const Bytes16 *)(from + STRIPS * (Own::W + Own::SCALES) + (first + r) * Own::X);
            taken.x[r][0] = x[group * 2];
            taken.x[r][1] = x[group * 2 + 1];
        }
        return taken;
    };
    auto add = [&](const Some &taken, uint32_t inputs) {
        float w[STRIPS][GROUP_IN];
#pragma unroll
        for (uint32_t s = 0; s < STRIPS; s++) taken.w[s].widen(w[s]);
#pragma unroll
        for (uint32_t j = 0; j < GROUP_IN; j++) {
            if (j >= inputs) break;
#pragma unroll
            for (uint32_t r = 0; r < EACH; r++) {
                const float own = bits_float(taken.x[r][j / 4].w[j % 4]);
#pragma unroll
                for (uint32_t s = 0; s < STRIPS; s++) sum[r][s] = fused(own, w[s][j], sum[r][s]);
            }
        }
    };
#pragma unroll
    for (uint32_t r = 0; r < EACH; r++) {
#pragma unroll
        for (uint32_t s = 0; s < STRIPS; s++) sum[r][s] = 0.0f;
    }
    uint32_t at = 0, time = 0;
    auto next = [&]() {
        HONE_WARP_SYNC();
        if (t == 0) parts.empty[at].arrive();
        if (++at == count) {
            at = 0;
            time++;
        }
    };
    if constexpr (AHEAD == 0) {
        for (uint32_t step = 0; step < steps; step++) {
            parts.full[at].wait(time);
#pragma unroll
            for (uint32_t g = 0; g < GROUPS; g++) add(take(at, g), GROUP_IN);
            next();
        }
    } else if (steps > 0) {
        static_assert(GROUPS % AHEAD == 0, "a part's first groups are held where the last of the one before were");
        Some held[AHEAD];
        parts.full[0].wait(0);
#pragma unroll
        for (uint32_t g = 0; g < AHEAD; g++) held[g] = take(0, g);
        for (uint32_t step = 0; step + 1 < steps; step++) {
#pragma unroll
            for (uint32_t g = 0; g < GROUPS; g++) {
                const Some now = held[g % AHEAD];
                if (g + AHEAD == GROUPS) {
                    next();
                    parts.full[at].wait(time);
                }
                held[g % AHEAD] = take(at, (g + AHEAD) % GROUPS);
                add(now, GROUP_IN);
            }
        }
#pragma unroll
        for (uint32_t g = 0; g < GROUPS; g++) {
            const Some now = held[g % AHEAD];
            if (g + AHEAD < GROUPS) held[g % AHEAD] = take(at, g + AHEAD);
            add(now, GROUP_IN);
        }
        next();
    }
    const uint32_t left = a.w.inp - steps * IN;
    if (left == 0) return;
    parts.full[at].wait(time);
    for (uint32_t g = 0; g < left / GROUP_IN; g++) add(take(at, g), GROUP_IN);
    if (left % GROUP_IN != 0) add(take(at, left / GROUP_IN), left % GROUP_IN);
}

// Thread: one output of STRIPS strips, EACH rows. Block: WARPS warps, and one that brings.
template <uint32_t F, uint32_t EACH, uint32_t WARPS, uint32_t STRIPS, uint32_t IN, uint32_t AHEAD>
HONE_INLINE void stream(const Linear &a, uint32_t strip0, uint32_t row0, Parts &parts, unsigned char *room, uint32_t bytes) {
    constexpr uint32_t ROWS = EACH * WARPS;
    typedef Part<F, ROWS, STRIPS, IN> Own;
    if (strip0 * GROUP_OUT >= a.w.out || row0 >= a.rows) return;
    const uint32_t count = least(bytes / Own::BYTES, PARTS_MAX), warp = threadIdx.x / 32, t = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < count; i++) {
            parts.full[i].begin(0, true);
            parts.empty[i].begin(WARPS, false);
        }
    }
    HONE_SYNC();
    if (warp == WARPS) {
        bring<F, ROWS, STRIPS, IN>(a, strip0, row0, parts, room, count);
        return;
    }
    wait_before();
    float sum[EACH][STRIPS];
    add_parts<F, EACH, ROWS, STRIPS, IN, AHEAD>(a, warp * EACH, parts, room, count, sum);
#pragma unroll
    for (uint32_t r = 0; r < EACH; r++) {
        const uint32_t row = row0 + warp * EACH + r;
#pragma unroll
        for (uint32_t s = 0; s < STRIPS; s++) {
            const uint32_t out = (strip0 + s) * GROUP_OUT + t;
            if (row < a.rows && out < a.w.out) leave(a, row, out, sum[r][s]);
        }
    }
}

// STRIPS strips a block. Grid: strips, rows.
template <uint32_t F, uint32_t EACH, uint32_t WARPS, uint32_t STRIPS, uint32_t IN, uint32_t AHEAD>
HONE_INLINE void stream_rows(const Linear &a) {
    HONE_SHARED Parts parts;
    HONE_ROOM(room);
    stream<F, EACH, WARPS, STRIPS, IN, AHEAD>(a, blockIdx.x * STRIPS, blockIdx.y * EACH * WARPS, parts, room, a.room);
}

// The same of one strip, and in further blocks the products of adapters that are beside.
template <uint32_t F, uint32_t EACH, uint32_t WARPS, uint32_t IN, uint32_t AHEAD>
HONE_INLINE void stream_few(const Linear &a) {
    HONE_SHARED Parts parts;
    HONE_ROOM(room);
    const uint32_t strips = (a.w.out + GROUP_OUT - 1) / GROUP_OUT;
    if (blockIdx.x < strips) {
        stream<F, EACH, WARPS, 1, IN, AHEAD>(a, blockIdx.x, 0, parts, room, a.room);
        return;
    }
    const uint32_t at = blockIdx.x - strips;
    const Linear own = a.beside.each[at / a.beside.blocks];
    if (own.w.format == BF16) stream<BF16, EACH, WARPS, 1, 128, 2>(own, at % a.beside.blocks, 0, parts, room, a.room);
    else stream<F32, EACH, WARPS, 1, 64, 2>(own, at % a.beside.blocks, 0, parts, room, a.room);
}

// By rows of a warp, warps of a block, and strips; ../device/linear.rs chooses. ONE and IN are inputs of a
// part, for one row and for more.
#define HONE_STREAMS(format, F, ONE, IN)                                                                                 \
    HONE_KERNEL_AHEAD(stream_##format##_1x1, Linear) { stream_few<F, 1, 1, ONE, 4>(args); }                              \
    HONE_KERNEL_AHEAD(stream_##format##_1x4, Linear) { stream_few<F, 1, 4, IN, 2>(args); }                               \
    HONE_KERNEL_AHEAD(stream_##format##_2x2, Linear) { stream_few<F, 2, 2, IN, 1>(args); }                               \
    HONE_KERNEL_AHEAD(stream_##format##_2x4, Linear) { stream_rows<F, 2, 4, 1, IN, 1>(args); }                           \
    HONE_KERNEL_AHEAD(stream_##format##_4x2, Linear) { stream_rows<F, 4, 2, 1, IN, 1>(args); }                           \
    HONE_KERNEL_AHEAD(stream_##format##_4x4, Linear) { stream_rows<F, 4, 4, 1, IN, 1>(args); }                           \
    HONE_KERNEL_AHEAD(stream_##format##_8x4, Linear) { stream_rows<F, 8, 4, 1, IN, 0>(args); }                           \
    HONE_KERNEL_AHEAD(stream_##format##_4x4_two, Linear) { stream_rows<F, 4, 4, 2, 64, 1>(args); }                       \
    HONE_KERNEL_AHEAD(stream_##format##_8x4_two, Linear) { stream_rows<F, 8, 4, 2, 64, 0>(args); }

HONE_STREAMS(f32, F32, 128, 64)
HONE_STREAMS(bf16, BF16, 256, 128)
HONE_STREAMS(q8, Q8, 256, 128)
HONE_STREAMS(q4, Q4, 256, 128)
