// SPDX-License-Identifier: Apache-2.0
// Verification of a store by what it holds alone: one pass over the log, every byte of which is
// under a digest, and the head slots compared with what the pass finds. It shares the checks of an
// entry with the writer (W1); tools/verify_store.py shares nothing and must agree.
#include "freestanding/mem.h"
#include "platform/platform.h"
#include "record/worm.h"

struct verifier {
    struct worm_reader reader;
    struct worm_state state;
    struct worm_slot slots[2];
    int newer;
};

static enum sov_status check_slots(struct verifier *v, u64 *file_bytes, struct sov_fault *fault) {
    bool valid[2];
    enum sov_status status = worm_read_slots(&v->reader, true, v->slots, valid, file_bytes, fault);
    if (status != SOV_OK) return status;
    if (!valid[0] || !valid[1]) {
        return fault_set(fault, SOV_ERR_INTEGRITY,
                         "head slot %d does not verify: it was changed, or a crash tore it (then "
                         "opening the store for writing mends it)",
                         valid[0] ? 1 : 0);
    }
    v->newer = worm_newer_slot(v->slots, valid);
    if (v->newer < 0) {
        return fault_set(fault, SOV_ERR_INTEGRITY, "the head slots do not follow each other");
    }
    u64 length = v->slots[v->newer].heads.length;
    if (*file_bytes < length) {
        return fault_set(fault, SOV_ERR_INTEGRITY,
                         "the log has %llu bytes, %llu were acknowledged: it was cut", *file_bytes,
                         length);
    }
    return SOV_OK;
}

static void fill_report(const struct verifier *v, struct rowm_report *report) {
    const struct worm_heads *heads = &v->slots[v->newer].heads;
    *report = (struct rowm_report){
        .head =
            {
                .n_entries = heads->n_entries,
                .length = heads->length,
                .time = heads->time,
                .n_records = v->state.n_records,
                .n_sessions = v->state.n_sessions,
                .root = heads->root,
                .worm = heads->worm,
                .evolution = heads->evolution,
                .access = heads->access,
            },
        .n_capabilities = v->state.n_capabilities,
    };
    for (u64 i = 0; i < v->state.n_records; i++) {
        report->n_available += v->state.records[i].capability_state == CAPABILITY_AVAILABLE;
    }
}

static enum sov_status verify(struct verifier *v, const struct rowm_expect *expect,
                              struct rowm_report *report, struct sov_fault *fault) {
    u64 file_bytes = 0;
    enum sov_status status = check_slots(v, &file_bytes, fault);
    if (status == SOV_OK) {
        status = worm_pass(&v->reader, &v->state, &v->slots[v->newer], &v->slots[1 - v->newer],
                           expect, fault);
    }
    if (status != SOV_OK) return status;
    fill_report(v, report);
    report->tail_offset = v->state.heads.length;
    report->tail_bytes = file_bytes - report->tail_offset;
    v->reader.limit = file_bytes;
    v->reader.window_bytes = 0;
    u64 n_before = v->state.heads.n_entries;
    enum worm_found found = WORM_ENTRY;
    while (status == SOV_OK && found == WORM_ENTRY) {
        status = worm_step(&v->reader, &v->state, &found, fault);
    }
    report->tail_entries = v->state.heads.n_entries - n_before;
    return status;
}

enum sov_status sov_rowm_verify(const struct rowm_disk *disk, const struct rowm_expect *expect,
                                struct rowm_report *report, struct sov_fault *fault) {
    struct verifier *v = platform_memory_map(sizeof *v);
    if (v == NULL) {
        return fault_set(fault, SOV_ERR_MEMORY, "verification needs %llu bytes", (u64)sizeof *v);
    }
    worm_begin(&v->state);
    v->reader.disk = disk;
    enum sov_status status =
        disk->open(disk->context, "log", ROWM_OPEN_READ, &v->reader.file, fault);
    if (status == SOV_OK) {
        status = verify(v, expect, report, fault);
        disk->close(disk->context, v->reader.file);
    }
    worm_free(&v->state);
    platform_memory_unmap(v, sizeof *v);
    return status;
}
