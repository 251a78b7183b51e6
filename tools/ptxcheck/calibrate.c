// SPDX-License-Identifier: Apache-2.0
// Calibration tables (docs/ptxcheck.md): instruction forms, inputs, and the results that a card
// gave. One function writes the module that the card executes and that the interpreter replays, so
// both run the same text.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "run.h"

#define FORMS_MAX 1024
#define OPERANDS_MAX 24
#define BODY_BYTES 4096
#define WARP 32

enum class { CLASS_B16, CLASS_B32, CLASS_B64, CLASS_F32, CLASS_F64, CLASS_PRED, CLASS_LIMIT };

struct form {
    char name[NAME_BYTES];
    u32 line;
    bool is_warp, by_bound;
    f64 absolute, relative;
    u32 in[OPERANDS_MAX], out[OPERANDS_MAX], n_in, n_out;
    char body[BODY_BYTES];
    u32 n_rows, capacity;
    u64 *values;    // [n_rows, n_in + n_out]
    u32 *row_lines; // [n_rows]
};

struct table {
    const char *path;
    char date[64], card[64], driver[64];
    struct form *forms;
    u32 n_forms;
};

// --- reading ---

static void take_classes(const struct table *table, const struct lines *lines, u32 *out, u32 *n) {
    static const char *const names[] = {"b16", "b32", "b64", "f32", "f64", "pred"};
    for (u32 i = 1; i < lines->n_words; i++) {
        u32 class = 0;
        while (class < CLASS_LIMIT && strcmp(lines->words[i], names[class]) != 0) class ++;
        if (class == CLASS_LIMIT || *n == OPERANDS_MAX) {
            fail_at(table->path, lines->number, "unknown class %s, or too many", lines->words[i]);
        }
        out[(*n)++] = class;
    }
}

static void take_row(const struct table *table, struct form *form, const struct lines *lines) {
    u32 width = form->n_in + form->n_out, n = 0;
    if (form->n_rows == form->capacity) {
        form->capacity = MAX(64u, 2 * form->capacity);
        form->values = need_more(form->values, (usize)form->capacity * width, sizeof(u64));
        form->row_lines = need_more(form->row_lines, form->capacity, sizeof(u32));
    }
    u64 *row = form->values + (usize)form->n_rows * width;
    memset(row, 0, width * sizeof(u64));
    bool complete = false;
    for (u32 i = 1; i < lines->n_words; i++) {
        if (strcmp(lines->words[i], ":") == 0) {
            complete = true;
            if (n != form->n_in) break;
            continue;
        }
        char *end = NULL;
        if (n == width) break;
        row[n++] = strtoull(lines->words[i], &end, 16);
        if (*end != 0) fail_at(table->path, lines->number, "no hex value: %s", lines->words[i]);
    }
    if (n != (complete ? width : form->n_in)) {
        fail_at(table->path, lines->number, "%u inputs and %u results are wanted", form->n_in,
                form->n_out);
    }
    form->row_lines[form->n_rows++] = lines->number;
}

static void append_body(const struct table *table, struct form *form, const struct lines *lines) {
    usize used = strlen(form->body);
    usize len = strcspn(lines->raw, "\n");
    const char *body = strstr(lines->raw, "body") + 4;
    len -= (usize)(body - lines->raw);
    if (used + len + 6 > BODY_BYTES) fail_at(table->path, lines->number, "a long body");
    memcpy(form->body + used, "   ", 3);
    memcpy(form->body + used + 3, body, len);
    memcpy(form->body + used + 3 + len, "\n", 2);
}

static void join_words(char out[64], const struct lines *lines) {
    usize used = 0;
    for (u32 i = 1; i < lines->n_words && used < 63; i++) {
        used += (usize)snprintf(out + used, 64 - used, "%s%s", i > 1 ? " " : "", lines->words[i]);
    }
}

static void take_form(struct table *table, const struct lines *lines) {
    bool known = lines->n_words == 3 &&
                 (strcmp(lines->words[2], "thread") == 0 || strcmp(lines->words[2], "warp") == 0);
    if (!known || table->n_forms == FORMS_MAX || strlen(lines->words[1]) >= NAME_BYTES) {
        fail_at(table->path, lines->number, "form NAME thread|warp; at most %d", FORMS_MAX);
    }
    struct form *form = &table->forms[table->n_forms++];
    memcpy(form->name, lines->words[1], strlen(lines->words[1]) + 1);
    form->is_warp = lines->words[2][0] == 'w';
    form->line = lines->number;
}

static void take_line(struct table *table, const struct lines *lines) {
    const char *name = lines->words[0];
    struct form *form = table->n_forms > 0 ? &table->forms[table->n_forms - 1] : NULL;
    if (strcmp(name, "date") == 0) {
        join_words(table->date, lines);
    } else if (strcmp(name, "card") == 0) {
        join_words(table->card, lines);
    } else if (strcmp(name, "driver") == 0) {
        join_words(table->driver, lines);
    } else if (strcmp(name, "form") == 0) {
        take_form(table, lines);
    } else if (form == NULL) {
        fail_at(table->path, lines->number, "no form yet");
    } else if (strcmp(name, "in") == 0 && form->n_rows == 0) {
        take_classes(table, lines, form->in, &form->n_in);
    } else if (strcmp(name, "out") == 0 && form->n_rows == 0) {
        take_classes(table, lines, form->out, &form->n_out);
    } else if (strcmp(name, "compare") == 0 && lines->n_words == 4) {
        form->by_bound = true;
        form->absolute = strtod(lines->words[2], NULL);
        form->relative = strtod(lines->words[3], NULL);
    } else if (strcmp(name, "body") == 0) {
        append_body(table, form, lines);
    } else if (strcmp(name, "row") == 0) {
        take_row(table, form, lines);
    } else {
        fail_at(table->path, lines->number, "unknown statement %s", name);
    }
}

static struct table *load(const char *path) {
    struct table *table = need(1, sizeof *table);
    struct lines *lines = need(1, sizeof *lines);
    char *text = file_read(path, NULL);
    table->path = path;
    table->forms = need(FORMS_MAX, sizeof(struct form));
    lines_begin(lines, path, text);
    if (!lines_next(lines) || strcmp(lines->words[0], "calibration") != 0) {
        fail_at(path, 1, "not a calibration table: the first line is \"calibration 1\"");
    }
    while (lines_next(lines)) take_line(table, lines);
    for (u32 i = 0; i < table->n_forms; i++) {
        struct form *form = &table->forms[i];
        if (form->n_out == 0 || form->n_rows == 0 || (form->is_warp && form->n_rows % WARP != 0)) {
            fail_at(path, form->line, "%s: no results, no rows, or rows that fill no warp",
                    form->name);
        }
    }
    free(lines);
    free(text);
    return table;
}

static void table_free(struct table *table) {
    for (u32 i = 0; i < table->n_forms; i++) {
        free(table->forms[i].values);
        free(table->forms[i].row_lines);
    }
    free(table->forms);
    free(table);
}

// --- the module ---

static const char *const register_types[] = {"b16", "b32", "b64", "f32", "f64", "pred"};

static void write_input(FILE *out, u32 class, u32 index) {
    fprintf(out, "    ld.global.u64 %%slot, [%%from+%u];\n", 8 * index);
    switch (class) {
    case CLASS_B16: fprintf(out, "    cvt.u16.u64 %%i%u, %%slot;\n", index); break;
    case CLASS_B32: fprintf(out, "    cvt.u32.u64 %%i%u, %%slot;\n", index); break;
    case CLASS_F32:
        fprintf(out, "    cvt.u32.u64 %%word, %%slot;\n    mov.b32 %%i%u, %%word;\n", index);
        break;
    case CLASS_PRED: fprintf(out, "    setp.ne.u64 %%i%u, %%slot, 0;\n", index); break;
    default: fprintf(out, "    mov.b64 %%i%u, %%slot;\n", index); break;
    }
}

static void write_output(FILE *out, u32 class, u32 index) {
    switch (class) {
    case CLASS_B16: fprintf(out, "    cvt.u64.u16 %%slot, %%o%u;\n", index); break;
    case CLASS_B32: fprintf(out, "    cvt.u64.u32 %%slot, %%o%u;\n", index); break;
    case CLASS_F32:
        fprintf(out, "    mov.b32 %%word, %%o%u;\n    cvt.u64.u32 %%slot, %%word;\n", index);
        break;
    case CLASS_PRED: fprintf(out, "    selp.u64 %%slot, 1, 0, %%o%u;\n", index); break;
    default: fprintf(out, "    mov.b64 %%slot, %%o%u;\n", index); break;
    }
    fprintf(out, "    st.global.u64 [%%to+%u], %%slot;\n", 8 * index);
}

static void write_form(FILE *out, const struct form *form) {
    fprintf(out, ".visible .entry form_%s(.param .u64 in, .param .u64 out)\n{\n", form->name);
    fprintf(out, "    .reg .b64 %%from, %%to, %%slot;\n    .reg .b32 %%word, %%index, %%block;\n");
    for (u32 k = 0; k < form->n_in; k++) {
        fprintf(out, "    .reg .%s %%i%u;\n", register_types[form->in[k]], k);
    }
    for (u32 k = 0; k < form->n_out; k++) {
        fprintf(out, "    .reg .%s %%o%u;\n", register_types[form->out[k]], k);
    }
    fprintf(out, "    .reg .b16 %%h<8>;\n    .reg .b32 %%t<16>;\n    .reg .b64 %%d<8>;\n"
                 "    .reg .f32 %%f<8>;\n    .reg .pred %%p<8>;\n"
                 "    .shared .align 16 .b8 sm[4096];\n");
    fprintf(out, "    mov.u32 %%index, %%tid.x;\n    mov.u32 %%block, %%ctaid.x;\n"
                 "    mad.lo.u32 %%index, %%block, 32, %%index;\n");
    fprintf(out,
            "    ld.param.u64 %%from, [in];\n"
            "    mad.wide.u32 %%from, %%index, %u, %%from;\n",
            8 * form->n_in);
    fprintf(out, "    ld.param.u64 %%to, [out];\n    mad.wide.u32 %%to, %%index, %u, %%to;\n",
            8 * form->n_out);
    for (u32 k = 0; k < form->n_in; k++) write_input(out, form->in[k], k);
    fprintf(out, "    bar.warp.sync 0xffffffff;\n    {\n%s    }\n    bar.warp.sync 0xffffffff;\n",
            form->body);
    for (u32 k = 0; k < form->n_out; k++) write_output(out, form->out[k], k);
    fprintf(out, "    ret;\n}\n\n");
}

static void write_module(FILE *out, const struct table *table) {
    fprintf(out, ".version 7.8\n.target sm_89\n.address_size 64\n\n");
    for (u32 i = 0; i < table->n_forms; i++) write_form(out, &table->forms[i]);
}

int calibration_module_command(const char *path) {
    struct table *table = load(path);
    write_module(stdout, table);
    table_free(table);
    return 0;
}

// --- replay ---

static bool same(const struct form *form, u32 output, u64 got, u64 want) {
    if (got == want) return true;
    if (!form->by_bound || form->out[output] == CLASS_PRED) return false;
    f64 a = f32_from_bits((u32)got), b = f32_from_bits((u32)want);
    return fabs(a - b) <= form->absolute + form->relative * fabs(b);
}

static void print_row(const struct table *table, const struct form *form, u32 row, u32 output,
                      u64 got, u64 want) {
    const u64 *values = form->values + (usize)row * (form->n_in + form->n_out);
    printf("%s:%u: %s:", table->path, form->row_lines[row], form->name);
    for (u32 k = 0; k < form->n_in; k++) printf(" %llx", values[k]);
    printf(": result %u is %llx, the card gave %llx\n", output, got, want);
}

// Returns the number of rows that differ.
static u32 replay_form(const struct table *table, const struct form *form,
                       const struct module *module) {
    u32 width = form->n_in + form->n_out, rows = (u32)round_up(form->n_rows, WARP), n_bad = 0;
    u64 in_bytes = 8ull * MAX(form->n_in, 1u) * rows, out_bytes = 8ull * form->n_out * rows;
    u8 *in = need(in_bytes, 1), *flags = need(MAX(in_bytes, out_bytes), 1);
    u8 *undefined = need(out_bytes, 1);
    memset(flags, 1, in_bytes);
    for (u32 r = 0; r < rows; r++) {
        const u64 *row = form->values + (usize)MIN(r, form->n_rows - 1) * width;
        memcpy(in + 8ull * form->n_in * r, row, 8ull * form->n_in);
    }
    char name[NAME_BYTES + 8];
    snprintf(name, sizeof name, "form_%s", form->name);
    const struct kernel *kernel = ptx_kernel(module, name);
    struct machine *machine = machine_new(module);
    const struct region *from = machine_buffer(machine, "in", ROLE_IN, in_bytes, 0, in, flags);
    const struct region *to =
        machine_buffer(machine, "out", ROLE_OUT, out_bytes, 0, undefined, undefined);
    memcpy(machine->param, &from->address, 8);
    memcpy(machine->param + 8, &to->address, 8);
    struct launch_config config = {
        .grid = {rows / WARP, 1, 1}, .block = {WARP, 1, 1}, .resident = 1, .seed = 1};
    machine_launch(machine, kernel, &config);
    for (u32 i = 0; i < machine->n_reports; i++) {
        printf("%s:%u: %s: %s\n", table->path, form->line, form->name, machine->reports[i].text);
        n_bad++;
    }
    for (u32 r = 0; r < form->n_rows; r++) {
        const u64 *want = form->values + (usize)r * width + form->n_in;
        bool good = true;
        for (u32 k = 0; k < form->n_out && good; k++) {
            u64 got = load_u64(to->data + 8ull * (form->n_out * r + k));
            good = same(form, k, got, want[k]);
            if (!good && n_bad < 8) print_row(table, form, r, k, got, want[k]);
        }
        n_bad += !good;
    }
    machine_free(machine);
    free(in);
    free(flags);
    free(undefined);
    return n_bad;
}

int calibrate_command(const char *path) {
    struct table *table = load(path);
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);
    if (stream == NULL) fail("no memory");
    write_module(stream, table);
    fclose(stream);
    struct module *module = ptx_parse("calibration module", text);
    u32 n_bad_forms = 0, n_rows = 0;
    for (u32 i = 0; i < table->n_forms; i++) {
        n_rows += table->forms[i].n_rows;
        n_bad_forms += replay_form(table, &table->forms[i], module) > 0;
    }
    printf("%s (%s, %s, driver %s): %u of %u forms match, %u rows\n", path, table->date,
           table->card, table->driver, table->n_forms - n_bad_forms, table->n_forms, n_rows);
    ptx_free(module);
    table_free(table);
    return n_bad_forms > 0 ? EXIT_FOUND : 0;
}
