"""Some change requests through server, shadow pool and platform, all of which are killed all the time."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtests.kills import Run


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nothing_is_lost_and_nothing_released_without_its_gates(tmp_path: Path) -> None:
    run = Run(tmp_path, changes=6, seed=1)
    assert run.run(seconds=600) == []
    assert len(run.known) >= 6
    assert run.answered > 0
    assert sum(count for what, count in run.counted.items() if what.startswith("killed")) > 0
