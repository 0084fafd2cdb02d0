"""The overlay that is fitted from what is new is the one that is fitted on everything, bit for bit."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from joining import HOUR, POINT, START, delivery
from lakes import lake_source, ship_logs
from learning import contexts, small_task
from logs import write_segment
from loops import make_loop

from scorer.bundle import Inspection, inspect, revise
from scorer.bundle.models import OverlaySpec
from scorer.errors import ScorerError
from scorer.learn.join.joining import join
from scorer.learn.join.settings import JoinSettings
from scorer.learn.overlay import incremental
from scorer.learn.overlay.incremental import OverlayInputs, Updated, update
from scorer.learn.overlay.live import oracle_scores
from scorer.learn.overlay.settings import OverlaySettings
from scorer.learn.overlay.stream import Fitted, fit
from scorer.log import BundleShelf
from scorer.log.source.directories import log_directories
from scorer.log.source.interface import DecisionSource
from scorer.v1.log_pb2 import DecisionRecord, LogRecord, OutcomeRecord, WithdrawnRecord

DAY = 24 * HOUR
OVERLAY = OverlaySettings(
    segment="country", family="route", window_hours=20.0, half_life_outcomes=200.0, harm=20.0, quicker=4.0
)


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle, and its revision with an overlay."""
    base = make_loop(tmp_path_factory.mktemp("loop"))
    spec = OverlaySpec(segment="country", limit=2.0, everywhere={"route": {"A": 0.5}}, segments={})
    revise(base / "first", base / "second", overlay=spec)
    return base


@dataclass
class World:
    """Logs of servers that grow from run to run.

    Attributes:
        loop: The bundles.
        folder: Where the logs are.
        random: Draws everything.
        servers: Number of logs.
    """

    loop: Path
    folder: Path
    random: np.random.Generator
    servers: int
    now_ms: int = START
    number: int = 0
    bundles: dict[str, Inspection] = field(init=False)
    waiting: list[tuple[int, int, bytes]] = field(default_factory=list)
    written: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.bundles = {name: inspect(self.loop / name) for name in ("first", "second")}

    def paths(self) -> dict[str, Path]:
        return {f"server-{at}": self.folder / f"server-{at}" for at in range(self.servers)}

    def grow(self, hours: float, monkeypatch: pytest.MonkeyPatch) -> None:
        """Write the records of some hours: decisions, retries, outcomes that are late, revised, withdrawn."""
        end = self.now_ms + round(hours * HOUR)
        segments = sorted((self.folder / "server-0").glob("*.seg"))
        if len(segments) > 2 and self.random.random() < 0.5:
            # Retention removes the oldest segment.
            segments[0].unlink()
        count = int(self.random.integers(20, 160))
        for at in sorted(self.random.integers(self.now_ms, end, count).tolist()):
            self._decide(at)
        due = sorted(one for one in self.waiting if one[0] < end)
        self.waiting = [one for one in self.waiting if one[0] >= end]
        records: dict[int, list[bytes]] = {server: [] for server in range(self.servers)}
        for _, server, payload in due:
            records[server].append(payload)
        for server, payloads in records.items():
            known = self.written.setdefault(server, [])
            first = 1 + sum(known)
            if payloads and self.random.random() < 0.3:
                # A record is withdrawn that an earlier run may have read.
                target = int(self.random.integers(max(first - 30, 1), first + len(payloads)))
                withdrawn = WithdrawnRecord(sequence=target, checkpoint=POINT, decision_id="d")
                payloads.append(LogRecord(withdrawn=withdrawn).SerializeToString())
            monkeypatch.setattr("logs.LOG", bytes([server + 1]) * 16)
            write_segment(self.folder / f"server-{server}", len(known) + 1, first, payloads, sealed=True)
            known.append(len(payloads))
        self.now_ms = end

    def _decide(self, at_ms: int) -> None:
        self.number += 1
        bundle = self.bundles["second" if self.random.random() < 0.3 else "first"]
        actions = [action.id for action in bundle.actions]
        taken, name = int(self.random.integers(len(actions))), f"d{self.number}"
        # Some decisions are of the same millisecond.
        decided = (at_ms // 500 * 500) * 1000 + int(self.random.integers(3))
        decision = DecisionRecord(
            decision_id=name,
            checkpoint=POINT,
            lane="live",
            bundle=bytes.fromhex(bundle.digest.removeprefix("sha256:")),
            decided_at_us=decided,
            features=contexts(1, seed=self.number)[0].tolist(),
            schema_fingerprint=int(bundle.schema_fingerprint, 16),
            pmf=[1 / len(actions)] * len(actions),
            action_index=taken,
            action=actions[taken],
            propensity=1 / len(actions),
        )
        self._later(at_ms, LogRecord(decision=decision).SerializeToString())
        if self.random.random() < 0.08:
            # A retry that another server decides, perhaps long after.
            decision.decided_at_us += int(self.random.integers(-60_000_000, 600_000_000))
            decision.action_index = int(self.random.integers(len(actions)))
            decision.action = actions[decision.action_index]
            self._later(
                at_ms + int(self.random.exponential(5 * HOUR)),
                LogRecord(decision=decision).SerializeToString(),
            )
        if self.random.random() < 0.05:
            self._later(at_ms + 60_000, delivery(name, (decided / 1000 - START) / HOUR))
        for revision in range(int(self.random.choice([0, 1, 1, 1, 1, 1, 2]))):
            # Most are known within hours, some after the window.
            delay = self.random.exponential([0.3, 2.0, 40.0][int(self.random.choice([0, 0, 0, 1, 2]))]) * HOUR
            received = at_ms + round(delay) + 1
            outcome = OutcomeRecord(
                checkpoint=POINT,
                decision_id=name,
                kind="authorised",
                value=float(self.random.random() < 0.4 + 0.1 * (taken % 3)),
                revision=revision,
                received_at_us=received * 1000,
            )
            # A server can be behind with what it writes.
            late = round(self.random.exponential(3 * HOUR)) if self.random.random() < 0.1 else 0
            self._later(received + late, LogRecord(outcome=outcome).SerializeToString())

    def _later(self, at_ms: int, payload: bytes) -> None:
        self.waiting.append((at_ms, int(self.random.integers(self.servers)), payload))


def whole(inputs: OverlayInputs, as_of_ms: int) -> Fitted:
    """What a fit of everything gives."""
    found = join(
        inputs.source, inputs.shelf, inputs.join, as_of_ms=as_of_ms, checkpoint=inputs.checkpoint
    ).experience
    scores = oracle_scores(inputs.live, found)
    scores[found.time_ms < inputs.untaught_ms] = np.nan
    days = inputs.join.days
    since_ms = 0 if days is None else as_of_ms - round(days * DAY)
    return fit(found, scores, inputs.task, inputs.overlay, as_of_ms, since_ms=since_ms)


def assert_equal(found: Fitted, wanted: Fitted) -> None:
    for name in ("age_ms", "known", "effective"):
        np.testing.assert_array_equal(getattr(found.delays, name), getattr(wanted.delays, name))
    own, other = found.learner.state(), wanted.learner.state()
    for name, values in other.items():
        np.testing.assert_array_equal(own[name], values, err_msg=name)
    np.testing.assert_array_equal(found.learner.table, wanted.learner.table)
    assert found.spec == wanted.spec


def inputs_of(world: World, source: DecisionSource, **other: Any) -> OverlayInputs:
    values: dict[str, Any] = {
        "source": source,
        "shelf": BundleShelf([world.loop / "first", world.loop / "second"]),
        "live": world.loop / "first",
        "task": small_task(),
        "join": JoinSettings(families=(), hours=12.0, rows=50),
        "overlay": OVERLAY,
        "checkpoint": POINT,
        "untaught_ms": START + 6 * HOUR,
    }
    return OverlayInputs(**values | other)


@pytest.mark.timeout(900)
@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    seed=st.integers(0, 10_000),
    servers=st.integers(1, 3),
    hours=st.lists(st.sampled_from([0.1, 0.5, 3.0, 7.0, 13.0, 30.0]), min_size=3, max_size=7),
    lag=st.sampled_from([0, 0, 2]),
    early=st.sampled_from(["count", "wait"]),
    days=st.sampled_from([None, None, 2.0]),
    of_table=st.booleans(),
    at_a_time=st.sampled_from([10, 100, 200_000]),
)
def test_what_is_new_gives_what_everything_gives(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    loop: Path,
    seed: int,
    servers: int,
    hours: list[float],
    lag: int,
    early: str,
    days: float | None,
    of_table: bool,
    at_a_time: int,
) -> None:
    """Late and revised outcomes, retries, withdrawals, records from after the moment, windows that move."""
    folder = tmp_path_factory.mktemp("world")
    monkeypatch.setattr(incremental, "PARTITION_ROWS", at_a_time)
    world = World(loop, folder, np.random.default_rng(seed), servers)
    plan = JoinSettings(families=(), hours=12.0, rows=50, early=early, days=days)
    world.grow(40, monkeypatch)
    rebuilt = 0
    for more in hours:
        world.grow(more, monkeypatch)
        source: DecisionSource = log_directories(list(world.paths().values()))
        if of_table:
            ship_logs(world.paths(), folder / "lake", records=1000)
            source = lake_source(folder / "lake")
        # The revision is live now and then: its oracle is the same.
        live = loop / ("second" if world.random.random() < 0.3 else "first")
        inputs = inputs_of(world, source, join=plan, live=live)
        as_of_ms = world.now_ms - lag * HOUR
        try:
            wanted = whole(inputs, as_of_ms)
        except ScorerError as error:
            with pytest.raises(type(error)):
                update(inputs, folder / "join", folder / "overlay", as_of_ms)
            continue
        found = update(inputs, folder / "join", folder / "overlay", as_of_ms)
        assert_equal(found.fitted, wanted)
        rebuilt += found.rebuilt
    assert rebuilt <= 1 + sum(1 for _ in hours) // 2


def run(world: World, as_of_ms: int | None = None, **other: Any) -> Updated:
    inputs = inputs_of(world, log_directories(list(world.paths().values())), **other)
    moment = world.now_ms if as_of_ms is None else as_of_ms
    found = update(inputs, world.folder / "join", world.folder / "overlay", moment)
    assert_equal(found.fitted, whole(inputs, moment))
    return found


def test_a_run_joins_and_learns_what_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loop: Path
) -> None:
    world = World(loop, tmp_path, np.random.default_rng(3), 2)
    monkeypatch.setattr(incremental, "PARTITION_ROWS", 100)
    for _ in range(6):
        world.grow(12, monkeypatch)
    first = run(world)
    assert first.rebuilt and first.kept > 200
    again = run(world)
    assert not again.rebuilt and (again.joined, again.changed) == (0, 0)
    assert again.replayed < first.replayed // 4, "the replay continues after its last whole step"
    world.grow(0.5, monkeypatch)
    later = run(world)
    assert not later.rebuilt and 0 < later.joined < 400 and later.changed <= 2 * later.joined
    # Another oracle, other settings, a moment that lies before, and a state that is lost: made anew.
    assert run(world, untaught_ms=START + 7 * HOUR).rebuilt
    assert run(world, untaught_ms=START + 7 * HOUR, overlay=OVERLAY.model_copy(update={"limit": 1.0})).rebuilt
    assert run(world).rebuilt
    assert run(world, as_of_ms=world.now_ms - HOUR).rebuilt
    assert run(world).rebuilt is False
    (tmp_path / "overlay" / incremental.STATE).write_text("{")
    assert run(world).rebuilt
    shutil.rmtree(tmp_path / "join")
    assert run(world).rebuilt


def test_a_run_after_a_pause_joins_some_ids_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loop: Path
) -> None:
    world = World(loop, tmp_path, np.random.default_rng(6), 2)
    for _ in range(3):
        world.grow(12, monkeypatch)
    run(world)
    monkeypatch.setattr(incremental, "PARTITION_ROWS", 20)
    world.grow(12, monkeypatch)
    real, sizes = incremental._Run._join, list[int]()

    def join(self: Any, logs: Any, newest: Any) -> Any:
        ids = [
            one for log in logs for one in log.table("decisions", ["decision_id"])["decision_id"].to_pylist()
        ]
        sizes.append(len(set(ids)))
        return real(self, logs, newest)

    monkeypatch.setattr(incremental._Run, "_join", join)
    later = run(world)
    assert not later.rebuilt and later.joined > 100
    assert len(sizes) == -(-later.joined // 20) and max(sizes) <= 20


def test_a_bundle_that_was_missing_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loop: Path
) -> None:
    world = World(loop, tmp_path, np.random.default_rng(4), 1)
    for _ in range(4):
        world.grow(15, monkeypatch)
    one = run(world, shelf=BundleShelf([loop / "first"]))
    both = run(world)
    assert both.rebuilt and both.kept > one.kept
    assert not run(world).rebuilt


def test_a_run_that_was_killed_leaves_the_state_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loop: Path
) -> None:
    world = World(loop, tmp_path, np.random.default_rng(5), 1)
    for _ in range(4):
        world.grow(15, monkeypatch)
    run(world)
    world.grow(14, monkeypatch)
    real = incremental._Run._store

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(incremental._Run, "_store", killed)
    with pytest.raises(KeyboardInterrupt):
        run(world)
    monkeypatch.setattr(incremental._Run, "_store", real)
    world.grow(1, monkeypatch)
    assert not run(world).rebuilt
