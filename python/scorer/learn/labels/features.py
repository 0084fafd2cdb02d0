"""The features of decisions as their bundles logged them, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from scorer.bundle import Feature
from scorer.learn.labels.histories import Histories
from scorer.log.source.interface import SourceQuery
from scorer.stats.arrays import Bools, Ints, Rows32

if TYPE_CHECKING:
    from scorer.log import ReaderKey
    from scorer.log.reading import Advance
    from scorer.log.source.interface import DecisionSource


@dataclass(frozen=True)
class LoggedRows:
    """Some decisions of one bundle with their features.

    Attributes:
        row: `[n]` rows of the histories.
        decision_id: The ids.
        digest: Digest of the bundle.
        context: `[n, features]` in the layout of the bundle.
        withheld: Whether values of sensitive features are missing because no key was given.
    """

    row: Ints
    decision_id: pa.Array
    digest: str
    context: Rows32
    withheld: bool = False


class LoggedFeatures:
    """Reads the features of chosen decisions.

    Args:
        source: The logs that the histories were read from.
        histories: The decisions.
        chosen: ``[n]`` whether a decision is read.
        layouts: Features of each known bundle, by digest.
        advance: Called with the progress over a log.
        reader_key: Key that decrypts sensitive features.
    """

    def __init__(
        self,
        source: DecisionSource,
        histories: Histories,
        chosen: Bools,
        layouts: Mapping[str, Sequence[Feature]],
        advance: Advance | None = None,
        reader_key: ReaderKey | None = None,
    ) -> None:
        self._source, self._histories, self._chosen = source, histories, chosen
        self._layouts, self._advance, self._reader_key = layouts, advance, reader_key
        self.left_out: dict[str, int] = {}
        """Number of decisions without usable features, by reason. Complete after the iteration."""

    def __iter__(self) -> Iterator[LoggedRows]:
        self.left_out = {}
        for place, log in enumerate(self._source.logs):
            rows = np.flatnonzero((self._histories.log == place) & self._chosen)
            rows = rows[np.argsort(self._histories.sequence[rows], kind="stable")]
            sequences = self._histories.sequence[rows]
            if not len(rows):
                continue
            query = SourceQuery(
                self._histories.query.checkpoint,
                max(self._histories.query.since_ms * 1000, 0),
                self._histories.query.rows,
                self._reader_key,
            )
            for batch in log.read(query, None, self._advance):
                if batch.kind == "decisions":
                    yield from self._batch(batch.rows, rows, sequences)

    def _batch(self, table: pa.Table, rows: Ints, sequences: Ints) -> Iterator[LoggedRows]:
        own = table["sequence"].to_numpy()
        place = np.minimum(np.searchsorted(sequences, own), len(sequences) - 1)
        at = np.flatnonzero(sequences[place] == own)
        if not len(at):
            return
        part = table.take(pa.array(at)).combine_chunks()
        row = rows[place[at]]
        bundles = part["bundle"].combine_chunks()
        codes = bundles.indices.to_numpy()
        for code, digest in enumerate(bundles.dictionary.to_pylist()):
            of = np.flatnonzero(codes == code)
            if not len(of):
                continue
            layout = self._layouts.get(digest)
            if layout is None:
                self._leave("unknown bundle", len(of))
                continue
            lists = part["features"].combine_chunks().take(pa.array(of))
            lengths = np.diff(lists.offsets.to_numpy())
            whole = lengths == len(layout)
            self._leave("columns do not fit", int((~whole).sum()))
            of = of[whole]
            if not len(of):
                continue
            flat = lists.filter(pa.array(whole)).flatten().to_numpy(zero_copy_only=False)
            context = np.asarray(flat, np.float32).reshape(len(of), len(layout))
            chosen = pa.array(of)
            withheld = part["withheld"].combine_chunks().take(chosen)
            yield LoggedRows(
                row[of],
                part["decision_id"].combine_chunks().take(chosen),
                digest,
                context,
                bool(len(withheld.flatten())),
            )

    def _leave(self, name: str, count: int) -> None:
        if count:
            self.left_out[name] = self.left_out.get(name, 0) + count
