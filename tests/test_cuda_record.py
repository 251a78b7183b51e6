# SPDX-License-Identifier: Apache-2.0
"""The record and the backends: what was recorded on one is replayed, and what was interrupted on one is
finished, on the other; and a run on the card that the power state suspends. Over the stand-in for
NVIDIA's driver (tests/cuda_standin.c)."""
import json
import os
import random
import signal
import subprocess
import time

import pytest

import sov
import store_writer as sw
from test_replay import requests, small_model
from test_resume import Case, is_recorded

SEED = 20268
TIMEOUT = 120
STANDIN = sov.BUILD / "cuda_standin"
CARD = {**os.environ, "LD_LIBRARY_PATH": str(STANDIN), "STANDIN_EXECUTE": "2",
        "STANDIN_MEMORY": "1024"}
OTHER = {"cpu": "cuda", "cuda": "cpu"}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    if not (STANDIN / "libcuda.so.1").exists():
        pytest.skip(f"{STANDIN} is not built")
    return small_model(tmp_path_factory.mktemp("cuda_record") / "small.gguf")


def call(*arguments, **options):
    return sov.call(*arguments, env=CARD, **options)


def lines(n, tokens):
    """All of them sampled."""
    rng = random.Random(SEED)
    return [{**line, "temperature": rng.choice([0.7, 1.0, 1.8]), "seed": rng.getrandbits(64)}
            for line in requests(n, tokens)]


def text_of(requests):
    return "".join(json.dumps(line) + "\n" for line in requests).encode()


@pytest.fixture(scope="module")
def recorded(small, tmp_path_factory):
    """16 sampled sequences, recorded on each backend: {backend: (store, answers)}."""
    found = {}
    for backend in OTHER:
        store = tmp_path_factory.mktemp("cuda_record") / backend
        done = call("batch", "-m", small, "-", "--store", store, "--backend", backend,
                    "--max-seqs", "16", stdin=text_of(lines(16, 90)))
        assert done.returncode == 0, done.stderr.decode()
        assert (b"Stand-in 0" in done.stderr) == (backend == "cuda")
        found[backend] = store, sorted(done.stdout.splitlines())
    return found


def replay(store, model, *options, code=0):
    done = call("replay", store, "-m", model, "--json", *options)
    assert done.returncode == code, done.stderr.decode() + done.stdout.decode()[-400:]
    return json.loads(done.stdout.splitlines()[-1])


def test_both_give_the_same_answers(recorded):
    def without_store(answers):
        return [{k: v for k, v in json.loads(a).items() if k != "record"} for a in answers]
    assert without_store(recorded["cpu"][1]) == without_store(recorded["cuda"][1])


@pytest.mark.parametrize("options", [[], ["--max-seqs", "3", "--prefill-chunk", "5"]],
                         ids=["as recorded", "3 sequences"])
@pytest.mark.parametrize("backend", OTHER)
def test_one_backend_replays_the_other(recorded, small, backend, options):
    total = replay(recorded[backend][0], small, "--backend", OTHER[backend], *options)
    assert total["same"] == total["sequences"] == 16 and total["different"] == 0


class Across(Case):
    """Batches run on one backend; what is resumed is so on the other."""

    def __init__(self, backend, *arguments):
        self.backend = backend
        super().__init__(*arguments)

    def start(self, command, *arguments):
        backend = OTHER[self.backend] if command == "resume" else self.backend
        return subprocess.Popen([sov.SOV, command, "-m", self.model, "--backend", backend,
                                 *map(str, arguments)], env=CARD,
                                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


@pytest.mark.parametrize("backend", OTHER)
def test_killed_on_one_backend_finished_on_the_other(small, tmp_path, backend):
    case = Across(backend, small, tmp_path, [x for x in lines(12, 120) if "logprobs" not in x])
    n_left = 0
    for i, share in enumerate((0.7, 0.5, 0.35, 0.2)):
        base = tmp_path / f"run{i}"
        process = case.batch(base)
        time.sleep(case.seconds * share)
        process.kill()
        process.communicate()
        if not is_recorded(case, base):
            continue
        report = json.loads(sov.succeed("verify", base, "--json").stdout)
        n_left += report["available"]
        process = case.resume(base)
        error = process.communicate(timeout=TIMEOUT)[1]
        assert process.returncode == 0, error.decode()
        case.check(base)
        for name in OTHER:
            assert replay(base, small, "--backend", name)["different"] == 0
        if n_left > 0:
            return
    pytest.skip("this machine is too uneven: no run could be interrupted")


def test_suspended_in_the_middle_on_the_card(small, tmp_path):
    """Not a token comes while the state is suspend; then the rest does, the same as undisturbed.
    Which launches were let through, and that those that were not stored nothing:
    power_that_goes_changes_no_token of tests/test_cuda_engine.c."""
    run = ["run", "-m", small, "-p", "the old harbour", "-n", "200", "--ignore-eos", "--seed", "4",
           "-c", "256", "--no-record", "--backend", "cuda"]
    expected = call(*run)
    assert expected.returncode == 0 and expected.stderr.endswith(b"; Stand-in 0\n")
    process = subprocess.Popen([sov.SOV, *map(str, run)], env=CARD, bufsize=0,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    os.set_blocking(process.stdout.fileno(), False)

    def read(seconds):
        found, end = b"", time.monotonic() + seconds
        while time.monotonic() < end:
            found += process.stdout.read() or b""
            time.sleep(0.005)
        return found

    text, end = b"", time.monotonic() + TIMEOUT
    while len(text) < 8 and time.monotonic() < end:
        text += read(0.005)
    process.send_signal(signal.SIGUSR1)
    text += read(0.3)  # of the step that was under way, and of what was computed ahead
    assert process.poll() is None and len(text) < len(expected.stdout)
    assert read(0.5) == b""
    process.send_signal(signal.SIGUSR2)
    os.set_blocking(process.stdout.fileno(), True)
    text += process.stdout.read()
    assert process.wait(TIMEOUT) == 0 and text == expected.stdout


def test_an_end_that_cannot_be_read_is_told(small, tmp_path):
    """The card fails behind the last token, while K and V are read for the end: the run fails, its record
    has no end, and sov resume makes the one that an undisturbed run has."""
    def run(fails_from):
        store = tmp_path / f"s{len(list(tmp_path.iterdir()))}"
        done = sov.call("run", "-m", small, "-p", "hello", "-n", "20", "--seed", "1", "--ignore-eos", "-t", "1",
                        "--backend", "cuda", "--store", store,
                        env={**CARD, "STANDIN_FAIL": str(fails_from)})
        listed = sov.succeed("log", store, "--json").stdout if (store / "log").exists() else b""
        state = json.loads(listed)["state"] if listed else None
        assert (done.returncode == 0) == (state == "length"), (fails_from, state, done.stderr)
        return done, state, store

    low, high = 1, 1 << 14  # the first call whose failure does nothing: it would come after the end
    while low < high:
        middle = (low + high) // 2
        if run(middle)[0].returncode == 0:
            high = middle
        else:
            low = middle + 1
    whole = run(low + 1)[2]
    done, state, store = run(low - 1)
    assert done.returncode == 1 and state == "interrupted"
    assert b"the end of sequence 0000000000000001 is not in the record" in done.stderr
    sov.succeed("resume", store, "-m", small)
    ends = [[r.payload for r in sw.read_records((s / "log").read_bytes()) if r.kind == sw.FINISH]
            for s in (whole, store)]
    assert len(ends[0]) == 1 and ends[0] == ends[1]
