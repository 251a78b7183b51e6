#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows that each fuzzer can find something: plants a bug in a copy of the tree, builds the fuzzer
there, and requires a finding within a time limit, from the seeds alone. The input found must be
harmless to the fuzzer of the real tree.

    tools/plant.py               every bug (needs the fuzzers of `make fuzz`)
    tools/plant.py utf8 stop     these

The copy is build/plant/; the sources themselves are never touched.
"""
import argparse
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import fuzz

ROOT = fuzz.ROOT
COPY = ROOT / "build/plant"
LIMIT_SECONDS = 120


@dataclass
class Plant:
    """`old` stands in the file exactly once."""
    fuzzer: str
    file: str
    old: str
    new: str
    what: str


PLANTS = {
    "string": Plant(
        "fuzz_gguf", "src/model/gguf.c",
        "if (left < 8 || len > left - 8) {", "if (left < 8 || len > left) {",
        "a string at the end of an array may reach 8 bytes past the file"),
    "position": Plant(
        "fuzz_gguf", "src/engine/engine.c",
        "engine->positions[batch.n_tokens] = begin + k;", "engine->positions[batch.n_tokens] = k;",
        "every chunk of a prompt is computed at the positions of the first"),
    "control": Plant(
        "fuzz_tokenizer", "src/request/tokenizer.c",
        "if (special || token_type_of(t, id) == TOKEN_USER_DEFINED) best = id; // T1",
        "if (special || token_type_of(t, id) != TOKEN_UNKNOWN) best = id;",
        "control tokens are recognised in plain text"),
    "special": Plant(
        "fuzz_chat", "src/cli/prompt.c",
        "begins ? 0 : TOKENIZE_CONTINUE,",
        "(begins ? 0 : TOKENIZE_CONTINUE) | TOKENIZE_SPECIAL,",
        "a message's text is searched for special tokens"),
    "stop": Plant(
        "fuzz_chat", "src/request/stop.c",
        "while (k > 0 && s.data[k] != s.data[i]) k = borders[k - 1];",
        "if (k > 0 && s.data[k] != s.data[i]) k = 0;",
        "a stop string that begins inside itself is missed"),
    "value": Plant(
        "fuzz_cli", "src/cli/options.c",
        "if (value == NULL && i + 1 == start->n_args) {",
        "if (value == NULL && i == start->n_args) {",
        "an option at the end takes its value from behind the arguments"),
    "head": Plant(
        "fuzz_events", "src/engine/spool.c",
        "*tail_bytes = at + bytes.len - offset;",
        "*tail_bytes = at - offset;",
        "a tail shorter than the head of a frame is not seen"),
    "tail": Plant(
        "fuzz_events", "src/engine/spool.c",
        "spool->cut_bytes = reader->tail_bytes;",
        "spool->cut_bytes = 0;",
        "the tail of a spool is not cut before events are appended"),
    "length": Plant(
        "fuzz_store", "src/record/worm.c",
        "(entry->payload_bytes != meta_u64(entry, RECORD_PAYLOAD_LEN_OFF) ||",
        "(entry->payload_bytes < meta_u64(entry, RECORD_PAYLOAD_LEN_OFF) ||",
        "a record may say less bytes than its payload has"),
    "cut": Plant(
        "fuzz_store", "src/record/rowm.c",
        "if (status == SOV_OK && file_bytes > end) {",
        "if (status == SOV_OK && file_bytes > end + 1024) {",
        "a tail that is longer than what is written over it stays"),
    "limit": Plant(
        "fuzz_batch", "src/cli/batch_request.c",
        "if (source.len > BATCH_ID_BYTES_MAX) {",
        "if (source.len > 2 * BATCH_ID_BYTES_MAX) {",
        "an id may be longer than its room"),
    "range": Plant(
        "fuzz_payload", "src/record/payload.c",
        "require(w, n % unit == 0, name,", "require(w, n % unit <= 1, name,",
        "a slice of tokens may end inside one"),
    "rest": Plant(
        "fuzz_sidecar", "src/record/sidecar.c",
        "writer->end = w.is_cut ? w.cut_at : w.bytes;",
        "writer->end = w.bytes;",
        "an entry is appended behind the beginning of one, which takes it for its own bytes"),
    "twice": Plant(
        "fuzz_json", "src/freestanding/json.c",
        "if (!json->nodes[a].escaped && !json->nodes[b].escaped) return str_compare(x, y);",
        "if (!json->nodes[a].escaped || !json->nodes[b].escaped) return str_compare(x, y);",
        "names of an object are compared by how they are written"),
    "utf8": Plant(
        "fuzz_text", "src/freestanding/text.c",
        "if (lead == 0xed) return (struct utf8_lead){3, 0x80, 0x9f};",
        "if (lead == 0xed) return (struct utf8_lead){3, 0x80, 0xbf};",
        "surrogates count as characters"),
}


def copy_tree():
    """Sources and objects with their times, so that make builds again what is changed here only."""
    if COPY.exists():
        shutil.rmtree(COPY)
    for folder in ("src", "include", "tests"):
        shutil.copytree(ROOT / folder, COPY / folder, ignore=shutil.ignore_patterns("*.py*"))
    shutil.copytree(ROOT / "build/generated", COPY / "build/generated")
    for folder in ("tools", "docs"):
        (COPY / folder).mkdir()
    for name in ("Makefile", "tools/embed_ptx.py", "docs/contract.md"):
        shutil.copy2(ROOT / name, COPY / name)
    for folder in ("src", "tests"):
        shutil.copytree(ROOT / "build/fuzz" / folder, COPY / "build/fuzz" / folder)


def plant(bug):
    path = COPY / bug.file
    text = path.read_text()
    if text.count(bug.old) != 1:
        raise SystemExit(f"{bug.file}: the place for the bug is not there exactly once: {bug.old}")
    path.write_text(text.replace(bug.old, bug.new))
    try:
        subprocess.run(["make", "-s", f"build/fuzz/{bug.fuzzer}"], cwd=COPY, check=True,
                       stdout=subprocess.DEVNULL)
    finally:
        path.write_text(text)  # newer than its object: built again for the next bug
    return COPY / "build/fuzz" / bug.fuzzer


def hunt(name, bug):
    """True when the bug was found and is not in the real tree."""
    program, corpus = plant(bug), COPY / "corpus" / name
    fuzz.seed(bug.fuzzer, corpus)
    for old in program.parent.glob(f"{bug.fuzzer}.*-*"):
        old.unlink()
    begin = time.monotonic()
    done = subprocess.run(fuzz.command(program, corpus, f"-max_total_time={LIMIT_SECONDS}",
                                       "-seed=1"), cwd=COPY, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace")
    seconds = time.monotonic() - begin
    found = sorted(program.parent.glob(f"{bug.fuzzer}.crash-*"))
    if done.returncode == 0 or not found:
        sys.stdout.write(done.stdout[-2000:])
        print(f"{name}: {bug.fuzzer} did not find it in {seconds:.0f} s: {bug.what}")
        return False
    clean = subprocess.run([str(ROOT / "build/fuzz" / bug.fuzzer), str(found[0])], cwd=ROOT,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if clean.returncode != 0:
        print(f"{name}: the input {found[0]} is a finding without the planted bug too")
        return False
    print(f"{name}: {bug.fuzzer} found it in {seconds:.1f} s: {bug.what}", flush=True)
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="BUG", help=", ".join(PLANTS))
    names = parser.parse_args().names or list(PLANTS)
    copy_tree()
    return 0 if all([hunt(name, PLANTS[name]) for name in names]) else 1


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
