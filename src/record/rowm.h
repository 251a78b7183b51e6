// SPDX-License-Identifier: Apache-2.0
// The record store, ROWM-NR: read once, write many, never recursive. Records are written under a
// transaction id, certified by a receipt of one timeline, and may carry a capability that lets
// their payload be read once. The store knows nothing of tokens; payloads are bytes. docs/format.md
// has the file, and what is proved by it.
//
//     write:      VALIDATE > STAGE > COMPUTE_ROOT > APPEND_WORM > DURABLE > PUBLISH_ROOT
//     read once:  LOOKUP > CHECK_CAPABILITY > CLAIM > APPEND_WORM > DURABLE > COMMIT_CONSUMED
//                 > DISCLOSE
//
// M1. append_once: a new transaction id appends one transaction; the same id with the same request
//     gives the receipt that exists; with another request it is SOV_ERR_INTEGRITY. A retry is safe.
// M2. A receipt is returned by sov_rowm_write and sov_rowm_read_once only when data, receipt and
//     head are durable. What is staged is visible to nobody before rowm_commit.
// M3. Not one byte of a payload under a capability reaches the caller before its consumption is
//     durable; who loses power in between has lost the reading, not the record.
// M4. After a sync or a head that failed, the store commits nothing any more (SOV_ERR_IO): opening
//     it again finds out what is there, writes that anew, and goes on.
// M5. A refused or failed write (a full disk, say) leaves everything as it was; it may be repeated.
//     Only when power fails before the next sync may what was cut off be found whole, and count.
// M6. One writer at a time, by lock. Verification reads a snapshot and takes no lock.
//
// A store is used by one thread at a time. Verification of a long log has a thread of its own for
// the payloads' digests while it lasts; nothing else here starts one.
#pragma once
#include "freestanding/status.h"
#include "record/sha256.h"

#define ROWM_NONE (~0ull)                   // no record
#define ROWM_PAYLOAD_BYTES_MAX (1ull << 36) // of one record
#define ROWM_TRANSACTIONS_MAX (1u << 26)    // of one store
#define ROWM_TEXT_BYTES_MAX 256             // of a text in a manifest
#define ROWM_MANIFEST_BYTES_MAX 1024

// --- where it lies ---
// The files of one folder, named without a slash. Tests put a simulated disk here. Every function
// fills the fault when it fails; positions are explicit, and a file may be read past its end.
enum rowm_open_mode { ROWM_OPEN_READ, ROWM_OPEN_UPDATE, ROWM_OPEN_CREATE, ROWM_OPEN_LOCK };
struct rowm_disk {
    void *context;
    bool (*is_missing)(void *context, const char *name);
    // LOCK: made when missing, and taken until it is closed; SOV_ERR_STATE when somebody has it.
    enum sov_status (*open)(void *context, const char *name, enum rowm_open_mode mode, int *file,
                            struct sov_fault *fault);
    void (*close)(void *context, int file);
    enum sov_status (*size)(void *context, int file, u64 *bytes, struct sov_fault *fault);
    enum sov_status (*read_at)(void *context, int file, u64 offset, void *buffer, usize bytes,
                               usize *n_read, struct sov_fault *fault);
    enum sov_status (*write_at)(void *context, int file, u64 offset, struct str bytes,
                                struct sov_fault *fault);
    enum sov_status (*truncate)(void *context, int file, u64 bytes, struct sov_fault *fault);
    enum sov_status (*sync)(void *context, int file, struct sov_fault *fault);
    enum sov_status (*rename)(void *context, const char *from, const char *to,
                              struct sov_fault *fault);
    enum sov_status (*sync_names)(void *context, struct sov_fault *fault); // of the folder
};

// A folder of the system. `folder` must live as long as the disk is used.
#define ROWM_PATH_BYTES 4096
struct rowm_folder {
    const char *path;
};
struct rowm_disk rowm_folder_disk(struct rowm_folder *folder);

// --- what is written ---
// The first record of every session. Texts of at most ROWM_TEXT_BYTES_MAX bytes.
struct rowm_manifest {
    struct str engine_version;
    struct sha256_digest build, contract, model, kernels;
    u8 numeric_profile;
    struct str device, driver;
    u64 wall_ns; // an input: given, not asked for
};

// What a record is, to its readers; the store treats the kinds of its callers alike.
enum rowm_kind {
    ROWM_MANIFEST = 1, // of the store itself
    ROWM_REQUEST = 2,
    ROWM_CHECKPOINT = 3,
    ROWM_EVENTS = 4,
    ROWM_FINISH = 5,
};
#define ROWM_KIND_LAST ROWM_FINISH

struct rowm_write {
    struct sha256_digest txid;
    enum rowm_kind kind; // not ROWM_MANIFEST
    u64 owner;           // the sequence
    u64 epoch;
    u64 parent; // a record or ROWM_NONE
    struct str payload;
    // Instead of bytes: the payload of the record whose capability this write consumes, by digest;
    // the epoch is that record's plus 1.
    bool by_reference;
    bool consumes; // the capability below, of the same owner, ends with this write
    struct sha256_digest capability;
    bool issues; // this record gets a capability of its own
};

enum rowm_receipt_kind { ROWM_WRITE = 1, ROWM_CONSUME = 2 };
struct rowm_receipt {
    u32 version;
    enum rowm_receipt_kind kind;
    struct sha256_digest txid, payload_hash, previous, hash;
    u64 time;   // 1 and up, the position in the timeline
    u64 record; // written or consumed
};

struct rowm_claim {
    struct sha256_digest txid, capability;
    u64 consumer;
};

struct rowm_record_info {
    u64 record, owner, epoch, session, parent, source, time, payload_bytes;
    enum rowm_kind kind;
    struct sha256_digest payload_hash;
    bool has_capability, available;
    struct sha256_digest capability;
};

// Size and root as a run prints them, with the three chains.
struct rowm_head {
    u64 n_entries, length, time, n_records, n_sessions;
    struct sha256_digest root, worm, evolution, access;
};

// --- a writer ---
struct rowm;

// Takes the lock, makes the store when there is none, recovers what a crash left, and begins a
// session with the manifest. SOV_ERR_STATE: in use. SOV_ERR_INTEGRITY: damaged; nothing is changed
// then. *store lives in memory of its own until rowm_close, which commits nothing.
enum sov_status rowm_open(const struct rowm_disk *disk, const struct rowm_manifest *manifest,
                          struct rowm **store, struct sov_fault *fault) MUST_CHECK;
void rowm_close(struct rowm *store);
const struct rowm_disk *rowm_disk_of(const struct rowm *store); // where it lies
struct rowm_head rowm_head(const struct rowm *store);           // what is published

// One write, durable on return. `receipt` may be NULL.
enum sov_status sov_rowm_write(struct rowm *store, const struct rowm_write *write,
                               struct rowm_receipt *receipt, struct sov_fault *fault) MUST_CHECK;
// The same in two steps, so that many writes share the syncs of one commit. The receipt is filled
// but certifies nothing before the commit.
enum sov_status rowm_stage(struct rowm *store, const struct rowm_write *write,
                           struct rowm_receipt *receipt, struct sov_fault *fault) MUST_CHECK;
enum sov_status rowm_commit(struct rowm *store, struct sov_fault *fault) MUST_CHECK;

// Reads a payload once: consumes the capability and fills `payload`. SOV_ERR_LIMIT when the
// capacity is below the payload's size: nothing is consumed then. SOV_ERR_STATE when it was
// consumed before, by whomever. After a failure the payload's bytes are zeros or untouched.
enum sov_status sov_rowm_read_once(struct rowm *store, const struct rowm_claim *claim, u8 *payload,
                                   usize capacity, usize *payload_bytes,
                                   struct rowm_receipt *receipt, struct sov_fault *fault)
    MUST_CHECK;
// Consumes an owner's capability, writes the successor (epoch + 1, the same payload by reference,
// a new capability), and then discloses the payload. One transaction.
enum sov_status rowm_resume(struct rowm *store, const struct rowm_claim *claim, u8 *payload,
                            usize capacity, usize *payload_bytes, struct rowm_receipt *receipt,
                            struct sov_fault *fault) MUST_CHECK;
// A payload that no capability guards.
enum sov_status rowm_read(struct rowm *store, u64 record, u8 *payload, usize capacity,
                          usize *payload_bytes, struct sov_fault *fault) MUST_CHECK;

// Published receipts from `first_time` (at least 1) on, in order; *n is 0 behind the last.
enum sov_status sov_rowm_get_receipts(const struct rowm *store, u64 first_time,
                                      struct rowm_receipt *receipts, u32 capacity, u32 *n,
                                      struct sov_fault *fault) MUST_CHECK;
// What is known of a published record without its payload, its length included.
enum sov_status rowm_info(const struct rowm *store, u64 record, struct rowm_record_info *info,
                          struct sov_fault *fault) MUST_CHECK;
// Whether a transaction of this id exists, with its receipt, which certifies nothing while it is
// only staged.
bool rowm_find(const struct rowm *store, const struct sha256_digest *txid,
               struct rowm_receipt *receipt);
// The published record that holds the owner's available capability; false when there is none.
// Published too is which one: what is staged consumes and issues nothing yet.
bool rowm_find_available(const struct rowm *store, u64 owner, u64 *record);

// --- traversal ---
// Breadth first from a record to its parent, source and consumed record. All bounds are the
// caller's; hitting one is SOV_ERR_LIMIT, after the records that were reached.
struct rowm_traversal {
    u64 *queue;  // [queue_capacity]
    u32 *depths; // [queue_capacity]
    u32 queue_capacity;
    u64 *visited; // [visited_capacity], a table of the callee's
    u32 visited_capacity;
    u32 steps_max, depth_max;
    void *context;
    void (*visit)(void *context, const struct rowm_record_info *info, u32 depth);
    u32 n_steps; // out: records visited
};
enum sov_status sov_rowm_traverse(const struct rowm *store, u64 record,
                                  struct rowm_traversal *traversal, struct sov_fault *fault)
    MUST_CHECK;

// --- verification ---
struct rowm_expect { // a head printed earlier
    u64 n_entries;
    struct sha256_digest root;
};
struct rowm_report {
    struct rowm_head head;
    u64 n_capabilities, n_available;
    u64 tail_offset, tail_bytes; // behind the acknowledged length: never promised to anyone
    u64 tail_entries;            // whole entries in it
};
// Checks every byte of the store against the others, without a lock and without a change, in
// memory that grows with the number of transactions only. SOV_ERR_INTEGRITY when something does not
// hold; SOV_ERR_UNSUPPORTED for another version, SOV_ERR_FORMAT where no store is. `expect` may be
// NULL. See also snapshot.h.
enum sov_status sov_rowm_verify(const struct rowm_disk *disk, const struct rowm_expect *expect,
                                struct rowm_report *report, struct sov_fault *fault) MUST_CHECK;
