#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds build/calibrate_bundle: the recorder, the check of the kernels on a card, their PTX and
# run.sh. The folder is copied to a machine with a card and needs nothing else there:
#     bash calibrate_bundle/run.sh RESULTS
# bundle.sh REVISION also brings along the kernels of that commit, in before/, to compare times:
#     bash calibrate_bundle/compare.sh RESULTS
set -euo pipefail
cd "$(dirname "$0")/../.."
bundle=build/calibrate_bundle
tools=tools/ptx_calibrate
rm -rf "$bundle"
mkdir -p "$bundle"
flags=(-std=gnu17 -D_GNU_SOURCE -O2 -Wall -Wextra -Werror -Wshadow -Isrc -march=x86-64-v3
    -ffp-contract=off -fno-strict-aliasing -fno-math-errno)
gcc "${flags[@]}" -o "$bundle/record" $tools/record.c $tools/driver.c -ldl
gcc "${flags[@]}" -o "$bundle/card_check" $tools/card_check.c $tools/driver.c \
    src/ops/reference.c src/ops/dtype.c src/freestanding/math.c -ldl
gcc "${flags[@]}" -o "$bundle/card_launch" $tools/card_launch.c $tools/driver.c \
    tools/ptxcheck/{launch,fill,operators,text_file}.c \
    src/ops/reference.c src/ops/dtype.c src/freestanding/math.c -ldl -lm
gcc "${flags[@]}" -o "$bundle/card_bench" $tools/card_bench.c $tools/driver.c src/ops/dtype.c -ldl
for source in src/cuda/ptx/*.ptx.S $tools/*.ptx.S; do
    name=$(basename "$source" .ptx.S)
    cc -E -P -x assembler-with-cpp -undef -I src/cuda/ptx "$source" -o "$bundle/$name.ptx"
done
python3 $tools/forms.py forms > "$bundle/forms.txt"
python3 $tools/forms.py module "$bundle/forms.txt" > "$bundle/calibration.ptx"
make -s build/ptxcheck
build/ptxcheck rules > "$bundle/rules.txt"
python3 $tools/more_forms.py forms "$bundle/rules.txt" tests/ptx/h200.calibration \
    > "$bundle/more_forms.txt"
build/ptxcheck calibration-module "$bundle/more_forms.txt" > "$bundle/more_calibration.ptx"
mkdir "$bundle/launch"
cp tests/ptx/*.launch $tools/launch/*.launch "$bundle/launch"
cp $tools/run.sh $tools/compare.sh "$bundle"
if [ $# -eq 1 ]; then
    mkdir "$bundle/before" "$bundle/before/source"
    git archive "$1" src/cuda/ptx | tar -x -C "$bundle/before/source"
    for source in "$bundle"/before/source/src/cuda/ptx/*.ptx.S; do
        cc -E -P -x assembler-with-cpp -undef "$source" -o "$bundle/before/$(basename "$source" .ptx.S).ptx"
    done
    rm -r "$bundle/before/source"
fi
du -sh "$bundle"
