// SPDX-License-Identifier: Apache-2.0
// ptxcheck: the command line (docs/ptxcheck.md). Exit codes: 0 nothing found, 1 something reported,
// 2 usage, 3 an input that cannot be understood.
#include <stdlib.h>
#include <string.h>

#include "run.h"

#define FILES_MAX 64

struct jobs {
    const struct run_options *options;
    struct launch_set *sets[FILES_MAX];
    u32 n_sets;
    u32 first_job[FILES_MAX + 1]; // each case is a job
    i32 only_case;                // -1: all
};

static int case_job(void *context, u32 index, FILE *out) {
    const struct jobs *jobs = context;
    u32 file = 0, n_runs = 0, kinds = 0;
    while (jobs->first_job[file + 1] <= index) file++;
    const struct launch_set *set = jobs->sets[file];
    u32 case_idx = jobs->only_case >= 0 ? (u32)jobs->only_case : index - jobs->first_job[file];
    char path[512];
    char *text = run_module_text(jobs->options, set->module, path);
    struct module *module = ptx_parse(path, text);
    u32 n_bad = run_case(set, case_idx, module, jobs->options, out, &n_runs, &kinds);
    ptx_free(module);
    return n_bad > 0 ? EXIT_FOUND : 0;
}

static int run_command(const struct run_options *options, i32 only_case, char **paths, u32 n) {
    struct jobs *jobs = need(1, sizeof *jobs);
    jobs->options = options;
    jobs->only_case = only_case;
    if (n > FILES_MAX) fail("more than %d files", FILES_MAX);
    for (u32 i = 0; i < n; i++) {
        char *text = file_read(paths[i], NULL);
        struct launch_set *set = jobs->sets[jobs->n_sets++] = launch_load(paths[i], text);
        free(text);
        if (only_case >= (i32)set->n_cases) fail("%s has %u cases", paths[i], set->n_cases);
        jobs->first_job[i + 1] = jobs->first_job[i] + (only_case >= 0 ? 1 : set->n_cases);
    }
    u32 n_jobs = jobs->first_job[n];
    struct job_result *results = need(n_jobs, sizeof *results);
    jobs_run(n_jobs, case_job, jobs, results);
    int code = 0;
    for (u32 i = 0; i < n; i++) {
        u32 n_bad = 0;
        for (u32 k = jobs->first_job[i]; k < jobs->first_job[i + 1]; k++) {
            fputs(results[k].text, stdout);
            n_bad += results[k].code != 0;
            if (results[k].code != 0) {
                code = MAX(code, results[k].code < 0 ? EXIT_BROKEN : results[k].code);
            }
            free(results[k].text);
        }
        printf("%s: %u of %u cases pass\n", paths[i],
               jobs->first_job[i + 1] - jobs->first_job[i] - n_bad,
               jobs->first_job[i + 1] - jobs->first_job[i]);
        launch_free(jobs->sets[i]);
    }
    free(results);
    free(jobs);
    return code;
}

static int parse_command(const char *path) {
    struct module *module = ptx_parse(path, file_read(path, NULL));
    for (u32 i = 0; i < module->n_kernels; i++) {
        const struct kernel *kernel = &module->kernels[i];
        printf("%s: %u parameters, %u instructions, %u register slots, %u bytes of shared memory\n",
               kernel->name, kernel->n_params, kernel->n_insns, kernel->n_slots,
               kernel->shared_exact);
    }
    ptx_free(module);
    return 0;
}

static int usage(void) {
    fputs(
        "usage: ptxcheck [--modules DIR] [--seed N] [--case N] [--limit STEPS] run FILE.launch...\n"
        "       ptxcheck [--modules DIR] mutants LIST\n"
        "       ptxcheck [--modules DIR] survey FILE.launch\n"
        "       ptxcheck rules\n"
        "       ptxcheck calibrate TABLE\n"
        "       ptxcheck calibration-module FORMS > FILE.ptx\n"
        "       ptxcheck parse FILE.ptx\n",
        stderr);
    return EXIT_USAGE;
}

int main(int argc, char **argv) {
    struct run_options options = {
        .modules = "build/ptx", .seed = 1, .steps_max = MACHINE_STEPS_MAX};
    const char *command = NULL;
    char **files = need((usize)argc + 1, sizeof *files);
    u32 n_files = 0;
    i32 only_case = -1;
    for (int i = 1; i < argc; i++) {
        bool valued = strcmp(argv[i], "--modules") == 0 || strcmp(argv[i], "--seed") == 0 ||
                      strcmp(argv[i], "--case") == 0 || strcmp(argv[i], "--limit") == 0;
        if (valued && i + 1 < argc) {
            const char *value = argv[++i];
            if (argv[i - 1][2] == 'm') options.modules = value;
            if (argv[i - 1][2] == 's') options.seed = strtoull(value, NULL, 0);
            if (argv[i - 1][2] == 'l') options.steps_max = strtoull(value, NULL, 0);
            if (argv[i - 1][2] == 'c') only_case = (i32)strtol(value, NULL, 0);
        } else if (argv[i][0] == '-') {
            return usage();
        } else if (command == NULL) {
            command = argv[i];
        } else {
            files[n_files++] = argv[i];
        }
    }
    int code = 0;
    if (command != NULL && strcmp(command, "rules") == 0) {
        decode_list(stdout);
    } else if (command == NULL || n_files == 0) {
        code = usage();
    } else if (strcmp(command, "run") == 0) {
        code = run_command(&options, only_case, files, n_files);
    } else if (n_files != 1) {
        code = usage();
    } else if (strcmp(command, "mutants") == 0) {
        code = mutants_command(&options, files[0]);
    } else if (strcmp(command, "survey") == 0) {
        code = survey_command(&options, files[0]);
    } else if (strcmp(command, "calibrate") == 0) {
        code = calibrate_command(files[0]);
    } else if (strcmp(command, "calibration-module") == 0) {
        code = calibration_module_command(files[0]);
    } else if (strcmp(command, "parse") == 0) {
        code = parse_command(files[0]);
    } else {
        code = usage();
    }
    free(files);
    return code;
}
