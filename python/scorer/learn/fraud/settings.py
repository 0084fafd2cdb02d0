"""`[fraud]`: how a candidate of a score checkpoint is trained, evaluated and tuned."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Literal, Self

from pydantic import Field, FiniteFloat, model_validator

from scorer.learn.section import LearnSection

Algorithm = Literal["xgboost", "lightgbm"]
NonNegative = Annotated[FiniteFloat, Field(ge=0)]


class ColumnSettings(LearnSection):
    """Names of the columns of the data that are not features of the model."""

    id: str = Field(default="decision_id", description="Id of a row, for duplicates; empty: there is none.")
    time: str = Field(
        default="decided_at_ms", description="Time of the decision: milliseconds since 1970 or a timestamp."
    )
    label: str = Field(default="label", description="1 for fraud, else 0.")
    weight: str = Field(
        default="label_weight", description="Weight of a row; empty, or no such column: 1 for every row."
    )
    known: str = Field(
        default="label_known_ms",
        description="Time at which the label was known, 0 where it is assumed; empty, or no such column: "
        "delay_days after the decision.",
    )
    entity: str = Field(
        default="",
        examples=["customer"],
        description="Card or customer, for card precision and the bootstrap; empty: there is none.",
    )
    amount: str = Field(
        default="amount", description="Amount of the payment; empty: every payment has the amount 1."
    )


class ValueSettings(LearnSection):
    """What decisions cost, in the currency of the amounts, and how many payments can be reviewed."""

    fraud_loss: FiniteFloat = Field(
        default=1.0, ge=0, description="Loss of an approved fraud, as a share of its amount."
    )
    fraud_fee: FiniteFloat = Field(default=15.0, ge=0, description="Loss of an approved fraud beside that.")
    decline_loss: FiniteFloat = Field(
        default=0.1, ge=0, description="Loss of a declined genuine payment, as a share of its amount."
    )
    decline_fee: FiniteFloat = Field(
        default=5.0, ge=0, description="Loss of a declined genuine payment beside that."
    )
    review_cost: FiniteFloat = Field(default=3.0, ge=0, description="Cost of a review.")
    review_finds: FiniteFloat = Field(
        default=0.9, ge=0, le=1, description="Share of the reviewed frauds that the review finds."
    )
    reviews_per_day: int = Field(
        default=100, ge=0, description="Payments that can be reviewed per day, on average; 0: none is."
    )


class CheckSettings(LearnSection):
    """Rules for the data before a model is trained on it."""

    duplicates: Literal["reject", "exclude"] = Field(
        default="reject", description="Rows with the same id and label."
    )
    out_of_range: Literal["reject", "exclude"] = Field(
        default="reject",
        description="Rows with a feature outside the schema's minimum and maximum, or an unlisted category.",
    )
    label_rate: tuple[FiniteFloat, FiniteFloat] = Field(
        default=(1e-5, 0.5), description="Smallest and largest weighted share of positive labels."
    )
    single_auc: FiniteFloat = Field(
        default=0.98,
        gt=0.5,
        le=1,
        description="A feature that alone separates the labels with a larger AUC is suspected of leakage.",
    )
    delay_correlation: FiniteFloat = Field(
        default=0.8,
        gt=0,
        le=1,
        description="A feature whose rank correlation with the time from decision to label is larger, among "
        "positive labels, is suspected to have been computed after the decision.",
    )
    trusted: tuple[str, ...] = Field(
        default=(), description="Features that are used although one of the two rules suspects them."
    )


class ScoreGateSettings(LearnSection):
    """When a candidate replaces the live bundle of a score checkpoint."""

    value_margin: FiniteFloat = Field(
        default=0.0005,
        ge=0,
        lt=1,
        description="The lower bound of the gain, as a share of the turnover, must be above minus this.",
    )
    precision_margin: FiniteFloat = Field(
        default=0.02,
        ge=0,
        lt=1,
        description="The lower bound of the difference of the average precision must be above minus this.",
    )
    calibration: tuple[FiniteFloat, FiniteFloat] = Field(
        default=(0.5, 2.0), description="Bounds of the mean score over the share of positive labels."
    )
    positives: int = Field(default=30, ge=2, description="Fewest positive labels in the window.")


class TuneSettings(LearnSection):
    """Search for the settings of the trees."""

    trials: int = Field(default=50, ge=1, le=10_000, description="Trials of the study, with earlier runs.")
    minutes: FiniteFloat = Field(
        default=60.0, gt=0, description="No trial begins after so many minutes of a run."
    )
    workers: int = Field(
        default=2, ge=1, le=256, description="Processes that train at the same time, one thread each."
    )
    folds: int = Field(
        default=3, ge=1, le=20, description="Validation windows, one after the other, before the test window."
    )
    rows: int = Field(
        default=200_000,
        ge=1_000,
        description="Most training rows of a fold: all positive ones and a sample of the others, weighted.",
    )
    warm_up: int = Field(
        default=10, ge=1, description="Trials before pruning and before the sampler's model."
    )


class SelectSettings(LearnSection):
    """Selection of features by cost and gain."""

    direction: Literal["backward", "forward"] = Field(
        default="backward",
        description='"backward" begins with all features and removes them, "forward" begins with those of '
        "keep and adds the others.",
    )
    groups: dict[str, tuple[str, ...]] = Field(
        default={},
        examples=[{"terminal": ["terminal_risk_7d", "terminal_risk_30d"]}],
        description="Features that are removed and added together, and have one cost, because one look-up "
        "gives all of them. A feature in no group is a group of its own name.",
    )
    costs: dict[str, NonNegative] = Field(
        default={},
        examples=[{"terminal": 12.0}],
        description="Cost of each group for each decision, in cost_unit: declared, or measured by "
        "`scorer bundle graph` or a benchmark of the feature source.",
    )
    default_cost: FiniteFloat = Field(default=0.0, ge=0, description="Cost of a group without one in costs.")
    cost_unit: str = Field(
        default="µs", min_length=1, max_length=16, description="Unit of the costs, for display."
    )
    price: FiniteFloat = Field(
        default=0.0001,
        ge=0,
        description="Average precision that one unit of cost must be worth: a set is valued at its average "
        "precision minus price times its cost.",
    )
    errors: FiniteFloat = Field(
        default=1.0,
        ge=0,
        description="The set of the least cost, then of the fewest features, is chosen among those whose "
        "worth is below that of the best one by at most so many standard errors of the paired difference.",
    )
    keep: tuple[str, ...] = Field(default=(), description="Groups that are always used.")
    folds: int = Field(
        default=3, ge=1, le=20, description="Validation windows, one after the other, before the test window."
    )
    rows: int = Field(
        default=50_000,
        ge=1_000,
        description="Most training rows of a fold: all positive ones and a sample of the others, weighted.",
    )
    workers: int = Field(
        default=2, ge=1, le=256, description="Processes that train at the same time, one thread each."
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        seen: dict[str, str] = {}
        for group, names in self.groups.items():
            if not names:
                raise ValueError(f'select.groups: "{group}" is empty; name its features, or remove it')
            for name in names:
                if name in seen:
                    raise ValueError(
                        f'select.groups: "{name}" is in "{seen[name]}" and in "{group}"; name it once'
                    )
                seen[name] = group
        return self


class FraudSettings(LearnSection):
    """One candidate of a score checkpoint: data, windows, models, calibration, thresholds."""

    algorithms: tuple[Algorithm, ...] = Field(
        default=("xgboost",),
        min_length=1,
        description='"xgboost" and "lightgbm" (if installed): the one with the better average precision on '
        "the validation window is used.",
    )
    baseline: Literal["logistic", "amount"] = Field(
        default="logistic",
        description='What a candidate must beat: "logistic" regression, or the share of positive labels per '
        'band of the "amount".',
    )
    must_beat_baseline: bool = Field(
        default=True,
        description="Reject a candidate unless the lower bound of its average precision over that of the "
        "baseline is above 0 on the test window.",
    )
    trees: int = Field(default=300, ge=1, le=10_000, description="Boosted trees.")
    depth: int = Field(default=4, ge=1, le=16, description="Greatest depth of a tree.")
    learning_rate: FiniteFloat = Field(default=0.05, gt=0, le=1, description="Shrinkage.")
    min_child_weight: FiniteFloat = Field(default=5.0, ge=0, description="Least hessian in a leaf.")
    subsample: FiniteFloat = Field(default=0.8, gt=0, le=1, description="Share of rows per tree.")
    colsample: FiniteFloat = Field(default=0.5, gt=0, le=1, description="Share of columns per tree.")
    l2: FiniteFloat = Field(default=5.0, ge=0, description="L2 regularisation of the leaves.")
    positive_weight: FiniteFloat | Literal["balanced"] = Field(
        default=1.0,
        description='Weight of positive rows in training, or "balanced": both classes weigh the same. '
        "Calibration and evaluation do not use it.",
    )
    increasing: tuple[str, ...] = Field(
        default=(), description="Features with which the score may only rise, if all others are equal."
    )
    decreasing: tuple[str, ...] = Field(default=(), description="Features with which it may only fall.")
    threads: int = Field(default=2, ge=1, description="Threads of the libraries; a part of the lineage.")
    seed: int = Field(default=0, ge=0, description="Same data, settings and seed give the same bundle.")
    train_days: FiniteFloat = Field(
        default=0.0, ge=0, description="Length of the training window; 0: all days before."
    )
    validation_days: FiniteFloat = Field(
        default=7.0, gt=0, description="Length of the window of calibration and thresholds."
    )
    test_days: FiniteFloat = Field(
        default=7.0, gt=0, description="Length of the window of the reported measures."
    )
    delay_days: FiniteFloat = Field(
        default=7.0, ge=0, description="Days until labels are known: the gap before validation and test."
    )
    refit: bool = Field(
        default=True,
        description="Train the model again on all days until the gap before the test window, with the "
        "calibration and thresholds of the validation window.",
    )
    blocked_days: int = Field(
        default=0,
        ge=0,
        description="Entities with a positive label that was known when a day began, of at most so many "
        "days before the window, are left out of validation and test from that day on: their cards are "
        "blocked. 0: no entity is.",
    )
    calibration: Literal["isotonic", "none"] = Field(
        default="isotonic", description="Centred isotonic regression, which keeps the ranking; or none."
    )
    bootstrap: Literal["day", "entity"] = Field(
        default="day", description="What the bootstrap of intervals draws: days, or entities."
    )
    confidence: FiniteFloat = Field(
        default=0.975, gt=0.5, lt=1, description="One-sided confidence of each bound of an interval."
    )
    columns: ColumnSettings = ColumnSettings()
    checks: CheckSettings = CheckSettings()
    value: ValueSettings = ValueSettings()
    tune: TuneSettings = TuneSettings()
    select: SelectSettings = SelectSettings()
    gate: ScoreGateSettings = ScoreGateSettings()

    @model_validator(mode="after")
    def _fits(self) -> Self:
        both = sorted(set(self.increasing) & set(self.decreasing))
        if both:
            raise ValueError(f'increasing: "{both[0]}" is in decreasing too; name it once')
        if len(set(self.algorithms)) != len(self.algorithms):
            raise ValueError("algorithms: one appears twice; name each once")
        for what, needs in (("bootstrap", self.bootstrap == "entity"), ("blocked_days", self.blocked_days)):
            if needs and not self.columns.entity:
                raise ValueError(f"{what}: it needs the column of the entity; set columns.entity")
        if self.positive_weight != "balanced" and self.positive_weight <= 0:
            raise ValueError("positive_weight: must be above 0")
        low, high = self.gate.calibration
        if not 0 < low < 1 < high:
            raise ValueError("gate.calibration: a bound below and one above 1 are needed")
        low, high = self.checks.label_rate
        if not 0 <= low < high <= 1:
            raise ValueError("checks.label_rate: two shares in ascending order are needed, from 0 to 1")
        return self

    def only(self, features: Collection[str]) -> FraudSettings:
        """Return the settings for some of the features: constraints and trust of the others are left out."""
        checks = self.checks.model_copy(
            update={"trusted": tuple(name for name in self.checks.trusted if name in features)}
        )
        return self.model_copy(
            update={
                "increasing": tuple(name for name in self.increasing if name in features),
                "decreasing": tuple(name for name in self.decreasing if name in features),
                "checks": checks,
            }
        )
