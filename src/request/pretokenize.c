// SPDX-License-Identifier: Apache-2.0
// The pre-tokenizers of byte-level BPE vocabularies, as matchers over classes of code points. Each
// stands for one regular expression or for several applied one after another, where every stage
// cuts the fragments that the stage before has left:
//
//   gpt-2      's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//   smollm     \p{N}, then gpt-2
//   llama-bpe  (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
//              ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+   (starting with " ?")
//   qwen2      as llama-bpe, with \p{N} instead of \p{N}{1,3}
//   default    [\p{P}$+<=>^~|]+, then gpt-2, then \p{N}+, then [0-9][0-9][0-9]
//
// A stage keeps what lies between its matches as fragments too. The first alternative that matches
// wins, as in the regular expressions; "end of text" (for \s+(?!\S)) is the end of the fragment.
// The case-insensitive contractions know ASCII letters only: U+017F is no s here.
//
// Invariants:
// P1. A piece is never empty, and the pieces joined are the text, byte for byte, valid or not.
// P2. A byte that belongs to no well-formed UTF-8 sequence is a character of its own, neither
//     letter, number, punctuation nor space (rule T4 of tokenizer.h).
// P3. Every byte is looked at a constant number of times for each stage: no matcher goes back
//     further than into the white space in front of it, and that once.
#include "request/pretokenize.h"
#include "request/unicode_tables.h"

// A character at some place of the fragment that is being cut.
struct character {
    enum unicode_class class;
    u32 bytes; // 0 at the end of the fragment
    u8 ascii;  // the character if it is ASCII, else 0xff
};

// The fragment is text[.., end), and ends where a character does.
static struct character character_at(struct str text, usize at, usize end) {
    if (at >= end) return (struct character){UNICODE_OTHER, 0, 0xff};
    u8 byte = text.data[at];
    if (byte < 0x80) return (struct character){unicode_class_of(byte), 1, byte};
    u32 code_point = 0;
    u32 bytes = utf8_decode(text, at, &code_point);
    if (bytes == 0) return (struct character){UNICODE_OTHER, 1, 0xff}; // P2
    return (struct character){unicode_class_of(code_point), bytes, 0xff};
}

static bool is_symbol(struct character c) { // [^\s\p{L}\p{N}]
    return c.bytes != 0 && (c.class == UNICODE_OTHER || c.class == UNICODE_PUNCTUATION);
}

static bool is_line_end(struct character c) { return c.ascii == '\r' || c.ascii == '\n'; }

static usize skip_class(struct str text, usize at, usize end, enum unicode_class class) {
    for (;;) {
        struct character c = character_at(text, at, end);
        if (c.bytes == 0 || c.class != class) return at;
        at += c.bytes;
    }
}

static usize skip_symbols(struct str text, usize at, usize end) {
    for (;;) {
        struct character c = character_at(text, at, end);
        if (!is_symbol(c)) return at;
        at += c.bytes;
    }
}

// Length of 's 't 're 've 'm 'll 'd at `at`, or 0. With `any_case` capital letters match too.
static usize match_contraction(struct str text, usize at, usize end, bool any_case) {
    if (text.data[at] != '\'' || end - at < 2) return 0;
    u8 fold = any_case ? 0x20 : 0; // turns an ASCII capital into its small letter
    u8 first = text.data[at + 1] | fold;
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
    if (end - at < 3) return 0;
    u8 second = text.data[at + 2] | fold;
    if ((first == 'r' || first == 'v') && second == 'e') return 3;
    return first == 'l' && second == 'l' ? 3 : 0;
}

// End of the white space piece at `at`, where a space stands: \s+(?!\S)|\s+, and with `line_ends`
// \s*[\r\n]+ before them.
static usize match_space(struct str text, usize at, usize end, bool line_ends) {
    usize last = at, run_end = at, after_line_end = at;
    for (;;) {
        struct character c = character_at(text, run_end, end);
        if (c.bytes == 0 || c.class != UNICODE_SPACE) break;
        last = run_end;
        run_end += c.bytes;
        if (is_line_end(c)) after_line_end = run_end;
    }
    if (line_ends && after_line_end > at) return after_line_end;
    // The last space of a run belongs to what follows, unless it is alone or nothing follows.
    return run_end < end && last > at ? last : run_end;
}

// End of the gpt-2 piece that starts at `at`.
static usize match_gpt2(struct str text, usize at, usize end) {
    usize contraction = match_contraction(text, at, end, false);
    if (contraction != 0) return at + contraction;
    struct character c = character_at(text, at, end);
    usize start = at;
    if (c.ascii == ' ') { // the optional space in front of letters, numbers or symbols
        struct character next = character_at(text, at + 1, end);
        if (next.bytes != 0 && next.class != UNICODE_SPACE) {
            c = next;
            start = at + 1;
        }
    }
    if (c.class == UNICODE_LETTER || c.class == UNICODE_NUMBER)
        return skip_class(text, start, end, c.class);
    if (c.class == UNICODE_SPACE) return match_space(text, at, end, false);
    return skip_symbols(text, start, end);
}

// End of the llama-bpe (digits_max 3) or qwen2 (1) piece that starts at `at`.
static usize match_llama3(struct str text, usize at, usize end, u32 digits_max) {
    usize contraction = match_contraction(text, at, end, true);
    if (contraction != 0) return at + contraction;
    struct character c = character_at(text, at, end);
    struct character next = character_at(text, at + c.bytes, end);
    bool next_is_letter = next.bytes != 0 && next.class == UNICODE_LETTER;
    // One character that is no number and no line end may stand in front of letters.
    if (c.class == UNICODE_LETTER ||
        (c.class != UNICODE_NUMBER && !is_line_end(c) && next_is_letter))
        return skip_class(text, at + c.bytes, end, UNICODE_LETTER);
    if (c.class == UNICODE_NUMBER) {
        for (u32 n = 0; n < digits_max && c.bytes != 0 && c.class == UNICODE_NUMBER; n++) {
            at += c.bytes;
            c = character_at(text, at, end);
        }
        return at;
    }
    bool spaced = c.ascii == ' ' && is_symbol(next);
    if (is_symbol(c) || spaced) {
        at = skip_symbols(text, at + (spaced ? 1 : 0), end);
        while (at < end && (text.data[at] == '\r' || text.data[at] == '\n')) at++;
        return at;
    }
    return match_space(text, at, end, true);
}

// [\p{P}$+<=>^~|]: the first stage of `default`. The backtick is not among them.
static bool is_default_mark(struct character c) {
    return c.class == UNICODE_PUNCTUATION || c.ascii == '$' || c.ascii == '+' || c.ascii == '<' ||
           c.ascii == '=' || c.ascii == '>' || c.ascii == '^' || c.ascii == '~' || c.ascii == '|';
}

// The run at `at` of characters that are all marks of `default`, or all not.
static usize skip_marks(struct str text, usize at, usize end) {
    struct character c = character_at(text, at, end);
    bool mark = is_default_mark(c);
    while (c.bytes != 0 && is_default_mark(c) == mark) {
        at += c.bytes;
        c = character_at(text, at, end);
    }
    return at;
}

// The run at `at` of characters that are all numbers, or all not.
static usize skip_numbers(struct str text, usize at, usize end) {
    struct character c = character_at(text, at, end);
    bool number = c.class == UNICODE_NUMBER;
    while (c.bytes != 0 && (c.class == UNICODE_NUMBER) == number) {
        at += c.bytes;
        c = character_at(text, at, end);
    }
    return at;
}

static bool is_ascii_digit(u8 byte) { return byte >= '0' && byte <= '9'; }

// Three ASCII digits at `at`, or what stands in front of the next three, or all that is left.
static usize match_digit_triple(struct str text, usize at, usize end) {
    for (usize i = at; end - i >= 3; i++) {
        if (is_ascii_digit(text.data[i]) && is_ascii_digit(text.data[i + 1]) &&
            is_ascii_digit(text.data[i + 2]))
            return i == at ? at + 3 : i;
    }
    return end;
}

// The stages of `default`: end[0] is the end of the run of marks or others, end[1] of the gpt-2
// piece in it, end[2] of the run of numbers or others in that.
static usize match_default(struct pretokenize *cut) {
    struct str text = cut->text;
    if (cut->at == cut->end[0]) cut->end[0] = skip_marks(text, cut->at, text.len);
    if (cut->at == cut->end[1]) cut->end[1] = match_gpt2(text, cut->at, cut->end[0]);
    if (cut->at == cut->end[2]) cut->end[2] = skip_numbers(text, cut->at, cut->end[1]);
    return match_digit_triple(text, cut->at, cut->end[2]);
}

// The stages of `smollm`: end[0] is the end of the fragment between numbers; a number is a piece.
static usize match_smollm(struct pretokenize *cut) {
    struct str text = cut->text;
    if (cut->at == cut->end[0]) {
        struct character c = character_at(text, cut->at, text.len);
        if (c.class == UNICODE_NUMBER) return cut->end[0] = cut->at + c.bytes;
        cut->end[0] = skip_numbers(text, cut->at, text.len);
    }
    return match_gpt2(text, cut->at, cut->end[0]);
}

bool pretokenizer_by_name(struct str name, enum pretokenizer *kind) {
    static const struct {
        const char *name;
        enum pretokenizer kind;
    } names[] = {
        {"", PRETOKENIZER_DEFAULT},         {"default", PRETOKENIZER_DEFAULT},
        {"gpt-2", PRETOKENIZER_GPT2},       {"smollm", PRETOKENIZER_SMOLLM},
        {"llama-bpe", PRETOKENIZER_LLAMA3}, {"qwen2", PRETOKENIZER_QWEN2},
    };
    for (usize i = 0; i < COUNT_OF(names); i++) {
        if (!str_equal(name, str_from_z(names[i].name))) continue;
        *kind = names[i].kind;
        return true;
    }
    return false;
}

void pretokenize_start(struct pretokenize *cut, enum pretokenizer kind, struct str text) {
    *cut = (struct pretokenize){.kind = kind, .text = text};
}

bool pretokenize_next(struct pretokenize *cut, struct str *piece) {
    if (cut->at == cut->text.len) return false;
    usize end = 0;
    switch (cut->kind) {
    case PRETOKENIZER_DEFAULT: end = match_default(cut); break;
    case PRETOKENIZER_GPT2: end = match_gpt2(cut->text, cut->at, cut->text.len); break;
    case PRETOKENIZER_SMOLLM: end = match_smollm(cut); break;
    case PRETOKENIZER_LLAMA3: end = match_llama3(cut->text, cut->at, cut->text.len, 3); break;
    case PRETOKENIZER_QWEN2: end = match_llama3(cut->text, cut->at, cut->text.len, 1); break;
    }
    assert(end > cut->at && end <= cut->text.len); // P1
    *piece = (struct str){cut->text.data + cut->at, end - cut->at};
    cut->at = end;
    return true;
}
