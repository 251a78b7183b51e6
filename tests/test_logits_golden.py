# SPDX-License-Identifier: Apache-2.0
"""Logits of every position against the float64 reference rows, and greedy text against its
continuation. The KL divergence is taken over the 20 largest reference logits and one bucket for the
rest."""
import numpy as np
import pytest

import sov

MEAN_KL_MAX = 2e-5
KL_MAX = 2e-3
ARGMAX_SAME_MIN = 0.995
MARGIN = 0.05  # greedy text may differ from the reference where its two best logits are this close
MODELS = ["smollm2", "gemma3"]


def kl_over_top(row, logsumexp, ids, top_logits):
    """KL(reference || engine) in nats over the given ids and the rest."""
    row = row.astype(np.float64)
    own = row[ids] - (np.log(np.sum(np.exp(row - row.max()))) + row.max())
    reference = np.array(top_logits) - logsumexp
    p, q = np.exp(reference), np.exp(own)
    kl = float(np.sum(p * (reference - own)))
    rest_p, rest_q = max(1 - p.sum(), 0.0), max(1 - q.sum(), 1e-30)
    if rest_p > 1e-9:
        kl += rest_p * np.log(rest_p / rest_q)
    return kl


@pytest.mark.parametrize("name", MODELS)
def test_every_position(name, tmp_path):
    model = sov.model(name)
    data = sov.golden_json(f"public/{name}_rows.json")
    kls, same, positions = [], 0, 0
    for prompt in data["prompts"]:
        (tmp_path / "ids").write_text(" ".join(map(str, prompt["tokens"])))
        sov.succeed("logits", "-m", model, "--tokens", tmp_path / "ids", "--all", "-o",
                    tmp_path / "rows")
        rows = np.fromfile(tmp_path / "rows", dtype="<f4").reshape(len(prompt["tokens"]), -1)
        assert len(rows) == len(prompt["rows"])
        for row, reference in zip(rows, prompt["rows"]):
            ids = np.array(reference[1::2], dtype=int)
            kls.append(kl_over_top(row, reference[0], ids, reference[2::2]))
            same += int(row.argmax() == ids[0])
            positions += 1
    print(f"{name}: {positions} positions, mean KL {np.mean(kls):.2e}, max {np.max(kls):.2e}, "
          f"same argmax {same}/{positions}")
    assert positions > 100
    assert np.mean(kls) <= MEAN_KL_MAX
    assert np.max(kls) <= KL_MAX
    assert same / positions >= ARGMAX_SAME_MIN


@pytest.mark.parametrize("name", MODELS)
def test_last_row_alone_is_the_last_of_all(name, tmp_path):
    model = sov.model(name)
    prompt = sov.golden_json(f"public/{name}_logits.json")["prompts"][1]
    (tmp_path / "ids").write_text("\n".join(map(str, prompt["tokens"])))
    sov.succeed("logits", "-m", model, "--tokens", tmp_path / "ids", "--all", "-o", tmp_path / "all")
    sov.succeed("logits", "-m", model, "--tokens", tmp_path / "ids", "-o", tmp_path / "last")
    rows = np.fromfile(tmp_path / "all", dtype="<u4").reshape(len(prompt["tokens"]), -1)
    assert np.array_equal(np.fromfile(tmp_path / "last", dtype="<u4"), rows[-1])
    top = [i for i, _ in prompt["top20"]]
    assert np.argmax(rows[-1].view("<f4")) == top[0]


@pytest.mark.parametrize("name", MODELS)
def test_greedy_text(name, tmp_path):
    model = sov.model(name)
    compared = 0
    for prompt in sov.golden_json(f"public/{name}_logits.json")["prompts"]:
        (tmp_path / "ids").write_text(",".join(map(str, prompt["tokens"])))
        n = prompt["greedy"]["n"]
        answer = sov.run_json(model, "--tokens", tmp_path / "ids", "--greedy", "--ignore-eos",
                              "-n", n)
        assert answer["prompt_tokens"] == prompt["tokens"]
        assert len(answer["tokens"]) == n and answer["finish_reason"] == "length"
        for step, (own, reference) in enumerate(zip(answer["tokens"], prompt["greedy"]["tokens"])):
            if prompt["greedy"]["margin"][step] < MARGIN:
                break
            assert own == reference, f"{prompt['id']}: step {step}"
            compared += 1
    print(f"{name}: {compared} greedy steps compared")
    assert compared > 100
