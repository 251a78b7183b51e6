// SPDX-License-Identifier: Apache-2.0
// Execution of a launch: blocks in flight, threads and their schedules, barriers, warp
// instructions, reports.
//
// A thread runs until it has to meet others (or its slice ends); then another one does. Schedules:
//   to sync     each thread to its next meeting point, in random order
//   lockstep    the lanes of a warp that stand at the lowest instruction make one step together
//   slices      a random thread of a random block runs a few instructions
//
// E1. A barrier completes when all threads it expects have arrived; a block in which nobody can run
//     and somebody waits is reported, with who is missing.
// E2. A warp instruction executes when every lane of its mask stands at that very instruction with
//     the same mask (PTX would allow another place with the same mask; we do not).
#include "machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REGION_ORIGIN (1ull << 31) // of a buffer in its 4 GiB
#define QUANTUM 8192               // instructions of a thread at once, when nothing else ends it
#define SLICE_MAX 24
#define THREADS_MAX 1024

// --- reports ---

const char *report_name(enum report_kind kind) {
    static const char *const names[] = {
        [REPORT_BOUNDS] = "bounds",         [REPORT_ALIGN] = "align",
        [REPORT_UNINIT] = "uninit",         [REPORT_RACE] = "race",
        [REPORT_BARRIER] = "barrier",       [REPORT_TWICE] = "twice",
        [REPORT_MISSING] = "missing",       [REPORT_POWER] = "power",
        [REPORT_ASYNC] = "async",           [REPORT_PARAM] = "param",
        [REPORT_RESULT] = "result",         [REPORT_CHANGED] = "changed",
        [REPORT_COMPLETE] = "complete",     [REPORT_LAUNCH] = "launch",
        [REPORT_ARITHMETIC] = "arithmetic", [REPORT_TRAP] = "trap",
        [REPORT_ENDLESS] = "endless",       [REPORT_LIMIT] = "limit"};
    return names[kind];
}

void report(struct machine *machine, enum report_kind kind, const struct thread *thread,
            const struct insn *insn, const char *format, ...) {
    for (u32 i = 0; i < machine->n_reports; i++) {
        if (machine->reports[i].kind == kind && machine->reports[i].insn == insn && insn != NULL) {
            return;
        }
    }
    if (machine->n_reports == REPORTS_MAX) return;
    struct report *entry = &machine->reports[machine->n_reports++];
    entry->kind = kind;
    entry->insn = insn;
    usize used = 0;
    if (insn != NULL) {
        used = (usize)snprintf(entry->text, REPORT_TEXT, "%s:%u: ", ptx_file(machine->module, insn),
                               insn->line);
    }
    if (thread != NULL && used < REPORT_TEXT) {
        const u32 *b = thread->block->ctaid, *t = thread->tid;
        used += (usize)snprintf(entry->text + used, REPORT_TEXT - used,
                                "block (%u,%u,%u) thread (%u,%u,%u): ", b[0], b[1], b[2], t[0],
                                t[1], t[2]);
    }
    if (used < REPORT_TEXT) {
        used += (usize)snprintf(entry->text + used, REPORT_TEXT - used, "%s: ", report_name(kind));
    }
    va_list args;
    va_start(args, format);
    if (used < REPORT_TEXT) {
        used += (usize)vsnprintf(entry->text + used, REPORT_TEXT - used, format, args);
    }
    va_end(args);
    if (insn != NULL && insn->source != NULL && used < REPORT_TEXT) {
        snprintf(entry->text + used, REPORT_TEXT - used, "  [%.*s]", (int)MIN(insn->text, 90),
                 insn->source);
    }
}

void report_uninitialised(struct thread *t, u32 slot) {
    REPORT(t, REPORT_UNINIT, "uses register %s, which nothing has set",
           t->block->machine->kernel->slot_names[slot]);
}

void exec_undefine(struct thread *t, const struct insn *insn) {
    memset(t->init + insn->src[0].imm, 0, (usize)insn->src[1].imm);
}

u64 special_value(const struct thread *t, u32 special) {
    const struct block *block = t->block;
    const struct launch_config *config = &block->machine->config;
    u32 lane = t->lane;
    switch ((enum special)special) {
    case SPECIAL_TID_X: return t->tid[0];
    case SPECIAL_TID_Y: return t->tid[1];
    case SPECIAL_TID_Z: return t->tid[2];
    case SPECIAL_NTID_X: return config->block[0];
    case SPECIAL_NTID_Y: return config->block[1];
    case SPECIAL_NTID_Z: return config->block[2];
    case SPECIAL_CTAID_X: return block->ctaid[0];
    case SPECIAL_CTAID_Y: return block->ctaid[1];
    case SPECIAL_CTAID_Z: return block->ctaid[2];
    case SPECIAL_NCTAID_X: return config->grid[0];
    case SPECIAL_NCTAID_Y: return config->grid[1];
    case SPECIAL_NCTAID_Z: return config->grid[2];
    case SPECIAL_LANEID: return lane;
    case SPECIAL_WARPID: return t->index / 32;
    case SPECIAL_NWARPID: return block->n_warps;
    case SPECIAL_LANEMASK_EQ: return 1u << lane;
    case SPECIAL_LANEMASK_LT: return (1u << lane) - 1;
    case SPECIAL_LANEMASK_LE: return (u32)((2ull << lane) - 1);
    case SPECIAL_LANEMASK_GE: return (u32) ~((1u << lane) - 1);
    case SPECIAL_LANEMASK_GT: return (u32) ~((2ull << lane) - 1);
    case SPECIAL_DYNAMIC_SMEM_SIZE: return config->shared_bytes;
    default: return 0;
    }
}

// --- memory ---

static void region_init(struct region *region, const char *name, enum region_role role, u64 address,
                        u64 bytes) {
    snprintf(region->name, NAME_BYTES, "%s", name);
    region->role = role;
    region->address = address;
    region->bytes = bytes;
    region->data = need(bytes + 16, 1);
    region->cells = need((bytes + 3) / 4 + 1, sizeof(struct cell));
}

static void region_free(struct region *region) {
    for (u32 i = 0; i < region->readers_capacity; i++) free(region->readers[i].reader);
    free(region->readers);
    free(region->split);
    free(region->cells);
    free(region->data);
    *region = (struct region){0};
}

struct machine *machine_new(const struct module *module) {
    struct machine *machine = need(1, sizeof *machine);
    machine->module = module;
    machine->steps_max = MACHINE_STEPS_MAX;
    region_init(&machine->constants, "constant memory", ROLE_CONST, WINDOW_CONST,
                module->const_bytes);
    region_init(&machine->variables, "the module's variables", ROLE_SCRATCH, WINDOW_MODULE,
                module->global_bytes);
    if (module->const_bytes > 0) {
        memcpy(machine->constants.data, module->const_data, module->const_bytes);
    }
    if (module->global_bytes > 0) {
        memcpy(machine->variables.data, module->global_data, module->global_bytes);
        for (u32 i = 0; i < (module->global_bytes + 3) / 4; i++) {
            machine->variables.cells[i].init = 15;
        }
    }
    return machine;
}

void machine_free(struct machine *machine) {
    race_forget(machine);
    for (u32 i = 0; i < machine->n_regions; i++) region_free(&machine->regions[i]);
    region_free(&machine->constants);
    region_free(&machine->variables);
    free(machine->publications);
    free(machine);
}

struct region *machine_buffer(struct machine *machine, const char *name, enum region_role role,
                              u64 bytes, u32 misalign, const u8 *contents, const u8 *initialised) {
    if (machine->n_regions == REGIONS_MAX) fail("more than %d buffers", REGIONS_MAX);
    u32 index = machine->n_regions++;
    struct region *region = &machine->regions[index];
    u64 address = WINDOW_GLOBAL + ((u64)index << 32) + REGION_ORIGIN + misalign;
    region_init(region, name, role, address, bytes);
    memcpy(region->data, contents, bytes);
    for (u64 i = 0; i < bytes; i++) {
        if (initialised[i]) region->cells[i / 4].init |= (u8)(1u << i % 4);
    }
    return region;
}

// --- blocks ---

static void block_new(struct machine *machine, struct block *block, u32 index) {
    const struct kernel *kernel = machine->kernel;
    const struct launch_config *config = &machine->config;
    const u32 *grid = config->grid, *shape = config->block;
    u32 n = shape[0] * shape[1] * shape[2];
    *block = (struct block){.machine = machine, .index = index, .n_threads = n, .n_ready = n};
    block->ctaid[0] = index % grid[0];
    block->ctaid[1] = index / grid[0] % grid[1];
    block->ctaid[2] = index / (grid[0] * grid[1]);
    block->n_warps = (n + 31) / 32;
    block->time = block->floor = 1;
    block->threads = need(n, sizeof(struct thread));
    block->regs = need((usize)n * kernel->n_slots, sizeof(u64));
    block->init = need((usize)n * kernel->n_slots, 1);
    block->seen = need((usize)n * n, sizeof(u32));
    region_init(&block->shared, "shared memory", ROLE_SHARED, 0,
                (u64)kernel->shared_static + config->shared_bytes);
    for (u32 i = 0; i < BARRIERS; i++) block->barriers[i].joined = need(n, sizeof(u32));
    for (u32 i = 0; i < n; i++) {
        struct thread *t = &block->threads[i];
        t->regs = block->regs + (usize)i * kernel->n_slots;
        t->init = block->init + (usize)i * kernel->n_slots;
        t->seen = block->seen + (usize)i * n;
        t->block = block;
        t->index = (u16)i;
        t->lane = (u16)(i % 32);
        t->clock = 1;
        t->tid[0] = i % shape[0];
        t->tid[1] = i / shape[0] % shape[1];
        t->tid[2] = i / (shape[0] * shape[1]);
        if (kernel->local_bytes == 0) continue;
        t->local = need(kernel->local_bytes, 2);
        t->local_init = t->local + kernel->local_bytes;
    }
}

static void block_free(struct block *block) {
    for (u32 i = 0; i < block->n_threads; i++) {
        struct thread *t = &block->threads[i];
        free(t->local);
        free(t->copies);
        knowledge_free(&t->known);
        knowledge_free(&t->fenced);
        knowledge_free(&t->at_fence);
    }
    for (u32 i = 0; i < BARRIERS; i++) {
        free(block->barriers[i].joined);
        knowledge_free(&block->barriers[i].known);
    }
    knowledge_free(&block->known);
    region_free(&block->shared);
    free(block->threads);
    free(block->regs);
    free(block->init);
    free(block->seen);
    free(block->release_seen);
}

static void make_ready(struct thread *t) {
    t->state = THREAD_READY;
    t->pc++;
    t->block->n_ready++;
}

static void make_wait(struct thread *t, enum thread_state state) {
    t->state = (u8)state;
    t->block->n_ready--;
}

// --- barriers ---

static const struct insn *insn_of(const struct thread *t) {
    return &t->block->machine->kernel->insns[t->pc];
}

// All lanes of a warp must wait at one and the same instruction of an aligned barrier.
static void check_converged(struct block *block, const struct thread *first) {
    u32 begin = first->index / 32 * 32, end = MIN(begin + 32, block->n_threads);
    for (u32 i = begin; i < end; i++) {
        const struct thread *t = &block->threads[i];
        if (t->state == THREAD_AT_BARRIER && t->pc == first->pc) continue;
        report(block->machine, REPORT_BARRIER, first, insn_of(first),
               "warp %u has diverged at this aligned barrier: thread %u is at line %u", begin / 32,
               i, insn_of(t)->line);
        return;
    }
}

static void barrier_complete(struct block *block, u32 id) {
    struct barrier *barrier = &block->barriers[id];
    bool full = barrier->full && !barrier->mixed;
    if (full) race_full_barrier(block);
    u32 last_warp = ~0u;
    for (u32 i = 0; i < block->n_threads; i++) {
        struct thread *t = &block->threads[i];
        if (t->state != THREAD_AT_BARRIER || t->wait_barrier != id) continue;
        const struct insn *insn = insn_of(t);
        if (insn->aligned && i / 32 != last_warp) check_converged(block, t);
        last_warp = i / 32;
    }
    for (u32 i = 0; i < block->n_threads; i++) {
        struct thread *t = &block->threads[i];
        if (t->state != THREAD_AT_BARRIER || t->wait_barrier != id) continue;
        const struct insn *insn = insn_of(t);
        if (!full) race_barrier_leave(t, barrier);
        u32 value = barrier->popc;
        if (insn->sub == BARRIER_RED_AND) value = barrier->popc == barrier->arrived;
        if (insn->sub == BARRIER_RED_OR) value = barrier->popc != 0;
        if (insn->n_dst > 0) put(t, &insn->dst[0], value);
        make_ready(t);
    }
    u32 *joined = barrier->joined;
    knowledge_free(&barrier->known);
    memset(joined, 0, block->n_threads * sizeof(u32));
    *barrier = (struct barrier){.joined = joined};
}

static void barrier_arrive(struct thread *t, const struct insn *insn) {
    struct block *block = t->block;
    u32 id = (u32)get(t, &insn->src[0]);
    bool counted = insn->n_src > 1;
    u32 expected = counted ? (u32)get(t, &insn->src[1]) : block->n_threads;
    if (id >= BARRIERS) {
        REPORT(t, REPORT_BARRIER, "barrier %u, of %d", id, BARRIERS);
        block->machine->stopped = true;
        return;
    }
    struct barrier *barrier = &block->barriers[id];
    if (counted &&
        (expected % 32 != 0 || expected == 0 || expected > round_up(block->n_threads, 32))) {
        REPORT(t, REPORT_BARRIER, "a barrier of %u threads in a block of %u", expected,
               block->n_threads);
    }
    if (barrier->arrived > 0 && barrier->expected != expected) {
        REPORT(t, REPORT_BARRIER, "barrier %u waits for %u threads, and is entered with %u", id,
               barrier->expected, expected);
    }
    if (barrier->arrived == 0) {
        barrier->expected = expected;
        barrier->full = expected >= block->n_threads;
    }
    barrier->arrived++;
    barrier->mixed |= insn->sub == BARRIER_ARRIVE;
    if (insn->sub >= BARRIER_RED_POPC) barrier->popc += get(t, &insn->src[2]) != 0;
    if (counted || !barrier->full) race_barrier_join(t, barrier);
    if (insn->sub == BARRIER_ARRIVE) {
        t->pc++;
    } else {
        t->wait_barrier = id;
        make_wait(t, THREAD_AT_BARRIER);
    }
    if (barrier->arrived == MIN(expected, block->n_threads)) barrier_complete(block, id);
}

// --- warp instructions ---

static void warp_try(struct block *block, const struct thread *arrived, const struct insn *insn) {
    u32 first = arrived->index / 32 * 32, n = MIN(32u, block->n_threads - first);
    u32 present = n == 32 ? ~0u : (1u << n) - 1, mask = arrived->wait_mask;
    u32 wanted = mask & present &
                 (insn->class == CLASS_WARP ? ~block->warp_exited[first / 32] : ~0u);
    if (block->warp_waiting[first / 32] < (u32)__builtin_popcount(wanted)) return;
    struct warp_call call = {.block = block, .mask = mask};
    u32 here = 0;
    for (u32 l = 0; l < n; l++) {
        struct thread *t = &block->threads[first + l];
        if (!(mask >> l & 1)) continue;
        if (t->state == THREAD_AT_WARP && t->pc == arrived->pc && t->wait_mask == mask) {
            call.lane[l] = t;
            here |= 1u << l;
        }
    }
    if (here != wanted) return; // an exited lane is not waited for, unless all lanes are wanted
    call.lanes = here;
    insn->run_warp(&call, insn);
    for (u32 l = 0; l < n; l++) {
        if (call.lane[l] != NULL) make_ready(call.lane[l]);
    }
    block->warp_waiting[first / 32] -= (u8)__builtin_popcount(here);
}

static void warp_arrive(struct thread *t, const struct insn *insn) {
    struct block *block = t->block;
    if (insn->class == CLASS_WARP_ALL) {
        u32 first = t->index / 32 * 32;
        t->wait_mask = ~0u;
        if (block->n_threads - first < 32) {
            REPORT(t, REPORT_BARRIER, "an instruction of a whole warp in a warp of %u threads",
                   block->n_threads - first);
            block->machine->stopped = true;
            return;
        }
    } else {
        t->wait_mask = (u32)get(t, &insn->mask);
        if (!(t->wait_mask >> t->lane & 1)) {
            REPORT(t, REPORT_BARRIER, "mask 0x%08x lacks the lane itself (%u)", t->wait_mask,
                   t->lane);
            t->wait_mask |= 1u << t->lane;
        }
    }
    make_wait(t, THREAD_AT_WARP);
    block->warp_waiting[t->index / 32]++;
    warp_try(block, t, insn);
}

static void thread_exit(struct thread *t) {
    struct block *block = t->block;
    make_wait(t, THREAD_EXITED);
    block->n_exited++;
    block->warp_exited[t->index / 32] |= 1u << t->lane;
    u32 first = t->index / 32 * 32, end = MIN(first + 32, block->n_threads);
    for (u32 i = first; i < end; i++) { // others may have been waiting for this lane only
        struct thread *other = &block->threads[i];
        if (other->state == THREAD_AT_WARP) warp_try(block, other, insn_of(other));
    }
}

// --- running ---

// Runs up to `quantum` instructions of a ready thread.
static void thread_run(struct thread *t, u32 quantum) {
    struct machine *machine = t->block->machine;
    const struct insn *insns = machine->kernel->insns;
    u32 left = quantum;
    while (left > 0) {
        const struct insn *insn = &insns[t->pc];
        left--;
        t->now = insn;
        if (insn->pred != NO_REG) {
            if (!t->init[insn->pred]) report_uninitialised(t, insn->pred);
            if ((t->regs[insn->pred] != 0) == insn->pred_negated) {
                t->pc++;
                continue;
            }
        }
        if (insn->class == CLASS_PLAIN) {
            insn->run(t, insn);
            t->pc++;
        } else if (insn->class == CLASS_BRANCH) {
            t->pc = insn->target;
        } else {
            if (insn->class == CLASS_RETURN) thread_exit(t);
            if (insn->class == CLASS_BARRIER) barrier_arrive(t, insn);
            if (insn->class == CLASS_WARP || insn->class == CLASS_WARP_ALL) warp_arrive(t, insn);
            if (insn->class == CLASS_TRAP) {
                REPORT(t, REPORT_TRAP, "trap");
                machine->stopped = true;
            }
            if (t->state != THREAD_READY || machine->stopped) break;
        }
    }
    machine->steps += quantum - left;
    if (machine->steps > machine->steps_max && !machine->stopped) {
        REPORT(t, REPORT_ENDLESS, "no end after %llu instructions", machine->steps);
        machine->stopped = true;
    }
}

// The ready lanes of a warp with the lowest instruction make one step; returns false when none is.
static bool warp_step(struct block *block, u32 warp) {
    u32 first = warp * 32, end = MIN(first + 32, block->n_threads), lowest = ~0u;
    for (u32 i = first; i < end; i++) {
        const struct thread *t = &block->threads[i];
        if (t->state == THREAD_READY) lowest = MIN(lowest, t->pc);
    }
    if (lowest == ~0u) return false;
    u32 lanes = 0;
    for (u32 i = first; i < end; i++) {
        const struct thread *t = &block->threads[i];
        if (t->state == THREAD_READY && t->pc == lowest) lanes |= 1u << (i - first);
    }
    for (; lanes != 0; lanes &= lanes - 1) {
        struct thread *t = &block->threads[first + (u32)__builtin_ctz(lanes)];
        if (t->state == THREAD_READY && t->pc == lowest) thread_run(t, 1);
    }
    return true;
}

static struct thread *ready_thread(struct block *block, u32 start) {
    for (u32 k = 0; k < block->n_threads; k++) {
        u32 i = start + k < block->n_threads ? start + k : start + k - block->n_threads;
        if (block->threads[i].state == THREAD_READY) return &block->threads[i];
    }
    return NULL;
}

// Nobody of the block can go on: says who waits for whom.
static void report_stuck(struct block *block) {
    const struct thread *waiting = NULL, *missing = NULL;
    u32 n_waiting = 0;
    for (u32 i = 0; i < block->n_threads; i++) {
        struct thread *t = &block->threads[i];
        if (t->state != THREAD_AT_BARRIER && t->state != THREAD_AT_WARP) continue;
        if (waiting == NULL) waiting = t;
        n_waiting += t->pc == waiting->pc;
    }
    if (waiting == NULL) return;
    for (u32 i = 0; i < block->n_threads && missing == NULL; i++) {
        const struct thread *t = &block->threads[i];
        bool wanted = waiting->state == THREAD_AT_BARRIER ||
                      (t->index / 32 == waiting->index / 32 && (waiting->wait_mask >> t->lane & 1));
        if (wanted && (t->pc != waiting->pc || t->state != waiting->state)) missing = t;
    }
    const struct insn *insn = insn_of(waiting);
    if (missing == NULL) {
        report(block->machine, REPORT_BARRIER, waiting, insn, "%u threads wait here for ever",
               n_waiting);
    } else if (missing->state == THREAD_EXITED) {
        report(block->machine, REPORT_BARRIER, waiting, insn,
               "%u threads wait here for others; thread %u has ended", n_waiting, missing->index);
    } else {
        report(block->machine, REPORT_BARRIER, waiting, insn,
               "%u threads wait here for others; thread %u waits at line %u", n_waiting,
               missing->index, insn_of(missing)->line);
    }
}

static void block_run(struct block *block) {
    struct machine *machine = block->machine;
    struct random *random = &machine->random;
    enum schedule schedule = machine->config.schedule;
    u32 rounds = schedule == SCHEDULE_SLICES ? 64 : schedule == SCHEDULE_LOCKSTEP ? 256 : 1024;
    for (u32 k = 0; k < rounds && block->n_ready > 0 && !machine->stopped; k++) {
        if (schedule == SCHEDULE_LOCKSTEP) {
            u32 warp = random_below(random, block->n_warps), tried = 0;
            while (tried++ < block->n_warps && !warp_step(block, warp)) {
                warp = warp + 1 == block->n_warps ? 0 : warp + 1;
            }
            continue;
        }
        struct thread *t = ready_thread(block, random_below(random, block->n_threads));
        if (t == NULL) break;
        u32 quantum = schedule == SCHEDULE_TO_SYNC ? QUANTUM : 1 + random_below(random, SLICE_MAX);
        thread_run(t, quantum);
        // Perhaps it waits for another block: let that have its turn.
        if (schedule == SCHEDULE_TO_SYNC && t->state == THREAD_READY) break;
    }
    if (machine->stopped || block->n_ready > 0) return;
    block->done = true;
    if (block->n_exited < block->n_threads) {
        report_stuck(block);
        machine->stopped = true;
    } else if (machine->complete_region != NULL) {
        race_check_complete(block);
    }
}

static bool limits_hold(struct machine *machine) {
    const struct kernel *kernel = machine->kernel;
    const struct launch_config *config = &machine->config;
    const u32 *shape = config->block;
    u64 threads = (u64)shape[0] * shape[1] * shape[2];
    u64 blocks = (u64)config->grid[0] * config->grid[1] * config->grid[2];
    u64 shared = (u64)kernel->shared_exact + config->shared_bytes;
    u32 before = machine->n_reports;
    if (threads == 0 || threads > THREADS_MAX || blocks == 0 || blocks > 1u << 24) {
        report(machine, REPORT_LAUNCH, NULL, NULL, "%s: %llu blocks of %llu threads", kernel->name,
               blocks, threads);
    } else if (kernel->max_threads != 0 && threads > kernel->max_threads) {
        report(machine, REPORT_LAUNCH, NULL, NULL, "%s: %llu threads a block, .maxntid allows %u",
               kernel->name, threads, kernel->max_threads);
    }
    if (kernel->required[0] != 0 && memcmp(kernel->required, shape, sizeof config->block) != 0) {
        report(machine, REPORT_LAUNCH, NULL, NULL, "%s: the block is not .reqntid", kernel->name);
    }
    if (shared > 99 * 1024) { // sm_89: 100 KiB a block less 1 KiB of the system
        report(machine, REPORT_LAUNCH, NULL, NULL, "%s: %llu bytes of shared memory", kernel->name,
               shared);
    }
    return machine->n_reports == before;
}

// Blocks start in ascending order, or in a random one, which PTX allows, under SCHEDULE_SLICES.
static u32 *block_order(struct machine *machine, u32 n) {
    u32 *order = need(n, sizeof(u32));
    for (u32 i = 0; i < n; i++) order[i] = i;
    for (u32 i = n; i > 1 && machine->config.schedule == SCHEDULE_SLICES; i--) {
        u32 j = random_below(&machine->random, i), kept = order[i - 1];
        order[i - 1] = order[j];
        order[j] = kept;
    }
    return order;
}

void machine_launch(struct machine *machine, const struct kernel *kernel,
                    const struct launch_config *config) {
    machine->kernel = kernel;
    machine->config = *config;
    machine->random.state = config->seed;
    machine->power_reader = 0;
    if (machine->stopped || !limits_hold(machine)) return;
    u32 n_blocks = config->grid[0] * config->grid[1] * config->grid[2];
    u32 n_resident = MIN(MAX(config->resident, 1u), n_blocks), next = 0, n = 0;
    struct block **resident = need(n_resident, sizeof(void *));
    u32 *order = block_order(machine, n_blocks);
    while ((next < n_blocks || n > 0) && !machine->stopped) {
        while (n < n_resident && next < n_blocks) {
            resident[n] = need(1, sizeof(struct block));
            block_new(machine, resident[n++], order[next++]);
        }
        u32 k = random_below(&machine->random, n);
        block_run(resident[k]);
        if (!resident[k]->done) continue;
        block_free(resident[k]);
        free(resident[k]);
        resident[k] = resident[--n];
    }
    for (u32 k = 0; k < n; k++) {
        block_free(resident[k]);
        free(resident[k]);
    }
    free(resident);
    free(order);
    race_forget(machine);
}
