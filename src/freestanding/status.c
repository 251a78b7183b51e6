// SPDX-License-Identifier: Apache-2.0
// Faults: one message per failure, made printable.
#include "freestanding/status.h"
#include "freestanding/mem.h"
#include "freestanding/text.h"

static_assert(SOV_STATUS_COUNT == 15, "status values are consecutive and none was lost");

const char *status_name(enum sov_status status) {
    static const char *const names[] = {
#define STATUS_NAME(code, name, text) [code] = #name,
        SOV_STATUS_LIST(STATUS_NAME)
#undef STATUS_NAME
    };
    return (u32)status < COUNT_OF(names) ? names[status] : "SOV_ERR_?";
}

const char *status_text(enum sov_status status) {
    static const char *const texts[] = {
#define STATUS_TEXT(code, name, text) [code] = (text),
        SOV_STATUS_LIST(STATUS_TEXT)
#undef STATUS_TEXT
    };
    return (u32)status < COUNT_OF(texts) ? texts[status] : "unknown status";
}

int status_exit_code(enum sov_status status) {
    switch (status) {
    case SOV_OK: return 0;
    case SOV_ERR_USAGE: return 2;
    case SOV_ERR_FORMAT:
    case SOV_ERR_UNSUPPORTED: return 3;
    case SOV_ERR_INTEGRITY: return 4;
    default: return 1;
    }
}

// Replaces what a terminal should not be sent: control bytes and bytes that are not UTF-8.
static void make_printable(char *text, usize len) {
    struct str s = {(const u8 *)text, len};
    for (usize i = 0; i < len;) {
        u32 code_point = 0;
        u32 n = utf8_decode(s, i, &code_point);
        bool control = code_point < 0x20 || (code_point >= 0x7f && code_point < 0xa0);
        if (n == 0 || control) {
            for (u32 j = 0; j < MAX(n, 1u); j++) text[i + j] = '?';
        }
        i += MAX(n, 1u);
    }
}

enum sov_status fault_set(struct sov_fault *fault, enum sov_status status, const char *format,
                          ...) {
    assert(status != SOV_OK);
    if (fault == NULL || fault->status != SOV_OK) return status;
    fault->status = status;
    struct text t = TEXT_OVER_ARRAY(fault->message);
    va_list args;
    va_start(args, format);
    text_format_v(&t, format, args);
    va_end(args);
    make_printable(fault->message, t.len);
    return status;
}
