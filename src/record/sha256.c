// SPDX-License-Identifier: Apache-2.0
// FIPS 180-4, section 6.2, as it is written there; the constants are its section 4.2.2 (first 32
// bits of the fractional parts of the cube roots of the first 64 primes) and 5.3.3.
#include "record/sha256.h"
#include "freestanding/mem.h"
#include <cpuid.h>

const u32 sha256_round_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static u32 rotate_right(u32 x, u32 n) { return x >> n | x << (32 - n); }

void sha256_blocks_portable(u32 state[8], const u8 *data, usize n_blocks) {
    for (; n_blocks > 0; n_blocks--, data += SHA256_BLOCK_BYTES) {
        u32 w[64];
        for (u32 t = 0; t < 16; t++) w[t] = __builtin_bswap32(load_u32(data + 4 * t));
        for (u32 t = 16; t < 64; t++) {
            u32 x = w[t - 15], y = w[t - 2];
            u32 sigma0 = rotate_right(x, 7) ^ rotate_right(x, 18) ^ x >> 3;
            u32 sigma1 = rotate_right(y, 17) ^ rotate_right(y, 19) ^ y >> 10;
            w[t] = sigma1 + w[t - 7] + sigma0 + w[t - 16];
        }
        u32 a = state[0], b = state[1], c = state[2], d = state[3];
        u32 e = state[4], f = state[5], g = state[6], h = state[7];
        for (u32 t = 0; t < 64; t++) {
            u32 sum1 = rotate_right(e, 6) ^ rotate_right(e, 11) ^ rotate_right(e, 25);
            u32 sum0 = rotate_right(a, 2) ^ rotate_right(a, 13) ^ rotate_right(a, 22);
            u32 choice = (e & f) ^ (~e & g);
            u32 majority = (a & b) ^ (a & c) ^ (b & c);
            u32 t1 = h + sum1 + choice + sha256_round_constants[t] + w[t];
            u32 t2 = sum0 + majority;
            h = g, g = f, f = e, e = d + t1;
            d = c, c = b, b = a, a = t1 + t2;
        }
        state[0] += a, state[1] += b, state[2] += c, state[3] += d;
        state[4] += e, state[5] += f, state[6] += g, state[7] += h;
    }
}

#define LEAF7_EBX_SHA (1u << 29)
#define LEAF1_ECX_SSE41 (1u << 19)

bool sha256_has_shani(void) {
    u32 eax = 0, ebx = 0, ecx = 0, edx = 0;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || (ecx & LEAF1_ECX_SSE41) == 0) return false;
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
    return (ebx & LEAF7_EBX_SHA) != 0;
}

// The choice is remembered: cpuid leaves a virtual machine, which takes longer than hashing an
// event does (14 of 16 us a token were spent on it). It is a constant of the machine, and any
// thread that finds it unknown finds out the same.
static sha256_blocks_fn *best_blocks(void) {
    enum { UNKNOWN, PORTABLE, SHANI };
    static u32 known;
    u32 choice = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (choice == UNKNOWN) {
        choice = sha256_has_shani() ? SHANI : PORTABLE;
        __atomic_store_n(&known, choice, __ATOMIC_RELAXED);
    }
    return choice == SHANI ? sha256_blocks_shani : sha256_blocks_portable;
}

void sha256_begin(struct sha256 *h) {
    *h = (struct sha256){
        .state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c,
                  0x1f83d9ab, 0x5be0cd19},
        .blocks = best_blocks(),
    };
}

void sha256_update(struct sha256 *h, struct str bytes) {
    usize held = (usize)(h->n_bytes % SHA256_BLOCK_BYTES);
    h->n_bytes += bytes.len;
    if (held > 0) {
        usize n = MIN(SHA256_BLOCK_BYTES - held, bytes.len);
        memcpy(h->block + held, bytes.data, n);
        bytes.data += n;
        bytes.len -= n;
        if (held + n < SHA256_BLOCK_BYTES) return;
        h->blocks(h->state, h->block, 1);
    }
    usize n_blocks = bytes.len / SHA256_BLOCK_BYTES;
    if (n_blocks > 0) h->blocks(h->state, bytes.data, n_blocks);
    usize consumed = n_blocks * SHA256_BLOCK_BYTES;
    if (bytes.len > consumed) memcpy(h->block, bytes.data + consumed, bytes.len - consumed);
}

void sha256_update_pair(struct sha256 *a, struct sha256 *b, const u8 *a_data, const u8 *b_data,
                        usize n) {
    bool at_borders = a->n_bytes % SHA256_BLOCK_BYTES == 0 && b->n_bytes % SHA256_BLOCK_BYTES == 0;
    usize n_blocks = n / SHA256_BLOCK_BYTES, done = n_blocks * SHA256_BLOCK_BYTES;
    if (!at_borders || n_blocks == 0 || a->blocks != sha256_blocks_shani) done = 0;
    if (done > 0) {
        sha256_blocks_pair_shani(a->state, b->state, a_data, b_data, n_blocks);
        a->n_bytes += done;
        b->n_bytes += done;
    }
    sha256_update(a, (struct str){a_data + done, n - done});
    sha256_update(b, (struct str){b_data + done, n - done});
}

struct sha256_digest sha256_end(struct sha256 *h) {
    u64 n_bits = h->n_bytes * 8;
    usize held = (usize)(h->n_bytes % SHA256_BLOCK_BYTES);
    h->block[held++] = 0x80;
    if (held > SHA256_BLOCK_BYTES - sizeof n_bits) {
        memset(h->block + held, 0, SHA256_BLOCK_BYTES - held);
        h->blocks(h->state, h->block, 1);
        held = 0;
    }
    memset(h->block + held, 0, SHA256_BLOCK_BYTES - held);
    store_u64(h->block + SHA256_BLOCK_BYTES - sizeof n_bits, __builtin_bswap64(n_bits));
    h->blocks(h->state, h->block, 1);
    struct sha256_digest digest = {0};
    for (u32 i = 0; i < 8; i++) store_u32(digest.bytes + 4 * i, __builtin_bswap32(h->state[i]));
    return digest;
}

struct sha256_digest sha256_of(struct str bytes) {
    struct sha256 h;
    sha256_begin(&h);
    sha256_update(&h, bytes);
    return sha256_end(&h);
}

void sha256_pair(const struct str messages[2], struct sha256_digest digests[2]) {
    struct sha256 h[2];
    usize n = MIN(messages[0].len, messages[1].len);
    for (u32 i = 0; i < 2; i++) sha256_begin(&h[i]);
    sha256_update_pair(&h[0], &h[1], messages[0].data, messages[1].data, n);
    for (u32 i = 0; i < 2; i++) {
        sha256_update(&h[i], (struct str){messages[i].data + n, messages[i].len - n});
        digests[i] = sha256_end(&h[i]);
    }
}

void sha256_to_hex(const struct sha256_digest *digest, char hex[SHA256_HEX_BYTES + 1]) {
    static const char digits[] = "0123456789abcdef";
    for (u32 i = 0; i < SHA256_BYTES; i++) {
        hex[2 * i] = digits[digest->bytes[i] >> 4];
        hex[2 * i + 1] = digits[digest->bytes[i] & 15];
    }
    hex[SHA256_HEX_BYTES] = 0;
}

static bool hex_value(u8 c, u8 *value) {
    if (c >= '0' && c <= '9') {
        *value = (u8)(c - '0');
    } else if (c >= 'a' && c <= 'f') {
        *value = (u8)(c - 'a' + 10);
    } else if (c >= 'A' && c <= 'F') {
        *value = (u8)(c - 'A' + 10);
    } else {
        return false;
    }
    return true;
}

bool sha256_from_hex(struct str hex, struct sha256_digest *digest) {
    if (hex.len != SHA256_HEX_BYTES) return false;
    struct sha256_digest parsed = {0};
    for (u32 i = 0; i < SHA256_BYTES; i++) {
        u8 high = 0, low = 0;
        if (!hex_value(hex.data[2 * i], &high) || !hex_value(hex.data[2 * i + 1], &low))
            return false;
        parsed.bytes[i] = (u8)(high << 4 | low);
    }
    *digest = parsed;
    return true;
}

bool sha256_equal(const struct sha256_digest *a, const struct sha256_digest *b) {
    return memcmp(a->bytes, b->bytes, SHA256_BYTES) == 0;
}
