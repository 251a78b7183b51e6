// SPDX-License-Identifier: Apache-2.0
// sov inspect: what a model file holds, what running it takes, or why it is refused.
#include "cli/cli.h"

#define SHOWN_STRING_BYTES 72

struct inspect_options {
    struct model_options model;
    bool tensors, json;
};

static void put_number(struct output *out, const struct gguf_key *key) {
    const u8 *v = key->value;
    switch (key->type) {
    case GGUF_U8: output_format(out, "%u", (u32)v[0]); break;
    case GGUF_I8: output_format(out, "%d", (i32)(i8)v[0]); break;
    case GGUF_U16: output_format(out, "%u", (u32)load_u16(v)); break;
    case GGUF_I16: output_format(out, "%d", (i32)(i16)load_u16(v)); break;
    case GGUF_U32: output_format(out, "%u", load_u32(v)); break;
    case GGUF_I32: output_format(out, "%d", load_i32(v)); break;
    case GGUF_U64: output_format(out, "%llu", load_u64(v)); break;
    case GGUF_I64: output_format(out, "%lld", (i64)load_u64(v)); break;
    case GGUF_BOOL: output_format(out, "%s", v[0] != 0 ? "true" : "false"); break;
    case GGUF_F32:
    case GGUF_F64: {
        f64 value = key->type == GGUF_F32 ? (f64)load_f32(v) : load_f64(v);
        bool finite = (f64_bits(value) >> 52 & 0x7ff) != 0x7ff;
        if (finite) {
            output_format(out, "%.9g", value);
        } else {
            output_put(out, STR("null")); // JSON has no NaN
        }
        break;
    }
    default: assert(!"a scalar type"); break;
    }
}

static struct str key_string(const struct gguf_key *key) {
    return (struct str){key->value + sizeof(u64), (usize)load_u64(key->value)};
}

static void put_keys_text(struct output *out, const struct gguf *gguf) {
    output_format(out, "\nmetadata (%u keys)\n", gguf->n_keys);
    for (u32 i = 0; i < gguf->n_keys; i++) {
        const struct gguf_key *key = &gguf->keys[i];
        output_put(out, STR("  "));
        output_put_utf8(out, key->name);
        output_put(out, STR(" = "));
        if (key->type == GGUF_ARRAY) {
            output_format(out, "[%llu x %s]", key->count, gguf_type_name(key->element));
        } else if (key->type == GGUF_STRING) {
            struct str s = key_string(key);
            bool cut = s.len > SHOWN_STRING_BYTES;
            s.len = MIN(s.len, (usize)SHOWN_STRING_BYTES);
            output_json_string(out, s); // escaped: it may hold anything
            if (cut) output_put(out, STR("..."));
        } else {
            put_number(out, key);
        }
        output_put(out, STR("\n"));
    }
}

static void put_dims(struct output *out, const struct gguf_tensor *tensor, const char *separator) {
    for (u32 d = 0; d < tensor->n_dims; d++) {
        output_format(out, "%s%llu", d == 0 ? "" : separator, tensor->dims[d]);
    }
}

static void put_tensors_text(struct output *out, const struct gguf *gguf) {
    output_format(out, "\ntensors (%u)\n", gguf->n_tensors);
    for (u32 i = 0; i < gguf->n_tensors; i++) {
        const struct gguf_tensor *t = &gguf->tensors[i];
        output_format(out, "  %-6s %12llu bytes  ", dtype_name(t->type), t->bytes);
        output_put_utf8(out, t->name);
        output_put(out, STR(" ["));
        put_dims(out, t, " x ");
        output_put(out, STR("]\n"));
    }
}

struct type_total {
    u32 count;
    u64 bytes, elements;
};

static u64 total_types(const struct gguf *gguf, struct type_total totals[DTYPE_LIMIT]) {
    u64 elements = 0;
    for (u32 i = 0; i < DTYPE_LIMIT; i++) totals[i] = (struct type_total){0};
    for (u32 i = 0; i < gguf->n_tensors; i++) {
        const struct gguf_tensor *t = &gguf->tensors[i];
        totals[t->type].count++;
        totals[t->type].bytes += t->bytes;
        totals[t->type].elements += t->dims[0] * t->n_rows;
        elements += t->dims[0] * t->n_rows;
    }
    return elements;
}

static f64 mib(u64 bytes) { return (f64)bytes / 1048576.0; }

static void put_text(struct output *out, const struct session *session,
                     const struct inspect_options *o, const struct engine_memory *memory) {
    const struct model *model = &session->model;
    const struct gguf *gguf = &model->gguf;
    const struct model_params *p = &model->params;
    struct type_total totals[DTYPE_LIMIT];
    u64 elements = total_types(gguf, totals);
    output_put(out, STR("model        "));
    output_put_utf8(out, p->name.len > 0 ? p->name : STR("(no name)"));
    output_format(out, "\nfile         GGUF v%u, %.1f MiB, %u shard%s, alignment %u\n",
                  gguf->version, mib(gguf->file_bytes), gguf->n_shards,
                  gguf->n_shards == 1 ? "" : "s", gguf->alignment);
    output_format(out, "architecture %.*s, %llu parameters\n", STR_ARG(p->arch_name), elements);
    output_format(out, "shape        %u layers, n_embd %u, n_ff %u, %u heads, %u kv heads of %u\n",
                  p->n_layer, p->n_embd, p->n_ff, p->n_head, p->n_head_kv, p->head_dim);
    output_format(out, "rope         %u of %u dimensions, base %g, %s, scaling %g%s\n", p->rope_dim,
                  p->head_dim, (f64)p->rope_freq_base, p->rope_neox ? "halves" : "adjacent pairs",
                  (f64)p->rope_scaling_factor,
                  model->rope_freqs.data != NULL ? ", per-frequency factors" : "");
    output_format(out, "context      %u trained\n", p->context_train);
    output_format(out, "vocabulary   %u tokens\n", p->n_vocab);
    for (u32 type = 0; type < DTYPE_LIMIT; type++) {
        if (totals[type].count == 0) continue;
        output_format(out, "  %-10s %4u tensors, %.1f MiB\n", dtype_name(type), totals[type].count,
                      mib(totals[type].bytes));
    }
    const struct engine_config *engine = &o->model.engine;
    output_format(out, "memory       for a context of %u, %u threads, chunks of %u:\n",
                  engine->context, engine->n_threads, engine->prefill_chunk);
    output_format(out, "  %9.1f MiB weights, mapped from the file\n", mib(gguf->file_bytes));
    output_format(out, "  %9.1f MiB KV cache\n", mib(memory->kv));
    output_format(out, "  %9.1f MiB activations, rope table, worker scratch\n",
                  mib(memory->backend));
    output_format(out, "  %9.1f MiB directory and tokenizer\n",
                  mib(gguf->memory_bytes + session->vocabulary.memory_bytes));
    output_format(out, "  %9.1f MiB sampler, token history, plan, stacks\n",
                  mib(memory->sampler + memory->tokens + memory->plan + memory->stacks));
    put_keys_text(out, gguf);
    if (o->tensors) put_tensors_text(out, gguf);
}

static void put_keys_json(struct output *out, const struct gguf *gguf) {
    output_put(out, STR("\"metadata\":{"));
    for (u32 i = 0; i < gguf->n_keys; i++) {
        const struct gguf_key *key = &gguf->keys[i];
        if (i > 0) output_put(out, STR(","));
        output_json_string(out, key->name);
        output_put(out, STR(":"));
        if (key->type == GGUF_ARRAY) {
            output_format(out, "{\"array\":\"%s\",\"count\":%llu}", gguf_type_name(key->element),
                          key->count);
        } else if (key->type == GGUF_STRING) {
            output_json_string(out, key_string(key));
        } else {
            put_number(out, key);
        }
    }
    output_put(out, STR("}"));
}

static void put_tensors_json(struct output *out, const struct gguf *gguf) {
    output_put(out, STR(",\"tensors\":["));
    for (u32 i = 0; i < gguf->n_tensors; i++) {
        const struct gguf_tensor *t = &gguf->tensors[i];
        output_put(out, i > 0 ? STR(",{\"name\":") : STR("{\"name\":"));
        output_json_string(out, t->name);
        output_format(out, ",\"type\":\"%s\",\"dims\":[", dtype_name(t->type));
        put_dims(out, t, ",");
        output_format(out, "],\"bytes\":%llu,\"shard\":%u}", t->bytes, t->shard);
    }
    output_put(out, STR("]"));
}

static void put_json(struct output *out, const struct session *session,
                     const struct inspect_options *o, const struct engine_memory *memory) {
    const struct gguf *gguf = &session->model.gguf;
    const struct model_params *p = &session->model.params;
    struct type_total totals[DTYPE_LIMIT];
    u64 elements = total_types(gguf, totals);
    output_put(out, STR("{\"name\":"));
    output_json_string(out, p->name);
    output_put(out, STR(",\"architecture\":"));
    output_json_string(out, p->arch_name);
    output_format(out, ",\"version\":%u,\"alignment\":%u,\"shards\":%u,\"file_bytes\":%llu",
                  gguf->version, gguf->alignment, gguf->n_shards, gguf->file_bytes);
    output_format(out,
                  ",\"parameters\":%llu,\"n_layer\":%u,\"n_embd\":%u,\"n_ff\":%u,\"n_head\":%u,"
                  "\"n_head_kv\":%u,\"head_dim\":%u,\"n_vocab\":%u,\"rope_dim\":%u,"
                  "\"rope_freq_base\":%.9g,\"context_train\":%u",
                  elements, p->n_layer, p->n_embd, p->n_ff, p->n_head, p->n_head_kv, p->head_dim,
                  p->n_vocab, p->rope_dim, (f64)p->rope_freq_base, p->context_train);
    output_format(out,
                  ",\"memory\":{\"context\":%u,\"threads\":%u,\"weights_bytes\":%llu,"
                  "\"kv_bytes\":%llu,\"backend_bytes\":%llu,\"sampler_bytes\":%llu,"
                  "\"tokens_bytes\":%llu,\"plan_bytes\":%llu,\"stack_bytes\":%llu,"
                  "\"directory_bytes\":%llu,\"tokenizer_bytes\":%llu},",
                  o->model.engine.context, o->model.engine.n_threads, gguf->file_bytes, memory->kv,
                  memory->backend, memory->sampler, memory->tokens, memory->plan, memory->stacks,
                  gguf->memory_bytes, session->vocabulary.memory_bytes);
    put_keys_json(out, gguf);
    if (o->tensors) put_tensors_json(out, gguf);
    output_put(out, STR("}\n"));
}

int cli_inspect(const struct command *command, const struct platform_start *start) {
    struct inspect_options o = {0};
    const struct option options[] = {
        {OPTION_POSITIONAL, "MODEL", NULL, NULL, &o.model.model_path, NULL, 0, 0, "the GGUF file"},
        MODEL_OPTION(&o.model),
        {OPTION_FLAG, "--tensors", NULL, NULL, &o.tensors, NULL, 0, 0, "list the tensors"},
        {OPTION_FLAG, "--json", NULL, NULL, &o.json, NULL, 0, 0, "print one JSON object"},
        ENGINE_OPTIONS(&o.model),
    };
    int exit_code = 0;
    if (!cli_parse(command, start, options, COUNT_OF(options), &exit_code)) return exit_code;
    if (o.model.model_path == NULL) return cli_usage_error(command, "MODEL is missing");
    struct sov_fault fault = {0};
    struct session session;
    struct engine_memory memory;
    struct output out;
    output_init(&out, PLATFORM_STDOUT);
    enum sov_status status = session_open(&session, &o.model, SESSION_MODEL, &fault);
    if (status == SOV_OK) status = engine_config_resolve(&o.model.engine, &session.model, &fault);
    if (status == SOV_OK) {
        status = engine_memory_plan(&session.model, &o.model.engine, &memory, &fault);
    }
    if (status == SOV_OK) {
        if (o.json) {
            put_json(&out, &session, &o, &memory);
        } else {
            put_text(&out, &session, &o, &memory);
        }
    }
    exit_code = status == SOV_OK ? output_finish(&out) : cli_fail(&fault);
    session_close(&session);
    return exit_code;
}
