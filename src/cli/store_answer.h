// SPDX-License-Identifier: Apache-2.0
// Lines of answers in the shape of sov batch, from what a store has of finished sequences.
#pragma once
#include "cli/batch.h"
#include "cli/store.h"

struct store_answers {
    struct store_view *view;
    const struct tokenizer *tokenizer;
    const char *model_name;
    void *nodes, *ids; // scratch
    u64 nodes_bytes, ids_bytes;
    struct store_payload end;
    struct batch_request request;
    u64 n_without_logprobs; // lines that were asked for logprobs, which no record has
    u64 n_failed;
};
enum sov_status store_answers_create(struct store_answers **answers, struct store_view *view,
                                     const struct tokenizer *tokenizer, const char *model_name,
                                     struct sov_fault *fault) MUST_CHECK;
void store_answers_free(struct store_answers *answers);
// The line of a sequence that has finished.
enum sov_status store_answers_put(struct store_answers *answers,
                                  const struct store_sequence *sequence, struct output *out,
                                  struct sov_fault *fault) MUST_CHECK;
