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

constexpr uint32_t DRAW_THREADS = 256, DRAW_CHUNK = 1024, DRAW_CHUNKS = 1024;

// Sum of e^(z - shift), z = logit(i) * inverse for i below `count`, in sixteen lanes.
template <typename Logit>
HONE_INLINE float sum_exp(uint32_t count, Logit logit, float inverse, float shift, float *chunk, float *lanes) {
    uint32_t t = threadIdx.x;
    float lane = 0.0f;
    for (uint32_t at = 0; at < count; at += DRAW_CHUNK) {
        uint32_t width = count - at < DRAW_CHUNK ? count - at : DRAW_CHUNK;
        HONE_SYNC();
        for (uint32_t i = t; i < width; i += blockDim.x) chunk[i] = exp_exact(logit(at + i) * inverse - shift);
        HONE_SYNC();
        if (t < LANES) {
            for (uint32_t i = t; i < width; i += LANES) lane = lane + chunk[i];
        }
    }
    HONE_SYNC();
    if (t < LANES) lanes[t] = lane;
    HONE_SYNC();
    return sum_lanes(lanes);
}

// What a token weighs in the draw; one 50 nats below the best cannot be drawn.
HONE_INLINE double mass(float logit, float most, float temperature) {
    float below = (logit - most) / temperature;
    return below > -50.0f ? exp((double)below) : 0.0;
}

// Grid: draws. Block: DRAW_THREADS. The vocabulary has at most DRAW_CHUNK * DRAW_CHUNKS tokens.
HONE_KERNEL(draw, Draws) {
    HONE_SHARED float chunk[DRAW_CHUNK];
    HONE_SHARED double masses[DRAW_CHUNKS];
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
    for (uint32_t i = t; i < vocab; i += DRAW_THREADS) {
        float v = row[i];
        if (!(v <= 1e30f && v >= -1e30f)) broken = 1;
        if (v > best || (v == best && i < id)) {
            best = v;
            id = i;
        }
    }
    bests[t] = best;
    ids[t] = id;
    HONE_SYNC();
    if (broken) {
        if (t == 0) args.drawn[blockIdx.x].refused = 1;
        return;
    }
    for (uint32_t i = 0; i < DRAW_THREADS; i++) {
        if (bests[i] > best || (bests[i] == best && ids[i] < id)) {
            best = bests[i];
            id = ids[i];
        }
    }
    auto logit = [&](uint32_t i) { return row[i]; };
    float sum = sum_exp(vocab, logit, 1.0f, best, chunk, lanes);
    float sum_inverse = sum;
    if (!draw.greedy) {
        if (draw.inverse != 1.0f) {
            sum_inverse = sum_exp(vocab, logit, draw.inverse, best * draw.inverse, chunk, lanes);
        }
        uint32_t chunks = (vocab + DRAW_CHUNK - 1) / DRAW_CHUNK;
        for (uint32_t c = t; c < chunks; c += DRAW_THREADS) {
            double total = 0.0;
            for (uint32_t i = c * DRAW_CHUNK; i < vocab && i < (c + 1) * DRAW_CHUNK; i++) {
                total = total + mass(row[i], best, draw.temperature);
            }
            masses[c] = total;
        }
        HONE_SYNC();
        if (t == 0) {
            double total = 0.0;
            for (uint32_t c = 0; c < chunks; c++) total = total + masses[c];
            double before = 0.0, wanted = draw.u * total;
            uint32_t c = 0;
            while (c + 1 < chunks && before + masses[c] <= wanted) before = before + masses[c++];
            chosen = c;
            left = wanted - before;
            // The first token whose share reaches beyond what is left; the last that has a share
            // where rounding leaves none.
            double passed = 0.0;
            for (uint32_t i = c * DRAW_CHUNK; i < vocab && i < (c + 1) * DRAW_CHUNK; i++) {
                double share = mass(row[i], best, draw.temperature);
                if (share > 0.0) chosen = i;
                passed = passed + share;
                if (passed > left) break;
            }
        }
        HONE_SYNC();
        id = chosen;
    }
    if (t == 0) args.drawn[blockIdx.x] = {id, 0, row[id], best, sum, sum_inverse, 0};
}
