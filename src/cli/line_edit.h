// SPDX-License-Identifier: Apache-2.0
// Lines from a person or a pipe. On a terminal the line can be edited; anywhere else, and on a
// terminal that cannot move its cursor, lines come as they are.
//
//   left right, Ctrl-B Ctrl-F   by a character     Home End, Ctrl-A Ctrl-E   to the ends
//   Ctrl-left Ctrl-right        by a word          up down, Ctrl-P Ctrl-N    earlier lines
//   Backspace Delete            erase one          Ctrl-U Ctrl-K Ctrl-W      before, behind, word
//   Ctrl-L                      clear the screen   Alt-Enter                 a new line
//   Ctrl-C                      give the line up   Ctrl-D                    end, if it is empty
//
// E1. The terminal is changed only while a line is being edited, and changed back on every way out.
// E2. Pasted text is text: what a terminal marks as pasted may have newlines in it, and no byte of
//     it is a command.
// E3. The cursor moves over whole characters, together with the marks that stand on them.
#pragma once
#include "platform/platform.h"
#include "freestanding/text.h"

#define LINE_BYTES_MAX 65536 // of one line
#define LINE_HISTORY_MAX 128 // lines kept
#define LINE_HISTORY_BYTES (1 << 18)

enum line_result {
    LINE_TEXT,
    LINE_END,       // no more input
    LINE_CANCELLED, // Ctrl-C
    LINE_FAILED,    // `fault` tells why; a line that is too long is SOV_ERR_LIMIT, and passed over
};

struct line_editor; // about half a MiB, mapped

// Reads from stdin; shows prompt and line on stderr, or on stdout when stderr is no terminal.
enum sov_status line_editor_open(const struct platform_start *start, struct line_editor **editor,
                                 struct sov_fault *fault) MUST_CHECK;
void line_editor_close(struct line_editor *editor);
// Whether a person sits there.
bool line_editor_is_interactive(const struct line_editor *editor);
// The next line without its end, valid until the next call. `was_empty`: whether the line that
// Ctrl-C gave up had nothing in it.
enum line_result line_editor_read(struct line_editor *editor, const char *prompt, struct str *line,
                                  bool *was_empty, struct sov_fault *fault) MUST_CHECK;
