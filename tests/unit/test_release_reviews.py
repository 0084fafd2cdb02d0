"""Tests of the review queue on both engines: cases, assignment, decisions, permissions, clock, outbox."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from bundles import FEATURES
from observing import ADMIN, World
from reviewing import FRAUD, NOON, OTHER, SETTINGS, Queue, approve, decline
from sqlalchemy import func, select

from scorer.log.scanning import Entry
from scorer.release.audit import Audit
from scorer.release.errors import (
    ConflictError,
    InvalidError,
    NotAllowedError,
    NotFoundError,
    QuotaError,
)
from scorer.release.model import Actor, CaseDecision, CaseDelivery, CaseReason, CaseState, Role
from scorer.release.readout.schemas import Schemas
from scorer.release.requests import AssignCase, CaseFilter, CaseVersion, SetReasons
from scorer.release.review_settings import ReviewSettings
from scorer.release.reviews import Reviews
from scorer.release.reviews.intake import CaseIntake
from scorer.release.reviews.reasons import STANDARD
from scorer.release.store import Store
from scorer.release.store import tables as t
from scorer.v1.log_pb2 import DecisionRecord, ObservationRecord
from scorer.v1.scoring_pb2 import AppliedRules, OutcomeSourceKind, Reason


@pytest.fixture
def queue(store: Store) -> Queue:
    return Queue(store)


def count(queue: Queue, table: Any) -> int:
    with queue.store.read() as connection:
        return int(connection.scalar(select(func.count()).select_from(table)) or 0)


# --- finding cases ---


def test_decisions_with_the_label_become_cases_once(queue: Queue) -> None:
    a = queue.decision("a", minutes=3, reasons=["velocity"], feature_reasons=[Reason(code="new_device")])
    observed = ObservationRecord(decision=a.record)
    batch = [
        a,
        queue.decision("b", decision="approve"),
        queue.decision("c", checkpoint="action.authorise"),
        queue.decision("d", checkpoint=OTHER),
        queue.decision("e", checkpoint=OTHER, decision="review"),
        Entry(90, "observation", observed),
        queue.decision("a"),
    ]
    queue.take(*batch)
    queue.take(*batch)
    queue.take(*batch[3:], queue.decision("f"))
    queue.take(queue.decision("a"), server="live-2")
    assert sorted(queue.ids()) == ["a", "d", "f"]
    found = queue.case("a")
    assert (found.project, found.checkpoint, found.server, found.lane) == ("fraud", FRAUD, "live-1", "live")
    assert (found.score, found.amount, list(found.codes)) == (0.5, 12.5, ["velocity", "new_device"])
    assert (found.answered_at, found.found_at) == (NOON - timedelta(minutes=3), NOON)
    assert found.due_at == NOON + timedelta(minutes=57)
    assert (found.state, found.assignee, found.delivery) == (CaseState.OPEN, None, CaseDelivery.NONE)
    assert queue.case("d").due_at == NOON + timedelta(minutes=5)


def test_a_batch_larger_than_a_statement_is_taken(queue: Queue) -> None:
    batch = [queue.decision(f"d{number}") for number in range(1203)]
    queue.take(*batch[:700])
    queue.take(*batch)
    assert count(queue, t.review_cases) == 1203


def test_an_amount_that_is_sensitive_missing_or_unknown_is_not_stored(queue: Queue) -> None:
    nan = float("nan")
    queue.take(
        queue.decision("withheld", features=[30.0, nan], withheld=[1]),
        # The value must not be used, even if a writer has left it in the record.
        queue.decision("left", features=[30.0, 99.0], withheld=[1]),
        queue.decision("missing", features=[30.0, nan]),
        queue.decision("other", features=[30.0]),
    )
    assert {one.decision_id: one.amount for one in queue.cases()} == dict.fromkeys(
        ("withheld", "left", "missing", "other")
    )


def test_a_withdrawn_decision_has_no_case(queue: Queue) -> None:
    free, claimed, kept = queue.decision("free"), queue.decision("claimed"), queue.decision("kept")
    queue.take(free, claimed, kept)
    queue.later(hours=2)
    queue.reviews.watch()
    queue.reviews.claim(queue.mia, queue.case("claimed").id)
    queue.take(queue.withdrawal(kept), server="live-2")
    queue.take(queue.withdrawal(free), queue.withdrawal(claimed))
    assert queue.case("kept").state is CaseState.OPEN, "another server's record was withdrawn"
    assert queue.ids(decision_id="free") == []
    assert queue.case("claimed").state is CaseState.CLOSED
    assert queue.history("claimed")[-1] == "closed"
    queue.take(queue.decision("free"))
    assert queue.case("free").state is CaseState.OPEN, "the request was repeated"
    again = queue.decision("again")
    queue.take(again, queue.withdrawal(again))
    assert queue.ids(decision_id="again") == []


def test_an_old_decision_is_no_case_and_a_deleted_one_does_not_return(queue: Queue) -> None:
    batch = [queue.decision("a"), queue.decision("old", minutes=10 * 1440 + 1)]
    queue.take(*batch)
    assert queue.ids() == ["a"]
    queue.reviews.decide(queue.mia, queue.case("a").id, decline())
    queue.later(days=21)
    queue.reviews.watch()
    assert queue.ids() == ["a"], "its outcome is not delivered yet"
    assert queue.reviews.deliver() == 1
    queue.later(minutes=1)
    queue.reviews.watch()
    assert [count(queue, table) for table in (t.review_cases, t.review_events, t.review_outbox)] == [0, 0, 0]
    queue.take(*batch)
    assert queue.ids() == []


def test_the_pass_over_the_logs_finds_each_decision_once_also_after_a_kill(
    tmp_path: Path, built_bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, built_bundles["score-1"], built_bundles["score-2"])
    point = world.settings.checkpoints[world.checkpoint]
    reviewed = point.model_copy(update={"review": ReviewSettings(project="payments", amount=FEATURES[0])})
    world.settings.replace(fleet=(), checkpoints={world.checkpoint: reviewed})
    intake = CaseIntake(
        world.settings, world.store, Schemas(world.local.local).features, now=lambda: world.now
    )
    reviews = Reviews(world.settings, world.store, world.access, Audit(world.store))
    written: list[DecisionRecord] = []

    def append(count: int) -> None:
        records = world.records(count, first=len(written))
        written.extend(one.decision for one in records if one.WhichOneof("record") == "decision")
        world.logs["live-1"].append(records)

    def collect() -> None:
        # A new process, which knows what is in the database alone.
        world.readouts = world.new_collector()
        world.readouts._collector._cases = intake.take
        world.readouts.collect()

    append(30)
    collect()
    append(30)
    with monkeypatch.context() as patch:
        patch.setattr(type(world.readouts._collector), "_keep", _killed)
        with pytest.raises(KeyboardInterrupt):
            collect()
    append(10)
    collect()
    collect()
    found, _ = reviews.list(ADMIN, CaseFilter(), limit=1000)
    wanted = {one.decision_id: one.features[0] for one in written if one.decision == "review"}
    assert 5 < len(wanted) < len(written) == 70
    assert {one.decision_id: one.amount for one in found} == pytest.approx(wanted)
    assert len(found) == len(wanted)


def _killed(*_: Any) -> None:
    raise KeyboardInterrupt


# --- lists ---


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ({}, ["e", "d", "c", "b", "a"]),
        ({"state": "open"}, ["b", "c", "e"]),
        ({"state": "decided"}, ["d", "a"]),
        ({"project": "other"}, ["e"]),
        ({"checkpoint": FRAUD}, ["d", "c", "b", "a"]),
        ({"assignee": "mia"}, ["c", "a"]),
        ({"unassigned": True}, ["e", "b"]),
        ({"overdue": True}, ["b"]),
        ({"delivery": "waiting"}, ["d"]),
        ({"delivery": "delivered"}, ["a"]),
        ({"code": "velocity"}, ["c", "b"]),
        ({"code": "veloc"}, []),
        ({"queue": "level_2"}, ["d", "b"]),
        ({"queue": "level"}, []),
        ({"low": 0.6}, ["c", "b"]),
        ({"high": 0.55}, ["e", "d", "a"]),
        ({"amount_low": 100.0}, ["d"]),
        ({"amount_high": 10.0}, ["c"]),
        ({"begin": NOON - timedelta(minutes=30)}, ["e", "d", "c"]),
        ({"end": NOON - timedelta(minutes=30)}, ["b", "a"]),
        ({"decision_id": "c"}, ["c"]),
    ],
)
def test_cases_are_found_by_their_fields(queue: Queue, asked: dict[str, Any], names: list[str]) -> None:
    queue.take(
        queue.decision("a", minutes=90),
        queue.decision("b", minutes=80, score=0.6, reasons=["velocity"], rules=AppliedRules(queue="level_2")),
        queue.decision("c", minutes=20, score=0.7, features=[1.0, 5.0], reasons=["x", "velocity"]),
        queue.decision(
            "d",
            minutes=10,
            features=[1.0, 100.0],
            reasons=["velocity_2"],
            rules=AppliedRules(queue="level_2"),
        ),
        # It is due after the others, although its queue has the shortest time.
        queue.decision("e", minutes=-55.5, checkpoint=OTHER),
    )
    queue.reviews.decide(queue.mia, queue.case("a").id, decline())
    queue.reviews.deliver()
    queue.reviews.claim(queue.mia, queue.case("c").id)
    queue.reviews.decide(queue.max, queue.case("d").id, approve())
    assert queue.ids(**asked) == names


@pytest.mark.parametrize("state", ["open", None])
def test_pages_of_a_list_have_each_case_once(queue: Queue, state: str | None) -> None:
    queue.take(*(queue.decision(f"d{number}", minutes=number // 3) for number in range(20)))
    asked = CaseFilter(state=state)  # type: ignore[arg-type]
    whole, _ = queue.reviews.list(queue.mia, asked, limit=100)
    pages, cursor, turns = [], None, 0
    while turns < 10:
        found, cursor = queue.reviews.list(queue.mia, asked, cursor=cursor, limit=6)
        pages += found
        turns += 1
        if cursor is None:
            break
    assert pages == list(whole)
    assert (len(pages), turns) == (20, 4)
    due = [one.due_at for one in pages]
    assert due == sorted(due, reverse=state is None)
    for position in ("x", f"{'9' * 17}.1", f"1.{'9' * 30}"):
        with pytest.raises(InvalidError, match="omit the cursor"):
            queue.reviews.list(queue.mia, asked, cursor=position)
    queue.reviews.list(queue.mia, asked, cursor=f"{'9' * 16}.{'9' * 16}")


def test_the_next_case_is_the_most_urgent_that_is_free(queue: Queue) -> None:
    queue.take(*(queue.decision(name, minutes=m) for name, m in (("a", 5), ("b", 9), ("c", 7), ("d", 1))))
    queue.reviews.claim(queue.max, queue.case("b").id)
    number = queue.case("c").id
    assert queue.reviews.next(queue.mia, "fraud", after=0) == number
    assert queue.reviews.next(queue.mia, "fraud", after=number) == queue.case("a").id
    assert queue.reviews.next(queue.max, "fraud", after=0) == queue.case("b").id
    assert queue.reviews.next(queue.olga, "fraud", after=0) is None
    queue.take(queue.decision("e", minutes=30, rules=AppliedRules(queue="level_2")))
    assert queue.reviews.next(queue.mia, "fraud", after=0) == number
    assert queue.reviews.next(queue.mia, "fraud", after=0, queue="level_2") == queue.case("e").id


# --- assignment ---


def test_a_case_has_one_assignee(queue: Queue) -> None:
    queue.take(queue.decision("a"))
    number, reviews = queue.case("a").id, queue.reviews
    assert reviews.claim(queue.mia, number).assignee == "mia"
    assert reviews.claim(queue.mia, number).version == 2, "a repeated claim changes nothing"
    with pytest.raises(ConflictError, match="assigned to mia"):
        reviews.claim(queue.max, number)
    with pytest.raises(ConflictError, match="assigned to mia"):
        reviews.decide(queue.max, number, decline())
    with pytest.raises(NotAllowedError, match="only this user or an owner"):
        reviews.release(queue.max, number)
    with pytest.raises(NotAllowedError, match="only this user or an owner"):
        reviews.assign(queue.max, number, AssignCase(user="max"))
    assert reviews.assign(queue.mia, number, AssignCase(user="max")).assignee == "max"
    assert reviews.assign(queue.otto, number, AssignCase(user="mia")).assignee == "mia"
    assert reviews.release(queue.otto, number).assignee is None
    assert reviews.release(queue.max, number).assignee is None, "it has none already"
    assert reviews.assign(queue.max, number, AssignCase(user="mia")).assignee == "mia"
    assert queue.history("a") == ["claimed", "assigned", "assigned", "released", "assigned"]


@pytest.mark.parametrize("user", ["vera", "olga", "nobody"])
def test_a_case_is_assigned_to_reviewers_only(queue: Queue, user: str) -> None:
    queue.take(queue.decision("a"))
    with pytest.raises(InvalidError, match="not a modeler of project fraud"):
        queue.reviews.assign(queue.mia, queue.case("a").id, AssignCase(user=user))
    assert queue.case("a").assignee is None


def test_an_operation_on_an_older_version_is_refused(queue: Queue) -> None:
    queue.take(queue.decision("a"))
    number = queue.case("a").id
    queue.reviews.claim(queue.mia, number, CaseVersion(version=1))
    for work in (
        lambda: queue.reviews.release(queue.mia, number, CaseVersion(version=1)),
        lambda: queue.reviews.assign(queue.mia, number, AssignCase(user="max", version=1)),
        lambda: queue.reviews.decide(queue.mia, number, decline(version=1)),
    ):
        with pytest.raises(ConflictError, match="changed concurrently"):
            work()
    assert queue.reviews.decide(queue.mia, number, decline(version=2)).version == 3


# --- permissions ---

OPERATIONS: dict[str, Callable[[Queue, Any, int], Any]] = {
    "claim": lambda queue, actor, case: queue.reviews.claim(actor, case),
    "release": lambda queue, actor, case: queue.reviews.release(actor, case),
    "assign": lambda queue, actor, case: queue.reviews.assign(actor, case, AssignCase(user="mia")),
    "decide": lambda queue, actor, case: queue.reviews.decide(actor, case, decline()),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_roles_decide_who_reads_and_who_reviews(queue: Queue, name: str) -> None:
    work = OPERATIONS[name]
    queue.take(queue.decision("a"))
    number = queue.case("a").id
    with pytest.raises(NotAllowedError, match="requires modeler or above"):
        work(queue, queue.vera, number)
    assert queue.reviews.get(queue.vera, number).may_review is False
    with pytest.raises(NotFoundError) as hidden:
        work(queue, queue.olga, number)
    with pytest.raises(NotFoundError) as unknown:
        work(queue, queue.olga, 999)
    assert str(hidden.value).replace(str(number), "999") == str(unknown.value)
    for missing in (number, 0, -1, 10**30):
        with pytest.raises(NotFoundError):
            queue.reviews.get(queue.olga, missing)
    assert queue.ids(queue.vera) == ["a"]
    assert queue.ids(queue.olga) == []
    assert queue.reviews.of_decision(queue.olga, FRAUD, "a") is None
    assert queue.case("a").version == 1, "nothing was changed"
    work(queue, queue.otto, number)


def test_the_role_of_a_queue_is_a_setting(queue: Queue) -> None:
    queue.take(queue.decision("a", checkpoint=OTHER))
    number = queue.case("a").id
    assert queue.reviews.get(queue.olga, number).may_review is True
    assert queue.reviews.decide(queue.olga, number, decline()).decided_by == "olga"


def test_operations_are_in_the_audit_log(queue: Queue) -> None:
    queue.take(queue.decision("a"))
    number = queue.case("a").id
    queue.reviews.claim(queue.mia, number)
    queue.reviews.decide(queue.mia, number, decline(notes="card stolen"))
    found = queue.audit.entries(queue.admin, project="fraud", action="review.")
    assert [(one.action, one.actor, one.object) for one in found] == [
        ("review.decided", "mia", f"case {number}"),
        ("review.claimed", "mia", f"case {number}"),
    ]
    assert found[0].details["decision_id"] == "a"
    assert (found[0].details["reason"], found[0].details["notes"]) == ("confirmed_fraud", "card stolen")
    assert queue.audit.verify().problems == ()


# --- decisions ---


def test_a_decision_is_reported_as_an_outcome(queue: Queue) -> None:
    queue.take(queue.decision("a"), queue.decision("b"), queue.decision("r", checkpoint=OTHER))
    queue.later(minutes=4)
    found = queue.reviews.decide(queue.mia, queue.case("a").id, decline(notes=" stolen \n"))
    assert (found.state, found.decision, found.reason) == (
        CaseState.DECIDED,
        CaseDecision.DECLINE,
        "confirmed_fraud",
    )
    assert (found.notes, found.decided_by, found.assignee, found.ended_at) == (
        "stolen",
        "mia",
        "mia",
        queue.time,
    )
    assert (found.delivery, found.overdue) == (CaseDelivery.WAITING, False)
    queue.reviews.decide(queue.max, queue.case("b").id, approve())
    queue.reviews.decide(queue.olga, queue.case("r").id, decline())
    assert queue.reviews.deliver() == 3
    assert queue.reviews.deliver() == 0
    assert queue.servers.recorded == {
        (FRAUD, "a", "review"): {0: 1.0},
        (FRAUD, "b", "review"): {0: 0.0},
        (OTHER, "r", "refund_review"): {0: 1.0},
    }
    sources = [(one.source.kind, one.source.id) for one in queue.servers.requests]
    reviewer = OutcomeSourceKind.Value("OUTCOME_SOURCE_KIND_REVIEWER")
    assert sources == [(reviewer, f"case-{queue.case(name).id}") for name in ("a", "b", "r")]
    assert queue.servers.requests[0].occurred_at_ms == int(queue.time.timestamp() * 1000)
    assert {one.delivery for one in queue.cases()} == {CaseDelivery.DELIVERED}
    entry = queue.reviews.get(queue.mia, queue.case("a").id).history[-1]
    assert entry.action == "delivered"
    assert entry.details == {"server": "live-1", "revision": 0, "proven": True, "superseded": False}


def test_the_source_can_be_the_user(store: Store) -> None:
    queue = Queue(store, SETTINGS.replace("open_days = 10.0", 'source_id = "user"\nopen_days = 10.0'))
    queue.take(queue.decision("a"), queue.decision("b"))
    number = queue.case("a").id
    queue.reviews.decide(queue.mia, number, decline())
    queue.reviews.deliver()
    queue.reviews.decide(queue.otto, number, approve())
    queue.reviews.deliver()
    # A name that is longer than what servers accept is not sent.
    long = Actor("m" * 65, {"fraud": Role.MODELER}, via="token")
    queue.reviews.decide(long, queue.case("b").id, decline())
    queue.reviews.deliver()
    by_case = f"case-{queue.case('b').id}"
    assert [one.source.id for one in queue.servers.requests] == ["mia", "otto", by_case]


def test_a_correction_is_a_new_revision_and_a_repetition_is_not(queue: Queue) -> None:
    queue.take(queue.decision("a"))
    number = queue.case("a").id
    first = queue.reviews.decide(queue.mia, number, decline())
    assert queue.reviews.decide(queue.mia, number, decline()) == first
    assert queue.reviews.deliver() == 1
    with pytest.raises(NotAllowedError, match="was decided by mia"):
        queue.reviews.decide(queue.max, number, approve())
    queue.later(minutes=1)
    corrected = queue.reviews.decide(queue.otto, number, approve())
    assert (corrected.revision, corrected.decided_by, corrected.delivery) == (1, "otto", "waiting")
    assert corrected.ended_at == first.ended_at
    # The second correction replaces the first one, which was not sent.
    queue.reviews.decide(queue.otto, number, decline("suspected_fraud"))
    assert queue.reviews.deliver() == 1
    assert queue.servers.recorded[FRAUD, "a", "review"] == {0: 1.0, 2: 1.0}
    assert queue.history("a") == ["decided", "delivered", "decided", "decided", "delivered"]


@pytest.mark.parametrize(
    ("decision", "rule"),
    [
        (decline("customer_verified"), "not a reason of the project for decline"),
        (approve("confirmed_fraud"), "not a reason of the project for approve"),
        (decline("made_up"), "use one of confirmed_fraud, suspected_fraud, other"),
        (decline("other"), "the notes are empty"),
        (decline(decision_token="a"), "not base64"),
    ],
)
def test_a_decision_needs_a_reason_of_the_project(queue: Queue, decision: Any, rule: str) -> None:
    queue.take(queue.decision("a"))
    with pytest.raises(InvalidError, match=rule):
        queue.reviews.decide(queue.mia, queue.case("a").id, decision)
    assert (queue.case("a").state, count(queue, t.review_outbox)) == (CaseState.OPEN, 0)


def test_a_project_declares_its_reasons(queue: Queue) -> None:
    reviews = queue.reviews
    assert reviews.reasons(queue.vera, "fraud") == STANDARD
    own = [
        CaseReason("mule", "Money mule", CaseDecision.DECLINE),
        CaseReason("ok", "Checked by phone", CaseDecision.APPROVE),
    ]
    with pytest.raises(NotAllowedError):
        reviews.set_reasons(queue.mia, "fraud", SetReasons(reasons=own))
    assert list(reviews.set_reasons(queue.otto, "fraud", SetReasons(reasons=own))) == own
    assert reviews.reasons(queue.olga, "other") == STANDARD
    queue.take(queue.decision("a"))
    number = queue.case("a").id
    assert list(reviews.get(queue.mia, number).reasons) == own
    with pytest.raises(InvalidError, match="use one of mule"):
        reviews.decide(queue.mia, number, decline())
    reviews.decide(queue.mia, number, decline("mule"))
    for reasons, rule in (([own[0], own[0]], "given twice"), ([own[0]], "there is none for approve")):
        with pytest.raises(InvalidError, match=rule):
            reviews.set_reasons(queue.otto, "fraud", SetReasons(reasons=reasons))
    assert reviews.set_reasons(queue.otto, "fraud", SetReasons(reasons=[])) == STANDARD
    assert queue.case("a").reason == "mule"


def test_the_history_of_a_case_is_bounded(queue: Queue) -> None:
    queue.take(queue.decision("a"))
    number = queue.case("a").id
    for _ in range(100):
        queue.reviews.claim(queue.mia, number)
        queue.reviews.release(queue.mia, number)
    with pytest.raises(QuotaError, match="as many as it may"):
        queue.reviews.claim(queue.mia, number)
    assert queue.reviews.decide(queue.mia, number, decline()).state is CaseState.DECIDED


# --- the clock ---


def test_an_overdue_case_is_reported_once(queue: Queue) -> None:
    queue.channel()
    queue.take(queue.decision("a"), queue.decision("b", minutes=30), queue.decision("c", minutes=30))
    queue.reviews.decide(queue.mia, queue.case("c").id, decline())
    queue.later(minutes=30)
    queue.reviews.watch()
    assert (queue.case("b").overdue, queue.history("b")) == (False, []), "it is due now"
    queue.later(seconds=1)
    assert queue.case("b").overdue
    for _ in range(3):
        queue.reviews.watch()
    assert queue.history("b") == ["overdue"]
    queue.later(minutes=30)
    queue.reviews.watch()
    assert queue.history("a") == ["overdue"]
    assert queue.history("c") == ["decided"]
    sent = queue.notifications.deliveries(queue.otto, "fraud")
    assert [one.subject for one in sent] == [f"1 review is overdue at {FRAUD}"] * 2
    assert [(one["checkpoint"], one["cases"]) for one in queue.logged("reviews_overdue")] == [(FRAUD, 1)] * 2
    late = queue.reviews.decide(queue.mia, queue.case("b").id, approve())
    assert late.overdue, "it was decided after it was due"


def test_at_most_one_message_an_hour_reports_overdue_cases(queue: Queue) -> None:
    queue.channel()
    queue.take(*(queue.decision(f"d{number}", minutes=60 - number) for number in range(5)))
    for _ in range(6):
        queue.later(minutes=1)
        queue.reviews.watch()
    assert len(queue.notifications.deliveries(queue.otto, "fraud")) == 1
    assert sum(one["cases"] for one in queue.logged("reviews_overdue")) == 5


def test_a_case_that_nobody_decides_is_closed(queue: Queue) -> None:
    queue.take(queue.decision("a"))
    number = queue.case("a").id
    queue.later(days=10, seconds=1)
    queue.reviews.watch()
    assert queue.case("a").state is CaseState.CLOSED
    assert queue.history("a") == ["overdue", "closed"]
    with pytest.raises(ConflictError, match=f"case {number} is closed"):
        queue.reviews.decide(queue.mia, number, decline())
    assert queue.reviews.deliver() == 0
    queue.later(days=20, seconds=1)
    queue.reviews.watch()
    assert count(queue, t.review_cases) == 0


def test_open_overdue_and_undelivered_cases_are_counted(queue: Queue) -> None:
    queue.take(*(queue.decision(name, minutes=m) for name, m in (("a", 0), ("b", 61), ("c", 0), ("d", 0))))
    queue.reviews.decide(queue.mia, queue.case("c").id, decline())
    queue.reviews.decide(queue.mia, queue.case("d").id, decline())
    queue.servers.away = {"live-1"}
    queue.reviews.deliver()
    found = {one.checkpoint: (one.open, one.overdue, one.waiting) for one in queue.reviews.counts()}
    assert found == {FRAUD: (2, 1, 2), OTHER: (0, 0, 0)}
    assert queue.reviews.failed == 2


# --- the outbox ---


def decided(queue: Queue, name: str = "a", **more: Any) -> int:
    queue.take(queue.decision(name))
    number = queue.case(name).id
    queue.reviews.decide(queue.mia, number, decline(**more))
    return number


def test_an_outcome_is_reported_until_it_is_recorded(queue: Queue) -> None:
    number = decided(queue)
    queue.servers.away = {"live-1", "live-2"}
    for pause in (10, 40, 160):
        assert queue.reviews.deliver() == 0
        queue.later(seconds=pause - 1)
        called = len(queue.servers.calls)
        queue.reviews.deliver()
        assert len(queue.servers.calls) == called, "it is not due yet"
        queue.later(seconds=1)
    assert "does not respond" in queue.reviews.get(queue.mia, number).error
    assert queue.case("a").delivery is CaseDelivery.WAITING
    for _ in range(40):
        queue.later(hours=1)
        queue.reviews.deliver()
    queue.servers.away = set()
    queue.later(hours=1)
    assert queue.reviews.deliver() == 1
    assert queue.servers.recorded == {(FRAUD, "a", "review"): {0: 1.0}}
    assert queue.reviews.get(queue.mia, number).error == ""


def test_a_lost_response_is_repeated_with_the_same_revision(queue: Queue) -> None:
    decided(queue)
    queue.servers.lose = 1
    assert queue.reviews.deliver() == 0
    queue.later(seconds=10)
    assert queue.reviews.deliver() == 1
    assert [(one.revision, one.value) for one in queue.servers.requests] == [(0, 1.0), (0, 1.0)]
    assert queue.servers.recorded == {(FRAUD, "a", "review"): {0: 1.0}}
    assert queue.history("a") == ["decided", "delivered"]


def test_another_value_of_a_server_leads_to_the_next_revision(queue: Queue) -> None:
    queue.servers.recorded[FRAUD, "a", "review"] = {0: 0.0, 1: 0.0}
    number = decided(queue)
    assert [queue.reviews.deliver() for _ in range(3)] == [0, 0, 1]
    assert queue.servers.value("a") == 1.0
    assert queue.case("a").revision == 2
    assert queue.history("a") == ["decided", "revised", "revised", "delivered"]
    queue.reviews.decide(queue.mia, number, approve())
    assert queue.reviews.deliver() == 1
    assert queue.servers.value("a") == 0.0


def test_an_outcome_without_a_token_waits_for_the_server_of_its_decision(queue: Queue) -> None:
    decided(queue)
    queue.servers.away = {"live-1"}
    queue.reviews.deliver()
    queue.later(minutes=9)
    queue.reviews.deliver()
    assert set(queue.servers.calls) == {"live-1"}
    queue.later(minutes=2)
    assert queue.reviews.deliver() == 1
    assert queue.servers.calls[-2:] == ["live-1", "live-2"]


def test_an_outcome_with_a_token_goes_to_any_server(queue: Queue) -> None:
    token = bytes(range(250, 256)) * 3
    decided(queue, decision_token=base64.urlsafe_b64encode(token).decode().rstrip("="))
    queue.servers.away = {"live-1"}
    assert queue.reviews.deliver() == 1
    assert queue.servers.calls == ["live-1", "live-2"]
    assert queue.servers.requests[0].decision_token == token


@pytest.mark.parametrize("scoring", [True, False])
def test_the_address_of_a_balancer_is_used_for_servers_without_one(store: Store, scoring: bool) -> None:
    settings = """
[platform]
scoring = ["127.0.0.1:9"]
[[fleet]]
name = "live-1"
control = "127.0.0.1:1"
[checkpoints."fraud.checkout"]
alias = "fraud-checkout@live"
[checkpoints."fraud.checkout".review]
project = "fraud"
"""
    queue = Queue(store, settings if scoring else settings.replace('scoring = ["127.0.0.1:9"]', ""))
    number = decided(queue)
    assert queue.reviews.deliver() == int(scoring)
    if scoring:
        assert queue.servers.calls == ["127.0.0.1:9"]
    else:
        assert "no server has an address" in queue.reviews.get(queue.mia, number).error


def test_settings_of_a_queue_are_checked() -> None:
    from reviewing import SETTINGS

    from scorer.config.problems import InvalidSettingsError
    from scorer.release.settings import PlatformFile

    with pytest.raises(InvalidSettingsError, match="less than open_days"):
        PlatformFile.parse(SETTINGS.replace("keep_days = 20.0", "keep_days = 5.0"))
    with pytest.raises(InvalidSettingsError, match="role"):
        PlatformFile.parse(SETTINGS.replace('role = "viewer"', 'role = "guest"'))


def test_a_case_is_plain_json(queue: Queue) -> None:
    from pydantic import TypeAdapter

    queue.take(queue.decision("a", score=float("nan")))
    detail = queue.reviews.get(queue.mia, queue.case("a").id)
    shown = json.loads(TypeAdapter(type(detail)).dump_json(detail))
    assert (shown["case"]["score"], shown["case"]["state"]) == (None, "open")
