"""What became different since an earlier join of the same log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scorer.learn.experience import Experience, State

if TYPE_CHECKING:
    from collections.abc import Mapping

REVISED, LATE, SETTLED, EXPIRED, LOST, GONE = "revised", "late", "settled", "expired", "lost", "gone"

MEANINGS: Mapping[str, str] = {
    REVISED: "the reward changed: what was trained on was corrected",
    LATE: "an outcome came after its window had passed",
    SETTLED: "was in flight, its outcome is known now",
    EXPIRED: "was in flight, its window has passed without an outcome",
    LOST: "had a reward and has none any more: the log lost it, or the settings changed",
    GONE: "is in the earlier join and not in this one",
}
"""Kinds of corrections; the first two touch what an earlier generation may have learned from."""


@dataclass(frozen=True)
class Correction:
    """One decision that is known differently now.

    Attributes:
        decision_id: which.
        kind: a key of `MEANINGS`.
        time_ms: when it was decided.
        before: its reward then; None: it had none.
        after: its reward now; None: it has none.
        settled_ms: when the reward of now became known; -1: there is none.
    """

    decision_id: str
    kind: str
    time_ms: int
    before: float | None
    after: float | None
    settled_ms: int


def corrections(earlier: Experience, now: Experience) -> list[Correction]:
    """Compares two joins by decision id, in the order of the earlier one.

    Decisions that only the later join has are new, not corrected.
    """
    position = {name: at for at, name in enumerate(now.decision_id.tolist())}
    found = []
    for at, name in enumerate(earlier.decision_id.tolist()):
        to = position.get(name)
        kind = GONE if to is None else _kind(earlier, at, now, to)
        if kind is None:
            continue
        found.append(
            Correction(
                decision_id=name,
                kind=kind,
                time_ms=int(earlier.time_ms[at]),
                before=_reward(earlier, at),
                after=None if to is None else _reward(now, to),
                settled_ms=-1 if to is None else int(now.settled_ms[to]),
            )
        )
    return found


def counts(found: Sequence[Correction]) -> dict[str, int]:
    """How many of each kind, in the order of their meaning."""
    by_kind = Counter(one.kind for one in found)
    return {kind: by_kind[kind] for kind in MEANINGS if by_kind[kind]}


def write(found: Sequence[Correction], path: Path) -> None:
    """Writes them to a Parquet file, one row each."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from scorer.learn.errors import DataError

    schema = pa.schema(
        [
            ("decision_id", pa.string()),
            ("kind", pa.string()),
            ("time_ms", pa.int64()),
            ("before", pa.float64()),
            ("after", pa.float64()),
            ("settled_ms", pa.int64()),
        ]
    )
    try:
        pq.write_table(pa.Table.from_pylist([asdict(one) for one in found], schema=schema), path)
    except OSError as error:
        raise DataError(f"corrections {path}: cannot be written ({error.strerror or error})") from error


def _kind(earlier: Experience, at: int, now: Experience, to: int) -> str | None:
    before, after = State(int(earlier.state[at])), State(int(now.state[to]))
    if before == after:
        revised = before == State.SETTLED and earlier.reward[at] != now.reward[to]
        return REVISED if revised else None
    if after == State.SETTLED:
        return LATE if before == State.MISSING else SETTLED
    if before == State.SETTLED:
        return LOST
    return EXPIRED if after == State.MISSING else LOST


def _reward(experience: Experience, at: int) -> float | None:
    return float(experience.reward[at]) if experience.state[at] == State.SETTLED else None
