// SPDX-License-Identifier: Apache-2.0
// libFuzzer harness of the sidecar. The file is made of pieces, and then changed:
//
//   first byte: n, how many changes there are; behind it n changes of 3 bytes: where (u16), what is
//               added to the byte there (0: the file is cut there)
//   the rest:   pieces of a byte k and what it says: even: an entry of sequence k / 2 % 4 whose
//               opening holds the next k bytes; odd: k bytes as they are
//
// What is read is what was committed to. Appending and erasing take nothing that was there from
// any other sequence, whatever the file was before; what is erased is not in it any more.
#include "memory_disk.h"
#include "platform/platform.h"
#include "record/sidecar.h"

#define ENTRIES_MAX 64
#define BODY_BYTES_MAX 255

int LLVMFuzzerTestOneInput(const u8 *data, usize bytes);

static struct memory_disk memory;
static struct rowm_disk disk;

static struct piece {
    u64 sequence_id;
    struct str opening;
    struct sealed sealed;
    u8 bytes[SEALED_OPENING_HEAD_BYTES + BODY_BYTES_MAX];
} pieces[ENTRIES_MAX];
static u32 n_pieces;

static void make_piece(u64 sequence_id, struct str body) {
    struct piece *p = &pieces[n_pieces++];
    struct sha256_digest salt = {{(u8)sequence_id, (u8)n_pieces}}; // no two openings are the same
    u8 kept[SEALED_BYTES];
    sealed_opening_head(&salt, p->bytes);
    memcpy(p->bytes + SEALED_OPENING_HEAD_BYTES, body.data, body.len);
    p->sequence_id = sequence_id;
    p->opening = (struct str){p->bytes, SEALED_OPENING_HEAD_BYTES + body.len};
    bool is_sealed = sealed_read(sealed_kept(p->opening, kept), &p->sealed);
    assert(is_sealed);
}

static void append(const struct piece *p) {
    struct sidecar_writer writer;
    struct sov_fault fault = {0};
    sidecar_writer_init(&writer, &disk);
    enum sov_status status = sidecar_append(&writer, p->sequence_id, p->opening, &fault);
    if (status == SOV_OK) status = sidecar_sync(&writer, &fault);
    assert(status == SOV_OK);
    sidecar_writer_close(&writer);
}

static void make_file(const u8 *data, usize bytes) {
    for (usize at = 0; at < bytes && n_pieces < ENTRIES_MAX - 1;) {
        usize k = data[at++], n = MIN(k, bytes - at);
        if (k % 2 == 0 && n > 0) {
            make_piece(k / 2 % 4, (struct str){data + at, n});
            append(&pieces[n_pieces - 1]);
        } else if (memory_find(&memory, SIDECAR_NAME) != NULL) {
            struct memory_file *file = memory_find(&memory, SIDECAR_NAME);
            memcpy(file->data + file->bytes, data + at, n);
            file->bytes += n;
        }
        at += n;
    }
}

static u64 found(void) {
    struct sidecar *sidecar = NULL;
    struct sov_fault fault = {0};
    u64 bits = 0;
    enum sov_status status = sidecar_open(&disk, &sidecar, &fault);
    assert(status == SOV_OK);
    for (u32 i = 0; i < n_pieces; i++) {
        u8 out[sizeof pieces[0].bytes];
        enum sov_status checked = sidecar_check(sidecar, &pieces[i].sealed, NULL);
        assert(checked == SOV_OK || checked == SOV_ERR_UNSUPPORTED);
        assert(checked != SOV_OK || sidecar_has(sidecar, &pieces[i].sealed));
        if (checked != SOV_OK) continue;
        status = sidecar_read(sidecar, &pieces[i].sealed, out, &fault);
        assert(status == SOV_OK);
        assert(memcmp(out, pieces[i].bytes, pieces[i].opening.len) == 0);
        bits |= 1ull << i;
    }
    sidecar_close(sidecar);
    return bits;
}

static bool holds(struct str text, struct str bytes) {
    for (usize at = 0; at + bytes.len <= text.len; at++) {
        if (memcmp(text.data + at, bytes.data, bytes.len) == 0) return true;
    }
    return false;
}

// Whether another sequence's text has the bytes too: these stay with it.
static bool stands_elsewhere(const struct piece *p) {
    for (u32 i = 0; i < n_pieces; i++) {
        bool is_other = pieces[i].sequence_id != p->sequence_id;
        if (is_other && holds(pieces[i].opening, p->opening)) return true;
    }
    return false;
}

int LLVMFuzzerTestOneInput(const u8 *data, usize bytes) {
    static bool is_clear;
    usize n_changes = bytes > 0 ? data[0] % 8 : 0;
    if (bytes < 1 + 3 * n_changes || bytes > 8192) return 0;
    u64 mapped = platform_memory_mapped();
    if (!is_clear) memset(&memory, 0, sizeof memory);
    is_clear = true;
    for (u32 i = 0; i < MEMORY_FILES; i++) {
        memset(memory.files[i].name, 0, MEMORY_NAME_BYTES);
        memory.files[i].bytes = 0;
    }
    memory.n_operations = n_pieces = 0;
    disk = memory_disk_of(&memory);
    make_file(data + 1 + 3 * n_changes, bytes - 1 - 3 * n_changes);
    struct memory_file *file = memory_find(&memory, SIDECAR_NAME);
    for (usize i = 0; i < n_changes && file != NULL && file->bytes > 0; i++) {
        const u8 *change = data + 1 + 3 * i;
        u64 at = ((u64)change[0] | (u64)change[1] << 8) % file->bytes;
        if (change[2] == 0) file->bytes = at;
        file->data[at] = (u8)(file->data[at] + change[2]);
    }
    u64 before = found();
    make_piece(3, STR("one more"));
    append(&pieces[n_pieces - 1]);
    before |= 1ull << (n_pieces - 1);
    u64 now = found();
    assert((now & before) == before); // a cut entry cannot come back; what was there stays
    u64 erased = 0, n_erased = 0;
    for (u32 i = 0; i < n_pieces; i++) erased |= (u64)(pieces[i].sequence_id == 1) << i;
    struct sov_fault fault = {0};
    enum sov_status status = sidecar_erase(&disk, false, 1, &n_erased, &fault);
    assert(status == SOV_OK && found() == (now & ~erased));
    file = memory_find(&memory, SIDECAR_NAME);
    struct str left = {file->data, (usize)file->bytes};
    for (u32 i = 0; i < n_pieces; i++) {
        if (((erased & now) >> i & 1) == 0 || stands_elsewhere(&pieces[i])) continue;
        assert(!holds(left, pieces[i].opening));
    }
    status = sidecar_erase(&disk, true, 0, &n_erased, &fault);
    assert(status == SOV_OK && found() == 0);
    assert(memory_find(&memory, SIDECAR_NAME)->bytes == 0);
    assert(memory.n_open == 0 && platform_memory_mapped() == mapped);
    return 0;
}
