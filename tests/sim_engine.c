// SPDX-License-Identifier: Apache-2.0
// Simulation: the real engine, scheduler, allocator and event chain over a stub backend, a clock, a
// checkpoint store and a power supply that are all simulated from one seed. Requests come, are
// cancelled and run out of time; blocks run out; operations, receipts and histories fail; the power
// goes and comes back. After every step:
//
//   blocks are conserved, each with as many owners as references; states are sound
//   every event has the number after the one before, and the digest it has when its request runs
//     alone and undisturbed: so nothing is lost, repeated, published early or changed
//   a sequence ends once, for a reason that there was; what the store learns of its end is what it
//     learns when the request runs alone
//
// Some requests are interrupted and go on later from a checkpoint that was durable, in the same
// engine or in another, and repeat what came after it.
//
// and in the end all blocks are free and no checkpoint is left. SEEDS=n and STEPS=n set how much;
// SEED=n runs one seed.
#include "sim_pool.h"

#define SEQUENCES_MAX 12
#define DRAIN_STEPS_MAX 100000

// The newest checkpoint of each request that the store has, of any run; and those on their way.
#define SAVED_BYTES_MAX (1u << 17)
struct saved {
    struct checkpoint_id id;
    usize n;
    u8 bytes[SAVED_BYTES_MAX];
};
static struct saved durable[POOL], begun[POOL][CHECKPOINT_FINISH];

// A request in flight, or not.
struct flight {
    engine_sequence sequence; // 0: not in flight
    u32 n_events, n_tokens;
    bool was_cancelled;
    u64 deadline_ns;
    bool was_recorded; // its end, with these bytes
    struct sha256_digest record;
};

// --- the simulated world ---

struct world {
    struct test_random random;
    u64 seed, now_ns, n_calls, fail_call; // fail_call: this call of the probe fails; 0: none
    u32 fault_rate;                       // one call in so many fails; 0: none
    u32 n_faults;
    struct checkpoint_memory memory;
    struct checkpoint_store store;
    u32 delay_max;
    u32 retries;
    struct flight flights[POOL];
    u32 n_in_flight;
    u64 n_ended[FINISH_FAILED + 1];
    u64 n_steps, n_rows, n_swaps, n_spills, n_shared, n_checkpoints, n_copied;
    u64 n_resumed, n_recorded;
};
static struct world world;

static bool draws_fault(struct world *w) {
    w->n_calls++;
    bool fails = w->n_calls == w->fail_call ||
                 (w->fault_rate != 0 && test_random_below(&w->random, w->fault_rate) == 0);
    w->n_faults += fails;
    return fails;
}

static enum sov_status probe(void *context, const char *operation, struct sov_fault *fault) {
    if (!draws_fault(context)) return SOV_OK;
    return fault_set(fault, SOV_ERR_IO, "simulated: %s", operation);
}

static enum sov_status store_begin(void *context, const struct checkpoint_id *id, struct str bytes,
                                   struct sov_fault *fault) {
    struct world *w = context;
    if (draws_fault(w)) return fault_set(fault, SOV_ERR_IO, "simulated: begin");
    w->memory.delay = w->delay_max == 0 ? 0 : test_random_below(&w->random, w->delay_max);
    struct checkpoint_store memory = checkpoint_memory_store(&w->memory);
    struct saved *saved = &begun[id->sequence_id - FIRST_ID][id->kind];
    assert(bytes.len <= SAVED_BYTES_MAX && id->kind < CHECKPOINT_FINISH);
    saved->id = *id;
    saved->n = bytes.len;
    memcpy(saved->bytes, bytes.data, bytes.len);
    return memory.begin(memory.context, id, bytes, fault);
}

static enum sov_status store_poll(void *context, const struct checkpoint_id *id,
                                  enum checkpoint_progress *progress,
                                  struct checkpoint_receipt *receipt, struct sov_fault *fault) {
    struct world *w = context;
    if (draws_fault(w)) return fault_set(fault, SOV_ERR_IO, "simulated: poll");
    struct checkpoint_store memory = checkpoint_memory_store(&w->memory);
    enum sov_status status = memory.poll(memory.context, id, progress, receipt, fault);
    if (status == SOV_OK && *progress == CHECKPOINT_DURABLE) {
        const struct saved *saved = &begun[id->sequence_id - FIRST_ID][id->kind];
        assert(saved->id.n_tokens == id->n_tokens);
        durable[id->sequence_id - FIRST_ID] = *saved;
    }
    return status;
}

static enum sov_status store_finish(void *context, const struct checkpoint_id *id, struct str bytes,
                                    struct sov_fault *fault) {
    struct flight *f = &world.flights[id->sequence_id - FIRST_ID];
    struct payload_checkpoint end;
    (void)context;
    CHECK(payload_checkpoint_read(bytes, &end, fault) == SOV_OK && end.kind == PAYLOAD_FINISH);
    f->was_recorded = true;
    f->record = sha256_of(bytes);
    return SOV_OK;
}

static void store_forget(void *context, const struct checkpoint_id *id) {
    struct world *w = context;
    struct checkpoint_store memory = checkpoint_memory_store(&w->memory);
    memory.forget(memory.context, id);
}

// --- checks ---

// Ends for which there must have been a cause.
static void check_end(const struct flight *f, const struct expectation *e,
                      enum finish_reason finish, const struct sov_fault *fault) {
    switch (finish) {
    case FINISH_STOP:
    case FINISH_LENGTH:
        CHECK_MSG(finish == e->finish && f->n_tokens == e->n_tokens && f->n_events == e->n_events,
                  "seed %llu: request %llu ended with %u tokens of %u", world.seed, e->request.id,
                  f->n_tokens, e->n_tokens);
        CHECK_MSG(f->was_recorded && sha256_equal(&f->record, &e->record),
                  "seed %llu: request %llu: the store learns of another end", world.seed,
                  e->request.id);
        world.n_recorded++;
        break;
    case FINISH_CANCEL: CHECK(f->was_cancelled); break;
    case FINISH_DEADLINE: CHECK(f->deadline_ns != 0 && world.now_ns >= f->deadline_ns); break;
    case FINISH_FAILED:
        CHECK(fault != NULL && fault->status != SOV_OK);
        CHECK_MSG(world.n_faults > world.retries || e->finish == FINISH_FAILED,
                  "seed %llu: request %llu failed without a cause: %s", world.seed, e->request.id,
                  fault->message);
        break;
    default: CHECK(!"an end without a reason");
    }
}

static void check_output(const struct engine_output *output) {
    const struct sov_event *event = &output->event;
    u64 i = event->sequence_id - FIRST_ID;
    assert(i < POOL);
    struct flight *f = &world.flights[i];
    const struct expectation *e = &pool[i];
    CHECK_MSG(f->sequence == output->sequence, "seed %llu: an event of nobody", world.seed);
    CHECK_MSG(event->number == f->n_events, "seed %llu: request %llu: event %llu instead of %u",
              world.seed, e->request.id, event->number, f->n_events);
    f->n_events++;
    bool is_whole = event->type != EVENT_FINISHED || event->finish == e->finish;
    if (event->type == EVENT_TOKEN) {
        bool right = f->n_tokens < e->n_tokens && e->tokens[f->n_tokens] == event->sampled_token_id;
        CHECK_MSG(right, "seed %llu: request %llu: token %u differs", world.seed, e->request.id,
                  f->n_tokens);
        f->n_tokens++;
    }
    bool same = event->number < e->n_events &&
                sha256_equal(&e->digests[event->number], &event->transition_digest);
    // A sequence that is ended from outside has an end of its own.
    bool comparable = event->type != EVENT_FINISHED || (is_whole && f->n_tokens == e->n_tokens);
    CHECK_MSG(same || !comparable, "seed %llu: request %llu: the digest of event %llu differs",
              world.seed, e->request.id, event->number);
    if (event->type != EVENT_FINISHED) return;
    check_end(f, e, event->finish, output->fault);
    world.n_ended[event->finish]++;
    *f = (struct flight){0};
    world.n_in_flight--;
}

static struct engine_report step(struct engine *engine, enum power_state power) {
    struct engine_inputs inputs = {.now_ns = world.now_ns, .power = power};
    struct engine_report report;
    struct sov_fault fault = {0};
    u32 in_flight = world.n_in_flight;
    enum sov_status status = engine_step(engine, &inputs, &report, &fault);
    CHECK(status == SOV_OK);
    for (u32 i = 0; i < report.n_outputs; i++) check_output(&report.outputs[i]);
    engine_assert_consistent(engine);
    CHECK(report.n_live == world.n_in_flight && report.n_live <= in_flight);
    CHECK(power != POWER_SUSPEND || (report.n_outputs == 0 && report.n_rows == 0));
    CHECK((report.n_failed > 0) == (report.fault != NULL));
    world.now_ns += test_random_below(&world.random, 1000);
    world.n_steps++;
    return report;
}

// --- a run ---

static void maybe_submit(struct engine *engine, bool deadlines) {
    u32 i = test_random_below(&world.random, POOL);
    struct flight *f = &world.flights[i];
    if (f->sequence != 0) return;
    struct engine_request request = pool[i].request;
    u64 deadline = 0;
    if (deadlines && test_random_below(&world.random, 10) == 0) {
        deadline = world.now_ns + 1 + test_random_below(&world.random, 60000);
    }
    request.deadline_ns = deadline;
    struct sov_fault fault = {0};
    struct payload_checkpoint history;
    const struct saved *saved = &durable[i];
    if (saved->n > 0 && test_random_below(&world.random, 2) == 0) {
        CHECK(payload_checkpoint_read((struct str){saved->bytes, saved->n}, &history, &fault) ==
              SOV_OK);
        request.history = &history;
        request.history_hash = sha256_of((struct str){saved->bytes, saved->n});
    }
    bool room = engine_room(engine) > 0;
    engine_sequence sequence = 0;
    enum sov_status status = engine_submit(engine, &request, &sequence, &fault);
    CHECK_MSG(status == (room ? SOV_OK : SOV_ERR_STATE), "%s", fault.message);
    if (!room) return;
    *f = (struct flight){.sequence = sequence, .deadline_ns = deadline};
    world.n_in_flight++;
    if (request.history == NULL) return;
    f->n_events = (u32)history.event_number;
    f->n_tokens = f->n_events > 0 ? f->n_events - 1 : 0;
    world.n_resumed += f->n_tokens > 0;
}

static void maybe_cancel(struct engine *engine) {
    struct flight *f = &world.flights[test_random_below(&world.random, POOL)];
    if (f->sequence == 0) {
        engine_cancel(engine, 12345678); // nobody
        return;
    }
    if (test_random_below(&world.random, 2) == 0) {
        engine_interrupt(engine, f->sequence);
    } else {
        engine_cancel(engine, f->sequence);
    }
    f->was_cancelled = true;
}

static enum power_state draw_power(enum power_state before) {
    if (test_random_below(&world.random, 12) != 0) return before;
    u32 drawn = test_random_below(&world.random, 6);
    return drawn == 0 ? POWER_SUSPEND : drawn == 1 ? POWER_LOW_BATTERY : POWER_ACTIVE;
}

static struct engine_config draw_config(struct test_random *random) {
    struct engine_config config = {
        .max_seqs = 1 + test_random_below(random, SEQUENCES_MAX),
        .prefill_chunk = 1 + test_random_below(random, 40),
        .token_budget = 1 + test_random_below(random, 60),
        .no_prefix_sharing = test_random_below(random, 4) == 0,
        .run_ahead = test_random_below(random, ENGINE_RUN_AHEAD_MAX + 1),
        .retries = test_random_below(random, 4),
        .kv_shuffle = test_random_below(random, 2) == 0,
    };
    config.kv_blocks = CONTEXT_BLOCKS + test_random_below(random, CONTEXT_BLOCKS);
    config.spill_blocks = test_random_below(random, 3) * test_random_below(random, 30);
    return config;
}

static struct engine *begin_world(u64 seed, struct engine_config config,
                                  const struct engine_backend *backend, struct arena *arena) {
    struct sov_fault fault = {0};
    enum sov_status status =
        checkpoint_memory_create(&world.memory, 2 * SEQUENCES_MAX, 0, arena, &fault);
    assert(status == SOV_OK);
    world.seed = seed;
    world.retries = config.retries;
    world.store = (struct checkpoint_store){
        .context = &world,
        .begin = store_begin,
        .poll = store_poll,
        .forget = store_forget,
        .finish = store_finish,
    };
    config.store = &world.store;
    config.probe = probe;
    config.probe_context = &world;
    return open_engine(config, backend);
}

static void end_world(struct engine *engine) {
    struct engine_statistics statistics = engine_statistics_of(engine);
    world.n_rows += statistics.n_rows;
    world.n_swaps += statistics.n_swaps;
    world.n_spills += statistics.n_spills;
    world.n_shared += statistics.n_shared_tokens;
    world.n_checkpoints += statistics.n_checkpoints;
    world.n_copied += statistics.kv.n_copied;
    engine_forget_prefixes(engine);
    engine_assert_consistent(engine);
    struct kv_statistics kv = engine_statistics_of(engine).kv;
    CHECK_MSG(kv.n_free == kv.n_blocks && kv.n_allocated == kv.n_freed && kv.n_idle == 0,
              "seed %llu: %u of %u blocks are free", world.seed, kv.n_free, kv.n_blocks);
    for (u32 i = 0; i < world.memory.capacity; i++) CHECK(!world.memory.entries[i].used);
    engine_close(engine);
}

static void drain(struct engine *engine) {
    for (u32 i = 0; world.n_in_flight > 0; i++) {
        step(engine, POWER_ACTIVE);
        if (i < DRAIN_STEPS_MAX) continue;
        CHECK_MSG(false, "seed %llu: %u requests do not end", world.seed, world.n_in_flight);
        return;
    }
}

static void run_seed(u64 seed, u32 n_steps, const struct engine_backend *backend,
                     struct arena arena) {
    u64 n_before = world.n_steps;
    world.random = (struct test_random){seed};
    world.fault_rate = 0;
    world.n_faults = 0;
    memset(world.flights, 0, sizeof world.flights);
    world.n_in_flight = 0;
    struct engine_config config = draw_config(&world.random);
    world.delay_max = test_random_below(&world.random, 3) * test_random_below(&world.random, 30);
    u32 arrivals = 1 + test_random_below(&world.random, 8);
    bool has_faults = test_random_below(&world.random, 2) == 0;
    bool has_power = test_random_below(&world.random, 2) == 0;
    bool has_ends = test_random_below(&world.random, 2) == 0;
    struct engine *engine = begin_world(seed, config, backend, &arena);
    if (has_faults) world.fault_rate = 20 + test_random_below(&world.random, 400);
    enum power_state power = POWER_ACTIVE;
    while (world.n_steps - n_before < n_steps) {
        if (test_random_below(&world.random, arrivals) == 0) maybe_submit(engine, has_ends);
        if (has_ends && test_random_below(&world.random, 30) == 0) maybe_cancel(engine);
        if (has_power) power = draw_power(power);
        step(engine, power);
    }
    drain(engine);
    end_world(engine);
}

static u64 number_option(const char *name, u64 otherwise) {
    u64 value = otherwise;
    const char *text = test_option(name);
    if (text != NULL && !text_parse_u64(str_from_z(text), &value))
        test_fail(__FILE__, __LINE__, "%s", name);
    return value;
}

static struct arena map_arena(void) {
    u64 bytes = checkpoint_memory_bytes(2 * SEQUENCES_MAX);
    void *mapped = platform_memory_map(bytes);
    assert(mapped != NULL);
    return arena_over(mapped, bytes);
}

static void open_world(bool poisonous) {
    tiny_open(&tiny, MODEL_LLAMA, CONTEXT, 1);
    memset(&stub, 0, sizeof stub);
    stub.poisonous = poisonous;
    memset(&world, 0, sizeof world);
    for (u32 i = 0; i < POOL; i++) durable[i].n = 0;
}

static void seeds(void) {
    bool full = test_option("FULL") != NULL;
    u64 n_seeds = number_option("SEEDS", full ? 20000 : 200);
    u64 n_steps = number_option("STEPS", 500);
    u64 first = number_option("SEED", 1);
    if (test_option("SEED") != NULL) n_seeds = 1;
    open_world(true);
    struct engine_backend backend = stub_backend(&stub);
    struct arena arena = map_arena();
    make_pool(&backend, false);
    for (u64 seed = first; seed < first + n_seeds; seed++) {
        run_seed(seed, (u32)n_steps, &backend, arena);
    }
    test_note("%llu steps, %llu rows, %llu swaps, %llu of them spilled, %llu tokens shared, %llu "
              "blocks copied, %llu checkpoints",
              world.n_steps, world.n_rows, world.n_swaps, world.n_spills, world.n_shared,
              world.n_copied, world.n_checkpoints);
    test_note("ends: %llu stop, %llu length, %llu cancel, %llu deadline, %llu failed",
              world.n_ended[FINISH_STOP], world.n_ended[FINISH_LENGTH],
              world.n_ended[FINISH_CANCEL], world.n_ended[FINISH_DEADLINE],
              world.n_ended[FINISH_FAILED]);
    test_note("%llu ends as alone, %llu went on from a checkpoint", world.n_recorded,
              world.n_resumed);
    if (n_seeds >= 50) { // everything has happened
        CHECK(world.n_recorded > 1000 && world.n_resumed > 100);
        CHECK(world.n_swaps > 100 && world.n_spills > 10 && world.n_shared > 1000);
        CHECK(world.n_checkpoints > 100 && world.n_copied > 10);
        for (u32 i = FINISH_STOP; i <= FINISH_FAILED; i++) CHECK(world.n_ended[i] > 10);
    }
    platform_memory_unmap(arena.base, arena.size);
    tiny_close(&tiny);
}

// The same over the tiny model itself.
static void real_model(void) {
    open_world(false);
    struct arena arena = map_arena();
    make_pool(NULL, false);
    bool full = test_option("FULL") != NULL;
    for (u64 seed = 1; seed <= (full ? 40 : 2); seed++) run_seed(seed, 100, NULL, arena);
    CHECK(world.n_ended[FINISH_LENGTH] + world.n_ended[FINISH_STOP] > 2);
    platform_memory_unmap(arena.base, arena.size);
    tiny_close(&tiny);
}

// One scenario again and again: the first call fails, then the second, and so on, until a run needs
// no more calls. With a retry nothing is lost; without, at most one sequence is.
static void every_call(void) {
    open_world(false);
    struct engine_backend backend = stub_backend(&stub);
    struct arena memory = map_arena();
    make_pool(&backend, false);
    bool full = test_option("FULL") != NULL;
    for (u32 retries = 0; retries <= 1; retries++) {
        u64 n = 1, n_needed = 0;
        do {
            struct arena arena = memory;
            memset(&world, 0, sizeof world);
            world.random = (struct test_random){5};
            world.fail_call = n;
            world.delay_max = 4;
            struct engine_config config = {
                .max_seqs = 4,
                .prefill_chunk = 24,
                .token_budget = 30,
                .kv_blocks = CONTEXT_BLOCKS + 2,
                .spill_blocks = 8,
                .run_ahead = 3,
                .retries = retries,
            };
            struct engine *engine = begin_world(n, config, &backend, &arena);
            while (world.n_steps < 60) {
                if (world.n_steps % 5 == 0) maybe_submit(engine, false);
                step(engine, world.n_steps == 40 ? POWER_SUSPEND : POWER_ACTIVE);
            }
            drain(engine);
            u64 n_swaps = world.n_swaps;
            end_world(engine);
            CHECK(world.n_swaps > n_swaps || n > 1);
            CHECK_MSG(world.n_ended[FINISH_FAILED] <= 1 - retries, "call %llu", n);
            n_needed = world.n_calls;
            n += full || n < 300 ? 1 : 7;
        } while (n <= n_needed);
        test_note("%llu calls with %u retries", n_needed, retries);
        CHECK(n_needed > 200);
    }
    platform_memory_unmap(memory.base, memory.size);
    tiny_close(&tiny);
}

// Opening an engine while the n-th of the platform's calls fails: refused, and nothing is left. The
// linker puts these in front of the platform's functions.
static u32 platform_calls_left; // until one fails; 0: none does

static bool platform_fails(void) { return platform_calls_left != 0 && --platform_calls_left == 0; }

void *__real_platform_memory_map(usize bytes);
void *__wrap_platform_memory_map(usize bytes);
void *__wrap_platform_memory_map(usize bytes) {
    return platform_fails() ? NULL : __real_platform_memory_map(bytes);
}

void *__real_platform_memory_map_at(void *address, usize bytes);
void *__wrap_platform_memory_map_at(void *address, usize bytes);
void *__wrap_platform_memory_map_at(void *address, usize bytes) {
    return platform_fails() ? NULL : __real_platform_memory_map_at(address, bytes);
}

enum sov_status __real_platform_thread_start(platform_thread_main *main, void *argument,
                                             struct platform_thread **thread,
                                             struct sov_fault *fault);
enum sov_status __wrap_platform_thread_start(platform_thread_main *main, void *argument,
                                             struct platform_thread **thread,
                                             struct sov_fault *fault);
enum sov_status __wrap_platform_thread_start(platform_thread_main *main, void *argument,
                                             struct platform_thread **thread,
                                             struct sov_fault *fault) {
    if (platform_fails()) return fault_set(fault, SOV_ERR_IO, "simulated: thread");
    return __real_platform_thread_start(main, argument, thread, fault);
}

static void every_platform_call(void) {
    open_world(false);
    struct engine_config config = {
        .context = CONTEXT, .max_seqs = 5, .n_threads = 4, .has_janet = true};
    struct sov_fault fault = {0};
    CHECK(engine_config_resolve(&config, &tiny.model, &fault) == SOV_OK);
    enum sov_status status = SOV_ERR_MEMORY;
    u32 n = 0;
    while (status != SOV_OK && n < 100) {
        struct engine *engine = NULL;
        u64 mapped = platform_memory_mapped();
        fault = (struct sov_fault){0};
        platform_calls_left = ++n;
        status = engine_open(&tiny.model, &config, &engine, &fault);
        platform_calls_left = 0;
        CHECK((status == SOV_OK) == (fault.status == SOV_OK) && status == fault.status);
        if (status == SOV_OK) engine_close(engine);
        CHECK_MSG(platform_memory_mapped() == mapped, "call %u: memory is left", n);
    }
    CHECK_MSG(n == 7, "%u calls", n); // plan, arena, Janet, three threads, and one that needs none
    tiny_close(&tiny);
}

static const struct test_case cases[] = {
    {"seeds", seeds},
    {"real_model", real_model},
    {"every_call", every_call},
    {"every_platform_call", every_platform_call},
};

int program_main(const struct platform_start *start) {
    return test_main(start, "sim_engine", cases, COUNT_OF(cases));
}
