// SPDX-License-Identifier: Apache-2.0
// Events from the record. They are a function of the tokens, the origin, and the receipts of the
// boundaries, which are functions of the checkpoints' bytes: all of it is recorded. A run writes a
// record before it publishes the event behind it, so a kill in between leaves a spool that is
// shorter than the record.
#include "cli/store_answer.h"

// Walks a sequence's records and makes its events in order; those from `from` on are appended.
struct retelling {
    struct store_view *view;
    const struct store_sequences *all;
    struct spool *spool;
    struct payload_checkpoint last;   // all tokens
    const struct sha256_digest *salt; // or NULL
    struct event_chain chain;
    u64 from, wall_ns;
};

static enum sov_status tell(struct retelling *x, struct sov_event event, struct sov_fault *fault) {
    event_seal(&x->chain, &event);
    if (event.number < x->from) return SOV_OK;
    return spool_append(x->spool, &event, x->wall_ns, fault);
}

static enum sov_status tell_token(struct retelling *x, const struct sha256_digest *receipt,
                                  struct sov_fault *fault) {
    u32 generated = (u32)x->chain.next_number; // number k is that of token k, from 1
    u32 token = payload_u32(x->last.tokens, x->last.n_prompt + generated - 1);
    if (token == EVENT_NO_TOKEN) {
        return fault_set(fault, SOV_ERR_FORMAT, "sequence %016llx: generated token %u is none",
                         x->chain.sequence_id, generated);
    }
    struct sov_event event = {
        .type = EVENT_TOKEN,
        .previous_state = receipt != NULL  ? SEQUENCE_CHECKPOINT
                          : generated == 1 ? SEQUENCE_PREFILL
                                           : SEQUENCE_GENERATE,
        .new_state = SEQUENCE_GENERATE,
        .committed_token_count = generated,
        .sampled_token_id = token,
        .has_receipt = receipt != NULL,
    };
    if (receipt != NULL) event.checkpoint_receipt_hash = *receipt;
    return tell(x, event, fault);
}

// Tokens up to `number`, none of which is a boundary's.
static enum sov_status tell_tokens(struct retelling *x, u64 number, struct sov_fault *fault) {
    enum sov_status status = SOV_OK;
    while (status == SOV_OK && x->chain.next_number <= number) status = tell_token(x, NULL, fault);
    return status;
}

// A boundary that was recorded: the tokens in front of it, and its own unless it is the last thing
// there is: then whoever goes on tells of it.
static enum sov_status tell_boundary(struct retelling *x, const struct payload_checkpoint *c,
                                     const struct rowm_record_info *info, bool is_last,
                                     struct sov_fault *fault) {
    u32 n_tokens = payload_count(c->tokens), n_generated = n_tokens - c->n_prompt;
    // A suspension may come after a boundary was recorded and before its token was committed: then
    // whoever goes on comes to this boundary again.
    if (n_generated == 0 || n_tokens > payload_count(x->last.tokens)) return SOV_OK;
    if (n_generated < x->chain.next_number) {
        return fault_set(fault, SOV_ERR_FORMAT, "record %llu is out of order", info->record);
    }
    enum sov_status status = tell_tokens(x, n_generated - 1, fault);
    if (status != SOV_OK || is_last) return status;
    struct checkpoint_id id = {info->owner, n_tokens, CHECKPOINT_BOUNDARY};
    struct sha256_digest receipt = checkpoint_receipt_hash(&id, &info->payload_hash);
    return tell_token(x, &receipt, fault);
}

static enum sov_status tell_records(struct retelling *x, const struct store_sequence *q,
                                    struct store_payload *payload, struct sov_fault *fault) {
    enum sov_status status = SOV_OK;
    if (x->last.event_number > 0) {
        status = tell(x,
                      (struct sov_event){
                          .type = EVENT_ADMITTED,
                          .previous_state = SEQUENCE_IDLE,
                          .new_state = SEQUENCE_PREFILL,
                          .sampled_token_id = EVENT_NO_TOKEN,
                      },
                      fault);
    }
    for (u64 record = q->first; record != ROWM_NONE && status == SOV_OK;
         record = x->all->next[record]) {
        struct rowm_record_info info = rowm_snapshot_info(x->view->snapshot, record);
        struct payload_checkpoint c = {0};
        if (info.source != ROWM_NONE) continue; // a resumption: the same payload again
        status = store_payload_read(x->view, record, payload, fault);
        if (status == SOV_OK) status = payload_checkpoint_read(payload->bytes, &c, fault);
        if (status != SOV_OK || c.kind != PAYLOAD_BOUNDARY) continue;
        if (c.n_prompt != x->last.n_prompt) {
            return fault_set(fault, SOV_ERR_FORMAT, "record %llu: a checkpoint of another prompt",
                             record);
        }
        bool is_last = c.event_number == x->last.event_number;
        status = tell_boundary(x, &c, &info, is_last, fault);
    }
    if (status != SOV_OK) return status;
    u32 n_generated = payload_count(x->last.tokens) - x->last.n_prompt;
    if (x->last.kind != PAYLOAD_BOUNDARY && x->last.event_number > 0) {
        status = tell_tokens(x, n_generated, fault);
    }
    if (status != SOV_OK || x->last.kind != PAYLOAD_FINISH) return status;
    enum finish_reason reason = (enum finish_reason)x->last.finish;
    bool is_told = reason != FINISH_CANCEL && reason != FINISH_FAILED;
    if (!is_told) x->from = ROWM_NONE;
    return tell(x,
                (struct sov_event){
                    .type = EVENT_FINISHED,
                    .previous_state = n_generated > 0 ? SEQUENCE_GENERATE : SEQUENCE_PREFILL,
                    .new_state = SEQUENCE_IDLE,
                    .committed_token_count = n_generated,
                    .sampled_token_id = EVENT_NO_TOKEN,
                    .finish = reason,
                },
                fault);
}

// Walks twice: first without a word, to see that the events lead to what was recorded.
static enum sov_status retell(struct retelling *x, const struct store_sequence *q,
                              struct store_payload *payload, struct sov_fault *fault) {
    u64 from = x->from;
    for (u32 i = 0; i < 2; i++) {
        x->from = i == 0 ? ROWM_NONE : from;
        event_chain_begin(&x->chain, q->owner, &x->last.origin, x->salt);
        enum sov_status status = tell_records(x, q, payload, fault);
        if (status != SOV_OK) return status;
        if (x->chain.next_number != x->last.event_number ||
            !sha256_equal(&x->chain.digest, &x->last.event_digest)) {
            return fault_set(fault, SOV_ERR_INTEGRITY,
                             "record %llu: the events of its tokens have another digest", q->last);
        }
    }
    return SOV_OK;
}

enum sov_status store_events_put(struct store_view *view, const struct store_sequences *all,
                                 const struct store_sequence *sequence, struct spool *spool,
                                 struct sov_fault *fault) {
    struct retelling x = {.view = view, .all = all, .spool = spool, .wall_ns = platform_wall_ns()};
    struct store_payload end = {.memory = NULL}, scratch = {.memory = NULL};
    if (sequence->last == ROWM_NONE) return SOV_OK;
    enum sov_status status = store_payload_read(view, sequence->last, &end, fault);
    if (status == SOV_OK) status = payload_checkpoint_read(end.bytes, &x.last, fault);
    if (end.is_sealed) x.salt = &end.salt;
    if (status == SOV_OK && x.last.sequence_id != sequence->owner) {
        status = fault_set(fault, SOV_ERR_FORMAT, "record %llu: a checkpoint of another sequence",
                           sequence->last);
    }
    if (status == SOV_OK) {
        // Behind the last event that is there; that one is compared.
        for (u64 n = x.last.event_number; n > 0 && x.from == 0; n--) {
            if (spool_has(spool, sequence->owner, n - 1)) x.from = n - 1;
        }
        status = retell(&x, sequence, &scratch, fault);
    }
    store_payload_free(&end);
    store_payload_free(&scratch);
    return status;
}
