// SPDX-License-Identifier: Apache-2.0
// Candidates are 64-bit keys: the high word orders by logit descending, the low word is the id, so
// sorting keys ascending is the contract's order, ties included. Only the candidates that can
// survive top-k are sorted: a histogram over the top bits of the keys finds them in one pass.
//
// S1. Logits are finite (checked first), so every key is comparable and every probability defined.
// S2. Sums of probabilities are f64, added in candidate order.
#include "sample/sampler.h"
#include "freestanding/math.h"
#include "freestanding/mem.h"

#define BIN_SHIFT 52 // SAMPLER_BINS = 2^12 bins over the top 12 bits of a key
static_assert(SAMPLER_BINS == 1 << (64 - BIN_SHIFT), "one bin per value of the top bits");
#define TEMPERATURE_MIN 1e-6f // a division by less may overflow for ordinary logits
#define BIAS_MAX 1e6f
#define BANNED 0xff800000u // bits of -infinity: what a bias of -infinity leaves
#define RADIX_BITS 8
#define RADIX_SIZE (1 << RADIX_BITS)

struct sample_params sample_params_default(void) {
    return (struct sample_params){
        .repeat_penalty = 1.0f,
        .penalty_window = SAMPLE_PENALTY_WINDOW_DEFAULT,
        .temperature = SAMPLE_TEMPERATURE_DEFAULT,
        .top_k = SAMPLE_TOP_K_DEFAULT,
        .top_p = SAMPLE_TOP_P_DEFAULT,
        .min_p = SAMPLE_MIN_P_DEFAULT,
    };
}

static enum sov_status check_biases(const struct sample_params *p, struct sov_fault *fault) {
    if (p->n_biases > SAMPLE_BIASES_MAX) {
        return fault_set(fault, SOV_ERR_ARGUMENT, "logit_bias has %u entries, at most %u",
                         p->n_biases, SAMPLE_BIASES_MAX);
    }
    for (u32 i = 0; i < p->n_biases; i++) {
        f32 bias = p->biases[i].bias;
        if (f32_bits(bias) == BANNED || (bias >= -BIAS_MAX && bias <= BIAS_MAX)) continue;
        return fault_set(fault, SOV_ERR_ARGUMENT,
                         "logit_bias of token %u must be -inf or in [%g, %g], not %g",
                         p->biases[i].token, (f64)-BIAS_MAX, (f64)BIAS_MAX, (f64)bias);
    }
    return SOV_OK;
}

enum sov_status sample_params_check(const struct sample_params *p, struct sov_fault *fault) {
    const struct {
        const char *field;
        f32 value, min, max;
    } ranges[] = {
        {"temperature", p->temperature, 0.0f, 1e6f},
        {"top_p", p->top_p, 0.0f, 1.0f},
        {"min_p", p->min_p, 0.0f, 1.0f},
        {"repeat_penalty", p->repeat_penalty, 1e-3f, 1e3f},
        {"frequency_penalty", p->frequency_penalty, -2.0f, 2.0f},
        {"presence_penalty", p->presence_penalty, -2.0f, 2.0f},
    };
    for (u32 i = 0; i < COUNT_OF(ranges); i++) {
        if (ranges[i].value >= ranges[i].min && ranges[i].value <= ranges[i].max) continue;
        return fault_set(fault, SOV_ERR_ARGUMENT, "%s must be in [%g, %g], not %g", ranges[i].field,
                         (f64)ranges[i].min, (f64)ranges[i].max, (f64)ranges[i].value);
    }
    if (p->temperature != 0.0f && p->temperature < TEMPERATURE_MIN) {
        return fault_set(fault, SOV_ERR_ARGUMENT,
                         "temperature must be 0 (greedy) or at least %g, not %g",
                         (f64)TEMPERATURE_MIN, (f64)p->temperature);
    }
    if (p->penalty_window < -1) {
        return fault_set(fault, SOV_ERR_ARGUMENT, "penalty_window must be -1 or more, not %d",
                         p->penalty_window);
    }
    return check_biases(p, fault);
}

u64 sampler_memory_bytes(u32 n_vocab) {
    return (u64)n_vocab * (2 * sizeof(u64) + sizeof(f32) + sizeof(u32)) +
           SAMPLER_BINS * sizeof(u32) + 64;
}

enum sov_status sampler_create(struct sampler *sampler, u32 n_vocab, struct arena *arena,
                               struct sov_fault *fault) {
    assert(n_vocab > 0);
    *sampler = (struct sampler){.n_vocab = n_vocab};
    sampler->keys = arena_array(arena, u64, n_vocab);
    sampler->sorted = arena_array(arena, u64, n_vocab);
    sampler->adjusted = arena_array(arena, f32, n_vocab);
    sampler->counts = arena_array(arena, u32, n_vocab);
    sampler->histogram = arena_array(arena, u32, SAMPLER_BINS);
    if (sampler->keys == NULL || sampler->sorted == NULL || sampler->adjusted == NULL ||
        sampler->counts == NULL || sampler->histogram == NULL) {
        return arena_fault(arena, fault, "sampler", sampler_memory_bytes(n_vocab));
    }
    memset(sampler->counts, 0, n_vocab * sizeof(u32));
    return SOV_OK;
}

void philox_4x32_10(const u32 counter[4], const u32 key[2], u32 out[4]) {
    u32 c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    u32 k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        u64 product0 = (u64)0xD2511F53 * c0;
        u64 product1 = (u64)0xCD9E8D57 * c2;
        u32 next0 = (u32)(product1 >> 32) ^ c1 ^ k0;
        u32 next2 = (u32)(product0 >> 32) ^ c3 ^ k1;
        c1 = (u32)product1;
        c3 = (u32)product0;
        c0 = next0;
        c2 = next2;
        k0 += 0x9E3779B9; // the golden ratio
        k1 += 0xBB67AE85; // sqrt(3) - 1
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

f64 sample_uniform(u64 seed, struct sample_draw draw) {
    u32 counter[4] = {(u32)draw.position, (u32)(draw.position >> 32), (u32)draw.index,
                      (u32)(draw.index >> 32)};
    u32 key[2] = {(u32)seed, (u32)(seed >> 32)};
    u32 words[4];
    philox_4x32_10(counter, key, words);
    u64 bits = (u64)words[1] << 32 | words[0];
    return (f64)(bits >> 11) * 0x1p-53;
}

// Larger logits give smaller order words. -0 counts as +0: they are equal logits.
static u32 order_of(f32 logit) {
    u32 bits = f32_bits(logit + 0.0f);
    u32 ascending = bits >> 31 ? ~bits : bits | 0x80000000u;
    return ~ascending;
}

static f32 logit_of(u64 key) {
    u32 ascending = ~(u32)(key >> 32);
    return f32_from_bits(ascending >> 31 ? ascending & 0x7fffffffu : ~ascending);
}

// Sorts keys[n] ascending by their high word. Stable, and the ids start ascending, so equal logits
// stay in id order.
static void sort_keys(struct sampler *sampler, u32 n) {
    u64 *from = sampler->keys, *to = sampler->sorted;
    for (u32 shift = 32; shift < 64; shift += RADIX_BITS) {
        u32 counts[RADIX_SIZE] = {0};
        for (u32 i = 0; i < n; i++) counts[from[i] >> shift & (RADIX_SIZE - 1)]++;
        u32 start = 0;
        for (u32 b = 0; b < RADIX_SIZE; b++) {
            u32 count = counts[b];
            counts[b] = start;
            start += count;
        }
        for (u32 i = 0; i < n; i++) to[counts[from[i] >> shift & (RADIX_SIZE - 1)]++] = from[i];
        u64 *swapped = from;
        from = to;
        to = swapped;
    }
    assert(from == sampler->keys); // four passes end where they began
}

// Sorts the best `limit` of keys[n] (all of them for limit >= n) to keys[0..]; returns how many.
static u32 best_candidates(struct sampler *sampler, u32 n, u32 limit) {
    if (limit < n) {
        memset(sampler->histogram, 0, SAMPLER_BINS * sizeof(u32));
        for (u32 i = 0; i < n; i++) sampler->histogram[sampler->keys[i] >> BIN_SHIFT]++;
        u32 covered = 0, last_bin = 0;
        while ((covered += sampler->histogram[last_bin]) < limit) last_bin++;
        u32 kept = 0;
        for (u32 i = 0; i < n; i++) {
            u64 key = sampler->keys[i];
            if (key >> BIN_SHIFT <= last_bin) sampler->keys[kept++] = key;
        }
        assert(kept == covered);
        n = kept;
    }
    sort_keys(sampler, n);
    return MIN(n, limit);
}

// The draw over sorted candidates. Probabilities are recomputed instead of stored.
static u32 draw_from(const struct sampler *sampler, u32 n, const struct sample_params *params,
                     struct sample_draw draw) {
    const u64 *keys = sampler->keys;
    f32 max = logit_of(keys[0]);
    f64 total = 0.0;
    for (u32 i = 0; i < n; i++) total += (f64)math_exp_f32(logit_of(keys[i]) - max);
    if (params->top_p < 1.0f) { // the shortest head whose sum reaches top_p of the total
        f64 wanted = (f64)params->top_p * total;
        f64 sum = 0.0;
        u32 kept = 0;
        do {
            sum += (f64)math_exp_f32(logit_of(keys[kept]) - max);
            kept++;
        } while (kept < n && sum < wanted);
        n = kept;
        total = sum;
    }
    if (params->min_p > 0.0f) { // p >= min_p * p of the best, which is 1 before normalisation
        f64 sum = 0.0;
        u32 kept = 0;
        while (kept < n) {
            f32 p = math_exp_f32(logit_of(keys[kept]) - max);
            if (kept > 0 && p < params->min_p) break;
            sum += (f64)p;
            kept++;
        }
        n = kept;
        total = sum;
    }
    f64 threshold = sample_uniform(params->seed, draw) * total;
    f64 sum = 0.0;
    for (u32 i = 0; i < n; i++) {
        sum += (f64)math_exp_f32(logit_of(keys[i]) - max);
        if (sum > threshold) return (u32)keys[i];
    }
    return (u32)keys[n - 1]; // u < 1 and sum == total: not reached unless u * total rounds up
}

static bool is_finite(f32 x) { return (f32_bits(x) & 0x7fffffff) < 0x7f800000; }

// Eight words at once: what a draw does for every token of the vocabulary is a serial part of a
// step.
typedef i32 words_8 __attribute__((vector_size(32)));
#define WORDS 8u
static words_8 load_words(const f32 *p) {
    words_8 words;
    __builtin_memcpy(&words, p, sizeof words);
    return words;
}

static enum sov_status check_finite(const f32 *logits, u32 n, struct sov_fault *fault) {
    words_8 seen = {0};
    u32 checked = n / WORDS * WORDS;
    for (u32 i = 0; i < checked; i += WORDS) {
        seen |= (load_words(logits + i) & 0x7fffffff) >= 0x7f800000;
    }
    for (u32 lane = 0; lane < WORDS; lane++) {
        if (seen[lane] != 0) checked = 0; // look for it
    }
    for (u32 i = checked; i < n; i++) {
        if (is_finite(logits[i])) continue;
        return fault_set(fault, SOV_ERR_NON_FINITE, "logit of token %u is not finite", i);
    }
    return SOV_OK;
}

// The part of the history that penalties look at.
static struct sample_draw penalty_window(const struct sample_params *p, struct sample_draw draw) {
    bool any = p->repeat_penalty != 1.0f || p->frequency_penalty != 0.0f ||
               p->presence_penalty != 0.0f;
    u32 n = any ? draw.n_history : 0;
    if (p->penalty_window >= 0) n = MIN(n, (u32)p->penalty_window);
    if (n > 0) draw.history += draw.n_history - n;
    draw.n_history = n;
    return draw;
}

// Penalties, then bias, in place. Every product, quotient and difference is one f32 rounding.
static enum sov_status adjust(struct sampler *sampler, const struct sample_params *p,
                              struct sample_draw draw, struct sov_fault *fault) {
    f32 *logits = sampler->adjusted;
    struct sample_draw window = penalty_window(p, draw);
    for (u32 i = 0; i < window.n_history; i++) {
        assert(window.history[i] < sampler->n_vocab);
        sampler->counts[window.history[i]]++;
    }
    for (u32 i = 0; i < window.n_history; i++) {
        u32 token = window.history[i];
        u32 count = sampler->counts[token];
        if (count == 0) continue; // done at an earlier place of the window
        sampler->counts[token] = 0;
        f32 x = logits[token];
        x = x <= 0.0f ? x * p->repeat_penalty : x / p->repeat_penalty;
        x = x - (f32)count * p->frequency_penalty;
        logits[token] = x - p->presence_penalty;
    }
    for (u32 i = 0; i < p->n_biases; i++) {
        if (p->biases[i].token >= sampler->n_vocab) {
            return fault_set(fault, SOV_ERR_ARGUMENT,
                             "logit_bias names token %u, the vocabulary has %u", p->biases[i].token,
                             sampler->n_vocab);
        }
        logits[p->biases[i].token] += p->biases[i].bias;
    }
    return SOV_OK;
}

// Keys of all tokens that are not banned, ids ascending, after the division by the temperature.
static enum sov_status make_keys(struct sampler *sampler, f32 temperature, u32 *n_keys,
                                 struct sov_fault *fault) {
    u32 n = 0;
    for (u32 i = 0; i < sampler->n_vocab; i++) {
        f32 logit = sampler->adjusted[i];
        if (f32_bits(logit) == BANNED) continue;
        if (temperature != 0.0f) logit = logit / temperature;
        if (!is_finite(logit)) {
            return fault_set(
                fault, SOV_ERR_NON_FINITE,
                "logit of token %u is not finite after penalties, bias and temperature "
                "(%g before a temperature of %g)",
                i, (f64)sampler->adjusted[i], (f64)temperature);
        }
        sampler->keys[n++] = (u64)order_of(logit) << 32 | i;
    }
    *n_keys = n;
    if (n > 0) return SOV_OK;
    return fault_set(fault, SOV_ERR_NON_FINITE, "logit_bias bans every token");
}

// Whether penalties or biases may change a logit.
static bool adjusts(const struct sample_params *params, struct sample_draw draw) {
    return penalty_window(params, draw).n_history > 0 || params->n_biases > 0;
}

// The first candidate of finite, unchanged logits: the largest, and of equal ones (+0 and -0 are)
// the lowest id.
static u32 largest_logit(const f32 *logits, u32 n) {
    // As integers in the order of the numbers (-0 below +0, so their maximum compares equal to
    // either); then the first that is as large.
    words_8 most = {0};
    most = most + (i32)-0x7fffffff - 1;
    f32 largest = logits[0];
    u32 n_whole = n / WORDS * WORDS;
    for (u32 i = 0; i < n_whole; i += WORDS) {
        words_8 key = load_words(logits + i);
        key ^= (key < 0) & 0x7fffffff;
        words_8 above = key > most;
        most = (key & above) | (most & ~above);
    }
    for (u32 lane = 0; lane < WORDS && n_whole > 0; lane++) {
        i32 bits = most[lane] ^ (most[lane] < 0 ? 0x7fffffff : 0);
        largest = MAX(largest, f32_from_bits((u32)bits));
    }
    for (u32 i = n_whole; i < n; i++) largest = MAX(largest, logits[i]);
    u32 best = 0;
    while (logits[best] != largest) best++;
    return best;
}

// The sampler over sampler->adjusted, which holds finite logits.
static enum sov_status sample_adjusted(struct sampler *sampler, const struct sample_params *params,
                                       struct sample_draw draw, u32 *token,
                                       struct sov_fault *fault) {
    u32 n = 0;
    enum sov_status status = adjust(sampler, params, draw, fault);
    if (status == SOV_OK) status = make_keys(sampler, params->temperature, &n, fault);
    if (status != SOV_OK) return status;
    if (params->temperature == 0.0f) {
        u64 best = sampler->keys[0];
        for (u32 i = 1; i < n; i++) best = MIN(best, sampler->keys[i]);
        *token = (u32)best;
        return SOV_OK;
    }
    u32 limit = params->top_k <= 0 ? n : MIN((u32)params->top_k, n);
    u32 n_candidates = best_candidates(sampler, n, limit);
    *token = draw_from(sampler, n_candidates, params, draw);
    assert(*token < sampler->n_vocab);
    return SOV_OK;
}

enum sov_status sov_sample_token(struct sampler *sampler, const f32 *logits,
                                 const struct sample_params *params, struct sample_draw draw,
                                 u32 *token, struct sov_fault *fault) {
    enum sov_status status = sample_params_check(params, fault);
    if (status == SOV_OK) status = check_finite(logits, sampler->n_vocab, fault);
    if (status != SOV_OK) return status;
    if (params->temperature == 0.0f && !adjusts(params, draw)) { // the usual greedy draw
        *token = largest_logit(logits, sampler->n_vocab);
        return SOV_OK;
    }
    memcpy(sampler->adjusted, logits, sampler->n_vocab * sizeof(f32));
    return sample_adjusted(sampler, params, draw, token, fault);
}

enum sov_status sov_sample_token_f16(struct sampler *sampler, const f16 *logits,
                                     const struct sample_params *params, struct sample_draw draw,
                                     u32 *token, struct sov_fault *fault) {
    enum sov_status status = sample_params_check(params, fault);
    for (u32 i = 0; i < sampler->n_vocab; i++) sampler->adjusted[i] = f16_to_f32(logits[i]);
    if (status == SOV_OK) status = check_finite(sampler->adjusted, sampler->n_vocab, fault);
    if (status != SOV_OK) return status;
    return sample_adjusted(sampler, params, draw, token, fault);
}

u32 sample_logprobs(struct sampler *sampler, const f32 *logits, u32 token, u32 n,
                    struct token_logprob *of_token, struct token_logprob *top) {
    u32 n_vocab = sampler->n_vocab;
    assert(token < n_vocab && n <= SAMPLE_LOGPROBS_MAX);
    f32 max = logits[0];
    for (u32 i = 0; i < n_vocab; i++) {
        max = MAX(max, logits[i]);
        sampler->keys[i] = (u64)order_of(logits[i]) << 32 | i;
    }
    f64 sum = 0.0;
    for (u32 i = 0; i < n_vocab; i++) sum += math_exp((f64)logits[i] - (f64)max);
    f64 log_total = (f64)max + math_log(sum);
    *of_token = (struct token_logprob){token, (f64)logits[token] - log_total};
    n = n > 0 ? best_candidates(sampler, n_vocab, n) : 0;
    for (u32 i = 0; i < n; i++) {
        u32 id = (u32)sampler->keys[i];
        top[i] = (struct token_logprob){id, (f64)logits[id] - log_total};
    }
    return n;
}
