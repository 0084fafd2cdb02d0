"""Tests of change requests: permissions, transitions, and the messages of rejections."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from changing import CHECKPOINT, START, World, digest, stages

from scorer.release import states
from scorer.release.changes.plan import plan
from scorer.release.changes.writer import writing
from scorer.release.errors import (
    ConflictError,
    FrozenError,
    InvalidError,
    NotAllowedError,
    NotFoundError,
    PlatformError,
    QuotaError,
)
from scorer.release.model import (
    Actor,
    ChangeKind,
    ChangeState,
    GateSpec,
    LaneSpec,
    Outcome,
    Quotas,
    Role,
    Stage,
)
from scorer.release.requests import NewFreeze

S = ChangeState


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(f"sqlite:///{tmp_path}/platform.db")
    world.tick()
    yield world
    world.store.close()


def passed(world: World, bundle: str = "good-1") -> str:
    """Return a TEST that has passed."""
    test = world.test(bundle)
    assert world.until(test.id, S.DONE, S.REJECTED).verdict is Outcome.PASS
    return test.id


def awaiting_approval(world: World, bundle: str = "good-1", **more: object) -> str:
    """Return a RELEASE that waits for an approver."""
    passed(world, bundle)
    release = world.release(bundle, **more)
    world.until(release.id, S.REPORT)
    for _ in range(3):
        world.tick()
    return release.id


def released(world: World, bundle: str = "good-1", **more: object) -> str:
    """Return a RELEASE whose canary has started."""
    name = awaiting_approval(world, bundle, **more)
    world.changes.approve(world.bob, name)
    world.until(name, S.RELEASED)
    return name


# --- the state machine ---


def test_every_state_is_reached_and_left_and_final_states_only_by_a_rollback() -> None:
    targets = {move.target for move in states.MOVES} | {S.DRAFT}
    assert targets == set(S)
    for state in S:
        left = {move.name for move in states.MOVES if move.source is state}
        assert bool(left) != state.is_final or left == {"rollback"}


def test_the_documentation_names_every_state_operation_and_step(world: World) -> None:
    page = (Path(__file__).parents[2] / "docs" / "changes.md").read_text()
    for state in S:
        assert state.value in page, state
    people = {move.name for move in states.MOVES if move.who is not states.Who.PLATFORM} | set(states.WITHIN)
    for name in people:
        assert name in page, name
    change = world.changes.draft(world.ada, world.draft_of("good-1", ChangeKind.RELEASE))
    for _, step, _ in plan(change, world.settings):
        assert f"`{step}`" in page or step in ("slot", "deploy", "release"), step


def test_a_test_runs_through_every_step_and_removes_its_lanes(world: World) -> None:
    test = world.test("good-1")
    assert (test.state, test.step) == (S.CHECKS, "package")
    seen = [test.state]
    for _ in range(300):
        world.tick(0.5)
        now = world.get(test.id)
        if now.state is not seen[-1]:
            seen.append(now.state)
        if now.state is S.OBSERVING:
            assert (
                world.observe_lanes("live-1")
                == world.observe_lanes("live-2")
                == {test.id: "good-1", "aa": "live-0"}
            )
        if now.state.is_final:
            break
    assert seen == [S.CHECKS, S.BOOKED, S.DEPLOYING, S.OBSERVING, S.REPORT, S.DONE]
    assert now.verdict is Outcome.PASS
    world.tick()
    assert world.observe_lanes() == {}
    assert world.answer_lanes() == {"live": ("live-0", 1.0)}
    detail = world.changes.get(world.ada, test.id)
    assert [step.name for step in detail.steps] == [
        "package", "verify", "golden", "fit", "warm-up", "backtest", "slot", "deploy", "sample", "measure",
        "report",
    ]  # fmt: skip
    assert all(step.status == "done" and step.began and step.ended for step in detail.steps)
    assert detail.booking is not None
    assert not detail.booking.active
    assert world.readouts.finished[test.id] is Outcome.PASS
    # The progress is reported at a quarter, a half and three quarters.
    assert sum("% of its time" in message for message in world.messages_of(test.id)) == 3
    # Every event is sent as a notification.
    assert [body for _, body in world.notifications.messages][-1].startswith("its TEST is done: pass")


@pytest.mark.parametrize(
    ("bundle", "state", "verdict"),
    [("bad-1", S.REJECTED, Outcome.FAIL), ("thin-1", S.DONE, Outcome.INCONCLUSIVE)],
)
def test_a_test_that_does_not_pass_permits_no_release(
    world: World, bundle: str, state: S, verdict: Outcome
) -> None:
    test = world.test(bundle)
    result = world.until(test.id, S.DONE, S.REJECTED)
    assert (result.state, result.verdict) == (state, verdict)
    with pytest.raises(InvalidError, match=f"{test.id}.*draft another TEST"):
        world.release(bundle)


def test_a_failed_check_ends_the_change_with_its_message(world: World) -> None:
    test = world.test("slow-1")
    result = world.until(test.id, S.REJECTED)
    assert result.note.startswith("package refuses it")
    assert world.calendar.next_free(world.ada, CHECKPOINT, timedelta(minutes=1)).slot == 1


def test_a_release_proceeds_by_stages_and_moves_the_alias_last(world: World) -> None:
    name = released(world, holdout=0.1)
    seen = [world.answer_lanes()]
    while world.get(name).state is S.RELEASED:
        assert world.registry.moves == [] or world.answer_lanes() == {"live": ("good-1", 1.0)}
        world.tick(0.5)
        if world.answer_lanes() != seen[-1]:
            seen.append(world.answer_lanes())
    assert seen == [
        {"live": ("live-0", 1.0)},
        {"canary": ("good-1", 0.1), "live": ("live-0", 0.8), "holdout": ("live-0", 0.1)},
        {"canary": ("good-1", 0.5), "live": ("live-0", 0.4), "holdout": ("live-0", 0.1)},
        {"live": ("good-1", 1.0)},
    ]
    assert world.get(name).state is S.DONE
    assert world.registry.moves == [("fraud-checkout@live", digest("good-1"))]
    assert world.get(name).before == digest("live-0")


def test_a_release_can_have_separate_stages(world: World) -> None:
    name = released(world, stages=stages((0.3, 2.0)))
    world.tick()
    assert world.answer_lanes() == {"canary": ("good-1", 0.3), "live": ("live-0", 0.7)}
    assert world.until(name, S.DONE).state is S.DONE


def test_a_gate_that_fails_in_the_canary_rolls_it_back_at_once(world: World) -> None:
    name = released(world, "trap-1")
    world.until(name, S.ROLLED_BACK)
    # The servers get the lanes within the same tick.
    assert world.answer_lanes() == {"live": ("live-0", 1.0)}
    assert "error_rate" in world.get(name).note
    assert world.registry.moves == []


def test_a_canary_that_stays_inconclusive_waits_and_is_rolled_back(world: World) -> None:
    name = released(world, "vague-1")
    began = world.now
    world.until(name, S.ROLLED_BACK)
    # The stage lasts five minutes, and the patience ten.
    assert timedelta(minutes=15) <= world.now - began <= timedelta(minutes=18)
    assert sum("it waits up to 10 minutes more" in text for text in world.messages_of(name)) == 1


def test_a_stage_starts_when_every_server_has_it_and_is_rolled_back_if_one_does_not_follow(
    world: World,
) -> None:
    name = released(world)
    world.fleet.disconnect("live-2")
    world.run(minutes=8)
    assert (world.get(name).state, world.get(name).step) == (S.RELEASED, "canary 1")
    assert all(step != "canary 1" for _, step in world.readouts.judged), (
        "the time of the stage has not started"
    )
    assert "live-2" in world.messages_of(name)[-1]
    world.run(minutes=4)
    assert world.get(name).state is S.ROLLED_BACK
    assert world.answer_lanes("live-1") == {"live": ("live-0", 1.0)}


def test_the_last_stage_waits_for_every_server_and_the_alias_moves_afterwards(world: World) -> None:
    name = released(world)
    while world.get(name).step != "full":
        world.tick(1)
    world.fleet.disconnect("live-2")
    world.run(minutes=5)
    assert world.get(name).step == "full"
    assert world.registry.moves == []
    world.fleet.reconnect("live-2")
    world.registry.away = True
    world.run(minutes=5)
    assert world.get(name).step == "alias"
    world.registry.away = False
    assert world.until(name, S.DONE).state is S.DONE
    assert world.registry.moves == [("fraud-checkout@live", digest("good-1"))]


# --- two-person approval ---


def test_authors_and_submitters_neither_approve_nor_waive(world: World) -> None:
    passed(world)
    mixed = Actor("mia", {"fraud": Role.OWNER})
    draft = world.changes.draft(world.ada, world.draft_of("good-1", ChangeKind.RELEASE))
    edited = world.changes.edit(
        mixed, draft.id, world.draft_of("good-1", ChangeKind.RELEASE), version=draft.version
    )
    world.changes.submit(world.olga, edited.id)
    world.until(draft.id, S.REPORT)
    world.tick()
    world.tick()
    ada = Actor("ada", {"fraud": Role.OWNER})
    root = Actor("ada", admin=True)
    for actor in (ada, mixed, world.olga, root):
        with pytest.raises(NotAllowedError, match=f"{actor.user}.*{draft.id}.*four eyes"):
            world.changes.approve(actor, draft.id)
        with pytest.raises(NotAllowedError, match="four eyes"):
            world.changes.waive(actor, draft.id, metric="error_rate", reason="mine")
        assert "approve" not in world.changes.get(actor, draft.id).allowed
    assert "approve" in world.changes.get(world.bob, draft.id).allowed
    assert world.changes.approve(world.bob, draft.id).approved_by == "bob"


def test_a_modeler_may_not_approve(world: World) -> None:
    name = awaiting_approval(world)
    with pytest.raises(NotAllowedError):
        world.changes.approve(Actor("max", {"fraud": Role.MODELER}), name)


def test_the_second_of_two_approvers_gets_an_error_that_names_the_first(world: World) -> None:
    name = awaiting_approval(world)
    version = world.get(name).version
    world.changes.approve(world.bob, name, version=version)
    before = world.get(name)
    for given in (version, None):
        with pytest.raises(ConflictError, match="bob"):
            world.changes.approve(world.eve, name, version=given)
    assert world.get(name) == before


def test_one_of_two_concurrent_approvals_succeeds(world: World) -> None:
    """Both approvers have read the change before either of them writes."""
    name = awaiting_approval(world)
    see = world.changes._guard.see
    raced = []

    def slow(actor: Actor, change: str) -> object:
        result = see(actor, change)
        if actor is world.eve and not raced:
            raced.append(True)
            world.changes.approve(world.bob, name)
        return result

    world.changes._guard.see = slow  # type: ignore[method-assign, assignment]
    with pytest.raises(ConflictError, match="bob"):
        world.changes.approve(world.eve, name)
    assert world.get(name).approved_by == "bob"


def test_a_failed_gate_blocks_until_it_is_waived_and_the_waiver_is_recorded(world: World) -> None:
    passed(world)
    release = world.release("good-1")
    world.rows_per_minute = 0
    world.until(release.id, S.REPORT)
    world.tick()
    world.tick()
    result = world.get(release.id)
    assert result.verdict is Outcome.INCONCLUSIVE
    with pytest.raises(ConflictError, match=r"error_rate.*inconclusive"):
        world.changes.approve(world.bob, release.id)
    with pytest.raises(InvalidError, match="error_rate"):
        world.changes.waive(world.bob, release.id, metric="no_such", reason="why not")
    world.changes.waive(world.bob, release.id, metric="error_rate", reason="a quiet night")
    with pytest.raises(ConflictError, match="bob"):
        world.changes.waive(world.eve, release.id, metric="error_rate", reason="again")
    (gate,) = world.changes.get(world.ada, release.id).gates
    assert (gate.waived_by, gate.waived_why, gate.blocks) == ("bob", "a quiet night", False)
    world.changes.approve(world.eve, release.id)
    entries = world.audit.entries(world.admin, object=release.id)
    assert [entry.action for entry in entries][:2] == ["change.approve", "change.waive"]
    assert world.audit.verify().problems == ()


def test_a_change_that_is_still_observed_cannot_be_approved(world: World) -> None:
    passed(world)
    release = world.release("good-1")
    with pytest.raises(ConflictError, match="approve requires report"):
        world.changes.approve(world.bob, release.id)
    test = world.test("good-2")
    world.until(test.id, S.REPORT)
    with pytest.raises(ConflictError, match="no approve"):
        world.changes.approve(world.bob, test.id)


def test_an_outdated_step_changes_nothing(world: World) -> None:
    """The runner reads the change, then a user withdraws it, and then the runner writes."""
    test = world.test("good-1")
    stale = world.get(test.id)
    world.changes.withdraw(world.ada, test.id, reason="no more")
    before = world.get(test.id), world.audit.head(), world.messages_of(test.id)
    for name in ("checked", "expire"):
        with pytest.raises(ConflictError, match="ada"), writing(world.parts, stale) as work:
            work.move(name, "too late")
    with pytest.raises(ConflictError, match="ada"):
        world.pipeline._check(stale)
    assert (world.get(test.id), world.audit.head(), world.messages_of(test.id)) == before


# --- refusals ---


def bad(**more: object) -> dict[str, object]:
    return more


@pytest.mark.parametrize(
    ("more", "error", "words"),
    [
        (bad(checkpoint="fraud.nowhere"), NotFoundError, "fraud.checkout"),
        (bad(bundle="nothing-1"), NotFoundError, "upload"),
        (bad(project="nobody"), PlatformError, "nobody"),
        (bad(title="  "), InvalidError, "title"),
        (bad(minutes=0), InvalidError, "more than 0"),
        (bad(minutes=-5), InvalidError, "more than 0"),
        (bad(minutes=math.nan), InvalidError, "more than 0"),
        (bad(minutes=1e9), InvalidError, "at most 20160"),
        (bad(sample=0.0), InvalidError, "above 0 and at most 1"),
        (bad(sample=1.5), InvalidError, "above 0 and at most 1"),
        (bad(sample=math.nan), InvalidError, "above 0 and at most 1"),
        (bad(pool=True), InvalidError, "no shadow pool"),
        (bad(stages=stages((0.5, 5), (0.1, 5))), InvalidError, "rising order"),
        (bad(stages=stages((0.1, 5), (0.1, 5))), InvalidError, "rising order"),
        (bad(stages=stages((1.0, 5))), InvalidError, "below 1"),
        (bad(stages=stages((0.0, 5))), InvalidError, "above 0"),
        (bad(stages=stages((0.1, 0))), InvalidError, "more than 0"),
        (bad(stages=stages((0.1, math.inf))), InvalidError, "more than 0"),
        (bad(stages=tuple(Stage(0.01 * n, 1) for n in range(1, 30))), InvalidError, "at most 20"),
        (bad(holdout=-0.1), InvalidError, "holdout"),
        (bad(holdout=math.nan), InvalidError, "holdout"),
        (bad(stages=stages((0.9, 5)), holdout=0.2), InvalidError, "add up to 1.1.*at most 1"),
        (bad(gates=(GateSpec("nonsense", "<= 1"),)), InvalidError, "nonsense"),
        (bad(gates=(GateSpec("error_rate", "== 0"),) * 2), InvalidError, "twice"),
    ],
)
def test_an_invalid_draft_is_refused_and_not_stored(
    world: World, more: dict[str, object], error: type[PlatformError], words: str
) -> None:
    before = world.audit.head()
    with pytest.raises(error, match=words):
        world.changes.draft(world.ada, world.draft_of(**{"bundle": "good-1", **more}))  # type: ignore[arg-type]
    assert world.all_changes() == []
    assert world.audit.head() == before


def test_a_bundle_without_a_trusted_signature_is_refused_when_it_is_drafted(world: World) -> None:
    world.bundles.unsigned.add("good-1")
    with pytest.raises(InvalidError, match="no signature"):
        world.test("good-1")
    world.bundles.unsigned.clear()
    assert world.test("good-1").id


def test_an_unsuitable_bundle_is_refused_by_name_and_no_slot_is_booked(world: World) -> None:
    world.bundles.features["good-1"] = [
        {"name": "amount", "type": "category"},
        {"name": "device_age", "type": "number", "missing": "refuse"},
    ]
    world.bundles.kinds["good-2"] = "action"
    world.bundles.bundle_names["good-3"] = "another"
    for bundle, words in (
        ("good-1", "does not feed device_age.*amount"),
        ("good-2", 'kind "score"'),
        ("good-3", "another"),
    ):
        draft = world.changes.draft(world.ada, world.draft_of(bundle, checkpoint=CHECKPOINT))
        with pytest.raises(InvalidError, match=words):
            world.changes.submit(world.ada, draft.id)
        assert world.get(draft.id) == draft
    page = world.calendar.page(world.ada, START - timedelta(days=1), START + timedelta(days=1))
    assert page.bookings == ()


def test_a_release_without_a_passed_test_names_what_is_missing(world: World) -> None:
    with pytest.raises(InvalidError, match="draft a TEST of it first"):
        world.release("good-1")
    test = world.test("good-1")
    with pytest.raises(InvalidError, match=f'{test.id}.*"checks".*wait'):
        world.release("good-1")
    world.until(test.id, S.DONE)
    # A TEST of another project does not count.
    sam = Actor("sam", {"other": Role.MODELER})
    with pytest.raises(InvalidError, match="draft a TEST of it first"):
        world.release("good-1", actor=sam, project="other")
    assert world.release("good-1").test == test.id


def test_a_bundle_that_answers_already_is_not_released(world: World) -> None:
    with pytest.raises(InvalidError, match=r"answers.*already"):
        world.release("live-0")


def test_a_change_of_another_project_is_not_revealed(world: World) -> None:
    test = world.test("good-1")
    operations = (
        lambda: world.changes.get(world.stranger, test.id),
        lambda: world.changes.withdraw(world.stranger, test.id, reason="x"),
        lambda: world.changes.rollback(world.stranger, test.id, reason="x"),
    )
    for operation in operations:
        with pytest.raises(NotFoundError, match=test.id):
            operation()
    assert world.changes.list(world.stranger) == []
    with pytest.raises(NotFoundError):
        world.changes.get(world.ada, "cr-999999")


def test_overlapping_bookings_are_refused_with_the_next_free_slot(world: World) -> None:
    start = world.now + timedelta(hours=1)
    first = world.changes.draft(world.ada, world.draft_of("good-1"))
    second = world.changes.draft(world.ada, world.draft_of("good-2"))
    third = world.changes.draft(world.ada, world.draft_of("good-3"))
    world.changes.submit(world.ada, first.id, start=start, slot=2)
    with pytest.raises(ConflictError, match=f"slot 2.*{first.id}.*next free: slot 1 from 2026-05-04 10:10"):
        world.changes.submit(world.ada, second.id, start=start + timedelta(minutes=10), slot=2)
    assert world.get(second.id).state is S.DRAFT
    world.changes.submit(world.ada, second.id, start=start)
    with pytest.raises(ConflictError, match=r"every slot.*next free: slot . from 2026-05-04 10:30"):
        world.changes.submit(world.ada, third.id, start=start)
    moved = world.changes.rebook(world.ada, second.id, start=start + timedelta(hours=1), minutes=10)
    assert moved.minutes == 10
    world.changes.submit(world.ada, third.id, start=start)


def test_a_booking_that_starts_in_a_freeze_is_refused(world: World) -> None:
    world.calendar.add_freeze(
        world.admin,
        NewFreeze(
            name="weekend",
            kind="deny",
            cron="0 17 * * fri",
            timezone="Europe/Berlin",
            minutes=3000,
            reason="rest",
        ),
    )
    draft = world.changes.draft(world.ada, world.draft_of("good-1"))
    friday = START.replace(day=8, hour=16)
    with pytest.raises(FrozenError, match=r'"weekend" \(rest\) until 2026-05-10 17:00.*next free: slot 1'):
        world.changes.submit(world.ada, draft.id, start=friday)
    assert world.get(draft.id).state is S.DRAFT
    with pytest.raises(NotAllowedError):
        world.calendar.add_freeze(
            world.olga, NewFreeze(name="x", kind="deny", cron="* * * * *", timezone="UTC", minutes=1)
        )
    with pytest.raises(InvalidError, match="in the past"):
        world.changes.submit(world.ada, draft.id, start=START - timedelta(hours=1))


def test_quotas_are_those_of_the_project(world: World) -> None:
    world.access.update_project(world.admin, "fraud", quotas=Quotas(open_changes=2, slot_minutes_per_week=45))
    first, second = (world.changes.draft(world.ada, world.draft_of(f"good-{n}")) for n in (1, 2))
    with pytest.raises(QuotaError, match="2 open change requests"):
        world.changes.draft(world.ada, world.draft_of("good-3"))
    world.changes.submit(world.ada, first.id)
    with pytest.raises(QuotaError, match="15 left in the week of 2026-05-04"):
        world.changes.submit(world.ada, second.id)
    world.changes.submit(world.ada, second.id, start=START + timedelta(days=7))
    world.changes.withdraw(world.ada, first.id, reason="no time")
    world.changes.draft(world.ada, world.draft_of("good-3"))


def test_a_draft_is_created_once_per_idempotency_key(world: World) -> None:
    first = world.changes.draft(world.ada, world.draft_of("good-1"), key="abc")
    assert world.changes.draft(world.ada, world.draft_of("good-1"), key="abc") == first
    with pytest.raises(ConflictError, match="another draft"):
        world.changes.draft(world.ada, world.draft_of("good-2"), key="abc")
    assert world.changes.draft(world.olga, world.draft_of("good-1"), key="abc").id != first.id


def test_an_outdated_version_is_refused_and_the_error_names_the_earlier_user(world: World) -> None:
    draft = world.changes.draft(world.ada, world.draft_of("good-1"))
    world.changes.edit(world.olga, draft.id, world.draft_of("good-2"), version=1)
    with pytest.raises(ConflictError, match="olga"):
        world.changes.edit(world.ada, draft.id, world.draft_of("good-3"), version=1)
    assert world.get(draft.id).bundle == digest("good-2")


# --- ends ---


@pytest.mark.parametrize("state", [S.CHECKS, S.OBSERVING, S.REPORT, S.APPROVED])
@pytest.mark.parametrize("how", ["withdraw", "reject"])
def test_a_change_may_be_withdrawn_at_any_time_before_its_release(world: World, state: S, how: str) -> None:
    passed(world)
    release = world.release("good-1")
    world.until(release.id, state if state is not S.APPROVED else S.REPORT)
    if state is S.APPROVED:
        world.tick()
        world.tick()
        world.changes.approve(world.bob, release.id)
    if how == "withdraw":
        ended = world.changes.withdraw(world.ada, release.id, reason="a better one is coming")
    else:
        ended = world.changes.reject(world.bob, release.id, reason="a better one is coming")
    assert ended.state is S.REJECTED
    if state is S.REPORT:
        world.tick()
    assert world.observe_lanes() == {}
    assert world.answer_lanes() == {"live": ("live-0", 1.0)}
    booking = world.changes.get(world.ada, release.id).booking
    assert booking is not None
    assert not booking.active
    with pytest.raises(ConflictError, match="draft a new"):
        world.changes.withdraw(world.ada, release.id, reason="again")


def test_the_submitter_rolls_a_release_back_with_one_call(world: World) -> None:
    name = released(world)
    world.tick()
    assert "canary" in world.answer_lanes()
    with pytest.raises(NotAllowedError):
        world.changes.rollback(Actor("max", {"fraud": Role.MODELER}), name, reason="x")
    with pytest.raises(ConflictError, match="roll it back"):
        world.changes.withdraw(world.ada, name, reason="x")
    assert world.changes.rollback(world.ada, name, reason="declines").state is S.ROLLED_BACK
    assert world.answer_lanes("live-1") == world.answer_lanes("live-2") == {"live": ("live-0", 1.0)}
    assert world.tables()[-1].cause == "rollback"
    assert world.checkpoints.rolled_back_at(CHECKPOINT) == world.now


def test_a_completed_release_can_be_rolled_back_while_it_answers_and_the_alias_follows(world: World) -> None:
    first = released(world, "good-1")
    world.until(first, S.DONE)
    second = released(world, "good-2")
    world.until(second, S.DONE)
    with pytest.raises(ConflictError, match="not what answers"):
        world.changes.rollback(world.ada, first, reason="x")
    assert "rollback" not in world.changes.get(world.ada, first).allowed
    assert "rollback" in world.changes.get(world.ada, second).allowed
    world.changes.rollback(world.ada, second, reason="x")
    assert world.answer_lanes() == {"live": ("good-1", 1.0)}
    assert world.registry.aliases_["fraud-checkout@live"] == digest("good-1")
    assert "rollback" not in world.changes.get(world.ada, first).allowed


def test_each_rollback_of_a_checkpoint_goes_one_table_further_back(world: World) -> None:
    for bundle in ("good-1", "good-2"):
        world.until(released(world, bundle), S.DONE)
    world.checkpoints.rollback(world.olga, CHECKPOINT, reason="one")
    assert world.answer_lanes() == {"live": ("good-1", 1.0)}
    with pytest.raises(NotAllowedError):
        world.checkpoints.rollback(world.bob, CHECKPOINT, reason="two")
    world.checkpoints.rollback(world.olga, CHECKPOINT, reason="two")
    assert world.answer_lanes() == {"live": ("live-0", 1.0)}
    assert world.registry.aliases_["fraud-checkout@live"] == digest("live-0")
    with pytest.raises(ConflictError, match="no earlier lanes"):
        world.checkpoints.rollback(world.olga, CHECKPOINT, reason="three")


def test_a_rollback_does_not_wait_for_freezes_or_servers(world: World) -> None:
    name = released(world)
    world.tick()
    world.calendar.add_freeze(
        world.admin, NewFreeze(name="all", kind="deny", cron="* * * * *", timezone="UTC", minutes=60)
    )
    world.fleet.disconnect("live-2")
    world.registry.away = True
    world.changes.rollback(world.ada, name, reason="now")
    assert world.answer_lanes("live-1") == {"live": ("live-0", 1.0)}
    assert "canary" in world.answer_lanes("live-2")
    world.fleet.reconnect("live-2")
    world.tick()
    assert world.answer_lanes("live-2") == {"live": ("live-0", 1.0)}


def test_releases_wait_during_a_freeze_and_report_it_once(world: World) -> None:
    name = awaiting_approval(world)
    freeze = world.calendar.add_freeze(
        world.admin, NewFreeze(name="sale", kind="deny", cron="0 0 * * *", timezone="UTC", minutes=1440 * 3)
    )
    world.changes.approve(world.bob, name)
    world.run(minutes=30)
    assert world.get(name).state is S.APPROVED
    assert sum('frozen by "sale"' in text for text in world.messages_of(name)) == 1
    world.calendar.remove_freeze(world.admin, freeze.id)
    world.until(name, S.RELEASED)
    world.tick()
    again = world.calendar.add_freeze(
        world.admin, NewFreeze(name="sale", kind="deny", cron="0 0 * * *", timezone="UTC", minutes=1440 * 3)
    )
    world.run(minutes=60)
    assert world.get(name).step == "canary 1"
    world.calendar.remove_freeze(world.admin, again.id)
    assert world.until(name, S.DONE).state is S.DONE


def test_a_checkpoint_has_one_release_at_a_time(world: World) -> None:
    names = awaiting_approval(world), awaiting_approval(world, "good-2")
    for name in names:
        world.changes.approve(world.bob, name)
    for _ in range(40):
        world.tick(1)
        assert [world.get(name).state for name in names].count(S.RELEASED) <= 1
    assert [world.get(name).state for name in names] == [S.DONE, S.DONE]
    assert world.answer_lanes() == {"live": ("good-2", 1.0)}
    assert any(f"waits until {names[0]} is released" in text for text in world.messages_of(names[1]))


# --- sampling ---


def test_sampling_changes_running_lanes(world: World) -> None:
    test = world.test("good-1")
    world.until(test.id, S.OBSERVING)
    conditions = '[{"feature": "amount", "op": ">", "value": 100}]'
    with pytest.raises(NotAllowedError):
        world.checkpoints.set_sampling(world.ada, CHECKPOINT, sample=0.2)
    for sample in (0.0, 1.5, math.nan):
        with pytest.raises(InvalidError, match="above 0 and at most 1"):
            world.checkpoints.set_sampling(world.olga, CHECKPOINT, sample=sample)
    with pytest.raises(InvalidError, match="not JSON"):
        world.checkpoints.set_sampling(world.olga, CHECKPOINT, sample=0.2, filter="amount > 100")
    view = world.checkpoints.set_sampling(world.olga, CHECKPOINT, sample=0.2, filter=conditions)
    lanes = {lane.name: lane for lane in world.fleet.held("live-1").checkpoints[CHECKPOINT].observe}
    assert {(lane.sample, lane.filter) for lane in lanes.values()} == {(0.2, conditions)}
    assert set(lanes) == {test.id, "aa"}
    assert (view.sample, view.filter) == (0.2, conditions)
    assert all(member.in_step for member in view.members)


def test_servers_of_a_pool_get_the_lanes_of_the_pool(tmp_path: Path) -> None:
    world = World(f"sqlite:///{tmp_path}/pool.db", members=1, pool=True)
    test = world.test("good-1", pool=True)
    world.until(test.id, S.OBSERVING)
    other = world.test("good-2")
    world.until(other.id, S.OBSERVING)
    assert set(world.observe_lanes("pool")) == {test.id}
    lanes = {lane.name: lane.pool for lane in world.fleet.held("live-1").checkpoints[CHECKPOINT].observe}
    # A live server also gets the lanes of the pool, because it sends their requests there.
    assert lanes == {test.id: True, other.id: False, "aa": False}
    assert world.until(test.id, S.DONE).verdict is Outcome.PASS
    world.tick()
    assert world.observe_lanes("pool") == {}
    world.store.close()


# --- servers ---


def test_the_initial_lanes_of_servers_are_recorded_as_found(world: World) -> None:
    (table,) = world.tables()
    assert (table.cause, table.answer[0].bundle, table.revision) == ("found", digest("live-0"), 1)
    assert "lanes.found" in [entry.action for entry in world.audit.entries(world.admin)]


def test_a_change_outside_of_the_platform_is_recorded_and_the_other_servers_follow(world: World) -> None:
    lane = LaneSpec("live", digest("other-1"), share=1.0)
    world.fleet.change_outside("live-2", CHECKPOINT, answer=[lane])
    world.tick()
    world.tick()
    assert world.tables()[-1].cause == "found"
    assert world.answer_lanes("live-1") == world.answer_lanes("live-2") == {"live": ("other-1", 1.0)}


def test_a_change_outside_of_the_platform_ends_a_release_and_is_kept(world: World) -> None:
    name = released(world)
    world.tick()
    world.tick()
    lane = LaneSpec("live", digest("live-0"), share=1.0)
    world.fleet.change_outside("live-1", CHECKPOINT, answer=[lane])
    assert world.until(name, S.ROLLED_BACK).note.startswith("lanes were changed while it was released")
    world.tick()
    assert world.answer_lanes("live-1") == world.answer_lanes("live-2") == {"live": ("live-0", 1.0)}


def test_a_server_that_was_unreachable_or_lost_its_state_follows(world: World) -> None:
    world.fleet.disconnect("live-2")
    test = world.test("good-1")
    world.run(minutes=10)
    assert world.get(test.id).state is S.DEPLOYING
    assert any("live-2" in text for text in world.messages_of(test.id))
    held = world.fleet.held("live-2")
    held.version = 0
    world.fleet.reconnect("live-2")
    assert world.until(test.id, S.OBSERVING)
    assert set(world.observe_lanes("live-2")) == {test.id, "aa"}
    # The server booted from an alias that names another bundle by now.
    lane = LaneSpec("live", digest("other-2"), share=1.0)
    world.fleet.change_outside("live-2", CHECKPOINT, answer=[lane])
    held.version = 0
    world.tick()
    assert world.answer_lanes("live-2") == {"live": ("live-0", 1.0)}
    assert [table.cause for table in world.tables()].count("found") == 1


def test_a_server_that_refuses_is_called_less_often_and_the_change_ends(world: World) -> None:
    world.fleet.refuse[digest("good-1")] = "golden case 17 gives other bits"
    test = world.test("good-1", minutes=120.0)
    world.until(test.id, S.DEPLOYING)
    before = len(world.fleet.calls)
    for _ in range(40):
        world.tick(0.01)
    calls = len(world.fleet.calls) - before
    assert calls <= 2 * 6, "the calls must become less frequent"
    view = world.checkpoints.view(world.ada, CHECKPOINT)
    assert any("golden case 17" in member.error for member in view.members)
    assert "golden case 17" in world.until(test.id, S.REJECTED).note
    world.tick(10)
    assert all(member.in_step for member in world.checkpoints.view(world.ada, CHECKPOINT).members)


# --- the clock ---


def test_a_platform_that_was_down_at_the_end_of_a_test_evaluates_the_existing_rows(world: World) -> None:
    test = world.test("good-1")
    world.until(test.id, S.OBSERVING)
    world.now += timedelta(days=2)
    result = world.until(test.id, S.DONE)
    assert result.verdict is Outcome.INCONCLUSIVE
    late = world.test("good-2")
    world.until(late.id, S.OBSERVING)
    world.run(minutes=10)
    world.now += timedelta(days=2)
    assert world.until(late.id, S.DONE).verdict is Outcome.PASS


@pytest.mark.parametrize("state", [S.CHECKS, S.BOOKED, S.DEPLOYING])
def test_a_booking_that_passed_before_it_was_deployed_expires(world: World, state: S) -> None:
    if state is S.DEPLOYING:
        world.fleet.disconnect("live-1")
    test = world.test("good-1")
    world.until(test.id, state)
    world.now += timedelta(days=1)
    world.tick()
    assert world.get(test.id).state is S.EXPIRED
    world.fleet.reconnect("live-1")
    world.tick()
    assert world.observe_lanes() == {}


def test_a_release_without_an_approval_expires(world: World) -> None:
    name = awaiting_approval(world)
    world.tick(60 * 24 * 8)
    assert world.get(name).state is S.EXPIRED


def test_a_clock_that_is_set_back_repeats_and_reopens_nothing(world: World) -> None:
    test = world.test("good-1")
    world.until(test.id, S.DONE)
    version, messages = world.get(test.id).version, world.messages_of(test.id)
    world.now -= timedelta(days=1)
    world.run(minutes=5)
    assert (world.get(test.id).version, world.messages_of(test.id)) == (version, messages)
    release = world.release("good-1")
    world.until(release.id, S.REPORT)
    world.tick()
    world.tick()
    world.changes.approve(world.bob, release.id)
    world.until(release.id, S.RELEASED)
    world.run(minutes=2, step=0.5)
    world.now -= timedelta(hours=6)
    began = world.now
    world.until(release.id, S.DONE)
    # Each stage lasts five minutes after the jump, and does not wait until the clock reaches the old time.
    assert timedelta(minutes=10) <= world.now - began <= timedelta(minutes=20)


# --- failures ---


def test_a_failing_change_does_not_stop_the_others(world: World) -> None:
    broken, sound = world.test("good-1"), world.test("good-2")
    check = world.pipeline._check

    def fails(change: object) -> None:
        if getattr(change, "id", "") == broken.id:
            raise ZeroDivisionError
        check(change)  # type: ignore[arg-type]

    world.pipeline._check = fails  # type: ignore[method-assign, assignment]
    world.until(sound.id, S.BOOKED)
    events = [e for e in world.changes.get(world.ada, broken.id).events if "ZeroDivisionError" in e.message]
    assert events[0].details["id"] in events[0].message
    world.pipeline._check = check  # type: ignore[method-assign]
    world.until(broken.id, S.BOOKED)


def test_an_internal_error_is_not_repeated_without_end(world: World) -> None:
    broken = world.test("good-1", minutes=600.0)
    tries = []

    def fails(_: object) -> None:
        tries.append(world.now)
        raise ZeroDivisionError

    world.pipeline._check = fails  # type: ignore[method-assign, assignment]
    for _ in range(150):
        world.tick(1 / 30)
    assert 4 <= len(tries) <= 9
    assert world.get(broken.id).state is S.CHECKS


def test_a_change_can_be_read_without_the_registry(world: World) -> None:
    test = world.test("good-1")
    world.bundles.names.pop(digest("live-0"))
    assert "error" in world.changes.get(world.ada, test.id).diff
