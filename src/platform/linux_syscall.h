// SPDX-License-Identifier: Apache-2.0
// The one instruction by which freestanding programs reach Linux on x86-64, and the numbers of the
// calls they make. Included by linux.c, linux_start.c and benchmarks only; tests/test_binary.py
// holds the same list and fails when a program makes another call.
//
//     rax  number, then result          rdi rsi rdx r10 r8 r9  arguments
//     rcx, r11  lost to the instruction                        all else is kept
//
// A result in [-4095, -1] is the negated error number.
#pragma once
#include "freestanding/types.h"

enum linux_call {
    LINUX_READ = 0,
    LINUX_WRITE = 1,
    LINUX_OPEN = 2,
    LINUX_CLOSE = 3,
    LINUX_FSTAT = 5,
    LINUX_MMAP = 9,
    LINUX_MPROTECT = 10,
    LINUX_MUNMAP = 11,
    LINUX_RT_SIGACTION = 13,
    LINUX_RT_SIGPROCMASK = 14,
    LINUX_RT_SIGRETURN = 15,
    LINUX_IOCTL = 16,
    LINUX_PREAD64 = 17,
    LINUX_PWRITE64 = 18,
    LINUX_MADVISE = 28,
    LINUX_GETPID = 39,
    LINUX_CLONE = 56,
    LINUX_EXIT = 60,
    LINUX_FLOCK = 73,
    LINUX_FSYNC = 74,
    LINUX_FTRUNCATE = 77,
    LINUX_RENAME = 82,
    LINUX_MKDIR = 83,
    LINUX_RMDIR = 84,
    LINUX_UNLINK = 87,
    LINUX_FCHMOD = 91,
    LINUX_GETTID = 186,
    LINUX_FUTEX = 202,
    LINUX_SCHED_SETAFFINITY = 203,
    LINUX_SCHED_GETAFFINITY = 204,
    LINUX_GETDENTS64 = 217,
    LINUX_CLOCK_GETTIME = 228,
    LINUX_EXIT_GROUP = 231,
    LINUX_TGKILL = 234,
    LINUX_PPOLL = 271,
    LINUX_GETRANDOM = 318,
};

// Every argument is widened by the caller to 64 bits; those a call does not take are ignored by it.
static inline i64 linux_syscall(enum linux_call number, u64 a, u64 b, u64 c, u64 d, u64 e, u64 f) {
    i64 result;
    register u64 r10 __asm__("r10") = d;
    register u64 r8 __asm__("r8") = e;
    register u64 r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"((u64)number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}
