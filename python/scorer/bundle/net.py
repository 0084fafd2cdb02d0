"""Models in the ONNX format as input of a bundle: the file, and the scores of its own runtime."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from scorer.bundle.models import OnnxNode
from scorer.bundle.source import Margins
from scorer.errors import BundleError

Rows = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
MissingInput = float | Literal["nan"]

_CHUNK = 4096
"""Rows that the runtime evaluates at a time."""


@dataclass(frozen=True)
class OnnxModel:
    """A model in the ONNX format, with the settings of its node."""

    model: str | PathLike[str] | bytes
    """Path of the file, or its content."""
    missing: MissingInput | None = None
    """What the model reads in place of missing values: a number, or "nan" if it handles them itself.

    Needed if a column may be missing."""
    link: Literal["identity", "sigmoid"] = "identity"
    """Function from the model's output to the score; "sigmoid" for a model that gives logits."""
    index: int | None = None
    """Which value of the model's output is the score; None for the only one, or the second one of two."""


@dataclass(frozen=True)
class NetSource:
    """An ONNX model and the function that computes its output for golden cases."""

    content: bytes
    settings: OnnxModel
    columns: tuple[str, ...]
    """Names of the columns of a row that the model reads."""
    margins: Margins | None = None
    """Function from rows to outputs ``[n]`` that takes the place of ONNX Runtime."""

    def expected(self, rows: Rows) -> Doubles:
        """Return the model's outputs ``[n, 1]``, computed by ONNX Runtime on one thread.

        Args:
            rows: Transformed rows ``[n, columns]``.

        Raises:
            BundleError: ONNX Runtime is not installed, or it refuses the model or the rows.
        """
        if self.margins is not None:
            outputs = np.asarray(self.margins(rows))
        else:
            missing = self.settings.missing
            if missing is not None and missing != "nan":
                rows = np.where(np.isnan(rows), np.float32(missing), rows)
            chunks = [self._outputs(rows[at : at + _CHUNK]) for at in range(0, len(rows), _CHUNK)]
            outputs = np.concatenate(chunks)
        return outputs.reshape(len(rows), 1).astype(np.float64)

    def node(self, number: int, row: str, *, link: bool) -> OnnxNode:
        """Return the program node of the model.

        Args:
            number: Number of the model in the bundle: 0 for the first one.
            row: The row slot.
            link: Whether the node computes the link. A sigmoid calibration takes its place.
        """
        return OnnxNode(
            file=f"member-{number:02}.onnx" if number else "model.onnx",
            input=row,
            output=f"probability-{number:02}" if number else "probability",
            index=self.settings.index,
            link=self.settings.link if link else "identity",
            missing=self.settings.missing,
        )

    def splits(self) -> Iterator[tuple[int, float]]:
        """Yield nothing: a net has no thresholds."""
        yield from ()

    def _outputs(self, rows: Rows) -> npt.NDArray[np.float32]:
        session, output, single_rows = self._session
        inputs = [one.name for one in session.get_inputs()]
        parts = [rows[at : at + 1] for at in range(len(rows))] if single_rows else [rows]
        found = []
        for part in parts:
            if len(inputs) == 1:
                feed = {inputs[0]: np.ascontiguousarray(part)}
            else:
                at = {name: number for number, name in enumerate(self.columns)}
                feed = {name: np.ascontiguousarray(part[:, [at[name]]]) for name in inputs}
            try:
                values = np.asarray(session.run([output], feed)[0])
            except Exception as error:
                raise _refused(error) from None
            values = values.reshape(len(part), -1)
            index = self.settings.index
            found.append(values[:, values.shape[1] - 1 if index is None else index])
        return np.concatenate(found)

    @cached_property
    def _session(self) -> tuple[Any, str, bool]:
        """The runtime's session, the output that is the score, and whether it takes one row at a time."""
        try:
            import onnxruntime
        except ModuleNotFoundError:
            raise BundleError(
                "onnxruntime is not installed; it computes the golden cases of an ONNX model: install the "
                "package onnxruntime, or pass `margins`"
            ) from None
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        try:
            session = onnxruntime.InferenceSession(self.content, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise _refused(error) from None
        scores = [output.name for output in session.get_outputs() if output.type == "tensor(float)"]
        return session, scores[0], session.get_inputs()[0].shape[0] == 1


def is_net(model: Any) -> bool:
    """Return whether a model is in the ONNX format: an `OnnxModel`, or a path with the ending ".onnx"."""
    return isinstance(model, OnnxModel) or (
        isinstance(model, (str, PathLike)) and Path(fspath(model)).suffix == ".onnx"
    )


def open_net(model: Any, columns: tuple[str, ...], margins: Margins | None = None) -> NetSource:
    """Read a model in the ONNX format. The engine checks it when the bundle is drafted.

    Args:
        model: A model for which `is_net` is true.
        columns: Names of the columns of a row that the model reads.
        margins: Function from rows to outputs that golden cases are compared with, instead of ONNX Runtime.

    Raises:
        BundleError: The file cannot be read.
    """
    settings = model if isinstance(model, OnnxModel) else OnnxModel(model)
    if isinstance(settings.model, bytes):
        return NetSource(settings.model, settings, columns, margins)
    path = Path(fspath(settings.model))
    try:
        return NetSource(path.read_bytes(), settings, columns, margins)
    except OSError as error:
        raise BundleError(
            f'model "{path}" cannot be read: {error.strerror}; give the path of an .onnx file'
        ) from None


def _refused(error: Exception) -> BundleError:
    reason = " ".join(str(error).split())[:300]
    return BundleError(f"ONNX Runtime refuses the model: {reason}; export it again")
