"""``scorer learn fraud``: train, rebuild, tune, select features and compare bundles of score checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scorer.cli import TYPER_OPTIONS
from scorer.commands.log_options import moment
from scorer.commands.output import print_json, print_table

if TYPE_CHECKING:
    from scorer.learn.fraud.measures import Differences, Measure, Measures
    from scorer.learn.fraud.settings import FraudSettings
    from scorer.learn.fraud.training import FraudModel

app = typer.Typer(
    help="Train, rebuild, tune and compare bundles of score checkpoints from labelled decisions.",
    no_args_is_help=True,
    **TYPER_OPTIONS,
)

Data = Annotated[
    Path,
    typer.Argument(
        metavar="DATA",
        help="Parquet file of decisions with features, labels and times; `scorer learn label` writes one.",
    ),
]
Task = Annotated[
    Path,
    typer.Option(
        "--task", metavar="DIR", help="Directory of the live score bundle, or one with its schema.json."
    ),
]
Output = Annotated[
    Path, typer.Option("--output", "-o", metavar="DIR", help="Directory to create for the bundle.")
]
Config = Annotated[
    Path | None,
    typer.Option("--config", "-c", metavar="FILE", help="Settings file (learn.toml) with [fraud]."),
]
Until = Annotated[
    str | None,
    typer.Option(help="End of the test window; default: the end of the last day of the data (UTC)."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def train(
    data: Data,
    task: Task,
    output: Output,
    config: Config = None,
    study: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Study of `scorer learn fraud tune` whose best settings are used."),
    ] = None,
    selection: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Result of `scorer learn fraud select`: the bundle needs its features only.",
        ),
    ] = None,
    until: Until = None,
    run_id: Annotated[
        str, typer.Option(help="Id of the training run in the lineage; default: a new one.")
    ] = "",
    json: Json = False,
) -> None:
    """Train a candidate, choose its thresholds on value, and build its bundle.

    The data is checked first. A candidate that does not beat the baseline on the test window is rejected.
    """
    from scorer.learn.errors import DataError
    from scorer.learn.fraud.candidate import build_fraud, lineage_of
    from scorer.learn.fraud.table import read_table
    from scorer.learn.fraud.task import read_score_task
    from scorer.learn.fraud.training import train_fraud

    if output.exists():
        raise DataError(f"{output} exists; bundles are immutable, choose another directory")
    settings, what = _settings(config), read_score_task(task)
    if study is not None:
        from scorer.learn.fraud.tuning import best_settings

        settings = best_settings(study, settings)
    notes: dict[str, object] | None = None
    if selection is not None:
        from scorer.learn.fraud.selection import read_selection, selected_task

        chosen = read_selection(selection)
        what, notes = selected_task(what, chosen), chosen.notes()
        settings = settings.only([one.name for one in what.features])
    table = read_table(data, what.features, settings.columns)
    model = train_fraud(
        table, what, settings, until_ms=_time("--until", until), selection=notes, at=_progress
    )
    built = build_fraud(model, data, output, run_id=run_id)
    if json:
        print_json({"bundle": str(built.path), "digest": built.digest, **lineage_of(model)})
    else:
        typer.echo(f"{built.path}: {built.name}, {built.digest}")
        _print_model(model)


@app.command()
def rebuild(
    candidate: Annotated[Path, typer.Argument(metavar="BUNDLE", help="Bundle to build again.")],
    data: Annotated[
        Path, typer.Option("--data", metavar="FILE", help="The file that the bundle was trained on.")
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="DIR", help="Directory to create; default: only the digest is compared."
        ),
    ] = None,
    any_versions: Annotated[
        bool,
        typer.Option("--any-versions", help="Use the installed libraries although others built the bundle."),
    ] = False,
) -> None:
    """Build a bundle again from its lineage and the data. Exit code 1 if the digests differ."""
    import tempfile

    from scorer.learn.fraud.candidate import rebuild as build_again

    with tempfile.TemporaryDirectory() as temporary:
        found = build_again(
            candidate, data, output or Path(temporary) / "bundle", any_versions=any_versions, at=_progress
        )
    if not found.is_equal:
        typer.echo(f"the digest differs: {found.built.digest}, the original is {found.wanted}", err=True)
        raise typer.Exit(1)
    typer.echo(f"the bundle is the same bit for bit: {found.wanted}")


@app.command()
def tune(
    data: Data,
    task: Task,
    study: Annotated[
        Path,
        typer.Option(metavar="FILE", help="SQLite file of the study, which is continued if it exists."),
    ],
    config: Config = None,
    until: Until = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Trials of the study; default: tune.trials of learn.toml.")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Minutes after which no trial begins; default: tune.minutes.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes that train; default: tune.workers.")
    ] = None,
    page: Annotated[
        Path | None, typer.Option(metavar="FILE", help="HTML page of the study; default: STUDY.html.")
    ] = None,
    json: Json = False,
) -> None:
    """Search for the settings of the trees on time-ordered windows before the test window.

    A run that was stopped or killed continues with the same command. `scorer learn fraud train --study` uses
    the best settings.
    """
    from scorer.durable import write_atomically
    from scorer.learn.fraud.task import read_score_task
    from scorer.learn.fraud.tuning import tune as search
    from scorer.learn.fraud.tuning_page import tuning_page

    settings = _settings(config)
    given = {"trials": trials, "minutes": minutes, "workers": workers}
    budget = settings.tune.model_copy(update={name: one for name, one in given.items() if one is not None})
    settings = settings.model_copy(update={"tune": budget})

    def advance(count: int) -> None:
        typer.echo(f"trial {count} of {budget.trials}", err=True)

    found = search(
        data, read_score_task(task), settings, study, until_ms=_time("--until", until), advance=advance
    )
    best = found.study.best_trial
    target = page or study.with_suffix(".html")
    write_atomically(target, tuning_page(found.study, data=data.name).encode())
    if json:
        print_json(
            {
                "trials": len(found.study.trials),
                "began": found.began,
                "resumed": found.resumed,
                "seconds": found.seconds,
                "best": {"trial": best.number, "value": best.value, "settings": best.params},
                "page": str(target),
            }
        )
        return
    typer.echo(
        f"{study}: {len(found.study.trials)} trials, {found.began} of this run in {found.seconds:.0f} s; "
        f"the best is trial {best.number} with an average precision of {best.value:.4f}\n{target}"
    )
    print_table(("setting", "value"), [(name, f"{one:.4g}") for name, one in best.params.items()], empty="")


@app.command()
def select(
    data: Data,
    task: Task,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FILE", help="JSON file of the result; an unfinished one is continued."
        ),
    ],
    config: Config = None,
    until: Until = None,
    page: Annotated[
        Path | None, typer.Option(metavar="FILE", help="HTML page; default: the output as .html.")
    ] = None,
    json: Json = False,
) -> None:
    """Choose the features that are worth their cost, on time-ordered windows before the test window.

    Costs and groups are in [fraud.select]. `scorer learn fraud train --selection` trains with the chosen
    features.
    """
    from scorer.durable import write_atomically
    from scorer.learn.fraud.selection import SelectionStep, select_features
    from scorer.learn.fraud.selection_page import selection_page
    from scorer.learn.fraud.task import read_score_task

    settings = _settings(config)
    unit = settings.select.cost_unit

    def advance(step: SelectionStep) -> None:
        what = step.changed or "all groups" if settings.select.direction == "backward" else step.changed
        _progress(
            f"{what or 'first set'}: average precision {step.average_precision:.4f}, {step.cost:g} {unit}"
        )

    found = select_features(
        data, read_score_task(task), settings, output, until_ms=_time("--until", until), advance=advance
    )
    target = page or output.with_suffix(".html")
    write_atomically(target, selection_page(found, data=data.name).encode())
    if json:
        print_json({**found.notes(), "selection": str(output), "page": str(target)})
        return
    rows = [
        (
            "*" if at == found.chosen else "",
            one.changed or "-",
            str(len(found.features(one.groups))),
            f"{one.cost:g}",
            f"{one.average_precision:.4f}",
            f"{one.worth:.4f}",
        )
        for at, one in enumerate(found.steps)
    ]
    columns = ("", "changed", "features", f"cost in {unit}", "average precision", "worth")
    print_table(columns, rows, empty="")
    best = found.best
    typer.echo(f"chosen: {', '.join(found.features(best.groups))}\n{target}")


@app.command()
def compare(
    data: Data,
    challenger: Annotated[
        Path, typer.Option("--challenger", metavar="DIR", help="Bundle that may replace the live one.")
    ],
    champion: Annotated[Path, typer.Option("--champion", metavar="DIR", help="The live bundle.")],
    config: Config = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="New directory for the gate's verdict, the report and the bundle to publish.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Compare two bundles on the payments that neither was trained on, and evaluate the gate.

    `scorer learn publish` publishes the bundle of the output directory, with DATA as --experience.
    """
    from scorer.learn import settings
    from scorer.learn.fraud.gate import judge_scores
    from scorer.learn.report.write import write_verdict

    chosen = settings.load(config)
    verdict = judge_scores(data, challenger, champion, chosen.fraud, chosen.gate)
    if output is not None:
        verdict = write_verdict(verdict, challenger, output)
    evidence = verdict.evidence
    if json:
        print_json(evidence.model_dump(mode="json"))
        return
    typer.echo(f"{verdict.headline} ({evidence.window.decisions:,} payments)")
    for check in evidence.checks:
        typer.echo(f"  {'ok  ' if check.passed else 'FAIL'}  {check.name}: {check.says}")
    if output is not None:
        typer.echo(f"report: {output / 'report.html'}")


@app.command()
def weeks(
    data: Data,
    task: Task,
    first: Annotated[str, typer.Option(help="Beginning of the first test window, such as 2026-03-02.")],
    once_days: Annotated[
        float,
        typer.Option(
            min=0.0,
            help="Days that the model which is trained once learns from, before the first window; 0: as many "
            "as the others.",
        ),
    ] = 0.0,
    config: Config = None,
    json: Json = False,
) -> None:
    """Compare retraining before each test window with the model of the first window."""
    from dataclasses import asdict

    from scorer.learn.fraud.table import read_table
    from scorer.learn.fraud.task import read_score_task
    from scorer.learn.fraud.weeks import compare_retraining

    settings, what = _settings(config), read_score_task(task)
    start = _time("--first", first)
    table = read_table(data, what.features, settings.columns)
    found = compare_retraining(
        table, settings, start or 0, once_days=once_days, at=lambda one: _progress(f"{one.window}")
    )
    if json:
        print_json(asdict(found))
        return
    rows = [
        (
            str(one.window),
            f"{one.rows:,}",
            f"{one.positives:,}",
            f"{one.once:.4f}",
            f"{one.retrained:.4f}",
            f"{one.retrained - one.once:+.4f}",
        )
        for one in found.weeks
    ]
    columns = ("test window", "payments", "positive", "trained once", "retrained", "difference")
    print_table(columns, rows, empty="")
    typer.echo(f"mean difference of the average precision: {_text(found.difference, sign=True)}")


def _settings(config: Path | None) -> FraudSettings:
    from scorer.learn import settings

    return settings.load(config).fraud


def _time(option: str, text: str | None) -> int | None:
    given = moment(option, text)
    return None if given is None else round(given.timestamp() * 1000)


def _progress(stage: str) -> None:
    typer.echo(f"{stage} ...", err=True)


def _print_model(model: FraudModel) -> None:
    windows, counts = model.windows, model.counts
    for name, span in (("train", windows.train), ("validation", windows.validation),
                       ("fit", windows.fit), ("test", windows.test)):  # fmt: skip
        count = counts[name]
        late = f", {model.late[name]:,} labels came too late" if model.late.get(name) else ""
        typer.echo(f"{name:<11}{span}: {count['rows']:,} rows, {count['positive']:,} positive{late}")
    for finding in model.findings:
        typer.echo(f"{finding.effect}: {finding.text}")
    for name, value in model.choice.items():
        mark = " *" if name == model.fitted.algorithm else ""
        typer.echo(f"average precision of {name} on the validation window: {value:.4f}{mark}")
    bands = ", ".join(f"{band.label} from {band.start:.4g}" for band in model.thresholds.bands())
    typer.echo(f"thresholds: {bands}")
    _print_measures(
        (("candidate", model.measures), (f"baseline ({model.settings.baseline})", model.baseline)),
        model.beats,
    )


def _print_measures(models: tuple[tuple[str, Measures], ...], differences: Differences) -> None:
    names = ("auc", "average_precision", "card_precision", "value", "value_share")
    rows: list[tuple[str, ...]] = [
        (name, *(_text(getattr(one, field)) for field in names), f"{one.calibration:.3f}")
        for name, one in models
    ]
    rows.append(("difference", *(_text(getattr(differences, field), sign=True) for field in names), ""))
    columns = ("model", "AUC", "average precision", "card precision@100", "value per payment",
               "value of turnover", "predicted/observed")  # fmt: skip
    print_table(columns, rows, empty="")


def _text(measure: Measure | None, *, sign: bool = False) -> str:
    if measure is None:
        return "-"
    form = "+.4f" if sign else ".4f"
    low, high = ("-" if bound is None else format(bound, form) for bound in (measure.low, measure.high))
    return f"{measure.value:{form}} [{low}, {high}]"
