// y = x W^T, for a few rows (weights are read once for all of them) and for many (in tiles).
#pragma once
#include "common.cuh"

// What becomes of a finished sum.
constexpr uint32_t SET = 0, ADD_SCALED = 1, SET_SCALED = 2, CONTINUE = 3;

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
    uint32_t unused;
};

// Products that are computed by one launch, one per z.
struct Linears {
    const Linear *each;
    uint32_t count;
    uint32_t unused;
};

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

// Thread: one output of at most R rows. Block: thirty-two threads. Grid: outputs, rows.
template <uint32_t F, int R, int AHEAD> HONE_INLINE void few(const Linear &a) {
    uint32_t out = blockIdx.x * GROUP_OUT + threadIdx.x;
    uint32_t first = blockIdx.y * R;
    if (out >= a.w.out || first >= a.rows) return;
    const float *x[R];
    float sum[R];
#pragma unroll
    for (int r = 0; r < R; r++) {
        uint32_t row = first + r < a.rows ? first + r : a.rows - 1;
        x[r] = a.x + (uint64_t)row * a.x_stride;
        sum[r] = 0.0f;
    }
    uint32_t full = a.w.inp / GROUP_IN, group = 0;
    Packed<F> next[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        if (i < (int)full) next[i].fetch(a.w, out, i);
    }
    for (; group + AHEAD <= full; group += AHEAD) {
        Packed<F> now[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            now[i] = next[i];
            if (group + AHEAD + i < full) next[i].fetch(a.w, out, group + AHEAD + i);
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            float w[GROUP_IN];
            now[i].widen(w);
            uint32_t k = (group + i) * GROUP_IN;
#pragma unroll
            for (int r = 0; r < R; r++) {
                const Bytes16 *from = (const Bytes16 *)(x[r] + k);
                const Bytes16 low = from[0], high = from[1];
#pragma unroll
                for (int j = 0; j < 4; j++) sum[r] = fused(bits_float(low.w[j]), w[j], sum[r]);
#pragma unroll
                for (int j = 0; j < 4; j++) sum[r] = fused(bits_float(high.w[j]), w[4 + j], sum[r]);
            }
        }
    }
    for (; group * GROUP_IN < a.w.inp; group++) {
        Packed<F> last;
        float w[GROUP_IN];
        last.fetch(a.w, out, group);
        last.widen(w);
        uint32_t k = group * GROUP_IN;
        for (int r = 0; r < R; r++) {
            for (uint32_t j = 0; j < GROUP_IN && k + j < a.w.inp; j++) sum[r] = fused(x[r][k + j], w[j], sum[r]);
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
        if (first + r < a.rows) leave(a, first + r, out, sum[r]);
    }
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

// Thread: eight outputs of eight rows. Block: sixty-four threads, sixty-four outputs of
// sixty-four rows. Grid: outputs, rows.
template <uint32_t F> HONE_INLINE void many(const Linear &a) {
    HONE_SHARED float xs[TILE_IN][TILE + 4];
    HONE_SHARED float ws[TILE_IN][TILE + 4];
    uint32_t t = threadIdx.x;
    uint32_t row0 = blockIdx.y * TILE, out0 = blockIdx.x * TILE;
    uint32_t row = row0 + t < a.rows ? row0 + t : a.rows - 1;
    uint32_t out = out0 + t < a.w.out ? out0 + t : a.w.out - 1;
    const float *x = a.x + (uint64_t)row * a.x_stride;
    uint32_t rows_at = t / 8 * TILE_EACH, outs_at = t % 8 * TILE_EACH;
    float sum[TILE_EACH][TILE_EACH];
#pragma unroll
    for (uint32_t m = 0; m < TILE_EACH; m++) {
#pragma unroll
        for (uint32_t n = 0; n < TILE_EACH; n++) sum[m][n] = 0.0f;
    }
    for (uint32_t k0 = 0; k0 < a.w.inp; k0 += TILE_IN) {
        uint32_t steps = a.w.inp - k0 < TILE_IN ? a.w.inp - k0 : TILE_IN;
        HONE_SYNC();
        for (uint32_t k = 0; k < steps; k++) xs[k][t] = x[k0 + k];
        for (uint32_t k = 0; k < steps; k += GROUP_IN) {
            Packed<F> packed;
            float w[GROUP_IN];
            packed.fetch(a.w, out, (k0 + k) / GROUP_IN);
            packed.widen(w);
#pragma unroll
            for (uint32_t j = 0; j < GROUP_IN; j++) ws[k + j][t] = w[j];
        }
        HONE_SYNC();
        add_stage(sum, xs, ws, rows_at, outs_at, steps);
    }
    for (uint32_t m = 0; m < TILE_EACH; m++) {
        for (uint32_t n = 0; n < TILE_EACH; n++) {
            uint32_t at = row0 + rows_at + m, to = out0 + outs_at + n;
            if (at < a.rows && to < a.w.out) leave(a, at, to, sum[m][n]);
        }
    }
}

#define HONE_LINEAR(format, F)                                                                     \
    HONE_KERNEL(few_##format##_1, Linear) { few<F, 1, 16>(args); }                                 \
    HONE_KERNEL(few_##format##_2, Linear) { few<F, 2, 16>(args); }                                 \
    HONE_KERNEL(few_##format##_4, Linear) { few<F, 4, 8>(args); }                                  \
    HONE_KERNEL(few_##format##_8, Linear) { few<F, 8, 8>(args); }                                  \
    HONE_KERNEL(few_##format##_16, Linear) { few<F, 16, 4>(args); }                                \
    HONE_KERNEL(many_##format, Linear) { many<F>(args); }

HONE_LINEAR(f32, F32)
HONE_LINEAR(bf16, BF16)
HONE_LINEAR(q8, Q8)
HONE_LINEAR(q4, Q4)

// The products of adapters: small, many, of two formats.
HONE_KERNEL(adapters, Linears) {
    const Linear a = args.each[blockIdx.z];
    if (a.w.format == BF16) {
        few<BF16, 4, 8>(a);
    } else {
        few<F32, 4, 8>(a);
    }
}
