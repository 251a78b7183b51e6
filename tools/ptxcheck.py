#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Everything that ptxcheck proves (docs/ptxcheck.md), in order: the checker's own tests, the kernels'
launch files, the mutants, the calibration tables, the cases of sov conform. Ends with "N passed, N
failed". Called by `make ptxcheck`, which has built the programs.

A test of the checker is a launch file tests/ptxcheck/NAME.launch over a module beside it; its comments
say what must be reported:
  # finds KIND @name  a report of this kind at the line of the module that has @name in its comment
  # finds KIND 0      a report without a line
  # finds nothing
With `# only` a report of another kind than those is a failure too (always so with `nothing`).
"""
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOL = ROOT / "build/ptxcheck"
SANITIZED = ROOT / "build/ptxcheck-asan"
SECONDS_MAX = 170
SEEDS = 8 if os.environ.get("SOV_TEST_FULL") else 1  # interleavings of each launch file


class Totals:
    passed = failed = 0


def call(*args):
    done = subprocess.run([str(arg) for arg in args], cwd=ROOT, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=SECONDS_MAX)
    return done.returncode, done.stdout


def verdict(name, good, output):
    if good:
        Totals.passed += 1
    else:
        Totals.failed += 1
        print(f"FAILED {name}\n{output}", flush=True)


def reports(output):
    """The (kind, line) of each report in the tool's output."""
    found = set()
    for line in output.splitlines():
        match = re.match(r"  (?:\S+:(\d+): )?(?:block \S+ thread \S+: )?([a-z]+): ", line)
        if match:
            found.add((match.group(2), int(match.group(1) or 0)))
    return found


def check_report_test(path):
    text = path.read_text()
    module = (path.parent / (re.search(r"^module (\w+)", text, re.MULTILINE).group(1) + ".ptx"))
    places = [(name, number) for number, line in enumerate(module.read_text().splitlines(), 1)
              for name in re.findall(r"// (@\w+)$", line)]
    lines = dict(places)
    assert len(lines) == len(places), f"{module}: a @name stands twice"
    wanted = {(kind, 0 if place == "0" else lines[place]) for kind, place in
              re.findall(r"^# finds (\w+) (0|@\w+)$", text, re.MULTILINE)}
    nothing = re.search(r"^# finds nothing", text, re.MULTILINE) is not None
    code, output = call(SANITIZED, "--limit", 2000000, "--modules", path.parent.relative_to(ROOT),
                        "run", path.relative_to(ROOT))
    found = reports(output)
    if nothing:
        good = code == 0 and not found
    else:
        kinds = {kind for kind, _ in wanted}
        good = code == 1 and wanted and wanted <= found
        if re.search(r"^# only", text, re.MULTILINE):
            good = good and {kind for kind, _ in found} <= kinds
    verdict(path.name, good, f"wanted {sorted(wanted) or 'nothing'}, found {sorted(found)}\n{output}")


def check_refusal(path):
    """A module or launch file that must not be accepted: "; refuses LINE WORDS" in its first line."""
    match = re.search(r"; refuses (\d+) (.*)", path.read_text())
    code, output = call(SANITIZED, "--modules", path.parent.relative_to(ROOT),
                        "parse" if path.suffix == ".ptx" else "run", path.relative_to(ROOT))
    wanted = f"{path.relative_to(ROOT)}:{match.group(1)}: error: "
    good = code == 3 and output.startswith(wanted) and match.group(2) in output
    verdict(path.name, good, f"wanted {wanted} ... {match.group(2)}\n{output}")


def check_semantics(own):
    """The table of semantics.py must match, and one with a wrong result must not."""
    table = subprocess.run([sys.executable, str(own / "semantics.py")], stdout=subprocess.PIPE,
                           text=True, check=True).stdout
    right, wrong = ROOT / "build/semantics.calibration", ROOT / "build/wrong.calibration"
    right.write_text(table)
    rows = [line for line in table.splitlines() if line.startswith("row")]
    last = rows[len(rows) // 2]
    wrong.write_text(table.replace(last, last[:-1] + ("0" if last[-1] != "0" else "1"), 1))
    code, output = call(SANITIZED, "calibrate", right)
    verdict("semantics.py", code == 0, output)
    print(output.splitlines()[-1])
    code, output = call(SANITIZED, "calibrate", wrong)
    verdict("semantics.py with a wrong result", code == 1 and " 1 of " not in output, output)


# What a table of values cannot hold: memory (tests/ptxcheck/reports.ptx has it), control, copies.
NOT_CALIBRATED = ("ld.", "st.", "bar.", "barrier.", "cp.", "cvta.", "red.", "atom.", "fence.", "membar.",
                  "createpolicy.", "prefetch.", "mov.", "bra", "nanosleep.")


def opcodes(text):
    """The opcodes of a PTX text; a comparison's combination with a predicate is left out."""
    text = re.sub(r"//.*|^#.*", "", text, flags=re.MULTILINE)
    found = set()
    for statement in re.split(r"[;{}]|\n\s*\n", text):
        match = re.match(r"(?:[\w$]+:\s*)*(?:@!?%\w+\s+)?([a-z]\w*(?:\.[\w:]+)+)\s", statement.strip() + " ")
        if match:
            found.add(re.sub(r"^(setp\.\w+)\.(?:and|or|xor)\.", r"\1.", match.group(1)))
    return found


def check_opcodes(kernels):
    """Every instruction of the kernels has rows in a table, the card's or that of semantics.py."""
    tables = [(ROOT / "build/semantics.calibration").read_text()]
    tables += [path.read_text() for path in sorted(kernels.glob("*.calibration"))]
    known = set()
    for table in tables:
        known |= opcodes(";\n".join(re.findall(r"^body (.*)", table, re.MULTILINE)))
    used = set()
    for path in sorted((ROOT / "build/ptx").glob("*.ptx")):
        used |= opcodes(path.read_text())
    missing = sorted(opcode for opcode in used - known if not opcode.startswith(NOT_CALIBRATED))
    verdict("opcodes with rows in a table", not missing, f"no row for {', '.join(missing)}")


# The kernel that the text is of, and what must be said when another text is in its place.
CONFORM_PLANTS = [
    ("add", "elementwise", "add.rn.f32 %residual0", "sub.rn.f32 %residual0", "active: residual"),
    ("add", "elementwise", "setp.lt.u32 %p_in0, %i", "setp.le.u32 %p_in0, %i", "active: residual"),
    ("silu_fused", "elementwise", "@%p_idle exit;", "", "power not active: status"),
    ("silu_fused", "elementwise", "[%g_status + 4], 1;", "[%g_status + 4], 2;", "active: status"),
    ("quantize_q16", "quantize", ".param .u32 sum_stride", ".param .u64 sum_stride", "param: "),
]


def check_conform():
    """The cases of `sov conform`, by the structs and the table of the host; and that they find faults."""
    tool = ROOT / "build/ptxcheck-conform"
    code, output = call(tool)
    match = re.search(r"^conform: (\d+) kernels, (\d+) cases, 0 wrong$", output, re.MULTILINE)
    verdict("conform", code == 0 and match and int(match[2]) >= 3 * int(match[1]), output)
    print(output.splitlines()[-1] if output else "conform", flush=True)
    for kernel, module, old, new, words in CONFORM_PLANTS:
        code, output = call(tool, "--kernel", kernel, "--replace", module, old, new)
        lines = [line for line in output.splitlines() if line.startswith(f"wrong: {kernel} ")]
        found = code == 1 and any(words in line for line in lines)
        verdict(f"conform with \"{new}\" in {kernel}", found, output)


def main():
    start = time.monotonic()
    own = ROOT / "tests/ptxcheck"
    for path in sorted(own.glob("*.launch")):
        if not path.name.startswith("refuse_"):
            check_report_test(path)
    for path in sorted(own.glob("refuse_*")):
        check_refusal(path)
    check_semantics(own)
    kernels = ROOT / "tests/ptx"
    for path in sorted(kernels.glob("*.launch")):
        for seed in range(1, SEEDS + 1):
            code, output = call(TOOL, "--seed", seed, "run", path.relative_to(ROOT))
            verdict(path.name, code == 0, output)
        print(output.splitlines()[-1] if output else path.name, flush=True)
    for folder in (own, kernels):
        for path in sorted(folder.glob("*.mutants")):
            modules = "build/ptx" if folder == kernels else own.relative_to(ROOT)
            tool = TOOL if folder == kernels else SANITIZED
            code, output = call(tool, "--modules", modules, "mutants", path.relative_to(ROOT))
            print(output, end="", flush=True)
            caught = len(re.findall(r": (?:caught: |control passes$)", output, re.MULTILINE))
            missed = len(re.findall(r": (?:NOT CAUGHT|CONTROL FAILS)$", output, re.MULTILINE)) + (code not in (0, 1))
            Totals.passed += caught
            Totals.failed += missed
    for path in sorted(kernels.glob("*.calibration")):
        code, output = call(TOOL, "calibrate", path.relative_to(ROOT))
        verdict(path.name, code == 0, output)
        print(output.splitlines()[-1] if output else path.name, flush=True)
    check_opcodes(kernels)
    check_conform()
    seconds = time.monotonic() - start
    print(f"ptxcheck: {Totals.passed} passed, {Totals.failed} failed ({seconds:.1f} s)")
    return 0 if Totals.failed == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
