"""``scorer log``: summarise, verify, export and prune a decision log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scorer.cli import TYPER_OPTIONS
from scorer.commands.log_options import ReaderKeyFile, bundle_shelf, log_directory, moment, reader_key
from scorer.commands.output import print_json, print_table, short, size
from scorer.commands.progress import bytes_bar

if TYPE_CHECKING:
    from scorer.log import LogFinding, Verification

app = typer.Typer(help="Read, export and verify the decision log.", no_args_is_help=True, **TYPER_OPTIONS)

At = Annotated[
    Path | None,
    typer.Option(
        "--log",
        "-l",
        metavar="DIR",
        help="Decision log; default: $SCORER_LOG__DIR, or that of ./scorer.toml.",
    ),
]
Bundles = Annotated[
    list[Path] | None,
    typer.Option(
        "--bundles",
        "-b",
        metavar="DIR",
        help="Bundles, directories of bundles or registries; repeatable. Default: the registry.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

_SHOWN = 10
_BLOCKED = {
    "not_shipped": "they are not marked as shipped; see `scorer log shipped`, or give --unshipped",
    "being_read": "a reader holds them; run this again later",
    "damaged": "a header is damaged; see `scorer log verify`",
}


@app.command()
def stat(log: At = None, json: Json = False) -> None:
    """Count the records of the log, and report its problems."""
    from scorer.log import summarise

    with bytes_bar("reading") as advance:
        summary = summarise(log_directory(log), advance)
    if json:
        print_json(
            {
                "segments": [asdict(segment) for segment in summary.segments],
                "bytes": summary.bytes,
                "sequences": summary.sequences,
                "records": dict(summary.records),
                "decided_us": summary.decided_us,
                "checkpoints": dict(summary.checkpoints),
                "bundles": dict(summary.bundles),
                "fallbacks": dict(summary.fallbacks),
                "observations": dict(summary.observations),
                "unscored": dict(summary.unscored),
                "outcomes": _outcome_counts(summary.outcomes),
                "outcome_sources": dict(summary.outcomes.sources),
                "findings": [asdict(finding) for finding in summary.findings],
            }
        )
        return
    first, last = summary.sequences or (0, 0)
    typer.echo(f"{len(summary.segments)} segments, {size(summary.bytes)}, sequences {first} to {last}")
    if summary.decided_us:
        typer.echo(f"decided from {_moment(summary.decided_us[0])} to {_moment(summary.decided_us[1])}")
    rows = [("records", kind, count) for kind, count in sorted(summary.records.items())]
    rows += [("checkpoint", name, count) for name, count in sorted(summary.checkpoints.items())]
    rows += [("bundle", short(digest), count) for digest, count in summary.bundles.most_common()]
    rows += [("fallback", name, count) for name, count in summary.fallbacks.most_common()]
    rows += [("observations", name, count) for name, count in sorted(summary.observations.items())]
    rows += [("without a score", name, count) for name, count in sorted(summary.unscored.items())]
    rows += [("outcomes", name, count) for name, count in _outcome_counts(summary.outcomes).items()]
    rows += [("outcomes by source", name, count) for name, count in sorted(summary.outcomes.sources.items())]
    print_table(
        ("what", "which", "count"), [(what, which, str(n)) for what, which, n in rows], empty="no records"
    )
    _print_findings(summary.findings)


@app.command()
def verify(
    log: At = None, bundles: Bundles = None, private_key: ReaderKeyFile = None, json: Json = False
) -> None:
    """Verify every record, and repeat every decision with its bundle bit for bit.

    Exit codes: 0 no problem, 1 problems were found.
    """
    from scorer.log import verify as verify_log

    shelf = bundle_shelf(bundles)
    with bytes_bar("verifying") as advance:
        report = verify_log(log_directory(log), shelf, advance, reader_key(private_key))
    if json:
        print_json(_verification(report))
    else:
        _print_verification(report)
    raise typer.Exit(0 if report.ok else 1)


@app.command()
def keygen(
    private: Annotated[
        Path,
        typer.Option(
            "--private", metavar="FILE", help="File for the private key, which readers of the log need."
        ),
    ],
    public: Annotated[
        Path,
        typer.Option(
            "--public",
            metavar="FILE",
            help="File for the public key: [privacy] public_key_file of the servers.",
        ),
    ],
) -> None:
    """Create the keys of features that servers store encrypted.

    Run it on a machine of the readers. No server needs the private key. If it is lost, the values are lost.
    """
    from scorer.log import ReaderKey, generate_keys

    generate_keys(private, public)
    key = ReaderKey.from_file(private)
    typer.echo(f"key {key.id:016x}: {private} (keep it secret, and keep a copy), {public}")


@app.command()
def erase(
    entity: Annotated[str, typer.Argument(metavar="ENTITY", help="Entity id, as callers send it.")],
    log: At = None,
    key_file: Annotated[
        Path | None,
        typer.Option(
            "--key-file", metavar="FILE", help="[privacy] key_file of the server, if it hashes entities."
        ),
    ] = None,
) -> None:
    """Omit an entity from every export, join and report from now on.

    Its records stay in their segments until retention removes these. Earlier exports are not changed.
    """
    from scorer.log import erase as erase_entity
    from scorer.log import pseudonym

    recorded = entity if key_file is None else pseudonym(key_file, entity)
    new = erase_entity(log_directory(log), recorded)
    typer.echo("erased" if new else "was already erased")


@app.command()
def prune(
    log: At = None,
    days: Annotated[
        float | None,
        typer.Option(
            "--days", min=0, help="Remove segments whose newest record is older than this number of days."
        ),
    ] = None,
    mb: Annotated[
        int | None,
        typer.Option(
            "--mb", min=0, help="Remove the oldest segments until the log has at most this size in MB."
        ),
    ] = None,
    unshipped: Annotated[
        bool,
        typer.Option("--unshipped", help="Also remove records that are not marked as shipped or exported."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be removed.")] = False,
    json: Json = False,
) -> None:
    """Remove old segments. A server may write to the log at the same time.

    Exit code 1 if segments beyond a limit could not be removed.
    """
    from scorer.log import prune as prune_log

    if days is None and mb is None:
        raise typer.BadParameter("no limit is given; set --days, --mb or both")
    done = prune_log(
        log_directory(log),
        max_age=None if days is None else timedelta(days=days),
        max_bytes=None if mb is None else mb << 20,
        unshipped=unshipped,
        dry_run=dry_run,
    )
    if json:
        print_json(asdict(done))
    else:
        verb = "would be removed" if dry_run else "removed"
        typer.echo(f"{len(done.removed)} segments, {size(done.removed_bytes)} {verb}")
        typer.echo(f"{done.segments} segments, {size(done.bytes)} are left")
        if done.blocked:
            typer.echo(f"{size(done.blocked_bytes)} beyond the limit stay: {_BLOCKED[done.blocked]}")
    raise typer.Exit(1 if done.blocked else 0)


@app.command()
def shipped(
    through: Annotated[
        int, typer.Option("--through", min=1, help="Last sequence number that is shipped or exported.")
    ],
    log: At = None,
) -> None:
    """Mark records as shipped or exported, so that retention may remove them. The mark never moves back."""
    from scorer.log import mark_shipped

    mark = mark_shipped(log_directory(log), through + 1)
    typer.echo(f"records up to sequence {mark - 1} are marked as shipped")


@app.command()
def export(
    to: Annotated[Path, typer.Option("--to", metavar="FILE", help="Parquet file for the decisions.")],
    log: At = None,
    outcomes: Annotated[
        Path | None,
        typer.Option("--outcomes", metavar="FILE", help="Parquet file for every reported outcome."),
    ] = None,
    observations: Annotated[
        Path | None,
        typer.Option(
            "--observations", metavar="FILE", help="Parquet file for the observations of observe lanes."
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            help="Earliest time, for example 2026-11-01 or 2026-11-01T09:30+01:00; UTC without an offset."
        ),
    ] = None,
    until: Annotated[str | None, typer.Option(help="Latest time, exclusive.")] = None,
    bundles: Bundles = None,
    private_key: ReaderKeyFile = None,
    json: Json = False,
) -> None:
    """Export decisions with their outcomes to Parquet."""
    from scorer.log import export as export_log

    window = moment("--since", since), moment("--until", until)
    with bytes_bar("exporting") as advance:
        done = export_log(
            log_directory(log),
            to,
            outcomes_to=outcomes,
            observations_to=observations,
            since=window[0],
            until=window[1],
            bundles=bundle_shelf(bundles),
            advance=advance,
            reader_key=reader_key(private_key),
        )
    if json:
        print_json({**asdict(done), "to": str(to)})
        return
    typer.echo(f"{done.decisions} decisions to {to}, {done.with_outcome} of them with an outcome")
    if observations is not None:
        typer.echo(f"{done.observations} observations to {observations}")
    notes = {
        "left out: an earlier record has the same decision id": done.repeated,
        "left out: outside --since and --until": done.outside,
        "outcomes superseded by a higher revision": done.outcomes_superseded,
        "outcomes reported more than once": done.outcome_duplicates,
        "outcomes of decisions that are not in the export": done.orphans,
        "conflicting outcomes, the first one counts": len(done.conflicts),
        "observations left out: the lane observed the same decision before": done.observations_repeated,
        "observations not written: name a file for them with --observations": done.observations_unwritten,
    }
    for note, count in notes.items():
        if count:
            typer.echo(f"{count} {note}")
    for conflict in done.conflicts[:_SHOWN]:
        typer.echo(f"  conflict: {conflict}")
    if done.unnamed:
        names = ", ".join(map(short, done.unnamed))
        typer.echo(f"no feature columns for bundle {names}: not in --bundles; the list column has them all")
    if note := done.sealed.note():
        typer.echo(note)
    _print_findings(done.findings)


def _moment(microseconds: int) -> str:
    return datetime.fromtimestamp(microseconds / 1e6, UTC).isoformat(timespec="seconds")


def _outcome_counts(outcomes: Any) -> dict[str, int]:
    return {
        "reported": outcomes.reports,
        "superseded": outcomes.superseded,
        "unproven": outcomes.unproven,
        "duplicate": outcomes.duplicates,
        "conflicting": len(outcomes.conflicts),
    }


def _verification(report: Verification) -> dict[str, Any]:
    return {
        "ok": report.ok,
        "segments": len(report.segments),
        "records": dict(report.records),
        "verified": report.verified,
        "greedy": report.greedy,
        "fallbacks": report.fallbacks,
        "mismatched": report.mismatched,
        "mismatches": [asdict(mismatch) for mismatch in report.mismatches],
        "missing_bundles": dict(report.missing),
        "missing_lists": dict(report.missing_lists),
        "unrepeated_lists": dict(report.unrepeated_lists),
        "refused_bundles": report.refused,
        "observed": report.observed,
        "unscored": report.unscored,
        "unrepeated_bundles": dict(report.unrepeated),
        "orphans": report.orphans,
        "withheld": report.withheld,
        "sealed": asdict(report.sealed),
        "outcomes": _outcome_counts(report.outcomes),
        "findings": [asdict(finding) for finding in report.findings],
    }


def _print_verification(report: Verification) -> None:
    decisions = report.records["decision"]
    total = sum(report.records.values())
    typer.echo(f"{total} records in {len(report.segments)} segments, {decisions} decisions")
    typer.echo(
        f"{report.verified} repeated bit for bit ({report.greedy} with exploration stopped), "
        f"{report.fallbacks} fallbacks without a model"
    )
    if seen := report.records["observation"]:
        without = f", {report.unscored} without a score" if report.unscored else ""
        typer.echo(f"{seen} observations, {report.observed} repeated bit for bit{without}")
        for digest, count in report.unrepeated.items():
            typer.echo(f"{count} observations not repeated: bundle {short(digest)} is not here")
        if report.orphans:
            typer.echo(
                f"{report.orphans} observed decisions are not in this log: lost, dropped under load, or "
                "answered by another server"
            )
    if report.withheld:
        typer.echo(f"{report.withheld} not repeated: {report.sealed.note()}")
    if report.mismatched:
        typer.echo(f"{report.mismatched} do not agree with their bundle:")
        for mismatch in report.mismatches[:_SHOWN]:
            typer.echo(f"  {mismatch}")
    for digest, count in report.missing.items():
        why = report.refused.get(digest, "the bundle is not in --bundles; give its directory or the registry")
        typer.echo(f"{count} not checked, bundle {short(digest)}: {why}")
    for version, count in report.missing_lists.items():
        why = report.refused.get(version, "the version is not in --bundles; give the registry")
        typer.echo(f"{count} not checked, list {version}: {why}")
    for version, count in report.unrepeated_lists.items():
        typer.echo(f"{count} observations not repeated: list {version} is not here")
    if report.outcomes.conflicts:
        typer.echo(f"{len(report.outcomes.conflicts)} conflicting outcomes, the first one counts:")
        for conflict in report.outcomes.conflicts[:_SHOWN]:
            typer.echo(f"  {conflict}")
    if report.records["unknown"]:
        typer.echo(f"{report.records['unknown']} records of a kind that this version does not know")
    _print_findings(report.findings)
    typer.echo("ok" if report.ok else "not ok")


def _print_findings(findings: Sequence[LogFinding]) -> None:
    for finding in findings:
        typer.echo(f"{finding.severity}: {finding.detail}")
    lost = Counter(
        {f"{low}-{high}": high - low + 1 for low, high in (one.lost for one in findings if one.lost)}
    )
    if lost:
        typer.echo(f"lost sequences: {', '.join(lost)} ({lost.total()} record{'s' * (lost.total() != 1)})")
