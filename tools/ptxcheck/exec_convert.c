// SPDX-License-Identifier: Apache-2.0
// cvt, setp and mov: conversions between all types, comparisons with a boolean combination, moves
// with packing.
//
// V1. Float to integer saturates to the target's range, and a NaN becomes 0 (f32, f16) or the
//     target's minimum (f64 to s32, s64; PTX leaves no choice for f32).
// V2. A register wider than the target gets the value sign- or zero-extended.
#include <math.h>
#include <string.h>

#include "exec.h"

#define HANDLER(name) static void name(struct thread *t, const struct insn *i)

// --- values of a type ---

static bool is_signed(u32 type) {
    return type == TYPE_S8 || type == TYPE_S16 || type == TYPE_S32 || type == TYPE_S64;
}

static i64 as_integer(u32 type, u64 bits) {
    switch (type) {
    case TYPE_S8: return (i8)bits;
    case TYPE_S16: return (i16)bits;
    case TYPE_S32: return (i32)bits;
    case TYPE_B8:
    case TYPE_U8: return (u8)bits;
    case TYPE_B16:
    case TYPE_U16: return (u16)bits;
    case TYPE_B32:
    case TYPE_U32: return (u32)bits;
    default: return (i64)bits;
    }
}

static f64 as_float(u32 type, u64 bits) {
    switch (type) {
    case TYPE_F16: return f16_to_f32((u16)bits);
    case TYPE_BF16: return bf16_to_f32((u16)bits);
    case TYPE_F32: return f32_from_bits((u32)bits);
    default: return f64_from_bits(bits);
    }
}

static u64 truncated(u64 bits, u32 bytes) {
    return bytes == 8 ? bits : bits & ((1ull << 8 * bytes) - 1);
}

// --- cvt ---

// sub: enum rounding, and the bits below
#define CVT_TO_INTEGRAL 4 // .rni and the like between floats
#define CVT_SAT 8

static f64 rounded_integral(f64 value, u32 rounding) {
    switch (rounding) {
    case ROUND_ZERO: return trunc(value);
    case ROUND_DOWN: return floor(value);
    case ROUND_UP: return ceil(value);
    default: return nearbyint(value);
    }
}

// [low, high] of an integer type, as the limits of a saturating conversion.
static void integer_limits(u32 type, f64 *low, f64 *high, u64 *low_bits, u64 *high_bits) {
    u32 bits = 8 * ptx_type_bytes(type);
    bool has_sign = is_signed(type);
    *high = ldexp(1, (int)(has_sign ? bits - 1 : bits)); // exclusive
    *low = has_sign ? -*high : 0;
    *low_bits = has_sign ? 1ull << (bits - 1) : 0;
    *high_bits = (bits == 64 ? ~0ull : (1ull << bits) - 1) >> (has_sign ? 1 : 0);
}

static u64 float_to_integer(u32 to, u32 from, f64 value, u32 rounding) {
    f64 low = 0, high = 0;
    u64 low_bits = 0, high_bits = 0;
    integer_limits(to, &low, &high, &low_bits, &high_bits);
    if (isnan(value)) {
        if (from != TYPE_F64) return 0;
        return is_signed(to) ? low_bits : 1ull << (8 * ptx_type_bytes(to) - 1);
    }
    value = rounded_integral(value, rounding);
    if (value < low) return low_bits;
    if (value >= high) return high_bits;
    return value < 0 ? (u64)(i64)value : (u64)value;
}

static u64 integer_to_integer(u32 to, u32 from, u64 bits, bool saturate) {
    i64 value = as_integer(from, bits);
    if (!saturate) return (u64)value;
    f64 low = 0, high = 0;
    u64 low_bits = 0, high_bits = 0;
    integer_limits(to, &low, &high, &low_bits, &high_bits);
    bool large_unsigned = value < 0 && !is_signed(from);
    if (large_unsigned) return high_bits > (u64)value ? (u64)value : high_bits;
    if (value < 0) {
        if (!is_signed(to)) return 0;
        i64 minimum = as_integer(to, low_bits);
        return value < minimum ? low_bits : (u64)value;
    }
    return (u64)value > high_bits ? high_bits : (u64)value;
}

// f64 to f32 with a direction; the operands here are integers or f64, whose nearest f32 is the
// cast.
static f32 to_f32(f64 value, u32 rounding) {
    f32 nearest = (f32)value;
    if (rounding == ROUND_NEAREST || !isfinite(value) || (f64)nearest == value) return nearest;
    bool want_less = rounding == ROUND_DOWN || (rounding == ROUND_ZERO && value > 0);
    if (want_less && (f64)nearest > value) return nextafterf(nearest, -INFINITY);
    if (!want_less && (f64)nearest < value) return nextafterf(nearest, INFINITY);
    return nearest;
}

// Whether a magnitude of which `rest` of `unit` is cut off goes up by one of its last places.
static bool goes_up(u64 kept, u64 rest, u64 unit, bool negative, u32 rounding) {
    switch (rounding) {
    case ROUND_ZERO: return false;
    case ROUND_DOWN: return negative && rest != 0;
    case ROUND_UP: return !negative && rest != 0;
    default: return rest > unit / 2 || (rest == unit / 2 && (kept & 1) != 0);
    }
}

// A 64-bit integer does not fit f64. It is rounded here when f64 is the target; for a smaller one
// it is rounded to odd, which leaves the rounding that follows exact.
static f64 integer_to_float(u32 to, u32 from, u64 bits, u32 rounding) {
    i64 value = as_integer(from, bits);
    bool negative = is_signed(from) && value < 0;
    u64 magnitude = negative ? 0 - (u64)value : (u64)value;
    f64 result = (f64)magnitude;
    if (magnitude >> 53 != 0) { // 53 bits are kept
        u32 drop = 11 - (u32)__builtin_clzll(magnitude);
        u64 unit = 1ull << drop, rest = magnitude & (unit - 1), kept = magnitude >> drop;
        if (to == TYPE_F64) {
            kept += goes_up(kept, rest, unit, negative, rounding);
        } else {
            kept |= rest != 0;
        }
        result = ldexp((f64)kept, (int)drop);
    }
    return negative ? -result : result;
}

static u64 saturated_unit(f64 *value) { // .sat of floats: [0, 1], NaN is 0
    if (isnan(*value) || *value < 0) *value = 0;
    if (*value > 1) *value = 1;
    if (*value == 0) *value = 0.0;
    return 0;
}

static u64 converted(const struct insn *i, u64 bits) {
    u32 to = i->type, from = i->type_from, rounding = i->sub & 3;
    bool from_float = decode_float_bits(from);
    if (!decode_float_bits(to)) {
        if (from_float) return float_to_integer(to, from, as_float(from, bits), rounding);
        return integer_to_integer(to, from, bits, (i->sub & CVT_SAT) != 0);
    }
    f64 value = from_float ? as_float(from, bits) : integer_to_float(to, from, bits, rounding);
    if (i->sub & CVT_TO_INTEGRAL) {
        f64 whole = rounded_integral(value, rounding);
        value = whole == 0 ? copysign(0.0, value) : whole;
    }
    if (i->sub & CVT_SAT) saturated_unit(&value);
    switch (to) {
    case TYPE_F16: return f64_to_f16(value, rounding);
    case TYPE_BF16: return f64_to_bf16(value, rounding);
    case TYPE_F32: return canonical_f32(to_f32(value, rounding));
    default: return canonical_f64(value);
    }
}

HANDLER(run_cvt) {
    u64 result = truncated(converted(i, get(t, &i->src[0])), ptx_type_bytes(i->type));
    if (is_signed(i->type)) result = (u64)as_integer(i->type, result);
    put(t, &i->dst[0], truncated(result, ptx_type_bytes(i->dst[0].type)));
}

HANDLER(run_cvt_pair) { // the first source is the upper half
    f64 high = as_float(TYPE_F32, get(t, &i->src[0])), low = as_float(TYPE_F32, get(t, &i->src[1]));
    u32 rounding = i->sub & 3;
    u32 upper = i->type == TYPE_F16X2 ? f64_to_f16(high, rounding) : f64_to_bf16(high, rounding);
    u32 lower = i->type == TYPE_F16X2 ? f64_to_f16(low, rounding) : f64_to_bf16(low, rounding);
    put(t, &i->dst[0], upper << 16 | lower);
}

// cvt.pack.sat.{u8,s8}.s32.b32 d, a, b, c: d = c << 16 | sat(a) << 8 | sat(b)
HANDLER(run_cvt_pack) {
    u64 a = integer_to_integer(i->type, TYPE_S32, get(t, &i->src[0]), true);
    u64 b = integer_to_integer(i->type, TYPE_S32, get(t, &i->src[1]), true);
    u64 c = i->n_src > 2 ? get(t, &i->src[2]) : 0;
    put(t, &i->dst[0], (u32)(c << 16 | (a & 255) << 8 | (b & 255)));
}

HANDLER(run_cvt_pack_16) { // cvt.pack.sat.{u16,s16}.s32 d, a, b
    u64 a = integer_to_integer(i->type, TYPE_S32, get(t, &i->src[0]), true);
    u64 b = integer_to_integer(i->type, TYPE_S32, get(t, &i->src[1]), true);
    put(t, &i->dst[0], (u32)((a & 0xffff) << 16 | (b & 0xffff)));
}

static u32 take_rounding(struct opcode *opcode, bool *given, bool *integral) {
    static const char *const words[] = {"rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi"};
    *given = *integral = false;
    for (u32 i = 0; i < COUNT_OF(words); i++) {
        if (!opcode_take(opcode, words[i])) continue;
        *given = i < 4;
        *integral = i >= 4;
        return i % 4;
    }
    return ROUND_NEAREST;
}

static void decode_cvt_pack(struct opcode *opcode, struct argument *arguments, u32 n,
                            struct insn *insn) {
    if (!opcode_take(opcode, "sat")) opcode_fail(opcode, ".sat is missing");
    insn->type = (u8)opcode_take_type(opcode);
    insn->type_from = (u8)opcode_take_type(opcode);
    bool bytes = insn->type == TYPE_S8 || insn->type == TYPE_U8;
    bool halves = insn->type == TYPE_S16 || insn->type == TYPE_U16;
    if (insn->type_from != TYPE_S32 || (!bytes && !halves)) opcode_fail(opcode, "unknown form");
    if (bytes && opcode_take_type(opcode) != TYPE_B32) opcode_fail(opcode, "unknown form");
    if (n != (bytes ? 4u : 3u)) opcode_fail(opcode, "a wrong number of operands");
    insn->run = bytes ? run_cvt_pack : run_cvt_pack_16;
    insn->n_src = (u8)(n - 1);
    decode_operand(opcode, &arguments[0], TYPE_B32, false, &insn->dst[0]);
    for (u32 i = 1; i < n; i++) {
        decode_operand(opcode, &arguments[i], TYPE_B32, false, &insn->src[i - 1]);
    }
}

// Does integer type `to` hold every value of `from`?
static bool holds_all(u32 to, u32 from) {
    u32 to_bits = 8 * ptx_type_bytes(to), from_bits = 8 * ptx_type_bytes(from);
    if (is_signed(to) == is_signed(from)) return to_bits >= from_bits;
    return is_signed(to) && to_bits > from_bits;
}

static void decode_cvt(struct opcode *opcode, struct argument *arguments, u32 n,
                       struct insn *insn) {
    if (opcode_take(opcode, "pack")) {
        decode_cvt_pack(opcode, arguments, n, insn);
        return;
    }
    bool given = false, integral = false;
    u32 rounding = take_rounding(opcode, &given, &integral);
    bool saturate = opcode_take(opcode, "sat");
    insn->type = (u8)opcode_take_type(opcode);
    insn->type_from = (u8)opcode_take_type(opcode);
    if (insn->type_from == TYPE_NONE) opcode_fail(opcode, "two types are wanted");
    insn->sub = (u8)(rounding | (saturate ? CVT_SAT : 0));
    insn->n_dst = 1;
    if (insn->type == TYPE_F16X2 || insn->type == TYPE_BF16X2) {
        if (n != 3 || !given || insn->type_from != TYPE_F32) opcode_fail(opcode, "unknown form");
        insn->run = run_cvt_pair;
        decode_operand(opcode, &arguments[0], TYPE_B32, false, &insn->dst[0]);
        decode_operand(opcode, &arguments[1], TYPE_F32, false, &insn->src[0]);
        decode_operand(opcode, &arguments[2], TYPE_F32, false, &insn->src[1]);
        return;
    }
    bool to_float = decode_float_bits(insn->type), from_float = decode_float_bits(insn->type_from);
    u32 to_bytes = ptx_type_bytes(insn->type), from_bytes = ptx_type_bytes(insn->type_from);
    if (n != 2) opcode_fail(opcode, "two operands are wanted");
    if (from_float && !to_float && !integral) opcode_fail(opcode, "an integer rounding is wanted");
    if (!from_float && to_float && !given) opcode_fail(opcode, "a rounding is wanted");
    if (from_float && to_float && to_bytes < from_bytes && !given) {
        opcode_fail(opcode, "a rounding is wanted");
    }
    if (from_float && to_float && to_bytes >= from_bytes && given) {
        opcode_fail(opcode, "a rounding where nothing is rounded");
    }
    if (!from_float && !to_float && (given || integral)) opcode_fail(opcode, "a rounding");
    if (!from_float && !to_float && saturate && holds_all(insn->type, insn->type_from)) {
        opcode_fail(opcode, "nothing to saturate");
    }
    if (integral && to_float) {
        if (insn->type != insn->type_from) opcode_fail(opcode, "unknown form");
        insn->sub |= CVT_TO_INTEGRAL;
    }
    insn->run = run_cvt;
    decode_operand(opcode, &arguments[0], insn->type, true, &insn->dst[0]);
    decode_operand(opcode, &arguments[1], insn->type_from, true, &insn->src[0]);
    if (insn->dst[0].kind != OPERAND_REG) opcode_fail(opcode, "the destination is no register");
}

// --- setp ---

enum comparison {
    CMP_EQ,
    CMP_NE,
    CMP_LT,
    CMP_LE,
    CMP_GT,
    CMP_GE,
    CMP_EQU,
    CMP_NEU,
    CMP_LTU,
    CMP_LEU,
    CMP_GTU,
    CMP_GEU,
    CMP_NUM,
    CMP_NAN,
    CMP_LO,
    CMP_LS,
    CMP_HI,
    CMP_HS,
};
enum combine { COMBINE_NONE, COMBINE_AND, COMBINE_OR, COMBINE_XOR };

static bool ordered_comparison(u32 comparison, bool less, bool equal) {
    switch (comparison % 6) {
    case CMP_EQ: return equal;
    case CMP_NE: return !equal;
    case CMP_LT: return less;
    case CMP_LE: return less || equal;
    case CMP_GT: return !less && !equal;
    default: return !less;
    }
}

static bool compare(const struct insn *i, u64 x, u64 y) {
    u32 comparison = i->sub;
    if (decode_float_bits(i->type)) {
        f64 a = as_float(i->type, x), b = as_float(i->type, y);
        bool unordered = isnan(a) || isnan(b);
        if (comparison == CMP_NUM) return !unordered;
        if (comparison == CMP_NAN) return unordered;
        if (unordered) return comparison >= CMP_EQU;
        return ordered_comparison(comparison, a < b, a == b);
    }
    static const u8 plain[] = {
        [CMP_LO] = CMP_LT, [CMP_LS] = CMP_LE, [CMP_HI] = CMP_GT, [CMP_HS] = CMP_GE};
    if (comparison >= CMP_LO) comparison = plain[comparison];
    i64 a = as_integer(i->type, x), b = as_integer(i->type, y);
    bool less = is_signed(i->type) ? a < b : (u64)a < (u64)b;
    return ordered_comparison(comparison, less, a == b);
}

static bool combined(u32 how, bool value, bool with) {
    switch ((enum combine)how) {
    case COMBINE_AND: return value && with;
    case COMBINE_OR: return value || with;
    case COMBINE_XOR: return value != with;
    default: return value;
    }
}

HANDLER(run_setp) {
    bool value = compare(i, get(t, &i->src[0]), get(t, &i->src[1]));
    bool with = i->lanes != COMBINE_NONE && get(t, &i->src[2]) != 0;
    put(t, &i->dst[0], combined(i->lanes, value, with));
    if (i->n_dst == 2) put(t, &i->dst[1], combined(i->lanes, !value, with));
}

static void decode_setp(struct opcode *opcode, struct argument *arguments, u32 n,
                        struct insn *insn) {
    static const char *const words[] = {
        [CMP_EQ] = "eq",   [CMP_NE] = "ne",   [CMP_LT] = "lt",   [CMP_LE] = "le",
        [CMP_GT] = "gt",   [CMP_GE] = "ge",   [CMP_EQU] = "equ", [CMP_NEU] = "neu",
        [CMP_LTU] = "ltu", [CMP_LEU] = "leu", [CMP_GTU] = "gtu", [CMP_GEU] = "geu",
        [CMP_NUM] = "num", [CMP_NAN] = "nan", [CMP_LO] = "lo",   [CMP_LS] = "ls",
        [CMP_HI] = "hi",   [CMP_HS] = "hs"};
    u32 comparison = 0;
    while (comparison < COUNT_OF(words) && !opcode_take(opcode, words[comparison])) comparison++;
    if (comparison == COUNT_OF(words)) opcode_fail(opcode, "no comparison");
    insn->sub = (u8)comparison;
    insn->lanes = opcode_take(opcode, "and")   ? COMBINE_AND
                  : opcode_take(opcode, "or")  ? COMBINE_OR
                  : opcode_take(opcode, "xor") ? COMBINE_XOR
                                               : COMBINE_NONE;
    insn->type = (u8)opcode_take_type(opcode);
    bool is_float = decode_float_bits(insn->type);
    bool is_bits = insn->type == TYPE_B16 || insn->type == TYPE_B32 || insn->type == TYPE_B64;
    if (insn->type == TYPE_NONE || ptx_type_bytes(insn->type) < 2 || insn->type == TYPE_F16X2 ||
        insn->type == TYPE_BF16X2 || insn->type == TYPE_BF16) {
        opcode_fail(opcode, "no type to compare");
    }
    if (!is_float && comparison >= CMP_EQU && comparison <= CMP_NAN) {
        opcode_fail(opcode, "a comparison of floats");
    }
    if ((is_float || is_signed(insn->type) || is_bits) && comparison >= CMP_LO) {
        opcode_fail(opcode, "a comparison of unsigned integers");
    }
    if (is_bits && comparison > CMP_NE) opcode_fail(opcode, "an order of untyped bits");
    if (n != (insn->lanes != COMBINE_NONE ? 4u : 3u)) {
        opcode_fail(opcode, "a wrong number of operands");
    }
    insn->run = run_setp;
    insn->n_dst = 1;
    if (arguments[0].has_second) {
        if (insn->type == TYPE_F16) opcode_fail(opcode, "a second predicate of .f16");
        insn->n_dst = 2;
        insn->dst[1] = arguments[0].second;
        arguments[0].has_second = false;
    }
    decode_operand(opcode, &arguments[0], TYPE_PRED, false, &insn->dst[0]);
    decode_operand(opcode, &arguments[1], insn->type, false, &insn->src[0]);
    decode_operand(opcode, &arguments[2], insn->type, false, &insn->src[1]);
    if (n == 4) decode_operand(opcode, &arguments[3], TYPE_PRED, false, &insn->src[2]);
}

// --- mov ---

HANDLER(run_mov) {
    put(t, &i->dst[0], truncated(get(t, &i->src[0]), ptx_type_bytes(i->dst[0].type)));
}
HANDLER(run_mov_pred) { put(t, &i->dst[0], get(t, &i->src[0]) != 0); }

HANDLER(run_pack) {
    u32 bits = 8 * ptx_type_bytes(i->type) / i->n_src;
    u64 value = 0;
    for (u32 k = 0; k < i->n_src; k++) {
        value |= truncated(get(t, &i->src[k]), bits / 8) << (bits * k);
    }
    put(t, &i->dst[0], value);
}

HANDLER(run_unpack) {
    u32 bits = 8 * ptx_type_bytes(i->type) / i->n_dst;
    u64 value = get(t, &i->src[0]);
    for (u32 k = 0; k < i->n_dst; k++) {
        put(t, &i->dst[k], truncated(value >> (bits * k), bits / 8));
    }
}

static void take_members(struct opcode *opcode, const struct argument *vector, u32 bytes,
                         struct operand *out) {
    static const u8 types[] = {[1] = TYPE_B8, [2] = TYPE_B16, [4] = TYPE_B32};
    if ((vector->n != 2 && vector->n != 4) || bytes / vector->n < 1 || bytes / vector->n > 4) {
        opcode_fail(opcode, "a vector of %u for %u bytes", vector->n, bytes);
    }
    for (u32 k = 0; k < vector->n; k++) {
        struct argument one = {.kind = ARGUMENT_OPERAND, .n = 1, .member = {vector->member[k]}};
        decode_operand(opcode, &one, types[bytes / vector->n], false, &out[k]);
    }
}

static void decode_mov(struct opcode *opcode, struct argument *arguments, u32 n,
                       struct insn *insn) {
    insn->type = (u8)opcode_take_type(opcode);
    if (insn->type == TYPE_NONE || n != 2)
        opcode_fail(opcode, "a type and two operands are wanted");
    u32 bytes = ptx_type_bytes(insn->type);
    insn->n_dst = insn->n_src = 1;
    if (arguments[1].kind == ARGUMENT_VECTOR) {
        insn->run = run_pack;
        insn->n_src = (u8)arguments[1].n;
        decode_operand(opcode, &arguments[0], insn->type, false, &insn->dst[0]);
        take_members(opcode, &arguments[1], bytes, insn->src);
    } else if (arguments[0].kind == ARGUMENT_VECTOR) {
        insn->run = run_unpack;
        insn->n_dst = (u8)arguments[0].n;
        take_members(opcode, &arguments[0], bytes, insn->dst);
        decode_operand(opcode, &arguments[1], insn->type, false, &insn->src[0]);
    } else {
        insn->run = insn->type == TYPE_PRED ? run_mov_pred : run_mov;
        decode_operand(opcode, &arguments[0], insn->type, false, &insn->dst[0]);
        decode_operand(opcode, &arguments[1], insn->type, false, &insn->src[0]);
        if (insn->dst[0].kind != OPERAND_REG) opcode_fail(opcode, "the destination is no register");
    }
}

const struct family convert_families[] = {
    {"cvt", decode_cvt},
    {"setp", decode_setp},
    {"mov", decode_mov},
    {NULL, NULL},
};
