// SPDX-License-Identifier: Apache-2.0
// The spool: the file in which events leave the engine. One process appends to it, any number read
// it while it grows; they share nothing but the file, so no reader can slow the engine or stop it.
//
//      0  16  "sov-rtx spool v1"
//     16      frames, one behind the other:
//              0  4  n, the bytes between here and the checksum
//              4  8  wall clock of the append, ns since 1970; 0: not known
//             12     an event's bytes (event.h), n - 8 of them
//          4 + n  8  checksum: the first 8 bytes of the SHA-256 of all that is in front of it
//                    in the frame
//
// S1. An event is appended after its commit, whole frames in one write; nothing that stands in the
//     spool is changed.
// S2. What a crash leaves of the last write is a beginning of it. Such a tail is recognised (no
//     whole frame stands in it), named by readers, and cut by the next writer. A whole frame behind
//     bytes that are none is damage, and nobody goes on from there.
// S3. (sequence_id, number) stands in a spool once. Appending it again with the same digest changes
//     nothing; with another one it is SOV_ERR_INTEGRITY.
// S4. Neither the order of the frames nor the clock is part of any digest.
#pragma once
#include "engine/event.h"
#include "platform/platform.h"

#define SPOOL_TAG_BYTES 16
#define SPOOL_EVENTS_MAX (1u << 26)                 // of one spool, for a writer
#define SPOOL_PAYLOAD_BYTES_MAX 1024                // n of a frame
#define SPOOL_FRAME_BYTES (4 + 8 + EVENT_BYTES + 8) // with an event in clear
#define SPOOL_FRAME_BYTES_MAX (4 + 8 + EVENT_BYTES_MAX + 8)
#define SPOOL_BUFFER_BYTES (256 * 1024)

struct spool_record {
    struct sov_event event;
    u64 wall_ns;
    u64 position; // which event of the spool it is, from 0
};

// --- reading ---
enum spool_found {
    SPOOL_EVENT,
    SPOOL_END,  // nothing more
    SPOOL_TAIL, // `tail_bytes` that are no whole frame (S2); more may come
};

struct spool_reader {
    int descriptor;
    u64 offset; // of the next frame
    u64 n_events, tail_bytes;
    u64 window_offset; // of the bytes that are in memory
    usize window_bytes;
    u8 window[SPOOL_BUFFER_BYTES];
};
// Opens a file for spool_read. Nothing is read yet.
enum sov_status spool_reader_open(struct spool_reader *reader, const char *path,
                                  struct sov_fault *fault) MUST_CHECK;
void spool_reader_close(struct spool_reader *reader);
// The next event. After SPOOL_END and SPOOL_TAIL it may be called again: it looks at the file anew.
// SOV_ERR_FORMAT: not a spool, or events of another version; SOV_ERR_INTEGRITY: damage (S2), or the
// file is shorter than it was.
enum sov_status spool_read(struct spool_reader *reader, struct spool_record *record,
                           enum spool_found *found, struct sov_fault *fault) MUST_CHECK;

// Whether the events of each sequence follow each other: numbers without a gap, each prior digest
// that of the event before. A sequence may begin at any number (the spool before it is elsewhere).
struct spool_chains {
    struct spool_head *heads; // [n_slots] a hash table, or NULL
    u32 n_slots, n_heads;
};
// SOV_ERR_INTEGRITY when it does not follow, SOV_ERR_MEMORY.
enum sov_status spool_chains_check(struct spool_chains *chains, const struct spool_record *record,
                                   struct sov_fault *fault) MUST_CHECK;
void spool_chains_free(struct spool_chains *chains);

// --- writing ---
struct spool {
    int descriptor;
    u64 written;              // bytes of the file that are whole frames
    u64 n_events;             // in the file and in the buffer
    u64 n_skipped;            // appended again and found there
    u64 cut_bytes;            // of a tail, when it was opened
    enum sov_status status;   // of the first write that failed; nothing is written after it
    struct spool_slot *index; // [n_slots] where each event stands, a hash table
    u32 n_slots;
    usize n_buffered;
    u8 buffer[SPOOL_BUFFER_BYTES];
};
// Opens a spool to append to it, made when it is not there. Reads all of it, cuts a tail, and
// refuses one that is damaged or that another process writes to.
enum sov_status spool_open(struct spool *spool, const char *path, struct sov_fault *fault)
    MUST_CHECK;
// Takes an event (S3). It is in the file after spool_flush, or before.
enum sov_status spool_append(struct spool *spool, const struct sov_event *event, u64 wall_ns,
                             struct sov_fault *fault) MUST_CHECK;
// Whether the event stands there, with whatever digest.
bool spool_has(const struct spool *spool, u64 sequence_id, u64 number);
enum sov_status spool_flush(struct spool *spool, struct sov_fault *fault) MUST_CHECK;
// Flushes nothing.
void spool_close(struct spool *spool);
