// SPDX-License-Identifier: Apache-2.0
// memcpy, memmove, memset, memcmp for programs without a C library. The string instructions are
// microcoded block moves on every CPU of x86-64-v3 and are one line to audit; nothing hot copies
// short blocks through here. Compiled so that the loops are not turned back into calls to
// themselves (-fno-tree-loop-distribute-patterns).
#include "freestanding/mem.h"

void *memcpy(void *restrict dst, const void *restrict src, usize n) {
    void *d = dst;
    __asm__ volatile("rep movsb" : "+D"(d), "+S"(src), "+c"(n) : : "memory");
    return dst;
}

void *memmove(void *dst, const void *src, usize n) {
    if ((usize)dst - (usize)src >= n) return memcpy(dst, src, n); // no byte is overwritten early
    u8 *d = dst;
    const u8 *s = src;
    while (n >= 8) { // backwards, each load before the store that may overlap it
        n -= 8;
        store_u64(d + n, load_u64(s + n));
    }
    while (n > 0) {
        n--;
        d[n] = s[n];
    }
    return dst;
}

void *memset(void *dst, int byte, usize n) {
    void *d = dst;
    __asm__ volatile("rep stosb" : "+D"(d), "+c"(n) : "a"(byte) : "memory");
    return dst;
}

int memcmp(const void *a, const void *b, usize n) {
    const u8 *x = a, *y = b;
    usize i = 0;
    while (i + 8 <= n && load_u64(x + i) == load_u64(y + i)) i += 8;
    for (; i < n; i++) {
        if (x[i] != y[i]) return x[i] < y[i] ? -1 : 1;
    }
    return 0;
}
