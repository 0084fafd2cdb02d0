"""Forests: models of other libraries, converted once and evaluated bit for bit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from scorer import bridge
from scorer.errors import ForestError

if TYPE_CHECKING:
    from os import PathLike

Predictions = npt.NDArray[np.float32] | npt.NDArray[np.float64]

# Values handed over at a time: the copy on the other side stays small and in the cache.
_CHUNK: Final = 1 << 18


class Forest:
    """A tree ensemble whose results are those of the library that trained it.

    Build one with `from_xgboost`, `from_lightgbm`, `from_sklearn` or `from_treelite`; keep it with `save`
    and `load`, which need none of these libraries.
    """

    __slots__ = ("_dtype", "_handle", "_widths")

    def __init__(self, handle: bridge.Forest) -> None:
        self._handle = handle
        self._dtype = np.dtype(np.float32 if handle.is_f32 else np.float64)
        # Values per row, by whether margins are asked for.
        self._widths = (handle.num_predictions, handle.num_outputs)

    @classmethod
    def from_xgboost(cls, model: Any) -> Forest:
        """Converts an XGBoost model, read from XGBoost's own UBJ or JSON.

        Margins are bit-equal to ``Booster.predict(.., output_margin=True)``. A column of a categorical
        feature holds the category's number in the training data (its position in the dataframe's
        categories), as XGBoost itself expects it in plain arrays.

        Args:
            model: A Booster, an estimator of XGBoost's scikit-learn API (up to its best round, if it stopped
                early), the path of a ``.ubj`` or ``.json`` file, or the bytes of one.

        Raises:
            ForestError: The model cannot be read.
            UnsupportedModelError: The model uses something that is refused by name.
        """
        from scorer.importers import xgboost

        return cls(bridge.Forest.from_xgboost(xgboost.model_bytes(model)))

    @classmethod
    def from_lightgbm(cls, model: Any) -> Forest:
        """Converts a LightGBM model, read from its model text.

        Margins are equal to LightGBM's own float64 result on float32 rows, with every missing type.

        Args:
            model: A Booster, an estimator of LightGBM's scikit-learn API, a model file's path, or its text.

        Raises:
            ForestError: The model cannot be read.
            UnsupportedModelError: The model uses linear trees or an unknown objective.
        """
        from scorer.importers import lightgbm

        return cls(lightgbm.read(model).compile())

    @classmethod
    def from_sklearn(cls, model: Any) -> Forest:
        """Converts a fitted scikit-learn estimator.

        Random forests, extra trees, decision trees, gradient boosting, HistGradientBoosting (classifiers
        and regressors) and IsolationForest.

        Predictions: the value of a regressor; the probability of class 1 of a boosted binary classifier;
        probabilities per class of other classifiers; of an IsolationForest the anomaly score, which is
        ``-score_samples(X)`` (margins are summed path lengths).

        Raises:
            ForestError: The model is not fitted.
            UnsupportedModelError: The model uses something that is refused by name.
        """
        from scorer.importers import sklearn

        return cls(sklearn.read(model).compile())

    @classmethod
    def from_treelite(cls, model: Any) -> Forest:
        """Converts a Treelite model; results are those of Treelite's own GTIL.

        Treelite adds the base score last and forgets which zeros LightGBM takes as missing: prefer
        `from_xgboost` and `from_lightgbm` where the original model is at hand.

        Args:
            model: A ``treelite.Model``, the path of a checkpoint, or the bytes of one.

        Raises:
            ForestError: The model cannot be read.
            UnsupportedModelError: The model uses something that is refused by name.
        """
        from scorer.importers import treelite

        return cls(treelite.read(model).compile())

    @classmethod
    def from_bytes(cls, data: bytes) -> Forest:
        """Reads what `to_bytes` wrote; the structure is validated completely.

        Raises:
            ForestError: The bytes are no packed forest, truncated or altered.
        """
        return cls(bridge.Forest.from_bytes(data))

    def to_bytes(self) -> bytes:
        """The packed forest; equal forests give equal bytes."""
        return self._handle.to_bytes()

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Forest:
        """Reads a file that `save` wrote; the structure is validated completely.

        Raises:
            ForestError: The file cannot be read, or is no packed forest, truncated or altered.
        """
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise ForestError(f"forest {os.fspath(path)!r}: cannot be read: {error.strerror}") from error
        try:
            return cls.from_bytes(data)
        except ForestError as error:
            raise ForestError(f"forest {os.fspath(path)!r}: {error}") from error

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the packed forest; a reader sees the old file or the new one, never a part.

        Raises:
            ForestError: The file cannot be written.
        """
        target = Path(path)
        part = target.with_name(f"{target.name}.{os.getpid()}.part")
        try:
            part.write_bytes(self.to_bytes())
            part.replace(target)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise ForestError(f"forest {os.fspath(path)!r}: cannot be written: {error.strerror}") from error

    def predict(
        self,
        X: npt.ArrayLike,  # noqa: N803
        margin: bool = False,
        out: Predictions | None = None,
    ) -> Predictions:
        """Scores rows. Other Python threads run meanwhile, unless the rows take a few microseconds only.

        Args:
            X: Rows ``[n, num_features]``. float32 in C order is used as it is; other real types are rounded
                to float32 and other orders copied. NaN is a missing value. A table with Arrow's stream
                interface (pyarrow, polars) is copied by column, and its nulls are missing values.
            margin: Return raw margins, before the link.
            out: Where to write the result: an array in C order of its type and number of values.

        Returns:
            ``[n]`` where there is one value per row, else ``[n, k]``; float32 for forests that sum in
            float32 (XGBoost), float64 for others. `out` itself, if it is given.

        Raises:
            ForestError: X has another shape, a type that is not real, or finite values beyond float32, or
                `out` does not fit.
        """
        rows: npt.NDArray[Any] = X if type(X) is np.ndarray and X.ndim == 2 else self._rows(X)
        if out is None:
            width = self._widths[1 if margin else 0]
            out = np.empty(len(rows) if width == 1 else (len(rows), width), self._dtype)
        if rows.size > _CHUNK:
            self._predict_parts(self._rows(rows), margin, out)
        # False where the rows are not what the engine reads: then they are converted.
        elif not self._handle.predict(rows, margin, out):
            self._handle.predict(self._rows(rows), margin, out)
        return out

    def covers(self) -> bytes | None:
        """Content of a bundle's ``covers.bin``: the weight of the training rows that reached each node.

        None if the model does not state it, and of a forest that was read from a file.
        """
        return self._handle.covers()

    def contributions(
        self,
        X: npt.ArrayLike,  # noqa: N803
        exact: bool = True,
    ) -> npt.NDArray[np.float64]:
        """Returns the contribution of each feature to each margin.

        The contributions of a row and the last column, the expectation of the margin over the training rows,
        add up to the row's margin.

        Args:
            X: Rows ``[n, num_features]``, as for `predict`.
            exact: Compute exact Shapley values of the path-dependent game, as TreeSHAP does. Otherwise the
                feature of each split on the row's path has the change of the expectation by that split, which
                is an approximation that takes a small part of the time.

        Returns:
            ``[n, num_features + 1]`` where there is one margin per row, else
            ``[n, num_outputs, num_features + 1]``.

        Raises:
            ForestError: X is not suitable (see `predict`), or the forest has no covers.
        """
        rows = self._rows(X)
        width = self.num_features + 1
        out = np.empty((len(rows), self.num_outputs, width))
        step = max(1, _CHUNK // (self.num_outputs * width))
        for start in range(0, len(rows), step):
            self._handle.contributions(rows[start : start + step], exact, out[start : start + step])
        return out[:, 0] if self.num_outputs == 1 else out

    def _predict_parts(self, rows: npt.NDArray[np.float32], margin: bool, out: Predictions) -> None:
        if not out.flags.c_contiguous or out.size != len(rows) * self._widths[1 if margin else 0]:
            raise ForestError("out: it is not in C order, or its size is not that of the result")
        flat = out.reshape(len(rows), -1)
        step = max(1, _CHUNK // self.num_features)
        for start in range(0, len(rows), step):
            self._handle.predict(rows[start : start + step], margin, flat[start : start + step])

    def _rows(self, values: npt.ArrayLike) -> npt.NDArray[np.float32]:
        # A data frame of pandas also exports its index, so it is left to its own conversion.
        if hasattr(values, "__arrow_c_stream__") and not hasattr(values, "iloc"):
            values = self._of_columns(values)
        rows = np.asarray(values)
        expected = f"[n, {self.num_features}]"
        if rows.ndim != 2 or rows.shape[1] != self.num_features:
            hint = "; pass one row as x[None, :]" if rows.ndim == 1 else ""
            raise ForestError(f"X: shape {list(rows.shape)} is given, {expected} is expected{hint}")
        if rows.dtype.kind not in "fiub":
            raise ForestError(f"X: type {rows.dtype} is given, float32 is expected; encode it as numbers")
        if rows.dtype != np.float32:
            try:
                with np.errstate(over="raise"):
                    rows = rows.astype(np.float32)
            except FloatingPointError as error:
                raise ForestError("X: a finite value is beyond float32; scale or clip the column") from error
        return np.ascontiguousarray(rows)

    def _of_columns(self, table: Any) -> npt.NDArray[np.float32]:
        """Return the rows of an Arrow table, copied once and by column, in parts that stay in the cache."""
        import pyarrow as pa

        named = pa.table(table)
        columns = []
        for name, column in zip(named.column_names, named.columns, strict=True):
            values = column.to_numpy()  # nulls become NaN
            if values.dtype.kind not in "fiub":
                raise ForestError(f"X: column {name!r} has type {column.type}; encode it as numbers")
            columns.append(values)
        rows = np.empty((named.num_rows, len(columns)), np.float32)
        step = max(1, _CHUNK // max(1, len(columns)))
        try:
            with np.errstate(over="raise"):
                for start in range(0, len(rows), step):
                    for place, values in enumerate(columns):
                        rows[start : start + step, place] = values[start : start + step]
        except FloatingPointError as error:
            raise ForestError("X: a finite value is beyond float32; scale or clip the column") from error
        return rows

    @property
    def num_features(self) -> int:
        """Number of values in a row of features."""
        return self._handle.num_features

    @property
    def num_outputs(self) -> int:
        """Number of margins per row, one per class."""
        return self._handle.num_outputs

    @property
    def num_trees(self) -> int:
        """Trees over all outputs and rounds."""
        return self._handle.num_trees

    @property
    def num_nodes(self) -> int:
        """Nodes over all trees, leaves included."""
        return self._handle.num_nodes

    @property
    def max_depth(self) -> int:
        """Most splits between a root and a leaf."""
        return self._handle.max_depth

    @property
    def link(self) -> str:
        """Name of the function from margins to predictions."""
        return self._handle.link

    @property
    def nbytes(self) -> int:
        """Bytes that the loaded forest keeps in memory."""
        return self._handle.heap_bytes

    def __repr__(self) -> str:
        precision = "float32" if self._handle.is_f32 else "float64"
        return (
            f"Forest(trees={self.num_trees}, features={self.num_features}, outputs={self.num_outputs}, "
            f"max_depth={self.max_depth}, link={self.link!r}, precision={precision!r})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (Forest.from_bytes, (self.to_bytes(),))
