"""Tests of a checkpoint's versions: which are listed for whom, their order, and their live time."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from versions import CHECKPOINT, DATA, MLFLOW, History

from scorer.release.errors import InvalidError, NotFoundError, UnreachableError
from scorer.release.lanes.recorded import CANARY, CONTROL, HOLDOUT, LIVE
from scorer.release.model import LaneSpec, Place
from scorer.release.version_answers import Version
from scorer.release.versions import lineage
from scorer.release.versions.facts import FactBook
from scorer.release.versions.spans import Spans, places


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory, built_bundles: dict[str, Path]) -> Iterator[History]:
    history = History(tmp_path_factory.mktemp("history"), built_bundles)
    yield history
    history.close()


def versions_of(history: History, user: str = "viewer", **options: object) -> list[Version]:
    actor = history.world.actor(user)
    return list(history.world.service.versions.list(actor, CHECKPOINT, **options).items)


def test_every_bundle_of_the_checkpoint_is_listed_with_its_place(history: History) -> None:
    own = {one.bundle.digest: one for one in versions_of(history)}
    assert {digest: one.place for digest, one in own.items()} == {
        history.live: Place.LIVE,
        history.second: Place.CANARY,
        history.first: Place.TESTED,
    }
    live, canary, tested = own[history.live], own[history.second], own[history.first]
    assert (live.bundle.project, live.bundle.name, live.share) == ("", "fraud-checkout", 0.9)
    assert live.live_since is not None and live.live_until is None
    assert (canary.share, canary.live_since, canary.live_seconds) == (0.1, None, 0.0)
    assert [one.id for one in tested.changes] == [history.tested]
    assert (tested.verdict, tested.report, tested.rows) == ("pass", history.tested, 3_000)
    assert tested.p99_us and 100 < tested.p99_us < 10_000
    assert tested.metrics == pytest.approx({"auc": 0.91, "average_precision": 0.455, "log_loss": 0.09})
    assert tested.parameters["max_depth"] == "3"
    assert tested.run_url == f"{MLFLOW}/#/runs/{21:032x}"


def test_other_projects_are_counted_and_not_listed(history: History) -> None:
    service, world = history.world.service, history.world
    change = history.foreign
    world.service.changes.submit(world.actor("outsider"), change)
    try:
        mine = service.versions.list(world.actor("viewer"), CHECKPOINT)
        assert (len(mine.items), mine.hidden) == (3, 1)
        theirs = service.versions.list(world.actor("outsider"), CHECKPOINT)
        assert {one.bundle.digest: one.place for one in theirs.items} == {
            history.live: Place.LIVE,
            history.other: Place.SUBMITTED,
        }
        assert theirs.hidden == 2
        every = service.versions.list(world.actor("admin"), CHECKPOINT)
        assert (len(every.items), every.hidden) == (4, 0)
    finally:
        world.service.changes.withdraw(world.actor("outsider"), change, reason="done")


def test_a_draft_creates_no_version(history: History) -> None:
    world = history.world
    draft = world.draft(bundle=world.candidate).id
    try:
        assert world.candidate not in {one.bundle.digest for one in versions_of(history)}
    finally:
        world.service.changes.delete(world.actor("modeler"), draft)


@pytest.mark.parametrize(("sort", "first"), [("metrics.auc", "first"), ("-metrics.auc", "second")])
def test_versions_are_sorted_and_those_without_a_value_come_last(
    history: History, sort: str, first: str
) -> None:
    order = [one.bundle.digest for one in versions_of(history, sort=sort)]
    assert order[0] == getattr(history, first)
    assert order[-1] == history.live


def test_versions_are_filtered_by_place_and_the_parts_sum_to_the_whole(history: History) -> None:
    assert [one.bundle.digest for one in versions_of(history, place=Place.CANARY)] == [history.second]
    actor = history.world.actor("viewer")
    seen, offset = [], 0
    while True:
        part = history.world.service.versions.list(actor, CHECKPOINT, limit=2, offset=offset)
        seen += [one.bundle.digest for one in part.items]
        assert part.total == 3
        if part.next is None:
            break
        offset = part.next
    assert sorted(seen) == sorted([history.live, history.first, history.second])


def test_a_wrong_order_or_checkpoint_is_reported(history: History) -> None:
    with pytest.raises(InvalidError, match='cannot be sorted by "size"; use one of name, place'):
        versions_of(history, sort="size")
    with pytest.raises(InvalidError, match=r"metrics\.nothing"):
        versions_of(history, sort="-metrics.nothing")
    with pytest.raises(NotFoundError, match='no checkpoint "nowhere"'):
        history.world.service.versions.list(history.world.actor("viewer"), "nowhere")


def test_lanes_of_every_checkpoint_are_listed_by_bundle(history: History) -> None:
    lanes = history.world.service.versions.lanes(history.world.actor("viewer"))
    assert lanes[history.live] == (f"live at {CHECKPOINT}",)
    assert lanes[history.second] == (f"canary at {CHECKPOINT}",)


def test_the_timeline_has_every_version_and_marks_changes(history: History) -> None:
    timeline = history.world.service.versions.timeline(history.world.actor("viewer"), CHECKPOINT)
    assert timeline.metric == "auc"
    digests = [one.version.bundle.digest for one in timeline.entries]
    assert digests == [history.live, history.first, history.second]
    assert [one.value for one in timeline.entries] == [None, 0.91, 0.94]
    last = timeline.entries[-1]
    assert (last.changed["max_depth"], last.changed["data_digest"]) == ("3", DATA[0])
    assert "algorithm" not in last.changed and "code_version" not in last.changed
    assert "run_id" not in timeline.parameters
    assert timeline.figure is not None
    assert [row[1] for row in timeline.figure.rows] == [history.first, history.second]
    assert timeline.by == "data_digest"
    drawn = {trace["name"] for trace in timeline.figure.plotly["data"]}
    assert {DATA[0][7:19], DATA[1][7:19]} <= drawn


def test_a_timeline_of_an_unknown_metric_or_parameter_is_an_error(history: History) -> None:
    versions, actor = history.world.service.versions, history.world.actor("viewer")
    with pytest.raises(
        InvalidError, match='no version has a metric "gini"; use one of auc, average_precision'
    ):
        versions.timeline(actor, CHECKPOINT, metric="gini")
    with pytest.raises(InvalidError, match='no version has a parameter "x"'):
        versions.timeline(actor, CHECKPOINT, by="x")
    empty = versions.timeline(actor, "action.authorise")
    assert (empty.metric, empty.figure) == ("", None)


# --- spans ---

START = datetime(2026, 5, 4, 9, 0, tzinfo=UTC)


def test_the_live_time_is_summed_over_releases_and_rollbacks(history: History) -> None:
    from sqlalchemy import insert

    from scorer.release.store import tables as t

    def lane(name: str, bundle: str, share: float = 1.0) -> LaneSpec:
        return LaneSpec(name, bundle, share=share)

    seen = LaneSpec("cr-000009", "c", mode="observe")
    tables = [
        (0, (lane(LIVE, "a"),), (seen, LaneSpec(CONTROL, "a", mode="observe"))),
        (10, (lane(CANARY, "b", 0.1), lane(LIVE, "a", 0.9)), ()),
        (30, (lane(LIVE, "b", 0.95), lane(HOLDOUT, "a", 0.05)), ()),
        (45, (lane(LIVE, "a"),), ()),
        (50, (lane(LIVE, "b"),), ()),
    ]
    spans = Spans()
    with history.world.platform.store.write() as connection:
        for revision, (minutes, answer, observe) in enumerate(tables, 1):
            if revision == 4:
                half = spans.of(connection, "spans.test")
                assert half.spans["a"].until == START + timedelta(minutes=30)
                assert half.places == {"b": Place.LIVE, "a": Place.HOLDOUT}
                assert half.shares == {"b": 0.95, "a": 0.05}
            connection.execute(
                insert(t.recorded_tables).values(
                    checkpoint="spans.test",
                    revision=revision,
                    answer=answer,
                    observe=observe,
                    at=START + timedelta(minutes=minutes),
                    actor="x",
                    cause="found",
                    alias_done=True,
                )
            )
        lanes = spans.of(connection, "spans.test")
    now = START + timedelta(minutes=60)
    a, b, c = (lanes.spans[name] for name in "abc")
    assert (a.live_seconds(now), a.until) == ((30 + 5) * 60, START + timedelta(minutes=50))
    assert (b.live_seconds(now), b.since, b.until) == ((15 + 10) * 60, START + timedelta(minutes=50), None)
    assert (c.answered, c.since, c.first_at) == (False, None, START)
    assert lanes.places == {"b": Place.LIVE}


def test_the_control_is_not_a_shadow_and_live_precedes_shadow() -> None:
    answer = [LaneSpec(LIVE, "a", share=1.0)]
    observe = [LaneSpec("cr-000001", "a", mode="observe"), LaneSpec(CONTROL, "z", mode="observe")]
    assert places(answer, observe) == {"a": Place.LIVE}


# --- lineage ---


def test_a_lineage_has_flat_names_with_numbers_and_texts() -> None:
    facts = lineage.read(
        {
            "data_digest": "sha256:aa",
            "run_id": "r",
            "library_versions": {"xgboost": "3.2.0"},
            "metrics": {"auc": 0.9, "deep": {"brier": 0.1}, "good": True, "nan": float("nan"), "text": "x"},
            "parameters": {"depth": 4, "monotone": [1, 0]},
            "importance": {"amount": 1.0},
        }
    )
    assert facts.metrics == {"auc": 0.9, "deep.brier": 0.1}
    assert facts.parameters == {
        "data_digest": "sha256:aa",
        "run_id": "r",
        "library_versions.xgboost": "3.2.0",
        "depth": "4",
        "monotone": "1, 0",
    }
    many = lineage.read({"metrics": {f"m{n}": n for n in range(500)}})
    assert len(many.metrics) == 200


def test_only_a_valid_run_id_becomes_an_address() -> None:
    run = "0a" * 16
    assert lineage.run_url("http://m:5000/", run) == f"http://m:5000/#/runs/{run}"
    assert lineage.run_url("http://m:5000", f"{run[:-3]}/..") == ""
    assert lineage.run_url("http://m:5000", "run-3") == ""
    assert lineage.run_url(None, run) == ""


def test_runs_are_linked_to_the_server_of_the_registry_unless_another_one_is_set(history: History) -> None:
    own = history.world.settings.platform
    assert own.runs_url == MLFLOW
    assert own.model_copy(update={"mlflow_url": None}).runs_url is None
    mlflow = own.model_copy(update={"mlflow_url": None, "registry": "mlflow:http://127.0.0.1:5000"})
    assert mlflow.runs_url == "http://127.0.0.1:5000"


def test_a_bundle_that_was_removed_from_the_registry_is_still_listed(history: History) -> None:
    """The lanes contain its digest. Without its manifest, it has no name and no metrics."""
    gone = "sha256:" + "9" * 64
    history.lanes((LaneSpec(LIVE, gone, share=1.0),))
    try:
        (one,) = (one for one in versions_of(history) if one.bundle.digest == gone)
        assert (one.place, one.bundle.name, one.metrics) == (Place.LIVE, "", {})
    finally:
        history.lanes(history.answer)


def test_a_registry_that_does_not_respond_is_called_once_per_list(history: History) -> None:
    requests: list[str] = []

    class Away:
        def manifest(self, digest: str) -> dict[str, object]:
            requests.append(digest)
            raise UnreachableError("the registry does not respond; try again")

    assert FactBook(Away()).lineages([history.live, history.first]) == {}  # type: ignore[arg-type]
    assert requests == [history.live]
