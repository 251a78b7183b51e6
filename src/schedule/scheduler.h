// SPDX-License-Identifier: Apache-2.0
// States of sequences and their transitions, and what a step computes (see scheduler.c).
#pragma once
#include "schedule/kv_allocator.h"

enum sequence_state {
    SEQUENCE_IDLE,       // no request, or one that waits for its admission
    SEQUENCE_PREFILL,    // its prompt is being computed
    SEQUENCE_GENERATE,   // one row a step
    SEQUENCE_SWAP,       // lost its blocks: spilled to memory, or dropped
    SEQUENCE_CHECKPOINT, // a 64-boundary waits for its receipt
    SEQUENCE_RESUME,     // computes again what was dropped
    SEQUENCE_STATES,
};

enum finish_reason {
    FINISH_NONE,
    FINISH_STOP,     // an end token, or the request's stop rule
    FINISH_LENGTH,   // the request's limit, or the context
    FINISH_CANCEL,   // engine_cancel
    FINISH_DEADLINE, // its time is over
    FINISH_FAILED,   // see the fault
};
