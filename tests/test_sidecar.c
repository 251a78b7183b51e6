// SPDX-License-Identifier: Apache-2.0
// Commitments (sealed.h) and the file of what they stand for (sidecar.h), over a folder in memory:
// what is appended is found; cut or changed anywhere, what is whole is still found and nothing else
// is taken for it; what is erased is gone; and the recorder makes openings durable before the
// records that commit to them, wherever power fails.
#include "record/sidecar.h"
#include "memory_disk.h"
#include "platform/platform.h"
#include "record/recorder.h"
#include "test.h"

#define SEED 20270
#define OPENINGS 6
#define OPENING_BYTES_MAX 400

static struct memory_disk memory;
static struct rowm_disk disk;

static void reset(void) {
    memset(&memory, 0, sizeof memory);
    disk = memory_disk_of(&memory);
}

// --- openings ---

static u8 opening_bytes[OPENINGS][OPENING_BYTES_MAX];
static struct str openings[OPENINGS];
static struct sealed seals[OPENINGS];

static u64 sequence_of(u32 i) { return 100 + i % 3; }

// Of three sequences in turn. One holds what looks like entries.
static void make_openings(void) {
    struct test_random random = {SEED};
    for (u32 i = 0; i < OPENINGS; i++) {
        u8 number[8], kept[SEALED_BYTES];
        store_u64(number, sequence_of(i));
        struct sha256_digest salt = sha256_of((struct str){number, sizeof number});
        sealed_opening_head(&salt, opening_bytes[i]);
        u32 n = SEALED_OPENING_HEAD_BYTES + 1 + 67 * i;
        CHECK(n <= OPENING_BYTES_MAX);
        for (u32 k = SEALED_OPENING_HEAD_BYTES; k < n; k++) {
            opening_bytes[i][k] = (u8)test_random_below(&random, 256);
        }
        if (i == 4) memcpy(opening_bytes[i] + 60, "sov-rtx sidec v1", SEALED_TAG_BYTES);
        openings[i] = (struct str){opening_bytes[i], n};
        CHECK(sealed_read(sealed_kept(openings[i], kept), &seals[i]));
    }
}

static void append_all(void) {
    struct sidecar_writer writer;
    struct sov_fault fault = {0};
    sidecar_writer_init(&writer, &disk);
    for (u32 i = 0; i < OPENINGS; i++) {
        CHECK(sidecar_append(&writer, sequence_of(i), openings[i], &fault) == SOV_OK);
    }
    CHECK(sidecar_sync(&writer, &fault) == SOV_OK);
    sidecar_writer_close(&writer);
    CHECK(memory.n_open == 0);
}

// Which openings are found, as bits. What is found is what was committed to.
static u32 found_now(void) {
    struct sidecar *sidecar = NULL;
    struct sov_fault fault = {0};
    u32 bits = 0;
    CHECK(sidecar_open(&disk, &sidecar, &fault) == SOV_OK);
    for (u32 i = 0; i < OPENINGS; i++) {
        u8 out[OPENING_BYTES_MAX];
        fault = (struct sov_fault){0};
        enum sov_status status = SOV_ERR_UNSUPPORTED;
        if (sidecar_has(sidecar, &seals[i])) {
            status = sidecar_read(sidecar, &seals[i], out, &fault);
        }
        CHECK(sidecar_check(sidecar, &seals[i], NULL) == status);
        CHECK(status == SOV_OK || status == SOV_ERR_UNSUPPORTED);
        if (status != SOV_OK) continue;
        CHECK(str_equal((struct str){out, openings[i].len}, openings[i]));
        bits |= 1u << i;
    }
    sidecar_close(sidecar);
    CHECK(memory.n_open == 0);
    return bits;
}

#define ALL ((1u << OPENINGS) - 1)

// --- cases ---

// Made with Python's hashlib and struct, for the salt SHA-256("salt") and the payload "payload".
static void sealed_is_what_is_written_down(void) {
    struct sha256_digest salt = sha256_of(STR("salt")), back;
    u8 opening[SEALED_OPENING_HEAD_BYTES + 7], kept[SEALED_BYTES];
    sealed_opening_head(&salt, opening);
    memcpy(opening + SEALED_OPENING_HEAD_BYTES, "payload", 7);
    struct str given = {opening, sizeof opening};
    struct sha256_digest hash = sealed_kept_hash(given);
    char hex[SHA256_HEX_BYTES + 1];
    sha256_to_hex(&hash, hex);
    CHECK_MSG(str_equal(str_from_z(hex), STR("dd0bb1afd615e31567adccbd8a923d39648dd106d74d969ca7cdc"
                                             "dd4c474053b")),
              "%s", hex);
    CHECK(sealed_is_opening(given));
    CHECK(str_equal(sealed_payload(given, &back), STR("payload")) && sha256_equal(&back, &salt));
    struct sealed sealed;
    struct str stored = sealed_kept(given, kept);
    CHECK(stored.len == SEALED_BYTES && sealed_read(stored, &sealed));
    CHECK(sealed.opening_bytes == sizeof opening);
    // What is in clear stays as it is; what is cut is no opening.
    CHECK(str_equal(sealed_kept(STR("sov-rtx reqst v1"), kept), STR("sov-rtx reqst v1")));
    CHECK(!sealed_read(STR("sov-rtx reqst v1"), &sealed));
    CHECK(!sealed_is_opening((struct str){opening, SEALED_OPENING_HEAD_BYTES}));
}

static void what_is_appended_is_found(void) {
    reset();
    make_openings();
    CHECK(found_now() == 0); // no file
    append_all();
    CHECK(found_now() == ALL);
    append_all(); // a run that is repeated
    CHECK(found_now() == ALL);
}

// A crash may leave any beginning. The next writer goes on behind what is whole.
static void cut_anywhere(void) {
    reset();
    make_openings();
    append_all();
    struct memory_file *file = memory_find(&memory, SIDECAR_NAME);
    static struct memory_file whole;
    whole = *file;
    u64 ends[OPENINGS] = {0};
    for (u32 i = 0; i < OPENINGS; i++) {
        ends[i] = (i > 0 ? ends[i - 1] : 0) + SIDECAR_HEAD_BYTES + openings[i].len;
    }
    CHECK(whole.bytes == ends[OPENINGS - 1]);
    for (u64 cut = 0; cut <= whole.bytes; cut++) {
        memory.n_operations = 0;
        memcpy(file, &whole, sizeof whole);
        file->bytes = cut;
        u32 wanted = 0;
        for (u32 i = 0; i < OPENINGS; i++) wanted |= (u32)(ends[i] <= cut) << i;
        CHECK_MSG(found_now() == wanted, "cut at %llu", cut);
        append_all();
        CHECK_MSG(found_now() == ALL, "cut at %llu, and written again", cut);
    }
}

// One byte changed: what it belongs to is not found, everything else is.
static void changed_anywhere(void) {
    reset();
    make_openings();
    append_all();
    struct memory_file *file = memory_find(&memory, SIDECAR_NAME);
    u64 begin = 0;
    for (u32 i = 0; i < OPENINGS; i++) {
        u64 end = begin + SIDECAR_HEAD_BYTES + openings[i].len;
        for (u64 at = begin; at < end; at++) {
            file->data[at] ^= 0x40;
            u32 found = found_now();
            file->data[at] ^= 0x40;
            CHECK_MSG(found == (ALL & ~(1u << i)), "byte %llu of entry %u: %x", at - begin, i,
                      found);
        }
        begin = end;
    }
}

// Garbage between entries, and in front of them.
static void garbage_is_passed_over(void) {
    reset();
    make_openings();
    struct sidecar_writer writer;
    struct sov_fault fault = {0};
    struct test_random random = {SEED};
    for (u32 i = 0; i < OPENINGS; i++) {
        struct memory_file *file = memory_find(&memory, SIDECAR_NAME);
        u32 n = test_random_below(&random, 9000); // more than a window of the search
        for (u32 k = 0; file != NULL && k < n; k++) {
            file->data[file->bytes++] = (u8)test_random_below(&random, 256);
        }
        sidecar_writer_init(&writer, &disk);
        CHECK(sidecar_append(&writer, sequence_of(i), openings[i], &fault) == SOV_OK);
        sidecar_writer_close(&writer);
    }
    CHECK(found_now() == ALL);
}

static bool holds(const struct memory_file *file, struct str bytes) {
    for (u64 at = 0; at + bytes.len <= file->bytes; at++) {
        if (memcmp(file->data + at, bytes.data, bytes.len) == 0) return true;
    }
    return false;
}

static void erasing(void) {
    u64 n = 99;
    struct sov_fault fault = {0};
    reset();
    make_openings();
    CHECK(sidecar_erase(&disk, true, 0, &n, &fault) == SOV_OK && n == 0);
    append_all();
    CHECK(sidecar_erase(&disk, false, 7, &n, &fault) == SOV_OK && n == 0 && found_now() == ALL);
    CHECK(sidecar_erase(&disk, false, sequence_of(1), &n, &fault) == SOV_OK && n == 2);
    CHECK(found_now() == (ALL & ~(1u << 1 | 1u << 4)));
    struct memory_file *file = memory_find(&memory, SIDECAR_NAME);
    CHECK(!holds(file, openings[1]) && !holds(file, openings[4]) && holds(file, openings[5]));
    CHECK(sidecar_erase(&disk, true, 0, &n, &fault) == SOV_OK && n == OPENINGS - 2);
    CHECK(found_now() == 0 && memory_find(&memory, SIDECAR_NAME)->bytes == 0);
    append_all();
    CHECK(found_now() == ALL && memory.n_open == 0);
}

// Whatever fails while it is erased: the file is the old one or the new one.
static void erasing_that_fails(void) {
    for (u32 k = 1;; k++) {
        u64 n = 0;
        struct sov_fault fault = {0};
        reset();
        make_openings();
        append_all();
        memory.n_operations = 0;
        memory.fails_at = k;
        enum sov_status status = sidecar_erase(&disk, false, sequence_of(0), &n, &fault);
        u32 found = found_now();
        u32 rest = ALL & ~(1u << 0 | 1u << 3);
        CHECK(status == fault.status && (found == ALL || found == rest));
        if (status == SOV_OK) {
            CHECK(found == rest && k > 6);
            return;
        }
        CHECK(status == SOV_ERR_IO);
    }
}

// --- the recorder (R6) ---

static struct str opening_of(u32 i) { return openings[i]; }

static enum sov_status record_some(struct rowm_head *head) {
    struct rowm_manifest manifest = {.engine_version = STR("test")};
    struct rowm *rowm = NULL;
    struct recorder *recorder = NULL;
    struct sov_fault fault = {0};
    enum sov_status status = rowm_open(&disk, &manifest, &rowm, &fault);
    if (status != SOV_OK) return status;
    CHECK(recorder_open_stepped(rowm, &recorder, &fault) == SOV_OK); // the same each time
    struct checkpoint_store store = recorder_store(recorder);
    struct checkpoint_id first = {100, 5, CHECKPOINT_BOUNDARY}, next = {100, 69, first.kind};
    struct checkpoint_id clear = {101, 5, CHECKPOINT_BOUNDARY}, end = {100, 80, CHECKPOINT_FINISH};
    // Refused where recording has ended before: then closing tells.
    (void)!store.start(store.context, &first, opening_of(0), opening_of(3), NULL);
    (void)!store.start(store.context, &clear, STR("request"), STR("first"), NULL);
    (void)!recorder_flush(recorder, NULL);
    (void)!store.begin(store.context, &next, opening_of(1), NULL);
    (void)!store.finish(store.context, &end, opening_of(2), NULL);
    return recorder_close(recorder, head, &fault);
}

// Every record that is a commitment has its opening. How many there are.
static u32 check_records(void) {
    struct rowm_manifest manifest = {.engine_version = STR("test")};
    struct rowm *rowm = NULL;
    struct sidecar *sidecar = NULL;
    struct sov_fault fault = {0};
    CHECK_MSG(rowm_open(&disk, &manifest, &rowm, &fault) == SOV_OK, "%s", fault.message);
    CHECK(sidecar_open(&disk, &sidecar, &fault) == SOV_OK);
    u32 n_sealed = 0;
    for (u64 i = 0; i < rowm_head(rowm).n_records; i++) {
        struct rowm_record_info info;
        u8 payload[ROWM_MANIFEST_BYTES_MAX];
        usize n = 0;
        struct sealed sealed;
        CHECK(rowm_info(rowm, i, &info, &fault) == SOV_OK);
        if (info.has_capability) {
            // It has a payload under a capability: the bytes are where its receipt says.
            struct sha256_digest hashes[] = {sealed_kept_hash(openings[3]),
                                             sealed_kept_hash(openings[1])};
            bool is_first = sha256_equal(&info.payload_hash, &hashes[0]);
            bool is_next = sha256_equal(&info.payload_hash, &hashes[1]);
            if (is_first) CHECK(sidecar_check(sidecar, &seals[3], &fault) == SOV_OK);
            if (is_next) CHECK(sidecar_check(sidecar, &seals[1], &fault) == SOV_OK);
            n_sealed += is_first || is_next;
            continue;
        }
        CHECK(rowm_read(rowm, i, payload, sizeof payload, &n, &fault) == SOV_OK);
        if (!sealed_read((struct str){payload, n}, &sealed)) continue;
        CHECK(sidecar_check(sidecar, &sealed, &fault) == SOV_OK);
        n_sealed++;
    }
    bool is_whole = memory.fails_at == 0;
    CHECK_MSG(!is_whole || n_sealed == 4, "%u sealed records", n_sealed);
    sidecar_close(sidecar);
    rowm_close(rowm);
    return n_sealed;
}

static void openings_come_first(void) {
    struct rowm_head head = {0};
    reset();
    make_openings();
    CHECK(record_some(&head) == SOV_OK && head.n_records == 7);
    // In each round: the sidecar's writes, its sync, and only then writes to the log.
    bool is_dirty = false;
    u32 n_syncs = 0;
    for (u32 i = 0; i < memory.n_operations; i++) {
        struct str name = str_from_z(memory.operations[i].name);
        bool is_write = memory.operations[i].operation == MEMORY_WRITE;
        if (str_equal(name, STR("log"))) CHECK_MSG(!(is_write && is_dirty), "operation %u", i);
        if (!str_equal(name, STR(SIDECAR_NAME))) continue;
        n_syncs += is_dirty && !is_write;
        is_dirty = is_write;
    }
    CHECK(n_syncs >= 2 && !is_dirty);
    check_records();
    CHECK(memory.n_open == 0);
}

// Whatever fails: no record without its opening.
static void failures(void) {
    struct rowm_head head = {0};
    reset();
    make_openings();
    CHECK(record_some(&head) == SOV_OK);
    u32 n = memory.n_operations;
    for (u32 k = 1; k <= n; k++) {
        reset();
        memory.fails_at = k;
        enum sov_status status = record_some(&head);
        CHECK_MSG(status == SOV_ERR_IO, "operation %u", k);
        memory.n_operations = k; // no more failures
        check_records();
    }
}

static bool coin(void *context) { return test_random_below(context, 2) == 0; }

// Power fails at every operation, and of what was not synced anything may be lost: no record
// without its opening, neither of those that recovery takes.
static void power_failures(void) {
    struct rowm_head head = {0};
    struct test_random random = {SEED};
    reset();
    make_openings();
    CHECK(record_some(&head) == SOV_OK);
    u32 n = memory.n_operations, n_tries = test_option("FULL") != NULL ? 400 : 40, n_taken = 0;
    for (u32 k = 1; k <= n; k++) {
        for (u32 i = 0; i < n_tries; i++) {
            reset();
            memory.stops_at = k;
            CHECK_MSG(record_some(&head) == SOV_ERR_IO, "operation %u", k);
            memory_lose_power(&memory, coin, &random);
            memory.fails_at = ~0u; // not all records are there
            n_taken += check_records();
        }
    }
    CHECK_MSG(n_taken > n * n_tries / 2, "%u sealed records", n_taken);
}

static const struct test_case cases[] = {
    {"sealed_is_what_is_written_down", sealed_is_what_is_written_down},
    {"what_is_appended_is_found", what_is_appended_is_found},
    {"cut_anywhere", cut_anywhere},
    {"changed_anywhere", changed_anywhere},
    {"garbage_is_passed_over", garbage_is_passed_over},
    {"erasing", erasing},
    {"erasing_that_fails", erasing_that_fails},
    {"openings_come_first", openings_come_first},
    {"failures", failures},
    {"power_failures", power_failures},
};

int program_main(const struct platform_start *start) {
    return test_main(start, "test_sidecar", cases, COUNT_OF(cases));
}
