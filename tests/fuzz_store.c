// SPDX-License-Identifier: Apache-2.0
// libFuzzer harness of the record store's reading side: what stands on the disk is the input's. A
// store is written by a few operations, then changed:
//
//   byte 0      what is repaired after the changes, so that damage gets past the hashes: 1 links,
//               2 write proofs and parent roots, 4 receipts, 8 the head slots, which then name the
//               first transactions only; 16: changes may hit the slots
//   byte 1      number of operations, of two bytes each
//   byte n      which part of the transactions is acknowledged (with 8)
//   the rest    changes of four bytes each: place (from the log's end on; of a field: entry from
//               the end on, field), kind, value
//
// Whatever stands there: verification and opening end with one of their promised statuses and
// agree; what is refused is not touched; what is opened verifies, also against the head that was
// verified before; every payload has its digest and is read once; an owner has one available
// capability at most; parents are earlier records; memory is given back.
#include "freestanding/mem.h"
#include "platform/platform.h"
#include "record/worm.h"

int LLVMFuzzerTestOneInput(const u8 *data, usize bytes);
usize LLVMFuzzerCustomMutator(u8 *data, usize bytes, usize bytes_max, u32 seed);
usize LLVMFuzzerMutate(u8 *data, usize bytes, usize bytes_max); // libFuzzer's own

#define DISK_BYTES_MAX (128 * 1024)
#define PAYLOAD_BYTES_MAX 4096
#define OPERATIONS_MAX 14
#define CHANGES_MAX 64
#define CHANGE_BYTES 4
#define OWNERS 3
#define RECORDS_MAX 1024

// --- a disk in memory: one file that matters ---

struct disk_file {
    u8 bytes[DISK_BYTES_MAX];
    u64 n;
    bool there;
};
static struct { struct disk_file log, made; } world;

static struct disk_file *file_of(int file) { return file == 1 ? &world.made : &world.log; }
static bool is_log(const char *name) { return str_equal(str_from_z(name), STR("log")); }

static bool mem_is_missing(void *context, const char *name) {
    (void)context;
    return !is_log(name) || !world.log.there;
}
static enum sov_status mem_open(void *context, const char *name, enum rowm_open_mode mode,
                                int *file, struct sov_fault *fault) {
    (void)context, (void)fault;
    *file = mode == ROWM_OPEN_LOCK ? 2 : is_log(name) ? 0 : 1;
    if (mode == ROWM_OPEN_CREATE) world.made = (struct disk_file){.there = true};
    return SOV_OK;
}
static void mem_close(void *context, int file) { (void)context, (void)file; }
static enum sov_status mem_size(void *context, int file, u64 *n, struct sov_fault *fault) {
    (void)context, (void)fault;
    *n = file_of(file)->n;
    return SOV_OK;
}
static enum sov_status mem_read_at(void *context, int file, u64 offset, void *buffer, usize bytes,
                                   usize *n_read, struct sov_fault *fault) {
    (void)context, (void)fault;
    const struct disk_file *f = file_of(file);
    *n_read = offset >= f->n ? 0 : (usize)MIN((u64)bytes, f->n - offset);
    if (*n_read > 0) memcpy(buffer, f->bytes + offset, *n_read);
    return SOV_OK;
}
static enum sov_status mem_write_at(void *context, int file, u64 offset, struct str bytes,
                                    struct sov_fault *fault) {
    (void)context;
    struct disk_file *f = file_of(file);
    if (offset + bytes.len > DISK_BYTES_MAX) return fault_set(fault, SOV_ERR_IO, "full");
    memcpy(f->bytes + offset, bytes.data, bytes.len);
    f->n = MAX(f->n, offset + bytes.len);
    return SOV_OK;
}
static enum sov_status mem_truncate(void *context, int file, u64 bytes, struct sov_fault *fault) {
    (void)context, (void)fault;
    struct disk_file *f = file_of(file);
    if (bytes < f->n) memset(f->bytes + bytes, 0, (usize)(f->n - bytes));
    f->n = bytes;
    return SOV_OK;
}
static enum sov_status mem_sync(void *context, int file, struct sov_fault *fault) {
    (void)context, (void)file, (void)fault;
    return SOV_OK;
}
static enum sov_status mem_rename(void *context, const char *from, const char *to,
                                  struct sov_fault *fault) {
    (void)context, (void)from, (void)to, (void)fault;
    world.log = world.made;
    return SOV_OK;
}
static enum sov_status mem_sync_names(void *context, struct sov_fault *fault) {
    (void)context, (void)fault;
    return SOV_OK;
}

static const struct rowm_disk disk = {NULL,     mem_is_missing, mem_open,      mem_close,
                                      mem_size, mem_read_at,    mem_write_at,  mem_truncate,
                                      mem_sync, mem_rename,     mem_sync_names};
static const struct rowm_manifest manifest = {.wall_ns = 1};

// --- a store, by operations ---

static void operate(struct rowm *store, u8 what, u8 value, u32 number) {
    static u8 payload[PAYLOAD_BYTES_MAX], out[PAYLOAD_BYTES_MAX];
    struct sov_fault fault = {0};
    u64 record = 0;
    usize n = 0;
    struct rowm_record_info info = {0};
    struct rowm_write write = {
        .kind = ROWM_EVENTS, .owner = what / 8u % OWNERS, .parent = ROWM_NONE};
    store_u64(write.txid.bytes, number + 1);
    memset(payload, value, sizeof payload);
    write.payload = (struct str){payload, value % 32 == 31 ? 16u * value : value % 32u};
    bool has = rowm_find_available(store, write.owner, &record);
    if (has && rowm_info(store, record, &info, &fault) != SOV_OK) assert(false);
    struct rowm_claim claim = {write.txid, info.capability, value};
    enum sov_status status = SOV_OK;
    switch (what % 8) {
    case 0: status = sov_rowm_write(store, &write, NULL, &fault); break;
    case 1: // its parent is the record before
        write.parent = rowm_head(store).n_records - 1;
        status = sov_rowm_write(store, &write, NULL, &fault);
        break;
    case 2:
        if (has) status = sov_rowm_read_once(store, &claim, out, sizeof out, &n, NULL, &fault);
        break;
    case 3:
        if (has) status = rowm_resume(store, &claim, out, sizeof out, &n, NULL, &fault);
        break;
    case 4: // another session
        break;
    default: // a checkpoint
        write.kind = ROWM_CHECKPOINT;
        write.issues = what % 8 != 7;
        write.consumes = has;
        write.capability = info.capability;
        status = sov_rowm_write(store, &write, NULL, &fault);
        break;
    }
    assert(status == SOV_OK);
}

static void write_store(const u8 *operations, u32 n) {
    memset(&world, 0, sizeof world);
    struct sov_fault fault = {0};
    struct rowm *store = NULL;
    enum sov_status status = rowm_open(&disk, &manifest, &store, &fault);
    assert(status == SOV_OK);
    for (u32 i = 0; i < n; i++) {
        if (operations[2 * i] % 8 == 4) {
            rowm_close(store);
            status = rowm_open(&disk, &manifest, &store, &fault);
            assert(status == SOV_OK);
        }
        operate(store, operations[2 * i], operations[2 * i + 1], i);
    }
    rowm_close(store);
}

// --- changes and repairs ---

static u64 entry_end(u64 at, u32 *meta_bytes) { // 0: what is there is no entry
    const u8 *p = world.log.bytes + at;
    if (world.log.n - at < ENTRY_HEAD_BYTES) return 0;
    u64 m = load_u64(p), n = load_u64(p + ENTRY_PAYLOAD_LEN_OFF);
    *meta_bytes = (u32)m;
    if (m < CLAIM_META_BYTES || m > RECORD_META_BYTES) return 0;
    u64 end = at + ENTRY_HEAD_BYTES + m + SHA256_BYTES;
    return end > world.log.n || n > world.log.n - end ? 0 : end + n;
}

static struct sha256_digest hash_parts(const char *tag, const struct str *parts, u32 n) {
    struct sha256 h;
    sha256_begin(&h);
    sha256_update(&h, str_from_z(tag));
    for (u32 i = 0; i < n; i++) sha256_update(&h, parts[i]);
    return sha256_end(&h);
}
static struct str digest_bytes(const struct sha256_digest *digest) {
    return (struct str){digest->bytes, SHA256_BYTES};
}

// Makes the hashes of the entries fit what they are over, as the document says; written apart from
// worm.c.
static void repair_entries(u8 flags) {
    struct sha256_digest link = {{0}}, worm = {{0}}, evolution = {{0}}, leaf = {{0}};
    struct sha256_digest proof = {{0}}, record_leaf = {{0}};
    bool is_record = false;
    u64 time = 0;
    u32 m = 0;
    for (u64 at = WORM_LOG_BEGIN, end; (end = entry_end(at, &m)) != 0; at = end) {
        u8 *entry = world.log.bytes + at, *meta = entry + ENTRY_HEAD_BYTES;
        if (m == RECORD_META_BYTES) {
            struct str parts[] = {{meta + RECORD_PARENT_ROOT_OFF, 32},
                                  {meta + RECORD_TXID_OFF, 32},
                                  {meta + RECORD_PAYLOAD_HASH_OFF, 32},
                                  {meta + RECORD_EPOCH_OFF, 8}};
            if ((flags & 2) != 0) memcpy(meta + RECORD_PARENT_ROOT_OFF, evolution.bytes, 32);
            proof = hash_parts("sov-rowm prof v1", parts, COUNT_OF(parts));
            if ((flags & 2) != 0) memcpy(meta + RECORD_PROOF_OFF, proof.bytes, 32);
            memcpy(proof.bytes, meta + RECORD_PROOF_OFF, 32);
        } else if (m == RECEIPT_META_BYTES && (flags & 4) != 0) {
            memcpy(meta + RECEIPT_PREVIOUS_OFF, worm.bytes, 32);
            struct sha256_digest hash = sha256_of((struct str){meta, RECEIPT_HASH_OFF});
            memcpy(meta + RECEIPT_HASH_OFF, hash.bytes, 32);
        }
        leaf = tree_leaf_hash((struct str){entry, ENTRY_HEAD_BYTES + (usize)m});
        struct str linked[] = {digest_bytes(&link), digest_bytes(&leaf)};
        link = hash_parts("sov-rowm link v1", linked, 2);
        if ((flags & 1) != 0) memcpy(meta + m, link.bytes, 32);
        memcpy(link.bytes, meta + m, 32);
        if (m == RECEIPT_META_BYTES) {
            u8 number[8];
            store_u64(number, ++time);
            memcpy(worm.bytes, meta + RECEIPT_HASH_OFF, 32);
            struct str parts[] = {digest_bytes(&evolution),
                                  digest_bytes(&record_leaf),
                                  digest_bytes(&proof),
                                  {number, 8}};
            if (is_record) evolution = hash_parts("sov-rowm evol v1", parts, COUNT_OF(parts));
        }
        is_record = m == RECORD_META_BYTES;
        if (is_record) record_leaf = leaf;
    }
}

// Slots that name the heads after `n` entries; whatever is behind is a tail then.
static void set_slots(u64 n) {
    static struct worm_reader reader;
    struct worm_state state;
    struct worm_slot slot = {0};
    struct sov_fault fault = {0};
    worm_begin(&state);
    memset(&reader, 0, sizeof reader);
    reader.disk = &disk;
    reader.limit = world.log.n;
    for (u64 i = 0; i < n; i++) {
        enum worm_found found = WORM_END;
        enum sov_status status = worm_step(&reader, &state, &found, &fault);
        assert(status == SOV_OK && found == WORM_ENTRY);
    }
    for (u32 i = 0; i < 2; i++) {
        slot.previous = slot.hash;
        slot.generation = i;
        slot.heads = worm_heads(&state);
        worm_make_slot(&slot, world.log.bytes + (usize)i * WORM_SLOT_BYTES);
    }
    worm_free(&state);
}

// A field of an entry, counted from the end, gets another value.
static void change_field(u8 entry, u8 field, u8 value) {
    static const u32 fields[] = {
        RECORD_ID_OFF,          RECORD_SESSION_OFF,     RECORD_KIND_OFF,
        RECORD_OWNER_OFF,       RECORD_EPOCH_OFF,       RECORD_PARENT_OFF,
        RECORD_PARENT_ROOT_OFF, RECORD_TXID_OFF,        RECORD_PLACE_OFF,
        RECORD_SOURCE_OFF,      RECORD_PAYLOAD_LEN_OFF, RECORD_PAYLOAD_HASH_OFF,
        RECORD_CONSUMES_OFF,    RECORD_CAPABILITY_OFF,  RECORD_ISSUES_OFF,
        RECORD_NONCE_OFF,       CLAIM_CAPABILITY_OFF,   CLAIM_RECORD_OFF,
        CLAIM_CONSUMER_OFF,     CLAIM_NUMBER_OFF,       RECEIPT_TIME_OFF,
        RECEIPT_PREVIOUS_OFF,   RECEIPT_TXID_OFF,       RECEIPT_VERSION_OFF};
    u64 offsets[16] = {0}; // of the last ones
    u32 m = 0, n = 0;
    for (u64 at = WORM_LOG_BEGIN, end; (end = entry_end(at, &m)) != 0; at = end) {
        offsets[n++ % COUNT_OF(offsets)] = at;
    }
    if (n == 0) return;
    u64 at = offsets[(n - 1 - entry % MIN(n, (u32)COUNT_OF(offsets))) % COUNT_OF(offsets)];
    u32 off = fields[field % COUNT_OF(fields)];
    if (entry_end(at, &m) == 0 || off + 8 > m) return;
    u8 *place = world.log.bytes + at + ENTRY_HEAD_BYTES + off;
    if (value % 2 == 0) {
        *place = (u8)(value / 2);
    } else {
        store_u64(place, value < 128 ? value / 2 : ~0ull - (255u - value) / 2);
    }
}

static void change(u8 flags, const u8 *changes, usize bytes) {
    for (usize at = 0; at + CHANGE_BYTES <= bytes && at / CHANGE_BYTES < CHANGES_MAX;
         at += CHANGE_BYTES) {
        u64 begin = (flags & 16) != 0 ? 0 : WORM_LOG_BEGIN;
        if (world.log.n <= begin) return;
        u64 back = 1 + (changes[at] | (u64)changes[at + 1] << 8) % (world.log.n - begin);
        u8 *place = world.log.bytes + world.log.n - back, value = changes[at + 3];
        switch (changes[at + 2] % 8) {
        case 6:
        case 7: change_field(changes[at], changes[at + 1], value); break;
        case 0: *place ^= (u8)(1 + value % 255); break;
        case 1: *place = value; break;
        case 2: world.log.n -= back; break;
        case 3: // eight bytes at once
            if (back >= 8) store_u64(place, value < 128 ? value : ~0ull - (255u - value));
            break;
        case 4: // more behind the end
            for (u32 i = 0; i < value && world.log.n < DISK_BYTES_MAX / 2; i++) {
                world.log.bytes[world.log.n] = world.log.bytes[world.log.n - back];
                world.log.n++;
            }
            break;
        default: // 32 bytes of somewhere else
            if (back >= 32 && back + 8u * value < world.log.n)
                memmove(place, place - 8u * value, 32);
            break;
        }
    }
    memset(world.log.bytes + world.log.n, 0, (usize)(DISK_BYTES_MAX - world.log.n));
}

// Where the changes begin; `bytes` when the operations are cut.
static usize changes_begin(const u8 *data, usize bytes) {
    if (bytes < 3) return bytes;
    return MIN(bytes, 3 + 2 * (usize)(data[1] % (OPERATIONS_MAX + 1)));
}

// Half of the mutations are libFuzzer's. It seldom hits the four bytes of one change together, so
// the others write one: a field of one of the last entries gets a value, and nothing else moves.
usize LLVMFuzzerCustomMutator(u8 *data, usize bytes, usize bytes_max, u32 seed) {
    usize begin = changes_begin(data, bytes);
    u32 n = MIN((u32)(bytes - begin) / CHANGE_BYTES, CHANGES_MAX - 1u);
    usize at = begin + CHANGE_BYTES * (usize)((seed >> 1 & 0x7ff) % (n + 1)); // or one more
    if ((seed & 1) == 0 || bytes < 3 || at + CHANGE_BYTES > bytes_max) {
        return LLVMFuzzerMutate(data, bytes, bytes_max);
    }
    data[at] = (u8)(seed >> 12 & 15); // entry
    data[at + 1] = (u8)(seed >> 16);  // field
    data[at + 2] = 6;
    data[at + 3] = (u8)(seed >> 24);
    return MAX(bytes, at + CHANGE_BYTES);
}

// --- what must hold ---

static void expect_verified(const struct rowm_head *before) {
    struct rowm_report report;
    struct sov_fault fault = {0};
    struct rowm_expect expect = {before->n_entries, before->root};
    enum sov_status status = sov_rowm_verify(&disk, &expect, &report, &fault);
    assert(status == SOV_OK && report.tail_bytes == 0 && report.head.time >= before->time);
}

static void read_record(struct rowm *store, u64 record, u32 n_available[OWNERS + 1]) {
    static u8 payload[DISK_BYTES_MAX];
    struct sov_fault fault = {0};
    struct rowm_record_info info, after;
    enum sov_status status = rowm_info(store, record, &info, &fault);
    assert(status == SOV_OK);
    assert(info.parent == ROWM_NONE || info.parent < record);
    assert(info.source == ROWM_NONE || info.source < record);
    assert(info.kind >= ROWM_MANIFEST && info.kind <= ROWM_KIND_LAST);
    u64 found = 0;
    bool is_found = rowm_find_available(store, info.owner, &found);
    usize n = 0;
    if (!info.has_capability) {
        status = rowm_read(store, record, payload, sizeof payload, &n, &fault);
        assert(status == SOV_OK);
    } else if (info.available) {
        assert(is_found && found == record);
        if (info.owner < OWNERS) n_available[info.owner]++;
        struct rowm_claim claim = {{{0x77}}, info.capability, 1};
        store_u64(claim.txid.bytes + 8, record);
        status = sov_rowm_read_once(store, &claim, payload, sizeof payload, &n, NULL, &fault);

        assert(status == SOV_OK);
        status = rowm_info(store, record, &after, &fault);
        assert(status == SOV_OK && !after.available);
        status = sov_rowm_read_once(store, &claim, payload, 0, &n, NULL, &fault);
        assert(status != SOV_OK);
    } else {
        assert(!is_found || found != record);
        return;
    }
    struct sha256_digest digest = sha256_of((struct str){payload, info.payload_bytes});
    assert(sha256_equal(&digest, &info.payload_hash));
}

// Everything that an opened store promises to its readers.
static void use(struct rowm *store) {
    struct sov_fault fault = {0};
    static struct rowm_receipt receipts[RECORDS_MAX];
    static bool consumed[RECORDS_MAX];
    struct rowm_head head = rowm_head(store);
    u32 n = 0, n_available[OWNERS + 1] = {0};
    enum sov_status status = sov_rowm_get_receipts(store, 1, receipts, RECORDS_MAX, &n, &fault);
    assert(status == SOV_OK && n == head.time && head.n_entries == 2 * head.time);
    memset(consumed, 0, sizeof consumed);
    u64 n_records = 0;
    for (u32 i = 0; i < n; i++) {
        assert(receipts[i].time == i + 1);
        assert(i == 0 || sha256_equal(&receipts[i].previous, &receipts[i - 1].hash));
        if (receipts[i].kind == ROWM_WRITE) {
            assert(receipts[i].record == n_records);
            n_records++;
        } else {
            assert(receipts[i].record < n_records && !consumed[receipts[i].record]);
            consumed[receipts[i].record] = true;
        }
    }
    assert(n_records == head.n_records);
    for (u64 i = 0; i < n_records; i++) read_record(store, i, n_available);
    for (u32 i = 0; i < OWNERS; i++) assert(n_available[i] <= 1);
}

int LLVMFuzzerTestOneInput(const u8 *data, usize bytes) {
    static struct disk_file before;
    if (bytes < 3) return 0;
    u8 flags = data[0];
    u32 n_operations = data[1] % (OPERATIONS_MAX + 1);
    if (bytes < 3 + 2 * (usize)n_operations) return 0;
    u64 mapped = platform_memory_mapped();
    write_store(data + 2, n_operations);
    struct rowm_report report = {0};
    struct sov_fault fault = {0};
    enum sov_status status = sov_rowm_verify(&disk, NULL, &report, &fault);
    assert(status == SOV_OK && report.tail_bytes == 0);
    usize at = 2 + 2 * (usize)n_operations;
    if ((flags & 8) != 0) set_slots(2 * (data[at] % (report.head.time + 1)));
    change(flags, data + at + 1, bytes - at - 1);
    repair_entries(flags);

    before = world.log;
    report = (struct rowm_report){0};
    enum sov_status verified = sov_rowm_verify(&disk, NULL, &report, &fault);
    assert(verified == SOV_OK || verified == SOV_ERR_INTEGRITY || verified == SOV_ERR_UNSUPPORTED);
    assert(memcmp(&before, &world.log, sizeof before) == 0);
    struct rowm *store = NULL;
    status = rowm_open(&disk, &manifest, &store, &fault);
    if (status == SOV_OK) {
        if (verified == SOV_OK) expect_verified(&report.head);
        use(store);
        struct rowm_head head = rowm_head(store);
        expect_verified(&head);
        rowm_close(store);
    } else {
        assert(verified != SOV_OK || status == SOV_ERR_LIMIT);
        assert(status == SOV_ERR_INTEGRITY || status == SOV_ERR_UNSUPPORTED ||
               status == SOV_ERR_LIMIT);
        assert(memcmp(&before, &world.log, sizeof before) == 0);
    }
    assert(platform_memory_mapped() == mapped);
    return 0;
}
