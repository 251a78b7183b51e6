// SPDX-License-Identifier: Apache-2.0
// libFuzzer harness of a model file, from its bytes to tokens:
//
//   gguf_parse       every key, string and tensor touched to its last byte; then the same file, cut
//                    at some places
//   vocabulary_open  as for `sov tokenize`, which takes any architecture; the text of every token
//   model_parse      every view touched, both rope tables, the operator list
//   engine           what was accepted runs: logits by the reference and by the best kernels, in
//                    one chunk and token by token, must be the same bits or all be refused; then
//                    engine_step, token by token, to the end of a tiny context: each token drawn
//                    and its probabilities are what the logits of one chunk say
//
// The bytes are handed over in a mapping of exactly their size, poisoned behind. Sizes need no
// bound of their own: weights lie in the file, and the context is a few tokens. `make fuzz`
// builds and runs it; tools/fuzz.py makes the corpus it starts from: tiny models of every
// architecture and type of tensor, with both kinds of tokenizer.
#include "engine/engine.h"
#include "freestanding/mem.h"
#include "model/graph.h"
#include "platform/platform.h"
#include "sample/sampler.h"

#define PROMPT_MAX 9 // tokens; more than any kernel computes together
#define PROMPT_SHORT 3
#define N_NEW 2
#define N_TOP 3 // most probable tokens compared at each new one
#define CUTS 3

int LLVMFuzzerTestOneInput(const u8 *data, usize bytes);

// A sum that the compiler must compute, so that the bytes are really read.
static volatile u32 touched;

static void touch(const u8 *bytes, u64 n) {
    if (n == 0) return;
    touched = touched + bytes[0] + bytes[n / 2] + bytes[n - 1];
}

static void touch_key(const struct gguf *gguf, const struct gguf_key *key) {
    assert(gguf_find_key(gguf, key->name) == key);
    touch(key->name.data, key->name.len);
    const u8 *at = key->value;
    for (u64 i = 0; i < key->count; i++) {
        f64 value = 0;
        if (key->element == GGUF_STRING) {
            u64 len = load_u64(at);
            touch(at + 8, len);
            at += 8 + len;
        } else {
            bool is_number = gguf_element_f64(key, i, &value);
            assert(is_number);
        }
    }
    // Typed reads: any answer but a crash.
    u32 whole = 0;
    f32 number = 0;
    bool flag = false;
    struct str text = {0};
    const struct gguf_key *array = NULL;
    struct sov_fault fault = {0};
    if (gguf_get_u32(gguf, key->name, true, &whole, &fault) == SOV_OK) touched = touched + whole;
    if (gguf_get_f32(gguf, key->name, true, &number, &fault) == SOV_OK) touched = touched + 1;
    if (gguf_get_bool(gguf, key->name, true, &flag, &fault) == SOV_OK) touched = touched + flag;
    if (gguf_get_string(gguf, key->name, true, &text, &fault) == SOV_OK) touch(text.data, text.len);
    if (gguf_get_array(gguf, key->name, GGUF_STRING, true, &array, &fault) == SOV_OK) {
        assert(array == key);
    }
}

static void touch_tensor(const struct gguf *gguf, const struct gguf_tensor *tensor) {
    assert(gguf_find_tensor(gguf, tensor->name) == tensor);
    touch(tensor->name.data, tensor->name.len);
    touch(tensor->data, tensor->bytes);
    assert(tensor->bytes == tensor->row_bytes * tensor->n_rows);
    assert(tensor->row_bytes == dtype_row_bytes(tensor->type, tensor->dims[0]));
}

static void touch_weight(const struct weight *weight) {
    if (weight->data == NULL) return;
    touch(weight->data, weight->row_bytes * weight->rows);
    static f32 row[MODEL_WIDTH_MAX];
    dtype_dequantise(weight->type, weight->data + (weight->rows - 1) * weight->row_bytes, weight->k,
                     row);
}

static void touch_model(const struct model *model) {
    touch_weight(&model->token_embd);
    touch_weight(&model->output_norm);
    touch_weight(&model->output);
    touch_weight(&model->rope_freqs);
    for (u32 i = 0; i < model->params.n_layer; i++) {
        const struct layer_weights *w = &model->layers[i];
        const struct weight *const all[] = {
            &w->attn_norm,        &w->attn_q,      &w->attn_k,      &w->attn_v,
            &w->attn_output,      &w->ffn_norm,    &w->ffn_gate,    &w->ffn_up,
            &w->ffn_down,         &w->attn_q_bias, &w->attn_k_bias, &w->attn_v_bias,
            &w->attn_output_bias, &w->attn_q_norm, &w->attn_k_norm, &w->attn_post_norm,
            &w->ffn_post_norm,
        };
        for (u32 j = 0; j < COUNT_OF(all); j++) touch_weight(all[j]);
    }
    static f32 table[4 * 512];
    for (u32 local = 0; local <= 1; local++) {
        model_rope_table(model, local == 1, 4, table);
        for (u32 i = 0; i < 4 * model->params.rope_dim; i++) {
            assert(table[i] >= -1 && table[i] <= 1); // not NaN: W3
        }
    }
}

// Every operator has a name, and what it multiplies with has the width of what it reads.
static void touch_plan(const struct model *model) {
    u64 bytes = plan_memory_bytes(model);
    void *memory = platform_memory_map(bytes);
    assert(memory != NULL);
    struct arena arena = arena_over(memory, bytes);
    struct plan plan;
    struct sov_fault fault = {0};
    enum sov_status status = plan_create(model, &arena, &plan, &fault);
    assert(status == SOV_OK);
    for (u32 i = 0; i < plan.n_ops; i++) {
        const struct plan_op *op = &plan.ops[i];
        assert(op->name != NULL && plan_op_kind_name(op->kind) != NULL);
        bool is_gemm = op->kind == PLAN_GEMM || op->kind == PLAN_GEMM_ADD;
        assert(!is_gemm || plan.buffers[op->src].width == op->weight->k);
        assert(op->bias == NULL || op->bias->k == op->weight->rows);
    }
    platform_memory_unmap(memory, bytes);
}

// --- the vocabulary ---

// True when the vocabulary was accepted; it is open then.
static bool try_vocabulary(const struct gguf *gguf, struct vocabulary *vocabulary) {
    struct sov_fault fault = {0};
    if (vocabulary_open(vocabulary, gguf, &fault) != SOV_OK) {
        assert(status_exit_code(fault.status) == 3 && fault.message[0] != 0);
        return false;
    }
    const struct tokenizer *tokenizer = vocabulary->tokenizer;
    usize longest = tokenizer_piece_bytes_max(tokenizer);
    u8 *piece = platform_memory_map(longest);
    assert(piece != NULL);
    for (u32 id = 0; id < tokenizer_n_tokens(tokenizer); id++) {
        usize len = tokenizer_decode(tokenizer, id, true, (id & 1) != 0, piece, longest);
        assert(len <= longest);
        touch(piece, len);
    }
    platform_memory_unmap(piece, longest);
    struct token_list list;
    if (vocabulary_encode(vocabulary, STR(" the <s> \xff\n12"), TOKENIZE_BOS_EOS | TOKENIZE_SPECIAL,
                          &list, &fault) == SOV_OK) {
        for (usize i = 0; i < list.n; i++) assert(list.ids[i] < tokenizer_n_tokens(tokenizer));
        token_list_free(&list);
    }
    touch(vocabulary->chat_template.data, vocabulary->chat_template.len);
    return true;
}

// --- the engine ---

struct rows {
    f32 *values; // [n_prompt][n_vocab]
    u32 n, n_prompt;
};

static enum sov_status take_row(void *context, u32 position, const f32 *logits, u32 n_vocab,
                                struct sov_fault *fault) {
    (void)fault;
    struct rows *rows = context;
    assert(position < rows->n_prompt);
    memcpy(rows->values + (u64)position * n_vocab, logits, n_vocab * sizeof(f32));
    rows->n++;
    return SOV_OK;
}

static struct engine *open_engine(const struct model *model, enum cpu_level level, u32 chunk,
                                  u32 n_prompt) {
    struct engine_config config = {.context = n_prompt + N_NEW,
                                   .n_threads = 1,
                                   .prefill_chunk = chunk,
                                   .logit_rows = chunk,
                                   .level = level};
    struct engine *engine = NULL;
    struct sov_fault fault = {0};
    enum sov_status status = engine_config_resolve(&config, model, &fault);
    assert(status == SOV_OK);
    status = engine_open(model, &config, &engine, &fault);
    assert(status == SOV_OK); // nothing that was checked at load may be refused now
    return engine;
}

// What engine_step committed.
struct drawn {
    u32 tokens[N_NEW]; // [n]
    u32 n, n_top;
    f64 logprobs[N_NEW];                    // [n]
    struct token_logprob top[N_NEW][N_TOP]; // [n][n_top]
};

static void take_token(struct drawn *drawn, const struct engine_output *output, u32 n_vocab) {
    assert(output->event.sampled_token_id < n_vocab && output->n_top == drawn->n_top);
    assert(drawn->n < N_NEW);
    drawn->tokens[drawn->n] = output->event.sampled_token_id;
    drawn->logprobs[drawn->n] = output->logprob;
    for (u32 i = 0; i < drawn->n_top; i++) drawn->top[drawn->n][i] = output->top[i];
    drawn->n++;
}

// To the end of the context, or to the first refusal.
static void step(struct engine *engine, const u32 *prompt, u32 n_prompt, u32 n_vocab,
                 struct drawn *drawn) {
    struct engine_request request = {.tokens = prompt,
                                     .n_tokens = n_prompt,
                                     .ignore_end = true,
                                     .end_token = TOKEN_NONE,
                                     .n_logprobs = N_TOP,
                                     .sampling = sample_params_default()};
    struct sov_fault fault = {0};
    engine_sequence sequence = 0;
    enum sov_status status = engine_submit(engine, &request, &sequence, &fault);
    assert(status == SOV_OK);
    *drawn = (struct drawn){.n_top = MIN((u32)N_TOP, n_vocab)};
    u32 n_steps = 0;
    struct engine_report report = {.n_live = 1};
    while (report.n_live > 0) {
        struct engine_inputs inputs = {.power = POWER_ACTIVE};
        status = engine_step(engine, &inputs, &report, &fault);
        assert(status == SOV_OK && n_steps++ <= n_prompt + N_NEW);
        for (u32 i = 0; i < report.n_outputs; i++) {
            const struct engine_output *output = &report.outputs[i];
            if (output->event.type == EVENT_TOKEN) take_token(drawn, output, n_vocab);
            if (output->fault != NULL) status = output->fault->status;
        }
    }
    engine_assert_consistent(engine);
    assert(status == SOV_OK || status == SOV_ERR_NON_FINITE);
    assert(status != SOV_OK || drawn->n == N_NEW);
}

struct comparison {
    const struct drawn *drawn;
    u32 n_prompt, n; // rows seen
    struct sampler sampler;
};

// The row behind which a token was drawn: it must give the same token and probabilities.
static enum sov_status compare_row(void *context, u32 position, const f32 *logits, u32 n_vocab,
                                   struct sov_fault *fault) {
    struct comparison *c = context;
    const struct drawn *drawn = c->drawn;
    u32 at = position + 1 - c->n_prompt, token = 0;
    assert(at == c->n && at < drawn->n && n_vocab == c->sampler.n_vocab);
    struct sample_params params = sample_params_default(); // no penalty: the history is not read
    struct sample_draw draw = {.position = position + 1};
    enum sov_status status = sov_sample_token(&c->sampler, logits, &params, draw, &token, fault);
    assert(status == SOV_OK && token == drawn->tokens[at]);
    struct token_logprob own, top[N_TOP];
    u32 n_top = sample_logprobs(&c->sampler, logits, token, N_TOP, &own, top);
    assert(n_top == drawn->n_top && own.logprob == drawn->logprobs[at]);
    for (u32 i = 0; i < n_top; i++) {
        assert(top[i].token == drawn->top[at][i].token);
        assert(top[i].logprob == drawn->top[at][i].logprob);
    }
    c->n++;
    return SOV_OK;
}

// engine_step builds its batches itself, so engine_evaluate is a second opinion on them: on which
// token is computed at which position, and which row is sampled.
static void compare_drawn(struct engine *engine, const u32 *prompt, u32 n_prompt, u32 n_vocab,
                          const struct drawn *drawn) {
    if (drawn->n == 0) return;
    u32 tokens[PROMPT_MAX + N_NEW];
    memcpy(tokens, prompt, n_prompt * sizeof(u32));
    memcpy(tokens + n_prompt, drawn->tokens, drawn->n * sizeof(u32));
    u64 bytes = sampler_memory_bytes(n_vocab);
    void *memory = platform_memory_map(bytes);
    assert(memory != NULL);
    struct arena arena = arena_over(memory, bytes);
    struct comparison c = {.drawn = drawn, .n_prompt = n_prompt};
    struct sov_fault fault = {0};
    enum sov_status status = sampler_create(&c.sampler, n_vocab, &arena, &fault);
    assert(status == SOV_OK);
    status = engine_evaluate(engine, tokens, n_prompt + drawn->n - 1, n_prompt - 1, compare_row, &c,
                             &fault);
    assert(status == SOV_OK && c.n == drawn->n);
    platform_memory_unmap(memory, bytes);
}

// Logits three ways, compared; a few tokens one way, compared with the logits of another.
static void run_model(const struct model *model, u32 salt) {
    u32 n_vocab = model->params.n_vocab;
    u32 n_prompt = salt % 4 == 0 ? PROMPT_MAX : PROMPT_SHORT;
    u64 row_bytes = (u64)n_prompt * n_vocab * sizeof(f32);
    u32 prompt[PROMPT_MAX];
    for (u32 i = 0; i < n_prompt; i++) prompt[i] = (salt + 7 * i) % n_vocab;
    enum cpu_level best = MIN(cpu_level(), ENGINE_LEVEL_MAX);
    const struct {
        enum cpu_level level;
        u32 chunk;
    } ways[] = {{CPU_LEVEL_SCALAR, n_prompt}, {best, 1}, {best, n_prompt}};
    struct rows rows[COUNT_OF(ways)];
    enum sov_status statuses[COUNT_OF(ways)];
    struct drawn drawn;
    for (u32 i = 0; i < COUNT_OF(ways); i++) {
        rows[i] = (struct rows){.values = platform_memory_map(row_bytes), .n_prompt = n_prompt};
        assert(rows[i].values != NULL);
        struct engine *engine = open_engine(model, ways[i].level, ways[i].chunk, n_prompt);
        struct sov_fault fault = {0};
        statuses[i] = engine_evaluate(engine, prompt, n_prompt, 0, take_row, &rows[i], &fault);
        assert(statuses[i] == SOV_OK || statuses[i] == SOV_ERR_NON_FINITE);
        assert(statuses[i] != SOV_OK || rows[i].n == n_prompt);
        if (i == 1) step(engine, prompt, n_prompt, n_vocab, &drawn);
        if (i == 2) compare_drawn(engine, prompt, n_prompt, n_vocab, &drawn);
        engine_close(engine);
        assert(statuses[i] == statuses[0]);
        assert(statuses[i] != SOV_OK || memcmp(rows[i].values, rows[0].values, row_bytes) == 0);
    }
    for (u32 i = 0; i < COUNT_OF(ways); i++) platform_memory_unmap(rows[i].values, row_bytes);
}

// A sound file's beginnings, each in a mapping of its own: what they say must not be read behind
// their end. A cut inside the directory is refused.
static void try_cuts(const u8 *data, usize bytes, u64 directory_bytes) {
    u32 random = (u32)bytes;
    for (u32 i = 0; i < CUTS; i++) {
        random = random * 1664525 + 1013904223;
        usize n = 1 + (usize)((u64)random * (directory_bytes - 1) >> 32);
        u8 *copy = platform_memory_map(n);
        assert(copy != NULL);
        memcpy(copy, data, n);
        struct gguf gguf;
        struct sov_fault fault = {0};
        enum sov_status status = gguf_parse(&gguf, copy, n, &fault);
        assert(status != SOV_OK && status_exit_code(status) == 3);
        platform_memory_unmap(copy, n);
    }
}

static void try_model(const u8 *data, usize bytes) {
    struct model model;
    struct sov_fault fault = {0};
    if (model_parse(&model, data, bytes, &fault) == SOV_OK) {
        touch_model(&model);
        touch_plan(&model);
        struct vocabulary vocabulary;
        if (try_vocabulary(&model.gguf, &vocabulary)) {
            assert(tokenizer_n_tokens(vocabulary.tokenizer) == model.params.n_vocab);
            run_model(&model, (u32)bytes + data[bytes - 1]);
            vocabulary_close(&vocabulary);
        }
    }
    assert(fault.status == SOV_OK || status_exit_code(fault.status) == 3);
    model_close(&model);
}

int LLVMFuzzerTestOneInput(const u8 *data, usize bytes) {
    u8 *copy = platform_memory_map(MAX(bytes, 1u));
    assert(copy != NULL);
    memcpy(copy, data, bytes);
    u64 mapped = platform_memory_mapped();
    struct gguf gguf;
    struct sov_fault fault = {0};
    enum sov_status status = gguf_parse(&gguf, copy, bytes, &fault);
    assert(fault.status == status && (fault.message[0] != 0) == (status != SOV_OK));
    if (status == SOV_OK) {
        for (u32 i = 0; i < gguf.n_keys; i++) touch_key(&gguf, &gguf.keys[i]);
        for (u32 i = 0; i < gguf.n_tensors; i++) touch_tensor(&gguf, &gguf.tensors[i]);
        struct vocabulary vocabulary;
        if (try_vocabulary(&gguf, &vocabulary)) vocabulary_close(&vocabulary);
        u64 directory_bytes = 24; // the header, and up to the last description
        if (gguf.n_keys > 0) directory_bytes = gguf.keys[gguf.n_keys - 1].offset;
        if (gguf.n_tensors > 0) directory_bytes = gguf.tensors[gguf.n_tensors - 1].offset;
        gguf_close(&gguf);
        try_cuts(copy, bytes, directory_bytes);
    }
    if (bytes > 0) try_model(copy, bytes);
    assert(platform_memory_mapped() == mapped);
    platform_memory_unmap(copy, MAX(bytes, 1u));
    return 0;
}
