// SPDX-License-Identifier: Apache-2.0
// libFuzzer harness of the JSON parser. Its input is the text itself. A text that is accepted is
// written out again from its nodes and read once more: both readings must agree in every node, and
// a plain recursive checker of the grammar must agree that it is JSON.
//
// Text and nodes lie in mallocs of exactly their size, so that the sanitizer sees a step too far.
#include "freestanding/json.h"
#include "freestanding/mem.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const u8 *data, usize bytes);

// --- the grammar, plainly ---
// Each returns where its value ends, or 0 when there is none (no value ends at 0).

static usize blanks(struct str s, usize at) {
    while (at < s.len && (s.data[at] == ' ' || (s.data[at] >= 9 && s.data[at] <= 13))) {
        if (s.data[at] == 11 || s.data[at] == 12) break;
        at++;
    }
    return at;
}

static bool is_at(struct str s, usize at, u8 byte) { return at < s.len && s.data[at] == byte; }

static usize digits(struct str s, usize at) {
    while (at < s.len && s.data[at] >= '0' && s.data[at] <= '9') at++;
    return at;
}

static usize plain_number(struct str s, usize at) {
    at += is_at(s, at, '-');
    usize end = digits(s, at);
    if (end == at || (s.data[at] == '0' && end > at + 1)) return 0;
    at = end;
    if (is_at(s, at, '.')) {
        end = digits(s, at + 1);
        if (end == at + 1) return 0;
        at = end;
    }
    if (is_at(s, at, 'e') || is_at(s, at, 'E')) {
        at++;
        at += is_at(s, at, '+') || is_at(s, at, '-');
        end = digits(s, at);
        if (end == at) return 0;
        at = end;
    }
    return at;
}

static u32 hex(struct str s, usize at) { // above 0xffff: no four digits
    u32 value = 0;
    for (usize i = at; i < at + 4; i++) {
        if (i >= s.len) return 0x10000;
        u8 c = s.data[i];
        u32 digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10u
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10u
                                           : 16u;
        if (digit == 16) return 0x10000;
        value = value * 16 + digit;
    }
    return value;
}

static usize plain_string(struct str s, usize at) {
    if (!is_at(s, at, '"')) return 0;
    for (at++; at < s.len && s.data[at] != '"';) {
        if (s.data[at] < 0x20) return 0;
        if (s.data[at] != '\\') {
            u32 code_point = 0, n = utf8_decode(s, at, &code_point);
            if (n == 0) return 0;
            at += n;
            continue;
        }
        at++;
        if (at == s.len) return 0;
        u8 c = s.data[at++];
        if (c != 'u') {
            static const char simple[] = "\"\\/bfnrt";
            bool known = false;
            for (usize i = 0; i + 1 < sizeof simple; i++) known = known || simple[i] == (char)c;
            if (!known) return 0;
            continue;
        }
        u32 unit = hex(s, at);
        at += 4;
        if (unit > 0xffff || (unit >= 0xdc00 && unit <= 0xdfff)) return 0;
        if (unit < 0xd800 || unit > 0xdbff) continue;
        if (!is_at(s, at, '\\') || !is_at(s, at + 1, 'u')) return 0;
        unit = hex(s, at + 2);
        if (unit < 0xdc00 || unit > 0xdfff) return 0;
        at += 6;
    }
    return at < s.len ? at + 1 : 0;
}

static usize plain_value(struct str s, usize at, u32 depth) {
    if (depth > JSON_DEPTH_MAX) return 0;
    at = blanks(s, at);
    if (at == s.len) return 0;
    bool object = s.data[at] == '{';
    if (object || s.data[at] == '[') {
        u8 close = object ? '}' : ']';
        at = blanks(s, at + 1);
        if (is_at(s, at, close)) return depth == JSON_DEPTH_MAX ? 0 : at + 1;
        for (;; at++) {
            if (object) {
                at = plain_string(s, blanks(s, at));
                if (at == 0) return 0;
                at = blanks(s, at);
                if (!is_at(s, at, ':')) return 0;
                at++;
            }
            at = plain_value(s, at, depth + 1);
            if (at == 0) return 0;
            at = blanks(s, at);
            if (is_at(s, at, close)) return at + 1;
            if (!is_at(s, at, ',')) return 0;
        }
    }
    if (s.data[at] == '"') return plain_string(s, at);
    struct str rest = {s.data + at, s.len - at};
    if (str_starts_with(rest, STR("null")) || str_starts_with(rest, STR("true"))) return at + 4;
    if (str_starts_with(rest, STR("false"))) return at + 5;
    return plain_number(s, at);
}

// Whether some object has the same name twice, by comparing all pairs.
static bool has_name_twice(const struct json *json) {
    for (u32 object = 0; object < json->n_nodes; object++) {
        if (json->nodes[object].kind != JSON_OBJECT) continue;
        for (u32 i = json_first(object); i != json_end(json, object); i = json_next(json, i + 1)) {
            u8 *name = malloc(json->nodes[i].len + 1);
            assert(name != NULL);
            usize len = json_string_copy(json, i, name);
            assert(len <= json->nodes[i].len);
            assert(json_string_equal(json, i, (struct str){name, len}));
            bool twice = json_member(json, object, (struct str){name, len}) != i + 1;
            free(name);
            if (twice) return true;
        }
    }
    return false;
}

// --- written again ---

static void put_node(struct text *t, const struct json *json, u32 i) {
    const struct json_node *node = &json->nodes[i];
    if (node->kind == JSON_STRING) {
        u8 *meaning = malloc(node->len + 1);
        assert(meaning != NULL);
        usize len = json_string_copy(json, i, meaning);
        text_put_json_string(t, (struct str){meaning, len});
        free(meaning);
    } else if (node->kind == JSON_OBJECT || node->kind == JSON_ARRAY) {
        text_put_byte(t, node->kind == JSON_OBJECT ? '{' : '[');
        u32 n = 0;
        for (u32 k = json_first(i); k != json_end(json, i); k = json_next(json, k), n++) {
            if (n > 0) text_put_byte(t, ',');
            put_node(t, json, k);
            if (node->kind == JSON_ARRAY) continue;
            text_put_byte(t, ':');
            put_node(t, json, ++k);
        }
        assert(n == node->n);
        text_put_byte(t, node->kind == JSON_OBJECT ? '}' : ']');
    } else {
        text_put(t, json_source(json, i));
        f64 value = 0;
        i64 whole = 0;
        u64 natural = 0;
        if (json_i64(json, i, &whole)) assert(json_f64(json, i, &value) && value == (f64)whole);
        if (json_u64(json, i, &natural)) assert(json_f64(json, i, &value) && value == (f64)natural);
    }
}

static void check_again(const struct json *json) {
    usize room = 6 * json->text.len + 16;
    char *memory = malloc(room);
    struct json_node *nodes = malloc(json->n_nodes * sizeof(struct json_node));
    assert(memory != NULL && nodes != NULL);
    struct text t = text_over(memory, room);
    put_node(&t, json, 0);
    assert(!t.truncated);
    struct json again;
    struct sov_fault fault = {0};
    struct str text = {(const u8 *)t.data, t.len};
    enum sov_status status = json_parse(&again, text, nodes, json->n_nodes, &fault);
    assert(status == SOV_OK && again.n_nodes == json->n_nodes);
    for (u32 i = 0; i < again.n_nodes; i++) {
        assert(again.nodes[i].kind == json->nodes[i].kind);
        assert(again.nodes[i].n == json->nodes[i].n && again.nodes[i].next == json->nodes[i].next);
    }
    free(memory);
    free(nodes);
}

int LLVMFuzzerTestOneInput(const u8 *data, usize bytes) {
    u8 *copy = malloc(bytes + 1);
    assert(copy != NULL);
    memcpy(copy + 1, data, bytes); // the end of the text is the end of the block
    struct str text = {copy + 1, bytes};
    u32 capacity = json_nodes_max(bytes);
    struct json_node *nodes = malloc(capacity * sizeof *nodes);
    assert(nodes != NULL);
    struct json json;
    struct sov_fault fault = {0};
    enum sov_status status = json_parse(&json, text, nodes, capacity, &fault);
    usize end = plain_value(text, 0, 0);
    bool plain = end != 0 && blanks(text, end) == text.len;
    if (status == SOV_OK) {
        assert(plain && json.nodes[0].next == json.n_nodes && !has_name_twice(&json));
        check_again(&json);
    } else {
        assert(fault.message[0] != 0);
        bool twice = plain &&
                     str_starts_with((struct str){(const u8 *)fault.message, 8}, STR("at byte "));
        assert(!plain || twice);
        // Of what both call JSON, only a name that stands twice is refused.
        if (plain) assert(status == SOV_ERR_FORMAT && has_name_twice(&json));
    }
    free(nodes);
    free(copy);
    return 0;
}
