"""A BentoML service. Start it with `bentoml serve bento_app:Scoring` and the path of the model in MODEL."""

from __future__ import annotations

import os

import bentoml
import numpy as np
import xgboost as xgb


@bentoml.service(workers=1, logging={"access": {"enabled": False}}, metrics={"enabled": False})
class Scoring:
    """The service, with the one method that is measured."""

    def __init__(self) -> None:
        self.model = xgb.Booster({"nthread": 1}, model_file=os.environ["MODEL"])

    @bentoml.api
    async def predict(self, rows: list[list[float | None]]) -> list[float]:
        """Return the probabilities of one or several rows."""
        found: list[float] = self.model.inplace_predict(np.array(rows, dtype=np.float32)).tolist()
        return found
