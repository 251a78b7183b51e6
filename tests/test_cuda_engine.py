# SPDX-License-Identifier: Apache-2.0
"""--backend of the commands, over the stand-in for NVIDIA's driver (tests/cuda_standin.c), which computes
kernels by the CPU's operators: what is chosen, what is said, and that the bytes are the CPU's for every
type of weights. Steps, failures and the power are in tests/test_cuda_engine.c.
"""
import json
import os
import subprocess
from pathlib import Path

import pytest
from sov import FULL, STATE

ROOT = Path(__file__).resolve().parent.parent
BUILD = Path(os.environ.get("SOV_TEST_BUILD", ROOT / "build"))
TIMEOUT = 120
TYPES = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K",
         "Q6_K"]
# 1: reference operators; 2: those of AVX2, which are ten times as fast.
STANDIN = {"LD_LIBRARY_PATH": str(BUILD / "cuda_standin"), "STANDIN_EXECUTE": "2", "STANDIN_MEMORY": "1024"}


def sov(*arguments, environment=STANDIN, program="sov", stdin=None):
    return subprocess.run([BUILD / program, *map(str, arguments)], capture_output=True, text=True,
                          timeout=TIMEOUT, input=stdin,
                          env={"PATH": os.environ["PATH"], "XDG_STATE_HOME": str(STATE), **environment})


@pytest.fixture(scope="module")
def nothing(tmp_path_factory):
    """An environment in which no driver is found, whatever this machine has."""
    folder = tmp_path_factory.mktemp("library")
    (folder / "libcuda.so.1").write_bytes(b"\x7fELF\x02\x01\x01 no more")
    return {"LD_LIBRARY_PATH": str(folder)}


def make_model(path, arch, dtype):
    program = BUILD / "free/card_model"
    if not program.exists():
        pytest.skip(f"{program} is not built")
    subprocess.run([program, path, arch, dtype, "small"], check=True, timeout=TIMEOUT)
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model") / "m.gguf", "llama", "Q4_K")


def ids(n, seed=7):
    state, out = seed, []
    for _ in range(n):
        state = (state * 1664525 + 1013904223) & 0xffffffff
        out.append(state // 256 % 1000)
    return out


def logits(model, tokens, folder, *options, **variables):
    (folder / "ids.txt").write_text(",".join(map(str, tokens)))
    done = sov("logits", "-m", model, "--tokens", folder / "ids.txt", "--all", "-o", folder / "rows.f32",
               *options, environment={**STANDIN, **variables})
    assert done.returncode == 0, done.stderr
    return (folder / "rows.f32").read_bytes()


@pytest.mark.parametrize("arch, dtype", [("llama", name) for name in TYPES] +
                         [("gemma3", "Q5_0"), ("qwen2", "Q6_K"), ("qwen3", "F16")])
def test_logits_are_the_cpus(arch, dtype, tmp_path):
    path = make_model(tmp_path / "m.gguf", arch, dtype)
    tokens = ids(48)
    expected = logits(path, tokens, tmp_path, "--backend", "cpu")
    for chunk in (1, 5, 48):
        found = logits(path, tokens, tmp_path, "--backend", "cuda", "--prefill-chunk", chunk)
        assert found == expected, f"chunk {chunk}"
    if FULL:
        found = logits(path, tokens, tmp_path, "--backend", "cuda", STANDIN_EXECUTE="1")
        assert found == expected


def test_long_prompts_and_late_streams(model, tmp_path):
    """Several chunks of attention; what is in a stream is done as late as it may be."""
    tokens = ids(600)
    expected = logits(model, tokens, tmp_path, "--backend", "cpu")
    for options in (["--prefill-chunk", 600], ["--prefill-chunk", 33, "--kv-shuffle", 3]):
        assert logits(model, tokens, tmp_path, "--backend", "cuda", *options,
                      STANDIN_DEFERRED="7") == expected


def batch(model, tmp_path, *options):
    lines = [json.dumps({"id": i, "tokens": ids(1 + i * 37 % 90, i + 1), "max_tokens": 3 + i * 5 % 70,
                         "temperature": 0.8 * (i % 2), "seed": i, "ignore_eos": True}) for i in range(20)]
    requests = tmp_path / "requests.jsonl"
    requests.write_text("\n".join(lines) + "\n")
    done = sov("batch", "-m", model, requests, "-c", 256, *options)
    assert done.returncode == 0, done.stderr
    answers = sorted(done.stdout.splitlines())
    assert len(answers) == len(lines)
    return answers


def test_answers_are_the_cpus_in_any_batch(model, tmp_path):
    expected = batch(model, tmp_path, "--backend", "cpu")
    for n in (1, 3, 16):
        assert batch(model, tmp_path, "--backend", "cuda", "--max-seqs", n) == expected, n


RUN = ["run", "-p", "01", "-n", "3", "--greedy", "-c", "64", "--no-record"]


def test_auto_takes_what_is_there(model, nothing):
    card = sov(*RUN, "-m", model)
    assert card.returncode == 0 and card.stderr.endswith("; Stand-in 0\n"), card.stderr
    cpu = sov(*RUN, "-m", model, environment=nothing)
    assert cpu.returncode == 0 and cpu.stdout == card.stdout
    assert cpu.stderr.count("\n") == 1 and "Stand-in" not in cpu.stderr and "CUDA" not in cpu.stderr
    asked = sov(*RUN, "-m", model, "--backend", "auto", environment=nothing)
    assert asked.returncode == 0 and asked.stdout == card.stdout


@pytest.mark.parametrize("variables", [{"STANDIN_CAPABILITY": "86"}, {"STANDIN_MEMORY": "2"},
                                       {"STANDIN_VERSION": "11070"}, {"STANDIN_DEVICES": "0"}])
def test_auto_takes_the_cpu_where_the_card_will_not_do(model, variables):
    """And says why, as the error of --backend cuda does."""
    asked = sov(*RUN, "-m", model, "--backend", "cuda", environment={**STANDIN, **variables})
    assert asked.returncode != 0
    done = sov(*RUN, "-m", model, environment={**STANDIN, **variables})
    why = "; by the CPU, without a card: " + asked.stderr.removeprefix("sov: ")
    assert done.returncode == 0 and done.stderr.endswith(why), done.stderr
    cpu = sov(*RUN, "-m", model, "--backend", "cpu", environment={**STANDIN, **variables})
    assert cpu.returncode == 0 and cpu.stderr.endswith("(length)\n"), cpu.stderr


@pytest.mark.parametrize("variables, code, message", [
    ({"STANDIN_CAPABILITY": "86"}, 3, "Stand-in 0: compute capability 8.6, expected 8.9 or above"),
    ({"STANDIN_DEVICES": "0"}, 3, "the NVIDIA driver is there, but it sees no CUDA device"),
    ({"STANDIN_VERSION": "11070"}, 3, "the NVIDIA driver is too old"),
    ({"STANDIN_MEMORY": "2"}, 1, "bytes on the card for weights"),
    ({"STANDIN_FAIL": "1"}, 1, "cuDriverGetVersion"),
    ({"STANDIN_FAIL": "300"}, 1, "CUDA_ERROR_LAUNCH_FAILED, 719"),
])
def test_asked_for_and_missing_is_said(model, variables, code, message):
    done = sov(*RUN, "-m", model, "--backend", "cuda", environment={**STANDIN, **variables})
    assert done.returncode == code and message in done.stderr, done.stderr


def test_device_names_a_card(model):
    run = [*RUN, "-m", model]
    two = {**STANDIN, "STANDIN_DEVICES": "2"}
    for options, name in ([], "Stand-in 0"), (["--device", "1"], "Stand-in 1"):
        done = sov(*run, *options, environment=two)
        assert done.returncode == 0 and done.stderr.endswith(f"; {name}\n"), done.stderr
    done = sov(*run, "--device", "2", environment=two)
    assert done.returncode == 2 and "CUDA device 2: the driver sees 2" in done.stderr, done.stderr
    done = sov(*run, "--device", "0", "--backend", "cpu", environment=two)
    assert done.returncode == 2 and "--backend cpu takes none" in done.stderr, done.stderr


def test_version_tells_of_the_card(nothing):
    assert sov("version").stdout.splitlines()[1].startswith("card: Stand-in 0, compute capability ")
    old = sov("version", environment={**STANDIN, "STANDIN_CAPABILITY": "86"}).stdout.splitlines()[1]
    assert old.startswith("no card: Stand-in 0: compute capability 8.6, expected 8.9"), old
    none = sov("version", environment=nothing).stdout.splitlines()[1]
    assert none.startswith("no card: CUDA needs the NVIDIA driver: "), none
    assert "this one is static" in sov("version", program="sov-static").stdout


def test_no_driver(model, nothing):
    done = sov(*RUN, "-m", model, "--backend", "cuda", environment=nothing)
    assert done.returncode == 3 and done.stdout == ""
    assert done.stderr.startswith("sov: CUDA needs the NVIDIA driver: library libcuda.so.1: ")


def test_static_program_has_the_cpu_only(model):
    done = sov(*RUN, "-m", model, program="sov-static")
    assert done.returncode == 0 and "Stand-in" not in done.stderr, done.stderr
    done = sov(*RUN, "-m", model, "--backend", "cuda", program="sov-static")
    assert done.returncode == 3 and 'CUDA needs the program "sov"' in done.stderr, done.stderr


@pytest.mark.parametrize("command", [
    ["run", "-p", "0"], ["chat"], ["logits", "--tokens", "-", "-o", "/dev/null"], ["perplexity", "-f", "-"],
    ["bench", "-p", "4", "-n", "0"], ["batch", "-"],
])
def test_backend_is_an_option_of_what_computes(model, command):
    done = sov(*command, "-m", model, "--backend", "gpu", stdin="1")
    assert done.returncode == 2 and '--backend takes cpu, cuda or auto, not "gpu"' in done.stderr


def test_bench_says_what_computed(model):
    options = ["-p", "8", "-n", "4", "-r", "1", "--json"]
    found = json.loads(sov("bench", "-m", model, "--backend", "cuda", *options).stdout)
    assert found["backend"] == "cuda" and found["card"] == "Stand-in 0" and "isa" not in found
    found = json.loads(sov("bench", "-m", model, "--backend", "cpu", *options).stdout)
    assert found["backend"] == "cpu" and "card" not in found and found["isa"]
