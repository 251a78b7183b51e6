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

// --- shared blocks ---

static const struct kv_key root = {{1}};

static void fill(struct fixture *f, u32 sequence, u32 n_tokens, u32 mark) {
    CHECK(kv_allocate_blocks(&f->kv, sequence, n_tokens, NULL) == SOV_OK);
    for (u32 t = kv_length(&f->kv, sequence); t < n_tokens; t++) {
        u32 block = f->kv.tables[sequence * 6 + t / 16];
        u64 at = block * f->kv.page_stride + t % 16 * f->kv.token_stride;
        for (u32 layer = 0; layer < 2; layer++) {
            store_u32(f->kv.k_plane + layer * f->kv.layer_stride + at, mark + t + 1000 * layer);
            store_u32(f->kv.v_plane + layer * f->kv.layer_stride + at, mark + t + 5000 * layer);
        }
    }
    u32 missing = n_tokens - kv_length(&f->kv, sequence);
    CHECK(kv_append_tokens(&f->kv, sequence, missing, NULL) == SOV_OK);
}

static bool holds(const struct fixture *f, u32 sequence, u32 begin, u32 end, u32 mark) {
    bool right = true;
    for (u32 t = begin; t < end; t++) {
        u32 block = f->kv.tables[sequence * 6 + t / 16];
        u64 at = block * f->kv.page_stride + t % 16 * f->kv.token_stride;
        for (u32 layer = 0; layer < 2; layer++) {
            const u8 *k = f->kv.k_plane + layer * f->kv.layer_stride + at;
            const u8 *v = f->kv.v_plane + layer * f->kv.layer_stride + at;
            right = right && load_u32(k) == mark + t + 1000 * layer;
            right = right && load_u32(v) == mark + t + 5000 * layer;
        }
    }
    return right;
}

static void sharing(void) {
    struct fixture f;
    open_fixture(&f, &small, false);
    u32 tokens[32], other[16], block = 99;
    for (u32 i = 0; i < 32; i++) tokens[i] = i;
    for (u32 i = 0; i < 16; i++) other[i] = i < 5 ? i : 77;
    fill(&f, 0, 20, 100);
    kv_publish(&f.kv, 0, 0, &root, tokens, 16);
    struct kv_key next = {{2}};
    kv_publish(&f.kv, 0, 1, &next, tokens + 16, 4); // in progress
    // Found by key and tokens, as far as they are the same.
    CHECK(kv_find(&f.kv, &root, tokens, 16, &block) == 16 && block == 0);
    CHECK(kv_find(&f.kv, &root, other, 16, &block) == 5);
    CHECK(kv_find(&f.kv, &root, tokens, 7, &block) == 7);
    CHECK(kv_find(&f.kv, &next, tokens + 16, 16, &block) == 4 && block == 1);
    CHECK(kv_find(&f.kv, &next, tokens, 16, &block) == 0);
    struct kv_key third = {{3}};
    CHECK(kv_find(&f.kv, &third, tokens, 16, &block) == 0);
    // Two tables, one block; the one in progress is copied when either is written to.
    CHECK(kv_share(&f.kv, 1, 0, 16, NULL) == SOV_OK && kv_share(&f.kv, 1, 1, 3, NULL) == SOV_OK);
    CHECK(kv_length(&f.kv, 1) == 19 && f.kv.blocks[0].refs == 2 && f.kv.blocks[1].refs == 2);
    CHECK(kv_share(&f.kv, 1, 0, 16, NULL) == SOV_ERR_STATE);     // not at a border
    CHECK(kv_share(&f.kv, 2, 0, 17, NULL) == SOV_ERR_ARGUMENT);  // more than it has
    CHECK(kv_share(&f.kv, 2, 5, 1, NULL) == SOV_ERR_ARGUMENT);   // not in the index
    CHECK(kv_share(&f.kv, 2, 100, 1, NULL) == SOV_ERR_ARGUMENT); // no such block
    kv_assert_consistent(&f.kv);
    fill(&f, 1, 30, 900); // copies 3 tokens of block 1
    CHECK(f.kv.tables[6 + 0] == 0 && f.kv.tables[6 + 1] != 1 && f.kv.blocks[1].refs == 1);
    CHECK(holds(&f, 1, 0, 19, 100) && holds(&f, 1, 19, 30, 900) && holds(&f, 0, 0, 20, 100));
    CHECK(kv_statistics_of(&f.kv).n_copied == 1);
    fill(&f, 0, 25, 500); // its own again: leaves the index, is not copied
    CHECK(f.kv.tables[1] == 1 && kv_find(&f.kv, &next, tokens + 16, 16, &block) == 0);
    CHECK(holds(&f, 0, 0, 20, 100) && holds(&f, 0, 20, 25, 500) && holds(&f, 1, 0, 19, 100));
    kv_assert_consistent(&f.kv);
    // A shared block is free when nobody has it and nobody can find it.
    CHECK(kv_free_block(&f.kv, 2, 0, NULL) == SOV_ERR_KV_OWNER);
    CHECK(kv_release(&f.kv, 0, NULL) == SOV_OK && f.kv.blocks[0].refs == 1);
    CHECK(kv_release(&f.kv, 1, NULL) == SOV_OK && f.kv.blocks[0].refs == 0);
    CHECK(kv_free_block(&f.kv, 0, 0, NULL) == SOV_ERR_KV_OWNER); // twice
    struct kv_statistics statistics = kv_statistics_of(&f.kv);
    CHECK(statistics.n_idle == 1 && statistics.n_free == 10);
    CHECK(kv_share(&f.kv, 3, 0, 16, NULL) == SOV_OK && holds(&f, 3, 0, 16, 100)); // still there
    CHECK(kv_statistics_of(&f.kv).n_idle == 0);
    CHECK(kv_release(&f.kv, 3, NULL) == SOV_OK);
    kv_forget_idle(&f.kv);
    CHECK(kv_find(&f.kv, &root, tokens, 16, &block) == 0 && f.kv.n_free == 10);
    kv_assert_consistent(&f.kv);
    close_fixture(&f);
}

// The least recently used block goes first, and only when no free one is left.
static void eviction(void) {
    struct fixture f;
    open_fixture(&f, &small, false);
    u32 tokens[16] = {0}, block = 0;
    for (u32 i = 0; i < 4; i++) { // four idle blocks, used in this order
        struct kv_key key = {{(u8)(10 + i)}};
        fill(&f, 0, 16, i);
        kv_publish(&f.kv, 0, 0, &key, tokens, 16);
        CHECK(kv_release(&f.kv, 0, NULL) == SOV_OK);
    }
    struct kv_key used = {{10}};
    CHECK(kv_find(&f.kv, &used, tokens, 16, &block) == 16);
    CHECK(kv_share(&f.kv, 1, block, 16, NULL) == SOV_OK); // 10 is used once more
    CHECK(kv_release(&f.kv, 1, NULL) == SOV_OK);
    CHECK(kv_allocate_blocks(&f.kv, 2, 6 * 16, NULL) == SOV_OK); // the six free ones
    CHECK(kv_statistics_of(&f.kv).n_evicted == 0);
    static const u8 order[] = {11, 12, 13, 10};
    for (u32 i = 0; i < 4; i++) {
        CHECK(kv_allocate_blocks(&f.kv, 3, (i + 1) * 16, NULL) == SOV_OK);
        for (u32 k = 0; k < 4; k++) {
            struct kv_key key = {{order[k]}};
            CHECK((kv_find(&f.kv, &key, tokens, 16, &block) == 16) == (k > i));
        }
        kv_assert_consistent(&f.kv);
    }
    CHECK(kv_allocate_blocks(&f.kv, 1, 1, NULL) == SOV_ERR_KV_EXHAUSTED);
    close_fixture(&f);
}

static void spilling(void) {
    struct fixture f;
    struct kv_config config = small;
    config.n_spill = 3;
    open_fixture(&f, &config, true);
    fill(&f, 0, 40, 100);
    fill(&f, 1, 16, 300);
    CHECK(kv_swap_in(&f.kv, 0, NULL) == SOV_ERR_STATE &&
          kv_swap_out(&f.kv, 2, NULL) == SOV_ERR_STATE);
    CHECK(kv_swap_out(&f.kv, 0, NULL) == SOV_OK && f.kv.n_free == 9 && f.kv.n_spill_free == 0);
    kv_assert_consistent(&f.kv);
    CHECK(kv_swap_out(&f.kv, 0, NULL) == SOV_ERR_STATE); // twice
    CHECK(kv_swap_out(&f.kv, 1, NULL) == SOV_ERR_KV_EXHAUSTED);
    CHECK(kv_allocate_blocks(&f.kv, 0, 41, NULL) == SOV_ERR_STATE && kv_length(&f.kv, 0) == 40);
    CHECK(kv_free_block(&f.kv, 0, 0, NULL) == SOV_ERR_KV_OWNER);
    CHECK(kv_allocate_blocks(&f.kv, 2, 6 * 16, NULL) == SOV_OK);
    CHECK(kv_allocate_blocks(&f.kv, 3, 16, NULL) == SOV_OK);
    CHECK(kv_swap_in(&f.kv, 0, NULL) == SOV_ERR_KV_EXHAUSTED && f.kv.spilled[0]);
    CHECK(kv_release(&f.kv, 2, NULL) == SOV_OK);
    CHECK(kv_swap_in(&f.kv, 0, NULL) == SOV_OK && f.kv.n_spill_free == 3);
    CHECK(holds(&f, 0, 0, 40, 100) && holds(&f, 1, 0, 16, 300));
    kv_assert_consistent(&f.kv);
    CHECK(kv_swap_out(&f.kv, 0, NULL) == SOV_OK && kv_release(&f.kv, 0, NULL) == SOV_OK);
    CHECK(f.kv.n_spill_free == 3 && !f.kv.spilled[0]); // ended while it was spilled
    kv_assert_consistent(&f.kv);
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
    {"sharing", sharing},
    {"eviction", eviction},
    {"spilling", spilling},
};

int program_main(const struct platform_start *start) {
    return test_main(start, "test_kv", cases, COUNT_OF(cases));
}
