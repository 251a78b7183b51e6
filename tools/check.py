#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs every test and ends with one line: "N passed, N failed[, N skipped]".

Counts come from the tests themselves: each C test program and pytest report how many cases passed,
failed and were skipped; a step without cases of its own (a build, a linter) counts as one. Called by
`make check`; the programs are built by make before or within a step. --full sets SOV_TEST_FULL=1, on
which tests run their long forms; the C tests with sanitizers keep their short ones, which take a tenth
of the time and meet the same code.
"""
import argparse
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
COUNTS = re.compile(r"(\d+) (passed|failed|skipped|error)")


class Totals:
    def __init__(self):
        self.passed = self.failed = self.skipped = 0
        self.lock = Lock()

    def add(self, passed, failed, skipped):
        with self.lock:
            self.passed += passed
            self.failed += failed
            self.skipped += skipped


def run(totals, name, command, counts_cases, env, timeout):
    """One step. `counts_cases`: the last line with counts is the step's result."""
    start = time.monotonic()
    try:
        done = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace",
                              timeout=timeout)
        output, code = done.stdout, done.returncode
    except subprocess.TimeoutExpired as expired:
        output = (expired.stdout or b"").decode(errors="replace") + f"\nstopped after {timeout} s\n"
        code = -1
    except OSError as error:
        output, code = f"{error}\n", -1
    passed, failed, skipped = (0, 0, 0) if counts_cases else (1, 0, 0)
    if counts_cases:
        lines = [line for line in output.splitlines() if re.search(r"\d+ (passed|failed)", line)]
        found = dict((kind, int(n)) for n, kind in COUNTS.findall(lines[-1])) if lines else {}
        passed, skipped = found.get("passed", 0), found.get("skipped", 0)
        failed = found.get("failed", 0) + found.get("error", 0)
    if code != 0 and failed == 0:
        passed, failed = (passed, 1) if counts_cases else (0, 1)
    shown = f"== {name}\n"
    if failed or skipped or os.environ.get("SOV_CHECK_VERBOSE"):
        shown += output if output.endswith("\n") else output + "\n"
    shown += f"   {passed} passed, {failed} failed, {skipped} skipped"
    print(f"{shown} ({time.monotonic() - start:.1f} s)", flush=True)
    totals.add(passed, failed, skipped)
    return failed == 0


def venv_python():
    """A private environment with the pinned test tools, made once."""
    venv, wanted = BUILD / "venv", (ROOT / "tests/requirements.txt").read_text()
    stamp = venv / "installed.txt"
    if not stamp.exists() or stamp.read_text() != wanted:
        subprocess.run(["/usr/bin/python3", "-m", "venv", "--clear", str(venv)], check=True)
        subprocess.run([str(venv / "bin/python"), "-m", "pip", "install", "--quiet", "-r",
                        str(ROOT / "tests/requirements.txt")], check=True)
        stamp.write_text(wanted)
    return str(venv / "bin/python")


def provide_ptxas(python):
    """The ptxas of tests/test_ptx.py, from PyPI where no toolkit of its version is installed. Only
    the program is wanted, so its package comes without what that asks for."""
    finder = ("import sys; sys.path.insert(0, 'tests'); import test_ptx; "
              "sys.exit(test_ptx.find_ptxas() is None)")
    if subprocess.run([python, "-c", finder], cwd=ROOT).returncode != 0:
        print("installing: the ptxas of PyPI", flush=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", "-r",
                        str(ROOT / "tests/requirements-ptxas.txt")], check=True)


def model_environment(totals, env):
    """Fetches the real models; tests that need one skip aloud when it cannot be had."""
    for variable, name in (("SOV_MODEL", "smollm2"), ("SOV_MODEL_GEMMA", "gemma3")):
        if variable in env:
            continue
        done = subprocess.run([str(ROOT / "tools/fetch_model.sh"), name], cwd=ROOT, text=True,
                              stdout=subprocess.PIPE)
        if done.returncode == 0:
            env[variable] = str((ROOT / done.stdout.strip()).resolve())
        else:
            print(f"== the model {name} could not be fetched")
            totals.add(0, 1, 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="add the long campaigns")
    full = parser.parse_args().full
    env = dict(os.environ)
    env.setdefault("SOV_TEST_GOLDEN", str(ROOT.parent / "shared/golden"))
    env.setdefault("SOV_TEST_CASES", str(ROOT.parent / "shared/cases"))
    env["UBSAN_OPTIONS"] = "print_stacktrace=1"
    env.pop("SOV_TEST_FULL", None)
    if full:
        env["SOV_TEST_FULL"] = "1"
    limit = 3000 if full else 600
    totals = Totals()
    python = venv_python()
    provide_ptxas(python)
    model_environment(totals, env)
    if "SOV_MODEL" in env:
        env["SOV_TEST_SMOLLM2"] = env["SOV_MODEL"]
    jobs = f"-j{os.cpu_count()}"
    if run(totals, "build", ["make", "-s", jobs, "tests"], False, env, limit):
        short = {name: value for name, value in env.items() if name != "SOV_TEST_FULL"}
        steps = []
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            sources = [*(ROOT / "tests").glob("test_*.c"), *(ROOT / "tests").glob("sim_*.c")]
            for source in sorted(sources):
                for flavour, flavour_env in (("free", env), ("asan", short)):
                    program = BUILD / flavour / source.stem
                    steps.append(pool.submit(run, totals, f"{flavour}/{source.stem}",
                                             [str(program)], True, flavour_env, limit))
            for step in steps:
                step.result()  # an exception of the step is one of ours
        run(totals, "tsan", ["make", "-s", jobs, "tsan"], True, env, limit)
        run(totals, "pytest", [python, "-m", "pytest", "-q", "-rfEs", "-p", "no:cacheprovider",
                               "tests"], True, env, limit)
        run(totals, "fuzz", ["make", "-s", jobs, "fuzz-full" if full else "fuzz"], False, env, limit)
    run(totals, "proofs", ["tools/proofs.sh"], True, env, limit)
    run(totals, "ptxcheck", ["make", "-s", jobs, "ptxcheck"], True, env, limit)
    run(totals, "windows objects", ["make", "-s", jobs, "windows-objects"], False, env, limit)
    run(totals, "tidy", ["make", "-s", jobs, "tidy"], False, env, limit)
    skipped = f", {totals.skipped} skipped" if totals.skipped else ""
    print(f"{totals.passed} passed, {totals.failed} failed{skipped}")
    return 0 if totals.failed == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
