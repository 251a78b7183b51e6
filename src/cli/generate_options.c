// SPDX-License-Identifier: Apache-2.0
// The options of generating. Names and defaults are those that users of llama.cpp know.
#include "cli/generate.h"
#include "freestanding/mem.h"

void generate_options_init(struct generate_options *g) {
    memset(g, 0, sizeof *g);
    g->n_new = -1;
    g->sampling = sample_params_default();
    g->stops = (struct option_list){.values = g->stop_values, .capacity = STOP_STRINGS_MAX};
    g->biases = (struct option_list){.values = g->bias_values, .capacity = SAMPLE_BIASES_MAX};
}

void generate_options_add(struct generate_options *g, struct option *rows, u32 *n) {
    struct sample_params *s = &g->sampling;
    bool *const no = NULL;
    const struct option own[] = {
        {OPTION_I32, "-n", "--n-predict", "N", &g->n_new, no, 0, 0,
         "most tokens of an answer (default -1: to the end of the context)"},
        {OPTION_LIST, "--stop", NULL, "TEXT", &g->stops, no, 0, 0,
         "end the answer in front of this text; may be given again (16 times)"},
        {OPTION_F32, "--temp", NULL, "T", &s->temperature, no, 0, 0,
         "temperature (default 0.8; 0 is greedy)"},
        {OPTION_FLAG, "--greedy", NULL, NULL, &g->greedy, no, 0, 0,
         "always the best token, same as --temp 0"},
        {OPTION_I32, "--top-k", NULL, "K", &s->top_k, no, 0, 0,
         "keep the K best tokens (default 40; 0 or less: all)"},
        {OPTION_F32, "--top-p", NULL, "P", &s->top_p, no, 0, 0,
         "keep the best tokens that sum to P (default 0.95; 1: all)"},
        {OPTION_F32, "--min-p", NULL, "P", &s->min_p, no, 0, 0,
         "keep tokens at least P times as likely as the best (default 0.05; 0: all)"},
        {OPTION_F32, "--repeat-penalty", NULL, "R", &s->repeat_penalty, no, 0, 0,
         "make tokens of the last N less likely (default 1: off)"},
        {OPTION_F32, "--frequency-penalty", NULL, "F", &s->frequency_penalty, no, 0, 0,
         "the same for each time they came (default 0: off)"},
        {OPTION_F32, "--presence-penalty", NULL, "F", &s->presence_penalty, no, 0, 0,
         "the same once (default 0: off)"},
        {OPTION_I32, "--repeat-last-n", NULL, "N", &s->penalty_window, no, 0, 0,
         "tokens that the penalties look at (default 64; 0: none, -1: all)"},
        {OPTION_LIST, "--logit-bias", NULL, "ID+-V", &g->biases, no, 0, 0,
         "add V to the logit of token ID: 15+1.5, 15-2, 15-inf bans it; may be given again"},
        {OPTION_U64, "--seed", "-s", "SEED", &s->seed, &g->has_seed, 0, 0,
         "seed of the draws (default: a random one, reported)"},
        {OPTION_FLAG, "--ignore-eos", NULL, NULL, &g->ignore_end, no, 0, 0,
         "go on after end tokens"},
        {OPTION_STRING, "--template", NULL, "NAME", &g->template_name, no, 0, 0,
         "chat template to use (default: the file's); sov template lists them"},
        {OPTION_STRING, "--system", NULL, "TEXT", &g->system, no, 0, 0,
         "system message (default: the template's own, if any; \"\": none)"},
        {OPTION_FLAG, "--json", NULL, NULL, &g->json, no, 0, 0,
         "print one JSON object for an answer, when it is complete"},
        {OPTION_U32, "--logprobs", NULL, "N", &g->n_logprobs, &g->has_logprobs, 0,
         SAMPLE_LOGPROBS_MAX, "with --json: log-probabilities, and those of the N best tokens"},
        {OPTION_STRING, "--script", NULL, "FILE", &g->script_path, no, 0, 0,
         "for tests: ids to take instead of the first draws of an answer"},
        BACKEND_OPTION(&g->model),
        NUMERICS_OPTION(&g->model),
        ENGINE_OPTIONS(&g->model),
        RECORD_OPTIONS(&g->model.record),
    };
    assert(*n + COUNT_OF(own) <= GENERATE_OPTIONS_MAX);
    memcpy(rows + *n, own, sizeof own);
    *n += COUNT_OF(own);
}

// "15+1.5", "15-2", "15-inf".
static bool parse_bias(struct str text, struct logit_bias *bias) {
    usize sign = 0;
    while (sign < text.len && text.data[sign] != '+' && text.data[sign] != '-') sign++;
    u64 token = 0;
    if (!text_parse_u64((struct str){text.data, sign}, &token) || token >= TOKEN_NONE) return false;
    struct str rest = {text.data + sign, text.len - sign}; // not empty: the number ended before it
    if (rest.len < 2) return false;
    bias->token = (u32)token;
    if (str_equal(rest, STR("-inf"))) {
        bias->bias = -__builtin_inff();
        return true;
    }
    f64 value = 0.0;
    bool one_sign = rest.data[1] != '+' && rest.data[1] != '-';
    if (!one_sign || !text_parse_f64(rest, &value) || value > 3e38 || value < -3e38) return false;
    bias->bias = (f32)value;
    return true;
}

bool generate_options_check(struct generate_options *g, const struct command *command,
                            int *exit_code) {
    struct sov_fault fault = {0};
    if (g->n_new < -1) {
        *exit_code = cli_usage_error(command, "-n takes -1 or more, not %d", g->n_new);
        return false;
    }
    if (g->has_logprobs && !g->json) {
        *exit_code = cli_usage_error(command, "--logprobs needs --json");
        return false;
    }
    for (u32 i = 0; i < g->biases.n; i++) {
        if (parse_bias(str_from_z(g->bias_values[i]), &g->bias_table[i])) continue;
        *exit_code = cli_usage_error(command,
                                     "--logit-bias takes a token id and a signed number, as 15+1.5 "
                                     "or 15-inf, not \"%.64s\"",
                                     g->bias_values[i]);
        return false;
    }
    if (g->greedy) g->sampling.temperature = 0.0f;
    g->sampling.biases = g->bias_table;
    g->sampling.n_biases = g->biases.n;
    for (u32 i = 0; i < g->stops.n; i++) g->stop_strings[i] = str_from_z(g->stop_values[i]);
    enum sov_status status = stop_init(&g->stop, g->stop_strings, g->stops.n, &fault);
    if (status == SOV_OK) status = sample_params_check(&g->sampling, &fault);
    if (status == SOV_OK) return true;
    *exit_code = cli_usage_error(command, "%s", fault.message);
    return false;
}

enum sov_status generate_options_load(struct generate_options *g, struct sov_fault *fault) {
    if (!g->has_seed) { // 53 bits: every JSON reader keeps them
        u64 seed = 0;
        enum sov_status status = platform_random(&seed, sizeof seed, fault);
        if (status != SOV_OK) return status;
        g->sampling.seed = seed >> 11;
    }
    if (g->script_path == NULL) return SOV_OK;
    struct file_bytes file;
    enum sov_status status = file_read_all(g->script_path, &file, fault);
    if (status != SOV_OK) return status;
    status = token_list_parse(file.text, g->script_path, &g->script, fault);
    file_free(&file);
    return status;
}

void generate_options_free(struct generate_options *g) { token_list_free(&g->script); }
