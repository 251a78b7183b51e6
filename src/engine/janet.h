// SPDX-License-Identifier: Apache-2.0
// The Janet array: 32 words at one named address, in which the scheduler shows its present
// configuration. It can be found from outside (a debugger, a core file) without a symbol, which is
// its purpose; nothing is decided by it.
//
// J1. It is reached through janet_get and janet_set alone, which check slot and value; its layout
// is
//     known to janet.c only, and tools/tidy.py forbids any other access.
// J2. It is written after the commit of a step.
// J3. What does not exist yet is zero: draft length, quorum height, signature.
#pragma once
#include "freestanding/status.h"

#define JANET_ADDRESS 0x200000000000ull // 32 TiB: far from programs, libraries, stacks and heaps
#define JANET_WORDS 32

enum janet_slot {
    JANET_PENDING = 0,   // sequences that wait: for admission, or for blocks
    JANET_BATCH = 1,     // rows of the last step
    JANET_GENERATED = 2, // tokens of the sequence of JANET_SEQUENCE, modulo 64
    JANET_SEQUENCE = 3,  // slot whose token was committed last
    JANET_KV_USED = 4,   // KV blocks with a reference
    JANET_POWER = 5,     // enum power_state
    JANET_DRAFT = 6,
    JANET_QUORUM = 7,
    JANET_RECEIPT = 8,    // to 15: hash of the last receipt, as little-endian words
    JANET_SIGNATURE = 16, // to 31
};

struct janet; // at JANET_ADDRESS

// Maps the array, zeroed. SOV_ERR_STATE when something is there already: a process has one.
enum sov_status janet_open(struct janet **janet, struct sov_fault *fault) MUST_CHECK;
void janet_close(struct janet *janet);
// SOV_ERR_ARGUMENT for a slot that there is not, or a value that the slot cannot have.
enum sov_status janet_get(const struct janet *janet, u32 slot, u32 *value, struct sov_fault *fault)
    MUST_CHECK;
enum sov_status janet_set(struct janet *janet, u32 slot, u32 value, struct sov_fault *fault)
    MUST_CHECK;
