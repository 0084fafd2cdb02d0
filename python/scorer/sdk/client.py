"""`PlatformClient`: every operation of the platform as a method."""

from __future__ import annotations

import builtins
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, TypeVar
from urllib.parse import quote

import httpx

from scorer.release.errors import InvalidError, UnreachableError
from scorer.release.model import (
    Actor,
    AuditEntry,
    ChangeEvent,
    ChangeKind,
    ChangeRequest,
    ChangeState,
    Freeze,
    FreezeWindow,
    GateSpec,
    Project,
    RecordedTable,
    Role,
    Severity,
    Stage,
    StandingPermission,
)
from scorer.sdk import credentials
from scorer.sdk.results import (
    BundleDetail,
    BundleInfo,
    CalendarPage,
    ChangeDetail,
    Channel,
    CheckpointView,
    Delivery,
    Events,
    Figure,
    Free,
    IssuedToken,
    PlatformHealth,
    ProjectMember,
    Readout,
    ResultPage,
    RolledBack,
    Token,
    User,
    Verified,
)
from scorer.sdk.transport import Transport

T = TypeVar("T")

_CHUNK = 1 << 18
_UPLOAD_SECONDS = 600.0
_WAIT_SECONDS = 20.0


class PlatformClient:
    """Client of one platform, as one user. Several threads may use it at once.

    ::

        with PlatformClient() as platform:
            change = platform.ship_test("out/fraud", "fraud.checkout", minutes=60)
            for event in platform.watch(change.id):
                print(event.message)

    Args:
        url: Address of the platform. None: $SCORER_PLATFORM_URL, or the one stored by `scorer login`.
        token: None: $SCORER_PLATFORM_TOKEN, or the one stored by `scorer login` for that address.
        timeout: Seconds for one response.
        client: Replaces the client's own connections, for tests and unusual networks.

    Raises:
        NotAuthenticatedError: No address or no token is known.
        InvalidError: The address cannot be used.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        timeout: float = 30.0,
        client: httpx.Client | None = None,
    ) -> None:
        found = credentials.find(url, token)
        self.url = found.url
        self._transport = Transport(found.url, found.token, timeout=timeout, client=client)

    def close(self) -> None:
        """Close the connections to the platform."""
        self._transport.close()

    def __enter__(self) -> PlatformClient:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    # --- projects, users, tokens ---

    def me(self) -> Actor:
        """Return the user that the token belongs to, with the roles that it grants."""
        return self._call(Actor, "GET", "/me")

    def projects(self) -> builtins.list[Project]:
        """List the projects that the user is a member of; admins see all."""
        return self._call(list[Project], "GET", "/projects")

    def project(self, name: str) -> Project:
        """Return a project with its quotas.

        Args:
            name: Name of the project.

        Raises:
            NotFoundError: It does not exist, or the user may not see it.
        """
        return self._call(Project, "GET", f"/projects/{quote(name, safe='')}")

    def create_project(
        self,
        name: str,
        title: str,
        *,
        quotas: Mapping[str, int] | None = None,
        checkpoints: Sequence[str] = (),
    ) -> Project:
        """Create a project. For admins.

        Args:
            name: Up to 40 lower-case letters, digits and hyphens.
            title: Shown on pages.
            quotas: Any of open_changes, slot_minutes_per_week, bundles; others have their default.
            checkpoints: Names of the checkpoints that it may bring models to; empty: all.

        Raises:
            ConflictError: The project exists already.
            NotAllowedError: The token's role does not allow this.
        """
        body = {"name": name, "title": title, "quotas": quotas, "checkpoints": list(checkpoints)}
        return self._call(Project, "POST", "/projects", json=body)

    def update_project(
        self,
        name: str,
        *,
        title: str | None = None,
        quotas: Mapping[str, int] | None = None,
        checkpoints: Sequence[str] | None = None,
    ) -> Project:
        """Change a project. For admins.

        Args:
            name: Name of the project.
            title: None: unchanged.
            quotas: Limits to change; those left out stay.
            checkpoints: None: unchanged; empty: all.

        Raises:
            NotFoundError: It does not exist, or the user may not see it.
            NotAllowedError: The token's role does not allow this.
        """
        body = {"title": title, "quotas": quotas, "checkpoints": checkpoints and list(checkpoints)}
        if checkpoints is not None:
            body["checkpoints"] = list(checkpoints)
        return self._call(Project, "PATCH", f"/projects/{quote(name, safe='')}", json=body)

    def members(self, project: str) -> builtins.list[ProjectMember]:
        """List the members of a project with their roles.

        Args:
            project: Name of the project.

        Raises:
            NotFoundError: It does not exist, or the user may not see it.
        """
        return self._call(list[ProjectMember], "GET", f"/projects/{quote(project, safe='')}/members")

    def set_member(self, project: str, user: str, role: Role | str) -> ProjectMember:
        """Add a member, or change a member's role. For owners.

        Args:
            project: Name of the project.
            user: Name of the user.
            role: viewer, modeler, approver or owner.

        Raises:
            NotFoundError: It does not exist, or the user may not see it.
            NotAllowedError: The token's role does not allow this.
        """
        path = f"/projects/{quote(project, safe='')}/members/{quote(user, safe='')}"
        return self._call(ProjectMember, "PUT", path, json={"role": str(role)})

    def remove_member(self, project: str, user: str) -> None:
        """Remove a member from a project. For owners.

        Args:
            project: Name of the project.
            user: Name of the user.

        Raises:
            ConflictError: The last owner stays.
            NotAllowedError: The token's role does not allow this.
        """
        self._send("DELETE", f"/projects/{quote(project, safe='')}/members/{quote(user, safe='')}")

    def users(self) -> builtins.list[User]:
        """List all users, removed ones too. For admins.

        Raises:
            NotAllowedError: The token's role does not allow this.
        """
        return self._call(list[User], "GET", "/users")

    def add_user(self, name: str, *, admin: bool = False) -> User:
        """Add a user, or restore one that was removed. For admins.

        Args:
            name: Letters, digits and . _ @ + -.
            admin: Whether the user administers the platform.

        Raises:
            NotAllowedError: The token's role does not allow this.
        """
        return self._call(User, "POST", "/users", json={"name": name, "admin": admin})

    def set_admin(self, name: str, *, admin: bool) -> User:
        """Make a user an admin, or no longer one. For admins.

        Args:
            name: Name of the user.
            admin: The new state.

        Raises:
            ConflictError: The last admin stays.
            NotAllowedError: The token's role does not allow this.
        """
        return self._call(User, "PATCH", f"/users/{quote(name, safe='')}", json={"admin": admin})

    def remove_user(self, name: str) -> None:
        """Remove a user; the user's tokens and sessions end at once. For admins.

        Args:
            name: Name of the user.

        Raises:
            ConflictError: The last admin stays.
            NotAllowedError: The token's role does not allow this.
        """
        self._send("DELETE", f"/users/{quote(name, safe='')}")

    def tokens(self) -> builtins.list[Token]:
        """List the user's tokens; owners see those of their projects, admins all."""
        return self._call(list[Token], "GET", "/tokens")

    def create_token(
        self,
        label: str,
        role: Role | str,
        *,
        user: str | None = None,
        project: str | None = None,
        expires_at: datetime | None = None,
    ) -> IssuedToken:
        """Create a token. Only this response contains its secret.

        Args:
            label: Where the token is used.
            role: The highest role that the token grants.
            user: None: the caller.
            project: None: every project of its user.
            expires_at: Aware time; None: never.

        Raises:
            NotAllowedError: The token would grant more than the caller has.
        """
        body: dict[str, Any] = {"label": label, "role": str(role), "user": user, "project": project}
        body["expires_at"] = expires_at.isoformat() if expires_at else None
        return self._call(IssuedToken, "POST", "/tokens", json=body)

    def revoke_token(self, token: str) -> None:
        """Revoke a token; its sessions end at once.

        Args:
            token: Id of the token, not its secret.

        Raises:
            NotFoundError: It does not exist, or the user may not see it.
        """
        self._send("DELETE", f"/tokens/{quote(token, safe='')}")

    # --- bundles ---

    def upload(
        self,
        bundle: str | os.PathLike[str],
        project: str,
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> BundleInfo:
        """Pack a bundle's directory and upload it. Uploading it again changes nothing.

        Args:
            bundle: Directory that `scorer bundle build` wrote.
            project: Name of the project.
            progress: Called with the bytes sent and the bytes to send.

        Raises:
            InvalidError: The directory is no bundle, or its verification failed.
            QuotaError: The project has no room for another bundle.
        """
        from scorer.release.archive import pack

        directory = Path(bundle)
        if not (directory / "manifest.json").is_file():
            raise InvalidError(
                f'"{directory}" is no bundle; name the directory that `scorer bundle build` wrote'
            )
        with tempfile.TemporaryFile(prefix="scorer-bundle-") as file:
            pack(directory, file)
            size = file.tell()
            return self._call(
                BundleInfo,
                "POST",
                f"/projects/{quote(project, safe='')}/bundles",
                content=lambda: _chunks(file, size, progress),
                headers={"Content-Type": "application/gzip", "Content-Length": str(size)},
                repeatable=True,
                timeout=_UPLOAD_SECONDS,
            )

    def adopt(self, project: str, bundle: str) -> BundleInfo:
        """Add a bundle of the registry to a project. For modelers.

        Args:
            project: Name of the project.
            bundle: A digest, at least four digits of one, or name@alias.

        Raises:
            NotFoundError: It does not exist, or the user may not see it.
            QuotaError: The project has no room for another bundle.
        """
        path = f"/projects/{quote(project, safe='')}/bundles/adopt"
        return self._call(BundleInfo, "POST", path, json={"bundle": bundle}, repeatable=True)

    def bundles(self, project: str | None = None) -> Iterator[BundleInfo]:
        """Iterate over bundles, newest first.

        Args:
            project: None: of all projects of the user.
        """
        return self._pages(BundleInfo, "/bundles", {"project": project})

    def bundle(self, reference: str) -> BundleDetail:
        """Return a bundle's manifest, lineage, reference statistics, features and lanes.

        Args:
            reference: A digest, at least four digits of one, or name@alias.

        Raises:
            NotFoundError: It does not exist, or the user may not see it.
        """
        return self._call(BundleDetail, "GET", f"/bundles/{quote(reference, safe='@:')}")

    # --- change requests and reports ---

    def draft(
        self,
        *,
        project: str,
        checkpoint: str,
        bundle: str,
        title: str,
        kind: ChangeKind | str = ChangeKind.TEST,
        description: str = "",
        minutes: float = 60.0,
        stages: Sequence[Stage] = (),
        holdout: float = 0.0,
        gates: Sequence[GateSpec] = (),
        sample: float | None = None,
        pool: bool | None = None,
        evidence: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> ChangeRequest:
        """Create a draft of a change request.

        ::

            change = platform.draft(
                project="fraud", checkpoint="fraud.checkout", bundle="sha256:5a1f", title="Deeper trees"
            )
            platform.submit(change.id)

        Args:
            project: Name of the project.
            checkpoint: Name of the checkpoint.
            bundle: A digest, at least four digits of one, or name@alias.
            title: Shown in lists.
            kind: `test` or `release`.
            description: Reason for the change.
            minutes: Length of the observation.
            stages: Canary stages of a RELEASE; empty: the checkpoint's.
            holdout: Share of requests that stays with the previous bundle, from 0 to below 1.
            gates: Empty: the checkpoint's.
            sample: Share of requests that are observed; None: the checkpoint's.
            pool: Whether the shadow pool evaluates; None: the checkpoint's.
            evidence: What a learning loop bases the change on, as JSON.
            key: Idempotency key: a request is done once per key. None: generated, so that a retry of this
                call makes no second draft.

        Raises:
            InvalidError: A field is out of range.
            NotAllowedError: The user is no modeler of the project.
            QuotaError: The project has too many open changes.
        """
        body = _draft(
            project=project,
            kind=kind,
            checkpoint=checkpoint,
            bundle=bundle,
            title=title,
            description=description,
            minutes=minutes,
            stages=stages,
            holdout=holdout,
            gates=gates,
            sample=sample,
            pool=pool,
            evidence=evidence,
        )
        headers = {"Idempotency-Key": key or secrets.token_hex(16)}
        return self._call(ChangeRequest, "POST", "/changes", json=body, headers=headers, repeatable=True)

    def edit(self, change: ChangeRequest, **fields: Any) -> ChangeRequest:
        """Replace fields of a draft.

        Args:
            change: The draft as it was read; its version guards against lost updates.
            fields: Fields to replace, as of `draft`.

        Raises:
            ConflictError: The draft has changed since it was read.
            InvalidError: A field does not exist or is out of range.
        """
        before = {
            name: getattr(change, name)
            for name in (
                "project", "kind", "checkpoint", "bundle", "title", "description", "minutes", "stages",
                "holdout", "gates", "sample", "pool", "evidence",
            )
        }  # fmt: skip
        unknown = sorted(set(fields) - set(before))
        if unknown:
            raise InvalidError(f"a draft has no {unknown[0]}; it has {', '.join(before)}")
        body = {**_draft(**{**before, **fields}), "version": change.version}
        return self._call(ChangeRequest, "PUT", _change(change.id), json=body, repeatable=False)

    def delete(self, change: str) -> None:
        """Delete a draft for good. For its authors and owners.

        Args:
            change: Id of the change request, for example cr-000017.

        Raises:
            ConflictError: Its state does not allow this, or it has changed since.
            NotAllowedError: The token's role does not allow this.
        """
        self._send("DELETE", _change(change))

    def submit(self, change: str, *, start: datetime | None = None, slot: int | None = None) -> ChangeRequest:
        """Submit a draft: book its shadow slot and start the checks. For modelers.

        Args:
            change: Id of the change request, for example cr-000017.
            start: Aware time; None: the next free slot.
            slot: Number of the slot; None: any.

        Raises:
            ConflictError: The slot is taken; the message names the next free one.
            FrozenError: A freeze covers the start.
            InvalidError: The start is past, or a RELEASE has no passed TEST.
            QuotaError: The project's slot time of the week is used up.
        """
        return self._do(change, "submit", start=start and start.isoformat(), slot=slot)

    def rebook(
        self, change: str, *, start: datetime, minutes: float | None = None, slot: int | None = None
    ) -> ChangeRequest:
        """Move the booking of a change request that is not deployed yet.

        Args:
            change: Id of the change request, for example cr-000017.
            start: Aware time.
            minutes: None: unchanged.
            slot: None: unchanged.

        Raises:
            ConflictError: Its state does not allow this, or it has changed since.
            FrozenError: A freeze covers the start.
        """
        return self._do(change, "rebook", start=start.isoformat(), minutes=minutes, slot=slot)

    def finish(self, change: str) -> ChangeRequest:
        """End the observation now instead of at the end of its booking.

        Args:
            change: Id of the change request, for example cr-000017.

        Raises:
            ConflictError: Its state does not allow this, or it has changed since.
            NotAllowedError: The token's role does not allow this.
        """
        return self._call(ChangeRequest, "POST", f"{_change(change)}/finish")

    def approve(self, change: str, *, version: int | None = None, comment: str = "") -> ChangeRequest:
        """Approve a RELEASE whose gates passed. For approvers other than the submitter.

        Args:
            change: Id of the change request, for example cr-000017.
            version: Version that was reviewed; None: whichever is current.
            comment: Recorded with the approval.

        Raises:
            ConflictError: Its state does not allow this, or it has changed since.
            NotAllowedError: The caller is no approver, or submitted the change.
        """
        return self._do(change, "approve", comment=comment, version=version)

    def reject(self, change: str, *, reason: str) -> ChangeRequest:
        """Reject a change request. For approvers.

        Args:
            change: Id of the change request, for example cr-000017.
            reason: Recorded in the audit log.

        Raises:
            ConflictError: Its state does not allow this, or it has changed since.
            NotAllowedError: The token's role does not allow this.
        """
        return self._do(change, "reject", reason=reason)

    def waive(self, change: str, *, metric: str, reason: str) -> ChangeRequest:
        """Waive a failed gate of a change request. For approvers other than the submitter.

        Args:
            change: Id of the change request, for example cr-000017.
            metric: Metric of the gate.
            reason: Recorded in the audit log.

        Raises:
            ConflictError: Its state does not allow this, or it has changed since.
            NotAllowedError: The token's role does not allow this.
        """
        return self._do(change, "waive", metric=metric, reason=reason)

    def withdraw(self, change: str, *, reason: str) -> ChangeRequest:
        """Withdraw a change request: its lanes are removed and its slot is freed.

        Args:
            change: Id of the change request, for example cr-000017.
            reason: Recorded in the audit log.

        Raises:
            ConflictError: Its state does not allow this, or it has changed since.
            NotAllowedError: The caller is neither the submitter nor an owner.
        """
        return self._do(change, "withdraw", reason=reason)

    def rollback(self, change: str, *, reason: str) -> ChangeRequest:
        """Restore the lanes before a release in one call, also during a freeze.

        Args:
            change: Id of the change request, for example cr-000017.
            reason: Recorded in the audit log.

        Raises:
            ConflictError: Its state does not allow this, or it has changed since.
            NotAllowedError: The token's role does not allow this.
        """
        return self._do(change, "rollback", reason=reason)

    def change(self, change: str) -> ChangeDetail:
        """Return a change request with its steps, events, gates, booking and allowed operations.

        Args:
            change: Id of the change request, for example cr-000017.

        Raises:
            NotFoundError: It does not exist, or the user may not see it.
        """
        return self._call(ChangeDetail, "GET", _change(change))

    def changes(
        self,
        *,
        project: str | None = None,
        checkpoint: str | None = None,
        state: ChangeState | str | None = None,
        user: str | None = None,
    ) -> Iterator[ChangeRequest]:
        """Iterate over change requests, newest first.

        Args:
            project: None: of all projects of the user.
            checkpoint: None: at all.
            state: None: in all states.
            user: Who drafted them; None: anyone.
        """
        query = {"project": project, "checkpoint": checkpoint, "user": user}
        query["state"] = None if state is None else str(state)
        return self._pages(ChangeRequest, "/changes", query)

    def events(self, change: str, *, after: int = 0, wait: float = 0.0) -> Events:
        """Return the events after a known one, and wait for the next where there are none.

        Args:
            change: Id of the change request, for example cr-000017.
            after: Id of the last known event; 0: from the beginning.
            wait: Seconds to wait, at most 60.

        Raises:
            NotFoundError: It does not exist, or the user may not see it.
        """
        return self._call(
            Events,
            "GET",
            f"{_change(change)}/events",
            query={"after": after, "wait": wait},
            timeout=wait + 30.0,
        )

    def watch(self, change: str, *, after: int = 0, patience: float = 120.0) -> Iterator[ChangeEvent]:
        """Iterate over the events of a change request until it is final.

        ::

            for event in platform.watch(change.id):
                print(event.message)

        Args:
            change: Id of the change request, for example cr-000017.
            after: Id of the last known event; 0: from the beginning.
            patience: Seconds for which the platform may be away; then the iteration continues where it was.

        Raises:
            UnreachableError: The platform was away for longer.
        """
        away_since: float | None = None
        while True:
            try:
                found = self.events(change, after=after, wait=_WAIT_SECONDS)
            except UnreachableError:
                now = time.monotonic()
                away_since = now if away_since is None else away_since
                if now - away_since > patience:
                    raise
                continue
            away_since = None
            yield from found.items
            after = found.next
            if found.is_final:
                return

    def ship_test(
        self,
        bundle: str | os.PathLike[str],
        checkpoint: str,
        *,
        project: str | None = None,
        minutes: float = 60.0,
        title: str | None = None,
        sample: float | None = None,
        narrate: Callable[[str], None] = lambda _: None,
        progress: Callable[[int, int], None] | None = None,
        **fields: Any,
    ) -> ChangeRequest:
        """Upload a bundle, draft a TEST and submit it.

        ::

            change = platform.ship_test("out/fraud", "fraud.checkout", minutes=60)

        Args:
            bundle: Directory that `scorer bundle build` wrote.
            checkpoint: Name of the checkpoint.
            project: None: the user's only project.
            minutes: Length of the observation.
            title: None: the bundle's name and the first digits of its digest.
            sample: Share of requests that are observed; None: the checkpoint's.
            narrate: Called with a sentence for every step.
            progress: Called with the bytes sent and the bytes to send.
            fields: Other fields of `draft`.

        Returns:
            The submitted change request.

        Raises:
            InvalidError: The bundle was rejected, or the project is ambiguous.
        """
        project = project or self.only_project()
        info = self.upload(bundle, project, progress=progress)
        short = info.digest.removeprefix("sha256:")[:12]
        narrate(f"uploaded {Path(bundle)}: {info.name} {short} is verified and in the registry")
        drafted = self.draft(
            project=project,
            checkpoint=checkpoint,
            bundle=info.digest,
            title=title or f"{info.name} {short}",
            minutes=minutes,
            sample=sample,
            **fields,
        )
        narrate(f"drafted {drafted.id}: TEST of {short} at {checkpoint} for {minutes:g} minutes")
        submitted = self.submit(drafted.id)
        booking = self.change(submitted.id).booking
        if booking is not None:
            narrate(
                f"submitted {submitted.id}: shadow slot {booking.slot} is booked from "
                f"{booking.start:%Y-%m-%d %H:%M} to {booking.end:%H:%M} UTC"
            )
        return submitted

    def only_project(self) -> str:
        """Return the name of the user's only project.

        Raises:
            InvalidError: The user is a member of none or of several.
        """
        names = [project.name for project in self._call(list[Project], "GET", "/projects")]
        if len(names) != 1:
            shown = ", ".join(names) or "none; ask an owner to add you to one"
            raise InvalidError(f"say which project this is for (--project); yours are: {shown}")
        return names[0]

    def readout(
        self,
        change: str,
        *,
        start: datetime | None = None,
        end: datetime | None = None,
        server: str | None = None,
    ) -> Readout:
        """Return the report of a change request: gates, summary, figures, changed decisions.

        Args:
            change: Id of the change request, for example cr-000017.
            start: Aware time; None: from the beginning.
            end: Aware time; None: to the end.
            server: Name of a server; None: all.

        Returns:
            The final report, or the report so far.

        Raises:
            ConflictError: Nothing has been observed yet.
            NotFoundError: It does not exist, or the user may not see it.
        """
        query = {"start": start, "end": end, "server": server}
        return self._call(Readout, "GET", f"{_change(change)}/readout", query=query, timeout=120.0)

    def figure(self, change: str, name: str) -> Figure:
        """Return one figure of a report with its numbers.

        Args:
            change: Id of the change request, for example cr-000017.
            name: For example execution, scores or flips.

        Raises:
            NotFoundError: It does not exist, or the user may not see it.
        """
        return self._call(Figure, "GET", f"{_change(change)}/readout/figures/{quote(name, safe='')}")

    def figure_csv(self, change: str, name: str) -> str:
        """Return the numbers of a figure as CSV.

        Args:
            change: Id of the change request, for example cr-000017.
            name: For example execution, scores or flips.

        Raises:
            NotFoundError: It does not exist, or the user may not see it.
        """
        return self._send("GET", f"{_change(change)}/readout/figures/{quote(name, safe='')}/csv").text

    def _do(self, change: str, what: str, **body: Any) -> ChangeRequest:
        return self._call(ChangeRequest, "POST", f"{_change(change)}/{what}", json=body)

    # --- standing permissions ---

    def permissions(self, project: str) -> list[StandingPermission]:
        """List the standing permissions of a project, newest first, expired and revoked ones too.

        Args:
            project: Name of the project.

        Raises:
            NotFoundError: It does not exist, or the user may not see it.
        """
        path = f"/projects/{quote(project, safe='')}/permissions"
        return self._call(list[StandingPermission], "GET", path)

    def grant_permission(
        self,
        project: str,
        *,
        kind: ChangeKind | str,
        checkpoint: str,
        user: str,
        days: float,
        reason: str,
        per_hour: int = 12,
        max_shift: float = 1.0,
    ) -> StandingPermission:
        """Let a user submit changes of one kind at one checkpoint, for a time and within bounds.

        Args:
            project: Of which the caller is an owner.
            kind: `overlay`, `test` or `release`.
            checkpoint: Where.
            user: A modeler of the project, usually the loop's own user.
            days: Until it expires; above 0, at most 366.
            reason: Kept in the audit log.
            per_hour: Changes that may be submitted within an hour; 1 to 60.
            max_shift: Of an overlay: the largest offset that it may give an action, in log-odds.

        Returns:
            The permission with its id.

        Raises:
            NotAllowedError: The caller is no owner.
            InvalidError: A bound is out of range, or the user is no modeler of the project.
        """
        body = {
            "kind": str(kind),
            "checkpoint": checkpoint,
            "user": user,
            "days": days,
            "reason": reason,
            "per_hour": per_hour,
            "max_shift": max_shift,
        }
        path = f"/projects/{quote(project, safe='')}/permissions"
        return self._call(StandingPermission, "POST", path, json=body)

    def revoke_permission(self, permission: str, *, reason: str) -> StandingPermission:
        """Revoke a standing permission; what was submitted under it and not published is rejected.

        Args:
            permission: Id of the permission.
            reason: Recorded in the audit log.

        Raises:
            ConflictError: It has been revoked already.
            NotAllowedError: The token's role does not allow this.
        """
        path = f"/permissions/{quote(permission, safe='')}/revoke"
        return self._call(StandingPermission, "POST", path, json={"reason": reason})

    # --- checkpoints, calendar, decisions ---

    def checkpoints(self) -> list[CheckpointView]:
        """List the checkpoints that the user may see, with recorded lanes and those of every server."""
        return self._call(list[CheckpointView], "GET", "/checkpoints")

    def checkpoint(self, name: str) -> CheckpointView:
        """Return a checkpoint with its recorded lanes and those of every server.

        Args:
            name: Name of the checkpoint.

        Raises:
            NotFoundError: It does not exist, or the user may not see it.
        """
        return self._call(CheckpointView, "GET", _checkpoint(name))

    def tables(self, checkpoint: str, *, limit: int = 100) -> list[RecordedTable]:
        """List the recorded lane tables of a checkpoint, newest first.

        Args:
            checkpoint: Name of the checkpoint.
            limit: Largest number of tables, up to 1000.

        Raises:
            NotFoundError: It does not exist, or the user may not see it.
        """
        return self._call(
            list[RecordedTable], "GET", f"{_checkpoint(checkpoint)}/tables", query={"limit": limit}
        )

    def set_sampling(
        self,
        checkpoint: str,
        *,
        sample: float,
        filter: str = "",  # noqa: A002 - as lanes have it
        pool: bool | None = None,
    ) -> CheckpointView:
        """Set which requests the observe lanes receive, running ones included. For owners.

        Args:
            checkpoint: Name of the checkpoint.
            sample: Share of requests, above 0, at most 1.
            filter: JSON list of conditions on features; empty: every request.
            pool: Whether the shadow pool evaluates; None: unchanged.

        Raises:
            InvalidError: The filter cannot be read.
            NotAllowedError: The token's role does not allow this.
        """
        body = {"sample": float(sample), "filter": filter, "pool": pool}
        return self._call(CheckpointView, "PUT", f"{_checkpoint(checkpoint)}/sampling", json=body)

    def rollback_checkpoint(self, checkpoint: str, *, reason: str) -> RecordedTable:
        """Restore the previous answer lanes of a checkpoint; a release in progress ends rolled back.

        Args:
            checkpoint: Name of the checkpoint.
            reason: Recorded in the audit log.

        Returns:
            The lane table that is active now.

        Raises:
            ConflictError: There are no lanes before these.
            NotAllowedError: The token's role does not allow this.
        """
        return self._call(
            RecordedTable, "POST", f"{_checkpoint(checkpoint)}/rollback", json={"reason": reason}
        )

    def rolled_back_at(self, checkpoint: str) -> datetime | None:
        """Return when the checkpoint was rolled back last; None: never.

        Args:
            checkpoint: Name of the checkpoint.
        """
        return self._call(RolledBack, "GET", f"{_checkpoint(checkpoint)}/rollback").at

    def next_free(self, checkpoint: str, *, minutes: float = 60.0, after: datetime | None = None) -> Free:
        """Return the earliest free shadow slot, outside freezes.

        Args:
            checkpoint: Name of the checkpoint.
            minutes: Length of the booking.
            after: Aware time; None: now.

        Raises:
            ConflictError: There is none within a year.
        """
        query = {"minutes": minutes, "after": after}
        return self._call(Free, "GET", f"{_checkpoint(checkpoint)}/next-free", query=query)

    def frozen(self, checkpoint: str, at: datetime | None = None) -> FreezeWindow | None:
        """Return the freeze window that forbids changes; None: changes are allowed.

        Args:
            checkpoint: Name of the checkpoint.
            at: Aware time; None: now.
        """
        answer: Any = FreezeWindow | None
        found: FreezeWindow | None = self._call(
            answer, "GET", f"{_checkpoint(checkpoint)}/frozen", query={"at": at}
        )
        return found

    def calendar(self, start: datetime, end: datetime, *, checkpoint: str | None = None) -> CalendarPage:
        """Return slots, bookings and freezes between two moments.

        Args:
            start: Aware time.
            end: Aware time, at most a year later.
            checkpoint: None: all checkpoints.

        Raises:
            InvalidError: The period is empty or longer than a year.
        """
        query = {"start": start, "end": end, "checkpoint": checkpoint}
        return self._call(CalendarPage, "GET", "/calendar", query=query)

    def freezes(self) -> list[Freeze]:
        """Return all freezes of the calendar."""
        return self._call(list[Freeze], "GET", "/freezes")

    def add_freeze(
        self,
        name: str,
        *,
        cron: str,
        minutes: int,
        kind: str = "deny",
        timezone: str = "UTC",
        checkpoints: Sequence[str] = ("*",),
        reason: str = "",
    ) -> Freeze:
        """Add a freeze. For admins.

        Args:
            name: Shown on pages.
            cron: Start of each window: minute, hour, day, month, weekday (0 and 7: Sunday).
            minutes: Length of each window.
            kind: `deny` forbids changes in the windows, `allow` allows them only then; deny wins.
            timezone: Of the cron fields.
            checkpoints: Shell patterns of checkpoint names.
            reason: Shown to users.

        Raises:
            InvalidError: The cron line or the time zone cannot be read.
            NotAllowedError: The token's role does not allow this.
        """
        body = {
            "name": name,
            "kind": kind,
            "cron": cron,
            "timezone": timezone,
            "minutes": minutes,
            "checkpoints": list(checkpoints),
            "reason": reason,
        }
        return self._call(Freeze, "POST", "/freezes", json=body)

    def remove_freeze(self, freeze: int) -> None:
        """Remove a freeze. For admins.

        Args:
            freeze: Id of the freeze.

        Raises:
            NotFoundError: It does not exist, or the user may not see it.
            NotAllowedError: The token's role does not allow this.
        """
        self._send("DELETE", f"/freezes/{freeze}")

    def decisions(self, checkpoint: str, *, limit: int = 50) -> list[Mapping[str, Any]]:
        """Return the newest decisions of a checkpoint.

        Args:
            checkpoint: Name of the checkpoint.
            limit: At most 500.

        Raises:
            NotFoundError: It does not exist, or the user may not see it.
        """
        query = {"limit": limit}
        return self._call(list[Mapping[str, Any]], "GET", f"{_checkpoint(checkpoint)}/decisions", query=query)

    def decision(self, decision_id: str, *, checkpoint: str | None = None) -> Mapping[str, Any]:
        """Return a decision with its features, observations, outcomes and eligible actions.

        Args:
            decision_id: Id of the decision.
            checkpoint: None: search all.

        Raises:
            NotFoundError: It does not exist, or the user may not see it.
        """
        answer: Any = Mapping[str, Any]
        found: Mapping[str, Any] = self._call(
            answer, "GET", f"/decisions/{quote(decision_id, safe='')}", query={"checkpoint": checkpoint}
        )
        return found

    # --- notifications, audit, health ---

    def channels(self, project: str) -> list[Channel]:
        """List the notification channels of a project, secrets blanked.

        Args:
            project: Name of the project.

        Raises:
            NotFoundError: It does not exist, or the user may not see it.
        """
        return self._call(list[Channel], "GET", f"/projects/{quote(project, safe='')}/channels")

    def add_channel(
        self,
        project: str,
        url: str,
        *,
        severity: Severity | str = Severity.INFO,
        checkpoints: Sequence[str] = (),
        secret: str | None = None,
    ) -> Channel:
        """Add a notification channel. For owners.

        Args:
            project: Name of the project.
            url: An apprise URL, or the `https://` address of a webhook.
            severity: Events below it are not sent.
            checkpoints: Names; empty: all.
            secret: Signs the deliveries of a webhook.

        Raises:
            InvalidError: The address cannot be used.
            NotAllowedError: The token's role does not allow this.
        """
        body = {"url": url, "severity": str(severity), "checkpoints": list(checkpoints), "secret": secret}
        return self._call(Channel, "POST", f"/projects/{quote(project, safe='')}/channels", json=body)

    def remove_channel(self, channel: int) -> None:
        """Remove a notification channel. For owners.

        Args:
            channel: Id of the channel.

        Raises:
            NotFoundError: It does not exist, or the user may not see it.
            NotAllowedError: The token's role does not allow this.
        """
        self._send("DELETE", f"/channels/{channel}")

    def test_channel(self, channel: int) -> Delivery:
        """Send a test message now.

        Args:
            channel: Id of the channel.

        Returns:
            What came of the delivery.

        Raises:
            NotFoundError: It does not exist, or the user may not see it.
        """
        return self._call(Delivery, "POST", f"/channels/{channel}/test", timeout=90.0)

    def deliveries(self, project: str, *, limit: int = 100) -> list[Delivery]:
        """List the messages of a project, newest first.

        Args:
            project: Name of the project.
            limit: Largest number of messages, up to 1000.

        Raises:
            NotFoundError: It does not exist, or the user may not see it.
        """
        path = f"/projects/{quote(project, safe='')}/deliveries"
        return self._call(list[Delivery], "GET", path, query={"limit": limit})

    def audit(
        self,
        *,
        project: str | None = None,
        action: str | None = None,
        user: str | None = None,
        object: str | None = None,  # noqa: A002 - as the entry has it
    ) -> Iterator[AuditEntry]:
        """Iterate over the audit log of the user's projects, newest first.

        Args:
            project: None: all.
            action: For example change.approve; None: all.
            user: None: all.
            object: For example cr-000017; None: all.
        """
        query = {"project": project, "action": action, "user": user, "object": object}
        return self._pages(AuditEntry, "/audit", query)

    def verify_audit(self, *, expect: tuple[int, str] | None = None) -> Verified:
        """Verify every hash of the audit log. For admins.

        Args:
            expect: Sequence and hash of a head stored earlier; None: not compared.

        Returns:
            The number of entries, the head, and what is wrong.

        Raises:
            NotAllowedError: The token's role does not allow this.
        """
        query = {"sequence": expect[0], "hash": expect[1]} if expect else None
        return self._call(Verified, "GET", "/audit/verify", query=query, timeout=300.0)

    def health(self) -> PlatformHealth:
        """Return the version of the platform, and whether this process is the leader.

        Raises:
            UnreachableError: The platform or its database does not answer.
        """
        return self._call(PlatformHealth, "GET", "/health")

    def _call(self, kind: type[T], method: str, path: str, **options: Any) -> T:
        return self._transport.call(kind, method, path, **options)

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self._transport.send(method, path, **options)

    def _pages(self, kind: type[T], path: str, query: Mapping[str, Any]) -> Iterator[T]:
        """Iterate over all pages of a list."""
        cursor: str | None = None
        while True:
            page = self._call(ResultPage[kind], "GET", path, query={**query, "cursor": cursor})  # type: ignore[valid-type]
            yield from page.items
            cursor = page.next
            if cursor is None:
                return


def _change(change: str) -> str:
    return f"/changes/{quote(change, safe='')}"


def _checkpoint(checkpoint: str) -> str:
    return f"/checkpoints/{quote(checkpoint, safe='')}"


def _draft(
    *, kind: ChangeKind | str, stages: Sequence[Stage], gates: Sequence[GateSpec], **fields: Any
) -> dict[str, Any]:
    return {
        **fields,
        "kind": str(kind),
        "stages": [asdict(stage) for stage in stages],
        "gates": [asdict(gate) for gate in gates],
    }


def _chunks(file: BinaryIO, size: int, progress: Callable[[int, int], None] | None) -> Iterator[bytes]:
    file.seek(0)
    sent = 0
    while chunk := file.read(_CHUNK):
        yield chunk
        sent += len(chunk)
        if progress is not None:
            progress(sent, size)
