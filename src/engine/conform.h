// SPDX-License-Identifier: Apache-2.0
// The conformance suite of the CUDA kernels: cases for every kernel of CUDA_KERNEL_LIST, what the
// reference operators make of them, and what a card makes of them. docs/cuda.md describes the
// report that is made of the results.
//
// C1. The inputs of a case are a function of the seed and the case's id (conform_cases.c). A report
//     of a card is therefore recomputed without one: each digest is that of the reference's output.
// C2. A case is one image of memory: every buffer lies between guards, and what its rows do not use
//     is poison. A kernel is right when the whole image is as expected, byte by byte: outputs,
//     inputs, gaps between rows, guards, faults and finished blocks.
// C3. Each case runs twice on a card: with a power word that is not active, when the image must
//     stay as it was, and active.
// C4. Where the reference refuses the inputs (a value that the contract forbids), the kernel must
//     say so in its status; its outputs are of no account then, everything else stays as it was.
// C5. Results of the tensor profile are held against the product in f64, within the bound of
//     docs/contract.md; and the same rows in other batches, and by the other kernel of the type,
//     must be the same bytes. These digests are of one architecture: the reference has none of
//     them, and conform_run of CONFORM_REFERENCE is not for such a case.
#pragma once
#include "cuda/cuda_kernels.h"
#include "freestanding/text.h"
#include "ops/op.h"
#include "record/sha256.h"

#define CONFORM_SEED 20261130u // unless another one is asked for
#define CONFORM_ID_BYTES 160
#define CONFORM_DIFFERENCE_BYTES 256

enum conform_backend {
    CONFORM_REFERENCE, // the reference operators alone
    CONFORM_CUDA,      // a card, held against them
};

// One case. Its id ("add rows=3 n=70 pad=1") names kernel and shape, and is its identity.
struct conform_case {
    enum cuda_kernel kernel; // the one that the case is for, which is launched last
    const struct conform_family *family;
    const i32 *shape;
    bool is_quick;  // small, and of the short run
    bool is_tensor; // of the tensor profile (C5)
    char id[CONFORM_ID_BYTES];
};

// Case number `idx` of a kernel; false when it has no more.
bool conform_case_get(enum cuda_kernel kernel, u32 idx, struct conform_case *item);

struct conform_result {
    struct sha256_digest outputs;      // of all output buffers after the active run (C4: of the
                                       // faults met)
    struct sha256_digest idle_outputs; // of the same after the run that was not active
    f64 bound_share;                   // C5: the largest share of a bound that an error has taken
    bool is_wrong;                     // the image is not as expected
    char difference[CONFORM_DIFFERENCE_BYTES]; // the first, in words
};

// A run of cases, in memory of the caller.
struct conform {
    enum conform_backend backend;
    u64 seed;
    struct op_table reference;
    struct cuda_driver driver; // from here on of CONFORM_CUDA
    struct cuda_kernels kernels;
    struct cuda_stream *stream;
    cuda_address memory;
    // Images of the host: inputs, what is expected, what came back. The first and the last are
    // pinned where there is a card.
    u8 *before, *expected, *found;
    u64 image_bytes;
    u8 *host; // inputs of the reference alone, and its scratch
    u64 host_bytes;
};

// Opens the card of the options (NULL: the first) for CONFORM_CUDA; SOV_ERR_UNSUPPORTED, with what
// is missing, where there is none. Nothing is kept after an error.
enum sov_status conform_open(struct conform *conform, enum conform_backend backend, u64 seed,
                             const struct platform_start *start, const struct cuda_options *options,
                             struct sov_fault *fault) MUST_CHECK;
void conform_close(struct conform *conform);

// Runs one case. A result that is wrong is no error; a card or driver that fails is, and then the
// fault names the case and the run must end.
enum sov_status conform_run(struct conform *conform, const struct conform_case *item,
                            struct conform_result *result, struct sov_fault *fault) MUST_CHECK;
