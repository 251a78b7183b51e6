// SPDX-License-Identifier: Apache-2.0
// Stop strings: an answer ends where one of them appears in its bytes, wherever the borders of
// tokens are.
//
// P1. Of all matches the one that is complete first counts; of those that the same byte completes,
//     the longest, which starts first. So the result does not depend on how the text is cut into
//     pieces.
// P2. What is in front of the match is shown, the match and all behind it never.
// P3. Bytes are held back only while they may still become a match: at most the longest end of the
//     text that begins a stop string.
#pragma once
#include "freestanding/status.h"

#define STOP_STRINGS_MAX 16
#define STOP_BYTES_MAX 256 // of one string

struct stop_matcher {
    u32 n_strings;
    struct str strings[STOP_STRINGS_MAX];         // of the caller; must stay
    u8 borders[STOP_STRINGS_MAX][STOP_BYTES_MAX]; // [i][k]: longest proper prefix of string i that
                                                  // its first k + 1 bytes end in
    u32 matched[STOP_STRINGS_MAX]; // how many bytes of each string the text so far ends in
    u32 n_held;                    // the most of them: bytes not shown yet
    u8 held[STOP_BYTES_MAX];
    bool found; // the text ends here
};

// Too many strings, an empty one or one that is too long are SOV_ERR_ARGUMENT. Without strings
// nothing is ever held back.
enum sov_status stop_init(struct stop_matcher *m, const struct str *strings, u32 n_strings,
                          struct sov_fault *fault) MUST_CHECK;
// To the beginning of another text.
void stop_reset(struct stop_matcher *m);
// The next bytes of the text. Writes those that may be shown now to out[m->n_held + bytes.len] and
// returns how many there are. After a match, everything is dropped.
usize stop_feed(struct stop_matcher *m, struct str bytes, u8 *out);
// The text ends: writes what was held back to out[m->n_held] and returns how much.
usize stop_finish(struct stop_matcher *m, u8 *out);
