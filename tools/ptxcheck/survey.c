// SPDX-License-Identifier: Apache-2.0
// The survey of a launch file: every instruction of its kernels is changed in turn, mechanically,
// and the file must notice. What survives is either a change without effect or a gap in the file's
// cases; the list is for a person to read (docs/ptxcheck.md). Not part of `make ptxcheck`.
#include <stdlib.h>
#include <string.h>

#include "run.h"

enum change { CHANGE_DROP, CHANGE_GUARD, CHANGE_CONSTANT, CHANGE_LIMIT };
static const char *const change_names[] = {"dropped", "guard inverted", "constant plus 1"};

struct site {
    u32 kernel, insn;
    enum change change;
};

struct survey {
    const struct run_options *options;
    const struct launch_set *set;
    struct site *sites;
    u32 n;
};

static void nothing(struct thread *t, const struct insn *insn) {
    (void)t;
    (void)insn;
}

static bool applies(const struct insn *insn, enum change change) {
    if (insn->run == exec_undefine || insn->source[0] == '}') return false;
    if (change == CHANGE_GUARD) return insn->pred != NO_REG;
    if (change == CHANGE_DROP) return true;
    for (u32 i = 0; i < insn->n_src; i++) {
        if (insn->src[i].kind == OPERAND_IMM && insn->src[i].type == TYPE_NONE) return true;
    }
    return false;
}

static void apply(struct insn *insn, enum change change) {
    if (change == CHANGE_GUARD) {
        insn->pred_negated = !insn->pred_negated;
    } else if (change == CHANGE_DROP) {
        insn->class = CLASS_PLAIN;
        insn->run = nothing;
    } else {
        u32 i = 0;
        while (insn->src[i].kind != OPERAND_IMM || insn->src[i].type != TYPE_NONE) i++;
        insn->src[i].imm++;
    }
}

static struct module *parse(const struct survey *survey) {
    char path[512];
    char *text = run_module_text(survey->options, survey->set->module, path);
    return ptx_parse(path, text);
}

static int survey_job(void *context, u32 index, FILE *out) {
    const struct survey *survey = context;
    const struct site *site = &survey->sites[index];
    struct module *module = parse(survey);
    apply(&module->kernels[site->kernel].insns[site->insn], site->change);
    u32 n_runs = 0, kinds = 0;
    for (u32 i = 0; i < survey->set->n_cases && kinds == 0; i++) {
        run_case(survey->set, i, module, survey->options, out, &n_runs, &kinds);
    }
    ptx_free(module);
    return kinds != 0 ? EXIT_FOUND : 0;
}

// Is the kernel called by the file's first case?
static bool called(const struct launch_case *launch, const struct kernel *kernel) {
    for (u32 i = 0; i < launch->n_calls; i++) {
        if (strcmp(launch->calls[i].kernel, kernel->name) == 0) return true;
    }
    return false;
}

static void find_sites(struct survey *survey, const struct module *module) {
    struct launch_case *launch = launch_prepare(survey->set, 0);
    for (u32 k = 0; k < module->n_kernels; k++) {
        const struct kernel *kernel = &module->kernels[k];
        if (!called(launch, kernel)) continue;
        survey->sites = need_more(survey->sites, (survey->n + kernel->n_insns) * CHANGE_LIMIT,
                                  sizeof(struct site));
        for (u32 i = 0; i < kernel->n_insns * CHANGE_LIMIT; i++) {
            struct site site = {k, i / CHANGE_LIMIT, i % CHANGE_LIMIT};
            if (!applies(&kernel->insns[site.insn], site.change)) continue;
            survey->sites[survey->n++] = site;
        }
    }
    launch_case_free(launch);
}

int survey_command(const struct run_options *options, const char *path) {
    char *text = file_read(path, NULL);
    struct launch_set *set = launch_load(path, text);
    struct run_options first_only = *options;
    first_only.first_only = true;
    struct survey survey = {.options = &first_only, .set = set};
    struct module *module = parse(&survey);
    find_sites(&survey, module);
    struct job_result *results = need(survey.n, sizeof *results);
    jobs_run(survey.n, survey_job, &survey, results);
    u32 n_noticed = 0;
    for (u32 i = 0; i < survey.n; i++) {
        const struct site *site = &survey.sites[i];
        const struct insn *insn = &module->kernels[site->kernel].insns[site->insn];
        bool noticed = results[i].code == EXIT_FOUND;
        n_noticed += noticed;
        if (!noticed) {
            printf("%s:%u: %s: %s [%.*s]\n%s", ptx_file(module, insn), insn->line,
                   module->kernels[site->kernel].name, change_names[site->change], insn->text,
                   insn->source, results[i].code == 0 ? "" : results[i].text);
        }
        free(results[i].text);
    }
    printf("%s: %u of %u changes noticed\n", path, n_noticed, survey.n);
    free(results);
    free(survey.sites);
    ptx_free(module);
    launch_free(set);
    free(text);
    return 0;
}
