"""Documents about a bundle that are stored beside it. They do not change its digest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError
from sqlalchemy import select

from scorer.explain.document import FORMAT, GlobalExplanation
from scorer.release.answers import BundleInfo
from scorer.release.card_answers import BundleExplanation
from scorer.release.cards.figures import explanation_figures
from scorer.release.errors import InvalidError, NotFoundError
from scorer.release.fields import violations
from scorer.release.model import Actor, Role
from scorer.release.store import tables as t
from scorer.release.store.rows import upsert

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from scorer.release.changes.parts import Parts

EXPLANATION: Final = "explanation"
CARD: Final = "card"
_BYTES: Final = 4 << 20
"""Largest stored document."""


class Documents:
    """Stores and returns documents about bundles, the newest of each kind for each project.

    Args:
        parts: Dependencies that operations share.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def explain(
        self, actor: Actor, project: str, bundle: str, document: Mapping[str, Any]
    ) -> BundleExplanation:
        """Store a global explanation with a bundle of a project; it replaces the previous one.

        Args:
            actor: The calling user, a modeler of the project.
            project: Name of the project.
            bundle: A digest, a prefix of one, or name@alias.
            document: The document that `scorer explain global` wrote.

        Raises:
            InvalidError: The document is not valid, or explains another bundle.
            NotFoundError: The project has no such bundle.
        """
        info = self.owned(actor, project, bundle)
        found = read_explanation(document)
        if found.bundle != info.digest:
            raise InvalidError(
                f"document.bundle: the document explains {found.bundle[7:19]}, and the bundle is "
                f"{info.digest[7:19]}; explain this bundle"
            )
        self.keep(actor, info, EXPLANATION, found.model_dump(mode="json"), "bundle.explain")
        return self.explanation(actor, info.digest)

    def explanation(self, actor: Actor, bundle: str) -> BundleExplanation:
        """Return the explanation that is stored with a bundle.

        Raises:
            NotFoundError: There is no such bundle, or no explanation is stored with it.
        """
        info = self._parts.bundles.info(actor, bundle)
        found = self.stored_explanation(actor, info)
        if found is None:
            raise NotFoundError(
                f"no explanation is stored with bundle {info.digest[7:19]}; `scorer explain global` computes "
                "one, and `scorer card explain` stores it"
            )
        return found

    def stored_explanation(self, actor: Actor, info: BundleInfo) -> BundleExplanation | None:
        """Return the newest explanation of a bundle that the actor may see; None: there is none."""
        row = self.row(actor, info.digest, EXPLANATION)
        if row is None:
            return None
        figures = explanation_figures(GlobalExplanation.model_validate(row.document))
        return BundleExplanation(info, row.document, row.by, row.at, figures)

    # --- for the other modules of this package ---

    def owned(self, actor: Actor, project: str, bundle: str) -> BundleInfo:
        """Return a bundle that belongs to a project in which the actor is a modeler."""
        self._parts.access.require(actor, Role.MODELER, project)
        digest = self._parts.bundles.info(actor, bundle).digest
        listed = select(t.bundles.c.digest).filter_by(project=project, digest=digest)
        with self._parts.store.read() as connection:
            is_owned = connection.execute(listed).first() is not None
        if not is_owned:
            raise NotFoundError(
                f'project "{project}" has no bundle {digest[7:19]}; add it to the project first'
            )
        return replace(self._parts.bundles.info(actor, digest), project=project)

    def keep(
        self, actor: Actor, info: BundleInfo, kind: str, document: Mapping[str, Any], action: str
    ) -> None:
        """Store a document and its audit entry in one transaction."""
        with self._parts.store.write() as connection:
            upsert(
                connection,
                t.bundle_evidence,
                {"project": info.project, "digest": info.digest, "kind": kind},
                document=document,
                by=actor.user,
                at=self._parts.now(),
            )
            self._audited(connection, actor, info, action)

    def row(self, actor: Actor, digest: str, kind: str) -> Any:
        """Return the row of the newest document of the actor's projects; None: there is none."""
        e = t.bundle_evidence.c
        visible = [project.name for project in self._parts.access.projects(actor)]
        query = select(t.bundle_evidence).where(e.digest == digest, e.kind == kind, e.project.in_(visible))
        with self._parts.store.read() as connection:
            return connection.execute(query.order_by(e.at.desc(), e.project).limit(1)).one_or_none()

    def _audited(self, connection: Connection, actor: Actor, info: BundleInfo, action: str) -> None:
        self._parts.audit.append(
            connection, actor, action, info.digest, project=info.project, details={"name": info.name}
        )


def read_explanation(document: Mapping[str, Any]) -> GlobalExplanation:
    """Validate the document of an explanation.

    Raises:
        InvalidError: A field is not valid; the error names it and its rule.
    """
    version = document.get("format")
    if version != FORMAT:
        raise InvalidError(
            f"document.format: it is {str(version)[:20]!r}, and this program reads {FORMAT}; explain the "
            "bundle with the platform's version of scorer"
        )
    try:
        if len(json.dumps(document, allow_nan=False)) > _BYTES:
            raise InvalidError(f"document: it has more than {_BYTES >> 20} MiB; explain fewer features")
        return GlobalExplanation.model_validate_json(json.dumps(document))
    except ValidationError as error:
        raise InvalidError(f"document.{violations(error.errors())}") from None
    except ValueError as error:
        raise InvalidError(f"document: {error}; write finite numbers") from None
