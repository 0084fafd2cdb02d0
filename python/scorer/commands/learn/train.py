"""``scorer learn train``: train a candidate bundle from experience."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scorer.commands.output import print_json, print_table, size
from scorer.commands.progress import trainings_bar

if TYPE_CHECKING:
    from scorer.learn.training.trained import Built, Trained


def train(
    experience: Annotated[
        Path,
        typer.Argument(
            metavar="EXPERIENCE",
            help="Parquet file that `scorer learn join` wrote, or a directory of such files.",
        ),
    ],
    task: Annotated[
        Path,
        typer.Option(
            "--task",
            metavar="DIR",
            help="Directory of the live action bundle, or one with its schema.json and actions.json.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="DIR", help="Directory to create for the candidate bundle."),
    ],
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", "-c", metavar="FILE", help="Settings file (learn.toml); default: all defaults."
        ),
    ] = None,
    previous: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Bundle of the previous generation; default: --task, if it is a bundle."
        ),
    ] = None,
    run_id: Annotated[
        str, typer.Option(help="Id of the training run in the lineage; default: a new one.")
    ] = "",
    work: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Directory for finished forests and pages on disk, from which the same command continues; "
            "default: beside the output. For Spark and Ray, every machine must have it at this path.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Train the next generation and build its bundle.

    Sample weights are chosen by progressive validation, probabilities are calibrated out of fold, and gamma
    is measured. Logistic regression and a random forest are trained on the same data for comparison.
    """
    from scorer.bundle.check import MANIFEST
    from scorer.bundle.lineage import digest_of
    from scorer.learn import experience_files, settings
    from scorer.learn.errors import DataError
    from scorer.learn.training.fitting import fit, trainings
    from scorer.learn.training.generation import Generation
    from scorer.learn.training.running import enough_memory, open_experience, trainer_of
    from scorer.learn.training.tasks import read_task
    from scorer.learn.training.trained import build_candidate

    plan = settings.load(config).train
    if output.exists():
        raise DataError(f"{output} exists; bundles are immutable, choose another directory")
    what = read_task(task)
    before = previous or (task if (task / MANIFEST).is_file() else None)
    place = work or output.absolute().with_name(f".{output.name}.training")
    with enough_memory(plan):
        given = open_experience(experience, plan)
        digest = digest_of(*experience_files.files_of(experience))
        with (
            trainings_bar(trainings(given, plan)) as (advance, on_tree),
            trainer_of(what, plan, given, place, digest, on_tree) as trainer,
        ):
            trained = fit(
                what,
                given,
                plan,
                None if before is None else Generation.of_bundle(before),
                data_digest=digest,
                notes=experience_files.read_notes(experience),
                advance=advance,
                trainer=trainer,
            )
            built = build_candidate(trained, output, run_id)
    if json:
        from dataclasses import asdict

        rows = [asdict(one) for one in trained.comparison]
        print_json({"bundle": str(built.path), "digest": built.digest, **trained.lineage, "comparison": rows})
    else:
        _print(trained, built)


def _print(trained: Trained, built: Built) -> None:
    decisions, metrics = trained.lineage["decisions"], trained.metrics
    typer.echo(
        f"{built.path}: {built.name} generation {trained.generation}, {built.digest}\n"
        f"{decisions['settled']:,} settled training decisions, {decisions['in_flight']:,} in flight, "
        f"{decisions['missing']:,} without an outcome"
    )
    typer.echo(
        f"out of fold: AUC {metrics['auc']:.4f}, log loss {metrics['log_loss']:.4f} "
        f"({metrics['log_loss_uncalibrated']:.4f} before calibration), "
        f"authorised {metrics['mean_reward']:.2%}, predicted {metrics['mean_predicted']:.2%}\n"
    )
    chosen = trained.weights
    rows = [
        (
            f"{one.tau:g}" + (" *" if one.tau == chosen.tau else ""),
            f"{one.value:.4f}",
            f"{0.0 - one.behind:.4f} ± {one.behind_error:.4f}",
            f"{one.snipw:.4f}",
            f"{one.log_loss:.4f}",
            f"{one.effective_rows:,.0f}",
        )
        for one in chosen.candidates
    ]
    typer.echo(f"weights min(p^-tau, {chosen.clip:g}): tau {chosen.tau:g}, {chosen.reason}")
    columns = ("tau", "value (DR)", "to the best", "SNIPW", "log loss", "effective rows")
    print_table(columns, rows, empty=f"effective rows {chosen.effective_rows:,.0f}\n")
    if trained.comparison:
        first = trained.comparison[0]
        typer.echo(f"trained on {first.rows:,} decisions, evaluated on the {first.judged:,} after them")
        print_table(COMPARISON, comparison_rows(trained), empty="")
    gamma = trained.gamma
    limited = f", limited by {gamma.limited_by}" if gamma.limited_by else ""
    typer.echo(
        f"gamma {gamma.gamma:.1f}: measured {gamma.measured:.1f} from an excess error of {gamma.excess:.2e} "
        f"over {gamma.actions:.1f} eligible actions{limited}; policy {trained.bundle.policy}"
    )


COMPARISON = (
    "model",
    "AUC",
    "AUCPR",
    "AUCPR declines",
    "log loss",
    "artifact",
    "per decision, its library",
    "per decision, our engine",
)


def comparison_rows(trained: Any) -> list[tuple[str, ...]]:
    """Return the rows of the comparison table, one per model."""
    return [
        (
            one.model,
            f"{one.auc:.4f}",
            f"{one.aucpr:.4f}",
            f"{one.aucpr_declines:.4f}",
            f"{one.log_loss:.4f}",
            size(one.artifact_bytes),
            f"{one.decision_us:,.0f} us",
            "-" if one.engine_us is None else f"{one.engine_us:,.0f} us",
        )
        for one in trained.comparison
    ]
