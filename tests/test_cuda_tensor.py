# SPDX-License-Identifier: Apache-2.0
"""--numerics tensor over the stand-in for NVIDIA's driver, whose matrix kernels add in f64 and round
once: which kernels get which activations, that bytes do not depend on chunks and batches (two kernels
each, by the number of tokens), how far logits are from `exact`, and what a record says of the profile.
"""
import json

import numpy
import pytest
from sov import FULL
from test_cuda_engine import (STANDIN, TYPES, ids, logits, make_model, model, nothing, sov)  # noqa: F401

TENSOR = ["--backend", "cuda", "--numerics", "tensor"]
# Root mean square of the differences, as a share of that of the logits. Both profiles round every
# activation to f16; there `exact` rounds once more, to 16 bits a group, and sums differ in their
# last bits. So a difference is a few roundings to f16 (2^-12 each) through the layers of the model.
SHARE_MAX = 4 * 2**-12
CHUNKS = (1, 5, 16, 20) if FULL else (5, 16, 20)  # up to 16 tokens one kernel, then the other


@pytest.mark.parametrize("arch, dtype", [("llama", name) for name in TYPES] +
                         [("gemma3", "Q5_0"), ("qwen2", "Q6_K"), ("qwen3", "F16")])
def test_logits(arch, dtype, tmp_path):
    path = make_model(tmp_path / "m.gguf", arch, dtype)
    tokens = ids(20)
    exact = logits(path, tokens, tmp_path, "--backend", "cpu")
    found = {logits(path, tokens, tmp_path, *TENSOR, "--prefill-chunk", chunk) for chunk in CHUNKS}
    assert len(found) == 1
    if dtype == "F32":
        assert found == {exact}  # F32 weights have no matrix kernel
        return
    assert found != {exact}
    a = numpy.frombuffer(exact, numpy.float32).astype(float)
    b = numpy.frombuffer(found.pop(), numpy.float32).astype(float)
    share = numpy.sqrt(((a - b) ** 2).mean() / (a ** 2).mean())
    print(f"{arch} {dtype}: {share:.2e} of {SHARE_MAX:.2e}")
    assert share <= SHARE_MAX


def test_graphs_and_late_streams(model, tmp_path):  # noqa: F811
    tokens = ids(40)
    expected = logits(model, tokens, tmp_path, *TENSOR, "--prefill-chunk", 40)
    assert logits(model, tokens, tmp_path, *TENSOR, "--prefill-chunk", 7, STANDIN_DEFERRED="7") == expected


def answers(model, tmp_path, n):  # noqa: F811
    lines = [json.dumps({"id": i, "tokens": ids(1 + i * 17 % 30, i + 1), "max_tokens": 3 + i,
                         "temperature": 0.8 * (i % 2), "seed": i, "ignore_eos": True}) for i in range(5)]
    (tmp_path / "requests.jsonl").write_text("\n".join(lines) + "\n")
    done = sov("batch", "-m", model, tmp_path / "requests.jsonl", "-c", 64, "--no-record", "--max-seqs", n,
               *TENSOR)
    assert done.returncode == 0, done.stderr
    found = sorted(done.stdout.splitlines())
    assert len(found) == len(lines)
    return found


def test_answers_are_the_same_in_any_batch(model, tmp_path):  # noqa: F811
    expected = answers(model, tmp_path, 1)
    for n in (2, 5):
        assert answers(model, tmp_path, n) == expected, n


RUN = ["run", "-p", "01", "-n", "3", "--greedy", "-c", "64"]


def test_needs_a_card(model, nothing):  # noqa: F811
    run = [*RUN, "-m", model, "--no-record", "--numerics", "tensor"]
    done = sov(*run, "--backend", "cpu")
    assert done.returncode == 3 and "tensor is computed by CUDA cards alone" in done.stderr
    done = sov(*run, environment=nothing)  # auto is cuda then
    assert done.returncode == 3 and "CUDA needs the NVIDIA driver" in done.stderr and done.stdout == ""
    assert sov(*run).returncode == 0


@pytest.mark.parametrize("command", [
    ["run", "-p", "0"], ["chat"], ["logits", "--tokens", "-", "-o", "/dev/null"], ["perplexity", "-f", "-"],
    ["bench", "-p", "4", "-n", "0"], ["batch", "-"],
])
def test_is_an_option_of_what_computes(model, command):  # noqa: F811
    done = sov(*command, "-m", model, "--numerics", "fast", stdin="1")
    assert done.returncode == 2 and '--numerics takes exact or tensor, not "fast"' in done.stderr


def replay(store, model, *options, **variables):  # noqa: F811
    done = sov("replay", store, "-m", model, "--json", *options, environment={**STANDIN, **variables})
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def test_a_record_is_of_its_architecture(model, tmp_path):  # noqa: F811
    store = tmp_path / "store"
    done = sov(*RUN, "-m", model, "--numerics", "tensor", "--store", store)
    assert done.returncode == 0, done.stderr
    code, lines, errors = replay(store, model, *TENSOR)
    assert code == 0 and lines[-1]["same"] == 1, (lines, errors)
    for options, variables, ours in ((["--backend", "cpu"], {}, "exact"), (["--backend", "cuda"], {}, "exact"),
                                     (TENSOR, {"STANDIN_CAPABILITY": "120"}, "tensor sm_120")):
        code, lines, errors = replay(store, model, *options, **variables)
        assert code == 3 and lines[-1]["not_checkable"] == 1, (lines, errors)
        assert lines[0]["error"]["message"].startswith(
            f"not checkable here: recorded with the numeric profile tensor sm_90, this engine computes {ours}")
    done = sov("resume", store, "-m", model)
    assert done.returncode == 3 and "resume takes up exact alone" in done.stderr, done.stderr


def test_an_exact_record_is_not_checked_by_tensor(model, tmp_path):  # noqa: F811
    store = tmp_path / "store"
    assert sov(*RUN, "-m", model, "--store", store).returncode == 0
    assert replay(store, model, "--backend", "cpu")[0] == 0
    code, lines, _ = replay(store, model, *TENSOR)
    assert code == 3 and "recorded with the numeric profile exact" in lines[0]["error"]["message"]
