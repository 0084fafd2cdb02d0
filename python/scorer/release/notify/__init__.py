"""Notifications through apprise channels and signed webhooks, by a transactional outbox.

The transaction of an event also inserts its messages. `deliver` sends them afterwards, at least once, even if
the process ends in between. Receivers recognise a repeated delivery by its `webhook-id`.
"""

from __future__ import annotations

import secrets as random_secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, insert, select, update

from scorer.events import EventLog
from scorer.release.access import Access
from scorer.release.access.names import check_checkpoints
from scorer.release.answers import Channel, Delivery
from scorer.release.audit import Audit
from scorer.release.errors import NotFoundError, PlatformError
from scorer.release.model import Actor, Role, Severity
from scorer.release.notify import targets
from scorer.release.notify.addresses import Destinations
from scorer.release.notify.outbox import GIVEN_UP, SENT, WAITING, Outbox
from scorer.release.notify.sending import SECONDS, Message, NotSentError, send
from scorer.release.store import Store, dumps, tables, utcnow
from scorer.release.store.rows import read
from scorer.release.store.searching import contains

_RANKS = {severity: rank for rank, severity in enumerate(Severity)}
_PUBLIC = Destinations()
_CONCURRENT_CHANNELS = 8  # each channel has one sending thread
_PER_CHANNEL = 5  # messages of one claim: 5 × 20 s is less than its lease


class Notifications:
    """Manages the channels of projects and sends the messages of the outbox.

    Args:
        store: The database.
        access: Checks roles.
        audit: The audit log.
        now: Returns the current time.
        destinations: Addresses that messages may be sent to.
        events: The platform's event log.
    """

    def __init__(
        self,
        store: Store,
        access: Access | None = None,
        audit: Audit | None = None,
        *,
        now: Callable[[], datetime] = utcnow,
        destinations: Destinations = _PUBLIC,
        events: EventLog | None = None,
    ) -> None:
        self._store = store
        self._destinations = destinations
        self._events = events or EventLog()
        self.failed = 0
        """Number of failed attempts to send a message, in this process."""
        self._audit = audit or Audit(store, now=now)
        self._access = access or Access(store, self._audit, now=now)
        self._now = now
        self._outbox = Outbox(store, random_secrets.token_hex(8), now)
        self._lock = threading.Lock()
        self._busy: dict[int, threading.Thread] = {}
        self._sent = 0
        self._closed = False
        self._forgotten = float("-inf")

    # === channels ===

    def channels(self, actor: Actor, project: str) -> Sequence[Channel]:
        """Return the channels of a project."""
        self._access.require(actor, Role.VIEWER, project)
        table = tables.channels
        with self._store.read() as connection:
            rows = connection.execute(
                select(table)
                .where(table.c.project == project, table.c.removed_at.is_(None))
                .order_by(table.c.id)
            ).all()
        return [_channel(row) for row in rows]

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
        """Add a channel to a project; for owners.

        Args:
            actor: The calling user.
            project: Name of the project.
            url: Address of an apprise service, or of a webhook.
            severity: Lowest severity that the channel receives.
            checkpoints: Checkpoints that the channel receives messages about; empty: all.
            secret: Signs the deliveries of a webhook with HMAC-SHA256; None: an apprise service.
        """
        self._access.require(actor, Role.OWNER, project)
        kind = targets.check(url, secret, self._destinations)
        with self._store.write() as connection:
            row = connection.execute(
                insert(tables.channels)
                .values(
                    project=project,
                    kind=kind,
                    url=url,
                    secret=secret,
                    severity=severity,
                    checkpoints=check_checkpoints(checkpoints),
                    created_by=actor.user,
                    created_at=self._now(),
                )
                .returning(tables.channels)
            ).one()
            channel = _channel(row)
            self._audit.append(
                connection,
                actor,
                "channel.add",
                f"channel {channel.id}",
                project=project,
                details={
                    "url": channel.url,
                    "kind": kind,
                    "severity": severity,
                    "checkpoints": list(channel.checkpoints),
                },
            )
        return channel

    def remove_channel(self, actor: Actor, channel: int) -> None:
        """Remove a channel; for owners. Deletes its address and secret and abandons its waiting messages."""
        row = self._row(actor, channel)
        self._access.require(actor, Role.OWNER, row.project)
        table, box = tables.channels, tables.outbox
        with self._store.write() as connection:
            done = connection.execute(
                update(table)
                .where(table.c.id == channel, table.c.removed_at.is_(None))
                .values(removed_at=self._now(), url=_channel(row).url, secret=None)
            )
            if done.rowcount == 0:
                return  # a concurrent request has removed it
            connection.execute(
                update(box)
                .where(box.c.channel == channel, box.c.state == WAITING)
                .values(state=GIVEN_UP, ended_at=self._now(), error="the channel was removed")
            )
            self._audit.append(connection, actor, "channel.remove", f"channel {channel}", project=row.project)

    def test_channel(self, actor: Actor, channel: int) -> Delivery:
        """Send one message now and return the result; for owners."""
        row = self._row(actor, channel)
        self._access.require(actor, Role.OWNER, row.project)
        now = self._now()
        box = tables.outbox
        values = {
            "channel": channel,
            "delivery": _new_delivery(),
            "at": now,
            "severity": Severity.INFO,
            "subject": f"Test message for {row.project}",
            "body": f"{actor.user} asked scorer's platform for this message: the channel works.",
            "checkpoint": "",
            "payload": {"test": True},
        }
        error = self._send(row, {**values, "project": row.project}) or ""
        with self._store.write() as connection:
            made = connection.execute(
                insert(box)
                .values(
                    **values,
                    state=GIVEN_UP if error else SENT,
                    attempts=1,
                    due_at=now,
                    ended_at=self._now(),
                    error=error,
                )
                .returning(box)
            ).one()
            return read(Delivery, made)

    def deliveries(
        self,
        actor: Actor,
        project: str,
        *,
        state: str | None = None,
        text: str | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> Sequence[Delivery]:
        """Return the deliveries of a project, newest first.

        Args:
            actor: The calling user.
            project: Name of the project.
            state: Only deliveries in this state, `waiting`, `sent` or `given up`.
            text: Only deliveries whose subject contains this text, regardless of case.
            before: Only deliveries with a lower id, to read the next page.
            limit: Limit on the number of deliveries, at most 1,000.
        """
        self._access.require(actor, Role.VIEWER, project)
        box, table = tables.outbox, tables.channels
        query = select(box).join(table, table.c.id == box.c.channel).where(table.c.project == project)
        if state is not None:
            query = query.where(box.c.state == state)
        if text:
            query = query.where(contains(text, box.c.subject))
        if before is not None:
            query = query.where(box.c.id < before)
        with self._store.read() as connection:
            rows = connection.execute(query.order_by(box.c.id.desc()).limit(max(0, min(limit, 1000))))
            return [read(Delivery, row) for row in rows]

    # === messages ===

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
        key: str | None = None,
    ) -> None:
        """Insert a message for each matching channel into the outbox, in the caller's transaction.

        Args:
            connection: Connection of the caller's transaction.
            project: Name of the project whose channels receive the message.
            severity: Severity of the event.
            subject: Title, shortened to 200 characters.
            body: Text of the message.
            checkpoint: Checkpoint that the event is about; empty: none.
            payload: Further fields of a webhook's document.
            key: Idempotency key. A channel receives one message per key, also if a step is repeated after
                the process ended.
        """
        table, box = tables.channels, tables.outbox
        now = self._now()
        rows = connection.execute(
            select(table).where(table.c.project == project, table.c.removed_at.is_(None))
        ).all()
        for row in rows:
            if _RANKS[severity] < _RANKS[Severity(row.severity)]:
                continue
            if checkpoint and row.checkpoints and checkpoint not in row.checkpoints:
                continue
            duplicate = select(box.c.id).where(box.c.channel == row.id, box.c.key == key)
            if key is not None and connection.execute(duplicate).first() is not None:
                continue
            connection.execute(
                insert(box).values(
                    channel=row.id,
                    delivery=_new_delivery(),
                    at=now,
                    severity=severity,
                    subject=" ".join(subject.split())[:200],
                    body=body,
                    checkpoint=checkpoint,
                    payload=dict(payload or {}),
                    key=key,
                    state=WAITING,
                    due_at=now,
                )
            )

    def deliver(self, wait: float = 5.0) -> int:
        """Send the messages that are due. The ticker calls this method periodically.

        Each channel has a thread of its own, so that a slow receiver delays no other channel.

        Args:
            wait: Longest wait for the threads in seconds. Unfinished threads continue afterwards.

        Returns:
            The number of messages sent since the last call.
        """
        until = time.monotonic() + wait
        with self._lock:
            busy = list(self._busy)
            if self._closed:
                return 0
        self._delete_old_messages()
        if len(busy) < _CONCURRENT_CHANNELS:
            free = _CONCURRENT_CHANNELS - len(busy)
            for channel, rows in self._outbox.claim(busy, free, _PER_CHANNEL).items():
                thread = threading.Thread(
                    target=self._send_all, args=(channel, rows), name=f"notify-{channel}", daemon=True
                )
                with self._lock:
                    self._busy[channel] = thread
                thread.start()
        with self._lock:
            threads = list(self._busy.values())
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        with self._lock:
            sent, self._sent = self._sent, 0
        return sent

    def close(self, wait: float = SECONDS + 5) -> None:
        """Wait for messages that are being sent. Unsent messages stay in the database until the next start.

        Args:
            wait: Longest wait in seconds.
        """
        with self._lock:
            self._closed = True
            threads = list(self._busy.values())
        until = time.monotonic() + wait
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _send_all(self, channel: int, rows: Sequence[Row[Any]]) -> None:
        try:
            for number, row in enumerate(rows):
                if self._closed:
                    self._outbox.release(rows[number:])
                    return
                error = self._send(row, row._mapping)
                self._outbox.ended(row, error)
                if error is None:
                    with self._lock:
                        self._sent += 1
        except PlatformError:
            # The ticker logs that the database is unreachable. The messages are sent after the claims expire.
            pass
        finally:
            with self._lock:
                del self._busy[channel]

    def _send(self, channel: Row[Any], values: Mapping[Any, Any]) -> str | None:
        """Send one message and log the reason of a failure. Returns the error that users may see, or None."""
        try:
            send(channel.url, channel.secret, _message(values), self._destinations)
        except NotSentError as error:
            with self._lock:
                self.failed += 1
            self._events.warning(
                "message_not_sent", delivery=values["delivery"], project=values["project"], error=str(error)
            )
            return error.public
        return None

    def _delete_old_messages(self) -> None:
        now = time.monotonic()
        if now - self._forgotten > 3600:
            self._forgotten = now
            self._outbox.forget()

    def _row(self, actor: Actor, channel: int) -> Row[Any]:
        """Return a channel of a project that the actor may see. Raises NotFoundError."""
        table = tables.channels
        query = select(table).where(table.c.id == channel, table.c.removed_at.is_(None))
        if not actor.admin:
            query = query.where(table.c.project.in_(sorted(actor.roles)))
        with self._store.read() as connection:
            row = connection.execute(query).one_or_none()
        if row is None:
            raise NotFoundError(f"there is no channel {channel} that you may see; list those of your project")
        return row


def _new_delivery() -> str:
    return f"dlv_{random_secrets.token_hex(12)}"


def _message(row: Mapping[Any, Any]) -> Message:
    at: datetime = row["at"]
    document = {
        "id": row["delivery"],
        "at": at.isoformat().replace("+00:00", "Z"),
        "project": row["project"],
        "checkpoint": row["checkpoint"],
        "severity": row["severity"],
        "subject": row["subject"],
        "body": row["body"],
        "payload": row["payload"],
    }
    return Message(
        row["delivery"], row["subject"], row["body"], Severity(row["severity"]), dumps(document).encode()
    )


def _channel(row: Row[Any]) -> Channel:
    return read(Channel, row, url=targets.shown(row.url, row.kind))
