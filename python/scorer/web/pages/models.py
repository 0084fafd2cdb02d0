"""The pages of bundles and their lineage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response
from pydantic import TypeAdapter, ValidationError

from scorer.bundle.graph import program_graph
from scorer.bundle.models import Node
from scorer.bundle.times import NodeTime
from scorer.release.answers import BundleDetail
from scorer.release.errors import PlatformError
from scorer.release.model import Role
from scorer.release.versions.figures import references
from scorer.release.versions.lineage import run_url
from scorer.web.pages.visit import PAGE, Here, Posted, Visit
from scorer.web.program_drawing import DrawnProgram, draw_program

router = APIRouter()


@router.get("/models")
def models(here: Here) -> Response:
    """Show the list of stored bundles."""
    return _list(here)


def _list(
    here: Visit, *, error: PlatformError | None = None, form: Mapping[str, str] | None = None
) -> Response:
    kind, project = here.ask("kind"), here.ask("project") or None
    text, before = here.ask("text")[:200] or None, here.ask("before") or None
    found = here.service.bundles.list(
        here.actor,
        project=project,
        kind=kind if kind in ("score", "action") else None,
        text=text,
        before=before,
        limit=PAGE + 1,
    )
    page, older = here.paged(found, lambda one: f"{one.digest}:{one.project}")
    listed = list(page)
    lanes = here.service.versions.lanes(here.actor)
    if not (project or kind or text or before):
        # A bundle in a lane may have been added to the registry without a project.
        missing = lanes.keys() - {one.digest for one in found}
        known = here.service.bundles.several(here.actor, missing).values()
        listed += [one for one in known if not one.project]
    return here.page(
        "models.html",
        error=error,
        bundles=listed,
        lanes=lanes,
        older=older,
        projects=here.projects(),
        uploaders=[one for one in here.projects() if here.is_at_least(Role.MODELER, one.name)],
        limit_mb=here.settings.platform.upload_mb,
        form=form or {},
    )


@router.post("/models")
def upload(here: Here, form: Posted) -> Response:
    """Upload an archive, or add a bundle of the registry."""
    try:
        project = form.text("project", what="the project")
        if reference := form.text("reference", most=200):
            info, said = here.service.bundles.adopt(here.actor, project, reference), "adopted"
        else:
            archive = form.file("archive", what="the bundle's archive")
            info, said = here.service.bundles.upload(here.actor, project, archive.file), "uploaded"
    except PlatformError as error:
        return _list(here, error=error, form=form.values())
    return here.go(f"/models/{info.digest.removeprefix('sha256:')}", said)


@router.get("/models/{digest}")
def model(here: Here, digest: str) -> Response:
    """Show the page of one bundle."""
    full = digest if digest.startswith("sha256:") else f"sha256:{digest}"
    detail = here.service.bundles.detail(here.actor, full)
    changes = here.service.changes.several(here.actor, detail.info.changes[:20])
    named = {name: one for name, one in detail.reference.items() if isinstance(one, Mapping)}
    histogram = references(named)
    explanation = here.service.documents.stored_explanation(here.actor, detail.info)
    return here.page(
        "model.html",
        detail=detail,
        changes=changes,
        chain=_chain(here, detail),
        thresholds=_thresholds(detail.manifest),
        program=_program(detail, here.service.checkpoints.node_times(detail.info.digest)),
        metrics=_metrics(detail.lineage),
        histogram=histogram.plotly if histogram else None,
        importance=explanation.figures[0] if explanation else None,
    )


def _program(detail: BundleDetail, times: Mapping[str, NodeTime]) -> DrawnProgram | None:
    """Return the drawing of a program; None if it has a node that this version does not know."""
    try:
        nodes: list[Node] = TypeAdapter(list[Node]).validate_python(detail.manifest.get("program"))
    except ValidationError:
        return None
    return draw_program(program_graph(nodes, len(detail.features)), times)


def _chain(here: Visit, detail: BundleDetail) -> list[tuple[str, str, str]]:
    """Return (kind, text, address) of each link from the training data to the bundle's lanes."""
    lineage = detail.lineage
    known = (
        ("data", "data_digest"),
        ("code", "code_version"),
        ("run", "run_id"),
        ("revision of", "revision_of"),
    )
    run = run_url(here.settings.platform.runs_url, str(lineage.get("run_id") or ""))
    chain = [
        (kind, str(lineage[key]), run if key == "run_id" else "") for kind, key in known if lineage.get(key)
    ]
    forests = [
        (name, entry)
        for name, entry in detail.manifest.get("files", {}).items()
        if name.endswith(("forest.bin", "model.onnx"))
    ]
    chain += [("model", f"{name} {str(entry.get('sha256', ''))[:12]}", "") for name, entry in forests]
    chain.append(("bundle", detail.info.digest, ""))
    chain += [("change", name, f"/changes/{name}") for name in detail.info.changes[:3]]
    chain += [("lane", lane, f"/checkpoints/{lane.partition('/')[0]}") for lane in detail.lanes]
    return chain


def _thresholds(manifest: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the bands of the threshold node, each with its lowest score and its label."""
    return [band for node in manifest.get("program", ()) for band in node.get("bands", ())]


def _metrics(lineage: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the scalar metrics of training. The evidence of gates is shown on the page Learning."""
    metrics = lineage.get("metrics") or {}
    return {name: value for name, value in metrics.items() if isinstance(value, int | float | str)}
