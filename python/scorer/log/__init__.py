"""Reading, exporting and verifying a decision log.

A server may write the log at the same time. Only `prune`, `mark_shipped` and `erase` change a log's
directory. Importing this package loads neither numpy nor pyarrow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from scorer.log.bundles import BundleShelf
from scorer.log.erasure import erase, pseudonym
from scorer.log.outcomes import Conflict, OutcomeJoin, Reported
from scorer.log.reading import LogFinding, LogReader, LogSegment
from scorer.log.retention import Pruned, mark_shipped, prune
from scorer.log.scanning import Entry, LogScan, scan
from scorer.log.sealing import ReaderKey, SealedCounts, generate_keys
from scorer.log.summary import LogSummary, summarise

if TYPE_CHECKING:
    from scorer.log.mismatch import Mismatch
    from scorer.log.parquet import Exported, export
    from scorer.log.verification import Verification, verify

_HOMES = {
    "Exported": "scorer.log.parquet",
    "Mismatch": "scorer.log.mismatch",
    "Verification": "scorer.log.verification",
    "export": "scorer.log.parquet",
    "verify": "scorer.log.verification",
}

__all__ = [
    "BundleShelf",
    "Conflict",
    "Entry",
    "Exported",
    "LogFinding",
    "LogReader",
    "LogScan",
    "LogSegment",
    "LogSummary",
    "Mismatch",
    "OutcomeJoin",
    "Pruned",
    "ReaderKey",
    "Reported",
    "SealedCounts",
    "Verification",
    "erase",
    "export",
    "generate_keys",
    "mark_shipped",
    "prune",
    "pseudonym",
    "scan",
    "summarise",
    "verify",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
