// SPDX-License-Identifier: Apache-2.0
// sov log: the stores of this user, the sequences of one, their removal, which nothing but --prune
// does, and the erasure of what commitments stand for (--erase).
//
// G1. A store goes whose last session began more than --older-than days ago. One with a sequence
//     that can be resumed, and a folder that does not read as a store, stay unless --force is
//     given; one in use stays in any case.
// G2. Removing holds the store's lock, and begins with the log: what is left by a crash in between
//     has no log, and is no store any more. Files that no store has are left, and their folder.
#include "cli/store.h"
#include "record/payload.h"

#define NAMES_BYTES (8u << 20) // of the folders in the folder of records
#define NAMES_MAX (1u << 18)
#define DAY_NS (86400ull * 1000000000ull)
#define PROMPT_SHOWN_BYTES 48

struct log_options {
    const char *path, *sequence;
    u64 sequence_id;
    bool json, prune, force, erase, has_days;
    u32 days;
};

struct names {
    char *bytes;  // [NAMES_BYTES]
    u32 *offsets; // [NAMES_MAX] of names in it, sorted
    u32 n;
};

static void names_free(struct names *names) {
    if (names->bytes != NULL) platform_memory_unmap(names->bytes, NAMES_BYTES);
    if (names->offsets != NULL) platform_memory_unmap(names->offsets, NAMES_MAX * sizeof(u32));
    *names = (struct names){0};
}

static struct str name_of(const struct names *names, u32 offset) {
    return str_from_z(names->bytes + offset);
}

// Lets the element at `at` sink in the heap of [0, n).
static void sink(struct names *names, u32 at, u32 n) {
    u32 *o = names->offsets;
    for (;;) {
        u32 largest = at;
        for (u32 child = 2 * at + 1; child <= 2 * at + 2 && child < n; child++) {
            if (str_compare(name_of(names, o[child]), name_of(names, o[largest])) > 0) {
                largest = child;
            }
        }
        if (largest == at) return;
        u32 swapped = o[at];
        o[at] = o[largest];
        o[largest] = swapped;
        at = largest;
    }
}

static void names_sort(struct names *names) {
    for (u32 i = names->n / 2; i > 0; i--) sink(names, i - 1, names->n);
    for (u32 n = names->n; n > 1; n--) {
        u32 last = names->offsets[n - 1];
        names->offsets[n - 1] = names->offsets[0];
        names->offsets[0] = last;
        sink(names, 0, n - 1);
    }
}

// Names begin with a date, so the order is that of time.
static enum sov_status names_read(const char *folder, struct names *names,
                                  struct sov_fault *fault) {
    *names = (struct names){
        .bytes = platform_memory_map(NAMES_BYTES),
        .offsets = platform_memory_map(NAMES_MAX * sizeof(u32)),
    };
    if (names->bytes == NULL || names->offsets == NULL) {
        return fault_set(fault, SOV_ERR_MEMORY, "no memory for the names of stores");
    }
    usize n_bytes = 0;
    enum sov_status status = SOV_OK;
    if (!platform_is_missing(folder)) {
        status = platform_folder_names(folder, names->bytes, NAMES_BYTES, &n_bytes, fault);
    }
    for (usize at = 0; at < n_bytes && status == SOV_OK;) {
        usize len = str_from_z(names->bytes + at).len;
        if (names->n == NAMES_MAX) {
            status = fault_set(fault, SOV_ERR_LIMIT, "more than %u stores", NAMES_MAX);
        } else {
            names->offsets[names->n++] = (u32)at;
        }
        at += len + 1;
    }
    if (status == SOV_OK) names_sort(names);
    return status;
}

// --- one store of many ---

struct summary {
    enum sov_status status; // of reading it
    struct sov_fault fault;
    struct rowm_head head;
    u64 wall_ns, last_wall_ns; // of the first and the last session
    u64 n_sequences, n_finished, n_available;
    bool is_used; // somebody holds its lock
};

// Whether somebody holds the lock. Asking takes it for a moment, so this is asked only of stores
// with something to do.
static bool is_in_use(const char *folder) {
    char path[ROWM_PATH_BYTES];
    struct text t = TEXT_OVER_ARRAY(path);
    text_format(&t, "%s/lock", folder);
    int file = -1;
    if (t.truncated || platform_open(path, PLATFORM_OPEN_READ, &file, NULL) != SOV_OK) {
        return false; // without that file nobody has it
    }
    bool is_used = platform_lock(file, NULL) == SOV_ERR_STATE;
    platform_close(file);
    return is_used;
}

// Takes the lock until it is closed, as a writer does, who makes it where it is missing: one that
// begins now is kept out.
static enum sov_status take_lock(const char *path, int *lock, struct sov_fault *fault) {
    struct rowm_folder folder = {path};
    struct rowm_disk disk = rowm_folder_disk(&folder);
    struct sov_fault inner = {0};
    enum sov_status status = disk.open(disk.context, "lock", ROWM_OPEN_LOCK, lock, &inner);
    if (status == SOV_OK) return SOV_OK;
    return fault_set(fault, status, "%s",
                     status == SOV_ERR_STATE ? "in use by another process" : inner.message);
}

static void summarize(const char *folder, struct summary *s) {
    *s = (struct summary){0};
    struct store_view view;
    s->status = store_view_open(&view, folder, NULL, true, false, &s->fault);
    if (s->status != SOV_OK) return;
    s->head = view.report.head;
    s->n_available = view.report.n_available;
    u64 first = ROWM_NONE, last = ROWM_NONE;
    for (u64 i = 0; i < rowm_snapshot_records(view.snapshot); i++) {
        struct rowm_record_info info = rowm_snapshot_info(view.snapshot, i);
        s->n_sequences += info.kind == ROWM_REQUEST;
        s->n_finished += info.kind == ROWM_FINISH;
        if (info.kind != ROWM_MANIFEST) continue;
        if (first == ROWM_NONE) first = i;
        last = i;
    }
    struct rowm_manifest manifest;
    if (first != ROWM_NONE) {
        s->status = store_read_manifest(&view, first, &manifest, &s->fault);
        s->wall_ns = manifest.wall_ns;
    }
    if (s->status == SOV_OK && first != ROWM_NONE) {
        s->status = store_read_manifest(&view, last, &manifest, &s->fault);
        s->last_wall_ns = manifest.wall_ns;
    }
    store_view_close(&view);
    if (s->n_available > 0 || s->n_sequences == 0) s->is_used = is_in_use(folder);
}

static const char *state_name(const struct summary *s) {
    if (s->is_used) return "in use";
    if (s->status != SOV_OK) return s->status == SOV_ERR_INTEGRITY ? "damaged" : "unreadable";
    return s->n_available > 0 ? "interrupted" : s->n_sequences == 0 ? "empty" : "finished";
}

static void put_summary(const char *folder, const struct summary *s, bool json,
                        struct output *out) {
    if (json) {
        output_put(out, STR("{\"store\":"));
        output_json_string(out, str_from_z(folder));
        output_format(out, ",\"state\":\"%s\"", state_name(s));
        if (s->status != SOV_OK) {
            output_format(out, ",\"error\":{\"code\":\"%s\",\"message\":", status_name(s->status));
            output_json_string(out, str_from_z(s->fault.message));
            output_put(out, STR("}}\n"));
            return;
        }
        output_put(out, STR(",\"begun\":\""));
        output_put_time(out, s->wall_ns, false);
        output_put(out, STR("\",\"last_session\":\""));
        output_put_time(out, s->last_wall_ns, false);
        output_format(out,
                      "\",\"sessions\":%llu,\"sequences\":%llu,\"finished\":%llu,"
                      "\"interrupted\":%llu,\"bytes\":%llu,\"head\":\"",
                      s->head.n_sessions, s->n_sequences, s->n_finished, s->n_available,
                      s->head.length);
        store_put_head(out, &s->head);
        output_put(out, STR("\"}\n"));
        return;
    }
    if (s->status == SOV_OK) {
        output_put_time(out, s->wall_ns, false);
        output_format(out, " %8llu %9llu  %-11s ", s->head.n_sessions, s->n_sequences,
                      state_name(s));
    } else {
        output_format(out, "%-20s %8s %9s  %-11s ", "-", "-", "-", state_name(s));
    }
    output_put_utf8(out, str_from_z(folder));
    output_put(out, STR("  "));
    if (s->status == SOV_OK) {
        store_put_head(out, &s->head);
    } else {
        output_put_utf8(out, str_from_z(s->fault.message));
    }
    output_put(out, STR("\n"));
}

static enum sov_status store_path(const char *records, struct str name, char path[ROWM_PATH_BYTES],
                                  struct sov_fault *fault) {
    struct text t = text_over(path, ROWM_PATH_BYTES);
    text_format(&t, "%s/", records);
    text_put(&t, name);
    return t.truncated ? fault_set(fault, SOV_ERR_LIMIT, "the path of a store is too long")
                       : SOV_OK;
}

// --- removal ---

// Why a store stays, or NULL.
static const char *reason_to_stay(const struct summary *s, const struct log_options *o) {
    u64 age_ns = 0, now = platform_wall_ns();
    if (s->is_used) return "in use";
    if (s->status != SOV_OK) return o->force ? NULL : "it does not read as a store";
    if (s->last_wall_ns < now) age_ns = now - s->last_wall_ns;
    if (age_ns <= (u64)o->days * DAY_NS) return "";
    return s->n_available > 0 && !o->force ? "it has an interrupted sequence" : NULL;
}

static enum sov_status remove_store(const char *folder, struct sov_fault *fault) {
    // The log first (G2); the lock, which is held meanwhile, last.
    static const char *const files[] = {"log", "log.new", "sidecar", "sidecar.new", "lock"};
    char path[ROWM_PATH_BYTES];
    int lock = -1;
    enum sov_status status = take_lock(folder, &lock, fault);
    if (status != SOV_OK) return status;
    for (u32 i = 0; i < COUNT_OF(files) && status == SOV_OK; i++) {
        status = store_path(folder, str_from_z(files[i]), path, fault);
        if (status == SOV_OK && !platform_is_missing(path)) status = platform_remove(path, fault);
    }
    if (status == SOV_OK) status = platform_remove_folder(folder, fault);
    platform_close(lock);
    return status;
}

// One store: removed and named, or kept, with the reason unless it is too young.
static bool prune_one(const char *folder, const struct log_options *o, struct output *out) {
    struct summary s;
    summarize(folder, &s);
    if (s.status == SOV_OK && !s.is_used) s.is_used = is_in_use(folder);
    const char *reason = reason_to_stay(&s, o);
    struct sov_fault fault = {0};
    bool failed = reason == NULL && remove_store(folder, &fault) != SOV_OK;
    if (failed) reason = fault.message;
    bool is_told = reason == NULL || reason[0] != 0;
    if (!is_told) return true;
    if (o->json) {
        output_put(out, STR("{\"store\":"));
        output_json_string(out, str_from_z(folder));
        output_format(out, ",\"removed\":%s", reason == NULL ? "true" : "false,\"reason\":");
        if (reason != NULL) output_json_string(out, str_from_z(reason));
        output_put(out, STR("}\n"));
        return !failed;
    }
    output_put(out, reason == NULL ? STR("removed ") : STR("kept "));
    output_put_utf8(out, str_from_z(folder));
    if (reason != NULL) output_put(out, STR(": "));
    if (reason != NULL) output_put_utf8(out, str_from_z(reason));
    output_put(out, STR("\n"));
    return !failed;
}

static enum sov_status list(const struct log_options *o, const char *records, struct output *out,
                            int *exit_code, struct sov_fault *fault) {
    struct names names;
    enum sov_status status = names_read(records, &names, fault);
    bool is_table = !o->json && !o->prune && names.n > 0;
    if (status == SOV_OK && is_table) {
        output_format(out, "%-20s %8s %9s  %-11s %s\n", "BEGUN", "SESSIONS", "SEQUENCES", "STATE",
                      "STORE  HEAD");
    }
    for (u32 i = 0; i < names.n && status == SOV_OK && out->status == SOV_OK; i++) {
        char path[ROWM_PATH_BYTES];
        status = store_path(records, name_of(&names, names.offsets[i]), path, fault);
        if (status != SOV_OK) break;
        if (platform_interrupted()) {
            status = fault_set(fault, SOV_ERR_INTERRUPTED, "stopped by a signal");
        } else if (o->prune) {
            if (!prune_one(path, o, out)) *exit_code = 1;
        } else {
            struct summary s;
            summarize(path, &s);
            put_summary(path, &s, o->json, out);
        }
    }
    names_free(&names);
    return status;
}

// --- one store ---

// The beginning of a text on one line.
static void put_excerpt(struct output *out, struct str text) {
    char line[PROMPT_SHOWN_BYTES * 2];
    struct text t = TEXT_OVER_ARRAY(line);
    struct str shown = {text.data, MIN(text.len, (usize)PROMPT_SHOWN_BYTES)};
    shown.len = utf8_complete_prefix(shown);
    for (usize i = 0; i < shown.len; i++) {
        text_put_byte(&t, shown.data[i] < 0x20 || shown.data[i] == 0x7f ? ' ' : shown.data[i]);
    }
    output_put_utf8(out, (struct str){(const u8 *)t.data, t.len});
    if (text.len > shown.len) output_put(out, STR("..."));
}

static void put_receipts(struct output *out, const struct store_view *view,
                         const struct store_sequences *all, const struct store_sequence *q) {
    output_put(out, STR(",\"receipts\":["));
    for (u64 record = q->request; record != ROWM_NONE;
         record = record == q->request ? q->first : all->next[record]) {
        struct rowm_record_info info = rowm_snapshot_info(view->snapshot, record);
        struct rowm_receipt receipt = rowm_snapshot_receipt(view->snapshot, info.time);
        char hex[SHA256_HEX_BYTES + 1];
        sha256_to_hex(&receipt.hash, hex);
        static const char *const kinds[] = {"?",          "manifest", "request",
                                            "checkpoint", "events",   "finish"};
        output_format(out,
                      "%s{\"record\":%llu,\"kind\":\"%s\",\"session\":%llu,\"epoch\":%llu,"
                      "\"bytes\":%llu,\"time\":%llu,\"receipt\":\"%s\"}",
                      record == q->request ? "" : ",", record, kinds[info.kind], info.session,
                      info.epoch, info.payload_bytes, info.time, hex);
    }
    output_put(out, STR("]"));
}

struct shown_sequence {
    bool is_sealed; // a commitment
    bool is_erased; // what it stands for is not in the sidecar, or not any more what it was
    struct payload_request request;
    struct payload_checkpoint last;
    bool has_last;
    u32 n_prompt, n_generated;
    const char *state;
};

static enum sov_status read_payload(struct store_view *view, u64 record,
                                    struct store_payload *payload, struct shown_sequence *s,
                                    struct sov_fault *fault) {
    enum sov_status status = store_payload_read(view, record, payload, fault);
    s->is_erased = status == SOV_ERR_UNSUPPORTED;
    return status;
}

static enum sov_status read_sequence(struct store_view *view, const struct store_sequence *q,
                                     struct store_payload payloads[2], struct shown_sequence *s,
                                     struct sov_fault *fault) {
    *s = (struct shown_sequence){.state = "interrupted"};
    if (q->finish != ROWM_NONE) s->state = "finished";
    enum sov_status status = read_payload(view, q->request, &payloads[0], s, fault);
    if (status == SOV_OK) status = payload_request_read(payloads[0].bytes, &s->request, fault);
    if (status != SOV_OK) return status;
    s->is_sealed = payloads[0].is_sealed;
    s->n_prompt = payload_count(s->request.tokens);
    if (q->last == ROWM_NONE) return SOV_OK;
    status = read_payload(view, q->last, &payloads[1], s, fault);
    if (status == SOV_OK) status = payload_checkpoint_read(payloads[1].bytes, &s->last, fault);
    if (status != SOV_OK) return status;
    s->has_last = true;
    s->n_prompt = s->last.n_prompt;
    s->n_generated = payload_count(s->last.tokens) - s->last.n_prompt;
    if (q->finish != ROWM_NONE) s->state = event_finish_name((enum finish_reason)s->last.finish);
    return SOV_OK;
}

// The beginning of the last receipt's hash, enough to see a difference.
static void put_last_receipt(struct output *out, const struct store_view *view,
                             const struct store_sequence *q) {
    u64 last = q->last == ROWM_NONE ? q->request : q->last;
    struct rowm_record_info info = rowm_snapshot_info(view->snapshot, last);
    struct rowm_receipt receipt = rowm_snapshot_receipt(view->snapshot, info.time);
    char hex[SHA256_HEX_BYTES + 1];
    sha256_to_hex(&receipt.hash, hex);
    hex[16] = 0;
    output_format(out, "%s", hex);
}

// What is left of a sequence whose texts and tokens were erased.
static void put_erased(const struct log_options *o, const struct store_view *view,
                       const struct store_sequences *all, const struct store_sequence *q,
                       const struct shown_sequence *s, struct output *out) {
    u32 high = (u32)(q->owner >> 32), low = (u32)q->owner;
    if (o->json) {
        output_format(out,
                      "{\"sequence\":\"%08x%08x\",\"command\":null,\"state\":\"%s\","
                      "\"checkpoints\":%u,\"sealed\":true,\"prompt\":null",
                      high, low, s->state, q->n_checkpoints);
        put_receipts(out, view, all, q);
        output_put(out, STR("}\n"));
        return;
    }
    output_format(out, "%08x%08x %-7s %-11s %6s %6s %11u  ", high, low, "-", s->state, "-", "-",
                  q->n_checkpoints);
    put_last_receipt(out, view, q);
    output_put(out, STR("  (erased, or not to be opened with the sidecar)\n"));
}

static void put_sequence(const struct log_options *o, const struct store_view *view,
                         const struct store_sequences *all, const struct store_sequence *q,
                         const struct shown_sequence *s, struct output *out) {
    u32 high = (u32)(q->owner >> 32), low = (u32)q->owner;
    const struct payload_request *r = &s->request;
    if (s->is_erased) {
        put_erased(o, view, all, q, s, out);
        return;
    }
    if (o->json) {
        output_format(out,
                      "{\"sequence\":\"%08x%08x\",\"command\":\"%s\",\"state\":\"%s\","
                      "\"prompt_tokens\":%u,\"tokens\":%u,\"checkpoints\":%u,\"seed\":%llu",
                      high, low, payload_command_name(r->command), s->state, s->n_prompt,
                      s->n_generated, q->n_checkpoints, r->sampling.seed);
        if (s->is_sealed) output_put(out, STR(",\"sealed\":true"));
        if (r->line_number != 0) output_format(out, ",\"line\":%llu", r->line_number);
        output_put(out, STR(",\"prompt\":"));
        output_json_string(out, r->prompt);
        put_receipts(out, view, all, q);
        output_put(out, STR("}\n"));
        return;
    }
    output_format(out, "%08x%08x %-7s %-11s %6u %6u %11u  ", high, low,
                  payload_command_name(r->command), s->state, s->n_prompt, s->n_generated,
                  q->n_checkpoints);
    put_last_receipt(out, view, q);
    output_put(out, STR("  "));
    put_excerpt(out, r->prompt.len > 0 ? r->prompt : r->line);
    output_put(out, STR("\n"));
}

static enum sov_status show_store(const struct log_options *o, struct output *out,
                                  struct sov_fault *fault) {
    struct store_view view;
    struct store_sequences all = {0};
    struct store_payload payloads[2] = {{.memory = NULL}, {.memory = NULL}};
    enum sov_status status = store_view_open(&view, o->path, NULL, true, true, fault);
    if (status != SOV_OK) return status;
    status = store_sequences_read(view.snapshot, &all, fault);
    if (status == SOV_OK && !o->json) {
        output_format(out, "%-16s %-7s %-11s %6s %6s %11s  %-16s  %s\n", "SEQUENCE", "COMMAND",
                      "STATE", "PROMPT", "TOKENS", "CHECKPOINTS", "LAST RECEIPT", "PROMPT TEXT");
    }
    for (u64 i = 0; i < all.n && status == SOV_OK && out->status == SOV_OK; i++) {
        struct shown_sequence s;
        struct sov_fault inner = {0};
        status = read_sequence(&view, &all.items[i], payloads, &s, &inner);
        if (s.is_erased) {
            status = SOV_OK;
        } else if (status != SOV_OK) {
            (void)!fault_set(fault, status, "%s", inner.message);
        }
        if (status == SOV_OK) put_sequence(o, &view, &all, &all.items[i], &s, out);
        if (status == SOV_OK && platform_interrupted()) {
            status = fault_set(fault, SOV_ERR_INTERRUPTED, "stopped by a signal");
        }
    }
    if (status == SOV_OK && !o->json) {
        output_put(out, STR("head "));
        store_put_head(out, &view.report.head);
        output_put(out, STR("\n"));
    }
    for (u32 i = 0; i < COUNT_OF(payloads); i++) store_payload_free(&payloads[i]);
    store_sequences_free(&all);
    store_view_close(&view);
    return status == SOV_OK ? SOV_OK : store_name_fault(o->path, fault);
}

// --- erasing ---

// What an erasure left that was killed, or failed: it has openings too.
static enum sov_status remove_leftover(const char *folder, struct sov_fault *fault) {
    char path[ROWM_PATH_BYTES];
    enum sov_status status = store_path(folder, STR("sidecar.new"), path, fault);
    if (status != SOV_OK || platform_is_missing(path)) return status;
    status = platform_remove(path, fault);
    return status == SOV_OK ? platform_sync_folder(folder, fault) : status;
}

static enum sov_status erase(const struct log_options *o, struct output *out,
                             struct sov_fault *fault) {
    struct rowm_folder folder = {o->path};
    struct rowm_disk disk = rowm_folder_disk(&folder);
    struct sov_fault inner = {0};
    int lock = -1;
    u64 n = 0;
    enum sov_status status = SOV_OK;
    if (disk.is_missing(disk.context, "log")) {
        status = fault_set(&inner, SOV_ERR_FORMAT,
                           "no store is there: it would have a file "
                           "\"log\"");
    } else {
        status = take_lock(o->path, &lock, &inner);
    }
    if (status == SOV_OK) {
        struct sov_fault ignored = {0};
        status = sidecar_erase(&disk, o->sequence == NULL, o->sequence_id, &n, &inner);
        enum sov_status removed = remove_leftover(o->path, status == SOV_OK ? &inner : &ignored);
        if (status == SOV_OK) status = removed;
        platform_close(lock);
    }
    if (status == SOV_OK && n == 0 && o->sequence != NULL) {
        status = fault_set(&inner, SOV_ERR_UNSUPPORTED, "the sidecar has nothing of sequence %s",
                           o->sequence);
    }
    if (status != SOV_OK) {
        *fault = inner;
        return store_name_fault(o->path, fault);
    }
    if (o->json) {
        output_put(out, STR("{\"store\":"));
        output_json_string(out, str_from_z(o->path));
        output_format(out, ",\"erased\":%llu}\n", n);
    } else {
        output_put_utf8(out, str_from_z(o->path));
        output_format(out, ": %llu openings erased from the sidecar\n", n);
    }
    return SOV_OK;
}

// --- command ---

static int check_options(const struct command *command, const struct log_options *o) {
    if (o->prune && !o->has_days)
        return cli_usage_error(command, "--prune needs --older-than DAYS");
    if (!o->prune && (o->has_days || o->force)) {
        return cli_usage_error(command, "--older-than and --force belong to --prune");
    }
    if (o->erase && (o->prune || o->path == NULL)) {
        return cli_usage_error(command, "--erase needs a STORE, and not --prune");
    }
    if (o->sequence != NULL && !o->erase) {
        return cli_usage_error(command, "--sequence belongs to --erase");
    }
    if (o->prune && o->path != NULL) {
        return cli_usage_error(command, "--prune takes no STORE: it looks at all of them");
    }
    return 0;
}

int cli_log(const struct command *command, const struct platform_start *start) {
    struct log_options o = {0};
    bool *const no = NULL;
    const struct option options[] = {
        {OPTION_POSITIONAL, "STORE", NULL, NULL, &o.path, no, 0, 0,
         "folder of a store: its sequences, with receipts"},
        {OPTION_FLAG, "--prune", NULL, NULL, &o.prune, no, 0, 0, "remove stores that are old"},
        {OPTION_U32, "--older-than", NULL, "DAYS", &o.days, &o.has_days, 0, 36500,
         "which ones: the last session began more than DAYS days ago"},
        {OPTION_FLAG, "--force", NULL, NULL, &o.force, no, 0, 0,
         "also those with interrupted sequences, and what does not read as a store"},
        {OPTION_FLAG, "--erase", NULL, NULL, &o.erase, no, 0, 0,
         "erase from STORE's sidecar what its commitments stand for (--record digest)"},
        {OPTION_STRING, "--sequence", NULL, "ID", &o.sequence, no, 0, 0,
         "erase that of this sequence only, 16 hexadecimal digits"},
        {OPTION_FLAG, "--json", NULL, NULL, &o.json, no, 0, 0,
         "print a JSON object for each store or sequence, one a line"},
    };
    int exit_code = 0;
    if (!cli_parse(command, start, options, COUNT_OF(options), &exit_code)) return exit_code;
    exit_code = check_options(command, &o);
    if (exit_code != 0) return exit_code;
    if (o.sequence != NULL && !store_sequence_id(o.sequence, &o.sequence_id)) {
        return cli_usage_error(command, "--sequence takes 16 hexadecimal digits, not \"%.32s\"",
                               o.sequence);
    }
    platform_watch_interrupt();
    struct sov_fault fault = {0};
    struct output out;
    output_init(&out, PLATFORM_STDOUT);
    char records[ROWM_PATH_BYTES];
    enum sov_status status = SOV_OK;
    if (o.erase) {
        status = erase(&o, &out, &fault);
    } else if (o.path != NULL) {
        status = show_store(&o, &out, &fault);
    } else {
        status = store_records_folder(start, records, &fault);
        if (status == SOV_OK) status = list(&o, records, &out, &exit_code, &fault);
    }
    int finished = output_finish(&out);
    if (status != SOV_OK) return cli_fail(&fault);
    return exit_code != 0 ? exit_code : finished;
}
