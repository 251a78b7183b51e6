// SPDX-License-Identifier: Apache-2.0
// What run and chat share: the options of generating, prompts in a chat template, and one answer
// from admission to its last character.
//
//   generate_options.c   the options, checked
//   prompt.c             a conversation as token ids
//   answer.c             the steps of the engine, the streamed text, the JSON object
#pragma once
#include "cli/cli.h"
#include "request/chat.h"
#include "request/stop.h"

// --- options ---
struct generate_options {
    struct model_options model;
    struct sample_params sampling;
    i32 n_new; // -1: to the end of the context
    bool has_seed, greedy, ignore_end, json, has_logprobs;
    u32 n_logprobs;
    const char *template_name, *system, *script_path; // or NULL
    struct token_list script;
    struct option_list stops, biases; // as they were given
    const char *stop_values[STOP_STRINGS_MAX], *bias_values[SAMPLE_BIASES_MAX];
    struct logit_bias bias_table[SAMPLE_BIASES_MAX];
    struct stop_matcher stop;
    struct str stop_strings[STOP_STRINGS_MAX]; // [stops.n]
    // Not options: who asks, what was said (for the record), and whether Ctrl-C is meant to end an
    // answer, not to interrupt it. SIGTERM always interrupts.
    enum payload_command command;
    struct str text;
    bool ctrl_c_ends;
};

#define GENERATE_OPTIONS_MAX 48 // rows that the options of one command have, at most
void generate_options_init(struct generate_options *g);
// Appends the rows to rows[*n].
void generate_options_add(struct generate_options *g, struct option *rows, u32 *n);
// What the options say together, after parsing. False after a message, with the exit code.
bool generate_options_check(struct generate_options *g, const struct command *command,
                            int *exit_code);
// The script's file, and a seed where none was given.
enum sov_status generate_options_load(struct generate_options *g, struct sov_fault *fault)
    MUST_CHECK;
void generate_options_free(struct generate_options *g);

// --- prompts ---
// The template named on the command line, else the file's.
enum sov_status prompt_template(const struct vocabulary *vocabulary, const char *name,
                                struct chat_template *result, struct sov_fault *fault) MUST_CHECK;
// The system message to use: the one given (an empty one is none), else the template's own.
struct str prompt_system(const struct chat_template *t, const char *given);

struct prompt_parts { // a rendered conversation
    struct text text;
    struct chat_part *parts;
    u32 n_parts;
    void *memory;
    u64 memory_bytes;
};
enum sov_status prompt_render(const struct vocabulary *vocabulary, const struct chat_template *t,
                              const struct chat_message *messages, u32 n_messages,
                              struct prompt_parts *parts, struct sov_fault *fault) MUST_CHECK;
void prompt_parts_free(struct prompt_parts *parts);
// Rendered, and tokenized.
enum sov_status prompt_encode(const struct vocabulary *vocabulary, const struct chat_template *t,
                              const struct chat_message *messages, u32 n_messages,
                              struct token_list *list, struct sov_fault *fault) MUST_CHECK;

// --- answers ---
struct answer {
    u32 *ids; // [capacity] committed tokens, but no end token
    u32 n_ids, capacity;
    f64 *logprobs;             // [capacity] or NULL
    struct token_logprob *top; // [capacity][n_top] or NULL
    u32 n_top;
    void *memory;
    u64 memory_bytes;
    u32 n_prompt, n_cached;
    enum finish_reason finish;
    bool cancelled; // by a signal, or because nobody reads any more
    u64 begin_ns, first_token_ns, end_ns;
};

// Room for one answer in a context of so many tokens.
enum sov_status answer_create(struct answer *answer, const struct generate_options *g, u32 context,
                              struct sov_fault *fault) MUST_CHECK;
// The same for at most n_new tokens, with the n_top best of each when there are logprobs.
enum sov_status answer_reserve(struct answer *answer, u32 n_new, bool has_logprobs, u32 n_top,
                               struct sov_fault *fault) MUST_CHECK;
void answer_free(struct answer *answer);
// Keeps a committed token with what is known of it.
void answer_keep(struct answer *answer, const struct engine_output *token);
// Answers the prompt; streams the text to `out` unless g->json. `end_token` ends the answer too
// (TOKEN_NONE: only those that the vocabulary knows). When the status is SOV_OK, the answer is as
// long as it gets; otherwise what came before the failure was shown.
enum sov_status answer_generate(struct answer *answer, struct session *session,
                                struct generate_options *g, const struct token_list *prompt,
                                u32 end_token, struct output *out, struct sov_fault *fault)
    MUST_CHECK;
// One line: an object of the prompt, the answer and the timings.
void answer_print_json(const struct answer *answer, struct generate_options *g,
                       const struct session *session, const struct token_list *prompt,
                       struct output *out);
// The parts of it: the text up to a stop string, as a JSON string; {"id", "token", "bytes",
// "logprob" of one token, without the closing brace, where special tokens have their text; an array
// of these for all tokens, with "top_logprobs".
void answer_put_text(const struct answer *answer, const struct tokenizer *tokenizer,
                     struct stop_matcher *stop, struct output *out);
void answer_put_logprob(struct output *out, const struct tokenizer *tokenizer, u32 token,
                        f64 logprob);
void answer_put_logprobs(struct output *out, const struct tokenizer *tokenizer,
                         const struct answer *answer);
// Figures and what computed on stderr; where the run is recorded, and the head, on a line of their
// own.
void answer_print_figures(const struct answer *answer, const struct generate_options *g,
                          const struct session *session);

void output_put_ids(struct output *out, const u32 *ids, usize n);
