// SPDX-License-Identifier: Apache-2.0
// Public names of libsov: status codes, and the fault that carries a message. Freestanding: needs
// nothing but this file.
#pragma once

// Every status: code, name, what it means. The exit code of a program follows from it
// (sov_exit_code). Values are stable: new ones are appended.
#define SOV_STATUS_LIST(X)                                                       \
    X(0, SOV_OK, "success")                                                      \
    X(1, SOV_ERR_USAGE, "the command line is wrong")                             \
    X(2, SOV_ERR_IO, "the system refused an operation")                          \
    X(3, SOV_ERR_MEMORY, "not enough memory")                                    \
    X(4, SOV_ERR_LIMIT, "a stated limit is exceeded")                            \
    X(5, SOV_ERR_FORMAT, "the input is damaged")                                 \
    X(6, SOV_ERR_UNSUPPORTED, "the input needs what this program does not have") \
    X(7, SOV_ERR_NO_KERNEL, "no kernel for this operator and type")              \
    X(8, SOV_ERR_NON_FINITE, "a NaN or an infinity appeared where none may be")  \
    X(9, SOV_ERR_KV_EXHAUSTED, "no KV block is free")                            \
    X(10, SOV_ERR_KV_OWNER, "the KV block does not belong to the caller")        \
    X(11, SOV_ERR_ARGUMENT, "a value is out of its range")                       \
    X(12, SOV_ERR_STATE, "the call does not fit the present state")              \
    X(13, SOV_ERR_INTERRUPTED, "stopped by a signal")                            \
    X(14, SOV_ERR_INTEGRITY, "it contradicts what was recorded")

enum sov_status {
#define SOV_STATUS_ENUM(code, name, text) name = (code),
    SOV_STATUS_LIST(SOV_STATUS_ENUM)
#undef SOV_STATUS_ENUM
        SOV_STATUS_COUNT
};

#define SOV_FAULT_BYTES 512

// The first failure of an operation: what was expected, what was found, and where. Printable text:
// control bytes of untrusted input are replaced.
struct sov_fault {
    enum sov_status status;
    char message[SOV_FAULT_BYTES]; // zero-terminated
};
