// SPDX-License-Identifier: Apache-2.0
// The array, the largest value of each slot, and the two functions through which it is reached.
#include "engine/janet.h"
#include "engine/engine.h"
#include "platform/platform.h"

struct janet {
    u32 words[JANET_WORDS];
};
static_assert(sizeof(struct janet) == 128, "32 words of 32 bits");

#define ANY 0xffffffffu
#define SIGNATURE_SLOTS (JANET_WORDS - JANET_SIGNATURE)
static_assert(SIGNATURE_SLOTS == 16, "slots 16 to 31");

static const u32 largest[JANET_WORDS] = {
    [JANET_PENDING] = SOV_MAX_SEQS,
    [JANET_BATCH] = ENGINE_BUDGET_MAX,
    [JANET_GENERATED] = ENGINE_CHECKPOINT_TOKENS - 1,
    [JANET_SEQUENCE] = SOV_MAX_SEQS - 1,
    [JANET_KV_USED] = KV_BLOCKS_MAX,
    [JANET_POWER] = POWER_STATES - 1,
    [JANET_RECEIPT + 0] = ANY,
    [JANET_RECEIPT + 1] = ANY,
    [JANET_RECEIPT + 2] = ANY,
    [JANET_RECEIPT + 3] = ANY,
    [JANET_RECEIPT + 4] = ANY,
    [JANET_RECEIPT + 5] = ANY,
    [JANET_RECEIPT + 6] = ANY,
    [JANET_RECEIPT + 7] = ANY,
};

enum sov_status janet_open(struct janet **janet, struct sov_fault *fault) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the address is the point
    void *mapped = platform_memory_map_at((void *)JANET_ADDRESS, sizeof(struct janet));
    if (mapped == NULL) {
        return fault_set(fault, SOV_ERR_STATE, "the Janet array: address %llx is taken",
                         JANET_ADDRESS);
    }
    *janet = mapped;
    return SOV_OK;
}

void janet_close(struct janet *janet) { platform_memory_unmap(janet, sizeof *janet); }

static enum sov_status check_slot(u32 slot, struct sov_fault *fault) {
    if (slot < JANET_WORDS) return SOV_OK;
    return fault_set(fault, SOV_ERR_ARGUMENT, "Janet: slot %u of %u", slot, JANET_WORDS);
}

enum sov_status janet_get(const struct janet *janet, u32 slot, u32 *value,
                          struct sov_fault *fault) {
    enum sov_status status = check_slot(slot, fault);
    if (status != SOV_OK) return status;
    u32 found = __atomic_load_n(&janet->words[slot], __ATOMIC_RELAXED);
    if (found > largest[slot]) {
        return fault_set(fault, SOV_ERR_ARGUMENT, "Janet: slot %u holds %u, at most %u", slot,
                         found, largest[slot]);
    }
    *value = found;
    return SOV_OK;
}

enum sov_status janet_set(struct janet *janet, u32 slot, u32 value, struct sov_fault *fault) {
    enum sov_status status = check_slot(slot, fault);
    if (status != SOV_OK) return status;
    if (value > largest[slot]) {
        return fault_set(fault, SOV_ERR_ARGUMENT, "Janet: slot %u takes at most %u, not %u", slot,
                         largest[slot], value);
    }
    __atomic_store_n(&janet->words[slot], value, __ATOMIC_RELAXED);
    return SOV_OK;
}
