// SPDX-License-Identifier: Apache-2.0
// The sampler: known answers of Philox, order of candidates, every cut, edge values, determinism,
// and the distribution of draws against probabilities computed another way.
#include "freestanding/math.h"
#include "freestanding/mem.h"
#include "sample/sampler.h"
#include "test.h"

#define VOCAB_MAX 3000
#define SEED 99u

static struct sampler sampler;
static u8 memory[VOCAB_MAX * 28 + SAMPLER_BINS * 4 + 4096];

static void use_vocab(u32 n) {
    struct arena arena = arena_over(memory, sizeof memory);
    assert(sampler_memory_bytes(n) <= sizeof memory);
    enum sov_status status = sampler_create(&sampler, n, &arena, NULL);
    assert(status == SOV_OK);
}

static u32 draw(const f32 *logits, const struct sample_params *params, u64 position) {
    u32 token = 0xffffffff;
    struct sov_fault fault = {0};
    enum sov_status status = sov_sample_token(
        &sampler, logits, params, (struct sample_draw){.position = position}, &token, &fault);
    CHECK_MSG(status == SOV_OK, "%s", fault.message);
    return token;
}

// The known-answer vectors of the Random123 distribution (kat_vectors, philox4x32 10).
static void philox_known_answers(void) {
    static const struct {
        u32 counter[4], key[2], expected[4];
    } vectors[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (u32 i = 0; i < COUNT_OF(vectors); i++) {
        u32 out[4];
        philox_4x32_10(vectors[i].counter, vectors[i].key, out);
        CHECK_MSG(memcmp(out, vectors[i].expected, sizeof out) == 0, "vector %u: %08x %08x", i,
                  out[0], out[1]);
    }
}

static void uniform_uses_position_index_and_seed(void) {
    f64 a = sample_uniform(1, (struct sample_draw){.position = 2, .index = 0});
    CHECK(a >= 0.0 && a < 1.0);
    CHECK(a == sample_uniform(1, (struct sample_draw){.position = 2, .index = 0}));
    CHECK(a != sample_uniform(2, (struct sample_draw){.position = 2, .index = 0}));
    CHECK(a != sample_uniform(1, (struct sample_draw){.position = 3, .index = 0}));
    CHECK(a != sample_uniform(1, (struct sample_draw){.position = 2, .index = 1}));
    CHECK(a != sample_uniform(1ull << 32, (struct sample_draw){.position = 2, .index = 0}));
    f64 sum = 0;
    for (u64 i = 0; i < 100000; i++)
        sum += sample_uniform(5, (struct sample_draw){.position = i, .index = 0});
    CHECK_MSG(sum > 49500 && sum < 50500, "mean of uniforms %g", sum / 100000);
}

static void greedy_takes_the_lowest_of_equals(void) {
    f32 logits[] = {-0.0f, 1.0f, 3.0f, 3.0f, 2.0f};
    use_vocab(5);
    struct sample_params params = {
        .repeat_penalty = 1, .temperature = 0, .top_k = 1, .top_p = 0.5f, .seed = 1};
    CHECK(draw(logits, &params, 0) == 2);
    params.seed = 2; // plays no part
    CHECK(draw(logits, &params, 9) == 2);
    f32 zeros[5] = {0.0f, -0.0f, 0.0f, 0.0f, 0.0f};
    CHECK(draw(zeros, &params, 0) == 0);
    params.temperature = 1;
    params.top_k = 1; // with equal logits, +0 and -0 alike, the lowest id is the only candidate
    f32 signed_zeros[5] = {-0.0f, 0.0f, 0.0f, -0.0f, 0.0f};
    for (u64 i = 0; i < 50; i++) CHECK(draw(signed_zeros, &params, i) == 0);
}

static void refused(void) {
    f32 logits[] = {1.0f, 2.0f};
    use_vocab(2);
    const f32 nan = f32_from_bits(0x7fc00000), inf = f32_from_bits(0x7f800000);
    static const struct logit_bias too_much = {0, 1e7f};
    struct sample_params bad_params[13];
    static const char *const fields[COUNT_OF(bad_params)] = {"temperature",
                                                             "temperature",
                                                             "temperature",
                                                             "temperature",
                                                             "top_p",
                                                             "top_p",
                                                             "top_p",
                                                             "min_p",
                                                             "min_p",
                                                             "repeat_penalty",
                                                             "frequency_penalty",
                                                             "presence_penalty",
                                                             "logit_bias"};
    for (u32 i = 0; i < COUNT_OF(bad_params); i++) bad_params[i] = sample_params_default();
    bad_params[0].temperature = -1;
    bad_params[1].temperature = nan;
    bad_params[2].temperature = inf;
    bad_params[3].temperature = 1e-8f;
    bad_params[4].top_p = 1.5f;
    bad_params[5].top_p = -0.1f;
    bad_params[6].top_p = nan;
    bad_params[7].min_p = 2;
    bad_params[8].min_p = nan;
    bad_params[9].repeat_penalty = 0;
    bad_params[10].frequency_penalty = 2.5f;
    bad_params[11].presence_penalty = nan;
    bad_params[12].biases = &too_much;
    bad_params[12].n_biases = 1;
    for (u32 i = 0; i < COUNT_OF(bad_params); i++) {
        struct sov_fault fault = {0};
        u32 token = 77;
        enum sov_status status = sov_sample_token(&sampler, logits, &bad_params[i],
                                                  (struct sample_draw){0}, &token, &fault);
        CHECK_MSG(status == SOV_ERR_ARGUMENT && token == 77, "case %u: %s", i, fault.message);
        CHECK(str_starts_with(str_from_z(fault.message), str_from_z(fields[i])));
    }
    const f32 bad[] = {nan, inf, -inf};
    for (u32 i = 0; i < COUNT_OF(bad); i++) {
        for (int greedy = 0; greedy < 2; greedy++) {
            f32 with_bad[] = {1.0f, bad[i]};
            struct sample_params params = {
                .repeat_penalty = 1, .temperature = greedy ? 0.0f : 1.0f, .top_p = 1};
            struct sov_fault fault = {0};
            u32 token = 77;
            CHECK(sov_sample_token(&sampler, with_bad, &params, (struct sample_draw){0}, &token,
                                   &fault) == SOV_ERR_NON_FINITE);
            CHECK(token == 77);
        }
    }
    f32 large[] = {1.0f, 3e38f};
    struct sample_params params = {.repeat_penalty = 1, .temperature = 1e-5f, .top_p = 1};
    u32 token = 77;
    CHECK(sov_sample_token(&sampler, large, &params, (struct sample_draw){0}, &token, NULL) ==
          SOV_ERR_NON_FINITE);
}

static void fill_random(f32 *logits, u32 n, struct test_random *random, f64 spread) {
    for (u32 i = 0; i < n; i++) logits[i] = (f32)((test_random_unit(random) - 0.5) * spread);
}

// Top-k of every size that means "all" draws the same tokens, and many different ones.
static void top_k_without_limit(void) {
    f32 logits[300];
    struct test_random random = {SEED};
    fill_random(logits, 300, &random, 2);
    use_vocab(300);
    const i32 all[] = {0, -1, 300, 1000000000, -2147483647 - 1, 2147483647};
    bool seen[300] = {false};
    u32 distinct = 0;
    for (u64 position = 0; position < 2000; position++) {
        u32 first = 0;
        for (u32 i = 0; i < COUNT_OF(all); i++) {
            struct sample_params params = {
                .repeat_penalty = 1, .temperature = 1, .top_k = all[i], .top_p = 1, .seed = 7};
            u32 token = draw(logits, &params, position);
            if (i == 0) first = token;
            CHECK_MSG(token == first, "top_k %d draws %u, not %u", all[i], token, first);
        }
        distinct += !seen[first];
        seen[first] = true;
    }
    CHECK_MSG(distinct >= 100, "%u distinct tokens", distinct);
}

// The definition, written plainly: insertion sort, then the cuts, then the draw.
static u32 plain_draw(const f32 *logits, u32 n, const struct sample_params *p, u64 position) {
    static u32 ids[VOCAB_MAX];
    static f32 scaled[VOCAB_MAX], probability[VOCAB_MAX];
    for (u32 i = 0; i < n; i++) {
        scaled[i] = logits[i] / p->temperature;
        u32 j = i;
        while (j > 0 && scaled[ids[j - 1]] < scaled[i]) ids[j] = ids[j - 1], j--;
        ids[j] = i;
    }
    if (p->top_k > 0 && (u32)p->top_k < n) n = (u32)p->top_k;
    f64 total = 0;
    for (u32 i = 0; i < n; i++) {
        probability[i] = math_exp_f32(scaled[ids[i]] - scaled[ids[0]]);
        total += (f64)probability[i];
    }
    u32 kept = n;
    f64 sum = 0;
    if (p->top_p < 1.0f) {
        for (kept = 0; kept < n;) {
            sum += (f64)probability[kept++];
            if (sum >= (f64)p->top_p * total) break;
        }
    }
    while (kept > 1 && probability[kept - 1] < p->min_p) kept--;
    total = sum = 0;
    for (u32 i = 0; i < kept; i++) total += (f64)probability[i];
    f64 threshold =
        sample_uniform(p->seed, (struct sample_draw){.position = position, .index = 0}) * total;
    for (u32 i = 0; i < kept; i++) {
        sum += (f64)probability[i];
        if (sum > threshold) return ids[i];
    }
    return ids[kept - 1];
}

static void equals_the_plain_definition(void) {
    static f32 logits[VOCAB_MAX];
    struct test_random random = {SEED + 1};
    static const u32 sizes[] = {1, 2, 3, 31, 256, 257, 1000, VOCAB_MAX};
    static const f32 temperatures[] = {0.1f, 0.8f, 1.0f, 2.5f};
    static const f32 top_ps[] = {0.0f, 0.1f, 0.5f, 0.95f, 1.0f};
    static const f32 min_ps[] = {0.0f, 0.05f, 0.5f, 1.0f};
    for (u32 round = 0; round < 400; round++) {
        u32 n = sizes[test_random_below(&random, COUNT_OF(sizes))];
        use_vocab(n);
        fill_random(logits, n, &random, round % 3 == 0 ? 4 : 30);
        if (round % 5 == 0) { // ties
            for (u32 i = 0; i < n; i++) logits[i] = (f32)(i32)logits[i];
        }
        struct sample_params params = {
            .repeat_penalty = 1,
            .temperature = temperatures[test_random_below(&random, COUNT_OF(temperatures))],
            .top_k = (i32)test_random_below(&random, 2 * n + 2) - 1,
            .top_p = top_ps[test_random_below(&random, COUNT_OF(top_ps))],
            .min_p = min_ps[test_random_below(&random, COUNT_OF(min_ps))],
            .seed = test_random_u64(&random),
        };
        u64 position = test_random_u64(&random);
        u32 expected = plain_draw(logits, n, &params, position);
        u32 found = draw(logits, &params, position);
        CHECK_MSG(found == expected, "n %u temp %g top_k %d top_p %g min_p %g: %u, not %u", n,
                  (f64)params.temperature, params.top_k, (f64)params.top_p, (f64)params.min_p,
                  found, expected);
    }
}

static void f16_is_f32_widened(void) {
    f16 halves[500];
    f32 widened[500];
    struct test_random random = {SEED + 2};
    use_vocab(500);
    for (u32 i = 0; i < 500; i++) {
        halves[i] = f32_to_f16((f32)(test_random_unit(&random) * 8));
        widened[i] = f16_to_f32(halves[i]);
    }
    struct sample_params params = {
        .repeat_penalty = 1, .temperature = 0.9f, .top_k = 50, .top_p = 0.9f, .seed = 3};
    for (u64 position = 0; position < 200; position++) {
        u32 token = 0;
        CHECK(sov_sample_token_f16(&sampler, halves, &params,
                                   (struct sample_draw){.position = position, .index = 0}, &token,
                                   NULL) == SOV_OK);
        CHECK(token == draw(widened, &params, position));
    }
    halves[3] = 0x7c00; // infinity
    u32 token = 0;
    CHECK(sov_sample_token_f16(&sampler, halves, &params, (struct sample_draw){0}, &token, NULL) ==
          SOV_ERR_NON_FINITE);
}

// Frequencies of 20,000 draws against softmax in f64: within 4.5 standard deviations each.
static void distribution(void) {
    const f32 logits[] = {0.0f, 1.0f, 2.0f, -1.0f, 0.5f};
    use_vocab(5);
    struct sample_params params = {
        .repeat_penalty = 1, .temperature = 1, .top_p = 1, .seed = 12345};
    u32 counts[5] = {0};
    const u32 n = 20000;
    for (u64 i = 0; i < n; i++) counts[draw(logits, &params, i)]++;
    f64 total = 0;
    for (u32 i = 0; i < 5; i++) total += math_exp((f64)logits[i]);
    for (u32 i = 0; i < 5; i++) {
        f64 p = math_exp((f64)logits[i]) / total;
        f64 deviation = math_sqrt(n * p * (1 - p));
        f64 difference = counts[i] - n * p;
        CHECK_MSG(difference < 4.5 * deviation && difference > -4.5 * deviation,
                  "token %u: %u draws, %g expected", i, counts[i], n * p);
    }
}

// The penalties of llama.cpp, by hand: repeat first, then frequency and presence; the window counts
// from the end.
static void penalties(void) {
    const f32 logits[] = {4.0f, 3.0f, -1.0f, 2.5f};
    const u32 history[] = {0, 2, 0, 1};
    use_vocab(4);
    const struct {
        const char *name;
        f32 repeat, frequency, presence;
        i32 window;
        u32 expected;
    } table[] = {
        {"none", 1, 0, 0, -1, 0},
        {"repeat 2: 2, 1.5, -2, 2.5", 2, 0, 0, -1, 3},
        {"repeat 1.5: 2.67, 2, -1.5, 2.5", 1.5f, 0, 0, -1, 0},
        {"frequency 1: 2, 2, -2, 2.5", 1, 1, 0, -1, 3},
        {"frequency 0.7: 2.6, 2.3", 1, 0.7f, 0, -1, 0},
        {"presence 1.2: 2.8, 1.8", 1, 0, 1.2f, -1, 0},
        {"presence 2: 2, 1", 1, 0, 2, -1, 3},
        {"repeat 2, window 1: 4, 1.5", 2, 0, 0, 1, 0},
        {"repeat 2, window 2: 2, 1.5, -1, 2.5", 2, 0, 0, 2, 3},
        {"repeat 2, no window", 2, 0, 0, 0, 0},
        {"negative frequency -2 prefers what was said twice", 1, -2, 0, -1, 0},
    };
    for (u32 i = 0; i < COUNT_OF(table); i++) {
        struct sample_params params = sample_params_default();
        params.temperature = 0;
        params.repeat_penalty = table[i].repeat;
        params.frequency_penalty = table[i].frequency;
        params.presence_penalty = table[i].presence;
        params.penalty_window = table[i].window;
        u32 token = 77;
        struct sample_draw at = {.position = 4, .history = history, .n_history = 4};
        for (u32 twice = 0; twice < 2; twice++) { // counts are cleared in between
            CHECK(sov_sample_token(&sampler, logits, &params, at, &token, NULL) == SOV_OK);
            CHECK_MSG(token == table[i].expected, "%s: token %u", table[i].name, token);
        }
    }
}

static void biases(void) {
    const f32 logits[] = {4.0f, 3.0f, -1.0f};
    use_vocab(3);
    const f32 ban = f32_from_bits(0xff800000);
    const struct logit_bias table[][3] = {
        {{0, -2.0f}, {1, 0.0f}, {2, 0.0f}},   {{0, ban}, {1, 0.0f}, {2, 4.5f}},
        {{0, ban}, {1, ban}, {2, 0.0f}},      {{0, -100.0f}, {1, -100.0f}, {2, -100.0f}},
        {{0, -2.0f}, {0, -2.0f}, {1, -2.5f}},
    };
    static const u32 expected[] = {1, 2, 2, 0, 1};
    struct sample_params params = sample_params_default();
    params.n_biases = 3;
    for (u32 i = 0; i < COUNT_OF(table); i++) {
        params.biases = table[i];
        params.temperature = 0;
        CHECK_MSG(draw(logits, &params, 0) == expected[i], "greedy, row %u", i);
        params.temperature = 1;
        params.top_k = 1;
        CHECK_MSG(draw(logits, &params, 0) == expected[i], "top_k 1, row %u", i);
    }
    const struct logit_bias all[] = {{0, ban}, {1, ban}, {2, ban}}, beyond[] = {{3, 1.0f}};
    u32 token = 77;
    params.biases = all;
    CHECK(sov_sample_token(&sampler, logits, &params, (struct sample_draw){0}, &token, NULL) ==
          SOV_ERR_NON_FINITE);
    params.biases = beyond;
    params.n_biases = 1;
    CHECK(sov_sample_token(&sampler, logits, &params, (struct sample_draw){0}, &token, NULL) ==
          SOV_ERR_ARGUMENT);
    CHECK(token == 77);
}

static void logprobs(void) {
    f32 logits[200];
    struct test_random random = {SEED + 3};
    use_vocab(200);
    fill_random(logits, 200, &random, 20);
    logits[17] = logits[90] = 11; // a tie at the top
    struct token_logprob top[200], own;
    u32 n = sample_logprobs(&sampler, logits, 5, 500, &own, top);
    CHECK(n == 200 && top[0].token == 17 && top[1].token == 90);
    f64 sum = 0;
    for (u32 i = 0; i < n; i++) {
        sum += math_exp(top[i].logprob);
        if (i > 0) CHECK(top[i].logprob <= top[i - 1].logprob);
        if (top[i].token == 5) CHECK(top[i].logprob == own.logprob);
    }
    CHECK_MSG(sum > 1 - 1e-12 && sum < 1 + 1e-12, "probabilities sum to %.17g", sum);
    CHECK(sample_logprobs(&sampler, logits, 5, 0, &own, top) == 0 && own.token == 5);
    CHECK(sample_logprobs(&sampler, logits, 5, 3, &own, top) == 3 && top[0].token == 17);
}

// The greedy draw and the check for finiteness look at eight logits at once: every place of a whole
// vector and of the rest, numbers of either sign, zeros of either sign, ties.
static void greedy_at_every_length(void) {
    static const f32 values[] = {-3.0f, -0.0f, 0.0f, 2.0f, -1e-40f, 1e30f, -7.0f, 2.0f};
    static const u32 lengths[] = {1, 7, 8, 9, 15, 16, 17, 41};
    struct sample_params params = {.repeat_penalty = 1, .top_k = 40, .top_p = 1, .seed = 1};
    u32 state = 5;
    f32 logits[41];
    for (u32 l = 0; l < COUNT_OF(lengths); l++) {
        u32 n = lengths[l];
        use_vocab(n);
        for (u32 round = 0; round < 400; round++) {
            u32 n_values = 1 + round % COUNT_OF(values); // few values: ties; one: all negative
            for (u32 i = 0; i < n; i++) {
                state = state * 1664525u + 1013904223u;
                logits[i] = values[(state >> 16) % n_values];
            }
            u32 expected = 0;
            for (u32 i = 1; i < n; i++) {
                if (logits[i] > logits[expected]) expected = i;
            }
            u32 found = draw(logits, &params, round);
            CHECK_MSG(found == expected, "%u logits, round %u: %u, expected %u", n, round, found,
                      expected);
        }
        for (u32 i = 0; i < n; i++) {
            static const u32 forbidden[] = {0x7f800000, 0xff800000, 0x7fc00000, 0xff800001};
            for (u32 k = 0; k < COUNT_OF(forbidden); k++) {
                for (u32 j = 0; j < n; j++) logits[j] = -1.0f;
                logits[i] = f32_from_bits(forbidden[k]);
                u32 token = 0;
                struct sample_draw at = {.position = 0};
                CHECK(sov_sample_token(&sampler, logits, &params, at, &token, NULL) ==
                      SOV_ERR_NON_FINITE);
            }
        }
    }
}

static const struct test_case cases[] = {
    {"greedy at every length", greedy_at_every_length},
    {"philox known answers", philox_known_answers},
    {"uniform", uniform_uses_position_index_and_seed},
    {"greedy takes the lowest of equals", greedy_takes_the_lowest_of_equals},
    {"refused", refused},
    {"top_k without limit", top_k_without_limit},
    {"equals the plain definition", equals_the_plain_definition},
    {"f16 is f32 widened", f16_is_f32_widened},
    {"distribution", distribution},
    {"penalties", penalties},
    {"biases", biases},
    {"logprobs", logprobs},
};

int program_main(const struct platform_start *start) {
    return test_main(start, "test_sampler", cases, COUNT_OF(cases));
}
