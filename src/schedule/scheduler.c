// SPDX-License-Identifier: Apache-2.0
// One pass over the live sequences, in order of arrival, decides a step: who comes back from SWAP,
// who is admitted, who gets rows. Everything is a function of the state and the limits given.
#include "schedule/scheduler.h"
#include "freestanding/mem.h"

#define PROMPT_SHARE 4 // prompts get at least one part in so many of the budget

static const char *const state_names[SEQUENCE_STATES] = {
    [SEQUENCE_IDLE] = "IDLE",
    [SEQUENCE_PREFILL] = "PREFILL",
    [SEQUENCE_GENERATE] = "GENERATE",
    [SEQUENCE_SWAP] = "SWAP",
    [SEQUENCE_CHECKPOINT] = "CHECKPOINT",
    [SEQUENCE_RESUME] = "RESUME",
};

// transitions[from][to]: the function that performs it.
static const char *const transitions[SEQUENCE_STATES][SEQUENCE_STATES] = {
    [SEQUENCE_IDLE] =
        {
            [SEQUENCE_PREFILL] = "admit",
        },
    [SEQUENCE_PREFILL] =
        {
            [SEQUENCE_GENERATE] = "sched_computed",
            [SEQUENCE_SWAP] = "swap_out",
            [SEQUENCE_IDLE] = "sched_finish",
        },
    [SEQUENCE_GENERATE] =
        {
            [SEQUENCE_CHECKPOINT] = "sched_prepared",
            [SEQUENCE_SWAP] = "swap_out",
            [SEQUENCE_IDLE] = "sched_finish",
        },
    [SEQUENCE_SWAP] =
        {
            [SEQUENCE_PREFILL] = "swap_in",
            [SEQUENCE_GENERATE] = "swap_in",
            [SEQUENCE_CHECKPOINT] = "swap_in",
            [SEQUENCE_RESUME] = "swap_in",
            [SEQUENCE_IDLE] = "sched_finish",
        },
    [SEQUENCE_CHECKPOINT] =
        {
            [SEQUENCE_GENERATE] = "sched_prepared",
            [SEQUENCE_SWAP] = "swap_out",
            [SEQUENCE_IDLE] = "sched_finish",
        },
    [SEQUENCE_RESUME] =
        {
            [SEQUENCE_GENERATE] = "sched_computed",
            [SEQUENCE_CHECKPOINT] = "sched_computed",
            [SEQUENCE_SWAP] = "swap_out",
            [SEQUENCE_IDLE] = "sched_finish",
        },
};

const char *sequence_state_name(enum sequence_state state) {
    assert((u32)state < SEQUENCE_STATES);
    return state_names[state];
}

const char *sched_transition(enum sequence_state from, enum sequence_state to) {
    assert((u32)from < SEQUENCE_STATES && (u32)to < SEQUENCE_STATES);
    return transitions[from][to];
}

static void move(struct sched_sequence *q, enum sequence_state to) {
    assert(sched_transition(q->state, to) != NULL); // S1
    q->state = to;
}

void sched_init(struct scheduler *s, const struct sched_config *config,
                const struct sched_hooks *hooks, struct kv_allocator *kv) {
    assert(config->n_sequences >= 1 && config->n_sequences <= SOV_MAX_SEQS);
    assert(config->prefill_chunk >= 1);
    memset(s, 0, sizeof *s);
    s->config = *config;
    s->hooks = *hooks;
    s->kv = kv;
}

u32 sched_submit(struct scheduler *s, u32 n_prompt) {
    u32 slot = 0;
    while (slot < s->config.n_sequences && s->sequences[slot].is_live) slot++;
    if (slot == s->config.n_sequences) return SOV_MAX_SEQS;
    s->sequences[slot] = (struct sched_sequence){
        .state = SEQUENCE_IDLE,
        .is_live = true,
        .n_prompt = n_prompt,
        .n_tokens = n_prompt,
    };
    s->order[s->n_live++] = (u16)slot;
    return slot;
}

u32 sched_submit_history(struct scheduler *s, u32 n_prompt, u32 n_tokens, bool is_prepared) {
    assert(n_tokens > n_prompt);
    u32 slot = sched_submit(s, n_prompt);
    if (slot == SOV_MAX_SEQS) return slot;
    s->sequences[slot].state = SEQUENCE_SWAP;
    s->sequences[slot].n_tokens = n_tokens;
    s->sequences[slot].is_prepared = is_prepared;
    return slot;
}

// Running: holds blocks, or is about to.
static bool is_running(const struct sched_sequence *q) {
    return q->is_live && q->state != SEQUENCE_IDLE && q->state != SEQUENCE_SWAP;
}

static bool is_prompt(const struct sched_sequence *q) {
    return q->state == SEQUENCE_PREFILL || q->state == SEQUENCE_RESUME;
}

static enum sov_status probe(struct scheduler *s, const char *operation, struct sov_fault *fault) {
    return s->hooks.probe == NULL ? SOV_OK : s->hooks.probe(s->hooks.context, operation, fault);
}

// --- budget ---

// Blocks that running sequences will want to finish what they have to compute, and one token more.
static u32 promised_blocks(const struct scheduler *s) {
    u32 promised = 0;
    for (u32 i = 0; i < s->n_live; i++) {
        const struct sched_sequence *q = &s->sequences[s->order[i]];
        if (is_running(q)) promised += kv_blocks_wanted(s->kv, s->order[i], q->n_tokens + 1);
    }
    return promised;
}

// Whether n blocks more leave every running sequence one block to grow. Alone, a sequence always
// fits: there are blocks for a whole context.
static bool fits_budget(const struct scheduler *s, u32 n) {
    u32 n_running = 0;
    for (u32 i = 0; i < s->n_live; i++) n_running += is_running(&s->sequences[s->order[i]]);
    return n_running == 0 || n + promised_blocks(s) + n_running <= kv_blocks_available(s->kv);
}

static u32 blocks_for(const struct scheduler *s, u32 n_tokens) {
    return MIN(kv_blocks_of(n_tokens),
               s->kv->config.max_blocks); // the last token of a context needs no block more
}

// --- transitions of the plan ---

static void admit(struct scheduler *s, u32 slot) {
    struct sched_sequence *q = &s->sequences[slot];
    move(q, SEQUENCE_PREFILL);
    q->was_admitted = true;
}

static enum sequence_state state_with_blocks(const struct sched_sequence *q) {
    if (q->is_prepared) return SEQUENCE_CHECKPOINT;
    return q->n_tokens > q->n_prompt ? SEQUENCE_GENERATE : SEQUENCE_PREFILL;
}

// Takes the blocks of a sequence away. They are copied to spill memory when that is cheaper than
// computing them again and there is room, else dropped. Shared ones may still be found later.
static void swap_out(struct scheduler *s, u32 slot) {
    struct sched_sequence *q = &s->sequences[slot];
    struct sov_fault ignored = {0};
    if (s->hooks.swaps != NULL) s->hooks.swaps(s->hooks.context, slot);
    u64 n_blocks = s->kv->n_owned[slot];
    bool is_cheaper = n_blocks * s->config.spill_ns <= q->n_computed * s->config.token_ns;
    bool is_spilled = is_cheaper && n_blocks > 0 && s->kv->n_spill_free >= n_blocks &&
                      probe(s, "swap out", &ignored) == SOV_OK &&
                      kv_swap_out(s->kv, slot, &ignored) == SOV_OK;
    if (is_spilled) {
        s->n_spills++;
    } else {
        enum sov_status status = kv_release(s->kv, slot, &ignored);
        assert(status == SOV_OK);
        q->n_computed = 0;
    }
    s->n_swaps++;
    move(q, SEQUENCE_SWAP);
}

// Brings a sequence back, if the budget allows. False: it must wait, and so must all younger ones.
static bool swap_in(struct scheduler *s, u32 slot) {
    struct sched_sequence *q = &s->sequences[slot];
    if (!fits_budget(s, blocks_for(s, q->n_tokens + 1))) return false;
    if (s->kv->spilled[slot]) {
        struct sov_fault fault = {0};
        enum sov_status status = probe(s, "swap in", &fault);
        if (status == SOV_OK) status = kv_swap_in(s->kv, slot, &fault);
        if (status != SOV_OK) {
            s->hooks.failed(s->hooks.context, slot, &fault);
            return false;
        }
        // Spilled before its history was computed again: that goes on by chunks.
        bool is_half = q->n_tokens > q->n_prompt && q->n_computed + 1 < q->n_tokens;
        move(q, is_half ? SEQUENCE_RESUME : state_with_blocks(q));
    } else {
        bool is_first = q->n_tokens == q->n_prompt; // nothing but its prompt: a PREFILL again
        move(q, is_first ? SEQUENCE_PREFILL : SEQUENCE_RESUME);
    }
    return true;
}

// --- rows ---

static void remove_rows(struct scheduler *s, u32 slot) {
    u32 kept = 0;
    for (u32 i = 0; i < s->n_rows; i++) {
        if (s->rows[i].slot != slot) s->rows[kept++] = s->rows[i];
    }
    s->n_rows = kept;
}

// The youngest running sequence that holds blocks; SOV_MAX_SEQS when nobody does.
static u32 find_victim(const struct scheduler *s) {
    for (u32 i = s->n_live; i-- > 0;) {
        u32 slot = s->order[i];
        if (is_running(&s->sequences[slot]) && s->kv->n_owned[slot] > 0) return slot;
    }
    return SOV_MAX_SEQS;
}

static bool is_older(const struct scheduler *s, u32 a, u32 b) {
    for (u32 i = 0; i < s->n_live; i++) {
        if (s->order[i] == a) return true;
        if (s->order[i] == b) return false;
    }
    return false;
}

// Blocks for n rows more, taken from younger sequences where there are none. False: no rows.
static bool allocate(struct scheduler *s, u32 slot, u32 n) {
    struct sched_sequence *q = &s->sequences[slot];
    struct sov_fault fault = {0};
    enum sov_status status = probe(s, "allocate", &fault);
    while (status == SOV_OK &&
           kv_blocks_wanted(s->kv, slot, q->n_computed + n) > kv_blocks_available(s->kv)) {
        u32 victim = find_victim(s);
        if (victim == SOV_MAX_SEQS || is_older(s, victim, slot)) victim = slot; // S3
        remove_rows(s, victim);
        swap_out(s, victim);
        if (victim == slot) return false;
    }
    if (status == SOV_OK) status = kv_allocate_blocks(s->kv, slot, q->n_computed + n, &fault);
    if (status == SOV_OK) return true;
    s->hooks.failed(s->hooks.context, slot, &fault);
    return false;
}

static void add_rows(struct scheduler *s, u32 slot, u32 n, u32 *budget) {
    if (!allocate(s, slot, n)) return;
    assert(s->n_rows < s->config.n_sequences);
    s->rows[s->n_rows++] = (struct sched_rows){slot, n};
    *budget -= n;
}

static bool wants_decode(const struct sched_sequence *q) {
    return is_running(q) && !is_prompt(q) && !q->is_held && q->n_computed < q->n_tokens;
}

// One row each, in a round over the slots that goes on where the last step ended.
static void plan_decoding(struct scheduler *s, u32 budget, u32 sequences, u32 *left) {
    u32 n = s->config.n_sequences, begin = s->cursor;
    for (u32 i = 0; i < n && budget > 0 && s->n_rows < sequences; i++) {
        u32 slot = (begin + i) % n;
        if (!wants_decode(&s->sequences[slot])) continue;
        u32 before = budget;
        add_rows(s, slot, 1, &budget);
        *left -= before - budget;
        s->cursor = (slot + 1) % n;
    }
}

// Chunks of prompts, oldest first.
static void plan_prompts(struct scheduler *s, u32 budget, u32 sequences) {
    for (u32 i = 0; i < s->n_live && budget > 0 && s->n_rows < sequences; i++) {
        u32 slot = s->order[i];
        struct sched_sequence *q = &s->sequences[slot];
        if (!is_running(q) || !is_prompt(q) || q->is_held) continue;
        s->hooks.adopt(s->hooks.context, slot);
        assert(q->n_computed < q->n_tokens);
        u32 n = MIN(q->n_tokens - q->n_computed, s->config.prefill_chunk);
        add_rows(s, slot, MIN(n, budget), &budget);
    }
}

static bool any_prompt(const struct scheduler *s) {
    for (u32 i = 0; i < s->n_live; i++) {
        const struct sched_sequence *q = &s->sequences[s->order[i]];
        if (is_running(q) && is_prompt(q) && !q->is_held) return true;
    }
    return false;
}

void sched_plan(struct scheduler *s, const struct sched_limits *limits) {
    assert(limits->token_budget >= 1 && limits->sequences >= 1);
    s->n_rows = 0;
    s->n_steps++;
    for (u32 i = 0; i < s->n_live; i++) { // S2: who waits makes all younger ones wait
        u32 slot = s->order[i];
        struct sched_sequence *q = &s->sequences[slot];
        if (q->is_held) continue;
        if (q->state == SEQUENCE_SWAP && !swap_in(s, slot)) break;
        if (q->state != SEQUENCE_IDLE) continue;
        if (!fits_budget(s, blocks_for(s, q->n_tokens + 1))) break;
        admit(s, slot);
    }
    u32 left = limits->token_budget, share = 0;
    if (any_prompt(s)) {
        share = MAX(left / PROMPT_SHARE, 1u);
        if (left == 1) share = (u32)(s->n_steps & 1); // turn by turn
    }
    // Where one sequence must stand back, it is one that decodes: its turn comes (S4).
    u32 decoding = share > 0 && limits->sequences > 1 ? limits->sequences - 1 : limits->sequences;
    if (share > 0 && limits->sequences == 1) {
        if ((s->n_steps & 1) != 0) plan_prompts(s, left, 1);
        if (s->n_rows > 0) return;
    }
    plan_decoding(s, left - share, decoding, &left);
    plan_prompts(s, left, limits->sequences);
}

// --- transitions of the commit ---

void sched_computed(struct scheduler *s, u32 slot, u32 n) {
    struct sched_sequence *q = &s->sequences[slot];
    assert(is_running(q) && q->n_computed + n <= q->n_tokens);
    q->n_computed += n;
    if (!is_prompt(q) || q->n_computed < q->n_tokens) return;
    move(q, q->is_prepared ? SEQUENCE_CHECKPOINT : SEQUENCE_GENERATE);
}

void sched_prepared(struct scheduler *s, u32 slot, bool is_prepared) {
    struct sched_sequence *q = &s->sequences[slot];
    assert(q->is_prepared != is_prepared);
    q->is_prepared = is_prepared;
    // A swapped or resuming sequence takes its new state when it is back.
    if (is_running(q) && !is_prompt(q)) {
        move(q, is_prepared ? SEQUENCE_CHECKPOINT : SEQUENCE_GENERATE);
    }
}

void sched_drop_staged(struct scheduler *s, u32 slot, u32 n_tokens) {
    struct sched_sequence *q = &s->sequences[slot];
    assert(n_tokens <= q->n_tokens && kv_length(s->kv, slot) <= n_tokens);
    q->n_tokens = n_tokens;
    q->n_computed = MIN(q->n_computed, n_tokens - 1); // the last one's logits are wanted again
}

void sched_finish(struct scheduler *s, u32 slot) {
    struct sched_sequence *q = &s->sequences[slot];
    assert(q->is_live);
    struct sov_fault ignored = {0};
    enum sov_status status = kv_release(s->kv, slot, &ignored);
    assert(status == SOV_OK);
    if (q->state != SEQUENCE_IDLE) move(q, SEQUENCE_IDLE);
    q->is_live = false;
    u32 kept = 0;
    for (u32 i = 0; i < s->n_live; i++) {
        if (s->order[i] != slot) s->order[kept++] = s->order[i];
    }
    assert(kept + 1 == s->n_live);
    s->n_live = kept;
}

void sched_assert_consistent(const struct scheduler *s) {
    kv_assert_consistent(s->kv);
    u32 n_live = 0;
    for (u32 slot = 0; slot < s->config.n_sequences; slot++) {
        const struct sched_sequence *q = &s->sequences[slot];
        u32 owned = s->kv->n_owned[slot];
        n_live += q->is_live;
        bool has_blocks = owned > 0 && !s->kv->spilled[slot];
        assert(q->is_live || q->state == SEQUENCE_IDLE);
        assert(!has_blocks || is_running(q));
        assert(!s->kv->spilled[slot] || q->state == SEQUENCE_SWAP);
        if (!q->is_live) continue;
        assert(q->n_computed <= q->n_tokens && q->n_prompt <= q->n_tokens);
        assert(kv_length(s->kv, slot) <= q->n_computed);
        assert(q->n_computed <= owned * SOV_KV_BLOCK_SIZE);
        assert(q->state != SEQUENCE_CHECKPOINT || q->is_prepared);
        assert(q->state != SEQUENCE_GENERATE || !q->is_prepared);
    }
    assert(n_live == s->n_live);
    for (u32 i = 0; i < s->n_live; i++) {
        assert(s->sequences[s->order[i]].is_live);
        for (u32 j = 0; j < i; j++) assert(s->order[i] != s->order[j]);
    }
}
