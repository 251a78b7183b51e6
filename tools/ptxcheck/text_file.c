// SPDX-License-Identifier: Apache-2.0
// Reading of the checker's text files: lines, words, integer expressions.
//
// T1. An expression is evaluated by precedence climbing; parentheses nest to a fixed depth.
#include "text_file.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Noreturn void fail_at(const char *file, u32 line, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s:%u: error: ", file, line);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(EXIT_BROKEN);
}

_Noreturn void fail(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs("ptxcheck: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(EXIT_BROKEN);
}

// Weak: the program over hosted.c has that one's.
__attribute__((weak)) _Noreturn void assert_failed(const char *file, int line, const char *what) {
    fprintf(stderr, "%s:%d: assertion failed: %s\n", file, line, what);
    exit(EXIT_BROKEN);
}

void *need(usize count, usize bytes) {
    void *block = calloc(count == 0 ? 1 : count, bytes == 0 ? 1 : bytes);
    if (block == NULL) fail("no memory for %zu times %zu bytes", count, bytes);
    return block;
}

void *need_more(void *block, usize count, usize bytes) {
    usize total = 0;
    if (!CHECKED_MUL(count, bytes, &total)) fail("no memory for %zu times %zu bytes", count, bytes);
    void *larger = realloc(block, total == 0 ? 1 : total);
    if (larger == NULL) fail("no memory for %zu bytes", total);
    return larger;
}

char *file_read(const char *path, usize *len) {
    FILE *file = fopen(path, "rb");
    if (file == NULL) fail("%s: cannot be opened", path);
    usize capacity = 1 << 16, length = 0;
    char *text = need_more(NULL, capacity, 1);
    for (;;) {
        usize got = fread(text + length, 1, capacity - length - 1, file);
        if (got == 0) break;
        length += got;
        if (capacity - length < 2) text = need_more(text, capacity *= 2, 1);
    }
    if (ferror(file)) fail("%s: cannot be read", path);
    fclose(file);
    text[length] = 0;
    if (len != NULL) *len = length;
    return text;
}

// --- lines ---

void lines_begin(struct lines *lines, const char *file, const char *text) {
    *lines = (struct lines){.file = file, .at = text};
}

// Cuts `line` into words. Blanks inside [ ] or ( ) or quotes belong to the word.
static void split(struct lines *lines) {
    u32 depth = 0;
    bool quoted = false, inside = false;
    lines->n_words = 0;
    for (char *p = lines->line; *p != 0; p++) {
        if (*p == '"') quoted = !quoted;
        if (!quoted && (*p == '[' || *p == '(')) depth++;
        if (!quoted && (*p == ']' || *p == ')') && depth > 0) depth--;
        if (!quoted && depth == 0 && isspace((unsigned char)*p)) {
            *p = 0;
            inside = false;
            continue;
        }
        if (inside) continue;
        if (lines->n_words == LINE_WORDS) fail_at(lines->file, lines->number, "too many words");
        lines->words[lines->n_words++] = p;
        inside = true;
    }
}

bool lines_next(struct lines *lines) {
    while (*lines->at != 0) {
        const char *end = strchr(lines->at, '\n');
        usize len = end == NULL ? strlen(lines->at) : (usize)(end - lines->at);
        lines->number++;
        if (len >= LINE_BYTES) fail_at(lines->file, lines->number, "a line of %zu bytes", len);
        memcpy(lines->line, lines->at, len);
        lines->line[len] = 0;
        lines->raw = lines->at;
        lines->at += len + (end != NULL);
        bool quoted = false;
        for (char *p = lines->line; *p != 0; p++) {
            if (*p == '"') quoted = !quoted;
            if (*p == '#' && !quoted) *p = 0;
            if (*p == 0) break;
        }
        split(lines);
        if (lines->n_words > 0) return true;
    }
    return false;
}

// --- expressions ---

void variables_set(struct variables *variables, const char *name, i64 value) {
    u32 i = 0;
    while (i < variables->n && strcmp(variables->name[i], name) != 0) i++;
    if (i == VARIABLES_MAX) fail("more than %d names", VARIABLES_MAX);
    if (strlen(name) >= NAME_BYTES) fail("the name %s is too long", name);
    if (i == variables->n) variables->n++;
    memcpy(variables->name[i], name, strlen(name) + 1);
    variables->value[i] = value;
}

bool variables_get(const struct variables *variables, const char *name, i64 *value) {
    for (u32 i = 0; i < variables->n; i++) {
        if (strcmp(variables->name[i], name) != 0) continue;
        *value = variables->value[i];
        return true;
    }
    return false;
}

#define EXPRESSION_DEPTH 24

struct parse {
    const char *at, *text, *file;
    const struct variables *variables;
    u32 line, depth;
};

static i64 parse_level(struct parse *parse, u32 level);

static void blanks(struct parse *parse) {
    while (isspace((unsigned char)*parse->at)) parse->at++;
}

static bool eat(struct parse *parse, const char *token) {
    blanks(parse);
    usize len = strlen(token);
    if (strncmp(parse->at, token, len) != 0) return false;
    parse->at += len;
    return true;
}

static _Noreturn void parse_failed(const struct parse *parse, const char *what) {
    fail_at(parse->file, parse->line, "%s in the expression \"%s\" at \"%s\"", what, parse->text,
            parse->at);
}

static i64 divide(struct parse *parse, i64 a, i64 b, bool remainder) {
    if (b == 0) parse_failed(parse, "a division by 0");
    return remainder ? a % b : a / b;
}

static i64 call(struct parse *parse, const char *name) {
    i64 a = parse_level(parse, 0);
    if (!eat(parse, ",")) parse_failed(parse, "a comma is missing");
    i64 b = parse_level(parse, 0);
    if (!eat(parse, ")")) parse_failed(parse, "a parenthesis is missing");
    if (strcmp(name, "min") == 0) return MIN(a, b);
    if (strcmp(name, "max") == 0) return MAX(a, b);
    if (strcmp(name, "ceil") == 0) return divide(parse, a + b - 1, b, false);
    if (strcmp(name, "round_up") == 0) return divide(parse, a + b - 1, b, false) * b;
    parse_failed(parse, "an unknown function");
}

static i64 parse_primary(struct parse *parse) {
    if (++parse->depth > EXPRESSION_DEPTH) parse_failed(parse, "too deep nesting");
    i64 value = 0;
    if (eat(parse, "(")) {
        value = parse_level(parse, 0);
        if (!eat(parse, ")")) parse_failed(parse, "a parenthesis is missing");
    } else if (eat(parse, "-")) {
        value = -parse_primary(parse);
    } else if (eat(parse, "!")) {
        value = !parse_primary(parse);
    } else if (eat(parse, "~")) {
        value = ~parse_primary(parse);
    } else if (isdigit((unsigned char)*parse->at)) {
        char *end = NULL;
        value = (i64)strtoull(parse->at, &end, 0);
        if (*end == 'U') end++;
        if (isalnum((unsigned char)*end)) parse_failed(parse, "a malformed number");
        parse->at = end;
    } else if (isalpha((unsigned char)*parse->at) || *parse->at == '_') {
        char name[NAME_BYTES];
        u32 len = 0;
        while (isalnum((unsigned char)*parse->at) || *parse->at == '_') {
            if (len == NAME_BYTES - 1) parse_failed(parse, "a long name");
            name[len++] = *parse->at++;
        }
        name[len] = 0;
        if (eat(parse, "(")) {
            value = call(parse, name);
        } else if (parse->variables == NULL || !variables_get(parse->variables, name, &value)) {
            fail_at(parse->file, parse->line, "unknown name \"%s\" in \"%s\"", name, parse->text);
        }
    } else {
        parse_failed(parse, "no value");
    }
    parse->depth--;
    return value;
}

// Binary operators, weakest first. A token that begins another one stands behind it.
static const struct operator{
    const char *token;
    u32 level;
}
operators[] = {
    {"||", 0}, {"&&", 1}, {"==", 5}, {"!=", 5}, {"<=", 6}, {">=", 6},
    {"<<", 7}, {">>", 7}, {"<", 6},  {">", 6},  {"|", 2},  {"^", 3},
    {"&", 4},  {"+", 8},  {"-", 8},  {"*", 9},  {"/", 9},  {"%", 9},
};
#define LEVELS 10

static i64 apply(struct parse *parse, const char *token, i64 a, i64 b) {
    bool doubled = token[1] == token[0];
    switch (token[0]) {
    case '|': return doubled ? (a != 0 || b != 0) : (a | b);
    case '&': return doubled ? (a != 0 && b != 0) : (a & b);
    case '^': return a ^ b;
    case '=': return a == b;
    case '!': return a != b;
    case '<': return doubled ? (i64)((u64)a << (b & 63)) : token[1] == '=' ? a <= b : a < b;
    case '>': return doubled ? a >> (b & 63) : token[1] == '=' ? a >= b : a > b;
    case '+': return (i64)((u64)a + (u64)b);
    case '-': return (i64)((u64)a - (u64)b);
    case '*': return (i64)((u64)a * (u64)b);
    default: return divide(parse, a, b, token[0] == '%');
    }
}

static const struct operator* next_operator(struct parse *parse) {
    blanks(parse);
    for (u32 i = 0; i < COUNT_OF(operators); i++) {
        if (strncmp(parse->at, operators[i].token, strlen(operators[i].token)) == 0) {
            return &operators[i];
        }
    }
    return NULL;
}

static i64 parse_level(struct parse *parse, u32 level) {
    i64 value = parse_primary(parse);
    for (;;) {
        const struct operator* found = next_operator(parse);
        if (found == NULL || found->level < level) return value;
        parse->at += strlen(found->token);
        value = apply(parse, found->token, value, parse_level(parse, found->level + 1));
    }
}

i64 expression(const char *text, const struct variables *variables, const char *file, u32 line) {
    struct parse parse = {
        .at = text, .text = text, .file = file, .variables = variables, .line = line};
    i64 value = parse_level(&parse, 0);
    blanks(&parse);
    if (*parse.at != 0) parse_failed(&parse, "something unexpected");
    return value;
}

// --- randomness ---

u64 random_u64(struct random *random) {
    u64 z = random->state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

u32 random_below(struct random *random, u32 limit) {
    return (u32)((random_u64(random) >> 32) * limit >> 32);
}

f64 random_unit(struct random *random) { return (f64)(random_u64(random) >> 11) * 0x1p-53; }
