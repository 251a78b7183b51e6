// SPDX-License-Identifier: Apache-2.0
// Receipts, and the store in memory: a table of ids with the hash of their bytes. It stands where a
// durable store will, with the same promises but the one that matters after a crash.
#include "record/checkpoint.h"
#include "freestanding/mem.h"
#include "record/sealed.h"

static bool id_equal(const struct checkpoint_id *a, const struct checkpoint_id *b) {
    return a->sequence_id == b->sequence_id && a->n_tokens == b->n_tokens && a->kind == b->kind;
}

struct sha256_digest checkpoint_receipt_hash(const struct checkpoint_id *id,
                                             const struct sha256_digest *payload_hash) {
    u8 bytes[16];
    store_u64(bytes, id->sequence_id);
    store_u32(bytes + 8, id->n_tokens);
    store_u32(bytes + 12, id->kind);
    struct sha256 h;
    sha256_begin(&h);
    sha256_update(&h, STR("sov-checkpoint-receipt-1"));
    sha256_update(&h, (struct str){bytes, sizeof bytes});
    sha256_update(&h, (struct str){payload_hash->bytes, SHA256_BYTES});
    return sha256_end(&h);
}

u64 checkpoint_memory_bytes(u32 capacity) {
    return (u64)capacity * sizeof(struct checkpoint_entry) + 64;
}

enum sov_status checkpoint_memory_create(struct checkpoint_memory *memory, u32 capacity, u32 delay,
                                         struct arena *arena, struct sov_fault *fault) {
    *memory = (struct checkpoint_memory){.capacity = capacity, .delay = delay};
    memory->entries = arena_array(arena, struct checkpoint_entry, capacity);
    if (memory->entries == NULL) {
        return arena_fault(arena, fault, "checkpoints", checkpoint_memory_bytes(capacity));
    }
    memset(memory->entries, 0, capacity * sizeof *memory->entries);
    return SOV_OK;
}

// The entry of an id, or NULL.
static struct checkpoint_entry *find(struct checkpoint_memory *memory,
                                     const struct checkpoint_id *id) {
    for (u32 i = 0; i < memory->capacity; i++) {
        struct checkpoint_entry *entry = &memory->entries[i];
        if (entry->used && id_equal(&entry->id, id)) return entry;
    }
    return NULL;
}

static enum sov_status begin(void *context, const struct checkpoint_id *id, struct str bytes,
                             struct sov_fault *fault) {
    struct checkpoint_memory *memory = context;
    struct sha256_digest hash = sealed_kept_hash(bytes);
    struct checkpoint_entry *entry = find(memory, id);
    if (entry != NULL && !sha256_equal(&entry->payload_hash, &hash)) { // T1
        return fault_set(fault, SOV_ERR_INTEGRITY,
                         "checkpoint of sequence %016llx at %u tokens: other bytes than before",
                         id->sequence_id, id->n_tokens);
    }
    if (entry != NULL) return SOV_OK;
    for (u32 i = 0; i < memory->capacity; i++) {
        if (memory->entries[i].used) continue;
        memory->entries[i] = (struct checkpoint_entry){
            .id = *id,
            .payload_hash = hash,
            .polls_left = memory->delay,
            .used = true,
        };
        memory->n_begun++;
        return SOV_OK;
    }
    return fault_set(fault, SOV_ERR_LIMIT, "checkpoints: all %u places are taken",
                     memory->capacity);
}

static enum sov_status poll(void *context, const struct checkpoint_id *id,
                            enum checkpoint_progress *progress, struct checkpoint_receipt *receipt,
                            struct sov_fault *fault) {
    struct checkpoint_memory *memory = context;
    struct checkpoint_entry *entry = find(memory, id);
    if (entry == NULL) {
        return fault_set(fault, SOV_ERR_STATE,
                         "checkpoint of sequence %016llx at %u tokens: not begun", id->sequence_id,
                         id->n_tokens);
    }
    if (entry->polls_left > 0) {
        entry->polls_left--;
        *progress = CHECKPOINT_PENDING;
        return SOV_OK;
    }
    *progress = CHECKPOINT_DURABLE;
    *receipt = (struct checkpoint_receipt){
        .id = *id,
        .payload_hash = entry->payload_hash,
        .receipt_hash = checkpoint_receipt_hash(id, &entry->payload_hash),
    };
    memory->n_durable++;
    return SOV_OK;
}

static void forget(void *context, const struct checkpoint_id *id) {
    struct checkpoint_entry *entry = find(context, id);
    if (entry != NULL) entry->used = false;
}

struct checkpoint_store checkpoint_memory_store(struct checkpoint_memory *memory) {
    return (struct checkpoint_store){
        .context = memory, .begin = begin, .poll = poll, .forget = forget};
}
