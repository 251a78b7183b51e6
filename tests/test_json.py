# SPDX-License-Identifier: Apache-2.0
"""The JSON parser of the core against Python's, on texts made from one seed: values of every kind,
written in many ways, and the same texts damaged. Python's parser is made as strict: a name twice,
NaN, Infinity, half a surrogate pair and deep nesting are refused there too."""
import json
import random
import struct
import subprocess

import pytest

import sov

SEED = 20261
DEPTH_MAX = 64
ROUNDS = 40000 if sov.FULL else 4000
PROGRAMS = ["free", "asan"]


class Refused(Exception):
    pass


def pairs(items):
    if len({name for name, _ in items}) != len(items):
        raise Refused("a name twice")
    return dict(items)


def refuse(_):
    raise Refused("no JSON number")


def canonical(value):
    """As put_value of test_json.c writes it."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, str):
        return '"' + value.encode().hex() + '"'  # fails for half a pair
    if isinstance(value, dict):
        inner = [canonical(x) for item in value.items() for x in item]
        return "{" + f"{len(value)}:" + " ".join(inner) + "}"
    if isinstance(value, list):
        return f"[{len(value)}:" + " ".join(map(canonical, value)) + "]"
    if isinstance(value, int) and -2**63 <= value < 2**63:
        return f"i{value}"
    try:
        number = float(value)
    except OverflowError:
        return "range"
    return "range" if number in (float("inf"), -float("inf")) else \
        f"f{struct.unpack('>Q', struct.pack('>d', number))[0]:016x}"


def depth(value):
    if isinstance(value, (list, dict)):
        inner = value.values() if isinstance(value, dict) else value
        return 1 + max(map(depth, inner), default=0)
    return 0


def expected(data):
    try:
        value = json.loads(data.decode(), object_pairs_hook=pairs, parse_constant=refuse)
        return canonical(value) + " " if depth(value) <= DEPTH_MAX else "refused"
    except (ValueError, Refused, RecursionError):  # a UnicodeError is a ValueError
        return "refused"


def number(rng):
    kind = rng.randrange(6)
    if kind == 0:
        return str(rng.randrange(-20, 20))
    if kind == 1:
        return str(rng.randrange(-2**66, 2**66))
    if kind == 2:
        bits = struct.pack("<Q", rng.getrandbits(64))
        value = struct.unpack("<d", bits)[0]
        return repr(value) if value - value == 0 else "-0.0"
    digits = "".join(rng.choice("0123456789") for _ in range(rng.randrange(1, 40)))
    text = rng.choice(["", "-"]) + str(int(digits))
    if kind >= 4:
        text += "." + "".join(rng.choice("0159") for _ in range(rng.randrange(1, 40)))
    if kind != 4:
        text += rng.choice("eE") + rng.choice(["", "+", "-"]) + str(rng.randrange(0, 350))
    return text


CHARACTERS = ["a", "b", "\\n", "\\\"", "\\\\", "\\/", "é", "日", "\U0001f600", "\\u0041", "\\u00e9",
              "\\ud83d\\ude00", "\\uD83D\\uDE00", "\\u0000", " ", "\x7f"]


def string(rng):
    return '"' + "".join(rng.choice(CHARACTERS) for _ in range(rng.randrange(4))) + '"'


def blank(rng):
    return rng.choice(["", "", "", " ", "\n", "\t \r\n"])


def value(rng, room):
    kind = rng.randrange(8) if room > 0 else rng.randrange(5)
    if kind < 3:
        return rng.choice([number(rng), string(rng), "null", "true", "false"])
    if kind < 5:
        return number(rng)
    inner = []
    for _ in range(rng.randrange(5)):
        name = string(rng) + blank(rng) + ":" + blank(rng) if kind == 7 else ""
        inner.append(blank(rng) + name + value(rng, room - 1) + blank(rng))
    return ("{" if kind == 7 else "[") + ",".join(inner) + ("}" if kind == 7 else "]")


def damage(rng, data):
    data = bytearray(data)
    for _ in range(rng.randrange(1, 3)):
        at = rng.randrange(len(data) + 1)
        if rng.randrange(2) and data:
            del data[min(at, len(data) - 1)]
        else:
            data[at:at] = rng.choice([b",", b'"', b"}", b"]", b"1", b"-", b"\\", b"\xff", b"\xed\xa0\x80",
                                      b"\\ud800", b"e", b".", b"\0", b" ", b"NaN", b"+"])
    return bytes(data)


def texts():
    rng = random.Random(SEED)
    for i in range(ROUNDS):
        data = (blank(rng) + value(rng, 4) + blank(rng)).encode()
        yield damage(rng, data) if i % 2 else data
    for n in (DEPTH_MAX, DEPTH_MAX + 1):
        yield b"[" * n + b"]" * n
        yield b'{"a":' * n + b"1" + b"}" * n


@pytest.mark.parametrize("flavour", PROGRAMS)
def test_against_python(tmp_path, flavour):
    program = sov.BUILD / flavour / "test_json"
    if not program.exists():
        pytest.skip(f"{program} is not built")
    cases = list(texts())
    path = tmp_path / "texts"
    path.write_bytes(b"".join(struct.pack("<I", len(data)) + data for data in cases))
    done = subprocess.run([program, f"JSON={path}", "dump"], stdout=subprocess.PIPE, check=True)
    lines = done.stdout.decode().splitlines()
    answers = [expected(data) for data in cases]
    for data, found, wanted in zip(cases, lines, answers):
        assert found == wanted, data
    n_refused = answers.count("refused")
    assert ROUNDS / 10 < n_refused < ROUNDS * 0.9
    print(f"{len(cases)} texts, {n_refused} refused by both")
