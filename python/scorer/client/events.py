"""Events from which the server computes features: their messages and the results of recording them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scorer.client.errors import InvalidRequestError, ServerFaultError
from scorer.v1 import scoring_pb2 as pb

MAX_EVENTS = 1000
"""Largest number of events of one call."""
_STATUSES = {
    pb.EVENT_STATUS_RECORDED: "recorded",
    pb.EVENT_STATUS_DUPLICATE: "duplicate",
    pb.EVENT_STATUS_REFUSED: "refused",
}


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a kind that a feature set of the server declares.

    Attributes:
        kind: Kind of the event, such as "payment".
        id: Id that is unique within the kind, 1 to 80 bytes. An event with a known id changes nothing, so an
            event can be sent again.
        occurred_at_us: Time of the event in microseconds since the Unix epoch.
        keys: Keys of the event's entities by name of the entity, at least one.
        numbers: Values of number fields by name.
        texts: Values of text fields by name.
    """

    kind: str
    id: str
    occurred_at_us: int
    keys: Mapping[str, str]
    numbers: Mapping[str, float] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EventResult:
    """What happened to one event.

    Attributes:
        status: "recorded", "duplicate" (the id is known, and nothing was changed) or "refused".
        reason: Refused events: one word for the reason, as in the server's metrics; "" otherwise.
        error: Refused events: the field, the rule and the remedy; "" otherwise.
    """

    status: str
    reason: str = ""
    error: str = ""


def check_keys(keys: Mapping[str, str] | None) -> dict[str, str]:
    """Return the keys of a request as its message takes them. None and empty keys are left out."""
    for entity, key in (keys or {}).items():
        if not isinstance(entity, str) or not isinstance(key, str):
            raise InvalidRequestError(
                "keys: names of entities and their keys are strings", remedy="use str()"
            )
    return {entity: key for entity, key in (keys or {}).items() if key}


def row_keys(keys: Mapping[str, Sequence[str | None]] | None, rows: int) -> dict[str, pb.RowKeys]:
    """Return the keys of the rows of a batch as its message takes them.

    Args:
        keys: One key per row by name of the entity; None: the row has none.
        rows: Number of rows.
    """
    messages = {}
    for entity, of_rows in (keys or {}).items():
        if len(of_rows) != rows:
            raise InvalidRequestError(
                f'keys: "{entity}" has {len(of_rows)} keys for {rows} rows',
                remedy="give one per row, None if the row has none",
            )
        messages[entity] = pb.RowKeys(keys=[key or "" for key in of_rows])
    return messages


def events_request(events: Sequence[Event]) -> pb.RecordEventsRequest:
    """Return the message that records events."""
    if not 1 <= len(events) <= MAX_EVENTS:
        raise InvalidRequestError(
            f"{len(events)} events are given", remedy=f"send 1 to {MAX_EVENTS} in one call"
        )
    request = pb.RecordEventsRequest()
    for number, event in enumerate(events):
        try:
            request.events.add(
                kind=event.kind,
                id=event.id,
                occurred_at_us=event.occurred_at_us,
                keys=event.keys,
                numbers=event.numbers,
                texts=event.texts,
            )
        except (TypeError, ValueError, AttributeError) as wrong:
            raise InvalidRequestError(
                f"event {number}: {wrong}",
                remedy="kind, id, keys and texts are strings, numbers floats, occurred_at_us an integer",
            ) from None
    return request


def read_results(reply: bytes, count: int) -> tuple[EventResult, ...]:
    """Decode a `RecordEventsResponse`.

    Args:
        reply: The encoded message.
        count: Number of events of the request.
    """
    results = pb.RecordEventsResponse.FromString(reply).results
    if len(results) != count:
        raise ServerFaultError(f"the reply has {len(results)} results for {count} events")
    return tuple(EventResult(_STATUSES.get(one.status, "unknown"), one.reason, one.error) for one in results)
