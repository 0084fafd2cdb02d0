"""The time that each rule of a rule set needs, measured on this thread."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Final, Literal

from scorer.errors import BundleError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from scorer.bundle.columns import Rows
    from scorer.bundle.loaded import Bundle
    from scorer.bundle.rules import CompiledRules

BATCHES: Final = 100
"""Batches of each rule, unless stated otherwise."""
MOST_BATCHES: Final = 10_000
"""Greatest number of batches of each rule."""
SECONDS: Final = 5.0
"""Time limit of a measurement in seconds, unless stated otherwise."""
LONGEST: Final = 600.0
"""Greatest time limit in seconds."""


@dataclass(frozen=True, slots=True)
class RuleRows:
    """Requests on which rules are measured, ``[n]`` each.

    Attributes:
        rows: Encoded rows of the bundle's request features, ``[n, features]``.
        scores: Scores that the rules read; NaN where there is none. Ignored by an action bundle.
        seconds: Times in seconds since 1970.
        ids: Ids, on which roll-outs depend.
        source: Where the requests come from, in a few words.
    """

    rows: Rows
    scores: npt.NDArray[np.float64]
    seconds: npt.NDArray[np.int64]
    ids: Sequence[str]
    source: str


@dataclass(frozen=True, slots=True)
class PartCost:
    """The time of an evaluation of one rule, or of one value that rules read.

    The time of a rule is that of testing whether it is active, of its condition, and of its effects where it
    has some.
    """

    kind: Literal["rule", "value"]
    id: str
    """Id of the rule, or name of the value. A row of a table has an id such as `limits.row2`."""
    instructions: int
    """The greatest number of instructions that evaluating it can take."""
    median_us: float
    """Median of the batches in microseconds."""
    p99_us: float
    """99th percentile of the batches in microseconds."""
    share: float
    """Share of the median in the sum of the medians of all rules and values, 0 to 1."""
    evaluations: int
    """Number of evaluations of a batch."""


@dataclass(frozen=True, slots=True)
class RuleCosts:
    """The times of a rule set."""

    parts: Sequence[PartCost]
    """Values and rules in the order in which they are evaluated."""
    median_us: float
    """Median time of an evaluation of the whole set in microseconds. It also applies hit policies."""
    p99_us: float
    """99th percentile of the same over batches."""
    loop_us: float
    """Median time of the loop around an evaluation, which was subtracted from all times."""
    batches: int
    """Number of measured batches of each part."""
    requests: int
    """Number of requests, which take turns."""
    source: str
    """Where the requests come from, in a few words."""

    @property
    def most_expensive(self) -> list[PartCost]:
        """The parts, those with the greatest median first."""
        return sorted(self.parts, key=lambda part: -part.median_us)


def measure_rules(
    rules: CompiledRules, requests: RuleRows, *, batches: int = BATCHES, seconds: float = SECONDS
) -> RuleCosts:
    """Measure each rule of a rule set alone, and the whole set.

    A batch evaluates one rule on up to 32 requests again and again for at least 20 microseconds. Batches of
    all rules take turns, so that a slow phase of the machine affects all of them alike.

    Args:
        rules: The rules.
        requests: The requests.
        batches: Batches of each rule, 1 to 10,000.
        seconds: Time after which no further batches begin. Each rule has at least one.

    Raises:
        BundleError: A number is out of its range, or there are no requests.
    """
    import numpy as np

    if not 1 <= batches <= MOST_BATCHES:
        raise BundleError(f"batches: {batches} is out of range; choose between 1 and {MOST_BATCHES:,}")
    if not 0.0 <= seconds <= LONGEST:
        raise BundleError(f"seconds: {seconds:g} is no time limit; choose between 0 and {LONGEST:g}")
    if not len(requests.ids):
        raise BundleError("requests: there are none to measure rules on; give at least one")
    parts, whole, loop, done = rules.raw_costs(
        np.ascontiguousarray(requests.rows, dtype=np.float32),
        np.ascontiguousarray(requests.scores, dtype=np.float64),
        np.ascontiguousarray(requests.seconds, dtype=np.int64),
        list(requests.ids),
        batches,
        seconds,
    )
    return RuleCosts(
        parts=tuple(
            PartCost("rule" if is_rule else "value", name, steps, median / 1e3, p99 / 1e3, share, evaluations)
            for is_rule, name, steps, evaluations, median, p99, share in parts
        ),
        median_us=whole[0] / 1e3,
        p99_us=whole[1] / 1e3,
        loop_us=loop[0] / 1e3,
        batches=done,
        requests=len(requests.ids),
        source=requests.source,
    )


def golden_requests(directory: str | PathLike[str], bundle: Bundle) -> RuleRows:
    """Return the rows of a bundle's golden cases as requests of this moment, with the scores of the bundle.

    Args:
        directory: Directory of the bundle.
        bundle: The bundle of this directory.

    Raises:
        BundleError: The directory is not a valid bundle.
    """
    import numpy as np

    from scorer import bridge

    values: Any = np.frombuffer(bridge.golden_rows(fspath(directory)), np.float32)
    rows = values.reshape(-1, bundle.num_features)
    count = len(rows)
    scores = bundle.score(rows).scores if bundle.kind == "score" else np.full(count, np.nan)
    return RuleRows(
        rows=rows,
        scores=scores,
        seconds=np.full(count, int(time.time()), np.int64),
        ids=[f"golden-{number}" for number in range(count)],
        source=f"{count} golden cases",
    )
