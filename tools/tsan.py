#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs test programs that were built with ThreadSanitizer (make tsan): a program fails when a case of it
does, or when a data race was seen. "PROGRAM CASE" runs one case. The last line is
"tsan: N passed, N failed"."""
import os
import re
import subprocess
import sys
from pathlib import Path

# ThreadSanitizer of gcc 12 does not start where the system randomizes addresses by more bits.
RANDOM_BITS_MAX = 28


def main():
    bits = Path("/proc/sys/vm/mmap_rnd_bits")
    many = bits.exists() and int(bits.read_text()) > RANDOM_BITS_MAX
    environment = {k: v for k, v in os.environ.items() if k != "SOV_TEST_FULL"}
    environment.setdefault("SOV_TEST_MEGABYTES", "100")
    # One race is enough: a program that has one may have it at every byte, which takes hours to tell.
    # A race is told only as far as the history of the other thread reaches back.
    environment["TSAN_OPTIONS"] = "halt_on_error=1 history_size=7"
    n_passed = n_failed = 0
    for program in sys.argv[1:]:
        prefix = ["setarch", "-R"] if many else []
        done = subprocess.run([*prefix, *program.split()], env=environment, text=True,
                              errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              check=False)
        counts = re.findall(r"^\w+: (\d+) passed, (\d+) failed", done.stdout, re.M)
        passed, failed = (int(n) for n in counts[-1]) if counts else (0, 0)
        n_passed += passed
        n_failed += max(failed, done.returncode != 0)
        if done.returncode != 0 or "SOV_CHECK_VERBOSE" in os.environ:
            print(done.stdout[-20000:], end="")
        print(f"{Path(program).name}: {passed} cases, exit code {done.returncode}")
    print(f"tsan: {n_passed} passed, {n_failed} failed")
    return n_failed > 0


if __name__ == "__main__":
    sys.exit(main())
