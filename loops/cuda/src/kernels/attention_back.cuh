// Gradient of causal attention as ../train/attention.rs: probabilities are computed again, for some
// query tokens of one sequence at a time, and every sum takes its terms in the processor's order:
// dimensions, positions, and query rows (tokens, then heads of the group) ascending.
#pragma once
#include "attention.cuh"

struct AttendBack {
    // Rotated queries and the gradient of the output, [tokens][stride].
    const float *q;
    const float *dout;
    // The cache, where the sequence has blocks in a row from `block` on.
    const float *keys;
    const float *values;
    // Scores, then probabilities; gradients of probabilities, then of scores: [heads][tokens][width].
    float *p;
    float *ds;
    // [tokens][q + 2 kv]
    float *dqkv;
    // The sequence's first row; the first of these query tokens, and how many.
    uint32_t row;
    uint32_t first;
    uint32_t tokens;
    // Position of the first column, where a block begins.
    uint32_t base;
    uint32_t block;
    uint32_t width;
    uint32_t heads;
    uint32_t kv_heads;
    uint32_t dim;
    uint32_t window;
    uint32_t stride;
    uint32_t dqkv_stride;
    float scale;
    uint32_t unused;
};

// A tile of thirty-two by thirty-two results: sixty-four threads, sixteen results each.
constexpr uint32_t SIDE = 32, SIDE_EACH = 4, SIDE_THREADS = 64;

typedef float Side[SIDE][SIDE + 4];

HONE_INLINE void add_side(float sum[SIDE_EACH][SIDE_EACH], const Side &a, const Side &b, uint32_t steps) {
    const uint32_t a_at = threadIdx.x / 8 * SIDE_EACH, b_at = threadIdx.x % 8 * SIDE_EACH;
    for (uint32_t k = 0; k < steps; k++) {
#pragma unroll
        for (uint32_t m = 0; m < SIDE_EACH; m++) {
#pragma unroll
            for (uint32_t n = 0; n < SIDE_EACH; n++) sum[m][n] = fused(a[k][a_at + m], b[k][b_at + n], sum[m][n]);
        }
    }
}

// Where a block of thirty-two keys or values of one head lies.
HONE_INLINE uint64_t cell_at(const AttendBack &a, uint32_t position, uint32_t head) {
    return ((uint64_t)(a.block + position / BLOCK_TOKENS) * a.kv_heads + head) * BLOCK_TOKENS * a.dim;
}

// First position that a query at `own` sees.
HONE_INLINE uint32_t seen_from(const AttendBack &a, uint32_t own) {
    return own + 1 > a.window ? own + 1 - a.window : 0;
}

// Scores and gradients of probabilities. Grid: positions, tokens, heads; tiles that nothing is seen
// of are left as they are.
HONE_KERNEL(attend_back_pairs, AttendBack) {
    HONE_SHARED Side qs;
    HONE_SHARED Side ks;
    HONE_SHARED Side os;
    HONE_SHARED Side vs;
    const uint32_t t = threadIdx.x, h = blockIdx.z, dim = args.dim, end = args.first + args.tokens;
    const uint32_t head = h / (args.heads / args.kv_heads);
    const uint32_t position = args.base + blockIdx.x * SIDE, token = args.first + blockIdx.y * SIDE;
    const uint32_t last = least(token + SIDE, end) - 1;
    if (position > last || position + SIDE <= seen_from(args, token)) return;
    const uint64_t cell = cell_at(args, position, head);
    float s[SIDE_EACH][SIDE_EACH] = {}, g[SIDE_EACH][SIDE_EACH] = {};
    for (uint32_t d0 = 0; d0 < dim; d0 += SIDE) {
        const uint32_t steps = least(dim - d0, SIDE);
        HONE_SYNC();
        for (uint32_t i = t; i < SIDE * SIDE; i += SIDE_THREADS) {
            uint32_t slow = i / SIDE, fast = i % SIDE;
            if (fast < steps) {
                bool asked = token + slow < end, known = position + slow < end;
                uint64_t from = (uint64_t)(args.row + token + slow) * args.stride + h * dim + d0 + fast;
                qs[fast][slow] = asked ? args.q[from] * args.scale : 0.0f;
                os[fast][slow] = asked ? args.dout[from] : 0.0f;
                vs[fast][slow] = known ? args.values[cell + (uint64_t)slow * dim + d0 + fast] : 0.0f;
            }
            if (slow < steps) {
                bool known = position + fast < end;
                ks[slow][fast] = known ? args.keys[cell + (uint64_t)(d0 + slow) * BLOCK_TOKENS + fast] : 0.0f;
            }
        }
        HONE_SYNC();
        add_side(s, qs, ks, steps);
        add_side(g, os, vs, steps);
    }
    for (uint32_t m = 0; m < SIDE_EACH; m++) {
        uint32_t own = token + t / 8 * SIDE_EACH + m;
        if (own >= end) break;
        uint64_t to = ((uint64_t)h * args.tokens + own - args.first) * args.width + position - args.base;
        for (uint32_t n = 0; n < SIDE_EACH; n++) {
            args.p[to + t % 8 * SIDE_EACH + n] = s[m][n];
            args.ds[to + t % 8 * SIDE_EACH + n] = g[m][n];
        }
    }
}

constexpr uint32_t ROW_THREADS = 128, ROW_CHUNK = 1024;

// Sum of sixteen lanes that the first threads hold, for all.
HONE_INLINE float share_lanes(float lane, float *lanes) {
    HONE_SYNC();
    if (threadIdx.x < LANES) lanes[threadIdx.x] = lane;
    HONE_SYNC();
    return sum_lanes(lanes);
}

// Probabilities p of a row and ds = p (dp - sum p dp); 0 for what is not seen. Grid: tokens, heads.
HONE_KERNEL(attend_back_rows, AttendBack) {
    HONE_SHARED float es[ROW_CHUNK];
    HONE_SHARED float gs[ROW_CHUNK];
    HONE_SHARED float lanes[LANES];
    HONE_SHARED float bests[ROW_THREADS];
    const uint32_t t = threadIdx.x, own = args.first + blockIdx.x;
    const uint64_t at = ((uint64_t)blockIdx.y * args.tokens + blockIdx.x) * args.width;
    float *p = args.p + at, *ds = args.ds + at;
    const uint32_t from = seen_from(args, own) - args.base, end = own + 1 - args.base;
    // Lanes are counted from a column that is a multiple of sixteen.
    const uint32_t start = from / LANES * LANES;
    float most = bits_float(0xff800000u);
    for (uint32_t c = from + t; c < end; c += ROW_THREADS) most = p[c] > most ? p[c] : most;
    bests[t] = most;
    HONE_SYNC();
    for (uint32_t i = 0; i < ROW_THREADS; i++) most = bests[i] > most ? bests[i] : most;
    float lane = 0.0f;
    for (uint32_t c0 = start; c0 < end; c0 += ROW_CHUNK) {
        const uint32_t count = least(end - c0, ROW_CHUNK);
        HONE_SYNC();
        for (uint32_t i = t; i < count; i += ROW_THREADS) {
            float e = c0 + i < from ? 0.0f : exp_exact(p[c0 + i] - most);
            es[i] = e;
            p[c0 + i] = e;
        }
        HONE_SYNC();
        if (t < LANES) {
            for (uint32_t i = t; i < count; i += LANES) lane = lane + es[i];
        }
    }
    const float inverse = 1.0f / share_lanes(lane, lanes);
    lane = 0.0f;
    for (uint32_t c0 = start; c0 < end; c0 += ROW_CHUNK) {
        const uint32_t count = least(end - c0, ROW_CHUNK);
        HONE_SYNC();
        for (uint32_t i = t; i < count; i += ROW_THREADS) {
            es[i] = p[c0 + i] * inverse;
            gs[i] = c0 + i < from ? 0.0f : ds[c0 + i];
        }
        HONE_SYNC();
        if (t < LANES) {
            for (uint32_t i = t; i < count; i += LANES) lane = fused(es[i], gs[i], lane);
        }
    }
    const float dot = share_lanes(lane, lanes);
    for (uint32_t c = t; c < args.width; c += ROW_THREADS) {
        const bool seen = c >= from && c < end;
        const float share = seen ? p[c] * inverse : 0.0f;
        p[c] = share;
        ds[c] = seen ? share * (ds[c] - dot) : 0.0f;
    }
}

// Gradient of queries: scale * dS K, positions ascending. Grid: dimensions, tokens, heads.
HONE_KERNEL(attend_back_queries, AttendBack) {
    HONE_SHARED Side ws;
    HONE_SHARED Side ks;
    const uint32_t t = threadIdx.x, h = blockIdx.z, dim = args.dim, end = args.first + args.tokens;
    const uint32_t head = h / (args.heads / args.kv_heads), d0 = blockIdx.x * SIDE;
    const uint32_t token = args.first + blockIdx.y * SIDE, last = least(token + SIDE, end);
    const float *ds = args.ds + (uint64_t)h * args.tokens * args.width;
    float sum[SIDE_EACH][SIDE_EACH] = {};
    for (uint32_t position = seen_from(args, token) / SIDE * SIDE; position < last; position += SIDE) {
        const uint32_t steps = least(last - position, SIDE);
        const uint64_t cell = cell_at(args, position, head);
        HONE_SYNC();
        for (uint32_t i = t; i < SIDE * SIDE; i += SIDE_THREADS) {
            uint32_t slow = i / SIDE, fast = i % SIDE;
            if (fast >= steps) continue;
            uint64_t row = (uint64_t)(token + slow - args.first) * args.width + position - args.base;
            ws[fast][slow] = token + slow < last ? ds[row + fast] : 0.0f;
            ks[fast][slow] = d0 + slow < dim ? args.keys[cell + (uint64_t)(d0 + slow) * BLOCK_TOKENS + fast] : 0.0f;
        }
        HONE_SYNC();
        add_side(sum, ws, ks, steps);
    }
    for (uint32_t m = 0; m < SIDE_EACH; m++) {
        for (uint32_t n = 0; n < SIDE_EACH; n++) {
            uint32_t own = token + t / 8 * SIDE_EACH + m, d = d0 + t % 8 * SIDE_EACH + n;
            if (own >= last || d >= dim) continue;
            uint64_t to = (uint64_t)(args.row + own) * args.dqkv_stride + h * dim + d;
            args.dqkv[to] = fused(args.scale, sum[m][n], 0.0f);
        }
    }
}

// Gradients of keys and values: sums over the query rows of a group go on from those of earlier
// tokens. Grid: dimensions, positions, kv heads twice (keys, then values).
HONE_KERNEL(attend_back_keys, AttendBack) {
    HONE_SHARED Side ws;
    HONE_SHARED Side xs;
    const uint32_t t = threadIdx.x, head = blockIdx.z % args.kv_heads, dim = args.dim;
    const bool values = blockIdx.z >= args.kv_heads;
    const uint32_t group = args.heads / args.kv_heads, end = args.first + args.tokens, d0 = blockIdx.x * SIDE;
    const uint32_t position = args.base + blockIdx.y * SIDE;
    const float *weights = values ? args.p : args.ds;
    float *to = args.dqkv + (args.heads + (values ? args.kv_heads : 0) + head) * dim;
    float sum[SIDE_EACH][SIDE_EACH];
#pragma unroll
    for (uint32_t m = 0; m < SIDE_EACH; m++) {
#pragma unroll
        for (uint32_t n = 0; n < SIDE_EACH; n++) {
            // Keys of these tokens themselves were seen by none before.
            uint32_t j = position + t / 8 * SIDE_EACH + m, d = d0 + t % 8 * SIDE_EACH + n;
            bool carry = j < args.first && d < dim;
            sum[m][n] = carry ? to[(uint64_t)(args.row + j) * args.dqkv_stride + d] : 0.0f;
        }
    }
    const uint32_t begin = position > args.first ? position : args.first;
    const uint32_t stop = least(end, position + SIDE + args.window);
    const uint32_t rows = begin < stop ? (stop - begin) * group : 0;
    for (uint32_t m0 = 0; m0 < rows; m0 += SIDE) {
        const uint32_t steps = least(rows - m0, SIDE);
        HONE_SYNC();
        for (uint32_t i = t; i < SIDE * SIDE; i += SIDE_THREADS) {
            uint32_t slow = i / SIDE, fast = i % SIDE;
            if (slow >= steps) continue;
            uint32_t own = begin + (m0 + slow) / group, h = head * group + (m0 + slow) % group;
            uint64_t row = ((uint64_t)h * args.tokens + own - args.first) * args.width + position - args.base;
            uint64_t from = (uint64_t)(args.row + own) * args.stride + h * dim + d0 + fast;
            ws[slow][fast] = weights[row + fast];
            bool known = d0 + fast < dim;
            xs[slow][fast] = !known ? 0.0f : values ? args.dout[from] : args.q[from] * args.scale;
        }
        HONE_SYNC();
        add_side(sum, ws, xs, steps);
    }
    for (uint32_t m = 0; m < SIDE_EACH; m++) {
        for (uint32_t n = 0; n < SIDE_EACH; n++) {
            uint32_t j = position + t / 8 * SIDE_EACH + m, d = d0 + t % 8 * SIDE_EACH + n;
            if (j < end && d < dim) to[(uint64_t)(args.row + j) * args.dqkv_stride + d] = sum[m][n];
        }
    }
}
