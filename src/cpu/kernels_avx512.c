// SPDX-License-Identifier: Apache-2.0
// The AVX-512 level of the operator table, laid over AVX2: what is not named here was no faster in
// 512 bits (or has no such kernel yet) and stays the AVX2 one. avx512.h declares the kernels.
#include "cpu/kernels.h"

#include "cpu/avx512.h"

void op_fill_avx512(struct op_table *table) {
    op_fill_avx2(table);
    table->name = "avx512";
    table->rmsnorm = rmsnorm_avx512;
    table->quantize_q16 = quantize_q16_avx512;
    table->rope = rope_avx512;
    table->attention = attention_avx512;
    table->silu_mul = silu_mul_avx512;
    table->gelu_tanh_mul = gelu_tanh_mul_avx512;
    table->gemm[DTYPE_F32] = gemm_f32_avx512;
    table->gemm[DTYPE_F16] = gemm_f16_avx512;
    table->gemm[DTYPE_BF16] = gemm_bf16_avx512;
    table->gemm[DTYPE_Q4_0] = gemm_q4_0_avx512;
    table->gemm[DTYPE_Q4_1] = gemm_q4_1_avx512;
    table->gemm[DTYPE_Q5_0] = gemm_q5_0_avx512;
    table->gemm[DTYPE_Q5_1] = gemm_q5_1_avx512;
    table->gemm[DTYPE_Q8_0] = gemm_q8_0_avx512;
    table->gemm[DTYPE_Q2_K] = gemm_q2_k_avx512;
    table->gemm[DTYPE_Q3_K] = gemm_q3_k_avx512;
    table->gemm[DTYPE_Q4_K] = gemm_q4_k_avx512;
    table->gemm[DTYPE_Q5_K] = gemm_q5_k_avx512;
    table->gemm[DTYPE_Q6_K] = gemm_q6_k_avx512;
}
