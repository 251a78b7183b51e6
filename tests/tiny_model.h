// SPDX-License-Identifier: Apache-2.0
// A random model of any architecture in memory, a few thousand weights large, with a vocabulary of
// 44 letters and 4 special tokens: for tests of what runs above a model. Bytes stay writable, so
// that a test can damage a weight and mend it again.
#pragma once
#include "engine/vocabulary.h"
#include "gguf_builder.h"
#include "test.h"

enum {
    TINY_LAYERS = 3, TINY_EMBD = 32, TINY_FF = 64, TINY_HEADS = 4, TINY_HEADS_KV = 2,
    TINY_LONG_HEAD = 16, // of gemma3 and qwen3; TINY_EMBD / TINY_HEADS in the others
    TINY_LETTERS = 44, TINY_BOS = TINY_LETTERS, TINY_EOS, TINY_VOCAB = TINY_LETTERS + 4,
};
#define TINY_BYTES_MAX (1u << 19)
#define TINY_TENSORS_MAX 64

struct tiny_tensor {
    char name[48];
    enum dtype type;
    u32 k, rows; // rows 0: a vector
};

struct tiny {
    struct builder builder;
    struct tiny_tensor tensors[TINY_TENSORS_MAX];
    u32 n_tensors;
    struct model model;
    struct vocabulary vocabulary;
};

static inline const char *tiny_arch_name(enum model_arch arch) {
    static const char *const names[MODEL_ARCH_COUNT] = {
        [MODEL_LLAMA] = "llama", [MODEL_GEMMA3] = "gemma3", [MODEL_QWEN2] = "qwen2",
        [MODEL_QWEN3] = "qwen3"};
    return names[arch];
}

static inline void tiny_key_u32(struct builder *b, enum model_arch arch, const char *name,
                                u32 value) {
    char memory[96];
    struct text t = TEXT_OVER_ARRAY(memory);
    text_format(&t, "%s.%s", tiny_arch_name(arch), name);
    put_key_u32(b, str_from_z(t.data), value);
}

static inline void tiny_keys(struct builder *b, enum model_arch arch, u32 context) {
    put_key_str(b, STR("general.architecture"), str_from_z(tiny_arch_name(arch)));
    tiny_key_u32(b, arch, "block_count", TINY_LAYERS);
    tiny_key_u32(b, arch, "context_length", context);
    tiny_key_u32(b, arch, "embedding_length", TINY_EMBD);
    tiny_key_u32(b, arch, "feed_forward_length", TINY_FF);
    tiny_key_u32(b, arch, "attention.head_count", TINY_HEADS);
    tiny_key_u32(b, arch, "attention.head_count_kv", TINY_HEADS_KV);
    if (arch == MODEL_GEMMA3 || arch == MODEL_QWEN3) {
        tiny_key_u32(b, arch, "attention.key_length", TINY_LONG_HEAD);
    }
    if (arch == MODEL_GEMMA3) {
        tiny_key_u32(b, arch, "attention.sliding_window", 8);
        tiny_key_u32(b, arch, "attention.sliding_window_pattern", 2);
    }
    char memory[96];
    struct text t = TEXT_OVER_ARRAY(memory);
    text_format(&t, "%s.attention.layer_norm_rms_epsilon", tiny_arch_name(arch));
    put_key(b, str_from_z(t.data), GGUF_F32);
    put_u32(b, 0x3727c5ac); // 1e-5
}

static inline void tiny_vocabulary_keys(struct builder *b) {
    static const char *const specials[] = {"<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>"};
    put_key_str(b, STR("tokenizer.ggml.model"), STR("gpt2"));
    put_key_str(b, STR("tokenizer.ggml.pre"), STR("gpt-2"));
    put_key_array(b, STR("tokenizer.ggml.tokens"), GGUF_STRING, TINY_VOCAB);
    for (u8 i = 0; i < TINY_LETTERS; i++) {
        u8 letter = (u8)('0' + i);
        put_str(b, (struct str){&letter, 1});
    }
    for (u32 i = 0; i < COUNT_OF(specials); i++) put_str(b, str_from_z(specials[i]));
    put_key_array(b, STR("tokenizer.ggml.token_type"), GGUF_I32, TINY_VOCAB);
    for (u32 i = 0; i < TINY_VOCAB; i++) {
        put_u32(b, i < TINY_LETTERS ? TOKEN_NORMAL : TOKEN_CONTROL);
    }
    put_key_array(b, STR("tokenizer.ggml.merges"), GGUF_STRING, 0);
    put_key_u32(b, STR("tokenizer.ggml.bos_token_id"), TINY_BOS);
    put_key_u32(b, STR("tokenizer.ggml.eos_token_id"), TINY_EOS);
}

static inline void tiny_add(struct tiny *t, const char *prefix, const char *name, enum dtype type,
                            u32 k, u32 rows) {
    assert(t->n_tensors < TINY_TENSORS_MAX);
    struct tiny_tensor *tensor = &t->tensors[t->n_tensors++];
    struct text text = TEXT_OVER_ARRAY(tensor->name);
    text_format(&text, "%s%s", prefix, name);
    assert(!text.truncated);
    tensor->type = type;
    tensor->k = k;
    tensor->rows = rows;
    put_tensor(&t->builder, str_from_z(tensor->name), type, k, rows);
}

static inline void tiny_add_layer(struct tiny *t, enum model_arch arch, u32 layer) {
    char prefix[16];
    struct text text = TEXT_OVER_ARRAY(prefix);
    text_format(&text, "blk.%u.", layer);
    bool has_head_norms = arch == MODEL_GEMMA3 || arch == MODEL_QWEN3;
    u32 head = has_head_norms ? TINY_LONG_HEAD : TINY_EMBD / TINY_HEADS;
    u32 q = TINY_HEADS * head, kv = TINY_HEADS_KV * head;
    tiny_add(t, prefix, "attn_norm.weight", DTYPE_F32, TINY_EMBD, 0);
    tiny_add(t, prefix, "attn_q.weight", DTYPE_F32, TINY_EMBD, q);
    tiny_add(t, prefix, "attn_k.weight", DTYPE_F32, TINY_EMBD, kv);
    tiny_add(t, prefix, "attn_v.weight", DTYPE_F32, TINY_EMBD, kv);
    tiny_add(t, prefix, "attn_output.weight", DTYPE_Q8_0, q, TINY_EMBD);
    if (arch == MODEL_QWEN2) {
        tiny_add(t, prefix, "attn_q.bias", DTYPE_F32, q, 0);
        tiny_add(t, prefix, "attn_k.bias", DTYPE_F32, kv, 0);
        tiny_add(t, prefix, "attn_v.bias", DTYPE_F32, kv, 0);
    }
    if (has_head_norms) {
        tiny_add(t, prefix, "attn_q_norm.weight", DTYPE_F32, head, 0);
        tiny_add(t, prefix, "attn_k_norm.weight", DTYPE_F32, head, 0);
    }
    tiny_add(t, prefix, "ffn_norm.weight", DTYPE_F32, TINY_EMBD, 0);
    tiny_add(t, prefix, "ffn_gate.weight", DTYPE_Q8_0, TINY_EMBD, TINY_FF);
    tiny_add(t, prefix, "ffn_up.weight", DTYPE_Q8_0, TINY_EMBD, TINY_FF);
    tiny_add(t, prefix, "ffn_down.weight", DTYPE_F32, TINY_FF, TINY_EMBD);
    if (arch == MODEL_GEMMA3) {
        tiny_add(t, prefix, "post_attention_norm.weight", DTYPE_F32, TINY_EMBD, 0);
        tiny_add(t, prefix, "post_ffw_norm.weight", DTYPE_F32, TINY_EMBD, 0);
    }
}

// Uniform values whose rows have a norm of about `gain`; vectors near 1, or near 0 when biases.
static inline void tiny_data(struct tiny *t, const struct tiny_tensor *tensor, f32 gain,
                             struct test_random *random) {
    struct builder *b = &t->builder;
    usize begin = b->len;
    u32 rows = MAX(tensor->rows, 1u), name_len = (u32)str_from_z(tensor->name).len;
    u64 bytes = dtype_row_bytes(tensor->type, tensor->k) * rows;
    bool is_bias = tensor->rows == 0 && tensor->name[name_len - 1] == 's';
    f32 root = 1; // the square root of k, all of which are powers of two
    while (root * root < (f32)tensor->k) root *= 1.41421354f;
    put_zeros(b, (usize)round_up(bytes, 32));
    if (tensor->type == DTYPE_Q8_0) { // {f16 scale, 32 bytes}
        for (u64 at = 0; at < bytes; at += 34) {
            store_u16(b->data + begin + at, f32_to_f16(gain / root / 74));
            for (u32 i = 0; i < 32; i++) b->data[begin + at + 2 + i] = (u8)test_random_u64(random);
        }
        return;
    }
    for (u64 i = 0; i < bytes / 4; i++) {
        f32 unit = (f32)(2 * test_random_unit(random) - 1);
        f32 value = tensor->rows != 0 ? unit * 1.732f * gain / root
                    : is_bias         ? unit * 0.3f
                                      : 1 + unit * 0.2f;
        store_f32(b->data + begin + i * 4, value);
    }
}

// Zero-initialise `t` (it is large: static memory). Ends the case's program when it does not open,
// which would be a mistake of this file.
static inline void tiny_open(struct tiny *t, enum model_arch arch, u32 context, u64 seed) {
    struct test_random random = {seed};
    *t = (struct tiny){.builder = builder_new(TINY_BYTES_MAX)};
    builder_begin(&t->builder);
    // Descriptions come behind the keys in the file.
    tiny_keys(&t->builder, arch, context);
    tiny_vocabulary_keys(&t->builder);
    tiny_add(t, "", "token_embd.weight", DTYPE_F32, TINY_EMBD, TINY_VOCAB);
    tiny_add(t, "", "output_norm.weight", DTYPE_F32, TINY_EMBD, 0);
    tiny_add(t, "", "output.weight", DTYPE_F32, TINY_EMBD, TINY_VOCAB);
    for (u32 layer = 0; layer < TINY_LAYERS; layer++) tiny_add_layer(t, arch, layer);
    builder_end(&t->builder);
    for (u32 i = 0; i < t->n_tensors; i++) {
        bool is_output = str_equal(str_from_z(t->tensors[i].name), STR("output.weight"));
        tiny_data(t, &t->tensors[i], is_output ? 2 : 1, &random);
    }
    struct sov_fault fault = {0};
    enum sov_status status = model_parse(&t->model, t->builder.data, t->builder.len, &fault);
    if (status == SOV_OK) status = vocabulary_open(&t->vocabulary, &t->model.gguf, &fault);
    if (status != SOV_OK) test_note("%s", fault.message);
    assert(status == SOV_OK);
}

static inline void tiny_close(struct tiny *t) {
    vocabulary_close(&t->vocabulary);
    model_close(&t->model);
    builder_free(&t->builder);
}

// The bytes of a tensor, to be written to.
static inline u8 *tiny_bytes(struct tiny *t, const char *name) {
    const struct gguf_tensor *tensor = gguf_find_tensor(&t->model.gguf, str_from_z(name));
    assert(tensor != NULL);
    return t->builder.data + (tensor->data - t->builder.data);
}
