"""Tests of ``swap``, ``lanes``, ``rollback`` and ``unmanage`` at a managed checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from control_server import Served
from control_world import FRAUD
from servers import Outcome, scorer_in_process

from scorer.release.errors import RefusedError
from scorer.release.fleet import Fleet, Member, StaleError
from scorer.release.model import LaneSpec


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path)
    try:
        yield served
    finally:
        served.close()


def cli(served: Served, *arguments: str) -> Outcome:
    return scorer_in_process(*arguments, "--address", served.address)


def test_other_callers_change_a_managed_checkpoint_only_by_break_glass(served: Served) -> None:
    member = Member("live-1", served.address)
    fleet, other = Fleet([member]), Fleet([member], platform="other")
    b = served.world.push("b")
    try:
        fleet.manage(member, FRAUD)
        status = fleet.status(member)
        assert status.checkpoints is not None
        assert status.checkpoints[FRAUD].managed_by == "platform"
        with pytest.raises(RefusedError, match='managed by the platform "platform"'):
            other.manage(member, FRAUD)
        lanes = [LaneSpec("live", b, share=1.0)]
        with pytest.raises(RefusedError):
            other.set_answer(member, FRAUD, lanes, reason="")
        with pytest.raises(StaleError, match="and the change was decided on 7"):
            fleet.set_answer(member, FRAUD, lanes, reason="", expected=7)

        for command in (("swap", FRAUD, b), ("lanes", FRAUD, f"live={b}:1"), ("rollback", FRAUD)):
            refused = cli(served, *command)
            assert refused.returncode != 0
        assert "--break-glass with a --reason" in cli(served, "swap", FRAUD, b).stderr
        assert "takes a --reason" in cli(served, "swap", FRAUD, b, "--break-glass").stderr
        done = cli(served, "swap", FRAUD, b, "--break-glass", "--reason", "the platform is down")
        assert done.returncode == 0, done.stderr
        shown = cli(served, "status").stdout
        assert "managed by platform" in shown
        assert "BREAK GLASS" in shown
        assert "the platform is down" in shown
        glass = fleet.status(member).checkpoints[FRAUD].break_glass  # type: ignore[index]
        assert glass is not None
        assert glass.reason == "the platform is down"

        assert cli(served, "unmanage", FRAUD).returncode != 0
        ended = cli(served, "unmanage", FRAUD, "--break-glass", "--reason", "it is retired")
        assert ended.returncode == 0, ended.stderr
        assert "managed by" not in ended.stdout
        assert cli(served, "rollback", FRAUD).returncode == 0
    finally:
        fleet.close()
        other.close()
