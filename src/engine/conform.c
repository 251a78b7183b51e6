// SPDX-License-Identifier: Apache-2.0
// Running cases of the conformance suite: the reference alone, or a card and the comparison of
// images. See conform.h for what is promised, conform_cases.c for the cases.
#include "engine/conform_private.h"
#include "freestanding/mem.h"

// --- memory ---

static void release_memory(struct conform *c) {
    if (c->backend == CONFORM_CUDA) {
        cuda_memory_free(&c->driver, c->memory);
        cuda_pinned_free(&c->driver, c->found);
        cuda_pinned_free(&c->driver, c->before);
    } else if (c->before != NULL) {
        platform_memory_unmap(c->before, c->image_bytes);
    }
    if (c->expected != NULL) platform_memory_unmap(c->expected, c->image_bytes);
    if (c->host != NULL) platform_memory_unmap(c->host, c->host_bytes);
    c->memory = 0;
    c->before = c->expected = c->found = c->host = NULL;
    c->image_bytes = c->host_bytes = 0;
}

static enum sov_status map(u8 **memory, u64 bytes, struct sov_fault *fault) {
    *memory = platform_memory_map(bytes);
    if (*memory != NULL) return SOV_OK;
    return fault_set(fault, SOV_ERR_MEMORY, "no %llu bytes for a case", bytes);
}

static enum sov_status pin(struct conform *c, u8 **memory, u64 bytes, struct sov_fault *fault) {
    void *pinned = NULL;
    enum sov_status status =
        cuda_pinned_alloc(&c->driver, bytes, "image of a case", &pinned, NULL, fault);
    *memory = pinned;
    return status;
}

// Memory for images and the host's part of at least so many bytes.
static enum sov_status provide(struct conform *c, u64 image_bytes, u64 host_bytes,
                               struct sov_fault *fault) {
    if (c->image_bytes >= image_bytes && c->host_bytes >= host_bytes) return SOV_OK;
    image_bytes = MAX(image_bytes, c->image_bytes);
    host_bytes = MAX(host_bytes, c->host_bytes);
    release_memory(c);
    c->image_bytes = image_bytes;
    c->host_bytes = host_bytes;
    enum sov_status status = map(&c->expected, image_bytes, fault);
    if (status == SOV_OK) status = map(&c->host, host_bytes, fault);
    if (c->backend == CONFORM_REFERENCE) {
        return status == SOV_OK ? map(&c->before, image_bytes, fault) : status;
    }
    if (status == SOV_OK) status = pin(c, &c->before, image_bytes, fault);
    if (status == SOV_OK) status = pin(c, &c->found, image_bytes, fault);
    if (status == SOV_OK) {
        status = cuda_memory_alloc(&c->driver, image_bytes, "image of a case", &c->memory, fault);
    }
    return status;
}

// --- open and close ---

enum sov_status conform_open(struct conform *c, enum conform_backend backend, u64 seed,
                             const struct platform_start *start, const struct cuda_options *options,
                             struct sov_fault *fault) {
    memset(c, 0, sizeof *c);
    c->backend = backend;
    c->seed = seed;
    op_fill_reference(&c->reference);
    if (backend == CONFORM_REFERENCE) return SOV_OK;
    struct cuda_options first = {0};
    enum sov_status status =
        cuda_driver_open(&c->driver, start, options == NULL ? &first : options, fault);
    if (status != SOV_OK) return status;
    status = cuda_kernels_open(&c->kernels, &c->driver, fault);
    if (status == SOV_OK) status = cuda_stream_create(&c->driver, &c->stream, fault);
    if (status != SOV_OK) conform_close(c);
    return status;
}

void conform_close(struct conform *c) {
    release_memory(c);
    if (c->backend == CONFORM_REFERENCE || !c->driver.is_open) return;
    cuda_stream_destroy(&c->driver, c->stream);
    cuda_kernels_close(&c->kernels);
    cuda_driver_close(&c->driver);
}

// --- comparison ---

static struct sha256_digest digest_outputs(const struct conform_build *b, const u8 *image,
                                           bool is_idle) {
    struct sha256 h;
    sha256_begin(&h);
    for (u32 i = 0; i < b->n_buffers; i++) {
        const struct conform_buffer *buffer = &b->buffers[i];
        struct str bytes = {image + buffer->off, buffer->bytes};
        if (buffer->role != CONFORM_OUT) continue;
        if (b->is_refused && !is_idle) { // the faults alone
            if (i != b->status) continue;
            bytes.len = sizeof(u32);
        }
        sha256_update(&h, bytes);
    }
    return sha256_end(&h);
}

// What of [off, off + bytes) differs first, or nothing.
static bool differs(const u8 *wanted, const u8 *found, u64 off, u64 bytes, u64 *first) {
    if (memcmp(wanted + off, found + off, bytes) == 0) return false;
    while (wanted[off] == found[off]) off++;
    *first = off;
    return true;
}

// The 4 bytes around a place, as they stand in memory.
static void put_bytes(struct text *t, const u8 *image, u64 at) {
    for (u32 i = 0; i < 4; i++) text_format(t, "%02x", (u32)image[(at & ~3ull) + i]);
}

static void describe(const struct conform_build *b, const u8 *wanted, const u8 *found, u64 at,
                     bool is_idle, struct conform_result *result) {
    if (result->is_wrong) return; // the first is told
    result->is_wrong = true;
    struct text t = TEXT_OVER_ARRAY(result->difference);
    text_format(&t, "%s: ", is_idle ? "power not active" : "active");
    const struct conform_buffer *in = NULL;
    for (u32 i = 0; i < b->n_buffers; i++) {
        const struct conform_buffer *buffer = &b->buffers[i];
        if (buffer->role == CONFORM_HOST) continue;
        if (at >= buffer->off && at - buffer->off < buffer->bytes) in = buffer;
    }
    if (in != NULL) {
        text_format(&t, "%s, byte %llu of %llu", in->name, at - in->off, in->bytes);
    } else {
        text_format(&t, "a guard, byte %llu of the image", at);
    }
    text_format(&t, ": word ");
    put_bytes(&t, found, at);
    text_format(&t, ", expected ");
    put_bytes(&t, wanted, at);
}

void conform_compare(const struct conform_build *b, const u8 *wanted, const u8 *found, bool is_idle,
                     struct conform_result *result) {
    u64 at = 0, first = 0;
    for (u32 i = 0; i < b->n_buffers; i++) { // in ascending order
        const struct conform_buffer *buffer = &b->buffers[i];
        bool is_free = buffer->role == CONFORM_SCRATCH ||
                       (buffer->role == CONFORM_OUT && b->is_refused);
        if (buffer->role == CONFORM_HOST || is_idle || !is_free) continue;
        u64 off = buffer->off;
        if (i == b->status) off += sizeof(u32); // the faults met are compared in any case
        if (differs(wanted, found, at, off - at, &first)) {
            describe(b, wanted, found, first, is_idle, result);
        }
        at = buffer->off + buffer->bytes;
    }
    if (differs(wanted, found, at, b->image_bytes - at, &first)) {
        describe(b, wanted, found, first, is_idle, result);
    }
}

// --- runs ---

// The image goes to the card, the launches run, and it comes back.
static enum sov_status run_on_card(struct conform *c, const struct conform_build *b,
                                   struct sov_fault *fault) {
    const char *id = b->item->id;
    enum sov_status status =
        cuda_upload(&c->driver, c->stream, c->memory, c->before, b->image_bytes, id, fault);
    for (u32 i = 0; status == SOV_OK && i < b->n_launches; i++) {
        const struct conform_launch *launch = &b->launches[i];
        status = cuda_kernels_launch(&c->kernels, c->stream, launch->kernel, launch->counts,
                                     launch->n_threads, launch->params, launch->params_bytes,
                                     fault);
    }
    if (status == SOV_OK) {
        status =
            cuda_download(&c->driver, c->stream, c->found, c->memory, b->image_bytes, id, fault);
    }
    return status == SOV_OK ? cuda_stream_wait(&c->driver, c->stream, id, fault) : status;
}

// Power words that are not active: anything but CUDA_POWER_ACTIVE.
static const u32 idle_words[] = {0, 2, 3, 0xffffffffu};

enum sov_status conform_run(struct conform *c, const struct conform_case *item,
                            struct conform_result *result, struct sov_fault *fault) {
    assert(!item->is_tensor || c->backend == CONFORM_CUDA);
    memset(result, 0, sizeof *result);
    struct conform_build b = {.item = item, .reference = &c->reference};
    conform_build(&b, c->seed);
    enum sov_status status = provide(c, b.image_bytes, b.host_bytes, fault);
    if (status != SOV_OK) return status;
    b.memory = c->memory;
    b.before = c->before;
    b.expected = c->expected;
    b.host = c->host;
    conform_build(&b, c->seed);
    if (c->backend == CONFORM_REFERENCE) {
        result->outputs = digest_outputs(&b, c->expected, false);
        result->idle_outputs = digest_outputs(&b, c->before, true);
        return SOV_OK;
    }
    conform_set_power(&b, idle_words[b.key % COUNT_OF(idle_words)]);
    status = run_on_card(c, &b, fault);
    if (status != SOV_OK) return status;
    result->idle_outputs = digest_outputs(&b, c->found, true);
    conform_compare(&b, c->before, c->found, true, result);
    conform_set_power(&b, CUDA_POWER_ACTIVE);
    status = run_on_card(c, &b, fault);
    if (status != SOV_OK) return status;
    result->outputs = digest_outputs(&b, c->found, false);
    if (item->is_tensor) conform_settle(&b, c->found, result);
    conform_compare(&b, c->expected, c->found, false, result);
    return SOV_OK;
}
