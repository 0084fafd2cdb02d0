"""``scorer score``: score a table with a bundle."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scorer.clusters import ray_cluster, spark_session
from scorer.commands.log_options import moment
from scorer.commands.output import print_json
from scorer.commands.progress import rows_bar
from scorer.errors import BatchError

if TYPE_CHECKING:
    from scorer.batch.cluster import ClusterRun
    from scorer.batch.running import BatchTotals, ReportRows

_SHOWN = 5


class _Engine(StrEnum):
    LOCAL = "local"
    SPARK = "spark"
    RAY = "ray"


class _BadRows(StrEnum):
    FAIL = "fail"
    NULL = "null"


def score(
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="OUTPUT",
            help="File that ends with .parquet or .csv, or directory for Parquet parts.",
        ),
    ],
    bundle: Annotated[Path, typer.Option(metavar="DIR", help="Directory of the bundle.")],
    inputs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="INPUT",
            help="Parquet or CSV files, a directory of such files, or the directory of a Delta table.",
        ),
    ] = None,
    sql: Annotated[
        str | None, typer.Option(metavar="QUERY", help="SELECT that DuckDB runs, instead of INPUT.")
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Column that is copied to the output; repeatable."),
    ] = None,
    id_column: Annotated[
        str | None,
        typer.Option(
            "--id",
            metavar="COLUMN",
            help="Column with the request id that the server was or would be sent; for action bundles, and "
            "for rules with a rollout.",
        ),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Checkpoint whose draws are repeated; for action bundles."),
    ] = None,
    eligible: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Column with the eligible actions of each row: a list of action ids, or of booleans. "
            "Default: every action.",
        ),
    ] = None,
    pmf: Annotated[
        bool,
        typer.Option(
            "--pmf",
            help="Add the probabilities of all actions, in the catalogue's order, and the actions that rules "
            "allow.",
        ),
    ] = False,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Time of the requests, which the bundle's rules see. Default: the start of the run.",
        ),
    ] = None,
    reasons: Annotated[
        int,
        typer.Option(
            metavar="COUNT",
            min=0,
            max=32,
            help="Add the COUNT features that contribute most to each score, with code and contribution.",
        ),
    ] = 0,
    bad_rows: Annotated[
        _BadRows,
        typer.Option(
            help="Rows that a server would refuse: `fail` ends the run, `null` writes null results and the "
            "reason."
        ),
    ] = _BadRows.FAIL,
    part_rows: Annotated[
        int,
        typer.Option(metavar="ROWS", min=1, help="Rows of a part. A continued run repeats at most one part."),
    ] = 1_000_000,
    memory: Annotated[
        int, typer.Option(metavar="MIB", min=1, help="Memory in MiB for the rows that are in work.")
    ] = 256,
    threads: Annotated[
        int, typer.Option(metavar="COUNT", min=0, help="Threads that score; 0: one per usable core.")
    ] = 0,
    delta_version: Annotated[
        int | None,
        typer.Option(metavar="NUMBER", min=0, help="Version of the Delta table. Default: the newest."),
    ] = None,
    engine: Annotated[
        _Engine,
        typer.Option(
            help="Where rows are scored: in this process, or by tasks of Spark or Ray, which read and write "
            "the files themselves."
        ),
    ] = _Engine.LOCAL,
    cluster: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="Spark's master or Ray's address. Default: what spark-submit or RAY_ADDRESS give, or else a "
            "local cluster.",
        ),
    ] = "",
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Score a table with a bundle, with the bits of a server's answers.

    The same command continues an interrupted run after its finished parts.
    """
    from scorer.batch.cluster import ClusterRun
    from scorer.batch.inputs import SourceOptions
    from scorer.batch.running import BatchRun
    from scorer.batch.scoring import BatchColumns, BatchScorer

    if cluster and engine is _Engine.LOCAL:
        raise BatchError("--cluster: the engine is local; add --engine spark or --engine ray")

    time = moment("--at", at)
    columns = BatchColumns(
        keep=tuple(keep or ()),
        id=id_column,
        checkpoint=checkpoint,
        eligible=eligible,
        pmf=pmf,
        reasons=reasons,
        at=None if time is None else int(time.timestamp()),
        bad_rows="null" if bad_rows is _BadRows.NULL else "fail",
    )
    source = SourceOptions(tuple(inputs or ()), sql, delta_version, memory << 20)
    with rows_bar("scoring") as advance:
        if engine is _Engine.LOCAL:
            scorer = BatchScorer.load(bundle, columns)
            totals = BatchRun(scorer, source, output, part_rows, memory << 20, threads).run(advance)
        else:
            run = ClusterRun(bundle, columns, source, output, part_rows, memory << 20)
            totals = _on_cluster(run, engine, cluster, advance)
    if json:
        print_json({**asdict(totals), "rows_per_second": round(totals.rate)})
        return
    _print(totals, output)


def _on_cluster(run: ClusterRun, engine: _Engine, address: str, report: ReportRows | None) -> BatchTotals:
    """Run on an engine, which is started or connected for the run."""
    try:
        if engine is _Engine.SPARK:
            from scorer.batch.spark import execute_parts as on_spark

            with spark_session("scorer score", address) as session:
                return run.run(partial(on_spark, session), report)
        from scorer.batch.ray import execute_parts as on_ray

        with ray_cluster(address):
            return run.run(partial(on_ray, {}), report)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in {"pyspark", "ray"}:
            raise
        raise BatchError(
            f"--engine {engine}: the package {package} is not installed; pip install 'scorer[{engine}]'"
        ) from error


def _print(totals: BatchTotals, output: Path) -> None:
    before = totals.rows - totals.scored
    typer.echo(
        f"{totals.scored:,} rows scored in {totals.seconds:.1f} s, {totals.rate:,.0f} rows/s"
        + (f"; {before:,} rows were finished before" if before else "")
        + (f"; {totals.bad_rows:,} rows have no result, see the column problem" if totals.bad_rows else "")
    )
    typer.echo(f"{totals.rows:,} rows in {output}")
    if totals.unused:
        shown = ", ".join(totals.unused[:_SHOWN])
        more = f" and {len(totals.unused) - _SHOWN} more" if len(totals.unused) > _SHOWN else ""
        typer.echo(f"columns that were not used: {shown}{more}; --keep copies them to the output", err=True)
