# SPDX-License-Identifier: Apache-2.0
"""Model files, sound and hostile, through `sov inspect`: exit code 0, or 3 with the reason, the
thing it is about and its place; and never more than 64 MiB of memory. Then more files of the same
families, made here by tools/make_models.py."""
import fnmatch
import json
import os
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import sov

sys.path.insert(0, str(sov.ROOT / "tools"))
import make_models as mm  # noqa: E402

CASES = Path(os.environ.get("SOV_TEST_CASES", sov.ROOT.parent / "shared/cases"))
MEMORY_KIB_MAX = 64 * 1024
REFUSED = 3

# What the message of a refused file must say: the key, the tensor or the field, and where it is
# sure, the place.
MESSAGES = {
    "valid_split-00002-of-00002": "shard 2 of 2; open the first shard instead: "
                                  "valid_split-00001-of-00002.gguf",
    "h_empty": "0 bytes",
    "h_magic_short": "it has 3 bytes",
    "h_magic_bad": "not a GGUF file",
    "h_magic_reversed": "byte order",
    "h_big_endian": "byte order",
    "h_version_0": "version 0",
    "h_version_1": "version 1",
    "h_version_4": "version 4",
    "h_version_ffffffff": "version 4294967295",
    "h_cut_version": "it has 8 bytes",
    "h_cut_n_tensors": "it has 11 bytes",
    "h_cut_array_mid": "key tokenizer.ggml.tokens at byte",
    "h_cut_kv_end": "tensor 1 of 20 at byte",
    "h_cut_info_name": "tensor 3 of 20 at byte",
    "h_cut_info_*": "tensor blk.0.attn_q.weight at byte",
    "h_cut_data_mid": "tensor blk.1.attn_q.weight at byte",
    "h_cut_last_byte": "tensor output_norm.weight at byte",
    "h_cut_data_start": "data goes beyond the end of the file",
    "h_cut_infos_end": "data goes beyond the end of the file",
    "h_cut_*": "the file ends too soon",
    "h_n_kv_plus1": "at byte",
    "h_n_kv_*": "key count at byte 16",
    "h_n_tensors_*": "tensor count at byte 8",
    "h_key_len_*": "key 2 of 23 at byte 69: its name goes beyond the end",
    "h_string_len_*": "key general.name at byte 69",
    "h_array_*": "key x.odd at byte 116",
    "h_value_type_13": "key x.odd at byte 116: its value type is 13",
    "h_bool_2": "key tokenizer.ggml.add_bos_token at byte",
    "h_key_empty": "key 3 of 24 at byte 116: its name is empty",
    "h_key_twice": "key llama.block_count at byte 5759: given twice",
    "h_align_string": "key general.alignment at byte 5759: its type is string",
    "h_align_*": "key general.alignment at byte 5759: the alignment is",
    "h_no_arch": "key general.architecture is missing",
    "h_no_block_count": "key llama.block_count is missing",
    "h_no_embd": "key llama.embedding_length is missing",
    "h_no_head_count": "key llama.attention.head_count is missing",
    "h_no_tokens": "key tokenizer.ggml.tokens is missing",
    "h_no_tensors": "tensor token_embd.weight is missing",
    "h_arch_u32": "key general.architecture at byte 24: its type is u32",
    "h_arch_unknown": "llamax",
    "h_blocks_3": "tensor blk.2.",
    "h_blocks_neg": "-1",
    "h_blocks_*": "key llama.block_count at byte 190",
    "h_heads_0": "key llama.attention.head_count at byte",
    "h_heads_3": "llama.attention.head_count is 3",
    "h_kv_heads_0": "key llama.attention.head_count_kv at byte",
    "h_kv_heads_3": "attention.head_count_kv, which is 3",
    "h_embd_0": "key llama.embedding_length at byte",
    "h_embd_128": "128 (embedding_length)",
    "h_ffn_96": "96 (feed_forward_length)",
    "h_rope_15": "llama.rope.dimension_count is 15",
    "h_eps_nan": "key llama.attention.layer_norm_rms_epsilon at byte",
    "h_freq_base_0": "key llama.rope.freq_base at byte",
    "h_model_unknown": "zzz",
    "h_bos_300": "tokenizer.ggml.bos_token_id is 300",
    "h_eos_max": "tokenizer.ggml.eos_token_id is 4294967295",
    "h_tokens_u32": "key tokenizer.ggml.tokens at byte 602: its type is array of u32",
    "h_tokens_none": "key tokenizer.ggml.tokens at byte 602: it has 0 tokens",
    "h_tokens_301": "301",
    "h_types_299": "tokenizer.ggml.token_type has 299",
    "h_merge_unknown": "merge",
    "h_ndims_*": "tensor blk.0.attn_q.weight at byte 5870: it has",
    "h_dim*": "tensor blk.0.attn_q.weight at byte 5870",
    "h_row_not_block": "tensor blk.0.attn_q.weight at byte 5870: its rows of 33",
    "h_type_4": "tensor blk.0.attn_q.weight at byte 5870: its type is 4 ",
    "h_type_c8": "tensor blk.0.attn_q.weight at byte 5870: its type is 200 ",
    "h_type_ffffffff": "tensor blk.0.attn_q.weight at byte 5870: its type is 4294967295 ",
    "h_offset_plus4": "tensor blk.0.attn_q.weight at byte 5870: its data offset",
    "h_offset_all_0": "overlaps that of tensor token_embd.weight",
    "h_offset_*": "tensor output_norm.weight at byte 6874: its data goes beyond",
    "h_tensor_twice": "tensor blk.0.attn_k.weight at byte 6924: given twice",
    "h_without_token_embd": "tensor token_embd.weight is missing",
    "h_without_blk_1_ffn_down": "tensor blk.1.ffn_down.weight is missing",
    "h_without_output_norm": "tensor output_norm.weight is missing",
    "h_down_transposed": "tensor blk.0.ffn_down.weight at byte",
    "h_norm_half": "tensor output_norm.weight at byte 6874: its shape is 32",
    "h_nan_norm": "tensor output_norm.weight at byte 6874: value",
    "h_split_alone": "shard 1 of 2, alone",
}


def expected_message(name):
    """The entry of the name itself, else the first pattern that fits."""
    if name in MESSAGES:
        return MESSAGES[name]
    fitting = (text for pattern, text in MESSAGES.items() if fnmatch.fnmatch(name, pattern))
    return next(fitting, None)


# The launcher is a small process, because a child's peak memory counts that of its parent up to
# the moment when the program is started.
LAUNCHER = """
import os, sys
pid = os.fork()
if pid == 0:
    os.execv(sys.argv[2], sys.argv[2:])
_, status, usage = os.wait4(pid, 0)
print(usage.ru_maxrss, os.waitstatus_to_exitcode(status), file=open(int(sys.argv[1]), "w"))
"""


def inspect(path, *arguments):
    """(exit code, stderr, peak KiB) of `sov inspect PATH`."""
    if not sov.SOV.exists():
        pytest.skip(f"{sov.SOV} is not built")
    reader, writer = os.pipe()
    command = [sys.executable, "-S", "-E", "-c", LAUNCHER, str(writer), str(sov.SOV), "inspect",
               str(path), *arguments]
    done = subprocess.run(command, pass_fds=[writer], stdin=subprocess.DEVNULL, timeout=60,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    os.close(writer)
    with open(reader) as figures:
        peak, code = map(int, figures.read().split())
    assert (done.stdout == b"") == (code != 0), "a refused file prints nothing on stdout"
    return code, done.stderr.decode(errors="replace"), peak


def check_refused(path, message):
    code, error, peak = inspect(path)
    assert code == REFUSED, f"exit code {code}: {error}"
    assert message in error
    assert peak < MEMORY_KIB_MAX


def check_accepted(path):
    code, error, peak = inspect(path)
    assert code == 0, error
    assert peak < MEMORY_KIB_MAX


# --- the files of the folder ---

def manifest():
    path = CASES / "manifest.json"
    return json.loads(path.read_text()) if path.exists() else []


def test_cases_are_there():
    if not manifest():
        pytest.skip(f"no case files at {CASES}")
    assert len(manifest()) >= 129


@pytest.mark.parametrize("row", manifest(), ids=lambda row: row["file"])
def test_case(row):
    path = CASES / row["file"]
    if row["expected"] == "accept":
        check_accepted(path)
        return
    message = expected_message(path.stem)
    assert message is not None, "no message is expected of this file: add it to MESSAGES"
    check_refused(path, message)


# --- shards (A15) ---

@pytest.fixture
def shards(tmp_path):
    """Three shards of a tiny model."""
    first = mm.write_model(tmp_path / "model.gguf", mm.Spec(shards=3))
    return [Path(first.replace("-00001-", f"-{i:05}-")) for i in (1, 2, 3)]


def test_shards_are_joined(shards):
    check_accepted(shards[0])
    whole = json.loads(sov.succeed("inspect", shards[0], "--json", "--tensors").stdout)
    assert whole["shards"] == 3
    assert [t["shard"] for t in whole["tensors"]] == sorted(t["shard"] for t in whole["tensors"])
    assert {t["shard"] for t in whole["tensors"]} == {0, 1, 2}
    assert len(whole["tensors"]) == 2 + 2 * 9


def test_shard_missing(shards):
    shards[2].unlink()
    check_refused(shards[0], "shard 3 of 3: ")


def test_shards_exchanged(shards):
    shards[1].rename(shards[1].with_name("x"))
    shutil.copy(shards[2], shards[1])
    check_refused(shards[0], "shard 2 of 3: misnumbered")


def test_shard_of_another_model(shards, tmp_path):
    other = mm.write_model(tmp_path / "other.gguf", mm.Spec(shards=2))
    shutil.copy(other.replace("-00001-", "-00002-"), shards[1])
    check_refused(shards[0], "shard 2 of 3: misnumbered: it says that it is shard 2 of 2")


def test_shard_renamed(shards):
    renamed = shards[0].with_name("renamed.gguf")
    shutil.copy(shards[0], renamed)
    check_refused(renamed, "shard 1 of 3, alone")


@pytest.mark.parametrize("idx", [1, 2])
def test_later_shard_opened(shards, idx):
    check_refused(shards[idx], f"shard {idx + 1} of 3; open the first shard instead: "
                               "model-00001-of-00003.gguf")


def test_shard_cut(shards):
    data = shards[1].read_bytes()
    shards[1].write_bytes(data[:-33])
    check_refused(shards[0], "shard 2 of 3: tensor ")


# --- more of the same families ---

WIDE = dict(n_embd=256, n_ff=512, n_layer=1)


@pytest.mark.parametrize("kind", mm.TYPES)
def test_every_type(kind, tmp_path):
    spec = mm.Spec(type=kind, tied=False, biases=True, **WIDE)
    path = mm.write_model(tmp_path / "m.gguf", spec)
    check_accepted(path)
    whole = json.loads(sov.succeed("inspect", path, "--json", "--tensors").stdout)
    matrices = {t["type"] for t in whole["tensors"] if len(t["dims"]) == 2}
    assert matrices == {kind}


SOUND = {
    "mixed": mm.Spec(cycle=list(mm.TYPES), n_embd=256, n_ff=512, n_layer=3),
    "spm": mm.Spec(tokenizer="spm"),
    "odd heads": mm.Spec(n_head=9, n_head_kv=3, n_embd=288),
    "head_dim": mm.Spec(head_dim=32, rope_dim=16),
    "no kv heads": mm.Spec(n_head_kv=None),
    "alignment 8": mm.Spec(alignment=8),
    "alignment 65536": mm.Spec(alignment=65536),
    "version 2": mm.Spec(version=2),
    "divisors": mm.Spec(rope_freqs=[1.0] * 4 + [8.0] * 4),
    "linear": mm.Spec(rope_scaling={"type": "linear", "factor": 4.0}),
    "llama3": mm.Spec(rope_scaling={"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                    "high_freq_factor": 4.0, "original_context_length": 8192}),
    "F32 rows of 66": mm.Spec(type="F32", n_embd=66, n_head=3, n_head_kv=1, n_ff=50),
    "letters": mm.Spec(n_vocab=12, tokenizer="letters"),
    "gemma3": mm.Spec(arch="gemma3", head_dim=32, window=16, n_layer=7, tokenizer="spm"),
    "gemma3 pattern": mm.Spec(arch="gemma3", window=16, window_pattern=2),
    "gemma3 list": mm.Spec(arch="gemma3", window=16, window_pattern=[False, True],
                           rope_freq_base_swa=5000.0),
    "gemma3 no window": mm.Spec(arch="gemma3"),
    "qwen2": mm.Spec(arch="qwen2"),
    "qwen3": mm.Spec(arch="qwen3", head_dim=32),
}


@pytest.mark.parametrize("name", SOUND)
def test_sound(name, tmp_path):
    check_accepted(mm.write_model(tmp_path / "m.gguf", SOUND[name]))


UNSOUND = {
    "epsilon negative": (mm.Spec(rms_eps=-1e-5), "layer_norm_rms_epsilon at byte"),
    "epsilon infinite": (mm.Spec(rms_eps=float("inf")), "layer_norm_rms_epsilon at byte"),
    "epsilon 0": (mm.Spec(rms_eps=0.0), "layer_norm_rms_epsilon at byte"),
    "context 0": (mm.Spec(context=0), "llama.context_length at byte"),
    "base nan": (mm.Spec(rope_freq_base=float("nan")), "rope.freq_base at byte"),
    "base negative": (mm.Spec(rope_freq_base=-1e4), "rope.freq_base at byte"),
    "divisors of 7": (mm.Spec(rope_freqs=[1.0] * 7), "tensor rope_freqs.weight at byte"),
    "divisors of 9": (mm.Spec(rope_freqs=[1.0] * 9), "tensor rope_freqs.weight at byte"),
    "divisor 0": (mm.Spec(rope_freqs=[1.0] * 7 + [0.0]), "tensor rope_freqs.weight at byte"),
    "yarn": (mm.Spec(rope_scaling={"type": "yarn", "factor": 4.0}), "yarn"),
    "experts": (mm.Spec(extra_keys=[("llama.expert_count", mm.u32(8))]), "llama.expert_count"),
    "alignment u64": (mm.Spec(extra_keys=[("general.alignment", mm.Value(mm.U64, 32))]),
                      "key general.alignment at byte"),
    "vocab_size": (mm.Spec(extra_keys=[("llama.vocab_size", mm.u32(321))]), "llama.vocab_size"),
    "unknown outside": (mm.Spec(extra_keys=[("tokenizer.ggml.unknown_token_id", mm.u32(320))]),
                    "tokenizer.ggml.unknown_token_id is 320"),
    "odd head size": (mm.Spec(type="F32", n_embd=63, n_head=3, n_head_kv=3), "heads of 21"),
    "architecture": (mm.Spec(arch="gpt2"), "\"gpt2\""),
    "gemma3 list of 3": (mm.Spec(arch="gemma3", window=16, window_pattern=[True] * 3),
                         "key gemma3.attention.sliding_window_pattern at byte"),
    "gemma3 pattern 0": (mm.Spec(arch="gemma3", window=16, window_pattern=0),
                         "key gemma3.attention.sliding_window_pattern at byte"),
    "gemma3 local base": (mm.Spec(arch="gemma3", window=16, rope_freq_base_swa=-1.0),
                          "key gemma3.rope.freq_base_swa at byte"),
    "gemma3 divisors": (mm.Spec(arch="gemma3", rope_freqs=[1.0] * 8),
                        "tensor rope_freqs.weight at byte"),
    "qwen2 window": (mm.Spec(arch="qwen2", extra_keys=[("qwen2.attention.sliding_window",
                                                        mm.u32(64))]),
                     "key qwen2.attention.sliding_window at byte"),
    "qwen3 experts": (mm.Spec(arch="qwen3", extra_keys=[("qwen3.expert_count", mm.u32(8))]),
                      "key qwen3.expert_count at byte"),
}


@pytest.mark.parametrize("name", UNSOUND)
def test_unsound(name, tmp_path):
    spec, message = UNSOUND[name]
    check_refused(mm.write_model(tmp_path / "m.gguf", spec), message)


def test_unused_tensor(tmp_path):
    spec = mm.Spec()
    extra = mm.Tensor("blk.0.ffn_gate_inp.weight", (64, 8), "F32", lambda: [bytes(64 * 8 * 4)])
    mm.write_gguf(tmp_path / "m.gguf", mm.model_keys(spec), mm.model_tensors(spec) + [extra])
    check_refused(tmp_path / "m.gguf", "tensor blk.0.ffn_gate_inp.weight at byte")


@pytest.mark.parametrize("what,offset", [("tensor count", 8), ("key count", 16)])
def test_counts(what, offset, tmp_path):
    path = Path(mm.write_model(tmp_path / "m.gguf", mm.Spec()))
    data = bytearray(path.read_bytes())
    for count in (10**5, 2**20, 2**31, 2**32 + 1, 2**56 + 1, 2**61, 2**64 - 2):
        struct.pack_into("<Q", data, offset, count)
        path.write_bytes(data)
        check_refused(path, f"{what} at byte {offset}: ")


def test_duplicates_are_found_fast(tmp_path):
    """10^5 keys, the last one twice: less than a second."""
    keys = [(f"k.{i}", mm.Value(mm.U8, 0)) for i in range(10**5)]
    mm.write_gguf(tmp_path / "m.gguf", keys + [("k.99998", mm.Value(mm.U8, 1))], [])
    begin = time.monotonic()
    check_refused(tmp_path / "m.gguf", "key k.99998 at byte")
    assert time.monotonic() - begin < 1


def test_every_cut(tmp_path):
    """The smallest model, cut at 200 places: always refused, never a signal."""
    path = Path(mm.write_model(tmp_path / "m.gguf", mm.Spec(n_layer=1)))
    data = path.read_bytes()
    places = sorted({len(data) * i // 200 for i in range(200)} | {len(data) - 1})
    for place in places:
        path.write_bytes(data[:place])
        done = sov.call("inspect", path)
        assert done.returncode == REFUSED, f"{place}: {done.returncode} {done.stderr}"


def test_same_seed_same_bytes(tmp_path):
    for arch in mm.ARCHES:
        for name, seed in (("a", 1), ("b", 1), ("c", 2)):
            mm.write_model(tmp_path / name, mm.Spec(arch=arch, seed=seed, biases=True))
        a, b, c = ((tmp_path / name).read_bytes() for name in "abc")
        assert a == b and a != c


def test_command_line_makes_the_same(tmp_path):
    """The options of the command line are those of Spec."""
    options = ("--arch gemma3 --head-dim 32 --window 8 --window-pattern 1,0 --rope-freq-base 2e4 "
               "--rope-freq-base-swa 500 --n-vocab 40 --tokenizer letters --untied --type Q5_0 "
               "--types token_embd=Q8_0 --rope-scaling type=linear,factor=2 --qk-gain 0.5")
    spec = mm.Spec(arch="gemma3", head_dim=32, window=8, window_pattern=[True, False],
                   rope_freq_base=2e4, rope_freq_base_swa=500.0, n_vocab=40, tokenizer="letters",
                   tied=False, type="Q5_0", types={"token_embd": "Q8_0"}, qk_gain=0.5,
                   rope_scaling={"type": "linear", "factor": 2.0})
    subprocess.run([sys.executable, mm.__file__, *options.split(), "-o", tmp_path / "a"],
                   check=True, stdout=subprocess.DEVNULL)
    mm.write_model(tmp_path / "b", spec)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


# --- rope divisors against an independent computation (D3) ---

def rmsnorm(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def rope(x, divisors, base):
    """[n_tokens, n_head, head_dim], pairs (2i, 2i + 1)."""
    n, _, size = x.shape
    angles = np.arange(n)[:, None] * base ** (-2.0 * np.arange(size // 2) / size) / divisors
    c, s = np.cos(angles)[:, None], np.sin(angles)[:, None]
    even, odd = x[..., 0::2], x[..., 1::2]
    return np.stack([even * c - odd * s, even * s + odd * c], -1).reshape(x.shape)


def llama_logits(spec, tokens):
    """Logits [n_tokens, n_vocab] in f64 of a model whose tensors are all F32."""
    weights = {}
    for tensor in mm.model_tensors(spec):
        data = np.frombuffer(b"".join(bytes(c) for c in tensor.chunks()), dtype="<f4")
        weights[tensor.name] = data.astype(float).reshape(tensor.dims[::-1])
    n, size = len(tokens), spec.head_size()
    groups = spec.n_head // spec.n_head_kv
    divisors = weights.get("rope_freqs.weight", np.ones(size // 2))
    hidden = np.triu(np.full((n, n), -np.inf), 1)
    x = weights["token_embd.weight"][tokens]
    for i in range(spec.n_layer):
        w = {name[len(f"blk.{i}."):]: value for name, value in weights.items()
             if name.startswith(f"blk.{i}.")}
        h = rmsnorm(x, w["attn_norm.weight"], spec.rms_eps)
        q, k, v = ((h @ w[f"attn_{name}.weight"].T).reshape(n, -1, size) for name in "qkv")
        q, k = (rope(a, divisors, spec.rope_freq_base) for a in (q, k))
        k, v = (np.repeat(a, groups, axis=1) for a in (k, v))
        scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(size) + hidden
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        x = x + np.einsum("hij,jhd->ihd", p, v).reshape(n, -1) @ w["attn_output.weight"].T
        h = rmsnorm(x, w["ffn_norm.weight"], spec.rms_eps)
        gate = h @ w["ffn_gate.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ w["ffn_up.weight"].T)) @ w["ffn_down.weight"].T
    return rmsnorm(x, weights["output_norm.weight"], spec.rms_eps) @ weights["token_embd.weight"].T


def sov_logits(path, tokens, tmp_path):
    (tmp_path / "ids").write_text(" ".join(map(str, tokens)))
    sov.succeed("logits", "-m", path, "--tokens", tmp_path / "ids", "--all", "-o", tmp_path / "out")
    return np.fromfile(tmp_path / "out", dtype="<f4").reshape(len(tokens), -1)


def test_rope_divisors(tmp_path):
    tokens = [(7 * i * i + 3 * i) % 320 for i in range(40)]
    base = dict(type="F32", rope_freq_base=500.0)
    plain = mm.Spec(**base)
    divided = mm.Spec(rope_freqs=[1.0] * 4 + [8.0] * 4, **base)
    rows, errors = [], []
    for name, spec in (("plain", plain), ("divided", divided)):
        path = mm.write_model(tmp_path / f"{name}.gguf", spec)
        rows.append(sov_logits(path, tokens, tmp_path))
        errors.append(np.abs(rows[-1] - llama_logits(spec, tokens)).max())
    apart = np.abs(rows[0] - rows[1]).max(axis=1)
    print(f"largest error {max(errors):.1e}, plain and divided differ by up to {apart.max():.1e}")
    assert (rows[0][0] == rows[1][0]).all()  # nothing turns at position 0
    assert (apart[1:] > 0).all()
    # Activations are rounded to f16 (2^-12 of the value) at some ten steps of the path; with logits
    # up to 8.5 that is 0.002 a step.
    assert max(errors) < 0.02
    assert apart.max() > 5 * max(errors)  # so the comparison can tell the two apart


def test_rope_divisors_case(tmp_path):
    files = [CASES / "valid_q4_0.gguf", CASES / "valid_rope_freqs.gguf"]
    if not all(path.exists() for path in files):
        pytest.skip(f"no case files at {CASES}")
    a, b = (sov_logits(path, list(range(100, 140)), tmp_path) for path in files)
    assert (a[0] == b[0]).all()
    assert (a[1:] != b[1:]).any(axis=1).all()
