"""The editor of a bundle's rules, with checks, the author's cases and a test bench."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any, Final

from fastapi import APIRouter
from fastapi.responses import Response

from scorer.bundle.rule_costs import RuleCosts
from scorer.figure_style import axis, layout, scatter
from scorer.release.authoring.over_time import DAYS
from scorer.release.errors import ConflictError, InvalidError, PlatformError
from scorer.release.model import Role
from scorer.release.requests import (
    RULE_TEXT,
    BenchRules,
    CostRules,
    DecisionFilter,
    SaveRules,
    SwitchRule,
    read_form,
)
from scorer.release.rule_answers import CaseRun, RuleBench, RuleCheck, RuleDocument, RulesOverTime
from scorer.release.timeseries.drawing import COLOURS
from scorer.web.pages.visit import Form, Here, Posted, Visit

router = APIRouter()

_LISTED: Final = 20
"""Recorded decisions to choose from."""
_CASES: Final = 200_000
_MOST_OF_SLA: Final = 0.1
"""Share of the checkpoint's p99 SLA above which the page warns of the time of its rules."""


@dataclass(frozen=True)
class _Editing:
    """What the page shows beside the document.

    Attributes:
        text: The rules as the user has edited them.
        cases: The author's cases.
        form: Other fields, as sent.
        difference: Lines of the difference from newer rules.
        decisions: Recorded decisions to choose from.
    """

    text: str
    cases: str
    form: Mapping[str, Any] = field(default_factory=dict)
    check: RuleCheck | None = None
    run: CaseRun | None = None
    bench: RuleBench | None = None
    difference: Sequence[str] = ()
    decisions: Sequence[Mapping[str, Any]] = ()


@router.get("/models/{digest}/rules")
def edit(here: Here, digest: str) -> Response:
    """Show the rules of a bundle in the editor."""
    document = here.service.authoring.document(here.actor, _full(digest))
    checkpoint = here.ask("checkpoint")
    return _page(here, document, _Editing(document.text, document.cases, {"checkpoint": checkpoint}))


@router.post("/models/{digest}/rules")
def act(here: Here, digest: str, form: Posted) -> Response:
    """Check, test, evaluate or save the edited rules."""
    document = here.service.authoring.document(here.actor, _full(digest))
    then = form.text("then", most=10)
    sent = {**form.values(), "pick": form.chosen("pick")}
    shown: dict[str, Any] = {"form": sent}
    error: PlatformError | None = None
    try:
        text, cases = form.raw("text", most=RULE_TEXT), form.raw("cases", most=_CASES)
    except InvalidError as refused:
        return _page(here, document, _Editing(document.text, document.cases, sent), error=refused)
    try:
        if then == "save":
            return _save(here, document, form, text, cases)
        shown |= _results(here, document, form, then, text, cases)
    except ConflictError as refused:
        error = refused
        newer = here.service.authoring.document(here.actor, document.info.digest).newer
        if newer is not None:
            shown["difference"] = here.service.authoring.difference(here.actor, newer.digest, text)
    except PlatformError as refused:
        error = refused
    return _page(here, document, _Editing(text, cases, **shown), error=error)


@router.get("/checkpoints/{name}/rules")
def over_time(here: Here, name: str) -> Response:
    """Show hits over time and precision of the rules of a checkpoint, and their cost if asked for."""
    days = int(here.ask_number("days", DAYS, low=1, high=90))
    found = here.service.rule_histories.over_time(here.actor, name, days=days)
    costs: RuleCosts | None = None
    error: PlatformError | None = None
    if found.bundle is not None and here.ask("cost") == "yes":
        try:
            costs = here.service.authoring.cost(here.actor, found.bundle.digest, CostRules())
        except PlatformError as refused:
            error = refused
    by_id = {one.id: one for one in costs.parts if one.kind == "rule"} if costs else {}
    return here.page(
        "rules_over_time.html",
        error=error,
        found=found,
        rules=sorted(found.rules, key=lambda one: -by_id[one.id].median_us if one.id in by_id else 0.0),
        costs=costs,
        cost_of=by_id,
        sla_us=here.settings.checkpoints[name].p99_ms * 1000,
        most_of_sla=_MOST_OF_SLA,
        days=days,
        chart=_chart(found),
        most=max((count for one in found.rules for count in one.daily), default=0),
        complete=found.since is not None and found.since <= found.start,
        projects=[one for one in here.projects() if here.is_at_least(Role.MODELER, one.name)],
        tomorrow=here.now + timedelta(days=1),
    )


def _chart(found: RulesOverTime) -> Mapping[str, Any] | None:
    """Return the figure of the rules with the most hits; None without hits."""
    shown = sorted((one for one in found.rules if one.hits), key=lambda one: -one.hits)[: len(COLOURS)]
    if not shown:
        return None
    days = [f"{found.start + timedelta(days=at):%Y-%m-%d}" for at in range(found.days)]
    lines = [
        {**scatter(days, one.daily, one.id), "mode": "lines+markers", "line": {"color": colour}}
        for one, colour in zip(shown, COLOURS, strict=False)
    ]
    return {"data": lines, "layout": layout(axis("", type="date"), axis("decisions", rangemode="tozero"))}


@router.post("/models/{digest}/rules/{rule}")
def switch(here: Here, digest: str, rule: str, form: Posted) -> Response:
    """Snooze, retire or enable one rule, and open a change request."""
    project = form.text("project", what="the project")
    try:
        saved = here.service.authoring.switch(
            here.actor, project, _full(digest), rule, form.read(SwitchRule, submit=None, minutes=None)
        )
    except PlatformError as error:
        checkpoint = form.text("checkpoint", most=200)
        back = f"/checkpoints/{checkpoint}/rules" if checkpoint in here.checkpoints() else "/models"
        return here.go(back, error=error)
    return _saved(here, saved.change.id, saved.waits, is_submitted=True)


def _full(digest: str) -> str:
    return digest if digest.startswith("sha256:") else f"sha256:{digest}"


def _results(
    here: Visit, document: RuleDocument, form: Form, then: str, text: str, cases: str
) -> dict[str, Any]:
    """Return what a button of the page asks for."""
    authoring, bundle = here.service.authoring, document.info.digest
    if then == "test":
        return {"run": authoring.test(here.actor, bundle, text, cases)}
    if then == "find":
        return {"decisions": _decisions(here, form)}
    if then == "bench":
        ids = [*form.chosen("pick"), *form.text("ids", most=20_000).split()]
        typed = form.text("features", most=100_000)
        asked = read_form(
            BenchRules,
            {"text": text, "decisions": ids, "features": _features(typed) if typed or not ids else None},
        )
        shown: dict[str, Any] = {"bench": authoring.bench(here.actor, bundle, asked)}
        if form.chosen("pick"):
            shown["decisions"] = _decisions(here, form)
        return shown
    return {"check": authoring.check(here.actor, bundle, text)}


def _decisions(here: Visit, form: Form) -> Sequence[Mapping[str, Any]]:
    asked = {"decision": form.text("label", most=200) or None}
    found = here.service.decisions.search(
        here.actor,
        form.text("of", what="the checkpoint of the decisions"),
        read_form(DecisionFilter, {name: value for name, value in asked.items() if value}),
        limit=_LISTED,
    )
    if not found.items:
        raise InvalidError("decisions: the checkpoint has no such decision in the logs; choose another label")
    return found.items


def _features(text: str) -> Mapping[str, str]:
    """Parse lines such as `amount = 30.5`."""
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        name, sign, value = line.partition("=")
        if not sign:
            raise InvalidError(f"features, line {number}: write NAME = VALUE")
        found[name.strip()] = value.strip().strip('"')
    return found


def _save(here: Visit, document: RuleDocument, form: Form, text: str, cases: str) -> Response:
    project = form.text("project", what="the project")
    is_submitted = not form.on("draft")
    saved = here.service.authoring.save(
        here.actor,
        project,
        document.info.digest,
        form.read(SaveRules, text=text, cases=cases, submit=is_submitted),
    )
    return _saved(here, saved.change.id, saved.waits, is_submitted=is_submitted)


def _saved(here: Visit, change: str, waits: str, *, is_submitted: bool) -> Response:
    if waits:
        return here.go(f"/changes/{change}", error=InvalidError(f"The TEST is a draft: {waits}"))
    return here.go(f"/changes/{change}", "rules-saved" if is_submitted else "rules-drafted")


def _page(
    here: Visit, document: RuleDocument, editing: _Editing, *, error: PlatformError | None = None
) -> Response:
    info = document.info
    detail = here.service.bundles.detail(here.actor, info.digest)
    own = [lane.partition("/")[0] for lane in detail.lanes]
    known = here.checkpoints()
    named = [name for name in known if here.settings.checkpoints[name].alias.partition("@")[0] == info.name]
    preferred = editing.form.get("checkpoint") or next(iter([*own, *named]), "")
    return here.page(
        "rules.html",
        error=error,
        page_path=f"/models/{info.digest.removeprefix('sha256:')}/rules",
        document=document,
        info=info,
        editing=editing,
        text=editing.text,
        cases=editing.cases,
        fields={"minutes": "60", **editing.form},
        checkpoints=known,
        preferred=preferred,
        projects=[one for one in here.projects() if here.is_at_least(Role.MODELER, one.name)],
        most=RULE_TEXT,
        completions=[asdict(one) for one in document.names],
    )
