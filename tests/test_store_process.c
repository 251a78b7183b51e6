// SPDX-License-Identifier: Apache-2.0
// The record store as real processes use it: programs that commit until they are killed, that find
// out what is there, and that race for one capability. tests/test_store_process.py runs them, kills
// them and lets their system calls fail:
//
//   commit FOLDER   writes, resumes and reads once without an end (COMMITS_MAX); a line on stdout
//                   for everything acknowledged, after it was: "ack NAME TIME RECEIPT", and
//                   "got RECORD" for a payload that was disclosed. An operation that fails is told
//                   as "error STATUS: MESSAGE", and so is what becomes of the next one; then the
//                   program ends with 1.
//   few FOLDER      the same, COMMITS_FEW times
//   reopen FOLDER   recovers, verifies, and lists every receipt: "has TIME RECEIPT", "ends
//   SIZE:ROOT" offer FOLDER    makes a store with OFFERS payloads under capabilities race FOLDER
//   for each number on stdin: opens the store (again and again while it is in use),
//                   reads the payload of that owner once: "payload" or "refused", and how often the
//                   store was in use
#include "sim_disk.h"

#define COMMITS_MAX 100000
#define COMMITS_FEW 40
#define FAILURE_ENDS 2 // failing operations that are told before the program ends
#define OWNERS 4
#define OFFERS 100
#define OFFER_BYTES 32

static bool quiet; // within one process nobody listens

static void say(const char *format, ...) PRINTF_LIKE(1, 2);
static void say(const char *format, ...) {
    char memory[600];
    struct text t = TEXT_OVER_ARRAY(memory);
    va_list args;
    va_start(args, format);
    text_format_v(&t, format, args);
    va_end(args);
    text_put_byte(&t, '\n');
    if (quiet) return;
    if (platform_write(PLATFORM_STDOUT, t.data, t.len, NULL) != SOV_OK) platform_exit(1);
}

static void say_error(enum sov_status status, const struct sov_fault *fault) {
    say("error %s: %s", status_name(status), fault->message);
}

static void say_ack(const char *name, const struct rowm_receipt *receipt) {
    char hex[SHA256_HEX_BYTES + 1];
    sha256_to_hex(&receipt->hash, hex);
    say("ack %s %llu %s", name, receipt->time, hex);
}

// --- commit ---

static u8 large[100 * 1024]; // larger than what goes into one write

// Payloads of 0 bytes to 100 KB, most of them small.
static struct str payload_of(u64 i) {
    usize n = i % 16 == 9 ? sizeof large - (usize)(i % 1000) : (usize)(i * 37 % 900);
    for (usize k = 0; k < n; k++) large[k] = (u8)(i + k * 31);
    return (struct str){large, n};
}

// One or three writes in a commit, chained to the owner's capability.
static enum sov_status write_some(struct rowm *store, u64 i, struct sov_fault *fault) {
    struct rowm_receipt receipts[3];
    char names[3][24];
    u32 n = i % 3 == 0 ? 3 : 1;
    for (u32 k = 0; k < n; k++) {
        struct text t = TEXT_OVER_ARRAY(names[k]);
        text_format(&t, "w%llu.%u", i, k);
        struct rowm_write write = plain(names[k], "");
        write.payload = payload_of(i + k);
        write.owner = (i + k) % OWNERS;
        u64 before = 0;
        if (k == 0) {
            struct rowm_record_info info;
            write.kind = ROWM_CHECKPOINT;
            write.issues = true;
            write.consumes = rowm_find_available(store, write.owner, &before);
            if (write.consumes) {
                enum sov_status status = rowm_info(store, before, &info, fault);
                if (status != SOV_OK) return status;
                write.capability = info.capability;
            }
        }
        enum sov_status status = rowm_stage(store, &write, &receipts[k], fault);
        if (status != SOV_OK) return status;
    }
    enum sov_status status = rowm_commit(store, fault);
    if (status != SOV_OK) return status;
    for (u32 k = 0; k < n; k++) say_ack(names[k], &receipts[k]);
    return SOV_OK;
}

static enum sov_status take_one(struct rowm *store, u64 i, bool resumes, struct sov_fault *fault) {
    static u8 bytes[sizeof large];
    u64 record = 0;
    usize n = 0;
    struct rowm_record_info info;
    struct rowm_receipt receipt;
    char name[24];
    if (!rowm_find_available(store, i % OWNERS, &record)) return SOV_OK;
    enum sov_status status = rowm_info(store, record, &info, fault);
    if (status != SOV_OK) return status;
    struct text t = TEXT_OVER_ARRAY(name);
    text_format(&t, "%s%llu", resumes ? "r" : "c", i);
    struct rowm_claim claim = {id_of(name), info.capability, i};
    status = resumes ? rowm_resume(store, &claim, bytes, sizeof bytes, &n, &receipt, fault)
                     : sov_rowm_read_once(store, &claim, bytes, sizeof bytes, &n, &receipt, fault);
    if (status != SOV_OK) return status;
    struct sha256_digest digest = sha256_of((struct str){bytes, n});
    if (!sha256_equal(&digest, &info.payload_hash)) {
        return fault_set(fault, SOV_ERR_INTEGRITY, "another payload was disclosed");
    }
    say_ack(name, &receipt);
    say("got %llu", record);
    return SOV_OK;
}

static int commit_some(const char *path, u64 n) {
    struct rowm_folder folder = {path};
    struct rowm_disk disk = rowm_folder_disk(&folder);
    struct sov_fault fault = {0};
    struct rowm *store = NULL;
    enum sov_status status = platform_make_folder(path, &fault);
    if (status == SOV_OK) status = rowm_open(&disk, &manifest, &store, &fault);
    if (status != SOV_OK) return say_error(status, &fault), 1;
    u32 n_failed = 0;
    u64 begin = rowm_head(store).time * 4; // names that no session used before
    for (u64 i = begin; i < begin + n && n_failed < FAILURE_ENDS; i++) {
        fault = (struct sov_fault){0};
        bool resumes = i % 5 == 3, reads = i % 7 == 4;
        status = resumes || reads ? take_one(store, i, resumes, &fault)
                                  : write_some(store, i, &fault);
        if (status != SOV_OK) say_error(status, &fault);
        n_failed += status != SOV_OK || n_failed > 0;
    }
    rowm_close(store);
    return n_failed > 0;
}

static int commit_folder(const char *path) { return commit_some(path, COMMITS_MAX); }
static int commit_few(const char *path) { return commit_some(path, COMMITS_FEW); }

// --- reopen ---

static int reopen_folder(const char *path) {
    struct rowm_folder folder = {path};
    struct rowm_disk disk = rowm_folder_disk(&folder);
    struct sov_fault fault = {0};
    struct rowm *store = NULL;
    struct rowm_report report;
    enum sov_status status = rowm_open(&disk, &manifest, &store, &fault);
    if (status == SOV_OK) status = sov_rowm_verify(&disk, NULL, &report, &fault);
    if (status != SOV_OK) return say_error(status, &fault), 1;
    char hex[SHA256_HEX_BYTES + 1];
    for (u64 time = 1;; time++) {
        struct rowm_receipt receipt;
        u32 n = 0;
        status = sov_rowm_get_receipts(store, time, &receipt, 1, &n, &fault);
        if (status != SOV_OK || n == 0) break;
        sha256_to_hex(&receipt.hash, hex);
        say("has %llu %s", receipt.time, hex);
    }
    struct rowm_head head = rowm_head(store);
    sha256_to_hex(&head.root, hex);
    say("ends %llu:%s", head.n_entries, hex);
    bool same = sha256_equal(&head.root, &report.head.root) && report.tail_bytes == 0;
    rowm_close(store);
    return status == SOV_OK && same ? 0 : 1;
}

// --- race ---

static int offer_folder(const char *path) {
    struct rowm_folder folder = {path};
    struct rowm_disk disk = rowm_folder_disk(&folder);
    struct sov_fault fault = {0};
    struct rowm *store = NULL;
    enum sov_status status = platform_make_folder(path, &fault);
    if (status == SOV_OK) status = rowm_open(&disk, &manifest, &store, &fault);
    for (u32 i = 0; i < OFFERS && status == SOV_OK; i++) {
        char name[OFFER_BYTES];
        struct text t = TEXT_OVER_ARRAY(name);
        text_format(&t, "payload %u", i);
        struct rowm_write write = checkpoint(name, name);
        write.owner = i;
        status = rowm_stage(store, &write, NULL, &fault);
    }
    if (status == SOV_OK) status = rowm_commit(store, &fault);
    if (status != SOV_OK) return say_error(status, &fault), 1;
    rowm_close(store);
    return 0;
}

static enum sov_status race_for(const struct rowm_disk *disk, u64 owner, u64 *n_in_use,
                                struct sov_fault *fault) {
    struct rowm *store = NULL;
    enum sov_status status;
    *n_in_use = 0;
    do { // no waiting: whoever comes first has it
        status = rowm_open(disk, &manifest, &store, fault);
        *n_in_use += status == SOV_ERR_STATE;
    } while (status == SOV_ERR_STATE);
    if (status != SOV_OK) return status;
    // The capability of record owner + 1, available or not; the same transaction id for both.
    struct rowm_record_info info;
    u8 bytes[OFFER_BYTES] = {0};
    usize n = 0;
    status = rowm_info(store, owner + 1, &info, fault);
    struct rowm_claim claim = {id_of("claim"), info.capability, owner};
    store_u64(claim.txid.bytes, owner);
    if (status == SOV_OK) {
        status = sov_rowm_read_once(store, &claim, bytes, sizeof bytes, &n, NULL, fault);
    }
    char name[OFFER_BYTES];
    struct text t = TEXT_OVER_ARRAY(name);
    text_format(&t, "payload %llu", owner);
    bool whole = n == t.len && memcmp(bytes, name, n) == 0;
    u8 any = 0;
    for (u32 i = 0; i < sizeof bytes; i++) any |= bytes[i];
    rowm_close(store);
    if (status == SOV_OK && !whole) return fault_set(fault, SOV_ERR_INTEGRITY, "other bytes");
    if (status != SOV_OK && any) return fault_set(fault, SOV_ERR_INTEGRITY, "refused, but told");
    return status;
}

static int race_folder(const char *path) {
    struct rowm_folder folder = {path};
    struct rowm_disk disk = rowm_folder_disk(&folder);
    for (;;) {
        u8 line[16];
        usize n = 0;
        struct sov_fault fault = {0};
        u64 owner = 0, n_in_use = 0;
        if (platform_read_some(PLATFORM_STDIN, line, sizeof line, &n, NULL) != SOV_OK) return 1;
        if (n == 0) return 0;
        for (usize i = 0; i < n && line[i] >= '0' && line[i] <= '9'; i++) {
            owner = owner * 10 + (line[i] - '0');
        }
        enum sov_status status = race_for(&disk, owner, &n_in_use, &fault);
        if (status == SOV_OK || status == SOV_ERR_STATE) {
            say("%s %llu", status == SOV_OK ? "payload" : "refused", n_in_use);
        } else {
            say_error(status, &fault);
        }
    }
}

// --- cases: the same actions within one process, under the sanitizers too ---

static const char *program_path;

static void actions_in_one_process(void) {
    quiet = true;
    static char path[600], log[640], old[640];
    struct text t = TEXT_OVER_ARRAY(path);
    text_format(&t, "%s.store", program_path);
    t = TEXT_OVER_ARRAY(log);
    text_format(&t, "%s/log", path);
    t = TEXT_OVER_ARRAY(old);
    text_format(&t, "%s/log.old", path);
    struct sov_fault fault = {0};
    CHECK(platform_make_folder(path, &fault) == SOV_OK);
    if (!platform_is_missing(log)) CHECK(platform_rename(log, old, &fault) == SOV_OK);
    CHECK(offer_folder(path) == 0);
    struct rowm_folder folder = {path};
    struct rowm_disk disk = rowm_folder_disk(&folder);
    u64 n_in_use = 0;
    CHECK(race_for(&disk, 3, &n_in_use, &fault) == SOV_OK && n_in_use == 0);
    CHECK(race_for(&disk, 3, &n_in_use, &fault) == SOV_ERR_STATE);
    struct rowm *store = OPEN(&disk);
    if (store == NULL) return;
    for (u64 i = 1000; i < 1040; i++) {
        bool resumes = i % 5 == 3, reads = i % 7 == 4;
        enum sov_status status = resumes || reads ? take_one(store, i, resumes, &fault)
                                                  : write_some(store, i, &fault);
        CHECK_MSG(status == SOV_OK, "%s", fault.message);
    }
    expect_verified(&disk, store, __LINE__);
    rowm_close(store);
}

static const struct test_case cases[] = {
    {"actions_in_one_process", actions_in_one_process},
};

int program_main(const struct platform_start *start) {
    static const struct {
        const char *name;
        int (*run)(const char *path);
    } actions[] = {{"commit", commit_folder},
                   {"few", commit_few},
                   {"reopen", reopen_folder},
                   {"offer", offer_folder},
                   {"race", race_folder}};
    program_path = start->args[0];
    for (u32 i = 0; start->n_args == 3 && i < COUNT_OF(actions); i++) {
        if (str_equal(str_from_z(start->args[1]), str_from_z(actions[i].name))) {
            return actions[i].run(start->args[2]);
        }
    }
    return test_main(start, "test_store_process", cases, COUNT_OF(cases));
}
