"""connectconformance's cases for gRPC against a test service behind the server's own HTTP layers.

The service is `rust/http/examples/connectrpc`.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import components
import pytest
from waiting import PATIENCE

HERE = Path(__file__).parent
CASES = 198


@pytest.mark.fault_case(33)
def test_every_connect_case_has_the_expected_result() -> None:
    program = components.require_program("connectconformance")
    service = components.require_program("connectrpc-server")
    done = subprocess.run(
        [program, "--mode", "server", "--conf", HERE / "connect.yaml", "--", service],
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    counted = re.search(r"Total cases: (\d+)\n(\d+) passed", done.stdout + done.stderr)
    assert counted is not None, done.stdout + done.stderr
    assert [int(count) for count in counted.groups()] == [CASES, CASES]
