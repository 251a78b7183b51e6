// SPDX-License-Identifier: Apache-2.0
// The append-once log inside the store: bytes of entries, heads and slots, and the state that a log
// amounts to. Private to record/: callers use rowm.h. docs/format.md settles every byte; the
// offsets here are its tables.
//
// W1. An entry is judged by worm_check before it is written and again when it is read; nothing is
//     applied that was not checked. So what this program writes, it accepts.
// W2. A transaction is a record or a claim, and the receipt behind it. State moves at the receipt:
//     records count, capabilities change, the three heads advance.
// W3. One transaction id has one receipt, and a capability moves forward only.
// W4. An owner has at most one available capability.
#pragma once
#include "record/rowm.h"
#include "record/tree.h"
#include "record/worm_hash.h"

#define WORM_TAG_BYTES 16
#define WORM_SLOT_BYTES 4096
#define WORM_LOG_BEGIN (2 * WORM_SLOT_BYTES) // offset of the first entry
#define WORM_LOG_NAME "log"
#define WORM_MANIFEST_TAG "sov-rowm mani v1"
#define WORM_HASH_SHA256 1 // in a manifest

enum worm_type { WORM_RECORD = 1, WORM_CLAIM = 2, WORM_RECEIPT = 3 };

// An entry: its head, the meta part, the link of the chain, then the payload.
#define ENTRY_META_LEN_OFF 0
#define ENTRY_PAYLOAD_LEN_OFF 8
#define ENTRY_TYPE_OFF 16
#define ENTRY_HEAD_BYTES 17

#define RECORD_ID_OFF 16
#define RECORD_SESSION_OFF 24
#define RECORD_KIND_OFF 32
#define RECORD_OWNER_OFF 33
#define RECORD_EPOCH_OFF 41
#define RECORD_PARENT_OFF 49
#define RECORD_PARENT_ROOT_OFF 57
#define RECORD_TXID_OFF 89
#define RECORD_PLACE_OFF 121
#define RECORD_SOURCE_OFF 122
#define RECORD_PAYLOAD_LEN_OFF 130
#define RECORD_PAYLOAD_HASH_OFF 138
#define RECORD_CONSUMES_OFF 170
#define RECORD_CAPABILITY_OFF 171
#define RECORD_ISSUES_OFF 203
#define RECORD_NONCE_OFF 204
#define RECORD_PROOF_OFF 212
#define RECORD_META_BYTES 244

#define CLAIM_TXID_OFF 16
#define CLAIM_CAPABILITY_OFF 48
#define CLAIM_RECORD_OFF 80
#define CLAIM_CONSUMER_OFF 88
#define CLAIM_NUMBER_OFF 96
#define CLAIM_META_BYTES 104

#define RECEIPT_VERSION_OFF 16
#define RECEIPT_KIND_OFF 20
#define RECEIPT_TXID_OFF 21
#define RECEIPT_PAYLOAD_HASH_OFF 53
#define RECEIPT_PREVIOUS_OFF 85
#define RECEIPT_TIME_OFF 117
#define RECEIPT_HASH_OFF 125
#define RECEIPT_META_BYTES 157

#define TRANSACTION_BYTES_MIN \
    (2 * (ENTRY_HEAD_BYTES + SHA256_BYTES) + CLAIM_META_BYTES + RECEIPT_META_BYTES)
#define ENTRY_BYTES_MAX (ENTRY_HEAD_BYTES + RECORD_META_BYTES + SHA256_BYTES) // without payload

struct worm_entry {
    enum worm_type type;
    u32 meta_bytes;
    u64 payload_bytes; // behind the entry
    struct sha256_digest leaf, link;
    u8 bytes[ENTRY_BYTES_MAX]; // head, meta, link
};

// What is behind every position of the log; root is filled by worm_heads only.
struct worm_heads {
    u64 length; // offset of the end, from the beginning of the file
    u64 n_entries, time;
    struct sha256_digest link, root, worm, evolution, access;
};

struct worm_slot {
    u64 generation;
    struct worm_heads heads;
    struct sha256_digest previous, hash; // of the slot before, of this one
};

enum worm_capability_state { CAPABILITY_NONE, CAPABILITY_AVAILABLE, CAPABILITY_CONSUMED };

struct worm_record {
    u64 payload_offset, payload_bytes; // of the bytes themselves, also when they lie elsewhere
    u64 owner, epoch, session;
    u64 parent, source, consumed; // record ids or ROWM_NONE
    u64 time;                     // of its receipt
    u64 nonce;                    // of its capability
    u64 consumed_time;            // of the receipt that consumed its capability; 0: none did
    u64 issued_before;            // the owner's record with a capability before this, or ROWM_NONE
    struct sha256_digest payload_hash, capability;
    u8 kind, capability_state; // enum rowm_kind, enum worm_capability_state
};

struct worm_transaction {
    struct sha256_digest txid, request, payload_hash, receipt_hash;
    u64 record; // written or consumed
    u8 kind;    // enum rowm_receipt_kind
};

// The maps hash with these, which nobody outside the process knows: transaction ids and owners are
// chosen by others, who could have them all meet in one place.
#define WORM_KEYS 9

struct worm_map { // open addressing: index + 1 into the table it belongs to, 0 for a free slot
    u32 *slots;
    u32 n_slots; // a power of two
};

struct worm_state {
    struct worm_heads heads;
    struct tree tree;
    u64 n_records, n_sessions, n_capabilities, n_claims;
    struct worm_record *records;           // [records_capacity]
    struct worm_transaction *transactions; // [transactions_capacity], heads.time of them
    u64 records_capacity, transactions_capacity;
    struct worm_map by_txid, by_capability, by_owner;
    u64 keys[WORM_KEYS];
    bool is_reader; // requests are not remembered: nothing will be appended to this state
    bool pending;   // the last entry is no receipt
    struct worm_entry pending_entry;
    u64 pending_payload_offset;
};

void worm_begin(struct worm_state *state);
void worm_free(struct worm_state *state);
// Room for one more transaction; SOV_ERR_MEMORY or SOV_ERR_LIMIT when there is none.
enum sov_status worm_reserve(struct worm_state *state, struct sov_fault *fault) MUST_CHECK;
// Room for n in all, as far as a store may have them, so that nothing grows on the way.
enum sov_status worm_reserve_all(struct worm_state *state, u64 n, struct sov_fault *fault)
    MUST_CHECK;
struct worm_heads worm_heads(const struct worm_state *state);
// What is known of a record that was applied.
struct rowm_record_info worm_info(const struct worm_state *state, u64 record);
// The receipt of a time from 1 to heads.time.
struct rowm_receipt worm_receipt(const struct worm_state *state, u64 time);

const struct worm_transaction *worm_find_transaction(const struct worm_state *state,
                                                     const struct sha256_digest *txid);
// The record that issued a capability, or ROWM_NONE.
u64 worm_find_capability(const struct worm_state *state, const struct sha256_digest *capability);
// The record whose capability is the owner's available one, or ROWM_NONE.
u64 worm_find_available(const struct worm_state *state, u64 owner);
// The last record of the owner that issued a capability, whatever became of it, or ROWM_NONE.
u64 worm_last_capability(const struct worm_state *state, u64 owner);

// --- entries ---
// Make the entry that would come next; not checked yet.
void worm_make_record(const struct worm_state *state, const struct rowm_write *write,
                      const struct sha256_digest *payload_hash, u64 payload_bytes,
                      struct worm_entry *entry);
void worm_make_claim(const struct worm_state *state, const struct rowm_claim *claim, u64 record,
                     struct worm_entry *entry);
// The receipt of a record or claim: a function of the state before `certified` and of it alone.
void worm_make_receipt(const struct worm_state *state, const struct worm_entry *certified,
                       struct worm_entry *entry);

// Whether `bytes` begin with a whole entry that is chained to `link`.
bool worm_read_entry(struct str bytes, const struct sha256_digest *link, struct worm_entry *entry);
struct str worm_entry_bytes(const struct worm_entry *entry);
// Of a record whose payload lies behind it: that payload's digest; else NULL.
const u8 *worm_payload_hash(const struct worm_entry *entry);

// Whether the entry may come next: SOV_ERR_ARGUMENT, SOV_ERR_STATE, SOV_ERR_LIMIT say why not.
enum sov_status worm_check(const struct worm_state *state, const struct worm_entry *entry,
                           struct sov_fault *fault) MUST_CHECK;
// Takes a checked entry, with room reserved.
void worm_apply(struct worm_state *state, const struct worm_entry *entry);

// The digest of what the caller asked for: the same for every retry.
struct sha256_digest worm_request(const struct worm_entry *entry);

// --- slots ---
// Fills 4096 bytes and slot->hash.
void worm_make_slot(struct worm_slot *slot, u8 bytes[WORM_SLOT_BYTES]);
bool worm_read_slot(const u8 bytes[WORM_SLOT_BYTES], struct worm_slot *slot);
bool worm_heads_equal(const struct worm_heads *a, const struct worm_heads *b);
// The two slots that a new store has.
void worm_make_first_slots(u8 bytes[2 * WORM_SLOT_BYTES]);
// Which of two valid slots is the newer one; -1 when they do not follow each other.
int worm_newer_slot(const struct worm_slot slots[2], const bool valid[2]);

// --- reading a log ---
#define WORM_WINDOW_BYTES (256 * 1024)
#define WORM_DEFER_BYTES_MAX (WORM_WINDOW_BYTES / 2) // a longer payload is hashed at once
#define WORM_JOBS_MAX 1024                           // payloads of one window
static_assert(WORM_JOBS_MAX > WORM_WINDOW_BYTES / (RECORD_META_BYTES + RECEIPT_META_BYTES),
              "a window has no more records than that");

struct worm_reader {
    const struct rowm_disk *disk;
    int file;
    u64 limit;           // offset behind the last byte to read
    bool skips_payloads; // their digests are not compared
    bool may_thread;     // a pass over a long log may start a thread to hash payloads
    // Called before the window moves; false: SOV_ERR_INTERRUPTED. NULL: nobody looks.
    bool (*look)(void *context, u64 done, u64 total);
    void *look_context;
    // In a pass: payloads in the window, to be hashed before it is given up.
    bool defers;
    u32 n_jobs, current; // current: which of the two windows, and lists of jobs
    struct worm_hasher hasher;
    u64 window_offset;
    usize window_bytes;
    struct worm_job jobs[2][WORM_JOBS_MAX];
    u8 windows[2][WORM_WINDOW_BYTES]; // the second one with a thread only
};

enum worm_found { WORM_ENTRY, WORM_END, WORM_INCOMPLETE };

// Reads the entry at the state's end, checks and applies it. WORM_INCOMPLETE: what is there is no
// whole chained entry with its payload, and nothing was applied. An entry that is one but may not
// come there is SOV_ERR_INTEGRITY.
enum sov_status worm_step(struct worm_reader *reader, struct worm_state *state,
                          enum worm_found *found, struct sov_fault *fault) MUST_CHECK;
// Reads everything up to the newer slot's length and compares the heads of both slots and the
// expected root on the way. An entry may be applied before its payload is found to be
// another; the pass has failed then. `older` and `expect` may be NULL.
// Anything amiss is SOV_ERR_INTEGRITY.
enum sov_status worm_pass(struct worm_reader *reader, struct worm_state *state,
                          const struct worm_slot *newer, const struct worm_slot *older,
                          const struct rowm_expect *expect, struct sov_fault *fault) MUST_CHECK;
// Feeds payload bytes to a digest and, if `out` is not NULL, to the caller.
enum sov_status worm_read_payload(struct worm_reader *reader, u64 offset, u64 bytes, u8 *out,
                                  struct sha256_digest *digest, struct sov_fault *fault) MUST_CHECK;
// Both slots and the file's size. `live`: somebody may be writing, so look again while they do not
// fit each other.
enum sov_status worm_read_slots(struct worm_reader *reader, bool live, struct worm_slot slots[2],
                                bool valid[2], u64 *file_bytes, struct sov_fault *fault) MUST_CHECK;
