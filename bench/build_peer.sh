#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds llama.cpp, the program that ours is compared with, outside the repository: in $SOV_PEER_DIR,
# default ~/.cache/sov-rtx/peer. The source is that of the PyPI package llama-cpp-python (a fixed
# version, checked by SHA-256); the build is for the CPU of this machine, without GPU back ends.
#
#   bench/build_peer.sh                      # libllama, for tools/llama_reference.py
#   bench/build_peer.sh llama llama-bench    # these CMake targets
#
# What it makes: llama_cpp_python-0.3.36/vendor/llama.cpp (source), build/bin (libraries, programs).
# Takes 10 to 30 minutes on two cores the first time; JOBS=N sets how many files compile at a time.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
version=0.3.36
name=llama_cpp_python-$version
sha=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
dir=${SOV_PEER_DIR:-$HOME/.cache/sov-rtx/peer}
targets=("${@:-llama}")
case "$(realpath -m "$dir")/" in
"$root"/*)
    echo "SOV_PEER_DIR ($dir) must lie outside the repository" >&2
    exit 2
    ;;
esac
. "$root/tools/install.sh"
install_packages g++ cmake make python3-pip python3-venv >&2

mkdir -p "$dir"
cd "$dir"
if [ ! -f $name/vendor/llama.cpp/include/llama.h ]; then
    if ! echo "$sha  $name.tar.gz" | sha256sum --check --status 2>/dev/null; then
        echo "fetching $name from PyPI (77 MB)" >&2
        # pip asks a source package for its metadata, for which it needs a place to build in.
        python3 -m pip download --quiet --no-deps --no-binary :all: llama-cpp-python==$version >&2
    fi
    echo "$sha  $name.tar.gz" | sha256sum --check --quiet >&2
    tar -xzf $name.tar.gz $name/vendor/llama.cpp
fi
if [ ! -f build/Makefile ]; then
    cmake -S $name/vendor/llama.cpp -B build -G "Unix Makefiles" -DCMAKE_BUILD_TYPE=Release \
        -DGGML_NATIVE=ON -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
        -DLLAMA_BUILD_SERVER=OFF -DLLAMA_OPENSSL=OFF >&2
fi
cmake --build build --target "${targets[@]}" -j "${JOBS:-$(nproc)}" >&2
echo "$dir/build/bin"
