# SPDX-License-Identifier: Apache-2.0
"""What run, chat and batch record: the records of a sequence, their payloads (read here from
docs/format.md alone), that these do not depend on how they were computed, and what happens when a
store cannot be had or breaks."""
import fcntl
import hashlib
import json
import os
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

import chat_models
import sov

CHATML = ("{% for m in messages %}{{'<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>'"
          " + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
          "{% endif %}")
CONTEXT, LAYERS = 256, 2
MANIFEST, REQUEST, CHECKPOINT, FINISH = 1, 2, 3, 5
BOUNDARY, SUSPEND, END = 1, 2, 3
STOP, LENGTH, CANCEL = 1, 2, 3


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    path = tmp_path_factory.mktemp("record") / "small.gguf"
    return chat_models.write_model(path, chat_models.bpe_keys(CHATML), n_layer=LAYERS, n_embd=64,
                                   n_ff=64, n_head=4, n_head_kv=2, context=CONTEXT)


# --- a reader of stores and payloads ---

class Bytes:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, n):
        assert self.at + n <= len(self.data)
        self.at += n
        return self.data[self.at - n:self.at]

    def number(self, form):
        return struct.unpack("<" + form, self.take(struct.calcsize(form)))[0]

    def slice(self):
        return self.take(self.number("Q"))

    def tokens(self):
        return list(memoryview(self.slice()).cast("I"))


def read_request(data):
    b = Bytes(data)
    assert b.take(16) == b"sov-rtx reqst v1"
    r = {"id": b.number("Q"), "command": b.number("B"), "form": b.number("B"),
         "kv_form": b.number("B"), "context": b.number("I"), "n_new": b.number("I"),
         "ignore_end": b.number("B"), "end_token": b.number("I"), "wants_logprob": b.number("B"),
         "n_logprobs": b.number("I"), "floats": [b.number("f") for _ in range(6)],
         "penalty_window": b.number("i"), "top_k": b.number("i"), "seed": b.number("Q"),
         "biases": b.slice()}
    r["stops"] = [b.slice() for _ in range(b.number("B"))]
    r.update(prompt=b.slice(), line_number=b.number("Q"), line=b.slice(), tokens=b.tokens(),
             script=b.tokens())
    assert b.at == len(data)
    return r


def read_checkpoint(data):
    b = Bytes(data)
    assert b.take(16) == b"sov-rtx chkpt v1"
    c = {"id": b.number("Q"), "kind": b.number("B"), "finish": b.number("B"),
         "kv_form": b.number("B"), "n_prompt": b.number("I"), "tokens": b.tokens(),
         "origin": b.take(32), "event": b.number("Q"), "event_digest": b.take(32),
         "begin": b.number("I"), "end": b.number("I"), "n_layer": b.number("I"),
         "row": b.number("I")}
    digests = b.slice()
    c["digests"] = [digests[i:i + 32] for i in range(0, len(digests), 32)]
    c["kv"] = b.slice()
    assert b.at == len(data) and len(c["digests"]) == c["n_layer"]
    return c


def records(store):
    """(kind, owner, epoch, payload) of every record that has a payload of its own."""
    log = (store / "log").read_bytes()
    at, found = 8192, []
    while at < len(log):
        m, p, kind = struct.unpack_from("<QQB", log, at)
        meta = log[at + 17:at + 17 + m]
        if kind == 1:
            payload = log[at + 49 + m:at + 49 + m + p]
            assert hashlib.sha256(payload).digest() == meta[138:170]
            found.append((meta[32], *struct.unpack_from("<QQ", meta, 33), payload))
        at += 49 + m + p
    return found


def sequence(store, owner):
    """The request and the checkpoints of one sequence, the end among them."""
    own = [(kind, payload) for kind, who, _, payload in records(store) if who == owner]
    assert own[0][0] == REQUEST
    return read_request(own[0][1]), [read_checkpoint(payload) for _, payload in own[1:]]


def verify(store, expect=None):
    more = ["--expect", expect] if expect else []
    assert sov.succeed("verify", store, *more)
    done = subprocess.run([sys.executable, sov.ROOT / "tools/verify_store.py", store, *more],
                          capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr


def stores(state):
    folder = state / "sov-rtx/records"
    return sorted(folder.iterdir()) if folder.exists() else []


def run(model, store, *options, **more):
    return sov.run_json(model, "--store", store, "-p", "the old harbour", *options, **more)


# --- what is recorded ---

def test_records_of_a_run(small, tmp_path):
    store = tmp_path / "a" / "b"
    answer = run(small, store, "-n", "130", "--ignore-eos", "--greedy", "--logit-bias", "15+1.5")
    assert answer["record"]["store"] == str(store)
    verify(store, answer["record"]["head"])
    found = records(store)
    assert [(kind, owner, epoch) for kind, owner, epoch, _ in found] == [
        (MANIFEST, 0, 0), (REQUEST, 1, 0), (CHECKPOINT, 1, 0), (CHECKPOINT, 1, 1), (CHECKPOINT, 1, 2),
        (FINISH, 1, 3)]
    manifest = Bytes(found[0][3])
    assert manifest.take(18) == b"sov-rowm mani v1\x01\x01"
    build, contract, model, kernels = (manifest.take(32) for _ in range(4))
    assert contract == hashlib.sha256((sov.ROOT / "docs/contract.md").read_bytes()).digest()
    assert model == hashlib.sha256(small.read_bytes()).digest()
    assert len({build, contract, model, kernels, bytes(32)}) == 5
    request, states = sequence(store, 1)
    assert request["command"] == 1 and request["prompt"] == b"the old harbour"
    assert request["tokens"] == answer["prompt_tokens"] and request["n_new"] == 130
    assert request["ignore_end"] == 1 and request["seed"] == answer["seed"]
    assert request["biases"] == struct.pack("<If", 15, 1.5) and request["context"] == CONTEXT
    n = len(request["tokens"])
    every = answer["prompt_tokens"] + answer["tokens"]
    assert [(c["kind"], len(c["tokens"]) - n, c["event"], c["begin"], c["end"]) for c in states] == [
        (BOUNDARY, 0, 0, 0, 0), (BOUNDARY, 64, 64, 0, n + 63), (BOUNDARY, 128, 128, n + 63, n + 127),
        (END, 130, 132, n + 127, n + 129)]
    assert all(c["tokens"] == every[:len(c["tokens"])] for c in states)
    assert states[-1]["finish"] == LENGTH and states[0]["event_digest"] == states[0]["origin"]


def test_checkpoints_do_not_depend_on_how(small, tmp_path):
    options = ["-n", "200", "--ignore-eos", "--seed", "5", "--temp", "1.2"]
    expected = None
    for i, way in enumerate([[], ["-t", "1", "--prefill-chunk", "3"], ["--force-isa", "scalar"],
                             ["--kv-shuffle", "7", "-t", "2"]]):
        run(small, tmp_path / str(i), *options, *way)
        found = [payload for kind, _, _, payload in records(tmp_path / str(i)) if kind != MANIFEST]
        assert len(found) == 6
        expected = expected or found
        assert found == expected


def test_forms(small, tmp_path):
    options = ["-n", "70", "--ignore-eos", "--greedy"]
    states = {}
    for form in ("digest", "full", "tokens"):
        run(small, tmp_path / form, *options, "--checkpoint", form)
        verify(tmp_path / form)
        request, states[form] = sequence(tmp_path / form, 1)
        assert request["kv_form"] == ["digest", "full", "tokens"].index(form)
    boundary = states["full"][1]
    size = (boundary["end"] - boundary["begin"]) * boundary["row"]
    assert boundary["row"] == 2 * 2 * 16 * 2 and len(boundary["kv"]) == LAYERS * size  # K V, heads, f16
    layers = [boundary["kv"][i * size:(i + 1) * size] for i in range(LAYERS)]
    assert [hashlib.sha256(layer).digest() for layer in layers] == states["digest"][1]["digests"]
    assert len(set(states["digest"][1]["digests"])) == LAYERS
    assert states["full"][2]["digests"] == states["digest"][2]["digests"] != []
    assert states["full"][2]["kv"] == b"" and states["digest"][1]["kv"] == b""
    assert all(c["n_layer"] == 0 and c["digests"] == [] for c in states["tokens"])
    done = sov.call("run", "-m", small, "-p", "x", "--checkpoint", "all")
    assert done.returncode == 2 and b"--checkpoint" in done.stderr


def test_default_folder(small, tmp_path):
    environment = dict(os.environ, XDG_STATE_HOME=str(tmp_path))
    first = sov.run_json(small, "-p", "x", "-n", "3", "--seed", "1", env=environment)
    second = sov.run_json(small, "-p", "x", "-n", "3", "--seed", "1", env=environment)
    assert {first["record"]["store"], second["record"]["store"]} == set(map(str, stores(tmp_path)))
    assert first["tokens"] == second["tokens"]
    for store in stores(tmp_path):
        verify(store)
        assert store.stat().st_mode & 0o077 == 0  # prompts are nobody else's
    off = sov.run_json(small, "-p", "x", "-n", "3", "--seed", "1", "--no-record", env=environment)
    assert off["record"] is None and off["tokens"] == first["tokens"] and len(stores(tmp_path)) == 2
    sov.run_json(small, "-p", "x", "-n", "0", env=environment)  # nothing is asked for
    assert len(stores(tmp_path)) == 2
    home = {k: v for k, v in os.environ.items() if k != "XDG_STATE_HOME"}
    sov.run_json(small, "-p", "x", "-n", "1", env=dict(home, HOME=str(tmp_path)))
    assert len(stores(tmp_path / ".local/state")) == 1
    del home["HOME"]
    done = sov.call("run", "-m", small, "-p", "x", "-n", "1", env=home)
    assert done.returncode == 2 and b"--no-record" in done.stderr and done.stdout == b""
    sov.succeed("run", "-m", small, "-p", "x", "-n", "1", "--no-record", env=home)
    done = sov.call("run", "-m", small, "-p", "x", "--no-record", "--store", tmp_path / "s")
    assert done.returncode == 2


def test_sessions(small, tmp_path):
    """A second run goes behind the first, with a sequence of its own."""
    store = tmp_path / "store"
    first = run(small, store, "-n", "3", "--seed", "1")
    second = run(small, store, "-n", "3", "--seed", "1")
    verify(store, first["record"]["head"])
    verify(store, second["record"]["head"])
    owners = [owner for kind, owner, _, _ in records(store) if kind == REQUEST]
    assert len(owners) == 2 == len(set(owners))
    a, b = (sequence(store, owner)[1][-1] for owner in owners)
    assert a["tokens"] == b["tokens"] and a["event_digest"] != b["event_digest"]
    assert a["origin"] == b["origin"]


def test_model_digest_is_kept(small, tmp_path):
    """Where files are the same by all that identifies them, the digest is not computed again; a
    damaged entry, and a file that changed, are found out."""
    environment = dict(os.environ, XDG_STATE_HOME=str(tmp_path / "state"))
    model = tmp_path / "model.gguf"
    shutil.copy(small, model)

    def recorded():
        answer = sov.run_json(model, "-p", "x", "-n", "1", env=environment)
        log = (tmp_path / "state/sov-rtx/records" / answer["record"]["store"])
        return records(log)[0][3][18 + 64:18 + 96]

    digest = hashlib.sha256(model.read_bytes()).digest()
    kept = tmp_path / "state/sov-rtx/models"
    assert recorded() == digest and not kept.exists()  # changed just now: not to be relied on
    time.sleep(3.2)
    assert recorded() == digest
    [entry] = kept.iterdir()
    assert recorded() == digest and [entry] == list(kept.iterdir())
    text = entry.read_text()
    assert text.split()[0] == digest.hex()
    entry.write_text("0" * 64 + text[64:])
    assert recorded() == digest and entry.read_text() == text
    data = bytearray(model.read_bytes())
    data[-1] ^= 1
    with open(model, "r+b") as file:  # the same name, size and inode
        file.write(data)
    assert recorded() == hashlib.sha256(data).digest() != digest


def test_stop(small, tmp_path):
    first = run(small, tmp_path / "a", "-n", "40", "--greedy", "--ignore-eos")
    text = first["text"]
    stop = text[len(text) // 2:][:3]
    answer = run(small, tmp_path / "b", "-n", "40", "--greedy", "--ignore-eos", "--stop", stop)
    request, states = sequence(tmp_path / "b", 1)
    assert request["stops"] == [stop.encode()] and answer["finish_reason"] == "stop"
    assert states[-1]["finish"] == STOP
    assert states[-1]["tokens"] == answer["prompt_tokens"] + answer["tokens"]


def test_chat(small, tmp_path):
    done = sov.succeed("chat", "-m", small, "--store", tmp_path / "s", "-n", "4", "--greedy",
                       "--ignore-eos", stdin=b"hello\nand now\n")
    requests = [read_request(p) for kind, _, _, p in records(tmp_path / "s") if kind == REQUEST]
    assert [(r["command"], r["prompt"]) for r in requests] == [(2, b"hello"), (2, b"and now")]
    assert requests[1]["tokens"][:len(requests[0]["tokens"])] == requests[0]["tokens"]
    head = done.stderr.decode().splitlines()[-1].split()[1].rstrip(",")
    verify(tmp_path / "s", head)


# --- batches ---

def write_lines(path, n, tokens=20):
    lines = [{"id": i, "prompt": f"harbour {i}", "max_tokens": tokens, "ignore_eos": True,
              "temperature": i % 2} for i in range(n)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return lines


def test_batch(small, tmp_path):
    lines = write_lines(tmp_path / "r", 20, tokens=80)
    options = ["--max-seqs", "6"]
    done = sov.succeed("batch", "-m", small, tmp_path / "r", "--store", tmp_path / "s", *options)
    off = sov.succeed("batch", "-m", small, tmp_path / "r", "--no-record", *options)
    piped = sov.succeed("batch", "-m", small, "-", "--store", tmp_path / "p", *options,
                        stdin=(tmp_path / "r").read_bytes())
    assert sorted(done.stdout.splitlines()) == sorted(off.stdout.splitlines())
    assert sorted(done.stdout.splitlines()) == sorted(piped.stdout.splitlines())
    verify(tmp_path / "p")
    head = done.stderr.decode().splitlines()[-1].split()[1].rstrip(",")
    verify(tmp_path / "s", head)
    found = records(tmp_path / "s")
    # All requests before anything else, in the order of the lines.
    first = [kind for kind, _, _, _ in found[1:2 * len(lines) + 1]]
    assert first == [REQUEST, CHECKPOINT] * len(lines)
    requests = [read_request(p) for kind, _, _, p in found if kind == REQUEST]
    assert [json.loads(r["line"]) for r in requests] == lines
    assert [r["line_number"] for r in requests] == list(range(1, len(lines) + 1))
    answers = {a["id"]: a for a in map(json.loads, done.stdout.splitlines())}
    for request, line in zip(requests, lines):
        _, states = sequence(tmp_path / "s", request["id"])
        answer = answers[line["id"]]
        assert states[-1]["tokens"] == request["tokens"] + answer["tokens"]
        assert states[-1]["event_digest"].hex() == answer["digest"]
    # The same requests are there already.
    again = sov.call("batch", "-m", small, tmp_path / "r", "--store", tmp_path / "s", *options)
    assert again.returncode == 1 and b"sov resume" in again.stderr and again.stdout == b""
    again = sov.call("batch", "-m", small, "-", "--store", tmp_path / "s", *options,
                     stdin=(tmp_path / "r").read_bytes())
    assert again.returncode == 1 and again.stdout.count(b"sov resume") == len(lines)
    verify(tmp_path / "s", head)


def test_batch_with_wrong_lines(small, tmp_path):
    lines = write_lines(tmp_path / "r", 4, tokens=3)
    text = (tmp_path / "r").read_text().splitlines()
    text[1] = "{"
    text.append(text[0])
    (tmp_path / "r").write_text("\n".join(text) + "\n\n")
    done = sov.call("batch", "-m", small, tmp_path / "r", "--store", tmp_path / "s")
    assert done.returncode == 1 and done.stdout.count(b"\n") == 5
    assert done.stdout.count(b'"error"') == 2
    numbers = [read_request(p)["line_number"] for kind, _, _, p in records(tmp_path / "s")
               if kind == REQUEST]
    assert numbers == [1, 3, 4] and len(lines) == 4
    verify(tmp_path / "s")


def test_kill_loses_no_request(small, tmp_path):
    lines = write_lines(tmp_path / "r", 300, tokens=200)
    with subprocess.Popen([sov.SOV, "batch", "-m", small, tmp_path / "r", "--store", tmp_path / "s",
                           "--max-seqs", "2"], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as process:
        process.stdout.readline()
        process.kill()
    found = [read_request(p) for kind, _, _, p in records(tmp_path / "s") if kind == REQUEST]
    assert [json.loads(r["line"]) for r in found] == lines


def test_kill_while_requests_are_recorded(small, tmp_path):
    """They are several commits: the first of them are there then, in order, none was answered, and
    sov resume finishes those."""
    if shutil.which("strace") is None:
        pytest.skip("no strace")
    lines = write_lines(tmp_path / "r", 1000, tokens=1)
    counts = []
    for when in range(8, 13):
        store = tmp_path / f"s{when}"
        done = subprocess.run(["strace", "-f", "-qq", "-e", "trace=fsync", "-e",
                               f"inject=fsync:signal=KILL:when={when}", "-o", tmp_path / "trace",
                               sov.SOV, "batch", "-m", small, tmp_path / "r", "--store", store,
                               "--max-seqs", "2"], capture_output=True)
        if b"PTRACE" in done.stderr:
            pytest.skip("this system does not allow ptrace")
        found = [read_request(p) for kind, _, _, p in records(store) if kind == REQUEST]
        assert [json.loads(r["line"]) for r in found] == lines[:len(found)]
        counts.append(len(found))
        if len(found) < len(lines):
            assert done.stdout == b""
        if counts.count(len(lines)) == 2:
            break
    k = next(i for i, n in enumerate(counts) if n > 0)
    answers = sov.succeed("resume", tmp_path / f"s{k + 8}", "-m", small).stdout.splitlines()
    assert [json.loads(a)["id"] for a in answers] == [line["id"] for line in lines[:counts[k]]]


def traced(arguments, trace, *options):
    """The calls that make and change names or make them durable, with paths, in order."""
    if shutil.which("strace") is None:
        pytest.skip("no strace")
    done = subprocess.run(["strace", "-f", "-y", "-qq", "-e", "trace=mkdir,fsync,rename,pwrite64", *options,
                           "-o", trace, sov.SOV, *map(str, arguments)], capture_output=True)
    if b"PTRACE" in done.stderr:
        pytest.skip("this system does not allow ptrace")
    calls = []
    for line in trace.read_text().splitlines():
        name, path = re.match(r'\d+ +(\w+)\((?:\d+<([^>]*)>|"[^"]*")?', line).groups() if "(" in line \
            else (None, None)
        if name is not None:
            paths = [os.path.abspath(p) for p in re.findall(r'"(/[^"]*)"', line)]
            calls.append((name, [path] if path else paths))
    return calls


def test_names_are_durable_before_records(small, tmp_path):
    """Each folder that was made, or that somebody made who was killed before its name was durable; the
    log under another name first, then its name; all of it before the first entry."""
    arguments = ("run", "-m", small, "-p", "a", "-n", "2", "--store")
    store = tmp_path / "a/b/c"

    def check(calls, synced):
        first = next(i for i, c in enumerate(calls)
                     if c[0] == "pwrite64" and c[1] == [str(store / "log")])
        before = calls[:first]
        for folder in synced:
            place = [i for i, c in enumerate(before) if c == ("mkdir", [str(folder)])]
            fsync = [i for i, c in enumerate(before) if c == ("fsync", [str(folder.parent)])]
            assert fsync and (not place or place[0] < fsync[-1]), (folder, before)
        rename = before.index(("rename", [str(store / "log.new"), str(store / "log")]))
        assert ("fsync", [str(store / "log.new")]) in before[:rename]
        assert ("fsync", [str(store)]) in before[rename:]

    calls = traced((*arguments, store), tmp_path / "trace")
    check(calls, [store, store.parent, store.parent.parent])
    # Killed in each fsync of a folder, that is, with the name made and not durable.
    for when in range(1, 4):
        shutil.rmtree(tmp_path / "a")
        traced((*arguments, store), tmp_path / "trace", "-e", f"inject=fsync:signal=KILL:when={when + 1}")
        made = [f for f in (tmp_path / "a", tmp_path / "a/b", store) if f.exists()]
        assert len(made) == when and not (store / "log").exists()
        check(traced((*arguments, store), tmp_path / "trace"), [made[-1]])


# --- signals ---

@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run(which, tmp_path):
    model = sov.model("smollm2")
    with subprocess.Popen([sov.SOV, "run", "-m", model, "-p", "Once", "-n", "2000", "--ignore-eos",
                           "--store", tmp_path / "s"], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as process:
        process.stdout.read(20)
        process.send_signal(which)
        out, err = process.communicate(timeout=30)
        assert process.returncode == 130
    verify(tmp_path / "s", err.decode().splitlines()[-1].split()[1].rstrip(","))
    _, states = sequence(tmp_path / "s", 1)
    assert states[-1]["kind"] == SUSPEND and states[-1]["begin"] == states[-1]["end"]
    n = len(states[-1]["tokens"]) - states[-1]["n_prompt"]
    assert n >= 1 and states[-1]["event"] == n + 1
    kinds = [kind for kind, _, _, _ in records(tmp_path / "s")]
    assert FINISH not in kinds


def test_reader_that_goes_away(tmp_path):
    """Who closes the pipe has had enough: that is an end."""
    model = sov.model("smollm2")
    with subprocess.Popen([sov.SOV, "run", "-m", model, "-p", "Once", "-n", "2000", "--ignore-eos",
                           "--store", tmp_path / "s"], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as process:
        process.stdout.read(5)
        process.stdout.close()
        process.wait(timeout=30)
    _, states = sequence(tmp_path / "s", 1)
    assert states[-1]["kind"] == END and states[-1]["finish"] == CANCEL


# --- stores that cannot be had, and that break ---

@pytest.mark.parametrize("program", ["sov", "sov-static"])
def test_longest_file(program, small, tmp_path):
    """A limit of file sizes (ulimit -f) is an error that is told, not a signal that ends the run."""
    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
    store = tmp_path / "store"
    done = sov.call("run", "-m", small, "-p", "ab", "-n", 3, "--store", store,
                    program=sov.BUILD / program, preexec_fn=limit)
    assert done.returncode == 1 and b"EFBIG (file too large)" in done.stderr, done
    assert str(store).encode() in done.stderr
    sov.succeed("verify", store)


def test_in_use(small, tmp_path):
    with subprocess.Popen([sov.SOV, "batch", "-m", small, "-", "--store", tmp_path / "s"],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as process:
        process.stdin.write(b'{"id":1,"prompt":"x","max_tokens":1}\n')
        process.stdin.flush()
        process.stdout.readline()
        done = sov.call("run", "-m", small, "-p", "x", "-n", "1", "--store", tmp_path / "s")
        assert done.returncode == 1 and b"in use" in done.stderr and done.stdout == b""
        process.stdin.close()
        assert process.wait(timeout=20) == 0
    verify(tmp_path / "s")


def test_a_lock_that_was_removed_is_no_lock(small, tmp_path):
    """sov log --prune removes a store's lock while another program has opened it and not yet locked
    it: that one must meet whoever takes the new lock."""
    if shutil.which("strace") is None:
        pytest.skip("no strace")
    store = tmp_path / "s"
    run(small, store, "-n", "1")
    before = (store / "log").read_bytes()
    with subprocess.Popen(["strace", "-f", "-qq", "-o", tmp_path / "trace", "-e", "trace=flock", "-e",
                           "inject=flock:delay_enter=1500000", sov.SOV, "run", "-m", small, "-p", "x",
                           "-n", "1", "--store", store], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as process:
        opened = time.monotonic() + 20
        lock = os.stat(store / "lock").st_ino
        while time.monotonic() < opened and not any(
                os.stat(fd).st_ino == lock for fd in open_files(process.pid)):
            time.sleep(0.01)
        (store / "lock").unlink()
        with open(store / "lock", "w") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            _, error = process.communicate(timeout=30)
    assert process.returncode == 1 and b"in use" in error, error
    assert (store / "log").read_bytes() == before


def open_files(tracer):
    """The descriptors of what strace runs, as paths that can be looked at."""
    found = []
    for children in Path(f"/proc/{tracer}/task").glob("*/children"):
        for child in children.read_text().split():
            found += Path(f"/proc/{child}/fd").glob("*")
    return [fd for fd in found if fd.exists()]


def test_no_folder_to_be_had(small, tmp_path):
    (tmp_path / "file").write_text("")
    done = sov.call("run", "-m", small, "-p", "x", "-n", "1", "--store", tmp_path / "file/s")
    assert done.returncode == 1 and done.stdout == b""
    assert b"store " in done.stderr and b"ENOTDIR" in done.stderr
    if os.getuid() != 0:
        (tmp_path / "closed").mkdir(mode=0o500)
        done = sov.call("run", "-m", small, "-p", "x", "-n", "1", "--store", tmp_path / "closed/s")
        assert done.returncode == 1 and b"EACCES" in done.stderr


@pytest.mark.parametrize("program", ["sov", "sov-asan"])
def test_nobody_else_may_read(program, small, tmp_path):
    """Whatever the umask, also where a crash left something of the store."""
    store = tmp_path / "a/s"
    before = os.umask(0)
    try:
        store.parent.mkdir(mode=0o755)
        store.mkdir(mode=0o755)  # who makes the folder says who may look into it
        (store / "log.new").write_bytes(b"left")
        (store / "log.new").chmod(0o666)
        for path in (store, tmp_path / "b/c"):
            sov.succeed("run", "-m", small, "-p", "x", "-n", "1", "--store", path,
                        program=sov.BUILD / program)
    finally:
        os.umask(before)
    for path in (store, tmp_path / "b/c"):
        modes = {p.name: p.stat().st_mode & 0o777 for p in path.iterdir()}
        assert modes == {"log": 0o600, "lock": 0o600}
    assert (tmp_path / "b").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "b/c").stat().st_mode & 0o777 == 0o700


def test_not_a_store_and_damage(small, tmp_path):
    store = tmp_path / "s"
    run(small, store, "-n", "1")
    log = (store / "log").read_bytes()
    broken = bytearray(log)
    broken[9000] ^= 1
    (store / "log").write_bytes(broken)
    done = sov.call("run", "-m", small, "-p", "x", "-n", "1", "--store", store)
    assert done.returncode == 4 and done.stdout == b"" and (store / "log").read_bytes() == broken
    other = log.replace(b"sov-rowm head v1", b"sov-rowm head v2")
    (store / "log").write_bytes(other)
    done = sov.call("run", "-m", small, "-p", "x", "-n", "1", "--store", store)
    assert done.returncode in (3, 4) and done.stdout == b"" and (store / "log").read_bytes() == other


def test_chat_ends_with_its_record(small, tmp_path):
    """After the record has failed no message is answered any more."""
    if shutil.which("strace") is None:
        pytest.skip("no strace")
    done = subprocess.run(["strace", "-f", "-qq", "-e", "trace=fsync", "-e",
                           "inject=fsync:error=EIO:when=10+", "-o", tmp_path / "trace", sov.SOV,
                           "chat", "-m", small, "--store", tmp_path / "s", "-n", "4", "--greedy",
                           "--ignore-eos", "-c", "200"], input=b"a\n" * 20, capture_output=True)
    if b"PTRACE" in done.stderr:
        pytest.skip("this system does not allow ptrace")
    assert done.returncode == 1 and done.stderr.count(b"EIO") == 1, done.stderr
    verify(tmp_path / "s")


@pytest.mark.parametrize("call, error", [("fsync", "EIO"), ("pwrite64", "ENOSPC")])
def test_disk_that_fails(call, error, tmp_path):
    """The run ends with the message; what was durable is there, and the store goes on later."""
    model = sov.model("smollm2")
    if shutil.which("strace") is None:
        pytest.skip("no strace")
    store = tmp_path / "s"
    sov.run_json(model, "-p", "Once", "-n", "1", "--store", store)
    before = [p for kind, _, _, p in records(store)]
    # Opening takes the first few; the boundary of the 64th token comes behind the request's.
    done = subprocess.run(["strace", "-f", "-qq", "-e", f"trace={call}", "-e",
                           f"inject={call}:error={error}:when=9+", "-o", tmp_path / "trace",
                           sov.SOV, "run", "-m", model, "-p", "Once", "-n", "400", "--ignore-eos",
                           "--store", store], capture_output=True)
    if b"PTRACE" in done.stderr:
        pytest.skip("this system does not allow ptrace")
    assert done.returncode == 1 and error.encode() in done.stderr, done.stderr
    assert error in (tmp_path / "trace").read_text()
    assert sov.run_json(model, "-p", "Once", "-n", "1", "--store", store)["record"]
    verify(store)
    assert [p for kind, _, _, p in records(store)][:len(before)] == before
