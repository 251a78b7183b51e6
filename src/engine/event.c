// SPDX-License-Identifier: Apache-2.0
// Events as bytes, their chain, and the rules that their fields keep among each other. The rules
// are asserted when an event is sealed and checked again when one is read.
#include "engine/event.h"
#include "freestanding/mem.h"
#include "freestanding/status.h"
#include "record/sealed.h"

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
    bool is_sealed = e->version == EVENT_VERSION_SEALED;
    bool has_commitment = !sha256_equal(&e->token_commitment, &zero);
    if (has_commitment && !is_sealed) return "a commitment in an event in clear";
    bool has_token = is_sealed ? has_commitment : e->sampled_token_id != EVENT_NO_TOKEN;
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
                       const struct sha256_digest *origin, const struct sha256_digest *salt) {
    *chain = (struct event_chain){
        .sequence_id = sequence_id, .digest = *origin, .is_sealed = salt != NULL};
    if (salt != NULL) chain->salt = *salt;
}

// The bytes in front of the digest, which covers them.
static usize hashed_bytes(u32 version) {
    return version == EVENT_VERSION_SEALED ? EVENT_HASHED_BYTES + SHA256_BYTES : EVENT_HASHED_BYTES;
}

usize event_bytes(const struct sov_event *event) {
    return hashed_bytes(event->version) + SHA256_BYTES;
}

static void write_fields(const struct sov_event *e, u8 out[EVENT_BYTES_MAX - SHA256_BYTES]) {
    memcpy(out, event_tag, EVENT_TAG_BYTES);
    store_u32(out + 16, e->version);
    out[20] = (u8)e->type;
    store_u64(out + 21, e->sequence_id);
    out[29] = (u8)e->previous_state;
    out[30] = (u8)e->new_state;
    store_u32(out + 31, e->committed_token_count);
    bool is_sealed = e->version == EVENT_VERSION_SEALED;
    store_u32(out + 35, is_sealed ? EVENT_NO_TOKEN : e->sampled_token_id);
    out[39] = (u8)e->finish;
    out[40] = e->has_receipt ? 1 : 0;
    memcpy(out + 41, e->checkpoint_receipt_hash.bytes, SHA256_BYTES);
    store_u64(out + 73, e->number);
    memcpy(out + 81, e->prior_digest.bytes, SHA256_BYTES);
    if (is_sealed) memcpy(out + EVENT_HASHED_BYTES, e->token_commitment.bytes, SHA256_BYTES);
}

void event_seal(struct event_chain *chain, struct sov_event *event) {
    event->version = chain->is_sealed ? EVENT_VERSION_SEALED : EVENT_VERSION;
    event->sequence_id = chain->sequence_id;
    event->number = chain->next_number;
    event->prior_digest = chain->digest;
    if (chain->is_sealed && event->sampled_token_id != EVENT_NO_TOKEN) {
        event->token_commitment =
            sealed_token(&chain->salt, event->number, event->sampled_token_id);
    }
    assert(contradiction(event) == NULL);
    u8 bytes[EVENT_BYTES_MAX];
    write_fields(event, bytes);
    event->transition_digest = sha256_of((struct str){bytes, hashed_bytes(event->version)});
    chain->digest = event->transition_digest;
    chain->next_number++;
}

// --- bytes ---

void event_write(const struct sov_event *event, u8 out[EVENT_BYTES_MAX]) {
    assert(contradiction(event) == NULL);
    write_fields(event, out);
    memcpy(out + hashed_bytes(event->version), event->transition_digest.bytes, SHA256_BYTES);
}

// Whether these are the bytes of an event of a version that is known here.
static enum sov_status check_version(struct str event, u32 *version, struct sov_fault *fault) {
    if (event.len < EVENT_BYTES) {
        return fault_set(fault, SOV_ERR_FORMAT, "an event of %llu bytes: it has %u or more",
                         (u64)event.len, EVENT_BYTES);
    }
    if (memcmp(event.data, event_tag, EVENT_TAG_BYTES) != 0) {
        return fault_set(fault, SOV_ERR_FORMAT, "an event begins with \"%s\", found \"%.16s\"",
                         EVENT_TAG, (const char *)event.data);
    }
    *version = load_u32(event.data + 16);
    if (*version != EVENT_VERSION && *version != EVENT_VERSION_SEALED) {
        return fault_set(fault, SOV_ERR_FORMAT,
                         "an event of version %u, this program reads %u and %u", *version,
                         EVENT_VERSION, EVENT_VERSION_SEALED);
    }
    if (event.len == hashed_bytes(*version) + SHA256_BYTES) return SOV_OK;
    return fault_set(fault, SOV_ERR_FORMAT, "an event of version %u has %llu bytes, not %llu",
                     *version, (u64)hashed_bytes(*version) + SHA256_BYTES, (u64)event.len);
}

enum sov_status event_read(struct str text, struct sov_event *event, struct sov_fault *fault) {
    u32 version = 0;
    enum sov_status status = check_version(text, &version, fault);
    if (status != SOV_OK) return status;
    const u8 *bytes = text.data;
    usize n_hashed = hashed_bytes(version);
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
    if (version == EVENT_VERSION_SEALED) {
        memcpy(event->token_commitment.bytes, bytes + EVENT_HASHED_BYTES, SHA256_BYTES);
    }
    memcpy(event->transition_digest.bytes, bytes + n_hashed, SHA256_BYTES);
    const char *rule = contradiction(event);
    bool has_both = version == EVENT_VERSION_SEALED && event->sampled_token_id != EVENT_NO_TOKEN;
    if (has_both) rule = "a token beside its commitment";
    if (rule != NULL) return fault_set(fault, SOV_ERR_FORMAT, "an event with %s", rule);
    struct sha256_digest digest = sha256_of((struct str){bytes, n_hashed});
    if (!sha256_equal(&digest, &event->transition_digest)) {
        return fault_set(fault, SOV_ERR_FORMAT, "an event whose digest is not that of its fields");
    }
    return SOV_OK;
}
