// SPDX-License-Identifier: Apache-2.0
// The simulated disk of the record store's tests, and the small writes they make on it. Any
// operation may fail once or be the last before power fails; the disk may be full from one on;
// reads may fail or come short. What was not synced is then kept, lost or torn, sector by sector:
// by chance, or every combination by its number (sim_outcomes).
#pragma once
#include "freestanding/mem.h"
#include "record/rowm.h"
#include "test.h"

// --- a disk that forgets ---
// Files by name. What was written is in `cache`; a sync copies dirty sectors to `durable`. A sync
// that fails leaves them clean in the cache and not on the disk, as Linux does. Power that fails
// decides the fate of every sector that differs; a process that is killed leaves the cache.
// Names become durable by sync_names; one that fails forgets them in the same way.

#define SECTOR_BYTES 512
#ifndef FILE_BYTES_MAX
#define FILE_BYTES_MAX (40 * 1024)
#endif
enum sim_name { SIM_LOG, SIM_NEW, SIM_LOCK, SIM_SIDECAR, SIM_SIDECAR_NEW, SIM_NAMES };

struct sim_file {
    u8 cache[FILE_BYTES_MAX], durable[FILE_BYTES_MAX];
    u64 bytes, durable_bytes;
    bool dirty[FILE_BYTES_MAX / SECTOR_BYTES];
};

enum sim_fate { FATE_KEEP, FATE_LOSE, FATE_TEAR, FATE_RANDOM, FATES, FATE_KILLED };

struct sim {
    struct sim_file files[8];                       // as many as names can hold, and a new one
    i32 names[SIM_NAMES], durable_names[SIM_NAMES]; // index of the file, -1: none
    bool locked, dead, names_dirty;
    u32 n_ops, crash_at;                // the operation that does not finish; 0: none
    u32 fail_at;                        // the operation that fails, and does nothing
    u32 full_at;                        // from this operation on a file cannot grow; 0: never
    u32 n_reads, read_fail, read_short; // the read that fails, or comes short; 0: none
    bool reads_nothing;                 // the short one; else by chance
    struct test_random random;
};

static inline void sim_begin(struct sim *sim, u64 seed) {
    memset(sim, 0, sizeof *sim);
    for (u32 i = 0; i < SIM_NAMES; i++) sim->names[i] = sim->durable_names[i] = -1;
    sim->random.state = seed;
}

static inline u32 name_of(const char *name) {
    static const char *const names[] = {"log", "log.new", "lock", "sidecar", "sidecar.new"};
    u32 i = 0;
    while (!str_equal(str_from_z(name), str_from_z(names[i]))) i++;
    return i;
}

// Counts an operation that changes the disk. False: it fails, or the machine is off.
static inline bool sim_op(struct sim *sim, struct sov_fault *fault, bool *crashes) {
    *crashes = false;
    if (sim->dead) return fault_set(fault, SOV_ERR_IO, "power is off"), false;
    sim->n_ops++;
    *crashes = sim->n_ops == sim->crash_at;
    if (*crashes) sim->dead = true;
    if (sim->n_ops == sim->fail_at) return fault_set(fault, SOV_ERR_IO, "simulated"), false;
    if (*crashes) fault_set(fault, SOV_ERR_IO, "power fails");
    return true;
}

static inline bool sim_is_missing(void *context, const char *name) {
    return ((struct sim *)context)->names[name_of(name)] < 0;
}

static inline bool sim_is_named(const struct sim *sim, i32 file) {
    bool is_named = false;
    for (u32 i = 0; i < SIM_NAMES; i++) {
        is_named = is_named || sim->names[i] == file || sim->durable_names[i] == file;
    }
    return is_named;
}

static inline enum sov_status sim_open(void *context, const char *name, enum rowm_open_mode mode,
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
            while (sim_is_named(sim, i)) i++;
            memset(&sim->files[i], 0, sizeof sim->files[i]);
            sim->names[n] = i;
            sim->names_dirty = true;
        }
        sim->files[sim->names[n]].bytes = 0;
    }
    if (sim->names[n] < 0) return fault_set(fault, SOV_ERR_IO, "no such file");
    *file = sim->names[n];
    return SOV_OK;
}

static inline void sim_close(void *context, int file) {
    if (file == 99) ((struct sim *)context)->locked = false;
}

static inline enum sov_status sim_size(void *context, int file, u64 *bytes,
                                       struct sov_fault *fault) {
    struct sim *sim = context;
    if (sim->dead) return fault_set(fault, SOV_ERR_IO, "power is off");
    *bytes = sim->files[file].bytes;
    return SOV_OK;
}

static inline enum sov_status sim_read_at(void *context, int file, u64 offset, void *buffer,
                                          usize bytes, usize *n_read, struct sov_fault *fault) {
    struct sim *sim = context;
    if (sim->dead) return fault_set(fault, SOV_ERR_IO, "power is off");
    const struct sim_file *f = &sim->files[file];
    sim->n_reads++;
    if (sim->n_reads == sim->read_fail) return fault_set(fault, SOV_ERR_IO, "simulated read");
    *n_read = (usize)MIN((u64)bytes, f->bytes - MIN(offset, f->bytes));
    if (sim->n_reads == sim->read_short && *n_read > 0) {
        *n_read = sim->reads_nothing ? 0 : test_random_below(&sim->random, (u32)*n_read);
    }
    memcpy(buffer, f->cache + offset, *n_read);
    return SOV_OK;
}

static inline enum sov_status sim_write_at(void *context, int file, u64 offset, struct str bytes,
                                           struct sov_fault *fault) {
    struct sim *sim = context;
    bool crashes = false;
    struct sim_file *f = &sim->files[file];
    bool goes = sim_op(sim, fault, &crashes);
    assert(offset + bytes.len <= FILE_BYTES_MAX);
    // One that fails or crashes has written a part.
    usize n = goes && !crashes ? bytes.len : test_random_below(&sim->random, (u32)bytes.len + 1);
    if (goes && !crashes && sim->full_at != 0 && sim->n_ops >= sim->full_at &&
        offset + bytes.len > f->bytes) {
        goes = fault_set(fault, SOV_ERR_IO, "simulated: no space") == SOV_OK;
        n = (usize)MIN((u64)test_random_below(&sim->random, (u32)bytes.len), FILE_BYTES_MAX);
    }
    if (sim->dead && !crashes) return SOV_ERR_IO;
    memcpy(f->cache + offset, bytes.data, n);
    if (n > 0) f->bytes = MAX(f->bytes, offset + n);
    for (u64 i = offset / SECTOR_BYTES; i * SECTOR_BYTES < offset + n; i++) f->dirty[i] = true;
    return goes && !crashes ? SOV_OK : SOV_ERR_IO;
}

static inline enum sov_status sim_truncate(void *context, int file, u64 bytes,
                                           struct sov_fault *fault) {
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

static inline enum sov_status sim_sync(void *context, int file, struct sov_fault *fault) {
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

static inline enum sov_status sim_rename(void *context, const char *from, const char *to,
                                         struct sov_fault *fault) {
    struct sim *sim = context;
    bool crashes = false;
    if (!sim_op(sim, fault, &crashes)) return SOV_ERR_IO;
    sim->names[name_of(to)] = sim->names[name_of(from)];
    sim->names[name_of(from)] = -1;
    sim->names_dirty = true;
    return crashes ? SOV_ERR_IO : SOV_OK;
}

static inline enum sov_status sim_sync_names(void *context, struct sov_fault *fault) {
    struct sim *sim = context;
    bool crashes = false;
    bool goes = sim_op(sim, fault, &crashes);
    if (sim->dead) return SOV_ERR_IO;
    if (goes && sim->names_dirty) memcpy(sim->durable_names, sim->names, sizeof sim->names);
    sim->names_dirty = false;
    return goes ? SOV_OK : SOV_ERR_IO;
}

static inline struct rowm_disk sim_disk(struct sim *sim) {
    return (struct rowm_disk){sim,      sim_is_missing, sim_open,      sim_close,
                              sim_size, sim_read_at,    sim_write_at,  sim_truncate,
                              sim_sync, sim_rename,     sim_sync_names};
}

static inline enum sim_fate choose(struct sim *sim, enum sim_fate fate) {
    return fate == FATE_RANDOM ? (enum sim_fate)test_random_below(&sim->random, FATE_RANDOM) : fate;
}

// The machine comes back: what was not synced is kept, lost or torn, sector by sector.
static inline void sim_restart(struct sim *sim, enum sim_fate fate) {
    sim->locked = sim->dead = false;
    sim->crash_at = sim->fail_at = sim->full_at = sim->n_ops = 0;
    sim->n_reads = sim->read_fail = sim->read_short = 0;
    if (fate == FATE_KILLED) return;
    sim->names_dirty = false;
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

// The next of the choices packed into *outcome, in base 3; *n counts the combinations.
static inline enum sim_fate sim_digit(u64 *outcome, u64 *n) {
    enum sim_fate fate = (enum sim_fate)(*outcome % FATE_RANDOM);
    *outcome /= FATE_RANDOM;
    *n = MIN(*n, ~0ull / FATE_RANDOM) * FATE_RANDOM;
    return fate;
}

// Power comes back with combination `outcome` of what may have become of each unsynced sector, each
// file's size and the names. Returns how many combinations there are; with `apply` false only that.
// A torn sector is old and new byte by byte, by chance.
static inline u64 sim_outcome(struct sim *sim, u64 outcome, bool apply) {
    u64 n = 1;
    for (u32 i = 0; i < COUNT_OF(sim->files); i++) {
        struct sim_file *f = &sim->files[i];
        u64 end = MAX(f->bytes, f->durable_bytes), size = f->bytes;
        for (u32 at = 0; at < end; at += SECTOR_BYTES) {
            if (memcmp(f->cache + at, f->durable + at, SECTOR_BYTES) == 0) continue;
            enum sim_fate fate = sim_digit(&outcome, &n);
            for (u32 k = at; apply && k < at + SECTOR_BYTES; k++) {
                bool kept = fate == FATE_KEEP ||
                            (fate == FATE_TEAR && test_random_u64(&sim->random) % 2 == 0);
                if (kept) f->durable[k] = f->cache[k];
            }
        }
        if (f->bytes != f->durable_bytes) { // or anything between them
            u64 least = MIN(f->bytes, f->durable_bytes);
            enum sim_fate fate = sim_digit(&outcome, &n);
            if (fate == FATE_LOSE) size = f->durable_bytes;
            if (fate == FATE_TEAR) size = least + test_random_u64(&sim->random) % (end - least);
        }
        if (!apply) continue;
        f->durable_bytes = size;
        memset(f->durable + size, 0, (usize)(FILE_BYTES_MAX - size));
        memcpy(f->cache, f->durable, sizeof f->cache);
        f->bytes = size;
    }
    if (memcmp(sim->names, sim->durable_names, sizeof sim->names) != 0) {
        enum sim_fate fate = sim_digit(&outcome, &n);
        if (apply && fate == FATE_KEEP) {
            memcpy(sim->durable_names, sim->names, sizeof sim->names);
        }
    }
    if (!apply) return n;
    memcpy(sim->names, sim->durable_names, sizeof sim->names);
    sim->names_dirty = false;
    for (u32 i = 0; i < COUNT_OF(sim->files); i++) {
        memset(sim->files[i].dirty, 0, sizeof sim->files[i].dirty);
    }
    sim_restart(sim, FATE_KILLED);
    return n;
}

// --- what is written on it ---

static const struct rowm_manifest manifest = {
    .engine_version = {(const u8 *)"test 1", 6},
    .device = {(const u8 *)"cpu", 3},
    .wall_ns = 1000,
};

static inline struct sha256_digest id_of(const char *name) { return sha256_of(str_from_z(name)); }

static inline struct rowm *open_store(const struct rowm_disk *disk, int line) {
    struct sov_fault fault = {0};
    struct rowm *store = NULL;
    enum sov_status status = rowm_open(disk, &manifest, &store, &fault);
    if (status != SOV_OK) test_fail(__FILE__, line, "open: %s", fault.message);
    return store;
}
#define OPEN(disk) open_store((disk), __LINE__)

static inline struct rowm_write plain(const char *name, const char *payload) {
    return (struct rowm_write){.txid = id_of(name),
                               .kind = ROWM_EVENTS,
                               .owner = 7,
                               .parent = ROWM_NONE,
                               .payload = str_from_z(payload)};
}

static inline struct rowm_write checkpoint(const char *name, const char *payload) {
    struct rowm_write write = plain(name, payload);
    write.kind = ROWM_CHECKPOINT;
    write.issues = true;
    return write;
}

static inline void expect_verified(const struct rowm_disk *disk, const struct rowm *store,
                                   int line) {
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

// --- a small life, which tests stop everywhere ---

#define STEPS 7

struct life {
    bool acknowledged[STEPS];
    struct sha256_digest receipts[STEPS];
    u32 n_disclosed; // of the payload that is read once
    u32 n_resumed;
};

static inline enum sov_status take_step(struct rowm *store, u32 step, struct life *life) {
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
static inline bool live(const struct rowm_disk *disk, struct life *life) {
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
static inline void expect_recovery(struct sim *sim, struct life *life, u32 crash_at, u32 again_at,
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
