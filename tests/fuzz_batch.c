// SPDX-License-Identifier: Apache-2.0
// libFuzzer harness of the lines of a batch: a line that is JSON becomes a request or is refused
// with a message; what is accepted has one prompt that can be encoded, and sampling parameters in
// their range. The line that comes out, an error or an answer, is read by the strict parser again
// and carries the id that went in.
//
//   input: one byte of flags (1: a vocabulary with a chat template), then the line
#include "cli/batch.h"
#include "freestanding/mem.h"
#include "vocab_builder.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const u8 *data, usize bytes);

static struct {
    struct batch_prompts prompts[2];
    struct vocabulary vocabularies[2];
    struct batch_request request;
    struct output out;
    bool is_ready;
} world;

static void build_vocabulary(struct vocabulary *vocabulary, bool has_template) {
    static struct vocab v;
    vocab_start(&v, "gpt2", "llama-bpe");
    vocab_add_letters(&v);
    v.source.bos = vocab_add_z(&v, "<s>", TOKEN_CONTROL, 0);
    v.source.eos = vocab_add_z(&v, "</s>", TOKEN_CONTROL, 0);
    vocab_add_z(&v, "<|im_start|>", TOKEN_CONTROL, 0);
    vocab_add_z(&v, "<|im_end|>", TOKEN_CONTROL, 0);
    u64 bytes = tokenizer_memory_bytes(&v.source);
    void *memory = malloc(bytes);
    assert(memory != NULL);
    struct arena arena = arena_over(memory, bytes);
    struct sov_fault fault = {0};
    enum sov_status status = tokenizer_create(&v.source, &arena, &vocabulary->tokenizer, &fault);
    assert(status == SOV_OK);
    if (!has_template) return;
    vocabulary->chat_template =
        STR("{% for m in messages %}{{'<|im_start|>' + m['role'] + '\n' + m['content'] + "
            "'<|im_end|>' + '\n'}}{% endfor %}");
}

static void build(void) {
    for (u32 i = 0; i < 2; i++) {
        build_vocabulary(&world.vocabularies[i], i == 1);
        batch_prompts_init(&world.prompts[i], &world.vocabularies[i], NULL);
        assert((world.prompts[i].template_status == SOV_OK) == (i == 1));
    }
    world.is_ready = true;
}

// What was put out is one line of JSON; its id is the request's.
static void check_line(void) {
    static struct json_node nodes[1 << 15];
    struct str line = {(const u8 *)world.out.text.data, world.out.text.len};
    if (world.out.status != SOV_OK || line.len == 0) return; // more than the buffer: written off
    assert(line.data[line.len - 1] == '\n');
    struct json json;
    struct sov_fault fault = {0};
    enum sov_status status = json_parse(&json, line, nodes, COUNT_OF(nodes), &fault);
    assert(status == SOV_OK);
    const struct batch_request *r = &world.request;
    u32 id = json_member(&json, 0, r->shape == BATCH_NATIVE ? STR("id") : STR("custom_id"));
    assert(id != JSON_NONE);
    struct str wanted = {r->id.bytes, r->id.len};
    if (!r->id.is_given) {
        assert(json.nodes[id].kind == JSON_NULL);
    } else if (r->id.is_number) {
        assert(json.nodes[id].kind == JSON_NUMBER && str_equal(json_source(&json, id), wanted));
    } else {
        assert(json_string_equal(&json, id, wanted));
    }
}

static void check_error(const struct sov_fault *fault) {
    output_init(&world.out, -1);
    batch_put_error(&world.out, &world.request, 7, fault);
    check_line();
}

// An answer of some tokens of the vocabulary, chosen by the length of the line.
static void check_result(const struct tokenizer *tokenizer, usize salt) {
    struct answer answer;
    struct sov_fault fault = {0};
    u32 n_top = world.request.n_logprobs;
    bool wants = world.request.wants_logprobs;
    enum sov_status status = answer_reserve(&answer, 4, wants, n_top, &fault);
    assert(status == SOV_OK);
    static struct token_logprob top[ENGINE_LOGPROBS_SHARED_MAX];
    u32 n_vocab = tokenizer_n_tokens(tokenizer);
    for (u32 i = 0; i < 4; i++) {
        for (u32 k = 0; k < n_top; k++) {
            top[k] = (struct token_logprob){(u32)(salt * 7 + i + k * 3) % n_vocab, -0.5 * k};
        }
        struct engine_output token = {.event.sampled_token_id = (u32)(salt * 31 + i * 5) % n_vocab,
                                      .logprob = -0.25 * i,
                                      .top = top,
                                      .n_top = n_top};
        answer_keep(&answer, &token);
    }
    struct str stops[STOP_STRINGS_MAX];
    for (u32 i = 0; i < world.request.n_stops; i++) {
        stops[i] = (struct str){world.request.stops[i], world.request.stop_lens[i]};
    }
    static struct stop_matcher stop;
    status = stop_init(&stop, stops, world.request.n_stops, &fault);
    assert(status == SOV_OK);
    struct batch_result result = {.request = &world.request,
                                  .answer = &answer,
                                  .stop = &stop,
                                  .tokenizer = tokenizer,
                                  .model_name = "m\"\xff",
                                  .finish = (enum finish_reason)(1 + salt % 4)};
    output_init(&world.out, -1);
    batch_put_result(&world.out, &result);
    check_line();
    answer_free(&answer);
}

static void check_request(const struct json *json, const struct batch_prompts *prompts) {
    const struct batch_request *r = &world.request;
    struct sov_fault fault = {0};
    enum sov_status status = sample_params_check(&r->sampling, &fault);
    assert(status == SOV_OK && r->id.is_given && r->id.len <= BATCH_ID_BYTES_MAX);
    assert((r->prompt != JSON_NONE) + (r->tokens != JSON_NONE) + (r->messages != JSON_NONE) == 1);
    assert(r->n_logprobs <= ENGINE_LOGPROBS_SHARED_MAX && r->max_tokens <= MODEL_CONTEXT_MAX);
    struct token_list list;
    u32 end_token = 77;
    status = batch_encode(prompts, json, r, &list, &end_token, &fault);
    assert(status == SOV_OK || fault.message[0] != 0);
    if (status == SOV_OK) {
        assert(end_token == TOKEN_NONE || r->messages != JSON_NONE);
        token_list_free(&list);
        check_result(prompts->vocabulary->tokenizer, json->text.len);
    } else {
        check_error(&fault);
    }
}

int LLVMFuzzerTestOneInput(const u8 *data, usize bytes) {
    if (!world.is_ready) build();
    if (bytes < 1) return 0;
    u8 *copy = malloc(bytes);
    u32 capacity = json_nodes_max(bytes - 1);
    struct json_node *nodes = malloc(capacity * sizeof *nodes);
    assert(copy != NULL && nodes != NULL);
    memcpy(copy + 1, data + 1, bytes - 1);
    u64 mapped = platform_memory_mapped();
    struct json json;
    struct sov_fault fault = {0};
    enum sov_status status =
        json_parse(&json, (struct str){copy + 1, bytes - 1}, nodes, capacity, &fault);
    if (status == SOV_OK) {
        status = batch_request_parse(&json, &world.request, &fault);
        if (status == SOV_OK) {
            check_request(&json, &world.prompts[data[0] & 1]);
        } else {
            assert(fault.message[0] != 0);
            check_error(&fault);
        }
    }
    assert(platform_memory_mapped() == mapped);
    free(nodes);
    free(copy);
    return 0;
}
