// Draws a token where min-p, top-k and top-p leave a few: what ../sample/cut.rs does, bit for bit,
// without the row leaving the device.
//
// A token's rank is one number, its logit's bits turned so that better is smaller, then its id; no
// two are equal. What may be kept is found by its rank (a radix select, digit by digit), gathered in
// any order and sorted. Weights are whole numbers, whose sums have no order either.
#pragma once
#include "sample.cuh"

// Tokens that a block holds; CUT_ROOM in ../device/draw.rs. Where more are kept the processor draws.
constexpr uint32_t CUT_THREADS = 512, CUT_ROOM = 4096;
// Counters of one digit of eight bits, so that neighbouring threads seldom meet in one.
constexpr uint32_t DIGITS = 256, COPIES = 4;

struct Room {
    union {
        uint64_t list[CUT_ROOM];
        Bytes16 chunks[2 * DRAW_CHUNK / 4];
    };
    uint64_t sums[CUT_THREADS];
    uint32_t bins[DIGITS * COPIES];
    float lanes[LANES];
    uint32_t broken;
    uint32_t count;
    uint32_t reached;
};

HONE_INLINE uint64_t rank_of(float logit, uint32_t id) {
    uint32_t bits = float_bits(logit);
    return (uint64_t)((bits >> 31) ? bits : ~bits & 0x7fffffffu) << 32 | id;
}

// The logit of the upper half of a rank.
HONE_INLINE float rank_logit(uint32_t upper) { return bits_float((upper >> 31) ? upper : ~upper & 0x7fffffffu); }

// Adds value(i) for i below `count`.
template <typename Value> HONE_INLINE uint64_t sum_all(uint32_t count, Room &room, Value value) {
    uint64_t sum = 0;
    ahead<8>(threadIdx.x, CUT_THREADS, count, value, [&](uint32_t, uint64_t v) { sum += v; });
    HONE_SYNC();
    room.sums[threadIdx.x] = sum;
    HONE_SYNC();
    sum = 0;
    for (uint32_t i = 0; i < CUT_THREADS; i++) sum += room.sums[i];
    return sum;
}

// The first i at which the sum of value(0..=i) reaches `wanted`, or `count`.
template <typename Value> HONE_INLINE uint32_t reach(uint32_t count, uint64_t wanted, Room &room, Value value) {
    const uint32_t t = threadIdx.x, each = (count + CUT_THREADS - 1) / CUT_THREADS;
    const uint32_t first = t * each, end = first + each < count ? first + each : count;
    uint64_t sum = 0, before = 0;
    for (uint32_t i = first; i < end; i++) sum += value(i);
    HONE_SYNC();
    if (t == 0) room.reached = count;
    room.sums[t] = sum;
    HONE_SYNC();
    for (uint32_t i = 0; i < t; i++) before += room.sums[i];
    // The first of all has nothing before it; of the others one at most crosses.
    if ((t == 0 || before < wanted) && before + sum >= wanted && first < end) {
        uint32_t at = first;
        while ((before += value(at)) < wanted) at++;
        room.reached = at;
    }
    HONE_SYNC();
    return room.reached;
}

// The best rank of a row; room.broken where a number is none or too large.
HONE_INLINE uint64_t survey(const float *row, uint32_t vocab, Room &room) {
    uint64_t best = ~0ull;
    if (threadIdx.x == 0) room.broken = 0;
    HONE_SYNC();
    ahead<16>(threadIdx.x, CUT_THREADS, vocab, [&](uint32_t i) { return row[i]; }, [&](uint32_t i, float v) {
        if (!(v <= 1e30f && v >= -1e30f)) room.broken = 1;
        uint64_t rank = rank_of(v, i);
        if (rank < best) best = rank;
    });
    room.sums[threadIdx.x] = best;
    HONE_SYNC();
    for (uint32_t i = 0; i < CUT_THREADS; i++) {
        if (room.sums[i] < best) best = room.sums[i];
    }
    return best;
}

// A rank that as many tokens as `wanted`, and at most CUT_ROOM, have or are better than; there are as many
// not below the floor.
HONE_INLINE uint64_t select_rank(const float *row, uint32_t vocab, float floor, uint32_t wanted, Room &room) {
    const uint32_t t = threadIdx.x;
    uint64_t known = 0, left = wanted, room_left = CUT_ROOM;
    for (uint32_t shift = 56;; shift -= 8) {
        for (uint32_t i = t; i < DIGITS * COPIES; i += CUT_THREADS) room.bins[i] = 0;
        HONE_SYNC();
        ahead<16>(t, CUT_THREADS, vocab, [&](uint32_t i) { return row[i]; }, [&](uint32_t i, float v) {
            uint64_t rank = rank_of(v, i);
            bool alike = shift == 56 || (rank ^ known) >> (shift + 8) == 0;
            if (v >= floor && alike) add_shared(&room.bins[(rank >> shift & 255) * COPIES + t % COPIES], 1);
        });
        HONE_SYNC();
        if (t < DIGITS) {
            uint64_t sum = 0;
            for (uint32_t copy = 0; copy < COPIES; copy++) sum += room.bins[t * COPIES + copy];
            room.sums[t] = sum;
        }
        HONE_SYNC();
        uint64_t digit = 0;
        while (left > room.sums[digit]) {
            left -= room.sums[digit];
            room_left -= room.sums[digit++];
        }
        known |= digit << shift;
        // Mostly all that begin so fit long before the last of eight digits.
        if (shift == 0 || room.sums[digit] <= room_left) return known | ((1ull << shift) - 1);
    }
}

// Makes the list the tokens not below the floor whose rank is `last` or better, in any order.
HONE_INLINE void gather(const float *row, uint32_t vocab, float floor, uint64_t last, Room &room) {
    HONE_SYNC();
    if (threadIdx.x == 0) room.count = 0;
    HONE_SYNC();
    ahead<16>(threadIdx.x, CUT_THREADS, vocab, [&](uint32_t i) { return row[i]; }, [&](uint32_t i, float v) {
        uint64_t rank = rank_of(v, i);
        if (v >= floor && rank <= last) room.list[add_shared(&room.count, 1)] = rank;
    });
    HONE_SYNC();
}

// Sorts the first of the list, ascending; what follows them is lost (bitonic: Batcher 1968).
HONE_INLINE void sort(uint64_t *list, uint32_t count) {
    const uint32_t t = threadIdx.x;
    uint32_t all = 1;
    while (all < count) all *= 2;
    for (uint32_t i = count + t; i < all; i += CUT_THREADS) list[i] = ~0ull;
    for (uint32_t size = 2; size <= all; size *= 2) {
        for (uint32_t step = size / 2; step > 0; step /= 2) {
            HONE_SYNC();
            for (uint32_t i = t; i < all / 2; i += CUT_THREADS) {
                uint32_t a = 2 * i - (i & (step - 1)), b = a + step;
                uint64_t x = list[a], y = list[b];
                if ((x > y) == ((a & size) == 0)) {
                    list[a] = y;
                    list[b] = x;
                }
            }
        }
    }
    HONE_SYNC();
}

// What a token weighs: whole units, see ../sample/cut.rs.
HONE_INLINE uint64_t weight(float logit, float most, float temperature) {
    return (uint64_t)(exp_exact((logit - most) / temperature) * 4398046511104.0f);
}

// Makes the list the tokens kept, their ids in the upper halves, ascending; how many they are, 0
// where the processor has to look.
HONE_INLINE uint32_t cut_row(const float *row, uint32_t vocab, const Draw &draw, float most, Room &room) {
    float floor = most + draw.floor;
    if (!(floor < most)) floor = most;
    auto heavy = [&](float logit) { return weight(logit, most, draw.temperature); };
    uint32_t count = (uint32_t)sum_all(vocab, room, [&](uint32_t i) { return (uint64_t)(row[i] >= floor); });
    uint32_t among = draw.top_k > 0 && draw.top_k < count ? draw.top_k : count;
    uint32_t held = among < CUT_ROOM ? among : CUT_ROOM;
    // The best that fit do for top-p of all; a larger top-k would need its own sum.
    if (held < among && (among < count || !(draw.top_p < 1.0f))) return 0;
    gather(row, vocab, floor, held < count ? select_rank(row, vocab, floor, held, room) : ~0ull, room);
    uint32_t kept = held;
    // More than are wanted may be in the list.
    if (draw.top_p < 1.0f || room.count > held) sort(room.list, room.count);
    if (draw.top_p < 1.0f) {
        auto listed = [&](uint32_t i) { return heavy(rank_logit((uint32_t)(room.list[i] >> 32))); };
        uint64_t total = held == among
            ? sum_all(held, room, listed)
            : sum_all(vocab, room, [&](uint32_t i) { return row[i] >= floor ? heavy(row[i]) : 0; });
        double share = draw.top_p > 0.0f ? (double)draw.top_p : 0.0;
        uint32_t last = reach(held, (uint64_t)ceil((double)total * share), room, listed);
        if (last == held && held < among) return 0;
        kept = last < held ? last + 1 : held;
    }
    for (uint32_t i = threadIdx.x; i < kept; i += CUT_THREADS) {
        room.list[i] = room.list[i] << 32 | room.list[i] >> 32;
    }
    HONE_SYNC();
    sort(room.list, kept);
    return kept;
}

// Grid: draws. Block: CUT_THREADS.
HONE_KERNEL(draw_cut, Draws) {
    HONE_SHARED Room room;
    const Draw draw = args.draws[blockIdx.x];
    const float *row = args.logits + (uint64_t)draw.row * args.stride;
    const uint32_t t = threadIdx.x, vocab = args.vocab;
    const float most = rank_logit((uint32_t)(survey(row, vocab, room) >> 32));
    // Before the list, which lies where the chunks do.
    auto all = [&](uint32_t i) { return row[i]; };
    const float sum = room.broken ? 0.0f : sum_exp<DRAW_CHUNK>(vocab, all, 1.0f, most, (float *)room.chunks, room.lanes);
    const uint32_t kept = room.broken ? 0 : cut_row(row, vocab, draw, most, room);
    if (kept == 0) {
        if (t == 0) args.drawn[blockIdx.x].refused = 1;
        return;
    }
    auto logit = [&](uint32_t i) { return rank_logit((uint32_t)room.list[i]); };
    const float sum_inverse =
        sum_exp<DIGITS * COPIES / 2>(kept, logit, draw.inverse, most * draw.inverse, (float *)room.bins, room.lanes);
    auto heavy = [&](uint32_t i) { return weight(logit(i), most, draw.temperature); };
    uint64_t total = sum_all(kept, room, heavy);
    uint64_t wanted = (uint64_t)((double)total * draw.u) + 1;
    uint32_t at = reach(kept, wanted < total ? wanted : total, room, heavy);
    if (kept < vocab) {
        for (uint32_t i = t; i < kept; i += CUT_THREADS) {
            args.kept[(uint64_t)i * gridDim.x + blockIdx.x] = (uint32_t)(room.list[i] >> 32);
        }
    }
    if (t == 0) {
        uint32_t id = (uint32_t)(room.list[at] >> 32);
        args.drawn[blockIdx.x] = {id, 0, logit(at), most, sum, sum_inverse, kept < vocab ? kept : 0};
    }
}
