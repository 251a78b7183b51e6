// SPDX-License-Identifier: Apache-2.0
// The public calls of the tokenizer. Encoding goes through the text once:
//
//   text  ──special tokens cut out──▶  fragments of plain text  ──bpe_encode | spm_encode──▶  ids
//
// At every place the longest special token that is allowed there is taken, the leftmost first.
// (This is what the original tokenizers do. llama.cpp takes the longest of the whole text first;
// the two differ only where a longer special token starts inside a shorter one.)
//
// Checks and tables of the vocabulary are in tokenizer_vocab.c, the tables' invariants in
// tokenizer_private.h, the rules T1 to T5 in tokenizer.h.
#include "request/tokenizer_private.h"

enum sov_status encoder_put(struct encoder *e, u32 id) {
    if (e->n_ids == e->capacity)
        return fault_set(e->fault, SOV_ERR_LIMIT, "the text has more than %llu tokens",
                         (u64)e->capacity);
    e->ids[e->n_ids++] = id;
    return SOV_OK;
}

enum sov_status encoder_put_replacement(struct encoder *e, u8 byte) {
    if (e->t->replacement == TOKEN_NONE)
        return fault_set(e->fault, SOV_ERR_UNSUPPORTED,
                         "the vocabulary has no token for the byte 0x%02x of the text", byte);
    return encoder_put(e, e->t->replacement);
}

// --- special tokens ---

// The first of specials[from, to) whose byte `depth` is at least `byte`. They are sorted, longer
// than `depth`, and equal in front of it.
static u32 lower_bound(const struct tokenizer *t, u32 from, u32 to, usize depth, u32 byte) {
    while (from < to) {
        u32 middle = from + (to - from) / 2;
        if (token_text(t, t->specials[middle]).data[depth] < byte)
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

// The longest token to be recognised whole at text[at], or TOKEN_NONE. The candidates are narrowed
// byte by byte; their number at the start bounds the work: nearly always it is 0.
static u32 match_special(const struct tokenizer *t, struct str text, usize at, bool special) {
    u32 best = TOKEN_NONE;
    u32 from = t->special_first[text.data[at]], to = t->special_first[text.data[at] + 1];
    for (usize depth = 1; from < to; depth++) {
        u32 id = t->specials[from];
        if (token_text(t, id).len == depth) { // it ends here, and sorts before the longer ones
            if (special || token_type_of(t, id) == TOKEN_USER_DEFINED) best = id; // T1
            from++;
        }
        if (at + depth == text.len) break;
        u32 byte = text.data[at + depth];
        from = lower_bound(t, from, to, depth, byte);
        to = lower_bound(t, from, to, depth, byte + 1);
    }
    return best;
}

// --- encoding ---

static u64 scratch_symbols(const struct tokenizer *t, u64 text_bytes) {
    return text_bytes + (t->is_spm ? 1 : 0); // SPM: the dummy space
}

static u64 scratch_text_bytes(const struct tokenizer *t, u64 text_bytes) {
    return t->is_spm ? spm_text_bytes(text_bytes) : bpe_text_bytes(t);
}

u64 tokenizer_encode_scratch_bytes(const struct tokenizer *t, usize text_bytes) {
    u64 bytes = MIN((u64)text_bytes, TOKENIZER_TEXT_BYTES_MAX); // longer ones are refused
    u64 n = scratch_symbols(t, bytes);
    u64 align_slack = 3 * 16;
    return n * sizeof(struct symbol) + 2 * n * sizeof(u64) + scratch_text_bytes(t, bytes) +
           align_slack;
}

static enum sov_status encoder_start(struct encoder *e, struct arena *scratch, usize text_bytes) {
    u64 n = scratch_symbols(e->t, text_bytes);
    e->text_bytes = scratch_text_bytes(e->t, text_bytes);
    e->symbols = arena_array(scratch, struct symbol, MAX(n, 1ull));
    e->queue = (struct merge_queue){.entries = arena_array(scratch, u64, MAX(2 * n, 1ull)),
                                    .capacity = 2 * n};
    e->text = arena_array(scratch, u8, MAX(e->text_bytes, (usize)1));
    if (e->symbols == NULL || e->queue.entries == NULL || e->text == NULL)
        return arena_fault(scratch, e->fault, "encoding a text",
                           tokenizer_encode_scratch_bytes(e->t, text_bytes));
    return SOV_OK;
}

static enum sov_status encode_fragment(struct encoder *e, struct str fragment, bool dummy_space) {
    if (fragment.len == 0) return SOV_OK;
    return e->t->is_spm ? spm_encode(e, fragment, dummy_space) : bpe_encode(e, fragment);
}

// The whole text, without BOS and EOS. *last is the special token at its end, or TOKEN_NONE.
static enum sov_status encode_text(struct encoder *e, struct str text, u32 flags, u32 *last) {
    const struct tokenizer *t = e->t;
    bool special = (flags & TOKENIZE_SPECIAL) != 0;
    bool dummy_space = t->add_space_prefix && (flags & TOKENIZE_CONTINUE) == 0;
    usize plain = 0; // where the fragment of plain text in front of `at` starts
    *last = TOKEN_NONE;
    for (usize at = 0; at < text.len;) {
        u32 id = match_special(t, text, at, special);
        if (id == TOKEN_NONE) {
            at++;
            continue;
        }
        struct str fragment = {text.data + plain, at - plain};
        enum sov_status status = encode_fragment(e, fragment, dummy_space && plain == 0);
        if (status == SOV_OK) status = encoder_put(e, id);
        if (status != SOV_OK) return status;
        at += token_text(t, id).len;
        plain = at;
        if (at == text.len) *last = id;
    }
    struct str rest = {text.data + plain, text.len - plain};
    return encode_fragment(e, rest, dummy_space && plain == 0);
}

enum sov_status tokenizer_encode(const struct tokenizer *t, struct str text, u32 flags,
                                 struct arena *scratch, u32 *ids, usize capacity, usize *n_ids,
                                 struct sov_fault *fault) {
    *n_ids = 0;
    if (text.len > TOKENIZER_TEXT_BYTES_MAX)
        return fault_set(fault, SOV_ERR_LIMIT, "the text has %llu bytes; at most %llu are taken",
                         (u64)text.len, TOKENIZER_TEXT_BYTES_MAX);
    struct encoder e = {.t = t, .ids = ids, .capacity = capacity, .fault = fault};
    bool special = (flags & TOKENIZE_SPECIAL) != 0;
    bool add_bos = (flags & TOKENIZE_BOS_EOS) != 0 && t->add_bos;
    // A template may have written BOS already; two of them make answers quietly worse.
    if (add_bos && special && text.len > 0 && match_special(t, text, 0, true) == t->bos)
        add_bos = false;

    usize used = scratch->used;
    u32 last = TOKEN_NONE;
    enum sov_status status = encoder_start(&e, scratch, text.len);
    if (status == SOV_OK && add_bos) status = encoder_put(&e, t->bos);
    if (status == SOV_OK) status = encode_text(&e, text, flags, &last);
    if (status == SOV_OK && (flags & TOKENIZE_BOS_EOS) != 0 && t->add_eos && last != t->eos)
        status = encoder_put(&e, t->eos);
    scratch->used = used;
    if (status == SOV_OK) *n_ids = e.n_ids;
    return status;
}

// --- decoding ---

// Output of a decoder: what does not fit is cut.
struct piece {
    u8 *out;
    usize len, capacity;
};

static void piece_put(struct piece *piece, const u8 *data, usize len) {
    len = MIN(len, piece->capacity - piece->len);
    memcpy(piece->out + piece->len, data, len);
    piece->len += len;
}

// Letters back to their bytes. What is no letter stands for itself (some vocabularies have such).
static void decode_letters(struct piece *piece, struct str text) {
    for (usize at = 0; at < text.len;) {
        u32 code_point;
        u32 bytes = utf8_decode(text, at, &code_point);
        u8 byte;
        if (bytes != 0 && letter_byte(code_point, &byte))
            piece_put(piece, &byte, 1);
        else
            piece_put(piece, text.data + at, MAX(bytes, 1u));
        at += MAX(bytes, 1u);
    }
}

// U+2581 back to spaces; the dummy one at the start of the text is dropped.
static void decode_spaces(struct piece *piece, struct str text, bool drop_first) {
    for (usize at = 0; at < text.len;) {
        if (text.len - at < SPM_SPACE_BYTES ||
            memcmp(text.data + at, SPM_SPACE, SPM_SPACE_BYTES) != 0) {
            piece_put(piece, text.data + at++, 1);
            continue;
        }
        if (at > 0 || !drop_first) piece_put(piece, (const u8 *)" ", 1);
        at += SPM_SPACE_BYTES;
    }
}

usize tokenizer_decode(const struct tokenizer *t, u32 id, bool special, bool first, u8 *out,
                       usize capacity) {
    assert(id < t->n_tokens);
    struct piece piece = {out, 0, capacity};
    struct str text = token_text(t, id);
    bool drop_first = first && t->add_space_prefix;
    switch (token_type_of(t, id)) {
    case TOKEN_CONTROL:
    case TOKEN_UNKNOWN:
        if (special) piece_put(&piece, text.data, text.len);
        break;
    case TOKEN_USER_DEFINED: piece_put(&piece, text.data, text.len); break;
    case TOKEN_BYTE: {
        u8 byte = (u8)byte_of_name(text); // checked when the vocabulary was read
        // The dummy space of a vocabulary without U+2581 is a byte.
        if (!(drop_first && byte == ' ')) piece_put(&piece, &byte, 1);
        break;
    }
    case TOKEN_NORMAL:
    case TOKEN_UNUSED:
        if (t->is_spm)
            decode_spaces(&piece, text, drop_first);
        else
            decode_letters(&piece, text);
        break;
    }
    return piece.len;
}

usize tokenizer_piece_bytes_max(const struct tokenizer *t) { return t->piece_bytes_max; }

// --- the vocabulary ---

u32 tokenizer_n_tokens(const struct tokenizer *t) { return t->n_tokens; }

u32 tokenizer_bos(const struct tokenizer *t) { return t->bos; }

u32 tokenizer_eos(const struct tokenizer *t) { return t->eos; }

bool tokenizer_adds_bos(const struct tokenizer *t) { return t->add_bos; }

bool tokenizer_is_end(const struct tokenizer *t, u32 id) {
    return id < t->n_tokens && (t->attributes[id] & ATTRIBUTE_END) != 0;
}

enum token_type tokenizer_type(const struct tokenizer *t, u32 id) {
    assert(id < t->n_tokens);
    return token_type_of(t, id);
}

u32 tokenizer_find(const struct tokenizer *t, struct str stored_text) {
    return find_token(t, stored_text);
}
