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

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from pydantic import Field

from scorer.bundle import inspect
from scorer.durable import write_atomically
from scorer.learn.errors import DataError
from scorer.learn.experience import Experience
from scorer.learn.guardrails.caps import Duals, attribute_table
from scorer.learn.section import LearnSection
from scorer.stats.arrays import Floats

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


@dataclass(frozen=True)
class ControllerState:
    """The caps under control, and up to when decisions were taken into account.

    Attributes:
        through_ms: decisions before this were; a log that holds them again changes nothing.
        caps: one state each.
    """

    through_ms: int
    caps: tuple[CapState, ...]

    @classmethod
    def start(cls, duals: Duals, through_ms: int) -> ControllerState:
        """Return the first state, from the solution of the caps."""
        return cls(
            through_ms,
            tuple(
                CapState(name, limit, price, sensitivity)
                for name, limit, price, sensitivity in zip(
                    duals.attributes, duals.limits, duals.prices, duals.sensitivity, strict=True
                )
            ),
        )

    @classmethod
    def read(cls, path: Path) -> ControllerState:
        """From its file.

        Raises:
            DataError: it is missing or not a state.
        """
        try:
            content = json.loads(path.read_bytes())
            return cls(
                int(content["through_ms"]),
                tuple(
                    CapState(**{**cap, "recent": tuple((int(n), float(use)) for n, use in cap["recent"])})
                    for cap in content["caps"]
                ),
            )
        except FileNotFoundError:
            raise DataError(
                f'state "{path}" is missing; start it with `scorer learn guardrails solve --state`'
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f'state "{path}" is damaged ({error}); solve again to make a new one') from None

    def write(self, path: Path) -> None:
        """To its file, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(asdict(self), indent=1).encode() + b"\n")

    def follow(self, experience: Experience, bundle: Path, settings: ControllerSettings) -> ControllerState:
        """After the whole windows of new decisions.

        Args:
            experience: decisions; those before `through_ms` are passed over.
            bundle: for the attributes of the catalogue.
            settings: the controller's.
        """
        actions = inspect(bundle).actions
        names = [cap.attribute for cap in self.caps]
        table = dict(zip(names, attribute_table(actions, names), strict=True))
        length = round(settings.window_minutes * 60_000)
        # The window that is under way waits for its end.
        end = int(experience.time_ms.max(initial=0)) // length * length
        new = experience.between(self.through_ms, end)
        if len(new) == 0:
            return self
        windows = windows_of(new, table, settings.window_minutes)
        return ControllerState(end, control(self.caps, windows, settings))
