// SPDX-License-Identifier: Apache-2.0
// The record store (rowm.h M1 to M6, worm.h W1 to W4) over a simulated disk: a crash at every
// operation, unsynced sectors kept, lost or torn; syncs that fail; every byte flipped. With the
// arguments "write FOLDER" and "flips FOLDER" the program makes a small store and tells what the
// verifier says of each of its single-byte changes, for tests/test_store.py.
#include "freestanding/mem.h"
#include "record/rowm.h"
#include "record/tree.h"
#include "test.h"

// --- a disk that forgets ---
// Files by name. What was written is in `cache`; a sync copies dirty sectors to `durable`. A sync
// that fails leaves them clean in the cache and not on the disk, as Linux does. Power that fails
// decides the fate of every sector that differs; a process that is killed leaves the cache.
// Names become durable by sync_names.

#define SECTOR_BYTES 512
#define FILE_BYTES_MAX (64 * 1024)
enum sim_name { SIM_LOG, SIM_NEW, SIM_LOCK, SIM_NAMES };

struct sim_file {
    u8 cache[FILE_BYTES_MAX], durable[FILE_BYTES_MAX];
    u64 bytes, durable_bytes;
    bool dirty[FILE_BYTES_MAX / SECTOR_BYTES];
};

enum sim_fate { FATE_KEEP, FATE_LOSE, FATE_TEAR, FATE_RANDOM, FATES, FATE_KILLED };

struct sim {
    struct sim_file files[3];
    i32 names[SIM_NAMES], durable_names[SIM_NAMES]; // index of the file, -1: none
    bool locked, dead;
    u32 n_ops, crash_at; // the operation that does not finish; 0: none
    u32 fail_at;         // the operation that fails, and does nothing
    struct test_random random;
};

static void sim_begin(struct sim *sim, u64 seed) {
    memset(sim, 0, sizeof *sim);
    for (u32 i = 0; i < SIM_NAMES; i++) sim->names[i] = sim->durable_names[i] = -1;
    sim->random.state = seed;
}

static u32 name_of(const char *name) {
    static const char *const names[] = {"log", "log.new", "lock"};
    u32 i = 0;
    while (!str_equal(str_from_z(name), str_from_z(names[i]))) i++;
    return i;
}

// Counts an operation that changes the disk. False: it fails, or the machine is off.
static bool sim_op(struct sim *sim, struct sov_fault *fault, bool *crashes) {
    *crashes = false;
    if (sim->dead) return fault_set(fault, SOV_ERR_IO, "power is off"), false;
    sim->n_ops++;
    *crashes = sim->n_ops == sim->crash_at;
    if (*crashes) sim->dead = true;
    if (sim->n_ops == sim->fail_at) return fault_set(fault, SOV_ERR_IO, "simulated"), false;
    if (*crashes) fault_set(fault, SOV_ERR_IO, "power fails");
    return true;
}

static bool sim_is_missing(void *context, const char *name) {
    return ((struct sim *)context)->names[name_of(name)] < 0;
}

static enum sov_status sim_open(void *context, const char *name, enum rowm_open_mode mode,
                                int *file, struct sov_fault *fault) {
    struct sim *sim = context;
    u32 n = name_of(name);
    if (sim->dead) return fault_set(fault, SOV_ERR_IO, "power is off");
    if (mode == ROWM_OPEN_LOCK) {
        if (sim->locked) return fault_set(fault, SOV_ERR_STATE, "in use");
        sim->locked = true;
        *file = 99;
        return SOV_OK;
    }
    if (mode == ROWM_OPEN_CREATE) {
        if (sim->names[n] < 0) { // a file that no name and no durable name holds
            i32 i = 0;
            while (i == sim->names[SIM_LOG] || i == sim->durable_names[SIM_LOG] ||
                   i == sim->durable_names[SIM_NEW]) {
                i++;
            }
            memset(&sim->files[i], 0, sizeof sim->files[i]);
            sim->names[n] = i;
        }
        sim->files[sim->names[n]].bytes = 0;
    }
    if (sim->names[n] < 0) return fault_set(fault, SOV_ERR_IO, "no such file");
    *file = sim->names[n];
    return SOV_OK;
}

static void sim_close(void *context, int file) {
    if (file == 99) ((struct sim *)context)->locked = false;
}

static enum sov_status sim_size(void *context, int file, u64 *bytes, struct sov_fault *fault) {
    struct sim *sim = context;
    if (sim->dead) return fault_set(fault, SOV_ERR_IO, "power is off");
    *bytes = sim->files[file].bytes;
    return SOV_OK;
}

static enum sov_status sim_read_at(void *context, int file, u64 offset, void *buffer, usize bytes,
                                   usize *n_read, struct sov_fault *fault) {
    struct sim *sim = context;
    if (sim->dead) return fault_set(fault, SOV_ERR_IO, "power is off");
    const struct sim_file *f = &sim->files[file];
    *n_read = (usize)MIN((u64)bytes, f->bytes - MIN(offset, f->bytes));
    memcpy(buffer, f->cache + offset, *n_read);
    return SOV_OK;
}

static enum sov_status sim_write_at(void *context, int file, u64 offset, struct str bytes,
                                    struct sov_fault *fault) {
    struct sim *sim = context;
    bool crashes = false;
    struct sim_file *f = &sim->files[file];
    bool goes = sim_op(sim, fault, &crashes);
    assert(offset + bytes.len <= FILE_BYTES_MAX);
    // One that fails or crashes has written a part.
    usize n = goes && !crashes ? bytes.len : test_random_below(&sim->random, (u32)bytes.len + 1);
    if (sim->dead && !crashes) return SOV_ERR_IO;
    memcpy(f->cache + offset, bytes.data, n);
    if (n > 0) f->bytes = MAX(f->bytes, offset + n);
    for (u64 i = offset / SECTOR_BYTES; i * SECTOR_BYTES < offset + n; i++) f->dirty[i] = true;
    return goes && !crashes ? SOV_OK : SOV_ERR_IO;
}

static enum sov_status sim_truncate(void *context, int file, u64 bytes, struct sov_fault *fault) {
    struct sim *sim = context;
    bool crashes = false;
    struct sim_file *f = &sim->files[file];
    if (!sim_op(sim, fault, &crashes)) return SOV_ERR_IO;
    if (bytes < f->bytes) {
        memset(f->cache + bytes, 0, (usize)(f->bytes - bytes));
        f->dirty[bytes / SECTOR_BYTES] = true;
        for (u64 i = bytes / SECTOR_BYTES + 1; i * SECTOR_BYTES < f->bytes; i++) {
            f->dirty[i] = true;
        }
    }
    f->bytes = bytes;
    return crashes ? SOV_ERR_IO : SOV_OK;
}

static enum sov_status sim_sync(void *context, int file, struct sov_fault *fault) {
    struct sim *sim = context;
    bool crashes = false;
    struct sim_file *f = &sim->files[file];
    bool goes = sim_op(sim, fault, &crashes);
    if (sim->dead) return SOV_ERR_IO;
    for (u32 i = 0; i < COUNT_OF(f->dirty); i++) {
        u32 at = i * SECTOR_BYTES;
        if (f->dirty[i] && goes) memcpy(f->durable + at, f->cache + at, SECTOR_BYTES);
        f->dirty[i] = false;
    }
    if (!goes) return SOV_ERR_IO;
    f->durable_bytes = f->bytes;
    return SOV_OK;
}

static enum sov_status sim_rename(void *context, const char *from, const char *to,
                                  struct sov_fault *fault) {
    struct sim *sim = context;
    bool crashes = false;
    if (!sim_op(sim, fault, &crashes)) return SOV_ERR_IO;
    sim->names[name_of(to)] = sim->names[name_of(from)];
    sim->names[name_of(from)] = -1;
    return crashes ? SOV_ERR_IO : SOV_OK;
}

static enum sov_status sim_sync_names(void *context, struct sov_fault *fault) {
    struct sim *sim = context;
    bool crashes = false;
    if (!sim_op(sim, fault, &crashes) || crashes) return SOV_ERR_IO;
    memcpy(sim->durable_names, sim->names, sizeof sim->names);
    return SOV_OK;
}

static struct rowm_disk sim_disk(struct sim *sim) {
    return (struct rowm_disk){sim,      sim_is_missing, sim_open,      sim_close,
                              sim_size, sim_read_at,    sim_write_at,  sim_truncate,
                              sim_sync, sim_rename,     sim_sync_names};
}

static enum sim_fate choose(struct sim *sim, enum sim_fate fate) {
    return fate == FATE_RANDOM ? (enum sim_fate)test_random_below(&sim->random, FATE_RANDOM) : fate;
}

// The machine comes back: what was not synced is kept, lost or torn, sector by sector.
static void sim_restart(struct sim *sim, enum sim_fate fate) {
    sim->locked = sim->dead = false;
    sim->crash_at = sim->fail_at = sim->n_ops = 0;
    if (fate == FATE_KILLED) return;
    for (u32 i = 0; i < COUNT_OF(sim->files); i++) {
        struct sim_file *f = &sim->files[i];
        for (u32 at = 0; at < FILE_BYTES_MAX; at += SECTOR_BYTES) {
            enum sim_fate this = choose(sim, fate);
            u32 kept = this == FATE_KEEP ? SECTOR_BYTES : this == FATE_LOSE ? 0 : SECTOR_BYTES / 2;
            memcpy(f->durable + at, f->cache + at, kept);
        }
        if (choose(sim, fate) != FATE_LOSE) f->durable_bytes = f->bytes;
        memset(f->durable + f->durable_bytes, 0, (usize)(FILE_BYTES_MAX - f->durable_bytes));
        memcpy(f->cache, f->durable, sizeof f->cache);
        memset(f->dirty, 0, sizeof f->dirty);
        f->bytes = f->durable_bytes;
    }
    if (choose(sim, fate) != FATE_LOSE) memcpy(sim->durable_names, sim->names, sizeof sim->names);
    memcpy(sim->names, sim->durable_names, sizeof sim->names);
}

// --- what is written ---

static const char *program_path; // files of this program lie beside it, so that builds do not meet

static const struct rowm_manifest manifest = {
    .engine_version = {(const u8 *)"test 1", 6},
    .device = {(const u8 *)"cpu", 3},
    .wall_ns = 1000,
};

static struct sha256_digest id_of(const char *name) { return sha256_of(str_from_z(name)); }

static struct rowm *open_store(const struct rowm_disk *disk, int line) {
    struct sov_fault fault = {0};
    struct rowm *store = NULL;
    enum sov_status status = rowm_open(disk, &manifest, &store, &fault);
    if (status != SOV_OK) test_fail(__FILE__, line, "open: %s", fault.message);
    return store;
}
#define OPEN(disk) open_store((disk), __LINE__)

static struct rowm_write plain(const char *name, const char *payload) {
    return (struct rowm_write){.txid = id_of(name),
                               .kind = ROWM_EVENTS,
                               .owner = 7,
                               .parent = ROWM_NONE,
                               .payload = str_from_z(payload)};
}

static struct rowm_write checkpoint(const char *name, const char *payload) {
    struct rowm_write write = plain(name, payload);
    write.kind = ROWM_CHECKPOINT;
    write.issues = true;
    return write;
}

static void expect_verified(const struct rowm_disk *disk, const struct rowm *store, int line) {
    struct sov_fault fault = {0};
    struct rowm_report report = {0};
    enum sov_status status = sov_rowm_verify(disk, NULL, &report, &fault);
    if (status != SOV_OK) test_fail(__FILE__, line, "verify: %s", fault.message);
    if (store == NULL) return;
    struct rowm_head head = rowm_head(store);
    CHECK_MSG(sha256_equal(&head.root, &report.head.root) && head.time == report.head.time &&
                  report.tail_bytes == 0,
              "line %d: another head, or a tail of %llu bytes", line, report.tail_bytes);
}

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

#define STEPS 7

struct life {
    bool acknowledged[STEPS];
    struct sha256_digest receipts[STEPS];
    u32 n_disclosed; // of the payload that is read once
    u32 n_resumed;
};

static enum sov_status take_step(struct rowm *store, u32 step, struct life *life) {
    static const char *const names[STEPS] = {"s0", "s1", "s2", "s3", "s4", "s5", "s6"};
    static char large[3000];
    struct sov_fault fault = {0};
    struct rowm_receipt receipt = {0};
    struct rowm_record_info info = {0};
    enum sov_status status = SOV_OK;
    u64 record = 0;
    u8 bytes[16] = {0};
    usize n = 0;
    for (u32 i = 0; i + 1 < sizeof large; i++) large[i] = (char)('a' + i % 26);
    struct rowm_write write = plain(names[step], step == 1 ? large : names[step]);
    struct rowm_claim claim = {id_of(names[step]), {{0}}, 9};
    switch (step) {
    case 0: // a checkpoint of 7, and one of 8 in the same commit
        write = checkpoint("s0b", "eight");
        write.owner = 8;
        status = rowm_stage(store, &write, NULL, &fault);
        write = checkpoint(names[0], "seven");
        if (status == SOV_OK) status = sov_rowm_write(store, &write, &receipt, &fault);
        break;
    case 2: // 8 is read once
    case 3: // 7 is resumed
        if (!rowm_find_available(store, step == 2 ? 8 : 7, &record)) return SOV_OK; // lost
        status = rowm_info(store, record, &info, &fault);
        claim.capability = info.capability;
        if (step == 2) {
            status = sov_rowm_read_once(store, &claim, bytes, 16, &n, &receipt, &fault);
            if (status == SOV_OK) life->n_disclosed++;
            CHECK(status == SOV_OK ? memcmp(bytes, "eight", 5) == 0 : bytes[0] == 0);
        } else if (info.epoch == 0) {
            status = rowm_resume(store, &claim, bytes, 16, &n, &receipt, &fault);
            if (status == SOV_OK) life->n_resumed++;
            CHECK(status == SOV_OK ? memcmp(bytes, "seven", 5) == 0 : bytes[0] == 0);
        } else {
            return SOV_OK;
        }
        break;
    default: status = sov_rowm_write(store, &write, &receipt, &fault); break;
    }
    if (status == SOV_OK) {
        if (life->acknowledged[step] && step != 2 && step != 3) {
            CHECK(sha256_equal(&life->receipts[step], &receipt.hash));
        }
        life->acknowledged[step] = true;
        life->receipts[step] = receipt.hash;
    } else {
        CHECK_MSG(status == SOV_ERR_IO, "step %u: %s", step, fault.message);
    }
    return status;
}

// Sessions and steps until something fails. Returns whether all went through.
static bool live(const struct rowm_disk *disk, struct life *life) {
    struct rowm *store = NULL;
    struct sov_fault fault = {0};
    enum sov_status status = rowm_open(disk, &manifest, &store, &fault);
    if (status != SOV_OK) {
        CHECK_MSG(status == SOV_ERR_IO, "open: %s", fault.message);
        return false;
    }
    for (u32 i = 0; i < STEPS && status == SOV_OK; i++) status = take_step(store, i, life);
    rowm_close(store);
    return status == SOV_OK;
}

// After any crash: recovery succeeds, the store verifies, no acknowledged receipt is missing, and
// the life can be finished, reading what is read once at most once.
static void expect_recovery(struct sim *sim, struct life *life, u32 crash_at, u32 again_at,
                            enum sim_fate first, enum sim_fate fate) {
    struct rowm_disk disk = sim_disk(sim);
    sim_restart(sim, first);
    if (again_at > 0) { // and once more, while it recovers or later
        sim->crash_at = again_at;
        live(&disk, life);
        sim_restart(sim, fate);
    }
    struct sov_fault fault = {0};
    struct rowm *store = NULL;
    enum sov_status status = rowm_open(&disk, &manifest, &store, &fault);
    CHECK_MSG(status == SOV_OK, "crash at %u, %u, fate %u: %s", crash_at, again_at, fate,
              fault.message);
    if (status != SOV_OK) return;
    expect_verified(&disk, store, __LINE__);
    struct rowm_receipt receipts[64];
    u32 n = 0;
    CHECK(sov_rowm_get_receipts(store, 1, receipts, 64, &n, NULL) == SOV_OK);
    for (u32 i = 0; i < STEPS; i++) {
        u32 n_found = 0;
        for (u32 j = 0; j < n; j++) {
            n_found += sha256_equal(&receipts[j].hash, &life->receipts[i]);
        }
        CHECK_MSG(!life->acknowledged[i] || n_found == 1,
                  "crash at %u, %u, fate %u: receipt of step %u is there %u times", crash_at,
                  again_at, fate, i, n_found);
    }
    rowm_close(store);
    CHECK_MSG(live(&disk, life), "crash at %u, %u, fate %u: not finished", crash_at, again_at,
              fate);
    CHECK(life->n_disclosed <= 1 && life->n_resumed <= 1);
    u64 record = 0;
    store = OPEN(&disk);
    CHECK(rowm_find_available(store, 7, &record)); // a live sequence can be resumed
    CHECK(!rowm_find_available(store, 8, &record));
    expect_verified(&disk, store, __LINE__);
    rowm_close(store);
}

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
    for (u64 i = 0; i < log->bytes; i++) {
        u8 flip = (u8)(1u << i % 8);
        log->cache[i] ^= flip;
        char verdict = judge(&disk);
        CHECK_MSG(verdict == 'x', "byte %llu: %c", i, verdict);
        log->cache[i] ^= flip;
    }
    // Cut anywhere it is detected; what is added is a tail that is named.
    for (u64 cut = 1; cut < log->bytes; cut += 97) {
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
    } actions[] = {{"write", write_folder}, {"flips", judge_flips}, {"judge", judge_folder}};
    program_path = start->args[0];
    for (u32 i = 0; start->n_args == 3 && i < COUNT_OF(actions); i++) {
        if (str_equal(str_from_z(start->args[1]), str_from_z(actions[i].name))) {
            return actions[i].run(start->args[2]);
        }
    }
    return test_main(start, "test_rowm", cases, COUNT_OF(cases));
}
