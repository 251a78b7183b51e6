// SPDX-License-Identifier: Apache-2.0
// Buffered output that remembers its first failure, and whole-file input.
#include "cli/cli.h"
#include "freestanding/mem.h"

void output_init(struct output *out, int descriptor) {
    out->descriptor = descriptor;
    out->status = SOV_OK;
    out->fault = (struct sov_fault){0};
    out->text = TEXT_OVER_ARRAY(out->buffer);
}

void output_flush(struct output *out) {
    if (out->status == SOV_OK && out->text.len > 0) {
        out->status = platform_write(out->descriptor, out->text.data, out->text.len, &out->fault);
    }
    out->text = TEXT_OVER_ARRAY(out->buffer);
}

void output_put(struct output *out, struct str bytes) {
    if (bytes.len + 1 > sizeof out->buffer - out->text.len) output_flush(out);
    if (bytes.len + 1 <= sizeof out->buffer) {
        text_put(&out->text, bytes);
    } else if (out->status == SOV_OK) {
        out->status = platform_write(out->descriptor, bytes.data, bytes.len, &out->fault);
    }
}

// One call formats at most this much; longer slices go through output_put.
#define FORMAT_BYTES_MAX 2048

void output_format(struct output *out, const char *format, ...) {
    char formatted[FORMAT_BYTES_MAX];
    struct text t = TEXT_OVER_ARRAY(formatted);
    va_list args;
    va_start(args, format);
    text_format_v(&t, format, args);
    va_end(args);
    assert(!t.truncated);
    output_put(out, (struct str){(const u8 *)t.data, t.len});
}

// The civil calendar from days, by eras of 400 years.
void output_put_time(struct output *out, u64 ns, bool has_ns) {
    u64 seconds = ns / 1000000000u, days = seconds / 86400, z = days + 719468;
    u32 second = (u32)(seconds % 86400);
    u64 era = z / 146097;
    u32 day_of_era = (u32)(z - era * 146097);
    u32 year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146096) /
                      365;
    u32 day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    u32 shifted = (5 * day_of_year + 2) / 153; // months from March
    u32 day = day_of_year - (153 * shifted + 2) / 5 + 1;
    u32 month = shifted < 10 ? shifted + 3 : shifted - 9;
    u32 year = year_of_era + (u32)era * 400 + (month <= 2);
    output_format(out, "%04u-%02u-%02uT%02u:%02u:%02u", year, month, day, second / 3600,
                  second / 60 % 60, second % 60);
    if (has_ns) output_format(out, ".%09u", (u32)(ns % 1000000000u));
    output_put(out, STR("Z"));
}

void output_put_utf8(struct output *out, struct str bytes) {
    usize clean_from = 0;
    for (usize i = 0; i < bytes.len;) {
        u32 code_point = 0;
        u32 n = utf8_decode(bytes, i, &code_point);
        if (n == 0) {
            output_put(out, (struct str){bytes.data + clean_from, i - clean_from});
            output_put(out, STR("\xef\xbf\xbd"));
            clean_from = i + 1;
        }
        i += MAX(n, 1u);
    }
    output_put(out, (struct str){bytes.data + clean_from, bytes.len - clean_from});
}

// Bytes of one turn of output_json_text.
#define JSON_STEP_BYTES 256

void output_json_text(struct output *out, struct str s) {
    char escaped[JSON_STEP_BYTES * TEXT_JSON_BYTES_MAX + 1];
    while (s.len > 0) {
        struct str step = {s.data, MIN(s.len, (usize)JSON_STEP_BYTES)};
        if (step.len < s.len) step.len = utf8_complete_prefix(step); // at most 3 bytes less
        struct text t = TEXT_OVER_ARRAY(escaped);
        text_put_json(&t, step);
        assert(!t.truncated);
        output_put(out, (struct str){(const u8 *)t.data, t.len});
        s = (struct str){s.data + step.len, s.len - step.len};
    }
}

void output_json_string(struct output *out, struct str s) {
    output_put(out, STR("\""));
    output_json_text(out, s);
    output_put(out, STR("\""));
}

// --- pieces ---

void piece_stream_begin(struct piece_stream *stream, struct output *out,
                        const struct tokenizer *tokenizer, bool json) {
    stream->out = out;
    stream->tokenizer = tokenizer;
    stream->json = json;
    stream->stop = NULL;
    stream->n_pending = 0;
}

void piece_stream_stop_at(struct piece_stream *stream, struct stop_matcher *stop) {
    stop_reset(stop);
    stream->stop = stop;
}

static void put_pending(struct piece_stream *stream, usize n) {
    struct str text = {stream->pending, n};
    if (stream->out != NULL && stream->json) {
        output_json_text(stream->out, text);
    } else if (stream->out != NULL) {
        output_put_utf8(stream->out, text);
    }
    stream->n_pending -= n;
    memmove(stream->pending, stream->pending + n, stream->n_pending);
}

void piece_stream_put_bytes(struct piece_stream *stream, struct str bytes) {
    assert(bytes.len <= CLI_PIECE_BYTES_MAX);
    u8 *end = stream->pending + stream->n_pending;
    if (stream->stop != NULL) {
        stream->n_pending += stop_feed(stream->stop, bytes, end);
    } else {
        memcpy(end, bytes.data, bytes.len);
        stream->n_pending += bytes.len;
    }
    put_pending(stream, utf8_complete_prefix((struct str){stream->pending, stream->n_pending}));
}

void piece_stream_put(struct piece_stream *stream, u32 token) {
    u8 piece[CLI_PIECE_BYTES_MAX];
    usize len = tokenizer_decode(stream->tokenizer, token, false, false, piece, sizeof piece);
    piece_stream_put_bytes(stream, (struct str){piece, len});
}

void piece_stream_end(struct piece_stream *stream) {
    if (stream->stop != NULL) {
        stream->n_pending += stop_finish(stream->stop, stream->pending + stream->n_pending);
    }
    put_pending(stream, stream->n_pending);
}

int output_finish(struct output *out) {
    output_flush(out);
    if (out->status == SOV_OK) return 0;
    bool reader_gone = false;
    struct str message = str_from_z(out->fault.message);
    for (usize i = 0; i + 5 <= message.len; i++) {
        struct str here = {message.data + i, 5};
        reader_gone = reader_gone || str_equal(here, STR("EPIPE"));
    }
    if (!reader_gone) (void)cli_fail(&out->fault);
    return 1;
}

// --- input ---

#define READ_STEP_BYTES (1u << 20)

static enum sov_status file_fault(const char *path, struct sov_fault *fault) {
    return fault_set(fault, SOV_ERR_LIMIT, "%.256s: more than %llu bytes, or no memory for them",
                     path, CLI_FILE_BYTES_MAX);
}

// Doubles the buffer when it is full. Reads to the end, whatever the descriptor is.
static enum sov_status read_to_end(int descriptor, const char *path, struct file_bytes *file,
                                   struct sov_fault *fault) {
    usize len = 0;
    for (;;) {
        if (len == file->memory_bytes) {
            u64 bytes = MAX(2 * file->memory_bytes, (u64)READ_STEP_BYTES);
            void *memory = bytes <= CLI_FILE_BYTES_MAX ? platform_memory_map(bytes) : NULL;
            if (memory == NULL) return file_fault(path, fault);
            if (len > 0) {
                memcpy(memory, file->memory, len);
                platform_memory_unmap(file->memory, file->memory_bytes);
            }
            file->memory = memory;
            file->memory_bytes = bytes;
        }
        usize n_read = 0;
        enum sov_status status = platform_read(descriptor, (u8 *)file->memory + len,
                                               file->memory_bytes - len, &n_read, fault);
        if (status != SOV_OK) return status;
        len += n_read;
        if (len < file->memory_bytes) break;
    }
    file->text = (struct str){file->memory, len};
    return SOV_OK;
}

enum sov_status file_read_all(const char *path, struct file_bytes *file, struct sov_fault *fault) {
    *file = (struct file_bytes){0};
    bool is_stdin = str_equal(str_from_z(path), STR("-"));
    int descriptor = PLATFORM_STDIN;
    enum sov_status status = SOV_OK;
    if (!is_stdin) status = platform_open(path, PLATFORM_OPEN_READ, &descriptor, fault);
    if (status != SOV_OK) return status;
    status = read_to_end(descriptor, is_stdin ? "stdin" : path, file, fault);
    if (!is_stdin) platform_close(descriptor);
    if (status != SOV_OK) file_free(file);
    return status;
}

void file_free(struct file_bytes *file) {
    if (file->memory != NULL) platform_memory_unmap(file->memory, file->memory_bytes);
    *file = (struct file_bytes){0};
}

// --- files that are replaced ---

static enum sov_status name_new(struct replaced_file *file, struct sov_fault *fault) {
    u32 random = 0; // two processes may write to one path
    enum sov_status status = platform_random(&random, sizeof random, fault);
    if (status != SOV_OK) return status;
    struct text t = TEXT_OVER_ARRAY(file->new_path);
    text_format(&t, "%s.%08x.new", file->path, random);
    return t.truncated ? fault_set(fault, SOV_ERR_LIMIT, "the path of the output is too long")
                       : SOV_OK;
}

// What has the name now, opened without waiting for anybody: *before is a regular file's
// descriptor, or -1; *is_other: it is there and no regular file.
static enum sov_status look_at_old(const char *path, int *before, bool *is_other,
                                   struct sov_fault *fault) {
    struct sov_fault inner = {0};
    u64 ignored = 0;
    *is_other = false;
    enum sov_status status = platform_open(path, PLATFORM_OPEN_UPDATE, before, &inner);
    if (status == SOV_OK) {
        *is_other = platform_file_size(*before, &ignored, NULL) != SOV_OK;
        if (*is_other) platform_close(*before);
    }
    if (status != SOV_OK || *is_other) *before = -1;
    if (status == SOV_OK || platform_is_missing(path)) return SOV_OK;
    return fault_set(fault, status, "%s", inner.message);
}

enum sov_status replaced_file_open(struct replaced_file *file, const char *path,
                                   struct sov_fault *fault) {
    bool is_stdout = path == NULL || str_equal(str_from_z(path), STR("-")), is_other = false;
    *file = (struct replaced_file){is_stdout ? NULL : path, PLATFORM_STDOUT, false, ""};
    if (is_stdout) return SOV_OK;
    int before = -1;
    enum sov_status status = look_at_old(path, &before, &is_other, fault);
    if (status != SOV_OK) return status;
    if (is_other) return platform_open(path, PLATFORM_OPEN_CREATE, &file->descriptor, fault);
    status = name_new(file, fault);
    if (status == SOV_OK) {
        status = platform_open(file->new_path, PLATFORM_OPEN_CREATE, &file->descriptor, fault);
        file->is_new = status == SOV_OK;
    }
    if (status == SOV_OK && before >= 0) {
        status = platform_take_mode(file->descriptor, before, fault);
    }
    if (before >= 0) platform_close(before);
    if (status != SOV_OK && file->is_new) {
        enum sov_status removed = replaced_file_close(file, false, NULL);
        (void)removed; // what failed first counts
    }
    return status;
}

enum sov_status replaced_file_close(struct replaced_file *file, bool is_whole,
                                    struct sov_fault *fault) {
    if (file->path == NULL) return SOV_OK;
    enum sov_status status = SOV_OK;
    if (file->is_new && is_whole) status = platform_sync(file->descriptor, fault);
    platform_close(file->descriptor);
    if (!file->is_new) return status;
    if (status == SOV_OK && is_whole) status = platform_rename(file->new_path, file->path, fault);
    if (status == SOV_OK && is_whole) return SOV_OK;
    enum sov_status removed = platform_remove(file->new_path, fault);
    return status != SOV_OK ? status : removed;
}

enum sov_status replaced_file_check(const char *path, struct sov_fault *fault) {
    struct replaced_file file;
    int before = -1;
    bool is_other = path == NULL || str_equal(str_from_z(path), STR("-"));
    enum sov_status status = is_other ? SOV_OK : look_at_old(path, &before, &is_other, fault);
    if (before >= 0) platform_close(before);
    if (status != SOV_OK || is_other) return status;
    status = replaced_file_open(&file, path, fault);
    return status != SOV_OK ? status : replaced_file_close(&file, false, fault);
}

static bool is_separator(u8 byte) {
    return byte == ' ' || byte == '\t' || byte == '\r' || byte == '\n' || byte == ',' ||
           byte == '[' || byte == ']';
}

enum sov_status token_list_parse(struct str text, const char *path, struct token_list *list,
                                 struct sov_fault *fault) {
    *list = (struct token_list){0};
    u64 bytes = (text.len / 2 + 1) * sizeof(u32); // every id but the last has a separator
    u32 *ids = platform_memory_map(bytes);
    if (ids == NULL) {
        return fault_set(fault, SOV_ERR_MEMORY, "token list: %llu bytes are not to be had", bytes);
    }
    *list = (struct token_list){.ids = ids, .memory_bytes = bytes};
    for (usize i = 0; i < text.len;) {
        if (is_separator(text.data[i])) {
            i++;
            continue;
        }
        usize end = i;
        while (end < text.len && !is_separator(text.data[end])) end++;
        struct str word = {text.data + i, end - i};
        u64 id = 0;
        if (!text_parse_u64(word, &id) || id >= TOKEN_NONE) {
            token_list_free(list);
            return fault_set(fault, SOV_ERR_FORMAT,
                             "%.256s: a token id was expected at byte %llu, found \"%.*s\"", path,
                             (u64)i, STR_ARG(word));
        }
        ids[list->n++] = (u32)id;
        i = end;
    }
    return SOV_OK;
}
