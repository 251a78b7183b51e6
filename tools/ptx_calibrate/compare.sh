#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# compare.sh RESULTS [PREFIX]: on a machine with a card, the kernels of this bundle (gemv_ and what
# else begins with PREFIX) by their launch files, and their times beside those of the kernels in
# before/ (bundle.sh REVISION), each twice and in turn. Exit code 0 when no kernel differs.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
results=${1:?usage: compare.sh RESULTS [PREFIX]}
prefix=${2:-gemv_}
mkdir -p "$results"
export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}:/usr/local/nvidia/lib64:/usr/lib/x86_64-linux-gnu"
failed=0
timeout 120 "$here/card_launch" "$here" "$here"/launch/{,large_}"$prefix"*.launch \
    > "$results/card_launch.txt" 2>&1 || failed=1
grep -v ' 0 wrong' "$results/card_launch.txt"
tail -n 1 "$results/card_launch.txt"
for run in 1 2; do
    timeout 60 "$here/card_bench" "$here/before" "$prefix" > "$results/before_$run.txt" 2>&1 || failed=1
    timeout 60 "$here/card_bench" "$here" "$prefix" > "$results/after_$run.txt" 2>&1 || failed=1
    paste -d'\n' "$results/before_$run.txt" "$results/after_$run.txt"
done
exit $failed
