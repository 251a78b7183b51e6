# SPDX-License-Identifier: Apache-2.0
"""sov events over spools that tests/test_events.c writes: table and CloudEvents, checked against a
second reader written here from docs/events.md; tails, damage, and a reader that follows."""
import datetime
import hashlib
import json
import signal
import struct
import subprocess
import time

import pytest

import sov

WRITER = sov.BUILD / "free/test_events"
TAG, EVENT_TAG, FRAME = b"sov-rtx spool v1", b"sov-rtx event v1", 165
TYPES = {1: "admitted", 2: "token", 3: "finished"}
STATES = ["idle", "prefill", "generate", "swap", "checkpoint", "resume"]
REASONS = [None, "stop", "length", "cancel", "deadline", "failed"]


def write(path, events, *options):
    if not WRITER.exists():
        pytest.skip(f"{WRITER} is not built")
    return subprocess.run([WRITER, f"WRITE={path}", f"EVENTS={events}", *options, "write_slowly"],
                          stdout=subprocess.PIPE, check=True)


def read(data):
    """The events of a spool, by the document."""
    assert data[:16] == TAG
    at, heads = 16, {}
    while at < len(data):
        length = struct.unpack_from("<I", data, at)[0]
        frame = data[at:at + 4 + length]
        assert hashlib.sha256(frame).digest()[:8] == data[at + 4 + length:at + 12 + length]
        wall = struct.unpack_from("<Q", frame, 4)[0]
        event = frame[12:]
        assert event[:16] == EVENT_TAG and len(event) == 145
        (version, kind, sequence, before, after, count, token, reason, has_receipt, receipt, number,
         prior, digest) = struct.unpack("<IBQBBIIBB32sQ32s32s", event[16:])
        assert hashlib.sha256(event[:113]).digest() == digest
        assert heads.get(sequence, prior) == prior
        heads[sequence] = digest
        yield {"wall": wall, "version": version, "event_type": TYPES[kind],
               "sequence_id": f"{sequence:016x}", "previous_state": STATES[before],
               "new_state": STATES[after], "committed_token_count": count,
               "sampled_token_id": None if token == 0xffffffff else token,
               "finish_reason": REASONS[reason],
               "checkpoint_receipt_hash": receipt.hex() if has_receipt else None,
               "prior_digest": prior.hex(), "transition_digest": digest.hex(),
               "monotonic_sequence_number": number}
        at += 12 + length
    assert at == len(data)


def test_json_and_table(tmp_path):
    spool = tmp_path / "spool"
    write(spool, 20)
    expected = list(read(spool.read_bytes()))
    assert len(expected) == 20
    lines = sov.succeed("events", spool, "--json").stdout.splitlines()
    for line, event in zip(lines, expected, strict=True):
        cloud, wall = json.loads(line), event.pop("wall")
        assert cloud["data"] == event and cloud["specversion"] == "1.0"
        assert cloud["id"] == str(event["monotonic_sequence_number"])
        assert cloud["source"] == "/sov-rtx/sequence/" + event["sequence_id"]
        assert cloud["type"] == "sov_rtx.sequence." + event["event_type"]
        assert cloud["datacontenttype"] == "application/json"
        seconds = datetime.datetime.fromtimestamp(wall // 10**9, datetime.timezone.utc)
        assert cloud["time"] == seconds.strftime("%Y-%m-%dT%H:%M:%S") + f".{wall % 10**9:09}Z"
    table = sov.succeed("events", spool).stdout.decode().splitlines()
    assert table[0].split()[:3] == ["POSITION", "SEQUENCE", "NUMBER"] and len(table) == 21
    for i, (row, event) in enumerate(zip(table[1:], expected, strict=True)):
        cells = row.split()
        assert cells[:4] == [str(i), event["sequence_id"],
                             str(event["monotonic_sequence_number"]), event["event_type"]]
        assert event["transition_digest"].startswith(cells[-1]) and len(cells[-1]) == 16
    for start in (0, 7, 20, 2**64 - 1):
        rest = sov.succeed("events", spool, "--json", "--from", start).stdout.splitlines()
        assert rest == lines[start:]


def test_times():
    """The calendar, over leap years and centuries."""
    rows = [(1, "1970-01-01T00:00:00.000000001Z"), (951782400 * 10**9, "2000-02-29T00:00:00.0"),
            (951868800 * 10**9, "2000-03-01T00:00:00.0"), (4107542400 * 10**9, "2100-03-01T00:00:00.0"),
            (1709251199 * 10**9 + 5, "2024-02-29T23:59:59.000000005Z"),
            (2**63, "2262-04-11T23:47:16.854775808Z")]
    import tempfile
    with tempfile.NamedTemporaryFile() as file:
        body = TAG
        for number, (wall, _) in enumerate(rows):
            event = EVENT_TAG + struct.pack("<IBQBBIIBB32sQ32s", 1, 1, number, 0, 1, 0, 0xffffffff, 0, 0,
                                            bytes(32), 0, bytes(32))
            event += hashlib.sha256(event).digest()
            frame = struct.pack("<IQ", 153, wall) + event
            body += frame + hashlib.sha256(frame).digest()[:8]
        file.write(body)
        file.flush()
        lines = sov.succeed("events", file.name, "--json").stdout.splitlines()
    for line, (_, text) in zip(lines, rows, strict=True):
        assert json.loads(line)["time"].startswith(text)


def test_tail_and_damage(tmp_path):
    spool = tmp_path / "spool"
    write(spool, 10)
    data = spool.read_bytes()
    for cut in range(0, len(data), 7):
        spool.write_bytes(data[:cut])
        done = sov.succeed("events", spool, "--json")
        whole = max(cut - 16, 0) // FRAME
        assert len(done.stdout.splitlines()) == whole
        tail = cut - 16 - whole * FRAME if cut >= 16 else cut
        assert (f"{tail} bytes" in done.stderr.decode()) == (tail > 0)
    for at in (16 + 3 * FRAME + 40, 16 + 3 * FRAME, 16 + 4 * FRAME - 1):
        broken = bytearray(data)
        broken[at] ^= 1
        spool.write_bytes(broken)
        done = sov.call("events", spool)
        assert done.returncode == 4 and b"damaged" in done.stderr
        assert len(done.stdout.splitlines()) == 1 + 3  # what was in front of it is shown
    gap = data[:16 + 3 * FRAME] + data[16 + 4 * FRAME:]
    spool.write_bytes(gap)
    done = sov.call("events", spool, "--json", "--from", 100)
    assert done.returncode == 4 and b"expected number 1" in done.stderr and done.stdout == b""
    for other, code in ((b"GGUF", 3), (TAG.replace(b"1", b"2"), 3), (b"", 0)):
        spool.write_bytes(other)
        assert sov.call("events", spool).returncode == code


def test_usage(tmp_path):
    assert sov.call("events").returncode == 2
    assert sov.call("events", "a", "b").returncode == 2
    assert sov.call("events", tmp_path / "none").returncode == 1
    assert sov.call("events", tmp_path).returncode == 1
    assert sov.call("events", "/dev/null").returncode == 1
    assert b"CloudEvents" in sov.succeed("events", "-h").stdout


def follow(spool, *options):
    return subprocess.Popen([sov.SOV, "events", spool, "--follow", "--json", *options],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_follow(tmp_path):
    """A reader that follows sees every event while the writer lives; one that is killed or stands
    still costs the writer nothing."""
    spool = tmp_path / "spool"
    write(spool, 1)
    with follow(spool) as reader, follow(spool) as dead, follow(spool) as stopped:
        assert json.loads(reader.stdout.readline())["id"] == "0"
        dead.stdout.readline()
        stopped.stdout.readline()
        stopped.send_signal(signal.SIGSTOP)
        begin = time.monotonic()
        with subprocess.Popen([WRITER, f"WRITE={spool}", "EVENTS=90", "PAUSE=5", "write_slowly"],
                              stdout=subprocess.PIPE) as writer:
            for _ in range(40):
                reader.stdout.readline()
            assert writer.poll() is None  # still at it
            dead.kill()
            assert writer.wait() == 0
        assert time.monotonic() - begin < 20
        for _ in range(49):
            reader.stdout.readline()
        # The writer is killed in the middle of a write: a tail, then another writer cuts it.
        with open(spool, "ab") as file:
            file.write(spool.read_bytes()[16:16 + 100])
        time.sleep(0.2)
        assert reader.poll() is None
        write(spool, 93)
        rest = [json.loads(reader.stdout.readline()) for _ in range(3)]
        assert len(rest) == 3 and len(list(read(spool.read_bytes()))) == 93
        stopped.send_signal(signal.SIGCONT)
        assert len([stopped.stdout.readline() for _ in range(92)]) == 92
        for process in (reader, stopped):
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=10) == 130
    with follow(spool, "--from", "90") as reader:
        assert [json.loads(reader.stdout.readline())["id"] for _ in range(3)] == ["30"] * 3
        spool.write_bytes(spool.read_bytes()[:500])  # below what was read
        assert reader.wait(timeout=10) == 4
        assert b"cut or replaced" in reader.stderr.read()
