# SPDX-License-Identifier: Apache-2.0
"""The record store by two verifiers: the program's (through tests/test_rowm.c) and the one in Python
that was written from docs/format.md. They must agree on every change of a small store. Needs
`make tests`; the folder can be changed by SOV_TEST_BUILD.
"""
import importlib.util
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BUILD = Path(os.environ.get("SOV_TEST_BUILD", ROOT / "build"))
TIMEOUT = 120
TOOL = ROOT / "tools/verify_store.py"

spec = importlib.util.spec_from_file_location("verify_store", TOOL)
verify_store = importlib.util.module_from_spec(spec)
spec.loader.exec_module(verify_store)


def run_program(*args):
    program = BUILD / "free/test_rowm"
    if not program.exists():
        pytest.skip(f"{program} is not built")
    result = subprocess.run([program, *map(str, args)], capture_output=True, text=True,
                            timeout=TIMEOUT, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout.split()


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """(folder, "SIZE:ROOT", the log's bytes) of a store with every kind of entry."""
    folder = tmp_path_factory.mktemp("store") / "s"
    head, = run_program("write", folder)
    return folder, head, (folder / "log").read_bytes()


def judge(data, expect=None):
    try:
        report = verify_store.verify(verify_store.reader_of(data), lambda: len(data), expect)
    except verify_store.Damage:
        return "x"
    except verify_store.Unsupported:
        return "?"
    return "t" if report["tail_bytes"] else "."


def judge_both(data, tmp_path):
    """What both say of a log; they must say the same."""
    folder = tmp_path / "mutated"
    folder.mkdir(exist_ok=True)
    (folder / "log").write_bytes(data)
    theirs, = run_program("judge", folder)
    assert theirs == judge(data)
    return theirs


def entries_of(data):
    """(offset, bytes) of every entry."""
    found, at = [], 8192
    while at < len(data):
        meta, payload = struct.unpack_from("<QQ", data, at)
        n = 17 + meta + 32 + payload
        found.append((at, n))
        at += n
    return found


def test_a_store_verifies(store):
    folder, head, data = store
    report = verify_store.verify_file(folder / "log")
    assert f"{report['entries']}:{report['root']}" == head
    assert report["tail_bytes"] == 0 and report["sessions"] == 1
    assert report["records"] == 8 and report["capabilities"] == 3 and report["available"] == 1
    types = {data[at + 16] for at, _ in entries_of(data)}
    assert types == {1, 2, 3}


def test_both_agree_on_every_flip(store):
    """One bit of every byte, and a tail's bytes too: damage that is seen, or a tail that is named."""
    folder, _, data = store
    theirs = "".join(run_program("flips", folder))
    assert len(theirs) == len(data)
    ours = "".join(judge(data[:i] + bytes([data[i] ^ 1 << i % 8]) + data[i + 1:])
                   for i in range(len(data)))
    assert ours == theirs
    assert set(ours) == {"x"}


def with_slots(data, counts):
    """The log with two slots that name its heads after so many entries."""
    stores = verify_store.Store()
    read = verify_store.reader_of(data)
    slots, previous = [], bytes(32)
    for generation, n_entries in enumerate(counts):
        while stores.n_entries < n_entries:
            assert stores.step(read, len(data))
        heads = stores.heads()
        body = b"sov-rowm head v1" + struct.pack("<QQQQ", generation, heads["length"],
                                                 heads["entries"], heads["time"])
        body += b"".join(heads[k] for k in ("link", "root", "worm", "evolution", "access"))
        body += previous
        previous = verify_store.digest(body)
        slots.append((body + previous).ljust(4096, b"\0"))
    return b"".join(slots) + data[8192:]


def test_both_agree_on_heads_between_an_entry_and_its_receipt(store, tmp_path):
    """No writer publishes there, so neither slot may name such a place."""
    _, _, data = store
    n = len(entries_of(data))
    for older in range(n + 1):
        for newer in range(older, n + 1):
            odd = older % 2 or newer % 2
            verdict = judge_both(with_slots(data, (older, newer)), tmp_path)
            assert verdict == ("x" if odd else "." if newer == n else "t"), (older, newer)


def test_both_agree_on_a_tail(store, tmp_path):
    """A store whose last transaction was not published: flips in it are in a tail, with a name."""
    folder, _, data = store
    entries = entries_of(data)
    # What the writer had published before its last transaction.
    behind = with_slots(data, (len(entries) - 4, len(entries) - 2))
    tail = entries[-2][0]
    assert judge_both(behind, tmp_path) == "t"
    theirs = "".join(run_program("flips", tmp_path / "mutated"))
    ours = "".join(judge(behind[:i] + bytes([behind[i] ^ 1 << i % 8]) + behind[i + 1:])
                   for i in range(len(behind)))
    assert ours == theirs
    assert set(ours[:tail]) == {"x"} and set(ours[tail:]) == {"t"}
    assert judge_both(behind[:tail], tmp_path) == "."
    assert judge_both(behind[:tail + 100], tmp_path) == "t"
    assert judge_both(behind[:tail - 1], tmp_path) == "x"


def test_both_agree_on_moved_entries(store, tmp_path):
    _, _, data = store
    entries = entries_of(data)
    parts = [data[at:at + n] for at, n in entries]
    head = data[:8192]
    for i in range(len(parts)):
        assert judge_both(head + b"".join(parts[:i] + parts[i + 1:]), tmp_path) == "x"  # dropped
        assert judge_both(head + b"".join(parts[:i] + [parts[i]] + parts[i:]), tmp_path) in "xt"
        if i > 0:  # swapped
            swapped = parts[:i - 1] + [parts[i], parts[i - 1]] + parts[i + 1:]
            assert judge_both(head + b"".join(swapped), tmp_path) == "x"
    assert judge_both(head + b"".join(reversed(parts)), tmp_path) == "x"
    assert judge_both(data[4096:8192] + data[:4096] + data[8192:], tmp_path) == "x"
    assert judge_both(data[:4096] + data[:4096] + data[8192:], tmp_path) == "x"
    assert judge_both(data[:100], tmp_path) == "x" and judge_both(data + b"\0", tmp_path) == "t"


def reforged(data, change):
    """The log with one entry's meta part changed and everything behind it computed again, as a forger
    with all the time in the world does; receipts are left as they were."""
    link, out = bytes(32), data[:8192]
    tree = verify_store.Tree()
    for at, n in entries_of(data):
        meta_bytes = struct.unpack_from("<Q", data, at)[0]
        head = change(bytearray(data[at:at + 17 + meta_bytes]))
        leaf = verify_store.digest(b"\0", head)
        link = verify_store.digest(b"sov-rowm link v1", link, leaf)
        tree.append(leaf)
        out += bytes(head) + link + data[at + 49 + meta_bytes:at + n]
    slots, previous = [], bytes(32)
    for generation in (0, 1):
        newest = max((data[:240], data[4096:4336]), key=lambda s: s[16:24])
        body = newest[:16] + struct.pack("<Q", generation) + newest[24:48] + link + tree.root()
        body += newest[112:208] + previous
        previous = verify_store.digest(body)
        slots.append((body + previous).ljust(4096, b"\0"))
    return b"".join(slots) + out[8192:]


def test_both_agree_on_entries_that_are_chained_but_not_valid(store, tmp_path):
    """Every byte of every meta part changed, with leaves, links, root and slots made to fit."""
    _, _, data = store
    assert judge_both(reforged(data, lambda entry: entry), tmp_path) == "."
    fields = {1: (16, 24, 32, 33, 41, 49, 57, 89, 121, 122, 130, 138, 170, 171, 203, 204, 212),
              2: (16, 48, 80, 88, 96), 3: (16, 20, 21, 53, 85, 117, 125)}
    n_entries = len(entries_of(data))
    for number in range(n_entries):
        at, _ = entries_of(data)[number]
        for field in fields[data[at + 16]]:
            seen = -1

            def change(entry, number=number, field=field):
                nonlocal seen
                seen += 1
                if seen == number:
                    entry[17 + field] ^= 1
                return entry

            assert judge_both(reforged(data, change), tmp_path) == "x", (number, field)


def test_the_tool_and_its_exit_codes(store, tmp_path):
    folder, head, data = store

    def tool(path, *args):
        return subprocess.run([sys.executable, TOOL, path, *args], capture_output=True, text=True,
                              timeout=TIMEOUT, check=False)

    result = tool(folder, "--expect", head)
    assert result.returncode == 0 and head in result.stdout, result.stderr
    wrong = head[:-1] + ("0" if head[-1] != "0" else "1")
    assert tool(folder, "--expect", wrong).returncode == 4
    assert tool(folder, "--expect", "9999:" + head.partition(":")[2]).returncode == 4
    assert tool(tmp_path / "none").returncode == 3
    assert tool(folder, "--expect", "x").returncode == 2
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "log").write_bytes(data[:9000] + b"x" + data[9001:])
    result = tool(bad)
    assert result.returncode == 4 and "does not verify" in result.stderr
    other = bytearray(data)
    other[15] = other[4096 + 15] = ord("2")
    (bad / "log").write_bytes(other)
    assert tool(bad).returncode == 3


def test_a_second_writer_is_told(store):
    """Two processes: the lock is the store's, whoever holds it."""
    import fcntl
    folder, _, _ = store
    with open(folder / "lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        program = BUILD / "free/test_rowm"
        result = subprocess.run([program, "write", folder], capture_output=True, text=True,
                                timeout=TIMEOUT, check=False)
        assert result.returncode != 0 and "in use by another process" in result.stdout
