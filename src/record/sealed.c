// SPDX-License-Identifier: Apache-2.0
// Commitments, as bytes. Each is one SHA-256 over a tag, the salt and what is committed to.
#include "record/sealed.h"
#include "freestanding/mem.h"

#define TOKEN_TAG "sov-rtx token v1"
#define ORIGIN_TAG "sov-rtx orign v1"

static_assert(sizeof SEALED_OPENING_TAG - 1 == SEALED_TAG_BYTES &&
                  sizeof SEALED_TAG - 1 == SEALED_TAG_BYTES &&
                  sizeof TOKEN_TAG - 1 == SEALED_TAG_BYTES &&
                  sizeof ORIGIN_TAG - 1 == SEALED_TAG_BYTES,
              "every tag has its stated length");

void sealed_opening_head(const struct sha256_digest *salt, u8 out[SEALED_OPENING_HEAD_BYTES]) {
    struct str tag = STR(SEALED_OPENING_TAG);
    memcpy(out, tag.data, tag.len);
    memcpy(out + SEALED_TAG_BYTES, salt->bytes, SHA256_BYTES);
}

bool sealed_is_opening(struct str bytes) {
    return bytes.len > SEALED_OPENING_HEAD_BYTES && str_starts_with(bytes, STR(SEALED_OPENING_TAG));
}

struct str sealed_payload(struct str opening, struct sha256_digest *salt) {
    assert(sealed_is_opening(opening));
    memcpy(salt->bytes, opening.data + SEALED_TAG_BYTES, SHA256_BYTES);
    return (struct str){opening.data + SEALED_OPENING_HEAD_BYTES,
                        opening.len - SEALED_OPENING_HEAD_BYTES};
}

struct str sealed_kept(struct str bytes, u8 scratch[SEALED_BYTES]) {
    if (!sealed_is_opening(bytes)) return bytes;
    struct sha256_digest commitment = sha256_of(bytes);
    struct str tag = STR(SEALED_TAG);
    memcpy(scratch, tag.data, tag.len);
    store_u64(scratch + SEALED_TAG_BYTES, bytes.len);
    memcpy(scratch + SEALED_TAG_BYTES + 8, commitment.bytes, SHA256_BYTES);
    return (struct str){scratch, SEALED_BYTES};
}

struct sha256_digest sealed_kept_hash(struct str bytes) {
    u8 scratch[SEALED_BYTES];
    return sha256_of(sealed_kept(bytes, scratch));
}

bool sealed_read(struct str payload, struct sealed *sealed) {
    if (payload.len != SEALED_BYTES || !str_starts_with(payload, STR(SEALED_TAG))) return false;
    sealed->opening_bytes = load_u64(payload.data + SEALED_TAG_BYTES);
    memcpy(sealed->commitment.bytes, payload.data + SEALED_TAG_BYTES + 8, SHA256_BYTES);
    return true;
}

static struct sha256_digest salted(struct str tag, const struct sha256_digest *salt,
                                   struct str bytes) {
    struct sha256 h;
    sha256_begin(&h);
    sha256_update(&h, tag);
    sha256_update(&h, (struct str){salt->bytes, SHA256_BYTES});
    sha256_update(&h, bytes);
    return sha256_end(&h);
}

struct sha256_digest sealed_token(const struct sha256_digest *salt, u64 number, u32 token) {
    u8 bytes[12];
    store_u64(bytes, number);
    store_u32(bytes + 8, token);
    return salted(STR(TOKEN_TAG), salt, (struct str){bytes, sizeof bytes});
}

struct sha256_digest sealed_origin(const struct sha256_digest *salt,
                                   const struct sha256_digest *origin) {
    return salted(STR(ORIGIN_TAG), salt, (struct str){origin->bytes, SHA256_BYTES});
}
