"""The pages of the learning loop: generations, their verdicts and their reports."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, Response

from scorer.learn.errors import DataError
from scorer.release.errors import NotAllowedError, NotFoundError
from scorer.web.pages.traffic import moment
from scorer.web.pages.visit import Here, Visit

router = APIRouter()
STEPS = ("join", "train", "evaluate", "gate", "publish")
# A report is a self-contained page with inline style. It may not run scripts or load other resources.
_REPORT = {
    "Content-Security-Policy": "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}


@dataclass(frozen=True)
class GenerationRow:
    """One generation, complete or in progress."""

    name: str
    at: datetime | None
    steps: Mapping[str, Mapping[str, Any]]
    """Records by step."""
    verdict: Mapping[str, Any]
    """Verdict of the gate; empty: there is none yet."""
    reason: str
    """Reason why the verdict cannot be read; empty: it can be read."""
    has_report: bool
    published: Mapping[str, Any]

    @property
    def evidence(self) -> Mapping[str, Any]:
        """Evidence of the generation's verdict, None without one."""
        found = self.verdict.get("evidence", {})
        return found if isinstance(found, Mapping) else {}


@router.get("/learning")
def learning(here: Here) -> Response:
    """Show every generation (training run), newest first."""
    folder = _workspace(here)
    found = [_read(path) for path in reversed(_folders(here))]
    return here.page("learning.html", workspace=folder, generations=found, steps=STEPS)


@router.get("/learning/report")
def history(here: Here) -> Response:
    """Show the report over all generations, as `scorer learn report` writes it."""
    from scorer.learn.report.history import history_page, read_runs

    folder = _workspace(here)
    if folder is None:
        raise NotFoundError(_NONE)
    try:
        return HTMLResponse(history_page(read_runs(folder / "generations")), headers=_REPORT)
    except DataError as error:
        raise NotFoundError(f"{error}") from None
    except ImportError as error:
        raise NotFoundError(
            f'the report requires "{error.name}"; pip install "scorer[train]" where the platform runs'
        ) from None


@router.get("/learning/{name}")
def generation(here: Here, name: str) -> Response:
    """Show one generation with its steps and its verdict."""
    return here.page("generation.html", one=_read(_folder(here, name)), steps=STEPS)


@router.get("/learning/{name}/report")
def report(here: Here, name: str) -> Response:
    """Show the gate's report of one generation."""
    path = _folder(here, name) / "verdict" / "report.html"
    if not path.is_file():
        raise NotFoundError(f'generation "{name}" has no report, because its gate has not run yet')
    return HTMLResponse(path.read_bytes(), headers=_REPORT)


_NONE = "the settings name no learning workspace; set [platform] learning to the one of learn.toml"


def _workspace(here: Visit) -> Path | None:
    """Return the learning workspace, which members of any project may see."""
    if not here.may("viewer"):
        raise NotAllowedError(
            f"{here.actor.user} is not a member of a project, which the learning pages require; "
            "ask an owner of a project"
        )
    return here.settings.platform.learning


def _folders(here: Visit) -> list[Path]:
    from scorer.learn.schedule.workspace import Workspace

    folder = _workspace(here)
    return Workspace(folder).generations() if folder else []


def _folder(here: Visit, name: str) -> Path:
    """Return a generation's directory, found by comparison so that no name can traverse paths."""
    found = next((path for path in _folders(here) if path.name == name), None)
    if found is None:
        raise NotFoundError(f'there is no generation "{name}"' if here.settings.platform.learning else _NONE)
    return found


def _read(folder: Path) -> GenerationRow:
    verdict, reason = _json(folder / "verdict" / "verdict.json")
    records = {step: _json(folder / f"{step}.step.json")[0] for step in STEPS}
    return GenerationRow(
        folder.name,
        moment(datetime.strptime(folder.name, "%Y%m%dT%H%M%SZ")),
        {step: record for step, record in records.items() if record},
        verdict,
        reason,
        (folder / "verdict" / "report.html").is_file(),
        _json(folder / "published.json")[0],
    )


def _json(path: Path) -> tuple[Mapping[str, Any], str]:
    """Return the object in a file, or an empty one with the reason."""
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}, ""
    except (OSError, ValueError) as error:
        return {}, f"{path.name} cannot be read: {error}"
    return (found, "") if isinstance(found, dict) else ({}, f"{path.name} does not contain an object")
