# SPDX-License-Identifier: Apache-2.0
"""SHA-256, portable and by the CPU's instructions, against the files of NIST's CAVP (from PyPI's
cryptography-vectors) and against hashlib on random messages. The program is tests/test_sha256.c; needs
`make tests`.
"""
import hashlib
import importlib.util
import os
import random
import re
import struct
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BUILD = Path(os.environ.get("SOV_TEST_BUILD", ROOT / "build"))
FULL = "SOV_TEST_FULL" in os.environ
PROGRAMS = [BUILD / "free/test_sha256", BUILD / "asan/test_sha256"]
TIMEOUT = 300
SEED = 20261130


@pytest.fixture(params=PROGRAMS, ids=["free", "asan"])
def program(request):
    if not request.param.exists():
        pytest.skip(f"{request.param} is not built")
    return request.param


def run(program, *args):
    """Lines of two digests; the second column is left out where the CPU has no SHA instructions."""
    done = subprocess.run([program, *args], capture_output=True, text=True, timeout=TIMEOUT,
                          check=True)
    return [[digest for digest in line.split() if digest != "-"] for line in done.stdout.splitlines()]


def expect(program, tmp_path, messages, digests):
    path = tmp_path / "messages"
    path.write_bytes(b"".join(struct.pack("<I", len(m)) + m for m in messages))
    found = run(program, "digests", path)
    assert len(found) == len(messages) == len(digests)
    for message, digest, row in zip(messages, digests, found):
        assert 1 <= len(row) <= 2 and set(row) == {digest}, (len(message), row)


def vectors(name):
    if importlib.util.find_spec("cryptography_vectors") is None:
        pytest.skip("cryptography-vectors is not installed (tests/requirements.txt)")
    import cryptography_vectors
    with cryptography_vectors.open_vector_file(f"hashes/SHA2/{name}", "r") as file:
        return file.read()


@pytest.mark.parametrize("name,least", [("SHA256ShortMsg.rsp", 65), ("SHA256LongMsg.rsp", 64)])
def test_messages_of_nist(program, tmp_path, name, least):
    rows = re.findall(r"Len = (\d+)\s+Msg = ([0-9a-f]+)\s+MD = ([0-9a-f]{64})", vectors(name))
    assert len(rows) >= least and all(int(bits) % 8 == 0 for bits, _, _ in rows)
    messages = [bytes.fromhex(message)[:int(bits) // 8] for bits, message, _ in rows]
    expect(program, tmp_path, messages, [digest for _, _, digest in rows])


def test_monte_carlo_of_nist(program):
    text = vectors("SHA256Monte.rsp")
    seed, = re.findall(r"Seed = ([0-9a-f]{64})", text)
    digests = re.findall(r"MD = ([0-9a-f]{64})", text)
    assert len(digests) == 100
    for digest, row in zip(digests, run(program, "monte", seed), strict=True):
        assert row and set(row) == {digest}


def test_random_messages_as_hashlib(program, tmp_path):
    chance = random.Random(SEED)
    sizes = list(range(300)) + [chance.randrange(1 << chance.randrange(1, 18))
                                for _ in range(5000 if FULL else 300)]
    messages = [chance.randbytes(n) for n in sizes]
    expect(program, tmp_path, messages, [hashlib.sha256(m).hexdigest() for m in messages])
