// SPDX-License-Identifier: Apache-2.0
// Head slots, and reading a log entry by entry through a window. A slot is 272 bytes that matter,
// inside its first 512-byte sector, and zeros up to 4096:
//
//     0 tag   16 generation   24 length   32 entries   40 time   48 link   80 root   112 worm
//     144 evolution   176 access   208 hash of the slot before   240 SHA-256 of bytes 0 to 239
//
// Slot i holds the heads of generations g with g % 2 == i, so that writing one leaves the other.
#include "freestanding/mem.h"
#include "record/worm.h"

#define SLOT_TAG "sov-rowm head v1"
#define SLOT_VERSION_OFF 15 // in the tag
#define SLOT_GENERATION_OFF 16
#define SLOT_LENGTH_OFF 24
#define SLOT_ENTRIES_OFF 32
#define SLOT_TIME_OFF 40
#define SLOT_LINK_OFF 48
#define SLOT_PREVIOUS_OFF 208
#define SLOT_HASH_OFF 240
#define SLOT_END_OFF 272
#define LIVE_READS_MAX 16 // while a writer publishes

// The five digests lie one behind the other, in this order.
static struct sha256_digest *slot_digest(struct worm_heads *heads, u32 i) {
    struct sha256_digest *digests[] = {&heads->link, &heads->root, &heads->worm, &heads->evolution,
                                       &heads->access};
    return digests[i];
}
#define SLOT_DIGESTS 5
static_assert(SLOT_LINK_OFF + SLOT_DIGESTS * SHA256_BYTES == SLOT_PREVIOUS_OFF, "as drawn");

void worm_make_slot(struct worm_slot *slot, u8 bytes[WORM_SLOT_BYTES]) {
    memset(bytes, 0, WORM_SLOT_BYTES);
    struct str tag = STR(SLOT_TAG);
    memcpy(bytes, tag.data, WORM_TAG_BYTES);
    store_u64(bytes + SLOT_GENERATION_OFF, slot->generation);
    store_u64(bytes + SLOT_LENGTH_OFF, slot->heads.length);
    store_u64(bytes + SLOT_ENTRIES_OFF, slot->heads.n_entries);
    store_u64(bytes + SLOT_TIME_OFF, slot->heads.time);
    for (u32 i = 0; i < SLOT_DIGESTS; i++) {
        memcpy(bytes + SLOT_LINK_OFF + SHA256_BYTES * i, slot_digest(&slot->heads, i)->bytes,
               SHA256_BYTES);
    }
    memcpy(bytes + SLOT_PREVIOUS_OFF, slot->previous.bytes, SHA256_BYTES);
    slot->hash = sha256_of((struct str){bytes, SLOT_HASH_OFF});
    memcpy(bytes + SLOT_HASH_OFF, slot->hash.bytes, SHA256_BYTES);
}

bool worm_read_slot(const u8 bytes[WORM_SLOT_BYTES], struct worm_slot *slot) {
    struct sha256_digest hash = sha256_of((struct str){bytes, SLOT_HASH_OFF});
    if (memcmp(bytes, SLOT_TAG, WORM_TAG_BYTES) != 0 ||
        memcmp(hash.bytes, bytes + SLOT_HASH_OFF, SHA256_BYTES) != 0) {
        return false;
    }
    u8 any = 0;
    for (u32 i = SLOT_END_OFF; i < WORM_SLOT_BYTES; i++) any |= bytes[i];
    *slot = (struct worm_slot){.generation = load_u64(bytes + SLOT_GENERATION_OFF), .hash = hash};
    slot->heads.length = load_u64(bytes + SLOT_LENGTH_OFF);
    slot->heads.n_entries = load_u64(bytes + SLOT_ENTRIES_OFF);
    slot->heads.time = load_u64(bytes + SLOT_TIME_OFF);
    for (u32 i = 0; i < SLOT_DIGESTS; i++) {
        memcpy(slot_digest(&slot->heads, i)->bytes, bytes + SLOT_LINK_OFF + SHA256_BYTES * i,
               SHA256_BYTES);
    }
    memcpy(slot->previous.bytes, bytes + SLOT_PREVIOUS_OFF, SHA256_BYTES);
    return any == 0;
}

bool worm_heads_equal(const struct worm_heads *a, const struct worm_heads *b) {
    struct worm_heads left = *a, right = *b;
    bool equal = a->length == b->length && a->n_entries == b->n_entries && a->time == b->time;
    for (u32 i = 0; i < SLOT_DIGESTS; i++) {
        equal = equal && sha256_equal(slot_digest(&left, i), slot_digest(&right, i));
    }
    return equal;
}

void worm_make_first_slots(u8 bytes[2 * WORM_SLOT_BYTES]) {
    struct tree empty = {0};
    struct worm_slot slot = {.heads = {.length = WORM_LOG_BEGIN, .root = tree_root(&empty)}};
    worm_make_slot(&slot, bytes);
    slot.generation = 1;
    slot.previous = slot.hash;
    worm_make_slot(&slot, bytes + WORM_SLOT_BYTES);
}

int worm_newer_slot(const struct worm_slot slots[2], const bool valid[2]) {
    if (!valid[0] || !valid[1]) return valid[0] ? 0 : valid[1] ? 1 : -1;
    int newer = slots[1].generation > slots[0].generation;
    const struct worm_slot *last = &slots[newer], *before = &slots[1 - newer];
    bool follow = last->generation == before->generation + 1 &&
                  sha256_equal(&last->previous, &before->hash) &&
                  last->heads.length >= before->heads.length;
    return follow ? newer : -1;
}

enum sov_status worm_read_slots(struct worm_reader *reader, bool live, struct worm_slot slots[2],
                                bool valid[2], u64 *file_bytes, struct sov_fault *fault) {
    const struct rowm_disk *disk = reader->disk;
    for (u32 i = 0; i < (live ? LIVE_READS_MAX : 1); i++) {
        usize n = 0;
        enum sov_status status = disk->read_at(disk->context, reader->file, 0, reader->windows[0],
                                               WORM_LOG_BEGIN, &n, fault);
        if (status == SOV_OK) status = disk->size(disk->context, reader->file, file_bytes, fault);
        if (status != SOV_OK) return status;
        reader->window_bytes = 0; // the window is borrowed
        if (n < WORM_LOG_BEGIN) {
            return fault_set(fault, SOV_ERR_INTEGRITY,
                             "the log has %llu bytes, its head alone takes %u", (u64)n,
                             WORM_LOG_BEGIN);
        }
        u32 n_other = 0;
        for (u32 j = 0; j < 2; j++) {
            const u8 *bytes = reader->windows[0] + j * WORM_SLOT_BYTES;
            valid[j] = worm_read_slot(bytes, &slots[j]) && slots[j].generation % 2 == j;
            n_other += memcmp(bytes, SLOT_TAG, SLOT_VERSION_OFF) == 0 &&
                       bytes[SLOT_VERSION_OFF] != SLOT_TAG[SLOT_VERSION_OFF];
        }
        if (n_other == 2) {
            return fault_set(fault, SOV_ERR_UNSUPPORTED,
                             "the store is of another version, this program reads version 1");
        }
        if (valid[0] && valid[1] && worm_newer_slot(slots, valid) >= 0) break;
    }
    return SOV_OK;
}

static enum sov_status payload_changed(u64 entry, struct sov_fault *fault) {
    return fault_set(fault, SOV_ERR_INTEGRITY,
                     "the log does not verify at byte %llu: the payload of this entry has another "
                     "digest",
                     entry);
}

// The window is given up: its payloads are hashed, or handed to the thread, which reports at the
// next call or at the end.
static enum sov_status give_up_window(struct worm_reader *r, struct sov_fault *fault) {
    if (r->n_jobs == 0) return SOV_OK;
    u64 wrong = ROWM_NONE;
    if (r->hasher.thread != NULL) {
        wrong = worm_hasher_wait(&r->hasher);
        worm_hasher_give(&r->hasher, r->jobs[r->current], r->n_jobs);
        r->current = 1 - r->current;
    } else {
        wrong = worm_hash_jobs(r->jobs[0], r->n_jobs);
    }
    r->n_jobs = 0;
    return wrong == ROWM_NONE ? SOV_OK : payload_changed(wrong, fault);
}

// The bytes of the file at `offset`: `wanted` of them, or less at the limit.
static enum sov_status fetch(struct worm_reader *r, u64 offset, usize wanted, struct str *bytes,
                             struct sov_fault *fault) {
    wanted = (usize)MIN((u64)wanted, r->limit - MIN(offset, r->limit));
    bool inside = offset >= r->window_offset &&
                  offset + wanted <= r->window_offset + r->window_bytes;
    if (!inside) {
        enum sov_status status = give_up_window(r, fault);
        if (status != SOV_OK) return status;
        if (r->look != NULL && !r->look(r->look_context, offset, r->limit)) {
            return fault_set(fault, SOV_ERR_INTERRUPTED, "stopped by a signal");
        }
        usize most = (usize)MIN((u64)sizeof r->windows[0], r->limit - offset);
        r->window_offset = offset;
        status = r->disk->read_at(r->disk->context, r->file, offset, r->windows[r->current], most,
                                  &r->window_bytes, fault);
        if (status != SOV_OK) {
            r->window_bytes = 0;
            return status;
        }
    }
    usize at = (usize)(offset - r->window_offset);
    *bytes = (struct str){r->windows[r->current] + at, MIN(wanted, r->window_bytes - at)};
    return SOV_OK;
}

enum sov_status worm_read_payload(struct worm_reader *reader, u64 offset, u64 bytes, u8 *out,
                                  struct sha256_digest *digest, struct sov_fault *fault) {
    struct sha256 h;
    sha256_begin(&h);
    while (bytes > 0) {
        struct str part;
        enum sov_status status =
            fetch(reader, offset, (usize)MIN(bytes, (u64)WORM_WINDOW_BYTES), &part, fault);
        if (status != SOV_OK) return status;
        if (part.len == 0) break; // cut meanwhile: the digest will tell
        sha256_update(&h, part);
        if (out != NULL) {
            memcpy(out, part.data, part.len);
            out += part.len;
        }
        offset += part.len;
        bytes -= part.len;
    }
    *digest = sha256_end(&h);
    return SOV_OK;
}

// Whether the payload behind an entry has the digest it should have, or will have been looked at
// before the pass ends.
static enum sov_status check_payload(struct worm_reader *r, const struct worm_state *state,
                                     const struct worm_entry *entry, bool *is_right,
                                     struct sov_fault *fault) {
    u64 offset = state->heads.length + worm_entry_bytes(entry).len;
    struct sha256_digest wanted, found;
    memcpy(wanted.bytes, worm_payload_hash(entry), SHA256_BYTES);
    *is_right = true;
    if (r->skips_payloads) return SOV_OK;
    if (!r->defers || entry->payload_bytes > WORM_DEFER_BYTES_MAX) {
        enum sov_status status =
            worm_read_payload(r, offset, entry->payload_bytes, NULL, &found, fault);
        if (status == SOV_OK) *is_right = sha256_equal(&found, &wanted);
        return status;
    }
    struct str payload = {0};
    enum sov_status status = fetch(r, offset, (usize)entry->payload_bytes, &payload, fault);
    if (status != SOV_OK) return status;
    *is_right = payload.len == entry->payload_bytes; // else the file was cut meanwhile
    if (!*is_right) return SOV_OK;
    assert(r->n_jobs < WORM_JOBS_MAX);
    r->jobs[r->current][r->n_jobs++] = (struct worm_job){payload, wanted, state->heads.length};
    return SOV_OK;
}

// The entry at the state's end, with its payload's digest compared; not yet applied, nor checked
// unless *is_checked: a receipt that has exactly the bytes it must have.
static enum sov_status worm_next(struct worm_reader *reader, const struct worm_state *state,
                                 struct worm_entry *entry, enum worm_found *found, bool *is_checked,
                                 struct sov_fault *fault) {
    u64 offset = state->heads.length;
    struct str bytes = {0};
    *is_checked = false;
    *found = offset >= reader->limit ? WORM_END : WORM_INCOMPLETE;
    if (*found == WORM_END) return SOV_OK;
    enum sov_status status = fetch(reader, offset, ENTRY_BYTES_MAX, &bytes, fault);
    if (status != SOV_OK) return status;
    if (state->pending) {
        worm_make_receipt(state, &state->pending_entry, entry);
        *is_checked = str_starts_with(bytes, worm_entry_bytes(entry));
    }
    if (!*is_checked && !worm_read_entry(bytes, &state->heads.link, entry)) return SOV_OK;
    offset += worm_entry_bytes(entry).len;
    if (entry->payload_bytes > reader->limit - offset) return SOV_OK;
    bool is_right = true;
    if (worm_payload_hash(entry) != NULL) {
        status = check_payload(reader, state, entry, &is_right, fault);
        if (status != SOV_OK) return status;
    }
    if (is_right) *found = WORM_ENTRY;
    return SOV_OK;
}

enum sov_status worm_step(struct worm_reader *reader, struct worm_state *state,
                          enum worm_found *found, struct sov_fault *fault) {
    struct worm_entry entry;
    struct sov_fault inner = {0};
    bool is_checked = false;
    enum sov_status status = worm_next(reader, state, &entry, found, &is_checked, fault);
    if (status == SOV_OK && *found == WORM_ENTRY) status = worm_reserve(state, fault);
    if (status != SOV_OK || *found != WORM_ENTRY) return status;
    if (!is_checked && worm_check(state, &entry, &inner) != SOV_OK) {
        return fault_set(fault, SOV_ERR_INTEGRITY,
                         "the entry at byte %llu (number %llu) does not belong there: %s",
                         state->heads.length, state->heads.n_entries, inner.message);
    }
    worm_apply(state, &entry);
    return SOV_OK;
}

// The pass up to the acknowledged length. Where the expected size is passed, the root must be the
// expected one: entries are only ever appended to a tree that begins the same (RFC 6962, 2.1.2).
static enum sov_status pass(struct worm_reader *reader, struct worm_state *state,
                            const struct worm_slot *newer, const struct worm_slot *older,
                            const struct rowm_expect *expect, struct sov_fault *fault) {
    const struct worm_heads *wanted = &newer->heads;
    bool met = expect == NULL;
    reader->limit = wanted->length;
    enum worm_found found = WORM_ENTRY;
    struct worm_heads heads;
    for (;;) {
        bool at_older = older != NULL && state->heads.length == older->heads.length;
        bool at_expected = expect != NULL && state->heads.n_entries == expect->n_entries;
        if (at_older || at_expected) heads = worm_heads(state);
        // No head was ever published between an entry and its receipt.
        if (at_older && (state->pending || !worm_heads_equal(&heads, &older->heads))) {
            return fault_set(fault, SOV_ERR_INTEGRITY,
                             "the older head slot does not fit the log at byte %llu", heads.length);
        }
        if (at_older) older = NULL;
        if (at_expected) met = sha256_equal(&heads.root, &expect->root);
        enum sov_status status = worm_step(reader, state, &found, fault);
        if (status != SOV_OK) return status;
        if (found != WORM_ENTRY) break;
    }
    heads = worm_heads(state);
    if (found != WORM_END || state->pending || !worm_heads_equal(&heads, wanted)) {
        return fault_set(fault, SOV_ERR_INTEGRITY,
                         "the log does not verify at byte %llu; %llu were acknowledged",
                         heads.length, wanted->length);
    }
    if (older != NULL) {
        return fault_set(fault, SOV_ERR_INTEGRITY,
                         "the older head slot names byte %llu, where no entry ends",
                         older->heads.length);
    }
    if (!met) {
        return fault_set(fault, SOV_ERR_INTEGRITY,
                         "the store has not the expected root at %llu entries (it has %llu): an "
                         "older copy, or another store",
                         expect->n_entries, state->heads.n_entries);
    }
    return SOV_OK;
}

#define TRANSACTIONS_AT_FIRST (1ull << 18)
#define THREAD_BYTES_MIN (4ull << 20) // a shorter log is not worth a thread

// Payloads that were not looked at yet lie in front of whatever else is amiss: they are named
// first.
static enum sov_status look_at_rest(struct worm_reader *r, struct sov_fault *fault) {
    u64 wrong = ROWM_NONE;
    if (r->hasher.thread != NULL) {
        wrong = worm_hasher_wait(&r->hasher);
        worm_hasher_end(&r->hasher);
    }
    if (wrong == ROWM_NONE) wrong = worm_hash_jobs(r->jobs[r->current], r->n_jobs);
    r->defers = false;
    r->n_jobs = 0;
    if (r->current != 0) r->window_bytes = 0; // others use the first window only
    r->current = 0;
    return wrong == ROWM_NONE ? SOV_OK : payload_changed(wrong, fault);
}

enum sov_status worm_pass(struct worm_reader *reader, struct worm_state *state,
                          const struct worm_slot *newer, const struct worm_slot *older,
                          const struct rowm_expect *expect, struct sov_fault *fault) {
    struct sov_fault inner = {0};
    // What the slot says it has, but no more than fits into so many bytes; and since a file may
    // have a size without having bytes, not so much that it matters: more is taken as it is found.
    u64 bytes = newer->heads.length - MIN(newer->heads.length, (u64)WORM_LOG_BEGIN);
    u64 n = MIN(newer->heads.time, bytes / TRANSACTION_BYTES_MIN);
    n = MIN(n, (u64)TRANSACTIONS_AT_FIRST);
    enum sov_status status = worm_reserve_all(state, n, fault);
    if (status != SOV_OK) return status;
    bool threads = reader->may_thread && !reader->skips_payloads && bytes >= THREAD_BYTES_MIN;
    if (!threads || platform_cpu_count() < 2 || !worm_hasher_begin(&reader->hasher)) {
        reader->hasher.thread = NULL;
    }
    reader->defers = true;
    status = pass(reader, state, newer, older, expect, &inner);
    enum sov_status rest = look_at_rest(reader, fault);
    if (rest != SOV_OK) return rest;
    return status == SOV_OK ? SOV_OK : fault_set(fault, status, "%s", inner.message);
}
