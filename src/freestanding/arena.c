// SPDX-License-Identifier: Apache-2.0
// Bump allocation over a fixed range: no free list, no growth, nothing to corrupt.
#include "freestanding/arena.h"

struct arena arena_over(void *memory, usize bytes) {
    return (struct arena){.base = memory, .size = bytes};
}

void *arena_alloc(struct arena *arena, usize bytes, usize align) {
    assert(!arena->sealed);
    assert(align != 0 && (align & (align - 1)) == 0);
    if (arena->base == NULL) return NULL; // an empty arena; NULL plus an offset is no address
    usize misaligned = ((usize)arena->base + arena->used) & (align - 1);
    usize padding = misaligned == 0 ? 0 : align - misaligned;
    usize left = arena->size - arena->used;
    if (padding > left || bytes > left - padding) return NULL;
    void *memory = arena->base + arena->used + padding;
    arena->used += padding + bytes;
    return memory;
}

void *arena_alloc_array(struct arena *arena, usize element_bytes, u64 count, usize align) {
    usize bytes = 0;
    if (!CHECKED_MUL(element_bytes, count, &bytes)) return NULL;
    return arena_alloc(arena, bytes, align);
}

usize arena_left(const struct arena *arena) { return arena->size - arena->used; }

enum sov_status arena_fault(const struct arena *arena, struct sov_fault *fault, const char *what,
                            u64 wanted_bytes) {
    return fault_set(fault, SOV_ERR_MEMORY, "%s: %llu bytes wanted, %llu of %llu are left", what,
                     wanted_bytes, (u64)arena_left(arena), (u64)arena->size);
}
