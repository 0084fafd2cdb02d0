"""Tests of the comparison of action versions over time: estimated rewards against the truth, and refusals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from learning import DAY_MS, START_MS, logged, small_task
from loops import LEARN, make_loop

from scorer.bundle import Bundle
from scorer.learn import settings as learn_settings
from scorer.learn.comparison.actions import prepare_experience
from scorer.learn.comparison.comparing import ComparedVersions, compare_rows
from scorer.learn.comparison.running import ComparisonJob, compare_versions
from scorer.learn.comparison.settings import ComparisonSettings, Cost, CostMatrix
from scorer.learn.comparison.versions import open_versions
from scorer.learn.experience import Experience, State, concatenate
from scorer.learn.training.fitting import fit
from scorer.learn.training.trained import build_candidate
from scorer.log import BundleShelf
from scorer.log.source.directories import log_directories

WEEK = 7 * DAY_MS
# The first Monday after the start of the simulated decisions.
MONDAY = START_MS - (START_MS + 3 * DAY_MS) % WEEK + WEEK
SETTINGS = ComparisonSettings(weeks=5, amount="", costs=CostMatrix(reward=Cost(fixed=2.0)))


def best_route(route: int) -> Any:
    """Return a truth where one route is authorised far more often."""

    def truth(rows: Any) -> Any:
        return np.where(np.arange(3) == route, 0.9, 0.4) * np.ones((len(rows), 1))

    return truth


@dataclass(frozen=True)
class World:
    """Two weeks in which route 0 is the best one and two in which route 2 is, and a version for each."""

    folder: Path
    digests: tuple[str, ...]
    experience: Experience
    task: Any

    def compared(
        self, experience: Experience | None = None, digests: tuple[str, ...] = ()
    ) -> ComparedVersions:
        shelf = BundleShelf([self.folder])
        versions = open_versions(shelf, digests or self.digests, "action")
        prepared = prepare_experience(
            experience or self.experience,
            shelf,
            versions,
            SETTINGS,
            features=self.task.context,
            actions=self.task.actions,
            as_of_ms=MONDAY + 4 * WEEK + DAY_MS,
        )
        return compare_rows(prepared, [one.facts for one in versions], SETTINGS)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("actions")
    (folder / "learn.toml").write_text(LEARN)
    plan = learn_settings.load(folder / "learn.toml").train
    task, digests = small_task(), []
    for name, route in (("early", 0), ("late", 2)):
        trained = logged(900, truth=best_route(route), seed=route + 5)
        built = build_candidate(fit(task, trained, plan), folder / name, name)
        digests.append(built.digest)
    parts = []
    for half, route in enumerate((0, 2)):
        part = logged(1_500, truth=best_route(route), days=14.0, seed=20 + half)
        time_ms = part.time_ms - START_MS + MONDAY + 2 * half * WEEK
        parts.append(replace(part, time_ms=time_ms, settled_ms=time_ms + 60_000, bundles=(digests[half],)))
    yield World(folder, tuple(digests), concatenate(parts), task)


def cell(found: ComparedVersions, version: int, week: int | None, basis: str) -> Any:
    return next(one for one in found.values if (one.version, one.week, one.basis) == (version, week, basis))


def test_the_estimate_covers_the_truth_and_the_best_version_changes(world: World) -> None:
    found = world.compared()
    shelf = BundleShelf([world.folder])
    for version, digest in enumerate(world.digests):
        bundle = shelf.get(digest)
        assert isinstance(bundle, Bundle)
        pmf, _ = bundle.evaluate(world.experience.context)
        for week, route in enumerate((0, 0, 2, 2)):
            of = (world.experience.time_ms - MONDAY) // WEEK == week
            truth = float((pmf[of] * best_route(route)(pmf[of])).sum(axis=1).mean())
            one = cell(found, version, week, "backtest")
            value = one.metrics["reward"]
            assert one.rows == of.sum() and value.low is not None and value.high is not None
            assert abs(value.value - truth) < 1.5 * (value.high - value.low) / 2
            assert one.metrics["value"].value == pytest.approx(2_000 * value.value)
            assert 0 < one.metrics["effective_share"].value <= 1
    best = {one.week: one.version for one in found.best if one.metric == "reward"}
    assert best == {0: 0, 1: 0, 2: 1, 3: 1}
    assert {one.metric for one in found.pairs} == {"reward", "value"}


def test_what_was_served_is_the_share_of_rewarded_decisions(world: World) -> None:
    found = world.compared()
    of = world.experience.time_ms < MONDAY + WEEK
    assert cell(found, 0, 0, "served").metrics["reward"].value == pytest.approx(
        world.experience.reward[of].mean()
    )
    assert cell(found, 1, 0, "served").reason == "it served no decision"


def test_a_week_with_decisions_in_flight_is_not_settled(world: World) -> None:
    late = world.experience.time_ms >= MONDAY + 4 * WEEK - DAY_MS
    waiting = replace(
        world.experience,
        state=np.where(late, State.IN_FLIGHT, world.experience.state).astype(np.int8),
        reward=np.where(late, np.nan, world.experience.reward),
    )
    found = world.compared(waiting)
    assert {one.week for one in found.values if one.metrics and one.week is not None} == {0, 1, 2}


def test_a_version_with_another_catalogue_is_left_out_with_the_reason(world: World) -> None:
    (world.folder / "more").mkdir(exist_ok=True)
    plan = learn_settings.load(world.folder / "learn.toml").train
    task = small_task(4)
    trained = logged(600, truth=lambda rows: np.full((len(rows), 4), 0.5), seed=9)
    other = build_candidate(fit(task, trained, plan), world.folder / "more" / "wide", "wide").digest
    found_shelf = BundleShelf([world.folder, world.folder / "more"])
    versions = open_versions(found_shelf, (*world.digests, other), "action")
    prepared = prepare_experience(
        world.experience,
        found_shelf,
        versions,
        SETTINGS,
        features=world.task.context,
        actions=world.task.actions,
        as_of_ms=MONDAY + 4 * WEEK + DAY_MS,
    )
    found = compare_rows(prepared, [one.facts for one in versions], SETTINGS)
    assert "catalogue of actions differs" in cell(found, 2, 0, "backtest").reason
    assert {(one.left, one.right) for one in found.pairs} == {(0, 1)}


def test_a_log_of_an_action_checkpoint_is_compared(tmp_path: Path) -> None:
    base = make_loop(tmp_path / "loop")
    shelf = BundleShelf([base / "registry"])
    (digest,) = shelf.digests
    chosen = learn_settings.load(base / "learn.toml")
    source = log_directories([base / "decisions"])
    last = START_MS + 60 * DAY_MS
    job = ComparisonJob("action.authorise", (digest,), last, SETTINGS, joining=chosen.join)
    found = compare_versions(source, shelf, job)
    assert found.kind == "action" and found.metrics[0] == "reward"
    total, served = found.of(0, None, "backtest"), found.of(0, None, "served")
    assert total is not None and served is not None
    assert total.rows == served.rows > 0
