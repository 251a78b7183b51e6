// SPDX-License-Identifier: Apache-2.0
// The recorder (recorder.h, R1 to R5) over a disk in memory whose syncs can be held back, fail, or
// whose space can end: what becomes durable and when, what shares a commit, what is refused, and
// what is there afterwards, read by the store itself.
#include "record/recorder.h"
#include "freestanding/mem.h"
#include "record/payload.h"
#include "log_disk.h"
#include "test.h"

#define FILE_BYTES_MAX (1u << 20)

// --- a disk ---
// `hold` keeps the sync of the file waiting until it is cleared.
static struct {
    struct log_disk file;
    u32 hold;               // shared with the recorder's thread
    u32 n_syncs, n_waiting; // shared
    u32 fail_sync;          // this one fails, counted from 1; 0: none
} disk;
static struct rowm_disk memory_disk;

static enum sov_status disk_sync(void *context, int file, struct sov_fault *fault) {
    (void)context;
    (void)file;
    __atomic_fetch_add(&disk.n_waiting, 1, __ATOMIC_SEQ_CST);
    platform_wake_all(&disk.n_waiting);
    while (__atomic_load_n(&disk.hold, __ATOMIC_SEQ_CST) != 0) platform_wait(&disk.hold, 1);
    if (__atomic_add_fetch(&disk.n_syncs, 1, __ATOMIC_SEQ_CST) != disk.fail_sync) return SOV_OK;
    return fault_set(fault, SOV_ERR_IO, "sync log: EIO");
}

static void hold_syncs(bool hold) {
    __atomic_store_n(&disk.hold, hold, __ATOMIC_SEQ_CST);
    platform_wake_all(&disk.hold);
}

// Until the recorder's thread stands in a sync that began after `before` had.
static void await_sync(u32 before) {
    u32 now = before;
    while ((now = __atomic_load_n(&disk.n_waiting, __ATOMIC_SEQ_CST)) == before) {
        platform_wait(&disk.n_waiting, now);
    }
}

// --- a recorder over it ---

static struct recorder *recorder;
static struct checkpoint_store store;

static void reset_disk(void) {
    static u8 log[FILE_BYTES_MAX];
    memset(&disk, 0, sizeof disk);
    memset(log, 0, sizeof log);
    disk.file = (struct log_disk){.log = log, .capacity = FILE_BYTES_MAX};
    memory_disk = log_disk_of(&disk.file);
    memory_disk.sync = disk_sync;
}

static void open_recorder(void) {
    struct rowm_manifest manifest = {.engine_version = STR("test")};
    struct rowm *rowm = NULL;
    struct sov_fault fault = {0};
    CHECK_MSG(rowm_open(&memory_disk, &manifest, &rowm, &fault) == SOV_OK, "%s", fault.message);
    CHECK(recorder_open(rowm, &recorder, &fault) == SOV_OK);
    store = recorder_store(recorder);
}

static enum sov_status close_recorder(struct rowm_head *head) {
    struct sov_fault fault = {0};
    enum sov_status status = recorder_close(recorder, head, &fault);
    CHECK(status == fault.status);
    return status;
}

static struct checkpoint_id id_of(u64 sequence, u32 n_tokens, u32 kind) {
    return (struct checkpoint_id){sequence, n_tokens, kind};
}

static enum sov_status begin(struct checkpoint_id id, const char *text) {
    struct sov_fault fault = {0};
    return store.begin(store.context, &id, str_from_z(text), &fault);
}

static enum sov_status start(u64 sequence, const char *request, const char *first) {
    struct sov_fault fault = {0};
    struct checkpoint_id id = id_of(sequence, 5, CHECKPOINT_BOUNDARY);
    return store.start(store.context, &id, str_from_z(request), str_from_z(first), &fault);
}

static enum sov_status finish(struct checkpoint_id id, const char *text) {
    struct sov_fault fault = {0};
    return store.finish(store.context, &id, str_from_z(text), &fault);
}

static bool is_pending(struct checkpoint_id id) {
    enum checkpoint_progress progress = CHECKPOINT_DURABLE;
    struct checkpoint_receipt receipt;
    return store.poll(store.context, &id, &progress, &receipt, NULL) == SOV_OK &&
           progress == CHECKPOINT_PENDING;
}

// What the poll says once it is known.
static enum sov_status outcome(struct checkpoint_id id, struct checkpoint_receipt *receipt) {
    struct sov_fault fault = {0};
    enum checkpoint_progress progress = CHECKPOINT_PENDING;
    struct checkpoint_receipt ignored;
    if (receipt == NULL) receipt = &ignored;
    for (;;) {
        enum sov_status status = store.poll(store.context, &id, &progress, receipt, &fault);
        CHECK(status == fault.status);
        if (status != SOV_OK || progress == CHECKPOINT_DURABLE) return status;
        recorder_wait(recorder);
    }
}

static void forget(struct checkpoint_id id) { store.forget(store.context, &id); }

// --- cases ---

static struct rowm *open_again(void) {
    struct rowm_manifest manifest = {.engine_version = STR("reader")};
    struct rowm *rowm = NULL;
    struct sov_fault fault = {0};
    CHECK_MSG(rowm_open(&memory_disk, &manifest, &rowm, &fault) == SOV_OK, "%s", fault.message);
    return rowm;
}

// R1, R3: the records of two sequences with their chains.
static void chains(void) {
    reset_disk();
    open_recorder();
    struct checkpoint_id boundary = id_of(7, 69, CHECKPOINT_BOUNDARY);
    CHECK(start(7, "request 7", "first 7") == SOV_OK && start(8, "request 8", "first 8") == SOV_OK);
    CHECK(begin(boundary, "at 64") == SOV_OK);
    CHECK(begin(id_of(7, 70, CHECKPOINT_SUSPEND), "suspended") == SOV_OK);
    CHECK(finish(id_of(8, 9, CHECKPOINT_FINISH), "end of 8") == SOV_OK);
    struct checkpoint_receipt receipt;
    CHECK(outcome(boundary, &receipt) == SOV_OK);
    struct sha256_digest hash = sha256_of(STR("at 64"));
    struct sha256_digest expected = checkpoint_receipt_hash(&boundary, &hash);
    CHECK(sha256_equal(&receipt.payload_hash, &hash));
    CHECK(sha256_equal(&receipt.receipt_hash, &expected));
    CHECK(outcome(id_of(7, 5, CHECKPOINT_BOUNDARY), NULL) == SOV_OK);
    struct rowm_head head;
    CHECK(close_recorder(&head) == SOV_OK && head.n_records == 8);
    struct rowm *rowm = open_again();
    struct {
        u64 owner, parent, epoch;
        enum rowm_kind kind;
        bool has_capability, available;
    } wanted[] = {
        {0, ROWM_NONE, 0, ROWM_MANIFEST, false, false},
        {7, ROWM_NONE, 0, ROWM_REQUEST, false, false},
        {7, 1, 0, ROWM_CHECKPOINT, true, false},
        {8, ROWM_NONE, 0, ROWM_REQUEST, false, false},
        {8, 3, 0, ROWM_CHECKPOINT, true, false},
        {7, 2, 1, ROWM_CHECKPOINT, true, false},
        {7, 5, 2, ROWM_CHECKPOINT, true, true},
        {8, 4, 1, ROWM_FINISH, false, false},
    };
    for (u32 i = 0; i < COUNT_OF(wanted); i++) {
        struct rowm_record_info info;
        struct sov_fault fault = {0};
        CHECK(rowm_info(rowm, i, &info, &fault) == SOV_OK);
        CHECK_MSG(info.owner == wanted[i].owner && info.parent == wanted[i].parent &&
                      info.kind == wanted[i].kind && info.epoch == wanted[i].epoch &&
                      info.has_capability == wanted[i].has_capability &&
                      info.available == wanted[i].available,
                  "record %u: owner %llu, parent %llu, epoch %llu, kind %d", i, info.owner,
                  info.parent, info.epoch, (int)info.kind);
    }
    u8 text[64];
    usize n = 0;
    struct sov_fault fault = {0};
    CHECK(rowm_read(rowm, 3, text, sizeof text, &n, &fault) == SOV_OK);
    CHECK(str_equal((struct str){text, n}, STR("request 8")));
    struct rowm_receipt found;
    struct sha256_digest txid = recorder_request_txid(7);
    CHECK(rowm_find(rowm, &txid, &found) && found.record == 1);
    txid = recorder_checkpoint_txid(&boundary);
    CHECK(rowm_find(rowm, &txid, &found) && found.record == 5);
    rowm_close(rowm);
}

// R2 and the group commit: nothing is durable before the sync; what comes meanwhile shares the
// next.
static void one_commit_for_many(void) {
    reset_disk();
    open_recorder();
    CHECK(start(1, "r", "f") == SOV_OK);
    CHECK(outcome(id_of(1, 5, CHECKPOINT_BOUNDARY), NULL) == SOV_OK);
    u32 before = __atomic_load_n(&disk.n_waiting, __ATOMIC_SEQ_CST);
    hold_syncs(true);
    CHECK(begin(id_of(1, 69, CHECKPOINT_BOUNDARY), "a") == SOV_OK);
    await_sync(before);
    for (u64 i = 2; i < 50; i++) CHECK(start(i, "r", "f") == SOV_OK);
    CHECK(is_pending(id_of(1, 69, CHECKPOINT_BOUNDARY)));
    CHECK(is_pending(id_of(49, 5, CHECKPOINT_BOUNDARY)));
    hold_syncs(false);
    for (u64 i = 2; i < 50; i++) {
        CHECK(outcome(id_of(i, 5, CHECKPOINT_BOUNDARY), NULL) == SOV_OK);
        forget(id_of(i, 5, CHECKPOINT_BOUNDARY));
    }
    u32 syncs = __atomic_load_n(&disk.n_waiting, __ATOMIC_SEQ_CST) - before;
    CHECK_MSG(syncs == 4, "%u syncs", syncs); // two commits of two
    struct rowm_head head;
    CHECK(close_recorder(&head) == SOV_OK);
}

// R4: again with the same bytes, with others, in this run and in the next.
static void again(void) {
    reset_disk();
    open_recorder();
    struct checkpoint_id a = id_of(1, 69, CHECKPOINT_BOUNDARY);
    struct rowm_head head, head_after;
    CHECK(start(1, "r", "f") == SOV_OK && begin(a, "a") == SOV_OK && begin(a, "a") == SOV_OK);
    CHECK(begin(a, "b") == SOV_ERR_INTEGRITY);
    CHECK(outcome(a, NULL) == SOV_OK && begin(a, "a") == SOV_OK);
    forget(a);
    CHECK(outcome(a, NULL) == SOV_ERR_STATE); // nobody knows it any more
    struct sov_fault fault = {0};
    CHECK(recorder_flush(recorder, &fault) == SOV_OK);
    CHECK(begin(a, "a") == SOV_OK && outcome(a, NULL) == SOV_OK); // the store does
    forget(a);
    CHECK(begin(a, "b") == SOV_OK && outcome(a, NULL) == SOV_ERR_INTEGRITY);
    forget(a);
    CHECK(close_recorder(&head) == SOV_OK && head.n_records == 4);
    open_recorder();
    CHECK(begin(a, "a") == SOV_OK && outcome(a, NULL) == SOV_OK);
    forget(a);
    struct checkpoint_id next = id_of(1, 133, CHECKPOINT_BOUNDARY);
    CHECK(begin(next, "c") == SOV_OK && outcome(next, NULL) == SOV_OK);
    forget(next);
    // A request that is there; a sequence that is not; one that has ended.
    CHECK(start(1, "r", "f") == SOV_OK);
    CHECK(outcome(id_of(1, 5, CHECKPOINT_BOUNDARY), NULL) == SOV_ERR_STATE);
    CHECK(begin(id_of(9, 69, CHECKPOINT_BOUNDARY), "x") == SOV_OK);
    CHECK(outcome(id_of(9, 69, CHECKPOINT_BOUNDARY), NULL) == SOV_ERR_STATE);
    CHECK(finish(id_of(1, 140, CHECKPOINT_FINISH), "end") == SOV_OK);
    CHECK(begin(id_of(1, 197, CHECKPOINT_BOUNDARY), "y") == SOV_OK);
    CHECK(outcome(id_of(1, 197, CHECKPOINT_BOUNDARY), NULL) == SOV_ERR_STATE);
    CHECK(close_recorder(&head_after) == SOV_OK && head_after.n_records == head.n_records + 3);
}

// R4: a request of which a crash left the first checkpoint away.
static void a_request_alone(void) {
    reset_disk();
    struct rowm *rowm = open_again();
    struct sov_fault fault = {0};
    struct rowm_write write = {.txid = recorder_request_txid(1),
                               .kind = ROWM_REQUEST,
                               .owner = 1,
                               .parent = ROWM_NONE,
                               .payload = STR("r")};
    CHECK(sov_rowm_write(rowm, &write, NULL, &fault) == SOV_OK);
    rowm_close(rowm);
    open_recorder();
    struct checkpoint_id first = id_of(1, 5, CHECKPOINT_BOUNDARY);
    CHECK(start(1, "another", "f") == SOV_OK && outcome(first, NULL) == SOV_ERR_STATE);
    forget(first);
    CHECK(start(1, "r", "f") == SOV_OK && outcome(first, NULL) == SOV_OK);
    forget(first);
    CHECK(start(1, "r", "f") == SOV_OK && outcome(first, NULL) == SOV_ERR_STATE);
    forget(first);
    CHECK(finish(id_of(1, 9, CHECKPOINT_FINISH), "end") == SOV_OK);
    struct rowm_head head;
    CHECK(close_recorder(&head) == SOV_OK && head.n_records == 5);
    rowm = open_again();
    struct rowm_record_info info;
    CHECK(rowm_info(rowm, 3, &info, &fault) == SOV_OK && info.parent == 1 && info.has_capability);
    rowm_close(rowm);
}

// What was refused without anybody asking is told by the flush.
static void refused_unasked(void) {
    for (u32 is_done = 0; is_done < 2; is_done++) {
        reset_disk();
        open_recorder();
        CHECK(start(1, "r", "f") == SOV_OK);
        forget(id_of(1, 5, CHECKPOINT_BOUNDARY));
        struct sov_fault fault = {0};
        CHECK(recorder_flush(recorder, &fault) == SOV_OK);
        CHECK(start(1, "r", "f") == SOV_OK);
        if (is_done) recorder_wait(recorder);
        forget(id_of(1, 5, CHECKPOINT_BOUNDARY));
        CHECK(recorder_flush(recorder, &fault) == SOV_ERR_STATE);
        struct rowm_head head;
        CHECK(close_recorder(&head) == SOV_ERR_STATE && head.n_records == 3);
    }
}

// An end that could not be made is told by the flush, whenever it is asked; its sequence stays as
// it was, and may be gone on with.
static void lost_end(void) {
    reset_disk();
    open_recorder();
    struct sov_fault cause = {0}, fault = {0};
    struct checkpoint_id end = id_of(0xab12, 9, CHECKPOINT_FINISH);
    CHECK(start(0xab12, "r", "f") == SOV_OK && start(2, "r", "f") == SOV_OK);
    CHECK(fault_set(&cause, SOV_ERR_IO, "K and V are not to be had") == SOV_ERR_IO);
    store.lost(store.context, &end, &cause);
    CHECK(finish(id_of(2, 9, CHECKPOINT_FINISH), "end") == SOV_OK);
    CHECK(recorder_flush(recorder, &fault) == SOV_ERR_IO);
    CHECK_MSG(str_equal(str_from_z(fault.message),
                        STR("the end of sequence 000000000000ab12 is not in the record (sov resume "
                            "makes it): K and V are not to be had")),
              "%s", fault.message);
    CHECK(recorder_check(recorder, &fault) == SOV_OK); // the others go on
    struct rowm_head head;
    CHECK(close_recorder(&head) == SOV_ERR_IO && head.n_records == 6);
    struct rowm *rowm = open_again();
    u64 record = ROWM_NONE;
    CHECK(rowm_find_available(rowm, 0xab12, &record) && record == 2);
    CHECK(!rowm_find_available(rowm, 2, &record));
    rowm_close(rowm);
}

// A capability is used behind what was given before, in a transaction of its own, once.
static void resuming(void) {
    reset_disk();
    open_recorder();
    struct rowm_head head;
    struct sov_fault fault = {0};
    CHECK(start(1, "r", "first") == SOV_OK && start(2, "r", "f") == SOV_OK);
    CHECK(close_recorder(&head) == SOV_OK && head.n_records == 5);
    struct rowm *rowm = open_again();
    struct rowm_record_info info;
    CHECK(rowm_info(rowm, 2, &info, &fault) == SOV_OK && info.available);
    CHECK(recorder_open(rowm, &recorder, &fault) == SOV_OK);
    store = recorder_store(recorder);
    struct rowm_claim claim = {
        .txid = sha256_of(STR("a claim")), .capability = info.capability, .consumer = 1};
    u8 payload[8];
    usize n = 0;
    CHECK(begin(id_of(2, 69, CHECKPOINT_BOUNDARY), "x") == SOV_OK);
    CHECK(recorder_resume(recorder, &claim, payload, 3, &n, &fault) == SOV_ERR_LIMIT);
    fault = (struct sov_fault){0};
    CHECK(recorder_resume(recorder, &claim, payload, sizeof payload, &n, &fault) == SOV_OK);
    CHECK(str_equal((struct str){payload, n}, STR("first")));
    CHECK(!is_pending(id_of(2, 69, CHECKPOINT_BOUNDARY))); // it stood in front
    CHECK(recorder_resume(recorder, &claim, payload, sizeof payload, &n, &fault) == SOV_ERR_STATE);
    CHECK(recorder_flush(recorder, &fault) == SOV_OK && recorder_head(recorder).n_records == 8);
    // The successor is the one that the next checkpoint consumes.
    CHECK(finish(id_of(1, 9, CHECKPOINT_FINISH), "end") == SOV_OK);
    fault = (struct sov_fault){0};
    CHECK(recorder_flush(recorder, &fault) == SOV_OK);
    claim.txid = sha256_of(STR("another"));
    disk.fail_sync = disk.n_syncs + 1;
    CHECK(recorder_resume(recorder, &claim, payload, sizeof payload, &n, &fault) == SOV_ERR_STATE);
    fault = (struct sov_fault){0};
    CHECK(start(3, "r", "f") == SOV_OK && recorder_flush(recorder, &fault) == SOV_ERR_IO);
    fault = (struct sov_fault){0};
    CHECK(recorder_resume(recorder, &claim, payload, sizeof payload, &n, &fault) == SOV_ERR_IO);
    CHECK(close_recorder(&head) == SOV_ERR_IO && head.n_records == 9);
}

// R5: a sync that fails, and a disk that is full; what was durable is there afterwards.
static void failures(void) {
    for (u32 full = 0; full < 2; full++) {
        reset_disk();
        open_recorder();
        struct checkpoint_id a = id_of(1, 69, CHECKPOINT_BOUNDARY), b = id_of(1, 133, a.kind);
        CHECK(start(1, "r", "f") == SOV_OK && begin(a, "a") == SOV_OK);
        CHECK(outcome(a, NULL) == SOV_OK);
        forget(a);
        struct sov_fault fault = {0};
        CHECK(recorder_flush(recorder, &fault) == SOV_OK);
        CHECK(recorder_check(recorder, &fault) == SOV_OK);
        if (full) {
            disk.file.capacity = disk.file.bytes + 10;
        } else {
            disk.fail_sync = disk.n_syncs + 1;
        }
        CHECK(begin(b, "b") == SOV_OK);
        while (recorder_check(recorder, &fault) == SOV_OK) { // told without asking for the item
        }
        CHECK(fault.status == SOV_ERR_IO && outcome(b, NULL) == SOV_ERR_IO);
        disk.file.capacity = FILE_BYTES_MAX;
        CHECK(recorder_check(recorder, &fault) == SOV_ERR_IO);
        struct str message = str_from_z(fault.message);
        CHECK(str_starts_with(message, STR("recording ended: ")));
        CHECK(begin(b, "b") == SOV_ERR_IO);
        CHECK(begin(id_of(1, 140, CHECKPOINT_SUSPEND), "s") == SOV_ERR_IO);
        CHECK(start(2, "r", "f") == SOV_ERR_IO);
        CHECK(finish(id_of(1, 134, CHECKPOINT_FINISH), "e") == SOV_ERR_IO);
        struct rowm_head head;
        CHECK(close_recorder(&head) == SOV_ERR_IO && head.n_records == 4);
        struct rowm *rowm = open_again();
        struct rowm_receipt receipt;
        struct sha256_digest txid = recorder_checkpoint_txid(&a);
        CHECK(rowm_find(rowm, &txid, &receipt) && receipt.record == 3);
        rowm_close(rowm);
    }
}

// Many sequences with much to write, closed with a full queue or after it was waited for: all is
// there.
static void closing(void) {
    for (u32 waits = 0; waits < 2; waits++) {
        reset_disk();
        open_recorder();
        u32 n = 60;
        for (u64 i = 1; i <= n; i++) {
            CHECK(start(i, "request", "first") == SOV_OK);
            CHECK(begin(id_of(i, 69, CHECKPOINT_BOUNDARY), "64") == SOV_OK);
            CHECK(finish(id_of(i, 70, CHECKPOINT_FINISH), "end") == SOV_OK);
        }
        struct rowm_head head;
        struct sov_fault fault = {0};
        if (waits) {
            CHECK(recorder_flush(recorder, &fault) == SOV_OK);
            CHECK(recorder_head(recorder).n_records == 1 + 4 * n);
        }
        u64 mapped = platform_memory_mapped();
        CHECK(close_recorder(&head) == SOV_OK && head.n_records == 1 + 4 * n);
        CHECK(platform_memory_mapped() < mapped);
        struct rowm_report report;
        CHECK(sov_rowm_verify(&memory_disk, NULL, &report, &fault) == SOV_OK);
        CHECK(report.n_available == 0 && report.tail_bytes == 0);
    }
}

static const struct test_case cases[] = {
    {"chains", chains},
    {"one_commit_for_many", one_commit_for_many},
    {"again", again},
    {"a_request_alone", a_request_alone},
    {"refused_unasked", refused_unasked},
    {"lost_end", lost_end},
    {"resuming", resuming},
    {"failures", failures},
    {"closing", closing},
};

int program_main(const struct platform_start *start_) {
    return test_main(start_, "test_recorder", cases, COUNT_OF(cases));
}
