// SPDX-License-Identifier: Apache-2.0
// Opening a model, its vocabulary and an engine, in that order; closing in the other.
#include "cli/cli.h"
#include "record/sha256.h"

#define ATTEMPT_RETRIES 2 // of a failed step, before a sequence fails

static enum sov_status choose_level(const char *name, enum cpu_level *level,
                                    struct sov_fault *fault) {
    enum cpu_level best = MIN(cpu_level(), ENGINE_LEVEL_MAX);
    *level = best;
    if (name == NULL) return SOV_OK;
    if (!cpu_level_parse(str_from_z(name), level)) {
        return fault_set(fault, SOV_ERR_USAGE,
                         "--force-isa takes scalar, avx2 or avx512, not \"%.64s\"", name);
    }
    if (*level > best) {
        return fault_set(fault, SOV_ERR_UNSUPPORTED, "--force-isa %s: this machine has %s only",
                         name, cpu_level_name(best));
    }
    return SOV_OK;
}

static enum sov_status choose_device(const char *name, bool has_card, enum engine_device *device,
                                     struct sov_fault *fault) {
    static const char *const names[] = {
        [ENGINE_CPU] = "cpu", [ENGINE_CUDA] = "cuda", [ENGINE_AUTO] = "auto"};
    *device = has_card ? ENGINE_CUDA : ENGINE_AUTO;
    if (name == NULL) return SOV_OK;
    for (u32 i = 0; i < COUNT_OF(names); i++) {
        *device = (enum engine_device)i;
        if (!str_equal(str_from_z(name), str_from_z(names[i]))) continue;
        if (has_card && *device == ENGINE_CPU) {
            return fault_set(fault, SOV_ERR_USAGE,
                             "--device names a card, --backend cpu takes none");
        }
        if (has_card) *device = ENGINE_CUDA;
        return SOV_OK;
    }
    return fault_set(fault, SOV_ERR_USAGE, "--backend takes cpu, cuda or auto, not \"%.64s\"",
                     name);
}

static enum sov_status choose_numerics(const char *name, enum engine_numerics *numerics,
                                       struct sov_fault *fault) {
    struct str given = str_from_z(name != NULL ? name : "exact");
    bool is_tensor = str_equal(given, STR("tensor"));
    *numerics = is_tensor ? ENGINE_TENSOR : ENGINE_EXACT;
    if (is_tensor || str_equal(given, STR("exact"))) return SOV_OK;
    return fault_set(fault, SOV_ERR_USAGE, "--numerics takes exact or tensor, not \"%.64s\"", name);
}

// On a terminal, the share of a model that is on the card.
static void show_progress(void *context, u64 done, u64 total) {
    (void)context;
    struct output err;
    output_init(&err, PLATFORM_STDERR);
    output_format(&err, "\rmodel to the card: %llu of %llu MiB ", done >> 20, total >> 20);
    if (done == total) output_put(&err, STR("\r\033[K"));
    output_flush(&err);
}

// Puts the file in front of what is wrong with it.
static enum sov_status name_file(const char *path, struct sov_fault *fault) {
    struct sov_fault inner = *fault;
    struct str message = str_from_z(inner.message), name = str_from_z(path);
    for (usize i = 0; i + name.len <= message.len; i++) { // the system's errors may name it already
        if (str_equal((struct str){message.data + i, name.len}, name)) return inner.status;
    }
    *fault = (struct sov_fault){0};
    return fault_set(fault, inner.status, "%.256s: %s", path, inner.message);
}

// --model-sha256: the file's bytes, all shards in order, must have this digest.
static enum sov_status check_digest(const struct sha256_digest *found, const char *wanted_hex,
                                    struct sov_fault *fault) {
    struct sha256_digest wanted;
    if (!sha256_from_hex(str_from_z(wanted_hex), &wanted)) {
        return fault_set(fault, SOV_ERR_USAGE,
                         "--model-sha256 takes 64 hexadecimal digits, not \"%.80s\"", wanted_hex);
    }
    if (sha256_equal(&wanted, found)) return SOV_OK;
    char hex[SHA256_HEX_BYTES + 1];
    sha256_to_hex(found, hex);
    return fault_set(fault, SOV_ERR_FORMAT, "its SHA-256 is %s, not %s", hex, wanted_hex);
}

// Where it decides whether a file is taken, nothing that was kept is believed.
static enum sov_status find_digest(const struct gguf *gguf, const struct model_options *options,
                                   struct sha256_digest *digest, struct sov_fault *fault) {
    bool is_wanted = options->sha256 != NULL || options->record.start != NULL;
    if (!is_wanted) return SOV_OK;
    const struct platform_start *kept = options->sha256 == NULL ? options->record.start : NULL;
    enum sov_status status = model_digest(gguf, kept, digest, fault);
    if (status != SOV_OK || options->sha256 == NULL) return status;
    return check_digest(digest, options->sha256, fault);
}

static enum sov_status open_engine(struct session *session, struct model_options *options,
                                   struct sov_fault *fault) {
    enum payload_kv_form kv_form;
    enum payload_form form;
    enum sov_status status = record_options_check(&options->record, &kv_form, &form, fault);
    if (status != SOV_OK) return status;
    struct engine_config *config = &options->engine;
    config->tokenizer = session->vocabulary.tokenizer;
    config->stop_word = platform_suspend_word();
    config->has_janet = true;
    config->retries = ATTEMPT_RETRIES;
    config->run_ahead = ENGINE_RUN_AHEAD_MAX;
    config->kv_full = config->kv_full || kv_form == PAYLOAD_KV_FULL;
    power_begin(&session->power, options->power_folder);
    status = engine_config_resolve(config, &session->model, fault);
    if (status == SOV_OK) status = engine_open(&session->model, config, &session->engine, fault);
    if (status != SOV_OK || options->record.start == NULL) return status;
    const char *card = engine_card(session->engine);
    record_prepare(&session->record, &options->record, &config->model_digest,
                   card != NULL ? card : cpu_level_name(config->level), session->engine);
    return SOV_OK;
}

enum sov_status session_choose(struct model_options *options, struct sov_fault *fault) {
    if (options->model_path == NULL) {
        return fault_set(fault, SOV_ERR_USAGE, "-m MODEL is missing");
    }
    enum sov_status status = choose_level(options->isa, &options->engine.level, fault);
    if (status == SOV_OK && options->engine.start != NULL) {
        status =
            choose_device(options->backend, options->has_device, &options->engine.device, fault);
        if (platform_is_terminal(PLATFORM_STDERR)) options->engine.progress = show_progress;
    }
    if (status == SOV_OK && options->numerics != NULL) {
        status = choose_numerics(options->numerics, &options->engine.numerics, fault);
    }
    return status;
}

enum sov_status session_open(struct session *session, struct model_options *options,
                             enum session_depth depth, struct sov_fault *fault) {
    *session = (struct session){0};
    enum sov_status status = session_choose(options, fault);
    if (status != SOV_OK) return status;
    const struct gguf *gguf = &session->model.gguf;
    if (depth == SESSION_VOCABULARY) {
        gguf = &session->gguf;
        status = gguf_open(&session->gguf, options->model_path, fault);
        session->has_gguf = status == SOV_OK;
    } else {
        status = model_open(&session->model, options->model_path, fault);
        session->has_model = status == SOV_OK;
    }
    if (status == SOV_OK) {
        status = find_digest(gguf, options, &options->engine.model_digest, fault);
    }
    if (status == SOV_OK) {
        status = vocabulary_open(&session->vocabulary, gguf, fault);
        session->has_vocabulary = status == SOV_OK;
    }
    if (status == SOV_OK &&
        tokenizer_piece_bytes_max(session->vocabulary.tokenizer) > CLI_PIECE_BYTES_MAX) {
        status = fault_set(fault, SOV_ERR_LIMIT, "a token of %llu bytes, at most %u",
                           (u64)tokenizer_piece_bytes_max(session->vocabulary.tokenizer),
                           CLI_PIECE_BYTES_MAX);
    }
    if (status != SOV_OK) status = name_file(options->model_path, fault);
    if (status == SOV_OK && depth == SESSION_ENGINE) status = open_engine(session, options, fault);
    if (status != SOV_OK) session_close(session);
    return status;
}

struct engine_inputs session_inputs(struct session *session) {
    u64 now_ns = platform_monotonic_ns();
    struct engine_inputs inputs = {now_ns, power_poll(&session->power, now_ns)};
    // What a signal ends needs no computing, and must not wait for the power to come back.
    if (platform_interrupted()) inputs.power = POWER_ACTIVE;
    return inputs;
}

void session_put_device(const struct session *session, struct output *out) {
    const char *card = engine_card(session->engine);
    const char *refused = engine_card_refused(session->engine);
    if (card != NULL) {
        output_format(out, "; %s", card);
    } else if (refused != NULL && !engine_card_is_absent(session->engine)) {
        output_format(out, "; by the CPU, without a card: %s", refused);
    }
}

#define CHECKPOINT_NS 2000000000ull

void session_checkpoint(struct session *session) {
    u64 begin_ns = platform_monotonic_ns();
    struct engine_inputs inputs = {begin_ns, POWER_SUSPEND};
    do {
        struct engine_report report;
        struct sov_fault fault = {0};
        enum sov_status status = engine_step(session->engine, &inputs, &report, &fault);
        if (status != SOV_OK || report.is_suspended) return;
        if (record_check(&session->record, &fault) != SOV_OK) return;
        platform_sleep(SESSION_SUSPENDED_NS); // (not at all, where a signal has come)
    } while (platform_monotonic_ns() - begin_ns < CHECKPOINT_NS);
}

void session_close(struct session *session) {
    if (session->engine != NULL) engine_close(session->engine);
    record_close(&session->record);
    if (session->has_vocabulary) vocabulary_close(&session->vocabulary);
    if (session->has_model) model_close(&session->model);
    if (session->has_gguf) gguf_close(&session->gguf);
    *session = (struct session){0};
}
