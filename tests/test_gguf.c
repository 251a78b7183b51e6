// SPDX-License-Identifier: Apache-2.0
// The reader of GGUF files: sound files are read right, and unsound ones are refused with the field
// and its place, before any memory in proportion to what they claim is taken. Bytes are handed over
// in mappings of exactly their size, so that in the hosted build a read past the end is reported.
#include "gguf_builder.h"
#include "test.h"

#define FILE_BYTES_MAX (1u << 16)

// --- helpers ---

static bool contains(const char *text, const char *part) {
    struct str t = str_from_z(text), p = str_from_z(part);
    for (usize i = 0; i + p.len <= t.len; i++) {
        if (memcmp(t.data + i, p.data, p.len) == 0) return true;
    }
    return false;
}

// Parses a copy that ends where its mapping ends.
static enum sov_status parse_exact(const u8 *data, u64 bytes, struct sov_fault *fault) {
    u8 *copy = platform_memory_map(MAX(bytes, 1u));
    assert(copy != NULL);
    memcpy(copy, data, bytes);
    struct gguf gguf;
    enum sov_status status = gguf_parse(&gguf, copy, bytes, fault);
    if (status == SOV_OK) gguf_close(&gguf);
    platform_memory_unmap(copy, MAX(bytes, 1u));
    return status;
}

// The refusal of the builder's bytes: its status and a part of its message.
static void check_refused(const struct builder *b, const char *name, enum sov_status expected,
                          const char *message) {
    struct sov_fault fault = {0};
    u64 mapped = platform_memory_mapped();
    enum sov_status status = parse_exact(b->data, b->len, &fault);
    CHECK_MSG(status == expected, "%s: %s (%s) instead of %s", name, status_name(status),
              fault.message, status_name(expected));
    CHECK_MSG(contains(fault.message, message), "%s: \"%s\" does not say \"%s\"", name,
              fault.message, message);
    CHECK_MSG(fault.status == status, "%s: the fault's status differs", name);
    CHECK_MSG(platform_memory_mapped() == mapped, "%s: memory was not given back", name);
}

// Three keys, two tensors: F32 [8], Q4_0 [32 x 2].
static void build_sound(struct builder *b) {
    builder_begin(b);
    put_key_str(b, STR("general.architecture"), STR("none"));
    put_key_u32(b, STR("x.number"), 7);
    put_key_array(b, STR("x.words"), GGUF_STRING, 2);
    put_str(b, STR("one"));
    put_str(b, STR(""));
    put_tensor(b, STR("a"), DTYPE_F32, 8, 0);
    put_tensor(b, STR("b"), DTYPE_Q4_0, 32, 2);
    builder_end(b);
    put_zeros(b, 32); // the F32 values
    put_zeros(b, 36); // two blocks of 18 bytes
}

// --- sound files ---

// One key of each kind.
static void build_keys(struct builder *to) {
    struct builder b = *to;
    builder_begin(&b);
    put_key(&b, STR("z.u8"), GGUF_U8), put_bytes(&b, "\xff", 1);
    put_key(&b, STR("z.i8"), GGUF_I8), put_bytes(&b, "\x80", 1);
    put_key(&b, STR("y.u16"), GGUF_U16), put_bytes(&b, "\xfe\xff", 2);
    put_key(&b, STR("y.i16"), GGUF_I16), put_bytes(&b, "\x05\x00", 2);
    put_key_u32(&b, STR("x.u32"), 4000000000u);
    put_key(&b, STR("x.i32"), GGUF_I32), put_u32(&b, 77);
    put_key(&b, STR("w.u64"), GGUF_U64), put_u64(&b, 0xffffffff);
    put_key(&b, STR("w.u64 big"), GGUF_U64), put_u64(&b, 0x100000000);
    put_key(&b, STR("v.i64"), GGUF_I64), put_u64(&b, 9);
    put_key(&b, STR("v.i64 negative"), GGUF_I64), put_u64(&b, ~0ull);
    put_key(&b, STR("u.f32"), GGUF_F32), put_u32(&b, f32_bits(1.5f));
    put_key(&b, STR("u.f64"), GGUF_F64), put_u64(&b, f64_bits(2.5));
    put_key(&b, STR("t.bool"), GGUF_BOOL), put_bytes(&b, "\x01", 1);
    put_key_str(&b, STR("s.string"), STR("text \xc3\xa9"));
    put_key_array(&b, STR("r.array"), GGUF_I16, 3), put_bytes(&b, "\1\0\2\0\xff\xff", 6);
    put_key_array(&b, STR("q.empty"), GGUF_U64, 0);
    builder_end(&b);
    *to = b;
}

static void check_integers(const struct gguf *g) {
    struct sov_fault fault = {0};
    const struct {
        struct str name;
        u32 value;
    } integers[] = {{STR("z.u8"), 255},         {STR("y.u16"), 65534}, {STR("y.i16"), 5},
                    {STR("x.u32"), 4000000000}, {STR("x.i32"), 77},    {STR("w.u64"), 0xffffffff},
                    {STR("v.i64"), 9}};
    for (u32 i = 0; i < COUNT_OF(integers); i++) {
        u32 value = 1;
        CHECK_MSG(gguf_get_u32(g, integers[i].name, true, &value, &fault) == SOV_OK, "%s",
                  fault.message);
        CHECK(value == integers[i].value);
    }
    const struct str not_u32[] = {STR("z.i8"),   STR("w.u64 big"), STR("v.i64 negative"),
                                  STR("u.f32"),  STR("t.bool"),    STR("s.string"),
                                  STR("r.array")};
    for (u32 i = 0; i < COUNT_OF(not_u32); i++) {
        u32 value = 42;
        fault = (struct sov_fault){0};
        CHECK(gguf_get_u32(g, not_u32[i], false, &value, &fault) == SOV_ERR_FORMAT);
        CHECK_MSG(value == 42 && contains(fault.message, (const char *)not_u32[i].data), "%s",
                  fault.message);
        bool is_negative = str_equal(not_u32[i], STR("v.i64 negative"));
        CHECK_MSG(!is_negative || contains(fault.message, "its value is -1,"), "%s", fault.message);
    }
}

static void test_reads_keys(void) {
    struct builder b = builder_new(FILE_BYTES_MAX);
    build_keys(&b);
    struct gguf g;
    struct sov_fault fault = {0};
    enum sov_status status = gguf_parse(&g, b.data, b.len, &fault);
    CHECK_MSG(status == SOV_OK, "%s", fault.message);
    if (status != SOV_OK) return;
    CHECK(g.n_keys == 16 && g.n_tensors == 0 && g.version == 3 && g.alignment == 32);
    check_integers(&g);
    f32 number = 0;
    CHECK(gguf_get_f32(&g, STR("u.f32"), true, &number, NULL) == SOV_OK && number == 1.5f);
    CHECK(gguf_get_f32(&g, STR("u.f64"), true, &number, NULL) == SOV_OK && number == 2.5f);
    CHECK(gguf_get_f32(&g, STR("x.u32"), false, &number, NULL) == SOV_ERR_FORMAT);
    bool flag = false;
    CHECK(gguf_get_bool(&g, STR("t.bool"), true, &flag, NULL) == SOV_OK && flag);
    CHECK(gguf_get_bool(&g, STR("z.u8"), true, &flag, NULL) == SOV_ERR_FORMAT);
    struct str text = {0};
    CHECK(gguf_get_string(&g, STR("s.string"), true, &text, NULL) == SOV_OK);
    CHECK(str_equal(text, STR("text \xc3\xa9")));
    CHECK(gguf_get_string(&g, STR("q.empty"), false, &text, NULL) == SOV_ERR_FORMAT);

    // Absence is an error only when the key is required; values stay.
    u32 kept = 42;
    CHECK(gguf_get_u32(&g, STR("absent"), false, &kept, NULL) == SOV_OK && kept == 42);
    fault = (struct sov_fault){0};
    CHECK(gguf_get_u32(&g, STR("absent"), true, &kept, &fault) == SOV_ERR_FORMAT && kept == 42);
    CHECK(contains(fault.message, "key absent is missing"));
    CHECK(gguf_find_key(&g, STR("")) == NULL && gguf_find_key(&g, STR("zz")) == NULL);

    const struct gguf_key *key = NULL;
    CHECK(gguf_get_array(&g, STR("r.array"), GGUF_I16, true, &key, NULL) == SOV_OK);
    f64 element = 0;
    CHECK(key != NULL && key->count == 3);
    CHECK(key != NULL && gguf_element_f64(key, 2, &element) && element == -1);
    CHECK(gguf_get_array(&g, STR("q.empty"), GGUF_U64, true, &key, NULL) == SOV_OK);
    CHECK(key != NULL && key->count == 0);
    fault = (struct sov_fault){0};
    CHECK(gguf_get_array(&g, STR("r.array"), GGUF_STRING, true, &key, &fault) == SOV_ERR_FORMAT);
    CHECK_MSG(contains(fault.message, "array of i16, array of string"), "%s", fault.message);
    CHECK(key == NULL);
    CHECK(gguf_get_array(&g, STR("absent"), GGUF_U8, false, &key, NULL) == SOV_OK && key == NULL);
    CHECK(gguf_get_array(&g, STR("absent"), GGUF_U8, true, &key, NULL) == SOV_ERR_FORMAT);
    gguf_close(&g);
    gguf_close(&g); // twice is fine
    builder_free(&b);
}

static void test_element_values(void) {
    struct builder b = builder_new(FILE_BYTES_MAX);
    const struct {
        enum gguf_type type;
        u64 bits;
        f64 value;
    } rows[] = {
        {GGUF_U8, 200, 200},
        {GGUF_I8, 200, -56},
        {GGUF_U16, 0xffff, 65535},
        {GGUF_I16, 0xffff, -1},
        {GGUF_U32, 0xffffffff, 4294967295.0},
        {GGUF_I32, 0xffffffff, -1},
        {GGUF_BOOL, 1, 1},
        {GGUF_U64, 1ull << 53, 9007199254740992.0},
        {GGUF_I64, ~0ull, -1},
        {GGUF_F32, 0xc0000000, -2},
        {GGUF_F64, 0x3fe0000000000000, 0.5},
    };
    const u32 bytes_each[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    builder_begin(&b);
    for (u32 i = 0; i < COUNT_OF(rows); i++) {
        put_key_array(&b, (struct str){(const u8 *)"abcdefghijklm" + i, 1}, rows[i].type, 2);
        put_zeros(&b, bytes_each[rows[i].type]);
        put_bytes(&b, &rows[i].bits, bytes_each[rows[i].type]);
    }
    builder_end(&b);
    struct gguf g;
    CHECK(gguf_parse(&g, b.data, b.len, NULL) == SOV_OK);
    for (u32 i = 0; i < COUNT_OF(rows) && g.n_keys == COUNT_OF(rows); i++) {
        f64 first = 1, second = 0;
        CHECK(gguf_element_f64(&g.keys[i], 0, &first) && first == 0);
        CHECK_MSG(gguf_element_f64(&g.keys[i], 1, &second) && second == rows[i].value,
                  "%s: %g instead of %g", gguf_type_name(rows[i].type), second, rows[i].value);
    }
    gguf_close(&g);
    CHECK(str_equal(str_from_z(gguf_type_name(GGUF_F64)), STR("f64")));
    CHECK(str_equal(str_from_z(gguf_type_name((enum gguf_type)13)), STR("unknown")));
    builder_free(&b);
}

static void test_reads_tensors(void) {
    struct builder b = builder_new(FILE_BYTES_MAX);
    for (u32 version = 2; version <= 3; version++) {
        build_sound(&b);
        store_u32(b.data + 4, version);
        struct gguf g;
        CHECK(gguf_parse(&g, b.data, b.len, NULL) == SOV_OK);
        const struct gguf_tensor *t = gguf_find_tensor(&g, STR("b"));
        CHECK(t != NULL && t == &g.tensors[1]);
        if (t == NULL) return;
        CHECK(t->type == DTYPE_Q4_0 && t->n_dims == 2 && t->dims[0] == 32 && t->dims[1] == 2);
        CHECK(t->dims[2] == 1 && t->dims[3] == 1 && t->n_rows == 2 && t->row_bytes == 18);
        CHECK(t->bytes == 36 && t->data == b.data + b.len - 36 && t->shard == 0);
        CHECK(t->data_offset == b.len - 36);
        CHECK(g.tensors[0].n_rows == 1 && g.tensors[0].bytes == 32);
        CHECK(gguf_find_tensor(&g, STR("c")) == NULL && gguf_find_tensor(&g, STR("")) == NULL);
        CHECK(g.version == version && g.file_bytes == b.len && g.n_shards == 1);
        gguf_close(&g);
    }
    // Bytes behind the last tensor and an alignment of the file's own are fine.
    builder_begin(&b);
    put_key_u32(&b, STR("general.alignment"), 1);
    put_tensor_at(&b, STR("odd"), 4, (const u64[]){3, 1, 2, 1}, DTYPE_F16, 5);
    store_u64(b.data + 8, 1);
    store_u64(b.data + 16, 1);
    u64 start = b.len;
    put_zeros(&b, 5 + 12 + 100);
    struct gguf g;
    CHECK(gguf_parse(&g, b.data, b.len, NULL) == SOV_OK);
    CHECK(g.alignment == 1 && g.tensors[0].data == b.data + start + 5);
    CHECK(g.tensors[0].n_rows == 2 && g.tensors[0].bytes == 12);
    gguf_close(&g);
    builder_free(&b);
}

// --- unsound files ---

// Places in build_sound's bytes.
enum {
    VERSION = 4,
    N_TENSORS = 8,
    N_KEYS = 16,
    KEY0 = 24,
    TYPE0 = KEY0 + 8 + 20,
    VALUE0 = TYPE0 + 4,
    KEY1 = VALUE0 + 8 + 4,
    KEY2 = KEY1 + 8 + 8 + 4 + 4,
    ELEMENT2 = KEY2 + 8 + 7 + 4,
    COUNT2 = ELEMENT2 + 4,
    WORD0 = COUNT2 + 8,
    TENSOR0 = WORD0 + 8 + 3 + 8,
    N_DIMS0 = TENSOR0 + 9,
    DIM0 = N_DIMS0 + 4,
    DTYPE0 = DIM0 + 8,
    OFFSET0 = DTYPE0 + 4,
    TENSOR1 = OFFSET0 + 8,
    DIM1 = TENSOR1 + 9 + 4,
    OFFSET1 = DIM1 + 16 + 4
};

#define BAD SOV_ERR_FORMAT
#define UNSUPPORTED SOV_ERR_UNSUPPORTED

// A change of one field of the sound file.
static const struct {
    const char *name;
    u32 at, bytes; // of the field
    u64 value;
    enum sov_status status;
    const char *message;
} field_rows[] = {
    {"magic", 0, 4, 0x58554747, BAD, "header at byte 0: not a GGUF file"},
    {"magic reversed", 0, 4, 0x47475546, UNSUPPORTED, "byte order"},
    {"version 0", VERSION, 4, 0, UNSUPPORTED, "version 0"},
    {"version 1", VERSION, 4, 1, UNSUPPORTED, "version 1"},
    {"version 4", VERSION, 4, 4, UNSUPPORTED, "version 4"},
    {"big-endian 3", VERSION, 4, 0x03000000, UNSUPPORTED, "big-endian"},
    {"big-endian 2", VERSION, 4, 0x02000000, UNSUPPORTED, "big-endian"},
    {"version max", VERSION, 4, 0xffffffff, UNSUPPORTED, "version 4294967295"},
    {"keys 2^64-1", N_KEYS, 8, ~0ull, BAD, "key count at byte 16"},
    {"keys 2^63", N_KEYS, 8, 1ull << 63, BAD, "key count at byte 16"},
    {"keys 1e9", N_KEYS, 8, 1000000000, BAD, "1000000000 keys"},
    {"keys wrap", N_KEYS, 8, 0x1000000000000001, BAD, "key count at byte 16"},
    {"tensors 2^64-1", N_TENSORS, 8, ~0ull, BAD, "tensor count at byte 8"},
    {"tensors 2^63", N_TENSORS, 8, 1ull << 63, BAD, "tensor count at byte 8"},
    {"tensors 1e9", N_TENSORS, 8, 1000000000, BAD, "1000000000 tensors"},
    {"keys of 13 bytes", N_KEYS, 8, 20, BAD, "key count at byte 16"}, // 268 bytes are left
    {"tensors of 32 bytes", N_TENSORS, 8, 9, BAD, "tensor count at byte 8"},
    {"one key more", N_KEYS, 8, 4, BAD, "at byte"},
    {"one tensor more", N_TENSORS, 8, 3, BAD, "tensor 3 of 3 at byte"},
    {"key length 300", KEY1, 8, 300, BAD, "key 2 of 3 at byte 68: its name goes beyond"},
    {"key length 2^63", KEY1, 8, 1ull << 63, BAD, "key 2 of 3 at byte 68: its name goes"},
    {"key length 2^64-1", KEY1, 8, ~0ull, BAD, "claims 18446744073709551615 bytes"},
    {"key length 0", KEY1, 8, 0, BAD, "key 2 of 3 at byte 68: its name is empty"},
    {"value type 13", TYPE0, 4, 13, BAD, "key general.architecture at byte 24: its value type"},
    {"value type max", TYPE0, 4, 0xffffffff, BAD, "its value type is 4294967295"},
    {"string 2^64-1", VALUE0, 8, ~0ull, BAD, "key general.architecture at byte 24"},
    {"string 2^64-8", VALUE0, 8, ~7ull, BAD, "key general.architecture at byte 24"},
    {"array in array", ELEMENT2, 4, GGUF_ARRAY, UNSUPPORTED, "x.words at byte 92: an array of"},
    {"element type 13", ELEMENT2, 4, 13, BAD, "key x.words at byte 92: its element type is 13"},
    {"array 2^60 strings", COUNT2, 8, 1ull << 60, BAD, "key x.words at byte 92"},
    {"array 2^61 strings", COUNT2, 8, 1ull << 61, BAD, "2305843009213693952 elements"},
    {"array of bools", ELEMENT2, 4, GGUF_BOOL, BAD, "a bool with the byte 3"},
    {"word 2^63", WORD0, 8, 1ull << 63, BAD, "string 1 of 2 at byte 123"},
    {"tensor name empty", TENSOR0, 8, 0, BAD, "its name is empty"},
    {"no dimension", N_DIMS0, 4, 0, BAD, "tensor a at byte 142: it has 0 dimensions"},
    {"5 dimensions", N_DIMS0, 4, 5, BAD, "it has 5 dimensions"},
    {"2^32-1 dimensions", N_DIMS0, 4, 0xffffffff, BAD, "it has 4294967295 dimensions"},
    {"dimension 0", DIM0, 8, 0, BAD, "tensor a at byte 142: dimension 0 is 0"},
    {"dimension -1", DIM0, 8, ~0ull, BAD, "dimension 0 is 18446744073709551615"},
    {"dimension 2^63", DIM0, 8, 1ull << 63, BAD, "dimension 0 is 9223372036854775808"},
    {"dimension 2^62", DIM0, 8, 1ull << 62, BAD, "tensor a at byte 142: the size"},
    {"dimension 2^40", DIM0, 8, 1ull << 40, BAD, "tensor a at byte 142: its data goes beyond"},
    {"second dimension 0", DIM1 + 8, 8, 0, BAD, "tensor b at byte 175: dimension 1 is 0"},
    {"product wraps", DIM1 + 8, 8, 1ull << 59, BAD, "overflows at dimension 1"},
    {"product 2^63", DIM1 + 8, 8, 1ull << 58, BAD, "overflows at dimension 1"},
    {"type 4", DTYPE0, 4, 4, UNSUPPORTED, "tensor a at byte 142: its type is 4"},
    {"type 9", DTYPE0, 4, 9, UNSUPPORTED, "its type is 9"},
    {"type 31", DTYPE0, 4, 31, UNSUPPORTED, "its type is 31"},
    {"type 2^32-1", DTYPE0, 4, 0xffffffff, UNSUPPORTED, "its type is 4294967295"},
    {"row no whole block", DIM1, 8, 33, BAD, "tensor b at byte 175: its rows of 33"},
    {"offset 4 too high", OFFSET1, 8, 36, BAD, "tensor b at byte 175: its data offset is 36"},
    {"offset 2^20", OFFSET1, 8, 1 << 20, BAD, "tensor b at byte 175: its data goes beyond"},
    {"offset 2^64-32", OFFSET1, 8, ~31ull, BAD, "tensor b at byte 175: its data goes beyond"},
    {"overlap", OFFSET1, 8, 0, BAD, "overlaps that of tensor a"},
    {"name twice", TENSOR1 + 8, 1, 'a', BAD, "tensor a at byte 175: given twice"},
};

static void test_refuses_fields(void) {
    struct builder b = builder_new(FILE_BYTES_MAX), changed = builder_new(FILE_BYTES_MAX);
    build_sound(&b);
    for (u32 i = 0; i < COUNT_OF(field_rows); i++) {
        changed.len = 0;
        put_bytes(&changed, b.data, b.len);
        memcpy(changed.data + field_rows[i].at, &field_rows[i].value, field_rows[i].bytes);
        check_refused(&changed, field_rows[i].name, field_rows[i].status, field_rows[i].message);
    }
    struct sov_fault fault = {0};
    CHECK_MSG(parse_exact(b.data, b.len, &fault) == SOV_OK, "the sound file: %s", fault.message);
    builder_free(&changed);
    builder_free(&b);
}

// Every cut is refused; none is read past its end (a mapping of exactly its size).
static void test_refuses_cuts(void) {
    struct builder b = builder_new(FILE_BYTES_MAX);
    build_sound(&b);
    for (usize bytes = 0; bytes < b.len; bytes++) {
        struct sov_fault fault = {0};
        enum sov_status status = parse_exact(b.data, bytes, &fault);
        CHECK_MSG(status == SOV_ERR_FORMAT, "cut to %zu bytes: %s", bytes, status_name(status));
        CHECK_MSG(contains(fault.message, "ends too soon") || contains(fault.message, "beyond"),
                  "cut to %zu bytes: %s", bytes, fault.message);
    }
    builder_free(&b);
}

static void test_refuses_keys(void) {
    struct builder b = builder_new(FILE_BYTES_MAX * 4);
    const struct {
        u32 type;
        u64 value;
    } alignments[] = {{GGUF_U32, 0},  {GGUF_U32, 3},  {GGUF_U32, 0x80000000}, {GGUF_U32, 131072},
                      {GGUF_U64, 32}, {GGUF_I32, 32}, {GGUF_F32, 0x42000000}, {GGUF_BOOL, 1}};
    const u32 bytes_each[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    for (u32 i = 0; i < COUNT_OF(alignments); i++) {
        builder_begin(&b);
        put_key(&b, STR("general.alignment"), alignments[i].type);
        put_bytes(&b, &alignments[i].value, bytes_each[alignments[i].type]);
        builder_end(&b);
        check_refused(&b, "alignment", SOV_ERR_FORMAT, "key general.alignment at byte 24");
    }
    builder_begin(&b);
    put_key_str(&b, STR("general.alignment"), STR("32"));
    builder_end(&b);
    check_refused(&b, "alignment string", SOV_ERR_FORMAT, "its type is string, u32 is expected");

    builder_begin(&b);
    put_key_u32(&b, STR("k"), 1);
    put_key_u32(&b, STR("j"), 1);
    put_key_u32(&b, STR("k"), 2);
    builder_end(&b);
    check_refused(&b, "key twice", SOV_ERR_FORMAT,
                  "key k at byte 58: given twice; it stands at byte 24 already");

    builder_begin(&b);
    put_key(&b, STR("flag"), GGUF_BOOL), put_bytes(&b, "\x02", 1);
    builder_end(&b);
    check_refused(&b, "bool 2", SOV_ERR_FORMAT, "key flag at byte 24: a bool with the byte 2");

    // Nesting: neither two deep nor thousands of levels deep costs more than the first level.
    for (u32 depth = 2; depth <= 3000; depth += 2998) {
        builder_begin(&b);
        put_key(&b, STR("deep"), GGUF_ARRAY);
        for (u32 i = 1; i < depth; i++) put_u32(&b, GGUF_ARRAY), put_u64(&b, 1);
        put_u32(&b, GGUF_U8), put_u64(&b, 0);
        builder_end(&b);
        check_refused(&b, "nested", SOV_ERR_UNSUPPORTED, "key deep at byte 24: an array of arrays");
    }

    // Names as long as the format allows, and one byte longer.
    for (u32 more = 0; more <= 1; more++) {
        builder_begin(&b);
        b.n_keys++;
        put_u64(&b, GGUF_KEY_NAME_BYTES_MAX + more);
        for (u32 i = 0; i < GGUF_KEY_NAME_BYTES_MAX + more; i++) put_bytes(&b, "n", 1);
        put_u32(&b, GGUF_U8), put_bytes(&b, "\0", 1);
        builder_end(&b);
        if (more == 0)
            CHECK(parse_exact(b.data, b.len, NULL) == SOV_OK);
        else
            check_refused(&b, "long key", SOV_ERR_UNSUPPORTED, "its name has 65536 bytes");
    }
    builder_free(&b);
}

static void test_refuses_tensors(void) {
    struct builder b = builder_new(FILE_BYTES_MAX);
    static const u8 name[GGUF_TENSOR_NAME_BYTES_MAX + 1] = {'t'};
    for (u32 more = 0; more <= 1; more++) {
        builder_begin(&b);
        put_tensor(&b, (struct str){name, GGUF_TENSOR_NAME_BYTES_MAX + more}, DTYPE_F32, 8, 0);
        builder_end(&b);
        put_zeros(&b, 32);
        if (more == 0)
            CHECK(parse_exact(b.data, b.len, NULL) == SOV_OK);
        else
            check_refused(&b, "long name", SOV_ERR_UNSUPPORTED, "its name has 256 bytes");
    }
    // Overlap by one byte only, found whatever the order of the descriptions.
    for (u32 first = 0; first <= 1; first++) {
        for (u32 overlap = 0; overlap <= 1; overlap++) {
            builder_begin(&b);
            put_key_u32(&b, STR("general.alignment"), 1);
            for (u32 j = 0; j < 2; j++) {
                u64 offset = j == first ? 0 : 32 - overlap;
                put_tensor_at(&b, (struct str){(const u8 *)"pq" + j, 1}, 1, (const u64[]){16},
                              DTYPE_F16, offset);
            }
            builder_end(&b);
            put_zeros(&b, 64);
            if (overlap == 0)
                CHECK(parse_exact(b.data, b.len, NULL) == SOV_OK);
            else
                check_refused(&b, "overlap", SOV_ERR_FORMAT, "overlaps that of tensor");
        }
    }
    builder_free(&b);
}

// Random changes of several bytes: no crash, no read outside, no memory lost. What is accepted is
// touched to its last byte.
static void test_survives_mutations(void) {
    const char *full = test_option("FULL");
    u32 n_rounds = full != NULL ? 3000000 : 30000;
    struct test_random random = {.state = 0x5eed0003};
    struct builder b = builder_new(FILE_BYTES_MAX);
    build_sound(&b);
    u8 *copy = platform_memory_map(b.len);
    assert(copy != NULL);
    u64 mapped = platform_memory_mapped();
    u32 n_accepted = 0, touched = 0;
    static const u8 edges[] = {0, 1, 2, 8, 9, 0x7f, 0x80, 0xff};
    for (u32 round = 0; round < n_rounds; round++) {
        memcpy(copy, b.data, b.len);
        u32 n_changes = 1 + test_random_below(&random, 4);
        for (u32 i = 0; i < n_changes; i++) {
            u32 at = 4 + test_random_below(&random, (u32)b.len - 4);
            copy[at] = test_random_below(&random, 2) == 0
                           ? edges[test_random_below(&random, COUNT_OF(edges))]
                           : (u8)test_random_u64(&random);
        }
        struct gguf g;
        struct sov_fault fault = {0};
        enum sov_status status = gguf_parse(&g, copy, b.len, &fault);
        if (status != SOV_OK) {
            CHECK_MSG(fault.status == status && fault.message[0] != 0, "round %u", round);
            continue;
        }
        n_accepted++;
        for (u32 i = 0; i < g.n_keys; i++) touched += g.keys[i].name.data[g.keys[i].name.len - 1];
        for (u32 i = 0; i < g.n_tensors; i++) {
            CHECK(gguf_find_tensor(&g, g.tensors[i].name) == &g.tensors[i]);
            touched += g.tensors[i].data[g.tensors[i].bytes - 1];
        }
        gguf_close(&g);
    }
    CHECK(platform_memory_mapped() == mapped);
    test_note("mutations: seed %llx, %u of %u accepted (%u)", 0x5eed0003ull, n_accepted, n_rounds,
              touched & 1);
    CHECK(n_accepted > 0 && n_accepted < n_rounds);
    platform_memory_unmap(copy, b.len);
    builder_free(&b);
}

// 100,000 keys in less than a second, one of them twice: with names in order, in reverse order, and
// with a long common beginning. (A second is 20 times what the hosted build takes.)
static void test_many_keys_are_fast(void) {
    enum { N = 100000 };
    struct builder b = builder_new(N * 128);
    for (u32 kind = 0; kind < 3; kind++) {
        for (u32 twice = 0; twice <= 1; twice++) {
            builder_begin(&b);
            for (u32 i = 0; i < N; i++) {
                u32 number = kind == 1 ? N - i : i;
                if (twice == 1 && i == N - 1) number = kind == 1 ? N : 0;
                char memory[80];
                struct text t = TEXT_OVER_ARRAY(memory);
                if (kind == 2) text_format(&t, "the.same.beginning.of.every.name.in.this.file.");
                text_format(&t, "%08u", number);
                put_key(&b, (struct str){(const u8 *)t.data, t.len}, GGUF_U8);
                put_bytes(&b, "\0", 1);
            }
            builder_end(&b);
            struct gguf g;
            struct sov_fault fault = {0};
            u64 before = platform_monotonic_ns();
            enum sov_status status = gguf_parse(&g, b.data, b.len, &fault);
            u64 ms = (platform_monotonic_ns() - before) / 1000000;
            CHECK_MSG(status == (twice == 1 ? SOV_ERR_FORMAT : SOV_OK), "%s", fault.message);
            CHECK_MSG(ms < 1000, "kind %u: %llu ms", kind, ms);
            if (twice == 1) CHECK_MSG(contains(fault.message, "given twice"), "%s", fault.message);
            if (status != SOV_OK) continue;
            CHECK(gguf_find_key(&g, g.keys[N / 3].name) == &g.keys[N / 3]);
            CHECK_MSG(g.memory_bytes < 5 * b.len, "directory of %llu bytes", g.memory_bytes);
            gguf_close(&g);
        }
    }
    builder_free(&b);
}

// More keys or tensors than are read, in files that are long enough for them.
static void test_limits(void) {
    usize bytes = 24 + 33 * ((usize)GGUF_KEYS_MAX + 2); // never touched but for the header
    struct builder b = builder_new(bytes);
    for (u32 tensors = 0; tensors <= 1; tensors++) {
        builder_begin(&b);
        store_u64(b.data + (tensors == 1 ? 8 : 16), GGUF_KEYS_MAX + 1);
        struct gguf g;
        struct sov_fault fault = {0};
        CHECK(gguf_parse(&g, b.data, bytes, &fault) == SOV_ERR_UNSUPPORTED);
        CHECK_MSG(contains(fault.message, "at most 1048576 are read"), "%s", fault.message);
    }
    builder_free(&b);
}

// --- files and shards ---

#if defined(__SANITIZE_ADDRESS__)
#define FLAVOUR "asan" // the two builds of this test may run at the same time
#else
#define FLAVOUR "free"
#endif
#define SHARD_PATH "build/test_gguf_" FLAVOUR

static void write_file(const char *path, const u8 *data, usize bytes) {
    int descriptor = -1;
    struct sov_fault fault = {0};
    enum sov_status status = platform_open(path, PLATFORM_OPEN_CREATE, &descriptor, &fault);
    if (status == SOV_OK) {
        status = platform_write(descriptor, data, bytes, &fault);
        platform_close(descriptor);
    }
    CHECK_MSG(status == SOV_OK, "%s", fault.message);
}

// A shard with one tensor; what it says of itself is free.
static void write_shard(struct builder *b, const char *path, struct str tensor, u32 no, u32 count,
                        u32 n_tensors) {
    builder_begin(b);
    put_key(b, STR("split.no"), GGUF_U16), put_bytes(b, &no, 2);
    put_key(b, STR("split.count"), GGUF_U16), put_bytes(b, &count, 2);
    put_key(b, STR("split.tensors.count"), GGUF_I32), put_u32(b, n_tensors);
    if (no == 0) put_key_str(b, STR("only.in.the.first"), STR("yes"));
    put_tensor(b, tensor, DTYPE_F32, 8, 0);
    builder_end(b);
    u32 value = f32_bits((f32)no + 0.5f);
    for (u32 i = 0; i < 8; i++) put_u32(b, value);
    write_file(path, b->data, b->len);
}

static void check_open(const char *path, enum sov_status expected, const char *message) {
    struct gguf g;
    struct sov_fault fault = {0};
    u64 mapped = platform_memory_mapped();
    enum sov_status status = gguf_open(&g, path, &fault);
    CHECK_MSG(status == expected, "%s: %s (%s)", path, status_name(status), fault.message);
    CHECK_MSG(contains(fault.message, message), "%s: \"%s\" does not say \"%s\"", path,
              fault.message, message);
    if (status == SOV_OK) gguf_close(&g);
    CHECK_MSG(platform_memory_mapped() == mapped, "%s: memory was not given back", path);
}

static void test_opens_files(void) {
    struct builder b = builder_new(FILE_BYTES_MAX);
    build_sound(&b);
    write_file(SHARD_PATH ".gguf", b.data, b.len);
    check_open(SHARD_PATH ".gguf", SOV_OK, "");
    check_open(SHARD_PATH "-absent.gguf", SOV_ERR_IO, "absent.gguf");
    check_open("build", SOV_ERR_IO, "not a regular file");
    write_file(SHARD_PATH ".gguf", b.data, 0);
    check_open(SHARD_PATH ".gguf", SOV_ERR_FORMAT, "0 bytes");
    write_file(SHARD_PATH ".gguf", b.data, 3);
    check_open(SHARD_PATH ".gguf", SOV_ERR_FORMAT, "3 bytes");
    builder_free(&b);
}

static void test_joins_shards(void) {
    struct builder b = builder_new(FILE_BYTES_MAX);
    const char *const paths[3] = {SHARD_PATH "-00001-of-00003.gguf",
                                  SHARD_PATH "-00002-of-00003.gguf",
                                  SHARD_PATH "-00003-of-00003.gguf"};
    const struct str tensors[3] = {STR("m"), STR("z"), STR("a")};
    for (u32 i = 0; i < 3; i++) write_shard(&b, paths[i], tensors[i], i, 3, 3);
    struct gguf g;
    struct sov_fault fault = {0};
    CHECK_MSG(gguf_open(&g, paths[0], &fault) == SOV_OK, "%s", fault.message);
    CHECK(g.n_shards == 3 && g.n_tensors == 3 && g.n_keys == 4);
    CHECK(gguf_find_key(&g, STR("only.in.the.first")) == &g.keys[3]);
    for (u32 i = 0; i < 3; i++) {
        const struct gguf_tensor *t = gguf_find_tensor(&g, tensors[i]);
        CHECK(t != NULL && t->shard == i && load_f32(t->data + 28) == (f32)i + 0.5f);
    }
    gguf_close(&g);

    check_open(paths[1], SOV_ERR_FORMAT,
               "shard 2 of 3; open the first shard instead: test_gguf_" FLAVOUR
               "-00001-of-00003.gguf");
    write_shard(&b, paths[2], STR("a"), 1, 3, 3);
    check_open(paths[0], SOV_ERR_FORMAT, "shard 3 of 3: misnumbered: it says that it is shard 2");
    write_shard(&b, paths[2], STR("a"), 2, 4, 3);
    check_open(paths[0], SOV_ERR_FORMAT, "shard 3 of 3: misnumbered");
    write_shard(&b, paths[2], STR("m"), 2, 3, 3);
    check_open(paths[0], SOV_ERR_FORMAT, "tensor m at byte");
    write_file(paths[2], b.data, b.len - 1);
    check_open(paths[0], SOV_ERR_FORMAT, "shard 3 of 3: tensor m at byte");
    write_shard(&b, paths[2], STR("a"), 2, 3, 3);
    check_open(paths[0], SOV_OK, "");
    write_shard(&b, paths[0], STR("m"), 0, 3, 4);
    check_open(paths[0], SOV_ERR_FORMAT, "split.tensors.count: 4 tensors in all shards, 3");

    // A first shard whose partners are not there, by its name or by their absence.
    write_shard(&b, SHARD_PATH "-00001-of-00002.gguf", STR("m"), 0, 2, 2);
    check_open(SHARD_PATH "-00001-of-00002.gguf", SOV_ERR_FORMAT, "shard 2 of 2: ");
    write_shard(&b, SHARD_PATH ".gguf", STR("m"), 0, 2, 2);
    check_open(SHARD_PATH ".gguf", SOV_ERR_FORMAT, "shard 1 of 2, alone");
    write_shard(&b, SHARD_PATH ".gguf", STR("m"), 1, 2, 2);
    check_open(SHARD_PATH ".gguf", SOV_ERR_FORMAT, "shard 2 of 2; open the first shard instead");
    struct sov_fault parsed = {0};
    CHECK(gguf_parse(&g, b.data, b.len, &parsed) == SOV_ERR_UNSUPPORTED);
    CHECK_MSG(contains(parsed.message, "shard 2 of 2"), "%s", parsed.message);
    // Counts of 0 and 1 are whole files; a number beyond the count, and too many, are refused.
    for (u32 count = 0; count <= 1; count++) {
        write_shard(&b, SHARD_PATH ".gguf", STR("m"), 0, count, 1);
        check_open(SHARD_PATH ".gguf", SOV_OK, "");
    }
    write_shard(&b, SHARD_PATH ".gguf", STR("m"), 5, 2, 1);
    check_open(SHARD_PATH ".gguf", SOV_ERR_FORMAT, "misnumbered shard: split.no is 5");
    write_shard(&b, SHARD_PATH ".gguf", STR("m"), 0, 1000, 1);
    check_open(SHARD_PATH ".gguf", SOV_ERR_UNSUPPORTED, "1000 shards, at most 999");
    builder_free(&b);
}

int program_main(const struct platform_start *start) {
    static const struct test_case cases[] = {
        {"reads_keys", test_reads_keys},
        {"element_values", test_element_values},
        {"reads_tensors", test_reads_tensors},
        {"refuses_fields", test_refuses_fields},
        {"refuses_cuts", test_refuses_cuts},
        {"refuses_keys", test_refuses_keys},
        {"refuses_tensors", test_refuses_tensors},
        {"survives_mutations", test_survives_mutations},
        {"many_keys_are_fast", test_many_keys_are_fast},
        {"limits", test_limits},
        {"opens_files", test_opens_files},
        {"joins_shards", test_joins_shards},
    };
    return test_main(start, "test_gguf", cases, COUNT_OF(cases));
}
