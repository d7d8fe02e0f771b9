// y = x W^T, for a few rows (weights are read once for all of them) and for many (in tiles).
#pragma once
#include "common.cuh"

// What becomes of a finished sum.
constexpr uint32_t SET = 0, ADD_SCALED = 1, SET_SCALED = 2, CONTINUE = 3;

struct Linear;

// Products that are computed by one launch.
struct Linears {
    const Linear *each;
    uint32_t count;
    // Blocks of one of them.
    uint32_t blocks;
};

struct Linear {
    Matrix w;
    // [out], or null.
    const float *bias;
    const float *x;
    float *y;
    uint32_t rows;
    uint32_t x_stride;
    uint32_t y_stride;
    uint32_t store;
    float scale;
    // Bytes of a block's memory that the launch asks for.
    uint32_t room;
    // What the kernels for a few rows compute in further blocks, of the same rows or fewer.
    Linears beside;
    // What is asked for meanwhile, since the next kernels read it; bytes may be 0.
    const void *next;
    uint64_t next_bytes;
};

// Where a row of x begins.
HONE_INLINE const float *row_of(const Linear &a, uint32_t row) { return a.x + (uint64_t)row * a.x_stride; }

HONE_INLINE void leave(const Linear &a, uint32_t row, uint32_t out, float sum) {
    float *y = a.y + (uint64_t)row * a.y_stride + out;
    if (a.store == ADD_SCALED) {
        *y = fused(a.scale, sum, *y);
    } else if (a.store == SET_SCALED) {
        *y = sum * a.scale;
    } else {
        *y = a.bias ? sum + a.bias[out] : sum;
    }
}

// Below, a product A is a `Linear`, or what has its `w`, `rows`, `row_of` and `leave`.
//
// What a block reads at a time: IN inputs of ROWS rows, and of STRIPS times thirty-two outputs.
template <uint32_t F, uint32_t ROWS, uint32_t STRIPS, uint32_t IN> struct Stage {
    // Pieces of sixteen bytes of a strip.
    static constexpr uint32_t STRIP = IN / GROUP_IN * GROUP_OUT * EIGHT_BYTES<F> / 16;
    // Rows stand four banks apart, so that eight are read at once.
    Bytes16 x[ROWS][IN / 4 + 1];
    Bytes16 w[STRIPS][STRIP];
    // For those that have a scale.
    Bytes16 scales[STRIPS][IN / 32 * GROUP_OUT * 2 / 16];

    // A warp starts to copy the weights of the inputs from `step * IN` on, of which there are `count` groups.
    template <bool WHOLE, typename A>
    HONE_INLINE void copy_weights(const A &a, uint32_t strip0, uint32_t step, uint32_t count) {
        const uint32_t t = threadIdx.x % 32, strips = (a.w.out + GROUP_OUT - 1) / GROUP_OUT;
#pragma unroll
        for (uint32_t s = 0; s < STRIPS; s++) {
            const uint64_t strip = least(strip0 + s, strips - 1);
            const uint32_t eights = WHOLE ? STRIP : count * (GROUP_OUT * EIGHT_BYTES<F> / 16);
            const uint64_t at = strip * groups_in(a.w.inp) * (GROUP_OUT * EIGHT_BYTES<F> / 16) + (uint64_t)step * STRIP;
            const Bytes16 *from = (const Bytes16 *)a.w.data + at + t;
#pragma unroll
            for (uint32_t i = 0; i < STRIP; i += 32) {
                if (WHOLE || i + t < eights) copy_ahead(&w[s][i + t], from + i);
            }
            if (F == Q8 || F == Q4) {
                // Four groups share a scale; the scales of thirty-two outputs are sixty-four bytes.
                const uint64_t own = strip * ((a.w.inp + 31) / 32) + step * (IN / 32);
                if (t < (count + 3) / 4 * 4) copy_ahead(&scales[s][t], (const Bytes16 *)a.w.scales + own * 4 + t);
            }
        }
    }

    // The same of the rows.
    template <bool WHOLE, typename A> HONE_INLINE void copy_rows(const A &a, uint32_t step, uint32_t count) {
        const uint32_t t = threadIdx.x % 32;
        constexpr uint32_t EACH = IN / 4;
#pragma unroll
        for (uint32_t i = 0; i < ROWS * EACH; i += 32) {
            // Lanes take pieces of one row, or of rows one after the other.
            const uint32_t r = (i + t) / EACH, piece = (i + t) % EACH;
            const uint32_t row = least(blockIdx.y * ROWS + r, a.rows - 1);
            const Bytes16 *from = (const Bytes16 *)row_of(a, row) + step * EACH + piece;
            const bool there = ROWS * EACH % 32 == 0 || r < ROWS;
            if (there && (WHOLE || piece < count * 2)) copy_ahead(&x[r][piece], from);
        }
    }

    // A group of eight inputs of one output.
    HONE_INLINE Packed<F> packed(uint32_t strip, uint32_t group, uint32_t out) const {
        Packed<F> packed;
        packed.read(w[strip], (const uint16_t *)scales[strip] + group / 4 * GROUP_OUT + out, group * GROUP_OUT + out);
        return packed;
    }
};

// What one warp of a block does while the others add: it copies, so many stages ahead as there are but one.
template <uint32_t STAGES, uint32_t F, uint32_t ROWS, uint32_t STRIPS, uint32_t IN, typename A>
HONE_INLINE void copy_all(const A &a, uint32_t strip0, Stage<F, ROWS, STRIPS, IN> *stages) {
    const uint32_t steps = (a.w.inp + IN - 1) / IN;
    auto left = [&](uint32_t step) { return groups_in(a.w.inp) - step * (IN / GROUP_IN); };
    auto weights = [&](uint32_t step) {
        Stage<F, ROWS, STRIPS, IN> &to = stages[step % STAGES];
        if (left(step) >= IN / GROUP_IN) to.template copy_weights<true>(a, strip0, step, IN / GROUP_IN);
        else to.template copy_weights<false>(a, strip0, step, left(step));
    };
    auto rows = [&](uint32_t step) {
        Stage<F, ROWS, STRIPS, IN> &to = stages[step % STAGES];
        if (left(step) >= IN / GROUP_IN) to.template copy_rows<true>(a, step, IN / GROUP_IN);
        else to.template copy_rows<false>(a, step, left(step));
    };
    // Weights are the same whatever the kernels before do.
    for (uint32_t step = 0; step + 1 < STAGES && step < steps; step++) weights(step);
    wait_before();
    for (uint32_t step = 0; step + 1 < STAGES; step++) {
        if (step < steps) rows(step);
        copies_end();
    }
    for (uint32_t step = 0; step < steps; step++) {
        copies_wait<(int)STAGES - 2>();
        HONE_SYNC();
        // To the stage that all have left before the barrier.
        const uint32_t next = step + STAGES - 1;
        if (next < steps) {
            weights(next);
            rows(next);
        }
        copies_end();
    }
}

// Adds the products of all inputs to sum[row][output], inputs ascending, where a thread has EACH rows and
// OUTS outputs: row_at and out_at (strip and output in it) say which.
template <uint32_t EACH, uint32_t OUTS, uint32_t STAGES, uint32_t F, uint32_t ROWS, uint32_t STRIPS, uint32_t IN,
          typename A, typename RowAt, typename OutAt>
HONE_INLINE void add_all(const A &a, const Stage<F, ROWS, STRIPS, IN> *stages, RowAt row_at, OutAt out_at,
                         float sum[EACH][OUTS]) {
    static_assert(STAGES >= 2, "a stage is copied while another is used");
    const uint32_t steps = (a.w.inp + IN - 1) / IN;
#pragma unroll
    for (uint32_t r = 0; r < EACH; r++) {
#pragma unroll
        for (uint32_t o = 0; o < OUTS; o++) sum[r][o] = 0.0f;
    }
    for (uint32_t step = 0; step < steps; step++) {
        HONE_SYNC();
        const Stage<F, ROWS, STRIPS, IN> &from = stages[step % STAGES];
        auto add = [&](uint32_t group, uint32_t count) {
            float w[OUTS][GROUP_IN];
            Bytes16 x[2][EACH];
#pragma unroll
            for (uint32_t o = 0; o < OUTS; o++) from.packed(out_at(o).strip, group, out_at(o).out).widen(w[o]);
#pragma unroll
            for (uint32_t r = 0; r < EACH; r++) {
                x[0][r] = from.x[row_at(r)][2 * group];
                x[1][r] = from.x[row_at(r)][2 * group + 1];
            }
#pragma unroll
            for (uint32_t j = 0; j < GROUP_IN; j++) {
                if (j >= count) break;
#pragma unroll
                for (uint32_t r = 0; r < EACH; r++) {
                    const float own = bits_float(x[j / 4][r].w[j % 4]);
#pragma unroll
                    for (uint32_t o = 0; o < OUTS; o++) sum[r][o] = fused(own, w[o][j], sum[r][o]);
                }
            }
        };
        const uint32_t left = a.w.inp - step * IN;
        if (left >= IN) {
#pragma unroll
            for (uint32_t g = 0; g < IN / GROUP_IN; g++) add(g, GROUP_IN);
        } else {
            for (uint32_t g = 0; g < left / GROUP_IN; g++) add(g, GROUP_IN);
            if (left % GROUP_IN != 0) add(left / GROUP_IN, left % GROUP_IN);
        }
    }
}

struct OutAt {
    uint32_t strip;
    uint32_t out;
};

// Bytes of a block's stages: many blocks that wait for memory, or few that compute.
constexpr uint32_t FEW_BYTES = 36 << 10, SOME_BYTES = 46 << 10;

template <typename Own, uint32_t BYTES>
constexpr uint32_t STAGES_IN = BYTES / sizeof(Own) < 8 ? BYTES / sizeof(Own) : 8;

// Thread: one output of R rows. Block: thirty-two, and as many that copy; a strip of outputs. Grid: strips, rows.
template <uint32_t F, uint32_t R, uint32_t IN, typename A>
HONE_INLINE void few(const A &a, uint32_t strip, Bytes16 *room) {
    typedef Stage<F, R, 1, IN> Own;
    constexpr uint32_t STAGES = STAGES_IN<Own, FEW_BYTES>;
    Own *stages = (Own *)room;
    const uint32_t out = strip * GROUP_OUT + threadIdx.x, row0 = blockIdx.y * R;
    if (strip * GROUP_OUT >= a.w.out || row0 >= a.rows) return;
    if (threadIdx.x >= 32) {
        copy_all<STAGES>(a, strip, stages);
        return;
    }
    wait_before();
    float sum[R][1];
    auto row_at = [](uint32_t r) { return r; };
    add_all<R, 1, STAGES>(a, stages, row_at, [](uint32_t) { return OutAt{0, threadIdx.x}; }, sum);
#pragma unroll
    for (uint32_t r = 0; r < R; r++) {
        if (out < a.w.out && row0 + r < a.rows) leave(a, row0 + r, out, sum[r][0]);
    }
}

constexpr uint32_t SOME_THREADS = 128;

// Thread: two outputs of either strip, and a share of the rows. Block: SOME_THREADS, and thirty-two that copy;
// ROWS rows, sixty-four outputs. Grid: outputs, rows.
//
// What bounds it is how much is read from the block's memory, so a thread's share of rows and outputs is as
// near to a square as what it has to do allows.
template <uint32_t F, uint32_t ROWS, uint32_t IN, typename A> HONE_INLINE void some(const A &a) {
    constexpr uint32_t STRIPS = 2, PER = 2;
    typedef Stage<F, ROWS, STRIPS, IN> Own;
    constexpr uint32_t STAGES = STAGES_IN<Own, SOME_BYTES>, ROW_LANES = 4 * PER, EACH = ROWS / ROW_LANES;
    HONE_SHARED Own stages[STAGES];
    const uint32_t t = threadIdx.x, row = t % ROW_LANES, out = t / 32 * 8 + t % 32 / ROW_LANES * PER;
    if (t >= SOME_THREADS) {
        copy_all<STAGES>(a, blockIdx.x * STRIPS, stages);
        return;
    }
    auto row_at = [&](uint32_t r) { return row + ROW_LANES * r; };
    auto out_at = [&](uint32_t o) { return OutAt{o / PER, out + o % PER}; };
    wait_before();
    float sum[EACH][PER * STRIPS];
    add_all<EACH, PER * STRIPS, STAGES>(a, stages, row_at, out_at, sum);
#pragma unroll
    for (uint32_t r = 0; r < EACH; r++) {
#pragma unroll
        for (uint32_t o = 0; o < PER * STRIPS; o++) {
            uint32_t at = blockIdx.y * ROWS + row_at(r);
            uint32_t to = (blockIdx.x * STRIPS + o / PER) * GROUP_OUT + out + o % PER;
            if (at < a.rows && to < a.w.out) leave(a, at, to, sum[r][o]);
        }
    }
}

// For many rows and outputs.
HONE_KERNEL_AHEAD(many_f32, Linear) { some<F32, 64, 32>(args); }
HONE_KERNEL_AHEAD(many_bf16, Linear) { some<BF16, 64, 32>(args); }
HONE_KERNEL_AHEAD(many_q8, Linear) { some<Q8, 64, 32>(args); }
HONE_KERNEL_AHEAD(many_q4, Linear) { some<Q4, 64, 32>(args); }

// The products of adapters: small, many. Grid: strips, rows, products.
HONE_KERNEL(adapters, Linears) {
    HONE_SHARED Bytes16 room[FEW_BYTES / 16];
    const Linear own = args.each[blockIdx.z];
    if (own.w.format == BF16) few<BF16, 4, 128>(own, blockIdx.x, room);
    else few<F32, 4, 64>(own, blockIdx.x, room);
}
