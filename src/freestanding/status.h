// SPDX-License-Identifier: Apache-2.0
// Failing with a message. A function that can fail takes a fault, fills it once, and returns the
// status; callers pass it up unchanged.
#pragma once
#include "freestanding/types.h"
#include "sov_rtx.h"

// Fills `fault` and returns `status`, so that `return fault_set(...)` is one line. A fault that is
// already filled is kept: the first failure is the cause. `fault` may be NULL (nobody asks).
// Formats as text_format does. Bytes outside printable ASCII become '?', but well-formed UTF-8
// stays.
enum sov_status fault_set(struct sov_fault *fault, enum sov_status status, const char *format, ...)
    PRINTF_LIKE(3, 4);

// "SOV_ERR_FORMAT" and "the input is damaged"; a status outside the list gives "SOV_ERR_?".
const char *status_name(enum sov_status status);
const char *status_text(enum sov_status status);

// 0 fine, 1 the run failed, 2 usage, 3 the input is damaged or unsupported, 4 a record does
// not verify.
int status_exit_code(enum sov_status status);
