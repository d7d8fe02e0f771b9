// Draws a token from a row of logits, where nothing but the temperature shapes the distribution:
// what ../sample.rs and ../logprob.rs do, without the row leaving the device.
#pragma once
#include "common.cuh"

struct Draw {
    // A number in [0, 1) that chooses the token.
    double u;
    // Row of the logits.
    uint32_t row;
    // 1 where the most likely token is taken, 0 else.
    uint32_t greedy;
    float temperature;
    // 1 / temperature.
    float inverse;
    // What cut.cuh cuts by: 1, 0 and -inf cut nothing. The floor is what a logit may be below the
    // largest, a negative number.
    float top_p;
    uint32_t top_k;
    float floor;
    uint32_t unused;
};

struct Drawn {
    uint32_t token;
    // 1 where the processor has to draw, as the row holds NaN or numbers beyond 1e30, or more is
    // kept than there is room for; nothing else is set then.
    uint32_t refused;
    float logit;
    float most;
    // Sums of e^(z - max z), z the logits, and the logits that were kept times `inverse`.
    float sum;
    float sum_inverse;
    // How many were kept, 0 for all.
    uint32_t kept;
};

struct Draws {
    const float *logits;
    const Draw *draws;
    Drawn *drawn;
    // Ids kept, ascending: [CUT_ROOM][draws].
    uint32_t *kept;
    uint32_t stride;
    uint32_t vocab;
};

constexpr uint32_t DRAW_THREADS = 512;
// Ranges of tokens of which a draw chooses one first.
constexpr uint32_t DRAW_RANGES = 64;
// Exponentials that are added while the next are computed: eight of every thread.
constexpr uint32_t DRAW_CHUNK = (DRAW_THREADS - 32) * 8;

// Sum of e^(z - shift), z = logit(i) * inverse for i below `count`, in sixteen lanes. The first warp adds
// a chunk while the others compute the next; two of them fit into `chunks`.
template <uint32_t CHUNK, typename Logit>
HONE_INLINE float sum_exp(uint32_t count, Logit logit, float inverse, float shift, float *chunks, float *lanes) {
    const uint32_t t = threadIdx.x, all = (count + CHUNK - 1) / CHUNK;
    float lane = 0.0f;
    HONE_SYNC();
    for (uint32_t c = 0; c <= all; c++) {
        if (t >= 32 && c < all) {
            const uint32_t at = c * CHUNK;
            float *to = chunks + c % 2 * CHUNK;
            auto put = [&](uint32_t i, float z) { to[i] = exp_exact(z * inverse - shift); };
            auto own = [&](uint32_t i) { return logit(at + i); };
            ahead<8>(t - 32, DRAW_THREADS - 32, count - at < CHUNK ? count - at : CHUNK, own, put);
        }
        if (t < LANES && c > 0) {
            const uint32_t at = (c - 1) * CHUNK;
            const float *from = chunks + (c - 1) % 2 * CHUNK;
            auto add = [&](uint32_t, float e) { lane = lane + e; };
            auto own = [&](uint32_t i) { return from[i]; };
            ahead<24>(t, LANES, count - at < CHUNK ? count - at : CHUNK, own, add);
        }
        HONE_SYNC();
    }
    if (t < LANES) lanes[t] = lane;
    HONE_SYNC();
    return sum_lanes(lanes);
}

// What a token weighs in the draw; one 50 nats below the best cannot be drawn.
HONE_INLINE double mass(float logit, float most, float temperature) {
    float below = (logit - most) / temperature;
    return below > -50.0f ? (double)exp_exact(below) : 0.0;
}

// The first i at which the sum of masses[0..=i] is more than `wanted`, which becomes what is left of it
// there; the last that has one where rounding leaves none.
HONE_INLINE uint32_t drawn_at(const double *masses, uint32_t count, double &wanted) {
    uint32_t at = 0;
    double before = 0.0, left = wanted;
    for (uint32_t i = 0; i < count; i++) {
        if (masses[i] > 0.0) {
            at = i;
            left = wanted - before;
        }
        before = before + masses[i];
        if (before > wanted) break;
    }
    wanted = left;
    return at;
}

// Grid: draws. Block: DRAW_THREADS. The vocabulary has at most 2^20 tokens.
HONE_KERNEL(draw, Draws) {
    HONE_SHARED Bytes16 room[2 * DRAW_CHUNK / 4];
    HONE_SHARED double masses[DRAW_THREADS];
    HONE_SHARED float lanes[LANES];
    HONE_SHARED float bests[DRAW_THREADS];
    HONE_SHARED uint32_t ids[DRAW_THREADS];
    HONE_SHARED uint32_t broken;
    HONE_SHARED uint32_t chosen;
    HONE_SHARED double left;
    const Draw draw = args.draws[blockIdx.x];
    const float *row = args.logits + (uint64_t)draw.row * args.stride;
    const uint32_t t = threadIdx.x, vocab = args.vocab;
    if (t == 0) broken = 0;
    HONE_SYNC();
    float best = row[0];
    uint32_t id = 0;
    auto better = [&](float v, uint32_t i) {
        if (v > best || (v == best && i < id)) {
            best = v;
            id = i;
        }
    };
    ahead<16>(t, DRAW_THREADS, vocab, [&](uint32_t i) { return row[i]; }, [&](uint32_t i, float v) {
        if (!(v <= 1e30f && v >= -1e30f)) broken = 1;
        better(v, i);
    });
    bests[t] = best;
    ids[t] = id;
    HONE_SYNC();
    if (broken) {
        if (t == 0) args.drawn[blockIdx.x].refused = 1;
        return;
    }
    if (t < 32) {
        for (uint32_t i = t + 32; i < DRAW_THREADS; i += 32) better(bests[i], ids[i]);
        bests[t] = best;
        ids[t] = id;
    }
    HONE_SYNC();
    for (uint32_t i = 0; i < 32; i++) better(bests[i], ids[i]);
    auto logit = [&](uint32_t i) { return row[i]; };
    float sum = sum_exp<DRAW_CHUNK>(vocab, logit, 1.0f, best, (float *)room, lanes);
    float sum_inverse = sum;
    if (!draw.greedy) {
        if (draw.inverse != 1.0f) {
            sum_inverse = sum_exp<DRAW_CHUNK>(vocab, logit, draw.inverse, best * draw.inverse, (float *)room, lanes);
        }
        // One of the ranges is chosen, then a part of it, then one of its tokens.
        auto heavy = [&](uint32_t i) { return mass(row[i], best, draw.temperature); };
        double *parts = (double *)room;
        const uint32_t range = (vocab + DRAW_RANGES - 1) / DRAW_RANGES;
        for (uint32_t r = t / 32; r < DRAW_RANGES; r += DRAW_THREADS / 32) {
            double total = 0.0;
            const uint32_t end = least((r + 1) * range, vocab);
            auto add = [&](uint32_t, float v) { total = total + mass(v, best, draw.temperature); };
            ahead<8>(r * range + t % 32, 32, end, logit, add);
            parts[r * 32 + t % 32] = total;
        }
        HONE_SYNC();
        if (t < DRAW_RANGES) {
            double total = 0.0;
            for (uint32_t i = 0; i < 32; i++) total = total + parts[t * 32 + i];
            masses[t] = total;
        }
        HONE_SYNC();
        if (t == 0) {
            double total = 0.0;
            for (uint32_t i = 0; i < DRAW_RANGES; i++) total = total + masses[i];
            left = draw.u * total;
            chosen = drawn_at(masses, DRAW_RANGES, left) * range;
        }
        HONE_SYNC();
        const uint32_t first = chosen, last = least(first + range, vocab);
        const uint32_t part = (range + DRAW_THREADS - 1) / DRAW_THREADS;
        double total = 0.0;
        for (uint32_t i = first + t * part; i < first + (t + 1) * part && i < last; i++) total = total + heavy(i);
        HONE_SYNC();
        masses[t] = total;
        HONE_SYNC();
        if (t == 0) chosen = first + drawn_at(masses, DRAW_THREADS, left) * part;
        HONE_SYNC();
        const uint32_t begin = chosen, count = begin < last ? least(last - begin, part) : 0;
        for (uint32_t i = t; i < count; i += DRAW_THREADS) parts[i] = heavy(begin + i);
        HONE_SYNC();
        if (t == 0) chosen = begin + drawn_at(parts, count, left);
        HONE_SYNC();
        id = chosen;
    }
    if (t == 0) args.drawn[blockIdx.x] = {id, 0, row[id], best, sum, sum_inverse, 0};
}
