// SPDX-License-Identifier: Apache-2.0
// SHA-256 (FIPS 180-4), for files and records of up to 2^61 bytes. The block function uses the
// CPU's SHA instructions where there are any; both forms give the same digest.
#pragma once
#include "freestanding/text.h"

#define SHA256_BYTES 32
#define SHA256_BLOCK_BYTES 64
#define SHA256_HEX_BYTES 64

struct sha256_digest {
    u8 bytes[SHA256_BYTES];
};

// Consumes whole blocks into the eight state words.
typedef void sha256_blocks_fn(u32 state[8], const u8 *data, usize n_blocks);
sha256_blocks_fn sha256_blocks_portable;
sha256_blocks_fn sha256_blocks_shani; // only where sha256_has_shani()
bool sha256_has_shani(void);
// The same for two messages at once, which takes hardly longer than one: the instructions of one
// wait for each other.
void sha256_blocks_pair_shani(u32 first[8], u32 second[8], const u8 *first_data,
                              const u8 *second_data, usize n_blocks);
extern const u32 sha256_round_constants[64];

struct sha256 {
    u32 state[8];
    u64 n_bytes;
    u8 block[SHA256_BLOCK_BYTES]; // the unfinished block
    sha256_blocks_fn *blocks;
};

void sha256_begin(struct sha256 *h);
void sha256_update(struct sha256 *h, struct str bytes);
// The same as two updates with n bytes each, in less time where the CPU has the SHA instructions.
void sha256_update_pair(struct sha256 *a, struct sha256 *b, const u8 *a_data, const u8 *b_data,
                        usize n);
struct sha256_digest sha256_end(struct sha256 *h); // `h` must be begun again afterwards

struct sha256_digest sha256_of(struct str bytes);
// Both digests, in less time than one after the other where the CPU has the SHA instructions.
void sha256_pair(const struct str messages[2], struct sha256_digest digests[2]);

void sha256_to_hex(const struct sha256_digest *digest,
                   char hex[SHA256_HEX_BYTES + 1]); // lower case
// 64 hexadecimal digits of either case, nothing else.
bool sha256_from_hex(struct str hex, struct sha256_digest *digest);
bool sha256_equal(const struct sha256_digest *a, const struct sha256_digest *b);
