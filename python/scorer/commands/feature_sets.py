"""``scorer features``: check and compare feature sets, build training tables, feed events."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scorer.cli import TYPER_OPTIONS
from scorer.commands.control import Address, Reason, control_address, print_message, user
from scorer.commands.output import print_json, print_table, short
from scorer.commands.settings_file import SettingsArgument, print_or_check

if TYPE_CHECKING:
    from scorer.features.declaration import DeclaredFeature
    from scorer.features.events import EventTable

app = typer.Typer(
    help="Feature sets: check, compare, build training tables.", no_args_is_help=True, **TYPER_OPTIONS
)

SetFile = Annotated[Path, typer.Argument(metavar="SET", help="Feature set: TOML, or JSON.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Events = Annotated[
    list[str],
    typer.Option(
        "--events",
        metavar="KIND=FILES",
        help="Parquet, CSV or JSONL files of one kind of events; repeatable.",
    ),
]
After = Annotated[
    list[str] | None,
    typer.Option(
        "--received-after",
        metavar="KIND=TIME",
        help="Time from an event to its receipt, such as fraud=7d, for files without received_at.",
    ),
]
Memory = Annotated[int, typer.Option("--memory-mb", min=128, help="Largest memory of DuckDB, MB.")]


@app.command()
def check(file: SetFile) -> None:
    """Check a feature set, and print its digest."""
    from scorer.features import read_set, set_digest

    declared = read_set(file)
    typer.echo(f"{declared.label}: {len(declared.features)} features, digest {set_digest(declared)}")


@app.command()
def forget(
    entity: Annotated[str, typer.Argument(metavar="ENTITY", help="Name of the entity, such as card.")],
    key: Annotated[
        str,
        typer.Argument(
            metavar="KEY",
            help='Key, as requests state it; "-" reads it from the first line of standard input.',
        ),
    ],
    address: Address = None,
    reason: Reason = "",
    json: Json = False,
) -> None:
    """Remove an entity from the store of computed features of a running server.

    Its state is gone when the command ends, and its key is removed from the files of the store afterwards.
    Run the command for every server.
    """
    from scorer.control import client
    from scorer.v1 import control_pb2 as pb

    if key == "-":
        key = typer.get_text_stream("stdin").readline().rstrip("\r\n")
    target = control_address(address)
    with client.connected(target) as stub:
        wanted = pb.ForgetEntityRequest(entity=entity, key=key, by=user(), reason=reason)
        done = client.call(stub.ForgetEntity, wanted, target)
    if json:
        print_message(done)
        return
    typer.echo("forgotten" if done.known else "the entity had no state; its key is removed from files")


@app.command()
def show(file: SetFile, json: Json = False) -> None:
    """Show the features of a set; with --json, its canonical form, which servers and bundles read."""
    from scorer.features import canonical_json, feature_digest, read_set

    declared = read_set(file)
    if json:
        typer.echo(canonical_json(declared).decode())
        return
    typer.echo(f"{declared.label} of {declared.owner or 'no owner'}: {declared.text or 'no description'}")
    rows = [
        (*_row(feature), short(feature_digest(declared, feature.name)), feature.text)
        for feature in declared.features
    ]
    columns = ("feature", "entity", "value", "window", "delay", "tile", "default", "digest", "text")
    print_table(columns, rows, empty="no features")


def _row(feature: DeclaredFeature) -> tuple[str, ...]:
    from scorer.durations import shortest_duration

    default = "missing" if feature.default is None else f"{feature.default:g}"
    if feature.ratio is not None:
        return feature.name, "-", " / ".join(feature.ratio), "-", "-", "-", default
    of = f" of {feature.of}" if feature.of else ""
    where = "".join(f", {name} in {'|'.join(values)}" for name, values in feature.where.items())
    length = feature.window or feature.half_life or 0
    return (
        feature.name,
        feature.entity or "",
        f"{feature.aggregate} of {feature.event}{of}{where}" if not of else f"{feature.aggregate}{of}{where}",
        f"half-life {shortest_duration(length)}" if feature.is_decayed else shortest_duration(length),
        shortest_duration(feature.delay) if feature.delay else "-",
        shortest_duration(feature.tile) if feature.tile else "-",
        default,
    )


@app.command()
def diff(old: SetFile, new: SetFile, json: Json = False) -> None:
    """Compare two versions of a set. Exit code 1: the content differs and the version was not raised."""
    from scorer.features import read_set
    from scorer.features.changes import changes

    found = changes(read_set(old), read_set(new))
    if json:
        print_json(found.__dict__)
    else:
        rows = [(name, what) for what in ("added", "removed", "redefined") for name in getattr(found, what)]
        print_table(("feature", "change"), rows, empty="the features are the same")
    if found.problem:
        typer.echo(f"error: {new}: {found.problem}", err=True)
        raise typer.Exit(1)


@app.command()
def build(
    file: SetFile,
    events: Events,
    decisions: Annotated[
        list[str], typer.Option(metavar="FILES", help="Files of decisions: time, keys, labels; repeatable.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Parquet file to write.")],
    received_after: After = None,
    time_column: Annotated[str, typer.Option(help="Column with the time of a decision.")] = "time",
    memory_mb: Memory = 2048,
    temporary: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Directory for what exceeds the memory.")
    ] = None,
) -> None:
    """Write the values of all features at the time of each decision, from what was received before it."""
    from scorer.commands.progress import steps_bar
    from scorer.features import read_set
    from scorer.features.building import build_table, steps

    declared = read_set(file)
    tables = event_tables(events, received_after or [])
    with steps_bar("features", steps(declared)) as step:
        built = build_table(
            declared,
            tables,
            decisions,
            out,
            time_column=time_column,
            memory_mb=memory_mb,
            temporary=temporary,
            step=step,
        )
    for kind, counts in built.events.items():
        refused = "".join(f", {count:,} refused ({reason})" for reason, count in counts.refused.items())
        typer.echo(f"events {kind}: {counts.recorded:,} counted, {counts.duplicates:,} duplicates{refused}")
    typer.echo(f"{out}: {built.rows:,} decisions, {len(declared.features)} features")


@app.command()
def parity(
    file: SetFile,
    events: Events,
    log: Annotated[
        list[Path], typer.Option("--log", metavar="DIR", help="Decision log of a server; repeatable.")
    ],
    bundles: Annotated[
        list[Path], typer.Option("--bundles", metavar="DIR", help="Bundles, or a registry; repeatable.")
    ],
    decisions: Annotated[
        list[str], typer.Option(metavar="FILES", help="Keys of the decisions: id and a column per entity.")
    ],
    checkpoint: Annotated[str, typer.Option(metavar="NAME", help="Checkpoint whose decisions are compared.")],
    received_after: After = None,
    memory_mb: Memory = 2048,
    json: Json = False,
) -> None:
    """Compare the feature values in a decision log with the offline values.

    Exit codes: 0 all values are equal within 1e-6, 1 a value differs, or nothing could be compared.
    """
    from scorer.features import read_set
    from scorer.features.logged import logged_values
    from scorer.features.parity import compare

    declared = read_set(file)
    logged = logged_values(declared, log, bundles, checkpoint, decisions)
    report = compare(declared, event_tables(events, received_after or []), logged, memory_mb=memory_mb)
    if json:
        print_json(report.document())
    else:
        rows = [
            (one.feature, f"{one.compared:,}", f"{one.share:.6%}", f"{one.largest:.3g}")
            for one in report.features
        ]
        print_table(("feature", "values", "equal", "largest difference"), rows, empty="no values")
    if not report.passed:
        raise typer.Exit(1)


@app.command()
def feed(
    config: Annotated[Path, typer.Option("--config", "-c", metavar="FILE", help="Settings file.")] = Path(
        "feed.toml"
    ),
    once: Annotated[bool, typer.Option("--once", help="Deliver what the topic holds now, and exit.")] = False,
) -> None:
    """Bring events from Kafka to the stores of servers, or to Redis, until SIGTERM.

    Exit codes: 0 stopped, or done with --once; 1 failed, a restart continues; 64 bad settings.
    """
    from scorer.feed.process import run
    from scorer.feed.settings import load

    run(load(config), once=once)


@app.command("feed-config")
def feed_config(
    file: SettingsArgument = None,
) -> None:
    """Print a complete, commented feed.toml, or check one. Exit code 64 if it is not valid."""
    from scorer.feed.settings import example, load

    print_or_check(file, example, load)


def event_tables(events: list[str], received_after: list[str]) -> dict[str, EventTable]:
    """Return the tables of the options ``--events`` and ``--received-after``. Raises BadParameter."""
    from scorer.features.durations import seconds
    from scorer.features.events import EventTable

    after: dict[str, int] = {}
    for given in received_after:
        kind, equals, length = given.partition("=")
        try:
            after[kind] = seconds(length)
        except ValueError as error:
            raise typer.BadParameter(f"--received-after {given}: {error}") from None
        if not equals:
            raise typer.BadParameter(f"--received-after {given}: write KIND=TIME")
    files: dict[str, list[str]] = {}
    for given in events:
        kind, equals, name = given.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"--events {given}: write KIND=FILES")
        files.setdefault(kind, []).append(name)
    unknown = sorted(set(after) - set(files))
    if unknown:
        raise typer.BadParameter(f"--received-after {unknown[0]}: no --events of this kind; correct the name")
    return {kind: EventTable(names, after.get(kind)) for kind, names in files.items()}
