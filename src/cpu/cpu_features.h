// SPDX-License-Identifier: Apache-2.0
// Which instruction-set level this machine has, with the operating system's support for its
// registers, and which levels this program has kernels for.
#pragma once
#include "freestanding/types.h"

enum cpu_level {      // each contains the ones before it
    CPU_LEVEL_SCALAR, // the reference operators
    CPU_LEVEL_AVX2,   // AVX2, FMA, F16C
    CPU_LEVEL_AVX512, // AVX-512 F, BW, DQ, VL, VNNI and VBMI
    CPU_LEVEL_COUNT,
};

// What cpuid and xgetbv say; a pure function of it gives the level, so that it can be tested.
struct cpu_words {
    u32 leaf1_ecx, leaf7_ebx, leaf7_ecx, xcr0;
};
enum cpu_level cpu_level_of(const struct cpu_words *words);
enum cpu_level cpu_level_detect(void);
// The highest level with kernels in this program that is not above `level`.
enum cpu_level cpu_level_built(enum cpu_level level);
const char *cpu_level_name(enum cpu_level level); // "scalar", "avx2", "avx512"
// False when `name` is none of them.
bool cpu_level_parse(struct str name, enum cpu_level *level);
