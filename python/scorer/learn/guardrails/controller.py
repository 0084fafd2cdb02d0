"""Holds caps while the world drifts: a PI controller on each price, fed by windows of decisions.

What is measured is the use that the logged pmfs promise, mean over a window of sum_a p(a) c(a), not the
actions drawn: the same expectation without the noise of the draw. In velocity form::

    target = limit * (1 - margin) - overspend of the period so far, paid back over `repay` windows
    lambda += [ p * (u_t - u_(t-1)) + i * (u_t - target) ] / sensitivity

with the sensitivity that `solve_caps` measured (how fast use falls with price). While use stays more than
5 % above its limit, steps grow fourfold from window to window: the sensitivity of another day may be far off.
One step gives up at most `max_rise` limits of use and takes back at most `max_fall`, or `decay` of the price.
The price is the integrator itself, kept within [0, price_limit], so there is nothing that can wind up; the
overspend is that of the trailing period alone.

**The band.** Over any trailing `period` of windows the mean use stays at or below limit * (1 + band).
A window can be no better than the bundle that was live in it, so one bad window of a period must fit
the band: what a change of traffic adds within one window is at most (highest use - limit) / period.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from pydantic import Field

from scorer.learn.experience import Experience
from scorer.learn.section import LearnSection

Floats = npt.NDArray[np.float64]

# A window this far above its limit is no noise.
_TRIPPED = 1.05


class ControllerSettings(LearnSection):
    """How prices of caps follow what is used of them."""

    window_minutes: float = Field(default=15.0, gt=0, description="Time between two steps.")
    period: int = Field(default=96, ge=1, description="Windows over which a cap must hold on average.")
    band: float = Field(default=0.05, gt=0, description="A cap is violated above limit * (1 + band).")
    margin: float = Field(default=0.02, ge=0, description="The controller aims at limit * (1 - margin).")
    proportional: float = Field(default=0.2, ge=0, description="Gain on the change of use.")
    integral: float = Field(default=0.4, gt=0, le=1, description="Gain on the distance to the target.")
    repay: int = Field(default=24, ge=1, description="Windows in which an overspend is paid back.")
    max_rise: float = Field(
        default=8.0, gt=0, description="Most that a price rises in one window, in use given up, in limits."
    )
    max_fall: float = Field(
        default=0.25, gt=0, description="Most that it falls, likewise: caps are left slowly."
    )
    decay: float = Field(
        default=0.05,
        ge=0,
        lt=1,
        description="Or this share of a price, where that is more: back from a search.",
    )
    price_limit: float = Field(default=1.0, gt=0, description="Highest price per unit; above it is an alarm.")
    least_rows: int = Field(default=100, ge=1, description="A window with fewer decisions moves no price.")


@dataclass(frozen=True)
class CapState:
    """One cap under control. Plain values: it is written beside the bundle and read again.

    Attributes:
        attribute: what is capped.
        limit: mean per decision.
        price: lambda that is live.
        sensitivity: -dE[c]/dlambda.
        recent: (decisions, mean use) of the trailing period's windows, the latest last.
        saturated: the price is at its limit and the use still above its own: a person is needed.
    """

    attribute: str
    limit: float
    price: float
    sensitivity: float
    recent: tuple[tuple[int, float], ...] = ()
    saturated: bool = False

    def mean(self) -> float:
        """Use per decision over the trailing period."""
        rows = sum(n for n, _ in self.recent)
        return sum(n * used for n, used in self.recent) / rows if rows else 0.0

    def violated(self, settings: ControllerSettings) -> bool:
        """Whether the trailing period is above the band; a period that has begun counts as far as it is."""
        full = len(self.recent) >= settings.period
        return full and self.mean() > self.limit * (1 + settings.band)

    def step(self, rows: int, used: float, settings: ControllerSettings) -> CapState:
        """After a window of `rows` decisions that used `used` each."""
        recent = (*self.recent, (rows, used))[-settings.period :]
        if rows < settings.least_rows:
            # Too few to steer by, but what was used was used.
            return replace(self, recent=recent)
        aim = self.limit * (1 - settings.margin)
        overspend = sum(n * (mean - aim) for n, mean in recent) / rows
        target = aim - min(max(0.0, overspend) / settings.repay, aim / 2)
        previous = self.recent[-1][1] if self.recent else used
        wanted = settings.proportional * (used - previous) + settings.integral * (used - target)
        # A flat spot (nothing changes with the price) would make any step infinite.
        steepness = max(self.sensitivity, self.limit)
        if used > self.limit * _TRIPPED and wanted > 0:
            # Where use does not give way, the sensitivity is out of date: search in growing steps.
            wanted *= 4.0 ** min(_streak(recent, self.limit), 5)
        fall = max(settings.max_fall * self.limit / steepness, settings.decay * self.price)
        price = self.price + max(min(wanted, settings.max_rise * self.limit) / steepness, -fall)
        held = min(max(price, 0.0), settings.price_limit)
        return replace(
            self, price=held, recent=recent, saturated=held >= settings.price_limit and used > self.limit
        )


def _streak(recent: Sequence[tuple[int, float]], limit: float) -> int:
    """How many of the latest windows before the last were above the limit, in a row."""
    count = 0
    for _, used in reversed(recent[:-1]):
        if used <= limit * _TRIPPED:
            break
        count += 1
    return count


def windows_of(
    experience: Experience, attributes: Mapping[str, Floats], window_minutes: float
) -> tuple[tuple[int, int, Mapping[str, float]], ...]:
    """Windows of logged decisions in order: (start, decisions, attribute to mean expected use).

    Args:
        experience: decisions, whatever became of them.
        attributes: name to `[K]` values of the catalogue.
        window_minutes: aligned to whole multiples since 1970.
    """
    length = round(window_minutes * 60_000)
    slot = experience.time_ms // length
    pmf = experience.pmf.astype(np.float64)
    use = {name: pmf @ values for name, values in attributes.items()}
    found = []
    for at in np.unique(slot):
        own = slot == at
        found.append(
            (int(at * length), int(own.sum()), {name: float(per[own].mean()) for name, per in use.items()})
        )
    return tuple(found)


def control(
    states: Sequence[CapState],
    windows: Sequence[tuple[int, int, Mapping[str, float]]],
    settings: ControllerSettings,
) -> tuple[CapState, ...]:
    """The states after these windows, oldest first."""
    after = list(states)
    for _, rows, used in windows:
        after = [state.step(rows, used[state.attribute], settings) for state in after]
    return tuple(after)
