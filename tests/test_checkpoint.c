// SPDX-License-Identifier: Apache-2.0
// Checkpoints in memory (checkpoint.h, T1 to T3): append once, receipts after the delay, a full
// table, and what is forgotten.
#include "freestanding/mem.h"
#include "record/checkpoint.h"
#include "test.h"

#define CAPACITY 3

struct fixture {
    struct checkpoint_memory memory;
    struct checkpoint_store store;
    u8 bytes[4096];
};

static void open_fixture(struct fixture *f, u32 delay) {
    struct arena arena = arena_over(f->bytes, (usize)checkpoint_memory_bytes(CAPACITY));
    assert(checkpoint_memory_bytes(CAPACITY) <= sizeof f->bytes);
    struct sov_fault fault = {0};
    CHECK(checkpoint_memory_create(&f->memory, CAPACITY, delay, &arena, &fault) == SOV_OK);
    f->store = checkpoint_memory_store(&f->memory);
}

static enum sov_status begin(struct fixture *f, struct checkpoint_id id, const char *text) {
    struct sov_fault fault = {0};
    enum sov_status status = f->store.begin(f->store.context, &id, str_from_z(text), &fault);
    CHECK(status == fault.status);
    return status;
}

static enum sov_status poll(struct fixture *f, struct checkpoint_id id,
                            enum checkpoint_progress *progress,
                            struct checkpoint_receipt *receipt) {
    struct sov_fault fault = {0};
    enum sov_status status = f->store.poll(f->store.context, &id, progress, receipt, &fault);
    CHECK(status == fault.status);
    return status;
}

static void append_once(void) {
    static struct fixture f, other;
    struct checkpoint_id a = {7, 64, CHECKPOINT_BOUNDARY}, b = {7, 128, CHECKPOINT_BOUNDARY};
    struct checkpoint_id c = {7, 64, CHECKPOINT_SUSPEND}, d = {8, 64, CHECKPOINT_BOUNDARY};
    enum checkpoint_progress progress = CHECKPOINT_PENDING;
    struct checkpoint_receipt first, again, elsewhere;
    open_fixture(&f, 0);
    CHECK(poll(&f, a, &progress, &first) == SOV_ERR_STATE);
    CHECK(begin(&f, a, "bytes") == SOV_OK);
    CHECK(poll(&f, a, &progress, &first) == SOV_OK && progress == CHECKPOINT_DURABLE);
    CHECK(begin(&f, a, "bytes") == SOV_OK); // the same again
    CHECK(begin(&f, a, "other bytes") == SOV_ERR_INTEGRITY);
    CHECK(poll(&f, a, &progress, &again) == SOV_OK);
    CHECK(sha256_equal(&first.receipt_hash, &again.receipt_hash));
    CHECK(begin(&f, b, "bytes") == SOV_OK && begin(&f, c, "bytes") == SOV_OK);
    CHECK(begin(&f, d, "bytes") == SOV_ERR_LIMIT);
    f.store.forget(f.store.context, &b);
    f.store.forget(f.store.context, &b); // nobody: nothing happens
    CHECK(begin(&f, d, "bytes") == SOV_OK && f.memory.n_begun == 4);
    // T3: other ids give other receipts of the same bytes; another store gives the same.
    CHECK(poll(&f, d, &progress, &again) == SOV_OK);
    CHECK(!sha256_equal(&first.receipt_hash, &again.receipt_hash));
    CHECK(sha256_equal(&first.payload_hash, &again.payload_hash));
    CHECK(poll(&f, c, &progress, &again) == SOV_OK);
    CHECK(!sha256_equal(&first.receipt_hash, &again.receipt_hash));
    open_fixture(&other, 0);
    CHECK(begin(&other, b, "something before it") == SOV_OK && begin(&other, a, "bytes") == SOV_OK);
    CHECK(poll(&other, a, &progress, &elsewhere) == SOV_OK);
    CHECK(sha256_equal(&first.receipt_hash, &elsewhere.receipt_hash));
    struct sha256_digest expected = checkpoint_receipt_hash(&a, &first.payload_hash);
    CHECK(sha256_equal(&first.receipt_hash, &expected));
}

static void delayed(void) {
    static struct fixture f;
    struct checkpoint_id id = {1, 64, CHECKPOINT_BOUNDARY};
    enum checkpoint_progress progress = CHECKPOINT_DURABLE;
    struct checkpoint_receipt receipt;
    open_fixture(&f, 3);
    CHECK(begin(&f, id, "bytes") == SOV_OK);
    for (u32 i = 0; i < 3; i++) {
        CHECK(poll(&f, id, &progress, &receipt) == SOV_OK && progress == CHECKPOINT_PENDING);
    }
    CHECK(begin(&f, id, "bytes") == SOV_OK); // does not begin anew
    CHECK(poll(&f, id, &progress, &receipt) == SOV_OK && progress == CHECKPOINT_DURABLE);
}

static const struct test_case cases[] = {
    {"append_once", append_once},
    {"delayed", delayed},
};

int program_main(const struct platform_start *start) {
    return test_main(start, "test_checkpoint", cases, COUNT_OF(cases));
}
