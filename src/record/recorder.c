// SPDX-License-Identifier: Apache-2.0
// The recorder's two sides. What they share are the fields marked so; everything else belongs to
// one thread.
//
//   item->state:  QUEUED ──done──▶ DONE        the recorder's thread, when its commit is durable
//                   └──forget──▶ ABANDONED     the engine's thread; whoever comes second frees it
//
// The queue is a stack that the engine's thread pushes to and the recorder's thread takes whole and
// turns around: no lock, and nobody waits for the other.
#include "record/recorder.h"
#include "freestanding/mem.h"
#include "platform/platform.h"
#include "record/sidecar.h"

#define REQUEST_TXID_TAG "sov-rtx seqr v1"
#define CHECKPOINT_TXID_TAG "sov-rtx seqc v1"
#define ITEM_UNIT_BYTES 4096ull // an item has pages of its own, and counts as what they take

struct sha256_digest recorder_request_txid(u64 sequence_id) {
    u8 bytes[sizeof REQUEST_TXID_TAG - 1 + 8];
    memcpy(bytes, REQUEST_TXID_TAG, sizeof bytes - 8);
    store_u64(bytes + sizeof bytes - 8, sequence_id);
    return sha256_of((struct str){bytes, sizeof bytes});
}

struct sha256_digest recorder_checkpoint_txid(const struct checkpoint_id *id) {
    u8 bytes[sizeof CHECKPOINT_TXID_TAG - 1 + 16];
    memcpy(bytes, CHECKPOINT_TXID_TAG, sizeof bytes - 16);
    store_u64(bytes + sizeof bytes - 16, id->sequence_id);
    store_u32(bytes + sizeof bytes - 8, id->n_tokens);
    store_u32(bytes + sizeof bytes - 4, id->kind);
    return sha256_of((struct str){bytes, sizeof bytes});
}

enum item_state { QUEUED, DONE, ABANDONED };

// A capability to be used; the caller waits for the answer.
struct reading {
    const struct rowm_claim *claim;
    u8 *payload; // [capacity]
    usize capacity, n;
};

struct item {
    struct item *next; // below it on the stack
    u64 mapped_bytes;
    u32 state; // enum item_state, shared
    struct checkpoint_id id;
    struct str request; // of a beginning; else empty
    struct str bytes;
    struct reading *reading; // or NULL: the item is to be written
    bool is_told;            // of the engine's thread: poll has told that it failed
    // Of the recorder's thread until DONE:
    struct sha256_digest payload_hash;
    struct sov_fault fault;
};

struct recorder {
    struct rowm *rowm;             // of the recorder's thread
    struct sidecar_writer sidecar; // the same
    struct platform_thread *thread;
    // --- shared ---
    struct item *stack;    // pushed by the engine's thread, taken whole
    u32 n_pushed;          // also of the wish to end; the recorder's thread sleeps on it
    u32 n_rounds;          // of commits; the engine's thread sleeps on it
    u64 n_queued, n_bytes; // items that are not done, and what they take
    u32 ends;              // close was called
    u32 has_failed;        // `failure` is filled
    u32 has_refused;       // `refused` is filled
    struct sov_fault failure;
    struct sov_fault refused; // the first item that failed and that nobody asks for
    // --- of the engine's thread ---
    u32 n_rounds_seen;
    struct sov_fault refused_here; // as `refused`, of an item that was done when it was forgotten
    struct item *entries[RECORDER_ENTRIES_MAX]; // whom it may ask for; NULL: free
};

// --- items ---

static void item_free(struct item *item) { platform_memory_unmap(item, (usize)item->mapped_bytes); }

static struct item *item_make(const struct checkpoint_id *id, struct str request, struct str bytes,
                              struct sov_fault *fault) {
    u64 total = sizeof(struct item) + request.len + bytes.len;
    total = (total + ITEM_UNIT_BYTES - 1) / ITEM_UNIT_BYTES * ITEM_UNIT_BYTES;
    struct item *item = platform_memory_map((usize)total);
    if (item == NULL) {
        (void)fault_set(fault, SOV_ERR_MEMORY, "record: %llu bytes are not to be had", total);
        return NULL;
    }
    item->mapped_bytes = total;
    item->id = *id;
    u8 *at = (u8 *)(item + 1);
    if (request.len > 0) memcpy(at, request.data, request.len);
    item->request = (struct str){at, request.len};
    at += request.len;
    if (bytes.len > 0) memcpy(at, bytes.data, bytes.len);
    item->bytes = (struct str){at, bytes.len};
    return item;
}

// --- the recorder's thread ---

// What the store has under this transaction id already; *found is false when it has nothing.
static enum sov_status find_again(struct recorder *r, struct item *item,
                                  const struct sha256_digest *txid, bool *found) {
    struct rowm_receipt receipt;
    *found = rowm_find(r->rowm, txid, &receipt);
    if (!*found) return SOV_OK;
    item->payload_hash = sealed_kept_hash(item->bytes);
    if (sha256_equal(&receipt.payload_hash, &item->payload_hash)) return SOV_OK;
    return fault_set(&item->fault, SOV_ERR_INTEGRITY,
                     "checkpoint of sequence %016llx at %u tokens: the store has other bytes",
                     item->id.sequence_id, item->id.n_tokens);
}

// R3: the request, and behind it the checkpoint that it begins with.
static enum sov_status stage_start(struct recorder *r, struct item *item, bool *store_failed) {
    u64 owner = item->id.sequence_id;
    struct rowm_receipt receipt = {0};
    u8 scratch[SEALED_BYTES];
    struct rowm_write request = {
        .txid = recorder_request_txid(owner),
        .kind = ROWM_REQUEST,
        .owner = owner,
        .parent = ROWM_NONE,
        .payload = sealed_kept(item->request, scratch),
    };
    enum sov_status status = SOV_OK;
    struct sha256_digest first_txid = recorder_checkpoint_txid(&item->id);
    if (rowm_find(r->rowm, &request.txid, &receipt)) { // R4
        struct rowm_receipt ignored;
        struct sha256_digest payload_hash = sealed_kept_hash(item->request);
        if (rowm_find(r->rowm, &first_txid, &ignored) ||
            !sha256_equal(&payload_hash, &receipt.payload_hash)) {
            return fault_set(
                &item->fault, SOV_ERR_STATE,
                "sequence %016llx is in this store already: sov resume goes on with it", owner);
        }
    } else {
        status = rowm_stage(r->rowm, &request, &receipt, &item->fault);
    }
    if (status == SOV_OK) {
        struct rowm_write first = {
            .txid = first_txid,
            .kind = ROWM_CHECKPOINT,
            .owner = owner,
            .parent = receipt.record,
            .payload = sealed_kept(item->bytes, scratch),
            .issues = true,
        };
        status = rowm_stage(r->rowm, &first, &receipt, &item->fault);
    }
    *store_failed = status != SOV_OK;
    item->payload_hash = receipt.payload_hash;
    return status;
}

// Whether something of the same sequence is among the items [first, item).
static bool is_behind_another(const struct item *first, const struct item *item) {
    for (; first != item; first = first->next) {
        if (first->id.sequence_id == item->id.sequence_id) return true;
    }
    return false;
}

// R3: a checkpoint or an end behind the one before, which is published (its capability could not be
// looked up otherwise).
static enum sov_status stage_next(struct recorder *r, struct item *item, bool *store_failed) {
    u64 owner = item->id.sequence_id, before = ROWM_NONE;
    struct sha256_digest txid = recorder_checkpoint_txid(&item->id);
    bool found = false, is_end = item->id.kind == CHECKPOINT_FINISH;
    enum sov_status status = find_again(r, item, &txid, &found);
    if (status != SOV_OK || found) return status;
    struct rowm_record_info info;
    if (!rowm_find_available(r->rowm, owner, &before)) {
        return fault_set(&item->fault, SOV_ERR_STATE,
                         "sequence %016llx has no open checkpoint in this store", owner);
    }
    status = rowm_info(r->rowm, before, &info, &item->fault);
    assert(status == SOV_OK && info.available);
    u8 scratch[SEALED_BYTES];
    struct rowm_write write = {
        .txid = txid,
        .kind = is_end ? ROWM_FINISH : ROWM_CHECKPOINT,
        .owner = owner,
        .epoch = info.epoch + 1,
        .parent = before,
        .payload = sealed_kept(item->bytes, scratch),
        .consumes = true,
        .capability = info.capability,
        .issues = !is_end,
    };
    struct rowm_receipt receipt;
    status = rowm_stage(r->rowm, &write, &receipt, &item->fault);
    *store_failed = status != SOV_OK;
    if (status == SOV_OK) item->payload_hash = receipt.payload_hash;
    return status;
}

// The first failure is told to everybody from now on (R5).
static void fail_for_good(struct recorder *r, const struct sov_fault *fault) {
    if (__atomic_load_n(&r->has_failed, __ATOMIC_RELAXED) != 0) return;
    r->failure = *fault;
    __atomic_store_n(&r->has_failed, 1, __ATOMIC_RELEASE);
}

static void finish_item(struct recorder *r, struct item *item) {
    u64 bytes = item->mapped_bytes;
    if (__atomic_exchange_n(&item->state, DONE, __ATOMIC_ACQ_REL) == ABANDONED) {
        bool is_first = __atomic_load_n(&r->has_refused, __ATOMIC_RELAXED) == 0;
        if (item->fault.status != SOV_OK && is_first) {
            r->refused = item->fault;
            __atomic_store_n(&r->has_refused, 1, __ATOMIC_RELEASE);
        }
        item_free(item);
    }
    __atomic_fetch_sub(&r->n_bytes, bytes, __ATOMIC_RELAXED);
    __atomic_fetch_sub(&r->n_queued, 1, __ATOMIC_RELEASE);
}

// Commits what is staged, and then tells of the items [first, end) of the list. `end` may be NULL.
static void commit(struct recorder *r, struct item *first, const struct item *end) {
    struct sov_fault fault = {0};
    bool failed = __atomic_load_n(&r->has_failed, __ATOMIC_RELAXED) != 0;
    if (!failed && rowm_commit(r->rowm, &fault) != SOV_OK) {
        fail_for_good(r, &fault);
        failed = true;
    }
    while (first != end) {
        struct item *item = first;
        first = item->next;
        if (failed && item->fault.status == SOV_OK) item->fault = r->failure;
        finish_item(r, item);
    }
}

// What the store will only have commitments to is durable in front of them: R6.
static enum sov_status keep_openings(struct recorder *r, const struct item *list,
                                     struct sov_fault *fault) {
    enum sov_status status = SOV_OK;
    for (const struct item *item = list; item != NULL && status == SOV_OK; item = item->next) {
        u64 owner = item->id.sequence_id;
        struct sha256_digest txid = recorder_checkpoint_txid(&item->id);
        struct rowm_receipt receipt;
        if (!sealed_is_opening(item->bytes) || rowm_find(r->rowm, &txid, &receipt)) continue;
        if (item->request.len > 0) {
            status = sidecar_append(&r->sidecar, owner, item->request, fault);
        }
        if (status == SOV_OK) status = sidecar_append(&r->sidecar, owner, item->bytes, fault);
    }
    return status == SOV_OK ? sidecar_sync(&r->sidecar, fault) : status;
}

// In a transaction of its own, with nothing staged.
static void read_once(struct recorder *r, struct item *item) {
    struct reading *reading = item->reading;
    if (__atomic_load_n(&r->has_failed, __ATOMIC_RELAXED) != 0) {
        item->fault = r->failure;
    } else {
        enum sov_status status = rowm_resume(r->rowm, reading->claim, reading->payload,
                                             reading->capacity, &reading->n, NULL, &item->fault);
        if (status == SOV_ERR_IO) fail_for_good(r, &item->fault);
    }
    finish_item(r, item);
}

// Stages a list and commits it; in several commits where one item is behind another of its
// sequence, or where a capability is read.
static void write_list(struct recorder *r, struct item *list) {
    struct item *first = list; // of what is staged and not committed
    struct sov_fault fault = {0};
    bool has_failed = __atomic_load_n(&r->has_failed, __ATOMIC_RELAXED) != 0;
    if (!has_failed && keep_openings(r, list, &fault) != SOV_OK) fail_for_good(r, &fault);
    for (struct item *item = list, *next; item != NULL; item = next) {
        bool is_start = item->request.len > 0, store_failed = false;
        next = item->next;
        bool is_reading = item->reading != NULL;
        if (first != item && (is_reading || (!is_start && is_behind_another(first, item)))) {
            commit(r, first, item);
            first = item;
        }
        if (is_reading) {
            first = next;
            read_once(r, item);
            continue;
        }
        if (__atomic_load_n(&r->has_failed, __ATOMIC_RELAXED) != 0) continue;
        enum sov_status status = is_start ? stage_start(r, item, &store_failed)
                                          : stage_next(r, item, &store_failed);
        assert((status == SOV_OK) == (item->fault.status == SOV_OK));
        if (store_failed) fail_for_good(r, &item->fault);
    }
    if (first != NULL) commit(r, first, NULL);
}

static struct item *take_all(struct recorder *r) {
    struct item *stack = __atomic_exchange_n(&r->stack, NULL, __ATOMIC_ACQUIRE), *list = NULL;
    while (stack != NULL) {
        struct item *below = stack->next;
        stack->next = list;
        list = stack;
        stack = below;
    }
    return list;
}

bool recorder_step(struct recorder *recorder) {
    struct item *list = take_all(recorder);
    if (list == NULL) return false;
    write_list(recorder, list);
    __atomic_fetch_add(&recorder->n_rounds, 1, __ATOMIC_RELEASE);
    platform_wake_all(&recorder->n_rounds);
    return true;
}

static void recorder_main(void *argument) {
    struct recorder *r = argument;
    for (;;) {
        u32 n_pushed = __atomic_load_n(&r->n_pushed, __ATOMIC_ACQUIRE);
        if (recorder_step(r)) continue;
        if (__atomic_load_n(&r->ends, __ATOMIC_ACQUIRE) != 0) return;
        platform_wait(&r->n_pushed, n_pushed);
    }
}

// --- the engine's thread ---

static u64 n_queued(const struct recorder *r) {
    return __atomic_load_n(&r->n_queued, __ATOMIC_ACQUIRE);
}

static void push(struct recorder *r, struct item *item) {
    __atomic_fetch_add(&r->n_queued, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&r->n_bytes, item->mapped_bytes, __ATOMIC_RELAXED);
    struct item *top = __atomic_load_n(&r->stack, __ATOMIC_RELAXED);
    do {
        item->next = top;
    } while (!__atomic_compare_exchange_n(&r->stack, &top, item, false, __ATOMIC_RELEASE,
                                          __ATOMIC_RELAXED));
    __atomic_fetch_add(&r->n_pushed, 1, __ATOMIC_RELEASE);
    platform_wake_all(&r->n_pushed);
}

static bool id_equal(const struct checkpoint_id *a, const struct checkpoint_id *b) {
    return a->sequence_id == b->sequence_id && a->n_tokens == b->n_tokens && a->kind == b->kind;
}

// The place of an entry; of NULL a free one. RECORDER_ENTRIES_MAX: there is none.
static u32 find_entry(const struct recorder *r, const struct checkpoint_id *id) {
    u32 i = 0;
    for (; i < RECORDER_ENTRIES_MAX; i++) {
        const struct item *item = r->entries[i];
        if (id == NULL ? item == NULL : item != NULL && id_equal(&item->id, id)) break;
    }
    return i;
}

enum sov_status recorder_check(const struct recorder *recorder, struct sov_fault *fault) {
    if (__atomic_load_n(&recorder->has_failed, __ATOMIC_ACQUIRE) == 0) return SOV_OK;
    return fault_set(fault, recorder->failure.status, "recording ended: %s",
                     recorder->failure.message);
}

static bool is_done(const struct item *item) {
    return __atomic_load_n(&item->state, __ATOMIC_ACQUIRE) == DONE;
}

// An item with an entry, so that poll finds it.
static enum sov_status give(struct recorder *r, const struct checkpoint_id *id, struct str request,
                            struct str bytes, struct sov_fault *fault) {
    enum sov_status status = recorder_check(r, fault);
    if (status != SOV_OK) return status;
    u32 place = find_entry(r, NULL);
    if (place == RECORDER_ENTRIES_MAX) {
        return fault_set(fault, SOV_ERR_LIMIT, "record: all %u places are taken",
                         RECORDER_ENTRIES_MAX);
    }
    struct item *item = item_make(id, request, bytes, fault);
    if (item == NULL) return SOV_ERR_MEMORY;
    r->entries[place] = item;
    push(r, item);
    return SOV_OK;
}

static void forget(void *context, const struct checkpoint_id *id) {
    struct recorder *r = context;
    u32 place = find_entry(r, id);
    if (place == RECORDER_ENTRIES_MAX) return;
    struct item *item = r->entries[place];
    r->entries[place] = NULL;
    if (__atomic_exchange_n(&item->state, ABANDONED, __ATOMIC_ACQ_REL) != DONE) return;
    if (item->fault.status != SOV_OK && !item->is_told && r->refused_here.status == SOV_OK) {
        r->refused_here = item->fault;
    }
    item_free(item);
}

static enum sov_status begin(void *context, const struct checkpoint_id *id, struct str bytes,
                             struct sov_fault *fault) {
    struct recorder *r = context;
    u32 place = find_entry(r, id);
    if (place == RECORDER_ENTRIES_MAX) return give(r, id, (struct str){0}, bytes, fault);
    struct item *item = r->entries[place];
    if (!str_equal(item->bytes, bytes)) {
        return fault_set(fault, SOV_ERR_INTEGRITY,
                         "checkpoint of sequence %016llx at %u tokens: other bytes than before",
                         id->sequence_id, id->n_tokens);
    }
    // After a failure it is given anew; else it is on its way, or there.
    if (!is_done(item) || item->fault.status == SOV_OK) return SOV_OK;
    forget(r, id);
    return give(r, id, (struct str){0}, bytes, fault);
}

static enum sov_status poll(void *context, const struct checkpoint_id *id,
                            enum checkpoint_progress *progress, struct checkpoint_receipt *receipt,
                            struct sov_fault *fault) {
    struct recorder *r = context;
    u32 place = find_entry(r, id);
    if (place == RECORDER_ENTRIES_MAX) {
        return fault_set(fault, SOV_ERR_STATE,
                         "checkpoint of sequence %016llx at %u tokens: not begun", id->sequence_id,
                         id->n_tokens);
    }
    struct item *item = r->entries[place];
    *progress = CHECKPOINT_PENDING;
    if (!is_done(item)) return SOV_OK;
    if (item->fault.status != SOV_OK) {
        item->is_told = true;
        return fault_set(fault, item->fault.status, "%s", item->fault.message);
    }
    *progress = CHECKPOINT_DURABLE;
    *receipt = (struct checkpoint_receipt){*id, item->payload_hash,
                                           checkpoint_receipt_hash(id, &item->payload_hash)};
    return SOV_OK;
}

static enum sov_status start(void *context, const struct checkpoint_id *first, struct str request,
                             struct str bytes, struct sov_fault *fault) {
    struct recorder *r = context;
    assert(request.len > 0);
    while (__atomic_load_n(&r->n_bytes, __ATOMIC_RELAXED) > RECORDER_QUEUE_BYTES_MAX) {
        recorder_wait(r);
    }
    return give(r, first, request, bytes, fault);
}

static enum sov_status finish(void *context, const struct checkpoint_id *id, struct str bytes,
                              struct sov_fault *fault) {
    struct recorder *r = context;
    enum sov_status status = recorder_check(r, fault);
    if (status != SOV_OK) return status;
    struct item *item = item_make(id, (struct str){0}, bytes, fault);
    if (item == NULL) return SOV_ERR_MEMORY;
    item->state = ABANDONED; // nobody asks
    push(r, item);
    return SOV_OK;
}

// Told by the flush: a record without this end is not the whole run.
static void lost(void *context, const struct checkpoint_id *id, const struct sov_fault *fault) {
    struct recorder *r = context;
    if (r->refused_here.status != SOV_OK) return;
    enum sov_status status =
        fault_set(&r->refused_here, fault->status,
                  "the end of sequence %016llx is not in the record (sov resume makes it): %s",
                  id->sequence_id, fault->message);
    (void)status;
}

void recorder_wait(struct recorder *recorder) {
    if (recorder->thread == NULL) (void)recorder_step(recorder); // nobody else does
    u32 seen = recorder->n_rounds_seen;
    while (n_queued(recorder) > 0 &&
           __atomic_load_n(&recorder->n_rounds, __ATOMIC_ACQUIRE) == seen) {
        platform_wait(&recorder->n_rounds, seen);
    }
    recorder->n_rounds_seen = __atomic_load_n(&recorder->n_rounds, __ATOMIC_ACQUIRE);
}

enum sov_status recorder_resume(struct recorder *recorder, const struct rowm_claim *claim,
                                u8 *payload, usize capacity, usize *n, struct sov_fault *fault) {
    enum sov_status status = recorder_check(recorder, fault);
    if (status != SOV_OK) return status;
    struct reading reading = {.claim = claim, .payload = payload, .capacity = capacity};
    struct checkpoint_id id = {.sequence_id = claim->consumer};
    struct item *item = item_make(&id, (struct str){0}, (struct str){0}, fault);
    if (item == NULL) return SOV_ERR_MEMORY;
    item->reading = &reading;
    push(recorder, item);
    while (!is_done(item)) recorder_wait(recorder);
    *n = reading.n;
    if (item->fault.status != SOV_OK) {
        status = fault_set(fault, item->fault.status, "%s", item->fault.message);
    }
    item_free(item);
    return status;
}

enum sov_status recorder_flush(struct recorder *recorder, struct sov_fault *fault) {
    while (n_queued(recorder) > 0) recorder_wait(recorder);
    enum sov_status status = recorder_check(recorder, fault);
    bool is_there = __atomic_load_n(&recorder->has_refused, __ATOMIC_ACQUIRE) != 0;
    const struct sov_fault *refused = is_there ? &recorder->refused : &recorder->refused_here;
    if (status != SOV_OK || refused->status == SOV_OK) return status;
    return fault_set(fault, refused->status, "%s", refused->message);
}

struct checkpoint_store recorder_store(struct recorder *recorder) {
    return (struct checkpoint_store){
        .context = recorder,
        .begin = begin,
        .poll = poll,
        .forget = forget,
        .start = start,
        .finish = finish,
        .lost = lost,
    };
}

static enum sov_status open_with(struct rowm *rowm, bool threads, struct recorder **recorder,
                                 struct sov_fault *fault) {
    struct recorder *r = platform_memory_map(sizeof *r);
    enum sov_status status = SOV_OK;
    if (r == NULL) {
        status = fault_set(fault, SOV_ERR_MEMORY, "record: %llu bytes are not to be had",
                           (u64)sizeof *r);
    } else {
        r->rowm = rowm;
        sidecar_writer_init(&r->sidecar, rowm_disk_of(rowm));
        if (threads) status = platform_thread_start(recorder_main, r, &r->thread, fault);
    }
    if (status != SOV_OK) {
        if (r != NULL) platform_memory_unmap(r, sizeof *r);
        rowm_close(rowm);
        return status;
    }
    *recorder = r;
    return SOV_OK;
}

enum sov_status recorder_open(struct rowm *rowm, struct recorder **recorder,
                              struct sov_fault *fault) {
    return open_with(rowm, true, recorder, fault);
}

enum sov_status recorder_open_stepped(struct rowm *rowm, struct recorder **recorder,
                                      struct sov_fault *fault) {
    return open_with(rowm, false, recorder, fault);
}

struct rowm_head recorder_head(const struct recorder *recorder) {
    assert(n_queued(recorder) == 0); // so the other thread does not touch the store
    return rowm_head(recorder->rowm);
}

enum sov_status recorder_close(struct recorder *recorder, struct rowm_head *head,
                               struct sov_fault *fault) {
    enum sov_status status = recorder_flush(recorder, fault);
    __atomic_store_n(&recorder->ends, 1, __ATOMIC_RELEASE);
    __atomic_fetch_add(&recorder->n_pushed, 1, __ATOMIC_RELEASE);
    platform_wake_all(&recorder->n_pushed);
    if (recorder->thread != NULL) platform_thread_join(recorder->thread);
    for (u32 i = 0; i < RECORDER_ENTRIES_MAX; i++) {
        if (recorder->entries[i] != NULL) item_free(recorder->entries[i]);
    }
    *head = rowm_head(recorder->rowm);
    sidecar_writer_close(&recorder->sidecar);
    rowm_close(recorder->rowm);
    platform_memory_unmap(recorder, sizeof *recorder);
    return status;
}
