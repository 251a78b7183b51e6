// SPDX-License-Identifier: Apache-2.0
// sov template: what a chat model is really given. Without a model the names of the known families,
// with a model what its template was taken for, with messages the prompt that they become.
#include "cli/generate.h"

#define MESSAGES_MAX 256 // on one command line

struct template_options {
    struct model_options model;
    const char *name, *system;
    bool ids, json;
    struct option_list messages;
    const char *values[MESSAGES_MAX];
};

// Text with special tokens as their text; generated answers do not occur here.
static void put_parts(struct output *out, const struct tokenizer *tokenizer,
                      const struct prompt_parts *parts, bool json) {
    u8 piece[CLI_PIECE_BYTES_MAX];
    for (u32 i = 0; i < parts->n_parts; i++) {
        const struct chat_part *part = &parts->parts[i];
        struct str text = {(const u8 *)parts->text.data + part->begin, part->len};
        if (part->token != TOKEN_NONE) {
            usize len = tokenizer_decode(tokenizer, part->token, true, false, piece, sizeof piece);
            text = (struct str){piece, len};
        }
        if (json) {
            output_json_text(out, text);
        } else {
            output_put(out, text);
        }
    }
}

static enum sov_status put_conversation(struct output *out, const struct vocabulary *vocabulary,
                                        const struct chat_template *t,
                                        const struct template_options *o, struct sov_fault *fault) {
    struct chat_message messages[MESSAGES_MAX + 1];
    u32 n = 0;
    struct str system = prompt_system(t, o->system);
    if (system.len > 0) {
        messages[n++] = (struct chat_message){.role = CHAT_SYSTEM, .content = system};
    }
    for (u32 i = 0; i < o->messages.n; i++) {
        messages[n++] = (struct chat_message){.role = i % 2 == 0 ? CHAT_USER : CHAT_ASSISTANT,
                                              .content = str_from_z(o->values[i])};
    }
    struct prompt_parts parts = {0};
    struct token_list list = {0};
    enum sov_status status = prompt_render(vocabulary, t, messages, n, &parts, fault);
    if (status == SOV_OK) status = prompt_encode(vocabulary, t, messages, n, &list, fault);
    if (status == SOV_OK && o->json) {
        output_format(out, "{\"template\":\"%s\",\"text\":\"", t->family.name);
        put_parts(out, vocabulary->tokenizer, &parts, true);
        output_put(out, STR("\",\"tokens\":"));
        output_put_ids(out, list.ids, list.n);
        output_put(out, STR("}\n"));
    } else if (status == SOV_OK && o->ids) {
        for (usize i = 0; i < list.n; i++) output_format(out, i == 0 ? "%u" : " %u", list.ids[i]);
        output_put(out, STR("\n"));
    } else if (status == SOV_OK) {
        put_parts(out, vocabulary->tokenizer, &parts, false);
    }
    token_list_free(&list);
    prompt_parts_free(&parts);
    return status;
}

static void put_description(struct output *out, const struct vocabulary *vocabulary,
                            const struct chat_template *t) {
    output_format(out, "template         %s\n", t->family.name);
    u32 end = chat_end_token(t, vocabulary->tokenizer);
    output_format(out, "end of a turn    %s", t->family.end_token);
    if (end != TOKEN_NONE) {
        output_format(out, " (%u)\n", end);
    } else {
        output_put(out, STR(" (not in the vocabulary)\n"));
    }
    output_put(out, STR("system message   "));
    if (t->system_len > 0) {
        output_json_string(out, (struct str){(const u8 *)t->system_text, t->system_len});
    } else {
        output_put(out, STR("none of its own"));
    }
    output_put(out, STR("\n"));
}

static void put_description_json(struct output *out, const struct vocabulary *vocabulary,
                                 const struct chat_template *t) {
    output_format(out, "{\"template\":\"%s\",\"end_token\":", t->family.name);
    output_json_string(out, str_from_z(t->family.end_token));
    u32 end = chat_end_token(t, vocabulary->tokenizer);
    if (end != TOKEN_NONE) {
        output_format(out, ",\"end_id\":%u,\"system\":", end);
    } else {
        output_put(out, STR(",\"end_id\":null,\"system\":"));
    }
    output_json_string(out, prompt_system(t, NULL));
    output_put(out, STR("}\n"));
}

static void put_names(struct output *out, bool json) {
    char memory[256];
    struct text names = TEXT_OVER_ARRAY(memory);
    chat_family_names(&names);
    if (!json) {
        output_format(out, "%s\n", memory);
        return;
    }
    output_put(out, STR("{\"templates\":[\""));
    for (usize i = 0; i < names.len; i++) { // names have no commas and no blanks in them
        if (memory[i] == ',') {
            output_put(out, STR("\",\""));
        } else if (memory[i] != ' ') {
            output_put(out, (struct str){(const u8 *)memory + i, 1});
        }
    }
    output_put(out, STR("\"]}\n"));
}

static enum sov_status show(struct output *out, struct template_options *o,
                            struct sov_fault *fault) {
    struct session session;
    enum sov_status status = session_open(&session, &o->model, SESSION_VOCABULARY, fault);
    if (status != SOV_OK) return status;
    struct chat_template t;
    status = prompt_template(&session.vocabulary, o->name, &t, fault);
    if (status == SOV_OK && o->messages.n > 0) {
        status = put_conversation(out, &session.vocabulary, &t, o, fault);
    } else if (status == SOV_OK && o->json) {
        put_description_json(out, &session.vocabulary, &t);
    } else if (status == SOV_OK) {
        put_description(out, &session.vocabulary, &t);
    }
    session_close(&session);
    return status;
}

int cli_template(const struct command *command, const struct platform_start *start) {
    struct template_options o = {.messages = {.values = o.values, .capacity = MESSAGES_MAX}};
    bool *const no = NULL;
    const struct option options[] = {
        MODEL_OPTION(&o.model),
        {OPTION_STRING, "--template", NULL, "NAME", &o.name, no, 0, 0,
         "chat template to use (default: the file's)"},
        {OPTION_STRING, "--system", NULL, "TEXT", &o.system, no, 0, 0,
         "system message (default: the template's own, if any; \"\": none)"},
        {OPTION_FLAG, "--ids", NULL, NULL, &o.ids, no, 0, 0, "print token ids"},
        {OPTION_FLAG, "--json", NULL, NULL, &o.json, no, 0, 0,
         "print one JSON object"},
        {OPTION_POSITIONALS, "MESSAGE", NULL, NULL, &o.messages, no, 0, 0,
         "messages of the user and the assistant in turn, the user's last"},
    };
    int exit_code = 0;
    if (!cli_parse(command, start, options, COUNT_OF(options), &exit_code)) return exit_code;
    if (o.messages.n > 0 && o.messages.n % 2 == 0) {
        return cli_usage_error(command, "the last message must be a user's: give an odd number");
    }
    struct sov_fault fault = {0};
    struct output out;
    output_init(&out, PLATFORM_STDOUT);
    if (o.model.model_path == NULL && o.messages.n == 0) {
        put_names(&out, o.json);
        return output_finish(&out);
    }
    enum sov_status status = show(&out, &o, &fault);
    return status == SOV_OK ? output_finish(&out) : cli_fail(&fault);
}
