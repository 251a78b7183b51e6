// SPDX-License-Identifier: Apache-2.0
// Small vocabularies in memory, laid out as GGUF's arrays, for the tests and the fuzzer of the
// tokenizer. Needs the project's headers only.
#pragma once
#include "freestanding/mem.h"
#include "request/tokenizer.h"

#define VOCAB_TOKENS_MAX 4096
#define VOCAB_MERGES_MAX 4096
#define VOCAB_STRINGS_BYTES (1u << 18)

struct vocab {
    u8 tokens[VOCAB_STRINGS_BYTES]; // {u64 length, bytes} one after another
    u8 merges[VOCAB_STRINGS_BYTES];
    u8 scores[4 * VOCAB_TOKENS_MAX];
    u8 types[4 * VOCAB_TOKENS_MAX];
    struct str texts[VOCAB_TOKENS_MAX]; // slices of tokens, for the tests' own use
    struct str pairs[VOCAB_MERGES_MAX]; // slices of merges: "left right"
    usize tokens_bytes, merges_bytes;
    struct tokenizer_source source;
};

static inline void vocab_start(struct vocab *v, const char *model, const char *pre) {
    v->tokens_bytes = 0;
    v->merges_bytes = 0;
    v->source = (struct tokenizer_source){
        .model = str_from_z(model),
        .pre = str_from_z(pre),
        .tokens = v->tokens,
        .types = v->types,
        .bos = TOKEN_ABSENT,
        .eos = TOKEN_ABSENT,
        .eot = TOKEN_ABSENT,
        .unknown = TOKEN_ABSENT,
    };
    bool is_spm = str_equal(v->source.model, STR("llama"));
    if (is_spm)
        v->source.scores = v->scores;
    else
        v->source.merges = v->merges;
}

static inline u32 vocab_add(struct vocab *v, struct str text, i32 type, f32 score) {
    u32 id = v->source.n_tokens++;
    assert(id < VOCAB_TOKENS_MAX && v->tokens_bytes + 8 + text.len <= sizeof v->tokens);
    u8 *at = v->tokens + v->tokens_bytes;
    store_u64(at, text.len);
    memcpy(at + 8, text.data, text.len);
    v->texts[id] = (struct str){at + 8, text.len};
    v->tokens_bytes += 8 + text.len;
    store_f32(v->scores + 4 * id, score);
    store_i32(v->types + 4 * id, type);
    return id;
}

static inline u32 vocab_add_z(struct vocab *v, const char *text, i32 type, f32 score) {
    return vocab_add(v, str_from_z(text), type, score);
}

// Adds "left right" to the merges; the result must be added as a token by itself.
static inline void vocab_add_merge(struct vocab *v, struct str left, struct str right) {
    u32 rank = v->source.n_merges++;
    usize len = left.len + 1 + right.len;
    assert(rank < VOCAB_MERGES_MAX && v->merges_bytes + 8 + len <= sizeof v->merges);
    u8 *at = v->merges + v->merges_bytes;
    store_u64(at, len);
    memcpy(at + 8, left.data, left.len);
    at[8 + left.len] = ' ';
    memcpy(at + 9 + left.len, right.data, right.len);
    v->pairs[rank] = (struct str){at + 8, len};
    v->merges_bytes += 8 + len;
}

// A merge and, when it is not there yet, the token that it makes. Texts are in letters (BPE).
static inline void vocab_merge(struct vocab *v, const char *left, const char *right) {
    char memory[1024];
    struct text joined = TEXT_OVER_ARRAY(memory);
    text_format(&joined, "%s%s", left, right);
    assert(!joined.truncated);
    struct str result = {(const u8 *)joined.data, joined.len};
    bool known = false;
    for (u32 id = 0; id < v->source.n_tokens; id++)
        known = known || str_equal(v->texts[id], result);
    if (!known) vocab_add(v, result, TOKEN_NORMAL, 0);
    vocab_add_merge(v, str_from_z(left), str_from_z(right));
}

// The letter of a byte in byte-level BPE, by its definition: bytes that print stand for themselves,
// the others are numbered from U+0100 on in their order. Returns its length in UTF-8.
static inline u32 vocab_letter(u8 byte, u8 letter[4]) {
    u32 next = 0x100;
    for (u32 b = 0; b <= byte; b++) {
        bool prints = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        if (b == byte) return utf8_encode(prints ? b : next, letter);
        if (!prints) next++;
    }
    return 0;
}

// The 256 letters, ids in the order of the bytes from the next id on.
static inline u32 vocab_add_letters(struct vocab *v) {
    u32 first = v->source.n_tokens;
    for (u32 b = 0; b < 256; b++) {
        u8 letter[4];
        u32 bytes = vocab_letter((u8)b, letter);
        vocab_add(v, (struct str){letter, bytes}, TOKEN_NORMAL, 0);
    }
    return first;
}

// The 256 byte tokens <0x00> to <0xFF>.
static inline u32 vocab_add_byte_tokens(struct vocab *v, i32 type) {
    u32 first = v->source.n_tokens;
    for (u32 b = 0; b < 256; b++) {
        const char *digits = "0123456789ABCDEF";
        u8 name[] = {'<', '0', 'x', (u8)digits[b >> 4], (u8)digits[b & 15], '>'};
        vocab_add(v, (struct str){name, sizeof name}, type, 0);
    }
    return first;
}
