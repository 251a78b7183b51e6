// SPDX-License-Identifier: Apache-2.0
// The instruction-set levels of the operators. Each lays its kernels over a table that
// op_fill_reference has filled; what it lacks stays the definition's.
#pragma once
#include "ops/op.h"

// AVX2, FMA and F16C kernels. Only for a CPU whose level (cpu_features.h) is CPU_LEVEL_AVX2 or
// above.
void op_fill_avx2(struct op_table *table);
