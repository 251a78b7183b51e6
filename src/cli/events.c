// SPDX-License-Identifier: Apache-2.0
// sov events: reads a spool, as a table or as CloudEvents, one JSON object a line. It only reads:
// an engine that appends meanwhile does not notice.
#include "cli/cli.h"
#include "engine/spool.h"

#define FOLLOW_NS 50000000ull // between looks at a file that has nothing new

struct events_options {
    const char *path;
    u64 from;
    bool follow, json;
};

static void put_hex(struct output *out, const struct sha256_digest *digest) {
    char hex[SHA256_HEX_BYTES + 1];
    sha256_to_hex(digest, hex);
    output_format(out, "\"%s\"", hex);
}

// A CloudEvents 1.0 envelope. (source, id) is (sequence_id, number): the identity of the event.
static void put_json(struct output *out, const struct spool_record *record) {
    const struct sov_event *e = &record->event;
    u32 high = (u32)(e->sequence_id >> 32), low = (u32)e->sequence_id;
    output_format(out,
                  "{\"specversion\":\"1.0\",\"id\":\"%llu\",\"source\":\"/sov-rtx/sequence/"
                  "%08x%08x\",\"type\":\"sov_rtx.sequence.%s\"",
                  e->number, high, low, event_type_name(e->type));
    if (record->wall_ns != 0) {
        output_put(out, STR(",\"time\":\""));
        output_put_time(out, record->wall_ns, true);
        output_put(out, STR("\""));
    }
    output_format(out,
                  ",\"datacontenttype\":\"application/json\",\"data\":{\"version\":%u,"
                  "\"event_type\":\"%s\",\"sequence_id\":\"%08x%08x\",\"previous_state\":\"%s\","
                  "\"new_state\":\"%s\",\"committed_token_count\":%u,\"sampled_token_id\":",
                  e->version, event_type_name(e->type), high, low,
                  event_state_name(e->previous_state), event_state_name(e->new_state),
                  e->committed_token_count);
    if (e->sampled_token_id == EVENT_NO_TOKEN) {
        output_put(out, STR("null"));
    } else {
        output_format(out, "%u", e->sampled_token_id);
    }
    if (e->version == EVENT_VERSION_SEALED) {
        output_put(out, STR(",\"sampled_token_commitment\":"));
        if (e->type == EVENT_TOKEN) {
            put_hex(out, &e->token_commitment);
        } else {
            output_put(out, STR("null"));
        }
    }
    output_put(out, STR(",\"finish_reason\":"));
    if (e->finish == FINISH_NONE) {
        output_put(out, STR("null"));
    } else {
        output_format(out, "\"%s\"", event_finish_name(e->finish));
    }
    output_put(out, STR(",\"checkpoint_receipt_hash\":"));
    if (e->has_receipt) {
        put_hex(out, &e->checkpoint_receipt_hash);
    } else {
        output_put(out, STR("null"));
    }
    output_put(out, STR(",\"prior_digest\":"));
    put_hex(out, &e->prior_digest);
    output_put(out, STR(",\"transition_digest\":"));
    put_hex(out, &e->transition_digest);
    output_format(out, ",\"monotonic_sequence_number\":%llu}}\n", e->number);
}

static void put_heading(struct output *out) {
    output_format(out, "%10s  %-16s %7s  %-9s %-22s %8s  %s\n", "POSITION", "SEQUENCE", "NUMBER",
                  "EVENT", "STATES", "TOKEN", "DIGEST");
}

static void put_row(struct output *out, const struct spool_record *record) {
    const struct sov_event *e = &record->event;
    char states[48], token[24], hex[SHA256_HEX_BYTES + 1];
    struct text t = TEXT_OVER_ARRAY(states);
    text_format(&t, "%s > %s", event_state_name(e->previous_state), event_state_name(e->new_state));
    t = TEXT_OVER_ARRAY(token);
    if (e->type == EVENT_TOKEN && e->version == EVENT_VERSION_SEALED) {
        text_put(&t, STR("sealed"));
    } else if (e->type == EVENT_TOKEN) {
        text_format(&t, "%u", e->sampled_token_id);
    } else {
        text_put(&t,
                 e->type == EVENT_FINISHED ? str_from_z(event_finish_name(e->finish)) : STR("-"));
    }
    sha256_to_hex(&e->transition_digest, hex);
    hex[16] = 0; // enough to see a difference
    output_format(out, "%10llu  %08x%08x %7llu  %-9s %-22s %8s  %s%s\n", record->position,
                  (u32)(e->sequence_id >> 32), (u32)e->sequence_id, e->number,
                  event_type_name(e->type), states, token, hex, e->has_receipt ? "  receipt" : "");
}

static void warn_of_tail(const char *path, const struct spool_reader *reader) {
    struct output err;
    output_init(&err, PLATFORM_STDERR);
    output_format(&err,
                  "sov: %.256s: %llu bytes at byte %llu are no whole event: a write was cut short, "
                  "or is under way\n",
                  path, reader->tail_bytes, reader->offset);
    output_flush(&err);
}

static enum sov_status print_events(const struct events_options *o, struct spool_reader *reader,
                                    struct output *out, struct sov_fault *fault) {
    struct spool_chains chains = {0};
    enum sov_status status = SOV_OK;
    if (!o->json) put_heading(out);
    while (status == SOV_OK && out->status == SOV_OK) {
        struct spool_record record;
        enum spool_found found = SPOOL_END;
        status = spool_read(reader, &record, &found, fault);
        if (status == SOV_OK && found != SPOOL_EVENT) {
            output_flush(out);
            if (!o->follow) {
                if (found == SPOOL_TAIL) warn_of_tail(o->path, reader);
                break;
            }
            platform_sleep(FOLLOW_NS);
        }
        if (platform_interrupted()) {
            status = fault_set(fault, SOV_ERR_INTERRUPTED, "stopped by a signal");
        }
        if (status != SOV_OK || found != SPOOL_EVENT) continue;
        status = spool_chains_check(&chains, &record, fault); // also of what is not shown
        if (status != SOV_OK || record.position < o->from) continue;
        if (o->json) {
            put_json(out, &record);
        } else {
            put_row(out, &record);
        }
    }
    spool_chains_free(&chains);
    return status;
}

// Puts the spool in front of what is wrong with it.
static enum sov_status name_spool(const char *path, enum sov_status status,
                                  struct sov_fault *fault) {
    if (status == SOV_ERR_IO || status == SOV_ERR_INTERRUPTED) return status;
    struct sov_fault inner = *fault;
    *fault = (struct sov_fault){0};
    return fault_set(fault, status, "%.256s: %s", path, inner.message);
}

int cli_events(const struct command *command, const struct platform_start *start) {
    struct events_options o = {0};
    bool *const no = NULL;
    const struct option options[] = {
        {OPTION_POSITIONAL, "SPOOL", NULL, NULL, &o.path, no, 0, 0,
         "the file that --events of sov batch writes"},
        {OPTION_FLAG, "--follow", NULL, NULL, &o.follow, no, 0, 0,
         "wait for more at the end, until Ctrl-C"},
        {OPTION_U64, "--from", NULL, "N", &o.from, no, 0, 0,
         "show events from position N of the spool on (default 0)"},
        {OPTION_FLAG, "--json", NULL, NULL, &o.json, no, 0, 0,
         "print a CloudEvents 1.0 object for each event, one a line"},
    };
    int exit_code = 0;
    if (!cli_parse(command, start, options, COUNT_OF(options), &exit_code)) return exit_code;
    if (o.path == NULL) return cli_usage_error(command, "SPOOL is missing");
    platform_watch_interrupt();
    struct sov_fault fault = {0};
    u64 bytes = sizeof(struct spool_reader);
    struct spool_reader *reader = platform_memory_map(bytes);
    struct output out;
    output_init(&out, PLATFORM_STDOUT);
    enum sov_status status = SOV_OK;
    if (reader == NULL) {
        status = fault_set(&fault, SOV_ERR_MEMORY, "%llu bytes are not to be had", bytes);
    } else {
        status = spool_reader_open(reader, o.path, &fault);
        if (status == SOV_OK) {
            status = print_events(&o, reader, &out, &fault);
            spool_reader_close(reader);
        }
        platform_memory_unmap(reader, bytes);
    }
    exit_code = output_finish(&out); // what was in front of the fault
    if (status == SOV_OK) return exit_code;
    (void)name_spool(o.path, status, &fault);
    return cli_fail(&fault);
}
