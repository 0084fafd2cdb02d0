"""What an analysis found, as values and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from scorer.causal.findings import CausalFinding
from scorer.learn.documents import read_document, write_document
from scorer.learn.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT: Final = 2
_MOST_BYTES: Final = 64 << 20
Reliability: TypeAlias = Literal["reliable", "unreliable"]


@dataclass(frozen=True)
class Bounded:
    """An estimate with the bounds of its interval; None where there is no interval."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class AdoptionEffect:
    """The cumulative effect of adoption over one horizon, per adopter.

    Attributes:
        horizon: Months from the month of adoption on.
        cohort: Quarter or month of adoption; empty: all cohorts.
        adopters: Adopters whose windows are complete.
        matched: Those with neighbours; all other figures are about them.
        mean: The effect at scale: middle between `by_value` and `by_level`, with an interval for both.
        by_value: The effect if adopters were selected by their observed value before adoption.
        by_level: The effect if they were selected by their lasting level: less regression to the mean.
        error: Standard error of the mean.
        median: The effect on a typical adopter.
        plain_mean: Mean difference to the synthetic controls, without correction.
        plain_median: Median difference to the synthetic controls, without correction.
        pre_difference: Mean difference in the value before adoption, summed over its months.
        naive: Mean difference to all units that never adopted.
        differences: Difference in differences to all units that never adopted.
        effective_controls: Number of equally weighted controls with the same variance.
    """

    horizon: int
    cohort: str
    adopters: int
    matched: int
    mean: Bounded
    by_value: float
    by_level: float
    error: float
    median: Bounded
    plain_mean: float
    plain_median: float
    pre_difference: float
    naive: float
    differences: float
    effective_controls: float


@dataclass(frozen=True)
class VariableBalance:
    """Means of a matching variable, and standardised differences before and after matching."""

    name: str
    adopters: float
    controls: float
    synthetic: float
    before: float
    after: float


@dataclass(frozen=True)
class PlaceboResult:
    """The estimate where there can be no effect.

    Attributes:
        value: The estimate.
        error: Its standard error.
        p_value: Of a test of zero.
        units: Pretended adopters.
    """

    value: float
    error: float
    p_value: float
    units: int


@dataclass(frozen=True)
class MonthDifference:
    """Mean values in one month, counted from the month of adoption (0)."""

    month: int
    adopters: float
    synthetic: float
    difference: float
    low: float
    high: float


@dataclass(frozen=True)
class ChainedProduct:
    """Another product: shares that adopt it in the period before adoption or the longest horizon.

    Attributes:
        name: The product.
        adopters: Share of adopters.
        controls: Share of their neighbours.
        z: Difference in standard errors.
    """

    name: str
    adopters: float
    controls: float
    z: float


@dataclass(frozen=True)
class HiddenBias:
    """Rosenbaum's bound of one horizon.

    Attributes:
        horizon: Months.
        gamma: Greatest odds ratio of adoption between two alike units by an unobserved cause at which the
            effect stays significant; None if it is not significant without hidden bias, among all horizons.
    """

    horizon: int
    gamma: float | None


@dataclass(frozen=True)
class DoubtReason:
    """One reason for which an estimate is unreliable."""

    name: str
    text: str


@dataclass(frozen=True)
class LoggedEstimate:
    """An estimate from logged propensities, which is better evidence where it exists.

    Attributes:
        name: What was estimated.
        difference: Of the reward per decision.
        decisions: Number of decisions.
    """

    name: str
    difference: Bounded
    decisions: int


@dataclass(frozen=True)
class DeltaCV:
    """The result of an analysis.

    Attributes:
        product: The product.
        currency: Of all amounts; empty: unknown.
        months: First and last month of the data.
        units: Units in memory.
        controls: Units that never adopted.
        effects: All cohorts first, then each cohort, by horizon.
        balance: Of all matching variables.
        path: Differences by month.
        trend: Change of the difference per month before adoption.
        growth: Growth of the difference per month in the last months before adoption, as a share of the
            value; one-sided in the direction of the effect.
        in_time: Placebo: adoption pretended earlier.
        in_space: Placebo: adoption pretended for controls.
        reversion: Regression to the mean over the longest horizon, per adopter.
        chains: Other products.
        several: Share of adopters that adopt another product in that time.
        hidden_bias: By horizon.
        verdict: Whether the effects can be relied on.
        reasons: Why not.
        findings: What was found in the data.
        notes: What a reader must know.
        settings: The settings.
        logged: Estimates from logged propensities.
    """

    product: str
    currency: str
    months: tuple[str, str]
    units: int
    controls: int
    effects: tuple[AdoptionEffect, ...]
    balance: tuple[VariableBalance, ...]
    path: tuple[MonthDifference, ...]
    trend: PlaceboResult
    growth: PlaceboResult
    in_time: PlaceboResult | None
    in_space: PlaceboResult | None
    reversion: float
    chains: tuple[ChainedProduct, ...]
    several: float
    hidden_bias: tuple[HiddenBias, ...]
    verdict: Reliability
    reasons: tuple[DoubtReason, ...]
    findings: tuple[CausalFinding, ...]
    notes: tuple[str, ...]
    settings: Mapping[str, Any]
    logged: tuple[LoggedEstimate, ...] = field(default=())

    def effect(self, horizon: int, cohort: str = "") -> AdoptionEffect:
        """Return the effect of a horizon.

        Raises:
            DataError: There is no such horizon or cohort.
        """
        for one in self.effects:
            if one.horizon == horizon and one.cohort == cohort:
                return one
        known = sorted({one.horizon for one in self.effects if one.cohort == cohort})
        raise DataError(f"there is no effect over {horizon} months; there are {known}")

    def document(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {"format": FORMAT, **asdict(self)}

    def write(self, path: Path) -> None:
        """Write the result as JSON.

        Raises:
            DataError: The file cannot be written.
        """
        write_document(path, self.document())

    def table(self) -> pa.Table:
        """Return the effects as an Arrow table, one row per cohort and horizon."""
        import pyarrow as pa

        rows = []
        for one in self.effects:
            flat = {key: value for key, value in asdict(one).items() if not isinstance(value, dict)}
            for name in ("mean", "median"):
                bounded: Bounded = getattr(one, name)
                flat |= {name: bounded.value, f"{name}_low": bounded.low, f"{name}_high": bounded.high}
            rows.append(flat)
        return pa.Table.from_pylist(rows)


def from_document(found: Mapping[str, Any]) -> DeltaCV:
    """Return the result of JSON values that `DeltaCV.document` returned.

    Raises:
        DataError: They are of another version of the format.
    """
    if found.get("format") != FORMAT:
        raise DataError("the file is no result of this version of scorer; run the analysis again")
    values = {name: value for name, value in found.items() if name != "format"}

    def placebo(one: Mapping[str, Any] | None) -> PlaceboResult | None:
        return None if one is None else PlaceboResult(**one)

    try:
        return DeltaCV(
            **{
                **values,
                "months": tuple(values["months"]),
                "effects": tuple(
                    AdoptionEffect(
                        **{**one, "mean": Bounded(**one["mean"]), "median": Bounded(**one["median"])}
                    )
                    for one in values["effects"]
                ),
                "balance": tuple(VariableBalance(**one) for one in values["balance"]),
                "path": tuple(MonthDifference(**one) for one in values["path"]),
                "trend": PlaceboResult(**values["trend"]),
                "growth": PlaceboResult(**values["growth"]),
                "in_time": placebo(values["in_time"]),
                "in_space": placebo(values["in_space"]),
                "chains": tuple(ChainedProduct(**one) for one in values["chains"]),
                "hidden_bias": tuple(HiddenBias(**one) for one in values["hidden_bias"]),
                "reasons": tuple(DoubtReason(**one) for one in values["reasons"]),
                "findings": tuple(
                    CausalFinding(**{**one, "examples": tuple(one["examples"])}) for one in values["findings"]
                ),
                "notes": tuple(values["notes"]),
                "logged": tuple(
                    LoggedEstimate(**{**one, "difference": Bounded(**one["difference"])})
                    for one in values["logged"]
                ),
            }
        )
    except (KeyError, TypeError) as error:
        raise DataError(f"the file is no result of an analysis: {error}; run it again") from None


def read_result(path: Path) -> DeltaCV:
    """Read a file of `DeltaCV.write`.

    Raises:
        DataError: It cannot be read, is too large, or is no result.
    """
    command = "scorer causal delta-cv --json-file"
    return from_document(read_document(path, most_bytes=_MOST_BYTES, what="result", command=command))
