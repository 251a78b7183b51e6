// SPDX-License-Identifier: Apache-2.0
// The instruction-set levels of the operators. Each lays its kernels over a table that
// op_fill_reference has filled; what it lacks stays the definition's.
#pragma once
#include "cpu/cpu_features.h"
#include "ops/op.h"

// AVX2, FMA and F16C kernels. Only for a CPU whose level (cpu_features.h) is CPU_LEVEL_AVX2 or
// above.
void op_fill_avx2(struct op_table *table);
// AVX-512 (F, BW, DQ, VL, VBMI, VNNI) kernels, over those of op_fill_avx2, which it calls. Only for
// a CPU whose level is CPU_LEVEL_AVX512.
void op_fill_avx512(struct op_table *table);
// The exponential (operator 11) as the AVX-512 kernels compute it, for tests.
void exp_16_avx512(const f32 x[16], f32 y[16]);
// The level's kernels over a table filled by the reference; none for CPU_LEVEL_SCALAR.
static inline void op_fill_level(struct op_table *table, enum cpu_level level) {
    if (level == CPU_LEVEL_AVX2) op_fill_avx2(table);
    if (level == CPU_LEVEL_AVX512) op_fill_avx512(table);
}
