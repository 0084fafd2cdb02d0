"""Ray Serve with a gRPC ingress: `ray_app.py MODEL.ubj GRPC_PORT HTTP_PORT`. It runs until it is killed."""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
import ray
import xgboost as xgb
from ray import serve
from ray.serve.config import gRPCOptions

from scorer.v1 import scoring_pb2

SERVICER = "scorer.v1.scoring_pb2_grpc.add_ScoringServiceServicer_to_server"


@serve.deployment(num_replicas=1, max_ongoing_requests=1000, ray_actor_options={"num_cpus": 0})
class Scoring:
    """The deployment, with the one method that is measured."""

    def __init__(self, model: str) -> None:
        self.model = xgb.Booster({"nthread": 1}, model_file=model)

    async def Score(self, request: Any) -> Any:  # noqa: N802 - as the protocol names it
        """Answer a request of one row."""
        row = np.array(request.dense.values, dtype=np.float32)[None]
        score = float(self.model.inplace_predict(row)[0])
        return scoring_pb2.ScoreResponse(score=score, decision="review")


def main(model: str, grpc_port: str, http_port: str) -> None:
    """Start Ray on this machine and serve."""
    ray.init(
        _node_ip_address="127.0.0.1",
        num_cpus=1,
        include_dashboard=False,
        object_store_memory=100 << 20,
        log_to_driver=False,
    )
    serve.start(
        http_options={"host": "127.0.0.1", "port": int(http_port)},
        grpc_options=gRPCOptions(port=int(grpc_port), grpc_servicer_functions=[SERVICER]),
    )
    serve.run(Scoring.bind(model), name="scoring", route_prefix="/")
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main(*sys.argv[1:])
