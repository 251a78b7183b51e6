# SPDX-License-Identifier: Apache-2.0
"""Running the program under test: paths, models, and one call per command. Tests that need what is
not there skip aloud. Whoever imports this has a state folder of his own."""
import atexit
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
SOV = BUILD / "sov"
GOLDEN = Path(os.environ.get("SOV_TEST_GOLDEN", ROOT.parent / "shared/golden"))
FULL = "SOV_TEST_FULL" in os.environ
# Records of test runs, and digests of models, are not the user's; every program started inherits it.
STATE = Path(tempfile.mkdtemp(prefix="sov-state-"))
os.environ["XDG_STATE_HOME"] = str(STATE)
atexit.register(shutil.rmtree, STATE, ignore_errors=True)
VARIABLES = {"smollm2": "SOV_MODEL", "gemma3": "SOV_MODEL_GEMMA"}


def model(name):
    path = os.environ.get(VARIABLES[name])
    if not path or not Path(path).exists():
        pytest.skip(f"{VARIABLES[name]} names no model file")
    return path


def golden(name):
    path = GOLDEN / name
    if not path.exists():
        pytest.skip(f"no reference data at {path}")
    return path


def golden_json(name):
    return json.loads(golden(name).read_text())


def call(*arguments, program=SOV, stdin=b"", timeout=300, **options):
    if not Path(program).exists():
        pytest.skip(f"{program} is not built")
    return subprocess.run([str(program), *map(str, arguments)], input=stdin, timeout=timeout,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def succeed(*arguments, **options):
    done = call(*arguments, **options)
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr.decode()}"
    return done


def run_json(model_path, *arguments, **options):
    return json.loads(succeed("run", "-m", model_path, "--json", *arguments, **options).stdout)
