// SPDX-License-Identifier: Apache-2.0
// A recorded request becomes one of the engine's again. Its bytes are untrusted: payload.h checks
// their form, the engine that ids and parameters are in range.
#include "cli/store.h"
#include "freestanding/mem.h"

static void copy_words(u32 *to, struct str slice) {
    if (slice.len > 0) memcpy(to, slice.data, slice.len);
}

static enum sov_status check_request(const struct store_request *r,
                                     const struct store_sequence *sequence,
                                     struct sov_fault *fault) {
    if (r->said.sequence_id != sequence->owner) {
        return fault_set(fault, SOV_ERR_FORMAT, "record %llu: the request is of another sequence",
                         sequence->request);
    }
    if ((r->said.form == PAYLOAD_COMMITMENTS) == r->payload.is_sealed) return SOV_OK;
    return fault_set(fault, SOV_ERR_FORMAT, "record %llu: the request is %s, and says it is not",
                     sequence->request, r->payload.is_sealed ? "sealed" : "in clear");
}

enum sov_status store_request_open(struct store_request *request, struct store_view *view,
                                   const struct store_sequence *sequence, struct sov_fault *fault) {
    struct store_request *r = request;
    *r = (struct store_request){.memory = NULL};
    enum sov_status status = store_payload_read(view, sequence->request, &r->payload, fault);
    if (status == SOV_OK) status = payload_request_read(r->payload.bytes, &r->said, fault);
    if (status == SOV_OK) status = check_request(r, sequence, fault);
    if (status == SOV_OK) {
        const struct payload_sampling *s = &r->said.sampling;
        u64 n_biases = s->biases.len / PAYLOAD_BIAS_BYTES;
        u64 tokens_bytes = r->said.tokens.len, script_bytes = r->said.script.len;
        r->memory_bytes = MAX(tokens_bytes + script_bytes + n_biases * sizeof *r->biases, 1ull);
        u8 *memory = platform_memory_map((usize)r->memory_bytes);
        if (memory == NULL) {
            status = fault_set(fault, SOV_ERR_MEMORY, "a request of %llu bytes: no memory",
                               r->memory_bytes);
        } else {
            r->memory = memory;
            r->tokens = (u32 *)(void *)memory;
            r->script = r->tokens + tokens_bytes / sizeof(u32);
            r->biases = (struct logit_bias *)(void *)(r->script + script_bytes / sizeof(u32));
            copy_words(r->tokens, r->said.tokens);
            copy_words(r->script, r->said.script);
            for (u64 i = 0; i < n_biases; i++) {
                const u8 *bias = s->biases.data + i * PAYLOAD_BIAS_BYTES;
                r->biases[i] = (struct logit_bias){load_u32(bias), load_f32(bias + 4)};
            }
        }
    }
    if (status != SOV_OK) store_request_close(r);
    return status;
}

void store_request_close(struct store_request *request) {
    if (request->memory != NULL) {
        platform_memory_unmap(request->memory, (usize)request->memory_bytes);
    }
    store_payload_free(&request->payload);
    *request = (struct store_request){.memory = NULL};
}

// The stop rule (engine.h): stop strings in the text of the tokens.
static bool stops_at(void *context, u32 token) {
    struct store_request *r = context;
    u8 piece[CLI_PIECE_BYTES_MAX], shown[CLI_PIECE_BYTES_MAX + STOP_BYTES_MAX];
    usize len = tokenizer_decode(r->tokenizer, token, false, false, piece, sizeof piece);
    (void)stop_feed(&r->stop, (struct str){piece, len}, shown);
    return r->stop.found;
}

static_assert(PAYLOAD_STOPS_MAX == STOP_STRINGS_MAX && PAYLOAD_STOP_BYTES_MAX == STOP_BYTES_MAX,
              "a record holds what a request may have");

enum sov_status store_request_for_engine(struct store_request *request,
                                         const struct tokenizer *tokenizer,
                                         struct engine_request *engine, struct sov_fault *fault) {
    const struct payload_request *said = &request->said;
    const struct payload_sampling *s = &said->sampling;
    request->tokenizer = tokenizer;
    *engine = (struct engine_request){
        .id = said->sequence_id,
        .tokens = request->tokens,
        .n_tokens = payload_count(said->tokens),
        .n_new_max = said->n_new_max,
        .ignore_end = said->ignore_end,
        .end_token = said->end_token,
        .stop = said->n_stops > 0 ? stops_at : NULL,
        .stop_context = request,
        .kv_form = said->kv_form,
        .is_sealed = request->payload.is_sealed,
        .salt = request->payload.salt,
        .script = request->script,
        .n_script = payload_count(said->script),
        .sampling =
            {
                .repeat_penalty = s->repeat_penalty,
                .frequency_penalty = s->frequency_penalty,
                .presence_penalty = s->presence_penalty,
                .penalty_window = s->penalty_window,
                .biases = request->biases,
                .n_biases = (u32)(s->biases.len / PAYLOAD_BIAS_BYTES),
                .temperature = s->temperature,
                .top_k = s->top_k,
                .top_p = s->top_p,
                .min_p = s->min_p,
                .seed = s->seed,
            },
    };
    return stop_init(&request->stop, said->stops, said->n_stops, fault);
}

enum sov_status store_model_digest(const char *path, struct sha256_digest *digest,
                                   struct sov_fault *fault) {
    struct gguf gguf;
    enum sov_status status = gguf_open(&gguf, path, fault);
    if (status != SOV_OK) return store_name_fault(path, fault);
    status = model_digest(&gguf, NULL, digest, fault); // nothing that was kept is believed
    gguf_close(&gguf);
    return status;
}
