// SPDX-License-Identifier: Apache-2.0
// The record store (rowm.h M1 to M6, worm.h W1 to W4) over a simulated disk: a crash at every
// operation, unsynced sectors kept, lost or torn; syncs that fail; every byte flipped. With the
// arguments "write FOLDER" and "flips FOLDER" the program makes a small store and tells what the
// verifier says of each of its single-byte changes, for tests/test_store.py.
#include "record/tree.h"
#include "sim_disk.h"

static const char *program_path; // files of this program lie beside it, so that builds do not meet

// --- tree ---

// The definition of RFC 6962 2.1, without recursion on anything but the depth of 8 leaves.
static struct sha256_digest defined_root(const struct sha256_digest *leaves, u32 n) {
    if (n == 0) return sha256_of(STR(""));
    if (n == 1) return leaves[0];
    u32 k = 1;
    while (2 * k < n) k *= 2;
    u8 bytes[1 + 2 * SHA256_BYTES] = {1};
    struct sha256_digest left = defined_root(leaves, k), right = defined_root(leaves + k, n - k);
    memcpy(bytes + 1, left.bytes, SHA256_BYTES);
    memcpy(bytes + 1 + SHA256_BYTES, right.bytes, SHA256_BYTES);
    return sha256_of((struct str){bytes, sizeof bytes});
}

static void tree_is_that_of_the_rfc(void) {
    struct sha256_digest leaves[70];
    struct tree tree = {0};
    for (u32 i = 0; i <= COUNT_OF(leaves); i++) {
        struct sha256_digest root = tree_root(&tree), right = defined_root(leaves, i);
        CHECK_MSG(sha256_equal(&root, &right), "%u leaves", i);
        if (i == COUNT_OF(leaves)) break;
        u8 bytes[2] = {0, (u8)i};
        leaves[i] = sha256_of((struct str){bytes, 2});
        struct sha256_digest hashed = tree_leaf_hash((struct str){bytes + 1, 1});
        CHECK(sha256_equal(&hashed, &leaves[i])); // a zero byte, then the leaf
        tree_append(&tree, &leaves[i]);
    }
}

// --- semantics ---

static void append_once(void) {
    static struct sim sim;
    sim_begin(&sim, 1);
    struct rowm_disk disk = sim_disk(&sim);
    struct rowm *store = OPEN(&disk);
    struct sov_fault fault = {0};
    struct rowm_receipt first, again, other;
    struct rowm_write a = plain("a", "bytes"), changed = plain("a", "other"),
                      b = plain("b", "bytes");
    CHECK(sov_rowm_write(store, &a, &first, &fault) == SOV_OK);
    CHECK(first.time == 2 && first.record == 1 && first.kind == ROWM_WRITE);
    struct rowm_head before = rowm_head(store);
    CHECK(sov_rowm_write(store, &a, &again, &fault) == SOV_OK);
    CHECK(sha256_equal(&first.hash, &again.hash) && first.time == again.time);
    CHECK(sov_rowm_write(store, &changed, &again, &fault) == SOV_ERR_INTEGRITY);
    changed = a;
    changed.owner++; // the request is more than its payload
    CHECK(sov_rowm_write(store, &changed, &again, NULL) == SOV_ERR_INTEGRITY);
    struct rowm_head after = rowm_head(store);
    CHECK(sha256_equal(&before.root, &after.root));
    CHECK(sov_rowm_write(store, &b, &other, NULL) == SOV_OK);
    CHECK(!sha256_equal(&other.hash, &first.hash) && sha256_equal(&other.previous, &first.hash));
    expect_verified(&disk, store, __LINE__);
    rowm_close(store);
    store = OPEN(&disk); // in another session it is the same
    CHECK(sov_rowm_write(store, &a, &again, NULL) == SOV_OK);
    CHECK(sha256_equal(&first.hash, &again.hash) && first.time == again.time);
    struct rowm_receipt receipts[8];
    u32 n = 0;
    CHECK(sov_rowm_get_receipts(store, 1, receipts, 8, &n, NULL) == SOV_OK && n == 4);
    CHECK(sha256_equal(&receipts[1].hash, &first.hash));
    for (u32 i = 1; i < n; i++) CHECK(sha256_equal(&receipts[i].previous, &receipts[i - 1].hash));
    CHECK(sov_rowm_get_receipts(store, 5, receipts, 8, &n, NULL) == SOV_OK && n == 0);
    CHECK(sov_rowm_get_receipts(store, 0, receipts, 8, &n, NULL) == SOV_ERR_ARGUMENT);
    u8 payload[8];
    usize n_payload = 0;
    CHECK(rowm_read(store, 1, payload, sizeof payload, &n_payload, NULL) == SOV_OK);
    CHECK(n_payload == 5 && memcmp(payload, "bytes", 5) == 0);
    rowm_close(store);
}

static void what_is_staged_is_not_visible(void) {
    static struct sim sim;
    sim_begin(&sim, 1);
    struct rowm_disk disk = sim_disk(&sim);
    struct rowm *store = OPEN(&disk);
    struct rowm_write a = checkpoint("a", "bytes"), b = plain("b", "more");
    struct rowm_record_info info;
    u64 record = 0;
    CHECK(rowm_stage(store, &a, NULL, NULL) == SOV_OK);
    CHECK(rowm_stage(store, &b, NULL, NULL) == SOV_OK);
    CHECK(rowm_info(store, 1, &info, NULL) == SOV_ERR_ARGUMENT);
    CHECK(!rowm_find_available(store, 7, &record) && rowm_head(store).n_records == 1);
    u32 n_ops = sim.n_ops;
    CHECK(rowm_commit(store, NULL) == SOV_OK);
    CHECK_MSG(sim.n_ops - n_ops == 3, "%u operations", sim.n_ops - n_ops); // sync, slot, sync
    CHECK(rowm_info(store, 1, &info, NULL) == SOV_OK && info.payload_bytes == 5);
    CHECK(rowm_find_available(store, 7, &record) && record == 1);
    rowm_close(store);
}

static void a_payload_is_read_once(void) {
    static struct sim sim;
    sim_begin(&sim, 1);
    struct rowm_disk disk = sim_disk(&sim);
    struct rowm *store = OPEN(&disk), *second = NULL;
    struct rowm_write a = checkpoint("a", "secret");
    struct rowm_record_info info;
    u8 bytes[16] = {0};
    usize n = 0;
    CHECK(rowm_open(&disk, &manifest, &second, NULL) == SOV_ERR_STATE); // M6
    CHECK(sov_rowm_write(store, &a, NULL, NULL) == SOV_OK);
    CHECK(rowm_info(store, 1, &info, NULL) == SOV_OK && info.available);
    CHECK(rowm_read(store, 1, bytes, sizeof bytes, &n, NULL) == SOV_ERR_STATE && bytes[0] == 0);
    struct rowm_write rival = checkpoint("rival", "x"); // W4
    CHECK(sov_rowm_write(store, &rival, NULL, NULL) == SOV_ERR_STATE);
    struct rowm_claim one = {id_of("one"), info.capability, 1},
                      two = {id_of("two"), info.capability, 2};
    struct rowm_receipt receipt;
    CHECK(sov_rowm_read_once(store, &one, bytes, 5, &n, NULL, NULL) == SOV_ERR_LIMIT);
    CHECK(sov_rowm_read_once(store, &one, bytes, 16, &n, &receipt, NULL) == SOV_OK && n == 6);
    CHECK(memcmp(bytes, "secret", 6) == 0 && receipt.kind == ROWM_CONSUME && receipt.record == 1);
    CHECK(sha256_equal(&receipt.payload_hash, &info.payload_hash));
    memset(bytes, 0, sizeof bytes);
    CHECK(sov_rowm_read_once(store, &two, bytes, 16, &n, NULL, NULL) == SOV_ERR_STATE);
    CHECK(sov_rowm_read_once(store, &one, bytes, 16, &n, NULL, NULL) == SOV_ERR_STATE);
    CHECK(bytes[0] == 0);
    expect_verified(&disk, store, __LINE__);
    rowm_close(store);
    store = OPEN(&disk);
    CHECK(sov_rowm_read_once(store, &two, bytes, 16, &n, NULL, NULL) == SOV_ERR_STATE);
    two.capability = id_of("none");
    CHECK(sov_rowm_read_once(store, &two, bytes, 16, &n, NULL, NULL) == SOV_ERR_ARGUMENT);
    rowm_close(store);
}

// The sync of a claim fails: nothing is disclosed, and the store takes nothing any more.
static void nothing_is_disclosed_before_it_is_durable(void) {
    static struct sim sim;
    static const enum sim_fate fates[] = {FATE_KEEP, FATE_LOSE};
    for (u32 i = 0; i < 8; i++) {
        sim_begin(&sim, 1);
        struct rowm_disk disk = sim_disk(&sim);
        struct rowm *store = OPEN(&disk);
        struct rowm_write a = checkpoint("a", "secret"), b = plain("b", "x");
        struct rowm_record_info info;
        CHECK(sov_rowm_write(store, &a, NULL, NULL) == SOV_OK);
        CHECK(rowm_info(store, 1, &info, NULL) == SOV_OK);
        struct rowm_claim claim = {id_of("one"), info.capability, 1};
        u8 bytes[16] = {0}, none[16] = {0};
        usize n = 0;
        u32 which = i / 2; // write, sync, slot, sync
        sim.fail_at = sim.n_ops + 1 + which;
        CHECK(sov_rowm_read_once(store, &claim, bytes, 16, &n, NULL, NULL) == SOV_ERR_IO);
        CHECK(memcmp(bytes, none, 16) == 0);
        enum sov_status status = sov_rowm_write(store, &b, NULL, NULL);
        CHECK_MSG(status == (which == 0 ? SOV_OK : SOV_ERR_IO), "operation %u", which); // M4, M5
        rowm_close(store);
        sim_restart(&sim, fates[i % 2]);
        store = OPEN(&disk);
        expect_verified(&disk, store, __LINE__);
        CHECK(rowm_info(store, 1, &info, NULL) == SOV_OK);
        // Consumed and lost, or available still: never both read and available.
        bool lost = sov_rowm_read_once(store, &claim, bytes, 16, &n, NULL, NULL) == SOV_ERR_STATE;
        CHECK(lost == !info.available && (lost || memcmp(bytes, "secret", 6) == 0));
        if (which == 0) CHECK(!lost);
        rowm_close(store);
    }
}

static void resume_has_a_successor(void) {
    static struct sim sim;
    sim_begin(&sim, 1);
    struct rowm_disk disk = sim_disk(&sim);
    struct rowm *store = OPEN(&disk);
    struct rowm_write a = checkpoint("a", "state");
    u64 record = 0;
    u8 bytes[16];
    usize n = 0;
    CHECK(sov_rowm_write(store, &a, NULL, NULL) == SOV_OK);
    for (u32 i = 0; i < 3; i++) {
        struct rowm_record_info info;
        CHECK(rowm_find_available(store, 7, &record) && record == 1 + i);
        CHECK(rowm_info(store, record, &info, NULL) == SOV_OK && info.epoch == i);
        CHECK(info.source == (i == 0 ? ROWM_NONE : 1));
        char name[2] = {(char)('0' + i), 0};
        struct rowm_claim claim = {id_of(name), info.capability, 7};
        memset(bytes, 0, sizeof bytes);
        CHECK(rowm_resume(store, &claim, bytes, sizeof bytes, &n, NULL, NULL) == SOV_OK);
        CHECK(n == 5 && memcmp(bytes, "state", 5) == 0);
        CHECK(rowm_resume(store, &claim, bytes, sizeof bytes, &n, NULL, NULL) == SOV_ERR_STATE);
        expect_verified(&disk, store, __LINE__);
        rowm_close(store);
        store = OPEN(&disk);
        // Each session adds its manifest; the next resume is the record behind it.
        CHECK(rowm_find_available(store, 7, &record));
        if (i < 2) break;
    }
    // A later checkpoint ends the capability of the earlier one.
    struct rowm_record_info info;
    CHECK(rowm_info(store, record, &info, NULL) == SOV_OK);
    struct rowm_write next = checkpoint("next", "later");
    next.consumes = true;
    next.capability = info.capability;
    next.owner = 8;
    CHECK(sov_rowm_write(store, &next, NULL, NULL) == SOV_ERR_ARGUMENT); // another's
    next.owner = 7;
    CHECK(sov_rowm_write(store, &next, NULL, NULL) == SOV_OK);
    CHECK(rowm_find_available(store, 7, &record) && record == rowm_head(store).n_records - 1);
    expect_verified(&disk, store, __LINE__);
    rowm_close(store);
}

// --- traversal ---

static void count_visit(void *context, const struct rowm_record_info *info, u32 depth) {
    (void)depth;
    *(u64 *)context = *(u64 *)context * 100 + info->record;
}

static void traversal_is_bounded(void) {
    static struct sim sim;
    sim_begin(&sim, 1);
    struct rowm_disk disk = sim_disk(&sim);
    struct rowm *store = OPEN(&disk);
    for (u32 i = 1; i <= 5; i++) { // a chain: record i has the parent i - 1
        char name[2] = {(char)('0' + i), 0};
        struct rowm_write write = plain(name, name);
        write.parent = i - 1;
        CHECK(sov_rowm_write(store, &write, NULL, NULL) == SOV_OK);
    }
    static const struct {
        u32 queue, visited, steps, depth;
        enum sov_status status;
        u32 n_steps;
    } rows[] = {
        {6, 6, 6, 5, SOV_OK, 6},        {5, 6, 6, 5, SOV_ERR_LIMIT, 5},
        {6, 5, 6, 5, SOV_ERR_LIMIT, 5}, {6, 6, 5, 5, SOV_ERR_LIMIT, 5},
        {6, 6, 6, 4, SOV_ERR_LIMIT, 5}, {0, 0, 0, 0, SOV_ERR_LIMIT, 0},
    };
    for (u32 i = 0; i < COUNT_OF(rows); i++) {
        u64 queue[6], visited[6], order = 0;
        u32 depths[6];
        struct rowm_traversal t = {
            .queue = queue,
            .depths = depths,
            .queue_capacity = rows[i].queue,
            .visited = visited,
            .visited_capacity = rows[i].visited,
            .steps_max = rows[i].steps,
            .depth_max = rows[i].depth,
            .context = &order,
            .visit = count_visit,
        };
        enum sov_status status = sov_rowm_traverse(store, 5, &t, NULL);
        CHECK_MSG(status == rows[i].status && t.n_steps == rows[i].n_steps, "row %u: %s, %u", i,
                  status_name(status), t.n_steps);
        if (status == SOV_OK) CHECK(order == 50403020100);
    }
    rowm_close(store);
}

// --- a small life, stopped everywhere ---

static void every_crash_is_recovered(void) {
    static struct sim sim;
    u32 n_ops = 0, n_crashes = 0;
    u64 seed = 20240611;
    test_note("crashes: seed %llu", seed);
    sim_begin(&sim, seed);
    struct rowm_disk disk = sim_disk(&sim);
    struct life whole = {0};
    CHECK(live(&disk, &whole) && whole.n_disclosed == 1 && whole.n_resumed == 1);
    n_ops = sim.n_ops;
    u32 repeats = test_option("FULL") != NULL ? 40 : 3;
    for (u32 at = 1; at <= n_ops; at++) {
        for (u32 i = 0; i < FATE_RANDOM + repeats; i++) {
            enum sim_fate fate = (enum sim_fate)MIN(i, (u32)FATE_RANDOM);
            for (u32 again_at = 0; again_at <= (i < FATE_RANDOM ? 6 : 20); again_at += 2) {
                struct life life = {0};
                sim_begin(&sim, seed++);
                sim.crash_at = at;
                CHECK(!live(&disk, &life));
                bool killed = again_at % 4 == 2; // the first time; the power fails the second time
                expect_recovery(&sim, &life, at, again_at, killed ? FATE_KILLED : fate, fate);
                n_crashes++;
            }
        }
    }
    test_note("crashes: %u operations, %u crashes", n_ops, n_crashes);
    CHECK(n_ops >= 30);
}

// An operation that fails while the machine stays on, then the same life again.
static void every_failure_is_survived(void) {
    static struct sim sim;
    sim_begin(&sim, 1);
    struct rowm_disk disk = sim_disk(&sim);
    struct life whole = {0};
    CHECK(live(&disk, &whole));
    u32 n_ops = sim.n_ops;
    for (u32 at = 1; at <= n_ops; at++) {
        for (u32 again_at = 0; again_at <= n_ops + 10; again_at++) {
            enum sim_fate fate = again_at == 0 ? FATE_RANDOM : FATE_LOSE;
            struct life life = {0};
            sim_begin(&sim, at);
            sim.fail_at = at;
            CHECK(!live(&disk, &life));
            expect_recovery(&sim, &life, at, again_at, FATE_KILLED, fate);
        }
    }
}

static void recovery_is_deterministic(void) {
    static struct sim a, b;
    for (u32 at = 1; at < 40; at++) {
        sim_begin(&a, at);
        struct rowm_disk disk = sim_disk(&a), other = sim_disk(&b);
        struct life life = {0};
        a.crash_at = at;
        if (live(&disk, &life)) continue;
        sim_restart(&a, FATE_RANDOM);
        b = a;
        rowm_close(OPEN(&disk));
        rowm_close(OPEN(&other));
        CHECK(memcmp(a.files, b.files, sizeof a.files) == 0);
    }
}

// --- every byte ---

static void make_small(const struct rowm_disk *disk) {
    struct life life = {0};
    CHECK(live(disk, &life));
}

static char judge(const struct rowm_disk *disk) {
    struct rowm_report report = {0};
    struct sov_fault fault = {0};
    enum sov_status status = sov_rowm_verify(disk, NULL, &report, &fault);
    if (status == SOV_OK) return report.tail_bytes > 0 ? 't' : '.';
    return status == SOV_ERR_INTEGRITY ? 'x' : '?';
}

static void every_flip_is_detected(void) {
    static struct sim sim;
    sim_begin(&sim, 1);
    struct rowm_disk disk = sim_disk(&sim);
    make_small(&disk);
    CHECK(judge(&disk) == '.');
    struct sim_file *log = &sim.files[sim.names[SIM_LOG]];
    u32 n_flips = test_option("FULL") != NULL ? 255 : 1; // every other value, or one bit
    for (u64 i = 0; i < log->bytes; i++) {
        for (u32 k = 1; k <= n_flips; k++) {
            u8 flip = n_flips == 1 ? (u8)(1u << i % 8) : (u8)k;
            log->cache[i] ^= flip;
            char verdict = judge(&disk);
            CHECK_MSG(verdict == 'x', "byte %llu: %c", i, verdict);
            log->cache[i] ^= flip;
        }
    }
    // Cut anywhere it is detected; what is added is a tail that is named.
    for (u64 cut = 1; cut <= log->bytes; cut++) {
        log->bytes -= cut;
        CHECK(judge(&disk) == 'x');
        log->bytes += cut;
    }
    log->bytes += 10;
    CHECK(judge(&disk) == 't');
    log->bytes -= 10;
    // A writer refuses damage too, and changes nothing.
    log->cache[9000] ^= 1;
    static struct sim before;
    before = sim;
    struct rowm *store = NULL;
    CHECK(rowm_open(&disk, &manifest, &store, NULL) == SOV_ERR_INTEGRITY);
    CHECK(memcmp(before.files, sim.files, sizeof sim.files) == 0 && !sim.locked);
    log->cache[9000] ^= 1;
    // Of two slots one may be damaged: opening mends it and nothing is lost.
    for (u32 i = 0; i < 2; i++) {
        log->cache[i * 4096 + 100] ^= 1;
        store = OPEN(&disk);
        expect_verified(&disk, store, __LINE__);
        rowm_close(store);
    }
    log->cache[100] ^= 1;
    log->cache[4196] ^= 1;
    CHECK(rowm_open(&disk, &manifest, &store, NULL) == SOV_ERR_INTEGRITY);
    log->cache[15] = log->cache[4096 + 15] = '2';
    CHECK(rowm_open(&disk, &manifest, &store, NULL) == SOV_ERR_UNSUPPORTED);
}

// An older copy verifies by itself, but not against a head that was printed later.
static void an_older_copy_is_told_by_its_head(void) {
    static struct sim sim, copy;
    sim_begin(&sim, 1);
    struct rowm_disk disk = sim_disk(&sim), old = sim_disk(&copy);
    struct rowm *store = OPEN(&disk);
    struct rowm_write a = plain("a", "1"), b = plain("b", "2");
    CHECK(sov_rowm_write(store, &a, NULL, NULL) == SOV_OK);
    struct rowm_head first = rowm_head(store);
    copy = sim;
    CHECK(sov_rowm_write(store, &b, NULL, NULL) == SOV_OK);
    struct rowm_head second = rowm_head(store);
    rowm_close(store);
    struct rowm_expect early = {first.n_entries, first.root},
                       late = {second.n_entries, second.root};
    struct rowm_report report;
    CHECK(sov_rowm_verify(&disk, &early, &report, NULL) == SOV_OK);
    CHECK(sov_rowm_verify(&disk, &late, &report, NULL) == SOV_OK);
    CHECK(sov_rowm_verify(&old, &early, &report, NULL) == SOV_OK);
    CHECK(sov_rowm_verify(&old, &late, &report, NULL) == SOV_ERR_INTEGRITY);
    early.root = second.root;
    CHECK(sov_rowm_verify(&disk, &early, &report, NULL) == SOV_ERR_INTEGRITY);
}

// --- on the system's disk, for tests/test_store.py ---

static int write_folder(const char *path) {
    struct rowm_folder folder = {path};
    struct rowm_disk disk = rowm_folder_disk(&folder);
    struct sov_fault fault = {0};
    if (platform_make_folder(path, &fault) != SOV_OK) return 1;
    struct life life = {0};
    if (!live(&disk, &life)) return 1;
    struct rowm_report report;
    if (sov_rowm_verify(&disk, NULL, &report, &fault) != SOV_OK) return 1;
    char root[SHA256_HEX_BYTES + 1];
    sha256_to_hex(&report.head.root, root);
    test_note("%llu:%s", report.head.n_entries, root);
    return 0;
}

// One character for each mutation of the folder's log: every byte with one bit flipped (or, given
// a tail of bytes, that byte of the tail), 64 a line.
static int judge_flips(const char *path) {
    static struct sim sim;
    static char name[4096], line[65];
    struct text t = TEXT_OVER_ARRAY(name);
    text_format(&t, "%s/log", path);
    struct str bytes = test_read_file(name);
    if (bytes.len == 0 || bytes.len > FILE_BYTES_MAX) return 1;
    sim_begin(&sim, 1);
    struct rowm_disk disk = sim_disk(&sim);
    sim.names[SIM_LOG] = 0;
    memcpy(sim.files[0].cache, bytes.data, bytes.len);
    sim.files[0].bytes = bytes.len;
    for (usize i = 0; i < bytes.len; i++) {
        sim.files[0].cache[i] ^= (u8)(1u << i % 8);
        line[i % 64] = judge(&disk);
        sim.files[0].cache[i] ^= (u8)(1u << i % 8);
        if (i % 64 == 63 || i + 1 == bytes.len) {
            line[i % 64 + 1] = 0;
            test_note("%s", line);
        }
    }
    return 0;
}

// More transactions than the index begins with, payloads larger than any buffer, on the system's
// own files. The store of an earlier run is moved aside.
static void a_large_store_on_the_systems_disk(void) {
    static char path[600], log[640], old[640];
    static u8 large[700 * 1024], back[sizeof large];
    struct text t = TEXT_OVER_ARRAY(path);
    text_format(&t, "%s.store", program_path);
    t = TEXT_OVER_ARRAY(log);
    text_format(&t, "%s/log", path);
    t = TEXT_OVER_ARRAY(old);
    text_format(&t, "%s/log.old", path);
    struct sov_fault fault = {0};
    CHECK_MSG(platform_make_folder(path, &fault) == SOV_OK, "%s", fault.message);
    if (!platform_is_missing(log)) CHECK(platform_rename(log, old, &fault) == SOV_OK);
    struct rowm_folder folder = {path};
    struct rowm_disk disk = rowm_folder_disk(&folder);
    struct rowm *store = OPEN(&disk);
    if (store == NULL) return;
    for (usize i = 0; i < sizeof large; i++) large[i] = (u8)(i * 31 + (i >> 9));
    for (u32 i = 0; i < 700; i++) {
        char name[16];
        t = TEXT_OVER_ARRAY(name);
        text_format(&t, "t%u", i);
        struct rowm_write write = checkpoint(name, name);
        write.owner = i;
        if (i % 300 == 299) write.payload = (struct str){large, sizeof large};
        CHECK_MSG(rowm_stage(store, &write, NULL, &fault) == SOV_OK, "%s", fault.message);
    }
    CHECK_MSG(rowm_commit(store, &fault) == SOV_OK, "%s", fault.message);
    rowm_close(store);
    store = OPEN(&disk);
    expect_verified(&disk, store, __LINE__);
    for (u32 i = 0; i < 700; i += 23) {
        u64 record = 0;
        struct rowm_record_info info;
        CHECK(rowm_find_available(store, i, &record) && record == i + 1);
        CHECK(rowm_info(store, record, &info, NULL) == SOV_OK && info.owner == i);
    }
    struct rowm_record_info info;
    usize n = 0;
    CHECK(rowm_info(store, 600, &info, NULL) == SOV_OK); // written as number 599
    struct rowm_claim claim = {id_of("claim"), info.capability, 1};
    enum sov_status status = sov_rowm_read_once(store, &claim, back, sizeof back, &n, NULL, &fault);
    CHECK_MSG(status == SOV_OK && n == sizeof large, "%s", fault.message);
    CHECK(memcmp(back, large, sizeof large) == 0);
    struct rowm *second = NULL;
    CHECK(rowm_open(&disk, &manifest, &second, NULL) == SOV_ERR_STATE);
    expect_verified(&disk, store, __LINE__);
    rowm_close(store);
    folder.path = "no/such/folder";
    CHECK(rowm_open(&disk, &manifest, &store, NULL) == SOV_ERR_IO);
}

// One character for each log of the file, each behind its length (u32).
static int judge_many(const char *path) {
    static struct sim sim;
    struct str bytes = test_read_file(path);
    for (usize at = 0; at + 4 <= bytes.len;) {
        u32 n = load_u32(bytes.data + at);
        at += 4;
        if (n > FILE_BYTES_MAX || n > bytes.len - at) return 1;
        sim_begin(&sim, 1);
        struct rowm_disk disk = sim_disk(&sim);
        sim.names[SIM_LOG] = 0;
        memcpy(sim.files[0].cache, bytes.data + at, n);
        sim.files[0].bytes = n;
        const char verdict[2] = {judge(&disk), 0};
        test_note("%s", verdict);
        at += n;
    }
    return 0;
}

static int judge_folder(const char *path) {
    struct rowm_folder folder = {path};
    struct rowm_disk disk = rowm_folder_disk(&folder);
    test_note("%c", judge(&disk));
    return 0;
}

static const struct test_case cases[] = {
    {"tree_is_that_of_the_rfc", tree_is_that_of_the_rfc},
    {"append_once", append_once},
    {"what_is_staged_is_not_visible", what_is_staged_is_not_visible},
    {"a_payload_is_read_once", a_payload_is_read_once},
    {"nothing_is_disclosed_before_it_is_durable", nothing_is_disclosed_before_it_is_durable},
    {"resume_has_a_successor", resume_has_a_successor},
    {"traversal_is_bounded", traversal_is_bounded},
    {"every_crash_is_recovered", every_crash_is_recovered},
    {"every_failure_is_survived", every_failure_is_survived},
    {"recovery_is_deterministic", recovery_is_deterministic},
    {"every_flip_is_detected", every_flip_is_detected},
    {"a_large_store_on_the_systems_disk", a_large_store_on_the_systems_disk},
    {"an_older_copy_is_told_by_its_head", an_older_copy_is_told_by_its_head},
};

int program_main(const struct platform_start *start) {
    static const struct {
        const char *name;
        int (*run)(const char *path);
    } actions[] = {{"write", write_folder},
                   {"flips", judge_flips},
                   {"judge", judge_folder},
                   {"many", judge_many}};
    program_path = start->args[0];
    for (u32 i = 0; start->n_args == 3 && i < COUNT_OF(actions); i++) {
        if (str_equal(str_from_z(start->args[1]), str_from_z(actions[i].name))) {
            return actions[i].run(start->args[2]);
        }
    }
    return test_main(start, "test_rowm", cases, COUNT_OF(cases));
}
