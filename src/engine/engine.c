// SPDX-License-Identifier: Apache-2.0
// The step, readable as the whole system: admit, schedule, forward, sample, commit, publish.
// Siblings meet here and only here: this file knows which backend runs, how KV blocks are owned,
// how a token is drawn, and who keeps checkpoints.
//
//   sampled ─▶ staged ─▶ committed ─▶ event
//                │            ▲
//                └─ 64th ─▶ checkpoint begun ─▶ receipt
//
// That order is the product. What is staged is seen by nobody; `commit_token` is the only place
// where a history grows, and `publish` the only one where an event is made.
#include "engine/engine_private.h"
#include "freestanding/mem.h"
#include "record/sealed.h"

#define LOW_BATTERY_DIVISOR 4 // the part of budget and sequences that a low battery leaves

static struct sched_sequence *scheduled(struct engine *engine, const struct sequence *q) {
    return &engine->scheduler.sequences[q - engine->sequences];
}

static u32 slot_of(const struct engine *engine, const struct sequence *q) {
    return (u32)(q - engine->sequences);
}

static enum sov_status probe(struct engine *engine, const char *operation,
                             struct sov_fault *fault) {
    const struct engine_config *config = &engine->config;
    return config->probe == NULL ? SOV_OK : config->probe(config->probe_context, operation, fault);
}

static void hold(struct engine *engine, struct sequence *q);

// --- requests ---

enum sov_status engine_check_tokens(const struct engine *engine, const u32 *tokens, u32 n_tokens,
                                    struct sov_fault *fault) {
    if (n_tokens == 0) {
        return fault_set(fault, SOV_ERR_ARGUMENT,
                         "the prompt is empty and this model adds no begin token");
    }
    if (n_tokens > engine->config.context) {
        return fault_set(fault, SOV_ERR_LIMIT,
                         "the prompt has %u tokens, the context holds %u (-c sets it)", n_tokens,
                         engine->config.context);
    }
    for (u32 i = 0; i < n_tokens; i++) {
        if (tokens[i] >= engine->model->params.n_vocab) {
            return fault_set(fault, SOV_ERR_ARGUMENT,
                             "token %u of the prompt is %u, the vocabulary has %u", i, tokens[i],
                             engine->model->params.n_vocab);
        }
    }
    return SOV_OK;
}

static enum sov_status check_request(const struct engine *engine,
                                     const struct engine_request *request,
                                     struct sov_fault *fault) {
    enum sov_status status = engine_check_tokens(engine, request->tokens, request->n_tokens, fault);
    if (status == SOV_OK) status = sample_params_check(&request->sampling, fault);
    if (status != SOV_OK) return status;
    u32 n_vocab = engine->model->params.n_vocab;
    for (u32 i = 0; i < request->sampling.n_biases; i++) {
        u32 token = request->sampling.biases[i].token;
        if (token < n_vocab) continue;
        return fault_set(fault, SOV_ERR_ARGUMENT,
                         "logit_bias names token %u, the vocabulary has %u", token, n_vocab);
    }
    for (u32 i = 0; i < request->n_script; i++) {
        if (request->script[i] < n_vocab) continue;
        return fault_set(fault, SOV_ERR_ARGUMENT, "script token %u is %u, the vocabulary has %u", i,
                         request->script[i], n_vocab);
    }
    if (request->n_logprobs > engine->config.logprobs_max) {
        return fault_set(fault, SOV_ERR_ARGUMENT, "logprobs must be 0 to %u, not %u",
                         engine->config.logprobs_max, request->n_logprobs);
    }
    return SOV_OK;
}

// Gives the store a request, with its first checkpoint.
static enum sov_status start_record(struct engine *engine, const struct engine_request *request,
                                    const struct sha256_digest *origin, struct sov_fault *fault) {
    struct checkpoint_id id = {request->id, request->n_tokens, CHECKPOINT_BOUNDARY};
    struct str bytes = sequence_first_checkpoint(engine, request, origin);
    return engine->store.start(engine->store.context, &id, request->record, bytes, fault);
}

static void forget_start(struct engine *engine, u64 sequence_id, u32 n_prompt) {
    struct checkpoint_id id = {sequence_id, n_prompt, CHECKPOINT_BOUNDARY};
    engine->store.forget(engine->store.context, &id);
}

// The stop rule learns what was committed before. None of it ended the sequence then; the last
// token of a boundary is committed anew.
static enum sov_status ask_stop_rule(const struct engine_request *request,
                                     struct sov_fault *fault) {
    const struct payload_checkpoint *h = request->history;
    u32 n_tokens = payload_count(h->tokens), end = n_tokens;
    if (h->kind == PAYLOAD_BOUNDARY && n_tokens > h->n_prompt) end--;
    for (u32 i = h->n_prompt; i < end && request->stop != NULL; i++) {
        if (!request->stop(request->stop_context, payload_u32(h->tokens, i))) continue;
        return fault_set(
            fault, SOV_ERR_INTEGRITY,
            "sequence %016llx: the checkpoint goes on behind token %u, where the request "
            "ends",
            request->id, i);
    }
    return SOV_OK;
}

enum sov_status engine_submit(struct engine *engine, const struct engine_request *request,
                              engine_sequence *sequence, struct sov_fault *fault) {
    enum sov_status status = check_request(engine, request, fault);
    if (status != SOV_OK) return status;
    for (u32 i = 0; i < engine->config.max_seqs; i++) {
        if (engine->sequences[i].handle == 0 || engine->sequences[i].request.id != request->id) {
            continue;
        }
        return fault_set(fault, SOV_ERR_ARGUMENT, "a sequence with the id %016llx is there already",
                         request->id);
    }
    if (engine_room(engine) == 0) {
        return fault_set(fault, SOV_ERR_STATE, "the engine is busy with %u sequences",
                         engine->config.max_seqs);
    }
    struct sha256_digest origin = sequence_origin(engine, request);
    if (request->history != NULL) {
        status = sequence_check_history(engine, request, &origin, fault);
        if (status == SOV_OK) status = ask_stop_rule(request, fault);
    }
    bool is_recorded = request->record.len > 0 && engine->store.start != NULL;
    if (status == SOV_OK && is_recorded) status = start_record(engine, request, &origin, fault);
    if (status != SOV_OK) return status;
    const struct payload_checkpoint *h = request->history;
    u32 n_tokens = h != NULL ? payload_count(h->tokens) : request->n_tokens;
    bool has_generated = n_tokens > request->n_tokens;
    bool is_restored = has_generated && h->kind == PAYLOAD_BOUNDARY;
    u32 slot = has_generated ? sched_submit_history(&engine->scheduler, request->n_tokens, n_tokens,
                                                    is_restored)
                             : sched_submit(&engine->scheduler, request->n_tokens);
    assert(slot != SOV_MAX_SEQS);
    struct sequence *q = &engine->sequences[slot];
    *q = (struct sequence){
        .handle = ++engine->n_submitted * SOV_MAX_SEQS + slot,
        .request = *request,
        .tokens = q->tokens,
        .top = q->top,
        .kv_hashes = q->kv_hashes,
        .n_committed = n_tokens - is_restored, // its last token waits for the receipt
        .chain = engine->root,
        .origin = origin,
        .is_starting = is_recorded,
        .is_restored = is_restored,
        .waits_for_kv = is_restored,
        .restored_hash = request->history_hash,
    };
    q->request.tokens = NULL;
    q->request.history = NULL;
    q->request.record = (struct str){0};
    memcpy(q->tokens, h != NULL ? h->tokens.data : (const u8 *)request->tokens,
           n_tokens * sizeof(u32));
    event_chain_begin(&q->events, request->id, &origin, request->is_sealed ? &request->salt : NULL);
    if (h != NULL) q->events.next_number = h->event_number;
    if (h != NULL) q->events.digest = h->event_digest;
    u32 boundary = (q->n_committed - request->n_tokens) / ENGINE_CHECKPOINT_TOKENS *
                   ENGINE_CHECKPOINT_TOKENS;
    sequence_begin_kv(engine, q, boundary > 0 ? request->n_tokens + boundary - 1 : 0);
    // A full context leaves nothing to generate.
    if (q->n_committed == engine->config.context) q->ending = FINISH_LENGTH;
    hold(engine, q);
    *sequence = q->handle;
    return SOV_OK;
}

enum sov_status engine_record(struct engine *engine, const struct engine_request *request,
                              struct sov_fault *fault) {
    enum sov_status status = check_request(engine, request, fault);
    if (status != SOV_OK || engine->store.start == NULL) return status;
    struct sha256_digest origin = sequence_origin(engine, request);
    status = start_record(engine, request, &origin, fault);
    if (status == SOV_OK) forget_start(engine, request->id, request->n_tokens);
    return status;
}

static struct sequence *find(const struct engine *engine, engine_sequence sequence) {
    struct sequence *q = &engine->sequences[sequence % SOV_MAX_SEQS % engine->config.max_seqs];
    return sequence != 0 && q->handle == sequence ? q : NULL;
}

void engine_cancel(struct engine *engine, engine_sequence sequence) {
    struct sequence *q = find(engine, sequence);
    if (q != NULL) q->is_cancelled = true;
}

void engine_interrupt(struct engine *engine, engine_sequence sequence) {
    struct sequence *q = find(engine, sequence);
    if (q != NULL) q->is_cancelled = q->is_interrupted = true;
}

u32 engine_room(const struct engine *engine) {
    return engine->config.max_seqs - engine->scheduler.n_live;
}

enum sequence_state engine_state(const struct engine *engine, engine_sequence sequence) {
    const struct sequence *q = find(engine, sequence);
    return q == NULL ? SEQUENCE_IDLE : engine->scheduler.sequences[slot_of(engine, q)].state;
}

struct cpu *engine_cpu(struct engine *engine) {
    return engine->cpu;
}

u32 engine_kv_length(const struct engine *engine, engine_sequence sequence) {
    const struct sequence *q = find(engine, sequence);
    if (q == NULL || engine->kv.spilled[slot_of(engine, q)]) return 0;
    return kv_length(&engine->kv, slot_of(engine, q));
}

enum sov_status engine_read_kv(const struct engine *engine, engine_sequence sequence, u32 layer,
                               u32 n, u8 *rows, struct sov_fault *fault) {
    u32 length = engine_kv_length(engine, sequence);
    if (layer >= engine->model->params.n_layer || n > length) {
        return fault_set(fault, SOV_ERR_ARGUMENT,
                         "K and V of layer %u, %u positions: the cache has %u", layer, n, length);
    }
    if (n == 0) return SOV_OK;
    return kv_read(&engine->kv, slot_of(engine, find(engine, sequence)), layer, 0, n, rows, fault);
}

void engine_forget_prefixes(struct engine *engine) { kv_forget_idle(&engine->kv); }

void engine_assert_consistent(const struct engine *engine) {
    sched_assert_consistent(&engine->scheduler);
}

struct engine_statistics engine_statistics_of(const struct engine *engine) {
    struct engine_statistics statistics = engine->statistics;
    statistics.kv = kv_statistics_of(&engine->kv);
    statistics.n_swaps = engine->scheduler.n_swaps;
    statistics.n_spills = engine->scheduler.n_spills;
    return statistics;
}

// --- publish ---

static struct engine_output *publish(struct engine *engine, struct sequence *q,
                                     struct sov_event event) {
    assert(engine->report.n_outputs < engine->config.max_seqs * OUTPUTS_PER_SEQUENCE);
    u32 n_prompt = scheduled(engine, q)->n_prompt;
    event.committed_token_count = q->n_committed - n_prompt;
    event_seal(&q->events, &event);
    struct engine_output *output = &engine->outputs[engine->report.n_outputs++];
    *output = (struct engine_output){
        .sequence = q->handle,
        .event = event,
        .n_prompt = n_prompt,
        .n_cached = q->n_cached,
    };
    return output;
}

static void publish_admission(struct engine *engine, struct sequence *q) {
    publish(engine, q,
            (struct sov_event){
                .type = EVENT_ADMITTED,
                .previous_state = SEQUENCE_IDLE,
                .new_state = SEQUENCE_PREFILL,
                .sampled_token_id = EVENT_NO_TOKEN,
            });
}

// --- commit ---

static u32 n_generated(struct engine *engine, const struct sequence *q) {
    return q->n_committed - scheduled(engine, q)->n_prompt;
}

// K and V that belong to committed tokens are final, and may be shared.
static void commit_kv(struct engine *engine, struct sequence *q) {
    u32 slot = slot_of(engine, q), length = kv_length(&engine->kv, slot);
    u32 wanted = MIN(scheduled(engine, q)->n_computed, q->n_committed);
    if (wanted > length) {
        struct sov_fault fault = {0};
        enum sov_status status = kv_append_tokens(&engine->kv, slot, wanted - length, &fault);
        assert(status == SOV_OK); // the blocks are there
        sequence_publish(engine, slot, false);
    }
    // In whole runs of positions: read one by one, K and V cost more than they take to hash.
    sequence_hash_kv(engine, q, (q->n_committed - 1) / KV_READ_POSITIONS * KV_READ_POSITIONS);
}

// Also when its last attempt failed: the store may know it all the same.
static void forget_suspension(struct engine *engine, struct sequence *q) {
    if (q->suspend_id.kind != 0) engine->store.forget(engine->store.context, &q->suspend_id);
    q->suspend_id = (struct checkpoint_id){0};
    q->suspend_begun = q->suspend_durable = false;
}

static void forget_checkpoints(struct engine *engine, struct sequence *q) {
    struct checkpoint_id id = {q->request.id, q->n_committed + 1, CHECKPOINT_BOUNDARY};
    if (scheduled(engine, q)->is_prepared) engine->store.forget(engine->store.context, &id);
    q->is_begun = false;
    forget_suspension(engine, q);
}

static void note_fault(struct engine *engine, const struct sov_fault *fault) {
    if (engine->report.n_failed++ > 0) return;
    engine->step_fault = *fault;
    engine->report.fault = &engine->step_fault;
}

// The store learns of the end, unless it knows nothing of the sequence or it may be gone on with.
static void record_end(struct engine *engine, struct sequence *q, enum finish_reason reason) {
    const struct checkpoint_store *store = &engine->store;
    if (q->is_starting) forget_start(engine, q->request.id, scheduled(engine, q)->n_prompt);
    if (store->finish == NULL || q->is_interrupted || q->is_unrecorded) return;
    struct checkpoint_id id = {q->request.id, q->n_committed, CHECKPOINT_FINISH};
    struct sov_fault fault = {0};
    struct str bytes;
    enum sov_status status = sequence_checkpoint(engine, q, &id, reason, &bytes, &fault);
    if (status == SOV_OK) status = store->finish(store->context, &id, bytes, &fault);
    if (status == SOV_OK) return;
    note_fault(engine, &fault);
    if (store->lost != NULL) store->lost(store->context, &id, &fault);
}

// The end: what is staged is dropped, what was committed stays for prompts to come.
static void finish(struct engine *engine, struct sequence *q, enum finish_reason reason) {
    u32 slot = slot_of(engine, q);
    if (q->events.next_number == 0) publish_admission(engine, q);
    struct engine_output *output = publish(
        engine, q,
        (struct sov_event){
            .type = EVENT_FINISHED,
            .previous_state = n_generated(engine, q) > 0 ? SEQUENCE_GENERATE : SEQUENCE_PREFILL,
            .new_state = SEQUENCE_IDLE,
            .sampled_token_id = EVENT_NO_TOKEN,
            .finish = reason,
        });
    if (reason == FINISH_FAILED) {
        engine->faults[slot] = q->fault;
        output->fault = &engine->faults[slot];
    }
    record_end(engine, q, reason);
    forget_checkpoints(engine, q);
    sequence_publish(engine, slot, true);
    sched_finish(&engine->scheduler, slot);
    q->handle = 0;
}

static bool is_end(const struct engine *engine, const struct engine_request *request, u32 token) {
    if (request->ignore_end) return false;
    if (token == request->end_token && request->end_token != TOKEN_NONE) return true;
    const struct tokenizer *tokenizer = engine->config.tokenizer;
    return tokenizer != NULL && tokenizer_is_end(tokenizer, token);
}

// Why a sequence ends after its newest committed token; FINISH_NONE: it goes on.
static enum finish_reason finish_of(struct engine *engine, struct sequence *q, bool at_end) {
    const struct engine_request *request = &q->request;
    u32 n_new = n_generated(engine, q), token = q->tokens[q->n_committed - 1];
    if (at_end) return FINISH_STOP;
    if (request->stop != NULL && request->stop(request->stop_context, token)) return FINISH_STOP;
    if (request->n_new_max != 0 && n_new >= request->n_new_max) return FINISH_LENGTH;
    return q->n_committed >= engine->config.context ? FINISH_LENGTH : FINISH_NONE;
}

// Commits the oldest staged token; `receipt` on a 64-boundary. False: the sequence ended with it.
static bool commit_token(struct engine *engine, struct sequence *q,
                         const struct checkpoint_receipt *receipt) {
    u32 position = q->n_committed, generated = n_generated(engine, q);
    assert(position < scheduled(engine, q)->n_tokens);
    bool is_boundary = (generated + 1) % ENGINE_CHECKPOINT_TOKENS == 0;
    assert(is_boundary == (receipt != NULL)); // E5
    q->n_committed++;
    q->n_failures = 0;
    commit_kv(engine, q);
    struct sov_event event = {
        .type = EVENT_TOKEN,
        .previous_state = is_boundary      ? SEQUENCE_CHECKPOINT
                          : generated == 0 ? SEQUENCE_PREFILL
                                           : SEQUENCE_GENERATE,
        .new_state = SEQUENCE_GENERATE,
        .sampled_token_id = q->tokens[position],
        .has_receipt = is_boundary,
    };
    if (is_boundary) event.checkpoint_receipt_hash = receipt->receipt_hash;
    struct engine_output *output = publish(engine, q, event);
    u32 at = generated % STAGED_SLOTS;
    output->position = position;
    output->is_restored = q->is_restored;
    q->is_restored = false;
    output->is_end = is_end(engine, &q->request, q->tokens[position]);
    output->logprob = q->staged[at].logprob;
    output->n_top = q->staged[at].n_top;
    output->top = q->top + (usize)at * engine->config.logprobs_max;
    enum finish_reason reason = finish_of(engine, q, output->is_end);
    if (reason == FINISH_NONE) return true;
    finish(engine, q, reason);
    return false;
}

// Whether a sequence wants no more rows for now: what is staged may end it, or is as much as may
// be.
static void hold(struct engine *engine, struct sequence *q) {
    struct sched_sequence *s = scheduled(engine, q);
    const struct engine_request *request = &q->request;
    u32 n_staged = s->n_tokens - q->n_committed, newest = q->tokens[s->n_tokens - 1];
    bool full = s->is_prepared && (!q->is_begun || n_staged > engine->config.run_ahead);
    bool at_limit = s->n_tokens >= engine->config.context ||
                    (request->n_new_max != 0 && s->n_tokens - s->n_prompt >= request->n_new_max);
    bool at_end = n_staged > 0 && is_end(engine, request, newest);
    bool has_enough = full || (n_staged > 0 && (at_limit || at_end));
    // One whose K and V are to be computed again must get rows all the same.
    s->is_held = q->ending != FINISH_NONE || q->is_starting || (has_enough && !q->waits_for_kv);
}

// --- failures ---

// An attempt failed. Nothing of the sequence has changed; it tries again, or ends with the reason.
static void note_failure(struct engine *engine, struct sequence *q, const struct sov_fault *fault) {
    note_fault(engine, fault);
    q->fault = *fault;
    if (++q->n_failures > engine->config.retries) {
        if (q->ending == FINISH_NONE) q->ending = FINISH_FAILED;
    } else {
        engine->statistics.n_retries++;
    }
    hold(engine, q);
}

static void hook_failed(void *context, u32 slot, const struct sov_fault *fault) {
    struct engine *engine = context;
    note_failure(engine, &engine->sequences[slot], fault);
}

// What is committed is hashed while it is there; what was decoded ahead of a receipt is dropped
// with its K and V (Q2).
static void hook_swaps(void *context, u32 slot) {
    struct engine *engine = context;
    struct sequence *q = &engine->sequences[slot];
    sequence_hash_kv(engine, q, q->n_committed - 1);
    u32 n_kept = q->n_committed + engine->scheduler.sequences[slot].is_prepared;
    sched_drop_staged(&engine->scheduler, slot, n_kept);
    hold(engine, q);
}

static void hook_adopt(void *context, u32 slot) { sequence_adopt(context, slot); }

static enum sov_status hook_probe(void *context, const char *operation, struct sov_fault *fault) {
    return probe(context, operation, fault);
}

struct sched_hooks engine_hooks(struct engine *engine) {
    return (struct sched_hooks){engine, hook_adopt, hook_probe, hook_failed, hook_swaps};
}

// --- checkpoints at 64-boundaries ---

// A prepared checkpoint failed: what ran ahead of it is dropped, the boundary's token stays
// prepared, and the next attempt has the same id and bytes.
static void checkpoint_failed(struct engine *engine, struct sequence *q,
                              const struct sov_fault *fault) {
    sched_drop_staged(&engine->scheduler, slot_of(engine, q), q->n_committed + 1);
    note_failure(engine, q, fault);
}

static enum sov_status check_receipt(const struct checkpoint_id *id,
                                     const struct checkpoint_receipt *receipt,
                                     struct sov_fault *fault) {
    struct sha256_digest expected = checkpoint_receipt_hash(id, &receipt->payload_hash);
    if (sha256_equal(&expected, &receipt->receipt_hash)) return SOV_OK;
    return fault_set(fault, SOV_ERR_INTEGRITY,
                     "the receipt of sequence %016llx at %u tokens is not of this checkpoint",
                     id->sequence_id, id->n_tokens);
}

// Gives a checkpoint to the store unless it has it (*is_begun), and asks how far it is. A failure
// is to be tried again from the beginning, with the same id and bytes.
static enum sov_status ask_store(struct engine *engine, struct sequence *q,
                                 const struct checkpoint_id *id, bool *is_begun,
                                 enum checkpoint_progress *progress,
                                 struct checkpoint_receipt *receipt, struct sov_fault *fault) {
    struct checkpoint_store *store = &engine->store;
    enum sov_status status = SOV_OK;
    *progress = CHECKPOINT_PENDING;
    if (!*is_begun) {
        status = probe(engine, "checkpoint", fault);
        if (status == SOV_OK) {
            struct str bytes;
            status = sequence_checkpoint(engine, q, id, FINISH_NONE, &bytes, fault);
            if (status == SOV_OK) status = store->begin(store->context, id, bytes, fault);
        }
    }
    if (status == SOV_OK) status = probe(engine, "receipt", fault);
    if (status == SOV_OK) status = store->poll(store->context, id, progress, receipt, fault);
    if (status == SOV_OK && *progress == CHECKPOINT_DURABLE) {
        status = check_receipt(id, receipt, fault);
    }
    *is_begun = status == SOV_OK;
    return status;
}

// The receipt of a boundary that was durable before this run: the bytes made now must be the same.
static enum sov_status receipt_again(struct engine *engine, struct sequence *q,
                                     const struct checkpoint_id *id,
                                     struct checkpoint_receipt *receipt, struct sov_fault *fault) {
    struct str bytes;
    enum sov_status status = sequence_checkpoint(engine, q, id, FINISH_NONE, &bytes, fault);
    if (status != SOV_OK) return status;
    struct sha256_digest hash = sealed_kept_hash(bytes);
    if (!sha256_equal(&hash, &q->restored_hash)) {
        return fault_set(fault, SOV_ERR_INTEGRITY,
                         "sequence %016llx: K and V computed again up to token %u do not have the "
                         "digests of the checkpoint",
                         id->sequence_id, id->n_tokens - 1);
    }
    *receipt = (struct checkpoint_receipt){*id, hash, checkpoint_receipt_hash(id, &hash)};
    return SOV_OK;
}

// Begins the checkpoint of a boundary, or asks how far it is; commits what waits for it.
static void settle(struct engine *engine, struct sequence *q) {
    struct checkpoint_id id = {q->request.id, q->n_committed + 1, CHECKPOINT_BOUNDARY};
    struct checkpoint_receipt receipt = {0};
    enum checkpoint_progress progress = CHECKPOINT_DURABLE;
    struct sov_fault fault = {0};
    // Where a sequence lost its blocks, its boundary waits until they are there again.
    q->waits_for_kv = !q->is_begun && !sequence_has_kv(engine, q);
    if (q->waits_for_kv) {
        hold(engine, q);
        return;
    }
    enum sov_status status =
        q->is_restored ? receipt_again(engine, q, &id, &receipt, &fault)
                       : ask_store(engine, q, &id, &q->is_begun, &progress, &receipt, &fault);
    if (status != SOV_OK) {
        checkpoint_failed(engine, q, &fault);
        return;
    }
    if (progress == CHECKPOINT_PENDING) {
        hold(engine, q);
        return;
    }
    engine->store.forget(engine->store.context, &id);
    q->is_begun = false;
    engine->statistics.n_checkpoints++;
    sequence_begin_kv(engine, q, id.n_tokens - 1);
    sched_prepared(&engine->scheduler, slot_of(engine, q), false);
    bool goes_on = commit_token(engine, q, &receipt);
    while (goes_on && q->n_committed < scheduled(engine, q)->n_tokens) {
        goes_on = commit_token(engine, q, NULL);
    }
    if (goes_on) hold(engine, q);
}

// --- forward and sample: all of it staged ---

static struct kv_layer view_kv_layer(const void *context, u32 layer) {
    return kv_layer_view(context, layer);
}

enum sov_status engine_forward(struct engine *engine, const struct cpu_batch *batch,
                               const f32 **logits, u32 *logit_stride, struct sov_fault *fault) {
    enum sov_status status = probe(engine, "forward", fault);
    if (status == SOV_OK) {
        status = engine->backend.forward(engine->backend.context, batch, view_kv_layer, &engine->kv,
                                         logits, logit_stride, fault);
    }
    if (status == SOV_OK) status = gguf_check_files(&engine->model->gguf, fault); // E4
    return status;
}

// Whether rows reach the newest token, whose logits are wanted.
static bool samples(struct engine *engine, const struct sched_rows *rows) {
    const struct sched_sequence *s = &engine->scheduler.sequences[rows->slot];
    return s->n_computed + rows->n == s->n_tokens && s->n_tokens < engine->config.context;
}

static enum sov_status forward(struct engine *engine, const struct sched_rows *rows, u32 n_rows,
                               const f32 **logits, u32 *logit_stride, struct sov_fault *fault) {
    struct cpu_batch batch = {
        .tokens = engine->tokens,
        .positions = engine->positions,
        .slots = engine->slots,
        .logit_rows = engine->logit_rows,
    };
    for (u32 i = 0; i < n_rows; i++) {
        u32 begin = engine->scheduler.sequences[rows[i].slot].n_computed;
        const u32 *tokens = engine->sequences[rows[i].slot].tokens + begin;
        assert(batch.n_tokens + rows[i].n <= engine->config.token_budget);
        for (u32 k = 0; k < rows[i].n; k++, batch.n_tokens++) {
            engine->tokens[batch.n_tokens] = tokens[k];
            engine->positions[batch.n_tokens] = begin + k;
            engine->slots[batch.n_tokens] = rows[i].slot;
        }
        if (samples(engine, &rows[i])) {
            assert(batch.n_logit_rows < engine->config.logit_rows);
            engine->logit_rows[batch.n_logit_rows++] = batch.n_tokens - 1;
        }
    }
    engine->report.n_rows += batch.n_tokens;
    return engine_forward(engine, &batch, logits, logit_stride, fault);
}

// The next token: of the script, else drawn; with the logarithms of probabilities that were asked
// for. Staged behind what is there.
static enum sov_status sample(struct engine *engine, struct sequence *q, const f32 *logits,
                              struct sov_fault *fault) {
    const struct engine_request *request = &q->request;
    struct sched_sequence *s = scheduled(engine, q);
    u32 generated = s->n_tokens - s->n_prompt, token = TOKEN_NONE;
    enum sov_status status = probe(engine, "sample", fault);
    if (status != SOV_OK) return status;
    if (generated < request->n_script) {
        token = request->script[generated];
    } else {
        struct sample_draw draw = {
            .position = s->n_tokens,
            .history = q->tokens,
            .n_history = s->n_tokens,
        };
        status =
            sov_sample_token(&engine->sampler, logits, &request->sampling, draw, &token, fault);
        if (status != SOV_OK) return status;
    }
    struct staged *staged = &q->staged[generated % STAGED_SLOTS];
    *staged = (struct staged){0};
    if (request->wants_logprob || request->n_logprobs > 0) {
        struct token_logprob own;
        struct token_logprob *top = q->top +
                                    (usize)(generated % STAGED_SLOTS) * engine->config.logprobs_max;
        staged->n_top =
            sample_logprobs(&engine->sampler, logits, token, request->n_logprobs, &own, top);
        staged->logprob = own.logprob;
    }
    q->tokens[s->n_tokens++] = token;
    return SOV_OK;
}

// After a forward that went well: samples, moves on, and commits, or prepares a boundary.
static void complete(struct engine *engine, const struct sched_rows *rows, u32 n_rows,
                     const f32 *logits, u32 logit_stride) {
    u32 n_sampled = 0;
    for (u32 i = 0; i < n_rows; i++) {
        struct sequence *q = &engine->sequences[rows[i].slot];
        struct sched_sequence *s = &engine->scheduler.sequences[rows[i].slot];
        struct sov_fault fault = {0};
        enum sov_status status = SOV_OK;
        bool has_token = samples(engine, &rows[i]);
        u32 n_tokens = s->n_tokens;
        if (has_token) {
            status = sample(engine, q, logits + (u64)n_sampled * logit_stride, &fault);
            n_sampled++;
        }
        if (status != SOV_OK) {
            note_failure(engine, q, &fault);
            continue;
        }
        s->n_tokens = n_tokens; // the phase ends with the history that was computed
        sched_computed(&engine->scheduler, rows[i].slot, rows[i].n);
        s->n_tokens += has_token;
        // What is decoded ahead of a receipt is no success yet: the receipt may fail for ever.
        if (!s->is_prepared) q->n_failures = 0;
        commit_kv(engine, q);
        bool is_boundary = has_token && (s->n_tokens - s->n_prompt) % ENGINE_CHECKPOINT_TOKENS == 0;
        if (is_boundary) sched_prepared(&engine->scheduler, rows[i].slot, true);
        bool goes_on = true;
        if (has_token && !s->is_prepared) goes_on = commit_token(engine, q, NULL);
        if (is_boundary || (s->is_prepared && q->waits_for_kv)) settle(engine, q);
        if (q->handle != 0 && goes_on) hold(engine, q);
    }
}

// Runs the rows of the plan together. When that fails, nobody knows whose fault it was: each
// sequence is tried alone, and only those that fail alone have failed.
static void attempt(struct engine *engine) {
    struct scheduler *s = &engine->scheduler;
    const f32 *logits = NULL;
    u32 logit_stride = 0;
    struct sov_fault fault = {0};
    if (s->n_rows == 0) return;
    enum sov_status status = forward(engine, s->rows, s->n_rows, &logits, &logit_stride, &fault);
    if (status == SOV_OK) {
        complete(engine, s->rows, s->n_rows, logits, logit_stride);
        return;
    }
    if (status == SOV_ERR_INTERRUPTED) return; // the power went: abandoned, as if never begun
    for (u32 i = 0; i < s->n_rows; i++) {
        fault = (struct sov_fault){0};
        status = forward(engine, &s->rows[i], 1, &logits, &logit_stride, &fault);
        if (status == SOV_OK) {
            complete(engine, &s->rows[i], 1, logits, logit_stride);
        } else if (status == SOV_ERR_INTERRUPTED) {
            return;
        } else {
            note_failure(engine, &engine->sequences[s->rows[i].slot], &fault);
        }
    }
}

// --- power ---

// Checkpoints what is committed of every live sequence, and computes nothing. What is staged stays
// staged: the same tokens come after the resumption as would have come without it.
static void suspend(struct engine *engine) {
    engine->is_suspended = true;
    bool all_durable = true;
    for (u32 slot = 0; slot < engine->config.max_seqs; slot++) {
        struct sequence *q = &engine->sequences[slot];
        if (q->handle == 0 || q->suspend_durable) continue;
        struct sov_fault fault = {0};
        enum checkpoint_progress progress;
        struct checkpoint_receipt receipt;
        q->suspend_id = (struct checkpoint_id){q->request.id, q->n_committed, CHECKPOINT_SUSPEND};
        enum sov_status status =
            ask_store(engine, q, &q->suspend_id, &q->suspend_begun, &progress, &receipt, &fault);
        q->suspend_durable = status == SOV_OK && progress == CHECKPOINT_DURABLE;
        all_durable = all_durable && q->suspend_durable;
        if (status != SOV_OK) note_fault(engine, &fault); // the next step tries again
    }
    engine->report.is_suspended = all_durable;
}

static void resume(struct engine *engine) {
    engine->is_suspended = false;
    for (u32 slot = 0; slot < engine->config.max_seqs; slot++) {
        struct sequence *q = &engine->sequences[slot];
        if (q->handle != 0) forget_suspension(engine, q);
    }
}

// --- the step ---

// Sequences that wait until the store has their request.
static void ask_starts(struct engine *engine) {
    const struct checkpoint_store *store = &engine->store;
    for (u32 slot = 0; slot < engine->config.max_seqs; slot++) {
        struct sequence *q = &engine->sequences[slot];
        if (q->handle == 0 || !q->is_starting) continue;
        struct checkpoint_id id = {q->request.id, scheduled(engine, q)->n_prompt,
                                   CHECKPOINT_BOUNDARY};
        enum checkpoint_progress progress = CHECKPOINT_PENDING;
        struct checkpoint_receipt receipt;
        struct sov_fault fault = {0};
        enum sov_status status = store->poll(store->context, &id, &progress, &receipt, &fault);
        if (status == SOV_OK && progress == CHECKPOINT_PENDING) continue;
        store->forget(store->context, &id);
        q->is_starting = false;
        q->is_unrecorded = status != SOV_OK;
        if (q->is_unrecorded) {
            q->fault = fault;
            q->ending = FINISH_FAILED;
            note_fault(engine, &fault);
        }
        hold(engine, q);
    }
}

// Inputs that end sequences: cancels and deadlines.
static void decide_ends(struct engine *engine, const struct engine_inputs *inputs) {
    for (u32 slot = 0; slot < engine->config.max_seqs; slot++) {
        struct sequence *q = &engine->sequences[slot];
        if (q->handle == 0) continue;
        u64 deadline = q->request.deadline_ns;
        if (deadline != 0 && inputs->now_ns >= deadline) q->ending = FINISH_DEADLINE;
        if (q->is_cancelled) q->ending = FINISH_CANCEL;
    }
}

static void end_decided(struct engine *engine) {
    for (u32 slot = 0; slot < engine->config.max_seqs; slot++) {
        struct sequence *q = &engine->sequences[slot];
        if (q->handle != 0 && q->ending != FINISH_NONE) finish(engine, q, q->ending);
    }
}

static void admissions(struct engine *engine) {
    for (u32 i = 0; i < engine->scheduler.n_live; i++) {
        u32 slot = engine->scheduler.order[i];
        struct sched_sequence *s = &engine->scheduler.sequences[slot];
        if (s->was_admitted) publish_admission(engine, &engine->sequences[slot]);
        s->was_admitted = false;
    }
}

// The values are in range: they were made from what these ranges come from.
static void set_janet(struct engine *engine, u32 slot, u32 value) {
    struct sov_fault fault = {0};
    enum sov_status status = janet_set(engine->janet, slot, value, &fault);
    assert(status == SOV_OK);
}

// After the commit (J2).
static void show_janet(struct engine *engine, enum power_state power) {
    if (engine->janet == NULL) return;
    u32 n_pending = 0;
    for (u32 i = 0; i < engine->scheduler.n_live; i++) {
        u32 slot = engine->scheduler.order[i];
        enum sequence_state state = engine->scheduler.sequences[slot].state;
        n_pending += state == SEQUENCE_IDLE || state == SEQUENCE_SWAP;
    }
    set_janet(engine, JANET_PENDING, n_pending);
    set_janet(engine, JANET_BATCH, MIN(engine->report.n_rows, (u32)ENGINE_BUDGET_MAX));
    set_janet(engine, JANET_KV_USED, engine->kv.config.n_blocks - kv_blocks_available(&engine->kv));
    set_janet(engine, JANET_POWER, power);
    for (u32 i = 0; i < engine->report.n_outputs; i++) {
        const struct engine_output *output = &engine->outputs[i];
        const struct sov_event *event = &output->event;
        if (event->type != EVENT_TOKEN) continue;
        set_janet(engine, JANET_SEQUENCE, (u32)(output->sequence % SOV_MAX_SEQS));
        set_janet(engine, JANET_GENERATED, event->committed_token_count % ENGINE_CHECKPOINT_TOKENS);
        for (u32 k = 0; event->has_receipt && k < SHA256_BYTES / 4; k++) {
            set_janet(engine, JANET_RECEIPT + k,
                      load_u32(event->checkpoint_receipt_hash.bytes + 4 * k));
        }
    }
}

static struct sched_limits limits_of(const struct engine *engine, enum power_state power) {
    u32 divisor = power == POWER_LOW_BATTERY ? LOW_BATTERY_DIVISOR : 1;
    return (struct sched_limits){
        .token_budget = MAX(engine->config.token_budget / divisor, 1u),
        .sequences = MAX(engine->config.max_seqs / divisor, 1u),
    };
}

enum sov_status engine_step(struct engine *engine, const struct engine_inputs *inputs,
                            struct engine_report *report, struct sov_fault *fault) {
    if ((u32)inputs->power >= POWER_STATES) {
        return fault_set(fault, SOV_ERR_ARGUMENT, "power state %u", (u32)inputs->power);
    }
    engine->report = (struct engine_report){.outputs = engine->outputs};
    engine->step_fault = (struct sov_fault){0};
    if (inputs->power == POWER_SUSPEND) {
        suspend(engine);
    } else {
        if (engine->is_suspended) resume(engine);
        engine->statistics.n_steps++;
        ask_starts(engine);
        decide_ends(engine, inputs);
        end_decided(engine);
        for (u32 slot = 0; slot < engine->config.max_seqs; slot++) {
            bool waits = engine->sequences[slot].handle != 0 &&
                         engine->scheduler.sequences[slot].is_prepared;
            if (waits) settle(engine, &engine->sequences[slot]);
        }
        struct sched_limits limits = limits_of(engine, inputs->power);
        sched_plan(&engine->scheduler, &limits);
        admissions(engine);
        attempt(engine);
        end_decided(engine);
        engine->statistics.n_rows += engine->report.n_rows;
    }
    engine->report.n_live = engine->scheduler.n_live;
    show_janet(engine, inputs->power);
    *report = engine->report;
    return SOV_OK;
}
