"""`[train]`: how a generation of the oracle and its policy is made."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, FiniteFloat, model_validator

from scorer.learn.section import LearnSection


class PolicySettings(LearnSection):
    """The exploration rule on top of the oracle; see docs/bundle-format.md, "The policy"."""

    rule: Literal["uniform", "epsilon_greedy", "softmax", "squarecb", "fastcb", "loss_ratio", "bagging"] = (
        Field(default="loss_ratio", description="Which rule; docs/exploration.md says why this one.")
    )
    epsilon: FiniteFloat = Field(default=0.02, ge=0, le=1, description="Of epsilon_greedy.")
    inverse_temperature: FiniteFloat = Field(default=100.0, gt=0, description="Of softmax.")
    exponent: FiniteFloat = Field(default=100.0, ge=0, description="Of loss_ratio.")
    floor: FiniteFloat = Field(
        default=0.01, ge=0, le=1, description="Every eligible action has at least this over their number."
    )
    action_floors: dict[str, FiniteFloat] = Field(
        default={}, description="Least probability of single actions, by id."
    )
    gamma_scale: FiniteFloat = Field(
        default=1.0, gt=0, description="c of the inverse-gap rules: gamma = c sqrt(K / excess error)."
    )
    gamma_growth: FiniteFloat = Field(
        default=2.0, ge=2, le=4, description="Gamma is at most this times the previous generation's."
    )
    gamma_first: FiniteFloat | None = Field(
        default=None, gt=0, examples=[100.0], description="Most that gamma may be in the first generation."
    )


class TrainSettings(LearnSection):
    """One generation: oracle, weights, calibration, ensemble, policy."""

    trees: int = Field(default=250, ge=1, le=10_000, description="Boosted trees.")
    depth: int = Field(default=6, ge=1, le=16, description="Greatest depth of a tree.")
    learning_rate: FiniteFloat = Field(default=0.05, gt=0, le=1, description="Shrinkage.")
    min_child_weight: FiniteFloat = Field(
        default=20.0,
        ge=0,
        description="Least hessian in a leaf; weights have mean 1, so that it is one scale for each tau.",
    )
    subsample: FiniteFloat = Field(default=0.7, gt=0, le=1, description="Share of rows per tree.")
    colsample: FiniteFloat = Field(default=0.7, gt=0, le=1, description="Share of columns per tree.")
    threads: int = Field(default=1, ge=1, description="XGBoost's threads, in each worker.")
    engine: Literal["local", "spark", "ray"] = Field(
        default="local",
        description='Where forests are trained: in this process, on Spark ("scorer[train,spark]") or on Ray '
        '("scorer[train,ray]").',
    )
    storage: Literal["memory", "disk"] = Field(
        default="memory",
        description='Of engine "local": "disk" leaves the contexts in the files and trains with XGBoost\'s '
        "external memory, for more decisions than fit in memory. Spark and Ray always leave them there.",
    )
    workers: int = Field(
        default=1, ge=1, description="Processes that train one forest together, on Spark or Ray."
    )
    cluster: str = Field(
        default="",
        description='Address of the cluster: Spark\'s master ("spark://host:7077") or Ray\'s ("host:6379"); '
        "empty: what spark-submit or RAY_ADDRESS give, otherwise a local one.",
    )
    cluster_options: dict[str, str | int | bool] = Field(
        default={},
        description="Further options: Spark's configuration by its keys, or arguments of ray.init.",
    )
    seed: int = Field(default=0, ge=0, description="Same data, settings and seed give the same forest.")
    fewest: int = Field(default=500, ge=2, description="Fewer settled decisions than this are refused.")
    tau: tuple[FiniteFloat, ...] = Field(
        default=(0.0, 0.5, 1.0),
        min_length=1,
        description="Candidates for the sample weights min(propensity^-tau, clip); progressive validation "
        "chooses. One value is taken without asking.",
    )
    clip: FiniteFloat = Field(
        default=50.0, ge=1, description="Largest sample weight before they are scaled to mean 1."
    )
    week_days: FiniteFloat = Field(
        default=7.0,
        gt=0,
        description="Days per step of progressive validation: train up to step k, judge on k + 1.",
    )
    judged_weeks: int = Field(default=2, ge=1, description="How many of the latest steps judge.")
    folds: int = Field(default=5, ge=2, le=20, description="Folds of the out-of-fold predictions.")
    fold_by: Literal["entity", "time"] = Field(
        default="entity", description='"entity": a hash of shopper or decision; "time": consecutive blocks.'
    )
    calibration: Literal["sigmoid", "none"] = Field(
        default="sigmoid",
        description="Map from margin to probability, fitted out of fold; it keeps the order.",
    )
    members: int = Field(
        default=0, ge=0, le=64, description="Ensemble members for Thompson sampling by bagging; 0: none."
    )
    member_weights: Literal["poisson", "double_or_nothing"] = Field(
        default="poisson",
        description="How members differ: rows weigh Poisson(1), or 0 or 2 with even chances.",
    )
    compare: bool = Field(
        default=True, description="Train logistic regression and a random forest beside it and compare."
    )
    compare_forest_trees: int = Field(default=200, ge=1, description="Trees of the random forest.")
    policy: PolicySettings = PolicySettings()

    @property
    def reads_files(self) -> bool:
        """Whether contexts stay in the files of the experience while training reads them."""
        return self.engine != "local" or self.storage == "disk"

    @model_validator(mode="after")
    def _fits(self) -> TrainSettings:
        if any(not 0 <= tau <= 1 for tau in self.tau):
            raise ValueError("tau: each must be from 0 (no weights) to 1 (inverse propensity)")
        if len(set(self.tau)) != len(self.tau):
            raise ValueError("tau: a candidate appears twice")
        if self.policy.rule == "bagging" and self.members < 2:
            raise ValueError("members: the bagging rule needs at least 2; set members")
        if self.reads_files and self.compare:
            what = f'engine = "{self.engine}"' if self.engine != "local" else 'storage = "disk"'
            raise ValueError(
                f"compare: the comparison needs all decisions in memory, which {what} avoids; "
                "set compare = false"
            )
        if self.engine == "local" and (self.workers > 1 or self.cluster or self.cluster_options):
            key = "workers" if self.workers > 1 else "cluster" if self.cluster else "cluster_options"
            raise ValueError(f'{key}: it is used with engine = "spark" or "ray"; set engine or remove it')
        return self
