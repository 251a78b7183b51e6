// SPDX-License-Identifier: Apache-2.0
// Preprocessed PTX in decoded form: what parse.c makes of a module, and what machine.c executes.
//
//   text --ptx_parse--> struct module { kernels, const and global data }
//                         struct kernel { parameters, instructions, registers, shared layout }
//                           struct insn { handler, predicate, operands, space, place in the source
//                           }
//
// P1. An instruction that parse.c accepts is executed completely; a word of an opcode that no rule
//     has taken is an error with its source line, never skipped.
// P2. Registers are slots of 64 bits; the slots of a closed scope are reused, and a declaration
// that
//     reuses slots makes them uninitialised again (OP_UNDEFINE).
#pragma once
#include <stdio.h>

#include "text_file.h"

struct thread;
struct warp_call;
struct insn;

enum ptx_type {
    TYPE_NONE,
    TYPE_PRED,
    TYPE_B8,
    TYPE_U8,
    TYPE_S8,
    TYPE_B16,
    TYPE_U16,
    TYPE_S16,
    TYPE_F16,
    TYPE_BF16,
    TYPE_B32,
    TYPE_U32,
    TYPE_S32,
    TYPE_F32,
    TYPE_F16X2,
    TYPE_BF16X2,
    TYPE_B64,
    TYPE_U64,
    TYPE_S64,
    TYPE_F64,
    TYPE_LIMIT,
};
u32 ptx_type_bytes(enum ptx_type type); // a predicate has 1
const char *ptx_type_name(enum ptx_type type);

enum space { SPACE_GENERIC, SPACE_GLOBAL, SPACE_SHARED, SPACE_LOCAL, SPACE_CONST, SPACE_PARAM };

enum special {
    SPECIAL_TID_X,
    SPECIAL_TID_Y,
    SPECIAL_TID_Z,
    SPECIAL_NTID_X,
    SPECIAL_NTID_Y,
    SPECIAL_NTID_Z,
    SPECIAL_CTAID_X,
    SPECIAL_CTAID_Y,
    SPECIAL_CTAID_Z,
    SPECIAL_NCTAID_X,
    SPECIAL_NCTAID_Y,
    SPECIAL_NCTAID_Z,
    SPECIAL_LANEID,
    SPECIAL_WARPID,
    SPECIAL_NWARPID,
    SPECIAL_LANEMASK_EQ,
    SPECIAL_LANEMASK_LE,
    SPECIAL_LANEMASK_LT,
    SPECIAL_LANEMASK_GE,
    SPECIAL_LANEMASK_GT,
    SPECIAL_DYNAMIC_SMEM_SIZE,
    SPECIAL_LIMIT,
};

enum operand_kind { OPERAND_NONE, OPERAND_REG, OPERAND_IMM, OPERAND_SPECIAL, OPERAND_SINK };
struct operand {
    u8 kind, negated; // negated: !%p
    u8 type;          // of a register, as declared
    u16 reg;          // slot, or enum special
    i64 imm;          // immediate bits; the offset beside an address register
};

// How the machine treats an instruction.
enum insn_class {
    CLASS_PLAIN,    // run(thread, insn)
    CLASS_BRANCH,   // to `target`
    CLASS_RETURN,   // the thread ends
    CLASS_TRAP,     // reported
    CLASS_BARRIER,  // bar, barrier: see enum barrier_kind in `sub`
    CLASS_WARP,     // run_warp, when every lane of the mask has arrived; the mask is `mask`
    CLASS_WARP_ALL, // run_warp, when all lanes of the warp have arrived
};

enum barrier_kind {
    BARRIER_SYNC,
    BARRIER_ARRIVE,
    BARRIER_RED_POPC,
    BARRIER_RED_AND,
    BARRIER_RED_OR
};

// Strength of a memory operation.
enum memory_order { ORDER_WEAK, ORDER_RELAXED, ORDER_ACQUIRE, ORDER_RELEASE, ORDER_ACQ_REL };
enum memory_scope { SCOPE_NONE, SCOPE_CTA, SCOPE_GPU, SCOPE_SYS };

#define DESTINATIONS 4
#define SOURCES 12
#define NO_REG 0xffff

typedef void insn_run(struct thread *thread, const struct insn *insn);
typedef void insn_run_warp(struct warp_call *call, const struct insn *insn);

struct insn {
    insn_run *run;
    insn_run_warp *run_warp;
    u8 class, sub;      // sub: meaning of the family (comparison, rounding, mode, ...)
    u8 type, type_from; // the operation's type; cvt, mul.wide, mma: the other one
    u8 space, space_to; // cp.async: from global to shared
    u8 order, scope;
    u8 lanes;   // elements of a vector access; matrices of ldmatrix
    u8 flags;   // FLAG_ bits
    u8 aligned; // barrier or warp instruction wants the whole warp
    u8 pred_negated;
    u8 n_dst, n_src;
    u16 pred;   // slot or NO_REG
    u32 target; // branch: instruction number
    u32 line;
    u16 file;           // index of the module's files
    u16 text;           // length of the source text
    const char *source; // in the module's text
    struct operand dst[DESTINATIONS], src[SOURCES];
    struct operand address, address_to; // ld, st, atom, ...; cp.async: global, and shared
    struct operand mask;
};
#define FLAG_SAT 1
#define FLAG_NAN 2   // min, max .NaN
#define FLAG_CARRY 4 // writes the carry
#define FLAG_NC 8    // ld.global.nc
#define FLAG_TRANS 16
#define FLAG_HIGH 32 // bfind.shiftamt, dp2a.hi, shf.r
#define FLAG_WRAP 64
#define FLAG_SIGNED_B 128

struct ptx_param {
    char name[NAME_BYTES];
    u32 bytes, offset;
};
#define PARAMS_MAX 64

// A variable in shared memory. Between variables lie SHARED_GAP bytes that belong to nobody, so
// that an index past an end is seen; `shared_exact` counts without them.
struct shared_variable {
    char name[NAME_BYTES];
    u32 offset, bytes;
};
#define SHARED_GAP 64
#define SHARED_VARIABLES_MAX 32

struct kernel {
    char name[NAME_BYTES];
    struct ptx_param params[PARAMS_MAX];
    u32 n_params, param_bytes;
    struct insn *insns;
    u32 n_insns;
    u32 n_slots;
    char (*slot_names)[NAME_BYTES];                      // the latest register in each slot
    struct shared_variable shared[SHARED_VARIABLES_MAX]; // the dynamic array is not among them
    u32 n_shared, shared_exact;
    u32 shared_static, local_bytes; // bytes; the dynamic array begins at shared_static
    u32 max_threads, required[3];   // .maxntid's product, .reqntid; 0: not given
    u32 line;
    u16 file;
};

// A .const or .global array, with its contents.
struct ptx_data {
    char name[NAME_BYTES];
    enum space space;
    u32 bytes, offset; // in the module's const_data or global_data
};

struct module {
    char *text; // kept: insn.source points into it
    const char *path;
    char (*files)[256];
    u32 n_files;
    struct kernel *kernels;
    u32 n_kernels;
    u8 *const_data, *global_data;
    u32 const_bytes, global_bytes;
};

// The window addresses of generic pointers.
#define WINDOW_GLOBAL 0x700000000000ull
#define WINDOW_SHARED 0x010000000000ull
#define WINDOW_LOCAL 0x020000000000ull
#define WINDOW_CONST 0x030000000000ull
#define WINDOW_MODULE 0x6f0000000000ull // .global variables of the module

// Parses `text` (taken over) that was read from `path`. Fails with the place on anything unknown.
struct module *ptx_parse(const char *path, char *text);
const struct kernel *ptx_kernel(const struct module *module, const char *name); // or NULL
void ptx_free(struct module *module);
const char *ptx_file(const struct module *module, const struct insn *insn);

// Makes the registers of slots [src0, src0 + src1) uninitialised.
insn_run exec_undefine;

// --- decode.c: one instruction's opcode ---

// The opcode as words; a rule takes the words it knows, what is left is an error (P1).
#define OPCODE_WORDS 16
struct opcode {
    char words[OPCODE_WORDS][32];
    bool taken[OPCODE_WORDS];
    u32 n;
    const char *file;
    u32 line;
};

// What the parser found between opcode and semicolon.
enum argument_kind { ARGUMENT_OPERAND, ARGUMENT_VECTOR, ARGUMENT_ADDRESS, ARGUMENT_LABEL };
struct argument {
    enum argument_kind kind;
    u32 n;                    // members of a vector
    struct operand member[8]; // [0] for the others; an address: register or immediate, with offset
    enum space space;         // of the symbol in an address, SPACE_GENERIC for registers
    bool has_second;          // "%d|%p"
    struct operand second;
};
#define ARGUMENTS_MAX 8

// Fills insn's handler and operands. `arguments` as written, destination first.
void decode(struct opcode *opcode, struct argument *arguments, u32 n, struct insn *insn);

// The opcodes of the tables of rules with their operands' letters, a line each.
void decode_list(FILE *out);

// For the rules: takes a word when it is there.
bool opcode_take(struct opcode *opcode, const char *word);
enum ptx_type opcode_take_type(struct opcode *opcode); // the next type word, or TYPE_NONE
_Noreturn void opcode_fail(const struct opcode *opcode, const char *format, ...) PRINTF_LIKE(2, 3);
