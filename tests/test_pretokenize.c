// SPDX-License-Identifier: Apache-2.0
// Tests of pretokenize.c and of the Unicode classes under it. The expected pieces follow from the
// regular expressions at the head of pretokenize.c; they were also compared with an independent
// regular expression engine on some 400,000 random texts, which is not repeated here.
#include "request/pretokenize.h"
#include "request/unicode_tables.h"
#include "test.h"

#define SEED 20240613

static void classes_of_code_points(void) {
    static const struct {
        u32 code_point;
        enum unicode_class class;
    } rows[] = {
        {'a', UNICODE_LETTER},      {'Z', UNICODE_LETTER},       {'0', UNICODE_NUMBER},
        {'_', UNICODE_PUNCTUATION}, {'\'', UNICODE_PUNCTUATION}, {'$', UNICODE_OTHER},
        {'`', UNICODE_OTHER},       {' ', UNICODE_SPACE},        {'\n', UNICODE_SPACE},
        {0x0b, UNICODE_SPACE},      {0x1c, UNICODE_OTHER},       {0x7f, UNICODE_OTHER},
        {0x85, UNICODE_SPACE},      {0xa0, UNICODE_SPACE},       {0xaa, UNICODE_LETTER},
        {0xb2, UNICODE_NUMBER},     {0xbf, UNICODE_PUNCTUATION}, {0xd7, UNICODE_OTHER},
        {0x301, UNICODE_OTHER},     {0x661, UNICODE_NUMBER},     {0x93f, UNICODE_OTHER},
        {0x180e, UNICODE_OTHER},    {0x2028, UNICODE_SPACE},     {0x200b, UNICODE_OTHER},
        {0x2160, UNICODE_NUMBER},   {0x3000, UNICODE_SPACE},     {0x3007, UNICODE_NUMBER},
        {0x4e00, UNICODE_LETTER},   {0x9fff, UNICODE_LETTER},    {0xac00, UNICODE_LETTER},
        {0xd7a3, UNICODE_LETTER},   {0xd7a4, UNICODE_OTHER},     {0xd800, UNICODE_OTHER},
        {0xe000, UNICODE_OTHER},    {0xff10, UNICODE_NUMBER},    {0xfffd, UNICODE_OTHER},
        {0xffff, UNICODE_OTHER},    {0x10400, UNICODE_LETTER},   {0x1d7d8, UNICODE_NUMBER},
        {0x1f600, UNICODE_OTHER},   {0x20000, UNICODE_LETTER},   {0x2a6df, UNICODE_LETTER},
        {0x10ffff, UNICODE_OTHER},  {0x110000, UNICODE_OTHER},   {0xffffffff, UNICODE_OTHER},
    };
    for (u32 i = 0; i < COUNT_OF(rows); i++)
        CHECK_MSG(unicode_class_of(rows[i].code_point) == rows[i].class, "U+%x is of class %u",
                  rows[i].code_point, unicode_class_of(rows[i].code_point));
    u32 n_spaces = 0; // the property White_Space has had 25 members since Unicode 6.3
    for (u32 c = 0; c < UNICODE_CODE_POINTS; c++)
        n_spaces += unicode_class_of(c) == UNICODE_SPACE ? 1 : 0;
    CHECK_MSG(n_spaces == 25, "%u code points are white space", n_spaces);
}

static void names_of_pretokenizers(void) {
    static const struct {
        const char *name;
        bool known;
        enum pretokenizer kind;
    } rows[] = {
        {"gpt-2", true, PRETOKENIZER_GPT2},
        {"smollm", true, PRETOKENIZER_SMOLLM},
        {"llama-bpe", true, PRETOKENIZER_LLAMA3},
        {"qwen2", true, PRETOKENIZER_QWEN2},
        {"default", true, PRETOKENIZER_DEFAULT},
        {"", true, PRETOKENIZER_DEFAULT},
        {"gpt-3", false, 0},
        {"gpt2", false, 0},
        {"gpt-2 ", false, 0},
        {"gpt-", false, 0},
        {"GPT-2", false, 0},
        {"zzz", false, 0},
    };
    for (u32 i = 0; i < COUNT_OF(rows); i++) {
        enum pretokenizer kind = PRETOKENIZER_DEFAULT;
        bool known = pretokenizer_by_name(str_from_z(rows[i].name), &kind);
        CHECK_MSG(known == rows[i].known && (!known || kind == rows[i].kind), "\"%s\"",
                  rows[i].name);
    }
}

// The pieces with a bar between them; no text of the table has a bar.
static void expect_pieces(enum pretokenizer kind, struct str text, struct str wanted) {
    char memory[512];
    struct text got = TEXT_OVER_ARRAY(memory);
    struct pretokenize cut;
    struct str piece;
    pretokenize_start(&cut, kind, text);
    for (bool first = true; pretokenize_next(&cut, &piece); first = false) {
        if (!first) text_put_byte(&got, '|');
        text_put(&got, piece);
    }
    struct str s = {(const u8 *)got.data, got.len};
    CHECK_MSG(str_equal(s, wanted), "\"%.*s\" by pre-tokenizer %u: \"%s\" instead of \"%.*s\"",
              STR_ARG(text), kind, got.data, STR_ARG(wanted));
}

struct row {
    struct str text, gpt2, smollm, llama3, qwen2, by_default; // the text and its pieces
};
#define SAME \
    { NULL, 0 } // as the column before

static void expect_rows(const struct row *rows, u32 n_rows) {
    static const enum pretokenizer columns[5] = {PRETOKENIZER_GPT2, PRETOKENIZER_SMOLLM,
                                                 PRETOKENIZER_LLAMA3, PRETOKENIZER_QWEN2,
                                                 PRETOKENIZER_DEFAULT};
    for (u32 i = 0; i < n_rows; i++) {
        const struct str cells[5] = {rows[i].gpt2, rows[i].smollm, rows[i].llama3, rows[i].qwen2,
                                     rows[i].by_default};
        struct str wanted = cells[0];
        for (u32 c = 0; c < 5; c++) {
            if (cells[c].data != NULL) wanted = cells[c];
            expect_pieces(columns[c], rows[i].text, wanted);
        }
    }
}

static const struct row piece_rows[] = {
    {STR("Hello world"), STR("Hello| world"), SAME, SAME, SAME, SAME},
    {STR("x\n\n"), STR("x|\n\n"), SAME, SAME, SAME, SAME},
    {STR("a   b"), STR("a|  | b"), SAME, SAME, SAME, SAME},
    {STR("a  "), STR("a|  "), SAME, SAME, SAME, SAME},
    {STR("  a"), STR(" | a"), SAME, SAME, SAME, SAME},
    {STR(" "), STR(" "), SAME, SAME, SAME, SAME},
    {STR("123"), STR("123"), STR("1|2|3"), STR("123"), STR("1|2|3"), STR("123")},
    {STR(" the"), STR(" the"), SAME, SAME, SAME, SAME},
    {STR("12345 67"), STR("12345| 67"), STR("1|2|3|4|5| |6|7"), STR("123|45| |67"),
     STR("1|2|3|4|5| |6|7"), STR("123|45| |67")},
    {STR("a  1"), STR("a| | 1"), STR("a|  |1"), STR("a| | |1"), SAME, SAME},
    {STR("1  a"), STR("1| | a"), SAME, SAME, SAME, SAME},
    {STR("I'm I'M we'll 'tis"), STR("I|'m| I|'|M| we|'ll| '|tis"), SAME,
     STR("I|'m| I|'M| we|'ll| '|tis"), SAME, STR("I|'|m| I|'|M| we|'|ll| |'|tis")},
    {STR("'s'S're'RE've'm'll'LL'd'D'x'"), STR("'s|'|S|'re|'|RE|'ve|'m|'ll|'|LL|'d|'|D|'|x|'"), SAME,
     STR("'s|'S|'re|'RE|'ve|'m|'ll|'LL|'d|'D|'x|'"), SAME,
     STR("'|s|'|S|'|re|'|RE|'|ve|'|m|'|ll|'|LL|'|d|'|D|'|x|'")},
    {STR("''s"), STR("''|s"), SAME, SAME, SAME, SAME},
    {STR("rock 'n' roll"), STR("rock| '|n|'| roll"), SAME, SAME, SAME, STR("rock| |'|n|'| roll")},
    {STR("!?a ?!\n\nb"), STR("!?|a| ?!|\n|\n|b"), SAME, STR("!?|a| ?!\n\n|b"), SAME,
     STR("!?|a| |?!|\n|\n|b")},
    {STR("a\r\n\r\n b"), STR("a|\r\n\r\n| b"), SAME, SAME, SAME, SAME},
    {STR("a \n b"), STR("a| \n| b"), SAME, SAME, SAME, SAME},
    {STR("\n a"), STR("\n| a"), SAME, SAME, SAME, SAME},
    {STR("a \t b\n\n\tc"), STR("a| \t| b|\n\n|\t|c"), SAME, STR("a| \t| b|\n\n|\tc"), SAME,
     STR("a| \t| b|\n\n|\t|c")},
    {STR("a\tb"), STR("a|\t|b"), SAME, STR("a|\tb"), SAME, STR("a|\t|b")},
    {STR("\xe3\x80\x80"
         "a\xc2\xa0\xc2\xa0"
         "b"),
     STR("\xe3\x80\x80|a|\xc2\xa0|\xc2\xa0|b"), SAME,
     STR("\xe3\x80\x80"
         "a|\xc2\xa0|\xc2\xa0"
         "b"),
     SAME, STR("\xe3\x80\x80|a|\xc2\xa0|\xc2\xa0|b")},
    {STR("x=y+1; // ok"), STR("x|=|y|+|1|;| //| ok"), SAME, STR("x|=y|+|1|;| //| ok"), SAME,
     STR("x|=|y|+|1|;| |//| ok")},
    {STR("$5.00<=10%"), STR("$|5|.|00|<=|10|%"), STR("$|5|.|0|0|<=|1|0|%"), STR("$|5|.|00|<=|10|%"),
     STR("$|5|.|0|0|<=|1|0|%"), STR("$|5|.|00|<=|10|%")},
    {STR("a`b~c^d"), STR("a|`|b|~|c|^|d"), SAME, STR("a|`b|~c|^d"), SAME, STR("a|`|b|~|c|^|d")},
    {STR("e\xcc\x81"
         "e"),
     STR("e|\xcc\x81|e"), SAME,
     STR("e|\xcc\x81"
         "e"),
     SAME, STR("e|\xcc\x81|e")},
    {STR("\xcc\x81"
         "a"),
     STR("\xcc\x81|a"), SAME,
     STR("\xcc\x81"
         "a"),
     SAME, STR("\xcc\x81|a")},
    {STR("日本語12"), STR("日本語|12"), STR("日本語|1|2"), STR("日本語|12"), STR("日本語|1|2"),
     STR("日本語|12")},
    {STR("Ⅷ²½x"), STR("Ⅷ²½|x"), STR("Ⅷ|²|½|x"), STR("Ⅷ²½|x"), STR("Ⅷ|²|½|x"), STR("Ⅷ²½|x")},
    {STR("१२३४५"), STR("१२३४५"), STR("१|२|३|४|५"), STR("१२३|४५"), STR("१|२|३|४|५"), STR("१२३४५")},
    {STR("12१3456"), STR("12१3456"), STR("1|2|१|3|4|5|6"), STR("12१|345|6"), STR("1|2|१|3|4|5|6"),
     STR("12१|345|6")},
    {STR("😀😀 😀a"), STR("😀😀| 😀|a"), SAME, SAME, SAME, SAME},
    {STR("don’t"), STR("don|’|t"), SAME, STR("don|’t"), SAME, STR("don|’|t")},
    {STR("_a_b"), STR("_|a|_|b"), SAME, STR("_a|_b"), SAME, STR("_|a|_|b")},
    {STR("ſt 's 'ſ"), STR("ſt| '|s| '|ſ"), SAME, SAME, SAME, STR("ſt| |'|s| |'|ſ")},
    {STR("a.b,c"), STR("a|.|b|,|c"), SAME, STR("a|.b|,c"), SAME, STR("a|.|b|,|c")},
    {STR("(a) [b]"), STR("(|a|)| [|b|]"), SAME, STR("(a|)| [|b|]"), SAME, STR("(|a|)| |[|b|]")},
    {STR("\r\n"), STR("\r\n"), SAME, SAME, SAME, SAME},
    {STR("x  \n  y"), STR("x|  \n | y"), SAME, STR("x|  \n| | y"), SAME, STR("x|  \n | y")},
    {STR("a\xe2\x80\xa8"
         "b"),
     STR("a|\xe2\x80\xa8|b"), SAME,
     STR("a|\xe2\x80\xa8"
         "b"),
     SAME, STR("a|\xe2\x80\xa8|b")},
    {STR("9a9"), STR("9|a|9"), SAME, SAME, SAME, SAME},
    {STR("1 2 3"), STR("1| 2| 3"), STR("1| |2| |3"), SAME, SAME, SAME},
    {STR("\x00\x01 a"), STR("\x00\x01| a"), SAME, SAME, SAME, SAME},
    {STR("0x1F"), STR("0|x|1|F"), SAME, SAME, SAME, SAME},
    {STR("a'"), STR("a|'"), SAME, SAME, SAME, SAME},
    {STR("'"), STR("'"), SAME, SAME, SAME, SAME},
    {STR("'l"), STR("'|l"), SAME, STR("'l"), SAME, STR("'|l")},
    {STR("ß'LLa"), STR("ß|'|LLa"), SAME, STR("ß|'LL|a"), SAME, STR("ß|'|LLa")},
};

static void pieces_of_each_pretokenizer(void) { expect_rows(piece_rows, COUNT_OF(piece_rows)); }

static void empty_text_has_no_piece(void) {
    for (u32 kind = PRETOKENIZER_DEFAULT; kind <= PRETOKENIZER_QWEN2; kind++) {
        struct pretokenize cut;
        struct str piece;
        pretokenize_start(&cut, (enum pretokenizer)kind, (struct str){NULL, 0});
        CHECK(!pretokenize_next(&cut, &piece));
    }
}

// Bytes that are not UTF-8 are characters of their own, and cut as symbols are (P2).
static void invalid_bytes_are_symbols(void) {
    static const struct row rows[] = {
        {STR("a\xff\xfe"
             "b"),
         STR("a|\xff\xfe|b"), SAME, STR("a|\xff\xfe|b"), SAME, STR("a|\xff\xfe|b")},
        {STR("a\xff"
             "b"),
         STR("a|\xff|b"), SAME,
         STR("a|\xff"
             "b"),
         SAME, STR("a|\xff|b")},
        {STR("x\xed\xa0\x80 y"), STR("x|\xed\xa0\x80| y"), SAME, SAME, SAME, SAME},
        {STR("\xc3"), STR("\xc3"), SAME, SAME, SAME, SAME},
        {STR("a\xc3 \xa9"), STR("a|\xc3| \xa9"), SAME, SAME, SAME, SAME},
        {STR("!\xff?"), STR("!\xff?"), SAME, SAME, SAME, STR("!|\xff|?")},
        {STR("1\xf4\x90\x80\x80"
             "2"),
         STR("1|\xf4\x90\x80\x80|2"), SAME, SAME, SAME, SAME},
    };
    expect_rows(rows, COUNT_OF(rows));
}

// P1 on random bytes, half of them from a small set that makes long runs and near misses.
static void pieces_joined_are_the_text(void) {
    static const u8 likely[] = " \n\r\t'slLrevE019a$.\xc2\xa0\xe2\x80\xa8\xf0\x9f\x98\x80";
    struct test_random random = {SEED};
    test_note("seed %u", SEED);
    for (u32 round = 0; round < 20000; round++) {
        u8 text[64];
        usize len = test_random_below(&random, sizeof text + 1);
        for (usize i = 0; i < len; i++)
            text[i] = test_random_below(&random, 4) == 0
                          ? (u8)test_random_below(&random, 256)
                          : likely[test_random_below(&random, sizeof likely - 1)];
        for (u32 kind = PRETOKENIZER_DEFAULT; kind <= PRETOKENIZER_QWEN2; kind++) {
            struct pretokenize cut;
            struct str piece;
            usize at = 0;
            pretokenize_start(&cut, (enum pretokenizer)kind, (struct str){text, len});
            while (pretokenize_next(&cut, &piece)) {
                CHECK(piece.len > 0 && piece.data == text + at);
                at += piece.len;
            }
            CHECK_MSG(at == len, "round %u, pre-tokenizer %u: %llu of %llu bytes", round, kind,
                      (u64)at, (u64)len);
        }
    }
}

static const struct test_case cases[] = {
    {"classes_of_code_points", classes_of_code_points},
    {"names_of_pretokenizers", names_of_pretokenizers},
    {"pieces_of_each_pretokenizer", pieces_of_each_pretokenizer},
    {"empty_text_has_no_piece", empty_text_has_no_piece},
    {"invalid_bytes_are_symbols", invalid_bytes_are_symbols},
    {"pieces_joined_are_the_text", pieces_joined_are_the_text},
};

int program_main(const struct platform_start *start) {
    return test_main(start, "test_pretokenize", cases, COUNT_OF(cases));
}
