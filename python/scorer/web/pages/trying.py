"""The page that scores one payment: schema, form and example programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response

from scorer.release.answers import Tried
from scorer.release.errors import PlatformError
from scorer.release.snippets import snippets
from scorer.release.trying import example, request_features
from scorer.web.pages.visit import Here, Posted, Visit

router = APIRouter()


@router.get("/checkpoints/{name}/try")
def show(here: Here, name: str) -> Response:
    """Show the form with example values."""
    return _page(here, name, here.ask("bundle"))


@router.post("/checkpoints/{name}/try")
def score(here: Here, name: str, form: Posted) -> Response:
    """Score the payment of the form."""
    reference = form.text("bundle", most=200)
    sent = form.values()
    detail = here.service.trying.bundle(here.actor, name, reference or None)
    values = {
        feature.name: sent.get(f"v{number}", "") for number, feature in enumerate(request_features(detail))
    }
    try:
        tried = here.service.trying.score(here.actor, name, values, reference=reference or None)
    except PlatformError as error:
        return _page(here, name, reference, values=values, error=error)
    return _page(here, name, reference, values=values, tried=tried)


def _page(
    here: Visit,
    name: str,
    reference: str,
    *,
    values: Mapping[str, Any] | None = None,
    tried: Tried | None = None,
    error: PlatformError | None = None,
) -> Response:
    detail = here.service.trying.bundle(here.actor, name, reference or None)
    features = request_features(detail)
    examples = {feature.name: example(feature) for feature in features}
    return here.page(
        "try.html",
        error=error,
        name=name,
        reference=reference,
        detail=detail,
        features=features,
        values=values if values is not None else {key: _shown(value) for key, value in examples.items()},
        tried=tried,
        bundles=here.service.bundles.list(here.actor),
        snippets=snippets(name, detail.info.kind, examples),
    )


def _shown(value: float | str | bool) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else f"{value:g}"
