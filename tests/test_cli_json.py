# SPDX-License-Identifier: Apache-2.0
"""--json of the commands, the pin on a model's SHA-256, and perplexity."""
import hashlib
import json

import numpy as np
import pytest

import sov


def parsed(*arguments, **options):
    return json.loads(sov.succeed(*arguments, "--json", **options).stdout)


def test_version():
    text = sov.succeed("version").stdout.decode()
    data = parsed("version")
    assert data["version"] == text.split()[1]
    card = f"card: {data['card']}" if "card" in data else f"no card: {data['no_card']}"
    assert text.splitlines()[1:] == [card]


def test_tokenize_and_back():
    model = sov.model("smollm2")
    for text in ("Hello world", 'a "quoted"\tline\n', "日本語 \U0001f600", ""):
        data = parsed("tokenize", "-m", model, stdin=text.encode())
        plain = sov.succeed("tokenize", "-m", model, stdin=text.encode()).stdout.split()
        assert data["tokens"] == list(map(int, plain)) and data["n_tokens"] == len(plain)
        ids = " ".join(map(str, data["tokens"])).encode()
        assert parsed("detokenize", "-m", model, stdin=ids)["text"] == text
    assert parsed("detokenize", "-m", model, "--special", stdin=b"1 520")["text"].startswith("<|im")


def test_logits_and_trace(tmp_path):
    model = sov.model("smollm2")
    data = parsed("logits", "-m", model, "--tokens", "-", "-o", tmp_path / "rows", "--all",
                  stdin=b"504 3575 282")
    assert data == {"output": str(tmp_path / "rows"), "rows": 3, "n_vocab": 49152, "type": "f32"}
    rows = np.fromfile(tmp_path / "rows", dtype="<f4").reshape(3, 49152)
    index = parsed("trace", "-m", model, "--tokens", "-", "-o", tmp_path / "trace",
                   stdin=b"504 3575 282")["tensors"]
    last = index[-1]
    assert last["name"] == "output" and last["layer"] == -1 and last["rows"] == 3
    trace = np.fromfile(tmp_path / "trace", dtype="<f4", offset=last["offset"])
    assert np.array_equal(trace.reshape(3, -1), rows)
    assert {t["layer"] for t in index} == set(range(-1, 30))


def test_model_pin():
    model = sov.model("smollm2")
    with open(model, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    for pin in (digest, digest.upper()):
        assert sov.run_json(model, "--model-sha256", pin, "-p", "Hi", "-n", "1")
    wrong = "0" * 64
    for command in (["run", "-p", "Hi", "-n", "1"], ["tokenize"], ["inspect"],
                    ["perplexity", "-f", "-"], ["logits", "--tokens", "-", "-o", "/dev/null"]):
        done = sov.call(*command, "-m", model, "--model-sha256", wrong, stdin=b"1")
        assert done.returncode == 3 and digest.encode() in done.stderr and done.stdout == b""
    assert sov.call("inspect", model, "--model-sha256", "12ab").returncode == 2


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_perplexity(name):
    model = sov.model(name)
    reference = sov.golden_json("ppl.json")["models"][name]
    data = parsed("perplexity", "-m", model, "-f", sov.golden("ppl_text.txt"))
    expected = reference["reference"]["ppl_second_half"]
    assert data["n_predictions"] == 1020 and data["window"] == 512
    assert data["n_tokens"] == reference["n_tokens_text"]
    assert abs(data["perplexity"] / expected - 1) < 1e-3
    assert abs(np.exp(data["mean_nll"]) - data["perplexity"]) < 1e-6
    print(f"{name}: {data['perplexity']:.4f}, reference {expected:.4f}")


def test_perplexity_of_a_short_text():
    done = sov.call("perplexity", "-m", sov.model("smollm2"), "-f", "-", stdin=b"too short")
    assert done.returncode == 1 and b"512" in done.stderr


def test_bench():
    """Every combination is measured once, in order, and the rates follow from the times.

    Prompts are measured behind whole blocks of 16."""
    data = parsed("bench", "-m", sov.model("smollm2"), "-p", "3,0,20", "-n", "2", "-d", "0,17",
                  "-b", "1,3", "-t", "1,2", "-r", "3")
    assert data["file_bytes"] > 9e7 and data["isa"] in ("avx2", "avx512") and data["model"]
    expected = [(test, threads, depth, batch) for threads in (1, 2) for depth in (0, 17)
                for test, batch in (("pp3", 1), ("pp20", 1), ("tg2", 1), ("tg2", 3))]
    expected = [(test, threads, depth // 16 * 16 if test[:2] == "pp" else depth, batch)
                for test, threads, depth, batch in expected]
    keys = ("test", "threads", "depth", "batch")
    assert [tuple(row[key] for key in keys) for row in data["results"]] == expected
    for row in data["results"]:
        assert row["repeats"] == len(row["ns"]) == 3 and row["ns"] == sorted(row["ns"])
        tokens = int(row["test"][2:]) * row["batch"]
        for name, ns in zip(("fastest", "tokens_per_second", "slowest"), row["ns"]):
            assert row[name] == pytest.approx(tokens * 1e9 / ns, abs=1e-3)


def test_bench_text():
    model = sov.model("smollm2")
    lines = sov.succeed("bench", "-m", model, "-p", "5", "-n", "2", "-d", "0,3", "-b", "2", "-r",
                        "1", "-t", "1").stdout.decode().splitlines()
    assert lines[0].endswith("tokens/s, median of 1")
    assert lines[1].split() == ["test", "threads", "depth", "batch", "median", "slowest", "fastest"]
    assert [line.split()[:4] for line in lines[2:]] == [
        ["pp5", "1", "0", "1"], ["tg2", "1", "0", "2"],
        ["pp5", "1", "0", "1"], ["tg2", "1", "3", "2"]]
    nothing = parsed("bench", "-m", model, "-p", "0", "-n", "0")
    assert nothing["results"] == []
