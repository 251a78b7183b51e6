// SPDX-License-Identifier: Apache-2.0
// The entry point of a freestanding program on Linux, x86-64. It finds out whether the CPU can run
// the rest and says so in a sentence when it cannot.
//
// The kernel (sov-static) or the dynamic loader (sov) jumps here with the start-up stack:
//
//     high addresses
//         the bytes of arguments and environment
//         auxiliary vector    pairs (type, value), the last has type 0
//         0
//         environment         pointers to "NAME=value"
//         0
//         arguments           n_args pointers, the first is the program's name
//         n_args              <- rsp, a multiple of 16
//     low addresses
//
// rdx holds a function of the loader's to call at exit, or 0. It runs libc's destructors, and no
// libc function is ever called here, so it is left alone.
//
// S1. This file is compiled for plain x86-64 and calls nothing outside itself before the check has
//     passed: not even memset, which mem.c has for x86-64-v3 only.
#include "platform/linux_start.h"
#include "platform/linux_syscall.h"

// The stack pointer goes to linux_start as it is; the call needs it aligned. rbp = 0 marks the
// outermost frame for debuggers.
__attribute__((naked)) _Noreturn void sov_main(void) {
    __asm__("xorl %ebp, %ebp\n\t"
            "movq %rsp, %rdi\n\t"
            "andq $-16, %rsp\n\t"
            "call linux_start\n\t"
            "hlt");
}

struct cpuid_result {
    u32 eax, ebx, ecx, edx;
};

static struct cpuid_result cpuid(u32 leaf) {
    struct cpuid_result r;
    __asm__ volatile("cpuid"
                     : "=a"(r.eax), "=b"(r.ebx), "=c"(r.ecx), "=d"(r.edx)
                     : "a"(leaf), "c"(0));
    return r;
}

#define CPUID_EXTENDED 0x80000000u
#define LEAF1_ECX_OSXSAVE (1u << 27)

static void read_cpu_words(u32 words[CPU_WORD_COUNT]) {
    u32 leaf_max = cpuid(0).eax;
    u32 extended_max = cpuid(CPUID_EXTENDED).eax;
    words[CPU_LEAF1_ECX] = leaf_max >= 1 ? cpuid(1).ecx : 0;
    words[CPU_LEAF7_EBX] = leaf_max >= 7 ? cpuid(7).ebx : 0;
    words[CPU_EXTENDED1_ECX] = extended_max > CPUID_EXTENDED ? cpuid(CPUID_EXTENDED + 1).ecx : 0;
    words[CPU_XCR0] = 0;
    if ((words[CPU_LEAF1_ECX] & LEAF1_ECX_OSXSAVE) != 0) { // else xgetbv would fault
        u32 high;
        __asm__ volatile("xgetbv" : "=a"(words[CPU_XCR0]), "=d"(high) : "c"(0));
    }
}

static void put_error(const char *text) {
    u64 len = 0;
    while (text[len] != 0) len++;
    linux_syscall(LINUX_WRITE, 2, (u64)text, len, 0, 0, 0);
}

static _Noreturn void refuse_cpu(const char *missing) {
    put_error("this program needs an x86-64-v3 CPU (AVX2, FMA, F16C, BMI1, BMI2, LZCNT, MOVBE; "
              "Intel since 2013, AMD since 2015); missing here: ");
    put_error(missing);
    put_error("\n");
    for (;;) linux_syscall(LINUX_EXIT_GROUP, 1, 0, 0, 0, 0, 0);
}

_Noreturn void linux_start(const u64 *stack) {
    u32 words[CPU_WORD_COUNT];
    read_cpu_words(words);
    const char *missing = cpu_missing_feature(words);
    if (missing != NULL) refuse_cpu(missing);
    linux_main(stack);
}
