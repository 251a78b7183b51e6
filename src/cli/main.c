// SPDX-License-Identifier: Apache-2.0
// The table of commands, and their help texts.
#include "cli/cli.h"

static const struct command commands[] = {
    {"run", "generate text from a prompt",
     "run -m MODEL [-p PROMPT | -f FILE | --tokens FILE | < text] [options]",
     "The text streams to stdout; one line of figures follows on stderr. The same model, prompt,\n"
     "options and seed give the same bytes on every machine, whatever -t, --prefill-chunk and\n"
     "--force-isa say. Sampling applies penalties, bias, temperature, top-k, top-p and min-p, in\n"
     "this order (llama.cpp applies the temperature last). End tokens are never shown, nor are\n"
     "stop strings and what follows them. --json prints one object: prompt_tokens (ids), tokens\n"
     "(ids of the answer without an end token, but with those that hold a stop string), text,\n"
     "logprobs when asked for, finish_reason (stop, length or cancelled), seed, timings. Ctrl-C\n"
     "and SIGTERM end the run; the exit code is 130 then, and sov resume can finish the answer.\n\n"
     "example:\n"
     "  sov run -m SmolLM2-135M-Instruct.Q4_1.gguf --chat -p \"Why is the sky blue?\"\n",
     cli_run},
    {"chat", "talk with a chat model", "chat -m MODEL [--system TEXT] [options]",
     "On a terminal the line can be edited (arrows, Ctrl-A E U K W, up and down for earlier\n"
     "lines); Ctrl-C stops an answer, Ctrl-D ends, /help lists the commands. Without a terminal\n"
     "every line of stdin is one message. The KV cache of the conversation is kept. In the\n"
     "record an answer that Ctrl-C stopped on a terminal has ended; what SIGTERM stopped, and\n"
     "without a terminal Ctrl-C too, is interrupted, and sov resume finishes it.\n\n"
     "example:\n  sov chat -m SmolLM2-135M-Instruct.Q4_1.gguf --system \"Answer briefly.\"\n",
     cli_chat},
    {"batch", "answer a file of requests, many at once",
     "batch -m MODEL REQUESTS [-o FILE] [--max-seqs N] [--events SPOOL] [options]",
     "One JSON object a line: id, one of prompt, messages or tokens, and max_tokens, temperature,\n"
     "top_k, top_p, min_p, repeat_penalty, frequency_penalty, presence_penalty, repeat_last_n,\n"
     "logit_bias, seed, stop, ignore_eos, logprobs. Defaults are those of sov run; the seed comes\n"
     "from the id. Out come, in order of completion: id, tokens, text, finish_reason, usage,\n"
     "seed, digest (of the sequence's last event), logprobs when asked for. The bytes for a\n"
     "request do not depend on what else runs. OpenAI's batch lines (custom_id, url, body) are\n"
     "answered in their shape. A line that is wrong gives {id, line, error} and exit code 1.\n"
     "All requests of a file are recorded before the first is run. Killed before that, nothing\n"
     "was answered, and the record has the first of them only; later it has all.\n\n"
     "example:\n"
     "  echo '{\"id\":1,\"prompt\":\"Once upon a\",\"max_tokens\":20}' | sov batch -m MODEL -\n",
     cli_batch},
    {"events", "what happened to every sequence, from a spool of events",
     "events SPOOL [--follow] [--from N] [--json]",
     "Every event is checked: its digest, and that it follows the one before it of its sequence.\n"
     "Exit code 4 when the spool was damaged. An event at the end that was cut short by a crash\n"
     "is named on stderr; the next writer cuts it off. --json prints CloudEvents 1.0 envelopes.\n\n"
     "example:\n  sov events answers.spool --follow --json\n",
     cli_events},
    {"verify", "whether a record store holds together",
     "verify STORE [--expect SIZE:ROOT] [--json]",
     "Checks every byte by the digests, receipts, chains and heads of the store, without a\n"
     "model and without changing anything; a run may go on recording. Hashes can be\n"
     "computed again by whoever changes a store: keep the head that a run prints\n"
     "(SIZE:ROOT), and give it to --expect. Exit code 4: it does not verify (or does not\n"
     "extend that head: an older copy, another store); 3: no store, one of another\n"
     "version, or one that cannot be read. What the text is worth, sov replay tells.\n\n"
     "example:\n"
     "  sov verify ~/.local/state/sov-rtx/records/20261130T210500Z-5b0e91c7\n",
     cli_verify},
    {"replay", "whether recorded tokens are what the model gives",
     "replay STORE -m MODEL [--sequence ID] [--json] [options]",
     "Verifies the store, then runs every recorded request again from prompt, parameters\n"
     "and seed, and compares all that the record has of it: tokens, digests of K and V in\n"
     "every layer, the event chain, the end; then whether the text of the prompt is what its\n"
     "tokens say (docs/format.md tells how far). No recorded token is used. Backend, threads,\n"
     "chunks, kernels and sequences at once may differ from those of the recorded run. The\n"
     "first difference of a sequence is named, with its likely cause. Exit code 4:\n"
     "something differs, or the store does not verify; 3: not checkable here (another\n"
     "model, a model that is missing, commitments in the place of tokens, another numeric\n"
     "profile: --numerics tensor is checked by itself, on a card of its architecture).\n\n"
     "example:\n"
     "  sov replay ~/.local/state/sov-rtx/records/20261130T210500Z-5b0e91c7 -m MODEL\n",
     cli_replay},
    {"resume", "finish what a record store has of interrupted sequences",
     "resume STORE -m MODEL [-o FILE] [--events SPOOL] [options]",
     "After a crash, a kill or Ctrl-C: every sequence goes on from its last checkpoint,\n"
     "and recording goes on in the same store. Tokens, texts, digests and events are those\n"
     "of a run that was never interrupted. May itself be stopped and repeated. When all is\n"
     "done, out comes one line in the shape of sov batch for every sequence of the store,\n"
     "in the order of the requests, so that resuming again gives the same file; logprobs\n"
     "are not recorded, and null in it. One process at a time writes to a store. Exit code\n"
     "3: another model than the recorded one, or the profile tensor; 4: the store does not\n"
     "verify.\n\n"
     "example:\n"
     "  sov resume ~/.local/state/sov-rtx/records/2026... -m MODEL -o out.jsonl\n",
     cli_resume},
    {"log", "the record stores of this user, or what is in one",
     "log [STORE] [--json] | log --prune --older-than DAYS [--force]",
     "Without STORE: every store below $XDG_STATE_HOME/sov-rtx/records (or\n"
     "~/.local/state/...), by date. With one: its sequences. Nothing\n"
     "is ever removed unless --prune asks for it: then every store goes whose last session\n"
     "began more than DAYS days ago, but not one with an interrupted sequence, nor one\n"
     "that does not read as a store (--force removes these too), and never one in use.\n"
     "What is removed is printed.\n\n"
     "example:\n"
     "  sov log\n",
     cli_log},
    {"template", "what a chat template makes of messages",
     "template [-m MODEL] [--template NAME] [options] [MESSAGE ...]",
     "Without a model: the names for --template. With a model: what its template was taken for.\n"
     "With messages: the prompt, special tokens as text.\n\n"
     "example:\n  sov template -m MODEL \"Hello\" \"Hello! How can I help?\" \"What is 2 + 2?\"\n",
     cli_template},
    {"tokenize", "text on stdin to token ids on stdout",
     "tokenize -m MODEL [--special] [--bos] < text",
     "example:\n  printf 'Hello world' | sov tokenize -m MODEL\n", cli_tokenize},
    {"detokenize", "token ids on stdin to text on stdout", "detokenize -m MODEL [--special] < ids",
     "example:\n  echo '19556 905' | sov detokenize -m MODEL\n", cli_detokenize},
    {"logits", "raw logits of a token list", "logits -m MODEL --tokens FILE [--all] -o OUT",
     "example:\n  sov logits -m MODEL --tokens ids.txt --all -o rows.f32\n", cli_logits},
    {"perplexity", "how well a model predicts a text", "perplexity -m MODEL -f FILE [-c WINDOW]",
     "llama-perplexity's convention: windows of -c tokens (default 512) without overlap; the\n"
     "predictions of each window's second half count.\n\n"
     "example:\n  sov perplexity -m MODEL -f text.txt\n",
     cli_perplexity},
    {"bench", "tokens per second of prefill and decode",
     "bench -m MODEL [-p LIST] [-n N] [-d LIST] [-b LIST] [-t LIST] [-r N] [options]",
     "Names as in llama-bench: pp512 is a prompt of 512 tokens, tg128 is 128 steps of one token\n"
     "for each sequence of the batch. A LIST is numbers separated by commas; every combination\n"
     "is measured.\n\n"
     "example:\n  sov bench -m MODEL -p 128,512 -d 0,1024 -b 1,8 -t 1,2\n",
     cli_bench},
    {"conform", "every CUDA kernel on this machine's card against the reference operators",
     "conform [--backend cuda|cpu] [--kernel NAME] [--quick] [--json] | conform --check REPORT",
     "Outputs, inputs, guards around every buffer and poison behind every row are compared byte\n"
     "by byte; with a power word that is not active nothing may change. Exit code 1 when\n"
     "something is wrong, 3 when there is no driver or card. --json prints a report with a digest\n"
     "of every output. --backend cpu computes the same report by the reference operators alone,\n"
     "and --check holds a report of any machine against them (exit code 4 when it differs):\n"
     "neither needs a card.\n\n"
     "example:\n  sov conform --json > report.json\n  sov conform --check report.json\n",
     cli_conform},
    {"trace", "what every operator of one pass produced, for comparison",
     "trace -m MODEL --tokens FILE -o OUT",
     "Rows go to OUT as f32, their index to stdout: LAYER OPERATOR ROWS WIDTH OFFSET.\n\n"
     "example:\n  sov trace -m MODEL --tokens ids.txt -o rows.f32 > index.txt\n",
     cli_trace},
    {"inspect", "what is in a model file, and what it needs", "inspect MODEL [--tensors] [--json]",
     "Exit code 3, and the reason on stderr, when the file is refused.\n\n"
     "example:\n  sov inspect MODEL --tensors\n",
     cli_inspect},
    {"version", "version and build of this program", "version", "example:\n  sov version\n",
     cli_version},
};

static void print_commands(int descriptor) {
    struct output out;
    output_init(&out, descriptor);
    output_format(&out,
                  "sov %s - run GGUF language models, the same bits on every machine\n\n"
                  "usage: sov COMMAND [options]\n\n",
                  SOV_VERSION);
    for (u32 i = 0; i < COUNT_OF(commands); i++) {
        output_format(&out, "  %-12s %s\n", commands[i].name, commands[i].summary);
    }
    output_format(&out, "\nsov COMMAND -h shows the options of a command and an example.\n");
    (void)output_finish(&out);
}

int cli_version(const struct command *command, const struct platform_start *start) {
    bool json = false;
    const struct option options[] = {
        {OPTION_FLAG, "--json", NULL, NULL, &json, NULL, 0, 0, "print one JSON object"},
    };
    int exit_code = 0;
    if (!cli_parse(command, start, options, COUNT_OF(options), &exit_code)) return exit_code;
    struct output out;
    output_init(&out, PLATFORM_STDOUT);
    char card[ENGINE_CARD_BYTES];
    struct sov_fault fault = {0};
    bool has_card = engine_find_card(start, card, &fault) == SOV_OK;
    struct str found = str_from_z(has_card ? card : fault.message);
    if (json) {
        output_format(&out,
                      "{\"version\":\"%s\",\"compiler\":\"%s\",\"isa\":\"%s\",\"%s\":", SOV_VERSION,
                      __VERSION__, cpu_level_name(cpu_level()), has_card ? "card" : "no_card");
        output_json_string(&out, found);
        output_put(&out, STR("}\n"));
        return output_finish(&out);
    }
    output_format(&out, "sov %s (%s, x86-64-v3; this machine: %s)\n", SOV_VERSION, __VERSION__,
                  cpu_level_name(cpu_level()));
    output_format(&out, has_card ? "card: " : "no card: ");
    output_put_utf8(&out, found);
    output_put(&out, STR("\n"));
    return output_finish(&out);
}

int program_main(const struct platform_start *start) {
    if (start->n_args < 2) {
        print_commands(PLATFORM_STDERR);
        return status_exit_code(SOV_ERR_USAGE);
    }
    struct str name = str_from_z(start->args[1]);
    if (str_equal(name, STR("-h")) || str_equal(name, STR("--help")) ||
        str_equal(name, STR("help"))) {
        print_commands(PLATFORM_STDOUT);
        return 0;
    }
    if (str_equal(name, STR("--version"))) name = STR("version");
    for (u32 i = 0; i < COUNT_OF(commands); i++) {
        if (str_equal(name, str_from_z(commands[i].name))) {
            return commands[i].run(&commands[i], start);
        }
    }
    struct sov_fault fault = {0};
    enum sov_status status = fault_set(&fault, SOV_ERR_USAGE,
                                       "unknown command \"%.64s\" (sov -h "
                                       "lists the commands)",
                                       start->args[1]);
    (void)status;
    return cli_fail(&fault);
}
