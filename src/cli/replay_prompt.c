// SPDX-License-Identifier: Apache-2.0
// Whether the text that a request has beside its tokens is what the tokens say. Replay computes
// from the tokens alone; the text is what a reader of the record sees.
//
//   batch      the line is read again: its parameters must be the recorded ones, and its prompt,
//              encoded again, the tokens. The name of a template (--template) is not recorded: the
//              file's own and every known family are tried.
//   run, chat  the text is encoded again in each way that there is: as plain text, with special
//              tokens, as a user's message of each template. A system message (--system) and
//              earlier messages of a conversation are not in this request's text. Where they are
//              not what the template has, only the end of the prompt is compared, from the last
//              place that does not depend on them.
//
// P1. Nothing is reported of what was honestly recorded by this program with this model.
// P2. No text (of --tokens, or of an empty prompt) says nothing, and is not compared.
#include "cli/batch.h"
#include "cli/replay.h"
#include "freestanding/mem.h"

#define NAMES_BYTES 1024
#define MARK 0xff // no byte of UTF-8 text
#define MARKED_BYTES 6

struct prompt_check {
    const struct vocabulary *vocabulary;
    const struct store_request *request;
    struct batch_prompts prompts; // of the template that is tried
    struct batch_request line;
    char names[NAMES_BYTES]; // of all templates
    usize names_len, names_at;
};

// --- templates ---

static void begin_templates(struct prompt_check *c) {
    struct text names = TEXT_OVER_ARRAY(c->names);
    chat_family_names(&names);
    assert(!names.truncated);
    c->names_len = names.len;
    c->names_at = 0;
    batch_prompts_init(&c->prompts, c->vocabulary, NULL);
}

// The next of the families in c->prompts. False: there are no more.
static bool next_template(struct prompt_check *c) {
    if (c->names_at >= c->names_len) return false;
    usize end = c->names_at;
    while (end < c->names_len && c->names[end] != ',') end++;
    c->names[end] = 0; // (or where the text's own zero stands)
    batch_prompts_init(&c->prompts, c->vocabulary, c->names + c->names_at);
    assert(c->prompts.template_status == SOV_OK);
    c->names_at = end + 2; // ", "
    return true;
}

// Whether a failure says only that the prompt was not made in this way.
static bool is_no_match(enum sov_status status) { return status != SOV_ERR_MEMORY; }

// --- token by token ---

static bool same_tokens(const struct prompt_check *c, const struct token_list *list,
                        u32 end_token) {
    const struct payload_request *said = &c->request->said;
    return list->n == payload_count(said->tokens) && end_token == said->end_token &&
           memcmp(list->ids, c->request->tokens, list->n * sizeof(u32)) == 0;
}

// Compares and frees.
static enum sov_status take_list(const struct prompt_check *c, enum sov_status status,
                                 struct token_list *list, u32 end_token, bool *is_same,
                                 struct sov_fault *fault) {
    if (status == SOV_OK) {
        *is_same = same_tokens(c, list, end_token);
        token_list_free(list);
    } else if (is_no_match(status)) {
        *fault = (struct sov_fault){0};
        status = SOV_OK;
    }
    return status;
}

static enum sov_status try_plain(const struct prompt_check *c, u32 flags, bool *is_same,
                                 struct sov_fault *fault) {
    struct token_list list = {0};
    enum sov_status status =
        vocabulary_encode(c->vocabulary, c->request->said.prompt, flags, &list, fault);
    return take_list(c, status, &list, TOKEN_NONE, is_same, fault);
}

static enum sov_status try_messages(const struct prompt_check *c,
                                    const struct chat_message *messages, u32 n, bool *is_same,
                                    struct sov_fault *fault) {
    struct token_list list = {0};
    enum sov_status status =
        prompt_encode(c->vocabulary, &c->prompts.template, messages, n, &list, fault);
    return take_list(c, status, &list, c->prompts.end_token, is_same, fault);
}

// --- the end of a prompt ---

struct marked { // a text with its special tokens
    u8 *bytes;
    usize len, capacity;
};

static void marked_free(struct marked *m) {
    if (m->bytes != NULL) platform_memory_unmap(m->bytes, m->capacity);
    *m = (struct marked){0};
}

// The text of tokens; of one without a text, its number between marks: what looks like a special
// token in a text is not taken for one.
static enum sov_status mark(const struct tokenizer *tokenizer, const u32 *ids, usize n,
                            struct marked *m, struct sov_fault *fault) {
    usize most = MAX(tokenizer_piece_bytes_max(tokenizer), (usize)MARKED_BYTES);
    *m = (struct marked){.capacity = MAX(n * most, (usize)1)};
    m->bytes = platform_memory_map(m->capacity);
    if (m->bytes == NULL) {
        return fault_set(fault, SOV_ERR_MEMORY, "a prompt of %llu tokens: no memory", (u64)n);
    }
    for (usize i = 0; i < n; i++) {
        u8 *at = m->bytes + m->len;
        usize len = tokenizer_decode(tokenizer, ids[i], false, false, at, most);
        if (len == 0) {
            at[0] = at[MARKED_BYTES - 1] = MARK;
            store_u32(at + 1, ids[i]);
            len = MARKED_BYTES;
        }
        m->len += len;
    }
    return SOV_OK;
}

static enum sov_status mark_messages(const struct prompt_check *c,
                                     const struct chat_message *messages, u32 n, struct marked *m,
                                     struct sov_fault *fault) {
    struct token_list list = {0};
    enum sov_status status =
        prompt_encode(c->vocabulary, &c->prompts.template, messages, n, &list, fault);
    if (status != SOV_OK) return status;
    status = mark(c->vocabulary->tokenizer, list.ids, list.n, m, fault);
    token_list_free(&list);
    return status;
}

static usize common_end(const struct marked *a, const struct marked *b) {
    usize n = 0, most = MIN(a->len, b->len);
    while (n < most && a->bytes[a->len - 1 - n] == b->bytes[b->len - 1 - n]) n++;
    return n;
}

// What may stand in front of a message: two conversations that end alike, as a template shows.
struct before {
    u32 n_messages;
    struct chat_message messages[3];
};
#define TEXT(literal) \
    { (const u8 *)(literal), sizeof(literal) - 1 }
#define SYSTEM(literal) \
    { .role = CHAT_SYSTEM, .content = TEXT(literal) }
#define USER(literal) \
    { .role = CHAT_USER, .content = TEXT(literal) }
#define ASSISTANT(literal) \
    { .role = CHAT_ASSISTANT, .content = TEXT(literal) }
static const struct before befores[][2] = {
    {{1, {SYSTEM("(1)")}}, {1, {SYSTEM("[2]")}}},
    {{2, {USER("a"), ASSISTANT("(1)")}}, {2, {USER("b"), ASSISTANT("[2]")}}},
    {{3, {SYSTEM("(1)"), USER("a"), ASSISTANT("(1)")}},
     {3, {SYSTEM("[2]"), USER("b"), ASSISTANT("[2]")}}},
};
#define BEFORES_OF_RUN 1 // the first so many; a conversation may have all

static enum sov_status mark_behind(const struct prompt_check *c, const struct before *before,
                                   struct str text, struct marked *m, struct sov_fault *fault) {
    struct chat_message messages[COUNT_OF(before->messages) + 1];
    memcpy(messages, before->messages, sizeof before->messages);
    messages[before->n_messages] = (struct chat_message){.role = CHAT_USER, .content = text};
    return mark_messages(c, messages, before->n_messages + 1, m, fault);
}

// Whether the recorded tokens, as `m`, end with the message as it stands behind others. Where a
// template puts the others behind it, that tells nothing: an empty message in its place shows it.
static enum sov_status try_end(const struct prompt_check *c, const struct before pair[2],
                               const struct marked *m, bool *is_same, struct sov_fault *fault) {
    struct str text = c->request->said.prompt;
    struct marked made[3] = {{0}};
    struct sov_fault inner = {0};
    enum sov_status status = mark_behind(c, &pair[0], text, &made[0], &inner);
    if (status == SOV_OK) status = mark_behind(c, &pair[1], text, &made[1], &inner);
    if (status == SOV_OK) status = mark_behind(c, &pair[0], STR(""), &made[2], &inner);
    if (status == SOV_OK) {
        usize n = common_end(&made[0], &made[1]), behind = common_end(&made[0], &made[2]);
        *is_same = n >= behind && m->len >= n &&
                   memcmp(m->bytes + m->len - n, made[0].bytes + made[0].len - n, n) == 0;
    }
    for (u32 i = 0; i < COUNT_OF(made); i++) marked_free(&made[i]);
    if (status == SOV_OK || is_no_match(status)) return SOV_OK;
    return fault_set(fault, status, "%s", inner.message);
}

// --- a message ---

// As a user's message of the template in c->prompts.
static enum sov_status try_template(const struct prompt_check *c, const struct marked *recorded,
                                    bool *is_same, struct sov_fault *fault) {
    const struct payload_request *said = &c->request->said;
    if (c->prompts.template_status != SOV_OK || c->prompts.end_token != said->end_token) {
        return SOV_OK;
    }
    struct str system = prompt_system(&c->prompts.template, NULL);
    struct chat_message messages[2] = {{.role = CHAT_SYSTEM, .content = system},
                                       {.role = CHAT_USER, .content = said->prompt}};
    enum sov_status status = try_messages(c, messages + 1, 1, is_same, fault);
    if (status == SOV_OK && !*is_same && system.len > 0) {
        status = try_messages(c, messages, 2, is_same, fault);
    }
    u32 n = said->command == PAYLOAD_RUN ? BEFORES_OF_RUN : (u32)COUNT_OF(befores);
    for (u32 i = 0; i < n && status == SOV_OK && !*is_same; i++) {
        status = try_end(c, befores[i], recorded, is_same, fault);
    }
    return status;
}

static enum sov_status check_text(struct prompt_check *c, bool *is_same, struct sov_fault *fault) {
    const struct payload_request *said = &c->request->said;
    enum sov_status status = SOV_OK;
    *is_same = said->prompt.len == 0; // P2
    if (!*is_same && said->command == PAYLOAD_RUN) {
        status = try_plain(c, TOKENIZE_BOS_EOS, is_same, fault);
        if (status == SOV_OK && !*is_same) {
            status = try_plain(c, TOKENIZE_BOS_EOS | TOKENIZE_SPECIAL, is_same, fault);
        }
    }
    if (status != SOV_OK || *is_same) return status;
    struct marked recorded = {0};
    status = mark(c->vocabulary->tokenizer, c->request->tokens, payload_count(said->tokens),
                  &recorded, fault);
    begin_templates(c);
    do {
        if (status == SOV_OK) status = try_template(c, &recorded, is_same, fault);
    } while (status == SOV_OK && !*is_same && next_template(c));
    marked_free(&recorded);
    return status;
}

// --- a line ---

static bool same_f32(f32 a, f32 b) { return f32_bits(a) == f32_bits(b); }

// Whether the line asks for what was recorded.
static bool same_parameters(const struct batch_request *r, const struct payload_request *said) {
    const struct sample_params *a = &r->sampling;
    const struct payload_sampling *b = &said->sampling;
    bool same = batch_sequence_id(&r->id) == said->sequence_id &&
                r->max_tokens == said->n_new_max && r->ignore_end == said->ignore_end &&
                r->wants_logprobs == said->wants_logprob && r->n_logprobs == said->n_logprobs &&
                same_f32(a->repeat_penalty, b->repeat_penalty) &&
                same_f32(a->frequency_penalty, b->frequency_penalty) &&
                same_f32(a->presence_penalty, b->presence_penalty) &&
                same_f32(a->temperature, b->temperature) && same_f32(a->top_p, b->top_p) &&
                same_f32(a->min_p, b->min_p) && a->penalty_window == b->penalty_window &&
                a->top_k == b->top_k && a->seed == b->seed && r->n_stops == said->n_stops;
    struct str biases = {(const u8 *)r->biases, a->n_biases * sizeof *r->biases};
    for (u32 i = 0; i < r->n_stops && same; i++) {
        same = str_equal((struct str){r->stops[i], r->stop_lens[i]}, said->stops[i]);
    }
    return same && str_equal(biases, b->biases);
}

static enum sov_status check_line(struct prompt_check *c, struct json_node *nodes, u32 n_nodes,
                                  bool *is_same, struct sov_fault *fault) {
    const struct payload_request *said = &c->request->said;
    struct sov_fault inner = {0};
    struct json json;
    *is_same = false;
    enum sov_status status = json_parse(&json, said->line, nodes, n_nodes, &inner);
    if (status == SOV_OK) status = batch_request_parse(&json, &c->line, &inner);
    if (status != SOV_OK || !same_parameters(&c->line, said)) return SOV_OK; // no such request
    begin_templates(c);
    do {
        struct token_list list = {0};
        u32 end_token = TOKEN_NONE;
        inner = (struct sov_fault){0};
        status = batch_encode(&c->prompts, &json, &c->line, &list, &end_token, &inner);
        status = take_list(c, status, &list, end_token, is_same, &inner);
        if (status != SOV_OK) return fault_set(fault, status, "%s", inner.message);
    } while (!*is_same && c->line.messages != JSON_NONE && next_template(c));
    return SOV_OK;
}

static enum sov_status check_batch(struct prompt_check *c, bool *is_same, struct sov_fault *fault) {
    u32 n_nodes = json_nodes_max(c->request->said.line.len);
    u64 bytes = MAX((u64)n_nodes, 1ull) * sizeof(struct json_node);
    struct json_node *nodes = platform_memory_map((usize)bytes);
    if (nodes == NULL) {
        return fault_set(fault, SOV_ERR_MEMORY, "a line of %llu bytes: no memory",
                         (u64)c->request->said.line.len);
    }
    enum sov_status status = check_line(c, nodes, n_nodes, is_same, fault);
    platform_memory_unmap(nodes, (usize)bytes);
    return status;
}

enum sov_status replay_check_prompt(const struct vocabulary *vocabulary,
                                    const struct store_request *request, bool *is_same,
                                    struct sov_fault *fault) {
    struct prompt_check *c = platform_memory_map(sizeof *c);
    if (c == NULL) return fault_set(fault, SOV_ERR_MEMORY, "a prompt: no memory");
    c->vocabulary = vocabulary;
    c->request = request;
    enum sov_status status = request->said.command == PAYLOAD_BATCH ? check_batch(c, is_same, fault)
                                                                    : check_text(c, is_same, fault);
    platform_memory_unmap(c, sizeof *c);
    return status;
}
