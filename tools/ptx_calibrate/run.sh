#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh RESULTS: on a machine with a card, records the calibration tables, checks every kernel and
# executes every launch file, the latter two also under compute-sanitizer where that works, and
# times the large kernels. Everything lands in the folder RESULTS; the exit code is 0 when the tables
# were recorded and no kernel differs.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
results=${1:?usage: run.sh RESULTS}
mkdir -p "$results"
export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}:/usr/local/nvidia/lib64:/usr/lib/x86_64-linux-gnu"
failed=0
{ nvidia-smi; cat /proc/driver/nvidia/version; uname -r; } > "$results/machine.txt" 2>&1
if timeout 60 "$here/record" "$here/forms.txt" "$here/calibration.ptx" \
    > "$results/calibration.table" 2> "$results/record.log"; then
    echo "record: $(grep -c '^row' "$results/calibration.table") rows"
else
    failed=1
fi
cat "$results/record.log"
timeout 60 "$here/record" "$here/more_forms.txt" "$here/more_calibration.ptx" \
    > "$results/more.calibration" 2> "$results/more.log" || failed=1
cat "$results/more.log"
timeout 60 "$here/card_check" "$here" > "$results/card_check.txt" 2>&1 || failed=1
tail -n 40 "$results/card_check.txt"
timeout 80 "$here/card_launch" "$here" "$here"/launch/*.launch \
    > "$results/card_launch.txt" 2>&1 || failed=1
grep -v ' 0 wrong' "$results/card_launch.txt"
tail -n 1 "$results/card_launch.txt"
nvidia-smi --query-gpu=timestamp,clocks.sm,clocks.mem,power.draw,temperature.gpu --format=csv \
    --loop-ms=500 > "$results/clocks.csv" 2>&1 &
watcher=$!
timeout 60 "$here/card_bench" "$here" > "$results/card_bench.txt" 2>&1 || failed=1
kill $watcher
cat "$results/card_bench.txt"
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2> /dev/null)
for tool in memcheck racecheck synccheck; do
    [ -n "$sanitizer" ] || { echo "no compute-sanitizer"; break; }
    # card_check has gone through this unchanged before; the launches hold the newer kernels.
    timeout 30 "$sanitizer" --tool $tool "$here/card_launch" "$here" "$here"/launch/[fgk]*.launch \
        > "$results/sanitizer_$tool.txt" 2>&1
    echo "$tool: exit $?"
    tail -n 3 "$results/sanitizer_$tool.txt"
done
exit $failed
