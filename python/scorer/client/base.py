"""The parts that the blocking and the asyncio client share, apart from the flows."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import grpc

from scorer.client.channel import DEFAULT_MAX_MESSAGE_BYTES, channel_options, parse_targets
from scorer.client.core import DEFAULT_TIMEOUT_S, ClientSettings, Core
from scorer.client.counters import ClientStats
from scorer.client.errors import ClientUseError, InvalidRequestError
from scorer.client.fallback import ActionFallback, Fallback, ScoreFallback
from scorer.client.hedging import Hedge, Hedging
from scorer.client.requests import check_timeout
from scorer.client.results import CheckpointInfo
from scorer.client.retry import RetryPolicy
from scorer.client.schemas import SchemaInUse


class ClientBase:
    """Settings, schemas in use, counters, and the check that a client is open and was not forked.

    The arguments are those of `scorer.Client`.
    """

    def __init__(
        self,
        target: str | Sequence[str],
        *,
        timeout: float = DEFAULT_TIMEOUT_S,
        retry: RetryPolicy | None = None,
        fallback: Mapping[str, Fallback] | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        metadata: Sequence[tuple[str, str]] = (),
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        server_name: str | None = None,
        hedge: Hedge = None,
    ) -> None:
        self.target = target
        self._address = parse_targets(target)
        fallbacks = dict(fallback or {})
        for checkpoint, answer in fallbacks.items():
            if not isinstance(answer, ScoreFallback | ActionFallback) and not callable(answer):
                raise InvalidRequestError(
                    f"fallback is a {type(answer).__name__}",
                    checkpoint=checkpoint,
                    remedy="give a ScoreFallback, an ActionFallback or a function that returns one",
                )
        if max_message_bytes < 1024:
            raise InvalidRequestError(
                f"max_message_bytes={max_message_bytes} is too small", remedy="use at least 1024"
            )
        self._core = Core(
            ClientSettings(
                timeout=check_timeout(timeout),
                retry=retry or RetryPolicy(),
                fallback=fallbacks,
                max_message_bytes=max_message_bytes,
                hedging=None if hedge is None else Hedging(hedge, timeout),
            )
        )
        self._credentials = credentials
        self._metadata = tuple(metadata)
        self._options = channel_options(self._address, max_message_bytes, server_name)
        self._made_in = os.getpid()
        self._closed = False

    def use_schema(self, schema: CheckpointInfo | int, checkpoint: str = "") -> None:
        """Set the schema that the dense values of later calls follow.

        Without this call, the first dense call of a checkpoint fetches the schema that the server serves, and
        later calls keep it. If the server then serves another schema, dense calls raise `SchemaChangedError`
        until this method is called. The client never changes the order of values by itself.

        Args:
            schema: A description from `describe()`, or a fingerprint of an earlier description, for instance
                a constant next to the code that orders the values.
            checkpoint: The checkpoint, if `schema` is a fingerprint.

        Raises:
            InvalidRequestError: A fingerprint is given without a checkpoint.
        """
        if isinstance(schema, CheckpointInfo):
            self._core.schemas.use(schema.checkpoint, SchemaInUse(schema.fingerprint, schema.feature_names))
        elif checkpoint:
            self._core.schemas.use(checkpoint, SchemaInUse(schema, None))
        else:
            raise InvalidRequestError(
                "a fingerprint without its checkpoint", remedy="pass checkpoint= as well"
            )

    def stats(self) -> ClientStats:
        """Return the counts of calls, retries, errors and fallbacks since the client was created."""
        return self._core.counters.snapshot()

    def _check_usable(self) -> None:
        if self._closed:
            raise ClientUseError("the client is closed", remedy="make a new one")
        if os.getpid() != self._made_in:
            raise ClientUseError(
                "the client was made before this process was forked, and its connection cannot be shared",
                remedy="make one client per process, after the fork",
            )
