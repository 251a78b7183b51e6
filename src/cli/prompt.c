// SPDX-License-Identifier: Apache-2.0
// A conversation as token ids: rendered by its template, every run of plain text tokenized as one.
#include "cli/generate.h"

enum sov_status prompt_template(const struct vocabulary *vocabulary, const char *name,
                                struct chat_template *result, struct sov_fault *fault) {
    if (name != NULL) return chat_template_named(name, result, fault);
    return chat_template_recognise(vocabulary->chat_template, vocabulary->tokenizer, result, fault);
}

struct str prompt_system(const struct chat_template *t, const char *given) {
    if (given != NULL) return str_from_z(given);
    return (struct str){(const u8 *)t->system_text, t->system_len};
}

enum sov_status prompt_render(const struct vocabulary *vocabulary, const struct chat_template *t,
                              const struct chat_message *messages, u32 n_messages,
                              struct prompt_parts *parts, struct sov_fault *fault) {
    u64 n_parts_max = (u64)n_messages * CHAT_PARTS_PER_MESSAGE + CHAT_PARTS_EXTRA;
    u64 parts_bytes = n_parts_max * sizeof(struct chat_part);
    u64 text_bytes = chat_text_bytes(messages, n_messages) + 1;
    *parts = (struct prompt_parts){.memory_bytes = parts_bytes + text_bytes};
    parts->memory = platform_memory_map(parts->memory_bytes);
    if (parts->memory == NULL) {
        return fault_set(fault, SOV_ERR_MEMORY, "chat: %llu bytes are not to be had",
                         parts->memory_bytes);
    }
    parts->parts = parts->memory;
    parts->text = text_over((char *)parts->memory + parts_bytes, text_bytes);
    enum sov_status status = chat_render(t, vocabulary->tokenizer, messages, n_messages,
                                         &parts->text, parts->parts, &parts->n_parts, fault);
    if (status != SOV_OK) prompt_parts_free(parts);
    return status;
}

void prompt_parts_free(struct prompt_parts *parts) {
    if (parts->memory != NULL) platform_memory_unmap(parts->memory, parts->memory_bytes);
    *parts = (struct prompt_parts){0};
}

// No run of text has more tokens than bytes, but for the dummy space of SPM, BOS and EOS.
static u64 tokens_max(const struct prompt_parts *parts) {
    u64 n = 1; // of an empty conversation too
    for (u32 i = 0; i < parts->n_parts; i++) n += parts->parts[i].len + parts->parts[i].n_ids + 3;
    return n;
}

static void append_ids(struct token_list *list, const u32 *ids, usize n) {
    for (usize i = 0; i < n; i++) list->ids[list->n++] = ids[i];
}

static enum sov_status encode_parts(const struct vocabulary *vocabulary,
                                    const struct prompt_parts *parts, struct token_list *list,
                                    struct sov_fault *fault) {
    bool begins = true; // nothing but BOS so far: text is the start of a text
    for (u32 i = 0; i < parts->n_parts; i++) {
        const struct chat_part *part = &parts->parts[i];
        if (part->token != TOKEN_NONE) {
            append_ids(list, &part->token, 1);
            begins = begins && part->token == tokenizer_bos(vocabulary->tokenizer);
            continue;
        }
        if (part->ids != NULL) {
            append_ids(list, part->ids, part->n_ids);
        } else {
            struct str run = {(const u8 *)parts->text.data + part->begin, part->len};
            struct token_list encoded;
            enum sov_status status =
                vocabulary_encode(vocabulary, run, begins ? 0 : TOKENIZE_CONTINUE, &encoded, fault);
            if (status != SOV_OK) return status;
            append_ids(list, encoded.ids, encoded.n);
            token_list_free(&encoded);
        }
        begins = false;
    }
    return SOV_OK;
}

enum sov_status prompt_encode(const struct vocabulary *vocabulary, const struct chat_template *t,
                              const struct chat_message *messages, u32 n_messages,
                              struct token_list *list, struct sov_fault *fault) {
    *list = (struct token_list){0};
    struct prompt_parts parts;
    enum sov_status status = prompt_render(vocabulary, t, messages, n_messages, &parts, fault);
    if (status != SOV_OK) return status;
    list->memory_bytes = tokens_max(&parts) * sizeof(u32);
    list->ids = platform_memory_map(list->memory_bytes);
    if (list->ids == NULL) {
        status = fault_set(fault, SOV_ERR_MEMORY, "chat: %llu bytes are not to be had",
                           list->memory_bytes);
    } else {
        status = encode_parts(vocabulary, &parts, list, fault);
    }
    prompt_parts_free(&parts);
    if (status != SOV_OK) token_list_free(list);
    return status;
}
