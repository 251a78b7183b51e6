# SPDX-License-Identifier: Apache-2.0
"""Small models for the tests of chat: chosen special tokens and a chosen chat template over random
weights, or no weights at all. Plain text is bytes, so that every message has its tokens."""
import sys

import sov

sys.path.insert(0, str(sov.ROOT / "tools"))
import make_models as mm  # noqa: E402

CONTROL, USER_DEFINED = 3, 4
MARKERS = ["<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
           "<start_of_turn>", "<end_of_turn>", "<|end|>", "<|user|>", "<|assistant|>",
           "<|system|>", "<|eot|>"]


def bpe_keys(template, markers=MARKERS, add_bos=False, marker_type=CONTROL):
    """256 bytes, <s>, </s>, then the markers."""
    tokens = mm._byte_characters() + ["<s>", "</s>"] + list(markers)
    types = [1] * 256 + [CONTROL] * 2 + [marker_type] * len(markers)
    return [
        ("tokenizer.ggml.model", mm.string("gpt2")),
        ("tokenizer.ggml.pre", mm.string("gpt-2")),
        ("tokenizer.ggml.tokens", mm.array(mm.STRING, tokens)),
        ("tokenizer.ggml.token_type", mm.array(mm.I32, types)),
        ("tokenizer.ggml.merges", mm.array(mm.STRING, [])),
        ("tokenizer.ggml.bos_token_id", mm.u32(256)),
        ("tokenizer.ggml.eos_token_id", mm.u32(257)),
        ("tokenizer.ggml.add_bos_token", mm.boolean(add_bos)),
    ] + ([("tokenizer.chat_template", mm.string(template))] if template else [])


def spm_keys(template):
    return mm.spm_keys(320, 1) + [("tokenizer.chat_template", mm.string(template))]


def write_vocabulary(path, keys):
    """A file without tensors: enough for the commands that need the vocabulary only."""
    mm.write_gguf(path, [("general.architecture", mm.string("llama"))] + keys, [])
    return path


def write_model(path, keys, **options):
    """A model with random weights and this vocabulary."""
    n_vocab = len(dict(keys)["tokenizer.ggml.tokens"].value)
    spec = mm.Spec(n_vocab=n_vocab, **options)
    own = [key for key in mm.model_keys(spec) if not key[0].startswith("tokenizer.")]
    mm.write_gguf(path, own + keys, mm.model_tensors(spec))
    return path
