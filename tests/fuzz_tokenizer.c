// SPDX-License-Identifier: Apache-2.0
// libFuzzer harness of the tokenizer. The first byte of an input says what the rest is:
//
//   0vvv ffff   text for built-in vocabulary v (five pre-tokenizers of BPE, SPM with and without a
//               dummy space; all know every byte) with the flags f: encoding must succeed, decoding
//               must give the text back, and no control token may appear that was not asked for
//   1m.. ffff   a vocabulary (m: SPM) and then a text for it: anything may be refused, nothing may
//               crash, and what is accepted is encoded within the promised memory
//
// Scratch memory and ids come from malloc in exactly the promised sizes, so that the sanitizer sees
// a step too far. hosted.c brings a main of its own; libFuzzer's takes its place.
#include "freestanding/mem.h"
#include "platform/platform.h"
#include "vocab_builder.h"
#include <stdlib.h>

#define N_BUILT_IN 7
#define FLAGS (TOKENIZE_BOS_EOS | TOKENIZE_SPECIAL | TOKENIZE_CONTINUE)

int LLVMFuzzerTestOneInput(const u8 *data, usize bytes);

static void *allocate(u64 bytes) {
    void *memory = malloc(bytes > 0 ? bytes : 1);
    assert(memory != NULL);
    return memory;
}

static const struct tokenizer *create(const struct vocab *v, void **memory) {
    u64 bytes = tokenizer_memory_bytes(&v->source);
    *memory = allocate(bytes);
    struct arena arena = arena_over(*memory, bytes);
    const struct tokenizer *t = NULL;
    struct sov_fault fault = {0};
    enum sov_status status = tokenizer_create(&v->source, &arena, &t, &fault);
    assert((status == SOV_OK) == (t != NULL));
    assert(status == SOV_OK || fault.message[0] != 0);
    assert(status != SOV_ERR_MEMORY); // the promise was kept
    return t;
}

static void add_specials(struct vocab *v) {
    v->source.bos = vocab_add_z(v, "<s>", TOKEN_CONTROL, 0);
    v->source.eos = vocab_add_z(v, "<|e|>", TOKEN_CONTROL, 0);
    v->source.has_add_bos = true;
    v->source.add_bos = true;
    v->source.has_add_eos = true;
    v->source.add_eos = true;
    vocab_add_z(v, "<n>", TOKEN_USER_DEFINED, 0);
    vocab_add_z(v, "\n\n", TOKEN_USER_DEFINED, 0);
    vocab_add_z(v, "\n\n\n\n", TOKEN_USER_DEFINED, 0);
}

static void build_bpe(struct vocab *v, const char *pre) {
    static const char *const pairs[][2] = {
        {"Ġ", "Ġ"},   {"t", "h"},  {"h", "e"},  {"th", "e"}, {"Ġ", "the"}, {"a", "a"},
        {"aa", "aa"}, {"aa", "a"}, {"Ġ", "a"},  {"1", "2"},  {"12", "3"},  {"Ã", "©"},
        {"Ċ", "Ċ"},   {"'", "s"},  {"e", "Ã©"}, {"<", "s"},  {"s", ">"},
    };
    vocab_start(v, "gpt2", pre);
    vocab_add_letters(v);
    for (usize i = 0; i < COUNT_OF(pairs); i++) vocab_merge(v, pairs[i][0], pairs[i][1]);
    vocab_add_z(v, "Ġwhole", TOKEN_NORMAL, 0);
    add_specials(v);
}

static void build_spm(struct vocab *v, bool space_prefix) {
    static const char *const texts[] = {"▁",  "a",  "t",  "h",  "e",        "s",    "<",  ">",
                                        "é",  "th", "he", "▁t", "the",      "▁the", "aa", "aaaa",
                                        "a▁", "▁▁", "<s", "s>", "\xcc\x81", ">▁<",  "日"};
    vocab_start(v, "llama", "");
    vocab_add_byte_tokens(v, TOKEN_BYTE);
    for (usize i = 0; i < COUNT_OF(texts); i++)
        vocab_add_z(v, texts[i], TOKEN_NORMAL, -(f32)(i * 7 % 5));
    v->source.has_add_space_prefix = true;
    v->source.add_space_prefix = space_prefix;
    add_specials(v);
}

static const struct tokenizer *built_in(u32 which, const struct vocab **vocab) {
    static const char *const pres[] = {"gpt-2", "smollm", "llama-bpe", "qwen2", "default"};
    static struct vocab vocabularies[N_BUILT_IN];
    static const struct tokenizer *tokenizers[N_BUILT_IN];
    if (tokenizers[which] == NULL) {
        void *memory; // kept for ever
        if (which < COUNT_OF(pres))
            build_bpe(&vocabularies[which], pres[which]);
        else
            build_spm(&vocabularies[which], which == COUNT_OF(pres));
        tokenizers[which] = create(&vocabularies[which], &memory);
        assert(tokenizers[which] != NULL);
    }
    *vocab = &vocabularies[which];
    return tokenizers[which];
}

// Encodes in exactly the promised memory; the ids are the caller's to free.
static enum sov_status encode(const struct tokenizer *t, struct str text, u32 flags, u32 **ids,
                              usize *n_ids) {
    u64 scratch_bytes = tokenizer_encode_scratch_bytes(t, text.len);
    void *scratch_memory = allocate(scratch_bytes);
    struct arena scratch = arena_over(scratch_memory, scratch_bytes);
    *ids = allocate(4 * (text.len + 3));
    struct sov_fault fault = {0};
    enum sov_status status =
        tokenizer_encode(t, text, flags, &scratch, *ids, text.len + 3, n_ids, &fault);
    assert(status == SOV_OK || fault.message[0] != 0);
    assert(status != SOV_ERR_MEMORY && status != SOV_ERR_LIMIT);
    free(scratch_memory);
    return status;
}

// One byte of the text as it comes back: SPM has one token for a space and for U+2581.
static u8 expected_byte(struct str text, usize *at, bool spm) {
    if (spm && text.len - *at >= 3 && memcmp(text.data + *at, "▁", 3) == 0) {
        *at += 3;
        return ' ';
    }
    return text.data[(*at)++];
}

static void check_round_trip(u32 which, struct str text, u32 flags) {
    const struct vocab *v;
    const struct tokenizer *t = built_in(which, &v);
    bool spm = v->source.scores != NULL;
    u32 *ids;
    usize n_ids;
    enum sov_status status = encode(t, text, flags, &ids, &n_ids);
    assert(status == SOV_OK);
    usize begin = 0, end = n_ids, at = 0;
    bool special = (flags & TOKENIZE_SPECIAL) != 0;
    if ((flags & TOKENIZE_BOS_EOS) != 0) {
        assert(n_ids >= 2 || (special && n_ids == 1));
        assert(ids[0] == tokenizer_bos(t) && ids[n_ids - 1] == tokenizer_eos(t));
        bool bos_in_text = special && str_starts_with(text, STR("<s>"));
        struct str tail = {text.data + text.len - MIN(text.len, (usize)5), MIN(text.len, (usize)5)};
        bool eos_in_text = special && str_equal(tail, STR("<|e|>"));
        begin = bos_in_text ? 0 : 1;
        end -= eos_in_text ? 0 : 1;
    }
    for (usize i = begin; i < end; i++) {
        assert(special || tokenizer_type(t, ids[i]) != TOKEN_CONTROL);
        u8 piece[64];
        bool first = i == begin && (flags & TOKENIZE_CONTINUE) == 0;
        usize len = tokenizer_decode(t, ids[i], true, first, piece, sizeof piece);
        for (usize k = 0; k < len; k++) {
            assert(at < text.len);
            u8 wanted = expected_byte(text, &at, spm);
            assert(piece[k] == wanted);
        }
    }
    assert(at == text.len);
    free(ids);
}

// A vocabulary from the input: entries of {kind and length, bytes}, ended by the kind 7; what is
// left is a text.
static void try_vocabulary(const u8 *data, usize bytes, bool spm, u32 flags) {
    static struct vocab v;
    static const char *const pres[] = {"gpt-2", "smollm", "llama-bpe", "qwen2", "default", "", "x"};
    vocab_start(&v, spm ? "llama" : "gpt2", pres[flags % COUNT_OF(pres)]);
    usize at = 0;
    if ((flags & 8) != 0) v.source.types = NULL;
    while (at < bytes && v.source.n_tokens < 1000 && v.source.n_merges < 1000) {
        u8 head = data[at++];
        if (head >> 5 == 7) break;
        struct str text = {data + at, MIN((usize)(head & 31), bytes - at)};
        at += text.len;
        if (head == 0xc0)
            vocab_add_byte_tokens(&v, TOKEN_BYTE);
        else if (head == 0xc1)
            vocab_add_letters(&v);
        else if (head == 0xc2)
            v.source.bos = v.source.n_tokens;
        else if (head == 0xc3)
            v.source.eos = v.source.n_tokens;
        else if (head == 0xc4)
            v.source.unknown = v.source.n_tokens;
        else if (head >> 5 == 6)
            vocab_add_merge(&v, text, STR("")); // as it comes, and a space
        else if (head >> 5 == 5 && text.len > 1) {
            usize left = 1 + text.data[0] % (text.len - 1);
            vocab_add_merge(&v, (struct str){text.data, left},
                            (struct str){text.data + left, text.len - left});
        } else {
            static const i32 types[] = {TOKEN_NORMAL, TOKEN_USER_DEFINED, TOKEN_CONTROL,
                                        TOKEN_BYTE,   TOKEN_UNKNOWN,      TOKEN_UNUSED};
            vocab_add(&v, text, types[head >> 5], (f32)(head & 3) - 1);
        }
    }
    void *memory;
    const struct tokenizer *t = create(&v, &memory);
    if (t != NULL) {
        struct str text = {data + at, bytes - at};
        u32 *ids;
        usize n_ids;
        if (encode(t, text, flags & FLAGS, &ids, &n_ids) == SOV_OK) {
            u8 piece[64];
            for (usize i = 0; i < n_ids; i++) {
                assert(ids[i] < tokenizer_n_tokens(t));
                usize len =
                    tokenizer_decode(t, ids[i], (flags & 2) != 0, i == 0, piece, sizeof piece);
                assert(len <= tokenizer_piece_bytes_max(t));
            }
        }
        free(ids);
    }
    free(memory);
}

int LLVMFuzzerTestOneInput(const u8 *data, usize bytes) {
    if (bytes == 0) return 0;
    u8 head = data[0];
    if ((head & 0x80) != 0) {
        try_vocabulary(data + 1, bytes - 1, (head & 0x40) != 0, head & 15);
        return 0;
    }
    check_round_trip((head >> 4) % N_BUILT_IN, (struct str){data + 1, bytes - 1}, head & FLAGS);
    return 0;
}
