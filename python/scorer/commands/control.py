"""``scorer status``, ``lanes``, ``swap`` and ``rollback``: commands that call a server's control service."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scorer.commands.output import print_json, print_table, short, size, when

if TYPE_CHECKING:
    from collections.abc import Sequence

    from google.protobuf.message import Message

    from scorer.v1 import control_pb2 as pb

Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        "-a",
        metavar="HOST:PORT",
        help="Address of the control service; default: $SCORER_SERVER__CONTROL_LISTEN, that of "
        "./scorer.toml, or 127.0.0.1:7701.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Slower = Annotated[
    bool,
    typer.Option("--allow-slower", help="Accept a slower model: `warmup_max_ratio` is not checked."),
]
Older = Annotated[
    bool,
    typer.Option(
        "--allow-rollback", help="Accept a bundle whose release number is lower than one that was served."
    ),
]
Reason = Annotated[str, typer.Option("--reason", "-m", help="Reason, recorded in the server's log.")]
BreakGlass = Annotated[
    bool,
    typer.Option(
        "--break-glass",
        help="Change a checkpoint that a platform manages, without a change request. Requires --reason. The "
        "server logs the change; the platform records it in its audit log and alerts the project.",
    ),
]


def status(address: Address = None, json: Json = False) -> None:
    """Show the bundles and lanes of a running server, rejected bundles, and the state of registry and log."""
    from scorer.commands.observing import print_observer_status, print_pool
    from scorer.control import client
    from scorer.v1 import control_pb2 as pb

    target = control_address(address)
    with client.connected(target) as stub:
        found = client.call(stub.GetStatus, pb.GetStatusRequest(), target)
    if json:
        print_message(found)
        return
    ready = f", ready after {found.ready_after_ms:.0f} ms" if found.ready_after_ms else ""
    typer.echo(
        f"{found.state}  scorer {found.version} ({found.build_profile}), "
        f"{size(found.resident_bytes)} resident{ready}"
    )
    typer.echo(f"  since {when(found.started_at_ms)}, listening on {', '.join(found.addresses) or 'nothing'}")
    registry = "reachable" if found.registry.reachable else f"NOT reachable: {found.registry.error}"
    typer.echo(f"  registry {found.registry.location}: {registry}")
    if found.log.state == "off":
        typer.echo("  decision log off")
    else:
        dropped = f", {found.log.dropped} dropped" if found.log.dropped else ""
        why = f" ({found.log.error})" if found.log.error else ""
        typer.echo(
            f"  decision log {found.log.state}{why}: {found.log.directory}, next record "
            f"{found.log.next_sequence}, "
            f"{size(found.log.unsynced_bytes)} not synced{dropped}"
        )
    if found.HasField("feature_store"):
        _print_feature_store(found.feature_store)
    print_pool(found.role, found.pool if found.HasField("pool") else None)
    typer.echo("")
    print_lanes(found.lane_table, list(found.checkpoints))
    print_observer_status(found.observers)
    observing = {lane.bundle for entry in found.checkpoints for lane in entry.observers}
    rows = [
        (
            short(b.digest),
            b.name,
            "live" if b.live else "observes" if b.digest in observing else "kept for rollback",
            size(b.bytes),
            f"{b.load_ms:.0f} ms",
            str(b.decisions),
            f"release {b.release} by {b.signed_by}" if b.signed_by else "not needed",
        )
        for b in found.bundles
    ]
    print_table(
        ("bundle", "name", "state", "size", "loaded in", "decisions", "signature"),
        rows,
        empty="no bundles are loaded",
    )
    for entry in found.checkpoints:
        if entry.drift:
            typer.echo(
                f"DRIFT {entry.checkpoint}: its alias was moved to {short(entry.drift)}, which is not "
                f"served: the checkpoint is managed by {entry.managed_by}"
            )
        if entry.HasField("break_glass"):
            glass = entry.break_glass
            typer.echo(
                f"BREAK GLASS {when(glass.at_ms)} {entry.checkpoint}: by {glass.by or 'unknown'}, lane table "
                f"{glass.lane_table}: {glass.reason}"
            )
    for bundle in found.bundles:
        if bundle.breaker not in ("", "closed"):
            typer.echo(f"FAILING {short(bundle.digest)}: its breaker is {bundle.breaker.replace('_', ' ')}")
    _print_lists(found.lists)
    for kept in found.quarantine:
        typer.echo(f"QUARANTINE {when(kept.at_ms)} {short(kept.digest)}: by {kept.by}: {kept.reason}")
    for rejection in found.rejections:
        typer.echo(
            f"REFUSED {when(rejection.at_ms)} {rejection.checkpoint}: {_named(rejection.bundle)}: "
            f"{rejection.reason}"
        )


def _print_feature_store(store: pb.FeatureStoreStatus) -> None:
    refused = sum(store.refused.values())
    removed = f", {store.evicted:,} entities removed for memory" if store.evicted else ""
    typer.echo(
        f"  features {store.state}: {', '.join(store.sets)}; {store.entities:,} entities in "
        f"{size(store.bytes)} of {size(store.max_bytes)}{removed}"
    )
    typer.echo(
        f"  events: {store.recorded:,} recorded, {store.duplicates:,} duplicates, {refused:,} refused; "
        f"journal {store.directory or 'off'}, {size(store.journal_bytes)}"
    )
    if store.snapshot_at_ms:
        typer.echo(
            f"  snapshot of {when(store.snapshot_at_ms)}, {size(store.snapshot_bytes)}; "
            f"{size(store.replay_bytes)} of events since then"
        )
    if store.erasures:
        typer.echo(
            f"  {store.erasures:,} erased entities are still in files, since {when(store.oldest_erasure_ms)}"
        )
    if store.snapshot_error:
        typer.echo(f"  SNAPSHOT FAILED: {store.snapshot_error}")


def _print_lists(lists: Sequence[pb.ListStatus]) -> None:
    if lists:
        print_table(
            ("list", "version", "elements", "memory", "published", "bundles"),
            [
                (
                    one.name,
                    str(one.version or "not loaded"),
                    f"{one.elements:,}",
                    size(one.bytes),
                    when(one.published_at_ms) if one.version else "-",
                    str(len(one.bundles)),
                )
                for one in lists
            ],
            empty="",
        )
    for one in lists:
        if one.error:
            typer.echo(f"LIST {one.name}: {one.error}")
        for unfit in one.unfit:
            typer.echo(
                f"LIST {one.name}: version {one.version} is too old or of another type for {short(unfit)}"
            )


def lanes(
    checkpoint: Annotated[
        str | None, typer.Argument(metavar="[CHECKPOINT]", help="Checkpoint to show; required to set lanes.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME=BUNDLE:SHARE]...", help="Lanes to set, whose shares add up to 1."),
    ] = None,
    address: Address = None,
    reason: Reason = "",
    allow_slower: Slower = False,
    allow_rollback: Older = False,
    break_glass: BreakGlass = False,
    json: Json = False,
) -> None:
    """Show the lane table, or set the answer lanes of a checkpoint.

    `scorer observe` sets the observe lanes.

    Example: scorer lanes fraud.checkout live=ab12cd34:0.9 new=ef34ab56:0.1
    """
    from scorer.control import client
    from scorer.v1 import control_pb2 as pb

    target = control_address(address)
    with client.connected(target) as stub:
        if checkpoint is not None and settings:
            wanted = pb.SetLanesRequest(
                checkpoint=checkpoint,
                lanes=map(parse_lane, settings),
                reason=reason,
                allow_slower=allow_slower,
                allow_rollback=allow_rollback,
                break_glass=break_glass,
                by=user(),
            )
            client.call(stub.SetLanes, wanted, target)
        found = client.call(stub.ListLanes, pb.ListLanesRequest(), target)
    if checkpoint is not None:
        one_checkpoint(found, checkpoint)
    if json:
        print_message(found)
    else:
        print_lanes(found.lane_table, list(found.checkpoints))


def swap(
    checkpoint: Annotated[str, typer.Argument(metavar="CHECKPOINT", help='For example "fraud.checkout".')],
    bundle: Annotated[
        str, typer.Argument(metavar="BUNDLE", help="name@alias, a digest, or an unambiguous prefix of one.")
    ],
    address: Address = None,
    reason: Reason = "",
    allow_slower: Slower = False,
    allow_rollback: Older = False,
    break_glass: BreakGlass = False,
    json: Json = False,
) -> None:
    """Route all traffic of a checkpoint to another bundle. The alias is ignored until it changes."""
    from scorer.control import client
    from scorer.v1 import control_pb2 as pb

    target = control_address(address)
    with client.connected(target) as stub:
        wanted = pb.SwapRequest(
            checkpoint=checkpoint,
            bundle=bundle,
            reason=reason,
            allow_slower=allow_slower,
            allow_rollback=allow_rollback,
            break_glass=break_glass,
            by=user(),
        )
        done = client.call(stub.Swap, wanted, target)
    if json:
        print_message(done)
    elif done.previous_bundle == done.bundle:
        typer.echo(f"{checkpoint} already serves {short(done.bundle)} (lane table {done.lane_table})")
    else:
        typer.echo(
            f"{checkpoint} -> {short(done.bundle)} (was {short(done.previous_bundle)}), loaded in "
            f"{done.load_ms:.0f} ms, lane table {done.lane_table}"
        )


def rollback(
    checkpoint: Annotated[
        str, typer.Argument(metavar="[CHECKPOINT]", help="Checkpoint; default: that of the last change.")
    ] = "",
    address: Address = None,
    reason: Reason = "",
    break_glass: BreakGlass = False,
    json: Json = False,
) -> None:
    """Restore the previous lanes. The alias is ignored until it changes."""
    from scorer.control import client
    from scorer.v1 import control_pb2 as pb

    target = control_address(address)
    with client.connected(target) as stub:
        wanted = pb.RollbackRequest(checkpoint=checkpoint, reason=reason, break_glass=break_glass, by=user())
        done = client.call(stub.Rollback, wanted, target)
        found = client.call(stub.ListLanes, pb.ListLanesRequest(), target)
    if json:
        print_message(done)
    else:
        shown = [entry for entry in found.checkpoints if checkpoint in ("", entry.checkpoint)]
        print_lanes(found.lane_table, shown)


def unmanage(
    checkpoint: Annotated[str, typer.Argument(metavar="CHECKPOINT", help='For example "fraud.checkout".')],
    address: Address = None,
    reason: Reason = "",
    break_glass: BreakGlass = False,
) -> None:
    """End a platform's management of a checkpoint at one server, after the platform was removed.

    The server follows the registry alias again from its next change on. A platform that still runs marks the
    checkpoint as managed again within a second.
    """
    from scorer.control import client
    from scorer.v1 import control_pb2 as pb

    target = control_address(address)
    with client.connected(target) as stub:
        wanted = pb.SetManagementRequest(
            checkpoint=checkpoint, release=True, break_glass=break_glass, by=user(), reason=reason
        )
        client.call(stub.SetManagement, wanted, target)
        found = client.call(stub.ListLanes, pb.ListLanesRequest(), target)
    one_checkpoint(found, checkpoint)
    print_lanes(found.lane_table, list(found.checkpoints))


def user() -> str:
    """Return the name of this process's user, for the server's log."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def control_address(given: str | None) -> str:
    """Return the given address, or that of the environment or ./scorer.toml, or the default."""
    if given is not None:
        return given
    if named := os.environ.get("SCORER_SERVER__CONTROL_LISTEN"):
        return named
    if Path("scorer.toml").exists():
        from scorer import config

        return config.load("scorer.toml").server.control_listen
    return "127.0.0.1:7701"


def parse_lane(text: str) -> pb.Lane:
    """Parse a lane written as ``NAME=BUNDLE:SHARE``."""
    from scorer.errors import InvalidLanesError
    from scorer.v1 import control_pb2 as pb

    # A digest may contain a colon, so the share follows the last one.
    parts = re.fullmatch(r"([^=]+)=(.+):([0-9.]+)", text)
    try:
        name, bundle, share = parts.groups() if parts else ("", "", "")
        return pb.Lane(name=name, bundle=bundle, share=float(share))
    except ValueError:
        raise InvalidLanesError(
            f'"{text}" is not a lane; write NAME=BUNDLE:SHARE, for example live=ab12cd34:0.9'
        ) from None


def one_checkpoint(found: pb.ListLanesResponse, checkpoint: str) -> None:
    """Remove all other checkpoints from a listing."""
    from scorer.config.problems import nearest
    from scorer.errors import UnknownCheckpointError

    kept = [entry for entry in found.checkpoints if entry.checkpoint == checkpoint]
    if not kept:
        known = [entry.checkpoint for entry in found.checkpoints]
        raise UnknownCheckpointError(f'no checkpoint "{checkpoint}"; {nearest(checkpoint, known)}')
    del found.checkpoints[:]
    found.checkpoints.extend(kept)


def print_lanes(version: int, checkpoints: list[pb.CheckpointLanes]) -> None:
    """Print answer lanes and observe lanes as tables."""
    typer.echo(f"lane table {version}")
    rows = [
        (
            entry.checkpoint if index == 0 else "",
            entry.kind if index == 0 else "",
            lane.name,
            short(lane.bundle),
            f"{lane.share:.4g}",
            _source(entry) if index == 0 else "",
        )
        for entry in checkpoints
        for index, lane in enumerate(entry.lanes)
    ]
    rows += [
        (e.checkpoint, e.kind, "-", "-", "-", f"waits for {e.following}" if e.following else "-")
        for e in checkpoints
        if not e.lanes
    ]
    print_table(("checkpoint", "kind", "lane", "bundle", "share", "source"), rows, empty="no checkpoints")
    observing = [
        (
            entry.checkpoint if index == 0 else "",
            lane.name,
            short(lane.bundle),
            f"{lane.sample:.4g}",
            lane.filter or "-",
            "shadow pool" if lane.pool else "this server",
        )
        for entry in checkpoints
        for index, lane in enumerate(entry.observers)
    ]
    if observing:
        print_table(("checkpoint", "observes", "bundle", "sample", "filter", "in"), observing, empty="")


def _source(entry: pb.CheckpointLanes) -> str:
    """Describe the source of a checkpoint's answer lanes."""
    if entry.managed_by:
        return f"managed by {entry.managed_by}"
    return f"follows {entry.following}" if entry.following else "pinned"


def _named(bundle: str) -> str:
    return bundle if "@" in bundle else short(bundle)


def print_message(message: Message) -> None:
    """Print a message as JSON with all fields."""
    from google.protobuf.json_format import MessageToDict

    print_json(
        MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    )
