// SPDX-License-Identifier: Apache-2.0
// From an untrusted GGUF file to a directory of its keys and tensors. Nothing is copied out of the
// mapping: names, strings and arrays are slices of it. Every count, length, offset and product is
// held against the bytes that are left, in 64 bits, before it is used (gguf.c draws the layout and
// lists the invariants).
//
// Every refusal is SOV_ERR_FORMAT (the file is damaged) or SOV_ERR_UNSUPPORTED (sound, but beyond
// this program), so the exit code is 3; only the system's own refusals have other codes.
#pragma once
#include "freestanding/arena.h"
#include "freestanding/text.h"
#include "ops/dtype.h"

#define GGUF_DIMS_MAX 4
#define GGUF_KEYS_MAX (1u << 20)
#define GGUF_TENSORS_MAX (1u << 20) // of all shards together
#define GGUF_SHARDS_MAX 999
#define GGUF_KEY_NAME_BYTES_MAX 65535  // GGUF's own limit
#define GGUF_TENSOR_NAME_BYTES_MAX 255 // GGUF says 64; longer ones exist in the wild
#define GGUF_PATH_BYTES_MAX 4096       // of the name of a shard
#define GGUF_ALIGNMENT_DEFAULT 32
#define GGUF_ALIGNMENT_MAX 65536

enum gguf_type { // of a key's value; GGUF's numbers
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_TYPE_LIMIT,
};

struct gguf_key {
    struct str name;
    enum gguf_type type;
    enum gguf_type element; // of an array, never GGUF_ARRAY; else the type itself
    u64 count;              // elements of an array, else 1
    const u8 *value;        // the value's bytes; an array's first element (after its count);
                            // a string's u64 length, then its bytes. Checked to lie in the file:
                            // also every string of an array, and every bool is 0 or 1
    u64 offset;             // of the key in its file, for messages
};

struct gguf_tensor {
    struct str name;
    enum dtype type;
    u32 n_dims;
    u64 dims[GGUF_DIMS_MAX]; // dims[0] is the row length (contiguous); missing ones are 1
    u64 n_rows;              // product of dims[1..]
    u64 row_bytes, bytes;
    const u8 *data;  // inside the mapping
    u64 data_offset; // of the data, from the start of its file
    u64 offset;      // of the description in its file, for messages
    u32 shard;       // 0-based
};

struct gguf_mapping {
    const u8 *data;
    u64 bytes;
    int descriptor; // of the open file, when the mapping is owned
};

struct gguf {
    u32 version, alignment; // of the first shard
    u32 n_keys, n_tensors, n_shards;
    struct gguf_key *keys;       // of the first shard, in file order
    struct gguf_tensor *tensors; // of all shards, in file order
    struct gguf_mapping *shards; // [n_shards] whole files
    u64 file_bytes;              // of all shards
    // Private to gguf.c: positions in ascending order of the names, and the directory's memory.
    u32 *key_order, *tensor_order;
    void *memory;
    u64 memory_bytes;
    bool owns_mappings;
};

// Maps the file (and, when it is shard 1 of N by its split.* keys and its name -00001-of-0000N, the
// others) and reads the directory. Directory memory is one platform mapping, sized from counts that
// were checked against the file, and given back by gguf_close. On failure nothing stays mapped and
// the fault says what was expected, what was found and where.
enum sov_status gguf_open(struct gguf *gguf, const char *path, struct sov_fault *fault) MUST_CHECK;
void gguf_close(struct gguf *gguf); // may be called on a zeroed struct, and twice

// The same over one file's bytes that the caller owns and keeps (tests, fuzzing); a split file is
// refused.
enum sov_status gguf_parse(struct gguf *gguf, const u8 *data, u64 bytes, struct sov_fault *fault)
    MUST_CHECK;

// SOV_ERR_IO when a mapped file has been cut short since it was opened. Pages that are gone end the
// process when they are read, but the rest of the last page left reads as zeros: so whoever
// computes with weights asks this before the result counts. Bytes of the caller (gguf_parse) are
// not asked about.
enum sov_status gguf_check_files(const struct gguf *gguf, struct sov_fault *fault) MUST_CHECK;

// NULL when absent.
const struct gguf_key *gguf_find_key(const struct gguf *gguf, struct str name);
const struct gguf_tensor *gguf_find_tensor(const struct gguf *gguf, struct str name);

// Typed reads. `required`: absence is SOV_ERR_FORMAT; else *value keeps what it held. A key of
// another type is an error; gguf_get_u32 takes any integer type whose value fits; gguf_get_f32 also
// takes F64 (rounded). Messages name the key, and the offset where it stands.
enum sov_status gguf_get_u32(const struct gguf *, struct str name, bool required, u32 *value,
                             struct sov_fault *) MUST_CHECK;
enum sov_status gguf_get_f32(const struct gguf *, struct str name, bool required, f32 *value,
                             struct sov_fault *) MUST_CHECK;
enum sov_status gguf_get_bool(const struct gguf *, struct str name, bool required, bool *value,
                              struct sov_fault *) MUST_CHECK;
enum sov_status gguf_get_string(const struct gguf *, struct str name, bool required,
                                struct str *value, struct sov_fault *) MUST_CHECK;
// An array of `element`: *key is NULL when absent and not required.
enum sov_status gguf_get_array(const struct gguf *, struct str name, enum gguf_type element,
                               bool required, const struct gguf_key **key, struct sov_fault *)
    MUST_CHECK;

// Element `idx` (0 of a scalar) of a key of any number type or bool, as f64; exact below 2^53.
// False when the elements are strings. idx < key->count.
bool gguf_element_f64(const struct gguf_key *key, u64 idx, f64 *value);

const char *gguf_type_name(enum gguf_type type); // "u32"; outside the list "unknown"

// Fills the fault with "key NAME at byte N: ..." or "tensor NAME at byte N: ..." and returns
// `status`: how everything that doubts a file words its refusals.
enum sov_status gguf_key_fault(const struct gguf_key *key, struct sov_fault *fault,
                               enum sov_status status, const char *format, ...) PRINTF_LIKE(4, 5);
enum sov_status gguf_tensor_fault(const struct gguf_tensor *tensor, struct sov_fault *fault,
                                  enum sov_status status, const char *format, ...)
    PRINTF_LIKE(4, 5);
