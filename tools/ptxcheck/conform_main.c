// SPDX-License-Identifier: Apache-2.0
// ptxcheck-conform: the cases of `sov conform` on the interpreter. The kernels are the embedded
// ones, as a driver gets them; parameters, grids and blocks are those that the host passes to a
// card. So what stands between launch files and a card is executed too: the params structs, the
// launch table, and the cases themselves.
//
// F1. A case runs idle, with the power words of conform.c, and active; each time the whole image of
//     memory is compared as it is after a card's run (conform.c).
// F2. Guards and scratch count as unset: a kernel that reads them is reported, as is everything
//     else that the interpreter finds (docs/ptxcheck.md).
//
// Usage: ptxcheck-conform [--all] [--kernel PREFIX] [--replace MODULE OLD NEW]
// --all takes every case and not only the quick ones; --replace puts another text in the place of
// the first such one in a module, to see that it is found. Exit codes are those of ptxcheck.
#include <stdlib.h>
#include <string.h>

#include "engine/conform_private.h"
#include "platform/platform.h"
#include "run.h"

#define RESIDENT 4 // blocks in flight
#define CASES_MAX 4096
#define STEPS_MAX \
    (10ull * MACHINE_STEPS_MAX) // cases of a card are larger than those of launch files

struct suite {
    struct module *modules[CUDA_MODULES_MAX];
    struct op_table reference;
    struct conform_case cases[CASES_MAX];
    u32 n_cases;
};

// --- one case ---

static const struct kernel *find_kernel(const struct suite *suite, enum cuda_kernel kernel,
                                        struct module **module) {
    for (u32 i = 0; i < CUDA_MODULES_MAX && suite->modules[i] != NULL; i++) {
        const struct kernel *found = ptx_kernel(suite->modules[i], cuda_kernel_name(kernel));
        *module = suite->modules[i];
        if (found != NULL) return found;
    }
    fail("no module has the kernel %s", cuda_kernel_name(kernel));
}

// Most threads of a block, which is what a launch without a number gets.
static u32 threads_of(enum cuda_kernel kernel) {
    static const u32 most[CUDA_KERNEL_COUNT] = {
#define MOST(module, kernel, params, least_threads, most_threads, ...) \
    [CUDA_KERNEL_##kernel] = (most_threads),
        CUDA_KERNEL_LIST(MOST)
#undef MOST
    };
    return most[kernel];
}

// F2: a byte for each byte of the image.
static u8 *set_bytes(const struct conform_build *b) {
    u8 *set = need(b->image_bytes, 1);
    for (u32 i = 0; i < b->n_buffers; i++) {
        const struct conform_buffer *buffer = &b->buffers[i];
        if (buffer->role == CONFORM_HOST || buffer->role == CONFORM_SCRATCH) continue;
        memset(set + buffer->off, 1, buffer->bytes);
    }
    return set;
}

static void execute(const struct suite *suite, const struct conform_build *b,
                    struct machine *machine, bool is_idle) {
    for (u32 i = 0; i < b->n_launches; i++) {
        const struct conform_launch *launch = &b->launches[i];
        struct module *module = NULL;
        const struct kernel *kernel = find_kernel(suite, launch->kernel, &module);
        struct launch_config config = {
            .block = {launch->n_threads != 0 ? launch->n_threads : threads_of(launch->kernel), 1,
                      1},
            .resident = RESIDENT,
            .schedule = is_idle ? SCHEDULE_TO_SYNC : SCHEDULE_LOCKSTEP,
            .seed = b->key};
        struct sov_fault fault = {0};
        if (cuda_kernel_grid(launch->kernel, launch->counts, config.grid, &fault) != SOV_OK) {
            fail("%s: no grid", b->item->id);
        }
        if (kernel->param_bytes != launch->params_bytes) {
            report(machine, REPORT_PARAM, NULL, NULL, "%s takes %u bytes, the struct has %u",
                   kernel->name, kernel->param_bytes, launch->params_bytes);
            return;
        }
        if (machine->module != module) fail("%s: launches of two modules", b->item->id);
        memcpy(machine->param, launch->params, launch->params_bytes);
        machine_launch(machine, kernel, &config);
    }
}

// Runs the case with this power word; true when nothing was found.
static bool run_with(const struct suite *suite, const struct conform_case *item, u32 power,
                     FILE *out) {
    bool is_idle = power != CUDA_POWER_ACTIVE;
    struct conform_build b = {.item = item, .reference = &suite->reference};
    conform_build(&b, CONFORM_SEED);
    u8 *before = need(b.image_bytes, 1), *expected = need(b.image_bytes, 1);
    u8 *host = need(b.host_bytes, 1), *set = set_bytes(&b);
    struct module *module = NULL;
    (void)find_kernel(suite, item->kernel, &module);
    struct machine *machine = machine_new(module);
    machine->steps_max = STEPS_MAX;
    struct region *image =
        machine_buffer(machine, "the image", ROLE_SCRATCH, b.image_bytes, 0, before, set);
    b.memory = image->address;
    b.before = before;
    b.expected = expected;
    b.host = host;
    conform_build(&b, CONFORM_SEED);
    conform_set_power(&b, power);
    memcpy(image->data, before, b.image_bytes);
    machine->power_mode = is_idle ? POWER_OFF : POWER_ON;
    machine->power_region = machine->complete_region = image;
    machine->power_offset = b.buffers[b.power].off;
    machine->power_active = CUDA_POWER_ACTIVE;
    machine->power_other = power;
    machine->complete_offset = b.buffers[b.status].off + sizeof(u32);
    execute(suite, &b, machine, is_idle);
    struct conform_result result = {0};
    if (item->is_tensor && !is_idle) conform_settle(&b, image->data, &result);
    conform_compare(&b, is_idle ? before : expected, image->data, is_idle, &result);
    bool is_right = !result.is_wrong && machine->n_reports == 0;
    if (result.is_wrong) fprintf(out, "wrong: %s: %s\n", item->id, result.difference);
    for (u32 i = 0; i < machine->n_reports; i++) {
        fprintf(out, "wrong: %s: %s\n", item->id, machine->reports[i].text);
    }
    machine_free(machine);
    free(before);
    free(expected);
    free(host);
    free(set);
    return is_right;
}

static int case_job(void *context, u32 index, FILE *out) {
    const struct suite *suite = context;
    static const u32 idle_words[] = {0, 2, 3, 0xffffffffu};
    const struct conform_case *item = &suite->cases[index];
    bool is_right = run_with(suite, item, idle_words[index % COUNT_OF(idle_words)], out);
    if (!run_with(suite, item, CUDA_POWER_ACTIVE, out)) is_right = false;
    return is_right ? 0 : EXIT_FOUND;
}

// --- the command ---

static char *replaced(const char *text, const char *old, const char *new) {
    const char *at = strstr(text, old);
    if (at == NULL) fail("the module has no \"%s\"", old);
    usize bytes = strlen(text) + strlen(new) + 1;
    char *made = need(bytes, 1);
    snprintf(made, bytes, "%.*s%s%s", (int)(at - text), text, new, at + strlen(old));
    return made;
}

static void add_cases(struct suite *suite, enum cuda_kernel kernel, bool all) {
    for (u32 i = 0; conform_case_get(kernel, i, &suite->cases[suite->n_cases]); i++) {
        if (!all && !suite->cases[suite->n_cases].is_quick) continue;
        if (++suite->n_cases == CASES_MAX) fail("more than %d cases", CASES_MAX);
    }
}

int program_main(const struct platform_start *start) {
    bool all = false;
    const char *prefix = "", *module = "", *old = NULL, *new = NULL, *name = NULL, *text = NULL;
    for (u32 i = 1; i < start->n_args; i++) {
        const char *arg = start->args[i];
        if (strcmp(arg, "--all") == 0) {
            all = true;
        } else if (strcmp(arg, "--kernel") == 0 && i + 1 < start->n_args) {
            prefix = start->args[++i];
        } else if (strcmp(arg, "--replace") == 0 && i + 3 < start->n_args) {
            module = start->args[++i];
            old = start->args[++i];
            new = start->args[++i];
        } else {
            fprintf(stderr, "ptxcheck-conform: what is %s?\n", arg);
            return EXIT_USAGE;
        }
    }
    struct suite *suite = need(1, sizeof *suite);
    op_fill_reference(&suite->reference);
    for (u32 i = 0; (text = cuda_module_text(i, &name)) != NULL; i++) {
        bool is_changed = old != NULL && strcmp(name, module) == 0;
        suite->modules[i] = ptx_parse(name, is_changed ? replaced(text, old, new) : strdup(text));
    }
    u32 n_kernels = 0, n_wrong = 0;
    for (u32 kernel = 0; kernel < CUDA_KERNEL_COUNT; kernel++) {
        if (strncmp(cuda_kernel_name(kernel), prefix, strlen(prefix)) != 0) continue;
        add_cases(suite, kernel, all);
        n_kernels++;
    }
    struct job_result *results = need(MAX(suite->n_cases, 1u), sizeof *results);
    jobs_run(suite->n_cases, case_job, suite, results);
    for (u32 i = 0; i < suite->n_cases; i++) {
        n_wrong += results[i].code != 0;
        fputs(results[i].text, stdout);
        if (results[i].code < 0) printf("wrong: %s: no end\n", suite->cases[i].id);
        free(results[i].text);
    }
    printf("conform: %u kernels, %u cases, %u wrong\n", n_kernels, suite->n_cases, n_wrong);
    free(results);
    free(suite);
    return n_wrong > 0 || n_kernels == 0 ? EXIT_FOUND : 0;
}
