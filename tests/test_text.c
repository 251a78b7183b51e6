// SPDX-License-Identifier: Apache-2.0
// Tests of text.c: slices, numbers read and printed, the bounded builder, UTF-8, JSON strings.
#include "freestanding/mem.h"
#include "test.h"

#define SEED 20240612

#define TEXT_BYTES 1024

static void expect_text(int line, const char *what, const struct text *t, const char *wanted) {
    struct str got = {(const u8 *)t->data, t->len};
    if (!str_equal(got, str_from_z(wanted))) {
        test_fail(__FILE__, line, "%s: \"%s\" instead of \"%s\"", what, t->data, wanted);
    }
    if (t->data[t->len] != 0) test_fail(__FILE__, line, "%s: no zero at the end", what);
}

// One line per case: what printf would write.
#define CHECK_FORMAT(wanted, ...)                        \
    do {                                                 \
        char memory[TEXT_BYTES];                         \
        struct text t = TEXT_OVER_ARRAY(memory);         \
        text_format(&t, __VA_ARGS__);                    \
        expect_text(__LINE__, #__VA_ARGS__, &t, wanted); \
    } while (0)

// --- slices ---

static int sign_of(int x) { return (x > 0) - (x < 0); }

static void slices_compare_bytewise(void) {
    static const struct {
        struct str a, b;
        int order;
        bool starts; // a starts with b
    } rows[] = {
        {STR(""), STR(""), 0, true},           {STR("a"), STR(""), 1, true},
        {STR(""), STR("a"), -1, false},        {STR("abc"), STR("abc"), 0, true},
        {STR("abc"), STR("ab"), 1, true},      {STR("ab"), STR("abc"), -1, false},
        {STR("abd"), STR("abc"), 1, false},    {STR("\xff"), STR("a"), 1, false},
        {STR("a\0b"), STR("a\0c"), -1, false}, {STR("a\0b"), STR("a\0"), 1, true},
        {{NULL, 0}, STR("x"), -1, false},      {STR("x"), {NULL, 0}, 1, true},
    };
    for (u32 i = 0; i < COUNT_OF(rows); i++) {
        CHECK_MSG(sign_of(str_compare(rows[i].a, rows[i].b)) == rows[i].order, "row %u", i);
        CHECK_MSG(str_equal(rows[i].a, rows[i].b) == (rows[i].order == 0), "row %u", i);
        CHECK_MSG(str_starts_with(rows[i].a, rows[i].b) == rows[i].starts, "row %u", i);
    }
    CHECK(str_from_z(NULL).len == 0 && str_from_z("").len == 0 && str_from_z("ab").len == 2);
}

// --- numbers read ---

static void integers_are_parsed_whole(void) {
    static const struct {
        const char *text;
        u64 u64_value;
        i64 i64_value;
        bool u64_ok, i64_ok;
    } rows[] = {
        {"0", 0, 0, true, true},
        {"007", 7, 7, true, true},
        {"42", 42, 42, true, true},
        {"9223372036854775807", LLONG_MAX, LLONG_MAX, true, true},
        {"9223372036854775808", 1ull << 63, 0, true, false},
        {"-9223372036854775808", 0, LLONG_MIN, false, true},
        {"-9223372036854775809", 0, 0, false, false},
        {"18446744073709551615", ~0ull, 0, true, false},
        {"18446744073709551616", 0, 0, false, false},
        {"99999999999999999999", 0, 0, false, false},
        {"-1", 0, -1, false, true},
        {"+1", 0, 1, false, true},
        {"-0", 0, 0, false, true},
        {"", 0, 0, false, false},
        {"-", 0, 0, false, false},
        {"--1", 0, 0, false, false},
        {" 1", 0, 0, false, false},
        {"1 ", 0, 0, false, false},
        {"0x10", 0, 0, false, false},
        {"1.0", 0, 0, false, false},
        {"1e3", 0, 0, false, false},
    };
    for (u32 i = 0; i < COUNT_OF(rows); i++) {
        struct str s = str_from_z(rows[i].text);
        u64 u = 77;
        bool ok = text_parse_u64(s, &u);
        CHECK_MSG(ok == rows[i].u64_ok && u == (ok ? rows[i].u64_value : 77), "u64 \"%s\"",
                  rows[i].text);
        i64 v = 77;
        ok = text_parse_i64(s, &v);
        CHECK_MSG(ok == rows[i].i64_ok && v == (ok ? rows[i].i64_value : 77), "i64 \"%s\"",
                  rows[i].text);
    }
    u64 u = 0;
    CHECK(text_parse_u64((struct str){(const u8 *)"123", 2}, &u) && u == 12); // not past the end
}

// A number whose digits go on for longer than any f64 has any: the last one decides.
static void digits_beyond_every_double_decide_ties(void) {
    static char memory[5000];
    for (u32 place = 100; place < 4000; place += 13) {
        for (u32 above = 0; above < 2; above++) {
            struct text t = TEXT_OVER_ARRAY(memory);
            text_put(&t, STR("9007199254740993.")); // a tie, to even
            for (u32 i = 1; i < place; i++) text_put_byte(&t, '0');
            text_put_byte(&t, above ? '1' : '0');
            text_put(&t, STR("e0"));
            f64 value = 0;
            CHECK(text_parse_f64((struct str){(const u8 *)t.data, t.len}, &value));
            CHECK_MSG(f64_bits(value) == 0x4340000000000000ull + above, "digit %u: %llx", place,
                      f64_bits(value));
        }
        // The zeros may stand in front, too, and the exponent takes them back.
        struct text t = TEXT_OVER_ARRAY(memory);
        text_put(&t, STR("0."));
        for (u32 i = 1; i < place; i++) text_put_byte(&t, '0');
        text_format(&t, "25e%u", place);
        f64 value = 0;
        CHECK(text_parse_f64((struct str){(const u8 *)t.data, t.len}, &value) && value == 2.5);
    }
}

static void doubles_are_parsed_and_rounded_once(void) {
    static const struct {
        const char *text;
        u64 bits;
    } rows[] = {
        {"0", 0},
        {"-0", 1ull << 63},
        {"0e99999999999", 0},
        {"1", 0x3ff0000000000000},
        {"+1.0", 0x3ff0000000000000},
        {"0.1", 0x3fb999999999999a},
        {"0.8", 0x3fe999999999999a},
        {"-2.5", 0xc004000000000000},
        {"1e22", 0x4480f0cf064dd592},
        {"1e23", 0x44b52d02c7e14af6},
        {"1E-1", 0x3fb999999999999a},
        {"9007199254740993", 0x4340000000000000},          // 2^53 + 1 is a tie, to even
        {"9007199254740995", 0x4340000000000002},          // 2^53 + 3 too, upwards
        {"9007199254740993.001", 0x4340000000000001},      // just past the tie
        {"1000000000000000000000000", 0x44ea784379d99db4}, // trailing zeros are no digits
        {"0.000000000000000000000000000001", 0x39b4484bfeebc2a0},
        {"2.2250738585072014e-308", 0x0010000000000000}, // the smallest normal
        {"2.2250738585072011e-308", 0x000fffffffffffff}, // the largest subnormal
        {"5e-324", 1},
        {"2.4703282292062328e-324", 1}, // just above half of the smallest
        {"2.4703282292062327e-324", 0}, // just below
        {"1e-400", 0},
        {"1e-99999", 0},
        {"1.7976931348623157e308", 0x7fefffffffffffff},
        {"1.797693134862315807e308", 0x7fefffffffffffff}, // just below the rounding limit
        {"179769313486231570000e288", 0x7fefffffffffffff},
        // More digits than any double needs: each of them can decide a tie.
        {"12345678901234567891", 0x43e56a95319d63e1},
        {"1.0000000000000000001", 0x3ff0000000000000},
        {"1.00000000000000011102230246251565404236316680908203124", 0x3ff0000000000000},
        {"1.00000000000000011102230246251565404236316680908203125", 0x3ff0000000000000},
        {"1.000000000000000111022302462515654042363166809082031250000000000001",
         0x3ff0000000000001},
        {"9007199254740992.99999999999999999999999999999999999999", 0x4340000000000000},
        {"9007199254740993.00000000000000000000000000000000000001", 0x4340000000000001},
    };
    for (u32 i = 0; i < COUNT_OF(rows); i++) {
        f64 value = 77;
        CHECK_MSG(text_parse_f64(str_from_z(rows[i].text), &value), "\"%s\"", rows[i].text);
        CHECK_MSG(f64_bits(value) == rows[i].bits, "\"%s\" gives %llx", rows[i].text,
                  f64_bits(value));
    }
    static const char *const refused[] = {
        "",
        "+",
        "-",
        ".",
        ".5",
        "5.",
        "1e",
        "1e+",
        "e5",
        "1.e5",
        "--1",
        " 1",
        "1 ",
        "1,5",
        "0x1",
        "nan",
        "inf",
        "-inf",
        "1e5.0",
        "1.2.3",
        "1.7976931348623159e308",
        "1e309",
        "1e99999999999",
        "1e-",
        "1f",
    };
    for (u32 i = 0; i < COUNT_OF(refused); i++) {
        f64 value = 77;
        CHECK_MSG(!text_parse_f64(str_from_z(refused[i]), &value), "\"%s\"", refused[i]);
        CHECK(value == 77);
    }
}

// Seventeen significant digits tell every double apart, so printing and reading gives it back.
static void doubles_survive_printing_and_reading(void) {
    u32 n = test_option("FULL") != NULL ? 500000 : 20000;
    struct test_random random = {SEED};
    for (u32 i = 0; i < n; i++) {
        u64 bits = test_random_u64(&random);
        if ((bits >> 52 & 2047) == 2047) continue;
        char memory[64];
        struct text t = TEXT_OVER_ARRAY(memory);
        text_format(&t, "%.17g", f64_from_bits(bits));
        f64 back = 0;
        bool ok = text_parse_f64((struct str){(const u8 *)t.data, t.len}, &back);
        CHECK_MSG(ok && f64_bits(back) == bits, "seed %u: %s is %llx, read as %llx", SEED, t.data,
                  bits, f64_bits(back));
    }
}

// --- formatting ---

static void integers_are_formatted(void) {
    CHECK_FORMAT("0 1 -1", "%d %d %d", 0, 1, -1);
    CHECK_FORMAT("-2147483648 2147483647", "%d %d", INT_MIN, INT_MAX);
    CHECK_FORMAT("4294967295 ffffffff", "%u %x", 0xffffffffu, 0xffffffffu);
    CHECK_FORMAT("-9223372036854775808", "%lld", LLONG_MIN);
    CHECK_FORMAT("-9223372036854775808", "%ld", LONG_MIN);
    CHECK_FORMAT("18446744073709551615", "%llu", ~0ull);
    CHECK_FORMAT("18446744073709551615", "%zu", (usize)-1);
    CHECK_FORMAT("18446744073709551615", "%lu", ~0ul);
    CHECK_FORMAT("fedcba9876543210", "%llx", 0xfedcba9876543210ull);
    CHECK_FORMAT("[    7|7    |00007]", "[%5u|%-5u|%05u]", 7u, 7u, 7u);
    const char *volatile both = "[%-05u]"; // the compiler would warn: left wins, as in C
    CHECK_FORMAT("[7    ]", both, 7u);
    CHECK_FORMAT("[   -7|-7   |-0007]", "[%5d|%-5d|%05d]", -7, -7, -7);
    CHECK_FORMAT("0000beef 12345", "%08x %4x", 0xbeefu, 0x12345u);
    CHECK_FORMAT("[123456]", "[%3d]", 123456); // a width is no maximum
    CHECK_FORMAT("100%", "%d%%", 100);
}

static void strings_are_formatted(void) {
    CHECK_FORMAT("", "%s", "");
    const char *volatile nothing = NULL; // volatile: the compiler would warn
    CHECK_FORMAT("", "%s", nothing);
    CHECK_FORMAT("a b", "%s %s", "a", "b");
    CHECK_FORMAT("[  ab|ab  ]", "[%4s|%-4s]", "ab", "ab");
    CHECK_FORMAT("[ab|abc|  ab]", "[%.2s|%.9s|%4.2s]", "abc", "abc", "abc");
    CHECK_FORMAT("[ab]", "[%.*s]", 2, "abc");
    CHECK_FORMAT("[]", "[%.*s]", 0, nothing);
    CHECK_FORMAT("[abc]", "[%.*s]", -1, "abc");
    CHECK_FORMAT("[x|  y]", "[%c|%3c]", 'x', 'y');
    static const char unterminated[3] = {'x', 'y', 'z'};
    CHECK_FORMAT("xyz", "%.3s", unterminated);
}

static void doubles_are_formatted_fixed(void) {
    CHECK_FORMAT("0.000000 -0.000000", "%f %f", 0.0, -0.0);
    CHECK_FORMAT("1.500000", "%f", 1.5);
    CHECK_FORMAT("0 2 2 4", "%.0f %.0f %.0f %.0f", 0.5, 1.5, 2.5, 3.5); // ties to even
    CHECK_FORMAT("0.1 0.3 -0.1", "%.1f %.1f %.1f", 0.05, 0.25 + 1e-9, -0.05);
    CHECK_FORMAT("1.00 1.01", "%.2f %.2f", 1.005, 1.015); // as their binary values say
    CHECK_FORMAT("10.0 9.9", "%.1f %.1f", 9.95 + 1e-9, 9.95 - 1e-9);
    CHECK_FORMAT("999999999999.999", "%.3f", 999999999999.999);
    CHECK_FORMAT("1000000000.0", "%.1f", 999999999.96);
    CHECK_FORMAT("9007199254740991", "%.0f", 9007199254740991.0);
    CHECK_FORMAT("0.000000001 0.000000000", "%.9f %.9f", 0.6e-9, 0.4e-9);
    CHECK_FORMAT("[    2.50|2.50    |00002.50|-0002.50]", "[%8.2f|%-8.2f|%08.2f|%08.2f]", 2.5, 2.5,
                 2.5, -2.5);
    CHECK_FORMAT("inf -inf nan", "%f %f %.2f", (f64)__builtin_inf(), -(f64)__builtin_inf(),
                 (f64)__builtin_nan(""));
    CHECK_FORMAT("[   inf|nan   ]", "[%06f|%-6g]", (f64)__builtin_inf(), (f64)__builtin_nan(""));
    CHECK_FORMAT("0.00000000000000000000000000000000000000000000000000", "%.50f", 0x1p-1074);
    // The largest double, digit by digit: 2^1024 - 2^971.
    CHECK_FORMAT("179769313486231570814527423731704356798070567525844996598917476803157260780028"
                 "538760589558632766878171540458953514382464234321326889464182768467546703537516"
                 "986049910576551282076245490090389328944075868508455133942304583236903222948165"
                 "808559332123348274797826204144723168738177180919299881250404026184124858368",
                 "%.0f", 0x1.fffffffffffffp+1023);
}

static void doubles_are_formatted_general(void) {
    CHECK_FORMAT("0 -0 1 -1", "%g %g %g %g", 0.0, -0.0, 1.0, -1.0);
    CHECK_FORMAT("0.1 0.123456789 123456.789", "%g %g %g", 0.1, 0.123456789, 123456.789);
    CHECK_FORMAT("0.333333333 0.3333", "%g %.4g", 1.0 / 3, 1.0 / 3);
    CHECK_FORMAT("0.1 0.10000000000000001", "%.16g %.17g", 0.1, 0.1);
    CHECK_FORMAT("123456789 1.23456789e+09", "%g %g", 123456789.0, 1234567890.0);
    CHECK_FORMAT("0.0001 1e-05", "%g %g", 0.0001, 0.00001);
    CHECK_FORMAT("1e+01 10 1", "%.0g %.2g %.1g", 10.0, 10.0, 1.0);
    CHECK_FORMAT("1e+02 1e+02 100", "%.1g %.2g %.3g", 99.9, 99.9, 99.96);
    CHECK_FORMAT("1 1", "%.3g %.2g", 0.9999, 0.999);
    CHECK_FORMAT("0.0001", "%.2g", 0.00009999); // the carry decides the form
    CHECK_FORMAT("1e+20 1.5e-10", "%g %g", 1e20, 1.5e-10);
    CHECK_FORMAT("4.9406564584124654e-324", "%.17g", 0x1p-1074);
    CHECK_FORMAT("1.79769313e+308", "%g", 0x1.fffffffffffffp+1023);
    CHECK_FORMAT("2 4", "%.1g %.1g", 2.5, 3.5); // ties to even
    CHECK_FORMAT("[     0.5|0.5     |000000.5]", "[%8g|%-8g|%08g]", 0.5, 0.5, 0.5);
}

static void builder_is_bounded(void) {
    static const char long_text[] = "0123456789";
    for (usize capacity = 0; capacity < 14; capacity++) {
        char memory[16];
        memset(memory, '#', sizeof memory);
        struct text t = text_over(memory, capacity);
        text_format(&t, "%s", "01234");
        text_put(&t, STR("56"));
        text_put_byte(&t, '7');
        text_format(&t, "%u", 89u);
        usize wanted = capacity == 0 ? 0 : MIN(capacity - 1, (usize)10);
        CHECK_MSG(t.len == wanted, "capacity %zu: %zu bytes", capacity, t.len);
        CHECK_MSG(t.truncated == (wanted < 10), "capacity %zu", capacity);
        CHECK(wanted == 0 || memcmp(memory, long_text, wanted) == 0);
        CHECK(capacity == 0 || memory[wanted] == 0);
        for (usize i = MAX(capacity, wanted); i < sizeof memory; i++) CHECK(memory[i] == '#');
    }
    char memory[8];
    struct text t = TEXT_OVER_ARRAY(memory);
    text_put(&t, (struct str){NULL, 0});
    CHECK(t.len == 0 && !t.truncated && memory[0] == 0);
    text_format(&t, "%4000s", ""); // a wide field is not written byte by byte past the end
    CHECK(t.len == 7 && t.truncated);
}

// --- UTF-8 ---

static void utf8_knows_well_formed_sequences(void) {
    static const struct {
        struct str s;
        u32 len, code_point;
    } rows[] = {
        {STR("a"), 1, 'a'},
        {STR("\0"), 1, 0},
        {STR("\x7f"), 1, 0x7f},
        {STR("\xc2\x80"), 2, 0x80},
        {STR("\xdf\xbf"), 2, 0x7ff},
        {STR("\xe0\xa0\x80"), 3, 0x800},
        {STR("\xed\x9f\xbf"), 3, 0xd7ff},
        {STR("\xee\x80\x80"), 3, 0xe000},
        {STR("\xef\xbf\xbf"), 3, 0xffff},
        {STR("\xf0\x90\x80\x80"), 4, 0x10000},
        {STR("\xf4\x8f\xbf\xbf"), 4, 0x10ffff},
        {STR("\xe2\x82\xac tail"), 3, 0x20ac},
        {STR("\x80"), 0, 0},             // a continuation alone
        {STR("\xc0\x80"), 0, 0},         // overlong
        {STR("\xc1\xbf"), 0, 0},         // overlong
        {STR("\xe0\x9f\xbf"), 0, 0},     // overlong
        {STR("\xf0\x8f\xbf\xbf"), 0, 0}, // overlong
        {STR("\xed\xa0\x80"), 0, 0},     // surrogate
        {STR("\xf4\x90\x80\x80"), 0, 0}, // above U+10FFFF
        {STR("\xf5\x80\x80\x80"), 0, 0},
        {STR("\xff"), 0, 0},
        {STR("\xc3"), 0, 0}, // cut short
        {STR("\xe2\x82"), 0, 0},
        {STR("\xf0\x9f\x98"), 0, 0},
        {STR("\xc3("), 0, 0}, // followed by something else
        {STR("\xe2\x82("), 0, 0},
        {STR("\xf0\x9f\x98\xc3"), 0, 0},
    };
    for (u32 i = 0; i < COUNT_OF(rows); i++) {
        u32 code_point = 77;
        u32 len = utf8_decode(rows[i].s, 0, &code_point);
        CHECK_MSG(len == rows[i].len, "row %u: length %u", i, len);
        CHECK_MSG(code_point == (len == 0 ? 77 : rows[i].code_point), "row %u: U+%04x", i,
                  code_point);
    }
}

static void utf8_round_trip_of_all_code_points(void) {
    for (u32 c = 0; c <= 0x10ffff; c++) {
        if (c >= 0xd800 && c < 0xe000) continue;
        u8 bytes[4] = {0};
        u32 len = utf8_encode(c, bytes);
        u32 back = 0;
        struct str s = {bytes, len};
        CHECK_MSG(utf8_decode(s, 0, &back) == len && back == c, "U+%04x", c);
        // Streaming: nothing of it may leave before its last byte is there.
        CHECK_MSG(utf8_complete_prefix(s) == len, "U+%04x", c);
        for (u32 cut = 1; cut < len; cut++) {
            CHECK_MSG(utf8_complete_prefix((struct str){bytes, cut}) == 0, "U+%04x at %u", c, cut);
        }
    }
}

// Every string of up to four bytes from the alphabet of critical bytes: the decoder accepts exactly
// the encodings of code points, and the complete prefix is what it says, by exhaustion.
static void utf8_of_all_short_strings(void) {
    static const u8 alphabet[] = {'a',  0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc1, 0xc2, 0xdf, 0xe0,
                                  0xe1, 0xec, 0xed, 0xee, 0xef, 0xf0, 0xf1, 0xf3, 0xf4, 0xf5};
    const u32 n = COUNT_OF(alphabet);
    for (u32 code = 0; code < n * n * n * n; code++) {
        u8 bytes[4] = {alphabet[code % n], alphabet[code / n % n], alphabet[code / n / n % n],
                       alphabet[code / n / n / n]};
        u32 code_point = 0;
        u32 len = utf8_decode((struct str){bytes, 4}, 0, &code_point);
        if (len > 0) {
            u8 again[4];
            bool surrogate = code_point >= 0xd800 && code_point < 0xe000;
            CHECK(!surrogate && code_point <= 0x10ffff);
            CHECK(utf8_encode(code_point, again) == len && memcmp(bytes, again, len) == 0);
        }
        for (u32 cut = 1; cut <= 4; cut++) {
            // By definition: the shortest prefix after which some bytes may still become one.
            usize wanted = 0;
            while (wanted < cut) {
                struct str have = {bytes + wanted, cut - wanted};
                u32 one = utf8_decode(have, 0, &code_point);
                bool may_grow = false;
                static const u8 next[] = {0x80, 0x90, 0xa0, 0xbf};
                for (u32 i = 0; one == 0 && i < COUNT_OF(next) && !may_grow; i++) {
                    u8 tried[4] = {0x80, 0x80, 0x80, 0x80};
                    for (usize j = 0; j < have.len; j++) tried[j] = have.data[j];
                    if (have.len == 4) break;
                    tried[have.len] = next[i];
                    may_grow = utf8_decode((struct str){tried, 4}, 0, &code_point) > have.len;
                }
                if (may_grow) break;
                wanted += MAX(one, 1u);
            }
            usize got = utf8_complete_prefix((struct str){bytes, cut});
            CHECK_MSG(got == wanted, "%02x %02x %02x %02x, %u bytes: %zu, not %zu", bytes[0],
                      bytes[1], bytes[2], bytes[3], cut, got, wanted);
        }
    }
    CHECK(utf8_complete_prefix(STR("")) == 0);
    CHECK(utf8_complete_prefix(STR("abc\xc3\xa9\xe2\x82")) == 5);
    CHECK(utf8_complete_prefix(STR("\xe2\x82\xac\x80\x80\x80")) == 6);
}

// --- JSON ---

static void json_strings_are_escaped(void) {
    static const struct {
        struct str s;
        const char *json;
    } rows[] = {
        {{NULL, 0}, "\"\""},
        {STR("plain"), "\"plain\""},
        {STR("a\"b\\c/d"), "\"a\\\"b\\\\c/d\""},
        {STR("\n\r\t"), "\"\\n\\r\\t\""},
        {STR("\0\x01\x1f\x7f\b\f"), "\"\\u0000\\u0001\\u001f\\u007f\\u0008\\u000c\""},
        {STR("\xc3\xa9\xf0\x9f\x98\x80"), "\"\xc3\xa9\xf0\x9f\x98\x80\""},
        {STR("a\xff"), "\"a\xef\xbf\xbd\""},
        {STR("\xc3"), "\"\xef\xbf\xbd\""},
        {STR("\xed\xa0\x80"), "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""},
    };
    for (u32 i = 0; i < COUNT_OF(rows); i++) {
        char memory[TEXT_BYTES];
        struct text t = TEXT_OVER_ARRAY(memory);
        text_put_json_string(&t, rows[i].s);
        expect_text(__LINE__, "json", &t, rows[i].json);
    }
}

static const struct test_case cases[] = {
    {"slices_compare_bytewise", slices_compare_bytewise},
    {"integers_are_parsed_whole", integers_are_parsed_whole},
    {"doubles_are_parsed_and_rounded_once", doubles_are_parsed_and_rounded_once},
    {"digits_beyond_every_double_decide_ties", digits_beyond_every_double_decide_ties},
    {"doubles_survive_printing_and_reading", doubles_survive_printing_and_reading},
    {"integers_are_formatted", integers_are_formatted},
    {"strings_are_formatted", strings_are_formatted},
    {"doubles_are_formatted_fixed", doubles_are_formatted_fixed},
    {"doubles_are_formatted_general", doubles_are_formatted_general},
    {"builder_is_bounded", builder_is_bounded},
    {"utf8_knows_well_formed_sequences", utf8_knows_well_formed_sequences},
    {"utf8_round_trip_of_all_code_points", utf8_round_trip_of_all_code_points},
    {"utf8_of_all_short_strings", utf8_of_all_short_strings},
    {"json_strings_are_escaped", json_strings_are_escaped},
};

int program_main(const struct platform_start *start) {
    // For tests/test_binary.py, which looks at how a program ends. Through a pointer, because the
    // compiler knows the mistake too.
    if (start->n_args == 2 && str_equal(str_from_z(start->args[1]), STR("use_unknown_format"))) {
        void (*volatile format)(struct text *, const char *, ...) = text_format;
        char memory[TEXT_BYTES];
        struct text t = TEXT_OVER_ARRAY(memory);
        format(&t, "%o", 1u);
        return 0;
    }
    return test_main(start, "test_text", cases, COUNT_OF(cases));
}
