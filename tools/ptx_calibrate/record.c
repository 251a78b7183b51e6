// SPDX-License-Identifier: Apache-2.0
// record FORMS MODULE.ptx: runs each instruction form of a forms file on the card and writes the
// completed table to stdout (docs/ptxcheck.md, Calibration tables). Each form runs twice; results
// that differ between the runs end the program.
//
// A row's words travel as u64, input j of thread t at in + 8 * (n_in * t + j); a thread form is
// padded to whole warps by repeating its last row.
#include "driver.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define WORDS_MAX 16  // inputs or outputs of a form
#define ROWS_MAX 4096 // of one form
#define NAME_BYTES 64
#define WARP 32

struct form {
    char name[NAME_BYTES];
    const char *lines[ROWS_MAX]; // "row ..." as written
    int n_rows, n_in, n_out;
    int out_digits[WORDS_MAX];
    uint64_t in[ROWS_MAX * WORDS_MAX];
};

_Noreturn static void fail(const char *what, const char *where) {
    fprintf(stderr, "record: %s: %.80s\n", what, where);
    exit(2);
}

static int digits_of(const char *class) {
    if (strcmp(class, "b16") == 0) return 4;
    if (strcmp(class, "pred") == 0) return 1;
    if (strcmp(class, "b64") == 0 || strcmp(class, "f64") == 0) return 16;
    if (strcmp(class, "b32") == 0 || strcmp(class, "f32") == 0) return 8;
    fail("no such class", class);
}

// Counts the words of an "in" or "out" line; digits may be NULL.
static int parse_classes(const char *line, int *digits) {
    char class[16];
    int n = 0, length = 0;
    while (sscanf(line, "%15s%n", class, &length) == 1) {
        if (n == WORDS_MAX) fail("too many words", line);
        int wide = digits_of(class);
        if (digits != NULL) digits[n] = wide;
        n++;
        line += length;
    }
    return n;
}

static void parse_row(struct form *form, const char *line) {
    if (form->n_rows == ROWS_MAX) fail("too many rows", form->name);
    form->lines[form->n_rows] = line;
    uint64_t *words = form->in + (size_t)form->n_rows * (size_t)form->n_in;
    char *at = (char *)(uintptr_t)line + strlen("row ");
    for (int i = 0; i < form->n_in; i++) {
        char *end = at;
        words[i] = strtoull(at, &end, 16);
        if (end == at) fail("a row with too few words", line);
        at = end;
    }
    form->n_rows++;
}

static void run_form(const struct form *form, driver_handle module, uint64_t *out) {
    char name[NAME_BYTES + 8];
    snprintf(name, sizeof name, "form_%s", form->name);
    driver_handle function = driver_function(module, name);
    size_t n_threads = ((size_t)form->n_rows + WARP - 1) / WARP * WARP;
    size_t in_bytes = n_threads * (size_t)form->n_in * 8;
    size_t out_bytes = n_threads * (size_t)form->n_out * 8;
    uint64_t *in = malloc(in_bytes), *again = malloc(out_bytes);
    if (in == NULL || again == NULL) fail("no memory", form->name);
    for (size_t t = 0; t < n_threads; t++) {
        size_t row = t < (size_t)form->n_rows ? t : (size_t)form->n_rows - 1;
        memcpy(in + t * (size_t)form->n_in, form->in + row * (size_t)form->n_in,
               (size_t)form->n_in * 8);
    }
    device_ptr device_in = driver_alloc(in_bytes), device_out = driver_alloc(out_bytes);
    driver_upload(device_in, in, in_bytes);
    uint32_t grid[3] = {(uint32_t)(n_threads / WARP), 1, 1};
    void *params[2] = {&device_in, &device_out};
    for (int round = 0; round < 2; round++) {
        uint64_t *result = round == 0 ? out : again;
        memset(result, 0xff, out_bytes);
        driver_upload(device_out, result, out_bytes);
        driver_launch(function, grid, WARP, params);
        driver_wait();
        driver_download(result, device_out, out_bytes);
    }
    if (memcmp(out, again, out_bytes) != 0) fail("two runs differ", form->name);
    driver_free(device_in);
    driver_free(device_out);
    free(in);
    free(again);
}

static void print_results(const struct form *form, const uint64_t *out) {
    for (int row = 0; row < form->n_rows; row++) {
        printf("%s :", form->lines[row]);
        for (int i = 0; i < form->n_out; i++) {
            uint64_t word = out[row * form->n_out + i];
            if (form->out_digits[i] < 16 && word >> 4 * form->out_digits[i] != 0) {
                fail("a result is wider than its class", form->name);
            }
            printf(" %0*llx", form->out_digits[i], (unsigned long long)word);
        }
        printf("\n");
    }
}

static void finish_form(struct form *form, driver_handle module) {
    static uint64_t out[ROWS_MAX * WORDS_MAX];
    if (form->n_rows == 0) return;
    run_form(form, module, out);
    print_results(form, out);
    form->n_rows = 0;
}

int main(int argc, char **argv) {
    static struct form form;
    struct driver driver;
    char date[32];
    if (argc != 3) fail("usage", "record FORMS MODULE.ptx");
    char *forms = file_text(argv[1]);
    driver_open(&driver);
    driver_handle module = driver_module(file_text(argv[2]));
    time_t now = time(NULL);
    strftime(date, sizeof date, "%Y-%m-%d", gmtime(&now));
    for (char *line = forms, *next; line != NULL; line = next) {
        next = strchr(line, '\n');
        if (next != NULL) *next++ = 0;
        if (strncmp(line, "row ", 4) == 0) {
            parse_row(&form, line);
            continue;
        }
        finish_form(&form, module);
        if (*line != 0) printf("%s\n", line);
        if (strncmp(line, "calibration ", 12) == 0) {
            printf("date %s\ncard %s\ndriver %s\n", date, driver.card, driver.version);
        }
        if (strncmp(line, "form ", 5) == 0) sscanf(line, "form %63s", form.name);
        if (strncmp(line, "in ", 3) == 0) form.n_in = parse_classes(line + 3, NULL);
        if (strncmp(line, "out ", 4) == 0) form.n_out = parse_classes(line + 4, form.out_digits);
    }
    finish_form(&form, module);
    fprintf(stderr, "record: all forms recorded on %s, driver %s\n", driver.card, driver.version);
    return 0;
}
