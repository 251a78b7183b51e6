// SPDX-License-Identifier: Apache-2.0
// sov replay: whether a store's tokens are what the model gives. The store is verified first; then
// every recorded request is run again, many at once, and compared (replay.h).
//
// An engine has one context, and an answer may end by it: sequences of another context are run
// afterwards, by another engine.
#include "cli/replay.h"

#define REPLAY_SEQS_DEFAULT 16
#define SHOW_NS 500000000ull // between two lines of progress

struct replay_options {
    struct model_options model;
    const char *store_path, *sequence;
    u64 sequence_id;
    bool json;
};

struct replay_run {
    const struct replay_options *options;
    struct replay replay;
    struct session session;
    struct output *out;
    u8 *is_done;             // [n] of the sequences: run, or told why not
    u32 *contexts;           // [n] of their requests
    const u64 *manifests;    // of each session, the record's number
    bool has_other_contract; // a session under another contract than this program's
    u32 context;             // of the engine that runs
    bool has_full;           // a request whose checkpoints hold K and V
    u64 n_selected, n_results[REPLAY_NOT_CHECKABLE + 1];
    u64 n_tokens, n_payloads;
    u64 begin_ns, shown_ns;
    bool shows;
};

// --- what is told ---

static const char *result_name(enum replay_result result) {
    static const char *const names[] = {"same", "same so far", "different", "not checkable"};
    return names[result];
}

static const char *place_name(enum replay_place place) {
    static const char *const names[] = {
        [PLACE_TOKEN] = "token",   [PLACE_PROMPT] = "prompt", [PLACE_ORIGIN] = "origin",
        [PLACE_EVENTS] = "events", [PLACE_KV] = "kv",         [PLACE_END] = "end",
        [PLACE_FIELD] = "field",   [PLACE_TEXT] = "text",
    };
    return names[place];
}

// What may have brought a difference about. The model is known to be the same: its digest is.
static const char *likely_cause(const struct replay_run *x, const struct replay_difference *d) {
    if (d->place == PLACE_TEXT) {
        return "the text was changed, or the tokens were with all that follows from them; or "
               "another version of this program made tokens of it";
    }
    if (x->has_other_contract) {
        return "another numeric profile: a session of this store was recorded under another "
               "contract than this program's";
    }
    switch (d->place) {
    case PLACE_ORIGIN:
    case PLACE_PROMPT: return "the recorded request is not the one that was run: it was changed";
    case PLACE_EVENTS: return "the events were changed, or belong to other tokens";
    default:
        return "the record was changed, or one of the two machines computed wrongly (run it again "
               "to tell)";
    }
}

static void put_token_text(struct output *out, u32 token) {
    if (token == REPLAY_NONE) {
        output_put(out, STR("the end"));
    } else {
        output_format(out, "token %u", token);
    }
}

static void put_difference_text(const struct replay_run *x, struct output *out,
                                const struct replay_difference *d) {
    output_format(out, "  record %llu: ", d->record);
    switch (d->place) {
    case PLACE_TOKEN:
        output_format(out, "position %u, generated token %u: recorded is ", d->position,
                      d->generated);
        put_token_text(out, d->recorded);
        output_put(out, STR(", computed "));
        put_token_text(out, d->computed);
        break;
    case PLACE_PROMPT:
        output_format(out, "position %u is another prompt token", d->position);
        break;
    case PLACE_ORIGIN:
        output_put(out, STR("the origin (model, profile, prompt, parameters)"));
        break;
    case PLACE_EVENTS: output_put(out, STR("the head of the event chain")); break;
    case PLACE_KV:
        output_format(out, "K and V of layer %u from position %u on", d->layer, d->position);
        break;
    case PLACE_TEXT:
        output_put(out, STR("the text of the prompt is not what the tokens say"));
        break;
    case PLACE_END:
        output_format(out, "it ended by %s, computed is %s",
                      event_finish_name((enum finish_reason)d->recorded),
                      event_finish_name((enum finish_reason)d->computed));
        break;
    case PLACE_FIELD: output_put(out, STR("a field that is not the engine's")); break;
    }
    output_format(out, "\n  likely cause: %s\n", likely_cause(x, d));
}

static void put_number(struct output *out, const char *name, u32 value) {
    output_format(out, ",\"%s\":", name);
    if (value == REPLAY_NONE) {
        output_put(out, STR("null"));
    } else {
        output_format(out, "%u", value);
    }
}

static void put_difference_json(const struct replay_run *x, struct output *out,
                                const struct replay_difference *d) {
    output_format(out, ",\"difference\":{\"place\":\"%s\",\"record\":%llu,\"position\":%u",
                  place_name(d->place), d->record, d->position);
    if (d->place == PLACE_TOKEN) {
        put_number(out, "generated", d->generated);
        put_number(out, "recorded", d->recorded);
        put_number(out, "computed", d->computed);
    }
    if (d->place == PLACE_KV) put_number(out, "layer", d->layer);
    if (d->place == PLACE_END) {
        output_format(out, ",\"recorded\":\"%s\",\"computed\":\"%s\"",
                      event_finish_name((enum finish_reason)d->recorded),
                      event_finish_name((enum finish_reason)d->computed));
    }
    output_put(out, STR(",\"likely_cause\":"));
    output_json_string(out, str_from_z(likely_cause(x, d)));
    output_put(out, STR("}"));
}

// One line for a sequence, and what is wrong with it. `fault` of what is not checkable.
static void tell(struct replay_run *x, u64 index, enum replay_result result,
                 const struct replay_slot *slot, const struct sov_fault *fault) {
    u64 owner = x->replay.all->items[index].owner;
    u32 high = (u32)(owner >> 32), low = (u32)owner;
    u32 n_tokens = slot == NULL ? 0 : slot->n_tokens - payload_count(slot->request.said.tokens);
    u32 n_compared = slot == NULL ? 0 : slot->n_compared;
    x->n_results[result]++;
    x->n_tokens += n_tokens;
    x->n_payloads += n_compared;
    x->is_done[index] = 1;
    struct output *out = x->out;
    if (x->options->json) {
        output_format(out,
                      "{\"sequence\":\"%08x%08x\",\"result\":\"%s\",\"tokens\":%u,"
                      "\"payloads\":%u",
                      high, low, result_name(result), n_tokens, n_compared);
        if (result == REPLAY_DIFFERENT) put_difference_json(x, out, &slot->difference);
        if (fault != NULL) {
            output_format(out,
                          ",\"error\":{\"code\":\"%s\",\"message\":", status_name(fault->status));
            output_json_string(out, str_from_z(fault->message));
            output_put(out, STR("}"));
        }
        output_put(out, STR("}\n"));
    } else {
        output_format(out, "%08x%08x %-13s %6u tokens, %u payloads\n", high, low,
                      result_name(result), n_tokens, n_compared);
        if (result == REPLAY_DIFFERENT) put_difference_text(x, out, &slot->difference);
        if (fault != NULL) output_format(out, "  %s\n", fault->message);
    }
    output_flush(out);
}

static void show_progress(struct replay_run *x) {
    u64 now = platform_monotonic_ns();
    if (!x->shows || now - x->shown_ns < SHOW_NS) return;
    x->shown_ns = now;
    u64 n_done = 0, n_tokens = x->n_tokens;
    for (u32 i = 0; i <= REPLAY_NOT_CHECKABLE; i++) n_done += x->n_results[i];
    for (u32 i = 0; i < x->replay.n_slots; i++) {
        const struct replay_slot *slot = &x->replay.slots[i];
        if (slot->is_used) n_tokens += slot->n_tokens - payload_count(slot->request.said.tokens);
    }
    struct output err;
    output_init(&err, PLATFORM_STDERR);
    output_format(&err, "\r%llu of %llu sequences, %llu tokens, %.1f tokens/s\033[K", n_done,
                  x->n_selected, n_tokens, (f64)n_tokens * 1e9 / (f64)MAX(now - x->begin_ns, 1ull));
    output_flush(&err);
}

// --- slots ---

static void close_slot(struct replay_slot *slot) {
    store_request_close(&slot->request);
    if (slot->tokens != NULL) {
        platform_memory_unmap(slot->tokens, slot->context * sizeof(u32));
        slot->tokens = NULL;
    }
    slot->is_used = false;
}

// Last: what the model computed is what was recorded, so the text is what is left to doubt.
static void compare_text(struct replay_run *x, struct replay_slot *slot) {
    bool is_same = true;
    slot->status =
        replay_check_prompt(&x->session.vocabulary, &slot->request, &is_same, &slot->fault);
    if (slot->status != SOV_OK || is_same) return;
    slot->is_different = true;
    slot->difference =
        (struct replay_difference){.place = PLACE_TEXT, .record = slot->sequence->request};
}

// Its end is told when the engine has let go of it.
static void end_slot(struct replay_run *x, struct replay_slot *slot,
                     const struct engine_output *output) {
    bool failed = output->event.finish == FINISH_FAILED && slot->has_own_end;
    enum replay_result result = slot->sequence->finish != ROWM_NONE ? REPLAY_SAME
                                                                    : REPLAY_SAME_SO_FAR;
    const struct sov_fault *fault = NULL;
    if (!slot->is_different && slot->status == SOV_OK && !failed) compare_text(x, slot);
    if (slot->is_different) {
        result = REPLAY_DIFFERENT;
    } else if (slot->status != SOV_OK) {
        result = REPLAY_NOT_CHECKABLE;
        fault = &slot->fault;
    } else if (failed) {
        result = REPLAY_NOT_CHECKABLE;
        fault = output->fault;
    }
    tell(x, slot->index, result, slot, fault);
    close_slot(slot);
}

// How many tokens to ask for: as the request says, unless the end was another's doing.
static u32 tokens_wanted(const struct replay_slot *slot) {
    return slot->has_own_end ? slot->request.said.n_new_max : slot->n_wanted;
}

// Whether this engine computes what the sequence's session did: sums of the profile tensor are the
// same on one architecture alone.
static enum sov_status check_profile(const struct replay_run *x, const struct store_sequence *q,
                                     struct sov_fault *fault) {
    struct rowm_snapshot *snapshot = x->replay.view->snapshot;
    u64 record = x->manifests[rowm_snapshot_info(snapshot, q->request).session];
    struct rowm_manifest manifest;
    u8 payload[ROWM_MANIFEST_BYTES_MAX]; // holds the manifest's texts
    enum sov_status status = rowm_snapshot_read(snapshot, record, payload, sizeof payload, fault);
    if (status != SOV_OK) return status;
    struct str bytes = {payload, (usize)rowm_snapshot_info(snapshot, record).payload_bytes};
    status = rowm_manifest_read(bytes, &manifest, fault);
    if (status != SOV_OK) return status;
    char name[ROWM_TEXT_BYTES_MAX + 32];
    struct text t = TEXT_OVER_ARRAY(name);
    if (manifest.numeric_profile == RECORD_EXACT) {
        text_put(&t, STR("exact"));
    } else if (manifest.numeric_profile == RECORD_TENSOR) {
        usize first = manifest.device.len; // of the last word
        while (first > 0 && manifest.device.data[first - 1] != ' ') first--;
        struct str word = {manifest.device.data + first, manifest.device.len - first};
        text_format(&t, "tensor %.*s", STR_ARG(word));
    } else {
        text_format(&t, "number %u", (u32)manifest.numeric_profile);
    }
    const char *ours = engine_profile(x->session.engine);
    if (!t.truncated && str_equal(str_from_z(name), str_from_z(ours))) return SOV_OK;
    return fault_set(fault, SOV_ERR_UNSUPPORTED,
                     "not checkable here: recorded with the numeric profile %s, this engine "
                     "computes %s (--numerics)",
                     name, ours);
}

// A sequence begins to run, or is told to be what it is at once.
static enum sov_status begin_slot(struct replay_run *x, struct replay_slot *slot, u64 index,
                                  struct sov_fault *fault) {
    struct engine_request request;
    bool is_empty = false;
    *slot = (struct replay_slot){.index = index, .sequence = &x->replay.all->items[index]};
    enum sov_status status = check_profile(x, slot->sequence, fault);
    if (status != SOV_OK) return status;
    status = store_request_open(&slot->request, x->replay.view, slot->sequence, fault);
    if (status != SOV_OK) return status;
    slot->context = x->contexts[index];
    slot->tokens = platform_memory_map(slot->context * sizeof(u32));
    if (slot->tokens == NULL) {
        status = fault_set(fault, SOV_ERR_MEMORY, "%u tokens: no memory", slot->context);
    }
    if (status == SOV_OK) status = replay_begin(&x->replay, slot, &is_empty, fault);
    if (status == SOV_OK && is_empty) {
        status = fault_set(fault, SOV_ERR_UNSUPPORTED, "the record has the request alone");
    }
    if (status == SOV_OK) {
        status = store_request_for_engine(&slot->request, x->session.vocabulary.tokenizer, &request,
                                          fault);
    }
    if (status != SOV_OK) return status;
    request.n_new_max = tokens_wanted(slot);
    request.record = slot->request.payload.given;
    slot->is_used = true;
    status = engine_submit(x->session.engine, &request, &slot->handle, fault);
    if (status != SOV_OK) return status;
    // Nothing was generated before somebody ended it, or the machine went down: the start is all.
    bool is_nothing = !slot->has_own_end && slot->n_wanted == 0;
    if (slot->is_different || slot->status != SOV_OK || is_nothing) {
        engine_interrupt(x->session.engine, slot->handle);
    }
    return SOV_OK;
}

// Sequences of this engine's context, as far as there is room.
static enum sov_status admit(struct replay_run *x, u64 *next, struct sov_fault *fault) {
    for (u32 i = 0; i < x->replay.n_slots && engine_room(x->session.engine) > 0; i++) {
        struct replay_slot *slot = &x->replay.slots[i];
        while (!slot->is_used && *next < x->replay.all->n) {
            u64 index = (*next)++;
            if (x->is_done[index] || x->contexts[index] != x->context) continue;
            struct sov_fault inner = {0};
            enum sov_status status = begin_slot(x, slot, index, &inner);
            if (status == SOV_OK) break;
            if (status == SOV_ERR_MEMORY || status == SOV_ERR_INTERRUPTED) {
                return fault_set(fault, status, "%s", inner.message);
            }
            tell(x, index, REPLAY_NOT_CHECKABLE, NULL, &inner);
            close_slot(slot);
        }
    }
    return SOV_OK;
}

static struct replay_slot *slot_of(struct replay_run *x, engine_sequence sequence) {
    for (u32 i = 0; i < x->replay.n_slots; i++) {
        struct replay_slot *slot = &x->replay.slots[i];
        if (slot->is_used && slot->handle == sequence) return slot;
    }
    assert(!"every sequence has a slot");
    return NULL;
}

static enum sov_status run_steps(struct replay_run *x, struct sov_fault *fault) {
    u64 next = 0;
    for (;;) {
        if (platform_interrupted()) {
            return fault_set(fault, SOV_ERR_INTERRUPTED, "stopped by a signal");
        }
        enum sov_status status = admit(x, &next, fault);
        if (status != SOV_OK) return status;
        bool runs = false;
        for (u32 i = 0; i < x->replay.n_slots; i++) runs = runs || x->replay.slots[i].is_used;
        if (!runs) return SOV_OK;
        struct engine_inputs inputs = session_inputs(&x->session);
        struct engine_report report;
        status = engine_step(x->session.engine, &inputs, &report, fault);
        if (status != SOV_OK) return status;
        for (u32 i = 0; i < report.n_outputs; i++) {
            struct replay_slot *slot = slot_of(x, report.outputs[i].sequence);
            replay_take(&x->replay, slot, &report.outputs[i]);
            if (report.outputs[i].event.type == EVENT_FINISHED) {
                end_slot(x, slot, &report.outputs[i]);
            } else if (slot->is_different || slot->status != SOV_OK) {
                engine_interrupt(x->session.engine, slot->handle);
            }
        }
        if (inputs.power == POWER_SUSPEND) platform_sleep(SESSION_SUSPENDED_NS);
        show_progress(x);
    }
}

// --- which sequences ---

static void refuse(struct replay_run *x, u64 index, const struct sov_fault *fault) {
    tell(x, index, REPLAY_NOT_CHECKABLE, NULL, fault);
}

// Whether the sequence was recorded with this model.
static enum sov_status check_model(struct replay_run *x, const struct store_sequence *q,
                                   const u64 *manifests, struct sov_fault *fault) {
    struct rowm_record_info info = rowm_snapshot_info(x->replay.view->snapshot, q->request);
    struct rowm_manifest manifest;
    enum sov_status status =
        store_read_manifest(x->replay.view, manifests[info.session], &manifest, fault);
    if (status != SOV_OK) return status;
    const struct sha256_digest *digest = &x->options->model.engine.model_digest;
    struct rowm_manifest ours = record_manifest(digest, "");
    if (!sha256_equal(&manifest.contract, &ours.contract)) x->has_other_contract = true;
    if (sha256_equal(&manifest.model, digest)) return SOV_OK;
    char recorded[SHA256_HEX_BYTES + 1], given[SHA256_HEX_BYTES + 1];
    sha256_to_hex(&manifest.model, recorded);
    sha256_to_hex(digest, given);
    return fault_set(fault, SOV_ERR_UNSUPPORTED, "recorded with the model %s, given is %s",
                     recorded, given);
}

// Reads what must be known of every sequence before any is run.
static enum sov_status select_sequences(struct replay_run *x, const u64 *manifests,
                                        struct sov_fault *fault) {
    const struct replay_options *o = x->options;
    const struct store_sequences *all = x->replay.all;
    for (u64 i = 0; i < all->n; i++) {
        const struct store_sequence *q = &all->items[i];
        struct store_request request;
        struct sov_fault inner = {0};
        if (o->sequence != NULL && q->owner != o->sequence_id) {
            x->is_done[i] = 1;
            continue;
        }
        x->n_selected++;
        enum sov_status status = check_model(x, q, manifests, &inner);
        if (status == SOV_OK) {
            status = store_request_open(&request, x->replay.view, q, &inner);
        }
        if (status == SOV_OK) {
            x->contexts[i] = request.said.context;
            x->has_full = x->has_full || request.said.kv_form == PAYLOAD_KV_FULL;
            store_request_close(&request);
        } else if (status == SOV_ERR_MEMORY || status == SOV_ERR_INTEGRITY) {
            return fault_set(fault, status, "%s", inner.message);
        } else {
            refuse(x, i, &inner);
        }
    }
    if (x->n_selected > 0 || o->sequence == NULL) return SOV_OK;
    return fault_set(fault, SOV_ERR_FORMAT, "%.256s has no sequence %.32s", o->store_path,
                     o->sequence);
}

// One engine after the other, for each context that is left.
static enum sov_status run_contexts(struct replay_run *x, struct sov_fault *fault) {
    struct checkpoint_store store = replay_store(&x->replay);
    for (u64 i = 0; i < x->replay.all->n; i++) {
        if (x->is_done[i]) continue;
        struct model_options model = x->options->model;
        x->context = x->contexts[i];
        model.engine.context = x->context;
        model.engine.store = &store;
        model.engine.kv_full = x->has_full;
        enum sov_status status = session_open(&x->session, &model, SESSION_ENGINE, fault);
        if (status != SOV_OK) return status;
        status = run_steps(x, fault);
        session_close(&x->session);
        if (status != SOV_OK) return status;
        assert(x->is_done[i]);
    }
    return SOV_OK;
}

// --- command ---

static int exit_code_of(const struct replay_run *x) {
    if (x->n_results[REPLAY_DIFFERENT] > 0) return status_exit_code(SOV_ERR_INTEGRITY);
    if (x->n_results[REPLAY_NOT_CHECKABLE] > 0) return status_exit_code(SOV_ERR_UNSUPPORTED);
    return 0;
}

static void put_sum(const struct replay_run *x) {
    f64 seconds = (f64)(platform_monotonic_ns() - x->begin_ns) / 1e9;
    const u64 *n = x->n_results;
    struct output *out = x->out;
    if (x->options->json) {
        output_format(out,
                      "{\"sequences\":%llu,\"same\":%llu,\"same_so_far\":%llu,\"different\":%llu,"
                      "\"not_checkable\":%llu,\"tokens\":%llu,\"payloads\":%llu,\"head\":\"",
                      x->n_selected, n[REPLAY_SAME], n[REPLAY_SAME_SO_FAR], n[REPLAY_DIFFERENT],
                      n[REPLAY_NOT_CHECKABLE], x->n_tokens, x->n_payloads);
        store_put_head(out, &x->replay.view->report.head);
        output_put(out, STR("\"}\n"));
        return;
    }
    output_format(out,
                  "%llu sequences: %llu the same, %llu the same as far as they were recorded, "
                  "%llu different, %llu not checkable; %llu tokens, %llu payloads, %.1f s\n",
                  x->n_selected, n[REPLAY_SAME], n[REPLAY_SAME_SO_FAR], n[REPLAY_DIFFERENT],
                  n[REPLAY_NOT_CHECKABLE], x->n_tokens, x->n_payloads, seconds);
    output_put(out, STR("head "));
    store_put_head(out, &x->replay.view->report.head);
    output_put(out, STR("\n"));
}

static void *map_array(u64 n, u64 element_bytes, struct sov_fault *fault) {
    void *memory = platform_memory_map((usize)(MAX(n, 1ull) * element_bytes));
    if (memory == NULL) {
        enum sov_status status =
            fault_set(fault, SOV_ERR_MEMORY, "%llu sequences: no memory for them", n);
        (void)status;
    }
    return memory;
}

static void unmap_array(void *memory, u64 n, u64 element_bytes) {
    if (memory != NULL) platform_memory_unmap(memory, (usize)(MAX(n, 1ull) * element_bytes));
}

// The manifest of every session.
static void find_manifests(const struct store_view *view, u64 *manifests) {
    u64 n = 0;
    for (u64 i = 0; i < rowm_snapshot_records(view->snapshot); i++) {
        if (rowm_snapshot_info(view->snapshot, i).kind == ROWM_MANIFEST) manifests[n++] = i;
    }
}

static enum sov_status replay_store_of(struct replay_options *o, struct store_view *view,
                                       const struct store_sequences *all, struct output *out,
                                       int *exit_code, struct sov_fault *fault) {
    u32 n_slots = o->model.engine.max_seqs;
    u64 n_sessions = view->report.head.n_sessions;
    struct replay_run x = {
        .options = o,
        .replay = {.view = view, .all = all, .n_slots = n_slots},
        .out = out,
        .begin_ns = platform_monotonic_ns(),
        .shows = platform_is_terminal(PLATFORM_STDERR) && !platform_is_terminal(PLATFORM_STDOUT),
    };
    x.replay.slots = map_array(n_slots, sizeof *x.replay.slots, fault);
    x.is_done = map_array(all->n, sizeof *x.is_done, fault);
    x.contexts = map_array(all->n, sizeof *x.contexts, fault);
    u64 *manifests = map_array(n_sessions, sizeof *manifests, fault);
    enum sov_status status = fault->status;
    if (status == SOV_OK) {
        find_manifests(view, manifests);
        x.manifests = manifests;
        status = select_sequences(&x, manifests, fault);
    }
    if (status == SOV_OK) status = run_contexts(&x, fault);
    if (status == SOV_OK) put_sum(&x);
    *exit_code = exit_code_of(&x);
    for (u32 i = 0; i < n_slots && x.replay.slots != NULL; i++) close_slot(&x.replay.slots[i]);
    store_payload_free(&x.replay.recorded);
    unmap_array(x.replay.slots, n_slots, sizeof *x.replay.slots);
    unmap_array(x.is_done, all->n, sizeof *x.is_done);
    unmap_array(x.contexts, all->n, sizeof *x.contexts);
    unmap_array(manifests, n_sessions, sizeof *manifests);
    return status;
}

static enum sov_status run(struct replay_options *o, struct output *out, int *exit_code,
                           struct sov_fault *fault) {
    struct store_view view;
    struct store_sequences all = {0};
    if (o->model.model_path == NULL) {
        return fault_set(fault, SOV_ERR_USAGE, "-m MODEL is missing");
    }
    enum sov_status status = store_view_open(&view, o->store_path, NULL, false, true, fault);
    if (status != SOV_OK) return status;
    status = store_model_digest(o->model.model_path, &o->model.engine.model_digest, fault);
    // Without the model nothing can be said.
    if (status == SOV_ERR_IO) fault->status = status = SOV_ERR_UNSUPPORTED;
    if (status == SOV_OK) {
        status = store_sequences_read(view.snapshot, &all, fault);
        if (status != SOV_OK) status = store_name_fault(o->store_path, fault);
    }
    if (status == SOV_OK) status = replay_store_of(o, &view, &all, out, exit_code, fault);
    store_sequences_free(&all);
    store_view_close(&view);
    return status;
}

static bool parse(const struct command *command, const struct platform_start *start,
                  struct replay_options *o, int *exit_code) {
    struct engine_config *e = &o->model.engine;
    bool *const no = NULL;
    const struct option options[] = {
        {OPTION_POSITIONAL, "STORE", NULL, NULL, &o->store_path, no, 0, 0,
         "folder of a store (sov log lists them)"},
        MODEL_OPTION(&o->model),
        BACKEND_OPTION(&o->model),
        NUMERICS_OPTION(&o->model),
        {OPTION_STRING, "--sequence", NULL, "ID", &o->sequence, no, 0, 0,
         "only this one, 16 hexadecimal digits (sov log STORE lists them)"},
        SEQUENCES_OPTIONS(&o->model),
        {OPTION_U32, "-t", "--threads", "N", &e->n_threads, no, 0, ENGINE_THREADS_MAX,
         "worker threads (default 0: one for each CPU)"},
        ENGINE_OPTIONS_BUT_CONTEXT(&o->model),
        {OPTION_FLAG, "--json", NULL, NULL, &o->json, no, 0, 0,
         "print a JSON object for each sequence and one for all, one a line"},
    };
    if (!cli_parse(command, start, options, COUNT_OF(options), exit_code)) return false;
    if (o->store_path == NULL) {
        *exit_code = cli_usage_error(command, "STORE is missing");
        return false;
    }
    if (o->sequence != NULL && !store_sequence_id(o->sequence, &o->sequence_id)) {
        *exit_code = cli_usage_error(
            command, "--sequence takes 16 hexadecimal digits, not \"%.32s\"", o->sequence);
        return false;
    }
    return true;
}

int cli_replay(const struct command *command, const struct platform_start *start) {
    struct replay_options o = {.model.engine.max_seqs = REPLAY_SEQS_DEFAULT};
    int exit_code = 0;
    if (!parse(command, start, &o, &exit_code)) return exit_code;
    o.model.engine.start = start;
    platform_watch_interrupt();
    struct sov_fault fault = {0};
    struct output out;
    output_init(&out, PLATFORM_STDOUT);
    enum sov_status status = run(&o, &out, &exit_code, &fault);
    int finished = output_finish(&out);
    if (status != SOV_OK) return cli_fail(&fault);
    return exit_code != 0 ? exit_code : finished;
}
