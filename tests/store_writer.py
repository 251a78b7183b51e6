# SPDX-License-Identifier: Apache-2.0
"""Record stores made in Python, from docs/format.md and docs/events.md: for tests of what reads stores,
and for a forger, who changes what he likes and computes every hash again. Shares nothing with the
program; of tools/verify_store.py it uses the tree."""
import hashlib
import importlib.util
import struct
from dataclasses import dataclass, field, replace
from pathlib import Path

TOOL = Path(__file__).resolve().parent.parent / "tools/verify_store.py"
spec = importlib.util.spec_from_file_location("verify_store", TOOL)
verify_store = importlib.util.module_from_spec(spec)
spec.loader.exec_module(verify_store)

NONE, ZEROS = 2**64 - 1, bytes(32)
MANIFEST, REQUEST, CHECKPOINT, EVENTS, FINISH = 1, 2, 3, 4, 5


def digest(*parts):
    return hashlib.sha256(b"".join(parts)).digest()


def u32(*values):
    return struct.pack(f"<{len(values)}I", *values)


def u64(*values):
    return struct.pack(f"<{len(values)}Q", *values)


def piece(data):
    return u64(len(data)) + data


def manifest(wall_ns, model=ZEROS, version=b"test"):
    return (b"sov-rowm mani v1" + bytes([1, 0]) + ZEROS + ZEROS + model + ZEROS + u64(wall_ns) +
            piece(version) + piece(b"") + piece(b""))


class Writer:
    """A log that grows by whole transactions. bytes() has both head slots, the newer one of now, the
    older one of the last call of publish()."""

    def __init__(self):
        self.log = b""
        self.link = self.worm = self.evolution = self.access = ZEROS
        self.tree = verify_store.Tree()
        self.n_entries = self.time = self.n_records = self.n_sessions = self.n_capabilities = 0
        self.n_claims = 0
        self.records = []  # (owner, epoch, source, payload bytes, payload hash)
        self.of_capability = {}
        self.sidecar = b""
        self.older = self.heads()

    def heads(self):
        return (u64(8192 + len(self.log), self.n_entries, self.time) + self.link + self.tree.root() +
                self.worm + self.evolution + self.access)

    def publish(self):
        self.older = self.heads()

    def head(self):
        return f"{self.n_entries}:{self.tree.root().hex()}"

    def entry(self, kind, meta, payload=b""):
        head = u64(len(meta), len(payload)) + bytes([kind]) + meta
        leaf = digest(b"\0", head)
        self.link = digest(b"sov-rowm link v1", self.link, leaf)
        self.log += head + self.link + payload
        self.tree.append(leaf)
        self.n_entries += 1
        return leaf

    def receipt(self, kind, txid, payload_hash):
        body = (b"sov-rowm rcpt v1" + u32(1) + bytes([kind]) + txid + payload_hash + self.worm +
                u64(self.time + 1))
        self.worm = digest(body)
        self.time += 1
        self.entry(3, body + self.worm)

    def consume(self, consumer, capability):
        record = self.of_capability[capability]
        self.access = digest(b"sov-rowm accs v1", self.access, u64(consumer, record), capability,
                             u64(self.time))

    def record(self, kind, txid, payload=None, owner=0, epoch=0, parent=NONE, consumes=None,
               issues=False):
        """Without a payload: by reference. Returns (record, capability or None)."""
        if kind == MANIFEST:
            self.n_sessions += 1
        number = self.n_records
        place, source = 0, NONE
        if payload is None:
            place, consumed = 1, self.of_capability[consumes]
            source = self.records[consumed][2]
            source = consumed if source == NONE else source
            length, payload_hash = self.records[consumed][3:]
        else:
            length, payload_hash = len(payload), digest(payload)
        proof = digest(b"sov-rowm prof v1", self.evolution, txid, payload_hash, u64(epoch))
        nonce = self.n_capabilities if issues else 0
        meta = (b"sov-rowm body v1" + u64(number, self.n_sessions - 1) + bytes([kind]) +
                u64(owner, epoch, parent) + self.evolution + txid + bytes([place]) + u64(source) +
                u64(length) + payload_hash + bytes([consumes is not None]) + (consumes or ZEROS) +
                bytes([issues]) + u64(nonce) + proof)
        leaf = self.entry(1, meta, payload or b"")
        self.receipt(1, txid, payload_hash)
        if consumes is not None:
            self.consume(owner, consumes)
        capability = None
        if issues:
            capability = digest(b"sov-rowm cpbl v1", u64(number, owner, nonce))
            self.of_capability[capability] = number
            self.n_capabilities += 1
        self.records.append((owner, epoch, source, length, payload_hash))
        self.n_records += 1
        self.evolution = digest(b"sov-rowm evol v1", self.evolution, leaf, proof, u64(self.time))
        return number, capability

    def session(self, payload):
        return self.record(MANIFEST, digest(b"sov-rowm sess v1", u64(self.n_sessions)), payload)

    def bytes(self):
        slots, previous = b"", ZEROS
        for generation, heads in enumerate((self.older, self.heads())):
            body = b"sov-rowm head v1" + u64(generation) + heads + previous
            previous = digest(body)
            slots += (body + previous).ljust(4096, b"\0")
        return slots + self.log

    def write(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "log").write_bytes(self.bytes())
        if self.sidecar:
            (folder / "sidecar").write_bytes(self.sidecar)
        (folder / "lock").touch()
        return folder


# --- reading a log back into what was written ---

@dataclass
class Written:
    kind: int
    owner: int
    epoch: int
    parent: int
    txid: bytes
    payload: bytes  # or None: by reference
    consumes: int   # the record whose capability, or None
    issues: bool
    salt: bytes = None  # of a sealed one whose payload was put in clear (unseal)


def read_records(data):
    """Every record of a log, without claims."""
    records, capabilities, at = [], {}, 8192
    end = max(struct.unpack_from("<Q", data, slot + 24)[0] for slot in (0, 4096))
    while at < end:
        m, p = struct.unpack_from("<QQ", data, at)
        meta, payload = data[at + 17:at + 17 + m], data[at + 49 + m:at + 49 + m + p]
        if data[at + 16] == 1:
            owner, epoch, parent = struct.unpack_from("<QQQ", meta, 33)
            consumes = capabilities[meta[171:203]] if meta[170] else None
            if meta[203]:
                capability = digest(b"sov-rowm cpbl v1", u64(len(records), owner), meta[204:212])
                capabilities[capability] = len(records)
            records.append(Written(meta[32], owner, epoch, parent, meta[89:121],
                                   None if meta[121] else payload, consumes, bool(meta[203])))
        at += 49 + m + p
    return records


def write_records(records):
    """The log of these records, all hashes computed anew."""
    writer, capabilities = Writer(), {}
    for number, r in enumerate(records):
        writer.publish()
        consumes = None if r.consumes is None else capabilities[r.consumes]
        _, capabilities[number] = writer.record(r.kind, r.txid, r.payload, r.owner, r.epoch, r.parent,
                                                consumes, r.issues)
    return writer


# --- commitments ---

OPENING, SEALED, ENTRY = b"sov-rtx openg v1", b"sov-rtx seald v1", b"sov-rtx sidec v1"
ENTRY_HEAD = 72


def opening(salt, payload):
    return OPENING + salt + payload


def commitment(opened):
    """What a log has in the place of a payload."""
    return SEALED + u64(len(opened)) + digest(opened)


def salted_origin(salt, origin):
    return digest(b"sov-rtx orign v1", salt, origin)


def token_commitment(salt, number, token):
    return digest(b"sov-rtx token v1", salt, u64(number), u32(token))


def sidecar_entry(sequence, opened):
    head = ENTRY + u64(len(opened), sequence) + digest(opened)
    return head + digest(head)[:8] + opened


def read_sidecar(data):
    """(offset, sequence, opening) of every entry of a sidecar that is whole and has nothing else."""
    at, found = 0, []
    while at < len(data):
        head = data[at:at + 64]
        n, sequence = struct.unpack_from("<QQ", head, 16)
        opened = data[at + ENTRY_HEAD:at + ENTRY_HEAD + n]
        assert len(opened) == n and sidecar_entry(sequence, opened) == data[at:at + ENTRY_HEAD + n]
        assert opened.startswith(OPENING) and n > 48
        found.append((at, sequence, opened))
        at += ENTRY_HEAD + n
    return found


def unseal(records, sidecar):
    """Puts in clear what is sealed and can be opened; the records then have the salt."""
    openings = {commitment(opened): opened for _, _, opened in read_sidecar(sidecar)}
    for r in records:
        if r.payload in openings:
            opened = openings[r.payload]
            r.salt, r.payload = opened[16:48], opened[48:]
    return records


def kept(salt, payload):
    """What a log has of a payload."""
    return payload if salt is None else commitment(opening(salt, payload))


def seal(records):
    """Takes unseal back, of payloads that may have been changed. Returns the sidecar."""
    entries = []
    for r in records:
        if r.salt is not None:
            entries.append(sidecar_entry(r.owner, opening(r.salt, r.payload)))
            r.payload, r.salt = kept(r.salt, r.payload), None
    return b"".join(entries)


# --- payloads ---

class Cursor:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, n):
        assert self.at + n <= len(self.data)
        self.at += n
        return self.data[self.at - n:self.at]

    def u(self, n):
        return int.from_bytes(self.take(n), "little")

    def piece(self):
        return self.take(self.u(8))

    def words(self):
        data = self.piece()
        return list(struct.unpack(f"<{len(data) // 4}I", data))


@dataclass
class Checkpoint:
    sequence: int
    kind: int
    finish: int
    form: int
    n_prompt: int
    tokens: list
    origin: bytes
    event_number: int
    event_digest: bytes
    begin: int = 0
    end: int = 0
    layers: int = 0
    row_bytes: int = 0
    digests: bytes = b""
    rows: bytes = b""

    def bytes(self):
        return (b"sov-rtx chkpt v1" + u64(self.sequence) + bytes([self.kind, self.finish, self.form]) +
                u32(self.n_prompt) + piece(u32(*self.tokens)) + self.origin + u64(self.event_number) +
                self.event_digest + u32(self.begin, self.end, self.layers, self.row_bytes) +
                piece(self.digests) + piece(self.rows))


def read_checkpoint(data):
    c = Cursor(data)
    assert c.take(16) == b"sov-rtx chkpt v1"
    found = Checkpoint(c.u(8), c.u(1), c.u(1), c.u(1), c.u(4), c.words(), c.take(32), c.u(8), c.take(32),
                       c.u(4), c.u(4), c.u(4), c.u(4), c.piece(), c.piece())
    assert c.at == len(data) and found.bytes() == data
    return found


@dataclass
class Request:
    sequence: int
    tokens: list
    command: int = 3
    form: int = 0
    kv_form: int = 0
    context: int = 256
    n_new_max: int = 0
    ignore_end: int = 0
    end_token: int = 0xffffffff
    wants_logprob: int = 0
    n_logprobs: int = 0
    penalties: tuple = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)
    penalty_window: int = 64
    top_k: int = 0
    seed: int = 1
    biases: bytes = b""
    stops: list = field(default_factory=list)
    prompt: bytes = b""
    line_number: int = 0
    line: bytes = b""
    script: list = field(default_factory=list)

    def bytes(self):
        return (b"sov-rtx reqst v1" + u64(self.sequence) +
                bytes([self.command, self.form, self.kv_form]) + u32(self.context, self.n_new_max) +
                bytes([self.ignore_end]) + u32(self.end_token) + bytes([self.wants_logprob]) +
                u32(self.n_logprobs) + struct.pack("<6f2i", *self.penalties, self.penalty_window,
                                                   self.top_k) + u64(self.seed) + piece(self.biases) +
                bytes([len(self.stops)]) + b"".join(map(piece, self.stops)) + piece(self.prompt) +
                u64(self.line_number) + piece(self.line) + piece(u32(*self.tokens)) +
                piece(u32(*self.script)))


def sequence_txid(kind, sequence, n_tokens=0, checkpoint_kind=1):
    if kind == REQUEST:
        return digest(b"sov-rtx seqr v1", u64(sequence))
    return digest(b"sov-rtx seqc v1", u64(sequence), u32(n_tokens, checkpoint_kind))


# --- events ---

IDLE, PREFILL, GENERATE, CHECKPOINTS = 0, 1, 2, 4


NO_TOKEN = 0xffffffff


def event_bytes(sequence, number, kind, states, count, token, finish, receipt, prior, salt=None):
    sealed = b""
    if salt is not None:
        sealed = ZEROS if token == NO_TOKEN else token_commitment(salt, number, token)
        token = NO_TOKEN
    body = (b"sov-rtx event v1" + u32(1 if salt is None else 2) + bytes([kind]) + u64(sequence) +
            bytes(states) + u32(count) + u32(token) + bytes([finish, receipt is not None]) +
            (receipt or ZEROS) + u64(number) + prior + sealed)
    return body, digest(body)


# --- the forger ---

def forge(data, choose, change, sidecar=b""):
    """The log with one generated token of one sequence changed wherever it stands, and every hash
    computed again: payloads, events and their receipts, entries, receipts, chains, tree, head; of
    sealed ones openings and commitments too. choose(owner -> list of checkpoints) gives (owner, index
    of the generated token)."""
    records = unseal(read_records(data), sidecar)
    states = {}
    for r in records:
        if r.kind in (CHECKPOINT, FINISH) and r.payload is not None:
            states.setdefault(r.owner, []).append(read_checkpoint(r.payload))
    owner, index = choose(states)
    own = [r for r in records if r.owner == owner and r.kind in (CHECKPOINT, FINISH) and
           r.payload is not None]
    first = read_checkpoint(own[0].payload)
    at = first.n_prompt + index
    prior, number = first.origin, 0
    head = {}  # events made: digest of event n
    tokens = list(read_checkpoint(own[-1].payload).tokens)
    tokens[at] = change(tokens[at])
    out = {}

    def event(kind, states_of, count, token, finish, receipt):
        nonlocal prior, number
        _, prior = event_bytes(owner, number, kind, states_of, count, token, finish, receipt, prior,
                               own[0].salt)
        head[number] = prior
        number += 1

    event(1, (IDLE, PREFILL), 0, 0xffffffff, 0, None)
    for r in own[1:]:
        c = read_checkpoint(r.payload)
        n_generated = len(c.tokens) - c.n_prompt
        last = n_generated if c.kind != 1 else n_generated - 1
        while number <= last:
            token = tokens[c.n_prompt + number - 1]
            event(2, (PREFILL if number == 1 else GENERATE, GENERATE), number, token, 0, None)
        if c.kind == 3:
            event(3, (GENERATE, IDLE), n_generated, 0xffffffff, c.finish, None)
        assert c.event_number == number, (c, number)
        made = replace(c, tokens=tokens[:len(c.tokens)], event_digest=head[number - 1])
        if n_generated <= index:
            assert made.bytes() == r.payload  # the events are made as the program makes them
        out[id(r)] = made.bytes()
        if c.kind == 1:
            receipt = digest(b"sov-checkpoint-receipt-1", u64(owner), u32(len(c.tokens), c.kind),
                             digest(kept(r.salt, out[id(r)])))
            token = tokens[c.n_prompt + number - 1]
            event(2, (CHECKPOINTS, GENERATE), number, token, 0, receipt)
    for r in own[1:]:
        r.payload = out[id(r)]
    sidecar = seal(records)
    writer = write_records(records)
    writer.sidecar = sidecar
    return writer
