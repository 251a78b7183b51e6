# SPDX-License-Identifier: Apache-2.0
"""Properties of the linked programs, and of how they begin and end.

What a reader of the binaries can see (no libc symbol, no writable code, no constructors), what the
kernel can see (the system calls), and what a parent process can see (signals, pipes, aborts). Needs
binutils and, for the system calls, strace. The programs come from `make tests`; the folder can be
changed by SOV_TEST_BUILD. SOV_MODEL names a GGUF file for the test that runs a model.
"""
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BUILD = Path(os.environ.get("SOV_TEST_BUILD", ROOT / "build"))
TIMEOUT = 60

# The calls of src/platform/linux_syscall.h. execve is the one that starts the program, made by
# strace's child. There is no brk, and no call that opens the network or starts a program.
PLATFORM_CALLS = {
    "read", "write", "open", "close", "fstat", "mmap", "mprotect", "munmap", "rt_sigaction",
    "rt_sigprocmask", "rt_sigreturn", "ioctl", "getpid", "clone", "exit", "gettid", "futex",
    "sched_getaffinity", "clock_gettime", "exit_group", "tgkill", "ppoll", "pread64", "getdents64",
    "ftruncate", "flock", "getrandom", "madvise", "sched_setaffinity",
    "pwrite64", "fsync", "rename", "mkdir", "unlink", "rmdir", "fchmod",
}
COMPILER_HEADERS = {
    "limits.h", "stdarg.h", "stdbool.h", "stddef.h", "stdint.h", "float.h", "stdalign.h",
    "cpuid.h",
    "immintrin.h",  # only in files of one instruction set; see test_no_forbidden_include
}


def program(name):
    path = BUILD / name
    if not path.exists():
        pytest.skip(f"{path} is not built")
    return path


def tool(name):
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    return name


def output_of(*command):
    result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=True)
    return result.stdout


def load_segments(path):
    """(type, flags) of every program header."""
    lines = output_of(tool("readelf"), "-lW", path).splitlines()
    row = re.compile(r"^\s+([A-Z_]+)\s+0x\S+\s+0x\S+\s+0x\S+\s+0x\S+\s+0x\S+\s+([RWE ]{3})")
    return [(m[1], m[2]) for m in map(row.match, lines) if m]


def linked_programs():
    return ["sov", "sov-static"]


# --- what readelf sees ---

@pytest.mark.parametrize("name", linked_programs())
def test_no_symbol_is_imported(name):
    assert output_of(tool("nm"), "-D", "--undefined-only", program(name)).strip() == ""
    assert output_of(tool("nm"), "--undefined-only", program(name)).strip() == ""


@pytest.mark.parametrize("name", linked_programs())
def test_no_code_runs_before_the_entry_point(name):
    sections = output_of(tool("readelf"), "-SW", program(name))
    assert ".text" in sections
    dynamic = output_of(tool("readelf"), "-dW", program(name))
    for word in ("init_array", "preinit_array", "fini_array", ".ctors", ".init ", ".fini "):
        assert word not in sections
    for word in ("(INIT", "(FINI", "(PREINIT"):
        assert word not in dynamic


@pytest.mark.parametrize("name", linked_programs())
def test_no_thread_local_storage(name):
    """Threads share the fs register of their parent (rule L1 of src/platform/linux.c)."""
    assert "TLS" not in {kind for kind, _ in load_segments(program(name))}
    code = output_of(tool("objdump"), "-d", "--no-show-raw-insn", program(name))
    assert "syscall" in code
    assert not re.search(r"%[fg]s:", code)


@pytest.mark.parametrize("name", linked_programs())
def test_no_segment_is_writable_and_executable(name):
    segments = load_segments(program(name))
    assert any(kind == "LOAD" and "E" in flags for kind, flags in segments)
    assert any(kind == "LOAD" and "W" in flags for kind, flags in segments)
    assert not [s for s in segments if "W" in s[1] and "E" in s[1]]
    assert ("GNU_STACK", "RW ") in segments


def test_dynamic_program_needs_libc_and_a_loader():
    """The loader maps libc so that a driver can be opened later; nothing of it is imported."""
    kinds = {kind for kind, _ in load_segments(program("sov"))}
    assert "INTERP" in kinds
    dynamic = output_of(tool("readelf"), "-dW", program("sov"))
    assert re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic) == ["libc.so.6"]
    assert "TEXTREL" not in dynamic
    assert "PIE" in dynamic and "NOW" in dynamic
    relocations = set(re.findall(r"R_X86_64_\w+", output_of("readelf", "-rW", program("sov"))))
    assert relocations <= {"R_X86_64_RELATIVE"}


def test_static_program_needs_nothing():
    kinds = {kind for kind, _ in load_segments(program("sov-static"))}
    assert "INTERP" not in kinds and "DYNAMIC" not in kinds
    assert "no relocations" in output_of("readelf", "-rW", program("sov-static"))


def test_entry_code_runs_on_any_cpu():
    """What runs before the CPU check is plain x86-64 and calls nothing compiled for more."""
    start = program("free/src/platform/linux_start.o")
    undefined = output_of(tool("nm"), "--undefined-only", start).split()
    assert undefined == ["U", "linux_main"]
    code = output_of(tool("objdump"), "-d", "--no-show-raw-insn", start)
    mnemonics = set(re.findall(r"^\s+[0-9a-f]+:\s+(\S+)", code, re.M))
    assert {"cpuid", "xgetbv", "syscall"} <= mnemonics
    beyond = {m for m in mnemonics if m.startswith("v")}  # every AVX instruction
    beyond |= mnemonics & {"andn", "bextr", "blsi", "blsr", "blsmsk", "bzhi", "mulx", "pdep",
                           "pext", "rorx", "sarx", "shlx", "shrx", "lzcnt", "tzcnt", "movbe",
                           "popcnt", "pshufb", "lahf", "sahf"}
    assert not beyond


# --- what the sources include ---

def source_files():
    files = sorted(p for p in (ROOT / "src").rglob("*") if p.suffix in (".c", ".h", ".inc"))
    assert files
    return files


def test_no_forbidden_include():
    wrong = []
    for path in source_files():
        if path.name == "hosted.c":
            continue
        text = path.read_text()
        for header in re.findall(r"^\s*#\s*include\s*<([^>]+)>", text, re.M):
            if header not in COMPILER_HEADERS:
                wrong.append(f"{path.relative_to(ROOT)} includes <{header}>")
            # immintrin.h pulls in stdlib.h unless mm_malloc.h is kept out.
            if header == "immintrin.h" and "#define _MM_MALLOC_H_INCLUDED" not in text:
                wrong.append(f"{path.relative_to(ROOT)} includes <{header}> with its mm_malloc.h")
    assert not wrong


def test_system_calls_are_made_by_the_platform_only():
    wrong = []
    for path in source_files():
        outside = path.parent.name != "platform"
        if outside and re.search(r"\bsyscall\b|linux_call", path.read_text()):
            wrong.append(str(path.relative_to(ROOT)))
    assert not wrong


# --- what strace sees ---

def system_calls(tmp_path, *command):
    """Names of the calls of a program and its threads, after the execve that starts it."""
    log = tmp_path / "strace.log"
    result = subprocess.run([tool("strace"), "-f", "-qq", "-o", log, *map(str, command)],
                            stdin=subprocess.DEVNULL, capture_output=True, timeout=10 * TIMEOUT,
                            check=False)
    text = log.read_text()
    if "PTRACE" in result.stderr.decode(errors="replace"):
        pytest.skip("this system does not allow ptrace")
    assert result.returncode == 0, result.stderr.decode(errors="replace")
    calls = re.findall(r"^\d+\s+(?:<\.\.\. )?(\w+)(?:\(| resumed)", text, re.M)
    assert calls[0] == "execve" and calls.count("execve") == 1
    assert "+++ killed" not in text
    return calls[1:]


def test_version_makes_only_the_platforms_calls(tmp_path):
    calls = set(system_calls(tmp_path, program("sov-static"), "version"))
    assert "write" in calls and "exit_group" in calls
    assert calls <= PLATFORM_CALLS, calls - PLATFORM_CALLS


def test_platform_test_makes_only_the_platforms_calls(tmp_path):
    """Every function of the platform at once: threads, maps, files, clocks."""
    calls = set(system_calls(tmp_path, program("free/test_platform")))
    assert {"clone", "futex", "mmap", "exit"} <= calls
    assert calls <= PLATFORM_CALLS, calls - PLATFORM_CALLS


def test_run_makes_only_the_platforms_calls(tmp_path):
    model = os.environ.get("SOV_MODEL")
    if not model:
        pytest.skip("SOV_MODEL does not name a model file")
    calls = system_calls(tmp_path, program("sov-static"), "run", "-m", model, "-p", "Hi", "-n",
                         "4", "--greedy", "-t", "2")
    assert "clone" in calls  # the second thread
    assert set(calls) <= PLATFORM_CALLS, set(calls) - PLATFORM_CALLS
    assert calls.count("mmap") < 40  # a few planned mappings, none per token


def test_list_of_calls_is_that_of_the_source():
    text = (ROOT / "src/platform/linux_syscall.h").read_text()
    names = {name.lower() for name in re.findall(r"^\s+LINUX_(\w+) = \d+,", text, re.M)}
    assert names == PLATFORM_CALLS


# --- how programs begin and end ---

FLAVOURS = ["free", "asan"]


def start_action(flavour, action, **kwargs):
    return subprocess.Popen([program(f"{flavour}/test_platform"), action], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, **kwargs)


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_first_signal_ends_a_read_and_the_second_the_program(flavour, first, second):
    with start_action(flavour, "wait_for_signal_in_read") as child:
        assert child.stdout.readline() == b"ready\n"
        child.send_signal(first)
        assert child.stdout.readline() == b"interrupted\n"
        assert child.stdout.readline() == b"again\n"
        child.send_signal(second)
        assert child.wait(TIMEOUT) == -second


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_signals_that_are_not_watched_end_the_program(flavour):
    with start_action(flavour, "write_for_ever") as child:
        child.stdout.read(1)
        child.send_signal(signal.SIGTERM)
        assert child.wait(TIMEOUT) == -signal.SIGTERM


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_input_is_copied_through_pipes(flavour):
    """Input that comes in pieces is read whole; the watch on signals changes nothing."""
    data = bytes(i * 7 & 255 for i in range(300001))
    with start_action(flavour, "copy_input") as child:
        out, _ = child.communicate(data, timeout=TIMEOUT)
        assert child.returncode == 0
        assert out == data


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_non_blocking_descriptors_are_waited_for(flavour):
    """A terminal or pipe shared with another program may have been made non-blocking by it."""
    to_child, our_end = os.pipe()
    from_child, child_end = os.pipe()
    os.set_blocking(to_child, False)
    os.set_blocking(child_end, False)
    data = bytes(i * 11 & 255 for i in range(200000))  # more than both pipes hold

    def feed():  # keeps the child waiting for input, first for the start and then for the rest
        for part in (data[:100], data[100:]):
            time.sleep(0.1)
            while part:
                part = part[os.write(our_end, part):]
        os.close(our_end)

    with subprocess.Popen([program(f"{flavour}/test_platform"), "copy_input"], stdin=to_child,
                          stdout=child_end) as child:
        os.close(to_child)
        os.close(child_end)
        feeder = threading.Thread(target=feed)
        feeder.start()
        time.sleep(0.4)  # the child's output is full by then
        got = b""
        while piece := os.read(from_child, 65536):
            got += piece
        os.close(from_child)
        feeder.join()
        assert child.wait(TIMEOUT) == 0
        assert got == data


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_reader_that_leaves_is_an_error_of_the_write(flavour):
    """Not the end by SIGPIPE; preexec_fn gives the child the default action, which Python lacks."""
    restore = dict(preexec_fn=lambda: signal.signal(signal.SIGPIPE, signal.SIG_DFL))
    with start_action(flavour, "write_for_ever", **restore) as child:
        child.stdout.read(100)
        child.stdout.close()
        assert child.stderr.read() == b"write standard output: EPIPE (nobody reads the pipe)"
        assert child.wait(TIMEOUT) == 7


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_arguments_environment_and_exit_code(flavour):
    path = program(f"{flavour}/test_platform")
    for value in ("", "x=y", "\u00e9" * 5000):
        result = subprocess.run([path, "echo", "", "a b", "-x"], capture_output=True, check=False,
                                env={"SOV_TEST_ECH": "no", "SOV_TEST_ECHO": value},
                                timeout=TIMEOUT)
        assert result.returncode == 9
        assert result.stdout.decode() == f"{path}\necho\n\na b\n-x\n{value}\n"
    result = subprocess.run([path, "echo"], capture_output=True, check=False, env={},
                            timeout=TIMEOUT)
    assert result.stdout.decode() == f"{path}\necho\n(none)\n"


def test_running_off_a_stack_hits_the_guard_page():
    with start_action("free", "overflow_stack") as child:
        assert child.wait(TIMEOUT) == -signal.SIGSEGV


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("name, action, message", [
    ("test_base", "use_sealed_arena", "src/freestanding/arena.c"),
    ("test_text", "use_unknown_format", "src/freestanding/text.c"),
    ("test_platform", "fail_assertion_in_thread", "tests/test_platform.c"),
])
def test_failed_assertion_says_where_and_aborts(flavour, name, action, message):
    result = subprocess.run([program(f"{flavour}/{name}"), action], capture_output=True, text=True,
                            timeout=TIMEOUT, check=False)
    assert result.returncode == -signal.SIGABRT
    assert re.search(rf"{re.escape(message)}:\d+: assertion failed: \S", result.stderr)
