// SPDX-License-Identifier: Apache-2.0
// Where stores lie, and looking into one.
#include "cli/store.h"

#define RECORDS_BELOW_STATE "sov-rtx/records"
#define STATE_BELOW_HOME ".local/state"
#define SHOW_NS 200000000ull // between two lines of progress

enum sov_status store_records_folder(const struct platform_start *start, char path[ROWM_PATH_BYTES],
                                     struct sov_fault *fault) {
    const char *state = platform_environment(start, "XDG_STATE_HOME");
    const char *home = platform_environment(start, "HOME");
    struct text t = text_over(path, ROWM_PATH_BYTES);
    if (state != NULL && state[0] == '/') { // others are to be ignored, says the specification
        text_format(&t, "%s/" RECORDS_BELOW_STATE, state);
    } else if (home != NULL && home[0] != 0) {
        text_format(&t, "%s/" STATE_BELOW_HOME "/" RECORDS_BELOW_STATE, home);
    } else {
        return fault_set(fault, SOV_ERR_USAGE,
                         "neither XDG_STATE_HOME nor HOME says where records are");
    }
    return t.truncated ? fault_set(fault, SOV_ERR_LIMIT, "the path of the records is too long")
                       : SOV_OK;
}

enum sov_status store_name_fault(const char *path, struct sov_fault *fault) {
    struct sov_fault inner = *fault;
    *fault = (struct sov_fault){0};
    return fault_set(fault, inner.status, "%.256s: %s", path, inner.message);
}

static bool look(void *context, u64 done, u64 total) {
    struct store_view *view = context;
    u64 now = platform_monotonic_ns();
    if (view->shows && now - view->shown_ns >= SHOW_NS) {
        view->shown_ns = now;
        struct output err;
        output_init(&err, PLATFORM_STDERR);
        output_format(&err, "\r%.1f of %.1f MB, %.2f GB/s\033[K", (f64)done / 1e6, (f64)total / 1e6,
                      (f64)done / (f64)MAX(now - view->begin_ns, 1ull));
        output_flush(&err);
    }
    return !platform_interrupted();
}

enum sov_status store_view_open(struct store_view *view, const char *path,
                                const struct rowm_expect *expect, bool skips_payloads, bool shows,
                                struct sov_fault *fault) {
    *view = (struct store_view){
        .folder = {path},
        .shows = shows && platform_is_terminal(PLATFORM_STDERR),
        .begin_ns = platform_monotonic_ns(),
    };
    view->shown_ns = view->begin_ns;
    view->disk = rowm_folder_disk(&view->folder);
    struct rowm_snapshot_options options = {
        .expect = expect,
        .skips_payloads = skips_payloads,
        .look = look,
        .look_context = view,
    };
    enum sov_status status =
        rowm_snapshot_open(&view->disk, &options, &view->snapshot, &view->report, fault);
    view->end_ns = platform_monotonic_ns();
    if (view->shows) {
        struct output err;
        output_init(&err, PLATFORM_STDERR);
        output_put(&err, STR("\r\033[K"));
        output_flush(&err);
    }
    if (status == SOV_OK) return SOV_OK;
    if (status == SOV_ERR_IO) fault->status = SOV_ERR_UNSUPPORTED;
    return store_name_fault(path, fault);
}

void store_view_close(struct store_view *view) {
    if (view->snapshot != NULL) rowm_snapshot_close(view->snapshot);
    if (view->sidecar != NULL) sidecar_close(view->sidecar);
    view->snapshot = NULL;
    view->sidecar = NULL;
}

void store_put_head(struct output *out, const struct rowm_head *head) {
    char hex[SHA256_HEX_BYTES + 1];
    sha256_to_hex(&head->root, hex);
    output_format(out, "%llu:%s", head->n_entries, hex);
}

bool store_head_parse(struct str text, struct rowm_expect *head) {
    usize at = 0;
    while (at < text.len && text.data[at] != ':') at++;
    if (at == text.len) return false;
    struct str root = {text.data + at + 1, text.len - at - 1};
    return text_parse_u64((struct str){text.data, at}, &head->n_entries) &&
           sha256_from_hex(root, &head->root);
}

enum sov_status store_read_manifest(struct store_view *view, u64 record,
                                    struct rowm_manifest *manifest, struct sov_fault *fault) {
    u8 payload[ROWM_MANIFEST_BYTES_MAX];
    struct rowm_record_info info = rowm_snapshot_info(view->snapshot, record);
    enum sov_status status =
        rowm_snapshot_read(view->snapshot, record, payload, sizeof payload, fault);
    if (status != SOV_OK) return status;
    struct str bytes = {payload, (usize)info.payload_bytes};
    status = rowm_manifest_read(bytes, manifest, fault);
    manifest->engine_version = manifest->device = manifest->driver = STR("");
    return status;
}

// --- sequences ---

// The slot of an owner, or the free one where it would stand. Ids are digests or random.
static u32 *owner_slot(const struct store_sequences *s, u64 owner) {
    for (u64 i = owner ^ owner >> 32;; i++) {
        u32 *slot = &s->slots[i & (s->n_slots - 1)];
        if (*slot == 0 || s->items[*slot - 1].owner == owner) return slot;
    }
}

struct store_sequence *store_sequence_find(const struct store_sequences *sequences, u64 owner) {
    if (sequences->n == 0) return NULL;
    u32 at = *owner_slot(sequences, owner);
    return at == 0 ? NULL : &sequences->items[at - 1];
}

static enum sov_status take_request(struct store_sequences *s, const struct rowm_record_info *info,
                                    struct sov_fault *fault) {
    u32 *slot = owner_slot(s, info->owner);
    if (*slot != 0) {
        return fault_set(fault, SOV_ERR_FORMAT, "record %llu: a second request of one sequence",
                         info->record);
    }
    s->items[s->n] = (struct store_sequence){
        .owner = info->owner,
        .request = info->record,
        .first = ROWM_NONE,
        .last = ROWM_NONE,
        .finish = ROWM_NONE,
    };
    *slot = (u32)++s->n;
    return SOV_OK;
}

static enum sov_status take_state(struct store_sequences *s, const struct rowm_record_info *info,
                                  struct sov_fault *fault) {
    u32 at = *owner_slot(s, info->owner);
    struct store_sequence *sequence = at == 0 ? NULL : &s->items[at - 1];
    if (sequence == NULL || sequence->finish != ROWM_NONE) {
        return fault_set(fault, SOV_ERR_FORMAT, "record %llu %s", info->record,
                         sequence == NULL ? "belongs to no request"
                                          : "continues a sequence that has ended");
    }
    if (info->kind == ROWM_FINISH) sequence->finish = info->record;
    sequence->n_checkpoints += info->kind == ROWM_CHECKPOINT && info->source == ROWM_NONE;
    if (sequence->first == ROWM_NONE) {
        sequence->first = info->record;
    } else {
        s->next[sequence->last] = info->record;
    }
    sequence->last = info->record;
    return SOV_OK;
}

static void *map_or_null(u64 n, u64 bytes) {
    return platform_memory_map((usize)(MAX(n, 1ull) * bytes));
}

enum sov_status store_sequences_read(const struct rowm_snapshot *snapshot,
                                     struct store_sequences *sequences, struct sov_fault *fault) {
    u64 n_records = rowm_snapshot_records(snapshot);
    struct store_sequences *s = sequences;
    *s = (struct store_sequences){.n_records = n_records, .n_slots = 16};
    while (s->n_slots < 2 * n_records) s->n_slots *= 2;
    s->items = map_or_null(n_records, sizeof *s->items);
    s->next = map_or_null(n_records, sizeof *s->next);
    s->slots = map_or_null(s->n_slots, sizeof *s->slots);
    if (s->items == NULL || s->next == NULL || s->slots == NULL) {
        store_sequences_free(s);
        return fault_set(fault, SOV_ERR_MEMORY, "%llu records: no memory for them", n_records);
    }
    enum sov_status status = SOV_OK;
    for (u64 i = 0; i < n_records && status == SOV_OK; i++) {
        struct rowm_record_info info = rowm_snapshot_info(snapshot, i);
        s->next[i] = ROWM_NONE;
        if (info.kind == ROWM_REQUEST) status = take_request(s, &info, fault);
        if (info.kind == ROWM_CHECKPOINT || info.kind == ROWM_FINISH) {
            status = take_state(s, &info, fault);
        }
    }
    if (status != SOV_OK) store_sequences_free(s);
    return status;
}

void store_sequences_free(struct store_sequences *sequences) {
    struct store_sequences *s = sequences;
    u64 n = MAX(s->n_records, 1ull);
    if (s->items != NULL) platform_memory_unmap(s->items, (usize)(n * sizeof *s->items));
    if (s->next != NULL) platform_memory_unmap(s->next, (usize)(n * sizeof *s->next));
    if (s->slots != NULL) platform_memory_unmap(s->slots, (usize)(s->n_slots * sizeof *s->slots));
    *s = (struct store_sequences){0};
}

static enum sov_status reserve(struct store_payload *payload, u64 record, u64 bytes,
                               struct sov_fault *fault) {
    if (bytes <= payload->capacity) return SOV_OK;
    store_payload_free(payload);
    payload->memory = platform_memory_map((usize)bytes);
    if (payload->memory == NULL) {
        return fault_set(fault, SOV_ERR_MEMORY, "record %llu has %llu bytes: no memory", record,
                         bytes);
    }
    payload->capacity = bytes;
    return SOV_OK;
}

// Later than the snapshot, so it has what the snapshot has commitments to.
static enum sov_status need_sidecar(struct store_view *view, struct sov_fault *fault) {
    return view->sidecar != NULL ? SOV_OK : sidecar_open(&view->disk, &view->sidecar, fault);
}

enum sov_status store_count_sealed(struct store_view *view, struct store_sealed *sealed,
                                   struct sov_fault *fault) {
    *sealed = (struct store_sealed){0};
    for (u64 record = 0; record < rowm_snapshot_records(view->snapshot); record++) {
        struct rowm_record_info info = rowm_snapshot_info(view->snapshot, record);
        u8 payload[SEALED_BYTES];
        struct sealed found;
        struct sov_fault ignored = {0};
        if (info.payload_bytes != SEALED_BYTES || info.source != ROWM_NONE) continue;
        enum sov_status status =
            rowm_snapshot_read(view->snapshot, record, payload, sizeof payload, fault);
        if (status != SOV_OK) return status;
        if (!sealed_read((struct str){payload, sizeof payload}, &found)) continue;
        sealed->n++;
        if (need_sidecar(view, &ignored) == SOV_OK &&
            sidecar_check(view->sidecar, &found, &ignored) == SOV_OK) {
            sealed->n_opened++;
        }
        if (platform_interrupted()) {
            return fault_set(fault, SOV_ERR_INTERRUPTED, "stopped by a signal");
        }
    }
    return SOV_OK;
}

// What a commitment stands for, in the place of it.
static enum sov_status open_sealed(struct store_view *view, u64 record, const struct sealed *sealed,
                                   struct store_payload *payload, struct sov_fault *fault) {
    struct sov_fault inner = {0};
    enum sov_status status = need_sidecar(view, &inner);
    if (status == SOV_ERR_IO) inner.status = status = SOV_ERR_UNSUPPORTED; // not to be had here
    if (status == SOV_OK && sidecar_has(view->sidecar, sealed)) {
        status = reserve(payload, record, sealed->opening_bytes, &inner);
    }
    if (status == SOV_OK) {
        status = sidecar_read(view->sidecar, sealed, payload->memory, &inner);
    }
    if (status != SOV_OK) {
        return fault_set(fault, status, "record %llu is a commitment; %s", record, inner.message);
    }
    payload->given = (struct str){payload->memory, (usize)sealed->opening_bytes};
    payload->bytes = sealed_payload(payload->given, &payload->salt);
    payload->is_sealed = true;
    return SOV_OK;
}

enum sov_status store_payload_open(struct store_view *view, u64 record, u64 bytes,
                                   struct store_payload *payload, struct sov_fault *fault) {
    payload->bytes = payload->given = (struct str){payload->memory, (usize)bytes};
    payload->is_sealed = false;
    struct sealed sealed;
    return sealed_read(payload->bytes, &sealed) ? open_sealed(view, record, &sealed, payload, fault)
                                                : SOV_OK;
}

enum sov_status store_payload_read(struct store_view *view, u64 record,
                                   struct store_payload *payload, struct sov_fault *fault) {
    u64 bytes = rowm_snapshot_info(view->snapshot, record).payload_bytes;
    enum sov_status status = reserve(payload, record, bytes, fault);
    if (status == SOV_OK) {
        status = rowm_snapshot_read(view->snapshot, record, payload->memory,
                                    (usize)payload->capacity, fault);
    }
    return status == SOV_OK ? store_payload_open(view, record, bytes, payload, fault) : status;
}

void store_payload_free(struct store_payload *payload) {
    if (payload->memory != NULL) platform_memory_unmap(payload->memory, (usize)payload->capacity);
    *payload = (struct store_payload){0};
}

bool store_sequence_id(const char *text, u64 *id) {
    struct str s = str_from_z(text);
    *id = 0;
    for (usize i = 0; i < s.len; i++) {
        u8 c = s.data[i];
        u32 digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : 16;
        if (digit == 16) return false;
        *id = *id << 4 | digit;
    }
    return s.len == 16;
}
