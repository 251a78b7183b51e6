# SPDX-License-Identifier: Apache-2.0
"""The two verifiers on stores that a forger wrote: this file makes stores from docs/format.md (through
tools/verify_store.py's state, never through the program), valid ones, and ones with a single field
of the last transaction changed *before* everything above it was hashed, so that nothing but the
rule about that field can tell. And on random damage without hashes repaired. They must agree on each;
seeds are printed. Needs `make tests`; SOV_TEST_FULL makes it longer.
"""
import importlib.util
import os
import random
import struct
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BUILD = Path(os.environ.get("SOV_TEST_BUILD", ROOT / "build"))
PROGRAM = BUILD / "free/test_rowm"
FULL = "SOV_TEST_FULL" in os.environ
SEED = int(os.environ.get("SOV_TEST_SEED", 20261130))
TIMEOUT = 300
LOG_BYTES_MAX = 40 * 1024  # of the simulated disk

spec = importlib.util.spec_from_file_location("verify_store", ROOT / "tools/verify_store.py")
vs = importlib.util.module_from_spec(spec)
spec.loader.exec_module(vs)

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason=f"{PROGRAM} is not built")
NONE = vs.NONE


def judge(data):
    try:
        report = vs.verify(vs.reader_of(data), lambda: len(data))
    except vs.Damage:
        return "x"
    except vs.Unsupported:
        return "?"
    return "t" if report["tail_bytes"] else "."


def expect_agreement(logs, tmp_path):
    """Both verdicts of every log, which must be the same; returns them."""
    logs = [log for log in logs if len(log) <= LOG_BYTES_MAX]
    path = tmp_path / "logs"
    path.write_bytes(b"".join(struct.pack("<I", len(log)) + log for log in logs))
    done = subprocess.run([PROGRAM, "many", path], capture_output=True, text=True, timeout=TIMEOUT,
                          check=True)
    theirs, ours = done.stdout.split(), [judge(log) for log in logs]
    assert len(theirs) == len(ours)
    for i, (a, b) in enumerate(zip(ours, theirs)):
        if a != b:
            (tmp_path / "disagree").write_bytes(logs[i])
        assert a == b, f"log {i}: {a} here, {b} there; kept as {tmp_path / 'disagree'}"
    return ours


# --- a writer from the document ---

class Forger:
    def __init__(self, chance):
        self.chance, self.store, self.log = chance, vs.Store(), bytearray()
        self.number = 0

    def entry(self, kind, meta, payload=b"", lengths=None):
        """Appends an entry with a right link, whatever is in it."""
        head = struct.pack("<QQB", *(lengths or (len(meta), len(payload))), kind) + meta
        link = vs.digest(b"sov-rowm link v1", self.last_link(), vs.digest(b"\0", head))
        self.link = link
        self.log += head + link + payload

    def last_link(self):
        return getattr(self, "link", bytes(32))

    def txid(self):
        self.number += 1
        return vs.digest(b"tx", vs.u64(self.number))

    def record(self, change=None, **fields):
        """A valid record of the current state, but for `fields` and `change(meta) -> meta`."""
        s, chance = self.store, self.chance
        owner = fields.get("owner", chance.randrange(4))
        has = s.available.get(owner)
        f = {"tag": b"sov-rowm body v1", "id": len(s.records), "kind": chance.randrange(2, 6),
             "owner": owner, "epoch": chance.randrange(3), "parent": NONE,
             "parent_root": s.evolution, "txid": self.txid(), "place": 0, "source": NONE,
             "payload": chance.randbytes(chance.randrange(60)), "consumes": 0,
             "capability": bytes(32), "issues": 0, "nonce": 0}
        if not s.records:
            f["kind"] = 1
        elif chance.random() < 0.05:
            f["kind"] = 1
        elif chance.random() < 0.6:
            f["issues"], f["nonce"] = 1, len(s.capabilities)
        if f["kind"] != 1 and has and (f["issues"] or chance.random() < 0.3):
            f["consumes"], f["capability"] = 1, has
        if s.records and chance.random() < 0.5:
            f["parent"] = chance.randrange(len(s.records))
        length = digest = None
        if f["consumes"] and chance.random() < 0.5:
            number = s.capabilities[has][0]
            origin = s.records[number]
            f.update(place=1, payload=b"", epoch=origin["epoch"] + 1,
                     source=number if origin["source"] == NONE else origin["source"])
            length, digest = origin["length"], origin["hash"]
        f["session"] = s.n_sessions - (f["kind"] != 1)
        f.update({k: v for k, v in fields.items() if k in f})
        length = fields.get("length", len(f["payload"]) if length is None else length)
        digest = fields.get("hash", vs.digest(f["payload"]) if digest is None else digest)
        u64 = lambda n: vs.u64(n % 2**64)
        proof = vs.digest(b"sov-rowm prof v1", f["parent_root"], f["txid"], digest, u64(f["epoch"]))
        meta = (f["tag"] + u64(f["id"]) + u64(f["session"]) + bytes([f["kind"]]) + u64(f["owner"]) +
                u64(f["epoch"]) + u64(f["parent"]) + f["parent_root"] + f["txid"] +
                bytes([f["place"]]) + u64(f["source"]) + u64(length) + digest +
                bytes([f["consumes"]]) + f["capability"] + bytes([f["issues"]]) + u64(f["nonce"]) +
                fields.get("proof", proof))
        self.entry(1, change(meta) if change else meta, f["payload"])

    def claim(self, change=None, **fields):
        s, chance = self.store, self.chance
        capability = fields.get("capability") or chance.choice(list(s.available.values()))
        number = s.capabilities.get(capability, [0])[0]
        meta = (b"sov-rowm take v1" + fields.get("txid", self.txid()) + capability +
                vs.u64(fields.get("record", number)) + vs.u64(chance.randrange(2**64)) +
                vs.u64(fields.get("number", s.n_claims)))
        self.entry(2, change(meta) if change else meta, fields.get("payload", b""))

    def receipt(self, change=None, **fields):
        s = self.store
        kind, certified, _ = s.pending
        if kind == 1:
            txid, payload = certified[89:121], certified[138:170]
        else:
            txid, payload = certified[16:48], s.records[vs.get_u64(certified, 80)]["hash"]
        body = (b"sov-rowm rcpt v1" + struct.pack("<IB", fields.get("version", 1), kind) + txid +
                payload + fields.get("previous", s.worm) +
                vs.u64(fields.get("time", s.time + 1)))
        meta = body + vs.digest(body)
        self.entry(3, change(meta) if change else meta)

    def take(self):
        """What was appended into the state. Whether it was valid."""
        data = bytes(8192) + self.log
        try:
            while self.store.step(vs.reader_of(data), len(data)):
                pass
        except vs.Damage:
            return False
        return self.store.length == len(data)

    def transactions(self, n):
        for _ in range(n):
            if self.store.available and self.chance.random() < 0.25:
                self.claim()
            else:
                self.record()
            assert self.take()
            self.receipt()
            assert self.take()

    def slots(self, counts):
        """Two slots with the heads after so many entries."""
        state, data = vs.Store(), bytes(8192) + self.log
        slots, previous = [], bytes(32)
        for generation, count in enumerate(counts):
            while state.n_entries < count:
                assert state.step(vs.reader_of(data), len(data))
            h = state.heads()
            body = b"sov-rowm head v1" + struct.pack("<QQQQ", generation, h["length"], h["entries"],
                                                     h["time"])
            body += b"".join(h[k] for k in ("link", "root", "worm", "evolution", "access")) + previous
            previous = vs.digest(body)
            slots.append((body + previous).ljust(4096, b"\0"))
        return b"".join(slots)

    def bytes(self, n_published):
        n = n_published - n_published % 2
        return self.slots((max(0, n - 2), n)) + bytes(self.log)


NUMBERS = (0, 1, 2, 3, 2**32, 2**36, 2**36 + 1, 2**63, 2**64 - 2, 2**64 - 1)


def twist(forger):
    """One more transaction, with one thing about it chosen to be wrong (or, at times, right)."""
    chance, s = forger.chance, forger.store
    digests = [bytes(32), s.evolution, s.worm, s.access, chance.randbytes(32), vs.digest(b"")]
    digests += list(s.capabilities)[:4] + [r["hash"] for r in s.records[:4]]
    near = [len(s.records) - 1, len(s.records), len(s.capabilities), s.n_claims, s.time, s.n_sessions]
    number = chance.choice(list(NUMBERS) + [n % 2**64 for n in near])
    which = chance.randrange(4)

    def poke(meta):  # a byte of the meta part, hashed as it is
        at = chance.randrange(len(meta))
        return meta[:at] + bytes([meta[at] ^ 1 << chance.randrange(8)]) + meta[at + 1:]

    if which == 0 and s.available:  # a claim
        field = chance.choice(("capability", "record", "number", "payload", "txid", "poke"))
        value = {"capability": chance.choice(digests), "record": number, "number": number,
                 "payload": b"x", "txid": chance.choice(list(s.transactions)), "poke": None}[field]
        forger.claim(**({"change": poke} if field == "poke" else {field: value}))
    elif which == 1:  # a receipt
        forger.record()
        assert forger.take()
        field = chance.choice(("version", "previous", "time", "poke"))
        forger.receipt(**({"change": poke} if field == "poke" else
                          {field: {"version": chance.choice((0, 2)), "time": number,
                                   "previous": chance.choice(digests)}[field]}))
        return
    else:
        field = chance.choice(("id", "kind", "owner", "epoch", "parent", "parent_root", "txid", "place",
                               "source", "payload", "length", "hash", "consumes", "capability",
                               "issues", "nonce", "session", "proof", "poke"))
        small = chance.randrange(4) if field != "kind" else chance.choice((0, 1, 2, 5, 6, 255))
        value = (small if field in ("kind", "place", "consumes", "issues") else
                 chance.choice(digests) if field in ("parent_root", "hash", "capability", "proof") else
                 chance.choice(list(s.transactions)) if field == "txid" else
                 chance.randbytes(chance.randrange(50)) if field == "payload" else number)
        more = {}
        if field == "consumes" and chance.random() < 0.5:
            more["capability"] = chance.choice(digests)
        forger.record(**({"change": poke} if field == "poke" else {field: value, **more}))
    if forger.take():
        forger.receipt()
        forger.take()


def test_forged_transactions(tmp_path):
    """In the tail, where nothing but validity decides: taken by both, or damage to both."""
    chance, logs, n_stores = random.Random(SEED), [], 4000 if FULL else 400
    for _ in range(n_stores):
        forger = Forger(chance)
        forger.transactions(chance.randrange(2, 7))
        published = forger.store.n_entries
        twist(forger)
        logs.append(forger.bytes(published))
    verdicts = expect_agreement(logs, tmp_path)
    print(f"seed {SEED}: {n_stores} stores, {verdicts.count('x')} damaged, {verdicts.count('t')} taken")
    assert verdicts.count("x") > n_stores // 4 and verdicts.count("t") > n_stores // 20


def test_forged_stores_are_valid(tmp_path):
    """What the forger writes without a twist verifies, whole and as a tail."""
    chance, logs, wanted = random.Random(SEED + 1), [], ""
    for _ in range(1000 if FULL else 60):
        forger = Forger(chance)
        forger.transactions(chance.randrange(2, 10))
        n = forger.store.n_entries
        for published in (n, n - 2):
            logs.append(forger.bytes(published))
            wanted += "." if published == n else "t"
    assert "".join(expect_agreement(logs, tmp_path)) == wanted


def test_an_epoch_that_cannot_grow(tmp_path):
    forger = Forger(random.Random(1))
    forger.record()
    assert forger.take()
    forger.receipt()
    forger.take()
    forger.record(owner=1, issues=1, nonce=0, epoch=2**64 - 1, kind=3, consumes=0)
    assert forger.take()
    forger.receipt()
    forger.take()
    capability, = forger.store.available.values()
    origin = forger.store.records[1]
    forger.record(owner=1, kind=3, place=1, payload=b"", epoch=0, source=1, consumes=1, issues=0,
                  nonce=0, capability=capability, length=origin["length"], hash=origin["hash"])
    assert expect_agreement([forger.bytes(4)], tmp_path) == ["x"]


# --- damage ---

def damage(chance, log):
    """One to three random changes of the bytes."""
    data = bytearray(log)
    for _ in range(chance.randrange(1, 4)):
        a, b = sorted(chance.randrange(len(data) + 1) for _ in range(2))
        b = min(b, a + chance.choice((1, 8, 32, 300, 5000)))
        kind = chance.randrange(7)
        if kind == 0 and a < len(data):
            data[a] = chance.randrange(256)
        elif kind == 1:
            data[a:b] = bytes(b - a)
        elif kind == 2:
            del data[a:b]
        elif kind == 3:
            data[a:a] = data[a:b]
        elif kind == 4:
            data[a:b] = chance.randbytes(b - a)
        elif kind == 5:
            del data[a:]
        else:
            data += chance.randbytes(chance.randrange(400))
        if not data:
            break
    return bytes(data)


def test_random_damage(tmp_path):
    chance, logs, whole = random.Random(SEED + 2), [], []
    for _ in range(100 if FULL else 10):
        forger = Forger(chance)
        forger.transactions(chance.randrange(2, 9))
        whole.append(forger.bytes(forger.store.n_entries - chance.choice((0, 2))))
    for _ in range(20000 if FULL else 1500):
        log = chance.choice(whole)
        if chance.random() < 0.2:  # slots of one, entries of another
            log = log[:8192] + chance.choice(whole)[8192:]
        logs.append(damage(chance, log))
    verdicts = expect_agreement(logs, tmp_path)
    print(f"seed {SEED + 2}: {len(verdicts)} damaged logs, {verdicts.count('x')} do not verify, "
          f"{verdicts.count('t')} have a tail, {verdicts.count('.')} are whole")
    assert verdicts.count("x") > len(verdicts) // 2 and verdicts.count("t") > 0
