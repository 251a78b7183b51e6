# SPDX-License-Identifier: Apache-2.0
"""Stores and sidecars that no run makes, before the commands that open commitments: sov log, with
--erase, and sov verify. Bytes are made from docs/format.md alone (store_writer.py)."""
import json
import subprocess
import sys
import time

import pytest

import sov
import store_writer as sw
from test_replay import small_model

OWNER = 0x1234
SALT = bytes(range(32))


def store_of(folder, payload, sidecar=b""):
    """A store of one request, whose record has that payload."""
    writer = sw.Writer()
    writer.publish()
    writer.session(sw.manifest(1))
    writer.record(sw.REQUEST, sw.sequence_txid(sw.REQUEST, OWNER), payload, OWNER)
    writer.sidecar = sidecar
    return writer.write(folder)


def request(**fields):
    return sw.Request(OWNER, [1, 2, 3], form=1, prompt=b"what was asked", **fields).bytes()


def shown(store, code=0):
    """The lines of sov log."""
    done = sov.call("log", store, "--json")
    assert done.returncode == code, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.splitlines()]


def opened(store):
    """How many commitments can be opened, say both verifiers."""
    found = json.loads(sov.succeed("verify", store, "--json").stdout)["opened"]
    done = subprocess.run([sys.executable, sw.TOOL, store, "--json"], stdout=subprocess.PIPE, check=True)
    assert json.loads(done.stdout)["opened"] == found
    return found


def test_an_opening_is_shown(tmp_path):
    """The stores that are made here are such as a run makes."""
    whole = sw.opening(SALT, request())
    store = store_of(tmp_path / "s", sw.commitment(whole), sw.sidecar_entry(OWNER, whole))
    assert opened(store) == 1
    assert [line["prompt"] for line in shown(store)] == ["what was asked"]


@pytest.mark.parametrize("n", [0, 1, 16, 47, 48])
def test_what_is_too_short_for_an_opening(tmp_path, n):
    """It has the digest that was committed to, and is an opening of nothing."""
    short = sw.opening(SALT, b"")[:n]
    store = store_of(tmp_path / "s", sw.commitment(short), sw.sidecar_entry(OWNER, short))
    assert opened(store) == 0
    assert [(line["sealed"], line["prompt"]) for line in shown(store)] == [(True, None)]


@pytest.mark.parametrize("kind", ["one digest", "digests that begin alike"])
def test_many_entries_of_what_is_not_there(tmp_path, kind):
    """The time to open a sidecar does not grow as the square of its entries."""
    junk = []
    for i in range(120000 if kind == "one digest" else 150000):
        digest = bytes(8) + (sw.u64(i) if kind != "one digest" else bytes(8)) + bytes(16)
        head = sw.ENTRY + sw.u64(0, OWNER) + digest
        junk.append(head + sw.digest(head)[:8])
    whole = sw.opening(SALT, request())
    store = store_of(tmp_path / "s", sw.commitment(whole),
                     b"".join(junk) + sw.sidecar_entry(OWNER, whole))
    begin = time.monotonic()
    assert [line["prompt"] for line in shown(store)] == ["what was asked"]
    assert time.monotonic() - begin < 5


@pytest.mark.parametrize("sealed", [False, True])
def test_a_payload_of_a_later_version_is_not_called_erased(tmp_path, sealed):
    later = request().replace(b"sov-rtx reqst v1", b"sov-rtx reqst v2")
    whole = sw.opening(SALT, later)
    store = store_of(tmp_path / "s", sw.commitment(whole) if sealed else later,
                     sw.sidecar_entry(OWNER, whole))
    done = sov.call("log", store)
    assert done.returncode == 3 and b"reqst v2" in done.stderr and b"erased" not in done.stdout


def test_an_erasure_takes_the_lock_where_it_is_missing(tmp_path):
    """A run that began meanwhile would append to a file that is about to be replaced."""
    whole = sw.opening(SALT, request())
    store = store_of(tmp_path / "s", sw.commitment(whole), sw.sidecar_entry(OWNER, whole))
    (store / "lock").unlink()
    sov.succeed("log", store, "--erase")
    assert opened(store) == 0 and (store / "lock").exists()


@pytest.mark.parametrize("path", ["missing", "."])
def test_an_erasure_of_what_is_no_store_makes_nothing(tmp_path, path):
    assert sov.call("log", tmp_path / path, "--erase").returncode == 3
    assert list(tmp_path.iterdir()) == []


def resumed(folder, boundary, finish):
    """How resume ends with a store of one sequence that has ended, whose events are wanted."""
    model = small_model(folder / "small.gguf")
    writer, txid = sw.Writer(), sw.sequence_txid
    writer.publish()
    manifest = sw.manifest(1, sw.digest(model.read_bytes()))
    writer.session(manifest[:17] + bytes([1]) + manifest[18:])  # the profile exact
    asked = sw.Request(OWNER, [7], command=1, prompt=b"what was asked").bytes()
    parent, _ = writer.record(sw.REQUEST, txid(sw.REQUEST, OWNER), asked, OWNER)
    parent, capability = writer.record(
        sw.CHECKPOINT, txid(sw.CHECKPOINT, OWNER, len(boundary.tokens)), boundary.bytes(), OWNER,
        parent=parent, issues=True)
    writer.record(sw.FINISH, txid(sw.FINISH, OWNER, len(finish.tokens), 2), finish.bytes(), OWNER, 1,
                  parent, capability)
    store = writer.write(folder / "s")
    sov.succeed("verify", store)
    return sov.call("resume", store, "-m", model, "--events", folder / "spool")


def test_checkpoints_that_do_not_agree_where_the_prompt_ends(tmp_path):
    """What one calls generated, the other calls the prompt: events were read behind its tokens."""
    tokens = [7] * 60000
    done = resumed(tmp_path, sw.Checkpoint(OWNER, 1, 0, 0, 1, tokens, sw.ZEROS, 59999, sw.ZEROS),
                   sw.Checkpoint(OWNER, 3, 2, 0, 60000, tokens, sw.ZEROS, 2, sw.ZEROS))
    assert done.returncode == 1 and b"of another prompt" in done.stderr, done


def test_a_token_that_is_none(tmp_path):
    done = resumed(tmp_path, sw.Checkpoint(OWNER, 1, 0, 0, 1, [7], sw.ZEROS, 0, sw.ZEROS),
                   sw.Checkpoint(OWNER, 3, 2, 0, 1, [7, 0xffffffff], sw.ZEROS, 3, sw.ZEROS))
    assert done.returncode == 3 and b"is none" in done.stderr, done
    assert b"token 1 of its end is 4294967295, the vocabulary has" in done.stderr, done
