// SPDX-License-Identifier: Apache-2.0
// The machine that executes decoded PTX: device memory with shadow state, blocks, warps, threads,
// barriers, and the reports.
//
//   machine ── regions (device buffers)          blocks in flight ── shared memory
//      │          bytes + a cell per word              │  threads ── registers + initialised flags
//      └── reports                                     └─ barriers, vector clocks
//
// M1. Order between threads is tracked by vector clocks (race.c), so a race is found whatever order
//     the threads happened to run in.
// M2. A faulty access is reported and not done; a faulty load yields zero. Execution goes on, so
// that
//     one run tells more than one fault; each instruction reports each kind once.
#pragma once
#include "ptx.h"

enum report_kind {
    REPORT_BOUNDS, // outside of every buffer, or beyond a shared, local or const variable
    REPORT_ALIGN,
    REPORT_UNINIT, // register or memory
    REPORT_RACE,
    REPORT_BARRIER, // not reached by the whole group, or by a diverged warp
    REPORT_TWICE,   // an output byte stored twice
    REPORT_MISSING, // an output element never stored
    REPORT_POWER,
    REPORT_COMPLETE,   // a block counts itself as done before its stores are ordered
    REPORT_ASYNC,      // cp.async data touched before its wait
    REPORT_PARAM,      // parameters against the host's table
    REPORT_RESULT,     // differs from the reference
    REPORT_CHANGED,    // memory that must keep its contents
    REPORT_LAUNCH,     // block or shared size against the kernel's limits
    REPORT_ARITHMETIC, // division by zero and the like
    REPORT_TRAP,
    REPORT_ENDLESS,
    REPORT_LIMIT,
};
const char *report_name(enum report_kind kind);

#define REPORTS_MAX 16
#define REPORT_TEXT 320
struct report {
    enum report_kind kind;
    const struct insn *insn;
    char text[REPORT_TEXT];
};

// A set of readers of one word between two orderings: lanes of warps with their clocks.
struct reader {
    u32 block, warp, lanes, clock;
};
struct readers {
    u32 n, capacity;
    struct reader *reader;
};

// Shadow of four bytes of memory (or, below a split cell, of one byte).
#define CELL_SPLIT 1        // `link` is the first of four cells, one per byte
#define CELL_WRITE_ATOMIC 2 // the last write was a strong one
#define CELL_READ_ATOMIC 4
#define CELL_MANY_READERS 8 // `link` indexes the region's reader sets
struct cell {
    u32 write_block, write_clock; // block + 1; 0: none
    u32 read_block, read_clock;
    u16 write_thread, read_thread;
    u8 flags;
    // A bit per byte, kept in the word's cell: defined, target of a copy in flight, stored as an
    // output, ever stored; in this launch stored, and read by ld.global.nc.
    u8 init, pending, wrote, covered, stored, read_only;
    u32 link, readers;
    u32 write_insn, read_insn; // instruction numbers, for messages
};

enum region_role { ROLE_IN, ROLE_OUT, ROLE_INOUT, ROLE_SCRATCH, ROLE_SHARED, ROLE_CONST };
struct region {
    char name[NAME_BYTES];
    enum region_role role;
    u64 address, bytes;
    u8 *data;
    struct cell *cells; // [ceil(bytes / 4)]
    struct cell *split; // byte cells, four for each split word
    u32 n_split, split_capacity;
    struct readers *readers;
    u32 n_readers, readers_capacity;
};

enum thread_state {
    THREAD_READY,
    THREAD_AT_BARRIER,
    THREAD_AT_WARP,
    THREAD_EXITED,
};

// A pending cp.async: `bytes` go to shared[to], of which `from_bytes` come from global memory.
struct async_copy {
    u64 from;
    u32 to, bytes, from_bytes, group;
    const struct insn *insn;
};

// What an acquiring thread of another block learned by a release: everything of `block` with a
// clock below `floor`, and of each of its threads what `seen` says.
struct snapshot {
    u32 block, floor, n_threads, references;
    bool block_only; // released at .cta scope
    u32 *seen;
};
struct knowledge { // snapshots of other blocks, the latest of each
    u32 n, capacity;
    struct snapshot **snapshot;
};

struct block;
struct thread {
    u64 *regs;
    u8 *init;
    const struct insn *now; // the instruction being executed
    struct block *block;
    u32 pc;
    u16 index, lane;
    u8 state, carry;
    u32 tid[3];
    u32 clock;
    u32 *seen;     // [threads of the block] vector clock
    u32 wait_mask; // THREAD_AT_WARP
    u32 wait_barrier, wait_value;
    u8 *local, *local_init;
    u32 store_clock; // of the latest store to a device buffer; 0: none
    const struct insn *store_insn;
    struct async_copy *copies;
    u32 n_copies, copies_capacity, groups; // groups committed so far
    struct knowledge known;                // of other blocks
    struct knowledge fenced;               // read by relaxed operations, known after the next fence
    struct knowledge at_fence; // what a relaxed store publishes: what was known at the last fence
};

#define BARRIERS 16
struct barrier {
    u32 arrived, expected;  // threads; expected 0: nobody has come
    bool full;              // the whole block, by bar.sync without arrivals
    bool mixed;             // an arrival without waiting took part
    struct knowledge known; // of other blocks, of those that came
    u32 *joined;            // [threads] maximum of the clocks of those that came
    u32 popc, all, any;     // of bar.red
};

struct block {
    struct machine *machine;
    u32 index, ctaid[3], slot;
    u32 n_threads, n_warps, n_exited, n_ready;
    u8 warp_waiting[32]; // lanes at a warp instruction
    u32 warp_exited[32]; // lane masks
    u32 time, floor;     // race.c
    bool rows_dirty;     // vector clocks reach beyond warps
    struct thread *threads;
    u64 *regs;
    u8 *init;
    u32 *seen;
    struct region shared;
    struct barrier barriers[BARRIERS];
    struct knowledge known;           // of every thread, gathered at full barriers
    u32 *release_seen, release_floor; // at its release of the completion word; NULL: not yet
    bool power_seen, power_off;       // has read the word; has read another value than ACTIVE
    bool done;
};

// Releases at an address of global memory, for acquire loads that follow.
struct publication {
    u64 address;
    struct knowledge known;
};

enum schedule { SCHEDULE_TO_SYNC, SCHEDULE_LOCKSTEP, SCHEDULE_SLICES };

struct launch_config {
    u32 grid[3], block[3], shared_bytes, resident;
    enum schedule schedule;
    u64 seed;
};

#define MACHINE_STEPS_MAX 200000000 // instructions of all threads, after which a launch is endless
#define REGIONS_MAX 64
struct machine {
    const struct module *module;
    const struct kernel *kernel;
    struct launch_config config;
    struct region regions[REGIONS_MAX];
    u32 n_regions;
    struct region constants, variables;
    u8 param[4096];
    struct random random;
    // power state word, when there is one
    struct region *power_region;
    u64 power_offset;
    u32 power_active, power_other;
    enum { POWER_NONE, POWER_ON, POWER_OFF, POWER_FLIPS } power_mode;
    u32 power_reader;               // block + 1 that read the word first
    struct region *complete_region; // the completion word, when there is one
    u64 complete_offset;
    struct publication *publications;
    u32 n_publications, publications_capacity;
    u64 steps, steps_max;
    bool stopped; // a trap, an endless loop, a dead barrier
    struct report reports[REPORTS_MAX];
    u32 n_reports;
};

struct warp_call { // one warp instruction with the lanes that execute it
    struct block *block;
    struct thread *lane[32]; // NULL when not taking part
    u32 lanes, mask;
};

// --- machine.c ---
struct machine *machine_new(const struct module *module);
void machine_free(struct machine *machine);
// A device buffer of `bytes`, at a 256-byte aligned address plus `misalign`. Contents are copied
// from `contents`; the flags of `initialised` (a byte each) say which of them are defined.
struct region *machine_buffer(struct machine *machine, const char *name, enum region_role role,
                              u64 bytes, u32 misalign, const u8 *contents, const u8 *initialised);
// Executes one launch to its end; the parameter block is in machine->param.
void machine_launch(struct machine *machine, const struct kernel *kernel,
                    const struct launch_config *config);

void report(struct machine *machine, enum report_kind kind, const struct thread *thread,
            const struct insn *insn, const char *format, ...) PRINTF_LIKE(5, 6);
// For the instruction that the thread is executing.
#define REPORT(thread, kind, ...) \
    report((thread)->block->machine, (kind), (thread), (thread)->now, __VA_ARGS__)

u64 special_value(const struct thread *thread, u32 special);
void report_uninitialised(struct thread *thread, u32 slot);

// --- memory.c ---
enum access { ACCESS_READ, ACCESS_WRITE, ACCESS_ATOMIC };
// Checks an access and returns the bytes, or NULL when it was reported.
u8 *memory_access(struct thread *thread, enum space space, u64 address, u32 bytes,
                  enum access access);
// The key under which releases at an address are found: shared memory is each block's own.
u64 memory_key(const struct thread *thread, enum space space, u64 address);
// cp.async: marks the bytes as in flight; then carries the copy out.
void memory_async_begin(struct thread *thread, const struct async_copy *copy);
void memory_async_end(struct thread *thread, const struct async_copy *copy);

// --- race.c ---
void race_access(struct thread *thread, struct region *region, u64 offset, u32 bytes,
                 enum access access, bool strong);
void race_full_barrier(struct block *block);
void race_join_warp(struct block *block, struct thread *const lane[32]);
void race_barrier_join(struct thread *thread, struct barrier *barrier);
void race_barrier_leave(struct thread *thread, const struct barrier *barrier);
// `by_fence`: a relaxed operation, which publishes or gains only together with a fence.
void race_release(struct thread *thread, u64 address, bool by_fence);
void race_acquire(struct thread *thread, u64 address, bool by_fence);
void race_fence(struct thread *thread);
void race_completes(struct thread *thread); // has released the completion word
void race_check_complete(struct block *block);
void race_forget(struct machine *machine); // at the end of a launch everything is ordered
void knowledge_free(struct knowledge *knowledge);

// --- operands ---
static inline u64 get(struct thread *t, const struct operand *o) {
    if (o->kind == OPERAND_REG) {
        if (!t->init[o->reg]) report_uninitialised(t, o->reg);
        return o->negated ? !t->regs[o->reg] : t->regs[o->reg];
    }
    if (o->kind == OPERAND_IMM) return (u64)o->imm;
    return special_value(t, o->reg);
}

static inline void put(struct thread *t, const struct operand *o, u64 value) {
    if (o->kind != OPERAND_REG) return; // "_"
    t->regs[o->reg] = value;
    t->init[o->reg] = 1;
}
