"""Change requests: the only way to change what a live checkpoint does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from scorer.release.model import (
    Actor,
    Booking,
    ChangeEvent,
    ChangeKind,
    ChangeRequest,
    ChangeState,
    GateResult,
    GateSpec,
    Stage,
)


@dataclass(frozen=True, slots=True)
class Draft:
    """What somebody asks for."""

    project: str
    kind: ChangeKind
    checkpoint: str
    bundle: str
    """A digest, a prefix or name@alias."""
    title: str
    description: str = ""
    minutes: float = 60.0
    stages: tuple[Stage, ...] = ()
    """Empty: the checkpoint's."""
    holdout: float = 0.0
    gates: tuple[GateSpec, ...] = ()
    sample: float | None = None
    pool: bool | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the pipeline, for the stepper of its page."""

    state: ChangeState
    name: str
    words: str
    """What it does, or what came of it."""
    status: str
    """`done`, `running`, `waiting`, `failed` or `to come`."""
    began: datetime | None
    ended: datetime | None


@dataclass(frozen=True, slots=True)
class ChangeDetail:
    """Everything about one."""

    change: ChangeRequest
    steps: tuple[Step, ...]
    events: tuple[ChangeEvent, ...]
    gates: tuple[GateResult, ...]
    """As judged last."""
    booking: Booking | None
    diff: dict[str, Any]
    """Against the bundle that answers: features, parameters, thresholds, sizes."""
    allowed: tuple[str, ...]
    """What whoever asks may do now: `submit`, `approve`, ..."""


class Changes:
    """Operations on change requests; `Runner` (runner.py) moves them along."""

    def draft(self, actor: Actor, draft: Draft, *, key: str | None = None) -> ChangeRequest:
        """Modelers. Nothing is checked yet but that it makes sense.

        `key`: the same user's same draft with the same key is made once (kept in the same transaction); the
        same key with another draft is a ConflictError.
        """
        raise NotImplementedError

    def edit(self, actor: Actor, change: str, draft: Draft, *, version: int) -> ChangeRequest:
        """A draft of his own."""
        raise NotImplementedError

    def submit(
        self, actor: Actor, change: str, *, start: datetime | None = None, slot: int | None = None
    ) -> ChangeRequest:
        """Books the shadow (None: the next free slot) and begins the checks."""
        raise NotImplementedError

    def rebook(
        self,
        actor: Actor,
        change: str,
        *,
        start: datetime,
        minutes: float | None = None,
        slot: int | None = None,
    ) -> ChangeRequest:
        """Moves its booking, before it is deployed."""
        raise NotImplementedError

    def finish(self, actor: Actor, change: str) -> ChangeRequest:
        """Ends the auditing now instead of at the end of its booking."""
        raise NotImplementedError

    def approve(
        self, actor: Actor, change: str, *, version: int | None = None, comment: str = ""
    ) -> ChangeRequest:
        """Approvers, never the submitter: releases a RELEASE whose gates passed."""
        raise NotImplementedError

    def reject(self, actor: Actor, change: str, *, reason: str) -> ChangeRequest:
        """Approvers."""
        raise NotImplementedError

    def waive(self, actor: Actor, change: str, *, metric: str, reason: str) -> ChangeRequest:
        """Approvers, never the submitter: this gate does not stand in the way of this change."""
        raise NotImplementedError

    def withdraw(self, actor: Actor, change: str, *, reason: str) -> ChangeRequest:
        """The submitter, or an owner: rejected, lanes taken away, slot given back."""
        raise NotImplementedError

    def rollback(self, actor: Actor, change: str, *, reason: str) -> ChangeRequest:
        """Back to what answered before this change, in one call."""
        raise NotImplementedError

    def get(self, actor: Actor, change: str) -> ChangeDetail:
        """One of them."""
        raise NotImplementedError

    def list(
        self,
        actor: Actor,
        *,
        project: str | None = None,
        checkpoint: str | None = None,
        state: ChangeState | None = None,
        user: str | None = None,
        limit: int = 100,
        before: str | None = None,
    ) -> Sequence[ChangeRequest]:
        """Newest first; `before`: those older than this one."""
        raise NotImplementedError
