# SPDX-License-Identifier: Apache-2.0
"""The record store on the real system, by the programs of tests/test_store_process.c: a writer that is
killed at any time, whose system calls fail (injected by strace), and two readers that race for one
capability. What was acknowledged on stdout must be found by whoever opens the store next, and by both
verifiers. SOV_TEST_FULL: 300 kills, 10,000 races; needs `make tests`.
"""
import importlib.util
import os
import random
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BUILD = Path(os.environ.get("SOV_TEST_BUILD", ROOT / "build"))
PROGRAM = BUILD / "free/test_store_process"
FULL = "SOV_TEST_FULL" in os.environ
TIMEOUT = 120
SEED = int(os.environ.get("SOV_TEST_SEED", time.time_ns() % 1_000_000))
OFFERS = 100  # of tests/test_store_process.c

spec = importlib.util.spec_from_file_location("verify_store", ROOT / "tools/verify_store.py")
verify_store = importlib.util.module_from_spec(spec)
spec.loader.exec_module(verify_store)

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason=f"{PROGRAM} is not built")


class Told:
    """What a store's writers acknowledged, and what was found of it since."""

    def __init__(self):
        self.receipts = {}  # time: hash
        self.disclosed = set()

    def hear(self, output):
        for line in output.splitlines(keepends=True):
            if not line.endswith("\n"):
                continue  # killed while it wrote to the pipe
            words = line.split()
            if words[0] == "ack":
                moment, receipt = int(words[2]), words[3]
                assert self.receipts.setdefault(moment, receipt) == receipt, line
            elif words[0] == "got":
                assert words[1] not in self.disclosed, f"record {words[1]} was read twice"
                self.disclosed.add(words[1])

    def expect_in(self, folder):
        """Opens the store: everything told is there, everything there is verified by both."""
        done = subprocess.run([PROGRAM, "reopen", folder], capture_output=True, text=True,
                              timeout=TIMEOUT, check=False)
        assert done.returncode == 0, done.stdout[-500:]
        found = dict(line.split()[1:] for line in done.stdout.splitlines() if line.startswith("has"))
        missing = {t: h for t, h in self.receipts.items() if found.get(str(t)) != h}
        assert not missing, missing
        assert [int(t) for t in found] == list(range(1, len(found) + 1))
        report = verify_store.verify_file(folder / "log")
        assert done.stdout.splitlines()[-1] == f"ends {report['entries']}:{report['root']}"
        assert report["receipts"] == len(found) and report["tail_bytes"] == 0
        return len(found)


def start(action, folder, **more):
    return subprocess.Popen([PROGRAM, action, folder], stdout=subprocess.PIPE, text=True, **more)


def test_killed_at_any_time(tmp_path):
    """kill -9 of a writer, or of a recovery, at random moments; the store goes on after each."""
    chance = random.Random(SEED)
    n_kills = n_recoveries = n_told = 0
    for _ in range(10 if FULL else 2):
        folder, told = tmp_path / "s", Told()
        for i in range(30 if FULL else 6):
            writer = start("commit", folder)
            heard = ""
            while i % 3 == 2 and "got" not in heard:  # however slow the machine is
                heard += writer.stdout.readline()
            time.sleep(chance.choice((0.004, 0.03, 0.15)) * chance.random())
            writer.kill()
            told.hear(heard + writer.stdout.read())
            writer.wait(timeout=TIMEOUT)
            writer.stdout.close()
            n_kills += 1
            if folder.exists() and (folder / "lock").exists():
                for _ in range(chance.randrange(3)):
                    recovery = start("reopen", folder)
                    time.sleep(0.002 * chance.random())
                    recovery.kill()
                    recovery.communicate(timeout=TIMEOUT)
                    n_recoveries += 1
                if (folder / "log").exists() or told.receipts:
                    told.expect_in(folder)
        n_told += len(told.receipts)
        assert told.receipts and told.disclosed
        shutil.rmtree(folder)
    print(f"seed {SEED}: {n_kills} writers and {n_recoveries} recoveries killed, {n_told} receipts told")


# --- system calls that fail ---

@pytest.fixture(scope="module")
def strace():
    """The program, where it may trace; else the test is skipped aloud."""
    path = shutil.which("strace")
    if path is None:
        pytest.skip("strace is not installed")
    probe = subprocess.run([path, "-o", "/dev/null", "-e", "inject=fsync:error=EIO:when=1", "true"],
                           capture_output=True, text=True, timeout=TIMEOUT, check=False)
    if probe.returncode != 0:
        pytest.skip(f"strace may not trace here: {probe.stderr.strip()[:200]}")
    return path


def inject(strace, action, folder, call, error, when):
    done = subprocess.run([strace, "-f", "-o", "/dev/null", "-e", f"trace={call}", "-e",
                           f"inject={call}:error={error}:when={when}", PROGRAM, action, folder],
                          capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode in (0, 1), done.stderr[-500:]
    return done


FAILING = [("fsync", "EIO"), ("fsync", "ENOSPC"), ("pwrite64", "ENOSPC"), ("pwrite64", "EIO"),
           ("rename", "EIO"), ("rename", "ENOSPC"), ("ftruncate", "EIO"), ("pread64", "EIO"),
           ("flock", "ENOLCK"), ("fstat", "EIO"), ("open", "ENOSPC")]


@pytest.mark.parametrize("call,error", FAILING)
def test_a_call_fails_once(strace, tmp_path, call, error):
    """The n-th call fails, in a new store: told by its name, nothing acknowledged is lost; after a sync
    that failed nothing is acknowledged any more, after a write that failed the next one may."""
    n_hit = n_after = 0
    for when in range(1, 40 if FULL else 14):
        folder, told = tmp_path / f"s{when}", Told()
        done = inject(strace, "few", folder, call, error, when)
        told.hear(done.stdout)
        errors = [line for line in done.stdout.splitlines() if line.startswith("error")]
        if done.returncode == 0 and call == "fstat" and when <= 2:
            continue  # of the lock, which is looked at again
        if done.returncode == 0:
            break  # made less often than that
        n_hit += 1
        # Whether there is a log is asked by opening it, too.
        assert errors and (error in errors[0] or call == "open"), done.stdout[-500:]
        after = done.stdout.partition(errors[0])[2]
        if call == "fsync":
            assert "ack" not in after and "got" not in after, after
        elif call == "pwrite64" and "ack" in after:
            n_after += 1
        if (folder / "log").exists():
            told.expect_in(folder)
        else:
            assert not told.receipts
    assert n_hit >= (0 if call == "ftruncate" else 1)  # it is made after something else failed
    if call == "pwrite64":
        assert n_after >= 3


def crashed_store(strace, folder):
    """A store with whole entries and half a one behind what was acknowledged."""
    told = Told()
    told.hear(inject(strace, "few", folder, "fsync", "EIO", 30).stdout)
    with open(folder / "log", "ab") as log:
        log.write(b"\xf4" + bytes(300))
    return told


@pytest.mark.parametrize("call,error", FAILING)
def test_a_call_of_the_recovery_fails(strace, tmp_path, call, error):
    origin = tmp_path / "origin"
    told = crashed_store(strace, origin)
    assert verify_store.verify_file(origin / "log")["tail_bytes"] > 300
    n_hit = 0
    for when in range(1, 12):
        for again in ("", "+"):  # once, or from then on
            folder = tmp_path / f"s{when}{again}"
            shutil.copytree(origin, folder)
            done = inject(strace, "reopen", folder, call, error, f"{when}{again}")
            if done.returncode == 1:
                n_hit += 1
                assert error in done.stdout or "in use" in done.stdout, done.stdout[-500:]
            told.expect_in(folder)
    assert n_hit >= (0 if call == "rename" else 2), n_hit


def test_a_disk_that_stays_full(strace, tmp_path):
    """From one write on there is no room: what was acknowledged verifies as it is, without a writer."""
    for when in range(1, 40 if FULL else 14):
        folder, told = tmp_path / f"s{when}", Told()
        done = inject(strace, "few", folder, "pwrite64", "ENOSPC", f"{when}+")
        told.hear(done.stdout)
        errors = [line for line in done.stdout.splitlines() if line.startswith("error")]
        assert errors and all("ENOSPC" in e or "nothing any more" in e for e in errors), errors
        if not (folder / "log").exists():
            continue
        report = verify_store.verify_file(folder / "log")
        assert report["receipts"] >= len(told.receipts)
        assert inject(strace, "reopen", folder, "pwrite64", "ENOSPC", "1+").returncode == 1
        told.expect_in(folder)


# --- damage in a log of many windows ---

def test_damage_in_a_large_store(tmp_path):
    """More than the program reads at a time, and long enough for its second thread: one byte changed
    around each border of what it reads, and at random; both verifiers see each."""
    judge = BUILD / "free/test_rowm"
    if not judge.exists():
        pytest.skip(f"{judge} is not built")
    chance, folder, window, least = random.Random(SEED), tmp_path / "s", 256 * 1024, 6 << 20
    begin = time.monotonic()
    while not (folder / "log").exists() or (folder / "log").stat().st_size < least:
        assert time.monotonic() - begin < TIMEOUT
        writer = subprocess.Popen([PROGRAM, "commit", folder], stdout=subprocess.DEVNULL)
        time.sleep(0.5)
        writer.kill()
        writer.wait()
    subprocess.run([PROGRAM, "reopen", folder], check=True, stdout=subprocess.DEVNULL, timeout=TIMEOUT)
    log = folder / "log"
    data = bytearray(log.read_bytes())
    places = [chance.randrange(len(data)) for _ in range(400 if FULL else 60)]
    places += [8192 + window * i + chance.randrange(-600, 600)
               for i in range(1, (len(data) - 9000) // window) for _ in range(8 if FULL else 1)]

    def verdict():
        done = subprocess.run([judge, "judge", folder], capture_output=True, text=True,
                              timeout=TIMEOUT, check=True)
        return done.stdout.strip()

    assert verdict() == "."
    with open(log, "r+b") as file:
        for place in places:
            flipped = data[place] ^ 1 << chance.randrange(8)
            file.seek(place)
            file.write(bytes([flipped]))
            file.flush()
            assert verdict() == "x", (SEED, place)
            with pytest.raises(verify_store.Damage):
                verify_store.verify_file(log)
            file.seek(place)
            file.write(data[place:place + 1])
            file.flush()
    assert verdict() == "."
    print(f"seed {SEED}: {len(places)} places in {len(data)} bytes")


# --- races ---

def test_two_processes_race_for_a_capability(tmp_path):
    """Exactly one gets the payload, every time; the other is told, and sees nothing of it."""
    n_tries = 10_000 if FULL else 300
    shm = Path("/dev/shm")
    base = shm / f"sov_race_{os.getpid()}" if os.access(shm, os.W_OK) else tmp_path / "race"
    base.mkdir()
    wins, n_in_use, n_contended = [0, 0], 0, 0
    try:
        for round_number in range(n_tries // OFFERS):
            folder = base / str(round_number)
            subprocess.run([PROGRAM, "offer", folder], check=True, timeout=TIMEOUT)
            racers = [start("race", folder, stdin=subprocess.PIPE, bufsize=1) for _ in range(2)]
            for owner in range(OFFERS):
                order = racers if owner % 2 else racers[::-1]
                for racer in order:
                    racer.stdin.write(f"{owner}\n")
                answers = [racer.stdout.readline().split() for racer in racers]
                assert sorted(a[0] for a in answers) == ["payload", "refused"], (answers, folder)
                wins[answers[1][0] == "payload"] += 1
                waited = sum(int(a[1]) for a in answers)
                n_in_use += waited
                n_contended += waited > 0
            for racer in racers:
                racer.stdin.close()
                assert racer.wait(timeout=TIMEOUT) == 0
            report = verify_store.verify_file(folder / "log")
            assert report["available"] == 0 and report["capabilities"] == OFFERS
            shutil.rmtree(folder)
    finally:
        shutil.rmtree(base, ignore_errors=True)
    print(f"{n_tries} races, won {wins[0]}:{wins[1]}, {n_contended} met at the lock, "
          f"{n_in_use} times in use")
    assert n_contended > n_tries // 100 and min(wins) > n_tries // 100


def test_the_programs_say_what_is_wrong(tmp_path):
    """A file in the place of the folder, a folder that is not there, a damaged store."""
    (tmp_path / "file").write_text("x")
    for action in ("commit", "reopen", "offer"):
        done = subprocess.run([PROGRAM, action, tmp_path / "file"], capture_output=True, text=True,
                              timeout=TIMEOUT, check=False)
        assert done.returncode == 1 and re.search("ENOTDIR|EEXIST", done.stdout), done.stdout
    done = subprocess.run([PROGRAM, "reopen", tmp_path / "none"], capture_output=True, text=True,
                          timeout=TIMEOUT, check=False)
    assert done.returncode == 1 and "ENOENT" in done.stdout
    subprocess.run([PROGRAM, "offer", tmp_path / "s"], check=True, timeout=TIMEOUT)
    log = tmp_path / "s/log"
    data = bytearray(log.read_bytes())
    data[9000] ^= 1
    log.write_bytes(data)
    done = subprocess.run([PROGRAM, "reopen", tmp_path / "s"], capture_output=True, text=True,
                          timeout=TIMEOUT, check=False)
    assert done.returncode == 1 and "INTEGRITY" in done.stdout and log.read_bytes() == data
