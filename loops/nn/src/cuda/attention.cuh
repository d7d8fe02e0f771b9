// Causal attention over block tables, as ../attention.rs: scores, softmax in sixteen lanes by
// position, weighted values in ascending order. A row's bits do not depend on the rows beside it.
#pragma once
#include "rows.cuh"

// New tokens of one sequence that are computed together.
struct Tile {
    // Row of the first token in the batch.
    uint32_t row;
    uint32_t tokens;
    // Position of the first token.
    uint32_t first;
    // Start of the sequence's block table in `tables`.
    uint32_t table;
};

struct Attend {
    const float *q;
    float *out;
    const float *keys;
    const float *values;
    const uint32_t *tables;
    const Tile *tiles;
    // [tiles of this launch][kv heads][row groups][R][width]
    float *scores;
    uint32_t stride;
    uint32_t heads;
    uint32_t kv_heads;
    uint32_t dim;
    uint32_t window;
    uint32_t width;
    float scale;
    uint32_t unused;
};

constexpr uint32_t ATTEND_THREADS = 128, ATTEND_CHUNK = 128;

// Block: R query rows of one tile and key-value head. Grid: tiles, kv heads, groups of R rows.
template <int R> HONE_INLINE void attend(const Attend &a) {
    HONE_SHARED float query[R * MAX_DIM];
    HONE_SHARED float weight[R * ATTEND_CHUNK];
    HONE_SHARED float lanes[R * LANES];
    HONE_SHARED float peak[R];
    const float none = bits_float(0xff800000u);
    const Tile tile = a.tiles[blockIdx.x];
    const uint32_t t = threadIdx.x, head = blockIdx.y, dim = a.dim;
    const uint32_t group = a.heads / a.kv_heads, rows = tile.tokens * group, row0 = blockIdx.z * R;
    if (row0 >= rows) return;
    const uint32_t count = rows - row0 < R ? rows - row0 : R;
    for (uint32_t i = t; i < R * dim; i += ATTEND_THREADS) {
        uint32_t r = i / dim, m = row0 + r;
        query[i] = 0.0f;
        if (r < count) {
            uint64_t from = (uint64_t)(tile.row + m / group) * a.stride + (head * group + m % group) * dim;
            query[i] = a.q[from + i % dim] * a.scale;
        }
    }
    HONE_SYNC();
    const uint32_t end = tile.first + tile.tokens;
    const uint32_t lo = tile.first + 1 > a.window ? tile.first + 1 - a.window : 0;
    const uint32_t base = lo / BLOCK_TOKENS * BLOCK_TOKENS;
    const uint32_t *table = a.tables + tile.table;
    float *scores = a.scores + (((uint64_t)blockIdx.x * a.kv_heads + head) * gridDim.z + blockIdx.z) * R * a.width;
    float most[R];
#pragma unroll
    for (int r = 0; r < R; r++) most[r] = none;
    // A warp takes a block of keys, a thread one of its positions.
    for (uint32_t at = base + t / 32 * BLOCK_TOKENS; at < end; at += ATTEND_THREADS / 32 * BLOCK_TOKENS) {
        uint64_t cell = ((uint64_t)table[at / BLOCK_TOKENS] * a.kv_heads + head) * BLOCK_TOKENS * dim;
        const float *key = a.keys + cell + t % 32;
        uint32_t position = at + t % 32;
        float sum[R];
#pragma unroll
        for (int r = 0; r < R; r++) sum[r] = 0.0f;
#pragma unroll 8
        for (uint32_t d = 0; d < dim; d++) {
            float k = key[d * BLOCK_TOKENS];
#pragma unroll
            for (int r = 0; r < R; r++) sum[r] = fused(query[r * dim + d], k, sum[r]);
        }
#pragma unroll
        for (int r = 0; r < R; r++) {
            uint32_t own = tile.first + (row0 + r) / group;
            bool seen = position <= own && position + a.window > own;
            float score = seen ? sum[r] : none;
            scores[r * a.width + position - base] = score;
            if (score > most[r]) most[r] = score;
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++) weight[r * ATTEND_CHUNK + t] = most[r];
    HONE_SYNC();
    if (t < R * LANES) {
        const float *from = weight + t / LANES * ATTEND_CHUNK + t % LANES * (ATTEND_THREADS / LANES);
        float best = none;
        for (uint32_t i = 0; i < ATTEND_THREADS / LANES; i++) best = from[i] > best ? from[i] : best;
        lanes[t] = best;
    }
    HONE_SYNC();
    if (t < R) {
        float best = none;
        for (uint32_t i = 0; i < LANES; i++) best = lanes[t * LANES + i] > best ? lanes[t * LANES + i] : best;
        peak[t] = best;
    }
    HONE_SYNC();
    float lane = 0.0f;
    float sums[2][R];
#pragma unroll
    for (int r = 0; r < R; r++) sums[0][r] = sums[1][r] = 0.0f;
    for (uint32_t at = base; at < end; at += ATTEND_CHUNK) {
        uint32_t stop = end - at < ATTEND_CHUNK ? end : at + ATTEND_CHUNK;
        for (uint32_t i = t; i < count * ATTEND_CHUNK; i += ATTEND_THREADS) {
            uint32_t r = i / ATTEND_CHUNK, position = at + i % ATTEND_CHUNK;
            weight[i] = position < stop ? exp_exact(scores[r * a.width + position - base] - peak[r]) : 0.0f;
        }
        HONE_SYNC();
        if (t < count * LANES) {
            const float *from = weight + t / LANES * ATTEND_CHUNK + t % LANES;
            for (uint32_t i = 0; i < ATTEND_CHUNK; i += LANES) lane = lane + from[i];
        }
        for (uint32_t from = at < lo ? lo : at; from < stop;) {
            uint32_t to = (from / BLOCK_TOKENS + 1) * BLOCK_TOKENS;
            to = to < stop ? to : stop;
            uint64_t cell = ((uint64_t)table[from / BLOCK_TOKENS] * a.kv_heads + head) * BLOCK_TOKENS * dim;
            for (uint32_t half = 0; half < 2; half++) {
                uint32_t d = t + half * ATTEND_THREADS;
                if (d >= dim) break;
                const float *value = a.values + cell + (uint64_t)(from % BLOCK_TOKENS) * dim + d;
#pragma unroll 8
                for (uint32_t j = from; j < to; j++) {
                    float v = value[(uint64_t)(j - from) * dim];
#pragma unroll
                    for (int r = 0; r < R; r++) {
                        if (half == 0) sums[0][r] = fused(weight[r * ATTEND_CHUNK + j - at], v, sums[0][r]);
                        else sums[1][r] = fused(weight[r * ATTEND_CHUNK + j - at], v, sums[1][r]);
                    }
                }
            }
            from = to;
        }
        HONE_SYNC();
    }
    if (t < R * LANES) lanes[t] = lane;
    HONE_SYNC();
    for (uint32_t r = 0; r < count; r++) {
        float inverse = 1.0f / sum_lanes(lanes + r * LANES);
        uint32_t m = row0 + r;
        float *to = a.out + (uint64_t)(tile.row + m / group) * a.stride + (head * group + m % group) * dim;
#pragma unroll
        for (int i = 0; i < R; i++) {
            if ((uint32_t)i != r) continue;
            if (t < dim) to[t] = sums[0][i] * inverse;
            if (t + ATTEND_THREADS < dim) to[t + ATTEND_THREADS] = sums[1][i] * inverse;
        }
    }
}

HONE_KERNEL(attend_1, Attend) { attend<1>(args); }
HONE_KERNEL(attend_2, Attend) { attend<2>(args); }
HONE_KERNEL(attend_4, Attend) { attend<4>(args); }
HONE_KERNEL(attend_8, Attend) { attend<8>(args); }
