"""One log, several logs, and a table of them give the same join, overlay and A/B figures."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from joining import HOUR, POINT, START, Maker, delivery, outcome
from lakes import lake_source, ship_logs
from learning import contexts, small_task
from logs import write_segment
from loops import LEARN, make_loop

from scorer.bundle import inspect, revise
from scorer.bundle.models import OverlaySpec
from scorer.learn import experience_files
from scorer.learn import settings as learn_settings
from scorer.learn.ab.readout import AbPlan, Arm, read
from scorer.learn.ab.settings import AbSettings
from scorer.learn.errors import DataError
from scorer.learn.join.joining import join
from scorer.learn.join.settings import JoinSettings
from scorer.learn.overlay.live import oracle_scores
from scorer.learn.overlay.stream import fit
from scorer.log import BundleShelf
from scorer.log.proof import KNOWN, UNPROVEN
from scorer.log.source.directories import log_directories
from scorer.log.source.interface import DecisionSource
from scorer.v1.log_pb2 import DecisionRecord, LogRecord, OutcomeRecord

OF_LOGS = {"lagging log", "log replaced or set back", "unreadable log"}
"""Findings that say something about a log rather than about a record."""
WITH_SEQUENCES = {"conflicting outcomes", "unknown record"}
"""Findings whose examples have the number of a record in its log."""
SETTINGS = JoinSettings(families=(), hours=24.0, rows=3)


@pytest.fixture(scope="module")
def make(built_bundles: dict[str, Path]) -> dict[str, Maker]:
    return {name: Maker(built_bundles[name]) for name in ("action-1", "action-2")}


@pytest.fixture(scope="module")
def shelf(built_bundles: dict[str, Path]) -> BundleShelf:
    return BundleShelf([built_bundles["action-1"], built_bundles["action-2"]])


# Ids that meet often, and times of servers whose clocks are up to ten minutes apart.
ids = st.integers(0, 6).map("decision-{}".format)
hours = st.builds(lambda hour, skew: hour + skew / 60, st.integers(0, 12), st.sampled_from([0, 0, 0, 10, -7]))
others = st.sampled_from(
    [{}, {}, {}, {"fallback_source": "static"}, {"propensity": 0.0}, {"bundle": bytes(32)}]
)
decisions = st.tuples(
    st.just("decision"),
    ids,
    hours,
    st.integers(0, 2),
    st.sampled_from(["action-1", "action-1", "action-2"]),
    others,
)
outcomes = st.tuples(
    st.just("outcome"),
    ids,
    hours,
    st.sampled_from([0.0, 1.0, math.nan]),
    st.integers(0, 1),
    st.sampled_from(["token", "token", "known", "unproven", "another kind"]),
)
unknown = st.just(("unknown",))
events = st.lists(
    st.tuples(st.one_of(decisions, decisions, outcomes, outcomes, unknown), st.integers(0, 3)),
    min_size=1,
    max_size=40,
)


def records(event: tuple[Any, ...], make: dict[str, Maker]) -> list[bytes]:
    """The records that one server writes for an event."""
    if event[0] == "unknown":
        return [b""]
    if event[0] == "decision":
        _, name, hour, taken, bundle, other = event
        made = [make[bundle].decision(name, hour, taken, **other)]
        # A reply that did not reach its caller is marked by the server that made the decision.
        return [*made, delivery(name, hour)] if taken == 2 and hour % 3 == 0 else made
    _, name, hour, value, revision, how = event
    proof: dict[str, Any] = {"known": {"proof": KNOWN}, "unproven": {"proof": UNPROVEN}}.get(how, {})
    if how == "token":
        proof = make["action-1"].token(name, hour, revision)
    kind = {"kind": "captured"} if how == "another kind" else {}
    return [outcome(name, hour, value, revision, **proof, **kind)]


def write_logs(folder: Path, parts: Sequence[Sequence[bytes]], monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """One log per server, in two segments each."""
    paths = []
    for place, payloads in enumerate(parts):
        monkeypatch.setattr("logs.LOG", bytes([place + 1]) * 16)
        path = folder / f"server-{place}"
        folder.mkdir(exist_ok=True)
        half = len(payloads) // 2
        write_segment(path, 1, 1, payloads[:half])
        write_segment(path, 2, 1 + half, payloads[half:])
        paths.append(path)
    return paths


def joined(
    folder: Path, logs: Sequence[Path] | DecisionSource, shelf: BundleShelf, hour: float, **more: Any
) -> Any:
    """The bytes of the experience, and everything that is said about the records."""
    try:
        found = join(
            log_directories(logs) if isinstance(logs, Sequence) else logs,
            shelf,
            SETTINGS,
            as_of_ms=START + round(hour * HOUR),
            checkpoint=POINT,
            **more,
        )
    except DataError as error:
        text = str(error)
        return text[: text.find(":")]
    experience_files.write(found.experience, folder / "experience.parquet")
    notes = found.notes(SETTINGS)
    notes["findings"] = [
        {**one, "examples": ()} if one["name"] in WITH_SEQUENCES else one
        for one in notes["findings"]
        if one["name"] not in OF_LOGS
    ]
    return (folder / "experience.parquet").read_bytes(), notes


@pytest.mark.timeout(600)
@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(events=events, count=st.integers(2, 4), hour=st.integers(1, 80), cut=st.integers(1, 20))
@example(
    # Only the note of an unknown record is lost with the older copy.
    events=[(("decision", "decision-0", 0.0, 0, "action-1", {}), 0), (("unknown",), 0)],
    count=2,
    hour=1,
    cut=1,
)
def test_records_spread_over_logs_join_as_in_one(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    make: dict[str, Maker],
    shelf: BundleShelf,
    events: list[tuple[tuple[Any, ...], int]],
    count: int,
    hour: int,
    cut: int,
) -> None:
    """Retries at other replicas, outcomes anywhere, skewed clocks, a log that comes back as it was before."""
    folder = tmp_path_factory.mktemp("split")
    spread: list[list[bytes]] = [[] for _ in range(count)]
    whole: list[bytes] = []
    for event, server in events:
        made = records(event, make)
        whole += made
        spread[server % count] += made
    [one] = write_logs(folder / "one", [whole], monkeypatch)
    several = write_logs(folder / "several", spread, monkeypatch)
    wanted = joined(folder, [one], shelf, hour)
    assert joined(folder, several, shelf, hour) == wanted
    assert joined(folder, several[::-1], shelf, hour) == wanted, "the order of the logs does not matter"
    # The same from the tables, read at once, and as they grow.
    lake, kept = folder / "lake", folder / "kept"
    servers = {f"server-{place}": path for place, path in enumerate(several)}
    ship_logs(servers, lake, records=cut, batches=1)
    joined(folder, lake_source(lake), shelf, hour, cache=kept)
    ship_logs(servers, lake, records=100)
    assert joined(folder, lake_source(lake), shelf, hour) == wanted
    assert joined(folder, lake_source(lake), shelf, hour, cache=kept) == wanted
    cache = folder / "cache"
    assert joined(folder, several, shelf, hour, cache=cache) == wanted
    # The first server comes back with an older copy of its log: nothing that was read is lost.
    shutil.rmtree(several[0])
    monkeypatch.setattr("logs.LOG", bytes([1]) * 16)
    write_segment(several[0], 1, 1, spread[0][:-cut])
    assert joined(folder, several, shelf, hour, cache=cache) == wanted
    # It continues where the copy ended, with the records that it had lost and one more.
    more = [make["action-1"].decision("more", 1.0)]
    write_segment(several[0], 2, 1 + len(spread[0][:-cut]), [*spread[0][-cut:], *more])
    write_segment(one, 3, 1 + len(whole), more)
    assert joined(folder, several, shelf, hour, cache=cache) == joined(folder, [one], shelf, hour)


@pytest.fixture(scope="module")
def small_loop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A loop with two bundles, of which the second has another overlay."""
    base = make_loop(tmp_path_factory.mktemp("loop"))
    spec = OverlaySpec(segment="country", limit=2.0, everywhere={"route": {"A": 0.5}}, segments={})
    revise(base / "first", base / "second", overlay=spec, caps=None)
    return base


def payments(base: Path, seed: int, rows: int = 600) -> list[tuple[str, bytes]]:
    """Decisions of two lanes and their outcomes, each with a name of what it is, in order of time."""
    random = np.random.default_rng(seed)
    bundles = [inspect(base / name) for name in ("first", "second")]
    actions = [action.id for action in bundles[0].actions]
    drawn, timed = contexts(rows, seed=seed), []
    for at in range(rows):
        arm, taken = int(random.integers(2)), int(random.integers(len(actions)))
        decided = START * 1000 + int(random.integers(14 * 86_400)) * 1_000_000
        decision = DecisionRecord(
            decision_id=f"d{at}",
            checkpoint=POINT,
            lane=("control", "new")[arm],
            bundle=bytes.fromhex(bundles[arm].digest.removeprefix("sha256:")),
            decided_at_us=decided,
            entity=f"shopper-{at}",
            features=drawn[at].tolist(),
            schema_fingerprint=int(bundles[arm].schema_fingerprint, 16),
            pmf=[1 / len(actions)] * len(actions),
            action_index=taken,
            action=actions[taken],
            propensity=1 / len(actions),
        )
        timed.append((decided, "decision", LogRecord(decision=decision)))
        report = OutcomeRecord(
            checkpoint=POINT,
            decision_id=f"d{at}",
            kind="authorised",
            value=float(random.random() < (0.9 if taken == 0 else 0.5)),
            received_at_us=decided + 1_000_000,
        )
        timed.append((decided + 1_000_000, "outcome", LogRecord(outcome=report)))
        if at % 20 == 0:
            # A retry that another replica decided, whose clock is minutes ahead.
            decision.decided_at_us += 240_000_000
            timed.append((decided, "decision", LogRecord(decision=decision)))
    timed.sort(key=lambda one: one[0])
    return [(kind, record.SerializeToString()) for _, kind, record in timed]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_overlay_and_an_ab_test_are_those_of_one_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_loop: Path, seed: int
) -> None:
    made = payments(small_loop, seed)
    random, count = np.random.default_rng(seed), seed + 1
    parts: list[list[bytes]] = [[] for _ in range(count)]
    for _, payload in made:
        parts[int(random.integers(count))].append(payload)
    [one] = write_logs(tmp_path / "one", [[payload for _, payload in made]], monkeypatch)
    several = write_logs(tmp_path / "several", parts, monkeypatch)
    shelf = BundleShelf([small_loop / "first", small_loop / "second"])
    moment = START + 20 * 24 * HOUR
    ship_logs({path.name: path for path in several}, tmp_path / "lake", records=500)
    sources = [log_directories([one]), log_directories(several), lake_source(tmp_path / "lake")]
    found = [join(source, shelf, SETTINGS, as_of_ms=moment, checkpoint=POINT) for source in sources]
    assert found[2].experience.digest() == found[1].experience.digest()
    for each in found[1:]:
        assert {one.name: one.count for one in each.findings if one.name not in OF_LOGS} == {
            one.name: one.count for one in found[0].findings
        }
    task, plan = small_task(), learn_settings.parse(LEARN).overlay
    fitted = [
        fit(each.experience, oracle_scores(small_loop / "first", each.experience), task, plan, moment)
        for each in found
    ]
    assert fitted[0].learner.outcomes > 300
    assert fitted[0].spec == fitted[1].spec == fitted[2].spec is not None
    for name in ("mean", "own", "cross"):
        alone, *others = (getattr(each.learner._belief, name) for each in fitted)
        for other in others:
            np.testing.assert_array_equal(other, alone)
    arms = tuple(
        Arm(lane, inspect(small_loop / name).digest, 0.5)
        for lane, name in (("control", "first"), ("new", "second"))
    )
    comparison = AbPlan(POINT, arms, START, AbSettings(shoppers=100, tuned_decisions=1000))
    figures = [read(comparison, each.experience, shelf.get).as_dict() for each in found]
    assert figures[2] == figures[1] == figures[0]
    assert sum(lane["decisions"] for lane in figures[0]["lanes"]) == 600
