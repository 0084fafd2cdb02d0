"""Metrics of a checkpoint over time, as the service layer returns them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from scorer.figure import Figure
from scorer.release.answers import CheckpointMetrics, MetricsChoices
from scorer.release.errors import InvalidError, NotFoundError, UnreachableError
from scorer.release.model import Actor
from scorer.release.store import Store, instant, micros
from scorer.release.timeseries import drawing, figures
from scorer.release.timeseries.batch import ACTION_KIND, OUTCOME, SCORE_KIND, OutcomeRule
from scorer.release.timeseries.ledger import Ledger
from scorer.release.timeseries.marks import marks_of
from scorer.release.timeseries.reading import Counts, Filters, Series, read, series_of
from scorer.release.timeseries.windows import MetricsWindow, window_of

if TYPE_CHECKING:
    from scorer.log.source.records import RecordSource
    from scorer.release.access import Access
    from scorer.release.bundles import Bundles
    from scorer.release.fleet import Fleet
    from scorer.release.settings import PlatformFile

_KINDS = (SCORE_KIND, ACTION_KIND)
_NO_COUNTS = Counts((), (), 0, 0, (), {})


class MetricsOverTime:
    """Counts the records of the fleet's logs, and draws figures of the counts.

    Args:
        settings: The checkpoints, their SLA and outcomes; the data directory.
        store: The recorded lane tables, which are marked in the figures.
        access: Decides which checkpoints an actor may see.
        fleet: The servers. Those without a log in the source are named in a note.
        source: The logs of the servers.
        bundles: The references that scores are compared with.
        now: Returns the current time, aware and in UTC.
    """

    def __init__(
        self,
        settings: PlatformFile,
        store: Store,
        access: Access,
        fleet: Fleet,
        source: RecordSource,
        bundles: Bundles,
        *,
        now: Callable[[], datetime],
    ) -> None:
        self._settings, self._store, self._access = settings, store, access
        self._fleet, self._source, self._now = fleet, source, now
        self.ledger = Ledger(
            settings.platform.data_dir / "metrics.sqlite",
            bundles.local,
            now=lambda: micros(now()),
            rules=lambda: _rules(settings),
        )

    def metrics(
        self,
        actor: Actor,
        checkpoint: str,
        *,
        window: str | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        server: str = "",
        lane: str = "",
        version: str = "",
    ) -> CheckpointMetrics:
        """Return the figures of a checkpoint in a window.

        Args:
            actor: The calling user.
            checkpoint: Name of the checkpoint.
            window: `1h`, `6h`, `24h`, `7d`, `30d` or `6mo`; None: `24h`.
            start: Start of a window of one's own, instead of a name.
            end: End of that window; None: now.
            server: Name of a server; empty: all.
            lane: Name of a lane; empty: all that answer.
            version: Digest of a bundle, or at least its first four digits; empty: all.

        Raises:
            NotFoundError: There is no such checkpoint, or the actor may not see it.
            InvalidError: The window is not valid, or nothing was counted of the server, lane or version.
            UnreachableError: The rollups cannot be read.
        """
        self._require(actor, checkpoint)
        now = self._now()
        chosen = window_of(window, start, end, now)
        try:
            with self.ledger.file.reading() as connection:
                every = [] if connection is None else series_of(connection, checkpoint)
                filters = _filters(every, server, lane, version)
                before = {
                    kind: micros(now - self._settings.checkpoints[checkpoint].matures(kind))
                    for kind in _KINDS
                }
                counts = (
                    _NO_COUNTS
                    if connection is None
                    else read(connection, checkpoint, every, chosen, filters, before)
                )
        except sqlite3.Error as error:
            raise UnreachableError(
                f"the rollups in {self.ledger.file.path} cannot be read ({error}); try again in a minute"
            ) from error
        return self._answer(checkpoint, chosen, now, every, counts)

    def named(self, metrics: CheckpointMetrics, name: str) -> Figure:
        """Return one of the figures.

        Raises:
            NotFoundError: There is no such figure.
        """
        known = {one.name: one for one in metrics.figures}
        if name not in known:
            raise NotFoundError(f'there is no figure "{name}" of metrics; there are {", ".join(known)}')
        return known[name]

    def choices(self, actor: Actor, checkpoint: str) -> MetricsChoices:
        """Return the servers, lanes and versions that were counted, for the filters of a page.

        Raises:
            NotFoundError: There is no such checkpoint, or the actor may not see it.
        """
        self._require(actor, checkpoint)
        try:
            with self.ledger.file.reading() as connection:
                every = [] if connection is None else series_of(connection, checkpoint)
        except sqlite3.Error:
            every = []
        return _choices(every)

    def close(self) -> None:
        """Close the file of the rollups."""
        self.ledger.close()

    def _require(self, actor: Actor, checkpoint: str) -> None:
        if checkpoint not in self._access.checkpoints(actor, tuple(self._settings.checkpoints)):
            raise NotFoundError(
                f'there is no checkpoint "{checkpoint}" that you may see; the page of checkpoints lists '
                "those that you may see"
            )

    def _answer(
        self, checkpoint: str, window: MetricsWindow, now: datetime, every: list[Series], counts: Counts
    ) -> CheckpointMetrics:
        own = self._settings.checkpoints[checkpoint]
        marks = marks_of(self._store, checkpoint, window)
        kind = next((one.kind for one in every if one.kind), SCORE_KIND)
        subject = drawing.Subject(window, micros(now), own.p99_ms * 1_000, own.outcome_of(kind), marks)
        counted = [one for one in every if one.role != OUTCOME]
        since = min((one.since for one in counted), default=None)
        return CheckpointMetrics(
            checkpoint=checkpoint,
            start=instant(window.start),
            end=instant(window.end),
            step_seconds=window.step // 1_000_000,
            window=window.name,
            since=None if since is None else instant(since),
            rows=int(sum(line.rows.sum() for line in counts.lines)),
            choices=_choices(every),
            marks=marks,
            figures=figures.draw(subject, counts),
            notes=tuple(self._notes(window, since, counts)),
        )

    def _notes(self, window: MetricsWindow, since: int | None, counts: Counts) -> list[str]:
        names = {log.name for log in self._source.logs}
        notes = [
            f"The log of {member.name} is not within reach, so its requests are not counted."
            for member in self._fleet.members
            if member.name not in names
        ]
        if since is not None and since > window.start:
            notes.append(f"The first record that was counted is of {instant(since):%Y-%m-%d %H:%M} UTC.")
        if counts.left_out:
            notes.append(
                f"{counts.left_out:,} versions with fewer decisions are left out; choose a version to see it."
            )
        if counts.unplaced:
            notes.append(
                f"{counts.unplaced:,} outcomes that were received in this window could not be assigned to a "
                "decision: they have no decision token, and their decision is no longer remembered."
            )
        unproven = sum(int(one.unproven.sum()) for one in counts.outcomes)
        if unproven:
            notes.append(
                f"{unproven:,} decisions have only outcomes that are not proven, which do not count."
            )
        return notes


def _rules(settings: PlatformFile) -> Mapping[str, OutcomeRule]:
    found = {}
    # A copy, since checkpoints are added while the platform runs.
    for name, own in dict(settings.checkpoints).items():
        kinds: dict[str, list[str]] = {}
        for kind in _KINDS:
            kinds.setdefault(own.outcome_of(kind), []).append(kind)
        found[name] = OutcomeRule(kinds, own.unproven == "include")
    return found


def _choices(every: list[Series]) -> MetricsChoices:
    counted = [one for one in every if one.role != OUTCOME]
    return MetricsChoices(
        servers=tuple(sorted({one.server for one in counted})),
        lanes=tuple(sorted({one.lane for one in counted})),
        versions=tuple(dict.fromkeys(one.bundle for one in counted)),
    )


def _filters(every: list[Series], server: str, lane: str, version: str) -> Filters:
    """Check the filters against what was counted."""
    counted = [one for one in every if one.role != OUTCOME]
    for what, value, known in (
        ("server", server, {one.server for one in counted}),
        ("lane", lane, {one.lane for one in counted}),
    ):
        if value and value not in known:
            names = ", ".join(sorted(known)) or "none yet"
            raise InvalidError(f'nothing was counted of {what} "{value[:80]}"; there are {names}')
    bundle = ""
    if version:
        digits = version.removeprefix("sha256:")
        matches = {one.bundle for one in counted if one.bundle.removeprefix("sha256:").startswith(digits)}
        if len(digits) < 4 or len(matches) != 1:
            raise InvalidError(
                f'version "{version[:80]}" is of {len(matches)} bundles that were counted; give the digest '
                "of one"
            )
        (bundle,) = matches
    return Filters(server, lane, bundle)
