#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes GGUF models with random weights: tiny ones for tests, big ones for benchmarks.

    tools/make_models.py -o tiny.gguf                       # 2 layers, n_embd 64, Q4_0
    tools/make_models.py -o m.gguf --type Q6_K --types token_embd=Q8_0,ffn_down=F16 \\
        --n-embd 256 --n-ff 512 --untied --biases --rope-freqs llama3
    tools/make_models.py -o m.gguf --preset 1b --type Q4_K  # the shape of a 1B model, streamed
    tools/make_models.py -o m.gguf --preset bench-1b --type Q8_0  # of bench/bench_cpu.py
    tools/make_models.py -o m.gguf --shards 3               # m-00001-of-00003.gguf, ...
    tools/make_models.py -o m.gguf --arch gemma3 --head-dim 32 --window 16 --window-pattern 2
    tools/make_models.py -o m.gguf --arch qwen3 --head-dim 32 --n-vocab 67 --tokenizer letters

The same options and seed give the same bytes on every machine: randomness comes from raw PCG64
output, one stream for each tensor (keyed by seed and tensor name), and only exact arithmetic is
done on it. So a tensor does not change when another option does.

As a module: Spec, write_model(path, spec), and one level below: model_keys, model_tensors,
write_gguf, random_rows. Keys are (name, Value) pairs; Value pairs a GGUF type with a Python value.
"""
import argparse
import dataclasses
import hashlib
import itertools
import math
import struct
import sys
from dataclasses import dataclass, field

import numpy as np

# --- GGUF ---

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_FORMATS = {U8: "<B", I8: "<b", U16: "<H", I16: "<h", U32: "<I", I32: "<i", F32: "<f",
            BOOL: "<B", U64: "<Q", I64: "<q", F64: "<d"}
_DTYPES = {U8: "u1", I8: "i1", U16: "<u2", I16: "<i2", U32: "<u4", I32: "<i4", F32: "<f4",
           BOOL: "u1", U64: "<u8", I64: "<i8", F64: "<f8"}


@dataclass
class Value:
    """A key's value. `element` is set for arrays, and `value` is then a sequence."""
    type: int
    value: object
    element: int = None


def u32(value):
    return Value(U32, value)


def f32(value):
    return Value(F32, value)


def boolean(value):
    return Value(BOOL, value)


def string(value):
    return Value(STRING, value)


def array(element, values):
    return Value(ARRAY, values, element)


def _string_bytes(text):
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(data)) + data


def _value_bytes(value):
    if value.type == STRING:
        return _string_bytes(value.value)
    if value.type != ARRAY:
        return struct.pack(_FORMATS[value.type], value.value)
    head = struct.pack("<IQ", value.element, len(value.value))
    if value.element == STRING:
        return head + b"".join(map(_string_bytes, value.value))
    return head + np.asarray(value.value, dtype=_DTYPES[value.element]).tobytes()


@dataclass
class Type:
    """A tensor type: its GGUF number and its blocks. The K types have blocks of 256."""
    number: int
    elements: int
    bytes: int


TYPES = {
    "F32": Type(0, 1, 4), "F16": Type(1, 1, 2), "Q4_0": Type(2, 32, 18), "Q4_1": Type(3, 32, 20),
    "Q5_0": Type(6, 32, 22), "Q5_1": Type(7, 32, 24), "Q8_0": Type(8, 32, 34),
    "Q2_K": Type(10, 256, 84), "Q3_K": Type(11, 256, 110), "Q4_K": Type(12, 256, 144),
    "Q5_K": Type(13, 256, 176), "Q6_K": Type(14, 256, 210), "BF16": Type(30, 1, 2),
}


@dataclass
class Tensor:
    """`dims[0]` is the row length. `chunks()` yields the data as bytes-like pieces."""
    name: str
    dims: tuple
    type: str
    chunks: object

    def n_bytes(self):
        kind = TYPES[self.type]
        assert self.dims[0] % kind.elements == 0, f"{self.name}: rows are no whole blocks"
        rows = int(np.prod(self.dims[1:], dtype=np.int64))
        return self.dims[0] // kind.elements * kind.bytes * rows


def _pad(n, alignment):
    return -n % alignment


def write_gguf(path, keys, tensors, alignment=32, version=3):
    """Writes one file. The key general.alignment is added when the alignment is not 32."""
    if alignment != 32:
        keys = keys + [("general.alignment", u32(alignment))]
    with open(path, "wb") as out:
        out.write(b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys)))
        for name, value in keys:
            out.write(_string_bytes(name) + struct.pack("<I", value.type) + _value_bytes(value))
        offset = 0
        for tensor in tensors:
            out.write(_string_bytes(tensor.name) + struct.pack("<I", len(tensor.dims)))
            out.write(struct.pack(f"<{len(tensor.dims)}Q", *tensor.dims))
            out.write(struct.pack("<IQ", TYPES[tensor.type].number, offset))
            offset += tensor.n_bytes() + _pad(tensor.n_bytes(), alignment)
        out.write(bytes(_pad(out.tell(), alignment)))
        for tensor in tensors:
            begin = out.tell()
            for chunk in tensor.chunks():
                out.write(chunk)
            assert out.tell() - begin == tensor.n_bytes(), tensor.name
            out.write(bytes(_pad(tensor.n_bytes(), alignment)))


def write_shards(path, keys, tensors, n_shards, alignment=32):
    """Writes path-00001-of-0000N.gguf and so on; gives back the names. `path` ends in .gguf."""
    assert path.endswith(".gguf")
    names = [f"{path[:-5]}-{i + 1:05}-of-{n_shards:05}.gguf" for i in range(n_shards)]
    for i, name in enumerate(names):
        begin, end = (len(tensors) * j // n_shards for j in (i, i + 1))
        split = [("split.no", Value(U16, i)), ("split.count", Value(U16, n_shards)),
                 ("split.tensors.count", Value(I32, len(tensors)))]
        write_gguf(name, (keys if i == 0 else []) + split, tensors[begin:end], alignment)
    return names


# --- random weights ---

class Random:
    """A stream of raw random bits for one purpose."""

    def __init__(self, seed, purpose):
        digest = hashlib.sha256(f"{seed}:{purpose}".encode()).digest()
        self.bits = np.random.PCG64(int.from_bytes(digest[:16], "little"))

    def bytes(self, n):
        return self.bits.random_raw(-(-n // 8)).astype("<u8").view(np.uint8)[:n]

    def uniform(self, n):
        """[0, 1) in steps of 2^-32."""
        return self.bytes(4 * n).view("<u4") * 2.0 ** -32

    def bell(self, n):
        """Mean 0, variance 1, within [-3.5, 3.5]: a sum of four uniforms."""
        return (self.uniform(4 * n).reshape(n, 4).sum(axis=1) - 2) * math.sqrt(3)


def _spread(levels, offset=0):
    """Root mean square of a uniform choice of range(levels) + offset."""
    values = np.arange(levels) + offset
    return float(np.sqrt(np.mean(values.astype(float) ** 2)))


def _halves(random, n, scale, signed):
    """[n, 2] bytes of f16 scales: 0.5 to 1.5 times `scale`, of either sign when `signed`."""
    values = scale * (0.5 + random.uniform(n))
    if signed:
        values = np.where(random.bytes(n) & 1, values, -values)
    return values.astype("<f2").reshape(n, 1).view(np.uint8)


def _block_fields(kind):
    """Per type: (rms of a weight per unit of d, d has a sign, factor of the second scale or None,
    field order). "d" and "m" are f16 scales; a number is a run of that many random bytes."""
    # With a minimum, the second scale is chosen so that the weights have a mean near 0.
    k_scales = _spread(64)  # 6-bit block scales, all equally likely
    return {
        "Q4_0": (_spread(16, -8), True, None, ["d", 16]),
        "Q4_1": (_spread(16, -7.5), False, -7.5, ["d", "m", 16]),
        "Q5_0": (_spread(32, -16), True, None, ["d", 4, 16]),
        "Q5_1": (_spread(32, -15.5), False, -15.5, ["d", "m", 4, 16]),
        "Q8_0": (_spread(256, -128), True, None, ["d", 32]),
        "Q2_K": (_spread(16) * _spread(4), False, 1.5, [16, 64, "d", "m"]),
        "Q3_K": (_spread(64, -32) * _spread(8, -4), True, None, [32, 64, 12, "d"]),
        "Q4_K": (k_scales * _spread(16), False, 7.5, ["d", "m", 12, 128]),
        "Q5_K": (k_scales * _spread(32), False, 15.5, ["d", "m", 12, 32, 128]),
        "Q6_K": (_spread(256, -128) * _spread(64, -32), True, None, [128, 64, 16, "d"]),
    }[kind]


def random_rows(random, kind, n_rows, k, sigma):
    """[n_rows, row bytes] of random weights of a type; their root mean square is about `sigma`.
    Every bit pattern of the integer fields occurs."""
    if kind in ("F32", "F16", "BF16"):
        values = (random.bell(n_rows * k) * sigma).astype("<f4")
        if kind == "F16":
            values = values.astype("<f2")
        elif kind == "BF16":
            values = (values.view("<u4") >> 16).astype("<u2")
        return values.view(np.uint8).reshape(n_rows, -1)
    info = TYPES[kind]
    n = n_rows * (k // info.elements)
    rms, signed, second, fields = _block_fields(kind)
    columns = []
    for item in fields:
        if item == "d":
            columns.append(_halves(random, n, sigma / rms, signed))
        elif item == "m":
            columns.append(_halves(random, n, sigma / rms * second, False))
        else:
            columns.append(random.bytes(n * item).reshape(n, item))
    blocks = np.concatenate(columns, axis=1)
    assert blocks.shape[1] == info.bytes
    return blocks.reshape(n_rows, -1)


# --- vocabularies ---

def _byte_characters():
    """The character that stands for each byte in byte-level BPE: itself where it prints, else one
    from U+0100 on."""
    printing = set(range(0x21, 0x7F)) | set(range(0xA1, 0xAD)) | set(range(0xAE, 0x100))
    others = itertools.count(0x100)
    return [chr(b) if b in printing else chr(next(others)) for b in range(256)]


SPECIALS = ["<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>"]


def _byte_level_keys(tokens, merges):
    """`tokens` and then the special ones."""
    first = len(tokens)
    return [
        ("tokenizer.ggml.model", string("gpt2")),
        ("tokenizer.ggml.pre", string("gpt-2")),
        ("tokenizer.ggml.tokens", array(STRING, tokens + SPECIALS)),
        ("tokenizer.ggml.token_type", array(I32, [1] * first + [3] * len(SPECIALS))),
        ("tokenizer.ggml.merges", array(STRING, merges)),
        ("tokenizer.ggml.bos_token_id", u32(first)),
        ("tokenizer.ggml.eos_token_id", u32(first + 1)),
        ("tokenizer.ggml.eot_token_id", u32(first + 3)),
        ("tokenizer.ggml.add_bos_token", boolean(False)),
    ]


def letters_keys(n_vocab, seed):
    """The smallest vocabularies: single bytes from the blank on, no merges (text outside these
    bytes has no token), then the special tokens."""
    n_letters = n_vocab - len(SPECIALS)
    assert 1 <= n_letters <= 224, "a vocabulary of letters has 5 to 228 tokens"
    return _byte_level_keys(_byte_characters()[32:32 + n_letters], [])


def bpe_keys(n_vocab, seed):
    """256 bytes, then one token for each merge, then the special tokens."""
    n_merges = n_vocab - 256 - len(SPECIALS)
    assert n_merges >= 0, f"a BPE vocabulary has at least {256 + len(SPECIALS)} tokens"
    characters = _byte_characters()
    tokens = list(characters)
    known = set(tokens)
    # A few merges that real text meets, then random ones of short tokens.
    wanted = [" t", "he", " a", "in", " the", "er", "on", "re", "at", "ll", "  "]
    merges = []

    def add(left, right):
        if len(merges) < n_merges and left in known and right in known \
                and left + right not in known:
            merges.append(f"{left} {right}")
            tokens.append(left + right)
            known.add(left + right)

    for text in wanted:
        spelled = "".join(characters[b] for b in text.encode())
        add(spelled[0], spelled[1:])
    letters = [characters[b] for b in b" etaoinshrdlucmfwypvbgkjqxz"]
    random = Random(seed, "merges")
    while len(merges) < n_merges:
        draws = random.bytes(8192).view("<u4")
        for a, b in zip(draws[0::2].tolist(), draws[1::2].tolist()):
            left = tokens[256 + a % len(merges)] if merges and a & 0x80000000 else \
                letters[a % len(letters)]
            right = letters[b % len(letters)]
            if len(left) < 12:
                add(left, right)
    return _byte_level_keys(tokens, merges)


def spm_keys(n_vocab, seed):
    """<unk>, <s>, </s>, 256 byte tokens, then pieces with falling scores."""
    pieces = ["\u2581"] + list("etaoinshrdlucmfwypvbgkjqxz.,")
    n_pieces = n_vocab - 3 - 256
    assert n_pieces >= len(pieces), f"an SPM vocabulary has at least {3 + 256 + len(pieces)} tokens"
    known = set(pieces)
    random = Random(seed, "pieces")
    while len(pieces) < n_pieces:
        for a, b in zip(*[iter(random.bytes(8192).view("<u4").tolist())] * 2):
            piece = pieces[a % len(pieces)] + pieces[b % 29]
            if len(piece) < 10 and piece not in known and len(pieces) < n_pieces:
                pieces.append(piece)
                known.add(piece)
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] + pieces
    scores = [0.0] * 259 + [-float(len(pieces) - i) for i in range(len(pieces))]
    return [
        ("tokenizer.ggml.model", string("llama")),
        ("tokenizer.ggml.tokens", array(STRING, tokens)),
        ("tokenizer.ggml.scores", array(F32, scores)),
        ("tokenizer.ggml.token_type", array(I32, [2, 3, 3] + [6] * 256 + [1] * len(pieces))),
        ("tokenizer.ggml.bos_token_id", u32(1)),
        ("tokenizer.ggml.eos_token_id", u32(2)),
        ("tokenizer.ggml.unknown_token_id", u32(0)),
        ("tokenizer.ggml.add_bos_token", boolean(True)),
        ("tokenizer.ggml.add_space_prefix", boolean(True)),
    ]


# --- models ---

ROLES = ["token_embd", "output", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up",
         "ffn_down"]


@dataclass
class Arch:
    """What the layers of an architecture have beyond those of llama."""
    qk_norms: bool = False    # of the heads of q and k
    post_norms: bool = False  # of what attention and ffn add to the residual
    qkv_biases: bool = False  # always; llama has them when asked for
    window: bool = False      # local layers


# An unknown architecture is written like llama: for tests of its refusal.
ARCHES = {"llama": Arch(), "gemma3": Arch(qk_norms=True, post_norms=True, window=True),
          "qwen2": Arch(qkv_biases=True), "qwen3": Arch(qk_norms=True)}


@dataclass
class Spec:
    """What write_model writes. None means: the default of the format, the key is left out."""
    arch: str = "llama"
    n_layer: int = 2
    n_embd: int = 64
    n_head: int = 4
    n_head_kv: int = 2         # None: as many as n_head
    head_dim: int = None       # else attention.key_length
    rope_dim: int = None       # else rope.dimension_count
    n_ff: int = 128
    n_vocab: int = 320
    context: int = 512
    tokenizer: str = "bpe"     # or "spm", or "letters" (5 to 228 tokens)
    type: str = "Q4_0"         # of all matrices,
    types: dict = field(default_factory=dict)  # but these roles
    cycle: list = None         # or: each matrix takes the next type of this list
    tied: bool = True          # no output.weight
    biases: bool = False       # of q, k, v and (llama) the attention's output
    window: int = None         # gemma3: attention.sliding_window; its local layers follow from
    window_pattern: object = None  # a number (the last of each so many layers is global), or a
                                   # list of booleans (local), or the default
    rope_freq_base_swa: float = None  # gemma3: of local layers
    rope_freq_base: float = 10000.0
    rope_freqs: object = None  # a tensor of divisors: "llama3", or a list of rope_dim / 2 numbers
    rope_scaling: dict = field(default_factory=dict)  # {"type": "linear", "factor": 4.0}
    rms_eps: float = 1e-5
    embd_gain: float = 2.0     # norm of a row of token_embd and output: spread of logits
    qk_gain: float = 1.0       # norm of a row of attn_q and attn_k: spread of attention scores
    extra_keys: list = field(default_factory=list)
    alignment: int = 32
    version: int = 3
    shards: int = 1
    seed: int = 1

    def head_size(self):
        return self.head_dim or self.n_embd // self.n_head

    def rope_size(self):
        return self.rope_dim or self.head_size()

    def features(self):
        return ARCHES.get(self.arch, ARCHES["llama"])


PRESETS = {
    "tiny": {},
    "135m": dict(n_layer=30, n_embd=576, n_head=9, n_head_kv=3, n_ff=1536, n_vocab=49152,
                 context=8192, type="Q4_1", types={"token_embd": "Q8_0"}),
    "1b": dict(n_layer=16, n_embd=2048, n_head=32, n_head_kv=8, n_ff=8192, n_vocab=128256,
               context=131072, type="Q4_K", types={"token_embd": "Q6_K"},
               rope_freq_base=500000.0, rope_freqs="llama3"),
    # For speed alone: the layers of Llama 3.2 1B, all matrices of one type, with the vocabulary of
    # 32,000 that Llama 2 and TinyLlama have: the file is small, and the share of the head in a
    # token's bytes is that of a bigger model.
    "bench-1b": dict(n_layer=16, n_embd=2048, n_head=32, n_head_kv=8, n_ff=8192, n_vocab=32000,
                     context=8192, type="Q4_0", rope_freq_base=500000.0),
    "8b": dict(n_layer=32, n_embd=4096, n_head=32, n_head_kv=8, n_ff=14336, n_vocab=128256,
               context=131072, type="Q4_K", types={"token_embd": "Q4_K", "output": "Q6_K"},
               tied=False, rope_freq_base=500000.0, rope_freqs="llama3"),
    "gemma3-270m": dict(arch="gemma3", n_layer=18, n_embd=640, n_head=4, n_head_kv=1, head_dim=256,
                        n_ff=2048, n_vocab=262144, context=32768, tokenizer="spm", type="Q5_0",
                        types={"token_embd": "Q8_0", "ffn_down": "Q6_K"}, window=512,
                        rope_freq_base=1e6, rms_eps=1e-6),
    "qwen2-0.5b": dict(arch="qwen2", n_layer=24, n_embd=896, n_head=14, n_head_kv=2, n_ff=4864,
                       n_vocab=151936, context=32768, type="Q4_0", types={"token_embd": "Q8_0"},
                       rope_freq_base=1e6, rms_eps=1e-6),
    "qwen3-0.6b": dict(arch="qwen3", n_layer=28, n_embd=1024, n_head=16, n_head_kv=8, head_dim=128,
                       n_ff=3072, n_vocab=151936, context=40960, type="Q4_K",
                       types={"token_embd": "Q6_K"}, rope_freq_base=1e6, rms_eps=1e-6),
}


def llama3_divisors(base, rope_dim, factor=8.0, low=1.0, high=4.0, context=8192):
    """The published formula of Llama 3.1's rope scaling, as divisors of the frequencies."""
    divisors = []
    for i in range(rope_dim // 2):
        wavelength = 2 * np.pi / base ** (-2.0 * i / rope_dim)
        share = (context / wavelength - low) / (high - low)
        if wavelength < context / high:
            divisors.append(1.0)
        elif wavelength > context / low:
            divisors.append(factor)
        else:
            divisors.append(1 / ((1 - share) / factor + share))
    return divisors


def model_keys(spec):
    """All keys of the model, in order."""
    def key(name, value):
        return (f"{spec.arch}.{name}", value)

    keys = [
        ("general.architecture", string(spec.arch)),
        ("general.name", string(f"random {spec.arch} {spec.n_layer}x{spec.n_embd}")),
        key("context_length", u32(spec.context)),
        key("embedding_length", u32(spec.n_embd)),
        key("block_count", u32(spec.n_layer)),
        key("feed_forward_length", u32(spec.n_ff)),
        key("attention.head_count", u32(spec.n_head)),
        key("attention.layer_norm_rms_epsilon", f32(spec.rms_eps)),
        key("rope.freq_base", f32(spec.rope_freq_base)),
    ]
    if spec.n_head_kv is not None:
        keys.append(key("attention.head_count_kv", u32(spec.n_head_kv)))
    if spec.head_dim is not None:
        keys.append(key("attention.key_length", u32(spec.head_dim)))
        keys.append(key("attention.value_length", u32(spec.head_dim)))
    if spec.rope_dim is not None:
        keys.append(key("rope.dimension_count", u32(spec.rope_dim)))
    if spec.window is not None:
        keys.append(key("attention.sliding_window", u32(spec.window)))
    if spec.window_pattern is not None:
        keys.append(key("attention.sliding_window_pattern",
                        u32(spec.window_pattern) if isinstance(spec.window_pattern, int)
                        else array(BOOL, spec.window_pattern)))
    if spec.rope_freq_base_swa is not None:
        keys.append(key("rope.freq_base_swa", f32(spec.rope_freq_base_swa)))
    for name, value in spec.rope_scaling.items():
        kind = string(value) if name == "type" else u32(value) \
            if name == "original_context_length" else f32(value)
        keys.append(key(f"rope.scaling.{name}", kind))
    vocabulary = {"bpe": bpe_keys, "spm": spm_keys, "letters": letters_keys}[spec.tokenizer]
    return keys + vocabulary(spec.n_vocab, spec.seed) + list(spec.extra_keys)


CHUNK_BYTES = 1 << 24  # of a matrix made at a time


def model_tensors(spec):
    """All tensors of the model, in order; the data are made when they are written."""
    types = itertools.cycle(spec.cycle) if spec.cycle else None
    tensors = []

    def matrix(name, role, k, rows, gain=1.0):
        kind = next(types) if types else spec.types.get(role, spec.type)

        def chunks():
            random = Random(spec.seed, name)
            step = max(1, CHUNK_BYTES // (k * 4))
            for begin in range(0, rows, step):
                n = min(step, rows - begin)
                yield random_rows(random, kind, n, k, gain / math.sqrt(k)).data

        tensors.append(Tensor(name, (k, rows), kind, chunks))

    def vector(name, values):
        data = np.asarray(values, dtype="<f4").tobytes()
        tensors.append(Tensor(name, (len(values),), "F32", lambda: [data]))

    def norm(name, n=spec.n_embd):
        vector(name, 1 + 0.1 * Random(spec.seed, name).bell(n))

    def bias(name, n):
        vector(name, 0.1 * Random(spec.seed, name).bell(n))

    q_size = spec.n_head * spec.head_size()
    kv_size = (spec.n_head if spec.n_head_kv is None else spec.n_head_kv) * spec.head_size()
    if spec.rope_freqs is not None:
        divisors = spec.rope_freqs
        if divisors == "llama3":
            divisors = llama3_divisors(spec.rope_freq_base, spec.rope_size())
        vector("rope_freqs.weight", divisors)
    has = spec.features()
    biased = {"attn_q", "attn_k", "attn_v"} if spec.biases or has.qkv_biases else set()
    if spec.biases and spec.arch == "llama":
        biased.add("attn_output")
    matrix("token_embd.weight", "token_embd", spec.n_embd, spec.n_vocab, spec.embd_gain)
    for i in range(spec.n_layer):
        layer = f"blk.{i}."
        norm(layer + "attn_norm.weight")
        for name, k, rows in (("attn_q", spec.n_embd, q_size), ("attn_k", spec.n_embd, kv_size),
                              ("attn_v", spec.n_embd, kv_size),
                              ("attn_output", q_size, spec.n_embd)):
            matrix(layer + name + ".weight", name, k, rows,
                   spec.qk_gain if name in ("attn_q", "attn_k") else 1.0)
            if name in biased:
                bias(layer + name + ".bias", rows)
        if has.qk_norms:
            norm(layer + "attn_q_norm.weight", spec.head_size())
            norm(layer + "attn_k_norm.weight", spec.head_size())
        if has.post_norms:
            norm(layer + "post_attention_norm.weight")
        norm(layer + "ffn_norm.weight")
        matrix(layer + "ffn_gate.weight", "ffn_gate", spec.n_embd, spec.n_ff)
        matrix(layer + "ffn_up.weight", "ffn_up", spec.n_embd, spec.n_ff)
        matrix(layer + "ffn_down.weight", "ffn_down", spec.n_ff, spec.n_embd)
        if has.post_norms:
            norm(layer + "post_ffw_norm.weight")
    norm("output_norm.weight")
    if not spec.tied:
        matrix("output.weight", "output", spec.n_embd, spec.n_vocab, spec.embd_gain)
    return tensors


def write_model(path, spec):
    """Writes the model; gives back the file to open (the first shard)."""
    path = str(path)
    unknown = set(spec.types) - set(ROLES)
    assert not unknown, f"unknown roles: {unknown}"
    only_gemma3 = (spec.window, spec.window_pattern, spec.rope_freq_base_swa)
    assert spec.features().window or only_gemma3 == (None,) * 3, f"{spec.arch} has no window"
    keys, tensors = model_keys(spec), model_tensors(spec)
    if spec.shards > 1:
        return write_shards(path, keys, tensors, spec.shards, spec.alignment)[0]
    write_gguf(path, keys, tensors, spec.alignment, spec.version)
    return path


# --- command line ---

def _pairs(text):
    return dict(item.split("=", 1) for item in text.split(",")) if text else {}


def _pattern(text):
    """"6", or "1,1,0": which layers are local."""
    return [bool(int(item)) for item in text.split(",")] if "," in text else int(text)


def main():
    parser = argparse.ArgumentParser(description="Writes a GGUF model with random weights.")
    parser.add_argument("-o", "--output", required=True, help="the file, NAME.gguf")
    parser.add_argument("--preset", choices=PRESETS, default="tiny")
    parser.add_argument("--types", type=_pairs, help="types of roles: ffn_down=Q6_K,output=F16")
    parser.add_argument("--cycle", type=lambda s: s.split(","),
                        help="each matrix takes the next of these types: F32,Q4_0,Q6_K")
    parser.add_argument("--untied", dest="tied", action="store_false", default=None)
    parser.add_argument("--biases", action="store_true", default=None)
    parser.add_argument("--rope-freqs", choices=["llama3"], default=None)
    parser.add_argument("--rope-scaling", type=_pairs, help="type=linear,factor=4")
    parser.add_argument("--window-pattern", type=_pattern,
                        help="a number, or 1 (local) or 0 for each layer: 1,1,0")
    for name, kind in [("arch", str), ("type", str), ("tokenizer", str), ("n-layer", int),
                       ("n-embd", int), ("n-head", int), ("n-head-kv", int), ("head-dim", int),
                       ("rope-dim", int), ("n-ff", int), ("n-vocab", int), ("context", int),
                       ("window", int), ("rope-freq-base-swa", float), ("rope-freq-base", float),
                       ("rms-eps", float), ("embd-gain", float), ("qk-gain", float),
                       ("alignment", int), ("version", int), ("shards", int), ("seed", int)]:
        parser.add_argument(f"--{name}", type=kind)
    options = vars(parser.parse_args())
    output, preset = options.pop("output"), options.pop("preset")
    spec = Spec(**PRESETS[preset])
    given = {name: value for name, value in options.items() if value is not None}
    if "rope_scaling" in given:
        numbers = given["rope_scaling"]
        for name in numbers:
            if name != "type":
                numbers[name] = (int if name.endswith("length") else float)(numbers[name])
    if "type" in given and "types" not in given:
        given["types"] = {}  # --type alone means all matrices, also over a preset's mixture
    print(write_model(output, dataclasses.replace(spec, **given)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
