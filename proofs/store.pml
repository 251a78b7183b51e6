/* SPDX-License-Identifier: Apache-2.0
 * The record store (src/record/rowm.c, worm.c; docs/format.md): write, read once, resume, recovery,
 * with a crash between any two steps. A crash is a kill (the system's cache stays) or a power failure
 * (each entry that is not durable is kept or lost, a head slot also torn). A sync may fail: then what
 * it should have written is clean in the cache and not on the disk. Any client may repeat any request.
 *
 * Four transactions over a store that holds one secret under capability C:
 *   1  the checkpoint of a sequence: issues the sequence's capability
 *   2  resume: consumes that capability, writes the successor, issues another
 *   3, 4  read C once, by two rivals
 * A transaction t is two entries, 2t (record or claim) and 2t + 1 (receipt). A hash that cannot be
 * forged is the whole history: entry i holds the digits of entries 0 to i, so it fits one place only,
 * and the last one is the root.
 *
 * Shown for every order of requests, with CRASHES crashes and FAULTS failing syncs:
 *   S1  what is acknowledged has exactly one receipt, whatever is repeated, and is there for ever
 *   S2  nothing is disclosed before its receipt and head are durable
 *   S3  a capability is consumed once, and disclosed at most once
 *   S4  an acknowledged position of the log never changes
 *   S5  a traversal takes at most as many steps as there are records, or its bound
 *   S6  the root is a function of the requests in their order, also when recovery finished them
 *   S7  recovery ends with whole transactions, all published, and repeating it changes nothing
 *   S8  what is visible is published and durable; nothing of a pending transaction is
 *   S9  a sequence whose checkpoint is visible has exactly one available capability
 * MUTANT 1 to 13 break one rule each, and must be found out.
 */
#ifndef MUTANT
#define MUTANT 0
#endif
#define TX 4
#define ENTRIES 8
#define REQUESTS 5
#define CRASHES 2
#define FAULTS 1

int log[ENTRIES], disk[ENTRIES]; /* in the cache, and durable; 0: nothing */
bool dirty[ENTRIES], slot_dirty[2];
byte gen[2], heads[2], disk_gen[2], disk_heads[2]; /* slots: generation (0: torn), entries covered */
byte head, newest;                                 /* of the newest slot, in the writer's memory */
byte staged, shown;        /* the writer's memory: staged, published */
bool failed;          /* a sync failed: nothing is committed any more */
bool wanted[TX + 1];  /* asked for in this session: to be answered by the commit */
byte crashes = CRASHES, faults = FAULTS, requests;
/* What the world was told. */
byte told_len, secrets, states;
int told_root;
/* What a scan of the log finds. */
byte i, t, n_of[TX + 1];
bool ok;

#if MUTANT == 9
#define VISIBLE staged
#else
#define VISIBLE shown
#endif
#if MUTANT == 8 /* resume is two transactions: 2 consumes, 4 writes the successor */
#define N_AVAILABLE (n_of[1] - n_of[2] + n_of[4])
#else
#define N_AVAILABLE n_of[1] /* 2 takes one and gives one */
#endif

#define BEFORE(at) ((at) == 0 -> 0 : log[(at) - 1])

/* How often each transaction has a receipt in the first `n` entries. */
inline scan(n) {
    t = 1;
    do :: t <= TX -> n_of[t] = 0; t++ :: else -> break od;
    i = 1;
    do
    :: i < (n) -> n_of[(log[i] % 10) / 2]++; i = i + 2
    :: else -> break
    od
}

inline check() {
    d_step {
        i = 0;
        do
        :: i < VISIBLE -> assert(disk[i] == log[i] && (i < disk_heads[0] || i < disk_heads[1])); i++ /* S8 */
        :: else -> break
        od;
        assert(told_len == 0 || log[told_len - 1] == told_root); /* S1, S4 */
        scan(staged);
        assert(n_of[1] <= 1 && n_of[2] <= 1 && n_of[3] <= 1 && n_of[4] <= 1); /* S1 */
        assert(MUTANT == 8 || n_of[3] + n_of[4] <= 1);                        /* S3 */
        assert(n_of[2] <= n_of[1]);
        scan(shown);
        assert(n_of[1] == 0 || N_AVAILABLE == 1); /* S9 */
        i = 1;
        do
        :: i < shown -> /* S6: a receipt is what its record makes of it */
            assert(log[i - 1] % 2 == 0 && log[i] == log[i - 1] * 10 + log[i - 1] % 10 + 1);
            i = i + 2
        :: else -> break
        od;
        t = 1; /* scratch that differs would be another state */
        do :: t <= TX -> n_of[t] = 0; t++ :: else -> break od;
        i = 0; t = 0; n_of[0] = 0
    }
}

/* Here it may stop. */
inline step() {
    atomic {
        check();
        if
        :: true
        :: crashes > 0 -> crashes--; goto down
        fi
    }
}

inline append(code) {
    d_step {
        log[staged] = BEFORE(staged) * 10 + (code);
        dirty[staged] = true;
        staged++
    }
}

inline sync() {
    atomic { if
    :: d_step {
        ok = true;
        i = 0;
        do
        :: i < ENTRIES -> if :: dirty[i] -> disk[i] = log[i] :: else fi; dirty[i] = false; i++
        :: else -> break
        od;
        i = 0;
        do
        :: i < 2 ->
            if :: slot_dirty[i] -> disk_gen[i] = gen[i]; disk_heads[i] = heads[i] :: else fi;
            slot_dirty[i] = false;
            i++
        :: else -> break
        od
       }
    :: d_step { faults > 0 ->
        faults--;
        ok = false;
        i = 0;
        do :: i < ENTRIES -> dirty[i] = false; i++ :: else -> break od;
        slot_dirty[0] = false; slot_dirty[1] = false
       }
    fi; i = 0 }
}

/* The slot of the next generation; the other one stays. */
inline put_head() {
    d_step {
        newest++;
        head = staged;
        gen[newest % 2] = newest;
        heads[newest % 2] = staged;
        slot_dirty[newest % 2] = true
    }
}

#define IS_DURABLE (shown > 0 && disk[shown - 1] == log[shown - 1] && \
                    (shown <= disk_heads[0] || shown <= disk_heads[1]))

inline tell() { told_len = shown; told_root = BEFORE(shown) }

/* Whether request `q` may be staged now; a repetition of what is there may not. */
inline judge(q) {
    d_step {
        scan(staged);
        ok = n_of[q] == 0;
#if MUTANT == 4 /* capabilities as they are published, not as they are staged */
        scan(shown);
#endif
#if MUTANT == 1
        ok = ok || (q == 1 && staged > shown);
#endif
        if
        :: q == 2 -> ok = ok && n_of[1] == 1
#if MUTANT == 8
        :: q == 4 -> ok = ok && n_of[2] == 1
#else
        :: q >= 3 -> ok = ok && n_of[7 - q] == 0 /* C is available */
#endif
        :: else
        fi;
        ok = ok && staged + 2 <= ENTRIES
    }
}

/* The payload leaves. */
inline disclose() {
    d_step {
        scan(ENTRIES);
        if
        :: wanted[2] -> assert(n_of[2] == 1 && IS_DURABLE);
            states++
        :: else
        fi;
        if
        :: (wanted[3] || wanted[4]) ->
            assert(IS_DURABLE); /* S2 */
            assert(MUTANT == 8 || (wanted[3] -> n_of[3] : n_of[4]) == 1);
            secrets++
        :: else
        fi;
        assert((MUTANT == 8 || secrets <= 1) && states <= 1); /* S3 */
        t = 1;
        do :: t <= TX -> wanted[t] = false; t++ :: else -> break od
    }
}

/* The tail from the head on: whole entries that fit. */
inline read_tail() {
    d_step {
        staged = head;
        do
        :: staged < ENTRIES && log[staged] != 0 && log[staged] / 10 == BEFORE(staged) -> staged++
        :: else -> break
        od
    }
}

active proctype store() {
    byte q, before;
    if :: true -> goto traversal :: true fi;
    gen[0] = 2; disk_gen[0] = 2; /* a store that was made */
    gen[1] = 3; disk_gen[1] = 3;
    newest = 3;
    goto opening;

down:
    atomic { if
    :: true /* killed */
    :: true -> /* power fails */
        i = 0;
        do
        :: i < ENTRIES ->
            if
            :: log[i] != disk[i] -> if :: disk[i] = log[i] :: log[i] = disk[i] fi
            :: else
            fi;
            dirty[i] = false;
            i++
        :: else -> break
        od;
        i = 0;
        do
        :: i < 2 ->
            if
            :: gen[i] != disk_gen[i] ->
                if
                :: disk_gen[i] = gen[i]; disk_heads[i] = heads[i]
                :: gen[i] = disk_gen[i]; heads[i] = disk_heads[i]
                :: gen[i] = 0; heads[i] = 0; disk_gen[i] = 0; disk_heads[i] = 0
                fi
            :: else
            fi;
            slot_dirty[i] = false;
            i++
        :: else -> break
        od
    fi; i = 0 }
killed:
    skip;
    d_step {
        staged = 0; shown = 0; failed = false; ok = false;
        q = 1;
        do :: q <= TX -> wanted[q] = false; q++ :: else -> break od;
        q = 0; i = 0; t = 0; before = 0;
        newest = (gen[0] > gen[1] -> gen[0] : gen[1]);
        assert(gen[0] == 0 || gen[1] == 0 || gen[1 - newest % 2] == newest - 1); /* no damage */
        head = heads[newest % 2];
        assert(newest > 0 && told_len <= head && (told_len == 0 || log[told_len - 1] == told_root)) /* S1 */
    }

opening:
    skip;
    read_tail();
    assert(head % 2 == 0);
    step();
#if MUTANT != 5 /* it may never have been synced, and look valid in the cache */
    if :: gen[0] != 0 && gen[1] != 0 -> slot_dirty[newest % 2] = true :: else fi;
#endif
    sync();
    if :: !ok -> goto killed :: else fi;
    step();
    d_step { /* the cut, and what was taken from the tail again */
        i = head;
        do
        :: i < ENTRIES ->
            if
            :: i < staged && MUTANT != 6 -> dirty[i] = true
            :: i >= staged && log[i] != 0 -> log[i] = 0; dirty[i] = true
            :: else
            fi;
            i++
        :: else -> break
        od;
#if MUTANT == 12 /* a torn transaction takes the one before it along */
        if
        :: staged % 2 == 1 && staged >= 3 -> staged = staged - 3; log[staged] = 0; dirty[staged] = true
        :: else
        fi;
#endif
        i = 0
    }
    step();
    if
#if MUTANT == 13
    :: staged % 2 == 1 -> append(BEFORE(staged) % 10 + 1)
    :: staged % 2 == 0 && staged > 0 && staged < ENTRIES -> append(9) /* whether one is missing or not */
#elif MUTANT == 7 /* a receipt of the recovery's own */
    :: staged % 2 == 1 -> append(9)
#else
    :: staged % 2 == 1 -> append(BEFORE(staged) % 10 + 1)
#endif
    :: else
    fi;
    step();
    sync();
    if :: !ok -> goto killed :: else fi;
    step();
    put_head();
    step();
    sync();
    if :: !ok -> goto killed :: else fi;
    step();
    shown = staged;
    tell();
    before = staged;
    read_tail();
    assert(staged == before && staged % 2 == 0); /* S7 */

running:
    do
    :: requests < REQUESTS && !failed -> /* any client asks for anything, again and again */
        atomic { requests++;
        if :: q = 1 :: q = 2 :: q = 3 :: q = 4 fi;
        judge(q) }
        if
        :: ok ->
            append(2 * q);
            step();
            append(2 * q + 1);
            wanted[q] = true;
            step();
#if MUTANT == 3
            disclose();
#endif
            q = 0
        :: else -> q = 0 /* refused, or answered by the receipt that exists */
        fi
    :: staged > shown && !failed ->
        sync();
#if MUTANT != 10
        failed = !ok;
#else
        if :: !ok -> sync() :: else fi; /* once more, as if it could help */
#endif
        step();
        if
        :: failed -> skip
        :: else ->
            put_head();
            step();
#if MUTANT == 2
            shown = staged;
            tell();
            step();
            sync();
            failed = !ok;
#else
            sync();
            failed = !ok;
#endif
            step();
            if
            :: failed -> skip
            :: else ->
                shown = staged;
                tell();
                step();
                disclose();
                step()
            fi
        fi
    :: failed -> goto killed /* somebody opens it anew */
    :: requests == REQUESTS && staged == shown && !failed -> break
    od;
    check();
    goto done;

    /* Records 0 to 3; each has two edges to earlier ones, or none (4). Breadth first. */
traversal:
    do
    :: q < 4 ->
        if :: log[q] = 4 :: q > 0 -> log[q] = 0 :: q > 1 -> log[q] = 1 :: q > 2 -> log[q] = 2 fi;
        if :: disk[q] = 4 :: q > 0 -> disk[q] = q - 1 fi;
        q++
    :: else -> break
    od;
    /* The queue is log[4] to log[7], its length staged; visited is wanted; steps are shown. */
    log[4] = 3;
    staged = 1;
    wanted[3] = true;
    do
    :: shown < staged ->
        before = log[4 + shown];
        shown++;
        assert(shown <= 4); /* S5 */
        t = 0;
        do
        :: t < 2 ->
            i = (t == 0 -> log[before] : disk[before]);
            if
            :: i < 4 && (!wanted[i] || MUTANT == 11) ->
                assert(staged < 4); /* S5: the queue has its bound */
                log[4 + staged] = i;
                staged++;
                wanted[i] = true
            :: else
            fi;
            t++
        :: else -> break
        od
    :: else -> break
    od;
done:
    skip
}
