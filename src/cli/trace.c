// SPDX-License-Identifier: Apache-2.0
// sov trace: what every operator of one forward pass produced, to find the first one that differs
// from another implementation. Rows go to a file as f32; their index goes to stdout, a line each:
//   LAYER OPERATOR ROWS WIDTH OFFSET   (layer "-" outside the layers; offset in bytes)
#include "cli/cli.h"
#include "cpu/cpu.h"

struct trace {
    int descriptor;
    struct output *index;
    bool json;
    u32 n_tensors;
    u64 offset;
    enum sov_status status;
    struct sov_fault *fault;
};

#define WIDEN_ELEMENTS 1024

static void write_f16(struct trace *trace, const f16 *row, u32 width) {
    f32 widened[WIDEN_ELEMENTS];
    for (u32 done = 0; done < width && trace->status == SOV_OK;) {
        u32 n = MIN(width - done, (u32)WIDEN_ELEMENTS);
        for (u32 i = 0; i < n; i++) widened[i] = f16_to_f32(row[done + i]);
        trace->status = platform_write(trace->descriptor, widened, n * sizeof(f32), trace->fault);
        done += n;
    }
}

static void tap(void *context, const struct plan_op *op, enum plan_storage storage,
                const void *data, u32 n_rows, u32 width, u32 stride) {
    struct trace *trace = context;
    for (u32 r = 0; r < n_rows && trace->status == SOV_OK; r++) {
        if (storage == STORAGE_F16) {
            write_f16(trace, (const f16 *)data + (u64)r * stride, width);
        } else {
            trace->status = platform_write(trace->descriptor, (const f32 *)data + (u64)r * stride,
                                           width * sizeof(f32), trace->fault);
        }
    }
    if (trace->json) {
        output_format(trace->index,
                      "%s{\"layer\":%d,\"name\":\"%s\",\"rows\":%u,\"width\":%u,"
                      "\"offset\":%llu}",
                      trace->n_tensors > 0 ? ",\n" : "",
                      op->layer == PLAN_NO_LAYER ? -1 : op->layer, op->name, n_rows, width,
                      trace->offset);
    } else if (op->layer == PLAN_NO_LAYER) {
        output_format(trace->index, "- %s %u %u %llu\n", op->name, n_rows, width, trace->offset);
    } else {
        output_format(trace->index, "%u %s %u %u %llu\n", (u32)op->layer, op->name, n_rows, width,
                      trace->offset);
    }
    trace->n_tensors++;
    trace->offset += (u64)n_rows * width * sizeof(f32);
}

static enum sov_status ignore_row(void *context, u32 position, const f32 *logits, u32 n_vocab,
                                  struct sov_fault *fault) {
    (void)context, (void)position, (void)logits, (void)n_vocab, (void)fault;
    return SOV_OK;
}

int cli_trace(const struct command *command, const struct platform_start *start) {
    struct model_options model = {0};
    const char *tokens_path = NULL, *out_path = NULL;
    bool json = false;
    const struct option options[] = {
        MODEL_OPTION(&model),
        {OPTION_STRING, "--tokens", NULL, "FILE", &tokens_path, NULL, 0, 0,
         "token ids (\"-\": stdin), at most one prefill chunk"},
        {OPTION_STRING, "-o", "--output", "OUT", &out_path, NULL, 0, 0,
         "file for the rows, little-endian f32"},
        {OPTION_FLAG, "--json", NULL, NULL, &json, NULL, 0, 0, "print the index as JSON"},
        ENGINE_OPTIONS(&model),
    };
    int exit_code = 0;
    if (!cli_parse(command, start, options, COUNT_OF(options), &exit_code)) return exit_code;
    if (tokens_path == NULL) return cli_usage_error(command, "--tokens FILE is missing");
    if (out_path == NULL) return cli_usage_error(command, "-o OUT is missing");
    struct sov_fault fault = {0};
    struct session session = {0};
    struct file_bytes input = {0};
    struct token_list list = {0};
    struct output out;
    output_init(&out, PLATFORM_STDOUT);
    struct trace trace = {.descriptor = -1, .index = &out, .fault = &fault};
    enum sov_status status = file_read_all(tokens_path, &input, &fault);
    if (status == SOV_OK) status = token_list_parse(input.text, tokens_path, &list, &fault);
    model.engine.logit_rows = (u32)MIN(list.n, (usize)ENGINE_CHUNK_DEFAULT);
    if (status == SOV_OK) status = session_open(&session, &model, SESSION_ENGINE, &fault);
    if (status == SOV_OK && list.n > model.engine.logit_rows) {
        status = fault_set(&fault, SOV_ERR_LIMIT, "%llu tokens do not fit one chunk of %u",
                           (u64)list.n, model.engine.logit_rows);
    }
    if (status == SOV_OK) {
        status = platform_open(out_path, PLATFORM_OPEN_CREATE, &trace.descriptor, &fault);
    }
    if (status == SOV_OK) {
        trace.json = json;
        if (json) output_put(&out, STR("{\"tensors\":["));
        cpu_set_tap(engine_cpu(session.engine), tap, &trace);
        status =
            engine_evaluate(session.engine, list.ids, (u32)list.n, 0, ignore_row, NULL, &fault);
    }
    if (status == SOV_OK) status = trace.status;
    if (json) output_put(&out, STR("]}\n"));
    exit_code = status == SOV_OK ? output_finish(&out) : cli_fail(&fault);
    if (trace.descriptor >= 0) platform_close(trace.descriptor);
    session_close(&session);
    token_list_free(&list);
    file_free(&input);
    return exit_code;
}
