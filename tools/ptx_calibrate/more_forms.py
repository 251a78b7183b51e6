#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The forms of tests/ptx/h200_more.calibration: every opcode of the checker's tables that
tests/ptx/h200.calibration lacks (`ptxcheck rules` lists them), and families that decode themselves:
setp with its combinations, conversions between integers, packing moves, loads with extension, atomics
in shared memory, votes, barriers with a reduction.

    more_forms.py forms RULES TABLE    the forms file; RULES: the output of `ptxcheck rules`
    more_forms.py reduce RECORDED      the part of a recorded table that the repository keeps

A forms file becomes a module by `ptxcheck calibration-module`, and a recorded table on a card by
record.c. Left out of what is kept are, of forms of one thread (warps stay whole),
  - rows with a NaN among the results: its sign and payload are left open (the H200 gives a negative one
    for a division and a square root in f64, a positive one elsewhere);
  - rows that stand twice;
  - conversions between integers that change no bit, but for UNCHANGED_KEPT of a form;
  - comparisons, but for OUTCOME_KEPT of each combination of results;
  - of the rest all but ROWS_KEPT of a form; conversions to floats stay whole, since what the rounding
    of 64 bits does shows in few of them. Inputs were drawn independently, half of them edges, so that
    the first rows are a sample of all.
"""
import random
import re
import sys

R = random.Random(77)
M64 = (1 << 64) - 1
INTEGERS = [0, 1, 2, 3, 5, 7, 8, 15, 16, 31, 32, 33, 63, 64, 65, 0x7f, 0x80, 0xff, 0x7fff, 0x8000, 0xffff,
            0x7fffffff, 0x80000000, 0xffffffff, 0x100000000, 0x7fffffffffffffff, 0x8000000000000000,
            M64, M64 - 1, 0xffffffff80000000]
FLOATS = {"f16": (5, 10), "bf16": (8, 7), "f32": (8, 23), "f64": (11, 52)}
BYTES = {"p": 1, "h": 2, "w": 4, "d": 8}
CLASS = {"p": "pred", "h": "b16", "w": "b32", "d": "b64"}
ROWS = 64
UNCHANGED_KEPT = 4
OUTCOME_KEPT = 4
ROWS_KEPT = 24


def integer(bits):
    x = R.choice(INTEGERS) if R.random() < 0.5 else R.getrandbits(64) >> R.randrange(64)
    return x & (1 << bits) - 1


def floating(fmt):
    e_bits, m_bits = FLOATS[fmt]
    top = (1 << e_bits) - 1
    exponent = R.choice([0, 0, 1, top - 1, top // 2, top // 2 + 1, R.randrange(top)])
    mantissa = R.choice([0, 1, (1 << m_bits) - 1, R.getrandbits(m_bits)])
    return R.getrandbits(1) << (e_bits + m_bits) | exponent << m_bits | mantissa


def operand(letter, fmt):
    """A value for an operand of that width, a finite float where the opcode names a float type."""
    if letter == "p":
        return R.getrandbits(1)
    if fmt in ("f16x2", "bf16x2") and letter == "w":
        return floating(fmt[:-2]) << 16 | floating(fmt[:-2])
    if fmt in FLOATS and {"f16": "h", "bf16": "h", "f32": "w", "f64": "d"}[fmt] == letter:
        return floating(fmt)
    return integer(8 * BYTES[letter])


def form(name, kind, ins, outs, body, rows):
    print(f"form {name.replace('.', '_')} {kind}\nin {' '.join(ins)}\nout {' '.join(outs)}")
    for line in body:
        print("body", line)
    for row in rows:
        print("row", *[f"{x:x}" for x in row])


def rule_form(opcode, signature):
    fmt = re.findall(r"\b(?:bf16x2|f16x2|bf16|f16|f32|f64)\b", opcode)
    fmt = fmt[-1] if fmt else ""
    letters = signature[1:]
    shifts = re.match(r"sh[lr]\.|shf\.", opcode) is not None
    field = opcode.startswith(("bfe.", "bfi."))
    rows = []
    while len(rows) < ROWS:
        row = [operand(letter, fmt) for letter in letters]
        if shifts or field:
            row[-1] = R.randrange(72)
        if field:
            row[-2] = R.randrange(72)
        if opcode.startswith(("div.s", "div.u", "rem")):
            ones = (1 << 8 * BYTES[letters[0]]) - 1
            if row[1] in (0, ones):
                continue
        rows.append(row)
    names = [f"%i{k}" for k in range(len(letters))]
    body = [f"{opcode} {', '.join(['%o0'] + names)};"]
    ins, outs = [CLASS[letter] for letter in letters], [CLASS[signature[0]]]
    if opcode.startswith(("mad.lo.cc", "mad.hi.cc", "madc", "add.cc", "addc", "sub.cc", "subc")):
        # A carry comes in from a sum before, and is made visible by a sum behind.
        wide = signature[0] == "d"
        borrow = opcode.startswith("sub")
        first = ("sub.cc." if borrow else "add.cc.") + ("u64" if wide else "u32")
        last = ("subc." if borrow else "addc.") + ("u64" if wide else "u32")
        scratch = "%d0" if wide else "%t0"
        extra = len(letters)
        names += [f"%i{extra}", f"%i{extra + 1}"]
        ins += [CLASS[signature[0]]] * 2
        outs += [CLASS[signature[0]]]
        rows = [row + [integer(64 if wide else 32), integer(64 if wide else 32)] for row in rows]
        body = [f"{first} {scratch}, %i{extra}, %i{extra + 1};"] + body + [f"{last} %o1, 0, 0;"]
        if ".cc" not in opcode:
            body[-1] = f"mov.b{'64' if wide else '32'} %o1, {scratch};"
    form("more_" + opcode, "thread", ins, outs, body, rows)


def setp_forms():
    signed, unsigned = ("eq", "ne", "lt", "le", "gt", "ge"), ("lo", "ls", "hi", "hs")
    ordered = ("equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")
    for types, comparisons in ((("s16", "s32", "s64"), signed), (("u16", "u32", "u64"), signed + unsigned),
                               (("b16", "b32", "b64"), ("eq", "ne")),
                               (("f16", "f32", "f64"), signed + ordered)):
        for name in types:
            bits = int(name[1:])
            fmt = name if name[0] == "f" else ""
            letter = {16: "h", 32: "w", 64: "d"}[bits]

            def value():
                if fmt and R.random() < 0.1:  # infinity or NaN
                    e_bits, m_bits = FLOATS[fmt]
                    return ((1 << e_bits) - 1) << m_bits | R.choice([0, 1 << (m_bits - 1)])
                return operand(letter, fmt)
            rows = []
            for _ in range(48):
                a = value()
                rows.append([a, a if R.random() < 0.2 else value(), R.getrandbits(1)])
            for at in range(0, len(comparisons), 6):
                some = comparisons[at:at + 6]
                body = [f"setp.{c}.{name} %o{k}, %i0, %i1;" for k, c in enumerate(some)]
                form(f"more_setp_{name}_{at}", "thread", [CLASS[letter]] * 2 + ["pred"],
                     ["pred"] * len(some), body, rows)
            body = [f"setp.eq.and.{name} %o0|%o1, %i0, %i1, %i2;",
                    f"setp.ne.or.{name} %o2|%o3, %i0, %i1, !%i2;",
                    f"setp.eq.xor.{name} %o4|%o5, %i0, %i1, %i2;"]
            if name == "f16":  # has no second predicate
                body = [re.sub(r"\|%o\d", "", line) for line in body] + [
                    f"mov.pred %o{k}, %i2;" for k in (1, 3, 5)]
            form(f"more_setp_{name}_combined", "thread", [CLASS[letter]] * 2 + ["pred"], ["pred"] * 6,
                 body, rows)


def conversion_forms():
    names = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")

    def register(name):
        return {8: "h", 16: "h", 32: "w", 64: "d"}[int(name[1:])]
    for source in names:
        letter = register(source)
        rows = [[integer(8 * BYTES[letter])] for _ in range(48)]
        for target in names:
            if source == target:
                continue
            out = CLASS[register(target)]
            wider = int(target[1:]) - int(source[1:])
            holds_all = wider >= 0 if target[0] == source[0] else target[0] == "s" and wider > 0
            sat = "" if holds_all else ".sat"
            form(f"more_cvt_{target}_{source}", "thread", [CLASS[letter]], [out, out],
                 [f"cvt.{target}.{source} %o0, %i0;", f"cvt{sat}.{target}.{source} %o1, %i0;"], rows)
        for target in ("f16", "f32", "f64"):
            out = {"f16": "b16", "f32": "f32", "f64": "f64"}[target]
            form(f"more_cvt_{target}_{source}", "thread", [CLASS[letter]], [out] * 2,
                 [f"cvt.rn.{target}.{source} %o0, %i0;", f"cvt.rz.{target}.{source} %o1, %i0;"], rows)
    for target in ("s8", "u8"):
        form(f"more_cvt_pack_{target}", "thread", ["b32"] * 3, ["b32"],
             [f"cvt.pack.sat.{target}.s32.b32 %o0, %i0, %i1, %i2;"],
             [[integer(32) for _ in range(3)] for _ in range(48)])
    for target in ("s16", "u16"):
        form(f"more_cvt_pack_{target}", "thread", ["b32"] * 2, ["b32"],
             [f"cvt.pack.sat.{target}.s32 %o0, %i0, %i1;"],
             [[integer(32) for _ in range(2)] for _ in range(48)])


def move_forms():
    words = [[integer(64), integer(32)] for _ in range(32)]
    form("more_unpack", "thread", ["b64", "b32"], ["b32"] * 2 + ["b16"] * 6,
         ["mov.b64 {%o0, %o1}, %i0;", "mov.b32 {%o2, %o3}, %i1;",
          "mov.b64 {%o4, %o5, %o6, %o7}, %i0;"], words)
    form("more_pack", "thread", ["b32"] * 2 + ["b16"] * 4, ["b64", "b32", "b64"],
         ["mov.b64 %o0, {%i0, %i1};", "mov.b32 %o1, {%i2, %i3};",
          "mov.b64 %o2, {%i2, %i3, %i4, %i5};"],
         [[integer(32), integer(32)] + [integer(16) for _ in range(4)] for _ in range(32)])
    form("more_move", "thread", ["b16", "b32", "b64", "pred", "b32"], ["b16", "b32", "b64", "pred", "b32"],
         ["mov.u16 %o0, %i0;", "mov.s32 %o1, %i1;", "mov.u64 %o2, %i2;", "mov.pred %o3, %i3;",
          "selp.f32 %o4, %i1, %i4, %i3;"],
         [[integer(16), integer(32), integer(64), R.getrandbits(1), integer(32)] for _ in range(32)])


PLACE = ["mov.u32 %t0, %laneid;", "shl.b32 %t0, %t0, 4;", "mov.u32 %t1, sm;", "add.u32 %t0, %t0, %t1;"]


def memory_forms():
    rows = [[integer(64)] for _ in range(32)]
    form("more_load_extends", "thread", ["b64"], ["b32", "b32", "b32", "b32", "b64", "b64"],
         PLACE + ["st.shared.b64 [%t0], %i0;", "ld.shared.u8 %o0, [%t0+1];", "ld.shared.s8 %o1, [%t0+1];",
                  "ld.shared.u16 %o2, [%t0+2];", "ld.shared.s16 %o3, [%t0+2];",
                  "ld.shared.s32 %o4, [%t0+4];", "ld.shared.u32 %o5, [%t0+4];"], rows)
    form("more_store_narrow", "thread", ["b64", "b32"], ["b64"],
         PLACE + ["st.shared.b64 [%t0], %i0;", "st.shared.u8 [%t0+1], %i1;", "st.shared.u16 [%t0+4], %i1;",
                  "ld.shared.b64 %o0, [%t0];"], [[integer(64), integer(32)] for _ in range(32)])
    for bits, kinds in ((32, ("u32", "s32", "b32")), (64, ("u64", "s64", "b64"))):
        letter = {32: "b32", 64: "b64"}[bits]
        for kind in kinds:
            operations = {"u": ("add", "min", "max"), "s": ("min", "max"),
                          "b": ("and", "or", "xor", "exch")}[kind[0]]
            if kind == "u32":
                operations += ("inc", "dec")
            if kind == "s32":
                operations += ("add",)
            for operation in operations:
                form(f"more_atom_{operation}_{kind}", "thread", [letter] * 2, [letter] * 2,
                     PLACE + [f"st.shared.b{bits} [%t0], %i0;",
                              f"atom.shared.{operation}.{kind} %o0, [%t0], %i1;",
                              f"ld.shared.b{bits} %o1, [%t0];"],
                     [[integer(bits), integer(bits)] for _ in range(32)])
        form(f"more_atom_cas_b{bits}", "thread", [letter] * 3, [letter] * 2,
             PLACE + [f"st.shared.b{bits} [%t0], %i0;",
                      f"atom.shared.cas.b{bits} %o0, [%t0], %i1, %i2;",
                      f"ld.shared.b{bits} %o1, [%t0];"],
             [[a, a if k % 2 else integer(bits), integer(bits)]
              for k, a in enumerate(integer(bits) for _ in range(32))])


def warp_forms():
    def rows(n, draw):
        return [[draw() for _ in range(n)] for _ in range(3 * 32)]
    everyone = "0xffffffff"
    bits = [[R.getrandbits(1)] for _ in range(32)]
    form("more_vote", "warp", ["pred"], ["pred"] * 3 + ["b32"],
         [f"vote.sync.all.pred %o0, %i0, {everyone};", f"vote.sync.any.pred %o1, %i0, {everyone};",
          f"vote.sync.uni.pred %o2, %i0, {everyone};", f"vote.sync.ballot.b32 %o3, %i0, {everyone};"],
         [[1]] * 32 + [[0]] * 32 + bits)
    form("more_redux", "warp", ["b32"], ["b32"] * 8,
         [f"redux.sync.{o} %o{k}, %i0, {everyone};" for k, o in enumerate(
             ("add.u32", "add.s32", "min.u32", "max.s32", "max.u32", "and.b32", "or.b32", "xor.b32"))],
         rows(1, lambda: integer(32)))
    form("more_bar_red", "warp", ["pred"], ["b32", "pred", "pred"],
         ["bar.red.popc.u32 %o0, 0, %i0;", "bar.red.and.pred %o1, 0, %i0;",
          "bar.red.or.pred %o2, 0, %i0;"], [[1]] * 32 + [[0]] * 32 + bits)
    form("more_halves_of_warp", "warp", ["b32"], ["b32", "b32"],
         ["mov.u32 %t0, %laneid;", "setp.lt.u32 %p0, %t0, 16;", "mov.u32 %t1, 0xffff0000;",
          "selp.b32 %t1, 0x0000ffff, %t1, %p0;", "shfl.sync.bfly.b32 %o0, %i0, 3, 31, %t1;",
          "redux.sync.add.u32 %o1, %i0, %t1;"], rows(1, lambda: integer(32)))
    form("more_lane_masks", "warp", ["b32"], ["b32"] * 6,
         [f"mov.u32 %o{k}, %{name};" for k, name in enumerate(
             ("laneid", "lanemask_eq", "lanemask_le", "lanemask_lt", "lanemask_ge", "lanemask_gt"))],
         [[0]] * 32)
    for mode in ("up", "down", "bfly", "idx"):
        for c in (0, 31, 0x181f, 0x1807, 0x1000):
            form(f"more_shfl_{mode}_{c:x}", "warp", ["b32", "b32"], ["b32", "pred"],
                 [f"shfl.sync.{mode}.b32 %o0|%o1, %i0, %i1, {c}, {everyone};"],
                 [[integer(32), shift] for shift in (0, 1, 5, 16, 31) for _ in range(32)])


NAN_FIELDS = {"f16x2": (16, 0x7c00), "bf16x2": (16, 0x7f80), "f16": (16, 0x7c00), "bf16": (16, 0x7f80),
              "f32": (32, 0x7f800000), "f64": (64, 0x7ff0000000000000)}


def has_nan(name, results):
    """Whether a result is NaN, of a form whose name ends in its float type."""
    bits, infinity = NAN_FIELDS.get(name.split("_")[-1], (0, 0))
    if bits == 0 or re.match("more_(setp|cvt|atom)_", name):
        return False
    part = (1 << bits) - 1
    return any(word >> shift & part >> 1 > infinity for word in results for shift in (0, 16)
               if shift == 0 or name.endswith("x2"))


def kept_rows(name, rows):
    kept, seen = [], set()
    unchanged = others = 0
    outcomes = {}
    between = re.match(r"more_cvt_[su]\d+_[su]\d+$", name) is not None
    compares, to_float = name.startswith("more_setp_"), name.startswith("more_cvt_f")
    for ins, outs in rows:
        if (ins, outs) in seen or has_nan(name, outs):
            continue
        seen.add((ins, outs))
        if between and all(word == ins[0] for word in outs):
            unchanged += 1
            if unchanged > UNCHANGED_KEPT:
                continue
        elif compares:
            outcomes[outs] = outcomes.get(outs, 0) + 1
            if outcomes[outs] > OUTCOME_KEPT:
                continue
        elif not to_float:
            others += 1
            if others > ROWS_KEPT:
                continue
        kept.append((ins, outs))
    return kept


def reduce(path):
    with open(path, encoding="ascii") as file:
        header, *texts = re.split(r"^(?=form )", file.read(), flags=re.M)
    print(header, end="")
    for text in texts:
        lines = text.splitlines()
        _, name, kind = lines[0].split()
        rows = [tuple(tuple(int(word, 16) for word in side.split()) for side in line[4:].split(":"))
                for line in lines if line.startswith("row ")]
        print("\n".join(line for line in lines if not line.startswith("row ")))
        for ins, outs in rows if kind == "warp" else kept_rows(name, rows):
            print("row", *[f"{word:x}" for word in ins], ":", *[f"{word:x}" for word in outs])


def forms(rules_path, table_path):
    with open(rules_path, encoding="ascii") as file:
        rules = [line.split() for line in file.read().splitlines()]
    with open(table_path, encoding="ascii") as file:
        table = file.read()
    bodies = set(re.findall(r"^body .*?([a-z][\w.]*\.\w+) ", table, re.MULTILINE))
    print("calibration 1")
    for opcode, signature in rules:
        if opcode not in bodies:
            rule_form(opcode, signature)
    setp_forms()
    conversion_forms()
    move_forms()
    memory_forms()
    warp_forms()


def main():
    if len(sys.argv) == 4 and sys.argv[1] == "forms":
        forms(sys.argv[2], sys.argv[3])
    elif len(sys.argv) == 3 and sys.argv[1] == "reduce":
        reduce(sys.argv[2])
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
