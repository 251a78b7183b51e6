# SPDX-License-Identifier: Apache-2.0
"""Whether `make tsan` can fail: an order between two threads is taken out of a copy of the tree, and
ThreadSanitizer must see a race there. (What it cannot see is memory given back too early.) All mutants
with SOV_TEST_FULL, else one of the recorder and one of verification. Needs `make tsan`.
"""
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
COPY = BUILD / "tsan_mutants"
PROGRAMS = ("test_recorder", "test_store_threads", "test_pool")
TIMEOUT = 300

# What goes wrong, the file, the program that meets it, and what stands there and becomes what. Two
# places where each alone orders the same.
MUTANTS = [
    ("an item is done before its receipt is there", "record/recorder.c", "test_recorder",
     [("(&item->state, DONE, __ATOMIC_ACQ_REL)", "(&item->state, DONE, __ATOMIC_ACQUIRE)")]),
    ("a receipt is read before its item is done", "record/recorder.c", "test_recorder",
     [("return __atomic_load_n(&item->state, __ATOMIC_ACQUIRE) == DONE;",
       "return __atomic_load_n(&item->state, __ATOMIC_RELAXED) == DONE;")]),
    ("an item is pushed before its bytes are there", "record/recorder.c", "test_recorder",
     [("item, false, __ATOMIC_RELEASE,", "item, false, __ATOMIC_RELAXED,"),
      ("    __atomic_fetch_add(&r->n_pushed, 1, __ATOMIC_RELEASE);",
       "    __atomic_fetch_add(&r->n_pushed, 1, __ATOMIC_RELAXED);")]),
    ("items are taken before their bytes are there", "record/recorder.c", "test_recorder",
     [("(&r->stack, NULL, __ATOMIC_ACQUIRE)", "(&r->stack, NULL, __ATOMIC_RELAXED)"),
      ("(&r->n_pushed, __ATOMIC_ACQUIRE)", "(&r->n_pushed, __ATOMIC_RELAXED)")]),
    ("the end is told before its fault is there", "record/recorder.c", "test_recorder",
     [("(&r->has_failed, 1, __ATOMIC_RELEASE)", "(&r->has_failed, 1, __ATOMIC_RELAXED)")]),
    ("the store is looked at while it is written", "record/recorder.c", "test_recorder",
     [("(&r->n_queued, 1, __ATOMIC_RELEASE)", "(&r->n_queued, 1, __ATOMIC_RELAXED)"),
      ("->n_rounds, 1, __ATOMIC_RELEASE)", "->n_rounds, 1, __ATOMIC_RELAXED)")]),
    ("a batch is given before its jobs are there", "record/worm_hash.c", "test_store_threads",
     [("hasher->n_given + 1, __ATOMIC_RELEASE)", "hasher->n_given + 1, __ATOMIC_RELAXED)")]),
    ("a batch is taken before its jobs are there", "record/worm_hash.c", "test_store_threads",
     [("(&h->n_given, __ATOMIC_ACQUIRE)", "(&h->n_given, __ATOMIC_RELAXED)")]),
    ("a batch is done while it is hashed", "record/worm_hash.c", "test_store_threads",
     [("(&h->n_done, seen + 1, __ATOMIC_RELEASE)", "(&h->n_done, seen + 1, __ATOMIC_RELAXED)")]),
    ("a result is read while a batch is hashed", "record/worm_hash.c", "test_store_threads",
     [("(&hasher->n_done, __ATOMIC_ACQUIRE)", "(&hasher->n_done, __ATOMIC_RELAXED)")]),
    ("a window is read into while it is hashed", "record/worm_read.c", "test_store_threads",
     [("        r->current = 1 - r->current;\n", "")]),
    ("a job is given before it is there", "cpu/pool.c", "test_pool",
     [("fetch_add(word, 1, __ATOMIC_SEQ_CST)", "fetch_add(word, 1, __ATOMIC_RELAXED)")]),
]
CHOSEN = MUTANTS if "SOV_TEST_FULL" in os.environ else MUTANTS[::6]


@pytest.fixture(scope="module")
def tree():
    if not all((BUILD / "tsan" / name).exists() for name in PROGRAMS):
        pytest.skip("make tsan did not run")
    shutil.rmtree(COPY, ignore_errors=True)
    for folder in ("src", "include", "tests", "tools"):
        shutil.copytree(ROOT / folder, COPY / folder, ignore=shutil.ignore_patterns("*.pyc"))
    shutil.copy2(ROOT / "Makefile", COPY / "Makefile")
    for folder in ("tsan/src", "tsan/tests", "generated"):
        shutil.copytree(BUILD / folder, COPY / "build" / folder)
    yield COPY
    shutil.rmtree(COPY)


@pytest.mark.parametrize("what,file,program,changes", CHOSEN,
                         ids=[m[0].replace(" ", "-") for m in CHOSEN])
def test_a_race_is_found(tree, what, file, program, changes):
    path = tree / "src" / file
    text = changed = path.read_text()
    for old, new in changes:
        assert changed.count(old) == 1, f"{file}: {old} is not there exactly once"
        changed = changed.replace(old, new)
    environment = dict(os.environ, SOV_TEST_MEGABYTES="12")
    path.write_text(changed)
    try:
        built = subprocess.run(["make", "-s", f"build/tsan/{program}"], cwd=tree, capture_output=True,
                               text=True, timeout=TIMEOUT, check=False)
        assert built.returncode == 0, built.stderr[-2000:]
        done = subprocess.run(["python3", "tools/tsan.py", f"build/tsan/{program}"], cwd=tree,
                              env=environment, capture_output=True, text=True, timeout=TIMEOUT,
                              check=False)
        assert done.returncode == 1 and "data race" in done.stdout, f"no race is seen when {what}"
    finally:
        path.write_text(text)
