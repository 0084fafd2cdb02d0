"""Tests of the platform's log, metrics and threads when errors occur."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from changing import CHECKPOINT, World, digest
from fakes import RecordedEvents
from platforms import World as Platforms

from scorer.events import EventLog
from scorer.release.changes.writer import writing
from scorer.release.errors import PlatformError
from scorer.release.lanes import recorded
from scorer.release.lanes.alerts import Alerts
from scorer.release.model import LaneSpec
from scorer.release.notify import sending


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(f"sqlite:///{tmp_path}/platform.db")
    yield world
    world.store.close()


def test_lost_and_returned_servers_and_transitions_are_logged(world: World) -> None:
    lines = RecordedEvents()
    log = EventLog(lines)
    world.reconciler._alerts = Alerts(world.audit, world.notifications, log, now=lambda: world.now)
    world.parts.events = log
    world.tick()
    world.fleet.disconnect("live-2")
    world.tick()
    world.tick()
    world.fleet.reconnect("live-2")
    world.tick()
    assert [line["server"] for line in lines.named("server_lost")] == ["live-2"]
    assert [line["server"] for line in lines.named("server_back")] == ["live-2"]
    change = world.test("good-1")
    (move,) = lines.named("change_moved")
    assert (move["change"], move["move"], move["state"], move["actor"]) == (
        change.id,
        "submit",
        "checks",
        "ada",
    )


def test_a_transition_of_a_rolled_back_transaction_is_not_logged(world: World) -> None:
    lines = RecordedEvents()
    world.parts.events = EventLog(lines)
    world.tick()
    draft = world.changes.draft(world.ada, world.draft_of("good-1"))
    with pytest.raises(ZeroDivisionError), writing(world.parts, draft, world.ada) as work:
        work.move("submit", "x", step="package")
        _ = 1 / 0
    assert lines.named("change_moved") == []


def test_the_leader_is_logged_once(tmp_path: Path, built_bundles: dict[str, Path]) -> None:
    platforms = Platforms(tmp_path, built_bundles)
    lines = RecordedEvents()
    platform = platforms.platform
    platform._events = EventLog(lines)
    platform.leads, platform._renewed = False, None
    threads = [threading.Thread(target=platform._is_leader) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(lines.named("leads")) == 1
    platforms.service.bundles._events = EventLog(lines)
    with pytest.raises(PlatformError):
        platforms.service.bundles.upload(platforms.actor("modeler"), "fraud", io.BytesIO(b"no archive"))
    (line,) = lines.named("upload_rejected")
    assert (line["user"], line["project"]) == ("modeler", "fraud")
    result = {
        text.partition(" ")[0]: text.partition(" ")[2]
        for text in platform.metrics()
        if not text.startswith("#")
    }
    assert result['scorer_platform_server_reachable{server="live-1"}'] == "1"
    assert result['scorer_platform_break_glass_total{checkpoint="fraud.checkout"}'] == "0"
    platforms.close()


def test_break_glass_changes_are_counted(world: World) -> None:
    world.tick()
    world.tick()
    lanes = [LaneSpec("live", digest("other-1"), share=1.0)]
    world.fleet.break_glass("live-1", CHECKPOINT, lanes, by="ops", reason="down", at=world.now)
    world.tick(1)
    with world.store.read() as connection:
        assert recorded.count(connection, recorded.BREAK_GLASS) == {CHECKPOINT: 1}


def test_the_number_of_threads_that_never_end_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "_SLOTS", threading.BoundedSemaphore(2))
    let_go = threading.Event()
    started: list[Any] = []

    def stuck() -> None:
        started.append(1)
        let_go.wait(60)

    for _ in range(2):
        with pytest.raises(sending.NotSentError, match="did not finish"):
            sending._within(0.05, stuck)
    with pytest.raises(sending.NotSentError, match="earlier messages are still being sent"):
        sending._within(0.05, stuck)
    assert len(started) == 2
    let_go.set()
    assert json.dumps(started) == "[1, 1]"
