"""Loader of MLflow's pyfunc flavour: a bundle as a model of MLflow, with a server's answers.

MLflow imports this module in its own process (`scorer.registry.mlflow.flavour`). Rows are scored by
`scorer.batch`, so results have the bits of a server's answers.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from os import PathLike
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from scorer.batch.scoring import BatchColumns, BatchScorer
from scorer.bundle.check import read_schema, verify
from scorer.errors import BatchError
from scorer.registry.mlflow.flavour import REASONS, RoleColumns, needs_id

if TYPE_CHECKING:
    import pandas as pd

_WHERE: Final = "the data frame"
_SCORERS: Final = 16
"""Most combinations of parameters whose scorers are kept."""


class BundleModel:
    """A verified bundle with the interface of a pyfunc model. It is safe to use from several threads.

    Args:
        path: The bundle's directory.

    Raises:
        BundleError: The bundle is not valid.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.bundle = verify(path)
        self._features = read_schema(path).features
        self._roles = RoleColumns.beside(self._features)
        # The options are bounded by the caller's parameters, and each scorer shares the bundle.
        self._scorer = lru_cache(_SCORERS)(lambda columns: BatchScorer(self.bundle, path, columns))

    def predict(self, data: pd.DataFrame, params: Mapping[str, Any] | None = None) -> pd.DataFrame:
        """Score rows, or draw an action for each.

        Args:
            data: One column for each feature; columns of features that may be missing can be left out. An
                action bundle, or one with rules for a share of the requests, needs ``request_id``. An action
                bundle reads ``eligible``, a list of action ids for each row, if it is there.
            params: ``checkpoint``, the checkpoint of the draw, which an action bundle needs; ``reasons``,
                the number of reasons; ``bad_rows``, ``fail`` or ``null``; ``at``, the time in seconds since
                1970 that rules see, 0 for the time of the call.

        Returns:
            One row for each row, with the columns of docs/batch.md.

        Raises:
            BatchError: A column is missing or has a wrong type, a parameter is wrong, or a row is refused.
        """
        given = dict(params or {})
        at = _whole(given, "at", 0) or int(time.time())
        table = self._table(data)
        scorer = self._scorer(self._columns(given, table.schema)).for_run(at, joins_lists=False)
        scorer.check(table.schema, _WHERE)
        return _frame(scorer.score(table), data.index)

    def _columns(self, params: Mapping[str, Any], schema: pa.Schema) -> BatchColumns:
        """Return the options of the batch scorer for the parameters of a call."""
        is_action = self.bundle.kind == "action"
        checkpoint = str(params.get("checkpoint") or "")
        if is_action and not checkpoint:
            raise BatchError(
                "the action is drawn for a checkpoint, and none is given; call predict with params={"
                '"checkpoint": "NAME"}, or send "params" beside the rows'
            )
        bad_rows = str(params.get("bad_rows") or "fail")
        if bad_rows not in ("fail", "null"):
            raise BatchError(f'bad_rows "{bad_rows}": it is "fail" or "null"; correct the parameter')
        return BatchColumns(
            id=self._roles.id if needs_id(self.bundle) else None,
            checkpoint=checkpoint if is_action else None,
            eligible=self._roles.eligible if self._roles.eligible in schema.names and is_action else None,
            pmf=is_action,
            reasons=_whole(params, "reasons", REASONS if self.bundle.explains else 0),
            bad_rows="null" if bad_rows == "null" else "fail",
        )

    def _table(self, data: pd.DataFrame) -> pa.RecordBatch:
        """Return the columns that are read. A column without any value counts as absent."""
        optional = {one.name for one in self._features if one.missing == "allow"} | {self._roles.eligible}
        names = [one.name for one in self._features]
        if needs_id(self.bundle):
            names.append(self._roles.id)
        if self.bundle.kind == "action":
            names.append(self._roles.eligible)
        present = set(map(str, data.columns))
        arrays: dict[str, pa.Array] = {}
        for name in names:
            if name in present:
                arrays[name] = _array(data, name)
            elif name in optional:
                arrays[name] = pa.nulls(len(data))
        eligible = arrays.get(self._roles.eligible)
        if eligible is not None and eligible.null_count == len(eligible):
            del arrays[self._roles.eligible]
        return pa.RecordBatch.from_pydict(arrays)


def _load_pyfunc(path: str, model_config: Mapping[str, Any] | None = None) -> BundleModel:
    """Load the bundle at a path. MLflow calls this function by its name.

    Args:
        path: The bundle's directory.
        model_config: Not used; MLflow passes it if the caller gives one.
    """
    del model_config
    return BundleModel(path)


def _array(data: pd.DataFrame, name: str) -> pa.Array:
    column = data[name]
    if column.ndim != 1:
        raise BatchError(f'column "{name}": {_WHERE} has several columns of this name; rename all but one')
    try:
        found = pa.Array.from_pandas(column)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise BatchError(
            f'column "{name}": its values do not have one type ({str(error).splitlines()[0]}); convert it'
        ) from None
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def _frame(result: pa.RecordBatch, index: Any) -> pd.DataFrame:
    """Return results as a data frame, with None and not NaN where a value is missing, and lists as lists."""
    import pandas as pd

    columns: dict[str, Sequence[Any]] = {}
    for name, column in zip(result.schema.names, result.columns, strict=True):
        is_plain = pa.types.is_floating(column.type) and not column.null_count
        columns[name] = (
            column.to_numpy() if is_plain else pd.Series(column.to_pylist(), dtype=object, index=index)
        )
    return pd.DataFrame(columns, index=index)


def _whole(params: Mapping[str, Any], name: str, default: int) -> int:
    value = params.get(name, default)
    try:
        return int(value)
    except (TypeError, ValueError):
        raise BatchError(f'{name} "{value}": it is a whole number; correct the parameter') from None
