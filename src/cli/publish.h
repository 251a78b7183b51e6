// SPDX-License-Identifier: Apache-2.0
// How the commands that run many sequences, batch and resume, have their events in a spool.
//
// U1. Events go there before anything is told of them elsewhere. A write that fails is told, and
//     ends the spool, not the command.
// U2. Whoever is cancelled or failed has not ended: the same run, begun again, goes on with it. So
//     these ends are not published.
// U3. A sequence of which the spool has another history is interrupted; the others go on.
#pragma once
#include "cli/cli.h"
#include "engine/spool.h"

struct publisher {
    struct spool *spool; // or NULL: nothing is published
    const char *path;
    bool has_failed; // a write
};
// A path of NULL publishes nothing. The path must stay.
enum sov_status publisher_open(struct publisher *publisher, const char *path,
                               struct sov_fault *fault) MUST_CHECK;
void publisher_close(struct publisher *publisher); // also of a zeroed one
// Where the fault of a running sequence is kept: U3 fills it, and nothing of a sequence that has
// one is published.
typedef struct sov_fault *publisher_fault_of(void *context, engine_sequence sequence);
void publisher_put(struct publisher *publisher, struct engine *engine,
                   const struct engine_report *report, publisher_fault_of *fault_of, void *context);
void publisher_put_figures(const struct publisher *publisher, struct output *out);
