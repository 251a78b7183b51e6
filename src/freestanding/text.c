// SPDX-License-Identifier: Apache-2.0
// Slices, numbers, the bounded text builder and UTF-8.
//
// Doubles are read and printed through one exact form, `struct decimal`: a fixed-point number in
// base 10^9, wide enough for every finite f64. Scaling it by powers of two loses nothing, so the
// only rounding is the last one, done on all the digits. That costs a few microseconds per number
// and needs no tables and no proof about error terms.
//
//     limb:   [0] [1] ... [34] . [35] [36] ... [154]        9 decimal digits each
//              integer part, 315 digits   fraction, 1080 digits
//
// I1. A builder never writes at or past data[capacity]; with capacity > 0, data[len] is 0.
// I2. Numbers that are printed or read are rounded once, to nearest, ties to even.
// I3. No byte of a slice past its length is read; %.*s stops at a zero byte as in C.
#include "freestanding/text.h"
#include "freestanding/mem.h"

// --- slices ---

struct str str_from_z(const char *zero_terminated) {
    struct str s = {(const u8 *)zero_terminated, 0};
    if (zero_terminated == NULL) return s;
    while (zero_terminated[s.len] != 0) s.len++;
    return s;
}

// memcmp must not be given the null pointer of an empty slice, not even with length 0.
static int compare_bytes(struct str a, struct str b, usize n) {
    return n == 0 ? 0 : memcmp(a.data, b.data, n);
}

bool str_equal(struct str a, struct str b) {
    return a.len == b.len && compare_bytes(a, b, a.len) == 0;
}

bool str_starts_with(struct str s, struct str prefix) {
    return s.len >= prefix.len && compare_bytes(s, prefix, prefix.len) == 0;
}

int str_compare(struct str a, struct str b) {
    int order = compare_bytes(a, b, MIN(a.len, b.len));
    if (order != 0) return order;
    return a.len < b.len ? -1 : a.len > b.len;
}

// --- integers read ---

static bool is_digit(u8 byte) { return byte >= '0' && byte <= '9'; }

bool text_parse_u64(struct str s, u64 *value) {
    if (s.len == 0) return false;
    u64 sum = 0;
    for (usize i = 0; i < s.len; i++) {
        if (!is_digit(s.data[i])) return false;
        if (!CHECKED_MUL(sum, 10ull, &sum)) return false;
        if (!CHECKED_ADD(sum, (u64)(s.data[i] - '0'), &sum)) return false;
    }
    *value = sum;
    return true;
}

bool text_parse_i64(struct str s, i64 *value) {
    if (s.len == 0) return false;
    bool negative = s.data[0] == '-';
    if (negative || s.data[0] == '+') s = (struct str){s.data + 1, s.len - 1};
    u64 magnitude = 0;
    if (!text_parse_u64(s, &magnitude)) return false;
    if (magnitude > (u64)LLONG_MAX + negative) return false;
    *value = (i64)(negative ? 0 - magnitude : magnitude);
    return true;
}

// --- doubles, exactly ---

#define LIMB_BASE 1000000000u
#define LIMB_DIGITS 9
#define INTEGER_LIMBS 35   // the largest f64 has 309 digits; the rest is room for a carry
#define FRACTION_LIMBS 120 // the smallest f64, 2^-1074, has 1074 digits
#define DECIMAL_LIMBS (INTEGER_LIMBS + FRACTION_LIMBS)
#define DECIMAL_DIGITS (DECIMAL_LIMBS * LIMB_DIGITS)
#define POINT_DIGIT (INTEGER_LIMBS * LIMB_DIGITS) // index of the first digit after the point
#define SHIFT_MAX 29                              // 10^9 * 2^29 + carry stays far below 2^64

#define F64_MANTISSA_BITS 52
#define F64_EXPONENT_MIN (-1074) // of the last mantissa bit
#define F64_EXPONENT_SPECIAL 2047

static_assert(INTEGER_LIMBS * LIMB_DIGITS > 309 && FRACTION_LIMBS * LIMB_DIGITS >= 1074,
              "every finite f64 fits struct decimal");

struct decimal {
    u32 limb[DECIMAL_LIMBS];
};

static void decimal_from_u64(struct decimal *d, u64 value) {
    memset(d, 0, sizeof *d);
    for (u32 i = INTEGER_LIMBS; value != 0; value /= LIMB_BASE) {
        i--;
        d->limb[i] = (u32)(value % LIMB_BASE);
    }
}

// Multiplies by 2^shift; the caller knows that the product fits.
static void decimal_shift_left(struct decimal *d, u32 shift) {
    while (shift > 0) {
        u32 step = MIN(shift, (u32)SHIFT_MAX);
        u64 carry = 0;
        for (u32 i = DECIMAL_LIMBS; i-- > 0;) {
            u64 x = ((u64)d->limb[i] << step) + carry;
            d->limb[i] = (u32)(x % LIMB_BASE);
            carry = x / LIMB_BASE;
        }
        assert(carry == 0);
        shift -= step;
    }
}

// Divides by 2^shift. Should the quotient have more than 1080 fraction digits, what is cut off
// leaves the last limb odd, so that it still shows on which side of a tie the number lies.
static void decimal_shift_right(struct decimal *d, u32 shift) {
    while (shift > 0) {
        u32 step = MIN(shift, (u32)SHIFT_MAX);
        u64 remainder = 0;
        for (u32 i = 0; i < DECIMAL_LIMBS; i++) {
            u64 x = remainder * LIMB_BASE + d->limb[i];
            d->limb[i] = (u32)(x >> step);
            remainder = x & ((1ull << step) - 1);
        }
        if (remainder != 0) d->limb[DECIMAL_LIMBS - 1] |= 1;
        shift -= step;
    }
}

// True when the integer part has a digit left of its last `limbs` limbs, so is at least
// 10^(9 * limbs).
static bool decimal_integer_exceeds(const struct decimal *d, u32 limbs) {
    for (u32 i = 0; i < INTEGER_LIMBS - limbs; i++) {
        if (d->limb[i] != 0) return true;
    }
    return false;
}

// The integer part, which the caller knows to be below 10^18.
static u64 decimal_integer(const struct decimal *d) {
    return (u64)d->limb[INTEGER_LIMBS - 2] * LIMB_BASE + d->limb[INTEGER_LIMBS - 1];
}

// Compares the fraction with one half: -1 below, 0 equal, 1 above.
static int decimal_fraction_against_half(const struct decimal *d) {
    u32 first = d->limb[INTEGER_LIMBS];
    if (first != LIMB_BASE / 2) return first < LIMB_BASE / 2 ? -1 : 1;
    for (u32 i = INTEGER_LIMBS + 1; i < DECIMAL_LIMBS; i++) {
        if (d->limb[i] != 0) return 1;
    }
    return 0;
}

// The f64 nearest to a decimal. False when it is too large for one.
static bool decimal_to_f64(struct decimal *d, f64 *value) {
    const u64 top = 1ull << F64_MANTISSA_BITS;
    i32 exponent = 0;                       // the value is d * 2^exponent
    while (decimal_integer_exceeds(d, 3)) { // at least 10^27, so at least 2^60 afterwards
        decimal_shift_right(d, SHIFT_MAX);
        exponent += SHIFT_MAX;
    }
    while (decimal_integer_exceeds(d, 2) || decimal_integer(d) >= 2 * top) {
        decimal_shift_right(d, 1);
        exponent++;
    }
    while (exponent > F64_EXPONENT_MIN && decimal_integer(d) < top) {
        bool far = decimal_integer(d) < top >> SHIFT_MAX;
        u32 step = far ? MIN((u32)SHIFT_MAX, (u32)(exponent - F64_EXPONENT_MIN)) : 1;
        decimal_shift_left(d, step);
        exponent -= (i32)step;
    }
    u64 mantissa = decimal_integer(d);
    int half = decimal_fraction_against_half(d);
    mantissa += half > 0 || (half == 0 && (mantissa & 1) != 0);
    // A carry into bit 53, or from the subnormals into bit 52, comes out right by adding: the
    // mantissa's top bit is one unit of the exponent field.
    u64 field = mantissa < top ? 0 : (u64)(exponent - F64_EXPONENT_MIN);
    u64 bits = (field << F64_MANTISSA_BITS) + mantissa;
    if (bits >= (u64)F64_EXPONENT_SPECIAL << F64_MANTISSA_BITS) return false;
    *value = f64_from_bits(bits);
    return true;
}

// --- doubles read ---

#define PARSE_EXPONENT_MAX (1ll << 40) // beyond any value, however many zeros stand in front of it
#define F64_WEIGHT_MAX 308             // of the first digit of the largest f64
#define F64_WEIGHT_MIN (-325)          // a number that begins lower is below half of 2^-1074

// Where the parts of [+-]digits[.digits][e[+-]digits] stand in their text.
struct number_parts {
    bool negative;
    usize point;    // behind the digits of the integer part
    usize fraction; // the first digit behind the point, or `point`
    usize end;      // behind all of these digits
    i64 exponent;
};

static usize skip_digits(struct str s, usize at) {
    while (at < s.len && is_digit(s.data[at])) at++;
    return at;
}

static bool is_sign(struct str s, usize at) {
    return at < s.len && (s.data[at] == '+' || s.data[at] == '-');
}

// Reads e[+-]digits up to the end of the text; the value saturates. No text is an exponent of 0.
static bool parse_exponent(struct str s, usize at, i64 *exponent) {
    *exponent = 0;
    if (at == s.len) return true;
    if (s.data[at] != 'e' && s.data[at] != 'E') return false;
    at++;
    bool negative = is_sign(s, at) && s.data[at] == '-';
    at += is_sign(s, at);
    usize first = at;
    for (; at < s.len && is_digit(s.data[at]); at++) {
        *exponent = MIN(*exponent * 10 + (s.data[at] - '0'), PARSE_EXPONENT_MAX);
    }
    if (negative) *exponent = -*exponent;
    return at == s.len && at > first;
}

static bool parse_number(struct str s, struct number_parts *n) {
    usize begin = is_sign(s, 0) ? 1 : 0;
    n->negative = begin == 1 && s.data[0] == '-';
    n->point = n->fraction = n->end = skip_digits(s, begin);
    if (n->point == begin) return false;
    if (n->point < s.len && s.data[n->point] == '.') {
        n->fraction = n->point + 1;
        n->end = skip_digits(s, n->fraction);
        if (n->end == n->fraction) return false;
    }
    return parse_exponent(s, n->end, &n->exponent);
}

// The power of ten that the digit at s[at] counts.
static i64 weight_of(const struct number_parts *n, usize at) {
    i64 place = at < n->point ? (i64)(n->point - at) - 1 : (i64)n->fraction - (i64)at - 1;
    return place + n->exponent;
}

// Sets d to the digits from `at` on, whose first is none above F64_WEIGHT_MAX. Those that are too
// small for d only decide a tie, for which an odd last limb is enough: a tie ends far above it.
static void decimal_from_digits(struct decimal *d, struct str s, const struct number_parts *n,
                                usize at) {
    static const u32 powers[LIMB_DIGITS] = {100000000, 10000000, 1000000, 100000, 10000,
                                            1000,      100,      10,      1};
    memset(d, 0, sizeof *d);
    for (; at < n->end; at++) {
        u8 digit = s.data[at];
        if (digit == '.' || digit == '0') continue;
        i64 index = POINT_DIGIT - 1 - weight_of(n, at);
        assert(index >= 0);
        if (index >= DECIMAL_DIGITS) {
            d->limb[DECIMAL_LIMBS - 1] |= 1;
            return;
        }
        d->limb[index / LIMB_DIGITS] += (u32)(digit - '0') * powers[index % LIMB_DIGITS];
    }
}

bool text_parse_f64(struct str s, f64 *value) {
    struct number_parts n;
    if (!parse_number(s, &n)) return false;
    usize first = is_sign(s, 0) ? 1 : 0; // the first digit that counts
    while (first < n.end && (s.data[first] == '0' || s.data[first] == '.')) first++;
    f64 magnitude = 0;
    if (first < n.end && weight_of(&n, first) > F64_WEIGHT_MAX) return false;
    if (first < n.end && weight_of(&n, first) >= F64_WEIGHT_MIN) {
        struct decimal d;
        decimal_from_digits(&d, s, &n, first);
        if (!decimal_to_f64(&d, &magnitude)) return false;
    }
    *value = n.negative ? -magnitude : magnitude;
    return true;
}

// --- builder ---

struct text text_over(char *memory, usize capacity) {
    if (capacity > 0) memory[0] = 0;
    return (struct text){.data = memory, .capacity = capacity};
}

void text_put(struct text *t, struct str s) {
    usize room = t->capacity == 0 ? 0 : t->capacity - 1 - t->len;
    usize n = MIN(room, s.len);
    if (n < s.len) t->truncated = true;
    if (n == 0) return;
    memcpy(t->data + t->len, s.data, n);
    t->len += n;
    t->data[t->len] = 0;
}

void text_put_byte(struct text *t, u8 byte) {
    if (t->len + 1 >= t->capacity) { // capacity 0 included
        t->truncated = true;
        return;
    }
    t->data[t->len++] = (char)byte;
    t->data[t->len] = 0;
}

static void put_repeated(struct text *t, u8 byte, usize count) {
    for (usize i = 0; i < count && !t->truncated; i++) text_put_byte(t, byte);
}

// --- formatting ---

#define WIDTH_MAX 4096
#define PRECISION_MAX 64
#define G_DIGITS_DEFAULT 9
#define F_DIGITS_DEFAULT 6

struct format_spec {
    bool left, zero_pad, has_precision;
    u32 width, precision;
    u32 longs; // how many l; z counts as one
};

// Sign and body, padded to the width on the side the spec asks for.
static void put_padded(struct text *t, const struct format_spec *spec, struct str sign,
                       struct str body) {
    usize len = sign.len + body.len;
    usize padding = spec->width > len ? spec->width - len : 0;
    if (!spec->left && !spec->zero_pad) put_repeated(t, ' ', padding);
    text_put(t, sign);
    if (!spec->left && spec->zero_pad) put_repeated(t, '0', padding);
    text_put(t, body);
    if (spec->left) put_repeated(t, ' ', padding);
}

static void put_integer(struct text *t, const struct format_spec *spec, bool negative,
                        u64 magnitude, u32 base) {
    u8 digits[20]; // 2^64 has 20 decimal digits
    usize first = sizeof digits;
    do {
        first--;
        digits[first] = (u8) "0123456789abcdef"[magnitude % base];
        magnitude /= base;
    } while (magnitude != 0);
    struct str body = {digits + first, sizeof digits - first};
    put_padded(t, spec, negative ? STR("-") : STR(""), body);
}

// The digits of a finite double: digit i has weight 10^(POINT_DIGIT - 1 - i).
struct digits {
    u8 digit[DECIMAL_DIGITS]; // 0..9
};

static void digits_from_magnitude(struct digits *out, u64 bits) {
    u64 field = bits >> F64_MANTISSA_BITS;
    u64 fraction = bits & ((1ull << F64_MANTISSA_BITS) - 1);
    u64 mantissa = field == 0 ? fraction : fraction | 1ull << F64_MANTISSA_BITS;
    i32 exponent = F64_EXPONENT_MIN + (field == 0 ? 0 : (i32)field - 1);
    struct decimal d;
    decimal_from_u64(&d, mantissa);
    if (exponent >= 0) {
        decimal_shift_left(&d, (u32)exponent);
    } else {
        decimal_shift_right(&d, (u32)-exponent);
    }
    for (u32 i = 0; i < DECIMAL_LIMBS; i++) {
        u32 rest = d.limb[i];
        for (u32 j = LIMB_DIGITS; j-- > 0; rest /= 10) {
            out->digit[i * LIMB_DIGITS + j] = (u8)(rest % 10);
        }
    }
}

// Index of the first digit that is not zero; of the last integer digit for zero itself.
static u32 digits_first(const struct digits *d) {
    for (u32 i = 0; i < DECIMAL_DIGITS; i++) {
        if (d->digit[i] != 0) return i;
    }
    return POINT_DIGIT - 1;
}

// Rounds so that digits from index `end` on are zero.
static void digits_round(struct digits *d, u32 end) {
    assert(end > 0);
    if (end >= DECIMAL_DIGITS) return;
    bool up = d->digit[end] > 5;
    if (d->digit[end] == 5) {
        up = (d->digit[end - 1] & 1) != 0; // a tie goes to the even digit
        for (u32 i = end + 1; i < DECIMAL_DIGITS && !up; i++) up = d->digit[i] != 0;
    }
    memset(d->digit + end, 0, DECIMAL_DIGITS - end);
    for (u32 i = end; up;) {
        assert(i > 0);
        i--;
        up = d->digit[i] == 9;
        d->digit[i] = up ? 0 : (u8)(d->digit[i] + 1);
    }
}

static void put_digits(struct text *t, const struct digits *d, u32 first, u32 end) {
    for (u32 i = first; i < end; i++) text_put_byte(t, (u8)('0' + d->digit[i]));
}

static void put_fixed(struct text *t, struct digits *d, u32 precision) {
    u32 end = POINT_DIGIT + precision;
    digits_round(d, end);
    put_digits(t, d, MIN(digits_first(d), (u32)POINT_DIGIT - 1), POINT_DIGIT);
    if (precision == 0) return;
    text_put_byte(t, '.');
    put_digits(t, d, POINT_DIGIT, end);
}

// %g: `significant` digits without trailing zeros; an exponent where C would write one.
static void put_general(struct text *t, struct digits *d, u32 significant) {
    digits_round(d, digits_first(d) + significant);
    u32 first = digits_first(d); // again: a carry may have made a new digit
    i32 exponent = POINT_DIGIT - 1 - (i32)first;
    u32 end = first + 1; // past the last digit that is not zero
    for (u32 i = first; i < first + significant && i < DECIMAL_DIGITS; i++) {
        if (d->digit[i] != 0) end = i + 1;
    }
    if (exponent >= -4 && exponent < (i32)significant) {
        put_digits(t, d, MIN(first, (u32)POINT_DIGIT - 1), POINT_DIGIT);
        if (end <= POINT_DIGIT) return;
        text_put_byte(t, '.');
        put_digits(t, d, POINT_DIGIT, end);
        return;
    }
    put_digits(t, d, first, first + 1);
    if (end > first + 1) {
        text_put_byte(t, '.');
        put_digits(t, d, first + 1, end);
    }
    u32 magnitude = (u32)(exponent < 0 ? -exponent : exponent);
    text_format(t, "e%c%02u", exponent < 0 ? '-' : '+', magnitude);
}

static void put_f64(struct text *t, const struct format_spec *spec, f64 value, char conversion) {
    u64 bits = f64_bits(value);
    struct str sign = bits >> 63 != 0 ? STR("-") : STR("");
    bits &= ~(1ull << 63);
    const u64 infinity = (u64)F64_EXPONENT_SPECIAL << F64_MANTISSA_BITS;
    if (bits >= infinity) {
        struct format_spec plain = {.left = spec->left, .width = spec->width};
        put_padded(t, &plain, bits > infinity ? STR("") : sign,
                   bits > infinity ? STR("nan") : STR("inf"));
        return;
    }
    char memory[POINT_DIGIT + 1 + PRECISION_MAX + 1]; // the longest %f
    struct text body = TEXT_OVER_ARRAY(memory);
    struct digits digits;
    digits_from_magnitude(&digits, bits);
    assert(spec->precision <= PRECISION_MAX);
    if (conversion == 'f') {
        put_fixed(&body, &digits, spec->has_precision ? spec->precision : F_DIGITS_DEFAULT);
    } else {
        u32 significant = spec->has_precision ? spec->precision : G_DIGITS_DEFAULT;
        put_general(&body, &digits, MAX(significant, 1u));
    }
    assert(!body.truncated);
    put_padded(t, spec, sign, (struct str){(const u8 *)body.data, body.len});
}

static void put_z(struct text *t, const struct format_spec *spec, const char *z) {
    struct str s = {(const u8 *)z, 0};
    if (z == NULL || !spec->has_precision) {
        s = str_from_z(z);
    } else {
        while (s.len < spec->precision && z[s.len] != 0) s.len++;
    }
    put_padded(t, spec, STR(""), s);
}

// Reads decimal digits at *format as a number of at most `limit`.
static u32 read_format_number(const char **format, u32 limit) {
    u32 value = 0;
    for (; is_digit((u8) * *format); ++*format) {
        value = value * 10 + (u32)(**format - '0');
        assert(value <= limit);
    }
    return value;
}

// Reads what stands between % and the conversion letter. The precision of %.*s is an argument and
// is left to the caller (*precision_argument).
static struct format_spec read_format_spec(const char **format, bool *precision_argument) {
    struct format_spec spec = {0};
    for (; **format == '-' || **format == '0'; ++*format) {
        if (**format == '-') spec.left = true;
        if (**format == '0') spec.zero_pad = true;
    }
    spec.width = read_format_number(format, WIDTH_MAX);
    *precision_argument = false;
    if (**format == '.') {
        ++*format;
        spec.has_precision = true;
        *precision_argument = **format == '*';
        if (*precision_argument) {
            ++*format;
        } else {
            spec.precision = read_format_number(format, WIDTH_MAX);
        }
    }
    for (; **format == 'l' || **format == 'z'; ++*format) spec.longs++;
    assert(spec.longs <= 2);
    return spec;
}

void text_format_v(struct text *t, const char *format, va_list args) {
    for (; *format != 0; format++) {
        if (*format != '%') {
            text_put_byte(t, (u8)*format);
            continue;
        }
        format++;
        bool precision_argument = false;
        struct format_spec spec = read_format_spec(&format, &precision_argument);
        if (precision_argument) {
            int precision = va_arg(args, int);
            spec.has_precision = precision >= 0; // as in C: a negative one counts as not given
            spec.precision = precision >= 0 ? (u32)precision : 0;
            assert(*format == 's');
        }
        // long and long long have the same size on every target of this project.
        switch (*format) {
        case 'd': {
            i64 value = spec.longs > 0 ? va_arg(args, i64) : va_arg(args, int);
            put_integer(t, &spec, value < 0, value < 0 ? 0 - (u64)value : (u64)value, 10);
            break;
        }
        case 'u':
        case 'x': {
            u64 value = spec.longs > 0 ? va_arg(args, u64) : va_arg(args, u32);
            put_integer(t, &spec, false, value, *format == 'x' ? 16 : 10);
            break;
        }
        case 'f':
        case 'g': put_f64(t, &spec, va_arg(args, f64), *format); break;
        case 's': put_z(t, &spec, va_arg(args, const char *)); break;
        case 'c': {
            u8 byte = (u8)va_arg(args, int);
            put_padded(t, &spec, STR(""), (struct str){&byte, 1});
            break;
        }
        case '%': text_put_byte(t, '%'); break;
        default: assert(!"a conversion that text_format knows");
        }
    }
}

void text_format(struct text *t, const char *format, ...) {
    va_list args;
    va_start(args, format);
    text_format_v(t, format, args);
    va_end(args);
}

// --- UTF-8 ---

// What RFC 3629 allows after a lead byte: the sequence's length (0 for a byte that leads nothing)
// and the range of the second byte, which is what excludes overlong forms, surrogates and code
// points above U+10FFFF.
struct utf8_lead {
    u8 len, second_min, second_max;
};

static struct utf8_lead utf8_classify(u8 lead) {
    if (lead < 0x80) return (struct utf8_lead){1, 0, 0};
    if (lead < 0xc2) return (struct utf8_lead){0, 0, 0};
    if (lead < 0xe0) return (struct utf8_lead){2, 0x80, 0xbf};
    if (lead == 0xe0) return (struct utf8_lead){3, 0xa0, 0xbf};
    if (lead == 0xed) return (struct utf8_lead){3, 0x80, 0x9f};
    if (lead < 0xf0) return (struct utf8_lead){3, 0x80, 0xbf};
    if (lead == 0xf0) return (struct utf8_lead){4, 0x90, 0xbf};
    if (lead < 0xf4) return (struct utf8_lead){4, 0x80, 0xbf};
    if (lead == 0xf4) return (struct utf8_lead){4, 0x80, 0x8f};
    return (struct utf8_lead){0, 0, 0};
}

// How many bytes at s[at] agree with `kind`: the lead byte, and those that may follow it.
static u32 utf8_matching(struct str s, usize at, struct utf8_lead kind) {
    u32 n = 1;
    while (n < kind.len && n < s.len - at) {
        u8 byte = s.data[at + n];
        u8 min = n == 1 ? kind.second_min : 0x80;
        u8 max = n == 1 ? kind.second_max : 0xbf;
        if (byte < min || byte > max) break;
        n++;
    }
    return n;
}

u32 utf8_decode(struct str s, usize at, u32 *code_point) {
    assert(at < s.len);
    u8 lead = s.data[at];
    struct utf8_lead kind = utf8_classify(lead);
    if (kind.len == 0 || utf8_matching(s, at, kind) < kind.len) return 0;
    static const u8 lead_mask[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    u32 value = lead & lead_mask[kind.len];
    for (u32 i = 1; i < kind.len; i++) value = value << 6 | (s.data[at + i] & 0x3f);
    *code_point = value;
    return kind.len;
}

u32 utf8_encode(u32 code_point, u8 out[4]) {
    assert(code_point <= 0x10ffff);
    if (code_point < 0x80) {
        out[0] = (u8)code_point;
        return 1;
    }
    u32 len = code_point < 0x800 ? 2 : code_point < 0x10000 ? 3 : 4;
    static const u8 lead_bits[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (u32 i = len - 1; i > 0; i--) {
        out[i] = (u8)(0x80 | (code_point & 0x3f));
        code_point >>= 6;
    }
    out[0] = (u8)(lead_bits[len] | code_point);
    return len;
}

usize utf8_complete_prefix(struct str s) {
    // A well-formed sequence holds one lead byte, its first; so the last byte that is not a
    // continuation decides, if it is near enough to the end to be waiting for more.
    for (usize back = 1; back <= 3 && back <= s.len; back++) {
        usize at = s.len - back;
        if ((s.data[at] & 0xc0) == 0x80) continue;
        struct utf8_lead kind = utf8_classify(s.data[at]);
        bool waiting = kind.len > back && utf8_matching(s, at, kind) == back;
        return waiting ? at : s.len;
    }
    return s.len;
}

// --- JSON ---

static void put_json_ascii(struct text *t, u8 byte) {
    switch (byte) {
    case '"': text_put(t, STR("\\\"")); break;
    case '\\': text_put(t, STR("\\\\")); break;
    case '\n': text_put(t, STR("\\n")); break;
    case '\r': text_put(t, STR("\\r")); break;
    case '\t': text_put(t, STR("\\t")); break;
    default:
        if (byte < 0x20 || byte == 0x7f) {
            text_format(t, "\\u%04x", byte);
        } else {
            text_put_byte(t, byte);
        }
    }
}

void text_put_json(struct text *t, struct str s) {
    for (usize i = 0; i < s.len && !t->truncated;) {
        u32 code_point = 0;
        u32 n = utf8_decode(s, i, &code_point);
        if (n == 1) {
            put_json_ascii(t, s.data[i]);
        } else if (n == 0) {
            text_put(t, STR("\xef\xbf\xbd"));
        } else {
            text_put(t, (struct str){s.data + i, n});
        }
        i += MAX(n, 1u);
    }
}

void text_put_json_string(struct text *t, struct str s) {
    text_put_byte(t, '"');
    text_put_json(t, s);
    text_put_byte(t, '"');
}
