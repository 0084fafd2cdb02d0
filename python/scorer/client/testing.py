"""A fake server for tests of code that calls scorer. It has no model; answers and faults are scripted.

    with FakeServer() as server, scorer.Client(server.target) as client:
        server.script("Score", Fault("UNAVAILABLE"), Fault("UNAVAILABLE"))
        client.score("fraud.checkout", {"amount": 1.0})       # answered by the third attempt
        assert [r.request_id for r in server.requests("Score")] == ...

Each request takes the next fault of its method. A request without a fault gets the default answer.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
from google.protobuf.message import Message

from scorer.v1 import scoring_pb2 as pb


@dataclass(frozen=True, slots=True)
class Fault:
    """The reaction of the fake server to one request.

    Attributes:
        code: Name of the gRPC status to return; "OK" returns the default answer.
        details: The status message.
        pushback: Value of the trailer `grpc-retry-pushback-ms`; None sends none.
        until: Delay the answer until this event is set or the client has cancelled the call.
    """

    code: str = "OK"
    details: str = ""
    pushback: str | None = None
    until: threading.Event | None = None


def _default_checkpoints() -> dict[str, pb.CheckpointDescription]:
    fraud = pb.CheckpointDescription(
        checkpoint="fraud.checkout",
        kind="score",
        bundle="sha256:" + "ab" * 32,
        bundle_name="fraud-checkout",
        lane_table=3,
        schema_fingerprint=0xFEDCBA9876543210,
        sla_p99_ms=10.0,
        max_batch_rows=1000,
        lanes=[pb.LaneDescription(name="live", bundle="sha256:" + "ab" * 32, share=1.0)],
    )
    fraud.features.add(name="amount", type="number", missing="refuse", minimum=0.0, maximum=50_000.0)
    fraud.features.add(
        name="country", type="category", categories=["NL", "DE", "GB"], unknown_category="missing"
    )
    fraud.features.add(name="returning", type="flag", missing="allow")
    for start, label in ((0.0, "approve"), (0.5, "review"), (0.9, "decline")):
        band = fraud.thresholds.add(label=label)
        setattr(band, "from", start)
    action = pb.CheckpointDescription(
        checkpoint="action.authorise",
        kind="action",
        bundle="sha256:" + "cd" * 32,
        bundle_name="action-authorise",
        lane_table=3,
        schema_fingerprint=0x0123456789ABCDEF,
        policy="epsilon_greedy",
        sla_p99_ms=10.0,
        max_batch_rows=1000,
    )
    action.features.add(name="amount", type="number", missing="allow")
    for three_ds in ("frictionless", "challenge"):
        for route in ("a", "b"):
            action.actions.add(
                id=f"3ds={three_ds}|route={route}", factors={"three_ds": three_ds, "route": route}
            )
    return {fraud.checkpoint: fraud, action.checkpoint: action}


class FakeServer:
    """A gRPC server on a free port, or on a Unix socket, with two checkpoints.

    `fraud.checkout` returns the score 0.25 ("approve"). `action.authorise` chooses the first eligible action
    of four, with propensity 1 / (number of eligible actions). Tests may change `checkpoints`.

    Args:
        socket: Listen on this Unix socket instead of a port.
        threads: Number of requests that are handled at the same time.
    """

    def __init__(self, socket: Path | None = None, *, threads: int = 8) -> None:
        self.checkpoints = _default_checkpoints()
        self.serving = True
        self._requests: dict[str, list[Any]] = defaultdict(list)
        self._metadata: dict[str, list[dict[str, str | bytes]]] = defaultdict(list)
        self._faults: dict[str, deque[Fault]] = defaultdict(deque)
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="fake-scorer")
        self._server = grpc.server(self._pool, options=[("grpc.so_reuseport", 0)])
        self._server.add_generic_rpc_handlers((self._scoring(), self._health()))
        if socket is None:
            self._port = self._server.add_insecure_port("127.0.0.1:0")
            self.target = f"127.0.0.1:{self._port}"
        else:
            self._server.add_insecure_port(f"unix:{socket}")
            self.target = f"unix://{socket}"
        self._server.start()

    def script(self, method: str, *faults: Fault) -> None:
        """Answer the next requests to a method, such as "Score", with these faults in order."""
        with self._lock:
            self._faults[method].extend(faults)

    def requests(self, method: str) -> list[Any]:
        """Return the messages that a method has received so far."""
        with self._lock:
            return list(self._requests[method])

    def metadata(self, method: str) -> list[dict[str, str | bytes]]:
        """Return the metadata that a method has received so far, in the order of `requests()`."""
        with self._lock:
            return list(self._metadata[method])

    def close(self) -> None:
        """Stop the server immediately. Requests in flight are cancelled."""
        with self._lock:
            waiting = [fault.until for faults in self._faults.values() for fault in faults if fault.until]
        for event in waiting:
            event.set()
        self._server.stop(None).wait()
        self._pool.shutdown()

    def __enter__(self) -> Self:
        """Return the server, which was started when it was created."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the server."""
        self.close()

    # -- handlers ------------------------------------------------------------------

    def _scoring(self) -> grpc.GenericRpcHandler[Any, Any]:
        answers: dict[str, tuple[type[Message], Callable[[Any, grpc.ServicerContext], Message]]] = {
            "Score": (pb.ScoreRequest, self._score),
            "ScoreBatch": (pb.ScoreBatchRequest, self._score_batch),
            "SelectAction": (pb.SelectActionRequest, self._select_action),
            "Decide": (pb.DecideRequest, self._decide),
            "ReportOutcome": (
                pb.ReportOutcomeRequest,
                lambda _request, _context: pb.ReportOutcomeResponse(decision_known=True),
            ),
            "Describe": (pb.DescribeRequest, self._describe),
            "Explain": (pb.ExplainRequest, self._explain),
            "Noop": (pb.NoopRequest, lambda request, _context: pb.NoopResponse(payload=request.payload)),
        }
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                self._faulty(name, answer), request.FromString, lambda reply: reply.SerializeToString()
            )
            for name, (request, answer) in answers.items()
        }
        return grpc.method_handlers_generic_handler("scorer.v1.ScoringService", handlers)

    def _health(self) -> grpc.GenericRpcHandler[Any, Any]:
        def check(request: bytes, context: grpc.ServicerContext) -> bytes:
            service = request[2:].decode()
            if service not in {"", "scorer.v1.ScoringService", *self.checkpoints}:
                context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
            return b"\x08\x01" if self.serving else b"\x08\x02"

        handler = grpc.unary_unary_rpc_method_handler(self._faulty("Check", check), None, None)
        return grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": handler})

    def _faulty(
        self, name: str, answer: Callable[[Any, grpc.ServicerContext], Any]
    ) -> Callable[[Any, grpc.ServicerContext], Any]:
        def handle(request: Any, context: grpc.ServicerContext) -> Any:
            with self._lock:
                self._requests[name].append(request)
                self._metadata[name].append(dict(context.invocation_metadata()))
                fault = self._faults[name].popleft() if self._faults[name] else Fault()
            # `add_callback` returns False if the call has already ended; then there is no answer to delay.
            if fault.until is not None and context.add_callback(fault.until.set):
                fault.until.wait()
            if fault.pushback is not None:
                context.set_trailing_metadata((("grpc-retry-pushback-ms", fault.pushback),))
            if fault.code != "OK":
                context.abort(grpc.StatusCode[fault.code], fault.details)
            return answer(request, context)

        return handle

    def _checked(
        self,
        request: Any,
        context: grpc.ServicerContext,
        fingerprint: int | None,
    ) -> pb.CheckpointDescription:
        described = self.checkpoints.get(request.checkpoint)
        if described is None:
            context.abort(grpc.StatusCode.NOT_FOUND, f'checkpoint "{request.checkpoint}" is not served')
            raise AssertionError
        if fingerprint is not None and fingerprint != described.schema_fingerprint:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "the values follow another schema")
        return described

    def _served(self, described: pb.CheckpointDescription) -> pb.Served:
        return pb.Served(bundle=described.bundle, lane="live", lane_table=described.lane_table, exec_us=7)

    def _score(self, request: pb.ScoreRequest, context: grpc.ServicerContext) -> pb.ScoreResponse:
        dense = request.WhichOneof("features") == "dense"
        described = self._checked(request, context, request.dense.schema_fingerprint if dense else None)
        return pb.ScoreResponse(
            decision_id=request.request_id,
            score=0.25,
            margin=-1.0986122886681098,
            decision="approve",
            served=self._served(described),
            logged=True,
        )

    def _score_batch(
        self, request: pb.ScoreBatchRequest, context: grpc.ServicerContext
    ) -> pb.ScoreBatchResponse:
        described = self._checked(request, context, request.schema_fingerprint)
        return pb.ScoreBatchResponse(
            request_id=request.request_id,
            scores=[0.25] * request.rows,
            margins=[-1.0986122886681098] * request.rows,
            decisions=[0] * request.rows,
            labels=[band.label for band in described.thresholds],
            served=self._served(described),
        )

    def _select_action(
        self, request: pb.SelectActionRequest, context: grpc.ServicerContext
    ) -> pb.SelectActionResponse:
        dense = request.WhichOneof("features") == "dense"
        described = self._checked(request, context, request.dense.schema_fingerprint if dense else None)
        places = list(range(len(described.actions)))
        if request.eligible.ids:
            places = [i for i in places if described.actions[i].id in request.eligible.ids]
        elif request.eligible.mask:
            mask = request.eligible.mask
            places = [i for i in places if i // 8 < len(mask) and mask[i // 8] >> (i % 8) & 1]
        if not places:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no action is eligible")
        chosen = described.actions[places[0]]
        share = 1 / len(places)
        return pb.SelectActionResponse(
            decision_id=request.request_id,
            action=chosen.id,
            action_index=places[0],
            propensity=share,
            expected_reward=0.75,
            factors=chosen.factors,
            pmf=[share if i in places else 0.0 for i in range(len(described.actions))]
            if request.include_pmf
            else [],
            logged=True,
            served=self._served(described),
        )

    def _decide(self, request: pb.DecideRequest, context: grpc.ServicerContext) -> pb.DecideResponse:
        identity, named = request.request_id, request.features
        score = self._score(
            pb.ScoreRequest(checkpoint=request.score.checkpoint, request_id=identity, named=named), context
        )
        action = self._select_action(
            pb.SelectActionRequest(
                checkpoint=request.action.checkpoint,
                eligible=request.action.eligible if request.action.HasField("eligible") else None,
                include_pmf=request.action.include_pmf,
                request_id=identity,
                named=named,
            ),
            context,
        )
        return pb.DecideResponse(decision_id=request.request_id, score=score, action=action)

    def _explain(self, request: pb.ExplainRequest, context: grpc.ServicerContext) -> pb.ExplainResponse:
        dense = request.WhichOneof("features") == "dense"
        described = self._checked(request, context, request.dense.schema_fingerprint if dense else None)

        def explanation(action: str, amount: float) -> pb.Explanation:
            names = [feature.name for feature in described.features]
            shares = [pb.Contribution(feature=name, amount=amount) for name in names]
            return pb.Explanation(
                action=action,
                baseline=-2.0,
                margin=-2.0 + amount * len(names),
                score=0.25,
                contributions=shares,
                reasons=[
                    pb.Reason(code=name, feature=name, contribution=amount)
                    for name in names[: request.reasons]
                ],
            )

        reply = pb.ExplainResponse(
            bundle=request.bundle or described.bundle, explanation=explanation(request.action, 0.5), exec_us=7
        )
        if request.against:
            reply.against.CopyFrom(explanation(request.against, 0.25))
            reply.difference.CopyFrom(explanation("", 0.25))
            reply.difference.baseline = 0.0
            reply.difference.margin = reply.explanation.margin - reply.against.margin
            reply.difference.score = 0.0
        return reply

    def _describe(self, request: pb.DescribeRequest, context: grpc.ServicerContext) -> pb.DescribeResponse:
        if request.checkpoint:
            return pb.DescribeResponse(checkpoints=[self._checked(request, context, None)])
        return pb.DescribeResponse(checkpoints=self.checkpoints.values())
