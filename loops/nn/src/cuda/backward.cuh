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

// Thread: eight inputs of eight rows. Block: sixty-four threads, sixty-four inputs of sixty-four
// rows. Grid: inputs, rows. Weights are read as they are stored, sixteen outputs at a time.
template <uint32_t F> HONE_INLINE void back(const Back &a) {
    HONE_SHARED float ys[TILE_IN][TILE + 4];
    HONE_SHARED float ws[TILE_IN][TILE + 4];
    const uint32_t t = threadIdx.x, row0 = blockIdx.y * TILE, in0 = blockIdx.x * TILE;
    const uint32_t row = row0 + t < a.rows ? row0 + t : a.rows - 1;
    const float *dy = a.dy + (uint64_t)row * a.dy_stride;
    const uint32_t rows_at = t / 8 * TILE_EACH, ins_at = t % 8 * TILE_EACH;
    float sum[TILE_EACH][TILE_EACH];
#pragma unroll
    for (uint32_t m = 0; m < TILE_EACH; m++) {
#pragma unroll
        for (uint32_t n = 0; n < TILE_EACH; n++) {
            uint32_t at = row0 + rows_at + m, to = in0 + ins_at + n;
            bool carry = a.store == CONTINUE && at < a.rows && to < a.w.inp;
            sum[m][n] = carry ? a.dx[(uint64_t)at * a.dx_stride + to] : 0.0f;
        }
    }
    for (uint32_t out0 = 0; out0 < a.w.out; out0 += TILE_IN) {
        const uint32_t steps = a.w.out - out0 < TILE_IN ? a.w.out - out0 : TILE_IN;
        HONE_SYNC();
        for (uint32_t k = 0; k < steps; k++) ys[k][t] = dy[out0 + k];
        for (uint32_t i = t; i < TILE_IN * TILE / GROUP_IN; i += TILE) {
            uint32_t k = i % TILE_IN, eight = i / TILE_IN, group = in0 / GROUP_IN + eight;
            if (k >= steps || group >= groups_in(a.w.inp)) continue;
            Packed<F> packed;
            float w[GROUP_IN];
            packed.fetch(a.w, out0 + k, group);
            packed.widen(w);
#pragma unroll
            for (uint32_t j = 0; j < GROUP_IN; j++) ws[k][eight * GROUP_IN + j] = w[j];
        }
        HONE_SYNC();
        add_stage(sum, ys, ws, rows_at, ins_at, steps);
    }
    for (uint32_t m = 0; m < TILE_EACH; m++) {
        for (uint32_t n = 0; n < TILE_EACH; n++) {
            uint32_t at = row0 + rows_at + m, to = in0 + ins_at + n;
            if (at >= a.rows || to >= a.w.inp) continue;
            a.dx[(uint64_t)at * a.dx_stride + to] = a.store == SET_SCALED ? sum[m][n] * a.scale : sum[m][n];
        }
    }
}

HONE_KERNEL(back_f32, Back) { back<F32>(args); }
HONE_KERNEL(back_bf16, Back) { back<BF16>(args); }
HONE_KERNEL(back_q8, Back) { back<Q8>(args); }
HONE_KERNEL(back_q4, Back) { back<Q4>(args); }

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
