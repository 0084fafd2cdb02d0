"""Metrics of a canary: decisions of the new bundle's answer lane and of the lane of the previous bundle.

The two lanes answer different requests, so differences are between independent samples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from scorer.release.gates.evidence import Observed, ShadowEvidence, blank, empty
from scorer.release.gates.measured import Measured, nothing
from scorer.release.gates.metrics import measure
from scorer.release.readout import parts
from scorer.release.readout.load import CodeNames, Where, first_records, renamed, segments
from scorer.release.store import micros
from scorer.stats import distances
from scorer.stats.proportions import independent_difference

LANE = "canary"
MOST = 500_000
"""Largest number of decisions of a stage that are read into memory."""
_READ = ["lane", "bundle", "key", "at", "score", "label", "fallback", "exec_us", "load_us"]
# Fallback reasons that the model causes. Other reasons, such as overload, are caused by the server.
_OWN_FAULT = ("panic", "non_finite", "error", "breaker")
_DISTANCES: dict[str, Callable[[Any, Any], float]] = {
    "score_psi": distances.psi,
    "score_psi_live": distances.psi,
    "score_kl": distances.kl,
    "score_js": distances.js,
}
_NO_CANARY = (
    "no decision of the canary has been read yet; check that there is traffic, and that the platform reads "
    "the log of every server"
)
_NO_LIVE = "the lane that was live before has not answered since"


def measure_canary(name: str, evidence: ShadowEvidence, against: str, minus: bool) -> Measured:
    """Compute a metric of a canary; the arguments are those of `metrics.measure`.

    In the evidence, `shadow` has the decisions of the canary, and `control` those of the previous bundle's
    lane.
    """
    own, live = evidence.shadow, evidence.control
    if not len(own):
        return nothing(_NO_CANARY)
    # A fallback's score is not the model's.
    model = own.take(own.live_fallback == 0)
    if against != "live":
        whole = evidence if name not in _DISTANCES else replace(evidence, shadow=model)
        return measure(name, whole, against, minus)
    if name == "approve_rate_delta" and len(live):
        return _approve(evidence)
    before = live.take((live.live_fallback == 0) & live.scored)
    if not len(before) or not model.scored.any():
        return nothing(_NO_LIVE, len(model))
    binned = distances.by_samples(before.score, model.score[model.scored])
    return Measured(_DISTANCES[name](binned.second, binned.first), len(model), chance=binned.null_psi)


def answers(where: Where, bundle: str, names: CodeNames) -> tuple[Observed, Observed, int]:
    """Read the decisions of a canary's bundle, and those of other bundles.

    At most about `MOST` decisions of both together are read. If there are more, every n-th decision by its
    key is read. A share that is estimated from them has a standard error of at most 0.5 / sqrt(MOST), or 0.07
    percentage points.

    Args:
        where: The rows to read.
        bundle: Digest of the canary's bundle.
        names: Codes of names, to which new names are added.

    Returns:
        The bundle's decisions, the other decisions, and n.
    """
    own: list[dict[str, Any]] = []
    live: list[dict[str, Any]] = []
    within = [(server, part) for server, part in where.parts() if _reaches(part, where.begin)]
    count = sum(pq.read_metadata(part.path).num_rows for _, part in within)
    thin = max(-(-count // MOST), 1)
    for server, part in within:
        table = parts.read(part, [*_READ, *map(parts.segment_column, names.segments)], where.filters())
        if thin > 1:
            table = table.filter(pa.array(table["key"].to_numpy() % np.uint64(thin) == 0))
        lane, digest = (pc.cast(table[name], pa.string()) for name in ("lane", "bundle"))
        of_canary = pc.and_(pc.equal(lane, LANE), pc.equal(digest, bundle))
        for kept, mask in ((own, of_canary), (live, pc.not_equal(digest, bundle))):
            rows = table.filter(mask)
            if len(rows):
                kept.append(_as_observed(rows, server, names))
    return *_answered_once(_joined(own, names), _joined(live, names)), thin


def _reaches(part: parts.Part, begin: int | None) -> bool:
    """Return whether a part has rows at or after a time, by the statistics in its footer."""
    if begin is None:
        return True
    metadata = pq.read_metadata(part.path)
    place = metadata.schema.names.index("at")
    for group in range(metadata.num_row_groups):
        statistics = metadata.row_group(group).column(place).statistics
        if statistics is None or not statistics.has_min_max or _micros(statistics.max) >= begin:
            return True
    return False


def _micros(value: Any) -> int:
    return value if isinstance(value, int) else micros(value)


def _approve(evidence: ShadowEvidence) -> Measured:
    names = evidence.shadow.labels()
    if evidence.approve not in names:
        return nothing(f'no decision is called "{evidence.approve}"', len(evidence.shadow))
    code = names.index(evidence.approve)
    own, live = evidence.shadow.label == code, evidence.control.label == code
    first, second = (int(own.sum()), len(own)), (int(live.sum()), len(live))
    remark = f"live approves {100 * live.mean():.2f} %, the canary {100 * own.mean():.2f} %"
    return Measured(
        float(own.mean() - live.mean()),
        len(own),
        partial(independent_difference, first, second),
        remark=remark,
    )


def _as_observed(table: Any, server: str, names: CodeNames) -> dict[str, Any]:
    fallback = names.codes("live_fallback", table["fallback"])
    columns = blank(len(table)) | {
        "key": table["key"].to_numpy().astype(np.uint64),
        "at": table["at"].to_numpy().astype(np.int64),
        "server": np.full(len(table), names.code("server", server), dtype=np.int64),
        "label": names.codes("label", table["label"]),
        "live_fallback": fallback,
        "segments": segments(table, names),
    }
    for name in ("score", "exec_us", "load_us"):
        columns[name] = table[name].to_numpy(zero_copy_only=False).astype(np.float64)
    for reason in _OWN_FAULT:
        columns["error"][fallback == names.code("live_fallback", reason)] = names.code("error", reason)
    return columns


def _joined(found: list[dict[str, Any]], names: CodeNames) -> Observed:
    if not found:
        return renamed(empty(), names)
    joined = {name: np.concatenate([one[name] for one in found]) for name in found[0]}
    order = first_records(joined["key"], joined["at"])
    return Observed(**{name: values[order] for name, values in joined.items()}, names=names.words())


def _answered_once(own: Observed, live: Observed) -> tuple[Observed, Observed]:
    """Leave out the later record of each decision that both lanes made, at two servers during a change."""
    _, of_own, of_live = np.intersect1d(own.key, live.key, return_indices=True)
    is_later = own.at[of_own] > live.at[of_live]
    kept_own, kept_live = np.ones(len(own), dtype=bool), np.ones(len(live), dtype=bool)
    kept_own[of_own[is_later]] = False
    kept_live[of_live[~is_later]] = False
    return own.take(kept_own), live.take(kept_live)


def since(root: Path, checkpoint: str, begin: int) -> Where:
    """Select the answers of a checkpoint at or after a time, in microseconds since the Unix epoch."""
    return Where(root, checkpoint, parts.ANSWERS, begin)
