"""Reading a log in batches, from the position of a sink to the last record on stable storage."""

from __future__ import annotations

import os
from bisect import bisect_left
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from scorer.errors import LogError, ShipError, SinkUnavailableError
from scorer.log.reading import LogReader
from scorer.log.segments import SegmentFile, segment_files
from scorer.log.shipped.position import ShipPosition, fingerprint
from scorer.ship.batch import Batch, Gap, SegmentRun
from scorer.ship.erasures import Erasures

_ATTEMPTS = 20
"""Number of readings in a row that may be discarded because the log was repaired meanwhile."""


@dataclass
class _Pass:
    """A pass of a reader over the log's directory as it was listed."""

    reader: LogReader
    segments: list[SegmentFile]
    """The segments, oldest first."""
    durable: int
    """Records below this sequence were on stable storage when the pass began."""
    unsynced: list[int]
    """Descriptors of the segments that may hold other records."""

    def close(self) -> None:
        """Close the segments."""
        while self.unsynced:
            os.close(self.unsynced.pop())

    def sync(self, last: int) -> None:
        """Wait until the records up to a sequence are on stable storage."""
        if last >= self.durable:
            for descriptor in self.unsynced:
                os.fdatasync(descriptor)


class LogSource:
    """The records of a log in batches.

    A record is returned only after it is on stable storage. Otherwise the machine could lose it after it was
    delivered, and the log would use its sequence again for another record.

    Args:
        directory: The log's directory. A server may write to it.
        server: Id of that server.
        max_records: Largest number of records of a batch.
        max_bytes: Size in bytes at which a batch ends.
        accept_new_log: Whether a log may be shipped from its first record if the sink holds another log of
            the server.
    """

    def __init__(
        self,
        directory: Path,
        server: str,
        *,
        max_records: int,
        max_bytes: int,
        accept_new_log: bool = False,
    ) -> None:
        self.directory, self.server = directory, server
        self._max_records, self._max_bytes = max_records, max_bytes
        self._accept_new_log = accept_new_log
        self._erasures = Erasures(directory)
        self._pass: _Pass | None = None
        self._next: tuple[ShipPosition | None, int | None] = (None, None)
        self.notes: list[str] = []
        """Messages for the operator since they were last taken."""

    def read(self, position: ShipPosition | None) -> Batch | None:
        """Return the next records after a position; None if the log has none at present.

        Args:
            position: The position of the sink; None if nothing was shipped to it.

        Raises:
            ShipError: The log is not the one that was shipped to this position.
            SinkUnavailableError: The log cannot be read or synced now.
        """
        try:
            return self._read(position)
        except OSError as error:
            self.forget()
            raise SinkUnavailableError(
                f'log "{self.directory}" cannot be read: {error.strerror or error}; repair its disk'
            ) from None
        except LogError as error:
            self.forget()
            raise SinkUnavailableError(str(error)) from None
        except BaseException:
            self.forget()
            raise

    def forget(self) -> None:
        """End the present pass, so that retention can remove segments."""
        if self._pass is not None:
            self._pass.close()
            self._pass = None

    def _read(self, position: ShipPosition | None) -> Batch | None:
        for _ in range(_ATTEMPTS):
            current, expected = self._continue(position)
            if current is None:
                return None
            found = current.reader.batch(self._max_records, self._max_bytes)
            if found is None:
                self.forget()
                return None
            sequences, payloads = found
            current.sync(sequences[-1])
            if self._was_repaired(current, sequences[-1]):
                # The log continued before these records in a new segment, so they may be void.
                self.forget()
                continue
            batch = self._batch(current, position, expected, sequences, payloads)
            if batch.is_full:
                self._next = batch.end, sequences[-1] + 1
            else:
                self.forget()
            return batch
        raise SinkUnavailableError(f'log "{self.directory}" is being repaired; try again')

    def _continue(self, position: ShipPosition | None) -> tuple[_Pass | None, int | None]:
        """Return a pass at a position, and the sequence that is expected next."""
        if self._pass is not None and self._next[0] == position:
            return self._pass, self._next[1]
        self.forget()
        # A directory without segments is a log whose server has not started yet.
        segments = segment_files(self.directory)[::-1] if self.directory.is_dir() else []
        if not segments:
            return None, None
        start = self._start(position, segments)
        durable = max(segment.durable for segment in segments)
        unsynced: list[int] = []
        try:
            for at, segment in enumerate(segments):
                if min((later.first for later in segments[at + 1 :]), default=durable + 1) > durable:
                    with suppress(FileNotFoundError):
                        path = self.directory / f"{segment.name}.seg"
                        unsynced.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
            reader = LogReader(self.directory, start or 0)
        except BaseException:
            for descriptor in unsynced:
                os.close(descriptor)
            raise
        self._pass = _Pass(reader, segments, durable, unsynced)
        return self._pass, start

    def _start(self, position: ShipPosition | None, segments: list[SegmentFile]) -> int | None:
        """Return the sequence at which shipping continues; None if it begins with the log's first record.

        Raises:
            ShipError: The log is another one than the position's, or an older state of it.
        """
        if position is None:
            # Segments that were removed before the first delivery are not a gap of this sink.
            return 1 if segments[0].number == 1 else None
        if fingerprint(segments[-1].log) != position.log:
            if self._accept_new_log:
                self.notes.append(f'log "{self.directory}" replaces the log that was shipped before')
                return None
            raise ShipError(
                f'log "{self.directory}" is not the log of server "{self.server}" that the sink holds; give '
                "this "
                "server an id of its own, or run `scorer ship --accept-new-log` once if the log was replaced"
            )
        same = next((at for at, segment in enumerate(segments) if segment.number == position.number), None)
        is_fork = same is not None and fingerprint(segments[same].uuid) != position.segment
        if is_fork or segments[-1].number < position.number:
            raise ShipError(
                f'log "{self.directory}" is an older state of what server "{self.server}" has shipped (up to '
                "sequence "
                f"{position.sequence - 1}, segment {position.number}); restore the newer log, or give this "
                "server an id of its own"
            )
        if same is not None:
            limit = min((later.first for later in segments[same + 1 :]), default=position.sequence)
            if limit < position.sequence:
                self.notes.append(
                    f"the log continued at sequence {limit} in a new segment after {position.sequence - 1} "
                    "was shipped; its records are shipped from there"
                )
                return limit
        return position.sequence

    def _was_repaired(self, current: _Pass, last: int) -> bool:
        known = {segment.uuid for segment in current.segments}
        return any(one.first <= last and one.uuid not in known for one in segment_files(self.directory))

    def _batch(
        self,
        current: _Pass,
        position: ShipPosition | None,
        expected: int | None,
        sequences: list[int],
        payloads: list[bytes],
    ) -> Batch:
        is_full = len(sequences) >= self._max_records or sum(map(len, payloads)) >= self._max_bytes
        gaps = _gaps(current.reader, expected, sequences)
        last = _segment_of(current.segments, sequences[-1])
        end = ShipPosition(fingerprint(last.log), last.number, fingerprint(last.uuid), sequences[-1] + 1)
        kept, kept_payloads = self._erasures.without_erased(sequences, payloads)
        return Batch(
            server=self.server,
            log=last.log.hex(),
            sequences=kept,
            payloads=kept_payloads,
            runs=_runs(current.segments, kept),
            begin=position,
            end=end,
            gaps=gaps,
            erased=len(sequences) - len(kept),
            is_full=is_full,
        )


def _segment_of(segments: list[SegmentFile], sequence: int) -> SegmentFile:
    """Return the segment that holds a record: the newest one that begins at or before it."""
    return next((one for one in reversed(segments) if one.first <= sequence), segments[0])


def _runs(segments: list[SegmentFile], sequences: list[int]) -> list[SegmentRun]:
    runs: list[SegmentRun] = []
    at = 0
    while at < len(sequences):
        segment = _segment_of(segments, sequences[at])
        runs.append(SegmentRun(at, segment.number, segment.name))
        later = [one.first for one in segments if one.number > segment.number]
        limit = min(later, default=sequences[-1] + 1)
        at = bisect_left(sequences, limit, lo=at)
    return runs


def _gaps(reader: LogReader, expected: int | None, sequences: list[int]) -> list[Gap]:
    first = sequences[0] if expected is None else expected
    if sequences[-1] - first + 1 == len(sequences):
        return []
    gaps = []
    for sequence in sequences:
        if sequence > first:
            lost = (one for one in reader.findings if one.lost and one.lost[0] <= first <= one.lost[1])
            finding = next(lost, None)
            reason = "their segments were removed" if finding is None else finding.detail
            gaps.append(Gap(first, sequence - 1, reason))
        first = sequence + 1
    return gaps
