// SPDX-License-Identifier: Apache-2.0
// The parser of preprocessed PTX: directives, declarations, scopes, labels, operands. Opcodes are
// handed to decode.c as words.
//
// Source places come from the preprocessor's line markers (# 12 "file"); everything a macro expands
// to lies on the line of its use.
//
// S1. Names are looked up from the innermost scope outwards; a label is seen in its scope and the
//     scopes inside it, and a branch is resolved when the scope it stands in is closed.
// S2. A register slot is free again when its scope closes (ptx.h, P2).
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ptx.h"

#define SYMBOLS_MAX 16384
#define SCOPES_MAX 64
#define INSNS_MAX (1u << 20)
#define SLOTS_MAX 0xff00
#define BRANCHES_MAX 4096
#define TOKEN_BYTES 256
#define KERNELS_MAX 1024
#define FILES_MAX 64

enum symbol_kind { SYMBOL_REG, SYMBOL_VARIABLE, SYMBOL_LABEL };
struct symbol {
    char name[NAME_BYTES];
    enum symbol_kind kind;
    enum ptx_type type;
    u32 count;        // registers: %r<count>, or 0 for a single one
    u32 index;        // slot, offset in the space, or instruction
    enum space space; // of a variable
    u32 bytes;
};

struct branch {
    char name[NAME_BYTES];
    u32 insn, scope_depth;
};

struct scope {
    u32 n_symbols, n_slots;
};

struct parser {
    struct module *module;
    struct kernel *kernel;
    const char *at;
    u32 line;
    u16 file;
    char token[TOKEN_BYTES];
    bool have_token; // `token` was read ahead
    const char *token_at;
    struct symbol *symbols;
    u32 n_symbols;
    struct scope scopes[SCOPES_MAX];
    u32 depth;
    struct branch *branches;
    u32 n_branches;
    u32 n_slots;                                         // in use now
    struct shared_variable shared[SHARED_VARIABLES_MAX]; // of the module
    u32 n_shared;
    char dynamic[NAME_BYTES]; // the extern shared array
};

static _Noreturn void broken(const struct parser *p, const char *what, const char *detail) {
    fail_at(p->module->files[p->file], p->line, "%s%s%s", what, detail[0] == 0 ? "" : ": ", detail);
}

// --- tokens ---

static u16 file_index(struct parser *p, const char *name, usize len) {
    struct module *module = p->module;
    for (u32 i = 0; i < module->n_files; i++) {
        if (strlen(module->files[i]) == len && memcmp(module->files[i], name, len) == 0) {
            return (u16)i;
        }
    }
    if (module->n_files == FILES_MAX || len >= sizeof module->files[0]) {
        broken(p, "too many source files", "");
    }
    memcpy(module->files[module->n_files], name, len);
    module->files[module->n_files][len] = 0;
    return (u16)module->n_files++;
}

// A preprocessor line: "# 12 "file" flags" or "#line 12 "file"" names the next line's place.
static void marker(struct parser *p) {
    const char *q = p->at + 1;
    while (*q == ' ') q++;
    if (strncmp(q, "line", 4) == 0) q += 4;
    char *end = NULL;
    u32 number = (u32)strtoul(q, &end, 10);
    const char *line_end = strchr(q, '\n');
    if (end != q) {
        const char *open = strchr(end, '"');
        if (open != NULL && (line_end == NULL || open < line_end)) {
            const char *close = strchr(open + 1, '"');
            if (close != NULL) p->file = file_index(p, open + 1, (usize)(close - open - 1));
        }
        p->line = number - 1; // the newline that ends the marker counts
    } else if (strncmp(q, "pragma", 6) != 0) {
        broken(p, "a preprocessor line that is no line marker", "");
    }
    p->at = line_end == NULL ? q + strlen(q) : line_end;
}

static void skip_blanks(struct parser *p) {
    for (;;) {
        char c = *p->at;
        if (c == '\n') {
            p->line++;
            p->at++;
            if (*p->at == '#') marker(p);
        } else if (isspace((unsigned char)c)) {
            p->at++;
        } else if (c == '/' && p->at[1] == '/') {
            while (*p->at != 0 && *p->at != '\n') p->at++;
        } else if (c == '/' && p->at[1] == '*') {
            for (p->at += 2; *p->at != 0 && (p->at[0] != '*' || p->at[1] != '/'); p->at++) {
                p->line += *p->at == '\n';
            }
            if (*p->at != 0) p->at += 2;
        } else {
            return;
        }
    }
}

static bool word_char(char c) {
    return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '%' || c == '.';
}

// The next token: a word (with its dots and ::), a number, a string, or punctuation; "" at the end.
static const char *peek(struct parser *p) {
    if (p->have_token) return p->token;
    skip_blanks(p);
    p->token_at = p->at;
    u32 len = 0;
    if (*p->at == '"') {
        do {
            if (len < TOKEN_BYTES - 2) p->token[len++] = *p->at;
            p->at++;
        } while (*p->at != 0 && *p->at != '"');
        if (*p->at == '"') p->at++;
    } else if (word_char(*p->at) && (*p->at != '%' || word_char(p->at[1]))) {
        while (word_char(*p->at) || (p->at[0] == ':' && p->at[1] == ':')) {
            u32 step = *p->at == ':' ? 2 : 1;
            if (len + step >= TOKEN_BYTES) broken(p, "a long word", "");
            memcpy(p->token + len, p->at, step);
            len += step;
            p->at += step;
        }
    } else if (*p->at != 0) {
        u32 step = (p->at[0] == '<' && p->at[1] == '<') || (p->at[0] == '>' && p->at[1] == '>') ? 2
                                                                                                : 1;
        memcpy(p->token, p->at, step);
        len = step;
        p->at += step;
    }
    p->token[len] = 0;
    p->have_token = true;
    return p->token;
}

static bool peek_is(struct parser *p, const char *token) { return strcmp(peek(p), token) == 0; }

static bool accept(struct parser *p, const char *token) {
    if (!peek_is(p, token)) return false;
    p->have_token = false;
    return true;
}

static void expect(struct parser *p, const char *token) {
    if (accept(p, token)) return;
    char detail[TOKEN_BYTES + 64];
    snprintf(detail, sizeof detail, "expected %s, found \"%.200s\"", token, p->token);
    broken(p, "syntax", detail);
}

// Takes the next token as a name.
static void take_name(struct parser *p, char name[NAME_BYTES]) {
    const char *token = peek(p);
    if (!word_char(token[0]) || isdigit((unsigned char)token[0]))
        broken(p, "a name expected", token);
    if (strlen(token) >= NAME_BYTES) broken(p, "the name is too long", token);
    memcpy(name, token, strlen(token) + 1);
    p->have_token = false;
}

// --- constant expressions ---

struct constant {
    bool is_float;
    i64 bits; // integer value, or the bits of an f32 (0f) or f64 (0d, 1.5)
    bool single;
};

static i64 constant_level(struct parser *p, u32 level, u32 nesting);

static bool number_token(const char *token) { return isdigit((unsigned char)token[0]) != 0; }

// 0f3F800000, 0d3FF0000000000000, or a decimal with a dot: a floating constant.
static bool float_token(const char *token) {
    if (token[0] == '0' && strchr("fFdD", token[1]) != NULL && token[1] != 0) return true;
    return number_token(token) && strchr(token, '.') != NULL;
}

static struct constant take_float(struct parser *p) {
    struct constant constant = {.is_float = true};
    const char *token = peek(p);
    char *end = NULL;
    if (token[0] == '0' && (token[1] == 'f' || token[1] == 'F')) {
        constant.bits = (i64)strtoull(token + 2, &end, 16);
        constant.single = true;
        if (end != token + 10) broken(p, "malformed constant", token);
    } else if (token[0] == '0' && (token[1] == 'd' || token[1] == 'D')) {
        constant.bits = (i64)strtoull(token + 2, &end, 16);
        if (end != token + 18) broken(p, "malformed constant", token);
    } else {
        constant.bits = (i64)f64_bits(strtod(token, &end));
    }
    if (*end != 0) broken(p, "malformed constant", token);
    p->have_token = false;
    return constant;
}

static i64 constant_primary(struct parser *p, u32 nesting) {
    if (nesting > 16) broken(p, "too deep nesting of a constant expression", "");
    if (accept(p, "(")) {
        if (accept(p, ".s64") || accept(p, ".u64")) {
            expect(p, ")");
            return constant_primary(p, nesting + 1);
        }
        i64 value = constant_level(p, 0, nesting + 1);
        expect(p, ")");
        return value;
    }
    if (accept(p, "-")) return (i64) - (u64)constant_primary(p, nesting + 1);
    if (accept(p, "+")) return constant_primary(p, nesting + 1);
    if (accept(p, "~")) return ~constant_primary(p, nesting + 1);
    if (accept(p, "!")) return !constant_primary(p, nesting + 1);
    const char *token = peek(p);
    if (!number_token(token)) broken(p, "an integer constant expected", token);
    char *end = NULL;
    i64 value = token[0] == '0' && (token[1] == 'b' || token[1] == 'B')
                    ? (i64)strtoull(token + 2, &end, 2)
                    : (i64)strtoull(token, &end, 0);
    if (*end == 'U') end++;
    if (*end != 0) broken(p, "malformed number", token);
    p->have_token = false;
    return value;
}

static u32 constant_operator(const char *token) { // level + 1, or 0
    static const struct {
        const char *token;
        u32 level;
    } table[] = {{"|", 1}, {"^", 2}, {"&", 3}, {"<<", 4}, {">>", 4},
                 {"+", 5}, {"-", 5}, {"*", 6}, {"/", 6},  {"%", 6}};
    for (u32 i = 0; i < COUNT_OF(table); i++) {
        if (strcmp(token, table[i].token) == 0) return table[i].level;
    }
    return 0;
}

static i64 constant_level(struct parser *p, u32 level, u32 nesting) {
    i64 value = constant_primary(p, nesting);
    for (;;) {
        u32 found = constant_operator(peek(p));
        if (found == 0 || found < level) return value;
        char token = p->token[0];
        p->have_token = false;
        i64 right = constant_level(p, found + 1, nesting + 1);
        if ((token == '/' || token == '%') && right == 0) broken(p, "a division by 0", "");
        switch (token) {
        case '|': value |= right; break;
        case '^': value ^= right; break;
        case '&': value &= right; break;
        case '<': value = (i64)((u64)value << (right & 63)); break;
        case '>': value >>= right & 63; break;
        case '+': value = (i64)((u64)value + (u64)right); break;
        case '-': value = (i64)((u64)value - (u64)right); break;
        case '*': value = (i64)((u64)value * (u64)right); break;
        case '/': value /= right; break;
        default: value %= right; break;
        }
    }
}

static i64 take_integer(struct parser *p) { return constant_level(p, 0, 0); }

// --- symbols ---

static struct symbol *add_symbol(struct parser *p, const char *name, enum symbol_kind kind) {
    u32 begin = p->depth == 0 ? 0 : p->scopes[p->depth - 1].n_symbols;
    for (u32 i = begin; i < p->n_symbols; i++) {
        if (strcmp(p->symbols[i].name, name) == 0) broken(p, "declared twice in a scope", name);
    }
    if (p->n_symbols == SYMBOLS_MAX) broken(p, "too many names", name);
    struct symbol *symbol = &p->symbols[p->n_symbols++];
    *symbol = (struct symbol){.kind = kind};
    memcpy(symbol->name, name, strlen(name) + 1);
    return symbol;
}

// Finds a register (with its number for %r<n>), variable or label; NULL when there is none.
static const struct symbol *find_symbol(struct parser *p, const char *name, u32 *number) {
    usize len = strlen(name), digits = 0;
    while (digits < len && isdigit((unsigned char)name[len - 1 - digits])) digits++;
    *number = 0;
    for (u32 i = p->n_symbols; i-- > 0;) {
        const struct symbol *symbol = &p->symbols[i];
        if (symbol->count == 0) {
            if (strcmp(symbol->name, name) == 0) return symbol;
            continue;
        }
        usize stem = strlen(symbol->name);
        if (stem >= len || stem < len - digits || strncmp(symbol->name, name, stem) != 0) continue;
        if (name[stem] == '0' && len - stem > 1) continue;
        u32 found = (u32)strtoul(name + stem, NULL, 10);
        if (found >= symbol->count) continue;
        *number = found;
        return symbol;
    }
    return NULL;
}

static enum ptx_type type_word(const char *word) {
    for (u32 i = TYPE_PRED; i < TYPE_LIMIT; i++) {
        if (strcmp(word, ptx_type_name(i)) == 0) return i;
    }
    return TYPE_NONE;
}

u32 ptx_type_bytes(enum ptx_type type) {
    if (type >= TYPE_B64) return 8;
    if (type >= TYPE_B32) return 4;
    return type >= TYPE_B16 ? 2 : 1;
}

const char *ptx_type_name(enum ptx_type type) {
    static const char *const names[TYPE_LIMIT] = {
        "none", "pred", "b8",  "u8",  "s8",    "b16",    "u16", "s16", "f16", "bf16",
        "b32",  "u32",  "s32", "f32", "f16x2", "bf16x2", "b64", "u64", "s64", "f64"};
    return names[type];
}

// --- operands ---

static const struct {
    const char *name;
    enum special special;
} special_names[] = {
    {"%tid.x", SPECIAL_TID_X},
    {"%tid.y", SPECIAL_TID_Y},
    {"%tid.z", SPECIAL_TID_Z},
    {"%ntid.x", SPECIAL_NTID_X},
    {"%ntid.y", SPECIAL_NTID_Y},
    {"%ntid.z", SPECIAL_NTID_Z},
    {"%ctaid.x", SPECIAL_CTAID_X},
    {"%ctaid.y", SPECIAL_CTAID_Y},
    {"%ctaid.z", SPECIAL_CTAID_Z},
    {"%nctaid.x", SPECIAL_NCTAID_X},
    {"%nctaid.y", SPECIAL_NCTAID_Y},
    {"%nctaid.z", SPECIAL_NCTAID_Z},
    {"%laneid", SPECIAL_LANEID},
    {"%warpid", SPECIAL_WARPID},
    {"%nwarpid", SPECIAL_NWARPID},
    {"%lanemask_eq", SPECIAL_LANEMASK_EQ},
    {"%lanemask_le", SPECIAL_LANEMASK_LE},
    {"%lanemask_lt", SPECIAL_LANEMASK_LT},
    {"%lanemask_ge", SPECIAL_LANEMASK_GE},
    {"%lanemask_gt", SPECIAL_LANEMASK_GT},
    {"%dynamic_smem_size", SPECIAL_DYNAMIC_SMEM_SIZE},
};

// A variable's address as the kernel sees it: an offset for shared, local and param; a window
// address for const and global.
static i64 variable_address(const struct symbol *symbol) {
    switch (symbol->space) {
    case SPACE_GLOBAL: return (i64)(WINDOW_MODULE + symbol->index);
    default: return symbol->index;
    }
}

// A register, special register, constant, variable or `_`. `space` receives that of a variable.
static struct operand take_operand(struct parser *p, enum space *space) {
    struct operand operand = {0};
    if (space != NULL) *space = SPACE_GENERIC;
    if (accept(p, "!")) operand.negated = 1;
    const char *token = peek(p);
    if (strcmp(token, "_") == 0) {
        p->have_token = false;
        operand.kind = OPERAND_SINK;
        return operand;
    }
    if (float_token(token)) {
        struct constant constant = take_float(p);
        operand.kind = OPERAND_IMM;
        operand.imm = constant.bits;
        operand.type = constant.single ? TYPE_F32 : TYPE_F64;
        return operand;
    }
    if (!word_char(token[0]) || number_token(token)) {
        operand.kind = OPERAND_IMM;
        operand.imm = take_integer(p);
        return operand;
    }
    u32 number = 0;
    const struct symbol *symbol = find_symbol(p, token, &number);
    if (symbol == NULL) {
        for (u32 i = 0; i < COUNT_OF(special_names); i++) {
            if (strcmp(token, special_names[i].name) != 0) continue;
            p->have_token = false;
            operand.kind = OPERAND_SPECIAL;
            operand.reg = (u16)special_names[i].special;
            return operand;
        }
        if (strcmp(token, "WARP_SZ") != 0) broken(p, "unknown name or special register", token);
        p->have_token = false;
        operand.kind = OPERAND_IMM;
        operand.imm = 32;
        return operand;
    }
    p->have_token = false;
    if (symbol->kind == SYMBOL_REG) {
        operand.kind = OPERAND_REG;
        operand.reg = (u16)(symbol->index + number);
        operand.type = (u8)symbol->type;
        return operand;
    }
    if (symbol->kind == SYMBOL_LABEL) broken(p, "a label as a value", symbol->name);
    operand.kind = OPERAND_IMM;
    operand.imm = variable_address(symbol);
    operand.type = TYPE_U64;
    if (space != NULL) *space = symbol->space;
    if (accept(p, "+")) operand.imm += constant_level(p, 6, 0);
    return operand;
}

static struct argument take_argument(struct parser *p, bool is_branch) {
    struct argument argument = {.kind = ARGUMENT_OPERAND, .n = 1};
    if (accept(p, "{")) {
        argument.kind = ARGUMENT_VECTOR;
        argument.n = 0;
        do {
            if (argument.n == COUNT_OF(argument.member)) broken(p, "a long vector", "");
            argument.member[argument.n++] = take_operand(p, NULL);
        } while (accept(p, ","));
        expect(p, "}");
    } else if (accept(p, "[")) {
        argument.kind = ARGUMENT_ADDRESS;
        argument.member[0] = take_operand(p, &argument.space);
        if (argument.member[0].kind == OPERAND_REG) {
            if (accept(p, "+")) argument.member[0].imm = take_integer(p);
        }
        expect(p, "]");
    } else if (is_branch) {
        argument.kind = ARGUMENT_LABEL;
        struct branch *branch = &p->branches[p->n_branches];
        if (p->n_branches == BRANCHES_MAX) broken(p, "too many branches", "");
        p->n_branches++;
        take_name(p, branch->name);
        branch->insn = p->kernel->n_insns;
        branch->scope_depth = p->depth;
    } else {
        argument.member[0] = take_operand(p, &argument.space);
        if (accept(p, "|")) {
            argument.has_second = true;
            argument.second = take_operand(p, NULL);
        }
    }
    return argument;
}

// --- instructions ---

static struct insn *new_insn(struct parser *p) {
    struct kernel *kernel = p->kernel;
    if ((kernel->n_insns & (kernel->n_insns - 1)) == 0) { // grows at powers of two
        u32 capacity = MAX(16u, 2 * kernel->n_insns);
        kernel->insns = need_more(kernel->insns, capacity, sizeof(struct insn));
    }
    if (kernel->n_insns == INSNS_MAX) broken(p, "too many instructions", kernel->name);
    struct insn *insn = &kernel->insns[kernel->n_insns++];
    *insn = (struct insn){.pred = NO_REG, .line = p->line, .file = p->file};
    return insn;
}

static void split_opcode(struct parser *p, const char *word, struct opcode *opcode) {
    *opcode = (struct opcode){.file = p->module->files[p->file], .line = p->line};
    const char *at = word;
    while (*at != 0) {
        const char *dot = strchr(at, '.');
        usize len = dot == NULL ? strlen(at) : (usize)(dot - at);
        if (opcode->n == OPCODE_WORDS || len >= sizeof opcode->words[0]) {
            broken(p, "unknown instruction", word);
        }
        memcpy(opcode->words[opcode->n], at, len);
        opcode->words[opcode->n++][len] = 0;
        at += len + (dot != NULL);
    }
}

static void instruction(struct parser *p) {
    struct opcode opcode;
    struct argument arguments[ARGUMENTS_MAX];
    struct operand pred = {.reg = NO_REG};
    const char *source = p->token_at;
    u32 n = 0;
    if (accept(p, "@")) {
        pred = take_operand(p, NULL);
        if (pred.kind != OPERAND_REG || pred.type != TYPE_PRED)
            broken(p, "no predicate after @", "");
    }
    u32 line = (peek(p), p->line);
    split_opcode(p, peek(p), &opcode);
    p->have_token = false;
    bool is_branch = strcmp(opcode.words[0], "bra") == 0;
    if (strcmp(opcode.words[0], "call") == 0) broken(p, "calls are refused", "");
    if (!peek_is(p, ";")) {
        do {
            if (n == ARGUMENTS_MAX) broken(p, "too many operands", opcode.words[0]);
            arguments[n++] = take_argument(p, is_branch);
        } while (accept(p, ","));
    }
    struct insn *insn = new_insn(p);
    insn->line = line;
    insn->pred = pred.reg;
    insn->pred_negated = pred.negated;
    insn->source = source;
    insn->text = (u16)MIN((usize)(p->at - source), (usize)0xffff);
    decode(&opcode, arguments, n, insn);
    expect(p, ";");
}

// --- declarations ---

static u32 align_up(u32 value, u32 align) { return (value + align - 1) / align * align; }

static u32 new_slots(struct parser *p, u32 count, const char *name) {
    struct kernel *kernel = p->kernel;
    u32 first = p->n_slots;
    if (count > SLOTS_MAX - first) broken(p, "too many registers", name);
    p->n_slots += count;
    if (p->n_slots > kernel->n_slots) {
        kernel->slot_names = need_more(kernel->slot_names, p->n_slots, NAME_BYTES);
        kernel->n_slots = p->n_slots;
    }
    for (u32 i = first; i < p->n_slots; i++) {
        memcpy(kernel->slot_names[i], name, strlen(name) + 1);
    }
    return first;
}

static void declare_registers(struct parser *p) {
    const char *word = peek(p);
    enum ptx_type type = word[0] == '.' ? type_word(word + 1) : TYPE_NONE;
    if (type == TYPE_NONE) broken(p, "unknown register type", word);
    p->have_token = false;
    u32 first = p->n_slots;
    bool reused = false;
    do {
        char name[NAME_BYTES];
        take_name(p, name);
        u32 count = 0;
        if (accept(p, "<")) {
            count = (u32)take_integer(p);
            if (count == 0) broken(p, "no registers", name);
            expect(p, ">");
        }
        struct symbol *symbol = add_symbol(p, name, SYMBOL_REG);
        symbol->type = type;
        symbol->count = count;
        reused |= p->n_slots < p->kernel->n_slots || p->depth > 1;
        symbol->index = new_slots(p, MAX(count, 1u), name);
    } while (accept(p, ","));
    expect(p, ";");
    if (!reused) return;
    struct insn *insn = new_insn(p);
    insn->sub = 1;
    insn->run = exec_undefine;
    insn->src[0] = (struct operand){.kind = OPERAND_IMM, .imm = first};
    insn->src[1] = (struct operand){.kind = OPERAND_IMM, .imm = p->n_slots - first};
}

static void take_initialiser(struct parser *p, enum ptx_type type, u8 *data, u32 count) {
    u32 bytes = ptx_type_bytes(type), i = 0;
    bool list = accept(p, "{");
    do {
        if (i == count) broken(p, "too many initial values", "");
        u64 value = 0;
        if (float_token(peek(p))) {
            struct constant constant = take_float(p);
            bool narrow = type == TYPE_F32 && !constant.single;
            value = narrow ? f32_bits((f32)f64_from_bits((u64)constant.bits)) : (u64)constant.bits;
        } else {
            value = (u64)take_integer(p);
        }
        memcpy(data + (usize)i++ * bytes, &value, bytes);
    } while (list && accept(p, ","));
    if (list) expect(p, "}");
}

static u32 place(u32 *used, u32 align, u32 bytes) {
    u32 offset = align_up(*used, align);
    *used = offset + bytes;
    return offset;
}

// Behind the latest variable and a gap.
static u32 place_shared(const struct parser *p, struct shared_variable *list, u32 *n,
                        const char *name, u32 align, u32 bytes) {
    if (*n == SHARED_VARIABLES_MAX) broken(p, "too many shared variables", name);
    u32 used = *n == 0 ? 0 : list[*n - 1].offset + list[*n - 1].bytes + SHARED_GAP;
    struct shared_variable *variable = &list[(*n)++];
    memcpy(variable->name, name, strlen(name) + 1);
    variable->offset = align_up(used, align);
    variable->bytes = bytes;
    return variable->offset;
}

static u8 *grow(u8 *data, u32 old_bytes, u32 new_bytes) {
    data = need_more(data, new_bytes, 1);
    memset(data + old_bytes, 0, new_bytes - old_bytes);
    return data;
}

// [.align N] .type name[count] [= values]; in one of the memory spaces.
static void declare_variable(struct parser *p, enum space space, bool is_extern) {
    struct module *module = p->module;
    u32 align = 0;
    if (accept(p, ".align")) align = (u32)take_integer(p);
    const char *word = peek(p);
    enum ptx_type type = word[0] == '.' ? type_word(word + 1) : TYPE_NONE;
    if (type == TYPE_NONE || type == TYPE_PRED) broken(p, "unknown variable type", word);
    p->have_token = false;
    char name[NAME_BYTES];
    take_name(p, name);
    u32 count = 1;
    if (accept(p, "[")) {
        count = peek_is(p, "]") ? 0 : (u32)take_integer(p);
        expect(p, "]");
    }
    struct symbol *symbol = add_symbol(p, name, SYMBOL_VARIABLE);
    align = MAX(align, ptx_type_bytes(type));
    symbol->type = type;
    symbol->space = space;
    symbol->bytes = count * ptx_type_bytes(type);
    if (is_extern) {
        if (space != SPACE_SHARED || count != 0) broken(p, "extern of another kind", name);
        if (p->dynamic[0] != 0) broken(p, "a second dynamic shared array", name);
        memcpy(p->dynamic, name, strlen(name) + 1);
        symbol->index = 0xffffffff; // known when the kernel's own variables are
        symbol->count = 0;
    } else if (count == 0) {
        broken(p, "an array without length", name);
    } else if (space == SPACE_SHARED && p->kernel == NULL) {
        symbol->index = place_shared(p, p->shared, &p->n_shared, name, align, symbol->bytes);
    } else if (space == SPACE_SHARED) {
        struct kernel *kernel = p->kernel;
        symbol->index =
            place_shared(p, kernel->shared, &kernel->n_shared, name, align, symbol->bytes);
    } else if (space == SPACE_LOCAL) {
        symbol->index = place(&p->kernel->local_bytes, align, symbol->bytes);
    } else {
        u32 *used = space == SPACE_CONST ? &module->const_bytes : &module->global_bytes;
        u8 **data = space == SPACE_CONST ? &module->const_data : &module->global_data;
        u32 before = *used;
        symbol->index = place(used, align, symbol->bytes);
        *data = grow(*data, before, *used);
        if (accept(p, "=")) take_initialiser(p, type, *data + symbol->index, count);
    }
    expect(p, ";");
}

static void skip_to_semicolon(struct parser *p) {
    while (!peek_is(p, ";") && peek(p)[0] != 0) p->have_token = false;
    expect(p, ";");
}

// A directive inside or outside of a kernel. Returns false when the token is none.
static bool directive(struct parser *p) {
    if (accept(p, ".reg")) {
        if (p->kernel == NULL) broken(p, "a register outside of a kernel", "");
        declare_registers(p);
    } else if (accept(p, ".shared")) {
        declare_variable(p, SPACE_SHARED, false);
    } else if (accept(p, ".local")) {
        declare_variable(p, SPACE_LOCAL, false);
    } else if (accept(p, ".const")) {
        declare_variable(p, SPACE_CONST, false);
    } else if (accept(p, ".global")) {
        declare_variable(p, SPACE_GLOBAL, false);
    } else if (accept(p, ".extern")) {
        expect(p, ".shared");
        declare_variable(p, SPACE_SHARED, true);
    } else if (accept(p, ".pragma")) {
        skip_to_semicolon(p);
    } else if (peek_is(p, ".loc") || peek_is(p, ".file")) {
        u32 line = p->line;
        while (p->have_token = false, peek(p)[0] != 0 && p->line == line) {
        }
    } else {
        return false;
    }
    return true;
}

// --- scopes and kernels ---

static void open_scope(struct parser *p) {
    if (p->depth == SCOPES_MAX) broken(p, "too deep nesting of scopes", "");
    p->scopes[p->depth++] = (struct scope){.n_symbols = p->n_symbols, .n_slots = p->n_slots};
}

static void close_scope(struct parser *p) {
    u32 kept = 0;
    for (u32 i = 0; i < p->n_branches; i++) {
        struct branch *branch = &p->branches[i];
        u32 number = 0;
        if (branch->scope_depth < p->depth) { // of an outer scope: not yet
            p->branches[kept++] = *branch;
            continue;
        }
        const struct symbol *label = find_symbol(p, branch->name, &number);
        if (label != NULL && label->kind == SYMBOL_LABEL) {
            p->kernel->insns[branch->insn].target = label->index;
            continue;
        }
        if (p->depth == 1) {
            const struct insn *insn = &p->kernel->insns[branch->insn];
            fail_at(p->module->files[insn->file], insn->line, "unknown label %s", branch->name);
        }
        branch->scope_depth = p->depth - 1;
        p->branches[kept++] = *branch;
    }
    p->n_branches = kept;
    p->depth--;
    p->n_symbols = p->scopes[p->depth].n_symbols;
    p->n_slots = p->scopes[p->depth].n_slots;
}

static void statement(struct parser *p) {
    if (accept(p, "{")) {
        open_scope(p);
    } else if (accept(p, "}")) {
        close_scope(p);
    } else if (accept(p, ";")) { // empty
    } else if (directive(p)) {   // done there
    } else {
        const char *token = peek(p);
        if (token[0] == 0) broken(p, "the text ends inside of a kernel", "");
        const char *behind = p->at;
        while (*behind == ' ') behind++;
        if (*behind == ':' && behind[1] != ':' && token[0] != '@') {
            char name[NAME_BYTES];
            take_name(p, name);
            expect(p, ":");
            add_symbol(p, name, SYMBOL_LABEL)->index = p->kernel->n_insns;
        } else {
            instruction(p);
        }
    }
}

static void take_param(struct parser *p) {
    struct kernel *kernel = p->kernel;
    expect(p, ".param");
    u32 align = 0;
    if (accept(p, ".align")) align = (u32)take_integer(p);
    const char *word = peek(p);
    enum ptx_type type = word[0] == '.' ? type_word(word + 1) : TYPE_NONE;
    if (type == TYPE_NONE || type == TYPE_PRED) broken(p, "unknown parameter type", word);
    p->have_token = false;
    while (accept(p, ".ptr") || accept(p, ".global") || accept(p, ".align")) {
        if (number_token(peek(p))) take_integer(p);
    }
    if (kernel->n_params == PARAMS_MAX) broken(p, "too many parameters", kernel->name);
    struct ptx_param *param = &kernel->params[kernel->n_params++];
    take_name(p, param->name);
    param->bytes = ptx_type_bytes(type);
    align = MAX(align, param->bytes);
    if (accept(p, "[")) {
        param->bytes *= (u32)take_integer(p);
        expect(p, "]");
    }
    param->offset = place(&kernel->param_bytes, align, param->bytes);
    struct symbol *symbol = add_symbol(p, param->name, SYMBOL_VARIABLE);
    symbol->space = SPACE_PARAM;
    symbol->index = param->offset;
    symbol->bytes = param->bytes;
}

static void take_limits(struct parser *p, struct kernel *kernel) {
    for (;;) {
        bool required = peek_is(p, ".reqntid");
        if (accept(p, ".maxntid") || accept(p, ".reqntid")) {
            u32 n[3] = {(u32)take_integer(p), 1, 1};
            for (u32 i = 1; i < 3 && accept(p, ","); i++) n[i] = (u32)take_integer(p);
            if (required) memcpy(kernel->required, n, sizeof n);
            kernel->max_threads = n[0] * n[1] * n[2];
        } else if (accept(p, ".minnctapersm") || accept(p, ".maxnreg")) {
            take_integer(p);
        } else if (!accept(p, ".noreturn")) {
            return;
        }
    }
}

// The dynamic array begins behind the kernel's own shared variables, which may be declared anywhere
// in the body; so a private look ahead over the declarations adds them up before the body is read.
static void look_ahead_shared(struct parser *p) {
    struct parser scan = *p; // private, but for the names of files
    struct kernel *kernel = p->kernel;
    struct shared_variable list[SHARED_VARIABLES_MAX];
    u32 depth = 1, n = kernel->n_shared, exact = 0;
    memcpy(list, kernel->shared, sizeof list);
    for (u32 i = 0; i < n; i++) exact = align_up(exact, 16) + list[i].bytes;
    while (depth > 0 && peek(&scan)[0] != 0) {
        if (accept(&scan, "{")) {
            depth++;
        } else if (accept(&scan, "}")) {
            depth--;
        } else if (accept(&scan, ".shared")) {
            u32 align = accept(&scan, ".align") ? (u32)take_integer(&scan) : 1;
            enum ptx_type type = type_word(peek(&scan) + 1);
            if (type == TYPE_NONE) break; // reported by the real pass
            scan.have_token = false;
            char name[NAME_BYTES];
            take_name(&scan, name);
            u32 count = accept(&scan, "[") ? (u32)take_integer(&scan) : 1;
            u32 bytes = ptx_type_bytes(type);
            align = MAX(align, bytes);
            place_shared(&scan, list, &n, name, align, count * bytes);
            exact = align_up(exact, align) + count * bytes;
        } else {
            scan.have_token = false;
        }
    }
    kernel->shared_exact = exact;
    kernel->shared_static = n == 0 ? 0 : list[n - 1].offset + list[n - 1].bytes + SHARED_GAP;
    kernel->shared_static = align_up(kernel->shared_static, 128);
}

static void take_entry(struct parser *p) {
    struct module *module = p->module;
    if (module->n_kernels == KERNELS_MAX) broken(p, "too many kernels", "");
    struct kernel *kernel = &module->kernels[module->n_kernels++];
    *kernel = (struct kernel){.line = p->line, .file = p->file};
    take_name(p, kernel->name);
    p->kernel = kernel;
    p->n_slots = 0;
    p->n_branches = 0;
    memcpy(kernel->shared, p->shared, sizeof kernel->shared);
    kernel->n_shared = p->n_shared;
    open_scope(p);
    if (accept(p, "(") && !accept(p, ")")) {
        do take_param(p);
        while (accept(p, ","));
        expect(p, ")");
    }
    take_limits(p, kernel);
    expect(p, "{");
    look_ahead_shared(p);
    for (u32 i = 0; i < p->n_symbols; i++) {
        if (strcmp(p->symbols[i].name, p->dynamic) == 0 && p->dynamic[0] != 0) {
            p->symbols[i].index = kernel->shared_static;
        }
    }
    while (p->depth > 0) statement(p);
    struct insn *insn = new_insn(p); // falling off the end
    insn->class = CLASS_RETURN;
    insn->source = "}";
    insn->text = 1;
    p->kernel = NULL;
}

static void take_header(struct parser *p) {
    expect(p, ".version");
    const char *token = peek(p);
    char *end = NULL;
    f64 version = strtod(token, &end);
    if (*end != 0 || version < 7.0 || version > 8.8) broken(p, "unexpected .version", token);
    p->have_token = false;
    expect(p, ".target");
    if (!accept(p, "sm_89")) broken(p, "the target is not sm_89", peek(p));
    expect(p, ".address_size");
    if (take_integer(p) != 64) broken(p, "the address size is not 64", "");
}

struct module *ptx_parse(const char *path, char *text) {
    struct module *module = need(1, sizeof *module);
    module->text = text;
    module->path = path;
    module->files = need(FILES_MAX, sizeof module->files[0]);
    module->kernels = need(KERNELS_MAX, sizeof(struct kernel));
    struct parser *p = need(1, sizeof *p);
    p->module = module;
    p->symbols = need(SYMBOLS_MAX, sizeof(struct symbol));
    p->branches = need(BRANCHES_MAX, sizeof(struct branch));
    p->at = text;
    p->line = 1;
    file_index(p, path, strlen(path));
    if (*text == '#') marker(p);
    take_header(p);
    while (peek(p)[0] != 0) {
        if (accept(p, ".visible") || accept(p, ".weak") || accept(p, ";")) continue;
        if (accept(p, ".entry")) {
            take_entry(p);
        } else if (!directive(p)) {
            broken(p, "unknown directive", peek(p));
        }
    }
    free(p->symbols);
    free(p->branches);
    free(p);
    return module;
}

const struct kernel *ptx_kernel(const struct module *module, const char *name) {
    for (u32 i = 0; i < module->n_kernels; i++) {
        if (strcmp(module->kernels[i].name, name) == 0) return &module->kernels[i];
    }
    return NULL;
}

void ptx_free(struct module *module) {
    for (u32 i = 0; i < module->n_kernels; i++) {
        free(module->kernels[i].insns);
        free(module->kernels[i].slot_names);
    }
    free(module->kernels);
    free(module->files);
    free(module->const_data);
    free(module->global_data);
    free(module->text);
    free(module);
}

const char *ptx_file(const struct module *module, const struct insn *insn) {
    return module->files[insn->file];
}
