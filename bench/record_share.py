#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What share of a run's time goes into recording, by samples of perf (Debian's linux-perf).

    bench/record_share.py MODEL [--tokens N] [--folder DIR]

A host that is shared moves whole runs by several percent, more than recording costs; the shares of
one run it leaves alone. For 1 and 16 sequences, in clear and with --record digest: samples in the
functions of recording on the thread that steps the engine (of its samples), and all samples of the
recorder's thread (of the same number: it runs beside the others, but takes a CPU while it does). A
wait for the disk is in neither; it shows in tokens/s (bench_record.py). --folder is where the stores
go."""
import argparse
import collections
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOV = Path(__file__).resolve().parent.parent / "build/sov"
# Hashing of K and V, making payloads, handing them over. Nothing else uses SHA-256 while it runs but
# the events, which are made with a record and without one, and count here too.
RECORDING = re.compile(r"sha256_|hash_rows|hash_positions|sequence_hash_kv|sequence_checkpoint|payload_"
                       r"|sealed_|write_checkpoint|item_make|recorder_|event_seal")


def samples(options, folder, arguments):
    """{thread: {symbol: samples}}."""
    data = folder / "perf.data"
    subprocess.run(["perf", "record", "-q", "-F", "2000", "-o", data, SOV, *arguments], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    done = subprocess.run(["perf", "script", "-i", data, "-F", "tid,ip,sym"], check=True,
                          capture_output=True, text=True)
    threads = collections.defaultdict(collections.Counter)
    for line in done.stdout.splitlines():
        words = line.split()
        if len(words) >= 3 and words[0].isdigit():
            threads[words[0]][words[2]] += 1
    return threads


def share(options, folder, n, form):
    store = folder / f"{n}-{form}"
    if n == 1:
        arguments = ["run", "-p", "Once upon a time", "-n", str(options.tokens), "--greedy", "--ignore-eos"]
    else:
        requests = folder / "requests"
        requests.write_text("".join(json.dumps(
            {"id": i, "prompt": f"Once upon a time, number {i}", "ignore_eos": True,
             "max_tokens": options.tokens, "temperature": 0}) + "\n" for i in range(n)))
        arguments = ["batch", requests, "-o", "/dev/null", "--max-seqs", str(n)]
    threads = samples(options, folder, [*arguments, "-m", options.model, "--store", store, "--record",
                                        form])
    recording = {t: sum(k for name, k in found.items() if RECORDING.search(name))
                 for t, found in threads.items()}
    stepping = max(recording, key=recording.get)
    recorder = min(threads, key=lambda t: threads[t].total())
    total = threads[stepping].total()
    print(f"{n:2} sequences, {form:6}  stepping thread {100 * recording[stepping] / total:5.2f} % of "
          f"{total} samples, recorder's thread {100 * threads[recorder].total() / total:5.2f} %",
          flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    if shutil.which("perf") is None:
        print("perf is missing: apt-get install linux-perf", file=sys.stderr)
        return 2
    folder = Path(tempfile.mkdtemp(prefix="record-share-", dir=options.folder))
    try:
        for n in (1, 16):
            for form in ("clear", "digest"):
                share(options, folder, n, form)
    finally:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
