// SPDX-License-Identifier: Apache-2.0
// The KV allocator: limits, ownership, exhaustion, and a random walk against a simple model of it.
#include "freestanding/mem.h"
#include "schedule/kv_allocator.h"
#include "test.h"

#define SEED 20240131u

static const struct kv_config small = {
    .n_layer = 2, .n_head_kv = 3, .head_dim = 8, .n_sequences = 4, .max_blocks = 6, .n_blocks = 10};

struct fixture {
    struct kv_allocator kv;
    void *memory;
    usize bytes;
};

static void open_fixture(struct fixture *f, const struct kv_config *config, bool shuffle) {
    struct sov_fault fault = {0};
    f->bytes = (usize)kv_memory_bytes(config);
    f->memory = platform_memory_map(f->bytes);
    assert(f->bytes > 0 && f->memory != NULL);
    struct arena arena = arena_over(f->memory, f->bytes);
    enum sov_status status = kv_create(&f->kv, config, shuffle, 7, &arena, &fault);
    CHECK_MSG(status == SOV_OK, "%s", fault.message);
    kv_assert_consistent(&f->kv);
}

static void close_fixture(struct fixture *f) { platform_memory_unmap(f->memory, f->bytes); }

static void layout(void) {
    struct fixture f;
    open_fixture(&f, &small, false);
    u64 token = 3 * 8 * 2, page = 16 * token;
    struct kv_layer layer0 = kv_layer_view(&f.kv, 0), layer1 = kv_layer_view(&f.kv, 1);
    CHECK(layer0.token_stride == token && layer0.page_stride == page);
    CHECK(layer1.k == layer0.k + 10 * page);
    CHECK(layer0.v >= layer0.k + 2 * 10 * page); // the planes do not overlap
    CHECK((usize)layer0.k % 64 == 0 && (usize)layer0.v % 64 == 0);
    CHECK(layer0.max_blocks == 6);
    close_fixture(&f);
}

static void allocate_and_append(void) {
    struct fixture f;
    struct sov_fault fault = {0};
    open_fixture(&f, &small, false);
    CHECK(kv_allocate_blocks(&f.kv, 1, 17, &fault) == SOV_OK); // two blocks
    CHECK(f.kv.tables[1 * 6 + 0] == 0 && f.kv.tables[1 * 6 + 1] == 1);
    CHECK(kv_allocate_blocks(&f.kv, 1, 32, &fault) == SOV_OK); // they suffice
    CHECK(kv_statistics_of(&f.kv).n_free == 8);
    CHECK(kv_append_tokens(&f.kv, 1, 32, &fault) == SOV_OK);
    CHECK(kv_length(&f.kv, 1) == 32);
    CHECK(kv_append_tokens(&f.kv, 1, 1, &fault) == SOV_ERR_LIMIT); // beyond its blocks
    CHECK(kv_length(&f.kv, 1) == 32);
    struct sov_fault overflow = {0};
    CHECK(kv_append_tokens(&f.kv, 1, 0xffffffff, &overflow) == SOV_ERR_LIMIT);
    CHECK(kv_length(&f.kv, 1) == 32);
    kv_assert_consistent(&f.kv);
    close_fixture(&f);
}

static void exhaustion_changes_nothing(void) {
    struct fixture f;
    struct sov_fault fault = {0};
    open_fixture(&f, &small, false);
    CHECK(kv_allocate_blocks(&f.kv, 0, 6 * 16, &fault) == SOV_OK);
    CHECK(kv_allocate_blocks(&f.kv, 1, 3 * 16, &fault) == SOV_OK);
    CHECK(kv_allocate_blocks(&f.kv, 2, 2 * 16, &fault) == SOV_ERR_KV_EXHAUSTED);
    CHECK(f.kv.n_free == 1 && f.kv.n_owned[2] == 0);
    struct sov_fault too_long = {0};
    CHECK(kv_allocate_blocks(&f.kv, 2, 6 * 16 + 1, &too_long) == SOV_ERR_LIMIT);
    struct sov_fault huge = {0};
    CHECK(kv_allocate_blocks(&f.kv, 2, 0xffffffff, &huge) == SOV_ERR_LIMIT);
    CHECK(f.kv.n_free == 1 && f.kv.n_owned[2] == 0);
    kv_assert_consistent(&f.kv);
    close_fixture(&f);
}

static void ownership(void) {
    struct fixture f;
    open_fixture(&f, &small, false);
    struct sov_fault fault = {0};
    CHECK(kv_allocate_blocks(&f.kv, 0, 32, &fault) == SOV_OK); // blocks 0 and 1
    CHECK(kv_allocate_blocks(&f.kv, 1, 16, &fault) == SOV_OK); // block 2
    CHECK(kv_append_tokens(&f.kv, 0, 10, &fault) == SOV_OK);
    const struct {
        const char *name;
        u32 sequence, block;
        enum sov_status expected;
    } cases[] = {
        {"another sequence's block", 0, 2, SOV_ERR_KV_OWNER},
        {"a free block", 0, 5, SOV_ERR_KV_OWNER},
        {"no such block", 0, 10, SOV_ERR_ARGUMENT},
        {"no such sequence", 4, 0, SOV_ERR_ARGUMENT},
        {"not the last block", 0, 0, SOV_ERR_STATE},
        {"the last block", 0, 1, SOV_OK},
        {"the last block again", 0, 1, SOV_ERR_KV_OWNER},
        {"a block with committed tokens", 0, 0, SOV_ERR_STATE},
    };
    for (u32 i = 0; i < COUNT_OF(cases); i++) {
        struct sov_fault found = {0};
        enum sov_status status = kv_free_block(&f.kv, cases[i].sequence, cases[i].block, &found);
        CHECK_MSG(status == cases[i].expected, "%s: %s, %s", cases[i].name, status_name(status),
                  found.message);
        kv_assert_consistent(&f.kv);
    }
    CHECK(kv_release(&f.kv, 9, NULL) == SOV_ERR_ARGUMENT);
    CHECK(kv_release(&f.kv, 0, NULL) == SOV_OK && kv_length(&f.kv, 0) == 0);
    CHECK(kv_release(&f.kv, 0, NULL) == SOV_OK); // nothing to give back
    CHECK(kv_statistics_of(&f.kv).n_free == 9);
    close_fixture(&f);
}

static void limits(void) {
    struct kv_config bad[] = {small, small, small, small, small, small, small};
    bad[0].n_sequences = SOV_MAX_SEQS + 1;
    bad[1].n_head_kv = SOV_MAX_HEADS + 1;
    bad[2].n_blocks = 0;
    bad[3].n_blocks = KV_BLOCKS_MAX + 1;
    bad[4].max_blocks = 0;
    bad[5].head_dim = OP_HEAD_DIM_MAX + 1;
    bad[6].n_layer = 0;
    for (u32 i = 0; i < COUNT_OF(bad); i++) {
        struct kv_allocator kv;
        struct sov_fault fault = {0};
        struct arena arena = arena_over(NULL, 0);
        CHECK_MSG(kv_memory_bytes(&bad[i]) == 0, "configuration %u", i);
        CHECK(kv_create(&kv, &bad[i], false, 0, &arena, &fault) == SOV_ERR_LIMIT);
    }
    struct kv_config largest = small;
    largest.n_sequences = SOV_MAX_SEQS;
    struct fixture f;
    open_fixture(&f, &largest, false);
    CHECK(kv_allocate_blocks(&f.kv, SOV_MAX_SEQS - 1, 1, NULL) == SOV_OK);
    kv_assert_consistent(&f.kv);
    close_fixture(&f);
    struct kv_allocator kv; // an arena that is one byte too small
    usize bytes = (usize)kv_memory_bytes(&small) / 2;
    void *memory = platform_memory_map(bytes);
    struct arena arena = arena_over(memory, bytes);
    CHECK(kv_create(&kv, &small, false, 0, &arena, NULL) == SOV_ERR_MEMORY);
    platform_memory_unmap(memory, bytes);
}

static void shuffled(void) {
    struct fixture f;
    struct kv_config config = small;
    config.n_blocks = 100;
    config.max_blocks = 100;
    open_fixture(&f, &config, true);
    CHECK(kv_allocate_blocks(&f.kv, 0, 1600, NULL) == SOV_OK);
    u32 in_place = 0;
    for (u32 i = 0; i < 100; i++) in_place += f.kv.tables[i] == i;
    CHECK_MSG(in_place < 20, "%u of 100 blocks are where they would be unshuffled", in_place);
    kv_assert_consistent(&f.kv); // every block once
    close_fixture(&f);
}

// Every operation against counts kept beside it; contents are checked by writing an owner's mark
// into each block of the cache.
static void random_walk(void) {
    struct fixture f;
    struct test_random random = {SEED};
    open_fixture(&f, &small, true);
    u32 owned[4] = {0}, length[4] = {0}, free_blocks = 10;
    for (u32 step = 0; step < 20000; step++) {
        u32 s = test_random_below(&random, 4);
        u32 choice = test_random_below(&random, 8);
        if (choice < 4) {
            u32 tokens = test_random_below(&random, 120);
            u32 wanted = (tokens + 15) / 16;
            enum sov_status status = kv_allocate_blocks(&f.kv, s, tokens, NULL);
            if (wanted > 6) {
                CHECK(status == SOV_ERR_LIMIT);
            } else if (wanted > owned[s] && wanted - owned[s] > free_blocks) {
                CHECK(status == SOV_ERR_KV_EXHAUSTED);
            } else {
                CHECK(status == SOV_OK);
                u32 gained = wanted > owned[s] ? wanted - owned[s] : 0;
                for (u32 i = 0; i < gained; i++) {
                    u32 block = f.kv.tables[s * 6 + owned[s] + i];
                    memset(f.kv.k_plane + block * f.kv.page_stride, (int)s, f.kv.page_stride);
                }
                owned[s] += gained;
                free_blocks -= gained;
            }
        } else if (choice == 4 && length[s] > 0) {
            u32 n = test_random_below(&random, length[s] + 1);
            u32 kept = (n + 15) / 16;
            CHECK(kv_truncate(&f.kv, s, length[s] + 1, NULL) == SOV_ERR_ARGUMENT);
            CHECK(kv_truncate(&f.kv, s, n, NULL) == SOV_OK);
            free_blocks += owned[s] - kept;
            owned[s] = kept;
            length[s] = n;
        } else if (choice < 6) {
            u32 n = test_random_below(&random, 20);
            bool fits = length[s] + n <= owned[s] * 16;
            CHECK((kv_append_tokens(&f.kv, s, n, NULL) == SOV_OK) == fits);
            if (fits) length[s] += n;
        } else if (choice == 6 && owned[s] > 0) {
            u32 last = f.kv.tables[s * 6 + owned[s] - 1];
            bool in_use = length[s] > (owned[s] - 1) * 16;
            CHECK((kv_free_block(&f.kv, s, last, NULL) == SOV_OK) == !in_use);
            if (!in_use) owned[s]--, free_blocks++;
        } else if (choice == 7) {
            CHECK(kv_release(&f.kv, s, NULL) == SOV_OK);
            free_blocks += owned[s];
            owned[s] = length[s] = 0;
        }
        CHECK(f.kv.n_free == free_blocks && kv_length(&f.kv, s) == length[s]);
        kv_assert_consistent(&f.kv);
        for (u32 i = 0; i < owned[s]; i++) {
            const u8 *block = f.kv.k_plane + f.kv.tables[s * 6 + i] * f.kv.page_stride;
            CHECK(block[0] == s && block[f.kv.page_stride - 1] == s);
        }
    }
    struct kv_statistics statistics = kv_statistics_of(&f.kv);
    CHECK(statistics.n_allocated - statistics.n_freed == 10 - free_blocks);
    CHECK(statistics.n_used_peak == 10);
    close_fixture(&f);
}

static const struct test_case cases[] = {
    {"layout", layout},
    {"allocate and append", allocate_and_append},
    {"exhaustion changes nothing", exhaustion_changes_nothing},
    {"ownership", ownership},
    {"limits", limits},
    {"shuffled", shuffled},
    {"random walk", random_walk},
};

int program_main(const struct platform_start *start) {
    return test_main(start, "test_kv", cases, COUNT_OF(cases));
}
