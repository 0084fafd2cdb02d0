"""The names of the metrics, and the forms in which each may be written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class MetricForm:
    """The forms in which a metric may be written, and how it is evaluated."""

    title: str
    """The metric as the beginning of a sentence."""
    unit: str
    """`time` (microseconds), `share`, `number` or `distance`."""
    example: str
    against: tuple[str, ...] = ("",)
    """The names of what it may be compared with; the first one is the default."""
    minus: str = ""
    has_bounds: bool = True
    always_bound: bool = False
    """Whether a comparison without a bound uses the bound at 95 %."""
    by_interval: bool = True
    """Whether it may be evaluated by interval."""
    kinds: tuple[str, ...] = ("score", "action")
    canary: bool = False
    """Whether it can be computed from the decisions of a canary."""
    grows: bool = False
    """Whether it only increases with time, so that a value below the limit is inconclusive and no failure."""
    by_chance: bool = True
    """Whether a good model can fail it by chance. Such gates share the false-alarm rate."""
    backtest: bool = False
    """Whether it is a metric of a backtest, and not of observations."""


def _times(title: str, name: str) -> dict[str, MetricForm]:
    quantiles = {"50": "p50", "90": "p90", "95": "p95", "99": "p99", "999": "p99.9"}
    return {
        f"{name}_p{digits}_us": MetricForm(
            f"{title} {said}",
            "time",
            "<= 0.8 sla",
            ("sla",),
            always_bound=True,
            canary=True,
        )
        for digits, said in quantiles.items()
    }


def _of_pairs(title: str, unit: str, example: str) -> MetricForm:
    """Return the form of a metric over the requests that the live bundle flags.

    The live bundle agrees with itself on them, so it cannot fail by chance.
    """
    return MetricForm(title, unit, example, ("live",), by_interval=False, kinds=("score",), by_chance=False)


def _backtest(title: str, unit: str, example: str, *kinds: str, has_bounds: bool = True) -> MetricForm:
    return MetricForm(
        title,
        unit,
        example,
        ("live",),
        has_bounds=has_bounds,
        by_interval=False,
        kinds=kinds,
        backtest=True,
    )


def _of_groups(rate: str) -> dict[str, MetricForm]:
    """Return the forms of the difference and of the ratio of a rate between groups."""
    name, title = rate.split(" ", 1)
    return {
        f"group_{name}_{what}": MetricForm(
            f"{what.capitalize()} of {title} between groups",
            unit,
            example,
            by_interval=False,
            kinds=("score",),
        )
        for what, unit, example in (
            ("difference", "share", "<= 10% upper95"),
            ("ratio", "number", ">= 0.8 lower95"),
        )
    }


SEGMENTS: Final = "segments_worse"
"""The metric of segments. It has alarms of its own, which correct for the number of segments."""

METRICS: Final[Mapping[str, MetricForm]] = {
    **_times("Execution", "exec"),
    **_times("Data-load", "data_load"),
    "error_rate": MetricForm("Error rate", "share", "== 0", canary=True, by_chance=False),
    "drop_rate": MetricForm(
        "Drop rate", "share", "<= 5%", has_bounds=False, by_interval=False, by_chance=False
    ),
    "parity_max_abs": MetricForm(
        "Largest difference between served and recomputed score",
        "number",
        "<= 1e-6",
        has_bounds=False,
        by_interval=False,
        by_chance=False,
    ),
    "feature_parity_rate": MetricForm("Feature parity", "share", ">= 0.999", by_chance=False),
    "score_psi": MetricForm(
        "Score PSI",
        "distance",
        "< threshold(floor=0.1)",
        ("reference", "live"),
        has_bounds=False,
        canary=True,
    ),
    "score_psi_live": MetricForm(
        "Score PSI", "distance", "< threshold(floor=0.25)", ("live",), has_bounds=False, canary=True
    ),
    "score_kl": MetricForm(
        "Score KL divergence", "number", "< 0.1", ("reference", "live"), has_bounds=False, canary=True
    ),
    "score_js": MetricForm(
        "Score JS divergence", "number", "< 0.05", ("reference", "live"), has_bounds=False, canary=True
    ),
    "flip_rate": MetricForm("Flip rate", "share", "<= 0.02 upper95", ("live",), minus="aa_control"),
    "approve_rate_delta": MetricForm(
        "Change of the approve rate",
        "share",
        "abs <= 0.005 upper95",
        ("live",),
        kinds=("score",),
        canary=True,
    ),
    "flagged_agreement": _of_pairs("Agreement on the flagged requests", "number", ">= 0.35 lower95"),
    "declined_kept": _of_pairs("Kept share of the declined requests", "number", ">= 0.85 lower95"),
    "tail_correlation": _of_pairs("Rank correlation of the flagged requests", "number", ">= 0.65 lower95"),
    "flagged_share_change": _of_pairs("Change of the flagged share", "share", "abs <= 25% upper95"),
    "auc_matured": MetricForm("Matured AUC", "number", ">= -0.002 lower95", ("live", ""), kinds=("score",)),
    "covered_hours_of_week": MetricForm(
        "Covered hours of the week",
        "number",
        ">= 168",
        has_bounds=False,
        grows=True,
        by_interval=False,
        by_chance=False,
    ),
    SEGMENTS: MetricForm(
        "Number of segments in which this bundle is clearly worse than live",
        "number",
        "== 0",
        has_bounds=False,
        by_interval=False,
        canary=True,
        by_chance=False,
    ),
    **_of_groups("selection selection rates"),
    **_of_groups("tpr true positive rates"),
    **_of_groups("fpr false positive rates"),
    **_of_groups("odds true or false positive rates"),
    "policy_distance": MetricForm(
        "Distance of the policies",
        "share",
        "<= 0.1 upper95",
        ("live",),
        minus="aa_control",
        kinds=("action",),
    ),
    "min_propensity": MetricForm(
        "Least probability of an eligible action",
        "number",
        ">= 0.001",
        has_bounds=False,
        kinds=("action",),
        by_chance=False,
    ),
    "expected_reward_delta": MetricForm(
        "Change of the reward", "number", ">= -0.005 lower95", ("live",), kinds=("action",)
    ),
    "backtest_auc": _backtest("Change of the AUC", "number", ">= -0.02 lower95", "score"),
    "backtest_average_precision": _backtest(
        "Relative change of the average precision", "share", ">= -15% lower95", "score"
    ),
    "backtest_recall_review": _backtest(
        "Relative change of the recall at live's review rate", "share", ">= -10% lower95", "score"
    ),
    "backtest_recall_decline": _backtest(
        "Relative change of the recall at live's decline rate", "share", ">= -20% lower95", "score"
    ),
    "backtest_value_saved": _backtest(
        "Relative change of the value saved at live's review rate", "share", ">= -15% lower95", "score"
    ),
    "backtest_calibration": _backtest("Expected over observed positives", "number", "<= 2 upper95", "score"),
    "backtest_reward": _backtest(
        "Change of the reward (doubly robust)", "number", ">= -0.01 lower95", "action"
    ),
    "backtest_reward_ips": _backtest(
        "Change of the reward (inverse propensities)", "number", ">= -0.02 lower95", "action"
    ),
    "backtest_agreement": _backtest(
        "Agreement of the likeliest actions", "share", ">= 70% lower95", "action"
    ),
    "backtest_effective_share": _backtest(
        "Effective share of the rows", "share", ">= 5%", "action", has_bounds=False
    ),
    "backtest_decisions_changed": _backtest(
        "Share of decisions that change", "share", "<= 5% upper95", "score", "action"
    ),
    "backtest_approvals_lost": _backtest("Share of live's approvals lost", "share", "<= 2% upper95", "score"),
    "backtest_nothing_left": _backtest(
        "Share of decisions whose rules leave no action", "share", "<= 0.1% upper95", "action"
    ),
}
"""The metrics by name, in the order of reports."""

QUANTITIES: Final = (
    "labels_matured",
    "rows",
    "control_rows",
    "flagged_rows",
    "declined_rows",
    "covered_hours_of_week",
)
"""The quantities that `when` may compare."""
