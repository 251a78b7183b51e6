// SPDX-License-Identifier: Apache-2.0
// Elementary functions without a C library. The f64 ones serve tables and sampling on the host; the
// f32 exponential is the contract's (docs/contract.md, operator 11) and is used by every backend.
// What is one hardware instruction, or is run once per element by the reference operators, is
// inline here; the rest is in math.c.
#pragma once
#include "freestanding/types.h"

// f64, round to nearest, special values as IEEE 754 recommends. The maximum error is stated beside
// each definition in math.c (all below 0.8 ulp in the ranges used here).
f64 math_exp(f64 x);
f64 math_log(f64 x);
f64 math_pow(f64 base, f64 exponent); // NaN for base <= 0, but 1 for exponent 0
f64 math_sin(f64 x);                  // |x| <= 2^27, else NaN
f64 math_cos(f64 x);                  // |x| <= 2^27, else NaN

// Hardware instructions, correctly rounded.
static inline f64 math_floor(f64 x) { return __builtin_floor(x); }
static inline f64 math_sqrt(f64 x) { return __builtin_sqrt(x); }
static inline f32 math_sqrt_f32(f32 x) { return __builtin_sqrtf(x); }
// a*b+c with one rounding.
static inline f64 math_fma(f64 a, f64 b, f64 c) { return __builtin_fma(a, b, c); }
static inline f32 math_fma_f32(f32 a, f32 b, f32 c) { return __builtin_fmaf(a, b, c); }

// The nearest integer, ties to even, for |x| <= 2^22: adding 1.5 * 2^23 leaves the sum no fraction
// bits. The sign of a zero result is +.
static inline f32 math_rne_f32(f32 x) { return (x + 0x1.8p+23f) - 0x1.8p+23f; }

// By integer bits, as the contract wants it: neither NaN nor infinity.
static inline bool math_is_finite_f32(f32 x) { return (f32_bits(x) & 0x7fffffff) < 0x7f800000; }

// The constants of math_exp_f32, for the vector and PTX forms, which must give the same bits.
#define MATH_EXP_F32_OVERFLOW 0x1.62e43p+6f      // the smallest f32 whose exponential rounds to inf
#define MATH_EXP_F32_UNDERFLOW (-0x1.9fe368p+6f) // below it the result is +0
#define MATH_EXP_F32_LOG2E 0x1.715476p+0f
#define MATH_EXP_F32_LN2_HIGH 0x1.62e4p-1f // 15 bits: n * high is exact for |n| <= 150
#define MATH_EXP_F32_LN2_LOW 0x1.7f7d1cp-20f
#define MATH_EXP_F32_DEGREE 6
// C[i] multiplies r^i.
#define MATH_EXP_F32_C0 0x1p+0f
#define MATH_EXP_F32_C1 0x1p+0f
#define MATH_EXP_F32_C2 0x1.fffffcp-2f
#define MATH_EXP_F32_C3 0x1.555492p-3f
#define MATH_EXP_F32_C4 0x1.5558dcp-5f
#define MATH_EXP_F32_C5 0x1.1239e2p-7f
#define MATH_EXP_F32_C6 0x1.6a2434p-10f
extern const f32 math_exp_f32_coefficients[MATH_EXP_F32_DEGREE + 1]; // C0 to C6

// The contract's exponential: n = rne(x*log2e); r = fma(-n, ln2_high, x), fma(-n, ln2_low, r); a
// fixed polynomial by Horner's rule with fma; times 2^(n - n/2), then 2^(n/2), n/2 rounded down. x
// at or above MATH_EXP_F32_OVERFLOW gives +infinity, below MATH_EXP_F32_UNDERFLOW +0, NaN gives
// NaN. Within MATH_EXP_F32_ULP of e^x, and of half an ulp more where the result is subnormal.
#define MATH_EXP_F32_ULP 0.90 // 0.891 is the largest seen over all 2^32 inputs
static inline f32 math_exp_f32(f32 x) {
    if (!(x < MATH_EXP_F32_OVERFLOW)) return x * __builtin_inff(); // +infinity, or NaN for NaN
    if (x < MATH_EXP_F32_UNDERFLOW) return 0.0f;
    f32 n = math_rne_f32(x * MATH_EXP_F32_LOG2E);
    f32 r = math_fma_f32(-n, MATH_EXP_F32_LN2_HIGH, x);
    r = math_fma_f32(-n, MATH_EXP_F32_LN2_LOW, r);
    f32 p = MATH_EXP_F32_C6;
    p = math_fma_f32(p, r, MATH_EXP_F32_C5);
    p = math_fma_f32(p, r, MATH_EXP_F32_C4);
    p = math_fma_f32(p, r, MATH_EXP_F32_C3);
    p = math_fma_f32(p, r, MATH_EXP_F32_C2);
    p = math_fma_f32(p, r, MATH_EXP_F32_C1);
    p = math_fma_f32(p, r, MATH_EXP_F32_C0);
    i32 whole = (i32)n; // -150 to 128
    i32 half = whole >> 1;
    p = p * f32_from_bits((u32)(whole - half + 127) << 23); // exact
    return p * f32_from_bits((u32)(half + 127) << 23);      // rounds only when subnormal
}
