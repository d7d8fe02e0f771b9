// Layers of which every token uses a few experts: ../experts.rs. A pair is a token with one of its
// experts; pairs are numbered token by token, a token's experts ascending.
//
// Which experts a pass uses is known only here, so that its launches are the same whatever is chosen:
// products have blocks for as many tiles as there can be, and those of tiles that are not there end.
#pragma once
#include "linear.cuh"

// Most experts of a layer.
constexpr uint32_t EXPERTS_MAX = 1024;
// In place of the first id of a row whose experts are not recorded, and of the place of a row whose
// experts nobody asks for.
constexpr uint16_t NOT_RECORDED = 0xffff;
constexpr uint32_t NO_PLACE = 0xffffffffu;

// Listed rows that a block multiplies with one expert; none where the tile is not needed.
struct alignas(16) ExpertTile {
    uint32_t expert;
    uint32_t first;
    uint32_t rows;
    uint32_t unused;
};

// The pairs of a pass, grouped by expert.
struct Listed {
    ExpertTile *tiles;
    // Per listed row: its token and its pair.
    uint32_t *tokens;
    uint32_t *pairs;
};

struct Route {
    // [rows][stride]
    const float *scores;
    // Ids to use instead, [rows][told], or null.
    const uint16_t *recorded;
    // [rows][chosen]
    uint16_t *ids;
    float *weights;
    // Where the ids are told, [places][told], and which place a row has; or null.
    uint16_t *record;
    const uint32_t *places;
    // Where a single row lists its pairs; null where there are more.
    Listed listed;
    uint32_t stride;
    uint32_t count;
    uint32_t chosen;
    uint32_t normalised;
    // Ids of a row over all layers.
    uint32_t told;
    uint32_t unused;
};

// The ids of the highest scores, ascending; the lower id among equals. Every score is a number.
HONE_INLINE void choose(const Route &a, const float *scores, uint32_t *is_chosen, uint16_t *ids) {
    const uint32_t t = threadIdx.x;
    for (uint32_t id = t; id < a.count; id += blockDim.x) {
        const float own = scores[id];
        uint32_t before = 0;
        for (uint32_t other = 0; other < a.count; other++) {
            before += scores[other] > own || (scores[other] == own && other < id);
        }
        is_chosen[id] = before < a.chosen;
    }
    HONE_SYNC();
    for (uint32_t id = t; id < a.count; id += blockDim.x) {
        if (!is_chosen[id]) continue;
        uint32_t place = 0;
        for (uint32_t other = 0; other < id; other++) place += is_chosen[other];
        ids[place] = (uint16_t)id;
    }
}

// The same where some score is not a number: by one thread, step by step as ../experts.rs.
HONE_INLINE void choose_slowly(const Route &a, const float *scores, uint16_t *ids) {
    uint32_t held = 0;
    for (uint32_t id = 0; id < a.count; id++) {
        uint32_t place = 0;
        while (place < held && !(scores[id] > scores[ids[place]])) place++;
        if (place == a.chosen) continue;
        if (held < a.chosen) held++;
        for (uint32_t i = held - 1; i > place; i--) ids[i] = ids[i - 1];
        ids[place] = (uint16_t)id;
    }
    for (uint32_t i = 1; i < held; i++) {
        const uint16_t id = ids[i];
        uint32_t to = i;
        for (; to > 0 && ids[to - 1] > id; to--) ids[to] = ids[to - 1];
        ids[to] = id;
    }
}

// Chooses the experts of a row and what each counts. Grid: rows.
HONE_KERNEL(route, Route) {
    HONE_SHARED float scores[EXPERTS_MAX];
    HONE_SHARED float shares[EXPERTS_MAX];
    HONE_SHARED uint32_t is_chosen[EXPERTS_MAX];
    HONE_SHARED uint16_t ids[EXPERTS_MAX];
    HONE_SHARED uint32_t broken;
    const uint32_t t = threadIdx.x, row = blockIdx.x;
    if (t == 0) broken = 0;
    HONE_SYNC();
    for (uint32_t id = t; id < args.count; id += blockDim.x) {
        const float score = args.scores[(uint64_t)row * args.stride + id];
        if (score != score) broken = 1;
        scores[id] = score;
    }
    HONE_SYNC();
    const uint16_t *recorded = args.recorded ? args.recorded + (uint64_t)row * args.told : nullptr;
    if (recorded && recorded[0] != NOT_RECORDED) {
        for (uint32_t i = t; i < args.chosen; i += blockDim.x) ids[i] = recorded[i];
    } else if (!broken) {
        choose(args, scores, is_chosen, ids);
    } else if (t == 0) {
        choose_slowly(args, scores, ids);
    }
    HONE_SYNC();
    // Softmax over the chosen, or over all.
    const uint32_t n = args.normalised ? args.chosen : args.count;
    for (uint32_t i = t; i < n; i += blockDim.x) shares[i] = scores[args.normalised ? ids[i] : i];
    HONE_SYNC();
    float most = -3.402823466e38f, sum = 0.0f;
    for (uint32_t i = 0; i < n; i++) most = shares[i] > most ? shares[i] : most;
    HONE_SYNC();
    for (uint32_t i = t; i < n; i += blockDim.x) shares[i] = exp_exact(shares[i] - most);
    HONE_SYNC();
    for (uint32_t i = 0; i < n; i++) sum = sum + shares[i];
    const uint32_t place = args.record ? args.places[row] : NO_PLACE;
    for (uint32_t i = t; i < args.chosen; i += blockDim.x) {
        const uint64_t pair = (uint64_t)row * args.chosen + i;
        args.ids[pair] = ids[i];
        args.weights[pair] = shares[args.normalised ? i : ids[i]] / sum;
        if (place != NO_PLACE) args.record[(uint64_t)place * args.told + i] = ids[i];
        if (args.listed.tiles) {
            args.listed.tiles[i] = ExpertTile{ids[i], i, 1, 0};
            args.listed.tokens[i] = 0;
            args.listed.pairs[i] = i;
        }
    }
}

struct Group {
    // [pairs]
    const uint16_t *ids;
    Listed listed;
    uint32_t pairs;
    uint32_t chosen;
    uint32_t experts;
    // A tile has up to 2^shift rows; so many tiles have a place.
    uint32_t shift;
    uint32_t tiles;
    uint32_t unused;
};

constexpr uint32_t GROUP_THREADS = 512, GROUP_CHUNK = 4096;

// Lists the pairs expert by expert, tokens ascending, and cuts the lists into tiles. One block.
HONE_KERNEL(group_pairs, Group) {
    constexpr uint32_t EACH = EXPERTS_MAX / GROUP_THREADS;
    HONE_SHARED uint16_t chunk[GROUP_CHUNK];
    HONE_SHARED uint32_t counts[EXPERTS_MAX];
    HONE_SHARED uint32_t used;
    const uint32_t t = threadIdx.x, size = 1u << args.shift;
    // see(k, pair) for all pairs, ascending, of the thread's k-th expert, `t + k * GROUP_THREADS`.
    auto each_own = [&](auto see) {
        for (uint32_t at = 0; at < args.pairs; at += GROUP_CHUNK) {
            const uint32_t here = least(args.pairs - at, GROUP_CHUNK);
            for (uint32_t i = t; i < here; i += GROUP_THREADS) chunk[i] = args.ids[at + i];
            HONE_SYNC();
            for (uint32_t i = 0; i < here; i++) {
#pragma unroll
                for (uint32_t k = 0; k < EACH; k++) {
                    if (chunk[i] == t + k * GROUP_THREADS) see(k, at + i);
                }
            }
            HONE_SYNC();
        }
    };
    uint32_t own[EACH] = {}, next[EACH] = {}, tile[EACH] = {};
    each_own([&](uint32_t k, uint32_t) { own[k]++; });
#pragma unroll
    for (uint32_t k = 0; k < EACH; k++) counts[t + k * GROUP_THREADS] = own[k];
    HONE_SYNC();
#pragma unroll
    for (uint32_t k = 0; k < EACH; k++) {
        const uint32_t expert = t + k * GROUP_THREADS;
        if (expert >= args.experts) continue;
        for (uint32_t i = 0; i < expert; i++) {
            next[k] += counts[i];
            tile[k] += (counts[i] + size - 1) >> args.shift;
        }
        const uint32_t tiles = (own[k] + size - 1) >> args.shift;
        for (uint32_t i = 0; i < tiles; i++) {
            const uint32_t done = i << args.shift;
            args.listed.tiles[tile[k] + i] = ExpertTile{expert, next[k] + done, least(own[k] - done, size), 0};
        }
        if (expert + 1 == args.experts) used = tile[k] + tiles;
    }
    HONE_SYNC();
    for (uint32_t i = used + t; i < args.tiles; i += GROUP_THREADS) args.listed.tiles[i] = ExpertTile{0, 0, 0, 0};
    each_own([&](uint32_t k, uint32_t pair) {
        args.listed.tokens[next[k]] = pair / args.chosen;
        args.listed.pairs[next[k]] = pair;
        next[k]++;
    });
}

// The products of listed rows with their experts.
struct ExpertLinear {
    // The first expert's, and bytes from one to the next.
    Matrix w;
    uint64_t step;
    const float *x;
    float *y;
    // Per listed row, the row of x and of y.
    const uint32_t *from;
    const uint32_t *to;
    const ExpertTile *tiles;
    uint32_t x_stride;
    uint32_t y_stride;
};

// One tile of them.
struct TileLinear {
    Matrix w;
    const float *x;
    float *y;
    const uint32_t *from;
    const uint32_t *to;
    uint32_t x_stride;
    uint32_t y_stride;
    uint32_t rows;
};

HONE_INLINE const float *row_of(const TileLinear &a, uint32_t row) {
    return a.x + (uint64_t)a.from[row] * a.x_stride;
}

HONE_INLINE void leave(const TileLinear &a, uint32_t row, uint32_t out, float sum) {
    a.y[(uint64_t)a.to[row] * a.y_stride + out] = sum;
}

HONE_INLINE TileLinear of_tile(const ExpertLinear &a, const ExpertTile &tile) {
    TileLinear own = {a.w, a.x, a.y, a.from + tile.first, a.to + tile.first, a.x_stride, a.y_stride, tile.rows};
    own.w.data = (const char *)a.w.data + tile.expert * a.step;
    if (a.w.scales) own.w.scales = (const uint16_t *)((const char *)a.w.scales + tile.expert * a.step);
    return own;
}

template <uint32_t F, uint32_t R, uint32_t IN> HONE_INLINE void few_of_tile(const ExpertLinear &a) {
    HONE_SHARED Bytes16 room[FEW_BYTES / 16];
    const ExpertTile tile = a.tiles[blockIdx.z];
    if (tile.rows == 0) return;
    const TileLinear own = of_tile(a, tile);
    few<F, R, IN>(own, blockIdx.x, room);
}

template <uint32_t F, uint32_t ROWS, uint32_t IN> HONE_INLINE void some_of_tile(const ExpertLinear &a) {
    const ExpertTile tile = a.tiles[blockIdx.z];
    if (tile.rows == 0) return;
    const TileLinear own = of_tile(a, tile);
    some<F, ROWS, IN>(own);
}

// By rows of a tile. Grid: outputs, 1, tiles.
#define HONE_EXPERTS(format, F, IN)                                                                \
    HONE_KERNEL(experts_##format##_1, ExpertLinear) { few_of_tile<F, 1, IN>(args); }               \
    HONE_KERNEL(experts_##format##_4, ExpertLinear) { few_of_tile<F, 4, IN>(args); }               \
    HONE_KERNEL(experts_##format##_8, ExpertLinear) { some_of_tile<F, 8, 64>(args); }              \
    HONE_KERNEL(experts_##format##_16, ExpertLinear) { some_of_tile<F, 16, 64>(args); }            \
    HONE_KERNEL(experts_##format##_32, ExpertLinear) { some_of_tile<F, 32, (F == F32 ? 32 : 64)>(args); } \
    HONE_KERNEL(experts_##format##_64, ExpertLinear) { some_of_tile<F, 64, 32>(args); }

HONE_EXPERTS(f32, F32, 64)
HONE_EXPERTS(bf16, BF16, 128)
HONE_EXPERTS(q8, Q8, 128)
HONE_EXPERTS(q4, Q4, 128)

struct Mix {
    // [pairs][stride], [pairs]
    const float *said;
    const float *weights;
    // [rows][stride]
    float *y;
    uint32_t n;
    uint32_t stride;
    uint32_t chosen;
    uint32_t unused;
};

// y = sum of what a row's experts say, each by its weight, ids ascending. Grid: columns, rows.
HONE_KERNEL(mix_experts, Mix) {
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= args.n) return;
    const uint64_t pair = (uint64_t)blockIdx.y * args.chosen;
    const float *said = args.said + pair * args.stride + i;
    float sum = 0.0f;
    auto read = [&](uint32_t k) { return said[(uint64_t)k * args.stride]; };
    ahead<4>(0, 1, args.chosen, read, [&](uint32_t k, float x) { sum = fused(x, args.weights[pair + k], sum); });
    args.y[(uint64_t)blockIdx.y * args.stride + i] = sum;
}
