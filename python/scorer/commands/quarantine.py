"""``scorer quarantine``: bundles that a server does not load again."""

from __future__ import annotations

from typing import Annotated

import typer

from scorer.cli import TYPER_OPTIONS
from scorer.commands.control import Address, Json, Reason, control_address, print_message, user
from scorer.commands.output import print_table, short, when

app = typer.Typer(
    help="Bundles that a server does not load again, because it withdrew them or an operator added them.",
    no_args_is_help=True,
    **TYPER_OPTIONS,
)

Bundle = Annotated[
    str, typer.Argument(metavar="BUNDLE", help="name@alias, a digest, or an unambiguous prefix of one.")
]


@app.command()
def add(bundle: Bundle, address: Address = None, reason: Reason = "", json: Json = False) -> None:
    """Put a bundle into quarantine. Where it answers, other lanes or the previous ones replace it."""
    from scorer.control import client
    from scorer.v1 import control_pb2 as pb

    target = control_address(address)
    with client.connected(target) as stub:
        wanted = pb.SetQuarantineRequest(bundle=bundle, reason=reason or "by hand", by=user())
        done = client.call(stub.SetQuarantine, wanted, target)
    if json:
        print_message(done)
        return
    typer.echo(f"{short(done.digest)} is in quarantine (lane table {done.lane_table})")
    for checkpoint in done.answering:
        typer.echo(
            f"STILL ANSWERS {checkpoint}: the checkpoint has no other bundle; name one with "
            f"`scorer swap {checkpoint}`"
        )


@app.command("list")
def list_(address: Address = None, json: Json = False) -> None:
    """Show the quarantine of a running server."""
    from scorer.control import client
    from scorer.v1 import control_pb2 as pb

    target = control_address(address)
    with client.connected(target) as stub:
        found = client.call(stub.GetStatus, pb.GetStatusRequest(), target)
    if json:
        print_message(pb.GetStatusResponse(quarantine=found.quarantine))
        return
    rows = [(short(entry.digest), when(entry.at_ms), entry.by, entry.reason) for entry in found.quarantine]
    print_table(("bundle", "since", "by", "reason"), rows, empty="no bundle is in quarantine")


@app.command()
def remove(bundle: Bundle, address: Address = None, reason: Reason = "", json: Json = False) -> None:
    """Lift the quarantine of a bundle. It is served again once an alias moves to it, or by `scorer swap`."""
    from scorer.control import client
    from scorer.v1 import control_pb2 as pb

    target = control_address(address)
    with client.connected(target) as stub:
        wanted = pb.SetQuarantineRequest(bundle=bundle, reason=reason, by=user(), remove=True)
        done = client.call(stub.SetQuarantine, wanted, target)
    if json:
        print_message(done)
    else:
        typer.echo(f"{short(done.digest)} is not in quarantine")
