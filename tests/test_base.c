// SPDX-License-Identifier: Apache-2.0
// Tests of the freestanding base: arena, status and fault, memory functions, half-precision
// conversions, checked arithmetic.
#include "freestanding/arena.h"
#include "freestanding/mem.h"
#include "test.h"

#define SEED 20240611

static bool contains(const char *text, const char *part) {
    struct str t = str_from_z(text), p = str_from_z(part);
    for (usize i = 0; i + p.len <= t.len; i++) {
        if (str_starts_with((struct str){t.data + i, t.len - i}, p)) return true;
    }
    return false;
}

// --- arena ---

static void arena_hands_out_disjoint_aligned_blocks(void) {
    static u8 memory[4096];
    struct arena arena = arena_over(memory + 1, sizeof memory - 1); // deliberately misaligned
    struct test_random random = {SEED};
    const u8 *end = memory + 1;
    u32 n_blocks = 0;
    for (;;) {
        usize align = (usize)1 << test_random_below(&random, 8);
        usize bytes = test_random_below(&random, 100);
        usize used = arena.used;
        u8 *block = arena_alloc(&arena, bytes, align);
        if (block == NULL) {
            CHECK(arena.used == used); // a refusal takes nothing
            break;
        }
        CHECK((usize)block % align == 0);
        CHECK(block >= end);
        CHECK(block - end < (i64)align); // no more padding than needed
        CHECK(block + bytes <= memory + sizeof memory);
        end = block + bytes;
        n_blocks++;
    }
    CHECK(n_blocks > 20);
    CHECK(arena_left(&arena) == (usize)(memory + sizeof memory - end));
}

static void arena_takes_the_last_byte_and_no_more(void) {
    static _Alignas(64) u8 memory[64];
    struct arena arena = arena_over(memory, sizeof memory);
    CHECK(arena_alloc(&arena, 64, 1) == memory);
    CHECK(arena_left(&arena) == 0);
    CHECK(arena_alloc(&arena, 1, 1) == NULL);
    arena = arena_over(memory, sizeof memory);
    CHECK(arena_alloc(&arena, 65, 1) == NULL);
    CHECK(arena_alloc(&arena, (usize)-1, 1) == NULL);
    CHECK(arena_alloc(&arena, (usize)-64, 64) == NULL);
    CHECK(arena_alloc(&arena, 1, 1) == memory);
    CHECK(arena_alloc(&arena, (usize)-1, 64) == NULL); // padding plus size would wrap
    CHECK(arena.used == 1);
    arena = arena_over(NULL, 0);
    CHECK(arena_alloc(&arena, 0, 1) == NULL);
}

static void arena_arrays_are_checked_for_overflow(void) {
    static _Alignas(64) u8 memory[64];
    struct arena arena = arena_over(memory, sizeof memory);
    CHECK(arena_array(&arena, u32, 1ull << 62) == NULL); // 2^64 bytes
    CHECK(arena_array(&arena, u64, (1ull << 61) + 1) == NULL);
    CHECK(arena_array(&arena, u32, 17) == NULL);
    CHECK(arena_array(&arena, u32, 16) != NULL);
    struct sov_fault fault = {0};
    CHECK(arena_fault(&arena, &fault, "logits", 4) == SOV_ERR_MEMORY);
    CHECK_MSG(contains(fault.message, "logits: 4 bytes wanted, 0 of 64"), "%s", fault.message);
}

// Stops the program, if all is well.
static int use_sealed_arena(void) {
    static u8 memory[64];
    struct arena arena = arena_over(memory, sizeof memory);
    arena.sealed = true;
    return arena_alloc(&arena, 1, 1) == NULL;
}

// --- status ---

static void status_names_and_exit_codes(void) {
    static const struct {
        const char *name;
        enum sov_status status;
        int exit_code;
    } rows[] = {
        {"SOV_OK", SOV_OK, 0},
        {"SOV_ERR_USAGE", SOV_ERR_USAGE, 2},
        {"SOV_ERR_IO", SOV_ERR_IO, 1},
        {"SOV_ERR_MEMORY", SOV_ERR_MEMORY, 1},
        {"SOV_ERR_FORMAT", SOV_ERR_FORMAT, 3},
        {"SOV_ERR_UNSUPPORTED", SOV_ERR_UNSUPPORTED, 3},
        {"SOV_ERR_NON_FINITE", SOV_ERR_NON_FINITE, 1},
        {"SOV_ERR_INTERRUPTED", SOV_ERR_INTERRUPTED, 1},
        {"SOV_ERR_?", SOV_STATUS_COUNT, 1},
    };
    for (u32 i = 0; i < COUNT_OF(rows); i++) {
        CHECK_MSG(str_equal(str_from_z(status_name(rows[i].status)), str_from_z(rows[i].name)),
                  "%s instead of %s", status_name(rows[i].status), rows[i].name);
        CHECK_MSG(status_exit_code(rows[i].status) == rows[i].exit_code, "%s", rows[i].name);
    }
    for (u32 i = 0; i < SOV_STATUS_COUNT; i++) {
        CHECK_MSG(status_name((enum sov_status)i)[0] == 'S', "status %u has no name", i);
        CHECK_MSG(status_text((enum sov_status)i)[0] != 0, "status %u has no text", i);
    }
}

static void fault_keeps_the_first_failure(void) {
    struct sov_fault fault = {0};
    CHECK(fault_set(&fault, SOV_ERR_IO, "first %d", 1) == SOV_ERR_IO);
    CHECK(fault_set(&fault, SOV_ERR_FORMAT, "second") == SOV_ERR_FORMAT);
    CHECK(fault.status == SOV_ERR_IO);
    CHECK(contains(fault.message, "first 1"));
    CHECK(fault_set(NULL, SOV_ERR_IO, "nobody asks") == SOV_ERR_IO);
}

static void fault_messages_are_printable(void) {
    static const struct {
        const char *name;
        struct str raw;
        const char *printed;
    } rows[] = {
        {"plain", STR("general.name"), "general.name"},
        {"escape sequence", STR("a\033[31mb\r\n\t"), "a?[31mb???"},
        {"delete", STR("a\x7f"), "a?"},
        {"C1 control", STR("a\xc2\x9bz"), "a??z"},
        {"UTF-8 stays", STR("\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"),
         "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"},
        {"stray bytes", STR("\xff\x80\xc3"), "???"},
        {"surrogate", STR("\xed\xa0\x80"), "???"},
        {"no bytes", {NULL, 0}, ""},
    };
    for (u32 i = 0; i < COUNT_OF(rows); i++) {
        struct sov_fault fault = {0};
        CHECK(fault_set(&fault, SOV_ERR_FORMAT, "%.*s", STR_ARG(rows[i].raw)) == SOV_ERR_FORMAT);
        CHECK_MSG(str_equal(str_from_z(fault.message), str_from_z(rows[i].printed)), "%s: \"%s\"",
                  rows[i].name, fault.message);
    }
}

static void fault_messages_are_bounded(void) {
    struct sov_fault fault = {0};
    CHECK(fault_set(&fault, SOV_ERR_FORMAT, "%600s|", "x") == SOV_ERR_FORMAT);
    CHECK(str_from_z(fault.message).len == SOV_FAULT_BYTES - 1);
    // A character cut in half by the bound is not left as half a character.
    struct sov_fault cut = {0};
    CHECK(fault_set(&cut, SOV_ERR_FORMAT, "%510s%s", "x", "\xc3\xa9") == SOV_ERR_FORMAT);
    CHECK(cut.message[SOV_FAULT_BYTES - 2] == '?' && cut.message[SOV_FAULT_BYTES - 1] == 0);
}

// --- memory functions ---

#define MEM_BYTES 256 // blocks on both sides of the bound where mem.c changes its way

static void fill(u8 *bytes, usize n, u32 seed) {
    for (usize i = 0; i < n; i++) bytes[i] = (u8)(seed * 31 + i * 7 + 1);
}

static void expect_bytes(const char *what, const u8 *got, const u8 *wanted, usize n, u32 a, u32 b) {
    for (usize i = 0; i < n; i++) {
        if (got[i] == wanted[i]) continue;
        test_fail(__FILE__, __LINE__, "%s(%u, %u): byte %zu is %u, not %u", what, a, b, i, got[i],
                  wanted[i]);
        return;
    }
}

static void memmove_moves_every_overlap(void) {
    for (u32 from = 0; from < 24; from++) {
        for (u32 to = 0; to < 24; to++) {
            for (u32 n = 0; n < 150; n += n < 20 || (n > 55 && n < 75) ? 1 : 5) {
                u8 got[MEM_BYTES], before[MEM_BYTES], wanted[MEM_BYTES];
                fill(got, sizeof got, n);
                fill(before, sizeof before, n);
                fill(wanted, sizeof wanted, n);
                for (u32 i = 0; i < n; i++) wanted[to + i] = before[from + i];
                CHECK(memmove(got + to, got + from, n) == got + to);
                expect_bytes("memmove", got, wanted, sizeof got, from * 100 + to, n);
            }
        }
    }
}

static void memcpy_and_memset_touch_their_range_only(void) {
    for (u32 at = 0; at < 17; at++) {
        for (u32 n = 0; n < 150; n++) {
            u8 got[MEM_BYTES], wanted[MEM_BYTES], source[MEM_BYTES];
            fill(got, sizeof got, n);
            fill(wanted, sizeof wanted, n);
            fill(source, sizeof source, n + 9);
            for (u32 i = 0; i < n; i++) wanted[at + i] = source[i];
            CHECK(memcpy(got + at, source, n) == got + at);
            expect_bytes("memcpy", got, wanted, sizeof got, at, n);
            for (u32 i = 0; i < n; i++) wanted[at + i] = 0xa5;
            volatile int byte = 0x1a5;
            CHECK(memset(got + at, byte, n) == got + at); // only the low byte counts
            expect_bytes("memset", got, wanted, sizeof got, at, n);
        }
    }
}

static void memcmp_orders_by_the_first_difference(void) {
    for (u32 n = 0; n < 80; n++) {
        u8 a[MEM_BYTES], b[MEM_BYTES];
        fill(a, sizeof a, n);
        fill(b, sizeof b, n);
        b[n] ^= 0xff; // past the range
        CHECK(memcmp(a, b, n) == 0);
        for (u32 at = 0; at < n; at++) {
            fill(b, sizeof b, n);
            a[at] = 0x7f;
            b[at] = 0x80; // larger as an unsigned byte, smaller as a signed one
            if (at + 1 < n) b[at + 1] = 0;
            CHECK_MSG(memcmp(a, b, n) < 0 && memcmp(b, a, n) > 0, "n %u, at %u", n, at);
            fill(a, sizeof a, n);
        }
    }
}

// --- half precision ---

// The value of a finite half by its definition, in f64 arithmetic that is exact here.
static f64 half_value(u32 half) {
    u32 exponent = half >> 10 & 31, mantissa = half & 1023;
    f64 value = exponent == 0 ? mantissa : mantissa + 1024.0;
    for (u32 i = MAX(exponent, 1u); i < 25; i++) value /= 2;
    for (u32 i = 25; i < exponent; i++) value *= 2;
    return (half & 0x8000) != 0 ? -value : value;
}

static void every_half_widens_and_comes_back(void) {
    for (u32 half = 0; half < 0x10000; half++) {
        f32 wide = f16_to_f32((f16)half);
        u32 exponent = half >> 10 & 31, mantissa = half & 1023;
        if (exponent == 31 && mantissa != 0) {
            CHECK_MSG(wide != wide, "half %04x is NaN", half);
            f16 back = f32_to_f16(wide);
            CHECK_MSG((back & 0x7c00) == 0x7c00 && (back & 0x3ff) != 0, "half %04x", half);
            continue;
        }
        if (exponent == 31) {
            CHECK_MSG(f32_bits(wide) == (half << 16 | 0x7f800000), "half %04x", half);
        } else {
            CHECK_MSG((f64)wide == half_value(half), "half %04x gives %g", half, (f64)wide);
            CHECK_MSG(f32_bits(wide) >> 31 == half >> 15, "sign of half %04x", half);
        }
        CHECK_MSG(f32_to_f16(wide) == half, "half %04x comes back as %04x", half, f32_to_f16(wide));
    }
}

// Between any two neighbours: the midpoint goes to the even one, and the floats next to it go to
// the near one. The midpoint above the largest half goes to infinity.
static void every_rounding_boundary_of_f32_to_f16(void) {
    for (u32 half = 0; half < 0x7c00; half++) {
        f64 next = half + 1 < 0x7c00 ? half_value(half + 1) : 65536.0;
        u32 middle = f32_bits((f32)((half_value(half) + next) / 2)); // exact
        u32 even = half + (half & 1);
        for (u32 sign = 0; sign <= 0x8000; sign += 0x8000) {
            u32 bits = middle | sign << 16;
            CHECK_MSG(f32_to_f16(f32_from_bits(bits)) == (even | sign), "tie above %04x", half);
            CHECK_MSG(f32_to_f16(f32_from_bits(bits - 1)) == (half | sign), "below, %04x", half);
            CHECK_MSG(f32_to_f16(f32_from_bits(bits + 1)) == ((half + 1) | sign), "above, %04x",
                      half);
        }
    }
}

static void special_f32_to_f16(void) {
    static const struct {
        u32 bits;
        u16 half;
    } rows[] = {
        {0x00000000, 0x0000}, {0x80000000, 0x8000}, // zeros keep their sign
        {0x00000001, 0x0000}, {0x807fffff, 0x8000}, // f32 subnormals vanish
        {0x33000000, 0x0000}, {0x33000001, 0x0001}, // 2^-25 is a tie, to even
        {0x477fefff, 0x7bff}, {0x477ff000, 0x7c00}, // 65,520 and above are infinity
        {0x7f7fffff, 0x7c00}, {0xff7fffff, 0xfc00}, {0x7f800000, 0x7c00},
        {0xff800000, 0xfc00}, {0x3f800000, 0x3c00}, {0xc0000000, 0xc000},
    };
    for (u32 i = 0; i < COUNT_OF(rows); i++) {
        f16 half = f32_to_f16(f32_from_bits(rows[i].bits));
        CHECK_MSG(half == rows[i].half, "%08x gives %04x", rows[i].bits, half);
    }
    static const u32 nans[] = {0x7f800001, 0x7fc00000, 0xff800001, 0xffffffff};
    for (u32 i = 0; i < COUNT_OF(nans); i++) {
        f16 half = f32_to_f16(f32_from_bits(nans[i]));
        CHECK_MSG((half & 0x7fff) > 0x7c00, "%08x is NaN", nans[i]);
    }
}

// The CPU's own conversion, round to nearest even.
static f16 hardware_f32_to_f16(f32 value) {
    f32 result __attribute__((vector_size(16)));
    f32 input __attribute__((vector_size(16))) = {value};
    __asm__("vcvtps2ph $0, %1, %0" : "=x"(result) : "x"(input));
    return (f16)(f32_bits(result[0]) & 0xffff);
}

static void f32_to_f16_agrees_with_the_cpu(void) {
    bool full = test_option("FULL") != NULL;
    struct test_random random = {SEED};
    u64 n = full ? 1ull << 32 : 1ull << 20;
    u64 n_wrong = 0;
    for (u64 i = 0; i < n; i++) {
        u32 bits = full ? (u32)i : (u32)test_random_u64(&random);
        if ((bits & 0x7fffffff) > 0x7f800000) continue; // NaN payloads are of no account
        f32 value = f32_from_bits(bits);
        if (f32_to_f16(value) == hardware_f32_to_f16(value)) continue;
        n_wrong++;
        if (n_wrong < 5) test_fail(__FILE__, __LINE__, "bits %08x", bits);
    }
    CHECK_MSG(n_wrong == 0, "%llu of %llu differ", n_wrong, n);
}

static void bf16_is_the_upper_half(void) {
    CHECK(bf16_to_f32(0x3f80) == 1.0f);
    CHECK(bf16_to_f32(0xc0a0) == -5.0f);
    CHECK(f32_bits(bf16_to_f32(0x0001)) == 0x00010000);
    CHECK(f32_bits(bf16_to_f32(0xff80)) == 0xff800000);
}

// --- small helpers ---

static void checked_arithmetic_and_rounding(void) {
    u64 value = 0;
    CHECK(CHECKED_ADD(~0ull - 1, 1ull, &value) && value == ~0ull);
    CHECK(!CHECKED_ADD(~0ull, 1ull, &value));
    CHECK(CHECKED_MUL(1ull << 32, (1ull << 32) - 1, &value) && value == 0xffffffff00000000);
    CHECK(!CHECKED_MUL(1ull << 32, 1ull << 32, &value));
    CHECK(round_up(0, 32) == 0 && round_up(1, 32) == 32 && round_up(32, 32) == 32);
    CHECK(round_up(33, 32) == 64 && round_up(7, 1) == 7);
    u8 bytes[9] = {0, 1, 2, 3, 4, 5, 6, 7, 8};
    CHECK(load_u16(bytes + 1) == 0x0201 && load_u32(bytes + 1) == 0x04030201);
    CHECK(load_u64(bytes + 1) == 0x0807060504030201);
    store_u32(bytes + 1, 0xa1b2c3d4);
    CHECK(bytes[0] == 0 && bytes[1] == 0xd4 && bytes[4] == 0xa1 && bytes[5] == 5);
}

static const struct test_case cases[] = {
    {"arena_hands_out_disjoint_aligned_blocks", arena_hands_out_disjoint_aligned_blocks},
    {"arena_takes_the_last_byte_and_no_more", arena_takes_the_last_byte_and_no_more},
    {"arena_arrays_are_checked_for_overflow", arena_arrays_are_checked_for_overflow},
    {"status_names_and_exit_codes", status_names_and_exit_codes},
    {"fault_keeps_the_first_failure", fault_keeps_the_first_failure},
    {"fault_messages_are_printable", fault_messages_are_printable},
    {"fault_messages_are_bounded", fault_messages_are_bounded},
    {"memmove_moves_every_overlap", memmove_moves_every_overlap},
    {"memcpy_and_memset_touch_their_range_only", memcpy_and_memset_touch_their_range_only},
    {"memcmp_orders_by_the_first_difference", memcmp_orders_by_the_first_difference},
    {"every_half_widens_and_comes_back", every_half_widens_and_comes_back},
    {"every_rounding_boundary_of_f32_to_f16", every_rounding_boundary_of_f32_to_f16},
    {"special_f32_to_f16", special_f32_to_f16},
    {"f32_to_f16_agrees_with_the_cpu", f32_to_f16_agrees_with_the_cpu},
    {"bf16_is_the_upper_half", bf16_is_the_upper_half},
    {"checked_arithmetic_and_rounding", checked_arithmetic_and_rounding},
};

int program_main(const struct platform_start *start) {
    // For tests/test_binary.py, which looks at how a program ends.
    if (start->n_args == 2 && str_equal(str_from_z(start->args[1]), STR("use_sealed_arena"))) {
        return use_sealed_arena();
    }
    return test_main(start, "test_base", cases, COUNT_OF(cases));
}
