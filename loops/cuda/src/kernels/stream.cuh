// y = x W^T for up to some rows: weights and rows stream through a block's memory, brought by one warp while others add.
#pragma once
#include "linear.cuh"

// Most parts that a block's memory holds.
constexpr uint32_t PARTS_MAX = 16;

// How a block's threads share its rows and outputs: ROW_WARPS times OUT_WARPS warps, in each of which ROW_LANES threads
// take rows, EACH of them, and the others outputs, PER of them.
template <uint32_t EACH_, uint32_t ROW_LANES_, uint32_t ROW_WARPS_, uint32_t PER_, uint32_t OUT_WARPS_> struct Shape {
    static constexpr uint32_t EACH = EACH_, ROW_LANES = ROW_LANES_, ROW_WARPS = ROW_WARPS_, PER = PER_, OUT_WARPS = OUT_WARPS_;
    static constexpr uint32_t OUT_LANES = 32 / ROW_LANES, WARPS = ROW_WARPS * OUT_WARPS;
    static constexpr uint32_t ROWS = EACH * ROW_LANES * ROW_WARPS, STRIPS = PER * OUT_LANES * OUT_WARPS / GROUP_OUT;
    static_assert(PER * OUT_LANES * OUT_WARPS % GROUP_OUT == 0, "a block takes whole strips");
    // Sixteen bytes of eight threads come in half the time where every thread of a pair, or every second pair, asks
    // for the same. So the lowest bit of a thread's number says its row and the next its output.
    HONE_INLINE static uint32_t row_lane() {
        const uint32_t t = threadIdx.x % 32;
        return ROW_LANES == 1 ? 0 : t % 2 + t / 4 % (ROW_LANES / 2) * 2;
    }
    HONE_INLINE static uint32_t out_lane() {
        const uint32_t t = threadIdx.x % 32;
        return ROW_LANES == 1 ? t : t / 2 % 2 + t / (2 * ROW_LANES) * 2;
    }
    // The thread's first row and first output of the block's; the others lie ROW_LANES and OUT_LANES apart.
    HONE_INLINE static uint32_t row() { return threadIdx.x / 32 / OUT_WARPS * (EACH * ROW_LANES) + row_lane(); }
    HONE_INLINE static uint32_t out() { return threadIdx.x / 32 % OUT_WARPS * (PER * OUT_LANES) + out_lane(); }
};

// What a block has at a time: IN inputs of its rows, and of its outputs.
template <uint32_t F, typename S, uint32_t IN> struct Part {
    static constexpr uint32_t GROUP_BYTES = GROUP_OUT * EIGHT_BYTES<F>;
    static constexpr bool SCALED = F == Q8 || F == Q4;
    // Bytes of a strip's weights and scales, and of a row. Rows of which a warp reads several stand four banks apart.
    static constexpr uint32_t W = IN / GROUP_IN * GROUP_BYTES, SCALES = SCALED ? IN / 32 * GROUP_OUT * 2 : 0;
    static constexpr uint32_t X = IN * 4 + (S::ROW_LANES > 1 ? 16 : 0);
    static constexpr uint32_t BYTES = S::STRIPS * (W + SCALES) + S::ROWS * X;
    // A row alone is one copy; several are too many for the copy engine, so threads copy them.
    static constexpr bool BY_THREADS = S::ROWS > 1;
};

// Which of a block's parts have come, and which have been used.
struct Parts {
    Arrivals full[PARTS_MAX];
    Arrivals empty[PARTS_MAX];
};

// Which of a block's parts comes next, and how often its place had one before.
struct Turn {
    uint32_t count;
    uint32_t at;
    uint32_t time;
    HONE_INLINE void next() {
        if (++at == count) {
            at = 0;
            time++;
        }
    }
};

// The warp that brings.
template <uint32_t F, typename S, uint32_t IN>
HONE_INLINE void bring(const Linear &a, uint32_t strip0, uint32_t row0, Parts &parts, unsigned char *room, uint32_t count) {
    typedef Part<F, S, IN> Own;
    constexpr uint32_t ROWS = S::ROWS, STRIPS = S::STRIPS;
    constexpr uint32_t ALL = IN / GROUP_IN;
    const uint32_t whole = a.w.inp / IN, groups = groups_in(a.w.inp), each_scale = (a.w.inp + 31) / 32, last = groups - whole * ALL;
    const uint32_t strips = least(STRIPS, (a.w.out + GROUP_OUT - 1) / GROUP_OUT - strip0);
    const uint32_t rows = least(ROWS, a.rows - row0), t = threadIdx.x % 32;
    // `own` groups of inputs from those of `step` on, to the part at `at`.
    auto weights = [&](uint32_t step, uint32_t at, uint32_t own) {
        const uint32_t scales = Own::SCALED ? (own + 3) / 4 * GROUP_OUT * 2 : 0;
        const uint32_t inputs = Own::BY_THREADS ? 0 : rows * own * GROUP_IN * 4;
        unsigned char *to = room + at * Own::BYTES;
        parts.full[at].announce(strips * (own * Own::GROUP_BYTES + scales) + inputs);
        parts.full[at].copy(strips, [&](uint32_t s) {
            const uint64_t from = (uint64_t)(strip0 + s) * groups + step * ALL;
            return Piece{to + s * Own::W, (const char *)a.w.data + from * Own::GROUP_BYTES, own * Own::GROUP_BYTES};
        });
        if (!Own::SCALED) return;
        parts.full[at].copy(strips, [&](uint32_t s) {
            const uint64_t from = (uint64_t)(strip0 + s) * each_scale + step * (IN / 32);
            return Piece{to + STRIPS * Own::W + s * Own::SCALES, a.w.scales + from * GROUP_OUT, scales};
        });
    };
    // Where the pieces of sixteen bytes lie that a thread copies of a whole part; beyond the last row that stands in.
    constexpr uint32_t PIECES = IN / 4, EACH = Own::BY_THREADS ? ROWS * PIECES / 32 : 1;
    static_assert(!Own::BY_THREADS || PIECES == 16 || PIECES % 32 == 0, "a warp copies of one row or two at a time");
    auto piece_row = [&](uint32_t i) { return PIECES < 32 ? i * 2 + t / PIECES : i * 32 / PIECES; };
    auto piece_at = [&](uint32_t i) { return PIECES < 32 ? t % PIECES : i * 32 % PIECES + t; };
    uint32_t offset[EACH];
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++) offset[i] = least(piece_row(i), rows - 1) * a.x_stride + piece_at(i) * 4;
    auto inputs = [&](uint32_t step, uint32_t at, uint32_t own) {
        unsigned char *to = room + at * Own::BYTES + STRIPS * (Own::W + Own::SCALES);
        const float *from = row_of(a, row0) + step * IN;
        if (!Own::BY_THREADS) {
            parts.full[at].copy(rows, [&](uint32_t r) { return Piece{to + r * Own::X, from + r * a.x_stride, own * GROUP_IN * 4}; });
        } else if (own == ALL) {
#pragma unroll
            for (uint32_t i = 0; i < EACH; i++) copy_ahead(to + piece_row(i) * Own::X + piece_at(i) * 16, from + offset[i]);
        } else {
            for (uint32_t i = t; i < rows * own * 2; i += 32)
                copy_ahead(to + i / (own * 2) * Own::X + i % (own * 2) * 16, from + i / (own * 2) * a.x_stride + i % (own * 2) * 4);
        }
        parts.full[at].begun(Own::BY_THREADS);
    };
    // A share of what comes after is asked for with every whole part.
    const uint32_t block = blockIdx.y * gridDim.x + blockIdx.x;
    const uint64_t share = whole > 0 ? a.next_bytes / ((uint64_t)gridDim.x * gridDim.y * whole) / 128 * 128 : 0;
    auto after = [&](uint32_t step) {
        if (share > 0 && t == 0) ask_ahead((const char *)a.next + ((uint64_t)block * whole + step) * share, (uint32_t)share);
    };
    const uint32_t first = least(count, whole);
    // Weights are the same whatever the kernels before do.
    for (uint32_t step = 0; step < first; step++) {
        weights(step, step, ALL);
        after(step);
    }
    if (last > 0 && whole < count) weights(whole, whole, last);
    wait_before();
    for (uint32_t step = 0; step < first; step++) inputs(step, step, ALL);
    if (last > 0 && whole < count) inputs(whole, whole, last);
    if (whole < count) return;
    Turn turn{count, 0, 0};
    for (uint32_t step = count; step < whole; step++) {
        parts.empty[turn.at].wait(turn.time);
        weights(step, turn.at, ALL);
        inputs(step, turn.at, ALL);
        after(step);
        turn.next();
    }
    if (last == 0) return;
    parts.empty[turn.at].wait(turn.time);
    weights(whole, turn.at, last);
    inputs(whole, turn.at, last);
}

// Eight inputs of a thread's outputs and rows.
template <uint32_t F, typename S> struct Taken {
    Packed<F> w[S::PER];
    Bytes16 x[S::EACH][2];
};

// What a warp that adds does with a block's parts, one after the other.
struct Adder {
    Parts &parts;
    Turn turn;
    HONE_INLINE void wait() const { parts.full[turn.at].wait(turn.time); }
    // The part is used.
    HONE_INLINE void next() {
        HONE_WARP_SYNC();
        if (threadIdx.x % 32 == 0) parts.empty[turn.at].arrive();
        turn.next();
    }
};

// A warp that adds, inputs ascending. AHEAD groups are taken before they are used; with 0, half a group's rows are.
template <uint32_t F, typename S, uint32_t IN, uint32_t AHEAD>
HONE_INLINE void add_parts(const Linear &a, Parts &parts, const unsigned char *room, uint32_t count, float sum[S::EACH][S::PER]) {
    typedef Part<F, S, IN> Own;
    typedef Taken<F, S> Some;
    constexpr uint32_t GROUPS = IN / GROUP_IN;
    const uint32_t steps = a.w.inp / IN, row = S::row(), lane = S::out_lane(), out0 = S::out() - lane;
    auto take_weights = [&](uint32_t at, uint32_t group, Packed<F> *w) {
        const unsigned char *from = room + at * Own::BYTES;
#pragma unroll
        for (uint32_t o = 0; o < S::PER; o++) {
            // Which strip does not depend on the thread.
            const uint32_t first = out0 + o * S::OUT_LANES, strip = first / GROUP_OUT, out = first % GROUP_OUT + lane;
            const uint16_t *scales = (const uint16_t *)(from + S::STRIPS * Own::W + strip * Own::SCALES);
            w[o].read(from + strip * Own::W, scales + group / 4 * GROUP_OUT + out, group * GROUP_OUT + out);
        }
    };
    // Four inputs of the r-th row.
    auto take_row = [&](uint32_t at, uint32_t r, uint32_t half) {
        const unsigned char *from = room + at * Own::BYTES + S::STRIPS * (Own::W + Own::SCALES);
        return *(const Bytes16 *)(from + (row + r * S::ROW_LANES) * Own::X + half * 16);
    };
    auto take = [&](uint32_t at, uint32_t group) {
        Some taken;
        take_weights(at, group, taken.w);
#pragma unroll
        for (uint32_t r = 0; r < S::EACH; r++) {
            taken.x[r][0] = take_row(at, r, group * 2);
            taken.x[r][1] = take_row(at, r, group * 2 + 1);
        }
        return taken;
    };
    // Input j of a group, of which the rows' has x(r).
    auto add_input = [&](const float w[S::PER][GROUP_IN], uint32_t j, auto x) {
#pragma unroll
        for (uint32_t r = 0; r < S::EACH; r++) {
            const float own = bits_float(x(r));
#pragma unroll
            for (uint32_t o = 0; o < S::PER; o++) sum[r][o] = fused(own, w[o][j], sum[r][o]);
        }
    };
    auto add = [&](const Some &taken, uint32_t inputs) {
        float w[S::PER][GROUP_IN];
#pragma unroll
        for (uint32_t o = 0; o < S::PER; o++) taken.w[o].widen(w[o]);
#pragma unroll
        for (uint32_t j = 0; j < GROUP_IN; j++) {
            if (j >= inputs) break;
            add_input(w, j, [&](uint32_t r) { return taken.x[r][j / 4].w[j % 4]; });
        }
    };
#pragma unroll
    for (uint32_t r = 0; r < S::EACH; r++) {
#pragma unroll
        for (uint32_t o = 0; o < S::PER; o++) sum[r][o] = 0.0f;
    }
    Adder own{parts, {count, 0, 0}};
    if constexpr (AHEAD == 0) {
        for (uint32_t step = 0; step < steps; step++) {
            own.wait();
            Packed<F> w[S::PER];
            Bytes16 x[S::EACH];
            take_weights(own.turn.at, 0, w);
#pragma unroll
            for (uint32_t r = 0; r < S::EACH; r++) x[r] = take_row(own.turn.at, r, 0);
#pragma unroll
            for (uint32_t g = 0; g < GROUPS; g++) {
                float wide[S::PER][GROUP_IN];
#pragma unroll
                for (uint32_t o = 0; o < S::PER; o++) w[o].widen(wide[o]);
                if (g + 1 < GROUPS) take_weights(own.turn.at, g + 1, w);
#pragma unroll
                for (uint32_t half = 0; half < 2; half++) {
                    Bytes16 now[S::EACH];
#pragma unroll
                    for (uint32_t r = 0; r < S::EACH; r++) {
                        now[r] = x[r];
                        if (g * 2 + half + 1 < GROUPS * 2) x[r] = take_row(own.turn.at, r, g * 2 + half + 1);
                    }
#pragma unroll
                    for (uint32_t j = 0; j < 4; j++) add_input(wide, half * 4 + j, [&](uint32_t r) { return now[r].w[j]; });
                }
            }
            own.next();
        }
    } else if (steps > 0) {
        static_assert(GROUPS % AHEAD == 0, "a part's first groups are held where the last of the one before were");
        Some held[AHEAD];
        own.wait();
#pragma unroll
        for (uint32_t g = 0; g < AHEAD; g++) held[g] = take(0, g);
        for (uint32_t step = 0; step + 1 < steps; step++) {
#pragma unroll
            for (uint32_t g = 0; g < GROUPS; g++) {
                const Some now = held[g % AHEAD];
                if (g + AHEAD == GROUPS) {
                    own.next();
                    own.wait();
                }
                held[g % AHEAD] = take(own.turn.at, (g + AHEAD) % GROUPS);
                add(now, GROUP_IN);
            }
        }
#pragma unroll
        for (uint32_t g = 0; g < GROUPS; g++) {
            const Some now = held[g % AHEAD];
            if (g + AHEAD < GROUPS) held[g % AHEAD] = take(own.turn.at, g + AHEAD);
            add(now, GROUP_IN);
        }
        own.next();
    }
    const uint32_t left = a.w.inp - steps * IN;
    if (left == 0) return;
    own.wait();
    for (uint32_t g = 0; g < left / GROUP_IN; g++) add(take(own.turn.at, g), GROUP_IN);
    if (left % GROUP_IN != 0) add(take(own.turn.at, left / GROUP_IN), left % GROUP_IN);
}

// A block: the warps of its shape, and one that brings.
template <uint32_t F, typename S, uint32_t IN, uint32_t AHEAD>
HONE_INLINE void stream(const Linear &a, uint32_t strip0, uint32_t row0, Parts &parts, unsigned char *room, uint32_t bytes) {
    typedef Part<F, S, IN> Own;
    if (strip0 * GROUP_OUT >= a.w.out || row0 >= a.rows) return;
    const uint32_t count = least(bytes / Own::BYTES, PARTS_MAX);
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < count; i++) {
            parts.full[i].begin_copies(Own::BY_THREADS);
            parts.empty[i].begin(S::WARPS);
        }
    }
    HONE_SYNC();
    if (threadIdx.x / 32 == S::WARPS) {
        bring<F, S, IN>(a, strip0, row0, parts, room, count);
        return;
    }
    wait_before();
    float sum[S::EACH][S::PER];
    add_parts<F, S, IN, AHEAD>(a, parts, room, count, sum);
#pragma unroll
    for (uint32_t r = 0; r < S::EACH; r++) {
        const uint32_t row = row0 + S::row() + r * S::ROW_LANES;
#pragma unroll
        for (uint32_t o = 0; o < S::PER; o++) {
            const uint32_t out = strip0 * GROUP_OUT + S::out() + o * S::OUT_LANES;
            if (row < a.rows && out < a.w.out) leave(a, row, out, sum[r][o]);
        }
    }
}

// Grid: strips, rows.
template <uint32_t F, typename S, uint32_t IN, uint32_t AHEAD> HONE_INLINE void stream_rows(const Linear &a) {
    HONE_SHARED Parts parts;
    HONE_ROOM(room);
    stream<F, S, IN, AHEAD>(a, blockIdx.x * S::STRIPS, blockIdx.y * S::ROWS, parts, room, a.room);
}

// The same of one strip, and in further blocks the products of adapters that are beside.
template <uint32_t F, typename S, uint32_t IN, uint32_t AHEAD> HONE_INLINE void stream_few(const Linear &a) {
    static_assert(S::STRIPS == 1, "a block takes a strip");
    HONE_SHARED Parts parts;
    HONE_ROOM(room);
    const uint32_t strips = (a.w.out + GROUP_OUT - 1) / GROUP_OUT;
    if (blockIdx.x < strips) {
        stream<F, S, IN, AHEAD>(a, blockIdx.x, 0, parts, room, a.room);
        return;
    }
    const uint32_t at = blockIdx.x - strips;
    const Linear own = a.beside.each[at / a.beside.blocks];
    if (own.w.format == BF16) stream<BF16, S, 128, 2>(own, at % a.beside.blocks, 0, parts, room, a.room);
    else stream<F32, S, 64, 2>(own, at % a.beside.blocks, 0, parts, room, a.room);
}

// By most rows; ../device/linear.rs chooses. ONE and IN are inputs of a part, for one row and for more.
#define HONE_STREAMS(format, F, ONE, IN)                                                                                 \
    HONE_KERNEL_AHEAD(stream_##format##_1, Linear) { stream_few<F, Shape<1, 1, 1, 1, 1>, ONE, 4>(args); }                \
    HONE_KERNEL_AHEAD(stream_##format##_4, Linear) { stream_few<F, Shape<1, 1, 4, 1, 1>, IN, 2>(args); }                 \
    HONE_KERNEL_AHEAD(stream_##format##_4_wide, Linear) { stream_few<F, Shape<2, 1, 2, 1, 1>, IN, 1>(args); }            \
    HONE_KERNEL_AHEAD(stream_##format##_8, Linear) { stream_rows<F, Shape<2, 1, 4, 1, 1>, IN, 1>(args); }                \
    HONE_KERNEL_AHEAD(stream_##format##_8_wide, Linear) { stream_rows<F, Shape<2, 4, 1, 2, 4>, IN, 0>(args); }           \
    HONE_KERNEL_AHEAD(stream_##format##_16, Linear) { stream_rows<F, Shape<2, 4, 2, 2, 2>, IN, 0>(args); }               \
    HONE_KERNEL_AHEAD(stream_##format##_16_wide, Linear) { stream_rows<F, Shape<4, 4, 1, 2, 4>, IN, 0>(args); }          \
    HONE_KERNEL_AHEAD(stream_##format##_32, Linear) { stream_rows<F, Shape<4, 4, 2, 2, 2>, IN, 0>(args); }               \
    HONE_KERNEL_AHEAD(stream_##format##_32_wide, Linear) { stream_rows<F, Shape<4, 4, 2, 4, 2>, 64, 0>(args); }

HONE_STREAMS(f32, F32, 128, 64)
HONE_STREAMS(bf16, BF16, 256, 128)
HONE_STREAMS(q8, Q8, 256, 128)
HONE_STREAMS(q4, Q4, 256, 128)
