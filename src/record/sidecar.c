// SPDX-License-Identifier: Apache-2.0
// The sidecar's entries: found by walking from one head to the next, and, where a head is damaged,
// by looking for the next tag. Its index is a sorted table: whatever the digests are that a file
// says it has, the time for it grows as n log n.
#include "record/sidecar.h"
#include "freestanding/mem.h"
#include "platform/platform.h"

#define ENTRY_TAG "sov-rtx sidec v1"
#define NEW_NAME "sidecar.new"
#define SLOTS_MIN 64u
#define COPY_BYTES (64u << 10)

static_assert(sizeof ENTRY_TAG - 1 == SEALED_TAG_BYTES, "the tag has its stated length");

// --- entries ---

struct entry {
    u64 offset, sequence_id;
    struct sealed sealed;
};

static void write_head(const struct entry *entry, u8 out[SIDECAR_HEAD_BYTES]) {
    struct str tag = STR(ENTRY_TAG);
    memcpy(out, tag.data, tag.len);
    store_u64(out + 16, entry->sealed.opening_bytes);
    store_u64(out + 24, entry->sequence_id);
    memcpy(out + 32, entry->sealed.commitment.bytes, SHA256_BYTES);
    struct sha256_digest check = sha256_of((struct str){out, 64});
    memcpy(out + 64, check.bytes, 8);
}

static bool read_head(const u8 head[SIDECAR_HEAD_BYTES], struct entry *entry) {
    struct sha256_digest check = sha256_of((struct str){head, 64});
    if (memcmp(head, ENTRY_TAG, SEALED_TAG_BYTES) != 0 || memcmp(head + 64, check.bytes, 8) != 0) {
        return false;
    }
    entry->sealed.opening_bytes = load_u64(head + 16);
    entry->sequence_id = load_u64(head + 24);
    memcpy(entry->sealed.commitment.bytes, head + 32, SHA256_BYTES);
    return true;
}

// A file that is walked.
struct walk {
    const struct rowm_disk *disk;
    int file;
    u64 bytes, offset; // of the file; where the next entry may begin
    u64 cut_at;        // the first head since `is_cut` was false that the file is too short for
    bool is_cut;       // there is one
};

static enum sov_status read_at(const struct walk *w, u64 offset, void *out, usize bytes, usize *n,
                               struct sov_fault *fault) {
    return w->disk->read_at(w->disk->context, w->file, offset, out, bytes, n, fault);
}

// The first tag at `offset` or behind it, or the end of the file.
static enum sov_status find_tag(struct walk *w, u64 offset, struct sov_fault *fault) {
    u8 window[4096];
    usize n = 0;
    for (;; offset += n - SEALED_TAG_BYTES + 1) {
        enum sov_status status = read_at(w, offset, window, sizeof window, &n, fault);
        if (status != SOV_OK) return status;
        if (n < SEALED_TAG_BYTES) break;
        for (usize i = 0; i + SEALED_TAG_BYTES <= n; i++) {
            if (window[i] != ENTRY_TAG[0] || memcmp(window + i, ENTRY_TAG, SEALED_TAG_BYTES) != 0) {
                continue;
            }
            w->offset = offset + i;
            return SOV_OK;
        }
    }
    w->offset = w->bytes;
    return SOV_OK;
}

// The next entry whose head is right; *found is false behind the last one.
static enum sov_status next_entry(struct walk *w, struct entry *entry, bool *found,
                                  struct sov_fault *fault) {
    *found = false;
    while (w->offset < w->bytes && w->bytes - w->offset >= SIDECAR_HEAD_BYTES) {
        u8 head[SIDECAR_HEAD_BYTES];
        usize n = 0;
        enum sov_status status = read_at(w, w->offset, head, sizeof head, &n, fault);
        if (status != SOV_OK) return status;
        u64 room = w->bytes - w->offset - SIDECAR_HEAD_BYTES;
        if (n == sizeof head && read_head(head, entry)) {
            entry->offset = w->offset;
            if (entry->sealed.opening_bytes <= room) {
                w->offset += SIDECAR_HEAD_BYTES + entry->sealed.opening_bytes;
                *found = true;
                return SOV_OK;
            }
            // What a crash left, with nothing behind it; or it stands in the bytes of an entry
            // whose own head is damaged, and what follows is as good as ever.
            if (!w->is_cut) w->cut_at = w->offset;
            w->is_cut = true;
        }
        status = find_tag(w, w->offset + 1, fault);
        if (status != SOV_OK) return status;
    }
    return SOV_OK;
}

static enum sov_status open_walk(struct walk *w, const struct rowm_disk *disk,
                                 enum rowm_open_mode mode, struct sov_fault *fault) {
    *w = (struct walk){.disk = disk};
    enum sov_status status = disk->open(disk->context, SIDECAR_NAME, mode, &w->file, fault);
    if (status != SOV_OK) return status;
    status = disk->size(disk->context, w->file, &w->bytes, fault);
    if (status != SOV_OK) disk->close(disk->context, w->file);
    return status;
}

// --- writing ---

void sidecar_writer_init(struct sidecar_writer *writer, const struct rowm_disk *disk) {
    *writer = (struct sidecar_writer){.disk = disk};
}

// Under another name first: a sync of the folder that succeeds after one that failed proves nothing
// of a name that was there before.
static enum sov_status create(struct sidecar_writer *writer, struct sov_fault *fault) {
    const struct rowm_disk *disk = writer->disk;
    enum sov_status status =
        disk->open(disk->context, NEW_NAME, ROWM_OPEN_CREATE, &writer->file, fault);
    if (status != SOV_OK) return status;
    status = disk->rename(disk->context, NEW_NAME, SIDECAR_NAME, fault);
    if (status == SOV_OK) status = disk->sync_names(disk->context, fault);
    if (status != SOV_OK) disk->close(disk->context, writer->file);
    return status;
}

// Makes tags in [from, to), where no entry stands, unreadable: heads behind them lead beyond the
// end of the file, and would lead into what is appended.
static enum sov_status take_tags(struct walk *w, u64 from, u64 to, struct sov_fault *fault) {
    struct walk at = *w;
    const u8 zero = 0;
    enum sov_status status = find_tag(&at, from, fault);
    while (status == SOV_OK && at.offset < to) {
        status =
            w->disk->write_at(w->disk->context, w->file, at.offset, (struct str){&zero, 1}, fault);
        if (status == SOV_OK) status = find_tag(&at, at.offset + 1, fault);
    }
    return status;
}

// What is there, or, where nothing was ever written, a new file; the beginning of an entry at the
// end, which a crash left, is cut: what is appended would be taken for the rest of it.
static enum sov_status open_again(struct sidecar_writer *writer, struct sov_fault *fault) {
    struct walk w;
    struct entry entry;
    bool found = true;
    enum sov_status status = open_walk(&w, writer->disk, ROWM_OPEN_UPDATE, fault);
    if (status != SOV_OK) return status;
    if (w.bytes == 0) {
        w.disk->close(w.disk->context, w.file);
        return create(writer, fault);
    }
    while (status == SOV_OK && found) {
        status = next_entry(&w, &entry, &found, fault);
        if (status != SOV_OK || !found || !w.is_cut) continue;
        w.is_cut = false;
        status = take_tags(&w, w.cut_at, entry.offset, fault);
    }
    writer->end = w.is_cut ? w.cut_at : w.bytes;
    if (status == SOV_OK && w.is_cut) {
        status = w.disk->truncate(w.disk->context, w.file, writer->end, fault);
    }
    writer->file = w.file;
    if (status != SOV_OK) w.disk->close(w.disk->context, w.file);
    return status;
}

// Faults of an open file do not say which one.
static enum sov_status name_fault(const struct sov_fault *inner, struct sov_fault *fault) {
    if (inner->status == SOV_OK) return SOV_OK;
    return fault_set(fault, inner->status, "sidecar: %s", inner->message);
}

enum sov_status sidecar_append(struct sidecar_writer *writer, u64 sequence_id, struct str opening,
                               struct sov_fault *fault) {
    const struct rowm_disk *disk = writer->disk;
    struct sov_fault inner = {0};
    enum sov_status status = SOV_OK;
    if (!writer->is_open) {
        bool is_new = disk->is_missing(disk->context, SIDECAR_NAME);
        status = is_new ? create(writer, fault) : open_again(writer, fault);
        if (status != SOV_OK) return status;
        writer->is_open = true;
    }
    struct entry entry = {.sequence_id = sequence_id};
    entry.sealed.opening_bytes = opening.len;
    entry.sealed.commitment = sha256_of(opening);
    u8 head[SIDECAR_HEAD_BYTES];
    write_head(&entry, head);
    writer->is_dirty = true;
    status = disk->write_at(disk->context, writer->file, writer->end,
                            (struct str){head, sizeof head}, &inner);
    if (status == SOV_OK) {
        status =
            disk->write_at(disk->context, writer->file, writer->end + sizeof head, opening, &inner);
    }
    if (status == SOV_OK) writer->end += sizeof head + opening.len;
    return name_fault(&inner, fault);
}

enum sov_status sidecar_sync(struct sidecar_writer *writer, struct sov_fault *fault) {
    if (!writer->is_dirty) return SOV_OK;
    struct sov_fault inner = {0};
    enum sov_status status = writer->disk->sync(writer->disk->context, writer->file, &inner);
    writer->is_dirty = status != SOV_OK;
    return name_fault(&inner, fault);
}

void sidecar_writer_close(struct sidecar_writer *writer) {
    if (writer->is_open) writer->disk->close(writer->disk->context, writer->file);
    writer->is_open = false;
}

// --- reading ---

struct slot {
    struct sealed sealed;
    u64 offset; // of the opening
};

struct sidecar {
    struct walk walk;
    bool is_there;
    struct slot *slots; // [n_slots], of which n are taken: sorted
    u64 n_slots, n;
};

static int compare(const struct sealed *a, const struct sealed *b) {
    if (a->opening_bytes != b->opening_bytes) return a->opening_bytes < b->opening_bytes ? -1 : 1;
    return memcmp(a->commitment.bytes, b->commitment.bytes, SHA256_BYTES);
}

// Lets slots[at] sink in the heap of [0, n).
static void sink(struct slot *slots, u64 at, u64 n) {
    for (;;) {
        u64 largest = at;
        for (u64 child = 2 * at + 1; child <= 2 * at + 2 && child < n; child++) {
            if (compare(&slots[child].sealed, &slots[largest].sealed) > 0) largest = child;
        }
        if (largest == at) return;
        struct slot swapped = slots[at];
        slots[at] = slots[largest];
        slots[largest] = swapped;
        at = largest;
    }
}

static void sort(struct slot *slots, u64 n) {
    for (u64 i = n / 2; i-- > 0;) sink(slots, i, n);
    for (u64 left = n; left > 1; left--) {
        struct slot last = slots[left - 1];
        slots[left - 1] = slots[0];
        slots[0] = last;
        sink(slots, 0, left - 1);
    }
}

static enum sov_status reserve(struct sidecar *s, struct sov_fault *fault) {
    if (s->n < s->n_slots) return SOV_OK;
    u64 n_slots = MAX(2 * s->n_slots, (u64)SLOTS_MIN), bytes = n_slots * sizeof *s->slots;
    struct slot *slots = s->n < SIDECAR_ENTRIES_MAX ? platform_memory_map((usize)bytes) : NULL;
    if (slots == NULL) {
        return fault_set(fault, SOV_ERR_MEMORY,
                         "sidecar: %llu bytes for its index are not to be "
                         "had",
                         bytes);
    }
    if (s->slots != NULL) {
        memcpy(slots, s->slots, (usize)(s->n * sizeof *slots));
        platform_memory_unmap(s->slots, (usize)(s->n_slots * sizeof *slots));
    }
    s->slots = slots;
    s->n_slots = n_slots;
    return SOV_OK;
}

static enum sov_status read_entries(struct sidecar *s, struct sov_fault *fault) {
    for (;;) {
        struct entry entry;
        bool found = false;
        enum sov_status status = next_entry(&s->walk, &entry, &found, fault);
        if (status == SOV_OK && found) status = reserve(s, fault);
        if (status != SOV_OK || !found) return status;
        s->slots[s->n++] = (struct slot){entry.sealed, entry.offset + SIDECAR_HEAD_BYTES};
    }
}

enum sov_status sidecar_open(const struct rowm_disk *disk, struct sidecar **sidecar,
                             struct sov_fault *fault) {
    struct sidecar *s = platform_memory_map(sizeof *s);
    if (s == NULL) return fault_set(fault, SOV_ERR_MEMORY, "sidecar: no memory");
    enum sov_status status = SOV_OK;
    if (!disk->is_missing(disk->context, SIDECAR_NAME)) {
        status = open_walk(&s->walk, disk, ROWM_OPEN_READ, fault);
        s->is_there = status == SOV_OK;
        if (status == SOV_OK) status = read_entries(s, fault);
        if (status == SOV_OK) sort(s->slots, s->n);
    }
    if (status != SOV_OK) {
        sidecar_close(s);
        return status;
    }
    *sidecar = s;
    return SOV_OK;
}

void sidecar_close(struct sidecar *sidecar) {
    struct sidecar *s = sidecar;
    if (s->is_there) s->walk.disk->close(s->walk.disk->context, s->walk.file);
    if (s->slots != NULL) platform_memory_unmap(s->slots, (usize)(s->n_slots * sizeof *s->slots));
    platform_memory_unmap(s, sizeof *s);
}

// Whether slot i says that it has the commitment.
static bool says(const struct sidecar *s, u64 i, const struct sealed *sealed) {
    return i < s->n && compare(&s->slots[i].sealed, sealed) == 0;
}

// The first slot that says it has the commitment, if any does. There may be more: a run that is
// repeated appends it again.
static u64 find(const struct sidecar *s, const struct sealed *sealed) {
    u64 low = 0, high = s->n;
    while (low < high) {
        u64 middle = low + (high - low) / 2;
        if (compare(&s->slots[middle].sealed, sealed) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

bool sidecar_has(const struct sidecar *sidecar, const struct sealed *sealed) {
    return says(sidecar, find(sidecar, sealed), sealed);
}

// Reads an opening to `out`, or, where that is NULL, through `window`. *is_it: it has the digest.
static enum sov_status read_opening(const struct sidecar *s, const struct slot *slot, u8 *out,
                                    u8 *window, bool *is_it, struct sov_fault *fault) {
    struct sha256 h;
    u64 total = slot->sealed.opening_bytes;
    *is_it = false;
    if (total <= SEALED_OPENING_HEAD_BYTES) return SOV_OK; // the digest of whatever that is
    sha256_begin(&h);
    for (u64 done = 0; done < total;) {
        usize n = (usize)MIN(total - done, (u64)COPY_BYTES);
        u8 *to = out != NULL ? out + done : window;
        enum sov_status status = read_at(&s->walk, slot->offset + done, to, n, &n, fault);
        if (status != SOV_OK || n == 0) return status; // the file was cut meanwhile
        struct str bytes = {to, n};
        if (done == 0 && !sealed_is_opening(bytes)) return SOV_OK;
        sha256_update(&h, bytes);
        done += n;
    }
    struct sha256_digest digest = sha256_end(&h);
    *is_it = sha256_equal(&digest, &slot->sealed.commitment);
    return SOV_OK;
}

static enum sov_status look_for(const struct sidecar *s, const struct sealed *sealed, u8 *out,
                                u8 *window, struct sov_fault *fault) {
    u64 first = find(s, sealed);
    for (u64 i = first; says(s, i, sealed); i++) {
        bool is_it = false;
        enum sov_status status = read_opening(s, &s->slots[i], out, window, &is_it, fault);
        if (status != SOV_OK || is_it) return status;
    }
    bool is_other = says(s, first, sealed);
    return fault_set(fault, SOV_ERR_UNSUPPORTED,
                     is_other ? "its texts and tokens are not those that were committed to: the "
                                "sidecar was changed or damaged"
                              : "its salt, texts and tokens are not in the sidecar: they were "
                                "erased, or the file is missing");
}

enum sov_status sidecar_read(const struct sidecar *sidecar, const struct sealed *sealed,
                             u8 *opening, struct sov_fault *fault) {
    return look_for(sidecar, sealed, opening, NULL, fault);
}

enum sov_status sidecar_check(const struct sidecar *sidecar, const struct sealed *sealed,
                              struct sov_fault *fault) {
    u8 *window = platform_memory_map(COPY_BYTES);
    if (window == NULL) return fault_set(fault, SOV_ERR_MEMORY, "sidecar: no memory");
    enum sov_status status = look_for(sidecar, sealed, NULL, window, fault);
    platform_memory_unmap(window, COPY_BYTES);
    return status;
}

// --- erasing ---

static enum sov_status copy_entry(const struct walk *from, const struct entry *entry, int to,
                                  u64 *end, struct sov_fault *fault) {
    u8 *bytes = platform_memory_map(COPY_BYTES);
    if (bytes == NULL) return fault_set(fault, SOV_ERR_MEMORY, "sidecar: no memory");
    u64 total = SIDECAR_HEAD_BYTES + entry->sealed.opening_bytes;
    enum sov_status status = SOV_OK;
    for (u64 done = 0; done < total && status == SOV_OK;) {
        usize n = (usize)MIN(total - done, (u64)COPY_BYTES);
        status = read_at(from, entry->offset + done, bytes, n, &n, fault);
        if (status == SOV_OK && n == 0) {
            status = fault_set(fault, SOV_ERR_IO, "sidecar: it was cut at byte %llu",
                               entry->offset + done);
        }
        if (status == SOV_OK) {
            status =
                from->disk->write_at(from->disk->context, to, *end, (struct str){bytes, n}, fault);
        }
        done += n;
        *end += n;
    }
    platform_memory_unmap(bytes, COPY_BYTES);
    return status;
}

// Everything but the sequence, to a new file.
static enum sov_status copy_others(struct walk *w, int to, bool all, u64 sequence_id, u64 *n_erased,
                                   struct sov_fault *fault) {
    u64 end = 0;
    for (;;) {
        struct entry entry;
        bool found = false;
        enum sov_status status = next_entry(w, &entry, &found, fault);
        if (status != SOV_OK || !found) return status;
        if (all || entry.sequence_id == sequence_id) {
            ++*n_erased;
            continue;
        }
        status = copy_entry(w, &entry, to, &end, fault);
        if (status != SOV_OK) return status;
    }
}

enum sov_status sidecar_erase(const struct rowm_disk *disk, bool all, u64 sequence_id,
                              u64 *n_erased, struct sov_fault *fault) {
    struct walk w;
    int to = -1;
    *n_erased = 0;
    if (disk->is_missing(disk->context, SIDECAR_NAME)) return SOV_OK;
    enum sov_status status = open_walk(&w, disk, ROWM_OPEN_READ, fault);
    if (status != SOV_OK) return status;
    status = disk->open(disk->context, NEW_NAME, ROWM_OPEN_CREATE, &to, fault);
    if (status == SOV_OK) {
        status = copy_others(&w, to, all, sequence_id, n_erased, fault);
        if (status == SOV_OK) status = disk->sync(disk->context, to, fault);
        disk->close(disk->context, to);
    }
    if (status == SOV_OK) status = disk->rename(disk->context, NEW_NAME, SIDECAR_NAME, fault);
    if (status == SOV_OK) status = disk->sync_names(disk->context, fault);
    disk->close(disk->context, w.file);
    return status;
}
