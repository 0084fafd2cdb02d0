"""Two bundles, or two change requests, side by side."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from scorer.release.answers import BundleDetail, Readout
from scorer.release.errors import ConflictError, InvalidError, NotFoundError, PlatformError
from scorer.release.model import Actor, ChangeRequest
from scorer.release.store import tables as t
from scorer.release.version_answers import BundleComparison, ComparedSide, GatePair, SwapSet
from scorer.release.versions import figures, lineage, swaps
from scorer.release.versions.differences import differences, shapes

if TYPE_CHECKING:
    from scorer.figure import Figure
    from scorer.release.changes.operations import Changes
    from scorer.release.changes.parts import Parts

_CHANGE = re.compile(r"cr-\d{6,18}")


@dataclass(frozen=True, slots=True)
class _Side:
    title: str
    reference: str
    detail: BundleDetail
    change: ChangeRequest | None
    report: Readout | None


class Comparisons:
    """Compares bundles and change requests that the caller may see.

    Args:
        parts: Dependencies that operations share.
        changes: Resolves change requests.
    """

    def __init__(self, parts: Parts, changes: Changes) -> None:
        self._parts = parts
        self._changes = changes

    def compare(self, actor: Actor, left: str, right: str) -> BundleComparison:
        """Compare two bundles, two change requests, or one of each.

        The report of a change request is its own. The report of a bundle is that of its newest change request
        with a final report.

        Args:
            actor: The calling user.
            left: Id of a change request, a digest, a prefix of one, or name@alias.
            right: The same, for the right side.

        Raises:
            InvalidError: A side is missing, or one is a score bundle and the other an action bundle.
            NotFoundError: A side does not exist, or the caller may not see it.
        """
        sides = [self._side(actor, "left", left), self._side(actor, "right", right)]
        first, second = sides
        kinds = [one.detail.info.kind for one in sides]
        if kinds[0] != kinds[1]:
            raise InvalidError(
                f"left is a bundle of kind {kinds[0]} and right is one of kind {kinds[1]}, which have no "
                "common measures; choose two of the same kind"
            )
        notes = []
        if first.detail.info.digest == second.detail.info.digest:
            notes.append("Both sides are the same bundle, so only their reports can differ.")
        if first.detail.info.name != second.detail.info.name:
            notes.append(
                f"The bundles have different names, {first.detail.info.name} and {second.detail.info.name}."
            )
        if (name := _checkpoints(first, second)) is not None:
            notes.append(name)
        notes += [
            f"{_subject(one)} has no report, so its observations are not compared."
            for one in sides
            if one.report is None
        ]
        drawn = [*self._figures(first, second, notes)]
        return BundleComparison(
            left=self._compared(first),
            right=self._compared(second),
            differences=differences(first.detail, second.detail, self._parts.bundles.local),
            figures=tuple(drawn),
            swaps=self._swaps(actor, first, second, notes),
            gates=_gates(first.report, second.report),
            notes=tuple(notes),
        )

    # --- sides ---

    def _side(self, actor: Actor, title: str, reference: str) -> _Side:
        text = reference.strip()
        if not text:
            raise InvalidError(f"{title} is missing; choose a bundle or a change request")
        if len(text) > 200:
            raise InvalidError(
                f"{title} has {len(text)} characters; give a digest or the id of a change request"
            )
        try:
            if _CHANGE.fullmatch(text):
                change: ChangeRequest | None = self._changes.summary(actor, text)
                digest = change.bundle if change else ""
            else:
                digest = self._parts.bundles.info(actor, text).digest
                change = self._newest_report(actor, digest)
            detail = self._parts.bundles.detail(actor, digest)
        except NotFoundError as error:
            raise NotFoundError(f"{title}: {error}") from None
        except InvalidError as error:
            raise InvalidError(f"{title}: {error}") from None
        return _Side(title, text, detail, change, self._report(actor, change))

    def _newest_report(self, actor: Actor, digest: str) -> ChangeRequest | None:
        c = t.changes.c
        projects = [project.name for project in self._parts.access.projects(actor)]
        query = (
            select(c.id)
            .join(t.readouts, t.readouts.c.change == c.id)
            .where(c.bundle == digest, c.project.in_(projects))
            .order_by(c.number.desc())
            .limit(1)
        )
        with self._parts.store.read() as connection:
            found = connection.execute(query).scalar()
        return self._changes.summary(actor, found) if found else None

    def _report(self, actor: Actor, change: ChangeRequest | None) -> Readout | None:
        if change is None:
            return None
        try:
            report = self._parts.readouts.readout(actor, change.id)
        except (NotFoundError, ConflictError):
            return None
        return report if report.rows else None

    def _compared(self, side: _Side) -> ComparedSide:
        run = lineage.read(side.detail.lineage).run_id
        return ComparedSide(
            reference=side.reference,
            bundle=side.detail.info,
            change=side.change,
            rows=side.report.rows if side.report else 0,
            run_url=lineage.run_url(self._parts.settings.platform.runs_url, run),
        )

    # --- figures ---

    def _figures(self, left: _Side, right: _Side, notes: list[str]) -> list[Figure]:
        sides = {f"{one.title} {_name(one)}": one for one in (left, right)}
        reference = {title: _reference(one.detail.reference) for title, one in sides.items()}
        reports = {title: one.report for title, one in sides.items()}
        slas = [one.summary["sla_us"] for one in reports.values() if one is not None]
        made = [
            figures.references(reference),
            figures.observed_scores(_named(reports, "scores")),
            figures.execution(_named(reports, "latency"), slas),
            self._importance(sides, notes),
        ]
        return [one for one in made if one is not None]

    def _importance(self, sides: Mapping[str, _Side], notes: list[str]) -> Figure | None:
        """Draw the importances of the lineages; if one has none, the splits of the forests for both."""
        own = {title: _importances(one.detail.lineage) for title, one in sides.items()}
        if all(own.values()):
            return figures.importance(own, "Importance as training measured it, from the lineages")
        counted = {title: self._splits(one.detail) for title, one in sides.items()}
        found = figures.importance(counted, "How many nodes of the forests split on each feature")
        if found is None:
            notes.append("Feature importances are unknown: a forest has no splits, or cannot be read.")
        return found

    def _splits(self, detail: BundleDetail) -> dict[str, float]:
        names = [str(feature["name"]) for feature in detail.features]
        found = dict.fromkeys(names, 0.0)
        for shape in shapes(self._parts.bundles.local(detail.info.digest), detail.manifest).values():
            for name, count in zip(names, shape.splits.tolist(), strict=False):
                found[name] += count
        return found

    # --- swap set ---

    def _swaps(self, actor: Actor, left: _Side, right: _Side, notes: list[str]) -> SwapSet | None:
        lowest = _lowest(left.detail.manifest) if left.detail.info.kind == "score" else ""
        digests = [one.detail.info.digest for one in (left, right)]
        if left.report is not None and left.report.live_bundle == digests[1] != digests[0]:
            return swaps.against_live(left.report, lowest, is_left=True)
        if right.report is not None and right.report.live_bundle == digests[0] != digests[1]:
            return swaps.against_live(right.report, lowest, is_left=False)
        if left.report is None or right.report is None or left.report.change == right.report.change:
            return None
        if left.report.live_bundle != right.report.live_bundle:
            notes.append(
                "There is no swap set: neither bundle was observed beside the other, and they were observed "
                "beside different live bundles."
            )
            return None
        found = self._common(actor, left.report, right.report, lowest)
        if found is None:
            notes.append(
                "There is no swap set: both were observed beside the same live bundle, but at no decision "
                "that both reports kept."
            )
        return found

    def _common(self, actor: Actor, left: Readout, right: Readout, lowest: str) -> SwapSet | None:
        try:
            first, second = (self._parts.readouts.evidence(actor, one.change) for one in (left, right))
        except (PlatformError, OSError):
            return None
        return swaps.over_common(first, second, lowest)


def _named(reports: Mapping[str, Readout | None], name: str) -> dict[str, Figure | None]:
    """Return a figure of each side's report; None: there is no report, or it has no such figure."""
    return {
        title: next((one for one in report.figures if one.name == name), None) if report else None
        for title, report in reports.items()
    }


def _gates(left: Readout | None, right: Readout | None) -> tuple[GatePair, ...]:
    sides = [{gate.metric: gate for gate in one.gates} if one else {} for one in (left, right)]
    return tuple(
        GatePair(metric, sides[0].get(metric), sides[1].get(metric))
        for metric in dict.fromkeys((*sides[0], *sides[1]))
    )


def _reference(reference: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = reference.get("validation") or reference.get("training") or {}
    return found


def _importances(found: Mapping[str, Any]) -> dict[str, float]:
    own = found.get("importance")
    if not isinstance(own, Mapping):
        return {}
    return {
        str(name): float(value)
        for name, value in own.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
    }


def _lowest(manifest: Mapping[str, Any]) -> str:
    bands = [band for node in manifest.get("program") or () for band in node.get("bands") or ()]
    return str(min(bands, key=lambda band: band["from"])["label"]) if bands else ""


def _checkpoints(left: _Side, right: _Side) -> str | None:
    names = [one.report.checkpoint for one in (left, right) if one.report is not None]
    if len(set(names)) < 2:
        return None
    return (
        f"The reports are of different checkpoints, {names[0]} and {names[1]}, with other requests and SLAs."
    )


def _name(side: _Side) -> str:
    digest = side.detail.info.digest.removeprefix("sha256:")[:12]
    return f"{digest} ({side.report.change})" if side.report else digest


def _subject(side: _Side) -> str:
    if side.change is not None and _CHANGE.fullmatch(side.reference):
        return f"Change request {side.change.id} ({side.title})"
    return f"Bundle {side.detail.info.digest.removeprefix('sha256:')[:12]} ({side.title})"
