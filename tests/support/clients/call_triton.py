"""Calls a server with NVIDIA's `tritonclient`: what to call comes from stdin, what came back goes to stdout.

Runs in the clients' own environment (.build/clients): its generated code describes the same messages as
any other client of the protocol, and one process can hold them only once.
"""

from __future__ import annotations

import json
import queue
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

FRAUD, ACTION = "fraud.checkout", "action.authorise"


def matrix(name: str, values: Any, datatype: str) -> triton.InferInput:
    tensor = triton.InferInput(name, list(values.shape), datatype)
    tensor.set_data_from_numpy(values)
    return tensor


def requested_outputs(*names: str) -> list[triton.InferRequestedOutput]:
    return [triton.InferRequestedOutput(name) for name in names]


def code(call: Callable[[], Any]) -> list[str]:
    """Return the status and message of a refused call."""
    try:
        call()
    except InferenceServerException as error:
        return [str(error.status()), str(error.message())]
    return ["OK", ""]


def plain(array: Any) -> Any:
    """Return floats as their bits and strings as text."""
    if array.dtype == np.object_:
        return [item.decode() for item in array.ravel()]
    return array.tobytes().hex()


def parameters(result: Any) -> dict[str, Any]:
    return {
        key: getattr(value, value.WhichOneof("parameter_choice"))
        for key, value in result.get_response().parameters.items()
    }


def streamed(client: triton.InferenceServerClient, rows: Any) -> list[Any]:
    """Send one request per row on one stream, with an invalid request in between."""
    answers: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    expected = 0
    for at, row in enumerate(rows):
        if at == 1:
            client.async_stream_infer("nope", [matrix("input__0", row[None], "FP32")])
            expected += 1
        client.async_stream_infer(FRAUD, [matrix("input__0", row[None], "FP32")])
        expected += 1
    replies = [answers.get(timeout=30) for _ in range(expected)]
    client.stop_stream()
    return [str(error) if error else plain(result.as_numpy("output__0")) for result, error in replies]


def main() -> None:
    plan = json.load(sys.stdin)
    rows = np.array(plan["rows"], dtype=np.float32)
    client = triton.InferenceServerClient(plan["address"])
    result: dict[str, Any] = {
        "live": client.is_server_live(),
        "ready": client.is_server_ready(),
        "models_ready": [client.is_model_ready(name) for name in (FRAUD, ACTION, "nope")],
        "server": client.get_server_metadata(as_json=True),
        "metadata": client.get_model_metadata(FRAUD, as_json=True),
        "action_metadata": client.get_model_metadata(ACTION, as_json=True),
        "config": client.get_model_config(FRAUD, as_json=True),
        "index": client.get_model_repository_index(as_json=True),
    }
    version = result["metadata"]["versions"][0]

    fil = client.infer(FRAUD, [matrix("input__0", rows, "FP32")], model_version=version, request_id="drop-in")
    result["fil"] = plain(fil.as_numpy("output__0"))
    result["fil_shape"] = list(fil.as_numpy("output__0").shape)
    result["fil_response"] = [
        fil.get_response().id,
        fil.get_response().model_version,
        len(fil.get_response().outputs),
    ]
    every = client.infer(
        FRAUD,
        [matrix("input__0", rows, "FP32")],
        outputs=requested_outputs("score", "margin", "decision", "output__0"),
    )
    result["outputs"] = {
        name: plain(every.as_numpy(name)) for name in ("score", "margin", "decision", "output__0")
    }
    single = client.infer(
        FRAUD,
        [matrix("input__0", rows[:1], "FP32")],
        outputs=requested_outputs("score"),
        parameters={"entity": "card-1"},
    )
    result["single"] = plain(single.as_numpy("score"))
    result["single_parameters"] = parameters(single)
    columns = [
        matrix(name, rows[:, at].astype(np.float64), "FP64") for at, name in enumerate(plan["features"])
    ]
    result["columns"] = plain(
        client.infer(FRAUD, columns, outputs=requested_outputs("score")).as_numpy("score")
    )
    result["stream"] = streamed(client, rows[:3])

    action = client.infer(ACTION, [matrix("input__0", rows[:1], "FP32")], request_id="order-1")
    result["action"] = {
        name: plain(action.as_numpy(name)) for name in ("action", "propensity", "expected_reward")
    }
    result["action_parameters"] = parameters(action)
    only = np.array([plan["action"].encode()], dtype=np.object_)
    eligible = client.infer(
        ACTION,
        [matrix("input__0", rows[:1], "FP32"), matrix("eligible", only, "BYTES")],
        outputs=requested_outputs("action"),
    )
    result["eligible"] = plain(eligible.as_numpy("action"))

    result["statistics"] = client.get_inference_statistics(FRAUD, as_json=True)

    def infer(*inputs: triton.InferInput, model: str = FRAUD, **options: Any) -> list[str]:
        return code(lambda: client.infer(model, list(inputs), **options))

    good = matrix("input__0", rows, "FP32")
    result["refused"] = {
        "dtype": infer(matrix("input__0", rows.astype(np.float16), "FP16")),
        "shape": infer(matrix("input__0", rows[:, :2].copy(), "FP32")),
        "name": infer(matrix("amont", rows[:, 0].copy(), "FP32")),
        "output": infer(good, outputs=requested_outputs("output__1")),
        "model": infer(good, model="nope"),
        "version": infer(good, model_version="1"),
        "timeout": infer(good, timeout=1),
        "unload": code(lambda: client.unload_model(FRAUD)),
        "load": code(lambda: client.load_model(FRAUD)),
        "load_unknown": code(lambda: client.load_model("nope")),
        "load_config": code(lambda: client.load_model(FRAUD, config='{"backend": "fil"}')),
        "shared_memory": code(client.get_system_shared_memory_status),
        "trace": code(client.get_trace_settings),
    }
    client.close()
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
