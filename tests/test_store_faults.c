// SPDX-License-Identifier: Apache-2.0
// The record store against a hostile disk and hostile callers: every combination of what may have
// become of unsynced sectors at a crash (all of them where they are few, else a sample from a
// printed seed), the same during recovery, a full disk, reads that fail or come short; and what
// a reviewer found, one case each.
#include "record/worm.h"
#include "sim_disk.h"

// --- power fails ---

struct crash_counts {
    u32 n_crashes, n_exhaustive, n_points, n_again;
};

// A power failure during operation `again_at` of what follows the first one; 0: it goes through.
static void recover_as(struct sim *sim, const struct sim *crashed, const struct life *before,
                       u64 outcome, u32 at, u32 again_at, u64 seed) {
    struct rowm_disk disk = sim_disk(sim);
    struct life life = *before;
    *sim = *crashed;
    sim->random.state = seed;
    sim_outcome(sim, outcome, true);
    if (again_at > 0) {
        sim->crash_at = again_at;
        live(&disk, &life);
        sim_outcome(sim, test_random_u64(&sim->random), true);
    }
    expect_recovery(sim, &life, at, 0, FATE_KILLED, FATE_KILLED);
}

static void every_outcome_of_a_crash(void) {
    static struct sim sim, crashed;
    bool full = test_option("FULL") != NULL;
    u32 rounds = full ? 4 : 1;     // how much of the last write got through differs
    u64 limit = full ? 19683 : 27; // 3^9, 3^3
    u32 again_to = full ? 24 : 12; // operations of a recovery and of what follows
    u64 n_again = full ? 8 : 1;    // outcomes that are interrupted again, each there
    u64 seed = 20261130;
    struct crash_counts counts = {0};
    test_note("outcomes: seed %llu", seed);
    sim_begin(&sim, seed);
    struct rowm_disk disk = sim_disk(&sim), other = sim_disk(&crashed);
    struct life whole = {0};
    CHECK(live(&disk, &whole));
    u32 n_ops = sim.n_ops;
    for (u32 at = 1; at <= n_ops; at++) {
        for (u32 round = 0; round < rounds; round++) {
            struct life life = {0};
            sim_begin(&crashed, seed++);
            crashed.crash_at = at;
            CHECK(!live(&other, &life));
            u64 n = sim_outcome(&crashed, 0, false);
            bool all = n <= limit;
            counts.n_points++;
            counts.n_exhaustive += all;
            for (u64 i = 0; i < (all ? n : limit); i++) {
                u64 outcome = all ? i : test_random_u64(&crashed.random);
                recover_as(&sim, &crashed, &life, outcome, at, 0, seed++);
                counts.n_crashes++;
            }
            for (u32 again = 1; again <= again_to; again++) {
                for (u64 i = 0; i < n_again; i++) {
                    u64 outcome = test_random_u64(&crashed.random);
                    recover_as(&sim, &crashed, &life, outcome, at, again, seed++);
                    counts.n_again++;
                }
            }
        }
    }
    test_note("outcomes: %u operations, %u crashes (%u of %u points exhaustive), %u of them twice",
              n_ops, counts.n_crashes + counts.n_again, counts.n_exhaustive, counts.n_points,
              counts.n_again);
    CHECK(counts.n_exhaustive > counts.n_points / 2);
}

// An operation fails, syncs among them; the process ends, another one opens the store and power
// fails during one of its operations. What the failed sync should have written looks clean in the
// cache by then.
static void every_outcome_after_a_failure(void) {
    static struct sim sim, crashed;
    bool full = test_option("FULL") != NULL;
    u64 limit = full ? 243 : 9, seed = 20261201;
    u32 crash_to = full ? 24 : 10, n_crashes = 0;
    test_note("failures: seed %llu", seed);
    sim_begin(&sim, seed);
    struct rowm_disk disk = sim_disk(&sim), other = sim_disk(&crashed);
    struct life whole = {0};
    CHECK(live(&disk, &whole));
    u32 n_ops = sim.n_ops;
    for (u32 fail_at = 1; fail_at <= n_ops; fail_at++) {
        for (u32 crash_at = 1; crash_at <= crash_to; crash_at++) {
            struct life life = {0};
            sim_begin(&crashed, seed++);
            crashed.fail_at = fail_at;
            CHECK(!live(&other, &life));
            sim_restart(&crashed, FATE_KILLED);
            crashed.crash_at = crash_at;
            live(&other, &life);
            u64 n = sim_outcome(&crashed, 0, false);
            for (u64 i = 0; i < MIN(n, limit); i++) {
                u64 outcome = n <= limit ? i : test_random_u64(&crashed.random);
                recover_as(&sim, &crashed, &life, outcome, crash_at, 0, seed++);
                n_crashes++;
            }
        }
    }
    test_note("failures: %u operations fail, then %u crashes", n_ops, n_crashes);
}

// --- a full disk ---

// From an operation on nothing can grow; later it can. Everything acknowledged stays, and the same
// life ends in the end: in the same session where the store says that it goes on, else in another.
static void a_full_disk_loses_nothing(void) {
    static struct sim sim;
    sim_begin(&sim, 1);
    struct rowm_disk disk = sim_disk(&sim);
    struct life whole = {0};
    CHECK(live(&disk, &whole));
    u32 n_ops = sim.n_ops, n_refused = 0;
    for (u32 at = 1; at <= n_ops; at++) {
        struct life life = {0};
        sim_begin(&sim, at);
        sim.full_at = at;
        if (live(&disk, &life)) continue; // nothing grew after that
        n_refused++;
        struct rowm_report report;
        if (sim.names[SIM_LOG] >= 0) { // what is there verifies, full or not
            CHECK(sov_rowm_verify(&disk, NULL, &report, NULL) == SOV_OK);
        }
        for (u32 i = 0; i < 3; i++) CHECK(!live(&disk, &life)); // still full
        expect_recovery(&sim, &life, at, 0, at % 2 == 0 ? FATE_KILLED : FATE_LOSE, FATE_LOSE);
    }
    CHECK_MSG(n_refused > n_ops / 2, "%u of %u", n_refused, n_ops);
    // M5 within a session: refused, then room again, then written, with nothing in between.
    sim_begin(&sim, 3);
    struct rowm *store = OPEN(&disk);
    struct rowm_write a = plain("a", "one"), b = plain("b", "two");
    struct rowm_head before = rowm_head(store), after;
    for (u32 i = 0; i < 20; i++) {
        sim.full_at = sim.n_ops + 1;
        CHECK(sov_rowm_write(store, &a, NULL, NULL) == SOV_ERR_IO);
        CHECK(sov_rowm_write(store, &b, NULL, NULL) == SOV_ERR_IO);
    }
    after = rowm_head(store);
    CHECK(sha256_equal(&before.root, &after.root));
    expect_verified(&disk, store, __LINE__);
    sim.full_at = 0;
    CHECK(sov_rowm_write(store, &b, NULL, NULL) == SOV_OK);
    CHECK(sov_rowm_write(store, &a, NULL, NULL) == SOV_OK);
    expect_verified(&disk, store, __LINE__);
    rowm_close(store);
}

// --- reads ---

// Each read of an opening and of a verification fails, or comes short as when the file was cut
// meanwhile: an error and never a wrong answer, and what was acknowledged stays.
static void reads_that_fail_or_come_short(void) {
    static struct sim sim, made;
    sim_begin(&made, 1);
    struct rowm_disk disk = sim_disk(&sim), other = sim_disk(&made);
    struct life life = {0};
    CHECK(live(&other, &life));
    for (u32 kind = 0; kind < 4; kind++) {
        bool fails = kind % 2 == 0, opens = kind / 2 == 0;
        u32 n_hit = 0;
        for (u32 at = 1; at < 200; at++) {
            sim = made;
            sim.random.state = at;
            sim.n_reads = 0;
            *(fails ? &sim.read_fail : &sim.read_short) = at;
            struct rowm_report report;
            struct rowm *store = NULL;
            enum sov_status status = opens ? rowm_open(&disk, &manifest, &store, NULL)
                                           : sov_rowm_verify(&disk, NULL, &report, NULL);
            if (sim.n_reads < at) break;
            n_hit++;
            bool right = fails ? status == SOV_ERR_IO : status == SOV_ERR_INTEGRITY;
            // The log that is read short right behind its head looks as it was made, or is cut.
            CHECK_MSG(right || (!fails && status == SOV_OK), "kind %u, read %u: %s", kind, at,
                      status_name(status));
            if (status == SOV_OK && store != NULL) rowm_close(store);
            struct life again = life;
            expect_recovery(&sim, &again, at, 0, FATE_KILLED, FATE_KILLED);
        }
        CHECK_MSG(n_hit >= 2, "kind %u: %u reads", kind, n_hit);
    }
    // A payload that is read short is not disclosed, and neither are a part of its bytes.
    sim_begin(&sim, 5);
    struct rowm *store = OPEN(&disk);
    struct rowm_write a = checkpoint("a", "secret");
    struct rowm_record_info info;
    u8 bytes[16] = {0}, none[16] = {0};
    usize n = 0;
    CHECK(sov_rowm_write(store, &a, NULL, NULL) == SOV_OK);
    CHECK(rowm_info(store, 1, &info, NULL) == SOV_OK);
    struct rowm_claim claim = {id_of("claim"), info.capability, 1};
    sim.reads_nothing = true;
    sim.read_short = sim.n_reads + 1; // before the claim: it is not made
    CHECK(sov_rowm_read_once(store, &claim, bytes, 16, &n, NULL, NULL) == SOV_ERR_INTEGRITY);
    CHECK(memcmp(bytes, none, 16) == 0 && rowm_info(store, 1, &info, NULL) == SOV_OK);
    CHECK(info.available);
    sim.read_short = sim.n_reads + 2; // behind it: consumed, not disclosed
    CHECK(sov_rowm_read_once(store, &claim, bytes, 16, &n, NULL, NULL) == SOV_ERR_INTEGRITY);
    CHECK(memcmp(bytes, none, 16) == 0 && rowm_info(store, 1, &info, NULL) == SOV_OK);
    CHECK(!info.available);
    expect_verified(&disk, store, __LINE__);
    rowm_close(store);
}

// --- found by review ---

// M2: between stage and commit a consumption is seen by nobody, and the owner has its capability.
static void a_staged_consumption_is_not_visible(void) {
    static struct sim sim;
    sim_begin(&sim, 1);
    struct rowm_disk disk = sim_disk(&sim);
    struct rowm *store = OPEN(&disk);
    struct rowm_write a = checkpoint("a", "first"), b = checkpoint("b", "second");
    struct rowm_record_info info;
    u64 record = 0;
    CHECK(sov_rowm_write(store, &a, NULL, NULL) == SOV_OK);
    CHECK(rowm_info(store, 1, &info, NULL) == SOV_OK && info.available);
    b.consumes = true;
    b.capability = info.capability;
    CHECK(rowm_stage(store, &b, NULL, NULL) == SOV_OK);
    CHECK(rowm_info(store, 1, &info, NULL) == SOV_OK && info.available);
    CHECK(rowm_find_available(store, 7, &record) && record == 1);
    CHECK(rowm_commit(store, NULL) == SOV_OK);
    CHECK(rowm_info(store, 1, &info, NULL) == SOV_OK && !info.available);
    CHECK(rowm_find_available(store, 7, &record) && record == 2);
    struct rowm_write end = plain("end", "done"); // consumes and issues nothing
    CHECK(rowm_info(store, 2, &info, NULL) == SOV_OK);
    end.consumes = true;
    end.capability = info.capability;
    CHECK(rowm_stage(store, &end, NULL, NULL) == SOV_OK);
    struct rowm_write anew = checkpoint("anew", "third"); // a chain of its own, staged behind it
    CHECK(rowm_stage(store, &anew, NULL, NULL) == SOV_OK);
    CHECK(rowm_find_available(store, 7, &record) && record == 2);
    sim.fail_at = sim.n_ops + 1; // M4: what was not published never is, here
    CHECK(rowm_commit(store, NULL) == SOV_ERR_IO);
    CHECK(rowm_find_available(store, 7, &record) && record == 2);
    rowm_close(store);
    store = OPEN(&disk); // its bytes are whole, so the next session takes them
    CHECK(rowm_find_available(store, 7, &record) && record == 4);
    expect_verified(&disk, store, __LINE__);
    rowm_close(store);
}

// An epoch that has no successor has none: 0 is not one later.
static void an_epoch_does_not_wrap(void) {
    static struct sim sim;
    sim_begin(&sim, 1);
    struct rowm_disk disk = sim_disk(&sim);
    struct rowm *store = OPEN(&disk);
    struct rowm_write a = checkpoint("a", "state");
    struct rowm_record_info info;
    u8 bytes[16] = {0};
    usize n = 0;
    a.epoch = ~0ull;
    CHECK(sov_rowm_write(store, &a, NULL, NULL) == SOV_OK);
    CHECK(rowm_info(store, 1, &info, NULL) == SOV_OK);
    struct rowm_claim claim = {id_of("claim"), info.capability, 7};
    CHECK(rowm_resume(store, &claim, bytes, 16, &n, NULL, NULL) == SOV_ERR_ARGUMENT);
    CHECK(bytes[0] == 0 && rowm_head(store).n_records == 2);
    expect_verified(&disk, store, __LINE__);
    rowm_close(store);
}

// A sync of names that fails forgets the name, as one of a file forgets bytes; the next success
// says nothing of it. What is acknowledged then must be found after power fails.
static void a_name_is_made_durable_before_it_counts(void) {
    static struct sim sim;
    for (u32 fail_at = 1; fail_at <= 6; fail_at++) {
        for (u32 n_fails = 1; n_fails <= 2; n_fails++) {
            sim_begin(&sim, fail_at);
            struct rowm_disk disk = sim_disk(&sim);
            struct rowm *store = NULL;
            for (u32 i = 0; i < n_fails; i++) {
                sim.fail_at = sim.n_ops + fail_at;
                CHECK(rowm_open(&disk, &manifest, &store, NULL) == SOV_ERR_IO);
            }
            sim.fail_at = 0;
            store = OPEN(&disk);
            struct rowm_write a = plain("a", "bytes");
            struct rowm_receipt receipt = {0}, again = {0};
            CHECK(sov_rowm_write(store, &a, &receipt, NULL) == SOV_OK);
            rowm_close(store);
            sim_restart(&sim, FATE_LOSE);
            store = OPEN(&disk);
            u64 n_entries = rowm_head(store).n_entries;
            CHECK(sov_rowm_write(store, &a, &again, NULL) == SOV_OK);
            CHECK_MSG(sha256_equal(&receipt.hash, &again.hash) &&
                          rowm_head(store).n_entries == n_entries,
                      "operation %u failed %u times: the store is gone", fail_at, n_fails);
            rowm_close(store);
        }
    }
    // One that was cut down to its head is no new one: that is damage and stays.
    sim_begin(&sim, 1);
    struct rowm_disk disk = sim_disk(&sim);
    rowm_close(OPEN(&disk));
    sim.files[sim.names[SIM_LOG]].bytes = WORM_LOG_BEGIN;
    struct rowm *store = NULL;
    CHECK(rowm_open(&disk, &manifest, &store, NULL) == SOV_ERR_INTEGRITY);
    CHECK(sim.files[sim.names[SIM_LOG]].bytes == WORM_LOG_BEGIN);
}

// Whoever makes the slots again can number them to the end; then nothing comes behind.
static void generations_end(void) {
    static struct sim sim, before;
    sim_begin(&sim, 1);
    struct rowm_disk disk = sim_disk(&sim);
    struct rowm_report report;
    rowm_close(OPEN(&disk));
    u8 *bytes = sim.files[sim.names[SIM_LOG]].cache;
    for (u32 i = 0; i < 2; i++) { // of the same heads
        struct worm_slot slot, older;
        CHECK(worm_read_slot(bytes + WORM_SLOT_BYTES, &slot));
        if (i == 1) CHECK(worm_read_slot(bytes, &older));
        if (i == 1) slot.previous = older.hash;
        slot.generation = ~0ull - 1 + i;
        worm_make_slot(&slot, bytes + (usize)i * WORM_SLOT_BYTES);
    }
    CHECK(sov_rowm_verify(&disk, NULL, &report, NULL) == SOV_OK);
    before = sim;
    struct rowm *store = NULL;
    CHECK(rowm_open(&disk, &manifest, &store, NULL) == SOV_ERR_LIMIT);
    CHECK(memcmp(before.files, sim.files, sizeof sim.files) == 0 && !sim.locked);
}

// W3 holds across kinds: a claim cannot take the id of a write, and the other way round.
static void an_id_is_used_once(void) {
    static struct sim sim;
    sim_begin(&sim, 1);
    struct rowm_disk disk = sim_disk(&sim);
    struct rowm *store = OPEN(&disk);
    struct rowm_write a = checkpoint("a", "state"), b = plain("claim", "x");
    struct rowm_record_info info;
    u8 bytes[16] = {0};
    usize n = 0;
    CHECK(sov_rowm_write(store, &a, NULL, NULL) == SOV_OK);
    CHECK(rowm_info(store, 1, &info, NULL) == SOV_OK);
    struct rowm_claim claim = {id_of("a"), info.capability, 7};
    CHECK(sov_rowm_read_once(store, &claim, bytes, 16, &n, NULL, NULL) == SOV_ERR_ARGUMENT);
    CHECK(rowm_resume(store, &claim, bytes, 16, &n, NULL, NULL) == SOV_ERR_INTEGRITY);
    CHECK(bytes[0] == 0 && rowm_info(store, 1, &info, NULL) == SOV_OK && info.available);
    claim.txid = id_of("claim");
    CHECK(sov_rowm_read_once(store, &claim, bytes, 16, &n, NULL, NULL) == SOV_OK);
    CHECK(sov_rowm_write(store, &b, NULL, NULL) == SOV_ERR_INTEGRITY);
    expect_verified(&disk, store, __LINE__);
    rowm_close(store);
}

// The older slot is the head before, or somebody changed it and made its hash again.
static void the_older_slot_is_compared(void) {
    static struct sim sim;
    sim_begin(&sim, 1);
    struct rowm_disk disk = sim_disk(&sim);
    struct rowm_report report;
    rowm_close(OPEN(&disk));
    u8 *bytes = sim.files[sim.names[SIM_LOG]].cache;
    for (u32 field = 0; field < 8; field++) {
        static u8 saved[2 * WORM_SLOT_BYTES];
        struct worm_slot slots[2];
        memcpy(saved, bytes, sizeof saved);
        for (u32 i = 0; i < 2; i++) CHECK(worm_read_slot(bytes + i * 4096, &slots[i]));
        u32 older = slots[0].generation > slots[1].generation;
        struct worm_heads *heads = &slots[older].heads;
        u64 *numbers[] = {&heads->length, &heads->n_entries, &heads->time};
        struct sha256_digest *digests[] = {&heads->link, &heads->root, &heads->worm,
                                           &heads->evolution, &heads->access};
        if (field < 3) (*numbers[field])--;
        if (field >= 3) digests[field - 3]->bytes[0] ^= 1;
        worm_make_slot(&slots[older], bytes + (usize)older * 4096);
        slots[1 - older].previous = slots[older].hash;
        worm_make_slot(&slots[1 - older], bytes + (usize)(1 - older) * 4096);
        CHECK_MSG(sov_rowm_verify(&disk, NULL, &report, NULL) == SOV_ERR_INTEGRITY, "field %u",
                  field);
        struct rowm *store = NULL;
        CHECK(rowm_open(&disk, &manifest, &store, NULL) == SOV_ERR_INTEGRITY);
        memcpy(bytes, saved, sizeof saved);
    }
    expect_verified(&disk, NULL, __LINE__);
}

// --- time ---

static enum sov_status write_nothing(void *context, int file, u64 offset, struct str bytes,
                                     struct sov_fault *fault) {
    (void)context, (void)file, (void)offset, (void)bytes, (void)fault;
    return SOV_OK;
}

// The finaliser of SplitMix64 and its inverse: a public hash, against which anybody can choose ids.
static u64 mixed(u64 x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}
static u64 unmixed(u64 x) {
    x = (x ^ (x >> 31) ^ (x >> 62)) * 0x319642b2d24d8ec3;
    x = (x ^ (x >> 27) ^ (x >> 54)) * 0x96de1b173f119089;
    return x ^ (x >> 30) ^ (x >> 60);
}

// Nanoseconds of `n` staged writes whose ids are the same under that hash, or are not.
static u64 time_of_writes(u32 n, bool chosen_txids, bool chosen_owners) {
    static struct sim sim;
    sim_begin(&sim, 1);
    struct rowm_disk disk = sim_disk(&sim);
    struct rowm *store = OPEN(&disk);
    disk.write_at = write_nothing;
    u64 begin = platform_monotonic_ns();
    for (u32 i = 0; i < n; i++) {
        struct rowm_write write = checkpoint("", "");
        store_u64(write.txid.bytes, i);
        u64 key = 0;
        for (u32 k = 0; k < 3; k++) key = mixed(key ^ load_u64(write.txid.bytes + (usize)8 * k));
        store_u64(write.txid.bytes + 24, chosen_txids ? key ^ 12345 : mixed(i));
        write.owner = chosen_owners ? unmixed((u64)(i + 1) << 32) - 1 : i;
        CHECK(rowm_stage(store, &write, NULL, NULL) == SOV_OK);
    }
    u64 ns = platform_monotonic_ns() - begin;
    rowm_close(store);
    return ns;
}

static void chosen_ids_are_not_slow(void) {
    CHECK(mixed(unmixed(123456789)) == 123456789);
    u32 n = 16000;
    u64 plain_ns = time_of_writes(n, false, false);
    for (u32 kind = 0; kind < 2; kind++) {
        u64 ns = time_of_writes(n, kind == 0, kind == 1);
        CHECK_MSG(ns < 4 * plain_ns, "kind %u: %llu ms, not %llu", kind, ns / 1000000,
                  plain_ns / 1000000);
    }
}

static void count_record(void *context, const struct rowm_record_info *info, u32 depth) {
    *(u64 *)context += info->record + depth;
}

// A chain of n records, walked from its end; best of three.
static u64 time_of_traversal(struct rowm *store, u32 n, u64 *memory) {
    u64 best = ~0ull;
    for (u32 i = 0; i < 3; i++) {
        u64 sum = 0;
        struct rowm_traversal t = {
            .queue = memory,
            .depths = (u32 *)(memory + n),
            .queue_capacity = n,
            .visited = memory + (usize)2 * n,
            .visited_capacity = 2 * n,
            .steps_max = n,
            .depth_max = n,
            .context = &sum,
            .visit = count_record,
        };
        u64 begin = platform_monotonic_ns();
        CHECK(sov_rowm_traverse(store, n - 1, &t, NULL) == SOV_OK && t.n_steps == n);
        best = MIN(best, platform_monotonic_ns() - begin);
        CHECK(sum == (u64)n * (n - 1));
    }
    return best;
}

static void a_long_traversal_is_not_slow(void) {
    enum { N = 32000 };
    static struct sim sim;
    static u64 memory[4 * N];
    sim_begin(&sim, 1);
    struct rowm_disk disk = sim_disk(&sim);
    struct rowm *store = OPEN(&disk);
    disk.write_at = write_nothing;
    for (u32 i = 1; i < N; i++) {
        struct rowm_write write = plain("", "");
        store_u64(write.txid.bytes, i);
        write.parent = i - 1;
        CHECK(rowm_stage(store, &write, NULL, NULL) == SOV_OK);
    }
    CHECK(rowm_commit(store, NULL) == SOV_OK);
    u64 few = time_of_traversal(store, N / 8, memory), many = time_of_traversal(store, N, memory);
    CHECK_MSG(many < 24 * few, "8 times the records: %llu us, not %llu", many / 1000, few / 1000);
    rowm_close(store);
}

static const struct test_case cases[] = {
    {"every_outcome_of_a_crash", every_outcome_of_a_crash},
    {"every_outcome_after_a_failure", every_outcome_after_a_failure},
    {"a_full_disk_loses_nothing", a_full_disk_loses_nothing},
    {"reads_that_fail_or_come_short", reads_that_fail_or_come_short},
    {"a_staged_consumption_is_not_visible", a_staged_consumption_is_not_visible},
    {"an_epoch_does_not_wrap", an_epoch_does_not_wrap},
    {"a_name_is_made_durable_before_it_counts", a_name_is_made_durable_before_it_counts},
    {"generations_end", generations_end},
    {"an_id_is_used_once", an_id_is_used_once},
    {"the_older_slot_is_compared", the_older_slot_is_compared},
    {"chosen_ids_are_not_slow", chosen_ids_are_not_slow},
    {"a_long_traversal_is_not_slow", a_long_traversal_is_not_slow},
};

int program_main(const struct platform_start *start) {
    return test_main(start, "test_store_faults", cases, COUNT_OF(cases));
}
