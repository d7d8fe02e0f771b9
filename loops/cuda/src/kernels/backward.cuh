// Gradients of the products and of the operations on rows, as ../train/layer.rs and ../ops.rs. The
// order of every sum is the processor's: over outputs or over tokens ascending, one accumulator with
// fused multiply-add; reductions of a row in sixteen lanes.
#pragma once
#include "linear.cuh"
#include "rows.cuh"

// dx = dy W.
struct Back {
    Matrix w;
    const float *dy;
    float *dx;
    uint32_t rows;
    uint32_t dy_stride;
    uint32_t dx_stride;
    uint32_t store;
    float scale;
    uint32_t unused;
};

// Rows of a block, outputs that it reads at a time, and threads that add.
constexpr uint32_t BACK_ROWS = 64, BACK_OUTS = 16, BACK_THREADS = 128;

// What a block reads at a time: gradients of BACK_OUTS outputs of its rows, and their weights of GROUPS times
// eight inputs.
template <uint32_t F, uint32_t GROUPS> struct BackStage {
    // Pieces of sixteen bytes of a group.
    static constexpr uint32_t GROUP = BACK_OUTS * EIGHT_BYTES<F> / 16;
    Bytes16 dy[BACK_ROWS][BACK_OUTS / 4 + 1];
    Bytes16 w[GROUPS][GROUP];
    Bytes16 scales[GROUPS / 4][BACK_OUTS * 2 / 16];

    // A warp starts to copy the outputs from `out0` on.
    HONE_INLINE void copy(const Back &a, uint32_t out0) {
        const uint32_t t = threadIdx.x % 32, groups = groups_in(a.w.inp), group0 = blockIdx.x * GROUPS;
        const uint64_t strip = out0 / GROUP_OUT, half = out0 % GROUP_OUT;
#pragma unroll
        for (uint32_t i = t; i < GROUPS * GROUP; i += 32) {
            const uint32_t g = i / GROUP, piece = i % GROUP;
            const uint64_t at = ((strip * groups + group0 + g) * GROUP_OUT + half) * EIGHT_BYTES<F> / 16;
            if (group0 + g < groups) copy_ahead(&w[g][piece], (const Bytes16 *)a.w.data + at + piece);
        }
        if (F == Q8 || F == Q4) {
            const uint32_t scaled = (a.w.inp + 31) / 32;
            for (uint32_t i = t; i < GROUPS / 4 * 2; i += 32) {
                const uint64_t at = ((strip * scaled + group0 / 4 + i / 2) * GROUP_OUT + half) / 8;
                const bool there = group0 / 4 + i / 2 < scaled;
                if (there) copy_ahead(&scales[i / 2][i % 2], (const Bytes16 *)a.w.scales + at + i % 2);
            }
        }
        const uint32_t count = least(a.w.out - out0, BACK_OUTS);
        const bool pieces = (uint64_t)a.dy % 16 == 0 && a.dy_stride % 4 == 0;
#pragma unroll
        for (uint32_t i = t; i < BACK_ROWS * BACK_OUTS / 4; i += 32) {
            const uint32_t r = i / (BACK_OUTS / 4), piece = i % (BACK_OUTS / 4);
            const uint32_t row = least(blockIdx.y * BACK_ROWS + r, a.rows - 1);
            const float *from = a.dy + (uint64_t)row * a.dy_stride + out0 + piece * 4;
            if (pieces) {
                if (piece * 4 < count) copy_ahead(&dy[r][piece], from);
            } else {
                for (uint32_t j = 0; j < 4 && piece * 4 + j < count; j++) dy[r][piece].w[j] = float_bits(from[j]);
            }
        }
    }
};

// Thread: a group of eight inputs, and a share of the rows. Block: BACK_THREADS, and thirty-two that copy;
// BACK_ROWS rows, GROUPS groups, of which there are sixteen, or four. Grid: groups, rows.
template <uint32_t F, uint32_t GROUPS> HONE_INLINE void back(const Back &a) {
    typedef BackStage<F, GROUPS> Own;
    constexpr uint32_t STAGES = STAGES_IN<Own, SOME_BYTES>, EACH = GROUPS / 2;
    static_assert(STAGES >= 2, "a stage is copied while another is used");
    HONE_SHARED Own stages[STAGES];
    const uint32_t t = threadIdx.x, steps = (a.w.out + BACK_OUTS - 1) / BACK_OUTS;
    if (t >= BACK_THREADS) {
        for (uint32_t step = 0; step + 1 < STAGES; step++) {
            if (step < steps) stages[step].copy(a, step * BACK_OUTS);
            copies_end();
        }
        for (uint32_t step = 0; step < steps; step++) {
            copies_wait<(int)STAGES - 2>();
            HONE_SYNC();
            const uint32_t next = step + STAGES - 1;
            if (next < steps) stages[next % STAGES].copy(a, next * BACK_OUTS);
            copies_end();
        }
        return;
    }
    // Where warps are more than groups need, they share the rows.
    const uint32_t warp = t / 32, lane = t % 32;
    const uint32_t group = (GROUPS == 16 ? warp * 4 : 0) + lane / 8, row0 = (GROUPS == 16 ? 0 : warp * 16) + lane % 8;
    const uint32_t in0 = (blockIdx.x * GROUPS + group) * GROUP_IN;
    float sum[EACH][GROUP_IN];
#pragma unroll
    for (uint32_t r = 0; r < EACH; r++) {
        const uint32_t row = blockIdx.y * BACK_ROWS + row0 + 8 * r;
#pragma unroll
        for (uint32_t j = 0; j < GROUP_IN; j++) {
            const bool carry = a.store == CONTINUE && row < a.rows && in0 + j < a.w.inp;
            sum[r][j] = carry ? a.dx[(uint64_t)row * a.dx_stride + in0 + j] : 0.0f;
        }
    }
    for (uint32_t step = 0; step < steps; step++) {
        HONE_SYNC();
        const Own &from = stages[step % STAGES];
        const uint32_t count = least(a.w.out - step * BACK_OUTS, BACK_OUTS);
        auto add = [&](uint32_t four, uint32_t most) {
            Bytes16 dy[EACH];
#pragma unroll
            for (uint32_t r = 0; r < EACH; r++) dy[r] = from.dy[row0 + 8 * r][four];
#pragma unroll
            for (uint32_t k = 0; k < 4; k++) {
                if (k >= most) break;
                const uint32_t out = four * 4 + k;
                Packed<F> packed;
                float w[GROUP_IN];
                packed.read(from.w[group], (const uint16_t *)from.scales[group / 4] + out, out);
                packed.widen(w);
#pragma unroll
                for (uint32_t r = 0; r < EACH; r++) {
#pragma unroll
                    for (uint32_t j = 0; j < GROUP_IN; j++) sum[r][j] = fused(bits_float(dy[r].w[k]), w[j], sum[r][j]);
                }
            }
        };
        if (count == BACK_OUTS) {
#pragma unroll
            for (uint32_t four = 0; four < BACK_OUTS / 4; four++) add(four, 4);
        } else {
            for (uint32_t four = 0; four * 4 < count; four++) add(four, count - four * 4);
        }
    }
#pragma unroll
    for (uint32_t r = 0; r < EACH; r++) {
        const uint32_t row = blockIdx.y * BACK_ROWS + row0 + 8 * r;
#pragma unroll
        for (uint32_t j = 0; j < GROUP_IN; j++) {
            if (row >= a.rows || in0 + j >= a.w.inp) continue;
            a.dx[(uint64_t)row * a.dx_stride + in0 + j] = a.store == SET_SCALED ? sum[r][j] * a.scale : sum[r][j];
        }
    }
}

HONE_KERNEL(back_f32, Back) { back<F32, 16>(args); }
HONE_KERNEL(back_bf16, Back) { back<BF16, 16>(args); }
HONE_KERNEL(back_q8, Back) { back<Q8, 16>(args); }
HONE_KERNEL(back_q4, Back) { back<Q4, 16>(args); }
// For few inputs.
HONE_KERNEL(back_few_f32, Back) { back<F32, 4>(args); }
HONE_KERNEL(back_few_bf16, Back) { back<BF16, 4>(args); }
HONE_KERNEL(back_few_q8, Back) { back<Q8, 4>(args); }
HONE_KERNEL(back_few_q4, Back) { back<Q4, 4>(args); }

// dW += dy^T x, tokens ascending; dW as the processor keeps it, [ceil(out / 16)][in][16].
struct Outer {
    const float *dy;
    const float *x;
    float *dw;
    uint32_t rows;
    uint32_t out;
    uint32_t inp;
    uint32_t dy_stride;
    uint32_t x_stride;
    // Sums start at 0 and not from what is there.
    uint32_t fresh;
};

HONE_INLINE uint64_t panel_at(uint32_t inp, uint32_t out, uint32_t in) {
    return ((uint64_t)(out / LANES) * inp + in) * LANES + out % LANES;
}

constexpr uint32_t TILE = 64, TILE_IN = 16, TILE_EACH = 8;

// Adds the products of one stage to the thread's eight by eight sums, steps ascending.
HONE_INLINE void add_stage(float sum[TILE_EACH][TILE_EACH], const float (*a)[TILE + 4], const float (*b)[TILE + 4],
                           uint32_t a_at, uint32_t b_at, uint32_t steps) {
    for (uint32_t k = 0; k < steps; k++) {
        float ar[TILE_EACH], br[TILE_EACH];
#pragma unroll
        for (uint32_t i = 0; i < TILE_EACH; i++) {
            ar[i] = a[k][a_at + i];
            br[i] = b[k][b_at + i];
        }
#pragma unroll
        for (uint32_t m = 0; m < TILE_EACH; m++) {
#pragma unroll
            for (uint32_t n = 0; n < TILE_EACH; n++) sum[m][n] = fused(ar[m], br[n], sum[m][n]);
        }
    }
}

// Thread: eight outputs of eight inputs. Block: sixty-four threads. Grid: inputs, outputs.
HONE_KERNEL(outer, Outer) {
    HONE_SHARED float ys[TILE_IN][TILE + 4];
    HONE_SHARED float xs[TILE_IN][TILE + 4];
    const uint32_t t = threadIdx.x, out0 = blockIdx.y * TILE, in0 = blockIdx.x * TILE;
    const uint32_t out = out0 + t < args.out ? out0 + t : args.out - 1;
    const uint32_t in = in0 + t < args.inp ? in0 + t : args.inp - 1;
    // Neighbouring threads write neighbouring outputs.
    const uint32_t outs_at = t % 8 * TILE_EACH, ins_at = t / 8 * TILE_EACH;
    float sum[TILE_EACH][TILE_EACH];
#pragma unroll
    for (uint32_t m = 0; m < TILE_EACH; m++) {
#pragma unroll
        for (uint32_t n = 0; n < TILE_EACH; n++) {
            uint32_t o = out0 + outs_at + m, i = in0 + ins_at + n;
            bool carry = !args.fresh && o < args.out && i < args.inp;
            sum[m][n] = carry ? args.dw[panel_at(args.inp, o, i)] : 0.0f;
        }
    }
    for (uint32_t row0 = 0; row0 < args.rows; row0 += TILE_IN) {
        const uint32_t steps = args.rows - row0 < TILE_IN ? args.rows - row0 : TILE_IN;
        HONE_SYNC();
        for (uint32_t k = 0; k < steps; k++) {
            ys[k][t] = args.dy[(uint64_t)(row0 + k) * args.dy_stride + out];
            xs[k][t] = args.x[(uint64_t)(row0 + k) * args.x_stride + in];
        }
        HONE_SYNC();
        add_stage(sum, ys, xs, outs_at, ins_at, steps);
    }
    for (uint32_t m = 0; m < TILE_EACH; m++) {
        for (uint32_t n = 0; n < TILE_EACH; n++) {
            uint32_t o = out0 + outs_at + m, i = in0 + ins_at + n;
            if (o < args.out && i < args.inp) args.dw[panel_at(args.inp, o, i)] = sum[m][n];
        }
    }
}

constexpr uint32_t NARROW_OUTS = 16, NARROW_INS = 32, NARROW_ROWS = 32, NARROW_THREADS = 128;

// The same for small matrices, of which more blocks have a part. Thread: four outputs of an input. Block:
// NARROW_THREADS. Grid: inputs, outputs.
HONE_KERNEL(outer_few, Outer) {
    HONE_SHARED Bytes16 ys[NARROW_ROWS][NARROW_OUTS / 4];
    HONE_SHARED float xs[NARROW_ROWS][NARROW_INS];
    constexpr uint32_t XS = NARROW_ROWS * NARROW_INS / NARROW_THREADS, YS = NARROW_ROWS * NARROW_OUTS / NARROW_THREADS;
    const uint32_t t = threadIdx.x, out0 = blockIdx.y * NARROW_OUTS, in0 = blockIdx.x * NARROW_INS;
    const uint32_t in = in0 + t % 32, four = t / 32, outs = out0 + four * 4;
    // What comes next is under way while the rows that are there are added.
    float x[XS], y[YS];
    auto read = [&](uint32_t row0) {
#pragma unroll
        for (uint32_t i = 0; i < XS; i++) {
            const uint32_t at = i * NARROW_THREADS + t, row = row0 + at / NARROW_INS, own = in0 + at % NARROW_INS;
            if (row < args.rows && own < args.inp) x[i] = args.x[(uint64_t)row * args.x_stride + own];
        }
#pragma unroll
        for (uint32_t i = 0; i < YS; i++) {
            const uint32_t at = i * NARROW_THREADS + t, row = row0 + at / NARROW_OUTS, own = out0 + at % NARROW_OUTS;
            if (row < args.rows && own < args.out) y[i] = args.dy[(uint64_t)row * args.dy_stride + own];
        }
    };
    float sum[4];
#pragma unroll
    for (uint32_t o = 0; o < 4; o++) {
        const bool carry = !args.fresh && outs + o < args.out && in < args.inp;
        sum[o] = carry ? args.dw[panel_at(args.inp, outs + o, in)] : 0.0f;
        x[o] = y[o] = 0.0f;
    }
#pragma unroll
    for (uint32_t i = 4; i < XS; i++) x[i] = 0.0f;
    read(0);
    for (uint32_t row0 = 0; row0 < args.rows; row0 += NARROW_ROWS) {
        HONE_SYNC();
#pragma unroll
        for (uint32_t i = 0; i < XS; i++) {
            const uint32_t at = i * NARROW_THREADS + t;
            xs[at / NARROW_INS][at % NARROW_INS] = x[i];
        }
#pragma unroll
        for (uint32_t i = 0; i < YS; i++) {
            const uint32_t at = i * NARROW_THREADS + t, own = at % NARROW_OUTS;
            ys[at / NARROW_OUTS][own / 4].w[own % 4] = float_bits(y[i]);
        }
        HONE_SYNC();
        if (row0 + NARROW_ROWS < args.rows) read(row0 + NARROW_ROWS);
        auto add = [&](uint32_t row) {
            const Bytes16 own = ys[row][four];
            const float value = xs[row][t % 32];
#pragma unroll
            for (uint32_t o = 0; o < 4; o++) sum[o] = fused(bits_float(own.w[o]), value, sum[o]);
        };
        if (args.rows - row0 >= NARROW_ROWS) {
#pragma unroll
            for (uint32_t row = 0; row < NARROW_ROWS; row++) add(row);
        } else {
            for (uint32_t row = 0; row < args.rows - row0; row++) add(row);
        }
    }
#pragma unroll
    for (uint32_t o = 0; o < 4; o++) {
        if (outs + o < args.out && in < args.inp) args.dw[panel_at(args.inp, outs + o, in)] = sum[o];
    }
}

struct NormBack {
    const float *x;
    const float *dy;
    const float *weight;
    float *dx;
    // Rows of x and dx, or null for all; no row twice.
    const uint32_t *pick;
    uint32_t n;
    uint32_t stride;
    float eps;
    uint32_t unused;
};

// What a norm's gradient takes from its row: 1 / rms, and the factor that x gets.
struct Pull {
    float inverse;
    float pull;
};

HONE_INLINE Pull norm_pull(const float *squares, const float *dots, uint32_t n, float eps) {
    float inverse = 1.0f / sqrtf(sum_lanes(squares) / (float)n + eps);
    return {inverse, -(sum_lanes(dots) * inverse * inverse * inverse / (float)n)};
}

// dx += gradient through y = x / rms(x) * weight. Grid: rows. Block: NORM_THREADS.
HONE_KERNEL(norm_back, NormBack) {
    HONE_SHARED float xs[NORM_CHUNK];
    HONE_SHARED float gs[NORM_CHUNK];
    HONE_SHARED float squares[LANES];
    HONE_SHARED float dots[LANES];
    const uint32_t t = threadIdx.x;
    const uint64_t row = (uint64_t)(args.pick ? args.pick[blockIdx.x] : blockIdx.x) * args.stride;
    const float *x = args.x + row, *dy = args.dy + (uint64_t)blockIdx.x * args.stride;
    float *dx = args.dx + row;
    float lane = 0.0f;
    for (uint32_t at = 0; at < args.n; at += NORM_CHUNK) {
        uint32_t count = args.n - at < NORM_CHUNK ? args.n - at : NORM_CHUNK;
        for (uint32_t i = t; i < count; i += NORM_THREADS) {
            xs[i] = x[at + i];
            gs[i] = dy[at + i] * args.weight[at + i];
        }
        HONE_SYNC();
        if (t < LANES) {
            for (uint32_t i = t; i < count; i += LANES) lane = fused(xs[i], xs[i], lane);
        } else if (t < 2 * LANES) {
            for (uint32_t i = t - LANES; i < count; i += LANES) lane = fused(gs[i], xs[i], lane);
        }
        HONE_SYNC();
    }
    if (t < LANES) squares[t] = lane;
    else if (t < 2 * LANES) dots[t - LANES] = lane;
    HONE_SYNC();
    const Pull p = norm_pull(squares, dots, args.n, args.eps);
    for (uint32_t i = t; i < args.n; i += NORM_THREADS) {
        float scaled = dy[i] * args.weight[i] * p.inverse;
        dx[i] = fused(x[i], p.pull, scaled) + dx[i];
    }
}

struct Unplace {
    // [tokens][q + 2 kv]
    const float *qkv;
    const float *q_norm;
    const float *k_norm;
    // [position][2][pairs]
    const float *angles;
    const uint32_t *positions;
    // Gradient of what was rotated, in place of it that of qkv.
    float *dqkv;
    uint32_t heads;
    uint32_t dim;
    uint32_t stride;
    float eps;
};

// Gradient through rotation and norm of one head of one token. Grid: tokens, heads + kv heads.
// Block: thirty-two.
HONE_KERNEL(unplace, Unplace) {
    HONE_SHARED float turned[MAX_DIM];
    HONE_SHARED float squares[LANES];
    HONE_SHARED float dots[LANES];
    const uint32_t t = threadIdx.x, which = blockIdx.y, dim = args.dim, pairs = dim / 2;
    const uint64_t at = (uint64_t)blockIdx.x * args.stride + which * dim;
    const float *x = args.qkv + at, *weight = which < args.heads ? args.q_norm : args.k_norm;
    const float *cos = args.angles + (uint64_t)args.positions[blockIdx.x] * 2 * pairs, *sin = cos + pairs;
    float *grad = args.dqkv + at;
    for (uint32_t i = t; i < pairs; i += blockDim.x) {
        float a = grad[i], b = grad[i + pairs], s = -sin[i];
        turned[i] = a * cos[i] - b * s;
        turned[i + pairs] = b * cos[i] + a * s;
    }
    if (!weight) {
        for (uint32_t i = t; i < pairs; i += blockDim.x) {
            grad[i] = turned[i];
            grad[i + pairs] = turned[i + pairs];
        }
        return;
    }
    HONE_SYNC();
    float lane = 0.0f;
    if (t < LANES) {
        for (uint32_t d = t; d < dim; d += LANES) lane = fused(x[d], x[d], lane);
        squares[t] = lane;
    } else {
        for (uint32_t d = t - LANES; d < dim; d += LANES) lane = fused(turned[d] * weight[d], x[d], lane);
        dots[t - LANES] = lane;
    }
    HONE_SYNC();
    const Pull p = norm_pull(squares, dots, dim, args.eps);
    for (uint32_t d = t; d < dim; d += blockDim.x) {
        float scaled = turned[d] * weight[d] * p.inverse;
        grad[d] = fused(x[d], p.pull, scaled);
    }
}

struct GateBack {
    float *gate_up;
    const float *dact;
    uint32_t ffn;
    uint32_t gate_up_stride;
    uint32_t act_stride;
    uint32_t unused;
};

// Puts the gradients of gate and up in their places. Grid: columns, rows.
HONE_KERNEL(gate_back, GateBack) {
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= args.ffn) return;
    float *row = args.gate_up + (uint64_t)blockIdx.y * args.gate_up_stride;
    float g = row[i], up = row[args.ffn + i], d = args.dact[(uint64_t)blockIdx.y * args.act_stride + i];
    float s = sigmoid_exact(g);
    float silu = g * s;
    float slope = fused(silu, 1.0f - s, s);
    row[args.ffn + i] = d * silu;
    row[i] = d * up * slope;
}
