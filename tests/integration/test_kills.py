"""Change requests through real processes of server, shadow pool and platform, which are killed by SIGKILL.

The gates are the product's own, on the decisions that the server recorded. A killed process loses its
memory, not what the kernel holds for it: power loss is covered by the simulated file system of
rust/log/tests/faults.rs.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtests.kills import Run

# Minimum number of kills during the six change requests, without which the run proves nothing.
LEAST_KILLS = 3


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_kills_lose_no_change_request_and_release_none_without_its_gates(tmp_path: Path) -> None:
    run = Run(tmp_path, changes=6, seed=1)
    assert run.run(seconds=600) == []
    assert len(run.known) >= 6
    assert run.answered > 0
    assert run.kills >= LEAST_KILLS, run.counted
