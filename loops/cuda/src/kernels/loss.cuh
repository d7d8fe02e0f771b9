// Rows of logits of tokens to learn from: what turns them into probabilities (../logprob.rs), and
// their gradient (../train/loss.rs). The loss between the two is the processor's, a few numbers a
// token. A row may count for some kept ids only, in their order.
#pragma once
#include "common.cuh"

struct LossRow {
    // 1 / temperature.
    float inverse;
    // First of the kept ids, and how many; 0 for the whole vocabulary.
    uint32_t kept;
    uint32_t count;
    // Whether an id is kept twice.
    uint32_t twice;
    // First of the ids whose logits are asked for, and how many.
    uint32_t asked;
    uint32_t asks;
    // What the processor made of it: the largest scaled logit, 1 / sum of e^(z - most), ln of it.
    float most;
    float share;
    float log_sum;
    // Sum of the slopes by log-prob, and the weight of the entropy.
    float slope;
    float bonus;
    // First of the slopes, and how many.
    uint32_t slopes;
    uint32_t pulls;
    uint32_t unused;
};

struct LossRows {
    float *logits;
    const LossRow *rows;
    const uint32_t *ids;
    // [rows][2]: most and sum, or the entropy.
    float *said;
    // One per id: logits asked for, or gradients of kept ones.
    float *picked;
    // Places in the row or among the kept, and what is added there.
    const uint32_t *places;
    const float *amounts;
    uint32_t stride;
    uint32_t vocab;
};

constexpr uint32_t LOSS_THREADS = 256, LOSS_CHUNK = 1024;

struct Kept {
    const float *row;
    const uint32_t *ids;
    uint32_t count;
    HONE_INLINE float operator[](uint32_t i) const { return row[ids ? ids[i] : i]; }
};

HONE_INLINE Kept kept_of(const LossRows &a, const LossRow &row) {
    const float *logits = a.logits + (uint64_t)blockIdx.x * a.stride;
    if (row.count == 0) return {logits, nullptr, a.vocab};
    return {logits, a.ids + row.kept, row.count};
}

HONE_INLINE float total_lanes(float lane, float *lanes) {
    HONE_SYNC();
    if (threadIdx.x < LANES) lanes[threadIdx.x] = lane;
    HONE_SYNC();
    return sum_lanes(lanes);
}

// The largest scaled logit, the sum of e^(z - most), and the logits asked for. Grid: rows. Block:
// LOSS_THREADS.
HONE_KERNEL(loss_shape, LossRows) {
    HONE_SHARED float chunk[LOSS_CHUNK];
    HONE_SHARED float lanes[LANES];
    HONE_SHARED float bests[LOSS_THREADS];
    const uint32_t t = threadIdx.x;
    const LossRow row = args.rows[blockIdx.x];
    const Kept kept = kept_of(args, row);
    float most = bits_float(0xff800000u);
    for (uint32_t i = t; i < kept.count; i += LOSS_THREADS) {
        float z = kept[i] * row.inverse;
        most = z > most ? z : most;
    }
    bests[t] = most;
    HONE_SYNC();
    for (uint32_t i = 0; i < LOSS_THREADS; i++) most = bests[i] > most ? bests[i] : most;
    float lane = 0.0f;
    for (uint32_t at = 0; at < kept.count; at += LOSS_CHUNK) {
        uint32_t count = kept.count - at < LOSS_CHUNK ? kept.count - at : LOSS_CHUNK;
        HONE_SYNC();
        for (uint32_t i = t; i < count; i += LOSS_THREADS) chunk[i] = exp_exact(kept[at + i] * row.inverse - most);
        HONE_SYNC();
        if (t < LANES) {
            for (uint32_t i = t; i < count; i += LANES) lane = lane + chunk[i];
        }
    }
    const float sum = total_lanes(lane, lanes);
    if (t == 0) {
        args.said[2 * blockIdx.x] = most;
        args.said[2 * blockIdx.x + 1] = sum;
    }
    for (uint32_t i = t; i < row.asks; i += LOSS_THREADS) {
        args.picked[row.asked + i] = kept.row[args.ids[row.asked + i]];
    }
}

// Puts the gradient of the logits in their place. Grid: rows. Block: LOSS_THREADS.
HONE_KERNEL(loss_back, LossRows) {
    HONE_SHARED float ps[LOSS_CHUNK];
    HONE_SHARED float lns[LOSS_CHUNK];
    HONE_SHARED float lanes[LANES];
    const uint32_t t = threadIdx.x;
    const LossRow row = args.rows[blockIdx.x];
    const Kept kept = kept_of(args, row);
    float *logits = args.logits + (uint64_t)blockIdx.x * args.stride;
    // Gradients of kept ids are made beside the row, which is 0 but for them.
    float *grads = kept.ids ? args.picked + row.kept : logits;
    float lane = 0.0f;
    for (uint32_t at = 0; at < kept.count; at += LOSS_CHUNK) {
        uint32_t count = kept.count - at < LOSS_CHUNK ? kept.count - at : LOSS_CHUNK;
        HONE_SYNC();
        for (uint32_t i = t; i < count; i += LOSS_THREADS) {
            float centred = kept[at + i] * row.inverse - row.most;
            ps[i] = exp_exact(centred) * row.share;
            lns[i] = centred - row.log_sum;
        }
        HONE_SYNC();
        if (t < LANES) {
            for (uint32_t i = t; i < count; i += LANES) lane = fused(ps[i], lns[i], lane);
        }
    }
    const float entropy = -total_lanes(lane, lanes);
    if (t == 0) args.said[2 * blockIdx.x] = entropy;
    for (uint32_t i = t; i < kept.count; i += LOSS_THREADS) {
        float centred = kept[i] * row.inverse - row.most;
        float p = exp_exact(centred) * row.share, ln_p = centred - row.log_sum;
        grads[i] = p * fused(ln_p + entropy, row.bonus, -row.slope) * row.inverse;
    }
    HONE_SYNC();
    if (t == 0) {
        for (uint32_t i = row.slopes; i < row.slopes + row.pulls; i++) {
            grads[args.places[i]] = grads[args.places[i]] + args.amounts[i];
        }
    }
    if (!kept.ids) return;
    for (uint32_t i = t; i < args.vocab; i += LOSS_THREADS) logits[i] = 0.0f;
    HONE_SYNC();
    if (row.twice) {
        for (uint32_t i = 0; t == 0 && i < kept.count; i++) logits[kept.ids[i]] = logits[kept.ids[i]] + grads[i];
    } else {
        for (uint32_t i = t; i < kept.count; i += LOSS_THREADS) logits[kept.ids[i]] = 0.0f + grads[i];
    }
}
