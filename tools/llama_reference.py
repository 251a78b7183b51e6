#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records what llama.cpp computes for tiny random models: the data of tests/test_llama_cpp.py.

    bench/build_peer.sh              # once: builds llama.cpp outside the repository
    tools/llama_reference.py         # writes tests/golden/llama_cpp.json and llama_cpp.npz
    tools/llama_reference.py --only gemma3   # shows, for some models, what would be written

The models are those of MODELS below, made by tools/make_models.py: every architecture with every
weight type, and the variants of shape, rope and window. llama.cpp rounds activations to 8 bits
before it multiplies quantised weights, so it does not get these files: their values are dequantised
by gguf-py and written as F32, and llama.cpp runs them with an f32 KV cache and no flash attention.
Thus what is compared is the meaning of the model, of every weight type and of every operator.

Needs numpy, gguf-py, a C compiler and a build of llama.cpp (--peer DIR, else $SOV_PEER_DIR, else
~/.cache/sov-rtx/peer).

llama_cpp.json: "peer" the version, "prompts" the token ids, "n_new", "step" of stored logits, and
for each model "sha256" of its file, "n_vocab", "greedy" and "margins" for each prompt.
llama_cpp.npz: for each model an i32 array [positions of all prompts, n_vocab]: logits / step.
"""
import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import make_models as mm

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests/golden"
PEER = "llama_cpp_python-0.3.36"
STEP = 1e-5  # logits are stored as multiples of it
N_NEW = 12
LETTERS = 63  # ids of the prompts: no special tokens
PROMPTS = [[int(b) % LETTERS for b in mm.Random(1, f"prompt {n}").bytes(n)] for n in (40, 23, 7)]

# K types need rows of 256. The window of gemma3 is passed by two of the three prompts. Rows of 67
# logits, and heads in groups of 1, 2, 3, 4 and 7, leave no kernel with round numbers only.
# The gains make logits and attention scores spread less than this program's roundings to f16 would
# need to reach the test's tolerance; a mistake still shows by a hundred times as much.
TINY = dict(n_embd=256, n_ff=256, n_vocab=67, context=512, tokenizer="letters", rms_eps=1e-6,
            embd_gain=1.0, qk_gain=0.5)
SHAPES = {
    "llama": dict(n_head=8, n_head_kv=2, tied=False, biases=True, **TINY),
    "gemma3": dict(arch="gemma3", n_layer=3, n_head=4, n_head_kv=2, head_dim=128, window=16,
                   window_pattern=2, rope_freq_base=1e6, tied=False, **TINY),
    "qwen2": dict(arch="qwen2", n_head=4, n_head_kv=1, rope_freq_base=1e6, **TINY),
    "qwen3": dict(arch="qwen3", n_head=6, n_head_kv=2, head_dim=128, rope_freq_base=1e6, **TINY),
}


def _variant(arch, **changes):
    return mm.Spec(**{**SHAPES[arch], **changes})


Q4_K_M = dict(type="Q4_K", types={"token_embd": "Q6_K", "output": "Q6_K", "ffn_down": "Q6_K",
                                  "attn_v": "Q5_K"})
MODELS = {f"{arch} {kind}": mm.Spec(type=kind, **shape)
          for arch, shape in SHAPES.items() for kind in mm.TYPES}
MODELS |= {
    "llama every type": _variant("llama", cycle=list(mm.TYPES), n_layer=4),
    "llama tied": _variant("llama", type="Q8_0", tied=True, biases=False),
    "llama 9 heads": _variant("llama", type="Q5_1", n_embd=288, n_head=9, n_head_kv=3),
    "llama heads of 50": _variant("llama", type="F16", n_embd=150, n_head=3, n_head_kv=None,
                                  n_ff=70),
    "llama spm": _variant("llama", type="Q4_0", n_embd=64, n_vocab=290, tokenizer="spm"),
    "llama divisors": _variant("llama", type="Q4_1", rope_freq_base=5e5,
                               rope_freqs=mm.llama3_divisors(5e5, 32, context=64)),
    "llama linear": _variant("llama", rope_scaling={"type": "linear", "factor": 4.0}, **Q4_K_M),
    "gemma3 tied": _variant("gemma3", type="Q8_0", tied=True),
    "gemma3 layer list": _variant("gemma3", window_pattern=[False, True, True], n_head=3,
                                  n_head_kv=1, head_dim=256, **Q4_K_M),
    "gemma3 linear": _variant("gemma3", rope_scaling={"type": "linear", "factor": 8.0},
                              rope_freq_base_swa=2e4, **Q4_K_M),
    "gemma3 no window": _variant("gemma3", type="Q5_0", window=None, window_pattern=None),
    "gemma3 partial rope": _variant("gemma3", type="Q4_0", rope_dim=96),
    "gemma3 wide window": _variant("gemma3", type="Q4_1", window=39),
    "qwen2 7 heads": _variant("qwen2", type="Q4_0", n_embd=224, n_head=7, tied=False),
    "qwen3 linear": _variant("qwen3", rope_scaling={"type": "linear", "factor": 2.0}, tied=False,
                             **Q4_K_M),
    "qwen3 heads of 80": _variant("qwen3", type="Q8_0", n_head=4, head_dim=80),
}


def as_f32(path, spec):
    """The same model with its values as F32 tensors."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    tensors = []
    for tensor in mm.model_tensors(spec):
        data = np.frombuffer(b"".join(bytes(c) for c in tensor.chunks()), dtype=np.uint8)
        kind = GGMLQuantizationType(mm.TYPES[tensor.type].number)
        values = dequantize(data.reshape(int(np.prod(tensor.dims[1:])), -1), kind)
        values = np.ascontiguousarray(values, dtype="<f4").tobytes()
        tensors.append(mm.Tensor(tensor.name, tensor.dims, "F32", lambda v=values: [v]))
    mm.write_gguf(path, mm.model_keys(spec), tensors)


def compile_program(peer, folder):
    source = peer / PEER / "vendor/llama.cpp"
    libraries = peer / "build/bin"
    if not (libraries / "libllama.so").exists():
        sys.exit(f"no {libraries}/libllama.so: run bench/build_peer.sh, or give --peer DIR")
    program = folder / "llama_reference"
    subprocess.run(["cc", "-O2", "-Wall", "-Wextra", "-o", program,
                    ROOT / "tools/llama_reference.c", f"-I{source}/include",
                    f"-I{source}/ggml/include", f"-L{libraries}", f"-Wl,-rpath,{libraries}",
                    "-lllama", "-lggml", "-lggml-base"], check=True)
    return program


def record(program, spec, folder):
    """(logits [positions, n_vocab], greedy tokens and margins [prompts, N_NEW], sha256)"""
    mm.write_model(folder / "model.gguf", spec)
    digest = hashlib.sha256((folder / "model.gguf").read_bytes()).hexdigest()
    as_f32(folder / "f32.gguf", spec)
    lines = "".join(" ".join(map(str, prompt)) + "\n" for prompt in PROMPTS)
    done = subprocess.run([program, folder / "f32.gguf", str(N_NEW)], input=lines.encode(),
                          stdout=subprocess.PIPE, check=True)
    words, at = np.frombuffer(done.stdout, dtype="<i4"), 0
    rows, greedy, margins = [], [], []
    for prompt in PROMPTS:
        n = len(prompt) * spec.n_vocab
        rows.append(words[at:at + n].view("<f4").reshape(len(prompt), -1))
        greedy.append(words[at + n:at + n + N_NEW])
        margins.append(words[at + n + N_NEW:at + n + 2 * N_NEW].view("<f4"))
        at += n + 2 * N_NEW
    assert at == len(words)
    return np.concatenate(rows), np.array(greedy), np.array(margins), digest


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    cache = Path("~/.cache/sov-rtx/peer").expanduser()
    parser.add_argument("--peer", type=Path, default=Path(os.environ.get("SOV_PEER_DIR", cache)))
    parser.add_argument("--only", help="models whose name has this in it; nothing is written")
    options = parser.parse_args()
    arrays, entries = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        program = compile_program(options.peer, folder)
        for name, spec in MODELS.items():
            if options.only is not None and options.only not in name:
                continue
            rows, greedy, margins, digest = record(program, spec, folder)
            assert np.isfinite(rows).all()
            print(f"{name:24} logits {rows.min():7.2f} to {rows.max():6.2f}, "
                  f"{len(np.unique(greedy)):2} different tokens", flush=True)
            arrays[name] = np.rint(rows.astype(np.float64) / STEP).astype("<i4")
            entries[name] = {"sha256": digest, "n_vocab": spec.n_vocab, "greedy": greedy.tolist(),
                             "margins": [[float(f"{m:.4g}") for m in row] for row in margins]}
    if options.only is None:
        GOLDEN.mkdir(exist_ok=True)
        np.savez_compressed(GOLDEN / "llama_cpp.npz", **arrays)
        text = json.dumps({"peer": PEER, "prompts": PROMPTS, "n_new": N_NEW, "step": STEP,
                           "models": entries}, indent=0)
        (GOLDEN / "llama_cpp.json").write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
