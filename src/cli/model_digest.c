// SPDX-License-Identifier: Apache-2.0
// The digest of a model's files, and where it is kept. A file of the state folder, named by the
// digest of (device, inode, size, mtime, ctime) of all shards, holds one line: the digest of the
// model, and a digest over both, so that a damaged line is no line. It only saves time: whatever is
// wrong with it, the files are read. A file that changed in the last seconds is not remembered: it
// could change again within the same tick of its clock.
#include "cli/store.h"
#include "freestanding/mem.h"

#define HASH_STEP_BYTES (64u << 20) // between looks at signals
#define SETTLED_NS 3000000000ull    // age of the last change
#define KEY_TAG "sov-rtx mkey v1"
#define LINE_TAG "sov-rtx mdig v1"
#define LINE_BYTES (2 * SHA256_HEX_BYTES + 2) // two digests, a blank, a newline

static void show_hashing(u64 done, u64 total) {
    struct output err;
    output_init(&err, PLATFORM_STDERR);
    if (done < total) {
        output_format(&err, "\rmodel: %llu of %llu MiB hashed ", done >> 20, total >> 20);
    } else {
        output_put(&err, STR("\r\033[K"));
    }
    output_flush(&err);
}

static enum sov_status hash_files(const struct gguf *gguf, struct sha256_digest *digest,
                                  struct sov_fault *fault) {
    struct sha256 h;
    sha256_begin(&h);
    bool shows = platform_is_terminal(PLATFORM_STDERR) && gguf->file_bytes > 8 * HASH_STEP_BYTES;
    u64 done = 0;
    for (u32 shard = 0; shard < gguf->n_shards; shard++) {
        struct str rest = {gguf->shards[shard].data, (usize)gguf->shards[shard].bytes};
        while (rest.len > 0) {
            usize n = MIN(rest.len, (usize)HASH_STEP_BYTES);
            sha256_update(&h, (struct str){rest.data, n});
            rest.data += n;
            rest.len -= n;
            done += n;
            if (shows) show_hashing(done, gguf->file_bytes);
            if (platform_interrupted()) {
                return fault_set(fault, SOV_ERR_INTERRUPTED, "stopped by a signal");
            }
        }
    }
    *digest = sha256_end(&h);
    return SOV_OK;
}

// What identifies the files. False: it cannot be known, or they changed just now.
static bool make_key(const struct gguf *gguf, struct sha256_digest *key) {
    struct sha256 h;
    sha256_begin(&h);
    sha256_update(&h, STR(KEY_TAG));
    u64 now = platform_wall_ns();
    for (u32 shard = 0; shard < gguf->n_shards; shard++) {
        struct platform_identity id;
        if (!platform_file_identity(gguf->shards[shard].descriptor, &id)) return false;
        if (now < id.changed_ns + SETTLED_NS || now < id.modified_ns + SETTLED_NS) return false;
        u64 words[] = {id.device, id.inode, id.bytes, id.modified_ns, id.changed_ns};
        sha256_update(&h, (struct str){(const u8 *)words, sizeof words});
    }
    *key = sha256_end(&h);
    return true;
}

static bool make_path(const struct platform_start *start, const struct sha256_digest *key,
                      const char *ending, char path[ROWM_PATH_BYTES]) {
    if (store_records_folder(start, path, NULL) != SOV_OK) return false;
    char hex[SHA256_HEX_BYTES + 1];
    usize len = str_from_z(path).len;
    struct text t = text_over(path + len, ROWM_PATH_BYTES - len);
    text_format(&t, "/../models");
    if (key != NULL) {
        sha256_to_hex(key, hex);
        text_format(&t, "/%s%s", hex, ending);
    }
    return !t.truncated;
}

static void put_line(const struct sha256_digest *key, const struct sha256_digest *digest,
                     char line[LINE_BYTES + 1]) {
    u8 bytes[sizeof LINE_TAG - 1 + 2 * SHA256_BYTES];
    memcpy(bytes, LINE_TAG, sizeof LINE_TAG - 1);
    memcpy(bytes + sizeof LINE_TAG - 1, key->bytes, SHA256_BYTES);
    memcpy(bytes + sizeof LINE_TAG - 1 + SHA256_BYTES, digest->bytes, SHA256_BYTES);
    struct sha256_digest sum = sha256_of((struct str){bytes, sizeof bytes});
    sha256_to_hex(digest, line);
    line[SHA256_HEX_BYTES] = ' ';
    sha256_to_hex(&sum, line + SHA256_HEX_BYTES + 1);
    line[LINE_BYTES - 1] = '\n';
    line[LINE_BYTES] = 0;
}

static bool look_up(const struct platform_start *start, const struct sha256_digest *key,
                    struct sha256_digest *digest) {
    char path[ROWM_PATH_BYTES], line[LINE_BYTES + 1] = {0}, wanted[LINE_BYTES + 1];
    int file = -1;
    if (!make_path(start, key, "", path)) return false;
    if (platform_open(path, PLATFORM_OPEN_READ, &file, NULL) != SOV_OK) return false;
    usize n = 0;
    enum sov_status status = platform_read(file, line, sizeof line, &n, NULL);
    platform_close(file);
    struct str hex = {(const u8 *)line, SHA256_HEX_BYTES};
    if (status != SOV_OK || n != LINE_BYTES || !sha256_from_hex(hex, digest)) return false;
    put_line(key, digest, wanted);
    return memcmp(line, wanted, LINE_BYTES) == 0;
}

// Whole or not at all: under another name first.
static void remember(const struct platform_start *start, const struct sha256_digest *key,
                     const struct sha256_digest *digest) {
    char folder[ROWM_PATH_BYTES], path[ROWM_PATH_BYTES], new_path[ROWM_PATH_BYTES];
    char ending[16], line[LINE_BYTES + 1];
    u32 random = 0;
    if (platform_random(&random, sizeof random, NULL) != SOV_OK) return;
    struct text t = TEXT_OVER_ARRAY(ending);
    text_format(&t, ".%08x", random);
    if (!make_path(start, NULL, "", folder) || !make_path(start, key, "", path) ||
        !make_path(start, key, ending, new_path)) {
        return;
    }
    int file = -1;
    if (make_folders(folder, NULL) != SOV_OK) return;
    if (platform_open(new_path, PLATFORM_OPEN_CREATE, &file, NULL) != SOV_OK) return;
    put_line(key, digest, line);
    enum sov_status status = platform_write(file, line, LINE_BYTES, NULL);
    platform_close(file);
    if (status == SOV_OK) status = platform_rename(new_path, path, NULL);
    (void)status;
}

enum sov_status model_digest(const struct gguf *gguf, const struct platform_start *start,
                             struct sha256_digest *digest, struct sov_fault *fault) {
    struct sha256_digest key;
    bool is_kept = start != NULL && make_key(gguf, &key);
    if (is_kept && look_up(start, &key, digest)) return SOV_OK;
    enum sov_status status = hash_files(gguf, digest, fault);
    if (status == SOV_OK && is_kept) remember(start, &key, digest);
    return status;
}
