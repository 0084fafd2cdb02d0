"""``scorer observe``: set the observe lanes of a checkpoint."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from scorer.commands.control import (
    Address,
    Json,
    Reason,
    control_address,
    one_checkpoint,
    print_lanes,
    print_message,
)

if TYPE_CHECKING:
    from scorer.v1 import control_pb2 as pb


def observe(
    checkpoint: Annotated[str, typer.Argument(metavar="CHECKPOINT", help='For example "fraud.checkout".')],
    lanes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=BUNDLE:SAMPLE]...",
            help="Observe lanes that replace the current ones. SAMPLE is a share of requests, above 0 to 1.",
        ),
    ] = None,
    filter_: Annotated[
        str,
        typer.Option(
            "--filter",
            metavar="JSON",
            help="Conditions on features for all of these lanes, for example "
            '[{"feature": "amount", "op": ">=", "value": 100}].',
        ),
    ] = "",
    pool: Annotated[
        bool, typer.Option("--pool", help="Evaluate them in the shadow pool, not in this server.")
    ] = False,
    none: Annotated[bool, typer.Option("--none", help="Remove all observe lanes.")] = False,
    address: Address = None,
    reason: Reason = "",
    json: Json = False,
) -> None:
    """Observe a checkpoint's requests with other bundles. The answer lanes stay unchanged.

    Example: scorer observe fraud.checkout shadow=ab12cd34:0.1 aa=fraud-checkout@live:0.1
    """
    from scorer.control import client
    from scorer.v1 import control_pb2 as pb

    if bool(lanes) == none:
        raise typer.BadParameter("give the lanes as NAME=BUNDLE:SAMPLE, or --none to remove all")
    wanted = pb.SetObserversRequest(
        checkpoint=checkpoint,
        lanes=[parse_observer(text, filter_, pool) for text in lanes or ()],
        reason=reason,
    )
    target = control_address(address)
    with client.connected(target) as stub:
        client.call(stub.SetObservers, wanted, target)
        found = client.call(stub.ListLanes, pb.ListLanesRequest(), target)
    one_checkpoint(found, checkpoint)
    if json:
        print_message(found)
    else:
        print_lanes(found.lane_table, list(found.checkpoints))


def parse_observer(text: str, filter_: str = "", pool: bool = False) -> pb.Lane:
    """Parse an observe lane written as ``NAME=BUNDLE:SAMPLE``."""
    from scorer.errors import InvalidLanesError
    from scorer.v1 import control_pb2 as pb

    parts = re.fullmatch(r"([^=]+)=(.+):([0-9.eE+-]+)", text)
    try:
        name, bundle, sample = parts.groups() if parts else ("", "", "")
        return pb.Lane(name=name, bundle=bundle, sample=float(sample), filter=filter_, pool=pool)
    except ValueError:
        raise InvalidLanesError(
            f'"{text}" is not an observe lane; write NAME=BUNDLE:SAMPLE, for example shadow=ab12cd34:0.1'
        ) from None
