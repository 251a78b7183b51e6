#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What recording costs: tokens/s with a record (fsync and all) against --no-record.

    bench/bench_record.py MODEL [-n ROUNDS] [--tokens N] [--folder DIR] [--prefix COMMAND]

For 1 and 16 sequences, ROUNDS rounds; each round runs every way once, in an order that turns, so
that what changes slowly on the machine falls on all alike. Printed: median tokens/s of each way, and
the median over the rounds of its ratio to "--no-record --checkpoint tokens", which hashes no K and V
either; and the same of the CPU time of whole runs, which shakes less. --folder is where the stores go (it should be on the disk that is meant); --prefix is put in
front of every run, for example "taskset -c 0-7"."""
import argparse
import json
import os
import re
import resource
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

SOV = Path(__file__).resolve().parent.parent / "build/sov"
WAYS = {
    "record": [],
    "record, tokens": ["--checkpoint", "tokens"],
    "record, commitments": ["--record", "digest"],
    "--no-record": ["--no-record"],
    "--no-record, tokens": ["--no-record", "--checkpoint", "tokens"],
}
BASE = "--no-record, tokens"


def timed(options, folder, *arguments):
    """The finished process, and the CPU time it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([*options.prefix.split(), str(SOV), *arguments], capture_output=True, check=True,
                          env=dict(os.environ, XDG_STATE_HOME=str(folder)))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return done, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def one(options, way, folder):
    done, seconds = timed(options, folder, "run", "-m", options.model, "-p", "Once upon a time", "-n",
                          str(options.tokens), "--ignore-eos", "--greedy", "--json", *way)
    return json.loads(done.stdout)["timings"]["predicted_per_second"], seconds


def sixteen(options, way, folder):
    lines = "".join(json.dumps({"id": i, "prompt": f"Once upon a time, number {i}", "ignore_eos": True,
                                "max_tokens": options.tokens, "temperature": 0}) + "\n"
                    for i in range(16))
    requests = folder / "requests"
    requests.write_text(lines)
    done, seconds = timed(options, folder, "batch", "-m", options.model, str(requests), "-o", "/dev/null",
                          "--max-seqs", "16", *way)
    return float(re.search(rb"([\d.]+) tokens/s", done.stderr)[1]), seconds


def fsync_ms(folder):
    """A write of 16 KiB behind a file's end and its fsync, as a commit does: median of 50."""
    times = []
    with open(folder / "probe", "wb") as file:
        for _ in range(50):
            file.write(bytes(16384))
            begin = time.perf_counter()
            file.flush()
            os.fsync(file.fileno())
            times.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("-n", "--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=192)
    parser.add_argument("--folder")
    parser.add_argument("--prefix", default="")
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 16], choices=[1, 16])
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-record-", dir=options.folder))
    try:
        print(f"fsync of 16 KiB: {fsync_ms(folder):.2f} ms")
        one(options, [], folder)  # the model's digest is known from now on
        for n in options.sequences:
            names = [*dict.fromkeys([*options.ways, BASE])]
            found = {name: [] for name in names}
            for i in range(options.rounds):
                for name in names[i % len(names):] + names[:i % len(names)]:
                    measure = one if n == 1 else sixteen
                    found[name].append(measure(options, WAYS[name], folder))
            for name, values in found.items():
                if name == BASE and len(names) > 1:
                    continue
                speeds = [100 * (v[0] / b[0] - 1) for v, b in zip(values, found[BASE])]
                times = [100 * (v[1] / b[1] - 1) for v, b in zip(values, found[BASE])]
                print(f"{n:2} sequences, {name:20} {statistics.median(v[0] for v in values):8.2f} tokens/s, "
                      f"{statistics.median(speeds):+.2f} % of "
                      f"{statistics.median(b[0] for b in found[BASE]):.2f} "
                      f"({' '.join(f'{x:+.2f}' for x in speeds)}); CPU time {statistics.median(times):+.2f} % "
                      f"({' '.join(f'{x:+.2f}' for x in times)})", flush=True)
    finally:
        shutil.rmtree(folder)


main()
