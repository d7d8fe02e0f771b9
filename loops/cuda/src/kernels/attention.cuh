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
    // The sequence's first position that this pass computes: what lies before is there already.
    uint32_t fresh;
};

struct Attend {
    const float *q;
    float *out;
    const float *keys;
    const float *values;
    const uint32_t *tables;
    const Tile *tiles;
    // [tiles of this launch][kv heads][row groups][R] of `width` scores, from the block on in which a tile's
    // first position lies, and the largest of every SCORES_CHUNK of them.
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

constexpr uint32_t ATTEND_THREADS = 128;
// Positions that a block of threads scores.
constexpr uint32_t SCORES_CHUNK = 128;

// The query rows of a block of threads.
struct Asked {
    Tile tile;
    uint32_t head;
    // Query heads of a key-value head.
    uint32_t group;
    // First row of the tile's, counted by token and query head, and how many.
    uint32_t row0;
    uint32_t count;
    // Positions seen are from `lo` to `end`; scores are kept from `base` on.
    uint32_t lo;
    uint32_t end;
    uint32_t base;
    const uint32_t *table;
    float *scores;
    // Numbers of a row of them.
    uint32_t stride;
};

template <int R> HONE_INLINE Asked asked(const Attend &a) {
    Asked asked;
    const uint32_t groups = gridDim.y / a.kv_heads, own = blockIdx.y % groups;
    const Tile tile = a.tiles[blockIdx.x];
    asked.tile = tile;
    asked.head = blockIdx.y / groups;
    asked.group = a.heads / a.kv_heads;
    const uint32_t rows = tile.tokens * asked.group;
    asked.row0 = own * R;
    asked.count = asked.row0 >= rows ? 0 : rows - asked.row0 < R ? rows - asked.row0 : R;
    asked.end = tile.first + tile.tokens;
    asked.lo = tile.first + 1 > a.window ? tile.first + 1 - a.window : 0;
    asked.base = asked.lo / BLOCK_TOKENS * BLOCK_TOKENS;
    asked.table = a.tables + tile.table;
    // Rows begin on sixteen bytes.
    asked.stride = a.width + (a.width / SCORES_CHUNK + 3) / 4 * 4;
    asked.scores = a.scores + ((uint64_t)blockIdx.x * gridDim.y + blockIdx.y) * R * asked.stride;
    return asked;
}

// Where row `row0 + r` of a tile stands in the batch.
HONE_INLINE uint64_t row_at(const Attend &a, const Asked &asked, uint32_t r) {
    uint32_t m = asked.row0 + r;
    return (uint64_t)(asked.tile.row + m / asked.group) * a.stride + (asked.head * asked.group + m % asked.group) * a.dim;
}

// Scores of R query rows of one tile and key-value head. A warp takes a block of keys, a thread one of
// its positions. Grid: tiles, kv heads times groups of R rows, chunks of positions.
template <int R> HONE_INLINE void score(const Attend &a) {
    HONE_SHARED Bytes16 queries[R][MAX_DIM / 4];
    HONE_SHARED float found[R][ATTEND_THREADS];
    HONE_SHARED float peaks[R * 8];
    const Asked own = asked<R>(a);
    const uint32_t t = threadIdx.x, dim = a.dim, chunk = own.base + blockIdx.z * SCORES_CHUNK;
    if (own.count == 0 || chunk >= own.end) return;
    const float none = bits_float(0xff800000u);
    const uint32_t at = chunk + t / 32 * BLOCK_TOKENS, position = at + t % 32;
    // Beyond the end the last block stands in, which nobody sees.
    const uint32_t block = at < own.end ? at : (own.end - 1) / BLOCK_TOKENS * BLOCK_TOKENS;
    const uint64_t cell = ((uint64_t)own.table[block / BLOCK_TOKENS] * a.kv_heads + own.head) * BLOCK_TOKENS * dim;
    const float *key = a.keys + cell + t % 32;
    // Keys of many dimensions are under way at a time, the first while the queries come.
    constexpr uint32_t AT_ONCE = R < 8 ? 64 : 32;
    float k[AT_ONCE];
    auto read = [&](uint32_t d) {
#pragma unroll
        for (uint32_t j = 0; j < AT_ONCE; j++) k[j] = key[(d + j) * BLOCK_TOKENS];
    };
    const bool known = block + BLOCK_TOKENS <= own.tile.fresh;
    if (AT_ONCE <= dim && known) read(0);
    wait_before();
    if (AT_ONCE <= dim && !known) read(0);
    for (uint32_t i = t; i < R * dim; i += ATTEND_THREADS) {
        uint32_t r = i / dim, d = i % dim;
        float q = r < own.count ? a.q[row_at(a, own, r) + d] * a.scale : 0.0f;
        queries[r][d / 4].w[d % 4] = float_bits(q);
    }
    HONE_SYNC();
    float sum[R];
#pragma unroll
    for (int r = 0; r < R; r++) sum[r] = 0.0f;
    uint32_t d = 0;
    for (; d + AT_ONCE <= dim; d += AT_ONCE) {
        if (d > 0) read(d);
#pragma unroll
        for (uint32_t j = 0; j < AT_ONCE; j += 4) {
#pragma unroll
            for (int r = 0; r < R; r++) {
                const Bytes16 q = queries[r][(d + j) / 4];
#pragma unroll
                for (uint32_t i = 0; i < 4; i++) sum[r] = fused(bits_float(q.w[i]), k[j + i], sum[r]);
            }
        }
    }
    for (; d < dim; d++) {
        float last = key[d * BLOCK_TOKENS];
#pragma unroll
        for (int r = 0; r < R; r++) sum[r] = fused(bits_float(queries[r][d / 4].w[d % 4]), last, sum[r]);
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
        uint32_t query = own.tile.first + (own.row0 + r) / own.group;
        bool seen = position <= query && position + a.window > query;
        float score = seen ? sum[r] : none;
        if (at < own.end) own.scores[r * own.stride + position - own.base] = score;
        found[r][t] = score;
    }
    HONE_SYNC();
    // Eight threads look through a row.
    if (t < R * 8) {
        float best = none;
        for (uint32_t i = t % 8; i < ATTEND_THREADS; i += 8) best = found[t / 8][i] > best ? found[t / 8][i] : best;
        peaks[t] = best;
    }
    HONE_SYNC();
    if (t < R) {
        float best = none;
        for (uint32_t i = 0; i < 8; i++) best = peaks[t * 8 + i] > best ? peaks[t * 8 + i] : best;
        own.scores[t * own.stride + a.width + blockIdx.z] = best;
    }
}

// What R rows give a position.
template <int R> struct alignas(R < 4 ? 4 * R : 16) Shares {
    float of[R];
};

// Blocks of positions that are held, dimensions that a block of threads weighs, and its threads:
// a warp adds values, one makes the weights of the block after, and one copies.
constexpr uint32_t VALUES_AHEAD = 8, VALUES_DIMS = 32, WEIGH_THREADS = 96;

// What weighing holds of a block of positions.
template <int R> struct Weighing {
    Bytes16 values[BLOCK_TOKENS][VALUES_DIMS / 4];
    Bytes16 scores[R][BLOCK_TOKENS / 4];
};

// A warp's part in weighing: it copies blocks of values and scores.
template <int R> HONE_INLINE void copy_blocks(const Attend &a, const Asked &own, uint32_t blocks, Weighing<R> *held) {
    const uint32_t t = threadIdx.x % 32, d0 = blockIdx.z * VALUES_DIMS, dims = least(a.dim - d0, VALUES_DIMS);
    const uint32_t *table = own.table + own.base / BLOCK_TOKENS;
    auto copy_scores = [&](uint32_t block) {
        Weighing<R> &to = held[block % VALUES_AHEAD];
#pragma unroll
        for (uint32_t i = 0; i < R * BLOCK_TOKENS / 4; i += 32) {
            const uint32_t r = (i + t) / (BLOCK_TOKENS / 4), piece = (i + t) % (BLOCK_TOKENS / 4);
            const float *scores = own.scores + r * own.stride + block * BLOCK_TOKENS + piece * 4;
            if (r < R) copy_ahead(&to.scores[r][piece], scores);
        }
    };
    auto copy_values = [&](uint32_t block, uint32_t place) {
        const float *from = a.values + ((uint64_t)place * a.kv_heads + own.head) * BLOCK_TOKENS * a.dim + d0;
        Weighing<R> &to = held[block % VALUES_AHEAD];
        if (a.dim % 4 == 0) {
#pragma unroll
            for (uint32_t i = 0; i < BLOCK_TOKENS * VALUES_DIMS / 4; i += 32) {
                const uint32_t j = (i + t) / (VALUES_DIMS / 4), piece = (i + t) % (VALUES_DIMS / 4);
                if (piece * 4 < dims) copy_ahead(&to.values[j][piece], from + (uint64_t)j * a.dim + piece * 4);
            }
        } else {
            for (uint32_t i = t; i < BLOCK_TOKENS * dims; i += 32) {
                const uint32_t j = i / dims, d = i % dims;
                to.values[j][d / 4].w[d % 4] = float_bits(from[(uint64_t)j * a.dim + d]);
            }
        }
    };
    // Values are used a block after their scores.
    constexpr uint32_t AHEAD = VALUES_AHEAD - 2;
    auto known = [&](uint32_t block) { return own.base + (block + 1) * BLOCK_TOKENS <= own.tile.fresh; };
    for (uint32_t block = 0; block < AHEAD && block < blocks; block++) {
        if (known(block)) copy_values(block, table[block]);
    }
    wait_before();
    for (uint32_t block = 0; block < AHEAD; block++) {
        if (block < blocks && !known(block)) copy_values(block, table[block]);
        if (block < blocks) copy_scores(block);
        copies_end();
    }
    // Where the block after the next lies is known before it is needed.
    uint32_t upcoming = AHEAD < blocks ? table[AHEAD] : 0;
    for (uint32_t block = 0; block < blocks; block++) {
        copies_wait<(int)AHEAD - 1>();
        HONE_SYNC();
        const uint32_t next = block + AHEAD;
        if (next < blocks) {
            const uint32_t place = upcoming;
            if (next + 1 < blocks) upcoming = table[next + 1];
            copy_values(next, place);
            copy_scores(next);
        }
        copies_end();
    }
    HONE_SYNC();
}

// The largest of R rows' scores, which lie in `chunks` parts: a thread's own row's, to `peak`.
template <int R> HONE_INLINE void find_peaks(const Attend &a, const Asked &own, float *peak) {
    const uint32_t t = threadIdx.x % 32, chunks = (own.end - own.base + SCORES_CHUNK - 1) / SCORES_CHUNK;
    if (t >= R) return;
    float best = bits_float(0xff800000u);
    const float *peaks = own.scores + t * own.stride + a.width;
    auto better = [&](uint32_t, float score) { best = score > best ? score : best; };
    ahead<8>(0, 1, chunks, [&](uint32_t i) { return peaks[i]; }, better);
    peak[t] = best;
}

// A warp's part in weighing: it makes what every position of a block weighs, and sums that in sixteen lanes.
template <int R>
HONE_INLINE void make_weights(const Asked &own, uint32_t blocks, const Weighing<R> *held, const float *peak,
                              Shares<R> (*weights)[BLOCK_TOKENS], float *lanes) {
    const uint32_t j = threadIdx.x % 32;
    // Two rows at a time have sixteen lanes each.
    float lane[(R + 1) / 2];
#pragma unroll
    for (int r = 0; r < R; r += 2) lane[r / 2] = 0.0f;
    auto sum = [&](uint32_t block) {
        const Shares<R> *shares = weights[block % 2];
#pragma unroll
        for (int r = 0; r < R; r += 2) {
            const uint32_t row = R == 1 ? 0 : r + j / LANES;
            lane[r / 2] = lane[r / 2] + shares[j % LANES].of[row];
            lane[r / 2] = lane[r / 2] + shares[j % LANES + LANES].of[row];
        }
    };
    for (uint32_t block = 0; block < blocks; block++) {
        HONE_SYNC();
        // Values are added a block later, when these are there.
        if (block > 0) sum(block - 1);
        Shares<R> shares;
#pragma unroll
        for (int r = 0; r < R; r++) {
            const float score = bits_float(held[block % VALUES_AHEAD].scores[r][j / 4].w[j % 4]);
            const bool there = own.base + block * BLOCK_TOKENS + j < own.end && (uint32_t)r < own.count;
            shares.of[r] = there ? exp_exact(score - peak[r]) : 0.0f;
        }
        weights[block % 2][j] = shares;
    }
    HONE_SYNC();
    sum(blocks - 1);
#pragma unroll
    for (int r = 0; r < R; r += 2) {
        const uint32_t row = R == 1 ? 0 : r + j / LANES;
        if (R > 1 || j < LANES) lanes[row * LANES + j % LANES] = lane[r / 2];
    }
}

// Softmax of the scores of R rows, and the values they weigh. Grid: tiles, kv heads times groups of R
// rows, chunks of VALUES_DIMS dimensions. Block: WEIGH_THREADS.
template <int R> HONE_INLINE void weigh(const Attend &a) {
    HONE_SHARED Weighing<R> held[VALUES_AHEAD];
    HONE_SHARED Shares<R> weights[2][BLOCK_TOKENS];
    HONE_SHARED float lanes[R * LANES];
    HONE_SHARED float peak[R];
    const Asked own = asked<R>(a);
    if (own.count == 0) return;
    const uint32_t t = threadIdx.x, j = t % 32, d0 = blockIdx.z * VALUES_DIMS;
    const uint32_t blocks = (own.end - own.base + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
    if (t >= 64) {
        copy_blocks<R>(a, own, blocks, held);
        HONE_SYNC();
        return;
    }
    if (t >= 32) {
        wait_before();
        find_peaks<R>(a, own, peak);
        make_weights<R>(own, blocks, held, peak, weights, lanes);
        HONE_SYNC();
        return;
    }
    wait_before();
    float sum[R];
#pragma unroll
    for (int r = 0; r < R; r++) sum[r] = 0.0f;
    auto add = [&](uint32_t block) {
        const Shares<R> *shares = weights[block % 2];
        const uint32_t at = own.base + block * BLOCK_TOKENS;
        const float *value = (const float *)held[block % VALUES_AHEAD].values + j;
        if (at >= own.lo && at + BLOCK_TOKENS <= own.end) {
            float v[BLOCK_TOKENS];
#pragma unroll
            for (uint32_t i = 0; i < BLOCK_TOKENS; i++) v[i] = value[i * VALUES_DIMS];
#pragma unroll
            for (uint32_t i = 0; i < BLOCK_TOKENS; i++) {
                const Shares<R> share = shares[i];
#pragma unroll
                for (int r = 0; r < R; r++) sum[r] = fused(share.of[r], v[i], sum[r]);
            }
        } else {
            for (uint32_t i = 0; i < BLOCK_TOKENS; i++) {
                if (at + i < own.lo || at + i >= own.end) continue;
                const Shares<R> share = shares[i];
#pragma unroll
                for (int r = 0; r < R; r++) sum[r] = fused(share.of[r], value[i * VALUES_DIMS], sum[r]);
            }
        }
    };
    for (uint32_t block = 0; block < blocks; block++) {
        HONE_SYNC();
        if (block > 0) add(block - 1);
    }
    HONE_SYNC();
    add(blocks - 1);
    HONE_SYNC();
    if (d0 + j >= a.dim) return;
#pragma unroll
    for (int r = 0; r < R; r++) {
        if ((uint32_t)r >= own.count) continue;
        a.out[row_at(a, own, r) + d0 + j] = sum[r] * (1.0f / sum_lanes(lanes + r * LANES));
    }
}

HONE_KERNEL_AHEAD(score_1, Attend) { score<1>(args); }
HONE_KERNEL_AHEAD(score_2, Attend) { score<2>(args); }
HONE_KERNEL_AHEAD(score_4, Attend) { score<4>(args); }
HONE_KERNEL_AHEAD(score_8, Attend) { score<8>(args); }
HONE_KERNEL_AHEAD(weigh_1, Attend) { weigh<1>(args); }
HONE_KERNEL_AHEAD(weigh_2, Attend) { weigh<2>(args); }
HONE_KERNEL_AHEAD(weigh_4, Attend) { weigh<4>(args); }
HONE_KERNEL_AHEAD(weigh_8, Attend) { weigh<8>(args); }
