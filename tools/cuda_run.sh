#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh RESULTS: on a machine with a card, runs what `make cuda-bundle` put into this folder:
# card_cuda, and `sov conform`, whose report is RESULTS/conform.json; then both again under
# compute-sanitizer where that works, card_cuda without the case that faults on purpose and conform
# with its small cases. Output lands in the folder RESULTS; the exit code is 0 when the plain runs
# were fine.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
results=${1:?usage: run.sh RESULTS}
mkdir -p "$results"
export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}:/usr/local/nvidia/lib64:/usr/lib/x86_64-linux-gnu"
failed=0
{ date -u; nvidia-smi; cat /proc/driver/nvidia/version; ldd --version | head -n 1; uname -r; } \
    > "$results/machine.txt" 2>&1
timeout 120 "$here/card_cuda" > "$results/card_cuda.txt" 2>&1 || failed=1
cat "$results/card_cuda.txt"
timeout 120 "$here/sov" conform --json > "$results/conform.json" 2> "$results/conform.txt"
code=$?
echo "conform: exit $code"
[ $code -eq 0 ] || failed=1
tail -n 20 "$results/conform.txt"
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2> /dev/null)
[ -n "$sanitizer" ] || { echo "no compute-sanitizer"; exit $failed; }
timeout 120 "$sanitizer" --tool memcheck "$here/card_cuda" kernels_do_not_spill \
    add_equals_the_reference nothing_is_written_while_idle graphs_run_their_launches \
    > "$results/memcheck.txt" 2>&1
echo "memcheck of card_cuda: exit $?"
tail -n 3 "$results/memcheck.txt"
for tool in memcheck racecheck synccheck initcheck; do
    timeout 120 "$sanitizer" --tool $tool --error-exitcode 9 "$here/sov" conform --quick \
        > "$results/conform_$tool.txt" 2>&1
    echo "$tool of conform: exit $?"
    tail -n 3 "$results/conform_$tool.txt"
done
exit $failed
