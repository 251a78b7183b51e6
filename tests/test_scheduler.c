// SPDX-License-Identifier: Apache-2.0
// Many sequences at once over random tiny models: every request gives the tokens, the bits of its
// log-probabilities and the event digests that it gives alone, however it is batched, ordered,
// chunked, swapped, shared, checkpointed, suspended. And the scheduler's own promises: transitions,
// fairness, limits, deadlines, isolation of failures, nothing leaked.
#include "engine/engine.h"
#include "freestanding/mem.h"
#include "tiny_model.h"

#define SEED 20240401u
#define CONTEXT 96
#define CONTEXT_BLOCKS (CONTEXT / SOV_KV_BLOCK_SIZE)
#define REQUESTS 40
#define STEPS_MAX 20000

static struct tiny tiny; // of the running case

struct outcome {
    u32 n, n_events;
    u32 tokens[CONTEXT];
    f64 logprobs[CONTEXT];
    struct sha256_digest digest; // of the last event
    enum finish_reason finish;
    struct sov_fault fault;
    bool has_ended;
};

struct workload {
    u32 n;
    struct engine_request requests[REQUESTS];
    u32 prompts[REQUESTS][CONTEXT];
    struct outcome expected[REQUESTS];
};
static struct workload work;
static struct outcome outcomes[REQUESTS];

static struct engine_config base(void) {
    return (struct engine_config){
        .context = CONTEXT,
        .n_threads = 1,
        .prefill_chunk = 16,
        .level = MIN(cpu_level(), ENGINE_LEVEL_MAX),
        .tokenizer = tiny.vocabulary.tokenizer,
    };
}

static struct engine *open_engine(struct engine_config config) {
    struct engine *engine = NULL;
    struct sov_fault fault = {0};
    enum sov_status status = engine_config_resolve(&config, &tiny.model, &fault);
    if (status == SOV_OK) status = engine_open(&tiny.model, &config, &engine, &fault);
    if (status != SOV_OK) test_note("%s", fault.message);
    assert(status == SOV_OK);
    return engine;
}

// --- driving an engine ---

// How the run is disturbed.
struct disturbance {
    u32 suspend_every; // steps; 0: never
    bool low_battery;  // in every second stretch of 5 steps
};

static void take(const struct engine_output *output, struct outcome *all, u32 n) {
    const struct sov_event *event = &output->event;
    u32 i = (u32)(event->sequence_id - 1000);
    CHECK(i < n);
    struct outcome *o = &all[i];
    CHECK_MSG(!o->has_ended, "request %u: an event after its end", i);
    CHECK_MSG(event->number == o->n_events, "request %u: event %llu instead of %u", i,
              event->number, o->n_events);
    o->n_events++;
    o->digest = event->transition_digest;
    if (event->type == EVENT_TOKEN) {
        assert(o->n < CONTEXT);
        o->tokens[o->n] = event->sampled_token_id;
        o->logprobs[o->n++] = output->logprob;
        CHECK(event->committed_token_count == o->n);
        CHECK(event->has_receipt == (o->n % ENGINE_CHECKPOINT_TOKENS == 0));
    }
    if (event->type != EVENT_FINISHED) return;
    o->finish = event->finish;
    if (output->fault != NULL) o->fault = *output->fault;
    o->has_ended = true;
}

// One step; false when nothing is live any more.
static bool step(struct engine *engine, enum power_state power, u64 now_ns, struct outcome *all,
                 u32 n, struct engine_report *report) {
    struct engine_inputs inputs = {.now_ns = now_ns, .power = power};
    struct sov_fault fault = {0};
    enum sov_status status = engine_step(engine, &inputs, report, &fault);
    CHECK_MSG(status == SOV_OK, "%s", fault.message);
    engine_assert_consistent(engine);
    for (u32 i = 0; i < report->n_outputs; i++) take(&report->outputs[i], all, n);
    return report->n_live > 0;
}

// All requests through one engine, in the order given, as there is room.
static void run_all(struct engine *engine, const u32 *order, u32 n,
                    const struct disturbance *disturbance) {
    memset(outcomes, 0, sizeof outcomes);
    u32 next = 0, n_steps = 0;
    bool live = true;
    while (live || next < n) {
        for (; next < n && engine_room(engine) > 0; next++) {
            engine_sequence sequence;
            struct sov_fault fault = {0};
            enum sov_status status =
                engine_submit(engine, &work.requests[order[next]], &sequence, &fault);
            CHECK_MSG(status == SOV_OK, "%s", fault.message);
        }
        struct engine_report report;
        enum power_state power = POWER_ACTIVE;
        if (disturbance->low_battery && n_steps / 5 % 2 == 1) power = POWER_LOW_BATTERY;
        if (disturbance->suspend_every != 0 && n_steps % disturbance->suspend_every == 0) {
            do {
                step(engine, POWER_SUSPEND, 0, outcomes, work.n, &report);
                CHECK(report.n_outputs == 0 && report.n_rows == 0);
            } while (!report.is_suspended);
        }
        live = step(engine, power, 0, outcomes, work.n, &report);
        if (++n_steps > STEPS_MAX) {
            CHECK(!"the run ends");
            return;
        }
    }
}

static bool same(const struct outcome *a, const struct outcome *b) {
    return a->has_ended && b->has_ended && a->n == b->n && a->finish == b->finish &&
           a->n_events == b->n_events && sha256_equal(&a->digest, &b->digest) &&
           memcmp(a->tokens, b->tokens, a->n * sizeof(u32)) == 0 &&
           memcmp(a->logprobs, b->logprobs, a->n * sizeof(f64)) == 0;
}

static void check_all(const char *name) {
    for (u32 i = 0; i < work.n; i++) {
        CHECK_MSG(same(&outcomes[i], &work.expected[i]),
                  "%s: request %u differs (%u tokens of %u, finish %u)", name, i, outcomes[i].n,
                  work.expected[i].n, outcomes[i].finish);
    }
}

static void check_empty(struct engine *engine) {
    engine_forget_prefixes(engine);
    engine_assert_consistent(engine);
    struct kv_statistics kv = engine_statistics_of(engine).kv;
    CHECK_MSG(kv.n_free == kv.n_blocks && kv.n_idle == 0 && kv.n_allocated == kv.n_freed,
              "%u of %u blocks are free, %u idle", kv.n_free, kv.n_blocks, kv.n_idle);
}

// Requests of mixed length, greedy and sampled; some share beginnings. Each is run alone, in an
// engine of its own without sharing, for what is expected.
static void make_work(u32 n, u64 seed) {
    struct test_random random = {seed};
    memset(&work, 0, sizeof work);
    work.n = n;
    for (u32 i = 0; i < n; i++) {
        u32 n_prompt = 1 + test_random_below(&random, 60);
        u32 n_shared = i > 0 ? test_random_below(&random, 50) : 0;
        for (u32 k = 0; k < n_prompt; k++) {
            work.prompts[i][k] = k < n_shared ? work.prompts[i / 2][k]
                                              : test_random_below(&random, TINY_LETTERS);
        }
        struct engine_request *r = &work.requests[i];
        *r = (struct engine_request){
            .id = 1000 + i,
            .tokens = work.prompts[i],
            .n_tokens = n_prompt,
            .n_new_max = i % 7 == 0 ? 0 : 1 + test_random_below(&random, 80),
            .ignore_end = i % 3 != 0,
            .end_token = TOKEN_NONE,
            .wants_logprob = true,
            .sampling = sample_params_default(),
        };
        r->sampling.temperature = i % 2 == 0 ? 0 : 1.2f;
        r->sampling.seed = i;
    }
    struct engine_config config = base();
    config.no_prefix_sharing = true;
    static const struct disturbance none;
    static struct outcome alone[REQUESTS];
    for (u32 i = 0; i < n; i++) {
        struct engine *engine = open_engine(config);
        run_all(engine, &i, 1, &none);
        alone[i] = outcomes[i];
        check_empty(engine);
        engine_close(engine);
    }
    memcpy(work.expected, alone, sizeof alone);
}

static void shuffle(u32 *order, u32 n, u64 seed) {
    struct test_random random = {seed};
    for (u32 i = 0; i < n; i++) order[i] = i;
    for (u32 i = n; seed != 0 && i > 1; i--) {
        u32 j = test_random_below(&random, i), kept = order[i - 1];
        order[i - 1] = order[j];
        order[j] = kept;
    }
}

// --- determinism ---

struct variant {
    const char *name;
    u32 max_seqs, kv_blocks, spill_blocks, chunk, budget, threads;
    bool no_sharing;
    u32 order_seed, run_ahead, delay, suspend_every;
    bool low_battery;
    bool wants_swaps, wants_spills;
};

static const struct variant variants[] = {
    {"one at a time", .max_seqs = 1},
    {"7", .max_seqs = 7},
    {"all", .max_seqs = 64},
    {"all, reversed", .max_seqs = 64, .order_seed = 1},
    {"all, no sharing", .max_seqs = 64, .no_sharing = true, .order_seed = 2},
    {"chunk 1", .max_seqs = 16, .chunk = 1},
    {"chunk 7, budget 9", .max_seqs = 16, .chunk = 7, .budget = 9},
    {"budget 1", .max_seqs = 5, .budget = 1},
    {"2 threads", .max_seqs = 7, .threads = 2},
    {"swaps", .max_seqs = 16, .kv_blocks = 10, .wants_swaps = true},
    {"swaps, no sharing", .max_seqs = 16, .kv_blocks = 10, .no_sharing = true, .wants_swaps = true},
    {"spills", .max_seqs = 16, .kv_blocks = 10, .spill_blocks = 40, .wants_spills = true},
    {"spills, no sharing", .max_seqs = 16, .kv_blocks = 12, .spill_blocks = 12, .no_sharing = true,
     .order_seed = 3, .wants_spills = true},
    {"one context of blocks", .max_seqs = 9, .kv_blocks = CONTEXT_BLOCKS, .chunk = 5},
    {"receipts late", .max_seqs = 16, .run_ahead = 4, .delay = 3},
    {"receipts later than run-ahead", .max_seqs = 16, .run_ahead = 8, .delay = 30},
    {"no run-ahead", .max_seqs = 16, .delay = 5, .kv_blocks = 12, .spill_blocks = 9},
    {"receipts late, swaps", .max_seqs = 16, .kv_blocks = 9, .run_ahead = 8, .delay = 20,
     .wants_swaps = true},
    {"suspended", .max_seqs = 16, .suspend_every = 7, .delay = 2},
    {"low battery", .max_seqs = 16, .low_battery = true},
    {"everything", .max_seqs = 13, .kv_blocks = 11, .spill_blocks = 10, .chunk = 6, .budget = 17,
     .threads = 2, .order_seed = 4, .run_ahead = 5, .delay = 9, .suspend_every = 11,
     .low_battery = true, .wants_swaps = true},
};

static void run_variant(const struct variant *v, enum model_arch arch) {
    struct checkpoint_memory memory;
    u64 bytes = checkpoint_memory_bytes(2 * SOV_MAX_SEQS);
    void *mapped = platform_memory_map(bytes);
    assert(mapped != NULL);
    struct arena arena = arena_over(mapped, bytes);
    struct sov_fault fault = {0};
    enum sov_status status =
        checkpoint_memory_create(&memory, 2 * SOV_MAX_SEQS, v->delay, &arena, &fault);
    assert(status == SOV_OK);
    struct checkpoint_store store = checkpoint_memory_store(&memory);
    struct engine_config config = base();
    config.max_seqs = v->max_seqs;
    config.kv_blocks = v->kv_blocks;
    config.spill_blocks = v->spill_blocks;
    if (v->chunk != 0) config.prefill_chunk = v->chunk;
    config.token_budget = v->budget;
    if (v->threads != 0) config.n_threads = v->threads;
    config.no_prefix_sharing = v->no_sharing;
    config.run_ahead = v->run_ahead;
    config.store = &store;
    config.kv_shuffle = v->order_seed != 0;
    config.kv_shuffle_seed = v->order_seed;
    struct engine *engine = open_engine(config);
    u32 order[REQUESTS];
    shuffle(order, work.n, v->order_seed);
    struct disturbance disturbance = {v->suspend_every, v->low_battery};
    run_all(engine, order, work.n, &disturbance);
    char name[96];
    struct text t = TEXT_OVER_ARRAY(name);
    text_format(&t, "%s, %s", tiny_arch_name(arch), v->name);
    check_all(t.data);
    check_empty(engine);
    struct engine_statistics statistics = engine_statistics_of(engine);
    CHECK_MSG(!v->wants_swaps || statistics.n_swaps > 3, "%s: %llu swaps", v->name,
              statistics.n_swaps);
    CHECK_MSG(!v->wants_spills || statistics.n_spills > 3, "%s: %llu spills", v->name,
              statistics.n_spills);
    CHECK(v->no_sharing || v->max_seqs < 7 || statistics.n_shared_tokens > 0);
    CHECK_MSG(statistics.n_checkpoints > 2, "%s: %llu checkpoints", v->name,
              statistics.n_checkpoints);
    for (u32 i = 0; i < memory.capacity; i++) CHECK(!memory.entries[i].used); // all forgotten
    engine_close(engine);
    platform_memory_unmap(mapped, bytes);
}

static void determinism(void) {
    for (u32 arch = 0; arch < MODEL_ARCH_COUNT; arch += test_option("FULL") != NULL ? 1 : 3) {
        tiny_open(&tiny, arch, CONTEXT, SEED + arch);
        make_work(REQUESTS, SEED + arch);
        for (u32 i = 0; i < COUNT_OF(variants); i++) run_variant(&variants[i], arch);
        tiny_close(&tiny);
    }
}

static const struct test_case cases[] = {
    {"determinism", determinism},
};

int program_main(const struct platform_start *start) {
    return test_main(start, "test_scheduler", cases, COUNT_OF(cases));
}
