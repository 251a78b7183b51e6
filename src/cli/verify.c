// SPDX-License-Identifier: Apache-2.0
// sov verify: whether a store holds together, and extends a head that was kept. It reads only, and
// takes no lock: a run that goes on recording meanwhile does not notice.
#include "cli/store.h"

struct verify_options {
    const char *path, *expect;
    bool json;
};

static void put_text(const struct verify_options *o, const struct store_view *view,
                     const struct store_sealed *sealed, struct output *out) {
    const struct rowm_report *r = &view->report;
    f64 seconds = (f64)(view->end_ns - view->begin_ns) / 1e9;
    output_put_utf8(out, str_from_z(o->path));
    output_format(out,
                  ": verified\n%llu entries: %llu records of %llu sessions, %llu of %llu "
                  "capabilities are available\n",
                  r->head.n_entries, r->head.n_records, r->head.n_sessions, r->n_available,
                  r->n_capabilities);
    if (o->expect != NULL) {
        output_format(out, "it extends the expected head: %.100s\n", o->expect);
    }
    if (sealed->n > 0) {
        output_format(out,
                      "%llu commitments; the sidecar has the texts and tokens of %llu of them\n",
                      sealed->n, sealed->n_opened);
    }
    if (r->tail_bytes > 0) {
        output_format(out,
                      "tail: %llu bytes at byte %llu (%llu whole entries) were never acknowledged; "
                      "the next writer takes or cuts them\n",
                      r->tail_bytes, r->tail_offset, r->tail_entries);
    }
    output_format(out, "%.1f MB read in %.2f s, %.2f GB/s\nhead ", (f64)r->head.length / 1e6,
                  seconds, seconds > 0 ? (f64)r->head.length / seconds / 1e9 : 0.0);
    store_put_head(out, &r->head);
    output_put(out, STR("\n"));
}

static void put_json_digest(struct output *out, const char *name,
                            const struct sha256_digest *digest) {
    char hex[SHA256_HEX_BYTES + 1];
    sha256_to_hex(digest, hex);
    output_format(out, ",\"%s\":\"%s\"", name, hex);
}

static void put_json(const struct verify_options *o, const struct store_view *view,
                     const struct store_sealed *sealed, struct output *out) {
    const struct rowm_report *r = &view->report;
    output_put(out, STR("{\"store\":"));
    output_json_string(out, str_from_z(o->path));
    output_put(out, STR(",\"verified\":true,\"head\":\""));
    store_put_head(out, &r->head);
    output_format(out, "\",\"entries\":%llu", r->head.n_entries);
    put_json_digest(out, "root", &r->head.root);
    put_json_digest(out, "worm", &r->head.worm);
    put_json_digest(out, "evolution", &r->head.evolution);
    put_json_digest(out, "access", &r->head.access);
    output_format(out,
                  ",\"bytes\":%llu,\"receipts\":%llu,\"records\":%llu,\"sessions\":%llu,"
                  "\"capabilities\":%llu,\"available\":%llu,\"tail_offset\":%llu,"
                  "\"tail_bytes\":%llu,\"tail_entries\":%llu,\"commitments\":%llu,"
                  "\"opened\":%llu,\"seconds\":%.6f}\n",
                  r->head.length, r->head.time, r->head.n_records, r->head.n_sessions,
                  r->n_capabilities, r->n_available, r->tail_offset, r->tail_bytes, r->tail_entries,
                  sealed->n, sealed->n_opened, (f64)(view->end_ns - view->begin_ns) / 1e9);
}

static void put_json_failure(const struct verify_options *o, const struct sov_fault *fault,
                             struct output *out) {
    output_put(out, STR("{\"store\":"));
    output_json_string(out, str_from_z(o->path));
    output_format(out, ",\"verified\":false,\"error\":{\"code\":\"%s\",\"message\":",
                  status_name(fault->status));
    output_json_string(out, str_from_z(fault->message));
    output_put(out, STR("}}\n"));
}

int cli_verify(const struct command *command, const struct platform_start *start) {
    struct verify_options o = {0};
    bool *const no = NULL;
    const struct option options[] = {
        {OPTION_POSITIONAL, "STORE", NULL, NULL, &o.path, no, 0, 0,
         "folder of a store (sov log lists them)"},
        {OPTION_STRING, "--expect", NULL, "SIZE:ROOT", &o.expect, no, 0, 0,
         "a head that was kept: it must be this store's, or one that the store extends"},
        {OPTION_FLAG, "--json", NULL, NULL, &o.json, no, 0, 0, "print one JSON object"},
    };
    int exit_code = 0;
    if (!cli_parse(command, start, options, COUNT_OF(options), &exit_code)) return exit_code;
    if (o.path == NULL) return cli_usage_error(command, "STORE is missing");
    struct rowm_expect expect = {0};
    if (o.expect != NULL && !store_head_parse(str_from_z(o.expect), &expect)) {
        return cli_usage_error(command, "--expect takes SIZE:ROOT as it was printed, not \"%.80s\"",
                               o.expect);
    }
    platform_watch_interrupt();
    struct sov_fault fault = {0};
    struct store_view view;
    struct store_sealed sealed;
    struct output out;
    output_init(&out, PLATFORM_STDOUT);
    enum sov_status status =
        store_view_open(&view, o.path, o.expect != NULL ? &expect : NULL, false, true, &fault);
    if (status == SOV_OK) {
        status = store_count_sealed(&view, &sealed, &fault);
        if (status != SOV_OK) store_view_close(&view);
    }
    if (status != SOV_OK) {
        if (o.json) put_json_failure(&o, &fault, &out);
        (void)output_finish(&out);
        return cli_fail(&fault);
    }
    if (o.json) {
        put_json(&o, &view, &sealed, &out);
    } else {
        put_text(&o, &view, &sealed, &out);
    }
    store_view_close(&view);
    return output_finish(&out);
}
