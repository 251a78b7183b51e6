# SPDX-License-Identifier: Apache-2.0
"""Every operator of layer 0, and the end of the network.

Two comparisons. Each operator alone: its own inputs, as traced, go through the operator's formula in
float64 with weights dequantised by another program (PyPI gguf), and what the engine computed must lie
within the operator's error contract (docs/contract.md). The whole: each tensor against the float64
trace of the reference model, by RMS error relative to the tensor's RMS; it grows along the network as
roundings to f16 (each 2.8e-4 relative, RMS) add up.
"""
import json

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize

import sov

F16 = 2.0 ** -11   # relative rounding of a normal half
TINY = 2.0 ** -24  # absolute rounding of a subnormal half
F32 = 2.0 ** -20   # generous for f32 chains of up to 2,000 terms: each adds 2^-24 relative
GROUP = 256
RMS_MAX = 2e-3


class Trace:
    def __init__(self, model, tokens, folder):
        (folder / "ids").write_text(" ".join(map(str, tokens)))
        index = sov.succeed("trace", "-m", model, "--tokens", folder / "ids", "-o",
                            folder / "rows").stdout.decode()
        data = np.fromfile(folder / "rows", dtype="<f4")
        self.rows = {}
        for line in index.splitlines():
            layer, name, n, width, offset = line.split()
            begin = int(offset) // 4
            self.rows[layer, name] = data[begin:begin + int(n) * int(width)].reshape(
                int(n), int(width)).astype(np.float64)

    def __getitem__(self, key):
        return self.rows[str(key[0]), key[1]]


class Weights:
    def __init__(self, path):
        self.tensors = {t.name: t for t in gguf.GGUFReader(path).tensors}

    def __getitem__(self, name):
        tensor = self.tensors[name]
        return dequantize(tensor.data, tensor.tensor_type).astype(np.float64)


def half(y):
    return np.abs(y) * F16 + TINY


def gemm(weight, x):
    """The product and its error: x is rounded to 16 bits per group of 256; the sum is f32."""
    error = np.zeros((x.shape[0], weight.shape[0]))
    for begin in range(0, x.shape[1], GROUP):
        part = slice(begin, begin + GROUP)
        step = np.abs(x[:, part]).max(axis=1, keepdims=True) / 32767
        error += (0.51 * step + F32 * np.abs(x[:, part])) @ np.abs(weight[:, part]).T
    return x @ weight.T, error


def rope(x, positions, base, dim):
    pairs = x.reshape(len(x), -1, dim // 2, 2)
    angle = positions[:, None] * base ** (-2 * np.arange(dim // 2) / dim)
    c, s = np.cos(angle)[:, None], np.sin(angle)[:, None]
    y = np.stack([pairs[..., 0] * c - pairs[..., 1] * s, pairs[..., 0] * s + pairs[..., 1] * c], -1)
    size = np.abs(pairs).sum(axis=-1, keepdims=True).repeat(2, axis=-1)
    return y.reshape(x.shape), F32 * size.reshape(x.shape)


def attention(q, k, v, n_head, n_kv, dim):
    """softmax(q k) v. A score's f32 chain moves it by `moved`, a weight by a factor e^(2 moved)."""
    y, error = np.zeros_like(q), np.zeros_like(q)
    for head in range(n_head):
        mine = slice(head * dim, (head + 1) * dim)
        kv = slice(head // (n_head // n_kv) * dim, (head // (n_head // n_kv) + 1) * dim)
        for t in range(len(q)):
            keys, values = k[:t + 1, kv], v[:t + 1, kv]
            scores = keys @ q[t, mine] / np.sqrt(dim)
            moved = F32 * (np.abs(keys) @ np.abs(q[t, mine])).max() / np.sqrt(dim)
            p = np.exp(scores - scores.max())
            p /= p.sum()
            y[t, mine] = p @ values
            error[t, mine] = (np.exp(2 * moved + F32) - 1 + F32) * (p @ np.abs(values))
    return y, error


def rmsnorm(x, weight, eps):
    y = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + eps) * weight
    return y, F32 * np.abs(y)


def silu_mul(gate, up):
    y = gate / (1 + np.exp(-gate)) * up
    return y, F32 * np.abs(y)


def check(name, own, expected, error, report, stored_as_half=True):
    bound = error + (half(np.abs(expected) + error) if stored_as_half else 0)
    worst = float((np.abs(own - expected) / np.maximum(bound, 1e-300)).max())
    report.append(f"{name}: {worst:.3f} of the bound")
    assert worst <= 1, report[-1]


def check_operators(trace, w, layer, positions, report):
    """Layer `layer` of SmolLM2, operator by operator, each on its own traced inputs."""
    n_head, n_kv, dim, base, eps = 9, 3, 64, 1e5, 1e-5
    t = {name: trace[layer, name] for name in (
        "attn_norm", "attn_q", "attn_k", "attn_v", "rope_q", "rope_k", "attention", "attn_output",
        "ffn_norm", "ffn_gate", "ffn_up", "silu_mul", "ffn_down")}
    before = trace["-", "embed"] if layer == 0 else trace[layer - 1, "ffn_down"]
    tensor = {n: w[f"blk.{layer}.{n}.weight"] for n in (
        "attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up",
        "ffn_down")}
    check("attn_norm", t["attn_norm"], *rmsnorm(before, tensor["attn_norm"], eps), report)
    for name in ("attn_q", "attn_k", "attn_v"):
        check(name, t[name], *gemm(tensor[name], t["attn_norm"]), report)
    for name in "qk":
        check(f"rope_{name}", t[f"rope_{name}"], *rope(t[f"attn_{name}"], positions, base, dim),
              report)
    check("attention", t["attention"],
          *attention(t["rope_q"], t["rope_k"], t["attn_v"], n_head, n_kv, dim), report)
    check("ffn_norm", t["ffn_norm"], *rmsnorm(t["attn_output"], tensor["ffn_norm"], eps), report)
    for name in ("ffn_gate", "ffn_up"):
        check(name, t[name], *gemm(tensor[name], t["ffn_norm"]), report)
    check("silu_mul", t["silu_mul"], *silu_mul(t["ffn_gate"], t["ffn_up"]), report)
    for name, x, residual in (("attn_output", "attention", before),
                              ("ffn_down", "silu_mul", t["attn_output"])):
        product, error = gemm(tensor[name], t[x])
        check(name, t[name], residual + product, error + F32 * np.abs(residual), report, False)


GOLDEN_NAMES = {
    "embd": ("-", "embed"), "l0.attn_norm": (0, "attn_norm"), "l0.q": (0, "attn_q"),
    "l0.k": (0, "attn_k"), "l0.v": (0, "attn_v"), "l0.q_rope": (0, "rope_q"),
    "l0.k_rope": (0, "rope_k"), "l0.attn": (0, "attention"), "l0.ffn_inp": (0, "attn_output"),
    "l0.ffn_norm": (0, "ffn_norm"), "l0.gate": (0, "ffn_gate"), "l0.up": (0, "ffn_up"),
    "l0.act_up": (0, "silu_mul"), "l0.out": (0, "ffn_down"), "last.out": (29, "ffn_down"),
    "final_norm": ("-", "output_norm"), "logits": ("-", "output"),
}


def test_smollm2(tmp_path):
    model = sov.model("smollm2")
    manifest = json.loads(sov.golden("smollm2_trace.json").read_text())
    data = np.fromfile(sov.golden("smollm2_trace.f32"), dtype="<f4").astype(np.float64)
    trace, weights, report = Trace(model, manifest["tokens"], tmp_path), Weights(model), []
    positions = np.arange(len(manifest["tokens"]))
    for layer in (0, 13, 29):
        check_operators(trace, weights, layer, positions, report)
    norm = rmsnorm(trace[29, "ffn_down"], weights["output_norm.weight"], 1e-5)
    check("output_norm", trace["-", "output_norm"], *norm, report)
    logits, error = gemm(weights["token_embd.weight"], trace["-", "output_norm"])
    check("output", trace["-", "output"], logits, error, report, False)
    compared = 0
    for tensor in manifest["tensors"]:
        if tensor["name"] not in GOLDEN_NAMES:  # attn_out and down live inside the residual here
            continue
        golden = data[tensor["offset"] // 4:(tensor["offset"] + tensor["bytes"]) // 4]
        own = trace[GOLDEN_NAMES[tensor["name"]]].reshape(-1)
        rms = float(np.sqrt(((own - golden) ** 2).mean() / (golden ** 2).mean()))
        report.append(f"{tensor['name']}: relative RMS error {rms:.2e}")
        assert rms <= RMS_MAX, report[-1]
        compared += 1
    assert compared == len(GOLDEN_NAMES)
    print("\n".join(report))


def test_the_bound_would_show_a_mistake():
    """One element off by a thousandth breaks the check."""
    y = np.linspace(0.1, 1, 100).reshape(1, 100)
    wrong = y.copy()
    wrong[0, 50] += 1e-3
    check("no mistake", y, y, 0 * y, [])
    with pytest.raises(AssertionError):
        check("mistake", wrong, y, 0 * y, [])
