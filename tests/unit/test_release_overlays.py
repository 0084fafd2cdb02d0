"""Tests of change requests of kind `overlay`, and of the standing permissions for them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from changing import OTHER, World, digest, stages
from sqlalchemy import event, select

from scorer.release.changes.checks import Checked
from scorer.release.errors import (
    ConflictError,
    FrozenError,
    InvalidError,
    NotAllowedError,
    NotFoundError,
    QuotaError,
)
from scorer.release.lanes import recorded
from scorer.release.model import Actor, ChangeKind, ChangeState, Role
from scorer.release.requests import NewFreeze, NewPermission, read_form
from scorer.release.store import tables as t

LOOP = Actor("loop", {"fraud": Role.MODELER})


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(f"sqlite:///{tmp_path}/platform.db")
    world.access.add_user(world.admin, "loop")
    world.access.set_member(world.admin, "fraud", "loop", Role.MODELER)
    world.tick()
    yield world
    world.store.close()


def grant(world: World, kind: ChangeKind = ChangeKind.OVERLAY, **more: Any) -> Any:
    values = {"checkpoint": OTHER, "user": "loop", "days": 30.0, "reason": "weekly loop", "per_hour": 12}
    return world.permissions.grant(
        world.olga, "fraud", read_form(NewPermission, {"kind": kind, **values, **more})
    )


def revise(world: World, bundle: str) -> Any:
    """Draft and submit a revision as the learning loop does."""
    asks = world.draft_of(bundle, ChangeKind.OVERLAY, checkpoint=OTHER)
    change = world.changes.draft(LOOP, asks, key=f"overlay:{bundle}")
    return world.changes.submit(LOOP, change.id)


def published(world: World, bundle: str) -> Any:
    return world.until(revise(world, bundle).id, ChangeState.DONE)


def answers(world: World) -> dict[str, tuple[str, float]]:
    return world.answer_lanes(checkpoint=OTHER)


def approved_release(world: World, bundle: str, **more: Any) -> Any:
    world.until(world.test(bundle).id, ChangeState.DONE)
    change = world.release(bundle, **more)
    world.until(change.id, ChangeState.REPORT)
    world.tick(1)
    return world.changes.approve(world.bob, change.id)


# --- permissions ---


def test_without_a_permission_the_loop_is_refused_with_the_remedy(world: World) -> None:
    with pytest.raises(NotAllowedError, match=r"no standing permission .* an owner of project fraud"):
        revise(world, "act-0-r1")
    assert answers(world) == {"live": ("act-0", 1.0)}


def test_owners_grant_and_revoke_and_both_are_audited(world: World) -> None:
    for who in (world.ada, world.bob):
        with pytest.raises(NotAllowedError):
            world.permissions.grant(
                who,
                "fraud",
                NewPermission(kind=ChangeKind.OVERLAY, checkpoint=OTHER, user="loop", days=1, reason="x"),
            )
    permission = grant(world, max_shift=0.5)
    assert [each.id for each in world.permissions.list(world.ada, "fraud")] == [permission.id]
    with pytest.raises(NotAllowedError):
        world.permissions.revoke(world.ada, permission.id, reason="x")
    revoked = world.permissions.revoke(world.olga, permission.id, reason="drifts")
    assert (revoked.revoked_by, revoked.revoked_at) == ("olga", world.now)
    with pytest.raises(ConflictError, match="revoked already"):
        world.permissions.revoke(world.olga, permission.id, reason="again")
    with pytest.raises(NotAllowedError):
        revise(world, "act-0-r1")
    with world.store.read() as connection:
        entries = connection.execute(
            select(t.audit.c.action, t.audit.c.actor, t.audit.c.details)
            .where(t.audit.c.object == permission.id)
            .order_by(t.audit.c.sequence)
        ).all()
    assert [entry[:2] for entry in entries] == [("permission.grant", "olga"), ("permission.revoke", "olga")]
    assert '"max_shift":0.5' in entries[0].details
    with pytest.raises(NotFoundError):
        world.permissions.list(world.stranger, "fraud")


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("days", 0.0, "days: .*greater than 0"),
        ("days", 400.0, "days: .*equal to 366"),
        ("per_hour", 0, "per_hour: .*equal to 1"),
        ("max_shift", 11.0, "max_shift: .*equal to 10"),
        ("reason", " ", "write 1 to 2000 characters"),
        ("user", "sam", "not a modeler of project fraud"),
    ],
)
def test_invalid_bounds_of_a_permission_are_refused(world: World, field: str, value: Any, error: str) -> None:
    with pytest.raises(InvalidError, match=error):
        grant(world, **{field: value})


def test_a_permission_is_for_its_checkpoint_kind_user_and_time(world: World) -> None:
    grant(world, days=1.0)
    grant(world, checkpoint="fraud.checkout")
    grant(world, kind=ChangeKind.TEST)
    with pytest.raises(NotAllowedError, match="ada has no standing permission"):
        world.changes.draft(world.ada, world.draft_of("act-0-r1", ChangeKind.OVERLAY, checkpoint=OTHER))
    published(world, "act-0-r1")
    world.now += timedelta(days=1)
    with pytest.raises(NotAllowedError):
        revise(world, "act-0-r2")


def test_more_than_the_permitted_rate_is_refused(world: World) -> None:
    grant(world, per_hour=2)
    published(world, "act-0-r1")
    published(world, "act-0-r2")
    with pytest.raises(QuotaError, match="permits 2 changes per hour"):
        revise(world, "act-0-r3")
    world.now += timedelta(hours=1)
    published(world, "act-0-r3")


def test_a_shift_beyond_the_bound_is_rejected(world: World) -> None:
    from scorer.release.changes.checks import RUN, CheckedChange

    seen: list[CheckedChange] = []

    def too_far(about: CheckedChange) -> Checked:
        seen.append(about)
        return Checked(False, "largest offset 2 log-odds")

    world.pipeline._checks = {**dict.fromkeys(RUN, world._check), "overlay": too_far}
    grant(world, max_shift=0.25)
    change = world.until(revise(world, "act-0-r1").id, ChangeState.REJECTED)
    assert seen[0].max_shift == 0.25
    assert "largest offset 2 log-odds" in change.note
    assert answers(world) == {"live": ("act-0", 1.0)}


# --- publishing ---


def test_a_revision_is_live_recorded_and_moves_the_alias(world: World) -> None:
    permission = grant(world)
    change = published(world, "act-0-r1")
    assert change.permission == permission.id
    for member in ("live-1", "live-2"):
        assert world.answer_lanes(member, OTHER) == {"live": ("act-0-r1", 1.0)}
    newest = world.tables(OTHER)[-1]
    assert (newest.cause, newest.change) == (recorded.OVERLAY, change.id)
    world.tick()
    assert world.registry.aliases_["action-authorise@live"] == digest("act-0-r1")
    with world.store.read() as connection:
        actions = connection.scalars(select(t.audit.c.action).where(t.audit.c.object == change.id)).all()
    assert actions == [
        "change.draft",
        "change.submit",
        "change.permitted",
        "change.release",
        "change.completed",
    ]


def test_other_forests_are_refused(world: World) -> None:
    grant(world)
    with pytest.raises(InvalidError, match="no revision of the overlay of what answers"):
        revise(world, "act-1-r1")


def test_a_revision_that_a_release_has_outdated_is_refused(world: World) -> None:
    grant(world)
    change = revise(world, "act-0-r1")
    world.run(minutes=2)
    released = approved_release(world, "act-1", stages=())
    world.until(released.id, ChangeState.DONE)
    late = world.changes.draft(LOOP, world.draft_of("act-0-r2", ChangeKind.OVERLAY, checkpoint=OTHER))
    with pytest.raises(InvalidError):
        world.changes.submit(LOOP, late.id)
    assert world.get(change.id).state is ChangeState.DONE


def test_a_revoked_permission_stops_changes_in_progress(world: World) -> None:
    permission = grant(world)
    change = revise(world, "act-0-r1")
    world.permissions.revoke(world.olga, permission.id, reason="stop")
    result = world.until(change.id, ChangeState.REJECTED, ChangeState.DONE)
    assert result.state is ChangeState.REJECTED
    assert "was revoked by olga" in result.note
    assert answers(world) == {"live": ("act-0", 1.0)}


# --- revisions and releases ---


def test_a_revision_ends_no_canary(world: World) -> None:
    grant(world)
    release = approved_release(world, "act-1", stages=stages((0.1, 20.0), (0.5, 5.0)), holdout=0.05)
    world.until(release.id, ChangeState.RELEASED)
    world.tick(1)
    published(world, "act-0-r1")
    assert answers(world) == {
        "canary": ("act-1", 0.1),
        "live": ("act-0-r1", 0.85),
        "holdout": ("act-0-r1", 0.05),
    }
    # The next stage keeps the revision, and the release is completed.
    while world.get(release.id).step != "canary 2":
        world.tick(1)
    world.tick(0)
    assert answers(world)["live"] == ("act-0-r1", 0.45)
    world.until(release.id, ChangeState.DONE)
    world.tick()
    assert answers(world) == {"live": ("act-1", 1.0)}
    assert world.registry.aliases_["action-authorise@live"] == digest("act-1")


def test_a_rollback_in_the_canary_restores_the_latest_revision(world: World) -> None:
    grant(world)
    release = approved_release(world, "act-1", stages=stages((0.1, 50.0)))
    world.until(release.id, ChangeState.RELEASED)
    world.tick(1)
    published(world, "act-0-r1")
    published(world, "act-0-r2")
    world.changes.rollback(world.olga, release.id, reason="orders fail")
    assert answers(world) == {"live": ("act-0-r2", 1.0)}
    world.tick()
    assert world.registry.aliases_["action-authorise@live"] == digest("act-0-r2")
    # The loop continues from there.
    published(world, "act-0-r3")
    assert answers(world) == {"live": ("act-0-r3", 1.0)}


def test_a_finished_release_is_rolled_back_after_revisions(world: World) -> None:
    grant(world)
    published(world, "act-0-r1")
    release = approved_release(world, "act-1")
    world.until(release.id, ChangeState.DONE)
    world.tick()
    published(world, "act-1-r1")
    published(world, "act-1-r2")
    assert "rollback" in world.changes.get(world.olga, release.id).allowed
    world.changes.rollback(world.olga, release.id, reason="chargebacks")
    for member in ("live-1", "live-2"):
        assert world.answer_lanes(member, OTHER) == {"live": ("act-0-r1", 1.0)}
    world.tick()
    assert world.registry.aliases_["action-authorise@live"] == digest("act-0-r1")
    # A rollback of the checkpoint goes further back, and not to the bundle that was rolled back.
    with pytest.raises(ConflictError, match="no earlier lanes"):
        world.checkpoints.rollback(world.olga, OTHER, reason="further")


def test_rolling_back_the_checkpoint_after_revisions_ends_the_release(world: World) -> None:
    grant(world)
    first = approved_release(world, "act-1")
    world.until(first.id, ChangeState.DONE)
    published(world, "act-1-r1")
    second = approved_release(world, "act-2")
    world.until(second.id, ChangeState.DONE)
    published(world, "act-2-r1")
    world.checkpoints.rollback(world.olga, OTHER, reason="chargebacks")
    assert world.get(second.id).state is ChangeState.ROLLED_BACK
    assert answers(world) == {"live": ("act-1-r1", 1.0)}
    world.checkpoints.rollback(world.olga, OTHER, reason="further")
    assert answers(world) == {"live": ("act-0", 1.0)}


def test_a_revision_can_be_rolled_back(world: World) -> None:
    grant(world)
    published(world, "act-0-r1")
    second = published(world, "act-0-r2")
    world.changes.rollback(world.olga, second.id, reason="moves too far")
    assert answers(world) == {"live": ("act-0-r1", 1.0)}
    world.tick()
    assert world.registry.aliases_["action-authorise@live"] == digest("act-0-r1")
    with pytest.raises(ConflictError):
        world.changes.rollback(world.olga, second.id, reason="again")


def test_a_rollback_decodes_no_history_of_revisions(world: World) -> None:
    """There may be 288 revisions a day. The rollback reads the recorded decisions and not the revisions."""
    grant(world, per_hour=60)
    release = approved_release(world, "act-1")
    world.until(release.id, ChangeState.DONE)
    for number in range(1, 9):
        published(world, f"act-1-r{number}")
    read = []
    listen = event.listens_for(world.store._engine, "after_cursor_execute")

    @listen
    def count(_c: Any, cursor: Any, statement: str, *_: Any) -> None:
        if "FROM recorded_tables" in statement and "recorded_tables.answer" in statement:
            read.append(statement)
            assert "LIMIT" in statement, statement

    with world.store.read() as connection:
        assert recorded.before_release(connection, OTHER, release.id)
        assert recorded.earlier(connection, OTHER)
    assert len(read) == 2


# --- freezes ---


def test_a_freeze_delays_revisions(world: World) -> None:
    grant(world)
    published(world, "act-0-r1")
    begun = revise(world, "act-0-r2")  # submitted, and not yet published when the freeze starts
    minute = world.now
    world.calendar.add_freeze(
        world.admin,
        NewFreeze(
            name="peak",
            kind="deny",
            cron=f"{minute.minute} {minute.hour} {minute.day} {minute.month} *",
            timezone="UTC",
            minutes=60,
            checkpoints=("*",),
            reason="sales",
        ),
    )
    before = world.tables(OTHER)[-1].revision
    held = world.fleet.held("live-1").version
    result = world.until(begun.id, ChangeState.EXPIRED)
    assert 'frozen by "peak"' in result.note
    while world.now < minute + timedelta(minutes=59):
        with pytest.raises(FrozenError, match="fit the overlay anew"):
            revise(world, "act-0-r3")
        world.tick(10)
    assert (world.tables(OTHER)[-1].revision, world.fleet.held("live-1").version) == (before, held)
    world.now = minute + timedelta(minutes=61)
    published(world, "act-0-r3")
    assert answers(world) == {"live": ("act-0-r3", 1.0)}


# --- generations of the loop ---


def test_a_draft_of_the_loop_is_submitted_by_permission_or_by_a_user(world: World) -> None:
    asks = world.draft_of("act-1", ChangeKind.TEST, evidence={"decision": "mix"})
    change = world.changes.draft(LOOP, asks)
    with pytest.raises(NotAllowedError, match="no standing permission for changes of kind"):
        world.changes.submit(LOOP, change.id)
    assert world.get(change.id).state is ChangeState.DRAFT
    assert world.changes.submit(world.olga, change.id).state is ChangeState.CHECKS
    permission = grant(world, kind=ChangeKind.TEST)
    again = world.changes.draft(LOOP, world.draft_of("act-2", ChangeKind.TEST, evidence={"decision": "mix"}))
    submitted = world.changes.submit(LOOP, again.id)
    assert (submitted.state, submitted.permission) == (ChangeState.CHECKS, permission.id)
    assert submitted.evidence == {"decision": "mix"}


def test_a_verdict_in_the_lineage_replaces_a_test_only_with_a_permission(world: World) -> None:
    world.bundles.lineages["act-1"] = {"metrics": {"gate": {"decision": "promote"}}}
    change = world.changes.draft(
        LOOP, world.draft_of("act-1", ChangeKind.RELEASE, evidence={"decision": "promote"})
    )
    with pytest.raises(InvalidError, match="a RELEASE follows a TEST that passed"):
        world.changes.submit(world.olga, change.id)
    grant(world, kind=ChangeKind.RELEASE)
    assert world.changes.submit(LOOP, change.id).state is ChangeState.CHECKS
    other = world.changes.draft(
        LOOP, world.draft_of("act-2", ChangeKind.RELEASE, evidence={"decision": "promote"})
    )
    with pytest.raises(InvalidError, match="a RELEASE follows a TEST that passed"):
        world.changes.submit(LOOP, other.id)
