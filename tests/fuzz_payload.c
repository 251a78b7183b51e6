// SPDX-License-Identifier: Apache-2.0
// libFuzzer harness of payloads. The first byte says whether the rest is read as a request or as a
// checkpoint. What is read must stand in the input, be within the stated limits, and be written as
// the same bytes again; what is refused has a message and one of two statuses.
#include "freestanding/mem.h"
#include "record/payload.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const u8 *data, usize bytes);

static struct str input;

static void check_slice(struct str s) {
    assert(s.len <= input.len);
    assert(s.len == 0 || (s.data >= input.data && s.data + s.len <= input.data + input.len));
}

static void check_request(void) {
    struct payload_request r;
    struct sov_fault fault = {0};
    enum sov_status status = payload_request_read(input, &r, &fault);
    assert(status == fault.status);
    if (status != SOV_OK) {
        assert((status == SOV_ERR_FORMAT || status == SOV_ERR_UNSUPPORTED) && fault.message[0]);
        return;
    }
    const struct str slices[] = {r.sampling.biases, r.prompt, r.line, r.tokens, r.script};
    for (u32 i = 0; i < COUNT_OF(slices); i++) check_slice(slices[i]);
    assert(r.n_stops <= PAYLOAD_STOPS_MAX);
    for (u32 i = 0; i < r.n_stops; i++) {
        check_slice(r.stops[i]);
        assert(r.stops[i].len >= 1 && r.stops[i].len <= PAYLOAD_STOP_BYTES_MAX);
    }
    assert(r.tokens.len % 4 == 0 && payload_count(r.tokens) >= 1);
    assert(payload_count(r.tokens) <= r.context && r.script.len % 4 == 0);
    assert(payload_command_name(r.command)[0] != '?');
    assert(payload_kv_form_name(r.kv_form)[0] != '?' && r.form <= PAYLOAD_COMMITMENTS);
    assert(payload_request_bytes(&r) == input.len);
    u8 *again = malloc(input.len);
    assert(again != NULL);
    payload_request_write(&r, again);
    assert(memcmp(again, input.data, input.len) == 0);
    free(again);
}

static void check_checkpoint(void) {
    struct payload_checkpoint c;
    struct sov_fault fault = {0};
    enum sov_status status = payload_checkpoint_read(input, &c, &fault);
    assert(status == fault.status);
    if (status != SOV_OK) {
        assert((status == SOV_ERR_FORMAT || status == SOV_ERR_UNSUPPORTED) && fault.message[0]);
        return;
    }
    check_slice(c.tokens);
    check_slice(c.kv_digests);
    check_slice(c.kv_bytes);
    u32 n_tokens = payload_count(c.tokens);
    assert(c.n_prompt >= 1 && c.n_prompt <= n_tokens && c.kv_begin <= c.kv_end);
    assert(c.kv_end <= n_tokens && c.finish <= PAYLOAD_FINISH_LAST);
    assert(payload_checkpoint_kind_name(c.kind)[0] != '?');
    assert((c.kind == PAYLOAD_FINISH) == (c.finish != 0));
    assert(c.kv_digests.len == (u64)c.n_layer * SHA256_BYTES);
    for (u32 i = 0; i < c.n_layer; i++) (void)payload_kv_digest(&c, i);
    assert(payload_checkpoint_bytes(&c) == input.len);
    u8 *again = malloc(input.len);
    assert(again != NULL);
    payload_checkpoint_write(&c, again);
    assert(memcmp(again, input.data, input.len) == 0);
    free(again);
}

int LLVMFuzzerTestOneInput(const u8 *data, usize bytes) {
    if (bytes == 0) return 0;
    // A copy of its own, so that the sanitizer sees a read behind its end.
    u8 *copy = malloc(bytes);
    assert(copy != NULL);
    memcpy(copy, data + 1, bytes - 1);
    input = (struct str){copy, bytes - 1};
    if ((data[0] & 1) == 0) {
        check_request();
    } else {
        check_checkpoint();
    }
    free(copy);
    return 0;
}
