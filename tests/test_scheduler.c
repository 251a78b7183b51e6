// SPDX-License-Identifier: Apache-2.0
// Many sequences at once over random tiny models: every request gives the tokens, the bits of its
// log-probabilities and the event digests that it gives alone, however it is batched, ordered,
// chunked, swapped, shared, checkpointed, suspended. And the scheduler's own promises: transitions,
// fairness, limits, deadlines, isolation of failures, nothing leaked.
#include "engine/engine.h"
#include "freestanding/mem.h"
#include "stub_backend.h"

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
    CHECK_MSG(!v->wants_swaps || statistics.n_swaps > 0, "%s: %llu swaps", v->name,
              statistics.n_swaps);
    CHECK_MSG(!v->wants_spills || statistics.n_spills > 0, "%s: %llu spills", v->name,
              statistics.n_spills);
    CHECK(v->no_sharing || v->max_seqs != 7 || statistics.n_shared_tokens > 0);
    CHECK_MSG(statistics.n_checkpoints > 2, "%s: %llu checkpoints", v->name,
              statistics.n_checkpoints);
    for (u32 i = 0; i < memory.capacity; i++) CHECK(!memory.entries[i].used); // all forgotten
    engine_close(engine);
    platform_memory_unmap(mapped, bytes);
}

static void determinism(void) {
    bool full = test_option("FULL") != NULL;
    for (u32 arch = 0; arch < MODEL_ARCH_COUNT; arch++) {
        if (!full && arch != MODEL_GEMMA3) continue; // the one with a window
        tiny_open(&tiny, arch, CONTEXT, SEED + arch);
        make_work(full ? REQUESTS : 16, SEED + arch);
        for (u32 i = 0; i < COUNT_OF(variants); i++) run_variant(&variants[i], arch);
        tiny_close(&tiny);
    }
}

// --- the table of transitions ---

static void transition_table(void) {
    static const char *const expected[] = {
        // rows: from; columns: to IDLE PREFILL GENERATE SWAP CHECKPOINT RESUME
        [SEQUENCE_IDLE] = ".x....",       [SEQUENCE_PREFILL] = "x.xx..",
        [SEQUENCE_GENERATE] = "x..xx.",   [SEQUENCE_SWAP] = "xxx.xx",
        [SEQUENCE_CHECKPOINT] = "x.xx..", [SEQUENCE_RESUME] = "x.xxx.",
    };
    for (u32 from = 0; from < SEQUENCE_STATES; from++) {
        CHECK(sequence_state_name(from) != NULL);
        for (u32 to = 0; to < SEQUENCE_STATES; to++) {
            bool is_there = sched_transition(from, to) != NULL;
            CHECK_MSG(is_there == (expected[from][to] == 'x'), "%s to %s",
                      sequence_state_name(from), sequence_state_name(to));
        }
    }
}

// --- over the stub: many sequences, quickly ---

static struct stub stub;
static struct engine_backend backend;

static struct engine *open_stub(struct engine_config config) {
    memset(&stub, 0, sizeof stub);
    backend = stub_backend(&stub);
    config.context = config.context != 0 ? config.context : CONTEXT;
    config.n_threads = 1;
    config.backend = &backend;
    return open_engine(config);
}

static engine_sequence submit(struct engine *engine, u64 id, const u32 *prompt, u32 n_prompt,
                              u32 n_new, u64 deadline_ns) {
    struct engine_request request = {
        .id = 1000 + id,
        .tokens = prompt,
        .n_tokens = n_prompt,
        .n_new_max = n_new,
        .ignore_end = true,
        .end_token = TOKEN_NONE,
        .deadline_ns = deadline_ns,
        .sampling = sample_params_default(),
    };
    engine_sequence sequence = 0;
    struct sov_fault fault = {0};
    CHECK_MSG(engine_submit(engine, &request, &sequence, &fault) == SOV_OK, "%s", fault.message);
    return sequence;
}

// S4: gaps between the rows of decoding sequences, and tokens of prompts in every step, for budgets
// from 1 on, while new prompts keep coming.
static void fairness(void) {
    enum { N = 24, LONG = 60 };
    static struct outcome all[SOV_MAX_SEQS];
    tiny_open(&tiny, MODEL_LLAMA, CONTEXT, SEED);
    static const u32 budgets[] = {1, 2, 3, 5, 8, 16, 23, 40};
    for (u32 b = 0; b < COUNT_OF(budgets); b++) {
        u32 budget = budgets[b];
        u32 prompt_share = MAX(budget / 4, 1u), decode_share = MAX(budget - prompt_share, 1u);
        struct engine *engine = open_stub((struct engine_config){
            .max_seqs = N, .token_budget = budget, .no_prefix_sharing = true});
        u32 prompt[CONTEXT] = {0};
        for (u32 i = 0; i < N; i++) submit(engine, i, prompt, i < N / 2 ? 1 : 70, LONG, 0);
        memset(all, 0, sizeof all);
        u32 last_row[N] = {0}, n_before[N] = {0}, worst_gap = 0, n_steps = 0, n_waiting = 0;
        u64 prompt_tokens = 0, prompt_steps = 0;
        struct engine_report report = {.n_live = N};
        while (report.n_live > 0 && n_steps < STEPS_MAX) {
            u32 n_tokens = 0;
            n_waiting = 0;
            for (u32 i = 0; i < N; i++) n_waiting += all[i].n == 0 && !all[i].has_ended;
            step(engine, POWER_ACTIVE, 0, all, N, &report);
            n_steps++;
            for (u32 i = 0; i < N; i++) {
                bool decoded = all[i].n > n_before[i];
                if (decoded && n_before[i] > 0) {
                    worst_gap = MAX(worst_gap, n_steps - last_row[i]);
                    n_tokens++;
                }
                if (decoded) last_row[i] = n_steps;
                n_before[i] = all[i].n;
            }
            if (n_waiting > 0) {
                prompt_steps++;
                prompt_tokens += report.n_rows - n_tokens;
                CHECK(budget == 1 || report.n_rows - n_tokens >= MIN(prompt_share, n_waiting));
            }
        }
        u32 bound = (N + decode_share - 1) / decode_share * (budget == 1 ? 2 : 1);
        CHECK_MSG(report.n_live == 0 && worst_gap <= bound,
                  "budget %u: a gap of %u steps, the bound is %u", budget, worst_gap, bound);
        CHECK(budget > N / 2 || worst_gap > 1);          // the budget was short
        CHECK(prompt_tokens * 2 + 2 >= prompt_steps); // budget 1: every second step
        check_empty(engine);
        engine_close(engine);
    }
    tiny_close(&tiny);
}

// S2 and S3: blocks are short for ever, small requests keep coming, and yet a large one that came
// early ends before those that came later; who is swapped is the younger.
static void no_starvation(void) {
    enum { N = 8, ROUNDS = 60 };
    static struct outcome all[SOV_MAX_SEQS + ROUNDS];
    tiny_open(&tiny, MODEL_LLAMA, CONTEXT, SEED);
    struct engine *engine = open_stub((struct engine_config){
        .max_seqs = N, .kv_blocks = CONTEXT_BLOCKS + 1, .no_prefix_sharing = true});
    u32 prompt[CONTEXT] = {0};
    memset(all, 0, sizeof all);
    u32 next = 0, large = 3, ended_before = 0;
    bool live = true;
    while (live || next < ROUNDS) {
        for (; next < ROUNDS && engine_room(engine) > 0; next++) {
            prompt[0] = next % TINY_LETTERS;
            submit(engine, next, prompt, next == large ? 80 : 20, next == large ? 16 : 12, 0);
        }
        struct engine_report report;
        live = step(engine, POWER_ACTIVE, 0, all, ROUNDS, &report);
        for (u32 i = 0; i < ROUNDS && !all[large].has_ended; i++) {
            ended_before = MAX(ended_before, all[i].has_ended ? i : 0);
        }
    }
    CHECK(all[large].has_ended && all[large].n == 16);
    // Only those that were admitted before it, or ran beside it, ended before it.
    CHECK_MSG(ended_before < large + N, "request %u ended before the large one", ended_before);
    check_empty(engine);
    engine_close(engine);
    tiny_close(&tiny);
}

// Cancels and deadlines at every state, stale and foreign handles, a full engine.
static void ends(void) {
    enum { N = 4 };
    static struct outcome all[SOV_MAX_SEQS];
    tiny_open(&tiny, MODEL_LLAMA, CONTEXT, SEED);
    struct test_random random = {SEED};
    u32 prompt[CONTEXT] = {0}, n_cancelled = 0, n_late = 0, states_seen = 0;
    for (u32 round = 0; round < 200; round++) {
        struct engine *engine = open_stub((struct engine_config){
            .max_seqs = N, .kv_blocks = CONTEXT_BLOCKS + 1, .prefill_chunk = 7});
        memset(all, 0, sizeof all);
        engine_sequence sequences[N];
        u64 deadlines[N] = {0};
        for (u32 i = 0; i < N; i++) {
            prompt[0] = i;
            if (test_random_below(&random, 4) == 0)
                deadlines[i] = 1 + test_random_below(&random, 40);
            sequences[i] = submit(engine, i, prompt, 20 + 10 * i, 40, deadlines[i]);
        }
        u32 victim = test_random_below(&random, N), when = test_random_below(&random, 60);
        struct engine_report report = {.n_live = 1};
        for (u64 now = 0; report.n_live > 0 && now < 1000; now++) {
            u32 n_before = all[victim].n;
            bool was_there = !all[victim].has_ended;
            if (now == when) {
                states_seen |= was_there ? 1u << engine_state(engine, sequences[victim]) : 0;
                engine_cancel(engine, sequences[victim]);
                engine_cancel(engine, sequences[victim] + SOV_MAX_SEQS); // never given out
                engine_cancel(engine, 0);
            }
            step(engine, POWER_ACTIVE, now, all, N, &report);
            for (u32 i = 0; i < N; i++) {
                CHECK(deadlines[i] == 0 || now < deadlines[i] || all[i].has_ended);
                bool is_late = all[i].finish == FINISH_DEADLINE;
                CHECK(!is_late || (deadlines[i] != 0 && now >= deadlines[i]));
            }
            if (now != when || !was_there) continue;
            CHECK(all[victim].has_ended && all[victim].n == n_before);
            n_cancelled += all[victim].finish == FINISH_CANCEL;
        }
        for (u32 i = 0; i < N; i++) n_late += all[i].finish == FINISH_DEADLINE;
        CHECK(report.n_live == 0);
        engine_cancel(engine, sequences[0]); // it ended long ago
        sequences[0] = submit(engine, 50, prompt, 5, 3, 0);
        struct outcome last[51] = {0};
        while (step(engine, POWER_ACTIVE, 0, last, 51, &report)) {
        }
        CHECK(last[50].finish == FINISH_LENGTH && last[50].n == 3);
        check_empty(engine);
        engine_close(engine);
    }
    CHECK_MSG(n_cancelled > 50 && n_late > 20, "%u cancelled, %u late", n_cancelled, n_late);
    const u32 wanted = 1u << SEQUENCE_IDLE | 1u << SEQUENCE_PREFILL | 1u << SEQUENCE_GENERATE |
                       1u << SEQUENCE_SWAP;
    CHECK_MSG((states_seen & wanted) == wanted, "states %x", states_seen);
    tiny_close(&tiny);
}

// A value that is not finite in one sequence of a batch fails that sequence; the others commit in
// the same step.
static void isolation(void) {
    enum { N = 32 };
    static struct outcome all[SOV_MAX_SEQS];
    tiny_open(&tiny, MODEL_LLAMA, 208, SEED);
    struct engine *engine = open_stub((struct engine_config){.context = 208, .max_seqs = N});
    stub.poisonous = true;
    u32 prompt[1] = {0}, n_failed = 0;
    memset(all, 0, sizeof all);
    for (u32 i = 0; i < N; i++) {
        prompt[0] = i;
        submit(engine, i, prompt, 1, 60, 0);
    }
    struct engine_report report = {.n_live = N};
    for (u32 n = 1; report.n_live > 0; n++) {
        step(engine, POWER_ACTIVE, 0, all, N, &report);
        u32 failed_now = 0;
        for (u32 i = 0; i < N; i++) {
            bool has_failed = all[i].finish == FINISH_FAILED;
            CHECK(has_failed || all[i].n == n || (all[i].has_ended && all[i].n == 60));
            failed_now += has_failed;
            if (has_failed) CHECK(all[i].fault.status == SOV_ERR_NON_FINITE);
        }
        CHECK(report.n_failed == failed_now - n_failed);
        n_failed = failed_now;
    }
    CHECK_MSG(n_failed > 0 && n_failed < N / 2, "%u failed", n_failed);
    check_empty(engine);
    engine_close(engine);
    tiny_close(&tiny);
}

// What a step costs beside the backend: 256 sequences decoding, with sampling from 48 logits,
// events and checkpoints. A step of a real model with so many rows takes hundreds of milliseconds.
static u64 forward_ns;
static enum sov_status timed_forward(void *context, const struct cpu_batch *batch,
                                     cpu_kv_view *kv_view, const void *kv_context,
                                     const f32 **logits, u32 *logit_stride,
                                     struct sov_fault *fault) {
    u64 begin = platform_monotonic_ns();
    enum sov_status status =
        stub_forward(context, batch, kv_view, kv_context, logits, logit_stride, fault);
    forward_ns += platform_monotonic_ns() - begin;
    return status;
}

static void overhead(void) {
    tiny_open(&tiny, MODEL_LLAMA, 208, SEED);
    static const u32 counts[] = {1, 16, SOV_MAX_SEQS};
    for (u32 c = 0; c < COUNT_OF(counts); c++) {
        struct engine_config config = {.context = 208, .max_seqs = counts[c], .n_threads = 1};
        memset(&stub, 0, sizeof stub);
        backend = (struct engine_backend){.context = &stub, .forward = timed_forward};
        config.backend = &backend;
        struct engine *engine = open_engine(config);
        u32 prompt[1] = {0};
        for (u32 i = 0; i < counts[c]; i++) {
            prompt[0] = i % TINY_LETTERS;
            submit(engine, i, prompt, 1, 0, 0);
        }
        struct engine_report report = {.n_live = 1};
        u64 best = ~0ull; // other programs disturb: the best step is what it costs
        while (report.n_live > 0) {
            struct engine_inputs inputs = {.power = POWER_ACTIVE};
            struct sov_fault fault = {0};
            forward_ns = 0;
            u64 begin = platform_monotonic_ns();
            CHECK(engine_step(engine, &inputs, &report, &fault) == SOV_OK);
            u64 own = platform_monotonic_ns() - begin - forward_ns;
            if (report.n_rows == counts[c]) best = MIN(best, own);
        }
        test_note("%u sequences: %.1f us a step beside the backend", counts[c], (f64)best / 1000);
        CHECK(best < 20000ull * (counts[c] + 5)); // 20 us a sequence, on whatever machine
        engine_close(engine);
    }
    tiny_close(&tiny);
}

static const struct test_case cases[] = {
    {"determinism", determinism},
    {"transition_table", transition_table},
    {"fairness", fairness},
    {"no_starvation", no_starvation},
    {"ends", ends},
    {"isolation", isolation},
    {"overhead", overhead},
};

int program_main(const struct platform_start *start) {
    return test_main(start, "test_scheduler", cases, COUNT_OF(cases));
}
