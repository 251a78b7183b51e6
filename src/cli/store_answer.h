// SPDX-License-Identifier: Apache-2.0
// What a store's records amount to for those outside: lines of answers in the shape of sov batch,
// and events for a spool.
#pragma once
#include "cli/batch.h"
#include "cli/store.h"
#include "engine/spool.h"

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

// Appends the events that follow from a sequence's records and are not in the spool: those behind
// the last one that is there. As sov batch publishes them, without the end of what was cancelled or
// failed. SOV_ERR_INTEGRITY when they do not lead to the digest that was recorded, or the spool has
// others.
enum sov_status store_events_put(struct store_view *view, const struct store_sequences *all,
                                 const struct store_sequence *sequence, struct spool *spool,
                                 struct sov_fault *fault) MUST_CHECK;
