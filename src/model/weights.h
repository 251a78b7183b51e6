// SPDX-License-Identifier: Apache-2.0
// From a GGUF directory to a model: hyperparameters checked against each other, and every tensor an
// architecture needs as a shaped, typed view into the mapping. After model_open succeeded, nothing
// later has to doubt a shape or a number of `model_params`:
//
// W1. 1 <= n_layer <= MODEL_LAYERS_MAX; n_head and n_head_kv <= OP_HEADS_MAX, n_head a multiple of
//     n_head_kv; head_dim even, <= OP_HEAD_DIM_MAX; rope_dim even, 2 to head_dim; n_embd <=
//     MODEL_EMBD_MAX, n_ff <= MODEL_WIDTH_MAX; n_vocab <= MODEL_VOCAB_MAX. So every product of
//     two of them fits u64 with room, and n_head * head_dim and n_head_kv * head_dim fit u32.
// W2. Each weight has rows and k as its place asks for, in a type of dtype_table, k in whole
//     blocks; each matrix has its own type. Norms, biases and rope_freqs are F32 and finite; the
//     divisors of rope_freqs are above 0. (Values of matrices are not looked at: kernels catch what
//     is not finite.)
// W3. rms_eps, rope_freq_base, rope_scaling_factor and attention_scale are finite and above 0. No
//     angle of a position below MODEL_CONTEXT_MAX is beyond what math_sin and math_cos take.
// W4. The file has no tensor that the architecture does not use, and no key with a value that would
//     change the computation in a way this program does not have.
// W5. tokenizer.ggml.tokens is an array of n_vocab strings; the other tokenizer.* keys are not read
//     here (engine/vocabulary.c does).
#pragma once
#include "model/gguf.h"

#define MODEL_LAYERS_MAX 512
#define MODEL_CONTEXT_MAX (1u << 20) // largest context that can be asked for
#define MODEL_EMBD_MAX (1u << 19)    // n_embd: a norm keeps a row in a worker's scratch
#define MODEL_WIDTH_MAX (1u << 20)   // n_ff
#define MODEL_VOCAB_MAX (1u << 21)

enum model_arch { MODEL_LLAMA, MODEL_GEMMA3, MODEL_QWEN2, MODEL_QWEN3, MODEL_ARCH_COUNT };

// A weight as kernels take it. rows of k elements; data == NULL: the model has no such tensor.
struct weight {
    const u8 *data; // any alignment
    enum dtype type;
    u32 rows, k;
    u64 row_bytes;
    struct str name;
};

enum rope_scaling { ROPE_SCALING_NONE, ROPE_SCALING_LINEAR };

struct model_params {
    enum model_arch arch;
    struct str arch_name; // general.architecture, the prefix of its keys
    struct str name;      // general.name, may be empty
    u32 n_layer, n_embd, n_ff, n_head, n_head_kv, head_dim, n_vocab;
    u32 rope_dim;   // even, <= head_dim
    bool rope_neox; // split halves instead of adjacent pairs
    f32 rope_freq_base;
    f32 rope_freq_base_local; // of local layers, whose positions are not scaled
    u32 window; // of local layers: a key at this distance is invisible; 0: no local layers
    enum rope_scaling rope_scaling;
    f32 rope_scaling_factor; // linear: positions are divided by it; 1 when none
    u32 context_train;       // llama.context_length, at least 1
    f32 rms_eps;
    f32 attention_scale; // f32(1/sqrt(f64(head_dim))) unless the file says otherwise
    f32 embed_scale;     // 1, or f32(sqrt(n_embd))
};

struct layer_weights {
    bool is_local; // attention within the window, rope by the local table
    struct weight attn_norm, attn_q, attn_k, attn_v, attn_output;
    struct weight ffn_norm, ffn_gate, ffn_up, ffn_down;
    // F32, one row; may be absent.
    struct weight attn_q_norm, attn_k_norm;      // F32 [head_dim]; gemma3, qwen3
    struct weight attn_post_norm, ffn_post_norm; // F32; gemma3
    struct weight attn_q_bias, attn_k_bias, attn_v_bias, attn_output_bias;
};

struct model {
    struct gguf gguf;
    struct model_params params;
    struct weight token_embd, output_norm, output; // output is token_embd when the file has none
    // [rope_dim/2] F32 divisors of the frequencies, or absent. From the tensor rope_freqs.weight,
    // or computed when the file asks for llama3 scaling by keys alone.
    struct weight rope_freqs;
    struct layer_weights *layers; // [n_layer]
    // Private: memory of `layers` and of computed divisors.
    void *memory;
    u64 memory_bytes;
};

// Opens the file, checks it and fills `model`. On failure nothing stays mapped.
enum sov_status model_open(struct model *model, const char *path, struct sov_fault *fault)
    MUST_CHECK;
// The same for bytes of the caller (tests, fuzzing).
enum sov_status model_parse(struct model *model, const u8 *data, u64 bytes, struct sov_fault *fault)
    MUST_CHECK;
void model_close(struct model *model); // may be called on a zeroed struct, and twice

// The rope table of operator 7 for positions [0, n_positions): n_positions * rope_dim f32,
// {cos, sin} pairs; n_positions <= MODEL_CONTEXT_MAX. In f64,
// angle = position / scaling factor * base^(-2i/rope_dim) / rope_freqs[i].
// `local`: the table of local layers, which have no scaling and no divisors.
void model_rope_table(const struct model *model, bool local, u32 n_positions, f32 *table);
