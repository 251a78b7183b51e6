# SPDX-License-Identifier: Apache-2.0
"""sov resume: a batch that was killed, and resumed, and killed while it was resumed, ends as if nothing
had happened: answers, texts, digests of K and V, events. Over a small model with random weights, and
SmolLM2 once."""
import fcntl
import hashlib
import json
import random
import shutil
import resource
import signal
import subprocess
import time

import pytest

import sov
import store_writer as sw
from test_replay import replay, requests, small_model

SEED = 20267
TIMEOUT = 120
FRAME_BYTES = 4 + 153 + 8  # of a spool: docs/events.md
SPOOL_TAG_BYTES = 16


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return small_model(tmp_path_factory.mktemp("resume") / "small.gguf")


def some_requests():
    """Some of OpenAI's shapes among them. Logprobs are for a test of their own."""
    lines = [line for line in requests(24, 190) if "logprobs" not in line]
    for i, line in enumerate(lines[:4]):
        body = {k: v for k, v in line.items() if k not in ("id", "top_k", "ignore_eos", "logit_bias",
                                                           "repeat_penalty", "repeat_last_n")}
        chat = "messages" in body
        lines[i] = {"custom_id": line["id"], "method": "POST", "body": {"model": "m", **body},
                    "url": "/v1/chat/completions" if chat else "/v1/completions"}
    return lines


class Case:
    """A file of requests and what comes of it without interruption."""

    def __init__(self, model, folder, lines, *options):
        self.model, self.folder, self.options = model, folder, options
        self.requests = folder / "requests.jsonl"
        self.requests.write_text("".join(json.dumps(line) + "\n" for line in lines))
        self.n = len(lines)
        begin = time.monotonic()
        done = self.batch(folder / "whole")
        assert done.wait(TIMEOUT) == 0
        self.seconds = time.monotonic() - begin
        self.answers = sorted((folder / "whole.jsonl").read_bytes().splitlines())
        self.events = events(folder / "whole.spool")
        self.payloads = payloads(folder / "whole")

    def batch(self, base):
        return self.start("batch", self.requests, "--store", base, "-o", f"{base}.jsonl", "--events",
                          f"{base}.spool", *self.options)

    def resume(self, base, *options):
        return self.start("resume", base, "-o", f"{base}.resumed", "--events", f"{base}.spool", *options)

    def start(self, command, *arguments):
        return subprocess.Popen([sov.SOV, command, "-m", self.model, *map(str, arguments)],
                                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def check(self, base):
        """The same as without interruption, in every respect."""
        assert sorted((base.with_name(base.name + ".resumed")).read_bytes().splitlines()) == self.answers
        assert events(base.with_name(base.name + ".spool")) == self.events
        assert payloads(base) == self.payloads
        report = json.loads(sov.succeed("verify", base, "--json").stdout)
        assert report["available"] == 0 and report["tail_bytes"] == 0
        sw.verify_store.verify_file(base / "log")
        return report


def events(spool):
    """(sequence, number): digest. sov events fails on a gap, the writer on a contradiction."""
    lines = sov.succeed("events", spool, "--json").stdout.splitlines()
    found = {}
    for event in map(json.loads, lines):
        key = event["source"], int(event["id"])
        assert key not in found
        found[key] = event["data"]["transition_digest"]
    for source, number in found:
        assert number == 0 or (source, number - 1) in found
    return found


def payloads(store):
    """Every request, checkpoint and end that a store holds, whatever the sessions."""
    records = sw.read_records((store / "log").read_bytes())
    own = [(r.owner, r.payload) for r in records if r.kind != sw.MANIFEST and r.payload is not None]
    # What a machine going down leaves besides are suspensions.
    return sorted((owner, p) for owner, p in own
                  if p[:16] != b"sov-rtx chkpt v1" or sw.read_checkpoint(p).kind != 2)


@pytest.fixture(scope="module")
def case(small, tmp_path_factory):
    return Case(small, tmp_path_factory.mktemp("resume"), some_requests(), "-t", "1")


def is_recorded(case, base):
    """Whether the store has all requests. They come first."""
    if not (base / "log").exists():
        return False
    listed = sov.succeed("log", base, "--json").stdout.splitlines()
    return len(listed) == case.n


def one_run(case, base, rng, spread):
    """Killed once, resumed until it is done, of which up to five are killed. How many were."""
    process = case.batch(base)
    time.sleep(rng.random() * case.seconds * spread)
    process.kill()
    process.communicate()
    if not is_recorded(case, base):
        # Killed while the requests were being recorded: nothing had been answered yet.
        answers = base.with_name(base.name + ".jsonl")
        assert not answers.exists() or answers.read_bytes() == b""
        return 0
    n_kills = 1
    for k in range(6):
        options = ["-t", str(rng.choice([1, 2])), "--max-seqs", str(rng.choice([1, 4, 16]))]
        process = case.resume(base, *options)
        if k < 5:
            time.sleep(rng.random() * case.seconds * spread)
            process.kill()
        error = process.communicate(timeout=TIMEOUT)[1]
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, error.decode()
        n_kills += 1
    assert process.returncode == 0
    case.check(base)
    return n_kills


def test_killed_and_resumed_again_and_again(case, tmp_path):
    """A few runs; 200 in the long form. More where the machine is so uneven that few are hit."""
    rng = random.Random(SEED)
    n_kills, n_runs, run = 0, 200 if sov.FULL else 4, 0
    while run < n_runs or (n_kills < n_runs // 2 and run < 4 * n_runs):
        n_kills += one_run(case, tmp_path / f"run{run}", rng, (1.0, 0.5, 0.25, 0.1)[run % 4])
        run += 1
    print(f"seed {SEED}: {run} runs, {n_kills} kills, {case.seconds:.2f} s without")
    assert n_kills > 0


def test_batch_stopped_by_a_signal(case, tmp_path):
    """Ctrl-C: nothing has ended, a suspension of each sequence is recorded; resumed from there."""
    base = tmp_path / "stopped"
    process = case.batch(base)
    assert wait_for_events(process, base, len(case.events) // 3)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=TIMEOUT)
    assert process.returncode in (0, 130)
    first = json.loads(sov.succeed("verify", base, "--json").stdout)
    process = case.resume(base)
    time.sleep(case.seconds / 4)
    process.send_signal(signal.SIGINT)
    assert process.wait(TIMEOUT) in (0, 130)
    process = case.resume(base)
    error = process.communicate(timeout=TIMEOUT)[1]
    assert process.returncode == 0, error.decode()
    case.check(base)
    assert sov.call("verify", base, "--expect", first["head"]).returncode == 0
    _, total = replay(base, case.model)
    assert total["same"] == case.n and total["different"] == 0


def wait_for_events(process, base, n):
    """Until the run has published so many; all requests are recorded then. False: it ended before."""
    spool = base.with_name(base.name + ".spool")
    while process.poll() is None:
        if spool.exists() and spool.stat().st_size > SPOOL_TAG_BYTES + n * FRAME_BYTES:
            return True
        time.sleep(0.002)
    return False


def interrupted(case, base):
    """A store with something left to do, and something done."""
    process = case.batch(base)
    assert wait_for_events(process, base, len(case.events) // 2)
    process.kill()
    process.communicate()
    assert is_recorded(case, base)
    if json.loads(sov.succeed("verify", base, "--json").stdout)["available"] == 0:
        pytest.skip("this machine is too uneven: the run had ended")
    return base


def test_interrupted_sequences_replay_as_far_as_they_go(case, tmp_path):
    base = interrupted(case, tmp_path / "s")
    listed = [json.loads(line) for line in sov.succeed("log", base, "--json").stdout.splitlines()]
    assert len(listed) == case.n  # all requests were recorded before the first was run
    assert any(s["state"] == "interrupted" for s in listed)
    each, total = replay(base, case.model)
    assert total["different"] == total["not_checkable"] == 0 and total["same_so_far"] > 0


def test_resuming_again_changes_nothing(case, tmp_path):
    base = interrupted(case, tmp_path / "s")
    assert case.resume(base).wait(TIMEOUT) == 0
    case.check(base)
    log, out = (base / "log").read_bytes(), base.with_name("s.resumed").read_bytes()
    # In the order of the requests, so that it can be compared.
    ids = [json.loads(line) for line in out.splitlines()]
    wanted = [json.loads(line) for line in case.requests.read_text().splitlines()]
    assert [i.get("custom_id") or i["id"] for i in ids] == \
        [w.get("custom_id") or w["id"] for w in wanted]
    assert case.resume(base).wait(TIMEOUT) == 0
    assert (base / "log").read_bytes() == log
    assert base.with_name("s.resumed").read_bytes() == out
    assert sov.succeed("resume", base, "-m", case.model).stdout == out


def test_what_did_not_run_keeps_its_capability(case, tmp_path):
    """A checkpoint is read when there is room for its sequence, not before: neither memory nor records
    grow with what a store has. Each reading leaves a record without a payload of its own."""
    base = tmp_path / "s"
    process = case.batch(base)
    while not is_recorded(case, base):
        assert process.poll() is None
    process.kill()
    process.communicate()
    n_left = json.loads(sov.succeed("verify", base, "--json").stdout)["available"]
    spool = base.with_name("s.spool")
    before = spool.stat().st_size
    process = case.resume(base, "--max-seqs", "2")
    while process.poll() is None and spool.stat().st_size < before + 20 * FRAME_BYTES:
        time.sleep(0.002)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    records = sw.read_records((base / "log").read_bytes())
    n_read = sum(r.payload is None for r in records)
    n_finished = n_left - json.loads(sov.succeed("verify", base, "--json").stdout)["available"]
    assert 1 <= n_read <= n_finished + 2 < n_left
    assert case.resume(base).wait(TIMEOUT) == 0
    case.check(base)


def test_events_that_were_recorded_but_not_published(case, tmp_path):
    """A spool that a kill, or a loss of power, has left shorter than the record is filled from it."""
    whole = (case.folder / "whole.spool").read_bytes()
    assert (len(whole) - SPOOL_TAG_BYTES) % FRAME_BYTES == 0
    store = case.folder / "whole"
    log = (store / "log").read_bytes()
    spool = tmp_path / "cut.spool"
    for n_cut in (1, 2, 7, 500, len(whole) // FRAME_BYTES):
        spool.write_bytes(whole[:len(whole) - n_cut * FRAME_BYTES])
        sov.succeed("resume", store, "-m", case.model, "--events", spool)
        assert events(spool) == case.events, n_cut
    assert (store / "log").read_bytes() == log
    # An earlier part that lies elsewhere is not repeated.
    spool.write_bytes(whole[:SPOOL_TAG_BYTES] + whole[SPOOL_TAG_BYTES + 2000 * FRAME_BYTES:])
    sov.succeed("resume", store, "-m", case.model, "--events", spool)
    lines = [json.loads(line) for line in sov.succeed("events", spool, "--json").stdout.splitlines()]
    begun = set()
    for event in lines:
        key = event["source"], int(event["id"])
        assert case.events[key] == event["data"]["transition_digest"]
        begun.add(event["source"])
    assert len(begun) == case.n
    base = interrupted(case, tmp_path / "s")
    path = base.with_name("s.spool")
    data = path.read_bytes()
    path.write_bytes(data[:len(data) - min(40, len(data) // FRAME_BYTES - 1) * FRAME_BYTES])
    assert case.resume(base).wait(TIMEOUT) == 0
    case.check(base)


def test_a_path_that_cannot_be_written_is_told_at_once(case, tmp_path):
    base = interrupted(case, tmp_path / "s")
    log = (base / "log").read_bytes()
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "none/out", tmp_path / "folder"):
        done = sov.call("resume", base, "-m", case.model, "-o", path)
        assert done.returncode == 1 and str(path).encode() in done.stderr
        assert (base / "log").read_bytes() == log
    assert not list(tmp_path.glob("folder*.new"))


def test_answers_replace_what_was_there_when_they_are_whole(case, tmp_path):
    out = tmp_path / "out"
    out.write_text("old\n")
    out.chmod(0o640)

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
    store = case.folder / "whole"
    done = sov.call("resume", store, "-m", case.model, "-o", out, preexec_fn=limit)
    assert done.returncode == 1 and b"EFBIG" in done.stderr and out.read_text() == "old\n"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    sov.succeed("resume", store, "-m", case.model, "-o", out)
    assert sorted(out.read_bytes().splitlines()) == case.answers
    assert out.stat().st_mode & 0o777 == 0o640 and [p.name for p in tmp_path.iterdir()] == ["out"]
    # What is no file is written to.
    pipe = sov.succeed("resume", store, "-m", case.model, "-o", "/dev/stdout").stdout
    assert pipe == out.read_bytes()
    sov.succeed("resume", store, "-m", case.model, "-o", "/dev/null")


def test_two_at_a_time(case, tmp_path):
    base = interrupted(case, tmp_path / "s")
    before = (base / "log").read_bytes()
    with open(base / "lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = sov.call("resume", base, "-m", case.model)
        assert done.returncode == 1 and b"in use by another process" in done.stderr
        assert (base / "log").read_bytes() == before
        states = {json.loads(line)["state"] for line in
                  sov.call("log", "--json", env={"XDG_STATE_HOME": str(tmp_path)}).stdout.splitlines()}
        assert states <= {"in use"}
    processes = [case.resume(base) for _ in range(2)]
    errors = [p.communicate(timeout=TIMEOUT)[1] for p in processes]
    codes = sorted(p.returncode for p in processes)
    assert codes[0] == 0 and codes[1] in (0, 1)  # the second may come when the first is done
    assert codes[1] == 0 or any(b"in use" in e or b"another process" in e for e in errors), errors
    assert sov.call("resume", base, "-m", case.model, "-o", f"{base}.resumed").returncode == 0
    case.check(base)


def test_another_model_is_refused_with_both_digests(case, tmp_path):
    base = interrupted(case, tmp_path / "s")
    before = (base / "log").read_bytes()
    other = small_model(tmp_path / "other.gguf", seed=78)
    done = sov.call("resume", base, "-m", other, "-o", tmp_path / "out")
    assert done.returncode == 3 and not (tmp_path / "out").exists()
    for path in (case.model, other):
        assert hashlib.sha256(path.read_bytes()).hexdigest().encode() in done.stderr
    assert (base / "log").read_bytes() == before


def test_other_refusals(case, tmp_path):
    base = interrupted(case, tmp_path / "s")
    before = (base / "log").read_bytes()
    for arguments, code in ((["resume", base], 2), (["resume", "-m", case.model], 2),
                            (["resume", base, "-m", case.model, "--force-isa", "none"], 2),
                            (["resume", base, "-m", case.model, "--backend", "none"], 2),
                            (["resume", tmp_path / "none", "-m", case.model], 3),
                            (["resume", base, "-m", tmp_path / "none.gguf"], 1)):
        done = sov.call(*arguments)
        assert done.returncode == code and done.stderr.startswith(b"sov: "), (arguments, done.stderr)
        assert (base / "log").read_bytes() == before, arguments
    data = bytearray((base / "log").read_bytes())
    data[len(data) // 3] ^= 1
    (base / "log").write_bytes(data)
    done = sov.call("resume", base, "-m", case.model)
    assert done.returncode == 4 and (base / "log").read_bytes() == data


def test_an_older_copy_is_seen_by_a_head_that_was_kept(case, tmp_path):
    """Every run prints its head; whoever kept it is not shown an older store."""
    base = interrupted(case, tmp_path / "s")
    older = tmp_path / "older"
    older.mkdir()
    (older / "log").write_bytes((base / "log").read_bytes())
    process = case.resume(base)
    error = process.communicate(timeout=TIMEOUT)[1].decode()
    head = error[error.index(" head ") + 6:].split()[0]
    assert sov.call("verify", base, "--expect", head).returncode == 0
    assert sov.call("verify", older).returncode == 0
    done = sov.call("verify", older, "--expect", head)
    assert done.returncode == 4 and b"an older copy" in done.stderr
    old_head = json.loads(sov.succeed("verify", older, "--json").stdout)["head"]
    assert sov.call("verify", base, "--expect", old_head).returncode == 0


def test_a_torn_head_is_mended(case, tmp_path):
    """What power loss may leave of the older slot does not verify, and is resumed all the same."""
    base = interrupted(case, tmp_path / "s")
    data = bytearray((base / "log").read_bytes())
    generations = [int.from_bytes(data[at + 16:at + 24], "little") for at in (0, 4096)]
    torn = 4096 * generations.index(min(generations))
    data[torn + 100] ^= 0xff
    (base / "log").write_bytes(data)
    assert sov.call("verify", base).returncode == 4
    assert case.resume(base).wait(TIMEOUT) == 0
    case.check(base)


def test_a_changed_checkpoint_is_not_gone_on_with(case, tmp_path):
    """K and V computed again must have the digests of the checkpoint, whoever made its hashes."""
    base = interrupted(case, tmp_path / "s")
    records = sw.read_records((base / "log").read_bytes())
    ended = {r.owner for r in records if r.kind == sw.FINISH}
    last = {r.owner: r for r in records if r.kind == sw.CHECKPOINT and r.payload is not None}
    for owner, r in last.items():
        c = sw.read_checkpoint(r.payload)
        if owner in ended or c.end == c.begin:
            continue
        c.digests = bytes([c.digests[0] ^ 1]) + c.digests[1:]
        r.payload = c.bytes()
        break
    else:
        pytest.skip("no interrupted sequence has a checkpoint with tokens")
    forged = sw.write_records(records).write(tmp_path / "forged")
    assert sov.call("verify", forged).returncode == 0
    done = sov.call("resume", forged, "-m", case.model)
    assert done.returncode == 4 and b"do not have the digests" in done.stderr
    finished = [json.loads(line) for line in done.stdout.splitlines()]
    assert sum("error" in f and f["error"] is not None for f in finished) == 1


def test_logprobs_are_null_where_they_were_asked_for(small, tmp_path):
    lines = [{"id": 1, "prompt": "the", "max_tokens": 5, "logprobs": 2},
             {"id": 2, "prompt": "the", "max_tokens": 5}]
    text = "".join(json.dumps(line) + "\n" for line in lines).encode()
    sov.succeed("batch", "-m", small, "-", "--store", tmp_path / "s", stdin=text)
    done = sov.succeed("resume", tmp_path / "s", "-m", small)
    first, second = map(json.loads, done.stdout.splitlines())
    assert first["logprobs"] is None and "logprobs" not in second
    assert b"records do not keep them" in done.stderr


def test_smollm2(tmp_path):
    model = sov.model("smollm2")
    lines = list(requests(4 if not sov.FULL else 16, 100))
    for line in lines:
        line.pop("logprobs", None)
        line["max_tokens"] = 100
    case = Case(model, tmp_path, lines, "-c", "512")
    base = tmp_path / "s"
    process = case.batch(base)
    time.sleep(case.seconds * 0.7)
    process.kill()
    process.communicate()
    for k in range(2):
        process = case.resume(base, "--max-seqs", "3")
        if k == 0:
            time.sleep(case.seconds * 0.4)
            process.kill()
        process.communicate(timeout=300)
    assert process.returncode == 0
    case.check(base)


# --- killed between a request and its first checkpoint ---

@pytest.mark.parametrize("form", ["clear", "digest"])
def test_a_request_without_a_checkpoint_begins(small, tmp_path, form):
    """The two are committed together, but a crash may leave the first of two transactions."""
    case = Case(small, tmp_path, some_requests()[:6], "-t", "1", "--record", form)
    base = tmp_path / "cut"

    def records(store):
        return sw.read_records((store / "log").read_bytes())

    whole = records(tmp_path / "whole")
    last = max(i for i, r in enumerate(whole) if r.kind == sw.REQUEST)
    sw.write_records(whole[:last + 1]).write(base)
    if form == "digest":
        shutil.copy(tmp_path / "whole/sidecar", base)
    for _ in range(2):  # the second time nothing is left to do
        assert case.resume(base).wait(TIMEOUT) == 0
        case.check(base)
        assert sorted((r.owner, r.payload) for r in whole if r.kind != sw.MANIFEST) == \
            sorted((r.owner, r.payload) for r in records(base) if r.kind != sw.MANIFEST and r.payload)
