// SPDX-License-Identifier: Apache-2.0
// Floating-point arithmetic with exact rounding. f32 and f64 operations are the host's, whose
// results IEEE 754 fixes; 16-bit ones are computed in f64, rounded to odd where that is inexact,
// and rounded once more.
//
// F1. No flush of subnormals; forms with .ftz or .approx are not in the tables and so refused.
// F2. A NaN result has the card's canonical bits: 0x7fffffff, 0x7fff, 0x7ff8... (f64: the host's).
// F3. Rounding to odd with 53 bits, then to at most 24 by any rounding, is one rounding.
#include <fenv.h>
#include <math.h>

#include "exec.h"

#define HANDLER(name) static void name(struct thread *t, const struct insn *i)

// --- formats ---

u32 canonical_f32(f32 value) { return isnan(value) ? 0x7fffffff : f32_bits(value); }
u64 canonical_f64(f64 value) { return isnan(value) ? 0x7ff8000000000000ull : f64_bits(value); }

// value to a small format of 1 + exponent_bits + mantissa_bits, subnormals kept.
static u16 f64_to_small(f64 value, u32 exponent_bits, u32 mantissa_bits, enum rounding rounding) {
    u64 bits = f64_bits(value);
    u16 sign = (u16)(bits >> 63 << (exponent_bits + mantissa_bits));
    i32 bias = (1 << (exponent_bits - 1)) - 1;
    u64 infinity = ((1ull << exponent_bits) - 1) << mantissa_bits;
    u64 magnitude = bits & 0x7fffffffffffffff;
    if (magnitude > 0x7ff0000000000000) return 0x7fff;
    if (magnitude == 0x7ff0000000000000) return (u16)(sign | infinity);
    if (magnitude == 0) return sign;
    bool away = (rounding == ROUND_UP && !sign) || (rounding == ROUND_DOWN && sign);
    i32 exponent = (i32)(magnitude >> 52) - 1023; // f64 subnormals are below everything here
    u64 mantissa = (magnitude & 0xfffffffffffff) | (exponent == -1023 ? 0 : 1ull << 52);
    i32 lowest = 1 - bias; // exponent of the smallest normal
    // Bits of the mantissa that fall away; more for subnormal results.
    u32 drop = 52 - mantissa_bits;
    if (exponent < lowest) drop = MIN(drop + (u32)(lowest - exponent), 60u);
    u64 kept = mantissa >> drop, rest = mantissa & ((1ull << drop) - 1), half = 1ull << (drop - 1);
    if (rounding == ROUND_NEAREST) kept += rest > half || (rest == half && (kept & 1));
    if (away) kept += rest != 0;
    u64 result = kept;
    if (exponent >= lowest) result += (u64)(exponent - lowest) << mantissa_bits;
    // A normal result's `kept` holds the hidden bit, which is the exponent 1 of the encoding.
    if (result >= infinity) {
        bool to_infinity = rounding == ROUND_NEAREST || away;
        result = to_infinity ? infinity : infinity - 1;
    }
    return (u16)(sign | result);
}

u16 f64_to_f16(f64 value, enum rounding rounding) { return f64_to_small(value, 5, 10, rounding); }
u16 f64_to_bf16(f64 value, enum rounding rounding) { return f64_to_small(value, 8, 7, rounding); }

f64 fma_to_odd(f64 a, f64 b, f64 c) {
    f64 product = a * b; // exact for the small formats
    f64 sum = product + c;
    if (!isfinite(sum)) return sum;
    f64 part = sum - product; // the two-sum of Knuth: error is exact
    f64 error = (product - (sum - part)) + (c - part);
    u64 bits = f64_bits(sum);
    if (error == 0 || (bits & 1)) return sum;
    // The exact sum lies strictly between sum and its neighbour on the error's side; one is odd.
    bool grows = (error > 0) == (sum > 0);
    return f64_from_bits(grows ? bits + 1 : bits - 1);
}

// --- f32 and f64 ---

static f32 f(struct thread *t, const struct operand *o) { return f32_from_bits((u32)get(t, o)); }
static f64 d(struct thread *t, const struct operand *o) { return f64_from_bits(get(t, o)); }

static void round_as(u32 rounding) {
    static const int modes[] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD};
    if (rounding != ROUND_NEAREST) fesetround(modes[rounding]);
}
static void round_nearest(u32 rounding) {
    if (rounding != ROUND_NEAREST) fesetround(FE_TONEAREST);
}

// volatile keeps the operation between the two changes of the rounding mode.
#define ROUNDED(name, type, load, canonical, formula)             \
    HANDLER(name) {                                               \
        volatile type a = load(t, &i->src[0]);                    \
        volatile type b = i->n_src > 1 ? load(t, &i->src[1]) : 0; \
        volatile type c = i->n_src > 2 ? load(t, &i->src[2]) : 0; \
        (void)b;                                                  \
        (void)c;                                                  \
        round_as(i->sub);                                         \
        volatile type result = (formula);                         \
        round_nearest(i->sub);                                    \
        put(t, &i->dst[0], canonical(result));                    \
    }
// The usual rounding, without the detour.
#define NEAREST(name, type, load, canonical, formula)    \
    HANDLER(name) {                                      \
        type a = load(t, &i->src[0]);                    \
        type b = i->n_src > 1 ? load(t, &i->src[1]) : 0; \
        type c = i->n_src > 2 ? load(t, &i->src[2]) : 0; \
        (void)b;                                         \
        (void)c;                                         \
        put(t, &i->dst[0], canonical(formula));          \
    }
#define BOTH(name, f32_formula, f64_formula)                        \
    NEAREST(name##_f32, f32, f, canonical_f32, f32_formula)         \
    ROUNDED(name##_f32_rounded, f32, f, canonical_f32, f32_formula) \
    ROUNDED(name##_f64, f64, d, canonical_f64, f64_formula)
BOTH(add, a + b, a + b)
BOTH(sub, a - b, a - b)
BOTH(mul, a *b, a *b)
BOTH(fma, __builtin_fmaf(a, b, c), __builtin_fma(a, b, c))
BOTH(div, a / b, a / b)
BOTH(sqrt, __builtin_sqrtf(a), __builtin_sqrt(a))
BOTH(rcp, 1.0f / a, 1.0 / a)

// min and max: a NaN loses against a number, unless .NaN (sub bit 1); -0 is below +0. sub bit 0:
// max.
static bool first_wins(f64 a, f64 b, bool want_max) {
    if (a == b) return want_max ? !signbit(a) : signbit(a) != 0;
    return want_max ? a > b : a < b;
}
HANDLER(min_max_f32) {
    f32 a = f(t, &i->src[0]), b = f(t, &i->src[1]);
    u32 result = f32_bits(first_wins(a, b, i->sub & 1) ? a : b);
    if (isnan(a)) result = f32_bits(b);
    if (isnan(b)) result = f32_bits(a);
    if ((isnan(a) && isnan(b)) || ((i->sub & 2) && (isnan(a) || isnan(b)))) result = 0x7fffffff;
    put(t, &i->dst[0], result);
}
HANDLER(min_max_f64) {
    f64 a = d(t, &i->src[0]), b = d(t, &i->src[1]);
    f64 result = first_wins(a, b, i->sub & 1) ? a : b;
    if (isnan(a)) result = b;
    if (isnan(b)) result = a;
    put(t, &i->dst[0], canonical_f64(result));
}
HANDLER(abs_f32) { put(t, &i->dst[0], get(t, &i->src[0]) & 0x7fffffff); }
HANDLER(neg_f32) { put(t, &i->dst[0], (u32)get(t, &i->src[0]) ^ 0x80000000); }
HANDLER(abs_f64) { put(t, &i->dst[0], get(t, &i->src[0]) & 0x7fffffffffffffff); }
HANDLER(neg_f64) { put(t, &i->dst[0], get(t, &i->src[0]) ^ 0x8000000000000000); }
HANDLER(copysign_f32) { // a's sign on b's magnitude
    u32 sign = (u32)get(t, &i->src[0]) & 0x80000000;
    put(t, &i->dst[0], sign | ((u32)get(t, &i->src[1]) & 0x7fffffff));
}

enum class_of { IS_FINITE, IS_INFINITE, IS_NUMBER, IS_NAN, IS_NORMAL, IS_SUBNORMAL };
HANDLER(testp_f32) {
    u32 magnitude = (u32)get(t, &i->src[0]) & 0x7fffffff;
    bool result = false;
    switch ((enum class_of)i->sub) {
    case IS_FINITE: result = magnitude < 0x7f800000; break;
    case IS_INFINITE: result = magnitude == 0x7f800000; break;
    case IS_NUMBER: result = magnitude <= 0x7f800000; break;
    case IS_NAN: result = magnitude > 0x7f800000; break;
    case IS_NORMAL: // a zero too, as the card has it
        result = magnitude == 0 || (magnitude >= 0x00800000 && magnitude < 0x7f800000);
        break;
    case IS_SUBNORMAL: result = magnitude > 0 && magnitude < 0x00800000; break;
    }
    put(t, &i->dst[0], result);
}

// --- 16-bit formats, one or two in a register; sub: the operation, and FORM_ bits ---

enum small_operation { SMALL_ADD, SMALL_SUB, SMALL_MUL, SMALL_FMA, SMALL_MIN, SMALL_MAX };
#define FORM_BF16 8
#define FORM_PAIR 16
#define FORM_NAN 32

static f64 widen(u16 bits, bool is_bf16) {
    return is_bf16 ? (f64)bf16_to_f32(bits) : (f64)f16_to_f32(bits);
}

static u16 small_operate(u32 sub, u16 x, u16 y, u16 z) {
    bool is_bf16 = (sub & FORM_BF16) != 0;
    f64 a = widen(x, is_bf16), b = widen(y, is_bf16), c = widen(z, is_bf16), result = 0;
    switch ((enum small_operation)(sub & 7)) {
    case SMALL_ADD: result = fma_to_odd(a, 1, b); break;
    case SMALL_SUB: result = fma_to_odd(a, 1, -b); break;
    case SMALL_MUL: result = a * b; break; // exact
    case SMALL_FMA: result = fma_to_odd(a, b, c); break;
    case SMALL_MIN:
    case SMALL_MAX: {
        bool any_nan = isnan(a) || isnan(b);
        if ((sub & FORM_NAN) && any_nan) return 0x7fff;
        if (isnan(a) && isnan(b)) return 0x7fff;
        if (any_nan) return isnan(a) ? y : x;
        return first_wins(a, b, (sub & 7) == SMALL_MAX) ? x : y;
    }
    }
    return is_bf16 ? f64_to_bf16(result, ROUND_NEAREST) : f64_to_f16(result, ROUND_NEAREST);
}

HANDLER(small) {
    u32 a = (u32)get(t, &i->src[0]), b = (u32)get(t, &i->src[1]);
    u32 c = i->n_src > 2 ? (u32)get(t, &i->src[2]) : 0;
    u32 result = small_operate(i->sub, (u16)a, (u16)b, (u16)c);
    if (i->sub & FORM_PAIR) {
        result |= (u32)small_operate(i->sub, (u16)(a >> 16), (u16)(b >> 16), (u16)(c >> 16)) << 16;
    }
    put(t, &i->dst[0], result);
}
HANDLER(abs_small) { put(t, &i->dst[0], get(t, &i->src[0]) & 0x7fff); }
HANDLER(abs_pair) { put(t, &i->dst[0], get(t, &i->src[0]) & 0x7fff7fff); }
HANDLER(neg_small) { put(t, &i->dst[0], (u16)(get(t, &i->src[0]) ^ 0x8000)); }
HANDLER(neg_pair) { put(t, &i->dst[0], (u32)get(t, &i->src[0]) ^ 0x80008000); }

#define ROUNDINGS(name, signature32, signature64)                       \
    {#name ".rn.f32", name##_f32, signature32, ROUND_NEAREST},          \
        {#name ".rz.f32", name##_f32_rounded, signature32, ROUND_ZERO}, \
        {#name ".rm.f32", name##_f32_rounded, signature32, ROUND_DOWN}, \
        {#name ".rp.f32", name##_f32_rounded, signature32, ROUND_UP},   \
        {#name ".rn.f64", name##_f64, signature64, ROUND_NEAREST}, {    \
#name ".rz.f64", name##_f64, signature64, ROUND_ZERO            \
    }
#define HALVES(name, operation, letters16, letters32)             \
    {#name ".f16", small, letters16, operation}, {                \
#name ".f16x2", small, letters32, (operation) | FORM_PAIR \
    }
#define EXTREMES(name, operation)                                                         \
    {#name ".f16", small, "hhh", operation},                                              \
        {#name ".f16x2", small, "www", (operation) | FORM_PAIR},                          \
        {#name ".bf16", small, "hhh", (operation) | FORM_BF16},                           \
        {#name ".bf16x2", small, "www", (operation) | FORM_PAIR | FORM_BF16},             \
        {#name ".NaN.f16", small, "hhh", (operation) | FORM_NAN},                         \
        {#name ".NaN.f16x2", small, "www", (operation) | FORM_PAIR | FORM_NAN},           \
        {#name ".NaN.bf16", small, "hhh", (operation) | FORM_BF16 | FORM_NAN}, {          \
#name ".NaN.bf16x2", small, "www", (operation) | FORM_PAIR | FORM_BF16 | FORM_NAN \
    }

const struct rule float_rules[] = {
    ROUNDINGS(add, "www", "ddd"),
    ROUNDINGS(sub, "www", "ddd"),
    ROUNDINGS(mul, "www", "ddd"),
    ROUNDINGS(fma, "wwww", "dddd"),
    ROUNDINGS(div, "www", "ddd"),
    ROUNDINGS(sqrt, "ww", "dd"),
    ROUNDINGS(rcp, "ww", "dd"),
    {"min.f32", min_max_f32, "www", 0},
    {"max.f32", min_max_f32, "www", 1},
    {"min.NaN.f32", min_max_f32, "www", 2},
    {"max.NaN.f32", min_max_f32, "www", 3},
    {"min.f64", min_max_f64, "ddd", 0},
    {"max.f64", min_max_f64, "ddd", 1},
    {"abs.f32", abs_f32, "ww", 0},
    {"neg.f32", neg_f32, "ww", 0},
    {"abs.f64", abs_f64, "dd", 0},
    {"neg.f64", neg_f64, "dd", 0},
    {"copysign.f32", copysign_f32, "www", 0},
    {"testp.finite.f32", testp_f32, "pw", IS_FINITE},
    {"testp.infinite.f32", testp_f32, "pw", IS_INFINITE},
    {"testp.number.f32", testp_f32, "pw", IS_NUMBER},
    {"testp.notanumber.f32", testp_f32, "pw", IS_NAN},
    {"testp.normal.f32", testp_f32, "pw", IS_NORMAL},
    {"testp.subnormal.f32", testp_f32, "pw", IS_SUBNORMAL},
    HALVES(add.rn, SMALL_ADD, "hhh", "www"),
    HALVES(sub.rn, SMALL_SUB, "hhh", "www"),
    HALVES(mul.rn, SMALL_MUL, "hhh", "www"),
    HALVES(fma.rn, SMALL_FMA, "hhhh", "wwww"),
    {"fma.rn.bf16", small, "hhhh", SMALL_FMA | FORM_BF16},
    {"fma.rn.bf16x2", small, "wwww", SMALL_FMA | FORM_PAIR | FORM_BF16},
    EXTREMES(min, SMALL_MIN),
    EXTREMES(max, SMALL_MAX),
    {"abs.f16", abs_small, "hh", 0},
    {"abs.bf16", abs_small, "hh", 0},
    {"abs.f16x2", abs_pair, "ww", 0},
    {"abs.bf16x2", abs_pair, "ww", 0},
    {"neg.f16", neg_small, "hh", 0},
    {"neg.bf16", neg_small, "hh", 0},
    {"neg.f16x2", neg_pair, "ww", 0},
    {"neg.bf16x2", neg_pair, "ww", 0},
    {NULL, NULL, NULL, 0},
};
