# SPDX-License-Identifier: Apache-2.0
"""Every operator of some layers, and the end of the network.

Two comparisons. Each operator alone: its own inputs, as traced, go through the operator's formula in
float64 with weights dequantised by another program (PyPI gguf), and what the engine computed must lie
within the operator's error contract (docs/contract.md). The whole: each tensor against the float64
trace of the reference model, by RMS error relative to the tensor's RMS; it grows along the network as
roundings to f16 (each 2.8e-4 relative, RMS) add up.

A trace is one prefill chunk, too short for Gemma's window of 512: a random model with a window of 16
shows local layers past theirs.
"""
import json
import sys
from dataclasses import dataclass

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize

import sov

sys.path.insert(0, str(sov.ROOT / "tools"))
import make_models as mm  # noqa: E402

F16 = 2.0 ** -11   # relative rounding of a normal half
TINY = 2.0 ** -24  # absolute rounding of a subnormal half
F32 = 2.0 ** -20   # generous for f32 chains of up to 2,000 terms: each adds 2^-24 relative
U = 2.0 ** -24     # unit roundoff of f32
GROUP = 256
RMS_MAX = 2e-3


@dataclass
class Shape:
    """What the formulas need to know of a model."""
    n_layer: int
    n_head: int
    n_kv: int
    dim: int
    eps: float
    base: float
    neox: bool = False
    base_local: float = None
    window: int = None  # of local layers
    pattern: int = 1    # the last of each so many layers is not local
    embed_scale: float = 1.0

    def is_local(self, layer):
        return self.window is not None and layer % self.pattern < self.pattern - 1


SMOLLM2 = Shape(n_layer=30, n_head=9, n_kv=3, dim=64, eps=1e-5, base=1e5)
GEMMA3 = Shape(n_layer=18, n_head=4, n_kv=1, dim=256, eps=1e-6, base=1e6, neox=True, base_local=1e4,
               window=512, pattern=6, embed_scale=np.sqrt(640))


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
            self.rows[layer, name] = data[begin:begin + int(n) * int(width)].reshape(int(n),
                                                                                     int(width))

    def __getitem__(self, key):
        return self.rows[str(key[0]), key[1]].astype(np.float64)

    def names(self, layer):
        return {name for number, name in self.rows if number == str(layer)}


class Weights:
    def __init__(self, path):
        self.tensors = {t.name: t for t in gguf.GGUFReader(path).tensors}

    def rows(self, name, rows):
        tensor = self.tensors[name]
        return dequantize(tensor.data[rows], tensor.tensor_type).astype(np.float64)

    def __getitem__(self, name):
        return self.rows(name, slice(None))


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


def rope(x, positions, base, dim, neox):
    n_pairs = dim // 2
    shape = (len(x), -1, 2, n_pairs) if neox else (len(x), -1, n_pairs, 2)
    pairs = x.reshape(shape)
    a, b = (pairs[:, :, 0], pairs[:, :, 1]) if neox else (pairs[..., 0], pairs[..., 1])
    angle = positions[:, None] * base ** (-2 * np.arange(n_pairs) / dim)
    c, s = np.cos(angle)[:, None], np.sin(angle)[:, None]
    y = np.stack([a * c - b * s, a * s + b * c], 2 if neox else 3)
    size = np.broadcast_to(np.abs(pairs).sum(axis=2 if neox else 3, keepdims=True), y.shape)
    return y.reshape(x.shape), F32 * size.reshape(x.shape)


def attention(q, k, v, shape, window):
    """softmax(q k) v. A score's f32 chain moves it by `moved`, a weight by a factor e^(2 moved)."""
    y, error = np.zeros_like(q), np.zeros_like(q)
    n_head, dim = shape.n_head, shape.dim
    for head in range(n_head):
        mine = slice(head * dim, (head + 1) * dim)
        group = head // (n_head // shape.n_kv)
        kv = slice(group * dim, (group + 1) * dim)
        for t in range(len(q)):
            seen = slice(0 if window is None else max(0, t - window + 1), t + 1)
            keys, values = k[seen, kv], v[seen, kv]
            scores = keys @ q[t, mine] / np.sqrt(dim)
            moved = F32 * (np.abs(keys) @ np.abs(q[t, mine])).max() / np.sqrt(dim)
            p = np.exp(scores - scores.max())
            p /= p.sum()
            y[t, mine] = p @ values
            error[t, mine] = (np.exp(2 * moved + F32) - 1 + F32) * (p @ np.abs(values))
    return y, error


def rmsnorm(x, weight, eps):
    """Of rows, or of heads that lie packed in rows."""
    heads = x.reshape(len(x), -1, len(weight))
    y = heads / np.sqrt((heads * heads).mean(axis=2, keepdims=True) + eps) * weight
    return y.reshape(x.shape), F32 * np.abs(y.reshape(x.shape))


def silu_mul(gate, up):
    y = gate / (1 + np.exp(-gate)) * up
    return y, F32 * np.abs(y)


def gelu_mul(gate, up):
    z = 2 * np.sqrt(2 / np.pi) * (gate + 0.044715 * gate ** 3)
    sigma = 1 / (1 + np.exp(-z))
    y = gate * sigma * up
    return y, (6 + 4 * np.abs(z) * (1 - sigma)) * U * np.abs(y)


def check(name, own, expected, error, report, stored_as_half=True):
    bound = error + (half(np.abs(expected) + error) if stored_as_half else 0)
    worst = float((np.abs(own - expected) / np.maximum(bound, 1e-300)).max())
    report.append(f"{name}: {worst:.3f} of the bound")
    assert worst <= 1, report[-1]


def check_operators(trace, w, shape, layer, report):
    """One layer, operator by operator, each on its own traced inputs."""
    t = {name: trace[layer, name] for name in trace.names(layer)}
    positions = np.arange(len(t["attn_q"]))
    local = shape.is_local(layer)
    has_post_norms = "attn_post_norm" in t
    last = "ffn_post_norm" if has_post_norms else "ffn_down"
    before = trace["-", "embed"] if layer == 0 else trace[layer - 1, last]
    checked = {"kv_write"}

    def tensor(name):
        return w[f"blk.{layer}.{name}.weight"].squeeze()

    def one(name, result, stored_as_half=True):
        checked.add(name)
        check(f"{layer} {name}", t[name], *result, report, stored_as_half)

    def added(name, source, norm, residual):
        """The gemm `name` of `source`, normed where the model does so, added to the residual."""
        product, error = gemm(tensor(name), t[source])
        if has_post_norms:
            one(name, (product, error), False)
            product, error = rmsnorm(t[name], tensor(norm[0]), shape.eps)
            name = norm[1]
        one(name, (residual + product, error + F32 * np.abs(residual)), False)

    one("attn_norm", rmsnorm(before, tensor("attn_norm"), shape.eps))
    for name in ("attn_q", "attn_k", "attn_v"):
        product, error = gemm(tensor(name), t["attn_norm"])
        bias = f"blk.{layer}.{name}.bias"
        one(name, (product + (w[bias] if bias in w.tensors else 0), error))
    for name in "qk":
        source = f"attn_{name}"
        if f"{source}_norm" in t:
            one(f"{source}_norm", rmsnorm(t[source], tensor(f"{source}_norm"), shape.eps))
            source = f"{source}_norm"
        one(f"rope_{name}", rope(t[source], positions, shape.base_local if local else shape.base,
                                 shape.dim, shape.neox))
    one("attention", attention(t["rope_q"], t["rope_k"], t["attn_v"], shape,
                               shape.window if local else None))
    added("attn_output", "attention", ("post_attention_norm", "attn_post_norm"), before)
    middle = t["attn_post_norm" if has_post_norms else "attn_output"]
    one("ffn_norm", rmsnorm(middle, tensor("ffn_norm"), shape.eps))
    for name in ("ffn_gate", "ffn_up"):
        one(name, gemm(tensor(name), t["ffn_norm"]))
    activation, formula = ("gelu_mul", gelu_mul) if has_post_norms else ("silu_mul", silu_mul)
    one(activation, formula(t["ffn_gate"], t["ffn_up"]))
    added("ffn_down", activation, ("post_ffw_norm", "ffn_post_norm"), middle)
    assert checked >= set(t) - {"quantize_q16"}, "an operator was not checked"


LOGITS_STEP = 32  # of a large vocabulary every so many rows are checked


def check_ends(trace, w, shape, tokens, report):
    """The embedding, the last norm and the logits."""
    embedded = w.rows("token_embd.weight", tokens) * shape.embed_scale
    check("embed", trace["-", "embed"], embedded, F32 * np.abs(embedded), report, False)
    last = shape.n_layer - 1
    name = "ffn_post_norm" if "ffn_post_norm" in trace.names(last) else "ffn_down"
    norm = rmsnorm(trace[last, name], w["output_norm.weight"], shape.eps)
    check("output_norm", trace["-", "output_norm"], *norm, report)
    output = "output.weight" if "output.weight" in w.tensors else "token_embd.weight"
    rows = slice(0, None, LOGITS_STEP if trace["-", "output"].shape[1] > 10000 else 1)
    logits, error = gemm(w.rows(output, rows), trace["-", "output_norm"])
    check("output", trace["-", "output"][:, rows], logits, error, report, False)


COMMON_NAMES = {
    "embd": ("-", "embed"), "l0.attn_norm": (0, "attn_norm"), "l0.q": (0, "attn_q"),
    "l0.k": (0, "attn_k"), "l0.v": (0, "attn_v"), "l0.q_rope": (0, "rope_q"),
    "l0.k_rope": (0, "rope_k"), "l0.attn": (0, "attention"), "l0.ffn_norm": (0, "ffn_norm"),
    "l0.gate": (0, "ffn_gate"), "l0.up": (0, "ffn_up"), "final_norm": ("-", "output_norm"),
    "logits": ("-", "output"),
}
# What is added to the residual is not kept by itself here: attn_out and down of SmolLM2, and what
# the post norms of Gemma give.
SMOLLM2_NAMES = {
    **COMMON_NAMES, "l0.ffn_inp": (0, "attn_output"), "l0.act_up": (0, "silu_mul"),
    "l0.out": (0, "ffn_down"), "last.out": (29, "ffn_down"),
}
GEMMA3_NAMES = {
    **COMMON_NAMES, "l0.q_norm": (0, "attn_q_norm"), "l0.k_norm": (0, "attn_k_norm"),
    "l0.attn_out": (0, "attn_output"), "l0.ffn_inp": (0, "attn_post_norm"),
    "l0.act_up": (0, "gelu_mul"), "l0.down": (0, "ffn_down"), "l0.out": (0, "ffn_post_norm"),
    "last.out": (17, "ffn_post_norm"),
}


def check_golden(trace, manifest, data, names, report):
    """The whole: tensors of the reference's trace, by their names."""
    compared = 0
    for tensor in manifest["tensors"]:
        if tensor["name"] not in names:
            continue
        golden = data[tensor["offset"] // 4:(tensor["offset"] + tensor["bytes"]) // 4]
        own = trace[names[tensor["name"]]][-tensor["shape"][0]:].reshape(-1)
        rms = float(np.sqrt(((own - golden) ** 2).mean() / (golden ** 2).mean()))
        report.append(f"{tensor['name']}: relative RMS error {rms:.2e}")
        assert rms <= RMS_MAX, report[-1]
        compared += 1
    assert compared == len(names)


@pytest.mark.parametrize("name,shape,layers,names", [
    ("smollm2", SMOLLM2, (0, 13, 29), SMOLLM2_NAMES),
    ("gemma3", GEMMA3, (0, 5, 10, 17), GEMMA3_NAMES),  # 5 and 17 are global
], ids=["smollm2", "gemma3"])
def test_model(name, shape, layers, names, tmp_path):
    model = sov.model(name)
    manifest = json.loads(sov.golden(f"{name}_trace.json").read_text())
    data = np.fromfile(sov.golden(f"{name}_trace.f32"), dtype="<f4").astype(np.float64)
    trace, weights, report = Trace(model, manifest["tokens"], tmp_path), Weights(model), []
    for layer in layers:
        check_operators(trace, weights, shape, layer, report)
    check_ends(trace, weights, shape, manifest["tokens"], report)
    check_golden(trace, manifest, data, names, report)
    print("\n".join(report))


RANDOM = dict(n_embd=96, n_ff=160, n_layer=3, n_head=6, n_head_kv=2, head_dim=32, type="Q8_0",
              rms_eps=1e-6)
RANDOM_SHAPE = dict(n_layer=3, n_head=6, n_kv=2, dim=32, eps=1e-6, base=1e4)
RANDOM_MODELS = {
    "llama": (mm.Spec(**RANDOM), Shape(**RANDOM_SHAPE)),
    "gemma3": (mm.Spec(arch="gemma3", window=16, window_pattern=2, rope_freq_base_swa=500.0,
                       **RANDOM),
               Shape(neox=True, base_local=500.0, window=16, pattern=2, embed_scale=np.sqrt(96),
                     **RANDOM_SHAPE)),
    "qwen2": (mm.Spec(arch="qwen2", **RANDOM), Shape(neox=True, **RANDOM_SHAPE)),
    "qwen3": (mm.Spec(arch="qwen3", **RANDOM), Shape(neox=True, **RANDOM_SHAPE)),
}


def trace_random(arch, folder):
    spec, shape = RANDOM_MODELS[arch]
    path = mm.write_model(folder / "model.gguf", spec)
    tokens = [(7 * i * i + 3 * i) % 256 for i in range(40)]
    return Trace(path, tokens, folder), Weights(path), shape, tokens


@pytest.mark.parametrize("arch", RANDOM_MODELS)
def test_random_model(arch, tmp_path):
    trace, weights, shape, tokens = trace_random(arch, tmp_path)
    report = []
    for layer in range(shape.n_layer):
        check_operators(trace, weights, shape, layer, report)
    check_ends(trace, weights, shape, tokens, report)
    print("\n".join(report))


@pytest.mark.parametrize("wrong", [{"window": 15}, {"window": 17}, {"pattern": 3},
                                   {"base_local": 501.0}, {"n_kv": 1}, {"neox": False}], ids=str)
def test_a_wrong_shape_shows(wrong, tmp_path):
    trace, weights, shape, _ = trace_random("gemma3", tmp_path)
    shape = Shape(**{**vars(shape), **wrong})
    with pytest.raises(AssertionError, match="of the bound"):
        for layer in range(shape.n_layer):
            check_operators(trace, weights, shape, layer, [])


def test_the_bound_would_show_a_mistake():
    """One element off by a thousandth breaks the check."""
    y = np.linspace(0.1, 1, 100).reshape(1, 100)
    wrong = y.copy()
    wrong[0, 50] += 1e-3
    check("no mistake", y, y, 0 * y, [])
    with pytest.raises(AssertionError):
        check("mistake", wrong, y, 0 * y, [])
