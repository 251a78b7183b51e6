// SPDX-License-Identifier: Apache-2.0
// memcpy, memmove, memset, memcmp for programs without a C library. Long blocks go through the
// string instructions, which are microcoded block moves on every CPU of x86-64-v3; they take some
// 30 cycles to start, so short blocks are moved by plain loads and stores. Compiled so that the
// loops are not turned back into calls to themselves (-fno-tree-loop-distribute-patterns).
#include "freestanding/mem.h"

#define SHORT_BYTES 64

// Upwards, each load before the stores that may overlap it, so dst may overlap src from below.
static void move_up(void *dst, const void *src, usize n) {
    if (n >= SHORT_BYTES) {
        __asm__ volatile("rep movsb" : "+D"(dst), "+S"(src), "+c"(n) : : "memory");
        return;
    }
    u8 *d = dst;
    const u8 *s = src;
    for (; n >= 8; n -= 8, d += 8, s += 8) store_u64(d, load_u64(s));
    for (; n > 0; n--) *d++ = *s++;
}

void *memcpy(void *restrict dst, const void *restrict src, usize n) {
    move_up(dst, src, n);
    return dst;
}

void *memmove(void *dst, const void *src, usize n) {
    if ((usize)dst - (usize)src >= n) { // no byte is overwritten before it is read
        move_up(dst, src, n);
        return dst;
    }
    u8 *d = dst;
    const u8 *s = src;
    while (n >= 8) { // downwards, in the same manner
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
    u8 *d = dst;
    if (n >= SHORT_BYTES) {
        __asm__ volatile("rep stosb" : "+D"(d), "+c"(n) : "a"(byte) : "memory");
        return dst;
    }
    const u64 eight = (u8)byte * 0x0101010101010101ull;
    for (; n >= 8; n -= 8, d += 8) store_u64(d, eight);
    for (; n > 0; n--) *d++ = (u8)byte;
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
