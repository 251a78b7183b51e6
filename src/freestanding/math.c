// SPDX-License-Identifier: Apache-2.0
// Elementary functions in f64, without tables: an argument is reduced exactly enough (with a second
// f64 for what the first cannot hold), a Taylor polynomial is evaluated on the small rest, and the
// last addition is arranged so that it alone rounds in the leading digits. fma is used throughout:
// it makes the error of a product available exactly.
//
// The error stated at a function is the one its derivation allows, in units in the last place (ulp)
// of the result; tests/test_math.c holds it against 200-bit values.
//
// M1. The results depend on IEEE 754 arithmetic only, so every x86-64-v3 CPU gives the same bits.
// M2. The compiler may neither contract nor reorder (-ffp-contract=off, no -ffast-math).
#include "freestanding/math.h"

const f32 math_exp_f32_coefficients[MATH_EXP_F32_DEGREE + 1] = {
    MATH_EXP_F32_C0, MATH_EXP_F32_C1, MATH_EXP_F32_C2, MATH_EXP_F32_C3,
    MATH_EXP_F32_C4, MATH_EXP_F32_C5, MATH_EXP_F32_C6,
};

#define INFINITE __builtin_inf()
#define NOT_A_NUMBER __builtin_nan("")
#define ROUNDING 0x1.8p+52 // adding and taking it off rounds |x| < 2^51 to the nearest integer

// A value as the unevaluated sum of two f64; |lo| is at most about half an ulp of hi.
struct pair {
    f64 hi, lo;
};

// a + b exactly, for any a and b that do not overflow.
static struct pair sum(f64 a, f64 b) {
    f64 hi = a + b;
    f64 b_part = hi - a;
    f64 a_part = hi - b_part;
    return (struct pair){hi, (a - a_part) + (b - b_part)};
}

// The same where |a| >= |b| or a is 0.
static struct pair sum_ordered(f64 a, f64 b) {
    f64 hi = a + b;
    return (struct pair){hi, b - (hi - a)};
}

// a * b exactly, while nothing overflows or becomes subnormal.
static struct pair product(f64 a, f64 b) {
    f64 hi = a * b;
    return (struct pair){hi, math_fma(a, b, -hi)};
}

// x * 2^n, -1100 <= n <= 1100, in halves so that neither factor overflows. x is near 1, so the
// first product is exact and only the second can round (a subnormal result).
static f64 scale_by_power(f64 x, i32 n) {
    i32 half = n >> 1;
    x = x * f64_from_bits((u64)(n - half + 1023) << 52);
    return x * f64_from_bits((u64)(half + 1023) << 52);
}

// --- exp ---

// ln 2 in parts: 41 bits, so that n * LN2_HIGH is exact for |n| < 2^12, and the next 53.
#define LN2_HIGH 0x1.62e42fefa3p-1
#define LN2_LOW 0x1.3de6af278ece6p-42
#define LOG2E 0x1.71547652b82fep+0

// e^(hi + lo) for -746 < hi < 710. n = rne(hi / ln 2); r + r_lo = hi + lo - n * ln 2, |r| < 0.347;
// e^r = 1 + r + r^2 * (1/2! + r/3! + ... + r^12/14!), where the first term left out is below 2^-61,
// and e^(r + r_lo) = e^r + r_lo * (1 + r) as far as it matters. 0.5 ulp by the last addition, below
// 0.15 ulp by what it adds.
static f64 exp_of_pair(f64 hi, f64 lo) {
    f64 n = (hi * LOG2E + ROUNDING) - ROUNDING;
    struct pair second = product(n, LN2_LOW);
    struct pair r = sum(math_fma(-n, LN2_HIGH, hi), -second.hi); // the fma is exact
    r = sum(r.hi, r.lo + (lo - second.lo));
    f64 x = r.hi;
    f64 p = 0x1.93974a8c07c9dp-37; // 1/14!
    p = math_fma(p, x, 0x1.6124613a86d09p-33);
    p = math_fma(p, x, 0x1.1eed8eff8d898p-29);
    p = math_fma(p, x, 0x1.ae64567f544e4p-26);
    p = math_fma(p, x, 0x1.27e4fb7789f5cp-22);
    p = math_fma(p, x, 0x1.71de3a556c734p-19);
    p = math_fma(p, x, 0x1.a01a01a01a01ap-16);
    p = math_fma(p, x, 0x1.a01a01a01a01ap-13);
    p = math_fma(p, x, 0x1.6c16c16c16c17p-10);
    p = math_fma(p, x, 0x1.1111111111111p-7);
    p = math_fma(p, x, 0x1.5555555555555p-5);
    p = math_fma(p, x, 0x1.5555555555555p-3);
    p = math_fma(p, x, 0x1p-1); // 1/2!
    struct pair head = sum_ordered(1.0, x);
    f64 small = math_fma(p, x * x, math_fma(r.lo, x, r.lo) + head.lo);
    return scale_by_power(head.hi + small, (i32)n);
}

#define EXP_LARGEST 0x1.62e42fefa39efp+9 // above it e^x rounds to infinity
#define EXP_ZERO (-0x1.74910d52d3052p+9) // at or below it e^x rounds to 0

// Error below 0.65 ulp; a subnormal result is rounded twice: below 0.85 ulp.
f64 math_exp(f64 x) {
    if (x != x) return x;
    if (x > EXP_LARGEST) return INFINITE;
    if (x <= EXP_ZERO) return 0.0;
    return exp_of_pair(x, 0.0);
}

// --- log ---

// ln x for a positive finite x, to 2^-62.5 of its value. x = 2^e * m with m between sqrt(1/2) and
// sqrt(2); s = (m-1)/(m+1), |s| < 0.1716; ln m = 2s + 2/3 s^3 + 2/5 s^5 + ... + 2/25 s^25. The
// first two terms are kept as pairs; the rest is below 2^-12 of the sum and needs one f64, whose
// four roundings (4 * 2^-53 * 6.2e-5, against 0.343) are most of the error.
static struct pair log_to_pair(f64 x) {
    i32 e = 0;
    if (x < 0x1p-1022) { // subnormal: make it normal
        x = x * 0x1p+54;
        e = -54;
    }
    u64 bits = f64_bits(x);
    u64 mantissa = bits & 0xfffffffffffff;
    bool above = mantissa > 0x6a09e667f3bcc; // of sqrt(2)
    e += (i32)(bits >> 52) - 1023 + (above ? 1 : 0);
    f64 m = f64_from_bits(mantissa | (above ? 0x3feull : 0x3ffull) << 52);

    struct pair divisor = sum(m, 1.0);
    f64 s = (m - 1.0) / divisor.hi;
    f64 rest = math_fma(-s, divisor.hi, m - 1.0) - s * divisor.lo;
    f64 s_lo = rest / divisor.hi;
    struct pair square = product(s, s);
    square.lo += 2.0 * s * s_lo;
    struct pair cube = product(square.hi, s);
    cube.lo += math_fma(square.hi, s_lo, square.lo * s);
    struct pair third = product(cube.hi, 0x1.5555555555555p-1); // 2/3, and what its f64 lacks
    third.lo += math_fma(cube.hi, 0x1.5555555555555p-55, cube.lo * 0x1.5555555555555p-1);

    f64 z = square.hi;
    f64 p = 0x1.47ae147ae147bp-4; // 2/25
    p = math_fma(p, z, 0x1.642c8590b2164p-4);
    p = math_fma(p, z, 0x1.8618618618618p-4);
    p = math_fma(p, z, 0x1.af286bca1af28p-4);
    p = math_fma(p, z, 0x1.e1e1e1e1e1e1ep-4);
    p = math_fma(p, z, 0x1.1111111111111p-3);
    p = math_fma(p, z, 0x1.3b13b13b13b14p-3);
    p = math_fma(p, z, 0x1.745d1745d1746p-3);
    p = math_fma(p, z, 0x1.c71c71c71c71cp-3);
    p = math_fma(p, z, 0x1.2492492492492p-2);
    p = math_fma(p, z, 0x1.999999999999ap-2); // 2/5
    f64 tail = p * (z * cube.hi);

    struct pair log_m = sum_ordered(2.0 * s, third.hi);
    log_m.lo += 2.0 * s_lo + (third.lo + tail);
    struct pair result = sum((f64)e * LN2_HIGH, log_m.hi); // the product is exact
    result.lo += log_m.lo + (f64)e * LN2_LOW;
    return sum_ordered(result.hi, result.lo);
}

// Error below 0.51 ulp.
f64 math_log(f64 x) {
    if (x != x || x == INFINITE) return x;
    if (x == 0.0) return -INFINITE;
    if (x < 0.0) return NOT_A_NUMBER;
    return log_to_pair(x).hi;
}

// --- pow ---

// e^(exponent * ln base). The product carries the error of the pair times the exponent: in absolute
// terms below |exponent| * 2^-64 (ln m is within 2^-64, and the rest of the pair far closer), or
// |exponent * ln base| * 2^-62.5 where the base is so near 1 that this is less. So the error is
// below 0.66 ulp for exponents from -4 to 4, and below 1.75 ulp for every normal result.
f64 math_pow(f64 base, f64 exponent) {
    if (exponent == 0.0 || base == 1.0) return 1.0;
    if (base != base || exponent != exponent) return NOT_A_NUMBER;
    if (!(base > 0.0)) return NOT_A_NUMBER;
    if (base == INFINITE) return exponent > 0.0 ? INFINITE : 0.0;
    struct pair log_base = log_to_pair(base);
    f64 head = log_base.hi * exponent; // infinite for an infinite exponent, which ends here too
    if (head > 710.0) return INFINITE;
    if (head < -746.0) return 0.0;
    struct pair p = product(log_base.hi, exponent);
    return exp_of_pair(p.hi, math_fma(log_base.lo, exponent, p.lo));
}

// --- sin, cos ---

// pi/2 in three parts of 53 bits.
#define HALF_PI_1 0x1.921fb54442d18p+0
#define HALF_PI_2 0x1.1a62633145c07p-54
#define HALF_PI_3 (-0x1.f1976b7ed8fbcp-110)
#define TWO_OVER_PI 0x1.45f306dc9c883p-1
#define TRIG_LARGEST 0x1p+27

// x - n * pi/2 for n = rne(x * 2/pi), |x| <= 2^27; *quadrant = n mod 4. The first step is exact:
// both operands are multiples of 2^-53 and the difference is below 1. The sum of the parts differs
// from pi/2 by less than 2^-162, so n times it by less than 2^-135, and no f64 up to 2^27 is nearer
// than 2^-90 to a multiple of pi/2.
static struct pair reduce_by_half_pi(f64 x, u32 *quadrant) {
    f64 n = (x * TWO_OVER_PI + ROUNDING) - ROUNDING;
    *quadrant = (u32)(i32)n & 3;
    f64 first = math_fma(-n, HALF_PI_1, x);
    struct pair second = product(n, HALF_PI_2);
    struct pair r = sum(first, -second.hi);
    r.lo -= second.lo;
    struct pair r2 = sum(r.hi, r.lo);
    r2.lo -= n * HALF_PI_3;
    return sum_ordered(r2.hi, r2.lo);
}

// sin(hi + lo), |hi| < 0.786: hi + hi^3 * (-1/3! + hi^2/5! - ... + hi^14/17!) + lo * (1 - hi^2/2).
// 0.5 ulp by the last addition; hi^2 (0.07), hi^3 (0.04), the polynomial (0.1) and its product
// (0.07) bring the rest.
static f64 sin_of_pair(struct pair r) {
    f64 x = r.hi, z = x * x;
    f64 p = 0x1.952c77030ad4ap-49; // 1/17!
    p = math_fma(p, z, -0x1.ae7f3e733b81fp-41);
    p = math_fma(p, z, 0x1.6124613a86d09p-33);
    p = math_fma(p, z, -0x1.ae64567f544e4p-26);
    p = math_fma(p, z, 0x1.71de3a556c734p-19);
    p = math_fma(p, z, -0x1.a01a01a01a01ap-13);
    p = math_fma(p, z, 0x1.1111111111111p-7);
    p = math_fma(p, z, -0x1.5555555555555p-3); // -1/3!
    return x + math_fma(p, z * x, math_fma(-0.5 * z, r.lo, r.lo));
}

// cos(hi + lo): 1 - hi^2/2 as an exact pair, + hi^4 * (1/4! - hi^2/6! + ... - hi^14/18!) - hi * lo.
static f64 cos_of_pair(struct pair r) {
    f64 x = r.hi;
    struct pair square = product(x, x);
    f64 z = square.hi;
    f64 p = -0x1.6827863b97d97p-53; // -1/18!
    p = math_fma(p, z, 0x1.ae7f3e733b81fp-45);
    p = math_fma(p, z, -0x1.93974a8c07c9dp-37);
    p = math_fma(p, z, 0x1.1eed8eff8d898p-29);
    p = math_fma(p, z, -0x1.27e4fb7789f5cp-22);
    p = math_fma(p, z, 0x1.a01a01a01a01ap-16);
    p = math_fma(p, z, -0x1.6c16c16c16c17p-10);
    p = math_fma(p, z, 0x1.5555555555555p-5); // 1/4!
    struct pair head = sum_ordered(1.0, -0.5 * z);
    f64 small = head.lo - 0.5 * square.lo - x * r.lo;
    return head.hi + math_fma(p, z * z, small);
}

// sin(x + n * pi/2): n mod 4 picks the function and the sign.
static f64 sin_in_quadrant(f64 x, u32 shift) {
    if (!(x <= TRIG_LARGEST && x >= -TRIG_LARGEST)) return NOT_A_NUMBER;
    u32 quadrant;
    struct pair r = reduce_by_half_pi(x, &quadrant);
    quadrant = (quadrant + shift) & 3;
    f64 value = quadrant & 1 ? cos_of_pair(r) : sin_of_pair(r);
    return quadrant & 2 ? -value : value;
}

// Error below 0.8 ulp.
f64 math_sin(f64 x) {
    if (__builtin_fabs(x) < 0x1p-27) return x; // x^3/6 is far below half an ulp; keeps -0
    return sin_in_quadrant(x, 0);
}

// Error below 0.8 ulp.
f64 math_cos(f64 x) { return sin_in_quadrant(x, 1); }
