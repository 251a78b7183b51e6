// SPDX-License-Identifier: Apache-2.0
// One line of a batch: which fields each shape has, as a table, and what each may say. A name that
// no row has is refused: a misspelt "temperatur" would otherwise change the answer unnoticed. null
// counts as not given.
//
//   ours     {"id": ..., "prompt" | "tokens" | "messages": ..., ...}
//   OpenAI   {"custom_id": ..., "method": "POST", "url": "/v1/completions" or
//            "/v1/chat/completions", "body": {...}}
#include "cli/batch.h"
#include "freestanding/mem.h"
#include "record/sha256.h"

// --- values ---

static const char *kind_name(u8 kind) {
    static const char *const names[] = {"null",     "false",    "true",     "a number",
                                        "a string", "an array", "an object"};
    return names[kind];
}

static enum sov_status wrong(const char *name, const char *wanted, const struct json *json,
                             u32 node, struct sov_fault *fault) {
    struct str source = json_source(json, node);
    u8 kind = json->nodes[node].kind;
    if (kind == JSON_NUMBER) {
        return fault_set(fault, SOV_ERR_ARGUMENT, "%s: %s was expected, found %.*s", name, wanted,
                         STR_ARG(source));
    }
    return fault_set(fault, SOV_ERR_ARGUMENT, "%s: %s was expected, found %s", name, wanted,
                     kind_name(kind));
}

static enum sov_status read_u32(const struct json *json, u32 node, const char *name, u32 min,
                                u32 max, u32 *value, struct sov_fault *fault) {
    u64 number = 0;
    if (json_u64(json, node, &number) && number >= min && number <= max) {
        *value = (u32)number;
        return SOV_OK;
    }
    char wanted[64];
    struct text t = TEXT_OVER_ARRAY(wanted);
    text_format(&t, "a whole number from %u to %u", min, max);
    return wrong(name, wanted, json, node, fault);
}

static enum sov_status read_i32(const struct json *json, u32 node, const char *name, i32 *value,
                                struct sov_fault *fault) {
    i64 number = 0;
    if (!json_i64(json, node, &number) || number < INT_MIN || number > INT_MAX) {
        return wrong(name, "a whole number of 32 bits", json, node, fault);
    }
    *value = (i32)number;
    return SOV_OK;
}

static enum sov_status read_f32(const struct json *json, u32 node, const char *name, f32 *value,
                                struct sov_fault *fault) {
    f64 number = 0;
    if (!json_f64(json, node, &number) || number > 3.4e38 || number < -3.4e38) {
        return wrong(name, "a number", json, node, fault);
    }
    *value = (f32)number;
    return SOV_OK;
}

static enum sov_status read_bool(const struct json *json, u32 node, const char *name, bool *value,
                                 struct sov_fault *fault) {
    u8 kind = json->nodes[node].kind;
    if (kind != JSON_TRUE && kind != JSON_FALSE) {
        return wrong(name, "true or false", json, node, fault);
    }
    *value = kind == JSON_TRUE;
    return SOV_OK;
}

// Any 64 bits, signed or not.
static enum sov_status read_seed(const struct json *json, u32 node, const char *name, u64 *value,
                                 struct sov_fault *fault) {
    i64 number = 0;
    if (json_u64(json, node, value)) return SOV_OK;
    if (!json_i64(json, node, &number)) {
        return wrong(name, "a whole number of 64 bits", json, node, fault);
    }
    *value = (u64)number;
    return SOV_OK;
}

static enum sov_status read_id(const struct json *json, u32 node, const char *name,
                               struct batch_id *id, struct sov_fault *fault) {
    u8 kind = json->nodes[node].kind;
    struct str source = json_source(json, node);
    i64 number = 0;
    if (kind != JSON_STRING && !json_i64(json, node, &number)) {
        return wrong(name, "a string or a whole number", json, node, fault);
    }
    if (source.len > BATCH_ID_BYTES_MAX) {
        return fault_set(fault, SOV_ERR_LIMIT, "%s: %llu bytes, at most %u", name, (u64)source.len,
                         BATCH_ID_BYTES_MAX);
    }
    id->is_number = kind == JSON_NUMBER;
    id->len = (u32)source.len;
    if (id->is_number) {
        memcpy(id->bytes, source.data, source.len);
    } else {
        id->len = (u32)json_string_copy(json, node, id->bytes);
    }
    id->is_given = true;
    return SOV_OK;
}

u64 batch_sequence_id(const struct batch_id *id) {
    struct sha256 h;
    sha256_begin(&h);
    sha256_update(&h, STR("sov-request-1 "));
    sha256_update(&h, id->is_number ? STR("n") : STR("s"));
    sha256_update(&h, (struct str){id->bytes, id->len});
    struct sha256_digest digest = sha256_end(&h);
    return load_u64(digest.bytes);
}

// A string, or an array of strings.
static enum sov_status read_stops(const struct json *json, u32 node, const char *name,
                                  struct batch_request *r, struct sov_fault *fault) {
    bool is_array = json->nodes[node].kind == JSON_ARRAY;
    u32 i = is_array ? json_first(node) : node;
    for (; i != json_end(json, node); i = json_next(json, i)) {
        if (json->nodes[i].kind != JSON_STRING) {
            return wrong(name, "a string, or strings in an array,", json, i, fault);
        }
        if (r->n_stops == STOP_STRINGS_MAX) {
            return fault_set(fault, SOV_ERR_LIMIT, "%s: at most %u strings", name,
                             STOP_STRINGS_MAX);
        }
        // With escapes it may be six times as long as what it means.
        u8 meaning[6 * STOP_BYTES_MAX];
        usize len = json->nodes[i].len <= sizeof meaning ? json_string_copy(json, i, meaning) : 0;
        if (json->nodes[i].len > sizeof meaning || len > STOP_BYTES_MAX || len == 0) {
            return fault_set(fault, SOV_ERR_LIMIT, "%s: a string has 1 to %u bytes", name,
                             STOP_BYTES_MAX);
        }
        memcpy(r->stops[r->n_stops], meaning, len);
        r->stop_lens[r->n_stops++] = (u32)len;
    }
    return SOV_OK;
}

// {"15": 1.5, "20": -100}
static enum sov_status read_biases(const struct json *json, u32 node, const char *name,
                                   struct batch_request *r, struct sov_fault *fault) {
    if (json->nodes[node].kind != JSON_OBJECT) return wrong(name, "an object", json, node, fault);
    for (u32 i = json_first(node); i != json_end(json, node); i = json_next(json, i + 1)) {
        u64 token = 0;
        struct str id = json_source(json, i);
        if (!text_parse_u64(id, &token) || token >= TOKEN_NONE) {
            return fault_set(fault, SOV_ERR_ARGUMENT,
                             "%s: a token id in quotes was expected, found \"%.*s\"", name,
                             STR_ARG(id));
        }
        if (r->sampling.n_biases == SAMPLE_BIASES_MAX) {
            return fault_set(fault, SOV_ERR_LIMIT, "%s: at most %u tokens", name,
                             SAMPLE_BIASES_MAX);
        }
        struct logit_bias *bias = &r->biases[r->sampling.n_biases++];
        bias->token = (u32)token;
        enum sov_status status = read_f32(json, i + 1, name, &bias->bias, fault);
        if (status != SOV_OK) return status;
    }
    return SOV_OK;
}

// How many alternatives, or whether there shall be logprobs at all.
static enum sov_status read_logprobs(const struct json *json, u32 node, const char *name,
                                     struct batch_request *r, struct sov_fault *fault) {
    if (r->shape == BATCH_CHAT || json->nodes[node].kind != JSON_NUMBER) {
        return read_bool(json, node, name, &r->wants_logprobs, fault);
    }
    r->wants_logprobs = true;
    return read_u32(json, node, name, 0, ENGINE_LOGPROBS_SHARED_MAX, &r->n_logprobs, fault);
}

// --- fields ---

enum field_kind {
    FIELD_ID,
    FIELD_PROMPT, // a string, or token ids
    FIELD_TOKENS,
    FIELD_MESSAGES,
    FIELD_MAX_TOKENS,
    FIELD_F32, // of the sampling parameters, at `offset`
    FIELD_I32,
    FIELD_SEED,
    FIELD_STOP,
    FIELD_BIAS,
    FIELD_IGNORE_END,
    FIELD_LOGPROBS,
    FIELD_TOP_LOGPROBS,
    FIELD_NO_MATTER, // has no effect on an answer
    FIELD_FALSE,     // what is asked for with true does not exist here
    FIELD_ONE,       // nor with more than one
};

#define IN_NATIVE 1u
#define IN_COMPLETION 2u
#define IN_CHAT 4u
#define IN_OPENAI (IN_COMPLETION | IN_CHAT)
#define IN_ALL (IN_NATIVE | IN_OPENAI)

struct field {
    const char *name;
    enum field_kind kind;
    u32 shapes; // that have it
    usize offset;
};

static const struct field fields[] = {
    {"id", FIELD_ID, IN_NATIVE, 0},
    {"prompt", FIELD_PROMPT, IN_NATIVE | IN_COMPLETION, 0},
    {"tokens", FIELD_TOKENS, IN_NATIVE, 0},
    {"messages", FIELD_MESSAGES, IN_NATIVE | IN_CHAT, 0},
    {"max_tokens", FIELD_MAX_TOKENS, IN_ALL, 0},
    {"max_completion_tokens", FIELD_MAX_TOKENS, IN_CHAT, 0},
    {"temperature", FIELD_F32, IN_ALL, offsetof(struct sample_params, temperature)},
    {"top_k", FIELD_I32, IN_ALL, offsetof(struct sample_params, top_k)},
    {"top_p", FIELD_F32, IN_ALL, offsetof(struct sample_params, top_p)},
    {"min_p", FIELD_F32, IN_ALL, offsetof(struct sample_params, min_p)},
    {"repeat_penalty", FIELD_F32, IN_ALL, offsetof(struct sample_params, repeat_penalty)},
    {"frequency_penalty", FIELD_F32, IN_ALL, offsetof(struct sample_params, frequency_penalty)},
    {"presence_penalty", FIELD_F32, IN_ALL, offsetof(struct sample_params, presence_penalty)},
    {"repeat_last_n", FIELD_I32, IN_ALL, offsetof(struct sample_params, penalty_window)},
    {"logit_bias", FIELD_BIAS, IN_ALL, 0},
    {"seed", FIELD_SEED, IN_ALL, 0},
    {"stop", FIELD_STOP, IN_ALL, 0},
    {"ignore_eos", FIELD_IGNORE_END, IN_ALL, 0},
    {"logprobs", FIELD_LOGPROBS, IN_ALL, 0},
    {"top_logprobs", FIELD_TOP_LOGPROBS, IN_CHAT, 0},
    {"model", FIELD_NO_MATTER, IN_OPENAI, 0},
    {"user", FIELD_NO_MATTER, IN_OPENAI, 0},
    {"metadata", FIELD_NO_MATTER, IN_OPENAI, 0},
    {"store", FIELD_NO_MATTER, IN_OPENAI, 0},
    {"stream", FIELD_FALSE, IN_OPENAI, 0},
    {"echo", FIELD_FALSE, IN_COMPLETION, 0},
    {"n", FIELD_ONE, IN_OPENAI, 0},
    {"best_of", FIELD_ONE, IN_COMPLETION, 0},
};

static enum sov_status read_field(const struct field *field, const struct json *json, u32 node,
                                  struct batch_request *r, struct sov_fault *fault) {
    const char *name = field->name;
    u8 kind = json->nodes[node].kind;
    u8 *sampling = (u8 *)&r->sampling + field->offset;
    u32 one = 1;
    switch (field->kind) {
    case FIELD_ID: return r->id.is_given ? SOV_OK : read_id(json, node, name, &r->id, fault);
    case FIELD_PROMPT:
        if (kind != JSON_STRING && kind != JSON_ARRAY) {
            return wrong(name, "a string or an array of token ids", json, node, fault);
        }
        if (kind == JSON_STRING) {
            r->prompt = node;
        } else {
            r->tokens = node;
        }
        return SOV_OK;
    case FIELD_TOKENS:
        r->tokens = node;
        return kind == JSON_ARRAY ? SOV_OK : wrong(name, "an array", json, node, fault);
    case FIELD_MESSAGES:
        r->messages = node;
        return kind == JSON_ARRAY ? SOV_OK : wrong(name, "an array", json, node, fault);
    case FIELD_MAX_TOKENS:
        if (r->has_max_tokens) {
            return fault_set(fault, SOV_ERR_ARGUMENT, "max_tokens and max_completion_tokens");
        }
        r->has_max_tokens = true;
        return read_u32(json, node, name, 1, MODEL_CONTEXT_MAX, &r->max_tokens, fault);
    case FIELD_F32: return read_f32(json, node, name, (f32 *)(void *)sampling, fault);
    case FIELD_I32: return read_i32(json, node, name, (i32 *)(void *)sampling, fault);
    case FIELD_SEED: return read_seed(json, node, name, &r->sampling.seed, fault);
    case FIELD_STOP: return read_stops(json, node, name, r, fault);
    case FIELD_BIAS: return read_biases(json, node, name, r, fault);
    case FIELD_IGNORE_END: return read_bool(json, node, name, &r->ignore_end, fault);
    case FIELD_LOGPROBS: return read_logprobs(json, node, name, r, fault);
    case FIELD_TOP_LOGPROBS:
        return read_u32(json, node, name, 0, ENGINE_LOGPROBS_SHARED_MAX, &r->n_logprobs, fault);
    case FIELD_NO_MATTER: return SOV_OK;
    case FIELD_FALSE: return kind == JSON_FALSE ? SOV_OK : wrong(name, "false", json, node, fault);
    case FIELD_ONE: return read_u32(json, node, name, 1, 1, &one, fault);
    }
    assert(!"a kind of the table");
    return SOV_ERR_ARGUMENT;
}

static enum sov_status read_fields(const struct json *json, u32 object, struct batch_request *r,
                                   struct sov_fault *fault) {
    for (u32 i = json_first(object); i != json_end(json, object); i = json_next(json, i + 1)) {
        const struct field *field = NULL;
        for (u32 k = 0; k < COUNT_OF(fields); k++) {
            if ((fields[k].shapes >> r->shape & 1) == 0) continue;
            if (json_string_equal(json, i, str_from_z(fields[k].name))) field = &fields[k];
        }
        if (json->nodes[i + 1].kind == JSON_NULL) continue;
        if (field == NULL) {
            struct str name = json_source(json, i);
            return fault_set(fault, SOV_ERR_ARGUMENT, "a request has no field \"%.*s\"",
                             STR_ARG(name));
        }
        enum sov_status status = read_field(field, json, i + 1, r, fault);
        if (status != SOV_OK) return status;
    }
    return SOV_OK;
}

// --- shapes ---

// A member that is not null, or JSON_NONE.
static u32 member(const struct json *json, u32 object, struct str name) {
    u32 node = json_member(json, object, name);
    return node == JSON_NONE || json->nodes[node].kind == JSON_NULL ? JSON_NONE : node;
}

static enum sov_status check_envelope_names(const struct json *json, struct sov_fault *fault) {
    for (u32 i = json_first(0); i != json_end(json, 0); i = json_next(json, i + 1)) {
        static const char *const names[] = {"custom_id", "method", "url", "body"};
        bool is_known = json->nodes[i + 1].kind == JSON_NULL;
        for (u32 k = 0; k < COUNT_OF(names); k++) {
            is_known = is_known || json_string_equal(json, i, str_from_z(names[k]));
        }
        struct str name = json_source(json, i);
        if (!is_known) {
            return fault_set(fault, SOV_ERR_ARGUMENT, "a request has no field \"%.*s\"",
                             STR_ARG(name));
        }
    }
    return SOV_OK;
}

// The envelope of OpenAI's shape; *body is what is in it.
static enum sov_status read_envelope(const struct json *json, struct batch_request *r, u32 *body,
                                     struct sov_fault *fault) {
    u32 id = member(json, 0, STR("custom_id"));
    u32 url = member(json, 0, STR("url")), method = member(json, 0, STR("method"));
    *body = member(json, 0, STR("body"));
    r->shape = BATCH_COMPLETION;
    if (id == JSON_NONE) return fault_set(fault, SOV_ERR_ARGUMENT, "custom_id is missing");
    enum sov_status status = read_id(json, id, "custom_id", &r->id, fault);
    if (status == SOV_OK) status = check_envelope_names(json, fault);
    if (status != SOV_OK) return status;
    if (method != JSON_NONE && !json_string_equal(json, method, STR("POST"))) {
        return wrong("method", "\"POST\"", json, method, fault);
    }
    if (url == JSON_NONE) return fault_set(fault, SOV_ERR_ARGUMENT, "url is missing");
    if (json_string_equal(json, url, STR("/v1/chat/completions"))) {
        r->shape = BATCH_CHAT;
    } else if (!json_string_equal(json, url, STR("/v1/completions"))) {
        return fault_set(fault, SOV_ERR_ARGUMENT,
                         "url: /v1/completions or /v1/chat/completions was expected");
    }
    if (*body == JSON_NONE) return fault_set(fault, SOV_ERR_ARGUMENT, "body is missing");
    if (json->nodes[*body].kind != JSON_OBJECT) {
        return wrong("body", "an object", json, *body, fault);
    }
    return SOV_OK;
}

// What a request that says nothing of it gets: of ours the defaults of sov run, of OpenAI's theirs.
static void set_defaults(struct batch_request *r) {
    r->sampling = sample_params_default();
    r->sampling.biases = r->biases;
    if (r->shape == BATCH_NATIVE) return;
    r->sampling.temperature = 1.0f;
    r->sampling.top_k = 0;
    r->sampling.top_p = 1.0f;
    r->sampling.min_p = 0.0f;
    r->sampling.penalty_window = -1;
    if (r->shape == BATCH_COMPLETION) r->max_tokens = BATCH_TOKENS_COMPLETION;
}

enum sov_status batch_request_parse(const struct json *json, struct batch_request *r,
                                    struct sov_fault *fault) {
    r->shape = BATCH_NATIVE;
    r->id = (struct batch_id){0};
    r->prompt = r->tokens = r->messages = JSON_NONE;
    r->max_tokens = r->n_logprobs = r->n_stops = 0;
    r->ignore_end = r->wants_logprobs = r->has_max_tokens = false;
    if (json->nodes[0].kind != JSON_OBJECT) return wrong("the line", "an object", json, 0, fault);
    u32 body = 0;
    enum sov_status status = SOV_OK;
    if (json_member(json, 0, STR("custom_id")) != JSON_NONE ||
        json_member(json, 0, STR("body")) != JSON_NONE) {
        status = read_envelope(json, r, &body, fault);
    } else { // the id first: an error shall carry it wherever it stands
        u32 id = member(json, 0, STR("id"));
        if (id == JSON_NONE) return fault_set(fault, SOV_ERR_ARGUMENT, "id is missing");
        status = read_id(json, id, "id", &r->id, fault);
    }
    if (status != SOV_OK) return status;
    set_defaults(r);
    r->sampling.seed = batch_sequence_id(&r->id) >> 11; // 53 bits: every JSON reader keeps them
    status = read_fields(json, body, r, fault);
    if (status != SOV_OK) return status;
    u32 n_prompts = (u32)(r->prompt != JSON_NONE) + (r->tokens != JSON_NONE) +
                    (r->messages != JSON_NONE);
    if (n_prompts != 1) {
        return fault_set(fault, SOV_ERR_ARGUMENT, "%s",
                         r->shape == BATCH_CHAT         ? "messages is missing"
                         : r->shape == BATCH_COMPLETION ? "prompt is missing"
                                                        : "one of prompt, tokens and messages is "
                                                          "the prompt");
    }
    if (r->n_logprobs > 0 && !r->wants_logprobs) {
        return fault_set(fault, SOV_ERR_ARGUMENT, "top_logprobs needs logprobs");
    }
    return sample_params_check(&r->sampling, fault);
}

// --- prompts ---

void batch_prompts_init(struct batch_prompts *prompts, const struct vocabulary *vocabulary,
                        const char *template_name) {
    prompts->vocabulary = vocabulary;
    prompts->template_fault = (struct sov_fault){0};
    prompts->end_token = TOKEN_NONE;
    prompts->template_status =
        prompt_template(vocabulary, template_name, &prompts->template, &prompts->template_fault);
    if (prompts->template_status == SOV_OK) {
        prompts->end_token = chat_end_token(&prompts->template, vocabulary->tokenizer);
    }
}

static enum sov_status no_memory(u64 bytes, struct sov_fault *fault) {
    return fault_set(fault, SOV_ERR_MEMORY, "prompt: %llu bytes are not to be had", bytes);
}

static enum sov_status encode_text(const struct batch_prompts *prompts, const struct json *json,
                                   u32 node, struct token_list *list, struct sov_fault *fault) {
    u64 bytes = (u64)json->nodes[node].len + 1;
    u8 *text = platform_memory_map(bytes);
    if (text == NULL) return no_memory(bytes, fault);
    struct str meaning = {text, json_string_copy(json, node, text)};
    enum sov_status status =
        vocabulary_encode(prompts->vocabulary, meaning, TOKENIZE_BOS_EOS, list, fault);
    platform_memory_unmap(text, bytes);
    return status;
}

static enum sov_status copy_tokens(const struct json *json, u32 node, struct token_list *list,
                                   struct sov_fault *fault) {
    u64 bytes = ((u64)json->nodes[node].n + 1) * sizeof(u32);
    u32 *ids = platform_memory_map(bytes);
    if (ids == NULL) return no_memory(bytes, fault);
    *list = (struct token_list){.ids = ids, .memory_bytes = bytes};
    for (u32 i = json_first(node); i != json_end(json, node); i = json_next(json, i)) {
        u64 id = 0;
        if (json_u64(json, i, &id) && id < TOKEN_NONE) {
            ids[list->n++] = (u32)id;
            continue;
        }
        token_list_free(list);
        return wrong("tokens", "a token id", json, i, fault);
    }
    return SOV_OK;
}

static enum sov_status read_role(const struct json *json, u32 node, enum chat_role *role,
                                 struct sov_fault *fault) {
    static const struct {
        const char *name;
        enum chat_role role;
    } roles[] = {{"system", CHAT_SYSTEM},
                 {"developer", CHAT_SYSTEM},
                 {"user", CHAT_USER},
                 {"assistant", CHAT_ASSISTANT}};
    if (node == JSON_NONE) return fault_set(fault, SOV_ERR_ARGUMENT, "a message without a role");
    for (u32 i = 0; i < COUNT_OF(roles); i++) {
        if (!json_string_equal(json, node, str_from_z(roles[i].name))) continue;
        *role = roles[i].role;
        return SOV_OK;
    }
    return fault_set(fault, SOV_ERR_ARGUMENT, "role: system, user or assistant was expected");
}

// A string, or an array of {"type": "text", "text": ...}, whose texts are joined.
static enum sov_status read_content(const struct json *json, u32 node, u8 *out, usize *len,
                                    struct sov_fault *fault) {
    *len = 0;
    if (node == JSON_NONE) return fault_set(fault, SOV_ERR_ARGUMENT, "a message without content");
    if (json->nodes[node].kind == JSON_STRING) {
        *len = json_string_copy(json, node, out);
        return SOV_OK;
    }
    if (json->nodes[node].kind != JSON_ARRAY) {
        return wrong("content", "a string", json, node, fault);
    }
    for (u32 i = json_first(node); i != json_end(json, node); i = json_next(json, i)) {
        bool is_object = json->nodes[i].kind == JSON_OBJECT;
        u32 type = is_object ? member(json, i, STR("type")) : JSON_NONE;
        u32 text = is_object ? member(json, i, STR("text")) : JSON_NONE;
        bool is_text = type != JSON_NONE && json_string_equal(json, type, STR("text")) &&
                       text != JSON_NONE && json->nodes[text].kind == JSON_STRING;
        if (!is_text) {
            return fault_set(fault, SOV_ERR_ARGUMENT,
                             "content: {\"type\": \"text\", \"text\": ...} was expected");
        }
        *len += json_string_copy(json, text, out + *len);
    }
    return SOV_OK;
}

// The messages and, where they have none, the template's own system message.
static enum sov_status read_messages(const struct batch_prompts *prompts, const struct json *json,
                                     u32 node, struct chat_message *messages, u32 *n, u8 *text,
                                     struct sov_fault *fault) {
    struct str system = prompt_system(&prompts->template, NULL);
    *n = 0;
    for (u32 i = json_first(node); i != json_end(json, node); i = json_next(json, i)) {
        if (json->nodes[i].kind != JSON_OBJECT) {
            return wrong("messages", "an object", json, i, fault);
        }
        struct chat_message message = {0};
        usize len = 0;
        enum sov_status status =
            read_role(json, member(json, i, STR("role")), &message.role, fault);
        if (status == SOV_OK) {
            status = read_content(json, member(json, i, STR("content")), text, &len, fault);
        }
        if (status != SOV_OK) return status;
        message.content = (struct str){text, len};
        text += len;
        if (*n == 0 && message.role != CHAT_SYSTEM && system.len > 0) {
            messages[(*n)++] = (struct chat_message){.role = CHAT_SYSTEM, .content = system};
        }
        messages[(*n)++] = message;
    }
    if (*n == 0) return fault_set(fault, SOV_ERR_ARGUMENT, "messages: there is none");
    return SOV_OK;
}

static enum sov_status encode_messages(const struct batch_prompts *prompts, const struct json *json,
                                       u32 node, struct token_list *list, struct sov_fault *fault) {
    if (prompts->template_status != SOV_OK) {
        return fault_set(fault, prompts->template_status, "%s", prompts->template_fault.message);
    }
    u64 messages_bytes = ((u64)json->nodes[node].n + 1) * sizeof(struct chat_message);
    u64 bytes = messages_bytes + json->nodes[node].len;
    u8 *memory = platform_memory_map(bytes);
    if (memory == NULL) return no_memory(bytes, fault);
    struct chat_message *messages = (struct chat_message *)(void *)memory;
    u32 n = 0;
    enum sov_status status =
        read_messages(prompts, json, node, messages, &n, memory + messages_bytes, fault);
    if (status == SOV_OK) {
        status = prompt_encode(prompts->vocabulary, &prompts->template, messages, n, list, fault);
    }
    platform_memory_unmap(memory, bytes);
    return status;
}

enum sov_status batch_encode(const struct batch_prompts *prompts, const struct json *json,
                             const struct batch_request *request, struct token_list *list,
                             u32 *end_token, struct sov_fault *fault) {
    *list = (struct token_list){0};
    *end_token = TOKEN_NONE;
    if (request->prompt != JSON_NONE) {
        return encode_text(prompts, json, request->prompt, list, fault);
    }
    if (request->tokens != JSON_NONE) return copy_tokens(json, request->tokens, list, fault);
    *end_token = prompts->end_token;
    return encode_messages(prompts, json, request->messages, list, fault);
}
