// SPDX-License-Identifier: Apache-2.0
// A line editor in three steps: bytes become keys (a small state machine), keys change the line,
// and the line is drawn anew after every batch of bytes. It is shown on one row of the screen; of a
// longer one the part around the cursor.
#include "cli/line_edit.h"
#include "cli/cli.h"
#include "freestanding/mem.h"

#define INPUT_BYTES 4096
#define ESCAPE_NUMBERS_MAX 2
#define COLUMNS_DEFAULT 80
#define COLUMNS_MIN 10

enum key {
    KEY_NONE, // nothing yet, or nothing known
    KEY_TEXT, // the byte itself
    KEY_ENTER,
    KEY_NEWLINE,
    KEY_LEFT,
    KEY_RIGHT,
    KEY_WORD_LEFT,
    KEY_WORD_RIGHT,
    KEY_HOME,
    KEY_END,
    KEY_UP,
    KEY_DOWN,
    KEY_BACKSPACE,
    KEY_DELETE,
    KEY_KILL_BEFORE,
    KEY_KILL_BEHIND,
    KEY_KILL_WORD,
    KEY_CLEAR_SCREEN,
    KEY_CANCEL,
    KEY_END_OF_INPUT, // or delete, when there is something
    KEY_PASTE_BEGIN,
    KEY_PASTE_END,
};

enum escape_state { ESCAPE_NONE, ESCAPE_BEGUN, ESCAPE_SEQUENCE, ESCAPE_SINGLE };

struct line_editor {
    int screen;
    bool edits, interactive;
    u8 input[INPUT_BYTES]; // [at_input, n_input) was read and not used
    usize n_input, at_input;
    bool input_ended;

    u8 line[LINE_BYTES_MAX]; // the line being edited, len bytes
    usize len, cursor;
    enum escape_state escape;
    u32 numbers[ESCAPE_NUMBERS_MAX], n_numbers; // of an escape sequence
    bool pasting, after_return;                 // a CR of pasted text came: its LF is no second end

    u8 history[LINE_HISTORY_BYTES]; // the lines one after another, the oldest first
    struct {
        u32 begin, len;
    } entries[LINE_HISTORY_MAX];
    u32 n_entries, shown; // shown == n_entries: the new line
    u8 draft[LINE_BYTES_MAX];
    usize draft_len;
};

// --- opening ---

enum sov_status line_editor_open(const struct platform_start *start, struct line_editor **editor,
                                 struct sov_fault *fault) {
    struct line_editor *e = platform_memory_map(sizeof *e);
    if (e == NULL) {
        return fault_set(fault, SOV_ERR_MEMORY, "line editor: %llu bytes are not to be had",
                         (u64)sizeof *e);
    }
    bool on_stderr = platform_is_terminal(PLATFORM_STDERR);
    e->screen = on_stderr ? PLATFORM_STDERR : PLATFORM_STDOUT;
    e->interactive = platform_is_terminal(PLATFORM_STDIN) && platform_is_terminal(e->screen);
    struct str kind = str_from_z(platform_environment(start, "TERM"));
    e->edits = e->interactive && !str_equal(kind, STR("dumb"));
    *editor = e;
    return SOV_OK;
}

void line_editor_close(struct line_editor *editor) {
    platform_memory_unmap(editor, sizeof *editor);
}

bool line_editor_is_interactive(const struct line_editor *editor) { return editor->interactive; }

// --- input ---

static enum sov_status fill_input(struct line_editor *e, struct sov_fault *fault) {
    e->at_input = e->n_input = 0;
    enum sov_status status =
        platform_read_some(PLATFORM_STDIN, e->input, sizeof e->input, &e->n_input, fault);
    e->input_ended = status == SOV_OK && e->n_input == 0;
    return status;
}

// Without editing: up to a newline. A line that is too long is read to its end all the same.
static enum line_result read_plain(struct line_editor *e, const char *prompt,
                                   struct sov_fault *fault) {
    if (e->interactive) {
        struct str text = str_from_z(prompt);
        if (platform_write(e->screen, text.data, text.len, fault) != SOV_OK) return LINE_FAILED;
    }
    usize n_all = 0;
    bool ended = false;
    while (!ended) {
        if (e->at_input == e->n_input && fill_input(e, fault) != SOV_OK) return LINE_FAILED;
        if (e->input_ended) break;
        u8 byte = e->input[e->at_input++];
        ended = byte == '\n';
        if (!ended && n_all < sizeof e->line) e->line[n_all] = byte;
        n_all += ended ? 0 : 1;
    }
    if (!ended && n_all == 0) return LINE_END;
    if (n_all > sizeof e->line) {
        fault_set(fault, SOV_ERR_LIMIT, "a line of %llu bytes, at most %u", (u64)n_all,
                  LINE_BYTES_MAX);
        return LINE_FAILED;
    }
    e->len = n_all;
    if (e->len > 0 && e->line[e->len - 1] == '\r') e->len--;
    return LINE_TEXT;
}

// --- bytes to keys ---

static enum key key_of_control(u8 byte) {
    switch (byte) {
    case 'A' - 64: return KEY_HOME;
    case 'B' - 64: return KEY_LEFT;
    case 'C' - 64: return KEY_CANCEL;
    case 'D' - 64: return KEY_END_OF_INPUT;
    case 'E' - 64: return KEY_END;
    case 'F' - 64: return KEY_RIGHT;
    case 'H' - 64: return KEY_BACKSPACE;
    case 'J' - 64:
    case 'M' - 64: return KEY_ENTER;
    case 'K' - 64: return KEY_KILL_BEHIND;
    case 'L' - 64: return KEY_CLEAR_SCREEN;
    case 'N' - 64: return KEY_DOWN;
    case 'P' - 64: return KEY_UP;
    case 'U' - 64: return KEY_KILL_BEFORE;
    case 'W' - 64: return KEY_KILL_WORD;
    case '\t': return KEY_TEXT;
    case 127: return KEY_BACKSPACE;
    default: return KEY_NONE;
    }
}

// ESC [ NUMBER ; NUMBER LETTER, or ESC O LETTER. The second number is 1 plus a set of modifiers:
// any of them makes left and right go by words.
static enum key key_of_sequence(const struct line_editor *e, u8 final) {
    bool modified = e->n_numbers > 1 && e->numbers[1] > 1;
    switch (final) {
    case 'A': return KEY_UP;
    case 'B': return KEY_DOWN;
    case 'C': return modified ? KEY_WORD_RIGHT : KEY_RIGHT;
    case 'D': return modified ? KEY_WORD_LEFT : KEY_LEFT;
    case 'H': return KEY_HOME;
    case 'F': return KEY_END;
    case '~': break;
    default: return KEY_NONE;
    }
    switch (e->numbers[0]) {
    case 1:
    case 7: return KEY_HOME;
    case 4:
    case 8: return KEY_END;
    case 3: return KEY_DELETE;
    case 200: return KEY_PASTE_BEGIN;
    case 201: return KEY_PASTE_END;
    default: return KEY_NONE;
    }
}

static enum key key_after_escape(struct line_editor *e, u8 byte) {
    e->escape = ESCAPE_NONE;
    switch (byte) {
    case '[':
        e->escape = ESCAPE_SEQUENCE;
        memset(e->numbers, 0, sizeof e->numbers);
        e->n_numbers = 0;
        return KEY_NONE;
    case 'O': e->escape = ESCAPE_SINGLE; return KEY_NONE;
    case 27: e->escape = ESCAPE_BEGUN; return KEY_NONE;
    case 'b': return KEY_WORD_LEFT;
    case 'f': return KEY_WORD_RIGHT;
    case '\r':
    case '\n': return KEY_NEWLINE;
    case 127: return KEY_KILL_WORD;
    default: return KEY_NONE;
    }
}

static enum key key_in_sequence(struct line_editor *e, u8 byte) {
    if (byte >= '0' && byte <= '9') {
        if (e->n_numbers == 0) e->n_numbers = 1;
        u32 i = e->n_numbers - 1;
        if (i < ESCAPE_NUMBERS_MAX) e->numbers[i] = MIN(e->numbers[i] * 10 + (byte - '0'), 9999u);
        return KEY_NONE;
    }
    if (byte == ';') {
        e->n_numbers = MIN(MAX(e->n_numbers, 1u) + 1, (u32)ESCAPE_NUMBERS_MAX + 1);
        return KEY_NONE;
    }
    if (byte < 0x40 || byte > 0x7e) return KEY_NONE; // a sequence ends with one of these
    e->escape = ESCAPE_NONE;
    return key_of_sequence(e, byte);
}

static enum key key_of_byte(struct line_editor *e, u8 byte) {
    switch (e->escape) {
    case ESCAPE_BEGUN: return key_after_escape(e, byte);
    case ESCAPE_SEQUENCE: return key_in_sequence(e, byte);
    case ESCAPE_SINGLE:
        e->escape = ESCAPE_NONE;
        e->numbers[0] = e->n_numbers = 0;
        return key_of_sequence(e, byte);
    case ESCAPE_NONE: break;
    }
    if (byte == 27) {
        e->escape = ESCAPE_BEGUN;
        return KEY_NONE;
    }
    return byte < 32 || byte == 127 ? key_of_control(byte) : KEY_TEXT;
}

// --- characters ---

static const struct {
    u32 first, last;
    u32 columns;
} widths[] = {
    {0x0300, 0x036f, 0},   {0x0483, 0x0489, 0},   {0x0591, 0x05bd, 0},   {0x0610, 0x061a, 0},
    {0x064b, 0x065f, 0},   {0x0e31, 0x0e31, 0},   {0x0e34, 0x0e3a, 0},   {0x0e47, 0x0e4e, 0},
    {0x1100, 0x115f, 2},   {0x1ab0, 0x1aff, 0},   {0x1dc0, 0x1dff, 0},   {0x200b, 0x200f, 0},
    {0x20d0, 0x20ff, 0},   {0x231a, 0x231b, 2},   {0x2e80, 0x303e, 2},   {0x3041, 0x33ff, 2},
    {0x3400, 0x4dbf, 2},   {0x4e00, 0x9fff, 2},   {0xa000, 0xa4cf, 2},   {0xa960, 0xa97c, 2},
    {0xac00, 0xd7a3, 2},   {0xf900, 0xfaff, 2},   {0xfe00, 0xfe0f, 0},   {0xfe20, 0xfe2f, 0},
    {0xfe30, 0xfe6f, 2},   {0xff00, 0xff60, 2},   {0xffe0, 0xffe6, 2},   {0x1f300, 0x1f64f, 2},
    {0x1f680, 0x1f6ff, 2}, {0x1f900, 0x1f9ff, 2}, {0x20000, 0x3fffd, 2}, {0xe0100, 0xe01ef, 0},
};

static u32 columns_of(u32 code_point) {
    for (u32 i = 0; i < COUNT_OF(widths); i++) {
        if (code_point >= widths[i].first && code_point <= widths[i].last) return widths[i].columns;
    }
    return 1;
}

// The character at line[at]: its bytes and its columns. A byte that is no character counts as one.
static usize character_at(const struct line_editor *e, usize at, u32 *columns) {
    u32 code_point = 0;
    u32 n = utf8_decode((struct str){e->line, e->len}, at, &code_point);
    *columns = n == 0 ? 1 : columns_of(code_point);
    return MAX(n, 1u);
}

static usize next_character(const struct line_editor *e, usize at) {
    u32 columns = 0;
    if (at < e->len) at += character_at(e, at, &columns);
    while (at < e->len) { // the marks on it
        usize n = character_at(e, at, &columns);
        if (columns > 0) break;
        at += n;
    }
    return at;
}

static usize previous_character(const struct line_editor *e, usize at) {
    while (at > 0) {
        usize begin = at - 1; // of the one code point in front of `at`
        u32 columns = 0;
        for (usize n = 2; n <= 4 && n <= at && (e->line[begin] & 0xc0) == 0x80; n++) begin = at - n;
        if (begin + character_at(e, begin, &columns) != at) {
            begin = at - 1;
            columns = 1;
        }
        at = begin;
        if (columns > 0) break;
    }
    return at;
}

static bool is_blank(u8 byte) { return byte == ' ' || byte == '\t' || byte == '\n'; }

static usize word_left(const struct line_editor *e, usize at) {
    while (at > 0 && is_blank(e->line[at - 1])) at--;
    while (at > 0 && !is_blank(e->line[at - 1])) at--;
    return at;
}

static usize word_right(const struct line_editor *e, usize at) {
    while (at < e->len && is_blank(e->line[at])) at++;
    while (at < e->len && !is_blank(e->line[at])) at++;
    return at;
}

// --- the screen ---

// What stands on the screen for the character at `at`: a newline and a tab have no width of their
// own there.
static void put_character(struct output *out, const struct line_editor *e, usize at, usize n) {
    u8 byte = e->line[at];
    if (byte == '\n') {
        output_put(out, STR("\xe2\x86\xb5")); // a bent arrow
    } else if (byte == '\t') {
        output_put(out, STR(" "));
    } else {
        output_put_utf8(out, (struct str){e->line + at, n});
    }
}

static void draw(const struct line_editor *e, const char *prompt) {
    u32 columns = platform_terminal_columns(e->screen);
    if (columns == 0) columns = COLUMNS_DEFAULT;
    columns = MAX(columns, (u32)COLUMNS_MIN);
    u32 prompt_columns = (u32)str_from_z(prompt).len; // the prompts are ASCII
    u32 room = columns - MIN(prompt_columns, columns - 2) - 1;
    // As much in front of the cursor as there is room for, then what still fits behind it.
    usize begin = e->cursor;
    u32 before = 0;
    while (begin > 0) {
        usize previous = previous_character(e, begin);
        u32 width = 0;
        character_at(e, previous, &width);
        if (before + width > room - 1) break;
        before += width;
        begin = previous;
    }
    struct output out;
    output_init(&out, e->screen);
    output_format(&out, "\r%s", prompt);
    u32 used = 0;
    for (usize at = begin; at < e->len;) {
        u32 width = 0;
        usize n = character_at(e, at, &width);
        if (used + width > room) break;
        put_character(&out, e, at, n);
        used += width;
        at += n;
    }
    output_put(&out, STR("\033[K\r"));
    if (prompt_columns + before > 0) output_format(&out, "\033[%uC", prompt_columns + before);
    output_flush(&out); // a screen that went away shows at the next read
}

static void write_screen(const struct line_editor *e, struct str text) {
    struct sov_fault ignored = {0};
    enum sov_status status = platform_write(e->screen, text.data, text.len, &ignored);
    (void)status;
}

// --- the line ---

static void insert(struct line_editor *e, u8 byte) {
    if (e->len == sizeof e->line) return;
    memmove(e->line + e->cursor + 1, e->line + e->cursor, e->len - e->cursor);
    e->line[e->cursor++] = byte;
    e->len++;
}

static void erase(struct line_editor *e, usize begin, usize end) {
    memmove(e->line + begin, e->line + end, e->len - end);
    e->len -= end - begin;
    e->cursor = begin;
}

static void show_entry(struct line_editor *e, u32 which) {
    if (e->shown == e->n_entries) {
        memcpy(e->draft, e->line, e->len);
        e->draft_len = e->len;
    }
    e->shown = which;
    if (which == e->n_entries) {
        e->len = e->draft_len;
        memcpy(e->line, e->draft, e->len);
    } else {
        e->len = e->entries[which].len;
        memcpy(e->line, e->history + e->entries[which].begin, e->len);
    }
    e->cursor = e->len;
}

static void forget_oldest(struct line_editor *e) {
    u32 n = e->entries[0].len, end = n;
    for (u32 i = 1; i < e->n_entries; i++) {
        e->entries[i - 1] = e->entries[i];
        e->entries[i - 1].begin -= n;
        end = e->entries[i].begin + e->entries[i].len;
    }
    memmove(e->history, e->history + n, end - n);
    e->n_entries--;
}

// Empty lines and repetitions are not kept.
static void remember(struct line_editor *e) {
    if (e->len == 0) return;
    if (e->n_entries > 0) {
        struct str last = {e->history + e->entries[e->n_entries - 1].begin,
                           e->entries[e->n_entries - 1].len};
        if (str_equal(last, (struct str){e->line, e->len})) return;
    }
    for (;;) {
        u32 end = 0;
        if (e->n_entries > 0) {
            end = e->entries[e->n_entries - 1].begin + e->entries[e->n_entries - 1].len;
        }
        if (e->n_entries < LINE_HISTORY_MAX && end + e->len <= sizeof e->history) {
            memcpy(e->history + end, e->line, e->len);
            e->entries[e->n_entries].begin = end;
            e->entries[e->n_entries++].len = (u32)e->len;
            return;
        }
        forget_oldest(e);
    }
}
static_assert(LINE_HISTORY_BYTES >= LINE_BYTES_MAX, "the longest line has room");

static void move_or_change(struct line_editor *e, enum key key) {
    switch (key) {
    case KEY_NEWLINE: insert(e, '\n'); break;
    case KEY_LEFT: e->cursor = previous_character(e, e->cursor); break;
    case KEY_RIGHT: e->cursor = next_character(e, e->cursor); break;
    case KEY_WORD_LEFT: e->cursor = word_left(e, e->cursor); break;
    case KEY_WORD_RIGHT: e->cursor = word_right(e, e->cursor); break;
    case KEY_HOME: e->cursor = 0; break;
    case KEY_END: e->cursor = e->len; break;
    case KEY_BACKSPACE: erase(e, previous_character(e, e->cursor), e->cursor); break;
    case KEY_DELETE:
    case KEY_END_OF_INPUT: erase(e, e->cursor, next_character(e, e->cursor)); break;
    case KEY_KILL_BEFORE: erase(e, 0, e->cursor); break;
    case KEY_KILL_BEHIND: e->len = e->cursor; break;
    case KEY_KILL_WORD: erase(e, word_left(e, e->cursor), e->cursor); break;
    case KEY_UP:
        if (e->shown > 0) show_entry(e, e->shown - 1);
        break;
    case KEY_DOWN:
        if (e->shown < e->n_entries) show_entry(e, e->shown + 1);
        break;
    case KEY_CLEAR_SCREEN: write_screen(e, STR("\033[H\033[2J")); break;
    case KEY_PASTE_BEGIN: e->pasting = true; break;
    default: break;
    }
}

// Pasted bytes are text (E2). The end of a line may be LF, CR or both.
static void take_pasted(struct line_editor *e, u8 byte, enum key key) {
    if (key == KEY_PASTE_END) {
        e->pasting = false;
    } else if (byte == '\r' || (byte == '\n' && !e->after_return)) {
        insert(e, '\n');
    } else if (key == KEY_TEXT) {
        insert(e, byte);
    }
    e->after_return = byte == '\r';
}

// Takes what was read. True when that ended the line, with *result.
static bool take_input(struct line_editor *e, enum line_result *result) {
    while (e->at_input < e->n_input) {
        u8 byte = e->input[e->at_input++];
        enum key key = key_of_byte(e, byte);
        if (e->pasting) {
            take_pasted(e, byte, key);
        } else if (key == KEY_TEXT) {
            insert(e, byte);
        } else if (key == KEY_ENTER) {
            *result = LINE_TEXT;
            return true;
        } else if (key == KEY_CANCEL) {
            *result = LINE_CANCELLED;
            return true;
        } else if (key == KEY_END_OF_INPUT && e->len == 0) {
            *result = LINE_END;
            return true;
        } else {
            move_or_change(e, key);
        }
    }
    return false;
}

#define PASTE_MARKS_ON STR("\033[?2004h")
#define PASTE_MARKS_OFF STR("\033[?2004l")

static enum line_result edit(struct line_editor *e, const char *prompt, struct sov_fault *fault) {
    struct platform_terminal before;
    if (!platform_terminal_raw(PLATFORM_STDIN, &before)) {
        fault_set(fault, SOV_ERR_IO, "the terminal does not give single keys");
        return LINE_FAILED;
    }
    write_screen(e, PASTE_MARKS_ON);
    e->len = e->cursor = 0;
    e->escape = ESCAPE_NONE;
    e->pasting = e->after_return = false;
    e->shown = e->n_entries;
    enum line_result result = LINE_FAILED;
    for (;;) {
        bool done = take_input(e, &result);
        if (done) e->cursor = e->len; // what follows goes to the next row
        draw(e, prompt);
        if (done) break;
        if (fill_input(e, fault) != SOV_OK) break;
        if (e->input_ended) {
            result = LINE_END;
            break;
        }
    }
    platform_terminal_restore(PLATFORM_STDIN, &before); // E1
    if (result == LINE_CANCELLED) write_screen(e, STR("^C"));
    write_screen(e, STR("\n"));
    write_screen(e, PASTE_MARKS_OFF);
    return result;
}

enum line_result line_editor_read(struct line_editor *editor, const char *prompt, struct str *line,
                                  bool *was_empty, struct sov_fault *fault) {
    enum line_result result = editor->edits ? edit(editor, prompt, fault)
                                            : read_plain(editor, prompt, fault);
    *was_empty = editor->len == 0;
    *line = (struct str){editor->line, result == LINE_TEXT ? editor->len : 0};
    if (result == LINE_TEXT && editor->edits) remember(editor);
    return result;
}
