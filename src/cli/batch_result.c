// SPDX-License-Identifier: Apache-2.0
// The lines that come out of a batch: in our shape, or in OpenAI's where the request had that. No
// clock is in them ("created" is 0), so that the same requests give the same bytes.
#include "cli/batch.h"

static void put_id(struct output *out, const struct batch_id *id) {
    struct str bytes = {id->bytes, id->len};
    if (!id->is_given) {
        output_put(out, STR("null"));
    } else if (id->is_number) {
        output_put(out, bytes);
    } else {
        output_json_string(out, bytes);
    }
}

static const char *finish_name(enum finish_reason finish) {
    return finish == FINISH_CANCEL ? "cancelled" : event_finish_name(finish);
}

static void put_usage(struct output *out, const struct answer *answer) {
    output_format(out,
                  "\"usage\":{\"prompt_tokens\":%u,\"completion_tokens\":%u,\"total_tokens\":%u}",
                  answer->n_prompt, answer->n_ids, answer->n_prompt + answer->n_ids);
}

// What only we have: the ids, the seed, and the head of the sequence's events.
static void put_ours(struct output *out, const struct batch_result *result) {
    char hex[SHA256_HEX_BYTES + 1];
    sha256_to_hex(&result->digest, hex);
    output_format(out, "\"seed\":%llu,\"digest\":\"%s\"", result->request->sampling.seed, hex);
}

static void put_native(struct output *out, const struct batch_result *r) {
    output_put(out, STR("{\"id\":"));
    put_id(out, &r->request->id);
    output_put(out, STR(",\"tokens\":"));
    output_put_ids(out, r->answer->ids, r->answer->n_ids);
    output_put(out, STR(",\"text\":"));
    answer_put_text(r->answer, r->tokenizer, r->stop, out);
    output_format(out, ",\"finish_reason\":\"%s\",", finish_name(r->finish));
    put_usage(out, r->answer);
    output_put(out, STR(","));
    put_ours(out, r);
    if (r->request->wants_logprobs) {
        output_put(out, STR(",\"logprobs\":"));
        if (r->answer->logprobs == NULL) {
            output_put(out, STR("null"));
        } else {
            answer_put_logprobs(out, r->tokenizer, r->answer);
        }
    }
    output_put(out, STR("}\n"));
}

// --- OpenAI's shape ---

static usize piece_of(const struct tokenizer *tokenizer, u32 token, u8 piece[CLI_PIECE_BYTES_MAX]) {
    return tokenizer_decode(tokenizer, token, true, false, piece, CLI_PIECE_BYTES_MAX);
}

// Bytes that are no UTF-8 are written as "bytes:\\xe2\\x80", so that different ones stay different.
static void put_piece(struct output *out, const struct tokenizer *tokenizer, u32 token) {
    u8 piece[CLI_PIECE_BYTES_MAX];
    struct str s = {piece, piece_of(tokenizer, token, piece)};
    bool is_text = true;
    for (usize i = 0; i < s.len && is_text;) {
        u32 code_point = 0, n = utf8_decode(s, i, &code_point);
        is_text = n > 0;
        i += n;
    }
    if (is_text) {
        output_json_string(out, s);
        return;
    }
    output_put(out, STR("\"bytes:"));
    for (usize i = 0; i < s.len; i++) output_format(out, "\\\\x%02x", (u32)piece[i]);
    output_put(out, STR("\""));
}

static bool same_piece(const struct tokenizer *tokenizer, u32 a, u32 b) {
    u8 left[CLI_PIECE_BYTES_MAX], right[CLI_PIECE_BYTES_MAX];
    struct str x = {left, piece_of(tokenizer, a, left)}, y = {right, piece_of(tokenizer, b, right)};
    return str_equal(x, y);
}

// The best tokens by their text. Of several with one text (a byte's token and its letter) the best
// counts: no name may stand twice.
static void put_top(struct output *out, const struct tokenizer *tokenizer,
                    const struct token_logprob *top, u32 n_top) {
    output_put(out, STR("{"));
    for (u32 k = 0; k < n_top; k++) {
        bool again = false;
        for (u32 i = 0; i < k; i++)
            again = again || same_piece(tokenizer, top[i].token, top[k].token);
        if (again) continue;
        if (k > 0) output_put(out, STR(","));
        put_piece(out, tokenizer, top[k].token);
        output_format(out, ":%.9g", top[k].logprob);
    }
    output_put(out, STR("}"));
}

// {"tokens": [...], "token_logprobs": [...], "top_logprobs": [{...}], "text_offset": [...]}; the
// offsets count bytes of the answer.
static void put_completion_logprobs(struct output *out, const struct batch_result *r) {
    const struct answer *a = r->answer;
    output_put(out, STR("{\"tokens\":["));
    for (u32 i = 0; i < a->n_ids; i++) {
        if (i > 0) output_put(out, STR(","));
        put_piece(out, r->tokenizer, a->ids[i]);
    }
    output_put(out, STR("],\"token_logprobs\":["));
    for (u32 i = 0; i < a->n_ids; i++) {
        output_format(out, i == 0 ? "%.9g" : ",%.9g", a->logprobs[i]);
    }
    output_put(out, STR("],\"top_logprobs\":["));
    for (u32 i = 0; i < a->n_ids; i++) {
        if (i > 0) output_put(out, STR(","));
        put_top(out, r->tokenizer, a->n_top > 0 ? &a->top[i * a->n_top] : NULL, a->n_top);
    }
    output_put(out, STR("],\"text_offset\":["));
    u64 offset = 0;
    for (u32 i = 0; i < a->n_ids; i++) {
        u8 piece[CLI_PIECE_BYTES_MAX];
        output_format(out, i == 0 ? "%llu" : ",%llu", offset);
        offset += piece_of(r->tokenizer, a->ids[i], piece);
    }
    output_put(out, STR("]}"));
}

static void put_choice(struct output *out, const struct batch_result *r) {
    bool is_chat = r->request->shape == BATCH_CHAT;
    output_put(out, is_chat ? STR("{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":")
                            : STR("{\"index\":0,\"text\":"));
    answer_put_text(r->answer, r->tokenizer, r->stop, out);
    output_put(out, is_chat ? STR("},\"logprobs\":") : STR(",\"logprobs\":"));
    if (!r->request->wants_logprobs || r->answer->logprobs == NULL) {
        output_put(out, STR("null"));
    } else if (is_chat) {
        output_put(out, STR("{\"content\":"));
        answer_put_logprobs(out, r->tokenizer, r->answer);
        output_put(out, STR("}"));
    } else {
        put_completion_logprobs(out, r);
    }
    output_format(out, ",\"finish_reason\":\"%s\"}", finish_name(r->finish));
}

static void put_openai(struct output *out, const struct batch_result *r) {
    bool is_chat = r->request->shape == BATCH_CHAT;
    u64 id = batch_sequence_id(&r->request->id);
    u32 high = (u32)(id >> 32), low = (u32)id;
    output_format(out, "{\"id\":\"batch_req_%08x%08x\",\"custom_id\":", high, low);
    put_id(out, &r->request->id);
    output_format(out,
                  ",\"response\":{\"status_code\":200,\"request_id\":\"%08x%08x\",\"body\":{\"id\":"
                  "\"%s-%08x%08x\",\"object\":\"%s\",\"created\":0,\"model\":",
                  high, low, is_chat ? "chatcmpl" : "cmpl", high, low,
                  is_chat ? "chat.completion" : "text_completion");
    output_json_string(out, str_from_z(r->model_name));
    output_put(out, STR(",\"choices\":["));
    put_choice(out, r);
    output_put(out, STR("],"));
    put_usage(out, r->answer);
    output_put(out, STR(",\"sov\":{\"tokens\":"));
    output_put_ids(out, r->answer->ids, r->answer->n_ids);
    output_put(out, STR(","));
    put_ours(out, r);
    output_put(out, STR("}}},\"error\":null}\n"));
}

void batch_put_result(struct output *out, const struct batch_result *result) {
    if (result->request->shape == BATCH_NATIVE) {
        put_native(out, result);
    } else {
        put_openai(out, result);
    }
}

void batch_put_error(struct output *out, const struct batch_request *request, u64 line,
                     const struct sov_fault *fault) {
    bool is_native = request->shape == BATCH_NATIVE;
    output_put(out, is_native ? STR("{\"id\":") : STR("{\"id\":null,\"custom_id\":"));
    put_id(out, &request->id);
    if (is_native) output_format(out, ",\"line\":%llu", line);
    if (!is_native) output_put(out, STR(",\"response\":null"));
    output_format(out, ",\"error\":{\"code\":\"%s\",\"message\":", status_name(fault->status));
    output_json_string(out, str_from_z(fault->message));
    if (!is_native) output_format(out, ",\"line\":%llu", line);
    output_put(out, STR("}}\n"));
}
