"""Tests of the control of a fleet with real control services, of which some are dead, silent or slow."""

from __future__ import annotations

from pathlib import Path

import pytest
from waiting import wait_until

from loadtests.fleet.measure import SLOW_SECONDS, Tables, fleet, platform
from loadtests.fleet.servers import CHECKPOINT
from scorer.release.model import Actor

ADMIN = Actor("root", admin=True)


@pytest.mark.timeout(240)
def test_tables_reach_the_servers_that_respond_while_others_are_sick(tmp_path: Path) -> None:
    (tmp_path / "fleet").mkdir()
    with (
        fleet(tmp_path / "fleet", servers=9, sick=3, tables=3) as own,
        platform(tmp_path, own) as services,
    ):
        closed, silent, slow = list(own.controls)[6:]
        tables = Tables(own, services)
        tables.settle()
        reached = [tables.stage(), tables.revise(), tables.stage()]
        # The next table was recorded as soon as these six had the last one, so none of them waited for the
        # server that loads for 20 s, or for the one that never responds.
        for one in reached:
            assert set(one.seconds) == set(own.healthy)
        tables.settle()

        # The page shows each failure with its reason.
        def errors() -> dict[str, str]:
            view = services.service.checkpoints.view(ADMIN, CHECKPOINT)
            return {one.name: one.error for one in view.members}

        wait_until(lambda: errors()[silent], "the silent server to be shown")
        shown = errors()
        assert "does not respond" in shown[closed]
        assert silent in shown[silent] and "respon" in shown[silent]
        assert not any(shown[name] for name in own.healthy)
        view = services.service.checkpoints.view(ADMIN, CHECKPOINT)
        in_step = {one.name: one.in_step for one in view.members}
        assert all(in_step[name] for name in own.healthy)
        assert not in_step[closed] and not in_step[silent]
        # The slow server gets the newest table when it has loaded its bundles.
        wait_until(
            lambda: slow in tables.in_sync(), "the slow server to be in sync", seconds=6 * SLOW_SECONDS
        )
