"""Tables of shipped logs, for tests of what reads them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scorer.log.source.addresses import decision_source
from scorer.log.source.interface import DecisionSource
from scorer.ship.delta import DeltaSink
from scorer.ship.settings import DeltaSection
from scorer.ship.source import LogSource


def ship_logs(
    logs: Mapping[str, Path],
    lake: Path,
    *,
    records: int = 7,
    batches: int = 100_000,
    accept_new_log: bool = False,
) -> None:
    """Deliver the records of logs that the tables lack.

    Args:
        logs: Directories by server id.
        lake: Directory of the tables.
        records: Records of one delivery.
        batches: Largest number of deliveries of each log.
        accept_new_log: Whether a log may replace that of its server.
    """
    for server, directory in logs.items():
        sink = DeltaSink(DeltaSection(url=str(lake)), server)
        source = LogSource(
            directory, server, max_records=records, max_bytes=1 << 20, accept_new_log=accept_new_log
        )
        position = sink.open()
        for _ in range(batches):
            batch = source.read(position)
            if batch is None:
                break
            sink.deliver(batch)
            position = batch.end
        source.forget()
        sink.close()


def lake_source(lake: Path, **settings: Any) -> DecisionSource:
    """The source of the tables in a directory."""
    from scorer.log.source.settings import SourceSettings

    return decision_source([f"delta:{lake}"], settings=SourceSettings(**settings))
