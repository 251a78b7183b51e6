// SPDX-License-Identifier: Apache-2.0
// Text to token ids and back: byte-level BPE (GGUF model "gpt2") and SentencePiece-style merging by
// score ("llama"), as the vocabulary inside a model file defines them.
//
// T1. Special tokens (control and unknown) are recognised in text only when the caller asks: text
//     of a user cannot inject them, neither whole nor by merging. User-defined tokens (type 4) are
//     ordinary text and always recognised.
// T2. Time is near-linear in the text; the stack is constant; memory comes from the caller's
//     arenas.
// T3. Decoding gives bytes; nothing is lost: for valid text decode(encode(x)) == x. Two exceptions
//     lie in the vocabularies themselves: SPM has one token for a space and for U+2581, and decodes
//     it as a space; and T5.
// T4. Bytes that are not valid UTF-8 (RFC 3629) never stop the tokenizer and are never dropped.
//     Each is a character of its own, outside every letter and digit class, on every path. SPM
//     encodes it by its byte token, byte-level BPE as any other byte: its value is kept.
// T5. Some vocabularies have no token for some bytes. In BPE such a byte, of valid text or not,
//     becomes the token of U+FFFD if that is one token, else the unknown token. In SPM a character
//     with such a byte becomes the unknown token, else that of U+FFFD. An unknown token that ends
//     answers or begins texts is not used (T1). Where nothing is left, encoding fails with
//     SOV_ERR_UNSUPPORTED and names the byte.
#pragma once
#include "freestanding/arena.h"
#include "freestanding/text.h"

#define TOKENIZER_TEXT_BYTES_MAX (1ull << 30)
#define TOKENIZER_VOCAB_MAX (1u << 21)
#define TOKENIZER_MERGES_MAX (1u << 22)
#define TOKEN_NONE 0xffffffffu
#define TOKEN_ABSENT 0xffffffffffffffffull // in tokenizer_source: the file gives no such id

enum token_type { // GGUF's numbers
    TOKEN_NORMAL = 1,
    TOKEN_UNKNOWN = 2,
    TOKEN_CONTROL = 3,
    TOKEN_USER_DEFINED = 4,
    TOKEN_UNUSED = 5,
    TOKEN_BYTE = 6,
};

// What a model file says of its vocabulary. Slices point into the file. Arrays are as in GGUF:
// strings are {u64 length, bytes} one after another and were bounds-checked by the reader of the
// file; scores are f32, types i32, little-endian, any alignment. Equal counts of tokens, scores and
// types were checked by the reader too.
struct tokenizer_source {
    struct str model; // tokenizer.ggml.model: "gpt2" or "llama"
    struct str pre;   // tokenizer.ggml.pre; empty when absent; of no account for "llama"
    u32 n_tokens;
    const u8 *tokens;
    const u8 *scores; // [n_tokens], or NULL (all 0)
    const u8 *types;  // [n_tokens], or NULL (all normal)
    u32 n_merges;
    const u8 *merges; // "left right" strings, or NULL
    // Ids as the file gives them, TOKEN_ABSENT when it does not. Wider than an id, because a file
    // may give any number, 2^32-1 too, and those outside the vocabulary are refused.
    u64 bos, eos, eot, unknown;
    bool has_add_bos, add_bos, has_add_eos, add_eos; // tokenizer.ggml.add_*_token
    bool has_add_space_prefix, add_space_prefix;
};

struct tokenizer; // opaque; lives in the arena given to tokenizer_create

// Bytes of arena that tokenizer_create will take, at most.
u64 tokenizer_memory_bytes(const struct tokenizer_source *source);

// Checks the vocabulary (known model and pre-tokenizer, ids inside it, types within their range, no
// token twice, merges of known tokens, ...) and builds the lookup tables. `source` is copied; its
// slices must stay. The tokenizer is read-only afterwards and may be used by any thread.
//
// BOS is put in front of texts when the file says so (add_bos_token) and, where it says nothing,
// for "llama" with a BOS id and for the pre-tokenizer llama-bpe. EOS is put behind only when the
// file says so. A file that wants one and gives no id for it is refused.
enum sov_status tokenizer_create(const struct tokenizer_source *source, struct arena *arena,
                                 const struct tokenizer **tokenizer, struct sov_fault *fault)
    MUST_CHECK;

enum tokenizer_flags {
    TOKENIZE_BOS_EOS = 1,  // add BOS in front and EOS behind where the vocabulary's rules say so,
                           // unless the text has it there already as a special token
    TOKENIZE_SPECIAL = 2,  // recognise control tokens in the text
    TOKENIZE_CONTINUE = 4, // the text goes on after other tokens: no dummy space of SPM
};

// Bytes of scratch arena that encoding a text of this length needs, at most. (Address space: pages
// are touched as the longest piece of the text needs them.)
u64 tokenizer_encode_scratch_bytes(const struct tokenizer *, usize text_bytes);
// Ids of `text` into ids[capacity]; *n_ids is how many there are. Too many is SOV_ERR_LIMIT (never
// happens for capacity >= text.len + 3), and so is a text over TOKENIZER_TEXT_BYTES_MAX. `scratch`
// is used and left as it was.
//
// SPM's dummy space is put in front of the text only, and not when a token recognised whole (a
// special or user-defined one) stands there; never again after a special token.
enum sov_status tokenizer_encode(const struct tokenizer *, struct str text, u32 flags,
                                 struct arena *scratch, u32 *ids, usize capacity, usize *n_ids,
                                 struct sov_fault *fault) MUST_CHECK;

// The bytes of one token (id < tokenizer_n_tokens) as text. Control and unknown tokens have none
// unless `special`. Writes at most `capacity` bytes to out and returns how many it wrote; a longer
// piece is cut (tokenizer_piece_bytes_max gives enough). `first`: the token stands at the start of
// the text (a BOS before it does not count), where SPM's dummy space is dropped. A piece may end
// inside a UTF-8 character: streaming output goes through utf8_complete_prefix.
usize tokenizer_decode(const struct tokenizer *, u32 id, bool special, bool first, u8 *out,
                       usize capacity);
usize tokenizer_piece_bytes_max(const struct tokenizer *); // at least 1

u32 tokenizer_n_tokens(const struct tokenizer *);
u32 tokenizer_bos(const struct tokenizer *); // TOKEN_NONE when there is none
u32 tokenizer_eos(const struct tokenizer *);
// Whether TOKENIZE_BOS_EOS puts BOS in front.
bool tokenizer_adds_bos(const struct tokenizer *);
// True for tokens that end an answer: EOS, EOT and the known end tokens of the vocabulary
// (<|im_end|>, <|eot_id|>, <end_of_turn>, ...; the list is in tokenizer_vocab.c). False for ids
// outside the vocabulary.
bool tokenizer_is_end(const struct tokenizer *, u32 id);
// As the tokenizer treats it: may differ from the file's for known control tokens and byte tokens.
enum token_type tokenizer_type(const struct tokenizer *, u32 id);
// The id of the token with exactly this stored text (for templates: "<|im_start|>"), or TOKEN_NONE.
u32 tokenizer_find(const struct tokenizer *, struct str stored_text);
