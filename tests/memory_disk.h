// SPDX-License-Identifier: Apache-2.0
// A folder in memory for what is written over a struct rowm_disk: a few named files, which may be
// cut and changed between calls, and a list of what was done to them, in order. Files opened before
// a rename stay what they were, as on a system. Power may go: of what was not synced each sector is
// kept or lost.
#pragma once
#include "freestanding/mem.h"
#include "record/rowm.h"

#define MEMORY_FILES 8
#define MEMORY_NAME_BYTES 16
#define MEMORY_FILE_BYTES (1u << 19)
#define MEMORY_OPERATIONS 4096
#define MEMORY_SECTOR_BYTES 512

enum memory_operation { MEMORY_WRITE = 'w', MEMORY_SYNC = 's', MEMORY_RENAME = 'r' };

struct memory_file {
    char name[MEMORY_NAME_BYTES]; // empty: has none any more, or is free
    bool is_new;                  // made, and the folder not synced since
    u64 bytes, synced_bytes;
    u8 data[MEMORY_FILE_BYTES], synced[MEMORY_FILE_BYTES];
};
struct memory_disk {
    struct memory_file files[MEMORY_FILES];
    struct {
        char operation, name[MEMORY_NAME_BYTES];
    } operations[MEMORY_OPERATIONS];
    u32 n_operations, n_open;
    u32 fails_at; // this operation fails, counted from 1 (half of a write is done); 0: none
    u32 stops_at; // neither this operation nor any behind it has an effect; 0: none
};

static inline struct memory_file *memory_find(struct memory_disk *disk, const char *name) {
    for (u32 i = 0; i < MEMORY_FILES; i++) {
        if (str_equal(str_from_z(disk->files[i].name), str_from_z(name))) return &disk->files[i];
    }
    return NULL;
}

static inline void memory_set_name(char out[MEMORY_NAME_BYTES], const char *name) {
    struct str s = str_from_z(name);
    assert(s.len < MEMORY_NAME_BYTES);
    memset(out, 0, MEMORY_NAME_BYTES);
    memcpy(out, s.data, s.len);
}

static inline bool memory_note(struct memory_disk *disk, char operation, const char *name,
                               struct sov_fault *fault) {
    assert(disk->n_operations < MEMORY_OPERATIONS);
    disk->operations[disk->n_operations].operation = operation;
    memory_set_name(disk->operations[disk->n_operations].name, name);
    u32 n = ++disk->n_operations;
    bool fails = n == disk->fails_at || (disk->stops_at != 0 && n >= disk->stops_at);
    if (fails) (void)!fault_set(fault, SOV_ERR_IO, "%s: the disk fails", name);
    return !fails;
}

static inline bool memory_is_missing(void *context, const char *name) {
    return memory_find(context, name) == NULL;
}

static inline enum sov_status memory_open(void *context, const char *name, enum rowm_open_mode mode,
                                          int *file, struct sov_fault *fault) {
    struct memory_disk *disk = context;
    struct memory_file *found = memory_find(disk, name);
    bool makes = mode == ROWM_OPEN_CREATE || mode == ROWM_OPEN_LOCK;
    if (found == NULL && !makes) return fault_set(fault, SOV_ERR_IO, "%s is missing", name);
    if (found == NULL) found = memory_find(disk, "");
    assert(found != NULL);
    if (found->name[0] == 0) {
        found->is_new = true;
        found->bytes = found->synced_bytes = 0;
        memory_set_name(found->name, name);
    }
    if (mode == ROWM_OPEN_CREATE) found->bytes = 0;
    *file = (int)(found - disk->files);
    disk->n_open++;
    return SOV_OK;
}

static inline void memory_close(void *context, int file) {
    (void)file;
    ((struct memory_disk *)context)->n_open--;
}

static inline enum sov_status memory_size(void *context, int file, u64 *bytes,
                                          struct sov_fault *fault) {
    (void)fault;
    *bytes = ((struct memory_disk *)context)->files[file].bytes;
    return SOV_OK;
}

static inline enum sov_status memory_read_at(void *context, int file, u64 offset, void *buffer,
                                             usize bytes, usize *n_read, struct sov_fault *fault) {
    (void)fault;
    const struct memory_file *f = &((struct memory_disk *)context)->files[file];
    *n_read = offset >= f->bytes ? 0 : (usize)MIN((u64)bytes, f->bytes - offset);
    if (*n_read > 0) memcpy(buffer, f->data + offset, *n_read);
    return SOV_OK;
}

static inline enum sov_status memory_write_at(void *context, int file, u64 offset, struct str bytes,
                                              struct sov_fault *fault) {
    struct memory_disk *disk = context;
    struct memory_file *f = &disk->files[file];
    bool works = memory_note(disk, MEMORY_WRITE, f->name, fault);
    bool is_stopped = disk->stops_at != 0 && disk->n_operations >= disk->stops_at;
    usize n = works ? bytes.len : is_stopped ? 0 : bytes.len / 2;
    assert(offset + n <= MEMORY_FILE_BYTES);
    if (n > 0) memcpy(f->data + offset, bytes.data, n);
    f->bytes = MAX(f->bytes, offset + n);
    return works ? SOV_OK : SOV_ERR_IO;
}

static inline enum sov_status memory_truncate(void *context, int file, u64 bytes,
                                              struct sov_fault *fault) {
    (void)fault;
    struct memory_file *f = &((struct memory_disk *)context)->files[file];
    f->bytes = MIN(f->bytes, bytes);
    return SOV_OK;
}

static inline enum sov_status memory_sync(void *context, int file, struct sov_fault *fault) {
    struct memory_disk *disk = context;
    struct memory_file *f = &disk->files[file];
    if (!memory_note(disk, MEMORY_SYNC, f->name, fault)) return SOV_ERR_IO;
    memcpy(f->synced, f->data, (usize)f->bytes);
    f->synced_bytes = f->bytes;
    return SOV_OK;
}

static inline enum sov_status memory_rename(void *context, const char *from, const char *to,
                                            struct sov_fault *fault) {
    struct memory_disk *disk = context;
    if (!memory_note(disk, MEMORY_RENAME, from, fault)) return SOV_ERR_IO;
    struct memory_file *moved = memory_find(disk, from), *replaced = memory_find(disk, to);
    assert(moved != NULL);
    if (replaced != NULL) memset(replaced->name, 0, MEMORY_NAME_BYTES);
    memory_set_name(moved->name, to);
    return SOV_OK;
}

static inline enum sov_status memory_sync_names(void *context, struct sov_fault *fault) {
    struct memory_disk *disk = context;
    if (!memory_note(disk, MEMORY_SYNC, ".", fault)) return SOV_ERR_IO;
    for (u32 i = 0; i < MEMORY_FILES; i++) disk->files[i].is_new = false;
    return SOV_OK;
}

// What is left after a loss of power; `coin` says of each thing whether it was kept.
static inline void memory_lose_power(struct memory_disk *disk, bool (*coin)(void *context),
                                     void *context) {
    for (u32 i = 0; i < MEMORY_FILES; i++) {
        struct memory_file *f = &disk->files[i];
        if (f->is_new && !coin(context)) memset(f->name, 0, MEMORY_NAME_BYTES);
        u64 longest = MAX(f->bytes, f->synced_bytes);
        if (f->bytes != f->synced_bytes && !coin(context)) f->bytes = f->synced_bytes;
        memset(f->synced + f->synced_bytes, 0, (usize)(longest - f->synced_bytes));
        for (u64 at = 0; at < f->bytes; at += MEMORY_SECTOR_BYTES) {
            usize n = (usize)MIN(f->bytes - at, (u64)MEMORY_SECTOR_BYTES);
            if (!coin(context)) memcpy(f->data + at, f->synced + at, n);
        }
        memcpy(f->synced, f->data, (usize)f->bytes);
        f->synced_bytes = f->bytes;
        f->is_new = false;
    }
    disk->stops_at = disk->fails_at = disk->n_operations = 0;
}

static inline struct rowm_disk memory_disk_of(struct memory_disk *disk) {
    return (struct rowm_disk){
        .context = disk,
        .is_missing = memory_is_missing,
        .open = memory_open,
        .close = memory_close,
        .size = memory_size,
        .read_at = memory_read_at,
        .write_at = memory_write_at,
        .truncate = memory_truncate,
        .sync = memory_sync,
        .rename = memory_rename,
        .sync_names = memory_sync_names,
    };
}
