// SPDX-License-Identifier: Apache-2.0
// Logits of a token list: the forward path and the KV blocks of the engine, without a sequence.
#include "engine/engine_private.h"

#define SLOT 0 // free: no sequence is there

static enum sov_status check_list(const struct engine *engine, const u32 *tokens, u32 n_tokens,
                                  struct sov_fault *fault) {
    if (engine->scheduler.n_live > 0) {
        return fault_set(fault, SOV_ERR_STATE, "the engine is busy with another sequence");
    }
    return engine_check_tokens(engine, tokens, n_tokens, fault);
}

// The next chunk from position `done` on: at most config.logit_rows of its positions want logits.
static u32 chunk(const struct engine *engine, u32 done, u32 first, u32 n_tokens) {
    u32 without_logits = first > done ? first - done : 0;
    u32 n = MIN(engine->config.prefill_chunk, n_tokens - done);
    return MIN(n, without_logits + engine->config.logit_rows);
}

// Positions [done, done + n), logits for the last n_logits of them.
static enum sov_status forward(struct engine *engine, const u32 *tokens, u32 done, u32 n,
                               u32 n_logits, const f32 **logits, u32 *logit_stride,
                               struct sov_fault *fault) {
    enum sov_status status = kv_allocate_blocks(&engine->kv, SLOT, done + n, fault);
    if (status != SOV_OK) return status;
    for (u32 i = 0; i < n; i++) {
        engine->positions[i] = done + i;
        engine->slots[i] = SLOT;
    }
    for (u32 i = 0; i < n_logits; i++) engine->logit_rows[i] = n - n_logits + i;
    struct cpu_batch batch = {
        .n_tokens = n,
        .tokens = tokens + done,
        .positions = engine->positions,
        .slots = engine->slots,
        .n_logit_rows = n_logits,
        .logit_rows = engine->logit_rows,
    };
    status = engine_forward(engine, &batch, logits, logit_stride, fault);
    return status == SOV_OK ? kv_append_tokens(&engine->kv, SLOT, n, fault) : status;
}

enum sov_status engine_evaluate(struct engine *engine, const u32 *tokens, u32 n_tokens, u32 first,
                                engine_row *row, void *context, struct sov_fault *fault) {
    enum sov_status status = check_list(engine, tokens, n_tokens, fault);
    if (status != SOV_OK) return status;
    assert(first < n_tokens);
    struct kv_key chain = engine->root;
    u32 done = 0;
    if (!engine->config.no_prefix_sharing) {
        done = engine_adopt(engine, SLOT, &chain, tokens, first);
    }
    while (status == SOV_OK && done < n_tokens) {
        u32 n = chunk(engine, done, first, n_tokens);
        u32 n_logits = done + n - MIN(MAX(first, done), done + n);
        const f32 *logits = NULL;
        u32 logit_stride = 0;
        status = forward(engine, tokens, done, n, n_logits, &logits, &logit_stride, fault);
        for (u32 i = 0; status == SOV_OK && i < n_logits; i++) {
            status = row(context, done + n - n_logits + i, logits + (u64)i * logit_stride,
                         engine->model->params.n_vocab, fault);
        }
        done += n;
    }
    chain = engine->root;
    engine_publish(engine, SLOT, &chain, tokens);
    struct sov_fault ignored = {0};
    enum sov_status released = kv_release(&engine->kv, SLOT, &ignored);
    assert(released == SOV_OK);
    return status;
}
