# SPDX-License-Identifier: Apache-2.0
"""Stores and sidecars that no run makes, before the commands that open commitments: sov log, with
--erase, and sov verify. Bytes are made from docs/format.md alone (store_writer.py)."""
import json
import time

import pytest

import sov
import store_writer as sw

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
    return json.loads(sov.succeed("verify", store, "--json").stdout)["opened"]


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
