// SPDX-License-Identifier: Apache-2.0
// The cases of the conformance suite, without a card: every kernel has some, the same seed makes
// the same images, the reference writes outputs alone, and it refuses what was planted to be
// refused. What `sov conform` makes of them is tests/test_conform.py.
#include "engine/conform_private.h"
#include "freestanding/mem.h"
#include "test.h"

#define IMAGE_BYTES (32u << 20)
#define HOST_BYTES (16u << 20)

static struct {
    u8 *before, *expected, *host;
    struct op_table reference;
} memory;

static struct conform_build build(const struct conform_case *item, u64 seed) {
    struct conform_build b = {.item = item, .reference = &memory.reference};
    conform_build(&b, seed);
    CHECK_MSG(b.image_bytes <= IMAGE_BYTES && b.host_bytes <= HOST_BYTES, "%s: %llu, %llu bytes",
              item->id, b.image_bytes, b.host_bytes);
    b.memory = 0x7f0000000000; // as a card would have it
    b.before = memory.before;
    b.expected = memory.expected;
    b.host = memory.host;
    conform_build(&b, seed);
    return b;
}

static struct sha256_digest digest_images(const struct conform_build *b) {
    struct sha256 h;
    sha256_begin(&h);
    sha256_update(&h, (struct str){b->before, b->image_bytes});
    sha256_update(&h, (struct str){b->expected, b->image_bytes});
    return sha256_end(&h);
}

// Runs `check` on every case: in the short form on the small ones.
static void for_all(void (*check)(const struct conform_case *item)) {
    bool full = test_option("FULL") != NULL;
    for (u32 kernel = 0; kernel < CUDA_KERNEL_COUNT; kernel++) {
        struct conform_case item;
        for (u32 i = 0; conform_case_get(kernel, i, &item); i++) {
            if (full || item.is_quick) check(&item);
        }
    }
}

static void every_kernel_has_cases(void) {
    static char seen[4096][CONFORM_ID_BYTES];
    u32 n = 0;
    for (u32 kernel = 0; kernel < CUDA_KERNEL_COUNT; kernel++) {
        struct conform_case item;
        u32 n_quick = 0, idx = 0;
        for (; conform_case_get(kernel, idx, &item); idx++) {
            n_quick += item.is_quick;
            CHECK(item.kernel == kernel && n < COUNT_OF(seen));
            memcpy(seen[n++], item.id, sizeof item.id);
        }
        CHECK_MSG(n_quick >= 3 && idx > n_quick, "%s: %u cases, %u of the short run",
                  cuda_kernel_name(kernel), idx, n_quick);
    }
    for (u32 i = 0; i < n; i++) { // an id is the identity of a case
        for (u32 j = 0; j < i; j++) {
            CHECK_MSG(!str_equal(str_from_z(seen[i]), str_from_z(seen[j])), "%s twice", seen[i]);
        }
    }
    test_note("%u cases", n);
}

static void check_repeats(const struct conform_case *item) {
    struct conform_build b = build(item, CONFORM_SEED);
    struct sha256_digest first = digest_images(&b);
    memset(memory.before, 0x11, b.image_bytes);
    memset(memory.expected, 0x22, b.image_bytes);
    memset(memory.host, 0x33, b.host_bytes);
    b = build(item, CONFORM_SEED);
    struct sha256_digest again = digest_images(&b);
    CHECK_MSG(sha256_equal(&first, &again), "%s: another image", item->id);
    b = build(item, CONFORM_SEED + 1);
    again = digest_images(&b);
    // A row may be nothing but what was planted.
    CHECK_MSG(b.is_refused || !sha256_equal(&first, &again), "%s: no effect of the seed", item->id);
}

static void the_seed_makes_the_images(void) { for_all(check_repeats); }

// The number behind " NAME=" in an id, or -1.
static i64 column(const struct conform_case *item, const char *name) {
    struct str id = str_from_z(item->id);
    char wanted[32];
    struct text t = TEXT_OVER_ARRAY(wanted);
    text_format(&t, " %s=", name);
    struct str start = {(const u8 *)t.data, t.len};
    for (usize i = 0; i < id.len; i++) {
        struct str rest = {id.data + i, id.len - i};
        if (!str_starts_with(rest, start)) continue;
        struct str number = {rest.data + start.len, 0};
        while (start.len + number.len < rest.len && number.data[number.len] != ' ') number.len++;
        i64 value = -1;
        CHECK(text_parse_i64(number, &value));
        return value;
    }
    return -1;
}

// The buffer of the image that a byte belongs to, or NULL for a guard.
static const struct conform_buffer *buffer_at(const struct conform_build *b, u64 at) {
    for (u32 i = 0; i < b->n_buffers; i++) {
        const struct conform_buffer *buffer = &b->buffers[i];
        if (buffer->role == CONFORM_HOST) continue;
        if (at >= buffer->off && at - buffer->off < buffer->bytes) return buffer;
    }
    return NULL;
}

static void check_outputs(const struct conform_case *item) {
    if (item->is_tensor) return; // held against a bound: nothing is expected to the bit
    struct conform_build b = build(item, CONFORM_SEED);
    u64 n_written = 0, n_wrong = 0;
    for (u64 i = 0; i < b.image_bytes; i++) {
        if (b.before[i] == b.expected[i]) continue;
        const struct conform_buffer *buffer = buffer_at(&b, i);
        n_written += buffer != &b.buffers[b.status];
        n_wrong += buffer == NULL || buffer->role != CONFORM_OUT;
    }
    CHECK_MSG(n_wrong == 0, "%s: the reference wrote %llu bytes that are no output", item->id,
              n_wrong);
    bool has_output = item->kernel != CUDA_KERNEL_finite;
    // One element may be so large that a sum does not change it.
    CHECK_MSG(b.is_refused || column(item, "n") == 1 || (n_written > 0) == has_output,
              "%s: %llu bytes written", item->id, n_written);
    for (u32 i = 0; i < b.n_buffers; i++) { // guards on both sides of each
        const struct conform_buffer *buffer = &b.buffers[i];
        if (buffer->role == CONFORM_HOST) continue;
        u32 n_guards = 0;
        for (u32 j = 1; j <= CONFORM_GUARD_BYTES; j++) {
            u64 behind = buffer->off + buffer->bytes - 1 + j;
            CHECK(buffer->off >= j && behind < b.image_bytes);
            n_guards += buffer_at(&b, buffer->off - j) == NULL && buffer_at(&b, behind) == NULL;
        }
        CHECK_MSG(n_guards == CONFORM_GUARD_BYTES, "%s: %s", item->id, buffer->name);
    }
    const u32 *status = (const u32 *)(const void *)(b.expected + b.buffers[b.status].off);
    u64 n_blocks = 0;
    for (u32 i = 0; i < b.n_launches; i++) {
        u32 grid[3];
        struct sov_fault fault = {0};
        CHECK(cuda_kernel_grid(b.launches[i].kernel, b.launches[i].counts, grid, &fault) == SOV_OK);
        n_blocks += cuda_kernel_blocks(grid);
    }
    CHECK(b.n_launches > 0 && b.launches[b.n_launches - 1].kernel ==
                                  (item->kernel == CUDA_KERNEL_flash_attention_paged_split
                                       ? CUDA_KERNEL_flash_attention_merge
                                       : item->kernel));
    CHECK_MSG(status[0] == b.is_refused && status[1] == n_blocks, "%s: status %u, %u", item->id,
              status[0], status[1]);
}

static void the_reference_writes_outputs_alone(void) { for_all(check_outputs); }

static u32 n_refused;

static void check_refusal(const struct conform_case *item) {
    struct conform_build b = build(item, CONFORM_SEED);
    bool is_planted = column(item, "bad") != -1 || column(item, "bad_k") != -1 ||
                      column(item, "bad_v") != -1;
    if (column(item, "at") != -1) { // of quantize: values 4 and 5 are finite
        is_planted = column(item, "value") >= 1 && column(item, "value") <= 3;
    }
    CHECK_MSG(b.is_refused == is_planted, "%s: refused %u", item->id, b.is_refused);
    n_refused += b.is_refused;
}

static void what_is_forbidden_is_refused(void) {
    n_refused = 0;
    for_all(check_refusal);
    test_note("%u cases are refused", n_refused);
    CHECK(n_refused >= 15);
}

static const struct test_case cases[] = {
    {"every_kernel_has_cases", every_kernel_has_cases},
    {"the_seed_makes_the_images", the_seed_makes_the_images},
    {"the_reference_writes_outputs_alone", the_reference_writes_outputs_alone},
    {"what_is_forbidden_is_refused", what_is_forbidden_is_refused},
};

int program_main(const struct platform_start *start) {
    memory.before = platform_memory_map(IMAGE_BYTES);
    memory.expected = platform_memory_map(IMAGE_BYTES);
    memory.host = platform_memory_map(HOST_BYTES);
    if (memory.before == NULL || memory.expected == NULL || memory.host == NULL) return 1;
    op_fill_reference(&memory.reference);
    return test_main(start, "test_conform", cases, COUNT_OF(cases));
}
