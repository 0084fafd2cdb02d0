"""`scorer.aio.Client`, which runs the flows of `core` with asyncio."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Self, TypeVar, cast

import grpc
import grpc.aio

from scorer.client.base import ClientBase
from scorer.client.errors import ClientUseError
from scorer.client.events import Event, EventResult
from scorer.client.flow import Failure, Flow, Hedges, Outcome, Send, Sleep
from scorer.client.requests import Eligible, Features, FeatureValue, ReportedBy, Rows
from scorer.client.results import (
    BatchScore,
    CheckpointInfo,
    Health,
    OutcomeAck,
    PaymentDecision,
    RowExplanation,
    Score,
    SelectedAction,
)
from scorer.client.retry import read_pushback

T = TypeVar("T")


class AsyncClient(ClientBase):
    """A connection to a scorer server for asyncio; see `scorer.Client` for the arguments.

        async with scorer.aio.Client("127.0.0.1:7000") as client:
            answer = await client.score("fraud.checkout", {"amount": 12.5, "country": "NL"})

    The connection belongs to the event loop of the first call. Cancelling a call's task
    cancels the request.
    """

    # The first call creates the channel, because a channel belongs to the event loop that is running then.
    _channel: grpc.aio.Channel | None = None
    _loop: asyncio.AbstractEventLoop | None = None

    async def score(
        self,
        checkpoint: str,
        features: Features,
        *,
        request_id: str | None = None,
        entity: str = "",
        timeout: float | None = None,
        reasons: int = 0,
        keys: Mapping[str, str] | None = None,
    ) -> Score:
        """Score one event; arguments, result and errors as for `scorer.Client.score`."""
        return await self._run(
            self._core.score(
                checkpoint,
                features,
                request_id=request_id,
                entity=entity,
                timeout=timeout,
                reasons=reasons,
                keys=keys,
            )
        )

    async def score_batch(
        self,
        checkpoint: str,
        rows: Rows,
        *,
        request_id: str | None = None,
        entity: str = "",
        timeout: float | None = None,
        keys: Mapping[str, Sequence[str | None]] | None = None,
    ) -> BatchScore:
        """Score many rows; arguments, result and errors as for `scorer.Client.score_batch`."""
        return await self._run(
            self._core.score_batch(
                checkpoint, rows, request_id=request_id, entity=entity, timeout=timeout, keys=keys
            )
        )

    async def select_action(
        self,
        checkpoint: str,
        features: Features,
        *,
        eligible: Eligible = None,
        include_pmf: bool = False,
        request_id: str | None = None,
        entity: str = "",
        timeout: float | None = None,
        reasons: int = 0,
        keys: Mapping[str, str] | None = None,
    ) -> SelectedAction:
        """Draw a payment action; arguments, result and errors as for `scorer.Client.select_action`."""
        return await self._run(
            self._core.select_action(
                checkpoint,
                features,
                eligible=eligible,
                include_pmf=include_pmf,
                request_id=request_id,
                entity=entity,
                timeout=timeout,
                reasons=reasons,
                keys=keys,
            )
        )

    async def decide(
        self,
        score_checkpoint: str,
        action_checkpoint: str,
        features: Mapping[str, FeatureValue],
        *,
        score_feature: str = "",
        decision_feature: str = "",
        action_if_declined: bool = False,
        eligible: Eligible = None,
        include_pmf: bool = False,
        request_id: str | None = None,
        entity: str = "",
        timeout: float | None = None,
        score_reasons: int = 0,
        action_reasons: int = 0,
        keys: Mapping[str, str] | None = None,
    ) -> PaymentDecision:
        """Score a payment and choose its action; as `scorer.Client.decide`."""
        return await self._run(
            self._core.decide(
                score_checkpoint,
                action_checkpoint,
                features,
                score_feature=score_feature,
                decision_feature=decision_feature,
                action_if_declined=action_if_declined,
                eligible=eligible,
                include_pmf=include_pmf,
                request_id=request_id,
                entity=entity,
                timeout=timeout,
                score_reasons=score_reasons,
                action_reasons=action_reasons,
                keys=keys,
            )
        )

    async def explain(
        self,
        checkpoint: str,
        features: Features,
        *,
        action: str = "",
        against: str = "",
        bundle: str = "",
        reasons: int = 0,
        timeout: float | None = None,
    ) -> RowExplanation:
        """Explain a score or an action; arguments, result and errors as for `scorer.Client.explain`."""
        return await self._run(
            self._core.explain(
                checkpoint,
                features,
                action=action,
                against=against,
                bundle=bundle,
                reasons=reasons,
                timeout=timeout,
            )
        )

    async def report_outcome(
        self,
        checkpoint: str,
        decision_id: str,
        kind: str,
        value: float,
        *,
        revision: int = 0,
        occurred_at_ms: int = 0,
        decision_token: bytes | None = None,
        source: ReportedBy | None = None,
        source_id: str = "",
        timeout: float | None = None,
    ) -> OutcomeAck:
        """Report an outcome; arguments, result and errors as for `scorer.Client.report_outcome`."""
        return await self._run(
            self._core.report_outcome(
                checkpoint,
                decision_id,
                kind,
                value,
                revision=revision,
                occurred_at_ms=occurred_at_ms,
                decision_token=decision_token,
                source=source,
                source_id=source_id,
                timeout=timeout,
            )
        )

    async def record_events(
        self, events: Sequence[Event], *, timeout: float | None = None
    ) -> tuple[EventResult, ...]:
        """Record events; arguments, result and errors as for `scorer.Client.record_events`."""
        return await self._run(self._core.record_events(events, timeout=timeout))

    async def describe(self, checkpoint: str, *, timeout: float | None = None) -> CheckpointInfo:
        """Return what a checkpoint serves now; as `scorer.Client.describe`."""
        return await self._run(self._core.describe(checkpoint, timeout=timeout))

    async def checkpoints(self, *, timeout: float | None = None) -> tuple[CheckpointInfo, ...]:
        """Return what every checkpoint serves now; as `scorer.Client.checkpoints`."""
        return await self._run(self._core.checkpoints(timeout=timeout))

    async def health(self, service: str = "", *, timeout: float | None = None) -> Health:
        """Call the standard gRPC health service; as `scorer.Client.health`."""
        return await self._run(self._core.health(service, timeout=timeout))

    async def wait_ready(self, service: str = "", *, timeout: float = 10.0) -> None:
        """Wait until the server reports SERVING; as `scorer.Client.wait_ready`."""
        await self._run(self._core.wait_ready(service, timeout=timeout))

    async def close(self) -> None:
        """Close the connection. Calls in flight end with an error."""
        self._closed = True
        if self._channel is not None:
            await self._channel.close(None)

    async def __aenter__(self) -> Self:
        """Return the client. The first call opens the connection."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connection."""
        await self.close()

    async def _run(self, flow: Flow[T]) -> T:
        self._check_usable()
        outcome: Outcome = None
        try:
            while True:
                step = flow.send(outcome)
                if isinstance(step, Sleep):
                    await asyncio.sleep(step.seconds)
                    outcome = None
                else:
                    outcome = await self._send(step)
        except StopIteration as done:
            return cast(T, done.value)

    async def _send(self, step: Send) -> bytes | Failure:
        if step.hedging is not None:
            return await self._send_hedged(step, step.hedging)
        return await self._send_copy(step, step.timeout)

    async def _send_hedged(self, step: Send, hedging: Hedges) -> bytes | Failure:
        """Send the request, and a second copy if the first is not answered within the delay."""
        began = time.monotonic()
        copies = {asyncio.ensure_future(self._send_copy(step, step.timeout))}
        was_slower = False
        outcome: bytes | Failure = Failure(grpc.StatusCode.DEADLINE_EXCEEDED, "no time is left")
        try:
            ended, pending = await asyncio.wait(copies, timeout=min(hedging.delay, step.timeout))
            if not ended:
                was_slower = True
                remaining = step.timeout - (time.monotonic() - began)
                if remaining > 0 and hedging.may_send():
                    self._core.counters.hedge()
                    copies.add(asyncio.ensure_future(self._send_copy(step, remaining)))
                ended, pending = await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
            while True:
                for copy in ended:
                    outcome = copy.result()
                    if isinstance(outcome, bytes):
                        hedging.answered(was_slower=was_slower)
                        return outcome
                if not pending:
                    return outcome
                ended, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for copy in copies:
                copy.cancel()

    async def _send_copy(self, step: Send, seconds: float) -> bytes | Failure:
        method = self._method(step.method)
        try:
            reply = await method(
                step.payload,
                timeout=seconds,
                metadata=self._metadata,
                wait_for_ready=step.wait_for_ready,
            )
        except grpc.aio.AioRpcError as error:
            return Failure(error.code(), error.details() or "", read_pushback(error.trailing_metadata()))
        except (grpc.aio.UsageError, asyncio.CancelledError) as error:
            if self._closed:
                raise ClientUseError(
                    "the client was closed during the call", remedy="make a new one"
                ) from error
            raise
        return reply

    def _method(self, path: str) -> Callable[..., Awaitable[bytes]]:
        loop = asyncio.get_running_loop()
        if self._channel is None:
            if self._credentials is None:
                self._channel = grpc.aio.insecure_channel(self._address, self._options)
            else:
                self._channel = grpc.aio.secure_channel(self._address, self._credentials, self._options)
            self._loop = loop
            self._methods: dict[str, Callable[..., Awaitable[bytes]]] = {}
        elif loop is not self._loop:
            raise ClientUseError(
                "the client belongs to another event loop", remedy="make one client per event loop"
            )
        method = self._methods.get(path)
        if method is None:
            # No serialisers: the flows encode requests and decode replies.
            made = self._channel.unary_unary(path, None, None)
            method = self._methods[path] = cast("Callable[..., Awaitable[bytes]]", made)
        return method
