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
    // Quantised weights: gemm_avx512.c.
}
