// SPDX-License-Identifier: Apache-2.0
// sov conform: every CUDA kernel against the reference operators on this machine's card, as a table
// or as a report; the same report by the reference alone; and reports checked. docs/cuda.md says
// what a report holds.
#include "cli/cli.h"
#include "engine/conform.h"
#include "freestanding/json.h"

#define REPORT_FORMAT "sov-conform-1"
#define DRIVER_FILE "/proc/driver/nvidia/version"
#define DRIVER_BYTES 64

struct conform_command {
    const char *backend, *kernel, *report_path;
    bool quick, json;
    u64 seed;
    u32 device;
    struct conform run;
    struct output out, messages;
    char driver[DRIVER_BYTES]; // "580.159.04", or nothing
    // of --check
    struct file_bytes file;
    struct json report;
    struct json_node *nodes;
    u64 nodes_bytes;
    u32 cases, cursor; // the array of the report, and where the next case is looked for
    u32 n_absent;      // cases that the report does not have
    u32 n_kernels, n_cases, n_wrong;
    bool is_of_card; // the report
    u32 n_tensor;    // cases of the tensor profile that only a card can run
};

// --- the machine ---

// The first word of a digit and a dot somewhere: the version in what the kernel module says.
static void find_driver_version(struct conform_command *c) {
    struct file_bytes file;
    struct sov_fault ignored = {0};
    c->driver[0] = 0;
    if (file_read_all(DRIVER_FILE, &file, &ignored) != SOV_OK) return;
    struct str text = file.text;
    for (usize begin = 0, i = 0; i <= text.len && c->driver[0] == 0; i++) {
        bool ends = i == text.len || text.data[i] <= ' ';
        if (!ends) continue;
        struct str word = {text.data + begin, i - begin};
        begin = i + 1;
        bool has_dot = false;
        for (usize j = 0; j < word.len; j++) has_dot = has_dot || word.data[j] == '.';
        if (!has_dot || word.data[0] < '0' || word.data[0] > '9') continue;
        struct text t = TEXT_OVER_ARRAY(c->driver);
        text_put(&t, word);
    }
    file_free(&file);
}

static void put_machine(struct output *out, const struct conform_command *c) {
    const struct cuda_driver *d = &c->run.driver;
    if (c->run.backend == CONFORM_REFERENCE) {
        output_put(out, STR("reference operators"));
        return;
    }
    output_put_utf8(out, str_from_z(d->card));
    output_format(out, ", compute capability %u.%u, driver %s, CUDA %d.%d", d->capability / 10,
                  d->capability % 10, c->driver[0] != 0 ? c->driver : "unknown", d->version / 1000,
                  d->version % 1000 / 10);
}

// --- the report ---

static void put_digest(struct output *out, const char *name, const struct sha256_digest *digest) {
    char hex[SHA256_HEX_BYTES + 1];
    sha256_to_hex(digest, hex);
    output_format(out, "\"%s\":\"%s\"", name, hex);
}

static struct sha256_digest module_digest(const char *text) { return sha256_of(str_from_z(text)); }

// Nothing in the report of the reference changes from run to run.
static void begin_report(struct conform_command *c) {
    struct output *out = &c->out;
    const struct cuda_driver *d = &c->run.driver;
    output_format(out, "{\"format\":\"" REPORT_FORMAT "\",\"backend\":\"%s\",\"seed\":%llu",
                  c->backend, c->seed);
    if (c->run.backend == CONFORM_CUDA) {
        output_put(out, STR(",\n\"date\":\""));
        output_put_time(out, platform_wall_ns(), false);
        output_put(out, STR("\",\"card\":"));
        output_json_string(out, str_from_z(d->card));
        output_put(out, STR(",\"driver\":"));
        output_json_string(out, str_from_z(c->driver));
        output_format(out, ",\"cuda\":\"%d.%d\",\"compute_capability\":\"%u.%u\"",
                      d->version / 1000, d->version % 1000 / 10, d->capability / 10,
                      d->capability % 10);
    }
    output_put(out, STR(",\n\"modules\":{"));
    const char *name = NULL, *text = NULL;
    for (u32 i = 0; (text = cuda_module_text(i, &name)) != NULL; i++) {
        struct sha256_digest digest = module_digest(text);
        if (i > 0) output_put(out, STR(",\n"));
        put_digest(out, name, &digest);
    }
    output_put(out, STR("},\n\"cases\":["));
}

static void put_case(struct conform_command *c, const struct conform_case *item,
                     const struct conform_result *result) {
    struct output *out = &c->out;
    const struct cuda_driver *d = &c->run.driver;
    output_format(out, "%s\n{\"id\":\"%s\",", c->n_cases > 0 ? "," : "", item->id);
    if (item->is_tensor) { // the bits are those of one architecture
        output_format(out, "\"profile\":\"tensor\",\"architecture\":\"%u.%u\",", d->capability / 10,
                      d->capability % 10);
        output_format(out, "\"bound_share\":%.4g,", result->bound_share);
    }
    put_digest(out, "sha256", &result->outputs);
    output_put(out, STR(","));
    put_digest(out, "idle_sha256", &result->idle_outputs);
    output_put(out, STR("}"));
}

// --- checking a report ---

static enum sov_status wrong_report(const struct conform_command *c, const char *what,
                                    struct sov_fault *fault) {
    return fault_set(fault, SOV_ERR_FORMAT, "%.128s: %s", c->report_path, what);
}

static enum sov_status read_report(struct conform_command *c, struct sov_fault *fault) {
    enum sov_status status = file_read_all(c->report_path, &c->file, fault);
    if (status != SOV_OK) return status;
    u32 n_nodes = json_nodes_max(c->file.text.len);
    c->nodes_bytes = MAX(n_nodes, 1u) * sizeof *c->nodes;
    c->nodes = platform_memory_map(c->nodes_bytes);
    if (c->nodes == NULL) return fault_set(fault, SOV_ERR_MEMORY, "no memory for the report");
    status = json_parse(&c->report, c->file.text, c->nodes, n_nodes, fault);
    if (status != SOV_OK) return status;
    const struct json *json = &c->report;
    if (c->nodes[0].kind != JSON_OBJECT) return wrong_report(c, "not an object", fault);
    u32 format = json_member(json, 0, STR("format")), seed = json_member(json, 0, STR("seed"));
    c->cases = json_member(json, 0, STR("cases"));
    u32 backend = json_member(json, 0, STR("backend"));
    c->is_of_card = backend != JSON_NONE && json_string_equal(json, backend, STR("cuda"));
    if (format == JSON_NONE || !json_string_equal(json, format, STR(REPORT_FORMAT))) {
        return wrong_report(c, "not a report of the format " REPORT_FORMAT, fault);
    }
    if (seed == JSON_NONE || !json_u64(json, seed, &c->seed)) {
        return wrong_report(c, "its seed is not a number", fault);
    }
    if (c->cases == JSON_NONE || c->nodes[c->cases].kind != JSON_ARRAY) {
        return wrong_report(c, "it has no array of cases", fault);
    }
    c->cursor = json_first(c->cases);
    return SOV_OK;
}

// The report's object for a case, or JSON_NONE. Reports have the order of the program, so that the
// first look mostly finds it.
static u32 find_in_report(struct conform_command *c, const char *id) {
    const struct json *json = &c->report;
    u32 n = c->nodes[c->cases].n, at = c->cursor;
    for (u32 i = 0; i < n; i++) {
        if (at == json_end(json, c->cases)) at = json_first(c->cases);
        u32 name = c->nodes[at].kind == JSON_OBJECT ? json_member(json, at, STR("id")) : JSON_NONE;
        u32 found = at;
        at = json_next(json, at);
        if (name == JSON_NONE || !json_string_equal(json, name, str_from_z(id))) continue;
        c->cursor = at;
        return found;
    }
    return JSON_NONE;
}

static bool digest_equals(const struct json *json, u32 object, struct str name,
                          const struct sha256_digest *digest) {
    struct sha256_digest recorded;
    u32 node = json_member(json, object, name);
    return node != JSON_NONE && sha256_from_hex(json_source(json, node), &recorded) &&
           sha256_equal(&recorded, digest);
}

// Holds a result of the reference against the report.
static void compare_with_report(struct conform_command *c, u32 object,
                                struct conform_result *result) {
    bool active = digest_equals(&c->report, object, STR("sha256"), &result->outputs);
    bool idle = digest_equals(&c->report, object, STR("idle_sha256"), &result->idle_outputs);
    result->is_wrong = !active || !idle;
    struct text t = TEXT_OVER_ARRAY(result->difference);
    text_format(&t, "the report has another %s than the reference operators",
                active ? "idle_sha256" : "sha256");
}

// Of the report: who made it, and which kernels it does not tell about any more.
static void put_origin(struct conform_command *c) {
    static const char *const members[] = {"card", "driver", "date"};
    const struct json *json = &c->report;
    struct output *out = &c->out;
    for (u32 i = 0; i < COUNT_OF(members); i++) {
        u32 node = json_member(json, 0, str_from_z(members[i]));
        if (node == JSON_NONE || c->nodes[node].kind != JSON_STRING) continue;
        output_format(out, "recorded with %s ", members[i]);
        output_put_utf8(out, json_source(json, node));
        output_put(out, STR("\n"));
    }
    u32 modules = json_member(json, 0, STR("modules"));
    const char *name = NULL, *text = NULL;
    for (u32 i = 0; (text = cuda_module_text(i, &name)) != NULL && modules != JSON_NONE; i++) {
        struct sha256_digest digest = module_digest(text);
        if (digest_equals(json, modules, str_from_z(name), &digest)) continue;
        output_format(out, "the kernels of module %s have changed since\n", name);
    }
}

// --- the run ---

static bool is_wanted(const struct conform_command *c, u32 kernel) {
    struct str name = str_from_z(cuda_kernel_name(kernel));
    return c->kernel == NULL || str_starts_with(name, str_from_z(c->kernel));
}

static enum sov_status run_case(struct conform_command *c, const struct conform_case *item,
                                u32 *n_wrong, struct sov_fault *fault) {
    struct conform_result result;
    u32 object = JSON_NONE;
    if (item->is_tensor && c->run.backend == CONFORM_REFERENCE) {
        if (!c->is_of_card) return SOV_OK; // there is none in a report of the reference
        bool is_there = find_in_report(c, item->id) != JSON_NONE;
        c->n_tensor += is_there;
        c->n_absent += !is_there;
        return SOV_OK;
    }
    if (c->report_path != NULL) {
        object = find_in_report(c, item->id);
        c->n_absent += object == JSON_NONE;
        if (object == JSON_NONE) return SOV_OK;
    }
    enum sov_status status = conform_run(&c->run, item, &result, fault);
    if (status != SOV_OK) return status;
    if (object != JSON_NONE) compare_with_report(c, object, &result);
    if (c->json) put_case(c, item, &result);
    c->n_cases++;
    if (!result.is_wrong) return SOV_OK;
    (*n_wrong)++;
    output_format(&c->messages, "wrong: %s: %s\n", item->id, result.difference);
    output_flush(&c->messages);
    return SOV_OK;
}

// A kernel without a case counts as wrong: nothing is known of it.
static enum sov_status run_kernel(struct conform_command *c, u32 kernel, struct sov_fault *fault) {
    enum sov_status status = SOV_OK;
    struct conform_case item;
    u32 n_before = c->n_cases, n_wrong = 0, idx = 0;
    for (; status == SOV_OK && conform_case_get(kernel, idx, &item); idx++) {
        if (!c->quick || item.is_quick) status = run_case(c, &item, &n_wrong, fault);
    }
    if (idx == 0) {
        n_wrong++;
        output_format(&c->messages, "wrong: kernel %s has no case\n", cuda_kernel_name(kernel));
    }
    c->n_kernels++;
    c->n_wrong += n_wrong;
    if (c->json) return status;
    output_format(&c->out, "%-32s %6u %6u\n", cuda_kernel_name(kernel), c->n_cases - n_before,
                  n_wrong);
    output_flush(&c->out);
    return status;
}

static enum sov_status run_kernels(struct conform_command *c, struct sov_fault *fault) {
    enum sov_status status = SOV_OK;
    if (c->json) {
        begin_report(c);
    } else {
        output_format(&c->out, "%-32s %6s %6s\n", "kernel", "cases", "wrong");
    }
    for (u32 kernel = 0; kernel < CUDA_KERNEL_COUNT && status == SOV_OK; kernel++) {
        if (is_wanted(c, kernel)) status = run_kernel(c, kernel, fault);
    }
    if (c->json && status == SOV_OK) {
        output_format(&c->out, "],\n\"kernels\":%u,\"n_cases\":%u,\"n_wrong\":%u}\n", c->n_kernels,
                      c->n_cases, c->n_wrong);
    }
    return status;
}

// The last line: below the table, or on stderr when stdout has the report.
static void put_summary(struct conform_command *c) {
    struct output *out = c->json ? &c->messages : &c->out;
    output_format(out, "%u kernels, %u cases, %u wrong; ", c->n_kernels, c->n_cases, c->n_wrong);
    put_machine(out, c);
    output_format(out, ", seed %llu\n", c->seed);
    output_flush(out);
}

// What a complete check says of the report: everything in it must have been recomputed.
static enum sov_status judge_report(struct conform_command *c, struct sov_fault *fault) {
    u32 n_report = c->nodes[c->cases].n;
    bool is_part = c->quick || c->kernel != NULL;
    put_origin(c);
    if (c->n_absent > 0) {
        output_format(&c->out, "%u cases of this program are not in the report\n", c->n_absent);
    }
    if (c->n_wrong > 0) {
        return fault_set(fault, SOV_ERR_INTEGRITY, "%.128s: %u cases are not as recorded",
                         c->report_path, c->n_wrong);
    }
    if (c->n_tensor > 0) {
        output_format(&c->out,
                      "%u cases are of the profile tensor: their bits are the "
                      "architecture's, and not recomputed\n",
                      c->n_tensor);
    }
    if (!is_part && c->n_cases + c->n_tensor != n_report) {
        return fault_set(fault, SOV_ERR_INTEGRITY,
                         "%.128s: has %u cases, of which this program knows %u", c->report_path,
                         n_report, c->n_cases + c->n_tensor);
    }
    return SOV_OK;
}

static int run_command(struct conform_command *c, const struct platform_start *start) {
    struct sov_fault fault = {0};
    struct cuda_options options = {.device_idx = c->device};
    bool is_cuda = str_equal(str_from_z(c->backend), STR("cuda"));
    enum sov_status status = c->report_path == NULL ? SOV_OK : read_report(c, &fault);
    if (status == SOV_OK) {
        status = conform_open(&c->run, is_cuda ? CONFORM_CUDA : CONFORM_REFERENCE, c->seed, start,
                              &options, &fault);
    }
    bool is_open = status == SOV_OK;
    if (is_open) {
        if (is_cuda) find_driver_version(c);
        status = run_kernels(c, &fault);
    }
    if (status == SOV_OK) put_summary(c);
    if (status == SOV_OK && c->report_path != NULL) status = judge_report(c, &fault);
    int exit_code = output_finish(&c->messages) | output_finish(&c->out);
    if (status != SOV_OK) exit_code = cli_fail(&fault);
    if (exit_code == 0 && c->n_wrong > 0) exit_code = 1;
    if (is_open) conform_close(&c->run);
    if (c->nodes != NULL) platform_memory_unmap(c->nodes, c->nodes_bytes);
    file_free(&c->file);
    return exit_code;
}

int cli_conform(const struct command *command, const struct platform_start *start) {
    struct conform_command c = {.seed = CONFORM_SEED};
    const struct option options[] = {
        {OPTION_STRING, "--backend", NULL, "NAME", &c.backend, NULL, 0, 0,
         "cuda: a card (default); cpu: the reference operators alone"},
        {OPTION_STRING, "--kernel", NULL, "NAME", &c.kernel, NULL, 0, 0,
         "only kernels whose names begin so"},
        {OPTION_FLAG, "--quick", NULL, NULL, &c.quick, NULL, 0, 0, "a few small cases of each"},
        {OPTION_FLAG, "--json", NULL, NULL, &c.json, NULL, 0, 0, "print the report"},
        {OPTION_STRING, "--check", NULL, "REPORT", &c.report_path, NULL, 0, 0,
         "recompute a report by the reference operators"},
        {OPTION_U64, "--seed", NULL, "N", &c.seed, NULL, 0, 0, "of the inputs"},
        {OPTION_U32, "--device", NULL, "N", &c.device, NULL, 0, 255,
         "the card, in the driver's order (default 0)"},
    };
    int exit_code = 0;
    if (!cli_parse(command, start, options, COUNT_OF(options), &exit_code)) return exit_code;
    if (c.backend == NULL) c.backend = c.report_path != NULL ? "cpu" : "cuda";
    struct str backend = str_from_z(c.backend);
    bool is_cpu = str_equal(backend, STR("cpu"));
    if (!is_cpu && !str_equal(backend, STR("cuda"))) {
        return cli_usage_error(command, "--backend takes cuda or cpu, not \"%.64s\"", c.backend);
    }
    if (c.report_path != NULL && (c.json || !is_cpu)) {
        return cli_usage_error(command, "--check is of the reference operators, without --json");
    }
    u32 n_wanted = 0;
    for (u32 kernel = 0; kernel < CUDA_KERNEL_COUNT; kernel++) n_wanted += is_wanted(&c, kernel);
    if (n_wanted == 0) {
        return cli_usage_error(command, "no kernel has a name that begins with \"%.64s\"",
                               c.kernel);
    }
    output_init(&c.out, PLATFORM_STDOUT);
    output_init(&c.messages, PLATFORM_STDERR);
    return run_command(&c, start);
}
