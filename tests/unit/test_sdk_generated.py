"""Tests that the SDK's generated operations are those that the REST API declares."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def test_the_generated_operations_equal_those_of_the_rest_api() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/gen_sdk.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
