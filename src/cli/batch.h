// SPDX-License-Identifier: Apache-2.0
// What sov batch is made of: a line of JSON becomes a request, a request the engine's, and what
// comes of it a line of JSON again.
//
//   batch_request.c   a line, checked: which fields there may be, what they may say
//   batch_result.c    the line of an answer or of an error, in the shape the request had
//   batch.c           lines read as capacity frees, the steps, the spool
//
// B1. A line that is wrong gets an error object with its number, and the others go on.
// B2. What comes out for a request depends on its line, the model and the context (-c) alone. With
//     --record digest the digest of its events depends on the salt too.
// B3. Memory is bounded by the sequences at once, the longest line and some 20 bytes for each id.
#pragma once
#include "cli/generate.h"
#include "engine/spool.h"
#include "freestanding/json.h"

#define BATCH_LINE_BYTES_MAX (16u << 20)
#define BATCH_ID_BYTES_MAX 256
#define BATCH_REQUESTS_MAX (1u << 24) // of one run
#define BATCH_TOKENS_COMPLETION 16 // max_tokens of a completion in OpenAI's shape that gives none

enum batch_shape { BATCH_NATIVE, BATCH_COMPLETION, BATCH_CHAT };

// What names a request: a string, or a whole number as it was written.
struct batch_id {
    u8 bytes[BATCH_ID_BYTES_MAX];
    u32 len;
    bool is_given, is_number;
};
// The id of its sequence: the first 8 bytes of the SHA-256 of "sov-request-1 ", then 's' for a
// string or 'n' for a number, then the bytes of the id.
u64 batch_sequence_id(const struct batch_id *id);

struct batch_request {
    enum batch_shape shape;
    struct batch_id id;
    u32 prompt, tokens, messages; // nodes; all but one are JSON_NONE
    u32 max_tokens;               // 0: to the end of the context
    bool has_max_tokens;          // while it is read: it has two names
    bool ignore_end, wants_logprobs;
    u32 n_logprobs;
    struct sample_params sampling; // its biases point to `biases`
    u32 n_stops, stop_lens[STOP_STRINGS_MAX];
    u8 stops[STOP_STRINGS_MAX][STOP_BYTES_MAX];
    struct logit_bias biases[SAMPLE_BIASES_MAX];
};

// Checks a line that is JSON. Also after a failure the shape and, where it could be read, the id
// are there. The request must not be moved.
enum sov_status batch_request_parse(const struct json *json, struct batch_request *request,
                                    struct sov_fault *fault) MUST_CHECK;

// What the prompts of a run have in common.
struct batch_prompts {
    const struct vocabulary *vocabulary;
    struct chat_template template; // for messages
    enum sov_status template_status;
    struct sov_fault template_fault; // why there is none
    u32 end_token;                   // of the template
};
void batch_prompts_init(struct batch_prompts *prompts, const struct vocabulary *vocabulary,
                        const char *template_name);
// The tokens of the request's prompt. *end_token ends its answer besides those that always do.
enum sov_status batch_encode(const struct batch_prompts *prompts, const struct json *json,
                             const struct batch_request *request, struct token_list *list,
                             u32 *end_token, struct sov_fault *fault) MUST_CHECK;

// --- lines that come out ---
struct batch_result {
    const struct batch_request *request;
    const struct answer *answer; // without logprobs although they are wanted: they are not known
    struct stop_matcher *stop;
    const struct tokenizer *tokenizer;
    const char *model_name;
    enum finish_reason finish;
    struct sha256_digest digest; // of the sequence's last event
};
void batch_put_result(struct output *out, const struct batch_result *result);
void batch_put_error(struct output *out, const struct batch_request *request, u64 line,
                     const struct sov_fault *fault);
