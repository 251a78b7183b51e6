#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh RESULTS [PART...]: on a machine with a card, what `make cuda-bundle` carried there. It needs
# bash and coreutils. Output lands in the folder RESULTS, a line for each check on stdout; the exit
# code is 0 when none failed. Parts, each of a few minutes (default: check conform small real):
#
#   check       the driver and launch layers (card_cuda), and those and conform under compute-sanitizer
#   conform     every kernel against the reference; the report is RESULTS/conform.json
#   small       random models of every weight type and architecture: logits and answers of CUDA
#               against those of the CPU, by cmp; prefill chunks 1 to 2048, batches of 1 and 64
#   real        the same for each GGUF file in $MODELS (default: models/ beside this file), where
#               a file NAME.gguf may lie in pieces NAME.gguf.part-*
#   bench       sov bench of these files
#   8b:TYPE     a random model of 8B's shape in F16, Q8_0 or Q4_K, made in $SCRATCH (default
#               /tmp): against the CPU, and sov bench
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
results=${1:?usage: run.sh RESULTS [PART...]}
shift
mkdir -p "$results"
scratch=$(mktemp -d "${SCRATCH:-/tmp}/sov_cuda.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
models=${MODELS:-$here/models}
export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}:/usr/local/nvidia/lib64:/usr/lib/x86_64-linux-gnu"
sov=$here/sov

# note NAME OK|WRONG [words]
note() { echo "$2 $1 ${3:-}"; }

# run OUT COMMAND...: stdout to OUT; what it says on stderr goes to the log. Seconds in $took.
run() {
    local out=$1 begin
    shift
    begin=$(date +%s%N)
    timeout 400 "$@" > "$out" 2>> "$results/log.txt"
    local code=$?
    took=$((($(date +%s%N) - begin) / 1000000)) # ms
    [ $code -eq 0 ] || echo "exit $code: $*" >> "$results/log.txt"
    return $code
}

same() { # NAME EXPECTED FOUND
    if [ -s "$2" ] && cmp -s "$2" "$3"; then
        note "$1" OK "$(stat -c %s "$2") bytes, $took ms"
    else
        note "$1" WRONG "$(cmp "$2" "$3" 2>&1 | tail -n 1)"
    fi
}

# ids N SEED LIMIT: token ids, separated by commas
ids() {
    local state=$2 list="" i
    for ((i = 0; i < $1; i++)); do
        state=$(((state * 1664525 + 1013904223) & 0xffffffff))
        list+="$((state / 256 % $3)),"
    done
    echo "${list%,}"
}

# requests N LIMIT: for sov batch, prompts of 1 to some 200 tokens, every other one sampled
requests() {
    local i
    for ((i = 0; i < $1; i++)); do
        local temperature=0
        [ $((i % 2)) -eq 1 ] && temperature=0.8
        echo "{\"id\":$i,\"tokens\":[$(ids $((1 + i * 37 % 211)) $((i + 1)) "$2")]," \
            "\"max_tokens\":$((8 + i * 7 % 90)),\"temperature\":$temperature,\"seed\":$i,\"ignore_eos\":true}"
    done
}

# compare NAME MODEL TOKENS CHUNKS REQUESTS BATCHES: everything that must not differ
compare() {
    local name=$1 model=$2 n=$3 chunks=$4 n_requests=$5 batches=$6 chunk batch
    ids "$n" 7 1000 > "$scratch/ids.txt"
    requests "$n_requests" 1000 > "$scratch/requests.jsonl"
    run "$scratch/out.txt" "$sov" logits -m "$model" --tokens "$scratch/ids.txt" --all \
        --backend cpu -o "$scratch/cpu.f32"
    echo "     $name: the CPU's logits of $n tokens took $took ms"
    for chunk in $chunks; do
        rm -f "$scratch/cuda.f32"
        run "$scratch/out.txt" "$sov" logits -m "$model" --tokens "$scratch/ids.txt" --all \
            --backend cuda --prefill-chunk "$chunk" -o "$scratch/cuda.f32"
        same "$name logits chunk $chunk" "$scratch/cpu.f32" "$scratch/cuda.f32"
    done
    run "$scratch/cpu.jsonl" "$sov" batch -m "$model" "$scratch/requests.jsonl" -c 512 \
        --max-seqs 16 --backend cpu
    sort "$scratch/cpu.jsonl" > "$scratch/cpu.sorted"
    for batch in $batches; do
        run "$scratch/cuda.jsonl" "$sov" batch -m "$model" "$scratch/requests.jsonl" -c 512 \
            --max-seqs "$batch" --backend cuda
        sort "$scratch/cuda.jsonl" > "$scratch/cuda.sorted"
        same "$name answers batch $batch" "$scratch/cpu.sorted" "$scratch/cuda.sorted"
    done
}

part_check() {
    { date -u; nvidia-smi; cat /proc/driver/nvidia/version; ldd --version | head -n 1; uname -r; } \
        > "$results/machine.txt" 2>&1
    run "$results/card_cuda.txt" "$here/card_cuda"
    if [ $? -eq 0 ]; then note card_cuda OK; else note card_cuda WRONG; fi
    cat "$results/card_cuda.txt"
    local sanitizer
    sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2> /dev/null)
    if [ -z "$sanitizer" ]; then
        echo "     no compute-sanitizer"
        return
    fi
    run "$results/memcheck.txt" "$sanitizer" --tool memcheck "$here/card_cuda" kernels_do_not_spill \
        add_equals_the_reference nothing_is_written_while_idle graphs_run_their_launches
    if [ $? -eq 0 ]; then note memcheck OK; else note memcheck WRONG; fi
    tail -n 3 "$results/memcheck.txt"
    local tool
    for tool in memcheck racecheck synccheck initcheck; do
        run "$results/conform_$tool.txt" "$sanitizer" --tool $tool --error-exitcode 9 "$sov" \
            conform --quick
        if [ $? -eq 0 ]; then note "$tool of conform" OK; else note "$tool of conform" WRONG; fi
        tail -n 1 "$results/conform_$tool.txt"
    done
}

part_conform() {
    run "$results/conform.json" "$sov" conform --json
    if [ $? -eq 0 ]; then note conform OK; else note conform WRONG; fi
    tail -n 1 "$results/log.txt"
}

part_small() {
    local row arch type
    for row in llama:F32 llama:F16 llama:BF16 llama:Q4_0 llama:Q4_1 llama:Q5_0 llama:Q5_1 \
        llama:Q8_0 llama:Q2_K llama:Q3_K llama:Q4_K llama:Q5_K llama:Q6_K \
        gemma3:Q4_K gemma3:F16 qwen2:Q5_K qwen3:Q8_0; do
        arch=${row%:*}
        type=${row#*:}
        run "$scratch/out.txt" "$here/card_model" "$scratch/small.gguf" "$arch" "$type" small
        compare "$arch $type" "$scratch/small.gguf" 700 "1 7 64 700" 48 "1 64"
    done
}

# Files of $models, pieces joined.
real_models() {
    local piece whole
    for piece in "$models"/*.gguf.part-aa; do
        [ -e "$piece" ] || continue
        whole=$scratch/$(basename "${piece%.part-aa}")
        [ -e "$whole" ] || cat "${piece%aa}"* > "$whole"
    done
    ls "$models"/*.gguf "$scratch"/*.gguf 2> /dev/null | grep -v small.gguf
}

part_real() {
    local model found=0
    for model in $(real_models); do
        found=1
        compare "$(basename "$model")" "$model" 2048 "1 16 256 2048" 80 "1 64"
    done
    [ $found -eq 1 ] || echo "     no models in $models"
}

bench() { # NAME MODEL OPTIONS...
    local name=$1 model=$2
    shift 2
    run "$results/bench_$name.txt" "$sov" bench -m "$model" --backend cuda "$@"
    if [ $? -eq 0 ]; then note "bench $name" OK; else note "bench $name" WRONG; fi
    cat "$results/bench_$name.txt"
}

part_bench() {
    local model
    for model in $(real_models); do
        bench "$(basename "$model")" "$model" -p 512,2048 -n 128 -b 1,8,64 -d 0,1024 -r 3
    done
}

part_8b() { # TYPE
    run "$scratch/out.txt" "$here/card_model" "$scratch/8b.gguf" llama "$1" 8b
    if [ $? -ne 0 ]; then
        note "8b $1" WRONG "no model: $(tail -n 1 "$scratch/out.txt")"
        return
    fi
    echo "     8b $1: $(stat -c %s "$scratch/8b.gguf") bytes made in $took ms"
    compare "8b $1" "$scratch/8b.gguf" 40 "1 40" 4 "4"
    bench "8b_$1" "$scratch/8b.gguf" -p 512 -n 64 -b 1,8,64 -d 0 -r 3
    rm -f "$scratch/8b.gguf"
}

[ $# -gt 0 ] || set -- check conform small real
for part in "$@"; do
    begin=$(date +%s)
    case $part in
        check | conform | small | real | bench) "part_$part" ;;
        8b:*) part_8b "${part#8b:}" ;;
        *) note "$part" WRONG "no such part" ;;
    esac
    echo "     part $part: $(($(date +%s) - begin)) s"
done > >(tee -a "$results/report.txt") 2>&1
wait
grep -c '^OK ' "$results/report.txt" | sed 's/$/ passed/'
grep '^WRONG' "$results/report.txt" && exit 1
exit 0
