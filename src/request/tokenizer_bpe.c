// SPDX-License-Identifier: Apache-2.0
// Byte-level BPE of one fragment of plain text. Each byte is a symbol; a pre-tokenizer cuts the
// fragment into pieces; in a piece, the pair of neighbours whose merge has the lowest rank is
// merged, the leftmost of equals first, until no pair has a merge. Ids stand for texts throughout
// (V4).
//
//   piece   " the"  ->  symbols  Ġ t h e  ->  Ġ th e  ->  Ġ the  ->  Ġthe
//
// A byte without a token is a symbol that merges with nothing and comes out as the replacement
// (T5).
#include "request/tokenizer_private.h"

u64 bpe_text_bytes(const struct tokenizer *t) { return t->whole_words ? t->text_bytes_max : 0; }

// The token of a whole piece, when the vocabulary takes pieces whole (llama-bpe): merging alone may
// miss it, as its parts need not be tokens.
static u32 find_whole_piece(struct encoder *e, struct str piece) {
    const struct tokenizer *t = e->t;
    usize len = 0;
    for (usize i = 0; i < piece.len; i++) {
        u8 letter[4];
        u32 bytes = utf8_encode(byte_letter(piece.data[i]), letter);
        if (len + bytes > t->text_bytes_max) return TOKEN_NONE;
        assert(len + bytes <= e->text_bytes);
        memcpy(e->text + len, letter, bytes);
        len += bytes;
    }
    u32 id = find_token(t, (struct str){e->text, len});
    return id != TOKEN_NONE && token_is_text(t, id) ? id : TOKEN_NONE; // T1
}

// Finds the merge of symbol `left` and its next one, and queues it.
static void pair_up(struct encoder *e, u32 left) {
    struct symbol *symbol = &e->symbols[left];
    symbol->pair = RANK_NONE;
    if (symbol->next == SYMBOL_NONE) return;
    symbol->pair = find_merge(e->t, symbol->value, e->symbols[symbol->next].value);
    if (symbol->pair != RANK_NONE) queue_push(&e->queue, (u64)symbol->pair << 32 | left);
}

static void merge_symbols(struct encoder *e) {
    struct symbol *symbols = e->symbols;
    while (e->queue.n > 0) {
        u64 entry = queue_pop(&e->queue);
        u32 rank = (u32)(entry >> 32), left = (u32)entry;
        if (symbols[left].pair != rank) continue; // stale
        struct symbol *right = &symbols[symbols[left].next];
        symbols[left].value = e->t->merges[rank].result;
        symbols[left].next = right->next;
        if (right->next != SYMBOL_NONE) symbols[right->next].prev = left;
        right->pair = RANK_NONE;
        if (symbols[left].prev != SYMBOL_NONE) pair_up(e, symbols[left].prev);
        pair_up(e, left);
    }
}

static enum sov_status encode_piece(struct encoder *e, struct str piece) {
    const struct tokenizer *t = e->t;
    if (t->whole_words) {
        u32 id = find_whole_piece(e, piece);
        if (id != TOKEN_NONE) return encoder_put(e, id);
    }
    u32 n = (u32)piece.len;
    for (u32 i = 0; i < n; i++) {
        e->symbols[i].value = t->byte_token[piece.data[i]];
        e->symbols[i].prev = i > 0 ? i - 1 : SYMBOL_NONE;
        e->symbols[i].next = i + 1 < n ? i + 1 : SYMBOL_NONE;
    }
    for (u32 i = 0; i < n; i++) pair_up(e, i);
    merge_symbols(e);
    // A symbol starts at the byte of its index, so a single byte without a token can be named.
    for (u32 i = 0; i != SYMBOL_NONE; i = e->symbols[i].next) {
        u32 id = e->symbols[i].value;
        enum sov_status status = id != TOKEN_NONE ? encoder_put(e, id)
                                                  : encoder_put_replacement(e, piece.data[i]);
        if (status != SOV_OK) return status;
    }
    return SOV_OK;
}

enum sov_status bpe_encode(struct encoder *e, struct str fragment) {
    struct pretokenize cut;
    struct str piece;
    pretokenize_start(&cut, e->t->pretokenizer, fragment);
    while (pretokenize_next(&cut, &piece)) {
        enum sov_status status = encode_piece(e, piece);
        if (status != SOV_OK) return status;
    }
    return SOV_OK;
}
