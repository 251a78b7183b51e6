// SPDX-License-Identifier: Apache-2.0
// Instructions that touch memory: ld, st, atom, red, cp.async, fences, cvta, prefetch. What an
// access is held against is in memory.c and race.c.
//
// L1. Cache operators and eviction hints change nothing that the machine models; they are taken
// from
//     a list, and an unknown one is refused.
// L2. A load extends to the register's width: with the sign for .s types, with zeros otherwise.
#include <string.h>

#include "exec.h"

#define HANDLER(name) static void name(struct thread *t, const struct insn *i)

static const char *const space_words[] = {
    [SPACE_GLOBAL] = "global", [SPACE_SHARED] = "shared", [SPACE_LOCAL] = "local",
    [SPACE_CONST] = "const",   [SPACE_PARAM] = "param",
};

static u32 take_space(struct opcode *opcode) {
    for (u32 space = SPACE_GLOBAL; space <= SPACE_PARAM; space++) {
        if (opcode_take(opcode, space_words[space])) return space;
    }
    if (opcode_take(opcode, "shared::cta")) return SPACE_SHARED;
    return SPACE_GENERIC;
}

static u32 take_scope(struct opcode *opcode) {
    if (opcode_take(opcode, "cta")) return SCOPE_CTA;
    if (opcode_take(opcode, "gpu")) return SCOPE_GPU;
    return opcode_take(opcode, "sys") ? SCOPE_SYS : SCOPE_NONE;
}

static void take_hints(struct opcode *opcode) {
    static const char *const hints[] = {"ca",
                                        "cg",
                                        "cs",
                                        "lu",
                                        "cv",
                                        "wb",
                                        "wt",
                                        "L1::evict_normal",
                                        "L1::evict_unchanged",
                                        "L1::evict_first",
                                        "L1::evict_last",
                                        "L1::no_allocate",
                                        "L2::64B",
                                        "L2::128B",
                                        "L2::256B"};
    for (u32 i = 0; i < COUNT_OF(hints); i++) opcode_take(opcode, hints[i]);
}

static void take_address(struct opcode *opcode, const struct argument *argument, u32 space,
                         struct operand *address) {
    if (argument->kind != ARGUMENT_ADDRESS) opcode_fail(opcode, "an address in [ ] is wanted");
    *address = argument->member[0];
    bool is_reg = address->kind == OPERAND_REG;
    if (is_reg && ptx_type_bytes(address->type) < 4) opcode_fail(opcode, "a narrow address");
    if (is_reg && address->type == TYPE_PRED) opcode_fail(opcode, "a predicate as an address");
    if (is_reg && ptx_type_bytes(address->type) == 4 && space != SPACE_SHARED &&
        space != SPACE_LOCAL && space != SPACE_CONST && space != SPACE_PARAM) {
        opcode_fail(opcode, "a 32-bit address of global memory");
    }
    if (address->kind == OPERAND_SPECIAL) opcode_fail(opcode, "a special register as an address");
    if (argument->space != SPACE_GENERIC && argument->space != space) {
        opcode_fail(opcode, "a variable of another state space");
    }
}

static u64 address_of(struct thread *t, const struct operand *address) {
    if (address->kind == OPERAND_IMM) return (u64)address->imm;
    u64 base = get(t, address);
    u64 sum = base + (u64)address->imm;
    return ptx_type_bytes(address->type) == 4 ? (u32)sum : sum;
}

// --- ld, st ---

static u64 sign_extended(u64 value, u32 type) {
    switch (type) {
    case TYPE_S8: return (u64)(i8)value;
    case TYPE_S16: return (u64)(i16)value;
    case TYPE_S32: return (u64)(i32)value;
    default: return value;
    }
}

static u64 low_bytes(u64 value, u32 bytes) {
    return bytes == 8 ? value : value & ((1ull << 8 * bytes) - 1);
}

HANDLER(run_ld) {
    u32 each = ptx_type_bytes(i->type);
    u64 address = address_of(t, &i->address);
    const u8 *data = memory_access(t, i->space, address, each * i->lanes, ACCESS_READ);
    for (u32 k = 0; k < i->lanes; k++) {
        u64 value = 0;
        if (data != NULL) memcpy(&value, data + (usize)k * each, each);
        value = sign_extended(value, i->type);
        put(t, &i->dst[k], low_bytes(value, ptx_type_bytes(i->dst[k].type)));
    }
    if (i->order == ORDER_WEAK || i->space == SPACE_PARAM) return;
    race_acquire(t, memory_key(t, i->space, address), i->order == ORDER_RELAXED);
}

HANDLER(run_st) {
    u32 each = ptx_type_bytes(i->type);
    u64 address = address_of(t, &i->address), values[4];
    for (u32 k = 0; k < i->lanes; k++) values[k] = get(t, &i->src[k]);
    if (i->order != ORDER_WEAK) {
        race_release(t, memory_key(t, i->space, address), i->order == ORDER_RELAXED);
    }
    u8 *data = memory_access(t, i->space, address, each * i->lanes, ACCESS_WRITE);
    if (data == NULL) return;
    for (u32 k = 0; k < i->lanes; k++) memcpy(data + (usize)k * each, &values[k], each);
}

static void take_order(struct opcode *opcode, struct insn *insn, bool is_load) {
    if (opcode_take(opcode, "volatile")) {
        insn->order = ORDER_RELAXED;
        insn->scope = SCOPE_SYS;
        return;
    }
    bool relaxed = opcode_take(opcode, "relaxed");
    bool stronger = opcode_take(opcode, is_load ? "acquire" : "release");
    if (!relaxed && !stronger) {
        opcode_take(opcode, "weak");
        return;
    }
    insn->order = relaxed ? ORDER_RELAXED : is_load ? ORDER_ACQUIRE : ORDER_RELEASE;
    insn->scope = (u8)take_scope(opcode);
    if (insn->scope == SCOPE_NONE) opcode_fail(opcode, "a scope is wanted");
}

static void take_values(struct opcode *opcode, const struct argument *argument, u32 type, u32 lanes,
                        struct operand *out) {
    if (lanes == 1 && argument->kind == ARGUMENT_OPERAND) {
        decode_operand(opcode, argument, type, true, &out[0]);
        return;
    }
    if (argument->kind != ARGUMENT_VECTOR || argument->n != lanes) {
        opcode_fail(opcode, "%u registers in { } are wanted", lanes);
    }
    for (u32 k = 0; k < lanes; k++) {
        struct argument one = {.kind = ARGUMENT_OPERAND, .n = 1, .member = {argument->member[k]}};
        decode_operand(opcode, &one, type, true, &out[k]);
    }
}

static void decode_ld_st(struct opcode *opcode, struct argument *arguments, u32 n,
                         struct insn *insn) {
    bool is_load = strcmp(opcode->words[0], "ld") == 0;
    take_order(opcode, insn, is_load);
    insn->space = (u8)take_space(opcode);
    if (opcode_take(opcode, "nc")) {
        insn->flags |= FLAG_NC;
        if (!is_load || insn->space != SPACE_GLOBAL || insn->order != ORDER_WEAK) {
            opcode_fail(opcode, ".nc is for weak loads of global memory");
        }
    }
    take_hints(opcode);
    bool policy = opcode_take(opcode, "L2::cache_hint");
    insn->lanes = opcode_take(opcode, "v2") ? 2 : opcode_take(opcode, "v4") ? 4 : 1;
    insn->type = (u8)opcode_take_type(opcode);
    if (insn->type == TYPE_NONE || insn->type == TYPE_PRED || insn->type == TYPE_F16 ||
        insn->type == TYPE_BF16 || insn->type == TYPE_F16X2 || insn->type == TYPE_BF16X2) {
        opcode_fail(opcode, "no type to load or store");
    }
    if (insn->lanes * ptx_type_bytes(insn->type) > 16) opcode_fail(opcode, "more than 16 bytes");
    if (n != (policy ? 3u : 2u)) opcode_fail(opcode, "a wrong number of operands");
    if (insn->space == SPACE_PARAM && !is_load) opcode_fail(opcode, "a store to a parameter");
    if (insn->space == SPACE_CONST && !is_load) opcode_fail(opcode, "a store to constant memory");
    insn->run = is_load ? run_ld : run_st;
    insn->n_dst = is_load ? insn->lanes : 0;
    insn->n_src = is_load ? 0 : insn->lanes;
    take_address(opcode, &arguments[is_load ? 1 : 0], insn->space, &insn->address);
    take_values(opcode, &arguments[is_load ? 0 : 1], insn->type, insn->lanes,
                is_load ? insn->dst : insn->src);
    if (policy) {
        struct operand unused;
        decode_operand(opcode, &arguments[2], TYPE_B64, false, &unused);
    }
}

// --- atom, red ---

enum atomic {
    ATOMIC_ADD,
    ATOMIC_MIN,
    ATOMIC_MAX,
    ATOMIC_AND,
    ATOMIC_OR,
    ATOMIC_XOR,
    ATOMIC_EXCH,
    ATOMIC_CAS,
    ATOMIC_INC,
    ATOMIC_DEC
};

static u64 atomic_result(const struct insn *i, u64 old, u64 b, u64 c) {
    bool is_signed = i->type == TYPE_S32 || i->type == TYPE_S64;
    bool narrow = ptx_type_bytes(i->type) == 4;
    i64 x = narrow && is_signed ? (i32)old : (i64)old, y = narrow && is_signed ? (i32)b : (i64)b;
    bool less = is_signed ? x < y : old < b;
    switch ((enum atomic)i->sub) {
    case ATOMIC_ADD: return old + b;
    case ATOMIC_MIN: return less ? old : b;
    case ATOMIC_MAX: return less ? b : old;
    case ATOMIC_AND: return old & b;
    case ATOMIC_OR: return old | b;
    case ATOMIC_XOR: return old ^ b;
    case ATOMIC_EXCH: return b;
    case ATOMIC_CAS: return old == b ? c : old;
    case ATOMIC_INC: return old >= b ? 0 : old + 1;
    default: return old == 0 || old > b ? b : old - 1;
    }
}

HANDLER(run_atom) {
    u32 bytes = ptx_type_bytes(i->type);
    u64 address = address_of(t, &i->address), key = memory_key(t, i->space, address);
    u64 b = low_bytes(get(t, &i->src[0]), bytes);
    u64 c = i->n_src > 1 ? low_bytes(get(t, &i->src[1]), bytes) : 0;
    bool acquires = i->order == ORDER_ACQUIRE || i->order == ORDER_ACQ_REL;
    bool releases = i->order == ORDER_RELEASE || i->order == ORDER_ACQ_REL;
    if (i->n_dst > 0) race_acquire(t, key, !acquires);
    race_release(t, key, !releases);
    u8 *data = memory_access(t, i->space, address, bytes, ACCESS_ATOMIC);
    u64 old = 0;
    if (data != NULL) {
        memcpy(&old, data, bytes);
        u64 result = atomic_result(i, old, b, c);
        memcpy(data, &result, bytes);
    }
    if (i->n_dst > 0) put(t, &i->dst[0], low_bytes(old, bytes));
}

static void decode_atom(struct opcode *opcode, struct argument *arguments, u32 n,
                        struct insn *insn) {
    static const char *const words[] = {"add", "min",  "max", "and", "or",
                                        "xor", "exch", "cas", "inc", "dec"};
    bool is_red = strcmp(opcode->words[0], "red") == 0;
    insn->order = opcode_take(opcode, "acquire")   ? ORDER_ACQUIRE
                  : opcode_take(opcode, "release") ? ORDER_RELEASE
                  : opcode_take(opcode, "acq_rel") ? ORDER_ACQ_REL
                                                   : ORDER_RELAXED;
    opcode_take(opcode, "relaxed");
    insn->scope = (u8)take_scope(opcode);
    if (insn->order != ORDER_RELAXED && insn->scope == SCOPE_NONE) insn->scope = SCOPE_GPU;
    insn->space = (u8)take_space(opcode);
    u32 operation = 0;
    while (operation < COUNT_OF(words) && !opcode_take(opcode, words[operation])) operation++;
    if (operation == COUNT_OF(words)) opcode_fail(opcode, "an unknown operation");
    insn->sub = (u8)operation;
    insn->type = (u8)opcode_take_type(opcode);
    u32 bytes = ptx_type_bytes(insn->type);
    if (insn->type == TYPE_NONE || bytes < 4 || decode_float_bits(insn->type) ||
        insn->type == TYPE_F16X2 || insn->type == TYPE_BF16X2) {
        opcode_fail(opcode, "not an integer of 32 or 64 bits (float atomics have no fixed order)");
    }
    u32 n_values = operation == ATOMIC_CAS ? 2 : 1, first = is_red ? 0 : 1;
    if (is_red && (operation == ATOMIC_CAS || operation == ATOMIC_EXCH)) {
        opcode_fail(opcode, "an unknown operation");
    }
    if (insn->space != SPACE_GLOBAL && insn->space != SPACE_SHARED &&
        insn->space != SPACE_GENERIC) {
        opcode_fail(opcode, "an unexpected state space");
    }
    if (n != first + 1 + n_values) opcode_fail(opcode, "a wrong number of operands");
    insn->run = run_atom;
    insn->n_src = (u8)n_values;
    if (!is_red) {
        insn->n_dst = 1;
        decode_operand(opcode, &arguments[0], insn->type, false, &insn->dst[0]);
    }
    take_address(opcode, &arguments[first], insn->space, &insn->address);
    for (u32 k = 0; k < n_values; k++) {
        decode_operand(opcode, &arguments[first + 1 + k], insn->type, false, &insn->src[k]);
    }
}

// --- cp.async ---

HANDLER(run_cp_async) {
    u32 bytes = i->lanes;
    u32 from_bytes = i->n_src > 0 ? (u32)get(t, &i->src[0]) : bytes;
    if (t->n_copies == t->copies_capacity) {
        t->copies_capacity = MAX(8u, 2 * t->copies_capacity);
        t->copies = need_more(t->copies, t->copies_capacity, sizeof(struct async_copy));
    }
    struct async_copy *copy = &t->copies[t->n_copies++];
    *copy = (struct async_copy){
        .from = address_of(t, &i->address),
        .to = (u32)address_of(t, &i->address_to),
        .bytes = bytes,
        .from_bytes = from_bytes,
        .group = t->groups,
        .insn = i,
    };
    if (i->n_src == 0 || i->type != TYPE_PRED) {
        memory_async_begin(t, copy);
        return;
    }
    copy->from_bytes = from_bytes ? 0 : bytes; // a predicate: true ignores the source
    memory_async_begin(t, copy);
}

HANDLER(run_commit) {
    (void)i;
    t->groups++;
}

// The copies of all groups but the latest src[0], in order of issue. sub 1: also of the open one.
HANDLER(run_wait) {
    u32 open = (u32)i->src[0].imm, kept = 0;
    u32 limit = t->groups > open ? t->groups - open : 0;
    for (u32 k = 0; k < t->n_copies; k++) {
        if (i->sub || t->copies[k].group < limit) {
            memory_async_end(t, &t->copies[k]);
        } else {
            t->copies[kept++] = t->copies[k];
        }
    }
    t->n_copies = kept;
}

static void decode_cp(struct opcode *opcode, struct argument *arguments, u32 n, struct insn *insn) {
    if (!opcode_take(opcode, "async")) opcode_fail(opcode, "not among those the checker executes");
    if (opcode_take(opcode, "commit_group")) {
        if (n != 0) opcode_fail(opcode, "an operand");
        insn->run = run_commit;
        return;
    }
    bool all = opcode_take(opcode, "wait_all");
    if (all || opcode_take(opcode, "wait_group")) {
        insn->run = run_wait;
        insn->sub = all;
        if (n != (all ? 0u : 1u)) opcode_fail(opcode, "a wrong number of operands");
        if (!all) insn->src[0] = arguments[0].member[0];
        if (!all && insn->src[0].kind != OPERAND_IMM) opcode_fail(opcode, "a constant is wanted");
        return;
    }
    bool cg = opcode_take(opcode, "cg");
    if (!cg && !opcode_take(opcode, "ca")) opcode_fail(opcode, ".ca or .cg is wanted");
    bool shared = opcode_take(opcode, "shared") || opcode_take(opcode, "shared::cta");
    if (!shared || !opcode_take(opcode, "global")) opcode_fail(opcode, ".shared.global is wanted");
    bool policy = opcode_take(opcode, "L2::cache_hint");
    take_hints(opcode);
    if (n < (policy ? 4u : 3u) || n > (policy ? 5u : 4u)) {
        opcode_fail(opcode, "a wrong number of operands");
    }
    insn->run = run_cp_async;
    take_address(opcode, &arguments[0], SPACE_SHARED, &insn->address_to);
    take_address(opcode, &arguments[1], SPACE_GLOBAL, &insn->address);
    const struct operand *size = &arguments[2].member[0];
    bool known = size->kind == OPERAND_IMM &&
                 (size->imm == 16 || (!cg && (size->imm == 4 || size->imm == 8)));
    if (!known) opcode_fail(opcode, "a copy of another size");
    insn->lanes = (u8)size->imm;
    if (n == (policy ? 5u : 4u)) {
        bool ignores = arguments[3].member[0].type == TYPE_PRED;
        insn->n_src = 1;
        insn->type = ignores ? TYPE_PRED : TYPE_B32;
        decode_operand(opcode, &arguments[3], insn->type, false, &insn->src[0]);
    }
}

// --- the rest ---

HANDLER(run_fence) {
    (void)i;
    race_fence(t);
}

static void decode_fence(struct opcode *opcode, struct argument *arguments, u32 n,
                         struct insn *insn) {
    (void)arguments;
    if (n != 0) opcode_fail(opcode, "an operand");
    insn->run = run_fence;
    if (strcmp(opcode->words[0], "membar") == 0) {
        insn->scope = opcode_take(opcode, "gl") ? SCOPE_GPU : (u8)take_scope(opcode);
    } else {
        if (!opcode_take(opcode, "sc")) opcode_take(opcode, "acq_rel");
        insn->scope = (u8)take_scope(opcode);
    }
    if (insn->scope == SCOPE_NONE) opcode_fail(opcode, "a scope is wanted");
}

HANDLER(run_cvta) {
    static const u64 windows[] = {[SPACE_SHARED] = WINDOW_SHARED,
                                  [SPACE_LOCAL] = WINDOW_LOCAL,
                                  [SPACE_CONST] = WINDOW_CONST,
                                  [SPACE_PARAM] = 0};
    u64 window = i->space == SPACE_GLOBAL ? 0 : windows[i->space];
    u64 address = get(t, &i->src[0]);
    put(t, &i->dst[0], i->sub ? address - window : address + window);
}

static void decode_cvta(struct opcode *opcode, struct argument *arguments, u32 n,
                        struct insn *insn) {
    insn->sub = opcode_take(opcode, "to");
    insn->space = (u8)take_space(opcode);
    if (insn->space == SPACE_GENERIC || insn->space == SPACE_PARAM) {
        opcode_fail(opcode, "an unexpected state space");
    }
    enum ptx_type type = opcode_take_type(opcode);
    if (type != TYPE_U64 || n != 2) opcode_fail(opcode, "a .u64 destination and source are wanted");
    insn->run = run_cvta;
    decode_operand(opcode, &arguments[0], TYPE_U64, false, &insn->dst[0]);
    decode_operand(opcode, &arguments[1], TYPE_U64, false, &insn->src[0]);
}

HANDLER(run_nothing) {
    (void)t;
    (void)i;
}
HANDLER(run_prefetch) { address_of(t, &i->address); } // a register must be defined at least

static void decode_prefetch(struct opcode *opcode, struct argument *arguments, u32 n,
                            struct insn *insn) {
    insn->run = run_prefetch;
    insn->space = (u8)take_space(opcode);
    if (!opcode_take(opcode, "L1") && !opcode_take(opcode, "L2")) {
        opcode_fail(opcode, "an unknown level");
    }
    if (n != 1) opcode_fail(opcode, "an address is wanted");
    take_address(opcode, &arguments[0], insn->space, &insn->address);
}

static void decode_nanosleep(struct opcode *opcode, struct argument *arguments, u32 n,
                             struct insn *insn) {
    insn->run = run_nothing;
    if (opcode_take_type(opcode) != TYPE_U32 || n != 1) opcode_fail(opcode, "unknown form");
    decode_operand(opcode, &arguments[0], TYPE_U32, false, &insn->src[0]);
}

HANDLER(run_policy) { put(t, &i->dst[0], 1); }

static void decode_policy(struct opcode *opcode, struct argument *arguments, u32 n,
                          struct insn *insn) {
    static const char *const words[] = {"L2::evict_first", "L2::evict_last", "L2::evict_normal",
                                        "L2::evict_unchanged"};
    if (!opcode_take(opcode, "fractional")) opcode_fail(opcode, ".fractional is wanted");
    for (u32 k = 0; k < COUNT_OF(words); k++) opcode_take(opcode, words[k]);
    if (opcode_take_type(opcode) != TYPE_B64 || n < 1 || n > 2) opcode_fail(opcode, "unknown form");
    insn->run = run_policy;
    decode_operand(opcode, &arguments[0], TYPE_B64, false, &insn->dst[0]);
}

const struct family memory_families[] = {
    {"ld", decode_ld_st},
    {"st", decode_ld_st},
    {"atom", decode_atom},
    {"red", decode_atom},
    {"cp", decode_cp},
    {"fence", decode_fence},
    {"membar", decode_fence},
    {"cvta", decode_cvta},
    {"prefetch", decode_prefetch},
    {"nanosleep", decode_nanosleep},
    {"createpolicy", decode_policy},
    {NULL, NULL},
};
