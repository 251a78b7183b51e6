# SPDX-License-Identifier: Apache-2.0
"""How the driver is found from outside, and what the build refuses.

The library's search path is the loader's, so it is set for a whole process here; all else about the
driver is in tests/test_cuda_driver.c. The launch table of src/cuda/cuda_kernels.h must not compile
against kernels that differ from it: each case below changes one thing of one kernel.
"""
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BUILD = Path(os.environ.get("SOV_TEST_BUILD", ROOT / "build"))
TIMEOUT = 120


def probe(flavour, **variables):
    program = BUILD / flavour / "test_cuda_driver"
    if not program.exists():
        pytest.skip(f"{program} is not built")
    environment = {"PATH": os.environ["PATH"], **variables}
    done = subprocess.run([program, "probe"], capture_output=True, text=True, timeout=TIMEOUT,
                          env=environment)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("flavour", ["free", "asan"])
@pytest.mark.parametrize("variables, code, message", [
    ({}, 0, "Stand-in 0, capability 90, CUDA 12040"),
    ({"STANDIN_CAPABILITY": "120"}, 0, "Stand-in 0, capability 120, CUDA 12040"),
    ({"STANDIN_VERSION": "11060"}, 3, "SOV_ERR_UNSUPPORTED: the NVIDIA driver is too old: it offers "
                                      "CUDA 11.6"),
    ({"STANDIN_DEVICES": "0"}, 3, "sees no CUDA device"),
    ({"STANDIN_CAPABILITY": "80"}, 3, "compute capability 8.0, expected 8.9 or above"),
])
def test_driver_is_found_by_the_search_path(flavour, variables, code, message):
    found = probe(flavour, LD_LIBRARY_PATH=str(BUILD / "cuda_standin"), **variables)
    assert found[0] == code and message in found[1], found


@pytest.mark.parametrize("flavour", ["free", "asan"])
def test_old_driver_lacks_a_function(flavour):
    code, output = probe(flavour, LD_LIBRARY_PATH=str(BUILD / "cuda_standin/old"))
    assert code == 3 and "libcuda.so.1: no function cuGraphInstantiateWithFlags" in output


@pytest.mark.parametrize("flavour", ["free", "asan"])
def test_missing_driver_is_named(flavour, tmp_path):
    """A file of that name that is no library, so that a driver of this machine is not found."""
    (tmp_path / "libcuda.so.1").write_bytes(b"\x7fELF\x02\x01\x01 no more")
    code, output = probe(flavour, LD_LIBRARY_PATH=str(tmp_path))
    assert code == 3 and "CUDA needs the NVIDIA driver: library libcuda.so.1: " in output, output


def test_preloaded_library_does_not_hide_the_loader():
    """Another object in front of libc in the loader's list."""
    variables = {"LD_LIBRARY_PATH": str(BUILD / "cuda_standin"), "LD_PRELOAD": "libm.so.6"}
    code, output = probe("free", **variables)
    assert code == 0 and "Stand-in 0" in output, output


def test_preloaded_library_that_shortens_the_environment(tmp_path):
    """What takes a variable out moves the others down on the stack, as NVIDIA's sanitizers do."""
    source, library = tmp_path / "shorten.c", tmp_path / "shorten.so"
    source.write_text("""#include <stdlib.h>
        static void __attribute__((constructor)) shorten(void) {
            unsetenv("LD_PRELOAD");
            unsetenv("ANOTHER");
        }""")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True, timeout=TIMEOUT)
    variables = {"ANOTHER": "1", "LD_LIBRARY_PATH": str(BUILD / "cuda_standin"),
                 "LD_PRELOAD": str(library)}
    code, output = probe("free", **variables)
    assert code == 0 and "Stand-in 0" in output, output


def test_program_that_opens_libraries_imports_nothing():
    program = BUILD / "free/test_cuda_driver"
    if not program.exists():
        pytest.skip(f"{program} is not built")
    for option in ("-D", "-a"):
        out = subprocess.run(["nm", option, "--undefined-only", program], capture_output=True,
                             text=True, timeout=TIMEOUT, check=True).stdout
        assert out.strip() == ""


def test_check_for_a_card_fails_where_nothing_is_executed():
    """The program of `make cuda-bundle`, so that it is known to be able to fail."""
    program = BUILD / "free/card_cuda"
    if not program.exists():
        pytest.skip(f"{program} is not built")
    done = subprocess.run([program], capture_output=True, text=True, timeout=TIMEOUT,
                          env={"LD_LIBRARY_PATH": str(BUILD / "cuda_standin")})
    assert done.returncode == 1, done.stdout
    assert done.stdout.startswith("Stand-in 0, compute capability 9.0, 132 multiprocessors")
    assert "add 13 x 4100: " in done.stdout and "graph: " in done.stdout
    assert "idle: " not in done.stdout  # what stays as it is is right there
    assert done.stdout.endswith("card_cuda: 1 passed, 4 failed\n")


# --- the launch table against the PTX ---

def build(folder, change=None):
    """The compiler's verdict on cuda_kernels.c with a changed copy of the kernels."""
    sources = folder / "ptx"
    shutil.copytree(ROOT / "src/cuda/ptx", sources)
    if change is not None:
        file, old, new = change
        text = (sources / file).read_text()
        assert re.search(old, text), "the place of the change is not there"
        (sources / file).write_text(re.sub(old, new, text, count=1))
    header = folder / "generated/cuda/ptx_modules.h"
    modules = sorted(sources.glob("*.ptx.S"))
    done = subprocess.run(["python3", ROOT / "tools/embed_ptx.py", "cc", header, *modules],
                          capture_output=True, text=True, timeout=TIMEOUT)
    if done.returncode != 0:
        return done.returncode, done.stderr
    done = subprocess.run(["cc", "-std=c17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror",
                           f"-I{ROOT}/src", f"-I{ROOT}/include", f"-I{folder}/generated",
                           ROOT / "src/cuda/cuda_kernels.c"],
                          capture_output=True, text=True, timeout=TIMEOUT)
    return done.returncode, done.stderr


def test_launch_table_matches_the_kernels(tmp_path):
    assert build(tmp_path) == (0, "")


ADD = "elementwise.ptx.S"


@pytest.mark.parametrize("change, message", [
    ((ADD, r"\.param \.u64 residual,", ".param .u64 sum,"), "has no member named"),
    ((ADD, r"(\.param \.u64 residual,)(\s*)(\.param \.u64 x,)", r"\3\2\1"),
     "kernel add: its .param list"),
    ((ADD, r"\.param \.u32 x_stride(?=\s*\))", ".param .u64 x_stride"), "kernel add: its .param list"),
    ((ADD, r"\.param \.u32 x_stride(?=\s*\))", ".param .f32 x_stride"), "kernel add: its .param list"),
    ((ADD, r",\s*\.param \.u32 x_stride(?=\s*\))", ""), "kernel add: its .param list"),
    ((ADD, r"\.param \.u32 x_stride(?=\s*\))", ".param .u32 x_stride, .param .u32 more"),
     "has no member named"),
    ((ADD, r"\.param \.u32 x_stride(?=\s*\))", ".param .u16 x_stride"), "parameter not understood"),
    ((ADD, r"\.entry add\(", ".entry add_more("), "add"),
    ((ADD, r"#define THREADS 256", "#define THREADS 128"), "threads of a block"),
    ((ADD, r"\.reqntid THREADS, 1, 1", ".reqntid THREADS, 2, 1"), "neither .reqntid nor .maxntid"),
    ((ADD, r"(// kernel add\n//.*\n//   grid: rows, ceil\(n / )1024", r"\g<1>512"),
     "kernel add: its grid"),
    (("attention.inc", r"\.param \.f32 softcap", ".param .u32 softcap"),
     "kernel flash_attention_paged: its .param list"),
    (("rope.inc", r"\.entry KERNEL\(", ".entry NAME_OF(other_, KERNEL)("), "rope"),
])
def test_changed_kernel_does_not_compile(change, message, tmp_path):
    code, errors = build(tmp_path, change)
    assert code != 0 and message in errors, errors[:2000]
