// SPDX-License-Identifier: Apache-2.0
// The line of an answer, from the record alone: what sov batch would have written. So whoever
// resumes a store twice gets the same file twice.
#include "cli/store_answer.h"
#include "freestanding/mem.h"

#define ID_BYTES 16 // hexadecimal digits

static void grow(void **memory, u64 *capacity, u64 bytes) {
    if (bytes <= *capacity) return;
    if (*memory != NULL) platform_memory_unmap(*memory, (usize)*capacity);
    *memory = platform_memory_map((usize)bytes);
    *capacity = *memory != NULL ? bytes : 0;
}

enum sov_status store_answers_create(struct store_answers **answers, struct store_view *view,
                                     const struct tokenizer *tokenizer, const char *model_name,
                                     struct sov_fault *fault) {
    struct store_answers *a = platform_memory_map(sizeof *a);
    if (a == NULL) return fault_set(fault, SOV_ERR_MEMORY, "answers: no memory");
    a->view = view;
    a->tokenizer = tokenizer;
    a->model_name = model_name;
    *answers = a;
    return SOV_OK;
}

void store_answers_free(struct store_answers *answers) {
    if (answers->nodes != NULL) platform_memory_unmap(answers->nodes, (usize)answers->nodes_bytes);
    if (answers->ids != NULL) platform_memory_unmap(answers->ids, (usize)answers->ids_bytes);
    store_payload_free(&answers->end);
    platform_memory_unmap(answers, sizeof *answers);
}

// The request as its line says it: shape, id, seed, whether logprobs were asked for.
static enum sov_status read_line(struct store_answers *a, const struct store_request *request,
                                 struct sov_fault *fault) {
    struct str line = request->said.line;
    u64 n_nodes = json_nodes_max(line.len);
    struct json json;
    grow(&a->nodes, &a->nodes_bytes, n_nodes * sizeof(struct json_node));
    if (a->nodes == NULL) return fault_set(fault, SOV_ERR_MEMORY, "a line: no memory");
    enum sov_status status = json_parse(&json, line, a->nodes, (u32)n_nodes, fault);
    if (status == SOV_OK) status = batch_request_parse(&json, &a->request, fault);
    if (status == SOV_OK && batch_sequence_id(&a->request.id) != request->said.sequence_id) {
        status = fault_set(fault, SOV_ERR_INTEGRITY, "the line's id is of another sequence");
    }
    return status;
}

// A request of sov run or sov chat has no line: its sequence is its name.
static void name_by_sequence(struct store_answers *a, const struct store_request *request) {
    u64 id = request->said.sequence_id;
    a->request = (struct batch_request){.shape = BATCH_NATIVE};
    a->request.id.is_given = true;
    struct text t = text_over((char *)a->request.id.bytes, sizeof a->request.id.bytes);
    text_format(&t, "%08x%08x", (u32)(id >> 32), (u32)id);
    a->request.id.len = (u32)t.len;
    a->request.sampling.seed = request->said.sampling.seed;
    a->request.wants_logprobs = request->said.wants_logprob;
}

// Whether the last token ended the answer and is no part of it.
static bool ends_by_token(const struct store_answers *a, const struct payload_request *said,
                          const struct payload_checkpoint *end) {
    u32 n = payload_count(end->tokens);
    if (end->finish != FINISH_STOP || said->ignore_end || n == end->n_prompt) return false;
    u32 last = payload_u32(end->tokens, n - 1);
    return (last == said->end_token && last != TOKEN_NONE) || tokenizer_is_end(a->tokenizer, last);
}

// Whoever forged a record may have put any ids there.
static enum sov_status check_ids(const struct store_answers *a,
                                 const struct payload_checkpoint *end, struct sov_fault *fault) {
    u32 n_vocab = tokenizer_n_tokens(a->tokenizer);
    for (u32 i = end->n_prompt; i < payload_count(end->tokens); i++) {
        if (payload_u32(end->tokens, i) < n_vocab) continue;
        return fault_set(fault, SOV_ERR_FORMAT,
                         "sequence %016llx: token %u of its end is %u, the vocabulary has %u",
                         end->sequence_id, i, payload_u32(end->tokens, i), n_vocab);
    }
    return SOV_OK;
}

static enum sov_status put_answer(struct store_answers *a, struct store_request *request,
                                  const struct payload_checkpoint *end, struct output *out,
                                  struct sov_fault *fault) {
    enum sov_status status = check_ids(a, end, fault);
    if (status != SOV_OK) return status;
    u32 n = payload_count(end->tokens) - end->n_prompt;
    n -= ends_by_token(a, &request->said, end);
    grow(&a->ids, &a->ids_bytes, MAX(n, 1u) * sizeof(u32));
    if (a->ids == NULL) return fault_set(fault, SOV_ERR_MEMORY, "%u tokens: no memory", n);
    memcpy(a->ids, end->tokens.data + end->n_prompt * sizeof(u32), n * sizeof(u32));
    status = stop_init(&request->stop, request->said.stops, request->said.n_stops, fault);
    if (status != SOV_OK) return status;
    struct answer answer = {.ids = a->ids, .n_ids = n, .capacity = n, .n_prompt = end->n_prompt};
    struct batch_result result = {
        .request = &a->request,
        .answer = &answer,
        .stop = &request->stop,
        .tokenizer = a->tokenizer,
        .model_name = a->model_name,
        .finish = (enum finish_reason)end->finish,
        .digest = end->event_digest,
    };
    batch_put_result(out, &result);
    a->n_without_logprobs += a->request.wants_logprobs;
    return SOV_OK;
}

enum sov_status store_answers_put(struct store_answers *answers,
                                  const struct store_sequence *sequence, struct output *out,
                                  struct sov_fault *fault) {
    struct store_answers *a = answers;
    struct store_request request;
    struct payload_checkpoint end;
    enum sov_status status = store_request_open(&request, a->view, sequence, fault);
    if (status != SOV_OK) return status;
    if (request.said.line.len > 0) {
        status = read_line(a, &request, fault);
    } else {
        name_by_sequence(a, &request);
    }
    if (status == SOV_OK) {
        status = store_payload_read(a->view, sequence->finish, &a->end, fault);
    }
    if (status == SOV_OK) status = payload_checkpoint_read(a->end.bytes, &end, fault);
    if (status == SOV_OK && end.finish == FINISH_FAILED) {
        struct sov_fault failed = {0};
        (void)!fault_set(&failed, SOV_ERR_STATE, "it failed when it ran; the record has no reason");
        batch_put_error(out, &a->request, request.said.line_number, &failed);
        a->n_failed++;
    } else if (status == SOV_OK) {
        status = put_answer(a, &request, &end, out, fault);
    }
    store_request_close(&request);
    return status;
}
