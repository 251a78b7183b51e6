#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs libFuzzer programs for a number of seconds each: tools/fuzz.py SECONDS PROGRAM...

The corpus of build/fuzz/NAME grows in build/fuzz/corpus/NAME and starts from seeds: tiny models for
model files, and whatever tests/corpus/NAME holds. A finding stops with libFuzzer's report; the input
that shows it stays in build/fuzz/NAME.crash-*.
"""
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CORPUS = ROOT / "build/fuzz/corpus"
# Options of tools/make_models.py.
TINY = "--n-layer 2 --n-embd 32 --n-ff 32 --n-head 2 --n-head-kv 1 --n-vocab 12 --tokenizer letters"
GGUF_SEEDS = [
    "--type F32", "--type Q4_0 --untied --biases", "--type Q8_0 --rope-scaling type=linear,factor=4",
    "--type Q4_1 --rope-freqs llama3 --n-vocab 290 --tokenizer spm",
    "--n-layer 1 --n-embd 256 --head-dim 16 --type Q4_K --types attn_output=Q4_0,ffn_down=Q8_0",
    "--type F16 --n-vocab 300 --tokenizer bpe",
    "--arch gemma3 --head-dim 32 --window 16 --window-pattern 2 --rope-freq-base-swa 5000",
    "--arch gemma3 --head-dim 16 --window 4 --window-pattern 1,0 --type F32 --untied",
    "--arch qwen2 --rope-scaling type=linear,factor=2", "--arch qwen3 --head-dim 32 --type Q5_1",
]


def seed(name, folder):
    committed = ROOT / "tests/corpus" / name
    if committed.is_dir():
        for path in committed.iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
    if name == "fuzz_gguf":
        python = ROOT / "build/venv/bin/python"
        for i, options in enumerate(GGUF_SEEDS):
            out = folder / f"tiny_{i}.gguf"
            if not out.exists():
                subprocess.run([str(python), str(ROOT / "tools/make_models.py"), *TINY.split(),
                                *options.split(), "-o", str(out)], check=True,
                               stdout=subprocess.DEVNULL)


def run(program, seconds):
    name = Path(program).name
    folder = CORPUS / name
    folder.mkdir(parents=True, exist_ok=True)
    seed(name, folder)
    done = subprocess.run([program, f"-max_total_time={seconds}", "-timeout=10", "-max_len=70000",
                           "-rss_limit_mb=2048", "-print_final_stats=1",
                           f"-artifact_prefix={program}.", str(folder)], cwd=ROOT, text=True,
                          errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    runs = re.search(r"stat::number_of_executed_units: (\d+)", done.stdout)
    covered = re.findall(r"cov: (\d+) ft: (\d+)", done.stdout)
    if done.returncode != 0 or not runs or not covered:
        sys.stdout.write(done.stdout[-6000:])
        return False
    print(f"{name}: {runs.group(1)} runs in {seconds} s, {covered[-1][0]} edges, no finding",
          flush=True)
    return True


def main():
    seconds, programs = int(sys.argv[1]), sys.argv[2:]
    if not programs:
        print("no fuzzers to run")
        return 1
    return 0 if all([run(program, seconds) for program in programs]) else 1


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
