// SPDX-License-Identifier: Apache-2.0
// Template families. A template is not executed: its text tells the family, and the family is a
// short function that puts tokens and text in order. Text between two special tokens is one run, so
// that it is tokenized exactly as in the text the template would have written.
//
//   ChatML: <|im_start|>ROLE\nCONTENT<|im_end|>\n ... <|im_start|>assistant\n
#include "request/chat.h"

static const char *const role_names[] = {
    [CHAT_SYSTEM] = "system",
    [CHAT_USER] = "user",
    [CHAT_ASSISTANT] = "assistant",
};

static usize find(struct str text, struct str wanted, usize from) {
    for (usize i = from; i + wanted.len <= text.len; i++) {
        struct str here = {text.data + i, wanted.len};
        if (str_equal(here, wanted)) return i;
    }
    return text.len;
}

// ChatML templates with a default write it as one literal: '<|im_start|>system\nTEXT<|im_end|>', the
// newline as such or escaped. A place where the template goes on with an expression has a quote
// before the end mark.
static struct str chatml_default_system(struct str template_text) {
    const struct str head = STR("<|im_start|>system"), end = STR("<|im_end|>");
    usize at = find(template_text, head, 0);
    while (at < template_text.len) {
        usize begin = at + head.len;
        struct str rest = {template_text.data + begin, template_text.len - begin};
        if (str_starts_with(rest, STR("\n"))) begin += 1;
        if (str_starts_with(rest, STR("\\n"))) begin += 2;
        usize stop = find(template_text, end, begin);
        struct str inner = {template_text.data + begin, stop - begin};
        bool literal = stop < template_text.len && begin > at + head.len && find(inner, STR("'"), 0) == inner.len &&
                       find(inner, STR("\""), 0) == inner.len &&
                       find(inner, STR("{"), 0) == inner.len &&
                       find(inner, STR("\\"), 0) == inner.len;
        if (literal) return inner;
        at = find(template_text, head, begin);
    }
    return (struct str){0};
}

enum sov_status chat_recognise(struct str template_text, enum chat_family *family,
                               struct str *default_system, struct sov_fault *fault) {
    if (template_text.len == 0) {
        return fault_set(fault, SOV_ERR_UNSUPPORTED,
                         "the model file has no chat template (tokenizer.chat_template)");
    }
    if (find(template_text, STR("<|im_start|>"), 0) == template_text.len) {
        return fault_set(fault, SOV_ERR_UNSUPPORTED,
                         "the model's chat template is not ChatML; it begins \"%.*s\"",
                         STR_ARG(template_text));
    }
    *family = CHAT_CHATML;
    *default_system = chatml_default_system(template_text);
    return SOV_OK;
}

#define CHATML_FRAME_BYTES 64 // of role, newlines; more than any family writes around a message

u64 chat_text_bytes(const struct chat_message *messages, u32 n_messages) {
    u64 total = (u64)(n_messages + 1) * CHATML_FRAME_BYTES;
    for (u32 i = 0; i < n_messages; i++) total += messages[i].content.len;
    return total;
}

struct renderer {
    struct text *text;
    struct chat_part *parts;
    u32 n_parts;
};

static void put_token(struct renderer *r, u32 token) {
    r->parts[r->n_parts++] = (struct chat_part){.token = token};
}

// Appends to the run of text in progress, or begins one.
static void put_text(struct renderer *r, struct str s) {
    struct chat_part *last = r->n_parts > 0 ? &r->parts[r->n_parts - 1] : NULL;
    if (last == NULL || last->token != TOKEN_NONE) {
        last = &r->parts[r->n_parts++];
        *last = (struct chat_part){.token = TOKEN_NONE, .begin = r->text->len};
    }
    text_put(r->text, s);
    last->len = r->text->len - last->begin;
}

enum sov_status chat_render(enum chat_family family, const struct tokenizer *tokenizer,
                            const struct chat_message *messages, u32 n_messages, struct text *text,
                            struct chat_part *parts, u32 *n_parts, struct sov_fault *fault) {
    assert(family == CHAT_CHATML);
    u32 im_start = tokenizer_find(tokenizer, STR("<|im_start|>"));
    u32 im_end = tokenizer_find(tokenizer, STR("<|im_end|>"));
    if (im_start == TOKEN_NONE || im_end == TOKEN_NONE) {
        return fault_set(fault, SOV_ERR_UNSUPPORTED,
                         "ChatML needs the tokens <|im_start|> and "
                         "<|im_end|>, the vocabulary has no %s",
                         im_start == TOKEN_NONE ? "<|im_start|>" : "<|im_end|>");
    }
    struct renderer r = {.text = text, .parts = parts};
    for (u32 i = 0; i < n_messages; i++) {
        put_token(&r, im_start);
        put_text(&r, str_from_z(role_names[messages[i].role]));
        put_text(&r, STR("\n"));
        put_text(&r, messages[i].content);
        put_token(&r, im_end);
        put_text(&r, STR("\n"));
    }
    put_token(&r, im_start);
    put_text(&r, STR("assistant\n"));
    assert(r.n_parts <= (n_messages + 1) * CHAT_PARTS_PER_MESSAGE && !text->truncated);
    *n_parts = r.n_parts;
    return SOV_OK;
}
