"""Serialisation of XGBoost models, which the Rust parser reads."""

from __future__ import annotations

from os import PathLike, fspath
from pathlib import Path
from typing import Any

from scorer.errors import ForestError

Source = Any  # xgboost.Booster | xgboost.XGBModel | str | PathLike[str] | bytes; xgboost stays unimported.


def model_bytes(model: Source) -> bytes:
    """Return the UBJ or JSON bytes of a booster, an estimator of the scikit-learn API, a file or bytes.

    For a booster and a file, all rounds are used, as in ``Booster.predict``. For an estimator with early
    stopping, the rounds up to the best one are used, as in ``XGBModel.predict``.

    Raises:
        ForestError: The file cannot be read or the model is not fitted.
    """
    if isinstance(model, (bytes, bytearray, memoryview)):
        return bytes(model)
    if isinstance(model, (str, PathLike)):
        try:
            return Path(fspath(model)).read_bytes()
        except OSError as error:
            raise ForestError(f"XGBoost model {fspath(model)!r}: cannot be read: {error.strerror}") from error
    try:
        booster = _booster(model)
        raw = booster.save_raw("ubj")
    except ForestError:
        raise
    except Exception as error:
        raise ForestError(f"XGBoost model: {error}; fit the model first") from error
    return bytes(raw)


def _booster(model: Source) -> Any:
    if hasattr(model, "save_raw"):
        return model
    if not hasattr(model, "get_booster"):
        raise ForestError(
            f"XGBoost model: {type(model).__name__} is no Booster, XGBModel, path or bytes; pass one of these"
        )
    booster = model.get_booster()
    # The estimator's `predict` uses the rounds up to the best one. A gblinear model cannot be sliced; it is
    # rejected later.
    best = booster.attributes().get("best_iteration")
    if best is None or getattr(model, "booster", None) == "gblinear":
        return booster
    return booster[: int(best) + 1]
