// SPDX-License-Identifier: Apache-2.0
// Memory of the machine: address windows, bounds, alignment, initialisation, single writes, the
// power state, and copies in flight (cp.async).
//
//   generic address   0x01.... shared   0x02.... local   0x03.... const   0x6f.... module variables
//                     0x70.... device buffers, one each 4 GiB, so that a stray pointer names none
//
// A1. A copy in flight may land at any moment between its issue and its wait: nobody, its own
// thread
//     included, may touch the bytes before the wait (the data moves then, so that a forgotten wait
//     shows), and only a barrier makes them visible to other threads.
// A2. In a launch with a power state word a block stores to device memory only after it has read
// the
//     word as ACTIVE with ld.acquire.
#include "machine.h"

#include <string.h>

#define BUFFER_SHIFT 32 // log2 of the distance of device buffers

static struct region *find_global(struct machine *machine, u64 address, u64 *offset) {
    if (address >= WINDOW_MODULE && address < WINDOW_GLOBAL) {
        *offset = address - WINDOW_MODULE;
        return &machine->variables;
    }
    if (address < WINDOW_GLOBAL) return NULL;
    u64 index = (address - WINDOW_GLOBAL) >> BUFFER_SHIFT;
    if (index >= machine->n_regions) return NULL;
    struct region *region = &machine->regions[index];
    *offset = address - region->address; // may be negative: reported as a huge offset
    return region;
}

static void report_bounds(struct thread *t, const struct region *region, u64 offset, u32 bytes,
                          enum access access) {
    const char *verb = access == ACCESS_READ ? "reads" : "writes";
    if ((i64)offset < 0) {
        REPORT(t, REPORT_BOUNDS, "%s %u bytes that begin %llu in front of %s (%llu bytes)", verb,
               bytes, 0 - offset, region->name, region->bytes);
    } else {
        REPORT(t, REPORT_BOUNDS, "%s %u bytes at offset %llu of %s, which has %llu", verb, bytes,
               offset, region->name, region->bytes);
    }
}

static bool in_bounds(const struct region *region, u64 offset, u32 bytes) {
    return offset <= region->bytes && bytes <= region->bytes - offset;
}

// --- shadow of one access ---

static u8 word_mask(u64 word, u64 offset, u32 bytes) { // which bytes of word are in the access
    u64 begin = word * 4, end = begin + 4;
    u64 first = MAX(begin, offset), last = MIN(end, offset + bytes);
    return (u8)(((1u << (last - begin)) - 1) & ~((1u << (first - begin)) - 1));
}

static void check_words(struct thread *t, struct region *region, u64 offset, u32 bytes,
                        enum access access) {
    bool output = region->role == ROLE_OUT || region->role == ROLE_INOUT;
    bool reads = access != ACCESS_WRITE, told_init = false, told_pending = false;
    for (u64 word = offset / 4; word * 4 < offset + bytes; word++) {
        struct cell *cell = &region->cells[word];
        u8 mask = word_mask(word, offset, bytes);
        if ((cell->pending & mask) && !told_pending) {
            REPORT(t, REPORT_ASYNC, "touches offset %llu of %s while a cp.async to it is in flight",
                   offset, region->name);
            told_pending = true;
        }
        if (reads && (cell->init & mask) != mask && !told_init && !(cell->pending & mask)) {
            REPORT(t, REPORT_UNINIT, "reads uninitialised bytes at offset %llu of %s", offset,
                   region->name);
            told_init = true;
        }
        if (!reads && output) {
            if (cell->wrote & mask) {
                REPORT(t, REPORT_TWICE, "offset %llu of the output %s is stored a second time",
                       offset, region->name);
            }
            cell->wrote |= mask;
        }
        if (access != ACCESS_READ) {
            cell->init |= mask;
            cell->covered |= mask;
        }
    }
}

// ld.global.nc may only read what the whole launch does not write.
static void check_read_only(struct thread *t, struct region *region, u64 offset, u32 bytes,
                            enum access access) {
    bool is_nc = (t->now->flags & FLAG_NC) != 0 && access == ACCESS_READ;
    bool clash = false;
    for (u64 word = offset / 4; word * 4 < offset + bytes; word++) {
        struct cell *cell = &region->cells[word];
        u8 mask = word_mask(word, offset, bytes);
        if (is_nc) {
            clash |= (cell->stored & mask) != 0;
            cell->read_only |= mask;
        } else if (access != ACCESS_READ) {
            clash |= (cell->read_only & mask) != 0;
            cell->stored |= mask;
        }
    }
    if (clash) {
        REPORT(t, REPORT_RACE,
               "offset %llu of %s is read by ld.global.nc and written in one launch", offset,
               region->name);
    }
}

// --- the power state ---

static void power_read(struct thread *t, struct region *region, u64 offset, u32 bytes) {
    struct machine *machine = t->block->machine;
    if (machine->power_mode == POWER_NONE || region != machine->power_region) return;
    if (machine->power_offset < offset || machine->power_offset >= offset + bytes) return;
    if (machine->power_reader == 0) machine->power_reader = t->block->index + 1;
    if (machine->power_mode == POWER_FLIPS && machine->power_reader != t->block->index + 1) {
        store_u32(region->data + machine->power_offset, machine->power_other);
    }
    bool acquires = t->now->order == ORDER_ACQUIRE && t->now->scope != SCOPE_CTA;
    t->block->power_seen |= acquires;
    t->block->power_off |= load_u32(region->data + machine->power_offset) != machine->power_active;
}

static void power_write(struct thread *t, const struct region *region) {
    if (t->block->machine->power_mode == POWER_NONE || region->role == ROLE_SHARED) return;
    if (!t->block->power_seen) {
        REPORT(t, REPORT_POWER, "writes %s before its block has read the power state by ld.acquire",
               region->name);
    } else if (t->block->power_off) {
        REPORT(t, REPORT_POWER, "writes %s although its block has read that power is not active",
               region->name);
    }
}

// --- accesses ---

// Shared memory between variables belongs to nobody.
static bool shared_owned(struct thread *t, u64 offset, u32 bytes) {
    const struct kernel *kernel = t->block->machine->kernel;
    const struct shared_variable *below = NULL;
    if (offset >= kernel->shared_static) return true; // the region's end was checked
    for (u32 i = 0; i < kernel->n_shared; i++) {
        const struct shared_variable *variable = &kernel->shared[i];
        if (offset < variable->offset) continue;
        if (offset + bytes <= variable->offset + variable->bytes) return true;
        below = variable;
    }
    if (below == NULL) {
        REPORT(t, REPORT_BOUNDS, "%u bytes at offset %llu of shared memory are no variable's",
               bytes, offset);
    } else {
        REPORT(t, REPORT_BOUNDS, "%u bytes at offset %llu of %s, which has %u", bytes,
               offset - below->offset, below->name, below->bytes);
    }
    return false;
}

static u8 *access_region(struct thread *t, struct region *region, u64 offset, u32 bytes,
                         enum access access) {
    if (!in_bounds(region, offset, bytes)) {
        report_bounds(t, region, offset, bytes, access);
        return NULL;
    }
    if (region->role == ROLE_SHARED && !shared_owned(t, offset, bytes)) return NULL;
    if (region->role == ROLE_CONST) {
        if (access == ACCESS_READ) return region->data + offset;
        REPORT(t, REPORT_CHANGED, "writes constant memory");
        return NULL;
    }
    if (access == ACCESS_READ) {
        power_read(t, region, offset, bytes);
    } else {
        power_write(t, region);
        if (region->role == ROLE_IN) {
            REPORT(t, REPORT_CHANGED, "writes offset %llu of the input %s", offset, region->name);
            return NULL;
        }
    }
    struct machine *machine = t->block->machine;
    bool counts = region == machine->complete_region && offset == machine->complete_offset;
    if (access != ACCESS_READ && region->role != ROLE_SHARED && !counts) {
        t->store_clock = t->clock;
        t->store_insn = t->now;
    }
    check_words(t, region, offset, bytes, access);
    if (region->role != ROLE_SHARED && region->role != ROLE_IN) {
        check_read_only(t, region, offset, bytes, access);
    }
    race_access(t, region, offset, bytes, access, t->now->order != ORDER_WEAK);
    if (counts && access != ACCESS_READ) race_completes(t);
    return region->data + offset;
}

static u8 *access_local(struct thread *t, u64 offset, u32 bytes, enum access access) {
    u32 have = t->block->machine->kernel->local_bytes;
    if (offset > have || bytes > have - offset) {
        REPORT(t, REPORT_BOUNDS, "%u bytes at offset %llu of local memory, which has %u", bytes,
               offset, have);
        return NULL;
    }
    bool undefined = false;
    for (u32 i = 0; i < bytes; i++) {
        undefined |= access == ACCESS_READ && !t->local_init[offset + i];
        if (access != ACCESS_READ) t->local_init[offset + i] = 1;
    }
    if (undefined) REPORT(t, REPORT_UNINIT, "reads uninitialised local memory");
    return t->local + offset;
}

static u8 *access_param(struct thread *t, u64 offset, u32 bytes, enum access access) {
    const struct kernel *kernel = t->block->machine->kernel;
    if (access != ACCESS_READ || offset > kernel->param_bytes ||
        bytes > kernel->param_bytes - offset) {
        REPORT(t, REPORT_BOUNDS, "%u bytes at offset %llu of %u bytes of parameters", bytes, offset,
               kernel->param_bytes);
        return NULL;
    }
    return t->block->machine->param + offset;
}

u64 memory_key(const struct thread *t, enum space space, u64 address) {
    if (space == SPACE_SHARED) address += WINDOW_SHARED;
    bool shared = address >= WINDOW_SHARED && address < WINDOW_LOCAL;
    return shared ? address | (u64)(t->block->index + 1) << 44 : address;
}

u8 *memory_access(struct thread *t, enum space space, u64 address, u32 bytes, enum access access) {
    struct machine *machine = t->block->machine;
    if (address % bytes != 0) {
        REPORT(t, REPORT_ALIGN, "an access of %u bytes at an address that is %llu modulo %u", bytes,
               address % bytes, bytes);
        return NULL;
    }
    if (space == SPACE_GENERIC) {
        if (address >= WINDOW_MODULE) {
            space = SPACE_GLOBAL;
        } else if (address >= WINDOW_CONST) {
            space = SPACE_CONST;
            address -= WINDOW_CONST;
        } else if (address >= WINDOW_LOCAL) {
            space = SPACE_LOCAL;
            address -= WINDOW_LOCAL;
        } else if (address >= WINDOW_SHARED) {
            space = SPACE_SHARED;
            address -= WINDOW_SHARED;
        } else {
            space = SPACE_GLOBAL; // nothing there: reported below
        }
    }
    switch (space) {
    case SPACE_SHARED: return access_region(t, &t->block->shared, address, bytes, access);
    case SPACE_CONST: return access_region(t, &machine->constants, address, bytes, access);
    case SPACE_LOCAL: return access_local(t, address, bytes, access);
    case SPACE_PARAM: return access_param(t, address, bytes, access);
    default: break;
    }
    u64 offset = 0;
    struct region *region = find_global(machine, address, &offset);
    if (region != NULL) return access_region(t, region, offset, bytes, access);
    REPORT(t, REPORT_BOUNDS, "%s %u bytes at 0x%llx, where no buffer is",
           access == ACCESS_READ ? "reads" : "writes", bytes, address);
    return NULL;
}

// --- copies in flight ---

static bool async_range(struct thread *t, const struct async_copy *copy) {
    return in_bounds(&t->block->shared, copy->to, copy->bytes);
}

void memory_async_begin(struct thread *t, const struct async_copy *copy) {
    struct region *shared = &t->block->shared;
    u64 offset = 0;
    struct region *from = find_global(t->block->machine, copy->from, &offset);
    if (copy->from % copy->bytes != 0 || copy->to % copy->bytes != 0) {
        REPORT(t, REPORT_ALIGN, "cp.async of %u bytes between addresses that are not aligned to it",
               copy->bytes);
    }
    if (copy->from_bytes > copy->bytes) {
        REPORT(t, REPORT_BOUNDS, "cp.async reads %u bytes for %u", copy->from_bytes, copy->bytes);
    } else if (copy->from_bytes > 0 && from == NULL) {
        REPORT(t, REPORT_BOUNDS, "cp.async reads at 0x%llx, where no buffer is", copy->from);
    } else if (copy->from_bytes > 0 && !in_bounds(from, offset, copy->from_bytes)) {
        report_bounds(t, from, offset, copy->from_bytes, ACCESS_READ);
    }
    if (!async_range(t, copy)) {
        report_bounds(t, shared, copy->to, copy->bytes, ACCESS_WRITE);
        return;
    }
    if (!shared_owned(t, copy->to, copy->bytes)) return;
    // As a write for what came before it; then nobody may come near.
    race_access(t, shared, copy->to, copy->bytes, ACCESS_WRITE, false);
    for (u64 word = copy->to / 4; word * 4 < copy->to + copy->bytes; word++) {
        struct cell *cell = &shared->cells[word];
        if (cell->pending) {
            REPORT(t, REPORT_ASYNC,
                   "cp.async to offset %u of shared memory while another is in "
                   "flight to it",
                   copy->to);
        }
        cell->pending |= word_mask(word, copy->to, copy->bytes);
    }
}

void memory_async_end(struct thread *t, const struct async_copy *copy) {
    struct region *shared = &t->block->shared;
    const struct insn *waiting = t->now;
    u8 data[16] = {0};
    u64 offset = 0;
    struct region *from = find_global(t->block->machine, copy->from, &offset);
    if (!async_range(t, copy)) return;
    t->now = copy->insn; // what goes wrong with the data belongs to the copy
    u32 n = MIN(copy->from_bytes, copy->bytes);
    if (n > 0 && from != NULL && in_bounds(from, offset, n) && from->role != ROLE_CONST) {
        check_words(t, from, offset, n, ACCESS_READ);
        race_access(t, from, offset, n, ACCESS_READ, false);
        memcpy(data, from->data + offset, n);
    }
    for (u64 word = copy->to / 4; word * 4 < copy->to + copy->bytes; word++) {
        struct cell *cell = &shared->cells[word];
        u8 mask = word_mask(word, copy->to, copy->bytes);
        cell->pending &= (u8)~mask;
        cell->init |= mask;
    }
    race_access(t, shared, copy->to, copy->bytes, ACCESS_WRITE, false);
    memcpy(shared->data + copy->to, data, copy->bytes);
    t->now = waiting;
}
