// SPDX-License-Identifier: Apache-2.0
// Command-line options from tables; the help text is printed from the same tables.
#include "cli/cli.h"

int cli_fail(const struct sov_fault *fault) {
    char line[SOV_FAULT_BYTES + 64];
    struct text t = TEXT_OVER_ARRAY(line);
    bool has_message = fault->message[0] != 0;
    text_format(&t, "sov: %s\n", has_message ? fault->message : status_text(fault->status));
    struct sov_fault ignored = {0};
    enum sov_status status = platform_write(PLATFORM_STDERR, line, t.len, &ignored);
    (void)status; // nobody is left to tell
    return fault->status == SOV_ERR_INTERRUPTED ? CLI_EXIT_INTERRUPTED
                                                : status_exit_code(fault->status);
}

int cli_usage_error(const struct command *command, const char *format, ...) {
    char message[SOV_FAULT_BYTES];
    struct text t = TEXT_OVER_ARRAY(message);
    va_list args;
    va_start(args, format);
    text_format_v(&t, format, args);
    va_end(args);
    struct sov_fault fault = {0}; // fault_set makes printable what it quotes
    enum sov_status status = fault_set(&fault, SOV_ERR_USAGE,
                                       "%s: %s (sov %s -h shows the options)", command->name,
                                       message, command->name);
    (void)status;
    return cli_fail(&fault);
}

static void print_help(const struct command *command, const struct option *options, u32 n_options) {
    struct output out;
    output_init(&out, PLATFORM_STDOUT);
    output_format(&out, "sov %s - %s\n\nusage: sov %s\n", command->name, command->summary,
                  command->usage);
    if (n_options > 0) output_format(&out, "\n");
    for (u32 i = 0; i < n_options; i++) {
        const struct option *o = &options[i];
        char left[64];
        struct text t = TEXT_OVER_ARRAY(left);
        text_format(&t, "%s", o->name);
        if (o->long_name != NULL) text_format(&t, ", %s", o->long_name);
        if (o->value != NULL) text_format(&t, " %s", o->value);
        output_format(&out, "  %-22s %s\n", left, o->help);
    }
    output_format(&out, "  %-22s %s\n\n%s", "-h, --help", "this text", command->details);
    (void)output_finish(&out);
}

// "128,512"; all or nothing.
static bool store_numbers(const struct option *o, struct str value) {
    struct option_numbers list = {.n = 0};
    usize begin = 0;
    for (usize i = 0; i <= value.len; i++) {
        if (i < value.len && value.data[i] != ',') continue;
        u64 number = 0;
        struct str item = {value.data + begin, i - begin};
        if (!text_parse_u64(item, &number) || number < o->min || number > o->max ||
            list.n == OPTION_NUMBERS_MAX) {
            return false;
        }
        list.values[list.n++] = (u32)number;
        begin = i + 1;
    }
    *(struct option_numbers *)o->target = list;
    return true;
}

static bool store_number(const struct option *o, struct str value) {
    u64 u = 0;
    i64 i = 0;
    f64 f = 0;
    switch (o->kind) {
    case OPTION_U32:
        if (!text_parse_u64(value, &u) || u < o->min || u > o->max) return false;
        *(u32 *)o->target = (u32)u;
        return true;
    case OPTION_I32:
        if (!text_parse_i64(value, &i) || i < INT_MIN || i > INT_MAX) return false;
        *(i32 *)o->target = (i32)i;
        return true;
    case OPTION_NUMBERS: return store_numbers(o, value);
    case OPTION_U64: return text_parse_u64(value, (u64 *)o->target);
    case OPTION_F32:
        if (!text_parse_f64(value, &f) || f > 3.4e38 || f < -3.4e38) return false;
        *(f32 *)o->target = (f32)f;
        return true;
    default: assert(!"a kind with a number"); return false;
    }
}

static bool bad_value(const struct command *command, const struct option *o, const char *value,
                      int *exit_code) {
    if (o->kind == OPTION_U32) {
        *exit_code = cli_usage_error(command,
                                     "%s takes a whole number from %u to %u, not \"%.64s\"",
                                     o->name, o->min, o->max, value);
    } else if (o->kind == OPTION_NUMBERS) {
        *exit_code = cli_usage_error(command,
                                     "%s takes 1 to %u whole numbers from %u to %u, separated by "
                                     "commas, not \"%.64s\"",
                                     o->name, OPTION_NUMBERS_MAX, o->min, o->max, value);
    } else {
        *exit_code = cli_usage_error(command, "%s takes a %snumber, not \"%.64s\"", o->name,
                                     o->kind == OPTION_F32 ? "" : "whole ", value);
    }
    return false;
}

// Finds the row for `argument`, which may end in "=value"; *value is that, or NULL.
static const struct option *find_option(const struct option *options, u32 n_options,
                                        const char *argument, const char **value) {
    struct str whole = str_from_z(argument), name = whole;
    *value = NULL;
    for (usize i = 0; i < whole.len; i++) {
        if (whole.data[i] == '=' && str_starts_with(whole, STR("--"))) {
            name.len = i;
            *value = argument + i + 1;
            break;
        }
    }
    for (u32 i = 0; i < n_options; i++) {
        if (options[i].kind == OPTION_POSITIONAL || options[i].kind == OPTION_POSITIONALS) continue;
        if (str_equal(name, str_from_z(options[i].name)) ||
            (options[i].long_name != NULL && str_equal(name, str_from_z(options[i].long_name)))) {
            return &options[i];
        }
    }
    return NULL;
}

static bool put_in_list(const struct command *command, const struct option *o, const char *value,
                        int *exit_code) {
    struct option_list *list = o->target;
    if (list->n == list->capacity) {
        *exit_code =
            cli_usage_error(command, "%s can be given %u times at most", o->name, list->capacity);
        return false;
    }
    list->values[list->n++] = value;
    return true;
}

static bool take_positional(const struct command *command, const struct option *options,
                            u32 n_options, const char *argument, int *exit_code) {
    for (u32 i = 0; i < n_options; i++) {
        const struct option *o = &options[i];
        if (o->kind == OPTION_POSITIONALS) return put_in_list(command, o, argument, exit_code);
        if (o->kind != OPTION_POSITIONAL || *(const char **)o->target != NULL) continue;
        *(const char **)o->target = argument;
        return true;
    }
    *exit_code = cli_usage_error(command, "\"%.64s\" is one argument too many", argument);
    return false;
}

bool cli_parse(const struct command *command, const struct platform_start *start,
               const struct option *options, u32 n_options, int *exit_code) {
    bool options_ended = false;
    for (u32 i = 2; i < start->n_args; i++) {
        const char *argument = start->args[i];
        struct str text = str_from_z(argument);
        if (!options_ended && (str_equal(text, STR("-h")) || str_equal(text, STR("--help")))) {
            print_help(command, options, n_options);
            *exit_code = 0;
            return false;
        }
        if (!options_ended && str_equal(text, STR("--"))) {
            options_ended = true;
            continue;
        }
        if (options_ended || text.len < 2 || text.data[0] != '-') {
            if (!take_positional(command, options, n_options, argument, exit_code)) return false;
            continue;
        }
        const char *value = NULL;
        const struct option *o = find_option(options, n_options, argument, &value);
        if (o == NULL) {
            *exit_code = cli_usage_error(command, "unknown option \"%.64s\"", argument);
            return false;
        }
        if (o->given != NULL) *o->given = true;
        if (o->kind == OPTION_FLAG) {
            if (value != NULL) {
                *exit_code = cli_usage_error(command, "%s takes no value", o->name);
                return false;
            }
            *(bool *)o->target = true;
            continue;
        }
        if (value == NULL && i + 1 == start->n_args) {
            *exit_code = cli_usage_error(command, "%s needs a value", argument);
            return false;
        }
        if (value == NULL) value = start->args[++i];
        if (o->kind == OPTION_STRING) {
            *(const char **)o->target = value;
        } else if (o->kind == OPTION_LIST) {
            if (!put_in_list(command, o, value, exit_code)) return false;
        } else if (!store_number(o, str_from_z(value))) {
            return bad_value(command, o, value, exit_code);
        }
    }
    return true;
}
