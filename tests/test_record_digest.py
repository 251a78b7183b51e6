# SPDX-License-Identifier: Apache-2.0
"""--record digest: a store and a spool without a word of what was asked and answered, the sidecar that
has it, and its erasure. Bytes are read from docs/format.md and docs/events.md alone, here and in
store_writer.py."""
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
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import sov
import store_writer as sw
from test_record import read_request
from test_replay import replay, requests, small_model
from test_resume import Case, one_run

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


def token_slices(tokens):
    """Any 4 in a row, but those that are hardly more than zeros."""
    return set(windows_of(sw.u32(*tokens), 16, 4,
                          lambda part: len(set(struct.unpack("<4I", part)) - {0}) > 2))


def token_needles(records):
    found = set()
    for r in own_records(records):
        tokens = (read_request(r.payload)["tokens"] if r.kind == sw.REQUEST else
                  sw.read_checkpoint(r.payload).tokens)
        found |= token_slices(tokens)
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
    public, own = digests_of_log(log_of(made.sealed))
    public_again, own_again = digests_of_log(log_of(made.again))
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


# --- verify ---

def told(store):
    """What sov verify and tools/verify_store.py say: exit codes, and (commitments, opened) of each."""
    done = sov.call("verify", store, "--json")
    report = json.loads(done.stdout)
    try:
        second = sw.verify_store.verify_file(store / "log")
        code = 0
    except sw.verify_store.Damage:
        second, code = {}, 4
    except sw.verify_store.Unsupported:
        second, code = {}, 3
    return ((done.returncode, report.get("commitments"), report.get("opened")),
            (code, second.get("commitments"), second.get("opened")))


def test_verify_counts_what_can_be_opened(made, tmp_path):
    store = copy_of(made.sealed, tmp_path / "s")
    entries = sw.read_sidecar(sidecar_of(store))
    n = len(entries)
    assert told(store) == ((0, n, n),) * 2
    assert f"{n} commitments; the sidecar has the texts and tokens of {n} of them" in \
        sov.succeed("verify", store).stdout.decode()
    data = bytearray(sidecar_of(store))
    data[entries[5][0] + 40] ^= 1  # in a head
    data[entries[9][0] + 200] ^= 1  # in an opening
    (store / "sidecar").write_bytes(data)
    assert told(store) == ((0, n, n - 2),) * 2
    (store / "sidecar").write_bytes(sidecar_of(made.sealed))
    owner = entries[3][1]
    sov.succeed("log", store, "--erase", "--sequence", f"{owner:016x}")
    left = sum(sequence != owner for _, sequence, _ in entries)
    assert told(store) == ((0, n, left),) * 2 and left < n - 2
    (store / "sidecar").unlink()
    assert told(store) == ((0, n, 0),) * 2
    (store / "sidecar").mkdir()
    assert told(store) == ((0, n, 0),) * 2
    assert told(made.clear) == ((0, 0, 0),) * 2
    script = [sys.executable, sov.ROOT / "tools/verify_store.py"]
    done = subprocess.run([*script, store], capture_output=True, check=True)
    assert f"{n} commitments".encode() in done.stdout


@pytest.fixture(scope="module")
def tiny(small, tmp_path_factory):
    """Two sequences of few tokens: a small store."""
    base = tmp_path_factory.mktemp("digest") / "tiny"
    lines = [{"id": i, "prompt": "ab"[i], "max_tokens": 2, "temperature": i, "ignore_eos": True}
             for i in range(2)]
    path = write_lines(base.with_name("requests.jsonl"), lines)
    batch(small, base, path, "--record", "digest")
    assert replay(base, small)[1]["same"] == 2
    return base


def test_verdicts_do_not_depend_on_the_sidecar(tiny, tmp_path):
    """Bytes of the log flipped, one at a time: of the entries of commitments more, of the others and
    the head slots some. In the long form all."""
    log, rng = log_of(tiny), random.Random(SEED)
    entries = [m.start() for m in re.finditer(re.escape(sw.SEALED), log)]
    assert len(entries) == 6
    sealed = [at for entry in entries for at in range(entry - 293, entry + 56)]
    others = sorted(set(range(len(log))) - set(sealed))
    places = sealed[::1 if sov.FULL else 7] + (others if sov.FULL else rng.sample(others, 150))
    places += [entry + i for entry in entries for i in range(16, 56, 5)]
    with_it, without = copy_of(tiny, tmp_path / "with"), copy_of(tiny, tmp_path / "without")
    (without / "sidecar").unlink()
    codes = []
    for at in places:
        changed = bytearray(log)
        changed[at] ^= 1 << rng.randrange(8)
        for store in (with_it, without):
            (store / "log").write_bytes(changed)
        first, second = told(with_it), told(without)
        assert first[0] == first[1] and second[0] == second[1], at
        assert first[0][0] == second[0][0], at
        codes.append(first[0][0])
    assert set(codes) <= {0, 3, 4} and codes.count(4) == len(codes)


# --- replay ---

@pytest.mark.parametrize("options", [
    ["-t", "1", "--force-isa", "scalar", "--max-seqs", "3"],
    ["-t", "1", "--max-seqs", "1", "--prefill-chunk", "5"],
    ["-t", "2", "--max-seqs", "16", "--kv-blocks", "20"],
    ["-t", "1", "--max-seqs", "64", "--no-prefix-sharing", "--kv-shuffle", "7"],
], ids=["scalar", "alone", "swapped", "shuffled"])
def test_replay_does_not_depend_on_how_it_is_run(made, options):
    _, total = replay(made.sealed, made.model, *options)
    assert total["same"] == 24
    assert total["payloads"] == len(sw.read_sidecar(sidecar_of(made.sealed))) - 24  # requests


@pytest.mark.parametrize("form", ["full", "tokens"])
def test_other_forms_of_checkpoints(small, tmp_path, form):
    lines = some_lines(4, 140)
    batch(small, tmp_path / "s", write_lines(tmp_path / "r", lines), "--record", "digest",
          "--checkpoint", form)
    assert replay(tmp_path / "s", small)[1]["same"] == 4
    states = [sw.read_checkpoint(r.payload) for r in own_records(opened_records(tmp_path / "s"))
              if r.kind == sw.CHECKPOINT]
    assert {c.form for c in states} == {{"full": 1, "tokens": 2}[form]}
    assert any(c.rows for c in states) == (form == "full")


def test_replay_of_what_was_erased(made, tmp_path):
    store = copy_of(made.sealed, tmp_path / "s")
    owner = sw.read_sidecar(sidecar_of(store))[11][1]
    sov.succeed("log", store, "--erase", "--sequence", f"{owner:016X}")
    each, total = replay(store, made.model, code=3)
    assert (total["same"], total["not_checkable"], total["different"]) == (23, 1, 0)
    found = each[f"{owner:016x}"]
    assert found["result"] == "not checkable" and found["error"]["code"] == "SOV_ERR_UNSUPPORTED"
    message = found["error"]["message"]
    assert "salt, texts and tokens" in message and "erased" in message
    text = sov.call("replay", store, "-m", made.model)
    assert text.returncode == 3 and message.encode() in text.stdout
    (store / "sidecar").unlink()
    each, total = replay(store, made.model, code=3)
    assert total["not_checkable"] == 24
    assert all("missing" in s["error"]["message"] for s in each.values())


@pytest.mark.parametrize("where", ["first", "64", "last of all"])
def test_a_forged_token_is_found(made, tmp_path, where):
    """A token changed in every opening, and all commitments, events, receipts and hashes recomputed."""
    ends = [sw.read_checkpoint(r.payload) for r in opened_records(made.sealed) if r.kind == sw.FINISH]
    n, owner = max((len(c.tokens) - c.n_prompt, c.sequence) for c in ends)
    index = {"first": 0, "64": 64, "last of all": n - 1}[where]
    writer = sw.forge(log_of(made.sealed), lambda states: (owner, index),
                      lambda token: (token + 1) % 256, sidecar_of(made.sealed))
    folder = writer.write(tmp_path / "forged")
    n_all = len(sw.read_sidecar(sidecar_of(made.sealed)))
    assert told(folder) == ((0, n_all, n_all),) * 2  # hashes cannot tell
    each, total = replay(folder, made.model, code=4)
    assert (total["same"], total["different"]) == (23, 1)
    found = each[f"{owner:016x}"]["difference"]
    assert found["place"] == "token" and found["generated"] == index + 1
    assert found["recorded"] == (found["computed"] + 1) % 256
    end = next(c for c in ends if c.sequence == owner)
    assert found["computed"] == end.tokens[end.n_prompt + index]


def test_an_opening_that_was_not_committed_to(made, tmp_path):
    """Changed in the sidecar alone, with the entry's own hashes right: nobody takes it for what it is
    not. Under another salt in a store forged whole: different."""
    store = copy_of(made.sealed, tmp_path / "s")
    entries = sw.read_sidecar(sidecar_of(store))
    at, owner, opened = entries[7]
    other = opened[:-1] + bytes([opened[-1] ^ 1])
    honest, forged = sw.sidecar_entry(owner, opened), sw.sidecar_entry(owner, other)
    swapped = forged[:32] + honest[32:64] + sw.digest(honest[:64])[:8] + other  # the right digest
    for entry in (forged, swapped):
        data = sidecar_of(made.sealed)
        (store / "sidecar").write_bytes(data[:at] + entry + data[at + len(entry):])
        each, total = replay(store, made.model, code=3)
        assert (total["same"], total["not_checkable"]) == (23, 1)
        assert each[f"{owner:016x}"]["result"] == "not checkable"
    assert "changed or damaged" in each[f"{owner:016x}"]["error"]["message"]
    records = opened_records(made.sealed)
    last = next(r for r in records if r.kind == sw.FINISH)
    last.salt = bytes(range(32))
    sidecar = sw.seal(records)
    writer = sw.write_records(records)
    writer.sidecar = sidecar
    each, total = replay(writer.write(tmp_path / "forged"), made.model, code=4)
    assert (total["same"], total["different"]) == (23, 1)
    assert each[f"{last.owner:016x}"]["result"] == "different"


# --- resume ---

class SealedCase(Case):
    """A batch recorded by commitments, and what comes of it without interruption."""

    def __init__(self, model, folder, lines, *options):
        self.model, self.folder, self.options = model, folder, ("--record", "digest", *options)
        self.requests, self.n = write_lines(folder / "requests.jsonl", lines), len(lines)
        begin = time.monotonic()
        assert self.batch(folder / "whole").wait(TIMEOUT) == 0
        self.seconds = time.monotonic() - begin
        self.answers = answers(folder / "whole.jsonl")
        self.contents = contents(folder / "whole")

    def check(self, base):
        """The same as without interruption but for the salts, which are one for each sequence; what
        was told before stands."""
        resumed = base.with_name(base.name + ".resumed")
        assert answers(resumed) == self.answers
        assert contents(base) == self.contents
        acknowledged = base.with_name(base.name + ".jsonl").read_bytes().split(b"\n")[:-1]
        assert set(acknowledged) <= set(resumed.read_bytes().split(b"\n"))
        sov.succeed("events", f"{base}.spool")
        check_events(base, self.n)
        n = len(own_records(sw.read_records(log_of(base))))
        assert told(base) == ((0, n, n),) * 2
        assert json.loads(sov.succeed("verify", base, "--json").stdout)["available"] == 0
        _, total = replay(base, self.model, "-t", "1")
        assert total["same"] == self.n


def contents(store):
    """Requests, checkpoints and ends in clear, without what is a function of the salt, of which each
    sequence has one. What a machine going down leaves besides are suspensions."""
    found, salts = {}, {}
    for key, r in by_place(opened_records(store)).items():
        assert r.salt is not None and salts.setdefault(r.owner, r.salt) == r.salt
        if r.kind == sw.REQUEST:
            found[key] = read_request(r.payload)
        elif sw.read_checkpoint(r.payload).kind != 2:
            found[key] = without_chain(r.payload)
    assert len(set(salts.values())) == len(salts)
    return found


@pytest.fixture(scope="module")
def case(small, tmp_path_factory):
    lines = [line for line in some_lines() if "logprobs" not in line]
    return SealedCase(small, tmp_path_factory.mktemp("digest"), lines, "-t", "1")


def test_killed_and_resumed_again_and_again(case, tmp_path):
    rng = random.Random(SEED)
    n_kills, n_runs, run = 0, 50 if sov.FULL else 3, 0
    while run < n_runs or (n_kills < n_runs // 2 and run < 4 * n_runs):
        n_kills += one_run(case, tmp_path / f"run{run}", rng, (0.5, 1.0, 0.25)[run % 3])
        run += 1
    print(f"seed {SEED}: {run} runs, {n_kills} kills, {case.seconds:.2f} s without")
    assert n_kills > 0


def start_and_kill(model, base, requests_file, n_events, *options):
    """A batch killed when its spool has grown by so many events (of 157 bytes and more)."""
    spool = base.with_name(base.name + ".spool")
    before = spool.stat().st_size if spool.exists() else 0
    process = subprocess.Popen([sov.SOV, "batch", "-m", model, requests_file, "--store", base, "-o",
                                f"{base}.jsonl", "--events", spool, "-t", "1", *options],
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while process.poll() is None and not (spool.exists() and
                                          spool.stat().st_size >= before + 157 * n_events):
        time.sleep(0.002)
    process.kill()
    process.communicate()


def states_of(store):
    return {int(s["sequence"], 16): s["state"] for s in
            map(json.loads, sov.succeed("log", store, "--json").stdout.splitlines())}


@pytest.fixture(scope="module")
def interrupted(case, tmp_path_factory):
    """A store with something left to do, and something done. Tests copy it. A tail that the kill left
    is cut, as if power had failed: resuming would take what ends there."""
    base = tmp_path_factory.mktemp("digest") / "s"
    start_and_kill(case.model, base, case.requests, 3000, "--record", "digest")
    report = json.loads(sov.succeed("verify", base, "--json").stdout)
    os.truncate(base / "log", report["bytes"])
    states = states_of(base)
    if len(states) != case.n or "interrupted" not in states.values():
        pytest.skip("this machine is too uneven: the run had ended, or had hardly begun")
    return base


def copy_with_spool(base, folder):
    store = copy_of(base, folder)
    shutil.copy(f"{base}.spool", f"{folder}.spool")
    shutil.copy(f"{base}.jsonl", f"{folder}.jsonl")
    return store


def test_a_sealed_session_between_two_in_clear(small, tmp_path):
    """Each of the three was killed; one resumption finishes them."""
    base, whole = tmp_path / "s", tmp_path / "whole"
    every = []
    for i, options in enumerate([(), ("--record", "digest"), ()]):
        lines = [dict(line, id=f"{i}{line['id']}") for line in some_lines(8, 190)
                 if "logprobs" not in line]
        every += lines
        start_and_kill(small, base, write_lines(tmp_path / f"r{i}", lines), 500, *options)
    batch(small, whole, write_lines(tmp_path / "all", every))
    assert list(states_of(base).values()).count("interrupted") > 0
    sov.succeed("resume", base, "-m", small, "-t", "1", "-o", f"{base}.resumed", "--events",
                f"{base}.spool")
    assert answers(tmp_path / "s.resumed") == answers(tmp_path / "whole.jsonl")
    sov.succeed("events", f"{base}.spool")
    assert replay(base, small)[1]["same"] == len(every)
    clear, mixed = by_place(sw.read_records(log_of(whole))), by_place(opened_records(base))
    assert mixed.keys() == clear.keys()
    sealed = {sequence for _, sequence, _ in sw.read_sidecar(sidecar_of(base))}
    assert len(sealed) == len(every) // 3
    for key, r in mixed.items():
        assert (r.salt is not None) == (r.owner in sealed)
        if r.kind == sw.REQUEST:
            asked, wanted = read_request(r.payload), read_request(clear[key].payload)
            assert asked["line"] == wanted["line"] and asked["tokens"] == wanted["tokens"]
        else:
            assert without_chain(r.payload) == without_chain(clear[key].payload)
            assert r.salt is not None or r.payload == clear[key].payload
    versions = {(e.sequence in sealed, e.version) for e in read_spool(spool_of(base))}
    assert versions == {(True, 2), (False, 1)}


def lacking(store, wanted):
    """A sidecar without the openings that wanted(sequence, opening) chooses."""
    return b"".join(sw.sidecar_entry(sequence, opened) for _, sequence, opened in
                    sw.read_sidecar(sidecar_of(store)) if not wanted(sequence, opened))


def last_opening(store, owner):
    """Of the last record of a sequence."""
    r = [r for r in own_records(opened_records(store)) if r.owner == owner][-1]
    return sw.opening(r.salt, r.payload)


@pytest.mark.parametrize("what", ["erased", "without its last checkpoint", "without its request"])
def test_resuming_without_the_openings_of_one(case, interrupted, tmp_path, what):
    store = copy_with_spool(interrupted, tmp_path / "s")
    owner = next(owner for owner, state in states_of(store).items() if state == "interrupted")
    last = last_opening(store, owner)
    if what == "erased":
        sov.succeed("log", store, "--erase", "--sequence", f"{owner:016x}")
    elif what == "without its request":
        (store / "sidecar").write_bytes(lacking(store, lambda sequence, opened: sequence == owner and
                                                opened[48:64] == b"sov-rtx reqst v1"))
    else:
        (store / "sidecar").write_bytes(lacking(store, lambda _, opened: opened == last))
    said = []
    for k in range(2):
        done = sov.call("resume", store, "-m", case.model, "-t", "1", "-o", f"{store}.resumed",
                        "--events", f"{store}.spool")
        assert done.returncode == 3, done.stderr.decode()
        said.append([line for line in done.stderr.decode().splitlines() if "sequence " in line])
        assert [f"{owner:016x}" in line and "sidecar" in line for line in said[k]] == [True]
        found = answers(tmp_path / "s.resumed")
        missing = case.answers.keys() - found.keys()
        assert len(missing) == 1 and found.items() <= case.answers.items()
        report = json.loads(sov.succeed("verify", store, "--json").stdout)
        assert report["available"] == 1  # still the sequence's own, for whoever has the openings
        sov.succeed("events", f"{store}.spool")
    assert said[0] == said[1]
    # Whoever has them finishes it.
    (store / "sidecar").write_bytes(sidecar_of(store) + lacking(interrupted, lambda s, _: s != owner))
    sov.succeed("resume", store, "-m", case.model, "-t", "1", "-o", f"{store}.resumed", "--events",
                f"{store}.spool")
    case.check(store)


def test_an_earlier_checkpoint_that_is_missing(case, interrupted, tmp_path):
    """Whoever is to fill a spool from the record needs it, and leaves no gap; without a spool nobody
    needs it."""
    store = copy_with_spool(interrupted, tmp_path / "s")
    states, by_owner = states_of(store), {}
    for r in own_records(opened_records(store)):
        by_owner.setdefault(r.owner, []).append(r)
    owner = next(o for o, rs in by_owner.items() if states[o] == "interrupted" and len(rs) > 3)
    wanted = sw.opening(by_owner[owner][-2].salt, by_owner[owner][-2].payload)
    (store / "sidecar").write_bytes(lacking(store, lambda _, opened: opened == wanted))
    spool = tmp_path / "s.spool"
    spool.write_bytes(spool.read_bytes()[:16])  # lost
    done = sov.call("resume", store, "-m", case.model, "-t", "1", "--events", spool)
    assert done.returncode == 3 and f"sequence {owner:016x}".encode() in done.stderr, done.stderr
    sov.succeed("events", spool)
    assert json.loads(sov.succeed("verify", store, "--json").stdout)["available"] == 1
    done = sov.succeed("resume", store, "-m", case.model, "-t", "1", "-o", f"{store}.resumed")
    assert answers(tmp_path / "s.resumed") == case.answers
    # All have ended now: the events of one cannot be told.
    done = sov.call("resume", store, "-m", case.model, "-t", "1", "--events", spool)
    assert done.returncode == 3 and f"sequence {owner:016x}".encode() in done.stderr, done.stderr
    sov.succeed("events", spool)


# --- damage to the sidecar ---

def replay_of_damaged(store, model, touched):
    """Sequences that were not touched are the same, the others not checkable, and none different."""
    owners = {r.owner for r in own_records(sw.read_records(log_of(store)))}
    each, total = replay(store, model, "-t", "1", code=3 if touched else 0)
    assert total["different"] == 0
    results = {int(owner, 16): s["result"] for owner, s in each.items()}
    assert results == {owner: "not checkable" if owner in touched else "same" for owner in owners}


def test_every_byte_of_a_sidecar_flipped(tiny, tmp_path):
    """An entry is lost with any of its bytes, and nothing else is. Replay of some; of all in the long
    form."""
    rng, store, data = random.Random(SEED), copy_of(tiny, tmp_path / "s"), sidecar_of(tiny)
    entries = sw.read_sidecar(data)
    assert len(entries) == 6 and len(data) < 4000
    model = tiny.parent / "model.gguf"
    small_model(model)
    owner_at = [sequence for _, sequence, opened in entries for _ in range(sw.ENTRY_HEAD + len(opened))]
    replayed = range(len(data)) if sov.FULL else rng.sample(range(len(data)), 60)
    heads = [at + i for at, _, _ in entries for i in (0, 15, 16, 17, 23, 24, 31, 32, 63, 64, 71)]
    for at in range(len(data)):
        if not (sov.FULL or at % 4 == 0 or at in replayed or at in heads):
            continue
        changed = bytearray(data)
        changed[at] ^= 1 << rng.randrange(8)
        (store / "sidecar").write_bytes(changed)
        assert told(store) == ((0, 6, 5),) * 2, at
        if at in replayed:
            replay_of_damaged(store, model, {owner_at[at]})


def test_a_sidecar_cut_anywhere(tiny, small, tmp_path):
    store, data = copy_of(tiny, tmp_path / "s"), sidecar_of(tiny)
    entries = sw.read_sidecar(data)
    for n in range(0, len(data), 1 if sov.FULL else 97):
        (store / "sidecar").write_bytes(data[:n])
        lost = {sequence for at, sequence, opened in entries if at + sw.ENTRY_HEAD + len(opened) > n}
        whole = sum(at + sw.ENTRY_HEAD + len(opened) <= n for at, _, opened in entries)
        assert told(store) == ((0, 6, whole),) * 2
        replay_of_damaged(store, small, lost)


def test_a_sidecar_with_more_than_its_own(made, tiny, small, tmp_path):
    """Garbage anywhere, what looks like entries, entries twice, in another order, of another store."""
    rng, data, foreign = random.Random(SEED), sidecar_of(tiny), sidecar_of(made.sealed)
    entries = [data[at:at + sw.ENTRY_HEAD + len(opened)] for at, _, opened in sw.read_sidecar(data)]
    garbage = rng.randbytes(5000)
    endless = sw.ENTRY + sw.u64(2**63, 1) + bytes(32)
    endless += sw.digest(endless)[:8]
    store = copy_of(tiny, tmp_path / "s")
    for changed in (data + garbage, garbage + data, garbage.join(entries), data + data[:-1], data + data,
                    b"".join(entries[::-1]), foreign + data, data + foreign,
                    sw.ENTRY.join(entries), sw.ENTRY * 3 + data, entries[0][:60] + data,
                    data + endless, data + entries[0][:80],
                    sw.sidecar_entry(9, sw.opening(sw.ZEROS, data[:500])) + data):
        (store / "sidecar").write_bytes(changed)
        assert told(store) == ((0, 6, 6),) * 2
        replay_of_damaged(store, small, set())
    (store / "sidecar").write_bytes(foreign)
    assert told(store) == ((0, 6, 0),) * 2
    replay_of_damaged(store, small, {sequence for _, sequence, _ in sw.read_sidecar(data)})


def test_a_head_that_leads_beyond_the_end(tiny, small, tmp_path):
    """In the text of a prompt, found where the entry's own head is damaged: what stands behind is
    found, and stays when more is appended."""
    endless = sw.ENTRY + sw.u64(2**63, 1) + bytes(32)
    endless += sw.digest(endless)[:8]
    data = sidecar_of(tiny)
    damaged = bytearray(sw.sidecar_entry(7, sw.opening(sw.ZEROS, endless + b"more of the prompt")))
    damaged[3] ^= 1
    store = copy_of(tiny, tmp_path / "s")
    for changed in (bytes(damaged) + data, data[:0] + endless + data):
        (store / "sidecar").write_bytes(changed)
        assert told(store)[0] == (0, 6, 6)
        replay_of_damaged(store, small, set())
        sov.succeed("run", "-m", small, "-p", "x", "-n", "1", "--record", "digest", "--store", store)
        assert told(store)[0] == (0, 9, 9)
        shutil.copy(tiny / "log", store / "log")


# --- erasing ---

def erase(store, *options, code=0, **more):
    done = sov.call("log", store, "--erase", *options, **more)
    assert done.returncode == code, done.stderr.decode()
    return done


def test_what_is_erased_is_gone_and_the_rest_stays(made, tmp_path):
    store = copy_of(made.sealed, tmp_path / "s")
    before, log = sidecar_of(store), log_of(store)
    entries = sw.read_sidecar(before)
    owner = entries[2][1]
    gone = [opened for _, sequence, opened in entries if sequence == owner]
    done = erase(store, "--sequence", f"{owner:016x}", "--json")
    assert json.loads(done.stdout) == {"store": str(store), "erased": len(gone)}
    after = sidecar_of(store)
    assert after == lacking(made.sealed, lambda sequence, _: sequence == owner)
    parts = {part for opened in gone
             for part in windows_of(opened[16:], 24, 8, lambda p: len(set(p)) > 12)}
    assert len(parts) > 50 and len(occurring(before, parts)) == len(parts)
    own = {part for part in parts if part in b"".join(opened for _, s, opened in entries if s != owner)}
    assert occurring(after, parts - own) == set() and len(own) < len(parts) / 2
    assert log_of(store) == log and sorted(os.listdir(store)) == ["lock", "log", "sidecar"]
    # What is left says so.
    listed = [json.loads(line) for line in sov.succeed("log", store, "--json").stdout.splitlines()]
    [erased] = [s for s in listed if s["sequence"] == f"{owner:016x}"]
    assert erased["prompt"] is None and erased["sealed"] and len(erased["receipts"]) == len(gone)
    assert len(listed) == 24 and all(s["prompt"] is not None for s in listed if s is not erased)
    text = [line for line in sov.succeed("log", store).stdout.decode().splitlines()
            if line.startswith(f"{owner:016x}")]
    assert len(text) == 1 and "erased" in text[0]
    # A second time, and what there never was.
    for name in (f"{owner:016x}", "0123456789abcdef"):
        done = erase(store, "--sequence", name, code=3)
        assert name.encode() in done.stderr and done.stdout == b"" and sidecar_of(store) == after
    assert b"has nothing of sequence" in done.stderr
    # All of it; and a store without any.
    assert json.loads(erase(store, "--json").stdout)["erased"] == len(entries) - len(gone)
    assert sidecar_of(store) == b"" and log_of(store) == log
    (store / "sidecar").unlink()
    for folder in (store, copy_of(made.clear, tmp_path / "c")):
        assert json.loads(erase(folder, "--json").stdout)["erased"] == 0
        erase(folder, "--sequence", f"{owner:016x}", code=3)
        assert not (folder / "sidecar").exists()


def test_erasing_a_store_in_use(made, tmp_path):
    store = copy_of(made.sealed, tmp_path / "s")
    with open(store / "lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = erase(store, code=1)
    assert b"in use" in done.stderr and str(store).encode() in done.stderr and done.stdout == b""
    assert sidecar_of(store) == sidecar_of(made.sealed) and not (store / "sidecar.new").exists()
    erase(store)


def test_options_that_do_not_fit(made, tmp_path):
    store, sequence = copy_of(made.sealed, tmp_path / "s"), ["--sequence", "0" * 16]
    run, lines = ["run", "-m", made.model, "-p", "x"], ["batch", "-m", made.model, made.requests]
    for arguments, word in ((["log", "--erase"], "STORE"),
                            (["log", store, *sequence], "--erase"),
                            (["log", *sequence], "--erase"),
                            (["log", store, "--erase", "--prune"], "--prune"),
                            (["log", store, "--erase", "--prune", "--older-than", 1], "--prune"),
                            (["log", store, "--erase", "--older-than", 1], "--older-than"),
                            (["log", store, "--erase", "--force"], "--force"),
                            (["log", store, "--erase", "--sequence", "x"], "hexadecimal"),
                            ([*run, "--record", "foo"], "--record"),
                            ([*run, "--record", "digest", "--no-record"], "--no-record"),
                            (["chat", "-m", made.model, "--record", ""], "--record"),
                            ([*lines, "--record", "DIGEST"], "--record"),
                            ([*lines, "--no-record", "--record", "clear"], "--no-record")):
        done = sov.call(*arguments)
        assert done.returncode == 2 and done.stdout == b"", arguments
        assert word.encode() in done.stderr.splitlines()[0], (arguments, done.stderr)
    assert sidecar_of(store) == sidecar_of(made.sealed)
    for none in (tmp_path / "none", tmp_path):
        done = erase(none, code=3)
        assert b"no store" in done.stderr and os.listdir(tmp_path) == ["s"]


def test_killed_while_erasing(made, tmp_path):
    """The sidecar is the old or the new one, whenever that is; and it is done the next time."""
    rng, store = random.Random(SEED), copy_of(made.sealed, tmp_path / "s")
    owner = sw.read_sidecar(sidecar_of(store))[0][1]
    mass = b"".join(sw.sidecar_entry(i, sw.opening(sw.ZEROS, rng.randbytes(1 << 20))) for i in range(40))
    old, new = sidecar_of(store) + mass, lacking(store, lambda s, _: s == owner) + mass
    seen, seconds = [], None
    for k in range(40 if sov.FULL else 8):
        (store / "sidecar").write_bytes(old)
        begin = time.monotonic()
        process = subprocess.Popen([sov.SOV, "log", store, "--erase", "--sequence", f"{owner:016x}"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if k > 0:
            time.sleep(rng.random() * seconds)
            process.kill()
        process.communicate()
        seconds = seconds or time.monotonic() - begin
        found = sidecar_of(store)
        assert found in (old, new)
        seen.append(found == new)
        if found == old:
            erase(store, "--sequence", f"{owner:016x}")
            assert sidecar_of(store) == new
        assert not (store / "sidecar.new").exists()
    assert seen[0] and not all(seen)


def test_what_a_killed_erasure_left_is_erased_too(made, tmp_path):
    """sidecar.new has what the sidecar has, and stands in nobody's way."""
    for options in ([], ["--sequence", f"{sw.read_sidecar(sidecar_of(made.sealed))[0][1]:016x}"]):
        for is_there in (True, False):
            store = copy_of(made.sealed, tmp_path / f"s{is_there}{len(options)}")
            shutil.copy(store / "sidecar", store / "sidecar.new")
            if not is_there:
                (store / "sidecar").unlink()
            erase(store, *options, code=0 if is_there or not options else 3)
            assert not (store / "sidecar.new").exists()


def test_pruning_removes_a_sealed_store_whole(small, tmp_path):
    environment = dict(os.environ, XDG_STATE_HOME=str(tmp_path))
    answer = sov.run_json(small, "-p", "x", "-n", "1", "--record", "digest", env=environment)
    store = tmp_path / "sov-rtx/records" / answer["record"]["store"]
    assert sorted(os.listdir(store)) == ["lock", "log", "sidecar"]
    shutil.copy(store / "sidecar", store / "sidecar.new")
    done = sov.succeed("log", "--prune", "--older-than", "0", env=environment)
    assert b"removed" in done.stdout and not store.exists()


# --- runs and chats ---

def test_runs_and_chats(small, tmp_path):
    """Of the other commands: the same answers, nothing in the log, two sequences' salts apart."""
    prompt, options = "the captain of the old harbour", ["-n", "80", "--ignore-eos", "--seed", "3"]
    stop = ["--stop", STOP, "--logit-bias", "15+1.5"]
    clear = sov.run_json(small, "-p", prompt, *options, *stop, "--store", tmp_path / "clear")
    sealed = sov.run_json(small, "-p", prompt, *options, *stop, "--store", tmp_path / "s", "--record",
                          "digest", "--checkpoint", "full")
    assert sealed["record"]["store"] == str(tmp_path / "s")
    assert {k for k in clear if clear[k] != sealed[k]} <= {"record", "timings"}
    assert len(sealed["tokens"]) == 80
    sov.succeed("chat", "-m", small, "-n", "20", "--seed", "5", "--store", tmp_path / "s", "--record",
                "digest", stdin=b"hello captain\nand again harbour\n")
    sov.succeed("run", "-m", small, "-p", prompt, "--store", tmp_path / "s", *options)
    assert replay(tmp_path / "s", small)[1]["same"] == 4
    every = sw.read_records(log_of(tmp_path / "s"))
    n_clear = [r.payload[:16] for r in own_records(every)].count(b"sov-rtx reqst v1")
    assert n_clear == 1
    log = log_of(tmp_path / "s")
    log = log[:log.index(b"sov-rtx reqst v1")]  # up to the session in clear
    for text in (prompt, STOP, "hello captain", "again harbour"):
        assert text.encode() not in log and text.encode() in sidecar_of(tmp_path / "s")
    tokens = token_slices(sealed["prompt_tokens"] + sealed["tokens"])
    assert occurring(sidecar_of(tmp_path / "s"), tokens) == tokens and len(tokens) > 20
    assert occurring(log, tokens) == set()
    salts = {r.owner: r.salt for r in opened_records(tmp_path / "s") if r.kind == sw.REQUEST}
    assert len(salts) == 4 and len(set(salts.values())) == 4
    commands = [read_request(r.payload)["command"] for r in opened_records(tmp_path / "s")
                if r.kind == sw.REQUEST]
    assert commands == [1, 2, 2, 1]
    prompts = [json.loads(line)["prompt"] for line in
               sov.succeed("log", tmp_path / "s", "--json").stdout.splitlines()]
    assert prompts == [prompt, "hello captain", "and again harbour", prompt]


# --- failures ---

def stands(store, n=None):
    """The store verifies, and every commitment in it can be opened."""
    (code, commitments, opened), second = told(store)
    assert code == 0 and commitments == opened and second == (code, commitments, opened)
    assert n is None or commitments == n


def test_a_sidecar_that_cannot_be_had(small, tmp_path):
    arguments = ["run", "-m", small, "-p", "x", "-n", "3", "--record", "digest", "--store"]
    store = tmp_path / "s"
    sov.succeed(*arguments, store)
    sov.succeed(*arguments, tmp_path / "other")
    (tmp_path / "other/sidecar").unlink()
    (tmp_path / "other/sidecar").mkdir()
    done = sov.call(*arguments, tmp_path / "other")
    assert done.returncode == 1 and b"sidecar" in done.stderr and done.stdout.strip() == b""
    assert str(tmp_path / "other").encode() in done.stderr
    assert told(tmp_path / "other") == ((0, 3, 0),) * 2
    (store / "sidecar").chmod(0o400)
    if not os.access(store / "sidecar", os.W_OK):
        done = sov.call(*arguments, store)
        assert done.returncode == 1 and b"sidecar" in done.stderr
        stands(store, 3)
    (store / "sidecar").chmod(0o600)
    sov.succeed(*arguments, store)
    stands(store, 6)


def test_a_sidecar_as_long_as_a_file_may_be(small, tmp_path):
    """The log would have room; the run ends all the same, and nothing is without its opening."""
    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (16384, 16384))
    lines = [{"id": i, "prompt": "ab" * 110, "max_tokens": 2} for i in range(24)]
    path, store = write_lines(tmp_path / "r", lines), tmp_path / "s"
    done = sov.call("batch", "-m", small, path, "--store", store, "--record", "digest", preexec_fn=limit)
    assert done.returncode == 1 and b"sidecar" in done.stderr and b"EFBIG" in done.stderr, done.stderr
    assert str(store).encode() in done.stderr and len(log_of(store)) < 16384
    stands(store)


def strace(options, *arguments):
    if shutil.which("strace") is None:
        pytest.skip("no strace")
    done = subprocess.run(["strace", "-f", "-qq", *map(str, options), sov.SOV, *map(str, arguments)],
                          capture_output=True)
    if b"PTRACE" in done.stderr:
        pytest.skip("this system does not allow ptrace")
    return done


@pytest.mark.parametrize("call, error", [("fsync", "EIO"), ("pwrite64", "ENOSPC")])
def test_a_sidecar_on_a_disk_that_fails(small, tmp_path, call, error):
    store = tmp_path / "s"
    arguments = ["-m", small, "-p", "the", "-n", "100", "--ignore-eos", "--record", "digest", "--store",
                 store]
    sov.succeed("run", *arguments)
    before = own_records(sw.read_records(log_of(store)))
    for when in ("1", "3+"):  # of the request; of a boundary
        done = strace(["-o", tmp_path / "trace", "-P", store / "sidecar", "-e", f"trace={call}", "-e",
                       f"inject={call}:error={error}:when={when}"], "run", *arguments)
        assert error in (tmp_path / "trace").read_text()
        assert done.returncode == 1 and error.encode() in done.stderr, done.stderr
        assert b"sidecar" in done.stderr
        stands(store)
    assert own_records(sw.read_records(log_of(store)))[:len(before)] == before
    sov.succeed("run", *arguments)
    stands(store)
    sw.read_sidecar(sidecar_of(store))


def test_openings_are_durable_before_what_commits_to_them(small, tmp_path):
    """Of a whole batch, by its system calls: at each write to the log, whatever it holds of commitments
    has its opening in a part of the sidecar that was synced."""
    store, calls = tmp_path / "s", []
    path = write_lines(tmp_path / "r", [line for line in some_lines(12, 150)])
    done = strace(["-y", "-o", tmp_path / "trace", "-e", "trace=pwrite64,write,pwritev,fsync,fdatasync,"
                   "ftruncate", "-s", "0"], "batch", "-m", small, path, "--store", store, "--record",
                  "digest", "-t", "1", "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    for line in (tmp_path / "trace").read_text().splitlines():
        found = re.match(r"\d+ +(\w+)\(\d+<([^>]*)>(.*)$", line)
        if found and Path(found[2]).parent == store.resolve():
            calls.append((found[1], Path(found[2]).name, found[3]))
    log = log_of(store)
    ends = {opened: at + sw.ENTRY_HEAD + len(opened) for at, _, opened in
            sw.read_sidecar(sidecar_of(store))}
    commitments = {sw.commitment(opened): end for opened, end in ends.items()}
    written = synced = n_checked = n_syncs = 0
    for call, name, rest in calls:
        assert call in ("pwrite64", "fsync"), call
        if call == "pwrite64":
            n, at = map(int, re.search(r", (\d+), (\d+)(?:\)| <unfinished)", rest).groups())
        if name == "sidecar" and call == "pwrite64":
            written = max(written, at + n)
        elif name == "sidecar":
            synced, n_syncs = written, n_syncs + 1
        elif call == "pwrite64" and name == "log" and at >= 8192:
            # Everything whose payload ends in this write.
            for found in re.finditer(re.escape(sw.SEALED), log[:at + n]):
                payload = log[found.start():found.start() + 56]
                if at < found.start() + 56 <= at + n:
                    assert commitments[payload] <= synced
                    n_checked += 1
    assert n_checked == len(commitments) > 36 and n_syncs > 2


# --- SmolLM2 ---

@pytest.mark.skipif(not sov.FULL, reason="the long form")
def test_smollm2(tmp_path):
    model = sov.model("smollm2")
    lines = list(requests(8, 100))
    for line in lines:
        line.pop("logprobs", None)
        line["max_tokens"] = 100
    case = SealedCase(model, tmp_path, lines, "-c", "512")
    rng = random.Random(SEED)
    assert one_run(case, tmp_path / "s", rng, 0.8) > 0
