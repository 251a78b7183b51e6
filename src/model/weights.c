// SPDX-License-Identifier: Apache-2.0
// Names of a GGUF directory to shaped, typed views. Which tensors an architecture has is data: a
// row of arch_table, and its bit in the rows of layer_roles and outer_roles.
//
// The loader reads hyperparameters first, in an order in which each is checked against what is
// known already, then the tensors against the hyperparameters. Its status sticks: after the first
// failure every step returns at once, and the fault keeps the first message. weights.h lists what
// holds afterwards (W1 to W5).
#include "model/weights.h"
#include "freestanding/math.h"
#include "freestanding/mem.h"
#include "ops/op.h"
#include "platform/platform.h"

// math_sin and math_cos take angles up to 2^27, so a position below 2^20 may turn by at most this.
#define ROPE_FREQUENCY_MAX ((f64)(1u << 27) / MODEL_CONTEXT_MAX)
#define NAME_BYTES_MAX 96 // of a key or a tensor that we look for
#define PI 3.14159265358979323846

static_assert(MODEL_LAYERS_MAX * sizeof(struct layer_weights) < (1u << 20), "layers are small");
static_assert((u64)OP_HEADS_MAX * OP_HEAD_DIM_MAX <= MODEL_WIDTH_MAX, "W1: head rows fit u32");
static_assert(MODEL_EMBD_MAX <= OP_SCRATCH_BYTES / sizeof(f32), "rmsnorm keeps a row in scratch");

// --- architectures ---

// What a dimension of a tensor must be; each name says where the number comes from.
enum dim {
    DIM_ONE,
    DIM_EMBD,
    DIM_Q,
    DIM_KV,
    DIM_FF,
    DIM_VOCAB,
    DIM_ROPE_HALF,
    DIM_HEAD,
    DIM_COUNT
};
static const char *const dim_names[DIM_COUNT] = {
    [DIM_ONE] = "one row",
    [DIM_EMBD] = "embedding_length",
    [DIM_Q] = "attention.head_count * head size",
    [DIM_KV] = "attention.head_count_kv * head size",
    [DIM_FF] = "feed_forward_length",
    [DIM_VOCAB] = "tokens of the vocabulary",
    [DIM_ROPE_HALF] = "rope.dimension_count / 2",
    [DIM_HEAD] = "head size",
};

enum role_flags {
    ROLE_REQUIRED = 1,
    ROLE_VECTOR = 2,   // F32 and finite
    ROLE_POSITIVE = 4, // a vector with values above 0
};

// A tensor: its name (behind "blk.N." for those of a layer), the place of its view in struct
// layer_weights or struct model, its shape, and the architectures that have it.
struct tensor_role {
    const char *name;
    usize place;
    enum dim k, rows;
    u32 flags;
    u32 archs; // set of 1 << enum model_arch
};

// A key (behind the architecture's name) that asks for something this program does not have, unless
// its value is one of the two neutral ones. An array is neutral when all its elements are.
struct neutral_key {
    const char *name;
    f64 neutral, also_neutral;
};

struct arch_info {
    const char *name; // general.architecture, and the prefix of its keys
    bool rope_neox;
    bool scales_embedding; // by sqrt(n_embd)
    bool has_window;       // some layers are local: see read_window
};

#define NORM (ROLE_VECTOR | ROLE_REQUIRED)
#define IN_LAYER(member) offsetof(struct layer_weights, member)
#define IN_MODEL(member) offsetof(struct model, member)

#define LLAMA (1u << MODEL_LLAMA)
#define GEMMA3 (1u << MODEL_GEMMA3)
#define QWEN2 (1u << MODEL_QWEN2)
#define QWEN3 (1u << MODEL_QWEN3)
#define ALL ((1u << MODEL_ARCH_COUNT) - 1)

static const struct tensor_role layer_roles[] = {
    {"attn_norm.weight", IN_LAYER(attn_norm), DIM_EMBD, DIM_ONE, NORM, ALL},
    {"attn_q.weight", IN_LAYER(attn_q), DIM_EMBD, DIM_Q, ROLE_REQUIRED, ALL},
    {"attn_k.weight", IN_LAYER(attn_k), DIM_EMBD, DIM_KV, ROLE_REQUIRED, ALL},
    {"attn_v.weight", IN_LAYER(attn_v), DIM_EMBD, DIM_KV, ROLE_REQUIRED, ALL},
    {"attn_q.bias", IN_LAYER(attn_q_bias), DIM_Q, DIM_ONE, ROLE_VECTOR, LLAMA | QWEN2},
    {"attn_k.bias", IN_LAYER(attn_k_bias), DIM_KV, DIM_ONE, ROLE_VECTOR, LLAMA | QWEN2},
    {"attn_v.bias", IN_LAYER(attn_v_bias), DIM_KV, DIM_ONE, ROLE_VECTOR, LLAMA | QWEN2},
    {"attn_q_norm.weight", IN_LAYER(attn_q_norm), DIM_HEAD, DIM_ONE, NORM, GEMMA3 | QWEN3},
    {"attn_k_norm.weight", IN_LAYER(attn_k_norm), DIM_HEAD, DIM_ONE, NORM, GEMMA3 | QWEN3},
    {"attn_output.weight", IN_LAYER(attn_output), DIM_Q, DIM_EMBD, ROLE_REQUIRED, ALL},
    {"attn_output.bias", IN_LAYER(attn_output_bias), DIM_EMBD, DIM_ONE, ROLE_VECTOR, LLAMA | QWEN2},
    {"post_attention_norm.weight", IN_LAYER(attn_post_norm), DIM_EMBD, DIM_ONE, NORM, GEMMA3},
    {"ffn_norm.weight", IN_LAYER(ffn_norm), DIM_EMBD, DIM_ONE, NORM, ALL},
    {"ffn_gate.weight", IN_LAYER(ffn_gate), DIM_EMBD, DIM_FF, ROLE_REQUIRED, ALL},
    {"ffn_up.weight", IN_LAYER(ffn_up), DIM_EMBD, DIM_FF, ROLE_REQUIRED, ALL},
    {"ffn_down.weight", IN_LAYER(ffn_down), DIM_FF, DIM_EMBD, ROLE_REQUIRED, ALL},
    {"post_ffw_norm.weight", IN_LAYER(ffn_post_norm), DIM_EMBD, DIM_ONE, NORM, GEMMA3},
};

static const struct tensor_role outer_roles[] = {
    {"token_embd.weight", IN_MODEL(token_embd), DIM_EMBD, DIM_VOCAB, ROLE_REQUIRED, ALL},
    {"output_norm.weight", IN_MODEL(output_norm), DIM_EMBD, DIM_ONE, NORM, ALL},
    {"output.weight", IN_MODEL(output), DIM_EMBD, DIM_VOCAB, 0, ALL},
    {"rope_freqs.weight", IN_MODEL(rope_freqs), DIM_ROPE_HALF, DIM_ONE, ROLE_VECTOR | ROLE_POSITIVE,
     LLAMA},
};

static const struct neutral_key neutral_keys[] = {
    {"expert_count", 0, 0},
    {"attention.causal", 1, 1},
    {"attention.clamp_kqv", 0, 0},
    {"attention.max_alibi_bias", 0, 0},
    {"attn_logit_softcapping", 0, 0},
    {"final_logit_softcapping", 0, 0},
    {"logit_scale", 1, 0},
    {"residual_scale", 1, 0},
    {"embedding_scale", 1, 0},
    {"use_parallel_residual", 0, 0},
    {"rope.scaling.attn_factor", 1, 0},
    {"rope.scaling.yarn_log_multiplier", 0, 0},
};
// Of architectures whose window is not read.
static const struct neutral_key no_window = {"attention.sliding_window", 0, 0};

static const struct arch_info arch_table[MODEL_ARCH_COUNT] = {
    [MODEL_LLAMA] = {.name = "llama"},
    [MODEL_GEMMA3] = {.name = "gemma3",
                      .rope_neox = true,
                      .scales_embedding = true,
                      .has_window = true},
    [MODEL_QWEN2] = {.name = "qwen2", .rope_neox = true},
    [MODEL_QWEN3] = {.name = "qwen3", .rope_neox = true},
};

// --- reading keys ---

struct loader {
    struct model *model;
    const struct gguf *gguf;
    const struct arch_info *arch;
    struct sov_fault *fault;
    enum sov_status status;    // sticks
    char name[NAME_BYTES_MAX]; // of the key or tensor at hand
    bool *used;                // [n_tensors] the tensor has a role
};

// "llama.SUFFIX", in memory of the loader until the next name.
static struct str key_name(struct loader *l, const char *suffix) {
    struct text t = TEXT_OVER_ARRAY(l->name);
    text_format(&t, "%s.%s", l->arch->name, suffix);
    assert(!t.truncated);
    return (struct str){(const u8 *)t.data, t.len};
}

// An integer in [min, max]. An absent one that is not required gives `otherwise`, unchecked.
static u32 get_u32(struct loader *l, const char *suffix, bool required, u32 otherwise, u32 min,
                   u32 max) {
    if (l->status != SOV_OK) return otherwise;
    struct str name = key_name(l, suffix);
    u32 value = otherwise;
    l->status = gguf_get_u32(l->gguf, name, required, &value, l->fault);
    const struct gguf_key *key = gguf_find_key(l->gguf, name);
    if (l->status != SOV_OK || key == NULL || (value >= min && value <= max)) return value;
    l->status = gguf_key_fault(key, l->fault, value > max ? SOV_ERR_UNSUPPORTED : SOV_ERR_FORMAT,
                               "its value is %u, %u to %u is expected", value, min, max);
    return otherwise;
}

// The same for a number that may be given for each layer, as an array: all must be equal.
static u32 get_layered_u32(struct loader *l, const char *suffix, bool required, u32 otherwise,
                           u32 min, u32 max) {
    if (l->status != SOV_OK) return otherwise;
    const struct gguf_key *key = gguf_find_key(l->gguf, key_name(l, suffix));
    if (key == NULL || key->type != GGUF_ARRAY) {
        return get_u32(l, suffix, required, otherwise, min, max);
    }
    u32 n_layer = l->model->params.n_layer;
    bool is_integer = key->element != GGUF_STRING && key->element != GGUF_BOOL &&
                      key->element != GGUF_F32 && key->element != GGUF_F64;
    if (!is_integer || key->count != n_layer) {
        l->status = gguf_key_fault(key, l->fault, SOV_ERR_FORMAT,
                                   "an array of %llu %s, an integer or an array of %u integers "
                                   "(one a layer) is expected",
                                   key->count, gguf_type_name(key->element), n_layer);
        return otherwise;
    }
    f64 first = 0;
    for (u32 i = 0; i < n_layer; i++) {
        f64 value = 0;
        bool is_number = gguf_element_f64(key, i, &value);
        assert(is_number);
        if (i == 0) first = value;
        if (value < min || value > max) {
            l->status = gguf_key_fault(key, l->fault, SOV_ERR_FORMAT,
                                       "layer %u has %g, %u to %u is expected", i, value, min, max);
            return otherwise;
        }
        if (value != first) {
            l->status = gguf_key_fault(key, l->fault, SOV_ERR_UNSUPPORTED,
                                       "layer %u has %g, layer 0 has %g; layers of different shape "
                                       "are not supported",
                                       i, value, first);
            return otherwise;
        }
    }
    return (u32)first;
}

// A number that is finite and above 0.
static f32 get_positive(struct loader *l, const char *suffix, bool required, f32 otherwise) {
    if (l->status != SOV_OK) return otherwise;
    struct str name = key_name(l, suffix);
    f32 value = otherwise;
    l->status = gguf_get_f32(l->gguf, name, required, &value, l->fault);
    const struct gguf_key *key = gguf_find_key(l->gguf, name);
    bool is_positive = value > 0 && value <= 0x1.fffffep127f; // false for NaN too
    if (l->status != SOV_OK || key == NULL || is_positive) return value;
    l->status = gguf_key_fault(key, l->fault, SOV_ERR_FORMAT,
                               "its value is %g (bits %08x), a finite number above 0 is expected",
                               (f64)value, f32_bits(value));
    return otherwise;
}

static void check_neutral_key(struct loader *l, const struct neutral_key *neutral) {
    if (l->status != SOV_OK) return;
    const struct gguf_key *key = gguf_find_key(l->gguf, key_name(l, neutral->name));
    for (u64 i = 0; key != NULL && i < key->count && l->status == SOV_OK; i++) {
        f64 value = 0;
        if (!gguf_element_f64(key, i, &value)) {
            l->status = gguf_key_fault(key, l->fault, SOV_ERR_FORMAT,
                                       "its type is string, a number is expected");
        } else if (!(value == neutral->neutral || value == neutral->also_neutral)) {
            l->status = gguf_key_fault(key, l->fault, SOV_ERR_UNSUPPORTED,
                                       "its value is %g; this program has %g only", value,
                                       neutral->neutral);
        }
    }
}

static void check_neutral_keys(struct loader *l) {
    for (u32 i = 0; i < COUNT_OF(neutral_keys); i++) check_neutral_key(l, &neutral_keys[i]);
    if (!l->arch->has_window) check_neutral_key(l, &no_window);
}

// --- hyperparameters ---

static void read_architecture(struct loader *l) {
    struct model_params *p = &l->model->params;
    struct str name = {0};
    l->status = gguf_get_string(l->gguf, STR("general.architecture"), true, &name, l->fault);
    if (l->status != SOV_OK) return;
    for (u32 i = 0; i < MODEL_ARCH_COUNT; i++) {
        if (!str_equal(name, str_from_z(arch_table[i].name))) continue;
        l->arch = &arch_table[i];
        p->arch = (enum model_arch)i;
    }
    if (l->arch == NULL) {
        char memory[128];
        struct text known = TEXT_OVER_ARRAY(memory);
        for (u32 i = 0; i < MODEL_ARCH_COUNT; i++) {
            text_format(&known, "%s%s", i > 0 ? ", " : "", arch_table[i].name);
        }
        l->status = gguf_key_fault(
            gguf_find_key(l->gguf, STR("general.architecture")), l->fault, SOV_ERR_UNSUPPORTED,
            "the architecture is \"%.*s\"; this program has: %s", STR_ARG(name), known.data);
        return;
    }
    p->arch_name = name;
    p->rope_neox = l->arch->rope_neox;
    l->status = gguf_get_string(l->gguf, STR("general.name"), false, &p->name, l->fault);
}

static void read_heads(struct loader *l) {
    struct model_params *p = &l->model->params;
    p->n_head = get_layered_u32(l, "attention.head_count", true, 0, 1, OP_HEADS_MAX);
    p->n_head_kv = get_layered_u32(l, "attention.head_count_kv", false, p->n_head, 1, OP_HEADS_MAX);
    u32 key_length = get_u32(l, "attention.key_length", false, 0, 1, OP_HEAD_DIM_MAX);
    if (l->status != SOV_OK) return;
    assert(p->n_head != 0 && p->n_head_kv != 0);
    if (p->n_head % p->n_head_kv != 0) {
        l->status = fault_set(l->fault, SOV_ERR_FORMAT,
                              "%s.attention.head_count is %u, not a multiple of "
                              "attention.head_count_kv, which is %u",
                              l->arch->name, p->n_head, p->n_head_kv);
        return;
    }
    if (key_length == 0 && p->n_embd % p->n_head != 0) {
        l->status = fault_set(l->fault, SOV_ERR_FORMAT,
                              "%s.attention.head_count is %u, which does not divide "
                              "embedding_length, which is %u (and there is no "
                              "attention.key_length)",
                              l->arch->name, p->n_head, p->n_embd);
        return;
    }
    p->head_dim = key_length != 0 ? key_length : p->n_embd / p->n_head;
    if (p->head_dim > OP_HEAD_DIM_MAX || p->head_dim % 2 != 0) {
        l->status = fault_set(l->fault, SOV_ERR_UNSUPPORTED,
                              "%s: heads of %u elements (attention.key_length, or embedding_length "
                              "/ attention.head_count); an even number up to %u is expected",
                              l->arch->name, p->head_dim, OP_HEAD_DIM_MAX);
        return;
    }
    u32 value_length = get_u32(l, "attention.value_length", false, p->head_dim, 1, OP_HEAD_DIM_MAX);
    if (l->status == SOV_OK && value_length != p->head_dim) {
        l->status = fault_set(l->fault, SOV_ERR_UNSUPPORTED,
                              "%s.attention.value_length is %u, keys have %u; values as long as "
                              "keys are expected",
                              l->arch->name, value_length, p->head_dim);
    }
}

// The vocabulary's size is that of its list of tokens; vocab_size, when there, must agree.
static void read_vocabulary_size(struct loader *l) {
    if (l->status != SOV_OK) return;
    const struct gguf_key *tokens = NULL;
    l->status =
        gguf_get_array(l->gguf, STR("tokenizer.ggml.tokens"), GGUF_STRING, true, &tokens, l->fault);
    if (l->status != SOV_OK) return;
    if (tokens->count == 0 || tokens->count > MODEL_VOCAB_MAX) {
        l->status = gguf_key_fault(
            tokens, l->fault, tokens->count == 0 ? SOV_ERR_FORMAT : SOV_ERR_UNSUPPORTED,
            "it has %llu tokens, 1 to %u are expected", tokens->count, MODEL_VOCAB_MAX);
        return;
    }
    u32 n_vocab = (u32)tokens->count;
    u32 vocab_size = get_u32(l, "vocab_size", false, n_vocab, 1, MODEL_VOCAB_MAX);
    if (l->status == SOV_OK && vocab_size != n_vocab) {
        l->status = fault_set(l->fault, SOV_ERR_FORMAT,
                              "%s.vocab_size is %u, tokenizer.ggml.tokens has %u tokens",
                              l->arch->name, vocab_size, n_vocab);
    }
    l->model->params.n_vocab = n_vocab;
}

// Sets rope_* of the parameters. *llama3: divisors are to be computed if no tensor gives them.
static void read_rope(struct loader *l, bool *llama3) {
    struct model_params *p = &l->model->params;
    p->rope_dim = get_u32(l, "rope.dimension_count", false, p->head_dim, 2, p->head_dim);
    p->rope_freq_base = get_positive(l, "rope.freq_base", false, 10000);
    p->rope_scaling = ROPE_SCALING_NONE;
    p->rope_scaling_factor = 1;
    if (l->status != SOV_OK) return;
    if (p->rope_dim % 2 != 0) {
        l->status = fault_set(l->fault, SOV_ERR_FORMAT,
                              "%s.rope.dimension_count is %u, an even number is expected",
                              l->arch->name, p->rope_dim);
        return;
    }
    struct str type = {0}; // absent: linear when there is a factor
    l->status = gguf_get_string(l->gguf, key_name(l, "rope.scaling.type"), false, &type, l->fault);
    if (l->status != SOV_OK) return;
    *llama3 = str_equal(type, STR("llama3"));
    if (str_equal(type, STR("none")) || *llama3) return;
    if (type.len != 0 && !str_equal(type, STR("linear"))) {
        l->status = gguf_key_fault(
            gguf_find_key(l->gguf, key_name(l, "rope.scaling.type")), l->fault, SOV_ERR_UNSUPPORTED,
            "rope scaling \"%.*s\"; this program has: none, linear, llama3", STR_ARG(type));
        return;
    }
    // scale_linear is the name that the first files used; the new one counts when both are there.
    f32 legacy = get_positive(l, "rope.scale_linear", false, 1);
    p->rope_scaling_factor = get_positive(l, "rope.scaling.factor", false, legacy);
    if (type.len != 0 || p->rope_scaling_factor != 1) p->rope_scaling = ROPE_SCALING_LINEAR;
}

#define GEMMA3_PATTERN 6 // the last of every six layers sees everything
#define GEMMA3_LOCAL_BASE 10000
#define GEMMA3_27B_LAYERS 62

static void read_window(struct loader *l) {
    struct model_params *p = &l->model->params;
    p->rope_freq_base_local = p->rope_freq_base;
    if (!l->arch->has_window) return;
    p->window = get_u32(l, "attention.sliding_window", false, 0, 0, 0xffffffff);
    p->rope_freq_base_local = get_positive(l, "rope.freq_base_swa", false, GEMMA3_LOCAL_BASE);
}

// A layer is local unless it is the last of a group of `pattern`; a file may give the pattern as a
// number, or layer by layer as booleans.
static void read_local_layers(struct loader *l) {
    struct model *model = l->model;
    if (model->params.window == 0 || l->status != SOV_OK) return;
    struct str name = key_name(l, "attention.sliding_window_pattern");
    const struct gguf_key *key = gguf_find_key(l->gguf, name);
    if (key != NULL && key->type == GGUF_ARRAY) {
        l->status = gguf_get_array(l->gguf, name, GGUF_BOOL, true, &key, l->fault);
        if (l->status == SOV_OK && key->count != model->params.n_layer) {
            l->status = gguf_key_fault(key, l->fault, SOV_ERR_FORMAT,
                                       "it has %llu elements for %u layers", key->count,
                                       model->params.n_layer);
        }
        for (u32 i = 0; i < model->params.n_layer && l->status == SOV_OK; i++) {
            model->layers[i].is_local = key->value[i] != 0;
        }
        return;
    }
    u32 pattern =
        get_u32(l, "attention.sliding_window_pattern", false, GEMMA3_PATTERN, 1, MODEL_LAYERS_MAX);
    for (u32 i = 0; i < model->params.n_layer && l->status == SOV_OK; i++) {
        model->layers[i].is_local = i % pattern < pattern - 1;
    }
}

// 1/sqrt(head_dim); Gemma 3 27B alone was trained with 1/sqrt(n_embd / n_head), and its files do
// not say so.
static f32 default_attention_scale(const struct model_params *p) {
    bool is_27b = p->arch == MODEL_GEMMA3 && p->n_layer == GEMMA3_27B_LAYERS;
    u32 width = is_27b ? p->n_embd / p->n_head : p->head_dim;
    return (f32)(1 / math_sqrt((f64)width));
}

static void read_params(struct loader *l, bool *llama3) {
    struct model_params *p = &l->model->params;
    p->n_layer = get_u32(l, "block_count", true, 0, 1, MODEL_LAYERS_MAX);
    p->n_embd = get_u32(l, "embedding_length", true, 0, 1, MODEL_EMBD_MAX);
    p->n_ff = get_layered_u32(l, "feed_forward_length", true, 0, 1, MODEL_WIDTH_MAX);
    read_heads(l);
    read_vocabulary_size(l);
    read_rope(l, llama3);
    p->context_train = get_u32(l, "context_length", true, 0, 1, 0xffffffff);
    p->rms_eps = get_positive(l, "attention.layer_norm_rms_epsilon", true, 0);
    read_window(l);
    if (l->status != SOV_OK) return;
    p->attention_scale = get_positive(l, "attention.scale", false, default_attention_scale(p));
    p->embed_scale = l->arch->scales_embedding ? (f32)math_sqrt((f64)p->n_embd) : 1;
    check_neutral_keys(l);
}

// --- tensors ---

static u32 dim_value(const struct model_params *p, enum dim dim) {
    switch (dim) {
    case DIM_EMBD: return p->n_embd;
    case DIM_Q: return p->n_head * p->head_dim;
    case DIM_KV: return p->n_head_kv * p->head_dim;
    case DIM_FF: return p->n_ff;
    case DIM_VOCAB: return p->n_vocab;
    case DIM_ROPE_HALF: return p->rope_dim / 2;
    case DIM_HEAD: return p->head_dim;
    default: return 1;
    }
}

// A vector's type and values. Its shape was checked.
static void check_vector(struct loader *l, const struct gguf_tensor *tensor, u32 flags) {
    if (tensor->type != DTYPE_F32) {
        l->status = gguf_tensor_fault(tensor, l->fault, SOV_ERR_UNSUPPORTED,
                                      "its type is %s, F32 is expected", dtype_name(tensor->type));
        return;
    }
    for (u64 i = 0; i < tensor->dims[0]; i++) {
        f32 value = load_f32(tensor->data + i * 4);
        bool is_finite = (f32_bits(value) & 0x7fffffff) < 0x7f800000;
        if (is_finite && ((flags & ROLE_POSITIVE) == 0 || value > 0)) continue;
        l->status = gguf_tensor_fault(tensor, l->fault, SOV_ERR_FORMAT,
                                      "value %llu at byte %llu has the bits %08x; a finite "
                                      "number%s is expected",
                                      i, tensor->data_offset + i * 4, f32_bits(value),
                                      (flags & ROLE_POSITIVE) != 0 ? " above 0" : "");
        return;
    }
}

static bool has_shape(const struct gguf_tensor *tensor, u32 k, u32 rows) {
    return tensor->dims[0] == k && tensor->dims[1] == rows && tensor->dims[2] == 1 &&
           tensor->dims[3] == 1;
}

// Fills `weight` from the tensor whose name stands in l->name.
static void bind_tensor(struct loader *l, const struct tensor_role *role, struct weight *weight) {
    if (l->status != SOV_OK) return;
    struct str name = str_from_z(l->name);
    const struct gguf_tensor *tensor = gguf_find_tensor(l->gguf, name);
    if (tensor == NULL) {
        if ((role->flags & ROLE_REQUIRED) == 0) return;
        l->status = fault_set(l->fault, SOV_ERR_FORMAT, "tensor %.*s is missing", STR_ARG(name));
        return;
    }
    u32 k = dim_value(&l->model->params, role->k), rows = dim_value(&l->model->params, role->rows);
    if (!has_shape(tensor, k, rows)) {
        char memory[128];
        struct text shape = TEXT_OVER_ARRAY(memory);
        for (u32 i = 0; i < tensor->n_dims; i++) {
            text_format(&shape, "%s%llu", i > 0 ? " x " : "", tensor->dims[i]);
        }
        l->status = gguf_tensor_fault(tensor, l->fault, SOV_ERR_FORMAT,
                                      "its shape is %s; %u (%s) x %u (%s) is expected", shape.data,
                                      k, dim_names[role->k], rows, dim_names[role->rows]);
        return;
    }
    if ((role->flags & ROLE_VECTOR) != 0) check_vector(l, tensor, role->flags);
    l->used[tensor - l->gguf->tensors] = true;
    *weight = (struct weight){
        .data = tensor->data,
        .type = tensor->type,
        .rows = rows,
        .k = k,
        .row_bytes = tensor->row_bytes,
        .name = tensor->name,
    };
}

static void bind_tensors(struct loader *l) {
    struct model *model = l->model;
    u32 arch = 1u << model->params.arch;
    for (u32 i = 0; i < COUNT_OF(outer_roles); i++) {
        const struct tensor_role *role = &outer_roles[i];
        if ((role->archs & arch) == 0) continue;
        struct text t = TEXT_OVER_ARRAY(l->name);
        text_format(&t, "%s", role->name);
        assert(!t.truncated);
        bind_tensor(l, role, (struct weight *)(void *)((u8 *)model + role->place));
    }
    for (u32 layer = 0; layer < model->params.n_layer; layer++) {
        for (u32 i = 0; i < COUNT_OF(layer_roles) && l->status == SOV_OK; i++) {
            const struct tensor_role *role = &layer_roles[i];
            if ((role->archs & arch) == 0) continue;
            struct text t = TEXT_OVER_ARRAY(l->name);
            text_format(&t, "blk.%u.%s", layer, role->name);
            assert(!t.truncated);
            bind_tensor(l, role,
                        (struct weight *)(void *)((u8 *)&model->layers[layer] + role->place));
        }
    }
    if (l->status != SOV_OK) return;
    if (model->output.data == NULL) model->output = model->token_embd;
    // A tensor without a role is a part of the model that would be left out of the computation.
    for (u32 i = 0; i < l->gguf->n_tensors; i++) {
        if (l->used[i]) continue;
        l->status = gguf_tensor_fault(&l->gguf->tensors[i], l->fault, SOV_ERR_UNSUPPORTED,
                                      "architecture %s with %u layers has no use for it",
                                      l->arch->name, model->params.n_layer);
        return;
    }
}

// --- rope ---

// The frequency of pair i before scaling.
static f64 rope_frequency(const struct model_params *p, bool local, u32 i) {
    f32 base = local ? p->rope_freq_base_local : p->rope_freq_base;
    return math_pow((f64)base, -2.0 * i / p->rope_dim);
}

static f64 rope_divisor(const struct model *model, u32 i) {
    const u8 *divisors = model->rope_freqs.data;
    return divisors == NULL ? 1 : (f64)load_f32(divisors + (usize)i * 4);
}

// The divisors of Llama 3.1: with w = 2 pi / frequency the wavelength of a pair in positions, and C
// the context the model was first trained for,
//   w < C / high_freq_factor             1 (short waves stay)
//   w > C / low_freq_factor              factor (long waves are stretched)
//   else, s = (C / w - low) / (high - low):  1 / ((1 - s) / factor + s)
static void compute_llama3_divisors(struct loader *l, f32 *divisors) {
    struct model *model = l->model;
    const struct model_params *p = &model->params;
    f64 factor = (f64)get_positive(l, "rope.scaling.factor", true, 1);
    f64 low = (f64)get_positive(l, "rope.scaling.low_freq_factor", true, 1);
    f64 high = (f64)get_positive(l, "rope.scaling.high_freq_factor", true, 1);
    f64 context = get_u32(l, "rope.scaling.original_context_length", true, 1, 1, MODEL_CONTEXT_MAX);
    if (l->status == SOV_OK && high <= low) {
        l->status = fault_set(l->fault, SOV_ERR_FORMAT,
                              "%s.rope.scaling.high_freq_factor is %g, more than "
                              "low_freq_factor, which is %g, is expected",
                              l->arch->name, high, low);
    }
    if (l->status != SOV_OK) return;
    for (u32 i = 0; i < p->rope_dim / 2; i++) {
        f64 wavelength = 2 * PI / rope_frequency(p, false, i);
        f64 share = (context / wavelength - low) / (high - low);
        f64 divisor = wavelength < context / high  ? 1
                      : wavelength > context / low ? factor
                                                   : 1 / ((1 - share) / factor + share);
        divisors[i] = (f32)divisor;
    }
    model->rope_freqs = (struct weight){
        .data = (const u8 *)divisors,
        .type = DTYPE_F32,
        .rows = 1,
        .k = p->rope_dim / 2,
        .row_bytes = (u64)p->rope_dim / 2 * sizeof(f32),
        .name = STR("rope_freqs (computed)"),
    };
}

// W3: no angle beyond what the sine takes, whatever base, factor and divisors the file has.
static void check_rope_angles(struct loader *l) {
    const struct model_params *p = &l->model->params;
    for (u32 i = 0; i < p->rope_dim / 2 && l->status == SOV_OK; i++) {
        f64 frequency = rope_frequency(p, false, i) / (f64)p->rope_scaling_factor /
                        rope_divisor(l->model, i);
        f64 local = rope_frequency(p, true, i);
        if (!(frequency <= ROPE_FREQUENCY_MAX)) { // true for NaN
            l->status = fault_set(l->fault, SOV_ERR_FORMAT,
                                  "rope frequency %u is %g a position, at most %g is expected: "
                                  "%s.rope.freq_base %g, scaling factor %g, rope_freqs %g",
                                  i, frequency, ROPE_FREQUENCY_MAX, l->arch->name,
                                  (f64)p->rope_freq_base, (f64)p->rope_scaling_factor,
                                  rope_divisor(l->model, i));
        } else if (!(local <= ROPE_FREQUENCY_MAX)) {
            l->status = fault_set(l->fault, SOV_ERR_FORMAT,
                                  "rope frequency %u of local layers is %g a position, at most %g "
                                  "is expected: %s.rope.freq_base_swa %g",
                                  i, local, ROPE_FREQUENCY_MAX, l->arch->name,
                                  (f64)p->rope_freq_base_local);
        }
    }
}

void model_rope_table(const struct model *model, bool local, u32 n_positions, f32 *table) {
    const struct model_params *p = &model->params;
    assert(n_positions <= MODEL_CONTEXT_MAX);
    assert(p->rope_dim <= OP_HEAD_DIM_MAX);
    f64 frequencies[OP_HEAD_DIM_MAX / 2], divisors[OP_HEAD_DIM_MAX / 2];
    u32 n_pairs = p->rope_dim / 2;
    for (u32 i = 0; i < n_pairs; i++) {
        frequencies[i] = rope_frequency(p, local, i);
        divisors[i] = local ? 1 : rope_divisor(model, i);
    }
    for (u32 position = 0; position < n_positions; position++) {
        f64 scaled = local ? position : position / (f64)p->rope_scaling_factor;
        f32 *row = table + (usize)position * p->rope_dim;
        for (u32 i = 0; i < n_pairs; i++) {
            f64 angle = scaled * frequencies[i] / divisors[i];
            row[2 * i] = (f32)math_cos(angle);
            row[2 * i + 1] = (f32)math_sin(angle);
        }
    }
}

// --- opening and closing ---

// model->gguf is open; fills the rest.
static enum sov_status load(struct model *model, struct sov_fault *fault) {
    struct loader l = {.model = model, .gguf = &model->gguf, .fault = fault};
    bool llama3 = false;
    f32 *divisors = NULL;
    read_architecture(&l);
    if (l.status == SOV_OK) read_params(&l, &llama3);
    if (l.status != SOV_OK) return l.status;

    struct model_params *p = &model->params;
    u64 bytes = p->n_layer * sizeof(struct layer_weights) + p->rope_dim / 2 * sizeof(f32) +
                model->gguf.n_tensors * sizeof(bool);
    model->memory = platform_memory_map(bytes);
    if (model->memory == NULL) {
        return fault_set(fault, SOV_ERR_MEMORY, "no memory for the model's layers: %llu bytes",
                         bytes);
    }
    model->memory_bytes = bytes;
    struct arena arena = arena_over(model->memory, bytes); // zeroed
    model->layers = arena_array(&arena, struct layer_weights, p->n_layer);
    divisors = arena_array(&arena, f32, p->rope_dim / 2);
    l.used = arena_array(&arena, bool, model->gguf.n_tensors);
    assert(model->layers != NULL && divisors != NULL && l.used != NULL);

    bind_tensors(&l);
    read_local_layers(&l);
    if (l.status == SOV_OK && llama3 && model->rope_freqs.data == NULL) {
        compute_llama3_divisors(&l, divisors);
    }
    check_rope_angles(&l);
    return l.status;
}

static enum sov_status load_or_close(struct model *model, enum sov_status status,
                                     struct sov_fault *fault) {
    if (status == SOV_OK) status = load(model, fault);
    if (status != SOV_OK) model_close(model);
    return status;
}

enum sov_status model_open(struct model *model, const char *path, struct sov_fault *fault) {
    *model = (struct model){0};
    return load_or_close(model, gguf_open(&model->gguf, path, fault), fault);
}

enum sov_status model_parse(struct model *model, const u8 *data, u64 bytes,
                            struct sov_fault *fault) {
    *model = (struct model){0};
    return load_or_close(model, gguf_parse(&model->gguf, data, bytes, fault), fault);
}

void model_close(struct model *model) {
    if (model->memory != NULL) platform_memory_unmap(model->memory, model->memory_bytes);
    gguf_close(&model->gguf);
    *model = (struct model){0};
}
