"""The pages of a bundle's explanation and of its model card, with downloads."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response
from pydantic import TypeAdapter

from scorer.explain.document import GlobalExplanation
from scorer.release.card_answers import ModelCard
from scorer.release.cards.card import SECTIONS
from scorer.release.cards.markdown import card_markdown, segment_table
from scorer.release.cards.page import surrogate_rows, surrogate_words
from scorer.release.errors import NotFoundError, PlatformError
from scorer.release.requests import CardText
from scorer.web.pages.readout import CHART_ROWS, attachment, figure_file
from scorer.web.pages.visit import Here, Posted, Visit
from scorer.web.rendering import island

router = APIRouter()


@router.get("/models/{digest}/explanation")
def explanation(here: Here, digest: str) -> Response:
    """Show the global explanation that is stored with a bundle."""
    found = here.service.documents.explanation(here.actor, full_digest(digest))
    document = GlobalExplanation.model_validate(found.document)
    return here.page(
        "explanation.html",
        found=found,
        document=document,
        surrogate=surrogate_words(document.surrogate),
        rules=surrogate_rows(document.surrogate),
        most=CHART_ROWS,
    )


@router.get("/models/{digest}/explanation/explanation.json")
def explanation_document(here: Here, digest: str) -> Response:
    """Return the stored document of an explanation."""
    found = here.service.documents.explanation(here.actor, full_digest(digest))
    return attachment(
        str(island(found.document)), f"{found.bundle.name}-explanation.json", "application/json"
    )


@router.get("/models/{digest}/explanation/figures/{name}.{form}")
def explanation_figure(here: Here, digest: str, name: str, form: str) -> Response:
    """Return the numbers of a figure of an explanation as CSV or JSON."""
    found = here.service.documents.explanation(here.actor, full_digest(digest))
    named = {one.name: one for one in found.figures}
    if name not in named:
        raise NotFoundError(f'the explanation has no figure "{name}"; it has {", ".join(named)}')
    return figure_file(named[name], f"{found.bundle.name}-{name}", form)


@router.get("/models/{digest}/card")
def card(here: Here, digest: str) -> Response:
    """Show the model card of a bundle."""
    return _card(here, here.service.cards.card(here.actor, full_digest(digest)))


def _card(here: Visit, found: ModelCard, *, error: PlatformError | None = None) -> Response:
    explained = found.explanation
    document = GlobalExplanation.model_validate(explained.document) if explained else None
    return here.page(
        "card.html",
        error=error,
        card=found,
        sections=SECTIONS,
        segments={one.change: segment_table(one.segments) for one in found.reports if one.segments},
        document=document,
        surrogate=surrogate_words(document.surrogate) if document else "",
        page_path=f"/models/{found.bundle.digest.removeprefix('sha256:')}/card",
    )


@router.post("/models/{digest}/card")
def describe(here: Here, digest: str, form: Posted) -> Response:
    """Store the author's text of a model card."""
    found = here.service.cards.card(here.actor, full_digest(digest))
    try:
        project = form.text("project", what="the project")
        here.service.cards.describe(here.actor, project, found.bundle.digest, form.read(CardText))
    except PlatformError as error:
        return _card(here, found, error=error)
    return here.go(f"/models/{found.bundle.digest.removeprefix('sha256:')}/card", "described")


@router.get("/models/{digest}/card/card.{form}")
def card_file(here: Here, digest: str, form: str) -> Response:
    """Return a model card as Markdown or JSON."""
    found = here.service.cards.card(here.actor, full_digest(digest))
    stem = f"{found.bundle.name}-{found.bundle.digest[7:19]}-card"
    if form == "md":
        return attachment(card_markdown(found), f"{stem}.md", "text/markdown; charset=utf-8")
    if form == "json":
        content = TypeAdapter(ModelCard).dump_json(found, indent=1).decode()
        return attachment(content, f"{stem}.json", "application/json")
    raise NotFoundError(f'a model card can be downloaded as .md or .json, not as ".{form[:20]}"')


def full_digest(digest: str) -> str:
    """Return the digest that a path names without its prefix."""
    return digest if digest.startswith("sha256:") else f"sha256:{digest}"
