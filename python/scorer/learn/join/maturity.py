"""When a decision's outcome can be expected, and what its absence means.

    outcome known                       -> SETTLED (under early = "wait" only once the window has passed)
    no outcome, window not passed       -> IN_FLIGHT: never a decline
    no outcome, window passed           -> MISSING: kept and counted, never a decline either

An authorisation is final at once; a decline can still be revised, it counts until then and the revision
is a correction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scorer.bundle import Action
from scorer.learn.experience import State
from scorer.learn.join.settings import DEFAULT_FAMILY, Family, JoinSettings
from scorer.stats.arrays import Bools, Ints

HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Windows:
    """The families of a catalogue.

    Attributes:
        names: of the families, the default one last.
        family: `[K]` position in `names` of every action.
        window_ms: `[K]` milliseconds until an outcome is late.
        waits: `[K]` whether an outcome inside the window has to wait for its end.
        unused: names of rules that match no action.
    """

    names: tuple[str, ...]
    family: Ints
    window_ms: Ints
    waits: Bools
    unused: tuple[str, ...]


def windows(actions: Sequence[Action], settings: JoinSettings) -> Windows:
    """Each action's family: the first whose factors all match."""
    every = [*settings.families]
    names = (*(family.name for family in every), DEFAULT_FAMILY)
    family = np.array(
        [
            next((at for at, one in enumerate(every) if _matches(one, action)), len(every))
            for action in actions
        ],
        dtype=np.int64,
    )
    hours = np.array([*(one.hours for one in every), settings.hours])
    waits = np.array([*(one.early == "wait" for one in every), settings.early == "wait"])
    return Windows(
        names=names,
        family=family,
        window_ms=np.round(hours[family] * HOUR_MS).astype(np.int64),
        waits=waits[family],
        unused=tuple(one.name for at, one in enumerate(every) if not (family == at).any()),
    )


def states(time_ms: Ints, action: Ints, known: Bools, now_ms: int, of: Windows) -> npt.NDArray[np.int8]:
    """`[n]` of `State`.

    Args:
        time_ms: `[n]` when it was decided.
        action: `[n]` what was taken.
        known: `[n]` whether its outcome is there.
        now_ms: the moment of the join.
        of: the catalogue's windows.
    """
    passed = now_ms - time_ms >= of.window_ms[action]
    settled = known & (passed | ~of.waits[action])
    return np.where(settled, State.SETTLED, np.where(passed, State.MISSING, State.IN_FLIGHT)).astype(np.int8)


def _matches(family: Family, action: Action) -> bool:
    return all(
        action.factors.get(factor) in ((wanted,) if isinstance(wanted, str) else wanted)
        for factor, wanted in family.factors.items()
    )
