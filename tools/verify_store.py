#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Verifies a record store with nothing but Python's standard library.

    tools/verify_store.py STORE [--expect SIZE:ROOT] [--json]

Written from docs/format.md, and apart from it independent of the program that writes stores: the two are
each other's check. Exit code 0: it verifies, 2: usage, 3: there is no store, or it is of another
version, 4: it does not verify.
"""
import argparse
import hashlib
import json
import struct
import sys
from pathlib import Path

SLOT_BYTES = 4096
LOG_BEGIN = 2 * SLOT_BYTES
NONE = 2**64 - 1
ZEROS = bytes(32)
PAYLOAD_MAX = 2**36
RECORD, CLAIM, RECEIPT = 1, 2, 3
META = {RECORD: (244, b"sov-rowm body v1"), CLAIM: (104, b"sov-rowm take v1"),
        RECEIPT: (157, b"sov-rowm rcpt v1")}
SEALED_TAG, OPENING_TAG, SIDECAR_TAG = b"sov-rtx seald v1", b"sov-rtx openg v1", b"sov-rtx sidec v1"
CHUNK = 1 << 20
LIVE_READS = 16  # while a writer publishes


class Damage(Exception):
    """The store contradicts itself."""


class Unsupported(Exception):
    """The store is of another version, or none."""


def digest(*parts):
    h = hashlib.sha256()
    for part in parts:
        h.update(part)
    return h.digest()


def u64(value):
    return struct.pack("<Q", value)


def get_u64(data, offset):
    return struct.unpack_from("<Q", data, offset)[0]


def need(condition, message):
    if not condition:
        raise Damage(message)


class Tree:
    """RFC 6962, section 2.1: the roots of full subtrees, largest first, with their sizes."""

    def __init__(self):
        self.full = []

    def append(self, leaf):
        self.full.append((1, leaf))
        while len(self.full) > 1 and self.full[-1][0] == self.full[-2][0]:
            size, right = self.full.pop()
            _, left = self.full.pop()
            self.full.append((2 * size, digest(b"\x01", left, right)))

    def root(self):
        if not self.full:
            return digest()
        root = self.full[-1][1]
        for _, left in reversed(self.full[:-1]):
            root = digest(b"\x01", left, root)
        return root


def read_slot(data, index):
    """The fields of a slot, or None when it is not valid."""
    if data[:16] != b"sov-rowm head v1" or digest(data[:240]) != data[240:272] or data[272:] != bytes(3824):
        return None
    names = ("link", "root", "worm", "evolution", "access", "previous", "hash")
    slot = {name: data[48 + 32 * i:80 + 32 * i] for i, name in enumerate(names)}
    slot.update(generation=get_u64(data, 16), length=get_u64(data, 24), entries=get_u64(data, 32),
                time=get_u64(data, 40))
    return slot if slot["generation"] % 2 == index else None


def follow(older, newer):
    return (newer["generation"] == older["generation"] + 1 and newer["previous"] == older["hash"]
            and newer["length"] >= older["length"])


class Store:
    """What the entries read so far amount to."""

    def __init__(self):
        self.length = LOG_BEGIN
        self.link = self.worm = self.evolution = self.access = ZEROS
        self.tree = Tree()
        self.n_entries = self.time = self.n_sessions = self.n_claims = 0
        self.records = []       # dicts
        self.capabilities = {}  # id: [record, available]
        self.available = {}     # owner: capability
        self.transactions = set()
        self.pending = None     # (type, meta, leaf)
        self.record_at = 0      # where the pending record's payload is

    def heads(self):
        return {"length": self.length, "entries": self.n_entries, "time": self.time,
                "link": self.link, "root": self.tree.root(), "worm": self.worm,
                "evolution": self.evolution, "access": self.access}

    def fits(self, slot):
        return all(slot[name] == value for name, value in self.heads().items())

    # --- entries ---

    def read_entry(self, read, end):
        """The entry at the end as (type, meta, leaf, link, payload bytes), or None: not whole."""
        head = read(self.length, max(0, min(17, end - self.length)))
        if len(head) < 17 or head[16] not in META:
            return None
        kind, (meta_bytes, tag) = head[16], META[head[16]]
        payload_bytes = get_u64(head, 8)
        whole = 17 + meta_bytes + 32
        if get_u64(head, 0) != meta_bytes or whole + payload_bytes > end - self.length:
            return None
        entry = read(self.length, whole)
        if len(entry) < whole or entry[17:33] != tag:
            return None
        meta = entry[17:-32]
        leaf = digest(b"\0", entry[:-32])
        link = digest(b"sov-rowm link v1", self.link, leaf)
        if entry[-32:] != link:
            return None
        if kind == RECORD and meta[121] == 0:
            h = hashlib.sha256()
            for at in range(0, payload_bytes, CHUNK):
                h.update(read(self.length + whole + at, min(CHUNK, payload_bytes - at)))
            if h.digest() != meta[138:170]:
                return None
        return kind, meta, leaf, link, payload_bytes

    def step(self, read, end):
        """Takes one entry. False when there is none that is whole; Damage when it may not be there."""
        entry = self.read_entry(read, end)
        if entry is None:
            return False
        kind, meta, leaf, link, payload_bytes = entry
        try:
            if kind == RECEIPT:
                self.check_receipt(meta, payload_bytes)
            else:
                need(self.pending is None, "a receipt is missing")
                txid = meta[89:121] if kind == RECORD else meta[16:48]
                need(txid not in self.transactions, "the transaction id was used before")
                (self.check_record if kind == RECORD else self.check_claim)(meta, payload_bytes)
        except Damage as damage:
            raise Damage(f"the entry at byte {self.length} (number {self.n_entries}) does not "
                         f"belong there: {damage}") from None
        payload_at = self.length + 17 + len(meta) + 32
        self.length = payload_at + payload_bytes
        self.link = link
        self.n_entries += 1
        self.tree.append(leaf)
        if kind == RECEIPT:
            self.apply(meta)
        else:
            self.pending, self.record_at = (kind, meta, leaf), payload_at
        return True

    def check_record(self, meta, payload_bytes):
        kind, place, consumes, issues = meta[32], meta[121], meta[170], meta[203]
        owner, epoch, parent = (get_u64(meta, at) for at in (33, 41, 49))
        source, length, nonce = get_u64(meta, 122), get_u64(meta, 130), get_u64(meta, 204)
        need(max(place, consumes, issues) <= 1, "a flag is neither 0 nor 1")
        need(1 <= kind <= 5, "there is no such kind of record")
        need(get_u64(meta, 16) == len(self.records), "the record's id")
        need(get_u64(meta, 24) == self.n_sessions - (kind != 1), "the record's session")
        need(kind != 1 or not (consumes or issues), "a manifest has no capability")
        need(parent == NONE or parent < len(self.records), "the parent is no earlier record")
        need(meta[57:89] == self.evolution, "the parent root")
        proof = digest(b"sov-rowm prof v1", meta[57:89], meta[89:121], meta[138:170], meta[41:49])
        need(meta[212:244] == proof, "the write proof")
        consumed = None
        if consumes:
            capability = meta[171:203]
            need(self.capabilities.get(capability, (0, False))[1], "the capability")
            consumed = self.capabilities[capability][0]
            need(self.records[consumed]["owner"] == owner, "another owner's capability")
        else:
            need(meta[171:203] == ZEROS, "a capability that is not consumed")
        if issues:
            need(nonce == len(self.capabilities), "the nonce")
            need(owner not in self.available or
                 (consumes and self.available[owner] == meta[171:203]), "a second capability")
        else:
            need(nonce == 0, "a nonce without a capability")
        if place == 0:
            need(payload_bytes == length <= PAYLOAD_MAX and source == NONE, "the payload's length")
        else:
            need(consumed is not None and payload_bytes == 0, "a payload by reference")
            origin = self.records[consumed]
            wanted = consumed if origin["source"] == NONE else origin["source"]
            need(source == wanted and length == origin["length"] and
                 meta[138:170] == origin["hash"] and epoch == origin["epoch"] + 1,
                 "a payload by reference")

    def check_claim(self, meta, payload_bytes):
        capability = meta[48:80]
        need(payload_bytes == 0, "a claim with a payload")
        need(self.capabilities.get(capability, (0, False))[1], "the capability")
        need(get_u64(meta, 80) == self.capabilities[capability][0], "the claim's record")
        need(get_u64(meta, 96) == self.n_claims, "the claim's number")

    def check_receipt(self, meta, payload_bytes):
        need(self.pending is not None, "a receipt of nothing")
        kind, certified, _ = self.pending
        if kind == RECORD:
            txid, payload_hash = certified[89:121], certified[138:170]
        else:
            txid = certified[16:48]
            payload_hash = self.records[get_u64(certified, 80)]["hash"]
        body = (b"sov-rowm rcpt v1" + struct.pack("<IB", 1, 1 if kind == RECORD else 2) + txid +
                payload_hash + self.worm + u64(self.time + 1))
        need(payload_bytes == 0 and meta == body + digest(body),
             "the receipt contradicts what it certifies")

    def apply(self, receipt):
        kind, meta, leaf = self.pending
        self.pending = None
        self.time += 1
        self.worm = receipt[125:157]
        self.transactions.add(receipt[21:53])
        if kind == CLAIM:
            self.n_claims += 1
            self.consume(get_u64(meta, 88), meta[48:80])
            return
        owner, number = get_u64(meta, 33), len(self.records)
        if meta[170]:
            self.consume(owner, meta[171:203])
        self.records.append({"owner": owner, "epoch": get_u64(meta, 41),
                             "source": get_u64(meta, 122), "length": get_u64(meta, 130),
                             "hash": meta[138:170], "at": self.record_at})
        self.n_sessions += meta[32] == 1
        if meta[203]:
            capability = digest(b"sov-rowm cpbl v1", u64(number), meta[33:41], meta[204:212])
            self.capabilities[capability] = [number, True]
            self.available[owner] = capability
        self.evolution = digest(b"sov-rowm evol v1", self.evolution, leaf, meta[212:244],
                                u64(self.time))

    def consume(self, consumer, capability):
        entry = self.capabilities[capability]
        entry[1] = False
        del self.available[self.records[entry[0]]["owner"]]
        self.access = digest(b"sov-rowm accs v1", self.access, u64(consumer), u64(entry[0]),
                             capability, u64(self.time))


def read_slots(read, live):
    """Both slots, older first. Live: somebody may be writing, so looks again until they fit."""
    for _ in range(LIVE_READS if live else 1):
        data = read(0, LOG_BEGIN)
        need(len(data) == LOG_BEGIN, f"the log has {len(data)} bytes, its head takes {LOG_BEGIN}")
        halves = data[:SLOT_BYTES], data[SLOT_BYTES:]
        if all(half[:15] == b"sov-rowm head v" and half[15:16] != b"1" for half in halves):
            raise Unsupported("the store is of another version, this program reads version 1")
        slots = [read_slot(half, i) for i, half in enumerate(halves)]
        if None not in slots:
            older, newer = sorted(slots, key=lambda slot: slot["generation"])
            if follow(older, newer):
                return older, newer
    need(None not in slots, f"head slot {slots.index(None) if None in slots else 0} does not verify")
    raise Damage("the head slots do not follow each other")


def read_openings(path):
    """The digests of all openings that a sidecar has."""
    found = set()
    try:
        data = path.read_bytes()
    except OSError:
        return found
    at = 0
    while 0 <= at <= len(data) - 72:
        n = get_u64(data, at + 16)
        head = data[at:at + 64]
        is_head = head.startswith(SIDECAR_TAG) and digest(head)[:8] == data[at + 64:at + 72]
        if is_head and n <= len(data) - at - 72:
            opening = data[at + 72:at + 72 + n]
            if n > 48 and opening.startswith(OPENING_TAG) and digest(opening) == head[32:]:
                found.add((n, head[32:]))
            at += 72 + n
        else:
            at = data.find(SIDECAR_TAG, at + 1)
    return found


def count_commitments(store, read, openings):
    """How many records are commitments, and how many of these there are openings of."""
    found = []
    for record in store.records:
        if record["length"] == 56 and record["source"] == NONE:
            payload = read(record["at"], 56)
            if payload.startswith(SEALED_TAG):
                found.append((get_u64(payload, 16), payload[24:]))
    return {"commitments": len(found), "opened": sum(seal in openings for seal in found)}


def verify(read, size, expect=None, live=False, openings=()):
    """Checks a log by read(offset, bytes); size() is called when the slots are read. Returns the
    report, or raises Damage."""
    older, newer = read_slots(read, live)
    size = size()
    end = newer["length"]
    need(size >= end, f"the log has {size} bytes, {end} were acknowledged: it was cut")
    store = Store()
    older_seen, expected = False, expect is None
    while True:
        if store.length == older["length"]:
            need(store.pending is None and store.fits(older),
                 "the older head slot does not fit the log")
            older_seen = True
        if expect is not None and store.n_entries == expect[0]:
            expected = store.tree.root() == expect[1]
        if not store.step(read, end):
            break
    need(store.length == end and store.pending is None and store.fits(newer),
         f"the log does not verify at byte {store.length}; {end} were acknowledged")
    need(older_seen, "the older head slot names a place where no entry ends")
    need(expected, "not the expected root: an older copy, or another store")
    report = {"entries": store.n_entries, "root": newer["root"].hex(), "receipts": store.time,
              "records": len(store.records), "sessions": store.n_sessions,
              "capabilities": len(store.capabilities), "available": len(store.available),
              "worm": newer["worm"].hex(), "evolution": newer["evolution"].hex(),
              "access": newer["access"].hex(), "tail_offset": end, "tail_bytes": size - end,
              **count_commitments(store, read, openings)}
    while store.step(read, size):
        pass
    report["tail_entries"] = store.n_entries - report["entries"]
    return report


def reader_of(data):
    return lambda offset, n: data[offset:offset + n]


def verify_file(path, expect=None):
    with open(path, "rb") as file:
        def read(offset, n):
            file.seek(offset)
            return file.read(n)
        return verify(read, lambda: path.stat().st_size, expect, live=True,
                      openings=read_openings(path.parent / "sidecar"))


def parse_expect(text):
    size, _, root = text.partition(":")
    value = bytes.fromhex(root)
    if len(value) != 32:
        raise ValueError("a root has 64 hexadecimal digits")
    return int(size), value


def main():
    parser = argparse.ArgumentParser(description="Verifies a record store (docs/format.md).")
    parser.add_argument("store", type=Path)
    parser.add_argument("--expect", type=parse_expect, metavar="SIZE:ROOT")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    try:
        report = verify_file(args.store / "log", args.expect)
    except Damage as damage:
        print(f"{args.store} does not verify: {damage}", file=sys.stderr)
        return 4
    except (Unsupported, OSError) as error:
        print(f"{args.store}: {error}", file=sys.stderr)
        return 3
    if args.json:
        print(json.dumps(report))
    else:
        print(f"{report['entries']}:{report['root']} verifies: {report['records']} records, "
              f"{report['receipts']} receipts, {report['sessions']} sessions")
        if report["commitments"]:
            print(f"{report['commitments']} commitments; the sidecar has the texts and tokens of "
                  f"{report['opened']} of them")
        if report["tail_bytes"]:
            print(f"a tail of {report['tail_bytes']} bytes from byte {report['tail_offset']} on was "
                  f"never acknowledged ({report['tail_entries']} whole entries)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
