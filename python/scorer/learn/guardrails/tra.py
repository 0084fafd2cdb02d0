"""How far transaction risk analysis may be used: fraud rates against the regulation's reference rates.

Commission Delegated Regulation (EU) 2018/389 (the RTS on strong customer authentication):

* Article 18 and Annex: a payment up to EUR 100, 250 or 500 may be exempt while the provider's fraud
  rate for its type is at or below 13, 6 or 1 basis points (remote cards), 1.5, 1 or 0.5 (transfers).
* Article 19(1): the rate is the value of fraudulent remote payments, recovered or not, over the value of
  all remote payments of the type, authenticated or exempt, on a rolling quarterly basis; EBA Q&A 2018_4045:
  computed once for every calendar quarter.
* Article 20: above the reference rate is reported at once; above it for two consecutive quarters the
  exemption is no longer used in that range, until the rate is at or below it for one quarter.

Values are whole cents and comparisons are exact: a rate of exactly 13 basis points is within 13.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from pydantic import Field, model_validator

from scorer.bundle.rule_text import table_text
from scorer.learn.errors import DataError
from scorer.learn.section import LearnSection


class TraBand(LearnSection):
    """Payments up to this amount need a fraud rate at or below this one."""

    up_to: float = Field(gt=0, description="EUR.")
    basis_points: float = Field(gt=0, description="Reference fraud rate: 1 is 0.01 %.")


CARDS = (
    TraBand(up_to=100, basis_points=13),
    TraBand(up_to=250, basis_points=6),
    TraBand(up_to=500, basis_points=1),
)
TRANSFERS = (
    TraBand(up_to=100, basis_points=1.5),
    TraBand(up_to=250, basis_points=1),
    TraBand(up_to=500, basis_points=0.5),
)


class TraSettings(LearnSection):
    """Fraud rates up to which transaction risk analysis may exempt: RTS (EU) 2018/389, Articles 18 to 20."""

    bands: tuple[TraBand, ...] = Field(
        default=CARDS,
        description="EUR up to which payments may be exempt at fraud rates of at most so many basis points.",
    )
    quarters_above: int = Field(default=2, ge=1, description="Article 20(2): cease after this many in a row.")
    quarters_below: int = Field(
        default=1, ge=1, description="Article 20(3): use again after this many in a row."
    )

    @model_validator(mode="after")
    def _ordered(self) -> TraSettings:
        amounts = [band.up_to for band in self.bands]
        rates = [band.basis_points for band in self.bands]
        if amounts != sorted(set(amounts)) or rates != sorted(set(rates), reverse=True):
            msg = "bands: amounts must rise and rates fall"
            raise ValueError(msg)
        return self


@dataclass(frozen=True)
class Quarter:
    """One calendar quarter of one type of payment.

    Attributes:
        name: such as "2026-Q1"; the order of names is that of time.
        total_cents: value of all remote payments.
        fraud_cents: of which unauthorised or fraudulent.
    """

    name: str
    total_cents: int
    fraud_cents: int

    @property
    def rate(self) -> Fraction:
        """Fraud over total, exactly; a quarter without payments has no fraud."""
        return Fraction(self.fraud_cents, self.total_cents) if self.total_cents else Fraction(0)

    def above(self, band: TraBand) -> bool:
        """Whether the rate is higher than the band's."""
        return self.rate > Fraction(str(band.basis_points)) / 10_000


@dataclass(frozen=True)
class BandState:
    """One band after the last quarter."""

    band: TraBand
    allowed: bool
    report: bool
    """The last quarter was above: the authority is told (Article 20(1))."""
    why: str


def assess(quarters: Sequence[Quarter], settings: TraSettings | None = None) -> tuple[BandState, ...]:
    """What each band's state is after these quarters, oldest first.

    A band starts allowed only if its first quarter is within the rate: EBA Q&A 2018_4044, who begins
    to use the exemption must have a rate at or below the reference.

    Raises:
        DataError: no quarters, out of order, or impossible values.
    """
    settings = settings or TraSettings()
    if not quarters:
        raise DataError("TRA: no quarter is given; the exemption needs a fraud rate (RTS Article 18(2))")
    names = [quarter.name for quarter in quarters]
    if names != sorted(set(names)):
        raise DataError(f"TRA: quarters {', '.join(names)} are not in order of time, each once")
    for one in quarters:
        if not 0 <= one.fraud_cents <= one.total_cents:
            raise DataError(
                f"TRA: {one.name}: fraud of {one.fraud_cents} in {one.total_cents} cents is no rate"
            )
    return tuple(_follow(band, quarters, settings) for band in settings.bands)


def _follow(band: TraBand, quarters: Sequence[Quarter], settings: TraSettings) -> BandState:
    allowed, above, below = not quarters[0].above(band), 0, 0
    why = f"{quarters[0].name} {'is within' if allowed else 'is above'}"
    for quarter in quarters:
        over = quarter.above(band)
        above, below = (above + 1, 0) if over else (0, below + 1)
        if allowed and above >= settings.quarters_above:
            allowed, why = False, f"{above} quarters in a row above, up to {quarter.name}"
        elif not allowed and below >= settings.quarters_below:
            allowed, why = True, f"{quarter.name} is within"
    last = quarters[-1]
    points = float(last.rate * 10_000)
    return BandState(
        band, allowed, last.above(band), f"{why}; {last.name}: {points:.2f} of {band.basis_points:g} bp"
    )


def largest_amount(states: Sequence[BandState]) -> float:
    """EUR up to which the exemption may be used; 0: not at all.

    Ranges are cumulative: an amount needs its own band, and a band that was given up is a ceiling.
    """
    limit = 0.0
    for state in states:
        if not state.allowed:
            break
        limit = state.band.up_to
    return limit


def rules_for(
    limits: Mapping[str, float], *, factor: str, value: str, amount: str = "amount", per: str = "route"
) -> list[dict[str, Any]]:
    """Return the rules that hold each acquirer (or route) to its amount, as tables of a rule set.

    Args:
        limits: Acquirer to EUR, from `largest_amount`.
        factor: The factor of the exemption.
        value: Its value that stands for risk analysis.
        amount: The feature with the amount in EUR.
        per: The factor whose values are the keys of `limits`.

    Raises:
        DataError: Two acquirers would have rules of the same id.
    """
    rules: dict[str, dict[str, Any]] = {}
    for name, limit in limits.items():
        rule = f"risk_analysis_{per}_{name}".replace("-", "_").replace(" ", "_")
        rule = "".join(letter for letter in rule if letter == "_" or (letter.isascii() and letter.isalnum()))
        if rule in rules:
            raise DataError(f'TRA: {per} "{name}" and another one have the rule id "{rule}"; rename one')
        rules[rule] = {
            "id": rule,
            "when": f"!has({amount}) || {amount} > {float(limit)!r}",
            "remove": {factor: [value], per: [name]},
            "source": f"RTS (EU) 2018/389, Articles 18 to 20 and Annex: up to EUR {limit:g}",
        }
    return list(rules.values())


def rules_text(rules: Sequence[Mapping[str, Any]]) -> str:
    """Return rules of `rules_for` as TOML, to be added to a rule set."""
    return "\n".join(table_text("rules", rule) for rule in rules)
