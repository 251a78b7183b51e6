// SPDX-License-Identifier: Apache-2.0
// Launch files: parsing, preparation of a case, comparison of its results (launch.h).
#include "launch.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GUARD_DEFAULT 256
#define RESIDENT_DEFAULT 4

static const struct {
    const char *name;
    u32 bytes;
} elements[ELEMENT_LIMIT] = {
    [ELEMENT_U8] = {"u8", 1},   [ELEMENT_I8] = {"i8", 1},   [ELEMENT_U16] = {"u16", 2},
    [ELEMENT_I16] = {"i16", 2}, [ELEMENT_U32] = {"u32", 4}, [ELEMENT_I32] = {"i32", 4},
    [ELEMENT_U64] = {"u64", 8}, [ELEMENT_F16] = {"f16", 2}, [ELEMENT_BF16] = {"bf16", 2},
    [ELEMENT_F32] = {"f32", 4},
};

u32 element_bytes(enum element element) { return elements[element].bytes; }
const char *element_name(enum element element) { return elements[element].name; }

f64 element_value(enum element element, const u8 *at) {
    switch (element) {
    case ELEMENT_U8: return *at;
    case ELEMENT_I8: return (i8)*at;
    case ELEMENT_U16: return load_u16(at);
    case ELEMENT_I16: return (i16)load_u16(at);
    case ELEMENT_U32: return load_u32(at);
    case ELEMENT_I32: return load_i32(at);
    case ELEMENT_U64: return (f64)load_u64(at);
    case ELEMENT_F16: return f16_to_f32(load_u16(at));
    case ELEMENT_BF16: return bf16_to_f32(load_u16(at));
    default: return load_f32(at);
    }
}

i64 launch_integer(const struct launch_set *set, const struct launch_case *launch, u32 line,
                   const char *text) {
    return expression(text, &launch->variables, set->path, line);
}

// A decimal or hex-float literal, or else an expression.
f64 launch_number(const struct launch_set *set, const struct launch_case *launch, u32 line,
                  const char *text) {
    char *end = NULL;
    f64 value = strtod(text, &end);
    if (end != text && *end == 0) return value;
    return (f64)launch_integer(set, launch, line, text);
}

u32 launch_find(const struct launch_case *launch, const char *name) {
    for (u32 i = 0; i < launch->n_buffers; i++) {
        if (strcmp(launch->buffers[i].name, name) == 0) return i;
    }
    return LAUNCH_BUFFERS_MAX;
}

// --- loading ---

static const char *const statement_names[] = {
    "module", "seed", "let",   "buffer", "plant",    "reference", "fail",    "power",
    "kernel", "grid", "block", "shared", "resident", "param",     "compare", "same"};

static void add_statement(struct launch_set *set, const struct lines *lines) {
    if (set->n_statements == LAUNCH_STATEMENTS_MAX) fail_at(set->path, lines->number, "too long");
    struct launch_statement *statement = &set->statements[set->n_statements++];
    statement->line = lines->number;
    statement->n_words = lines->n_words;
    for (u32 i = 0; i < lines->n_words; i++) {
        usize len = strlen(lines->words[i]) + 1;
        statement->words[i] = need(len, 1);
        memcpy(statement->words[i], lines->words[i], len);
    }
}

static void add_case(struct launch_set *set, const struct lines *lines) {
    if (set->n_cases == LAUNCH_CASES_MAX) fail_at(set->path, lines->number, "too many cases");
    if (lines->n_words != set->n_columns + 1) {
        fail_at(set->path, lines->number, "%u values for %u columns", lines->n_words - 1,
                set->n_columns);
    }
    for (u32 i = 0; i < set->n_columns; i++) {
        set->cases[set->n_cases][i] =
            expression(lines->words[i + 1], NULL, set->path, lines->number);
    }
    set->case_lines[set->n_cases++] = lines->number;
}

static void take_name(const struct launch_set *set, u32 line, char out[NAME_BYTES],
                      const char *name) {
    usize len = strlen(name);
    if (len == 0 || len >= NAME_BYTES) fail_at(set->path, line, "the name %s is too long", name);
    memcpy(out, name, len + 1);
}

static void load_line(struct launch_set *set, struct lines *lines) {
    char **words = lines->words;
    if (strcmp(words[0], "case") == 0) {
        add_case(set, lines);
    } else if (strcmp(words[0], "shape") == 0) {
        if (lines->n_words - 1 > LAUNCH_COLUMNS_MAX) fail_at(set->path, lines->number, "too wide");
        set->n_columns = lines->n_words - 1;
        for (u32 i = 0; i < set->n_columns; i++) {
            take_name(set, lines->number, set->columns[i], words[i + 1]);
        }
    } else if (strcmp(words[0], "module") == 0 && lines->n_words == 2) {
        take_name(set, lines->number, set->module, words[1]);
    } else if (strcmp(words[0], "seed") == 0 && lines->n_words == 2) {
        set->seed = expression(words[1], NULL, set->path, lines->number);
    } else {
        u32 i = 0;
        while (i < COUNT_OF(statement_names) && strcmp(words[0], statement_names[i]) != 0) i++;
        if (i == COUNT_OF(statement_names)) {
            fail_at(set->path, lines->number, "unknown statement \"%s\"", words[0]);
        }
        set->says_power |= strcmp(words[0], "power") == 0;
        add_statement(set, lines);
    }
}

struct launch_set *launch_load(const char *path, const char *text) {
    struct launch_set *set = need(1, sizeof *set);
    struct lines *lines = need(1, sizeof *lines);
    snprintf(set->path, sizeof set->path, "%s", path);
    lines_begin(lines, set->path, text);
    if (!lines_next(lines) || strcmp(lines->words[0], "launches") != 0 || lines->n_words != 2 ||
        strcmp(lines->words[1], "1") != 0) {
        fail_at(path, 1, "not a launch file: the first line is \"launches 1\"");
    }
    while (lines_next(lines)) load_line(set, lines);
    if (set->module[0] == 0) fail_at(path, 1, "no module");
    if (set->n_cases == 0) fail_at(path, 1, "no case");
    if (!set->says_power) fail_at(path, 1, "no power statement (\"power none\" says so)");
    free(lines);
    return set;
}

void launch_free(struct launch_set *set) {
    for (u32 i = 0; i < set->n_statements; i++) {
        for (u32 k = 0; k < set->statements[i].n_words; k++) free(set->statements[i].words[k]);
    }
    free(set);
}

// --- preparation ---

struct preparation {
    const struct launch_set *set;
    struct launch_case *launch;
    const struct launch_statement *statement;
    u32 case_idx;
};

static _Noreturn void malformed(const struct preparation *p, const char *what) {
    fail_at(p->set->path, p->statement->line, "%s: %s", p->statement->words[0], what);
}

static const char *word(const struct preparation *p, u32 index) {
    if (index >= p->statement->n_words) malformed(p, "a word is missing");
    return p->statement->words[index];
}

// The expression that fills the rest of the line, with whatever blanks.
static i64 rest_of_line(const struct preparation *p, u32 index) {
    char text[LINE_BYTES] = "";
    usize used = 0;
    word(p, index);
    for (u32 i = index; i < p->statement->n_words; i++) {
        used += (usize)snprintf(text + used, sizeof text - used, "%s ", word(p, i));
    }
    return launch_integer(p->set, p->launch, p->statement->line, text);
}

static i64 integer(const struct preparation *p, u32 index) {
    return launch_integer(p->set, p->launch, p->statement->line, word(p, index));
}

static u32 buffer_word(const struct preparation *p, u32 index) {
    u32 found = launch_find(p->launch, word(p, index));
    if (found == LAUNCH_BUFFERS_MAX) malformed(p, "unknown buffer");
    return found;
}

// "[rows, stride]": the product is the count, the last factor the row's length.
static void take_dimensions(const struct preparation *p, const char *text,
                            struct launch_buffer *buffer) {
    char one[LINE_BYTES];
    usize len = strlen(text);
    if (len < 3 || text[0] != '[' || text[len - 1] != ']') malformed(p, "dimensions are [a, b]");
    buffer->count = 1;
    u32 depth = 0, used = 0;
    for (usize i = 1; i < len; i++) {
        if (text[i] == '(') depth++;
        if (text[i] == ')') depth--;
        bool ends = i == len - 1 || (text[i] == ',' && depth == 0);
        if (!ends) {
            one[used++] = text[i];
            continue;
        }
        one[used] = 0;
        used = 0;
        i64 value = launch_integer(p->set, p->launch, p->statement->line, one);
        if (value < 1 || value > (i64)LAUNCH_BUFFER_BYTES_MAX) malformed(p, "a dimension below 1");
        buffer->last_dimension = (u64)value;
        buffer->count *= (u64)value;
        if (buffer->count > LAUNCH_BUFFER_BYTES_MAX) malformed(p, "a buffer that is too large");
    }
}

static void make_buffer(struct preparation *p) {
    static const char *const roles[] = {"in", "out", "inout", "scratch", "host"};
    struct launch_case *launch = p->launch;
    if (launch->n_buffers == LAUNCH_BUFFERS_MAX) malformed(p, "too many buffers");
    struct launch_buffer *buffer = &launch->buffers[launch->n_buffers];
    take_name(p->set, p->statement->line, buffer->name, word(p, 1));
    if (launch_find(launch, buffer->name) != LAUNCH_BUFFERS_MAX) malformed(p, "declared twice");
    u32 role = 0, type = 0, at = 5;
    while (role < COUNT_OF(roles) && strcmp(word(p, 2), roles[role]) != 0) role++;
    while (type < ELEMENT_LIMIT && strcmp(word(p, 3), elements[type].name) != 0) type++;
    if (role == COUNT_OF(roles) || type == ELEMENT_LIMIT) malformed(p, "unknown role or type");
    buffer->role = role;
    buffer->type = type;
    buffer->guard = GUARD_DEFAULT;
    take_dimensions(p, word(p, 4), buffer);
    u64 used = buffer->last_dimension;
    for (;; at += 2) {
        const char *key = at < p->statement->n_words ? p->statement->words[at] : "";
        if (strcmp(key, "used") == 0) {
            used = (u64)integer(p, at + 1);
        } else if (strcmp(key, "guard") == 0) {
            buffer->guard = (u32)integer(p, at + 1);
        } else if (strcmp(key, "offset") == 0) {
            buffer->misalign = (u32)integer(p, at + 1);
        } else {
            break;
        }
    }
    buffer->bytes = buffer->count * element_bytes(type);
    if (buffer->bytes > LAUNCH_BUFFER_BYTES_MAX) malformed(p, "a buffer that is too large");
    buffer->contents = need(buffer->bytes, 1);
    buffer->defined = need(buffer->bytes, 1);
    buffer->expected = need(buffer->bytes, 1);
    buffer->written = need(buffer->bytes, 1);
    launch->n_buffers++;
    bool poisoned = role == BUFFER_OUT || role == BUFFER_SCRATCH || role == BUFFER_HOST;
    if (at >= p->statement->n_words && poisoned) {
        memset(buffer->contents, 255, buffer->bytes);
        return;
    }
    u64 seed = (u64)p->set->seed * 1000003 + p->case_idx * 1009 + launch->n_buffers;
    if (role == BUFFER_OUT && strcmp(word(p, at), "poison") != 0) {
        malformed(p, "an output has no contents; is it inout?");
    }
    fill_buffer(p->set, launch, buffer, p->statement, at, used, seed);
}

static void plant(struct preparation *p) {
    struct launch_buffer *buffer = &p->launch->buffers[buffer_word(p, 1)];
    if (p->statement->n_words > 4) {
        if (strcmp(word(p, 4), "when") != 0) malformed(p, "\"when\" is expected behind the bits");
        if (rest_of_line(p, 5) == 0) return;
    }
    i64 element = integer(p, 2);
    if (element < 0 || (u64)element >= buffer->count) malformed(p, "beyond the buffer");
    u64 bits = (u64)integer(p, 3);
    u32 bytes = element_bytes(buffer->type);
    memcpy(buffer->contents + (u64)element * bytes, &bits, bytes);
    memset(buffer->defined + (u64)element * bytes, 1, bytes);
}

static void take_fail(struct preparation *p) {
    struct launch_case *launch = p->launch;
    launch->has_fail = true;
    launch->fail_buffer = buffer_word(p, 1);
    launch->fail_index = (u32)integer(p, 2);
    launch->fail_value = (u64)integer(p, 3);
    if (launch->fail_index >= launch->buffers[launch->fail_buffer].count) malformed(p, "beyond");
}

static void take_power(struct preparation *p) {
    struct launch_case *launch = p->launch;
    if (p->statement->n_words == 2 && strcmp(word(p, 1), "none") == 0) return;
    launch->has_power = true;
    launch->power_buffer = buffer_word(p, 1);
    launch->power_index = (u32)integer(p, 2);
    launch->power_active = (u32)integer(p, 3);
    launch->power_other = (u32)integer(p, 4);
    struct launch_buffer *buffer = &launch->buffers[launch->power_buffer];
    if (element_bytes(buffer->type) != 4 || launch->power_index >= buffer->count ||
        launch->power_active == launch->power_other) {
        malformed(p, "a 32-bit word of a buffer and two values are wanted");
    }
    store_u32(buffer->contents + 4 * (usize)launch->power_index, launch->power_active);
}

static void take_three(struct preparation *p, u32 out[3]) {
    if (p->statement->n_words < 2 || p->statement->n_words > 4) malformed(p, "one to three values");
    for (u32 i = 0; i < 3; i++) {
        i64 value = i + 1 < p->statement->n_words ? integer(p, i + 1) : 1;
        if (value < 1 || value > 0x7fffffff) malformed(p, "a value below 1");
        out[i] = (u32)value;
    }
}

static void take_param(struct preparation *p, struct launch_call *call) {
    if (call->n_params == LAUNCH_PARAMS_MAX) malformed(p, "too many parameters");
    struct launch_param *param = &call->params[call->n_params++];
    take_name(p->set, p->statement->line, param->name, word(p, 1));
    u32 type = 0;
    while (type < ELEMENT_LIMIT && strcmp(word(p, 2), elements[type].name) != 0) type++;
    if (type == ELEMENT_LIMIT) malformed(p, "unknown type");
    param->bytes = element_bytes(type);
    if (p->statement->n_words < 5) malformed(p, "a wrong number of words");
    const char *text = word(p, 4);
    if (strcmp(word(p, 3), "value") == 0) {
        bool is_float = type == ELEMENT_F32;
        f64 number = is_float ? launch_number(p->set, p->launch, p->statement->line, text) : 0;
        param->value = is_float ? f32_bits((f32)number) : (u64)rest_of_line(p, 4);
        return;
    }
    if (strcmp(word(p, 3), "address") != 0 || type != ELEMENT_U64) malformed(p, "unknown kind");
    char name[NAME_BYTES];
    usize len = strcspn(text, "+");
    if (len >= NAME_BYTES) malformed(p, "a long name");
    memcpy(name, text, len);
    name[len] = 0;
    param->is_address = true;
    param->buffer = launch_find(p->launch, name);
    if (param->buffer == LAUNCH_BUFFERS_MAX) malformed(p, "unknown buffer");
    if (text[len] == '+') {
        param->value = (u64)launch_integer(p->set, p->launch, p->statement->line, text + len + 1);
    }
}

static void take_compare(struct preparation *p) {
    struct launch_buffer *buffer = &p->launch->buffers[buffer_word(p, 1)];
    buffer->has_slack = strcmp(word(p, 2), "within") == 0;
    buffer->by_bound = buffer->has_slack || strcmp(word(p, 2), "bound") == 0;
    if (!buffer->by_bound && strcmp(word(p, 2), "bits") != 0) {
        malformed(p, "bits, bound or within");
    }
    if (!buffer->by_bound) return;
    if (buffer->has_slack) {
        const struct launch_buffer *slack = &p->launch->buffers[buffer_word(p, 3)];
        if (slack->type != ELEMENT_F32 || slack->count != buffer->count) {
            malformed(p, "the bounds are an f32 for each element");
        }
        buffer->slack = (u32)(slack - p->launch->buffers);
    } else {
        buffer->absolute = launch_number(p->set, p->launch, p->statement->line, word(p, 3));
        buffer->relative = launch_number(p->set, p->launch, p->statement->line, word(p, 4));
    }
    if (buffer->type != ELEMENT_F16 && buffer->type != ELEMENT_BF16 &&
        buffer->type != ELEMENT_F32) {
        malformed(p, "a bound for a type that is no float");
    }
}

// "same PART WHOLE FIRST"
static void take_same(struct preparation *p) {
    struct launch_case *launch = p->launch;
    if (launch->n_same == LAUNCH_SAME_MAX) malformed(p, "too many of these");
    u32 part = buffer_word(p, 1), whole = buffer_word(p, 2);
    i64 first = integer(p, 3);
    const struct launch_buffer *a = &launch->buffers[part], *b = &launch->buffers[whole];
    bool fits = first >= 0 && (u64)first <= b->count && a->count <= b->count - (u64)first;
    if (a->type != b->type || !fits) malformed(p, "of another type, or beyond the buffer");
    launch->same[launch->n_same].part = part;
    launch->same[launch->n_same].whole = whole;
    launch->same[launch->n_same++].first = (u64)first;
}

static void take_let(struct preparation *p) {
    if (p->statement->n_words < 4 || strcmp(word(p, 2), "=") != 0) malformed(p, "NAME = EXPR");
    variables_set(&p->launch->variables, word(p, 1), rest_of_line(p, 3));
}

static void execute(struct preparation *p) {
    const char *name = p->statement->words[0];
    struct launch_case *launch = p->launch;
    struct launch_call *call = launch->n_calls > 0 ? &launch->calls[launch->n_calls - 1] : NULL;
    if (strcmp(name, "let") == 0) {
        take_let(p);
    } else if (strcmp(name, "buffer") == 0) {
        make_buffer(p);
    } else if (strcmp(name, "plant") == 0) {
        plant(p);
    } else if (strcmp(name, "fail") == 0) {
        take_fail(p);
    } else if (strcmp(name, "power") == 0) {
        take_power(p);
    } else if (strcmp(name, "compare") == 0) {
        take_compare(p);
    } else if (strcmp(name, "same") == 0) {
        take_same(p);
    } else if (strcmp(name, "kernel") == 0) {
        if (launch->n_calls == LAUNCH_CALLS_MAX) malformed(p, "too many calls");
        call = &launch->calls[launch->n_calls++];
        *call = (struct launch_call){.resident = RESIDENT_DEFAULT};
        take_name(p->set, p->statement->line, call->kernel, word(p, 1));
    } else if (strcmp(name, "reference") == 0) { // when all buffers are there
    } else if (call == NULL) {
        malformed(p, "no kernel yet");
    } else if (strcmp(name, "grid") == 0) {
        take_three(p, call->grid);
    } else if (strcmp(name, "block") == 0) {
        take_three(p, call->block);
    } else if (strcmp(name, "shared") == 0) {
        call->shared_bytes = (u32)integer(p, 1);
    } else if (strcmp(name, "resident") == 0) {
        call->resident = (u32)integer(p, 1);
    } else {
        take_param(p, call);
    }
}

// The expected images, from buffers whose undefined bytes are `poison`.
static void run_reference(struct preparation *p, u8 poison) {
    struct launch_case *launch = p->launch;
    for (u32 i = 0; i < launch->n_buffers; i++) {
        struct launch_buffer *buffer = &launch->buffers[i];
        for (u64 k = 0; k < buffer->bytes; k++) {
            buffer->expected[k] = buffer->defined[k] ? buffer->contents[k] : poison;
        }
    }
    launch->refused = false;
    for (u32 i = 0; i < p->set->n_statements; i++) {
        p->statement = &p->set->statements[i];
        if (strcmp(p->statement->words[0], "reference") != 0) continue;
        struct operator_call call = {launch, p->set, p->statement};
        launch->refused |= operator_run(&call) != 0;
    }
}

// Invariant C1: what the reference has written, from two runs over different poison.
static void find_written(struct preparation *p, u8 *const first[]) {
    struct launch_case *launch = p->launch;
    for (u32 i = 0; i < launch->n_buffers; i++) {
        struct launch_buffer *buffer = &launch->buffers[i];
        assert(first[i] != NULL);
        for (u64 k = 0; k < buffer->bytes; k++) {
            u8 a = first[i][k], b = buffer->expected[k];
            if (a != b && (a != 0xff || b != 0x00) && !launch->refused) {
                fail_at(p->set->path, p->set->case_lines[p->case_idx],
                        "a reference operator has read undefined bytes: %s, byte %llu",
                        buffer->name, k);
            }
            buffer->written[k] = a == b && (!buffer->defined[k] || a != buffer->contents[k]);
        }
        memcpy(buffer->expected, first[i], buffer->bytes);
        free(first[i]);
    }
}

// What operators have written to undefined bytes of `in` buffers is there before the first call:
// the input of one operator may be the result of another.
static void adopt_inputs(struct launch_case *launch) {
    for (u32 i = 0; i < launch->n_buffers; i++) {
        struct launch_buffer *buffer = &launch->buffers[i];
        for (u64 k = 0; buffer->role == BUFFER_IN && k < buffer->bytes; k++) {
            if (!buffer->written[k] || buffer->defined[k]) continue;
            buffer->contents[k] = buffer->expected[k];
            buffer->defined[k] = 1;
            buffer->written[k] = 0;
        }
    }
}

struct launch_case *launch_prepare(const struct launch_set *set, u32 case_idx) {
    struct launch_case *launch = need(1, sizeof *launch);
    struct preparation p = {.set = set, .launch = launch, .case_idx = case_idx};
    for (u32 i = 0; i < set->n_columns; i++) {
        variables_set(&launch->variables, set->columns[i], set->cases[case_idx][i]);
    }
    for (u32 i = 0; i < set->n_statements; i++) {
        p.statement = &set->statements[i];
        execute(&p);
    }
    if (launch->n_calls == 0) fail_at(set->path, 1, "no kernel");
    u8 *first[LAUNCH_BUFFERS_MAX] = {0};
    run_reference(&p, 0xff);
    for (u32 i = 0; i < launch->n_buffers; i++) {
        first[i] = need(launch->buffers[i].bytes, 1);
        memcpy(first[i], launch->buffers[i].expected, launch->buffers[i].bytes);
    }
    run_reference(&p, 0x00);
    find_written(&p, first);
    adopt_inputs(launch);
    if (launch->refused && !launch->has_fail) {
        fail_at(set->path, set->case_lines[case_idx],
                "a reference operator refuses its input, and no fail statement says what then");
    }
    return launch;
}

void launch_case_free(struct launch_case *launch) {
    for (u32 i = 0; i < launch->n_buffers; i++) {
        free(launch->buffers[i].contents);
        free(launch->buffers[i].defined);
        free(launch->buffers[i].expected);
        free(launch->buffers[i].written);
    }
    free(launch);
}

// --- comparison ---

void launch_place(const struct launch_buffer *buffer, u64 element, char *text, usize text_bytes) {
    if (buffer->last_dimension == buffer->count) {
        snprintf(text, text_bytes, "%s element %llu", buffer->name, element);
    } else {
        snprintf(text, text_bytes, "%s row %llu element %llu", buffer->name,
                 element / buffer->last_dimension, element % buffer->last_dimension);
    }
}

static bool close_enough(const struct launch_case *launch, const struct launch_buffer *buffer,
                         u64 element, const u8 *got, const u8 *want) {
    f64 a = element_value(buffer->type, got), b = element_value(buffer->type, want);
    f64 bound = buffer->absolute + buffer->relative * fabs(b);
    if (buffer->has_slack) bound = load_f32(launch->buffers[buffer->slack].expected + 4 * element);
    return fabs(a - b) <= bound;
}

static bool compare_failed(const struct launch_case *launch, const u8 *got, char *message,
                           usize message_bytes) {
    const struct launch_buffer *buffer = &launch->buffers[launch->fail_buffer];
    u32 bytes = element_bytes(buffer->type);
    u64 found = 0;
    memcpy(&found, got + (usize)launch->fail_index * bytes, bytes);
    if (found == launch->fail_value) return true;
    snprintf(message, message_bytes,
             "the reference refuses this input; %s[%u] is 0x%llx, not 0x%llx", buffer->name,
             launch->fail_index, found, launch->fail_value);
    return false;
}

bool launch_compare(const struct launch_case *launch, u32 index, const u8 *got, char *message,
                    usize message_bytes) {
    const struct launch_buffer *buffer = &launch->buffers[index];
    if (buffer->role == BUFFER_SCRATCH || buffer->role == BUFFER_HOST) return true;
    if (launch->refused && buffer->role != BUFFER_IN) {
        return index != launch->fail_buffer || compare_failed(launch, got, message, message_bytes);
    }
    u32 bytes = element_bytes(buffer->type);
    u64 n_wrong = 0, first = 0;
    for (u64 i = 0; i < buffer->count; i++) {
        const u8 *a = got + i * bytes, *b = buffer->expected + i * bytes;
        if (memcmp(a, b, bytes) == 0) continue;
        bool bounded = buffer->by_bound && buffer->written[i * bytes] != 0;
        if (bounded && close_enough(launch, buffer, i, a, b)) continue;
        if (n_wrong++ == 0) first = i;
    }
    if (n_wrong == 0) return true;
    char place[160];
    u64 a = 0, b = 0;
    memcpy(&a, got + first * bytes, bytes);
    memcpy(&b, buffer->expected + first * bytes, bytes);
    launch_place(buffer, first, place, sizeof place);
    snprintf(message, message_bytes,
             "%s is 0x%0*llx (%.9g), expected 0x%0*llx (%.9g); %llu of %llu elements differ", place,
             (int)(2 * bytes), a, element_value(buffer->type, got + first * bytes),
             (int)(2 * bytes), b, element_value(buffer->type, buffer->expected + first * bytes),
             n_wrong, buffer->count);
    return false;
}

bool launch_compare_same(const struct launch_case *launch, u32 index, const u8 *part,
                         const u8 *whole, char *message, usize message_bytes) {
    const struct launch_buffer *a = &launch->buffers[launch->same[index].part];
    const struct launch_buffer *b = &launch->buffers[launch->same[index].whole];
    u32 bytes = element_bytes(a->type);
    const u8 *other = whole + launch->same[index].first * bytes;
    u64 i = 0;
    while (i < a->count && memcmp(part + i * bytes, other + i * bytes, bytes) == 0) i++;
    if (i == a->count) return true;
    char place[160];
    launch_place(a, i, place, sizeof place);
    snprintf(message, message_bytes, "%s is %.9g, but %.9g in %s", place,
             element_value(a->type, part + i * bytes), element_value(a->type, other + i * bytes),
             b->name);
    return false;
}
