"""Tests of drift on the platform: alerts reach audit, events and channels once; pages, REST and metrics."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import FEATURES
from drifting import HOUR_US, START, Change, FakeLog, fill
from logs import write_segment
from platforms import SETTINGS, World
from sqlalchemy import select

from scorer.events import EventLog
from scorer.release.errors import InvalidError, NotFoundError
from scorer.release.model import Role
from scorer.release.store import tables as t
from scorer.v1.log_pb2 import DecisionRecord, LogRecord

CHECKPOINT = "fraud.checkout"
DAYS = 26
NOW = datetime.fromtimestamp((START + DAYS * 24 * HOUR_US) / 1e6, UTC)
CONFIGURED = (
    SETTINGS.replace('control = "127.0.0.1:1"', 'control = "127.0.0.1:1"\nlog = "live-1-log"')
    + """
[drift]
reference_rows = 500
[drift.detection]
windows_hours = [24]
weeks = 2
history_days = 7
least_rows = 200
"""
)


class Lines:
    """A stream of events, as parsed lines."""

    def __init__(self) -> None:
        self._buffer = io.BytesIO()

    def write(self, data: bytes, /) -> object:
        return self._buffer.write(data)

    def flush(self) -> None:
        pass

    def of(self, event: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self._buffer.getvalue().splitlines()]
        return [line for line in lines if line["event"] == event]


def write_log(folder: Path, digest: str, change: Change) -> None:
    """Write the payments of all days as one segment of a log, with the features of a built bundle."""
    log, random = FakeLog(), np.random.default_rng(4)
    fill(log, DAYS, change)
    payloads = []
    for entry in log.entries:
        record = LogRecord()
        getattr(record, entry.kind).CopyFrom(entry.record)
        if entry.kind == "decision":
            own: DecisionRecord = record.decision
            own.bundle = bytes.fromhex(digest.removeprefix("sha256:"))
            rest = random.normal(size=len(FEATURES) - 1)
            own.ClearField("features")
            own.features.extend([entry.record.features[0], *rest.tolist()])
        payloads.append(record.SerializeToString())
    write_segment(folder, 0, 1, payloads)


def read_all(world: World) -> None:
    """Check until all records are read; a check ends after about a second."""
    for _ in range(120):
        world.service.drift.check()
        if world.service.drift.drift(world.actor("viewer"), CHECKPOINT).lanes:
            return
    pytest.fail("no hour was looked at after 120 checks")


@pytest.fixture(scope="module")
def events() -> Lines:
    return Lines()


@pytest.fixture(scope="module")
def world(
    tmp_path_factory: pytest.TempPathFactory, built_bundles: dict[str, Path], events: Lines
) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("drift")
    world = World(directory, built_bundles, now=lambda: NOW, settings=CONFIGURED, events=EventLog(events))
    owner = world.actor("owner")
    world.service.notifications.add_channel(owner, "fraud", "json://127.0.0.1:9/drift")
    write_log(directory / "live-1-log", world.live, Change(24, amount=5.0))
    read_all(world)
    yield world
    world.platform.close()


def test_an_alert_is_reported_once(world: World, events: Lines) -> None:
    world.service.drift.check()
    (event,) = events.of("drift_alert")
    assert event["checkpoint"] == CHECKPOINT
    assert f"feature {FEATURES[0]}: share of" in event["cause"]
    entries = world.service.audit.entries(world.actor("admin"), action="drift.alert")
    assert len(entries) == 1
    # The scores of these payments are not those that the bundle was built with.
    assert entries[0].details["quantities"] == [f"feature:{FEATURES[0]}", "score"]
    with world.platform.store.read() as connection:
        rows = connection.execute(select(t.outbox.c.subject, t.outbox.c.key)).all()
    assert [row.subject for row in rows] == [f"drift at {CHECKPOINT}, lane live"]


def test_members_see_lanes_alerts_and_days(world: World) -> None:
    found = world.service.drift.drift(world.actor("viewer"), CHECKPOINT)
    assert found.notes == ()
    (lane,) = found.lanes
    assert (lane.lane, lane.role, lane.at) == ("live", "answer", NOW)
    assert {one.quantity for one in lane.quantities[:2]} == {f"feature:{FEATURES[0]}", "score"}
    assert lane.performance is not None
    (alert,) = found.alerts
    assert "rose from" in alert.summary
    history = world.service.drift.history(
        world.actor("viewer"), CHECKPOINT, days=5, quantity=f"feature:{FEATURES[0]}"
    )
    overview, course, shares = history.figures
    assert {row[0] for row in overview.rows} == {row[0] for row in course.rows}
    psi = [row[1] for row in course.rows]
    assert max(psi[-2:]) > 10 * max(psi[:2])
    assert sum(row[1] for row in shares.rows) == pytest.approx(1)
    assert sum(row[2] for row in shares.rows) == pytest.approx(1)


def test_unknown_lanes_quantities_and_checkpoints_are_refused(world: World) -> None:
    drift, viewer = world.service.drift, world.actor("viewer")
    with pytest.raises(NotFoundError, match=r'no lane "x" of .* was looked at; there are live'):
        drift.history(viewer, CHECKPOINT, lane="x")
    with pytest.raises(InvalidError, match='no quantity "feature:x"'):
        drift.history(viewer, CHECKPOINT, quantity="feature:x")
    with pytest.raises(InvalidError, match="days is 91; give 1 to 90"):
        drift.history(viewer, CHECKPOINT, days=91)
    with pytest.raises(NotFoundError, match="no checkpoint"):
        drift.drift(viewer, "fraud.other")
    access, root = world.service.access, world.actor("admin")
    access.create_project(root, "far", "Far", checkpoints=["action.authorise"])
    access.set_member(root, "far", "stranger", Role.VIEWER)
    _, token = access.create_token(root, user="stranger", label="t", role=Role.VIEWER)
    with pytest.raises(NotFoundError, match="no checkpoint"):
        drift.drift(access.authenticate(token), CHECKPOINT)


def test_metrics_have_alerts_and_shifted_quantities(world: World) -> None:
    lines = world.platform.metrics()
    place = f'{{checkpoint="{CHECKPOINT}",lane="live"}}'
    assert f"scorer_platform_drift_alerts_total{place} 1" in lines
    assert any(line.startswith(f"scorer_platform_drift_shifted{place} ") for line in lines)


def test_the_page_the_downloads_and_the_sdk_have_the_figures(world: World) -> None:
    import httpx

    from scorer.sdk import PlatformClient

    with world.served() as url, PlatformClient(url, token=world.tokens["viewer"]) as client:
        found = client.drift(CHECKPOINT)
        assert found.alerts[0].lane == "live"
        history = client.drift_history(CHECKPOINT, days=7)
        assert [one.name for one in history.figures] == ["overview", "course", "shares"]
        with httpx.Client(base_url=url, timeout=60) as browser:
            text = browser.get("/login").text
            csrf = text.split('name="csrf" value="')[1].split('"')[0]
            answer = browser.post("/login", data={"csrf": csrf, "token": world.tokens["viewer"]})
            # The platform's time is that of the records, so the cookie of the session has expired here.
            browser.headers["cookie"] = answer.headers["set-cookie"].split(";")[0]
            page = browser.get(f"/checkpoints/{CHECKPOINT}/drift", params={"days": 7})
            assert page.status_code == 200
            assert f"feature {FEATURES[0]}: share of" in page.text
            assert "Drift of all quantities" in page.text
            csv = browser.get(f"/checkpoints/{CHECKPOINT}/drift/figures/course.csv")
            assert csv.text.splitlines()[0] == "day,psi,threshold,rate"
            assert browser.get(f"/checkpoints/{CHECKPOINT}/drift/figures/x.csv").status_code == 404
