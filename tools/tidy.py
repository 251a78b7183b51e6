#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The project's own rules, as a test: prints every breach with its place and exits 1 if there is one.

R1  C lines have at most 100 columns, no tabs, no trailing blanks; every file ends with a newline.
R2  Every source file names its licence (SPDX) in its first two lines.
R3  src/ includes no header of a C library (only src/platform/hosted.c may), and immintrin.h only in
    files of one instruction set (names ending in _avx2, _avx512 or _shani, or avx2.h, avx512.h).
R4  Includes point down: cli > engine > request, schedule, model, sample, record, cpu, cuda > ops >
    platform > freestanding. Siblings do not include each other; cpu/ and cuda/ may include model/graph.h, the
    plan that they execute.
R5  Functions have at most 80 lines; files of kernels are exempt.
R6  No leftovers (words that mark unfinished work), no machine paths.
R7  The Janet array is reached through janet_get and janet_set: JANET_ADDRESS, its number, and members
    of struct janet stand in src/engine/janet.[ch] only.
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LAYER = {"freestanding": 0, "platform": 1, "ops": 2, "request": 3, "schedule": 3, "model": 3,
         "sample": 3, "record": 3, "cpu": 3, "cuda": 3, "engine": 4, "cli": 5}
ALLOWED_SIBLINGS = {("cpu", "model"), ("cuda", "model")}
COMPILER_HEADERS = {"cpuid.h", "stdarg.h", "stdbool.h", "stddef.h", "limits.h", "stdint.h"}
KERNEL_FILE = re.compile(r"(_avx2|_avx512|_shani|/avx2|/avx512|reference)\.[ch]$")
LEFTOVERS = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
MACHINE_PATH = re.compile(r"(^|[^A-Za-z0-9_./-])/(work|root|home)/")
JANET = re.compile(r"JANET_ADDRESS|0x200000000000|\bjanet\s*(->|\[)|\*\s*\(?\s*\w*->janet\b|janet->words")
FUNCTION_LINES_MAX = 80
COLUMNS_MAX = 100

breaches = []


def breach(path, line, text):
    breaches.append(f"{path.relative_to(ROOT)}:{line}: {text}")


def check_text(path, lines, raw):
    if raw and not raw.endswith("\n"):
        breach(path, len(lines), "R1 no newline at the end")
    if not any("SPDX-License-Identifier: Apache-2.0" in line for line in lines[:2]):
        breach(path, 1, "R2 no SPDX line")
    for number, line in enumerate(lines, 1):
        if path.suffix in (".c", ".h", ".S"):
            if len(line) > COLUMNS_MAX:
                breach(path, number, f"R1 {len(line)} columns")
            if "\t" in line:
                breach(path, number, "R1 a tab")
        if line != line.rstrip():
            breach(path, number, "R1 a trailing blank")
        if path.name != "tidy.py" and (LEFTOVERS.search(line) or MACHINE_PATH.search(line)):
            breach(path, number, "R6 a leftover or a machine path")


def check_includes(path, lines):
    parts = path.relative_to(ROOT / "src").parts
    layer = LAYER[parts[0]]
    hosted = path.name == "hosted.c"
    for number, line in enumerate(lines, 1):
        system = re.match(r"\s*#\s*include\s*<([^>]+)>", line)
        if system and not hosted:
            name = system.group(1)
            kernel = KERNEL_FILE.search(str(path)) and name == "immintrin.h"
            if name not in COMPILER_HEADERS and not kernel:
                breach(path, number, f"R3 <{name}> in the core")
        own = re.match(r'\s*#\s*include\s*"([^"]+)"', line)
        if own and own.group(1) != "sov_rtx.h":
            target = own.group(1).split("/")[0]
            if target not in LAYER:
                breach(path, number, f"R4 \"{own.group(1)}\" is not written from src/")
            elif target != parts[0] and LAYER[target] >= layer and \
                    (parts[0], target) not in ALLOWED_SIBLINGS:
                breach(path, number, f"R4 {parts[0]} includes {target}, which is not below it")


def check_janet(path, lines):
    if path.parts[-2:] in (("engine", "janet.c"), ("engine", "janet.h")):
        return
    for number, line in enumerate(lines, 1):
        if JANET.search(line):
            breach(path, number, "R7 the Janet array without janet_get or janet_set")


def check_functions(path, lines):
    if KERNEL_FILE.search(str(path)):
        return
    begin = None
    for number, line in enumerate(lines, 1):
        if re.match(r"^[A-Za-z_].*\)\s*\{$", line) or (line == "{"):
            begin = number
        elif re.match(r"^\s+.*\)\s*\{$", line) and begin is None and number > 1 and \
                re.match(r"^[A-Za-z_].*\(", lines[number - 2]):
            begin = number
        elif line == "}" and begin is not None:
            if number - begin + 1 > FUNCTION_LINES_MAX:
                breach(path, begin, f"R5 a function of {number - begin + 1} lines")
            begin = None


def main():
    folders = ("src", "include", "tests", "tools", "bench")
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in (".c", ".h", ".S", ".py", ".sh") or not path.is_file():
                continue
            raw = path.read_text()
            lines = raw.splitlines()
            check_text(path, lines, raw)
            if path.suffix in (".c", ".h"):
                check_functions(path, lines)
                if folder == "src":
                    check_includes(path, lines)
                    check_janet(path, lines)
    print("\n".join(breaches) if breaches else "tidy: no breach of the project's rules")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
