// SPDX-License-Identifier: Apache-2.0
// Payloads as bytes. A request and a checkpoint are each one list of fields, walked by one function
// in three ways: counting, writing, reading. So what is written and what is read cannot differ.
#include "record/payload.h"
#include "freestanding/mem.h"

static_assert(sizeof PAYLOAD_REQUEST_TAG - 1 == PAYLOAD_TAG_BYTES, "a tag has its stated length");
static_assert(sizeof PAYLOAD_CHECKPOINT_TAG - 1 == PAYLOAD_TAG_BYTES, "and the other");

enum walk_mode { COUNT, WRITE, READ };
struct walk {
    enum walk_mode mode;
    u8 *out;       // of WRITE: where the next field goes
    u64 n_bytes;   // of COUNT
    struct str in; // of READ: what is left
    u64 offset;    // of READ: of what is left
    const char *what;
    enum sov_status status; // the first error; nothing is read after it
    struct sov_fault *fault;
};

// --- fields ---

static void refuse(struct walk *w, const char *field, const char *rule) {
    if (w->status != SOV_OK) return;
    w->status = fault_set(w->fault, SOV_ERR_FORMAT, "%s, byte %llu: %s %s", w->what, w->offset,
                          field, rule);
}

// A rule between fields: broken by bytes it is an error, by our own fields a mistake.
static void require(struct walk *w, bool holds, const char *field, const char *rule) {
    if (holds || w->status != SOV_OK) return;
    assert(w->mode == READ);
    refuse(w, field, rule);
}

// n bytes at `field`, in place.
static void raw(struct walk *w, const char *name, void *field, usize n) {
    if (w->mode == COUNT) {
        w->n_bytes += n;
    } else if (w->mode == WRITE) {
        memcpy(w->out, field, n);
        w->out += n;
    } else if (w->status == SOV_OK && w->in.len < n) {
        refuse(w, name, "is cut short");
    } else if (w->status == SOV_OK) {
        memcpy(field, w->in.data, n);
        w->in.data += n;
        w->in.len -= n;
        w->offset += n;
    }
}

// A u64 length, and that many bytes: a multiple of `unit`, at most `max`.
static void string(struct walk *w, const char *name, struct str *s, u64 unit, u64 max) {
    u64 n = s->len;
    raw(w, name, &n, sizeof n);
    if (w->mode == READ) *s = (struct str){w->in.data, 0};
    if (w->status != SOV_OK) return;
    require(w, n <= max, name, "is longer than may be");
    require(w, n % unit == 0, name, "is no whole number of elements");
    if (w->mode == READ) {
        if (n > w->in.len) refuse(w, name, "is cut short");
        if (w->status != SOV_OK) return;
        s->len = (usize)n;
        w->in.data += n;
        w->in.len -= (usize)n;
        w->offset += n;
    } else if (w->mode == WRITE) {
        if (n > 0 && s->data != w->out) memcpy(w->out, s->data, (usize)n);
        w->out += n;
    } else {
        w->n_bytes += n;
    }
}

// One byte from `first` to `last`.
static u32 small(struct walk *w, const char *name, u32 value, u32 first, u32 last) {
    u8 byte = (u8)value;
    raw(w, name, &byte, 1);
    if (w->mode != READ) assert(value >= first && value <= last);
    require(w, byte >= first && byte <= last, name, "has an unknown value");
    return byte;
}

static void tag(struct walk *w, const char *text) {
    char bytes[PAYLOAD_TAG_BYTES] = {0};
    memcpy(bytes, text, sizeof bytes);
    raw(w, "the tag", bytes, sizeof bytes);
    if (w->mode != READ || w->status != SOV_OK || memcmp(bytes, text, sizeof bytes) == 0) return;
    const usize name_bytes = PAYLOAD_TAG_BYTES - 1; // all but the digit of the version
    bool is_other = memcmp(bytes, text, name_bytes) == 0;
    w->status = fault_set(w->fault, is_other ? SOV_ERR_UNSUPPORTED : SOV_ERR_FORMAT,
                          "%s begins with \"%.16s\", this program reads \"%s\"", w->what, bytes,
                          text);
}

static void end(struct walk *w) {
    require(w, w->mode != READ || w->in.len == 0, "the end", "has bytes behind it");
}

// --- the request ---

static void walk_sampling(struct walk *w, struct payload_sampling *s) {
    f32 *floats[] = {
        &s->repeat_penalty, &s->frequency_penalty, &s->presence_penalty, &s->temperature, &s->top_p,
        &s->min_p};
    for (u32 i = 0; i < COUNT_OF(floats); i++) raw(w, "sampling", floats[i], sizeof(f32));
    raw(w, "penalty_window", &s->penalty_window, sizeof(i32));
    raw(w, "top_k", &s->top_k, sizeof(i32));
    raw(w, "seed", &s->seed, sizeof(u64));
    string(w, "biases", &s->biases, PAYLOAD_BIAS_BYTES, PAYLOAD_BIASES_MAX * PAYLOAD_BIAS_BYTES);
}

static void walk_request(struct walk *w, struct payload_request *r) {
    tag(w, PAYLOAD_REQUEST_TAG);
    raw(w, "sequence_id", &r->sequence_id, sizeof(u64));
    r->command = (enum payload_command)small(w, "command", r->command, PAYLOAD_RUN, PAYLOAD_BATCH);
    r->form = (enum payload_form)small(w, "form", r->form, 0, PAYLOAD_COMMITMENTS);
    r->kv_form = (enum payload_kv_form)small(w, "kv_form", r->kv_form, 0, PAYLOAD_KV_TOKENS);
    raw(w, "context", &r->context, sizeof(u32));
    raw(w, "n_new_max", &r->n_new_max, sizeof(u32));
    r->ignore_end = small(w, "ignore_end", r->ignore_end, 0, 1) != 0;
    raw(w, "end_token", &r->end_token, sizeof(u32));
    r->wants_logprob = small(w, "wants_logprob", r->wants_logprob, 0, 1) != 0;
    raw(w, "n_logprobs", &r->n_logprobs, sizeof(u32));
    walk_sampling(w, &r->sampling);
    r->n_stops = small(w, "n_stops", r->n_stops, 0, PAYLOAD_STOPS_MAX);
    for (u32 i = 0; i < r->n_stops && w->status == SOV_OK; i++) {
        string(w, "stop", &r->stops[i], 1, PAYLOAD_STOP_BYTES_MAX);
        require(w, r->stops[i].len > 0, "stop", "is empty");
    }
    string(w, "prompt", &r->prompt, 1, ~0ull);
    raw(w, "line_number", &r->line_number, sizeof(u64));
    string(w, "line", &r->line, 1, ~0ull);
    string(w, "tokens", &r->tokens, sizeof(u32), PAYLOAD_TOKENS_MAX * sizeof(u32));
    require(w, r->tokens.len > 0, "tokens", "has none");
    require(w, r->tokens.len / sizeof(u32) <= r->context, "tokens", "is more than the context");
    string(w, "script", &r->script, sizeof(u32), PAYLOAD_TOKENS_MAX * sizeof(u32));
    end(w);
}

// --- the checkpoint ---

static void check_checkpoint(struct walk *w, const struct payload_checkpoint *c) {
    u32 n_tokens = payload_count(c->tokens);
    require(w, c->n_prompt > 0 && c->n_prompt <= n_tokens, "n_prompt",
            "is not 1 to the number of tokens");
    require(w, (c->finish != 0) == (c->kind == PAYLOAD_FINISH), "finish", "does not fit the kind");
    // The event of a boundary's own token comes after its receipt; an end's is its last one. At the
    // beginning there is none, whether or not the sequence was admitted meanwhile.
    u64 n_generated = n_tokens - c->n_prompt, sealed = 0;
    if (c->kind == PAYLOAD_BOUNDARY) sealed = n_generated;
    if (c->kind == PAYLOAD_SUSPEND && n_generated > 0) sealed = n_generated + 1;
    if (c->kind == PAYLOAD_FINISH) sealed = n_generated + 2;
    require(w, c->event_number == sealed, "event_number", "is not of these tokens");
}

static void walk_kv(struct walk *w, struct payload_checkpoint *c) {
    raw(w, "kv_begin", &c->kv_begin, sizeof(u32));
    raw(w, "kv_end", &c->kv_end, sizeof(u32));
    raw(w, "n_layer", &c->n_layer, sizeof(u32));
    raw(w, "row_bytes", &c->row_bytes, sizeof(u32));
    require(w, c->kv_begin <= c->kv_end && c->kv_end <= payload_count(c->tokens), "kv_end",
            "is not from kv_begin to the number of tokens");
    bool has_kv = c->kv_begin < c->kv_end && c->kv_form != PAYLOAD_KV_TOKENS;
    require(w, (c->n_layer > 0) == has_kv && c->n_layer <= PAYLOAD_LAYERS_MAX, "n_layer",
            "does not fit the range and form");
    require(w, (c->row_bytes > 0) == has_kv && c->row_bytes <= PAYLOAD_KV_ROW_BYTES_MAX,
            "row_bytes", "does not fit the range and form");
    string(w, "kv_digests", &c->kv_digests, SHA256_BYTES, PAYLOAD_LAYERS_MAX * SHA256_BYTES);
    require(w, c->kv_digests.len / SHA256_BYTES == c->n_layer, "kv_digests",
            "is not one for each layer");
    string(w, "kv_bytes", &c->kv_bytes, 1, ~0ull);
    // At most 2^10 * 2^24 * 2^24: no overflow.
    u64 wanted = (u64)c->n_layer * (c->kv_end - c->kv_begin) * c->row_bytes;
    // A sequence's end is not gone on from: it has the digests only.
    bool has_bytes = c->kv_form == PAYLOAD_KV_FULL && c->kind != PAYLOAD_FINISH;
    require(w, c->kv_bytes.len == (has_bytes ? wanted : 0), "kv_bytes",
            "does not fit the range and form");
}

static void walk_checkpoint(struct walk *w, struct payload_checkpoint *c) {
    tag(w, PAYLOAD_CHECKPOINT_TAG);
    raw(w, "sequence_id", &c->sequence_id, sizeof(u64));
    c->kind =
        (enum payload_checkpoint_kind)small(w, "kind", c->kind, PAYLOAD_BOUNDARY, PAYLOAD_FINISH);
    c->finish = small(w, "finish", c->finish, 0, PAYLOAD_FINISH_LAST);
    c->kv_form = (enum payload_kv_form)small(w, "kv_form", c->kv_form, 0, PAYLOAD_KV_TOKENS);
    raw(w, "n_prompt", &c->n_prompt, sizeof(u32));
    string(w, "tokens", &c->tokens, sizeof(u32), PAYLOAD_TOKENS_MAX * sizeof(u32));
    raw(w, "origin", c->origin.bytes, SHA256_BYTES);
    raw(w, "event_number", &c->event_number, sizeof(u64));
    raw(w, "event_digest", c->event_digest.bytes, SHA256_BYTES);
    check_checkpoint(w, c);
    walk_kv(w, c);
    end(w);
}

struct sha256_digest payload_kv_digest(const struct payload_checkpoint *checkpoint, u32 layer) {
    struct sha256_digest digest = {0};
    assert(layer < checkpoint->n_layer);
    memcpy(digest.bytes, checkpoint->kv_digests.data + (usize)layer * SHA256_BYTES, SHA256_BYTES);
    return digest;
}

// --- the three ways ---

u64 payload_request_bytes(const struct payload_request *request) {
    struct payload_request copy = *request;
    struct walk w = {.mode = COUNT};
    walk_request(&w, &copy);
    return w.n_bytes;
}

u64 payload_checkpoint_bytes(const struct payload_checkpoint *checkpoint) {
    struct payload_checkpoint copy = *checkpoint;
    struct walk w = {.mode = COUNT};
    walk_checkpoint(&w, &copy);
    return w.n_bytes;
}

void payload_request_write(const struct payload_request *request, u8 *out) {
    struct payload_request copy = *request;
    struct walk w = {.mode = WRITE, .out = out};
    walk_request(&w, &copy);
}

void payload_checkpoint_write(const struct payload_checkpoint *checkpoint, u8 *out) {
    struct payload_checkpoint copy = *checkpoint;
    struct walk w = {.mode = WRITE, .out = out};
    walk_checkpoint(&w, &copy);
}

enum sov_status payload_request_read(struct str bytes, struct payload_request *request,
                                     struct sov_fault *fault) {
    *request = (struct payload_request){0};
    struct walk w = {.mode = READ, .in = bytes, .what = "a request", .fault = fault};
    walk_request(&w, request);
    return w.status;
}

enum sov_status payload_checkpoint_read(struct str bytes, struct payload_checkpoint *checkpoint,
                                        struct sov_fault *fault) {
    *checkpoint = (struct payload_checkpoint){0};
    struct walk w = {.mode = READ, .in = bytes, .what = "a checkpoint", .fault = fault};
    walk_checkpoint(&w, checkpoint);
    return w.status;
}

// --- names ---

const char *payload_command_name(enum payload_command command) {
    static const char *const names[] = {
        [PAYLOAD_RUN] = "run", [PAYLOAD_CHAT] = "chat", [PAYLOAD_BATCH] = "batch"};
    return (u32)command >= PAYLOAD_RUN && (u32)command < COUNT_OF(names) ? names[command] : "?";
}

const char *payload_kv_form_name(enum payload_kv_form form) {
    static const char *const names[] = {
        [PAYLOAD_KV_DIGEST] = "digest", [PAYLOAD_KV_FULL] = "full", [PAYLOAD_KV_TOKENS] = "tokens"};
    return (u32)form < COUNT_OF(names) ? names[form] : "?";
}

const char *payload_checkpoint_kind_name(enum payload_checkpoint_kind kind) {
    static const char *const names[] = {[PAYLOAD_BOUNDARY] = "boundary",
                                        [PAYLOAD_SUSPEND] = "suspend",
                                        [PAYLOAD_FINISH] = "finish"};
    return (u32)kind >= PAYLOAD_BOUNDARY && (u32)kind < COUNT_OF(names) ? names[kind] : "?";
}
