"""Tests of backtests of rules with the versions of external lists that decisions were made with."""

from __future__ import annotations

import json
import random
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from logs import write_segment
from typer.testing import CliRunner

from scorer.bundle import Bundle
from scorer.commands.rules import app
from scorer.registry import Registry, lists
from scorer.registry.base import Resolved
from scorer.v1.log_pb2 import DecisionRecord, LogRecord
from scorer.v1.scoring_pb2 import AppliedRules, ListRead

RULES = """
name = "checkout"
decisions = ["decline", "review", "approve"]
[[rules]]
id = "listed"
when = 'int(amount) in list("amounts")'
decision = "decline"
"""
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
CONTENTS = {1: 60, 2: 70, 3: 80}
"""The element of each version of the list `amounts`."""


class World:
    """A registry with three versions of a list, and a log of decisions."""

    def __init__(self, base: Path, bundle: Path) -> None:
        self.base, self.path = base, bundle
        self.bundle = Bundle.load(bundle)
        self.registry = Registry(base / "registry")
        (base / "rules.toml").write_text(RULES)
        self.digests = {0: ""}
        for version, element in CONTENTS.items():
            file = base / "amounts.txt"
            file.write_text(f"{element}\n")
            self.digests[version] = lists.put(self.registry, "amounts", file, kind="int")[0].digest

    def decision(self, number: int, amount: float, version: int | None) -> bytes:
        """Return a record of a decision, made with a version; None: its bundle did not declare the list."""
        row = np.asarray([[amount, 12, 1, 1]], np.float32)
        out = self.bundle.score(row)
        rules = None
        if version is not None:
            digest = bytes.fromhex(self.digests[version].removeprefix("sha256:"))
            other = ListRead(name="another", version=9, digest=bytes(32))
            rules = AppliedRules(lists=[other, ListRead(name="amounts", version=version, digest=digest)])
        decision = DecisionRecord(
            decision_id=f"d{number}",
            checkpoint="fraud.checkout",
            bundle=bytes(32),
            decided_at_us=int(NOON.timestamp() * 1e6) + number * 1_000_000,
            features=row[0],
            schema_fingerprint=self.bundle.schema_fingerprint,
            score=float(out.scores[0]),
            decision=self.bundle.labels[int(out.bands[0])],
            rules=rules,
        )
        return LogRecord(decision=decision).SerializeToString()

    def write(self, *made: tuple[float, int | None]) -> None:
        records = [self.decision(number, *one) for number, one in enumerate(made)]
        write_segment(self.base / "log", 1, 1, records)

    def run(self, *options: str, given: str = "amounts=@:int", fails: bool = False) -> Any:
        base = self.base
        done = CliRunner().invoke(
            app,
            [
                "backtest", str(base / "rules.toml"), "--bundle", str(self.path), "--log", str(base / "log"),
                "--list", given, "--registry", str(self.registry.path), *options,
            ],
        )  # fmt: skip
        assert (done.exit_code != 0) is fails, done.output
        return str(done.exception) if fails else done.output

    def report(self, *options: str, **more: Any) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run(*options, "--json", **more))
        return found


@pytest.fixture
def world(tmp_path: Path, built_bundles: dict[str, Path]) -> World:
    return World(tmp_path, built_bundles["score-1"])


def test_each_decision_is_evaluated_with_the_version_that_it_recorded(world: World) -> None:
    world.write((60, 1), (60, 2), (70, 2), (70, 1), (80, 0))
    found = world.report("--lists", "recorded")
    assert (found["hits"], found["errors"], found["decisions"]) == ({"listed": 2}, 1, 5)
    declined = {name for one in found["changes"] if one["after"] == "decline" for name in one["examples"]}
    assert declined == {"d0", "d2"}
    own = [one for one in found["recorded_lists"] if one["name"] == "amounts"]
    at = [int(NOON.timestamp() * 1e6) + number * 1_000_000 for number in range(5)]
    assert [(one["version"], one["decisions"], one["first_us"], one["last_us"]) for one in own] == [
        (0, 1, at[4], at[4]),
        (1, 2, at[0], at[3]),
        (2, 2, at[1], at[2]),
    ]
    assert [one["digest"] for one in own] == [world.digests[version] for version in (0, 1, 2)]
    assert found["evaluated_lists"] == {"amounts": "the version that each decision recorded"}
    shown = world.run("--lists", "recorded")
    assert "none loaded" in shown and "the version that each decision recorded" in shown
    assert "not read by these rules" in shown


def test_all_decisions_can_be_evaluated_with_the_newest_version_or_a_file(world: World) -> None:
    world.write((60, 1), (70, 2), (80, 2), (80, None))
    found = world.report("--lists", "newest")
    assert (found["hits"], found["errors"]) == ({"listed": 2}, 0)
    assert found["evaluated_lists"] == {"amounts": "version 3, the newest"}
    assert [one["version"] for one in found["recorded_lists"] if one["name"] == "amounts"] == [1, 2]
    file = world.base / "own.txt"
    file.write_text("60\n70\n80\n")
    found = world.report(given=f"amounts={file}:int")
    assert found["hits"] == {"listed": 4} and found["evaluated_lists"] == {"amounts": f"file {file}"}
    # Without a version, the rule has no value.
    found = world.report()
    assert (found["hits"], found["errors"]) == ({}, 4)
    assert "no version" in found["evaluated_lists"]["amounts"]
    assert "use given, newest or recorded" in world.run("--lists", "latest", fails=True)


def test_versions_that_the_registry_does_not_have_are_refused_by_name(world: World) -> None:
    world.write((60, 1), (70, 2), (80, 3))
    for version in (1, 2):
        world.registry.remove_list(world.digests[version])
    error = world.run("--lists", "recorded", fails=True)
    assert "does not have amounts version 1, amounts version 2," in error
    since = "2026-11-20T12:00:02"
    found = world.report("--lists", "recorded", "--since", since)
    assert (found["hits"], found["decisions"]) == ({"listed": 1}, 1)
    # Only the versions of the rules' own lists are needed.
    assert "another" in {one["name"] for one in found["recorded_lists"]}
    assert world.report("--lists", "newest")["hits"] == {"listed": 1}


def test_a_decision_that_does_not_record_the_list_is_refused_by_name(world: World) -> None:
    world.write((60, 1), (70, None))
    error = world.run("--lists", "recorded", fails=True)
    assert 'decision "d1" does not record a version of list "amounts"' in error


def test_alternating_versions_are_those_of_single_evaluations(world: World) -> None:
    chance = random.Random(7)
    made = [(chance.choice([60, 70, 80, 90]), chance.choice([1, 2, 3])) for _ in range(400)]
    world.write(*made)
    found = world.report("--lists", "recorded", "--examples", "1000")
    wanted = {f"d{number}" for number, (amount, version) in enumerate(made) if amount == CONTENTS[version]}
    declined = {name for one in found["changes"] if one["after"] == "decline" for name in one["examples"]}
    assert declined == wanted and found["hits"] == {"listed": len(wanted)}
    own = {one["version"]: one["decisions"] for one in found["recorded_lists"] if one["name"] == "amounts"}
    assert own == Counter(version for _, version in made)


@pytest.mark.parametrize("how", ["newest", "recorded"])
def test_versions_of_a_server_are_downloaded(world: World, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    places: list[Path] = []

    class Remote(Registry):
        def resolve(self, reference: str) -> Resolved:
            return super().resolve(reference)._replace(path=None)

        def copy(self, target: Resolved, destination: Path) -> None:
            places.append(destination)
            super().copy(target, destination)

    monkeypatch.setattr("scorer.commands.rule_lists.open_at", lambda at: Remote(at or ""))
    world.write((80, 3), (70, 2), (80, 3))
    assert world.report("--lists", how)["hits"] == {"listed": 3 if how == "recorded" else 2}
    assert len(places) == (2 if how == "recorded" else 1)
    assert not any(place.exists() for place in places), "copies are deleted at the end"
