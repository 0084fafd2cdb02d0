"""The page of a study: history, trials as parallel coordinates, and importance of the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from scorer.learn.fraud.tuning import TUNED
from scorer.learn.report.plots import BLUE, GREY, ORANGE, new_axes, svg
from scorer.report import GOOD, ReportPage

if TYPE_CHECKING:
    import optuna

_SHOWN = 20
_LOGARITHMIC = {"learning_rate", "trees", "min_child_weight", "l2", "positive_weight"}


def tuning_page(study: optuna.Study, *, data: str) -> str:
    """Return one self-contained HTML page about a study.

    Args:
        study: A study with a complete trial.
        data: Name of the data.
    """
    from optuna.trial import TrialState

    complete = [one for one in study.trials if one.state == TrialState.COMPLETE]
    pruned = sum(one.state == TrialState.PRUNED for one in study.trials)
    best = study.best_trial
    page = ReportPage(
        "Tuning of a fraud model",
        f"{len(complete)} complete and {pruned} pruned trials on {data}; the value is the mean average "
        "precision over the folds.",
    )
    first = complete[0].value or 0.0
    page.verdict(
        f"Trial {best.number} is the best: average precision {best.value:.4f}.",
        [f"The first trial, with the settings of learn.toml, has {first:.4f}."],
        GOOD,
    )
    page.tiles([(f"{best.params[name]:.4g}", name) for name in TUNED if name in best.params])
    page.section("Trials")
    drawn = [(_history(study.trials), "Value of each complete trial, and the best one so far.")]
    if len(complete) > 1:
        drawn.append((_coordinates(complete), "Settings of the complete trials; the best quarter is blue."))
        drawn.append((_importances(study), "Share of the variance of the value that each setting explains."))
    page.plots(drawn)
    page.section("Best trials")
    names = [name for name in TUNED if name in best.params]
    ranked = sorted(complete, key=lambda one: -(one.value or 0.0))[:_SHOWN]
    page.table(
        ("trial", "value", "seconds", *names),
        [
            (
                str(one.number),
                f"{one.value:.4f}",
                "-" if one.duration is None else f"{one.duration.total_seconds():.1f}",
                *(f"{one.params[name]:.4g}" for name in names),
            )
            for one in ranked
        ],
    )
    return page.text()


def _history(trials: list[optuna.trial.FrozenTrial]) -> str:
    from optuna.trial import TrialState

    figure, axes = new_axes()
    known = [one for one in trials if one.state == TrialState.COMPLETE]
    at = [one.number for one in known]
    values = [one.value or 0.0 for one in known]
    axes.scatter(at, values, color=BLUE, s=14, label="complete")
    gone = [one for one in trials if one.state == TrialState.PRUNED and one.intermediate_values]
    axes.scatter(
        [one.number for one in gone],
        [one.intermediate_values[max(one.intermediate_values)] for one in gone],
        color=GREY,
        s=14,
        marker="x",
        label="pruned",
    )
    axes.plot(at, np.maximum.accumulate(values), color=ORANGE, drawstyle="steps-post", label="best so far")
    axes.set_xlabel("trial")
    axes.set_ylabel("average precision")
    # A bad trial must not hide the differences of the others.
    low = float(np.quantile(values, 0.1))
    axes.set_ylim(low - 0.5 * max(max(values) - low, 1e-3), max(values) + 0.1 * max(max(values) - low, 1e-3))
    axes.legend(frameon=False, fontsize=8, loc="best")
    return svg(figure)


def _coordinates(trials: list[optuna.trial.FrozenTrial]) -> str:
    figure, axes = new_axes()
    names = [name for name in TUNED if all(name in one.params for one in trials)]
    scaled = np.stack([_scaled(name, [float(one.params[name]) for one in trials]) for name in names], axis=1)
    values = np.array([one.value or 0.0 for one in trials])
    line = np.quantile(values, 0.75)
    for row, value in sorted(zip(scaled.tolist(), values.tolist(), strict=True), key=lambda pair: pair[1]):
        is_best = value >= line
        axes.plot(row, color=BLUE if is_best else GREY, alpha=0.8 if is_best else 0.35, linewidth=1)
    axes.set_xticks(range(len(names)), [name.replace("_", "\n") for name in names], fontsize=6)
    axes.set_yticks([0, 1], ["least", "most"])
    return svg(figure)


def _scaled(name: str, values: list[float]) -> Any:
    given = np.log(values) if name in _LOGARITHMIC else np.array(values)
    spread = float(given.max() - given.min())
    return (given - given.min()) / spread if spread else np.full(len(given), 0.5)


def _importances(study: optuna.Study) -> str:
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances

    figure, axes = new_axes()
    try:
        found = get_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=0))
    except (ValueError, RuntimeError):
        # All trials have the same value.
        found = {}
    names = list(found)[::-1]
    axes.barh([name.replace("_", " ") for name in names], [found[name] for name in names], color=BLUE)
    axes.set_xlabel("share of the variance")
    return svg(figure)
