// SPDX-License-Identifier: Apache-2.0
// Who is ordered before whom. Every block has a time that advances with each release; a thread's
// clock is the time of its latest release, so an access at clock c is known to whoever has learned
// of that thread's release at a time above c.
//
//   full barrier      floor = now: everything of the block with a smaller clock is ordered
//   bar.warp.sync     each lane learns of the others' release (seen[thread] = now)
//   named barrier     arrivals leave what they have seen in the barrier, waiters take it along
//   release/acquire   a snapshot is left at an address and taken by who reads the address
//
// D1. Two accesses to a byte, at least one of them a write, must be ordered, unless both are strong
//     (atom, red, relaxed, acquire, release, volatile).
// D2. The shadow keeps the last write and the readers since, per word; a word that is accessed in
//     parts is split into cells of one byte.
// D3. Lanes of a warp are threads like any others: no order follows from running in lockstep, from
//     shfl, vote or mma.
#include "machine.h"

#include <stdlib.h>
#include <string.h>

// --- knowledge of other blocks ---

static void drop(struct snapshot *snapshot) {
    if (--snapshot->references > 0) return;
    free(snapshot->seen);
    free(snapshot);
}

void knowledge_free(struct knowledge *known) {
    for (u32 i = 0; i < known->n; i++) drop(known->snapshot[i]);
    free(known->snapshot);
    *known = (struct knowledge){0};
}

// Two snapshots of a block are joined, so that no chain of releases is forgotten.
static struct snapshot *joined(struct snapshot *a, struct snapshot *b) {
    struct snapshot *both = need(1, sizeof *both);
    *both = *a;
    both->references = 1;
    both->floor = MAX(a->floor, b->floor);
    both->block_only = a->block_only && b->block_only;
    both->seen = need(a->n_threads, sizeof(u32));
    for (u32 i = 0; i < a->n_threads; i++) both->seen[i] = MAX(a->seen[i], b->seen[i]);
    return both;
}

static void learn(struct knowledge *known, struct snapshot *snapshot) {
    for (u32 i = 0; i < known->n; i++) {
        struct snapshot *old = known->snapshot[i];
        if (old->block != snapshot->block) continue;
        if (old == snapshot) return;
        known->snapshot[i] = joined(old, snapshot);
        drop(old);
        return;
    }
    if (known->n == known->capacity) {
        known->capacity = MAX(4u, 2 * known->capacity);
        known->snapshot = need_more(known->snapshot, known->capacity, sizeof(void *));
    }
    snapshot->references++;
    known->snapshot[known->n++] = snapshot;
}

static void learn_all(struct knowledge *known, const struct knowledge *from) {
    for (u32 i = 0; i < from->n; i++) learn(known, from->snapshot[i]);
}

static bool known_access(const struct knowledge *known, u32 block, u32 thread, u32 clock) {
    for (u32 i = 0; i < known->n; i++) {
        const struct snapshot *snapshot = known->snapshot[i];
        if (snapshot->block != block) continue;
        return clock < snapshot->floor || snapshot->seen[thread] > clock;
    }
    return false;
}

// What `t` knows about its own block comes from snapshots too, by flags in memory.
static void gain(struct thread *t, const struct knowledge *from, bool own_block_only) {
    struct block *block = t->block;
    for (u32 i = 0; i < from->n; i++) {
        struct snapshot *snapshot = from->snapshot[i];
        if (snapshot->block != block->index + 1) {
            if (!own_block_only && !snapshot->block_only) learn(&t->known, snapshot);
            continue;
        }
        for (u32 k = 0; k < block->n_threads; k++) {
            t->seen[k] = MAX(t->seen[k], snapshot->seen[k]);
        }
        block->rows_dirty = true;
    }
}

// --- order ---

static bool ordered(const struct thread *t, u32 block, u32 thread, u32 clock) {
    if (block == t->block->index + 1) {
        return thread == t->index || clock < t->block->floor || t->seen[thread] > clock;
    }
    return known_access(&t->known, block, thread, clock) ||
           known_access(&t->block->known, block, thread, clock);
}

static void report_race(struct thread *t, const struct region *region, u64 offset, u32 block,
                        u32 thread, u32 insn, const char *what) {
    const struct machine *machine = t->block->machine;
    const struct insn *other = &machine->kernel->insns[insn];
    const u32 *grid = machine->config.grid;
    u32 b = block - 1;
    REPORT(t, REPORT_RACE,
           "%s %s at offset %llu without order after thread %u of block (%u,%u,%u) "
           "at %s:%u",
           what, region->name, offset, thread, b % grid[0], b / grid[0] % grid[1],
           b / (grid[0] * grid[1]), ptx_file(machine->module, other), other->line);
}

static bool readers_ordered(const struct thread *t, const struct readers *readers, u32 *block,
                            u32 *thread) {
    for (u32 i = 0; i < readers->n; i++) {
        const struct reader *reader = &readers->reader[i];
        for (u32 lanes = reader->lanes; lanes != 0; lanes &= lanes - 1) {
            u32 who = reader->warp * 32 + (u32)__builtin_ctz(lanes);
            if (ordered(t, reader->block, who, reader->clock)) continue;
            *block = reader->block;
            *thread = who;
            return false;
        }
    }
    return true;
}

static struct readers *reader_set(struct region *region, struct cell *cell) {
    if (cell->readers != 0) return &region->readers[cell->readers - 1];
    if (region->n_readers == region->readers_capacity) {
        u32 capacity = MAX(64u, 2 * region->readers_capacity);
        region->readers = need_more(region->readers, capacity, sizeof(struct readers));
        memset(region->readers + region->readers_capacity, 0,
               (capacity - region->readers_capacity) * sizeof(struct readers));
        region->readers_capacity = capacity;
    }
    cell->readers = ++region->n_readers;
    struct readers *readers = &region->readers[cell->readers - 1];
    readers->n = 0;
    return readers;
}

static void add_reader(struct readers *readers, u32 block, u32 thread, u32 clock) {
    u32 warp = thread / 32, lane = 1u << (thread % 32);
    for (u32 i = 0; i < readers->n; i++) {
        struct reader *reader = &readers->reader[i];
        if (reader->block != block || reader->warp != warp) continue;
        reader->lanes |= lane;
        reader->clock = MAX(reader->clock, clock);
        return;
    }
    if (readers->n == readers->capacity) {
        readers->capacity = MAX(4u, 2 * readers->capacity);
        readers->reader = need_more(readers->reader, readers->capacity, sizeof(struct reader));
    }
    readers->reader[readers->n++] =
        (struct reader){.block = block, .warp = warp, .lanes = lane, .clock = clock};
}

static void record_read(struct thread *t, struct region *region, struct cell *cell, bool strong) {
    u32 block = t->block->index + 1;
    if (cell->flags & CELL_MANY_READERS) {
        struct readers *readers = reader_set(region, cell);
        const struct reader *last = &readers->reader[readers->n - 1];
        // Readers that this one is ordered after need not be kept: typical after a barrier.
        if (last->block == block && last->clock < t->block->floor) readers->n = 0;
        add_reader(readers, block, t->index, t->clock);
        if (!strong) cell->flags &= (u8)~CELL_READ_ATOMIC;
    } else if (cell->read_block == 0 ||
               ordered(t, cell->read_block, cell->read_thread, cell->read_clock)) {
        cell->read_block = block;
        cell->read_thread = t->index;
        cell->read_clock = t->clock;
        cell->flags = (u8)((cell->flags & ~CELL_READ_ATOMIC) | (strong ? CELL_READ_ATOMIC : 0));
    } else {
        struct readers *readers = reader_set(region, cell);
        readers->n = 0;
        add_reader(readers, cell->read_block, cell->read_thread, cell->read_clock);
        add_reader(readers, block, t->index, t->clock);
        cell->flags |= CELL_MANY_READERS;
        if (!strong) cell->flags &= (u8)~CELL_READ_ATOMIC;
    }
    cell->read_insn = (u32)(t->now - t->block->machine->kernel->insns);
}

static void check_readers(struct thread *t, struct region *region, struct cell *cell, u64 offset) {
    u32 block = cell->read_block, thread = cell->read_thread;
    if (block == 0) return;
    bool fine = cell->flags & CELL_MANY_READERS
                    ? readers_ordered(t, reader_set(region, cell), &block, &thread)
                    : ordered(t, block, thread, cell->read_clock);
    if (!fine) report_race(t, region, offset, block, thread, cell->read_insn, "writes");
}

static void access_cell(struct thread *t, struct region *region, struct cell *cell, u64 offset,
                        enum access access, bool strong) {
    bool both_strong = strong && (cell->flags & CELL_WRITE_ATOMIC);
    if (cell->write_block != 0 && !both_strong &&
        !ordered(t, cell->write_block, cell->write_thread, cell->write_clock)) {
        report_race(t, region, offset, cell->write_block, cell->write_thread, cell->write_insn,
                    access == ACCESS_READ ? "reads" : "writes");
    }
    if (access == ACCESS_READ) {
        if (region->role != ROLE_IN) record_read(t, region, cell, strong);
        return;
    }
    if (!(strong && (cell->flags & CELL_READ_ATOMIC))) check_readers(t, region, cell, offset);
    cell->write_block = t->block->index + 1;
    cell->write_thread = t->index;
    cell->write_clock = t->clock;
    cell->write_insn = (u32)(t->now - t->block->machine->kernel->insns);
    cell->read_block = 0;
    cell->flags = (u8)((cell->flags & CELL_SPLIT) | (strong ? CELL_WRITE_ATOMIC : 0));
}

// Splits a word into four cells that all know what the word knew. Sets of readers are copied.
static void split_word(struct region *region, struct cell *cell) {
    if (region->n_split + 4 > region->split_capacity) {
        region->split_capacity = MAX(256u, 2 * region->split_capacity);
        region->split = need_more(region->split, region->split_capacity, sizeof(struct cell));
    }
    u32 first = region->n_split;
    region->n_split += 4;
    for (u32 i = 0; i < 4; i++) {
        struct cell *part = &region->split[first + i];
        *part = *cell;
        if (!(cell->flags & CELL_MANY_READERS)) continue;
        part->readers = 0;
        u32 from = cell->readers - 1;
        struct readers *copy = reader_set(region, part);
        for (u32 k = 0; k < region->readers[from].n; k++) {
            struct reader reader = region->readers[from].reader[k];
            for (u32 lanes = reader.lanes; lanes != 0; lanes &= lanes - 1) {
                add_reader(copy, reader.block, reader.warp * 32 + (u32)__builtin_ctz(lanes),
                           reader.clock);
            }
        }
    }
    cell->flags |= CELL_SPLIT;
    cell->link = first;
}

void race_access(struct thread *t, struct region *region, u64 offset, u32 bytes, enum access access,
                 bool strong) {
    u64 end = offset + bytes;
    while (offset < end) {
        struct cell *cell = &region->cells[offset / 4];
        u32 part = MIN(4 - (u32)(offset % 4), (u32)(end - offset));
        if (part < 4 && !(cell->flags & CELL_SPLIT)) split_word(region, cell);
        if (cell->flags & CELL_SPLIT) {
            for (u32 i = 0; i < part; i++) {
                struct cell *byte = &region->split[cell->link + (offset + i) % 4];
                access_cell(t, region, byte, offset + i, access, strong);
            }
        } else {
            access_cell(t, region, cell, offset, access, strong);
        }
        offset += part;
    }
}

// --- synchronisation ---

static u32 tick(struct thread *t) { return t->clock = ++t->block->time; }

void race_full_barrier(struct block *block) {
    u32 now = ++block->time;
    block->floor = now;
    block->rows_dirty = false;
    for (u32 i = 0; i < block->n_threads; i++) {
        struct thread *t = &block->threads[i];
        t->clock = now;
        if (t->known.n == 0) continue;
        learn_all(&block->known, &t->known);
        knowledge_free(&t->known);
    }
}

void race_join_warp(struct block *block, struct thread *const lane[32]) {
    u32 now = ++block->time;
    struct knowledge all = {0};
    for (u32 i = 0; i < 32; i++) {
        if (lane[i] == NULL) continue;
        lane[i]->clock = now;
        lane[i]->seen[lane[i]->index] = now;
        learn_all(&all, &lane[i]->known);
    }
    for (u32 i = 0; i < 32; i++) {
        if (lane[i] == NULL) continue;
        if (all.n > 0) learn_all(&lane[i]->known, &all);
        for (u32 k = 0; k < 32; k++) {
            if (lane[k] != NULL) lane[i]->seen[lane[k]->index] = now;
        }
    }
    knowledge_free(&all);
    if (!block->rows_dirty) return;
    for (u32 v = 0; v < block->n_threads; v++) {
        u32 latest = 0;
        for (u32 i = 0; i < 32; i++) {
            if (lane[i] != NULL) latest = MAX(latest, lane[i]->seen[v]);
        }
        for (u32 i = 0; i < 32; i++) {
            if (lane[i] != NULL) lane[i]->seen[v] = latest;
        }
    }
}

void race_barrier_join(struct thread *t, struct barrier *barrier) {
    struct block *block = t->block;
    t->seen[t->index] = tick(t);
    for (u32 v = 0; v < block->n_threads; v++) {
        barrier->joined[v] = MAX(barrier->joined[v], t->seen[v]);
    }
    learn_all(&barrier->known, &t->known);
}

void race_barrier_leave(struct thread *t, const struct barrier *barrier) {
    learn_all(&t->known, &barrier->known);
    struct block *block = t->block;
    for (u32 v = 0; v < block->n_threads; v++) t->seen[v] = MAX(t->seen[v], barrier->joined[v]);
    block->rows_dirty = true;
}

static struct publication *publication(struct machine *machine, u64 address, bool make) {
    for (u32 i = 0; i < machine->n_publications; i++) {
        if (machine->publications[i].address == address) return &machine->publications[i];
    }
    if (!make) return NULL;
    if (machine->n_publications == machine->publications_capacity) {
        machine->publications_capacity = MAX(16u, 2 * machine->publications_capacity);
        machine->publications = need_more(machine->publications, machine->publications_capacity,
                                          sizeof(struct publication));
    }
    struct publication *made = &machine->publications[machine->n_publications++];
    *made = (struct publication){.address = address};
    return made;
}

// Everything that `t` has done and knows, as of now.
static void publish(struct thread *t, struct knowledge *to, bool block_only) {
    struct block *block = t->block;
    struct snapshot *own = need(1, sizeof *own);
    *own = (struct snapshot){.block = block->index + 1,
                             .floor = block->floor,
                             .n_threads = block->n_threads,
                             .block_only = block_only};
    t->seen[t->index] = tick(t);
    own->seen = need(block->n_threads, sizeof(u32));
    memcpy(own->seen, t->seen, block->n_threads * sizeof(u32));
    own->references = 1;
    learn(to, own);
    drop(own);
    learn_all(to, &t->known);
    learn_all(to, &block->known);
}

void race_release(struct thread *t, u64 address, bool by_fence) {
    if (by_fence && t->at_fence.n == 0) return;
    struct publication *at = publication(t->block->machine, address, true);
    if (by_fence) {
        learn_all(&at->known, &t->at_fence);
    } else {
        publish(t, &at->known, t->now->scope == SCOPE_CTA);
    }
}

void race_acquire(struct thread *t, u64 address, bool by_fence) {
    const struct publication *at = publication(t->block->machine, address, false);
    if (at == NULL) return;
    if (by_fence) {
        learn_all(&t->fenced, &at->known);
    } else {
        gain(t, &at->known, t->now->scope == SCOPE_CTA);
    }
}

void race_fence(struct thread *t) {
    gain(t, &t->fenced, t->now->scope == SCOPE_CTA);
    knowledge_free(&t->fenced);
    knowledge_free(&t->at_fence);
    publish(t, &t->at_fence, t->now->scope == SCOPE_CTA);
}

// --- the completion word ---

void race_completes(struct thread *t) {
    struct block *block = t->block;
    bool releases = t->now->order == ORDER_RELEASE || t->now->order == ORDER_ACQ_REL;
    if (t->now->scope == SCOPE_CTA || (!releases && t->at_fence.n == 0)) {
        REPORT(t, REPORT_COMPLETE, "counts its block as done without a release at .gpu scope");
    }
    if (block->release_seen == NULL) block->release_seen = need(block->n_threads, sizeof(u32));
    memcpy(block->release_seen, t->seen, block->n_threads * sizeof(u32));
    block->release_seen[t->index] = t->clock; // what came before in its own program
    block->release_floor = block->floor;
}

// Whoever reads a full count must see every store of the block.
void race_check_complete(struct block *block) {
    for (u32 i = 0; i < block->n_threads; i++) {
        struct thread *t = &block->threads[i];
        if (t->store_clock == 0) continue;
        t->now = t->store_insn;
        if (block->release_seen == NULL) {
            REPORT(t, REPORT_COMPLETE, "its block ends without having counted itself");
        } else if (t->store_clock >= block->release_floor &&
                   block->release_seen[i] <= t->store_clock) {
            REPORT(t, REPORT_COMPLETE, "the block counts itself as done without order after this");
        } else {
            continue;
        }
        return;
    }
}

static void forget_region(struct region *region) {
    u64 words = (region->bytes + 3) / 4;
    for (u64 i = 0; i < words; i++) {
        struct cell *cell = &region->cells[i];
        *cell = (struct cell){.init = cell->init, .covered = cell->covered};
    }
    for (u32 i = 0; i < region->n_readers; i++) region->readers[i].n = 0;
    region->n_readers = 0;
    region->n_split = 0;
}

void race_forget(struct machine *machine) {
    for (u32 i = 0; i < machine->n_regions; i++) forget_region(&machine->regions[i]);
    if (machine->variables.bytes > 0) forget_region(&machine->variables);
    for (u32 i = 0; i < machine->n_publications; i++) {
        knowledge_free(&machine->publications[i].known);
    }
    machine->n_publications = 0;
}
