# SPDX-License-Identifier: Apache-2.0
"""The same bytes whatever the threads, the chunk size, the instruction set, the program and the
physical places of KV blocks: greedy and sampled, text and logits."""
import numpy as np
import pytest

import sov

PROMPT = ("In the beginning the harbour was small, and every captain knew every other. Then the "
          "railway came, and with it coal, strangers and newspapers; within ten years nobody ")
BASE = ["-p", PROMPT, "-n", "24", "--ignore-eos"]
VARIANTS = {
    "one thread": ["-t", "1"],
    "two threads": ["-t", "2"],
    "three threads": ["-t", "3"],
    "chunk 1": ["--prefill-chunk", "1"],
    "chunk 7": ["--prefill-chunk", "7"],
    "chunk 16": ["--prefill-chunk", "16"],
    "chunk 33": ["--prefill-chunk", "33"],
    "shuffled KV": ["--kv-shuffle", "1"],
    "shuffled KV, chunk 5, one thread, scalar": ["--kv-shuffle", "99", "--prefill-chunk", "5", "-t",
                                                 "1", "--force-isa", "scalar"],
    "another context": ["-c", "333"],
}
LEVELS = ("scalar", "avx2", "avx512")
SAMPLING = {"greedy": ["--greedy"],
            "sampled": ["--seed", "7", "--temp", "1.3", "--top-k", "0", "--top-p", "1", "--min-p",
                        "0"],
            "sampled with cuts": ["--seed", "18446744073709551615"]}


def outcome(model, *arguments, program=sov.SOV):
    answer = sov.run_json(model, *BASE, *arguments, program=program)
    return answer["tokens"], answer["text"], answer["finish_reason"]


@pytest.mark.parametrize("sampling", SAMPLING)
def test_text(sampling):
    model = sov.model("smollm2")
    expected = outcome(model, *SAMPLING[sampling])
    assert len(expected[0]) == 24
    for name, arguments in VARIANTS.items():
        assert outcome(model, *SAMPLING[sampling], *arguments) == expected, name
    for program in ("sov-static", "sov-asan"):
        assert outcome(model, *SAMPLING[sampling], "-n", "4", program=sov.BUILD / program)[0] == \
            expected[0][:4], program


def skip_without(level, model):
    done = sov.call("run", "-m", model, "-p", "a", "-n", "1", "--force-isa", level)
    if b"this machine has" in done.stderr:
        pytest.skip(f"this machine lacks {level}")


@pytest.mark.parametrize("level", LEVELS)
def test_level(level, tmp_path):
    model = sov.model("smollm2")
    skip_without(level, model)
    for name, sampling in SAMPLING.items():
        assert outcome(model, *sampling, "--force-isa", level) == outcome(model, *sampling), name
    ids = sov.golden_json("public/smollm2_rows.json")["prompts"][0]["tokens"][:60]
    (tmp_path / "ids").write_text(" ".join(map(str, ids)))
    found = logits(model, tmp_path / "ids", tmp_path / "out", "--all", "--force-isa", level)
    assert found == logits(model, tmp_path / "ids", tmp_path / "out", "--all")


def test_seeds_matter():
    model = sov.model("smollm2")
    drawn = {tuple(outcome(model, "--temp", "1.5", "--seed", str(seed))[0]) for seed in range(5)}
    assert len(drawn) == 5
    greedy = {tuple(outcome(model, "--temp", "0", "--seed", str(seed))[0]) for seed in range(2)}
    assert len(greedy) == 1


def logits(model, tokens, path, *arguments):
    sov.succeed("logits", "-m", model, "--tokens", tokens, "-o", path, *arguments)
    return path.read_bytes()


def test_logits(tmp_path):
    model = sov.model("smollm2")
    ids = sov.golden_json("public/smollm2_rows.json")["prompts"][0]["tokens"][:60]
    (tmp_path / "ids").write_text(" ".join(map(str, ids)))
    expected = logits(model, tmp_path / "ids", tmp_path / "out", "--all")
    assert len(expected) == 60 * 49152 * 4
    for name, arguments in VARIANTS.items():
        found = logits(model, tmp_path / "ids", tmp_path / "out", "--all", *arguments)
        if found != expected:
            a, b = (np.frombuffer(x, dtype="<u4").reshape(60, -1) for x in (expected, found))
            row = int(np.argmax((a != b).any(axis=1)))
            pytest.fail(f"{name}: position {row} is the first that differs")


def test_prefix_does_not_depend_on_what_follows(tmp_path):
    model = sov.model("smollm2")
    ids = sov.golden_json("public/smollm2_rows.json")["prompts"][1]["tokens"][:100]
    rows = {}
    for n in (37, 100):
        (tmp_path / "ids").write_text(" ".join(map(str, ids[:n])))
        rows[n] = logits(model, tmp_path / "ids", tmp_path / "out", "--all")
    assert rows[100].startswith(rows[37])
