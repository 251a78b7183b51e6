// SPDX-License-Identifier: Apache-2.0
// libFuzzer harness of spools. The file is whatever the input says; or, so that damage gets past
// the digests, frames of it are given the right length, tag, digests and checksum first:
//
//   first byte: 1  each piece of 165 bytes behind the tag becomes a frame with a right checksum
//               2  and its event gets a right tag and digest
//               4  and its fields become those of an event that may be
//               8  pieces of 197 bytes: sealed events
//   the rest:   the file, behind the tag when one of these is set
//
// What the reader gives out stands in the file byte for byte. The writer takes the same files as
// the reader (but for an event that stands twice), finds every event again, cuts the tail and goes
// on; afterwards everything is read.
#define _GNU_SOURCE
#include "engine/spool.h"
#include "freestanding/mem.h"
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define EVENTS_MAX 64

int LLVMFuzzerTestOneInput(const u8 *data, usize bytes);

static struct {
    int descriptor;
    char path[64];
    struct spool_reader reader;
    struct spool spool;
    struct spool_record records[EVENTS_MAX];
    u64 offsets[EVENTS_MAX];
} world;

static void set_file(const u8 *data, usize bytes) {
    if (world.path[0] == 0) {
        world.descriptor = memfd_create("spool", 0);
        assert(world.descriptor >= 0);
        snprintf(world.path, sizeof world.path, "/proc/self/fd/%d", world.descriptor);
    }
    int cut = ftruncate(world.descriptor, 0);
    ssize_t written = pwrite(world.descriptor, data, bytes, 0);
    assert(cut == 0 && written == (ssize_t)bytes);
}

static u64 file_bytes(void) { return (u64)lseek(world.descriptor, 0, SEEK_END); }

// --- repairs ---

// Numbers and states that fit each other, chosen by the bytes that are there.
static void repair_fields(u8 *event, u8 flags) {
    u32 type = EVENT_ADMITTED + event[20] % 3, count = event[31] % 4;
    if (type == EVENT_ADMITTED) count = 0;
    if (type == EVENT_TOKEN) count++;
    bool is_sealed = (flags & 8) != 0;
    store_u32(event + 16, is_sealed ? EVENT_VERSION_SEALED : EVENT_VERSION);
    event[20] = (u8)type;
    store_u64(event + 21, event[21] % 3);
    event[29] = type == EVENT_ADMITTED ? SEQUENCE_IDLE : SEQUENCE_GENERATE;
    event[30] = type == EVENT_ADMITTED   ? SEQUENCE_PREFILL
                : type == EVENT_FINISHED ? SEQUENCE_IDLE
                                         : SEQUENCE_GENERATE;
    store_u32(event + 31, count);
    if (type != EVENT_TOKEN || is_sealed) store_u32(event + 35, EVENT_NO_TOKEN);
    if (type == EVENT_TOKEN && !is_sealed) event[38] = 0;
    if (is_sealed && type == EVENT_TOKEN) event[EVENT_HASHED_BYTES] |= 1;
    if (is_sealed && type != EVENT_TOKEN) memset(event + EVENT_HASHED_BYTES, 0, SHA256_BYTES);
    event[39] = type == EVENT_FINISHED ? (u8)(1 + event[39] % 5) : 0;
    event[40] = type == EVENT_TOKEN ? event[40] & 1 : 0;
    if (event[40] == 0) memset(event + 41, 0, SHA256_BYTES);
    store_u64(event + 73, type == EVENT_FINISHED ? (u64)count + 1 : count);
}

static usize frame_bytes(u8 flags) {
    return (flags & 8) != 0 ? SPOOL_FRAME_BYTES_MAX : SPOOL_FRAME_BYTES;
}

static void repair_frame(u8 *frame, u8 flags) {
    u8 *event = frame + 12;
    usize bytes = frame_bytes(flags), n_hashed = bytes - 20 - SHA256_BYTES;
    store_u32(frame, (u32)bytes - 12);
    if ((flags & 4) != 0) repair_fields(event, flags);
    if ((flags & 6) != 0) {
        memcpy(event, EVENT_TAG, EVENT_TAG_BYTES);
        struct sha256_digest digest = sha256_of((struct str){event, n_hashed});
        memcpy(event + n_hashed, digest.bytes, SHA256_BYTES);
    }
    struct sha256_digest sum = sha256_of((struct str){frame, bytes - 8});
    memcpy(frame + bytes - 8, sum.bytes, 8);
}

static usize repair(u8 *out, const u8 *data, usize bytes, u8 flags) {
    memcpy(out, "sov-rtx spool v1", SPOOL_TAG_BYTES);
    memcpy(out + SPOOL_TAG_BYTES, data, bytes);
    usize frame = frame_bytes(flags);
    for (usize at = 0; at + frame <= bytes; at += frame) {
        repair_frame(out + SPOOL_TAG_BYTES + at, flags);
    }
    return SPOOL_TAG_BYTES + bytes;
}

// --- reading and writing ---

// Reads to the end or to a fault; how many events.
static enum sov_status read_all(u32 *n, u64 *tail, struct sov_fault *fault) {
    struct spool_chains chains = {0};
    *n = 0;
    enum sov_status status = spool_reader_open(&world.reader, world.path, fault);
    assert(status == SOV_OK);
    for (;;) {
        enum spool_found found = SPOOL_END;
        u64 offset = MAX(world.reader.offset, (u64)SPOOL_TAG_BYTES);
        struct spool_record record;
        status = spool_read(&world.reader, &record, &found, fault);
        if (status != SOV_OK || found != SPOOL_EVENT) {
            *tail = world.reader.tail_bytes;
            assert(status != SOV_OK || (found == SPOOL_TAIL) == (*tail > 0));
            break;
        }
        u8 there[EVENT_BYTES_MAX], again[EVENT_BYTES_MAX];
        usize event = event_bytes(&record.event);
        ssize_t got = pread(world.descriptor, there, event, (off_t)offset + 12);
        event_write(&record.event, again);
        assert(got == (ssize_t)event && memcmp(there, again, event) == 0);
        assert(record.position == *n && *n < EVENTS_MAX);
        struct sov_fault ignored = {0};
        enum sov_status chained = spool_chains_check(&chains, &record, &ignored);
        assert(chained == SOV_OK || chained == SOV_ERR_INTEGRITY);
        world.offsets[*n] = offset;
        world.records[(*n)++] = record;
    }
    spool_chains_free(&chains);
    spool_reader_close(&world.reader);
    return status;
}

static bool has_event_twice(u32 n) {
    for (u32 i = 0; i < n; i++) {
        for (u32 k = 0; k < i; k++) {
            const struct sov_event *a = &world.records[i].event, *b = &world.records[k].event;
            if (a->sequence_id == b->sequence_id && a->number == b->number) return true;
        }
    }
    return false;
}

// What is there is found there; another event is appended.
static void go_on(u32 n) {
    struct sov_fault fault = {0};
    for (u32 i = 0; i < n; i++) {
        enum sov_status status = spool_append(&world.spool, &world.records[i].event, 1, &fault);
        assert(status == SOV_OK && world.spool.n_skipped == i + 1);
    }
    struct event_chain chain;
    struct sha256_digest origin = sha256_of(STR("fuzz"));
    event_chain_begin(&chain, 0xf00d, &origin, n % 2 == 0 ? NULL : &origin);
    struct sov_event event = {
        .type = EVENT_ADMITTED, .new_state = SEQUENCE_PREFILL, .sampled_token_id = EVENT_NO_TOKEN};
    event_seal(&chain, &event);
    enum sov_status status = spool_append(&world.spool, &event, 1, &fault);
    assert(status == SOV_OK);
    status = spool_flush(&world.spool, &fault);
    assert(status == SOV_OK);
}

int LLVMFuzzerTestOneInput(const u8 *data, usize bytes) {
    static u8 file[SPOOL_TAG_BYTES + EVENTS_MAX * SPOOL_FRAME_BYTES_MAX];
    if (bytes < 1 || bytes - 1 > (EVENTS_MAX - 1) * SPOOL_FRAME_BYTES) return 0;
    u8 flags = data[0] & 15;
    if (flags != 0) {
        usize n = repair(file, data + 1, bytes - 1, flags);
        set_file(file, n);
    } else {
        set_file(data + 1, bytes - 1);
    }
    u64 before = file_bytes(), mapped = platform_memory_mapped(), tail = 0, tail_after = 0;
    u32 n = 0, n_after = 0;
    struct sov_fault fault = {0};
    enum sov_status read = read_all(&n, &tail, &fault);
    assert(read == SOV_OK || read == SOV_ERR_FORMAT || read == SOV_ERR_INTEGRITY);
    assert(read == SOV_OK || fault.message[0] != 0);
    bool twice = has_event_twice(n);
    fault = (struct sov_fault){0};
    enum sov_status opened = spool_open(&world.spool, world.path, &fault);
    if (opened == SOV_OK) {
        assert(read == SOV_OK && !twice && world.spool.n_events == n);
        assert(world.spool.cut_bytes == tail);
        go_on(n);
        spool_close(&world.spool);
        fault = (struct sov_fault){0};
        read = read_all(&n_after, &tail_after, &fault);
        assert(read == SOV_OK && n_after == n + 1 && tail_after == 0);
        usize head = SPOOL_TAG_BYTES;
        u64 added = n % 2 == 0 ? SPOOL_FRAME_BYTES : SPOOL_FRAME_BYTES_MAX;
        assert(file_bytes() == MAX(before - tail, (u64)head) + added);
    } else {
        assert(read != SOV_OK || twice);
        assert(file_bytes() == before); // what is refused is left as it is
    }
    assert(platform_memory_mapped() == mapped);
    return 0;
}
