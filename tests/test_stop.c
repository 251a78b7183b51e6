// SPDX-License-Identifier: Apache-2.0
// Stop strings: a table of texts, then random ones against the definition, cut into random pieces.
#include "freestanding/mem.h"
#include "request/stop.h"
#include "test.h"

#define TEXT_BYTES_MAX 512

// Feeds the text in pieces of `step` bytes (0: random ones); gives what is shown and whether a stop
// was found. Checks on the way that nothing is held that could be shown (P3).
struct result {
    u8 shown[TEXT_BYTES_MAX + STOP_BYTES_MAX];
    usize n;
    bool found;
};

// Whether `held` is a beginning of some string.
static bool may_become_match(const struct stop_matcher *m, struct str held) {
    for (u32 i = 0; i < m->n_strings; i++) {
        if (held.len < m->strings[i].len && str_starts_with(m->strings[i], held)) return true;
    }
    return held.len == 0;
}

static struct result feed_all(struct stop_matcher *m, struct str text, usize step,
                              struct test_random *random) {
    struct result r = {.n = 0};
    stop_reset(m);
    for (usize at = 0; at < text.len;) {
        usize n = step > 0 ? step : 1 + test_random_below(random, 7);
        n = MIN(n, text.len - at);
        r.n += stop_feed(m, (struct str){text.data + at, n}, r.shown + r.n);
        at += n;
        CHECK(m->found || may_become_match(m, (struct str){m->held, m->n_held}));
        CHECK(m->found || r.n + m->n_held == at);
    }
    r.n += stop_finish(m, r.shown + r.n);
    r.found = m->found;
    return r;
}

// --- a table ---

static const struct {
    const char *text, *stops[3], *shown;
    bool found;
} rows[] = {
    {"abXYcd", {"XY"}, "ab", true},
    {"abXYcd", {"XZ"}, "abXYcd", false},
    {"abXYcd", {"bXYc"}, "a", true},
    {"abXYcd", {"YX"}, "abXYcd", false},
    {"abXYcd", {"Y", "XY"}, "ab", true},
    {"abXYcd", {"XY", "Y"}, "ab", true},
    {"abXYcd", {"Y"}, "abX", true},
    {"abXYcd", {"bXYc", "X"}, "ab", true}, // X is complete first
    {"abXYcd", {"abXYcd"}, "", true},
    {"abXYcd", {"abXYcde"}, "abXYcd", false}, // held to the end, then shown
    {"abXYcd", {"cde", "d"}, "abXYc", true},
    {"aaab", {"aab"}, "a", true}, // the match begins inside a failed one
    {"ababac", {"abac"}, "ab", true},
    {"XXXY", {"XXY"}, "X", true},
    {"", {"x"}, "", false},
    {"x", {"x"}, "", true},
    {"a\xe2\x82\xac", {"\xe2\x82\xac"}, "a", true},
    {"a\xe2\x82\xad", {"\xe2\x82\xac"}, "a\xe2\x82\xad", false},
    {"no stops", {NULL}, "no stops", false},
};

static void test_table(void) {
    static struct stop_matcher m;
    struct test_random random = {1};
    for (usize i = 0; i < COUNT_OF(rows); i++) {
        struct str stops[COUNT_OF(rows[i].stops)];
        u32 n = 0;
        while (n < COUNT_OF(stops) && rows[i].stops[n] != NULL) {
            stops[n] = str_from_z(rows[i].stops[n]);
            n++;
        }
        struct sov_fault fault = {0};
        CHECK(stop_init(&m, stops, n, &fault) == SOV_OK);
        for (usize step = 0; step <= 7; step++) {
            struct result r = feed_all(&m, str_from_z(rows[i].text), step, &random);
            bool same = str_equal((struct str){r.shown, r.n}, str_from_z(rows[i].shown));
            CHECK_MSG(same && r.found == rows[i].found, "row %zu, pieces of %zu: shown \"%.*s\"", i,
                      step, (int)r.n, (const char *)r.shown);
        }
    }
}

// --- random texts ---

// P1 by its words: the first end of a match; of the strings that end there, the longest.
static usize find_stop(struct str text, const struct str *stops, u32 n_stops, bool *found) {
    for (usize end = 1; end <= text.len; end++) {
        usize longest = 0;
        for (u32 i = 0; i < n_stops; i++) {
            if (stops[i].len > end) continue;
            struct str tail = {text.data + end - stops[i].len, stops[i].len};
            if (str_equal(tail, stops[i])) longest = MAX(longest, stops[i].len);
        }
        *found = longest > 0;
        if (*found) return end - longest;
    }
    *found = false;
    return text.len;
}

static void test_random_texts(void) {
    static struct stop_matcher m;
    struct test_random random = {20261130};
    u32 n_found = 0;
    const u32 n_rounds = test_option("FULL") != NULL ? 200000 : 4000;
    for (u32 round = 0; round < n_rounds; round++) {
        u8 text[TEXT_BYTES_MAX], bytes[STOP_STRINGS_MAX][12];
        usize len = test_random_below(&random, 60);
        for (usize i = 0; i < len; i++) text[i] = (u8)('a' + test_random_below(&random, 2));
        struct str stops[STOP_STRINGS_MAX];
        u32 n_stops = 1 + test_random_below(&random, 4);
        for (u32 i = 0; i < n_stops; i++) {
            usize n = 1 + test_random_below(&random, sizeof bytes[i]);
            for (usize k = 0; k < n; k++) bytes[i][k] = (u8)('a' + test_random_below(&random, 2));
            stops[i] = (struct str){bytes[i], n};
        }
        struct sov_fault fault = {0};
        CHECK(stop_init(&m, stops, n_stops, &fault) == SOV_OK);
        struct str whole = {text, len};
        bool found = false;
        usize cut = find_stop(whole, stops, n_stops, &found);
        struct result r = feed_all(&m, whole, round % 4, &random);
        CHECK_MSG(r.found == found &&
                      str_equal((struct str){r.shown, r.n}, (struct str){text, cut}),
                  "round %u: \"%.*s\" shown, %zu bytes expected", round, (int)r.n,
                  (const char *)r.shown, cut);
        n_found += found ? 1 : 0;
    }
    CHECK(n_found > n_rounds / 4 && n_found < n_rounds); // both kinds of text were met
}

static void test_longest_strings(void) {
    static struct stop_matcher m;
    static u8 bytes[STOP_STRINGS_MAX][STOP_BYTES_MAX];
    struct str stops[STOP_STRINGS_MAX + 1];
    for (u32 i = 0; i < STOP_STRINGS_MAX; i++) {
        memset(bytes[i], 'a', STOP_BYTES_MAX);
        bytes[i][STOP_BYTES_MAX - 1] = (u8)('b' + i);
        stops[i] = (struct str){bytes[i], STOP_BYTES_MAX};
    }
    struct sov_fault fault = {0};
    CHECK(stop_init(&m, stops, STOP_STRINGS_MAX, &fault) == SOV_OK);
    u8 text[TEXT_BYTES_MAX];
    memset(text, 'a', sizeof text);
    text[sizeof text - 1] = 'q'; // 255 times a and this one are the last string
    struct test_random random = {2};
    struct result r = feed_all(&m, (struct str){text, sizeof text}, 0, &random);
    CHECK(r.found && r.n == TEXT_BYTES_MAX - STOP_BYTES_MAX);
    text[sizeof text - 1] = 'z';
    r = feed_all(&m, (struct str){text, sizeof text}, 0, &random);
    CHECK(!r.found && r.n == TEXT_BYTES_MAX);
}

static void test_limits(void) {
    static struct stop_matcher m;
    static u8 long_bytes[STOP_BYTES_MAX + 1];
    const struct str one = STR("x"), empty = {0}, too_long = {long_bytes, sizeof long_bytes};
    struct str many[STOP_STRINGS_MAX + 1];
    for (u32 i = 0; i < COUNT_OF(many); i++) many[i] = one;
    struct sov_fault fault = {0};
    CHECK(stop_init(&m, many, STOP_STRINGS_MAX, &fault) == SOV_OK);
    CHECK(stop_init(&m, many, STOP_STRINGS_MAX + 1, &fault) == SOV_ERR_ARGUMENT);
    CHECK(stop_init(&m, &empty, 1, &fault) == SOV_ERR_ARGUMENT);
    CHECK(stop_init(&m, &too_long, 1, &fault) == SOV_ERR_ARGUMENT);
    CHECK(stop_init(&m, NULL, 0, &fault) == SOV_OK);
}

static const struct test_case cases[] = {
    {"table", test_table},
    {"random_texts", test_random_texts},
    {"longest_strings", test_longest_strings},
    {"limits", test_limits},
};

int program_main(const struct platform_start *start) {
    return test_main(start, "test_stop", cases, COUNT_OF(cases));
}
