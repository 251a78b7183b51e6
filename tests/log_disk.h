// SPDX-License-Identifier: Apache-2.0
// The one file of a store that matters, its log, in memory, for tests over a struct rowm_disk; the
// others (the lock) are there and hold nothing. memory_disk.h is a folder with more files, for what
// fails or loses power.
#pragma once
#include "freestanding/mem.h"
#include "record/rowm.h"

struct log_disk {
    u8 *log; // [capacity]
    u64 bytes, capacity;
    bool exists;
};

static inline bool log_disk_is_log(const char *name) {
    return str_starts_with(str_from_z(name), STR("log")); // log.new too: it becomes log
}

static inline bool log_disk_is_missing(void *context, const char *name) {
    return log_disk_is_log(name) && !((struct log_disk *)context)->exists;
}

static inline enum sov_status log_disk_open(void *context, const char *name,
                                            enum rowm_open_mode mode, int *file,
                                            struct sov_fault *fault) {
    (void)fault;
    *file = log_disk_is_log(name) ? 1 : 2;
    if (*file == 1 && mode == ROWM_OPEN_CREATE) ((struct log_disk *)context)->bytes = 0;
    return SOV_OK;
}

static inline void log_disk_close(void *context, int file) {
    (void)context;
    (void)file;
}

static inline enum sov_status log_disk_size(void *context, int file, u64 *bytes,
                                            struct sov_fault *fault) {
    (void)file;
    (void)fault;
    *bytes = ((struct log_disk *)context)->bytes;
    return SOV_OK;
}

static inline enum sov_status log_disk_read(void *context, int file, u64 offset, void *buffer,
                                            usize bytes, usize *n_read, struct sov_fault *fault) {
    (void)file;
    (void)fault;
    const struct log_disk *disk = context;
    u64 at = MIN(offset, disk->bytes);
    *n_read = (usize)MIN((u64)bytes, disk->bytes - at);
    memcpy(buffer, disk->log + at, *n_read);
    return SOV_OK;
}

static inline enum sov_status log_disk_write(void *context, int file, u64 offset, struct str bytes,
                                             struct sov_fault *fault) {
    (void)file;
    struct log_disk *disk = context;
    if (offset + bytes.len > disk->capacity) {
        return fault_set(fault, SOV_ERR_IO, "write log: ENOSPC");
    }
    memcpy(disk->log + offset, bytes.data, bytes.len);
    disk->bytes = MAX(disk->bytes, offset + bytes.len);
    return SOV_OK;
}

static inline enum sov_status log_disk_truncate(void *context, int file, u64 bytes,
                                                struct sov_fault *fault) {
    (void)file;
    (void)fault;
    struct log_disk *disk = context;
    disk->bytes = MIN(disk->bytes, bytes);
    return SOV_OK;
}

static inline enum sov_status log_disk_sync(void *context, int file, struct sov_fault *fault) {
    (void)context;
    (void)file;
    (void)fault;
    return SOV_OK;
}

static inline enum sov_status log_disk_rename(void *context, const char *from, const char *to,
                                              struct sov_fault *fault) {
    (void)from;
    (void)to;
    (void)fault;
    ((struct log_disk *)context)->exists = true;
    return SOV_OK;
}

static inline enum sov_status log_disk_sync_names(void *context, struct sov_fault *fault) {
    (void)context;
    (void)fault;
    return SOV_OK;
}

static inline struct rowm_disk log_disk_of(struct log_disk *disk) {
    return (struct rowm_disk){
        .context = disk,
        .is_missing = log_disk_is_missing,
        .open = log_disk_open,
        .close = log_disk_close,
        .size = log_disk_size,
        .read_at = log_disk_read,
        .write_at = log_disk_write,
        .truncate = log_disk_truncate,
        .sync = log_disk_sync,
        .rename = log_disk_rename,
        .sync_names = log_disk_sync_names,
    };
}
