"""Traces of a server process in a real Jaeger."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jaeger_server
import pytest
from servers import settings, start_server
from waiting import wait_until

from scorer.client.requests import named_features
from scorer.registry import Registry
from scorer.v1 import scoring_pb2, scoring_pb2_grpc

CALLER = "b7ad6b7169203331"
STAGES = ["features", "admit", "evaluate", "decide", "log"]


def tags(span: dict[str, Any]) -> dict[str, Any]:
    return {tag["key"]: tag["value"] for tag in span["tags"]}


@pytest.mark.timeout(300)
def test_jaeger_shows_the_request_below_its_caller(tmp_path: Path, registry: Registry) -> None:
    """CI does not build Jaeger; `make test-jaeger` does, and runs this test."""
    if not jaeger_server.PROGRAM.exists():
        pytest.skip("Jaeger is not installed; `make test-jaeger` builds it and runs this test")
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    unsampled = "1af7651916cd43dd8448eb211c80319c"
    with jaeger_server.jaeger(tmp_path) as jaeger:
        text = settings() + f'[tracing]\nendpoint = "{jaeger.endpoint}"\nratio = 0.0\nservice = "checkout"\n'
        with start_server(tmp_path, text) as server:
            stub = scoring_pb2_grpc.ScoringServiceStub(server.channel())
            for trace, flags in ((unsampled, "00"), (trace_id, "01")):
                parent = ("traceparent", f"00-{trace}-{CALLER}-{flags}")
                request = scoring_pb2.SelectActionRequest(
                    checkpoint="action.authorise",
                    request_id=f"id-{flags}",
                    named=named_features({"amount": 25.0}),
                )
                stub.SelectAction(request, timeout=30, metadata=(parent, ("tracestate", "vendor=1")))

            def complete() -> dict[str, Any] | None:
                trace = jaeger.trace(trace_id)
                return trace if trace and len(trace["spans"]) == 1 + len(STAGES) else None

            trace = wait_until(complete, "the trace in Jaeger")
            assert trace is not None
            assert jaeger.trace(unsampled) is None
            assert server.event("trace_collector_connected")["endpoint"] == jaeger.endpoint
            assert server.stop() == 0
    spans = sorted(trace["spans"], key=lambda span: span["startTime"])
    [top] = [span for span in spans if span["operationName"] == "scorer.v1.ScoringService/SelectAction"]
    [reference] = top["references"]
    assert (reference["refType"], reference["spanID"]) == ("CHILD_OF", CALLER)
    known = tags(top)
    assert (known["span.kind"], known["rpc.response.status_code"]) == ("server", "OK")
    assert (known["scorer.checkpoint"], known["scorer.decision_id"]) == ("action.authorise", "id-01")
    assert "error" not in known
    stages = [span for span in spans if span is not top]
    assert sorted(span["operationName"] for span in stages) == sorted(STAGES)
    for span in stages:
        [reference] = span["references"]
        assert (reference["refType"], reference["spanID"]) == ("CHILD_OF", top["spanID"])
        assert top["startTime"] <= span["startTime"] + 1
        assert span["startTime"] + span["duration"] <= top["startTime"] + top["duration"] + 1
    assert {one["serviceName"] for one in trace["processes"].values()} == {"checkout"}
