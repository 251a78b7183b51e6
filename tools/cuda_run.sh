#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh RESULTS: on a machine with a card, runs card_cuda of this folder (`make cuda-bundle`), and
# again under compute-sanitizer's memcheck where that works, without the case that faults on
# purpose. Output lands in the folder RESULTS; the exit code is that of the plain run.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
results=${1:?usage: run.sh RESULTS}
mkdir -p "$results"
export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}:/usr/local/nvidia/lib64:/usr/lib/x86_64-linux-gnu"
{ date -u; nvidia-smi; cat /proc/driver/nvidia/version; ldd --version | head -n 1; uname -r; } \
    > "$results/machine.txt" 2>&1
timeout 120 "$here/card_cuda" > "$results/card_cuda.txt" 2>&1
code=$?
cat "$results/card_cuda.txt"
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2> /dev/null)
if [ -n "$sanitizer" ]; then
    timeout 120 "$sanitizer" --tool memcheck "$here/card_cuda" kernels_do_not_spill \
        add_equals_the_reference nothing_is_written_while_idle graphs_run_their_launches \
        > "$results/memcheck.txt" 2>&1
    echo "memcheck: exit $?"
    tail -n 3 "$results/memcheck.txt"
else
    echo "no compute-sanitizer"
fi
exit $code
