// SPDX-License-Identifier: Apache-2.0
// One case of a launch file on the machine: parameters against the host's table, the launches, and
// what they left behind against the reference.
//
// N1. Power on: results, single writes and coverage. Power off: nothing changes. Power lost midway:
//     every byte is either as before or as expected.
#include "run.h"

#include <stdlib.h>
#include <string.h>

char *run_module_text(const struct run_options *options, const char *name, char path[512]) {
    snprintf(path, 512, "%s/%s.ptx", options->modules, name);
    return file_read(path, NULL);
}

// --- parameters ---

static bool same_name(const struct kernel *kernel, const char *declared, const char *wanted) {
    usize len = strlen(kernel->name);
    if (strncmp(declared, kernel->name, len) == 0 && declared[len] == '_' &&
        strcmp(declared + len + 1, wanted) == 0) {
        return true;
    }
    return strcmp(declared, wanted) == 0;
}

// The host's table against the declaration; then the parameter block.
static bool set_params(struct machine *machine, const struct kernel *kernel,
                       const struct launch_call *call, struct region *const regions[]) {
    if (call->n_params != kernel->n_params) {
        report(machine, REPORT_PARAM, NULL, NULL, "%s has %u parameters, the host passes %u",
               kernel->name, kernel->n_params, call->n_params);
        return false;
    }
    if (kernel->param_bytes > sizeof machine->param)
        fail("%s: a large parameter block", kernel->name);
    bool good = true;
    for (u32 i = 0; i < kernel->n_params; i++) {
        const struct ptx_param *declared = &kernel->params[i];
        const struct launch_param *param = &call->params[i];
        if (!same_name(kernel, declared->name, param->name)) {
            report(machine, REPORT_PARAM, NULL, NULL,
                   "parameter %u of %s is %s, the host passes %s", i, kernel->name, declared->name,
                   param->name);
            good = false;
        } else if (declared->bytes != param->bytes) {
            report(machine, REPORT_PARAM, NULL, NULL,
                   "parameter %s of %s has %u bytes, the host passes %u", declared->name,
                   kernel->name, declared->bytes, param->bytes);
            good = false;
        }
        u64 value = param->value;
        if (param->is_address) value += regions[param->buffer]->address;
        memcpy(machine->param + declared->offset, &value, MIN(declared->bytes, 8u));
    }
    return good;
}

// --- results ---

static bool covered(const struct region *region, u64 byte) {
    return region->cells[byte / 4].covered >> byte % 4 & 1;
}

static void check_coverage(struct machine *machine, const struct launch_buffer *buffer,
                           const struct region *region) {
    u64 n_missing = 0, n_extra = 0, missing = 0, extra = 0;
    for (u64 i = 0; i < buffer->bytes; i++) {
        bool stored = covered(region, i);
        if (buffer->written[i] && !stored && n_missing++ == 0) missing = i;
        bool forbidden = stored && !buffer->written[i] && buffer->role == BUFFER_OUT;
        if (forbidden && n_extra++ == 0) extra = i;
    }
    char place[160];
    if (n_missing > 0) {
        launch_place(buffer, missing / element_bytes(buffer->type), place, sizeof place);
        report(machine, REPORT_MISSING, NULL, NULL, "%s was never stored; %llu bytes are missing",
               place, n_missing);
    }
    if (n_extra > 0) {
        launch_place(buffer, extra / element_bytes(buffer->type), place, sizeof place);
        report(machine, REPORT_CHANGED, NULL, NULL,
               "%s was stored, but is no output of the reference; %llu such bytes", place, n_extra);
    }
}

// Power off: as before. Power lost midway: as before or as expected.
static void check_untouched(struct machine *machine, const struct launch_case *launch, u32 index,
                            const struct region *region, bool may_be_done) {
    const struct launch_buffer *buffer = &launch->buffers[index];
    u32 bytes = element_bytes(buffer->type);
    for (u64 i = 0; i < buffer->bytes; i += bytes) {
        const u8 *got = region->data + i;
        if (memcmp(got, buffer->contents + i, bytes) == 0) continue;
        if (index == launch->power_buffer && i == 4 * (u64)launch->power_index) continue;
        if (may_be_done && (buffer->by_bound || memcmp(got, buffer->expected + i, bytes) == 0)) {
            continue;
        }
        // The count of finished blocks stands somewhere between.
        bool counter = launch->has_complete && index == launch->complete_buffer &&
                       i / bytes == launch->complete_index;
        if (may_be_done && counter) continue;
        char place[160];
        launch_place(buffer, i / bytes, place, sizeof place);
        report(machine, REPORT_POWER, NULL, NULL, "%s has changed although power was %s", place,
               may_be_done ? "lost, and not to the expected value" : "not active");
        return;
    }
}

static void check_results(struct machine *machine, const struct launch_case *launch,
                          struct region *const regions[]) {
    for (u32 i = 0; i < launch->n_buffers; i++) {
        const struct launch_buffer *buffer = &launch->buffers[i];
        if (regions[i] == NULL || buffer->role == BUFFER_SCRATCH) continue;
        if (machine->power_mode == POWER_OFF || machine->power_mode == POWER_FLIPS) {
            if (launch->refused && machine->power_mode == POWER_FLIPS) continue;
            check_untouched(machine, launch, i, regions[i], machine->power_mode == POWER_FLIPS);
            continue;
        }
        char message[240];
        if (!launch_compare(launch, i, regions[i]->data, message, sizeof message)) {
            report(machine, buffer->role == BUFFER_IN ? REPORT_CHANGED : REPORT_RESULT, NULL, NULL,
                   "%s", message);
        }
        if (!launch->refused) check_coverage(machine, buffer, regions[i]);
    }
    for (u32 i = 0; i < launch->n_same && machine->power_mode == POWER_ON; i++) {
        char message[240];
        const u8 *part = regions[launch->same[i].part]->data;
        const u8 *whole = regions[launch->same[i].whole]->data;
        if (!launch_compare_same(launch, i, part, whole, message, sizeof message)) {
            report(machine, REPORT_RESULT, NULL, NULL, "%s", message);
        }
    }
}

// --- runs ---

struct run {
    enum schedule schedule;
    u32 power_mode;
    const char *name;
};

static void set_power(struct machine *machine, const struct launch_case *launch,
                      struct region *const regions[], u32 mode) {
    if (!launch->has_power) return;
    machine->power_mode = mode;
    machine->power_region = regions[launch->power_buffer];
    machine->power_offset = 4 * (u64)launch->power_index;
    machine->power_active = launch->power_active;
    machine->power_other = launch->power_other;
    if (mode == POWER_OFF) {
        store_u32(machine->power_region->data + machine->power_offset, launch->power_other);
    }
}

static struct machine *run_once(const struct launch_case *launch, const struct module *module,
                                const struct run *run, const struct run_options *options,
                                u64 seed) {
    static const enum region_role roles[] = {[BUFFER_IN] = ROLE_IN,
                                             [BUFFER_OUT] = ROLE_OUT,
                                             [BUFFER_INOUT] = ROLE_INOUT,
                                             [BUFFER_SCRATCH] = ROLE_SCRATCH};
    struct machine *machine = machine_new(module);
    machine->steps_max = options->steps_max;
    struct region *regions[LAUNCH_BUFFERS_MAX] = {0};
    for (u32 i = 0; i < launch->n_buffers; i++) {
        const struct launch_buffer *buffer = &launch->buffers[i];
        if (buffer->role == BUFFER_HOST) continue;
        regions[i] = machine_buffer(machine, buffer->name, roles[buffer->role], buffer->bytes,
                                    buffer->misalign, buffer->contents, buffer->defined);
    }
    set_power(machine, launch, regions, run->power_mode);
    if (launch->has_complete) {
        const struct launch_buffer *buffer = &launch->buffers[launch->complete_buffer];
        machine->complete_region = regions[launch->complete_buffer];
        machine->complete_offset = launch->complete_index * (u64)element_bytes(buffer->type);
    }
    for (u32 i = 0; i < launch->n_calls; i++) {
        const struct launch_call *call = &launch->calls[i];
        const struct kernel *kernel = ptx_kernel(module, call->kernel);
        if (kernel == NULL) fail("%s: no kernel %s", module->path, call->kernel);
        struct launch_config config = {.shared_bytes = call->shared_bytes,
                                       .resident = call->resident,
                                       .schedule = run->schedule,
                                       .seed = seed + i};
        memcpy(config.grid, call->grid, sizeof config.grid);
        memcpy(config.block, call->block, sizeof config.block);
        if (!set_params(machine, kernel, call, regions)) return machine;
        machine_launch(machine, kernel, &config);
    }
    if (!machine->stopped) check_results(machine, launch, regions);
    return machine;
}

u32 run_case(const struct launch_set *set, u32 case_idx, const struct module *module,
             const struct run_options *options, FILE *out, u32 *n_runs, u32 *kinds) {
    static const struct run runs[] = {
        {SCHEDULE_TO_SYNC, POWER_ON, "to sync"},       {SCHEDULE_TO_SYNC, POWER_OFF, "power off"},
        {SCHEDULE_TO_SYNC, POWER_FLIPS, "power lost"}, {SCHEDULE_LOCKSTEP, POWER_ON, "lockstep"},
        {SCHEDULE_SLICES, POWER_ON, "slices"},
    };
    struct launch_case *launch = launch_prepare(set, case_idx);
    u32 n_bad = 0;
    for (u32 i = 0; i < COUNT_OF(runs); i++) {
        if (!launch->has_power && runs[i].power_mode != POWER_ON) continue;
        struct machine *machine =
            run_once(launch, module, &runs[i], options, options->seed + 7919 * i);
        ++*n_runs;
        if (machine->n_reports > 0) {
            n_bad++;
            fprintf(out, "%s:%u: case %u (%s, seed %llu):\n", set->path, set->case_lines[case_idx],
                    case_idx, runs[i].name, options->seed);
        }
        for (u32 k = 0; k < machine->n_reports; k++) {
            fprintf(out, "  %s\n", machine->reports[k].text);
            *kinds |= 1u << machine->reports[k].kind;
        }
        machine_free(machine);
        if (n_bad > 0 && options->first_only) break;
    }
    launch_case_free(launch);
    return n_bad;
}
