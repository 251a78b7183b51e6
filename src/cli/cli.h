// SPDX-License-Identifier: Apache-2.0
// What the commands of sov share: a table-driven option parser, buffered output, and the opening of
// a model with a message a person can act on. A command is one row of the table in main.c and one
// function.
//
// L1. Data goes to stdout, everything else to stderr.
// L2. Exit codes: 0 fine, 1 the run failed, 2 usage, 3 the input is damaged or unsupported, 4 a
//     record does not verify, 130 stopped by SIGINT or SIGTERM.
#pragma once
#include "cli/record.h"
#include "engine/engine.h"
#include "platform/platform.h"
#include "request/stop.h"

#define CLI_EXIT_INTERRUPTED 130
#define CLI_FILE_BYTES_MAX (1ull << 30)
#define CLI_PIECE_BYTES_MAX 65536 // longest text of one token (checked when a vocabulary is opened)

enum option_kind {
    OPTION_FLAG, // bool
    OPTION_U32,  // decimal, `min` to `max`
    OPTION_I32,
    OPTION_U64,
    OPTION_F32,
    OPTION_NUMBERS,     // struct option_numbers, each `min` to `max`, separated by commas
    OPTION_STRING,      // const char *
    OPTION_LIST,        // struct option_list, the option may be given again
    OPTION_POSITIONAL,  // const char *, one argument that is not an option
    OPTION_POSITIONALS, // struct option_list, all of them
};

struct option_list {
    const char **values; // [capacity]
    u32 n, capacity;
};

#define OPTION_NUMBERS_MAX 16
struct option_numbers {
    u32 values[OPTION_NUMBERS_MAX];
    u32 n;
};

struct option {
    enum option_kind kind;
    const char *name;      // "--temp" or "-n"; for a positional its name in the usage line
    const char *long_name; // second spelling, or NULL
    const char *value;     // how the help calls the value: "N", "FILE"
    void *target;
    bool *given;  // set when the option appears, or NULL
    u32 min, max; // of OPTION_U32 and OPTION_NUMBERS
    const char *help;
};

struct command {
    const char *name, *summary, *usage, *details;
    int (*run)(const struct command *command, const struct platform_start *start);
};

int cli_run(const struct command *, const struct platform_start *);
int cli_chat(const struct command *, const struct platform_start *);
int cli_template(const struct command *, const struct platform_start *);
int cli_tokenize(const struct command *, const struct platform_start *);
int cli_detokenize(const struct command *, const struct platform_start *);
int cli_logits(const struct command *, const struct platform_start *);
int cli_bench(const struct command *, const struct platform_start *);
int cli_perplexity(const struct command *, const struct platform_start *);
int cli_trace(const struct command *, const struct platform_start *);
int cli_inspect(const struct command *, const struct platform_start *);
int cli_batch(const struct command *, const struct platform_start *);
int cli_events(const struct command *, const struct platform_start *);
int cli_verify(const struct command *, const struct platform_start *);
int cli_replay(const struct command *, const struct platform_start *);
int cli_resume(const struct command *, const struct platform_start *);
int cli_log(const struct command *, const struct platform_start *);
int cli_conform(const struct command *, const struct platform_start *);
int cli_version(const struct command *, const struct platform_start *);

// Parses start->args from index 2. `-h` and `--help` print the help on stdout and give *exit_code 0
// with the result false; a mistake prints one line on stderr and gives 2. Options may be given as
// "--name value" or "--name=value"; "--" ends them.
bool cli_parse(const struct command *command, const struct platform_start *start,
               const struct option *options, u32 n_options, int *exit_code);

// "sov: MESSAGE" on stderr; returns the exit code of the fault.
int cli_fail(const struct sov_fault *fault);
// A fault of usage: one line, and where help is. Returns 2.
int cli_usage_error(const struct command *command, const char *format, ...) PRINTF_LIKE(2, 3);

// --- options of every command that runs a model ---
struct model_options {
    const char *model_path, *sha256, *isa, *power_folder;
    const char *backend;  // of commands with BACKEND_OPTION, which set engine.start; else the CPU
    bool has_device;      // --device: a card is wanted
    const char *numerics; // of commands with NUMERICS_OPTION; NULL: exact
    struct engine_config engine;
    bool has_kv_shuffle;
    struct record_options record;
};
#define MODEL_OPTION(m)                                                         \
    {OPTION_STRING,                                                             \
     "-m",                                                                      \
     "--model",                                                                 \
     "MODEL",                                                                   \
     &(m)->model_path,                                                          \
     NULL,                                                                      \
     0,                                                                         \
     0,                                                                         \
     "GGUF file (first shard of a split model)"},                               \
    {                                                                           \
        OPTION_STRING, "--model-sha256", NULL, "HEX", &(m)->sha256, NULL, 0, 0, \
            "refuse the model unless its SHA-256 is this (all shards in order)" \
    }
#define BACKEND_OPTION(m)                                                                      \
    {OPTION_STRING,                                                                            \
     "--backend",                                                                              \
     NULL,                                                                                     \
     "NAME",                                                                                   \
     &(m)->backend,                                                                            \
     NULL,                                                                                     \
     0,                                                                                        \
     0,                                                                                        \
     "what computes: cpu, cuda or auto (default auto: CUDA if there)"},                        \
    {                                                                                          \
        OPTION_U32, "--device", NULL, "N", &(m)->engine.cuda_device, &(m)->has_device, 0,      \
            CUDA_DEVICE_MAX, "the card, in the driver's order from 0 on; means --backend cuda" \
    }
#define CUDA_DEVICE_MAX 255
#define NUMERICS_OPTION(m)                                                     \
    {                                                                          \
        OPTION_STRING, "--numerics", NULL, "NAME", &(m)->numerics, NULL, 0, 0, \
            "exact, or tensor: f16 matrix units of a card (default exact)"     \
    }
// Of commands that compute many sequences at once.
#define SEQUENCES_OPTIONS(m)                                                                \
    {OPTION_U32, "--max-seqs",          NULL,                                               \
     "N",        &(m)->engine.max_seqs, NULL,                                               \
     1,          SOV_MAX_SEQS,          "sequences at once (default 16)"},                  \
        {OPTION_U32,                                                                        \
         "--kv-blocks",                                                                     \
         NULL,                                                                              \
         "N",                                                                               \
         &(m)->engine.kv_blocks,                                                            \
         NULL,                                                                              \
         1,                                                                                 \
         UINT_MAX,                                                                          \
         "KV blocks of 16 tokens for all of them (default: enough for each, up to 2 GiB)"}, \
        {OPTION_U32,                                                                        \
         "--spill-blocks",                                                                  \
         NULL,                                                                              \
         "N",                                                                               \
         &(m)->engine.spill_blocks,                                                         \
         NULL,                                                                              \
         0,                                                                                 \
         UINT_MAX,                                                                          \
         "blocks in memory for what is swapped out (default 0: it is computed again)"},     \
        {OPTION_FLAG,                                                                       \
         "--no-prefix-sharing",                                                             \
         NULL,                                                                              \
         NULL,                                                                              \
         &(m)->engine.no_prefix_sharing,                                                    \
         NULL,                                                                              \
         0,                                                                                 \
         0,                                                                                 \
         "compute every prompt as a whole"},                                                \
    {                                                                                       \
        OPTION_U32, "--token-budget", NULL, "N", &(m)->engine.token_budget, NULL, 0,        \
            ENGINE_BUDGET_MAX, "for tests: tokens of one step, all sequences together"      \
    }
#define ENGINE_OPTIONS(m)                             \
    {OPTION_U32,                                      \
     "-t",                                            \
     "--threads",                                     \
     "N",                                             \
     &(m)->engine.n_threads,                          \
     NULL,                                            \
     0,                                               \
     ENGINE_THREADS_MAX,                              \
     "worker threads (default 0: one for each CPU)"}, \
        ENGINE_OPTIONS_BUT_THREADS(m)
#define ENGINE_OPTIONS_BUT_THREADS(m)                             \
    {OPTION_U32,                                                  \
     "-c",                                                        \
     "--ctx-size",                                                \
     "N",                                                         \
     &(m)->engine.context,                                        \
     NULL,                                                        \
     0,                                                           \
     MODEL_CONTEXT_MAX,                                           \
     "context in tokens (default 0: the model's, at most 4096)"}, \
        ENGINE_OPTIONS_BUT_CONTEXT(m)
// What may differ between two runs of one request.
#define ENGINE_OPTIONS_BUT_CONTEXT(m)                                                          \
    {OPTION_STRING,                                                                            \
     "--force-isa",                                                                            \
     NULL,                                                                                     \
     "LEVEL",                                                                                  \
     &(m)->isa,                                                                                \
     NULL,                                                                                     \
     0,                                                                                        \
     0,                                                                                        \
     "for tests: kernels of this level, scalar, avx2 or avx512 (default: the best there is)"}, \
        {OPTION_FLAG,                                                                          \
         "--pin",                                                                              \
         NULL,                                                                                 \
         NULL,                                                                                 \
         &(m)->engine.pin_threads,                                                             \
         NULL,                                                                                 \
         0,                                                                                    \
         0,                                                                                    \
         "bind each worker thread to a CPU of its own"},                                       \
        {OPTION_U32,                                                                           \
         "--prefill-chunk",                                                                    \
         NULL,                                                                                 \
         "N",                                                                                  \
         &(m)->engine.prefill_chunk,                                                           \
         NULL,                                                                                 \
         0,                                                                                    \
         ENGINE_CHUNK_MAX,                                                                     \
         "for tests: prompt tokens of one step (default 256)"},                                \
        {OPTION_STRING,                                                                        \
         "--power-supply",                                                                     \
         NULL,                                                                                 \
         "DIR",                                                                                \
         &(m)->power_folder,                                                                   \
         NULL,                                                                                 \
         0,                                                                                    \
         0,                                                                                    \
         "for tests: batteries in a folder like " POWER_SUPPLY_FOLDER},                        \
    {                                                                                          \
        OPTION_U64, "--kv-shuffle", NULL, "SEED", &(m)->engine.kv_shuffle_seed,                \
            &(m)->engine.kv_shuffle, 0, 0, "for tests: KV blocks in an order drawn from SEED"  \
    }

enum session_depth {
    SESSION_VOCABULARY, // the file's directory and its tokenizer, whatever the architecture
    SESSION_MODEL,      // and the checked model
    SESSION_ENGINE,     // and an engine over it
};
struct session {
    struct gguf gguf; // of SESSION_VOCABULARY only; else model.gguf
    struct model model;
    struct vocabulary vocabulary;
    struct engine *engine;
    struct power power;   // begun with the engine
    struct record record; // of a command that records
    bool has_gguf, has_model, has_vocabulary;
};
// What the options say of kernels, backend and profile, checked and entered into options->engine. A
// missing -m is SOV_ERR_USAGE.
enum sov_status session_choose(struct model_options *options, struct sov_fault *fault) MUST_CHECK;
// session_choose, and opens what the options ask for; on failure everything is closed again.
enum sov_status session_open(struct session *session, struct model_options *options,
                             enum session_depth depth, struct sov_fault *fault) MUST_CHECK;
void session_close(struct session *session);
// What a step of the session's engine is told: the clock and the power state.
struct engine_inputs session_inputs(struct session *session);
#define SESSION_SUSPENDED_NS 20000000 // between steps while nothing may be computed
// Before a signal ends what runs: has every running sequence checkpointed, if that becomes durable
// within two seconds.
void session_checkpoint(struct session *session);
// "; " and what computes, in a line of figures: the card, or why --backend auto took the CPU though
// there is a driver; nothing where the CPU is what is expected.
void session_put_device(const struct session *session, struct output *out);

// --- input ---
// A whole file, or stdin for the path "-"; mapped memory, given back by file_free.
struct file_bytes {
    struct str text;
    void *memory;
    u64 memory_bytes;
};
enum sov_status file_read_all(const char *path, struct file_bytes *file, struct sov_fault *fault)
    MUST_CHECK;
void file_free(struct file_bytes *file);
// Ids as decimal numbers, separated by blanks, newlines, commas or brackets.
enum sov_status token_list_parse(struct str text, const char *path, struct token_list *list,
                                 struct sov_fault *fault) MUST_CHECK;

// --- output ---
struct output {
    int descriptor;
    struct text text;
    char buffer[16384];
    enum sov_status status; // of the first write that failed; later ones do nothing
    struct sov_fault fault;
};
void output_init(struct output *out, int descriptor);
void output_put(struct output *out, struct str bytes);
void output_format(struct output *out, const char *format, ...) PRINTF_LIKE(2, 3);
void output_json_string(struct output *out, struct str s);
// The same without the quotes, for strings that are written piece by piece.
void output_json_text(struct output *out, struct str s);
// Bytes as valid UTF-8: every byte that is not part of a well-formed sequence becomes U+FFFD, as in
// output_json_string.
void output_put_utf8(struct output *out, struct str bytes);
void output_flush(struct output *out);
// "2026-11-30T18:04:05.123456789Z" of ns since 1970; "2026-11-30T18:04:05Z" without the
// nanoseconds.
void output_put_time(struct output *out, u64 ns, bool has_ns);

// The text of tokens, piece by piece, in whole characters: what may still become a character, or a
// stop string, is held back until that is known, or until the end. Behind a stop string nothing is
// written any more.
struct piece_stream {
    struct output *out; // NULL: nothing is written, stop strings are found all the same
    const struct tokenizer *tokenizer;
    bool json;                 // write as the inside of a JSON string
    struct stop_matcher *stop; // or NULL
    usize n_pending;
    u8 pending[CLI_PIECE_BYTES_MAX + STOP_BYTES_MAX + 4];
};
void piece_stream_begin(struct piece_stream *stream, struct output *out,
                        const struct tokenizer *tokenizer, bool json);
// Ends the text at the matcher's strings; right after begin. The matcher starts anew.
void piece_stream_stop_at(struct piece_stream *stream, struct stop_matcher *stop);
void piece_stream_put(struct piece_stream *stream, u32 token);
// Bytes that were decoded already; at most CLI_PIECE_BYTES_MAX.
void piece_stream_put_bytes(struct piece_stream *stream, struct str bytes);
void piece_stream_end(struct piece_stream *stream);

// A file that is replaced as a whole: what has the name keeps it until the new one is there. What
// is no regular file (a terminal, a pipe) is written to as it is.
#define REPLACED_PATH_BYTES 4096
struct replaced_file {
    const char *path; // or NULL: stdout
    int descriptor;   // to write to, once it is open
    bool is_new;      // it has new_path
    char new_path[REPLACED_PATH_BYTES];
};
// Whether there may be such a file, found out by trying. Leaves everything as it is. NULL and "-"
// are stdout.
enum sov_status replaced_file_check(const char *path, struct sov_fault *fault) MUST_CHECK;
enum sov_status replaced_file_open(struct replaced_file *file, const char *path,
                                   struct sov_fault *fault) MUST_CHECK;
// `is_whole`: it takes its name, durable; else nothing has changed.
enum sov_status replaced_file_close(struct replaced_file *file, bool is_whole,
                                    struct sov_fault *fault) MUST_CHECK;

// Flushes; 0, or 1 after a message when something could not be written. A reader that went away
// (EPIPE) is 1 without a message.
int output_finish(struct output *out);
