# SPDX-License-Identifier: Apache-2.0
"""The kernels of src/cuda/ptx/ against ptxas and against their own head comments.

Every kernel is assembled for each architecture on which the driver may compile it. It must neither
spill nor use a stack, and its registers, shared memory and parameters are those of its head comment.
Register counts belong to one version of ptxas, so that version alone is used: an installed toolkit of
that version, else the one that tools/check.py puts into the test environment from PyPI.

`python tests/test_ptx.py --update` writes the register counts that ptxas reports into the comments.
"""
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "src/cuda/ptx"
MODULES = sorted(path.name.removesuffix(".ptx.S") for path in SOURCES.glob("*.ptx.S"))
ARCHITECTURES = ("sm_89", "sm_90", "sm_100", "sm_120")
# "nvidia-cuda-nvcc==X" names the version of the toolkit, too.
PTXAS_VERSION = "V" + (ROOT / "tests/requirements-ptxas.txt").read_text().strip().split("==")[1]
SHARED_MAX = 48 * 1024  # static shared memory of a block without opting in to more
TIMEOUT = 120


def ptxas_candidates():
    yield from filter(None, [os.environ.get("SOV_PTXAS"), shutil.which("ptxas"),
                             "/usr/local/cuda/bin/ptxas"])
    for folder in map(Path, sys.path):
        yield from map(str, folder.glob("nvidia/cu13/bin/ptxas"))


def find_ptxas():
    """A ptxas of PTXAS_VERSION, or None."""
    for candidate in ptxas_candidates():
        try:
            done = subprocess.run([candidate, "--version"], capture_output=True, text=True,
                                  timeout=TIMEOUT)
        except OSError:
            continue
        if PTXAS_VERSION in done.stdout:
            return candidate
    return None


@pytest.fixture(scope="module")
def ptxas():
    found = find_ptxas()
    if found is None:
        pytest.fail(f"no ptxas {PTXAS_VERSION}; ./check installs it, SOV_PTXAS names one")
    return found


def preprocess(module):
    """The text as ptxas and the checker read it, with line markers."""
    return subprocess.run(["cc", "-E", "-x", "assembler-with-cpp", "-undef", "-I", str(SOURCES),
                           str(SOURCES / f"{module}.ptx.S")],
                          capture_output=True, text=True, check=True, timeout=TIMEOUT).stdout


def assemble(ptxas, text, architecture, folder):
    """(exit code, ptxas's report)"""
    source = Path(folder) / "module.ptx"
    source.write_text(text)
    done = subprocess.run([ptxas, f"-arch={architecture}", "-v", "-warn-spills",
                           "-warn-lmem-usage", str(source), "-o", str(Path(folder) / "module.cubin")],
                          capture_output=True, text=True, timeout=TIMEOUT)
    return done.returncode, done.stdout + done.stderr


def parse_report(report):
    """{kernel: {stack, spill_stores, spill_loads, registers, shared}} of ptxas -v."""
    found, kernel = {}, None
    for line in report.splitlines():
        if match := re.search(r"Compiling entry function '(\w+)'", line):
            kernel = found.setdefault(match[1], {"shared": 0})
        elif match := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, "
                                r"(\d+) bytes spill loads", line):
            kernel |= dict(zip(("stack", "spill_stores", "spill_loads"), map(int, match.groups())))
        elif match := re.search(r"Used (\d+) registers", line):
            kernel["registers"] = int(match[1])
            if shared := re.search(r"(\d+) bytes smem", line):
                kernel["shared"] = int(shared[1])
    return found


def parse_heads(text):
    """{kernel: fields} of the "// kernel NAME" paragraphs at the head of a module's source."""
    heads = {}
    for paragraph in re.split(r"\n//\n|\n(?!//)", text):
        lines = [line[2:].strip() for line in paragraph.splitlines() if line.startswith("//")]
        if not lines or not lines[0].startswith("kernel "):
            continue
        fields, name = {}, None
        for line in lines[1:]:
            if match := re.match(r"([a-z ]+): (.*)", line):
                name = match[1]
                fields[name] = match[2]
            elif name is not None:
                fields[name] += " " + line
        heads[lines[0].split()[1]] = fields
    return heads


def parse_entries(text):
    """{kernel: {params, reqntid}} of the preprocessed text."""
    text = re.sub(r"^#.*$", "", text, flags=re.M)
    entries = {}
    pattern = r"\.entry\s+(\w+)\s*\(([^)]*)\)\s*(\.(?:reqntid|maxntid)\s+[\d, ]+)?"
    for name, params, threads in re.findall(pattern, text):
        listed = re.findall(r"\.param\s+\.(\w+)\s+(\w+)", params)
        entries[name] = {"params": [f"{p} {kind}" for kind, p in listed],
                         "threads": re.sub(r"\s+", " ", threads).strip()}
    return entries


def registers_of(fields):
    return {arch: int(n) for arch, n in re.findall(r"(sm_\d+) (\d+)", fields["registers"])}


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_resources(ptxas, module, architecture, tmp_path):
    heads = parse_heads((SOURCES / f"{module}.ptx.S").read_text())
    code, report = assemble(ptxas, preprocess(module), architecture, tmp_path)
    assert code == 0, report
    assert "warning" not in report.lower(), report
    kernels = parse_report(report)
    assert set(kernels) == set(heads)
    for name, used in kernels.items():
        assert (used["stack"], used["spill_stores"], used["spill_loads"]) == (0, 0, 0), name
        stated = registers_of(heads[name])
        assert used["registers"] == stated[architecture], f"{name}: registers on {architecture}"
        assert used["shared"] == int(heads[name]["shared"].split()[0]), f"{name}: shared"
        assert used["shared"] <= SHARED_MAX, name


@pytest.mark.parametrize("module", MODULES)
def test_heads_describe_the_entries(module):
    heads = parse_heads((SOURCES / f"{module}.ptx.S").read_text())
    entries = parse_entries(preprocess(module))
    assert set(heads) == set(entries)
    for name, entry in entries.items():
        stated = re.split(r",\s*", heads[name]["params"])
        assert stated == entry["params"], name
        assert entry["params"][:2] == ["power u64", "status u64"], name  # P1 of macros.inc
        limit = re.fullmatch(r"\.(reqntid|maxntid) (\d+), 1, 1", entry["threads"])
        assert limit, f"{name}: no block size"
        block = heads[name]["block"]
        expected = rf"32 \.\. {limit[2]}" if limit[1] == "maxntid" else limit[2]
        assert re.fullmatch(expected, block), f"{name}: block"
        for field in ("grid", "registers", "shared", "roof", "aligned"):
            assert field in heads[name], f"{name}: no {field}"


@pytest.mark.parametrize("module", MODULES)
def test_text_is_version_7_8_for_sm_89(module):
    text = preprocess(module)
    assert re.search(r"^\.version 7\.8 \.target sm_89 \.address_size 64$", text, flags=re.M)
    assert not re.search(r"\.(approx|ftz|sat)\b", text)  # P5 of macros.inc
    # An f32 operation without a rounding in its name may be contracted by ptxas.
    assert not re.search(r"\b(add|sub|mul|fma|mad|div|sqrt)\.f32\b", text)


def test_power_is_checked_before_the_first_store():
    """By text: before a kernel has acquired the power word it only reads, or copies to shared memory
    (P1, P2)."""
    for module in MODULES:
        text = re.sub(r"^#.*$", "", preprocess(module), flags=re.M)
        for body in re.split(r"\.entry\s+", text)[1:]:
            name = re.match(r"\w+", body)[0]
            accesses = re.findall(r"\b(?:ld\.(?!param)|st\.|red\.|atom\.|cp\.)[\w.]+", body)
            acquired = accesses.index("ld.acquire.gpu.global.u32")
            assert all(access.startswith(("ld.", "cp.async.", "st.shared."))
                       for access in accesses[:acquired]), name
            assert accesses[-1] == "red.release.gpu.global.add.u32", name


def test_constants_equal_the_c_headers():
    """Constants that are written in PTX's hex form in macros.inc, against their C definitions."""
    def c_constants(path):
        found = re.findall(r"#define (\w+) \(?(-?0x[0-9a-fA-F.]+p[+-]?\d+)f\)?", path.read_text())
        return {name: float.fromhex(value) for name, value in found}

    def ptx_constants(text):
        import struct
        found = re.findall(r"#define (\w+) 0f([0-9A-F]{8})\b", text)
        return {name: struct.unpack(">f", bytes.fromhex(bits))[0] for name, bits in found}

    ptx = ptx_constants((SOURCES / "macros.inc").read_text())
    math = c_constants(ROOT / "src/freestanding/math.h")
    op = c_constants(ROOT / "src/ops/op.h")
    compared = 0
    for name, value in ptx.items():
        for c_name, table in ((f"MATH_EXP_F32_{name.removeprefix('EXP_')}", math),
                              (f"OP_{name}", op)):
            if c_name in table:
                assert value == table[c_name], name
                compared += 1
    assert compared == 14  # 2 limits, log2(e), 2 parts of ln 2, C0 to C6, and 2 of gelu
    assert ptx["F32_RNE_MAGIC"] == 1.5 * 2**23
    assert ptx["F32_32767"] == 32767.0


def test_a_spill_and_a_wrong_comment_are_found(ptxas, tmp_path):
    """The parsers themselves, on a kernel that must use local memory."""
    text = (".version 7.8 .target sm_89 .address_size 64\n.visible .entry k(.param .u64 out) {\n"
            ".local .align 4 .b8 buf[64];\n.reg .u64 %a; .reg .u32 %i;\n"
            "mov.u64 %a, buf; mov.u32 %i, %tid.x; cvt.u64.u32 %a, %i; add.u64 %a, %a, %a;\n"
            ".reg .u64 %b; mov.u64 %b, buf; add.u64 %b, %b, %a; st.local.u8 [%b], %i;\n"
            "ld.local.u32 %i, [buf]; ld.param.u64 %a, [out]; st.global.u32 [%a], %i; ret; }\n")
    code, report = assemble(ptxas, text, "sm_89", tmp_path)
    assert code == 0, report
    assert parse_report(report)["k"]["stack"] == 64
    assert "warning" in report.lower()
    heads = parse_heads("// text\n//\n// kernel a\n//   params: x u64,\n//           y u32\n"
                        "//   registers: sm_89 7\n//\n// kernel b\n//   shared: 4\n#include\n")
    assert heads["a"]["params"] == "x u64, y u32"
    assert registers_of(heads["a"]) == {"sm_89": 7}
    assert heads["b"] == {"shared": "4"}


def update():
    import tempfile
    ptxas = find_ptxas()
    with tempfile.TemporaryDirectory() as folder:
        for module in MODULES:
            path = SOURCES / f"{module}.ptx.S"
            used = {}
            for architecture in ARCHITECTURES:
                code, report = assemble(ptxas, preprocess(module), architecture, folder)
                assert code == 0, report
                for name, kernel in parse_report(report).items():
                    used.setdefault(name, []).append(f"{architecture} {kernel['registers']}")
            text = path.read_text()
            for name, counts in used.items():
                text = re.sub(rf"(// kernel {name}\n(?:// .*\n)*?//   registers: ).*",
                              lambda match, line=", ".join(counts): match[1] + line, text)
            path.write_text(text)


if __name__ == "__main__":
    if sys.argv[1:] == ["--update"]:
        update()
    else:
        sys.exit(pytest.main([__file__]))
