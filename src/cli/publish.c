// SPDX-License-Identifier: Apache-2.0
// Events of many sequences into a spool (publish.h).
#include "cli/publish.h"

enum sov_status publisher_open(struct publisher *publisher, const char *path,
                               struct sov_fault *fault) {
    *publisher = (struct publisher){.path = path};
    if (path == NULL) return SOV_OK;
    struct spool *spool = platform_memory_map(sizeof *spool);
    if (spool == NULL) return fault_set(fault, SOV_ERR_MEMORY, "spool: no memory");
    struct sov_fault inner = {0};
    enum sov_status status = spool_open(spool, path, &inner);
    if (status == SOV_OK) {
        publisher->spool = spool;
        return SOV_OK;
    }
    platform_memory_unmap(spool, sizeof *spool);
    return status == SOV_ERR_IO ? fault_set(fault, status, "%s", inner.message) // it has the path
                                : fault_set(fault, status, "%.256s: %s", path, inner.message);
}

void publisher_close(struct publisher *publisher) {
    if (publisher->spool == NULL) return;
    spool_close(publisher->spool);
    platform_memory_unmap(publisher->spool, sizeof *publisher->spool);
    publisher->spool = NULL;
}

static void fail(struct publisher *publisher, const struct sov_fault *fault) {
    struct output err;
    publisher->has_failed = true;
    output_init(&err, PLATFORM_STDERR);
    output_format(&err, "sov: %.256s: %s\n", publisher->path, fault->message);
    output_flush(&err);
}

void publisher_put(struct publisher *publisher, struct engine *engine,
                   const struct engine_report *report, publisher_fault_of *fault_of,
                   void *context) {
    if (publisher->spool == NULL || publisher->has_failed) return;
    u64 now = platform_wall_ns();
    struct sov_fault fault = {0};
    enum sov_status status = SOV_OK;
    for (u32 i = 0; i < report->n_outputs && status == SOV_OK; i++) {
        const struct engine_output *output = &report->outputs[i];
        struct sov_fault *of_sequence = fault_of(context, output->sequence);
        bool is_no_end = output->event.finish == FINISH_CANCEL ||
                         output->event.finish == FINISH_FAILED; // U2
        if (of_sequence->status != SOV_OK || is_no_end) continue;
        status = spool_append(publisher->spool, &output->event, now, &fault);
        if (status != SOV_ERR_INTEGRITY) continue;
        *of_sequence = fault;
        engine_interrupt(engine, output->sequence);
        fault = (struct sov_fault){0};
        status = SOV_OK;
    }
    if (status == SOV_OK) status = spool_flush(publisher->spool, &fault);
    if (status != SOV_OK) fail(publisher, &fault);
}

void publisher_put_figures(const struct publisher *publisher, struct output *out) {
    const struct spool *spool = publisher->spool;
    if (spool == NULL) return;
    output_format(out, "events: %llu written, %llu were there%s\n", spool->n_events,
                  spool->n_skipped, publisher->has_failed ? "; not all could be written" : "");
}
