"""``scorer learn gate``: evaluate the gate of a candidate against the live policy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scorer.commands.learn.experience_options import (
    BundlePlaces,
    Checkpoint,
    ExperienceFile,
    read_experience,
)
from scorer.commands.log_options import LogOption
from scorer.commands.output import print_json


def gate(
    candidate: Annotated[
        Path, typer.Option("--candidate", metavar="DIR", help="Directory of the candidate bundle.")
    ],
    live: Annotated[Path, typer.Option("--live", metavar="DIR", help="Directory of the live bundle.")],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="DIR", help="New directory for the verdict, the report and the bundle."
        ),
    ],
    experience: ExperienceFile = None,
    log: LogOption = None,
    bundles: BundlePlaces = None,
    checkpoint: Checkpoint = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="Settings file (learn.toml).")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the evidence as JSON.")] = False,
) -> None:
    """Evaluate the gate of a candidate against the live bundle: promote, mix or wait, with all reasons.

    The command writes verdict.json, report.html and, unless the verdict is to wait, the bundle to publish
    to the directory. Repeating it with the same inputs changes nothing.
    """
    from scorer.commands.log_options import bundle_shelf
    from scorer.learn import settings
    from scorer.learn.gate.judge import judge
    from scorer.learn.report.write import write_verdict

    chosen = settings.load(config)
    logged = read_experience(experience, log, bundle_shelf(bundles), chosen, checkpoint=checkpoint)
    verdict = judge(
        logged, candidate, live, chosen.gate, chosen.guardrails, experience_digest=logged.digest()
    )
    verdict = write_verdict(verdict, candidate, output)
    if json:
        print_json(verdict.evidence.model_dump(mode="json"))
        return
    typer.echo(verdict.headline)
    for check in verdict.evidence.checks:
        typer.echo(f"  {'ok  ' if check.passed else 'FAIL'}  {check.name}: {check.says}")
    if verdict.evidence.decision != "promote":
        typer.echo(f"  {verdict.evidence.reasons[-1]}")
    typer.echo(f"report: {output / 'report.html'}")
