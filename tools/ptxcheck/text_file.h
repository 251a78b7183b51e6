// SPDX-License-Identifier: Apache-2.0
// Text files of the checker: reading, words of a line, integer expressions. Everything that the
// tool reads was written by us; a mistake in it ends the process with file and line (exit code 3).
#pragma once
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include "freestanding/types.h"

#define EXIT_FOUND 1    // something was reported
#define EXIT_USAGE 2    // the command line
#define EXIT_BROKEN 3   // an input file cannot be understood
#define NAME_BYTES 64   // names in launch files and PTX, with the terminating 0
#define LINE_WORDS 64   // words of one line of a text file
#define LINE_BYTES 2048 // one line of a text file

_Noreturn void fail_at(const char *file, u32 line, const char *format, ...) PRINTF_LIKE(3, 4);
_Noreturn void fail(const char *format, ...) PRINTF_LIKE(1, 2);

// Memory that the process cannot do without; zeroed. Freed by free().
void *need(usize count, usize bytes);
void *need_more(void *block, usize count, usize bytes); // realloc that does not return NULL

// The whole file with a terminating 0; the length goes to *len. Freed by free().
char *file_read(const char *path, usize *len);

// A text being read line by line; lines without comment and outer blanks, empty ones skipped.
struct lines {
    const char *file, *at;
    u32 number;              // of the line in `line`
    char line[LINE_BYTES];   // split in place
    char *words[LINE_WORDS]; // separated by blanks; brackets and parentheses hold words together
    u32 n_words;
    const char *raw; // the line before it was split, with its comment
};
void lines_begin(struct lines *lines, const char *file, const char *text);
bool lines_next(struct lines *lines);

// Names with integer values, for expressions.
#define VARIABLES_MAX 96
struct variables {
    u32 n;
    char name[VARIABLES_MAX][NAME_BYTES];
    i64 value[VARIABLES_MAX];
};
void variables_set(struct variables *variables, const char *name, i64 value);
bool variables_get(const struct variables *variables, const char *name, i64 *value);

// The value of an expression (docs/ptxcheck.md); fails with file and line.
i64 expression(const char *text, const struct variables *variables, const char *file, u32 line);

// SplitMix64.
struct random {
    u64 state;
};
u64 random_u64(struct random *random);
u32 random_below(struct random *random, u32 limit);
f64 random_unit(struct random *random); // [0, 1)
