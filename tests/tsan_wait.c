// SPDX-License-Identifier: Apache-2.0
// In the place of hosted.c's platform_wait and platform_wake_all where ThreadSanitizer looks on
// (make tsan): the kernel's futex, as in linux.c. A mutex, as hosted.c has, orders more than the
// interface promises, and would hide a release or an acquire that is missing; of a system call
// ThreadSanitizer sees nothing.
#define _GNU_SOURCE
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "platform/platform.h"

void __wrap_platform_wait(const u32 *word, u32 expected);
void __wrap_platform_wait(const u32 *word, u32 expected) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
}

void __wrap_platform_wake_all(const u32 *word);
void __wrap_platform_wake_all(const u32 *word) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}
