"""Tables and charts of comparisons for notebooks.

from scorer.learn.notebook import compare

found = compare("decisions", bundles="registry", checkpoint="fraud.checkout", versions=["3f2a", "91bc"])
found.frame()            # pandas: one row for each version, week, basis and metric
found.chart("value")     # Plotly: the lines of each version by week
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scorer.learn import settings as learn_settings
from scorer.learn.comparison.figures import charts
from scorer.learn.comparison.page import comparison_page
from scorer.learn.comparison.results import VersionComparison
from scorer.learn.comparison.running import ComparisonJob, compare_versions
from scorer.learn.comparison.versions import full_digests
from scorer.learn.displayed import data_frame, plotly_figure

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class NotebookComparison:
    """A comparison with its table and charts.

    Attributes:
        comparison: The values.
    """

    comparison: VersionComparison

    def table(self) -> pa.Table:
        """Return one row for each version, week, basis and metric, as an Arrow table."""
        return self.comparison.table()

    def frame(self) -> Any:
        """Return the table as a pandas data frame.

        Raises:
            DataError: pandas is not installed.
        """
        return data_frame(self.table())

    def chart(self, metric: str = "", *, name: str = "weeks-backtest", by: str = "version") -> Any:
        """Return a Plotly figure, which a notebook displays.

        Args:
            metric: Name of the metric; empty: the first one.
            name: `weeks-backtest`, `weeks-served`, `best` or `pairs`.
            by: What a line is drawn for: `version`, `algorithm`, `data` or `parameter:NAME`.

        Raises:
            DataError: There is no such metric, chart or group.
        """
        return plotly_figure(charts(self.comparison, metric, by), name)

    def _repr_html_(self) -> str:
        return comparison_page(self.comparison)


def compare(
    logs: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    bundles: str | PathLike[str] | Sequence[str | PathLike[str]],
    checkpoint: str,
    versions: Sequence[str],
    config: str | PathLike[str] | None = None,
    as_of_ms: int | None = None,
    cached: str | PathLike[str] | None = None,
) -> NotebookComparison:
    """Compare versions of a checkpoint over time.

    Args:
        logs: Decision logs, or tables of `scorer ship` (`delta:...`).
        bundles: Bundles, directories of bundles or registries.
        checkpoint: Name of the checkpoint.
        versions: Digests, at least four digits of each, from the oldest to the newest.
        config: `learn.toml` with `[comparison]`, `[labels]` and `[join]`; None: all defaults.
        as_of_ms: The moment, Unix time; None: now.
        cached: A JSON file that has the result of the same comparison, or receives it.

    Raises:
        DataError: The versions cannot be compared.
        LogError: No log can be read.
    """
    from scorer.log import BundleShelf
    from scorer.log.source.addresses import decision_source

    chosen = learn_settings.load(None if config is None else Path(config))
    shelf = BundleShelf([Path(one) for one in _several(bundles)])
    job = ComparisonJob(
        checkpoint,
        full_digests(versions, shelf.digests),
        int(time.time() * 1000) if as_of_ms is None else as_of_ms,
        chosen.comparison,
        chosen.labels,
        chosen.join,
    )
    file = None if cached is None else Path(cached)
    source = decision_source([str(one) for one in _several(logs)], settings=chosen.source)
    found = compare_versions(source, shelf, job, cached=file)
    if file is not None:
        found.write(file)
    return NotebookComparison(found)


def _several(
    places: str | PathLike[str] | Sequence[str | PathLike[str]],
) -> list[str | PathLike[str]]:
    return [places] if isinstance(places, str | PathLike) else list(places)
