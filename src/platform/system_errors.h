// SPDX-License-Identifier: Apache-2.0
// The error numbers of Linux (the same on every architecture this project runs on) with their names
// and meanings, and the messages made of them. Used by the files of this directory only; hosted.c
// asserts that the C library's numbers are these.
#pragma once
#include "freestanding/status.h"

// SOV_ERR_IO and "OPERATION OBJECT: ENAME (meaning)". `error` is the positive number.
enum sov_status system_fail(struct sov_fault *fault, const char *operation, const char *object,
                            i64 error);
// The same for an open file, which is known by its descriptor only.
enum sov_status system_fail_descriptor(struct sov_fault *fault, const char *operation,
                                       int descriptor, i64 error);

// X(name, number, meaning)
#define SYSTEM_ERROR_LIST(X)                                      \
    X(EPERM, 1, "not permitted")                                  \
    X(ENOENT, 2, "no such file or directory")                     \
    X(ESRCH, 3, "no such process")                                \
    X(EINTR, 4, "interrupted by a signal")                        \
    X(EIO, 5, "input or output error of the device")              \
    X(ENXIO, 6, "no such device or address")                      \
    X(E2BIG, 7, "argument list too long")                         \
    X(ENOEXEC, 8, "not an executable format")                     \
    X(EBADF, 9, "not an open descriptor")                         \
    X(ECHILD, 10, "no child process")                             \
    X(EAGAIN, 11, "resource not available now")                   \
    X(ENOMEM, 12, "out of memory")                                \
    X(EACCES, 13, "permission denied")                            \
    X(EFAULT, 14, "bad address")                                  \
    X(ENOTBLK, 15, "not a block device")                          \
    X(EBUSY, 16, "device or resource busy")                       \
    X(EEXIST, 17, "file exists")                                  \
    X(EXDEV, 18, "link across file systems")                      \
    X(ENODEV, 19, "no such device, or the file cannot be mapped") \
    X(ENOTDIR, 20, "a part of the path is not a directory")       \
    X(EISDIR, 21, "is a directory")                               \
    X(EINVAL, 22, "invalid argument")                             \
    X(ENFILE, 23, "too many open files in the system")            \
    X(EMFILE, 24, "too many open files in this process")          \
    X(ENOTTY, 25, "not a terminal")                               \
    X(ETXTBSY, 26, "program file is being executed")              \
    X(EFBIG, 27, "file too large")                                \
    X(ENOSPC, 28, "no space left on the device")                  \
    X(ESPIPE, 29, "not seekable")                                 \
    X(EROFS, 30, "read-only file system")                         \
    X(EMLINK, 31, "too many links")                               \
    X(EPIPE, 32, "nobody reads the pipe")                         \
    X(EDOM, 33, "argument outside the domain")                    \
    X(ERANGE, 34, "result out of range")                          \
    X(EDEADLK, 35, "deadlock avoided")                            \
    X(ENAMETOOLONG, 36, "file name too long")                     \
    X(ENOLCK, 37, "no locks available")                           \
    X(ENOSYS, 38, "the system has no such call")                  \
    X(ENOTEMPTY, 39, "directory not empty")                       \
    X(ELOOP, 40, "too many symbolic links")                       \
    X(EOVERFLOW, 75, "value too large for its type")              \
    X(EOPNOTSUPP, 95, "operation not supported")                  \
    X(ECONNRESET, 104, "connection reset")                        \
    X(ETIMEDOUT, 110, "timed out")                                \
    X(ESTALE, 116, "stale file handle of a network file system")  \
    X(EDQUOT, 122, "disk quota exceeded")
