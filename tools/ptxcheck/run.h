// SPDX-License-Identifier: Apache-2.0
// Launch files on the machine: one case under several schedules and power states, its findings; and
// jobs, side by side, each in a process of its own.
#pragma once
#include <stdio.h>

#include "launch.h"
#include "machine.h"

struct run_options {
    const char *modules; // directory of preprocessed modules
    u64 seed;            // of the interleavings
    u64 steps_max;       // see MACHINE_STEPS_MAX
    bool first_only;     // stop at the first run with a finding (mutants)
};

// The text of a module by its name; fails when it is not there. Freed by free().
char *run_module_text(const struct run_options *options, const char *name, char path[512]);

// Executes one case in every way docs/ptxcheck.md names; findings are printed to `out`. Returns the
// number of runs with findings; *n_runs counts all. `kinds` gets a bit per enum report_kind.
u32 run_case(const struct launch_set *set, u32 case_idx, const struct module *module,
             const struct run_options *options, FILE *out, u32 *n_runs, u32 *kinds);

// --- jobs.c ---
struct job_result {
    char *text; // what the job printed
    int code;   // its exit code, or -1 when it did not exit
};
typedef int job_run(void *context, u32 index, FILE *out); // returns the exit code
// Runs jobs [0, n) in processes, as many at once as there are CPUs.
void jobs_run(u32 n, job_run *run, void *context, struct job_result *results);

// --- the commands ---
int mutants_command(const struct run_options *options, const char *path);
int survey_command(const struct run_options *options, const char *path);
int calibrate_command(const char *path);
int calibration_module_command(const char *path);
