// SPDX-License-Identifier: Apache-2.0
// Stop strings by Knuth, Morris and Pratt's automaton, one for each string: a byte of text costs a
// few steps for each string, whatever came before.
//
//   text so far      ... a b X
//   "bXYc"               b X        matched 2
//   "XY"                   X        matched 1     held back: the most of them, "bX"
#include "request/stop.h"
#include "freestanding/mem.h"

static_assert(STOP_BYTES_MAX - 1 <= 255, "the length of a proper prefix fits a byte");

static void find_borders(struct str s, u8 *borders) {
    borders[0] = 0;
    for (usize i = 1; i < s.len; i++) {
        usize k = borders[i - 1];
        while (k > 0 && s.data[k] != s.data[i]) k = borders[k - 1];
        if (s.data[k] == s.data[i]) k++;
        borders[i] = (u8)k;
    }
}

enum sov_status stop_init(struct stop_matcher *m, const struct str *strings, u32 n_strings,
                          struct sov_fault *fault) {
    if (n_strings > STOP_STRINGS_MAX) {
        return fault_set(fault, SOV_ERR_ARGUMENT, "%u stop strings, at most %u", n_strings,
                         STOP_STRINGS_MAX);
    }
    m->n_strings = n_strings;
    for (u32 i = 0; i < n_strings; i++) {
        if (strings[i].len == 0 || strings[i].len > STOP_BYTES_MAX) {
            return fault_set(fault, SOV_ERR_ARGUMENT,
                             "a stop string of %llu bytes: it must have 1 to %u",
                             (u64)strings[i].len, STOP_BYTES_MAX);
        }
        m->strings[i] = strings[i];
        find_borders(strings[i], m->borders[i]);
    }
    stop_reset(m);
    return SOV_OK;
}

void stop_reset(struct stop_matcher *m) {
    memset(m->matched, 0, sizeof m->matched);
    m->n_held = 0;
    m->found = false;
}

// How many bytes of string i the text ends in, with one more byte.
static u32 advance(const struct stop_matcher *m, u32 i, u8 byte) {
    const struct str s = m->strings[i];
    usize k = m->matched[i];
    while (k > 0 && s.data[k] != byte) k = m->borders[i][k - 1];
    return (u32)(s.data[k] == byte ? k + 1 : 0);
}

usize stop_feed(struct stop_matcher *m, struct str bytes, u8 *out) {
    usize n_out = 0;
    for (usize at = 0; at < bytes.len && !m->found; at++) {
        u32 n_ready = 0, n_complete = 0; // the most bytes of any string; of those that are whole
        for (u32 i = 0; i < m->n_strings; i++) {
            m->matched[i] = advance(m, i, bytes.data[at]);
            n_ready = MAX(n_ready, m->matched[i]);
            if (m->matched[i] == m->strings[i].len) n_complete = MAX(n_complete, m->matched[i]);
        }
        m->found = n_complete > 0;
        // What is held and the new byte: all but the last n_keep bytes can be shown.
        u32 n_keep = m->found ? n_complete : n_ready;
        u32 n_all = m->n_held + 1;
        assert(n_keep <= n_all);
        u32 n_shown = n_all - n_keep;
        u32 n_old = MIN(n_shown, m->n_held);
        memcpy(out + n_out, m->held, n_old);
        n_out += n_old;
        if (n_shown > n_old) out[n_out++] = bytes.data[at];
        memmove(m->held, m->held + n_old, m->n_held - n_old);
        m->n_held -= n_old;
        if (n_shown == n_old) m->held[m->n_held++] = bytes.data[at];
    }
    if (m->found) m->n_held = 0;
    return n_out;
}

usize stop_finish(struct stop_matcher *m, u8 *out) {
    usize n = m->n_held;
    memcpy(out, m->held, n);
    m->n_held = 0;
    return n;
}
