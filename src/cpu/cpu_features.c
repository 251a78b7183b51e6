// SPDX-License-Identifier: Apache-2.0
// cpuid and xgetbv, read once by whoever asks.
#include "cpu/cpu_features.h"
#include "freestanding/text.h"
#include <cpuid.h>

#define LEAF1_FMA (1u << 12)
#define LEAF1_OSXSAVE (1u << 27)
#define LEAF1_AVX (1u << 28)
#define LEAF1_F16C (1u << 29)
#define LEAF7_AVX2 (1u << 5)
#define LEAF7_AVX512 (1u << 16 | 1u << 17 | 1u << 30 | 1u << 31) // F, DQ, BW, VL (ebx)
#define LEAF7_VBMI_VNNI (1u << 1 | 1u << 11)                     // (ecx)
#define XCR0_YMM 0x06u                                           // xmm, ymm
#define XCR0_ZMM 0xe6u                                           // and opmask, zmm

static bool has(u32 word, u32 mask) { return (word & mask) == mask; }

enum cpu_level cpu_level_of(const struct cpu_words *w) {
    bool avx2 = has(w->leaf1_ecx, LEAF1_FMA | LEAF1_OSXSAVE | LEAF1_AVX | LEAF1_F16C) &&
                has(w->leaf7_ebx, LEAF7_AVX2) && has(w->xcr0, XCR0_YMM);
    if (!avx2) return CPU_LEVEL_SCALAR;
    bool avx512 = has(w->leaf7_ebx, LEAF7_AVX512) && has(w->leaf7_ecx, LEAF7_VBMI_VNNI) &&
                  has(w->xcr0, XCR0_ZMM);
    return avx512 ? CPU_LEVEL_AVX512 : CPU_LEVEL_AVX2;
}

enum cpu_level cpu_level_detect(void) {
    struct cpu_words words = {0};
    u32 eax = 0, ebx = 0, ecx = 0, edx = 0;
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx)) words.leaf1_ecx = ecx;
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) {
        words.leaf7_ebx = ebx;
        words.leaf7_ecx = ecx;
    }
    if (has(words.leaf1_ecx, LEAF1_OSXSAVE)) {
        __asm__ volatile("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
        words.xcr0 = eax;
    }
    return cpu_level_of(&words);
}

enum cpu_level cpu_level_built(enum cpu_level level) { return MIN(level, CPU_LEVEL_AVX2); }

static const char *const level_names[CPU_LEVEL_COUNT] = {
    [CPU_LEVEL_SCALAR] = "scalar",
    [CPU_LEVEL_AVX2] = "avx2",
    [CPU_LEVEL_AVX512] = "avx512",
};

const char *cpu_level_name(enum cpu_level level) {
    assert((u32)level < CPU_LEVEL_COUNT);
    return level_names[level];
}

bool cpu_level_parse(struct str name, enum cpu_level *level) {
    for (u32 i = 0; i < CPU_LEVEL_COUNT; i++) {
        if (!str_equal(name, str_from_z(level_names[i]))) continue;
        *level = (enum cpu_level)i;
        return true;
    }
    return false;
}
