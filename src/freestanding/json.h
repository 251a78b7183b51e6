// SPDX-License-Identifier: Apache-2.0
// JSON texts (RFC 8259), read strictly into an array of nodes that the caller owns. Nothing is
// copied: a node says where its value stands in the text, which must stay.
//
// J1. What the grammar does not allow is refused, and so are: bytes that are not UTF-8 (RFC 3629),
//     escapes of half a surrogate pair, a byte order mark, a name twice in one object, and nesting
//     deeper than JSON_DEPTH_MAX. A text that is accepted means the same to every reader.
// J2. No recursion, no allocation. Time is linear in the text, times the logarithm of the number of
//     names in one object.
// J3. An error names the byte (from 0) and, in a text of several lines, the line (from 1).
#pragma once
#include "freestanding/status.h"
#include "freestanding/text.h"

#define JSON_BYTES_MAX (1u << 30) // of one text
#define JSON_DEPTH_MAX 64         // objects and arrays inside each other
#define JSON_NONE 0xffffffffu     // no such node

enum json_kind {
    JSON_NULL,
    JSON_FALSE,
    JSON_TRUE,
    JSON_NUMBER,
    JSON_STRING,
    JSON_ARRAY,
    JSON_OBJECT,
};

// Nodes stand in the order of the text: a value, then what is in it. In an object each member is
// two: the name (a string) and the value.
struct json_node {
    u8 kind;      // enum json_kind
    bool escaped; // a string with a backslash in it
    u32 begin;    // bytes text[begin, begin + len): of a string what is between the quotes
    u32 len;
    u32 n;    // elements of an array, members of an object
    u32 next; // the node behind this one and all that is in it
    u32 link; // of the parser
};

struct json {
    struct str text;
    struct json_node *nodes; // [n_nodes], of the caller; [0] is the whole
    u32 n_nodes;
};

// Nodes that a text of so many bytes has, at most.
u32 json_nodes_max(usize text_bytes);

// Reads one value with white space around it into nodes[capacity]. SOV_ERR_FORMAT for what is not
// JSON, SOV_ERR_LIMIT for what is too long, too deep or has more than `capacity` nodes.
enum sov_status json_parse(struct json *json, struct str text, struct json_node *nodes,
                           u32 capacity, struct sov_fault *fault) MUST_CHECK;

// The bytes of a node: a number, null, true, false, an array or an object as it was written, a
// string without its quotes and with its escapes.
struct str json_source(const struct json *json, u32 node);
// The value of the member of this name, or JSON_NONE.
u32 json_member(const struct json *json, u32 object, struct str name);
// For (u32 i = json_first(j, x); i != json_end(j, x); i = json_next(j, i)): the elements of an
// array, or the names of an object; the value of name i is node i + 1.
u32 json_first(u32 node);
u32 json_end(const struct json *json, u32 node);
u32 json_next(const struct json *json, u32 node);

// Whether the node is a string that means exactly these bytes.
bool json_string_equal(const struct json *json, u32 node, struct str s);
// The meaning of a string, UTF-8, into out[nodes[node].len]; returns its length, which is no more
// than that.
usize json_string_copy(const struct json *json, u32 node, u8 *out);

// A number. False when the node is none or its value does not fit; integers must be written
// without point and exponent. f64 is correctly rounded.
bool json_u64(const struct json *json, u32 node, u64 *value);
bool json_i64(const struct json *json, u32 node, i64 *value);
bool json_f64(const struct json *json, u32 node, f64 *value);
