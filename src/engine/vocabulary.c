// SPDX-License-Identifier: Apache-2.0
// tokenizer.* keys to a tokenizer_source, with the checks that need the file: types of keys,
// lengths of arrays. What the values mean is the tokenizer's business.
#include "engine/vocabulary.h"
#include "platform/platform.h"

static enum sov_status read_arrays(const struct gguf *gguf, struct tokenizer_source *source,
                                   struct sov_fault *fault) {
    const struct gguf_key *tokens, *scores, *types, *merges;
    enum sov_status status =
        gguf_get_array(gguf, STR("tokenizer.ggml.tokens"), GGUF_STRING, true, &tokens, fault);
    if (status != SOV_OK) return status;
    status = gguf_get_array(gguf, STR("tokenizer.ggml.scores"), GGUF_F32, false, &scores, fault);
    if (status != SOV_OK) return status;
    status = gguf_get_array(gguf, STR("tokenizer.ggml.token_type"), GGUF_I32, false, &types, fault);
    if (status != SOV_OK) return status;
    status = gguf_get_array(gguf, STR("tokenizer.ggml.merges"), GGUF_STRING, false, &merges, fault);
    if (status != SOV_OK) return status;
    if (tokens->count == 0 || tokens->count > TOKENIZER_VOCAB_MAX) {
        return fault_set(fault, SOV_ERR_FORMAT,
                         "tokenizer.ggml.tokens has %llu tokens, not 1 to %u", tokens->count,
                         TOKENIZER_VOCAB_MAX);
    }
    const struct gguf_key *per_token[] = {scores, types};
    for (u32 i = 0; i < COUNT_OF(per_token); i++) {
        if (per_token[i] == NULL || per_token[i]->count == tokens->count) continue;
        return fault_set(fault, SOV_ERR_FORMAT, "%.*s has %llu elements for %llu tokens",
                         STR_ARG(per_token[i]->name), per_token[i]->count, tokens->count);
    }
    if (merges != NULL && merges->count > 8ull * TOKENIZER_VOCAB_MAX) {
        return fault_set(fault, SOV_ERR_FORMAT, "tokenizer.ggml.merges has %llu merges, at most %u",
                         merges->count, 8 * TOKENIZER_VOCAB_MAX);
    }
    source->n_tokens = (u32)tokens->count;
    source->tokens = tokens->value;
    source->scores = scores != NULL ? scores->value : NULL;
    source->types = types != NULL ? types->value : NULL;
    source->n_merges = merges != NULL ? (u32)merges->count : 0;
    source->merges = merges != NULL ? merges->value : NULL;
    return SOV_OK;
}

static enum sov_status read_flag(const struct gguf *gguf, struct str name, bool *has, bool *value,
                                 struct sov_fault *fault) {
    *has = gguf_find_key(gguf, name) != NULL;
    return gguf_get_bool(gguf, name, false, value, fault);
}

static enum sov_status read_source(const struct gguf *gguf, struct tokenizer_source *s,
                                   struct sov_fault *fault) {
    *s = (struct tokenizer_source){
        .bos = TOKEN_ABSENT, .eos = TOKEN_ABSENT, .eot = TOKEN_ABSENT, .unknown = TOKEN_ABSENT};
    const struct {
        struct str name;
        u64 *id;
    } ids[] = {
        {STR("tokenizer.ggml.bos_token_id"), &s->bos},
        {STR("tokenizer.ggml.eos_token_id"), &s->eos},
        {STR("tokenizer.ggml.eot_token_id"), &s->eot},
        {STR("tokenizer.ggml.unknown_token_id"), &s->unknown},
    };
    enum sov_status status =
        gguf_get_string(gguf, STR("tokenizer.ggml.model"), true, &s->model, fault);
    if (status != SOV_OK) return status;
    status = gguf_get_string(gguf, STR("tokenizer.ggml.pre"), false, &s->pre, fault);
    if (status != SOV_OK) return status;
    status = read_arrays(gguf, s, fault);
    if (status != SOV_OK) return status;
    for (u32 i = 0; i < COUNT_OF(ids); i++) {
        u32 id = 0;
        if (gguf_find_key(gguf, ids[i].name) == NULL) continue;
        status = gguf_get_u32(gguf, ids[i].name, true, &id, fault);
        if (status != SOV_OK) return status;
        *ids[i].id = id;
    }
    status =
        read_flag(gguf, STR("tokenizer.ggml.add_bos_token"), &s->has_add_bos, &s->add_bos, fault);
    if (status != SOV_OK) return status;
    status =
        read_flag(gguf, STR("tokenizer.ggml.add_eos_token"), &s->has_add_eos, &s->add_eos, fault);
    if (status != SOV_OK) return status;
    return read_flag(gguf, STR("tokenizer.ggml.add_space_prefix"), &s->has_add_space_prefix,
                     &s->add_space_prefix, fault);
}

enum sov_status vocabulary_open(struct vocabulary *vocabulary, const struct gguf *gguf,
                                struct sov_fault *fault) {
    *vocabulary = (struct vocabulary){0};
    struct tokenizer_source source;
    enum sov_status status = read_source(gguf, &source, fault);
    if (status != SOV_OK) return status;
    status = gguf_get_string(gguf, STR("tokenizer.chat_template"), false,
                             &vocabulary->chat_template, fault);
    if (status != SOV_OK) return status;
    vocabulary->memory_bytes = tokenizer_memory_bytes(&source);
    vocabulary->memory = platform_memory_map(vocabulary->memory_bytes);
    if (vocabulary->memory == NULL) {
        return fault_set(fault, SOV_ERR_MEMORY, "tokenizer: %llu bytes are not to be had",
                         vocabulary->memory_bytes);
    }
    struct arena arena = arena_over(vocabulary->memory, vocabulary->memory_bytes);
    status = tokenizer_create(&source, &arena, &vocabulary->tokenizer, fault);
    if (status != SOV_OK) vocabulary_close(vocabulary);
    return status;
}

void vocabulary_close(struct vocabulary *vocabulary) {
    if (vocabulary->memory != NULL) {
        platform_memory_unmap(vocabulary->memory, vocabulary->memory_bytes);
    }
    *vocabulary = (struct vocabulary){0};
}

enum sov_status vocabulary_encode(const struct vocabulary *vocabulary, struct str text, u32 flags,
                                  struct token_list *list, struct sov_fault *fault) {
    *list = (struct token_list){0};
    if (text.len > TOKENIZER_TEXT_BYTES_MAX) {
        return fault_set(fault, SOV_ERR_LIMIT, "text of %llu bytes, at most %llu", (u64)text.len,
                         TOKENIZER_TEXT_BYTES_MAX);
    }
    usize capacity = text.len + 3; // no text has more tokens than bytes, plus BOS, EOS, dummy space
    u64 scratch_bytes = tokenizer_encode_scratch_bytes(vocabulary->tokenizer, text.len);
    u64 list_bytes = capacity * sizeof(u32);
    void *scratch_memory = platform_memory_map(scratch_bytes);
    void *list_memory = platform_memory_map(list_bytes);
    enum sov_status status = SOV_OK;
    if (scratch_memory == NULL || list_memory == NULL) {
        status = fault_set(fault, SOV_ERR_MEMORY,
                           "tokenizing %llu bytes: %llu bytes of memory are "
                           "not to be had",
                           (u64)text.len, scratch_bytes + list_bytes);
    } else {
        struct arena scratch = arena_over(scratch_memory, scratch_bytes);
        list->ids = list_memory;
        list->memory_bytes = list_bytes;
        status = tokenizer_encode(vocabulary->tokenizer, text, flags, &scratch, list->ids, capacity,
                                  &list->n, fault);
    }
    if (scratch_memory != NULL) platform_memory_unmap(scratch_memory, scratch_bytes);
    if (status != SOV_OK && list_memory != NULL) {
        platform_memory_unmap(list_memory, list_bytes);
        *list = (struct token_list){0};
    }
    return status;
}

void token_list_free(struct token_list *list) {
    if (list->ids != NULL) platform_memory_unmap(list->ids, list->memory_bytes);
    *list = (struct token_list){0};
}
