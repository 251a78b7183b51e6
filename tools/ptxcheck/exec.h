// SPDX-License-Identifier: Apache-2.0
// Tables of instruction rules, one per file of handlers; decode.c looks opcodes up in them.
#pragma once
#include "machine.h"

// A rule for one complete opcode. The signature has a letter per operand, destination first:
// p predicate, h 16, w 32, d 64 bits; the tables are searched once per instruction while parsing.
struct rule {
    const char *opcode;
    insn_run *run;
    const char *signature;
    u32 sub; // goes to insn->sub
};
extern const struct rule integer_rules[];
extern const struct rule float_rules[];

// Families with their own grammar: the first word of the opcode.
struct family {
    const char *name;
    void (*decode)(struct opcode *opcode, struct argument *arguments, u32 n, struct insn *insn);
};
extern const struct family convert_families[]; // exec_convert.c: cvt, setp, mov
extern const struct family memory_families[];  // exec_memory.c: ld, st, cvta, atom, cp, fence
extern const struct family warp_families[];    // exec_warp.c: shfl, vote, redux, mma, ldmatrix, bar

// Checks a register's declared width against a type's; wider is allowed when `wider_ok`.
void decode_operand(const struct opcode *opcode, const struct argument *argument,
                    enum ptx_type type, bool wider_ok, struct operand *operand);
void decode_done(const struct opcode *opcode); // every word taken?
bool decode_float_bits(enum ptx_type type);    // f16, bf16, f32, f64

// Conversions between formats (exec_float.c). Results are NaN in the canonical form of the card.
enum rounding { ROUND_NEAREST, ROUND_ZERO, ROUND_DOWN, ROUND_UP };
u16 f64_to_f16(f64 value, enum rounding rounding);
u16 f64_to_bf16(f64 value, enum rounding rounding);
u32 canonical_f32(f32 value); // the bits
u64 canonical_f64(f64 value);
f64 fma_to_odd(f64 a, f64 b, f64 c); // a*b exact in f64; the sum rounded to odd
