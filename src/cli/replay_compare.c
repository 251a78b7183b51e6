// SPDX-License-Identifier: Apache-2.0
// A checkpoint store that keeps nothing. Payloads come in the order in which they were recorded,
// so the next one is found by walking on from the last. Suspensions come when a machine sleeps, and
// not when it is replayed: what one would hold is made here from the tokens and events.
#include "cli/replay.h"
#include "freestanding/mem.h"

static struct replay_slot *slot_of(struct replay *replay, u64 sequence_id) {
    for (u32 i = 0; i < replay->n_slots; i++) {
        struct replay_slot *slot = &replay->slots[i];
        if (slot->is_used && slot->sequence->owner == sequence_id) return slot;
    }
    assert(!"the engine speaks of sequences that were submitted");
    return NULL;
}

// --- finding what was recorded ---

// The first record of this kind at `record` or behind it that has a payload of its own (a repeated
// reading by sov resume refers to one); ROWM_NONE: there is none. Its payload is then in
// replay->recorded.
static enum sov_status find_record(struct replay *replay, u64 record,
                                   enum payload_checkpoint_kind kind, u64 *found,
                                   struct payload_checkpoint *checkpoint, struct sov_fault *fault) {
    for (; record != ROWM_NONE; record = replay->all->next[record]) {
        struct rowm_record_info info = rowm_snapshot_info(replay->view->snapshot, record);
        if (info.source != ROWM_NONE) continue;
        enum sov_status status = store_payload_read(replay->view, record, &replay->recorded, fault);
        if (status == SOV_OK) {
            status = payload_checkpoint_read(replay->recorded.bytes, checkpoint, fault);
        }
        if (status == SOV_OK && checkpoint->sequence_id != info.owner) {
            status = fault_set(fault, SOV_ERR_FORMAT,
                               "record %llu: the checkpoint is of another sequence", record);
        }
        if (status != SOV_OK) return status;
        if (checkpoint->kind == kind) break;
    }
    *found = record;
    return SOV_OK;
}

static u64 behind(const struct replay *replay, u64 record) {
    return record == ROWM_NONE ? ROWM_NONE : replay->all->next[record];
}

// --- naming a difference ---

static void differ(struct replay_slot *slot, struct replay_difference difference) {
    if (slot->is_different) return; // the first one counts
    slot->is_different = true;
    slot->difference = difference;
}

// The first token in which two histories differ, or the end of the shorter one.
static u32 first_other_token(struct str a, struct str b) {
    u32 n = MIN(payload_count(a), payload_count(b)), i = 0;
    while (i < n && payload_u32(a, i) == payload_u32(b, i)) i++;
    return i;
}

static u32 token_or_none(struct str tokens, u32 i) {
    return i < payload_count(tokens) ? payload_u32(tokens, i) : REPLAY_NONE;
}

static void find_kv(const struct payload_checkpoint *recorded,
                    const struct payload_checkpoint *computed, struct replay_difference *d) {
    d->place = PLACE_KV;
    d->position = recorded->kv_begin;
    u32 n_layer = MIN(recorded->n_layer, computed->n_layer);
    while (d->layer < n_layer) {
        struct sha256_digest a = payload_kv_digest(recorded, d->layer);
        struct sha256_digest b = payload_kv_digest(computed, d->layer);
        if (!sha256_equal(&a, &b)) break;
        d->layer++;
    }
    if (recorded->kv_bytes.len != computed->kv_bytes.len || recorded->kv_bytes.len == 0) return;
    // The bytes are there too: they tell the position.
    usize i = 0;
    while (i < recorded->kv_bytes.len && recorded->kv_bytes.data[i] == computed->kv_bytes.data[i]) {
        i++;
    }
    if (i == recorded->kv_bytes.len) return;
    u64 row = i / recorded->row_bytes, n = recorded->kv_end - recorded->kv_begin;
    d->layer = (u32)(row / n);
    d->position = recorded->kv_begin + (u32)(row % n);
}

static bool same_kv(const struct payload_checkpoint *a, const struct payload_checkpoint *b) {
    return a->n_layer == b->n_layer && a->row_bytes == b->row_bytes &&
           str_equal(a->kv_digests, b->kv_digests) && str_equal(a->kv_bytes, b->kv_bytes);
}

// Two payloads whose bytes differ: where. Earlier causes first: a token shows in all that follows.
static void name_difference(struct replay_slot *slot, u64 record,
                            const struct payload_checkpoint *recorded,
                            const struct payload_checkpoint *computed) {
    struct replay_difference d = {.place = PLACE_FIELD, .record = record};
    u32 at = first_other_token(recorded->tokens, computed->tokens);
    u32 n_prompt = computed->n_prompt;
    bool same_length = recorded->tokens.len == computed->tokens.len;
    d.position = at;
    if (recorded->n_prompt != n_prompt || (at < n_prompt && !same_length) || at < n_prompt) {
        d.place = PLACE_PROMPT;
    } else if (!sha256_equal(&recorded->origin, &computed->origin)) {
        d.place = PLACE_ORIGIN;
    } else if (at < payload_count(recorded->tokens) || !same_length) {
        d.place = PLACE_TOKEN;
        d.generated = at - n_prompt + 1;
        d.recorded = token_or_none(recorded->tokens, at);
        d.computed = token_or_none(computed->tokens, at);
    } else if (recorded->kind != computed->kind || recorded->finish != computed->finish) {
        d.place = PLACE_END;
        d.recorded = recorded->finish;
        d.computed = computed->finish;
    } else if (recorded->kv_begin == computed->kv_begin && recorded->kv_end == computed->kv_end &&
               !same_kv(recorded, computed)) {
        find_kv(recorded, computed, &d);
    } else if (recorded->event_number != computed->event_number ||
               !sha256_equal(&recorded->event_digest, &computed->event_digest)) {
        d.place = PLACE_EVENTS;
    }
    differ(slot, d);
}

// What the engine made, in clear.
static struct payload_checkpoint read_made(struct str bytes) {
    struct payload_checkpoint made;
    struct sha256_digest salt;
    struct sov_fault fault = {0};
    if (sealed_is_opening(bytes)) bytes = sealed_payload(bytes, &salt);
    enum sov_status status = payload_checkpoint_read(bytes, &made, &fault);
    assert(status == SOV_OK); // it was made by this program
    return made;
}

// What was computed now against the payload in replay->recorded.
static void compare(struct replay *replay, struct replay_slot *slot, u64 record,
                    const struct payload_checkpoint *recorded, struct str bytes) {
    slot->n_compared++;
    if (str_equal(replay->recorded.given, bytes)) return;
    struct payload_checkpoint computed = read_made(bytes);
    name_difference(slot, record, recorded, &computed);
}

// The engine has gone on where the record has nothing: the end came earlier there.
static void compare_with_end(struct replay *replay, struct replay_slot *slot, struct str bytes) {
    struct payload_checkpoint recorded;
    u64 record = ROWM_NONE;
    if (slot->sequence->finish == ROWM_NONE) return; // interrupted: nobody knows
    slot->status = find_record(replay, slot->sequence->finish, PAYLOAD_FINISH, &record, &recorded,
                               &slot->fault);
    if (slot->status == SOV_OK && record != ROWM_NONE) {
        compare(replay, slot, record, &recorded, bytes);
    }
}

// --- the store ---

static void note_hash(struct replay_slot *slot, u32 kind, struct str bytes) {
    slot->hashes[kind] = sealed_kept_hash(bytes);
}

static void compare_boundary(struct replay *replay, struct replay_slot *slot, struct str bytes) {
    struct payload_checkpoint recorded;
    u64 record = ROWM_NONE;
    if (slot->is_different || slot->status != SOV_OK) return;
    slot->status =
        find_record(replay, slot->boundary, PAYLOAD_BOUNDARY, &record, &recorded, &slot->fault);
    if (slot->status != SOV_OK) return;
    if (record == ROWM_NONE) {
        compare_with_end(replay, slot, bytes);
        return;
    }
    compare(replay, slot, record, &recorded, bytes);
    slot->boundary = behind(replay, record);
}

static enum sov_status take_start(void *context, const struct checkpoint_id *first,
                                  struct str request, struct str bytes, struct sov_fault *fault) {
    (void)request, (void)fault;
    struct replay_slot *slot = slot_of(context, first->sequence_id);
    slot->origin = read_made(bytes).origin;
    note_hash(slot, first->kind, bytes);
    compare_boundary(context, slot, bytes);
    return SOV_OK;
}

static enum sov_status take_checkpoint(void *context, const struct checkpoint_id *id,
                                       struct str bytes, struct sov_fault *fault) {
    (void)fault;
    struct replay_slot *slot = slot_of(context, id->sequence_id);
    note_hash(slot, id->kind, bytes);
    if (id->kind != CHECKPOINT_BOUNDARY) return SOV_OK;
    compare_boundary(context, slot, bytes);
    slot->kv_begin = id->n_tokens - 1; // of what follows
    return SOV_OK;
}

static enum sov_status poll(void *context, const struct checkpoint_id *id,
                            enum checkpoint_progress *progress, struct checkpoint_receipt *receipt,
                            struct sov_fault *fault) {
    (void)fault;
    const struct replay_slot *slot = slot_of(context, id->sequence_id);
    struct sha256_digest hash = slot->hashes[id->kind];
    *progress = CHECKPOINT_DURABLE; // there is nothing to wait for
    *receipt = (struct checkpoint_receipt){*id, hash, checkpoint_receipt_hash(id, &hash)};
    return SOV_OK;
}

static void forget(void *context, const struct checkpoint_id *id) { (void)context, (void)id; }

// An end that came from outside (a cancel, a deadline, a failure) is made as the engine would have
// made it, from the state that was reached; where K and V were not hashed as far, they are left.
static void compare_other_end(struct replay *replay, struct replay_slot *slot, u64 record,
                              const struct payload_checkpoint *recorded, struct str bytes) {
    struct payload_checkpoint made = read_made(bytes);
    const struct store_payload *request = &slot->request.payload;
    struct event_chain chain;
    event_chain_begin(&chain, slot->sequence->owner, &slot->head,
                      request->is_sealed ? &request->salt : NULL);
    chain.next_number = slot->next_event;
    u32 n_generated = slot->n_tokens - made.n_prompt;
    struct sov_event end = {
        .type = EVENT_FINISHED,
        .previous_state = n_generated > 0 ? SEQUENCE_GENERATE : SEQUENCE_PREFILL,
        .new_state = SEQUENCE_IDLE,
        .committed_token_count = n_generated,
        .sampled_token_id = EVENT_NO_TOKEN,
        .finish = (enum finish_reason)recorded->finish,
    };
    event_seal(&chain, &end);
    made.finish = recorded->finish;
    made.event_number = chain.next_number;
    made.event_digest = chain.digest;
    slot->n_compared++;
    bool same_range = made.kv_begin == recorded->kv_begin && made.kv_end == recorded->kv_end;
    bool is_same = recorded->kind == PAYLOAD_FINISH && recorded->n_prompt == made.n_prompt &&
                   recorded->kv_form == made.kv_form && str_equal(recorded->tokens, made.tokens) &&
                   sha256_equal(&recorded->origin, &made.origin) &&
                   recorded->event_number == made.event_number &&
                   sha256_equal(&recorded->event_digest, &made.event_digest) &&
                   (!same_range || same_kv(recorded, &made));
    if (!is_same) name_difference(slot, record, recorded, &made);
    (void)replay;
}

static enum sov_status take_finish(void *context, const struct checkpoint_id *id, struct str bytes,
                                   struct sov_fault *fault) {
    (void)fault;
    struct replay *replay = context;
    struct replay_slot *slot = slot_of(replay, id->sequence_id);
    if (slot->is_different || slot->status != SOV_OK || slot->sequence->finish == ROWM_NONE) {
        return SOV_OK;
    }
    struct payload_checkpoint recorded;
    u64 record = ROWM_NONE;
    slot->status = find_record(replay, slot->sequence->finish, PAYLOAD_FINISH, &record, &recorded,
                               &slot->fault);
    if (slot->status != SOV_OK) return SOV_OK;
    if (record == ROWM_NONE) {
        slot->status = fault_set(&slot->fault, SOV_ERR_FORMAT, "record %llu is no end",
                                 slot->sequence->finish);
    } else if (slot->has_own_end) {
        compare(replay, slot, record, &recorded, bytes);
    } else {
        compare_other_end(replay, slot, record, &recorded, bytes);
    }
    return SOV_OK;
}

// Its end was not compared.
static void note_lost(void *context, const struct checkpoint_id *id,
                      const struct sov_fault *fault) {
    struct replay_slot *slot = slot_of(context, id->sequence_id);
    if (slot->status != SOV_OK || slot->sequence->finish == ROWM_NONE) return;
    slot->fault = *fault;
    slot->status = fault->status;
}

struct checkpoint_store replay_store(struct replay *replay) {
    return (struct checkpoint_store){
        .context = replay,
        .begin = take_checkpoint,
        .poll = poll,
        .forget = forget,
        .start = take_start,
        .finish = take_finish,
        .lost = note_lost,
    };
}

// --- a sequence ---

enum sov_status replay_begin(struct replay *replay, struct replay_slot *slot, bool *is_empty,
                             struct sov_fault *fault) {
    const struct store_sequence *q = slot->sequence;
    u32 n_prompt = payload_count(slot->request.said.tokens);
    slot->boundary = slot->suspension = q->first;
    *is_empty = q->first == ROWM_NONE;
    if (*is_empty) return SOV_OK;
    enum sov_status status = store_payload_read(replay->view, q->last, &replay->recorded, fault);
    struct payload_checkpoint last;
    if (status == SOV_OK) status = payload_checkpoint_read(replay->recorded.bytes, &last, fault);
    if (status != SOV_OK) return status;
    u32 n_tokens = payload_count(last.tokens);
    bool is_suspended = last.kind == PAYLOAD_SUSPEND;
    slot->has_own_end = last.kind == PAYLOAD_FINISH &&
                        (last.finish == FINISH_STOP || last.finish == FINISH_LENGTH);
    // A suspension may have fewer tokens than a boundary in front of it, whose token waited.
    for (u64 record = q->first; is_suspended && record != ROWM_NONE;) {
        struct payload_checkpoint before;
        u64 found = ROWM_NONE;
        status = find_record(replay, record, PAYLOAD_BOUNDARY, &found, &before, fault);
        if (status != SOV_OK) return status;
        if (found != ROWM_NONE) n_tokens = MAX(n_tokens, payload_count(before.tokens));
        record = behind(replay, found);
    }
    slot->n_wanted = n_tokens > n_prompt ? n_tokens - n_prompt : 0;
    slot->n_tokens = n_prompt;
    memcpy(slot->tokens, slot->request.tokens, n_prompt * sizeof(u32));
    return SOV_OK;
}

// The bytes that a suspension of what was reached has, against those recorded.
static void compare_suspension(struct replay *replay, struct replay_slot *slot, u64 record,
                               const struct payload_checkpoint *recorded) {
    struct payload_checkpoint made = {
        .sequence_id = slot->sequence->owner,
        .kind = PAYLOAD_SUSPEND,
        .kv_form = slot->request.said.kv_form,
        .n_prompt = payload_count(slot->request.said.tokens),
        .tokens = {(const u8 *)slot->tokens, slot->n_tokens * sizeof(u32)},
        .origin = slot->origin,
        .event_number = slot->next_event,
        .event_digest = slot->head,
        .kv_begin = slot->kv_begin,
        .kv_end = slot->kv_begin,
    };
    const struct store_payload *request = &slot->request.payload;
    usize n_head = request->is_sealed ? SEALED_OPENING_HEAD_BYTES : 0;
    u64 n = n_head + payload_checkpoint_bytes(&made);
    u8 *bytes = platform_memory_map((usize)n);
    if (bytes == NULL) {
        slot->status = fault_set(&slot->fault, SOV_ERR_MEMORY, "a checkpoint of %llu bytes", n);
        return;
    }
    if (request->is_sealed) sealed_opening_head(&request->salt, bytes);
    payload_checkpoint_write(&made, bytes + n_head);
    compare(replay, slot, record, recorded, (struct str){bytes, (usize)n});
    platform_memory_unmap(bytes, (usize)n);
}

// Suspensions at the tokens that there are now.
static void compare_suspensions(struct replay *replay, struct replay_slot *slot) {
    while (slot->suspension != ROWM_NONE && slot->status == SOV_OK && !slot->is_different) {
        struct payload_checkpoint recorded;
        u64 record = ROWM_NONE;
        slot->status = find_record(replay, slot->suspension, PAYLOAD_SUSPEND, &record, &recorded,
                                   &slot->fault);
        slot->suspension = record;
        if (slot->status != SOV_OK || record == ROWM_NONE) return;
        u32 n_recorded = payload_count(recorded.tokens);
        if (n_recorded > slot->n_tokens || recorded.event_number > slot->next_event) return;
        // What was suspended before its admission has no event; there is nothing but the prompt.
        struct sha256_digest head = slot->head;
        u64 next_event = slot->next_event;
        if (recorded.event_number == 0) {
            slot->next_event = 0;
            slot->head = slot->origin;
        }
        compare_suspension(replay, slot, record, &recorded);
        slot->head = head;
        slot->next_event = next_event;
        slot->suspension = behind(replay, record);
    }
}

void replay_take(struct replay *replay, struct replay_slot *slot,
                 const struct engine_output *output) {
    const struct sov_event *event = &output->event;
    if (event->type == EVENT_FINISHED) return;
    if (event->type == EVENT_TOKEN) {
        assert(slot->n_tokens < slot->context);
        slot->tokens[slot->n_tokens++] = event->sampled_token_id;
    }
    slot->next_event = event->number + 1;
    slot->head = event->transition_digest;
    compare_suspensions(replay, slot);
}
