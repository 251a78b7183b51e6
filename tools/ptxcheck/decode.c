// SPDX-License-Identifier: Apache-2.0
// From an opcode and its arguments to an executable instruction. A complete opcode is looked up in
// the tables of rules; families with their own grammar decode themselves. Whatever is in neither,
// or leaves a word of its opcode untaken, is an error.
#include "exec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OPCODE_BYTES (OPCODE_WORDS * 33 + 1)

// The words with dots between them.
static void opcode_text(const struct opcode *opcode, char name[OPCODE_BYTES]) {
    usize used = 0;
    name[0] = 0;
    for (u32 i = 0; i < opcode->n; i++) {
        used += (usize)snprintf(name + used, OPCODE_BYTES - used, "%s%s", i > 0 ? "." : "",
                                opcode->words[i]);
    }
}

_Noreturn void opcode_fail(const struct opcode *opcode, const char *format, ...) {
    char name[OPCODE_BYTES], text[256];
    opcode_text(opcode, name);
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fail_at(opcode->file, opcode->line, "%s: %s", name, text);
}

bool opcode_take(struct opcode *opcode, const char *word) {
    for (u32 i = 1; i < opcode->n; i++) {
        if (opcode->taken[i] || strcmp(opcode->words[i], word) != 0) continue;
        return opcode->taken[i] = true;
    }
    return false;
}

enum ptx_type opcode_take_type(struct opcode *opcode) {
    for (u32 i = 1; i < opcode->n; i++) {
        if (opcode->taken[i]) continue;
        for (u32 type = TYPE_PRED; type < TYPE_LIMIT; type++) {
            if (strcmp(opcode->words[i], ptx_type_name(type)) != 0) continue;
            opcode->taken[i] = true;
            return type;
        }
    }
    return TYPE_NONE;
}

void decode_done(const struct opcode *opcode) {
    for (u32 i = 1; i < opcode->n; i++) {
        if (!opcode->taken[i]) opcode_fail(opcode, "unknown modifier .%s", opcode->words[i]);
    }
}

bool decode_float_bits(enum ptx_type type) {
    return type == TYPE_F16 || type == TYPE_BF16 || type == TYPE_F32 || type == TYPE_F64;
}

void decode_operand(const struct opcode *opcode, const struct argument *argument,
                    enum ptx_type type, bool wider_ok, struct operand *operand) {
    if (argument->kind != ARGUMENT_OPERAND) opcode_fail(opcode, "an operand of another kind");
    if (argument->has_second) opcode_fail(opcode, "an unexpected \"|\"");
    *operand = argument->member[0];
    if (operand->negated && type != TYPE_PRED) opcode_fail(opcode, "a negated operand");
    if (operand->kind == OPERAND_REG) {
        u32 have = ptx_type_bytes(operand->type), want = ptx_type_bytes(type);
        bool is_pred = operand->type == TYPE_PRED;
        if (is_pred != (type == TYPE_PRED) || have < want || (have > want && !wider_ok)) {
            opcode_fail(opcode, "a register of type .%s where .%s is wanted",
                        ptx_type_name(operand->type), ptx_type_name(type));
        }
    } else if (operand->kind == OPERAND_IMM) {
        bool is_float = operand->type == TYPE_F32 || operand->type == TYPE_F64;
        if (type == TYPE_F32 && operand->type == TYPE_F64) {
            operand->imm = f32_bits((f32)f64_from_bits((u64)operand->imm));
        } else if (type == TYPE_F64 && operand->type == TYPE_F32) {
            opcode_fail(opcode, "an f32 constant for an f64 operand");
        } else if (is_float && !decode_float_bits(type) && operand->type == TYPE_F64) {
            opcode_fail(opcode, "a floating-point constant for .%s", ptx_type_name(type));
        }
        if (type == TYPE_PRED) operand->imm = operand->imm != 0;
    }
}

// The operand type that a letter of a signature stands for; `named` is the opcode's own type.
static enum ptx_type letter_type(char letter, enum ptx_type named) {
    enum ptx_type type = letter == 'p'   ? TYPE_PRED
                         : letter == 'h' ? TYPE_B16
                         : letter == 'w' ? TYPE_B32
                                         : TYPE_B64;
    bool same = type != TYPE_PRED && ptx_type_bytes(type) == ptx_type_bytes(named);
    return same && named != TYPE_PRED ? named : type;
}

static bool decode_rule(const struct rule *rules, const char *name, struct opcode *opcode,
                        struct argument *arguments, u32 n, struct insn *insn) {
    for (const struct rule *rule = rules; rule->opcode != NULL; rule++) {
        if (strcmp(rule->opcode, name) != 0) continue;
        u32 expected = (u32)strlen(rule->signature);
        if (n != expected) opcode_fail(opcode, "%u operands instead of %u", n, expected);
        enum ptx_type named = TYPE_NONE;
        for (;;) {
            enum ptx_type next = opcode_take_type(opcode);
            if (next == TYPE_NONE) break;
            named = next;
        }
        insn->run = rule->run;
        insn->sub = (u8)rule->sub;
        insn->type = (u8)named;
        insn->n_dst = 1;
        insn->n_src = (u8)(n - 1);
        decode_operand(opcode, &arguments[0], letter_type(rule->signature[0], named), false,
                       &insn->dst[0]);
        if (insn->dst[0].kind != OPERAND_REG && insn->dst[0].kind != OPERAND_SINK) {
            opcode_fail(opcode, "the destination is no register");
        }
        for (u32 i = 1; i < n; i++) {
            decode_operand(opcode, &arguments[i], letter_type(rule->signature[i], named), false,
                           &insn->src[i - 1]);
            if (insn->src[i - 1].kind == OPERAND_SINK) opcode_fail(opcode, "\"_\" as a source");
        }
        return true;
    }
    return false;
}

// --- control ---

static void decode_control(struct opcode *opcode, struct argument *arguments, u32 n,
                           struct insn *insn) {
    const char *name = opcode->words[0];
    if (strcmp(name, "bra") == 0) {
        insn->class = CLASS_BRANCH;
        opcode_take(opcode, "uni");
        if (n != 1 || arguments[0].kind != ARGUMENT_LABEL) opcode_fail(opcode, "a label expected");
    } else {
        insn->class = strcmp(name, "trap") == 0 ? CLASS_TRAP : CLASS_RETURN;
        opcode_take(opcode, "uni");
        if (n != 0) opcode_fail(opcode, "unexpected operands");
    }
    decode_done(opcode);
}

static const struct family control_families[] = {
    {"bra", decode_control},
    {"ret", decode_control},
    {"exit", decode_control},
    {"trap", decode_control},
    {NULL, NULL},
};

void decode_list(FILE *out) {
    static const struct rule *const tables[] = {integer_rules, float_rules};
    for (u32 i = 0; i < COUNT_OF(tables); i++) {
        for (const struct rule *rule = tables[i]; rule->opcode != NULL; rule++) {
            fprintf(out, "%s %s\n", rule->opcode, rule->signature);
        }
    }
}

void decode(struct opcode *opcode, struct argument *arguments, u32 n, struct insn *insn) {
    static const struct family *const families[] = {control_families, convert_families,
                                                    memory_families, warp_families};
    for (u32 i = 0; i < COUNT_OF(families); i++) {
        for (const struct family *family = families[i]; family->name != NULL; family++) {
            if (strcmp(family->name, opcode->words[0]) != 0) continue;
            family->decode(opcode, arguments, n, insn);
            decode_done(opcode);
            return;
        }
    }
    char name[OPCODE_BYTES];
    opcode_text(opcode, name);
    if (decode_rule(integer_rules, name, opcode, arguments, n, insn)) return;
    if (decode_rule(float_rules, name, opcode, arguments, n, insn)) return;
    opcode_fail(opcode, "this instruction or form is not among those the checker executes");
}
