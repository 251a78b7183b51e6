// SPDX-License-Identifier: Apache-2.0
// Simulation of the engine over the real store: recorder (without its thread, recorder_step),
// record store and the simulated disk of its tests. A few requests run while operations of the disk
// fail, the process is killed, power goes in the middle of any operation and unsynced sectors are
// kept, lost or torn; then the store is opened, which recovers it, and what has not ended is
// resumed as sov resume does. From one seed, so every run repeats itself. Checked in each life:
//
//   every event has the number after the one before and the digest that it has when its request
//     runs alone and undisturbed; a token with a receipt is never taken back, nor is an end that
//     was told durable, nor a head that was told
//   a sequence that began and has not ended has exactly one capability to be resumed by
//
// and in the end: the store verifies, and holds of each request the beginning, the boundaries (with
// digests of K and V) and the end that it has alone, byte for byte, each once.
// SEEDS=n sets how much, SEED=n runs one seed.
#define FILE_BYTES_MAX (512 * 1024)
#include "record/recorder.h"
#include "record/sidecar.h"
#include "record/snapshot.h"
#include "sim_disk.h"
#include "sim_pool.h"

#define REQUESTS_MAX 8 // of one seed
#define LIVES_MAX 40   // of which the last ones are undisturbed
#define DISTURBED_MAX 12
#define LIFE_STEPS_MAX 20000
#define PAYLOAD_BYTES_MAX (64 * 1024)

struct request {
    struct expectation *expected;
    engine_sequence sequence; // 0: not in flight
    u32 n_events, n_tokens;   // that came in this life, with those of its history
    bool is_done;             // in this life
    // What the world was told, in any life.
    u64 certified; // number of the last event with a receipt
    bool has_end;  // durable
    // What the store has, when a life begins.
    bool has_request, has_state, has_finish;
    struct sha256_digest capability; // of one with a state that has not ended
    u8 payload[PAYLOAD_BYTES_MAX];   // as disclosed
};

static struct {
    struct sim sim;
    struct rowm_disk disk;
    struct test_random random;
    u64 seed;
    struct request requests[REQUESTS_MAX];
    u32 n_requests;
    struct rowm_expect head; // that was told
    bool has_head, is_interrupted;
    u64 n_lives, n_crashes, n_killed, n_failures, n_interrupted, n_resumed, n_alone, n_certified;
    u64 n_suspensions, n_opened;
    u32 fail_first, crash_second; // operations of the first life and the second; 0: by chance
} world;

static u32 below(u32 limit) { return test_random_below(&world.random, limit); }

static struct request *request_of(u64 owner) {
    for (u32 i = 0; i < world.n_requests; i++) {
        if (world.requests[i].expected->request.id == owner) return &world.requests[i];
    }
    assert(!"a request of the seed");
    return NULL;
}

// --- the store when a life begins ---

// What was recorded, in clear: what is a commitment has its opening in the sidecar.
static struct str open_payload(struct str payload) {
    static u8 opening[PAYLOAD_BYTES_MAX];
    struct sealed sealed;
    struct sidecar *sidecar = NULL;
    struct sov_fault fault = {0};
    struct sha256_digest salt;
    if (!sealed_read(payload, &sealed)) return payload;
    world.n_opened++;
    CHECK(sealed.opening_bytes <= sizeof opening);
    enum sov_status status = sidecar_open(&world.disk, &sidecar, &fault);
    if (status == SOV_OK) status = sidecar_read(sidecar, &sealed, opening, &fault);
    CHECK_MSG(status == SOV_OK, "seed %llu: %s", world.seed, fault.message);
    if (sidecar != NULL) sidecar_close(sidecar);
    if (status != SOV_OK) return (struct str){0};
    return sealed_payload((struct str){opening, (usize)sealed.opening_bytes}, &salt);
}

// What recovery found against what was told before.
static void check_found(const struct request *r) {
    u64 id = r->expected->request.id;
    CHECK_MSG(!r->has_end || r->has_finish, "seed %llu: the end of %llu is gone", world.seed, id);
    CHECK_MSG(r->certified == 0 || r->has_state, "seed %llu: the states of %llu are gone",
              world.seed, id);
    CHECK(r->has_request || !r->has_state);
}

static void look(struct rowm *rowm) {
    struct sov_fault fault = {0};
    struct rowm_report report;
    enum sov_status status =
        sov_rowm_verify(&world.disk, world.has_head ? &world.head : NULL, &report, &fault);
    CHECK_MSG(status == SOV_OK, "seed %llu: %s", world.seed, fault.message);
    for (u32 i = 0; i < world.n_requests; i++) {
        struct request *r = &world.requests[i];
        r->has_request = r->has_state = r->has_finish = false;
        r->n_events = r->n_tokens = 0;
        r->sequence = 0;
    }
    for (u64 i = 0; i < rowm_head(rowm).n_records; i++) {
        struct rowm_record_info info;
        CHECK(rowm_info(rowm, i, &info, &fault) == SOV_OK);
        if (info.kind == ROWM_MANIFEST) continue;
        struct request *r = request_of(info.owner);
        r->has_request = r->has_request || info.kind == ROWM_REQUEST;
        r->has_state = r->has_state || info.kind == ROWM_CHECKPOINT;
        r->has_finish = r->has_finish || info.kind == ROWM_FINISH;
    }
    for (u32 i = 0; i < world.n_requests; i++) {
        struct request *r = &world.requests[i];
        struct rowm_record_info info;
        u64 record = 0, owner = r->expected->request.id;
        check_found(r);
        r->is_done = r->has_finish;
        bool is_there = rowm_find_available(rowm, owner, &record);
        CHECK_MSG(is_there == (r->has_state && !r->has_finish), "seed %llu: %llu has %s capability",
                  world.seed, owner, is_there ? "a" : "no");
        if (!is_there) continue;
        CHECK(rowm_info(rowm, record, &info, &fault) == SOV_OK);
        r->capability = info.capability;
    }
}

// --- a life ---

// What the store has a state of goes on, as sov resume has it: its capability is consumed.
static void submit(struct engine *engine, struct recorder *recorder, struct request *r) {
    struct engine_request request = r->expected->request;
    struct payload_checkpoint history;
    struct sov_fault fault = {0};
    usize n = 0;
    world.n_alone += r->has_request && !r->has_state;
    if (r->has_state) {
        struct rowm_claim claim = {.capability = r->capability, .consumer = request.id};
        claim.txid = sha256_of((struct str){claim.capability.bytes, SHA256_BYTES});
        enum sov_status claimed =
            recorder_resume(recorder, &claim, r->payload, sizeof r->payload, &n, &fault);
        CHECK_MSG(claimed == SOV_OK || recorder_check(recorder, NULL) != SOV_OK, "seed %llu: %s",
                  world.seed, fault.message);
        if (claimed != SOV_OK) return;
        struct str bytes = open_payload((struct str){r->payload, n});
        CHECK(payload_checkpoint_read(bytes, &history, &fault) == SOV_OK);
        CHECK_MSG(history.event_number >= r->certified,
                  "seed %llu: %llu goes on with event %llu, %llu was certified", world.seed,
                  request.id, history.event_number, r->certified);
        request.record = (struct str){0};
        request.history = &history;
        request.history_hash = sha256_of((struct str){r->payload, n});
        r->n_events = (u32)history.event_number;
        r->n_tokens = r->n_events > 0 ? r->n_events - 1 : 0;
        world.n_resumed += r->n_tokens > 0;
    }
    enum sov_status status = engine_submit(engine, &request, &r->sequence, &fault);
    CHECK_MSG(status == SOV_OK || recorder_check(recorder, NULL) != SOV_OK, "seed %llu: %s",
              world.seed, fault.message);
}

static void take(const struct engine_output *output) {
    const struct sov_event *event = &output->event;
    struct request *r = request_of(event->sequence_id);
    const struct expectation *e = r->expected;
    CHECK(r->sequence == output->sequence && event->number == r->n_events);
    bool is_end = event->type == EVENT_FINISHED;
    if (event->type == EVENT_TOKEN) {
        CHECK_MSG(r->n_tokens < e->n_tokens && e->tokens[r->n_tokens] == event->sampled_token_id,
                  "seed %llu: request %llu: token %u differs", world.seed, e->request.id,
                  r->n_tokens);
        r->n_tokens++;
    }
    if (is_end && event->finish == FINISH_CANCEL) {
        CHECK(world.is_interrupted);
    } else {
        CHECK_MSG(event->number < e->n_events &&
                      sha256_equal(&e->digests[event->number], &event->transition_digest),
                  "seed %llu: request %llu: the digest of event %llu differs", world.seed,
                  e->request.id, event->number);
        CHECK(!is_end || (event->finish == e->finish && r->n_tokens == e->n_tokens));
        r->is_done = is_end;
    }
    r->n_events++;
    if (event->has_receipt) r->certified = event->number;
    world.n_certified += event->has_receipt;
    if (is_end) r->sequence = 0;
}

static bool admit(struct engine *engine, struct recorder *recorder) {
    bool runs = false;
    for (u32 i = 0; i < world.n_requests; i++) {
        struct request *r = &world.requests[i];
        bool waits = r->sequence == 0 && !r->is_done && !world.is_interrupted;
        if (waits && engine_room(engine) > 0) submit(engine, recorder, r);
        runs = runs || r->sequence != 0;
    }
    return runs;
}

// Until all has ended, or the disk fails.
static void run(struct engine *engine, struct recorder *recorder, bool is_disturbed) {
    u32 pace = 1 + below(30); // of the recorder
    u32 stop_at = is_disturbed && below(3) == 0 ? below(400) : LIFE_STEPS_MAX;
    bool has_power = is_disturbed && below(3) == 0;
    enum power_state power = POWER_ACTIVE;
    for (u32 i = 0; admit(engine, recorder); i++) {
        CHECK_MSG(i < LIFE_STEPS_MAX, "seed %llu: a life without an end", world.seed);
        if (i >= LIFE_STEPS_MAX) return;
        if (i == stop_at) {
            world.is_interrupted = true;
            world.n_interrupted++;
            for (u32 k = 0; k < world.n_requests; k++) {
                u64 sequence = world.requests[k].sequence;
                if (sequence != 0) engine_interrupt(engine, sequence);
            }
        }
        if (has_power && i < 1000 && below(40) == 0) {
            power = power == POWER_SUSPEND ? POWER_ACTIVE : POWER_SUSPEND;
            world.n_suspensions += power == POWER_SUSPEND;
        }
        if (i >= 1000 || world.is_interrupted) power = POWER_ACTIVE;
        struct engine_inputs inputs = {.now_ns = i, .power = power};
        struct engine_report report;
        struct sov_fault fault = {0};
        CHECK(engine_step(engine, &inputs, &report, &fault) == SOV_OK);
        if (recorder_check(recorder, &fault) != SOV_OK) return; // nothing of it is told
        for (u32 k = 0; k < report.n_outputs; k++) take(&report.outputs[k]);
        bool waits = report.n_rows == 0 && report.n_outputs == 0;
        if ((waits && below(3) == 0) || below(pace) == 0) (void)recorder_step(recorder);
        if (world.sim.dead) return;
    }
}

static struct engine_config draw_config(void) {
    struct engine_config config = {
        .max_seqs = 1 + below(REQUESTS_MAX),
        .prefill_chunk = 1 + below(40),
        .token_budget = 1 + below(60),
        .no_prefix_sharing = below(4) == 0,
        .run_ahead = below(ENGINE_RUN_AHEAD_MAX + 1),
        .kv_shuffle = below(2) == 0,
    };
    config.kv_blocks = CONTEXT_BLOCKS + below(2 * CONTEXT_BLOCKS);
    config.spill_blocks = below(3) * below(30);
    return config;
}

// Over an open store, which it closes. Whether all was told durable.
static bool live_over(struct rowm *rowm, const struct engine_backend *backend, bool is_disturbed) {
    struct recorder *recorder = NULL;
    struct sov_fault fault = {0};
    struct rowm_head head;
    CHECK(recorder_open_stepped(rowm, &recorder, &fault) == SOV_OK);
    struct checkpoint_store store = recorder_store(recorder);
    struct engine_config config = draw_config();
    config.store = &store;
    struct engine *engine = open_engine(config, backend);
    world.is_interrupted = false;
    run(engine, recorder, is_disturbed);
    engine_close(engine);
    enum sov_status status = recorder_close(recorder, &head, &fault);
    CHECK_MSG(status == SOV_OK || is_disturbed, "seed %llu: %s", world.seed, fault.message);
    // A head is told by a process that lives, of what was durable then.
    if (world.sim.dead) return false;
    world.head = (struct rowm_expect){head.n_entries, head.root};
    world.has_head = true;
    if (status != SOV_OK) return false;
    bool all = true;
    for (u32 i = 0; i < world.n_requests; i++) {
        world.requests[i].has_end = world.requests[i].is_done;
        all = all && world.requests[i].is_done;
    }
    return all;
}

static bool live_once(const struct engine_backend *backend, u32 life, bool is_disturbed) {
    struct rowm *rowm = NULL;
    struct sov_fault fault = {0};
    world.n_lives++;
    if (world.fail_first != 0) {
        world.sim.fail_at = life == 0 ? world.fail_first : 0;
        world.sim.crash_at = life == 1 ? world.crash_second : 0;
    } else if (is_disturbed) {
        u32 at = 1 + below(below(2) == 0 ? 20 : 120);
        if (below(4) == 0) {
            world.sim.fail_at = at;
        } else {
            world.sim.crash_at = at;
        }
    }
    enum sov_status status = rowm_open(&world.disk, &manifest, &rowm, &fault);
    CHECK_MSG(status == SOV_OK || (is_disturbed && status == SOV_ERR_IO), "seed %llu: open: %s",
              world.seed, fault.message);
    if (status != SOV_OK) return false;
    look(rowm);
    return live_over(rowm, backend, is_disturbed);
}

// The machine or the process comes back.
static void come_back(void) {
    bool has_died = world.sim.dead;
    enum sim_fate fate = FATE_KILLED;
    world.n_failures += world.sim.fail_at != 0 && world.sim.n_ops >= world.sim.fail_at;
    if (has_died && below(3) > 0) fate = (enum sim_fate)below(FATES);
    if (has_died && world.fail_first != 0) fate = FATE_LOSE;
    world.n_crashes += has_died && fate != FATE_KILLED;
    world.n_killed += has_died && fate == FATE_KILLED;
    sim_restart(&world.sim, fate);
}

// --- in the end ---

static void check_records(void) {
    static u8 payload[PAYLOAD_BYTES_MAX];
    struct rowm_snapshot_options options = {.expect = &world.head};
    struct rowm_snapshot *snapshot = NULL;
    struct rowm_report report;
    struct sov_fault fault = {0};
    u32 n_states[REQUESTS_MAX] = {0}, n_ends[REQUESTS_MAX] = {0}, n_requests[REQUESTS_MAX] = {0};
    enum sov_status status = rowm_snapshot_open(&world.disk, &options, &snapshot, &report, &fault);
    CHECK_MSG(status == SOV_OK, "seed %llu: %s", world.seed, fault.message);
    if (status != SOV_OK) return;
    CHECK(report.n_available == 0 && report.tail_bytes == 0);
    for (u64 i = 0; i < rowm_snapshot_records(snapshot); i++) {
        struct rowm_record_info info = rowm_snapshot_info(snapshot, i);
        struct payload_checkpoint c;
        if (info.kind == ROWM_MANIFEST || info.source != ROWM_NONE) continue;
        struct request *r = request_of(info.owner);
        u64 k = (u64)(r - world.requests);
        CHECK(rowm_snapshot_read(snapshot, i, payload, sizeof payload, &fault) == SOV_OK);
        if (info.kind == ROWM_REQUEST) {
            n_requests[k]++;
            struct str what = open_payload((struct str){payload, (usize)info.payload_bytes});
            CHECK(what.len == 4 && load_u32(what.data) == info.owner - FIRST_ID);
            continue;
        }
        struct str bytes = open_payload((struct str){payload, (usize)info.payload_bytes});
        CHECK(payload_checkpoint_read(bytes, &c, &fault) == SOV_OK);
        const struct sha256_digest *wanted = &r->expected->record;
        if (c.kind == PAYLOAD_SUSPEND) continue;
        if (c.kind == PAYLOAD_BOUNDARY) wanted = &r->expected->states[n_states[k]++];
        n_ends[k] += c.kind == PAYLOAD_FINISH;
        CHECK_MSG(n_states[k] <= r->expected->n_states && sha256_equal(wanted, &info.payload_hash),
                  "seed %llu: record %llu of %llu is another", world.seed, i, info.owner);
    }
    for (u32 k = 0; k < world.n_requests; k++) {
        CHECK(n_requests[k] == 1 && n_ends[k] == 1);
        CHECK(n_states[k] == world.requests[k].expected->n_states);
    }
    rowm_snapshot_close(snapshot);
}

static void run_seed(u64 seed, const struct engine_backend *backend) {
    world.seed = seed;
    world.random = (struct test_random){seed};
    world.has_head = false;
    sim_begin(&world.sim, seed);
    world.disk = sim_disk(&world.sim);
    world.n_requests = 1 + below(REQUESTS_MAX);
    u32 first = below(POOL);
    for (u32 i = 0; i < world.n_requests; i++) {
        memset(&world.requests[i], 0, sizeof world.requests[i]);
        world.requests[i].expected = &pool[(first + i) % POOL];
    }
    u32 n_disturbed = world.fail_first != 0 ? 2 : below(DISTURBED_MAX + 1);
    for (u32 i = 0; i < LIVES_MAX; i++) {
        bool is_over = live_once(backend, i, i < n_disturbed);
        come_back();
        if (!is_over) continue;
        check_records();
        return;
    }
    CHECK_MSG(false, "seed %llu: it does not end", seed);
}

static u64 number_option(const char *name, u64 otherwise) {
    u64 value = otherwise;
    const char *text = test_option(name);
    if (text != NULL) CHECK(text_parse_u64(str_from_z(text), &value));
    return value;
}

static void seeds(void) {
    bool full = test_option("FULL") != NULL;
    u64 n_seeds = number_option("SEEDS", full ? 20000 : 1000);
    u64 first = number_option("SEED", 1);
    if (test_option("SEED") != NULL) n_seeds = 1;
    tiny_open(&tiny, MODEL_LLAMA, CONTEXT, 1);
    memset(&stub, 0, sizeof stub);
    memset(&world, 0, sizeof world);
    struct engine_backend backend = stub_backend(&stub);
    make_pool(&backend, true);
    for (u64 seed = first; seed < first + n_seeds; seed++) run_seed(seed, &backend);
    test_note("%llu seeds from %llu, %llu lives: %llu crashes, %llu killed, %llu failing "
              "operations, %llu interrupted, %llu suspensions",
              n_seeds, first, world.n_lives, world.n_crashes, world.n_killed, world.n_failures,
              world.n_interrupted, world.n_suspensions);
    test_note(
        "%llu went on behind generated tokens, %llu from a request alone, %llu receipts told, "
        "%llu openings read",
        world.n_resumed, world.n_alone, world.n_certified, world.n_opened);
    if (n_seeds >= 500) { // everything has happened
        CHECK(world.n_crashes > 200 && world.n_killed > 100 && world.n_failures > 100);
        CHECK(world.n_interrupted > 50 && world.n_suspensions > 100);
        CHECK(world.n_resumed > 100 && world.n_alone > 10 && world.n_certified > 500);
        CHECK(world.n_opened > 500);
    }
    tiny_close(&tiny);
}

// Each operation of the first life fails, after which its process ends; power fails in the second,
// and what was never durable, whatever the cache says, is lost.
static void every_failure(void) {
    bool full = test_option("FULL") != NULL;
    tiny_open(&tiny, MODEL_LLAMA, CONTEXT, 1);
    memset(&stub, 0, sizeof stub);
    memset(&world, 0, sizeof world);
    struct engine_backend backend = stub_backend(&stub);
    make_pool(&backend, true);
    for (u32 seed = 1; seed <= (full ? 200 : 20); seed++) {
        for (u32 fail = 1; fail <= 60; fail++) {
            world.fail_first = fail;
            world.crash_second = 20 + (seed + fail) % 8 * 10;
            run_seed(seed, &backend);
        }
    }
    test_note("%llu failing operations, %llu crashes", world.n_failures, world.n_crashes);
    CHECK(world.n_crashes > 500 && world.n_failures > 500);
    tiny_close(&tiny);
}

static const struct test_case cases[] = {{"seeds", seeds}, {"every_failure", every_failure}};

int program_main(const struct platform_start *start) {
    return test_main(start, "sim_store", cases, COUNT_OF(cases));
}
