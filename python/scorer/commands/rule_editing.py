"""Commands that edit the rules of bundles on the platform, and show rules over time."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scorer.commands.output import print_json, print_table
from scorer.commands.platform_options import Json, Project, Reason, Url, at, connected, moment, plain
from scorer.errors import BundleError

if TYPE_CHECKING:
    from scorer.release.rule_answers import RuledSide, SavedRules
    from scorer.sdk import PlatformClient

Reference = Annotated[
    str,
    typer.Option("--bundle", "-b", metavar="BUNDLE", help="Digest, its first digits, or name@alias."),
]
Checkpoint = Annotated[
    str, typer.Option("--checkpoint", "-c", metavar="NAME", help="Checkpoint of the change request.")
]
Draft = Annotated[bool, typer.Option("--draft", help="Leave the change request a draft.")]
Rule = Annotated[str, typer.Argument(metavar="RULE", help="Id of the rule.")]
File = Annotated[Path, typer.Argument(metavar="FILE", help="TOML file of the rules.")]


def get(
    bundle: Annotated[str, typer.Argument(metavar="BUNDLE", help="Digest, its first digits, or name@alias.")],
    cases: Annotated[
        bool, typer.Option("--cases", help="Print the author's cases and not the rules.")
    ] = False,
    url: Url = None,
    json: Json = False,
) -> None:
    """Print the rules of a bundle of the platform as TOML."""
    with connected(url) as platform:
        found = platform.rules(bundle)
    if json:
        print_json(plain(found))
        return
    if found.newer is not None:
        typer.echo(
            f"{found.newer.by} saved newer rules of this bundle as {found.newer.digest[7:19]} "
            f"({found.newer.change})",
            err=True,
        )
    typer.echo(found.cases if cases else found.text, nl=False)


def bench(
    file: File,
    bundle: Reference,
    decision: Annotated[
        list[str] | None,
        typer.Option("--decision", "-d", metavar="ID", help="Id of a recorded decision; repeatable."),
    ] = None,
    feature: Annotated[
        list[str] | None,
        typer.Option("--feature", "-f", metavar="NAME=VALUE", help="Feature of one request; repeatable."),
    ] = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Evaluate the present rules of a bundle and those of a file on recorded decisions or on one request."""
    features = None if feature is None else dict(_pair(one) for one in feature)
    with connected(url) as platform:
        found = platform.bench_rules(bundle, _read(file), decisions=decision or [], features=features)
    if json:
        print_json(plain(found))
        return
    rows = [
        [row.decision_id or "features", side, *_side(result), "yes" if row.changed else ""]
        for row in found.rows
        for side, result in (("recorded", row.recorded), ("before", row.before), ("after", row.after))
        if result is not None
    ]
    columns = ["request", "rules", "result", "fired", "unknown", "errors", "changed"]
    print_table(columns, rows, empty="no requests")


def save(
    file: File,
    bundle: Reference,
    checkpoint: Checkpoint,
    note: Annotated[
        str, typer.Option("--note", "-m", help="What changes and why, recorded in the bundle's lineage.")
    ],
    cases: Annotated[
        Path | None, typer.Option("--cases", metavar="FILE", help="TOML file of cases, which must pass.")
    ] = None,
    title: Annotated[str, typer.Option("--title", "-t", help="Title of the change request.")] = "",
    minutes: Annotated[
        float, typer.Option("--minutes", "-n", min=0.01, help="Length of the observation, in minutes.")
    ] = 60.0,
    over: Annotated[
        str | None,
        typer.Option("--over", metavar="BUNDLE", help="Newer revision that this one replaces."),
    ] = None,
    draft: Draft = False,
    project: Project = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Save rules as the next revision of a bundle on the platform, and open a TEST for it.

    If other rules of the bundle were saved since, nothing is saved and the difference from them is printed.
    """
    from scorer.release.errors import ConflictError

    text = _read(file)
    with connected(url) as platform:
        try:
            saved = platform.save_rules(
                project or platform.only_project(),
                bundle,
                text,
                checkpoint=checkpoint,
                note=note,
                cases="" if cases is None else _read(cases),
                title=title,
                minutes=minutes,
                over=over,
                submit=not draft,
            )
        except ConflictError:
            _show_difference(platform, bundle, text)
            raise
        _end(saved, json=json)


def snooze(
    rule: Rule,
    bundle: Reference,
    checkpoint: Checkpoint,
    reason: Reason,
    until: Annotated[str, typer.Option("--until", metavar="TIME", help="End of the snooze.")],
    draft: Draft = False,
    project: Project = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Pause a rule until a time: save a revision of its bundle and open a TEST for it."""
    _switch(
        rule, "snoozed", bundle, checkpoint, reason, project, url, until=moment(until), draft=draft, json=json
    )


def retire(
    rule: Rule,
    bundle: Reference,
    checkpoint: Checkpoint,
    reason: Reason,
    draft: Draft = False,
    project: Project = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Disable a rule: save a revision of its bundle and open a TEST for it."""
    _switch(rule, "retired", bundle, checkpoint, reason, project, url, draft=draft, json=json)


def enable(
    rule: Rule,
    bundle: Reference,
    checkpoint: Checkpoint,
    reason: Reason,
    draft: Draft = False,
    project: Project = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Enable a snoozed or retired rule: save a revision of its bundle and open a TEST for it."""
    _switch(rule, "enabled", bundle, checkpoint, reason, project, url, draft=draft, json=json)


def history(
    checkpoint: Annotated[str, typer.Argument(metavar="CHECKPOINT", help="Name of the checkpoint.")],
    days: Annotated[int, typer.Option("--days", min=1, max=90, help="Number of days up to now.")] = 30,
    url: Url = None,
    json: Json = False,
) -> None:
    """Show the hits and the precision of the rules of a checkpoint, from the decision logs."""
    with connected(url) as platform:
        found = platform.rules_over_time(checkpoint, days=days)
    if json:
        print_json(plain(found))
        return
    rows = [
        [
            one.id,
            one.effect or "not in the live bundle",
            str(one.hits),
            at(one.last_at),
            "-" if one.precision is None else f"{one.precision:.1%} ({one.low:.1%} to {one.high:.1%})",
            str(one.known),
        ]
        for one in found.rules
    ]
    columns = ["rule", "effect", "decisions", "last", "positive outcomes", "known"]
    print_table(columns, rows, empty="no rules")
    if never := [one.id for one in found.rules if one.never]:
        typer.echo(f"no effect in {days} days: {', '.join(never)}")


def _switch(
    rule: str,
    to: str,
    bundle: str,
    checkpoint: str,
    reason: str,
    project: str | None,
    url: str | None,
    *,
    until: datetime | None = None,
    draft: bool,
    json: bool,
) -> None:
    with connected(url) as platform:
        saved = platform.switch_rule(
            project or platform.only_project(),
            bundle,
            rule,
            to,
            checkpoint=checkpoint,
            reason=reason,
            until=until,
            submit=not draft,
        )
        _end(saved, json=json)


def _end(saved: SavedRules, *, json: bool) -> None:
    if json:
        print_json(plain(saved))
        return
    typer.echo(f"saved {saved.bundle.digest}")
    typer.echo(f"{saved.change.id} {saved.change.state}: {saved.change.title}")
    if saved.waits:
        typer.echo(f"not submitted: {saved.waits}", err=True)


def _show_difference(platform: PlatformClient, bundle: str, text: str) -> None:
    import difflib

    newer = platform.rules(bundle).newer
    if newer is None:
        return
    other = platform.rules(newer.digest).text
    named = f"{newer.digest[7:19]} by {newer.by}"
    for line in difflib.unified_diff(other.splitlines(), text.splitlines(), named, "yours", lineterm=""):
        typer.echo(line, err=True)


def _side(side: RuledSide) -> list[str]:
    score = "" if side.score is None else f" {side.score:.6g}"
    result = (
        f"{side.decision}{score}" if side.decision or side.score is not None else ", ".join(side.eligible)
    )
    return [result, ", ".join(side.fired), str(side.unknown), str(side.errors)]


def _pair(text: str) -> tuple[str, Any]:
    name, found, value = text.partition("=")
    if not found or not name:
        raise BundleError(f'feature "{text}" is not of the form NAME=VALUE; correct it')
    return name, value


def _read(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except OSError as error:
        raise BundleError(f'"{file}" cannot be read: {error.strerror}; correct the path') from None
    except UnicodeDecodeError as error:
        raise BundleError(f'"{file}": byte {error.start} is not UTF-8; save the file as UTF-8') from None
