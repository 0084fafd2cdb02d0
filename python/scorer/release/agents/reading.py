"""Tools that read checkpoints, bundles, decisions and the calendar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from scorer.release.errors import InvalidError, NotFoundError
from scorer.release.requests import DecisionFilter, NewWeekly
from scorer.release.store import utcnow

if TYPE_CHECKING:
    from scorer.release.agents import arguments as asked_of
    from scorer.release.agents.tools import ToolCall
    from scorer.release.model import LaneSpec

_PAGE: Final = 200
_PAGES: Final = 10
"""Decisions of a page, and pages, that a search by outcome reads at most."""
ELSEWHERE: Final = "(of another project)"
"""What stands for a bundle, lane or booking of a project in which the tool may not be used."""


def list_checkpoints(call: ToolCall, _: asked_of.NoArguments) -> Any:
    """Return the checkpoints of the caller's projects with their lanes."""
    names = call.service.access.checkpoints(call.actor, tuple(call.settings.checkpoints))
    views = [view for view in call.service.checkpoints.list(call.actor) if view.name in names]
    projects = call.service.access.projects(call.actor)
    lanes = [
        lane for view in views if view.recorded for lane in (*view.recorded.answer, *view.recorded.observe)
    ]
    visible = _visible(call, [lane.bundle for lane in lanes])
    return {
        "checkpoints": [
            {
                "name": view.name,
                "kind": view.kind,
                "alias": view.alias,
                "p99_ms": view.p99_ms,
                "projects": [
                    one.name for one in projects if not one.checkpoints or view.name in one.checkpoints
                ],
                "observation_slots": view.slots,
                "answer": [_lane(lane, visible) for lane in view.recorded.answer] if view.recorded else [],
                "observe": [_lane(lane, visible) for lane in view.recorded.observe] if view.recorded else [],
                "servers": [
                    {"name": one.name, "role": one.role, "reachable": one.reachable, "in_sync": one.in_step}
                    for one in view.members
                ],
            }
            for view in views
        ]
    }


def _visible(call: ToolCall, digests: Sequence[str]) -> set[str]:
    found = set()
    for digest in dict.fromkeys(digests):
        try:
            found.add(call.service.bundles.info(call.actor, digest).digest)
        except (NotFoundError, InvalidError):
            continue
    return found


def _lane(lane: LaneSpec, visible: set[str]) -> Mapping[str, Any]:
    own = lane.bundle in visible
    return {
        "name": lane.name if own else ELSEWHERE,
        "bundle": lane.bundle if own else ELSEWHERE,
        "share": lane.share,
        "sample": lane.sample,
    }


def list_bundles(call: ToolCall, asked: asked_of.ListBundles) -> Any:
    """Return the caller's bundles, the newest first."""
    return {
        "bundles": call.service.bundles.list(
            call.actor, project=asked.project, text=asked.text, limit=asked.limit
        )
    }


def describe_bundle(call: ToolCall, asked: asked_of.OfBundle) -> Any:
    """Return what is on record about a bundle."""
    detail = call.service.bundles.detail(call.actor, asked.bundle)
    rules = call.service.authoring.document(call.actor, detail.info.digest)
    return {
        "info": detail.info,
        "features": [
            {
                key: one[key]
                for key in ("name", "type", "minimum", "maximum", "categories", "missing", "sensitive", "of")
                if one.get(key) is not None
            }
            for one in detail.features
        ],
        "lanes": detail.lanes,
        "rules": detail.rules,
        "rules_as_toml": {"text": rules.text},
        "lineage": detail.lineage,
    }


def list_versions(call: ToolCall, asked: asked_of.ListVersions) -> Any:
    """Return the versions of a checkpoint, the newest first."""
    return call.service.versions.list(call.actor, asked.checkpoint, limit=asked.limit)


def compare_versions(call: ToolCall, asked: asked_of.CompareVersions) -> Any:
    """Return the differences of two bundles or change requests."""
    return call.service.comparisons.compare(call.actor, asked.left, asked.right)


def compare_over_time(call: ToolCall, asked: asked_of.CompareOverTime) -> Any:
    """Start a comparison, or return its state or result."""
    wanted = NewWeekly(versions=asked.versions, weeks=asked.weeks)
    return call.service.weekly.start(call.actor, asked.checkpoint, wanted)


def score_what_if(call: ToolCall, asked: asked_of.ScoreWhatIf) -> Any:
    """Score a payment that does not exist, in the platform's own process."""
    service = call.service
    tried = service.trying.score(call.actor, asked.checkpoint, asked.features, reference=asked.bundle)
    found: dict[str, Any] = {"answer": tried}
    if asked.explain:
        try:
            found["explanation"] = service.trying.explain(
                call.actor, asked.checkpoint, asked.features, reference=asked.bundle
            )
        except InvalidError as error:
            found["explanation"] = None
            found["why_not_explained"] = str(error)
    return found


def find_decisions(call: ToolCall, asked: asked_of.FindDecisions) -> Any:
    """Return recorded decisions with their outcomes, newest first."""
    wanted = DecisionFilter(**asked.model_dump(exclude={"checkpoint", "limit"}))
    found: list[Mapping[str, Any]] = []
    cursor, size = None, asked.limit if asked.outcome is None else _PAGE
    for _ in range(_PAGES):
        # A page has fewer decisions than its limit where the filter by outcome leaves some out.
        page = call.service.decisions.search(call.actor, asked.checkpoint, wanted, cursor=cursor, limit=size)
        found += page.items
        cursor = page.next
        if cursor is None or len(found) >= asked.limit:
            break
        call.check_time()
    more = cursor is not None or len(found) > asked.limit
    return {"decisions": found[: asked.limit], "searched_to": page.searched_to, "more": more}


def explain_decision(call: ToolCall, asked: asked_of.ExplainDecision) -> Any:
    """Return a recorded decision with its features, reasons, outcomes and exact contributions."""
    found = call.service.decisions.find(call.actor, asked.decision_id, checkpoint=asked.checkpoint)
    decision = found["decision"]
    values = {one["name"]: one["value"] for one in found["features"]}
    explained: Any = None
    why = ""
    if not values:
        why = "the platform does not have the bundle that decided"
    elif any(one["withheld"] for one in found["features"]):
        why = "sensitive features are not in the log, so that contributions would be those of another payment"
    else:
        try:
            explained = call.service.trying.explain(
                call.actor,
                decision["checkpoint"],
                values,
                reference=decision["bundle"],
                action=decision.get("action") or "",
            )
        except (InvalidError, NotFoundError) as error:
            why = str(error)
    return {
        "decision": decision,
        "features": found["features"],
        "actions": found["choices"],
        "outcomes": found["outcomes"],
        "explanation": explained,
        "why_not_explained": why,
    }


def read_calendar(call: ToolCall, asked: asked_of.ReadCalendar) -> Any:
    """Return bookings, freezes and free slots."""
    names = sorted(call.service.access.checkpoints(call.actor, tuple(call.settings.checkpoints)))
    wanted = [asked.checkpoint] if asked.checkpoint else names
    start = utcnow()
    pages = [
        call.service.calendar.page(call.actor, start, start + timedelta(days=asked.days), checkpoint=name)
        for name in wanted
    ]
    own = set(call.actor.roles)
    return {
        "checkpoints": [
            {"checkpoint": name, "slots": len(page.slots)} for name, page in zip(wanted, pages, strict=True)
        ],
        "bookings": [
            {
                "checkpoint": one.checkpoint,
                "slot": one.slot,
                "start": one.start,
                "end": one.end,
                "change": one.change if one.project in own else ELSEWHERE,
                "project": one.project if one.project in own else ELSEWHERE,
            }
            for page in pages
            for one in page.bookings
        ],
        "freezes": [
            {
                "name": window.freeze.name,
                "kind": window.freeze.kind,
                "checkpoints": window.freeze.checkpoints,
                "start": window.start,
                "end": window.end,
                "reason": window.freeze.reason,
            }
            for window in {(one.freeze.id, one.start): one for page in pages for one in page.windows}.values()
        ],
    }
