// SPDX-License-Identifier: Apache-2.0
// From a directory to a model: what a sound file gives, and that every number and shape which
// contradicts another one is refused with its name. A case is a list of edits to the small sound
// model of an architecture, which is written anew for each.
#include "freestanding/math.h"
#include "gguf_builder.h"
#include "model/weights.h"
#include "ops/op.h"
#include "test.h"

#define FILE_BYTES_MAX (1u << 21)
#define EDITS_MAX 6
#define TENSOR_NAME_BYTES_MAX 64
#define TENSORS_MAX 1024

// The base models. Matrices are Q4_0. Heads have 16 elements in llama and qwen2, 32 in gemma3 and
// qwen3.
enum { N_LAYER = 2, N_EMBD = 64, N_HEAD = 4, N_HEAD_KV = 2, N_FF = 96, N_VOCAB = 5, ROPE_DIM = 16 };
enum { LONG_HEAD = 32, N_LAYER_27B = 62 };

enum edit_kind {
    END,
    KEY_U32,    // a
    KEY_I32,    // a, two's complement
    KEY_U64,    // a
    KEY_F32,    // a: the bits
    KEY_F64,    // a: the bits
    KEY_BOOL,   // a
    KEY_STRING, // text
    KEY_U32S,   // an array of a elements of value b, the last of them c
    KEY_BOOLS,  // an array of a elements, element i is bit i of b
    KEY_STRINGS, // an array of a strings "s"
    KEY_DROP,
    TENSOR,       // type a, k b, rows c (0: one dimension)
    TENSOR_DROP,
    TENSOR_VALUE, // f32 element a gets the bits b
};

struct edit {
    enum edit_kind kind;
    const char *name;
    u64 a, b, c;
    u64 planes[2]; // of a tensor of three or four dimensions
    const char *text;
};

// One edit each, so that tables stay short.
#define SET(kind_, name_, value) {.kind = KEY_##kind_, .name = (name_), .a = (value)}
#define SET_TEXT(name_, value) {.kind = KEY_STRING, .name = (name_), .text = (value)}
#define SET_U32S(name_, n, value, last)                                                            \
    {.kind = KEY_U32S, .name = (name_), .a = (n), .b = (value), .c = (last)}
#define SET_BOOLS(name_, n, bits) {.kind = KEY_BOOLS, .name = (name_), .a = (n), .b = (bits)}
#define DROP(name_) {.kind = KEY_DROP, .name = (name_)}
#define TENSOR_AS(name_, type, k, rows)                                                            \
    {.kind = TENSOR, .name = (name_), .a = DTYPE_##type, .b = (k), .c = (rows)}
#define TENSOR_4D(name_, type, k, rows, d2, d3)                                                    \
    {.kind = TENSOR, .name = (name_), .a = DTYPE_##type, .b = (k), .c = (rows), .planes = {d2, d3}}
#define NO_TENSOR(name_) {.kind = TENSOR_DROP, .name = (name_)}
#define VALUE_AT(name_, idx, bits)                                                                 \
    {.kind = TENSOR_VALUE, .name = (name_), .a = (idx), .b = (bits)}
#define NOTHING {.kind = END}

// The keys that every architecture has; PREFIX is its name and a dot.
#define COMMON_KEYS(PREFIX)                                                                        \
    SET_TEXT("general.name", "small"), SET(U32, PREFIX "block_count", N_LAYER),                    \
        SET(U32, PREFIX "context_length", 128), SET(U32, PREFIX "embedding_length", N_EMBD),       \
        SET(U32, PREFIX "feed_forward_length", N_FF),                                              \
        SET(U32, PREFIX "attention.head_count", N_HEAD),                                           \
        SET(U32, PREFIX "attention.head_count_kv", N_HEAD_KV),                                     \
        SET(F32, PREFIX "attention.layer_norm_rms_epsilon", 0x3727c5ac), /* 1e-5 */                \
        SET(STRINGS, "tokenizer.ggml.tokens", N_VOCAB)
#define LONG_HEAD_KEYS(PREFIX)                                                                     \
    SET(U32, PREFIX "attention.key_length", LONG_HEAD),                                            \
        SET(U32, PREFIX "attention.value_length", LONG_HEAD)

static const struct edit llama_keys[] = {
    SET_TEXT("general.architecture", "llama"),
    COMMON_KEYS("llama."),
};
static const struct edit gemma3_keys[] = {
    SET_TEXT("general.architecture", "gemma3"),
    COMMON_KEYS("gemma3."),
    LONG_HEAD_KEYS("gemma3."),
    SET(U32, "gemma3.attention.sliding_window", 16),
    SET(F32, "gemma3.rope.freq_base", 0x49742400), // 1e6
};
static const struct edit qwen2_keys[] = {
    SET_TEXT("general.architecture", "qwen2"),
    COMMON_KEYS("qwen2."),
};
static const struct edit qwen3_keys[] = {
    SET_TEXT("general.architecture", "qwen3"),
    COMMON_KEYS("qwen3."),
    LONG_HEAD_KEYS("qwen3."),
};

static const struct edit base_outer[] = {
    TENSOR_AS("token_embd.weight", Q4_0, N_EMBD, N_VOCAB),
    TENSOR_AS("output_norm.weight", F32, N_EMBD, 0),
};

#define ATTENTION_TENSORS(HEAD)                                                                    \
    TENSOR_AS("attn_norm.weight", F32, N_EMBD, 0),                                                 \
        TENSOR_AS("attn_q.weight", Q4_0, N_EMBD, N_HEAD * (HEAD)),                                 \
        TENSOR_AS("attn_k.weight", Q4_0, N_EMBD, N_HEAD_KV * (HEAD)),                              \
        TENSOR_AS("attn_v.weight", Q4_0, N_EMBD, N_HEAD_KV * (HEAD)),                              \
        TENSOR_AS("attn_output.weight", Q4_0, N_HEAD * (HEAD), N_EMBD)
#define HEAD_NORMS                                                                                 \
    TENSOR_AS("attn_q_norm.weight", F32, LONG_HEAD, 0),                                            \
        TENSOR_AS("attn_k_norm.weight", F32, LONG_HEAD, 0)
#define FFN_TENSORS                                                                                \
    TENSOR_AS("ffn_norm.weight", F32, N_EMBD, 0),                                                  \
        TENSOR_AS("ffn_gate.weight", Q4_0, N_EMBD, N_FF),                                          \
        TENSOR_AS("ffn_up.weight", Q4_0, N_EMBD, N_FF),                                            \
        TENSOR_AS("ffn_down.weight", Q4_0, N_FF, N_EMBD)

static const struct edit llama_layer[] = {ATTENTION_TENSORS(16), FFN_TENSORS};
static const struct edit gemma3_layer[] = {
    ATTENTION_TENSORS(LONG_HEAD),
    HEAD_NORMS,
    TENSOR_AS("post_attention_norm.weight", F32, N_EMBD, 0),
    FFN_TENSORS,
    TENSOR_AS("post_ffw_norm.weight", F32, N_EMBD, 0),
};
static const struct edit qwen2_layer[] = {
    ATTENTION_TENSORS(16),
    TENSOR_AS("attn_q.bias", F32, 64, 0),
    TENSOR_AS("attn_k.bias", F32, 32, 0),
    TENSOR_AS("attn_v.bias", F32, 32, 0),
    FFN_TENSORS,
};
static const struct edit qwen3_layer[] = {ATTENTION_TENSORS(LONG_HEAD), HEAD_NORMS, FFN_TENSORS};

struct base {
    const struct edit *keys, *layer;
    u32 n_keys, n_layer_tensors, n_layer;
};
#define BASE(arch, layers)                                                                         \
    {arch##_keys, arch##_layer, COUNT_OF(arch##_keys), COUNT_OF(arch##_layer), layers}
static const struct base llama = BASE(llama, N_LAYER);
static const struct base gemma3 = BASE(gemma3, N_LAYER);
static const struct base gemma3_27b = BASE(gemma3, N_LAYER_27B); // its block_count is an edit
static const struct base qwen2 = BASE(qwen2, N_LAYER);
static const struct base qwen3 = BASE(qwen3, N_LAYER);

// --- writing an edited model ---

struct tensor_row {
    char name[TENSOR_NAME_BYTES_MAX];
    u64 type, k, rows; // as in struct edit
    u64 planes[2];
};

static bool same_name(const char *a, const char *b) {
    return str_equal(str_from_z(a), str_from_z(b));
}

// The edit of this key or tensor, or NULL.
static const struct edit *find_edit(const struct edit *edits, const char *name, bool tensor) {
    for (u32 i = 0; i < EDITS_MAX && edits[i].kind != END; i++) {
        bool of_tensor = edits[i].kind == TENSOR || edits[i].kind == TENSOR_DROP;
        if (edits[i].kind != TENSOR_VALUE && of_tensor == tensor && same_name(edits[i].name, name))
            return &edits[i];
    }
    return NULL;
}

static void write_key(struct builder *b, const struct edit *key) {
    struct str name = str_from_z(key->name);
    switch (key->kind) {
    case KEY_U32: put_key_u32(b, name, (u32)key->a); break;
    case KEY_I32: put_key(b, name, GGUF_I32), put_u32(b, (u32)key->a); break;
    case KEY_U64: put_key(b, name, GGUF_U64), put_u64(b, key->a); break;
    case KEY_F32: put_key(b, name, GGUF_F32), put_u32(b, (u32)key->a); break;
    case KEY_F64: put_key(b, name, GGUF_F64), put_u64(b, key->a); break;
    case KEY_BOOL: put_key(b, name, GGUF_BOOL), put_bytes(b, key->a ? "\1" : "\0", 1); break;
    case KEY_STRING: put_key_str(b, name, str_from_z(key->text)); break;
    case KEY_U32S:
        put_key_array(b, name, GGUF_U32, key->a);
        for (u64 i = 0; i < key->a; i++) put_u32(b, (u32)(i + 1 < key->a ? key->b : key->c));
        break;
    case KEY_BOOLS:
        put_key_array(b, name, GGUF_BOOL, key->a);
        for (u64 i = 0; i < key->a; i++) put_bytes(b, (key->b >> i & 1) != 0 ? "\1" : "\0", 1);
        break;
    case KEY_STRINGS:
        put_key_array(b, name, GGUF_STRING, key->a);
        for (u64 i = 0; i < key->a; i++) put_str(b, STR("s"));
        break;
    default: break; // KEY_DROP
    }
}

static void add_tensor(struct tensor_row *rows, u32 *n, const struct edit *edits,
                       const struct edit *tensor, const char *prefix) {
    assert(*n < TENSORS_MAX);
    struct tensor_row *row = &rows[*n];
    struct text t = TEXT_OVER_ARRAY(row->name);
    text_format(&t, "%s%s", prefix, tensor->name);
    const struct edit *edit = find_edit(edits, row->name, true);
    if (edit != NULL && edit->kind == TENSOR_DROP) return;
    if (edit != NULL) tensor = edit;
    row->type = tensor->a;
    row->k = tensor->b;
    row->rows = tensor->c;
    memcpy(row->planes, tensor->planes, sizeof row->planes);
    ++*n;
}

static bool in_base(const struct base *base, const char *name, const struct tensor_row *rows,
                    u32 n) {
    for (u32 i = 0; i < n; i++) {
        if (same_name(rows[i].name, name)) return true;
    }
    for (u32 i = 0; i < base->n_keys; i++) {
        if (same_name(base->keys[i].name, name)) return true;
    }
    return false;
}

static u64 tensor_bytes(const struct tensor_row *row) {
    return dtype_row_bytes((enum dtype)row->type, row->k) * MAX(row->rows, 1) *
           MAX(row->planes[0], 1) * MAX(row->planes[1], 1);
}

static void write_tensor(struct builder *b, const struct tensor_row *row) {
    u64 dims[4] = {row->k, row->rows, row->planes[0], row->planes[1]};
    u32 n_dims = 4;
    while (dims[n_dims - 1] == 0) n_dims--;
    put_tensor_at(b, str_from_z(row->name), n_dims, dims, (u32)row->type, b->data_bytes);
    b->data_bytes += round_up(tensor_bytes(row), 32);
}

// Zeros for blocks, ones for F32, then the edits of values.
static void write_data(struct builder *b, const struct tensor_row *row, const struct edit *edits) {
    usize begin = b->len;
    u64 bytes = tensor_bytes(row);
    put_zeros(b, (usize)round_up(bytes, 32));
    for (u64 i = 0; row->type == DTYPE_F32 && i < bytes / 4; i++) {
        store_f32(b->data + begin + i * 4, 1);
    }
    for (u32 i = 0; i < EDITS_MAX && edits[i].kind != END; i++) {
        if (edits[i].kind != TENSOR_VALUE || !same_name(edits[i].name, row->name)) continue;
        store_u32(b->data + begin + edits[i].a * 4, (u32)edits[i].b);
    }
}

static void write_model(struct builder *b, const struct base *base, const struct edit *edits) {
    static struct tensor_row rows[TENSORS_MAX];
    u32 n = 0;
    builder_begin(b);
    for (u32 i = 0; i < COUNT_OF(base_outer); i++) add_tensor(rows, &n, edits, &base_outer[i], "");
    for (u32 layer = 0; layer < base->n_layer; layer++) {
        char prefix[16];
        struct text t = TEXT_OVER_ARRAY(prefix);
        text_format(&t, "blk.%u.", layer);
        for (u32 i = 0; i < base->n_layer_tensors; i++) {
            add_tensor(rows, &n, edits, &base->layer[i], prefix);
        }
    }
    for (u32 i = 0; i < base->n_keys; i++) {
        const struct edit *edit = find_edit(edits, base->keys[i].name, false);
        write_key(b, edit != NULL ? edit : &base->keys[i]);
    }
    for (u32 i = 0; i < EDITS_MAX && edits[i].kind != END; i++) { // what the base does not have
        if (in_base(base, edits[i].name, rows, n)) continue;
        if (edits[i].kind == TENSOR) add_tensor(rows, &n, edits, &edits[i], "");
        else if (edits[i].kind != TENSOR_DROP) write_key(b, &edits[i]);
    }
    for (u32 i = 0; i < n; i++) write_tensor(b, &rows[i]);
    builder_end(b);
    for (u32 i = 0; i < n; i++) write_data(b, &rows[i], edits);
}

static bool contains(const char *text, const char *part) {
    struct str t = str_from_z(text), p = str_from_z(part);
    for (usize i = 0; i + p.len <= t.len; i++) {
        if (memcmp(t.data + i, p.data, p.len) == 0) return true;
    }
    return false;
}

struct case_row {
    const char *name;
    enum sov_status status;
    const char *message; // a part of it
    struct edit edits[EDITS_MAX];
};

static void run_rows(const struct base *base, const struct case_row *rows, u32 n_rows) {
    struct builder b = builder_new(FILE_BYTES_MAX);
    for (u32 i = 0; i < n_rows; i++) {
        const struct case_row *row = &rows[i];
        write_model(&b, base, row->edits);
        struct model model;
        struct sov_fault fault = {0};
        u64 mapped = platform_memory_mapped();
        enum sov_status status = model_parse(&model, b.data, b.len, &fault);
        CHECK_MSG(status == row->status, "%s: %s (%s) instead of %s", row->name,
                  status_name(status), fault.message, status_name(row->status));
        CHECK_MSG(contains(fault.message, row->message), "%s: \"%s\" does not say \"%s\"",
                  row->name, fault.message, row->message);
        if (status == SOV_OK) model_close(&model);
        CHECK_MSG(platform_memory_mapped() == mapped, "%s: memory was not given back", row->name);
    }
    builder_free(&b);
}

#define BAD SOV_ERR_FORMAT
#define UNSUPPORTED SOV_ERR_UNSUPPORTED
#define F32_NAN 0x7fc00000
#define F32_INF 0x7f800000

// --- hyperparameters ---

static const struct case_row key_rows[] = {
    {"sound", SOV_OK, "", {NOTHING}},
    {"no architecture", BAD, "key general.architecture is missing",
     {DROP("general.architecture")}},
    {"architecture u32", BAD, "key general.architecture at byte 24: its type is u32",
     {SET(U32, "general.architecture", 5)}},
    {"architecture unknown", UNSUPPORTED, "\"llamax\"; this program has: llama",
     {SET_TEXT("general.architecture", "llamax")}},
    {"architecture empty", UNSUPPORTED, "the architecture is \"\"",
     {SET_TEXT("general.architecture", "")}},
    {"name u32", BAD, "key general.name at byte", {SET(U32, "general.name", 1)}},
    {"name absent", SOV_OK, "", {DROP("general.name")}},
    {"no block_count", BAD, "llama.block_count is missing", {DROP("llama.block_count")}},
    {"blocks 0", BAD, "llama.block_count at byte", {SET(U32, "llama.block_count", 0)}},
    {"blocks -1", BAD, "llama.block_count at byte", {SET(I32, "llama.block_count", 0xffffffff)}},
    {"blocks i32", SOV_OK, "", {SET(I32, "llama.block_count", 2)}},
    {"blocks u64", SOV_OK, "", {SET(U64, "llama.block_count", 2)}},
    {"blocks 2^32+2", BAD, "is 4294967298", {SET(U64, "llama.block_count", (1ull << 32) + 2)}},
    {"blocks text", BAD, "type is string, an integer", {SET_TEXT("llama.block_count", "2")}},
    {"blocks 513", UNSUPPORTED, "1 to 512", {SET(U32, "llama.block_count", 513)}},
    {"blocks 2^31", UNSUPPORTED, "2147483648", {SET(U32, "llama.block_count", 1u << 31)}},
    {"blocks 3", BAD, "tensor blk.2.attn_norm.weight is missing",
     {SET(U32, "llama.block_count", 3)}},
    {"blocks 1", UNSUPPORTED, "tensor blk.1.attn_norm.weight at byte",
     {SET(U32, "llama.block_count", 1)}},
    {"no embd", BAD, "llama.embedding_length is missing", {DROP("llama.embedding_length")}},
    {"embd 0", BAD, "llama.embedding_length at", {SET(U32, "llama.embedding_length", 0)}},
    {"embd 128", BAD, "tensor token_embd.weight at byte",
     {SET(U32, "llama.embedding_length", 128)}},
    {"embd 2^19+4", UNSUPPORTED, "524292", {SET(U32, "llama.embedding_length", 524292)}},
    {"no ffn", BAD, "feed_forward_length is missing", {DROP("llama.feed_forward_length")}},
    {"ffn 0", BAD, "feed_forward_length at", {SET(U32, "llama.feed_forward_length", 0)}},
    {"ffn 64", BAD, "tensor blk.0.ffn_gate.weight at byte",
     {SET(U32, "llama.feed_forward_length", 64)}},
    {"no heads", BAD, "head_count is missing", {DROP("llama.attention.head_count")}},
    {"heads 0", BAD, "head_count at byte", {SET(U32, "llama.attention.head_count", 0)}},
    {"heads 129", UNSUPPORTED, "1 to 128", {SET(U32, "llama.attention.head_count", 129)}},
    {"heads 3", BAD, "does not divide embedding_length",
     {SET(U32, "llama.attention.head_count", 3), SET(U32, "llama.attention.head_count_kv", 3)}},
    {"kv heads 0", BAD, "head_count_kv at byte", {SET(U32, "llama.attention.head_count_kv", 0)}},
    {"kv heads 3", BAD, "not a multiple", {SET(U32, "llama.attention.head_count_kv", 3)}},
    {"kv heads 8", BAD, "not a multiple", {SET(U32, "llama.attention.head_count_kv", 8)}},
    {"kv heads 4", BAD, "tensor blk.0.attn_k.weight",
     {SET(U32, "llama.attention.head_count_kv", 4)}},
    {"kv heads default", BAD, "tensor blk.0.attn_k.weight",
     {DROP("llama.attention.head_count_kv")}},
    {"heads a layer, equal", SOV_OK, "",
     {SET_U32S("llama.attention.head_count", 2, 4, 4),
      SET_U32S("llama.attention.head_count_kv", 2, 2, 2),
      SET_U32S("llama.feed_forward_length", 2, N_FF, N_FF)}},
    {"heads a layer, different", UNSUPPORTED, "layer 1 has 2, layer 0 has 4",
     {SET_U32S("llama.attention.head_count", 2, 4, 2)}},
    {"heads a layer, 0", BAD, "layer 1 has 0", {SET_U32S("llama.attention.head_count", 2, 4, 0)}},
    {"heads of 3 layers", BAD, "an array of 3 u32",
     {SET_U32S("llama.attention.head_count", 3, 4, 4)}},
    {"heads of text", BAD, "an array of 2 string", {SET(STRINGS, "llama.attention.head_count", 2)}},
    {"key length as it is", SOV_OK, "",
     {SET(U32, "llama.attention.key_length", 16), SET(U32, "llama.attention.value_length", 16)}},
    {"key length 8", BAD, "tensor blk.0.attn_q.weight",
     {SET(U32, "llama.attention.key_length", 8)}},
    {"key length 0", BAD, "key_length at byte", {SET(U32, "llama.attention.key_length", 0)}},
    {"key length odd", UNSUPPORTED, "heads of 15", {SET(U32, "llama.attention.key_length", 15)}},
    {"key length 514", UNSUPPORTED, "1 to 512", {SET(U32, "llama.attention.key_length", 514)}},
    {"head size 1024", UNSUPPORTED, "heads of 1024",
     {SET(U32, "llama.embedding_length", 4096)}},
    {"value length 8", UNSUPPORTED, "value_length is 8, keys have 16",
     {SET(U32, "llama.attention.value_length", 8)}},
    {"no epsilon", BAD, "rms_epsilon is missing",
     {DROP("llama.attention.layer_norm_rms_epsilon")}},
    {"epsilon nan", BAD, "rms_epsilon at byte",
     {SET(F32, "llama.attention.layer_norm_rms_epsilon", F32_NAN)}},
    {"epsilon 0", BAD, "rms_epsilon at byte",
     {SET(F32, "llama.attention.layer_norm_rms_epsilon", 0)}},
    {"epsilon < 0", BAD, "rms_epsilon at byte",
     {SET(F32, "llama.attention.layer_norm_rms_epsilon", 0xb727c5ac)}},
    {"epsilon inf", BAD, "rms_epsilon at byte",
     {SET(F32, "llama.attention.layer_norm_rms_epsilon", F32_INF)}},
    {"epsilon u32", BAD, "type is u32, f32 is expected",
     {SET(U32, "llama.attention.layer_norm_rms_epsilon", 1)}},
    {"epsilon f64 nan", BAD, "rms_epsilon at byte",
     {SET(F64, "llama.attention.layer_norm_rms_epsilon", 0x7ff8000000000000)}},
    {"epsilon f64 1e300", BAD, "rms_epsilon at byte",
     {SET(F64, "llama.attention.layer_norm_rms_epsilon", 0x7e37e43c8800759c)}},
    {"context 0", BAD, "context_length at", {SET(U32, "llama.context_length", 0)}},
    {"context text", BAD, "context_length at", {SET_TEXT("llama.context_length", "x")}},
    {"no context", BAD, "context_length is missing", {DROP("llama.context_length")}},
    {"no tokens", BAD, "tokenizer.ggml.tokens is missing", {DROP("tokenizer.ggml.tokens")}},
    {"tokens 0", BAD, "it has 0 tokens", {SET(STRINGS, "tokenizer.ggml.tokens", 0)}},
    {"tokens u32", BAD, "array of u32, array of string",
     {SET_U32S("tokenizer.ggml.tokens", 5, 1, 1)}},
    {"tokens 6", BAD, "tensor token_embd.weight", {SET(STRINGS, "tokenizer.ggml.tokens", 6)}},
    {"tokens 4", BAD, "tensor token_embd.weight", {SET(STRINGS, "tokenizer.ggml.tokens", 4)}},
    {"vocab_size 5", SOV_OK, "", {SET(U32, "llama.vocab_size", 5)}},
    {"vocab_size 6", BAD, "vocab_size is 6, tokenizer.ggml.tokens has 5",
     {SET(U32, "llama.vocab_size", 6)}},
    {"attention scale 0", BAD, "attention.scale at", {SET(F32, "llama.attention.scale", 0)}},
    {"experts", UNSUPPORTED, "key llama.expert_count at", {SET(U32, "llama.expert_count", 8)}},
    {"experts 0", SOV_OK, "", {SET(U32, "llama.expert_count", 0)}},
    {"window", UNSUPPORTED, "sliding_window", {SET(U32, "llama.attention.sliding_window", 64)}},
    {"windows", UNSUPPORTED, "sliding_window",
     {SET_U32S("llama.attention.sliding_window", 2, 0, 64)}},
    {"window text", BAD, "sliding_window",
     {SET_TEXT("llama.attention.sliding_window", "x")}},
    {"not causal", UNSUPPORTED, "causal", {SET(BOOL, "llama.attention.causal", 0)}},
    {"causal", SOV_OK, "", {SET(BOOL, "llama.attention.causal", 1)}},
    {"logit scale 2", UNSUPPORTED, "logit_scale", {SET(F32, "llama.logit_scale", 0x40000000)}},
    {"logit scale nan", UNSUPPORTED, "logit_scale", {SET(F32, "llama.logit_scale", F32_NAN)}},
    {"logit scale 1", SOV_OK, "", {SET(F32, "llama.logit_scale", 0x3f800000)}},
    {"unknown keys", SOV_OK, "", {SET(U32, "llama.unknown", 1), SET(STRINGS, "x.words", 3)}},
};

static void test_hyperparameters(void) { run_rows(&llama, key_rows, COUNT_OF(key_rows)); }

// --- rope ---

static const struct case_row rope_rows[] = {
    {"dimension 8", SOV_OK, "", {SET(U32, "llama.rope.dimension_count", 8)}},
    {"dimension 15", BAD, "rope.dimension_count is 15",
     {SET(U32, "llama.rope.dimension_count", 15)}},
    {"dimension 0", BAD, "dimension_count at", {SET(U32, "llama.rope.dimension_count", 0)}},
    {"dimension 18", UNSUPPORTED, "2 to 16", {SET(U32, "llama.rope.dimension_count", 18)}},
    {"base 0", BAD, "freq_base at", {SET(F32, "llama.rope.freq_base", 0)}},
    {"base nan", BAD, "freq_base at", {SET(F32, "llama.rope.freq_base", F32_NAN)}},
    {"base < 0", BAD, "freq_base at", {SET(F32, "llama.rope.freq_base", 0xc61c4000)}},
    {"base inf", BAD, "freq_base at", {SET(F32, "llama.rope.freq_base", F32_INF)}},
    {"base 1e-30", BAD, "rope frequency 1 is", {SET(F32, "llama.rope.freq_base", 0x0da24260)}},
    {"base largest", SOV_OK, "", {SET(F32, "llama.rope.freq_base", 0x7f7fffff)}},
    {"scaling none", SOV_OK, "",
     {SET_TEXT("llama.rope.scaling.type", "none"),
      SET(F32, "llama.rope.scaling.factor", 0x40800000)}},
    {"scaling yarn", UNSUPPORTED, "rope scaling \"yarn\"",
     {SET_TEXT("llama.rope.scaling.type", "yarn")}},
    {"scaling longrope", UNSUPPORTED, "rope scaling \"longrope\"",
     {SET_TEXT("llama.rope.scaling.type", "longrope")}},
    {"scaling u32", BAD, "scaling.type at", {SET(U32, "llama.rope.scaling.type", 1)}},
    {"factor 0", BAD, "scaling.factor at", {SET(F32, "llama.rope.scaling.factor", 0)}},
    {"factor nan", BAD, "scaling.factor at", {SET(F32, "llama.rope.scaling.factor", F32_NAN)}},
    {"factor tiny", BAD, "rope frequency 0 is",
     {SET(F32, "llama.rope.scaling.factor", 0x0da24260)}},
    {"legacy 0", BAD, "scale_linear at", {SET(F32, "llama.rope.scale_linear", 0)}},
    {"attn_factor", UNSUPPORTED, "attn_factor",
     {SET(F32, "llama.rope.scaling.attn_factor", 0x40000000)}},
    {"llama3 without its keys", BAD, "rope.scaling.factor is missing",
     {SET_TEXT("llama.rope.scaling.type", "llama3")}},
    {"llama3, high <= low", BAD, "high_freq_factor is 1",
     {SET_TEXT("llama.rope.scaling.type", "llama3"),
      SET(F32, "llama.rope.scaling.factor", 0x41000000),
      SET(F32, "llama.rope.scaling.low_freq_factor", 0x3f800000),
      SET(F32, "llama.rope.scaling.high_freq_factor", 0x3f800000),
      SET(U32, "llama.rope.scaling.original_context_length", 8192)}},
    {"divisors", SOV_OK, "", {TENSOR_AS("rope_freqs.weight", F32, 8, 0)}},
    {"divisors of 7", BAD, "tensor rope_freqs.weight at",
     {TENSOR_AS("rope_freqs.weight", F32, 7, 0)}},
    {"divisors of 16", BAD, "its shape is 16; 8 (rope.dimension_count / 2)",
     {TENSOR_AS("rope_freqs.weight", F32, 16, 0)}},
    {"divisors F16", UNSUPPORTED, "its type is F16, F32 is expected",
     {TENSOR_AS("rope_freqs.weight", F16, 8, 0)}},
    {"divisor 0", BAD, "value 3 at byte",
     {TENSOR_AS("rope_freqs.weight", F32, 8, 0), VALUE_AT("rope_freqs.weight", 3, 0)}},
    {"divisor < 0", BAD, "a finite number above 0",
     {TENSOR_AS("rope_freqs.weight", F32, 8, 0),
      VALUE_AT("rope_freqs.weight", 7, 0xbf800000)}},
    {"divisor inf", BAD, "value 0 at byte",
     {TENSOR_AS("rope_freqs.weight", F32, 8, 0),
      VALUE_AT("rope_freqs.weight", 0, F32_INF)}},
    {"divisor tiny", BAD, "rope frequency 0 is",
     {TENSOR_AS("rope_freqs.weight", F32, 8, 0), VALUE_AT("rope_freqs.weight", 0, 1)}},
};

static void test_rope_keys(void) { run_rows(&llama, rope_rows, COUNT_OF(rope_rows)); }

// --- tensors ---

static const struct case_row tensor_rows[] = {
    {"untied", SOV_OK, "", {TENSOR_AS("output.weight", Q8_0, N_EMBD, N_VOCAB)}},
    {"output 6 rows", BAD, "tensor output.weight at",
     {TENSOR_AS("output.weight", Q8_0, N_EMBD, N_VOCAB + 1)}},
    {"no token_embd", BAD, "tensor token_embd.weight is missing",
     {NO_TENSOR("token_embd.weight")}},
    {"no output_norm", BAD, "tensor output_norm.weight is missing",
     {NO_TENSOR("output_norm.weight")}},
    {"no ffn_down", BAD, "tensor blk.1.ffn_down.weight is missing",
     {NO_TENSOR("blk.1.ffn_down.weight")}},
    {"down transposed", BAD, "its shape is 64 x 96; 96 (feed_forward_length) x 64",
     {TENSOR_AS("blk.0.ffn_down.weight", Q4_0, N_EMBD, N_FF)}},
    {"norm half", BAD, "its shape is 32; 64 (embedding_length)",
     {TENSOR_AS("output_norm.weight", F32, 32, 0)}},
    {"norm a matrix", BAD, "its shape is 64 x 2", {TENSOR_AS("output_norm.weight", F32, 64, 2)}},
    {"q of two planes", BAD, "its shape is 64 x 64 x 2;",
     {TENSOR_4D("blk.0.attn_q.weight", Q4_0, N_EMBD, 64, 2, 0)}},
    {"q of 1 x 2 planes", BAD, "its shape is 64 x 64 x 1 x 2;",
     {TENSOR_4D("blk.0.attn_q.weight", Q4_0, N_EMBD, 64, 1, 2)}},
    {"q of one plane", SOV_OK, "", {TENSOR_4D("blk.0.attn_q.weight", Q4_0, N_EMBD, 64, 1, 1)}},
    {"norm F16", UNSUPPORTED, "tensor blk.1.attn_norm.weight at",
     {TENSOR_AS("blk.1.attn_norm.weight", F16, 64, 0)}},
    {"norm Q8_0", UNSUPPORTED, "its type is Q8_0, F32",
     {TENSOR_AS("blk.1.ffn_norm.weight", Q8_0, 64, 0)}},
    {"norm nan", BAD, "value 63 at byte", {VALUE_AT("output_norm.weight", 63, F32_NAN)}},
    {"norm -inf", BAD, "tensor blk.0.attn_norm.weight at",
     {VALUE_AT("blk.0.attn_norm.weight", 5, 0xff800000)}},
    {"norm negative and 0", SOV_OK, "",
     {VALUE_AT("output_norm.weight", 0, 0xbf800000),
      VALUE_AT("output_norm.weight", 1, 0)}},
    {"biases", SOV_OK, "",
     {TENSOR_AS("blk.0.attn_q.bias", F32, 64, 0),
      TENSOR_AS("blk.0.attn_k.bias", F32, 32, 0),
      TENSOR_AS("blk.0.attn_v.bias", F32, 32, 0),
      TENSOR_AS("blk.1.attn_output.bias", F32, 64, 0)}},
    {"bias of 64", BAD, "tensor blk.0.attn_k.bias at",
     {TENSOR_AS("blk.0.attn_k.bias", F32, 64, 0)}},
    {"bias F16", UNSUPPORTED, "tensor blk.0.attn_k.bias at",
     {TENSOR_AS("blk.0.attn_k.bias", F16, 32, 0)}},
    {"bias nan", BAD, "tensor blk.0.attn_v.bias at",
     {TENSOR_AS("blk.0.attn_v.bias", F32, 32, 0),
      VALUE_AT("blk.0.attn_v.bias", 31, F32_NAN)}},
    {"unused tensor", UNSUPPORTED, "tensor blk.0.ffn_gate_inp.weight at",
     {TENSOR_AS("blk.0.ffn_gate_inp.weight", F32, 64, 8)}},
    {"unused bias", UNSUPPORTED, "tensor blk.0.ffn_up.bias at",
     {TENSOR_AS("blk.0.ffn_up.bias", F32, N_FF, 0)}},
    {"layer name with zeros", UNSUPPORTED, "tensor blk.00.attn_q.bias at",
     {TENSOR_AS("blk.00.attn_q.bias", F32, 64, 0)}},
};

static void test_tensors(void) { run_rows(&llama, tensor_rows, COUNT_OF(tensor_rows)); }

// --- gemma3, qwen2, qwen3 ---

static const struct case_row gemma3_rows[] = {
    {"sound", SOV_OK, "", {NOTHING}},
    {"untied", SOV_OK, "", {TENSOR_AS("output.weight", Q8_0, N_EMBD, N_VOCAB)}},
    {"no q norm", BAD, "tensor blk.1.attn_q_norm.weight is missing",
     {NO_TENSOR("blk.1.attn_q_norm.weight")}},
    {"no k norm", BAD, "tensor blk.0.attn_k_norm.weight is missing",
     {NO_TENSOR("blk.0.attn_k_norm.weight")}},
    {"no post norm of attention", BAD, "tensor blk.0.post_attention_norm.weight is missing",
     {NO_TENSOR("blk.0.post_attention_norm.weight")}},
    {"no post norm of ffn", BAD, "tensor blk.1.post_ffw_norm.weight is missing",
     {NO_TENSOR("blk.1.post_ffw_norm.weight")}},
    {"q norm as long as all heads", BAD, "its shape is 128; 32 (head size)",
     {TENSOR_AS("blk.0.attn_q_norm.weight", F32, N_HEAD * LONG_HEAD, 0)}},
    {"k norm of 16", BAD, "tensor blk.0.attn_k_norm.weight at byte",
     {TENSOR_AS("blk.0.attn_k_norm.weight", F32, 16, 0)}},
    {"post norm of 32", BAD, "its shape is 32; 64 (embedding_length)",
     {TENSOR_AS("blk.0.post_ffw_norm.weight", F32, 32, 0)}},
    {"q norm F16", UNSUPPORTED, "its type is F16, F32 is expected",
     {TENSOR_AS("blk.0.attn_q_norm.weight", F16, LONG_HEAD, 0)}},
    {"k norm nan", BAD, "tensor blk.1.attn_k_norm.weight at byte",
     {VALUE_AT("blk.1.attn_k_norm.weight", 31, F32_NAN)}},
    {"post norm inf", BAD, "tensor blk.1.post_attention_norm.weight at byte",
     {VALUE_AT("blk.1.post_attention_norm.weight", 0, F32_INF)}},
    {"a bias", UNSUPPORTED, "tensor blk.0.attn_q.bias at byte",
     {TENSOR_AS("blk.0.attn_q.bias", F32, N_HEAD * LONG_HEAD, 0)}},
    {"divisors", UNSUPPORTED, "tensor rope_freqs.weight at byte",
     {TENSOR_AS("rope_freqs.weight", F32, LONG_HEAD / 2, 0)}},
    {"heads of n_embd / n_head", BAD, "its shape is 64 x 128; 64 (embedding_length) x 64",
     {DROP("gemma3.attention.key_length"), DROP("gemma3.attention.value_length")}},
    {"window absent", SOV_OK, "", {DROP("gemma3.attention.sliding_window")}},
    {"window 0", SOV_OK, "", {SET(U32, "gemma3.attention.sliding_window", 0)}},
    {"window 1", SOV_OK, "", {SET(U32, "gemma3.attention.sliding_window", 1)}},
    {"window largest", SOV_OK, "", {SET(U32, "gemma3.attention.sliding_window", 0xffffffff)}},
    {"window -1", BAD, "sliding_window at byte",
     {SET(I32, "gemma3.attention.sliding_window", 0xffffffff)}},
    {"window 2^32", BAD, "is 4294967296",
     {SET(U64, "gemma3.attention.sliding_window", 1ull << 32)}},
    {"window f32", BAD, "its type is f32, an integer",
     {SET(F32, "gemma3.attention.sliding_window", 0x41800000)}},
    {"windows", BAD, "sliding_window at byte",
     {SET_U32S("gemma3.attention.sliding_window", 2, 16, 16)}},
    {"pattern 1", SOV_OK, "", {SET(U32, "gemma3.attention.sliding_window_pattern", 1)}},
    {"pattern 0", BAD, "its value is 0, 1 to 512",
     {SET(U32, "gemma3.attention.sliding_window_pattern", 0)}},
    {"pattern 513", UNSUPPORTED, "its value is 513, 1 to 512",
     {SET(U32, "gemma3.attention.sliding_window_pattern", 513)}},
    {"pattern text", BAD, "its type is string, an integer",
     {SET_TEXT("gemma3.attention.sliding_window_pattern", "6")}},
    {"pattern of 2 layers", SOV_OK, "",
     {SET_BOOLS("gemma3.attention.sliding_window_pattern", 2, 1)}},
    {"pattern of 1 layer", BAD, "it has 1 elements for 2 layers",
     {SET_BOOLS("gemma3.attention.sliding_window_pattern", 1, 1)}},
    {"pattern of 3 layers", BAD, "it has 3 elements for 2 layers",
     {SET_BOOLS("gemma3.attention.sliding_window_pattern", 3, 1)}},
    {"pattern of no layers", BAD, "it has 0 elements for 2 layers",
     {SET_BOOLS("gemma3.attention.sliding_window_pattern", 0, 0)}},
    {"pattern of numbers", BAD, "array of u32, array of bool",
     {SET_U32S("gemma3.attention.sliding_window_pattern", 2, 1, 0)}},
    {"pattern of texts", BAD, "array of string, array of bool",
     {SET(STRINGS, "gemma3.attention.sliding_window_pattern", 2)}},
    {"local base", SOV_OK, "", {SET(F32, "gemma3.rope.freq_base_swa", 0x45000000)}},
    {"local base 0", BAD, "rope.freq_base_swa at byte", {SET(F32, "gemma3.rope.freq_base_swa", 0)}},
    {"local base nan", BAD, "rope.freq_base_swa at byte",
     {SET(F32, "gemma3.rope.freq_base_swa", F32_NAN)}},
    {"local base 1e-30", BAD, "rope frequency 2 of local layers is 5623",
     {SET(F32, "gemma3.rope.freq_base_swa", 0x0da24260)}},
    {"local base u32", BAD, "its type is u32, f32",
     {SET(U32, "gemma3.rope.freq_base_swa", 10000)}},
    {"linear", SOV_OK, "", {SET(F32, "gemma3.rope.scaling.factor", 0x41000000)}},
    {"yarn", UNSUPPORTED, "rope scaling \"yarn\"",
     {SET_TEXT("gemma3.rope.scaling.type", "yarn")}},
    {"soft cap of logits", UNSUPPORTED, "final_logit_softcapping at byte",
     {SET(F32, "gemma3.final_logit_softcapping", 0x41f00000)}},
    {"soft cap of scores", UNSUPPORTED, "attn_logit_softcapping at byte",
     {SET(F32, "gemma3.attn_logit_softcapping", 0x42480000)}},
    {"not causal", UNSUPPORTED, "causal", {SET(BOOL, "gemma3.attention.causal", 0)}},
    {"the keys of llama", SOV_OK, "",
     {SET(U32, "llama.attention.head_count", 0), SET(F32, "llama.rope.freq_base", 0)}},
};

static const struct case_row qwen2_rows[] = {
    {"sound", SOV_OK, "", {NOTHING}},
    {"no bias of q", SOV_OK, "", {NO_TENSOR("blk.0.attn_q.bias")}},
    {"bias of k as long as q", BAD, "its shape is 64; 32 (attention.head_count_kv * head size)",
     {TENSOR_AS("blk.1.attn_k.bias", F32, 64, 0)}},
    {"bias of v nan", BAD, "tensor blk.1.attn_v.bias at byte",
     {VALUE_AT("blk.1.attn_v.bias", 7, F32_NAN)}},
    {"a norm of q", UNSUPPORTED, "tensor blk.0.attn_q_norm.weight at byte",
     {TENSOR_AS("blk.0.attn_q_norm.weight", F32, 16, 0)}},
    {"a bias of the output", UNSUPPORTED, "tensor output.bias at byte",
     {TENSOR_AS("output.bias", F32, N_VOCAB, 0)}},
    {"window", UNSUPPORTED, "sliding_window", {SET(U32, "qwen2.attention.sliding_window", 64)}},
    {"yarn", UNSUPPORTED, "rope scaling \"yarn\"", {SET_TEXT("qwen2.rope.scaling.type", "yarn")}},
};

static const struct case_row qwen3_rows[] = {
    {"sound", SOV_OK, "", {NOTHING}},
    {"no q norm", BAD, "tensor blk.0.attn_q_norm.weight is missing",
     {NO_TENSOR("blk.0.attn_q_norm.weight")}},
    {"no k norm", BAD, "tensor blk.1.attn_k_norm.weight is missing",
     {NO_TENSOR("blk.1.attn_k_norm.weight")}},
    {"k norm of 16", BAD, "its shape is 16; 32 (head size)",
     {TENSOR_AS("blk.0.attn_k_norm.weight", F32, 16, 0)}},
    {"a bias", UNSUPPORTED, "tensor blk.0.attn_q.bias at byte",
     {TENSOR_AS("blk.0.attn_q.bias", F32, N_HEAD * LONG_HEAD, 0)}},
    {"a post norm", UNSUPPORTED, "tensor blk.0.post_ffw_norm.weight at byte",
     {TENSOR_AS("blk.0.post_ffw_norm.weight", F32, N_EMBD, 0)}},
    {"experts", UNSUPPORTED, "expert_count", {SET(U32, "qwen3.expert_count", 128)}},
    {"window", UNSUPPORTED, "sliding_window", {SET(U32, "qwen3.attention.sliding_window", 64)}},
};

static void test_gemma3(void) { run_rows(&gemma3, gemma3_rows, COUNT_OF(gemma3_rows)); }
static void test_qwen2(void) { run_rows(&qwen2, qwen2_rows, COUNT_OF(qwen2_rows)); }
static void test_qwen3(void) { run_rows(&qwen3, qwen3_rows, COUNT_OF(qwen3_rows)); }

// Each matrix in a type of its own; K types need rows of 256, which these widths do not have, so
// F16, BF16, F32 and the types of 32 stand for all here (tests/test_cases.py opens K files).
static void test_mixed_types(void) {
    static const struct edit edits[EDITS_MAX] = {
        TENSOR_AS("token_embd.weight", Q8_0, N_EMBD, N_VOCAB),
        TENSOR_AS("blk.0.attn_q.weight", F32, N_EMBD, 64),
        TENSOR_AS("blk.0.attn_k.weight", BF16, N_EMBD, 32),
        TENSOR_AS("blk.0.ffn_down.weight", Q5_1, N_FF, N_EMBD),
        TENSOR_AS("blk.1.ffn_up.weight", F16, N_EMBD, N_FF),
    };
    struct builder b = builder_new(FILE_BYTES_MAX);
    write_model(&b, &llama, edits);
    struct model m;
    struct sov_fault fault = {0};
    CHECK_MSG(model_parse(&m, b.data, b.len, &fault) == SOV_OK, "%s", fault.message);
    if (fault.status == SOV_OK) {
        CHECK(m.token_embd.type == DTYPE_Q8_0 && m.token_embd.row_bytes == 68);
        CHECK(m.layers[0].attn_q.type == DTYPE_F32 && m.layers[0].attn_q.row_bytes == 256);
        CHECK(m.layers[0].attn_k.type == DTYPE_BF16 && m.layers[0].attn_k.row_bytes == 128);
        CHECK(m.layers[0].ffn_down.type == DTYPE_Q5_1 && m.layers[0].ffn_down.row_bytes == 72);
        CHECK(m.layers[1].ffn_up.type == DTYPE_F16 && m.layers[1].ffn_up.row_bytes == 128);
        CHECK(m.layers[1].ffn_down.type == DTYPE_Q4_0 && m.layers[1].ffn_down.row_bytes == 54);
    }
    model_close(&m);
    builder_free(&b);
}

// --- what a sound file gives ---

static void check_view(const struct model *m, const struct weight *w, struct str name, u32 k,
                       u32 rows) {
    const struct gguf_tensor *t = gguf_find_tensor(&m->gguf, name);
    CHECK_MSG(t != NULL && w->data == t->data && w->type == t->type && str_equal(w->name, name),
              "%.*s: another tensor", STR_ARG(name));
    CHECK_MSG(w->k == k && w->rows == rows, "%.*s: %u x %u", STR_ARG(name), w->k, w->rows);
    CHECK(w->row_bytes == dtype_row_bytes(w->type, k));
}

static void test_fills_model(void) {
    static const struct edit none[EDITS_MAX] = {NOTHING};
    struct builder b = builder_new(FILE_BYTES_MAX);
    write_model(&b, &llama, none);
    struct model m;
    struct sov_fault fault = {0};
    CHECK_MSG(model_parse(&m, b.data, b.len, &fault) == SOV_OK, "%s", fault.message);
    if (fault.status != SOV_OK) return;
    const struct model_params *p = &m.params;
    CHECK(p->arch == MODEL_LLAMA && str_equal(p->arch_name, STR("llama")));
    CHECK(str_equal(p->name, STR("small")));
    CHECK(p->n_layer == N_LAYER && p->n_embd == N_EMBD && p->n_ff == N_FF && p->n_head == N_HEAD);
    CHECK(p->n_head_kv == N_HEAD_KV && p->head_dim == 16 && p->n_vocab == N_VOCAB);
    CHECK(p->rope_dim == ROPE_DIM && !p->rope_neox && p->rope_freq_base == 10000);
    CHECK(p->rope_scaling == ROPE_SCALING_NONE && p->rope_scaling_factor == 1);
    CHECK(p->context_train == 128 && p->rms_eps == 1e-5f && p->embed_scale == 1);
    CHECK(p->attention_scale == 0.25f);
    check_view(&m, &m.token_embd, STR("token_embd.weight"), N_EMBD, N_VOCAB);
    check_view(&m, &m.output, STR("token_embd.weight"), N_EMBD, N_VOCAB);
    check_view(&m, &m.output_norm, STR("output_norm.weight"), N_EMBD, 1);
    CHECK(m.rope_freqs.data == NULL);
    const struct layer_weights *w = &m.layers[1];
    check_view(&m, &w->attn_norm, STR("blk.1.attn_norm.weight"), N_EMBD, 1);
    check_view(&m, &w->attn_q, STR("blk.1.attn_q.weight"), N_EMBD, 64);
    check_view(&m, &w->attn_k, STR("blk.1.attn_k.weight"), N_EMBD, 32);
    check_view(&m, &w->attn_v, STR("blk.1.attn_v.weight"), N_EMBD, 32);
    check_view(&m, &w->attn_output, STR("blk.1.attn_output.weight"), 64, N_EMBD);
    check_view(&m, &w->ffn_norm, STR("blk.1.ffn_norm.weight"), N_EMBD, 1);
    check_view(&m, &w->ffn_gate, STR("blk.1.ffn_gate.weight"), N_EMBD, N_FF);
    check_view(&m, &w->ffn_up, STR("blk.1.ffn_up.weight"), N_EMBD, N_FF);
    check_view(&m, &w->ffn_down, STR("blk.1.ffn_down.weight"), N_FF, N_EMBD);
    CHECK(w->attn_q_bias.data == NULL && w->attn_k_bias.data == NULL);
    CHECK(w->attn_v_bias.data == NULL && w->attn_output_bias.data == NULL);
    model_close(&m);
    model_close(&m); // twice is fine
    builder_free(&b);
}

static void test_fills_optional(void) {
    static const struct edit edits[EDITS_MAX] = {
        TENSOR_AS("output.weight", Q8_0, N_EMBD, N_VOCAB),
        TENSOR_AS("blk.1.attn_k.bias", F32, 32, 0),
        SET(F32, "llama.attention.scale", 0x3e000000),
        SET(U64, "llama.context_length", 0xffffffff),
        SET(U32, "llama.rope.dimension_count", 8),
        SET(F32, "llama.rope.freq_base", 0x48f42400), // 500,000
    };
    struct builder b = builder_new(FILE_BYTES_MAX);
    write_model(&b, &llama, edits);
    struct model m;
    struct sov_fault fault = {0};
    CHECK_MSG(model_parse(&m, b.data, b.len, &fault) == SOV_OK, "%s", fault.message);
    if (fault.status != SOV_OK) return;
    check_view(&m, &m.output, STR("output.weight"), N_EMBD, N_VOCAB);
    check_view(&m, &m.token_embd, STR("token_embd.weight"), N_EMBD, N_VOCAB);
    check_view(&m, &m.layers[1].attn_k_bias, STR("blk.1.attn_k.bias"), 32, 1);
    CHECK(m.layers[0].attn_k_bias.data == NULL);
    CHECK(m.params.attention_scale == 0.125f && m.params.context_train == 0xffffffff);
    CHECK(m.params.rope_dim == 8 && m.params.rope_freq_base == 500000);
    model_close(&m);
    builder_free(&b);
}

// The file of `base` with the edits, opened. The caller closes the model and frees the builder.
static bool open_edited(struct builder *b, struct model *m, const struct base *base,
                        const struct edit *edits) {
    *b = builder_new(FILE_BYTES_MAX);
    write_model(b, base, edits);
    struct sov_fault fault = {0};
    enum sov_status status = model_parse(m, b->data, b->len, &fault);
    CHECK_MSG(status == SOV_OK, "%s", fault.message);
    return status == SOV_OK;
}

static void close_edited(struct builder *b, struct model *m) {
    model_close(m);
    builder_free(b);
}

static void test_fills_gemma3(void) {
    static const struct edit none[EDITS_MAX] = {NOTHING};
    struct builder b;
    struct model m;
    if (open_edited(&b, &m, &gemma3, none)) {
        const struct model_params *p = &m.params;
        CHECK(p->arch == MODEL_GEMMA3 && p->rope_neox && p->window == 16);
        CHECK(p->head_dim == LONG_HEAD && p->rope_dim == LONG_HEAD);
        CHECK(p->rope_freq_base == 1e6f && p->rope_freq_base_local == 10000);
        CHECK(p->embed_scale == 8); // sqrt(64)
        CHECK(p->attention_scale == 0x1.6a09e6p-3f); // 1 / sqrt(32)
        const struct layer_weights *w = &m.layers[1];
        check_view(&m, &w->attn_q, STR("blk.1.attn_q.weight"), N_EMBD, N_HEAD * LONG_HEAD);
        check_view(&m, &w->attn_k, STR("blk.1.attn_k.weight"), N_EMBD, N_HEAD_KV * LONG_HEAD);
        check_view(&m, &w->attn_output, STR("blk.1.attn_output.weight"), N_HEAD * LONG_HEAD,
                   N_EMBD);
        check_view(&m, &w->attn_q_norm, STR("blk.1.attn_q_norm.weight"), LONG_HEAD, 1);
        check_view(&m, &w->attn_k_norm, STR("blk.1.attn_k_norm.weight"), LONG_HEAD, 1);
        check_view(&m, &w->attn_post_norm, STR("blk.1.post_attention_norm.weight"), N_EMBD, 1);
        check_view(&m, &w->ffn_norm, STR("blk.1.ffn_norm.weight"), N_EMBD, 1);
        check_view(&m, &w->ffn_post_norm, STR("blk.1.post_ffw_norm.weight"), N_EMBD, 1);
    }
    close_edited(&b, &m);
}

static void test_fills_qwen(void) {
    static const struct edit none[EDITS_MAX] = {NOTHING};
    struct builder b;
    struct model m;
    if (open_edited(&b, &m, &qwen2, none)) {
        const struct model_params *p = &m.params;
        CHECK(p->arch == MODEL_QWEN2 && p->rope_neox && p->window == 0 && p->embed_scale == 1);
        check_view(&m, &m.layers[1].attn_q_bias, STR("blk.1.attn_q.bias"), 64, 1);
        check_view(&m, &m.layers[1].attn_k_bias, STR("blk.1.attn_k.bias"), 32, 1);
        check_view(&m, &m.layers[1].attn_v_bias, STR("blk.1.attn_v.bias"), 32, 1);
        CHECK(m.layers[1].attn_q_norm.data == NULL && !m.layers[0].is_local);
    }
    close_edited(&b, &m);
    if (open_edited(&b, &m, &qwen3, none)) {
        const struct model_params *p = &m.params;
        CHECK(p->arch == MODEL_QWEN3 && p->rope_neox && p->window == 0 && p->embed_scale == 1);
        CHECK(p->head_dim == LONG_HEAD && p->attention_scale == 0x1.6a09e6p-3f);
        check_view(&m, &m.layers[0].attn_q_norm, STR("blk.0.attn_q_norm.weight"), LONG_HEAD, 1);
        check_view(&m, &m.layers[0].attn_k_norm, STR("blk.0.attn_k_norm.weight"), LONG_HEAD, 1);
        CHECK(m.layers[0].attn_q_bias.data == NULL && m.layers[0].ffn_post_norm.data == NULL);
    }
    close_edited(&b, &m);
}

// Which layers are local, as a bit set. The default pattern needs more than two layers, so the
// model of 62 stands for it; it is also the one whose attention scale is not that of its heads.
static void test_local_layers(void) {
    static const struct {
        const char *name;
        const struct base *base;
        u64 local; // bit i: layer i
        struct edit edits[EDITS_MAX];
    } rows[] = {
        {"default, 2 layers", &gemma3, 3, {NOTHING}},
        {"default, 62 layers", &gemma3_27b, 0x37df7df7df7df7df, // five of six; and 60, 61
         {SET(U32, "gemma3.block_count", N_LAYER_27B)}},
        {"2", &gemma3, 1, {SET(U32, "gemma3.attention.sliding_window_pattern", 2)}},
        {"1", &gemma3, 0, {SET(U32, "gemma3.attention.sliding_window_pattern", 1)}},
        {"list 0 1", &gemma3, 2, {SET_BOOLS("gemma3.attention.sliding_window_pattern", 2, 2)}},
        {"list 1 1", &gemma3, 3, {SET_BOOLS("gemma3.attention.sliding_window_pattern", 2, 3)}},
        {"list 0 0", &gemma3, 0, {SET_BOOLS("gemma3.attention.sliding_window_pattern", 2, 0)}},
        {"no window", &gemma3, 0, {DROP("gemma3.attention.sliding_window")}},
    };
    for (u32 i = 0; i < COUNT_OF(rows); i++) {
        struct builder b;
        struct model m;
        if (open_edited(&b, &m, rows[i].base, rows[i].edits)) {
            u64 local = 0;
            for (u32 j = 0; j < m.params.n_layer; j++) local |= (u64)m.layers[j].is_local << j;
            CHECK_MSG(local == rows[i].local, "%s: %llx", rows[i].name, local);
            bool is_27b = rows[i].base == &gemma3_27b; // 1 / sqrt(64 / 4), and 1 / sqrt(32)
            CHECK(m.params.attention_scale == (is_27b ? 0.25f : 0x1.6a09e6p-3f));
        }
        close_edited(&b, &m);
    }
}

// --- the rope table ---

enum { TABLE_ROWS = 128 };

// The table of an edited model: [TABLE_ROWS, ROPE_DIM]. False when it was refused.
static bool make_table(const struct edit *edits, f32 *table) {
    struct builder b;
    struct model m;
    bool is_open = open_edited(&b, &m, &llama, edits);
    if (is_open) model_rope_table(&m, false, TABLE_ROWS, table);
    close_edited(&b, &m);
    return is_open;
}

static bool same_bits(const f32 *a, const f32 *b, u32 n) {
    for (u32 i = 0; i < n; i++) {
        if (f32_bits(a[i]) != f32_bits(b[i])) return false;
    }
    return true;
}

static bool near(f32 a, f32 b) { // equal, or neighbours: a tie of the rounding may fall either way
    return a == b || f32_bits(a) - f32_bits(b) + 1 <= 2;
}

static void test_rope_table(void) {
    static const struct edit none[EDITS_MAX] = {NOTHING};
    static f32 plain[TABLE_ROWS * ROPE_DIM], other[TABLE_ROWS * ROPE_DIM];
    if (!make_table(none, plain)) return;
    for (u32 i = 0; i < ROPE_DIM; i++) CHECK(plain[i] == (i % 2 == 0 ? 1 : 0));
    // Computed by another program: cos and sin of 100 * 10000^(-2i/16).
    static const struct {
        u32 pair;
        f32 cosine, sine;
    } expected[] = {
        {0, 0x1.b981dcp-1f, -0x1.03425cp-1f},
        {1, 0x1.f515e6p-1f, 0x1.a49d4cp-3f},
        {3, -0x1.ffe3f6p-1f, -0x1.52e104p-6f},
        {7, 0x1.ffbe78p-1f, 0x1.0302b8p-5f},
    };
    for (u32 i = 0; i < COUNT_OF(expected); i++) {
        const f32 *pair = plain + 100 * ROPE_DIM + expected[i].pair * 2;
        CHECK_MSG(near(pair[0], expected[i].cosine) && near(pair[1], expected[i].sine),
                  "pair %u: %.9g %.9g", expected[i].pair, (f64)pair[0], (f64)pair[1]);
    }

    // Positions divided by 4: row 4p is row p of the plain table, to the bit.
    static const struct edit linear[][EDITS_MAX] = {
        {SET_TEXT("llama.rope.scaling.type", "linear"),
         SET(F32, "llama.rope.scaling.factor", 0x40800000)},
        {SET(F32, "llama.rope.scaling.factor", 0x40800000)},
        {SET(F32, "llama.rope.scale_linear", 0x40800000)},
        {SET(F32, "llama.rope.scale_linear", 0x41000000),
         SET(F32, "llama.rope.scaling.factor", 0x40800000)}, // the newer key counts
    };
    for (u32 i = 0; i < COUNT_OF(linear); i++) {
        if (!make_table(linear[i], other)) continue;
        for (u32 p = 0; p < TABLE_ROWS / 4; p++) {
            CHECK(same_bits(other + 4 * p * ROPE_DIM, plain + p * ROPE_DIM, ROPE_DIM));
        }
        CHECK(!same_bits(other + ROPE_DIM, plain + ROPE_DIM, ROPE_DIM));
    }

    // A divisor of 8 for pair 5: its angle at 8p is that of p; the other pairs stay.
    static const struct edit divided[EDITS_MAX] = {
        TENSOR_AS("rope_freqs.weight", F32, 8, 0),
        VALUE_AT("rope_freqs.weight", 5, 0x41000000),
    };
    if (!make_table(divided, other)) return;
    for (u32 p = 0; p < TABLE_ROWS; p++) {
        for (u32 i = 0; i < ROPE_DIM / 2; i++) {
            const f32 *here = other + p * ROPE_DIM + 2 * i, *there = plain + p * ROPE_DIM + 2 * i;
            if (i == 5 && p % 8 != 0) continue;
            if (i == 5) there = plain + p / 8 * ROPE_DIM + 2 * i;
            CHECK_MSG(same_bits(here, there, 2), "position %u, pair %u", p, i);
        }
    }
}

// Local layers have a base of their own and no scaling; the others have the factor.
static void test_rope_tables_of_gemma3(void) {
    static const struct edit plain[EDITS_MAX] = {NOTHING};
    static const struct edit edits[EDITS_MAX] = {
        SET(F32, "gemma3.rope.scaling.factor", 0x41000000), // 8
        SET(F32, "gemma3.rope.freq_base_swa", 0x49742400),  // 1e6, as the other base
    };
    static f32 global[TABLE_ROWS * LONG_HEAD], local[TABLE_ROWS * LONG_HEAD];
    static f32 scaled[TABLE_ROWS * LONG_HEAD], local_1e6[TABLE_ROWS * LONG_HEAD];
    struct builder b;
    struct model m;
    if (open_edited(&b, &m, &gemma3, plain)) {
        model_rope_table(&m, false, TABLE_ROWS, global);
        model_rope_table(&m, true, TABLE_ROWS, local);
    }
    close_edited(&b, &m);
    if (open_edited(&b, &m, &gemma3, edits)) {
        model_rope_table(&m, false, TABLE_ROWS, scaled);
        model_rope_table(&m, true, TABLE_ROWS, local_1e6);
    }
    close_edited(&b, &m);
    CHECK(same_bits(local_1e6, global, TABLE_ROWS * LONG_HEAD));
    for (u32 p = 0; p < TABLE_ROWS / 8; p++) {
        CHECK(same_bits(scaled + 8 * p * LONG_HEAD, global + p * LONG_HEAD, LONG_HEAD));
    }
    CHECK(!same_bits(scaled + LONG_HEAD, global + LONG_HEAD, LONG_HEAD));
    // Computed by another program: cos of 100 * base^(-2 * 5 / 32), base 10,000 and 1,000,000.
    const f32 *row = local + 100 * LONG_HEAD + 2 * 5;
    CHECK_MSG(near(row[0], 0x1.948c2ep-1f), "%.9g", (f64)row[0]);
    row = global + 100 * LONG_HEAD + 2 * 5;
    CHECK_MSG(near(row[0], 0x1.e16462p-3f), "%.9g", (f64)row[0]);
}

// llama3 scaling asked for by keys alone gives the divisors that converters write as a tensor.
static void test_llama3_divisors(void) {
    static const struct edit edits[EDITS_MAX] = {
        SET(F32, "llama.rope.freq_base", 0x48f42400), // 500,000
        SET_TEXT("llama.rope.scaling.type", "llama3"),
        SET(F32, "llama.rope.scaling.factor", 0x41000000),
        SET(F32, "llama.rope.scaling.low_freq_factor", 0x3f800000),
        SET(F32, "llama.rope.scaling.high_freq_factor", 0x40800000),
        SET(U32, "llama.rope.scaling.original_context_length", 8192),
    };
    static const f32 expected[ROPE_DIM / 2] = {
        0x1p+0f, 0x1p+0f, 0x1p+0f, 0x1p+0f,
        0x1.58e65ap+1f, 0x1p+3f, 0x1p+3f, 0x1p+3f};
    struct builder b = builder_new(FILE_BYTES_MAX);
    write_model(&b, &llama, edits);
    struct model m;
    struct sov_fault fault = {0};
    CHECK_MSG(model_parse(&m, b.data, b.len, &fault) == SOV_OK, "%s", fault.message);
    if (fault.status == SOV_OK) {
        bool given = m.rope_freqs.k == ROPE_DIM / 2 && m.rope_freqs.data != NULL;
        CHECK(given);
        CHECK(m.params.rope_scaling == ROPE_SCALING_NONE && m.params.rope_scaling_factor == 1);
        for (u32 i = 0; given && i < ROPE_DIM / 2; i++) {
            f32 divisor = load_f32(m.rope_freqs.data + i * 4);
            CHECK_MSG(near(divisor, expected[i]), "divisor %u: %.9g", i, (f64)divisor);
        }
    }
    model_close(&m);
    builder_free(&b);
}

// --- real files ---

// SmolLM2 opens in a few milliseconds. The first opening may wait for the disk; the second one is
// measured. 100 ms is 100 times what was seen, for slow machines and the sanitizers.
static void test_opens_smollm2(void) {
    const char *path = test_option("SMOLLM2");
    if (path == NULL) {
        test_skip("no option SMOLLM2=FILE");
        return;
    }
    u64 us = 0;
    for (u32 i = 0; i < 2; i++) {
        struct model m;
        struct sov_fault fault = {0};
        u64 before = platform_monotonic_ns();
        enum sov_status status = model_open(&m, path, &fault);
        us = (platform_monotonic_ns() - before) / 1000;
        CHECK_MSG(status == SOV_OK, "%s", fault.message);
        if (status != SOV_OK) return;
        CHECK(m.params.n_layer == 30 && m.params.n_vocab == 49152 && m.params.head_dim == 64);
        CHECK(m.params.n_head == 9 && m.params.n_head_kv == 3 && m.params.n_ff == 1536);
        CHECK(m.token_embd.type == DTYPE_Q8_0 && m.layers[29].ffn_down.type == DTYPE_Q4_1);
        CHECK(m.output.data == m.token_embd.data && m.params.rope_freq_base == 100000);
        model_close(&m);
    }
    test_note("SmolLM2 opened in %llu us", us);
    CHECK(us < 100000);
}

int program_main(const struct platform_start *start) {
    static const struct test_case cases[] = {
        {"fills_model", test_fills_model},
        {"fills_optional", test_fills_optional},
        {"hyperparameters", test_hyperparameters},
        {"rope_keys", test_rope_keys},
        {"tensors", test_tensors},
        {"gemma3", test_gemma3},
        {"qwen2", test_qwen2},
        {"qwen3", test_qwen3},
        {"mixed_types", test_mixed_types},
        {"fills_gemma3", test_fills_gemma3},
        {"fills_qwen", test_fills_qwen},
        {"local_layers", test_local_layers},
        {"rope_table", test_rope_table},
        {"rope_tables_of_gemma3", test_rope_tables_of_gemma3},
        {"llama3_divisors", test_llama3_divisors},
        {"opens_smollm2", test_opens_smollm2},
    };
    return test_main(start, "test_weights", cases, COUNT_OF(cases));
}
