/* SPDX-License-Identifier: Apache-2.0
 * A step of the engine over N sequences that share BLOCKS blocks: allocate (with preemption of the
 * youngest), forward, sample, commit, publish (src/engine/engine.c, src/schedule/scheduler.c). Any
 * operation may fail, FAULTS times in all. One block holds one token; sequence 0 is the oldest.
 *
 * Shown for every interleaving of failures:
 *   A1  blocks are conserved
 *   A2  what is published was committed, and all that was committed is published
 *   A3  a failure leaves the committed state as it was
 *   A4  a token is committed only with blocks for its whole history
 *   A5  the oldest sequence has rows in every step in which none of its operations fails, and
 *       every sequence ends, within a bounded number of steps
 * MUTANT 1 to 5 break one rule each, and must be found out.
 */
#ifndef MUTANT
#define MUTANT 0
#endif
#define N 3
#define LENGTH 3      /* tokens of a sequence */
#define BLOCKS 4      /* one sequence fits, three do not */
#define FAULTS 2
#define RETRIES 1     /* failures in a row that a sequence survives */
#define STEPS_MAX 16

byte available = BLOCKS;
byte owned[N], committed[N], published[N], failures[N];
bool planned[N], staged[N], ended[N], failed_now[N];
byte faults = FAULTS, steps;

inline check_blocks() {
    assert(available + owned[0] + owned[1] + owned[2] == BLOCKS) /* A1 */
}

/* The operation goes well, or one of the faults is spent on it. */
inline may_fail(ok) {
    if
    :: ok = true
    :: faults > 0 -> faults--; ok = false
    fi
}

inline note_failure(i) {
    failed_now[i] = true;
    planned[i] = false;
    staged[i] = false
}

inline give_up_blocks(i) {
    available = available + owned[i];
    owned[i] = 0
}

inline find_victim(v) {
    v = N;
    do
    :: v > 0 && (owned[v - 1] == 0 || ended[v - 1]) -> v--
    :: else -> break
    od;
    v-- /* 255: nobody holds any */
}

/* Blocks for the history and one token more, or no rows. */
inline allocate(i) {
    may_fail(ok);
    if
    :: !ok -> note_failure(i)
    :: else ->
        do
        :: owned[i] > committed[i] -> planned[i] = true; break
        :: owned[i] <= committed[i] && available > 0 -> available--; owned[i]++
        :: owned[i] <= committed[i] && available == 0 ->
#if MUTANT == 1
            victim = 0; /* the oldest loses its blocks */
            if :: owned[0] == 0 -> victim = i :: else fi;
#else
            find_victim(victim);
#endif
            if
            :: victim != 255 && (victim > i || MUTANT == 1) && victim != i ->
                give_up_blocks(victim);
#if MUTANT != 2
                planned[victim] = false /* its rows leave the step */
#endif
            :: else -> give_up_blocks(i); planned[i] = false; break
            fi
        od
    fi;
    check_blocks()
}

inline commit(i) {
    assert(owned[i] > committed[i]); /* A4 */
    committed[i]++;
    failures[i] = 0;
    published[i]++ /* after the commit */
}

/* One sequence of the batch: sampled, staged, committed, published. */
inline complete(i) {
    may_fail(ok);
    before = committed[i];
    if
    :: ok -> staged[i] = true
    :: else -> note_failure(i)
    fi;
#if MUTANT == 3
    published[i]++; /* before it is known that it went well */
    if :: staged[i] -> committed[i]++ :: else fi;
    staged[i] = false;
#elif MUTANT == 4
    commit(i); /* the failure was not looked at */
    staged[i] = false;
#else
    if :: staged[i] -> commit(i); staged[i] = false :: else fi;
#endif
    assert(!failed_now[i] || committed[i] == before) /* A3 */
}

active proctype engine() {
    byte i, k, victim, before;
    bool ok, together;
    do
    :: ended[0] && ended[1] && ended[2] -> break
    :: else ->
        steps++;
        assert(steps <= STEPS_MAX); /* A5 */
        d_step { i = 0; do :: i < N -> planned[i] = false; failed_now[i] = false; i++ :: else -> break od }
        /* The round of decoding begins anywhere, so a victim may have its rows already. */
        if :: i = 0 :: i = 1 :: i = 2 fi;
        k = 0;
        do
        :: k < N -> if :: !ended[i] -> allocate(i) :: else fi; i = (i + 1) % N; k++
        :: else -> break
        od;
        i = 0;
        do :: i < N && ended[i] -> i++ :: else -> break od;
        assert(planned[i] || failed_now[i]); /* A5 */
        may_fail(together);
        i = 0;
        do
        :: i < N ->
            if
            :: planned[i] ->
                ok = true;
                /* A batch that fails is tried sequence by sequence. */
                if :: !together -> may_fail(ok) :: else fi;
                if
                :: ok -> complete(i)
                :: else -> note_failure(i)
                fi
            :: else
            fi;
            i++
        :: else -> break
        od;
        i = 0;
        do
        :: i < N ->
            if :: failed_now[i] -> failures[i]++ :: else fi;
            assert(published[i] == committed[i]); /* A2 */
            if
            :: !ended[i] && (failures[i] > RETRIES || committed[i] == LENGTH) ->
                ended[i] = true;
#if MUTANT != 5
                give_up_blocks(i)
#else
                owned[i] = 0 /* lost */
#endif
            :: else
            fi;
            check_blocks();
            i++
        :: else -> break
        od
    od;
    assert(available == BLOCKS)
}
