"""What the commands share that speak to a platform elsewhere: how it is found, how its answers are told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from scorer.release.model import ChangeRequest, GateResult
    from scorer.sdk import PlatformClient

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="The platform; default: $SCORER_PLATFORM_URL, or as `scorer login` kept it.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Reason = Annotated[str, typer.Option("--reason", "-m", help="Why; kept in the audit log.")]
Project = Annotated[
    str | None, typer.Option("--project", "-p", help="The project; may be left out by members of one.")
]


@contextmanager
def connected(url: str | None) -> Iterator[PlatformClient]:
    """The platform, as whoever's token it is."""
    from scorer.sdk import PlatformClient

    with PlatformClient(url) as platform:
        yield platform


def plain(value: Any) -> Any:
    """A result as JSON has it."""
    from pydantic import TypeAdapter

    return TypeAdapter(Any).dump_python(value, mode="json")


def moment(text: str | None) -> datetime | None:
    """Reads a time; without a zone it is of this machine's."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f'"{text}" is no time; write 2026-11-21T09:30, or with a zone 2026-11-21T09:30Z'
        ) from None
    return found.astimezone(UTC)


def at(value: datetime | None) -> str:
    """A moment in local time, to the minute."""
    return "-" if value is None else value.astimezone().strftime("%Y-%m-%d %H:%M")


def change_row(change: ChangeRequest) -> tuple[str, ...]:
    """One line of a list."""
    return (
        change.id,
        str(change.kind),
        f"{change.state}" + (f" ({change.verdict})" if change.verdict else ""),
        change.checkpoint,
        change.bundle.removeprefix("sha256:")[:12],
        change.project,
        change.created_by,
        change.title,
    )


CHANGE_COLUMNS = ("change", "kind", "state", "checkpoint", "bundle", "project", "by", "title")


def gate_row(gate: GateResult) -> tuple[str, ...]:
    """One line of the gates."""
    outcome = str(gate.outcome)
    if gate.waived_by:
        outcome += f", waived by {gate.waived_by}"
    elif gate.dry_run:
        outcome += " (dry run)"
    return (gate.metric, outcome, gate.words)


# The words name the value and what was asked.
GATE_COLUMNS = ("gate", "outcome", "in words")
