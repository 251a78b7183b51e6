// SPDX-License-Identifier: Apache-2.0
// The AVX2 level of the operator table. The kernels are in gemm_avx2.c (quantised weights),
// gemm_float_avx2.c, attention_avx2.c and elementwise_avx2.c; avx2.h declares them.
// embed stays the reference's: a row of 576 takes 0.6 us of a token's milliseconds.
#include "cpu/kernels.h"

#include "cpu/avx2.h"

void op_fill_avx2(struct op_table *table) {
    table->name = "avx2";
    table->rmsnorm = rmsnorm_avx2;
    table->quantize_q16 = quantize_q16_avx2;
    table->rope = rope_avx2;
    table->kv_write = kv_write_avx2;
    table->attention = attention_avx2;
    table->silu_mul = silu_mul_avx2;
    table->gelu_tanh_mul = gelu_tanh_mul_avx2;
    table->add = add_avx2;
    table->finite = finite_avx2;
    table->gemm[DTYPE_F32] = gemm_f32_avx2;
    table->gemm[DTYPE_F16] = gemm_f16_avx2;
    table->gemm[DTYPE_BF16] = gemm_bf16_avx2;
    table->gemm[DTYPE_Q4_0] = gemm_q4_0_avx2;
    table->gemm[DTYPE_Q4_1] = gemm_q4_1_avx2;
    table->gemm[DTYPE_Q5_0] = gemm_q5_0_avx2;
    table->gemm[DTYPE_Q5_1] = gemm_q5_1_avx2;
    table->gemm[DTYPE_Q8_0] = gemm_q8_0_avx2;
    table->gemm[DTYPE_Q2_K] = gemm_q2_k_avx2;
    table->gemm[DTYPE_Q3_K] = gemm_q3_k_avx2;
    table->gemm[DTYPE_Q4_K] = gemm_q4_k_avx2;
    table->gemm[DTYPE_Q5_K] = gemm_q5_k_avx2;
    table->gemm[DTYPE_Q6_K] = gemm_q6_k_avx2;
}
