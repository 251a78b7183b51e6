// SPDX-License-Identifier: Apache-2.0
// Events as bytes, their chain, and the rules that their fields keep among each other. The rules
// are asserted when an event is sealed and checked again when one is read.
#include "engine/event.h"
#include "freestanding/mem.h"
#include "freestanding/status.h"

static const u8 event_tag[EVENT_TAG_BYTES] = {'s', 'o', 'v', '-', 'r', 't', 'x', ' ',
                                              'e', 'v', 'e', 'n', 't', ' ', 'v', '1'};

static_assert(sizeof EVENT_TAG - 1 == EVENT_TAG_BYTES, "the tag has its stated length");
static_assert(SEQUENCE_STATES == 6 && FINISH_FAILED == 5, "the tables below have a row for each");

const char *event_type_name(enum event_type type) {
    static const char *const names[] = {NULL, "admitted", "token", "finished"};
    return type >= EVENT_ADMITTED && type <= EVENT_FINISHED ? names[type] : "?";
}

const char *event_state_name(enum sequence_state state) {
    static const char *const names[SEQUENCE_STATES] = {
        [SEQUENCE_IDLE] = "idle",
        [SEQUENCE_PREFILL] = "prefill",
        [SEQUENCE_GENERATE] = "generate",
        [SEQUENCE_SWAP] = "swap",
        [SEQUENCE_CHECKPOINT] = "checkpoint",
        [SEQUENCE_RESUME] = "resume",
    };
    return (u32)state < SEQUENCE_STATES ? names[state] : "?";
}

const char *event_finish_name(enum finish_reason finish) {
    static const char *const names[] = {
        [FINISH_NONE] = "none",     [FINISH_STOP] = "stop",         [FINISH_LENGTH] = "length",
        [FINISH_CANCEL] = "cancel", [FINISH_DEADLINE] = "deadline", [FINISH_FAILED] = "failed",
    };
    return (u32)finish < COUNT_OF(names) ? names[finish] : "?";
}

// --- rules ---

// What a sequence does alone and undisturbed: it is never swapped and never resumes (V2).
static bool is_undisturbed(enum sequence_state state) {
    return state == SEQUENCE_IDLE || state == SEQUENCE_PREFILL || state == SEQUENCE_GENERATE ||
           state == SEQUENCE_CHECKPOINT;
}

// NULL, or which rule the fields break.
static const char *contradiction(const struct sov_event *e) {
    static const struct sha256_digest zero;
    if (!is_undisturbed(e->previous_state) || !is_undisturbed(e->new_state)) {
        return "a state that no event has";
    }
    if (!e->has_receipt && !sha256_equal(&e->checkpoint_receipt_hash, &zero)) {
        return "a receipt hash without a receipt";
    }
    bool has_token = e->sampled_token_id != EVENT_NO_TOKEN;
    if (has_token != (e->type == EVENT_TOKEN)) return "a token at the wrong event";
    if ((e->finish != FINISH_NONE) != (e->type == EVENT_FINISHED)) {
        return "a finish reason at the wrong event";
    }
    if (e->has_receipt && e->type != EVENT_TOKEN) return "a receipt without a token";
    switch (e->type) {
    case EVENT_ADMITTED:
        if (e->previous_state != SEQUENCE_IDLE || e->new_state != SEQUENCE_PREFILL) {
            return "an admission from or to another state";
        }
        return e->number == 0 && e->committed_token_count == 0 ? NULL
                                                               : "an admission that is not first";
    case EVENT_TOKEN:
        if (e->previous_state == SEQUENCE_IDLE || e->new_state == SEQUENCE_IDLE) {
            return "a token of an idle sequence";
        }
        return e->committed_token_count > 0 && e->number == e->committed_token_count
                   ? NULL
                   : "a number that is not the token's";
    default:
        if (e->new_state != SEQUENCE_IDLE) return "an end that leaves no idle sequence";
        return e->number == (u64)e->committed_token_count + 1 ? NULL
                                                              : "a number that is not the end's";
    }
}

// --- chain ---

void event_chain_begin(struct event_chain *chain, u64 sequence_id,
                       const struct sha256_digest *origin) {
    *chain = (struct event_chain){.sequence_id = sequence_id, .digest = *origin};
}

// Everything but the digest.
static void write_fields(const struct sov_event *e, u8 out[EVENT_HASHED_BYTES]) {
    memcpy(out, event_tag, EVENT_TAG_BYTES);
    store_u32(out + 16, e->version);
    out[20] = (u8)e->type;
    store_u64(out + 21, e->sequence_id);
    out[29] = (u8)e->previous_state;
    out[30] = (u8)e->new_state;
    store_u32(out + 31, e->committed_token_count);
    store_u32(out + 35, e->sampled_token_id);
    out[39] = (u8)e->finish;
    out[40] = e->has_receipt ? 1 : 0;
    memcpy(out + 41, e->checkpoint_receipt_hash.bytes, SHA256_BYTES);
    store_u64(out + 73, e->number);
    memcpy(out + 81, e->prior_digest.bytes, SHA256_BYTES);
}

void event_seal(struct event_chain *chain, struct sov_event *event) {
    event->version = EVENT_VERSION;
    event->sequence_id = chain->sequence_id;
    event->number = chain->next_number;
    event->prior_digest = chain->digest;
    assert(contradiction(event) == NULL);
    u8 bytes[EVENT_HASHED_BYTES];
    write_fields(event, bytes);
    event->transition_digest = sha256_of((struct str){bytes, sizeof bytes});
    chain->digest = event->transition_digest;
    chain->next_number++;
}

// --- bytes ---

void event_write(const struct sov_event *event, u8 out[EVENT_BYTES]) {
    assert(event->version == EVENT_VERSION && contradiction(event) == NULL);
    write_fields(event, out);
    memcpy(out + EVENT_HASHED_BYTES, event->transition_digest.bytes, SHA256_BYTES);
}

enum sov_status event_read(const u8 bytes[EVENT_BYTES], struct sov_event *event,
                           struct sov_fault *fault) {
    if (memcmp(bytes, event_tag, EVENT_TAG_BYTES) != 0) {
        return fault_set(fault, SOV_ERR_FORMAT, "an event begins with \"%s\", found \"%.16s\"",
                         EVENT_TAG, (const char *)bytes);
    }
    u32 version = load_u32(bytes + 16);
    if (version != EVENT_VERSION) {
        return fault_set(fault, SOV_ERR_FORMAT, "an event of version %u, this program reads %u",
                         version, EVENT_VERSION);
    }
    u8 type = bytes[20], previous = bytes[29], next = bytes[30], finish = bytes[39];
    if (type < EVENT_ADMITTED || type > EVENT_FINISHED) {
        return fault_set(fault, SOV_ERR_FORMAT, "an event of the unknown type %u", (u32)type);
    }
    if (previous >= SEQUENCE_STATES || next >= SEQUENCE_STATES || finish > FINISH_FAILED ||
        bytes[40] > 1) {
        return fault_set(fault, SOV_ERR_FORMAT,
                         "an event with unknown values: states %u and %u, finish %u, receipt %u",
                         (u32)previous, (u32)next, (u32)finish, (u32)bytes[40]);
    }
    *event = (struct sov_event){
        .version = version,
        .type = (enum event_type)type,
        .sequence_id = load_u64(bytes + 21),
        .previous_state = (enum sequence_state)previous,
        .new_state = (enum sequence_state)next,
        .committed_token_count = load_u32(bytes + 31),
        .sampled_token_id = load_u32(bytes + 35),
        .finish = (enum finish_reason)finish,
        .has_receipt = bytes[40] == 1,
        .number = load_u64(bytes + 73),
    };
    memcpy(event->checkpoint_receipt_hash.bytes, bytes + 41, SHA256_BYTES);
    memcpy(event->prior_digest.bytes, bytes + 81, SHA256_BYTES);
    memcpy(event->transition_digest.bytes, bytes + EVENT_HASHED_BYTES, SHA256_BYTES);
    const char *rule = contradiction(event);
    if (rule != NULL) return fault_set(fault, SOV_ERR_FORMAT, "an event with %s", rule);
    struct sha256_digest digest = sha256_of((struct str){bytes, EVENT_HASHED_BYTES});
    if (!sha256_equal(&digest, &event->transition_digest)) {
        return fault_set(fault, SOV_ERR_FORMAT, "an event whose digest is not that of its fields");
    }
    return SOV_OK;
}
