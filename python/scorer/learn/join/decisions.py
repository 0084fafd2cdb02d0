"""Decisions of one checkpoint out of the log, checked row by row, in columns per bundle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from scorer.errors import BundleError
from scorer.ids import eligible_actions, record_key
from scorer.learn.join.catalogue import Layout
from scorer.learn.join.findings import LATER, Findings
from scorer.log.tables import digest_of, is_action

if TYPE_CHECKING:
    from scorer.log import BundleShelf
    from scorer.v1.log_pb2 import DecisionRecord

_BATCH = 8192
_SUM = 1e-6
_AGREE = 1e-9

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Block:
    """Sound decisions of one bundle, in its own layout; `[n]` or `[n, ..]` each."""

    layout: Layout
    sequence: Ints
    decision_id: list[str]
    entity: list[str]
    lane: list[str]
    time_us: Ints
    context: npt.NDArray[np.float32]
    eligible: Bools
    pmf: npt.NDArray[np.floating]
    action: Ints
    propensity: Floats

    def __len__(self) -> int:
        return len(self.action)


class Decisions:
    """Takes the decisions of a checkpoint in the log's order.

    Args:
        shelf: where bundles are.
        findings: takes what is wrong.
        until_us: decisions from later are not seen.
        since_us: decisions from before are left out.
    """

    def __init__(self, shelf: BundleShelf, findings: Findings, until_us: int, since_us: int) -> None:
        self._shelf = shelf
        self._findings = findings
        self._until, self._since = until_us, since_us
        self._seen: set[bytes] = set()
        self._layouts: dict[str, Layout | None] = {}
        self._waiting: dict[str, list[tuple[int, DecisionRecord]]] = {}
        self._newest: tuple[int, int, str] | None = None
        self.blocks: list[Block] = []

    def add(self, sequence: int, decision: DecisionRecord) -> None:
        """Takes the next decision of the checkpoint."""
        note, name = self._findings.add, decision.decision_id
        key = record_key(name)
        if key in self._seen:
            note("repeated decision", name)
            return
        if decision.decided_at_us > self._until:
            note(LATER)
            return
        self._seen.add(key)
        if decision.decided_at_us < self._since:
            note("before the window")
        elif decision.fallback_source == "greedy":
            note("exploration stopped", name)
        elif decision.fallback_source:
            note("fallback answer", f"{name} ({decision.fallback_source})")
        elif not is_action(decision):
            note("no action", name)
        else:
            digest = digest_of(decision)
            if self._layout(digest, name) is None:
                return
            rows = self._waiting.setdefault(digest, [])
            rows.append((sequence, decision))
            if len(rows) >= _BATCH:
                self._flush(digest)

    def finish(self) -> None:
        """Takes what still waits into `blocks`."""
        for digest in list(self._waiting):
            self._flush(digest)

    def knows(self, decision_id: str) -> bool:
        """Whether the checkpoint has this decision, left out or not."""
        return record_key(decision_id) in self._seen

    @property
    def newest(self) -> Layout | None:
        """The layout of the bundle that made the newest sound decision."""
        return None if self._newest is None else self._layouts[self._newest[2]]

    def _layout(self, digest: str, name: str) -> Layout | None:
        if digest not in self._layouts:
            self._layouts[digest] = self._read(digest)
        layout = self._layouts[digest]
        if layout is None:
            missing = digest not in self._shelf.digests
            self._findings.add("unknown bundle" if missing else "unusable bundle", f"{name} ({digest[:19]})")
        return layout

    def _read(self, digest: str) -> Layout | None:
        try:
            bundle = self._shelf.get(digest)
        except BundleError:
            return None
        if bundle is None or bundle.kind != "action":
            return None
        return Layout(
            digest,
            tuple(self._shelf.schema(digest).features),
            tuple(self._shelf.catalogue(digest)),
            bundle.schema_fingerprint,
        )

    def _flush(self, digest: str) -> None:
        layout = self._layouts[digest]
        rows = self._waiting.pop(digest)
        if layout is None or not (rows := self._fitting(rows, layout)):
            return
        block = _block(rows, layout)
        sound = self._sound(block)
        if not sound.any():
            return
        at = np.flatnonzero(sound)
        last = int(at[np.lexsort((block.sequence[at], block.time_us[at]))[-1]])
        newest = (int(block.time_us[last]), int(block.sequence[last]), digest)
        self._newest = newest if self._newest is None else max(self._newest, newest)
        self.blocks.append(_take(block, at))

    def _fitting(
        self, rows: Sequence[tuple[int, DecisionRecord]], layout: Layout
    ) -> list[tuple[int, DecisionRecord]]:
        fitting = []
        for sequence, decision in rows:
            width = len(decision.features) == len(layout.features)
            if not width or decision.schema_fingerprint != layout.fingerprint:
                self._findings.add("columns do not fit", decision.decision_id)
            elif len(decision.pmf) != len(layout.actions):
                self._findings.add("pmf of another length", decision.decision_id)
            else:
                position = decision.action_index
                if position >= len(layout.actions) or layout.actions[position].id != decision.action:
                    self._findings.add(
                        "action is not the catalogue's", f"{decision.decision_id} ({decision.action})"
                    )
                else:
                    fitting.append((sequence, decision))
        return fitting

    def _sound(self, block: Block) -> Bools:
        """`[n]` whether all of a row's probabilities hold; the first broken rule is noted."""
        exact = block.pmf
        taken = exact[np.arange(len(block)), block.action]
        p = block.propensity
        with np.errstate(invalid="ignore"):
            rules = (
                ("pmf with impossible values", ~((exact >= 0) & (exact <= 1 + _SUM)).all(axis=1)),
                ("pmf does not sum to 1", ~(np.abs(exact.sum(axis=1) - 1) <= _SUM)),
                ("mass outside the eligible set", (np.where(block.eligible, 0, exact) != 0).any(axis=1)),
                ("no propensity", ~((p > 0) & (p <= 1 + _SUM))),
                ("propensity is not pmf[action]", ~(np.abs(p - taken) <= _AGREE)),
            )
        sound = np.ones(len(block), dtype=bool)
        for name, broken in rules:
            self._findings.add_all(name, (block.decision_id[at] for at in np.flatnonzero(sound & broken)))
            sound &= ~broken
        return sound


def _block(rows: Sequence[tuple[int, DecisionRecord]], layout: Layout) -> Block:
    decisions = [decision for _, decision in rows]
    count, width = len(rows), len(layout.actions)
    return Block(
        layout=layout,
        sequence=np.array([sequence for sequence, _ in rows], dtype=np.int64),
        decision_id=[one.decision_id for one in decisions],
        entity=[one.entity for one in decisions],
        lane=[one.lane for one in decisions],
        time_us=np.array([one.decided_at_us for one in decisions], dtype=np.int64),
        context=np.array([list(one.features) for one in decisions], dtype=np.float32).reshape(count, -1),
        eligible=np.stack([eligible_actions(one.eligible_mask, width) for one in decisions]),
        pmf=np.array([list(one.pmf) for one in decisions], dtype=np.float64),
        action=np.array([one.action_index for one in decisions], dtype=np.int64),
        propensity=np.array([one.propensity for one in decisions], dtype=np.float64),
    )


def _take(block: Block, at: npt.NDArray[np.intp]) -> Block:
    """The rows at these positions, with the pmf as it is kept."""
    return replace(
        block,
        sequence=block.sequence[at],
        decision_id=[block.decision_id[row] for row in at],
        entity=[block.entity[row] for row in at],
        lane=[block.lane[row] for row in at],
        time_us=block.time_us[at],
        context=block.context[at],
        eligible=block.eligible[at],
        pmf=block.pmf[at].astype(np.float32),
        action=block.action[at],
        propensity=block.propensity[at],
    )
