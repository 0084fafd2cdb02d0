"""Estimates from logged propensities, which a report shows beside the matched one."""

from __future__ import annotations

import json
from pathlib import Path

from scorer.causal.results import Bounded, LoggedEstimate
from scorer.learn.errors import DataError

_MOST_BYTES = 16 << 20


def read_logged(path: Path) -> LoggedEstimate:
    """Read the difference between two policies that `scorer learn evaluate --output` wrote.

    Raises:
        DataError: The file cannot be read, or is of another kind.
    """
    rule = "write it with `scorer learn evaluate --output`"
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise DataError(f'"{path}" has more than {_MOST_BYTES >> 20} MiB; {rule}')
        found = json.loads(path.read_bytes())
        difference = found["difference"]
        against = "the logged policy" if found["baseline"] is None else found["baseline"]["digest"][:19]
        return LoggedEstimate(
            name=f"{found['candidate']['digest'][:19]} minus {against}, doubly robust",
            difference=Bounded(
                float(difference["value"]), float(difference["low"]), float(difference["high"])
            ),
            decisions=int(found["logged"]["rows"]),
        )
    except OSError as error:
        raise DataError(f'"{path}" cannot be read: {error.strerror or error}') from None
    except (KeyError, TypeError, ValueError):
        raise DataError(f'"{path}" is no evaluation; {rule}') from None
