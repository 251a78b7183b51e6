#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Verifies the Spin models of proofs/: each must hold without an error over its whole state space,
# and each of its mutants (MUTANT=1, 2, ... as its head comment counts them) must fail.
# The last line is "N passed, N failed".
set -euo pipefail
cd "$(dirname "$0")/.."
out=build/proofs
passed=0
failed=0

# verify MODEL MUTANT: prints "holds", "fails", or what went wrong.
verify() {
    local work="$out/$(basename "$1" .pml)-$2"
    rm -rf "$work"
    mkdir -p "$work"
    cp "$1" "$work/model.pml"
    (
        cd "$work"
        spin -a -DMUTANT="$2" model.pml >spin.log 2>&1 || { echo "spin failed"; exit 0; }
        gcc -O1 -w -DSAFETY -DVECTORSZ=2048 -o pan pan.c
        ./pan -m200000 >pan.log 2>&1 || true
        if grep -q "max search depth too small\|Search not completed" pan.log &&
            grep -q "errors: 0" pan.log; then
            echo "was not searched to the end"
        elif grep -q "errors: 0" pan.log; then
            echo holds
        elif grep -q "errors: [1-9]" pan.log; then
            echo fails
        else
            echo "pan failed"
        fi
    )
}

report() { # NAME EXPECTED FOUND
    if [ "$2" = "$3" ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "$1: $3, expected: $2"
    fi
}

for model in proofs/*.pml; do
    report "$model" holds "$(verify "$model" 0)"
    mutants=$(sed -n 's/.*MUTANT 1 to \([0-9]*\).*/\1/p' "$model")
    for mutant in $(seq 1 "$mutants"); do
        report "$model, mutant $mutant" fails "$(verify "$model" "$mutant")"
    done
    grep -h "states, stored" "$out/$(basename "$model" .pml)-0/pan.log" | sed "s|^|$model: |"
done
echo "proofs: $passed passed, $failed failed"
[ "$failed" -eq 0 ]
