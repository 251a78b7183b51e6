// SPDX-License-Identifier: Apache-2.0
// Conversations as the prompt a chat model was trained on. The template decides where special
// tokens stand; the text of a message is always plain text, whatever it contains.
#pragma once
#include "request/tokenizer.h"

enum chat_role { CHAT_SYSTEM, CHAT_USER, CHAT_ASSISTANT };

struct chat_message {
    enum chat_role role;
    struct str content;
};

enum chat_family { CHAT_CHATML, CHAT_FAMILY_COUNT };

// A rendered prompt: special tokens and runs of plain text, in order.
struct chat_part {
    u32 token;        // or TOKEN_NONE: text
    usize begin, len; // of the text, in the rendered buffer
};
#define CHAT_PARTS_PER_MESSAGE 4

// What the file's template text shows: the family, and the system message that it puts in front of
// a conversation without one (empty: none). An unknown template is SOV_ERR_UNSUPPORTED.
enum sov_status chat_recognise(struct str template_text, enum chat_family *family,
                               struct str *default_system, struct sov_fault *fault) MUST_CHECK;

// Bytes of text that rendering needs, at most.
u64 chat_text_bytes(const struct chat_message *messages, u32 n_messages);
// Renders the messages and the head of the assistant's answer. parts[(n_messages + 1) *
// CHAT_PARTS_PER_MESSAGE]. A vocabulary without the family's special tokens is SOV_ERR_UNSUPPORTED.
enum sov_status chat_render(enum chat_family family, const struct tokenizer *tokenizer,
                            const struct chat_message *messages, u32 n_messages, struct text *text,
                            struct chat_part *parts, u32 *n_parts, struct sov_fault *fault)
    MUST_CHECK;
