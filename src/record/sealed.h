// SPDX-License-Identifier: Apache-2.0
// Commitments: what a store keeps when texts and tokens are not to stand in it (`--record digest`).
//
//     opening   "sov-rtx openg v1", the sequence's salt, the payload in clear: kept in the sidecar
//     sealed    "sov-rtx seald v1", the opening's length, its SHA-256: what the store keeps
//
// Whoever hands payloads to a store gives an opening where he would give the payload; what the
// store keeps of either is a function of it (sealed_kept).
//
// D1. No digest that a sealed sequence leaves in the store or in a spool is of its prompt, its
//     parameters or its tokens alone: the salt is part of every one. What shows is how much there
//     is of it (lengths and counts), when, why it ended, and under which id.
// D2. The salt is 32 random bytes of one sequence, in all its openings and nowhere else. Without it
//     a guess cannot be confirmed, but one that has other lengths is ruled out; with it one opening
//     can be shown without the others, but whoever has it can try guesses at all of them.
#pragma once
#include "record/sha256.h"

#define SEALED_TAG_BYTES 16
#define SEALED_OPENING_TAG "sov-rtx openg v1"
#define SEALED_TAG "sov-rtx seald v1"
#define SEALED_OPENING_HEAD_BYTES (SEALED_TAG_BYTES + SHA256_BYTES) // in front of the payload
#define SEALED_BYTES (SEALED_TAG_BYTES + 8 + SHA256_BYTES)

struct sealed {
    u64 opening_bytes;
    struct sha256_digest commitment; // SHA-256 of the opening
};

// --- making ---
void sealed_opening_head(const struct sha256_digest *salt, u8 out[SEALED_OPENING_HEAD_BYTES]);
// What the store keeps of bytes that were handed to it: themselves, or, of an opening, the sealed
// payload in `scratch`.
struct str sealed_kept(struct str bytes, u8 scratch[SEALED_BYTES]);
struct sha256_digest sealed_kept_hash(struct str bytes); // SHA-256 of that

// --- reading ---
bool sealed_is_opening(struct str bytes);
// The payload of an opening, and its salt.
struct str sealed_payload(struct str opening, struct sha256_digest *salt);
// Whether a recorded payload is a sealed one; fills it in.
bool sealed_read(struct str payload, struct sealed *sealed);

// --- what else is made with the salt ---
// Of the token of event `number`.
struct sha256_digest sealed_token(const struct sha256_digest *salt, u64 number, u32 token);
// Of a sequence's origin (docs/events.md).
struct sha256_digest sealed_origin(const struct sha256_digest *salt,
                                   const struct sha256_digest *origin);
