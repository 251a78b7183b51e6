// SPDX-License-Identifier: Apache-2.0
// Reader of GGUF files, versions 2 and 3, little-endian, one file or several shards.
//
//   0   "GGUF"  u32 version  u64 n_tensors  u64 n_keys                             the header
//   24  n_keys    x { string name, u32 type, value }
//       n_tensors x { string name, u32 n_dims, u64 dims[n_dims], u32 type, u64 offset }
//       padding up to general.alignment, where the tensor data starts; offsets count from there
//   string: u64 length, bytes.   array value: u32 element type, u64 count, elements.
//
// A shard is a whole GGUF file of its own: its keys split.no (0-based), split.count and
// split.tensors.count say which one it is, and its name ends in -00001-of-0000N.gguf (1-based).
// So a split file is read as N files whose tensor lists are then joined.
//
// G1. A byte of the file is read only by a cursor, after its place was held against the file's end.
// G2. A count is held against the bytes that its elements take at the very least before anything
//     is allocated or looped over, so memory and time are bounded by a small multiple of the file.
// G3. The cursor's error sticks: after it every read gives zero and no message is overwritten.
// G4. Names are found and compared by sorting (at most n log n comparisons whatever the names are;
//     a hash table could be filled with names that collide).
// G5. After success: keys and tensors have distinct, non-empty names; every value, string and bool
//     is sound; every tensor is of a type in dtype_table with dimensions above zero whose products
//     fit, in whole blocks, aligned, inside its file, and sharing no byte with another one.
#include "model/gguf.h"
#include "freestanding/mem.h"
#include "platform/platform.h"

#define HEADER_BYTES 24
#define VERSION_MIN 2
#define VERSION_MAX 3
// The least that one key and one tensor take in a file: a name of one byte, a value of one byte.
#define KEY_BYTES_MIN (8 + 1 + 4 + 1)
#define TENSOR_BYTES_MIN (8 + 1 + 4 + 8 + 4 + 8)
#define ELEMENTS_MAX 0x7fffffffffffffffull // of a tensor; GGUF's dimensions are signed

// G2 in numbers: the directory of a file is never larger than five times the file.
static_assert(sizeof(struct gguf_key) + 2 * sizeof(u32) <= 5 * KEY_BYTES_MIN, "directory bound");
static_assert(sizeof(struct gguf_tensor) + 2 * sizeof(u32) <= 5 * TENSOR_BYTES_MIN,
              "directory bound");

static const struct {
    const char *name;
    u32 bytes; // of a value; 0 for what has no fixed size
} type_table[GGUF_TYPE_LIMIT] = {
    [GGUF_U8] = {"u8", 1},   [GGUF_I8] = {"i8", 1},       [GGUF_U16] = {"u16", 2},
    [GGUF_I16] = {"i16", 2}, [GGUF_U32] = {"u32", 4},     [GGUF_I32] = {"i32", 4},
    [GGUF_F32] = {"f32", 4}, [GGUF_BOOL] = {"bool", 1},   [GGUF_STRING] = {"string", 0},
    [GGUF_U64] = {"u64", 8}, [GGUF_ARRAY] = {"array", 0}, [GGUF_I64] = {"i64", 8},
    [GGUF_F64] = {"f64", 8},
};

const char *gguf_type_name(enum gguf_type type) {
    return (u32)type < GGUF_TYPE_LIMIT ? type_table[type].name : "unknown";
}

// --- messages ---

static enum sov_status fault_at(struct sov_fault *fault, enum sov_status status, const char *kind,
                                struct str name, u64 offset, const char *format, va_list args) {
    char detail[SOV_FAULT_BYTES];
    struct text t = TEXT_OVER_ARRAY(detail);
    text_format_v(&t, format, args);
    return fault_set(fault, status, "%s%s%.*s%s at byte %llu: %s", kind, name.len != 0 ? " " : "",
                     STR_ARG(name), name.len > 64 ? "..." : "", offset, detail);
}

enum sov_status gguf_key_fault(const struct gguf_key *key, struct sov_fault *fault,
                               enum sov_status status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fault_at(fault, status, "key", key->name, key->offset, format, args);
    va_end(args);
    return status;
}

enum sov_status gguf_tensor_fault(const struct gguf_tensor *tensor, struct sov_fault *fault,
                                  enum sov_status status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fault_at(fault, status, "tensor", tensor->name, tensor->offset, format, args);
    va_end(args);
    return status;
}

// --- the cursor ---

// Where reading stands, and what is being read (for messages): a field of the header (n_items is
// 0), or item `item_idx` of `n_items` keys or tensors, whose name is empty until it was read.
struct cursor {
    const u8 *data;
    u64 bytes, at;
    enum sov_status status;
    struct sov_fault *fault;
    const char *item_kind;
    struct str item_name;
    u64 item_at, item_idx, n_items;
};

static void cursor_begin(struct cursor *c, const char *kind, u64 idx, u64 n_items) {
    c->item_kind = kind;
    c->item_name = (struct str){0};
    c->item_at = c->at;
    c->item_idx = idx;
    c->n_items = n_items;
}

static void cursor_fail(struct cursor *c, enum sov_status status, const char *format, ...)
    PRINTF_LIKE(3, 4);
static void cursor_fail(struct cursor *c, enum sov_status status, const char *format, ...) {
    if (c->status != SOV_OK) return; // G3
    c->status = status;
    char name[64];
    struct text t = TEXT_OVER_ARRAY(name);
    if (c->n_items != 0) text_format(&t, "%llu of %llu", c->item_idx + 1, c->n_items);
    struct str shown = c->item_name.len != 0 ? c->item_name : (struct str){(u8 *)name, t.len};
    va_list args;
    va_start(args, format);
    fault_at(c->fault, status, c->item_kind, shown, c->item_at, format, args);
    va_end(args);
}

static u64 cursor_left(const struct cursor *c) { return c->bytes - c->at; }

// The next n bytes, or NULL when the file ends before (or an earlier read failed).
static const u8 *cursor_take(struct cursor *c, u64 n, const char *what) {
    if (c->status != SOV_OK) return NULL;
    if (n > cursor_left(c)) {
        cursor_fail(c, SOV_ERR_FORMAT,
                    "the file ends too soon: its %s at byte %llu takes %llu bytes, %llu are left",
                    what, c->at, n, cursor_left(c));
        return NULL;
    }
    const u8 *bytes = c->data + c->at;
    c->at += n;
    return bytes;
}

static u32 cursor_u32(struct cursor *c, const char *what) {
    const u8 *p = cursor_take(c, 4, what);
    return p == NULL ? 0 : load_u32(p);
}

static u64 cursor_u64(struct cursor *c, const char *what) {
    const u8 *p = cursor_take(c, 8, what);
    return p == NULL ? 0 : load_u64(p);
}

// The name that every item begins with: never empty, at most `bytes_max` long.
static struct str cursor_name(struct cursor *c, u64 bytes_max) {
    u64 len = cursor_u64(c, "name's length");
    if (c->status == SOV_OK && len > cursor_left(c)) {
        cursor_fail(c, SOV_ERR_FORMAT,
                    "its name goes beyond the end of the file: it claims %llu bytes, %llu are left",
                    len, cursor_left(c));
    } else if (c->status == SOV_OK && len == 0) {
        cursor_fail(c, SOV_ERR_FORMAT, "its name is empty");
    } else if (c->status == SOV_OK && len > bytes_max) {
        cursor_fail(c, SOV_ERR_UNSUPPORTED, "its name has %llu bytes, at most %llu are read", len,
                    bytes_max);
    }
    const u8 *bytes = cursor_take(c, len, "name");
    if (bytes == NULL) return (struct str){0};
    c->item_name = (struct str){bytes, len};
    return c->item_name;
}

// --- header ---

static u32 swap_bytes(u32 v) { return v >> 24 | (v >> 8 & 0xff00) | (v << 8 & 0xff0000) | v << 24; }

// Magic, version and byte order. The cursor stands behind the version afterwards.
static void read_magic(struct cursor *c) {
    cursor_begin(c, "header", 0, 0);
    if (c->bytes >= 4 && memcmp(c->data, "FUGG", 4) == 0) {
        cursor_fail(c, SOV_ERR_UNSUPPORTED,
                    "the magic is FUGG: byte order reversed; only little-endian files are read");
    } else if (c->bytes >= 4 && memcmp(c->data, "GGUF", 4) != 0) {
        cursor_fail(c, SOV_ERR_FORMAT,
                    "not a GGUF file: it begins with bytes %02x %02x %02x %02x instead of GGUF",
                    c->data[0], c->data[1], c->data[2], c->data[3]);
    } else if (c->bytes < HEADER_BYTES) {
        cursor_fail(c, SOV_ERR_FORMAT,
                    "the file ends too soon: it has %llu bytes, the header alone takes %u",
                    c->bytes, HEADER_BYTES);
    }
    (void)cursor_u32(c, "magic");
    u32 version = cursor_u32(c, "version");
    if (c->status != SOV_OK) return;
    u32 swapped = swap_bytes(version);
    if (version > 0xffff && swapped >= 1 && swapped <= 0xffff) {
        cursor_fail(c, SOV_ERR_UNSUPPORTED,
                    "the file is big-endian (its version reads %08x, which is %u with the other "
                    "byte order); only little-endian files are read",
                    version, swapped);
    } else if (version < VERSION_MIN || version > VERSION_MAX) {
        cursor_fail(c, SOV_ERR_UNSUPPORTED, "GGUF version %u; versions %u and %u are read", version,
                    VERSION_MIN, VERSION_MAX);
    }
}

// Reads a count of the header and holds it against what is left of the file behind the header, and
// against our limit.
static u64 read_count(struct cursor *c, const char *field, const char *what, u64 bytes_min,
                      u64 limit) {
    cursor_begin(c, field, 0, 0);
    u64 count = cursor_u64(c, "count");
    if (c->status != SOV_OK) return 0;
    u64 left = c->bytes - HEADER_BYTES;
    if (count > left / bytes_min) {
        cursor_fail(c, SOV_ERR_FORMAT,
                    "the file ends too soon for %llu %s of at least %llu bytes: %llu bytes are "
                    "left behind the header",
                    count, what, bytes_min, left);
    } else if (count > limit) {
        cursor_fail(c, SOV_ERR_UNSUPPORTED, "%llu %s, at most %llu are read", count, what, limit);
    }
    return count;
}

// --- the directory's memory ---

// Memory for all arrays of a directory, zeroed. The counts were checked (G2).
static enum sov_status directory_map(struct gguf *gguf, u64 n_keys, u64 n_tensors, u64 n_shards,
                                     u32 **sort_scratch, struct sov_fault *fault) {
    assert(n_keys <= GGUF_KEYS_MAX && n_tensors <= GGUF_TENSORS_MAX);
    assert(n_shards <= GGUF_SHARDS_MAX);
    u64 n_scratch = MAX(n_keys, n_tensors);
    u64 bytes = n_keys * (sizeof(struct gguf_key) + sizeof(u32)) +
                n_tensors * (sizeof(struct gguf_tensor) + sizeof(u32)) +
                n_shards * sizeof(struct gguf_mapping) + n_scratch * sizeof(u32) + 64;
    gguf->memory = platform_memory_map(bytes);
    if (gguf->memory == NULL) {
        return fault_set(fault, SOV_ERR_MEMORY, "no memory for the file's directory: %llu bytes",
                         bytes);
    }
    gguf->memory_bytes = bytes;
    struct arena arena = arena_over(gguf->memory, bytes);
    gguf->keys = arena_array(&arena, struct gguf_key, n_keys);
    gguf->tensors = arena_array(&arena, struct gguf_tensor, n_tensors);
    gguf->shards = arena_array(&arena, struct gguf_mapping, n_shards);
    gguf->key_order = arena_array(&arena, u32, n_keys);
    gguf->tensor_order = arena_array(&arena, u32, n_tensors);
    *sort_scratch = arena_array(&arena, u32, n_scratch);
    assert(*sort_scratch != NULL); // the last array fits, so all do
    return SOV_OK;
}

static void directory_unmap(struct gguf *gguf) {
    if (gguf->memory != NULL) platform_memory_unmap(gguf->memory, gguf->memory_bytes);
    *gguf = (struct gguf){0};
}

// --- sorting (G4) ---

// True when item a must stand behind item b.
typedef bool behind_fn(const struct gguf *gguf, u32 a, u32 b);

static bool key_behind(const struct gguf *gguf, u32 a, u32 b) {
    return str_compare(gguf->keys[a].name, gguf->keys[b].name) > 0;
}

static bool tensor_behind(const struct gguf *gguf, u32 a, u32 b) {
    return str_compare(gguf->tensors[a].name, gguf->tensors[b].name) > 0;
}

static bool data_behind(const struct gguf *gguf, u32 a, u32 b) {
    return gguf->tensors[a].data_offset > gguf->tensors[b].data_offset;
}

// Fills order[n] with 0..n-1 in ascending order of the items: a stable merge sort from runs of one
// upwards, so equal items keep their order in the file. `scratch` holds n numbers.
static void sort_order(const struct gguf *gguf, behind_fn *behind, u32 *order, u32 *scratch,
                       u32 n) {
    for (u32 i = 0; i < n; i++) order[i] = i;
    for (u64 run = 1; run < n; run *= 2) {
        for (u64 begin = 0; begin < n; begin += 2 * run) {
            u64 middle = MIN(begin + run, n), end = MIN(begin + 2 * run, n);
            u64 a = begin, b = middle;
            for (u64 i = begin; i < end; i++) {
                bool from_b = a == middle || (b < end && behind(gguf, order[a], order[b]));
                scratch[i] = from_b ? order[b++] : order[a++];
            }
        }
        memcpy(order, scratch, n * sizeof(u32));
    }
}

// --- keys ---

static enum gguf_type read_type(struct cursor *c, const char *what) {
    u32 type = cursor_u32(c, what);
    if (c->status == SOV_OK && type >= GGUF_TYPE_LIMIT) {
        cursor_fail(c, SOV_ERR_FORMAT, "its %s is %u, types 0 to %u exist", what, type,
                    GGUF_TYPE_LIMIT - 1);
        return GGUF_U8;
    }
    return (enum gguf_type)type;
}

// Walks over `count` values of one type, none of them an array.
static void read_values(struct cursor *c, enum gguf_type type, u64 count, const char *what) {
    if (c->status != SOV_OK) return;
    u64 bytes_each = type == GGUF_STRING ? 8 : type_table[type].bytes;
    if (count > cursor_left(c) / bytes_each) {
        cursor_fail(c, SOV_ERR_FORMAT,
                    "the file ends too soon: its %s at byte %llu has %llu elements of type %s, "
                    "each of at least %llu bytes; %llu are left",
                    what, c->at, count, type_table[type].name, bytes_each, cursor_left(c));
        return;
    }
    if (type != GGUF_STRING) {
        const u8 *values = cursor_take(c, count * bytes_each, what);
        for (u64 i = 0; type == GGUF_BOOL && i < count; i++) {
            if (values[i] > 1) {
                cursor_fail(c, SOV_ERR_FORMAT, "a bool with the byte %u, 0 or 1 is expected",
                            values[i]);
                return;
            }
        }
        return;
    }
    // Vocabularies have hundreds of thousands of strings: this loop is what opening a file costs.
    u64 at = c->at;
    for (u64 i = 0; i < count; i++) {
        u64 left = c->bytes - at;
        u64 len = left < 8 ? 0 : load_u64(c->data + at);
        if (left < 8 || len > left - 8) {
            cursor_fail(c, SOV_ERR_FORMAT,
                        "the file ends too soon: string %llu of %llu at byte %llu claims %llu "
                        "bytes, %llu are left",
                        i + 1, count, at, len, left < 8 ? 0 : left - 8);
            return;
        }
        at += 8 + len;
    }
    c->at = at;
}

static void read_key(struct cursor *c, struct gguf_key *key) {
    key->offset = c->at;
    key->name = cursor_name(c, GGUF_KEY_NAME_BYTES_MAX);
    key->type = read_type(c, "value type");
    key->element = key->type;
    key->count = 1;
    if (key->type == GGUF_ARRAY) {
        key->element = read_type(c, "element type");
        key->count = cursor_u64(c, "array's count");
        if (c->status == SOV_OK && key->element == GGUF_ARRAY) {
            cursor_fail(c, SOV_ERR_UNSUPPORTED, "an array of arrays; only plain arrays are read");
        }
    }
    key->value = c->data + c->at;
    read_values(c, key->element, key->count, key->type == GGUF_ARRAY ? "array" : "value");
}

static void read_keys(struct cursor *c, struct gguf *gguf, u32 *sort_scratch) {
    for (u32 i = 0; i < gguf->n_keys && c->status == SOV_OK; i++) {
        cursor_begin(c, "key", i, gguf->n_keys);
        read_key(c, &gguf->keys[i]);
    }
    if (c->status != SOV_OK) return;
    sort_order(gguf, key_behind, gguf->key_order, sort_scratch, gguf->n_keys);
    for (u32 i = 1; i < gguf->n_keys; i++) {
        const struct gguf_key *a = &gguf->keys[gguf->key_order[i - 1]];
        const struct gguf_key *b = &gguf->keys[gguf->key_order[i]];
        if (!str_equal(a->name, b->name)) continue;
        c->status = gguf_key_fault(b, c->fault, SOV_ERR_FORMAT,
                                   "given twice; it stands at byte %llu already", a->offset);
        return;
    }
}

// general.alignment: a u32 and nothing else, so that no wrong type is taken for a number.
static void read_alignment(struct cursor *c, struct gguf *gguf) {
    gguf->alignment = GGUF_ALIGNMENT_DEFAULT;
    if (c->status != SOV_OK) return;
    const struct gguf_key *key = gguf_find_key(gguf, STR("general.alignment"));
    if (key == NULL) return;
    if (key->type != GGUF_U32) {
        c->status = gguf_key_fault(key, c->fault, SOV_ERR_FORMAT, "its type is %s, u32 is expected",
                                   gguf_type_name(key->type));
        return;
    }
    u32 alignment = load_u32(key->value);
    if (alignment == 0 || (alignment & (alignment - 1)) != 0 || alignment > GGUF_ALIGNMENT_MAX) {
        c->status = gguf_key_fault(key, c->fault, SOV_ERR_FORMAT,
                                   "the alignment is %u, a power of two up to %u is expected",
                                   alignment, GGUF_ALIGNMENT_MAX);
        return;
    }
    gguf->alignment = alignment;
}

// --- tensors ---

// Dimensions, type and sizes of one description; its place in the file is checked by place_tensors.
static void read_tensor(struct cursor *c, struct gguf_tensor *tensor) {
    tensor->offset = c->at;
    tensor->name = cursor_name(c, GGUF_TENSOR_NAME_BYTES_MAX);
    u32 n_dims = cursor_u32(c, "number of dimensions");
    if (c->status != SOV_OK) return;
    if (n_dims == 0 || n_dims > GGUF_DIMS_MAX) {
        cursor_fail(c, SOV_ERR_FORMAT, "it has %u dimensions, 1 to %u are expected", n_dims,
                    GGUF_DIMS_MAX);
        return;
    }
    tensor->n_dims = n_dims;
    u64 n_elements = 1;
    for (u32 i = 0; i < GGUF_DIMS_MAX; i++) {
        u64 dim = i < n_dims ? cursor_u64(c, "dimension") : 1;
        if (c->status != SOV_OK) return;
        if (dim == 0 || dim > ELEMENTS_MAX) {
            cursor_fail(c, SOV_ERR_FORMAT, "dimension %u is %llu, 1 to 2^63-1 is expected", i, dim);
            return;
        }
        if (!CHECKED_MUL(n_elements, dim, &n_elements) || n_elements > ELEMENTS_MAX) {
            cursor_fail(c, SOV_ERR_FORMAT,
                        "its number of elements overflows at dimension %u, which is %llu", i, dim);
            return;
        }
        tensor->dims[i] = dim;
    }
    tensor->n_rows = n_elements / tensor->dims[0];

    u32 type = cursor_u32(c, "type");
    if (c->status != SOV_OK) return;
    const struct dtype_info *info = dtype_lookup(type);
    if (info == NULL) {
        cursor_fail(c, SOV_ERR_UNSUPPORTED,
                    "its type is %u (%s), which this program does not compute with", type,
                    dtype_name(type));
        return;
    }
    tensor->type = (enum dtype)type;
    if (tensor->dims[0] % info->block_elements != 0) {
        cursor_fail(c, SOV_ERR_FORMAT,
                    "its rows of %llu elements are not whole blocks of %u elements (%s)",
                    tensor->dims[0], info->block_elements, info->name);
        return;
    }
    if (!CHECKED_MUL(tensor->dims[0] / info->block_elements, (u64)info->block_bytes,
                     &tensor->row_bytes) ||
        !CHECKED_MUL(tensor->row_bytes, tensor->n_rows, &tensor->bytes)) {
        cursor_fail(c, SOV_ERR_FORMAT, "the size of its %llu elements of type %s overflows",
                    n_elements, info->name);
        return;
    }
    tensor->data_offset = cursor_u64(c, "data offset"); // from the data's start, for now
}

// Turns offsets into places in the file: aligned, inside, not overlapping.
static void place_tensors(struct cursor *c, struct gguf *gguf, u32 *sort_scratch) {
    if (c->status != SOV_OK) return;
    // No overflow: c->at is at most the size of a mapping, the alignment at most 64 KiB.
    u64 data_start = round_up(c->at, gguf->alignment);
    u64 space = data_start < c->bytes ? c->bytes - data_start : 0;
    for (u32 i = 0; i < gguf->n_tensors; i++) {
        struct gguf_tensor *tensor = &gguf->tensors[i];
        u64 offset = tensor->data_offset;
        if (offset % gguf->alignment != 0) {
            c->status = gguf_tensor_fault(tensor, c->fault, SOV_ERR_FORMAT,
                                          "its data offset is %llu, a multiple of %u is expected",
                                          offset, gguf->alignment);
            return;
        }
        if (offset > space || tensor->bytes > space - offset) {
            c->status = gguf_tensor_fault(tensor, c->fault, SOV_ERR_FORMAT,
                                          "its data goes beyond the end of the file: %llu bytes at "
                                          "%llu + %llu, the file has %llu",
                                          tensor->bytes, data_start, offset, c->bytes);
            return;
        }
        tensor->data_offset = data_start + offset;
        tensor->data = c->data + tensor->data_offset;
    }
    // tensor_order serves twice: by data here, by name from now on.
    sort_order(gguf, data_behind, gguf->tensor_order, sort_scratch, gguf->n_tensors);
    for (u32 i = 1; i < gguf->n_tensors; i++) {
        const struct gguf_tensor *a = &gguf->tensors[gguf->tensor_order[i - 1]];
        const struct gguf_tensor *b = &gguf->tensors[gguf->tensor_order[i]];
        if (b->data_offset - a->data_offset >= a->bytes) continue;
        c->status = gguf_tensor_fault(b, c->fault, SOV_ERR_FORMAT,
                                      "its data at byte %llu overlaps that of tensor %.*s (%llu "
                                      "bytes at byte %llu)",
                                      b->data_offset, STR_ARG(a->name), a->bytes, a->data_offset);
        return;
    }
}

// Sorts the tensors by name and refuses a name that stands twice.
static enum sov_status index_tensors(struct gguf *gguf, u32 *sort_scratch,
                                     struct sov_fault *fault) {
    sort_order(gguf, tensor_behind, gguf->tensor_order, sort_scratch, gguf->n_tensors);
    for (u32 i = 1; i < gguf->n_tensors; i++) {
        const struct gguf_tensor *a = &gguf->tensors[gguf->tensor_order[i - 1]];
        const struct gguf_tensor *b = &gguf->tensors[gguf->tensor_order[i]];
        if (!str_equal(a->name, b->name)) continue;
        return gguf_tensor_fault(b, fault, SOV_ERR_FORMAT,
                                 "given twice; it stands at byte %llu of shard %u already",
                                 a->offset, a->shard + 1);
    }
    return SOV_OK;
}

// --- one file ---

// Reads one whole file. gguf->shards[0] is filled, but nothing is owned.
static enum sov_status parse_file(struct gguf *gguf, const u8 *data, u64 bytes,
                                  struct sov_fault *fault) {
    *gguf = (struct gguf){.n_shards = 1, .file_bytes = bytes};
    struct cursor c = {.data = data, .bytes = bytes, .fault = fault};
    read_magic(&c);
    u64 n_tensors = read_count(&c, "tensor count", "tensors", TENSOR_BYTES_MIN, GGUF_TENSORS_MAX);
    u64 n_keys = read_count(&c, "key count", "keys", KEY_BYTES_MIN, GGUF_KEYS_MAX);
    if (c.status != SOV_OK) return c.status;

    u32 *sort_scratch = NULL;
    enum sov_status status = directory_map(gguf, n_keys, n_tensors, 1, &sort_scratch, fault);
    if (status != SOV_OK) return status;
    gguf->version = load_u32(data + 4);
    gguf->n_keys = (u32)n_keys;
    gguf->shards[0] = (struct gguf_mapping){.data = data, .bytes = bytes, .descriptor = -1};
    read_keys(&c, gguf, sort_scratch);
    read_alignment(&c, gguf);
    gguf->n_tensors = (u32)n_tensors;
    for (u32 i = 0; i < gguf->n_tensors && c.status == SOV_OK; i++) {
        cursor_begin(&c, "tensor", i, n_tensors);
        read_tensor(&c, &gguf->tensors[i]);
    }
    place_tensors(&c, gguf, sort_scratch);
    status = c.status != SOV_OK ? c.status : index_tensors(gguf, sort_scratch, fault);
    if (status != SOV_OK) directory_unmap(gguf);
    return status;
}

// --- shards ---

struct split {
    u32 no, count; // this shard (0-based) of how many; a whole file is 0 of 1
    u32 n_tensors; // of all shards, when has_n_tensors
    bool has_n_tensors;
};

static enum sov_status read_split(const struct gguf *gguf, struct split *split,
                                  struct sov_fault *fault) {
    *split = (struct split){0};
    enum sov_status status = gguf_get_u32(gguf, STR("split.no"), false, &split->no, fault);
    if (status != SOV_OK) return status;
    status = gguf_get_u32(gguf, STR("split.count"), false, &split->count, fault);
    if (status != SOV_OK) return status;
    split->has_n_tensors = gguf_find_key(gguf, STR("split.tensors.count")) != NULL;
    status = gguf_get_u32(gguf, STR("split.tensors.count"), false, &split->n_tensors, fault);
    if (status != SOV_OK) return status;
    split->count = MAX(split->count, 1u); // files joined again keep a count of 0
    if (split->count > GGUF_SHARDS_MAX) {
        return fault_set(fault, SOV_ERR_UNSUPPORTED,
                         "key split.count: a file of %u shards, at most %u are read", split->count,
                         GGUF_SHARDS_MAX);
    }
    if (split->no >= split->count) {
        return fault_set(fault, SOV_ERR_FORMAT,
                         "misnumbered shard: split.no is %u (counted from 0), split.count is %u",
                         split->no, split->count);
    }
    return SOV_OK;
}

// The end of a shard's name: "-00001-of-00003.gguf" for `no` 0 of 3.
static void put_shard_tail(struct text *t, u32 no, u32 count) {
    text_format(t, "-%05u-of-%05u.gguf", no + 1, count);
}

// Cuts the tail of shard `no` off `path`. False when the path ends otherwise.
static bool shard_prefix(const char *path, u32 no, u32 count, struct str *prefix) {
    char memory[64];
    struct text tail = TEXT_OVER_ARRAY(memory);
    put_shard_tail(&tail, no, count);
    *prefix = str_from_z(path);
    if (prefix->len < tail.len) return false;
    prefix->len -= tail.len;
    return memcmp(prefix->data + prefix->len, tail.data, tail.len) == 0;
}

// For a file that is no first shard: says so, and which file to open instead.
static enum sov_status refuse_later_shard(const char *path, const struct split *split,
                                          struct sov_fault *fault) {
    char memory[64];
    struct text tail = TEXT_OVER_ARRAY(memory);
    struct str prefix = {0};
    bool named = shard_prefix(path, split->no, split->count, &prefix);
    usize begin = prefix.len; // of the file's name in the path
    while (begin > 0 && prefix.data[begin - 1] != '/') begin--;
    struct str file = {prefix.data + begin, prefix.len - begin};
    put_shard_tail(&tail, 0, split->count);
    return fault_set(fault, SOV_ERR_FORMAT,
                     "this is shard %u of %u; open the first shard instead: %.*s%s", split->no + 1,
                     split->count, named ? (int)MIN(file.len, (usize)255) : 1,
                     named ? (const char *)file.data : "*", tail.data);
}

static enum sov_status map_file(const char *path, struct gguf_mapping *mapping,
                                struct sov_fault *fault) {
    *mapping = (struct gguf_mapping){.descriptor = -1};
    enum sov_status status = platform_open(path, PLATFORM_OPEN_READ, &mapping->descriptor, fault);
    if (status != SOV_OK) return status;
    status = platform_file_size(mapping->descriptor, &mapping->bytes, fault);
    if (status == SOV_OK && mapping->bytes == 0) {
        status = fault_set(fault, SOV_ERR_FORMAT, "the file is empty: 0 bytes, no GGUF header");
    }
    if (status == SOV_OK) {
        status = platform_file_map(mapping->descriptor, mapping->bytes, &mapping->data, fault);
    }
    if (status != SOV_OK) platform_close(mapping->descriptor);
    return status;
}

static void unmap_file(const struct gguf_mapping *mapping) {
    platform_file_unmap(mapping->data, mapping->bytes);
    platform_close(mapping->descriptor);
}

// Maps and reads one file with all of its own checks; a shard's partners are not looked at.
static enum sov_status open_file(struct gguf *gguf, const char *path, struct sov_fault *fault) {
    *gguf = (struct gguf){0};
    struct gguf_mapping mapping;
    enum sov_status status = map_file(path, &mapping, fault);
    if (status != SOV_OK) return status;
    status = parse_file(gguf, mapping.data, mapping.bytes, fault);
    if (status != SOV_OK) {
        unmap_file(&mapping);
        return status;
    }
    gguf->shards[0] = mapping;
    gguf->owns_mappings = true;
    return SOV_OK;
}

// Opens shard `no` and holds its split keys against those of the first one.
static enum sov_status open_shard(struct gguf *part, struct str prefix, u32 no,
                                  const struct split *first, struct sov_fault *fault) {
    char memory[GGUF_PATH_BYTES_MAX];
    struct text path = TEXT_OVER_ARRAY(memory);
    text_put(&path, prefix);
    put_shard_tail(&path, no, first->count);
    if (path.truncated) {
        return fault_set(fault, SOV_ERR_UNSUPPORTED, "the name of shard %u has more than %u bytes",
                         no + 1, GGUF_PATH_BYTES_MAX - 1);
    }
    struct sov_fault cause = {0};
    struct split split = {0};
    enum sov_status status = open_file(part, path.data, &cause);
    if (status == SOV_OK) status = read_split(part, &split, &cause);
    if (status == SOV_OK && (split.no != no || split.count != first->count)) {
        status = fault_set(&cause, SOV_ERR_FORMAT, "misnumbered: it says that it is shard %u of %u",
                           split.no + 1, split.count);
    }
    if (status == SOV_OK) return SOV_OK;
    gguf_close(part);
    // A shard that cannot be opened makes the model incomplete: the file is at fault.
    if (status == SOV_ERR_IO) status = SOV_ERR_FORMAT;
    return fault_set(fault, status, "shard %u of %u: %s", no + 1, first->count, cause.message);
}

// Joins the directories of all shards into one.
static enum sov_status join_shards(struct gguf *gguf, const struct gguf *parts,
                                   const struct split *split, struct sov_fault *fault) {
    u64 n_tensors = 0; // at most GGUF_SHARDS_MAX times GGUF_TENSORS_MAX
    for (u32 i = 0; i < split->count; i++) n_tensors += parts[i].n_tensors;
    if (split->has_n_tensors && split->n_tensors != n_tensors) {
        return fault_set(fault, SOV_ERR_FORMAT,
                         "key split.tensors.count: %u tensors in all shards, %llu are there",
                         split->n_tensors, n_tensors);
    }
    if (n_tensors > GGUF_TENSORS_MAX) {
        return fault_set(fault, SOV_ERR_UNSUPPORTED, "%llu tensors in all shards, at most %u",
                         n_tensors, GGUF_TENSORS_MAX);
    }
    *gguf = parts[0];
    gguf->file_bytes = 0;
    u32 *sort_scratch = NULL;
    enum sov_status status =
        directory_map(gguf, gguf->n_keys, n_tensors, split->count, &sort_scratch, fault);
    if (status != SOV_OK) return status;
    memcpy(gguf->keys, parts[0].keys, gguf->n_keys * sizeof gguf->keys[0]);
    memcpy(gguf->key_order, parts[0].key_order, gguf->n_keys * sizeof gguf->key_order[0]);
    gguf->n_tensors = 0;
    gguf->n_shards = split->count;
    for (u32 i = 0; i < split->count; i++) {
        gguf->shards[i] = parts[i].shards[0];
        gguf->file_bytes += parts[i].file_bytes;
        for (u32 j = 0; j < parts[i].n_tensors; j++) {
            struct gguf_tensor *tensor = &gguf->tensors[gguf->n_tensors++];
            *tensor = parts[i].tensors[j];
            tensor->shard = i;
        }
    }
    status = index_tensors(gguf, sort_scratch, fault);
    if (status != SOV_OK) directory_unmap(gguf);
    return status;
}

// `gguf` is the first shard, opened; it becomes the whole model, or is closed.
static enum sov_status open_shards(struct gguf *gguf, const char *path, const struct split *split,
                                   struct sov_fault *fault) {
    struct str prefix = {0};
    if (!shard_prefix(path, 0, split->count, &prefix)) {
        gguf_close(gguf);
        return fault_set(fault, SOV_ERR_FORMAT,
                         "this is shard 1 of %u, alone: its partners are found by its name, which "
                         "must end in -00001-of-%05u.gguf",
                         split->count, split->count);
    }
    u64 bytes = split->count * sizeof(struct gguf); // at most GGUF_SHARDS_MAX of them
    struct gguf *parts = platform_memory_map(bytes);
    if (parts == NULL) {
        gguf_close(gguf);
        return fault_set(fault, SOV_ERR_MEMORY, "no memory for %u shards", split->count);
    }
    parts[0] = *gguf;
    *gguf = (struct gguf){0};
    enum sov_status status = SOV_OK;
    for (u32 i = 1; i < split->count && status == SOV_OK; i++) {
        status = open_shard(&parts[i], prefix, i, split, fault);
    }
    if (status == SOV_OK) status = join_shards(gguf, parts, split, fault);
    for (u32 i = 0; i < split->count; i++) {
        if (status == SOV_OK) parts[i].owns_mappings = false; // they are the joined one's now
        gguf_close(&parts[i]);
    }
    platform_memory_unmap(parts, bytes);
    return status;
}

// --- opening and closing ---

enum sov_status gguf_open(struct gguf *gguf, const char *path, struct sov_fault *fault) {
    enum sov_status status = open_file(gguf, path, fault);
    if (status != SOV_OK) return status;
    struct split split;
    status = read_split(gguf, &split, fault);
    if (status == SOV_OK && split.no != 0) status = refuse_later_shard(path, &split, fault);
    if (status != SOV_OK) {
        gguf_close(gguf);
        return status;
    }
    return split.count == 1 ? SOV_OK : open_shards(gguf, path, &split, fault);
}

enum sov_status gguf_parse(struct gguf *gguf, const u8 *data, u64 bytes, struct sov_fault *fault) {
    enum sov_status status = parse_file(gguf, data, bytes, fault);
    if (status != SOV_OK) return status;
    struct split split;
    status = read_split(gguf, &split, fault);
    if (status == SOV_OK && split.count > 1) {
        status = fault_set(fault, SOV_ERR_UNSUPPORTED,
                           "this is shard %u of %u, and its partners are not at hand", split.no + 1,
                           split.count);
    }
    if (status != SOV_OK) gguf_close(gguf);
    return status;
}

void gguf_close(struct gguf *gguf) {
    for (u32 i = 0; gguf->owns_mappings && i < gguf->n_shards; i++) {
        unmap_file(&gguf->shards[i]);
    }
    directory_unmap(gguf);
}

enum sov_status gguf_check_files(const struct gguf *gguf, struct sov_fault *fault) {
    for (u32 i = 0; gguf->owns_mappings && i < gguf->n_shards; i++) {
        const struct gguf_mapping *file = &gguf->shards[i];
        u64 bytes = 0;
        enum sov_status status = platform_file_size(file->descriptor, &bytes, fault);
        if (status != SOV_OK) return status;
        if (bytes < file->bytes) {
            return fault_set(fault, SOV_ERR_IO,
                             "the model file was cut short while in use: it has %llu bytes of %llu",
                             bytes, file->bytes);
        }
    }
    return SOV_OK;
}

// --- finding ---

const struct gguf_key *gguf_find_key(const struct gguf *gguf, struct str name) {
    u32 begin = 0, end = gguf->n_keys;
    while (begin < end) {
        u32 middle = begin + (end - begin) / 2;
        const struct gguf_key *key = &gguf->keys[gguf->key_order[middle]];
        int order = str_compare(key->name, name);
        if (order == 0) return key;
        if (order < 0)
            begin = middle + 1;
        else
            end = middle;
    }
    return NULL;
}

const struct gguf_tensor *gguf_find_tensor(const struct gguf *gguf, struct str name) {
    u32 begin = 0, end = gguf->n_tensors;
    while (begin < end) {
        u32 middle = begin + (end - begin) / 2;
        const struct gguf_tensor *tensor = &gguf->tensors[gguf->tensor_order[middle]];
        int order = str_compare(tensor->name, name);
        if (order == 0) return tensor;
        if (order < 0)
            begin = middle + 1;
        else
            end = middle;
    }
    return NULL;
}

// --- typed reads ---

// The common beginning: *key is NULL (and the status that absence has), or the key.
static enum sov_status get_key(const struct gguf *gguf, struct str name, bool required,
                               const struct gguf_key **key, struct sov_fault *fault) {
    *key = gguf_find_key(gguf, name);
    if (*key != NULL || !required) return SOV_OK;
    return fault_set(fault, SOV_ERR_FORMAT, "key %.*s is missing", STR_ARG(name));
}

static enum sov_status wrong_type(const struct gguf_key *key, const char *expected,
                                  struct sov_fault *fault) {
    bool is_array = key->type == GGUF_ARRAY;
    return gguf_key_fault(key, fault, SOV_ERR_FORMAT, "its type is %s%s, %s is expected",
                          is_array ? "array of " : "", gguf_type_name(key->element), expected);
}

static i32 load_i8(const u8 *p) { return p[0] < 128 ? p[0] : p[0] - 256; }

enum sov_status gguf_get_u32(const struct gguf *gguf, struct str name, bool required, u32 *value,
                             struct sov_fault *fault) {
    const struct gguf_key *key;
    enum sov_status status = get_key(gguf, name, required, &key, fault);
    if (key == NULL) return status;
    u64 number = 0;
    i64 signed_number = 0;
    bool is_signed = false;
    switch (key->type) {
    case GGUF_U8: number = key->value[0]; break;
    case GGUF_U16: number = load_u16(key->value); break;
    case GGUF_U32: number = load_u32(key->value); break;
    case GGUF_U64: number = load_u64(key->value); break;
    case GGUF_I8:
        signed_number = load_i8(key->value);
        is_signed = true;
        break;
    case GGUF_I16:
        signed_number = (i16)load_u16(key->value);
        is_signed = true;
        break;
    case GGUF_I32:
        signed_number = load_i32(key->value);
        is_signed = true;
        break;
    case GGUF_I64:
        signed_number = (i64)load_u64(key->value);
        is_signed = true;
        break;
    default: return wrong_type(key, "an integer", fault);
    }
    if (is_signed && signed_number < 0) {
        return gguf_key_fault(key, fault, SOV_ERR_FORMAT,
                              "its value is %lld, a number from 0 to 2^32-1 is expected",
                              signed_number);
    }
    if (is_signed) number = (u64)signed_number;
    if (number > 0xffffffff) {
        return gguf_key_fault(key, fault, SOV_ERR_FORMAT,
                              "its value is %llu, a number from 0 to 2^32-1 is expected", number);
    }
    *value = (u32)number;
    return SOV_OK;
}

enum sov_status gguf_get_f32(const struct gguf *gguf, struct str name, bool required, f32 *value,
                             struct sov_fault *fault) {
    const struct gguf_key *key;
    enum sov_status status = get_key(gguf, name, required, &key, fault);
    if (key == NULL) return status;
    if (key->type == GGUF_F32)
        *value = load_f32(key->value);
    else if (key->type == GGUF_F64)
        *value = (f32)load_f64(key->value);
    else
        return wrong_type(key, "f32", fault);
    return SOV_OK;
}

enum sov_status gguf_get_bool(const struct gguf *gguf, struct str name, bool required, bool *value,
                              struct sov_fault *fault) {
    const struct gguf_key *key;
    enum sov_status status = get_key(gguf, name, required, &key, fault);
    if (key == NULL) return status;
    if (key->type != GGUF_BOOL) return wrong_type(key, "bool", fault);
    *value = key->value[0] != 0;
    return SOV_OK;
}

enum sov_status gguf_get_string(const struct gguf *gguf, struct str name, bool required,
                                struct str *value, struct sov_fault *fault) {
    const struct gguf_key *key;
    enum sov_status status = get_key(gguf, name, required, &key, fault);
    if (key == NULL) return status;
    if (key->type != GGUF_STRING) return wrong_type(key, "string", fault);
    *value = (struct str){key->value + 8, load_u64(key->value)};
    return SOV_OK;
}

enum sov_status gguf_get_array(const struct gguf *gguf, struct str name, enum gguf_type element,
                               bool required, const struct gguf_key **key,
                               struct sov_fault *fault) {
    enum sov_status status = get_key(gguf, name, required, key, fault);
    const struct gguf_key *found = *key;
    if (found == NULL) return status;
    if (found->type == GGUF_ARRAY && found->element == element) return SOV_OK;
    *key = NULL;
    char memory[32];
    struct text expected = TEXT_OVER_ARRAY(memory);
    text_format(&expected, "array of %s", gguf_type_name(element));
    return wrong_type(found, expected.data, fault);
}

bool gguf_element_f64(const struct gguf_key *key, u64 idx, f64 *value) {
    assert(idx < key->count);
    if (key->element == GGUF_STRING) return false;
    const u8 *p = key->value + idx * type_table[key->element].bytes;
    switch (key->element) {
    case GGUF_U8:
    case GGUF_BOOL: *value = p[0]; return true;
    case GGUF_I8: *value = load_i8(p); return true;
    case GGUF_U16: *value = load_u16(p); return true;
    case GGUF_I16: *value = (i16)load_u16(p); return true;
    case GGUF_U32: *value = load_u32(p); return true;
    case GGUF_I32: *value = load_i32(p); return true;
    case GGUF_U64: *value = (f64)load_u64(p); return true;
    case GGUF_I64: *value = (f64)(i64)load_u64(p); return true;
    case GGUF_F32: *value = load_f32(p); return true;
    case GGUF_F64: *value = load_f64(p); return true;
    default: return false;
    }
}
