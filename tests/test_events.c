// SPDX-License-Identifier: Apache-2.0
// Events and their spool: the bytes against digests computed by another program, every rule between
// the fields, and a spool that is cut, damaged, reopened, and appended to again. WRITE=FILE writes
// a spool slowly, for tests/test_events.py to follow.
#include "engine/spool.h"
#include "freestanding/mem.h"
#include "record/sealed.h"
#include "test.h"

#define SEED 20262
#define SEQUENCE 0x1122334455667788ull

static char scratch[512]; // a file beside the program, so that two builds do not meet

// --- events ---

static struct sov_event admitted(void) {
    return (struct sov_event){.type = EVENT_ADMITTED,
                              .previous_state = SEQUENCE_IDLE,
                              .new_state = SEQUENCE_PREFILL,
                              .sampled_token_id = EVENT_NO_TOKEN};
}

static struct sov_event token_event(u32 count, u32 token) {
    return (struct sov_event){
        .type = EVENT_TOKEN,
        .previous_state = count == 1 ? SEQUENCE_PREFILL : SEQUENCE_GENERATE,
        .new_state = SEQUENCE_GENERATE,
        .committed_token_count = count,
        .sampled_token_id = token,
    };
}

static struct sov_event finished(u32 count, enum finish_reason reason) {
    return (struct sov_event){.type = EVENT_FINISHED,
                              .previous_state = SEQUENCE_GENERATE,
                              .new_state = SEQUENCE_IDLE,
                              .committed_token_count = count,
                              .sampled_token_id = EVENT_NO_TOKEN,
                              .finish = reason};
}

// The n-th event of a sequence that generates n_tokens tokens.
static struct sov_event event_at(u32 n, u32 n_tokens, u64 salt) {
    if (n == 0) return admitted();
    if (n <= n_tokens) return token_event(n, (u32)(salt * 31 + n * 7) % 50000);
    return finished(n_tokens, FINISH_LENGTH);
}

static struct event_chain chain_of(u64 sequence_id, u64 salt) {
    struct event_chain chain;
    u8 bytes[16];
    store_u64(bytes, sequence_id);
    store_u64(bytes + 8, salt);
    struct sha256_digest origin = sha256_of((struct str){bytes, sizeof bytes});
    event_chain_begin(&chain, sequence_id, &origin, NULL);
    return chain;
}

static void expect_digest(int line, const struct sha256_digest *digest, const char *hex) {
    char found[SHA256_HEX_BYTES + 1];
    sha256_to_hex(digest, found);
    if (str_equal(str_from_z(found), str_from_z(hex))) return;
    test_fail(__FILE__, line, "digest %s, expected %s", found, hex);
}

// Made with Python's hashlib and struct from the layout in event.h.
static void digests_are_those_of_another_program(void) {
    struct sha256_digest origin = sha256_of(STR("origin"));
    struct event_chain chain;
    event_chain_begin(&chain, SEQUENCE, &origin, NULL);
    struct sov_event event = admitted();
    event_seal(&chain, &event);
    CHECK(event.number == 0 && event.version == EVENT_VERSION && event.sequence_id == SEQUENCE);
    expect_digest(__LINE__, &event.transition_digest,
                  "b02cee32a25ccfe20ecdb00abfd8bdfd3701afecaaeda8a271b042ea6718a807");
    event = token_event(1, 77);
    event.has_receipt = true;
    event.checkpoint_receipt_hash = sha256_of(STR("receipt"));
    event_seal(&chain, &event);
    CHECK(event.number == 1);
    expect_digest(__LINE__, &event.transition_digest,
                  "38a788c7cf983438b5506bb5db14f7883518cb95a79161183632b16ec1feb938");
    event = finished(1, FINISH_STOP);
    event_seal(&chain, &event);
    expect_digest(__LINE__, &event.transition_digest,
                  "1cb9a850f74c2bb894df389f9db3375d337f1e09ff9b2e21531e2697b3fd8800");
    CHECK(sha256_equal(&chain.digest, &event.transition_digest) && chain.next_number == 3);
}

// Sealed, with the salt of the text "salt". Also made with Python's hashlib and struct.
static void sealed_digests_are_those_of_another_program(void) {
    struct sha256_digest salt = sha256_of(STR("salt")), origin = sha256_of(STR("origin"));
    origin = sealed_origin(&salt, &origin);
    expect_digest(__LINE__, &origin,
                  "8f07678f9eb0c1dd6ea4d2731a949973c99d020b4156d72fb65ca8acfb1e432d");
    struct event_chain chain;
    event_chain_begin(&chain, SEQUENCE, &origin, &salt);
    struct sov_event event = admitted();
    event_seal(&chain, &event);
    CHECK(event.version == EVENT_VERSION_SEALED);
    expect_digest(__LINE__, &event.transition_digest,
                  "d32e87a259be100e1c685ed46c57f79dc387622bd8f8f3643d07ab4918258e3a");
    event = token_event(1, 77);
    event.has_receipt = true;
    event.checkpoint_receipt_hash = sha256_of(STR("receipt"));
    event_seal(&chain, &event);
    expect_digest(__LINE__, &event.token_commitment,
                  "82bf9c2c0b74093b32f5667779f9dd9e334f5e115036f5bc33fe2531791ab39e");
    expect_digest(__LINE__, &event.transition_digest,
                  "76913c629e128a5b18aba684a23d2925d0f6d3518556362ff9245c14a9571909");
    event = finished(1, FINISH_STOP);
    event_seal(&chain, &event);
    expect_digest(__LINE__, &event.transition_digest,
                  "ad7ae7dd25ed6b61499fe758bcf6c079fcb2b562483bb1b380c20cb0ec9ae5b3");
}

static void check_event(const struct sov_event *event, bool is_sealed) {
    u8 bytes[EVENT_BYTES_MAX], again[EVENT_BYTES_MAX];
    struct sov_event back;
    struct sov_fault fault = {0};
    usize n = event_bytes(event);
    CHECK(n == (is_sealed ? EVENT_SEALED_BYTES : EVENT_BYTES));
    event_write(event, bytes);
    struct str text = {bytes, n};
    CHECK(event_read(text, &back, &fault) == SOV_OK && event_bytes(&back) == n);
    event_write(&back, again);
    CHECK(memcmp(bytes, again, n) == 0);
    CHECK(back.type == event->type);
    CHECK(back.sampled_token_id == (is_sealed ? EVENT_NO_TOKEN : event->sampled_token_id));
    // No bit can change unnoticed, and no byte be missing or too many.
    for (u32 bit = 0; bit < 8 * n; bit++) {
        bytes[bit / 8] ^= (u8)(1u << bit % 8);
        fault = (struct sov_fault){0};
        CHECK_MSG(event_read(text, &back, &fault) == SOV_ERR_FORMAT, "bit %u", bit);
        CHECK(fault.message[0] != 0);
        bytes[bit / 8] ^= (u8)(1u << bit % 8);
    }
    for (usize other = 0; other <= EVENT_BYTES_MAX; other++) {
        if (other == n) continue;
        fault = (struct sov_fault){0};
        CHECK(event_read((struct str){bytes, other}, &back, &fault) == SOV_ERR_FORMAT);
    }
}

static void events_are_read_as_they_were_written(void) {
    struct sha256_digest salt = sha256_of(STR("salt"));
    for (u32 is_sealed = 0; is_sealed < 2; is_sealed++) {
        struct event_chain chain = chain_of(7, 1);
        if (is_sealed) event_chain_begin(&chain, 7, &chain.digest, &salt);
        for (u32 n = 0; n <= 6; n++) {
            struct sov_event event = event_at(n, 5, 3);
            event_seal(&chain, &event);
            check_event(&event, is_sealed != 0);
        }
    }
}

// The same token at other places, and another token or salt, is another commitment.
static void commitments_tell_nothing_of_each_other(void) {
    struct sha256_digest salts[2] = {sha256_of(STR("salt")), sha256_of(STR("other"))}, seen[27];
    u32 n = 0;
    for (u32 s = 0; s < 2; s++) {
        for (u64 number = 1; number <= 3; number++) {
            for (u32 token = 0; token < 4; token++) {
                seen[n++] = sealed_token(&salts[s], number, token);
            }
        }
        seen[n++] = salts[s];
    }
    for (u32 i = 0; i < n; i++) {
        for (u32 k = 0; k < i; k++) CHECK(!sha256_equal(&seen[i], &seen[k]));
    }
}

// Bytes with a digest of their own that no engine writes.
static void contradictions_are_refused(void) {
    static const struct {
        u32 of, offset; // which event; which byte of it
        u8 value;
        const char *message;
    } rows[] = {
        {0, 0, 'S', "begins with"},
        {0, 16, 2, "version 2"},
        {0, 16, 3, "version 3"},
        {0, 20, 0, "unknown type 0"},
        {0, 20, 4, "unknown type 4"},
        {0, 29, 6, "unknown values"},
        {0, 39, 6, "unknown values"},
        {0, 40, 2, "unknown values"},
        {0, 29, SEQUENCE_SWAP, "a state that no event has"},
        {1, 30, SEQUENCE_RESUME, "a state that no event has"},
        {0, 41, 1, "a receipt hash without a receipt"},
        {0, 35, 5, "a token at the wrong event"},
        {0, 39, 1, "a finish reason at the wrong event"},
        {0, 40, 1, "a receipt without a token"},
        {0, 29, SEQUENCE_GENERATE, "an admission from or to another state"},
        {0, 30, SEQUENCE_GENERATE, "an admission from or to another state"},
        {0, 73, 1, "an admission that is not first"},
        {0, 31, 1, "an admission that is not first"},
        {1, 29, SEQUENCE_IDLE, "a token of an idle sequence"},
        {1, 30, SEQUENCE_IDLE, "a token of an idle sequence"},
        {1, 31, 0, "a number that is not the token's"},
        {1, 73, 2, "a number that is not the token's"},
        {1, 39, 2, "a finish reason at the wrong event"},
        {2, 30, SEQUENCE_GENERATE, "an end that leaves no idle sequence"},
        {2, 39, 0, "a finish reason at the wrong event"},
        {2, 31, 4, "a number that is not the end's"},
        {2, 40, 1, "a receipt without a token"},
    };
    for (u32 i = 0; i < COUNT_OF(rows); i++) {
        struct event_chain chain = chain_of(7, 1);
        struct sov_event event;
        for (u32 n = 0; n <= rows[i].of; n++) {
            event = event_at(n, 1, 3);
            event_seal(&chain, &event);
        }
        u8 bytes[EVENT_BYTES_MAX];
        event_write(&event, bytes);
        bytes[rows[i].offset] = rows[i].value;
        struct sha256_digest digest = sha256_of((struct str){bytes, EVENT_HASHED_BYTES});
        memcpy(bytes + EVENT_HASHED_BYTES, digest.bytes, SHA256_BYTES);
        struct sov_fault fault = {0};
        CHECK_MSG(event_read((struct str){bytes, EVENT_BYTES}, &event, &fault) == SOV_ERR_FORMAT,
                  "row %u", i);
        bool found = false;
        struct str message = str_from_z(fault.message), part = str_from_z(rows[i].message);
        for (usize at = 0; at < message.len; at++) {
            struct str rest = {message.data + at, message.len - at};
            found = found || str_starts_with(rest, part);
        }
        CHECK_MSG(found, "row %u: %s", i, fault.message);
    }
}

// Of a sealed event: a token in clear, a commitment where there is no token, none where there is.
static void sealed_contradictions_are_refused(void) {
    static const struct {
        u32 of, offset, n;
        u8 value;
    } rows[] = {{1, 35, 4, 7}, {0, 113, 32, 1}, {2, 113, 1, 1}, {1, 113, 32, 0}};
    struct sha256_digest salt = sha256_of(STR("salt"));
    for (u32 i = 0; i < COUNT_OF(rows); i++) {
        struct event_chain chain;
        event_chain_begin(&chain, 7, &salt, &salt);
        struct sov_event event;
        for (u32 n = 0; n <= rows[i].of; n++) {
            event = event_at(n, 1, 3);
            event_seal(&chain, &event);
        }
        u8 bytes[EVENT_BYTES_MAX];
        event_write(&event, bytes);
        memset(bytes + rows[i].offset, rows[i].value, rows[i].n);
        const usize n_hashed = EVENT_SEALED_BYTES - SHA256_BYTES;
        struct sha256_digest digest = sha256_of((struct str){bytes, n_hashed});
        memcpy(bytes + n_hashed, digest.bytes, SHA256_BYTES);
        struct sov_fault fault = {0};
        struct str text = {bytes, EVENT_SEALED_BYTES};
        CHECK_MSG(event_read(text, &event, &fault) == SOV_ERR_FORMAT, "row %u", i);
        CHECK_MSG(str_starts_with(str_from_z(fault.message), STR("an event with a")), "row %u", i);
    }
}

// --- spools ---

static struct spool_reader *new_reader(void) {
    static struct spool_reader reader;
    return &reader;
}

static struct spool *new_spool(void) {
    static struct spool spool;
    return &spool;
}

static void write_file(struct str bytes) {
    int descriptor = -1;
    struct sov_fault fault = {0};
    CHECK(platform_open(scratch, PLATFORM_OPEN_CREATE, &descriptor, &fault) == SOV_OK);
    CHECK(platform_write(descriptor, bytes.data, bytes.len, &fault) == SOV_OK);
    platform_close(descriptor);
}

static u64 file_size(void) {
    int descriptor = -1;
    u64 bytes = 0;
    struct sov_fault fault = {0};
    CHECK(platform_open(scratch, PLATFORM_OPEN_READ, &descriptor, &fault) == SOV_OK);
    CHECK(platform_file_size(descriptor, &bytes, &fault) == SOV_OK);
    platform_close(descriptor);
    return bytes;
}

#define SEQUENCES 3
#define TOKENS 3
#define EVENTS (SEQUENCES * (TOKENS + 2))

// The i-th event of SEQUENCES sequences in turn, of the history `salt`.
static struct sov_event interleaved(u32 i, u64 salt) {
    static struct sov_event events[2][EVENTS];
    static bool made;
    for (u32 history = 0; history < 2 && !made; history++) {
        struct event_chain chains[SEQUENCES];
        for (u32 k = 0; k < SEQUENCES; k++) chains[k] = chain_of(100 + k, history);
        for (u32 k = 0; k < EVENTS; k++) {
            events[history][k] = event_at(k / SEQUENCES, TOKENS, k % SEQUENCES);
            event_seal(&chains[k % SEQUENCES], &events[history][k]);
        }
    }
    made = true;
    return events[salt][i];
}

static enum sov_status append(struct spool *spool, u32 i, u64 salt, struct sov_fault *fault) {
    struct sov_event event = interleaved(i, salt);
    *fault = (struct sov_fault){0};
    return spool_append(spool, &event, 1000 + i, fault);
}

// A spool with the first n events; its bytes.
static struct str make_spool(u32 n) {
    write_file((struct str){NULL, 0});
    struct spool *spool = new_spool();
    struct sov_fault fault = {0};
    CHECK(spool_open(spool, scratch, &fault) == SOV_OK);
    for (u32 i = 0; i < n; i++) CHECK(append(spool, i, 0, &fault) == SOV_OK);
    CHECK(spool_flush(spool, &fault) == SOV_OK);
    CHECK(spool->n_events == n && spool->n_skipped == 0);
    spool_close(spool);
    return test_read_file(scratch);
}

// Reads to the end; how many events there were, all of them checked.
static enum sov_status read_all(u32 *n, enum spool_found *found, u64 *tail_bytes,
                                struct sov_fault *fault) {
    struct spool_reader *reader = new_reader();
    struct spool_chains chains = {0};
    *fault = (struct sov_fault){0};
    *n = 0;
    enum sov_status status = spool_reader_open(reader, scratch, fault);
    CHECK(status == SOV_OK);
    for (*found = SPOOL_EVENT; status == SOV_OK;) {
        struct spool_record record;
        status = spool_read(reader, &record, found, fault);
        if (status != SOV_OK || *found != SPOOL_EVENT) break;
        struct sov_event wanted = interleaved(*n, 0);
        CHECK(sha256_equal(&record.event.transition_digest, &wanted.transition_digest));
        CHECK(record.position == *n && record.wall_ns == 1000 + *n);
        status = spool_chains_check(&chains, &record, fault);
        ++*n;
    }
    *tail_bytes = reader->tail_bytes;
    spool_chains_free(&chains);
    spool_reader_close(reader);
    return status;
}

// Two sequences in turn, one of them sealed: cut anywhere, read, and gone on with.
static void sealed_events_share_a_spool(void) {
    enum { N = 10 };
    struct sha256_digest salt = sha256_of(STR("salt"));
    struct event_chain chains[2] = {chain_of(1, 0), chain_of(2, 0)};
    event_chain_begin(&chains[1], 2, &chains[1].digest, &salt);
    struct sov_event events[N];
    usize ends[N + 1] = {SPOOL_TAG_BYTES};
    for (u32 i = 0; i < N; i++) {
        events[i] = event_at(i / 2, 3, i % 2);
        event_seal(&chains[i % 2], &events[i]);
        ends[i + 1] = ends[i] + (i % 2 == 0 ? SPOOL_FRAME_BYTES : SPOOL_FRAME_BYTES_MAX);
    }
    struct spool *spool = new_spool();
    struct sov_fault fault = {0};
    write_file((struct str){NULL, 0});
    CHECK(spool_open(spool, scratch, &fault) == SOV_OK);
    for (u32 i = 0; i < N; i++) CHECK(spool_append(spool, &events[i], 1, &fault) == SOV_OK);
    CHECK(spool_flush(spool, &fault) == SOV_OK);
    spool_close(spool);
    struct str whole = test_read_file(scratch);
    CHECK(whole.len == ends[N]);
    for (usize cut = ends[0]; cut <= whole.len; cut++) {
        u32 n_kept = 0;
        while (n_kept < N && ends[n_kept + 1] <= cut) n_kept++;
        write_file((struct str){whole.data, cut});
        CHECK(spool_open(spool, scratch, &fault) == SOV_OK);
        CHECK(spool->n_events == n_kept && spool->cut_bytes == cut - ends[n_kept]);
        for (u32 i = 0; i < N; i++) {
            CHECK(spool_has(spool, 1 + i % 2, i / 2) == (i < n_kept));
            CHECK(spool_append(spool, &events[i], 1, &fault) == SOV_OK);
        }
        CHECK(spool->n_skipped == n_kept && spool_flush(spool, &fault) == SOV_OK);
        spool_close(spool);
        struct str again = test_read_file(scratch);
        CHECK_MSG(str_equal(again, whole), "cut %u", (u32)cut);
    }
    // In front of the last frame, which is a sealed one: damage and no tail.
    static u8 damaged[SPOOL_TAG_BYTES + N * SPOOL_FRAME_BYTES_MAX];
    memcpy(damaged, whole.data, whole.len);
    damaged[ends[N - 1] - 1] ^= 1;
    write_file((struct str){damaged, whole.len});
    fault = (struct sov_fault){0};
    CHECK(spool_open(spool, scratch, &fault) == SOV_ERR_INTEGRITY);
}

static void what_is_appended_is_read(void) {
    struct str bytes = make_spool(EVENTS);
    CHECK(bytes.len == SPOOL_TAG_BYTES + EVENTS * SPOOL_FRAME_BYTES);
    u32 n = 0;
    enum spool_found found = SPOOL_TAIL;
    u64 tail = 0;
    struct sov_fault fault;
    CHECK(read_all(&n, &found, &tail, &fault) == SOV_OK);
    CHECK(n == EVENTS && found == SPOOL_END && tail == 0);
}

// A crash leaves a beginning of what was being written. Cut at every byte: the reader gives every
// whole event and says how long the tail is; the writer cuts it and goes on to the same bytes.
static void a_spool_cut_anywhere_is_continued(void) {
    struct str bytes = make_spool(EVENTS);
    for (usize cut = 0; cut <= bytes.len; cut++) {
        write_file((struct str){bytes.data, cut});
        usize whole = cut < SPOOL_TAG_BYTES ? 0 : (cut - SPOOL_TAG_BYTES) / SPOOL_FRAME_BYTES;
        usize kept = cut < SPOOL_TAG_BYTES ? 0 : SPOOL_TAG_BYTES + whole * SPOOL_FRAME_BYTES;
        u32 n = 0;
        enum spool_found found = SPOOL_EVENT;
        u64 tail = 0;
        struct sov_fault fault;
        CHECK_MSG(read_all(&n, &found, &tail, &fault) == SOV_OK, "cut at %zu: %s", cut,
                  fault.message);
        CHECK_MSG(n == whole && tail == cut - kept, "cut at %zu: %u events, tail %llu", cut, n,
                  tail);
        CHECK((found == SPOOL_TAIL) == (tail > 0));
        CHECK(file_size() == cut); // readers change nothing
        struct spool *spool = new_spool();
        CHECK_MSG(spool_open(spool, scratch, &fault) == SOV_OK, "cut at %zu: %s", cut,
                  fault.message);
        CHECK(spool->cut_bytes == cut - kept && spool->n_events == whole);
        // A retry appends everything again.
        for (u32 i = 0; i < EVENTS; i++) CHECK(append(spool, i, 0, &fault) == SOV_OK);
        CHECK(spool->n_skipped == whole);
        CHECK(spool_flush(spool, &fault) == SOV_OK);
        spool_close(spool);
        struct str again = test_read_file(scratch);
        CHECK_MSG(str_equal(again, bytes), "cut at %zu: other bytes afterwards", cut);
    }
}

// Every byte changed: what is behind it is never given out as if nothing had happened.
static void damage_is_never_skipped(void) {
    struct str bytes = make_spool(6);
    static u8 copy[SPOOL_TAG_BYTES + 6 * SPOOL_FRAME_BYTES];
    CHECK(bytes.len == sizeof copy);
    for (usize at = 0; at < sizeof copy; at++) {
        memcpy(copy, bytes.data, sizeof copy);
        copy[at] ^= 0x40;
        write_file((struct str){copy, sizeof copy});
        usize frame = at < SPOOL_TAG_BYTES ? 0 : (at - SPOOL_TAG_BYTES) / SPOOL_FRAME_BYTES;
        bool last = frame == 5 && at >= SPOOL_TAG_BYTES;
        enum sov_status wanted = at < SPOOL_TAG_BYTES ? SOV_ERR_FORMAT
                                 : last               ? SOV_OK
                                                      : SOV_ERR_INTEGRITY;
        u32 n = 0;
        enum spool_found found = SPOOL_EVENT;
        u64 tail = 0;
        struct sov_fault fault;
        enum sov_status status = read_all(&n, &found, &tail, &fault);
        CHECK_MSG(status == wanted && n == frame, "byte %zu: %s, %u events", at, fault.message, n);
        CHECK(tail == (last ? SPOOL_FRAME_BYTES : 0) &&
              (status == SOV_OK || fault.message[0] != 0));
        fault = (struct sov_fault){0};
        struct spool *spool = new_spool();
        status = spool_open(spool, scratch, &fault);
        CHECK_MSG(status == wanted, "byte %zu: %s", at, fault.message);
        if (status == SOV_OK) spool_close(spool);
        CHECK(file_size() == sizeof copy - (last ? SPOOL_FRAME_BYTES : 0));
    }
    // Zeros, as a file system may leave them, are a tail however long they are.
    static u8 long_tail[sizeof copy + 3 * SPOOL_BUFFER_BYTES];
    memcpy(long_tail, bytes.data, sizeof copy);
    write_file((struct str){long_tail, sizeof long_tail});
    u32 n = 0;
    enum spool_found found = SPOOL_EVENT;
    u64 tail = 0;
    struct sov_fault fault;
    CHECK(read_all(&n, &found, &tail, &fault) == SOV_OK && n == 6);
    CHECK(found == SPOOL_TAIL && tail == sizeof long_tail - sizeof copy);
    // But not when an event follows.
    memcpy(long_tail + sizeof long_tail - SPOOL_FRAME_BYTES, bytes.data + SPOOL_TAG_BYTES,
           SPOOL_FRAME_BYTES);
    write_file((struct str){long_tail, sizeof long_tail});
    CHECK(read_all(&n, &found, &tail, &fault) == SOV_ERR_INTEGRITY && n == 6);
}

static void an_event_stands_there_once(void) {
    make_spool(7);
    struct spool *spool = new_spool();
    struct sov_fault fault = {0};
    CHECK(spool_open(spool, scratch, &fault) == SOV_OK && spool->n_events == 7);
    for (u32 i = 0; i < 12; i++) CHECK(append(spool, i, 0, &fault) == SOV_OK);
    CHECK(spool->n_skipped == 7 && spool->n_events == 12);
    for (u32 i = 0; i < 12; i++) { // in the file, in the buffer; by another history
        CHECK(append(spool, i, 0, &fault) == SOV_OK);
        CHECK(append(spool, i, 1, &fault) == SOV_ERR_INTEGRITY);
        CHECK(fault.message[0] != 0);
    }
    CHECK(spool->n_skipped == 19 && spool->n_events == 12);
    CHECK(spool_flush(spool, &fault) == SOV_OK);
    struct spool_reader *reader = new_reader();
    static struct spool second;
    CHECK(spool_open(&second, scratch, &fault) == SOV_ERR_STATE); // one writer at a time
    spool_close(spool);
    CHECK(file_size() == SPOOL_TAG_BYTES + 12 * SPOOL_FRAME_BYTES);
    CHECK(spool_reader_open(reader, "no/such/spool", &fault) != SOV_OK);
}

// A reader that is at the end sees what is appended later, and stops when the file shrinks.
static void a_reader_follows_a_writer(void) {
    make_spool(0);
    struct spool *spool = new_spool();
    struct spool_reader *reader = new_reader();
    struct sov_fault fault = {0};
    struct spool_record record;
    enum spool_found found = SPOOL_EVENT;
    CHECK(spool_open(spool, scratch, &fault) == SOV_OK);
    CHECK(spool_reader_open(reader, scratch, &fault) == SOV_OK);
    for (u32 i = 0; i < EVENTS; i++) {
        CHECK(spool_read(reader, &record, &found, &fault) == SOV_OK && found == SPOOL_END);
        CHECK(append(spool, i, 0, &fault) == SOV_OK);
        CHECK(spool_read(reader, &record, &found, &fault) == SOV_OK && found == SPOOL_END);
        CHECK(spool_flush(spool, &fault) == SOV_OK);
        CHECK(spool_read(reader, &record, &found, &fault) == SOV_OK && found == SPOOL_EVENT);
        CHECK(record.position == i);
    }
    CHECK(platform_truncate(spool->descriptor, 300, &fault) == SOV_OK);
    CHECK(spool_read(reader, &record, &found, &fault) == SOV_ERR_INTEGRITY);
    spool_reader_close(reader);
    spool_close(spool);
}

static void broken_chains_are_found(void) {
    struct spool_record record = {0};
    struct sov_fault fault = {0};
    struct spool_chains chains = {0};
    for (u32 i = 0; i < EVENTS; i++) {
        record.event = interleaved(i, 0);
        CHECK(spool_chains_check(&chains, &record, &fault) == SOV_OK);
        CHECK(spool_chains_check(&chains, &record, &fault) == SOV_ERR_INTEGRITY); // again
        fault = (struct sov_fault){0};
    }
    spool_chains_free(&chains);
    for (u32 skipped = 3; skipped < EVENTS - 3; skipped++) { // a gap
        bool refused = false;
        for (u32 i = 0; i < EVENTS; i++) {
            if (i == skipped) continue;
            record.event = interleaved(i, 0);
            refused = refused || spool_chains_check(&chains, &record, &fault) != SOV_OK;
        }
        CHECK(refused);
        spool_chains_free(&chains);
    }
    fault = (struct sov_fault){0};
    for (u32 i = 0; i < 9; i++) { // one of another history
        record.event = interleaved(i, i == 7);
        enum sov_status status = spool_chains_check(&chains, &record, &fault);
        CHECK(status == (i == 7 ? SOV_ERR_INTEGRITY : SOV_OK));
    }
    spool_chains_free(&chains);
    u64 mapped = platform_memory_mapped();
    for (u32 i = 0; i < 5000; i++) { // many sequences
        struct event_chain chain = chain_of(i * 0x9e3779b97f4a7c15, 0);
        record.event = admitted();
        event_seal(&chain, &record.event);
        fault = (struct sov_fault){0};
        CHECK(spool_chains_check(&chains, &record, &fault) == SOV_OK);
    }
    CHECK(chains.n_heads == 5000);
    spool_chains_free(&chains);
    CHECK(platform_memory_mapped() == mapped);
}

// More events than the first index and the buffer hold.
static void long_spools_are_indexed(void) {
    write_file((struct str){NULL, 0});
    u64 mapped = platform_memory_mapped();
    struct spool *spool = new_spool();
    struct sov_fault fault = {0};
    const u32 n = 6000;
    for (u32 round = 0; round < 2; round++) { // the second appends all of it again
        CHECK(spool_open(spool, scratch, &fault) == SOV_OK);
        struct event_chain chain = chain_of(5, 5);
        for (u32 i = 0; i < n; i++) {
            struct sov_event event = event_at(i, n, 1);
            event_seal(&chain, &event);
            CHECK(spool_append(spool, &event, 0, &fault) == SOV_OK);
        }
        CHECK(spool_flush(spool, &fault) == SOV_OK);
        CHECK(spool->n_events == n && spool->n_skipped == round * n);
        spool_close(spool);
        CHECK(file_size() == SPOOL_TAG_BYTES + (u64)n * SPOOL_FRAME_BYTES);
    }
    CHECK(platform_memory_mapped() == mapped);
}

struct race {
    struct spool *spool;
    u32 n_events, is_done;
};

static void write_fast(void *argument) {
    struct race *race = argument;
    struct event_chain chain = chain_of(9, 9);
    for (u32 i = 0; i < race->n_events; i++) {
        struct sov_event event = event_at(i, race->n_events, 1);
        event_seal(&chain, &event);
        enum sov_status status = spool_append(race->spool, &event, 0, NULL);
        if (status == SOV_OK) status = spool_flush(race->spool, NULL);
        if (status != SOV_OK) break;
    }
    __atomic_store_n(&race->is_done, 1, __ATOMIC_RELEASE);
}

// A reader that looks at the end while events arrive there sees all of them, and never damage.
static void reading_races_with_writing(void) {
    write_file((struct str){NULL, 0});
    struct race race = {.spool = new_spool(),
                        .n_events = test_option("FULL") != NULL ? 200000 : 20000};
    struct sov_fault fault = {0};
    static struct spool_reader reader;
    struct platform_thread *writer = NULL;
    CHECK(spool_open(race.spool, scratch, &fault) == SOV_OK);
    CHECK(spool_reader_open(&reader, scratch, &fault) == SOV_OK);
    CHECK(platform_thread_start(write_fast, &race, &writer, &fault) == SOV_OK);
    u32 n = 0;
    enum sov_status status = SOV_OK;
    for (bool ends = false; status == SOV_OK && !ends;) {
        struct spool_record record;
        enum spool_found found = SPOOL_END;
        bool is_done = __atomic_load_n(&race.is_done, __ATOMIC_ACQUIRE) != 0;
        status = spool_read(&reader, &record, &found, &fault);
        if (status == SOV_OK && found == SPOOL_EVENT) n++;
        ends = is_done && found != SPOOL_EVENT;
    }
    platform_thread_join(writer);
    CHECK_MSG(status == SOV_OK, "after %u events: %s", n, fault.message);
    CHECK(n == race.n_events);
    spool_reader_close(&reader);
    spool_close(race.spool);
}

static void names_are_known(void) {
    CHECK(str_equal(str_from_z(event_type_name(EVENT_FINISHED)), STR("finished")));
    CHECK(str_equal(str_from_z(event_type_name((enum event_type)9)), STR("?")));
    CHECK(str_equal(str_from_z(event_state_name(SEQUENCE_CHECKPOINT)), STR("checkpoint")));
    CHECK(str_equal(str_from_z(event_state_name(SEQUENCE_STATES)), STR("?")));
    CHECK(str_equal(str_from_z(event_finish_name(FINISH_DEADLINE)), STR("deadline")));
    CHECK(str_equal(str_from_z(event_finish_name((enum finish_reason)99)), STR("?")));
}

// For tests/test_events.py: WRITE=FILE, EVENTS=N, PAUSE=milliseconds between two appends.
static void write_slowly(void) {
    const char *path = test_option("WRITE");
    if (path == NULL) return;
    u64 n = 10, pause = 0;
    const char *n_text = test_option("EVENTS"), *pause_text = test_option("PAUSE");
    if (n_text != NULL) CHECK(text_parse_u64(str_from_z(n_text), &n));
    if (pause_text != NULL) CHECK(text_parse_u64(str_from_z(pause_text), &pause));
    struct spool *spool = new_spool();
    struct sov_fault fault = {0};
    enum sov_status status = spool_open(spool, path, &fault);
    CHECK_MSG(status == SOV_OK, "%s", fault.message);
    struct event_chain chains[SEQUENCES];
    for (u32 i = 0; i < SEQUENCES; i++) chains[i] = chain_of(100 + i, 0);
    for (u32 i = 0; i < n && status == SOV_OK; i++) {
        u32 sequence = i % SEQUENCES;
        struct sov_event event = event_at(i / SEQUENCES, (u32)n, sequence);
        event_seal(&chains[sequence], &event);
        status = spool_append(spool, &event, 1700000000000000000ull + i * 1000000ull, &fault);
        if (status == SOV_OK && (pause > 0 || i + 1 == n)) status = spool_flush(spool, &fault);
        if (pause > 0) platform_sleep(pause * 1000000);
    }
    CHECK_MSG(status == SOV_OK, "%s", fault.message);
    spool_close(spool);
}

static const struct test_case cases[] = {
    {"reading_races_with_writing", reading_races_with_writing},
    {"digests_are_those_of_another_program", digests_are_those_of_another_program},
    {"sealed_digests_are_those_of_another_program", sealed_digests_are_those_of_another_program},
    {"commitments_tell_nothing_of_each_other", commitments_tell_nothing_of_each_other},
    {"sealed_contradictions_are_refused", sealed_contradictions_are_refused},
    {"sealed_events_share_a_spool", sealed_events_share_a_spool},
    {"events_are_read_as_they_were_written", events_are_read_as_they_were_written},
    {"contradictions_are_refused", contradictions_are_refused},
    {"what_is_appended_is_read", what_is_appended_is_read},
    {"a_spool_cut_anywhere_is_continued", a_spool_cut_anywhere_is_continued},
    {"damage_is_never_skipped", damage_is_never_skipped},
    {"an_event_stands_there_once", an_event_stands_there_once},
    {"a_reader_follows_a_writer", a_reader_follows_a_writer},
    {"broken_chains_are_found", broken_chains_are_found},
    {"long_spools_are_indexed", long_spools_are_indexed},
    {"names_are_known", names_are_known},
    {"write_slowly", write_slowly},
};

int program_main(const struct platform_start *start) {
    struct text t = TEXT_OVER_ARRAY(scratch);
    text_format(&t, "%s.scratch", start->args[0]);
    return test_main(start, "test_events", cases, COUNT_OF(cases));
}
