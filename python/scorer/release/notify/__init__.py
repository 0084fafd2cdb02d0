"""Telling people: channels by apprise, signed webhooks, each after the transaction that it tells of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from scorer.release.model import Actor, Severity
from scorer.release.store import Store

if TYPE_CHECKING:
    from sqlalchemy import Connection


@dataclass(frozen=True, slots=True)
class Channel:
    """Where a project is told."""

    id: int
    project: str
    url: str
    """An apprise URL (secrets blanked when shown), or `https://...` of a signed webhook."""
    kind: str
    """`apprise` or `webhook`."""
    severity: Severity
    """Nothing below it."""
    checkpoints: tuple[str, ...]
    """Empty: all."""
    created_by: str


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message to one channel."""

    id: int
    channel: int
    at: datetime
    subject: str
    state: str
    """`waiting`, `sent` or `given up`."""
    attempts: int
    error: str


class Notifications:
    """Channels, and the outbox that `deliver` empties."""

    def __init__(self, store: Store) -> None:
        raise NotImplementedError

    def channels(self, actor: Actor, project: str) -> Sequence[Channel]:
        """Of a project."""
        raise NotImplementedError

    def add_channel(
        self,
        actor: Actor,
        project: str,
        url: str,
        *,
        severity: Severity = Severity.INFO,
        checkpoints: Sequence[str] = (),
        secret: str | None = None,
    ) -> Channel:
        """Owners. A webhook's deliveries are signed with `secret` (HMAC-SHA256)."""
        raise NotImplementedError

    def remove_channel(self, actor: Actor, channel: int) -> None:
        """Owners."""
        raise NotImplementedError

    def test_channel(self, actor: Actor, channel: int) -> Delivery:
        """Sends one message now and says what came of it."""
        raise NotImplementedError

    def deliveries(self, actor: Actor, project: str, *, limit: int = 100) -> Sequence[Delivery]:
        """Newest first."""
        raise NotImplementedError

    def tell(
        self,
        connection: Connection,
        project: str,
        severity: Severity,
        subject: str,
        body: str,
        *,
        checkpoint: str = "",
        payload: Mapping[str, Any] | None = None,
    ) -> None:
        """Puts a message into the outbox as part of the caller's transaction."""
        raise NotImplementedError

    def deliver(self) -> int:
        """Sends what waits and is due; how many were sent. Called by the platform's ticker."""
        raise NotImplementedError
