"""Tuning of the trees: a study of Optuna in a SQLite file, on time-ordered folds before the test window.

This process alone writes the study. Workers train and evaluate one fold of a trial at a time, so a trial that
is behind the median of the others is pruned after any fold. A run that was killed leaves trials unfinished:
the next run marks them as failed and tries their settings first.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from scorer.learn.errors import DataError
from scorer.learn.fraud.folds import Fold, fold_pool, fold_value
from scorer.learn.fraud.settings import FraudSettings
from scorer.learn.fraud.table import FraudTable, read_table
from scorer.learn.fraud.task import ScoreTask
from scorer.learn.fraud.windows import TrainingWindows, earlier_windows, plan_windows

if TYPE_CHECKING:
    import optuna

STUDY: Final = "fraud"
"""Name of the study in its file."""
_INPUT: Final = "input"
"""Attribute of the study: digest of the data, the windows and the settings that are not tuned."""
_SPACE: Final[dict[str, tuple[float, float, bool]]] = {
    "depth": (2, 8, False),
    "learning_rate": (0.01, 0.3, True),
    "trees": (50, 600, True),
    "min_child_weight": (0.5, 100.0, True),
    "subsample": (0.4, 1.0, False),
    "colsample": (0.2, 1.0, False),
    "l2": (0.1, 100.0, True),
    "positive_weight": (0.5, 20.0, True),
}
"""Least and greatest value of each setting that is tuned, and whether its scale is logarithmic."""
TUNED: Final = tuple(_SPACE)
_NOT_INPUT: Final = {"threads", "tune", "select", "value", "gate", "confidence"}
"""Settings that no trial depends on."""


@dataclass(frozen=True)
class Tuned:
    """Result of a run.

    Attributes:
        study: The study with all trials, of earlier runs too.
        began: Number of trials that this run began.
        resumed: Number of trials that an earlier run left unfinished.
        seconds: Duration of the run.
    """

    study: optuna.Study
    began: int
    resumed: int
    seconds: float


def tune(
    data: Path,
    task: ScoreTask,
    settings: FraudSettings,
    path: Path,
    *,
    until_ms: int | None = None,
    clock: Callable[[], float] = time.monotonic,
    advance: Callable[[int], None] = lambda _: None,
) -> Tuned:
    """Continue a study until it has all trials, or until the time is up.

    The value of a trial is the mean average precision over the folds. The test window is never read.

    Args:
        data: The Parquet file.
        task: Name and features of the checkpoint.
        settings: `[fraud]`; the first algorithm is tuned, and the first trial has these settings.
        path: SQLite file of the study; created if needed.
        until_ms: End of the test window, as in training.
        clock: Seconds.
        advance: Called with the number of finished trials after each of them.

    Raises:
        DataError: The study is of other data or settings, another process uses it, or no trial finished.
    """
    import optuna

    table = read_table(data, task.features, settings.columns)
    windows = plan_windows(table.time_ms, settings, until_ms)
    folds = earlier_windows(windows, table.time_ms, settings, settings.tune.folds)
    for fold in folds:
        Fold(table, fold, settings, settings.tune.rows)
    digest = _input_digest(table, windows, settings)
    del table
    began = clock()
    with _locked(path), _quiet():
        study = _open(path, settings)
        _require_same(study, digest, path)
        resumed = _abandon(study)
        if not study.trials:
            study.enqueue_trial(first_values(settings))
        started = 0
        with fold_pool(data, task, settings, folds, settings.tune) as pool:
            running: dict[Future[float], tuple[optuna.Trial, FraudSettings, list[float]]] = {}
            while True:
                while (
                    len(running) < settings.tune.workers
                    and _counted(study) + len(running) < settings.tune.trials
                    and clock() - began < settings.tune.minutes * 60
                ):
                    trial = study.ask()
                    chosen = suggest(trial, settings)
                    running[pool.submit(fold_value, 0, chosen)] = (trial, chosen, [])
                    started += 1
                if not running:
                    break
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    trial, chosen, values = running.pop(done)
                    values.append(done.result())
                    trial.report(float(np.mean(values)), len(values) - 1)
                    if len(values) == len(folds):
                        study.tell(trial, float(np.mean(values)))
                    elif trial.should_prune():
                        study.tell(trial, state=optuna.trial.TrialState.PRUNED)
                    else:
                        running[pool.submit(fold_value, len(values), chosen)] = (trial, chosen, values)
                        continue
                    advance(_counted(study))
    if not any(one.state == optuna.trial.TrialState.COMPLETE for one in study.trials):
        raise DataError(f'study "{path}": no trial is complete; raise tune.minutes')
    return Tuned(study, started, resumed, clock() - began)


def first_values(settings: FraudSettings) -> dict[str, float]:
    """Return the values of the settings that are tuned; class weights that depend on the data begin at 1."""
    given = {name: getattr(settings, name) for name in TUNED}
    return given | ({"positive_weight": 1.0} if settings.positive_weight == "balanced" else {})


def suggest(trial: optuna.Trial, settings: FraudSettings) -> FraudSettings:
    """Return the settings of a trial, with one thread for each worker."""
    given = first_values(settings)
    choice: dict[str, Any] = {}
    for name, (low, high, is_logarithmic) in _SPACE.items():
        # The first trial has the given settings, so the space contains them.
        ends = min(low, given[name]), max(high, given[name])
        if isinstance(low, int):
            choice[name] = trial.suggest_int(name, int(ends[0]), int(ends[1]), log=is_logarithmic)
        else:
            choice[name] = trial.suggest_float(name, *ends, log=is_logarithmic)
    return settings.model_copy(update={**choice, "threads": 1})


def best_settings(path: Path, settings: FraudSettings) -> FraudSettings:
    """Return the settings with the values of the best trial of a study.

    Raises:
        DataError: The file is no study, or no trial is complete.
    """
    study = read_study(path)
    try:
        found: Mapping[str, Any] = study.best_params
    except ValueError:
        raise DataError(f'study "{path}": no trial is complete; run `scorer learn fraud tune`') from None
    return settings.model_copy(update={name: found[name] for name in TUNED if name in found})


def read_study(path: Path) -> optuna.Study:
    """Read a study.

    Raises:
        DataError: The file does not exist, or is no study.
    """
    import optuna

    if not path.is_file():
        raise DataError(f'study "{path}": no such file; `scorer learn fraud tune` writes one')
    with _quiet():
        try:
            return optuna.load_study(study_name=STUDY, storage=_storage(path))
        except Exception as error:
            raise DataError(f'study "{path}": not a study of this command ({type(error).__name__})') from None


def _open(path: Path, settings: FraudSettings) -> optuna.Study:
    import optuna

    path.parent.mkdir(parents=True, exist_ok=True)
    warm_up = settings.tune.warm_up
    try:
        return optuna.create_study(
            study_name=STUDY,
            storage=_storage(path),
            load_if_exists=True,
            direction="maximize",
            # Trials that run at the same time are assumed to be bad, so that they differ.
            sampler=optuna.samplers.TPESampler(
                seed=settings.seed, n_startup_trials=warm_up, multivariate=True, constant_liar=True
            ),
            pruner=optuna.pruners.MedianPruner(n_startup_trials=warm_up, n_min_trials=warm_up // 2 or 1),
        )
    except Exception as error:
        raise DataError(f'study "{path}": cannot be opened ({type(error).__name__}: {error})') from None


def _storage(path: Path) -> str:
    return f"sqlite:///{path.resolve()}"


def _require_same(study: optuna.Study, digest: str, path: Path) -> None:
    recorded = study.user_attrs.get(_INPUT)
    if recorded is None:
        study.set_user_attr(_INPUT, digest)
    elif recorded != digest:
        raise DataError(f'study "{path}" is of other data, windows or settings; choose another file')


def _input_digest(table: FraudTable, windows: TrainingWindows, settings: FraudSettings) -> str:
    """Return the digest of what the trials of one study have in common: all but the budget."""
    common = settings.model_dump(mode="json", exclude=_NOT_INPUT)
    common["tune"] = settings.tune.model_dump(include={"folds", "rows"})
    what = [table.digest, [one.name for one in table.features], windows.as_dict(), common]
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()


def _counted(study: optuna.Study) -> int:
    """Return the number of trials that count: those that are complete or pruned."""
    from optuna.trial import TrialState

    states = (TrialState.COMPLETE, TrialState.PRUNED)
    return len(study.get_trials(deepcopy=False, states=states))


def _abandon(study: optuna.Study) -> int:
    """Mark the trials of a run that was killed as failed, queue their settings, and return their number."""
    from optuna.trial import TrialState

    left = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    for one in left:
        study.tell(one.number, state=TrialState.FAIL)
        if one.params:
            study.enqueue_trial(one.params)
    return len(left)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of a study. The system releases it when the process ends, however it ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(f'study "{path}" is used by another process; wait for its end') from None
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave out Optuna's lines per trial, and its warnings that samplers may change in later versions."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)
