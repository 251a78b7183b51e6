// SPDX-License-Identifier: Apache-2.0
// Between conform_cases.c, which knows what a case is made of, and conform.c, which runs it.
#pragma once
#include "engine/conform.h"

#define CONFORM_GUARD_BYTES 256 // in front of and behind every buffer, at least
#define CONFORM_BUFFERS_MAX 16
#define CONFORM_LAUNCHES_MAX 6
#define CONFORM_PARAMS_BYTES_MAX 192

// Three patterns, so that bytes that were carried from one place to another show.
#define CONFORM_POISON_IN 0xff // NaN as f16, bf16 and f32; wild as an index
#define CONFORM_POISON_OUT 0xfe
#define CONFORM_POISON_GUARD 0xfd

enum conform_role {
    CONFORM_IN,      // stays as it is
    CONFORM_OUT,     // what the reference writes must be written, all else stays
    CONFORM_SCRATCH, // of the kernels: any contents after the active run
    CONFORM_HOST,    // of the reference alone, not part of the image
};

struct conform_buffer {
    const char *name;
    u64 off, bytes; // in the image, or in the host's memory
    enum conform_role role;
};

struct conform_launch {
    enum cuda_kernel kernel;
    u32 counts[3], n_threads;
    u32 params_bytes;
    u8 params[CONFORM_PARAMS_BYTES_MAX];
};

// Results of the tensor profile (conform_tensor.c).
#define CONFORM_PARTS_MAX 5
struct conform_part { // a buffer whose rows are those of the result from `first` on
    u32 buffer, first, rows;
};
struct conform_bounded {
    u32 out;          // buffer of the result: rows of n elements, `stride` apart
    u32 exact, slack; // buffers of CONFORM_HOST: f64 [rows, n]
    u32 rows, n, stride;
    bool is_f16;
    struct conform_part parts[CONFORM_PARTS_MAX]; // of the same stride
    u32 n_parts;
};

struct conform_build {
    const struct conform_case *item;
    const struct op_table *reference;
    cuda_address memory;   // of the image on the card; 0 where there is none
    u8 *before, *expected; // images; NULL when only sizes are asked for
    u8 *host;              // buffers of CONFORM_HOST, then OP_SCRATCH_BYTES
    u64 key;               // of the generator
    u64 image_bytes, host_bytes;
    struct conform_buffer buffers[CONFORM_BUFFERS_MAX];
    u32 n_buffers;
    u32 power, status; // buffers: the power word, and the words of cuda_kernels.h, K2, which the
                       // launches of a case share
    struct conform_launch launches[CONFORM_LAUNCHES_MAX];
    u32 n_launches;
    bool is_refused;                // by the reference (C4)
    struct conform_bounded bounded; // where the case is of the tensor profile
};

// Lays out the case; where images are given fills them, and computes what is expected. Set before:
// item, reference, memory, before, expected, host. Afterwards the power word of both images is
// active.
void conform_build(struct conform_build *build, u64 seed);

// Writes another power word into the images.
void conform_set_power(struct conform_build *build, u32 word);

// Holds the whole image that was found against the one wanted, but for buffers of no account; the
// first difference goes into the result.
void conform_compare(const struct conform_build *build, const u8 *wanted, const u8 *found,
                     bool is_idle, struct conform_result *result);

// The product of args in f64, exact[n_tokens, features], and how far from it a result of the tensor
// profile may be, slack of the same shape. `added` is what GEMM_ADD_F32 adds to, like out. `row`
// has room for 2 * k numbers.
void conform_exact_gemm(const struct gemm_args *args, u32 features, const u8 *added, f64 *exact,
                        f64 *slack, f64 *row);

// Behind the active run of a case of the tensor profile: elements of the result that are within
// their bound, and the same rows in the other buffers, become what is expected; the largest share
// of a bound goes into the result.
void conform_settle(const struct conform_build *build, const u8 *found,
                    struct conform_result *result);
