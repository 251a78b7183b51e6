// SPDX-License-Identifier: Apache-2.0
// sov perplexity: how well a model predicts a text, by llama-perplexity's convention. The text is
// cut into windows of the context's size, without overlap, each evaluated with an empty KV cache;
// in each window only the predictions of its second half count, which all have half a window of
// context. With a model that begins texts with BOS, the first token of every window is replaced by
// it.
#include "cli/cli.h"
#include "freestanding/math.h"

#define WINDOW_DEFAULT 512
#define WINDOW_MIN 3  // of 2, the second half is the last token, whose prediction lies outside
#define LOGIT_ROWS 32 // positions computed together; bounds the memory of their logits

struct tally {
    const u32 *window; // tokens of the window being evaluated
    u32 n_window;
    f64 sum, sum_squares; // of negative log likelihoods
    u64 count;
};

// -ln p(next token) in f64 from f32 logits.
static f64 negative_log_likelihood(const f32 *logits, u32 n_vocab, u32 next) {
    f32 max = logits[0];
    for (u32 i = 1; i < n_vocab; i++) max = MAX(max, logits[i]);
    f64 sum = 0.0;
    for (u32 i = 0; i < n_vocab; i++) sum += (f64)math_exp_f32(logits[i] - max);
    return math_log(sum) + (f64)max - (f64)logits[next];
}

static enum sov_status tally_row(void *context, u32 position, const f32 *logits, u32 n_vocab,
                                 struct sov_fault *fault) {
    struct tally *tally = context;
    if (platform_interrupted()) {
        return fault_set(fault, SOV_ERR_INTERRUPTED, "stopped by a signal");
    }
    if (position + 1 == tally->n_window) return SOV_OK; // predicts beyond the window
    f64 nll = negative_log_likelihood(logits, n_vocab, tally->window[position + 1]);
    tally->sum += nll;
    tally->sum_squares += nll * nll;
    tally->count++;
    return SOV_OK;
}

static f64 perplexity_of(const struct tally *tally) {
    return math_exp(tally->sum / (f64)tally->count);
}

// The standard error of the perplexity: that of the mean log likelihood, carried through exp.
static f64 error_of(const struct tally *tally) {
    f64 n = (f64)tally->count;
    f64 mean = tally->sum / n;
    f64 variance = tally->sum_squares / n - mean * mean;
    return variance > 0.0 && n > 1.0 ? math_sqrt(variance / (n - 1.0)) * math_exp(mean) : 0.0;
}

static enum sov_status evaluate(struct session *session, struct token_list *list, u32 window,
                                struct tally *tally, struct sov_fault *fault) {
    const struct tokenizer *tokenizer = session->vocabulary.tokenizer;
    bool has_bos = list->n > 0 && list->ids[0] == tokenizer_bos(tokenizer);
    if (window < WINDOW_MIN) {
        return fault_set(fault, SOV_ERR_ARGUMENT,
                         "the second half of a window of %u predicts nothing: -c takes at least %u",
                         window, WINDOW_MIN);
    }
    u64 n_windows = list->n / window;
    if (n_windows == 0) {
        return fault_set(fault, SOV_ERR_ARGUMENT,
                         "the text has %llu tokens, one window of %u is needed (-c sets its size)",
                         (u64)list->n, window);
    }
    bool shows_progress = platform_is_terminal(PLATFORM_STDERR);
    enum sov_status status = SOV_OK;
    for (u64 w = 0; w < n_windows && status == SOV_OK; w++) {
        u32 *ids = list->ids + w * window;
        if (has_bos) ids[0] = tokenizer_bos(tokenizer);
        tally->window = ids;
        tally->n_window = window;
        status = engine_evaluate(session->engine, ids, window, window / 2, tally_row, tally, fault);
        if (status != SOV_OK || !shows_progress) continue;
        struct output err;
        output_init(&err, PLATFORM_STDERR);
        output_format(&err, "\rwindow %llu of %llu: %.4f ", w + 1, n_windows, perplexity_of(tally));
        if (w + 1 == n_windows) output_put(&err, STR("\r\033[K"));
        output_flush(&err);
    }
    return status;
}

// JSON has no infinity, which e to a large power is.
static void put_field(struct output *out, const char *name, f64 value) {
    bool finite = value - value == 0.0;
    output_format(out, "\"%s\":", name);
    if (finite) {
        output_format(out, "%.12g,", value);
    } else {
        output_put(out, STR("null,"));
    }
}

static void print(struct output *out, const struct tally *tally, u64 n_tokens, u32 window,
                  bool json) {
    if (!json) {
        output_format(out, "perplexity %.4f +/- %.4f (%llu predictions, windows of %u)\n",
                      perplexity_of(tally), error_of(tally), tally->count, window);
        return;
    }
    output_put(out, STR("{"));
    put_field(out, "perplexity", perplexity_of(tally));
    put_field(out, "error", error_of(tally));
    put_field(out, "mean_nll", tally->sum / (f64)tally->count);
    output_format(out, "\"n_predictions\":%llu,\"n_tokens\":%llu,\"window\":%u}\n", tally->count,
                  n_tokens, window);
}

int cli_perplexity(const struct command *command, const struct platform_start *start) {
    struct model_options model = {.engine = {.context = WINDOW_DEFAULT, .logit_rows = LOGIT_ROWS}};
    const char *path = NULL;
    bool json = false;
    const struct option options[] = {
        MODEL_OPTION(&model),
        {OPTION_STRING, "-f", "--file", "FILE", &path, NULL, 0, 0, "the text (\"-\": stdin)"},
        {OPTION_FLAG, "--json", NULL, NULL, &json, NULL, 0, 0, "print one JSON object"},
        BACKEND_OPTION(&model),
        NUMERICS_OPTION(&model),
        ENGINE_OPTIONS(&model),
    };
    int exit_code = 0;
    if (!cli_parse(command, start, options, COUNT_OF(options), &exit_code)) return exit_code;
    model.engine.start = start;
    if (path == NULL) return cli_usage_error(command, "-f FILE is missing");
    platform_watch_interrupt();
    struct sov_fault fault = {0};
    struct session session;
    struct file_bytes input = {0};
    struct token_list list = {0};
    struct tally tally = {0};
    struct output out;
    output_init(&out, PLATFORM_STDOUT);
    enum sov_status status = session_open(&session, &model, SESSION_ENGINE, &fault);
    u32 window = model.engine.context;
    if (status == SOV_OK) status = file_read_all(path, &input, &fault);
    if (status == SOV_OK) {
        status =
            vocabulary_encode(&session.vocabulary, input.text, TOKENIZE_BOS_EOS, &list, &fault);
    }
    if (status == SOV_OK) status = evaluate(&session, &list, window, &tally, &fault);
    if (status == SOV_OK) print(&out, &tally, list.n, window, json);
    exit_code = status == SOV_OK ? output_finish(&out) : cli_fail(&fault);
    session_close(&session);
    token_list_free(&list);
    file_free(&input);
    return exit_code;
}
