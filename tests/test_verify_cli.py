# SPDX-License-Identifier: Apache-2.0
"""sov verify and sov log over stores made in Python (store_writer.py): what they say, when they refuse,
and what pruning removes. No model is needed."""
import fcntl
import json
import random
import re
import resource
import time

import pytest

import sov
import store_writer as sw

DAY = 86400 * 10**9
SEED = 20265


def make(finished=3, interrupted=0, wall_ns=None, payload=64):
    """A store of one session with so many sequences, checkpoints of random bytes that nobody reads."""
    rng = random.Random(SEED)
    writer = sw.Writer()
    writer.session(sw.manifest(time.time_ns() if wall_ns is None else wall_ns))
    for q in range(1, finished + interrupted + 1):
        tokens = [rng.randrange(200) for _ in range(5)]
        request = sw.Request(q, tokens, prompt=f"prompt {q}".encode())
        record, _ = writer.record(sw.REQUEST, sw.sequence_txid(sw.REQUEST, q), request.bytes(), owner=q)
        origin = rng.randbytes(32)
        first = sw.Checkpoint(q, 1, 0, 0, 5, tokens, origin, 0, origin).bytes()
        writer.publish()
        record, capability = writer.record(sw.CHECKPOINT, sw.sequence_txid(0, q, 5), first, owner=q,
                                           parent=record, issues=True)
        for k in (1, 2):
            made = sw.Checkpoint(q, 1, 0, 0, 5, tokens + [1] * 64 * k, origin, 64 * k,
                                 rng.randbytes(32), 0, 4 + 64 * k, 2, payload, rng.randbytes(64))
            record, capability = writer.record(sw.CHECKPOINT, sw.sequence_txid(0, q, 5 + 64 * k),
                                               made.bytes(), owner=q, epoch=k, parent=record,
                                               consumes=capability, issues=True)
        if q <= finished:
            end = sw.Checkpoint(q, 3, 1, 0, 5, tokens + [1] * 130, origin, 132, rng.randbytes(32))
            writer.record(sw.FINISH, sw.sequence_txid(0, q, 135, 3), end.bytes(), owner=q, epoch=3,
                          parent=record, consumes=capability)
    return writer


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    writer = make(finished=3, interrupted=2, wall_ns=1)
    return writer.write(tmp_path_factory.mktemp("verify") / "store"), writer


def verify(folder, *options):
    return sov.call("verify", folder, *options)


def test_it_agrees_with_the_other_verifier(store):
    folder, writer = store
    report = json.loads(sov.succeed("verify", folder, "--json").stdout)
    other = sw.verify_store.verify_file(folder / "log")
    assert report["verified"] and report["head"] == writer.head()
    for ours, theirs in (("entries", "entries"), ("root", "root"), ("worm", "worm"),
                         ("evolution", "evolution"), ("access", "access"), ("records", "records"),
                         ("receipts", "receipts"), ("sessions", "sessions"),
                         ("capabilities", "capabilities"), ("available", "available"),
                         ("tail_bytes", "tail_bytes"), ("tail_entries", "tail_entries")):
        assert report[ours] == other[theirs], ours
    text = sov.succeed("verify", folder).stdout.decode()
    assert writer.head() in text and "2 of 15 capabilities are available" in text


def test_damage_is_exit_code_4(store, tmp_path):
    """A bit of any byte, in samples; the place is named."""
    folder, _ = store
    data = (folder / "log").read_bytes()
    rng = random.Random(SEED)
    bad = tmp_path / "bad"
    bad.mkdir()
    for at in [0, 100, 4096 + 30, 8192, 8192 + 300] + rng.sample(range(8192, len(data)), 40):
        (bad / "log").write_bytes(data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1:])
        done = verify(bad)
        assert done.returncode == 4, at
        assert b"verif" in done.stderr or b"head slot" in done.stderr or b"belong" in done.stderr
        failed = json.loads(verify(bad, "--json").stdout)
        assert failed["verified"] is False and failed["error"]["code"] == "SOV_ERR_INTEGRITY"
    (bad / "log").write_bytes(data[:-1])
    assert verify(bad).returncode == 4


def test_the_payload_is_named_that_was_changed(store, tmp_path):
    """Also where the one hashed beside it is right, whichever of the two comes first."""
    folder, _ = store
    data = (folder / "log").read_bytes()
    at, payloads = 8192, []
    while at < len(data):
        m, p = (int.from_bytes(data[at + 8 * i:at + 8 * i + 8], "little") for i in (0, 1))
        if p > 0:
            payloads.append((at, at + 49 + m + p - 1))
        at += 49 + m + p
    assert len(payloads) > 20
    bad = tmp_path / "bad"
    bad.mkdir()
    for entry, last in payloads:
        (bad / "log").write_bytes(data[:last] + bytes([data[last] ^ 0x80]) + data[last + 1:])
        done = verify(bad)
        assert done.returncode == 4 and re.search(rb"at byte %d\b" % entry, done.stderr), done.stderr


def test_what_is_not_checkable_is_exit_code_3(store, tmp_path):
    folder, _ = store
    done = verify(tmp_path / "nowhere")
    assert done.returncode == 3 and b"no store is there" in done.stderr
    other = bytearray((folder / "log").read_bytes())
    other[15] = other[4096 + 15] = ord("2")
    (tmp_path / "log").write_bytes(other)
    done = verify(tmp_path)
    assert done.returncode == 3 and b"another version" in done.stderr
    (tmp_path / "log").unlink()
    (tmp_path / "log").mkdir()
    assert verify(tmp_path).returncode == 3


def test_a_tail_is_named(store, tmp_path):
    """What was written but not acknowledged: whole entries, and bytes that are none."""
    folder, writer = store
    whole = (folder / "log").read_bytes()
    longer = make(finished=3, interrupted=2, wall_ns=1)
    before = len(longer.bytes())
    longer.record(sw.REQUEST, sw.digest(b"tail"), b"not acknowledged", owner=99)
    tail = longer.bytes()[before:]
    (tmp_path / "log").write_bytes(whole + tail)
    report = json.loads(sov.succeed("verify", tmp_path, "--json").stdout)
    assert (report["tail_offset"], report["tail_bytes"], report["tail_entries"]) == \
        (len(whole), len(tail), 2)
    assert report["head"] == writer.head() and report["records"] == writer.n_records
    text = sov.succeed("verify", tmp_path).stdout.decode()
    assert f"tail: {len(tail)} bytes at byte {len(whole)}" in text
    # What was acknowledged is what is listed.
    assert b"00000063" not in sov.succeed("log", tmp_path).stdout
    (tmp_path / "log").write_bytes(whole + tail[:100])
    report = json.loads(sov.succeed("verify", tmp_path, "--json").stdout)
    assert (report["tail_bytes"], report["tail_entries"]) == (100, 0)


def test_a_head_that_was_kept(tmp_path):
    """The store's own head and every older one; not a newer one, not another store's."""
    heads, copies = [], []
    writer = sw.Writer()
    heads.append(writer.head())
    writer.session(sw.manifest(1))
    for q in range(1, 6):
        writer.publish()
        heads.append(writer.head())
        copies.append(writer.bytes())
        writer.record(sw.REQUEST, sw.sequence_txid(sw.REQUEST, q), bytes([q] * 30), owner=q)
    writer.write(tmp_path / "now")
    heads.append(writer.head())
    for head in heads:
        assert verify(tmp_path / "now", "--expect", head).returncode == 0, head
    older = tmp_path / "older"
    older.mkdir()
    for i, copy in enumerate(copies):
        (older / "log").write_bytes(copy)
        for j, head in enumerate(heads):
            done = verify(older, "--expect", head)
            assert done.returncode == (0 if j <= i + 1 else 4), (i, j)
            if j > i + 1:
                assert b"an older copy, or another store" in done.stderr
    size, _, root = writer.head().partition(":")
    wrong = f"{size}:{root[:-1]}{'0' if root[-1] != '0' else '1'}"
    assert verify(tmp_path / "now", "--expect", wrong).returncode == 4
    for bad in ("", "x", f"{size}", f"{size}:{root}0", f"-1:{root}", f"{size}:{root[:-1]}g"):
        done = verify(tmp_path / "now", f"--expect={bad}")
        assert done.returncode == 2 and done.stdout == b""


def test_both_programs_say_the_same(store):
    """The hosted twin with sanitizers, where it is built."""
    folder, _ = store
    asan = sov.BUILD / "sov-asan"
    if not asan.exists():
        pytest.skip("sov-asan is not built")
    for arguments in (["verify", folder, "--json"], ["log", folder, "--json"]):
        ours, theirs = (json.loads(sov.succeed(*arguments, program=p).stdout.splitlines()[0])
                        for p in (sov.SOV, asan))
        ours.pop("seconds", None)
        theirs.pop("seconds", None)
        assert ours == theirs


# --- sov log ---

def log(state, *arguments, code=0, **options):
    done = sov.call("log", *arguments, env={"XDG_STATE_HOME": str(state)}, **options)
    assert done.returncode == code, done.stderr.decode()
    return done


@pytest.fixture
def state(tmp_path):
    """A state folder with stores of several ages and kinds."""
    records = tmp_path / "sov-rtx/records"
    now = time.time_ns()
    make(2, 0, now - 40 * DAY).write(records / "20261021T000000Z-1")
    make(1, 1, now - 30 * DAY).write(records / "20261031T000000Z-2")
    make(4, 0, now - 20 * DAY).write(records / "20261110T000000Z-3")
    make(1, 0, now).write(records / "20261130T000000Z-4")
    (records / "20261001T000000Z-5").mkdir()
    return tmp_path


def names(done):
    return [json.loads(line)["store"].rsplit("-", 1)[-1] for line in done.stdout.splitlines()]


def test_stores_are_listed_by_date(state):
    stores = [json.loads(line) for line in log(state, "--json").stdout.splitlines()]
    assert [s["store"].rsplit("-", 1)[-1] for s in stores] == ["5", "1", "2", "3", "4"]
    assert [s["state"] for s in stores] == ["unreadable", "finished", "interrupted", "finished",
                                            "finished"]
    assert [s.get("sequences") for s in stores] == [None, 2, 2, 4, 1]
    assert stores[2]["interrupted"] == 1 and stores[2]["sessions"] == 1
    for s in stores[1:]:
        report = json.loads(sov.succeed("verify", s["store"], "--json").stdout)
        assert report["head"] == s["head"]
    text = log(state).stdout.decode()
    assert len(text.splitlines()) == 6 and stores[1]["head"] in text and "interrupted" in text
    assert log(state / "nothing", "--json").stdout == b""


def test_a_store_is_listed_by_sequence(store):
    folder, writer = store
    lines = [json.loads(line) for line in sov.succeed("log", folder, "--json").stdout.splitlines()]
    assert [s["sequence"] for s in lines] == [f"{q:016x}" for q in range(1, 6)]
    assert [s["state"] for s in lines] == ["stop"] * 3 + ["interrupted"] * 2
    assert [s["tokens"] for s in lines] == [130] * 3 + [128] * 2
    assert [s["prompt"] for s in lines] == [f"prompt {q}" for q in range(1, 6)]
    times = [r["time"] for s in lines for r in s["receipts"]]
    assert times == list(range(2, writer.time + 1))
    assert lines[-1]["receipts"][-1]["receipt"] == writer.worm.hex()
    text = sov.succeed("log", folder).stdout.decode()
    assert writer.head() in text and "prompt 5" in text


def test_a_terminal_gets_no_control_bytes(tmp_path):
    writer = sw.Writer()
    writer.session(sw.manifest(1))
    request = sw.Request(7, [1], prompt=b"\x1b[2J evil \x07\xff \xe2\x80\xae")
    writer.record(sw.REQUEST, sw.sequence_txid(sw.REQUEST, 7), request.bytes(), owner=7)
    text = sov.succeed("log", writer.write(tmp_path / "s")).stdout
    assert b"evil" in text and b"\x1b" not in text and b"\x07" not in text
    text.decode("utf-8")


def test_pruning_removes_what_is_old_and_done(state):
    records = state / "sov-rtx/records"
    before = {p.name for p in records.iterdir()}
    log(state)
    assert {p.name for p in records.iterdir()} == before  # nothing unless asked
    done = log(state, "--prune", "--older-than", 25, "--json")
    told = {json.loads(line)["store"].rsplit("-", 1)[-1]: json.loads(line)
            for line in done.stdout.splitlines()}
    assert set(told) == {"5", "1", "2"}
    assert told["1"]["removed"] and not told["2"]["removed"] and not told["5"]["removed"]
    assert "interrupted" in told["2"]["reason"]
    assert {p.name[-1] for p in records.iterdir()} == {"2", "3", "4", "5"}
    text = log(state, "--prune", "--older-than", 25, "--force").stdout.decode()
    assert text.count("removed") == 2
    assert {p.name[-1] for p in records.iterdir()} == {"3", "4"}
    assert log(state, "--prune", "--older-than", 25).stdout == b""


def test_pruning_leaves_what_is_in_use_and_what_is_not_ours(state):
    records = state / "sov-rtx/records"
    old = records / "20261021T000000Z-1"
    with open(old / "lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        text = log(state, "--prune", "--older-than", 0, "--force").stdout.decode()
    assert old.exists() and f"kept {old}: in use" in text
    (old / "notes.txt").write_text("mine")
    done = log(state, "--prune", "--older-than", 0, code=1)
    assert b"directory not empty" in done.stdout and (old / "notes.txt").exists()


def test_options_that_do_not_fit(state):
    for arguments in (["--prune"], ["--older-than", "3"], ["--force"],
                      ["--prune", "--older-than", "1", "x"]):
        assert log(state, *arguments, code=2).stdout == b""
    done = sov.call("log", env={})
    assert done.returncode == 2 and b"XDG_STATE_HOME" in done.stderr


def test_the_writer_in_python_writes_what_it_reads():
    """Of the tests themselves: a log read back and written again is the same log."""
    data = make(2, 1).bytes()
    assert sw.write_records(sw.read_records(data)).bytes()[8192:] == data[8192:]


def test_a_log_that_claims_much_takes_no_memory(store, tmp_path):
    """Head slots of a sparse file may tell of the most transactions there are; it ends where the
    entries do, by whoever reads it."""
    length = 64 << 30
    data = bytearray((store[0] / "log").read_bytes())
    for at in (0, 4096):
        data[at + 24:at + 32] = length.to_bytes(8, "little")
        data[at + 40:at + 48] = (2**26).to_bytes(8, "little")
    older = min((0, 4096), key=lambda at: int.from_bytes(data[at + 16:at + 24], "little"))
    newer = 4096 - older
    data[older + 240:older + 272] = sw.digest(bytes(data[older:older + 240]))
    data[newer + 208:newer + 240] = data[older + 240:older + 272]
    data[newer + 240:newer + 272] = sw.digest(bytes(data[newer:newer + 240]))
    (tmp_path / "log").write_bytes(data)
    with open(tmp_path / "log", "r+b") as log:
        try:
            log.truncate(length)
        except OSError:
            pytest.skip("no sparse files here")
    done = sov.call("verify", tmp_path, preexec_fn=lambda: resource.setrlimit(
        resource.RLIMIT_AS, (1 << 30, 1 << 30)))
    assert done.returncode == 4 and b"does not verify at byte" in done.stdout + done.stderr, done
