// SPDX-License-Identifier: Apache-2.0
// The engine over the CUDA backend against the engine over the CPU, step by step, on a stand-in for
// NVIDIA's driver that executes kernels by the reference operators (cuda_standin.c): events, bits
// of log-probabilities, K and V. So what is under test is everything but the kernels: which are
// launched, with which addresses, in which order, with what in memory, by graphs too. And what
// happens when a call of the driver fails, the power goes, or memory is short.
#include "engine/engine.h"
#include "standin.h"
#include "tiny_model.h"

#define SEED 20241130u
#define CONTEXT 640 // three chunks of attention
#define REQUESTS 24
#define PROMPT_MAX 540
#define STEPS_MAX 8000
#define COPY_ROWS 8
#define COPY_NEW 40
#define COPY_CALLS (12 + 2 * (2 * TINY_LAYERS + 1))
#define NEW_FEW 24
#define KV_BYTES (CONTEXT * TINY_HEADS_KV * TINY_LONG_HEAD * 2)

static const struct standin_config good = {
    .version = 12040,
    .n_devices = 1,
    .major = 9,
    .minor = 0,
    .threads_max = 1024,
    .memory_bytes = 1ull << 30,
    .fail_result = 719,
    .executes = true,
};

static struct tiny tiny; // of the running case
static u32 prompts[REQUESTS][PROMPT_MAX];

// Prompts that share beginnings: blocks are taken over, and copied when they are written to.
static void draw_prompts(u64 seed) {
    struct test_random random = {seed};
    for (u32 i = 0; i < REQUESTS; i++) {
        u32 shared = i == 0 ? 0 : test_random_below(&random, 40);
        for (u32 k = 0; k < PROMPT_MAX; k++) {
            prompts[i][k] = k < shared ? prompts[i - 1][k]
                                       : test_random_below(&random, TINY_LETTERS);
        }
    }
}

static struct engine_request request_of(u32 i, u32 n_tokens, u32 n_new) {
    struct engine_request request = {
        .id = i,
        .tokens = prompts[i],
        .n_tokens = n_tokens,
        .n_new_max = n_new,
        .end_token = TOKEN_NONE,
        .n_logprobs = 3,
        .wants_logprob = true,
        .sampling = sample_params_default(),
    };
    if (i % 2 == 0) request.sampling.temperature = 0.0f;
    request.sampling.seed = i;
    return request;
}

static enum sov_status open_on(enum engine_device device, struct engine_config config,
                               struct engine **engine, struct sov_fault *fault) {
    config.device = device;
    config.start = program_start;
    config.cuda_library = standin_path;
    config.tokenizer = tiny.vocabulary.tokenizer;
    enum sov_status status = engine_config_resolve(&config, &tiny.model, fault);
    return status == SOV_OK ? engine_open(&tiny.model, &config, engine, fault) : status;
}

// --- both, step by step ---

struct pair {
    const char *name;
    struct engine *cpu, *cuda;
    engine_sequence sequences[REQUESTS];
    u32 n_submitted, n_outputs, n_kv;
    u32 max_seqs, n_new;
};

static void compare_reports(struct pair *p, u32 step, const struct engine_report *cpu,
                            const struct engine_report *cuda) {
    CHECK_MSG(cpu->n_outputs == cuda->n_outputs && cpu->n_rows == cuda->n_rows &&
                  cpu->n_failed == cuda->n_failed,
              "%s, step %u: %u and %u outputs, %u and %u rows; %s", p->name, step, cpu->n_outputs,
              cuda->n_outputs, cpu->n_rows, cuda->n_rows,
              cuda->fault != NULL ? cuda->fault->message : "");
    for (u32 i = 0; i < MIN(cpu->n_outputs, cuda->n_outputs); i++) {
        const struct engine_output *a = &cpu->outputs[i], *b = &cuda->outputs[i];
        bool same = memcmp(&a->event.transition_digest, &b->event.transition_digest,
                           sizeof a->event.transition_digest) == 0 &&
                    f64_bits(a->logprob) == f64_bits(b->logprob) && a->n_top == b->n_top &&
                    a->n_cached == b->n_cached;
        for (u32 k = 0; same && k < a->n_top; k++) {
            same = a->top[k].token == b->top[k].token &&
                   f64_bits(a->top[k].logprob) == f64_bits(b->top[k].logprob);
        }
        CHECK_MSG(same, "%s, step %u: output %u of sequence %llu differs", p->name, step, i,
                  a->event.sequence_id);
        p->n_outputs++;
    }
}

static void compare_kv(struct pair *p, u32 step, u32 slot) {
    static u8 bytes[2][2 * KV_BYTES];
    struct sov_fault fault = {0};
    engine_sequence sequence = p->sequences[slot];
    u32 n = engine_kv_length(p->cpu, sequence);
    CHECK_MSG(n == engine_kv_length(p->cuda, sequence), "%s, step %u: %u positions", p->name, step,
              n);
    for (u32 layer = 0; layer < TINY_LAYERS; layer++) {
        CHECK(engine_read_kv(p->cpu, sequence, layer, n, bytes[0], &fault) == SOV_OK);
        CHECK(engine_read_kv(p->cuda, sequence, layer, n, bytes[1], &fault) == SOV_OK);
        const struct model_params *m = &tiny.model.params;
        u64 n_bytes = 2ull * n * m->n_head_kv * m->head_dim * sizeof(f16);
        CHECK_MSG(memcmp(bytes[0], bytes[1], n_bytes) == 0,
                  "%s, step %u, layer %u: K or V of %u positions differ", p->name, step, layer, n);
    }
    p->n_kv += n;
}

static void submit(struct pair *p, u32 n_tokens, u32 n_new) {
    struct sov_fault fault = {0};
    u32 i = p->n_submitted++;
    struct engine_request request = request_of(i, n_tokens, n_new);
    engine_sequence other = 0;
    CHECK(engine_submit(p->cpu, &request, &p->sequences[i], &fault) == SOV_OK);
    CHECK(engine_submit(p->cuda, &request, &other, &fault) == SOV_OK);
    CHECK(other == p->sequences[i]);
}

static void step_both(struct pair *p, u32 step, u32 *n_live) {
    struct engine_inputs inputs = {.power = POWER_ACTIVE};
    struct engine_report cpu, cuda;
    struct sov_fault fault = {0};
    CHECK(engine_step(p->cpu, &inputs, &cpu, &fault) == SOV_OK);
    CHECK(engine_step(p->cuda, &inputs, &cuda, &fault) == SOV_OK);
    compare_reports(p, step, &cpu, &cuda);
    *n_live = MAX(cpu.n_live, cuda.n_live);
}

// All requests, as room comes up; every so often K and V of one sequence.
static void run_both(struct pair *p, struct test_random *random) {
    u32 n_live = 0;
    for (u32 step = 0; step < STEPS_MAX; step++) {
        while (p->n_submitted < REQUESTS && engine_room(p->cpu) > 0) {
            u32 length = p->n_new == NEW_FEW && test_random_below(random, 4) == 0 ? PROMPT_MAX : 70;
            submit(p, 1 + test_random_below(random, length),
                   1 + test_random_below(random, p->n_new));
        }
        step_both(p, step, &n_live);
        u32 recent = test_random_below(random, MIN(p->n_submitted, p->max_seqs));
        if (step % 5 == 0) compare_kv(p, step, p->n_submitted - 1 - recent);
        if (n_live == 0 && p->n_submitted == REQUESTS) return;
    }
    test_fail(__FILE__, __LINE__, "%s: no end", p->name);
}

struct variant {
    const char *name;
    enum model_arch arch;
    u32 max_seqs, chunk, kv_blocks, spill_blocks;
    u32 deferred;
    bool no_graphs, shuffle;
};

static void compare_variant(const struct variant *v) {
    struct standin_config standin = good;
    struct test_random random = {SEED};
    struct sov_fault fault = {0};
    bool is_tight = v->spill_blocks > 0;
    struct pair p = {.name = v->name, .max_seqs = v->max_seqs, .n_new = is_tight ? 500 : NEW_FEW};
    standin.deferred = v->deferred;
    standin_reset(&standin);
    tiny_open(&tiny, v->arch, CONTEXT, SEED);
    draw_prompts(SEED);
    struct engine_config config = {
        .context = CONTEXT,
        .max_seqs = v->max_seqs,
        .n_threads = 1,
        .prefill_chunk = v->chunk,
        .kv_blocks = v->kv_blocks,
        .spill_blocks = v->spill_blocks,
        .kv_shuffle = v->shuffle,
        .kv_shuffle_seed = 5,
        .no_cuda_graphs = v->no_graphs,
        .logprobs_max = 3,
    };
    CHECK(open_on(ENGINE_CPU, config, &p.cpu, &fault) == SOV_OK);
    enum sov_status status = open_on(ENGINE_CUDA, config, &p.cuda, &fault);
    CHECK_MSG(status == SOV_OK, "%s: %s", v->name, fault.message);
    if (status == SOV_OK) {
        CHECK(str_equal(str_from_z(engine_card(p.cuda)), STR("Stand-in 0")));
        run_both(&p, &random);
        engine_assert_consistent(p.cuda);
        struct engine_statistics s = engine_statistics_of(p.cuda);
        const struct standin_report *report = standin_report();
        test_note("%s: %u outputs, %u positions of K and V, %u launches, %u graphs run, %llu "
                  "swaps, %llu to memory, %llu blocks copied",
                  v->name, p.n_outputs, p.n_kv, report->n_launches, report->n_graph_launches,
                  s.n_swaps, s.n_spills, s.kv.n_copied);
        CHECK((report->n_graph_launches == 0) == v->no_graphs);
        CHECK(v->spill_blocks == 0 || s.n_spills > 0);
        engine_close(p.cuda);
    }
    engine_close(p.cpu);
    check_books(v->name);
    tiny_close(&tiny);
}

static void every_step_is_the_cpus(void) {
    static const struct variant rows[] = {
        {"llama, 1 sequence, chunk 1", MODEL_LLAMA, 1, 1, 0, 0, 0, false, false},
        {"llama, 1 sequence, chunk 300", MODEL_LLAMA, 1, 300, 0, 0, 0, false, false},
        {"llama, 16 sequences, chunk 37", MODEL_LLAMA, 16, 37, 0, 0, 0, false, false},
        {"llama, 16 sequences, without graphs", MODEL_LLAMA, 16, 64, 0, 0, 0, true, true},
        {"llama, few blocks, late", MODEL_LLAMA, 12, 64, 40, 120, 3, false, false},
        {"gemma3, 1 sequence, late", MODEL_GEMMA3, 1, 64, 0, 0, 5, false, true},
        {"gemma3, 16 sequences", MODEL_GEMMA3, 16, 256, 0, 0, 0, false, false},
        {"gemma3, few blocks", MODEL_GEMMA3, 8, 64, 40, 100, 0, false, false},
        {"qwen2, 5 sequences", MODEL_QWEN2, 5, 128, 0, 0, 7, false, false},
        {"qwen3, 16 sequences", MODEL_QWEN3, 16, 300, 0, 0, 0, false, false},
    };
    for (u32 i = 0; i < COUNT_OF(rows); i++) compare_variant(&rows[i]);
}

// --- one request over CUDA, and what may come between ---

struct result {
    enum sov_status status; // of opening, or of the sequence when it failed
    struct sov_fault fault;
    u32 n, n_failed, n_steps, n_interrupted, n_late;
    u32 tokens[CONTEXT];
    enum finish_reason finish;
};

static u32 stop_word;

static const struct engine_config small = {
    .context = CONTEXT, .n_threads = 1, .prefill_chunk = 32, .retries = 3, .logprobs_max = 3};

#define SMALL_PROMPT 40
#define SMALL_NEW 8

static struct result run_small(enum engine_device device, struct engine_config config) {
    struct result r = {0};
    struct engine *engine = NULL;
    engine_sequence sequence;
    r.status = open_on(device, config, &engine, &r.fault);
    if (r.status != SOV_OK) return r;
    struct engine_request request = request_of(1, SMALL_PROMPT, SMALL_NEW);
    CHECK(engine_submit(engine, &request, &sequence, &r.fault) == SOV_OK);
    struct engine_report report = {.n_live = 1};
    while (report.n_live > 0 && r.n_steps < STEPS_MAX) {
        struct engine_inputs inputs = {.power = POWER_ACTIVE};
        struct sov_fault fault = {0};
        CHECK(engine_step(engine, &inputs, &report, &fault) == SOV_OK);
        r.n_steps++;
        r.n_failed += report.n_failed;
        if (stop_word != 0) {
            bool is_late = false; // after the last kernel of the step: its result counts
            for (u32 i = 0; i < report.n_outputs; i++) {
                is_late = is_late || report.outputs[i].event.type != EVENT_ADMITTED;
            }
            r.n_interrupted += !is_late;
            r.n_late += is_late;
            stop_word = 0;
        }
        for (u32 i = 0; i < report.n_outputs; i++) {
            const struct engine_output *output = &report.outputs[i];
            if (output->event.type == EVENT_TOKEN) {
                r.tokens[r.n++] = output->event.sampled_token_id;
            }
            if (output->event.type != EVENT_FINISHED) continue;
            r.finish = output->event.finish;
            if (output->fault == NULL) continue;
            r.fault = *output->fault;
            r.status = r.fault.status;
        }
    }
    engine_assert_consistent(engine);
    engine_close(engine);
    return r;
}

static bool same_tokens(const struct result *a, const struct result *b) {
    return a->n == b->n && memcmp(a->tokens, b->tokens, a->n * sizeof(u32)) == 0;
}

// Digests of K and V are made in runs of positions, all layers of a run behind one wait: once its
// shape was captured, a step takes few calls of the driver besides the copies of runs that end in
// it (of two sequences at most, by their prompts).
static void digests_take_few_calls_of_a_step(void) {
    tiny_open(&tiny, MODEL_LLAMA, CONTEXT, SEED);
    draw_prompts(SEED);
    standin_reset(&good);
    struct engine *engine = NULL;
    struct sov_fault fault = {0};
    struct engine_config config = {
        .context = CONTEXT, .max_seqs = COPY_ROWS, .n_threads = 1, .no_prefix_sharing = true};
    CHECK(open_on(ENGINE_CUDA, config, &engine, &fault) == SOV_OK);
    for (u32 i = 0; i < COPY_ROWS; i++) {
        engine_sequence sequence;
        struct engine_request request = request_of(i, 1 + i % 5, COPY_NEW);
        request.ignore_end = true;
        CHECK(engine_submit(engine, &request, &sequence, &fault) == SOV_OK);
    }
    struct engine_report report = {.n_live = COPY_ROWS};
    u32 most = 0, n_seen = 0;
    for (u32 step = 0; step < STEPS_MAX && report.n_live == COPY_ROWS; step++) {
        struct engine_inputs inputs = {.power = POWER_ACTIVE};
        u32 before = standin_report()->n_calls;
        CHECK(engine_step(engine, &inputs, &report, &fault) == SOV_OK);
        bool is_captured = report.n_rows == COPY_ROWS && n_seen++ >= 2;
        if (is_captured) most = MAX(most, standin_report()->n_calls - before);
    }
    CHECK(n_seen > COPY_NEW / 2);
    CHECK_MSG(most > 0 && most <= COPY_CALLS, "%u calls of the driver for a step of %u rows", most,
              (u32)COPY_ROWS);
    test_note("at most %u calls of the driver for a step of %u rows", most, (u32)COPY_ROWS);
    engine_close(engine);
    tiny_close(&tiny);
}

// Fails the call alone, or with all that follow.
static u32 run_failing(u32 call, bool is_sticky, u32 n_open, const struct result *expected) {
    struct standin_config standin = good;
    standin.fail_call = call;
    standin.is_sticky = is_sticky;
    standin.deferred = call % 3;
    standin_reset(&standin);
    u64 mapped = platform_memory_mapped();
    struct result r = run_small(ENGINE_CUDA, small);
    const struct standin_report *report = standin_report();
    const char *entry = report->failed_entry;
    u32 n_calls = report->n_calls;
    CHECK_MSG(platform_memory_mapped() == mapped, "call %u: memory is left mapped", call);
    if (r.status != SOV_OK) {
        // Nobody waits for a release; what comes next then says what is wrong.
        bool is_release = contains(entry, "Destroy");
        CHECK_MSG(r.status == SOV_ERR_IO && (is_release || contains(r.fault.message, entry)),
                  "call %u, %s: %s", call, entry, r.fault.message);
    }
    // What was committed is right whatever happened, and one failure is overcome.
    CHECK_MSG(r.n <= expected->n && memcmp(r.tokens, expected->tokens, r.n * sizeof(u32)) == 0,
              "call %u, %s: another token", call, entry);
    if (call > n_open && call <= n_calls && !is_sticky) {
        CHECK_MSG(r.status == SOV_OK && same_tokens(&r, expected), "call %u, %s: %s", call, entry,
                  r.fault.message);
    } else if (call > 0 && call <= n_open) {
        CHECK_MSG(r.status != SOV_OK, "call %u, %s: nobody noticed", call, entry);
        CHECK(r.n == 0);
    }
    char where[64];
    struct text t = TEXT_OVER_ARRAY(where);
    text_format(&t, "call %u%s", call, is_sticky ? " and all after it" : "");
    check_books(where);
    return n_calls;
}

static void every_call_may_fail(void) {
    tiny_open(&tiny, MODEL_LLAMA, CONTEXT, SEED);
    draw_prompts(SEED);
    struct result expected = run_small(ENGINE_CPU, small);
    standin_reset(&good);
    struct engine *engine = NULL;
    struct sov_fault fault = {0};
    CHECK(open_on(ENGINE_CUDA, small, &engine, &fault) == SOV_OK);
    u32 n_open = standin_report()->n_calls;
    engine_close(engine);
    u32 n_calls = run_failing(0, false, 0, &expected);
    bool is_full = test_option("FULL") != NULL;
    u32 n_runs = 0;
    for (u32 call = 1; call <= n_calls; call++) {
        // Calls of opening are alike; those of a step are as many as there are kernels.
        if (!is_full && call % (call <= n_open ? 5 : 3) != 0) continue;
        run_failing(call, false, n_open, &expected);
        n_runs++;
        if (!is_full && call % 4 != 0) continue;
        run_failing(call, true, n_open, &expected);
        n_runs++;
    }
    test_note("%u calls, %u of them in opening; %u runs", n_calls, n_open, n_runs);
    tiny_close(&tiny);
}

// A lost card: the message names the call, and the kernel that it was for.
static void a_fault_names_the_kernel(void) {
    tiny_open(&tiny, MODEL_LLAMA, CONTEXT, SEED);
    draw_prompts(SEED);
    standin_reset(&good);
    struct engine *engine = NULL;
    struct sov_fault fault = {0};
    CHECK(open_on(ENGINE_CUDA, small, &engine, &fault) == SOV_OK);
    u32 n_open = standin_report()->n_calls;
    engine_close(engine);
    static const struct {
        u32 call; // after opening
        const char *message;
    } rows[] = {
        {1, "cuStreamSynchronize (power word): CUDA_ERROR_LAUNCH_FAILED, 719"},
        {2, "cuMemcpyHtoDAsync_v2 (power word)"},
        {3, "cuMemcpyHtoDAsync_v2 (inputs)"},
        {4, "cuMemcpyHtoDAsync_v2 (block tables)"},
        {5, "cuMemsetD8Async (status words)"},
        {6, "cuLaunchKernel (embed_f32)"},
        {7, "cuLaunchKernel (rmsnorm_fused)"},
        {8, "cuLaunchKernel (gemv_f32_4)"},
    };
    struct engine_config config = small;
    config.retries = 0;
    for (u32 i = 0; i < COUNT_OF(rows); i++) {
        struct standin_config standin = good;
        standin.fail_call = n_open + rows[i].call;
        standin.is_sticky = true;
        standin_reset(&standin);
        struct result r = run_small(ENGINE_CUDA, config);
        CHECK_MSG(r.status == SOV_ERR_IO && contains(r.fault.message, rows[i].message), "%s",
                  r.fault.message);
        CHECK(r.finish == FINISH_FAILED && r.n == 0);
        check_books("lost card");
    }
    tiny_close(&tiny);
}

// --- power ---

// The stop word is set when so many kernels of the whole run were executed: the step gives nothing,
// and what comes after the power came back is what would have come without all this.
static void power_that_goes_changes_no_token(void) {
    tiny_open(&tiny, MODEL_GEMMA3, CONTEXT, SEED);
    draw_prompts(SEED);
    struct result expected = run_small(ENGINE_CPU, small);
    struct engine_config config = small;
    config.stop_word = &stop_word;
    u32 n_interrupted = 0, n_late = 0;
    for (u32 at = 1; at < 600; at += test_option("FULL") != NULL ? 1 : 13) {
        struct standin_config standin = good;
        standin.deferred = 1 + at % 4;
        standin.stop_word = &stop_word;
        standin.stop_at_launch = at;
        standin_reset(&standin);
        stop_word = 0;
        struct result r = run_small(ENGINE_CUDA, config);
        CHECK_MSG(r.status == SOV_OK && same_tokens(&r, &expected), "launch %u: %u tokens, %s", at,
                  r.n, r.fault.message);
        CHECK_MSG(r.n_failed == 0, "launch %u: %u attempts failed", at, r.n_failed);
        n_interrupted += r.n_interrupted;
        n_late += r.n_late;
        check_books("power");
    }
    CHECK(n_interrupted > 10 && n_late * 20 < n_interrupted);
    test_note("%u steps interrupted, %u stopped behind their last kernel", n_interrupted, n_late);
    stop_word = 0;
    tiny_close(&tiny);
}

// --- values that are not finite ---

static void faults_are_worded_as_the_cpus(void) {
    static const struct {
        enum model_arch arch;
        const char *tensor;
    } rows[] = {
        {MODEL_LLAMA, "token_embd.weight"},      {MODEL_LLAMA, "blk.1.attn_q.weight"},
        {MODEL_LLAMA, "blk.2.attn_k.weight"},    {MODEL_LLAMA, "blk.0.attn_v.weight"},
        {MODEL_LLAMA, "blk.0.ffn_down.weight"},  {MODEL_LLAMA, "blk.2.ffn_down.weight"},
        {MODEL_LLAMA, "output.weight"},          {MODEL_GEMMA3, "blk.1.attn_q.weight"},
        {MODEL_GEMMA3, "blk.2.ffn_down.weight"}, {MODEL_QWEN3, "blk.0.attn_k.weight"},
        {MODEL_QWEN2, "output.weight"},
    };
    struct engine_config config = small;
    config.retries = 0;
    standin_reset(&good);
    draw_prompts(SEED);
    for (u32 i = 0; i < COUNT_OF(rows); i++) {
        tiny_open(&tiny, rows[i].arch, CONTEXT, SEED);
        u8 *weight = tiny_bytes(&tiny, rows[i].tensor);
        bool is_embedding = contains(rows[i].tensor, "token_embd");
        for (u32 at = 0; at < (is_embedding ? TINY_VOCAB * TINY_EMBD * 4 : 4); at += 4) {
            store_u32(weight + at, 0x7fc00000);
        }
        struct result cpu = run_small(ENGINE_CPU, config), cuda = run_small(ENGINE_CUDA, config);
        CHECK_MSG(cpu.status == SOV_ERR_NON_FINITE && cuda.status == cpu.status &&
                      str_equal(str_from_z(cpu.fault.message), str_from_z(cuda.fault.message)),
                  "%s: \"%s\" and \"%s\"", rows[i].tensor, cpu.fault.message, cuda.fault.message);
        tiny_close(&tiny);
    }
    check_books("not finite");
}

// --- memory, and no card ---

static void memory_is_what_was_planned(void) {
    tiny_open(&tiny, MODEL_LLAMA, CONTEXT, SEED);
    struct engine_config config = small;
    struct engine_memory memory;
    struct sov_fault fault = {0};
    config.device = ENGINE_CUDA;
    CHECK(engine_config_resolve(&config, &tiny.model, &fault) == SOV_OK);
    CHECK(engine_memory_plan(&tiny.model, &config, &memory, &fault) == SOV_OK);
    u64 total = memory.card_weights + memory.card_kv + memory.card_rest;
    test_note("weights %llu, KV %llu, rest %llu, pinned %llu, arena %llu", memory.card_weights,
              memory.card_kv, memory.card_rest, memory.pinned, memory.total);
    for (u32 i = 0; i < 2; i++) {
        struct standin_config standin = good;
        struct engine *engine = NULL;
        fault = (struct sov_fault){0};
        standin.memory_bytes = total - i;
        standin_reset(&standin);
        enum sov_status status = open_on(ENGINE_CUDA, small, &engine, &fault);
        CHECK_MSG(status == (i == 0 ? SOV_OK : SOV_ERR_MEMORY), "%s", fault.message);
        if (status == SOV_OK) engine_close(engine);
        if (i == 1) CHECK_MSG(contains(fault.message, "on the card for"), "%s", fault.message);
        check_books("memory");
        status = open_on(ENGINE_AUTO, small, &engine, &fault); // takes the CPU where it must
        CHECK_MSG(status == SOV_OK, "%s", fault.message);
        if (status != SOV_OK) continue;
        CHECK((engine_card(engine) != NULL) == (i == 0));
        CHECK((engine_card_refused(engine) == NULL) == (i == 0));
        engine_close(engine);
        check_books("auto");
    }
    tiny_close(&tiny);
}

static void what_kernels_lack_is_refused(void) {
    static const struct {
        int capability;
        const char *message;
    } rows[] = {{86, "compute capability 8.6, expected 8.9 or above"}};
    tiny_open(&tiny, MODEL_LLAMA, CONTEXT, SEED);
    for (u32 i = 0; i < COUNT_OF(rows); i++) {
        struct standin_config standin = good;
        struct engine *engine = NULL;
        struct sov_fault fault = {0};
        standin.major = rows[i].capability / 10;
        standin.minor = rows[i].capability % 10;
        standin_reset(&standin);
        CHECK(open_on(ENGINE_CUDA, small, &engine, &fault) == SOV_ERR_UNSUPPORTED);
        CHECK_MSG(contains(fault.message, rows[i].message), "%s", fault.message);
        struct result r = run_small(ENGINE_AUTO, small), expected = run_small(ENGINE_CPU, small);
        CHECK(r.status == SOV_OK && same_tokens(&r, &expected));
        check_books("refusal");
    }
    tiny_close(&tiny);
}

static const struct test_case cases[] = {
    {"every_step_is_the_cpus", every_step_is_the_cpus},
    {"every_call_may_fail", every_call_may_fail},
    {"a_fault_names_the_kernel", a_fault_names_the_kernel},
    {"digests_take_few_calls_of_a_step", digests_take_few_calls_of_a_step},
    {"power_that_goes_changes_no_token", power_that_goes_changes_no_token},
    {"faults_are_worded_as_the_cpus", faults_are_worded_as_the_cpus},
    {"memory_is_what_was_planned", memory_is_what_was_planned},
    {"what_kernels_lack_is_refused", what_kernels_lack_is_refused},
};

int program_main(const struct platform_start *start) {
    if (!standin_find(start)) return 1;
    return test_main(start, "test_cuda_engine", cases, COUNT_OF(cases));
}
