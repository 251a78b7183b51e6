// SPDX-License-Identifier: Apache-2.0
// Opening the store of a run, its manifest, requests as payloads.
#include "cli/record.h"
#include "cli/digests.h" // generated: see the Makefile
#include "cli/store.h"
#include "freestanding/mem.h"
#include "record/sealed.h"

#define SALT_TAG "sov-rtx salts v1"

static_assert(PAYLOAD_STOPS_MAX == STOP_STRINGS_MAX && PAYLOAD_STOP_BYTES_MAX == STOP_BYTES_MAX,
              "every stop rule can be recorded");
static_assert(PAYLOAD_BIASES_MAX == SAMPLE_BIASES_MAX &&
                  sizeof(struct logit_bias) == PAYLOAD_BIAS_BYTES,
              "biases in memory are those of a payload");
static_assert(MODEL_CONTEXT_MAX <= PAYLOAD_TOKENS_MAX, "every history can be recorded");

// --- options ---

enum sov_status record_options_check(const struct record_options *options,
                                     enum payload_kv_form *kv_form, enum payload_form *form,
                                     struct sov_fault *fault) {
    if (options->off && options->store != NULL) {
        return fault_set(fault, SOV_ERR_USAGE, "--store and --no-record do not go together");
    }
    if (options->off && options->text_form_name != NULL) {
        return fault_set(fault, SOV_ERR_USAGE, "--record and --no-record do not go together");
    }
    struct str text_form =
        str_from_z(options->text_form_name != NULL ? options->text_form_name : "clear");
    *form = str_equal(text_form, STR("digest")) ? PAYLOAD_COMMITMENTS : PAYLOAD_CLEAR;
    if (*form == PAYLOAD_CLEAR && !str_equal(text_form, STR("clear"))) {
        return fault_set(fault, SOV_ERR_USAGE, "--record takes clear or digest, not \"%.64s\"",
                         options->text_form_name);
    }
    *kv_form = PAYLOAD_KV_DIGEST;
    if (options->form_name == NULL) return SOV_OK;
    for (u32 i = 0; i <= PAYLOAD_KV_TOKENS; i++) {
        *kv_form = (enum payload_kv_form)i;
        struct str name = str_from_z(payload_kv_form_name(*kv_form));
        if (str_equal(name, str_from_z(options->form_name))) return SOV_OK;
    }
    return fault_set(fault, SOV_ERR_USAGE,
                     "--checkpoint takes digest, full or tokens, not \"%.64s\"",
                     options->form_name);
}

// --- the store ---

// Makes the name path[0 .. len) durable, whose folder is path[0 .. parent).
static enum sov_status sync_name(const char *path, usize parent, struct sov_fault *fault) {
    char folder[ROWM_PATH_BYTES];
    memcpy(folder, path, parent);
    folder[parent] = 0;
    return platform_sync_folder(parent > 0 ? folder : path[0] == '/' ? "/" : ".", fault);
}

// The last folder that is there: whoever made it may have been killed before its name was durable.
// Where its own folder may not be read, it was made by somebody else.
static enum sov_status sync_found(const char *path, usize parent, struct sov_fault *fault) {
    struct sov_fault inner = {0};
    enum sov_status status = sync_name(path, parent, &inner);
    bool is_closed = status != SOV_OK && str_starts_with(str_from_z(inner.message), STR("open "));
    return status == SOV_OK || is_closed ? SOV_OK : fault_set(fault, status, "%s", inner.message);
}

enum sov_status make_folders(const char *path, struct sov_fault *fault) {
    char part[ROWM_PATH_BYTES];
    usize parent = 0; // length of the part before
    usize found = 0;  // and of the one in front of the last that was there
    bool is_found = false;
    enum sov_status status = SOV_OK;
    for (usize i = 0; i == 0 || path[i - 1] != 0; i++) {
        if (i + 1 >= sizeof part) {
            return fault_set(fault, SOV_ERR_LIMIT, "the path of the store is too long");
        }
        part[i] = 0;
        bool is_part = i > 0 && (path[i] == '/' || path[i] == 0) && path[i - 1] != '/';
        if (is_part && !platform_is_missing(part)) {
            found = parent;
            is_found = true;
        } else if (is_part) {
            if (is_found) status = sync_found(path, found, fault);
            is_found = false;
            if (status == SOV_OK) status = platform_make_folder(part, fault);
            if (status == SOV_OK) status = sync_name(path, parent, fault);
            if (status != SOV_OK) return status;
        }
        if (is_part) parent = i;
        part[i] = path[i];
    }
    return is_found ? sync_found(path, found, fault) : SOV_OK;
}

// A new folder's name: when, and something that no other run has.
static enum sov_status new_store_path(const struct platform_start *start,
                                      char path[ROWM_PATH_BYTES], struct sov_fault *fault) {
    enum sov_status status = store_records_folder(start, path, fault);
    if (status != SOV_OK) {
        *fault = (struct sov_fault){0};
        return fault_set(fault, status,
                         "neither XDG_STATE_HOME nor HOME says where the record goes: --store DIR "
                         "does, --no-record runs without");
    }
    u32 random = 0;
    status = platform_random(&random, sizeof random, fault);
    if (status != SOV_OK) return status;
    usize len = str_from_z(path).len;
    struct text t = text_over(path + len, ROWM_PATH_BYTES - len);
    text_put_byte(&t, '/');
    struct output now; // "2026-11-30T21:05:00Z", of which the separators are left out
    output_init(&now, -1);
    output_put_time(&now, platform_wall_ns(), false);
    for (usize i = 0; i < now.text.len; i++) {
        char c = now.text.data[i];
        if (c != '-' && c != ':') text_put_byte(&t, (u8)c);
    }
    text_format(&t, "-%08x", random);
    return t.truncated ? fault_set(fault, SOV_ERR_LIMIT, "the path of the records is too long")
                       : SOV_OK;
}

static struct sha256_digest digest_of_hex(struct str hex) {
    struct sha256_digest digest = {0};
    bool is_hex = sha256_from_hex(hex, &digest);
    assert(is_hex);
    return digest;
}

struct rowm_manifest record_manifest(const struct sha256_digest *model, const char *device) {
    struct rowm_manifest manifest = {
        .engine_version = STR(SOV_VERSION),
        .build = digest_of_hex(STR(BUILD_DIGEST)),
        .contract = digest_of_hex(STR(CONTRACT_DIGEST)),
        .kernels = digest_of_hex(STR(KERNELS_DIGEST)),
        .model = *model,
        .numeric_profile = RECORD_EXACT,
        .device = str_from_z(device),
        .wall_ns = platform_wall_ns(),
    };
    manifest.device.len = MIN(manifest.device.len, (usize)ROWM_TEXT_BYTES_MAX);
    return manifest;
}

static enum sov_status open_store(struct record *record, struct sov_fault *fault) {
    struct rowm_manifest manifest = record_manifest(&record->model, record->device);
    manifest.numeric_profile = (u8)record->profile;
    struct rowm *rowm = NULL;
    record->folder.path = record->path;
    record->disk = rowm_folder_disk(&record->folder);
    enum sov_status status = rowm_open(&record->disk, &manifest, &rowm, fault);
    if (status != SOV_OK) return status;
    u64 session = rowm_head(rowm).n_sessions - 1;
    record->last_id = session << 32;
    return recorder_open(rowm, &record->recorder, fault);
}

void record_prepare(struct record *record, const struct record_options *options,
                    const struct sha256_digest *model, const char *device, struct engine *engine) {
    *record = (struct record){
        .options = options, .engine = engine, .model = *model, .profile = RECORD_EXACT};
    struct str profile = str_from_z(engine_profile(engine)), tensor = STR("tensor ");
    struct str architecture = {0};
    if (str_starts_with(profile, tensor)) {
        record->profile = RECORD_TENSOR;
        architecture = (struct str){profile.data + tensor.len, profile.len - tensor.len};
    }
    struct str name = str_from_z(device);
    name.len = MIN(name.len, (usize)ROWM_TEXT_BYTES_MAX - architecture.len - 1);
    struct text t = TEXT_OVER_ARRAY(record->device);
    text_put(&t, name);
    if (architecture.len > 0) text_format(&t, " %.*s", STR_ARG(architecture));
    assert(!t.truncated);
    enum payload_form form = PAYLOAD_CLEAR;
    enum sov_status status = record_options_check(options, &record->kv_form, &form, NULL);
    assert(status == SOV_OK);
    record->is_sealed = form == PAYLOAD_COMMITMENTS;
}

enum sov_status record_begin(struct record *record, struct sov_fault *fault) {
    const struct record_options *options = record->options;
    if (record->recorder != NULL || options == NULL || options->off) return SOV_OK;
    enum sov_status status = SOV_OK;
    if (record->is_sealed) {
        status = platform_random(&record->secret, sizeof record->secret, fault);
        if (status != SOV_OK) return status;
    }
    if (options->store != NULL) {
        struct text t = TEXT_OVER_ARRAY(record->path);
        text_put(&t, str_from_z(options->store));
        if (t.truncated) {
            status = fault_set(fault, SOV_ERR_LIMIT, "the path of the store is too long");
        }
    } else {
        status = new_store_path(options->start, record->path, fault);
    }
    if (status != SOV_OK) return status;
    struct sov_fault inner = {0};
    status = make_folders(record->path, &inner);
    if (status == SOV_OK) status = open_store(record, &inner);
    if (status != SOV_OK) {
        bool is_named = str_starts_with(str_from_z(inner.message), STR("store "));
        const char *hint = options->store == NULL ? " (--no-record runs without a record)" : "";
        return is_named ? fault_set(fault, status, "%s%s", inner.message, hint)
                        : fault_set(fault, status, "store %.256s: %s%s", record->path,
                                    inner.message, hint);
    }
    struct checkpoint_store store = recorder_store(record->recorder);
    engine_set_store(record->engine, &store);
    return SOV_OK;
}

void record_close(struct record *record) {
    struct sov_fault ignored = {0}; // record_end was asked, or the run failed otherwise
    if (record->recorder != NULL) {
        enum sov_status status = recorder_close(record->recorder, &record->head, &ignored);
        (void)status;
    }
    if (record->bytes != NULL) platform_memory_unmap(record->bytes, (usize)record->capacity);
    record->recorder = NULL;
    record->bytes = NULL;
}

enum sov_status record_check(const struct record *record, struct sov_fault *fault) {
    if (record->recorder == NULL) return SOV_OK;
    struct sov_fault inner = {0};
    enum sov_status status = recorder_check(record->recorder, &inner);
    if (status == SOV_OK) return SOV_OK;
    return fault_set(fault, status, "store %.256s: %s; what was durable stays", record->path,
                     inner.message);
}

void record_wait(struct record *record) {
    if (record->recorder != NULL) recorder_wait(record->recorder);
}

enum sov_status record_end(struct record *record, struct sov_fault *fault) {
    if (record->recorder == NULL) return SOV_OK;
    struct sov_fault inner = {0};
    enum sov_status status = recorder_flush(record->recorder, &inner);
    record->head = recorder_head(record->recorder);
    if (status == SOV_OK) return SOV_OK;
    return fault_set(fault, status, "store %.256s: %s", record->path, inner.message);
}

// --- requests ---

u64 record_next_id(struct record *record) { return ++record->last_id; }

static struct str ids(const u32 *tokens, u32 n) {
    return (struct str){(const u8 *)tokens, n * sizeof(u32)};
}

// A function of the run and the sequence, so that a request that is recorded ahead and submitted
// later has one.
static struct sha256_digest salt_of(const struct record *record, u64 sequence_id) {
    u8 number[8];
    struct sha256 h;
    store_u64(number, sequence_id);
    sha256_begin(&h);
    sha256_update(&h, STR(SALT_TAG));
    sha256_update(&h, (struct str){record->secret.bytes, SHA256_BYTES});
    sha256_update(&h, (struct str){number, sizeof number});
    return sha256_end(&h);
}

// Room for that many bytes in record->bytes.
static enum sov_status reserve(struct record *record, u64 bytes, struct sov_fault *fault) {
    if (bytes <= record->capacity) return SOV_OK;
    u64 capacity = MAX(2 * record->capacity, bytes);
    u8 *memory = platform_memory_map((usize)capacity);
    if (memory == NULL) {
        return fault_set(fault, SOV_ERR_MEMORY, "record: %llu bytes are not to be had", capacity);
    }
    if (record->bytes != NULL) platform_memory_unmap(record->bytes, (usize)record->capacity);
    record->bytes = memory;
    record->capacity = capacity;
    return SOV_OK;
}

enum sov_status record_request(struct record *record, struct engine_request *request,
                               const struct record_source *source, u32 context,
                               struct sov_fault *fault) {
    const struct sample_params *s = &request->sampling;
    // Also where nothing is recorded: the digests of K and V are part of the receipts, and these of
    // the events, which must be the same bytes either way (batch.h, B2).
    request->kv_form = record->kv_form;
    if (record->recorder == NULL) return SOV_OK;
    // What the engine refuses is no request.
    if (request->n_tokens == 0 || request->n_tokens > context) return SOV_OK;
    struct payload_request payload = {
        .sequence_id = request->id,
        .command = source->command,
        .form = record->is_sealed ? PAYLOAD_COMMITMENTS : PAYLOAD_CLEAR,
        .kv_form = record->kv_form,
        .context = context,
        .n_new_max = request->n_new_max,
        .ignore_end = request->ignore_end,
        .wants_logprob = request->wants_logprob,
        .end_token = request->end_token,
        .n_logprobs = request->n_logprobs,
        .sampling =
            {
                .repeat_penalty = s->repeat_penalty,
                .frequency_penalty = s->frequency_penalty,
                .presence_penalty = s->presence_penalty,
                .temperature = s->temperature,
                .top_p = s->top_p,
                .min_p = s->min_p,
                .penalty_window = s->penalty_window,
                .top_k = s->top_k,
                .seed = s->seed,
                .biases = {(const u8 *)s->biases, s->n_biases * sizeof *s->biases},
            },
        .n_stops = source->n_stops,
        .prompt = source->prompt,
        .line_number = source->line_number,
        .line = source->line,
        .tokens = ids(request->tokens, request->n_tokens),
        .script = ids(request->script, request->n_script),
    };
    for (u32 i = 0; i < source->n_stops; i++) payload.stops[i] = source->stops[i];
    usize n_head = record->is_sealed ? SEALED_OPENING_HEAD_BYTES : 0;
    u64 bytes = n_head + payload_request_bytes(&payload);
    enum sov_status status = reserve(record, bytes, fault);
    if (status != SOV_OK) return status;
    request->is_sealed = record->is_sealed;
    if (record->is_sealed) {
        request->salt = salt_of(record, request->id);
        sealed_opening_head(&request->salt, record->bytes);
    }
    payload_request_write(&payload, record->bytes + n_head);
    request->record = (struct str){record->bytes, (usize)bytes};
    return SOV_OK;
}

// --- what a run tells ---

static void put_receipt(const struct record *record, struct output *out) {
    char hex[SHA256_HEX_BYTES + 1];
    sha256_to_hex(&record->head.worm, hex);
    output_put(out, str_from_z(hex));
}

void record_put_figures(const struct record *record, struct output *out) {
    if (record->recorder == NULL) return;
    output_put(out, STR("record "));
    store_put_head(out, &record->head);
    output_put(out, STR(", receipt "));
    put_receipt(record, out);
    output_put(out, STR(", "));
    output_put_utf8(out, str_from_z(record->path));
    output_put(out, STR("\n"));
}

void record_put_json(const struct record *record, struct output *out) {
    if (record->recorder == NULL) {
        output_put(out, STR("null"));
        return;
    }
    output_put(out, STR("{\"store\":"));
    output_json_string(out, str_from_z(record->path));
    output_put(out, STR(",\"head\":\""));
    store_put_head(out, &record->head);
    output_put(out, STR("\",\"receipt\":\""));
    put_receipt(record, out);
    output_put(out, STR("\"}"));
}
