"""Preparation of a load test: the generator's configuration and the encoded requests."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from scorer.client import CheckpointInfo, Client, ClientError
from scorer.client.channel import parse_target
from scorer.client.requests import dense_row, named_features, packed_rows, with_packed_values
from scorer.credentials import ClientTls
from scorer.loadtest.errors import LoadTestError
from scorer.loadtest.rows import Row, dense, generate_rows, read_rows
from scorer.loadtest.settings import LoadSettings, MethodName
from scorer.v1 import scoring_pb2 as pb

_GENERATED_ROWS = 1_000
_KINDS = {MethodName.SCORE: "score", MethodName.BATCH: "score", MethodName.SELECT_ACTION: "action"}
_PATHS = {
    MethodName.NOOP: ("Noop", "opaque"),
    MethodName.SCORE: ("Score", "score"),
    MethodName.BATCH: ("ScoreBatch", "batch"),
    MethodName.SELECT_ACTION: ("SelectAction", "action"),
}


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """A prepared load test.

    Attributes:
        settings: The settings of the load test.
        checkpoints: The checkpoints that are called.
        sla_ms: The SLA in milliseconds for the verdict; None if there is none.
        payloads: Encoded requests of each method, in the order of the settings' methods.
    """

    settings: LoadSettings
    checkpoints: tuple[CheckpointInfo, ...]
    sla_ms: float | None
    payloads: tuple[tuple[bytes, ...], ...]

    def config(self) -> str:
        """Return the generator's configuration as JSON."""
        settings = self.settings
        methods = [
            {
                "name": str(name),
                "path": f"/scorer.v1.ScoringService/{_PATHS[name][0]}",
                "weight": weight,
                "reply": _PATHS[name][1],
                "fresh_id": name is not MethodName.NOOP,
            }
            for name, weight in settings.methods.items()
        ]
        config: dict[str, Any] = {
            "target": parse_target(settings.target),
            "tls": _tls(),
            "rate": settings.rate,
            "arrivals": settings.arrivals,
            "seconds": settings.seconds,
            "steps": [step.model_dump() for step in settings.steps],
            "callers": [caller.model_dump(mode="json") for caller in settings.callers],
            "warmup_seconds": settings.warmup_seconds,
            "connections": max(settings.connections, settings.threads),
            "threads": settings.threads,
            "max_outstanding": settings.max_outstanding,
            "timeout_ms": max(settings.timeout_ms, self.sla_ms or 0.0),
            "deadline_ms": settings.deadline_ms,
            "cancel": settings.cancel,
            "cancel_within_ms": settings.cancel_within_ms,
            "sla_ms": self.sla_ms,
            "window_seconds": settings.window,
            "seed": settings.seed,
            "methods": methods,
        }
        return json.dumps(config)


def _tls() -> dict[str, str | None] | None:
    """Return the TLS files that the SCORER_TLS_* variables name, in the generator's format."""
    tls = ClientTls.from_environment()
    if tls is None:
        return None
    return {
        "ca": str(tls.ca),
        "certificate": None if tls.certificate is None else str(tls.certificate),
        "key": None if tls.key is None else str(tls.key),
        "server_name": tls.server_name,
    }


def make_plan(settings: LoadSettings) -> LoadPlan:
    """Fetch the checkpoints' schemas from the server and encode the requests.

    Args:
        settings: The settings of the load test.

    Raises:
        LoadTestError: The server cannot be reached, a method matches no checkpoint or several, or the rows do
            not match the schema.
    """
    needs_checkpoint = any(name in _KINDS for name in settings.methods)
    described: tuple[CheckpointInfo, ...] = ()
    try:
        tls = ClientTls.from_environment()
        credentials = None if tls is None else tls.channel_credentials()
        with Client(settings.target, timeout=5.0, credentials=credentials) as client:
            if settings.checkpoints:
                described = tuple(client.describe(name) for name in settings.checkpoints)
            elif needs_checkpoint:
                described = client.checkpoints()
    except ClientError as error:
        raise LoadTestError(f"{settings.target}: {error}") from None
    used = {name: _choose(name, described) for name in settings.methods if name in _KINDS}
    payloads = tuple(tuple(_payloads(name, used.get(name), settings)) for name in settings.methods)
    checkpoints = tuple({info.checkpoint: info for info in used.values()}.values())
    slas = [info.sla_p99_ms for info in checkpoints or described if info.sla_p99_ms > 0]
    # With several SLAs the strictest one applies, because a run has a single latency histogram.
    sla_ms = settings.sla_ms if settings.sla_ms is not None else min(slas, default=None)
    return LoadPlan(settings, checkpoints, sla_ms, payloads)


def _choose(method: MethodName, described: Iterable[CheckpointInfo]) -> CheckpointInfo:
    """Return the only checkpoint that a method can call.

    Raises:
        LoadTestError: There is none, or there are several.
    """
    offered = tuple(described)
    fitting = [info for info in offered if info.kind == _KINDS[method]]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        names = ", ".join(info.checkpoint for info in fitting)
        raise LoadTestError(f"method {method}: several checkpoints fit ({names}); name one with --checkpoint")
    names = ", ".join(f"{info.checkpoint} ({info.kind})" for info in offered) or "none"
    raise LoadTestError(
        f'method {method}: needs a checkpoint of kind "{_KINDS[method]}", and there is {names}'
    )


def _payloads(method: MethodName, info: CheckpointInfo | None, settings: LoadSettings) -> list[bytes]:
    if info is None:
        return [pb.NoopRequest(payload=bytes(settings.payload_bytes)).SerializeToString()]
    rows: list[Row]
    if settings.rows is None:
        count = max(_GENERATED_ROWS, settings.batch_rows) if method is MethodName.BATCH else _GENERATED_ROWS
        rows = list(generate_rows(info, count, settings.seed))
    else:
        rows = read_rows(settings.rows, info)
    try:
        if method is MethodName.BATCH:
            return _batches(rows, info, settings.batch_rows)
        return [_single(method, row, info, settings.features) for row in rows]
    except ClientError as error:
        raise LoadTestError(f"{settings.rows or info.checkpoint}: {error}") from None


def _single(method: MethodName, row: Row, info: CheckpointInfo, features: str) -> bytes:
    message = pb.ScoreRequest if method is MethodName.SCORE else pb.SelectActionRequest
    request = message(checkpoint=info.checkpoint)
    if features == "named" and isinstance(row, dict):
        request.named.CopyFrom(named_features(row))
    elif features == "named":
        raise LoadTestError("the rows have values without names; use --features dense")
    else:
        request.dense.schema_fingerprint = info.fingerprint
        request.dense.values.extend(dense_row(dense(row, info)))
    return request.SerializeToString()


def _batches(rows: list[Row], info: CheckpointInfo, size: int) -> list[bytes]:
    if info.max_batch_rows and size > info.max_batch_rows:
        raise LoadTestError(
            f"batch_rows {size} is above the {info.max_batch_rows} that {info.checkpoint} allows; use fewer"
        )
    vectors = [dense(row, info) for row in rows]
    # If there are fewer rows than a batch has, rows are repeated.
    vectors = (vectors * (size // len(vectors) + 1))[: max(size, len(vectors) // size * size)]
    payloads = []
    for start in range(0, len(vectors) - size + 1, size):
        packed, count, _ = packed_rows(vectors[start : start + size])
        request = pb.ScoreBatchRequest(
            checkpoint=info.checkpoint, schema_fingerprint=info.fingerprint, rows=count
        )
        payloads.append(with_packed_values(request, packed))
    return payloads
