// SPDX-License-Identifier: Apache-2.0
// sov batch: requests from a file of JSON lines, many sequences at once, answers in order of
// completion. Lines are read as sequences come free, so neither file has a limit; from a pipe a
// line is taken when it is there, and what runs does not wait for it.
//
// A step, as seen from here: read and submit what there is room for; engine_step; its events to the
// spool; what ended to the output.
#include "cli/batch.h"
#include "cli/publish.h"
#include "freestanding/mem.h"

#define BATCH_SEQS_DEFAULT 16
#define LINES_BUFFER_BYTES (1u << 20) // at first
#define SHOW_NS 500000000ull          // between two lines of progress

struct batch_options {
    struct model_options model;
    const char *requests_path, *out_path, *events_path, *template_name;
};

static bool is_dash(const char *path) { return str_equal(str_from_z(path), STR("-")); }

// --- lines ---

struct lines {
    int descriptor;
    u8 *buffer; // [capacity]
    u64 capacity;
    usize begin, searched, end; // [begin, end) is not handed out; no newline before `searched`
    u64 number;                 // of the line handed out last, from 1
    bool at_end, too_long;      // the line under way is dropped to its end
};

enum line_found { LINE_READY, LINE_TOO_LONG, LINE_NOT_YET, LINE_END };

static enum sov_status lines_grow(struct lines *lines, struct sov_fault *fault) {
    u64 capacity = MAX(2 * lines->capacity, (u64)LINES_BUFFER_BYTES);
    u8 *buffer = platform_memory_map(capacity);
    if (buffer == NULL) {
        return fault_set(fault, SOV_ERR_MEMORY, "requests: %llu bytes are not to be had", capacity);
    }
    if (lines->end > 0) memcpy(buffer, lines->buffer, lines->end);
    if (lines->buffer != NULL) platform_memory_unmap(lines->buffer, lines->capacity);
    lines->buffer = buffer;
    lines->capacity = capacity;
    return SOV_OK;
}

// Room for more, and more. *is_there: something came, or the end.
static enum sov_status lines_read(struct lines *lines, bool may_wait, bool *is_there,
                                  struct sov_fault *fault) {
    *is_there = false;
    if (lines->begin > 0) {
        memmove(lines->buffer, lines->buffer + lines->begin, lines->end - lines->begin);
        lines->end -= lines->begin;
        lines->searched -= lines->begin;
        lines->begin = 0;
    }
    if (lines->end > BATCH_LINE_BYTES_MAX) {
        lines->too_long = true;
        lines->end = lines->searched = 0;
    }
    if (lines->end == lines->capacity) {
        enum sov_status status = lines_grow(lines, fault);
        if (status != SOV_OK) return status;
    }
    if (!may_wait && !platform_can_read(lines->descriptor)) return SOV_OK;
    usize n = 0;
    enum sov_status status = platform_read_some(lines->descriptor, lines->buffer + lines->end,
                                                lines->capacity - lines->end, &n, fault);
    lines->end += n;
    lines->at_end = status == SOV_OK && n == 0;
    *is_there = true;
    return status;
}

// The next line, without its newline; valid until the next call. Waits for one only if it may.
static enum sov_status lines_next(struct lines *lines, bool may_wait, enum line_found *found,
                                  struct str *line, struct sov_fault *fault) {
    for (;;) {
        while (lines->searched < lines->end && lines->buffer[lines->searched] != '\n') {
            lines->searched++;
        }
        bool has_newline = lines->searched < lines->end;
        if (has_newline || lines->at_end) {
            bool is_line = has_newline || lines->begin < lines->end || lines->too_long;
            *line = (struct str){lines->buffer + lines->begin, lines->searched - lines->begin};
            bool too_long = lines->too_long || line->len > BATCH_LINE_BYTES_MAX;
            *found = !is_line ? LINE_END : too_long ? LINE_TOO_LONG : LINE_READY;
            lines->searched += has_newline;
            lines->begin = lines->searched;
            lines->number += is_line;
            lines->too_long = false;
            return SOV_OK;
        }
        bool is_there = false;
        enum sov_status status = lines_read(lines, may_wait, &is_there, fault);
        *found = LINE_NOT_YET;
        if (status != SOV_OK || !is_there) return status;
    }
}

static bool is_blank(struct str line) {
    for (usize i = 0; i < line.len; i++) {
        u8 byte = line.data[i];
        if (byte != ' ' && byte != '\t' && byte != '\r') return false;
    }
    return true;
}

// --- ids ---

struct id_set { // of sequences; an open hash table, 0 is a free slot
    u64 *ids;
    u32 n_slots, n_ids;
};
#define ID_SLOTS_MIN 1024

// Where the id stands or would stand. Ids are digests: their low bits are as good as any.
static u64 *id_slot(u64 *ids, u32 n_slots, u64 id) {
    u64 i = id;
    while (ids[i & (n_slots - 1)] != 0 && ids[i & (n_slots - 1)] != id) i++;
    return &ids[i & (n_slots - 1)];
}

// *is_new: it was not there before.
static enum sov_status id_set_add(struct id_set *set, u64 id, bool *is_new,
                                  struct sov_fault *fault) {
    if (4 * (u64)(set->n_ids + 1) > 3 * (u64)set->n_slots) {
        u32 n_slots = MAX(2 * set->n_slots, (u32)ID_SLOTS_MIN);
        u64 *ids = set->n_ids < BATCH_REQUESTS_MAX ? platform_memory_map(n_slots * sizeof(u64))
                                                   : NULL;
        if (ids == NULL) {
            return fault_set(fault, SOV_ERR_LIMIT, "more than %u ids, or no memory for them",
                             set->n_ids);
        }
        for (u32 i = 0; i < set->n_slots; i++) {
            if (set->ids[i] != 0) *id_slot(ids, n_slots, set->ids[i]) = set->ids[i];
        }
        if (set->ids != NULL) platform_memory_unmap(set->ids, set->n_slots * sizeof(u64));
        set->ids = ids;
        set->n_slots = n_slots;
    }
    id = MAX(id, 1ull);
    u64 *slot = id_slot(set->ids, set->n_slots, id);
    *is_new = *slot == 0;
    if (*is_new) set->n_ids++;
    *slot = id;
    return SOV_OK;
}

// --- the batch ---

struct batch_slot { // a request that runs
    bool is_used;
    engine_sequence sequence;
    u64 line;
    u32 end_token;
    const struct tokenizer *tokenizer;
    struct answer answer;
    struct stop_matcher stop;
    struct sov_fault fault; // the spool holds another history of this id
    struct batch_request request;
};

struct batch {
    const struct batch_options *options;
    struct session *session;
    struct output *out;
    struct lines lines;
    struct json_node *nodes; // [n_nodes] for the longest line so far
    u32 n_nodes;
    struct id_set ids;
    struct batch_prompts prompts;
    struct publisher *publisher;
    bool is_recorded; // all requests are in the store
    u64 n_requests, n_errors, n_prompt_tokens, n_tokens;
    u64 begin_ns, shown_ns;
    bool shows;
    u32 n_slots, n_live;
    struct batch_slot slots[]; // [n_slots]
};

// The stop rule of a request (engine.h).
static bool stops_at(void *context, u32 token) {
    struct batch_slot *slot = context;
    u8 piece[CLI_PIECE_BYTES_MAX], shown[CLI_PIECE_BYTES_MAX + STOP_BYTES_MAX];
    usize len = tokenizer_decode(slot->tokenizer, token, false, false, piece, sizeof piece);
    (void)stop_feed(&slot->stop, (struct str){piece, len}, shown);
    return slot->stop.found;
}

static enum sov_status parse_line(struct batch *b, struct str line, struct json *json,
                                  struct batch_request *request, struct sov_fault *fault) {
    u32 n_nodes = json_nodes_max(line.len);
    if (n_nodes > b->n_nodes) {
        u64 bytes = n_nodes * sizeof(struct json_node);
        struct json_node *nodes = platform_memory_map(bytes);
        if (nodes == NULL) {
            return fault_set(fault, SOV_ERR_MEMORY, "a line of %llu bytes: no memory",
                             (u64)line.len);
        }
        if (b->nodes != NULL) {
            platform_memory_unmap(b->nodes, b->n_nodes * sizeof(struct json_node));
        }
        b->nodes = nodes;
        b->n_nodes = n_nodes;
    }
    enum sov_status status = json_parse(json, line, b->nodes, b->n_nodes, fault);
    return status == SOV_OK ? batch_request_parse(json, request, fault) : status;
}

// What the engine and the record are told of a request.
static enum sov_status make_request(struct batch *b, struct batch_slot *slot, struct str line,
                                    const struct token_list *list, struct engine_request *request,
                                    struct sov_fault *fault) {
    struct batch_request *r = &slot->request;
    struct str stops[STOP_STRINGS_MAX];
    for (u32 i = 0; i < r->n_stops; i++) stops[i] = (struct str){r->stops[i], r->stop_lens[i]};
    enum sov_status status = stop_init(&slot->stop, stops, r->n_stops, fault);
    if (status != SOV_OK) return status;
    *request = (struct engine_request){
        .id = batch_sequence_id(&r->id),
        .tokens = list->ids,
        .n_tokens = (u32)MIN(list->n, 0xffffffffu),
        .n_new_max = r->max_tokens,
        .ignore_end = r->ignore_end,
        .end_token = slot->end_token,
        .n_logprobs = r->n_logprobs,
        .wants_logprob = r->wants_logprobs,
        .stop = r->n_stops > 0 ? stops_at : NULL,
        .stop_context = slot,
        .sampling = r->sampling,
    };
    struct record_source source = {
        .command = PAYLOAD_BATCH,
        .line = line,
        .line_number = b->lines.number,
        .stops = stops,
        .n_stops = r->n_stops,
    };
    u32 context = b->options->model.engine.context;
    return record_request(&b->session->record, request, &source, context, fault);
}

static enum sov_status submit(struct batch *b, struct batch_slot *slot, struct str line,
                              const struct token_list *list, struct sov_fault *fault) {
    struct batch_request *r = &slot->request;
    struct engine_request request;
    u32 context = b->options->model.engine.context;
    u32 n_new = r->max_tokens != 0 ? MIN(r->max_tokens, context) : context;
    enum sov_status status = make_request(b, slot, line, list, &request, fault);
    if (status == SOV_OK) {
        status = answer_reserve(&slot->answer, n_new, r->wants_logprobs, r->n_logprobs, fault);
    }
    if (status != SOV_OK) return status;
    if (b->is_recorded) request.record = (struct str){0};
    status = engine_submit(b->session->engine, &request, &slot->sequence, fault);
    if (status != SOV_OK) answer_free(&slot->answer);
    return status;
}

// What a line asks for, checked; its id is one that `ids` did not have.
static enum sov_status read_line(struct batch *b, struct batch_slot *slot, struct str line,
                                 bool too_long, struct id_set *ids, struct token_list *list,
                                 struct sov_fault *fault) {
    struct json json;
    slot->request.shape = BATCH_NATIVE;
    slot->request.id = (struct batch_id){0};
    slot->line = b->lines.number;
    slot->tokenizer = b->session->vocabulary.tokenizer;
    slot->fault = (struct sov_fault){0};
    enum sov_status status =
        too_long
            ? fault_set(fault, SOV_ERR_LIMIT, "a line has at most %u bytes", BATCH_LINE_BYTES_MAX)
            : parse_line(b, line, &json, &slot->request, fault);
    if (slot->request.id.is_given) { // also of a line that is wrong
        bool is_new = false;
        enum sov_status added =
            id_set_add(ids, batch_sequence_id(&slot->request.id), &is_new, fault);
        if (added == SOV_OK && !is_new) {
            added = fault_set(fault, SOV_ERR_ARGUMENT, "a line before this one has the same id");
        }
        if (status == SOV_OK) status = added;
    }
    if (status != SOV_OK) return status;
    return batch_encode(&b->prompts, &json, &slot->request, list, &slot->end_token, fault);
}

// Takes one line: a request that runs from now on, or an error object (B1). A status other than
// SOV_OK is the whole batch's.
static void take_line(struct batch *b, struct batch_slot *slot, struct str line, bool too_long) {
    struct sov_fault fault = {0};
    struct token_list list = {0};
    b->n_requests++;
    enum sov_status status = read_line(b, slot, line, too_long, &b->ids, &list, &fault);
    if (status == SOV_OK) status = submit(b, slot, line, &list, &fault);
    token_list_free(&list);
    slot->is_used = status == SOV_OK;
    b->n_live += slot->is_used;
    if (slot->is_used) return;
    b->n_errors++;
    batch_put_error(b->out, &slot->request, slot->line, &fault);
}

// --- recording ahead ---

// A file is read twice: first all its requests go to the store, so that a crash at any time
// afterwards loses none. They are several commits, since what is staged is found by whoever opens
// the store after a kill, committed or not: before the end of this the first lines are there, and
// nothing was answered. What is wrong with a line is said when it is read again.
static enum sov_status record_ahead(struct batch *b, struct sov_fault *fault) {
    struct id_set ids = {0};
    struct lines lines = b->lines;
    struct batch_slot *slot = &b->slots[0];
    enum line_found found = LINE_READY;
    enum sov_status status = SOV_OK;
    b->lines = (struct lines){.descriptor = -1};
    status =
        platform_open(b->options->requests_path, PLATFORM_OPEN_READ, &b->lines.descriptor, fault);
    while (status == SOV_OK && found != LINE_END && !platform_interrupted()) {
        struct str line;
        struct token_list list = {0};
        struct engine_request request;
        struct sov_fault of_line = {0};
        status = lines_next(&b->lines, true, &found, &line, fault);
        if (status != SOV_OK || found == LINE_END) continue;
        if (found == LINE_READY && is_blank(line)) continue;
        bool is_long = found == LINE_TOO_LONG;
        enum sov_status read = read_line(b, slot, line, is_long, &ids, &list, &of_line);
        if (read == SOV_OK) read = make_request(b, slot, line, &list, &request, &of_line);
        if (read == SOV_OK && request.record.len > 0) {
            read = engine_record(b->session->engine, &request, &of_line);
        }
        (void)read; // what the line is refused for is said when it is read again
        token_list_free(&list);
        status = record_check(&b->session->record, fault);
    }
    if (status == SOV_OK) status = record_end(&b->session->record, fault);
    if (b->lines.descriptor >= 0) platform_close(b->lines.descriptor);
    if (b->lines.buffer != NULL) platform_memory_unmap(b->lines.buffer, b->lines.capacity);
    if (ids.ids != NULL) platform_memory_unmap(ids.ids, ids.n_slots * sizeof(u64));
    b->lines = lines;
    b->is_recorded = true;
    return status;
}

// Reads lines while there is room. Waits for one only when nothing runs.
static enum sov_status admit(struct batch *b, bool *has_more, struct sov_fault *fault) {
    while (*has_more && b->n_live < b->n_slots && engine_room(b->session->engine) > 0) {
        enum line_found found = LINE_END;
        struct str line;
        if (b->n_live == 0) output_flush(b->out); // whoever waits for it may send the next line
        enum sov_status status = lines_next(&b->lines, b->n_live == 0, &found, &line, fault);
        if (status != SOV_OK) return status;
        *has_more = found != LINE_END;
        if (found == LINE_NOT_YET) return SOV_OK;
        if (found == LINE_END || (found == LINE_READY && is_blank(line))) continue;
        u32 free_slot = 0;
        while (b->slots[free_slot].is_used) free_slot++;
        take_line(b, &b->slots[free_slot], line, found == LINE_TOO_LONG);
    }
    return SOV_OK;
}

static struct batch_slot *slot_of(struct batch *b, engine_sequence sequence) {
    for (u32 i = 0; i < b->n_slots; i++) {
        if (b->slots[i].is_used && b->slots[i].sequence == sequence) return &b->slots[i];
    }
    assert(!"every sequence has a slot");
    return NULL;
}

static struct sov_fault *fault_of(void *batch, engine_sequence sequence) {
    return &slot_of(batch, sequence)->fault;
}

static void finish_slot(struct batch *b, struct batch_slot *slot,
                        const struct engine_output *output) {
    if (output->event.finish == FINISH_FAILED && slot->fault.status == SOV_OK) {
        slot->fault = *output->fault;
    }
    slot->answer.n_prompt = output->n_prompt;
    b->n_prompt_tokens += output->n_prompt;
    b->n_tokens += slot->answer.n_ids;
    if (slot->fault.status != SOV_OK) {
        b->n_errors++;
        batch_put_error(b->out, &slot->request, slot->line, &slot->fault);
    } else {
        const struct sov_event *event = &output->event;
        bool is_cancelled = event->finish == FINISH_CANCEL; // its end was not published
        struct batch_result result = {
            .request = &slot->request,
            .answer = &slot->answer,
            .stop = &slot->stop,
            .tokenizer = slot->tokenizer,
            .model_name = b->options->model.model_path,
            .finish = event->finish,
            .digest = is_cancelled ? event->prior_digest : event->transition_digest,
        };
        batch_put_result(b->out, &result);
    }
    answer_free(&slot->answer);
    slot->is_used = false;
    b->n_live--;
}

static void take_output(struct batch *b, const struct engine_output *output) {
    struct batch_slot *slot = slot_of(b, output->sequence);
    if (output->event.type == EVENT_FINISHED) {
        finish_slot(b, slot, output);
        return;
    }
    if (output->event.type == EVENT_TOKEN && !output->is_end) answer_keep(&slot->answer, output);
}

// --- figures ---

static f64 seconds_since(u64 begin_ns) { return (f64)(platform_monotonic_ns() - begin_ns) / 1e9; }

static void show_progress(struct batch *b) {
    u64 now = platform_monotonic_ns();
    if (!b->shows || now - b->shown_ns < SHOW_NS) return;
    b->shown_ns = now;
    struct output err;
    output_init(&err, PLATFORM_STDERR);
    output_format(&err, "\r%llu done, %u running, %.1f tokens/s\033[K", b->n_requests - b->n_live,
                  b->n_live, (f64)b->n_tokens / seconds_since(b->begin_ns));
    output_flush(&err);
}

static void print_figures(const struct batch *b) {
    struct output err;
    output_init(&err, PLATFORM_STDERR);
    f64 seconds = seconds_since(b->begin_ns);
    output_format(&err,
                  "%s%llu requests, %llu errors; prompts %llu tokens, answers %llu tokens, "
                  "%.1f s, %.1f tokens/s",
                  b->shows ? "\r\033[K" : "", b->n_requests, b->n_errors, b->n_prompt_tokens,
                  b->n_tokens, seconds, seconds > 0 ? (f64)b->n_tokens / seconds : 0.0);
    session_put_device(b->session, &err);
    output_put(&err, STR("\n"));
    struct engine_statistics e = engine_statistics_of(b->session->engine);
    output_format(&err, "%llu steps, %llu swaps (%llu to memory), %llu prompt tokens shared\n",
                  e.n_steps, e.n_swaps, e.n_spills, e.n_shared_tokens);
    publisher_put_figures(b->publisher, &err);
    record_put_figures(&b->session->record, &err);
    output_flush(&err);
}

// --- running ---

static enum sov_status run_steps(struct batch *b, bool *is_cancelled, struct sov_fault *fault) {
    bool has_more = true;
    while (has_more || b->n_live > 0) {
        if (platform_interrupted() || b->out->status != SOV_OK) { // or nobody reads any more
            if (!*is_cancelled && platform_interrupted()) session_checkpoint(b->session);
            *is_cancelled = *is_cancelled || platform_interrupted();
            has_more = false;
            for (u32 i = 0; i < b->n_slots; i++) {
                if (!b->slots[i].is_used) continue;
                engine_interrupt(b->session->engine, b->slots[i].sequence);
            }
        }
        enum sov_status status = admit(b, &has_more, fault);
        if (status == SOV_ERR_INTERRUPTED) { // while it waited for a line
            *fault = (struct sov_fault){0};
            continue;
        }
        if (status != SOV_OK) return status;
        if (b->n_live == 0) continue;
        struct engine_inputs inputs = session_inputs(b->session);
        struct engine_report report;
        status = engine_step(b->session->engine, &inputs, &report, fault);
        if (status != SOV_OK) return status;
        publisher_put(b->publisher, b->session->engine, &report, fault_of, b);
        u32 n_live = b->n_live;
        for (u32 i = 0; i < report.n_outputs; i++) take_output(b, &report.outputs[i]);
        if (b->n_live < n_live) output_flush(b->out);
        if (inputs.power == POWER_SUSPEND) platform_sleep(SESSION_SUSPENDED_NS);
        status = record_check(&b->session->record, fault);
        if (status != SOV_OK) return status;
        if (report.n_rows == 0 && report.n_outputs == 0) record_wait(&b->session->record);
        show_progress(b);
    }
    return SOV_OK;
}

static void batch_free(struct batch *b, u64 bytes) {
    for (u32 i = 0; i < b->n_slots; i++) {
        if (b->slots[i].is_used) answer_free(&b->slots[i].answer);
    }
    if (b->lines.buffer != NULL) platform_memory_unmap(b->lines.buffer, b->lines.capacity);
    if (b->nodes != NULL) platform_memory_unmap(b->nodes, b->n_nodes * sizeof(struct json_node));
    if (b->ids.ids != NULL) platform_memory_unmap(b->ids.ids, b->ids.n_slots * sizeof(u64));
    platform_memory_unmap(b, bytes);
}

static enum sov_status run(const struct batch_options *o, struct session *session, int input,
                           struct output *out, struct publisher *publisher, int *exit_code,
                           struct sov_fault *fault) {
    u32 n_slots = o->model.engine.max_seqs;
    u64 bytes = sizeof(struct batch) + (u64)n_slots * sizeof(struct batch_slot);
    struct batch *b = platform_memory_map(bytes);
    if (b == NULL) {
        return fault_set(fault, SOV_ERR_MEMORY, "batch: %llu bytes are not to be had", bytes);
    }
    b->options = o;
    b->session = session;
    b->out = out;
    b->publisher = publisher;
    b->n_slots = n_slots;
    b->lines.descriptor = input;
    b->shows = platform_is_terminal(PLATFORM_STDERR);
    batch_prompts_init(&b->prompts, &session->vocabulary, o->template_name);
    bool is_cancelled = false;
    u64 ignored = 0;
    bool is_file = platform_file_size(input, &ignored, NULL) == SOV_OK &&
                   !is_dash(o->requests_path);
    enum sov_status status = record_begin(&session->record, fault);
    b->begin_ns = b->shown_ns = platform_monotonic_ns();
    if (status == SOV_OK && is_file && !o->model.record.off) status = record_ahead(b, fault);
    if (status == SOV_OK) status = run_steps(b, &is_cancelled, fault);
    if (status == SOV_OK) status = record_end(&session->record, fault);
    print_figures(b);
    bool is_bad = b->n_errors > 0 || publisher->has_failed;
    *exit_code = is_cancelled ? CLI_EXIT_INTERRUPTED : is_bad ? 1 : 0;
    batch_free(b, bytes);
    return status;
}

// --- command ---

static bool parse(const struct command *command, const struct platform_start *start,
                  struct batch_options *o, int *exit_code) {
    bool *const no = NULL;
    const struct option options[] = {
        {OPTION_POSITIONAL, "REQUESTS", NULL, NULL, &o->requests_path, no, 0, 0,
         "file of JSON lines (\"-\": stdin)"},
        MODEL_OPTION(&o->model),
        {OPTION_STRING, "-o", "--output", "FILE", &o->out_path, no, 0, 0,
         "where the answers go (\"-\": stdout, the default)"},
        {OPTION_STRING, "--events", NULL, "SPOOL", &o->events_path, no, 0, 0,
         "append every event to this file (sov events reads it)"},
        {OPTION_STRING, "--template", NULL, "NAME", &o->template_name, no, 0, 0,
         "chat template for messages (default: the file's); sov template lists them"},
        SEQUENCES_OPTIONS(&o->model),
        BACKEND_OPTION(&o->model),
        NUMERICS_OPTION(&o->model),
        ENGINE_OPTIONS(&o->model),
        RECORD_OPTIONS(&o->model.record),
    };
    if (!cli_parse(command, start, options, COUNT_OF(options), exit_code)) return false;
    if (o->requests_path == NULL) {
        *exit_code = cli_usage_error(command, "REQUESTS is missing (\"-\" is stdin)");
        return false;
    }
    struct str requests = str_from_z(o->requests_path), out = str_from_z(o->out_path);
    if (!is_dash(o->requests_path) && str_equal(requests, out)) {
        *exit_code = cli_usage_error(command, "-o names the file of requests itself");
        return false;
    }
    return true;
}

// Opens what is written to: not before the model and the requests were found.
static enum sov_status open_and_run(const struct batch_options *o, struct session *session,
                                    int input, struct output *out, int *exit_code,
                                    struct sov_fault *fault) {
    int descriptor = PLATFORM_STDOUT;
    bool to_file = o->out_path != NULL && !is_dash(o->out_path);
    struct publisher publisher;
    enum sov_status status = publisher_open(&publisher, o->events_path, fault);
    if (status != SOV_OK) return status;
    if (to_file) status = platform_open(o->out_path, PLATFORM_OPEN_CREATE, &descriptor, fault);
    if (status == SOV_OK) {
        output_init(out, descriptor);
        status = run(o, session, input, out, &publisher, exit_code, fault);
        int finished = output_finish(out);
        if (*exit_code == 0) *exit_code = finished;
        if (to_file) platform_close(descriptor);
    }
    publisher_close(&publisher);
    return status;
}

int cli_batch(const struct command *command, const struct platform_start *start) {
    struct batch_options o = {.model.engine.max_seqs = BATCH_SEQS_DEFAULT};
    int exit_code = 0;
    if (!parse(command, start, &o, &exit_code)) return exit_code;
    o.model.engine.start = o.model.record.start = start;
    platform_watch_interrupt();
    struct sov_fault fault = {0};
    struct session session;
    struct output out;
    int input = PLATFORM_STDIN;
    enum sov_status status = session_open(&session, &o.model, SESSION_ENGINE, &fault);
    if (status != SOV_OK) return cli_fail(&fault);
    bool from_file = !is_dash(o.requests_path);
    if (from_file) status = platform_open(o.requests_path, PLATFORM_OPEN_READ, &input, &fault);
    if (status == SOV_OK) {
        status = open_and_run(&o, &session, input, &out, &exit_code, &fault);
        if (from_file) platform_close(input);
    }
    session_close(&session);
    return status == SOV_OK ? exit_code : cli_fail(&fault);
}
