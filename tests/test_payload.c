// SPDX-License-Identifier: Apache-2.0
// Payloads (payload.h, P1 to P3): bytes and back, fields in their documented places, every
// truncation and every single changed byte refused or read as what writes the same bytes again.
#include "record/payload.h"
#include "freestanding/mem.h"
#include "test.h"

#define SEED 20261130

static u8 memory[8192], again[8192], kv[4096];
static u32 tokens[256];

static struct str tokens_of(u32 n) {
    for (u32 i = 0; i < n; i++) tokens[i] = 1000 + i;
    return (struct str){(const u8 *)tokens, n * sizeof(u32)};
}

static struct payload_request a_request(void) {
    static const u8 biases[2 * PAYLOAD_BIAS_BYTES] = {1, 0, 0, 0, 0, 0, 0x80, 0x3f, 2};
    return (struct payload_request){
        .sequence_id = 0x1122334455667788,
        .command = PAYLOAD_BATCH,
        .form = PAYLOAD_CLEAR,
        .kv_form = PAYLOAD_KV_FULL,
        .context = 512,
        .n_new_max = 77,
        .ignore_end = true,
        .end_token = 5,
        .n_logprobs = 3,
        .sampling =
            {
                .repeat_penalty = 1.5f,
                .temperature = 0.75f,
                .top_p = 0.9f,
                .penalty_window = -1,
                .top_k = 40,
                .seed = 99,
                .biases = {biases, sizeof biases},
            },
        .n_stops = 2,
        .stops = {STR("end"), STR("\n")},
        .prompt = STR("Once"),
        .line_number = 12,
        .line = STR("{\"prompt\": \"Once\"}"),
        .tokens = tokens_of(7),
    };
}

static struct payload_checkpoint a_checkpoint(enum payload_checkpoint_kind kind,
                                              enum payload_kv_form form) {
    struct payload_checkpoint c = {
        .sequence_id = 42,
        .kind = kind,
        .finish = kind == PAYLOAD_FINISH ? 2 : 0,
        .kv_form = form,
        .n_prompt = 3,
        .tokens = tokens_of(67),
        .event_number = kind == PAYLOAD_BOUNDARY  ? 64
                        : kind == PAYLOAD_SUSPEND ? 65
                                                  : 66,
    };
    memset(c.origin.bytes, 7, SHA256_BYTES);
    memset(c.event_digest.bytes, 8, SHA256_BYTES);
    if (form == PAYLOAD_KV_TOKENS || kind == PAYLOAD_SUSPEND) return c;
    for (u32 i = 0; i < sizeof kv; i++) kv[i] = (u8)(i * 7);
    c.kv_end = 66;
    c.n_layer = 2;
    c.row_bytes = 16;
    c.kv_digests = (struct str){kv, 2 * SHA256_BYTES};
    bool has_bytes = form == PAYLOAD_KV_FULL && kind != PAYLOAD_FINISH;
    if (has_bytes) c.kv_bytes = (struct str){kv, 2 * 66 * 16};
    return c;
}

static struct str written_request(const struct payload_request *r, u8 *out) {
    u64 n = payload_request_bytes(r);
    assert(n <= sizeof memory);
    payload_request_write(r, out);
    return (struct str){out, (usize)n};
}

static struct str written_checkpoint(const struct payload_checkpoint *c, u8 *out) {
    u64 n = payload_checkpoint_bytes(c);
    assert(n <= sizeof memory);
    payload_checkpoint_write(c, out);
    return (struct str){out, (usize)n};
}

static void request_and_back(void) {
    struct payload_request r = a_request(), back;
    struct str bytes = written_request(&r, memory);
    struct sov_fault fault = {0};
    CHECK(payload_request_read(bytes, &back, &fault) == SOV_OK);
    CHECK(back.sequence_id == r.sequence_id && back.command == PAYLOAD_BATCH);
    CHECK(back.kv_form == PAYLOAD_KV_FULL && back.context == 512 && back.n_new_max == 77);
    CHECK(back.ignore_end && !back.wants_logprob && back.end_token == 5 && back.n_logprobs == 3);
    CHECK(back.sampling.temperature == 0.75f && back.sampling.seed == 99);
    CHECK(back.sampling.penalty_window == -1 && back.sampling.top_k == 40);
    CHECK(str_equal(back.sampling.biases, r.sampling.biases));
    CHECK(back.n_stops == 2 && str_equal(back.stops[1], STR("\n")));
    CHECK(str_equal(back.prompt, r.prompt) && str_equal(back.line, r.line));
    CHECK(back.line_number == 12 && back.script.len == 0);
    CHECK(payload_count(back.tokens) == 7 && payload_u32(back.tokens, 6) == 1006);
    CHECK(str_equal(written_request(&back, again), bytes));
}

// The places that docs/format.md gives, by hand.
static void places(void) {
    struct payload_request r = a_request();
    written_request(&r, memory);
    CHECK(memcmp(memory, "sov-rtx reqst v1", 16) == 0);
    CHECK(load_u64(memory + 16) == r.sequence_id && memory[24] == 3 && memory[25] == 0);
    CHECK(memory[26] == 1 && load_u32(memory + 27) == 512 && load_u32(memory + 31) == 77);
    CHECK(memory[35] == 1 && load_u32(memory + 36) == 5 && memory[40] == 0);
    CHECK(load_u32(memory + 41) == 3 && load_f32(memory + 45) == 1.5f);
    CHECK(load_f32(memory + 57) == 0.75f && load_i32(memory + 69) == -1);
    CHECK(load_u64(memory + 77) == 99 && load_u64(memory + 85) == 16 && memory[109] == 2);
    CHECK(load_u64(memory + 110) == 3 && memory[118] == 'e');
    struct payload_checkpoint c = a_checkpoint(PAYLOAD_BOUNDARY, PAYLOAD_KV_DIGEST);
    struct str bytes = written_checkpoint(&c, memory);
    CHECK(memcmp(memory, "sov-rtx chkpt v1", 16) == 0 && load_u64(memory + 16) == 42);
    CHECK(memory[24] == 1 && memory[25] == 0 && memory[26] == 0 && load_u32(memory + 27) == 3);
    CHECK(load_u64(memory + 31) == 67 * 4 && load_u32(memory + 39) == 1000);
    usize at = 39 + 67 * 4;
    CHECK(memory[at] == 7 && load_u64(memory + at + 32) == 64 && memory[at + 40] == 8);
    CHECK(load_u32(memory + at + 72) == 0 && load_u32(memory + at + 76) == 66);
    CHECK(load_u32(memory + at + 80) == 2 && load_u32(memory + at + 84) == 16);
    CHECK(load_u64(memory + at + 88) == 64 && bytes.len == at + 96 + 64 + 8);
}

static void checkpoints_and_back(void) {
    for (u32 kind = PAYLOAD_BOUNDARY; kind <= PAYLOAD_FINISH; kind++) {
        for (u32 form = 0; form <= PAYLOAD_KV_TOKENS; form++) {
            struct payload_checkpoint c =
                a_checkpoint((enum payload_checkpoint_kind)kind, (enum payload_kv_form)form);
            struct payload_checkpoint back;
            struct str bytes = written_checkpoint(&c, memory);
            struct sov_fault fault = {0};
            CHECK_MSG(payload_checkpoint_read(bytes, &back, &fault) == SOV_OK,
                      "kind %u form %u: %s", kind, form, fault.message);
            CHECK(back.kind == c.kind && back.finish == c.finish && back.kv_form == c.kv_form);
            CHECK(str_equal(back.tokens, c.tokens) && back.n_prompt == 3);
            CHECK(back.event_number == c.event_number && back.event_digest.bytes[3] == 8);
            CHECK(back.n_layer == c.n_layer && str_equal(back.kv_bytes, c.kv_bytes));
            if (c.n_layer > 0) CHECK(payload_kv_digest(&back, 1).bytes[0] == kv[SHA256_BYTES]);
            CHECK(str_equal(written_checkpoint(&back, again), bytes));
        }
    }
}

static void check_read(bool is_request, struct str bytes, const char *what, u32 at) {
    struct payload_request r;
    struct payload_checkpoint c;
    struct sov_fault fault = {0};
    enum sov_status status = is_request ? payload_request_read(bytes, &r, &fault)
                                        : payload_checkpoint_read(bytes, &c, &fault);
    CHECK_MSG(status == fault.status, "%s %u: status %d, fault %d", what, at, (int)status,
              (int)fault.status);
    if (status != SOV_OK) {
        CHECK(status == SOV_ERR_FORMAT || status == SOV_ERR_UNSUPPORTED);
        return;
    }
    struct str same = is_request ? written_request(&r, again) : written_checkpoint(&c, again);
    CHECK_MSG(str_equal(same, bytes), "%s %u is read, and written otherwise", what, at);
}

// P1, P2: what is read writes the same bytes again.
static void changed_bytes(void) {
    struct payload_request r = a_request();
    struct payload_checkpoint full = a_checkpoint(PAYLOAD_BOUNDARY, PAYLOAD_KV_FULL);
    struct payload_checkpoint finish = a_checkpoint(PAYLOAD_FINISH, PAYLOAD_KV_DIGEST);
    for (u32 which = 0; which < 3; which++) {
        struct str bytes = which == 0   ? written_request(&r, memory)
                           : which == 1 ? written_checkpoint(&full, memory)
                                        : written_checkpoint(&finish, memory);
        for (u32 i = 0; i < bytes.len; i++) {
            static const u8 changes[] = {0x01, 0x80, 0xff};
            for (u32 k = 0; k < COUNT_OF(changes); k++) {
                memory[i] ^= changes[k];
                check_read(which == 0, bytes, "changed byte", i);
                memory[i] ^= changes[k];
            }
        }
        for (u32 n = 0; n < bytes.len; n++) {
            struct sov_fault fault = {0};
            struct str cut = {memory, n};
            struct payload_request some_request;
            struct payload_checkpoint some;
            CHECK((which == 0 ? payload_request_read(cut, &some_request, &fault)
                              : payload_checkpoint_read(cut, &some, &fault)) == SOV_ERR_FORMAT);
        }
        memory[bytes.len] = 0;
        struct str longer = {memory, bytes.len + 1};
        struct sov_fault fault = {0};
        struct payload_request some_request;
        struct payload_checkpoint some;
        CHECK((which == 0 ? payload_request_read(longer, &some_request, &fault)
                          : payload_checkpoint_read(longer, &some, &fault)) == SOV_ERR_FORMAT);
    }
}

static void random_changes(void) {
    struct test_random random = {SEED};
    u32 n_rounds = test_option("FULL") != NULL ? 2000000 : 20000;
    test_note("seed %u", SEED);
    for (u32 round = 0; round < n_rounds; round++) {
        bool is_request = round % 2 == 0;
        struct payload_request r = a_request();
        struct payload_checkpoint c =
            a_checkpoint((enum payload_checkpoint_kind)(1 + test_random_below(&random, 3)),
                         (enum payload_kv_form)test_random_below(&random, 3));
        struct str bytes = is_request ? written_request(&r, memory)
                                      : written_checkpoint(&c, memory);
        for (u32 n = 1 + test_random_below(&random, 4); n > 0; n--) {
            memory[test_random_below(&random, (u32)bytes.len)] = (u8)test_random_u64(&random);
        }
        check_read(is_request, bytes, "round", round);
    }
}

static void rules(void) {
    static const struct {
        const char *name;
        u32 at; // in a request, or a boundary of the form digest
        u8 value;
        bool is_request;
        enum sov_status status;
        const char *message;
    } table[] = {
        {"another kind of payload", 10, 'x', true, SOV_ERR_FORMAT, "a request begins with"},
        {"another version", 15, '2', true, SOV_ERR_UNSUPPORTED, "this program reads"},
        {"a command that is none", 24, 0, true, SOV_ERR_FORMAT, "command"},
        {"a form that is none", 25, 2, true, SOV_ERR_FORMAT, "form"},
        {"a flag of 2", 35, 2, true, SOV_ERR_FORMAT, "ignore_end"},
        {"more tokens than context", 27, 6, true, SOV_ERR_FORMAT, "tokens"},
        {"stops beyond the most", 109, 17, true, SOV_ERR_FORMAT, "n_stops"},
        {"biases that are no whole number", 85, 15, true, SOV_ERR_FORMAT, "biases"},
        {"a reason without an end", 25, 1, false, SOV_ERR_FORMAT, "finish"},
        {"no prompt", 27, 0, false, SOV_ERR_FORMAT, "n_prompt"},
        {"a prompt beyond the tokens", 27, 68, false, SOV_ERR_FORMAT, "n_prompt"},
        {"events of other tokens", 27, 2, false, SOV_ERR_FORMAT, "event_number"},
        {"a range beyond the tokens", 39 + 268 + 76, 68, false, SOV_ERR_FORMAT, "kv_end"},
        {"fewer layers than digests", 39 + 268 + 80, 1, false, SOV_ERR_FORMAT, "kv_digests"},
        {"rows of no bytes", 39 + 268 + 84, 0, false, SOV_ERR_FORMAT, "row_bytes"},
    };
    for (u32 i = 0; i < COUNT_OF(table); i++) {
        struct payload_request r = a_request();
        struct payload_checkpoint c = a_checkpoint(PAYLOAD_BOUNDARY, PAYLOAD_KV_DIGEST);
        struct str bytes = table[i].is_request ? written_request(&r, memory)
                                               : written_checkpoint(&c, memory);
        memory[table[i].at] = table[i].value;
        // (A context of 512 is 0, 2, 0, 0.)
        if (table[i].at == 27 && table[i].is_request) memory[28] = 0;
        struct sov_fault fault = {0};
        enum sov_status status = table[i].is_request ? payload_request_read(bytes, &r, &fault)
                                                     : payload_checkpoint_read(bytes, &c, &fault);
        bool is_named = false;
        struct str message = str_from_z(fault.message), wanted = str_from_z(table[i].message);
        for (usize k = 0; k + wanted.len <= message.len; k++) {
            is_named |= str_starts_with((struct str){message.data + k, message.len - k}, wanted);
        }
        CHECK_MSG(status == table[i].status && is_named, "%s: %d, %s", table[i].name, (int)status,
                  fault.message);
    }
}

static void names(void) {
    CHECK(str_equal(str_from_z(payload_command_name(PAYLOAD_BATCH)), STR("batch")));
    CHECK(str_equal(str_from_z(payload_kv_form_name(PAYLOAD_KV_TOKENS)), STR("tokens")));
    CHECK(str_equal(str_from_z(payload_checkpoint_kind_name(PAYLOAD_SUSPEND)), STR("suspend")));
    CHECK(payload_command_name((enum payload_command)0)[0] == '?');
    CHECK(payload_checkpoint_kind_name((enum payload_checkpoint_kind)4)[0] == '?');
}

static const struct test_case cases[] = {
    {"request_and_back", request_and_back},
    {"places", places},
    {"checkpoints_and_back", checkpoints_and_back},
    {"changed_bytes", changed_bytes},
    {"random_changes", random_changes},
    {"rules", rules},
    {"names", names},
};

int program_main(const struct platform_start *start) {
    return test_main(start, "test_payload", cases, COUNT_OF(cases));
}
