"""The checks of a draft. Each error names the rule and the remedy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from enum import Enum
from typing import TYPE_CHECKING, Any

from scorer.release.answers import Draft
from scorer.release.errors import InvalidError
from scorer.release.gates.grammar import read_all
from scorer.release.store import dumps

if TYPE_CHECKING:
    from scorer.release.model import ChangeRequest, Project
    from scorer.release.settings import ManagedCheckpoint, PlatformFile

_EVIDENCE = 65_536
_TITLE, _DESCRIPTION, _STAGES, _LONGEST = 200, 20_000, 20, 100_000


def check(draft: Draft, project: Project, checkpoint: ManagedCheckpoint, settings: PlatformFile) -> None:
    """Check that a draft is consistent with its project, its checkpoint and the settings.

    Raises:
        InvalidError: The draft violates a rule; the error is about the first one.
    """
    if project.checkpoints and draft.checkpoint not in project.checkpoints:
        raise InvalidError(
            f'project "{project.name}" brings no models to checkpoint "{draft.checkpoint}", only to '
            f"{', '.join(project.checkpoints)}; choose one of them, or ask an admin"
        )
    if not draft.title.strip() or len(draft.title) > _TITLE:
        raise InvalidError(f"a change request has a title of 1 to {_TITLE} letters; say what it brings")
    if len(draft.description) > _DESCRIPTION:
        raise InvalidError(f"a description has at most {_DESCRIPTION} letters; link to the rest")
    if not (math.isfinite(draft.minutes) and 0 < draft.minutes <= checkpoint.max_minutes):
        raise InvalidError(
            f'minutes is {draft.minutes:g}; at checkpoint "{draft.checkpoint}" a change is in the shadow for '
            f"more than 0 and at most {checkpoint.max_minutes:g} minutes"
        )
    if draft.sample is not None and not 0 < draft.sample <= 1:
        raise InvalidError(
            f"sample is {draft.sample:g}; it is a share of the requests, above 0 and at most 1"
        )
    if draft.pool and not any(member.role == "shadow" for member in settings.fleet):
        raise InvalidError("pool is true and there is no shadow pool; leave it out, or add a pool's server")
    if draft.evidence is not None and len(dumps(draft.evidence)) > _EVIDENCE:
        raise InvalidError(f"evidence is longer than {_EVIDENCE} characters of JSON; send a summary")
    _check_stages(draft, checkpoint)
    read_all(draft.gates)


EDITS = "changes"
"""Key of an edit's details: by field, its values before and after."""
_SHOWN = 500
_LISTED = frozenset({"stages", "gates"})


def edits(before: ChangeRequest, values: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the fields that an edit changes, each with its values before and after.

    Long texts are shortened: the history names what changed, the change request has the present text.

    Args:
        before: The change request before the edit.
        values: Columns by name, as the edit writes them.
    """
    found = {}
    for name, value in values.items():
        old = getattr(before, name)
        if name in _LISTED:
            old = [asdict(one) for one in old]
        elif isinstance(old, Enum):
            old = old.value
        elif isinstance(old, Mapping):
            old = dict(old)
        if old != value:
            found[name] = [_short(old), _short(value)]
    return found


def _short(value: Any) -> Any:
    text = value if isinstance(value, str) else dumps(value)
    if len(text) <= _SHOWN:
        return value
    return f"{text[:_SHOWN]}… ({len(text):,} characters)"


def _check_stages(draft: Draft, checkpoint: ManagedCheckpoint) -> None:
    stages = draft.stages or checkpoint.stages
    if len(stages) > _STAGES:
        raise InvalidError(f"{len(stages)} stages are too many; a canary has at most {_STAGES}")
    for number, stage in enumerate(stages, 1):
        if not 0 < stage.share < 1:
            raise InvalidError(
                f"stage {number} has share {stage.share:g}; a stage's share is above 0 and below 1: all of "
                "the answers follow the last stage by themselves"
            )
        if not (math.isfinite(stage.minutes) and 0 < stage.minutes <= _LONGEST):
            raise InvalidError(
                f"stage {number} takes {stage.minutes:g} minutes; a stage takes more than 0 and at most "
                f"{_LONGEST} minutes"
            )
    shares = [stage.share for stage in stages]
    if shares != sorted(set(shares)):
        raise InvalidError(
            f"the stages' shares are {', '.join(f'{share:g}' for share in shares)}; each stage gives more "
            "than the one before: put them in rising order"
        )
    if not 0 <= draft.holdout < 1:
        raise InvalidError(f"holdout is {draft.holdout:g}; it is a share of the answers, from 0 to below 1")
    most = max(shares, default=0.0) + draft.holdout
    if most > 1 + 1e-9:
        raise InvalidError(
            f"the largest stage ({max(shares):g}) and the holdout ({draft.holdout:g}) add up to {most:g}; "
            "shares add up to at most 1: make one of them smaller"
        )
