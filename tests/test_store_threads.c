// SPDX-License-Identifier: Apache-2.0
// Verification of a long log, whose payloads a second thread hashes (worm_hash.h): a store of many
// windows in memory, as it is, and with payloads changed, of which the first is named.
// MEGABYTES=n sets how long. `make tsan` runs it under ThreadSanitizer.
#include "freestanding/mem.h"
#include "record/rowm.h"
#include "test.h"

#define PAYLOAD_BYTES_MAX (200u << 10) // longer ones than a window's jobs may be are among them
#define DEFERRED_BYTES_MAX (128u << 10)
#define META_BYTES 293 // a record's bytes in front of its payload (docs/format.md)
#define RECORDS_MAX 20000
#define PLACES 6

// --- a disk: one file in memory ---

static struct {
    u8 *log;
    u64 bytes, capacity;
    bool exists;
} disk;

static bool disk_is_missing(void *context, const char *name) {
    (void)context;
    (void)name;
    return !disk.exists;
}

static enum sov_status disk_open(void *context, const char *name, enum rowm_open_mode mode,
                                 int *file, struct sov_fault *fault) {
    (void)context;
    (void)name;
    (void)fault;
    *file = 1;
    if (mode == ROWM_OPEN_CREATE) disk.bytes = 0;
    return SOV_OK;
}

static void disk_close(void *context, int file) {
    (void)context;
    (void)file;
}

static enum sov_status disk_size(void *context, int file, u64 *bytes, struct sov_fault *fault) {
    (void)context;
    (void)file;
    (void)fault;
    *bytes = disk.bytes;
    return SOV_OK;
}

static enum sov_status disk_read(void *context, int file, u64 offset, void *buffer, usize bytes,
                                 usize *n_read, struct sov_fault *fault) {
    (void)context;
    (void)file;
    (void)fault;
    *n_read = (usize)MIN((u64)bytes, disk.bytes - MIN(offset, disk.bytes));
    memcpy(buffer, disk.log + MIN(offset, disk.bytes), *n_read);
    return SOV_OK;
}

static enum sov_status disk_write(void *context, int file, u64 offset, struct str bytes,
                                  struct sov_fault *fault) {
    (void)context;
    (void)file;
    if (offset + bytes.len > disk.capacity) return fault_set(fault, SOV_ERR_IO, "full");
    memcpy(disk.log + offset, bytes.data, bytes.len);
    disk.bytes = MAX(disk.bytes, offset + bytes.len);
    return SOV_OK;
}

static enum sov_status disk_truncate(void *context, int file, u64 bytes, struct sov_fault *fault) {
    (void)context;
    (void)file;
    (void)fault;
    disk.bytes = MIN(disk.bytes, bytes);
    return SOV_OK;
}

static enum sov_status disk_sync(void *context, int file, struct sov_fault *fault) {
    (void)context;
    (void)file;
    (void)fault;
    return SOV_OK;
}

static enum sov_status disk_rename(void *context, const char *from, const char *to,
                                   struct sov_fault *fault) {
    (void)context;
    (void)from;
    (void)to;
    (void)fault;
    disk.exists = true;
    return SOV_OK;
}

static enum sov_status disk_sync_names(void *context, struct sov_fault *fault) {
    (void)context;
    (void)fault;
    return SOV_OK;
}

static const struct rowm_disk memory_disk = {
    .is_missing = disk_is_missing,
    .open = disk_open,
    .close = disk_close,
    .size = disk_size,
    .read_at = disk_read,
    .write_at = disk_write,
    .truncate = disk_truncate,
    .sync = disk_sync,
    .rename = disk_rename,
    .sync_names = disk_sync_names,
};

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
