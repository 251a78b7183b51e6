// SPDX-License-Identifier: Apache-2.0
// Entries, receipts and what they amount to. Making, checking and applying are apart: a writer
// makes and checks before it writes, a reader checks what it finds, and both apply in the same way
// (W1).
#include "record/worm.h"
#include "freestanding/mem.h"
#include "platform/platform.h"

#define TAG(literal) ((struct str){(const u8 *)(literal), WORM_TAG_BYTES})
#define BODY_TAG "sov-rowm body v1"
#define CLAIM_TAG "sov-rowm take v1"
#define RECEIPT_TAG "sov-rowm rcpt v1"
#define LINK_TAG "sov-rowm link v1"
#define PROOF_TAG "sov-rowm prof v1"
#define CAPABILITY_TAG "sov-rowm cpbl v1"
#define EVOLUTION_TAG "sov-rowm evol v1"
#define ACCESS_TAG "sov-rowm accs v1"
#define REQUEST_TAG "sov-rowm rqst v1"
#define RECEIPT_VERSION 1

static_assert(sizeof BODY_TAG == WORM_TAG_BYTES + 1 && sizeof ACCESS_TAG == WORM_TAG_BYTES + 1,
              "tags as documented");
static_assert(RECORD_PROOF_OFF + SHA256_BYTES == RECORD_META_BYTES, "the tables of the format");
static_assert(CLAIM_NUMBER_OFF + 8 == CLAIM_META_BYTES, "the tables of the format");
static_assert(RECEIPT_HASH_OFF + SHA256_BYTES == RECEIPT_META_BYTES, "the tables of the format");

static const struct sha256_digest no_digest;

static struct str digest_str(const struct sha256_digest *digest) {
    return (struct str){digest->bytes, SHA256_BYTES};
}

static const u8 *meta_of(const struct worm_entry *entry) { return entry->bytes + ENTRY_HEAD_BYTES; }
static u64 meta_u64(const struct worm_entry *entry, u32 off) {
    return load_u64(meta_of(entry) + off);
}
static struct sha256_digest meta_digest(const struct worm_entry *entry, u32 off) {
    struct sha256_digest digest = {{0}};
    memcpy(digest.bytes, meta_of(entry) + off, SHA256_BYTES);
    return digest;
}
static void put_digest(u8 *to, const struct sha256_digest *digest) {
    memcpy(to, digest->bytes, SHA256_BYTES);
}

// --- maps ---

static u64 mix(u64 x) { // the finaliser of SplitMix64
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

// The upper half of a sum of products modulo 2^128: for any two different inputs, over all keys,
// the two hashes are independent and uniform (multilinear hashing), so no choice of ids makes long
// runs likely.
typedef unsigned __int128 u128;

static u64 hash_words(const struct worm_state *state, const u8 *bytes, u32 n_words) {
    const u64 *keys = state->keys;
    u128 sum = (u128)keys[0] << 64;
    for (u32 i = 0; i < n_words; i++) {
        u128 key = (u128)keys[1 + 2 * i] << 64 | keys[2 + 2 * i];
        sum += key * load_u64(bytes + (usize)8 * i);
    }
    return mix((u64)(sum >> 64));
}

static void draw_keys(struct worm_state *state) {
    u64 seed = 0;
    if (platform_random(&seed, sizeof seed, NULL) != SOV_OK) seed = platform_monotonic_ns();
    for (u32 i = 0; i < WORM_KEYS; i++) state->keys[i] = mix(seed += 0x9e3779b97f4a7c15);
}

static u64 digest_key(const struct worm_state *state, const struct sha256_digest *digest) {
    static_assert(WORM_KEYS == 1 + 2 * SHA256_BYTES / 8, "two a word");
    return hash_words(state, digest->bytes, SHA256_BYTES / 8);
}

static u64 owner_key(const struct worm_state *state, u64 owner) {
    u8 bytes[8];
    store_u64(bytes, owner);
    return hash_words(state, bytes, 1);
}

static u32 *txid_slot(const struct worm_state *state, const struct sha256_digest *txid) {
    for (u64 i = digest_key(state, txid);; i++) {
        u32 *slot = &state->by_txid.slots[i & (state->by_txid.n_slots - 1)];
        if (*slot == 0 || sha256_equal(&state->transactions[*slot - 1].txid, txid)) return slot;
    }
}

static u32 *capability_slot(const struct worm_state *state, const struct sha256_digest *id) {
    for (u64 i = digest_key(state, id);; i++) {
        u32 *slot = &state->by_capability.slots[i & (state->by_capability.n_slots - 1)];
        if (*slot == 0 || sha256_equal(&state->records[*slot - 1].capability, id)) return slot;
    }
}

static u32 *owner_slot(const struct worm_state *state, u64 owner) {
    for (u64 i = owner_key(state, owner);; i++) {
        u32 *slot = &state->by_owner.slots[i & (state->by_owner.n_slots - 1)];
        if (*slot == 0 || state->records[*slot - 1].owner == owner) return slot;
    }
}

const struct worm_transaction *worm_find_transaction(const struct worm_state *state,
                                                     const struct sha256_digest *txid) {
    if (state->by_txid.n_slots == 0) return NULL;
    u32 at = *txid_slot(state, txid);
    return at == 0 ? NULL : &state->transactions[at - 1];
}

u64 worm_find_capability(const struct worm_state *state, const struct sha256_digest *capability) {
    if (state->by_capability.n_slots == 0) return ROWM_NONE;
    u32 at = *capability_slot(state, capability);
    return at == 0 ? ROWM_NONE : at - 1;
}

u64 worm_last_capability(const struct worm_state *state, u64 owner) {
    if (state->by_owner.n_slots == 0) return ROWM_NONE;
    u32 at = *owner_slot(state, owner);
    return at == 0 ? ROWM_NONE : at - 1;
}

u64 worm_find_available(const struct worm_state *state, u64 owner) {
    u64 last = worm_last_capability(state, owner);
    bool available = last != ROWM_NONE &&
                     state->records[last].capability_state == CAPABILITY_AVAILABLE;
    return available ? last : ROWM_NONE;
}

// --- memory ---

#define TRANSACTIONS_MIN 256

void worm_begin(struct worm_state *state) {
    *state = (struct worm_state){.heads.length = WORM_LOG_BEGIN};
    draw_keys(state);
}

static void unmap(void *memory, u64 bytes) {
    if (memory != NULL) platform_memory_unmap(memory, (usize)bytes);
}

void worm_free(struct worm_state *state) {
    unmap(state->records, state->records_capacity * sizeof *state->records);
    unmap(state->transactions, state->transactions_capacity * sizeof *state->transactions);
    unmap(state->by_txid.slots, state->by_txid.n_slots * sizeof(u32));
    unmap(state->by_capability.slots, state->by_capability.n_slots * sizeof(u32));
    unmap(state->by_owner.slots, state->by_owner.n_slots * sizeof(u32));
    worm_begin(state);
}

static void fill_maps(struct worm_state *state) {
    for (u64 i = 0; i < state->heads.time; i++) {
        *txid_slot(state, &state->transactions[i].txid) = (u32)i + 1;
    }
    for (u64 i = 0; i < state->n_records; i++) {
        const struct worm_record *record = &state->records[i];
        if (record->capability_state == CAPABILITY_NONE) continue;
        *capability_slot(state, &record->capability) = (u32)i + 1;
        *owner_slot(state, record->owner) = (u32)i + 1; // the last one stays
    }
}

// Room for `capacity` transactions, a power of two. The tables are copied; the maps are filled
// anew, at most half full.
static enum sov_status grow(struct worm_state *state, u64 capacity, struct sov_fault *fault) {
    struct worm_state grown = *state;
    usize map_bytes = (usize)(2 * capacity * sizeof(u32));
    grown.records_capacity = grown.transactions_capacity = capacity;
    grown.records = platform_memory_map((usize)capacity * sizeof *grown.records);
    grown.transactions = platform_memory_map((usize)capacity * sizeof *grown.transactions);
    struct worm_map *maps[] = {&grown.by_txid, &grown.by_capability, &grown.by_owner};
    bool whole = grown.records != NULL && grown.transactions != NULL;
    for (u32 i = 0; i < COUNT_OF(maps); i++) {
        *maps[i] = (struct worm_map){platform_memory_map(map_bytes), (u32)(2 * capacity)};
        whole = whole && maps[i]->slots != NULL;
    }
    if (!whole) {
        worm_free(&grown);
        return fault_set(fault, SOV_ERR_MEMORY, "index of a store: %llu transactions do not fit",
                         capacity);
    }
    if (state->heads.time > 0) {
        memcpy(grown.records, state->records, (usize)state->n_records * sizeof *grown.records);
        memcpy(grown.transactions, state->transactions,
               (usize)state->heads.time * sizeof *grown.transactions);
    }
    fill_maps(&grown);
    worm_free(state);
    *state = grown;
    return SOV_OK;
}

enum sov_status worm_reserve(struct worm_state *state, struct sov_fault *fault) {
    u64 n = state->transactions_capacity;
    if (state->heads.time < n) return SOV_OK;
    if (n >= ROWM_TRANSACTIONS_MAX) {
        return fault_set(fault, SOV_ERR_LIMIT, "a store takes %u transactions: begin a new one",
                         ROWM_TRANSACTIONS_MAX);
    }
    return grow(state, MAX(2 * n, (u64)TRANSACTIONS_MIN), fault);
}

enum sov_status worm_reserve_all(struct worm_state *state, u64 n, struct sov_fault *fault) {
    u64 capacity = TRANSACTIONS_MIN;
    while (capacity < MIN(n, (u64)ROWM_TRANSACTIONS_MAX)) capacity *= 2;
    return capacity > state->transactions_capacity ? grow(state, capacity, fault) : SOV_OK;
}

struct worm_heads worm_heads(const struct worm_state *state) {
    struct worm_heads heads = state->heads;
    heads.root = tree_root(&state->tree);
    return heads;
}

struct rowm_record_info worm_info(const struct worm_state *state, u64 record) {
    const struct worm_record *r = &state->records[record];
    return (struct rowm_record_info){
        .record = record,
        .owner = r->owner,
        .epoch = r->epoch,
        .session = r->session,
        .parent = r->parent,
        .source = r->source,
        .time = r->time,
        .payload_bytes = r->payload_bytes,
        .kind = (enum rowm_kind)r->kind,
        .payload_hash = r->payload_hash,
        .has_capability = r->capability_state != CAPABILITY_NONE,
        .available = r->capability_state == CAPABILITY_AVAILABLE,
        .capability = r->capability,
    };
}

struct rowm_receipt worm_receipt(const struct worm_state *state, u64 time) {
    assert(time >= 1 && time <= state->heads.time);
    const struct worm_transaction *t = &state->transactions[time - 1];
    struct rowm_receipt receipt = {
        .version = RECEIPT_VERSION,
        .kind = (enum rowm_receipt_kind)t->kind,
        .txid = t->txid,
        .payload_hash = t->payload_hash,
        .hash = t->receipt_hash,
        .time = time,
        .record = t->record,
    };
    if (time > 1) receipt.previous = state->transactions[time - 2].receipt_hash;
    return receipt;
}

// --- making entries ---

// Begins an entry; the payload's length is set by the caller.
static u8 *begin_entry(struct worm_entry *entry, enum worm_type type, u32 meta_bytes,
                       struct str tag) {
    memset(entry->bytes, 0, sizeof entry->bytes);
    entry->type = type;
    entry->meta_bytes = meta_bytes;
    entry->payload_bytes = 0;
    store_u64(entry->bytes + ENTRY_META_LEN_OFF, meta_bytes);
    entry->bytes[ENTRY_TYPE_OFF] = (u8)type;
    u8 *meta = entry->bytes + ENTRY_HEAD_BYTES;
    memcpy(meta, tag.data, tag.len);
    return meta;
}

// Leaf and link of an entry whose head and meta part are there.
static void hash_entry(struct worm_entry *entry, const struct sha256_digest *link) {
    entry->leaf =
        tree_leaf_hash((struct str){entry->bytes, ENTRY_HEAD_BYTES + (usize)entry->meta_bytes});
    struct sha256 h;
    sha256_begin(&h);
    sha256_update(&h, TAG(LINK_TAG));
    sha256_update(&h, digest_str(link));
    sha256_update(&h, digest_str(&entry->leaf));
    entry->link = sha256_end(&h);
}

static void end_entry(struct worm_entry *entry, const struct sha256_digest *link) {
    store_u64(entry->bytes + ENTRY_PAYLOAD_LEN_OFF, entry->payload_bytes);
    hash_entry(entry, link);
    put_digest(entry->bytes + ENTRY_HEAD_BYTES + entry->meta_bytes, &entry->link);
}

// What binds a record to the state it was written on.
static struct sha256_digest proof_of(const u8 *meta) {
    struct sha256 h;
    sha256_begin(&h);
    sha256_update(&h, TAG(PROOF_TAG));
    sha256_update(&h, (struct str){meta + RECORD_PARENT_ROOT_OFF, SHA256_BYTES});
    sha256_update(&h, (struct str){meta + RECORD_TXID_OFF, SHA256_BYTES});
    sha256_update(&h, (struct str){meta + RECORD_PAYLOAD_HASH_OFF, SHA256_BYTES});
    sha256_update(&h, (struct str){meta + RECORD_EPOCH_OFF, 8});
    return sha256_end(&h);
}

void worm_make_record(const struct worm_state *state, const struct rowm_write *write,
                      const struct sha256_digest *payload_hash, u64 payload_bytes,
                      struct worm_entry *entry) {
    u8 *meta = begin_entry(entry, WORM_RECORD, RECORD_META_BYTES, TAG(BODY_TAG));
    u64 session = state->n_sessions - (write->kind == ROWM_MANIFEST ? 0 : 1);
    store_u64(meta + RECORD_ID_OFF, state->n_records);
    store_u64(meta + RECORD_SESSION_OFF, session);
    meta[RECORD_KIND_OFF] = (u8)write->kind;
    store_u64(meta + RECORD_OWNER_OFF, write->owner);
    store_u64(meta + RECORD_EPOCH_OFF, write->epoch);
    store_u64(meta + RECORD_PARENT_OFF, write->parent);
    put_digest(meta + RECORD_PARENT_ROOT_OFF, &state->heads.evolution);
    put_digest(meta + RECORD_TXID_OFF, &write->txid);
    store_u64(meta + RECORD_SOURCE_OFF, ROWM_NONE);
    if (write->by_reference) {
        u64 consumed = worm_find_capability(state, &write->capability);
        const struct worm_record *from = consumed == ROWM_NONE ? NULL : &state->records[consumed];
        meta[RECORD_PLACE_OFF] = 1;
        if (from != NULL) {
            store_u64(meta + RECORD_SOURCE_OFF,
                      from->source == ROWM_NONE ? consumed : from->source);
        }
    } else {
        entry->payload_bytes = payload_bytes;
    }
    store_u64(meta + RECORD_PAYLOAD_LEN_OFF, payload_bytes);
    put_digest(meta + RECORD_PAYLOAD_HASH_OFF, payload_hash);
    meta[RECORD_CONSUMES_OFF] = write->consumes;
    if (write->consumes) put_digest(meta + RECORD_CAPABILITY_OFF, &write->capability);
    meta[RECORD_ISSUES_OFF] = write->issues;
    if (write->issues) store_u64(meta + RECORD_NONCE_OFF, state->n_capabilities);
    struct sha256_digest proof = proof_of(meta);
    put_digest(meta + RECORD_PROOF_OFF, &proof);
    end_entry(entry, &state->heads.link);
}

void worm_make_claim(const struct worm_state *state, const struct rowm_claim *claim, u64 record,
                     struct worm_entry *entry) {
    u8 *meta = begin_entry(entry, WORM_CLAIM, CLAIM_META_BYTES, TAG(CLAIM_TAG));
    put_digest(meta + CLAIM_TXID_OFF, &claim->txid);
    put_digest(meta + CLAIM_CAPABILITY_OFF, &claim->capability);
    store_u64(meta + CLAIM_RECORD_OFF, record);
    store_u64(meta + CLAIM_CONSUMER_OFF, claim->consumer);
    store_u64(meta + CLAIM_NUMBER_OFF, state->n_claims);
    end_entry(entry, &state->heads.link);
}

static struct sha256_digest txid_of(const struct worm_entry *entry) {
    return meta_digest(entry, entry->type == WORM_RECORD  ? RECORD_TXID_OFF
                              : entry->type == WORM_CLAIM ? CLAIM_TXID_OFF
                                                          : RECEIPT_TXID_OFF);
}

// The digest that a receipt carries: of the payload written, or of the one consumed.
static struct sha256_digest certified_payload(const struct worm_state *state,
                                              const struct worm_entry *certified) {
    if (certified->type == WORM_RECORD) return meta_digest(certified, RECORD_PAYLOAD_HASH_OFF);
    return state->records[meta_u64(certified, CLAIM_RECORD_OFF)].payload_hash;
}

void worm_make_receipt(const struct worm_state *state, const struct worm_entry *certified,
                       struct worm_entry *entry) {
    u8 *meta = begin_entry(entry, WORM_RECEIPT, RECEIPT_META_BYTES, TAG(RECEIPT_TAG));
    bool is_write = certified->type == WORM_RECORD;
    struct sha256_digest txid = txid_of(certified);
    struct sha256_digest payload_hash = certified_payload(state, certified);
    store_u32(meta + RECEIPT_VERSION_OFF, RECEIPT_VERSION);
    meta[RECEIPT_KIND_OFF] = is_write ? ROWM_WRITE : ROWM_CONSUME;
    put_digest(meta + RECEIPT_TXID_OFF, &txid);
    put_digest(meta + RECEIPT_PAYLOAD_HASH_OFF, &payload_hash);
    put_digest(meta + RECEIPT_PREVIOUS_OFF, &state->heads.worm);
    store_u64(meta + RECEIPT_TIME_OFF, state->heads.time + 1);
    struct sha256_digest hash = sha256_of((struct str){meta, RECEIPT_HASH_OFF});
    put_digest(meta + RECEIPT_HASH_OFF, &hash);
    end_entry(entry, &certified->link);
}

struct str worm_entry_bytes(const struct worm_entry *entry) {
    return (struct str){entry->bytes, ENTRY_HEAD_BYTES + (usize)entry->meta_bytes + SHA256_BYTES};
}

const u8 *worm_payload_hash(const struct worm_entry *entry) {
    bool inside = entry->type == WORM_RECORD && meta_of(entry)[RECORD_PLACE_OFF] == 0;
    return inside ? meta_of(entry) + RECORD_PAYLOAD_HASH_OFF : NULL;
}

bool worm_read_entry(struct str bytes, const struct sha256_digest *link, struct worm_entry *entry) {
    static const struct {
        u32 meta_bytes;
        char tag[WORM_TAG_BYTES + 1];
    } types[] = {
        [WORM_RECORD] = {RECORD_META_BYTES, BODY_TAG},
        [WORM_CLAIM] = {CLAIM_META_BYTES, CLAIM_TAG},
        [WORM_RECEIPT] = {RECEIPT_META_BYTES, RECEIPT_TAG},
    };
    if (bytes.len < ENTRY_HEAD_BYTES) return false;
    u32 type = bytes.data[ENTRY_TYPE_OFF];
    if (type == 0 || type >= COUNT_OF(types)) return false;
    u32 meta_bytes = types[type].meta_bytes;
    usize whole = ENTRY_HEAD_BYTES + (usize)meta_bytes + SHA256_BYTES;
    if (load_u64(bytes.data + ENTRY_META_LEN_OFF) != meta_bytes || bytes.len < whole) return false;
    if (memcmp(bytes.data + ENTRY_HEAD_BYTES, types[type].tag, WORM_TAG_BYTES) != 0) return false;
    entry->type = (enum worm_type)type;
    entry->meta_bytes = meta_bytes;
    entry->payload_bytes = load_u64(bytes.data + ENTRY_PAYLOAD_LEN_OFF);
    memset(entry->bytes, 0, sizeof entry->bytes);
    memcpy(entry->bytes, bytes.data, whole);
    hash_entry(entry, link);
    return memcmp(entry->link.bytes, bytes.data + whole - SHA256_BYTES, SHA256_BYTES) == 0;
}

// --- checking ---

struct sha256_digest worm_request(const struct worm_entry *entry) {
    const u8 *meta = meta_of(entry);
    struct sha256 h;
    sha256_begin(&h);
    sha256_update(&h, TAG(REQUEST_TAG));
    if (entry->type == WORM_RECORD) {
        sha256_update(
            &h, (struct str){meta + RECORD_KIND_OFF, RECORD_PARENT_ROOT_OFF - RECORD_KIND_OFF});
        sha256_update(&h,
                      (struct str){meta + RECORD_PLACE_OFF, RECORD_NONCE_OFF - RECORD_PLACE_OFF});
    } else {
        sha256_update(
            &h, (struct str){meta + CLAIM_CAPABILITY_OFF, CLAIM_NUMBER_OFF - CLAIM_CAPABILITY_OFF});
    }
    return sha256_end(&h);
}

// The capability that an entry consumes: there, available, of this owner (ROWM_NONE: of anyone).
static enum sov_status check_capability(const struct worm_state *state,
                                        const struct sha256_digest *capability, u64 *record,
                                        struct sov_fault *fault) {
    *record = worm_find_capability(state, capability);
    if (*record == ROWM_NONE) {
        return fault_set(fault, SOV_ERR_ARGUMENT, "no record has issued this capability");
    }
    if (state->records[*record].capability_state != CAPABILITY_AVAILABLE) {
        return fault_set(fault, SOV_ERR_STATE, "the capability of record %llu was consumed",
                         *record);
    }
    return SOV_OK;
}

static bool is_flag(u8 byte) { return byte <= 1; }

// Fields of a record that can be judged without the state.
static enum sov_status check_record_fields(const struct worm_entry *entry,
                                           struct sov_fault *fault) {
    const u8 *meta = meta_of(entry);
    bool by_reference = meta[RECORD_PLACE_OFF] == 1, consumes = meta[RECORD_CONSUMES_OFF] == 1;
    bool issues = meta[RECORD_ISSUES_OFF] == 1;
    const char *wrong = NULL;
    if (!is_flag(meta[RECORD_PLACE_OFF]) || !is_flag(meta[RECORD_CONSUMES_OFF]) ||
        !is_flag(meta[RECORD_ISSUES_OFF])) {
        wrong = "a flag is neither 0 nor 1";
    } else if (meta[RECORD_KIND_OFF] < ROWM_MANIFEST || meta[RECORD_KIND_OFF] > ROWM_KIND_LAST) {
        wrong = "there is no such kind of record";
    } else if (!consumes && memcmp(meta + RECORD_CAPABILITY_OFF, no_digest.bytes, 32) != 0) {
        wrong = "a capability is named that is not consumed";
    } else if (!issues && meta_u64(entry, RECORD_NONCE_OFF) != 0) {
        wrong = "a nonce without a capability";
    } else if (by_reference && (!consumes || entry->payload_bytes != 0)) {
        wrong = "a payload by reference needs a consumed capability and no bytes";
    } else if (!by_reference && (entry->payload_bytes != meta_u64(entry, RECORD_PAYLOAD_LEN_OFF) ||
                                 meta_u64(entry, RECORD_SOURCE_OFF) != ROWM_NONE)) {
        wrong = "the payload's lengths differ";
    } else if (entry->payload_bytes > ROWM_PAYLOAD_BYTES_MAX) {
        wrong = "the payload is too long";
    }
    return wrong == NULL ? SOV_OK : fault_set(fault, SOV_ERR_ARGUMENT, "%s", wrong);
}

// A payload by reference is that of the consumed record, one epoch later.
static enum sov_status check_reference(const struct worm_state *state,
                                       const struct worm_entry *entry, u64 consumed,
                                       struct sov_fault *fault) {
    const struct worm_record *from = &state->records[consumed];
    u64 source = from->source == ROWM_NONE ? consumed : from->source;
    struct sha256_digest payload_hash = meta_digest(entry, RECORD_PAYLOAD_HASH_OFF);
    if (meta_u64(entry, RECORD_SOURCE_OFF) != source ||
        meta_u64(entry, RECORD_PAYLOAD_LEN_OFF) != from->payload_bytes ||
        !sha256_equal(&payload_hash, &from->payload_hash) || from->epoch == ~0ull ||
        meta_u64(entry, RECORD_EPOCH_OFF) != from->epoch + 1) {
        return fault_set(fault, SOV_ERR_ARGUMENT,
                         "a payload by reference is not that of record %llu, one epoch later",
                         consumed);
    }
    return SOV_OK;
}

static enum sov_status check_record(const struct worm_state *state, const struct worm_entry *entry,
                                    struct sov_fault *fault) {
    const u8 *meta = meta_of(entry);
    enum sov_status status = check_record_fields(entry, fault);
    if (status != SOV_OK) return status;
    bool manifest = meta[RECORD_KIND_OFF] == ROWM_MANIFEST;
    u64 owner = meta_u64(entry, RECORD_OWNER_OFF), parent = meta_u64(entry, RECORD_PARENT_OFF);
    struct sha256_digest root = meta_digest(entry, RECORD_PARENT_ROOT_OFF);
    struct sha256_digest proof = meta_digest(entry, RECORD_PROOF_OFF), right = proof_of(meta);
    bool issues = meta[RECORD_ISSUES_OFF] == 1, consumes = meta[RECORD_CONSUMES_OFF] == 1;
    const char *wrong = NULL;
    if (meta_u64(entry, RECORD_ID_OFF) != state->n_records ||
        meta_u64(entry, RECORD_SESSION_OFF) + !manifest != state->n_sessions) {
        wrong = "the record or its session is out of order";
    } else if (!manifest && state->n_sessions == 0) {
        wrong = "the first record is no manifest";
    } else if (manifest && (issues || consumes)) {
        wrong = "a manifest has no capability";
    } else if (parent != ROWM_NONE && parent >= state->n_records) {
        wrong = "the parent is no earlier record";
    } else if (!sha256_equal(&root, &state->heads.evolution) || !sha256_equal(&proof, &right)) {
        wrong = "the record was not written on this state";
    } else if (issues && meta_u64(entry, RECORD_NONCE_OFF) != state->n_capabilities) {
        wrong = "the capability's nonce is out of order";
    }
    if (wrong != NULL) return fault_set(fault, SOV_ERR_ARGUMENT, "%s", wrong);
    u64 available = worm_find_available(state, owner), consumed = ROWM_NONE;
    if (consumes) {
        struct sha256_digest capability = meta_digest(entry, RECORD_CAPABILITY_OFF);
        status = check_capability(state, &capability, &consumed, fault);
        if (status != SOV_OK) return status;
        if (state->records[consumed].owner != owner) {
            return fault_set(fault, SOV_ERR_ARGUMENT,
                             "the capability of record %llu belongs to another owner", consumed);
        }
    }
    if (issues && available != consumed) { // W4
        return fault_set(fault, SOV_ERR_STATE, "the owner has a capability already, of record %llu",
                         available);
    }
    return meta[RECORD_PLACE_OFF] == 0 ? SOV_OK : check_reference(state, entry, consumed, fault);
}

static enum sov_status check_claim(const struct worm_state *state, const struct worm_entry *entry,
                                   struct sov_fault *fault) {
    struct sha256_digest capability = meta_digest(entry, CLAIM_CAPABILITY_OFF);
    u64 record = ROWM_NONE;
    enum sov_status status = check_capability(state, &capability, &record, fault);
    if (status != SOV_OK) return status;
    if (entry->payload_bytes != 0 || meta_u64(entry, CLAIM_RECORD_OFF) != record ||
        meta_u64(entry, CLAIM_NUMBER_OFF) != state->n_claims) {
        return fault_set(fault, SOV_ERR_ARGUMENT, "the claim is out of order");
    }
    return SOV_OK;
}

enum sov_status worm_check(const struct worm_state *state, const struct worm_entry *entry,
                           struct sov_fault *fault) {
    if (entry->type == WORM_RECEIPT) {
        if (!state->pending) return fault_set(fault, SOV_ERR_ARGUMENT, "a receipt of nothing");
        struct worm_entry right; // it is a function of what is there: no other bytes are valid
        worm_make_receipt(state, &state->pending_entry, &right);
        struct str a = worm_entry_bytes(&right), b = worm_entry_bytes(entry);
        if (!str_equal(a, b)) {
            return fault_set(fault, SOV_ERR_ARGUMENT, "the receipt contradicts what it certifies");
        }
        return SOV_OK;
    }
    if (state->pending) return fault_set(fault, SOV_ERR_ARGUMENT, "a receipt is missing");
    struct sha256_digest txid = txid_of(entry);
    if (worm_find_transaction(state, &txid) != NULL) { // W3
        return fault_set(fault, SOV_ERR_ARGUMENT, "the transaction id was used before");
    }
    return entry->type == WORM_RECORD ? check_record(state, entry, fault)
                                      : check_claim(state, entry, fault);
}

// --- applying ---

static void advance_evolution(struct worm_state *state, const struct worm_entry *record) {
    u8 time[8];
    store_u64(time, state->heads.time);
    struct sha256 h;
    sha256_begin(&h);
    sha256_update(&h, TAG(EVOLUTION_TAG));
    sha256_update(&h, digest_str(&state->heads.evolution));
    sha256_update(&h, digest_str(&record->leaf));
    sha256_update(&h, (struct str){meta_of(record) + RECORD_PROOF_OFF, SHA256_BYTES});
    sha256_update(&h, (struct str){time, sizeof time});
    state->heads.evolution = sha256_end(&h);
}

static void consume(struct worm_state *state, u64 consumer, u64 record) {
    struct worm_record *consumed = &state->records[record];
    assert(consumed->capability_state == CAPABILITY_AVAILABLE);
    consumed->capability_state = CAPABILITY_CONSUMED;
    consumed->consumed_time = state->heads.time;
    u8 numbers[16], time[8];
    store_u64(numbers, consumer);
    store_u64(numbers + 8, record);
    store_u64(time, state->heads.time);
    struct sha256 h;
    sha256_begin(&h);
    sha256_update(&h, TAG(ACCESS_TAG));
    sha256_update(&h, digest_str(&state->heads.access));
    sha256_update(&h, (struct str){numbers, sizeof numbers});
    sha256_update(&h, digest_str(&consumed->capability));
    sha256_update(&h, (struct str){time, sizeof time});
    state->heads.access = sha256_end(&h);
}

static struct sha256_digest capability_id(u64 record, u64 owner, u64 nonce) {
    u8 numbers[24];
    store_u64(numbers, record);
    store_u64(numbers + 8, owner);
    store_u64(numbers + 16, nonce);
    struct sha256 h;
    sha256_begin(&h);
    sha256_update(&h, TAG(CAPABILITY_TAG));
    sha256_update(&h, (struct str){numbers, sizeof numbers});
    return sha256_end(&h);
}

static void apply_record(struct worm_state *state, const struct worm_entry *entry) {
    const u8 *meta = meta_of(entry);
    u64 id = state->n_records, source = meta_u64(entry, RECORD_SOURCE_OFF);
    u64 consumed = ROWM_NONE;
    if (meta[RECORD_CONSUMES_OFF] == 1) {
        struct sha256_digest capability = meta_digest(entry, RECORD_CAPABILITY_OFF);
        consumed = worm_find_capability(state, &capability);
        consume(state, meta_u64(entry, RECORD_OWNER_OFF), consumed);
    }
    struct worm_record *record = &state->records[id];
    *record = (struct worm_record){
        .payload_offset = source == ROWM_NONE ? state->pending_payload_offset
                                              : state->records[source].payload_offset,
        .payload_bytes = meta_u64(entry, RECORD_PAYLOAD_LEN_OFF),
        .owner = meta_u64(entry, RECORD_OWNER_OFF),
        .epoch = meta_u64(entry, RECORD_EPOCH_OFF),
        .session = meta_u64(entry, RECORD_SESSION_OFF),
        .parent = meta_u64(entry, RECORD_PARENT_OFF),
        .source = source,
        .consumed = consumed,
        .time = state->heads.time,
        .nonce = meta_u64(entry, RECORD_NONCE_OFF),
        .issued_before = ROWM_NONE,
        .payload_hash = meta_digest(entry, RECORD_PAYLOAD_HASH_OFF),
        .kind = meta[RECORD_KIND_OFF],
    };
    state->n_records++;
    if (record->kind == ROWM_MANIFEST) state->n_sessions++;
    if (meta[RECORD_ISSUES_OFF] == 1) {
        record->capability = capability_id(id, record->owner, record->nonce);
        record->capability_state = CAPABILITY_AVAILABLE;
        *capability_slot(state, &record->capability) = (u32)id + 1;
        record->issued_before = worm_last_capability(state, record->owner);
        *owner_slot(state, record->owner) = (u32)id + 1;
        state->n_capabilities++;
    }
    advance_evolution(state, entry);
}

static void apply_receipt(struct worm_state *state, const struct worm_entry *receipt) {
    const struct worm_entry *certified = &state->pending_entry;
    bool is_write = certified->type == WORM_RECORD;
    assert(state->heads.time < state->transactions_capacity);
    struct worm_transaction *transaction = &state->transactions[state->heads.time];
    *transaction = (struct worm_transaction){
        .txid = txid_of(certified),
        .payload_hash = meta_digest(receipt, RECEIPT_PAYLOAD_HASH_OFF),
        .receipt_hash = meta_digest(receipt, RECEIPT_HASH_OFF),
        .record = is_write ? state->n_records : meta_u64(certified, CLAIM_RECORD_OFF),
        .kind = is_write ? ROWM_WRITE : ROWM_CONSUME,
    };
    if (!state->is_reader) transaction->request = worm_request(certified);
    *txid_slot(state, &transaction->txid) = (u32)state->heads.time + 1;
    state->heads.time++;
    state->heads.worm = transaction->receipt_hash;
    if (is_write) {
        apply_record(state, certified);
    } else {
        consume(state, meta_u64(certified, CLAIM_CONSUMER_OFF), transaction->record);
        state->n_claims++;
    }
}

void worm_apply(struct worm_state *state, const struct worm_entry *entry) {
    u64 payload_offset = state->heads.length + worm_entry_bytes(entry).len;
    state->heads.length = payload_offset + entry->payload_bytes;
    state->heads.link = entry->link;
    state->heads.n_entries++;
    tree_append(&state->tree, &entry->leaf);
    if (entry->type == WORM_RECEIPT) {
        apply_receipt(state, entry);
        state->pending = false;
    } else {
        state->pending = true;
        state->pending_entry = *entry;
        state->pending_payload_offset = payload_offset;
    }
}
