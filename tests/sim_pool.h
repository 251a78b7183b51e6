// SPDX-License-Identifier: Apache-2.0
// What simulations ask an engine for: a pool of requests over a tiny model, and what comes of each
// when it runs alone and undisturbed: tokens, digests of its events, and what the store is told.
#pragma once
#include "freestanding/mem.h"
#include "record/sealed.h"
#include "stub_backend.h"

#define CONTEXT 208 // three boundaries of 64
#define CONTEXT_BLOCKS (CONTEXT / SOV_KV_BLOCK_SIZE)
#define POOL 48 // distinct requests
#define FIRST_ID 7000

static struct tiny tiny;
static struct stub stub;

struct expectation { // of a request that runs alone
    struct engine_request request;
    u32 prompt[CONTEXT];
    u32 n_tokens, n_events;
    u32 tokens[CONTEXT];
    struct sha256_digest digests[CONTEXT + 2]; // by event number
    enum finish_reason finish;
    // What the store is told: of its beginning and its boundaries in order, and of its end.
    struct sha256_digest states[1 + CONTEXT / 64], record;
    u32 n_states;
    u8 what[SEALED_OPENING_HEAD_BYTES +
            24]; // stands for the request; an opening where it is sealed
};
static struct expectation pool[POOL];

static struct engine *open_engine(struct engine_config config,
                                  const struct engine_backend *backend) {
    struct engine *engine = NULL;
    struct sov_fault fault = {0};
    config.context = CONTEXT;
    config.n_threads = 1;
    config.kv_full = true;
    config.backend = backend;
    config.tokenizer = tiny.vocabulary.tokenizer;
    enum sov_status status = engine_config_resolve(&config, &tiny.model, &fault);
    if (status == SOV_OK) status = engine_open(&tiny.model, &config, &engine, &fault);
    if (status != SOV_OK) test_note("%s", fault.message);
    assert(status == SOV_OK);
    return engine;
}

static bool stop_at_7(void *context, u32 token) {
    (void)context;
    return token == 7;
}

static void draw_request(struct expectation *e, u32 i, bool with_sealed,
                         struct test_random *random) {
    u32 n = 1 + test_random_below(random, i % 5 == 0 ? 150 : 40);
    u32 n_shared = i > 0 ? test_random_below(random, 100) : 0;
    for (u32 k = 0; k < n; k++) {
        e->prompt[k] = k < n_shared ? pool[i / 3].prompt[k]
                                    : test_random_below(random, TINY_LETTERS);
    }
    e->request = (struct engine_request){
        .id = FIRST_ID + i,
        .tokens = e->prompt,
        .n_tokens = n,
        .n_new_max = i % 4 == 0 ? 0 : 1 + test_random_below(random, 100),
        .ignore_end = i % 3 != 0,
        .end_token = i % 6 == 0 ? 11 : TOKEN_NONE,
        .stop = i % 10 == 9 ? stop_at_7 : NULL,
        .sampling = sample_params_default(),
    };
    e->request.sampling.temperature = i % 2 == 0 ? 0 : 1.1f;
    e->request.sampling.seed = i;
    if (i % 8 == 1) e->request.sampling.repeat_penalty = 1.1f;
    if (i % 8 == 3) e->request.sampling.top_k = 0;
    if (i % 7 == 2) e->request.kv_form = PAYLOAD_KV_FULL;
    if (i % 7 == 4) e->request.kv_form = PAYLOAD_KV_TOKENS;
    e->request.is_sealed = with_sealed && i % 3 == 1;
    e->request.salt = sha256_of((struct str){(const u8 *)&i, sizeof i});
    u32 n_head = e->request.is_sealed ? SEALED_OPENING_HEAD_BYTES : 0;
    if (n_head > 0) sealed_opening_head(&e->request.salt, e->what);
    store_u32(e->what + n_head, i);
    e->request.record = (struct str){e->what, n_head + sizeof i};
}

// --- a store in memory that notes what it is told of those who run alone ---

static struct checkpoint_store alone;

static enum sov_status begin_alone(void *context, const struct checkpoint_id *id, struct str bytes,
                                   struct sov_fault *fault) {
    struct expectation *e = &pool[id->sequence_id - FIRST_ID];
    assert(e->n_states < COUNT_OF(e->states));
    e->states[e->n_states++] = sealed_kept_hash(bytes);
    return alone.begin(context, id, bytes, fault);
}

static enum sov_status start_alone(void *context, const struct checkpoint_id *first,
                                   struct str request, struct str bytes, struct sov_fault *fault) {
    (void)request;
    return begin_alone(context, first, bytes, fault);
}

static enum sov_status finish_alone(void *context, const struct checkpoint_id *id, struct str bytes,
                                    struct sov_fault *fault) {
    (void)context;
    (void)fault;
    pool[id->sequence_id - FIRST_ID].record = sealed_kept_hash(bytes);
    return SOV_OK;
}

// Runs each request of the pool alone, undisturbed, without sharing. With `with_sealed` some of
// them are recorded as commitments.
static void make_pool(const struct engine_backend *backend, bool with_sealed) {
    static u8 room[4096] __attribute__((aligned(64)));
    struct checkpoint_memory memory;
    struct arena arena = arena_over(room, sizeof room);
    struct sov_fault ignored = {0};
    enum sov_status created = checkpoint_memory_create(&memory, 4, 0, &arena, &ignored);
    assert(created == SOV_OK);
    alone = checkpoint_memory_store(&memory);
    struct checkpoint_store store = alone;
    store.begin = begin_alone;
    store.start = start_alone;
    store.finish = finish_alone;
    struct test_random random = {20240501};
    memset(pool, 0, sizeof pool);
    for (u32 i = 0; i < POOL; i++) {
        struct expectation *e = &pool[i];
        draw_request(e, i, with_sealed, &random);
        struct engine *engine = open_engine(
            (struct engine_config){.no_prefix_sharing = true, .store = &store}, backend);
        engine_sequence sequence;
        struct sov_fault fault = {0};
        CHECK(engine_submit(engine, &e->request, &sequence, &fault) == SOV_OK);
        struct engine_report report = {.n_live = 1};
        while (report.n_live > 0) {
            struct engine_inputs inputs = {.power = POWER_ACTIVE};
            CHECK(engine_step(engine, &inputs, &report, &fault) == SOV_OK);
            for (u32 k = 0; k < report.n_outputs; k++) {
                const struct sov_event *event = &report.outputs[k].event;
                assert(event->number == e->n_events && e->n_events < CONTEXT + 2);
                e->digests[e->n_events++] = event->transition_digest;
                if (event->type == EVENT_TOKEN) e->tokens[e->n_tokens++] = event->sampled_token_id;
                if (event->type == EVENT_FINISHED) e->finish = event->finish;
            }
        }
        engine_close(engine);
    }
}
