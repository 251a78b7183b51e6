# SPDX-License-Identifier: Apache-2.0
"""sov conform: the report of the reference operators, reports checked, and what it makes of a driver
that executes nothing. Reports of cards in docs/conform/ are recomputed here."""
import json
import os
import re

import pytest

import sov

STANDIN = sov.BUILD / "cuda_standin"
REPORTS = sorted((sov.ROOT / "docs/conform").glob("*.json"))


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The quick report of the reference, in a file."""
    path = tmp_path_factory.mktemp("conform") / "report.json"
    path.write_bytes(sov.succeed("conform", "--backend", "cpu", "--quick", "--json").stdout)
    return path


def rewritten(report, path, change):
    """A copy of the report with a change."""
    data = json.loads(report.read_text())
    change(data)
    path.write_text(json.dumps(data))
    return path


def kernels():
    """Every kernel of the launch table."""
    text = (sov.ROOT / "src/cuda/cuda_kernels.h").read_text()
    return re.findall(r"^    X\(\w+, (\w+), cuda_", text, re.M)


def with_standin(*arguments, **variables):
    if not (STANDIN / "libcuda.so.1").exists():
        pytest.skip("the stand-in is not built")
    return sov.call("conform", *arguments,
                    env={"LD_LIBRARY_PATH": str(STANDIN), **variables})


# --- the reference ---

def test_report_is_stable_and_complete(report):
    again = sov.succeed("conform", "--backend", "cpu", "--quick", "--json")
    assert again.stdout == report.read_bytes()
    data = json.loads(again.stdout)
    assert data["format"] == "sov-conform-1" and data["backend"] == "cpu"
    assert data["seed"] == 20261130 and data["n_wrong"] == 0
    assert data["n_cases"] == len(data["cases"]) and "date" not in data
    ids = [case["id"] for case in data["cases"]]
    assert len(set(ids)) == len(ids)
    names = kernels()
    assert len(names) > 60 and data["kernels"] == len(names)
    assert sorted({name.split()[0] for name in ids}) == sorted(names)
    for case in data["cases"]:
        assert re.fullmatch("[0-9a-f]{64}", case["sha256"])
        assert re.fullmatch("[0-9a-f]{64}", case["idle_sha256"])
        if " bad" not in case["id"]:
            assert case["sha256"] != case["idle_sha256"], case["id"]
    assert f"{len(ids)} cases, 0 wrong".encode() in again.stderr


def test_seed_changes_every_digest_of_outputs(report):
    other = json.loads(sov.succeed("conform", "--backend", "cpu", "--quick", "--json", "--seed", 7,
                                   "--kernel", "embed").stdout)
    before = {case["id"]: case["sha256"] for case in json.loads(report.read_text())["cases"]}
    assert other["seed"] == 7 and len(other["cases"]) > 30
    assert all(case["sha256"] != before[case["id"]] for case in other["cases"])


def test_same_report_under_sanitizers(report):
    asan = sov.succeed("conform", "--backend", "cpu", "--quick", "--json",
                       program=sov.BUILD / "sov-asan")
    assert asan.stdout == report.read_bytes()


# --- reports checked ---

def test_report_passes(report, tmp_path):
    done = sov.succeed("conform", "--check", report, "--quick")
    n = len(json.loads(report.read_text())["cases"])
    assert f" {n} cases, 0 wrong".encode() in done.stdout and done.stderr == b""
    complete = tmp_path / "complete.json"
    complete.write_bytes(sov.succeed("conform", "--backend", "cpu", "--json").stdout)
    done = sov.succeed("conform", "--check", complete)
    assert b"not in the report" not in done.stdout


@pytest.mark.parametrize("member", ["sha256", "idle_sha256"])
def test_planted_digest_is_found(report, tmp_path, member):
    def plant(data):
        case = data["cases"][100]
        digest = case[member]
        case[member] = ("1" if digest[0] == "0" else "0") + digest[1:]
        plant.id = case["id"]

    path = rewritten(report, tmp_path / "planted.json", plant)
    done = sov.call("conform", "--check", path, "--quick")
    assert done.returncode == 4
    lines = [line for line in done.stderr.decode().splitlines() if line.startswith("wrong: ")]
    assert lines == [f"wrong: {plant.id}: the report has another {member} than the reference "
                     f"operators"]


def test_other_seed_in_the_report_is_found(report, tmp_path):
    path = rewritten(report, tmp_path / "seed.json", lambda data: data.update(seed=7))
    done = sov.call("conform", "--check", path, "--quick", "--kernel", "add")
    assert done.returncode == 4 and done.stderr.count(b"wrong: ") == 4


def test_unknown_and_missing_cases(report, tmp_path):
    path = rewritten(report, tmp_path / "unknown.json",
                     lambda data: data["cases"].append(dict(data["cases"][0], id="add rows=9")))
    done = sov.call("conform", "--check", path)
    n = len(json.loads(report.read_text())["cases"])
    assert done.returncode == 4
    assert f"has {n + 1} cases, of which this program knows {n}".encode() in done.stderr
    assert b"cases of this program are not in the report" in done.stdout
    path = rewritten(report, tmp_path / "order.json", lambda data: data["cases"].reverse())
    assert sov.call("conform", "--check", path, "--quick").returncode == 0


def test_changed_kernels_are_named(report, tmp_path):
    path = rewritten(report, tmp_path / "modules.json",
                     lambda data: data["modules"].update(gemv="0" * 64))
    done = sov.succeed("conform", "--check", path, "--quick", "--kernel", "add")
    assert b"the kernels of module gemv have changed since" in done.stdout
    assert done.stdout.count(b"changed since") == 1


@pytest.mark.parametrize("text", [b"", b"{}", b"[1, 2", b'{"format":"sov-conform-1"}',
                                  b'{"format":"sov-conform-1","seed":1,"cases":{}}',
                                  b'{"format":"sov-conform-2","seed":1,"cases":[]}', b"[]", b"3",
                                  b'{"format":"sov-conform-1","seed":"1","cases":[]}'])
def test_damaged_report_is_refused(tmp_path, text):
    path = tmp_path / "report.json"
    path.write_bytes(text)
    done = sov.call("conform", "--check", path)
    assert done.returncode == 3 and done.stderr.startswith(b"sov: "), done


@pytest.mark.parametrize("case", [b"1", b"{}", b'{"id":3}', b'{"id":"add rows=1 n=1 pad=1"}',
                                  b'{"id":"add rows=1 n=1 pad=1","sha256":"00"}'])
def test_damaged_case_is_no_agreement(tmp_path, case):
    path = tmp_path / "report.json"
    path.write_bytes(b'{"format":"sov-conform-1","seed":1,"cases":[' + case + b"]}")
    assert sov.call("conform", "--check", path).returncode == 4


@pytest.mark.parametrize("path", REPORTS, ids=[path.name for path in REPORTS])
def test_report_of_a_card_is_recomputed(path):
    """What a card computed is what the reference computes, for every case that it was given."""
    done = sov.call("conform", "--check", path)
    assert done.returncode == 0, done.stderr.decode()[:2000]
    data = json.loads(path.read_text())
    assert data["backend"] == "cuda" and data["card"] and data["driver"] and data["date"]
    n_exact = sum(case.get("profile") != "tensor" for case in data["cases"])
    assert 1 <= n_exact <= data["n_cases"] == len(data["cases"]) and data["n_wrong"] == 0
    assert f" {n_exact} cases, 0 wrong" in done.stdout.decode()
    if n_exact < data["n_cases"]:
        assert f"\n{data['n_cases'] - n_exact} cases are of the profile tensor" in done.stdout.decode()


# --- a card ---

def test_no_driver(tmp_path):
    """A file of that name that is no library, so that a driver of this machine is not found."""
    (tmp_path / "libcuda.so.1").write_bytes(b"\x7fELF\x02\x01\x01 no more")
    done = sov.call("conform", env={"LD_LIBRARY_PATH": str(tmp_path)})
    assert done.returncode == 3 and done.stdout == b""
    assert b"sov: CUDA needs the NVIDIA driver: library libcuda.so.1: " in done.stderr
    done = sov.call("conform", program=sov.BUILD / "sov-static")
    assert done.returncode == 3 and b"this one is static" in done.stderr


@pytest.mark.parametrize("variables, message", [
    ({"STANDIN_DEVICES": "0"}, b"it sees no CUDA device"),
    ({"STANDIN_VERSION": "11070"}, b"driver is too old"),
    ({"STANDIN_CAPABILITY": "86"}, b"8.6"),
])
def test_no_card_of_use(variables, message):
    done = with_standin(**variables)
    assert done.returncode == 3 and message in done.stderr, done.stderr


def test_driver_that_executes_nothing_is_wrong(report):
    """Every case, since no block says that it is done; but what is idle stays as it was, and so its
    digests are those of the reference."""
    done = with_standin("--quick", "--json")
    assert done.returncode == 1, done.stderr
    data = json.loads(done.stdout)
    assert data["card"] == "Stand-in 0" and data["cuda"] == "12.4"
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", data["date"])
    assert data["n_wrong"] == data["n_cases"] == len(data["cases"])
    assert done.stderr.count(b": active: ") == data["n_cases"]
    expected = json.loads(report.read_text())
    data["cases"] = [case for case in data["cases"] if "profile" not in case]
    assert [case["idle_sha256"] for case in data["cases"]] == \
        [case["idle_sha256"] for case in expected["cases"]]
    assert [case["id"] for case in data["cases"]] == [case["id"] for case in expected["cases"]]


def on_executing_standin(*arguments, **variables):
    return with_standin(*arguments, STANDIN_EXECUTE="1", STANDIN_MEMORY="256", **variables)


def test_driver_that_computes_is_right(tmp_path):
    """A stand-in that executes every kernel by the reference operators: nothing is wrong, and the
    digests of its report are those of a report of the reference."""
    done = on_executing_standin("--json")
    assert done.returncode == 0, done.stderr.decode()[:2000]
    data = json.loads(done.stdout)
    assert data["n_wrong"] == 0 and data["n_cases"] == len(data["cases"]) > 900
    path = tmp_path / "standin.json"
    path.write_bytes(done.stdout)
    checked = sov.succeed("conform", "--check", path).stdout
    tensor = [case for case in data["cases"] if case.get("profile") == "tensor"]
    assert b"not in the report" not in checked and len(tensor) == 336
    assert b"336 cases are of the profile tensor" in checked
    assert all(case["architecture"] == "9.0" and 0 <= case["bound_share"] <= 1 for case in tensor)
    assert any(case["bound_share"] > 0 for case in tensor)


def test_tensor_bytes_that_depend_on_the_kernel_are_found():
    """The last bit of an element: within the bound, but not what the type's other kernel has. And an
    exponent, which is not."""
    done = on_executing_standin("--kernel", "gemm_tensor_q8_0", STANDIN_PLANT="gemm_tensor_q8_0_8:5:3")
    found = [line for line in done.stderr.decode().splitlines()
             if line.startswith("wrong: gemm_tensor_q8_0_8 real_k=")]
    assert done.returncode == 1 and len(found) == 14
    assert all("active: out, byte " in line for line in found), found
    done = on_executing_standin("--kernel", "gemm_tensor_f16", STANDIN_PLANT="gemm_tensor_f16:5:0")
    assert done.returncode == 1
    found = [line for line in done.stderr.decode().splitlines()
             if line.startswith("wrong: gemm_tensor_f16_8 real_k=")]
    assert len(found) >= 10 and all("active: other kernel's, byte 0 of " in line for line in found)


# The address of which parameter, and how many bytes behind it, is written to; what is said of it.
PLANTS = [
    ("gemv_q4_0_1", "8:0", {}, "active: out, byte 0 of "),
    ("gemm_q6_k", "8:-1", {}, "active: a guard, byte "),
    ("embed_f16", "3:1", {}, "active: table, byte 1 of "),
    ("rmsnorm_fused", "1:0", {}, "active: status, byte 0 of 8"),
    ("flash_attention_merge", "1:4", {}, "active: status, byte 4 of 8"),
    ("kv_append", "4:0", {"STANDIN_PLANT_IDLE": "1"}, "power not active: cache_k, byte 0 of "),
]


@pytest.mark.parametrize("kernel, place, variables, words", PLANTS,
                         ids=[f"{plant[0]}:{plant[1]}" for plant in PLANTS])
def test_kernel_that_computes_wrongly_is_found(kernel, place, variables, words):
    """Each case of that kernel but those that are refused, where an output is of no account; and
    no other kernel's, but of launches that the kernel is part of."""
    done = on_executing_standin("--quick", STANDIN_PLANT=f"{kernel}:{place}", **variables)
    assert done.returncode == 1, done.stderr
    found = [line for line in done.stderr.decode().splitlines() if line.startswith("wrong: ")]
    own = [line for line in found if line.startswith(f"wrong: {kernel} ")]
    rows = {row.split()[0]: row.split()[1:] for row in done.stdout.decode().splitlines()[:-1]}
    assert len(own) == int(rows[kernel][1]) >= 3 and all(words in line for line in own)
    others = {line.split()[1] for line in found} - {kernel}
    assert others == ({"flash_attention_paged_split"} if kernel == "flash_attention_merge" else set())


# --- the command ---

@pytest.mark.parametrize("arguments", [["--backend", "gpu"], ["--kernel", "no_such"],
                                       ["--check", "x.json", "--json"],
                                       ["--check", "x.json", "--backend", "cuda"], ["more"]])
def test_usage(arguments):
    assert sov.call("conform", *arguments).returncode == 2


def test_table():
    done = sov.succeed("conform", "--backend", "cpu", "--kernel", "rope")
    lines = done.stdout.decode().splitlines()
    assert lines[0].split() == ["kernel", "cases", "wrong"]
    assert [line.split()[0] for line in lines[1:3]] == ["rope_fused", "rope_fused_neox"]
    assert lines[3].startswith("2 kernels, ") and lines[3].endswith(
        "0 wrong; reference operators, seed 20261130")
