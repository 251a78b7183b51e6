// SPDX-License-Identifier: Apache-2.0
// Integer, logic, bit-field, byte and dot-product instructions: one handler per opcode, values as
// PTX defines them. Registers hold their bits zero-extended to 64.
#include "exec.h"

typedef __int128 i128;
typedef unsigned __int128 u128;

#define A(type) ((type)get(t, &i->src[0]))
#define B(type) ((type)get(t, &i->src[1]))
#define C(type) ((type)get(t, &i->src[2]))
#define HANDLER(name) static void name(struct thread *t, const struct insn *i)

// name, operand type, unsigned type of the result, formula of a, b, c
#define UNARY(name, type, result, formula)          \
    HANDLER(name) {                                 \
        type a = A(type);                           \
        put(t, &i->dst[0], (u64)(result)(formula)); \
    }
#define BINARY(name, type, result, formula)         \
    HANDLER(name) {                                 \
        type a = A(type);                           \
        type b = B(type);                           \
        put(t, &i->dst[0], (u64)(result)(formula)); \
    }
#define TERNARY(name, type, type_c, result, formula) \
    HANDLER(name) {                                  \
        type a = A(type);                            \
        type b = B(type);                            \
        type_c c = C(type_c);                        \
        put(t, &i->dst[0], (u64)(result)(formula));  \
    }

// --- sums and products, modulo 2^n ---

BINARY(add_16, u16, u16, a + b)
BINARY(add_32, u32, u32, a + b)
BINARY(add_64, u64, u64, a + b)
BINARY(sub_16, u16, u16, a - b)
BINARY(sub_32, u32, u32, a - b)
BINARY(sub_64, u64, u64, a - b)
#define SATURATE_S32(value) \
    ((value) > 2147483647ll ? 2147483647ll : (value) < -2147483648ll ? -2147483648ll : (value))
BINARY(add_sat, i32, u32, SATURATE_S32((i64)a + b))
BINARY(sub_sat, i32, u32, SATURATE_S32((i64)a - b))
BINARY(mul_16, u16, u16, (u32)a *b)
BINARY(mul_32, u32, u32, a *b)
BINARY(mul_64, u64, u64, a *b)
BINARY(mul_hi_u16, u16, u16, (u32)a *b >> 16)
BINARY(mul_hi_s16, i16, u16, (i32)a *b >> 16)
BINARY(mul_hi_u32, u32, u32, (u64)a *b >> 32)
BINARY(mul_hi_s32, i32, u32, (i64)a *b >> 32)
BINARY(mul_hi_u64, u64, u64, (u128)a *b >> 64)
BINARY(mul_hi_s64, i64, u64, (i128)a *b >> 64)
BINARY(mul_wide_u16, u16, u32, (u32)a *b)
BINARY(mul_wide_s16, i16, u32, (i32)a *b)
BINARY(mul_wide_u32, u32, u64, (u64)a *b)
BINARY(mul_wide_s32, i32, u64, (i64)a *b)
TERNARY(mad_16, u16, u16, u16, (u32)a *b + c)
TERNARY(mad_32, u32, u32, u32, a *b + c)
TERNARY(mad_64, u64, u64, u64, a *b + c)
TERNARY(mad_hi_u32, u32, u32, u32, (u32)((u64)a *b >> 32) + c)
TERNARY(mad_hi_s32, i32, u32, u32, (u32)((i64)a *b >> 32) + c)
TERNARY(mad_hi_u64, u64, u64, u64, (u64)((u128)a *b >> 64) + c)
TERNARY(mad_hi_s64, i64, u64, u64, (u64)((i128)a *b >> 64) + c)
TERNARY(mad_wide_u16, u16, u32, u32, (u32)a *b + c)
TERNARY(mad_wide_s16, i16, u32, u32, (u32)((i32)a *b) + c)
TERNARY(mad_wide_u32, u32, u64, u64, (u64)a *b + c)
TERNARY(mad_wide_s32, i32, u64, u64, (u64)((i64)a *b) + c)

// --- with carry ---

HANDLER(add_carry_32) { // sub: 1 takes the carry in, 2 gives it out
    u64 sum = (u64)A(u32) + B(u32) + ((i->sub & 1) ? t->carry : 0);
    if (i->sub & 2) t->carry = (u8)(sum >> 32);
    put(t, &i->dst[0], (u32)sum);
}

HANDLER(add_carry_64) {
    u128 sum = (u128)A(u64) + B(u64) + ((i->sub & 1) ? t->carry : 0);
    if (i->sub & 2) t->carry = (u8)(sum >> 64);
    put(t, &i->dst[0], (u64)sum);
}

HANDLER(sub_carry_32) {
    u64 difference = (u64)A(u32) - B(u32) - ((i->sub & 1) ? t->carry : 0);
    if (i->sub & 2) t->carry = (u8)(difference >> 32 & 1);
    put(t, &i->dst[0], (u32)difference);
}

HANDLER(sub_carry_64) {
    u128 difference = (u128)A(u64) - B(u64) - ((i->sub & 1) ? t->carry : 0);
    if (i->sub & 2) t->carry = (u8)(difference >> 64 & 1);
    put(t, &i->dst[0], (u64)difference);
}

HANDLER(mad_carry_32) { // sub: and 4 takes the high half of the product
    u64 product = (u64)A(u32) * B(u32);
    u64 half = (i->sub & 4) ? product >> 32 : (u32)product;
    u64 sum = half + C(u32) + ((i->sub & 1) ? t->carry : 0);
    if (i->sub & 2) t->carry = (u8)(sum >> 32);
    put(t, &i->dst[0], (u32)sum);
}

// --- division, order, magnitude ---

#define DIVISION(name, type, result, minimum)                                            \
    HANDLER(div_##name) {                                                                \
        type a = A(type);                                                                \
        type b = B(type);                                                                \
        if (b == 0) REPORT(t, REPORT_ARITHMETIC, "a division by 0");                     \
        bool wraps = (minimum) != 0 && a == (type)(minimum) && b == (type)-1;            \
        put(t, &i->dst[0], b == 0 ? (u64)(result)-1 : (u64)(result)(wraps ? a : a / b)); \
    }                                                                                    \
    HANDLER(rem_##name) {                                                                \
        type a = A(type);                                                                \
        type b = B(type);                                                                \
        if (b == 0) REPORT(t, REPORT_ARITHMETIC, "a remainder of a division by 0");      \
        bool wraps = (minimum) != 0 && a == (type)(minimum) && b == (type)-1;            \
        put(t, &i->dst[0], b == 0 ? (u64)(result)a : wraps ? 0 : (u64)(result)(a % b));  \
    }
DIVISION(u16, u16, u16, 0)
DIVISION(s16, i16, u16, SHRT_MIN)
DIVISION(u32, u32, u32, 0)
DIVISION(s32, i32, u32, INT_MIN)
DIVISION(u64, u64, u64, 0)
DIVISION(s64, i64, u64, LLONG_MIN)

#define ORDERED(name, type, result)             \
    BINARY(min_##name, type, result, MIN(a, b)) \
    BINARY(max_##name, type, result, MAX(a, b)) \
    TERNARY(                                    \
        sad_##name, type, result, result,       \
        (result)(c + (a < b ? (result)((result)b - (result)a) : (result)((result)a - (result)b))))
ORDERED(u16, u16, u16)
ORDERED(s16, i16, u16)
ORDERED(u32, u32, u32)
ORDERED(s32, i32, u32)
ORDERED(u64, u64, u64)
ORDERED(s64, i64, u64)

UNARY(abs_16, i16, u16, a < 0 ? -(i32)a : a)
UNARY(abs_32, i32, u32, a < 0 ? 0u - (u32)a : (u32)a)
UNARY(abs_64, i64, u64, a < 0 ? 0ull - (u64)a : (u64)a)
UNARY(neg_16, u16, u16, -(i32)a)
UNARY(neg_32, u32, u32, 0u - a)
UNARY(neg_64, u64, u64, 0ull - a)

// --- logic and shifts ---

BINARY(and_any, u64, u64, a &b)
BINARY(or_any, u64, u64, a | b)
BINARY(xor_any, u64, u64, a ^ b)
BINARY(and_32, u32, u32, a &b)
BINARY(or_32, u32, u32, a | b)
BINARY(xor_32, u32, u32, a ^ b)
BINARY(and_16, u16, u16, a &b)
BINARY(or_16, u16, u16, a | b)
BINARY(xor_16, u16, u16, a ^ b)
UNARY(not_pred, u64, u64, !a)
UNARY(not_16, u16, u16, ~a)
UNARY(not_32, u32, u32, ~a)
UNARY(not_64, u64, u64, ~a)
UNARY(cnot_32, u32, u32, a == 0)

#define SHIFTS(bits, unsigned_type, signed_type)                                           \
    HANDLER(shl_##bits) {                                                                  \
        u32 n = B(u32);                                                                    \
        put(t, &i->dst[0], n >= (bits) ? 0 : (unsigned_type)((u64)A(unsigned_type) << n)); \
    }                                                                                      \
    HANDLER(shr_u##bits) {                                                                 \
        u32 n = B(u32);                                                                    \
        put(t, &i->dst[0], n >= (bits) ? 0 : (unsigned_type)(A(unsigned_type) >> n));      \
    }                                                                                      \
    HANDLER(shr_s##bits) {                                                                 \
        u32 n = MIN(B(u32), (u32)(bits)-1);                                                \
        put(t, &i->dst[0], (unsigned_type)(signed_type)(A(signed_type) >> n));             \
    }
SHIFTS(16, u16, i16)
SHIFTS(32, u32, i32)
SHIFTS(64, u64, i64)

// The funnel: b:a as 64 bits; the high word after a left shift, the low word after a right one.
static u64 funnel(struct thread *t, const struct insn *i) { return (u64)B(u32) << 32 | A(u32); }
HANDLER(shf_l_wrap) { put(t, &i->dst[0], (u32)(funnel(t, i) << (C(u32) & 31) >> 32)); }
HANDLER(shf_r_wrap) { put(t, &i->dst[0], (u32)(funnel(t, i) >> (C(u32) & 31))); }
HANDLER(shf_l_clamp) { put(t, &i->dst[0], (u32)(funnel(t, i) << MIN(C(u32), 32u) >> 32)); }
HANDLER(shf_r_clamp) { put(t, &i->dst[0], (u32)(funnel(t, i) >> MIN(C(u32), 32u))); }

// lop3: bit by bit, the table's entry at (a, b, c).
HANDLER(lop3) {
    u32 a = A(u32), b = B(u32), c = C(u32), table = (u32)get(t, &i->src[3]), d = 0;
    for (u32 k = 0; k < 8; k++) {
        if (!(table >> k & 1)) continue;
        d |= ((k & 4) ? a : ~a) & ((k & 2) ? b : ~b) & ((k & 1) ? c : ~c);
    }
    put(t, &i->dst[0], d);
}

// --- bit fields ---

// `a` is zero-extended from `bits`. (PTX leaves pos and len above 255 open; the card takes their
// low 8 bits in the 32-bit forms, and all of them in the 64-bit ones.) What lies above the field,
// or beyond a, is the sign.
static u64 bfe(u64 a, u32 pos, u32 len, u32 bits, bool is_signed) {
    u64 all = bits == 64 ? ~0ull : (1ull << bits) - 1;
    if (len == 0) return 0;
    u32 last = (u32)MIN((u64)pos + len - 1, (u64)bits - 1);
    u64 fill = is_signed && (a >> last & 1) ? all : 0;
    if (pos >= bits) return fill;
    u32 width = MIN(len, bits - pos);
    u64 mask = width == 64 ? ~0ull : (1ull << width) - 1;
    return ((a >> pos & mask) | (fill & ~mask)) & all;
}
HANDLER(bfe_u32) { put(t, &i->dst[0], bfe(A(u32), B(u32) & 255, C(u32) & 255, 32, false)); }
HANDLER(bfe_s32) { put(t, &i->dst[0], bfe(A(u32), B(u32) & 255, C(u32) & 255, 32, true)); }
HANDLER(bfe_u64) { put(t, &i->dst[0], bfe(A(u64), B(u32), C(u32), 64, false)); }
HANDLER(bfe_s64) { put(t, &i->dst[0], bfe(A(u64), B(u32), C(u32), 64, true)); }

static u64 bfi(u64 a, u64 b, u32 pos, u32 len, u32 bits) {
    if (len == 0 || pos >= bits) return b;
    u32 width = MIN(len, bits - pos);
    u64 mask = (width == 64 ? ~0ull : (1ull << width) - 1) << pos;
    return (b & ~mask) | (a << pos & mask);
}
HANDLER(bfi_32) {
    put(t, &i->dst[0], bfi(A(u32), B(u32), C(u32) & 255, (u32)get(t, &i->src[3]) & 255, 32));
}
HANDLER(bfi_64) {
    put(t, &i->dst[0], bfi(A(u64), B(u64), C(u32) & 255, (u32)get(t, &i->src[3]) & 255, 64));
}

static u64 reversed(u64 a, u32 bits) {
    u64 d = 0;
    for (u32 k = 0; k < bits; k++) d |= (a >> k & 1) << (bits - 1 - k);
    return d;
}
HANDLER(brev_32) { put(t, &i->dst[0], reversed(A(u32), 32)); }
HANDLER(brev_64) { put(t, &i->dst[0], reversed(A(u64), 64)); }
UNARY(clz_32, u32, u32, a == 0 ? 32 : __builtin_clz(a))
UNARY(clz_64, u64, u32, a == 0 ? 64 : __builtin_clzll(a))
UNARY(popc_32, u32, u32, __builtin_popcount(a))
UNARY(popc_64, u64, u32, __builtin_popcountll(a))

// The place of the most significant bit that is not a sign bit; sub 1: its distance from the top.
static u32 bfind(u64 a, u32 bits, bool is_signed, bool distance) {
    if (is_signed && (a >> (bits - 1) & 1)) a = ~a & (bits == 64 ? ~0ull : 0xffffffffull);
    if (a == 0) return 0xffffffff;
    u32 place = 63 - (u32)__builtin_clzll(a);
    return distance ? bits - 1 - place : place;
}
HANDLER(bfind_u32) { put(t, &i->dst[0], bfind(A(u32), 32, false, i->sub)); }
HANDLER(bfind_s32) { put(t, &i->dst[0], bfind(A(u32), 32, true, i->sub)); }
HANDLER(bfind_u64) { put(t, &i->dst[0], bfind(A(u64), 64, false, i->sub)); }
HANDLER(bfind_s64) { put(t, &i->dst[0], bfind(A(u64), 64, true, i->sub)); }

// --- bytes ---

enum prmt_mode { PRMT_ANY, PRMT_F4E, PRMT_B4E, PRMT_RC8, PRMT_ECL, PRMT_ECR, PRMT_RC16 };

HANDLER(prmt) {
    u64 bytes = (u64)B(u32) << 32 | A(u32);
    u32 c = C(u32), d = 0;
    for (u32 k = 0; k < 4; k++) {
        u32 s = c & 3, from = 0;
        switch ((enum prmt_mode)i->sub) {
        case PRMT_ANY: from = c >> (4 * k) & 15; break;
        case PRMT_F4E: from = s + k; break;
        case PRMT_B4E: from = (s - k) & 7; break;
        case PRMT_RC8: from = s; break;
        case PRMT_ECL: from = MAX(k, s); break;
        case PRMT_ECR: from = MIN(k, s); break;
        case PRMT_RC16: from = (s & 1) * 2 + (k & 1); break;
        }
        u32 byte = (u32)(bytes >> (8 * (from & 7))) & 255;
        if (i->sub == PRMT_ANY && (from & 8)) byte = (byte & 128) ? 255 : 0;
        d |= byte << (8 * k);
    }
    put(t, &i->dst[0], d);
}

// sub: 1 a is signed, 2 b is signed, 4 the high half of b (dp2a)
HANDLER(dp4a) {
    u32 a = A(u32), b = B(u32), sum = C(u32);
    for (u32 k = 0; k < 4; k++) {
        i32 x = (i->sub & 1) ? (i8)(a >> 8 * k) : (u8)(a >> 8 * k);
        i32 y = (i->sub & 2) ? (i8)(b >> 8 * k) : (u8)(b >> 8 * k);
        sum += (u32)(x * y);
    }
    put(t, &i->dst[0], sum);
}

HANDLER(dp2a) {
    u32 a = A(u32), b = B(u32) >> ((i->sub & 4) ? 16 : 0), sum = C(u32);
    for (u32 k = 0; k < 2; k++) {
        i32 x = (i->sub & 1) ? (i16)(a >> 16 * k) : (u16)(a >> 16 * k);
        i32 y = (i->sub & 2) ? (i8)(b >> 8 * k) : (u8)(b >> 8 * k);
        sum += (u32)x * (u32)y;
    }
    put(t, &i->dst[0], sum);
}

// --- choice ---

HANDLER(selp) {
    u64 a = A(u64), b = B(u64);
    put(t, &i->dst[0], get(t, &i->src[2]) ? a : b);
}
HANDLER(selp_32) {
    u32 a = A(u32), b = B(u32);
    put(t, &i->dst[0], get(t, &i->src[2]) ? a : b);
}
HANDLER(selp_16) {
    u16 a = A(u16), b = B(u16);
    put(t, &i->dst[0], get(t, &i->src[2]) ? a : b);
}
HANDLER(slct_32) {
    u32 a = A(u32), b = B(u32);
    put(t, &i->dst[0], C(i32) >= 0 ? a : b);
}
HANDLER(slct_64) {
    u64 a = A(u64), b = B(u64);
    put(t, &i->dst[0], C(i32) >= 0 ? a : b);
}

#define SAME3(name, suffix16, suffix32, suffix64)                               \
    {#name ".u16", suffix16, "hhh", 0}, {#name ".s16", suffix16, "hhh", 0},     \
        {#name ".u32", suffix32, "www", 0}, {#name ".s32", suffix32, "www", 0}, \
        {#name ".u64", suffix64, "ddd", 0}, {                                   \
#name ".s64", suffix64, "ddd", 0                                        \
    }
#define EACH3(name, tail)                                                                 \
    {#name ".u16", name##_u16, "hhh" tail, 0}, {#name ".s16", name##_s16, "hhh" tail, 0}, \
        {#name ".u32", name##_u32, "www" tail, 0}, {                                      \
#name ".s32", name##_s32, "www" tail, 0                                           \
    }
#define CARRY(name, handler, sub)                                                       \
    {#name ".u32", handler##_32, "www", sub}, {#name ".s32", handler##_32, "www", sub}, \
        {#name ".u64", handler##_64, "ddd", sub}, {                                     \
#name ".s64", handler##_64, "ddd", sub                                          \
    }
#define SELECTS(name, handler16, handler32, handler64)                                \
    {#name ".b16", handler16, "hhhp", 0}, {#name ".u16", handler16, "hhhp", 0},       \
        {#name ".s16", handler16, "hhhp", 0}, {#name ".b32", handler32, "wwwp", 0},   \
        {#name ".u32", handler32, "wwwp", 0}, {#name ".s32", handler32, "wwwp", 0},   \
        {#name ".f32", handler32, "wwwp", 0}, {#name ".b64", handler64, "dddp", 0},   \
        {#name ".u64", handler64, "dddp", 0}, {#name ".s64", handler64, "dddp", 0}, { \
#name ".f64", handler64, "dddp", 0                                            \
    }
#define LOGIC(name)                                                             \
    {#name ".pred", name##_any, "ppp", 0}, {#name ".b16", name##_16, "hhh", 0}, \
        {#name ".b32", name##_32, "www", 0}, {                                  \
#name ".b64", name##_any, "ddd", 0                                      \
    }

const struct rule integer_rules[] = {
    SAME3(add, add_16, add_32, add_64),
    SAME3(sub, sub_16, sub_32, sub_64),
    {"add.sat.s32", add_sat, "www", 0},
    {"sub.sat.s32", sub_sat, "www", 0},
    SAME3(mul.lo, mul_16, mul_32, mul_64),
    {"mul.hi.u16", mul_hi_u16, "hhh", 0},
    {"mul.hi.s16", mul_hi_s16, "hhh", 0},
    {"mul.hi.u32", mul_hi_u32, "www", 0},
    {"mul.hi.s32", mul_hi_s32, "www", 0},
    {"mul.hi.u64", mul_hi_u64, "ddd", 0},
    {"mul.hi.s64", mul_hi_s64, "ddd", 0},
    {"mul.wide.u16", mul_wide_u16, "whh", 0},
    {"mul.wide.s16", mul_wide_s16, "whh", 0},
    {"mul.wide.u32", mul_wide_u32, "dww", 0},
    {"mul.wide.s32", mul_wide_s32, "dww", 0},
    {"mad.lo.u16", mad_16, "hhhh", 0},
    {"mad.lo.s16", mad_16, "hhhh", 0},
    {"mad.lo.u32", mad_32, "wwww", 0},
    {"mad.lo.s32", mad_32, "wwww", 0},
    {"mad.lo.u64", mad_64, "dddd", 0},
    {"mad.lo.s64", mad_64, "dddd", 0},
    {"mad.hi.u32", mad_hi_u32, "wwww", 0},
    {"mad.hi.s32", mad_hi_s32, "wwww", 0},
    {"mad.hi.u64", mad_hi_u64, "dddd", 0},
    {"mad.hi.s64", mad_hi_s64, "dddd", 0},
    {"mad.wide.u16", mad_wide_u16, "whhw", 0},
    {"mad.wide.s16", mad_wide_s16, "whhw", 0},
    {"mad.wide.u32", mad_wide_u32, "dwwd", 0},
    {"mad.wide.s32", mad_wide_s32, "dwwd", 0},
    CARRY(add.cc, add_carry, 2),
    CARRY(addc, add_carry, 1),
    CARRY(addc.cc, add_carry, 3),
    CARRY(sub.cc, sub_carry, 2),
    CARRY(subc, sub_carry, 1),
    CARRY(subc.cc, sub_carry, 3),
    {"mad.lo.cc.u32", mad_carry_32, "wwww", 2},
    {"mad.hi.cc.u32", mad_carry_32, "wwww", 6},
    {"madc.lo.u32", mad_carry_32, "wwww", 1},
    {"madc.hi.u32", mad_carry_32, "wwww", 5},
    {"madc.lo.cc.u32", mad_carry_32, "wwww", 3},
    {"madc.hi.cc.u32", mad_carry_32, "wwww", 7},
    EACH3(div, ""),
    {"div.u64", div_u64, "ddd", 0},
    {"div.s64", div_s64, "ddd", 0},
    EACH3(rem, ""),
    {"rem.u64", rem_u64, "ddd", 0},
    {"rem.s64", rem_s64, "ddd", 0},
    EACH3(min, ""),
    {"min.u64", min_u64, "ddd", 0},
    {"min.s64", min_s64, "ddd", 0},
    EACH3(max, ""),
    {"max.u64", max_u64, "ddd", 0},
    {"max.s64", max_s64, "ddd", 0},
    {"sad.u16", sad_u16, "hhhh", 0},
    {"sad.s16", sad_s16, "hhhh", 0},
    {"sad.u32", sad_u32, "wwww", 0},
    {"sad.s32", sad_s32, "wwww", 0},
    {"sad.u64", sad_u64, "dddd", 0},
    {"sad.s64", sad_s64, "dddd", 0},
    {"abs.s16", abs_16, "hh", 0},
    {"abs.s32", abs_32, "ww", 0},
    {"abs.s64", abs_64, "dd", 0},
    {"neg.s16", neg_16, "hh", 0},
    {"neg.s32", neg_32, "ww", 0},
    {"neg.s64", neg_64, "dd", 0},
    LOGIC(and),
    LOGIC(or),
    LOGIC(xor),
    {"not.pred", not_pred, "pp", 0},
    {"not.b16", not_16, "hh", 0},
    {"not.b32", not_32, "ww", 0},
    {"not.b64", not_64, "dd", 0},
    {"cnot.b32", cnot_32, "ww", 0},
    {"shl.b16", shl_16, "hhw", 0},
    {"shl.b32", shl_32, "www", 0},
    {"shl.b64", shl_64, "ddw", 0},
    {"shr.b16", shr_u16, "hhw", 0},
    {"shr.u16", shr_u16, "hhw", 0},
    {"shr.s16", shr_s16, "hhw", 0},
    {"shr.b32", shr_u32, "www", 0},
    {"shr.u32", shr_u32, "www", 0},
    {"shr.s32", shr_s32, "www", 0},
    {"shr.b64", shr_u64, "ddw", 0},
    {"shr.u64", shr_u64, "ddw", 0},
    {"shr.s64", shr_s64, "ddw", 0},
    {"shf.l.wrap.b32", shf_l_wrap, "wwww", 0},
    {"shf.r.wrap.b32", shf_r_wrap, "wwww", 0},
    {"shf.l.clamp.b32", shf_l_clamp, "wwww", 0},
    {"shf.r.clamp.b32", shf_r_clamp, "wwww", 0},
    {"lop3.b32", lop3, "wwwww", 0},
    {"bfe.u32", bfe_u32, "wwww", 0},
    {"bfe.s32", bfe_s32, "wwww", 0},
    {"bfe.u64", bfe_u64, "ddww", 0},
    {"bfe.s64", bfe_s64, "ddww", 0},
    {"bfi.b32", bfi_32, "wwwww", 0},
    {"bfi.b64", bfi_64, "dddww", 0},
    {"brev.b32", brev_32, "ww", 0},
    {"brev.b64", brev_64, "dd", 0},
    {"clz.b32", clz_32, "ww", 0},
    {"clz.b64", clz_64, "wd", 0},
    {"popc.b32", popc_32, "ww", 0},
    {"popc.b64", popc_64, "wd", 0},
    {"bfind.u32", bfind_u32, "ww", 0},
    {"bfind.s32", bfind_s32, "ww", 0},
    {"bfind.u64", bfind_u64, "wd", 0},
    {"bfind.s64", bfind_s64, "wd", 0},
    {"bfind.shiftamt.u32", bfind_u32, "ww", 1},
    {"bfind.shiftamt.s32", bfind_s32, "ww", 1},
    {"bfind.shiftamt.u64", bfind_u64, "wd", 1},
    {"bfind.shiftamt.s64", bfind_s64, "wd", 1},
    {"prmt.b32", prmt, "wwww", PRMT_ANY},
    {"prmt.b32.f4e", prmt, "wwww", PRMT_F4E},
    {"prmt.b32.b4e", prmt, "wwww", PRMT_B4E},
    {"prmt.b32.rc8", prmt, "wwww", PRMT_RC8},
    {"prmt.b32.ecl", prmt, "wwww", PRMT_ECL},
    {"prmt.b32.ecr", prmt, "wwww", PRMT_ECR},
    {"prmt.b32.rc16", prmt, "wwww", PRMT_RC16},
    {"dp4a.u32.u32", dp4a, "wwww", 0},
    {"dp4a.s32.u32", dp4a, "wwww", 1},
    {"dp4a.u32.s32", dp4a, "wwww", 2},
    {"dp4a.s32.s32", dp4a, "wwww", 3},
    {"dp2a.lo.u32.u32", dp2a, "wwww", 0},
    {"dp2a.lo.s32.u32", dp2a, "wwww", 1},
    {"dp2a.lo.u32.s32", dp2a, "wwww", 2},
    {"dp2a.lo.s32.s32", dp2a, "wwww", 3},
    {"dp2a.hi.u32.u32", dp2a, "wwww", 4},
    {"dp2a.hi.s32.u32", dp2a, "wwww", 5},
    {"dp2a.hi.u32.s32", dp2a, "wwww", 6},
    {"dp2a.hi.s32.s32", dp2a, "wwww", 7},
    SELECTS(selp, selp_16, selp_32, selp),
    {"slct.b32.s32", slct_32, "wwww", 0},
    {"slct.u32.s32", slct_32, "wwww", 0},
    {"slct.s32.s32", slct_32, "wwww", 0},
    {"slct.f32.s32", slct_32, "wwww", 0},
    {"slct.b64.s32", slct_64, "dddw", 0},
    {"slct.u64.s32", slct_64, "dddw", 0},
    {"slct.s64.s32", slct_64, "dddw", 0},
    {NULL, NULL, NULL, 0},
};
