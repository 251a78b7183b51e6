// SPDX-License-Identifier: Apache-2.0
// The four memory functions that compilers emit calls to. mem.c defines them for the freestanding
// programs; hosted builds take the C library's.
#pragma once
#include "freestanding/types.h"

void *memcpy(void *restrict dst, const void *restrict src, usize n);
void *memmove(void *dst, const void *src, usize n);
void *memset(void *dst, int byte, usize n);
int memcmp(const void *a, const void *b, usize n);
