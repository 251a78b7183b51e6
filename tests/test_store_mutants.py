# SPDX-License-Identifier: Apache-2.0
"""Whether the tests of the record store can fail: one line of its code is changed in a copy of the
tree, the tests on the simulated disk are built there, and at least one of them must fail. All mutants
with SOV_TEST_FULL, else one. Needs `make tests`.
"""
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
COPY = BUILD / "mutants"
FULL = "SOV_TEST_FULL" in os.environ
PROGRAMS = ("test_rowm", "test_store_faults", "sim_store")
TIMEOUT = 600

# What goes wrong, the file, the line and what it becomes.
MUTANTS = [
    ("the tail is not written again", "rowm.c",
     "if (status == SOV_OK) status = write_again(s, s->slot.heads.length, end, fault);",
     "if (status == SOV_OK) status = write_again(s, end, end, fault);"),
    ("the newest slot is not written again", "rowm.c",
     "if (s->slots_valid == 2) status = put_slot", "if (s->slots_valid == 3) status = put_slot"),
    ("entries are not synced before the slot", "rowm.c",
     "    enum sov_status status = sync_file(store, fault);\n    if (status == SOV_OK) {\n"
     "        store->write_state = PUBLISH_ROOT;",
     "    enum sov_status status = SOV_OK;\n    if (status == SOV_OK) {\n"
     "        store->write_state = PUBLISH_ROOT;"),
    ("the slot is not synced", "rowm.c",
     "    return status != SOV_OK ? status : sync_file(s, fault);\n}\n\nstatic void note",
     "    return status;\n}\n\nstatic void note"),
    ("the tail is not cut", "rowm.c",
     "if (status == SOV_OK && file_bytes > end) {",
     "if (status == SOV_OK && file_bytes > end + 100000) {"),
    ("a sync that failed is forgotten", "rowm.c",
     "    if (status != SOV_OK) s->failed = true;\n    return status;", "    return status;"),
    ("half a slot is forgotten", "rowm.c",
     "    if (status != SOV_OK) s->failed = true; // half a slot may be there\n", ""),
    ("what a failed write left is not cut", "rowm.c",
     "    s->dirty_tail = status != SOV_OK;\n", "    s->dirty_tail = false;\n"),
    ("a new log gets its name before it is synced", "rowm.c",
     "    if (status == SOV_OK) status = disk->sync(disk->context, file, fault);\n", ""),
    ("the names are not synced", "rowm.c",
     "    if (status == SOV_OK) status = disk->sync_names(disk->context, fault);\n", ""),
    ("a log as it was made is not made anew", "rowm.c",
     "if (status == SOV_OK && (missing || untouched))", "if (status == SOV_OK && missing)"),
    ("a payload is disclosed before its consumption is durable", "rowm.c",
     "    enter_read(s, READ_DURABLE);\n",
     "    enter_read(s, READ_DURABLE);\n    if (disclose(s, record, payload, fault) != SOV_OK) {}\n"),
    ("the older slot counts", "rowm.c",
     "    int newer = worm_newer_slot(slots, valid);\n    if (newer < 0) {\n        return fault_set(fault, "
     "SOV_ERR_INTEGRITY, \"%s\",",
     "    int newer = worm_newer_slot(slots, valid);\n    if (valid[0] && valid[1]) newer = 1 - newer;\n"
     "    if (newer < 0) {\n        return fault_set(fault, SOV_ERR_INTEGRITY, \"%s\","),
    ("a pending receipt is not made", "rowm.c", "    if (s->state.pending) {\n", "    if (false) {\n"),
    ("what is staged is visible", "rowm.c",
     "r->consumed_time > s->slot.heads.time;", "r->consumed_time > s->state.heads.time;"),
    ("a capability of the past is available", "worm.c",
     "    consumed->capability_state = CAPABILITY_CONSUMED;\n", ""),
    ("a transaction id is used again", "worm.c",
     "if (worm_find_transaction(state, &txid) != NULL) { // W3",
     "if (state->pending && worm_find_transaction(state, &txid) != NULL) { // W3"),
    ("an epoch wraps", "worm.c", " from->epoch == ~0ull ||\n", "\n"),
    ("an owner has two capabilities", "worm.c", "if (issues && available != consumed) { // W4",
     "if (false) { // W4"),
    ("padding of a slot is not looked at", "worm_read.c", "    return any == 0;", "    return true;"),
    ("the older slot is not compared", "worm_read.c",
     "if (at_older && (state->pending || !worm_heads_equal(&heads, &older->heads))) {",
     "if (false) {"),
    ("what comes alone is told before it is committed", "recorder.c",
     "if (!failed && rowm_commit(r->rowm, &fault) != SOV_OK) {",
     "if (!failed && first->next != NULL && rowm_commit(r->rowm, &fault) != SOV_OK) {"),
    ("a request without a checkpoint is refused", "recorder.c",
     "if (rowm_find(r->rowm, &first_txid, &ignored) ||",
     "if (!rowm_find(r->rowm, &first_txid, &ignored) ||"),
    ("a failure of the store is forgotten", "recorder.c",
     "    __atomic_store_n(&r->has_failed, 1, __ATOMIC_RELEASE);\n", ""),
    ("openings are not durable before what they open", "sidecar.c",
     "    if (!writer->is_dirty) return SOV_OK;\n", "    if (writer->end > 0) return SOV_OK;\n"),
    ("a sidecar without an entry is taken as it is", "sidecar.c", "if (w.bytes == 0) {", "if (false) {"),
    ("an end issues a capability", "recorder.c", ".issues = !is_end,", ".issues = true,"),
]


@pytest.fixture(scope="module")
def tree():
    if not all((BUILD / "free" / name).exists() for name in PROGRAMS):
        pytest.skip("the tests are not built")
    shutil.rmtree(COPY, ignore_errors=True)
    for folder in ("src", "include", "tests", "tools"):
        shutil.copytree(ROOT / folder, COPY / folder, ignore=shutil.ignore_patterns("*.pyc"))
    shutil.copy2(ROOT / "Makefile", COPY / "Makefile")
    for folder in ("free/src", "free/tests", "generated"):
        shutil.copytree(BUILD / folder, COPY / "build" / folder)
    yield COPY
    shutil.rmtree(COPY)


@pytest.mark.parametrize("what,file,line,becomes", MUTANTS if FULL else MUTANTS[:1],
                         ids=[m[0].replace(" ", "-") for m in (MUTANTS if FULL else MUTANTS[:1])])
def test_a_mutant_is_found(tree, what, file, line, becomes):
    path = tree / "src/record" / file
    text = path.read_text()
    assert text.count(line) == 1, f"{file}: the place is not there exactly once"
    environment = {k: v for k, v in os.environ.items() if k != "SOV_TEST_FULL"}
    path.write_text(text.replace(line, becomes))
    try:
        built = subprocess.run(["make", "-s", *(f"build/free/{name}" for name in PROGRAMS)], cwd=tree,
                               capture_output=True, text=True, timeout=TIMEOUT, check=False)
        assert built.returncode == 0, built.stderr[-2000:]
        codes = []
        for name in PROGRAMS:
            done = subprocess.run([tree / "build/free" / name], cwd=tree, env=environment,
                                  capture_output=True, timeout=TIMEOUT, check=False)
            codes.append(done.returncode)
            if done.returncode != 0:
                break
        assert any(codes), f"no test fails when {what}"
    finally:
        path.write_text(text)
