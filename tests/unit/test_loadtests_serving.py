"""Tests of the requests and replies of the serving benchmarks, without a server."""

from __future__ import annotations

import math
import struct
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc

from loadtests.peers.messages import infer_request, infer_score
from loadtests.peers.programs import held
from scorer.loadtest import make_settings
from scorer.loadtest.settings import case_file

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def inference(tmp_path_factory):
    """Return the messages of the protocol's .proto file, in a separate descriptor pool."""
    out = tmp_path_factory.mktemp("proto") / "set.pb"
    options = [f"-I{ROOT / 'protos'}", f"--descriptor_set_out={out}", "--include_imports"]
    done = protoc.main(["", *options, str(ROOT / "protos/inference/grpc_service.proto")])
    assert done == 0
    files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    package = files.file[-1].package
    return lambda name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))


def test_an_inference_request_is_valid_by_the_protocol(inference):
    request = inference("ModelInferRequest").FromString(
        infer_request("fraud.checkout", [1.5, math.nan, -2.0])
    )
    (tensor,) = request.inputs
    assert request.model_name == "fraud.checkout"
    assert (tensor.name, tensor.datatype, list(tensor.shape)) == ("input__0", "FP32", [1, 3])
    (raw,) = request.raw_input_contents
    assert struct.unpack("<3f", raw)[::2] == (1.5, -2.0)
    assert math.isnan(struct.unpack("<3f", raw)[1])


def test_a_score_is_read_from_raw_and_typed_contents(inference):
    reply = inference("ModelInferResponse")
    for datatype, form, field in (("FP32", "<f", "fp32_contents"), ("FP64", "<d", "fp64_contents")):
        typed = reply(model_name="m" * 200, outputs=[{"name": "predict", "datatype": datatype, "shape": [1]}])
        raw = reply(raw_output_contents=[struct.pack(form, 0.25)])
        raw.MergeFrom(typed)
        getattr(typed.outputs[0].contents, field).append(0.25)
        assert infer_score(typed.SerializeToString()) == 0.25
        assert infer_score(raw.SerializeToString()) == 0.25
    strange = reply(outputs=[{"datatype": "INT64"}])
    with pytest.raises(ValueError, match="INT64"):
        infer_score(strange.SerializeToString())


@pytest.mark.parametrize(
    "case", sorted((ROOT / "loadtests/cases").rglob("case.toml")), ids=lambda it: it.parent.name
)
def test_every_case_is_valid_for_the_command(case):
    load = case_file(case).load
    settings = make_settings({"rate": 100.0, **load, "target": "127.0.0.1:1"})
    for caller in settings.callers:
        assert len(caller.load) in {1, len(settings.steps)}
        assert set(caller.methods) <= set(settings.methods)


def test_holding_the_gil_stops_every_other_thread():
    ticks: list[float] = []
    stop = threading.Event()

    def tick():
        while not stop.is_set():
            ticks.append(time.monotonic())
        ticks.append(time.monotonic())

    thread = threading.Thread(target=tick)
    thread.start()
    while not ticks:
        time.sleep(0)
    try:
        held.hold(0.2)
    finally:
        stop.set()
        thread.join()
    # No other thread ran while the GIL was held.
    assert max(after - before for before, after in pairwise(ticks)) >= 0.2
