# SPDX-License-Identifier: Apache-2.0
"""--record digest: a store and a spool without a word of what was asked and answered, the sidecar that
has it, and its erasure. Bytes are read here from docs/format.md and docs/events.md alone (store_writer.py)."""
import fcntl
import hashlib
import json
import os
import random
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import sov
import store_writer as sw
from test_record import read_request
from test_replay import replay, requests, small_model

SEED = 20268
TIMEOUT = 120
STOP = "no such words as these"
TOKEN, FINISHED = 2, 3  # events
NONE = 2**64 - 1


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return small_model(tmp_path_factory.mktemp("digest") / "small.gguf")


def some_lines(n=24, tokens=190):
    lines = list(requests(n, tokens))
    for line in lines:
        if "stop" in line:
            line["stop"] = line["stop"] + [STOP]
    return lines


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def batch(model, base, requests_file, *options, code=0):
    """A store at base, answers and spool beside it."""
    done = sov.call("batch", "-m", model, requests_file, "--store", base, "-o", f"{base}.jsonl",
                    "--events", f"{base}.spool", "-t", "1", *options)
    assert done.returncode == code, done.stderr.decode()
    return done


def answers(path):
    """Answers by id, without what is a function of the salt."""
    found = {}
    for line in path.read_text().splitlines():
        answer = json.loads(line)
        assert len(answer.pop("digest")) == 64
        found[answer["id"]] = answer
    return found


@pytest.fixture(scope="module")
def made(small, tmp_path_factory):
    """The same requests recorded in clear once, and twice by commitments."""
    folder = tmp_path_factory.mktemp("digest")
    lines = some_lines()
    path = write_lines(folder / "requests.jsonl", lines)
    batch(small, folder / "clear", path)
    for name in ("sealed", "again"):
        batch(small, folder / name, path, "--record", "digest")
    return SimpleNamespace(model=small, lines=lines, requests=path, clear=folder / "clear",
                           sealed=folder / "sealed", again=folder / "again")


def copy_of(store, folder):
    shutil.copytree(store, folder)
    return folder


def log_of(store):
    return (store / "log").read_bytes()


def sidecar_of(store):
    return (store / "sidecar").read_bytes()


def spool_of(store):
    return store.with_name(store.name + ".spool").read_bytes()


def opened_records(store):
    """Records of a store with everything in clear that can be; the salt is in those that were sealed."""
    return sw.unseal(sw.read_records(log_of(store)), sidecar_of(store))


def own_records(records):
    return [r for r in records if r.kind != sw.MANIFEST and r.payload is not None]


def read_spool(data):
    """The events of a spool, docs/events.md: bytes and fields."""
    assert data[:16] == b"sov-rtx spool v1"
    at, events = 16, []
    while at < len(data):
        n = struct.unpack_from("<I", data, at)[0]
        frame = data[at:at + 4 + n]
        assert hashlib.sha256(frame).digest()[:8] == data[at + 4 + n:at + 12 + n]
        body = frame[12:]
        version = struct.unpack_from("<I", body, 16)[0]
        assert body[:16] == b"sov-rtx event v1" and len(body) == {1: 145, 2: 177}[version]
        assert hashlib.sha256(body[:-32]).digest() == body[-32:]
        kind, sequence, _, _, count, token, finish, has_receipt, receipt, number, prior = \
            struct.unpack_from("<BQBBIIBB32sQ32s", body, 20)
        events.append(SimpleNamespace(
            version=version, kind=kind, sequence=sequence, count=count, token=token, finish=finish,
            receipt=receipt if has_receipt else None, number=number, prior=prior,
            commitment=body[113:145] if version == 2 else None, digest=body[-32:]))
        at += 12 + n
    return events


# --- what a store and a spool do not have ---

def occurring(data, needles):
    """Those of the needles, of 8 bytes and more each, that stand in the data."""
    windows = np.lib.stride_tricks.sliding_window_view(np.frombuffer(data, np.uint8), 8)
    windows = np.ascontiguousarray(windows).view("<u8")[:, 0]
    by_prefix = {}
    for needle in needles:
        by_prefix.setdefault(struct.unpack_from("<Q", needle)[0], set()).add(needle)
    hits = np.nonzero(np.isin(windows, np.fromiter(by_prefix, np.uint64)))[0].tolist()
    return {needle for at in hits for needle in by_prefix[int(windows[at])]
            if data[at:at + len(needle)] == needle}


def windows_of(data, n, step, wanted):
    for at in range(0, len(data) - n + 1, step):
        part = data[at:at + n]
        if wanted(part):
            yield part


def text_needles(made):
    """Any 8 bytes in a row of what was asked and answered, and the seeds."""
    texts = made.requests.read_bytes().splitlines() + [STOP.encode()]
    for answer in answers(made.clear.with_name("clear.jsonl")).values():
        texts.append(answer["text"].encode())
    for line in made.lines:
        texts.append(line.get("prompt", "").encode())
    found = {part for text in texts for part in windows_of(text, 8, 1, lambda p: len(set(p)) > 3)}
    return found | {sw.u64(line["seed"]) for line in made.lines if "seed" in line}


def token_needles(records):
    """Any 4 tokens in a row, but those that are hardly more than zeros."""
    def wanted(part):
        return len(set(struct.unpack("<4I", part)) - {0}) > 2
    found = set()
    for r in own_records(records):
        tokens = (read_request(r.payload)["tokens"] if r.kind == sw.REQUEST else
                  sw.read_checkpoint(r.payload).tokens)
        found |= set(windows_of(sw.u32(*tokens), 16, 4, wanted))
    return found


def digests_in_clear(store):
    """Every digest that a recording in clear has of a sequence."""
    found = {e.digest for e in read_spool(spool_of(store))}
    found |= {e.receipt for e in read_spool(spool_of(store)) if e.receipt is not None}
    for r in own_records(sw.read_records(log_of(store))):
        found.add(sw.digest(r.payload))
        if r.kind != sw.REQUEST:
            c = sw.read_checkpoint(r.payload)
            found |= {c.origin, c.event_digest}
            found |= set(windows_of(c.digests, 32, 32, bool))
    return found


def receipt_hash(checkpoint, payload_hash):
    return sw.digest(b"sov-checkpoint-receipt-1", sw.u64(checkpoint.sequence),
                     sw.u32(len(checkpoint.tokens), checkpoint.kind), payload_hash)


def guesses(clear, sealed):
    """What somebody could try who knows requests and answers and has no salt: the commitments without
    one, and with one of zeros."""
    found = set()
    origins = {}
    for r in own_records(sw.read_records(log_of(clear))):
        if r.kind != sw.REQUEST:
            c = sw.read_checkpoint(r.payload)
            origins[r.owner] = c.origin
            found.add(receipt_hash(c, sw.digest(r.payload)))
        found |= {sw.digest(sw.OPENING, r.payload), sw.digest(sw.opening(sw.ZEROS, r.payload)),
                  sw.digest(sw.commitment(sw.opening(sw.ZEROS, r.payload)))}
    for r in own_records(opened_records(sealed)):  # these payloads say that they are sealed
        found |= {sw.digest(r.payload), sw.digest(sw.OPENING, r.payload),
                  sw.digest(sw.opening(sw.ZEROS, r.payload))}
    chains = {}
    for e in read_spool(spool_of(clear)):
        prior, origin = chains.get(e.sequence, (sw.salted_origin(sw.ZEROS, origins[e.sequence]),) * 2)
        found |= {origin, sw.digest(b"sov-rtx orign v1", origins[e.sequence])}
        if e.kind == TOKEN:
            found |= {sw.token_commitment(sw.ZEROS, e.number, e.token),
                      sw.digest(b"sov-rtx token v1", sw.u64(e.number), sw.u32(e.token)),
                      sw.digest(sw.u32(e.token))}
        states = {1: (0, 1), TOKEN: (1 if e.number == 1 else 2, 2), FINISHED: (2, 0)}[e.kind]
        _, prior = sw.event_bytes(e.sequence, e.number, e.kind, states, e.count, e.token, e.finish, None,
                                  prior, sw.ZEROS)
        found.add(prior)
        chains[e.sequence] = prior, origin
    return found


def test_nothing_that_was_asked_or_answered_is_there(made):
    clear = sw.read_records(log_of(made.clear))
    texts, tokens = text_needles(made), token_needles(clear)
    digests = digests_in_clear(made.clear)
    assert len(texts) > 2500 and len(tokens) > 500 and len(digests) > 4300
    # What is looked for is found where it may be.
    asked = set(windows_of(made.requests.read_bytes().replace(b"\n", b""), 8, 50, bool))
    assert len(occurring(log_of(made.clear), asked & texts)) == len(asked & texts) > 50
    assert occurring(log_of(made.clear), tokens) == tokens
    assert occurring(log_of(made.clear) + spool_of(made.clear), digests) == digests
    assert len(occurring(sidecar_of(made.sealed), tokens)) == len(tokens)
    for store in (made.sealed, made.again):
        for data in (log_of(store), spool_of(store)):
            for needles in (texts, tokens, digests, guesses(made.clear, store)):
                assert occurring(data, needles) == set()


def test_answers_do_not_change(made):
    clear = answers(made.clear.with_name("clear.jsonl"))
    assert len(clear) == 24
    for store in (made.sealed, made.again):
        assert answers(store.with_name(store.name + ".jsonl")) == clear


def digests_of_log(data):
    """Every digest of a log that is no function of ids and numbers alone, and those that are: the
    transaction ids, capabilities, and the manifest's."""
    public, own, at = {sw.ZEROS}, set(), 8192
    while at < len(data):
        m, p = struct.unpack_from("<QQ", data, at)
        meta, payload = data[at + 17:at + 17 + m], data[at + 49 + m:at + 49 + m + p]
        link = data[at + 17 + m:at + 49 + m]
        assert data[at + 16] in (1, 3)  # no claims here
        own.add(link)
        if data[at + 16] == 3:
            public.add(meta[21:53])
            own |= {meta[53:85], meta[85:117], meta[125:157]}
        else:
            public |= {meta[89:121], meta[171:203]}
            own |= {meta[57:89], meta[138:170], meta[212:244]}
            if meta[32] == sw.MANIFEST:
                public |= {payload[at:at + 32] for at in range(18, 18 + 4 * 32, 32)}
            else:
                assert len(payload) == 56 and payload[:16] == sw.SEALED
                own.add(payload[24:])
        at += 49 + m + p
    for slot in (0, 4096):  # not access: it is of records, capabilities and times
        own |= set(windows_of(data[slot + 48:slot + 144], 32, 32, bool)) | {data[slot + 240:slot + 272]}
    return public, own - {sw.ZEROS}


def test_two_recordings_share_nothing(made):
    """But ids: of sequences, and what is made of them and of records' numbers; and the manifest's."""
    (public, own), (public_again, own_again) = (digests_of_log(log_of(s)) for s in (made.sealed, made.again))
    assert len(own) > 8 * 24 and own & own_again == set() and own & public == set()
    requests_of = {sw.sequence_txid(sw.REQUEST, r.owner) for r in sw.read_records(log_of(made.sealed))
                   if r.kind == sw.REQUEST}
    assert len(requests_of) == 24 and requests_of <= public & public_again
    events = [read_spool(spool_of(s)) for s in (made.sealed, made.again)]
    kept = [{e.digest for e in each} | {e.prior for e in each} | {e.receipt for e in each} |
            {e.commitment for e in each} for each in events]
    assert kept[0] & kept[1] == {None, sw.ZEROS}
    salts = [{r.salt for r in own_records(opened_records(s))} for s in (made.sealed, made.again)]
    assert salts[0] & salts[1] == set()


# --- commitments ---

def without_chain(payload):
    """A checkpoint without what its sequence's salt is part of."""
    return replace(sw.read_checkpoint(payload), origin=sw.ZEROS, event_digest=sw.ZEROS)


def by_place(records):
    """Payloads by what they are of: the order of records is that of a race."""
    found = {}
    for r in own_records(records):
        c = None if r.kind == sw.REQUEST else sw.read_checkpoint(r.payload)
        key = (r.owner, r.kind, c and len(c.tokens), c and c.kind)
        assert key not in found
        found[key] = r
    return found


def test_every_opening_is_what_was_recorded_in_clear(made):
    clear, sealed = by_place(sw.read_records(log_of(made.clear))), by_place(opened_records(made.sealed))
    assert clear.keys() == sealed.keys() and len(sealed) > 4 * 24
    salts, origins = {}, {}
    for key, r in sealed.items():
        assert r.salt is not None and salts.setdefault(r.owner, r.salt) == r.salt
        if r.kind == sw.REQUEST:
            wanted = dict(read_request(clear[key].payload), form=1)
            assert read_request(r.payload) == wanted
            continue
        a, b = sw.read_checkpoint(clear[key].payload), sw.read_checkpoint(r.payload)
        assert without_chain(clear[key].payload) == without_chain(r.payload)
        assert b.origin == sw.salted_origin(r.salt, a.origin)
        assert origins.setdefault(r.owner, b.origin) == b.origin
        assert b.event_digest != a.event_digest
    assert len(salts) == 24 == len(set(salts.values())) == len(origins)
    # An entry for each of them and no more, under the sequence's id; the record has its digest.
    entries = [(sequence, opened) for _, sequence, opened in sw.read_sidecar(sidecar_of(made.sealed))]
    assert sorted(entries) == sorted((r.owner, sw.opening(r.salt, r.payload)) for r in sealed.values())
    in_log = {(r.owner, r.payload) for r in own_records(sw.read_records(log_of(made.sealed)))}
    assert in_log == {(owner, sw.commitment(opened)) for owner, opened in entries}


def check_events(store, n):
    """The spool has every event of every sequence, and each is what the openings make it."""
    records = by_place(opened_records(store))
    ends = {r.owner: sw.read_checkpoint(r.payload) for r in records.values() if r.kind == sw.FINISH}
    assert len(ends) == n
    heads = {owner: (end.origin, 0) for owner, end in ends.items()}
    for e in read_spool(spool_of(store)):
        end, (prior, number) = ends[e.sequence], heads[e.sequence]
        salt = records[e.sequence, sw.REQUEST, None, None].salt
        assert e.version == 2 and e.token == sw.NO_TOKEN
        assert (e.prior, e.number) == (prior, number)
        heads[e.sequence] = e.digest, number + 1
        if e.kind == TOKEN:
            token = end.tokens[end.n_prompt + e.count - 1]
            assert e.commitment == sw.token_commitment(salt, e.number, token)
        else:
            assert e.commitment == sw.ZEROS and e.kind == (1 if number == 0 else FINISHED)
        boundary = records.get((e.sequence, sw.CHECKPOINT, end.n_prompt + e.count, 1))
        if e.kind != TOKEN or boundary is None:
            assert e.receipt is None
            continue
        kept = sw.commitment(sw.opening(salt, boundary.payload))
        assert e.receipt == receipt_hash(sw.read_checkpoint(boundary.payload), sw.digest(kept))
    for owner, end in ends.items():
        assert heads[owner] == (end.event_digest, end.event_number)


def test_events_are_made_of_commitments(made):
    check_events(made.sealed, 24)
    shown = [json.loads(line) for line in
             sov.succeed("events", f"{made.sealed}.spool", "--json").stdout.splitlines()]
    for line, e in zip(shown, read_spool(spool_of(made.sealed)), strict=True):
        data = line["data"]
        assert data["version"] == 2 and data["sampled_token_id"] is None
        assert data["sampled_token_commitment"] == (e.commitment.hex() if e.kind == TOKEN else None)
        assert data["transition_digest"] == e.digest.hex()
    # Answers name the heads of these chains.
    heads = {e.digest.hex() for e in read_spool(spool_of(made.sealed)) if e.kind == FINISHED}
    told = [json.loads(line)["digest"] for line in
            made.sealed.with_name("sealed.jsonl").read_text().splitlines()]
    assert set(told) == heads and len(told) == 24
