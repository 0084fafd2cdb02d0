"""The oracle beside the models that it was chosen over: how well, how large, how fast.

All learn from the same decisions with the same weights, up to the last step in
time, and are judged on the decisions after it: AUC, the area under the
precision-recall curve, the size of the saved artifact, and how long one
decision takes over the whole catalogue. The library's time is its own Python
call on the exploded context; the engine's is this project's evaluator, for the
models that a bundle can hold.
"""

from __future__ import annotations

import pickle
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from scorer.bundle import PolicySpec
from scorer.learn.experience import Experience
from scorer.learn.oracle import OracleTask
from scorer.learn.training.boosting import boost, exploded
from scorer.learn.training.preview import preview
from scorer.learn.training.progressive import sample_weights
from scorer.learn.training.settings import TrainSettings
from scorer.learn.training.steps import steps
from scorer.stats.arrays import Floats, Rows32

if TYPE_CHECKING:
    from scorer.bundle import Bundle

_CALLS = 15
# A forest of more nodes than this is not worth loading for its time.
_ENGINE_NODES = 20_000_000
_GREEDY = PolicySpec(rule="epsilon_greedy", epsilon=0.0, salt="0" * 32)

Predict = Callable[[Rows32], Floats]


@dataclass(frozen=True)
class Compared:
    """One model in the comparison; all were trained and judged on the same rows.

    Attributes:
        model: its name.
        auc: area under the ROC curve.
        aucpr: area under the precision-recall curve of authorisations.
        aucpr_declines: the same of declines, the rarer class.
        log_loss: mean, in nats.
        artifact_bytes: of the saved model: XGBoost's UBJSON, the others pickled.
        decision_us: median time to score one context over the whole catalogue, microseconds, by the
            library's own Python call.
        engine_us: the same by this project's engine; None where it does not run the model.
        rows: decisions that trained it.
        judged: decisions that judged it.
    """

    model: str
    auc: float
    aucpr: float
    aucpr_declines: float
    log_loss: float
    artifact_bytes: int
    decision_us: float
    engine_us: float | None
    rows: int
    judged: int

    def repeatable(self) -> dict[str, Any]:
        """For lineage: without times, so that the same training gives the same bundle."""
        return {name: value for name, value in asdict(self).items() if not name.endswith("_us")}


def compare(
    task: OracleTask,
    experience: Experience,
    tau: float,
    plan: TrainSettings,
    advance: Callable[[str], None] = lambda _: None,
) -> tuple[Compared, ...]:
    """XGBoost, logistic regression and a random forest on the last step; empty if there is no step."""
    found = steps(experience, plan.week_days, 1)
    if not found:
        return ()
    known, judged = experience.take(found[-1].training), experience.take(found[-1].judged)
    rows, unseen = exploded(task, known), exploded(task, judged)
    weights = sample_weights(known.propensity, tau, plan.clip)
    catalogue = _catalogue(task, judged.context[0])

    def row(name: str, predict: Predict, size: int, engine: Bundle | None) -> Compared:
        advance(f"comparison: {name}")
        return Compared(
            model=name,
            **_measures(predict(unseen), judged.reward),
            artifact_bytes=size,
            decision_us=_median_us(lambda: predict(catalogue)),
            engine_us=None if engine is None else _median_us(lambda: engine.evaluate(judged.context[:1])),
            rows=len(known),
            judged=len(judged),
        )

    booster = boost(task, rows, known.reward, weights, plan)
    ours = row(
        "xgboost",
        lambda given: np.asarray(booster.predict(task.matrix(given)), dtype=np.float64),
        len(booster.save_raw("ubj")),
        preview(task, booster, _GREEDY),
    )
    linear = _logistic(task, plan)
    linear.fit(rows, known.reward, logisticregression__sample_weight=weights)
    logistic = row("logistic regression", _of(linear), len(pickle.dumps(linear)), None)
    forest = _forest(plan)
    forest.fit(rows, known.reward, sample_weight=weights)
    nodes = sum(tree.tree_.node_count for tree in forest.estimators_)
    engine = preview(task, forest, _GREEDY) if nodes <= _ENGINE_NODES else None
    random = row("random forest", _of(forest), len(pickle.dumps(forest)), engine)
    return ours, logistic, random


def _logistic(task: OracleTask, plan: TrainSettings) -> Any:
    """Categories one-hot, numbers standardised; what is missing is the mean."""
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    names = [at for at, column in enumerate(task.columns) if column.type == "category"]
    numbers = [at for at in range(len(task.columns)) if at not in names]
    encode = ColumnTransformer(
        [
            ("categories", OneHotEncoder(handle_unknown="ignore"), names),
            ("numbers", make_pipeline(SimpleImputer(keep_empty_features=True), StandardScaler()), numbers),
        ]
    )
    return make_pipeline(encode, LogisticRegression(max_iter=1000, random_state=plan.seed))


def _forest(plan: TrainSettings) -> Any:
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(
        plan.compare_forest_trees, min_samples_leaf=5, n_jobs=1, random_state=plan.seed
    )


def _of(model: Any) -> Predict:
    return lambda rows: np.asarray(model.predict_proba(rows)[:, 1], dtype=np.float64)


def _measures(predicted: Floats, reward: Floats) -> dict[str, float]:
    from sklearn.metrics import average_precision_score, log_loss, roc_auc_score

    return {
        "auc": float(roc_auc_score(reward, predicted)),
        "aucpr": float(average_precision_score(reward, predicted)),
        "aucpr_declines": float(average_precision_score(1 - reward, 1 - predicted)),
        "log_loss": float(log_loss(reward, predicted)),
    }


def _catalogue(task: OracleTask, context: Rows32) -> Rows32:
    """`[K, columns]` one context beside every action."""
    own = task.action_rows()
    return np.concatenate([np.repeat(context[None], len(own), axis=0), own], axis=1)


def _median_us(call: Callable[[], object]) -> float:
    call()
    taken = []
    for _ in range(_CALLS):
        begun = time.perf_counter_ns()
        call()
        taken.append(time.perf_counter_ns() - begun)
    return statistics.median(taken) / 1000
