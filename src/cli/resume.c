// SPDX-License-Identifier: Apache-2.0
// sov resume: finishes what a store has of interrupted sequences, and writes all answers.
//
// X1. The store's lock is held from before the first capability is consumed to the end.
// X2. Each interrupted sequence is read once, when there is room for it to run: its capability is
//     consumed, and a record that refers to the same payload issues the next, in one transaction.
//     Stopped anywhere, it has exactly one, and may be resumed again. So memory holds the payloads
//     of what runs, however much a store has. One without a checkpoint is begun.
// X3. A line of output is made from the record alone, after everything is durable.
#include "cli/publish.h"
#include "cli/store_answer.h"
#include "freestanding/mem.h"
#include "record/recorder.h"

#define RESUME_SEQS_DEFAULT 16
#define SHOW_NS 500000000ull // between two lines of progress
#define RESUME_TAG "sov-rtx resm v1"

struct resume_options {
    struct model_options model;
    const char *store_path, *out_path, *events_path;
};

// A sequence that is to be finished.
struct resumed {
    const struct store_sequence *sequence; // its last record has the capability
    u32 context;
    bool is_begun;
};

struct resume_slot {
    bool is_used;
    engine_sequence handle;
    struct resumed *resumed;
    struct store_request request;
    struct sov_fault fault; // the spool holds another history of it
};

struct resume {
    const struct resume_options *options;
    struct rowm *rowm; // until the recorder has it
    struct recorder *recorder;
    struct checkpoint_store store;
    struct store_view view; // as it was when the lock had been taken
    struct store_sequences all;
    struct session session;
    struct publisher publisher;
    bool is_spool_filled;
    struct resumed *resumed; // [n_resumed]
    u64 n_resumed, n_finished, n_failed, n_tokens;
    bool has_contradiction;    // what was computed again is not what was recorded
    u64 n_erased;              // sequences whose texts and tokens are not in the sidecar
    struct resume_slot *slots; // [n_slots]
    u32 n_slots, context;
    bool has_full;
    u64 begin_ns, shown_ns;
    bool shows;
};

static void complain(const char *what, const char *message) {
    struct output err;
    output_init(&err, PLATFORM_STDERR);
    output_format(&err, "sov: %.256s: %s\n", what, message);
    output_flush(&err);
}

static void note_failed(struct resume *x, const struct sov_fault *fault) {
    x->n_failed++;
    x->has_contradiction = x->has_contradiction || fault->status == SOV_ERR_INTEGRITY;
    complain(x->options->store_path, fault->message);
}

// A sequence that nobody can go on with or tell of any more.
static void note_erased(struct resume *x, const struct store_sequence *q,
                        const struct sov_fault *fault) {
    struct sov_fault named = {0};
    (void)!fault_set(&named, fault->status, "sequence %016llx: %s", q->owner, fault->message);
    x->n_erased++;
    complain(x->options->store_path, named.message);
}

// --- the model ---

// Every session of the store must have been recorded with this model.
static enum sov_status check_model(struct store_view *view, const struct sha256_digest *given,
                                   struct sov_fault *fault) {
    for (u64 i = 0; i < rowm_snapshot_records(view->snapshot); i++) {
        struct rowm_manifest manifest;
        if (rowm_snapshot_info(view->snapshot, i).kind != ROWM_MANIFEST) continue;
        enum sov_status status = store_read_manifest(view, i, &manifest, fault);
        if (status != SOV_OK) return status;
        if (manifest.numeric_profile != RECORD_EXACT) {
            return fault_set(
                fault, SOV_ERR_UNSUPPORTED,
                "recorded with the numeric profile tensor; resume takes up exact alone");
        }
        if (sha256_equal(&manifest.model, given)) continue;
        char recorded[SHA256_HEX_BYTES + 1], other[SHA256_HEX_BYTES + 1];
        sha256_to_hex(&manifest.model, recorded);
        sha256_to_hex(given, other);
        return fault_set(fault, SOV_ERR_UNSUPPORTED, "recorded with the model %s, given is %s",
                         recorded, other);
    }
    return SOV_OK;
}

// A sequence of which a crash left the request alone.
static bool is_unbegun(const struct store_sequence *q) { return q->first == ROWM_NONE; }

// Whether anything is left to do in a store without a tail.
static enum sov_status find_work(const struct store_view *view, bool *has_work,
                                 struct sov_fault *fault) {
    struct store_sequences all;
    *has_work = view->report.n_available > 0;
    if (*has_work) return SOV_OK;
    enum sov_status status = store_sequences_read(view->snapshot, &all, fault);
    if (status != SOV_OK) return status;
    for (u64 i = 0; i < all.n; i++) *has_work = *has_work || is_unbegun(&all.items[i]);
    store_sequences_free(&all);
    return SOV_OK;
}

// Before anything is written. A store that a crash has left with a torn head does not verify, and
// is mended by opening it: then the model is checked afterwards only.
static enum sov_status look_first(const struct resume_options *o, bool *has_work,
                                  struct sov_fault *fault) {
    struct store_view view;
    struct sov_fault inner = {0};
    *has_work = true;
    enum sov_status status = store_view_open(&view, o->store_path, NULL, true, false, &inner);
    if (status == SOV_ERR_INTEGRITY) return SOV_OK;
    if (status != SOV_OK) return fault_set(fault, status, "%s", inner.message);
    status = check_model(&view, &o->model.engine.model_digest, &inner);
    if (status == SOV_OK) status = find_work(&view, has_work, &inner);
    if (status != SOV_OK) {
        *fault = inner;
        status = store_name_fault(o->store_path, fault);
    }
    *has_work = *has_work || view.report.tail_bytes > 0;
    store_view_close(&view);
    return status;
}

// --- what is to be finished ---

static struct sha256_digest claim_txid(u64 owner, const struct sha256_digest *capability) {
    u8 number[8];
    struct sha256 h;
    store_u64(number, owner);
    sha256_begin(&h);
    sha256_update(&h, STR(RESUME_TAG));
    sha256_update(&h, (struct str){number, sizeof number});
    sha256_update(&h, (struct str){capability->bytes, SHA256_BYTES});
    return sha256_end(&h);
}

// Consumes the capability that a sequence has; what is disclosed is in memory of its own. X2.
static enum sov_status read_once(struct resume *x, const struct resumed *r,
                                 struct store_payload *payload, struct sov_fault *fault) {
    struct rowm_record_info info = rowm_snapshot_info(x->view.snapshot, r->sequence->last);
    payload->capacity = MAX(info.payload_bytes, 1ull);
    payload->memory = platform_memory_map((usize)payload->capacity);
    if (payload->memory == NULL) {
        return fault_set(fault, SOV_ERR_MEMORY, "a checkpoint of %llu bytes: no memory",
                         info.payload_bytes);
    }
    struct rowm_claim claim = {
        .txid = claim_txid(r->sequence->owner, &info.capability),
        .capability = info.capability,
        .consumer = r->sequence->owner,
    };
    usize n = 0;
    enum sov_status status =
        recorder_resume(x->recorder, &claim, payload->memory, (usize)payload->capacity, &n, fault);
    if (status != SOV_OK) return status;
    return store_payload_open(&x->view, r->sequence->last, n, payload, fault);
}

// The request can be read, and where it is sealed the checkpoint too, and those before it if its
// events are wanted; nothing is consumed yet.
static enum sov_status look_at(struct resume *x, const struct store_sequence *q, struct resumed *r,
                               struct sov_fault *fault) {
    struct store_request request;
    struct store_payload checkpoint = {.memory = NULL};
    enum sov_status status = store_request_open(&request, &x->view, q, fault);
    if (status != SOV_OK) return status;
    *r = (struct resumed){.sequence = q, .context = request.said.context};
    x->has_full = x->has_full || request.said.kv_form == PAYLOAD_KV_FULL;
    u64 first = !request.payload.is_sealed   ? ROWM_NONE
                : x->publisher.spool != NULL ? q->first
                                             : q->last;
    for (u64 i = first; i != ROWM_NONE && status == SOV_OK; i = x->all.next[i]) {
        status = store_payload_read(&x->view, i, &checkpoint, fault);
    }
    store_payload_free(&checkpoint);
    store_request_close(&request);
    return status;
}

static enum sov_status collect(struct resume *x, struct sov_fault *fault) {
    for (u64 i = 0; i < x->all.n; i++) {
        const struct store_sequence *q = &x->all.items[i];
        if (q->finish != ROWM_NONE) continue;
        if (!is_unbegun(q) && !rowm_snapshot_info(x->view.snapshot, q->last).available) {
            struct sov_fault taken = {0};
            (void)!fault_set(&taken, SOV_ERR_STATE,
                             "sequence %016llx has no end, and someone else read its checkpoint",
                             q->owner);
            note_failed(x, &taken);
            continue;
        }
        struct sov_fault inner = {0};
        enum sov_status status = look_at(x, q, &x->resumed[x->n_resumed], &inner);
        if (status == SOV_ERR_UNSUPPORTED) { // the others are finished all the same
            note_erased(x, q, &inner);
            continue;
        }
        if (status != SOV_OK) return fault_set(fault, status, "%s", inner.message);
        x->n_resumed++;
        if (platform_interrupted()) {
            return fault_set(fault, SOV_ERR_INTERRUPTED, "stopped by a signal");
        }
    }
    return SOV_OK;
}

// Whether a sequence's line can be made. If not, that is told then.
static bool has_answer(struct store_view *view, const struct store_sequence *q) {
    struct store_payload payload = {.memory = NULL};
    struct sov_fault ignored = {0};
    bool has = store_payload_read(view, q->request, &payload, &ignored) == SOV_OK &&
               store_payload_read(view, q->finish, &payload, &ignored) == SOV_OK;
    store_payload_free(&payload);
    return has;
}

// What was recorded may have been killed before its events were in the spool: they follow from the
// record. Before anything runs, so that each sequence's events stand in their order.
static enum sov_status fill_spool(struct resume *x, struct store_view *view,
                                  const struct store_sequences *all, struct sov_fault *fault) {
    if (x->publisher.spool == NULL || x->is_spool_filled) return SOV_OK;
    x->is_spool_filled = true;
    enum sov_status status = SOV_OK;
    for (u64 i = 0; i < all->n && status == SOV_OK; i++) {
        const struct store_sequence *q = &all->items[i];
        struct sov_fault inner = {0};
        status = store_events_put(view, all, q, x->publisher.spool, &inner);
        if (status == SOV_OK) continue;
        if (status == SOV_ERR_UNSUPPORTED) { // told of once: `collect` has, or the answers will
            if (q->finish != ROWM_NONE && has_answer(view, q)) note_erased(x, q, &inner);
            status = SOV_OK;
            continue;
        }
        if (status == SOV_ERR_INTEGRITY || status == SOV_ERR_FORMAT) { // of this sequence
            note_failed(x, &inner);
            status = SOV_OK;
        } else {
            return fault_set(fault, status, "%s", inner.message);
        }
    }
    return spool_flush(x->publisher.spool, fault);
}

// --- running ---

static void show_progress(struct resume *x) {
    u64 now = platform_monotonic_ns();
    if (!x->shows || now - x->shown_ns < SHOW_NS) return;
    x->shown_ns = now;
    struct output err;
    output_init(&err, PLATFORM_STDERR);
    output_format(&err, "\r%llu of %llu sequences finished, %llu tokens, %.1f tokens/s\033[K",
                  x->n_finished, x->n_resumed, x->n_tokens,
                  (f64)x->n_tokens * 1e9 / (f64)MAX(now - x->begin_ns, 1ull));
    output_flush(&err);
}

static enum sov_status begin_slot(struct resume *x, struct resume_slot *slot, struct resumed *r,
                                  struct sov_fault *fault) {
    struct payload_checkpoint history;
    struct engine_request request;
    *slot = (struct resume_slot){.resumed = r};
    struct store_payload payload = {.memory = NULL};
    enum sov_status status = store_request_open(&slot->request, &x->view, r->sequence, fault);
    if (status == SOV_OK) {
        status = store_request_for_engine(&slot->request, x->session.vocabulary.tokenizer, &request,
                                          fault);
    }
    if (status == SOV_OK && is_unbegun(r->sequence)) {
        request.record = slot->request.payload.given; // its first checkpoint goes behind it
    } else if (status == SOV_OK) {
        status = read_once(x, r, &payload, fault);
        if (status == SOV_OK) status = payload_checkpoint_read(payload.bytes, &history, fault);
        request.history = &history;
        request.history_hash = rowm_snapshot_info(x->view.snapshot, r->sequence->last).payload_hash;
    }
    if (status == SOV_OK) {
        status = engine_submit(x->session.engine, &request, &slot->handle, fault);
    }
    slot->is_used = status == SOV_OK;
    store_payload_free(&payload); // the engine has its own now
    return status;
}

// Sequences of this engine's context, as far as there is room. One that the engine refuses stays
// as it is.
static void admit(struct resume *x, u64 *next) {
    for (u32 i = 0; i < x->n_slots && engine_room(x->session.engine) > 0; i++) {
        struct resume_slot *slot = &x->slots[i];
        while (!slot->is_used && *next < x->n_resumed) {
            struct resumed *r = &x->resumed[(*next)++];
            if (r->is_begun || r->context != x->context) continue;
            struct sov_fault inner = {0};
            r->is_begun = true;
            if (begin_slot(x, slot, r, &inner) == SOV_OK) break;
            store_request_close(&slot->request);
            note_failed(x, &inner);
        }
    }
}

static struct resume_slot *slot_of(struct resume *x, engine_sequence sequence) {
    for (u32 i = 0; i < x->n_slots; i++) {
        if (x->slots[i].is_used && x->slots[i].handle == sequence) return &x->slots[i];
    }
    assert(!"every sequence has a slot");
    return NULL;
}

static struct sov_fault *fault_of(void *resume, engine_sequence sequence) {
    return &slot_of(resume, sequence)->fault;
}

static void take(struct resume *x, const struct engine_output *output) {
    struct resume_slot *slot = slot_of(x, output->sequence);
    const struct sov_event *event = &output->event;
    if (event->type == EVENT_TOKEN && !output->is_restored) x->n_tokens++;
    if (event->type != EVENT_FINISHED) return;
    bool failed = slot->fault.status != SOV_OK || event->finish == FINISH_FAILED;
    if (failed) {
        note_failed(x, slot->fault.status != SOV_OK ? &slot->fault : output->fault);
    } else {
        x->n_finished += event->finish != FINISH_CANCEL;
    }
    store_request_close(&slot->request);
    slot->is_used = false;
}

static enum sov_status run_steps(struct resume *x, struct sov_fault *fault) {
    u64 next = 0;
    bool is_stopping = false;
    for (;;) {
        if (platform_interrupted()) {
            if (!is_stopping) session_checkpoint(&x->session);
            is_stopping = true;
            for (u32 i = 0; i < x->n_slots; i++) {
                if (x->slots[i].is_used) engine_interrupt(x->session.engine, x->slots[i].handle);
            }
        }
        if (!is_stopping) admit(x, &next);
        bool runs = false;
        for (u32 i = 0; i < x->n_slots; i++) runs = runs || x->slots[i].is_used;
        if (!runs && is_stopping) {
            return fault_set(fault, SOV_ERR_INTERRUPTED, "stopped by a signal");
        }
        if (!runs) return SOV_OK;
        struct engine_inputs inputs = session_inputs(&x->session);
        struct engine_report report;
        enum sov_status status = engine_step(x->session.engine, &inputs, &report, fault);
        if (status == SOV_OK) status = recorder_check(x->recorder, fault);
        if (status != SOV_OK) return status;
        publisher_put(&x->publisher, x->session.engine, &report, fault_of, x);
        for (u32 i = 0; i < report.n_outputs; i++) take(x, &report.outputs[i]);
        if (inputs.power == POWER_SUSPEND) {
            platform_sleep(SESSION_SUSPENDED_NS);
        } else if (report.n_rows == 0 && report.n_outputs == 0 && report.n_live > 0) {
            recorder_wait(x->recorder); // everything waits for receipts
        }
        show_progress(x);
    }
}

static void close_slots(struct resume *x) {
    for (u32 i = 0; i < x->n_slots; i++) {
        if (x->slots[i].is_used) store_request_close(&x->slots[i].request);
        x->slots[i].is_used = false;
    }
}

// One engine after the other, for each context.
static enum sov_status run_contexts(struct resume *x, struct sov_fault *fault) {
    for (u64 i = 0; i < x->n_resumed; i++) {
        if (x->resumed[i].is_begun) continue;
        struct model_options model = x->options->model;
        x->context = x->resumed[i].context;
        model.engine.context = x->context;
        model.engine.store = &x->store;
        model.engine.kv_full = x->has_full;
        enum sov_status status = session_open(&x->session, &model, SESSION_ENGINE, fault);
        if (status != SOV_OK) return status;
        status = run_steps(x, fault);
        close_slots(x);
        session_close(&x->session);
        if (status != SOV_OK) return status;
    }
    return SOV_OK;
}

// --- the store, from its lock to its head ---

static enum sov_status open_store(struct resume *x, const struct rowm_disk *disk,
                                  struct sov_fault *fault) {
    const struct resume_options *o = x->options;
    const struct engine_config *engine = &o->model.engine;
    char card[ENGINE_CARD_BYTES];
    struct sov_fault no_card = {0};
    bool has_card = engine->device != ENGINE_CPU &&
                    engine_find_card(engine->start, card, &no_card) == SOV_OK;
    const char *device = has_card ? card : cpu_level_name(engine->level);
    struct rowm_manifest manifest = record_manifest(&engine->model_digest, device);
    enum sov_status status = rowm_open(disk, &manifest, &x->rowm, fault);
    if (status != SOV_OK) return status;
    // rowm_open has compared every payload with its digest.
    status = store_view_open(&x->view, o->store_path, NULL, true, false, fault);
    if (status == SOV_OK) status = check_model(&x->view, &o->model.engine.model_digest, fault);
    if (status == SOV_OK) status = store_sequences_read(x->view.snapshot, &x->all, fault);
    if (status != SOV_OK) return status;
    u64 n = MAX(x->all.n, 1ull);
    x->resumed = platform_memory_map((usize)(n * sizeof *x->resumed));
    x->slots = platform_memory_map(x->n_slots * sizeof *x->slots);
    if (x->resumed == NULL || x->slots == NULL) {
        return fault_set(fault, SOV_ERR_MEMORY, "%llu sequences: no memory for them", n);
    }
    return SOV_OK;
}

static void free_all(struct resume *x) {
    u64 n = MAX(x->all.n, 1ull);
    if (x->resumed != NULL) platform_memory_unmap(x->resumed, (usize)(n * sizeof *x->resumed));
    if (x->slots != NULL) platform_memory_unmap(x->slots, x->n_slots * sizeof *x->slots);
    store_sequences_free(&x->all);
    store_view_close(&x->view);
    if (x->rowm != NULL) rowm_close(x->rowm);
}

static enum sov_status finish_sequences(struct resume *x, struct sov_fault *fault) {
    struct rowm_folder folder = {x->options->store_path};
    struct rowm_disk disk = rowm_folder_disk(&folder);
    struct rowm_head head;
    enum sov_status status = open_store(x, &disk, fault);
    if (status == SOV_OK) status = collect(x, fault);
    if (status == SOV_OK) status = fill_spool(x, &x->view, &x->all, fault);
    if (status != SOV_OK) return status;
    struct rowm *rowm = x->rowm;
    x->rowm = NULL; // the recorder's from here on, also when it fails
    status = recorder_open(rowm, &x->recorder, fault);
    if (status != SOV_OK) return status;
    x->store = recorder_store(x->recorder);
    status = run_contexts(x, fault);
    struct sov_fault inner = {0};
    enum sov_status closed = recorder_close(x->recorder, &head, &inner);
    return status != SOV_OK || closed == SOV_OK ? status
                                                : fault_set(fault, closed, "%s", inner.message);
}

// --- answers ---

// Every sequence that has finished, in the order of the requests. Also the head.
static enum sov_status put_answers(struct resume *x, struct output *out, u64 *n_open,
                                   struct rowm_head *head, struct sov_fault *fault) {
    const struct resume_options *o = x->options;
    struct model_options model = o->model;
    struct store_view view;
    struct store_sequences all = {0};
    struct store_answers *answers = NULL;
    enum sov_status status = store_view_open(&view, o->store_path, NULL, true, false, fault);
    if (status != SOV_OK) return status;
    *head = view.report.head;
    status = store_sequences_read(view.snapshot, &all, fault);
    if (status == SOV_OK) status = fill_spool(x, &view, &all, fault);
    struct session session = {0};
    if (status == SOV_OK) status = session_open(&session, &model, SESSION_VOCABULARY, fault);
    if (status == SOV_OK) {
        status = store_answers_create(&answers, &view, session.vocabulary.tokenizer,
                                      o->model.model_path, fault);
    }
    for (u64 i = 0; i < all.n && status == SOV_OK; i++) {
        if (all.items[i].finish == ROWM_NONE) {
            (*n_open)++;
            continue;
        }
        struct sov_fault inner = {0};
        status = store_answers_put(answers, &all.items[i], out, &inner);
        if (status == SOV_ERR_UNSUPPORTED) { // no line of it
            note_erased(x, &all.items[i], &inner);
            status = SOV_OK;
        } else if (status != SOV_OK) {
            (void)!fault_set(fault, status, "%s", inner.message);
        }
    }
    if (answers != NULL) {
        x->n_failed += answers->n_failed;
        if (answers->n_without_logprobs > 0) {
            complain(o->store_path, "answers that were asked for logprobs have null there: records "
                                    "do not keep them");
        }
        store_answers_free(answers);
    }
    session_close(&session);
    store_sequences_free(&all);
    store_view_close(&view);
    return status;
}

static void print_figures(const struct resume *x, u64 n_open, const struct rowm_head *head) {
    struct output err;
    output_init(&err, PLATFORM_STDERR);
    f64 seconds = (f64)(platform_monotonic_ns() - x->begin_ns) / 1e9;
    output_format(&err,
                  "%s%llu sequences resumed, %llu finished, %llu without an end; %llu tokens, "
                  "%.1f s\n",
                  x->shows ? "\r\033[K" : "", x->n_resumed, x->n_finished, n_open, x->n_tokens,
                  seconds);
    publisher_put_figures(&x->publisher, &err);
    output_put(&err, STR("record "));
    output_put_utf8(&err, str_from_z(x->options->store_path));
    output_put(&err, STR(" head "));
    store_put_head(&err, head);
    output_put(&err, STR("\n"));
    output_flush(&err);
}

// Answers to a file or to stdout, after all is done.
static enum sov_status write_answers(struct resume *x, int *exit_code, struct sov_fault *fault) {
    struct output out;
    struct replaced_file file;
    struct rowm_head head = {0};
    u64 n_open = 0;
    enum sov_status status = replaced_file_open(&file, x->options->out_path, fault);
    if (status != SOV_OK) return status;
    output_init(&out, file.descriptor);
    status = put_answers(x, &out, &n_open, &head, fault);
    int finished = output_finish(&out);
    struct sov_fault inner = {0};
    enum sov_status closed = replaced_file_close(&file, status == SOV_OK && finished == 0, &inner);
    if (status == SOV_OK && closed != SOV_OK)
        status = fault_set(fault, closed, "%s", inner.message);
    if (status != SOV_OK) return status;
    print_figures(x, n_open, &head);
    bool is_bad = n_open > 0 || x->n_failed > 0 || x->publisher.has_failed;
    *exit_code = finished != 0 ? finished : is_bad ? 1 : 0;
    if (x->n_erased > 0) *exit_code = status_exit_code(SOV_ERR_UNSUPPORTED);
    if (x->has_contradiction) *exit_code = status_exit_code(SOV_ERR_INTEGRITY);
    return SOV_OK;
}

// --- command ---

static enum sov_status run(struct resume_options *o, int *exit_code, struct sov_fault *fault) {
    enum sov_status status = session_choose(&o->model, fault); // before the store changes
    if (status == SOV_OK) status = replaced_file_check(o->out_path, fault);
    if (status == SOV_OK) {
        status = store_model_digest(o->model.model_path, &o->model.engine.model_digest, fault);
    }
    bool has_work = false;
    if (status == SOV_OK) status = look_first(o, &has_work, fault);
    if (status != SOV_OK) return status;
    struct resume x = {
        .options = o,
        .n_slots = o->model.engine.max_seqs,
        .begin_ns = platform_monotonic_ns(),
        .shows = platform_is_terminal(PLATFORM_STDERR),
    };
    status = publisher_open(&x.publisher, o->events_path, fault);
    if (status == SOV_OK && has_work) status = finish_sequences(&x, fault);
    free_all(&x);
    if (status == SOV_OK) status = write_answers(&x, exit_code, fault);
    publisher_close(&x.publisher);
    return status;
}

static bool parse(const struct command *command, const struct platform_start *start,
                  struct resume_options *o, int *exit_code) {
    struct engine_config *e = &o->model.engine;
    bool *const no = NULL;
    const struct option options[] = {
        {OPTION_POSITIONAL, "STORE", NULL, NULL, &o->store_path, no, 0, 0,
         "folder of a store (sov log lists them)"},
        MODEL_OPTION(&o->model),
        BACKEND_OPTION(&o->model),
        {OPTION_STRING, "-o", "--output", "FILE", &o->out_path, no, 0, 0,
         "where the answers go, replaced when all are there (\"-\": stdout, the default)"},
        {OPTION_STRING, "--events", NULL, "SPOOL", &o->events_path, no, 0, 0,
         "append every event to this file, as the run that was interrupted did"},
        SEQUENCES_OPTIONS(&o->model),
        {OPTION_U32, "-t", "--threads", "N", &e->n_threads, no, 0, ENGINE_THREADS_MAX,
         "worker threads (default 0: one for each CPU)"},
        ENGINE_OPTIONS_BUT_CONTEXT(&o->model),
    };
    if (!cli_parse(command, start, options, COUNT_OF(options), exit_code)) return false;
    if (o->store_path != NULL) return true;
    *exit_code = cli_usage_error(command, "STORE is missing");
    return false;
}

int cli_resume(const struct command *command, const struct platform_start *start) {
    struct resume_options o = {.model.engine.max_seqs = RESUME_SEQS_DEFAULT};
    int exit_code = 0;
    if (!parse(command, start, &o, &exit_code)) return exit_code;
    o.model.engine.start = start;
    platform_watch_interrupt();
    struct sov_fault fault = {0};
    enum sov_status status = run(&o, &exit_code, &fault);
    return status == SOV_OK ? exit_code : cli_fail(&fault);
}
