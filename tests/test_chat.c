// SPDX-License-Identifier: Apache-2.0
// Chat templates: which family a text is taken for, what each family writes, where special tokens
// stand. (tests/test_chat_cli.py compares with the templates' own language.)
#include "freestanding/mem.h"
#include "request/chat.h"
#include "test.h"
#include "vocab_builder.h"

#define TOKENIZER_BYTES (1u << 20)
#define RENDERED_BYTES 65536

static struct vocab vocabulary;
static u8 tokenizer_memory[TOKENIZER_BYTES];
static struct chat_template chat;

static const char *const specials[] = {
    "<s>",
    "</s>",
    "<|im_start|>",
    "<|im_end|>",
    "<|im_sep|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<|end|>",
    "<|user|>",
    "<|assistant|>",
    "<|system|>",
    "<|eot|>",
    "[INST]",
    "[/INST]",
    "</think>",
};

// A byte-level vocabulary with those of the special tokens that `wanted` names (a set of indices),
// as tokens of this type. Ids: 256 bytes, then the special ones in order.
static const struct tokenizer *make_tokenizer(u64 wanted, i32 type, bool add_bos) {
    vocab_start(&vocabulary, "gpt2", "gpt-2");
    vocab_add_letters(&vocabulary);
    for (u32 i = 0; i < COUNT_OF(specials); i++) {
        if ((wanted >> i & 1) == 0) continue;
        u32 id = vocab_add_z(&vocabulary, specials[i], i < 2 ? TOKEN_CONTROL : type, 0);
        if (i == 0) vocabulary.source.bos = id;
        if (i == 1) vocabulary.source.eos = id;
    }
    vocabulary.source.has_add_bos = true;
    vocabulary.source.add_bos = add_bos;
    assert(tokenizer_memory_bytes(&vocabulary.source) <= TOKENIZER_BYTES);
    struct arena arena = arena_over(tokenizer_memory, TOKENIZER_BYTES);
    const struct tokenizer *tokenizer = NULL;
    struct sov_fault fault = {0};
    enum sov_status status = tokenizer_create(&vocabulary.source, &arena, &tokenizer, &fault);
    CHECK_MSG(status == SOV_OK, "%s", fault.message);
    return tokenizer;
}
#define ALL_SPECIALS ((1ull << COUNT_OF(specials)) - 1)

// --- rendering, as text with special tokens between backquotes ---

static char rendered_memory[RENDERED_BYTES];
static struct chat_part parts[64 * CHAT_PARTS_PER_MESSAGE];
static u32 n_parts;

static void put_part(struct text *out, const struct tokenizer *tokenizer, const struct text *text,
                     const struct chat_part *part) {
    u8 piece[64];
    if (part->token != TOKEN_NONE) {
        usize len = tokenizer_decode(tokenizer, part->token, true, false, piece, sizeof piece);
        text_format(out, "`%.*s`", (int)len, (const char *)piece);
    } else if (part->ids != NULL) {
        text_format(out, "(%u ids)", part->n_ids);
    } else {
        text_put(out, (struct str){(const u8 *)text->data + part->begin, part->len});
    }
}

static enum sov_status render(const struct tokenizer *tokenizer, const struct chat_message *m,
                              u32 n, struct text *out, struct sov_fault *fault) {
    static char text_memory[RENDERED_BYTES];
    assert(n * CHAT_PARTS_PER_MESSAGE + CHAT_PARTS_EXTRA <= COUNT_OF(parts));
    struct text text = text_over(text_memory, chat_text_bytes(m, n) + 1);
    *out = TEXT_OVER_ARRAY(rendered_memory);
    n_parts = 0;
    enum sov_status status = chat_render(&chat, tokenizer, m, n, &text, parts, &n_parts, fault);
    for (u32 i = 0; status == SOV_OK && i < n_parts; i++)
        put_part(out, tokenizer, &text, &parts[i]);
    return status;
}

static struct chat_message message(enum chat_role role, const char *text) {
    return (struct chat_message){.role = role, .content = str_from_z(text)};
}

static void check_rendered(const struct tokenizer *tokenizer, const struct chat_message *m, u32 n,
                           const char *wanted) {
    struct text out;
    struct sov_fault fault = {0};
    enum sov_status status = render(tokenizer, m, n, &out, &fault);
    CHECK_MSG(status == SOV_OK, "%s", fault.message);
    CHECK_MSG(str_equal((struct str){(const u8 *)out.data, out.len}, str_from_z(wanted)),
              "%s\nrendered %s\nwanted   %s", chat.family.name, out.data, wanted);
}

static const struct {
    const char *name, *wanted; // of system "S", user " u ", assistant " a ", user "v"
} families[] = {
    {"chatml", "`<|im_start|>`system\nS`<|im_end|>`\n`<|im_start|>`user\n u `<|im_end|>`\n"
               "`<|im_start|>`assistant\n a `<|im_end|>`\n`<|im_start|>`user\nv`<|im_end|>`\n"
               "`<|im_start|>`assistant\n"},
    {"phi4", "`<|im_start|>`system`<|im_sep|>`S`<|im_end|>``<|im_start|>`user`<|im_sep|>` u "
             "`<|im_end|>``<|im_start|>`assistant`<|im_sep|>` a `<|im_end|>``<|im_start|>`user"
             "`<|im_sep|>`v`<|im_end|>``<|im_start|>`assistant`<|im_sep|>`"},
    {"llama2", "`<s>``[INST]` <<SYS>>\nS\n<</SYS>>\n\n u `[/INST]` a `</s>``<s>``[INST]` v "
               "`[/INST]`"},
    {"llama3", "`<s>``<|start_header_id|>`system`<|end_header_id|>`\n\nS`<|eot_id|>`"
               "`<|start_header_id|>`user`<|end_header_id|>`\n\nu`<|eot_id|>`"
               "`<|start_header_id|>`assistant`<|end_header_id|>`\n\na`<|eot_id|>`"
               "`<|start_header_id|>`user`<|end_header_id|>`\n\nv`<|eot_id|>`"
               "`<|start_header_id|>`assistant`<|end_header_id|>`\n\n"},
    {"gemma", "`<s>``<start_of_turn>`user\nS\n\nu`<end_of_turn>`\n`<start_of_turn>`model\na"
              "`<end_of_turn>`\n`<start_of_turn>`user\nv`<end_of_turn>`\n`<start_of_turn>`model\n"},
    {"mistral-v1", "`<s>` `[INST]` S\n\n u  `[/INST]`  a `</s>` `[INST]` v `[/INST]`"},
    {"mistral-v3", "`<s>``[INST]`  u `[/INST]` a`</s>``[INST]` S\n\nv`[/INST]`"},
    {"mistral-v3-tekken", "`<s>``[INST]` u `[/INST]` a `</s>``[INST]`S\n\nv`[/INST]`"},
    {"mistral-v7", "`<s>`[SYSTEM_PROMPT] S[/SYSTEM_PROMPT]`[INST]`  u `[/INST]`  a `</s>``[INST]` v"
                   "`[/INST]`"},
    {"mistral-v7-tekken", "`<s>`[SYSTEM_PROMPT]S[/SYSTEM_PROMPT]`[INST]` u `[/INST]` a `</s>`"
                          "`[INST]`v`[/INST]`"},
    {"zephyr", "`<|system|>`\nS`</s>`\n`<|user|>`\n u `</s>`\n`<|assistant|>`\n a `</s>`\n"
               "`<|user|>`\nv`</s>`\n`<|assistant|>`\n"},
    {"phi3", "`<|system|>`\nS`<|end|>`\n`<|user|>`\n u `<|end|>`\n`<|assistant|>`\n a `<|end|>`\n"
             "`<|user|>`\nv`<|end|>`\n`<|assistant|>`\n"},
    {"tags", "`<|system|>`S`<|eot|>``<|user|>` u `<|eot|>``<|assistant|>` a `<|eot|>``<|user|>`v"
             "`<|eot|>``<|assistant|>`"},
};

static void test_families(void) {
    const struct tokenizer *tokenizer = make_tokenizer(ALL_SPECIALS, TOKEN_CONTROL, false);
    const struct chat_message m[] = {message(CHAT_SYSTEM, "S"), message(CHAT_USER, " u "),
                                     message(CHAT_ASSISTANT, " a "), message(CHAT_USER, "v")};
    for (usize i = 0; i < COUNT_OF(families); i++) {
        struct sov_fault fault = {0};
        CHECK(chat_template_named(families[i].name, &chat, &fault) == SOV_OK);
        check_rendered(tokenizer, m, COUNT_OF(m), families[i].wanted);
        u32 end = chat_end_token(&chat, tokenizer);
        CHECK_MSG(end != TOKEN_NONE, "%s has no end token", families[i].name);
    }
}

// Every end of a turn ends answers by itself; that of "tags" only if the file says so.
static void test_ends(void) {
    const struct tokenizer *tokenizer = make_tokenizer(ALL_SPECIALS, TOKEN_CONTROL, false);
    for (usize i = 0; i < COUNT_OF(families); i++) {
        struct sov_fault fault = {0};
        CHECK(chat_template_named(families[i].name, &chat, &fault) == SOV_OK);
        bool ends = tokenizer_is_end(tokenizer, chat_end_token(&chat, tokenizer));
        bool is_tags = str_equal(str_from_z(families[i].name), STR("tags"));
        CHECK_MSG(ends == !is_tags, "%s", families[i].name);
    }
}

// --- recognition ---

#define CHATML_LOOP                                                                  \
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + " \
    "'<|im_end|>' + '\\n' }}{% endfor %}{{ '<|im_start|>assistant\\n' }}"

static const struct {
    const char *text, *name, *system; // name NULL: unknown
} recognised[] = {
    {CHATML_LOOP, "chatml", ""},
    {"{{ '<|im_start|>system\\nBe good.<|im_end|>\\n' }}" CHATML_LOOP, "chatml", "Be good."},
    {"{{ '<|im_start|>system\nBe good.<|im_end|>\n' }}" CHATML_LOOP, "chatml", "Be good."},
    {"{{ \"<|im_start|>system\\nIt's \\\"on\\\".\\nYes<|im_end|>\\n\" }}" CHATML_LOOP, "chatml",
     "It's \"on\".\nYes"},
    {"{{ '<|im_start|>system\\n' + s + '<|im_end|>\\n' }}" CHATML_LOOP, "chatml", ""},
    {"<|im_start|>system\nRaw.<|im_end|>\n" CHATML_LOOP, "chatml", "Raw."},
    {"<|im_start|>system\n{{ s }}<|im_end|>\n" CHATML_LOOP, "chatml", ""},
    {"<|im_start|>user<|im_sep|>{{ x }}<|im_end|>", "phi4", ""},
    {"<|im_start|>User: {{ x }}<end_of_utterance>", NULL, ""},
    {"<|im_user|>user<|im_middle|>{{ x }}<|im_end|> <|im_start|>", NULL, ""},
    {"{{ '<|start_header_id|>' + r + '<|end_header_id|>\\n\\n' + c | trim + '<|eot_id|>' }}",
     "llama3", ""},
    {"<|start_header_id|>{{ r }}<|end_header_id|>\n\n>>>all<|eot_id|>", NULL, ""},
    {"<start_of_turn>model\n{{ c | trim }}<end_of_turn>", "gemma", ""},
    {"{{ bos_token + '[INST] ' + '<<SYS>>' + content.strip() + ' [/INST]' }}", "llama2", ""},
    {"{% set system_message = 'Help.' %}<<SYS>>[INST] [/INST]", "llama2", "Help."},
    {"{% if false == true %}{% set system_message = 'Help.' %}<<SYS>>[INST] [/INST]", "llama2", ""},
    {"{{ ' [INST] ' + content + ' [/INST]' }}", "mistral-v1", ""},
    {"{{ '[INST] ' + content + ' [/INST]' }}", "mistral-v1", ""},
    {"{{ '[INST] ' + content + '[/INST]' }}", "mistral-v3", ""},
    {"{{ '[INST]' + content + '[/INST]' }}", "mistral-v3-tekken", ""},
    {"[SYSTEM_PROMPT] {{ '[INST] ' + content + '[/INST]' }}", "mistral-v7", ""},
    {"[SYSTEM_PROMPT]{{ '[INST]' + content + '[/INST]' }}", "mistral-v7-tekken", ""},
    {"{{ '<|user|>\\n' + c + eos_token }}{% else %}<|assistant|>", "zephyr", ""},
    {"{{ '<|user|>\\n' + c + '\\n' }}{% else %}<|assistant|>{{ eos_token }}", NULL, ""},
    {"{{ '<|' + m['role'] + '|>' + '\\n' + c + '<|end|>\\n' }}{% if g %}<|assistant|>", "phi3", ""},
    {"<|{{ m['role'] }}|>{{ c }}<|eot|>{% endfor %}<|assistant|>", "tags", ""},
    {"<|{{ m['role'] }}|>\n{{ c }}<|eot|>{% endfor %}<|assistant|>", NULL, ""},
    {"[gMASK]<sop><|user|>\n{{ c }}<|assistant|>", NULL, ""},
    {"### Instruction:\n{{ c }}\n### Response:\n", NULL, ""},
    {"", NULL, ""},
};

static void test_recognition(void) {
    const struct tokenizer *tokenizer = make_tokenizer(ALL_SPECIALS, TOKEN_CONTROL, false);
    for (usize i = 0; i < COUNT_OF(recognised); i++) {
        struct sov_fault fault = {0};
        struct str text = str_from_z(recognised[i].text);
        enum sov_status status = chat_template_recognise(text, tokenizer, &chat, &fault);
        if (recognised[i].name == NULL) {
            CHECK_MSG(status == SOV_ERR_UNSUPPORTED, "%zu: status %d, %s", i, (int)status,
                      status == SOV_OK ? chat.family.name : "");
            struct text names = TEXT_OVER_ARRAY(rendered_memory);
            text_format(&names, "%s", fault.message);
            bool lists = false; // the last name: the list is there, and not cut
            for (usize at = 0; at + 4 <= names.len; at++) {
                lists = lists || memcmp(names.data + at, "tags", 4) == 0;
            }
            CHECK(lists);
            continue;
        }
        CHECK_MSG(status == SOV_OK, "%zu: %s", i, fault.message);
        if (status != SOV_OK) continue;
        CHECK_MSG(str_equal(str_from_z(chat.family.name), str_from_z(recognised[i].name)),
                  "%zu: %s", i, chat.family.name);
        struct str system = {(const u8 *)chat.system_text, chat.system_len};
        CHECK_MSG(str_equal(system, str_from_z(recognised[i].system)), "%zu: \"%.*s\"", i,
                  STR_ARG(system));
    }
}

static void test_long_templates(void) {
    const struct tokenizer *tokenizer = make_tokenizer(ALL_SPECIALS, TOKEN_CONTROL, false);
    static u8 bytes[CHAT_TEMPLATE_BYTES_MAX + 1];
    static const char *const words[] = {"{{",
                                        "<|im_start|>system\\n",
                                        "<|im_start|>",
                                        "content",
                                        "system_message = '",
                                        "[INST]",
                                        "<|user|>",
                                        "\\",
                                        "'"};
    for (usize w = 0; w < COUNT_OF(words); w++) { // the same again and again: no end is found
        struct str word = str_from_z(words[w]);
        for (usize i = 0; i < sizeof bytes; i++) bytes[i] = word.data[i % word.len];
        struct sov_fault fault = {0};
        struct str text = {bytes, CHAT_TEMPLATE_BYTES_MAX};
        CHECK(chat_template_recognise(text, tokenizer, &chat, &fault) == SOV_ERR_UNSUPPORTED);
        text.len++;
        CHECK(chat_template_recognise(text, tokenizer, &chat, NULL) == SOV_ERR_LIMIT);
    }
}

// --- special tokens ---

// One BOS where the template or the vocabulary wants one, and none where neither does.
static void test_one_bos(void) {
    static const struct {
        const char *text;
        bool add_bos, wanted;
    } rows[] = {
        {CHATML_LOOP, false, false},
        {CHATML_LOOP, true, true},
        {"{{ bos_token }}" CHATML_LOOP, false, true},
        {"{{ bos_token }}" CHATML_LOOP, true, true},
        {"<s>" CHATML_LOOP, true, true},
        {"<s>" CHATML_LOOP, false, true},
        {" {{- '<s>' }}" CHATML_LOOP, false, true},
        {CHATML_LOOP "<s>", false, false},
        {"{{ bos_token + '[INST] ' }} [/INST] <<SYS>>", true, true},
        {"{{ bos_token + '[INST] ' }} [/INST] <<SYS>>", false, true},
    };
    const struct chat_message user = message(CHAT_USER, "<s>hi");
    for (usize i = 0; i < COUNT_OF(rows); i++) {
        const struct tokenizer *tokenizer =
            make_tokenizer(ALL_SPECIALS, TOKEN_CONTROL, rows[i].add_bos);
        struct sov_fault fault = {0};
        struct str text = str_from_z(rows[i].text);
        CHECK(chat_template_recognise(text, tokenizer, &chat, &fault) == SOV_OK);
        struct text out;
        CHECK(render(tokenizer, &user, 1, &out, &fault) == SOV_OK);
        u32 n = 0;
        for (u32 k = 0; k < n_parts; k++) n += parts[k].token == tokenizer_bos(tokenizer) ? 1 : 0;
        bool first = n_parts > 0 && parts[0].token == tokenizer_bos(tokenizer);
        CHECK_MSG(n == (rows[i].wanted ? 1 : 0) && first == rows[i].wanted, "row %zu: %u BOS", i,
                  n);
    }
}

// What a user writes stays text, also where the file calls the markers user-defined.
static void test_no_injection(void) {
    const i32 types[] = {TOKEN_CONTROL, TOKEN_USER_DEFINED, TOKEN_NORMAL};
    for (usize t = 0; t < COUNT_OF(types); t++) {
        const struct tokenizer *tokenizer = make_tokenizer(ALL_SPECIALS, types[t], false);
        for (u32 i = 0; i < COUNT_OF(specials); i++) {
            struct str name = str_from_z(specials[i]);
            bool is_marker = !str_equal(name, STR("<|eot|>")) && !str_equal(name, STR("</think>"));
            if (types[t] != TOKEN_CONTROL && !is_marker) continue; // what the file says counts
            static u8 scratch[1 << 16];
            struct arena arena = arena_over(scratch, sizeof scratch);
            u32 ids[64];
            usize n = 0;
            struct sov_fault fault = {0};
            CHECK(tokenizer_encode(tokenizer, name, 0, &arena, ids, COUNT_OF(ids), &n, &fault) ==
                  SOV_OK);
            CHECK_MSG(n == name.len, "type %d: %s is %zu tokens", types[t], specials[i], n);
        }
    }
}

static void test_missing_tokens(void) {
    const struct chat_message user = message(CHAT_USER, "hi");
    for (usize i = 0; i < COUNT_OF(families); i++) {
        struct sov_fault fault = {0};
        CHECK(chat_template_named(families[i].name, &chat, &fault) == SOV_OK);
        struct text out;
        const struct tokenizer *bare = make_tokenizer(3, TOKEN_CONTROL, false); // BOS and EOS
        enum sov_status status = render(bare, &user, 1, &out, &fault);
        bool as_text = chat.family.markers_are_text;
        CHECK_MSG(status == (as_text ? SOV_OK : SOV_ERR_UNSUPPORTED), "%s: %s", families[i].name,
                  fault.message);
        const struct tokenizer *none = make_tokenizer(0, TOKEN_CONTROL, false);
        const struct chat_message m[] = {user, message(CHAT_ASSISTANT, "a"), user};
        CHECK_MSG(render(none, m, COUNT_OF(m), &out, &fault) == SOV_ERR_UNSUPPORTED, "%s",
                  families[i].name);
    }
}

// --- answers that were generated, thoughts, mistakes ---

static void test_generated_answers(void) {
    const struct tokenizer *tokenizer = make_tokenizer(ALL_SPECIALS, TOKEN_CONTROL, false);
    const u32 ids[] = {1, 2, 3};
    struct chat_message m[] = {message(CHAT_USER, "u"), message(CHAT_ASSISTANT, ""),
                               message(CHAT_USER, "v")};
    m[1].ids = ids;
    m[1].n_ids = COUNT_OF(ids);
    struct sov_fault fault = {0};
    CHECK(chat_template_named("chatml", &chat, &fault) == SOV_OK);
    check_rendered(tokenizer, m, COUNT_OF(m),
                   "`<|im_start|>`user\nu`<|im_end|>`\n`<|im_start|>`assistant\n(3 ids)"
                   "`<|im_end|>`\n`<|im_start|>`user\nv`<|im_end|>`\n`<|im_start|>`assistant\n");
    CHECK(chat_template_named("llama2", &chat, &fault) == SOV_OK); // no blank that it has itself
    check_rendered(tokenizer, m, COUNT_OF(m),
                   "`<s>``[INST]` u `[/INST]`(3 ids) `</s>``<s>``[INST]` v `[/INST]`");
}

static void test_thoughts(void) {
    const struct tokenizer *tokenizer = make_tokenizer(ALL_SPECIALS, TOKEN_CONTROL, false);
    u32 end = tokenizer_find(tokenizer, STR("</think>"));
    const u32 ids[] = {65, end, 66, end, '\n', '\n', 67, '\n'};
    struct sov_fault fault = {0};
    struct str text = STR("{{ content.split('</think>')[-1] }}" CHATML_LOOP);
    CHECK(chat_template_recognise(text, tokenizer, &chat, &fault) == SOV_OK);
    CHECK(chat_thought_tokens(&chat, tokenizer, ids, COUNT_OF(ids)) == 6);
    CHECK(chat_thought_tokens(&chat, tokenizer, ids, 4) == 4);
    CHECK(chat_thought_tokens(&chat, tokenizer, ids, 1) == 0);
    CHECK(chat_thought_tokens(&chat, tokenizer, ids + 4, 2) == 0); // newlines that follow none
    const struct chat_message m[] = {message(CHAT_USER, "u"),
                                     message(CHAT_ASSISTANT, "<think>x</think>\n\na\n")};
    check_rendered(tokenizer, m, COUNT_OF(m),
                   "`<|im_start|>`user\nu`<|im_end|>`\n`<|im_start|>`assistant\na\n`<|im_end|>`\n"
                   "`<|im_start|>`assistant\n");
    CHECK(chat_template_named("chatml", &chat, &fault) == SOV_OK);
    CHECK(chat_thought_tokens(&chat, tokenizer, ids, COUNT_OF(ids)) == 0);
    text =
        STR(CHATML_LOOP "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}");
    CHECK(chat_template_recognise(text, tokenizer, &chat, &fault) == SOV_OK);
    CHECK(chat.family.generation != NULL);
}

static void test_trimming(void) {
    const struct tokenizer *tokenizer = make_tokenizer(ALL_SPECIALS, TOKEN_CONTROL, false);
    static const struct {
        const char *name, *content, *wanted;
    } rows[] = {
        {"gemma", "\xc2\xa0\t a\xe3\x80\x80 b \xe2\x80\xa8\x1f\n", "a\xe3\x80\x80 b"},
        {"gemma", " \n ", ""},
        {"gemma", "\xa0 \xff", "\xa0 \xff"}, // no characters, so no white space
        {"chatml", " a ", " a "},
    };
    for (usize i = 0; i < COUNT_OF(rows); i++) {
        struct sov_fault fault = {0};
        CHECK(chat_template_named(rows[i].name, &chat, &fault) == SOV_OK);
        const struct chat_message m = message(CHAT_USER, rows[i].content);
        char memory[256];
        struct text wanted = TEXT_OVER_ARRAY(memory);
        bool gemma = i < 3;
        text_format(&wanted, "%suser\n%s%s", gemma ? "`<s>``<start_of_turn>`" : "`<|im_start|>`",
                    rows[i].wanted,
                    gemma ? "`<end_of_turn>`\n`<start_of_turn>`model\n"
                          : "`<|im_end|>`\n`<|im_start|>`assistant\n");
        check_rendered(tokenizer, &m, 1, memory);
    }
}

static void test_mistakes(void) {
    const struct tokenizer *tokenizer = make_tokenizer(ALL_SPECIALS, TOKEN_CONTROL, false);
    struct sov_fault fault = {0};
    struct text out;
    CHECK(chat_template_named("vicuna", &chat, &fault) == SOV_ERR_USAGE);
    CHECK(chat_template_named("gemma", &chat, &fault) == SOV_OK);
    const struct chat_message late[] = {message(CHAT_USER, "u"), message(CHAT_SYSTEM, "s")};
    CHECK(render(tokenizer, late, 2, &out, NULL) == SOV_ERR_ARGUMENT);
    const struct chat_message alone[] = {message(CHAT_SYSTEM, "s")};
    CHECK(render(tokenizer, alone, 1, &out, NULL) == SOV_ERR_ARGUMENT);
    CHECK(chat_template_named("chatml", &chat, &fault) == SOV_OK);
    CHECK(render(tokenizer, alone, 1, &out, NULL) == SOV_OK);
    check_rendered(tokenizer, NULL, 0, "`<|im_start|>`assistant\n");
    CHECK(chat_template_named("llama3.1", &chat, &fault) == SOV_OK); // the frame is always there
    check_rendered(tokenizer, NULL, 0,
                   "`<s>``<|start_header_id|>`system`<|end_header_id|>`\n\n"
                   "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n`<|eot_id|>`"
                   "`<|start_header_id|>`assistant`<|end_header_id|>`\n\n");
}

static const struct test_case cases[] = {
    {"families", test_families},
    {"ends", test_ends},
    {"recognition", test_recognition},
    {"long_templates", test_long_templates},
    {"one_bos", test_one_bos},
    {"no_injection", test_no_injection},
    {"missing_tokens", test_missing_tokens},
    {"generated_answers", test_generated_answers},
    {"thoughts", test_thoughts},
    {"trimming", test_trimming},
    {"mistakes", test_mistakes},
};

int program_main(const struct platform_start *start) {
    return test_main(start, "test_chat", cases, COUNT_OF(cases));
}
