"""Tests of the Open Inference Protocol with common clients: NVIDIA's, KServe's and grpcurl."""

from __future__ import annotations

import json
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import components
import pytest
from bundles import ACTIONS, FEATURES, rows
from servers import ROOT, RunningServer, start_server
from waiting import PATIENCE

from scorer.registry import Registry
from scorer.v1 import scoring_pb2 as pb
from scorer.v1 import scoring_pb2_grpc

PYTHON = ROOT / ".build/clients/bin/python"
SCRIPTS = ROOT / "tests/support/clients"
FRAUD, ACTION = "fraud.checkout", "action.authorise"
INVALID, NOT_FOUND, LATE, UNIMPLEMENTED = (
    f"StatusCode.{name}" for name in ("INVALID_ARGUMENT", "NOT_FOUND", "DEADLINE_EXCEEDED", "UNIMPLEMENTED")
)


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, built_bundles: dict[str, Path]
) -> Iterator[RunningServer]:
    """A server that all clients share. Their calls do not affect each other."""
    directory = tmp_path_factory.mktemp("open-inference")
    registry = Registry(directory / "registry")
    registry.alias("fraud-checkout", "live", registry.push(built_bundles["score-1"]))
    registry.alias("action-authorise", "live", registry.push(built_bundles["action-1"]))
    with start_server(directory) as server:
        yield server


@pytest.fixture(scope="module")
def triton(server: RunningServer) -> dict[str, Any]:
    """The responses that `tritonclient` received."""
    return call(server, "call_triton", "tritonclient.grpc")


@pytest.fixture(scope="module")
def kserve(server: RunningServer) -> dict[str, Any]:
    """The responses that KServe's client received."""
    return call(server, "call_kserve", "kserve")


@pytest.fixture(scope="module")
def own_answers(server: RunningServer) -> OwnAnswers:
    """The answers by the protocol of this project."""
    return OwnAnswers(server)


def call(server: RunningServer, script: str, package: str) -> dict[str, Any]:
    """Return the responses that another client gets from this server for four rows."""
    components.require(package.partition(".")[0])
    plan = {
        "address": server.address,
        "rows": rows(4, seed=9).tolist(),
        "features": FEATURES,
        "action": ACTIONS[3],
    }
    done = subprocess.run(
        [PYTHON, "-W", "ignore", SCRIPTS / f"{script}.py"],
        input=json.dumps(plan),
        capture_output=True,
        text=True,
        timeout=PATIENCE * 4,
        check=False,
    )
    assert done.returncode == 0, f"{done.stderr}\n{server.transcript()}"
    document: dict[str, Any] = json.loads(done.stdout)
    return document


class OwnAnswers:
    """The answers by the protocol of this project for the same rows."""

    def __init__(self, server: RunningServer) -> None:
        self.stub = scoring_pb2_grpc.ScoringServiceStub(server.channel())
        self.described = self.stub.Describe(pb.DescribeRequest(checkpoint=FRAUD)).checkpoints[0]
        self.version = self.described.bundle.removeprefix("sha256:")[:12]
        replies = [self.stub.Score(self.request(row)) for row in rows(4, seed=9)]
        self.scores = [reply.score for reply in replies]
        self.margins = [reply.margin for reply in replies]
        self.decisions = [reply.decision for reply in replies]

    def request(self, row: Any) -> pb.ScoreRequest:
        dense = pb.DenseFeatures(schema_fingerprint=self.described.schema_fingerprint, values=row)
        return pb.ScoreRequest(checkpoint=FRAUD, dense=dense)

    def select(self, request_id: str) -> pb.SelectActionResponse:
        """Repeat the decision by the protocol of this project."""
        result = self.stub.Describe(pb.DescribeRequest(checkpoint=ACTION)).checkpoints[0]
        dense = pb.DenseFeatures(schema_fingerprint=result.schema_fingerprint, values=rows(4, seed=9)[0])
        return self.stub.SelectAction(
            pb.SelectActionRequest(checkpoint=ACTION, request_id=request_id, dense=dense)
        )


def floats(values: list[float]) -> str:
    return struct.pack(f"<{len(values)}f", *values).hex()


def doubles(values: list[float]) -> str:
    return struct.pack(f"<{len(values)}d", *values).hex()


def test_tritonclient_gets_the_same_scores_bit_for_bit(
    triton: dict[str, Any], own_answers: OwnAnswers
) -> None:
    result = triton
    assert len(set(own_answers.scores)) > 1, "the comparison must compare something"

    # Triton's FIL backend returns float32 [rows] under this name, and so does this server.
    assert result["fil"] == floats(own_answers.scores)
    assert result["fil_shape"] == [4]
    assert result["fil_response"] == ["drop-in", own_answers.version, 1]
    assert result["outputs"] == {
        "score": doubles(own_answers.scores),
        "margin": doubles(own_answers.margins),
        "decision": own_answers.decisions,
        "output__0": floats(own_answers.scores),
    }
    assert result["single"] == doubles(own_answers.scores[:1])
    assert result["columns"] == doubles(own_answers.scores)
    parameters = result["single_parameters"]
    assert parameters["bundle"] == own_answers.described.bundle
    assert parameters["lane"] == own_answers.described.lanes[0].name
    assert parameters["decision_id"]
    assert "fallback_reason" not in parameters

    first, bad, *rest = result["stream"]
    assert [first, *rest] == [floats([score]) for score in own_answers.scores[:3]]
    assert bad.startswith('[NOT_FOUND] checkpoint "nope"')


def test_tritonclient_selects_an_action_once(triton: dict[str, Any], own_answers: OwnAnswers) -> None:
    result = triton
    again = own_answers.select("order-1")
    assert again.replayed
    assert result["action"] == {
        "action": [again.action],
        "propensity": doubles([again.propensity]),
        "expected_reward": doubles([again.expected_reward]),
    }
    parameters = result["action_parameters"]
    assert float(parameters["propensity"]) == again.propensity
    assert parameters["decision_id"] == "order-1"
    assert parameters["logged"] is True
    assert result["eligible"] == [ACTIONS[3]]


def test_tritonclient_gets_the_metadata_of_the_served_models(
    triton: dict[str, Any], own_answers: OwnAnswers
) -> None:
    result = triton
    assert result["live"] is True
    assert result["ready"] is True
    assert result["models_ready"] == [True, True, False]
    assert result["server"]["name"] == "scorer"
    metadata = result["metadata"]
    assert metadata["versions"] == [own_answers.version]
    assert metadata["inputs"] == [{"name": "input__0", "datatype": "FP32", "shape": ["-1", "4"]}]
    assert [output["name"] for output in metadata["outputs"]] == ["output__0", "score", "margin", "decision"]
    assert result["action_metadata"]["outputs"][-1] == {
        "name": "pmf",
        "datatype": "FP32",
        "shape": ["1", "6"],
    }
    config = result["config"]["config"]
    assert (config["backend"], config["max_batch_size"]) == ("scorer", own_answers.described.max_batch_rows)
    assert config["input"] == [{"name": "input__0", "data_type": "TYPE_FP32", "dims": ["4"]}]
    features = json.loads(config["parameters"]["features"]["string_value"])
    assert tuple(feature["name"] for feature in features) == FEATURES
    assert (
        int(config["parameters"]["schema_fingerprint"]["string_value"], 16)
        == own_answers.described.schema_fingerprint
    )
    assert [(model["name"], model["state"]) for model in result["index"]["models"]] == [
        (ACTION, "READY"),
        (FRAUD, "READY"),
    ]
    statistics = result["statistics"]["model_stats"][0]
    # Batches of 4: as FIL, with every output, by columns. Rows: the single one, and three of the stream.
    assert int(statistics["inference_count"]) == 3 * 4 + 1 + 3
    assert int(statistics["inference_stats"]["success"]["count"]) == 3 + 1 + 3


def test_tritonclient_is_refused_with_the_right_code(triton: dict[str, Any]) -> None:
    refused = triton["refused"]
    codes = {name: status for name, (status, _) in refused.items()}
    assert codes == {
        "dtype": INVALID,
        "shape": INVALID,
        "name": INVALID,
        "output": INVALID,
        "model": NOT_FOUND,
        "version": NOT_FOUND,
        "timeout": LATE,
        "unload": UNIMPLEMENTED,
        "load": "OK",
        "load_unknown": NOT_FOUND,
        "load_config": UNIMPLEMENTED,
        "shared_memory": UNIMPLEMENTED,
        "trace": UNIMPLEMENTED,
    }
    for name, message in {
        "dtype": '"FP16" is not accepted here',
        "shape": "shape [4, 2] is not valid here; send [rows, 4]",
        "name": 'did you mean "amount"?',
        "output": "fraud.checkout",
        "model": "fraud.checkout",
        "version": 'no version "1" now',
        "unload": "control service",
        "shared_memory": "SystemSharedMemoryStatus is not offered here",
    }.items():
        assert message in refused[name][1]


def test_the_client_of_kserve_gets_the_same_scores_bit_for_bit(
    kserve: dict[str, Any], own_answers: OwnAnswers
) -> None:
    result = kserve
    assert result["live"] is True
    assert result["ready"] is True
    assert result["models_ready"] == [True, True, False]
    assert result["typed_names"] == ["output__0"]
    assert result["typed"] == result["raw"] == [floats(own_answers.scores)]
    assert result["outputs"] == {
        "score": doubles(own_answers.scores),
        "margin": doubles(own_answers.margins),
        "decision": own_answers.decisions,
    }
    assert result["typed_decisions"] == own_answers.decisions
    assert result["version"] == own_answers.version
    again = own_answers.select("order-2")
    assert again.replayed
    assert result["action"]["action"] == [again.action]
    assert result["action"]["propensity"] == doubles([again.propensity])
    assert result["loaded"] == [FRAUD, True]
    assert result["refused"] == {
        "shape": INVALID,
        "model": NOT_FOUND,
        "unload": UNIMPLEMENTED,
        "unload_unknown": NOT_FOUND,
    }


def test_grpcurl_infers_by_reflection_only(server: RunningServer, own_answers: OwnAnswers) -> None:
    grpcurl = components.require_program("grpcurl")
    request = {
        "model_name": FRAUD,
        "inputs": [
            {
                "name": "input__0",
                "datatype": "FP32",
                "shape": [4, 4],
                "contents": {"fp32_contents": rows(4, seed=9).ravel().tolist()},
            }
        ],
        "outputs": [{"name": "score"}],
    }
    done = subprocess.run(
        [grpcurl, "-plaintext", "-d", json.dumps(request), server.address,
         "inference.GRPCInferenceService/ModelInfer"],
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    reply = json.loads(done.stdout)
    assert reply["outputs"][0]["contents"]["fp64Contents"] == own_answers.scores


def test_the_package_contains_no_messages_of_the_protocol() -> None:
    """Stubs of this package would conflict with those of the protocol in a process that imports both."""
    modules = [path.name for path in (ROOT / "python").rglob("*_pb2*.py") if "v1" not in path.parts]
    assert modules == []
