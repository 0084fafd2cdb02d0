"""From checked decisions of several bundles, and outcomes, to one experience."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from scorer.learn.errors import DataError
from scorer.learn.experience import Experience, State
from scorer.learn.join.catalogue import CatalogueLayout, carry_columns, map_actions
from scorer.learn.join.decisions import Block
from scorer.learn.join.findings import Findings
from scorer.learn.join.maturity import Windows, states
from scorer.learn.join.outcomes import JoinedOutcomes
from scorer.learn.join.settings import JoinSettings
from scorer.log.outcome_source import UNSPECIFIED

_SKEW_MS = 60_000


class NothingFitsError(DataError):
    """No decision can be carried over to the catalogue and the columns of the newest bundle."""


def assemble(
    checkpoint: str,
    blocks: Sequence[Block],
    outcomes: JoinedOutcomes,
    newest: CatalogueLayout,
    settings: JoinSettings,
    as_of_ms: int,
    of: Windows,
    findings: Findings,
) -> Experience:
    """One experience over the newest bundle's catalogue, in order of time.

    Args:
        checkpoint: whose decisions.
        blocks: sound decisions, each in its own bundle's layout.
        outcomes: what was known at the moment.
        newest: the layout to carry them over to.
        settings: what an outcome is worth.
        as_of_ms: the moment.
        of: the catalogue's maturity windows.
        findings: takes what cannot be carried over.

    Raises:
        NothingFitsError: nothing is left.
    """
    withheld = _withheld(blocks, findings)
    blocks = [_carried(block, newest, findings) for block in blocks]
    blocks = [block for block in blocks if len(block)]
    if not blocks:
        raise NothingFitsError(
            f'no decision of "{checkpoint}" fits the newest bundle; join an earlier moment'
        )
    time_us = np.concatenate([block.time_us for block in blocks])
    order = _in_time(time_us, np.concatenate([block.decision_id for block in blocks]))

    def column(name: str) -> npt.NDArray[Any]:
        return np.concatenate([getattr(block, name) for block in blocks])[order]

    ids, time_ms, action = column("decision_id"), time_us[order] // 1000, column("action")
    value, settled_ms, source = _outcomes(ids, time_ms, outcomes, findings)
    state = states(time_ms, action, ~np.isnan(value), as_of_ms, of)
    settled = state == State.SETTLED
    # What has to wait is known when its window ends: training must not learn from it earlier.
    ends = np.where(of.waits[action], time_ms + of.window_ms[action], settled_ms)
    settled_ms = np.maximum(settled_ms, ends)
    bundles, bundle = _bundles(blocks, order)
    lane_names = column("lane")
    lanes, lane = np.unique(lane_names, return_inverse=True)
    return Experience(
        decision_id=ids,
        entity=column("entity"),
        time_ms=time_ms,
        settled_ms=np.where(settled, settled_ms, -1),
        context=_without(column("context"), newest, withheld),
        eligible=column("eligible"),
        pmf=column("pmf"),
        action=action,
        propensity=column("propensity"),
        reward=np.where(settled, (value >= settings.threshold).astype(np.float64), np.nan),
        state=state,
        bundle=bundle,
        lane=lane.astype(np.int64),
        bundles=bundles,
        lanes=tuple(str(name) for name in lanes),
        actions=tuple(action.id for action in newest.actions),
        withheld=tuple(one.name for one in newest.features if one.name in withheld),
        source=np.where(settled, source, UNSPECIFIED).astype(np.int8),
    )


def _in_time(time_us: npt.NDArray[np.int64], ids: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """`[n]` rows in order of time, those of the same microsecond in order of their ids."""
    order = np.argsort(time_us, kind="stable")
    times = time_us[order]
    begins = np.flatnonzero(np.concatenate([[True], times[1:] != times[:-1], [True]]))
    for at in np.flatnonzero(np.diff(begins) > 1):
        same = slice(begins[at], begins[at + 1])
        order[same] = sorted(order[same].tolist(), key=lambda row: str(ids[row]))
    return order


def _bundles(
    blocks: Sequence[Block], order: npt.NDArray[np.int64]
) -> tuple[tuple[str, ...], npt.NDArray[np.int64]]:
    """Digests in the order of their first decisions, and `[n]` the position of each decision's bundle."""
    digests = sorted({block.layout.digest for block in blocks})
    code = np.concatenate([np.full(len(block), digests.index(block.layout.digest)) for block in blocks])[
        order
    ]
    known, first = np.unique(code, return_index=True)
    known = known[np.argsort(first)]
    return tuple(digests[at] for at in known), np.argsort(known)[code]


def _withheld(blocks: Sequence[Block], findings: Findings) -> set[str]:
    """Names of the features that lack sensitive values in any decision."""
    names: set[str] = set()
    for block in blocks:
        rows = block.withheld.sum(axis=0)
        for at in np.flatnonzero(rows):
            name = block.layout.features[at].name
            names.add(name)
            findings.add("withheld feature", name, int(rows[at]))
    return names


def _without(
    context: npt.NDArray[np.float32], newest: CatalogueLayout, withheld: set[str]
) -> npt.NDArray[np.float32]:
    for at, feature in enumerate(newest.features):
        if feature.name in withheld:
            context[:, at] = np.nan
    return context


def _carried(block: Block, newest: CatalogueLayout, findings: Findings) -> Block:
    """A block in the newest bundle's layout; what cannot be carried over is noted and left out."""
    if block.layout.digest == newest.digest:
        return block
    actions = map_actions(block.layout.actions, newest.actions)
    gone, other = actions.to[block.action] < 0, actions.redefined[block.action]
    context, fits = carry_columns(block.context, block.layout.features, newest.features)
    stays = ~gone & ~other & fits
    for name, rows in (
        ("action left the catalogue", gone),
        ("action was redefined", ~gone & other),
        ("context cannot be carried over", ~gone & ~other & ~fits),
    ):
        findings.add_ids(name, pa.array(block.decision_id[rows].tolist(), pa.string()))
    at = np.flatnonzero(stays)
    own = np.flatnonzero(actions.stays)
    pmf = np.zeros((len(at), actions.width), dtype=np.float32)
    eligible = np.zeros((len(at), actions.width), dtype=bool)
    mass = block.pmf[np.ix_(at, own)].astype(np.float64).sum(axis=1)
    whole = bool((block.pmf[at][:, ~actions.stays] == 0).all())
    # What stays of a decision is a draw among the actions that stay.
    scale = np.ones(len(at)) if whole else mass
    pmf[:, actions.to[own]] = block.pmf[np.ix_(at, own)] / scale[:, None]
    eligible[:, actions.to[own]] = block.eligible[np.ix_(at, own)]
    if not actions.is_identity:
        findings.add("catalogue changed", f"{block.layout.digest[:19]} to {newest.digest[:19]}", len(at))
    return block.take(
        at,
        context=context[at],
        eligible=eligible,
        pmf=pmf,
        action=actions.to[block.action[at]],
        propensity=block.propensity[at] / scale,
    )


def _outcomes(
    ids: npt.NDArray[Any], time_ms: npt.NDArray[np.int64], outcomes: JoinedOutcomes, findings: Findings
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64], npt.NDArray[np.int8]]:
    """`[n]` the value that counts (NaN: none), when it became known, and the kind of its source."""
    row = outcomes.rows_of(ids)
    there = np.flatnonzero(row >= 0)
    value, known = np.full(len(ids), np.nan), np.full(len(ids), -1, dtype=np.int64)
    source = np.full(len(ids), UNSPECIFIED, dtype=np.int8)
    value[there], source[there] = outcomes.value[row[there]], outcomes.source[row[there]]
    known[there] = np.maximum(outcomes.known_ms[row[there]], time_ms[there])
    occurred = outcomes.occurred_at_ms[row[there]]
    early = there[(occurred > 0) & (occurred < time_ms[there] - _SKEW_MS)]
    findings.add_ids("outcome before its decision", pa.array(ids[early].tolist(), pa.string()))
    return value, known, source
