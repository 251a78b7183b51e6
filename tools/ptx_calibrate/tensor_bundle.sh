#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds build/tensor_bundle: the kernels of the tensor profile, their launch files, and what checks
# and times them on a card. The folder is copied to a machine with a card and needs nothing else:
#     bash tensor_bundle/run.sh RESULTS [check|bench]
set -euo pipefail
cd "$(dirname "$0")/../.."
bundle=build/tensor_bundle
tools=tools/ptx_calibrate
rm -rf "$bundle"
mkdir -p "$bundle/launch"
flags=(-std=gnu17 -D_GNU_SOURCE -O2 -Wall -Wextra -Werror -Wshadow -Isrc -march=x86-64-v3
    -ffp-contract=off -fno-strict-aliasing -fno-math-errno)
gcc "${flags[@]}" -o "$bundle/card_launch" $tools/card_launch.c $tools/driver.c \
    tools/ptxcheck/{launch,fill,operators,text_file}.c \
    src/ops/reference.c src/ops/dtype.c src/freestanding/math.c -ldl -lm
gcc "${flags[@]}" -o "$bundle/card_tensor" $tools/card_tensor.c $tools/driver.c src/ops/dtype.c \
    src/freestanding/math.c -ldl -lm
cc -E -P -x assembler-with-cpp -undef -nostdinc src/cuda/ptx/gemm_tensor.ptx.S \
    -o "$bundle/gemm_tensor.ptx"
cp tests/ptx/gemm_tensor_*.launch "$bundle/launch"
cp $tools/tensor_run.sh "$bundle/run.sh"
du -sh "$bundle"
