// SPDX-License-Identifier: Apache-2.0
// Reading and writing of spools. The reader keeps a window of the file in memory and reads it anew
// wherever something is missing, so what a writer appended or cut meanwhile is seen.
#include "engine/spool.h"
#include "freestanding/mem.h"

static const u8 spool_tag[SPOOL_TAG_BYTES] = {'s', 'o', 'v', '-', 'r', 't', 'x', ' ',
                                              's', 'p', 'o', 'o', 'l', ' ', 'v', '1'};

static_assert(8 + EVENT_BYTES_MAX <= SPOOL_PAYLOAD_BYTES_MAX, "every event has a frame");
static_assert(SPOOL_BUFFER_BYTES >= 4 + SPOOL_PAYLOAD_BYTES_MAX + 8, "the window holds a frame");

static u64 checksum(const u8 *frame, usize bytes) {
    struct sha256_digest digest = sha256_of((struct str){frame, bytes});
    return load_u64(digest.bytes);
}

static u64 mix(u64 x) { // the finaliser of SplitMix64
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

// --- reading ---

enum sov_status spool_reader_open(struct spool_reader *reader, const char *path,
                                  struct sov_fault *fault) {
    reader->offset = reader->n_events = reader->tail_bytes = 0;
    reader->window_offset = reader->window_bytes = 0;
    enum sov_status status = platform_open(path, PLATFORM_OPEN_READ, &reader->descriptor, fault);
    if (status != SOV_OK) return status;
    u64 bytes = 0;
    status = platform_file_size(reader->descriptor, &bytes, fault);
    if (status != SOV_OK) platform_close(reader->descriptor);
    return status;
}

void spool_reader_close(struct spool_reader *reader) { platform_close(reader->descriptor); }

// The bytes of the file at `offset`: `wanted` of them, or less at its end.
static enum sov_status fetch(struct spool_reader *r, u64 offset, usize wanted, struct str *bytes,
                             struct sov_fault *fault) {
    bool inside = offset >= r->window_offset &&
                  offset + wanted <= r->window_offset + r->window_bytes;
    if (!inside) {
        r->window_offset = offset;
        enum sov_status status = platform_read_at(r->descriptor, offset, r->window,
                                                  sizeof r->window, &r->window_bytes, fault);
        if (status != SOV_OK) return status;
    }
    usize at = (usize)(offset - r->window_offset);
    *bytes = (struct str){r->window + at, MIN(wanted, r->window_bytes - at)};
    return SOV_OK;
}

// A frame at `offset`, whole and with its checksum; else the empty slice.
static enum sov_status fetch_frame(struct spool_reader *r, u64 offset, struct str *frame,
                                   struct sov_fault *fault) {
    enum sov_status status = fetch(r, offset, 4, frame, fault);
    if (status != SOV_OK) return status;
    u32 n = frame->len == 4 ? load_u32(frame->data) : 0;
    bool whole = false;
    if (n >= 8 + EVENT_TAG_BYTES && n <= SPOOL_PAYLOAD_BYTES_MAX) {
        usize bytes = 4 + (usize)n + 8;
        status = fetch(r, offset, bytes, frame, fault);
        if (status != SOV_OK) return status;
        whole = frame->len == bytes &&
                load_u64(frame->data + 4 + n) == checksum(frame->data, 4 + (usize)n);
    }
    if (!whole) frame->len = 0;
    return SOV_OK;
}

// Looks for a frame of this program behind bytes that are none (S2). *tail_bytes: how many bytes
// the file has from there on.
static enum sov_status find_frame_behind(struct spool_reader *r, u64 offset, u64 *tail_bytes,
                                         struct sov_fault *fault) {
    struct str bytes;
    u64 at = offset;
    for (;; at++) {
        // The head and the tag decide in nearly all places.
        enum sov_status status = fetch(r, at, 12 + EVENT_TAG_BYTES, &bytes, fault);
        if (status != SOV_OK) return status;
        if (bytes.len < 12 + EVENT_TAG_BYTES) break;
        u32 n = load_u32(bytes.data);
        if (n != 8 + EVENT_BYTES && n != 8 + EVENT_SEALED_BYTES) continue;
        if (!str_starts_with((struct str){bytes.data + 12, bytes.len - 12}, STR(EVENT_TAG)))
            continue;
        struct str frame;
        status = fetch_frame(r, at, &frame, fault);
        if (status != SOV_OK) return status;
        if (frame.len == 0) continue;
        return fault_set(fault, SOV_ERR_INTEGRITY,
                         "%llu bytes at byte %llu are no event, and events follow: the spool was "
                         "damaged",
                         at - offset, offset);
    }
    *tail_bytes = at + bytes.len - offset;
    return SOV_OK;
}

// The tag at the beginning of the file; a file that ends inside it is one that was just made.
static enum sov_status read_tag(struct spool_reader *r, enum spool_found *found,
                                struct sov_fault *fault) {
    struct str tag;
    r->window_bytes = 0;
    enum sov_status status = fetch(r, 0, SPOOL_TAG_BYTES, &tag, fault);
    if (status != SOV_OK) return status;
    *found = tag.len == 0 ? SPOOL_END : SPOOL_TAIL;
    struct str wanted = {spool_tag, tag.len};
    if (!str_equal(tag, wanted)) {
        return fault_set(fault, SOV_ERR_FORMAT, "not a spool: it does not begin with \"%.*s\"",
                         SPOOL_TAG_BYTES, (const char *)spool_tag);
    }
    r->tail_bytes = tag.len < SPOOL_TAG_BYTES ? tag.len : 0;
    if (tag.len < SPOOL_TAG_BYTES) return SOV_OK;
    r->offset = SPOOL_TAG_BYTES;
    *found = SPOOL_EVENT;
    return SOV_OK;
}

// No frame stands at the reader's offset: is it the end, a tail, or worse?
static enum sov_status look_behind(struct spool_reader *r, enum spool_found *found,
                                   struct sov_fault *fault) {
    u64 bytes = 0;
    enum sov_status status = platform_file_size(r->descriptor, &bytes, fault);
    if (status != SOV_OK) return status;
    if (bytes < r->offset) {
        return fault_set(fault, SOV_ERR_INTEGRITY,
                         "the spool has %llu bytes, %llu were read: it was cut or replaced", bytes,
                         r->offset);
    }
    r->tail_bytes = 0;
    status = find_frame_behind(r, r->offset, &r->tail_bytes, fault);
    *found = r->tail_bytes == 0 ? SPOOL_END : SPOOL_TAIL;
    return status;
}

enum sov_status spool_read(struct spool_reader *reader, struct spool_record *record,
                           enum spool_found *found, struct sov_fault *fault) {
    if (reader->offset == 0) {
        enum sov_status status = read_tag(reader, found, fault);
        if (status != SOV_OK || *found != SPOOL_EVENT) return status;
    }
    struct str frame;
    enum sov_status status = fetch_frame(reader, reader->offset, &frame, fault);
    if (status == SOV_OK && frame.len == 0) { // look again: the file may have grown meanwhile
        reader->window_bytes = 0;
        status = fetch_frame(reader, reader->offset, &frame, fault);
    }
    if (status != SOV_OK) return status;
    if (frame.len == 0) {
        status = look_behind(reader, found, fault);
        if (status != SOV_ERR_INTEGRITY) return status;
        // A writer may be at work: what follows may have come since the first look, and then the
        // frame at the offset has come before it.
        struct sov_fault again = {0};
        reader->window_bytes = 0;
        enum sov_status second = fetch_frame(reader, reader->offset, &frame, &again);
        if (second != SOV_OK || frame.len == 0) return status;
        *fault = (struct sov_fault){0};
    }
    struct sov_fault inner = {0};
    status = event_read((struct str){frame.data + 12, frame.len - 20}, &record->event, &inner);
    if (status != SOV_OK) {
        return fault_set(fault, status, "at byte %llu: %s", reader->offset, inner.message);
    }
    record->wall_ns = load_u64(frame.data + 4);
    record->position = reader->n_events++;
    reader->offset += frame.len;
    reader->tail_bytes = 0;
    *found = SPOOL_EVENT;
    return SOV_OK;
}

// --- chains ---

struct spool_head {
    u64 sequence_id;
    u64 next_number; // above 0; 0: the slot is free
    struct sha256_digest digest;
};
#define HEADS_MIN 64

static struct spool_head *find_head(struct spool_head *heads, u32 n_slots, u64 sequence_id) {
    for (u64 i = mix(sequence_id);; i++) {
        struct spool_head *head = &heads[i & (n_slots - 1)];
        if (head->next_number == 0 || head->sequence_id == sequence_id) return head;
    }
}

// Room for one more head: at most three quarters of the slots are taken.
static enum sov_status heads_reserve(struct spool_chains *chains, struct sov_fault *fault) {
    if (4 * (u64)(chains->n_heads + 1) <= 3 * (u64)chains->n_slots) return SOV_OK;
    u32 n_slots = MAX(2 * chains->n_slots, (u32)HEADS_MIN);
    u64 bytes = n_slots * sizeof(struct spool_head);
    struct spool_head *heads = n_slots < SPOOL_EVENTS_MAX ? platform_memory_map(bytes) : NULL;
    if (heads == NULL) {
        return fault_set(fault, SOV_ERR_MEMORY,
                         "chains of %u sequences: %llu bytes are not to be "
                         "had",
                         chains->n_heads, bytes);
    }
    for (u32 i = 0; i < chains->n_slots; i++) {
        const struct spool_head *old = &chains->heads[i];
        if (old->next_number != 0) *find_head(heads, n_slots, old->sequence_id) = *old;
    }
    u32 n_heads = chains->n_heads;
    spool_chains_free(chains);
    *chains = (struct spool_chains){.heads = heads, .n_slots = n_slots, .n_heads = n_heads};
    return SOV_OK;
}

enum sov_status spool_chains_check(struct spool_chains *chains, const struct spool_record *record,
                                   struct sov_fault *fault) {
    enum sov_status status = heads_reserve(chains, fault);
    if (status != SOV_OK) return status;
    const struct sov_event *event = &record->event;
    struct spool_head *head = find_head(chains->heads, chains->n_slots, event->sequence_id);
    if (head->next_number == 0) {
        chains->n_heads++;
    } else if (event->number != head->next_number) {
        return fault_set(fault, SOV_ERR_INTEGRITY,
                         "event %llu of the spool is number %llu of sequence %08x%08x, expected "
                         "number %llu",
                         record->position, event->number, (u32)(event->sequence_id >> 32),
                         (u32)event->sequence_id, head->next_number);
    } else if (!sha256_equal(&event->prior_digest, &head->digest)) {
        return fault_set(fault, SOV_ERR_INTEGRITY,
                         "event %llu of the spool, number %llu of sequence %08x%08x, does not "
                         "follow the one before it: the chain of digests is broken",
                         record->position, event->number, (u32)(event->sequence_id >> 32),
                         (u32)event->sequence_id);
    }
    *head = (struct spool_head){event->sequence_id, event->number + 1, event->transition_digest};
    return SOV_OK;
}

void spool_chains_free(struct spool_chains *chains) {
    if (chains->heads != NULL) {
        platform_memory_unmap(chains->heads, chains->n_slots * sizeof(struct spool_head));
    }
    *chains = (struct spool_chains){0};
}

// --- index of a writer ---

struct spool_slot {
    u64 key;    // of (sequence_id, number)
    u64 offset; // of the frame; 0: the slot is free
};
#define INDEX_SLOTS_MIN 1024

static u64 index_key(u64 sequence_id, u64 number) { return mix(sequence_id ^ mix(number + 1)); }

static void index_put(struct spool_slot *index, u32 n_slots, u64 key, u64 offset) {
    u64 i = key;
    while (index[i & (n_slots - 1)].offset != 0) i++;
    index[i & (n_slots - 1)] = (struct spool_slot){key, offset};
}

static enum sov_status index_reserve(struct spool *spool, struct sov_fault *fault) {
    if (4 * (spool->n_events + 1) <= 3 * (u64)spool->n_slots) return SOV_OK;
    if (spool->n_events >= SPOOL_EVENTS_MAX) {
        return fault_set(fault, SOV_ERR_LIMIT, "a spool takes %u events: begin a new one",
                         SPOOL_EVENTS_MAX);
    }
    u32 n_slots = MAX(2 * spool->n_slots, (u32)INDEX_SLOTS_MIN);
    u64 bytes = n_slots * sizeof(struct spool_slot);
    struct spool_slot *index = platform_memory_map(bytes);
    if (index == NULL) {
        return fault_set(fault, SOV_ERR_MEMORY, "index of a spool: %llu bytes are not to be had",
                         bytes);
    }
    for (u32 i = 0; i < spool->n_slots; i++) {
        const struct spool_slot *old = &spool->index[i];
        if (old->offset != 0) index_put(index, n_slots, old->key, old->offset);
    }
    if (spool->index != NULL) {
        platform_memory_unmap(spool->index, spool->n_slots * sizeof(struct spool_slot));
    }
    spool->index = index;
    spool->n_slots = n_slots;
    return SOV_OK;
}

// Reads the event whose frame is at `offset`, in the file or still in the buffer.
static enum sov_status read_back(const struct spool *spool, u64 offset, struct sov_event *event,
                                 struct sov_fault *fault) {
    u8 frame[SPOOL_FRAME_BYTES_MAX];
    usize n = 0;
    if (offset >= spool->written) {
        usize at = (usize)(offset - spool->written);
        n = MIN(spool->n_buffered - at, sizeof frame);
        memcpy(frame, spool->buffer + at, n);
    } else {
        enum sov_status status =
            platform_read_at(spool->descriptor, offset, frame, sizeof frame, &n, fault);
        if (status != SOV_OK) return status;
    }
    // It was whole when it was indexed.
    u64 bytes = n < 4 ? 0 : load_u32(frame);
    if (bytes < 8 || n < 4 + bytes) {
        return fault_set(fault, SOV_ERR_INTEGRITY, "the spool was cut at byte %llu", offset);
    }
    return event_read((struct str){frame + 12, (usize)bytes - 8}, event, fault);
}

// Whether the event stands in the spool already (S3).
static enum sov_status find_again(const struct spool *spool, const struct sov_event *event,
                                  bool *found, struct sov_fault *fault) {
    u64 key = index_key(event->sequence_id, event->number);
    *found = false;
    for (u64 i = key;; i++) {
        const struct spool_slot *slot = &spool->index[i & (spool->n_slots - 1)];
        if (slot->offset == 0) return SOV_OK;
        if (slot->key != key) continue;
        struct sov_event there = {0};
        enum sov_status status = read_back(spool, slot->offset, &there, fault);
        if (status != SOV_OK) return status;
        if (there.sequence_id != event->sequence_id || there.number != event->number) continue;
        *found = sha256_equal(&there.transition_digest, &event->transition_digest);
        if (*found) return SOV_OK;
        return fault_set(fault, SOV_ERR_INTEGRITY,
                         "event %llu of sequence %08x%08x stands in the spool with another digest",
                         event->number, (u32)(event->sequence_id >> 32), (u32)event->sequence_id);
    }
}

// --- writing ---

// Reads what is there into the index; what follows the last frame is cut.
static enum sov_status scan(struct spool *spool, struct spool_reader *reader,
                            struct sov_fault *fault) {
    for (;;) {
        struct spool_record record = {0};
        enum spool_found found = SPOOL_END;
        u64 offset = MAX(reader->offset, (u64)SPOOL_TAG_BYTES);
        enum sov_status status = spool_read(reader, &record, &found, fault);
        if (status == SOV_OK && found == SPOOL_EVENT) status = index_reserve(spool, fault);
        if (status != SOV_OK) return status;
        if (found != SPOOL_EVENT) break;
        bool twice = false;
        status = find_again(spool, &record.event, &twice, fault);
        if (status != SOV_OK) return status;
        if (twice) {
            return fault_set(fault, SOV_ERR_INTEGRITY, "the event at byte %llu stands twice",
                             offset);
        }
        index_put(spool->index, spool->n_slots,
                  index_key(record.event.sequence_id, record.event.number), offset);
        spool->n_events++;
        spool->written = reader->offset;
    }
    spool->written = reader->offset;
    spool->cut_bytes = reader->tail_bytes;
    if (spool->cut_bytes == 0) return SOV_OK;
    return platform_truncate(spool->descriptor, spool->written, fault);
}

enum sov_status spool_open(struct spool *spool, const char *path, struct sov_fault *fault) {
    spool->written = spool->n_events = spool->n_skipped = spool->cut_bytes = 0;
    spool->n_buffered = 0;
    spool->status = SOV_OK;
    spool->index = NULL;
    spool->n_slots = 0;
    u64 reader_bytes = sizeof(struct spool_reader);
    struct spool_reader *reader = platform_memory_map(reader_bytes);
    if (reader == NULL) {
        return fault_set(fault, SOV_ERR_MEMORY, "spool: %llu bytes are not to be had",
                         reader_bytes);
    }
    enum sov_status status = platform_open(path, PLATFORM_OPEN_APPEND, &spool->descriptor, fault);
    if (status == SOV_OK) {
        reader->descriptor = spool->descriptor;
        u64 bytes = 0;
        status = platform_file_size(spool->descriptor, &bytes, fault);
        if (status == SOV_OK) status = platform_lock(spool->descriptor, fault);
        if (status == SOV_OK) status = index_reserve(spool, fault);
        if (status == SOV_OK) status = scan(spool, reader, fault);
        if (status == SOV_OK && spool->written == 0) {
            status = platform_write(spool->descriptor, spool_tag, sizeof spool_tag, fault);
            spool->written = sizeof spool_tag;
        }
        if (status != SOV_OK) spool_close(spool);
    }
    platform_memory_unmap(reader, reader_bytes);
    return status;
}

enum sov_status spool_append(struct spool *spool, const struct sov_event *event, u64 wall_ns,
                             struct sov_fault *fault) {
    if (spool->status != SOV_OK) {
        return fault_set(fault, spool->status, "the spool takes no more events: a write failed");
    }
    bool found = false;
    enum sov_status status = index_reserve(spool, fault);
    if (status == SOV_OK) status = find_again(spool, event, &found, fault);
    if (status != SOV_OK) return status;
    if (found) {
        spool->n_skipped++;
        return SOV_OK;
    }
    if (spool->n_buffered + SPOOL_FRAME_BYTES_MAX > sizeof spool->buffer) {
        status = spool_flush(spool, fault);
        if (status != SOV_OK) return status;
    }
    u8 *frame = spool->buffer + spool->n_buffered;
    usize payload = 8 + event_bytes(event);
    store_u32(frame, (u32)payload);
    store_u64(frame + 4, wall_ns);
    event_write(event, frame + 12);
    store_u64(frame + 4 + payload, checksum(frame, 4 + payload));
    index_put(spool->index, spool->n_slots, index_key(event->sequence_id, event->number),
              spool->written + spool->n_buffered);
    spool->n_buffered += 4 + payload + 8;
    spool->n_events++;
    return SOV_OK;
}

bool spool_has(const struct spool *spool, u64 sequence_id, u64 number) {
    u64 key = index_key(sequence_id, number);
    for (u64 i = key;; i++) {
        const struct spool_slot *slot = &spool->index[i & (spool->n_slots - 1)];
        if (slot->offset == 0) return false;
        if (slot->key != key) continue;
        struct sov_event there = {0};
        enum sov_status status = read_back(spool, slot->offset, &there, NULL);
        if (status != SOV_OK) return false;
        if (there.sequence_id == sequence_id && there.number == number) return true;
    }
}

enum sov_status spool_flush(struct spool *spool, struct sov_fault *fault) {
    if (spool->status != SOV_OK) {
        return fault_set(fault, spool->status, "the spool takes no more events: a write failed");
    }
    if (spool->n_buffered == 0) return SOV_OK;
    spool->status = platform_write(spool->descriptor, spool->buffer, spool->n_buffered, fault);
    spool->written += spool->n_buffered;
    spool->n_buffered = 0;
    return spool->status;
}

void spool_close(struct spool *spool) {
    if (spool->index != NULL) {
        platform_memory_unmap(spool->index, spool->n_slots * sizeof(struct spool_slot));
    }
    spool->index = NULL;
    platform_close(spool->descriptor);
}
