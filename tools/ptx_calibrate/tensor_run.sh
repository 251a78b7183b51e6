#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh RESULTS [check|bench|sanitize]: on a machine with a card, the launch files of the tensor profile
# and card_tensor's check, then its times; or one of the two; or four of the launch files under
# compute-sanitizer. Output lands in the folder RESULTS. Exit code 0 when nothing differs.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
results=${1:?usage: run.sh RESULTS [check|bench]}
what=${2:-all}
mkdir -p "$results"
export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}:/usr/local/nvidia/lib64:/usr/lib/x86_64-linux-gnu"
failed=0
{ date -u; nvidia-smi; cat /proc/driver/nvidia/version; } > "$results/machine.txt" 2>&1
if [ "$what" = sanitize ]; then
    sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
    for tool in memcheck racecheck synccheck; do
        timeout 150 "$sanitizer" --tool $tool --error-exitcode 9 "$here/card_launch" "$here" \
            "$here"/launch/gemm_tensor_{f16,q4_0,q2_k,q4_k}.launch > "$results/$tool.txt" 2>&1 || failed=1
        tail -n 2 "$results/$tool.txt"
    done
    exit $failed
fi
if [ "$what" != bench ]; then
    timeout 100 "$here/card_launch" "$here" "$here"/launch/*.launch \
        > "$results/card_launch.txt" 2>&1 || failed=1
    cat "$results/card_launch.txt"
    timeout 150 "$here/card_tensor" "$here" check > "$results/check.txt" 2>&1 || failed=1
    cat "$results/check.txt"
fi
if [ "$what" != check ]; then
    timeout 100 "$here/card_tensor" "$here" bench > "$results/bench.txt" 2>&1 || failed=1
    cat "$results/bench.txt"
fi
exit $failed
