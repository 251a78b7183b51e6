// SPDX-License-Identifier: Apache-2.0
// SHA-256: the examples of FIPS 180-4 and the million 'a' of NIST, every length around block
// borders and every way of cutting the input, and the two block functions against each other. For
// tests/test_sha256.py, which has NIST's files and another implementation:
//
//   digests FILE   FILE holds messages, each behind its length (u32); a line for each, with the
//                  digest by the portable block function and by the one of the CPU ("-": it has
//                  none)
//   monte SEED     the Monte Carlo test of NIST's SHAVS, 6.4: 100 lines of the same kind
#include "freestanding/mem.h"
#include "record/sha256.h"
#include "test.h"

static void expect(struct str input, const char *hex) {
    struct sha256_digest digest = sha256_of(input);
    char found[SHA256_HEX_BYTES + 1];
    sha256_to_hex(&digest, found);
    CHECK_MSG(str_equal(str_from_z(found), str_from_z(hex)), "%s, not %s", found, hex);
}

static void known(void) {
    expect(STR(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    expect(STR("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    expect(STR("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
           "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    expect(STR("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmno"
               "ijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu"),
           "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
    static u8 million[1000000];
    memset(million, 'a', sizeof million);
    expect((struct str){million, sizeof million},
           "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

static void every_cut(void) {
    u8 data[300];
    for (u32 i = 0; i < sizeof data; i++) data[i] = (u8)(i * 37 + 11);
    for (usize len = 0; len <= sizeof data; len += len < 140 ? 1 : 13) {
        struct sha256_digest whole = sha256_of((struct str){data, len});
        for (usize cut = 0; cut <= len; cut += 1 + cut / 16) {
            struct sha256 h;
            sha256_begin(&h);
            sha256_update(&h, (struct str){data, cut});
            for (usize at = cut; at < len; at += 7) { // then in sevens
                sha256_update(&h, (struct str){data + at, MIN(len - at, (usize)7)});
            }
            struct sha256_digest parts = sha256_end(&h);
            CHECK_MSG(sha256_equal(&whole, &parts), "%llu bytes cut at %llu", (u64)len, (u64)cut);
        }
    }
}

static void both_block_functions(void) {
    if (!sha256_has_shani()) {
        test_skip("this CPU has no SHA instructions");
        return;
    }
    static u8 data[64 * 9];
    struct test_random random = {5};
    for (u32 round = 0; round < 500; round++) {
        u32 a[8], b[8];
        for (u32 i = 0; i < 8; i++) a[i] = b[i] = (u32)test_random_u64(&random);
        for (u32 i = 0; i < sizeof data; i++) data[i] = (u8)test_random_u64(&random);
        usize n = test_random_below(&random, 9);
        u32 misaligned = test_random_below(&random, 16);
        sha256_blocks_portable(a, data + misaligned, n);
        sha256_blocks_shani(b, data + misaligned, n);
        CHECK(memcmp(a, b, sizeof a) == 0);
    }
}

// Two messages at once against each alone: every pair of lengths around the borders of blocks.
static void pairs(void) {
    static u8 data[1200];
    struct test_random random = {6};
    for (u32 i = 0; i < sizeof data; i++) data[i] = (u8)test_random_u64(&random);
    for (usize a = 0; a <= 400; a += a < 130 ? 1 : 31) {
        for (usize b = 0; b <= 700; b += b < 130 ? 3 : 47) {
            const struct str both[2] = {{data + a % 5, a}, {data + 401 + b % 7, b}};
            struct sha256_digest digests[2];
            sha256_pair(both, digests);
            for (u32 i = 0; i < 2; i++) {
                struct sha256_digest alone = sha256_of(both[i]);
                CHECK_MSG(sha256_equal(&digests[i], &alone), "%llu and %llu bytes, message %u",
                          (u64)a, (u64)b, i);
            }
        }
    }
}

static void hex(void) {
    struct sha256_digest digest = sha256_of(STR("abc")), parsed = {0};
    CHECK(sha256_from_hex(STR("BA7816BF8F01CFEA414140DE5DAE2223B00361A396177A9CB410FF61F20015ad"),
                          &parsed));
    CHECK(sha256_equal(&digest, &parsed));
    static const char *const bad[] = {
        "",
        "ba",
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015a",
        "ga7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad0",
    };
    for (u32 i = 0; i < COUNT_OF(bad); i++) {
        CHECK(!sha256_from_hex(str_from_z(bad[i]), &parsed));
        CHECK(sha256_equal(&digest, &parsed)); // untouched
    }
}

// --- for tests/test_sha256.py ---

static struct sha256_digest digest_by(sha256_blocks_fn *blocks, struct str message) {
    struct sha256 h;
    sha256_begin(&h);
    h.blocks = blocks;
    sha256_update(&h, message);
    return sha256_end(&h);
}

static sha256_blocks_fn *block_function(u32 which) {
    if (which == 0) return sha256_blocks_portable;
    return sha256_has_shani() ? sha256_blocks_shani : NULL;
}

static void say_digests(const struct sha256_digest digests[2]) {
    char found[2][SHA256_HEX_BYTES + 1] = {"-", "-"};
    for (u32 i = 0; i < 2; i++) {
        if (block_function(i) != NULL) sha256_to_hex(&digests[i], found[i]);
    }
    test_note("%s %s", found[0], found[1]);
}

static int digests_of_file(const char *path) {
    struct str file = test_read_file(path);
    for (usize at = 0; at + 4 <= file.len;) {
        u32 n = load_u32(file.data + at);
        at += 4;
        if (n > file.len - at) return 1;
        struct sha256_digest digests[2] = {0};
        for (u32 i = 0; i < 2; i++) {
            if (block_function(i) == NULL) continue;
            digests[i] = digest_by(block_function(i), (struct str){file.data + at, n});
        }
        say_digests(digests);
        at += n;
    }
    return 0;
}

#define MONTE_ROUNDS 100
#define MONTE_HASHES 1000

static int monte_carlo(const char *seed) {
    struct sha256_digest begin, seeds[2];
    if (!sha256_from_hex(str_from_z(seed), &begin)) return 2;
    seeds[0] = seeds[1] = begin;
    for (u32 round = 0; round < MONTE_ROUNDS; round++) {
        for (u32 i = 0; i < 2; i++) {
            if (block_function(i) == NULL) continue;
            struct sha256_digest last[3] = {seeds[i], seeds[i], seeds[i]};
            for (u32 k = 0; k < MONTE_HASHES; k++) {
                struct str message = {last[0].bytes, sizeof last};
                struct sha256_digest next = digest_by(block_function(i), message);
                last[0] = last[1], last[1] = last[2], last[2] = next;
            }
            seeds[i] = last[2];
        }
        say_digests(seeds);
    }
    return 0;
}

static const struct test_case cases[] = {
    {"known", known},
    {"every cut", every_cut},
    {"both block functions", both_block_functions},
    {"pairs", pairs},
    {"hex", hex},
};

int program_main(const struct platform_start *start) {
    if (start->n_args == 3 && str_equal(str_from_z(start->args[1]), STR("digests"))) {
        return digests_of_file(start->args[2]);
    }
    if (start->n_args == 3 && str_equal(str_from_z(start->args[1]), STR("monte"))) {
        return monte_carlo(start->args[2]);
    }
    return test_main(start, "test_sha256", cases, COUNT_OF(cases));
}
