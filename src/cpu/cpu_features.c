// SPDX-License-Identifier: Apache-2.0
// Detection of the instruction-set level. An instruction set counts when cpuid has its bit and the
// operating system saves the registers it uses (XCR0), for a system that does not know them loses
// their contents at every switch of threads.
#include "cpu/cpu_features.h"

#include "freestanding/text.h"

#define BIT(n) (1u << (n))

// Leaf 1, ecx.
#define FMA BIT(12)
#define SSSE3 BIT(9)
#define MOVBE BIT(22)
#define OSXSAVE BIT(27)
#define AVX BIT(28)
#define F16C BIT(29)
// Leaf 7, ebx.
#define BMI1 BIT(3)
#define AVX2 BIT(5)
#define BMI2 BIT(8)
#define AVX512F BIT(16)
#define AVX512DQ BIT(17)
#define AVX512BW BIT(30)
#define AVX512VL BIT(31)
// Leaf 7, ecx.
#define AVX512VBMI BIT(1)
#define AVX512VNNI BIT(11)
// Leaf 0x80000001, ecx.
#define LZCNT BIT(5)
// XCR0.
#define SAVES_XMM BIT(1)
#define SAVES_YMM BIT(2)
#define SAVES_ZMM (BIT(5) | BIT(6) | BIT(7)) // mask registers, upper halves, registers 16 to 31

static bool has(u32 word, u32 bits) { return (word & bits) == bits; }

enum cpu_level cpu_level_of(const struct cpu_words *words) {
    bool avx2 = words->max_leaf >= 7 &&
                has(words->leaf1_ecx, SSSE3 | FMA | MOVBE | OSXSAVE | AVX | F16C) &&
                has(words->leaf7_ebx, BMI1 | AVX2 | BMI2) && has(words->extended1_ecx, LZCNT) &&
                has(words->xcr0, SAVES_XMM | SAVES_YMM);
    if (!avx2) return CPU_LEVEL_SCALAR;
    bool avx512 = has(words->leaf7_ebx, AVX512F | AVX512DQ | AVX512BW | AVX512VL) &&
                  has(words->leaf7_ecx, AVX512VBMI | AVX512VNNI) && has(words->xcr0, SAVES_ZMM);
    return avx512 ? CPU_LEVEL_AVX512 : CPU_LEVEL_AVX2;
}

struct registers {
    u32 eax, ebx, ecx, edx;
};

static struct registers cpuid(u32 leaf) {
    struct registers r = {.eax = leaf};
    __asm__ volatile("cpuid" : "+a"(r.eax), "=b"(r.ebx), "+c"(r.ecx), "=d"(r.edx));
    return r;
}

static u32 xgetbv(void) {
    u32 low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

struct cpu_words cpu_words_read(void) {
    struct cpu_words words = {.max_leaf = cpuid(0).eax};
    if (words.max_leaf >= 1) words.leaf1_ecx = cpuid(1).ecx;
    if (words.max_leaf >= 7) {
        struct registers r = cpuid(7);
        words.leaf7_ebx = r.ebx;
        words.leaf7_ecx = r.ecx;
    }
    if (cpuid(0x80000000).eax >= 0x80000001) words.extended1_ecx = cpuid(0x80000001).ecx;
    if (has(words.leaf1_ecx, OSXSAVE)) words.xcr0 = xgetbv(); // else the instruction faults
    return words;
}

enum cpu_level cpu_level(void) {
    struct cpu_words words = cpu_words_read();
    return cpu_level_of(&words);
}

static const char *const level_names[CPU_LEVEL_COUNT] = {
    [CPU_LEVEL_SCALAR] = "scalar",
    [CPU_LEVEL_AVX2] = "avx2",
    [CPU_LEVEL_AVX512] = "avx512",
};

const char *cpu_level_name(enum cpu_level level) {
    assert(level < CPU_LEVEL_COUNT);
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
