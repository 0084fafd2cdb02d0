"""XGBoost: its own bytes, read by the Rust parser."""

from __future__ import annotations

from os import PathLike, fspath
from pathlib import Path
from typing import Any

from scorer.errors import ForestError

Source = Any  # xgboost.Booster | xgboost.XGBModel | str | PathLike[str] | bytes; xgboost stays unimported.


def model_bytes(model: Source) -> bytes:
    """UBJ or JSON bytes of a booster, an estimator of the scikit-learn API, a file or bytes.

    A booster and a file stand for all of their rounds, as in ``Booster.predict``; an estimator that
    stopped early stands for the rounds up to its best one, as in ``XGBModel.predict``.

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
    # The estimator's predict() ends at the best round; only gblinear, refused later, has no rounds to cut.
    best = booster.attributes().get("best_iteration")
    if best is None or getattr(model, "booster", None) == "gblinear":
        return booster
    return booster[: int(best) + 1]
