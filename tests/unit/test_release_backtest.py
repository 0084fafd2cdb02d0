"""Tests of the backtest as a step of a TEST: what rejects a change, what does not, and the messages."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from changing import World

from scorer.release.backtest.job import BacktestProgress, Job, Result
from scorer.release.backtest.running import Backtest
from scorer.release.model import ChangeKind, ChangeRequest, ChangeState, GateResult, Outcome

S = ChangeState


def gate(outcome: Outcome, value: float | None = -0.3) -> GateResult:
    metric = "backtest_recall_review"
    return GateResult(
        metric, outcome, value, -0.4, -0.2, -0.1, 5_000, ">= -10% lower95", "Recall fell by 30 %."
    )


def result(outcome: Outcome, value: float | None = -0.3) -> Result:
    missed = [{"decision_id": "payment-7", "at": 1, "score": 0.1, "live_score": 0.9, "amount": 5.0}]
    return Result(
        outcome, f"5,000 decisions: {outcome}", 5_000, 50, 1, 2, (gate(outcome, value),), missed=missed
    )


class FakeBacktests:
    """Backtests whose state the test sets."""

    def __init__(self) -> None:
        self.started: dict[str, Job] = {}
        self.state = Backtest(progress=BacktestProgress(0.25, 1_000))
        self.kept: set[str] = set()
        self.is_full = False

    def look(self, change: str) -> Backtest | None:
        return self.state if change in self.started else None

    def start(self, change: str, wanted: Job) -> None:
        self.started[change] = wanted

    def keep(self, changes: set[str]) -> None:
        self.kept = changes


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    world = World(f"sqlite:///{tmp_path}/platform.sqlite")
    world.parts.backtests = FakeBacktests()  # type: ignore[assignment]
    more: dict[str, Any] = {
        "logs": lambda: {"live-1": tmp_path / "log"},
        "has_outcomes": lambda _checkpoint: True,
        "matures": lambda _checkpoint, _kind: timedelta(days=45),
        "blank": lambda _change: SimpleNamespace(kind="score", outcome="fraud", approve="approve"),
    }
    for name, value in more.items():
        setattr(world.readouts, name, value)
    monkeypatch.setattr(world.bundles, "local", lambda reference: tmp_path / reference)
    yield world
    world.store.close()


def backtests(world: World) -> FakeBacktests:
    return world.parts.backtests  # type: ignore[return-value]


def until_backtest(world: World, **more: Any) -> ChangeRequest:
    change = world.test("good-1", **more)
    for _ in range(12):
        world.tick()
        if change.id in backtests(world).started:
            return change
    raise AssertionError(world.messages_of(change.id))


def now(world: World, change: ChangeRequest) -> ChangeRequest:
    return world.changes.get(world.ada, change.id).change


def words(world: World, change: ChangeRequest) -> str:
    steps = world.changes.get(world.ada, change.id).steps
    return next(step.words for step in steps if step.name == "backtest")


def test_a_test_is_compared_over_the_last_matured_weeks_and_reports_its_progress(world: World) -> None:
    change = until_backtest(world)
    job = backtests(world).started[change.id]
    assert job.end == int((world.now - timedelta(days=45)).timestamp() * 1e6)
    assert job.end - job.begin == 28 * 86_400_000_000
    assert (job.outcome, job.approve, dict(job.logs).keys()) == ("fraud", "approve", {"live-1"})
    world.tick()
    assert words(world, change) == "25 % of the logs are read, 1,000 decisions so far"
    world.tick()
    assert now(world, change).state is S.CHECKS
    assert backtests(world).kept == {change.id}


def test_a_worse_model_is_stopped_before_its_slot_with_its_missed_decisions(world: World) -> None:
    change = until_backtest(world)
    backtests(world).state = Backtest(result=result(Outcome.FAIL))
    world.tick()
    after = now(world, change)
    assert after.state is S.REJECTED
    assert "does worse than live" in after.note and "payment-7" in after.note
    detail = world.changes.get(world.ada, change.id)
    assert detail.backtest is not None and detail.backtest["missed"][0]["decision_id"] == "payment-7"
    # The backtest has separate gates. No gate of the shadow was evaluated.
    assert detail.gates == ()
    assert world.observe_lanes() == {}
    world.tick()
    assert backtests(world).kept == set()


@pytest.mark.parametrize("outcome", [Outcome.PASS, Outcome.INCONCLUSIVE])
def test_a_model_that_is_not_worse_proceeds_to_the_shadow(world: World, outcome: Outcome) -> None:
    change = until_backtest(world)
    backtests(world).state = Backtest(result=result(outcome))
    world.tick()
    world.tick()
    assert now(world, change).state is not S.REJECTED
    assert words(world, change) == f"5,000 decisions: {outcome}"


def test_a_waived_gate_does_not_stop_the_test(world: World) -> None:
    change = until_backtest(world)
    reason = "meant to find another kind of fraud"
    world.changes.waive(world.bob, change.id, metric="backtest_recall_review", reason=reason)
    backtests(world).state = Backtest(result=result(Outcome.FAIL))
    world.tick()
    assert now(world, change).state is not S.REJECTED


@pytest.mark.parametrize("labels", ["used", "required"])
@pytest.mark.parametrize("why", ["no logs", "no outcomes", "few", "failed"])
def test_unknown_outcomes_are_reported_and_stop_a_test_only_if_labels_are_required(
    world: World, labels: str, why: str
) -> None:
    settings = world.settings.checkpoints["fraud.checkout"]
    own = settings.backtest.model_copy(update={"labels": labels})
    checkpoints = {
        **world.settings.checkpoints,
        "fraud.checkout": settings.model_copy(update={"backtest": own}),
    }
    world.parts.settings = world.settings.model_copy(update={"checkpoints": checkpoints})
    if why == "no logs":
        world.readouts.logs = dict  # type: ignore[attr-defined]
    if why == "no outcomes":
        world.readouts.has_outcomes = lambda _: False  # type: ignore[attr-defined]
    if why in ("few", "failed"):
        change = until_backtest(world)
        few = Backtest(result=result(Outcome.INCONCLUSIVE, None))
        backtests(world).state = few if why == "few" else Backtest(error="the log is damaged")
        world.tick()
    else:
        change = world.test("good-1")
        for _ in range(10):
            world.tick()
    assert (now(world, change).state is S.REJECTED) is (labels == "required")
    messages = " ".join(world.messages_of(change.id))
    assert ("requires a backtest" if labels == "required" else "not judged by known outcomes") in messages


def test_one_backtest_runs_at_a_time_and_a_withdrawn_change_has_none(world: World) -> None:
    backtests(world).is_full = True
    change = world.test("good-1")
    for _ in range(10):
        world.tick()
    assert words(world, change) == "waits for another backtest to end"
    backtests(world).is_full = False
    world.tick()
    assert change.id in backtests(world).started
    world.changes.withdraw(world.ada, change.id, reason="another one is better")
    world.tick()
    assert backtests(world).kept == set()


def test_a_release_follows_a_test_and_is_not_backtested_again(world: World) -> None:
    change = until_backtest(world, minutes=30.0)
    backtests(world).state = Backtest(result=result(Outcome.PASS))
    for _ in range(20):
        world.tick(5)
    assert now(world, change).state is S.DONE
    release = world.release("good-1")
    for _ in range(10):
        world.tick()
    assert release.kind is ChangeKind.RELEASE
    assert release.id not in backtests(world).started
