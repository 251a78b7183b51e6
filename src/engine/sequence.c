// SPDX-License-Identifier: Apache-2.0
// What a sequence is, in bytes: the origin of its events, the chain of keys of its blocks, its
// checkpoints. All integers are little-endian; a tag comes first.
//
// origin      = SHA-256("sov-sequence-1" model profile n tokens[n] sampling biases)
// key of 0    = SHA-256("sov-prefix-1" model profile)
// next key    = SHA-256("sov-block-1" key tokens[16])
//
// Q1. Two blocks with the same parent key and the same tokens hold the same bits: K and V of a
//     position are a function of model, profile and the tokens up to it.
#include "engine/engine_private.h"
#include "freestanding/mem.h"

#define PROFILE STR("exact")

static void put_u32(struct sha256 *h, u32 value) {
    u8 bytes[4];
    store_u32(bytes, value);
    sha256_update(h, (struct str){bytes, sizeof bytes});
}

// Little-endian is what memory has (types.h).
static struct str token_bytes(const u32 *tokens, u32 n) {
    return (struct str){(const u8 *)tokens, n * sizeof(u32)};
}

static void put_model(struct sha256 *h, const struct engine *engine) {
    sha256_update(h, (struct str){engine->config.model_digest.bytes, SHA256_BYTES});
    put_u32(h, (u32)PROFILE.len);
    sha256_update(h, PROFILE);
}

static void put_sampling(struct sha256 *h, const struct sample_params *p) {
    const f32 floats[] = {
        p->repeat_penalty, p->frequency_penalty, p->presence_penalty, p->temperature, p->top_p,
        p->min_p};
    for (u32 i = 0; i < COUNT_OF(floats); i++) put_u32(h, f32_bits(floats[i]));
    put_u32(h, (u32)p->penalty_window);
    put_u32(h, (u32)p->top_k);
    put_u32(h, (u32)p->seed);
    put_u32(h, (u32)(p->seed >> 32));
    put_u32(h, p->n_biases);
    for (u32 i = 0; i < p->n_biases; i++) {
        put_u32(h, p->biases[i].token);
        put_u32(h, f32_bits(p->biases[i].bias));
    }
}

struct sha256_digest sequence_origin(const struct engine *engine,
                                     const struct engine_request *request) {
    struct sha256 h;
    sha256_begin(&h);
    sha256_update(&h, STR("sov-sequence-1"));
    put_model(&h, engine);
    put_u32(&h, request->n_tokens);
    sha256_update(&h, token_bytes(request->tokens, request->n_tokens));
    put_sampling(&h, &request->sampling);
    return sha256_end(&h);
}

static struct kv_key key_of(struct sha256 *h) {
    struct sha256_digest digest = sha256_end(h);
    struct kv_key key = {0};
    static_assert(sizeof key == sizeof digest, "a key is a digest");
    memcpy(key.bytes, digest.bytes, sizeof key.bytes);
    return key;
}

void engine_root_key(struct engine *engine) {
    struct sha256 h;
    sha256_begin(&h);
    sha256_update(&h, STR("sov-prefix-1"));
    put_model(&h, engine);
    engine->root = key_of(&h);
}

static struct kv_key next_key(const struct kv_key *key, const u32 *tokens) {
    struct sha256 h;
    sha256_begin(&h);
    sha256_update(&h, STR("sov-block-1"));
    sha256_update(&h, (struct str){key->bytes, sizeof key->bytes});
    sha256_update(&h, token_bytes(tokens, SOV_KV_BLOCK_SIZE));
    return key_of(&h);
}

// --- shared prefixes ---

u32 engine_adopt(struct engine *engine, u32 slot, struct kv_key *chain, const u32 *tokens,
                 u32 limit) {
    u32 length = kv_length(&engine->kv, slot), begin = length, n = SOV_KV_BLOCK_SIZE;
    while (n == SOV_KV_BLOCK_SIZE && length < limit) {
        u32 block = 0;
        n = kv_find(&engine->kv, chain, tokens + length, MIN(limit - length, n), &block);
        if (n == 0) break;
        struct sov_fault fault = {0};
        enum sov_status status = kv_share(&engine->kv, slot, block, n, &fault);
        assert(status == SOV_OK);
        if (n == SOV_KV_BLOCK_SIZE) *chain = next_key(chain, tokens + length);
        length += n;
    }
    return length - begin;
}

void sequence_adopt(struct engine *engine, u32 slot) {
    struct sequence *q = &engine->sequences[slot];
    struct sched_sequence *s = &engine->scheduler.sequences[slot];
    u32 length = kv_length(&engine->kv, slot);
    if (length == 0) { // new, or dropped
        q->chain = engine->root;
        q->n_chained = 0;
    }
    bool at_border = s->n_computed == length && q->n_chained * SOV_KV_BLOCK_SIZE == length &&
                     engine->kv.n_owned[slot] * SOV_KV_BLOCK_SIZE == length;
    if (engine->config.no_prefix_sharing || !at_border) return;
    u32 limit = MIN(s->n_tokens - 1, q->n_committed); // the last token's logits are wanted
    u32 n = engine_adopt(engine, slot, &q->chain, q->tokens, limit);
    q->n_chained = (length + n) / SOV_KV_BLOCK_SIZE;
    s->n_computed += n;
    engine->statistics.n_shared_tokens += n;
    if (s->state == SEQUENCE_PREFILL) q->n_cached += n;
}

// Blocks from n_chained on, behind `chain`; whole ones, or all. Returns how many are chained then.
static u32 publish(struct engine *engine, u32 slot, struct kv_key *chain, u32 n_chained,
                   const u32 *tokens, bool all) {
    u32 length = kv_length(&engine->kv, slot);
    u32 begin = n_chained * SOV_KV_BLOCK_SIZE;
    for (; begin + SOV_KV_BLOCK_SIZE <= length; begin += SOV_KV_BLOCK_SIZE, n_chained++) {
        kv_publish(&engine->kv, slot, n_chained, chain, tokens + begin, SOV_KV_BLOCK_SIZE);
        *chain = next_key(chain, tokens + begin);
    }
    if (all && length > begin) {
        kv_publish(&engine->kv, slot, n_chained, chain, tokens + begin, length - begin);
    }
    return n_chained;
}

void engine_publish(struct engine *engine, u32 slot, struct kv_key *root, const u32 *tokens) {
    if (engine->config.no_prefix_sharing) return;
    publish(engine, slot, root, 0, tokens, true);
}

void sequence_publish(struct engine *engine, u32 slot, bool all) {
    struct sequence *q = &engine->sequences[slot];
    if (engine->config.no_prefix_sharing || engine->kv.spilled[slot]) return;
    q->n_chained = publish(engine, slot, &q->chain, q->n_chained, q->tokens, all);
}

// --- checkpoints ---

u64 checkpoint_bytes_max(const struct engine_config *config) {
    return CHECKPOINT_HEAD_BYTES + (u64)config->context * sizeof(u32);
}

// "sov-checkpoint-1", id, prompt length, seed, origin-bound event head, and the tokens. Sampling
// needs no other state: a draw is a function of seed, position and history.
struct str sequence_checkpoint(struct engine *engine, const struct sequence *q,
                               const struct checkpoint_id *id) {
    const struct str tag = STR("sov-checkpoint-1");
    u8 *at = engine->bytes;
    memcpy(at, tag.data, tag.len);
    at += tag.len;
    const u64 words[] = {id->sequence_id,
                         id->n_tokens,
                         id->kind,
                         engine->scheduler.sequences[q - engine->sequences].n_prompt,
                         q->request.sampling.seed,
                         q->events.next_number};
    for (u32 i = 0; i < COUNT_OF(words); i++, at += sizeof(u64)) store_u64(at, words[i]);
    memcpy(at, q->events.digest.bytes, SHA256_BYTES);
    at += SHA256_BYTES;
    static_assert(16 + sizeof words + SHA256_BYTES <= CHECKPOINT_HEAD_BYTES, "the head fits");
    struct str tokens = token_bytes(q->tokens, id->n_tokens);
    memcpy(at, tokens.data, tokens.len);
    at += tokens.len;
    assert((u64)(at - engine->bytes) <= engine->bytes_max);
    return (struct str){engine->bytes, (usize)(at - engine->bytes)};
}
