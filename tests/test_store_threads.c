// SPDX-License-Identifier: Apache-2.0
// Verification of a long log, whose payloads a second thread hashes (worm_hash.h): a store of many
// windows in memory, as it is, and with payloads changed, of which the first is named.
// MEGABYTES=n sets how long. `make tsan` runs it under ThreadSanitizer.
#include "freestanding/mem.h"
#include "record/rowm.h"
#include "log_disk.h"
#include "test.h"

#define PAYLOAD_BYTES_MAX (200u << 10) // longer ones than a window's jobs may be are among them
#define DEFERRED_BYTES_MAX (128u << 10)
#define META_BYTES 293 // a record's bytes in front of its payload (docs/format.md)
#define RECORDS_MAX 20000
#define PLACES 6

static struct log_disk disk;
static struct rowm_disk memory_disk;

// --- a long log ---

static struct written {
    u64 entry, bytes; // the offset in the log, and of the payload how many
} written[RECORDS_MAX];

static u32 write_log(u64 bytes, struct test_random *random) {
    static u8 payload[PAYLOAD_BYTES_MAX];
    struct rowm_manifest manifest = {.engine_version = STR("test")};
    struct sov_fault fault = {0};
    struct rowm *store = NULL;
    CHECK_MSG(rowm_open(&memory_disk, &manifest, &store, &fault) == SOV_OK, "%s", fault.message);
    for (u32 i = 0; i < sizeof payload; i++) payload[i] = (u8)test_random_u64(random);
    u32 n = 0;
    for (; n < RECORDS_MAX && rowm_head(store).length < bytes; n++) {
        u32 most = n % 50 == 49 ? PAYLOAD_BYTES_MAX : n % 5 == 4 ? 60000 : 3000;
        struct str content = {payload, 1 + test_random_below(random, most)};
        struct rowm_write write = {.txid = sha256_of((struct str){(const u8 *)&n, sizeof n}),
                                   .kind = ROWM_EVENTS,
                                   .owner = n,
                                   .parent = ROWM_NONE,
                                   .payload = content};
        written[n] = (struct written){rowm_head(store).length, content.len};
        store_u32(payload, n);
        CHECK(sov_rowm_write(store, &write, NULL, &fault) == SOV_OK);
    }
    rowm_close(store);
    return n;
}

// A payload longer than what the second thread takes is named by another message.
static void expect_found(const struct written *first) {
    struct rowm_report report;
    struct sov_fault fault = {0};
    char memory[100];
    struct text t = TEXT_OVER_ARRAY(memory);
    text_format(&t, "the log does not verify at byte %llu%c", first->entry,
                first->bytes > DEFERRED_BYTES_MAX ? ';' : ':');
    CHECK(sov_rowm_verify(&memory_disk, NULL, &report, &fault) == SOV_ERR_INTEGRITY);
    struct str wanted = {(const u8 *)memory, t.len};
    CHECK_MSG(str_starts_with(str_from_z(fault.message), wanted), "%.*s not: %s", STR_ARG(wanted),
              fault.message);
}

static u8 *draw_byte(const struct written *w, struct test_random *random) {
    return disk.log + w->entry + META_BYTES + test_random_below(random, (u32)w->bytes);
}

static void a_long_log(void) {
    u64 megabytes = 12, seed = 20261201;
    const char *option = test_option("MEGABYTES");
    if (option != NULL) CHECK(text_parse_u64(str_from_z(option), &megabytes) && megabytes < 4096);
    struct test_random random = {seed};
    memset(&disk, 0, sizeof disk);
    memory_disk = log_disk_of(&disk);
    disk.capacity = (megabytes + 1) << 20;
    disk.log = platform_memory_map((usize)disk.capacity);
    if (disk.log == NULL) {
        test_skip("too little memory");
        return;
    }
    u32 n = write_log(megabytes << 20, &random);
    struct rowm_report report;
    struct sov_fault fault = {0};
    CHECK_MSG(sov_rowm_verify(&memory_disk, NULL, &report, &fault) == SOV_OK, "%s", fault.message);
    CHECK(report.head.n_records == n + 1 && report.head.length >= megabytes << 20);
    for (u32 i = 0; i < PLACES; i++) { // a later one first, then one in front of it too
        u32 first = test_random_below(&random, n - 1);
        u32 second = first + 1 + test_random_below(&random, n - first - 1);
        u8 *later = draw_byte(&written[second], &random);
        u8 *earlier = draw_byte(&written[first], &random);
        *later ^= 0x10;
        expect_found(&written[second]);
        *earlier ^= 0x10;
        expect_found(&written[first]);
        *later ^= 0x10;
        *earlier ^= 0x10;
    }
    CHECK(sov_rowm_verify(&memory_disk, NULL, &report, &fault) == SOV_OK);
    test_note("seed %llu: %u records in %llu bytes", seed, n, report.head.length);
    platform_memory_unmap(disk.log, (usize)disk.capacity);
}

static const struct test_case cases[] = {{"a_long_log", a_long_log}};

int program_main(const struct platform_start *start) {
    return test_main(start, "test_store_threads", cases, COUNT_OF(cases));
}
