"""Tables and charts of an analysis for notebooks.

from scorer.causal.notebook import delta_cv

found = delta_cv("values.parquet", task="task.toml")
found.frame()                 # pandas: one row for each cohort and horizon; table() is Arrow
found.chart("difference")     # Plotly: the difference by month
found.result.verdict          # "reliable" or "unreliable"
"""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scorer.causal.analysis import delta_cv as analyse
from scorer.causal.figures import causal_charts
from scorer.causal.page import causal_page
from scorer.causal.results import DeltaCV
from scorer.causal.settings import CausalSettings, load
from scorer.learn.displayed import data_frame, plotly_figure

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class NotebookDeltaCV:
    """An analysis with its table and charts.

    Attributes:
        result: The values.
    """

    result: DeltaCV

    def table(self) -> pa.Table:
        """Return one row for each cohort and horizon, as an Arrow table."""
        return self.result.table()

    def frame(self) -> Any:
        """Return the table as a pandas data frame.

        Raises:
            DataError: pandas is not installed.
        """
        return data_frame(self.table())

    def chart(self, name: str = "difference") -> Any:
        """Return a Plotly figure, which a notebook displays.

        Args:
            name: `path`, `difference`, `methods`, `balance`, `cohorts` or `chains`.

        Raises:
            DataError: There is no such chart.
        """
        return plotly_figure(causal_charts(self.result), name)

    def _repr_html_(self) -> str:
        return causal_page(self.result)


def delta_cv(
    data: str | PathLike[str] | pa.Table,
    *,
    task: str | PathLike[str] | CausalSettings | None = None,
    adoptions: str | PathLike[str] | pa.Table | None = None,
) -> NotebookDeltaCV:
    """Estimate what adopting a product is worth.

    Args:
        data: Parquet or CSV file, directory of Parquet files, or Arrow table: one row per unit and month.
        task: File of the task, or its settings; None: all defaults.
        adoptions: Table of adoptions; None: the one of the task, or a column of `data`.

    Raises:
        DataError: A table cannot be read, or breaks a rule that rejects it.
    """
    settings = task if isinstance(task, CausalSettings) or task is None else load(Path(task))
    return NotebookDeltaCV(
        analyse(_place(data), settings, adoptions=None if adoptions is None else _place(adoptions))
    )


def _place(given: Any) -> Any:
    return Path(given) if isinstance(given, str | PathLike) else given
