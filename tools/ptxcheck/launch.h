// SPDX-License-Identifier: Apache-2.0
// Launch files (docs/ptxcheck.md): which buffers a kernel gets, what it is called with, and what
// the reference operators say it must leave behind. Nothing here knows which machine executes the
// call:
//
//   launch_load ─▶ launch_prepare(case) ─▶ [any backend executes case->calls] ─▶ launch_compare
//
// C1. Expected images are made twice over different poison; bytes in which the two agree are those
//     that the reference has written, and must be written by the kernel.
#pragma once
#include "ops/dtype.h"
#include "text_file.h"

#define LAUNCH_BUFFERS_MAX 48
#define LAUNCH_CALLS_MAX 16
#define LAUNCH_PARAMS_MAX 48
#define LAUNCH_CASES_MAX 256
#define LAUNCH_COLUMNS_MAX 16
#define LAUNCH_SAME_MAX 16
#define LAUNCH_STATEMENTS_MAX 512
#define LAUNCH_BUFFER_BYTES_MAX (256u << 20)

enum element {
    ELEMENT_U8,
    ELEMENT_I8,
    ELEMENT_U16,
    ELEMENT_I16,
    ELEMENT_U32,
    ELEMENT_I32,
    ELEMENT_U64,
    ELEMENT_F16,
    ELEMENT_BF16,
    ELEMENT_F32,
    ELEMENT_LIMIT
};
u32 element_bytes(enum element element);
const char *element_name(enum element element);
f64 element_value(enum element element, const u8 *at);

enum buffer_role { BUFFER_IN, BUFFER_OUT, BUFFER_INOUT, BUFFER_SCRATCH, BUFFER_HOST };

struct launch_buffer {
    char name[NAME_BYTES];
    enum buffer_role role;
    enum element type;
    u64 count, bytes, last_dimension; // elements, bytes, elements of the last dimension
    u32 guard, misalign;              // bytes
    u8 *contents;                     // [bytes] before the first call
    u8 *defined;                      // [bytes] 1 where the kernel may read before it writes
    u8 *expected;                     // [bytes] after the last call
    u8 *written;                      // [bytes] 1 where the reference has written
    bool by_bound;
    f64 absolute, relative;
    bool has_slack; // the bound of an element is that of the f32 buffer `slack`
    u32 slack;
};

struct launch_param {
    char name[NAME_BYTES];
    u32 bytes;
    bool is_address;
    u32 buffer; // of an address
    u64 value;  // bits; of an address the offset in bytes
};

struct launch_call {
    char kernel[NAME_BYTES];
    u32 grid[3], block[3], shared_bytes, resident;
    struct launch_param params[LAUNCH_PARAMS_MAX];
    u32 n_params;
};

// One case, ready to execute.
struct launch_case {
    struct launch_buffer buffers[LAUNCH_BUFFERS_MAX];
    u32 n_buffers;
    struct launch_call calls[LAUNCH_CALLS_MAX];
    u32 n_calls;
    struct variables variables;
    bool refused; // a reference operator returned failure
    u32 fail_buffer, fail_index;
    u64 fail_value;
    bool has_fail, has_power; // has_power: the word is checked
    u32 power_buffer, power_index, power_active, power_other;
    bool has_complete; // blocks count themselves in this word when they are done (operator count)
    u32 complete_buffer, complete_index;
    struct {
        u32 part, whole; // buffers that must hold the same bytes after the last call
        u64 first;       // from this element of `whole` on
    } same[LAUNCH_SAME_MAX];
    u32 n_same;
};

struct launch_statement {
    u32 line, n_words;
    char *words[LINE_WORDS];
};

struct launch_set {
    char path[256];
    char module[NAME_BYTES];
    struct launch_statement statements[LAUNCH_STATEMENTS_MAX];
    u32 n_statements;
    char columns[LAUNCH_COLUMNS_MAX][NAME_BYTES];
    u32 n_columns;
    i64 cases[LAUNCH_CASES_MAX][LAUNCH_COLUMNS_MAX];
    u32 case_lines[LAUNCH_CASES_MAX];
    u32 n_cases;
    i64 seed;
    bool says_power; // a power statement is there, be it `none`
};

// Fail with file and line on anything malformed. `text` stays the caller's and may be freed.
struct launch_set *launch_load(const char *path, const char *text);
void launch_free(struct launch_set *set);
struct launch_case *launch_prepare(const struct launch_set *set, u32 case_idx);
void launch_case_free(struct launch_case *launch);

// Compares what a backend left in buffer `index`; the first difference is described in `message`
// (then false is returned). Buffers that need no comparison are fine.
bool launch_compare(const struct launch_case *launch, u32 index, const u8 *got, char *message,
                    usize message_bytes);
// The same for statement `same` number `index`, given what a backend left in its two buffers.
bool launch_compare_same(const struct launch_case *launch, u32 index, const u8 *part,
                         const u8 *whole, char *message, usize message_bytes);
// "row 2, element 17" for an element of a buffer.
void launch_place(const struct launch_buffer *buffer, u64 element, char *text, usize text_bytes);

// --- for operators.c ---
struct operator_call {
    struct launch_case *launch;
    const struct launch_set *set;
    const struct launch_statement *statement;
};
// Executes `reference OPERATOR ...` on the expected images. Returns what the operator returns.
u32 operator_run(struct operator_call *call);
i64 launch_integer(const struct launch_set *set, const struct launch_case *launch, u32 line,
                   const char *text);
f64 launch_number(const struct launch_set *set, const struct launch_case *launch, u32 line,
                  const char *text);
u32 launch_find(const struct launch_case *launch, const char *name); // LAUNCH_BUFFERS_MAX: none

// --- for fill.c ---
void fill_buffer(const struct launch_set *set, const struct launch_case *launch,
                 struct launch_buffer *buffer, const struct launch_statement *statement,
                 u32 first_word, u64 used, u64 seed);
