"""The grammar of gates (docs/gates.md). An error names the field, the rule and a valid value."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator

from scorer.durations import parse_duration
from scorer.release.errors import InvalidError
from scorer.release.gates.names import METRICS, QUANTITIES, MetricForm
from scorer.release.model import GateSpec

COMPARISONS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "<=": operator.le,
    "<": operator.lt,
    ">=": operator.ge,
    ">": operator.gt,
    "==": operator.eq,
    "!=": operator.ne,
}
UNITS: Final = {
    "time": {"us": 1.0, "µs": 1.0, "ms": 1e3, "s": 1e6, "": 1.0},
    "share": {"%": 0.01, "": 1.0},
    "number": {"": 1.0},
    "distance": {"": 1.0},
}
_OP = r"(?P<op><=|>=|==|!=|<|>)"
_SUCCESS = re.compile(
    rf"(?P<abs>abs\s+)?{_OP}\s*(?P<limit>.+?)(?:\s+(?P<side>upper|lower)(?P<level>\d{{2}}(?:\.\d+)?))?"
)
_NUMBER = r"[-+]?(?:\d+(?:_\d+)*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_LIMIT = re.compile(rf"(?P<number>{_NUMBER})?\s*(?P<unit>[a-zµ%]*)")
_THRESHOLD = re.compile(r"threshold\(\s*(?P<arguments>[^()]*)\)")
_ARGUMENT = re.compile(rf"(?P<name>alpha|floor)\s*=\s*(?P<value>{_NUMBER})")
_WHEN = re.compile(rf"(?P<quantity>[a-z_]+)\s*{_OP}\s*(?P<number>{_NUMBER})\s*(?P<unit>%?)")


@dataclass(frozen=True, slots=True)
class Limit:
    """The limit that a value is compared with."""

    number: float = 0.0
    """The limit in the metric's unit, or the multiple of the SLA."""
    of_sla: bool = False
    of_chance: bool = False
    """Whether the limit is the larger of `floor` and the value that two samples of one population exceed with
    probability `alpha`."""
    alpha: float | None = None
    """The probability; None: the gate's part of the false-alarm rate."""
    floor: float = 0.0


@dataclass(frozen=True, slots=True)
class Success:
    """The condition under which a gate passes."""

    comparison: str
    limit: Limit
    absolute: bool = False
    side: str = ""
    """The bound of the value that is compared with the limit, `upper` or `lower`; empty: the value itself."""
    confidence: float = 0.0
    """One-sided confidence of the bound."""

    def holds(self, value: float, limit: float) -> bool:
        """Return whether a number satisfies the comparison."""
        return COMPARISONS[self.comparison](value, limit)

    @property
    def is_upper(self) -> bool:
        """Whether the limit is an upper limit."""
        return self.comparison in ("<", "<=")


@dataclass(frozen=True, slots=True)
class When:
    """The condition under which a gate applies."""

    quantity: str
    comparison: str
    number: float

    def holds(self, value: float) -> bool:
        """Return whether the gate applies for a value of the quantity."""
        return COMPARISONS[self.comparison](value, self.number)


@dataclass(frozen=True, slots=True)
class Gate:
    """A gate that was parsed from its specification."""

    spec: GateSpec
    names: MetricForm
    against: str
    success: Success
    when: When | None


def read(spec: GateSpec, *, where: str = "gate", backtest: bool = False) -> Gate:
    """Parse one gate.

    Args:
        spec: The gate as it is written.
        where: Prefix of error messages.
        backtest: Whether it is a gate of a backtest, and not of observations.

    Raises:
        InvalidError: The gate is not valid. The message names the field, the rule and a valid value.
    """
    names = METRICS.get(spec.metric)
    if names is None or names.backtest != backtest:
        known = ", ".join(name for name, form in METRICS.items() if form.backtest == backtest)
        raise _wrong(where, "metric", f'"{spec.metric}" is not known; there are {known}')
    against = spec.against or names.against[0]
    if against not in names.against:
        known = ", ".join(f'"{one}"' if one else "nothing" for one in names.against)
        raise _wrong(where, "against", f'{spec.metric} is not held against "{spec.against}"; write {known}')
    if spec.minus and spec.minus != names.minus:
        remedy = f'write "{names.minus}" or nothing' if names.minus else "leave it out"
        raise _wrong(where, "minus", f'"{spec.minus}" cannot be taken off {spec.metric}; {remedy}')
    gate = Gate(spec, names, against, _success(spec, names, where), _when(spec.when, where))
    _check_intervals(spec, names, where)
    return gate


def read_all(specs: Sequence[GateSpec], *, where: str = "gates", backtest: bool = False) -> tuple[Gate, ...]:
    """Parse several gates. Each metric may occur once, because waivers refer to the metric.

    Args:
        specs: The gates as they are written.
        where: Prefix of error messages.
        backtest: Whether they are gates of a backtest.

    Raises:
        InvalidError: A gate is not valid, or a metric occurs twice.
    """
    gates = tuple(read(spec, where=f"{where}[{at}]", backtest=backtest) for at, spec in enumerate(specs))
    seen: set[str] = set()
    for at, spec in enumerate(specs):
        if spec.metric in seen:
            raise _wrong(f"{where}[{at}]", "metric", f"{spec.metric} is judged twice; keep one line of it")
        seen.add(spec.metric)
    return gates


def _interval_in_words(entry: Any) -> Any:
    """Replace `interval`, which may be written as "5m", by `interval_seconds`."""
    if not isinstance(entry, Mapping) or "interval" not in entry:
        return entry
    own = dict(entry)
    try:
        own["interval_seconds"] = duration(own.pop("interval"))
    except InvalidError as error:
        raise ValueError(str(error)) from None
    return own


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _understood(specs: tuple[GateSpec, ...], backtest: bool = False) -> tuple[GateSpec, ...]:
    try:
        read_all(specs, backtest=backtest)
    except InvalidError as error:
        raise ValueError(str(error)) from None
    return specs


if TYPE_CHECKING:
    Gates = tuple[GateSpec, ...]
    BacktestGates = tuple[GateSpec, ...]
else:
    _Tables = Annotated[
        tuple[Annotated[GateSpec, BeforeValidator(_interval_in_words)], ...], BeforeValidator(_as_tuple)
    ]
    Gates = Annotated[_Tables, AfterValidator(_understood)]
    """Type of gates in a settings file: tables, which are checked against the grammar when they are read."""
    BacktestGates = Annotated[_Tables, AfterValidator(partial(_understood, backtest=True))]
    """Type of a backtest's gates in a settings file."""


def _success(spec: GateSpec, names: MetricForm, where: str) -> Success:
    found = _SUCCESS.fullmatch(spec.success.strip())
    if found is None:
        raise _wrong(
            where,
            "success",
            f'"{spec.success}" is no comparison; write for instance "{names.example}"',
        )
    comparison = found["op"]
    absolute = found["abs"] is not None
    limit = _limit(found["limit"].strip(), spec, names, where)
    side, confidence = found["side"] or "", float(found["level"] or 0) / 100
    if not side and names.always_bound and comparison in ("<", "<=", ">", ">="):
        side, confidence = "upper" if comparison in ("<", "<=") else "lower", 0.95
    if side:
        _check_side(side, confidence, comparison, spec, names, where)
    if absolute and (comparison not in ("<", "<=") or limit.number < 0):
        raise _wrong(where, "success", 'abs goes with "<" or "<=" and a number that is not negative')
    return Success(comparison, limit, absolute, side, confidence)


def _check_side(
    side: str, confidence: float, comparison: str, spec: GateSpec, names: MetricForm, where: str
) -> None:
    if not names.has_bounds:
        raise _wrong(where, "success", f"{spec.metric} has no interval; leave {side} out")
    if not 0.5 < confidence < 1:
        raise _wrong(where, "success", f"{side} goes with a confidence from 51 to 99.9; write {side}95")
    if {"upper": ("<", "<="), "lower": (">", ">=")}[side].count(comparison) == 0:
        other = "lower" if side == "upper" else "upper"
        raise _wrong(
            where,
            "success",
            f'the {side} bound does not show that a value is "{comparison}" anything; write {other}95',
        )


def _limit(text: str, spec: GateSpec, names: MetricForm, where: str) -> Limit:
    if found := _THRESHOLD.fullmatch(text):
        if names.unit != "distance":
            raise _wrong(
                where, "success", f"threshold(...) is for PSI, not for {spec.metric}; write a number"
            )
        return _chance(found["arguments"], where)
    found = _LIMIT.fullmatch(text)
    if found is None:
        raise _wrong(where, "success", f'"{text}" is no number; write for instance "{names.example}"')
    number = 1.0 if found["number"] is None else float(found["number"])
    if not math.isfinite(number):
        raise _wrong(where, "success", f'"{text}" is not finite; write a number')
    unit = found["unit"]
    if unit == "sla":
        if names.unit != "time":
            raise _wrong(where, "success", f"{spec.metric} is no time; write a number instead of the SLA")
        if number <= 0:
            raise _wrong(where, "success", f'"{text}" is not above 0; write for instance "0.8 sla"')
        return Limit(number, of_sla=True)
    units = UNITS[names.unit]
    if found["number"] is None or unit not in units:
        known = ", ".join(f'"{one}"' for one in units if one) or "none"
        raise _wrong(where, "success", f'"{text}" is no number of {spec.metric}; its units are {known}')
    return Limit(number * units[unit])


def _chance(arguments: str, where: str) -> Limit:
    given: dict[str, float] = {}
    for argument in filter(None, (part.strip() for part in arguments.split(","))):
        found = _ARGUMENT.fullmatch(argument)
        if found is None or found["name"] in given:
            raise _wrong(
                where, "success", f'"{argument}" is not understood; write threshold(alpha=0.01, floor=0.1)'
            )
        given[found["name"]] = float(found["value"])
    alpha, floor = given.get("alpha"), given.get("floor", 0.0)
    if alpha is not None and not 0 < alpha < 1:
        raise _wrong(where, "success", f"alpha = {alpha:g} is no probability; write for instance alpha=0.01")
    if floor < 0:
        raise _wrong(where, "success", f"floor = {floor:g} is negative; write for instance floor=0.1")
    return Limit(of_chance=True, alpha=alpha, floor=floor)


def _when(text: str, where: str) -> When | None:
    if not text.strip():
        return None
    found = _WHEN.fullmatch(text.strip())
    if found is None or found["quantity"] not in QUANTITIES:
        raise _wrong(
            where,
            "when",
            f'"{text}" is not understood; write for instance "labels_matured >= 0.8" '
            f"(there are {', '.join(QUANTITIES)})",
        )
    number = float(found["number"]) * (0.01 if found["unit"] else 1.0)
    return When(found["quantity"], found["op"], number)


def _check_intervals(spec: GateSpec, names: MetricForm, where: str) -> None:
    if (spec.interval_seconds > 0) != (spec.count > 0):
        missing = "count" if spec.interval_seconds else "interval"
        raise _wrong(where, missing, 'interval and count go together; write interval = "5m" and count = 12')
    if spec.interval_seconds and not names.by_interval:
        raise _wrong(
            where, "interval", f"{spec.metric} is judged over everything; leave interval and count out"
        )
    if not spec.count and (spec.failure_limit or spec.inconclusive_limit):
        raise _wrong(where, "failure_limit", "limits count intervals; write interval and count too")
    if spec.count and max(spec.failure_limit, spec.inconclusive_limit) >= spec.count:
        raise _wrong(where, "failure_limit", f"limits must be below count = {spec.count}")


def duration(value: Any, *, where: str = "gate") -> int:
    """Return the seconds of a duration such as "90s", "5m", "2h", "1d" or a number of seconds.

    Raises:
        InvalidError: The value is not a duration, or less than 1 s.
    """
    is_given = isinstance(value, (str, int, float)) and not isinstance(value, bool)
    seconds = parse_duration(str(value).strip()) if is_given else None
    if seconds is None or seconds < 1:
        raise _wrong(where, "interval", f'{value!r} is no duration of a second or more; write "5m"')
    return round(seconds)


def _wrong(where: str, field: str, rule: str) -> InvalidError:
    return InvalidError(f"{where}{'.' if field else ''}{field}: {rule}")
