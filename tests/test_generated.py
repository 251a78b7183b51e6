# SPDX-License-Identifier: Apache-2.0
"""Committed files that a script generates are what the script generates today."""
import subprocess
import sys
from pathlib import Path

import pytest

import sov


def test_unicode_tables():
    if not Path("/usr/share/unicode/UnicodeData.txt").exists():
        pytest.skip("Debian's unicode-data is not installed")
    subprocess.run([sys.executable, "tools/gen_unicode_tables.py", "--check"], cwd=sov.ROOT,
                   check=True)


def test_math_vectors(tmp_path):
    committed = (sov.ROOT / "tests/math_vectors.h").read_text()
    done = subprocess.run([sys.executable, "tools/gen_math_vectors.py"], cwd=sov.ROOT, check=True,
                          stdout=subprocess.PIPE, text=True)
    assert done.stdout == committed
