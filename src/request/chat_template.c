// SPDX-License-Identifier: Apache-2.0
// Which family a model file's template text belongs to. The text is never executed, it is searched:
// the special tokens it writes tell the family, the blanks and calls beside them the variant, and a
// system message of its own is taken where it stands as one literal. A text without the marks of
// exactly one family is refused rather than guessed at.
#include "freestanding/mem.h"
#include "request/chat.h"

static usize find(struct str text, struct str wanted, usize from) {
    for (usize i = from; i + wanted.len <= text.len; i++) {
        if (memcmp(text.data + i, wanted.data, wanted.len) == 0) return i;
    }
    return text.len;
}

static bool has(struct str text, const char *wanted) {
    return find(text, str_from_z(wanted), 0) < text.len;
}

static u8 byte_at(struct str text, usize at) { return at < text.len ? text.data[at] : 0; }

static bool is_quote(u8 byte) { return byte == '\'' || byte == '"'; }

static bool is_blank(u8 byte) {
    return byte == ' ' || byte == '\t' || byte == '\n' || byte == '\r';
}

static usize skip_blanks(struct str text, usize at) {
    while (is_blank(byte_at(text, at))) at++;
    return at;
}

// Where the template goes on behind a newline that it writes at text[at]: there, in the literal, or
// in the next literal of the same sum. 0: it writes none there.
static usize behind_newline(struct str text, usize at) {
    if (is_quote(byte_at(text, at))) {
        at = skip_blanks(text, at + 1);
        if (byte_at(text, at) != '+') return 0;
        at = skip_blanks(text, at + 1);
        if (!is_quote(byte_at(text, at++))) return 0;
    }
    if (byte_at(text, at) == '\n') return at + 1;
    return byte_at(text, at) == '\\' && byte_at(text, at + 1) == 'n' ? at + 2 : 0;
}

// --- the template's own system message ---

// Takes text[begin, end), the inside of a string literal, with its escapes undone. False for more
// than there is room for.
static bool take_literal(struct str text, usize begin, usize end, struct chat_template *result) {
    struct text out = TEXT_OVER_ARRAY(result->system_text);
    for (usize i = begin; i < end; i++) {
        u8 byte = text.data[i];
        if (byte == '\\' && i + 1 < end) {
            byte = text.data[++i];
            if (byte == 'n') byte = '\n';
            if (byte == 't') byte = '\t';
        }
        text_put_byte(&out, byte);
    }
    result->system_len = out.truncated ? 0 : out.len;
    return !out.truncated;
}

// The end of a string literal that is open at text[at], or text.len.
static usize literal_end(struct str text, usize at, u8 quote) {
    while (at < text.len && text.data[at] != quote) at += text.data[at] == '\\' ? 2 : 1;
    return MIN(at, text.len);
}

// ChatML templates write it with its frame: '<|im_start|>system\nTEXT<|im_end|>\n'. Where the
// literal ends before <|im_end|>, the template goes on with an expression.
static bool take_framed_system(struct str text, struct chat_template *result) {
    const struct str head = STR("<|im_start|>system"), end = STR("<|im_end|>");
    for (usize at = find(text, head, 0); at < text.len; at = find(text, head, at + 1)) {
        usize begin = behind_newline(text, at + head.len);
        if (begin == 0) continue;
        usize stop = find(text, end, begin);
        u8 quote = at > 0 ? text.data[at - 1] : 0;
        struct str inside = {text.data + begin, stop - begin};
        bool literal = is_quote(quote) ? literal_end(text, begin, quote) > stop
                                       : !has(inside, "{{") && !has(inside, "{%");
        if (stop < text.len && stop > begin && literal) {
            return take_literal(text, begin, stop, result);
        }
    }
    return true;
}

// Others give it a name first: {% set system_message = 'TEXT' %}. A condition that is always false
// is how converters switched it off.
static bool take_named_system(struct str text, struct chat_template *result) {
    const struct str name = STR("system_message = ");
    if (has(text, "false == true")) return true;
    for (usize at = find(text, name, 0); at < text.len; at = find(text, name, at + 1)) {
        u8 quote = byte_at(text, at + name.len);
        if (!is_quote(quote)) continue;
        usize begin = at + name.len + 1, end = literal_end(text, begin, quote);
        usize next = skip_blanks(text, end + 1);
        bool ends = byte_at(text, next) == '%' || byte_at(text, next) == '-';
        if (end > begin && ends) return take_literal(text, begin, end, result);
    }
    return true;
}

// --- families ---

// BOS: as a variable anywhere, or as its text at the very start.
static bool writes_bos(struct str text, const struct tokenizer *tokenizer) {
    if (has(text, "bos_token")) return true;
    u32 bos = tokenizer_bos(tokenizer);
    if (bos == TOKEN_NONE) return false;
    u8 piece[256];
    usize len = tokenizer_decode(tokenizer, bos, true, false, piece, sizeof piece);
    usize at = skip_blanks(text, 0);
    if (byte_at(text, at) == '{' && byte_at(text, at + 1) == '{') {
        at += byte_at(text, at + 2) == '-' ? 3 : 2;
        at = skip_blanks(text, at);
        if (!is_quote(byte_at(text, at++))) return false;
    }
    struct str rest = {text.data + MIN(at, text.len), text.len - MIN(at, text.len)};
    return len > 0 && str_starts_with(rest, (struct str){piece, len});
}

// Whether a message's content goes through trim or strip.
static bool trims_content(struct str text) {
    const struct str word = STR("content");
    for (usize at = find(text, word, 0); at < text.len; at = find(text, word, at + 1)) {
        usize i = at + word.len;
        while (is_quote(byte_at(text, i)) || byte_at(text, i) == ']') i++;
        struct str rest = {text.data + i, text.len - i};
        if (str_starts_with(rest, STR(".strip()"))) return true;
        i = skip_blanks(text, i);
        if (byte_at(text, i) != '|') continue;
        i = skip_blanks(text, i + 1);
        rest = (struct str){text.data + i, text.len - i};
        if (str_starts_with(rest, STR("trim"))) return true;
    }
    return false;
}

// The text from the last place of `wanted` on; empty when there is none.
static struct str from_last(struct str text, const char *wanted) {
    struct str word = str_from_z(wanted), rest = {text.data + text.len, 0};
    for (usize at = find(text, word, 0); at < text.len; at = find(text, word, at + 1)) {
        rest = (struct str){text.data + at, text.len - at};
    }
    return rest;
}

// The first expression {{ ... }} with both words in it, without its braces and leading blanks.
// Empty when there is none.
static struct str expression_with(struct str text, const char *one, const char *other) {
    const struct str open = STR("{{"), close = STR("}}");
    for (usize at = find(text, open, 0), end; at < text.len; at = find(text, open, end)) {
        usize begin = at + open.len;
        end = find(text, close, begin);
        struct str inside = {text.data + begin, end - begin};
        if (has(inside, one) && has(inside, other)) {
            if (byte_at(text, begin) == '-') begin++;
            begin = MIN(skip_blanks(text, begin), end);
            return (struct str){text.data + begin, end - begin};
        }
    }
    return (struct str){0};
}

static bool has_either(struct str text, const char *one, const char *other) {
    return has(text, one) || has(text, other);
}

// A model that always thinks has its first thought begun for it: in the same literal as the head of
// the answer, or behind the `else` of the switch that turns thinking off.
static bool begins_thought(struct str text) {
    struct str end = from_last(text, "add_generation_prompt");
    if (has_either(end, "<|im_start|>assistant\\n<think>\\n'",
                   "<|im_start|>assistant\n<think>\n'")) {
        return true;
    }
    end = from_last(end, "else");
    end.len = find(end, STR("endif"), 0);
    return has_either(end, "'<think>\\n'", "'<think>\n'");
}

static bool take_chatml(struct str text, struct chat_template *result) {
    struct chat_family *f = &result->family;
    if (!has(text, "<|im_end|>") || has(text, "<end_of_utterance>") || has(text, "<|im_middle|>")) {
        return false;
    }
    bool phi4 = has(text, "<|im_sep|>");
    *f = *chat_family_named(phi4 ? STR("phi4") : STR("chatml"));
    if (trims_content(expression_with(text, "<|im_start|>", "content"))) {
        f->trims = CHAT_TRIM_SYSTEM | CHAT_TRIM_USER | CHAT_TRIM_ASSISTANT;
    }
    f->drops_thoughts = has(text, "split('</think>')");
    if (begins_thought(text)) f->generation = "`<think>`\n";
    return phi4 || take_framed_system(text, result);
}

static bool take_llama3(struct str text, struct chat_template *result) {
    if (!has(text, "<|end_header_id|>") || !has(text, "<|eot_id|>")) return false;
    // An answer must begin with two newlines and nothing else.
    struct str end = from_last(text, "<|end_header_id|>");
    usize at = behind_newline(end, STR("<|end_header_id|>").len);
    if (at > 0) at = behind_newline(end, at);
    if (at == 0) return false;
    u8 next = byte_at(end, at);
    if (next != 0 && next != '{' && !is_quote(next)) return false;
    bool dated = has(text, "Cutting Knowledge Date");
    if (dated && !(has(text, "Date: December 2023") && has(text, "26 Jul 2024"))) return false;
    result->family = *chat_family_named(dated ? STR("llama3.1") : STR("llama3"));
    if (!has(text, "trim")) result->family.trims = 0;
    return true;
}

static bool take_gemma(struct str text, struct chat_template *result) {
    if (!has(text, "<end_of_turn>") || !has(text, "model")) return false;
    result->family = *chat_family_named(STR("gemma"));
    if (!has(text, "trim")) result->family.trims = 0;
    return true;
}

static void take_llama2(struct str text, struct str answer, struct chat_family *f) {
    *f = *chat_family_named(STR("llama2"));
    if (!has_either(text, "bos_token + '[INST]", "bos_token + \"[INST]")) {
        f->user.head = "`[INST]` ";
    }
    if (!has_either(answer, "' ' + eos", "\" \" + eos")) f->assistant.tail = "`eos_token`";
    if (!trims_content(text)) f->trims = 0;
}

// The blanks around [INST] and [/INST] tell the versions apart.
static const struct mistral_variant {
    bool blank_before, blank_behind, blank_before_end, has_system;
    const char *name, *head, *tail;
} mistral_variants[] = {
    {true, true, true, false, "mistral-v1", " `[INST]` ", " `[/INST]`"},
    {false, true, true, false, "mistral-v1", "`[INST]` ", " `[/INST]`"}, // as first published
    {false, true, false, false, "mistral-v3", "`[INST]` ", "`[/INST]`"},
    {false, false, false, false, "mistral-v3-tekken", "`[INST]`", "`[/INST]`"},
    {false, true, false, true, "mistral-v7", "`[INST]` ", "`[/INST]`"},
    {false, false, false, true, "mistral-v7-tekken", "`[INST]`", "`[/INST]`"},
};

static bool take_mistral(struct str text, struct str answer, struct chat_family *f) {
    usize open = find(text, STR("[INST]"), 0), close = find(text, STR("[/INST]"), 0);
    bool before = open > 0 && byte_at(text, open - 1) == ' ';
    bool behind = byte_at(text, open + 6) == ' ';
    bool before_end = close > 0 && byte_at(text, close - 1) == ' ';
    bool has_system = has(text, "[SYSTEM_PROMPT]");
    for (u32 i = 0; i < COUNT_OF(mistral_variants); i++) {
        const struct mistral_variant *v = &mistral_variants[i];
        if (v->blank_before != before || v->blank_behind != behind ||
            v->blank_before_end != before_end || v->has_system != has_system) {
            continue;
        }
        *f = *chat_family_named(str_from_z(v->name));
        f->user = (struct chat_frame){v->head, v->tail};
        f->inlaid_last = !has_system && has(text, "loop.last and system_message");
        f->trims = has_either(answer, "trim", "strip") ? CHAT_TRIM_ASSISTANT : 0;
        if (has_either(answer, "eos_token + ' '", "eos_token + \" \"")) {
            f->assistant.tail = "`eos_token` ";
        }
        return true;
    }
    return false;
}

static bool take_inst(struct str text, struct chat_template *result) {
    struct chat_family *f = &result->family;
    // What writes an earlier answer, of the kind {{ ' ' + content + eos_token }}.
    struct str answer = expression_with(text, "content", "eos_token");
    if (has(text, "<<SYS>>")) {
        take_llama2(text, answer, f);
    } else if (!take_mistral(text, answer, f)) {
        return false;
    }
    bool leads = str_starts_with(answer, STR("' '")) || str_starts_with(answer, STR("\" \""));
    f->answer_lead = leads ? " " : "";
    return take_named_system(text, result);
}

// <|ROLE|> tags: what stands behind the content tells the families apart.
static bool take_tags(struct str text, usize tag_end, struct chat_template *result) {
    bool newline = behind_newline(text, tag_end) > 0;
    struct str rest = {text.data + tag_end, text.len - tag_end};
    rest.len = find(rest, STR("{%"), 0); // to the end of this branch
    if (newline && has(rest, "<|end|>")) {
        result->family = *chat_family_named(STR("phi3"));
    } else if (newline && has(rest, "eos_token")) {
        result->family = *chat_family_named(STR("zephyr"));
    } else if (!newline && has(rest, "<|eot|>")) {
        result->family = *chat_family_named(STR("tags"));
    } else {
        return false;
    }
    if (trims_content(text)) {
        result->family.trims = CHAT_TRIM_SYSTEM | CHAT_TRIM_USER | CHAT_TRIM_ASSISTANT;
    }
    return true;
}

// The end of the tag in front of a user's message, by name or made from the role; or text.len.
static usize find_tag_end(struct str text) {
    const struct str named = STR("<|user|>");
    usize at = find(text, named, 0);
    if (at < text.len) return at + named.len;
    static const char *const made[] = {"<|{{", "'<|' +", "\"<|\" +"};
    for (u32 i = 0; i < COUNT_OF(made); i++) {
        at = find(text, str_from_z(made[i]), 0);
        struct str rest = {text.data + at, text.len - at};
        usize role = find(rest, STR("role"), 0), end = find(rest, STR("|>"), 0);
        if (role < end && end < rest.len) return at + end + 2;
    }
    return text.len;
}

static bool take_family(struct str text, struct chat_template *result) {
    if (has(text, "<|im_start|>")) return take_chatml(text, result);
    if (has(text, "<|start_header_id|>")) return take_llama3(text, result);
    if (has(text, "<start_of_turn>")) return take_gemma(text, result);
    if (has(text, "[INST]") && has(text, "[/INST]")) return take_inst(text, result);
    usize tag_end = find_tag_end(text);
    return tag_end < text.len && has(text, "<|assistant|>") && !has(text, "[gMASK]") &&
           take_tags(text, tag_end, result);
}

enum sov_status chat_template_recognise(struct str text, const struct tokenizer *tokenizer,
                                        struct chat_template *result, struct sov_fault *fault) {
    result->system_len = 0;
    if (text.len > CHAT_TEMPLATE_BYTES_MAX) {
        return fault_set(fault, SOV_ERR_LIMIT, "the chat template has %llu bytes, at most %u",
                         (u64)text.len, CHAT_TEMPLATE_BYTES_MAX);
    }
    if (text.len > 0 && take_family(text, result)) {
        bool has_think = tokenizer_find(tokenizer, STR("<think>")) != TOKEN_NONE;
        if (result->family.generation != NULL && !has_think)
            result->family.generation = "<think>\n";
        result->family.writes_bos = writes_bos(text, tokenizer);
        return SOV_OK;
    }
    char memory[256];
    struct text names = TEXT_OVER_ARRAY(memory);
    chat_family_names(&names);
    if (text.len == 0) {
        return fault_set(fault, SOV_ERR_UNSUPPORTED,
                         "the model file has no chat template (tokenizer.chat_template); "
                         "--template NAME chooses one of: %s",
                         memory);
    }
    return fault_set(fault, SOV_ERR_UNSUPPORTED,
                     "the model's chat template is of no known family (it begins \"%.*s\"); "
                     "--template NAME chooses one of: %s",
                     STR_ARG(text), memory);
}
