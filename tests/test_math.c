// SPDX-License-Identifier: Apache-2.0
// freestanding/math: the f64 functions against high-precision vectors (tests/math_vectors.h) at the
// errors that math.c states, their special values and identities; the contract's f32 exponential
// over a stride of its inputs, or over all 2^32 with FULL=1.
#include "freestanding/math.h"
#include "math_vectors.h"
#include "test.h"

#define INFINITE __builtin_inf()
#define SEED 20251130

// The functions are rounded the same way everywhere, so their bits can be pinned: the sum over a
// set of inputs of (2 * input bits + 1) * result bits, mod 2^64. docs/contract.md states the one
// over all inputs of the f32 exponential. A new number here is a new contract.
#define EXP_F32_SUM_ALL 0x75fe5098479bf34c
#define EXP_F32_SUM_STRIDED 0xb0e45ceaa5cbee29
#define VECTORS_SUM 0x847a96388f195354

static bool is_nan(f64 x) { return x != x; }

// The distance from one f64 of x's binade to the next; that of the subnormals at the low end.
static f64 ulp_of(f64 x) {
    i32 e = (i32)(f64_bits(x) >> 52 & 0x7ff);
    e = MAX(e, 1);
    return e > 52 ? f64_from_bits((u64)(e - 52) << 52) : f64_from_bits(1ull << (e - 1));
}

// --- f64 functions against vectors ---

static f64 exp_of(f64 x, f64 y) { return (void)y, math_exp(x); }
static f64 log_of(f64 x, f64 y) { return (void)y, math_log(x); }
static f64 sin_of(f64 x, f64 y) { return (void)y, math_sin(x); }
static f64 cos_of(f64 x, f64 y) { return (void)y, math_cos(x); }

static u64 vectors_sum; // over all rows of all functions

// Rows are held to `limit` ulp, those outside the range that math.c names to `wide_limit`.
static void check_vectors(const char *name, f64 (*f)(f64, f64), const struct math_vector *v, u32 n,
                          f64 limit, f64 wide_limit, bool (*in_range)(const struct math_vector *)) {
    f64 worst = 0, worst_wide = 0;
    for (u32 i = 0; i < n; i++) {
        f64 x = f64_from_bits(v[i].x), y = f64_from_bits(v[i].y), hi = f64_from_bits(v[i].hi);
        f64 got = f(x, y);
        f64 error = (got - hi) / ulp_of(hi) - f64_from_bits(v[i].lo);
        if (error < 0) error = -error;
        vectors_sum += (2 * (v[i].x ^ v[i].y) + 1) * f64_bits(got);
        bool inside = in_range == NULL || in_range(&v[i]);
        f64 *seen = inside ? &worst : &worst_wide;
        // A NaN must fail, so the comparison is asked the other way round.
        CHECK_MSG(error < (inside ? limit : wide_limit), "%s(%.17g, %.17g) = %.17g: %.4g ulp off",
                  name, x, y, got, error);
        if (error > *seen) *seen = error;
    }
    test_note("%s: largest error %.3f ulp (limit %.2f), elsewhere %.3f (limit %.2f), %u vectors",
              name, worst, limit, worst_wide, wide_limit, n);
}

static bool is_normal_result(const struct math_vector *v) { return (v->hi >> 52 & 0x7ff) != 0; }

static bool is_small_power(const struct math_vector *v) {
    f64 exponent = f64_from_bits(v->y);
    return exponent >= -4 && exponent <= 4;
}

static void vectors(void) {
    vectors_sum = 0;
    check_vectors("exp", exp_of, exp_vectors, COUNT_OF(exp_vectors), 0.65, 0.85, is_normal_result);
    check_vectors("log", log_of, log_vectors, COUNT_OF(log_vectors), 0.51, 0.51, NULL);
    check_vectors("pow", math_pow, pow_vectors, COUNT_OF(pow_vectors), 0.66, 1.75, is_small_power);
    check_vectors("sin", sin_of, sin_vectors, COUNT_OF(sin_vectors), 0.8, 0.8, NULL);
    check_vectors("cos", cos_of, cos_vectors, COUNT_OF(cos_vectors), 0.8, 0.8, NULL);
    CHECK_MSG(vectors_sum == VECTORS_SUM, "the bits changed: sum 0x%016llx", vectors_sum);
}

// --- special values ---

static void special_values(void) {
    f64 nan = __builtin_nan("");
    f64 above = f64_from_bits(f64_bits(0x1.62e42fefa39efp+9) + 1); // first x whose e^x is infinite
    f64 below = -0x1.74910d52d3052p+9;                             // last x whose e^x is 0
    static const f64 exact[][2] = {{0.0, 1.0},        {-0.0, 1.0},          {-1e300, 0.0},
                                   {1e300, INFINITE}, {INFINITE, INFINITE}, {-INFINITE, 0.0},
                                   {0x1p-80, 1.0}};
    for (u32 i = 0; i < COUNT_OF(exact); i++) CHECK(math_exp(exact[i][0]) == exact[i][1]);
    CHECK(math_exp(above) == INFINITE);
    CHECK(math_exp(below) == 0.0);
    CHECK(math_exp(f64_from_bits(f64_bits(below) - 1)) == 0x1p-1074);
    CHECK(is_nan(math_exp(nan)));

    CHECK(math_log(1.0) == 0.0 && f64_bits(math_log(1.0)) == 0);
    CHECK(math_log(0.0) == -INFINITE && math_log(-0.0) == -INFINITE);
    CHECK(math_log(INFINITE) == INFINITE);
    CHECK(is_nan(math_log(-1.0)) && is_nan(math_log(-INFINITE)) && is_nan(math_log(nan)));

    CHECK(math_pow(2.0, 0.0) == 1.0 && math_pow(nan, 0.0) == 1.0 && math_pow(0.0, 0.0) == 1.0);
    CHECK(math_pow(1.0, nan) == 1.0 && math_pow(1.0, INFINITE) == 1.0);
    CHECK(is_nan(math_pow(-2.0, 2.0)) && is_nan(math_pow(0.0, 2.0)) && is_nan(math_pow(nan, 1.0)));
    CHECK(is_nan(math_pow(2.0, nan)));
    CHECK(math_pow(2.0, INFINITE) == INFINITE && math_pow(2.0, -INFINITE) == 0.0);
    CHECK(math_pow(0.5, INFINITE) == 0.0 && math_pow(0.5, -INFINITE) == INFINITE);
    CHECK(math_pow(INFINITE, 0.5) == INFINITE && math_pow(INFINITE, -0.5) == 0.0);
    CHECK(math_pow(10.0, 400.0) == INFINITE && math_pow(10.0, -400.0) == 0.0);
    for (i32 k = -1022; k <= 1023; k++) { // whole powers of two are exact
        CHECK_MSG(math_pow(2.0, k) == f64_from_bits((u64)(k + 1023) << 52), "2^%d", k);
    }

    CHECK(f64_bits(math_sin(0.0)) == 0 && f64_bits(math_sin(-0.0)) == f64_bits(-0.0));
    CHECK(math_cos(0.0) == 1.0 && math_cos(-0.0) == 1.0);
    CHECK(is_nan(math_sin(INFINITE)) && is_nan(math_cos(nan)));
    f64 past_range = f64_from_bits(f64_bits(0x1p+27) + 1);
    CHECK(is_nan(math_sin(past_range)) && is_nan(math_cos(-past_range)));
    CHECK(!is_nan(math_sin(0x1p+27)) && !is_nan(math_cos(-0x1p+27)));
}

static void identities(void) {
    struct test_random random = {SEED};
    for (u32 i = 0; i < 20000; i++) {
        f64 x = (test_random_unit(&random) - 0.5) * 200000.0;
        f64 s = math_sin(x), c = math_cos(x);
        CHECK(f64_bits(math_sin(-x)) == f64_bits(-s) && f64_bits(math_cos(-x)) == f64_bits(c));
        f64 one = s * s + c * c; // both within 0.8 ulp, three more roundings
        CHECK_MSG(one > 1 - 0x1p-51 && one < 1 + 0x1p-51, "sin^2 + cos^2 of %.17g", x);
        f64 y = 1e-3 + test_random_unit(&random) * 1e4;
        f64 back = math_exp(math_log(y)); // an error of ln y times its size, then that of exp
        f64 error = (back - y) / y;
        CHECK_MSG(error < 0x1p-49 && error > -0x1p-49, "exp(log(%.17g))", y);
        f64 first = math_pow(y, 1.0);
        CHECK_MSG(first - y <= ulp_of(y) && y - first <= ulp_of(y), "pow(%.17g, 1)", y);
    }
}

static void single_instructions(void) {
    static const f64 floors[][2] = {{1.5, 1},
                                    {-1.5, -2},
                                    {2, 2},
                                    {-0.25, -1},
                                    {0x1p+60, 0x1p+60},
                                    {0.99999999999999994, 0},
                                    {-3, -3},
                                    {4503599627370495.5, 4503599627370495.0}};
    for (u32 i = 0; i < COUNT_OF(floors); i++) CHECK(math_floor(floors[i][0]) == floors[i][1]);
    CHECK(math_sqrt(2.0) == 0x1.6a09e667f3bcdp+0 && math_sqrt(0x1p-1074) == 0x1p-537);
    CHECK(math_sqrt(0.0) == 0.0 && is_nan(math_sqrt(-1.0)) && math_sqrt(INFINITE) == INFINITE);
    CHECK(math_sqrt_f32(2.0f) == 0x1.6a09e6p+0f && math_sqrt_f32(0x1p-148f) == 0x1p-74f);
    // One rounding: (1 + 2^-12)^2 - (1 + 2^-11) is exactly 2^-24, which two roundings lose.
    CHECK(math_fma_f32(1.0f + 0x1p-12f, 1.0f + 0x1p-12f, -(1.0f + 0x1p-11f)) == 0x1p-24f);
    CHECK(math_fma(1.0 + 0x1p-27, 1.0 + 0x1p-27, -(1.0 + 0x1p-26)) == 0x1p-54);
    static const f32 nearest[][2] = {{0.5f, 0},           {1.5f, 2},         {2.5f, 2},
                                     {-0.5f, 0},          {-1.5f, -2},       {-2.5f, -2},
                                     {0x1.fffffep-2f, 0}, {32766.5f, 32766}, {-32767.0f, -32767},
                                     {0x1p+22f, 0x1p+22f}};
    for (u32 i = 0; i < COUNT_OF(nearest); i++) CHECK(math_rne_f32(nearest[i][0]) == nearest[i][1]);
    CHECK(math_is_finite_f32(0x1.fffffep+127f) && !math_is_finite_f32(-__builtin_inff()));
    CHECK(!math_is_finite_f32(f32_from_bits(0x7f800001)) && math_is_finite_f32(-0.0f));
}

// --- the f32 exponential ---

static void exp_f32_constants(void) {
    const f64 ln2 = 0x1.62e42fefa39efp-1;
    for (i32 n = -150; n <= 128; n++) { // n * high is exact, and so is the reduction's first step
        f32 rounded = (f32)n * MATH_EXP_F32_LN2_HIGH;
        CHECK((f64)rounded == n * (f64)MATH_EXP_F32_LN2_HIGH);
        // Both roundings of n/2 give the same powers' product for a factor near 1.
        i32 down = n >> 1, toward_zero = n / 2;
        f64 p = 1.37;
        f32 a = (f32)p * f32_from_bits((u32)(n - down + 127) << 23);
        f32 b = (f32)p * f32_from_bits((u32)(n - toward_zero + 127) << 23);
        a = a * f32_from_bits((u32)(down + 127) << 23);
        b = b * f32_from_bits((u32)(toward_zero + 127) << 23);
        CHECK_MSG(f32_bits(a) == f32_bits(b), "halves of %d", n);
    }
    f64 rest = ln2 - MATH_EXP_F32_LN2_HIGH;
    CHECK((f32)rest == MATH_EXP_F32_LN2_LOW);
    CHECK((f32)(1 / ln2) == MATH_EXP_F32_LOG2E);
    // The thresholds are the exact places where the rounded exponential changes.
    f64 to_infinity = (2 - 0x1p-24) * 0x1p+127;
    f32 overflow = MATH_EXP_F32_OVERFLOW, underflow = MATH_EXP_F32_UNDERFLOW;
    CHECK(math_exp(overflow) >= to_infinity);
    CHECK(math_exp(f32_from_bits(f32_bits(overflow) - 1)) < to_infinity);
    CHECK(math_exp(underflow) > 0x1p-150);
    CHECK(math_exp(f32_from_bits(f32_bits(underflow) + 1)) < 0x1p-150);
    static const f32 from_macros[] = {MATH_EXP_F32_C0, MATH_EXP_F32_C1, MATH_EXP_F32_C2,
                                      MATH_EXP_F32_C3, MATH_EXP_F32_C4, MATH_EXP_F32_C5,
                                      MATH_EXP_F32_C6};
    static_assert(COUNT_OF(from_macros) == MATH_EXP_F32_DEGREE + 1, "one per power");
    for (u32 i = 0; i < COUNT_OF(from_macros); i++) {
        CHECK(math_exp_f32_coefficients[i] == from_macros[i]);
    }
}

static void exp_f32_special(void) {
    CHECK(f32_bits(math_exp_f32(0.0f)) == f32_bits(1.0f));
    CHECK(f32_bits(math_exp_f32(-0.0f)) == f32_bits(1.0f));
    CHECK(f32_bits(math_exp_f32(MATH_EXP_F32_OVERFLOW)) == 0x7f800000);
    CHECK(f32_bits(math_exp_f32(__builtin_inff())) == 0x7f800000);
    CHECK(f32_bits(math_exp_f32(-__builtin_inff())) == 0);
    CHECK(f32_bits(math_exp_f32(MATH_EXP_F32_UNDERFLOW)) == 1); // the smallest subnormal
    CHECK(f32_bits(math_exp_f32(f32_from_bits(f32_bits(MATH_EXP_F32_UNDERFLOW) + 1))) == 0);
    f32 largest = math_exp_f32(f32_from_bits(f32_bits(MATH_EXP_F32_OVERFLOW) - 1));
    CHECK(f32_bits(largest) >= 0x7f7fff00 && f32_bits(largest) < 0x7f800000);
    CHECK(is_nan(math_exp_f32(f32_from_bits(0x7fc00000))));
    CHECK(is_nan(math_exp_f32(f32_from_bits(0xff800001))));
    CHECK(math_exp_f32(1.0f) == 0x1.5bf0a8p+1f);
}

struct exp_sweep {
    u64 begin, end, stride; // of input bits
    f64 worst, worst_subnormal;
    u32 worst_bits;
    u64 sum;     // see EXP_F32_SUM_ALL; NaN counts as 0x7fc00000
    u64 n_wrong; // inputs whose class (NaN, infinite, zero) or error is wrong
};

static void exp_sweep_run(void *argument) {
    struct exp_sweep *sweep = argument;
    for (u64 bits = sweep->begin; bits < sweep->end; bits += sweep->stride) {
        f32 x = f32_from_bits((u32)bits);
        f32 got = math_exp_f32(x);
        sweep->sum += (2 * bits + 1) * (got == got ? f32_bits(got) : 0x7fc00000);
        if (!(x < MATH_EXP_F32_OVERFLOW)) {
            sweep->n_wrong += x != x ? got == got : f32_bits(got) != 0x7f800000;
            continue;
        }
        if (x < MATH_EXP_F32_UNDERFLOW) {
            sweep->n_wrong += f32_bits(got) != 0;
            continue;
        }
        f64 want = math_exp(x); // its own error is below 2^-29 of an f32 ulp
        bool subnormal = want < 0x1p-126;
        f64 ulp = subnormal ? 0x1p-149 : f64_from_bits(((f64_bits(want) >> 52) - 23) << 52);
        f64 error = ((f64)got - want) / ulp;
        if (error < 0) error = -error;
        f64 *worst = subnormal ? &sweep->worst_subnormal : &sweep->worst;
        if (error > *worst) {
            *worst = error;
            if (!subnormal) sweep->worst_bits = (u32)bits;
        }
        sweep->n_wrong += !(error <= MATH_EXP_F32_ULP + (subnormal ? 0.5 : 0.0));
    }
}

static void exp_f32_sweep(void) {
    bool full = test_option("FULL") != NULL;
    u64 stride = full ? 1 : 257; // a prime, so that every low digit occurs
    // Halves of equal work: each thread takes one sign.
    struct exp_sweep sweeps[2] = {{.begin = 0, .end = 1ull << 31, .stride = stride},
                                  {.begin = 1ull << 31, .end = 1ull << 32, .stride = stride}};
    struct platform_thread *thread;
    struct sov_fault fault = {0};
    if (platform_thread_start(exp_sweep_run, &sweeps[1], &thread, &fault) != SOV_OK) {
        CHECK_MSG(false, "%s", fault.message);
        return;
    }
    exp_sweep_run(&sweeps[0]);
    platform_thread_join(thread);
    f64 worst = MAX(sweeps[0].worst, sweeps[1].worst);
    CHECK_MSG(sweeps[0].n_wrong == 0 && sweeps[1].n_wrong == 0, "%llu wrong results",
              sweeps[0].n_wrong + sweeps[1].n_wrong);
    u64 sum = sweeps[0].sum + sweeps[1].sum;
    u64 expected_sum = full ? EXP_F32_SUM_ALL : EXP_F32_SUM_STRIDED;
    CHECK_MSG(sum == expected_sum, "the bits changed: sum 0x%016llx", sum);
    CHECK(worst > 0.5); // an error below what rounding alone makes: nothing was measured
    test_note("exp_f32, stride %llu: largest error %.4f ulp at 0x%08x and %.4f at 0x%08x, "
              "%.4f where the result is subnormal",
              stride, sweeps[0].worst, sweeps[0].worst_bits, sweeps[1].worst, sweeps[1].worst_bits,
              sweeps[1].worst_subnormal);
}

static const struct test_case cases[] = {
    {"vectors", vectors},
    {"special_values", special_values},
    {"identities", identities},
    {"single_instructions", single_instructions},
    {"exp_f32_constants", exp_f32_constants},
    {"exp_f32_special", exp_f32_special},
    {"exp_f32_sweep", exp_f32_sweep},
};

int program_main(const struct platform_start *start) {
    return test_main(start, "test_math", cases, COUNT_OF(cases));
}
