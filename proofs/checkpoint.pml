/* SPDX-License-Identifier: Apache-2.0
 * The order of a 64-boundary (src/engine/engine.c: complete, settle; src/record/checkpoint.h): the
 * token is prepared, its checkpoint begun, the receipt awaited while decoding runs ahead, and only
 * then it and what is staged behind it are committed and published. The store writes on its own,
 * may fail, and may lose what was not durable when the machine crashes; the spool of published
 * events survives. A boundary is every BOUNDARY tokens here; token k is always the same token.
 *
 * Shown for every interleaving, with CRASHES crashes and FAULTS failures of the store:
 *   B1  a boundary's token is published only when its receipt is durable
 *   B2  what runs ahead is bounded, and never committed before the receipt
 *   B3  a failed checkpoint keeps the boundary's token prepared and drops what ran ahead
 *   B4  after a crash nothing acknowledged is lost: generation goes on from the last durable
 *       checkpoint, and repeats at most the tokens after it. The crash may have come between the
 *       receipt and the event of its token: so recovery publishes that event (again).
 *   B5  the sequence ends, with every token published
 * MUTANT 1 to 6 break one rule each, and must be found out.
 */
#ifndef MUTANT
#define MUTANT 0
#endif
#define LENGTH 6
#define BOUNDARY 2
#define RUN_AHEAD 1
#define CRASHES 2
#define FAULTS 2

mtype = { NOTHING, WRITING, DURABLE, FAILED };

byte committed, staged, published; /* tokens; staged ones stand behind the committed */
bool prepared, begun;
byte durable;         /* the store: tokens that the last durable checkpoint covers */
byte writing_id;      /* what is being made durable */
mtype answer = NOTHING;
byte answer_id;
byte crashes = CRASHES, faults = FAULTS;
bool done;

#define LAST_BOUNDARY(n) (((n) / BOUNDARY) * BOUNDARY)

inline check() {
    assert(LAST_BOUNDARY(published) <= durable); /* B1 */
    assert(staged <= RUN_AHEAD + 1);             /* B2 */
    assert(prepared || staged == 0)
}

inline publish_to(n) { /* what is in the spool already is skipped */
    if :: n > published -> published = n :: else fi
}

active proctype engine() {
    do
    :: done -> break
    :: !done -> atomic {
        if
        /* A token without a boundary. */
        :: !prepared && committed < LENGTH && (committed + 1) % BOUNDARY != 0 ->
            committed++;
            publish_to(committed)
        /* A boundary: prepared, not committed. */
        :: !prepared && committed < LENGTH && (committed + 1) % BOUNDARY == 0 ->
            prepared = true;
            staged = 1;
#if MUTANT == 1
            publish_to(committed + 1)
#endif
        :: prepared && !begun ->
            begun = true;
            writing_id = committed + 1;
            answer = WRITING
        :: prepared && begun && committed + staged < LENGTH &&
#if MUTANT == 2
           staged < 9 ->
#else
           staged <= RUN_AHEAD ->
#endif
            staged++
#if MUTANT == 3 /* any receipt will do */
        :: prepared && begun && (answer == DURABLE || durable > 0) ->
#else
        :: prepared && begun && answer == DURABLE && answer_id == committed + 1 ->
#endif
            assert(durable >= committed + 1);
            committed = committed + staged;
            publish_to(committed);
            staged = 0;
            prepared = false;
            begun = false;
            answer = NOTHING
        :: prepared && begun && answer == FAILED ->
#if MUTANT == 4 /* it is taken for done */
            committed = committed + staged;
            publish_to(committed);
            staged = 0;
            prepared = false;
#else
            staged = 1; /* B3 */
#endif
            begun = false;
            answer = NOTHING
        :: !prepared && committed == LENGTH ->
            assert(published == LENGTH); /* B5 */
            done = true
        :: crashes > 0 -> /* memory is gone; what is being written may have become durable or not */
            crashes--;
            if
            :: answer == WRITING && writing_id > durable -> durable = writing_id
            :: true
            fi;
#if MUTANT == 5 /* what was committed in memory is taken for safe */
            skip;
#else
            committed = durable;
#endif
            assert(committed >= LAST_BOUNDARY(published)); /* B4 */
#if MUTANT != 6
            publish_to(committed);
#endif
            assert(committed <= durable);
            staged = 0;
            prepared = false;
            begun = false;
            answer = NOTHING
        fi;
        check()
    }
    od
}

active proctype store() {
    do
    :: done -> break
    :: atomic { answer == WRITING ->
        if
        :: durable = (writing_id > durable -> writing_id : durable);
           answer_id = writing_id;
           answer = DURABLE
        :: faults > 0 -> faults--; answer = FAILED
        fi }
    od
}
