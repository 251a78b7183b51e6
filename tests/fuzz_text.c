// SPDX-License-Identifier: Apache-2.0
// libFuzzer harness of everything that reads or writes text by itself: numbers, token lists, UTF-8,
// JSON strings, printf-like formatting and messages. Each is held against a second way of saying
// the same: the C library's strtod and snprintf, or the definition written out plainly.
//
//   input: one byte that chooses, one byte of parameters, and the text
//
// The text lies in a malloc of exactly its size, so that the sanitizer sees a step too far; what is
// written lies in one of exactly its capacity.
#include "cli/cli.h"
#include "freestanding/mem.h"
#include <stdio.h>
#include <stdlib.h>

#define LINE_BYTES 8192

int LLVMFuzzerTestOneInput(const u8 *data, usize bytes);

static bool is_digit(u8 byte) { return byte >= '0' && byte <= '9'; }

// --- numbers ---

static usize skip_digits(struct str s, usize at) {
    while (at < s.len && is_digit(s.data[at])) at++;
    return at;
}

static void check_integers(struct str s) {
    bool digits = s.len > 0 && skip_digits(s, 0) == s.len;
    unsigned __int128 sum = 0; // saturates far above u64
    for (usize i = 0; digits && i < s.len && sum >> 80 == 0; i++) sum = sum * 10 + s.data[i] - '0';
    u64 value = 77;
    bool parsed = text_parse_u64(s, &value);
    assert(parsed == (digits && sum >> 64 == 0));
    assert(value == (parsed ? (u64)sum : 77));

    bool negative = s.len > 0 && s.data[0] == '-';
    bool has_sign = negative || (s.len > 0 && s.data[0] == '+');
    struct str rest = {s.data + has_sign, s.len - has_sign};
    u64 magnitude = 0;
    i64 whole = 77;
    bool fits = text_parse_u64(rest, &magnitude) && magnitude <= (u64)LLONG_MAX + negative;
    parsed = text_parse_i64(s, &whole);
    assert(parsed == fits);
    assert(whole == (!parsed ? 77 : negative ? (i64)(0 - magnitude) : (i64)magnitude));
}

// [+-]digits[.digits][e[+-]digits]
static bool is_decimal(struct str s) {
    usize begin = s.len > 0 && (s.data[0] == '+' || s.data[0] == '-');
    usize at = skip_digits(s, begin);
    if (at == begin) return false;
    if (at < s.len && s.data[at] == '.') {
        usize point = at + 1;
        at = skip_digits(s, point);
        if (at == point) return false;
    }
    if (at < s.len && (s.data[at] == 'e' || s.data[at] == 'E')) {
        at++;
        if (at < s.len && (s.data[at] == '+' || s.data[at] == '-')) at++;
        usize exponent = at;
        at = skip_digits(s, exponent);
        if (at == exponent) return false;
    }
    return at == s.len;
}

static void check_f64(struct str s) {
    char line[LINE_BYTES];
    if (s.len >= sizeof line) return;
    memcpy(line, s.data, s.len);
    line[s.len] = 0;
    bool valid = is_decimal(s);
    f64 expected = strtod(line, NULL), value = 77;
    bool finite = expected - expected == 0;
    bool parsed = text_parse_f64(s, &value);
    assert(parsed == (valid && finite));
    assert(parsed ? f64_bits(value) == f64_bits(expected) : value == 77);
}

// --- token lists ---

static bool separates(u8 byte) {
    static const char set[] = " \t\r\n,[]";
    for (usize i = 0; i + 1 < sizeof set; i++) {
        if (byte == (u8)set[i]) return true;
    }
    return false;
}

static void check_token_list(struct str s) {
    u64 mapped = platform_memory_mapped();
    struct token_list list;
    struct sov_fault fault = {0};
    enum sov_status status = token_list_parse(s, "list", &list, &fault);
    usize n = 0;
    bool sound = true;
    for (usize i = 0; i < s.len && sound;) {
        if (separates(s.data[i])) {
            i++;
            continue;
        }
        usize end = i;
        while (end < s.len && !separates(s.data[end])) end++;
        u64 id = 0;
        sound = text_parse_u64((struct str){s.data + i, end - i}, &id) && id < TOKEN_NONE;
        if (sound && status == SOV_OK) {
            assert(n < list.n && list.ids[n] == id);
            n++;
        }
        i = end;
    }
    assert(sound == (status == SOV_OK));
    assert(sound || (status == SOV_ERR_FORMAT && fault.message[0] != 0));
    if (sound) assert(n == list.n);
    token_list_free(&list);
    assert(platform_memory_mapped() == mapped);
}

// --- UTF-8 ---

// The code point at s[at] by RFC 3629 written out: how long it says it is, whether the rest
// follows, whether the value could have been written shorter, whether it is a code point.
static u32 plain_decode(struct str s, usize at, u32 *code_point) {
    u8 lead = s.data[at];
    u32 len = lead < 0x80 ? 1 : lead >> 5 == 6 ? 2 : lead >> 4 == 14 ? 3 : lead >> 3 == 30 ? 4 : 0;
    if (len == 0 || len > s.len - at) return 0;
    u32 value = len == 1 ? lead : lead & (0xffu >> (len + 1));
    for (u32 i = 1; i < len; i++) {
        if (s.data[at + i] >> 6 != 2) return 0;
        value = value << 6 | (s.data[at + i] & 63u);
    }
    static const u32 least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (value < least[len] || value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff)) return 0;
    *code_point = value;
    return len;
}

static void check_utf8(struct str s) {
    for (usize i = 0; i < s.len; i++) {
        u32 found = 77, expected = 77;
        u32 n = utf8_decode(s, i, &found);
        assert(n == plain_decode(s, i, &expected) && found == expected);
        u8 back[4];
        if (n > 0) assert(utf8_encode(found, back) == n && memcmp(back, s.data + i, n) == 0);
    }
    // Held back is the end that some bytes to come would make a character of, and nothing else.
    usize waiting = 0;
    for (usize n = 1; n <= 3 && n <= s.len; n++) {
        for (u32 i = 0; i < 2; i++) {
            u8 whole[4];
            memset(whole, i == 0 ? 0x80 : 0xa0, sizeof whole);
            memcpy(whole, s.data + s.len - n, n);
            u32 code_point = 0;
            if (plain_decode((struct str){whole, sizeof whole}, 0, &code_point) > n) waiting = n;
        }
    }
    assert(utf8_complete_prefix(s) == s.len - waiting);
}

// --- JSON strings ---

// The next byte that the literal means, or -1 at its end. `\u00xx` is one byte, as only control
// characters are written so.
static int unescape(struct str s, usize *at) {
    u8 byte = s.data[(*at)++];
    if (byte == '"') return -1;
    assert(byte >= 0x20 && byte != 0x7f);
    if (byte != '\\') return byte;
    byte = s.data[(*at)++];
    if (byte == 'n') return '\n';
    if (byte == 'r') return '\r';
    if (byte == 't') return '\t';
    if (byte == '"' || byte == '\\') return byte;
    assert(byte == 'u' && s.data[*at] == '0' && s.data[*at + 1] == '0');
    u32 value = 0;
    for (u32 i = 2; i < 4; i++) {
        u8 digit = s.data[*at + i];
        assert(is_digit(digit) || (digit >= 'a' && digit <= 'f'));
        value = value * 16 + (is_digit(digit) ? digit - '0' : digit - 'a' + 10u);
    }
    *at += 4;
    return (int)value;
}

static void check_json(struct str s, usize capacity) {
    usize roomy = 6 * s.len + 3;
    char *memory = malloc(roomy);
    assert(memory != NULL);
    struct text t = text_over(memory, roomy);
    text_put_json_string(&t, s);
    assert(!t.truncated && t.data[t.len] == 0);
    struct str json = {(const u8 *)t.data, t.len};
    usize at = 1;
    assert(json.len >= 2 && json.data[0] == '"');
    for (usize i = 0; i < s.len;) {
        u32 code_point = 0;
        u32 n = plain_decode(s, i, &code_point);
        static const u8 replacement[] = {0xef, 0xbf, 0xbd};
        const u8 *wanted = n > 0 ? s.data + i : replacement;
        for (u32 k = 0; k < (n > 0 ? n : 3); k++) {
            int byte = unescape(json, &at);
            assert(byte == wanted[k]);
        }
        i += MAX(n, 1u);
    }
    assert(json.data[at] == '"' && at + 1 == json.len);
    // Too small a builder: cut, marked, terminated, and not a byte further.
    if (capacity < roomy) {
        char *small_memory = malloc(capacity + 1); // malloc(0) has no end to run over
        assert(small_memory != NULL);
        struct text small = text_over(small_memory + 1, capacity);
        text_put_json_string(&small, s);
        assert(small.truncated == (t.len + 1 > capacity));
        assert(capacity == 0 || small.data[small.len] == 0);
        free(small_memory);
    }
    free(memory);
}

// --- formatting ---

static void check_line(const struct text *t, const char *expected, int expected_len) {
    assert(expected_len >= 0 && (usize)expected_len < LINE_BYTES);
    assert(!t->truncated && t->len == (usize)expected_len);
    assert(memcmp(t->data, expected, t->len) == 0);
}

#define CHECK_FORMAT(format, ...)                                              \
    do {                                                                       \
        struct text line = TEXT_OVER_ARRAY(ours);                              \
        text_format(&line, (format), __VA_ARGS__);                             \
        int theirs_len = snprintf(theirs, LINE_BYTES, (format), __VA_ARGS__);  \
        check_line(&line, theirs, theirs_len);                                 \
    } while (0)

static void check_formats(struct str s, const char *z, int precision) {
    static char ours[LINE_BYTES], theirs[LINE_BYTES];
    u64 u = 0;
    memcpy(&u, s.data, MIN(s.len, sizeof u));
    u32 small = (u32)u;
    CHECK_FORMAT("<%s|%.*s|%-20s|%c>", z, precision, z, z, (int)(small & 0x7f) + 1);
    CHECK_FORMAT("%d %u %x %08x %5u %-7u|", (int)small, small, small, small, small, small);
    CHECK_FORMAT("%lld %llu %llx %08llx %ld %lu %zu%%", (i64)u, u, u, u, (long)u, (unsigned long)u,
                 (usize)u);
    f64 f = f64_from_bits(u);
    if (f - f != 0) return; // the C library writes "-nan" and "inf" by its own rules
    struct text t = TEXT_OVER_ARRAY(ours);
    text_format(&t, "%g", f); // 9 digits here, 6 in C
    check_line(&t, theirs, snprintf(theirs, LINE_BYTES, "%.9g", f));
    CHECK_FORMAT("%.17g %.3g %.1g %12.5g|%-12.5g|", f, f, f, f, f);
    if (f >= 0x1p53 || f <= -0x1p53) return;
    CHECK_FORMAT("%f %.0f %.1f %.9f %9.2f|%-9.2f|", f, f, f, f, f, f);
    // What is written with 17 digits is the number that is read back.
    t = TEXT_OVER_ARRAY(ours);
    text_format(&t, "%.17g", f);
    f64 back = 0;
    assert(text_parse_f64((struct str){(const u8 *)t.data, t.len}, &back));
    assert(f64_bits(back) == f64_bits(f));
}

// Whatever a message quotes, it is one line of printable UTF-8.
static void check_message(struct str s, const char *z) {
    struct sov_fault fault = {0};
    enum sov_status status =
        fault_set(&fault, SOV_ERR_FORMAT, "at \"%.*s\" and \"%.300s\"", STR_ARG(s), z);
    assert(status == SOV_ERR_FORMAT && fault.status == status);
    struct str message = str_from_z(fault.message);
    assert(message.len > 0 && message.len < sizeof fault.message);
    for (usize i = 0; i < message.len;) {
        u32 code_point = 0;
        u32 n = plain_decode(message, i, &code_point);
        assert(n > 0 && code_point >= 0x20 && !(code_point >= 0x7f && code_point < 0xa0));
        i += n;
    }
    status = fault_set(&fault, SOV_ERR_IO, "later");
    assert(status == SOV_ERR_IO && fault.status == SOV_ERR_FORMAT); // the first one stays
}

static void check_slices(struct str a, struct str b) {
    usize n = MIN(a.len, b.len);
    usize same = 0;
    while (same < n && a.data[same] == b.data[same]) same++;
    int order = same < n ? (a.data[same] < b.data[same] ? -1 : 1)
                         : (a.len > b.len) - (a.len < b.len);
    int found = str_compare(a, b);
    assert((found > 0) - (found < 0) == order);
    assert(str_equal(a, b) == (order == 0));
    assert(str_starts_with(a, b) == (same == b.len));
}

int LLVMFuzzerTestOneInput(const u8 *data, usize bytes) {
    if (bytes < 2) return 0;
    struct str given = {data + 2, MIN(bytes - 2, (usize)LINE_BYTES / 8)};
    u8 *copy = malloc(MAX(given.len, 1u));
    char *z = malloc(given.len + 1);
    assert(copy != NULL && z != NULL);
    memcpy(copy, given.data, given.len);
    memcpy(z, given.data, given.len);
    z[given.len] = 0;
    struct str s = {copy, given.len};
    u8 parameter = data[1];
    switch (data[0] % 8) {
    case 0: check_integers(s); break;
    case 1: check_f64(s); break;
    case 2: check_token_list(s); break;
    case 3: check_utf8(s); break;
    case 4: check_json(s, parameter); break;
    case 5: check_formats(s, z, (int)parameter - 2); break;
    case 6: check_message(s, z); break;
    default: {
        usize cut = MIN((usize)parameter, s.len);
        check_slices((struct str){s.data, cut}, (struct str){s.data + cut, s.len - cut});
    }
    }
    free(copy);
    free(z);
    return 0;
}
