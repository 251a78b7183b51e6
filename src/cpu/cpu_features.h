// SPDX-License-Identifier: Apache-2.0
// Which instruction-set level this CPU and its operating system offer.
#pragma once
#include "freestanding/types.h"

// Ascending: a CPU of one level runs everything below it.
enum cpu_level {
    CPU_LEVEL_SCALAR, // the reference operators (still compiled for x86-64-v3)
    CPU_LEVEL_AVX2,   // AVX2, FMA, F16C, BMI1, BMI2, LZCNT, MOVBE: x86-64-v3
    CPU_LEVEL_AVX512, // and AVX-512 F, BW, DQ, VL, VBMI, VNNI
    CPU_LEVEL_COUNT,
};

// What cpuid and xgetbv say; 0 where a leaf does not exist.
struct cpu_words {
    u32 max_leaf;
    u32 leaf1_ecx;
    u32 leaf7_ebx, leaf7_ecx; // subleaf 0
    u32 extended1_ecx;        // leaf 0x80000001
    u32 xcr0;                 // low word; 0 when leaf 1 does not tell of xgetbv
};

struct cpu_words cpu_words_read(void);
// A pure function of the words. A wide register counts only when the system saves it.
enum cpu_level cpu_level_of(const struct cpu_words *words);
// Of this machine.
enum cpu_level cpu_level(void);

const char *cpu_level_name(enum cpu_level level); // "scalar", "avx2", "avx512"
// False (and *level untouched) for any other name.
bool cpu_level_parse(struct str name, enum cpu_level *level);
