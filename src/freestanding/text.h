// SPDX-License-Identifier: Apache-2.0
// Text without a C library: slices, a bounded builder with printf-like formatting, numbers read and
// written, UTF-8 checked.
#pragma once
#include "freestanding/types.h"

// --- slices ---
struct str str_from_z(const char *zero_terminated); // NULL gives the empty slice
bool str_equal(struct str a, struct str b);
bool str_starts_with(struct str s, struct str prefix);
int str_compare(struct str a, struct str b); // bytewise; a shorter prefix sorts first

// Whole-slice decimal numbers. False (and *value untouched) for an empty slice, a stray byte, or a
// value that does not fit. text_parse_f64 takes [+-]digits[.digits][e[+-]digits] with any number of
// digits, correctly rounded; no "nan", no "inf", and overflow is refused.
bool text_parse_u64(struct str s, u64 *value);
bool text_parse_i64(struct str s, i64 *value);
bool text_parse_f64(struct str s, f64 *value);

// --- builder ---
// Writes into memory of the caller. What does not fit is dropped and `truncated` is set; the text
// is always zero-terminated when the capacity is above 0.
struct text {
    char *data;
    usize capacity, len;
    bool truncated;
};
struct text text_over(char *memory, usize capacity);
#define TEXT_OVER_ARRAY(array) text_over((array), sizeof(array))
void text_put(struct text *t, struct str s);
void text_put_byte(struct text *t, u8 byte);

// A subset of printf: %s %.*s %c %d %u %x %08x(zero pad, width) %ld %lu %lld %llu %llx %zu
// %5u %-20s (width, left) %f %.Nf %g(9 significant digits) %.Ng %%. Doubles: correctly rounded for
// up to 17 significant digits of %g and for %.Nf with N <= 9 and |value| < 2^53; others may be off
// in the last digit. Anything else in the format stops the program (our mistake).
void text_format(struct text *t, const char *format, ...) PRINTF_LIKE(2, 3);
void text_format_v(struct text *t, const char *format, va_list args) PRINTF_LIKE(2, 0);

// A JSON string literal with its quotes: escapes ", \ and control bytes; bytes that are not valid
// UTF-8 become U+FFFD.
void text_put_json_string(struct text *t, struct str s);
// The same without the quotes, for strings that are written piece by piece; at most
// TEXT_JSON_BYTES_MAX bytes for each byte of s.
void text_put_json(struct text *t, struct str s);
#define TEXT_JSON_BYTES_MAX 6

// --- UTF-8 ---
// Decodes one code point at s[at]. Returns its length in bytes (1 to 4) and stores it; for a byte
// that starts no well-formed sequence (RFC 3629: no overlong forms, no surrogates, at most
// U+10FFFF) returns 0. `at` must be below s.len.
u32 utf8_decode(struct str s, usize at, u32 *code_point);
// Encodes into out[4]; returns the length.
u32 utf8_encode(u32 code_point, u8 out[4]);
// How many leading bytes of s form whole code points or bytes that can never become one; the rest
// (at most 3 bytes) is the beginning of a code point whose end has not come yet. Used to stream
// text without cutting a character in half.
usize utf8_complete_prefix(struct str s);
