// SPDX-License-Identifier: Apache-2.0
// The words every other file is written in: sized integers, floats, byte slices, unaligned
// little-endian loads, checked arithmetic and the always-on assertion. Header only; includes
// nothing but the compiler's own freestanding headers.
#pragma once
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64; // `unsigned long long` on every target, so %llu is always right
typedef signed char i8;
typedef signed short i16;
typedef signed int i32;
typedef signed long long i64;
typedef float f32;
typedef double f64;
typedef u16 f16; // the bits of an IEEE binary16; arithmetic happens in f32
typedef size_t usize;

#define static_assert _Static_assert
static_assert(sizeof(u64) == 8 && sizeof(u32) == 4 && sizeof(u16) == 2 && sizeof(usize) == 8,
              "a 64-bit target with the usual integer sizes");
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files and memory are little-endian");

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))
#define MUST_CHECK __attribute__((warn_unused_result))
#define PRINTF_LIKE(fmt_idx, args_idx) __attribute__((format(printf, fmt_idx, args_idx)))

// A slice of bytes that someone else owns; not zero-terminated.
struct str {
    const u8 *data;
    usize len;
};
#define STR(literal) ((struct str){(const u8 *)(literal), sizeof(literal) - 1})
// For "%.*s" in messages: at most 64 bytes of the slice.
#define STR_ARG(s) (int)MIN((s).len, (usize)64), (const char *)(s).data

// Stops the program with file and line. On in release builds too: it guards against our own
// mistakes, never against bad input.
_Noreturn void assert_failed(const char *file, int line, const char *what);
#define assert(condition) ((condition) ? (void)0 : assert_failed(__FILE__, __LINE__, #condition))

// Unaligned little-endian loads and stores. (__builtin_memcpy is expanded in place, also under
// -fno-builtin.)
#define DEFINE_LOAD_STORE(type)                     \
    static inline type load_##type(const void *p) { \
        type v;                                     \
        __builtin_memcpy(&v, p, sizeof v);          \
        return v;                                   \
    }                                               \
    static inline void store_##type(void *p, type v) { __builtin_memcpy(p, &v, sizeof v); }
DEFINE_LOAD_STORE(u16)
DEFINE_LOAD_STORE(u32)
DEFINE_LOAD_STORE(u64)
DEFINE_LOAD_STORE(i32)
DEFINE_LOAD_STORE(f32)
DEFINE_LOAD_STORE(f64)
#undef DEFINE_LOAD_STORE

// Checked arithmetic: true when the result fits, which is then stored.
#define CHECKED_ADD(a, b, result) (!__builtin_add_overflow((a), (b), (result)))
#define CHECKED_MUL(a, b, result) (!__builtin_mul_overflow((a), (b), (result)))

static inline u64 round_up(u64 value, u64 power_of_two) {
    return (value + power_of_two - 1) & ~(power_of_two - 1);
}

static inline f32 f32_from_bits(u32 bits) { return load_f32(&bits); }
static inline u32 f32_bits(f32 value) { return load_u32(&value); }
static inline f64 f64_from_bits(u64 bits) { return load_f64(&bits); }
static inline u64 f64_bits(f64 value) { return load_u64(&value); }

// Conversions between storage types, in portable integer code (the fast kernels use F16C and are
// compared with these). f32 to f16 rounds to nearest even, overflows to infinity and keeps
// subnormals. NaN stays NaN; its payload is of no account.
static inline f32 f16_to_f32(f16 half) {
    u32 sign = (u32)(half & 0x8000) << 16;
    u32 exponent = (half >> 10) & 31;
    u32 mantissa = half & 1023;
    if (exponent == 31) return f32_from_bits(sign | 0x7f800000 | mantissa << 13);
    if (exponent != 0) return f32_from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
    f32 magnitude = (f32)mantissa * 0x1p-24f; // zero and subnormals, exact
    return f32_from_bits(sign | f32_bits(magnitude));
}

static inline f16 f32_to_f16(f32 value) {
    u32 bits = f32_bits(value);
    u16 sign = (u16)(bits >> 16 & 0x8000);
    u32 magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return (u16)(sign | 0x7e00);
    if (magnitude >= 0x477ff000) return (u16)(sign | 0x7c00); // 65,520 and above round to infinity
    if (magnitude >= 0x38800000) { // normal halves: drop 13 bits, round to nearest even
        u32 rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
        return (u16)(sign | (rounded - 0x38000000) >> 13);
    }
    // Below 2^-14: adding 0.5 puts the half's subnormal bits at the low end, rounded by the FPU.
    f32 shifted = f32_from_bits(magnitude) + 0.5f;
    return (u16)(sign | (f32_bits(shifted) - 0x3f000000));
}

static inline f32 bf16_to_f32(u16 bits) { return f32_from_bits((u32)bits << 16); }
