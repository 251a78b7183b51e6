// SPDX-License-Identifier: Apache-2.0
// Tests of the tokenizer over small vocabularies built here: the rules T1 to T5 of tokenizer.h, the
// merging against a second, quadratic implementation that works on texts, refusals, time and stack.
// Real vocabularies are tested by test_tokenizer_golden.py.
#include "request/pretokenize.h"
#include "test.h"
#include "vocab_builder.h"

#define SEED 20240614
#define MEMORY_BYTES (256u << 20)
#define CANARY_BYTES 64

// Everything a case needs comes from here and is forgotten when the next one starts.
static struct arena memory;
static struct vocab *vocab; // the vocabulary of the running case

static void *grab(usize bytes) {
    void *p = arena_alloc(&memory, bytes, 16);
    assert(p != NULL);
    return p;
}

static void start(const char *model, const char *pre) {
    if (memory.base == NULL) {
        u8 *base = platform_memory_map(MEMORY_BYTES);
        assert(base != NULL);
        memory = arena_over(base, MEMORY_BYTES);
    }
    memory.used = 0;
    vocab = grab(sizeof *vocab);
    vocab_start(vocab, model, pre);
}

// An arena of exactly this many bytes with a canary behind it.
static struct arena exact_arena(u64 bytes) {
    u8 *base = grab(bytes + CANARY_BYTES);
    memset(base + bytes, 0xc5, CANARY_BYTES);
    return arena_over(base, bytes);
}

static bool canary_lives(const struct arena *arena, u64 bytes) {
    for (u32 i = 0; i < CANARY_BYTES; i++)
        if (arena->base[bytes + i] != 0xc5) return false;
    return true;
}

// The tokenizer of `vocab`, made in exactly the memory that it said it takes.
static const struct tokenizer *create(void) {
    u64 bytes = tokenizer_memory_bytes(&vocab->source);
    struct arena arena = exact_arena(bytes);
    const struct tokenizer *t = NULL;
    struct sov_fault fault = {0};
    enum sov_status status = tokenizer_create(&vocab->source, &arena, &t, &fault);
    CHECK_MSG(status == SOV_OK && t != NULL, "%s", fault.message);
    CHECK(canary_lives(&arena, bytes));
    assert(t != NULL);
    return t;
}

struct encoded {
    u32 *ids;
    usize n;
    enum sov_status status;
    struct sov_fault fault;
};

// Encodes with exactly the scratch and capacity that are promised to be enough.
static struct encoded encode(const struct tokenizer *t, struct str text, u32 flags) {
    struct encoded e = {.ids = grab(4 * (text.len + 3) + CANARY_BYTES)};
    u64 bytes = tokenizer_encode_scratch_bytes(t, text.len);
    struct arena scratch = exact_arena(bytes);
    e.status = tokenizer_encode(t, text, flags, &scratch, e.ids, text.len + 3, &e.n, &e.fault);
    CHECK(scratch.used == 0 && canary_lives(&scratch, bytes) && e.n <= text.len + 3);
    return e;
}

static struct str decode(const struct tokenizer *t, const u32 *ids, usize n, bool special) {
    usize piece_max = tokenizer_piece_bytes_max(t), len = 0;
    u8 *out = grab(n * piece_max + 1);
    bool first = true; // a BOS does not count
    for (usize i = 0; i < n; i++) {
        len += tokenizer_decode(t, ids[i], special, first, out + len, piece_max);
        if (ids[i] != tokenizer_bos(t)) first = false;
    }
    return (struct str){out, len};
}

static bool ids_equal(const u32 *a, usize n_a, const u32 *b, usize n_b) {
    return n_a == n_b && (n_a == 0 || memcmp(a, b, 4 * n_a) == 0);
}

// "5 17 3", for messages.
static const char *ids_text(const u32 *ids, usize n) {
    char *chars = grab(512);
    struct text t = text_over(chars, 512);
    for (usize i = 0; i < n; i++) text_format(&t, i == 0 ? "%u" : " %u", ids[i]);
    return t.data;
}

// Texts of tokens with a bar between them: what an encoding says, independent of ids.
static struct str token_texts(const struct encoded *e) {
    char *chars = grab(4096);
    struct text t = text_over(chars, 4096);
    for (usize i = 0; i < e->n; i++) {
        if (i > 0) text_put_byte(&t, '|');
        text_put(&t, vocab->texts[e->ids[i]]);
    }
    return (struct str){(const u8 *)t.data, t.len};
}

static void expect_texts(int line, const struct tokenizer *t, struct str text, u32 flags,
                         const char *wanted) {
    struct encoded e = encode(t, text, flags);
    if (e.status != SOV_OK) {
        test_fail(__FILE__, line, "\"%.*s\": %s", STR_ARG(text), e.fault.message);
        return;
    }
    struct str got = token_texts(&e);
    if (!str_equal(got, str_from_z(wanted)))
        test_fail(__FILE__, line, "\"%.*s\" gives %.*s instead of %s", STR_ARG(text), STR_ARG(got),
                  wanted);
}
#define EXPECT(t, text, flags, wanted) expect_texts(__LINE__, t, STR(text), flags, wanted)

// --- small vocabularies by hand ---

// Letters, "the" by three merges, digits that merge, a run of newlines; <note> user-defined, two
// control tokens and an unknown one.
static void start_words(const char *pre) {
    start("gpt2", pre);
    vocab_add_letters(vocab);
    vocab_merge(vocab, "t", "h");
    vocab_merge(vocab, "th", "e");
    vocab_merge(vocab, "Ġ", "the");
    vocab_merge(vocab, "1", "2");
    vocab_merge(vocab, "2", "3");
    vocab_merge(vocab, "12", "3");
    vocab_merge(vocab, "Ċ", "Ċ");
    vocab_merge(vocab, "Ġ", "Ġ");
    vocab_merge(vocab, "a", "a");
    vocab_merge(vocab, "aa", "aa");
    vocab_add_z(vocab, "<note>", TOKEN_USER_DEFINED, 0);
    vocab_add_z(vocab, "<|bos|>", TOKEN_CONTROL, 0);
    vocab_add_z(vocab, "<|eot|>", TOKEN_CONTROL, 0);
    vocab_add_z(vocab, "<unk>", TOKEN_UNKNOWN, 0);
}

static void bpe_merges_by_rank(void) {
    start_words("gpt-2");
    const struct tokenizer *t = create();
    EXPECT(t, "", 0, "");
    EXPECT(t, "the", 0, "the");
    EXPECT(t, " the", 0, "Ġthe");
    EXPECT(t, "x\n\n", 0, "x|ĊĊ");
    EXPECT(t, "a   b", 0, "a|ĠĠ|Ġ|b");
    EXPECT(t, "123", 0, "123");
    EXPECT(t, "1123", 0, "1|123");
    EXPECT(t, "aaa", 0, "aa|a"); // the leftmost of equals
    EXPECT(t, "aaaa", 0, "aaaa");
    EXPECT(t, "aaaaaaa", 0, "aaaa|aa|a");
    EXPECT(t, "\xc3\xa9", 0, "Ã|©");
    EXPECT(t, "a b\tc", 0, "a|Ġ|b|ĉ|c");
    start_words("smollm");
    t = create();
    EXPECT(t, "123 the", 0, "1|2|3|Ġthe");
    start_words("llama-bpe");
    t = create();
    EXPECT(t, "1234", 0, "123|4");
    start_words("qwen2");
    t = create();
    EXPECT(t, "1234", 0, "1|2|3|4");
    start_words("");
    t = create();
    EXPECT(t, "1234", 0, "123|4");
}

// The Llama 3 rule: a whole piece of the vocabulary is taken, though no merges lead to it.
static void whole_pieces_before_merging(void) {
    static const struct {
        const char *pre, *wanted;
    } rows[] = {{"llama-bpe", "Ġwhole"}, {"gpt-2", "Ġ|w|h|o|l|e"}, {"qwen2", "Ġ|w|h|o|l|e"}};
    for (u32 i = 0; i < COUNT_OF(rows); i++) {
        start_words(rows[i].pre);
        vocab_add_z(vocab, "Ġwhole", TOKEN_NORMAL, 0);
        vocab_add_z(vocab, "control", TOKEN_CONTROL, 0);
        const struct tokenizer *t = create();
        expect_texts(__LINE__, t, STR(" whole"), 0, rows[i].wanted);
        EXPECT(t, " wholes", 0, "Ġ|w|h|o|l|e|s");
        EXPECT(t, "control", 0, "c|o|n|t|r|o|l"); // T1
    }
}

static void start_spm(bool space_prefix) {
    start("llama", "");
    vocab_add_z(vocab, "<unk>", TOKEN_UNKNOWN, 0);
    vocab_add_z(vocab, "<s>", TOKEN_CONTROL, 0);
    vocab_add_z(vocab, "</s>", TOKEN_CONTROL, 0);
    vocab_add_byte_tokens(vocab, TOKEN_BYTE);
    static const struct {
        const char *text;
        f32 score;
    } rows[] = {
        {"▁", -10},      {"t", -11}, {"h", -12}, {"e", -13}, {"a", -14},  {"s", -15},
        {"<", -15},      {">", -15}, {"th", -2}, {"he", -1}, {"the", -4}, {"▁t", -3},
        {"▁the", -0.5f}, {"aa", -5}, {"▁▁", -6}, {"s>", -7}, {"<s", -8},  {"é", -9},
    };
    for (u32 i = 0; i < COUNT_OF(rows); i++)
        vocab_add_z(vocab, rows[i].text, TOKEN_NORMAL, rows[i].score);
    vocab_add_z(vocab, "<note>", TOKEN_USER_DEFINED, 0);
    vocab->source.bos = 1;
    vocab->source.eos = 2;
    vocab->source.unknown = 0;
    vocab->source.has_add_space_prefix = true;
    vocab->source.add_space_prefix = space_prefix;
}

static void spm_merges_by_score(void) {
    start_spm(false);
    const struct tokenizer *t = create();
    EXPECT(t, "", 0, "");
    EXPECT(t, "the", 0, "the");   // h+e, then t+he
    EXPECT(t, " the", 0, "▁the"); // and then ▁+the
    EXPECT(t, "  the", 0, "▁|▁the");
    EXPECT(t, "   a", 0, "▁▁|▁|a");
    EXPECT(t, "aaa", 0, "aa|a");
    EXPECT(t, "é", 0, "é");
    EXPECT(t, "è", 0, "<0xC3>|<0xA8>");
    EXPECT(t, "x", 0, "<0x78>");
    EXPECT(t, "\n", 0, "<0x0A>");
    EXPECT(t, "a▁the", 0, "a|▁the"); // the literal U+2581 is a space, as in the original
}

// B5: the dummy space is there once, at the start of the text, and decoding drops it again.
static void dummy_space_once(void) {
    start_spm(true);
    const struct tokenizer *t = create();
    EXPECT(t, "the", 0, "▁the");
    EXPECT(t, " the", 0, "▁|▁the");
    EXPECT(t, "", 0, "");
    EXPECT(t, "", TOKENIZE_BOS_EOS, "<s>");
    EXPECT(t, "the", TOKENIZE_BOS_EOS, "<s>|▁the");
    EXPECT(t, "<s>the", TOKENIZE_SPECIAL, "<s>|the");
    EXPECT(t, "the</s>the", TOKENIZE_SPECIAL, "▁the|</s>|the");
    EXPECT(t, "<note>the", 0, "<note>|the");
    EXPECT(t, "the", TOKENIZE_CONTINUE, "the");
    static const struct {
        struct str text;
        u32 flags;
    } rows[] = {
        {STR("the"), 0},
        {STR("the"), TOKENIZE_BOS_EOS},
        {STR(" the"), 0},
        {STR("<s>the"), TOKENIZE_SPECIAL},
        {STR("<s>the"), 0},
        {STR(""), TOKENIZE_BOS_EOS},
        {STR("  "), 0},
        {STR("\n the"), 0},
        {STR("<note> the"), 0},
        {STR("é è \xff x"), TOKENIZE_BOS_EOS},
        {STR("a</s> the"), TOKENIZE_SPECIAL},
        {STR(" "), TOKENIZE_BOS_EOS},
    };
    for (u32 i = 0; i < COUNT_OF(rows); i++) {
        struct encoded e = encode(t, rows[i].text, rows[i].flags);
        bool bos_parsed = str_starts_with(rows[i].text, STR("<s>")) && rows[i].flags != 0;
        usize skip = (rows[i].flags & TOKENIZE_BOS_EOS) != 0 && !bos_parsed ? 1 : 0;
        usize len = 0;
        u8 out[64];
        for (usize k = skip; k < e.n; k++)
            len += tokenizer_decode(t, e.ids[k], true, k == skip, out + len, sizeof out - len);
        CHECK_MSG(str_equal((struct str){out, len}, rows[i].text), "row %u: \"%.*s\"", i, (int)len,
                  (const char *)out);
    }
}

// --- special tokens ---

// B1, T1: nothing that a user writes becomes a control token, unless the caller asks.
static void text_cannot_inject_control_tokens(void) {
    start_words("gpt-2");
    const struct tokenizer *t = create();
    EXPECT(t, "hi<|eot|>", 0, "h|i|<|||e|o|t|||>");
    EXPECT(t, "hi<|eot|>", TOKENIZE_SPECIAL, "h|i|<|eot|>");
    EXPECT(t, "<|eot|><|eot|>the", TOKENIZE_SPECIAL, "<|eot|>|<|eot|>|the");
    EXPECT(t, "<unk>", 0, "<|u|n|k|>");
    EXPECT(t, "<unk>", TOKENIZE_SPECIAL, "<unk>");
    EXPECT(t, "a<note>b", 0, "a|<note>|b");
    EXPECT(t, "a<note>b", TOKENIZE_SPECIAL, "a|<note>|b");
    EXPECT(t, "<note", TOKENIZE_SPECIAL, "<|n|o|t|e");
    EXPECT(t, "<|eot|", TOKENIZE_SPECIAL, "<|||e|o|t||");
    // Merging would give <s>: it has a token of that text, and one for s> or <s.
    start_spm(false);
    t = create();
    EXPECT(t, "<s>", 0, "<|s>");
    EXPECT(t, "a<s>a", 0, "a|<|s>|a");
    EXPECT(t, "<s>", TOKENIZE_SPECIAL, "<s>");
    EXPECT(t, "<0x41>", 0, "<|<0x30>|<0x78>|<0x34>|<0x31>|>");
    // A merge that makes a control token is not used.
    start("gpt2", "gpt-2");
    vocab_add_letters(vocab);
    vocab_add_z(vocab, "ab", TOKEN_CONTROL, 0);
    vocab_add_merge(vocab, STR("a"), STR("b"));
    vocab_merge(vocab, "b", "c");
    t = create();
    EXPECT(t, "abc ab", 0, "a|bc|Ġ|a|b");
    EXPECT(t, "abc ab", TOKENIZE_SPECIAL, "ab|c|Ġ|ab");
}

static void longest_special_first(void) {
    start_words("gpt-2");
    vocab_add_z(vocab, "aa\n", TOKEN_USER_DEFINED, 0);
    vocab_add_z(vocab, "\n", TOKEN_USER_DEFINED, 0);
    vocab_add_z(vocab, "\n\n\n", TOKEN_USER_DEFINED, 0);
    vocab_add_z(vocab, "\n\n\n\n", TOKEN_CONTROL, 0);
    vocab_add_z(vocab, "<|eot|>!", TOKEN_USER_DEFINED, 0);
    vocab_add_z(vocab, "", TOKEN_USER_DEFINED, 0); // an empty text is never found
    const struct tokenizer *t = create();
    EXPECT(t, "\n\n\n\n\n", 0, "\n\n\n|\n|\n");
    EXPECT(t, "\n\n\n\n\n", TOKENIZE_SPECIAL, "\n\n\n\n|\n");
    EXPECT(t, "aaa\naa", 0, "a|aa\n|aa");
    EXPECT(t, "<|eot|>!<|eot|>?", TOKENIZE_SPECIAL, "<|eot|>!|<|eot|>|?");
    EXPECT(t, "<|eot|>!", 0, "<|eot|>!");
    EXPECT(t, "<|eot|", TOKENIZE_SPECIAL, "<|||e|o|t||");
}

static void many_specials(void) {
    start_words("gpt-2");
    char name[32];
    for (u32 i = 0; i < 1000; i++) { // in no order
        struct text t = TEXT_OVER_ARRAY(name);
        text_format(&t, "<x%u>", i * 271 % 1000);
        vocab_add(vocab, (struct str){(const u8 *)t.data, t.len}, TOKEN_USER_DEFINED, 0);
    }
    const struct tokenizer *t = create();
    for (u32 i = 0; i < 1000; i++) {
        struct text text = TEXT_OVER_ARRAY(name);
        text_format(&text, "<x%u>", i);
        struct str special = {(const u8 *)text.data, text.len};
        struct encoded e = encode(t, special, 0);
        CHECK_MSG(e.n == 1 && str_equal(vocab->texts[e.ids[0]], special), "%s", name);
    }
    EXPECT(t, "<x1><x12<x123><x1234>", 0, "<x1>|<|x|12|<x123>|<|x|123|4|>");
}

// --- BOS, EOS, end tokens ---

static void bos_and_eos_rules(void) {
    enum { NO = 0, YES = 1, SILENT = 2 };
    static const struct {
        const char *model, *pre;
        int add_bos, add_eos;
        bool has_bos;
        const char *text, *wanted;
        u32 flags;
    } rows[] = {
        {"gpt2", "gpt-2", SILENT, SILENT, true, "a", "a", TOKENIZE_BOS_EOS},
        {"gpt2", "gpt-2", YES, SILENT, true, "a", "<|bos|>|a", TOKENIZE_BOS_EOS},
        {"gpt2", "gpt-2", YES, SILENT, true, "a", "a", 0},
        {"gpt2", "gpt-2", NO, YES, true, "a", "a|<|eos|>", TOKENIZE_BOS_EOS},
        {"gpt2", "gpt-2", YES, YES, true, "", "<|bos|>|<|eos|>", TOKENIZE_BOS_EOS},
        {"gpt2", "llama-bpe", SILENT, SILENT, true, "a", "<|bos|>|a", TOKENIZE_BOS_EOS},
        {"gpt2", "llama-bpe", NO, SILENT, true, "a", "a", TOKENIZE_BOS_EOS},
        {"gpt2", "llama-bpe", SILENT, SILENT, false, "a", "a", TOKENIZE_BOS_EOS},
        {"gpt2", "qwen2", SILENT, SILENT, true, "a", "a", TOKENIZE_BOS_EOS},
        {"gpt2", "smollm", SILENT, SILENT, true, "a", "a", TOKENIZE_BOS_EOS},
        {"gpt2", "", SILENT, SILENT, true, "a", "a", TOKENIZE_BOS_EOS},
        {"llama", "", SILENT, SILENT, true, "a", "<|bos|>|▁|a", TOKENIZE_BOS_EOS},
        {"llama", "", NO, SILENT, true, "a", "▁|a", TOKENIZE_BOS_EOS},
        {"llama", "", SILENT, YES, true, "a", "<|bos|>|▁|a|<|eos|>", TOKENIZE_BOS_EOS},
        {"llama", "", SILENT, SILENT, false, "a", "▁|a", TOKENIZE_BOS_EOS},
        // What the text has already is not added again (B2), but plain text is no BOS.
        {"gpt2", "gpt-2", YES, YES, true, "<|bos|>a<|eos|>", "<|bos|>|a|<|eos|>",
         TOKENIZE_BOS_EOS | TOKENIZE_SPECIAL},
        {"gpt2", "gpt-2", YES, YES, true, "<|bos|>", "<|bos|>|<|eos|>",
         TOKENIZE_BOS_EOS | TOKENIZE_SPECIAL},
        {"gpt2", "gpt-2", YES, YES, true, "<|eos|>a", "<|bos|>|<|eos|>|a|<|eos|>",
         TOKENIZE_BOS_EOS | TOKENIZE_SPECIAL},
        {"gpt2", "gpt-2", YES, NO, true, "<|bos|>", "<|bos|>|<|||b|o|s|||>", TOKENIZE_BOS_EOS},
        {"llama", "", YES, NO, true, "<|bos|>a", "<|bos|>|a", TOKENIZE_BOS_EOS | TOKENIZE_SPECIAL},
    };
    for (u32 i = 0; i < COUNT_OF(rows); i++) {
        start(rows[i].model, rows[i].pre);
        struct tokenizer_source *s = &vocab->source;
        u32 bos = vocab_add_z(vocab, "<|bos|>", TOKEN_CONTROL, 0);
        s->eos = vocab_add_z(vocab, "<|eos|>", TOKEN_CONTROL, 0);
        if (s->scores != NULL) {
            vocab_add_byte_tokens(vocab, TOKEN_BYTE);
            vocab_add_z(vocab, "▁", TOKEN_NORMAL, -1);
            vocab_add_z(vocab, "a", TOKEN_NORMAL, -1);
        } else {
            vocab_add_letters(vocab);
        }
        if (rows[i].has_bos) s->bos = bos;
        s->has_add_bos = rows[i].add_bos != SILENT;
        s->add_bos = rows[i].add_bos == YES;
        s->has_add_eos = rows[i].add_eos != SILENT;
        s->add_eos = rows[i].add_eos == YES;
        const struct tokenizer *t = create();
        CHECK(tokenizer_bos(t) == (rows[i].has_bos ? bos : TOKEN_NONE) && tokenizer_eos(t) == 1);
        struct encoded e = encode(t, str_from_z(rows[i].text), rows[i].flags);
        struct str got = token_texts(&e);
        CHECK_MSG(str_equal(got, str_from_z(rows[i].wanted)), "row %u: %.*s instead of %s", i,
                  STR_ARG(got), rows[i].wanted);
    }
}

// A BOS that is an ordinary token of the text is no reason to leave the added one away.
static void ordinary_token_as_bos(void) {
    start_words("gpt-2");
    u32 comma = tokenizer_find(create(), STR(","));
    vocab->source.bos = comma;
    vocab->source.has_add_bos = true;
    vocab->source.add_bos = true;
    EXPECT(create(), ",a", TOKENIZE_BOS_EOS | TOKENIZE_SPECIAL, ",|,|a");
}

// B7: EOS, EOT and what is known by its text.
static void end_tokens(void) {
    static const struct {
        const char *text;
        i32 type;
        bool end;
        enum token_type becomes;
    } rows[] = {
        {"<|im_end|>", TOKEN_CONTROL, true, TOKEN_CONTROL},
        {"<|eot_id|>", TOKEN_NORMAL, true, TOKEN_CONTROL},
        {"<end_of_turn>", TOKEN_USER_DEFINED, true, TOKEN_CONTROL},
        {"<|endoftext|>", TOKEN_UNKNOWN, true, TOKEN_CONTROL},
        {"</s>", TOKEN_USER_DEFINED, true, TOKEN_CONTROL},
        {"<｜end▁of▁sentence｜>", TOKEN_CONTROL, true, TOKEN_CONTROL},
        {"<|fim_prefix|>", TOKEN_USER_DEFINED, false, TOKEN_CONTROL},
        {"<|im_start|>", TOKEN_CONTROL, false, TOKEN_CONTROL},
        {"<|im_end|> ", TOKEN_NORMAL, false, TOKEN_NORMAL},
        {"<eos", TOKEN_NORMAL, false, TOKEN_NORMAL},
        {"the given eos", TOKEN_CONTROL, true, TOKEN_CONTROL},
        {"the given eot", TOKEN_NORMAL, true, TOKEN_NORMAL},
        {"another", TOKEN_UNUSED, false, TOKEN_UNUSED},
    };
    start("gpt2", "gpt-2");
    for (u32 i = 0; i < COUNT_OF(rows); i++) {
        u32 id = vocab_add_z(vocab, rows[i].text, rows[i].type, 0);
        if (str_equal(vocab->texts[id], STR("the given eos"))) vocab->source.eos = id;
        if (str_equal(vocab->texts[id], STR("the given eot"))) vocab->source.eot = id;
    }
    vocab_add_letters(vocab);
    const struct tokenizer *t = create();
    for (u32 i = 0; i < COUNT_OF(rows); i++) {
        CHECK_MSG(tokenizer_is_end(t, i) == rows[i].end, "row %u", i);
        CHECK_MSG(tokenizer_type(t, i) == rows[i].becomes, "row %u", i);
        u8 out[64];
        usize len = tokenizer_decode(t, i, false, false, out, sizeof out);
        CHECK_MSG((len == 0) == (rows[i].becomes == TOKEN_CONTROL), "row %u", i);
    }
    CHECK(!tokenizer_is_end(t, tokenizer_n_tokens(t)) && !tokenizer_is_end(t, TOKEN_NONE));
}

// --- bytes ---

// B9, T4: each bad byte is kept, alone or beside others, and is the same whatever is asked for.
static void invalid_utf8_keeps_its_bytes(void) {
    static const struct str rows[] = {
        STR("x\xff\xfey\xed\xa0\x80z"),
        STR("\xff"),
        STR("\xc3"),
        STR("caf\xc3"),
        STR("\xe2\x82 x"),
        STR("\xc0\xaf"),
        STR("\xf4\x90\x80\x80"),
        STR("\xbf\xbf\xbf"),
        STR("\xe9t\xe9"),
        STR("\xe4\xb8\xad\xe6"),
        STR("\xf0\x9f\x98"),
        STR(" \x80 "),
    };
    static const u32 flags[] = {0, TOKENIZE_SPECIAL, TOKENIZE_CONTINUE};
    for (u32 model = 0; model < 2; model++) {
        if (model == 0)
            start_words("llama-bpe");
        else
            start_spm(false);
        const struct tokenizer *t = create();
        for (u32 i = 0; i < COUNT_OF(rows); i++) {
            struct encoded plain = encode(t, rows[i], 0);
            for (u32 f = 0; f < COUNT_OF(flags); f++) {
                struct encoded e = encode(t, rows[i], flags[f]);
                CHECK(e.status == SOV_OK && ids_equal(e.ids, e.n, plain.ids, plain.n));
                CHECK_MSG(str_equal(decode(t, e.ids, e.n, false), rows[i]), "model %u, row %u",
                          model, i);
            }
        }
    }
    start_spm(false);
    EXPECT(create(), "x\xff\xfey\xed\xa0\x80z", 0,
           "<0x78>|<0xFF>|<0xFE>|<0x79>|<0xED>|<0xA0>|<0x80>|<0x7A>");
    start_words("gpt-2");
    EXPECT(create(), "x\xff\xfey\xed\xa0\x80z", 0, "x|ÿ|þ|y|í|ł|Ģ|z");
}

// T5. The vocabulary has letters for a, b and U+FFFD's bytes only.
static void bytes_without_a_token(void) {
    enum { WHOLE = 1, UNKNOWN = 2, UNKNOWN_ENDS = 4, UNKNOWN_IS_BOS = 8 };
    static const struct {
        u32 what;
        const char *wanted; // NULL: refused
    } rows[] = {
        {WHOLE, "a|ï¿½|b"},
        {WHOLE | UNKNOWN, "a|ï¿½|b"},
        {UNKNOWN, "a|<unk>|b"},
        {UNKNOWN | UNKNOWN_ENDS, NULL},
        {UNKNOWN | UNKNOWN_IS_BOS, NULL},
        {0, NULL},
    };
    for (u32 i = 0; i < COUNT_OF(rows); i++) {
        start("gpt2", "gpt-2");
        vocab_add_z(vocab, "a", TOKEN_NORMAL, 0);
        vocab_add_z(vocab, "b", TOKEN_NORMAL, 0);
        u32 unknown = vocab_add_z(vocab, "<unk>", TOKEN_UNKNOWN, 0);
        if ((rows[i].what & WHOLE) != 0) vocab_add_z(vocab, "ï¿½", TOKEN_NORMAL, 0);
        if ((rows[i].what & UNKNOWN) != 0) vocab->source.unknown = unknown;
        if ((rows[i].what & UNKNOWN_ENDS) != 0) vocab->source.eos = unknown;
        if ((rows[i].what & UNKNOWN_IS_BOS) != 0) vocab->source.bos = unknown;
        const struct tokenizer *t = create();
        struct encoded e = encode(t,
                                  STR("a\x04"
                                      "b"),
                                  0);
        if (rows[i].wanted == NULL) {
            CHECK_MSG(e.status == SOV_ERR_UNSUPPORTED && e.n == 0, "row %u", i);
            struct str message = str_from_z(e.fault.message);
            CHECK_MSG(str_equal(message, STR("the vocabulary has no token for the byte 0x04 of the "
                                             "text")),
                      "%s", e.fault.message);
            continue;
        }
        CHECK_MSG(str_equal(token_texts(&e), str_from_z(rows[i].wanted)), "row %u", i);
        e = encode(t,
                   STR("a\xff"
                       "b"),
                   0); // the same for a bad byte
        CHECK_MSG(str_equal(token_texts(&e), str_from_z(rows[i].wanted)), "row %u", i);
    }
    // SPM: once for a character, and the unknown token first.
    start("llama", "");
    vocab_add_z(vocab, "a", TOKEN_NORMAL, 0);
    vocab->source.unknown = vocab_add_z(vocab, "<unk>", TOKEN_UNKNOWN, 0);
    vocab->source.has_add_space_prefix = true;
    EXPECT(create(),
           "a日\xff"
           "a",
           0, "a|<unk>|<unk>|a");
    vocab->source.unknown = TOKEN_ABSENT;
    struct encoded e = encode(create(), STR("a日"), 0);
    CHECK(e.status == SOV_ERR_UNSUPPORTED);
}

// A file without types: byte tokens are known by their names, and a vocabulary without U+2581 still
// keeps its spaces.
static void spm_without_types(void) {
    start("llama", "");
    vocab->source.types = NULL;
    u32 first = vocab_add_byte_tokens(vocab, TOKEN_NORMAL);
    const struct tokenizer *t = create();
    struct str text = STR(" a \xff <0x41> ");
    struct encoded e = encode(t, text, 0);
    CHECK(e.status == SOV_OK && e.n == text.len + 1 && e.ids[0] == first + ' ');
    CHECK(str_equal(decode(t, e.ids, e.n, false), text));
    CHECK(tokenizer_type(t, first) == TOKEN_BYTE);
}

static void pieces_of_tokens(void) {
    static const struct {
        const char *model, *text;
        i32 type;
        bool special, first;
        struct str piece;
    } rows[] = {
        {"gpt2", "Ġthe", TOKEN_NORMAL, false, true, STR(" the")},
        {"gpt2", "ĊĊ", TOKEN_NORMAL, false, false, STR("\n\n")},
        {"gpt2", "Ã©", TOKEN_NORMAL, false, false, STR("\xc3\xa9")},
        {"gpt2", "Ń", TOKEN_NORMAL, false, false, STR("\xad")},
        {"gpt2", "a日Ġ", TOKEN_NORMAL, false, false, STR("a日 ")}, // 日 is no letter
        {"gpt2", "Ġx", TOKEN_USER_DEFINED, false, false, STR("Ġx")},
        {"gpt2", "Ġx", TOKEN_UNUSED, false, false, STR(" x")},
        {"gpt2", "<0x41>", TOKEN_BYTE, false, false, STR("A")},
        {"gpt2", "<|x|>", TOKEN_CONTROL, false, false, STR("")},
        {"gpt2", "<|x|>", TOKEN_CONTROL, true, false, STR("<|x|>")},
        {"gpt2", "<x>", TOKEN_UNKNOWN, false, false, STR("")},
        {"gpt2", "<x>", TOKEN_UNKNOWN, true, false, STR("<x>")},
        {"gpt2", "", TOKEN_NORMAL, true, true, STR("")},
        {"llama", "▁the", TOKEN_NORMAL, false, false, STR(" the")},
        {"llama", "▁the", TOKEN_NORMAL, false, true, STR("the")},
        {"llama", "▁▁x▁", TOKEN_NORMAL, false, true, STR(" x ")},
        {"llama", "x▁y", TOKEN_UNUSED, false, true, STR("x y")},
        {"llama", "▁the", TOKEN_USER_DEFINED, false, true, STR("▁the")},
        {"llama", "<0xFf>", TOKEN_BYTE, false, true, STR("\xff")},
        {"llama", "<0x0a>", TOKEN_BYTE, false, false, STR("\n")},
        {"llama", "<s>", TOKEN_CONTROL, true, true, STR("<s>")},
        {"llama", "<s>", TOKEN_CONTROL, false, true, STR("")},
    };
    for (u32 i = 0; i < COUNT_OF(rows); i++) {
        start(rows[i].model, "gpt-2");
        u32 id = vocab_add_z(vocab, rows[i].text, rows[i].type, 0);
        const struct tokenizer *t = create();
        u8 out[32];
        for (usize capacity = 0; capacity <= sizeof out; capacity++) {
            memset(out, 0xee, sizeof out);
            usize len = tokenizer_decode(t, id, rows[i].special, rows[i].first, out, capacity);
            CHECK_MSG(len == MIN(capacity, rows[i].piece.len), "row %u: %llu", i, (u64)len);
            CHECK_MSG(memcmp(out, rows[i].piece.data, len) == 0, "row %u: \"%.*s\"", i, (int)len,
                      (const char *)out);
            CHECK(len == sizeof out || out[len] == 0xee);
        }
        CHECK(tokenizer_piece_bytes_max(t) >= MAX(rows[i].piece.len, (usize)1));
    }
}

// The letters' closed form against the definition, by way of tokens.
static void letters_of_all_bytes(void) {
    start("gpt2", "gpt-2");
    u32 first = vocab_add_letters(vocab);
    const struct tokenizer *t = create();
    for (u32 b = 0; b < 256; b++) {
        u8 byte = (u8)b, out = 0;
        struct encoded e = encode(t, (struct str){&byte, 1}, 0);
        CHECK_MSG(e.n == 1 && e.ids[0] == first + b, "byte %u", b);
        CHECK(tokenizer_decode(t, first + b, false, false, &out, 1) == 1 && out == byte);
    }
}

// Text that comes token by token is shown up to the last whole character.
static void streaming_shows_whole_characters(void) {
    struct str text = STR("a😀é日 \xff\xf0\x9f!\xf0\x9f\x98\x80\xe2\x82\xac.");
    for (u32 model = 0; model < 2; model++) {
        if (model == 0)
            start_words("gpt-2");
        else
            start_spm(true);
        const struct tokenizer *t = create();
        struct encoded e = encode(t, text, 0);
        u8 shown[64], waiting[16];
        usize n_shown = 0, n_waiting = 0;
        for (usize i = 0; i < e.n; i++) {
            n_waiting += tokenizer_decode(t, e.ids[i], false, i == 0, waiting + n_waiting,
                                          sizeof waiting - n_waiting);
            usize whole = utf8_complete_prefix((struct str){waiting, n_waiting});
            for (usize at = 0; at < whole;) { // no half of what was whole in the text
                u32 code_point, bytes = utf8_decode((struct str){waiting, whole}, at, &code_point);
                u32 in_text = utf8_decode(text, n_shown + at, &code_point);
                CHECK_MSG(bytes == in_text, "model %u, token %llu", model, (u64)i);
                at += MAX(bytes, 1u);
            }
            memcpy(shown + n_shown, waiting, whole);
            n_shown += whole;
            n_waiting -= whole;
            memmove(waiting, waiting + whole, n_waiting);
        }
        memcpy(shown + n_shown, waiting, n_waiting);
        n_shown += n_waiting;
        CHECK(str_equal((struct str){shown, n_shown}, text));
    }
}

// --- a second implementation, on texts: slow, and right at a glance ---

static i32 naive_type(u32 id) {
    return vocab->source.types == NULL ? TOKEN_NORMAL : load_i32(vocab->types + 4 * id);
}

static u32 naive_find(struct str text) {
    for (u32 id = 0; id < vocab->source.n_tokens; id++)
        if (text.len > 0 && str_equal(vocab->texts[id], text)) return id;
    return TOKEN_NONE;
}

static bool naive_is_text(u32 id) {
    return id != TOKEN_NONE && naive_type(id) != TOKEN_CONTROL && naive_type(id) != TOKEN_UNKNOWN &&
           naive_type(id) != TOKEN_BYTE;
}

struct naive {
    struct str symbols[256]; // neighbours in one buffer
    u32 n_symbols;
    u32 ids[256];
    usize n_ids;
};

static void naive_put(struct naive *n, u32 id) {
    assert(n->n_ids < COUNT_OF(n->ids));
    n->ids[n->n_ids++] = id;
}

static struct str naive_joined(const struct naive *n, u32 at) {
    return (struct str){n->symbols[at].data, n->symbols[at].len + n->symbols[at + 1].len};
}

static void naive_merge(struct naive *n, u32 at) {
    n->symbols[at] = naive_joined(n, at);
    for (u32 i = at + 1; i + 1 < n->n_symbols; i++) n->symbols[i] = n->symbols[i + 1];
    n->n_symbols--;
}

// The best pair by BPE: of the lowest rank, then the leftmost.
static bool naive_best_bpe(const struct naive *n, u32 *at) {
    for (u32 rank = 0; rank < vocab->source.n_merges; rank++) {
        for (*at = 0; *at + 1 < n->n_symbols; ++*at) {
            struct str left = n->symbols[*at], right = n->symbols[*at + 1];
            struct str pair = vocab->pairs[rank];
            if (pair.len == left.len + 1 + right.len && str_starts_with(pair, left) &&
                pair.data[left.len] == ' ' &&
                memcmp(pair.data + left.len + 1, right.data, right.len) == 0 &&
                naive_is_text(naive_find(naive_joined(n, *at))))
                return true;
        }
    }
    return false;
}

// The best pair by SPM: of the highest score, then the leftmost.
static bool naive_best_spm(const struct naive *n, u32 *best) {
    bool found = false;
    f32 best_score = 0;
    for (u32 at = 0; at + 1 < n->n_symbols; at++) {
        u32 id = naive_find(naive_joined(n, at));
        if (!naive_is_text(id)) continue;
        f32 score = load_f32(vocab->scores + 4 * id);
        if (found && score <= best_score) continue;
        found = true;
        best_score = score;
        *best = at;
    }
    return found;
}

static void naive_bpe(struct naive *n, enum pretokenizer kind, struct str fragment) {
    struct pretokenize cut;
    struct str piece;
    pretokenize_start(&cut, kind, fragment);
    while (pretokenize_next(&cut, &piece)) {
        u8 *letters = grab(2 * piece.len);
        usize len = 0;
        n->n_symbols = 0;
        for (usize i = 0; i < piece.len; i++) {
            u8 letter[4];
            u32 bytes = vocab_letter(piece.data[i], letter);
            memcpy(letters + len, letter, bytes);
            n->symbols[n->n_symbols++] = (struct str){letters + len, bytes};
            len += bytes;
        }
        u32 whole = naive_find((struct str){letters, len});
        if (kind == PRETOKENIZER_LLAMA3 && naive_is_text(whole)) {
            naive_put(n, whole);
            continue;
        }
        u32 at;
        while (naive_best_bpe(n, &at)) naive_merge(n, at);
        for (u32 i = 0; i < n->n_symbols; i++) naive_put(n, naive_find(n->symbols[i]));
    }
}

static void naive_spm(struct naive *n, struct str fragment, bool dummy_space) {
    struct text escaped = text_over(grab(3 * fragment.len + 4), 3 * fragment.len + 4);
    if (dummy_space) text_put(&escaped, STR("▁"));
    for (usize i = 0; i < fragment.len; i++) {
        if (fragment.data[i] == ' ')
            text_put(&escaped, STR("▁"));
        else
            text_put_byte(&escaped, fragment.data[i]);
    }
    struct str text = {(const u8 *)escaped.data, escaped.len};
    n->n_symbols = 0;
    for (usize at = 0; at < text.len;) {
        u32 code_point, bytes = MAX(utf8_decode(text, at, &code_point), 1u);
        n->symbols[n->n_symbols++] = (struct str){text.data + at, bytes};
        at += bytes;
    }
    u32 at = 0;
    while (naive_best_spm(n, &at)) naive_merge(n, at);
    for (u32 i = 0; i < n->n_symbols; i++) {
        struct str symbol = n->symbols[i];
        u32 id = naive_find(symbol);
        if (naive_is_text(id)) {
            naive_put(n, id);
            continue;
        }
        if (str_equal(symbol, STR("▁"))) symbol = STR(" "); // as there is no token for it
        for (usize k = 0; k < symbol.len; k++) {
            char name[8];
            struct text t = TEXT_OVER_ARRAY(name);
            const char *digits = "0123456789ABCDEF";
            text_format(&t, "<0x%c%c>", digits[symbol.data[k] >> 4], digits[symbol.data[k] & 15]);
            naive_put(n, naive_find(str_from_z(name)));
        }
    }
}

static void naive_fragment(struct naive *n, struct str text, usize from, usize to, u32 flags) {
    struct str fragment = {text.data + from, to - from};
    if (fragment.len == 0) return;
    if (str_equal(vocab->source.model, STR("llama"))) {
        naive_spm(n, fragment,
                  vocab->source.add_space_prefix && from == 0 && (flags & TOKENIZE_CONTINUE) == 0);
    } else {
        enum pretokenizer kind = PRETOKENIZER_DEFAULT;
        CHECK(pretokenizer_by_name(vocab->source.pre, &kind));
        naive_bpe(n, kind, fragment);
    }
}

static void naive_encode(struct naive *n, struct str text, u32 flags) {
    n->n_ids = 0;
    usize plain = 0;
    for (usize at = 0; at < text.len;) {
        u32 best = TOKEN_NONE;
        struct str rest = {text.data + at, text.len - at};
        for (u32 id = 0; id < vocab->source.n_tokens; id++) {
            i32 type = naive_type(id);
            bool wanted = type == TOKEN_USER_DEFINED ||
                          ((flags & TOKENIZE_SPECIAL) != 0 &&
                           (type == TOKEN_CONTROL || type == TOKEN_UNKNOWN));
            if (wanted && vocab->texts[id].len > 0 && str_starts_with(rest, vocab->texts[id]) &&
                (best == TOKEN_NONE || vocab->texts[id].len > vocab->texts[best].len))
                best = id;
        }
        if (best == TOKEN_NONE) {
            at++;
            continue;
        }
        naive_fragment(n, text, plain, at, flags);
        naive_put(n, best);
        at += vocab->texts[best].len;
        plain = at;
    }
    naive_fragment(n, text, plain, text.len, flags);
}

// --- random vocabularies ---

static struct test_random rng;
// Of every two vocabularies one is dense: all from three letters, so that nearly every pair in a
// text has a merge and queues hold many stale entries.
static bool dense;

static u32 below(u32 limit) { return test_random_below(&rng, limit); }

// Mostly normal; user-defined, unused and control tokens among them.
static i32 random_type(void) {
    static const i32 types[] = {TOKEN_CONTROL, TOKEN_UNKNOWN, TOKEN_UNUSED, TOKEN_USER_DEFINED};
    return below(8) == 0 ? types[below(COUNT_OF(types))] : TOKEN_NORMAL;
}

// A random text of the small alphabets that the vocabularies are made of, sometimes with any byte.
static struct str random_text(usize bytes_max) {
    static const char *const parts[] = {"a", "b", "c",  "a",    "b",  " ",  " ", "\n", "1", "'s",
                                        "é", "▁", "ab", "aaaa", "  ", "日", "<", ">",  "."};
    usize want = below((u32)bytes_max + 1);
    struct text t = text_over(grab(want + 8), want + 8);
    while (t.len < want) {
        if (dense && below(20) > 0)
            text_put_byte(&t, (u8)('a' + below(3)));
        else if (below(40) == 0)
            text_put_byte(&t, (u8)below(256));
        else
            text_put(&t, str_from_z(parts[below(COUNT_OF(parts))]));
    }
    return (struct str){(const u8 *)t.data, MIN(t.len, bytes_max)};
}

static void add_random_specials(void) {
    for (u32 i = below(5); i > 0; i--) {
        struct str text = random_text(4);
        if (text.len > 0 && naive_find(text) == TOKEN_NONE)
            vocab_add(vocab, text, below(2) == 0 ? TOKEN_CONTROL : TOKEN_USER_DEFINED, 0);
    }
}

// Joins random tokens, then ranks the merges at random: they need not be in the order in which
// training would make them.
static void random_bpe(void) {
    static const char *const pres[] = {"gpt-2", "smollm", "llama-bpe", "qwen2", "default"};
    start("gpt2", pres[below(COUNT_OF(pres))]);
    static const char *const letters[] = {"a", "b", "c", "Ġ", "Ċ", "1", "Ã", "©", "s", "'"};
    vocab_add_letters(vocab);
    u32 pool[64], n_pool = 0;
    for (u32 i = 0; i < (dense ? 3 : COUNT_OF(letters)); i++)
        pool[n_pool++] = naive_find(str_from_z(letters[i]));
    struct str pairs[64][2];
    u32 n_pairs = 0;
    for (u32 tries = 0; tries < 60; tries++) {
        struct str left = vocab->texts[pool[below(n_pool)]];
        struct str right = vocab->texts[pool[below(n_pool)]];
        if (left.len + right.len > 12) continue;
        u8 *both = grab(left.len + right.len);
        memcpy(both, left.data, left.len);
        memcpy(both + left.len, right.data, right.len);
        struct str joined = {both, left.len + right.len};
        if (naive_find(joined) == TOKEN_NONE) {
            if (n_pool == COUNT_OF(pool)) continue;
            pool[n_pool++] = vocab_add(vocab, joined, random_type(), 0);
        }
        pairs[n_pairs][0] = left;
        pairs[n_pairs++][1] = right;
    }
    while (n_pairs > 0) {
        u32 i = below(n_pairs);
        vocab_add_merge(vocab, pairs[i][0], pairs[i][1]);
        n_pairs--;
        pairs[i][0] = pairs[n_pairs][0];
        pairs[i][1] = pairs[n_pairs][1];
    }
    add_random_specials();
}

// Few scores, so that many pairs are equal; U+2581 anywhere in a token; characters without a token.
static void random_spm(void) {
    start("llama", "");
    static const char *const characters[] = {"a", "b", "c", "▁", "é", "日", "1", "<", ">", "."};
    vocab_add_byte_tokens(vocab, TOKEN_BYTE);
    u32 pool[64], n_pool = 0;
    u32 n_characters = dense ? 4 : 4 + below(COUNT_OF(characters) - 3);
    for (u32 i = 0; i < n_characters; i++) {
        if (i > 1 && below(8) == 0) continue;
        pool[n_pool++] = vocab_add(vocab, str_from_z(characters[i]), TOKEN_NORMAL, -20);
    }
    for (u32 tries = 0; tries < 50; tries++) {
        struct str left = vocab->texts[pool[below(n_pool)]];
        struct str right = vocab->texts[pool[below(n_pool)]];
        if (left.len + right.len > 15) continue;
        u8 *both = grab(left.len + right.len);
        memcpy(both, left.data, left.len);
        memcpy(both + left.len, right.data, right.len);
        struct str joined = {both, left.len + right.len};
        static const f32 scores[] = {0.0f, -0.0f, -1, -2.5f, -3, 4, -1e30f, 1e-40f};
        if (naive_find(joined) == TOKEN_NONE && n_pool < COUNT_OF(pool))
            pool[n_pool++] =
                vocab_add(vocab, joined, random_type(), scores[below(COUNT_OF(scores))]);
    }
    vocab->source.has_add_space_prefix = true;
    vocab->source.add_space_prefix = below(2) == 0;
    add_random_specials();
}

static void compare_with_naive(void (*random_vocabulary)(void), u32 n_vocabularies, u32 n_texts) {
    rng.state = SEED;
    test_note("seed %u", SEED);
    for (u32 v = 0; v < n_vocabularies; v++) {
        dense = v % 2 == 0;
        random_vocabulary();
        const struct tokenizer *t = create();
        struct naive *n = grab(sizeof *n);
        usize used = memory.used;
        for (u32 i = 0; i < n_texts; i++, memory.used = used) {
            struct str text = random_text(40);
            u32 flags = below(8) & (TOKENIZE_SPECIAL | TOKENIZE_CONTINUE);
            struct encoded e = encode(t, text, flags);
            naive_encode(n, text, flags);
            CHECK_MSG(e.status == SOV_OK && ids_equal(e.ids, e.n, n->ids, n->n_ids),
                      "vocabulary %u, text %u \"%.*s\", flags %u: %s; by the second way %s", v, i,
                      STR_ARG(text), flags, ids_text(e.ids, e.n), ids_text(n->ids, n->n_ids));
        }
    }
}

static void bpe_equals_a_second_way(void) {
    compare_with_naive(random_bpe, test_option("FULL") != NULL ? 2000 : 150, 30);
}

static void spm_equals_a_second_way(void) {
    compare_with_naive(random_spm, test_option("FULL") != NULL ? 2000 : 150, 30);
}

// T3, T4: any bytes come back, but for U+2581 in SPM and user-defined tokens with one.
static void any_bytes_come_back(void) {
    rng.state = SEED + 1;
    dense = false;
    for (u32 round = 0; round < 400; round++) {
        bool spm = round % 2 == 0;
        if (spm)
            start_spm(below(2) == 0);
        else
            start_words(below(2) == 0 ? "llama-bpe" : "default");
        const struct tokenizer *t = create();
        usize used = memory.used;
        for (u32 i = 0; i < 5; i++, memory.used = used) {
            struct str text = random_text(60);
            u8 *bytes = grab(text.len + 1);
            usize len = 0;
            for (usize at = 0; at < text.len; at++) { // U+2581 left out
                bytes[len++] = below(10) == 0 ? (u8)below(256) : text.data[at];
                if (len >= 3 && memcmp(bytes + len - 3, "▁", 3) == 0) len -= 3;
            }
            text = (struct str){bytes, len};
            u32 flags = below(8) & (TOKENIZE_SPECIAL | TOKENIZE_BOS_EOS);
            struct encoded e = encode(t, text, flags);
            CHECK(e.status == SOV_OK);
            usize skip = e.n > 0 && e.ids[0] == tokenizer_bos(t) ? 1 : 0;
            CHECK_MSG(str_equal(decode(t, e.ids + skip, e.n - skip, true), text),
                      "round %u: \"%.*s\"", round, STR_ARG(text));
        }
    }
}

// --- refusals and limits ---

static void refuse_unknown_model(struct vocab *v) { v->source.model = STR("zzz"); }
static void refuse_no_model(struct vocab *v) { v->source.model = STR(""); }
static void refuse_unknown_pre(struct vocab *v) { v->source.pre = STR("gpt-17"); }
static void refuse_no_tokens(struct vocab *v) { v->source.n_tokens = 0; }
static void refuse_many_tokens(struct vocab *v) {
    v->source.types = NULL; // whose count would be a lie
    v->source.n_tokens = TOKENIZER_VOCAB_MAX + 1;
}
static void refuse_many_merges(struct vocab *v) { v->source.n_merges = TOKENIZER_MERGES_MAX + 1; }
static void refuse_no_merges(struct vocab *v) { v->source.merges = NULL; }
static void refuse_type_0(struct vocab *v) { store_i32(v->types + 4 * 7, 0); }
static void refuse_type_7(struct vocab *v) { store_i32(v->types + 4 * 7, 7); }
static void refuse_type_negative(struct vocab *v) { store_i32(v->types + 4 * 7, -1); }
static void refuse_byte_name(struct vocab *v) { vocab_add_z(v, "<0x4G>", TOKEN_BYTE, 0); }
static void refuse_twice(struct vocab *v) { vocab_add_z(v, "Ġthe", TOKEN_NORMAL, 0); }
static void refuse_bos(struct vocab *v) { v->source.bos = v->source.n_tokens; }
static void refuse_eos_max(struct vocab *v) { v->source.eos = 0xffffffff; }
static void refuse_eot(struct vocab *v) { v->source.eot = 1ull << 32; }
static void refuse_unknown_id(struct vocab *v) { v->source.unknown = TOKEN_ABSENT - 1; }
static void refuse_add_bos(struct vocab *v) {
    v->source.has_add_bos = true;
    v->source.add_bos = true;
}
static void refuse_add_eos(struct vocab *v) {
    v->source.has_add_eos = true;
    v->source.add_eos = true;
}
static void refuse_merge_left(struct vocab *v) { vocab_add_merge(v, STR("zz"), STR("e")); }
static void refuse_merge_right(struct vocab *v) { vocab_add_merge(v, STR("e"), STR("zz")); }
static void refuse_merge_result(struct vocab *v) { vocab_add_merge(v, STR("e"), STR("e")); }
static void refuse_merge_no_right(struct vocab *v) { vocab_add_merge(v, STR("e"), STR("")); }
static void refuse_merge_no_left(struct vocab *v) { vocab_add_merge(v, STR(""), STR("e")); }
static void refuse_merge_empty(struct vocab *v) {
    vocab_add_merge(v, STR(""), STR(""));
    store_u64(v->merges + v->merges_bytes - 9, 0); // not even the space
    v->merges_bytes--;
}

static void damaged_vocabularies_are_refused(void) {
    static const struct {
        void (*damage)(struct vocab *);
        enum sov_status status;
        const char *says; // a part of the message
    } rows[] = {
        {refuse_unknown_model, SOV_ERR_UNSUPPORTED, "tokenizer.ggml.model is \"zzz\""},
        {refuse_no_model, SOV_ERR_UNSUPPORTED, "tokenizer.ggml.model is \"\""},
        {refuse_unknown_pre, SOV_ERR_UNSUPPORTED, "tokenizer.ggml.pre is \"gpt-17\""},
        {refuse_no_tokens, SOV_ERR_FORMAT, "no tokens"},
        {refuse_many_tokens, SOV_ERR_UNSUPPORTED, "2097153 tokens"},
        {refuse_many_merges, SOV_ERR_UNSUPPORTED, "4194305 merges"},
        {refuse_no_merges, SOV_ERR_FORMAT, "merges is missing"},
        {refuse_type_0, SOV_ERR_FORMAT, "token 7 has type 0"},
        {refuse_type_7, SOV_ERR_FORMAT, "token 7 has type 7"},
        {refuse_type_negative, SOV_ERR_FORMAT, "token 7 has type -1"},
        {refuse_byte_name, SOV_ERR_FORMAT, "\"<0x4G>\", not of the form"},
        {refuse_twice, SOV_ERR_FORMAT, "have the same text \"Ġthe\""},
        {refuse_bos, SOV_ERR_FORMAT, "bos_token_id is "},
        {refuse_eos_max, SOV_ERR_FORMAT, "eos_token_id is 4294967295"},
        {refuse_eot, SOV_ERR_FORMAT, "eot_token_id is 4294967296"},
        {refuse_unknown_id, SOV_ERR_FORMAT, "unknown_token_id is "},
        {refuse_add_bos, SOV_ERR_FORMAT, "bos_token_id is missing"},
        {refuse_add_eos, SOV_ERR_FORMAT, "eos_token_id is missing"},
        {refuse_merge_left, SOV_ERR_FORMAT, "\"zz e\": its left part"},
        {refuse_merge_right, SOV_ERR_FORMAT, "\"e zz\": its right part"},
        {refuse_merge_result, SOV_ERR_FORMAT, "\"e e\": its result"},
        {refuse_merge_no_right, SOV_ERR_FORMAT, "not two tokens"},
        {refuse_merge_no_left, SOV_ERR_FORMAT, "not two tokens"},
        {refuse_merge_empty, SOV_ERR_FORMAT, "not two tokens"},
    };
    for (u32 i = 0; i < COUNT_OF(rows); i++) {
        start_words("gpt-2");
        rows[i].damage(vocab);
        u64 bytes = tokenizer_memory_bytes(&vocab->source);
        struct arena arena = exact_arena(bytes);
        const struct tokenizer *t = (const struct tokenizer *)vocab; // must be set to NULL
        struct sov_fault fault = {0};
        enum sov_status status = tokenizer_create(&vocab->source, &arena, &t, &fault);
        struct str message = str_from_z(fault.message), part = str_from_z(rows[i].says);
        bool says = false;
        for (usize at = 0; at + part.len <= message.len; at++)
            says = says || memcmp(message.data + at, part.data, part.len) == 0;
        CHECK_MSG(status == rows[i].status && t == NULL && says, "row %u: %s", i, fault.message);
    }
    start_spm(true);
    store_u32(vocab->scores + 4 * 300 - 4 * 30, 0x7fc00000);
    struct arena arena = exact_arena(tokenizer_memory_bytes(&vocab->source));
    const struct tokenizer *t;
    struct sov_fault fault = {0};
    CHECK(tokenizer_create(&vocab->source, &arena, &t, &fault) == SOV_ERR_FORMAT);
    // One byte too few is an error, not a crash.
    start_words("gpt-2");
    for (usize bytes = 0; bytes < tokenizer_memory_bytes(&vocab->source) - 256; bytes += 97) {
        arena = arena_over(memory.base + memory.used, bytes);
        CHECK(tokenizer_create(&vocab->source, &arena, &t, NULL) == SOV_ERR_MEMORY && t == NULL);
    }
}

// Of a pair that is named twice, the better rank holds; merges of a "llama" file are of no account.
static void merges_that_do_not_count(void) {
    start_words("gpt-2");
    vocab_merge(vocab, "e", "s");
    vocab_merge(vocab, "t", "h"); // again, and now worse than e s
    EXPECT(create(), "thes", 0, "the|s");
    start_spm(false);
    vocab_add_merge(vocab, STR("nonsense"), STR("x"));
    vocab->source.merges = vocab->merges;
    EXPECT(create(), "the", 0, "the");
}

static void limits_of_encoding(void) {
    start_words("gpt-2");
    const struct tokenizer *t = create();
    struct str text = STR("the xyz");
    u32 ids[8];
    usize n = 9;
    u64 scratch_bytes = tokenizer_encode_scratch_bytes(t, text.len);
    u8 *base = grab(scratch_bytes);
    for (usize capacity = 0; capacity <= 5; capacity++) { // the|Ġ|x|y|z
        struct arena scratch = arena_over(base, scratch_bytes);
        struct sov_fault fault = {0};
        enum sov_status status = tokenizer_encode(t, text, 0, &scratch, ids, capacity, &n, &fault);
        CHECK_MSG(status == (capacity < 5 ? SOV_ERR_LIMIT : SOV_OK), "capacity %llu",
                  (u64)capacity);
        CHECK(n == (capacity < 5 ? 0 : 5) && scratch.used == 0);
    }
    for (usize bytes = 0; bytes + 64 < scratch_bytes; bytes += 8) {
        struct arena scratch = arena_over(base, bytes);
        CHECK(tokenizer_encode(t, text, 0, &scratch, ids, 8, &n, NULL) == SOV_ERR_MEMORY);
        CHECK(n == 0 && scratch.used == 0);
    }
    // Lengths beyond the limit are refused before a byte is looked at (B9).
    static const usize lengths[] = {TOKENIZER_TEXT_BYTES_MAX + 1, 1ull << 31, 1ull << 32, ~0ull};
    for (u32 i = 0; i < COUNT_OF(lengths); i++) {
        struct arena scratch = arena_over(base, scratch_bytes);
        struct str too_long = {NULL, lengths[i]};
        CHECK(tokenizer_encode(t, too_long, 0, &scratch, ids, 8, &n, NULL) == SOV_ERR_LIMIT);
        CHECK(tokenizer_encode_scratch_bytes(t, lengths[i]) <= 64 * TOKENIZER_TEXT_BYTES_MAX);
    }
}

static void finding_tokens(void) {
    start_words("gpt-2");
    u32 empty = vocab_add_z(vocab, "", TOKEN_NORMAL, 0);
    vocab_add_z(vocab, "", TOKEN_NORMAL, 0); // several empty texts are no fault
    const struct tokenizer *t = create();
    CHECK(tokenizer_n_tokens(t) == vocab->source.n_tokens);
    CHECK(tokenizer_bos(t) == TOKEN_NONE && tokenizer_eos(t) == TOKEN_NONE);
    for (u32 id = 0; id < tokenizer_n_tokens(t); id++)
        CHECK(tokenizer_find(t, vocab->texts[id]) == (id >= empty ? TOKEN_NONE : id));
    CHECK(tokenizer_find(t, STR("")) == TOKEN_NONE && tokenizer_find(t, STR("th ")) == TOKEN_NONE);
    CHECK(tokenizer_piece_bytes_max(t) == sizeof("<|bos|>") - 1);
}

// --- time and stack ---

// Merges of runs of each letter, up to 64 long, so that runs keep the queue busy.
static void add_runs(const char *letter) {
    char memory_of_text[256];
    for (u32 n = 1; n < 64; n *= 2) {
        struct text t = TEXT_OVER_ARRAY(memory_of_text);
        for (u32 i = 0; i < n; i++) text_format(&t, "%s", letter);
        vocab_merge(vocab, t.data, t.data);
    }
}

static const char *const long_units[] = {"a", " ", ".", "\xcc\x81", "\n", "\xff", "<", "a ", "1"};

static void start_runs(u32 model) {
    static const char *const pres[] = {"gpt-2", "smollm", "llama-bpe", "qwen2", "default"};
    if (model < COUNT_OF(pres)) {
        start_words(pres[model]);
        static const char *const letters[] = {"Ġ", ".", "Ċ", "ÿ", "Ìģ", "<", "1"};
        vocab_merge(vocab, "Ì", "ģ");
        for (u32 i = 0; i < COUNT_OF(letters); i++) add_runs(letters[i]);
        return;
    }
    start_spm(true);
    static const char *const characters[] = {"a", "▁", ".", "\xcc\x81", "\n", "<", "1"};
    char chars[256];
    for (u32 i = 0; i < COUNT_OF(characters); i++) {
        for (u32 n = 1; n <= 32; n++) {
            struct text t = TEXT_OVER_ARRAY(chars);
            for (u32 k = 0; k < n; k++) text_format(&t, "%s", characters[i]);
            struct str text = {(const u8 *)t.data, t.len};
            if (naive_find(text) == TOKEN_NONE)
                vocab_add(vocab, text, TOKEN_NORMAL, -(f32)(n % 7) - 1);
        }
    }
}
#define RUN_MODELS 6

// Of the models, the next one that a short run looks at: gpt-2, llama-bpe and SPM.
static u32 next_model(u32 model) {
    if (test_option("FULL") != NULL) return model + 1;
    return model == 0 ? 2 : model == 2 ? RUN_MODELS - 1 : RUN_MODELS;
}

static struct str repeated(const char *unit, usize bytes) {
    struct str u = str_from_z(unit);
    u8 *data = grab(bytes);
    for (usize i = 0; i < bytes; i++) data[i] = u.data[i % u.len];
    return (struct str){data, bytes - bytes % u.len};
}

// Time that this thread has computed. The platform has no such clock, as the engine needs none; but
// with the clock on the wall these tests would fail whenever others use the machine.
static u64 thread_cpu_ns(void) {
    struct {
        i64 seconds, nanoseconds;
    } now = {0};
    i64 result;
    __asm__ volatile("syscall" // clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now)
                     : "=a"(result), "+m"(now)
                     : "a"(228L), "D"(3L), "S"(&now)
                     : "rcx", "r11", "memory");
    assert(result == 0);
    return (u64)now.seconds * 1000000000 + (u64)now.nanoseconds;
}

static u64 encode_ns(const struct tokenizer *t, struct str text) {
    usize used = memory.used;
    u64 begin = thread_cpu_ns();
    struct encoded e = encode(t, text, TOKENIZE_SPECIAL);
    u64 ns = thread_cpu_ns() - begin;
    CHECK(e.status == SOV_OK);
    memory.used = used;
    return ns;
}

// B4, T2: twice the text takes at most 2.5 times as long. The best of some tries counts, since
// caches are shared with other programs; a quadratic part would show as 4 in every one of them.
static void time_grows_with_the_text(void) {
    usize bytes = test_option("FULL") != NULL ? 400000 : 32000;
    for (u32 model = 0; model < RUN_MODELS; model = next_model(model)) {
        start_runs(model);
        const struct tokenizer *t = create();
        for (u32 u = 0; u < COUNT_OF(long_units); u++) {
            usize used = memory.used;
            struct str whole = repeated(long_units[u], bytes), half = whole;
            half.len = whole.len / 2 - whole.len / 2 % 2;
            u64 best_half = ~0ull, best_whole = ~0ull;
            for (u32 tries = 0; tries < 50; tries++) {
                best_half = MIN(best_half, encode_ns(t, half));
                best_whole = MIN(best_whole, encode_ns(t, whole));
                if (tries > 0 && best_whole <= 2 * best_half + best_half / 2) break;
            }
            CHECK_MSG(best_whole <= 2 * best_half + best_half / 2,
                      "model %u, \"%s\": %llu us for %llu bytes, %llu us for half of it", model,
                      long_units[u], best_whole / 1000, (u64)bytes, best_half / 1000);
            memory.used = used;
        }
    }
}

// B4: 200,000 bytes in under a second (it is some 0.03 s, or 0.1 s with sanitizers).
static void long_runs_are_fast(void) {
    for (u32 model = 0; model < RUN_MODELS; model = next_model(model)) {
        start_runs(model);
        const struct tokenizer *t = create();
        for (u32 u = 0; u < COUNT_OF(long_units); u++) {
            usize used = memory.used;
            struct str text = repeated(long_units[u], 200000);
            u64 best = ~0ull;
            for (u32 tries = 0; tries < 5 && best >= 1000000000; tries++)
                best = MIN(best, encode_ns(t, text));
            CHECK_MSG(best < 1000000000, "model %u, \"%s\": %llu ms", model, long_units[u],
                      best / 1000000);
            memory.used = used;
        }
    }
}

// Special tokens, hits and near misses, do not make it slower either.
static void time_with_special_tokens(void) {
    static const char *const units[] = {"<|eot|>", "<|eo", "<note>a", "\n"};
    start_words("gpt-2");
    char runs[64];
    struct text t = TEXT_OVER_ARRAY(runs);
    for (u32 n = 1; n < 40; n++) { // as some vocabularies have them
        text_put_byte(&t, '\n');
        vocab_add(vocab, (struct str){(const u8 *)t.data, t.len}, TOKEN_USER_DEFINED, 0);
    }
    const struct tokenizer *tokenizer = create();
    for (u32 u = 0; u < COUNT_OF(units); u++) {
        usize used = memory.used;
        u64 best = ~0ull;
        for (u32 tries = 0; tries < 3; tries++)
            best = MIN(best, encode_ns(tokenizer, repeated(units[u], 200000)));
        CHECK_MSG(best < 1000000000, "\"%s\": %llu ms", units[u], best / 1000000);
        memory.used = used;
    }
}

#define STACK_LOOKED_AT (128 * 1024)
#define STACK_MAX (64 * 1024)
#define STACK_PAINT 0xa7

__attribute__((noinline)) static void paint_stack(void) {
    volatile u8 area[STACK_LOOKED_AT];
    for (usize i = 0; i < sizeof area; i++) area[i] = STACK_PAINT;
}

// How much of the painted area was written to since: it lies where callees' frames come to lie.
__attribute__((noinline, no_sanitize("address", "undefined"))) static usize stack_used(void) {
    volatile u8 area[STACK_LOOKED_AT];
    __asm__ volatile("" : : "r"(area) : "memory"); // reads what is there
    for (usize i = 0; i < sizeof area; i++)
        if (area[i] != STACK_PAINT) return sizeof area - i;
    return 0;
}

static void stack_is_small(void) {
    for (u32 model = 0; model < RUN_MODELS; model = next_model(model)) {
        start_runs(model);
        const struct tokenizer *t = create();
        for (u32 u = 0; u < COUNT_OF(long_units); u++) {
            usize used = memory.used;
            struct str text = repeated(long_units[u], 100000);
            paint_stack();
            struct encoded e = encode(t, text, TOKENIZE_SPECIAL);
            usize depth = stack_used();
            CHECK(e.status == SOV_OK);
            CHECK_MSG(depth > 0 && depth < STACK_MAX, "model %u, \"%s\": %llu bytes of stack",
                      model, long_units[u], (u64)depth);
            memory.used = used;
        }
    }
}

static const struct test_case cases[] = {
    {"bpe_merges_by_rank", bpe_merges_by_rank},
    {"whole_pieces_before_merging", whole_pieces_before_merging},
    {"spm_merges_by_score", spm_merges_by_score},
    {"dummy_space_once", dummy_space_once},
    {"text_cannot_inject_control_tokens", text_cannot_inject_control_tokens},
    {"longest_special_first", longest_special_first},
    {"many_specials", many_specials},
    {"bos_and_eos_rules", bos_and_eos_rules},
    {"ordinary_token_as_bos", ordinary_token_as_bos},
    {"end_tokens", end_tokens},
    {"invalid_utf8_keeps_its_bytes", invalid_utf8_keeps_its_bytes},
    {"bytes_without_a_token", bytes_without_a_token},
    {"spm_without_types", spm_without_types},
    {"pieces_of_tokens", pieces_of_tokens},
    {"letters_of_all_bytes", letters_of_all_bytes},
    {"streaming_shows_whole_characters", streaming_shows_whole_characters},
    {"bpe_equals_a_second_way", bpe_equals_a_second_way},
    {"spm_equals_a_second_way", spm_equals_a_second_way},
    {"any_bytes_come_back", any_bytes_come_back},
    {"damaged_vocabularies_are_refused", damaged_vocabularies_are_refused},
    {"merges_that_do_not_count", merges_that_do_not_count},
    {"limits_of_encoding", limits_of_encoding},
    {"finding_tokens", finding_tokens},
    {"time_grows_with_the_text", time_grows_with_the_text},
    {"long_runs_are_fast", long_runs_are_fast},
    {"time_with_special_tokens", time_with_special_tokens},
    {"stack_is_small", stack_is_small},
};

int program_main(const struct platform_start *begin) {
    return test_main(begin, "test_tokenizer", cases, COUNT_OF(cases));
}
