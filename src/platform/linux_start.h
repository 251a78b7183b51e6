// SPDX-License-Identifier: Apache-2.0
// Between the entry point and the platform: which CPU this program needs, decided without touching
// the CPU so that it can be tested, and the two functions that hand control over.
#pragma once
#include "freestanding/types.h"

// The words that tell what a CPU and its operating system offer. A word that the CPU does not have
// (its largest leaf is lower) is 0.
enum cpu_word {
    CPU_LEAF1_ECX,     // cpuid 1
    CPU_LEAF7_EBX,     // cpuid 7, subleaf 0
    CPU_EXTENDED1_ECX, // cpuid 0x80000001
    CPU_XCR0,          // xgetbv 0: the register states that the system saves; 0 without OSXSAVE
    CPU_WORD_COUNT
};

// The name of the first feature of x86-64-v3 that is missing, or NULL when all are there. The code
// of this program is compiled for that level, so every one of them may be used anywhere.
static inline const char *cpu_missing_feature(const u32 words[CPU_WORD_COUNT]) {
    static const struct {
        enum cpu_word word;
        u32 mask;
        const char *name;
    } needed[] = {
        {CPU_LEAF7_EBX, 1u << 5, "AVX2"},
        {CPU_LEAF1_ECX, 1u << 12, "FMA"},
        {CPU_LEAF1_ECX, 1u << 29, "F16C"},
        {CPU_LEAF7_EBX, 1u << 3, "BMI1"},
        {CPU_LEAF7_EBX, 1u << 8, "BMI2"},
        {CPU_EXTENDED1_ECX, 1u << 5, "LZCNT"},
        {CPU_LEAF1_ECX, 1u << 22, "MOVBE"},
        {CPU_LEAF1_ECX, 1u << 28, "AVX"},
        {CPU_LEAF1_ECX, 1u << 27, "OSXSAVE (the system does not save extended registers)"},
        {CPU_XCR0, 1u << 1 | 1u << 2, "YMM state (the system does not save AVX registers)"},
        // Older levels, which every CPU with the above has; a virtual machine may still hide one.
        {CPU_LEAF1_ECX, 1u << 0, "SSE3"},
        {CPU_LEAF1_ECX, 1u << 9, "SSSE3"},
        {CPU_LEAF1_ECX, 1u << 13, "CMPXCHG16B"},
        {CPU_LEAF1_ECX, 1u << 19, "SSE4.1"},
        {CPU_LEAF1_ECX, 1u << 20, "SSE4.2"},
        {CPU_LEAF1_ECX, 1u << 23, "POPCNT"},
        {CPU_EXTENDED1_ECX, 1u << 0, "LAHF/SAHF in 64-bit mode"},
    };
    for (u32 i = 0; i < COUNT_OF(needed); i++) {
        if ((words[needed[i].word] & needed[i].mask) != needed[i].mask) return needed[i].name;
    }
    return NULL;
}

// The ELF entry point of every freestanding program (linux_start.c).
_Noreturn void sov_main(void);

// What sov_main calls, with the stack pointer that the kernel or the loader left.
_Noreturn void linux_start(const u64 *stack);

// Where linux_start goes when the CPU will do (linux.c).
_Noreturn void linux_main(const u64 *stack);
