"""A BentoML service: `bentoml serve bento_app:Scoring`, with MODEL in the environment."""

from __future__ import annotations

import os

import bentoml
import numpy as np
import xgboost as xgb


@bentoml.service(workers=1, logging={"access": {"enabled": False}}, metrics={"enabled": False})
class Scoring:
    """The one method that is measured."""

    def __init__(self) -> None:
        self.model = xgb.Booster({"nthread": 1}, model_file=os.environ["MODEL"])

    @bentoml.api
    async def predict(self, rows: list[list[float | None]]) -> list[float]:
        """One row, or several."""
        found: list[float] = self.model.inplace_predict(np.array(rows, dtype=np.float32)).tolist()
        return found
