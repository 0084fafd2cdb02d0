"""Operations of users on change requests. `Runner` (runner.py) advances them in between."""

from __future__ import annotations

import builtins
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, delete, func, insert, select, update

from scorer.release import states
from scorer.release.access.roles import is_agent_in
from scorer.release.answers import ChangeDetail, Draft
from scorer.release.calendar import moment
from scorer.release.changes import backtesting, drafts, fit, rows, texts
from scorer.release.changes.guard import ChangeGuard, agent_name
from scorer.release.changes.overlays import VERDICT, revised_lanes
from scorer.release.changes.plan import specs_of
from scorer.release.changes.viewing import ChangeViews, check_approvable, is_answering
from scorer.release.changes.writer import ChangeWriter
from scorer.release.errors import (
    ConflictError,
    FrozenError,
    InvalidError,
    NotAllowedError,
    PlatformError,
    QuotaError,
    Remedy,
)
from scorer.release.fields import reason_of
from scorer.release.gates.defaults import BACKTEST
from scorer.release.lanes import recorded
from scorer.release.lanes.recorded import LaneDecision
from scorer.release.model import (
    PLATFORM,
    Actor,
    Booking,
    ChangeEvent,
    ChangeKind,
    ChangeRequest,
    ChangeState,
    FreezeWindow,
    GateSpec,
    LaneSpec,
    Outcome,
    Role,
    Severity,
)
from scorer.release.store import dumps
from scorer.release.store import tables as t
from scorer.release.store.rows import row_of
from scorer.release.store.searching import contains

if TYPE_CHECKING:
    from scorer.release.changes.parts import Parts

_COMMENT = 2000


class Changes:
    """Operations on change requests. Each is one transaction.

    Args:
        parts: Dependencies that operations on change requests share.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._guard = ChangeGuard(parts)
        self._views = ChangeViews(parts, self._guard)

    # --- before it is on its way ---

    def draft(self, actor: Actor, draft: Draft, *, key: str | None = None) -> ChangeRequest:
        """Create a draft; for modelers and agents. Only its consistency is checked.

        A draft of an agent records the agent. Any modeler of the project may edit it, submit it or delete it.

        Args:
            actor: The calling user.
            draft: The draft.
            key: Idempotency key. A second call of the user with the same key and draft returns the first
                change request.

        Raises:
            InvalidError: The draft is not valid.
            NotAllowedError: The actor is neither a modeler of the project nor an agent, or is an agent that
                drafts an overlay revision.
            ConflictError: The key was used with another draft.
        """
        by_agent = is_agent_in(actor, draft.project)
        self._parts.access.require(actor, Role.AGENT if by_agent else Role.MODELER, draft.project)
        if by_agent and draft.kind is ChangeKind.OVERLAY:
            raise NotAllowedError(f"{actor.user} is an agent, and no agent drafts overlays; draft a TEST")
        values = self._values(actor, draft)
        asked = hashlib.sha256(dumps(values).encode()).hexdigest()
        at = self._parts.now()
        with self._parts.store.write() as connection:
            made = self._made_before(connection, actor, key, asked)
            if made:
                return made
            if draft.kind is ChangeKind.OVERLAY:
                self._check_thawed(draft.checkpoint)
                values["permission"] = self._permitted(connection, actor, values)
            else:
                self._check_open(connection, draft.project)
            if by_agent:
                self._check_agent(connection, agent_name(actor))
            number = connection.execute(
                insert(t.changes)
                .values(
                    **values,
                    state=ChangeState.DRAFT,
                    step="",
                    since=at,
                    note="",
                    created_by=actor.user,
                    created_at=at,
                    updated_at=at,
                    version=1,
                    authors=[actor.user],
                    agent=agent_name(actor) if by_agent else None,
                    request_key=key,
                    request_hash=asked,
                )
                .returning(t.changes.c.number)
            ).scalar_one()
            name = f"cr-{number:06d}"
            connection.execute(update(t.changes).where(t.changes.c.number == number).values(id=name))
            texts.keep(connection, name, values)
            work = ChangeWriter(self._parts, connection, rows.load(connection, name), actor)
            about = {name: values[name] for name in ("kind", "checkpoint", "bundle")}
            message = f"drafted by {actor.user}: {values['bundle_name']} for {draft.checkpoint}"
            return work.done("draft", message, details=about)

    def edit(self, actor: Actor, change: str, draft: Draft, *, version: int) -> ChangeRequest:
        """Replace a draft; for its authors, and owners of the project."""
        before = self._guard.allowed(actor, change, "edit")
        if draft.kind is ChangeKind.OVERLAY and is_agent_in(actor, draft.project):
            raise NotAllowedError(f"{actor.user} is an agent, and no agent drafts overlays; draft a TEST")
        if draft.project != before.project:
            raise InvalidError(f"{change} is of project {before.project} and stays there; draft another one")
        values = self._values(actor, draft)
        with self._guard.open(actor, before, "edit", version) as work:
            changed = drafts.edits(work.change, values)
            saved = work.save(**values, authors=_with(work))
            texts.keep(work.connection, change, values)
            about = {"version": saved.version, "bundle": saved.bundle, drafts.EDITS: changed}
            what = f": {', '.join(changed)}" if changed else ""
            return work.done("edit", f"edited by {actor.user}{what}", details=about)

    def delete(self, actor: Actor, change: str) -> None:
        """Delete a draft permanently. The audit log keeps its entries.

        Raises:
            ConflictError: The change request has been submitted; withdraw it instead.
            NotAllowedError: The actor is neither an author nor an owner.
        """
        with self._guard.open(actor, self._guard.allowed(actor, change, "delete"), "delete") as work:
            for table in (t.change_events, t.change_steps, t.gate_results, t.waivers, t.bookings):
                work.connection.execute(delete(table).where(table.c.change == change))
            texts.remove(work.connection, change)
            work.connection.execute(delete(t.changes).where(t.changes.c.id == change))
            now = work.change
            about = {"title": now.title, "bundle": now.bundle, "created_by": now.created_by}
            work.audit("delete", about)

    def submit(
        self, actor: Actor, change: str, *, start: datetime | None = None, slot: int | None = None
    ) -> ChangeRequest:
        """Submit a draft: book its observation and start the checks; for authors and owners.

        Args:
            actor: The calling user.
            change: Id of the change request.
            start: Start of the booking; None: the next free slot.
            slot: Number of the slot; None: any.

        Raises:
            InvalidError: The change cannot be released, or lacks a passed TEST.
            ConflictError: The slot is booked.
            FrozenError: A freeze is in force.
            QuotaError: The project has reached a quota.
        """
        before = self._guard.allowed(actor, change, "submit")
        states.move(before, "submit")
        self._check_fit(before)
        away = self._pool_away(before)
        if before.kind is ChangeKind.OVERLAY:
            return self._submit_overlay(actor, before)
        with self._guard.open(actor, before, "submit") as work:
            now, connection = work.change, work.connection
            permission = None
            if now.evidence is not None and now.agent is None and actor.user == now.created_by:
                # The draft of a learning loop: a person submits it, or the loop has a standing permission.
                about = {"project": now.project, "kind": now.kind, "checkpoint": now.checkpoint}
                permission = self._permitted(connection, actor, about)
            test = None
            if now.kind is ChangeKind.RELEASE and not (permission and self._was_judged(now)):
                test = self._passed_test(connection, now)
            length = timedelta(minutes=now.minutes)
            booking = self._parts.calendar.book(connection, actor, now, start=start, length=length, slot=slot)
            if away:
                work.event(away, severity=Severity.WARNING, actor=PLATFORM)
            delayed = self._parts.calendar.freeze_before(connection, booking) if start is None else None
            after = f", after the freeze {_freeze(delayed)}" if delayed else ""
            return work.move(
                "submit",
                f"submitted by {actor.user}: {_booked(booking)}{after}; checks begin",
                step="package",
                details=_booking_details(booking),
                submitted_by=actor.user,
                authors=_with(work),
                test=test,
                permission=permission,
            )

    def _pool_away(self, change: ChangeRequest) -> str:
        """Return a warning if the change is observed in the shadow pool and the pool does not respond."""
        with self._parts.store.read() as connection:
            _, _, usual = recorded.sampling(connection, self._parts.settings, change.checkpoint)
        if not (usual if change.pool is None else change.pool):
            return ""
        statuses = self._parts.reconciler.statuses.recent()
        lost = [
            member.name
            for member in self._parts.reconciler.members(pool=True)
            if member.role != "live" and not statuses[member.name].reachable
        ]
        if not lost:
            return ""
        return (
            f"the shadow pool does not answer now ({', '.join(lost)}): {change.id} waits for it in its slot; "
            "start it, or observe in the live servers"
        )

    def _submit_overlay(self, actor: Actor, before: ChangeRequest) -> ChangeRequest:
        """Submit an overlay revision, which is not observed and is rejected during a freeze."""
        self._check_thawed(before.checkpoint)
        with self._guard.open(actor, before, "submit") as work:
            return work.move(
                "submit",
                f"submitted by {actor.user} under {work.change.permission}; checks begin",
                step="package",
                submitted_by=actor.user,
                authors=_with(work),
            )

    def _check_thawed(self, checkpoint: str) -> None:
        """Raise FrozenError during a freeze. A new overlay can be fitted after it."""
        frozen = self._parts.calendar.frozen(checkpoint)
        if frozen:
            raise FrozenError(
                f'checkpoint "{checkpoint}" is frozen by "{frozen.freeze.name}" until {moment(frozen.end)}; '
                "fit the overlay anew after that"
            )

    def _permitted(self, connection: Connection, actor: Actor, values: Mapping[str, Any]) -> str:
        """Return the id of the standing permission for a change, and count the change towards its rate.

        Raises:
            NotAllowedError: The actor has no such permission.
            QuotaError: The permitted number of changes per hour is reached.
        """
        found = self._parts.permissions.demand(
            connection,
            project=values["project"],
            kind=ChangeKind(values["kind"]),
            checkpoint=values["checkpoint"],
            user=actor.user,
        )
        self._parts.permissions.spend(connection, found)
        return found.id

    def rebook(
        self,
        actor: Actor,
        change: str,
        *,
        start: datetime,
        minutes: float | None = None,
        slot: int | None = None,
    ) -> ChangeRequest:
        """Move the booking of a change request before it is deployed; for authors and owners."""
        with self._guard.open(actor, self._guard.allowed(actor, change, "rebook"), "rebook") as work:
            booking = self._parts.calendar.of(work.connection, change)
            if booking is None or not booking.active:
                raise ConflictError(f"{change} has no booking to move; draft a new change request")
            length = timedelta(minutes=work.change.minutes if minutes is None else minutes)
            moved = self._parts.calendar.move(work.connection, booking, start=start, length=length, slot=slot)
            work.save(minutes=length / timedelta(minutes=1))
            message = f"moved by {actor.user} to {_booked(moved)}"
            return work.done("rebook", message, details=_booking_details(moved))

    def finish(self, actor: Actor, change: str) -> ChangeRequest:
        """End the observation before the end of its booking. The gates are evaluated on the present data."""
        with self._guard.open(actor, self._guard.allowed(actor, change, "finish"), "finish") as work:
            if rows.row_of(work.connection, change).finish:
                return work.change
            work.save(finish=True)
            return work.done("finish", f"{actor.user} asked for its end now")

    # --- four eyes ---

    def approve(
        self, actor: Actor, change: str, *, version: int | None = None, comment: str = ""
    ) -> ChangeRequest:
        """Approve a RELEASE whose gates passed; for approvers who did not draft, edit or submit it."""
        said = comment.strip()[:_COMMENT]
        with self._guard.open(
            actor, self._guard.allowed(actor, change, "approve"), "approve", version
        ) as work:
            check_approvable(work.connection, work.change)
            return work.move(
                "approve",
                f"approved by {actor.user}: {said}" if said else f"approved by {actor.user}",
                step="release",
                details={"comment": said, "bundle": work.change.bundle},
                approved_by=actor.user,
                approved_at=self._parts.now(),
                verdict=Outcome.PASS,
            )

    def reject(self, actor: Actor, change: str, *, reason: str) -> ChangeRequest:
        """Reject a change request; for approvers only."""
        return self._end(actor, change, "reject", reason_of(reason), "rejected")

    def withdraw(self, actor: Actor, change: str, *, reason: str) -> ChangeRequest:
        """Withdraw a change request: reject it, remove its lanes and release its slot.

        For authors and owners.
        """
        return self._end(actor, change, "withdraw", reason_of(reason), "withdrawn")

    def waive(self, actor: Actor, change: str, *, metric: str, reason: str) -> ChangeRequest:
        """Waive a gate; for approvers who neither drafted, edited nor submitted the change."""
        reason = reason_of(reason)
        with self._guard.open(actor, self._guard.allowed(actor, change, "waive"), "waive") as work:
            now, connection = work.change, work.connection
            judged = rows.gates(connection, change)
            known = {result.metric for result in judged}
            known = known or {spec.metric for spec in specs_of(now, self._parts.settings)}
            known |= {spec.metric for spec in self._backtest_specs(now)}
            if metric not in known:
                raise InvalidError(f'{change} has no gate "{metric}"; it has {", ".join(sorted(known))}')
            given = row_of(connection, t.waivers, change=change, metric=metric)
            if given:
                raise ConflictError(
                    f"{metric} of {change} has been waived by {given.user} at {moment(given.at)} already"
                )
            waiver = {"change": change, "metric": metric, "user": actor.user, "reason": reason}
            connection.execute(insert(t.waivers).values(**waiver, at=self._parts.now()))
            is_judged = now.state is ChangeState.REPORT
            work.save(**({"verdict": rows.verdict(rows.gates(connection, change))} if is_judged else {}))
            return work.done(
                "waive",
                f"{metric} waived by {actor.user}: {reason}",
                severity=Severity.WARNING,
                details={"metric": metric, "reason": reason},
            )

    # --- back ---

    def rollback(self, actor: Actor, change: str, *, reason: str) -> ChangeRequest:
        """Restore the answer lanes before this release.

        The lane table is recorded and sent to every server immediately. A server that does not respond gets
        it later.

        Args:
            actor: The submitter, the approver or an owner.
            change: Id of the change request.
            reason: Recorded in the audit log.

        Raises:
            NotAllowedError: The actor may not roll this release back.
            ConflictError: The release does not answer any more.
        """
        reason = reason_of(reason)
        with self._guard.open(actor, self._guard.allowed(actor, change, "rollback"), "rollback") as work:
            moved = self.roll_back_in(work, "rollback", f"rolled back by {actor.user}: {reason}")
        self.follow(moved.checkpoint)
        return moved

    def roll_back_in(self, work: ChangeWriter, move: str, message: str) -> ChangeRequest:
        """Restore what answered before a release, as part of the caller's transaction."""
        change, connection = work.change, work.connection
        states.move(change, move)
        newest = recorded.newest(connection, change.checkpoint)
        if not is_answering(connection, change) or newest is None:
            raise ConflictError(
                f'{change.id} is not what answers at checkpoint "{change.checkpoint}" any more; roll '
                "back the checkpoint, or what changed it since"
            )
        if change.kind is ChangeKind.OVERLAY:
            answer = _instead(newest.answer, {change.bundle: change.before or ""})
            cause, restores = recorded.OVERLAY, None
        else:
            target = recorded.before_release(connection, change.checkpoint, change.id)
            if target is None:
                raise ConflictError(
                    f"{change.id} has no lanes before it to go back to; release another bundle"
                )
            # The overlay of the previous bundle may have been revised during the release.
            answer = recorded.with_latest_overlays(connection, change.checkpoint, target.answer)
            cause, restores = recorded.ROLLBACK, target.revision
        restored, present = (recorded.main_lane(lanes).bundle for lanes in (answer, newest.answer))
        return work.move(
            move,
            message,
            severity=Severity.ERROR if work.actor is PLATFORM else Severity.WARNING,
            details={"back_to": restored, "table": restores},
            decision=LaneDecision(cause, answer, restored, present, restores),
        )

    def follow(self, checkpoint: str) -> None:
        """Send the recorded table to the servers now. If that fails, the runner sends it later."""
        try:
            self._parts.reconciler.round([checkpoint])
        except PlatformError:
            return

    # --- looking ---

    def get(self, actor: Actor, change: str) -> ChangeDetail:
        """Return a change request with everything that is shown of it."""
        return self._views.get(actor, change)

    def events(
        self, actor: Actor, change: str, *, after: int = 0, limit: int = 500
    ) -> tuple[ChangeState, Sequence[ChangeEvent]]:
        """Return the state of a change request, and its events after a known one, oldest first.

        Args:
            actor: The calling user.
            change: Id of the change request.
            after: Id of the last event that is known already.
            limit: Limit on the events of one response.
        """
        return self._views.events(actor, change, after, limit)

    def summary(self, actor: Actor, change: str) -> ChangeRequest:
        """Return a change request without its steps, events, gates and differences. It takes one query."""
        return self._guard.see(actor, change)

    def several(self, actor: Actor, changes: Sequence[str]) -> Sequence[ChangeRequest]:
        """Return those of the named change requests that the actor may see, in the given order."""
        query = select(t.changes).where(t.changes.c.id.in_(changes))
        with self._parts.store.read() as connection:
            found = {row.id: rows.change(row) for row in connection.execute(query)}
        return [
            found[name]
            for name in changes
            if name in found and (actor.admin or found[name].project in actor.roles)
        ]

    def newest_events(self, changes: Sequence[str]) -> Mapping[str, int]:
        """Return the id of the newest event of each change request that has one."""
        e = t.change_events.c
        with self._parts.store.read() as connection:
            newest = select(e.change, func.max(e.id)).where(e.change.in_(changes)).group_by(e.change)
            return {row[0]: row[1] for row in connection.execute(newest)}

    def list(
        self,
        actor: Actor,
        *,
        project: str | None = None,
        checkpoint: str | None = None,
        state: ChangeState | None = None,
        kind: ChangeKind | None = None,
        user: str | None = None,
        reviewer: str | None = None,
        text: str | None = None,
        archived: bool | None = False,
        before: str | None = None,
        limit: int = 100,
    ) -> Sequence[ChangeRequest]:
        """Return the change requests that the actor may see, newest first.

        Args:
            actor: The calling user.
            project: Name of a project; None: all projects of the actor.
            checkpoint: Name of a checkpoint; None: all.
            state: State; None: all.
            kind: Kind; None: all.
            user: User who drafted it; None: all.
            reviewer: User who was asked for a review; None: all.
            text: Part of the title, the id, the name or digest of the bundle, or the first 300 characters of
                the description, regardless of case; None: all.
            archived: Whether archived ones are listed instead of the others; None: both.
            before: Id of a change request; only older ones are listed.
            limit: Largest number of change requests.
        """
        c = t.changes.c
        if project is not None:
            self._parts.access.require(actor, Role.VIEWER, project)
            names = [project]
        else:
            names = [each.name for each in self._parts.access.projects(actor)]
        # A search reads the texts in order of their numbers, until enough change requests are found.
        number = t.change_texts.c.number if text else c.number
        query = select(t.changes).where(c.project.in_(names)).order_by(number.desc())
        if checkpoint is not None:
            query = query.where(c.checkpoint == checkpoint)
        if state is not None:
            query = query.where(c.state == state.value)
        if user is not None:
            query = query.where(c.created_by == user)
        if kind is not None:
            query = query.where(c.kind == kind.value)
        if reviewer is not None:
            # Names are a JSON list; a quoted name is part of no other one.
            query = query.where(contains(dumps(reviewer), c.reviewers))
        if text:
            query = query.where(texts.matches(text))
        if archived is not None:
            query = query.where(c.archived_at.isnot(None) if archived else c.archived_at.is_(None))
        with self._parts.store.read() as connection:
            if before is not None:
                query = query.where(number < rows.row_of(connection, before).number)
            return [rows.change(row) for row in connection.execute(query.limit(max(0, min(limit, 1000))))]

    # --- rules ---

    def _values(self, actor: Actor, draft: Draft) -> dict[str, Any]:
        checkpoint = self._parts.calendar.checkpoint(draft.checkpoint)
        drafts.check(
            draft, self._parts.access.project(actor, draft.project), checkpoint, self._parts.settings
        )
        info = self._parts.bundles.info(actor, draft.bundle)
        self._parts.bundles.signature(info.digest)
        return {
            "project": draft.project,
            "kind": draft.kind.value,
            "checkpoint": draft.checkpoint,
            "bundle": info.digest,
            "bundle_name": info.name,
            "title": draft.title.strip(),
            "description": draft.description,
            "minutes": float(draft.minutes),
            "stages": rows.plain(draft.stages),
            "holdout": float(draft.holdout),
            "gates": rows.plain(draft.gates),
            "sample": draft.sample,
            "pool": draft.pool,
            "evidence": None if draft.evidence is None else dict(draft.evidence),
        }

    def _made_before(
        self, connection: Connection, actor: Actor, key: str | None, asked: str
    ) -> ChangeRequest | None:
        if key is None:
            return None
        c = t.changes.c
        row = connection.execute(
            select(t.changes).where(c.created_by == actor.user, c.request_key == key)
        ).first()
        if row is None:
            return None
        if row.request_hash != asked:
            raise ConflictError(f'key "{key}" was used for another draft ({row.id}); use another key')
        return rows.change(row)

    def _check_open(self, connection: Connection, project: str) -> None:
        c = t.changes.c
        allowed = connection.execute(
            select(t.projects.c.open_changes).where(t.projects.c.name == project)
        ).scalar_one()
        held = connection.execute(
            select(func.count())
            .select_from(t.changes)
            .where(
                c.project == project,
                c.state.in_([state.value for state in states.OPEN]),
                c.kind != ChangeKind.OVERLAY.value,
            )
        ).scalar_one()
        if held >= allowed:
            raise QuotaError(
                f'project "{project}" has {held} open change requests, as many as it may; finish or withdraw '
                "one, or ask an admin for more"
            )

    def _check_agent(self, connection: Connection, agent: str) -> None:
        """Raise QuotaError if an agent has as many drafts as it may."""
        c, most = t.changes.c, self._parts.settings.agents.drafts
        query = select(func.count()).where(c.agent == agent, c.state == ChangeState.DRAFT.value)
        if (connection.scalar(query) or 0) >= most:
            raise QuotaError(
                f"this agent has {most} drafts, as many as it may; edit one of them, or ask a modeler to "
                "submit or delete some"
            )

    def _check_fit(self, change: ChangeRequest) -> None:
        with self._parts.store.read() as connection:
            last = recorded.newest(connection, change.checkpoint)
        alias = self._parts.settings.checkpoints[change.checkpoint].alias
        if last is None or not last.answer:
            raise ConflictError(
                f'no server has been seen to answer at checkpoint "{change.checkpoint}"; point "{alias}" to '
                "a bundle and start a server"
            )
        if change.kind is ChangeKind.OVERLAY:
            if not revised_lanes(last.answer, change.bundle, self._parts.bundles):
                raise InvalidError(
                    f"{change.bundle[7:19]} is no revision of the overlay of what answers at checkpoint "
                    f'"{change.checkpoint}": its forests, features or policy differ; draft a TEST of it'
                )
            return
        if change.kind is ChangeKind.RELEASE and all(lane.bundle == change.bundle for lane in last.answer):
            raise InvalidError(
                f'{change.bundle_name} {change.bundle[7:19]} answers at checkpoint "{change.checkpoint}" '
                "already; there is nothing to release"
            )
        live = self._parts.bundles.detail(PLATFORM, recorded.main_lane(last.answer).bundle)
        found = fit.problems(
            self._parts.bundles.detail(PLATFORM, change.bundle),
            live,
            checkpoint=change.checkpoint,
            alias=alias,
        )
        if found:
            raise InvalidError("; ".join(found))

    def _was_judged(self, change: ChangeRequest) -> bool:
        """Return whether the bundle's lineage has the learning gate's verdict to promote it.

        Under a standing permission this verdict replaces the TEST. The RELEASE is still observed, and
        approved by a person.
        """
        lineage = self._parts.bundles.detail(PLATFORM, change.bundle).lineage
        verdict = (lineage.get("metrics") or {}).get(VERDICT) or {}
        return bool(verdict.get("decision") == "promote")

    def _passed_test(self, connection: Connection, change: ChangeRequest) -> str:
        """Return the id of the passed TEST for a RELEASE. Raises InvalidError if there is none."""
        c = t.changes.c
        tests = [
            rows.change(row)
            for row in connection.execute(
                select(t.changes)
                .where(
                    c.project == change.project,
                    c.checkpoint == change.checkpoint,
                    c.bundle == change.bundle,
                    c.kind == ChangeKind.TEST.value,
                )
                .order_by(c.number.desc())
            )
        ]
        for test in tests:
            if test.state is ChangeState.DONE and test.verdict is Outcome.PASS:
                return test.id
        what = f'{change.bundle_name} {change.bundle[7:19]} at checkpoint "{change.checkpoint}"'
        test_first = Remedy("Start a TEST of it", {"kind": ChangeKind.TEST.value})
        if not tests:
            raise _refused(
                f"a RELEASE follows a TEST that passed, and {change.project} has tested no {what}; "
                "draft a TEST of it first",
                test_first,
            )
        last = tests[0]
        verdict = f" ({last.verdict})" if last.verdict else ""
        remedy = "draft another TEST" if last.state.is_final else "wait until it is done"
        raise _refused(
            f'a RELEASE follows a TEST that passed, and {last.id} of {what} is "{last.state}"{verdict}; '
            f"{remedy}",
            test_first if last.state.is_final else None,
        )

    def _backtest_specs(self, change: ChangeRequest) -> Sequence[GateSpec]:
        """Return the gates of the backtest, which an approver may waive before they reject the change."""
        if change.state is not ChangeState.CHECKS or not backtesting.applies(change):
            return ()
        return self._parts.settings.checkpoints[change.checkpoint].backtest.gates or BACKTEST

    def _end(self, actor: Actor, change: str, name: str, reason: str, done: str) -> ChangeRequest:
        before = self._guard.allowed(actor, change, name)
        with self._guard.open(actor, before, name) as work:
            moved = work.move(
                name,
                f"{done} by {actor.user}: {reason}",
                severity=Severity.WARNING,
                details={"reason": reason},
            )
        if before.state in states.OBSERVED:
            self.follow(moved.checkpoint)
        return moved


def _refused(why: str, remedy: Remedy | None) -> InvalidError:
    error = InvalidError(why)
    error.remedy = remedy
    return error


def _instead(answer: Sequence[LaneSpec], bundles: Mapping[str, str]) -> tuple[LaneSpec, ...]:
    """Return the lanes with other bundles, by the present digest."""
    return tuple(replace(lane, bundle=bundles.get(lane.bundle, lane.bundle)) for lane in answer)


def _with(work: ChangeWriter) -> builtins.list[str]:
    """Return the authors of a change, and the actor."""
    return sorted(rows.authors(work.connection, work.change.id) | {work.actor.user})


def _booked(booking: Booking) -> str:
    return f"slot {booking.slot} from {moment(booking.start)} to {moment(booking.end)}"


def _freeze(window: FreezeWindow) -> str:
    reason = f" ({window.freeze.reason})" if window.freeze.reason else ""
    return f'"{window.freeze.name}"{reason}, which ends at {moment(window.end)}'


def _booking_details(booking: Booking) -> dict[str, Any]:
    return {"slot": booking.slot, "start": booking.start.isoformat(), "end": booking.end.isoformat()}
