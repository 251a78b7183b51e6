// SPDX-License-Identifier: Apache-2.0
// Bounded bump allocation. One arena per lifetime (model, engine, scratch); its size is known
// before it is created. A sealed arena refuses: allocating from it is a bug and stops the program
// (the engine seals its arena when it starts to run).
#pragma once
#include "freestanding/status.h"

struct arena {
    u8 *base;
    usize size, used;
    bool sealed;
};

// Over memory that the caller owns.
struct arena arena_over(void *memory, usize bytes);

// Contents are whatever the memory held (fresh mappings are zero). `align` is a
// power of two. NULL when it does not fit; nothing is taken then.
void *arena_alloc(struct arena *arena, usize bytes, usize align) MUST_CHECK;

// An array of `count` elements of `type`, checked for overflow; NULL when it does not fit.
#define arena_array(arena, type, count) \
    ((type *)arena_alloc_array((arena), sizeof(type), (count), _Alignof(type)))
void *arena_alloc_array(struct arena *arena, usize element_bytes, u64 count, usize align)
    MUST_CHECK;

usize arena_left(const struct arena *arena);

// SOV_ERR_MEMORY with what was wanted and what is left.
enum sov_status arena_fault(const struct arena *arena, struct sov_fault *fault, const char *what,
                            u64 wanted_bytes);
