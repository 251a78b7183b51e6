// SPDX-License-Identifier: Apache-2.0
// libFuzzer harness of everything that reads a model file before its weights are used: gguf_parse,
// model_parse, and then every key, string, tensor and view touched to its last byte, both rope
// tables and the operator list. The bytes are handed over in a mapping of exactly their size,
// poisoned behind. `make fuzz` builds and runs it; tools/fuzz.py makes the corpus it starts from:
// tiny models of every architecture, several tensor types and both kinds of tokenizer.
#include "freestanding/arena.h"
#include "freestanding/mem.h"
#include "model/graph.h"
#include "platform/platform.h"

int LLVMFuzzerTestOneInput(const u8 *data, usize bytes);

// Reached by hosted.c's main only, which never runs here.
int program_main(const struct platform_start *start) {
    (void)start;
    return 1;
}

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
        gguf_close(&gguf);
    }
    struct model model;
    fault = (struct sov_fault){0};
    if (model_parse(&model, copy, bytes, &fault) == SOV_OK) {
        touch_model(&model);
        touch_plan(&model);
    }
    assert(fault.status == SOV_OK || status_exit_code(fault.status) == 3);
    model_close(&model);
    assert(platform_memory_mapped() == mapped);
    platform_memory_unmap(copy, MAX(bytes, 1u));
    return 0;
}
