// SPDX-License-Identifier: Apache-2.0
// Seeded mutants (docs/ptxcheck.md): each changes one place of a kernel's preprocessed text or of a
// launch file; the checker must report something for every one, or it is not believed.
//
// U1. A mutant that does not parse, or whose pattern is not found, is a mistake in the list: it
//     counts as not caught.
// U2. A change with `expect nothing` is a control: it is right, and every case must pass.
// U3. The unchanged kernel must pass all its launch files; `ptxcheck run` sees to that.
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "run.h"

#define MUTANTS_MAX 1024
#define LAUNCHES_MAX 64

struct mutant {
    u32 line, occurrence, launch; // launch: index of the file it is held against
    char where[NAME_BYTES], kernel[NAME_BYTES], class[NAME_BYTES], expect[NAME_BYTES];
    char *pattern, *replacement;
};

struct mutants {
    const struct run_options *options;
    const char *path;
    char *launches[LAUNCHES_MAX];
    u32 n_launches;
    struct mutant mutant[MUTANTS_MAX];
    u32 n;
};

// --- the list ---

// "text" with \" and \\ ; returns a copy.
static char *unquoted(const struct mutants *list, u32 line, const char *word) {
    usize len = strlen(word);
    if (len < 2 || word[0] != '"' || word[len - 1] != '"') {
        fail_at(list->path, line, "a text in \" \" is wanted, not %s", word);
    }
    char *text = need(len, 1);
    usize used = 0;
    for (usize i = 1; i < len - 1; i++) {
        if (word[i] == '\\' && i + 1 < len - 1) i++;
        text[used++] = word[i];
    }
    return text;
}

static void copy_name(const struct mutants *list, u32 line, char out[NAME_BYTES],
                      const char *word) {
    if (strlen(word) >= NAME_BYTES) fail_at(list->path, line, "%s is too long", word);
    memcpy(out, word, strlen(word) + 1);
}

static void take_mutant(struct mutants *list, struct lines *lines) {
    static const char *const classes[] = {"barrier", "index", "swap",     "guard", "power",
                                          "wait",    "init",  "rounding", "other"};
    char **words = lines->words;
    u32 n = lines->n_words, class = 0;
    if (list->n == MUTANTS_MAX) fail_at(list->path, lines->number, "too many mutants");
    bool expects = n == 10 && strcmp(words[8], "expect") == 0;
    if ((n != 8 && !expects) || strcmp(words[6], "=>") != 0) {
        fail_at(list->path, lines->number,
                "mutant WHERE KERNEL CLASS N \"PATTERN\" => \"REPLACEMENT\" [expect KIND]");
    }
    if (list->n_launches == 0) fail_at(list->path, lines->number, "no launch file yet");
    while (class < COUNT_OF(classes) && strcmp(words[3], classes[class]) != 0) class ++;
    if (class == COUNT_OF(classes))
        fail_at(list->path, lines->number, "unknown class %s", words[3]);
    struct mutant *mutant = &list->mutant[list->n++];
    mutant->line = lines->number;
    mutant->launch = list->n_launches - 1;
    copy_name(list, lines->number, mutant->where, words[1]);
    copy_name(list, lines->number, mutant->kernel, words[2]);
    copy_name(list, lines->number, mutant->class, words[3]);
    if (expects) copy_name(list, lines->number, mutant->expect, words[9]);
    mutant->occurrence = (u32)strtoul(words[4], NULL, 10);
    mutant->pattern = unquoted(list, lines->number, words[5]);
    mutant->replacement = unquoted(list, lines->number, words[7]);
}

static struct mutants *load(const struct run_options *options, const char *path) {
    struct mutants *list = need(1, sizeof *list);
    struct lines *lines = need(1, sizeof *lines);
    char *text = file_read(path, NULL);
    list->options = options;
    list->path = path;
    lines_begin(lines, path, text);
    if (!lines_next(lines) || strcmp(lines->words[0], "mutants") != 0) {
        fail_at(path, 1, "not a list of mutants: the first line is \"mutants 1\"");
    }
    while (lines_next(lines)) {
        if (strcmp(lines->words[0], "launch") == 0 && lines->n_words == 2) {
            if (list->n_launches == LAUNCHES_MAX) fail_at(path, lines->number, "too many files");
            char *copy = need(strlen(lines->words[1]) + 1, 1);
            memcpy(copy, lines->words[1], strlen(lines->words[1]) + 1);
            list->launches[list->n_launches++] = copy;
        } else if (strcmp(lines->words[0], "mutant") == 0) {
            take_mutant(list, lines);
        } else {
            fail_at(path, lines->number, "unknown statement %s", lines->words[0]);
        }
    }
    free(lines);
    free(text);
    return list;
}

// --- one mutant ---

// The length of the match of `pattern` at `text`, 0 when it does not match. A run of blanks in one
// matches any run in the other.
static usize match(const char *text, const char *pattern) {
    const char *at = text;
    while (*pattern != 0) {
        if (isspace((unsigned char)*pattern)) {
            if (!isspace((unsigned char)*at)) return 0;
            while (isspace((unsigned char)*pattern)) pattern++;
            while (isspace((unsigned char)*at)) at++;
            continue;
        }
        if (*at++ != *pattern++) return 0;
    }
    return (usize)(at - text);
}

// [*begin, *end) of the kernel in the module's text.
static void kernel_range(const struct mutants *list, const struct mutant *mutant, const char *text,
                         const char **begin, const char **end) {
    usize len = strlen(mutant->kernel);
    *begin = NULL;
    for (const char *at = strstr(text, ".entry"); at != NULL; at = strstr(at + 6, ".entry")) {
        const char *name = at + 6;
        while (isspace((unsigned char)*name)) name++;
        bool ends = !isalnum((unsigned char)name[MIN(len, strlen(name))]) &&
                    name[MIN(len, strlen(name))] != '_';
        if (strncmp(name, mutant->kernel, len) == 0 && ends) *begin = at;
    }
    if (*begin == NULL) fail_at(list->path, mutant->line, "no kernel %s", mutant->kernel);
    u32 depth = 0;
    bool entered = false;
    for (*end = *begin; **end != 0 && !(entered && depth == 0); ++*end) {
        if (**end == '{') depth++;
        if (**end == '}') depth--;
        entered |= **end == '{';
    }
}

static char *mutate(const struct mutants *list, const struct mutant *mutant, const char *text,
                    const char *begin, const char *end) {
    u32 seen = 0;
    for (const char *at = begin; at < end; at++) {
        usize len = match(at, mutant->pattern);
        if (len == 0 || ++seen < mutant->occurrence) continue;
        usize head = (usize)(at - text), tail = strlen(at + len);
        usize middle = strlen(mutant->replacement);
        char *changed = need(head + middle + tail + 1, 1);
        memcpy(changed, text, head);
        memcpy(changed + head, mutant->replacement, middle);
        memcpy(changed + head + middle, at + len, tail);
        return changed;
    }
    fail_at(list->path, mutant->line, "the pattern stands %u times in %s, not %u", seen,
            mutant->kernel, mutant->occurrence);
}

static bool expected_found(const struct mutant *mutant, u32 kinds) {
    if (mutant->expect[0] == 0) return kinds != 0;
    for (u32 kind = 0; kind <= REPORT_LIMIT; kind++) {
        if ((kinds >> kind & 1) && strcmp(report_name(kind), mutant->expect) == 0) return true;
    }
    return false;
}

static bool is_control(const struct mutant *mutant) {
    return strcmp(mutant->expect, "nothing") == 0;
}

static int mutant_job(void *context, u32 index, FILE *out) {
    const struct mutants *list = context;
    const struct mutant *mutant = &list->mutant[index];
    const char *launch_path = list->launches[mutant->launch];
    char *launch_text = file_read(launch_path, NULL);
    char path[512];
    struct launch_set *set = NULL;
    if (strcmp(mutant->where, "launch") == 0) {
        char *changed =
            mutate(list, mutant, launch_text, launch_text, launch_text + strlen(launch_text));
        set = launch_load(launch_path, changed);
        free(changed);
    } else {
        set = launch_load(launch_path, launch_text);
    }
    char *text = run_module_text(list->options, set->module, path);
    if (strcmp(mutant->where, "ptx") == 0 || strcmp(mutant->where, "ptx-module") == 0) {
        const char *begin = text, *end = text + strlen(text);
        if (mutant->where[3] == 0) kernel_range(list, mutant, text, &begin, &end);
        char *changed = mutate(list, mutant, text, begin, end);
        free(text);
        text = changed;
    } else if (strcmp(mutant->where, "launch") != 0) {
        fail_at(list->path, mutant->line, "ptx, ptx-module or launch, not %s", mutant->where);
    }
    struct module *module = ptx_parse(path, text);
    struct run_options options = *list->options;
    options.first_only = true;
    u32 n_runs = 0, kinds = 0;
    for (u32 i = 0; i < set->n_cases && !expected_found(mutant, kinds); i++) {
        run_case(set, i, module, &options, out, &n_runs, &kinds);
    }
    ptx_free(module);
    launch_free(set);
    free(launch_text);
    return (is_control(mutant) ? kinds == 0 : expected_found(mutant, kinds)) ? EXIT_FOUND : 0;
}

// The first finding of the expected kind in a mutant's output; findings are indented.
static void print_finding(const struct mutant *mutant, const char *text) {
    char wanted[NAME_BYTES + 4];
    snprintf(wanted, sizeof wanted, " %s:", mutant->expect);
    for (const char *line = text; line != NULL; line = strchr(line, '\n')) {
        line += *line == '\n';
        usize len = strcspn(line, "\n");
        const char *found = strstr(line, wanted);
        bool right = mutant->expect[0] == 0 || (found != NULL && found < line + len);
        if (strncmp(line, "  ", 2) != 0 || !right) continue;
        printf("%.*s\n", (int)len - 2, line + 2);
        return;
    }
    printf("%s", text);
}

int mutants_command(const struct run_options *options, const char *path) {
    struct mutants *list = load(options, path);
    struct job_result *results = need(list->n, sizeof *results);
    jobs_run(list->n, mutant_job, list, results);
    u32 n_caught = 0;
    for (u32 i = 0; i < list->n; i++) {
        const struct mutant *mutant = &list->mutant[i];
        bool caught = results[i].code == EXIT_FOUND;
        n_caught += caught;
        const char *verdict = is_control(mutant) ? "control passes\n" : "caught: ";
        printf("%s:%u: %s %s: %s", path, mutant->line, mutant->kernel, mutant->class,
               caught               ? verdict
               : is_control(mutant) ? "CONTROL FAILS\n"
                                    : "NOT CAUGHT\n");
        if (caught && !is_control(mutant)) {
            print_finding(mutant, results[i].text);
        } else {
            fputs(results[i].text, stdout);
        }
        free(results[i].text);
        free(list->mutant[i].pattern);
        free(list->mutant[i].replacement);
    }
    printf("%s: %u of %u as expected\n", path, n_caught, list->n);
    bool all = n_caught == list->n;
    for (u32 i = 0; i < list->n_launches; i++) free(list->launches[i]);
    free(results);
    free(list);
    return all ? 0 : EXIT_FOUND;
}
