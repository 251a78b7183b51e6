// SPDX-License-Identifier: Apache-2.0
// Conversations as the prompt a chat model was trained on. A template is not executed: its text
// tells the family (chat_template.c), and a family is a row of text around the messages.
//
// C1. The template decides where special tokens stand. The text of a message is plain text,
//     whatever it contains.
// C2. Text between two special tokens is one run, so that it is tokenized exactly as in the text
//     that the template would have written.
// C3. A prompt begins with one BOS where the template writes one or the vocabulary adds one, and
//     never with two.
// C4. An answer that was generated goes into the next prompt as the tokens it was, so that a
//     conversation's prompt begins with the last prompt and its answer wherever the template
//     does not rewrite what was said.
#pragma once
#include "request/tokenizer.h"

#define CHAT_TEMPLATE_BYTES_MAX 65536
#define CHAT_SYSTEM_BYTES_MAX 16384 // of a template's own system message

enum chat_role { CHAT_SYSTEM, CHAT_USER, CHAT_ASSISTANT };

struct chat_message {
    enum chat_role role;
    struct str content;
    const u32 *ids; // [n_ids] a generated answer without its end token; NULL: the text counts
    u32 n_ids;
};

enum chat_trim { // white space at both ends that a template takes away, as a set
    CHAT_TRIM_SYSTEM = 1,
    CHAT_TRIM_USER = 2,
    CHAT_TRIM_ASSISTANT = 4,
    CHAT_TRIM_JOINED = 8, // of a user's message together with the system message in front of it
};

// Text around messages. Names between backquotes are special tokens; `bos_token` and `eos_token`
// are what the vocabulary calls so (nothing, when there is no BOS).
struct chat_frame {
    const char *head, *tail;
};

struct chat_family {
    const char *name;         // what --template calls it
    struct chat_frame system; // head NULL: no such role, the message goes into a user's (`inlaid`)
    struct chat_frame user, assistant;
    struct chat_frame inlaid; // around the system message inside a user's message
    bool inlaid_last;         // in the last user's message instead of the first
    bool system_always;       // the frame stands there even without a system message
    const char *answer_lead;  // in front of the text of an earlier answer; a generated one has it
    const char *generation;   // behind the assistant's head, in front of the answer to come
    const char *end_token;    // ends a turn
    u32 trims;                // enum chat_trim
    bool writes_bos;
    bool drops_thoughts;   // of earlier answers: all up to </think>
    bool markers_are_text; // a special token that the vocabulary does not have is written as text
};

struct chat_template {
    struct chat_family family;
    char system_text[CHAT_SYSTEM_BYTES_MAX]; // the system message of a conversation without one
    usize system_len;
};

// What the file's template text shows. An unknown one, and none at all, is SOV_ERR_UNSUPPORTED; the
// message lists the names for chat_template_named.
enum sov_status chat_template_recognise(struct str text, const struct tokenizer *tokenizer,
                                        struct chat_template *result, struct sov_fault *fault)
    MUST_CHECK;
// One of the families by its name, without a system message of its own. An unknown name is
// SOV_ERR_USAGE; the message lists the names.
enum sov_status chat_template_named(const char *name, struct chat_template *result,
                                    struct sov_fault *fault) MUST_CHECK;

// The row of a family, or NULL; and all names, separated by commas.
const struct chat_family *chat_family_named(struct str name);
void chat_family_names(struct text *names);

// The token that ends a turn, or TOKEN_NONE when the vocabulary does not have it.
u32 chat_end_token(const struct chat_template *t, const struct tokenizer *tokenizer);
// How many tokens at the start of a generated answer are thoughts that the template leaves out of
// later prompts.
u32 chat_thought_tokens(const struct chat_template *t, const struct tokenizer *tokenizer,
                        const u32 *ids, u32 n_ids);

// A rendered prompt in order: special tokens, runs of plain text, tokens of generated answers.
struct chat_part {
    u32 token;        // or TOKEN_NONE: text or `ids`
    usize begin, len; // of the text, in the rendered buffer
    const u32 *ids;   // [n_ids] or NULL
    u32 n_ids;
};
#define CHAT_PARTS_PER_MESSAGE 10
#define CHAT_PARTS_EXTRA 10 // BOS, a system frame without a message, the head of the answer

// Bytes of text that rendering needs, at most.
u64 chat_text_bytes(const struct chat_message *messages, u32 n_messages);
// Renders the messages and the head of the answer to come, into parts[n_messages *
// CHAT_PARTS_PER_MESSAGE + CHAT_PARTS_EXTRA]. The template's own system message is not put in: who
// wants it makes it the first message. A system message anywhere else, or with no user's message
// behind it where the template has no such role, is SOV_ERR_ARGUMENT; a vocabulary without the
// family's special tokens is SOV_ERR_UNSUPPORTED.
enum sov_status chat_render(const struct chat_template *t, const struct tokenizer *tokenizer,
                            const struct chat_message *messages, u32 n_messages, struct text *text,
                            struct chat_part *parts, u32 *n_parts, struct sov_fault *fault)
    MUST_CHECK;
