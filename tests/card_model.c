// SPDX-License-Identifier: Apache-2.0
// Writes a GGUF model with random weights, as fast as a disk takes it, on a machine that has
// nothing but this program (a card's, say): card_model OUT ARCH TYPE SHAPE [SEED]. ARCH is llama,
// gemma3, qwen2 or qwen3, TYPE one of all matrices (Q4_K), SHAPE one of the table below. The same
// arguments give the same bytes. tools/make_models.py can do more, and needs numpy.
//
// Weights have a mean of about 0 and a deviation of about 0.7 / sqrt(k), so that activations keep
// their size through any number of layers.
#include "freestanding/text.h"
#include "gguf_builder.h"
#include "test.h"

struct shape {
    const char *name;
    u32 n_layer, n_embd, n_ff, n_head, n_head_kv, head_dim, n_vocab, context;
};
static const struct shape shapes[] = {
    {"small", 4, 512, 1536, 8, 2, 64, 1031, 8192},
    {"1b", 16, 2048, 8192, 32, 8, 64, 128256, 8192},
    {"8b", 32, 4096, 14336, 32, 8, 128, 128256, 8192},
};

#define TENSORS_MAX 1024
#define HEAD_BYTES (32u << 20)
#define CHUNK_BLOCKS 65536u
#define LETTERS 44
#define SPECIALS 4

struct tensor {
    char name[48];
    enum dtype type;
    u32 k, rows; // rows 0: a vector
};
struct writer {
    struct builder head;
    struct tensor tensors[TENSORS_MAX];
    u32 n_tensors;
    const char *arch;
    struct shape shape;
    enum dtype type;
    int descriptor;
    u8 *chunk; // [CHUNK_BLOCKS] blocks
    u64 random;
};
static struct writer writer;

static u64 next(void) { // SplitMix64
    u64 z = writer.random += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

// Scales of a block for k = 4096: where they lie, the scale, and the minimum where there is one.
static const struct {
    u16 scale_off, min_off;
    bool has_min;
    f32 scale, min;
} blocks[DTYPE_LIMIT] = {
    [DTYPE_Q4_0] = {0, 0, false, 2.4e-3f, 0},      [DTYPE_Q4_1] = {0, 2, true, 2.4e-3f, -1.8e-2f},
    [DTYPE_Q5_0] = {0, 0, false, 1.2e-3f, 0},      [DTYPE_Q5_1] = {0, 2, true, 1.2e-3f, -1.86e-2f},
    [DTYPE_Q8_0] = {0, 0, false, 1.5e-4f, 0},      [DTYPE_Q2_K] = {80, 82, true, 8e-4f, 1.2e-3f},
    [DTYPE_Q3_K] = {108, 0, false, 2.5e-4f, 0},    [DTYPE_Q4_K] = {0, 2, true, 5e-5f, 3.75e-4f},
    [DTYPE_Q5_K] = {0, 2, true, 2.5e-5f, 3.9e-4f}, [DTYPE_Q6_K] = {208, 0, false, 8e-6f, 0},
};

static void fill_blocks(u8 *data, u64 n_blocks, const struct tensor *t) {
    const struct dtype_info *info = dtype_lookup(t->type);
    u64 bytes = n_blocks * info->block_bytes;
    u32 halvings = 0; // of 1 / sqrt(k), beside that of 4096
    f32 gain = 1;
    for (u32 k = t->k; k < 4096; k *= 2) gain *= 1.41421354f;
    for (u32 k = t->k; k >= 4 * 4096; k /= 4) halvings++;
    for (u32 k = t->k; k > 4096; k /= 2) gain *= 0.70710678f;
    u32 exponent = 120 - halvings; // 2^-7 and above
    for (u32 k = t->k; k * 4 <= 4096; k *= 4) exponent++;
    u64 mask = ~0ull, add = 0;
    if (t->type == DTYPE_F16) {
        mask = 0x83ff83ff83ff83ff;
        add = 0x0001000100010001ull * ((exponent - 112) << 10);
    } else if (t->type == DTYPE_BF16) {
        mask = 0x807f807f807f807f;
        add = 0x0001000100010001ull * (exponent << 7);
    } else if (t->type == DTYPE_F32) {
        mask = 0x807fffff807fffff;
        add = 0x0000000100000001ull * (exponent << 23);
    }
    for (u64 i = 0; i < bytes; i += 8) store_u64(data + i, (next() & mask) | add);
    if (!info->quantised) return;
    for (u64 i = 0; i < n_blocks; i++) {
        u8 *block = data + i * info->block_bytes;
        store_u16(block + blocks[t->type].scale_off, f32_to_f16(blocks[t->type].scale * gain));
        if (!blocks[t->type].has_min) continue;
        store_u16(block + blocks[t->type].min_off, f32_to_f16(blocks[t->type].min * gain));
    }
}

static enum sov_status write_tensor(const struct tensor *t, struct sov_fault *fault) {
    const struct dtype_info *info = dtype_lookup(t->type);
    u64 bytes = dtype_row_bytes(t->type, t->k) * MAX(t->rows, 1u);
    u64 n_blocks = bytes / info->block_bytes;
    enum sov_status status = SOV_OK;
    for (u64 at = 0; at < n_blocks && status == SOV_OK; at += CHUNK_BLOCKS) {
        u64 n = MIN(n_blocks - at, (u64)CHUNK_BLOCKS);
        if (t->rows != 0) {
            fill_blocks(writer.chunk, n, t);
        } else { // norms near 1, biases near 0
            bool is_bias = t->name[str_from_z(t->name).len - 1] == 's';
            for (u64 i = 0; i < n; i++) {
                f32 unit = (f32)(next() >> 40) * 0x1p-24f - 0.5f;
                store_f32(writer.chunk + 4 * i, is_bias ? unit * 0.3f : 1 + unit * 0.4f);
            }
        }
        status = platform_write(writer.descriptor, writer.chunk, n * info->block_bytes, fault);
    }
    static const u8 zeros[32] = {0};
    u64 padding = round_up(bytes, 32) - bytes;
    if (status == SOV_OK && padding > 0) {
        status = platform_write(writer.descriptor, zeros, padding, fault);
    }
    return status;
}

static void add(const char *prefix, const char *name, enum dtype type, u32 k, u32 rows) {
    assert(writer.n_tensors < TENSORS_MAX);
    struct tensor *t = &writer.tensors[writer.n_tensors++];
    struct text text = TEXT_OVER_ARRAY(t->name);
    text_format(&text, "%s%s", prefix, name);
    t->type = type;
    t->k = k;
    t->rows = rows;
    put_tensor(&writer.head, str_from_z(t->name), type, k, rows);
}

static void key_u32(const char *name, u32 value) {
    char memory[96];
    struct text t = TEXT_OVER_ARRAY(memory);
    text_format(&t, "%s.%s", writer.arch, name);
    put_key_u32(&writer.head, str_from_z(t.data), value);
}

static void key_f32(const char *name, f32 value) {
    char memory[96];
    struct text t = TEXT_OVER_ARRAY(memory);
    text_format(&t, "%s.%s", writer.arch, name);
    put_key(&writer.head, str_from_z(t.data), GGUF_F32);
    put_u32(&writer.head, f32_bits(value));
}

static bool is_arch(const char *name) {
    return str_equal(str_from_z(writer.arch), str_from_z(name));
}

static void put_vocabulary(void) {
    static const char *const specials[SPECIALS] = {"<|bos|>", "<|eos|>", "<|im_start|>",
                                                   "<|im_end|>"};
    struct builder *b = &writer.head;
    u32 n_vocab = writer.shape.n_vocab, n_plain = n_vocab - SPECIALS;
    put_key_str(b, STR("tokenizer.ggml.model"), STR("gpt2"));
    put_key_str(b, STR("tokenizer.ggml.pre"), STR("gpt-2"));
    put_key_array(b, STR("tokenizer.ggml.tokens"), GGUF_STRING, n_vocab);
    for (u32 i = 0; i < n_vocab; i++) {
        char memory[16];
        struct text t = TEXT_OVER_ARRAY(memory);
        if (i < LETTERS) {
            text_format(&t, "%c", (int)('0' + i));
        } else if (i < n_plain) {
            text_format(&t, "t%u", i);
        } else {
            text_format(&t, "%s", specials[i - n_plain]);
        }
        put_str(b, str_from_z(t.data));
    }
    put_key_array(b, STR("tokenizer.ggml.token_type"), GGUF_I32, n_vocab);
    for (u32 i = 0; i < n_vocab; i++) put_u32(b, i < n_plain ? 1 : 3); // normal, control
    put_key_array(b, STR("tokenizer.ggml.merges"), GGUF_STRING, 0);
    put_key_u32(b, STR("tokenizer.ggml.bos_token_id"), n_plain);
    put_key_u32(b, STR("tokenizer.ggml.eos_token_id"), n_plain + 1);
}

static void put_keys(void) {
    const struct shape *s = &writer.shape;
    put_key_str(&writer.head, STR("general.architecture"), str_from_z(writer.arch));
    put_key_str(&writer.head, STR("general.name"), str_from_z(s->name));
    key_u32("block_count", s->n_layer);
    key_u32("context_length", s->context);
    key_u32("embedding_length", s->n_embd);
    key_u32("feed_forward_length", s->n_ff);
    key_u32("attention.head_count", s->n_head);
    key_u32("attention.head_count_kv", s->n_head_kv);
    key_u32("attention.key_length", s->head_dim);
    key_u32("attention.value_length", s->head_dim);
    key_f32("attention.layer_norm_rms_epsilon", 1e-5f);
    key_f32("rope.freq_base", 500000.0f);
    if (is_arch("gemma3")) {
        key_u32("attention.sliding_window", 300);
        key_u32("attention.sliding_window_pattern", 2);
    }
    put_vocabulary();
}

static void add_layer(u32 layer) {
    const struct shape *s = &writer.shape;
    char prefix[16];
    struct text text = TEXT_OVER_ARRAY(prefix);
    text_format(&text, "blk.%u.", layer);
    u32 q = s->n_head * s->head_dim, kv = s->n_head_kv * s->head_dim;
    add(prefix, "attn_norm.weight", DTYPE_F32, s->n_embd, 0);
    add(prefix, "attn_q.weight", writer.type, s->n_embd, q);
    add(prefix, "attn_k.weight", writer.type, s->n_embd, kv);
    add(prefix, "attn_v.weight", writer.type, s->n_embd, kv);
    add(prefix, "attn_output.weight", writer.type, q, s->n_embd);
    if (is_arch("qwen2")) {
        add(prefix, "attn_q.bias", DTYPE_F32, q, 0);
        add(prefix, "attn_k.bias", DTYPE_F32, kv, 0);
        add(prefix, "attn_v.bias", DTYPE_F32, kv, 0);
    }
    if (is_arch("gemma3") || is_arch("qwen3")) {
        add(prefix, "attn_q_norm.weight", DTYPE_F32, s->head_dim, 0);
        add(prefix, "attn_k_norm.weight", DTYPE_F32, s->head_dim, 0);
    }
    add(prefix, "ffn_norm.weight", DTYPE_F32, s->n_embd, 0);
    add(prefix, "ffn_gate.weight", writer.type, s->n_embd, s->n_ff);
    add(prefix, "ffn_up.weight", writer.type, s->n_embd, s->n_ff);
    add(prefix, "ffn_down.weight", writer.type, s->n_ff, s->n_embd);
    if (is_arch("gemma3")) {
        add(prefix, "post_attention_norm.weight", DTYPE_F32, s->n_embd, 0);
        add(prefix, "post_ffw_norm.weight", DTYPE_F32, s->n_embd, 0);
    }
}

static enum sov_status write_model(const char *path, struct sov_fault *fault) {
    const struct shape *s = &writer.shape;
    writer.head = builder_new(HEAD_BYTES);
    writer.chunk = platform_memory_map(CHUNK_BLOCKS * 256ull + 8);
    assert(writer.chunk != NULL);
    builder_begin(&writer.head);
    put_keys();
    add("", "token_embd.weight", writer.type, s->n_embd, s->n_vocab);
    for (u32 i = 0; i < s->n_layer; i++) add_layer(i);
    add("", "output_norm.weight", DTYPE_F32, s->n_embd, 0);
    if (!is_arch("gemma3")) add("", "output.weight", writer.type, s->n_embd, s->n_vocab);
    builder_end(&writer.head);
    enum sov_status status = platform_open(path, PLATFORM_OPEN_CREATE, &writer.descriptor, fault);
    if (status != SOV_OK) return status;
    status = platform_write(writer.descriptor, writer.head.data, writer.head.len, fault);
    for (u32 i = 0; i < writer.n_tensors && status == SOV_OK; i++) {
        status = write_tensor(&writer.tensors[i], fault);
    }
    platform_close(writer.descriptor);
    return status;
}

static bool parse(const struct platform_start *start) {
    u64 seed = 1;
    if (start->n_args < 5 || start->n_args > 6) return false;
    if (start->n_args == 6 && !text_parse_u64(str_from_z(start->args[5]), &seed)) return false;
    writer.arch = start->args[2];
    writer.random = seed;
    writer.type = DTYPE_LIMIT;
    for (u32 i = 0; i < DTYPE_LIMIT; i++) {
        if (dtype_lookup(i) == NULL) continue;
        if (str_equal(str_from_z(start->args[3]), str_from_z(dtype_name(i)))) writer.type = i;
    }
    for (u32 i = 0; i < COUNT_OF(shapes); i++) {
        if (str_equal(str_from_z(start->args[4]), str_from_z(shapes[i].name))) {
            writer.shape = shapes[i];
        }
    }
    return writer.type != DTYPE_LIMIT && writer.shape.name != NULL;
}

int program_main(const struct platform_start *start) {
    struct sov_fault fault = {0};
    if (!parse(start)) {
        test_note("usage: card_model OUT ARCH TYPE SHAPE [SEED]");
        return 2;
    }
    enum sov_status status = write_model(start->args[1], &fault);
    if (status != SOV_OK) test_note("%s", fault.message);
    return status == SOV_OK ? 0 : 1;
}
