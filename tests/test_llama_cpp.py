# SPDX-License-Identifier: Apache-2.0
"""Tiny random models of every architecture and weight type against llama.cpp, which ran the same
weights as F32 (tools/llama_reference.py recorded it and has the list of models). The files are made
here again; their digests show that they are the same.

What is left of the difference is this engine's rounding of activations to f16, and in gemma3
llama.cpp's own GELU, a table of halves. So that the tolerance means something, models with one
number changed are held to miss it by far.
"""
import dataclasses
import hashlib
import json
import sys

import numpy as np
import pytest

import sov

sys.path.insert(0, str(sov.ROOT / "tools"))
import llama_reference as reference  # noqa: E402
import make_models as mm  # noqa: E402

LOGIT_MAX = 0.01  # largest difference of a logit
MARGIN = 0.01     # greedy text may differ where llama.cpp's two best logits are this close
MISSED_BY = 10    # a wrong model is off by at least so many tolerances

RECORD = json.loads((reference.GOLDEN / "llama_cpp.json").read_text())
LOGITS = np.load(reference.GOLDEN / "llama_cpp.npz")


def recorded_rows(name):
    return LOGITS[name] * RECORD["step"]


def own_rows(path, folder):
    """[positions of all prompts, n_vocab]"""
    rows = []
    for prompt in RECORD["prompts"]:
        (folder / "ids").write_text(" ".join(map(str, prompt)))
        sov.succeed("logits", "-m", path, "--tokens", folder / "ids", "--all", "-o",
                    folder / "rows")
        rows.append(np.fromfile(folder / "rows", dtype="<f4").reshape(len(prompt), -1))
    return np.concatenate(rows)


def test_the_record_is_of_these_models():
    assert list(RECORD["models"]) == list(reference.MODELS)
    assert RECORD["prompts"] == reference.PROMPTS and RECORD["n_new"] == reference.N_NEW
    covered = {name for name in reference.MODELS if name.split(" ", 1)[1] in mm.TYPES}
    assert len(covered) == len(mm.ARCHES) * len(mm.TYPES)


def steps_before_a_close_call(margins):
    return next((i for i, margin in enumerate(margins) if margin < MARGIN), len(margins))


def test_most_greedy_steps_can_be_compared():
    counts = [sum(map(steps_before_a_close_call, entry["margins"]))
              for entry in RECORD["models"].values()]
    most = len(RECORD["prompts"]) * RECORD["n_new"]
    print(f"{sum(counts)} of {most * len(counts)} steps, at least {min(counts)} of {most} a model")
    assert sum(counts) > 0.85 * most * len(counts)
    assert min(counts) > 0.25 * most


@pytest.mark.parametrize("name", reference.MODELS)
def test_model(name, tmp_path):
    entry = RECORD["models"][name]
    path = tmp_path / "model.gguf"
    mm.write_model(path, reference.MODELS[name])
    assert hashlib.sha256(path.read_bytes()).hexdigest() == entry["sha256"], \
        "tools/make_models.py does not make the model that was recorded"
    expected, own = recorded_rows(name), own_rows(path, tmp_path)
    assert own.shape == expected.shape
    difference = np.abs(own - expected)
    for prompt, text, margins in zip(RECORD["prompts"], entry["greedy"], entry["margins"]):
        (tmp_path / "ids").write_text(",".join(map(str, prompt)))
        answer = sov.run_json(path, "--tokens", tmp_path / "ids", "--greedy", "--ignore-eos", "-n",
                              len(text))
        n = steps_before_a_close_call(margins)
        assert answer["tokens"][:n] == text[:n], f"prompt of {len(prompt)} tokens"
        assert len(answer["tokens"]) == len(text)
    print(f"{name:20} largest difference {difference.max():.5f}, rms "
          f"{np.sqrt((difference ** 2).mean()):.5f}; logits to {np.abs(expected).max():.1f}")
    assert difference.max() < LOGIT_MAX


# One change each that a mistake could amount to: it must show.
WRONG = {
    "window one less": ("gemma3 F32", dict(window=15)),
    "window one more": ("gemma3 F32", dict(window=17)),
    "another pattern": ("gemma3 F32", dict(window_pattern=3)),
    "local layers with the global base": ("gemma3 F32", dict(rope_freq_base_swa=1e6)),
    "local layers scaled": ("gemma3 linear", dict(rope_scaling={})),
    "layer list shifted": ("gemma3 layer list", dict(window_pattern=[True, False, True])),
    "no divisors": ("llama divisors", dict(rope_freqs=None)),
    "no scaling": ("llama linear", dict(rope_scaling={})),
    "no biases": ("llama Q8_0", dict(biases=False)),
    "grouped otherwise": ("llama Q8_0", dict(n_head=4, n_head_kv=1, head_dim=64)),
    "rope of the whole head": ("gemma3 partial rope", dict(rope_dim=None)),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_mistake_shows(wrong, tmp_path):
    name, changes = WRONG[wrong]
    spec = dataclasses.replace(reference.MODELS[name], **changes)
    mm.write_model(tmp_path / "model.gguf", spec)
    worst = np.abs(own_rows(tmp_path / "model.gguf", tmp_path) - recorded_rows(name)).max()
    print(f"{wrong}: {worst:.3f}")
    assert worst > MISSED_BY * LOGIT_MAX
