"""``scorer add-checkpoint`` and ``remove-checkpoint``: checkpoints beside those of the settings file."""

from __future__ import annotations

import json as _json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from scorer.commands.control import Address, BreakGlass, Json, Reason, control_address, print_message, user


def add(
    checkpoint: Annotated[str, typer.Argument(metavar="CHECKPOINT", help='For example "fraud.refund".')],
    kind: Annotated[
        Literal["score", "action"] | None,
        typer.Option("--kind", help="Kind of the response: a score or an action."),
    ] = None,
    alias: Annotated[
        str | None, typer.Option("--alias", metavar="NAME@ALIAS", help="Registry alias that it follows.")
    ] = None,
    p99_ms: Annotated[
        float | None,
        typer.Option("--p99-ms", metavar="MS", help="SLA: 99th percentile of the latency, in milliseconds."),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help='Settings file with a table [checkpoints."CHECKPOINT"], such as scorer.toml. Other options '
            "replace its values.",
        ),
    ] = None,
    address: Address = None,
    reason: Reason = "",
    json: Json = False,
) -> None:
    """Add a checkpoint to a running server, which keeps it across restarts.

    Example: scorer add-checkpoint fraud.refund --kind score --alias fraud-refund@live --p99-ms 10

    The checkpoint follows its alias. A table of that name in the server's settings file replaces it at the
    next start.
    """
    from scorer.control import client
    from scorer.v1 import control_pb2 as pb

    settings = {} if source is None else _table(source, checkpoint)
    given = {"kind": kind, "alias": alias, "p99_ms": p99_ms}
    settings |= {name: value for name, value in given.items() if value is not None}
    target = control_address(address)
    wanted = pb.AddCheckpointRequest(
        checkpoint=checkpoint, settings=_json.dumps(settings), reason=reason, by=user()
    )
    with client.connected(target) as stub:
        done = client.call(stub.AddCheckpoint, wanted, target)
    if json:
        print_message(done)
    elif done.added:
        typer.echo(f"{checkpoint} is added; it answers once it has a bundle (`scorer lanes {checkpoint}`)")
    else:
        typer.echo(f"{checkpoint} exists with these settings; nothing was changed")


def remove(
    checkpoint: Annotated[str, typer.Argument(metavar="CHECKPOINT", help='For example "fraud.refund".')],
    address: Address = None,
    reason: Reason = "",
    break_glass: BreakGlass = False,
) -> None:
    """Remove a checkpoint that was added to a running server. Requests for it fail from then on.

    Checkpoints of the server's settings file are removed there.
    """
    from scorer.control import client
    from scorer.v1 import control_pb2 as pb

    target = control_address(address)
    wanted = pb.RemoveCheckpointRequest(
        checkpoint=checkpoint, reason=reason, by=user(), break_glass=break_glass
    )
    with client.connected(target) as stub:
        done = client.call(stub.RemoveCheckpoint, wanted, target)
    typer.echo(f"{checkpoint} no longer has lanes (lane table {done.lane_table}); the next start omits it")


def _table(source: Path, checkpoint: str) -> dict[str, Any]:
    """Return the table of a checkpoint in a settings file; the server checks its values."""
    from scorer.config.source import SettingsSource
    from scorer.errors import ConfigError

    checkpoints = SettingsSource.read(source, example="scorer config example").document.get("checkpoints")
    found = checkpoints.get(checkpoint) if isinstance(checkpoints, dict) else None
    if not isinstance(found, dict):
        raise ConfigError(f'{source}: there is no table [checkpoints."{checkpoint}"]; add it, or omit --from')
    return found
