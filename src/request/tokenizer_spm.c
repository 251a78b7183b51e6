// SPDX-License-Identifier: Apache-2.0
// SentencePiece-style encoding of one fragment of plain text. Spaces become U+2581, with one more
// in front at the start of the text where the vocabulary wants it; each character is a symbol; of
// all pairs of neighbours that together are the text of a token, the one whose token has the
// highest score is merged, the leftmost of equals first, until there is none. A symbol that is no
// token in the end (it is a single character then) is written as the byte tokens of its bytes.
//
//   "the sea"  ->  ▁the▁sea  ->  ▁ t h e ▁ s e a  ->  ...  ->  ▁the ▁sea
//
// Merging goes over the whole fragment in principle. In practice almost no token has a U+2581
// behind another character, so that words are independent of each other and are merged one after
// another, each with a small queue; where such a token exists, words are cut apart only behind
// characters that it does not contain there (spm_word_end).
#include "request/tokenizer_private.h"

u64 spm_text_bytes(u64 fragment_bytes) { return SPM_SPACE_BYTES * (fragment_bytes + 1); }

static bool is_space_at(const u8 *text, usize at, usize end) {
    return end - at >= SPM_SPACE_BYTES && memcmp(text + at, SPM_SPACE, SPM_SPACE_BYTES) == 0;
}

// Writes the fragment to e->text with its spaces escaped; returns the length.
static usize escape_spaces(struct encoder *e, struct str fragment, bool dummy_space) {
    assert(e->text_bytes >= spm_text_bytes(fragment.len));
    usize len = 0;
    if (dummy_space) {
        memcpy(e->text, SPM_SPACE, SPM_SPACE_BYTES);
        len = SPM_SPACE_BYTES;
    }
    for (usize i = 0; i < fragment.len; i++) {
        if (fragment.data[i] == ' ') {
            memcpy(e->text + len, SPM_SPACE, SPM_SPACE_BYTES);
            len += SPM_SPACE_BYTES;
        } else {
            e->text[len++] = fragment.data[i];
        }
    }
    return len;
}

// End of the word at `at`: in front of the next U+2581 with which nothing before it can merge.
static usize spm_word_end(const struct tokenizer *t, const u8 *text, usize at, usize len) {
    bool space_before = true;
    for (usize i = at; i < len;) {
        bool space = text[i] == (u8)SPM_SPACE[0] && is_space_at(text, i, len);
        if (space && !space_before) {
            u8 last = text[i - 1];
            if ((t->before_space[last / 32] >> last % 32 & 1) == 0) return i;
        }
        space_before = space;
        i += space ? SPM_SPACE_BYTES : 1;
    }
    return len;
}

// The order of the queue: higher scores first. Both zeros are equal, and no score is NaN.
static u32 score_order(const struct tokenizer *t, u32 id) {
    if (t->scores == NULL) return 0;
    u32 bits = f32_bits(load_f32(t->scores + 4 * (u64)id) + 0.0f);
    u32 rising = (bits & 0x80000000) != 0 ? ~bits : bits | 0x80000000;
    return ~rising;
}

static usize symbol_end(const struct encoder *e, u32 at, usize word_end) {
    u32 next = e->symbols[at].next;
    return next == SYMBOL_NONE ? word_end : e->symbols[next].value;
}

// Finds the token that symbol `left` and its next one make, and queues it.
static void pair_up(struct encoder *e, u32 left, usize word_end) {
    struct symbol *symbol = &e->symbols[left];
    symbol->pair = TOKEN_NONE;
    if (symbol->next == SYMBOL_NONE) return;
    usize bytes = symbol_end(e, symbol->next, word_end) - symbol->value;
    if (bytes > e->t->text_bytes_max) return; // keeps the look-up's time bounded
    u32 id = find_token(e->t, (struct str){e->text + symbol->value, bytes});
    if (id == TOKEN_NONE || !token_is_text(e->t, id)) return; // T1
    symbol->pair = id;
    queue_push(&e->queue, (u64)score_order(e->t, id) << 32 | left);
}

static void merge_symbols(struct encoder *e, usize word_end) {
    struct symbol *symbols = e->symbols;
    while (e->queue.n > 0) {
        u64 entry = queue_pop(&e->queue);
        u32 left = (u32)entry;
        // Stale? A changed pair of the same score has an entry equal to this one: taking it now
        // takes it in its turn.
        if (symbols[left].pair == TOKEN_NONE ||
            score_order(e->t, symbols[left].pair) != (u32)(entry >> 32))
            continue;
        struct symbol *right = &symbols[symbols[left].next];
        symbols[left].next = right->next;
        if (right->next != SYMBOL_NONE) symbols[right->next].prev = left;
        right->pair = TOKEN_NONE;
        if (symbols[left].prev != SYMBOL_NONE) pair_up(e, symbols[left].prev, word_end);
        pair_up(e, left, word_end);
    }
}

// The ids of one symbol: its token, or the tokens of its bytes.
static enum sov_status put_symbol(struct encoder *e, struct str text) {
    u32 id = find_token(e->t, text);
    if (id != TOKEN_NONE && token_is_text(e->t, id)) return encoder_put(e, id);
    // A vocabulary without U+2581 keeps its spaces as the byte they were.
    if (is_space_at(text.data, 0, text.len)) text = STR(" ");
    for (usize i = 0; i < text.len; i++)
        if (e->t->byte_token[text.data[i]] == TOKEN_NONE)
            return encoder_put_replacement(e, text.data[i]);
    for (usize i = 0; i < text.len; i++) {
        enum sov_status status = encoder_put(e, e->t->byte_token[text.data[i]]);
        if (status != SOV_OK) return status;
    }
    return SOV_OK;
}

static enum sov_status encode_word(struct encoder *e, usize start, usize end) {
    struct str upto = {e->text, end};
    u32 n = 0;
    for (usize at = start; at < end; n++) {
        e->symbols[n].value = (u32)at;
        e->symbols[n].prev = n > 0 ? n - 1 : SYMBOL_NONE;
        e->symbols[n].next = n + 1;
        u32 code_point, bytes = 1;
        if (e->text[at] >= 0x80) bytes = utf8_decode(upto, at, &code_point);
        at += bytes == 0 ? 1 : bytes; // T4
    }
    e->symbols[n - 1].next = SYMBOL_NONE;
    for (u32 i = 0; i < n; i++) pair_up(e, i, end);
    merge_symbols(e, end);
    for (u32 i = 0; i != SYMBOL_NONE; i = e->symbols[i].next) {
        usize at = e->symbols[i].value;
        struct str text = {e->text + at, symbol_end(e, i, end) - at};
        enum sov_status status = put_symbol(e, text);
        if (status != SOV_OK) return status;
    }
    return SOV_OK;
}

enum sov_status spm_encode(struct encoder *e, struct str fragment, bool dummy_space) {
    usize len = escape_spaces(e, fragment, dummy_space);
    for (usize at = 0; at < len;) {
        usize end = spm_word_end(e->t, e->text, at, len);
        enum sov_status status = encode_word(e, at, end);
        if (status != SOV_OK) return status;
        at = end;
    }
    return SOV_OK;
}
