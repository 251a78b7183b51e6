// SPDX-License-Identifier: Apache-2.0
// The families of chat templates, and how a conversation is rendered by one. All that differs
// between them is a row of the table; which row a template text means, and in which of its
// variants, is found in chat_template.c.
#include "request/chat.h"
#include "request/unicode_tables.h"

static const struct chat_family families[] = {
    {
        .name = "chatml",
        .system = {"`<|im_start|>`system\n", "`<|im_end|>`\n"},
        .user = {"`<|im_start|>`user\n", "`<|im_end|>`\n"},
        .assistant = {"`<|im_start|>`assistant\n", "`<|im_end|>`\n"},
        .end_token = "<|im_end|>",
    },
    {
        .name = "phi4",
        .system = {"`<|im_start|>`system`<|im_sep|>`", "`<|im_end|>`"},
        .user = {"`<|im_start|>`user`<|im_sep|>`", "`<|im_end|>`"},
        .assistant = {"`<|im_start|>`assistant`<|im_sep|>`", "`<|im_end|>`"},
        .end_token = "<|im_end|>",
    },
    {
        .name = "llama2",
        .user = {"`bos_token``[INST]` ", " `[/INST]`"},
        .assistant = {"", " `eos_token`"},
        .inlaid = {"<<SYS>>\n", "\n<</SYS>>\n\n"},
        .answer_lead = " ",
        .end_token = "eos_token",
        .trims = CHAT_TRIM_JOINED | CHAT_TRIM_ASSISTANT,
        .writes_bos = true,
        .markers_are_text = true,
    },
    {
        .name = "llama3",
        .system = {"`<|start_header_id|>`system`<|end_header_id|>`\n\n", "`<|eot_id|>`"},
        .user = {"`<|start_header_id|>`user`<|end_header_id|>`\n\n", "`<|eot_id|>`"},
        .assistant = {"`<|start_header_id|>`assistant`<|end_header_id|>`\n\n", "`<|eot_id|>`"},
        .end_token = "<|eot_id|>",
        .trims = CHAT_TRIM_SYSTEM | CHAT_TRIM_USER | CHAT_TRIM_ASSISTANT,
        .writes_bos = true,
    },
    {
        // The date is the template's own; it puts today's instead where it is told.
        .name = "llama3.1",
        .system = {"`<|start_header_id|>`system`<|end_header_id|>`\n\n"
                   "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n",
                   "`<|eot_id|>`"},
        .user = {"`<|start_header_id|>`user`<|end_header_id|>`\n\n", "`<|eot_id|>`"},
        .assistant = {"`<|start_header_id|>`assistant`<|end_header_id|>`\n\n", "`<|eot_id|>`"},
        .system_always = true,
        .end_token = "<|eot_id|>",
        .trims = CHAT_TRIM_SYSTEM | CHAT_TRIM_USER | CHAT_TRIM_ASSISTANT,
        .writes_bos = true,
    },
    {
        .name = "gemma",
        .user = {"`<start_of_turn>`user\n", "`<end_of_turn>`\n"},
        .assistant = {"`<start_of_turn>`model\n", "`<end_of_turn>`\n"},
        .inlaid = {"", "\n\n"},
        .end_token = "<end_of_turn>",
        .trims = CHAT_TRIM_USER | CHAT_TRIM_ASSISTANT,
        .writes_bos = true,
    },
    {
        .name = "mistral-v1",
        .user = {" `[INST]` ", " `[/INST]`"},
        .assistant = {"", "`eos_token`"},
        .inlaid = {"", "\n\n"},
        .answer_lead = " ",
        .end_token = "eos_token",
        .writes_bos = true,
        .markers_are_text = true,
    },
    {
        .name = "mistral-v3",
        .user = {"`[INST]` ", "`[/INST]`"},
        .assistant = {"", "`eos_token`"},
        .inlaid = {"", "\n\n"},
        .inlaid_last = true,
        .answer_lead = " ",
        .end_token = "eos_token",
        .trims = CHAT_TRIM_ASSISTANT,
        .writes_bos = true,
        .markers_are_text = true,
    },
    {
        .name = "mistral-v3-tekken",
        .user = {"`[INST]`", "`[/INST]`"},
        .assistant = {"", "`eos_token`"},
        .inlaid = {"", "\n\n"},
        .inlaid_last = true,
        .end_token = "eos_token",
        .writes_bos = true,
        .markers_are_text = true,
    },
    {
        .name = "mistral-v7",
        .system = {"`[SYSTEM_PROMPT]` ", "`[/SYSTEM_PROMPT]`"},
        .user = {"`[INST]` ", "`[/INST]`"},
        .assistant = {"", "`eos_token`"},
        .answer_lead = " ",
        .end_token = "eos_token",
        .writes_bos = true,
        .markers_are_text = true,
    },
    {
        .name = "mistral-v7-tekken",
        .system = {"`[SYSTEM_PROMPT]`", "`[/SYSTEM_PROMPT]`"},
        .user = {"`[INST]`", "`[/INST]`"},
        .assistant = {"", "`eos_token`"},
        .end_token = "eos_token",
        .writes_bos = true,
        .markers_are_text = true,
    },
    {
        .name = "zephyr",
        .system = {"`<|system|>`\n", "`eos_token`\n"},
        .user = {"`<|user|>`\n", "`eos_token`\n"},
        .assistant = {"`<|assistant|>`\n", "`eos_token`\n"},
        .end_token = "eos_token",
        .markers_are_text = true,
    },
    {
        .name = "phi3",
        .system = {"`<|system|>`\n", "`<|end|>`\n"},
        .user = {"`<|user|>`\n", "`<|end|>`\n"},
        .assistant = {"`<|assistant|>`\n", "`<|end|>`\n"},
        .end_token = "<|end|>",
    },
    {
        .name = "tags",
        .system = {"`<|system|>`", "`<|eot|>`"},
        .user = {"`<|user|>`", "`<|eot|>`"},
        .assistant = {"`<|assistant|>`", "`<|eot|>`"},
        .end_token = "<|eot|>",
    },
};

const struct chat_family *chat_family_named(struct str name) {
    for (u32 i = 0; i < COUNT_OF(families); i++) {
        if (str_equal(name, str_from_z(families[i].name))) return &families[i];
    }
    return NULL;
}

void chat_family_names(struct text *names) {
    for (u32 i = 0; i < COUNT_OF(families); i++) {
        text_format(names, i == 0 ? "%s" : ", %s", families[i].name);
    }
}

enum sov_status chat_template_named(const char *name, struct chat_template *result,
                                    struct sov_fault *fault) {
    const struct chat_family *family = chat_family_named(str_from_z(name));
    if (family == NULL) {
        char memory[256];
        struct text names = TEXT_OVER_ARRAY(memory);
        chat_family_names(&names);
        return fault_set(fault, SOV_ERR_USAGE, "--template takes %s, not \"%.64s\"", memory, name);
    }
    result->family = *family;
    result->system_len = 0;
    return SOV_OK;
}

// --- tokens ---

// A special token as the families write it. TOKEN_NONE: the vocabulary has no such token.
static u32 find_special(const struct chat_family *f, const struct tokenizer *tokenizer,
                        struct str name) {
    if (str_equal(name, STR("bos_token"))) return tokenizer_bos(tokenizer);
    if (str_equal(name, STR("eos_token"))) return tokenizer_eos(tokenizer);
    u32 token = tokenizer_find(tokenizer, name);
    if (token == TOKEN_NONE || !f->markers_are_text) return token;
    enum token_type type = tokenizer_type(tokenizer, token);
    bool is_marker = type == TOKEN_CONTROL || type == TOKEN_USER_DEFINED;
    return is_marker ? token : TOKEN_NONE;
}

u32 chat_end_token(const struct chat_template *t, const struct tokenizer *tokenizer) {
    return find_special(&t->family, tokenizer, str_from_z(t->family.end_token));
}

#define THOUGHT_END STR("</think>")

static bool is_newlines(const struct tokenizer *tokenizer, u32 token) {
    u8 piece[64];
    usize len = tokenizer_decode(tokenizer, token, true, false, piece, sizeof piece);
    for (usize i = 0; i < len; i++) {
        if (piece[i] != '\n') return false;
    }
    return len > 0;
}

u32 chat_thought_tokens(const struct chat_template *t, const struct tokenizer *tokenizer,
                        const u32 *ids, u32 n_ids) {
    u32 end = tokenizer_find(tokenizer, THOUGHT_END);
    if (!t->family.drops_thoughts || end == TOKEN_NONE) return 0;
    u32 n = n_ids;
    while (n > 0 && ids[n - 1] != end) n--;
    while (n > 0 && n < n_ids && is_newlines(tokenizer, ids[n])) n++;
    return n;
}

// --- text ---

// What str.strip of the templates' language takes away.
static bool is_space(u32 code_point) {
    return unicode_class_of(code_point) == UNICODE_SPACE ||
           (code_point >= 0x1c && code_point <= 0x1f);
}

static struct str trim_end(struct str s) {
    usize end = 0;
    for (usize i = 0; i < s.len;) {
        u32 code_point = 0;
        u32 n = utf8_decode(s, i, &code_point);
        i += MAX(n, 1u);
        if (n == 0 || !is_space(code_point)) end = i;
    }
    return (struct str){s.data, end};
}

static struct str trim_start(struct str s) {
    while (s.len > 0) {
        u32 code_point = 0;
        u32 n = utf8_decode(s, 0, &code_point);
        if (n == 0 || !is_space(code_point)) break;
        s = (struct str){s.data + n, s.len - n};
    }
    return s;
}

static struct str without_thoughts(struct str s) {
    const struct str end = THOUGHT_END;
    for (usize i = s.len; i >= end.len; i--) {
        if (!str_equal((struct str){s.data + i - end.len, end.len}, end)) continue;
        s = (struct str){s.data + i, s.len - i};
        while (s.len > 0 && s.data[0] == '\n') s = (struct str){s.data + 1, s.len - 1};
        break;
    }
    return s;
}

// --- rendering ---

#define FRAME_BYTES 256 // of all text that a family writes around a message, at most

u64 chat_text_bytes(const struct chat_message *messages, u32 n_messages) {
    u64 total = (n_messages + 2ull) * FRAME_BYTES;
    for (u32 i = 0; i < n_messages; i++) total += messages[i].content.len;
    return total;
}

struct renderer {
    const struct chat_family *family;
    const struct tokenizer *tokenizer;
    struct text *text;
    struct chat_part *parts;
    u32 n_parts, capacity;
    enum sov_status status; // sticky
    struct sov_fault *fault;
};

static void add_part(struct renderer *r, struct chat_part part) {
    assert(r->n_parts < r->capacity);
    r->parts[r->n_parts++] = part;
}

// A BOS right behind a BOS is left out (C3).
static void put_token(struct renderer *r, u32 token) {
    bool repeats = r->n_parts > 0 && r->parts[r->n_parts - 1].token == token;
    if (repeats && token == tokenizer_bos(r->tokenizer)) return;
    add_part(r, (struct chat_part){.token = token});
}

// Appends to the run of text in progress, or begins one.
static void put_text(struct renderer *r, struct str s) {
    if (s.len == 0) return;
    u32 last = r->n_parts - 1;
    if (r->n_parts == 0 || r->parts[last].token != TOKEN_NONE || r->parts[last].ids != NULL) {
        last = r->n_parts;
        add_part(r, (struct chat_part){.token = TOKEN_NONE, .begin = r->text->len});
    }
    text_put(r->text, s);
    r->parts[last].len = r->text->len - r->parts[last].begin;
}

static void put_special(struct renderer *r, struct str name) {
    u32 token = find_special(r->family, r->tokenizer, name);
    bool is_bos = str_equal(name, STR("bos_token")), is_eos = str_equal(name, STR("eos_token"));
    if (token != TOKEN_NONE) {
        put_token(r, token);
    } else if (r->family->markers_are_text && !is_bos && !is_eos) {
        put_text(r, name);
    } else if (!is_bos) {
        r->status = fault_set(r->fault, SOV_ERR_UNSUPPORTED,
                              "the chat template %s needs the token %.*s, the vocabulary has none",
                              r->family->name, STR_ARG(name));
    }
}

// One piece of a frame: text, with special tokens between backquotes.
static void put_piece(struct renderer *r, const char *piece) {
    if (piece == NULL) return;
    struct str whole = str_from_z(piece);
    usize begin = 0;
    bool special = false;
    for (usize i = 0; i <= whole.len; i++) {
        if (i < whole.len && whole.data[i] != '`') continue;
        struct str span = {whole.data + begin, i - begin};
        if (special) {
            put_special(r, span);
        } else {
            put_text(r, span);
        }
        special = !special;
        begin = i + 1;
    }
}

static void put_user(struct renderer *r, struct str content, const struct chat_message *system) {
    const struct chat_family *f = r->family;
    bool joined = (f->trims & CHAT_TRIM_JOINED) != 0;
    if ((f->trims & CHAT_TRIM_USER) != 0) content = trim_start(trim_end(content));
    put_piece(r, f->user.head);
    usize begin = r->text->len;
    if (system != NULL) {
        put_piece(r, f->inlaid.head);
        put_text(r, system->content);
        put_piece(r, f->inlaid.tail);
    } else if (joined) {
        content = trim_start(content);
    }
    put_text(r, content);
    if (joined && r->text->len > begin) { // the text of this message is the end of the last run
        struct str whole = {(const u8 *)r->text->data + begin, r->text->len - begin};
        usize dropped = whole.len - trim_end(whole).len;
        r->text->len -= dropped;
        r->parts[r->n_parts - 1].len -= dropped;
    }
    put_piece(r, f->user.tail);
}

static void put_answer(struct renderer *r, const struct chat_message *message) {
    const struct chat_family *f = r->family;
    put_piece(r, f->assistant.head);
    if (message->ids != NULL) {
        add_part(r, (struct chat_part){
                        .token = TOKEN_NONE, .ids = message->ids, .n_ids = message->n_ids});
    } else {
        struct str content = message->content;
        if (f->drops_thoughts) content = without_thoughts(content);
        if ((f->trims & CHAT_TRIM_ASSISTANT) != 0) content = trim_start(trim_end(content));
        put_piece(r, f->answer_lead);
        put_text(r, content);
    }
    put_piece(r, f->assistant.tail);
}

static void put_system(struct renderer *r, struct str content) {
    bool trims = (r->family->trims & CHAT_TRIM_SYSTEM) != 0;
    put_piece(r, r->family->system.head);
    put_text(r, trims ? trim_start(trim_end(content)) : content);
    put_piece(r, r->family->system.tail);
}

// The message that the system message goes into, where the family has no such role.
static enum sov_status find_host(const struct chat_family *f, const struct chat_message *messages,
                                 u32 n_messages, u32 *host, struct sov_fault *fault) {
    *host = n_messages;
    for (u32 i = 0; i < n_messages; i++) {
        if (messages[i].role == CHAT_SYSTEM && i > 0) {
            return fault_set(fault, SOV_ERR_ARGUMENT,
                             "message %u is a system message: only the first can be one", i);
        }
        if (messages[i].role == CHAT_USER && (*host == n_messages || f->inlaid_last)) *host = i;
    }
    bool homeless = n_messages > 0 && messages[0].role == CHAT_SYSTEM && *host == n_messages;
    if (homeless && f->system.head == NULL) {
        return fault_set(
            fault, SOV_ERR_ARGUMENT,
            "the chat template %s puts the system message into a user's: there is none", f->name);
    }
    return SOV_OK;
}

enum sov_status chat_render(const struct chat_template *t, const struct tokenizer *tokenizer,
                            const struct chat_message *messages, u32 n_messages, struct text *text,
                            struct chat_part *parts, u32 *n_parts, struct sov_fault *fault) {
    const struct chat_family *f = &t->family;
    struct renderer r = {
        .family = f,
        .tokenizer = tokenizer,
        .text = text,
        .parts = parts,
        .capacity = n_messages * CHAT_PARTS_PER_MESSAGE + CHAT_PARTS_EXTRA,
        .fault = fault,
    };
    u32 host = 0;
    enum sov_status status = find_host(f, messages, n_messages, &host, fault);
    if (status != SOV_OK) return status;
    const struct chat_message *system =
        n_messages > 0 && messages[0].role == CHAT_SYSTEM ? &messages[0] : NULL;
    bool bos = f->writes_bos || tokenizer_adds_bos(tokenizer);
    if (bos && tokenizer_bos(tokenizer) != TOKEN_NONE) put_token(&r, tokenizer_bos(tokenizer));
    if (f->system.head != NULL && (system != NULL || f->system_always)) {
        put_system(&r, system != NULL ? system->content : STR(""));
    }
    for (u32 i = 0; i < n_messages; i++) {
        const struct chat_message *inlaid = f->system.head == NULL && i == host ? system : NULL;
        if (messages[i].role == CHAT_USER) put_user(&r, messages[i].content, inlaid);
        if (messages[i].role == CHAT_ASSISTANT) put_answer(&r, &messages[i]);
    }
    put_piece(&r, f->assistant.head);
    put_piece(&r, f->generation);
    assert(!text->truncated);
    *n_parts = r.n_parts;
    return r.status;
}
