"""A typical grpc.aio server in front of an engine: `grpc_aio.py xgboost|scorer MODEL.ubj`.

It prints its address when it is ready.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import uvloop

from scorer.v1 import scoring_pb2, scoring_pb2_grpc


def engine(name: str, model: str) -> Callable[[Any], Any]:
    """Return the function that converts one or several rows to probabilities."""
    if name == "scorer":
        from pathlib import Path

        from scorer import Forest

        return Forest.from_xgboost(Path(model).read_bytes()).predict
    import xgboost as xgb

    return xgb.Booster({"nthread": 1}, model_file=model).inplace_predict


class Scoring(scoring_pb2_grpc.ScoringServiceServicer):
    """The service, with the one method that is measured."""

    def __init__(self, predict: Callable[[Any], Any]) -> None:
        self.predict = predict

    async def Score(  # noqa: N802 - as the protocol names it
        self, request: scoring_pb2.ScoreRequest, context: Any
    ) -> scoring_pb2.ScoreResponse:
        """Answer a request of one row."""
        row = np.array(request.dense.values, dtype=np.float32)[None]
        return scoring_pb2.ScoreResponse(score=float(self.predict(row)[0]), decision="review")


async def serve(name: str, model: str) -> None:
    """Serve until the process is killed."""
    server = grpc.aio.server()
    scoring_pb2_grpc.add_ScoringServiceServicer_to_server(Scoring(engine(name, model)), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    sys.stdout.write(f"127.0.0.1:{port}\n")
    sys.stdout.flush()
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(serve(*sys.argv[1:]))
