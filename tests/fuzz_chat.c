// SPDX-License-Identifier: Apache-2.0
// libFuzzer harness of what people type at a model: chat templates out of files, conversations, and
// stop strings. The first byte of an input says what the rest is:
//
//   0... .vvv   a conversation for vocabulary v. The second byte is 0 for the template text that
//               follows, else the number of a family; then messages, {role, text} each. Texts end
//               with a zero byte. Whatever they hold: special tokens stand where the template puts
//               them and nowhere else, and no text of a message is lost.
//   1... ....   stop strings and a text: whatever pieces it comes in, what is shown is what the
//               definition in stop.h says of the whole text
#include "cli/generate.h"
#include "freestanding/mem.h"
#include "vocab_builder.h"
#include <stdlib.h>

#define N_VOCABULARIES 8
#define MESSAGES_MAX 8

int LLVMFuzzerTestOneInput(const u8 *data, usize bytes);

struct reader {
    const u8 *at, *end;
};

static u8 take_byte(struct reader *r) { return r->at < r->end ? *r->at++ : 0; }

static struct str take_text(struct reader *r) {
    struct str s = {r->at, 0};
    while (r->at < r->end && *r->at != 0) r->at++;
    s.len = (usize)(r->at - s.data);
    if (r->at < r->end) r->at++;
    return s;
}

static void *allocate(usize bytes) {
    void *memory = malloc(MAX(bytes, 1u));
    assert(memory != NULL);
    return memory;
}

// A copy of exactly its size, so that the sanitizer sees a step too far.
static struct str copy_of(struct str s) {
    u8 *copy = allocate(s.len);
    if (s.len > 0) memcpy(copy, s.data, s.len);
    return (struct str){copy, s.len};
}

// --- vocabularies ---

// Bit 0: SPM. Bit 1: no BOS. Bit 2: every second special token is missing or ordinary text.
static void build(struct vocab *v, u32 which) {
    static const char *const specials[] = {
        "<|im_start|>", "<|im_end|>",          "<|im_sep|>",      "<|start_header_id|>",
        "<|eot_id|>",   "<|end_header_id|>",   "<end_of_turn>",   "<start_of_turn>",
        "[INST]",       "[/INST]",             "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]",
        "<|system|>",   "<|user|>",            "<|assistant|>",   "<|end|>",
        "<|eot|>",      "<think>",             "</think>",        "<note>",
    };
    bool is_spm = (which & 1) != 0, is_poor = (which & 4) != 0;
    vocab_start(v, is_spm ? "llama" : "gpt2", is_spm ? "" : "llama-bpe");
    if (is_spm) {
        vocab_add_byte_tokens(v, TOKEN_BYTE);
        vocab_add_z(v, "▁", TOKEN_NORMAL, -1);
        v->source.has_add_space_prefix = true;
        v->source.add_space_prefix = true;
    } else {
        vocab_add_letters(v);
    }
    if ((which & 2) == 0) {
        v->source.bos = vocab_add_z(v, "<s>", TOKEN_CONTROL, 0);
        v->source.has_add_bos = true;
        v->source.add_bos = true;
    }
    v->source.eos = vocab_add_z(v, "</s>", TOKEN_CONTROL, 0);
    for (u32 i = 0; i < COUNT_OF(specials); i++) {
        if (is_poor && i % 3 == 1) continue;
        bool is_text = is_poor && i % 3 == 2;
        bool is_user_defined = i + 3 >= COUNT_OF(specials); // <think>, </think>, <note>
        i32 type = is_text           ? TOKEN_NORMAL
                   : is_user_defined ? TOKEN_USER_DEFINED
                                     : TOKEN_CONTROL;
        vocab_add_z(v, specials[i], type, 0);
    }
}

static const struct vocabulary *vocabulary_of(u32 which) {
    static struct vocab built[N_VOCABULARIES];
    static struct vocabulary vocabularies[N_VOCABULARIES];
    struct vocabulary *v = &vocabularies[which];
    if (v->tokenizer == NULL) {
        build(&built[which], which);
        u64 bytes = tokenizer_memory_bytes(&built[which].source);
        struct arena arena = arena_over(allocate(bytes), bytes); // kept for ever
        struct sov_fault fault = {0};
        enum sov_status status =
            tokenizer_create(&built[which].source, &arena, &v->tokenizer, &fault);
        assert(status == SOV_OK);
    }
    return v;
}

// --- conversations ---

struct conversation {
    struct chat_message messages[MESSAGES_MAX];
    u32 n;
};

static struct conversation take_conversation(struct reader *r, const struct tokenizer *tokenizer) {
    struct conversation c = {0};
    while (c.n < MESSAGES_MAX && r->at < r->end) {
        u8 role = take_byte(r);
        struct str text = copy_of(take_text(r));
        struct chat_message *m = &c.messages[c.n++];
        *m = (struct chat_message){.role = (enum chat_role)(role % 3), .content = text};
        if (role % 6 != 5) continue;
        // The ids of an answer that was generated: any, but no special ones.
        u32 *ids = allocate(text.len * sizeof *ids);
        for (usize i = 0; i < text.len; i++) {
            ids[i] = text.data[i];
            assert(tokenizer_type(tokenizer, ids[i]) != TOKEN_CONTROL);
        }
        m->ids = ids;
        m->n_ids = (u32)text.len;
    }
    return c;
}

static void free_conversation(struct conversation *c) {
    for (u32 i = 0; i < c->n; i++) {
        free((void *)(usize)c->messages[i].content.data);
        free((void *)(usize)c->messages[i].ids);
    }
}

static enum sov_status choose_template(const struct vocabulary *v, struct reader *r,
                                       struct chat_template *t, struct sov_fault *fault) {
    u8 choice = take_byte(r);
    if (choice == 0) {
        struct str text = copy_of(take_text(r));
        enum sov_status status = chat_template_recognise(text, v->tokenizer, t, fault);
        assert(status == SOV_OK || status_exit_code(status) == 3 || status == SOV_ERR_LIMIT);
        free((void *)(usize)text.data);
        return status;
    }
    // Family `choice` of the list of names: "chatml, phi4, ...".
    char memory[512], name[64];
    struct text names = TEXT_OVER_ARRAY(memory), one = TEXT_OVER_ARRAY(name);
    chat_family_names(&names);
    u32 n = 1, wanted = choice;
    for (usize i = 0; i < names.len; i++) n += names.data[i] == ',';
    wanted %= n;
    for (usize i = 0, at = 0; i < names.len; i++) {
        if (names.data[i] == ',') {
            at++;
            i++; // and the blank
        } else if (at == wanted) {
            text_put_byte(&one, (u8)names.data[i]);
        }
    }
    enum sov_status status = chat_template_named(name, t, fault);
    assert(status == SOV_OK);
    return status;
}

static bool is_special(const struct chat_part *part) { return part->token != TOKEN_NONE; }

// C1: the special tokens do not depend on what the messages say.
static void check_specials(const struct vocabulary *v, const struct chat_template *t,
                           const struct conversation *c, const struct prompt_parts *parts) {
    struct conversation plain = *c;
    for (u32 i = 0; i < plain.n; i++) {
        plain.messages[i].content = STR("x");
        plain.messages[i].ids = NULL;
        plain.messages[i].n_ids = 0;
    }
    struct prompt_parts other;
    struct sov_fault fault = {0};
    enum sov_status status = prompt_render(v, t, plain.messages, plain.n, &other, &fault);
    assert(status == SOV_OK);
    u32 at = 0;
    for (u32 i = 0; i < parts->n_parts; i++) {
        if (!is_special(&parts->parts[i])) continue;
        while (at < other.n_parts && !is_special(&other.parts[at])) at++;
        assert(at < other.n_parts && other.parts[at].token == parts->parts[i].token);
        at++;
    }
    while (at < other.n_parts && !is_special(&other.parts[at])) at++;
    assert(at == other.n_parts);
    prompt_parts_free(&other);
}

static usize find(struct str text, struct str wanted) {
    for (usize i = 0; i + wanted.len <= text.len; i++) {
        if (str_equal((struct str){text.data + i, wanted.len}, wanted)) return i;
    }
    return text.len + 1;
}

// A message that no template trims or shortens stands in the text whole, behind those before it.
// (The system message may stand inside a later message.)
static void check_contents(const struct conversation *c, const struct prompt_parts *parts) {
    struct str rest = {(const u8 *)parts->text.data, parts->text.len};
    for (u32 i = 0; i < c->n; i++) {
        struct str content = c->messages[i].content;
        if (c->messages[i].role == CHAT_SYSTEM || c->messages[i].ids != NULL) continue;
        bool keeps = content.len > 0 && content.data[0] > ' ' && content.data[0] < 0x7f &&
                     content.data[content.len - 1] > ' ' && content.data[content.len - 1] < 0x7f &&
                     find(content, STR("</think>")) > content.len;
        if (!keeps) continue;
        usize at = find(rest, content);
        assert(at <= rest.len);
        rest = (struct str){rest.data + at + content.len, rest.len - at - content.len};
    }
}

// The prompt as ids: control tokens are those of the template, one BOS leads where one is known.
static void check_ids(const struct vocabulary *v, const struct chat_template *t,
                      const struct conversation *c, const struct prompt_parts *parts) {
    struct token_list list;
    struct sov_fault fault = {0};
    enum sov_status status = prompt_encode(v, t, c->messages, c->n, &list, &fault);
    assert(status == SOV_OK); // both vocabularies know every byte
    u32 n_controls = 0, n_wanted = 0;
    for (usize i = 0; i < list.n; i++) {
        n_controls += tokenizer_type(v->tokenizer, list.ids[i]) == TOKEN_CONTROL;
    }
    for (u32 i = 0; i < parts->n_parts; i++) {
        const struct chat_part *part = &parts->parts[i];
        n_wanted += is_special(part) && tokenizer_type(v->tokenizer, part->token) == TOKEN_CONTROL;
    }
    assert(n_controls == n_wanted);
    u32 bos = tokenizer_bos(v->tokenizer);
    if (bos != TOKEN_NONE) { // these vocabularies add it
        assert(list.n > 0 && list.ids[0] == bos);
        assert(list.n == 1 || list.ids[1] != bos);
    }
    token_list_free(&list);
}

static void try_conversation(u32 which, struct reader *r) {
    const struct vocabulary *v = vocabulary_of(which);
    static struct chat_template t;
    struct sov_fault fault = {0};
    if (choose_template(v, r, &t, &fault) != SOV_OK) {
        assert(fault.message[0] != 0);
        return;
    }
    assert(t.system_len < sizeof t.system_text);
    u32 end = chat_end_token(&t, v->tokenizer);
    assert(end == TOKEN_NONE || end < tokenizer_n_tokens(v->tokenizer));
    struct conversation c = take_conversation(r, v->tokenizer);
    struct str system = prompt_system(&t, NULL);
    bool has_own = c.n > 0 && c.messages[0].role == CHAT_SYSTEM && c.messages[0].content.len == 0;
    struct str given = has_own ? c.messages[0].content : (struct str){0};
    if (has_own) c.messages[0].content = system; // the template's own
    for (u32 i = 0; i < c.n; i++) {
        u32 n = chat_thought_tokens(&t, v->tokenizer, c.messages[i].ids, c.messages[i].n_ids);
        assert(n <= c.messages[i].n_ids);
    }
    struct prompt_parts parts;
    if (prompt_render(v, &t, c.messages, c.n, &parts, &fault) == SOV_OK) {
        for (u32 i = 0; i < parts.n_parts; i++) {
            const struct chat_part *part = &parts.parts[i];
            assert(!is_special(part) || part->token < tokenizer_n_tokens(v->tokenizer));
            if (is_special(part) || part->ids != NULL) continue;
            assert(part->begin <= parts.text.len && part->len <= parts.text.len - part->begin);
        }
        check_specials(v, &t, &c, &parts);
        check_contents(&c, &parts);
        check_ids(v, &t, &c, &parts);
        prompt_parts_free(&parts);
    } else {
        assert(fault.message[0] != 0);
        assert(fault.status == SOV_ERR_UNSUPPORTED || fault.status == SOV_ERR_ARGUMENT);
    }
    if (has_own) c.messages[0].content = given;
    free_conversation(&c);
}

// --- stop strings ---

static bool ends_in(struct str text, usize end, struct str s) {
    return s.len <= end && memcmp(text.data + end - s.len, s.data, s.len) == 0;
}

// How much of the text is shown, by the definition: up to the first complete match, and of those
// complete at the same byte the longest.
static usize plain_stop(struct str text, const struct str *strings, u32 n, bool *found) {
    for (usize end = 1; end <= text.len; end++) {
        usize longest = 0;
        for (u32 i = 0; i < n; i++) {
            if (ends_in(text, end, strings[i])) longest = MAX(longest, strings[i].len);
        }
        *found = longest > 0;
        if (*found) return end - longest;
    }
    *found = false;
    return text.len;
}

// The longest end of text[0, end) that begins a stop string without being it.
static usize plain_held(struct str text, usize end, const struct str *strings, u32 n) {
    usize longest = 0;
    for (u32 i = 0; i < n; i++) {
        for (usize len = 1; len < strings[i].len; len++) {
            struct str prefix = {strings[i].data, len};
            if (ends_in(text, end, prefix)) longest = MAX(longest, len);
        }
    }
    return longest;
}

static void try_stop(struct reader *r) {
    u32 n = take_byte(r) % (STOP_STRINGS_MAX + 2);
    u8 cuts = take_byte(r);
    struct str strings[STOP_STRINGS_MAX + 1];
    bool sound = n <= STOP_STRINGS_MAX;
    for (u32 i = 0; i < n; i++) {
        strings[i] = copy_of(take_text(r));
        sound = sound && strings[i].len >= 1 && strings[i].len <= STOP_BYTES_MAX;
    }
    static struct stop_matcher m;
    struct sov_fault fault = {0};
    enum sov_status status = stop_init(&m, strings, n, &fault);
    assert(status == (sound ? SOV_OK : SOV_ERR_ARGUMENT));
    struct str text = copy_of((struct str){r->at, (usize)(r->end - r->at)});
    bool found = false;
    usize shown = sound ? plain_stop(text, strings, n, &found) : 0;
    for (u32 round = 0; sound && round < 3; round++) { // whole, byte by byte, in pieces
        u8 *out = allocate(text.len + STOP_BYTES_MAX);
        usize n_out = 0;
        for (usize at = 0; at < text.len;) {
            usize len = round == 0 ? text.len : round == 1 ? 1 : 1 + (at * 7 + cuts) % 5;
            len = MIN(len, text.len - at);
            u8 *exact = allocate(m.n_held + len);
            usize n_now = stop_feed(&m, (struct str){text.data + at, len}, exact);
            memcpy(out + n_out, exact, n_now);
            free(exact);
            n_out += n_now;
            at += len;
            assert(m.n_held == (m.found ? 0 : plain_held(text, at, strings, n)));
        }
        assert(m.found == found);
        u8 *exact = allocate(m.n_held);
        usize n_last = stop_finish(&m, exact);
        memcpy(out + n_out, exact, n_last);
        n_out += n_last;
        free(exact);
        assert(n_out == shown && memcmp(out, text.data, shown) == 0);
        free(out);
        stop_reset(&m);
    }
    free((void *)(usize)text.data);
    for (u32 i = 0; i < n; i++) free((void *)(usize)strings[i].data);
}

int LLVMFuzzerTestOneInput(const u8 *data, usize bytes) {
    struct reader r = {data, data + bytes};
    u64 mapped = platform_memory_mapped();
    u8 head = take_byte(&r);
    if ((head & 0x80) != 0) {
        try_stop(&r);
    } else {
        try_conversation(head % N_VOCABULARIES, &r);
    }
    assert(platform_memory_mapped() == mapped);
    return 0;
}
