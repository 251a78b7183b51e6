// SPDX-License-Identifier: Apache-2.0
// What the AVX-512 kernel files share: 16-lane forms of the helpers of avx2.h, which comes along
// (the level implies AVX2). V1 and V2 hold here too; partial vectors go through masks, which read
// and write the chosen lanes only.
#pragma once
#include "cpu/avx2.h"

#define LANES_16 16u

// The kernels of the other files of this level.
gemm_fn gemm_q4_0_avx512, gemm_q4_1_avx512, gemm_q5_0_avx512, gemm_q5_1_avx512, gemm_q8_0_avx512;
gemm_fn gemm_q2_k_avx512, gemm_q3_k_avx512, gemm_q4_k_avx512, gemm_q5_k_avx512, gemm_q6_k_avx512;

#define KEEP_IN_REGISTERS_512(a, b) __asm__ volatile("" : "+v"(a), "+v"(b))

KERNEL_INLINE __m512i load_512(const void *p) { return _mm512_loadu_si512(p); }
KERNEL_INLINE void store_512(void *p, __m512i v) { _mm512_storeu_si512(p, v); }
KERNEL_INLINE __m512 load_f32x16(const void *p) { return _mm512_loadu_ps(p); }
KERNEL_INLINE void store_f32x16(void *p, __m512 v) { _mm512_storeu_ps(p, v); }
