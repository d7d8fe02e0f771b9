// Attention where every sequence has one new token: norm and rotation of its heads, the write of its keys and values,
// scores, softmax and weighted values in one kernel, operation by operation as rows.cuh and attention.cuh do it.
#pragma once
#include "attention.cuh"

struct AttendOne {
    // [tokens][q + 2 kv]
    const float *qkv;
    const float *q_norm;
    const float *k_norm;
    // [position][2][pairs]
    const float *angles;
    // [block][kv head][dim][32]
    float *keys;
    // [block][kv head][32][dim]
    float *values;
    const uint32_t *tables;
    const Tile *tiles;
    // [tokens][q]
    float *out;
    uint32_t heads;
    uint32_t kv_heads;
    uint32_t dim;
    uint32_t qkv_stride;
    uint32_t out_stride;
    uint32_t window;
    // Scores of a row that a block's memory holds.
    uint32_t width;
    // Dimensions that a block weighs, and of a warp of it; thirty-two or all, which are whole fours.
    uint32_t dims;
    // Bytes of a block's memory that the launch asks for.
    uint32_t room;
    float scale;
    float eps;
    uint32_t unused;
};

// Warps that compute; one more copies values.
constexpr uint32_t ONE_WARPS = 8, ONE_THREADS = 32 * (ONE_WARPS + 1);

// The token of a block of threads.
struct Alone {
    // Its row in the batch, and its position.
    uint32_t row;
    uint32_t first;
    // Positions seen are from `lo` to the token's own; scores are kept from `base` on.
    uint32_t lo;
    uint32_t base;
    uint32_t blocks;
    const uint32_t *table;
    uint32_t head;
    HONE_INLINE uint64_t cell(const AttendOne &a, uint32_t block) const {
        return ((uint64_t)table[base / BLOCK_TOKENS + block] * a.kv_heads + head) * BLOCK_TOKENS * a.dim;
    }
};

HONE_INLINE Alone alone(const AttendOne &a) {
    const Tile tile = a.tiles[blockIdx.x];
    Alone own;
    own.row = tile.row;
    own.first = tile.first;
    own.lo = tile.first + 1 > a.window ? tile.first + 1 - a.window : 0;
    own.base = own.lo / BLOCK_TOKENS * BLOCK_TOKENS;
    own.blocks = (tile.first + 1 - own.base + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
    own.table = a.tables + tile.table;
    own.head = blockIdx.y;
    return own;
}

// Where the computing warps of a block meet.
HONE_INLINE void meet(Arrivals &all) {
    HONE_WARP_SYNC();
    if (threadIdx.x % 32 == 0) all.arrive();
    all.wait(0);
}

// What a warp needs to norm and turn a head.
struct Turning {
    float head[MAX_DIM];
    float lanes[LANES];
};

// A warp's norm and rotation of one head of the token: take(d, y) gets what becomes of it. `before` comes
// between what needs nothing of the head and the head.
template <typename Before, typename Take>
HONE_INLINE void turn(const AttendOne &a, const Alone &own, uint32_t which, const float *weight, Turning &held, Before before, Take take) {
    const uint32_t t = threadIdx.x % 32, dim = a.dim, pairs = dim / 2;
    const float *cos = a.angles + (uint64_t)own.first * 2 * pairs, *sin = cos + pairs;
    const float *raw = a.qkv + (uint64_t)own.row * a.qkv_stride + which * dim;
    constexpr uint32_t EACH = MAX_DIM / 32;
    float weights[EACH], angle[EACH / 2][2];
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++) {
        const uint32_t d = i * 32 + t;
        if (d < dim && weight) weights[i] = weight[d];
    }
#pragma unroll
    for (uint32_t i = 0; i < EACH / 2; i++) {
        const uint32_t pair = i * 32 + t;
        if (pair >= pairs) continue;
        angle[i][0] = cos[pair];
        angle[i][1] = sin[pair];
    }
    before();
    float raws[EACH];
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++) {
        if (i * 32 + t < dim) raws[i] = raw[i * 32 + t];
    }
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++) {
        if (i * 32 + t < dim) held.head[i * 32 + t] = raws[i];
    }
    HONE_WARP_SYNC();
    if (weight) {
        if (t < LANES) {
            float lane = 0.0f;
            auto square = [&](uint32_t, float v) { lane = fused(v, v, lane); };
            ahead<8>(t, LANES, dim, [&](uint32_t d) { return held.head[d]; }, square);
            held.lanes[t] = lane;
        }
        HONE_WARP_SYNC();
        const float inverse = 1.0f / sqrtf(sum_lanes(held.lanes) / (float)dim + a.eps);
#pragma unroll
        for (uint32_t i = 0; i < EACH; i++) {
            const uint32_t d = i * 32 + t;
            if (d < dim) held.head[d] = held.head[d] * inverse * weights[i];
        }
        HONE_WARP_SYNC();
    }
#pragma unroll
    for (uint32_t n = 0; n < EACH / 2; n++) {
        const uint32_t i = n * 32 + t;
        if (i >= pairs) continue;
        const float x = held.head[i], y = held.head[i + pairs], cos = angle[n][0], sin = angle[n][1];
        take(i, x * cos - y * sin);
        take(i + pairs, y * cos + x * sin);
    }
    HONE_WARP_SYNC();
}

// Most parts that a block's memory holds.
constexpr uint32_t VALUE_PARTS_MAX = 16;

// Parts of values that have come, and that were used.
struct ValueParts {
    Arrivals full[VALUE_PARTS_MAX];
    Arrivals empty[VALUE_PARTS_MAX];
    uint32_t count;
};

// Threads of a warp that copy their own pieces; all dimensions are one copy.
HONE_INLINE bool by_threads(const AttendOne &a) { return a.dims != a.dim; }

// The warp that copies values, block by block. All but the token's own are there before this pass.
HONE_INLINE void bring_values(const AttendOne &a, const Alone &own, ValueParts &parts, unsigned char *room) {
    const uint32_t t = threadIdx.x % 32, bytes = BLOCK_TOKENS * a.dims * 4;
    uint32_t at = 0, time = 0;
    for (uint32_t block = 0; block < own.blocks; block++) {
        if (block >= parts.count) parts.empty[at].wait(time - 1);
        const float *from = a.values + own.cell(a, block) + blockIdx.z * a.dims;
        unsigned char *to = room + at * bytes;
        if (by_threads(a)) {
            parts.full[at].announce(0);
            const uint32_t pieces = a.dims / 4;
            for (uint32_t i = t; i < BLOCK_TOKENS * pieces; i += 32)
                copy_ahead(to + i * 16, from + (uint64_t)(i / pieces) * a.dim + i % pieces * 4);
            parts.full[at].begun(true);
        } else {
            parts.full[at].announce(bytes);
            parts.full[at].copy(1, [&](uint32_t) { return Piece{to, from, bytes}; });
            parts.full[at].begun(false);
        }
        if (++at == parts.count) {
            at = 0;
            time++;
        }
    }
}

// What computing warps share.
template <int R> struct Shared {
    Bytes16 queries[R][MAX_DIM / 4];
    float key[MAX_DIM];
    Turning turning[ONE_WARPS];
    float peaks[R][ONE_WARPS][32];
    float lanes[ONE_WARPS][R * LANES];
    Arrivals turned, scored, weighed;
};

// Dimensions of keys that a thread has under way at a time.
template <int R> constexpr uint32_t KEYS_AT_ONCE = R < 8 ? 64 : 32;

template <int R> HONE_INLINE void read_keys(const float *key, float *to) {
#pragma unroll
    for (uint32_t j = 0; j < KEYS_AT_ONCE<R>; j++) to[j] = key[j * BLOCK_TOKENS];
}

// Scores of the positions of every eighth block, and the largest that the thread saw. Of the first block's keys `k`
// has those of KEYS_AT_ONCE dimensions, where there are as many.
template <int R>
HONE_INLINE void score_blocks(const AttendOne &a, const Alone &own, const Shared<R> &shared, float *scores, float *best, float *k) {
    const uint32_t t = threadIdx.x % 32, warp = threadIdx.x / 32, dim = a.dim;
    constexpr uint32_t AT_ONCE = KEYS_AT_ONCE<R>;
    const float none = bits_float(0xff800000u);
#pragma unroll
    for (int r = 0; r < R; r++) best[r] = none;
    for (uint32_t block = warp; block < own.blocks; block += ONE_WARPS) {
        const float *key = a.keys + own.cell(a, block) + t;
        const uint32_t position = own.base + block * BLOCK_TOKENS + t;
        float sum[R];
#pragma unroll
        for (int r = 0; r < R; r++) sum[r] = 0.0f;
        uint32_t d = 0;
        for (; d + AT_ONCE <= dim; d += AT_ONCE) {
            if (block > warp || d > 0) read_keys<R>(key + d * BLOCK_TOKENS, k);
#pragma unroll
            for (uint32_t j = 0; j < AT_ONCE; j += 4) {
#pragma unroll
                for (int r = 0; r < R; r++) {
                    const Bytes16 q = shared.queries[r][(d + j) / 4];
#pragma unroll
                    for (uint32_t i = 0; i < 4; i++) sum[r] = fused(bits_float(q.w[i]), k[j + i], sum[r]);
                }
            }
        }
        for (; d < dim; d++) {
            const float last = key[d * BLOCK_TOKENS];
#pragma unroll
            for (int r = 0; r < R; r++) sum[r] = fused(bits_float(shared.queries[r][d / 4].w[d % 4]), last, sum[r]);
        }
        if (block + 1 == own.blocks) {
            // The token's own key is not there yet.
            float last[R];
#pragma unroll
            for (int r = 0; r < R; r++) last[r] = 0.0f;
            for (uint32_t d = 0; d < dim; d++) {
#pragma unroll
                for (int r = 0; r < R; r++) last[r] = fused(bits_float(shared.queries[r][d / 4].w[d % 4]), shared.key[d], last[r]);
            }
#pragma unroll
            for (int r = 0; r < R; r++) sum[r] = position == own.first ? last[r] : sum[r];
        }
        const bool seen = position <= own.first && position >= own.lo;
#pragma unroll
        for (int r = 0; r < R; r++) {
            const float score = seen ? sum[r] : none;
            scores[r * a.width + block * BLOCK_TOKENS + t] = score;
            best[r] = score > best[r] ? score : best[r];
        }
    }
}

// Scores become weights: of one row, of every so many blocks.
template <int R> HONE_INLINE void make_shares(const AttendOne &a, const Alone &own, Shared<R> &shared, float *scores) {
    const uint32_t t = threadIdx.x % 32, warp = threadIdx.x / 32, row = warp % R;
    const float none = bits_float(0xff800000u);
    // The largest of all warps' by thread, then of all threads'.
    float peak = none;
    for (uint32_t i = 0; i < ONE_WARPS; i++) peak = shared.peaks[row][i][t] > peak ? shared.peaks[row][i][t] : peak;
    float *all = shared.turning[warp].head;
    all[t] = peak;
    HONE_WARP_SYNC();
    for (uint32_t i = 0; i < 32; i++) peak = all[i] > peak ? all[i] : peak;
    for (uint32_t block = warp / R; block < own.blocks; block += ONE_WARPS / R) {
        float &score = scores[row * a.width + block * BLOCK_TOKENS + t];
        score = own.base + block * BLOCK_TOKENS + t <= own.first ? exp_exact(score - peak) : 0.0f;
    }
}

// A warp's part in weighing: ROWS rows of thirty-two dimensions.
template <int R, uint32_t ROWS>
HONE_INLINE void weigh_values(const AttendOne &a, const Alone &own, ValueParts &parts, const unsigned char *room, Shared<R> &shared, const float *scores) {
    const uint32_t t = threadIdx.x % 32, warp = threadIdx.x / 32, chunks = (a.dims + 31) / 32;
    const uint32_t row0 = warp / chunks * ROWS, d = warp % chunks * 32 + t;
    if (row0 >= R) return;
    const bool has = d < a.dims;
    const uint32_t dim = blockIdx.z * a.dims + d;
    const float *shares = scores + row0 * a.width;
    // The token's own value.
    const uint32_t which = a.heads + a.kv_heads + own.head;
    const float last = has ? a.qkv[(uint64_t)own.row * a.qkv_stride + which * a.dim + dim] : 0.0f;
    // Sums of the weights, two rows at a time of sixteen lanes each.
    float *lanes = shared.lanes[warp];
#pragma unroll
    for (uint32_t r = 0; r < ROWS; r += 2) {
        const uint32_t row = ROWS == 1 ? 0 : r + t / LANES;
        const float *from = shares + row * a.width + t % LANES;
        float lane = 0.0f;
        auto sum = [&](uint32_t, float share) { lane = lane + share; };
        ahead<8>(0, 1, own.blocks * 2, [&](uint32_t i) { return from[i * LANES]; }, sum);
        if (ROWS > 1 || t < LANES) lanes[row * LANES + t % LANES] = lane;
    }
    float sum[ROWS];
#pragma unroll
    for (uint32_t r = 0; r < ROWS; r++) sum[r] = 0.0f;
    uint32_t at = 0, time = 0;
    for (uint32_t block = 0; block < own.blocks; block++) {
        parts.full[at].wait(time);
        const float *value = (const float *)(room + at * (BLOCK_TOKENS * a.dims * 4)) + (has ? d : 0);
        const uint32_t first = own.base + block * BLOCK_TOKENS;
        auto add = [&](uint32_t i, float v) {
#pragma unroll
            for (uint32_t r = 0; r < ROWS; r++) sum[r] = fused(shares[r * a.width + block * BLOCK_TOKENS + i], v, sum[r]);
        };
        if (first >= own.lo && first + BLOCK_TOKENS <= own.first) {
            float v[BLOCK_TOKENS];
#pragma unroll
            for (uint32_t i = 0; i < BLOCK_TOKENS; i++) v[i] = value[i * a.dims];
#pragma unroll
            for (uint32_t i = 0; i < BLOCK_TOKENS; i += 4) {
                Bytes16 share[ROWS];
#pragma unroll
                for (uint32_t r = 0; r < ROWS; r++)
                    share[r] = *(const Bytes16 *)(shares + r * a.width + block * BLOCK_TOKENS + i);
#pragma unroll
                for (uint32_t j = 0; j < 4; j++) {
#pragma unroll
                    for (uint32_t r = 0; r < ROWS; r++) sum[r] = fused(bits_float(share[r].w[j]), v[i + j], sum[r]);
                }
            }
        } else {
            for (uint32_t i = 0; i < BLOCK_TOKENS; i++) {
                if (first + i >= own.lo && first + i < own.first) add(i, value[i * a.dims]);
            }
            if (block + 1 == own.blocks) add(own.first - first, last);
        }
        HONE_WARP_SYNC();
        if (t == 0) parts.empty[at].arrive();
        if (++at == parts.count) {
            at = 0;
            time++;
        }
    }
    if (!has) return;
#pragma unroll
    for (uint32_t r = 0; r < ROWS; r++) {
        const uint32_t group = a.heads / a.kv_heads, head = own.head * group + row0 + r;
        if (row0 + r < group) a.out[(uint64_t)own.row * a.out_stride + head * a.dim + dim] = sum[r] * (1.0f / sum_lanes(lanes + r * LANES));
    }
}

// Rows of a warp that weighs, so that all of R rows and the dimensions have one.
template <int R> HONE_INLINE uint32_t weigh_rows(const AttendOne &a) {
    const uint32_t chunks = (a.dims + 31) / 32;
    uint32_t rows = 1;
    while (chunks * (R / rows) > ONE_WARPS) rows *= 2;
    return rows;
}

// R query heads of a key-value head, of one token. Grid: tiles, key-value heads, parts of the dimensions. Block:
// ONE_THREADS.
template <int R> HONE_INLINE void attend_one(const AttendOne &a) {
    HONE_SHARED Shared<R> shared;
    HONE_SHARED ValueParts parts;
    HONE_ROOM(room);
    const uint32_t t = threadIdx.x % 32, warp = threadIdx.x / 32, dim = a.dim;
    const Alone own = alone(a);
    // Scores come first, values after them.
    float *scores = (float *)room;
    unsigned char *values = room + R * a.width * 4;
    const uint32_t rows = weigh_rows<R>(a);
    if (threadIdx.x == 0) {
        parts.count = least((a.room - R * a.width * 4) / (BLOCK_TOKENS * a.dims * 4), VALUE_PARTS_MAX);
        const uint32_t weighing = (a.dims + 31) / 32 * (R / rows);
        for (uint32_t i = 0; i < parts.count; i++) {
            parts.full[i].begin_copies(by_threads(a));
            parts.empty[i].begin(weighing);
        }
        shared.turned.begin(ONE_WARPS);
        shared.scored.begin(ONE_WARPS);
        shared.weighed.begin(ONE_WARPS);
    }
    HONE_SYNC();
    if (warp == ONE_WARPS) {
        bring_values(a, own, parts, values);
        return;
    }
    // The first keys are under way while others compute what comes before.
    float early[KEYS_AT_ONCE<R>];
    if (KEYS_AT_ONCE<R> <= dim && warp < own.blocks) read_keys<R>(a.keys + own.cell(a, warp) + t, early);
    bool waited = false;
    auto before = [&]() {
        if (!waited) wait_before();
        waited = true;
    };
    const uint32_t slot = own.first % BLOCK_TOKENS, group = a.heads / a.kv_heads;
    for (uint32_t job = warp; job <= R; job += ONE_WARPS) {
        if (job < R) {
            // Rows beyond the group stand for its last head, and nobody sees them.
            float *query = (float *)shared.queries[job];
            turn(a, own, own.head * group + least(job, group - 1), a.q_norm, shared.turning[warp], before, [&](uint32_t d, float y) { query[d] = y * a.scale; });
        } else {
            float *key = a.keys + own.cell(a, own.blocks - 1) + slot;
            turn(a, own, a.heads + own.head, a.k_norm, shared.turning[warp], before, [&](uint32_t d, float y) {
                shared.key[d] = y;
                if (blockIdx.z == 0) key[d * BLOCK_TOKENS] = y;
            });
        }
    }
    before();
    if (warp == ONE_WARPS - 1 && blockIdx.z == 0) {
        const float *raw = a.qkv + (uint64_t)own.row * a.qkv_stride + (a.heads + a.kv_heads + own.head) * dim;
        float *value = a.values + own.cell(a, own.blocks - 1) + slot * dim;
        for (uint32_t d = t; d < dim; d += 32) value[d] = raw[d];
    }
    meet(shared.turned);
    float best[R];
    score_blocks<R>(a, own, shared, scores, best, early);
#pragma unroll
    for (int r = 0; r < R; r++) shared.peaks[r][warp][t] = best[r];
    meet(shared.scored);
    make_shares<R>(a, own, shared, scores);
    meet(shared.weighed);
    switch (rows) {
    case 1: weigh_values<R, 1>(a, own, parts, values, shared, scores); break;
    case 2: weigh_values<R, R < 2 ? R : 2>(a, own, parts, values, shared, scores); break;
    case 4: weigh_values<R, R < 4 ? R : 4>(a, own, parts, values, shared, scores); break;
    default: weigh_values<R, R>(a, own, parts, values, shared, scores); break;
    }
}

HONE_KERNEL_AHEAD(attend_one_1, AttendOne) { attend_one<1>(args); }
HONE_KERNEL_AHEAD(attend_one_2, AttendOne) { attend_one<2>(args); }
HONE_KERNEL_AHEAD(attend_one_4, AttendOne) { attend_one<4>(args); }
HONE_KERNEL_AHEAD(attend_one_8, AttendOne) { attend_one<8>(args); }
