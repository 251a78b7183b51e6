// SPDX-License-Identifier: Apache-2.0
// A store read without its lock, and verification by what it holds alone: one pass over the log,
// every byte of which is under a digest, and the head slots compared with what the pass finds. It
// shares the checks of an entry with the writer (W1); tools/verify_store.py shares nothing and must
// agree.
//
// A writer that goes on meanwhile changes nothing in front of the length that the newer slot had;
// what is behind it is the tail.
#include "record/snapshot.h"
#include "freestanding/mem.h"
#include "platform/platform.h"
#include "record/worm.h"

struct rowm_snapshot {
    struct worm_reader reader;
    struct worm_state state;
    struct worm_slot slots[2];
    int newer;
    u64 file_bytes;
};

static enum sov_status check_slots(struct rowm_snapshot *s, struct sov_fault *fault) {
    bool valid[2];
    enum sov_status status =
        worm_read_slots(&s->reader, true, s->slots, valid, &s->file_bytes, fault);
    if (status != SOV_OK) return status;
    if (!valid[0] || !valid[1]) {
        return fault_set(fault, SOV_ERR_INTEGRITY,
                         "head slot %d does not verify: it was changed, or a crash tore it (then "
                         "opening the store for writing mends it)",
                         valid[0] ? 1 : 0);
    }
    s->newer = worm_newer_slot(s->slots, valid);
    if (s->newer < 0) {
        return fault_set(fault, SOV_ERR_INTEGRITY, "the head slots do not follow each other");
    }
    u64 length = s->slots[s->newer].heads.length;
    if (s->file_bytes < length) {
        return fault_set(fault, SOV_ERR_INTEGRITY,
                         "the log has %llu bytes, %llu were acknowledged: it was cut",
                         s->file_bytes, length);
    }
    return SOV_OK;
}

static enum sov_status pass(struct rowm_snapshot *s, const struct rowm_expect *expect,
                            struct sov_fault *fault) {
    worm_begin(&s->state);
    s->state.is_reader = true;
    return worm_pass(&s->reader, &s->state, &s->slots[s->newer], &s->slots[1 - s->newer], expect,
                     fault);
}

static void fill_report(const struct rowm_snapshot *s, struct rowm_report *report) {
    const struct worm_heads *heads = &s->slots[s->newer].heads;
    *report = (struct rowm_report){
        .head =
            {
                .n_entries = heads->n_entries,
                .length = heads->length,
                .time = heads->time,
                .n_records = s->state.n_records,
                .n_sessions = s->state.n_sessions,
                .root = heads->root,
                .worm = heads->worm,
                .evolution = heads->evolution,
                .access = heads->access,
            },
        .n_capabilities = s->state.n_capabilities,
        .tail_offset = heads->length,
        .tail_bytes = s->file_bytes - heads->length,
    };
    for (u64 i = 0; i < s->state.n_records; i++) {
        report->n_available += s->state.records[i].capability_state == CAPABILITY_AVAILABLE;
    }
}

// Whole entries behind the acknowledged ones must be valid; then the state forgets them.
static enum sov_status check_tail(struct rowm_snapshot *s, struct rowm_report *report,
                                  struct sov_fault *fault) {
    s->reader.limit = s->file_bytes;
    s->reader.window_bytes = 0;
    enum worm_found found = WORM_ENTRY;
    enum sov_status status = SOV_OK;
    while (status == SOV_OK && found == WORM_ENTRY) {
        status = worm_step(&s->reader, &s->state, &found, fault);
        report->tail_entries += status == SOV_OK && found == WORM_ENTRY;
    }
    s->reader.limit = s->slots[s->newer].heads.length;
    s->reader.window_bytes = 0;
    if (status != SOV_OK || report->tail_entries == 0) return status;
    worm_free(&s->state);
    bool skips = s->reader.skips_payloads;
    s->reader.skips_payloads = true; // they were compared
    status = pass(s, NULL, fault);
    s->reader.skips_payloads = skips;
    return status;
}

static enum sov_status open_log(struct rowm_snapshot *s, const struct rowm_snapshot_options *o,
                                struct rowm_report *report, struct sov_fault *fault) {
    const struct rowm_disk *disk = s->reader.disk;
    if (disk->is_missing(disk->context, WORM_LOG_NAME)) {
        return fault_set(fault, SOV_ERR_FORMAT, "no store is there: it would have a file \"%s\"",
                         WORM_LOG_NAME);
    }
    enum sov_status status =
        disk->open(disk->context, WORM_LOG_NAME, ROWM_OPEN_READ, &s->reader.file, fault);
    if (status == SOV_OK) status = check_slots(s, fault);
    if (status == SOV_OK) status = pass(s, o->expect, fault);
    if (status != SOV_OK) return status;
    fill_report(s, report);
    return check_tail(s, report, fault);
}

enum sov_status rowm_snapshot_open(const struct rowm_disk *disk,
                                   const struct rowm_snapshot_options *options,
                                   struct rowm_snapshot **snapshot, struct rowm_report *report,
                                   struct sov_fault *fault) {
    *report = (struct rowm_report){0};
    struct rowm_snapshot *s = platform_memory_map(sizeof *s);
    if (s == NULL) {
        return fault_set(fault, SOV_ERR_MEMORY, "reading a store needs %llu bytes", (u64)sizeof *s);
    }
    worm_begin(&s->state);
    s->reader.disk = disk;
    s->reader.file = -1;
    s->reader.skips_payloads = options->skips_payloads;
    s->reader.may_thread = true;
    s->reader.look = options->look;
    s->reader.look_context = options->look_context;
    enum sov_status status = open_log(s, options, report, fault);
    s->reader.look = NULL;
    if (status != SOV_OK) {
        rowm_snapshot_close(s);
        return status;
    }
    *snapshot = s;
    return SOV_OK;
}

void rowm_snapshot_close(struct rowm_snapshot *snapshot) {
    const struct rowm_disk *disk = snapshot->reader.disk;
    if (snapshot->reader.file >= 0) disk->close(disk->context, snapshot->reader.file);
    worm_free(&snapshot->state);
    platform_memory_unmap(snapshot, sizeof *snapshot);
}

enum sov_status sov_rowm_verify(const struct rowm_disk *disk, const struct rowm_expect *expect,
                                struct rowm_report *report, struct sov_fault *fault) {
    struct rowm_snapshot_options options = {.expect = expect};
    struct rowm_snapshot *snapshot = NULL;
    enum sov_status status = rowm_snapshot_open(disk, &options, &snapshot, report, fault);
    if (snapshot != NULL) rowm_snapshot_close(snapshot);
    return status;
}

// --- asking ---

u64 rowm_snapshot_records(const struct rowm_snapshot *snapshot) {
    return snapshot->state.n_records;
}

struct rowm_record_info rowm_snapshot_info(const struct rowm_snapshot *snapshot, u64 record) {
    assert(record < snapshot->state.n_records);
    return worm_info(&snapshot->state, record);
}

u64 rowm_snapshot_consumed(const struct rowm_snapshot *snapshot, u64 record) {
    assert(record < snapshot->state.n_records);
    return snapshot->state.records[record].consumed;
}

struct rowm_receipt rowm_snapshot_receipt(const struct rowm_snapshot *snapshot, u64 time) {
    return worm_receipt(&snapshot->state, time);
}

enum sov_status rowm_snapshot_read(struct rowm_snapshot *snapshot, u64 record, u8 *payload,
                                   usize capacity, struct sov_fault *fault) {
    assert(record < snapshot->state.n_records);
    const struct worm_record *r = &snapshot->state.records[record];
    if (r->payload_bytes > capacity) {
        return fault_set(fault, SOV_ERR_LIMIT, "the payload has %llu bytes, there is room for %llu",
                         r->payload_bytes, (u64)capacity);
    }
    struct sha256_digest digest;
    enum sov_status status = worm_read_payload(&snapshot->reader, r->payload_offset,
                                               r->payload_bytes, payload, &digest, fault);
    if (status == SOV_OK && !sha256_equal(&digest, &r->payload_hash)) {
        status =
            fault_set(fault, SOV_ERR_INTEGRITY, "the payload of record %llu was changed", record);
    }
    if (status != SOV_OK) memset(payload, 0, (usize)r->payload_bytes);
    return status;
}

// --- manifests ---

struct cursor { // over untrusted bytes; its error sticks, and reads behind it yield zeros
    struct str rest;
    bool failed;
};

static struct str take(struct cursor *c, u64 n) {
    if (n > c->rest.len) c->failed = true;
    if (c->failed) return STR("");
    struct str taken = {c->rest.data, (usize)n};
    c->rest.data += n;
    c->rest.len -= (usize)n;
    return taken;
}

static u64 take_u64(struct cursor *c) {
    struct str bytes = take(c, 8);
    return c->failed ? 0 : load_u64(bytes.data);
}

static u8 take_u8(struct cursor *c) {
    struct str bytes = take(c, 1);
    return c->failed ? 0 : bytes.data[0];
}

static struct str take_text(struct cursor *c) {
    u64 n = take_u64(c);
    if (n > ROWM_TEXT_BYTES_MAX) c->failed = true;
    return take(c, n);
}

enum sov_status rowm_manifest_read(struct str payload, struct rowm_manifest *manifest,
                                   struct sov_fault *fault) {
    struct cursor c = {.rest = payload};
    *manifest = (struct rowm_manifest){0};
    bool is_manifest = str_equal(take(&c, WORM_TAG_BYTES), STR(WORM_MANIFEST_TAG));
    u8 hash = take_u8(&c);
    manifest->numeric_profile = take_u8(&c);
    struct sha256_digest *digests[] = {&manifest->build, &manifest->contract, &manifest->model,
                                       &manifest->kernels};
    for (u32 i = 0; i < COUNT_OF(digests); i++) {
        struct str bytes = take(&c, SHA256_BYTES);
        if (!c.failed) memcpy(digests[i]->bytes, bytes.data, SHA256_BYTES);
    }
    manifest->wall_ns = take_u64(&c);
    manifest->engine_version = take_text(&c);
    manifest->device = take_text(&c);
    manifest->driver = take_text(&c);
    if (is_manifest && hash == WORM_HASH_SHA256 && !c.failed && c.rest.len == 0) return SOV_OK;
    *manifest = (struct rowm_manifest){0};
    return fault_set(fault, SOV_ERR_FORMAT, "a manifest that this program cannot read");
}
