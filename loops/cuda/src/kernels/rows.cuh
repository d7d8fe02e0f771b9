// Operations on rows: embedding, norms, rotation and the write to the cache, gated activation.
#pragma once
#include "common.cuh"

struct Embed {
    Matrix w;
    const uint32_t *tokens;
    float *x;
    uint32_t stride;
    uint32_t unused;
};

template <uint32_t F> HONE_INLINE void embed_row(const Embed &a) {
    uint32_t id = a.tokens[blockIdx.x];
    float *x = a.x + (uint64_t)blockIdx.x * a.stride;
    for (uint32_t group = threadIdx.x; group < groups_in(a.w.inp); group += blockDim.x) {
        float w[GROUP_IN];
        fetch<F>(a.w, id, group).widen(w);
        for (uint32_t j = 0; j < GROUP_IN && group * GROUP_IN + j < a.w.inp; j++) x[group * GROUP_IN + j] = w[j];
    }
}

// Grid: tokens.
HONE_KERNEL(embed, Embed) {
    switch (args.w.format) {
    case F32: embed_row<F32>(args); break;
    case BF16: embed_row<BF16>(args); break;
    case Q8: embed_row<Q8>(args); break;
    default: embed_row<Q4>(args); break;
    }
}

struct Norm {
    const float *x;
    // Added to x first, the sum stored; or null.
    const float *add;
    float *sum;
    const float *weight;
    float *y;
    // Rows of x to take, or null for all.
    const uint32_t *pick;
    uint32_t n;
    uint32_t stride;
    float eps;
    uint32_t unused;
};

constexpr uint32_t NORM_THREADS = 512, NORM_CHUNK = 4096;

// y = x / rms(x) * weight. Grid: rows. Block: NORM_THREADS.
HONE_KERNEL_AHEAD(norm_rows, Norm) {
    HONE_SHARED float chunk[NORM_CHUNK];
    HONE_SHARED float lanes[LANES];
    uint32_t t = threadIdx.x;
    uint64_t from = (uint64_t)(args.pick ? args.pick[blockIdx.x] : blockIdx.x) * args.stride;
    uint64_t to = (uint64_t)blockIdx.x * args.stride;
    // The weights of a short row are under way meanwhile.
    const bool whole = args.n <= NORM_CHUNK;
    float weights[NORM_CHUNK / NORM_THREADS];
#pragma unroll
    for (uint32_t i = 0; i < NORM_CHUNK / NORM_THREADS; i++) {
        const uint32_t at = i * NORM_THREADS + t;
        if (whole && at < args.n) weights[i] = args.weight[at];
    }
    wait_before();
    float lane = 0.0f;
    for (uint32_t at = 0; at < args.n; at += NORM_CHUNK) {
        uint32_t count = args.n - at < NORM_CHUNK ? args.n - at : NORM_CHUNK;
        const float *x = args.x + from + at, *add = args.add + from + at;
        if (args.add) {
            auto sum = [&](uint32_t i) { return x[i] + add[i]; };
            ahead<8>(t, NORM_THREADS, count, sum, [&](uint32_t i, float v) { chunk[i] = args.sum[from + at + i] = v; });
        } else {
            ahead<8>(t, NORM_THREADS, count, [&](uint32_t i) { return x[i]; }, [&](uint32_t i, float v) { chunk[i] = v; });
        }
        HONE_SYNC();
        if (t < LANES) {
            auto square = [&](uint32_t, float v) { lane = fused(v, v, lane); };
            ahead<16>(t, LANES, count, [&](uint32_t i) { return chunk[i]; }, square);
        }
        HONE_SYNC();
    }
    if (t < LANES) lanes[t] = lane;
    HONE_SYNC();
    float inverse = 1.0f / sqrtf(sum_lanes(lanes) / (float)args.n + args.eps);
    if (whole) {
#pragma unroll
        for (uint32_t i = 0; i < NORM_CHUNK / NORM_THREADS; i++) {
            const uint32_t at = i * NORM_THREADS + t;
            if (at < args.n) args.y[to + at] = chunk[at] * inverse * weights[i];
        }
        return;
    }
    const float *x = (args.add ? args.sum : args.x) + from;
    for (uint32_t i = t; i < args.n; i += NORM_THREADS) args.y[to + i] = x[i] * inverse * args.weight[i];
}

struct Add {
    const float *a;
    const float *b;
    float *y;
    uint32_t n;
    uint32_t unused;
};

// y = a + b.
HONE_KERNEL(add_rows, Add) {
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < args.n) args.y[i] = args.a[i] + args.b[i];
}

struct Place {
    // [tokens][q + 2 kv]
    const float *qkv;
    const float *q_norm;
    const float *k_norm;
    // [position][2][pairs]
    const float *angles;
    const uint32_t *positions;
    // Block of each token.
    const uint32_t *blocks;
    // [tokens][q]
    float *q;
    // [block][kv head][dim][32]
    float *keys;
    // [block][kv head][32][dim]
    float *values;
    uint32_t heads;
    uint32_t kv_heads;
    uint32_t dim;
    uint32_t qkv_stride;
    uint32_t q_stride;
    float eps;
};

constexpr uint32_t MAX_DIM = 256;

// Norm and rotation of one head of one token; keys and values go to the cache. Grid: tokens,
// heads + 2 kv heads. Block: thirty-two.
HONE_KERNEL_AHEAD(place, Place) {
    HONE_SHARED float head[MAX_DIM];
    HONE_SHARED float lanes[LANES];
    uint32_t t = threadIdx.x, token = blockIdx.x, which = blockIdx.y, dim = args.dim;
    uint32_t position = args.positions[token];
    const float *raw = args.qkv + (uint64_t)token * args.qkv_stride + which * dim;
    bool query = which < args.heads, key = !query && which < args.heads + args.kv_heads;
    uint32_t kv = which - args.heads - (key ? 0 : args.kv_heads);
    uint64_t cell = ((uint64_t)args.blocks[token] * args.kv_heads + kv) * BLOCK_TOKENS * dim;
    uint32_t slot = position % BLOCK_TOKENS;
    if (!query && !key) {
        wait_before();
        for (uint32_t d = t; d < dim; d += blockDim.x) args.values[cell + slot * dim + d] = raw[d];
        return;
    }
    // What is read beside the head is under way from the beginning.
    const uint32_t pairs = dim / 2;
    const float *weight = query ? args.q_norm : args.k_norm;
    const float *cos = args.angles + (uint64_t)position * 2 * pairs, *sin = cos + pairs;
    constexpr uint32_t EACH = MAX_DIM / 32;
    float own[EACH], weights[EACH], turn[EACH / 2][2];
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++) {
        const uint32_t d = i * 32 + t;
        if (d < dim && weight) weights[i] = weight[d];
    }
#pragma unroll
    for (uint32_t i = 0; i < EACH / 2; i++) {
        const uint32_t pair = i * 32 + t;
        if (pair >= pairs) continue;
        turn[i][0] = cos[pair];
        turn[i][1] = sin[pair];
    }
    wait_before();
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++) {
        const uint32_t d = i * 32 + t;
        if (d < dim) own[i] = raw[d];
    }
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++) {
        if (i * 32 + t < dim) head[i * 32 + t] = own[i];
    }
    HONE_SYNC();
    if (weight) {
        float lane = 0.0f;
        if (t < LANES) {
            auto square = [&](uint32_t, float v) { lane = fused(v, v, lane); };
            ahead<8>(t, LANES, dim, [&](uint32_t d) { return head[d]; }, square);
            lanes[t] = lane;
        }
        HONE_SYNC();
        float inverse = 1.0f / sqrtf(sum_lanes(lanes) / (float)dim + args.eps);
#pragma unroll
        for (uint32_t i = 0; i < EACH; i++) {
            const uint32_t d = i * 32 + t;
            if (d < dim) head[d] = head[d] * inverse * weights[i];
        }
        HONE_SYNC();
    }
    float *q = args.q + (uint64_t)token * args.q_stride + which * dim;
#pragma unroll
    for (uint32_t n = 0; n < EACH / 2; n++) {
        const uint32_t i = n * 32 + t;
        if (i >= pairs) continue;
        float a = head[i], b = head[i + pairs], cos = turn[n][0], sin = turn[n][1];
        float x = a * cos - b * sin, y = b * cos + a * sin;
        if (query) {
            q[i] = x;
            q[i + pairs] = y;
        } else {
            args.keys[cell + i * BLOCK_TOKENS + slot] = x;
            args.keys[cell + (i + pairs) * BLOCK_TOKENS + slot] = y;
        }
    }
}

struct Gate {
    const float *gate_up;
    float *act;
    uint32_t ffn;
    uint32_t gate_up_stride;
    uint32_t act_stride;
    uint32_t unused;
};

// act = silu(gate) * up. Grid: columns, rows.
HONE_KERNEL(gate, Gate) {
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= args.ffn) return;
    const float *row = args.gate_up + (uint64_t)blockIdx.y * args.gate_up_stride;
    float g = row[i];
    float silu = g * sigmoid_exact(g);
    args.act[(uint64_t)blockIdx.y * args.act_stride + i] = silu * row[args.ffn + i];
}
