"""Reports the rows of a checked file to servers, some at a time, with progress on disk."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final

from scorer.client.asynchronous import AsyncClient
from scorer.client.errors import (
    AccessError,
    CallCancelledError,
    ClientError,
    DeadlineExceededError,
    IdConflictError,
    InvalidRequestError,
    OverloadedError,
    PreconditionError,
    ServerFaultError,
    UnavailableError,
)
from scorer.learn.errors import DataError
from scorer.learn.imports.checking import SEND, SKIP, ImportPlan, OutcomeFile
from scorer.learn.imports.journal import ImportJournal
from scorer.learn.imports.rows import BadRowError, OutcomeRow

if TYPE_CHECKING:
    import grpc

    from scorer.client.results import OutcomeAck

CHUNK: Final = 512
"""Rows between two commits of the journal. As many are reported again after the process was killed."""
_TRANSIENT: Final = (
    UnavailableError, DeadlineExceededError, OverloadedError, ServerFaultError, CallCancelledError,
)  # fmt: skip
_PAUSE_S: Final = 0.05
_LONGEST_S: Final = 5.0


@dataclass(frozen=True)
class ImportTargets:
    """Where outcomes are reported, and how.

    Attributes:
        servers: Addresses of the servers. If there are as many as logs, each is that of the log in its place.
        logs: Number of logs that the file was compared with; 0: none.
        credentials: Credentials of TLS; None: plaintext.
        concurrency: Number of reports at a time.
        patience_s: Time after the last success for which rows are tried while servers are away or overloaded.
        timeout_s: Deadline of one report.
    """

    servers: tuple[str, ...]
    logs: int = 0
    credentials: grpc.ChannelCredentials | None = None
    concurrency: int = 16
    patience_s: float = 120.0
    timeout_s: float = 5.0


class ImportStoppedError(DataError):
    """An import ended before its last row; the same command continues it."""


def send_rows(
    file: OutcomeFile,
    plan: ImportPlan,
    targets: ImportTargets,
    journal: ImportJournal,
    *,
    advance: Callable[[int, int | None], None] | None = None,
) -> dict[str, int]:
    """Report the rows of a file that are to be reported, from the first one that the journal has not.

    A row that a server rejects is stored in the journal, and the next rows are reported.

    Args:
        file: The file.
        plan: What is done with each row.
        targets: The servers.
        journal: The progress.
        advance: Called with the rows that are done and the rows of the file.

    Returns:
        The number of rows by result.

    Raises:
        ImportStoppedError: No server accepts reports for as long as `patience_s`, or access is denied.
    """
    return asyncio.run(_send(file, plan, targets, journal, advance))


async def _send(
    file: OutcomeFile,
    plan: ImportPlan,
    targets: ImportTargets,
    journal: ImportJournal,
    advance: Callable[[int, int | None], None] | None,
) -> dict[str, int]:
    done, total = journal.rows, len(plan.action)
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(
                AsyncClient(one, timeout=targets.timeout_s, credentials=targets.credentials)
            )
            for one in targets.servers
        ]
        sender = _Sender(file.checkpoint, targets, clients)
        rows = islice(file.rows(), done, None)
        while chunk := list(islice(rows, CHUNK)):
            try:
                results = await sender.report_all(chunk, plan)
            except ClientError as error:
                raise ImportStoppedError(
                    f"{done:,} of {total:,} rows are done, and the servers accept no further reports: "
                    f"{error}; repeat the command to continue"
                ) from None
            done += len(chunk)
            journal.commit(done, results.counts, results.rejected)
            if advance is not None:
                advance(done, total)
    return journal.counts


@dataclass
class _Results:
    counts: Counter[str] = field(default_factory=Counter)
    rejected: list[tuple[int, str]] = field(default_factory=list)


class _Sender:
    """Reports rows to the servers of their decisions."""

    def __init__(self, checkpoint: str, targets: ImportTargets, clients: Sequence[AsyncClient]) -> None:
        self._checkpoint, self._targets, self._clients = checkpoint, targets, clients
        self._slots = asyncio.Semaphore(targets.concurrency)
        self._preferred = 0
        self._failing_since: float | None = None
        self._stopped: ClientError | None = None

    async def report_all(
        self, chunk: Sequence[tuple[int, OutcomeRow | BadRowError]], plan: ImportPlan
    ) -> _Results:
        """Report the rows of a chunk that are to be reported.

        Raises:
            ClientError: A server rejects reports for a reason that holds for all rows.
        """
        results = _Results()
        tasks = []
        async with asyncio.TaskGroup() as group:
            for number, row in chunk:
                at = number - 1
                if isinstance(row, BadRowError) or plan.action[at] != SEND:
                    results.counts["skipped" if plan.action[at] == SKIP else "rejected by a rule"] += 1
                    continue
                task = group.create_task(self._caught(row, int(plan.revision[at]), int(plan.log[at])))
                tasks.append((number, task))
        for number, task in tasks:
            result = task.result()
            if isinstance(result, ClientError):
                raise result
            name, reason = result
            results.counts[name] += 1
            if reason:
                results.rejected.append((number, reason))
        return results

    async def _caught(self, row: OutcomeRow, revision: int, log: int) -> tuple[str, str] | ClientError:
        """Return the result of a row, or the error that ends the import, after all rows of the chunk."""
        async with self._slots:
            if self._stopped is not None:
                return self._stopped
            try:
                return await self._report(row, revision, log)
            except ClientError as error:
                self._stopped = error
                return error

    async def _report(self, row: OutcomeRow, revision: int, log: int) -> tuple[str, str]:
        pause = _PAUSE_S
        while True:
            try:
                result = await self._attempt(row, revision, log)
            except _TRANSIENT:
                # Of all rows, since the last success: otherwise each row would wait by itself.
                if self._failing_since is None:
                    self._failing_since = time.monotonic()
                if time.monotonic() + pause > self._failing_since + self._targets.patience_s:
                    raise
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_S)
            else:
                self._failing_since = None
                return result

    async def _attempt(self, row: OutcomeRow, revision: int, log: int) -> tuple[str, str]:
        """Report a row to one server after the other, until one of them can prove it.

        Raises:
            ClientError: No server can be reached, or a server denies access to all reports.
        """
        last: tuple[str, str] | None = None
        failed: ClientError | None = None
        for place in self._order(log):
            try:
                ack = await self._clients[place].report_outcome(
                    self._checkpoint,
                    row.decision_id,
                    row.kind,
                    row.value,
                    revision=revision,
                    occurred_at_ms=row.occurred_at_ms,
                    decision_token=row.token,
                )
            except IdConflictError as error:
                return "rejected by a server", str(error)
            except InvalidRequestError as error:
                return "rejected by a server", str(error)
            except AccessError as error:
                if not row.token:
                    raise
                # The token is that of another decision, or has expired.
                return "rejected by a server", str(error)
            except PreconditionError as error:
                # The server does not know the decision and rejects what is not proven.
                last = "rejected by a server", str(error)
                continue
            except _TRANSIENT as error:
                failed = error
                continue
            last = _result(ack)
            if ack.proven:
                self._preferred = place
                return last
        if failed is not None:
            # The server that is away may be the one that knows the decision.
            raise failed
        return last or ("rejected by a server", "there is no server")

    def _order(self, log: int) -> list[int]:
        """Return the places of the servers to call: that of the decision's log, or each of them once."""
        if log >= 0 and self._targets.logs == len(self._clients):
            return [log]
        # Other rows change the preferred server while this one is under way.
        count, first = len(self._clients), self._preferred
        return [(first + at) % count for at in range(count)]


def _result(ack: OutcomeAck) -> tuple[str, str]:
    if not ack.proven:
        return "unproven", ""
    if ack.duplicate:
        return "already recorded", ""
    return ("superseded" if ack.superseded else "recorded"), ""
