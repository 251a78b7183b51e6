// SPDX-License-Identifier: Apache-2.0
// What a sequence is, in bytes: the origin of its events, the chain of keys of its blocks, its
// checkpoints. All integers are little-endian; a tag comes first.
//
// origin      = SHA-256("sov-sequence-1" model profile n tokens[n] sampling biases), of a sealed
//               sequence sealed_origin of that
// key of 0    = SHA-256("sov-prefix-1" model profile)
// next key    = SHA-256("sov-block-1" key tokens[16])
// checkpoint  = record/payload.h, of a sealed sequence its opening (record/sealed.h)
//
// Q1. Two blocks with the same parent key and the same tokens hold the same bits: K and V of a
//     position are a function of model, profile and the tokens up to it.
// Q2. K and V are hashed once, in order, when they are committed or soon afterwards, at the latest
//     before they leave the cache (so swaps and what is computed again do not matter): up to the
//     last token but one, whose K and V are there; of a prepared boundary up to its token.
#include "engine/engine_private.h"
#include "freestanding/mem.h"
#include "record/sealed.h"

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
    struct str profile = str_from_z(engine->profile);
    put_u32(h, (u32)profile.len);
    sha256_update(h, profile);
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
    struct sha256_digest origin = sha256_end(&h);
    return request->is_sealed ? sealed_origin(&request->salt, &origin) : origin;
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

// --- K and V of a checkpoint ---

static bool is_in_cache(const struct engine *engine, const struct sequence *q, u32 end) {
    u32 slot = (u32)(q - engine->sequences);
    return !engine->kv.spilled[slot] && kv_length(&engine->kv, slot) >= end;
}

// K and V of n positions of two layers, in place. False: they are not in this memory.
static bool hash_rows(struct engine *engine, struct sequence *q, u32 layer, u32 n) {
    u32 slot = (u32)(q - engine->sequences), row_bytes = kv_row_bytes(&engine->kv) / 2;
    struct sha256 *a = &q->kv_hashes[layer], *b = &q->kv_hashes[layer + 1];
    for (u32 position = q->kv_hashed; position < q->kv_hashed + n; position++) {
        const u8 *k[2], *v[2];
        for (u32 i = 0; i < 2; i++) {
            if (!kv_rows(&engine->kv, slot, layer + i, position, &k[i], &v[i])) return false;
        }
        sha256_update_pair(a, b, k[0], k[1], row_bytes);
        sha256_update_pair(a, b, v[0], v[1], row_bytes);
    }
    return true;
}

// K and V of n positions of all layers, two layers at a time. False: they could not be read.
static bool hash_positions(struct engine *engine, struct sequence *q, u32 n) {
    u32 slot = (u32)(q - engine->sequences), n_layer = engine->model->params.n_layer;
    usize bytes = (usize)n * kv_row_bytes(&engine->kv);
    for (u32 layer = 0; layer < n_layer; layer += 2) {
        u32 n_here = MIN(n_layer - layer, 2u);
        u8 *rows = engine->kv_rows;
        if (n_here == 2 && hash_rows(engine, q, layer, n)) continue;
        for (u32 i = 0; i < n_here; i++) {
            enum sov_status status =
                kv_read(&engine->kv, slot, layer + i, q->kv_hashed, n, rows + i * bytes, NULL);
            if (status != SOV_OK) return false;
        }
        struct sha256 *hashes = &q->kv_hashes[layer];
        if (n_here == 2) {
            sha256_update_pair(&hashes[0], &hashes[1], rows, rows + bytes, bytes);
        } else {
            sha256_update(&hashes[0], (struct str){rows, bytes});
        }
    }
    return true;
}

// After a failure to read, hashing begins anew; the checkpoint finds out what is missing.
void sequence_hash_kv(struct engine *engine, struct sequence *q, u32 end) {
    u32 slot = (u32)(q - engine->sequences);
    if (q->request.kv_form == PAYLOAD_KV_TOKENS || engine->kv.spilled[slot]) return;
    end = MIN(end, kv_length(&engine->kv, slot));
    while (q->kv_hashed < end) {
        u32 n = MIN(end - q->kv_hashed, (u32)KV_READ_POSITIONS);
        if (!hash_positions(engine, q, n)) {
            sequence_begin_kv(engine, q, q->kv_begin);
            return;
        }
        q->kv_hashed += n;
    }
}

void sequence_begin_kv(struct engine *engine, struct sequence *q, u32 begin) {
    q->kv_begin = q->kv_hashed = begin;
    for (u32 layer = 0; layer < engine->model->params.n_layer; layer++) {
        sha256_begin(&q->kv_hashes[layer]);
    }
}

bool sequence_has_kv(const struct engine *engine, const struct sequence *q) {
    switch (q->request.kv_form) {
    case PAYLOAD_KV_TOKENS: return true;
    case PAYLOAD_KV_DIGEST:
        return q->kv_hashed == q->n_committed || is_in_cache(engine, q, q->n_committed);
    default: return is_in_cache(engine, q, q->n_committed);
    }
}

// --- checkpoints ---

static_assert((u32)CHECKPOINT_BOUNDARY == (u32)PAYLOAD_BOUNDARY &&
                  (u32)CHECKPOINT_SUSPEND == (u32)PAYLOAD_SUSPEND &&
                  (u32)CHECKPOINT_FINISH == (u32)PAYLOAD_FINISH,
              "the store's kinds are those of payloads");
static_assert(PAYLOAD_FINISH_LAST == FINISH_FAILED, "payloads know every reason");

u64 checkpoint_bytes_max(const struct model *model, const struct engine_config *config) {
    const struct model_params *p = &model->params;
    u64 row_bytes = 2ull * p->n_head_kv * p->head_dim * sizeof(f16);
    return SEALED_OPENING_HEAD_BYTES + CHECKPOINT_HEAD_BYTES + (u64)config->context * sizeof(u32) +
           (u64)p->n_layer * SHA256_BYTES +
           (config->kv_full ? config->context * row_bytes * p->n_layer : 0);
}

// Where a payload is written, and how many bytes stand in front of it: an opening's head.
static u8 *begin_bytes(struct engine *engine, const struct engine_request *request, usize *n_head) {
    *n_head = request->is_sealed ? SEALED_OPENING_HEAD_BYTES : 0;
    if (request->is_sealed) sealed_opening_head(&request->salt, engine->bytes);
    return engine->bytes + *n_head;
}

// Writes a payload whose kv_bytes, if it has any, are read to where they belong.
static enum sov_status write_checkpoint(struct engine *engine, const struct sequence *q,
                                        struct payload_checkpoint *c, struct str *bytes,
                                        struct sov_fault *fault) {
    u64 total = payload_checkpoint_bytes(c);
    usize n_head = 0;
    u8 *out = begin_bytes(engine, &q->request, &n_head), *at = out + total - c->kv_bytes.len;
    assert(n_head + total <= engine->bytes_max);
    if (c->kv_bytes.len > 0) {
        c->kv_bytes.data = at;
        u32 slot = (u32)(q - engine->sequences), n = c->kv_end - c->kv_begin;
        for (u32 layer = 0; layer < c->n_layer; layer++, at += (usize)n * c->row_bytes) {
            enum sov_status status = kv_read(&engine->kv, slot, layer, c->kv_begin, n, at, fault);
            if (status != SOV_OK) return status;
        }
    }
    payload_checkpoint_write(c, out);
    *bytes = (struct str){engine->bytes, n_head + (usize)total};
    return SOV_OK;
}

// Sampling needs no state beside the tokens: a draw is a function of seed, position and history.
enum sov_status sequence_checkpoint(struct engine *engine, struct sequence *q,
                                    const struct checkpoint_id *id, enum finish_reason reason,
                                    struct str *bytes, struct sov_fault *fault) {
    u32 n_prompt = engine->scheduler.sequences[q - engine->sequences].n_prompt;
    u32 n_layer = engine->model->params.n_layer, end = q->kv_begin;
    bool is_full = q->request.kv_form == PAYLOAD_KV_FULL && id->kind == CHECKPOINT_BOUNDARY;
    // The range is empty where nothing was generated, and of a suspension.
    bool has_range = id->n_tokens > n_prompt && id->kind != CHECKPOINT_SUSPEND;
    bool has_kv = q->request.kv_form != PAYLOAD_KV_TOKENS && has_range;
    bool is_beginning = id->n_tokens == n_prompt && id->kind != CHECKPOINT_FINISH;
    if (has_range) end = id->n_tokens - 1;
    if (has_kv) {
        sequence_hash_kv(engine, q, end);
        // A cancel may come at a prepared boundary, or while all is computed again. Where a
        // sequence ends by itself, all is there.
        bool is_own_end = reason == FINISH_STOP || reason == FINISH_LENGTH;
        if (id->kind == CHECKPOINT_FINISH && !is_own_end) end = q->kv_hashed;
        assert(q->kv_hashed <= end);
        if (q->kv_hashed < end) {
            return fault_set(fault, SOV_ERR_IO, "K and V of position %u could not be read",
                             q->kv_hashed);
        }
    }
    struct payload_checkpoint c = {
        .sequence_id = id->sequence_id,
        .kind = (enum payload_checkpoint_kind)id->kind,
        .finish = reason,
        .kv_form = q->request.kv_form,
        .n_prompt = n_prompt,
        .tokens = token_bytes(q->tokens, id->n_tokens),
        .origin = q->origin,
        // Where nothing is generated, whether it was admitted already leaves no trace.
        .event_number = is_beginning ? 0 : q->events.next_number,
        .event_digest = is_beginning ? q->origin : q->events.digest,
        .kv_begin = q->kv_begin,
        .kv_end = end,
    };
    if (has_kv && end > q->kv_begin) {
        for (u32 layer = 0; layer < n_layer; layer++) {
            struct sha256 so_far = q->kv_hashes[layer];
            engine->kv_digests[layer] = sha256_end(&so_far);
        }
        c.n_layer = n_layer;
        c.row_bytes = kv_row_bytes(&engine->kv);
        c.kv_digests = (struct str){engine->kv_digests[0].bytes, (usize)n_layer * SHA256_BYTES};
        if (is_full) c.kv_bytes.len = (usize)n_layer * (end - q->kv_begin) * c.row_bytes;
    }
    return write_checkpoint(engine, q, &c, bytes, fault);
}

struct str sequence_first_checkpoint(struct engine *engine, const struct engine_request *request,
                                     const struct sha256_digest *origin) {
    struct payload_checkpoint c = {
        .sequence_id = request->id,
        .kind = PAYLOAD_BOUNDARY,
        .kv_form = request->kv_form,
        .n_prompt = request->n_tokens,
        .tokens = token_bytes(request->tokens, request->n_tokens),
        .origin = *origin,
        .event_digest = *origin,
    };
    u64 total = payload_checkpoint_bytes(&c);
    usize n_head = 0;
    u8 *out = begin_bytes(engine, request, &n_head);
    assert(n_head + total <= engine->bytes_max);
    payload_checkpoint_write(&c, out);
    return (struct str){engine->bytes, n_head + (usize)total};
}

// --- going on from one ---

enum sov_status sequence_check_history(const struct engine *engine,
                                       const struct engine_request *request,
                                       const struct sha256_digest *origin,
                                       struct sov_fault *fault) {
    const struct payload_checkpoint *h = request->history;
    u32 n_tokens = payload_count(h->tokens);
    const char *wrong = NULL;
    if (h->sequence_id != request->id) wrong = "sequence";
    if (h->kv_form != request->kv_form) wrong = "form of K and V";
    if (h->n_prompt != request->n_tokens ||
        memcmp(h->tokens.data, request->tokens, request->n_tokens * sizeof(u32)) != 0) {
        wrong = "prompt";
    }
    if (wrong == NULL && !sha256_equal(&h->origin, origin)) {
        wrong = "model, or of other parameters of sampling";
    }
    if (wrong != NULL) {
        return fault_set(fault, SOV_ERR_INTEGRITY,
                         "sequence %016llx: the checkpoint is of another %s", request->id, wrong);
    }
    if (h->kind == PAYLOAD_FINISH) {
        return fault_set(fault, SOV_ERR_STATE, "sequence %016llx has ended", request->id);
    }
    if (n_tokens > engine->config.context) {
        return fault_set(fault, SOV_ERR_LIMIT,
                         "sequence %016llx: the checkpoint has %u tokens, the context holds %u",
                         request->id, n_tokens, engine->config.context);
    }
    for (u32 i = h->n_prompt; i < n_tokens; i++) {
        if (payload_u32(h->tokens, i) < engine->model->params.n_vocab) continue;
        return fault_set(
            fault, SOV_ERR_INTEGRITY,
            "sequence %016llx: token %u of the checkpoint is %u, the vocabulary has %u",
            request->id, i, payload_u32(h->tokens, i), engine->model->params.n_vocab);
    }
    u32 n_generated = n_tokens - h->n_prompt;
    if (h->kind == PAYLOAD_BOUNDARY && n_generated % ENGINE_CHECKPOINT_TOKENS != 0) {
        return fault_set(fault, SOV_ERR_INTEGRITY,
                         "sequence %016llx: a checkpoint after %u generated tokens, which is no "
                         "multiple of %u",
                         request->id, n_generated, ENGINE_CHECKPOINT_TOKENS);
    }
    return SOV_OK;
}
