"""The versions of a checkpoint, sorted, filtered and in parts."""

from __future__ import annotations

import builtins
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import select

from scorer.release.errors import InvalidError, PlatformError
from scorer.release.lanes import recorded
from scorer.release.model import Actor, ChangeState, Place
from scorer.release.store import tables as t
from scorer.release.version_answers import Timeline, Version, VersionChange, VersionList
from scorer.release.versions import lineage
from scorer.release.versions.facts import FactBook
from scorer.release.versions.spans import Lanes, Spans, places
from scorer.release.versions.timeline import timeline

if TYPE_CHECKING:
    from scorer.release.changes.parts import Parts

_METRIC = "metrics."
_MAX = 1000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PLACES = list(Place)
_VERDICTS = {None: 0, "fail": 1, "inconclusive": 2, "pass": 3}

SORTS: Final[Mapping[str, Callable[[Version], Any]]] = {
    "name": lambda one: one.bundle.name,
    "place": lambda one: _PLACES.index(one.place),
    "uploaded": lambda one: one.bundle.uploaded_at,
    "by": lambda one: one.bundle.uploaded_by or None,
    "live": lambda one: one.live_since and (one.live_until or datetime.max.replace(tzinfo=UTC)),
    "live_time": lambda one: one.live_seconds or None,
    "changes": lambda one: len(one.changes),
    "verdict": lambda one: _VERDICTS[one.verdict] or None,
    "rows": lambda one: one.rows,
    "p99": lambda one: one.p99_us,
    "first": lambda one: one.first_at,
}
"""By name of an order: the value of a version. Versions without a value come last in either direction."""


class Versions:
    """Lists every bundle that was submitted, tested, released or live at a checkpoint.

    A bundle of a project that the caller is no member of is not listed, but counted. Change requests are
    listed only of the caller's projects.

    Args:
        parts: Dependencies that operations share.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._spans = Spans()
        self._facts = FactBook(parts.bundles)

    def list(
        self,
        actor: Actor,
        checkpoint: str,
        *,
        sort: str = "-first",
        place: Place | None = None,
        offset: int = 0,
        limit: int = 100,
    ) -> VersionList:
        """Return the versions of a checkpoint.

        Args:
            actor: The calling user.
            checkpoint: Name of the checkpoint.
            sort: A key of `SORTS`, or `metrics.` and the name of a metric; descending with `-` before it.
            place: Only versions that are there now; None: all.
            offset: How many versions to skip.
            limit: Limit on the number of versions, 1 to 1000.

        Raises:
            NotFoundError: There is no such checkpoint.
            InvalidError: There is no such order.
        """
        found, hidden = self._all(actor, checkpoint)
        names = lineage.ordered(Counter(name for one in found for name in one.metrics))
        if place is not None:
            found = [one for one in found if one.place is place]
        found = _sorted(found, sort, names)
        start, most = max(offset, 0), max(1, min(limit, _MAX))
        part = found[start : start + most]
        more = start + most < len(found)
        return VersionList(
            checkpoint=checkpoint,
            items=tuple(self._signed(one) for one in part),
            total=len(found),
            hidden=hidden,
            metrics=names,
            next=start + most if more else None,
        )

    def timeline(
        self, actor: Actor, checkpoint: str, *, metric: str | None = None, by: str | None = None
    ) -> Timeline:
        """Return the versions of a checkpoint over time, with one metric of training.

        Args:
            actor: The calling user.
            checkpoint: Name of the checkpoint.
            metric: Name of the metric; None: the main one.
            by: Parameter whose values the chart tells apart; None: the data.

        Raises:
            NotFoundError: There is no such checkpoint.
            InvalidError: No version has such a metric or parameter.
        """
        found, _ = self._all(actor, checkpoint)
        return timeline(checkpoint, found, metric=metric, by=by)

    def lanes(self, actor: Actor) -> Mapping[str, tuple[str, ...]]:
        """Return where bundles are now, by digest: `live at fraud.checkout`, `shadow at ...`."""
        found: dict[str, tuple[str, ...]] = {}
        with self._parts.store.read() as connection:
            for name in sorted(self._parts.settings.checkpoints):
                newest = recorded.newest(connection, name)
                if newest is not None:
                    for digest, place in places(newest.answer, newest.observe).items():
                        found[digest] = (*found.get(digest, ()), f"{place} at {name}")
        return found

    # --- helpers ---

    def _all(self, actor: Actor, checkpoint: str) -> tuple[builtins.list[Version], int]:
        self._parts.calendar.checkpoint(checkpoint)
        c = t.changes.c
        with self._parts.store.read() as connection:
            lanes = self._spans.of(connection, checkpoint)
            rows = connection.execute(
                select(c.id, c.project, c.bundle, c.kind, c.state, c.verdict, c.created_at)
                .where(c.checkpoint == checkpoint)
                .order_by(c.number.desc())
            ).all()
            visible = {project.name for project in self._parts.access.projects(actor)}
            submitted = {row.bundle for row in rows if row.state is not ChangeState.DRAFT}
            changes: dict[str, builtins.list[VersionChange]] = {}
            for row in rows:
                if row.project in visible:
                    changes.setdefault(row.bundle, []).append(
                        VersionChange(row.id, row.kind, row.state, row.verdict, row.created_at)
                    )
            digests = submitted | lanes.spans.keys()
            known = self._parts.bundles.several(actor, digests)
            reports = self._facts.reports(
                connection, [one.id for digest in known for one in changes.get(digest, ())]
            )
        lineages = self._facts.lineages(known)
        first = {row.bundle: row.created_at for row in rows if row.state is not ChangeState.DRAFT}
        made = []
        for digest, info in known.items():
            own = tuple(changes.get(digest, ()))
            facts = lineages.get(digest, lineage.NOTHING)
            report = next((one.id for one in own if one.id in reports), None)
            one = Version(
                bundle=replace(info, changes=tuple(each.id for each in own)),
                place=_place(digest, lanes, own),
                first_at=_first(digest, lanes, first),
                changes=own,
                share=lanes.shares.get(digest, 0.0),
                verdict=next((each.verdict for each in own if each.verdict), None),
                metrics=facts.metrics,
                parameters=facts.parameters,
                run_url=lineage.run_url(self._parts.settings.platform.runs_url, facts.run_id),
                report=report,
                rows=reports[report].rows if report else None,
                p99_us=reports[report].p99_us if report else None,
            )
            if span := lanes.spans.get(digest):
                lived = span.live_seconds(self._parts.now())
                one = replace(one, live_since=span.since, live_until=span.until, live_seconds=lived)
            made.append(one)
        return made, len(digests) - len(known)

    def _signed(self, version: Version) -> Version:
        """Add the release number, which takes a local copy of the bundle."""
        try:
            signature = self._parts.bundles.signature(version.bundle.digest)
        except PlatformError:
            return version
        return replace(version, release=signature.release) if signature else version


def _place(digest: str, lanes: Lanes, changes: Sequence[VersionChange]) -> Place:
    if digest in lanes.places:
        return lanes.places[digest]
    span = lanes.spans.get(digest)
    if span is not None:
        return Place.RETIRED if span.answered else Place.TESTED
    return Place.TESTED if any(one.verdict for one in changes) else Place.SUBMITTED


def _first(digest: str, lanes: Lanes, submitted: Mapping[str, datetime]) -> datetime:
    times = [submitted[digest]] if digest in submitted else []
    times += [lanes.spans[digest].first_at] if digest in lanes.spans else []
    return min(times)


def _sorted(found: Sequence[Version], sort: str, metrics: Sequence[str]) -> list[Version]:
    name = sort.removeprefix("-")
    metric = name.removeprefix(_METRIC)
    if name in SORTS:
        value = SORTS[name]
    elif name.startswith(_METRIC) and metric in metrics:
        value = lambda one: one.metrics.get(metric)  # noqa: E731
    else:
        raise InvalidError(
            f'versions cannot be sorted by "{name[:80]}"; use one of {", ".join(SORTS)}, or metrics.NAME of '
            "a metric that a version has, with - before it for descending order"
        )
    # Versions with equal values are listed in the order in which they came.
    base = sorted(found, key=lambda one: (one.first_at or _EPOCH, one.bundle.digest))
    having = [one for one in base if value(one) is not None]
    rest = [one for one in base if value(one) is None]
    return [*sorted(having, key=value, reverse=sort.startswith("-")), *rest]
