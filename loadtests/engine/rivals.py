"""The Python calls of the peers on one thread, and a check that all evaluate the same model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from loadtests.engine.models import Rows
from loadtests.options import WORK

Predict = Callable[[Rows], Any]
# Peers add float32 leaves in a different order, and some round the margin differently.
TOLERANCE: Final = 2e-4


def xgboost(model: Any) -> Predict:
    """Return XGBoost's fastest call from Python."""
    model.set_param({"nthread": 1})
    return model.inplace_predict  # type: ignore[no-any-return]


def xgboost_margins(model: Any, rows: Rows) -> Any:
    """Return XGBoost's margins, float32 sums of leaves."""
    import xgboost as xgb

    kinds = model.feature_types
    matrix = xgb.DMatrix(rows, feature_types=kinds, enable_categorical=bool(kinds and "c" in kinds))
    return model.predict(matrix, output_margin=True)


def onnx_model(model: Any) -> Any:
    """Return an XGBoost or LightGBM model as ONNX, converted by onnxmltools."""
    import onnxmltools
    from onnxmltools.convert.common.data_types import FloatTensorType

    if hasattr(model, "model_to_string"):
        inputs = [("x", FloatTensorType([None, model.num_feature()]))]
        return onnxmltools.convert_lightgbm(model, initial_types=inputs, zipmap=False)
    inputs = [("x", FloatTensorType([None, model.num_features()]))]
    return onnxmltools.convert_xgboost(model, initial_types=inputs)


def onnxruntime(model: Any) -> Predict:
    """Return ONNX Runtime's call from Python."""
    import onnxruntime as ort

    converted = onnx_model(model)
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(converted.SerializeToString(), options, providers=["CPUExecutionProvider"])
    wanted = [output.name for output in session.get_outputs()][-1:]

    def predict(rows: Rows) -> Any:
        return session.run(wanted, {"x": rows})[0]

    return predict


def treelite(model: Any) -> Predict:
    """Return the call of Treelite's interpreter."""
    import treelite as tl

    compiled = tl.frontend.from_xgboost(model)
    return lambda rows: tl.gtil.predict(compiled, rows, nthread=1)


def tl2cgen(model: Any, folder: Path = WORK / "compiled") -> Predict:
    """Return the call of trees that were compiled as C code. The library is compiled once and kept."""
    import hashlib

    import tl2cgen as compiler
    import treelite as tl

    digest = hashlib.sha256(model.save_raw("ubj")).hexdigest()[:16]
    library = folder / f"tl2cgen-{digest}.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        compiler.export_lib(
            tl.frontend.from_xgboost(model),
            toolchain="gcc",
            libpath=library,
            params={"parallel_comp": 16},
            verbose=False,
        )
    predictor = compiler.Predictor(library, nthread=1)
    return lambda rows: predictor.predict(compiler.DMatrix(rows))


def daal4py(model: Any) -> Predict:
    """Return oneDAL's call through daal4py, on a model that daal4py converted."""
    from daal4py.mb import convert_model

    converted = convert_model(model)
    return converted.predict_proba  # type: ignore[no-any-return]


def lightgbm(model: Any) -> Predict:
    """Return LightGBM's call."""
    return lambda rows: model.predict(rows, num_threads=1)


def lleaves(model: Any, folder: Path = WORK / "compiled") -> Predict:
    """Return the call of LightGBM trees that LLVM compiled. The compiled code is kept."""
    import hashlib

    import lleaves as compiler

    text = model.model_to_string()
    folder.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    source, cache = folder / f"lleaves-{digest}.txt", folder / f"lleaves-{digest}.bin"
    source.write_text(text)
    compiled = compiler.Model(model_file=str(source))
    compiled.compile(cache=str(cache))
    return lambda rows: compiled.predict(rows, n_jobs=1)


def check(peers: Mapping[str, Predict], rows: Rows, expected: Any, model: str) -> None:
    """Compare the answers of peers with ours. Some peers return the probabilities of both classes.

    Raises:
        RuntimeError: A peer evaluates another model.
    """
    for name, predict in peers.items():
        found = np.asarray(predict(rows), dtype=np.float64).reshape(len(rows), -1)[:, -1]
        if not np.max(np.abs(found - expected.reshape(-1))) <= TOLERANCE:
            raise RuntimeError(f"{model}: {name} answered for another model")
