"""Model cards, made from what is on record about a bundle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import select

from scorer.release.answers import BundleDetail, BundleInfo
from scorer.release.card_answers import CardApproval, CardReport, ModelCard
from scorer.release.cards.documents import CARD, Documents
from scorer.release.errors import PlatformError
from scorer.release.model import Actor, ChangeRequest
from scorer.release.requests import CardText
from scorer.release.store import tables as t
from scorer.release.versions import lineage

if TYPE_CHECKING:
    from scorer.release.changes.operations import Changes
    from scorer.release.changes.parts import Parts

FORMAT: Final = 1
SECTIONS: Final[Mapping[str, str]] = {
    "purpose": "Intended use",
    "not_for": "Not intended for",
    "limits": "Limits",
    "data": "Training data",
    "fairness": "Fairness",
    "contact": "Contact",
}
"""Titles of the author's sections, in their order."""
_CHANGES: Final = 50
"""Change requests of a card: the newest."""
_REPORTS: Final = 10


class Cards:
    """Makes model cards and stores their authors' texts.

    A card is made anew from the records each time it is asked for, so it always has the newest approvals,
    reports and explanations.

    Args:
        parts: Dependencies that operations share.
        documents: The documents that are stored beside bundles.
        changes: Returns change requests.
    """

    def __init__(self, parts: Parts, documents: Documents, changes: Changes) -> None:
        self._parts = parts
        self._documents = documents
        self._changes = changes

    def describe(self, actor: Actor, project: str, bundle: str, text: CardText) -> ModelCard:
        """Store the author's text of a card; it replaces the previous one.

        Args:
            actor: The calling user, a modeler of the project.
            project: Name of the project.
            bundle: A digest, a prefix of one, or name@alias.
            text: The text.

        Raises:
            NotFoundError: The project has no such bundle.
        """
        info = self._documents.owned(actor, project, bundle)
        self._documents.keep(actor, info, CARD, text.model_dump(), "bundle.describe")
        return self.card(actor, info.digest)

    def card(self, actor: Actor, bundle: str) -> ModelCard:
        """Return the model card of a bundle that the actor may see."""
        detail = self._parts.bundles.detail(actor, bundle)
        info = detail.info
        text = self._documents.row(actor, info.digest, CARD)
        sections: Mapping[str, str] = text.document if text else {}
        changes = self._changes.several(actor, info.changes[:_CHANGES])
        facts = lineage.read(detail.lineage)
        explanation = self._documents.stored_explanation(actor, info)
        reports = self._reports(actor, changes)
        return ModelCard(
            format=FORMAT,
            bundle=info,
            built_at=str(detail.manifest.get("created_at", "")),
            text={name: str(sections.get(name, "")) for name in SECTIONS},
            text_by=text.by if text else None,
            text_at=text.at if text else None,
            lineage=facts.parameters,
            metrics=facts.metrics,
            thresholds=_bands(detail),
            policy=_policy(detail),
            features=detail.features,
            lanes=tuple(detail.lanes),
            reports=reports,
            approvals=self._approvals(changes),
            # The figures repeat the numbers of the document.
            explanation=replace(explanation, figures=()) if explanation else None,
            notes=tuple(_notes(info, sections, reports, changes, explanation is not None)),
        )

    def _reports(self, actor: Actor, changes: Sequence[ChangeRequest]) -> tuple[CardReport, ...]:
        r = t.readouts.c
        with self._parts.store.read() as connection:
            final = set(connection.scalars(select(r.change).where(r.change.in_([one.id for one in changes]))))
        found = []
        for change in [one for one in changes if one.id in final][:_REPORTS]:
            try:
                report = self._parts.readouts.readout(actor, change.id)
            except PlatformError:
                # The evidence on disk may be gone, such as after a restore without it.
                continue
            found.append(
                CardReport(
                    change=change.id,
                    kind=change.kind,
                    checkpoint=change.checkpoint,
                    live_bundle=report.live_bundle,
                    start=report.start,
                    end=report.end,
                    rows=report.rows,
                    verdict=report.verdict,
                    gates=tuple(report.gates),
                    segments=report.canary or report.segments,
                )
            )
        return tuple(found)

    def _approvals(self, changes: Sequence[ChangeRequest]) -> tuple[CardApproval, ...]:
        names = [one.id for one in changes]
        c, w = t.changes.c, t.waivers.c
        with self._parts.store.read() as connection:
            approved = select(c.id, c.approved_at).where(c.id.in_(names))
            times = {row.id: row.approved_at for row in connection.execute(approved)}
            waived: dict[str, list[str]] = {}
            for row in connection.execute(select(t.waivers).where(w.change.in_(names)).order_by(w.at)):
                waived.setdefault(row.change, []).append(f"{row.metric} by {row.user}: {row.reason}")
        return tuple(
            CardApproval(
                change=one.id,
                kind=one.kind,
                checkpoint=one.checkpoint,
                state=one.state,
                submitted_by=one.submitted_by,
                approved_by=one.approved_by,
                approved_at=times.get(one.id),
                permission=one.permission,
                waivers=tuple(waived.get(one.id, ())),
            )
            for one in changes
        )


def _bands(detail: BundleDetail) -> list[Mapping[str, Any]]:
    return [band for node in detail.manifest.get("program", ()) for band in node.get("bands") or ()]


def _policy(detail: BundleDetail) -> dict[str, str]:
    for node in detail.manifest.get("program", ()):
        if node.get("kind") == "policy":
            hidden = ("salt",)
            return {name: str(value) for name, value in node["policy"].items() if name not in hidden}
    return {}


def _notes(
    info: BundleInfo,
    sections: Mapping[str, str],
    reports: Sequence[CardReport],
    changes: Sequence[ChangeRequest],
    is_explained: bool,
) -> list[str]:
    notes = []
    if missing := [title.lower() for name, title in SECTIONS.items() if not sections.get(name)]:
        notes.append(f"The author has not written: {', '.join(missing)}.")
    if not reports:
        notes.append("There is no final report, so metrics by segment are unknown.")
    if not any(one.approved_by for one in changes):
        notes.append("No change request of this bundle has been approved.")
    if not is_explained:
        notes.append("No global explanation is stored with the bundle.")
    if len(info.changes) > _CHANGES:
        notes.append(f"The card has the newest {_CHANGES} of {len(info.changes)} change requests.")
    return notes
