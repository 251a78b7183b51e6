// SPDX-License-Identifier: Apache-2.0
// The JSON parser: what RFC 8259 allows and refuses, row by row; what nodes say; limits; texts cut
// off at every byte and with every byte changed. With JSON=FILE it prints what it makes of the
// texts in a file, for tests/test_json.py to compare with another parser.
#include "freestanding/json.h"
#include "freestanding/mem.h"
#include "test.h"

#define SEED 20260
#define NODES 4096

static enum sov_status parse(struct json *json, struct str text, struct sov_fault *fault) {
    static struct json_node nodes[NODES];
    *fault = (struct sov_fault){0};
    return json_parse(json, text, nodes, NODES, fault);
}

// The value written without blanks, strings by what they mean: two texts of the same value give
// the same. Iterative, as the parser is.
static void put_value(struct text *t, const struct json *json) {
    u32 open[JSON_DEPTH_MAX + 1], depth = 0;
    for (u32 i = 0; i < json->n_nodes;) {
        const struct json_node *node = &json->nodes[i];
        if (i > 0 && t->data[t->len - 1] != ':') text_put_byte(t, ' ');
        if (node->kind == JSON_ARRAY || node->kind == JSON_OBJECT) {
            text_format(t, "%c%u:", node->kind == JSON_ARRAY ? '[' : '{', node->n);
            open[depth++] = i;
        } else if (node->kind == JSON_STRING) {
            static u8 meaning[1 << 20];
            usize len = json_string_copy(json, i, meaning);
            text_put_byte(t, '"');
            for (usize k = 0; k < len; k++) text_format(t, "%02x", meaning[k]);
            text_put_byte(t, '"');
        } else if (node->kind == JSON_NUMBER) {
            i64 whole = 0;
            f64 value = 0;
            if (json_i64(json, i, &whole)) {
                text_format(t, "i%lld", whole);
            } else if (json_f64(json, i, &value)) {
                text_format(t, "f%016llx", f64_bits(value));
            } else {
                text_put(t, STR("range"));
            }
        } else {
            text_put(t, json_source(json, i));
        }
        i++;
        while (depth > 0 && json->nodes[open[depth - 1]].next == i) {
            text_put_byte(t, json->nodes[open[--depth]].kind == JSON_ARRAY ? ']' : '}');
        }
    }
    text_put_byte(t, ' ');
}

static void texts_are_read(void) {
    static const struct {
        struct str text;
        const char *value;
    } rows[] = {
        {STR("null"), "null "},
        {STR(" \t\r\n true \n"), "true "},
        {STR("false"), "false "},
        {STR("0"), "i0 "},
        {STR("-0"), "i0 "},
        {STR("-0.0"), "f8000000000000000 "},
        {STR("10"), "i10 "},
        {STR("-9223372036854775808"), "i-9223372036854775808 "},
        {STR("9223372036854775808"), "f43e0000000000000 "},
        {STR("0.1"), "f3fb999999999999a "},
        {STR("1e2"), "f4059000000000000 "},
        {STR("1E+2"), "f4059000000000000 "},
        {STR("123.456e-3"), "f3fbf9acffa7eb6bf "},
        {STR("1e-999"), "f0000000000000000 "},
        {STR("1e999"), "range "},
        {STR("\"\""), "\"\" "},
        {STR("\"a/b\""), "\"612f62\" "},
        {STR("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\""), "\"225c2f080c0a0d09\" "},
        {STR("\"\\u0000\\u0041\\u00e9\\u20AC\""), "\"0041c3a9e282ac\" "},
        {STR("\"\\ud83d\\ude00\""), "\"f09f9880\" "},
        {STR("\"\\uD800\\uDC00\\udbff\\udfff\""), "\"f0908080f48fbfbf\" "},
        {STR("\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\x7f\""), "\"c3a9e282acf09f98807f\" "},
        {STR("\"\\u005C\\u0022\""), "\"5c22\" "},
        {STR("[]"), "[0:] "},
        {STR("[ ]"), "[0:] "},
        {STR("[1]"), "[1:i1] "},
        {STR("[1 , [2,[ ]], \"x\"]"), "[3:i1 [2:i2 [0:]] \"78\"] "},
        {STR("{}"), "{0:} "},
        {STR("{ }"), "{0:} "},
        {STR("{\"a\":1}"), "{1:\"61\" i1} "},
        {STR("{\"a\" : {\"a\" : [ { } ] } , \"b\" : null}"),
         "{2:\"61\" {1:\"61\" [1:{0:}]} \"62\" null} "},
        {STR("{\"\":0,\" \":1}"), "{2:\"\" i0 \"20\" i1} "},
        {STR("{\"a\":1,\"A\":2}"), "{2:\"61\" i1 \"41\" i2} "},
        {STR("{\"ab\":1,\"a\":2,\"\\u0061c\":3,\"b\":[{\"ab\":1}]}"),
         "{4:\"6162\" i1 \"61\" i2 \"6163\" i3 \"62\" [1:{1:\"6162\" i1}]} "},
    };
    for (u32 i = 0; i < COUNT_OF(rows); i++) {
        struct json json;
        struct sov_fault fault;
        char memory[512];
        struct text t = TEXT_OVER_ARRAY(memory);
        enum sov_status status = parse(&json, rows[i].text, &fault);
        CHECK_MSG(status == SOV_OK, "row %u: %s", i, fault.message);
        if (status != SOV_OK) continue;
        put_value(&t, &json);
        CHECK_MSG(str_equal(str_from_z(t.data), str_from_z(rows[i].value)), "row %u: %s", i,
                  t.data);
        CHECK(json.n_nodes <= json_nodes_max(rows[i].text.len));
    }
}

static const struct {
    struct str text;
    const char *message;
} refused[] = {
    {{NULL, 0}, "at byte 0: a value was expected, found the end"},
    {STR("  "), "at byte 2: a value was expected, found the end"},
    {STR("\0"), "at byte 0: a value was expected, found byte 0x00"},
    {STR("\xef\xbb\xbf{}"), "at byte 0: a value was expected, found byte 0xef"},
    {STR("nul"), "at byte 0: a value was expected, found n"},
    {STR("nullx"), "at byte 4: the end was expected, found x"},
    {STR("True"), "at byte 0: a value was expected, found T"},
    {STR("NaN"), "at byte 0: a value was expected, found N"},
    {STR("Infinity"), "at byte 0: a value was expected, found I"},
    {STR("-Infinity"), "at byte 1: a digit was expected, found I"},
    {STR("'a'"), "at byte 0: a value was expected, found '"},
    {STR("// c\n1"), "at byte 0: a value was expected, found /"},
    {STR("1 2"), "at byte 2: the end was expected, found 2"},
    {STR("1\n\n2"), "at byte 3 (line 3): the end was expected, found 2"},
    {STR("\x0b"
         "1"),
     "at byte 0: a value was expected, found byte 0x0b"},
    {STR("+1"), "at byte 0: a value was expected, found +"},
    {STR("-"), "at byte 1: a digit was expected, found the end"},
    {STR("--1"), "at byte 1: a digit was expected, found -"},
    {STR("01"), "at byte 1: no digit was expected after a leading 0, found 1"},
    {STR("-00"), "at byte 2: no digit was expected after a leading 0, found 0"},
    {STR(".5"), "at byte 0: a value was expected, found ."},
    {STR("1."), "at byte 2: a digit was expected, found the end"},
    {STR("1.e1"), "at byte 2: a digit was expected, found e"},
    {STR("1e"), "at byte 2: a digit was expected, found the end"},
    {STR("1e+"), "at byte 3: a digit was expected, found the end"},
    {STR("0x10"), "at byte 1: the end was expected, found x"},
    {STR("1_000"), "at byte 1: the end was expected, found _"},
    {STR("\""), "at byte 1: the string needs a closing quote, found the end"},
    {STR("\"a"), "at byte 2: the string needs a closing quote, found the end"},
    {STR("\"\\\""), "at byte 3: the string needs a closing quote, found the end"},
    {STR("\"\\"), "at byte 1: an escape of a whole character was expected, found \\"},
    {STR("\"\\x41\""), "at byte 1: an escape of a whole character was expected, found \\"},
    {STR("\"\\u12g4\""), "at byte 1: an escape of a whole character was expected, found \\"},
    {STR("\"\\u123\""), "at byte 1: an escape of a whole character was expected, found \\"},
    {STR("\"\\ud800\""), "at byte 1: an escape of a whole character was expected, found \\"},
    {STR("\"\\ud800x\""), "at byte 1: an escape of a whole character was expected, found \\"},
    {STR("\"\\ud800\\u0041\""), "at byte 1: an escape of a whole character was expected, found \\"},
    {STR("\"\\udc00\\ud800\""), "at byte 1: an escape of a whole character was expected, found \\"},
    {STR("\"\\ud800\\ud800\\udc00\""),
     "at byte 1: an escape of a whole character was expected, found \\"},
    {STR("\"\n\""), "at byte 1: a control character must be escaped, found byte 0x0a"},
    {STR("\"\0\""), "at byte 1: a control character must be escaped, found byte 0x00"},
    {STR("\"\x80\""), "at byte 1: a character in UTF-8 was expected, found byte 0x80"},
    {STR("\"\xc0\xaf\""), "at byte 1: a character in UTF-8 was expected, found byte 0xc0"},
    {STR("\"\xed\xa0\x80\""), "at byte 1: a character in UTF-8 was expected, found byte 0xed"},
    {STR("\"\xf4\x90\x80\x80\""), "at byte 1: a character in UTF-8 was expected, found byte 0xf4"},
    {STR("\"\xe2\x82\""), "at byte 1: a character in UTF-8 was expected, found byte 0xe2"},
    {STR("["), "at byte 1: a value was expected, found the end"},
    {STR("[1"), "at byte 2: a comma or ] was expected, found the end"},
    {STR("[1,"), "at byte 3: a value was expected, found the end"},
    {STR("[1,]"), "at byte 3: a value was expected, found ]"},
    {STR("[,1]"), "at byte 1: a value was expected, found ,"},
    {STR("[1 2]"), "at byte 3: a comma or ] was expected, found 2"},
    {STR("[1}"), "at byte 2: a comma or ] was expected, found }"},
    {STR("]"), "at byte 0: a value was expected, found ]"},
    {STR("[]]"), "at byte 2: the end was expected, found ]"},
    {STR("{"), "at byte 1: a name in quotes was expected, found the end"},
    {STR("{a:1}"), "at byte 1: a name in quotes was expected, found a"},
    {STR("{1:1}"), "at byte 1: a name in quotes was expected, found 1"},
    {STR("{\"a\"}"), "at byte 4: a colon was expected, found }"},
    {STR("{\"a\":}"), "at byte 5: a value was expected, found }"},
    {STR("{\"a\":1,}"), "at byte 7: a name in quotes was expected, found }"},
    {STR("{\"a\":1 \"b\":2}"), "at byte 7: a comma or } was expected, found \""},
    {STR("{\"a\":1]"), "at byte 6: a comma or } was expected, found ]"},
    {STR("{\"a\":1,\"a\":1}"), "at byte 7: the name \"a\" stands twice"},
    {STR("{\"\\u0061\":1,\"b\":2,\"a\":1}"), "at byte 18: the name \"a\" stands twice"},
    {STR("{\"b\":1,\"a\":1,\"c\":1,\"a\":1,\"b\":1,\"a\":1}"),
     "at byte 19: the name \"a\" stands twice"},
    {STR("[{\"x\":{\"y\":1,\"y\":2}}]"), "at byte 13: the name \"y\" stands twice"},
    {STR("{\"\":1,\"\":2}"), "at byte 6: the name \"\" stands twice"},
    {STR("{\"\\ud83d\\ude00\":1,\"\xf0\x9f\x98\x80\":2}"),
     "at byte 18: the name \"\xf0\x9f\x98\x80\" stands twice"},
};

static void texts_are_refused(void) {
    for (u32 i = 0; i < COUNT_OF(refused); i++) {
        struct json json;
        struct sov_fault fault;
        enum sov_status status = parse(&json, refused[i].text, &fault);
        CHECK_MSG(status == SOV_ERR_FORMAT, "row %u is accepted", i);
        CHECK_MSG(str_equal(str_from_z(fault.message), str_from_z(refused[i].message)),
                  "row %u: %s", i, fault.message);
    }
}

static void limits_are_kept(void) {
    static char memory[3 * NODES];
    for (u32 objects = 0; objects < 2; objects++) {
        for (u32 depth = JSON_DEPTH_MAX; depth <= JSON_DEPTH_MAX + 1; depth++) {
            struct text t = TEXT_OVER_ARRAY(memory);
            for (u32 i = 0; i < depth; i++) text_put(&t, objects ? STR("{\"\":") : STR("["));
            text_put(&t, STR("1"));
            for (u32 i = 0; i < depth; i++) text_put(&t, objects ? STR("}") : STR("]"));
            struct json json;
            struct sov_fault fault;
            enum sov_status status = parse(&json, (struct str){(u8 *)t.data, t.len}, &fault);
            CHECK_MSG(status == (depth > JSON_DEPTH_MAX ? SOV_ERR_LIMIT : SOV_OK), "depth %u: %s",
                      depth, fault.message);
        }
    }
    struct text t = TEXT_OVER_ARRAY(memory);
    text_put(&t, STR("[0"));
    for (u32 i = 2; i < NODES; i++) text_put(&t, STR(",0"));
    for (u32 extra = 0; extra < 2; extra++) {
        if (extra) text_put(&t, STR(",0"));
        usize len = t.len;
        text_put(&t, STR("]"));
        struct json json;
        struct sov_fault fault;
        enum sov_status status = parse(&json, (struct str){(u8 *)t.data, t.len}, &fault);
        CHECK(status == (extra ? SOV_ERR_LIMIT : SOV_OK));
        CHECK(json_nodes_max(t.len) >= NODES + extra);
        t.len = len;
    }
    struct json json;
    struct sov_fault fault = {0};
    u8 byte = '1'; // is never read: the length is refused first
    CHECK(json_parse(&json, (struct str){&byte, (usize)JSON_BYTES_MAX + 1}, NULL, 0, &fault) ==
          SOV_ERR_LIMIT);
    fault = (struct sov_fault){0};
    CHECK(json_parse(&json, STR("1"), NULL, 0, &fault) == SOV_ERR_LIMIT);
}

// Names in every order are told apart, and one that comes again is found wherever it stands.
static void many_names_are_sorted(void) {
    static char memory[1 << 16];
    struct test_random random = {SEED};
    for (u32 round = 0; round < 300; round++) {
        u32 n = 1 + test_random_below(&random, 200), twice = test_random_below(&random, n);
        u32 multiplier = 1 + 2 * test_random_below(&random, 500);
        for (u32 repeat = 0; repeat < 2; repeat++) {
            struct text t = TEXT_OVER_ARRAY(memory);
            text_put_byte(&t, '{');
            usize second = 0;
            for (u32 i = 0; i < n + repeat; i++) {
                u32 name = (i == n ? twice : i) * multiplier % 1024; // odd: all differ
                if (i > 0) text_put_byte(&t, ',');
                second = t.len;
                bool escape = test_random_below(&random, 4) == 0;
                text_format(&t, escape ? "\"\\u0078%u\":%u" : "\"x%u\":%u", name, i);
            }
            text_put_byte(&t, '}');
            struct json json;
            struct sov_fault fault;
            enum sov_status status = parse(&json, (struct str){(u8 *)t.data, t.len}, &fault);
            CHECK_MSG(status == (repeat ? SOV_ERR_FORMAT : SOV_OK), "seed %u round %u: %s", SEED,
                      round, fault.message);
            char wanted[32];
            struct text w = TEXT_OVER_ARRAY(wanted);
            text_format(&w, "at byte %zu:", second);
            if (repeat) {
                CHECK(str_starts_with(str_from_z(fault.message), str_from_z(wanted)));
                continue;
            }
            for (u32 i = 0; i < n; i++) {
                struct text name = TEXT_OVER_ARRAY(wanted);
                text_format(&name, "x%u", i * multiplier % 1024);
                u32 value = json_member(&json, 0, (struct str){(u8 *)name.data, name.len});
                u64 number = 0;
                CHECK(value != JSON_NONE && json_u64(&json, value, &number) && number == i);
            }
            CHECK(json_member(&json, 0, STR("x")) == JSON_NONE);
        }
    }
}

static void nodes_are_read(void) {
    struct json json;
    struct sov_fault fault;
    struct str text = STR("{\"s\":\"a\\u00e9\\n\",\"n\":[18446744073709551615,-1,1.5,\"1\",1e0],"
                          "\"o\":{\"k\":{}},\"l\":true}");
    CHECK(parse(&json, text, &fault) == SOV_OK);
    u32 s = json_member(&json, 0, STR("s")), n = json_member(&json, 0, STR("n"));
    u32 o = json_member(&json, 0, STR("o")), l = json_member(&json, 0, STR("l"));
    CHECK(json.nodes[s].kind == JSON_STRING && json.nodes[s].escaped);
    CHECK(json_string_equal(&json, s, STR("a\xc3\xa9\n")));
    CHECK(!json_string_equal(&json, s, STR("a\xc3\xa9")));
    CHECK(!json_string_equal(&json, s, STR("a\xc3\xa9\nb")));
    CHECK(!json_string_equal(&json, n, STR("a")));
    CHECK(json.nodes[n].kind == JSON_ARRAY && json.nodes[n].n == 5);
    CHECK(str_equal(json_source(&json, o), STR("{\"k\":{}}")));
    CHECK(json.nodes[l].kind == JSON_TRUE);
    CHECK(json_member(&json, 0, STR("k")) == JSON_NONE);
    CHECK(json_member(&json, o, STR("k")) != JSON_NONE);
    static const struct {
        bool is_u64, is_i64, is_f64;
    } kinds[] = {{true, false, true},
                 {false, true, true},
                 {false, false, true},
                 {false, false, false},
                 {false, false, true}};
    u32 k = 0;
    for (u32 i = json_first(n); i != json_end(&json, n); i = json_next(&json, i), k++) {
        u64 u = 0;
        i64 signed_value = 0;
        f64 f = 0;
        CHECK(json_u64(&json, i, &u) == kinds[k].is_u64);
        CHECK(json_i64(&json, i, &signed_value) == kinds[k].is_i64);
        CHECK(json_f64(&json, i, &f) == kinds[k].is_f64);
    }
    CHECK(k == 5);
}

// Whatever is done to a text, the parser says yes or no, and yes means that nodes and text agree.
static void damaged_texts_are_survived(void) {
    struct str text =
        STR("{\"a\":[1,-2.5e3,\"x\\ud83d\\ude00\\\\\"],\"b\":{\"c\":null},\"d\":true}");
    struct json json;
    struct sov_fault fault;
    for (usize len = 0; len < text.len; len++) {
        CHECK(parse(&json, (struct str){text.data, len}, &fault) == SOV_ERR_FORMAT);
        CHECK(fault.message[0] != 0);
    }
    static u8 copy[256];
    memcpy(copy, text.data, text.len);
    u32 n_accepted = 0;
    for (usize at = 0; at < text.len; at++) {
        for (u32 byte = 0; byte < 256; byte++) {
            copy[at] = (u8)byte;
            enum sov_status status = parse(&json, (struct str){copy, text.len}, &fault);
            CHECK(status == SOV_OK || fault.message[0] != 0);
            if (status != SOV_OK) continue;
            n_accepted++;
            CHECK(json.nodes[0].next == json.n_nodes && json.nodes[0].kind == JSON_OBJECT);
        }
        copy[at] = text.data[at];
    }
    CHECK(n_accepted > text.len); // at least each byte as it was, and other letters
}

// JSON=FILE: texts as {u32 length, bytes}; one line for each.
static void dump(void) {
    const char *path = test_option("JSON");
    if (path == NULL) return;
    static char memory[8 << 20];
    struct str rest = test_read_file(path);
    while (rest.len >= 4) {
        struct str text = {rest.data + 4, load_u32(rest.data)};
        CHECK(text.len <= rest.len - 4);
        struct json json;
        struct sov_fault fault;
        enum sov_status status = parse(&json, text, &fault);
        struct text t = TEXT_OVER_ARRAY(memory);
        if (status == SOV_OK) put_value(&t, &json);
        CHECK(!t.truncated);
        text_put(&t, status == SOV_OK ? STR("\n") : STR("refused\n"));
        CHECK(platform_write(PLATFORM_STDOUT, t.data, t.len, &fault) == SOV_OK);
        rest = (struct str){text.data + text.len, rest.len - 4 - text.len};
    }
}

static const struct test_case cases[] = {
    {"texts_are_read", texts_are_read},
    {"texts_are_refused", texts_are_refused},
    {"limits_are_kept", limits_are_kept},
    {"many_names_are_sorted", many_names_are_sorted},
    {"nodes_are_read", nodes_are_read},
    {"damaged_texts_are_survived", damaged_texts_are_survived},
    {"dump", dump},
};

int program_main(const struct platform_start *start) {
    return test_main(start, "test_json", cases, COUNT_OF(cases));
}
