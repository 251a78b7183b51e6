// SPDX-License-Identifier: Apache-2.0
// Writes GGUF bytes into memory, field by field, so that a test can also write what no sound file
// has. Used by test_gguf and test_weights; nothing is checked here but the memory's end.
#pragma once
#include "freestanding/mem.h"
#include "model/gguf.h"
#include "platform/platform.h"

struct builder {
    u8 *data;
    usize capacity, len;
    u64 n_keys, n_tensors;
    u64 data_bytes; // of the tensors described so far, each rounded up to 32
};

static inline struct builder builder_new(usize capacity) {
    struct builder b = {.data = platform_memory_map(capacity), .capacity = capacity};
    assert(b.data != NULL);
    return b;
}

static inline void builder_free(struct builder *b) {
    platform_memory_unmap(b->data, b->capacity);
    *b = (struct builder){0};
}

static inline void put_bytes(struct builder *b, const void *bytes, usize n) {
    assert(n <= b->capacity - b->len);
    memcpy(b->data + b->len, bytes, n);
    b->len += n;
}

static inline void put_zeros(struct builder *b, usize n) {
    assert(n <= b->capacity - b->len);
    memset(b->data + b->len, 0, n);
    b->len += n;
}

static inline void put_u32(struct builder *b, u32 value) { put_bytes(b, &value, sizeof value); }
static inline void put_u64(struct builder *b, u64 value) { put_bytes(b, &value, sizeof value); }

static inline void put_str(struct builder *b, struct str s) {
    put_u64(b, s.len);
    put_bytes(b, s.data, s.len);
}

// The header; the counts are written by builder_end.
static inline void builder_begin(struct builder *b) {
    b->len = 0;
    b->n_keys = b->n_tensors = b->data_bytes = 0;
    put_bytes(b, "GGUF", 4);
    put_u32(b, 3);
    put_zeros(b, 16);
}

static inline void put_key(struct builder *b, struct str name, u32 type) {
    b->n_keys++;
    put_str(b, name);
    put_u32(b, type);
}

static inline void put_key_u32(struct builder *b, struct str name, u32 value) {
    put_key(b, name, GGUF_U32);
    put_u32(b, value);
}

static inline void put_key_str(struct builder *b, struct str name, struct str value) {
    put_key(b, name, GGUF_STRING);
    put_str(b, value);
}

static inline void put_key_array(struct builder *b, struct str name, u32 element, u64 count) {
    put_key(b, name, GGUF_ARRAY);
    put_u32(b, element);
    put_u64(b, count);
}

// A description; n_dims of the dims are written.
static inline void put_tensor_at(struct builder *b, struct str name, u32 n_dims, const u64 *dims,
                                 u32 type, u64 offset) {
    b->n_tensors++;
    put_str(b, name);
    put_u32(b, n_dims);
    for (u32 i = 0; i < n_dims; i++) put_u64(b, dims[i]);
    put_u32(b, type);
    put_u64(b, offset);
}

// A sound description, placed behind those before it.
static inline void put_tensor(struct builder *b, struct str name, u32 type, u64 k, u64 rows) {
    u64 dims[2] = {k, rows};
    put_tensor_at(b, name, rows == 0 ? 1 : 2, dims, type, b->data_bytes);
    u64 bytes = dtype_row_bytes((enum dtype)type, k) * MAX(rows, 1);
    b->data_bytes += round_up(bytes, 32);
}

// Writes the counts and the padding. The data of the tensors follow.
static inline void builder_end(struct builder *b) {
    store_u64(b->data + 8, b->n_tensors);
    store_u64(b->data + 16, b->n_keys);
    put_zeros(b, (usize)(round_up(b->len, 32) - b->len));
}
