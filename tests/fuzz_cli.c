// SPDX-License-Identifier: Apache-2.0
// libFuzzer harness of the command line: program_main as a whole, every command, from the arguments
// to the exit code. Nothing outside is touched, because the platform is small and made up here (the
// linker's --wrap puts it between the program and hosted.c):
//
//   files      "m", "s": tiny models with a BPE and an SPM vocabulary; "t": the rest of the input,
//              which is stdin too; the log of a store that is made; what else is created goes
//              nowhere; no other file exists, and every folder can be made
//   memory     a mapping above a limit, or the Nth, is refused as a system may refuse it
//   threads    no more than THREADS_MAX
//   signals    SIGINT comes when it was asked for POLLS times, at the latest SIGTERM at POLLS_MAX
//   output     kept and looked at; may break off as a pipe does
//
//   input: {arguments, flags, polls, refused mapping, pieces of stdin} one byte each, the arguments
//   (ended by zero bytes), the rest
//
// The exit code is one of those promised; a mistake in usage writes nothing to stdout; stdout is
// UTF-8, and JSON with --json; files, memory and the terminal's settings are given back.
#define _GNU_SOURCE
#include "cli/cli.h"
#include "freestanding/mem.h"
#include "gguf_builder.h"
#include "vocab_builder.h"
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define ARGUMENTS_MAX 32
#define THREADS_MAX 2 // besides the first
#define POLLS_MAX 120 // bounds the tokens of one run
#define MEMORY_BYTES_MAX (6ull << 20)
#define SHOWN_BYTES_MAX (1u << 20)

int LLVMFuzzerTestOneInput(const u8 *data, usize bytes);

enum flags {
    FLAG_TERMINAL = 1,      // stdin, stdout and stderr are one
    FLAG_DUMB = 2,          // TERM=dumb
    FLAG_PIPE_BREAKS = 4,   // stdout takes 64 bytes
    FLAG_LITTLE_MEMORY = 8, // mappings of at most 384 KiB
    FLAG_ONE_CPU = 16,
};

enum kept { LOG, LOCK, SIDECAR, KEPT }; // files that are found again

struct shown {
    u8 bytes[SHOWN_BYTES_MAX];
    usize len; // may be more than there is room for
};

static struct {
    u32 flags, interrupt_at, refused_map, piece_bytes;
    struct str rest; // of the input
    usize n_read;    // of stdin
    u32 n_polls, n_maps, n_open, n_raw;
    u32 n_threads; // changed by the first thread only
    u64 n_clock;
    bool forgotten; // the SIGINT was
    struct shown out, err;
    int kept[KEPT];      // files of the store; -1: was not made
    bool is_named[KEPT]; // has its name
    int models[2];       // "m" and "s", built at the start, when nothing is refused yet
    bool has_models;
} world;

// --- models ---

static u32 random_state = 1;
static u8 random_byte(void) {
    random_state = random_state * 1664525 + 1013904223;
    return (u8)(random_state >> 24);
}

static void put_array_bytes(struct builder *b, const char *name, u32 element, u64 count,
                            const u8 *bytes, usize n) {
    put_key_array(b, str_from_z(name), element, count);
    put_bytes(b, bytes, n);
}

static void put_vocabulary(struct builder *b, bool spm) {
    static struct vocab v;
    vocab_start(&v, spm ? "llama" : "gpt2", spm ? "" : "llama-bpe");
    if (spm) {
        vocab_add_byte_tokens(&v, TOKEN_BYTE);
        vocab_add_z(&v, "▁", TOKEN_NORMAL, -1);
        vocab_add_z(&v, "▁a", TOKEN_NORMAL, -2);
        vocab_add_z(&v, "é", TOKEN_NORMAL, -3);
    } else {
        vocab_add_letters(&v);
        vocab_merge(&v, "Ġ", "a");
        vocab_merge(&v, "Ã", "©");
    }
    put_key_u32(b, STR("tokenizer.ggml.bos_token_id"), vocab_add_z(&v, "<s>", TOKEN_CONTROL, 0));
    put_key_u32(b, STR("tokenizer.ggml.eos_token_id"), vocab_add_z(&v, "</s>", TOKEN_CONTROL, 0));
    vocab_add_z(&v, spm ? "<start_of_turn>" : "<|im_start|>", TOKEN_CONTROL, 0);
    vocab_add_z(&v, spm ? "<end_of_turn>" : "<|im_end|>", TOKEN_CONTROL, 0);
    put_key_str(b, STR("tokenizer.chat_template"),
                spm ? STR("{{ bos_token }}{% for m in messages %}<start_of_turn>model "
                          "{{ m['content'] | trim }}<end_of_turn>\n{% endfor %}")
                    : STR("{% for m in messages %}{{'<|im_start|>' + m['role'] + '\n' + "
                          "m['content'] + '<|im_end|>' + '\n'}}{% endfor %}"));
    u32 n = v.source.n_tokens;
    put_key_str(b, STR("tokenizer.ggml.model"), v.source.model);
    put_key_str(b, STR("tokenizer.ggml.pre"), v.source.pre);
    put_array_bytes(b, "tokenizer.ggml.tokens", GGUF_STRING, n, v.tokens, v.tokens_bytes);
    put_array_bytes(b, "tokenizer.ggml.token_type", GGUF_I32, n, v.types, 4 * n);
    if (spm) {
        put_array_bytes(b, "tokenizer.ggml.scores", GGUF_F32, n, v.scores, 4 * n);
    } else {
        put_array_bytes(b, "tokenizer.ggml.merges", GGUF_STRING, v.source.n_merges, v.merges,
                        v.merges_bytes);
    }
    put_key_u32(b, STR("llama.vocab_size"), n);
}

// Q8_0 with small weights, or an F32 row of ones when `rows` is 0.
static void put_data(struct builder *b, u64 k, u64 rows) {
    if (rows == 0) {
        for (u64 i = 0; i < k; i++) put_u32(b, f32_bits(1.0f));
        return;
    }
    usize begin = b->len;
    for (u64 i = 0; i < rows * (k / 32); i++) {
        f16 scale = f32_to_f16(0.004f);
        put_bytes(b, &scale, sizeof scale);
        for (u32 j = 0; j < 32; j++) {
            u8 byte = random_byte();
            put_bytes(b, &byte, 1);
        }
    }
    put_zeros(b, (usize)(round_up(b->len - begin, 32) - (b->len - begin)));
}

// A file in memory with one layer, n_embd 32, and so on.
static int build_model(bool spm) {
    enum { EMBD = 32, FF = 32, HEADS = 2, CONTEXT = 128, VOCABULARY = 256 + 3 + 4 };
    static const struct {
        const char *name;
        u64 k, rows;
    } tensors[] = {
        {"blk.0.attn_norm.weight", EMBD, 0},      {"blk.0.attn_q.weight", EMBD, EMBD},
        {"blk.0.attn_k.weight", EMBD, EMBD},      {"blk.0.attn_v.weight", EMBD, EMBD},
        {"blk.0.attn_output.weight", EMBD, EMBD}, {"blk.0.ffn_norm.weight", EMBD, 0},
        {"blk.0.ffn_gate.weight", EMBD, FF},      {"blk.0.ffn_up.weight", EMBD, FF},
        {"blk.0.ffn_down.weight", FF, EMBD},      {"output_norm.weight", EMBD, 0},
    };
    struct builder b = builder_new(1 << 17);
    builder_begin(&b);
    put_key_str(&b, STR("general.architecture"), STR("llama"));
    put_key_str(&b, STR("general.name"), STR("tiny \"\xff\""));
    put_key_u32(&b, STR("llama.block_count"), 1);
    put_key_u32(&b, STR("llama.context_length"), CONTEXT);
    put_key_u32(&b, STR("llama.embedding_length"), EMBD);
    put_key_u32(&b, STR("llama.feed_forward_length"), FF);
    put_key_u32(&b, STR("llama.attention.head_count"), HEADS);
    put_key(&b, STR("llama.attention.layer_norm_rms_epsilon"), GGUF_F32);
    put_u32(&b, f32_bits(1e-5f));
    put_vocabulary(&b, spm);
    u64 n_vocab = VOCABULARY - (spm ? 0 : 1); // as many as put_vocabulary made
    put_tensor(&b, STR("token_embd.weight"), DTYPE_Q8_0, EMBD, n_vocab);
    for (u32 i = 0; i < COUNT_OF(tensors); i++) {
        enum dtype type = tensors[i].rows == 0 ? DTYPE_F32 : DTYPE_Q8_0;
        put_tensor(&b, str_from_z(tensors[i].name), type, tensors[i].k, tensors[i].rows);
    }
    builder_end(&b);
    put_data(&b, EMBD, n_vocab);
    for (u32 i = 0; i < COUNT_OF(tensors); i++) put_data(&b, tensors[i].k, tensors[i].rows);
    struct model model;
    struct sov_fault fault = {0};
    enum sov_status status = model_parse(&model, b.data, b.len, &fault);
    assert(status == SOV_OK);
    model_close(&model);
    int descriptor = memfd_create("model", 0);
    assert(descriptor >= 0 && write(descriptor, b.data, b.len) == (ssize_t)b.len);
    builder_free(&b);
    return descriptor;
}

// --- the platform between the program and hosted.c ---

#define WRAP(result, name, ...)        \
    result __real_##name(__VA_ARGS__); \
    result __wrap_##name(__VA_ARGS__); \
    result __wrap_##name(__VA_ARGS__)

static int file_of(const char *path) {
    struct str name = str_from_z(path);
    bool is_spm = str_equal(name, STR("s"));
    if (str_equal(name, STR("m")) || is_spm) {
        int descriptor = dup(world.models[is_spm]);
        lseek(descriptor, 0, SEEK_SET);
        return descriptor;
    }
    if (!str_equal(name, STR("t"))) return -1;
    int descriptor = memfd_create("text", 0);
    assert(descriptor >= 0);
    ssize_t written = write(descriptor, world.rest.data, world.rest.len);
    assert(written == (ssize_t)world.rest.len);
    lseek(descriptor, 0, SEEK_SET);
    return descriptor;
}

static bool ends_with(const char *path, const char *end) {
    struct str s = str_from_z(path), wanted = str_from_z(end);
    if (s.len < wanted.len) return false;
    return str_equal((struct str){s.data + s.len - wanted.len, wanted.len}, wanted);
}

// Which file of a store a path names, with *is_new before it is renamed; KEPT: none.
static enum kept kept_of(const char *path, bool *is_new) {
    static const char *const names[KEPT] = {"/log", "/lock", "/sidecar"};
    static const char *const new_names[KEPT] = {"/log.new", NULL, "/sidecar.new"};
    for (u32 i = 0; i < KEPT; i++) {
        *is_new = new_names[i] != NULL && ends_with(path, new_names[i]);
        if (*is_new || ends_with(path, names[i])) return (enum kept)i;
    }
    return KEPT;
}

WRAP(bool, platform_is_missing, const char *path) {
    bool is_new = false;
    enum kept kept = kept_of(path, &is_new);
    return kept == KEPT || is_new || !world.is_named[kept];
}

WRAP(enum sov_status, platform_make_folder, const char *path, struct sov_fault *fault) {
    (void)path;
    (void)fault;
    return SOV_OK;
}

WRAP(enum sov_status, platform_sync_folder, const char *path, struct sov_fault *fault) {
    (void)path;
    (void)fault;
    return SOV_OK;
}

WRAP(enum sov_status, platform_rename, const char *from, const char *to, struct sov_fault *fault) {
    (void)from;
    (void)fault;
    bool is_new = false;
    enum kept kept = kept_of(to, &is_new);
    if (kept != KEPT) world.is_named[kept] = true;
    return SOV_OK;
}

// Nothing outside is there to be removed, or listed.
WRAP(enum sov_status, platform_remove, const char *path, struct sov_fault *fault) {
    return fault_set(fault, SOV_ERR_IO, "remove %s: ENOENT", path);
}

WRAP(enum sov_status, platform_remove_folder, const char *path, struct sov_fault *fault) {
    return fault_set(fault, SOV_ERR_IO, "remove folder %s: ENOENT", path);
}

WRAP(enum sov_status, platform_folder_names, const char *path, char *names, usize capacity,
     usize *n_bytes, struct sov_fault *fault) {
    (void)names;
    (void)capacity;
    *n_bytes = 0;
    return fault_set(fault, SOV_ERR_IO, "open %s: ENOENT", path);
}

WRAP(enum sov_status, platform_open, const char *path, enum platform_open_mode mode,
     int *descriptor, struct sov_fault *fault) {
    bool creates = mode != PLATFORM_OPEN_READ && mode != PLATFORM_OPEN_UPDATE, is_new = false;
    bool empties = mode == PLATFORM_OPEN_CREATE || mode == PLATFORM_OPEN_CREATE_PRIVATE;
    enum kept kept = kept_of(path, &is_new);
    int opened = -1;
    if (kept != KEPT && world.kept[kept] >= 0 && !empties) {
        opened = dup(world.kept[kept]);
    } else {
        opened = creates ? memfd_create("created", 0) : file_of(path);
    }
    if (kept != KEPT && creates) {
        if (empties && world.kept[kept] >= 0) close(world.kept[kept]);
        if (empties || world.kept[kept] < 0) world.kept[kept] = dup(opened);
        world.is_named[kept] = world.is_named[kept] || !is_new;
    }
    if (opened < 0) {
        return fault_set(fault, SOV_ERR_IO, "open %.256s: ENOENT (no such file or folder)", path);
    }
    world.n_open++;
    *descriptor = opened;
    return SOV_OK;
}

WRAP(void, platform_close, int descriptor) {
    assert(world.n_open > 0);
    world.n_open--;
    __real_platform_close(descriptor);
}

static bool interrupted(void) {
    if (world.n_polls >= POLLS_MAX) return true;
    return world.interrupt_at != 0 && world.n_polls >= world.interrupt_at && !world.forgotten;
}

WRAP(bool, platform_interrupted, void) {
    world.n_polls++;
    return interrupted();
}

WRAP(bool, platform_forget_interrupt, void) {
    world.forgotten = true;
    return !interrupted();
}

WRAP(void, platform_watch_interrupt, void) {}

WRAP(enum sov_status, platform_read_some, int descriptor, void *buffer, usize bytes, usize *n_read,
     struct sov_fault *fault) {
    if (descriptor != PLATFORM_STDIN) {
        return __real_platform_read_some(descriptor, buffer, bytes, n_read, fault);
    }
    world.n_polls++;
    if (interrupted()) return fault_set(fault, SOV_ERR_INTERRUPTED, "read: stopped by a signal");
    usize n = MIN(world.rest.len - world.n_read, MIN(bytes, (usize)world.piece_bytes));
    if (n > 0) memcpy(buffer, world.rest.data + world.n_read, n);
    world.n_read += n;
    *n_read = n;
    return SOV_OK;
}

WRAP(bool, platform_can_read, int descriptor) {
    if (descriptor != PLATFORM_STDIN) return __real_platform_can_read(descriptor);
    return world.piece_bytes % 2 == 0 || world.n_polls % 2 == 0; // it may have to wait, or not
}

WRAP(enum sov_status, platform_read, int descriptor, void *buffer, usize bytes, usize *n_read,
     struct sov_fault *fault) {
    if (descriptor != PLATFORM_STDIN) {
        return __real_platform_read(descriptor, buffer, bytes, n_read, fault);
    }
    if (interrupted()) return fault_set(fault, SOV_ERR_INTERRUPTED, "read: stopped by a signal");
    *n_read = MIN(world.rest.len - world.n_read, bytes);
    if (*n_read > 0) memcpy(buffer, world.rest.data + world.n_read, *n_read);
    world.n_read += *n_read;
    return SOV_OK;
}

WRAP(enum sov_status, platform_write, int descriptor, const void *buffer, usize bytes,
     struct sov_fault *fault) {
    if (descriptor != PLATFORM_STDOUT && descriptor != PLATFORM_STDERR) {
        return __real_platform_write(descriptor, buffer, bytes, fault);
    }
    bool is_out = descriptor == PLATFORM_STDOUT;
    struct shown *shown = is_out ? &world.out : &world.err;
    if (is_out && (world.flags & FLAG_PIPE_BREAKS) != 0 && shown->len + bytes > 64) {
        return fault_set(fault, SOV_ERR_IO, "write descriptor 1: EPIPE (nobody reads)");
    }
    usize room = SHOWN_BYTES_MAX - MIN(shown->len, (usize)SHOWN_BYTES_MAX);
    usize n = MIN(room, bytes);
    if (n > 0) memcpy(shown->bytes + shown->len, buffer, n);
    shown->len += bytes;
    return SOV_OK;
}

WRAP(bool, platform_is_terminal, int descriptor) {
    return descriptor <= PLATFORM_STDERR && (world.flags & FLAG_TERMINAL) != 0;
}

WRAP(bool, platform_terminal_raw, int descriptor, struct platform_terminal *before) {
    if (descriptor > PLATFORM_STDERR || (world.flags & FLAG_TERMINAL) == 0) return false;
    memset(before, 7, sizeof *before);
    world.n_raw++;
    return true;
}

WRAP(void, platform_terminal_restore, int descriptor, const struct platform_terminal *before) {
    assert(world.n_raw == 1 && before->settings[0] == 7 && descriptor <= PLATFORM_STDERR);
    world.n_raw--;
}

WRAP(u32, platform_terminal_columns, int descriptor) {
    (void)descriptor;
    return world.piece_bytes; // 1 to 256
}

WRAP(void *, platform_memory_map, usize bytes) {
    u32 n_maps = __atomic_add_fetch(&world.n_maps, 1, __ATOMIC_RELAXED); // the recorder maps too
    u64 limit = (world.flags & FLAG_LITTLE_MEMORY) != 0 ? MEMORY_BYTES_MAX / 16 : MEMORY_BYTES_MAX;
    if (n_maps == world.refused_map || bytes > limit) return NULL;
    return __real_platform_memory_map(bytes);
}

WRAP(enum sov_status, platform_thread_start, platform_thread_main *thread_main, void *argument,
     struct platform_thread **thread, struct sov_fault *fault) {
    if (world.n_threads == THREADS_MAX) {
        return fault_set(fault, SOV_ERR_IO, "start a thread: EAGAIN (too many)");
    }
    world.n_threads++;
    return __real_platform_thread_start(thread_main, argument, thread, fault);
}

WRAP(void, platform_thread_join, struct platform_thread *thread) {
    world.n_threads--;
    __real_platform_thread_join(thread);
}

WRAP(u32, platform_cpu_count, void) { return (world.flags & FLAG_ONE_CPU) != 0 ? 1 : 2; }
WRAP(void, platform_sleep, u64 ns) {
    (void)ns;
    world.n_polls++;
}

WRAP(u64, platform_monotonic_ns, void) { return world.n_clock += 1000003; }

WRAP(enum sov_status, platform_random, void *buffer, usize bytes, struct sov_fault *fault) {
    (void)fault;
    memset(buffer, 0x5a, bytes);
    return SOV_OK;
}

// --- JSON, as far as it must be to be read by a program ---

static usize skip_json_string(struct str s, usize at) {
    if (at >= s.len || s.data[at++] != '"') return 0;
    while (at < s.len && s.data[at] != '"') {
        if (s.data[at] < 0x20) return 0;
        if (s.data[at] != '\\') {
            at++;
            continue;
        }
        if (at + 1 >= s.len) return 0;
        u8 kind = s.data[at + 1];
        at += 2;
        if (kind != 'u') {
            bool known = kind == 'n' || kind == 'r' || kind == 't' || kind == '"' || kind == '\\';
            if (!known) return 0;
            continue;
        }
        for (u32 i = 0; i < 4; i++, at++) {
            bool digit = at < s.len && ((s.data[at] >= '0' && s.data[at] <= '9') ||
                                        (s.data[at] >= 'a' && s.data[at] <= 'f'));
            if (!digit) return 0;
        }
    }
    return at < s.len ? at + 1 : 0;
}

// Behind a string, a number or a word; 0: there is none.
static usize skip_json_scalar(struct str s, usize at) {
    if (at < s.len && s.data[at] == '"') return skip_json_string(s, at);
    static const char *const words[] = {"true", "false", "null"};
    struct str rest = {s.data + at, s.len - at};
    for (u32 i = 0; i < COUNT_OF(words); i++) {
        struct str word = str_from_z(words[i]);
        if (str_starts_with(rest, word)) return at + word.len;
    }
    usize end = at;
    while (end < s.len && ((s.data[end] >= '0' && s.data[end] <= '9') || s.data[end] == '-' ||
                           s.data[end] == '+' || s.data[end] == '.' || s.data[end] == 'e')) {
        end++;
    }
    f64 value = 0;
    return text_parse_f64((struct str){s.data + at, end - at}, &value) ? end : 0;
}

// One value that is all of s. `closers`: of the arrays and objects that are open.
static bool is_json(struct str s) {
    char closers[64];
    u32 depth = 0;
    usize at = 0;
    for (;;) {
        // A value stands here, behind a name in an object.
        if (depth > 0 && closers[depth - 1] == '}') {
            at = skip_json_string(s, at);
            if (at == 0 || at >= s.len || s.data[at++] != ':') return false;
        }
        if (at >= s.len) return false;
        u8 opener = s.data[at];
        if (opener == '{' || opener == '[') {
            if (depth == sizeof closers) return false;
            closers[depth++] = opener == '{' ? '}' : ']';
            at++;
            if (at >= s.len || s.data[at] != (u8)closers[depth - 1]) continue;
        } else {
            at = skip_json_scalar(s, at);
            if (at == 0) return false;
        }
        while (depth > 0 && at < s.len && s.data[at] == (u8)closers[depth - 1]) {
            depth--;
            at++;
        }
        if (depth == 0) return at == s.len;
        if (at >= s.len || s.data[at++] != ',') return false;
    }
}

static void check_json_lines(struct str s) {
    usize begin = 0;
    for (usize i = 0; i < s.len; i++) {
        if (s.data[i] != '\n') continue;
        bool sound = is_json((struct str){s.data + begin, i - begin});
        assert(sound);
        begin = i + 1;
    }
    assert(begin == s.len);
}

// --- one run ---

static bool is_utf8(struct str s) {
    for (usize i = 0; i < s.len;) {
        u32 code_point = 0;
        u32 n = utf8_decode(s, i, &code_point);
        if (n == 0) return false;
        i += n;
    }
    return true;
}

// Whether --json was surely given as an option, not as the value of one.
static bool asks_for_json(char **args, u32 n) {
    bool asks = false;
    if (n > 1 && str_equal(str_from_z(args[1]), STR("help"))) return false;
    for (u32 i = 1; i < n; i++) {
        struct str argument = str_from_z(args[i]);
        if (str_equal(argument, STR("--")) || str_equal(argument, STR("-h")) ||
            str_equal(argument, STR("--help"))) {
            return false;
        }
        bool behind_option = i > 2 && args[i - 1][0] == '-';
        asks = asks || (str_equal(argument, STR("--json")) && !behind_option);
    }
    return asks;
}

static void check_output(int code, char **args, u32 n) {
    assert((code >= 0 && code <= 4) || code == CLI_EXIT_INTERRUPTED);
    struct str out = {world.out.bytes, MIN(world.out.len, (usize)SHOWN_BYTES_MAX)};
    struct str err = {world.err.bytes, MIN(world.err.len, (usize)SHOWN_BYTES_MAX)};
    bool whole = world.out.len <= SHOWN_BYTES_MAX && (world.flags & FLAG_PIPE_BREAKS) == 0;
    bool terminal = (world.flags & FLAG_TERMINAL) != 0; // the line editor shows what was typed
    if (code == 2) {
        assert(out.len == 0 && err.len > 0);
        assert(str_starts_with(err, STR("sov: ")) || str_starts_with(err, STR("sov ")));
    }
    assert((code != 3 && code != 4) || err.len > 0);
    assert(err.len == 0 || terminal || err.data[err.len - 1] == '\n');
    // Bytes as they are: of messages, and of tokens, which may be parts of characters.
    struct str command = n > 1 ? str_from_z(args[1]) : STR("");
    bool is_verbatim = str_equal(command, STR("template")) ||
                       (str_equal(command, STR("detokenize")) && !asks_for_json(args, n));
    if (whole && !is_verbatim) assert(is_utf8(out));
    if (!terminal) assert(is_utf8(err));
    if (whole && !terminal && (code == 0 || code == CLI_EXIT_INTERRUPTED) &&
        asks_for_json(args, n)) {
        check_json_lines(out);
    }
    bool is_help = false;
    for (u32 i = 1; i < n; i++) {
        struct str argument = str_from_z(args[i]);
        is_help = is_help || str_equal(argument, STR("-h")) || str_equal(argument, STR("--help"));
    }
    if (whole && !is_help && str_equal(command, STR("batch"))) check_json_lines(out);
}

// Splits the arguments off, each in memory of its own size, the list too.
static char **take_arguments(const u8 **at, const u8 *end, u32 *n) {
    char **args = malloc((*n + 1) * sizeof *args);
    assert(args != NULL);
    args[0] = malloc(4);
    assert(args[0] != NULL);
    memcpy(args[0], "sov", 4);
    u32 taken = 1;
    while (taken <= *n && *at < end) {
        const u8 *begin = *at;
        while (*at < end && **at != 0) ++*at;
        usize len = (usize)(*at - begin);
        if (*at < end) ++*at;
        args[taken] = malloc(len + 1);
        assert(args[taken] != NULL);
        memcpy(args[taken], begin, len);
        args[taken++][len] = 0;
    }
    args = realloc(args, taken * sizeof *args);
    assert(args != NULL);
    *n = taken;
    return args;
}

int LLVMFuzzerTestOneInput(const u8 *data, usize bytes) {
    if (bytes < 5) return 0;
    for (u32 i = 0; i < 2 && !world.has_models; i++) world.models[i] = build_model(i == 1);
    world.has_models = true;
    const u8 *at = data + 5, *end = data + bytes;
    u32 n = data[0] % ARGUMENTS_MAX;
    char **args = take_arguments(&at, end, &n);
    world.out.len = world.err.len = 0;
    world.flags = data[1];
    world.interrupt_at = data[2] % POLLS_MAX;
    world.refused_map = data[3];
    world.piece_bytes = data[4] + 1u;
    world.rest = (struct str){at, (usize)(end - at)};
    world.n_read = 0;
    world.n_polls = world.n_maps = world.n_open = world.n_raw = world.n_threads = 0;
    world.n_clock = 0;
    world.forgotten = false;
    for (u32 i = 0; i < KEPT; i++) {
        world.kept[i] = -1;
        world.is_named[i] = false;
    }
    static const char *const dumb[] = {"TERM=dumb", "HOME=/h", NULL};
    static const char *const plain[] = {"TERM=x", "HOME=/h", NULL};
    struct platform_start start = {
        .n_args = n,
        .args = (const char *const *)args,
        .environment = (world.flags & FLAG_DUMB) != 0 ? dumb : plain,
    };
    u64 mapped = platform_memory_mapped();
    int code = program_main(&start);
    assert(platform_memory_mapped() == mapped);
    assert(world.n_open == 0 && world.n_raw == 0 && world.n_threads == 0);
    for (u32 i = 0; i < KEPT; i++) {
        if (world.kept[i] >= 0) close(world.kept[i]);
    }
    check_output(code, args, n);
    for (u32 i = 0; i < n; i++) free(args[i]);
    free(args);
    return 0;
}
