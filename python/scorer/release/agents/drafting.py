"""Tools that create and edit drafts of change requests, the only ones that write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scorer.release.answers import Draft

if TYPE_CHECKING:
    from scorer.release.agents import arguments as asked_of
    from scorer.release.agents.tools import ToolCall
    from scorer.release.model import ChangeRequest


def draft_change(call: ToolCall, asked: asked_of.DraftChange) -> Any:
    """Create a draft with its evidence. A person decides whether to submit it."""
    draft = _draft(asked, asked.project)
    call.check_time()
    return _drafted(call.service.changes.draft(call.actor, draft, key=asked.key))


def edit_draft(call: ToolCall, asked: asked_of.EditDraft) -> Any:
    """Replace a draft of the same agent."""
    before = call.service.changes.summary(call.actor, asked.change)
    call.check_time()
    draft = _draft(asked, before.project)
    return _drafted(call.service.changes.edit(call.actor, asked.change, draft, version=asked.version))


def _draft(asked: asked_of.DraftFields, project: str) -> Draft:
    return Draft(
        project=project,
        kind=asked.kind,
        checkpoint=asked.checkpoint,
        bundle=asked.bundle,
        title=asked.title,
        description=asked.description,
        minutes=asked.minutes,
        stages=asked.stages,
        evidence=asked.evidence(),
    )


def _drafted(change: ChangeRequest) -> dict[str, Any]:
    return {
        "draft": change.id,
        "version": change.version,
        "state": change.state,
        "path": f"/changes/{change.id}",
        "next": "A modeler of the project reviews the draft and submits it. No tool submits or approves.",
    }
