"""Tests that a freeze stops the learning loop and the overlay, through a platform over REST."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from browser import serving
from fleet import FakeFleet
from loops import AS_OF, DAY, POINT, START, make_loop, write_log

from scorer.commands.learn.requests import PlatformRequests
from scorer.learn import settings as learn_settings
from scorer.learn.schedule.generation import run_generation
from scorer.learn.schedule.overlay import run_overlay
from scorer.learn.schedule.workspace import Workspace
from scorer.registry import Registry
from scorer.release.fleet import Member
from scorer.release.lanes import recorded
from scorer.release.model import ChangeKind, ChangeState, Role
from scorer.release.open import PlatformServices, open_service
from scorer.release.requests import NewFreeze, NewPermission
from scorer.release.settings import PlatformFile
from scorer.sdk import PlatformClient
from scorer.web.app import create_app

PLATFORM = f"""
[platform]
database = "platform.sqlite"
registry = "registry"
[[fleet]]
name = "live-1"
control = "127.0.0.1:1"
[checkpoints."{POINT}"]
alias = "small@live"
minutes = 10.0
"""


class Loop:
    """A learning loop in a folder, and the platform that manages its checkpoint."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.now = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
        self.registry = Registry(base / "registry")
        self.first = self.registry.resolve("small@live").digest
        self.fleet = FakeFleet(
            [Member("live-1", "")], checkpoints={POINT: "action"}, answer={POINT: self.first}
        )
        settings = PlatformFile.parse(PLATFORM, base=base)
        self.platform: PlatformServices = open_service(settings, fleet=self.fleet, now=lambda: self.now)
        service = self.platform.service
        _, self.admin_token = service.access.bootstrap("admin")
        self.admin = service.access.authenticate(self.admin_token)
        service.access.create_project(self.admin, "routing", "Routing")
        service.access.set_member(self.admin, "routing", "loop", Role.MODELER)
        _, self.token = service.access.create_token(self.admin, user="loop", label="loop", role=Role.MODELER)
        self.platform.tick()

    def grant(self, kind: ChangeKind) -> None:
        self.platform.service.permissions.grant(
            self.admin,
            "routing",
            NewPermission(kind=kind, checkpoint=POINT, user="loop", days=30, reason="weekly", max_shift=5.0),
        )

    def freeze(self, minutes: int) -> None:
        at = self.now
        self.platform.service.calendar.add_freeze(
            self.admin,
            NewFreeze(
                name="peak",
                kind="deny",
                cron=f"{at.minute} {at.hour} {at.day} {at.month} *",
                timezone="UTC",
                minutes=minutes,
            ),
        )

    def tick(self, minutes: int) -> None:
        for _ in range(minutes):
            self.now += timedelta(minutes=1)
            self.platform.tick()

    def overlay(self, day: float, client: PlatformClient) -> Any:
        settings = learn_settings.load(self.base / "learn.toml")
        requests = PlatformRequests(client, "routing", POINT)
        workspace, moment = Workspace(self.base / "work"), START + round(day * DAY)
        (*_, last) = run_overlay(workspace, settings, self.base, as_of_ms=moment, requests=requests).steps
        return last.says

    def generation(self, client: PlatformClient) -> Any:
        settings = learn_settings.load(self.base / "learn.toml")
        requests = PlatformRequests(client, "routing", POINT)
        workspace = Workspace(self.base / "work")
        (*_, last) = run_generation(workspace, settings, self.base, as_of_ms=AS_OF, requests=requests).steps
        return last.says

    def state(self) -> tuple[Any, ...]:
        """Return everything that affects answers."""
        held = self.fleet.held("live-1")
        with self.platform.store.read() as connection:
            newest = recorded.newest(connection, POINT)
        return (
            held.version,
            held.checkpoints[POINT].answer,
            newest and newest.revision,
            self.registry.resolve("small@live").digest,
        )

    def answers(self) -> str:
        (lane,) = self.fleet.held("live-1").checkpoints[POINT].answer
        return lane.bundle


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_loop(tmp_path_factory.mktemp("loop"))


@pytest.fixture
def loop(template: Path, tmp_path: Path) -> Iterator[Loop]:
    loop = Loop(shutil.copytree(template, tmp_path / "base"))
    yield loop
    loop.platform.close()


def test_nothing_changes_between_the_start_and_the_end_of_a_freeze(loop: Loop) -> None:
    """The overlay and a generation try to publish during the freeze. Both continue after it."""
    path = loop.registry.resolve("small@live").path
    assert path is not None
    write_log(
        loop.base / "decisions", path, rows=1500, seed=5, segment=2, first_day=15.2, days=2.0, turned=True
    )
    with (
        serving(create_app(loop.platform, loop.platform.settings)) as url,
        PlatformClient(url, loop.token) as client,
    ):
        assert "no standing permission" in loop.overlay(17.4, client)["waits"]
        assert loop.answers() == loop.first

        loop.grant(ChangeKind.OVERLAY)
        loop.grant(ChangeKind.RELEASE)
        report = loop.overlay(17.5, client)
        assert report["state"] == "checks", report
        loop.tick(8)
        published = loop.answers()
        assert published == report["digest"] != loop.first
        assert loop.registry.resolve("small@live").digest == published

        loop.freeze(minutes=60)
        before = loop.state()
        for day in (17.6, 17.7):
            report = loop.overlay(day, client)
            assert 'is frozen by "peak"' in report["waits"], report
            loop.tick(10)
        report = loop.generation(client)
        assert report["decision"] in ("promote", "mix", "wait"), report
        loop.tick(30)
        assert loop.state() == before, "a freeze delays every change of the answers"

        loop.tick(15)
        report = loop.overlay(17.8, client)
        loop.tick(8)
        assert loop.answers() == report["digest"] != published


def test_a_verdict_becomes_a_change_request_with_its_evidence(loop: Loop) -> None:
    with (
        serving(create_app(loop.platform, loop.platform.settings)) as url,
        PlatformClient(url, loop.token) as client,
    ):
        before = loop.state()
        report = loop.generation(client)
        assert report["decision"] == "promote", "a candidate passes the gates on this log"
        requested = report["requested"]
        assert requested["state"] == "draft"
        assert "no standing permission" in requested["waits"]
        change = loop.platform.service.changes.get(loop.admin, requested["change"]).change
        assert (change.kind, change.created_by, change.bundle) == (
            ChangeKind.RELEASE,
            "loop",
            report["digest"],
        )
        assert change.evidence is not None
        assert change.evidence["decision"] == "promote"
        loop.tick(5)
        assert loop.state() == before, "a draft changes nothing"

        loop.grant(ChangeKind.RELEASE)
        record = loop.base / "work"
        (step,) = record.rglob("publish.step.json")
        step.unlink()  # the same generation publishes a second time
        again = loop.generation(client)["requested"]
        assert (again["change"], again["state"], again["waits"]) == (change.id, "checks", "")
        loop.tick(40)
        result = loop.platform.service.changes.get(loop.admin, change.id).change
        assert result.state is not ChangeState.RELEASED, "the change request waits for an approver"
        assert loop.answers() == loop.first


def test_a_loop_that_moves_the_alias_changes_nothing_at_a_managed_checkpoint(loop: Loop) -> None:
    """The loop is not configured for the platform. The server reports the alias as drift."""
    settings = learn_settings.load(loop.base / "learn.toml")
    run_generation(Workspace(loop.base / "work"), settings, loop.base, as_of_ms=AS_OF)
    moved = loop.registry.resolve("small@live").digest
    assert moved != loop.first
    held = loop.fleet.held("live-1").checkpoints[POINT]
    assert held.managed_by == "platform"
    loop.fleet.drift("live-1", POINT, moved)
    loop.tick(2)
    assert loop.answers() == loop.first
    entries = loop.platform.service.audit.entries(loop.admin, action="alias.drift")
    assert json.loads(json.dumps(dict(entries[0].details)))["digest"] == moved
