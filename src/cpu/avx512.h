// SPDX-License-Identifier: Apache-2.0
// What the AVX-512 kernel files share: 16-lane forms of the helpers of avx2.h, which comes along
// (the level implies AVX2). V1 and V2 hold here too; partial vectors go through masks, which read
// and write the chosen lanes only.
#pragma once
#include "cpu/avx2.h"

#define LANES_16 16u

// The kernels of the other files of this level.
