"""Calls a server with KServe's Python client; as `call_triton`, and a process of its own for its reason."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Awaitable
from typing import Any

import grpc
import numpy as np
from kserve import InferenceGRPCClient
from kserve.protocol.grpc import grpc_predict_v2_pb2 as pb
from kserve.protocol.infer_type import InferInput, InferRequest, RequestedOutput

FRAUD, ACTION = "fraud.checkout", "action.authorise"


def plain(output: Any) -> Any:
    if output.datatype == "BYTES":
        return [item if isinstance(item, str) else item.decode() for item in output.as_numpy().ravel()]
    return output.as_numpy().tobytes().hex()


async def code(call: Awaitable[Any]) -> str:
    try:
        await call
    except grpc.RpcError as error:
        return str(error.code())
    return "OK"


async def main() -> None:
    plan = json.load(sys.stdin)
    rows = np.array(plan["rows"], dtype=np.float32)
    # The plan includes requests that the server must refuse.
    logging.disable(logging.CRITICAL)

    def request(data: Any, shape: list[int], *outputs: str, model: str = FRAUD, **more: Any) -> InferRequest:
        tensor = InferInput("input__0", shape, more.pop("datatype", "FP32"), data)
        requested = [RequestedOutput(name) for name in outputs] or None
        return InferRequest(model, [tensor], request_outputs=requested, **more)

    shape = list(rows.shape)
    async with InferenceGRPCClient(plan["address"], timeout=30) as client:
        typed = await client.infer(request(rows.ravel().tolist(), shape))
        raw = await client.infer(request(rows, shape))
        every = await client.infer(request(rows, shape, "score", "margin", "decision"))
        texts = await client.infer(request(rows.ravel().tolist(), shape, "decision"))
        one = request(rows[:1], [1, shape[1]], request_id="order-2", model=ACTION)
        action = await client.infer(one)
        stub = client._client_stub
        loaded = await stub.RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name=FRAUD))
        result = {
            "live": await client.is_server_live(),
            "ready": await client.is_server_ready(),
            "models_ready": [await client.is_model_ready(name) for name in (FRAUD, ACTION, "nope")],
            "typed": [plain(output) for output in typed.outputs],
            "typed_names": [output.name for output in typed.outputs],
            "raw": [plain(output) for output in raw.outputs],
            "outputs": {output.name: plain(output) for output in every.outputs},
            "typed_decisions": plain(texts.outputs[0]),
            "version": raw.model_version,
            "action": {output.name: plain(output) for output in action.outputs},
            "loaded": [loaded.model_name, loaded.isLoaded],
            "refused": {
                "shape": await code(client.infer(request(rows[:, :2].copy(), [shape[0], 2]))),
                "model": await code(client.infer(request(rows, shape, model="nope"))),
                "unload": await code(
                    stub.RepositoryModelUnload(pb.RepositoryModelUnloadRequest(model_name=FRAUD))
                ),
                "unload_unknown": await code(
                    stub.RepositoryModelUnload(pb.RepositoryModelUnloadRequest(model_name="nope"))
                ),
            },
        }
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    asyncio.run(main())
