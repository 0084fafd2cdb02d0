"""What results in notebooks share: the table as a data frame, and charts that are displayed."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from scorer.figure import Figure
from scorer.learn.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa


def data_frame(table: pa.Table) -> Any:
    """Return a table as a pandas data frame.

    Raises:
        DataError: pandas is not installed.
    """
    if find_spec("pandas") is None:
        raise DataError("pandas is not installed; install it, or use table(), which is Arrow")
    return table.to_pandas()


def plotly_figure(charts: Iterable[Figure], name: str) -> Any:
    """Return the chart with a name as a Plotly figure, which a notebook displays.

    Raises:
        DataError: There is no such chart.
    """
    import plotly.graph_objects as go

    made = {one.name: one for one in charts}
    if name not in made:
        raise DataError(f'there is no chart "{name}"; there are {", ".join(made) or "none"}')
    return go.Figure(made[name].plotly).update_layout(title=made[name].title)
