"""Change requests and their reports."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from scorer.release.errors import InvalidError, UnreachableError
from scorer.release.model import ChangeEvent, ChangeKind, ChangeRequest, ChangeState, GateSpec, Project, Stage
from scorer.sdk.bundles import BundleCalls
from scorer.sdk.paging import Page
from scorer.sdk.results import ChangeDetail, Events, Figure, Readout

_WAIT_SECONDS = 20.0


class ChangeCalls(BundleCalls):
    """Its operations."""

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
        """A draft: nothing is checked yet but that it makes sense.

        `evidence`: what a learning loop bases it on, as JSON; such a draft is submitted by a person, or by
        the loop itself under a standing permission.

        `key`: anything unique; the same request with the same key is done once. Default: made up here, so
        that another try of this call makes no second draft.
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
        """A draft of one's own, as it was read, with other fields (as of `draft`)."""
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
        return self._call(ChangeRequest, "PUT", _at(change.id), json=body, repeatable=False)

    def delete(self, change: str) -> None:
        """Remove a draft for good; its authors and owners may."""
        self._send("DELETE", _at(change))

    def submit(self, change: str, *, start: datetime | None = None, slot: int | None = None) -> ChangeRequest:
        """Books the shadow (None: the next free slot) and begins the checks."""
        return self._do(change, "submit", start=start and start.isoformat(), slot=slot)

    def rebook(
        self, change: str, *, start: datetime, minutes: float | None = None, slot: int | None = None
    ) -> ChangeRequest:
        """Moves its booking, before it is deployed."""
        return self._do(change, "rebook", start=start.isoformat(), minutes=minutes, slot=slot)

    def finish(self, change: str) -> ChangeRequest:
        """Ends the observing now instead of at the end of its booking."""
        return self._call(ChangeRequest, "POST", f"{_at(change)}/finish")

    def approve(self, change: str, *, version: int | None = None, comment: str = "") -> ChangeRequest:
        """Approvers, never the submitter: releases a RELEASE whose gates passed."""
        return self._do(change, "approve", comment=comment, version=version)

    def reject(self, change: str, *, reason: str) -> ChangeRequest:
        """Approvers."""
        return self._do(change, "reject", reason=reason)

    def waive(self, change: str, *, metric: str, reason: str) -> ChangeRequest:
        """Approvers, never the submitter: this gate does not stand in the way of this change."""
        return self._do(change, "waive", metric=metric, reason=reason)

    def withdraw(self, change: str, *, reason: str) -> ChangeRequest:
        """The submitter, or an owner."""
        return self._do(change, "withdraw", reason=reason)

    def rollback(self, change: str, *, reason: str) -> ChangeRequest:
        """Back to what answered before this change, in one call."""
        return self._do(change, "rollback", reason=reason)

    def change(self, change: str) -> ChangeDetail:
        """Everything about one."""
        return self._call(ChangeDetail, "GET", _at(change))

    def changes(
        self,
        *,
        project: str | None = None,
        checkpoint: str | None = None,
        state: ChangeState | str | None = None,
        user: str | None = None,
    ) -> Iterator[ChangeRequest]:
        """Newest first."""
        query = {"project": project, "checkpoint": checkpoint, "user": user}
        query["state"] = None if state is None else str(state)
        cursor: str | None = None
        while True:
            page = self._call(Page[ChangeRequest], "GET", "/changes", query={**query, "cursor": cursor})
            yield from page.items
            cursor = page.next
            if cursor is None:
                return

    def events(self, change: str, *, after: int = 0, wait: float = 0.0) -> Events:
        """What happened after an event; waits up to `wait` seconds for the next one."""
        return self._call(
            Events,
            "GET",
            f"{_at(change)}/events",
            query={"after": after, "wait": wait},
            timeout=wait + 30.0,
        )

    def watch(self, change: str, *, after: int = 0, patience: float = 120.0) -> Iterator[ChangeEvent]:
        """Everything that happens to a change, as it happens, until nothing follows.

        Goes on where it was when the platform was away for up to `patience` seconds.
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
        """From a bundle's directory to a TEST on its way: uploaded, drafted, submitted.

        Args:
            bundle: What `scorer bundle build` wrote.
            checkpoint: Where it is to be looked at.
            project: Whose it is; may be left out by members of one project.
            minutes: How long in the shadow.
            title: Default: the bundle's name and its digest's beginning.
            sample: Share of the requests; default: the checkpoint's.
            narrate: Told every step in a sentence.
            progress: Told bytes sent and bytes to send.
            fields: Others of `draft`.
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
        """The project of somebody who has one."""
        names = [project.name for project in self._call(list[Project], "GET", "/projects")]
        if len(names) != 1:
            shown = ", ".join(names) or "none; ask an owner to add you to one"
            raise InvalidError(f"say which project this is for (--project); yours are: {shown}")
        return names[0]

    # --- reports ---

    def readout(
        self,
        change: str,
        *,
        start: datetime | None = None,
        end: datetime | None = None,
        server: str | None = None,
    ) -> Readout:
        """What there is so far, or the final one."""
        query = {"start": start, "end": end, "server": server}
        return self._call(Readout, "GET", f"{_at(change)}/readout", query=query, timeout=120.0)

    def figure(self, change: str, name: str) -> Figure:
        """One figure of it, with its numbers."""
        return self._call(Figure, "GET", f"{_at(change)}/readout/figures/{quote(name, safe='')}")

    def figure_csv(self, change: str, name: str) -> str:
        """Its numbers, for a spreadsheet."""
        return self._send("GET", f"{_at(change)}/readout/figures/{quote(name, safe='')}/csv").text

    def _do(self, change: str, what: str, **body: Any) -> ChangeRequest:
        return self._call(ChangeRequest, "POST", f"{_at(change)}/{what}", json=body)


def _at(change: str) -> str:
    return f"/changes/{quote(change, safe='')}"


def _draft(
    *, kind: ChangeKind | str, stages: Sequence[Stage], gates: Sequence[GateSpec], **fields: Any
) -> dict[str, Any]:
    return {
        **fields,
        "kind": str(kind),
        "stages": [asdict(stage) for stage in stages],
        "gates": [asdict(gate) for gate in gates],
    }
