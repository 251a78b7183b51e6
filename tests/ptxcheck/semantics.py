#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a calibration table whose results are computed here, from the text of the PTX ISA and in exact
arithmetic (integers, fractions): a second opinion on the interpreter that needs no card.
"""
import random
from fractions import Fraction

R = random.Random(20261130)
EDGES32 = [0, 1, 2, 31, 32, 33, 0x7f, 0x80, 0xff, 0x7fff, 0x8000, 0xffff, 0x7fffffff, 0x80000000,
           0xffffffff, 0xfffffffe]
FORMATS = {"f16": (5, 10), "bf16": (8, 7), "f32": (8, 23)}
MASK32 = 0xffffffff


def word():
    return R.choice(EDGES32) if R.random() < 0.4 else R.getrandbits(32)


def s32(x):
    return (x & MASK32) - ((x & 0x80000000) << 1)


def s8(x):
    return (x & 0xff) - ((x & 0x80) << 1)


def s16(x):
    return (x & 0xffff) - ((x & 0x8000) << 1)


# --- exact binary formats ---

def value(bits, fmt):
    """The number of a finite pattern; None for infinities and NaN."""
    e_bits, m_bits = FORMATS[fmt]
    sign = -1 if bits >> (e_bits + m_bits) else 1
    exponent, mantissa = bits >> m_bits & ((1 << e_bits) - 1), bits & ((1 << m_bits) - 1)
    if exponent == (1 << e_bits) - 1:
        return None
    bias = (1 << (e_bits - 1)) - 1
    if exponent == 0:
        return sign * Fraction(mantissa, 1 << m_bits) * Fraction(2) ** (1 - bias)
    return sign * (1 + Fraction(mantissa, 1 << m_bits)) * Fraction(2) ** (exponent - bias)


def rounded(x, fmt, mode="rn", zero_sign=0):
    e_bits, m_bits = FORMATS[fmt]
    bias, top = (1 << (e_bits - 1)) - 1, ((1 << e_bits) - 1) << m_bits
    if x == 0:
        return zero_sign << (e_bits + m_bits)
    sign, x = (1 if x < 0 else 0), abs(x)
    exponent = 1 - bias
    while x >= Fraction(2) ** (exponent + 1):
        exponent += 1
    unit = Fraction(2) ** (exponent - m_bits)
    steps, rest = divmod(x, unit)
    steps = int(steps)
    if mode == "rn" and (rest * 2 > unit or (rest * 2 == unit and steps & 1)):
        steps += 1
    bits = steps + ((exponent + bias - 1) << m_bits)
    if bits >= top:
        bits = top if mode == "rn" else top - 1
    return sign << (e_bits + m_bits) | bits


def number(fmt):
    e_bits, m_bits = FORMATS[fmt]
    while True:
        bits = R.getrandbits(1 + e_bits + m_bits)
        if R.random() < 0.3:
            bits &= ~(((1 << (e_bits - 1)) - 1) << m_bits | 1 << (e_bits + m_bits - 1))  # subnormal
        if R.random() < 0.5:  # of similar size, so that sums cancel and round
            bias = (1 << (e_bits - 1)) - 1
            bits = (bits & (1 << (e_bits + m_bits) | (1 << m_bits) - 1)) | \
                (bias + R.randrange(-3, 4)) << m_bits
        if value(bits, fmt) is not None:
            return bits


# --- output ---

def form(name, kind, ins, outs, body, rows):
    print(f"form {name} {kind}\nin {' '.join(ins)}\nout {' '.join(outs)}")
    for line in body:
        print("body", line)
    for inputs, results in rows:
        print("row", *[f"{x:x}" for x in inputs], ":", *[f"{x:x}" for x in results])


def thread(name, instruction, classes, function, draw=None, n=96):
    """One destination, sources in order; `function` maps inputs to the result."""
    out, *ins = classes
    operands = ", ".join(["%o0"] + [f"%i{k}" for k in range(len(ins))])
    rows = []
    while len(rows) < n:
        inputs = draw() if draw else [word() if c != "b16" else word() & 0xffff for c in ins]
        result = function(*inputs)
        if result is not None:
            rows.append((inputs, [result]))
    form(name, "thread", ins, [out], [f"{instruction} {operands};"], rows)


def integers():
    w, d = "b32", "b64"
    thread("mul_hi_u32", "mul.hi.u32", [w, w, w], lambda a, b: a * b >> 32)
    thread("mul_hi_s32", "mul.hi.s32", [w, w, w], lambda a, b: s32(a) * s32(b) >> 32 & MASK32)
    thread("mul_wide_s32", "mul.wide.s32", [d, w, w],
           lambda a, b: s32(a) * s32(b) & (1 << 64) - 1)
    thread("mad_lo_s32", "mad.lo.s32", [w, w, w, w], lambda a, b, c: a * b + c & MASK32)
    thread("add_sat", "add.sat.s32", [w, w, w],
           lambda a, b: max(-2**31, min(2**31 - 1, s32(a) + s32(b))) & MASK32)
    thread("div_s32", "div.s32", [w, w, w], lambda a, b: None if b == 0 or s32(b) == -1 else
           int(Fraction(s32(a), s32(b))) & MASK32)
    thread("rem_s32", "rem.s32", [w, w, w], lambda a, b: None if b == 0 or s32(b) == -1 else
           s32(a) - s32(b) * int(Fraction(s32(a), s32(b))) & MASK32)
    thread("sad_s32", "sad.s32", [w, w, w, w],
           lambda a, b, c: c + abs(s32(a) - s32(b)) & MASK32)
    thread("shl", "shl.b32", [w, w, w], lambda a, n: a << n & MASK32 if n < 64 else 0)
    thread("shr_s32", "shr.s32", [w, w, w], lambda a, n: s32(a) >> min(n, 31) & MASK32)
    thread("shf_l_wrap", "shf.l.wrap.b32", [w, w, w, w],
           lambda a, b, n: (b << 32 | a) << (n & 31) >> 32 & MASK32)
    thread("shf_r_clamp", "shf.r.clamp.b32", [w, w, w, w],
           lambda a, b, n: (b << 32 | a) >> min(n, 32) & MASK32)
    thread("shf_l_clamp", "shf.l.clamp.b32", [w, w, w, w],
           lambda a, b, n: (b << 32 | a) << min(n, 32) >> 32 & MASK32)
    thread("brev", "brev.b32", [w, w], lambda a: int(f"{a:032b}"[::-1], 2))
    thread("clz", "clz.b32", [w, w], lambda a: 32 - a.bit_length())
    thread("popc", "popc.b32", [w, w], lambda a: bin(a).count("1"))
    thread("bfind_s32", "bfind.s32", [w, w],
           lambda a: ((a ^ MASK32 if a >> 31 else a).bit_length() - 1) & MASK32)

    def bfe(a, pos, length):
        pos, length = pos & 255, length & 255
        return 0 if length == 0 else (s32(a) >> min(pos, 31) if pos >= 32 else
                                      _field(s32(a) >> pos, min(length, 64))) & MASK32

    def _field(x, length):
        x &= (1 << length) - 1
        return x - (1 << length) if x >> (length - 1) else x
    thread("bfe_s32", "bfe.s32", [w, w, w, w], bfe,
           lambda: [word(), R.randrange(40), R.randrange(40)])
    thread("bfe_u32", "bfe.u32", [w, w, w, w],
           lambda a, p, n: a >> p & (1 << n) - 1,
           lambda: [word(), R.randrange(40), R.randrange(40)])

    def bfi(a, b, pos, length):
        mask = ((1 << length) - 1) << pos & MASK32
        return b & ~mask | a << pos & mask
    thread("bfi", "bfi.b32", [w, w, w, w, w], bfi,
           lambda: [word(), word(), R.randrange(40), R.randrange(40)])
    for table in (0x80, 0xe8, 0x96, 0xca, 0x1b):
        thread(f"lop3_{table:02x}", f"lop3.b32 %o0, %i0, %i1, %i2, {table}; //",
               [w, w, w, w], lambda a, b, c, table=table: sum(
                   (table >> ((a >> k & 1) << 2 | (b >> k & 1) << 1 | (c >> k & 1)) & 1) << k
                   for k in range(32)))
    prmt()
    for a_sign in "us":
        for b_sign in "us":
            def dp4a(a, b, c, fa=a_sign, fb=b_sign):
                pick = {"u": lambda x: x & 255, "s": s8}
                return c + sum(pick[fa](a >> 8 * k) * pick[fb](b >> 8 * k)
                               for k in range(4)) & MASK32
            thread(f"dp4a_{a_sign}{b_sign}", f"dp4a.{a_sign}32.{b_sign}32", [w, w, w, w], dp4a)
    form("carry", "thread", [w, w, w, w], [w, w],
         ["add.cc.u32 %o0, %i0, %i2;", "addc.u32 %o1, %i1, %i3;"],
         [((a & MASK32, a >> 32, b & MASK32, b >> 32), (a + b & MASK32, a + b >> 32 & MASK32))
          for a, b in ((word() << 32 | word(), word() << 32 | word()) for _ in range(64))])


def prmt():
    """The selector tables of the PTX ISA, most significant byte first."""
    tables = {"f4e": ["3210", "4321", "5432", "6543"], "b4e": ["5670", "6701", "7012", "0123"],
              "rc8": ["0000", "1111", "2222", "3333"], "ecl": ["3210", "3211", "3222", "3333"],
              "ecr": ["0000", "1110", "2210", "3210"], "rc16": ["1010", "3232", "1010", "3232"]}

    def byte(a, b, index):
        return (b << 32 | a) >> 8 * index & 255
    for mode, table in tables.items():
        thread(f"prmt_{mode}", f"prmt.b32.{mode}", ["b32"] * 4,
               lambda a, b, c, table=table: sum(
                   byte(a, b, int(digit)) << 8 * (3 - k)
                   for k, digit in enumerate(table[c & 3])),
               lambda: [R.getrandbits(32), R.getrandbits(32), R.getrandbits(32)], 32)

    def any_byte(a, b, c):
        result = 0
        for k in range(4):
            x = byte(a, b, c >> 4 * k & 7)
            result |= (x if not c >> 4 * k & 8 else 255 * (x >> 7)) << 8 * k
        return result
    thread("prmt_any", "prmt.b32", ["b32"] * 4, any_byte,
           lambda: [R.getrandbits(32), R.getrandbits(32), R.getrandbits(32)])


def widths():
    """Every integer type of 16, 32 and 64 bits."""
    for bits in (16, 32, 64):
        name, wide = f"b{bits}", f"b{2 * bits}"
        mask = (1 << bits) - 1

        def draw(n, bits=bits):
            return lambda: [(word() << 32 | word()) >> (64 - bits) for _ in range(n)]
        for sign in "us":
            def v(x, bits=bits, sign=sign):
                x &= (1 << bits) - 1
                return x - (1 << bits) if sign == "s" and x >> (bits - 1) else x
            t = f"{sign}{bits}"
            three = [name] * 3
            thread(f"w_mul_hi_{t}", f"mul.hi.{t}", three,
                   lambda a, b, v=v, bits=bits, mask=mask: v(a) * v(b) >> bits & mask, draw(2))
            for operation, function in (("add", lambda a, b: a + b), ("sub", lambda a, b: a - b),
                                        ("mul.lo", lambda a, b: a * b)):
                thread(f"w_{operation.replace('.', '_')}_{t}", f"{operation}.{t}", three,
                       lambda a, b, f=function, mask=mask: f(a, b) & mask, draw(2))
            thread(f"w_selp_{t}", f"selp.{t}", three + ["pred"],
                   lambda a, b, p: a if p else b,
                   lambda draw=draw: draw(2)() + [R.getrandbits(1)])
            thread(f"w_mad_lo_{t}", f"mad.lo.{t}", [name] * 4,
                   lambda a, b, c, mask=mask: a * b + c & mask, draw(3))
            if bits > 16:
                thread(f"w_mad_hi_{t}", f"mad.hi.{t}", [name] * 4,
                       lambda a, b, c, v=v, bits=bits, mask=mask:
                       (v(a) * v(b) >> bits) + c & mask, draw(3))
            if bits < 64:
                thread(f"w_mul_wide_{t}", f"mul.wide.{t}", [wide] + three[1:],
                       lambda a, b, v=v, bits=bits: v(a) * v(b) & (1 << 2 * bits) - 1, draw(2))
                thread(f"w_mad_wide_{t}", f"mad.wide.{t}", [wide] + three[1:] + [wide],
                       lambda a, b, c, v=v, bits=bits: v(a) * v(b) + c & (1 << 2 * bits) - 1,
                       lambda draw=draw, bits=bits: draw(2)() + [R.getrandbits(2 * bits)])
            thread(f"w_div_{t}", f"div.{t}", three,
                   lambda a, b, v=v, mask=mask: None if b in (0, mask) else
                   int(Fraction(v(a), v(b))) & mask, draw(2))
            thread(f"w_rem_{t}", f"rem.{t}", three,
                   lambda a, b, v=v, mask=mask: None if b in (0, mask) else
                   v(a) - v(b) * int(Fraction(v(a), v(b))) & mask, draw(2))
            thread(f"w_min_{t}", f"min.{t}", three,
                   lambda a, b, v=v, mask=mask: min(v(a), v(b)) & mask, draw(2))
            thread(f"w_max_{t}", f"max.{t}", three,
                   lambda a, b, v=v, mask=mask: max(v(a), v(b)) & mask, draw(2))
            thread(f"w_sad_{t}", f"sad.{t}", [name] * 4,
                   lambda a, b, c, v=v, mask=mask: c + abs(v(a) - v(b)) & mask, draw(3))
            thread(f"w_shr_{t}", f"shr.{t}", [name, name, "b32"],
                   lambda a, n, v=v, mask=mask: v(a) >> n & mask,
                   lambda draw=draw, bits=bits: draw(1)() + [R.randrange(bits + 4)])
            compare(t, name, v, draw)
        thread(f"w_shr_{name}", f"shr.{name}", [name, name, "b32"], lambda a, n: a >> n,
               lambda draw=draw, bits=bits: draw(1)() + [R.randrange(bits + 4)])
        thread(f"w_shl_{name}", f"shl.{name}", [name, name, "b32"],
               lambda a, n, mask=mask: a << n & mask,
               lambda draw=draw, bits=bits: draw(1)() + [R.randrange(bits + 4)])
        thread(f"w_not_{name}", f"not.{name}", [name, name], lambda a, mask=mask: a ^ mask, draw(1))
        thread(f"w_neg_{name}", f"neg.s{bits}", [name, name],
               lambda a, mask=mask: -a & mask, draw(1))
        thread(f"w_abs_{name}", f"abs.s{bits}", [name, name],
               lambda a, mask=mask, bits=bits: -a & mask if a >> (bits - 1) else a, draw(1))
    two = [lambda: [R.getrandbits(64) >> R.randrange(64)]]
    thread("w_brev_b64", "brev.b64", ["b64"] * 2, lambda a: int(f"{a:064b}"[::-1], 2), *two)
    thread("w_clz_b64", "clz.b64", ["b32", "b64"], lambda a: 64 - a.bit_length(), *two)
    thread("w_popc_b64", "popc.b64", ["b32", "b64"], lambda a: bin(a).count("1"), *two)
    thread("w_bfind_u64", "bfind.u64", ["b32", "b64"],
           lambda a: a.bit_length() - 1 & MASK32, *two)
    thread("w_bfind_shiftamt_u64", "bfind.shiftamt.u64", ["b32", "b64"],
           lambda a: 64 - a.bit_length() if a else MASK32, *two)
    thread("w_cnot", "cnot.b32", ["b32"] * 2, lambda a: int(a == 0))
    thread("w_sub_sat", "sub.sat.s32", ["b32"] * 3,
           lambda a, b: max(-2**31, min(2**31 - 1, s32(a) - s32(b))) & MASK32)
    thread("w_selp_f32", "selp.f32", ["f32"] * 3 + ["pred"], lambda a, b, p: a if p else b,
           lambda: [word(), word(), R.getrandbits(1)])
    thread("w_slct", "slct.b32.s32", ["b32"] * 4, lambda a, b, c: a if s32(c) >= 0 else b)


def compare(t, name, v, draw):
    """Six comparisons at once, and a combination with a predicate."""
    rows = []
    for k in range(64):
        a, b = draw(2)()
        b = a if k % 5 == 0 else b
        x, y, p = v(a), v(b), R.getrandbits(1)
        rows.append(([a, b, p], [x == y, x != y, x < y, x <= y, x > y, x >= y,
                                 x < y and p, not x < y and p, x >= y or not p]))
    rows = [(i, [int(o) for o in outs]) for i, outs in rows]
    form(f"w_setp_{t}", "thread", [name, name, "pred"], ["pred"] * 9,
         [f"setp.{c}.{t} %o{k}, %i0, %i1;" for k, c in
          enumerate(("eq", "ne", "lt", "le", "gt", "ge"))] +
         [f"setp.lt.and.{t} %o6|%o7, %i0, %i1, %i2;",
          f"setp.ge.or.{t} %o8, %i0, %i1, !%i2;"], rows)


def between_integers():
    def limits(t):
        bits = int(t[1:])
        return (-(1 << bits - 1), (1 << bits - 1) - 1) if t[0] == "s" else (0, (1 << bits) - 1)
    names = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
    register = {8: 16, 16: 16, 32: 32, 64: 64}
    for source in names:
        for target in names:
            (low, high), (s_low, s_high) = limits(target), limits(source)
            bits, s_bits = int(target[1:]), int(source[1:])
            if source == target or (low <= s_low and s_high <= high):
                continue
            mask = (1 << register[bits]) - 1
            rows = []
            for _ in range(48):
                raw = R.choice([low, high, s_low, s_high, R.getrandbits(64), R.getrandbits(8)])
                raw &= (1 << register[s_bits]) - 1
                x = raw & (1 << s_bits) - 1
                x = x - (1 << s_bits) if source[0] == "s" and x >> (s_bits - 1) else x
                cut = x & (1 << bits) - 1
                cut = cut - (1 << bits) if target[0] == "s" and cut >> (bits - 1) else cut
                rows.append(([raw], [cut & mask, max(low, min(high, x)) & mask]))
            form(f"w_cvt_{target}_{source}", "thread", [f"b{register[s_bits]}"],
                 [f"b{register[bits]}"] * 2,
                 [f"cvt.{target}.{source} %o0, %i0;", f"cvt.sat.{target}.{source} %o1, %i0;"], rows)
    for target, (low, high) in (("s8", (-128, 127)), ("u8", (0, 255))):
        thread(f"w_cvt_pack_{target}", f"cvt.pack.sat.{target}.s32.b32", ["b32"] * 4,
               lambda a, b, c, low=low, high=high: (c << 16 | (max(low, min(high, s32(a))) & 255) << 8 |
                                                    max(low, min(high, s32(b))) & 255) & MASK32)


def float_comparisons():
    for fmt, name in (("f16", "b16"), ("f32", "f32")):
        nan = {"f16": 0x7e00, "f32": 0x7fc00000}[fmt]
        rows = []
        for k in range(64):
            a, b = number(fmt), number(fmt)
            b = a if k % 5 == 0 else b
            a, b = (nan if k % 7 == 0 else a), (nan if k % 11 == 0 else b)
            x, y = (None if z == nan else value(z, fmt) for z in (a, b))
            odd = x is None or y is None
            outs = [not odd and x == y, not odd and x != y, not odd and x < y, odd or x >= y, odd or x != y,
                    odd, not odd]
            rows.append(([a, b], [int(o) for o in outs]))
        form(f"w_setp_{fmt}", "thread", [name] * 2, ["pred"] * 7,
             [f"setp.{c}.{fmt} %o{k}, %i0, %i1;" for k, c in
              enumerate(("eq", "ne", "lt", "geu", "neu", "nan", "num"))], rows)


def nonzero(x, fmt, mode="rn"):
    """The rounded result; exact zeros are left out, their sign is another matter."""
    return None if x == 0 else rounded(x, fmt, mode)


def floats():
    def draw(fmt, n):
        return lambda: [number(fmt) for _ in range(n)]
    for mode in ("rn", "rz"):
        for name, operation in (("add", lambda a, b: a + b), ("sub", lambda a, b: a - b),
                                ("mul", lambda a, b: a * b), ("div", lambda a, b: b and a / b)):
            thread(f"{name}_{mode}_f32", f"{name}.{mode}.f32", ["f32"] * 3,
                   lambda a, b, op=operation, mode=mode: nonzero(
                       op(value(a, "f32"), value(b, "f32")), "f32", mode), draw("f32", 2))
        thread(f"fma_{mode}_f32", f"fma.{mode}.f32", ["f32"] * 4,
               lambda a, b, c, mode=mode: nonzero(
                   value(a, "f32") * value(b, "f32") + value(c, "f32"), "f32", mode),
               draw("f32", 3))
    for fmt in ("f16", "bf16"):
        thread(f"fma_{fmt}", f"fma.rn.{fmt}", ["b16"] * 4,
               lambda a, b, c, fmt=fmt: nonzero(
                   value(a, fmt) * value(b, fmt) + value(c, fmt), fmt), draw(fmt, 3), 256)
        for mode in ("rn", "rz"):
            thread(f"cvt_{mode}_{fmt}", f"cvt.{mode}.{fmt}.f32", ["b16", "f32"],
                   lambda a, fmt=fmt, mode=mode: nonzero(value(a, "f32"), fmt, mode),
                   lambda fmt=fmt: [rounded(value(number(fmt), fmt) *
                                            (1 + Fraction(R.randrange(-4, 5), 1 << 12)), "f32")],
                   192)
            thread(f"cvt_pair_{mode}_{fmt}", f"cvt.{mode}.{fmt}x2.f32", ["b32", "f32", "f32"],
                   lambda a, b, fmt=fmt, mode=mode: None if 0 in (value(a, "f32"), value(b, "f32"))
                   else rounded(value(a, "f32"), fmt, mode) << 16 |
                   rounded(value(b, "f32"), fmt, mode), draw("f32", 2))
    thread("cvt_f32_f16", "cvt.f32.f16", ["f32", "b16"],
           lambda a: nonzero(value(a, "f16"), "f32"), draw("f16", 1))
    thread("cvt_f32_s32", "cvt.rn.f32.s32", ["f32", "b32"],
           lambda a: rounded(Fraction(s32(a)), "f32"))
    thread("cvt_f32_u32", "cvt.rn.f32.u32", ["f32", "b32"],
           lambda a: rounded(Fraction(a), "f32"))
    roundings = {"rni": round, "rzi": int, "rmi": lambda x: x.__floor__(),
                 "rpi": lambda x: x.__ceil__()}
    for mode, function in roundings.items():
        thread(f"cvt_{mode}_s32", f"cvt.{mode}.s32.f32", ["b32", "f32"],
               lambda a, f=function: max(-2**31, min(2**31 - 1, f(value(a, "f32")))) & MASK32,
               draw("f32", 1))
    thread("cvt_sat_s8", "cvt.sat.s8.s32", ["b32", "b32"],
           lambda a: max(-128, min(127, s32(a))) & MASK32)
    thread("cvt_sat_u8", "cvt.sat.u8.s32", ["b32", "b32"], lambda a: max(0, min(255, s32(a))))
    thread("cvt_s8", "cvt.s32.s8", ["b32", "b32"], lambda a: s8(a) & MASK32)


def warp(name, ins, outs, body, make, warps=3):
    rows = []
    for _ in range(warps):
        inputs = [[word() for _ in ins] for _ in range(32)]
        results = make(inputs)
        rows += list(zip(inputs, results))
    form(name, "warp", ins, outs, body, rows)


def lanes():
    everyone = "0xffffffff"
    for step, c in ((1, 0), (7, 0), (3, 0x1800)):
        def up(x, step=step, c=c):
            low = {0: 0, 0x1800: 24}[c]
            return [[x[l - step][0] if l - step >= (l & low) else x[l][0],
                     int(l - step >= (l & low))] for l in range(32)]
        warp(f"shfl_up_{step}_{c:x}", ["b32"], ["b32", "pred"],
             [f"shfl.sync.up.b32 %o0|%o1, %i0, {step}, {c}, {everyone};"], up, 1)
    for step in (1, 16, 31):
        warp(f"shfl_bfly_{step}", ["b32"], ["b32"],
             [f"shfl.sync.bfly.b32 %o0, %i0, {step}, 31, {everyone};"],
             lambda x, step=step: [[x[l ^ step][0]] for l in range(32)], 1)
    warp("shfl_down_8_of_16", ["b32"], ["b32", "pred"],
         [f"shfl.sync.down.b32 %o0|%o1, %i0, 8, 0x100f, {everyone};"],
         lambda x: [[x[l + 8 if (l & 15) < 8 else l][0], int((l & 15) < 8)]
                    for l in range(32)], 1)
    warp("shfl_idx", ["b32", "b32"], ["b32"],
         [f"shfl.sync.idx.b32 %o0, %i0, %i1, 31, {everyone};"],
         lambda x: [[x[x[l][1] & 31][0]] for l in range(32)])
    warp("ballot", ["b32"], ["b32"], ["setp.ge.s32 %p0, %i0, 0;",
                                      f"vote.sync.ballot.b32 %o0, %p0, {everyone};"],
         lambda x: [[sum((s32(x[l][0]) >= 0) << l for l in range(32))]] * 32)
    warp("redux", ["b32"], ["b32", "b32", "b32"],
         [f"redux.sync.add.s32 %o0, %i0, {everyone};", f"redux.sync.min.s32 %o1, %i0, {everyone};",
          f"redux.sync.max.u32 %o2, %i0, {everyone};"],
         lambda x: [[sum(v[0] for v in x) & MASK32, min(s32(v[0]) for v in x) & MASK32,
                     max(v[0] for v in x)]] * 32)
    matrices()


def matrices():
    def half(x, row, column):  # of 8x8 matrices as ldmatrix reads them: a row is a lane's 16 bytes
        return x[row][column // 2] >> 16 * (column % 2) & 0xffff
    store = ["mov.u32 %t0, %laneid;", "shl.b32 %t0, %t0, 4;", "mov.u32 %t1, sm;",
             "add.u32 %t0, %t0, %t1;", "st.shared.v4.b32 [%t0], {%i0, %i1, %i2, %i3};",
             "bar.warp.sync 0xffffffff;"]
    outs = "{%o0, %o1, %o2, %o3}"
    for trans in ("", ".trans"):
        def load(x, trans=trans):
            result = []
            for l in range(32):
                g, t = l // 4, 2 * (l % 4)
                places = [(g, t), (g, t + 1)] if not trans else [(t, g), (t + 1, g)]
                result.append([half(x, 8 * m + places[0][0], places[0][1]) |
                               half(x, 8 * m + places[1][0], places[1][1]) << 16
                               for m in range(4)])
            return result
        warp(f"ldmatrix_x4{trans.replace('.', '_')}", ["b32"] * 4, ["b32"] * 4,
             store + [f"ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {outs}, [%t0];"], load)

    def transpose(x):
        at = [[x[4 * row + column // 2][0] >> 16 * (column % 2) & 0xffff for column in range(8)]
              for row in range(8)]
        return [[at[2 * (l % 4)][l // 4] | at[2 * (l % 4) + 1][l // 4] << 16] for l in range(32)]
    warp("movmatrix", ["b32"], ["b32"],
         ["movmatrix.sync.aligned.m8n8.trans.b16 %o0, %i0;"], transpose)
    for depth in (16, 32):
        for a_sign in "us":
            for b_sign in "us":
                mma(depth, a_sign, b_sign)


def mma(depth, a_sign, b_sign):
    pick = {"u": lambda x: x & 255, "s": s8}
    n_a, n_b = depth // 8, depth // 16

    def multiply(x):
        a = [[pick[a_sign](x[4 * (row % 8) + k % 16 // 4][row // 8 + 2 * (k // 16)] >> 8 * (k % 4))
              for k in range(depth)] for row in range(16)]
        b = [[pick[b_sign](x[4 * column + k % 16 // 4][n_a + k // 16] >> 8 * (k % 4))
              for column in range(8)] for k in range(depth)]
        result = []
        for l in range(32):
            at = [(l // 4 + 8 * (r // 2), 2 * (l % 4) + r % 2) for r in range(4)]
            result.append([x[l][n_a + n_b + r] + sum(a[row][k] * b[k][column]
                                                     for k in range(depth)) & MASK32
                           for r, (row, column) in enumerate(at)])
        return result
    names = [f"%i{k}" for k in range(n_a + n_b + 4)]
    groups = [names[:n_a], names[n_a:n_a + n_b], names[n_a + n_b:]]
    operands = ", ".join("{" + ", ".join(group) + "}" for group in groups)
    warp(f"mma_k{depth}_{a_sign}{b_sign}", ["b32"] * len(names), ["b32"] * 4,
         [f"mma.sync.aligned.m16n8k{depth}.row.col.s32.{a_sign}8.{b_sign}8.s32 "
          "{%o0, %o1, %o2, %o3}, " + operands + ";"], multiply)


print("calibration 1\ncard none, computed in exact arithmetic")
integers()
widths()
between_integers()
floats()
float_comparisons()
lanes()
