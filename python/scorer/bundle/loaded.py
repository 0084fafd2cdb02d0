"""A verified bundle for offline work: scoring, replay, evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from scorer.errors import BundleError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from scorer.bridge import RawBundle

    Rows = npt.NDArray[np.float32]
    Doubles = npt.NDArray[np.float64]

_CHUNK_VALUES = 1 << 22


@dataclass(frozen=True)
class Scores:
    """What a score bundle says about rows; one entry per row."""

    margins: Doubles
    scores: Doubles
    bands: npt.NDArray[np.uint32]
    """Index into the bundle's labels."""


@dataclass(frozen=True)
class Selection:
    """What an action bundle chose, and from what."""

    index: int
    action: str
    propensity: float
    expected_reward: float
    pmf: Doubles
    """Over the whole catalogue."""
    expected_rewards: Doubles
    """Over the whole catalogue; NaN where not eligible."""


class Bundle:
    """A bundle whose files, structure and golden cases have been verified.

    Rows are float32 in schema order; `scorer.bundle.encode` makes them from named columns.
    """

    def __init__(self, raw: RawBundle) -> None:
        self._raw = raw

    @classmethod
    def load(cls, path: str | PathLike[str], digest: str | None = None) -> Bundle:
        """Reads and verifies a bundle's directory.

        Raises:
            BundleError: With one line that names what is wrong and what to do.
        """
        from scorer import bridge

        return cls(bridge.RawBundle.load(fspath(path), digest))

    @property
    def digest(self) -> str:
        """``sha256:`` and 64 hexadecimal digits."""
        return self._raw.digest

    @property
    def name(self) -> str:
        """Name of the bundle, as in its manifest."""
        return self._raw.name

    @property
    def kind(self) -> str:
        """Kind of the bundle: ``score`` or ``action``."""
        return self._raw.kind

    @property
    def num_features(self) -> int:
        """Features of a request's row."""
        return self._raw.num_features

    @property
    def schema_fingerprint(self) -> int:
        """What callers of dense rows must name."""
        return self._raw.schema_fingerprint

    @cached_property
    def labels(self) -> Sequence[str]:
        """The score bands' labels; empty for an action bundle."""
        return self._raw.labels

    @cached_property
    def actions(self) -> Sequence[str]:
        """The actions' ids in catalogue order; empty for a score bundle."""
        return self._raw.action_ids

    @property
    def policy(self) -> str | None:
        """The policy in one line."""
        return self._raw.policy

    @property
    def forests(self) -> Sequence[Mapping[str, int]]:
        """Size of each forest, the oracle's first."""
        return [
            {"trees": trees, "nodes": nodes, "outputs": outputs}
            for trees, nodes, outputs in self._raw.forests
        ]

    def check(self, rows: Any) -> None:
        """Refuses rows that the schema refuses."""
        for _, chunk in self._chunks(rows):
            self._raw.check_rows(chunk)

    def score(self, rows: Any) -> Scores:
        """Score ``[n, features]`` float32 rows offline, as the server does."""
        import numpy as np

        whole = self._rows(rows)
        out = Scores(np.empty(len(whole)), np.empty(len(whole)), np.empty(len(whole), np.uint32))
        for part, chunk in self._chunks(whole):
            self._raw.score(chunk, out.margins[part], out.scores[part], out.bands[part])
        return out

    def select(self, row: Any, *, checkpoint: str, decision_id: str, eligible: Any = None) -> Selection:
        """Chooses as the server would for this decision.

        Args:
            row: The context's features.
            checkpoint: The checkpoint's name.
            decision_id: The decision's id.
            eligible: A mask as bytes, booleans over the catalogue, or None for every action.
        """
        return self._select(row, eligible, (checkpoint, decision_id))

    def select_greedy(self, row: Any, *, eligible: Any = None) -> Selection:
        """Takes the best eligible action, as the server does while exploration is stopped."""
        return self._select(row, eligible, None)

    def evaluate(self, rows: Any, *, eligible: Any = None) -> tuple[Doubles, Doubles]:
        """Probabilities and expected rewards, each ``[n, actions]``, without choosing.

        Args:
            rows: The contexts.
            eligible: Booleans ``[n, actions]``, or None for every action.
        """
        import numpy as np

        whole = self._rows(rows)
        masks = None if eligible is None else np.asarray(eligible, dtype=bool)
        if masks is not None and masks.shape != (len(whole), len(self.actions)):
            raise BundleError(
                f"eligible has shape {masks.shape}, {(len(whole), len(self.actions))} is needed"
            )
        pmf = np.empty((len(whole), len(self.actions)))
        rewards = np.empty_like(pmf)
        for part, chunk in self._chunks(whole):
            packed = None if masks is None else np.packbits(masks[part], axis=1, bitorder="little").tobytes()
            self._raw.evaluate_actions(chunk, packed, pmf[part], rewards[part])
        return pmf, rewards

    def _select(self, row: Any, eligible: Any, ids: tuple[str, str] | None) -> Selection:
        import numpy as np

        if eligible is not None and not isinstance(eligible, bytes):
            eligible = np.packbits(np.asarray(eligible, dtype=bool), bitorder="little").tobytes()
        pmf, rewards = np.empty(len(self.actions)), np.empty(len(self.actions))
        values = np.ascontiguousarray(row, dtype=np.float32)
        index, propensity, reward = self._raw.select(values, eligible, ids, pmf, rewards)
        return Selection(index, self.actions[index], propensity, reward, pmf, rewards)

    def _rows(self, rows: Any) -> Rows:
        import numpy as np

        array = np.ascontiguousarray(rows, dtype=np.float32)
        if array.ndim != 2 or array.shape[1] != self.num_features:
            raise BundleError(
                f"rows have shape {array.shape}, [n, {self.num_features}] is needed; see the bundle's schema"
            )
        return array

    def _chunks(self, rows: Any) -> Iterator[tuple[slice, Rows]]:
        whole = self._rows(rows)
        step = max(1, _CHUNK_VALUES // max(self.num_features, len(self.actions), 1))
        for start in range(0, len(whole), step):
            part = slice(start, min(start + step, len(whole)))
            yield part, whole[part]
