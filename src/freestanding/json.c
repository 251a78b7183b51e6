// SPDX-License-Identifier: Apache-2.0
// The JSON parser: a machine with one state and a stack of the containers that are open. The stack
// is a list through the open nodes themselves (`link`). When an object closes, its names, linked
// the same way, are sorted by what they mean; equal ones are neighbours then.
//
//   state       what may come                          then
//   VALUE       a value                                BEHIND, or inside a container
//   FIRST       a value or ]                           as VALUE
//   FIRST_NAME  a name or }                            COLON is taken with the name: VALUE
//   NAME        a name                                 VALUE
//   BEHIND      , or the closing bracket; at depth 0   VALUE, NAME, BEHIND
//               the end of the text
//
// UTF-8 sorts bytewise as its code points do, so names with and without escapes have one order.
#include "freestanding/json.h"
#include "freestanding/mem.h"

enum state { STATE_VALUE, STATE_FIRST, STATE_FIRST_NAME, STATE_NAME, STATE_BEHIND };

struct parser {
    struct json *json;
    u32 capacity, at, depth;
    u32 container; // the innermost open one, or JSON_NONE; its link is the one around it
    struct sov_fault *fault;
};

u32 json_nodes_max(usize text_bytes) {
    assert(text_bytes <= JSON_BYTES_MAX);
    // Every value but the last of a container is followed by a byte of punctuation.
    return (u32)(text_bytes / 2) + JSON_DEPTH_MAX + 1;
}

// --- errors ---

// "at byte 17 (line 2): a comma or ] was expected, found "x""
static enum sov_status refuse(const struct parser *p, u32 at, enum sov_status status,
                              const char *what) {
    struct str text = p->json->text;
    u32 line = 1;
    for (u32 i = 0; i < at; i++) line += text.data[i] == '\n';
    char place[48], found[24];
    struct text t = TEXT_OVER_ARRAY(place);
    text_format(&t, "at byte %u", at);
    if (line > 1) text_format(&t, " (line %u)", line);
    t = TEXT_OVER_ARRAY(found);
    if (at >= text.len) {
        text_put(&t, STR("the end"));
    } else if (text.data[at] < 0x20 || text.data[at] >= 0x7f) {
        text_format(&t, "byte 0x%02x", text.data[at]);
    } else {
        text_format(&t, "%c", text.data[at]);
    }
    return fault_set(p->fault, status, "%s: %s, found %s", place, what, found);
}

static enum sov_status refuse_format(const struct parser *p, u32 at, const char *what) {
    return refuse(p, at, SOV_ERR_FORMAT, what);
}

// --- bytes ---

static bool at_end(const struct parser *p) { return p->at == p->json->text.len; }
// The byte at the cursor; 0, which begins nothing, at the end.
static u8 peek(const struct parser *p) { return at_end(p) ? 0 : p->json->text.data[p->at]; }

static void skip_blanks(struct parser *p) {
    while (peek(p) == ' ' || peek(p) == '\t' || peek(p) == '\n' || peek(p) == '\r') p->at++;
}

static bool is_digit(u8 byte) { return byte >= '0' && byte <= '9'; }

// --- strings ---

static bool hex4(struct str s, usize at, u32 *value) {
    u32 sum = 0;
    for (u32 i = 0; i < 4; i++) {
        if (at + i >= s.len) return false;
        u8 c = s.data[at + i], lower = c | 0x20;
        if (!is_digit(c) && (lower < 'a' || lower > 'f')) return false;
        sum = sum << 4 | (u32)(is_digit(c) ? c - '0' : lower - 'a' + 10);
    }
    *value = sum;
    return true;
}

// The character at s[at] between the quotes of a string: bytes it takes, 0 when it is none.
static u32 string_char(struct str s, usize at, u32 *code_point) {
    u8 byte = s.data[at];
    if (byte < 0x20) return 0;
    if (byte != '\\') return utf8_decode(s, at, code_point);
    if (at + 1 == s.len) return 0;
    switch (s.data[at + 1]) {
    case '"': *code_point = '"'; return 2;
    case '\\': *code_point = '\\'; return 2;
    case '/': *code_point = '/'; return 2;
    case 'b': *code_point = '\b'; return 2;
    case 'f': *code_point = '\f'; return 2;
    case 'n': *code_point = '\n'; return 2;
    case 'r': *code_point = '\r'; return 2;
    case 't': *code_point = '\t'; return 2;
    case 'u': break;
    default: return 0;
    }
    u32 high = 0, low = 0;
    if (!hex4(s, at + 2, &high)) return 0;
    *code_point = high;
    if (high < 0xd800 || high > 0xdfff) return 6;
    // Half a pair is no character; with its other half it is one beyond U+FFFF.
    bool pair = high < 0xdc00 && at + 7 < s.len && s.data[at + 6] == '\\' &&
                s.data[at + 7] == 'u' && hex4(s, at + 8, &low) && low >= 0xdc00 && low <= 0xdfff;
    *code_point = 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
    return pair ? 12 : 0;
}

// Orders two strings by what they mean.
static int compare_strings(const struct json *json, u32 a, u32 b) {
    struct str x = json_source(json, a), y = json_source(json, b);
    if (!json->nodes[a].escaped && !json->nodes[b].escaped) return str_compare(x, y);
    usize i = 0, k = 0;
    while (i < x.len && k < y.len) {
        u32 left = 0, right = 0;
        i += string_char(x, i, &left);
        k += string_char(y, k, &right);
        if (left != right) return left < right ? -1 : 1;
    }
    return i < x.len ? 1 : k < y.len ? -1 : 0;
}

// --- nodes ---

static enum sov_status add_node(struct parser *p, enum json_kind kind, u32 begin, u32 *node) {
    struct json *json = p->json;
    if (json->n_nodes == p->capacity) {
        return refuse(p, begin, SOV_ERR_LIMIT, "there is no room for more values");
    }
    *node = json->n_nodes++;
    json->nodes[*node] = (struct json_node){.kind = (u8)kind, .begin = begin, .link = JSON_NONE};
    json->nodes[*node].next = json->n_nodes;
    return SOV_OK;
}

// A string whose opening quote is at the cursor.
static enum sov_status parse_string(struct parser *p) {
    u32 node = 0;
    enum sov_status status = add_node(p, JSON_STRING, p->at + 1, &node);
    if (status != SOV_OK) return status;
    struct json_node *string = &p->json->nodes[node];
    p->at++;
    while (peek(p) != '"') {
        if (at_end(p)) return refuse_format(p, p->at, "the string needs a closing quote");
        u32 code_point = 0;
        u32 n = string_char(p->json->text, p->at, &code_point);
        if (n == 0) {
            return refuse_format(p, p->at,
                                 peek(p) == '\\'  ? "an escape of a whole character was expected"
                                 : peek(p) < 0x20 ? "a control character must be escaped"
                                                  : "a character in UTF-8 was expected");
        }
        string->escaped = string->escaped || peek(p) == '\\';
        p->at += n;
    }
    string->len = p->at - string->begin;
    p->at++;
    return SOV_OK;
}

static bool skip_digits(struct parser *p) {
    u32 begin = p->at;
    while (is_digit(peek(p))) p->at++;
    return p->at > begin;
}

// -? (0 | [1-9][0-9]*) (. [0-9]+)? ([eE] [+-]? [0-9]+)?
static enum sov_status parse_number(struct parser *p) {
    u32 node = 0;
    enum sov_status status = add_node(p, JSON_NUMBER, p->at, &node);
    if (status != SOV_OK) return status;
    if (peek(p) == '-') p->at++;
    if (peek(p) == '0') {
        p->at++;
        if (is_digit(peek(p))) {
            return refuse_format(p, p->at, "no digit was expected after a leading 0");
        }
    } else if (!skip_digits(p)) {
        return refuse_format(p, p->at, "a digit was expected");
    }
    if (peek(p) == '.') {
        p->at++;
        if (!skip_digits(p)) return refuse_format(p, p->at, "a digit was expected");
    }
    if (peek(p) == 'e' || peek(p) == 'E') {
        p->at++;
        if (peek(p) == '+' || peek(p) == '-') p->at++;
        if (!skip_digits(p)) return refuse_format(p, p->at, "a digit was expected");
    }
    p->json->nodes[node].len = p->at - p->json->nodes[node].begin;
    return SOV_OK;
}

static enum sov_status parse_word(struct parser *p) {
    static const struct {
        struct str word;
        enum json_kind kind;
    } words[] = {
        {{(const u8 *)"null", 4}, JSON_NULL},
        {{(const u8 *)"true", 4}, JSON_TRUE},
        {{(const u8 *)"false", 5}, JSON_FALSE},
    };
    struct str rest = {p->json->text.data + p->at, p->json->text.len - p->at};
    for (u32 i = 0; i < COUNT_OF(words); i++) {
        if (!str_starts_with(rest, words[i].word)) continue;
        u32 node = 0;
        enum sov_status status = add_node(p, words[i].kind, p->at, &node);
        if (status != SOV_OK) return status;
        p->json->nodes[node].len = (u32)words[i].word.len;
        p->at += (u32)words[i].word.len;
        return SOV_OK;
    }
    return refuse_format(p, p->at, "a value was expected");
}

static enum sov_status open_container(struct parser *p, enum json_kind kind) {
    if (p->depth == JSON_DEPTH_MAX) {
        return refuse(p, p->at, SOV_ERR_LIMIT, "values are nested too deeply");
    }
    u32 node = 0;
    enum sov_status status = add_node(p, kind, p->at, &node);
    if (status != SOV_OK) return status;
    p->json->nodes[node].link = p->container;
    p->container = node;
    p->depth++;
    p->at++;
    return SOV_OK;
}

// --- names twice ---

// Merges two sorted lists of names; of equal ones that of `a` comes first.
static u32 merge_names(const struct json *json, u32 a, u32 b) {
    struct json_node *nodes = json->nodes;
    u32 head = JSON_NONE, tail = JSON_NONE;
    while (a != JSON_NONE || b != JSON_NONE) {
        bool take_a = b == JSON_NONE || (a != JSON_NONE && compare_strings(json, a, b) <= 0);
        u32 taken = take_a ? a : b;
        if (take_a) {
            a = nodes[a].link;
        } else {
            b = nodes[b].link;
        }
        if (tail == JSON_NONE) {
            head = taken;
        } else {
            nodes[tail].link = taken;
        }
        tail = taken;
    }
    if (tail != JSON_NONE) nodes[tail].link = JSON_NONE;
    return head;
}

// The first name of the object that stood there before, or JSON_NONE. Merge sort without recursion:
// runs[i] is a sorted list of 2^i names or none, as the bits of a counter.
static u32 repeated_name(const struct json *json, u32 object) {
    u32 runs[32];
    for (u32 i = 0; i < COUNT_OF(runs); i++) runs[i] = JSON_NONE;
    for (u32 name = json_first(object); name != json_end(json, object);) {
        u32 next = json->nodes[name + 1].next, run = name, i = 0;
        json->nodes[name].link = JSON_NONE;
        for (; runs[i] != JSON_NONE; i++) {
            run = merge_names(json, runs[i], run);
            runs[i] = JSON_NONE;
        }
        runs[i] = run;
        name = next;
    }
    u32 sorted = JSON_NONE;
    for (u32 i = 0; i < COUNT_OF(runs); i++) sorted = merge_names(json, runs[i], sorted);
    u32 first = JSON_NONE;
    for (u32 i = sorted; i != JSON_NONE && json->nodes[i].link != JSON_NONE;) {
        u32 later = json->nodes[i].link;
        if (compare_strings(json, i, later) == 0 && later < first) first = later;
        i = later;
    }
    return first;
}

static enum sov_status close_container(struct parser *p) {
    struct json *json = p->json;
    u32 node = p->container;
    struct json_node *container = &json->nodes[node];
    p->at++;
    container->len = p->at - container->begin;
    container->next = json->n_nodes;
    p->container = container->link;
    p->depth--;
    if (container->kind != JSON_OBJECT) return SOV_OK;
    u32 twice = repeated_name(json, node);
    if (twice == JSON_NONE) return SOV_OK;
    struct str name = json_source(json, twice);
    return fault_set(p->fault, SOV_ERR_FORMAT, "at byte %u: the name \"%.*s\" stands twice",
                     json->nodes[twice].begin - 1, STR_ARG(name));
}

// --- the machine ---

static enum sov_status parse_value(struct parser *p, enum state *state) {
    u8 byte = peek(p);
    *state = byte == '[' ? STATE_FIRST : byte == '{' ? STATE_FIRST_NAME : STATE_BEHIND;
    if (byte == '[') return open_container(p, JSON_ARRAY);
    if (byte == '{') return open_container(p, JSON_OBJECT);
    if (byte == '"') return parse_string(p);
    if (byte == '-' || is_digit(byte)) return parse_number(p);
    return parse_word(p);
}

static enum sov_status parse_name(struct parser *p) {
    if (peek(p) != '"') return refuse_format(p, p->at, "a name in quotes was expected");
    enum sov_status status = parse_string(p);
    if (status != SOV_OK) return status;
    p->json->nodes[p->container].n++;
    skip_blanks(p);
    if (peek(p) != ':') return refuse_format(p, p->at, "a colon was expected");
    p->at++;
    return SOV_OK;
}

// What stands behind a value inside a container.
static enum sov_status parse_behind(struct parser *p, enum state *state) {
    bool is_object = p->json->nodes[p->container].kind == JSON_OBJECT;
    if (peek(p) == ',') {
        p->at++;
        *state = is_object ? STATE_NAME : STATE_VALUE;
        return SOV_OK;
    }
    if (peek(p) == (is_object ? '}' : ']')) return close_container(p);
    return refuse_format(p, p->at,
                         is_object ? "a comma or } was expected" : "a comma or ] was expected");
}

enum sov_status json_parse(struct json *json, struct str text, struct json_node *nodes,
                           u32 capacity, struct sov_fault *fault) {
    *json = (struct json){.text = text, .nodes = nodes};
    if (text.len > JSON_BYTES_MAX) {
        return fault_set(fault, SOV_ERR_LIMIT, "%llu bytes of JSON, at most %u", (u64)text.len,
                         JSON_BYTES_MAX);
    }
    struct parser p = {.json = json, .capacity = capacity, .container = JSON_NONE, .fault = fault};
    enum state state = STATE_VALUE;
    for (;;) {
        skip_blanks(&p);
        enum sov_status status = SOV_OK;
        if (state == STATE_BEHIND && p.container == JSON_NONE) {
            if (at_end(&p)) return SOV_OK;
            return refuse_format(&p, p.at, "the end was expected");
        }
        if (state == STATE_BEHIND) {
            status = parse_behind(&p, &state);
        } else if ((state == STATE_FIRST && peek(&p) == ']') ||
                   (state == STATE_FIRST_NAME && peek(&p) == '}')) {
            state = STATE_BEHIND;
            status = close_container(&p);
        } else if (state == STATE_FIRST_NAME || state == STATE_NAME) {
            status = parse_name(&p);
            state = STATE_VALUE;
        } else {
            bool is_element = p.container != JSON_NONE && nodes[p.container].kind == JSON_ARRAY;
            if (is_element) nodes[p.container].n++;
            status = parse_value(&p, &state);
        }
        if (status != SOV_OK) return status;
    }
}

// --- reading ---

struct str json_source(const struct json *json, u32 node) {
    assert(node < json->n_nodes);
    return (struct str){json->text.data + json->nodes[node].begin, json->nodes[node].len};
}

u32 json_first(u32 node) { return node + 1; }
u32 json_end(const struct json *json, u32 node) { return json_next(json, node); }

u32 json_next(const struct json *json, u32 node) {
    assert(node < json->n_nodes);
    return json->nodes[node].next;
}

u32 json_member(const struct json *json, u32 object, struct str name) {
    assert(json->nodes[object].kind == JSON_OBJECT);
    for (u32 i = json_first(object); i != json_end(json, object); i = json_next(json, i + 1)) {
        if (json_string_equal(json, i, name)) return i + 1;
    }
    return JSON_NONE;
}

bool json_string_equal(const struct json *json, u32 node, struct str s) {
    if (json->nodes[node].kind != JSON_STRING) return false;
    struct str source = json_source(json, node);
    if (!json->nodes[node].escaped) return str_equal(source, s);
    usize at = 0;
    for (usize i = 0; i < source.len;) {
        u32 code_point = 0;
        u8 bytes[4];
        i += string_char(source, i, &code_point);
        u32 n = utf8_encode(code_point, bytes);
        if (n > s.len - at || memcmp(bytes, s.data + at, n) != 0) return false;
        at += n;
    }
    return at == s.len;
}

usize json_string_copy(const struct json *json, u32 node, u8 *out) {
    assert(json->nodes[node].kind == JSON_STRING);
    struct str source = json_source(json, node);
    if (!json->nodes[node].escaped) {
        if (source.len > 0) memcpy(out, source.data, source.len);
        return source.len;
    }
    usize len = 0;
    for (usize i = 0; i < source.len;) {
        u32 code_point = 0;
        u8 bytes[4];
        i += string_char(source, i, &code_point); // no escape is shorter than what it means
        u32 n = utf8_encode(code_point, bytes);
        memcpy(out + len, bytes, n);
        len += n;
    }
    return len;
}

bool json_u64(const struct json *json, u32 node, u64 *value) {
    if (json->nodes[node].kind != JSON_NUMBER) return false;
    return text_parse_u64(json_source(json, node), value);
}

bool json_i64(const struct json *json, u32 node, i64 *value) {
    if (json->nodes[node].kind != JSON_NUMBER) return false;
    return text_parse_i64(json_source(json, node), value);
}

bool json_f64(const struct json *json, u32 node, f64 *value) {
    if (json->nodes[node].kind != JSON_NUMBER) return false;
    return text_parse_f64(json_source(json, node), value);
}
