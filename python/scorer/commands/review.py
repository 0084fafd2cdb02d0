"""``scorer review``: list, claim and decide the cases of the review queue."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from scorer.cli import TYPER_OPTIONS
from scorer.commands.output import print_json, print_table
from scorer.commands.platform_options import Json, Project, Url, at, connected, plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scorer.sdk.results import ReviewCase

app = typer.Typer(
    help="The review queue: list cases, claim them, decide them.", no_args_is_help=True, **TYPER_OPTIONS
)

Case = Annotated[int, typer.Argument(metavar="CASE", min=1, help="Number of the case, for example 17.")]


@app.command("list")
def list_(
    project: Project = None,
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", "-c", help="Only cases of this checkpoint.")
    ] = None,
    state: Annotated[
        Literal["open", "decided", "closed"] | None,
        typer.Option("--state", help="Only cases in this state. Open cases are listed most urgent first."),
    ] = None,
    assignee: Annotated[str | None, typer.Option("--assignee", help="Only cases of this user.")] = None,
    unassigned: Annotated[
        bool, typer.Option("--unassigned", help="Only cases that nobody has claimed.")
    ] = False,
    overdue: Annotated[bool, typer.Option("--overdue", help="Only cases that are open and late.")] = False,
    code: Annotated[
        str | None, typer.Option("--code", help="Only cases with this reason code of the answer.")
    ] = None,
    queue: Annotated[
        str | None, typer.Option("--queue", help="Only cases of this queue, which the answer's rules select.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="Largest number of cases.")] = 50,
    url: Url = None,
    json: Json = False,
) -> None:
    """List cases of the review queue."""
    with connected(url) as platform:
        found = platform.reviews(
            project=project,
            checkpoint=checkpoint,
            state=state,
            assignee=assignee,
            unassigned=unassigned,
            overdue=overdue,
            code=code,
            queue=queue,
        )
        _print(list(islice(found, limit)), json=json)


@app.command()
def show(case: Case, url: Url = None, json: Json = False) -> None:
    """Show a case with its history and the reasons that a decision can name."""
    with connected(url) as platform:
        found = platform.review(case)
    if json:
        print_json(plain(found))
        return
    _print([found.case], json=False)
    if found.case.decision is not None:
        typer.echo(f"{found.case.decision} by {found.case.decided_by}: {found.case.reason}")
    if found.case.notes:
        typer.echo(found.case.notes)
    if found.error:
        typer.echo(f"the outcome is not delivered yet: {found.error}")
    for one in found.history:
        details = " ".join(
            f"{name}={value}" for name, value in one.details.items() if value not in (None, "")
        )
        typer.echo(f"{at(one.at)}  {one.action} by {one.actor}  {details}".rstrip())
    rows = [(one.code, str(one.decision or "either"), one.text) for one in found.reasons]
    print_table(("reason", "for", "text"), rows, empty="no reasons")


@app.command()
def claim(case: Case, url: Url = None, json: Json = False) -> None:
    """Assign an open case to yourself."""
    with connected(url) as platform:
        _print([platform.claim_review(case)], json=json)


@app.command()
def release(case: Case, url: Url = None, json: Json = False) -> None:
    """End the assignment of an open case."""
    with connected(url) as platform:
        _print([platform.release_review(case)], json=json)


@app.command()
def assign(
    case: Case,
    user: Annotated[str, typer.Argument(metavar="USER", help="User whose role allows the review.")],
    url: Url = None,
    json: Json = False,
) -> None:
    """Assign an open case to a user."""
    with connected(url) as platform:
        _print([platform.assign_review(case, user)], json=json)


@app.command()
def decide(
    case: Case,
    decision: Annotated[
        Literal["approve", "decline"],
        typer.Argument(metavar="DECISION", help="Decision on the payment: approve or decline."),
    ],
    reason: Annotated[
        str, typer.Option("--reason", "-m", help="Code of a reason of the project (`scorer review show`).")
    ],
    notes: Annotated[str, typer.Option("--notes", help="Text for other reviewers.")] = "",
    url: Url = None,
    json: Json = False,
) -> None:
    """Decide a case, or correct the decision. A server receives the outcome."""
    with connected(url) as platform:
        _print([platform.decide_review(case, decision, reason=reason, notes=notes)], json=json)


def _print(found: Sequence[ReviewCase], *, json: bool) -> None:
    if json:
        print_json(plain(found))
        return
    print_table(
        ("case", "state", "due", "score", "amount", "assignee", "outcome", "checkpoint", "decision"),
        [
            (
                str(one.id),
                "overdue" if one.overdue and one.ended_at is None else str(one.decision or one.state),
                at(one.due_at),
                "-" if one.score is None else f"{one.score:.4g}",
                "-" if one.amount is None else f"{one.amount:,.4g}",
                one.assignee or "-",
                str(one.delivery),
                one.checkpoint,
                one.decision_id,
            )
            for one in found
        ],
        empty="no cases",
    )
