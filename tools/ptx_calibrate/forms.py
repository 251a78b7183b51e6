#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The instruction forms of the calibration table, and their inputs.

    forms.py forms             the forms file (docs/ptxcheck.md, Calibration tables)
    forms.py module FORMS      the PTX module that a card executes to complete it
    forms.py reduce TABLE      the part of a recorded table that the repository keeps

The repository keeps tests/ptx/h200.calibration. Left out of it are
  - forms that the checker refuses (NOT_EXECUTED): no kernel may use them;
  - rows with a NaN among the results: which NaN, PTX leaves open;
  - of rows with random inputs alone, all but RANDOM_ROWS of a form of one thread, the random warps of the
    integer mma (those behind WARPS_KEPT), and all but one of the warps of a float mma. A row is not
    random when one of its inputs is a word of the lists below, a small number (shift, selector, lane)
    or a bit mask;
  - two rows of three of the forms that choose or combine bits (CHOOSES): they round nothing, so a
    pair of edges says little that its neighbours do not say.

A form is one instruction (or the few that it takes to reach one) with a table of inputs: edges of the
number format, ties and near ties, every selector, shift amounts beyond the width, and random values of
one seed. The recorder (record.c) runs the module and adds the results.
"""
import random
import re
import struct
import sys

SEED = 20261130
WARP = 32
M32 = 0xffffffff

# --- values ---

I32_EDGES = [0, 1, 2, 3, 31, 32, 33, 0x7f, 0x80, 0xff, 0x100, 0x7fff, 0x8000, 0xffff, 0x10000,
             0x7fffffff, 0x80000000, 0x80000001, 0xfffffffe, 0xffffffff]
F32_EDGES = [0x00000000, 0x80000000,  # zeros
             0x00000001, 0x80000001, 0x007fffff, 0x807fffff,  # subnormals
             0x00800000, 0x80800000,  # the smallest normals
             0x3f800000, 0xbf800000, 0x3f800001, 0x3f7fffff, 0x40000000, 0x3f000000, 0xbf000000,
             0x40490fdb, 0x4b000000, 0x4b400000, 0xcb400000, 0x4effffff, 0x4f000000, 0xcf000000,
             0x7f7fffff, 0xff7fffff, 0x7f000000,
             0x7f800000, 0xff800000]  # infinities
F32_NANS = [0x7fc00000, 0xffc00000, 0x7f800001, 0x7fffffff, 0xff812345]
# Ties, near ties and borders of f32 to f16.
F32_TO_F16 = [0x477fe000, 0x477fefff, 0x477ff000, 0x477ff001, 0xc77ff000, 0x47800000,  # 65504..65536
              0x38800000, 0x387fffff, 0x387fe000, 0x387ff000, 0x38000000,  # around 2^-14
              0x33800000, 0x33000000, 0x33000001, 0x32ffffff, 0x33c00000, 0x34200000,  # 2^-24, ties
              0x34600000, 0x3f801000, 0x3f801001, 0x3f800fff, 0x3f803000, 0x3f802fff, 0x3f803001,
              0xbf801000, 0xbf803000, 0x3fffffff, 0x3fffefff, 0x3ffff000]
F32_TO_BF16 = [0x3f808000, 0x3f808001, 0x3f807fff, 0x3f818000, 0x3f817fff, 0x3f818001, 0xbf808000,
               0x7f7fffff, 0x7f7f8000, 0x7f7f7fff, 0x00008000, 0x00018000, 0x00008001, 0x007fffff]
# f32 to integers: halves, the last representable ones, out of range.
F32_TO_INT = [0x3f000000, 0x3fc00000, 0x40200000, 0xbf000000, 0xbfc00000, 0xc0200000, 0x3effffff,
              0x3f000001, 0x4b000001, 0x4affffff, 0x4afffffe, 0xcaffffff, 0x4effffff, 0x4f000000,
              0x4f000001, 0xcf000000, 0xcf000001, 0x4f7fffff, 0x4f800000, 0x5f000000, 0xdf000000,
              0x42fe0000, 0x43000000, 0xc3000000, 0xc3010000, 0x46fffe00, 0x47000000, 0x477fff00]
F16_EDGES = [0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x83ff, 0x0400, 0x8400, 0x3c00, 0xbc00, 0x3c01,
             0x3bff, 0x4000, 0x3800, 0x6400, 0x7bff, 0xfbff, 0x7c00, 0xfc00]
F16_NANS = [0x7e00, 0xfe00, 0x7c01, 0x7fff]
BF16_EDGES = [0x0000, 0x8000, 0x0001, 0x8001, 0x007f, 0x0080, 0x3f80, 0xbf80, 0x3f81, 0x3f7f, 0x4000,
              0x7f7f, 0xff7f, 0x7f80, 0xff80]
BF16_NANS = [0x7fc0, 0xffc0, 0x7f81, 0x7fff]


def f32_bits(value):
    return struct.unpack("<I", struct.pack("<f", value))[0]


def f16_bits(value):
    return struct.unpack("<H", struct.pack("<e", value))[0]


def bf16_bits(value):
    return f32_bits(value) >> 16


class Form:
    """One form; rows are lists of input words."""

    def __init__(self, name, kind, ins, outs, body, rows, compare=None):
        self.name, self.kind, self.ins, self.outs = name, kind, ins, outs
        self.body = [body] if isinstance(body, str) else body
        self.rows, self.compare = rows, compare
        assert rows and all(len(row) == len(ins) for row in rows), name
        assert kind == "thread" or len(rows) % WARP == 0, name

    def text(self):
        lines = [f"form {self.name} {self.kind}", "in " + " ".join(self.ins),
                 "out " + " ".join(self.outs)]
        if self.compare:
            lines.append("compare " + self.compare)
        lines += [f"body {line}" for line in self.body]
        digits = {"b16": 4, "b32": 8, "f32": 8, "b64": 16, "f64": 16, "pred": 1}
        for row in self.rows:
            lines.append("row " + " ".join(f"{word:0{digits[kind]}x}"
                                           for word, kind in zip(row, self.ins)))
        return "\n".join(lines) + "\n"


class Forms:
    def __init__(self):
        self.random = random.Random(SEED)
        self.list = []

    def add(self, name, ins, outs, body, rows, kind="thread", compare=None):
        self.list.append(Form(name, kind, ins.split(), outs.split(), body, rows, compare))

    # --- inputs ---
    def u32(self):
        return self.random.getrandbits(32)

    def u16(self):
        return self.random.getrandbits(16)

    def f32(self, low=-40, high=40):
        """Random sign and mantissa, exponent in [low, high]."""
        exponent = 127 + self.random.randint(low, high)
        return self.random.getrandbits(1) << 31 | exponent << 23 | self.random.getrandbits(23)

    def f16(self, low=-14, high=15):
        exponent = 15 + self.random.randint(low, high)
        return self.random.getrandbits(1) << 15 | exponent << 10 | self.random.getrandbits(10)

    def bf16(self, low=-40, high=40):
        return self.f32(low, high) >> 16

    def pairs(self, edges, draw, count):
        """A third of all pairs of edges (another one in each row), and `count` random ones."""
        rows = [[a, b] for i, a in enumerate(edges) for j, b in enumerate(edges) if (i + j) % 3 == 0]
        return rows + [[draw(), draw()] for _ in range(count)]


# --- integers ---

def integer_forms(forms):
    pairs = forms.pairs(I32_EDGES, forms.u32, 32)
    for op in ("add.u32", "sub.s32", "mul.lo.s32", "mul.hi.s32", "mul.hi.u32", "min.s32", "min.u32",
               "max.s32", "max.u32", "and.b32", "or.b32", "xor.b32", "mul24.lo.u32"):
        forms.add(op.replace(".", "_"), "b32 b32", "b32", f"{op} %o0, %i0, %i1;", pairs)
    for op in ("mul.wide.s32", "mul.wide.u32"):
        forms.add(op.replace(".", "_"), "b32 b32", "b64", f"{op} %o0, %i0, %i1;", pairs)
    nonzero = [row for row in pairs if row[1] != 0]
    for op in ("div.u32", "rem.u32", "div.s32", "rem.s32"):
        rows = [row for row in nonzero if row != [0x80000000, M32]]
        forms.add(op.replace(".", "_"), "b32 b32", "b32", f"{op} %o0, %i0, %i1;", rows)
    shifts = [[a, s] for a in (0, 1, 0x80000000, M32, 0x12345678, 0xfedcba98)
              for s in (0, 1, 7, 15, 16, 31, 32, 33, 63, 64, 255, 256, 0x80000000, M32)]
    for op in ("shl.b32", "shr.u32", "shr.s32"):
        forms.add(op.replace(".", "_"), "b32 b32", "b32", f"{op} %o0, %i0, %i1;", shifts)
    wide = [[a << 32 | b, s] for a, b in ((0, 1), (0x80000000, 0), (0xfedcba98, 0x76543210), (M32, M32))
            for _, s in shifts[:14]]
    for op in ("shl.b64", "shr.u64", "shr.s64"):
        forms.add(op.replace(".", "_"), "b64 b32", "b64", f"{op} %o0, %i0, %i1;", wide)
    short = [[a, s] for a in (1, 0x8000, 0xffff, 0x1234) for s in (0, 1, 8, 15, 16, 17, 31, 32, 255)]
    for op in ("shl.b16", "shr.u16", "shr.s16"):
        forms.add(op.replace(".", "_"), "b16 b32", "b16", f"{op} %o0, %i0, %i1;", short)
    long = [[a | forms.u32() << 32, b | forms.u32() << 32] for a, b in pairs[::4]]
    for op in ("add.u64", "sub.s64", "mul.lo.u64", "mul.hi.u64", "mul.hi.s64", "and.b64", "or.b64",
               "xor.b64", "min.s64", "max.u64"):
        forms.add(op.replace(".", "_"), "b64 b64", "b64", f"{op} %o0, %i0, %i1;", long)
    triples = [[forms.u32(), forms.u32(), forms.u32()] for _ in range(48)]
    triples += [[a, b, c] for a in (0, 1, 0x7fffffff, 0x80000000, M32) for b in (0, 1, 0x80000000, M32)
                for c in (0, 1, 0x7fffffff, 0x80000000, M32)]
    for op in ("mad.lo.s32", "mad.lo.u32", "mad.hi.s32", "mad.hi.u32", "sad.s32", "sad.u32"):
        forms.add(op.replace(".", "_"), "b32 b32 b32", "b32", f"{op} %o0, %i0, %i1, %i2;", triples)
    mixed = [[a, b, forms.u32() << 32 | c] for a, b, c in triples]
    for op in ("mad.wide.s32", "mad.wide.u32"):
        forms.add(op.replace(".", "_"), "b32 b32 b64", "b64", f"{op} %o0, %i0, %i1, %i2;", mixed)
    carry = [[a, b] for a, b in pairs[::5]]
    forms.add("add_cc_addc", "b32 b32", "b32 b32",
              ["add.cc.u32 %o0, %i0, %i1;", "addc.u32 %o1, 0, 0;"], carry)
    singles = [[a] for a in I32_EDGES] + [[forms.u32()] for _ in range(32)]
    for op in ("neg.s32", "abs.s32", "not.b32", "popc.b32", "clz.b32", "brev.b32", "bfind.u32",
               "bfind.s32", "bfind.shiftamt.u32", "bfind.shiftamt.s32"):
        rows = [row for row in singles if row != [0x80000000] or op not in ("abs.s32",)]
        forms.add(op.replace(".", "_"), "b32", "b32", f"{op} %o0, %i0;", rows)
    forms.add("popc_b64", "b64", "b32", "popc.b64 %o0, %i0;", [[a << 32 | a * 7 & M32] for [a] in singles])
    forms.add("clz_b64", "b64", "b32", "clz.b64 %o0, %i0;",
              singles + [[a << 31] for [a] in singles])
    for comparison in ("eq", "ne", "lt", "le", "gt", "ge"):
        for kind in ("s32", "u32"):
            forms.add(f"setp_{comparison}_{kind}", "b32 b32", "pred",
                      f"setp.{comparison}.{kind} %o0, %i0, %i1;", pairs[::2])
    forms.add("setp_and_or_xor", "b32 b32 pred", "pred pred pred",
              ["setp.lt.and.u32 %o0, %i0, %i1, %i2;", "setp.lt.or.s32 %o1, %i0, %i1, %i2;",
               "setp.eq.xor.u32 %o2, %i0, %i1, %i2;"],
              [[a, b, p] for a, b in pairs[::17] for p in (0, 1)])
    forms.add("selp_b32", "b32 b32 pred", "b32", "selp.b32 %o0, %i0, %i1, %i2;",
              [[1, 2, 0], [1, 2, 1], [M32, 0, 1], [M32, 0, 0]])
    forms.add("pred_logic", "pred pred", "pred pred pred pred",
              ["and.pred %o0, %i0, %i1;", "or.pred %o1, %i0, %i1;", "xor.pred %o2, %i0, %i1;",
               "not.pred %o3, %i0;"], [[a, b] for a in (0, 1) for b in (0, 1)])


def bit_forms(forms):
    fields = [[a, p, n] for a in (0x12345678, 0x80000001, M32, 0xa5a5a5a5)
              for p in (0, 1, 8, 30, 31, 32, 33, 255, 256)
              for n in (0, 1, 8, 31, 32, 33, 255, 256)]
    fields += [[forms.u32(), forms.u32() & 255, forms.u32() & 63] for _ in range(32)]
    for op in ("bfe.u32", "bfe.s32"):
        forms.add(op.replace(".", "_"), "b32 b32 b32", "b32", f"{op} %o0, %i0, %i1, %i2;", fields)
    forms.add("bfe_s64", "b64 b32 b32", "b64", "bfe.s64 %o0, %i0, %i1, %i2;",
              [[a << 32 | forms.u32(), p, n] for a, p, n in fields[::7]])
    forms.add("bfi_b32", "b32 b32 b32 b32", "b32", "bfi.b32 %o0, %i0, %i1, %i2, %i3;",
              [[a, forms.u32(), p, n] for a, p, n in fields])
    words = [(0x33221100, 0x77665544), (0x83028180, 0x07868504), (0xf0e1d2c3, 0x7f808100)]
    selectors = [s << 4 * at for at in range(4) for s in range(16)]
    selectors += [0x3210, 0x7654, 0x5410, 0x7632, 0x4140, 0x4342, 0x0123, 0xba98, 0xfedc, 0x10000]
    selectors += [forms.u16() for _ in range(40)]
    forms.add("prmt_b32", "b32 b32 b32", "b32", "prmt.b32 %o0, %i0, %i1, %i2;",
              [[a, b, s] for a, b in words for s in selectors])
    for mode in ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16"):
        forms.add(f"prmt_b32_{mode}", "b32 b32 b32", "b32", f"prmt.b32.{mode} %o0, %i0, %i1, %i2;",
                  [[a, b, s] for a, b in words for s in (0, 1, 2, 3, 4, 7, 0x10003, M32)])
    # lop3: all 256 tables; the first row spells the table in every byte.
    for first in range(0, 256, 16):
        forms.add(f"lop3_b32_{first:02x}", "b32 b32 b32", " ".join(["b32"] * 16),
                  [f"lop3.b32 %o{i}, %i0, %i1, %i2, 0x{first + i:02x};" for i in range(16)],
                  [[0xf0f0f0f0, 0xcccccccc, 0xaaaaaaaa], [forms.u32(), forms.u32(), forms.u32()]])
    funnel = [[a, b, s] for a, b in ((0x12345678, 0x9abcdef0), (1, 0x80000000), (M32, 0))
              for s in (0, 1, 7, 8, 16, 31, 32, 33, 40, 63, 64, 0x80000001, M32)]
    for side in ("l", "r"):
        for mode in ("clamp", "wrap"):
            forms.add(f"shf_{side}_{mode}", "b32 b32 b32", "b32",
                      f"shf.{side}.{mode}.b32 %o0, %i0, %i1, %i2;", funnel)
    dots = [[forms.u32(), forms.u32(), forms.u32()] for _ in range(40)]
    dots += [[a, b, c] for a in (0x80808080, 0x7f7f7f7f, M32, 0x80ff7f01) for b in
             (0x80808080, 0x7f7f7f7f, M32, 0x01020380) for c in (0, 0x7fffffff, 0x80000000, M32)]
    for a_type in ("s32", "u32"):
        for b_type in ("s32", "u32"):
            forms.add(f"dp4a_{a_type}_{b_type}", "b32 b32 b32", "b32",
                      f"dp4a.{a_type}.{b_type} %o0, %i0, %i1, %i2;", dots)
            for half in ("lo", "hi"):
                forms.add(f"dp2a_{half}_{a_type}_{b_type}", "b32 b32 b32", "b32",
                          f"dp2a.{half}.{a_type}.{b_type} %o0, %i0, %i1, %i2;", dots[::3])
    forms.add("mov_unpack_b32", "b32", "b16 b16", "mov.b32 {%o0, %o1}, %i0;", [[0x12345678]])
    forms.add("mov_pack_b32", "b16 b16", "b32", "mov.b32 %o0, {%i0, %i1};", [[0x1234, 0x5678]])
    forms.add("mov_unpack_b64", "b64", "b32 b32", "mov.b64 {%o0, %o1}, %i0;", [[0x123456789abcdef0]])
    forms.add("mov_pack_b64", "b32 b32", "b64", "mov.b64 %o0, {%i0, %i1};", [[0x12345678, 0x9abcdef0]])


# --- floats ---

def f32_pairs(forms):
    rows = forms.pairs(F32_EDGES, lambda: forms.f32(-3, 3), 48)
    rows += [[forms.f32(-126, 127), forms.f32(-126, 127)] for _ in range(32)]
    rows += [[forms.f32(-126, -60), forms.f32(-66, -20)] for _ in range(48)]  # subnormal products
    rows += [[forms.u32() & 0x807fffff, forms.u32() & 0x807fffff] for _ in range(16)]
    for _ in range(16):  # sums that cancel, and ties
        a = forms.f32(-2, 2)
        rows += [[a, a ^ 0x80000000], [a, (a ^ 0x80000000) + 1 & M32], [a, a & 0xff800000]]
    return rows


def is_nan(bits):
    return bits & 0x7fffffff > 0x7f800000


def float_forms(forms):
    pairs = f32_pairs(forms)
    nan_pairs = [[a, b] for a in F32_NANS[:3] for b in (0, 0x80000000, 0x3f800000, 0x7f800000, *F32_NANS[:2])]
    nan_pairs += [[b, a] for a, b in nan_pairs]
    for op in ("add.rn.f32", "sub.rn.f32", "mul.rn.f32", "div.rn.f32", "min.f32", "max.f32",
               "min.NaN.f32", "max.NaN.f32", "copysign.f32"):
        name = op.replace(".", "_")
        forms.add(name, "f32 f32", "f32", f"{op} %o0, %i0, %i1;", pairs)
        if op != "copysign.f32":
            forms.add(name + "_nan", "f32 f32", "f32", f"{op} %o0, %i0, %i1;", nan_pairs)
    triples = [[a, b, forms.random.choice(F32_EDGES)] for a, b in pairs]
    triples += [[forms.f32(-3, 3), forms.f32(-3, 3), forms.f32(-4, 4)] for _ in range(128)]
    for _ in range(64):  # the product almost cancels the addend: one rounding matters
        a, b = forms.f32(-3, 3), forms.f32(-3, 3)
        product = (struct.unpack("<f", struct.pack("<I", a))[0]
                   * struct.unpack("<f", struct.pack("<I", b))[0])
        triples.append([a, b, f32_bits(-product)])
    for _ in range(32):  # subnormal results
        triples.append([forms.f32(-100, -60), forms.f32(-66, -40), forms.u32() & 0x807fffff])
    forms.add("fma_rn_f32", "f32 f32 f32", "f32", "fma.rn.f32 %o0, %i0, %i1, %i2;", triples)
    forms.add("fma_rn_f32_nan", "f32 f32 f32", "f32", "fma.rn.f32 %o0, %i0, %i1, %i2;",
              [[n, 0x3f800000, 0] for n in F32_NANS] + [[0, 0x3f800000, n] for n in F32_NANS]
              + [[0, 0x7f800000, 0x3f800000], [0x7f800000, 0x3f800000, 0xff800000]])
    singles = [[a] for a in F32_EDGES + F32_TO_F16] + [[forms.f32(-126, 127)] for _ in range(96)]
    singles += [[forms.u32() & 0x007fffff] for _ in range(32)] + [[forms.f32(-1, 1)] for _ in range(64)]
    for op in ("rcp.rn.f32", "sqrt.rn.f32", "abs.f32", "neg.f32"):
        forms.add(op.replace(".", "_"), "f32", "f32", f"{op} %o0, %i0;", singles)
    forms.add("sqrt_rn_f32_nan", "f32", "f32", "sqrt.rn.f32 %o0, %i0;",
              [[n] for n in F32_NANS] + [[0xbf800000], [0x80000001]])
    for op in ("abs.f32", "neg.f32"):
        forms.add(op.replace(".", "_") + "_nan", "f32", "f32", f"{op} %o0, %i0;", [[n] for n in F32_NANS])
    compared = pairs[:240:3] + nan_pairs
    for comparison in ("eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu",
                       "num", "nan"):
        forms.add(f"setp_{comparison}_f32", "f32 f32", "pred",
                  f"setp.{comparison}.f32 %o0, %i0, %i1;", compared)
    kinds = ("finite", "infinite", "number", "notanumber", "normal", "subnormal")
    forms.add("testp_f32", "f32", " ".join(["pred"] * 6),
              [f"testp.{kind}.f32 %o{i}, %i0;" for i, kind in enumerate(kinds)],
              [[a] for a in F32_EDGES + F32_NANS])


def half_pair(draw, edges, forms, n_words):
    """Rows of n_words words of two halves each: all edges against all, then random ones."""
    values = list(edges)
    rows = []
    for i, a in enumerate(values):
        for b in values[i % 2::2]:
            row = [a | b << 16, b | a << 16, forms.random.choice(values) | draw() << 16]
            rows.append(row[:n_words])
    rows += [[draw() | draw() << 16 for _ in range(n_words)] for _ in range(64)]
    return rows


def half_forms(forms):
    near = lambda: forms.f16(-3, 3)
    tiny = lambda: forms.f16(-14, -6)
    for op, n in (("add.rn.f16x2", 2), ("sub.rn.f16x2", 2), ("mul.rn.f16x2", 2), ("fma.rn.f16x2", 3),
                  ("min.f16x2", 2), ("max.f16x2", 2)):
        args = ", ".join(f"%i{i}" for i in range(n))
        rows = half_pair(near, F16_EDGES, forms, n) + half_pair(tiny, F16_EDGES[:8], forms, n)
        forms.add(op.replace(".", "_"), " ".join(["b32"] * n), "b32", f"{op} %o0, {args};", rows)
        nans = [[forms.random.choice(F16_NANS + F16_EDGES) | forms.random.choice(F16_NANS) << 16
                 for _ in range(n)] for _ in range(24)]
        forms.add(op.replace(".", "_") + "_nan", " ".join(["b32"] * n), "b32", f"{op} %o0, {args};", nans)
    bnear = lambda: forms.bf16(-3, 3)
    bwide = lambda: forms.bf16(-126, 127)
    for op, n in (("fma.rn.bf16x2", 3), ("min.bf16x2", 2), ("max.bf16x2", 2)):
        args = ", ".join(f"%i{i}" for i in range(n))
        rows = half_pair(bnear, BF16_EDGES, forms, n) + half_pair(bwide, BF16_EDGES[:6], forms, n)
        forms.add(op.replace(".", "_"), " ".join(["b32"] * n), "b32", f"{op} %o0, {args};", rows)
    scalar = [[a, b, c] for a in F16_EDGES[::2] for b in F16_EDGES[::3] for c in F16_EDGES[::4]]
    scalar += [[near(), near(), near()] for _ in range(64)]
    forms.add("fma_rn_f16", "b16 b16 b16", "b16", "fma.rn.f16 %o0, %i0, %i1, %i2;", scalar)
    forms.add("add_rn_f16", "b16 b16", "b16", "add.rn.f16 %o0, %i0, %i1;", [r[:2] for r in scalar])
    forms.add("mul_rn_f16", "b16 b16", "b16", "mul.rn.f16 %o0, %i0, %i1;", [r[:2] for r in scalar])
    words = [[a | b << 16] for a in F16_EDGES for b in F16_EDGES[::5]]
    forms.add("neg_f16x2", "b32", "b32", "neg.f16x2 %o0, %i0;", words)
    forms.add("abs_f16x2", "b32", "b32", "abs.f16x2 %o0, %i0;", words)
    for comparison in ("lt", "ge", "eq", "neu", "gtu"):
        forms.add(f"setp_{comparison}_f16", "b16 b16", "pred", f"setp.{comparison}.f16 %o0, %i0, %i1;",
                  [[a, b] for a in F16_EDGES[::2] + F16_NANS[:1] for b in F16_EDGES[::3] + F16_NANS[:1]])
    forms.add("setp_lt_f16x2", "b32 b32", "pred pred", "setp.lt.f16x2 %o0|%o1, %i0, %i1;",
              [[near() | near() << 16, near() | near() << 16] for _ in range(24)])


def convert_forms(forms):
    from_f32 = F32_EDGES + F32_TO_F16 + F32_TO_BF16 + [forms.f32(-26, 17) for _ in range(128)]
    nan = [[n] for n in F32_NANS]
    for op in ("cvt.rn.f16.f32", "cvt.rz.f16.f32", "cvt.rn.bf16.f32"):
        name = op.replace(".", "_")
        forms.add(name, "f32", "b16", f"{op} %o0, %i0;", [[a] for a in from_f32])
        forms.add(name + "_nan", "f32", "b16", f"{op} %o0, %i0;", nan)
    packed = [[a, b] for a, b in zip(from_f32, reversed(from_f32))]
    for op in ("cvt.rn.f16x2.f32", "cvt.rz.f16x2.f32", "cvt.rn.bf16x2.f32", "cvt.rz.bf16x2.f32",
               "cvt.rn.relu.f16x2.f32"):
        forms.add(op.replace(".", "_"), "f32 f32", "b32", f"{op} %o0, %i0, %i1;", packed)
    halves = F16_EDGES + [forms.u16() for _ in range(64)]
    forms.add("cvt_f32_f16", "b16", "f32", "cvt.f32.f16 %o0, %i0;",
              [[h] for h in halves if h & 0x7fff <= 0x7c00])
    forms.add("cvt_f32_f16_nan", "b16", "f32", "cvt.f32.f16 %o0, %i0;", [[h] for h in F16_NANS])
    ints = I32_EDGES + [0x00ffffff, 0x01000000, 0x01000001, 0x01000002, 0x01000003, 0x7fffff80,
                        0x7fffffc0, 0x7fffffbf, 0xffffff80, 0xffffff7f, 0x02000001, 0x02000002,
                        0x02000003, 0x02000006, 0xfe000001, 0xfeffffff]
    ints += [forms.u32() >> forms.random.randint(0, 12) for _ in range(64)]
    for kind in ("s32", "u32"):
        forms.add(f"cvt_rn_f32_{kind}", "b32", "f32", f"cvt.rn.f32.{kind} %o0, %i0;", [[a] for a in ints])
        forms.add(f"cvt_rz_f32_{kind}", "b32", "f32", f"cvt.rz.f32.{kind} %o0, %i0;", [[a] for a in ints])
    forms.add("cvt_rn_f16_s32", "b32", "b16", "cvt.rn.f16.s32 %o0, %i0;", [[a] for a in ints])
    longs = [[a << 32 | forms.u32()] for a in ints]
    forms.add("cvt_rn_f32_s64", "b64", "f32", "cvt.rn.f32.s64 %o0, %i0;", longs)
    forms.add("cvt_rn_f32_u64", "b64", "f32", "cvt.rn.f32.u64 %o0, %i0;", longs)
    to_int = F32_EDGES + F32_TO_INT + [forms.f32(-3, 34) for _ in range(96)]
    for mode in ("rni", "rzi", "rmi", "rpi"):
        for kind in ("s32", "u32"):
            forms.add(f"cvt_{mode}_{kind}_f32", "f32", "b32", f"cvt.{mode}.{kind}.f32 %o0, %i0;",
                      [[a] for a in to_int + F32_NANS])
        forms.add(f"cvt_{mode}_f32_f32", "f32", "f32", f"cvt.{mode}.f32.f32 %o0, %i0;",
                  [[a] for a in to_int])
    forms.add("cvt_rni_s16_f32", "f32", "b16", "cvt.rni.s16.f32 %o0, %i0;", [[a] for a in to_int])
    forms.add("cvt_rzi_s64_f32", "f32", "b64", "cvt.rzi.s64.f32 %o0, %i0;", [[a] for a in to_int])
    forms.add("cvt_f64_f32", "f32", "f64", "cvt.f64.f32 %o0, %i0;", [[a] for a in F32_EDGES])
    doubles = [struct.unpack("<Q", struct.pack("<d", v))[0] for v in
               (0.0, -0.0, 1.0, 1 + 2**-24, 1 + 3 * 2**-24, 1 + 2**-24 + 2**-50, 2**-149, 2**-150,
                2**-150 * 1.5, 3.4028235677973366e38, 3.5e38, -1e300, 1e-300)]
    forms.add("cvt_rn_f32_f64", "f64", "f32", "cvt.rn.f32.f64 %o0, %i0;", [[d] for d in doubles])
    words = [[a] for a in I32_EDGES] + [[forms.u32()] for _ in range(16)]
    # Narrow integers go through a 16-bit register, as kernels hold them.
    forms.add("cvt_s32_s8", "b32", "b32", "cvt.s32.s8 %o0, %i0;", words)
    forms.add("cvt_u32_u8", "b32", "b32", "cvt.u32.u8 %o0, %i0;", words)
    forms.add("cvt_s32_s16", "b16", "b32", "cvt.s32.s16 %o0, %i0;", [[a & 0xffff] for [a] in words])
    forms.add("cvt_u32_u16", "b16", "b32", "cvt.u32.u16 %o0, %i0;", [[a & 0xffff] for [a] in words])
    forms.add("cvt_u16_u32", "b32", "b16", "cvt.u16.u32 %o0, %i0;", words)
    forms.add("cvt_s64_s32", "b32", "b64", "cvt.s64.s32 %o0, %i0;", words)
    forms.add("cvt_u64_u32", "b32", "b64", "cvt.u64.u32 %o0, %i0;", words)
    forms.add("cvt_u32_u64", "b64", "b32", "cvt.u32.u64 %o0, %i0;", longs[:16])
    forms.add("cvt_sat_s8_s32", "b32", "b32", "cvt.sat.s8.s32 %o0, %i0;", words)
    forms.add("cvt_sat_u8_s32", "b32", "b32", "cvt.sat.u8.s32 %o0, %i0;", words)
    forms.add("cvt_pack_sat_s8_s32_b32", "b32 b32 b32", "b32",
              "cvt.pack.sat.s8.s32.b32 %o0, %i0, %i1, %i2;",
              [[a, b, forms.u32()] for [a] in words[::3] for [b] in words[::4]])
    forms.add("cvt_pack_sat_u8_s32_b32", "b32 b32 b32", "b32",
              "cvt.pack.sat.u8.s32.b32 %o0, %i0, %i1, %i2;",
              [[a, b, forms.u32()] for [a] in words[::3] for [b] in words[::4]])


# --- a warp together ---

def warps(forms, count, draw):
    return [draw(lane) for _ in range(count) for lane in range(WARP)]


def warp_forms(forms):
    # c: clamp in bits 0..4, segment mask in bits 8..12, as shfl's width 32, 16, 8 gives.
    for mode, clamp in (("bfly", 31), ("idx", 31), ("up", 0), ("down", 31)):
        for width in (32, 16, 8):
            c = (32 - width) << 8 | clamp
            for b in (0, 1, 2, 5, 16, 31):
                forms.add(f"shfl_{mode}_w{width}_{b}", "b32", "b32 pred",
                          f"shfl.sync.{mode}.b32 %o0|%o1, %i0, {b}, {c}, 0xffffffff;",
                          warps(forms, 1, lambda lane: [lane << 8 | 0x5a0000a5]), "warp")
    forms.add("shfl_idx_per_lane", "b32 b32", "b32 pred",
              "shfl.sync.idx.b32 %o0|%o1, %i0, %i1, 31, 0xffffffff;",
              warps(forms, 2, lambda lane: [forms.u32(), forms.random.randint(0, 63)]), "warp")
    forms.add("shfl_bfly_per_lane", "b32 b32 b32", "b32 pred",
              "shfl.sync.bfly.b32 %o0|%o1, %i0, %i1, %i2, 0xffffffff;",
              [[forms.u32(), b, c] for b, c in ((1, 0x1f), (7, 0x1f), (31, 0x1f), (3, 0x1c1f), (9, 0x181f))
               for lane in range(WARP)], "warp")
    masks = (0, M32, 1, 0x80000000, 0x55555555, 0xfffffffe, 0x12345678)
    votes = [[mask >> lane & 1] for mask in masks for lane in range(WARP)]
    forms.add("vote_sync", "pred", "pred pred pred b32",
              ["vote.sync.all.pred %o0, %i0, 0xffffffff;", "vote.sync.any.pred %o1, %i0, 0xffffffff;",
               "vote.sync.uni.pred %o2, %i0, 0xffffffff;", "vote.sync.ballot.b32 %o3, %i0, 0xffffffff;"],
              votes, "warp")
    values = warps(forms, 3, lambda lane: [forms.u32()]) + warps(forms, 1, lambda lane: [M32]) + \
        warps(forms, 1, lambda lane: [forms.random.randint(0, 0x7bff)])
    for op in ("add.u32", "min.u32", "max.u32", "add.s32", "min.s32", "max.s32", "and.b32", "or.b32",
               "xor.b32"):
        forms.add("redux_" + op.replace(".", "_"), "b32", "b32",
                  f"redux.sync.{op} %o0, %i0, 0xffffffff;", values, "warp")
    forms.add("match_any", "b32", "b32", "match.any.sync.b32 %o0, %i0, 0xffffffff;",
              warps(forms, 2, lambda lane: [forms.random.randint(0, 5)]), "warp")
    forms.add("lane_registers", "b32", " ".join(["b32"] * 6),
              [f"mov.u32 %o{i}, %{name};" for i, name in
               enumerate(("laneid", "lanemask_eq", "lanemask_lt", "lanemask_le", "lanemask_gt",
                          "lanemask_ge"))], warps(forms, 1, lambda lane: [0]), "warp")
    address = ["mov.u32 %t0, %laneid;", "shl.b32 %t0, %t0, 2;", "mov.u32 %t1, sm;",
               "add.u32 %t0, %t0, %t1;", "st.shared.b32 [%t0], %i0;"]
    for op in ("add.u32", "min.s32", "max.s32", "min.u32", "max.u32", "and.b32", "or.b32", "xor.b32",
               "exch.b32", "inc.u32", "dec.u32"):
        forms.add("atom_shared_" + op.replace(".", "_"), "b32 b32", "b32 b32",
                  address + [f"atom.shared.{op} %o0, [%t0], %i1;", "ld.shared.b32 %o1, [%t0];"],
                  warps(forms, 1, lambda lane: [forms.random.choice(I32_EDGES), forms.random.choice(I32_EDGES)]),
                  "warp")
    forms.add("atom_shared_cas_b32", "b32 b32 b32", "b32 b32",
              address + ["atom.shared.cas.b32 %o0, [%t0], %i1, %i2;", "ld.shared.b32 %o1, [%t0];"],
              warps(forms, 1, lambda lane: [lane & 3, forms.random.randint(0, 3), forms.u32()]), "warp")
    # All lanes add to one word: the sum is known, who saw what is not.
    forms.add("atom_shared_add_one_word", "b32", "b32",
              ["mov.u32 %t0, %laneid;", "setp.eq.u32 %p0, %t0, 0;", "mov.u32 %t1, 7;",
               "@%p0 st.shared.b32 [sm], %t1;", "bar.warp.sync 0xffffffff;",
               "red.shared.add.u32 [sm], %i0;", "bar.warp.sync 0xffffffff;", "ld.shared.b32 %o0, [sm];"],
              warps(forms, 2, lambda lane: [forms.u32()]), "warp")


# --- matrices ---

def matrix_load_forms(forms):
    """Lane l stores 16 bytes at sm + 16 l (row l mod 8 of matrix l div 8); a row address is an input."""
    store = ["mov.u32 %t0, %laneid;", "shl.b32 %t0, %t0, 4;", "mov.u32 %t1, sm;",
             "add.u32 %t0, %t0, %t1;", "st.shared.v4.b32 [%t0], {%i0, %i1, %i2, %i3};",
             "bar.warp.sync 0xffffffff;", "add.u32 %t1, %t1, %i4;"]

    def rows(order):
        return [[0x01000000 * lane | 0x00030000 | 0x0002 + 4 * k + 0x100 * lane
                 for k in range(4)] + [16 * order(lane)] for lane in range(WARP)]
    for n in (1, 2, 4):
        outs = ", ".join(f"%o{i}" for i in range(n))
        for trans in ("", ".trans"):
            table = rows(lambda lane: lane) + rows(lambda lane: lane ^ 5) + \
                rows(lambda lane: forms.random.randint(0, 31))
            forms.add(f"ldmatrix_x{n}{trans.replace('.', '_')}", "b32 b32 b32 b32 b32",
                      " ".join(["b32"] * n), store +
                      [f"ldmatrix.sync.aligned.m8n8.x{n}{trans}.shared.b16 {{{outs}}}, [%t1];"],
                      table, "warp")
    forms.add("movmatrix_trans", "b32", "b32", "movmatrix.sync.aligned.m8n8.trans.b16 %o0, %i0;",
              warps(forms, 1, lambda lane: [2 * lane | (2 * lane + 1) << 16]) +
              warps(forms, 1, lambda lane: [forms.u32()]), "warp")


def mma_body(shape, d, a, b, c, n_a, n_b, n_c, n_d=None):
    n_d = n_d or n_c
    regs = lambda prefix, first, n: "{" + ", ".join(f"%{prefix}{first + i}" for i in range(n)) + "}"
    return (f"mma.sync.aligned.{shape}.row.col.{d}.{a}.{b}.{c} {regs('o', 0, n_d)}, {regs('i', 0, n_a)}, "
            f"{regs('i', n_a, n_b)}, {regs('i', n_a + n_b, n_c)};")


def mma_integer_forms(forms):
    for shape, n_a, n_b in (("m16n8k16", 2, 1), ("m16n8k32", 4, 2), ("m8n8k16", 1, 1)):
        n_c = 2 if shape == "m8n8k16" else 4
        for a in ("s8", "u8"):
            for b in ("s8", "u8"):
                def one_hot(lane, place):  # the layout: one A element meets one B element
                    words = [0] * (n_a + n_b + n_c)
                    if lane == place[0]:
                        words[place[1] % n_a] = 1 << 8 * (place[1] // n_a % 4)
                    for i in range(n_b):
                        words[n_a + i] = sum((1 + (4 * lane + 16 * i + j) % 127) << 8 * j for j in range(4))
                    return words
                rows = []
                for place in ((0, 0), (5, 1), (17, 6), (31, 3 * n_a)):
                    rows += [one_hot(lane, place) for lane in range(WARP)]
                extremes = (0x80808080, 0x7f7f7f7f, M32, 0x00ff7f80)
                rows += [[extremes[(lane + i) % 4] for i in range(n_a + n_b)]
                         + [forms.random.choice((0, 0x7fffffff, 0x80000000, M32)) for _ in range(n_c)]
                         for lane in range(WARP)]
                for _ in range(2):
                    rows += [[forms.u32() for _ in range(n_a + n_b)]
                             + [forms.u32() >> 4 for _ in range(n_c)] for lane in range(WARP)]
                forms.add(f"mma_{shape}_{a}_{b}", " ".join(["b32"] * (n_a + n_b + n_c)),
                          " ".join(["b32"] * n_c), mma_body(shape, "s32", a, b, "s32", n_a, n_b, n_c),
                          rows, "warp")


def mma_float_forms(forms):
    kinds = {"f16": (f16_bits, F16_EDGES), "bf16": (bf16_bits, BF16_EDGES)}
    # Products and sums of up to 17 terms of at most 1 (the addend 4): the hardware keeps about 24 bits
    # of the largest term and cuts the rest of each; 1e-5 is above 17 * 4 * 2^-23.
    bound = "bound 1e-5 1e-6"
    for shape, n_a, n_b in (("m16n8k16", 4, 2), ("m16n8k8", 2, 1)):
        for kind, (encode, _) in kinds.items():
            def word(low, high):
                draw = lambda: encode(forms.random.uniform(low, high))
                return draw() | draw() << 16
            ins = " ".join(["b32"] * (n_a + n_b) + ["f32"] * 4)
            body = mma_body(shape, "f32", kind, kind, "f32", n_a, n_b, 4)
            small = lambda: encode(float(forms.random.randint(-8, 8)))
            exact = []
            for _ in range(2):  # small integers: every order of summing gives the same bits
                exact += [[small() | small() << 16 for _ in range(n_a + n_b)]
                          + [f32_bits(float(forms.random.randint(-99, 99))) for _ in range(4)]
                          for lane in range(WARP)]
            forms.add(f"mma_{shape}_{kind}_exact", ins, "f32 f32 f32 f32", body, exact, "warp")
            data = []
            for _ in range(3):
                data += [[word(-1, 1) for _ in range(n_a + n_b)]
                         + [f32_bits(forms.random.uniform(-4, 4)) for _ in range(4)] for lane in range(WARP)]
            forms.add(f"mma_{shape}_{kind}_data", ins, "f32 f32 f32 f32", body, data, "warp", bound)
            # One large term beside small ones, for whoever studies the sum; bound 17 * 2^10 * 2^-23.
            wide = [[word(-1, 1) for _ in range(n_a + n_b)]
                    + [f32_bits(forms.random.uniform(-1024, 1024)) for _ in range(4)]
                    for lane in range(WARP)]
            forms.add(f"mma_{shape}_{kind}_wide", ins, "f32 f32 f32 f32", body, wide, "warp",
                      "bound 2.1e-3 1e-6")
            subnormal = [[(forms.u16() & 0x807f if kind == "bf16" else forms.u16() & 0x83ff)
                          | encode(1.0) << 16 for _ in range(n_a + n_b)] + [0] * 4
                         for lane in range(WARP)]
            forms.add(f"mma_{shape}_{kind}_subnormal", ins, "f32 f32 f32 f32", body, subnormal, "warp",
                      bound)
    exact = [[f16_bits(float(forms.random.randint(-8, 8))) | f16_bits(float(forms.random.randint(-8, 8))) << 16
              for _ in range(8)] for lane in range(WARP)]
    forms.add("mma_m16n8k16_f16_f16_exact", " ".join(["b32"] * 8), "b32 b32",
              mma_body("m16n8k16", "f16", "f16", "f16", "f16", 4, 2, 2), exact, "warp")


def all_forms():
    forms = Forms()
    for part in (integer_forms, bit_forms, float_forms, half_forms, convert_forms, warp_forms,
                 matrix_load_forms, mma_integer_forms, mma_float_forms):
        part(forms)
    names = [form.name for form in forms.list]
    assert len(set(names)) == len(names)
    return forms.list


# --- the module ---

LOAD = {"b16": "cvt.u16.u64 {r}, %word;", "b32": "cvt.u32.u64 {r}, %word;", "b64": "mov.b64 {r}, %word;",
        "f32": "cvt.u32.u64 %half, %word; mov.b32 {r}, %half;", "f64": "mov.b64 {r}, %word;",
        "pred": "setp.ne.u64 {r}, %word, 0;"}
STORE = {"b16": "cvt.u64.u16 %word, {r};", "b32": "cvt.u64.u32 %word, {r};", "b64": "mov.b64 %word, {r};",
         "f32": "mov.b32 %half, {r}; cvt.u64.u32 %word, %half;", "f64": "mov.b64 %word, {r};",
         "pred": "selp.u64 %word, 1, 0, {r};"}


def entry(name, ins, outs, body):
    lines = [f".visible .entry form_{name}(.param .u64 in, .param .u64 out)", ".reqntid 32, 1, 1", "{",
             ".shared .align 16 .b8 sm[4096];", ".reg .u64 %g_in, %g_out, %word; .reg .u32 %thread, %half;",
             ".reg .b16 %h<8>; .reg .b32 %t<16>; .reg .b64 %d<8>; .reg .f32 %f<8>; .reg .pred %p<8>;"]
    lines += [f".reg .{kind} %i{i};" for i, kind in enumerate(ins)]
    lines += [f".reg .{kind} %o{i};" for i, kind in enumerate(outs)]
    lines += ["mov.u32 %thread, %ctaid.x;", "mov.u32 %half, %laneid;",
              "mad.lo.u32 %thread, %thread, 32, %half;",
              f"ld.param.u64 %g_in, [in]; mul.wide.u32 %word, %thread, {8 * len(ins)};",
              "add.u64 %g_in, %g_in, %word;",
              f"ld.param.u64 %g_out, [out]; mul.wide.u32 %word, %thread, {8 * len(outs)};",
              "add.u64 %g_out, %g_out, %word;"]
    for i, kind in enumerate(ins):
        lines.append(f"ld.global.u64 %word, [%g_in + {8 * i}]; " + LOAD[kind].format(r=f"%i{i}"))
    lines += body
    for i, kind in enumerate(outs):
        lines.append(STORE[kind].format(r=f"%o{i}") + f" st.global.u64 [%g_out + {8 * i}], %word;")
    return "\n".join(lines + ["ret;", "}", ""])


def module(path):
    print(".version 7.8\n.target sm_89\n.address_size 64\n")
    name, ins, outs, body = None, [], [], []
    with open(path, encoding="ascii") as lines:
        for line in [*lines, "form"]:
            word, _, rest = line.strip().partition(" ")
            if word == "form":
                if name is not None:
                    print(entry(name, ins, outs, body))
                name, body = rest.split(" ")[0], []
            elif word == "in":
                ins = rest.split()
            elif word == "out":
                outs = rest.split()
            elif word == "body":
                body.append(rest)


# --- the part of a table that is kept ---

NOT_EXECUTED = {"mul24_lo_u32", "setp_lt_f16x2", "cvt_rn_relu_f16x2_f32", "match_any",
                "mma_m16n8k16_f16_f16_exact"} | {f"mma_m8n8k16_{a}_{b}" for a in ("s8", "u8")
                                                 for b in ("s8", "u8")}
RANDOM_ROWS = 12
CHOOSES = re.compile("(min|max|copysign|and|or|xor|bfi|bfe|mul_wide|mad_wide|set|selp|slct)_")
WARPS_KEPT = 5  # the integer mma: four layouts, then the extremes
NAN_ABOVE = {"f16": 0x7c00, "bf16": 0x7f80, "f32": 0x7f800000, "f64": 0x7ff0000000000000}


def has_nan(word, kind, body):
    """Whether a result is NaN: by its class, or by the type that the instruction names."""
    if kind in ("f32", "f64"):
        return word & (1 << (31 if kind == "f32" else 63)) - 1 > NAN_ABOVE[kind]
    for half in ("bf16", "f16"):
        if f".{half}x2" in body:
            return any(part & 0x7fff > NAN_ABOVE[half] for part in (word & 0xffff, word >> 16))
        if f".{half}" in body and kind == "b16":
            return word & 0x7fff > NAN_ABOVE[half]
    return False


EDGES = set(I32_EDGES + F32_EDGES + F32_NANS + F32_TO_F16 + F32_TO_BF16 + F32_TO_INT)


def is_edge(word):
    low, high = word & 0xffff, word >> 16
    return word in EDGES or word <= 0x400 or word & word + 1 == 0 or low in F16_EDGES + BF16_EDGES and (
        high in F16_EDGES + BF16_EDGES)


def reduce(path):
    with open(path, encoding="ascii") as lines:
        header, *texts = re.split(r"^(?=form )", lines.read(), flags=re.M)
    print(header, end="")
    for text in texts:
        lines = text.splitlines()
        first_row = next(i for i, line in enumerate(lines) if line.startswith("row "))
        head, rows = lines[:first_row], lines[first_row:]
        _, name, kind = head[0].split()
        classes = head[2].split()[1:]
        body = " ".join(line for line in head if line.startswith("body "))
        compared = any(line.startswith("compare ") for line in head)
        kept, n_random = [], 0
        if name in NOT_EXECUTED:
            continue
        for i, row in enumerate(rows):
            ins, outs = ([int(w, 16) for w in side.split()] for side in row[4:].split(" : "))
            if kind == "warp":
                if name.startswith("mma") and i >= (1 if compared else WARPS_KEPT) * WARP:
                    break
            elif any(has_nan(w, k, body) for w, k in zip(outs, classes)):
                continue
            elif CHOOSES.match(name) and i % 3 != 0:
                continue
            elif not any(map(is_edge, ins)):
                n_random += 1
                if n_random > RANDOM_ROWS:
                    continue
            kept.append("row " + " ".join(f"{w:x}" for w in ins) + " : " + " ".join(f"{w:x}" for w in outs))
        if kept:
            print("\n".join(head + kept))


def main():
    if sys.argv[1:] == ["forms"]:
        print("calibration 1")
        print("".join(form.text() for form in all_forms()), end="")
    elif len(sys.argv) == 3 and sys.argv[1] == "module":
        module(sys.argv[2])
    elif len(sys.argv) == 3 and sys.argv[1] == "reduce":
        reduce(sys.argv[2])
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
