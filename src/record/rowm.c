// SPDX-License-Identifier: Apache-2.0
// The writer of a store: opening and recovery, the write machine, the read-once machine. Reading a
// log is worm_read.c, what its entries mean worm.c, reading without a lock and verification
// snapshot.c.
//
// Files of the folder: `log` (head slots, then entries), `lock` (empty), and `log.new` while a
// store is made. What happens on opening, in this order; every row can stop anywhere and be
// repeated:
//
//     no log           also one as it was made: log.new is written and synced, renamed to log;
//                      names synced
//     slots            both valid: they must follow each other; one valid: it counts; none: damaged
//     acknowledged     every entry must be whole, chained, in its place; heads must be the slot's
//     behind it        whole chained entries are taken (one that may not come there: damaged);
//                      from the first that is not whole on, the file is cut
//     last one pending its receipt is made again: the same bytes
//     then             newest slot, if both were valid, written again and synced; what was taken
//                      behind the acknowledged length written again, synced; new head published
//
// Bytes are written again because a page that was never synced looks valid in the cache.
#include "freestanding/mem.h"
#include "platform/platform.h"
#include "record/worm.h"

#define LOCK_ATTEMPTS 8
#define LOG_NAME WORM_LOG_NAME
#define NEW_LOG_NAME "log.new"
#define LOCK_NAME "lock"
#define SCRATCH_BYTES (64 * 1024) // transactions up to this size are one write

#define SESSION_TAG "sov-rowm sess v1"

enum write_state { WRITE_IDLE, VALIDATE, STAGE, COMPUTE_ROOT, APPEND_WORM, DURABLE, PUBLISH_ROOT };
enum read_state {
    READ_IDLE,
    LOOKUP,
    CHECK_CAPABILITY,
    CLAIM,
    READ_APPEND_WORM,
    READ_DURABLE,
    COMMIT_CONSUMED,
    DISCLOSE,
};

struct rowm {
    const struct rowm_disk *disk;
    int lock, file;
    bool failed;     // M4
    u32 slots_valid; // when it was opened
    bool dirty_tail; // bytes behind the end that belong to nothing
    enum write_state write_state;
    enum read_state read_state;
    struct worm_state state;   // staged
    struct worm_slot slot;     // published
    u64 n_records, n_sessions; // published
    struct worm_reader reader;
    u8 scratch[SCRATCH_BYTES];
};

static struct str digest_str(const struct sha256_digest *digest) {
    return (struct str){digest->bytes, SHA256_BYTES};
}

// --- the folder ---

static enum sov_status folder_path(const struct rowm_folder *folder, const char *name,
                                   char path[ROWM_PATH_BYTES], struct sov_fault *fault) {
    struct text t = text_over(path, ROWM_PATH_BYTES);
    text_format(&t, "%s/%s", folder->path, name);
    return t.truncated ? fault_set(fault, SOV_ERR_LIMIT, "the path of the store is too long")
                       : SOV_OK;
}

static bool folder_is_missing(void *context, const char *name) {
    char path[ROWM_PATH_BYTES];
    return folder_path(context, name, path, NULL) == SOV_OK && platform_is_missing(path);
}

// Whether a path still names the file that was opened by it.
static bool is_same_file(int file, const char *path) {
    struct platform_identity ours, theirs;
    int other = -1;
    if (platform_open(path, PLATFORM_OPEN_READ, &other, NULL) != SOV_OK) return false;
    bool is_same = platform_file_identity(file, &ours) && platform_file_identity(other, &theirs) &&
                   ours.device == theirs.device && ours.inode == theirs.inode;
    platform_close(other);
    return is_same;
}

// Opens the file and takes its lock. Who removes a store (sov log --prune) removes it too, maybe
// between the two: then the lock is one that nobody else will meet, and another is taken.
static enum sov_status folder_lock(const char *path, int *file, struct sov_fault *fault) {
    for (u32 i = 0; i < LOCK_ATTEMPTS; i++) {
        enum sov_status status = platform_open(path, PLATFORM_OPEN_APPEND_PRIVATE, file, fault);
        if (status != SOV_OK) return status;
        status = platform_lock(*file, fault);
        if (status == SOV_OK && is_same_file(*file, path)) return SOV_OK;
        platform_close(*file);
        if (status != SOV_OK) return status;
    }
    return fault_set(fault, SOV_ERR_STATE, "its lock is removed again and again");
}

static enum sov_status folder_open(void *context, const char *name, enum rowm_open_mode mode,
                                   int *file, struct sov_fault *fault) {
    static const enum platform_open_mode modes[] = {
        [ROWM_OPEN_READ] = PLATFORM_OPEN_READ,
        [ROWM_OPEN_UPDATE] = PLATFORM_OPEN_UPDATE,
        [ROWM_OPEN_CREATE] = PLATFORM_OPEN_CREATE_PRIVATE,
    };
    char path[ROWM_PATH_BYTES];
    enum sov_status status = folder_path(context, name, path, fault);
    // What a crash left of an attempt before may have another mode.
    bool is_left = mode == ROWM_OPEN_CREATE && status == SOV_OK && !platform_is_missing(path);
    if (is_left) status = platform_remove(path, fault);
    if (status != SOV_OK) return status;
    if (mode != ROWM_OPEN_LOCK) return platform_open(path, modes[mode], file, fault);
    struct sov_fault inner = {0};
    status = folder_lock(path, file, &inner);
    if (status == SOV_OK) return SOV_OK;
    return fault_set(fault, status, "store %s: %s", ((const struct rowm_folder *)context)->path,
                     status == SOV_ERR_STATE ? "in use by another process" : inner.message);
}

static void folder_close(void *context, int file) {
    (void)context;
    platform_close(file);
}

static enum sov_status folder_size(void *context, int file, u64 *bytes, struct sov_fault *fault) {
    (void)context;
    return platform_file_size(file, bytes, fault);
}

static enum sov_status folder_read_at(void *context, int file, u64 offset, void *buffer,
                                      usize bytes, usize *n_read, struct sov_fault *fault) {
    (void)context;
    return platform_read_at(file, offset, buffer, bytes, n_read, fault);
}

static enum sov_status folder_write_at(void *context, int file, u64 offset, struct str bytes,
                                       struct sov_fault *fault) {
    (void)context;
    return platform_write_at(file, offset, bytes.data, bytes.len, fault);
}

static enum sov_status folder_truncate(void *context, int file, u64 bytes,
                                       struct sov_fault *fault) {
    (void)context;
    return platform_truncate(file, bytes, fault);
}

static enum sov_status folder_sync(void *context, int file, struct sov_fault *fault) {
    (void)context;
    return platform_sync(file, fault);
}

static enum sov_status folder_rename(void *context, const char *from, const char *to,
                                     struct sov_fault *fault) {
    char from_path[ROWM_PATH_BYTES], to_path[ROWM_PATH_BYTES];
    enum sov_status status = folder_path(context, from, from_path, fault);
    if (status == SOV_OK) status = folder_path(context, to, to_path, fault);
    return status != SOV_OK ? status : platform_rename(from_path, to_path, fault);
}

static enum sov_status folder_sync_names(void *context, struct sov_fault *fault) {
    return platform_sync_folder(((const struct rowm_folder *)context)->path, fault);
}

struct rowm_disk rowm_folder_disk(struct rowm_folder *folder) {
    return (struct rowm_disk){
        .context = folder,
        .is_missing = folder_is_missing,
        .open = folder_open,
        .close = folder_close,
        .size = folder_size,
        .read_at = folder_read_at,
        .write_at = folder_write_at,
        .truncate = folder_truncate,
        .sync = folder_sync,
        .rename = folder_rename,
        .sync_names = folder_sync_names,
    };
}

// --- durability ---

static enum sov_status write_at(struct rowm *s, u64 offset, struct str bytes,
                                struct sov_fault *fault) {
    s->reader.window_bytes = 0; // may show what is no longer there
    return s->disk->write_at(s->disk->context, s->file, offset, bytes, fault);
}

// A sync that fails is the last one (M4).
static enum sov_status sync_file(struct rowm *s, struct sov_fault *fault) {
    enum sov_status status = s->disk->sync(s->disk->context, s->file, fault);
    if (status != SOV_OK) s->failed = true;
    return status;
}

static enum sov_status put_slot(struct rowm *s, struct worm_slot *slot, struct sov_fault *fault) {
    u8 bytes[WORM_SLOT_BYTES];
    worm_make_slot(slot, bytes);
    u64 offset = slot->generation % 2 * WORM_SLOT_BYTES;
    enum sov_status status = write_at(s, offset, (struct str){bytes, sizeof bytes}, fault);
    if (status != SOV_OK) s->failed = true; // half a slot may be there
    return status != SOV_OK ? status : sync_file(s, fault);
}

static void note_published(struct rowm *s) {
    s->n_records = s->state.n_records;
    s->n_sessions = s->state.n_sessions;
}

// The staged heads, durable in the log already, become the published ones.
static enum sov_status publish(struct rowm *s, struct sov_fault *fault) {
    assert(!s->state.pending);
    struct worm_slot slot = {
        .generation = s->slot.generation + 1,
        .heads = worm_heads(&s->state),
        .previous = s->slot.hash,
    };
    enum sov_status status = put_slot(s, &slot, fault);
    if (status != SOV_OK) return status;
    s->slot = slot;
    note_published(s);
    return SOV_OK;
}

static enum sov_status refuse_failed(struct sov_fault *fault) {
    return fault_set(fault, SOV_ERR_IO,
                     "the store takes nothing any more: an earlier sync or head failed");
}

enum sov_status rowm_commit(struct rowm *store, struct sov_fault *fault) {
    if (store->failed) return refuse_failed(fault);
    if (store->state.heads.length == store->slot.heads.length) return SOV_OK;
    store->write_state = DURABLE;
    enum sov_status status = sync_file(store, fault);
    if (status == SOV_OK) {
        store->write_state = PUBLISH_ROOT;
        status = publish(store, fault);
    }
    store->write_state = WRITE_IDLE;
    return status;
}

// --- the write machine ---

static void enter_write(struct rowm *s, enum write_state next) {
    assert(next == s->write_state + 1);
    s->write_state = next;
}

static void enter_read(struct rowm *s, enum read_state next) {
    assert(next == s->read_state + 1);
    s->read_state = next;
}

// Bytes of a transaction go behind the end; what does not get there whole is cut off again (M5).
static enum sov_status append_bytes(struct rowm *s, const struct worm_entry *entry,
                                    struct str payload, const struct worm_entry *receipt,
                                    struct sov_fault *fault) {
    u64 end = s->state.heads.length;
    enum sov_status status = SOV_OK;
    if (s->dirty_tail) {
        status = s->disk->truncate(s->disk->context, s->file, end, fault);
        if (status != SOV_OK) return status;
        s->dirty_tail = false;
    }
    struct str parts[] = {worm_entry_bytes(entry), payload, worm_entry_bytes(receipt)};
    usize sum = parts[0].len + parts[1].len + parts[2].len;
    if (sum <= sizeof s->scratch) {
        usize at = 0;
        for (u32 i = 0; i < COUNT_OF(parts); i++) {
            if (parts[i].len > 0) memcpy(s->scratch + at, parts[i].data, parts[i].len);
            at += parts[i].len;
        }
        status = write_at(s, end, (struct str){s->scratch, sum}, fault);
    } else {
        u64 at = end;
        for (u32 i = 0; i < COUNT_OF(parts) && status == SOV_OK; i++) {
            if (parts[i].len > 0) status = write_at(s, at, parts[i], fault);
            at += parts[i].len;
        }
    }
    s->dirty_tail = status != SOV_OK;
    if (s->dirty_tail && s->disk->truncate(s->disk->context, s->file, end, NULL) == SOV_OK) {
        s->dirty_tail = false;
    }
    return status;
}

static void apply_own(struct rowm *s, const struct worm_entry *entry) {
    assert(worm_check(&s->state, entry, NULL) == SOV_OK); // W1
    worm_apply(&s->state, entry);
    s->reader.limit = s->state.heads.length;
}

// A transaction that exists: the same request gives its receipt, another is a contradiction (M1).
static enum sov_status find_again(const struct rowm *s, const struct sha256_digest *txid,
                                  const struct worm_entry *entry, bool *found,
                                  struct rowm_receipt *receipt, struct sov_fault *fault) {
    const struct worm_transaction *there = worm_find_transaction(&s->state, txid);
    *found = there != NULL;
    if (there == NULL) return SOV_OK;
    struct sha256_digest request = worm_request(entry);
    if (!sha256_equal(&there->request, &request)) {
        return fault_set(fault, SOV_ERR_INTEGRITY,
                         "the transaction of record %llu exists with another request",
                         there->record);
    }
    *receipt = worm_receipt(&s->state, (u64)(there - s->state.transactions) + 1);
    return SOV_OK;
}

// The entry that a repeated write by reference would have been: the record it consumed then is
// known by its capability still, so the same fields come out.
static enum sov_status make_write(struct rowm *s, const struct rowm_write *write,
                                  struct worm_entry *entry, struct sov_fault *fault) {
    struct sha256_digest payload_hash;
    u64 payload_bytes = write->payload.len;
    if (write->by_reference) {
        u64 consumed = write->consumes ? worm_find_capability(&s->state, &write->capability)
                                       : ROWM_NONE;
        if (consumed == ROWM_NONE || write->payload.len != 0) {
            return fault_set(fault, SOV_ERR_ARGUMENT,
                             "a payload by reference needs a capability of the store, no bytes");
        }
        payload_hash = s->state.records[consumed].payload_hash;
        payload_bytes = s->state.records[consumed].payload_bytes;
    } else {
        payload_hash = sha256_of(write->payload);
    }
    worm_make_record(&s->state, write, &payload_hash, payload_bytes, entry);
    return SOV_OK;
}

static enum sov_status stage(struct rowm *s, const struct rowm_write *write,
                             struct rowm_receipt *receipt, struct sov_fault *fault) {
    struct worm_entry entry, certificate;
    struct rowm_receipt ignored;
    if (receipt == NULL) receipt = &ignored;
    enter_write(s, VALIDATE);
    if (s->failed) return refuse_failed(fault);
    enum sov_status status = make_write(s, write, &entry, fault);
    if (status != SOV_OK) return status;
    bool found = false;
    status = find_again(s, &write->txid, &entry, &found, receipt, fault);
    if (status != SOV_OK || found) return status;
    status = worm_check(&s->state, &entry, fault);
    if (status == SOV_OK) status = worm_reserve(&s->state, fault);
    if (status != SOV_OK) return status;
    enter_write(s, STAGE);
    worm_make_receipt(&s->state, &entry, &certificate);
    enter_write(s, COMPUTE_ROOT);
    status = append_bytes(s, &entry, write->payload, &certificate, fault);
    if (status != SOV_OK) return status;
    enter_write(s, APPEND_WORM);
    apply_own(s, &entry);
    apply_own(s, &certificate);
    *receipt = worm_receipt(&s->state, s->state.heads.time);
    return SOV_OK;
}

static enum sov_status stage_any(struct rowm *s, const struct rowm_write *write,
                                 struct rowm_receipt *receipt, struct sov_fault *fault) {
    s->write_state = WRITE_IDLE;
    enum sov_status status = stage(s, write, receipt, fault);
    s->write_state = WRITE_IDLE;
    return status;
}

enum sov_status rowm_stage(struct rowm *store, const struct rowm_write *write,
                           struct rowm_receipt *receipt, struct sov_fault *fault) {
    if (write->kind == ROWM_MANIFEST) {
        return fault_set(fault, SOV_ERR_ARGUMENT, "a manifest is written by opening the store");
    }
    return stage_any(store, write, receipt, fault);
}

enum sov_status sov_rowm_write(struct rowm *store, const struct rowm_write *write,
                               struct rowm_receipt *receipt, struct sov_fault *fault) {
    enum sov_status status = rowm_stage(store, write, receipt, fault);
    return status != SOV_OK ? status : rowm_commit(store, fault);
}

// --- the read-once machine ---

// The payload of a record into `out`; zeros when its digest is another.
static enum sov_status disclose(struct rowm *s, u64 record, u8 *out, struct sov_fault *fault) {
    const struct worm_record *r = &s->state.records[record];
    struct sha256_digest digest;
    enum sov_status status =
        worm_read_payload(&s->reader, r->payload_offset, r->payload_bytes, out, &digest, fault);
    if (status == SOV_OK && !sha256_equal(&digest, &r->payload_hash)) {
        status =
            fault_set(fault, SOV_ERR_INTEGRITY, "the payload of record %llu was changed", record);
    }
    if (status != SOV_OK && out != NULL) memset(out, 0, (usize)r->payload_bytes);
    return status;
}

// A record that a capability leads to, published, its payload whole, and room for it.
static enum sov_status look_up(struct rowm *s, const struct sha256_digest *capability, usize room,
                               u64 *record, struct sov_fault *fault) {
    *record = worm_find_capability(&s->state, capability);
    if (*record == ROWM_NONE || *record >= s->n_records) {
        return fault_set(fault, SOV_ERR_ARGUMENT, "no record has issued this capability");
    }
    const struct worm_record *r = &s->state.records[*record];
    if (r->payload_bytes > room) {
        return fault_set(fault, SOV_ERR_LIMIT, "the payload has %llu bytes, there is room for %llu",
                         r->payload_bytes, (u64)room);
    }
    return SOV_OK;
}

static enum sov_status claim_once(struct rowm *s, const struct rowm_claim *claim, u8 *payload,
                                  usize capacity, usize *payload_bytes,
                                  struct rowm_receipt *receipt, struct sov_fault *fault) {
    struct worm_entry entry, certificate;
    u64 record = ROWM_NONE;
    enter_read(s, LOOKUP);
    if (s->failed) return refuse_failed(fault);
    enum sov_status status = look_up(s, &claim->capability, capacity, &record, fault);
    if (status != SOV_OK) return status;
    enter_read(s, CHECK_CAPABILITY);
    worm_make_claim(&s->state, claim, record, &entry);
    if (s->state.records[record].capability_state != CAPABILITY_AVAILABLE) {
        return fault_set(fault, SOV_ERR_STATE, "the capability of record %llu was consumed",
                         record);
    }
    status = worm_check(&s->state, &entry, fault);
    if (status == SOV_OK) status = disclose(s, record, NULL, fault); // to nobody: is it whole?
    if (status == SOV_OK) status = worm_reserve(&s->state, fault);
    if (status != SOV_OK) return status;
    enter_read(s, CLAIM);
    worm_make_receipt(&s->state, &entry, &certificate);
    status = append_bytes(s, &entry, STR(""), &certificate, fault);
    if (status != SOV_OK) return status;
    enter_read(s, READ_APPEND_WORM);
    apply_own(s, &entry);
    apply_own(s, &certificate);
    u64 time = s->state.heads.time;
    enter_read(s, READ_DURABLE);
    status = rowm_commit(s, fault);
    if (status != SOV_OK) return status;
    enter_read(s, COMMIT_CONSUMED);
    assert(s->state.records[record].capability_state == CAPABILITY_CONSUMED);
    if (receipt != NULL) *receipt = worm_receipt(&s->state, time);
    enter_read(s, DISCLOSE);
    *payload_bytes = (usize)s->state.records[record].payload_bytes;
    return disclose(s, record, payload, fault);
}

enum sov_status sov_rowm_read_once(struct rowm *store, const struct rowm_claim *claim, u8 *payload,
                                   usize capacity, usize *payload_bytes,
                                   struct rowm_receipt *receipt, struct sov_fault *fault) {
    store->read_state = READ_IDLE;
    enum sov_status status =
        claim_once(store, claim, payload, capacity, payload_bytes, receipt, fault);
    store->read_state = READ_IDLE;
    return status;
}

enum sov_status rowm_resume(struct rowm *store, const struct rowm_claim *claim, u8 *payload,
                            usize capacity, usize *payload_bytes, struct rowm_receipt *receipt,
                            struct sov_fault *fault) {
    u64 record = ROWM_NONE;
    if (store->failed) return refuse_failed(fault);
    enum sov_status status = look_up(store, &claim->capability, capacity, &record, fault);
    if (status != SOV_OK) return status;
    const struct worm_record *from = &store->state.records[record];
    // A repetition would disclose again: the successor's capability is the one to use then.
    if (from->capability_state != CAPABILITY_AVAILABLE) {
        return fault_set(fault, SOV_ERR_STATE, "the capability of record %llu was consumed",
                         record);
    }
    status = disclose(store, record, NULL, fault);
    if (status != SOV_OK) return status;
    struct rowm_write write = {
        .txid = claim->txid,
        .kind = (enum rowm_kind)from->kind,
        .owner = from->owner,
        .epoch = from->epoch + 1,
        .parent = record,
        .by_reference = true,
        .consumes = true,
        .capability = claim->capability,
        .issues = true,
    };
    status = sov_rowm_write(store, &write, receipt, fault);
    if (status != SOV_OK) return status;
    *payload_bytes = (usize)store->state.records[record].payload_bytes;
    return disclose(store, record, payload, fault);
}

enum sov_status rowm_read(struct rowm *store, u64 record, u8 *payload, usize capacity,
                          usize *payload_bytes, struct sov_fault *fault) {
    if (record >= store->n_records) {
        return fault_set(fault, SOV_ERR_ARGUMENT, "there is no record %llu", record);
    }
    const struct worm_record *r = &store->state.records[record];
    if (r->capability_state != CAPABILITY_NONE) {
        return fault_set(fault, SOV_ERR_STATE, "record %llu is read by its capability", record);
    }
    if (r->payload_bytes > capacity) {
        return fault_set(fault, SOV_ERR_LIMIT, "the payload has %llu bytes, there is room for %llu",
                         r->payload_bytes, (u64)capacity);
    }
    *payload_bytes = (usize)r->payload_bytes;
    return disclose(store, record, payload, fault);
}

// --- opening ---

static enum sov_status create_log(struct rowm *s, struct sov_fault *fault) {
    const struct rowm_disk *disk = s->disk;
    int file = -1;
    enum sov_status status =
        disk->open(disk->context, NEW_LOG_NAME, ROWM_OPEN_CREATE, &file, fault);
    if (status != SOV_OK) return status;
    worm_make_first_slots(s->scratch);
    status =
        disk->write_at(disk->context, file, 0, (struct str){s->scratch, WORM_LOG_BEGIN}, fault);
    if (status == SOV_OK) status = disk->sync(disk->context, file, fault);
    disk->close(disk->context, file);
    if (status != SOV_OK) return status;
    return disk->rename(disk->context, NEW_LOG_NAME, LOG_NAME, fault);
}

// Reads the log into the state: all that was acknowledged, then what is whole behind it.
static enum sov_status load(struct rowm *s, u64 *file_bytes, struct sov_fault *fault) {
    struct worm_slot slots[2];
    bool valid[2];
    enum sov_status status = worm_read_slots(&s->reader, false, slots, valid, file_bytes, fault);
    if (status != SOV_OK) return status;
    int newer = worm_newer_slot(slots, valid);
    if (newer < 0) {
        return fault_set(fault, SOV_ERR_INTEGRITY, "%s",
                         valid[0] ? "the head slots do not follow each other"
                                  : "both head slots are damaged");
    }
    if (slots[newer].generation == ~0ull) {
        return fault_set(fault, SOV_ERR_LIMIT, "the store's head has no generation behind it");
    }
    s->slot = slots[newer];
    s->slots_valid = valid[0] + valid[1];
    if (*file_bytes < s->slot.heads.length) {
        return fault_set(fault, SOV_ERR_INTEGRITY,
                         "the log has %llu bytes, %llu were acknowledged: it was cut", *file_bytes,
                         s->slot.heads.length);
    }
    status = worm_pass(&s->reader, &s->state, &s->slot, valid[1 - newer] ? &slots[1 - newer] : NULL,
                       NULL, fault);
    if (status != SOV_OK) return status;
    note_published(s);
    s->reader.limit = *file_bytes;
    s->reader.window_bytes = 0;
    enum worm_found found = WORM_ENTRY;
    while (status == SOV_OK && found == WORM_ENTRY) {
        status = worm_step(&s->reader, &s->state, &found, fault);
    }
    return status;
}

// Copies [begin, end) of the log over itself.
static enum sov_status write_again(struct rowm *s, u64 begin, u64 end, struct sov_fault *fault) {
    while (begin < end) {
        usize n = 0, wanted = (usize)MIN(end - begin, (u64)sizeof s->scratch);
        enum sov_status status =
            s->disk->read_at(s->disk->context, s->file, begin, s->scratch, wanted, &n, fault);
        if (status == SOV_OK && n != wanted) {
            status = fault_set(fault, SOV_ERR_INTEGRITY, "the log was cut while it was read");
        }
        if (status == SOV_OK) status = write_at(s, begin, (struct str){s->scratch, n}, fault);
        if (status != SOV_OK) return status;
        begin += n;
    }
    return SOV_OK;
}

// Makes true on the disk what load found, as the table above says.
static enum sov_status recover(struct rowm *s, u64 file_bytes, struct sov_fault *fault) {
    u64 end = s->state.heads.length;
    enum sov_status status = SOV_OK;
    // Alone it is durable (it was, before the other was begun) and all there is: leave it.
    if (s->slots_valid == 2) status = put_slot(s, &s->slot, fault);
    if (status == SOV_OK && file_bytes > end) {
        status = s->disk->truncate(s->disk->context, s->file, end, fault);
    }
    if (status == SOV_OK) status = write_again(s, s->slot.heads.length, end, fault);
    if (status != SOV_OK) return status;
    if (s->state.pending) {
        struct worm_entry receipt;
        worm_make_receipt(&s->state, &s->state.pending_entry, &receipt);
        status = write_at(s, end, worm_entry_bytes(&receipt), fault);
        if (status != SOV_OK) return status;
        status = worm_reserve(&s->state, fault);
        if (status != SOV_OK) return status;
        apply_own(s, &receipt);
    }
    s->reader.limit = s->state.heads.length;
    status = sync_file(s, fault); // the cut too
    return status != SOV_OK ? status : publish(s, fault);
}

static void put_bytes(struct text *t, const void *bytes, usize n) {
    text_put(t, (struct str){bytes, n});
}

static void put_string(struct text *t, struct str s) {
    u64 n = s.len;
    put_bytes(t, &n, sizeof n);
    text_put(t, s);
}

// Begins a session; retries of a process that died are sessions of their own.
static enum sov_status begin_session(struct rowm *s, const struct rowm_manifest *m,
                                     struct sov_fault *fault) {
    if (m->engine_version.len > ROWM_TEXT_BYTES_MAX || m->device.len > ROWM_TEXT_BYTES_MAX ||
        m->driver.len > ROWM_TEXT_BYTES_MAX) {
        return fault_set(fault, SOV_ERR_ARGUMENT, "a text of the manifest is longer than %u bytes",
                         ROWM_TEXT_BYTES_MAX);
    }
    char memory[ROWM_MANIFEST_BYTES_MAX + 1];
    struct text t = TEXT_OVER_ARRAY(memory);
    put_bytes(&t, WORM_MANIFEST_TAG, WORM_TAG_BYTES);
    text_put_byte(&t, WORM_HASH_SHA256);
    text_put_byte(&t, m->numeric_profile);
    const struct sha256_digest *digests[] = {&m->build, &m->contract, &m->model, &m->kernels};
    for (u32 i = 0; i < COUNT_OF(digests); i++) text_put(&t, digest_str(digests[i]));
    put_bytes(&t, &m->wall_ns, sizeof m->wall_ns);
    put_string(&t, m->engine_version);
    put_string(&t, m->device);
    put_string(&t, m->driver);
    assert(!t.truncated);
    u8 name[WORM_TAG_BYTES + 8];
    struct str tag = STR(SESSION_TAG);
    memcpy(name, tag.data, WORM_TAG_BYTES);
    store_u64(name + WORM_TAG_BYTES, s->state.n_sessions);
    struct rowm_write write = {
        .txid = sha256_of((struct str){name, sizeof name}),
        .kind = ROWM_MANIFEST,
        .parent = ROWM_NONE,
        .payload = {(const u8 *)t.data, t.len},
    };
    enum sov_status status = stage_any(s, &write, NULL, fault);
    return status != SOV_OK ? status : rowm_commit(s, fault);
}

// Whether the log is as it was made: nothing was ever acknowledged in it. Where it stands still
// like that, the name may never have become durable, and a sync that succeeds after one that failed
// proves nothing; so it is made anew.
static enum sov_status is_untouched(struct rowm *s, bool *untouched, struct sov_fault *fault) {
    const struct rowm_disk *disk = s->disk;
    u64 bytes = 0;
    usize n = 0;
    int file = -1;
    enum sov_status status = disk->open(disk->context, LOG_NAME, ROWM_OPEN_READ, &file, fault);
    if (status != SOV_OK) return status;
    status = disk->size(disk->context, file, &bytes, fault);
    if (status == SOV_OK) {
        status =
            disk->read_at(disk->context, file, 0, s->reader.windows[0], WORM_LOG_BEGIN, &n, fault);
    }
    disk->close(disk->context, file);
    worm_make_first_slots(s->scratch);
    *untouched = status == SOV_OK && bytes == WORM_LOG_BEGIN && n == WORM_LOG_BEGIN &&
                 memcmp(s->reader.windows[0], s->scratch, WORM_LOG_BEGIN) == 0;
    return status;
}

static enum sov_status open_log(struct rowm *s, struct sov_fault *fault) {
    const struct rowm_disk *disk = s->disk;
    enum sov_status status = SOV_OK;
    bool missing = disk->is_missing(disk->context, LOG_NAME), untouched = false;
    if (!missing) status = is_untouched(s, &untouched, fault);
    if (status == SOV_OK && (missing || untouched)) status = create_log(s, fault);
    if (status == SOV_OK) status = disk->sync_names(disk->context, fault);
    if (status != SOV_OK) return status;
    status = disk->open(disk->context, LOG_NAME, ROWM_OPEN_UPDATE, &s->file, fault);
    if (status != SOV_OK) return status;
    s->reader.file = s->file;
    u64 file_bytes = 0;
    status = load(s, &file_bytes, fault);
    return status != SOV_OK ? status : recover(s, file_bytes, fault);
}

enum sov_status rowm_open(const struct rowm_disk *disk, const struct rowm_manifest *manifest,
                          struct rowm **store, struct sov_fault *fault) {
    struct rowm *s = platform_memory_map(sizeof *s);
    if (s == NULL) {
        return fault_set(fault, SOV_ERR_MEMORY, "a store needs %llu bytes", (u64)sizeof *s);
    }
    s->disk = s->reader.disk = disk;
    s->lock = s->file = -1;
    worm_begin(&s->state);
    enum sov_status status = disk->open(disk->context, LOCK_NAME, ROWM_OPEN_LOCK, &s->lock, fault);
    if (status == SOV_OK) status = open_log(s, fault);
    if (status == SOV_OK) status = begin_session(s, manifest, fault);
    if (status != SOV_OK) {
        rowm_close(s);
        return status;
    }
    *store = s;
    return SOV_OK;
}

void rowm_close(struct rowm *store) {
    const struct rowm_disk *disk = store->disk;
    worm_free(&store->state);
    if (store->file >= 0) disk->close(disk->context, store->file);
    if (store->lock >= 0) disk->close(disk->context, store->lock);
    platform_memory_unmap(store, sizeof *store);
}

// --- asking ---

const struct rowm_disk *rowm_disk_of(const struct rowm *store) { return store->disk; }

struct rowm_head rowm_head(const struct rowm *store) {
    const struct worm_heads *heads = &store->slot.heads;
    return (struct rowm_head){
        .n_entries = heads->n_entries,
        .length = heads->length,
        .time = heads->time,
        .n_records = store->n_records,
        .n_sessions = store->n_sessions,
        .root = heads->root,
        .worm = heads->worm,
        .evolution = heads->evolution,
        .access = heads->access,
    };
}

enum sov_status sov_rowm_get_receipts(const struct rowm *store, u64 first_time,
                                      struct rowm_receipt *receipts, u32 capacity, u32 *n,
                                      struct sov_fault *fault) {
    if (first_time == 0) return fault_set(fault, SOV_ERR_ARGUMENT, "receipts are numbered from 1");
    *n = 0;
    for (u64 time = first_time; time <= store->slot.heads.time && *n < capacity; time++) {
        receipts[(*n)++] = worm_receipt(&store->state, time);
    }
    return SOV_OK;
}

// As published: a consumption that is only staged has not happened yet (M2).
static bool is_available(const struct rowm *s, const struct worm_record *r) {
    return r->capability_state == CAPABILITY_AVAILABLE || r->consumed_time > s->slot.heads.time;
}

enum sov_status rowm_info(const struct rowm *store, u64 record, struct rowm_record_info *info,
                          struct sov_fault *fault) {
    if (record >= store->n_records) {
        return fault_set(fault, SOV_ERR_ARGUMENT, "there is no record %llu", record);
    }
    *info = worm_info(&store->state, record);
    info->available = is_available(store, &store->state.records[record]);
    return SOV_OK;
}

bool rowm_find(const struct rowm *store, const struct sha256_digest *txid,
               struct rowm_receipt *receipt) {
    const struct worm_transaction *there = worm_find_transaction(&store->state, txid);
    if (there == NULL) return false;
    *receipt = worm_receipt(&store->state, (u64)(there - store->state.transactions) + 1);
    return true;
}

bool rowm_find_available(const struct rowm *store, u64 owner, u64 *record) {
    u64 found = worm_last_capability(&store->state, owner);
    while (found != ROWM_NONE && found >= store->n_records) { // staged ones
        found = store->state.records[found].issued_before;
    }
    if (found == ROWM_NONE || !is_available(store, &store->state.records[found])) return false;
    *record = found;
    return true;
}

// The visited set is a table by open addressing: record + 1, 0 for a free place. Where the record
// stands or would stand; visited_capacity when it is not there and there is no room.
static u32 visited_place(const struct rowm_traversal *t, u64 record) {
    u64 at = record * 0x9e3779b97f4a7c15 >> 32; // ids follow each other: this spreads them
    for (u32 i = 0; i < t->visited_capacity; i++) {
        u32 place = (u32)((at + i) % t->visited_capacity);
        if (t->visited[place] == 0 || t->visited[place] == record + 1) return place;
    }
    return t->visited_capacity;
}

// Puts a record into the queue unless it was there before.
static enum sov_status enqueue(struct rowm_traversal *t, u64 record, u32 depth, u32 *n_queued,
                               struct sov_fault *fault) {
    if (record == ROWM_NONE) return SOV_OK;
    u32 place = visited_place(t, record);
    if (place < t->visited_capacity && t->visited[place] != 0) return SOV_OK;
    const char *full = depth > t->depth_max             ? "depth"
                       : place >= t->visited_capacity   ? "visited set"
                       : *n_queued >= t->queue_capacity ? "queue"
                                                        : NULL;
    if (full != NULL) {
        return fault_set(fault, SOV_ERR_LIMIT, "traversal: the bound of the %s is reached", full);
    }
    t->visited[place] = record + 1;
    t->queue[*n_queued] = record;
    t->depths[*n_queued] = depth;
    (*n_queued)++;
    return SOV_OK;
}

enum sov_status sov_rowm_traverse(const struct rowm *store, u64 record,
                                  struct rowm_traversal *traversal, struct sov_fault *fault) {
    struct rowm_traversal *t = traversal;
    u32 n_queued = 0;
    t->n_steps = 0;
    memset(t->visited, 0, t->visited_capacity * sizeof *t->visited);
    if (record >= store->n_records) {
        return fault_set(fault, SOV_ERR_ARGUMENT, "there is no record %llu", record);
    }
    enum sov_status status = enqueue(t, record, 0, &n_queued, fault);
    for (u32 head = 0; head < n_queued && status == SOV_OK; head++) {
        if (t->n_steps >= t->steps_max) {
            return fault_set(fault, SOV_ERR_LIMIT, "traversal: the bound of the steps is reached");
        }
        struct rowm_record_info info;
        status = rowm_info(store, t->queue[head], &info, fault);
        if (status != SOV_OK) return status;
        t->n_steps++;
        t->visit(t->context, &info, t->depths[head]);
        const struct worm_record *r = &store->state.records[t->queue[head]];
        const u64 edges[] = {r->parent, r->source, r->consumed};
        for (u32 i = 0; i < COUNT_OF(edges) && status == SOV_OK; i++) {
            status = enqueue(t, edges[i], t->depths[head] + 1, &n_queued, fault);
        }
    }
    return status;
}
