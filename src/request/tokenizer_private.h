// SPDX-License-Identifier: Apache-2.0
// What the files of the tokenizer share: the built vocabulary, its look-ups, and the merging queue.
//
//   tokenizer_vocab.c   tokenizer_source -> struct tokenizer (checks, tables)
//   tokenizer.c         the public calls: special tokens cut out, fragments encoded; decoding
//   tokenizer_bpe.c     one fragment of plain text by byte-level BPE (pretokenize.c cuts it)
//   tokenizer_spm.c     one fragment of plain text by SentencePiece-style merging
//
// V1. Token strings stay in the file; offsets[id] is where the length of the string stands.
// V2. No two tokens have the same text. Empty texts are in no table.
// V3. A slot of a hash table holds an index in its low bits and bits of the hash above them, so
//     that a miss is usually decided without touching the string; SLOT_EMPTY is no such value.
// V4. Every merge is of two known tokens and gives a known one, which is no control, unknown or
//     byte token (T1). So BPE works on ids alone and never builds a string.
#pragma once
#include "freestanding/mem.h"
#include "request/pretokenize.h"
#include "request/tokenizer.h"

#define SLOT_EMPTY 0xffffffffu
#define TOKEN_SLOT_BITS 21 // of an id; above them 11 bits of hash
#define MERGE_SLOT_BITS 22 // of a rank; above them 10 bits of hash
static_assert((TOKENIZER_VOCAB_MAX - 1) >> TOKEN_SLOT_BITS == 0, "an id fits a slot");
static_assert((TOKENIZER_MERGES_MAX - 1) >> MERGE_SLOT_BITS == 0, "a rank fits a slot");

#define RANK_NONE 0xffffffffu

// U+2581 (lower one eighth block) stands for the space in SPM vocabularies.
#define SPM_SPACE "\xe2\x96\x81"
#define SPM_SPACE_BYTES 3

struct bpe_merge {
    u32 left, right, result;
};

#define ATTRIBUTE_TYPE 7 // enum token_type
#define ATTRIBUTE_END 8  // ends an answer

struct tokenizer {
    bool is_spm; // else byte-level BPE
    enum pretokenizer pretokenizer;
    bool add_bos, add_eos, add_space_prefix;
    bool whole_words; // BPE: a whole piece found in the vocabulary is taken before merging
    u32 n_tokens, n_merges, n_specials;
    u32 bos, eos;        // TOKEN_NONE when absent
    u32 replacement;     // T5; TOKEN_NONE when there is none
    u32 piece_bytes_max; // of all tokens
    u32 text_bytes_max;  // of tokens that merging or whole words may give

    const u8 *strings; // of the file
    const u8 *scores;  // of the file, or NULL
    u32 *offsets;      // [n_tokens]
    u8 *attributes;    // [n_tokens]
    u32 *token_slots;  // [token_slot_mask + 1]
    u32 token_slot_mask;
    struct bpe_merge *merges; // [n_merges] by rank
    u32 *merge_slots;         // [merge_slot_mask + 1]
    u32 merge_slot_mask;
    u32 *specials;              // [n_specials] tokens recognised whole, by text in byte order
    u32 special_first[256 + 1]; // those that start with byte b: [special_first[b], [b + 1])
    u32 byte_token[256];        // SPM: <0xHH>; BPE: the token of the byte's letter; or TOKEN_NONE
    // SPM: bit b is set when a token has U+2581 behind a character that ends in byte b and is not
    // U+2581 itself. Text in front of U+2581 elsewhere never merges with it (spm_word_end).
    u32 before_space[256 / 32];
};

static inline struct str token_text(const struct tokenizer *t, u32 id) {
    const u8 *at = t->strings + t->offsets[id];
    return (struct str){at + 8, load_u64(at)};
}

static inline enum token_type token_type_of(const struct tokenizer *t, u32 id) {
    return (enum token_type)(t->attributes[id] & ATTRIBUTE_TYPE);
}

// Whether plain text may become this token (T1). Byte tokens come from single bytes only.
static inline bool token_is_text(const struct tokenizer *t, u32 id) {
    enum token_type type = token_type_of(t, id);
    return type == TOKEN_NORMAL || type == TOKEN_USER_DEFINED || type == TOKEN_UNUSED;
}

// --- hashing ---
#define HASH_START 0xcbf29ce484222325ull
static inline u64 hash_mix(u64 h) {
    h ^= h >> 32;
    h *= 0x9e3779b97f4a7c15ull;
    return h ^ h >> 29;
}

// Byte by byte, so that the hash of two slices in succession is that of their joined text.
static inline u64 hash_bytes(u64 h, struct str s) {
    for (usize i = 0; i < s.len; i++) h = (h ^ s.data[i]) * 0x100000001b3ull;
    return h;
}

static inline u64 hash_pair(u32 left, u32 right) {
    return hash_mix(hash_mix((u64)left << 32 | right) + 1);
}

// The part of a slot above its `bits` of index. All ones is left out: SLOT_EMPTY has them.
static inline u32 slot_tag(u64 hash, u32 bits) {
    u32 tag = (u32)(hash >> (32 + bits)) << bits;
    return tag == ~0u << bits ? 0 : tag;
}

static inline bool text_is_joined(struct str text, struct str head, struct str tail) {
    return text.len == head.len + tail.len && memcmp(text.data, head.data, head.len) == 0 &&
           memcmp(text.data + head.len, tail.data, tail.len) == 0;
}

// The id of the token whose text is `head` with `tail` behind it, or TOKEN_NONE.
static inline u32 find_joined(const struct tokenizer *t, struct str head, struct str tail) {
    u64 hash = hash_mix(hash_bytes(hash_bytes(HASH_START, head), tail));
    u32 tag = slot_tag(hash, TOKEN_SLOT_BITS);
    for (u32 at = (u32)hash;; at++) {
        u32 slot = t->token_slots[at & t->token_slot_mask];
        if (slot == SLOT_EMPTY) return TOKEN_NONE;
        if ((slot & ~0u << TOKEN_SLOT_BITS) != tag) continue;
        u32 id = slot & ~(~0u << TOKEN_SLOT_BITS);
        if (text_is_joined(token_text(t, id), head, tail)) return id;
    }
}

static inline u32 find_token(const struct tokenizer *t, struct str text) {
    return find_joined(t, text, STR(""));
}

// The rank of the merge of two tokens, or RANK_NONE.
static inline u32 find_merge(const struct tokenizer *t, u32 left, u32 right) {
    u64 hash = hash_pair(left, right);
    u32 tag = slot_tag(hash, MERGE_SLOT_BITS);
    for (u32 at = (u32)hash;; at++) {
        u32 slot = t->merge_slots[at & t->merge_slot_mask];
        if (slot == SLOT_EMPTY) return RANK_NONE;
        if ((slot & ~0u << MERGE_SLOT_BITS) != tag) continue;
        u32 rank = slot & ~(~0u << MERGE_SLOT_BITS);
        if (t->merges[rank].left == left && t->merges[rank].right == right) return rank;
    }
}

// --- the letters of byte-level BPE ---
// Every byte is written as a code point below 324 that prints: itself where it is visible Latin-1,
// else the next one from U+0100 on, in the order of the bytes.
#define BYTE_LETTERS_BYTES_MAX 2 // in UTF-8

static inline u32 byte_letter(u8 byte) {
    if (byte <= 0x20) return 0x100 + byte;
    if (byte >= 0x7f && byte <= 0xa0) return 0x121 + (byte - 0x7f);
    return byte == 0xad ? 0x143 : byte;
}

// False for a code point that stands for no byte.
static inline bool letter_byte(u32 code_point, u8 *byte) {
    if (code_point >= 0x100 && code_point <= 0x120)
        *byte = (u8)(code_point - 0x100);
    else if (code_point >= 0x121 && code_point <= 0x142)
        *byte = (u8)(code_point - 0x121 + 0x7f);
    else if (code_point == 0x143)
        *byte = 0xad;
    else if (code_point < 0x100 && byte_letter((u8)code_point) == code_point)
        *byte = (u8)code_point;
    else
        return false;
    return true;
}

// The byte of "<0xHH>", the name of a byte token; -1 for any other text.
static inline i32 byte_of_name(struct str text) {
    if (text.len != 6 || memcmp(text.data, "<0x", 3) != 0 || text.data[5] != '>') return -1;
    i32 value = 0;
    for (usize i = 3; i < 5; i++) {
        u8 digit = text.data[i];
        if (digit >= '0' && digit <= '9')
            value = value * 16 + (digit - '0');
        else if (digit >= 'A' && digit <= 'F')
            value = value * 16 + (digit - 'A' + 10);
        else if (digit >= 'a' && digit <= 'f')
            value = value * 16 + (digit - 'a' + 10);
        else
            return -1;
    }
    return value;
}

// --- merging --- A fragment is a chain of symbols. `pair` belongs to the symbol and the next one:
// the rank of their merge (BPE) or the id of the token they make (SPM); RANK_NONE or TOKEN_NONE
// without one, and for a symbol that was merged into the one before it.
struct symbol {
    u32 prev, next; // SYMBOL_NONE at the ends
    u32 value;      // BPE: the token, or TOKEN_NONE; SPM: where the symbol starts in the text
    u32 pair;
};
#define SYMBOL_NONE 0xffffffffu

// A queue of pairs to merge, the smallest first: how good the pair is in the high half, the index
// of its left symbol in the low half. An entry whose pair has changed is found stale when it comes
// up. A chain of n symbols never has more than 2n entries: n-1 pairs at the start, and each of at
// most n-1 merges takes one out and puts at most two in.
struct merge_queue {
    u64 *entries; // a heap: the children of entry i are entries 4i + 1 to 4i + 4
    usize n, capacity;
};

static inline void queue_push(struct merge_queue *queue, u64 entry) {
    assert(queue->n < queue->capacity);
    usize at = queue->n++;
    while (at > 0) {
        usize parent = (at - 1) / 4;
        if (queue->entries[parent] <= entry) break;
        queue->entries[at] = queue->entries[parent];
        at = parent;
    }
    queue->entries[at] = entry;
}

static inline u64 queue_pop(struct merge_queue *queue) {
    u64 top = queue->entries[0];
    u64 last = queue->entries[--queue->n];
    usize at = 0;
    for (usize first = 1; first < queue->n; first = 4 * at + 1) {
        usize least = first;
        u64 entry = queue->entries[first];
        // Which child is least cannot be foretold: with selections instead of jumps, 1 MB of one
        // letter takes 0.2 s instead of 0.3 s.
        for (usize i = 1; i < 4 && first + i < queue->n; i++) {
            u64 other = queue->entries[first + i];
            least = other < entry ? first + i : least;
            entry = other < entry ? other : entry;
        }
        if (entry >= last) break;
        queue->entries[at] = entry;
        at = least;
    }
    if (queue->n > 0) queue->entries[at] = last;
    return top;
}

// --- encoding one fragment ---
struct encoder {
    const struct tokenizer *t;
    struct symbol *symbols;
    struct merge_queue queue;
    u8 *text; // SPM: the fragment with its spaces escaped; BPE: a piece in letters
    usize text_bytes;
    u32 *ids;
    usize n_ids, capacity;
    struct sov_fault *fault;
};

enum sov_status encoder_put(struct encoder *e, u32 id) MUST_CHECK;
// In place of a byte (BPE) or a character from this byte on (SPM) that has no token (T5).
enum sov_status encoder_put_replacement(struct encoder *e, u8 byte) MUST_CHECK;

enum sov_status bpe_encode(struct encoder *e, struct str fragment) MUST_CHECK;
enum sov_status spm_encode(struct encoder *e, struct str fragment, bool dummy_space) MUST_CHECK;
// Bytes of encoder.text that a fragment of this length needs.
u64 bpe_text_bytes(const struct tokenizer *t);
u64 spm_text_bytes(u64 fragment_bytes);
