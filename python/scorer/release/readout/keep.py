"""Storage of final reports: the document for pages, and the columns for views by window and server."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from scorer.bundle.models import Distribution
from scorer.figure import Figure
from scorer.release.answers import Readout, SegmentReport, SegmentResult, SegmentValue
from scorer.release.gates.evidence import Counter, Flip, Observed, ShadowEvidence
from scorer.release.model import GateResult, Outcome
from scorer.release.readout import parts
from scorer.release.segments.settings import NO_PLAN, SegmentPlan
from scorer.release.store import instant, micros

_LANES = ("shadow", "control")
_ABOUT = "evidence.json"


def save(folder: Path, evidence: ShadowEvidence) -> None:
    """Write evidence to a folder. The evidence is complete once the last file exists."""
    folder.mkdir(parents=True, exist_ok=True)
    for lane in _LANES:
        rows: Observed = getattr(evidence, lane)
        own = {
            one.name: getattr(rows, one.name)
            for one in fields(Observed)
            if one.name not in ("names", "segments")
        }
        own |= {
            parts.segment_column(name): rows.segments[:, at] for at, name in enumerate(rows.segment_features)
        }
        _replace(
            folder / f"{lane}.parquet",
            lambda to, own=own: pq.write_table(pa.table(own), to, compression="zstd"),
        )
    about = {
        "kind": evidence.kind,
        "sla_us": evidence.sla_us,
        "training": _dumped(evidence.training),
        "reference": _dumped(evidence.reference),
        "counters": [asdict(one) for one in evidence.counters],
        "read": None if evidence.read is None else dict(evidence.read),
        "flips": [asdict(one) for one in evidence.flips],
        "parity": None if evidence.parity is None else [evidence.parity[0], _finite(evidence.parity[1])],
        "outcome": evidence.outcome,
        "approve": evidence.approve,
        "live_bundle": evidence.live_bundle,
        "segments": asdict(evidence.segments),
        "bands": list(evidence.bands),
        "notes": list(evidence.notes),
        "names": {lane: dict(getattr(evidence, lane).names) for lane in _LANES},
    }
    text = json.dumps(about, allow_nan=False)
    _replace(folder / _ABOUT, lambda to: Path(to).write_text(text))


def is_saved(folder: Path) -> bool:
    """Return whether a folder has complete evidence."""
    return (folder / _ABOUT).is_file()


def load(folder: Path) -> ShadowEvidence:
    """Return the evidence that `save` wrote. It has no outcomes, because these still arrive."""
    about = json.loads((folder / _ABOUT).read_text())
    lanes: dict[str, Observed] = {}
    for lane in _LANES:
        table = pq.read_table(folder / f"{lane}.parquet", partitioning=None)
        names = about["names"][lane]
        columns = [parts.segment_column(name) for name in names.get("segments", ())]
        own = {name: table[name].to_numpy() for name in table.column_names if name not in columns}
        split = np.zeros((len(table), len(columns)), np.int32)
        for at, column in enumerate(columns):
            split[:, at] = table[column].to_numpy()
        lanes[lane] = Observed(**own, segments=split, names=names)
    parity = about["parity"]
    return ShadowEvidence(
        kind=about["kind"],
        sla_us=about["sla_us"],
        shadow=lanes["shadow"],
        control=lanes["control"],
        training=_distribution(about["training"]),
        reference=_distribution(about["reference"]),
        counters=[Counter(**one) for one in about["counters"]],
        read=about.get("read"),
        flips=[Flip(**{**one, "features": [tuple(f) for f in one["features"]]}) for one in about["flips"]],
        parity=None if parity is None else (parity[0], math.inf if parity[1] is None else parity[1]),
        outcome=about["outcome"],
        approve=about["approve"],
        live_bundle=about["live_bundle"],
        segments=SegmentPlan.restored(about["segments"]) if "segments" in about else NO_PLAN,
        bands=about.get("bands", ()),
        notes=about["notes"],
    )


def document(readout: Readout) -> dict[str, Any]:
    """Return a report as a JSON document."""
    found = {one.name: getattr(readout, one.name) for one in fields(Readout)}
    found["start"], found["end"] = micros(readout.start), micros(readout.end)
    found["verdict"] = None if readout.verdict is None else readout.verdict.value
    found["gates"] = [{**asdict(gate), "outcome": gate.outcome.value} for gate in readout.gates]
    found["segments"], found["canary"] = (
        None if one is None else asdict(one) for one in (readout.segments, readout.canary)
    )
    found["figures"] = [asdict(figure) for figure in readout.figures]
    plain: dict[str, Any] = json.loads(json.dumps(found, allow_nan=False, default=_plain))
    return plain


def restored(found: Mapping[str, Any]) -> Readout:
    """Return the report of a JSON document."""
    own = dict(found)
    own["start"], own["end"] = instant(own["start"]), instant(own["end"])
    own["verdict"] = None if own["verdict"] is None else Outcome(own["verdict"])
    own["gates"] = tuple(GateResult(**{**gate, "outcome": Outcome(gate["outcome"])}) for gate in own["gates"])
    own["segments"], own["canary"] = (segment_report(own.get(name)) for name in ("segments", "canary"))
    own["figures"] = tuple(
        Figure(**{**figure, "columns": tuple(figure["columns"])}) for figure in own["figures"]
    )
    return Readout(**own)


def segment_report(found: Mapping[str, Any] | None) -> SegmentReport | None:
    """Return the segments of a document."""
    if found is None:
        return None
    segments = tuple(
        SegmentResult(
            **{
                **one,
                "measures": {name: SegmentValue(**value) for name, value in one["measures"].items()},
                "worse": tuple(one["worse"]),
            }
        )
        for one in found["segments"]
    )
    lists = {name: tuple(found[name]) for name in ("features", "labels", "worse", "notes")}
    return SegmentReport(**{**found, **lists, "segments": segments})


def within(
    evidence: ShadowEvidence, begin: int | None, end: int | None, server: str | None
) -> ShadowEvidence:
    """Return the evidence of a time window and of one server.

    Args:
        evidence: The evidence.
        begin: Start of the window in microseconds since the Unix epoch; None: no limit.
        end: End of the window; None: no limit.
        server: Name of the server; None: all.
    """

    def cut(rows: Observed) -> Observed:
        kept = np.ones(len(rows), dtype=bool)
        if begin is not None:
            kept &= rows.at >= begin
        if end is not None:
            kept &= rows.at < end
        if server is not None:
            names = rows.servers()
            kept &= rows.server == (names.index(server) if server in names else -1)
        return rows.take(kept)

    def is_meant(at: int, name: str) -> bool:
        later, earlier = begin is None or at >= begin, end is None or at < end
        return later and earlier and server in (None, name)

    return replace(
        evidence,
        # For a window or a server, the number of observations is the number of its rows.
        read=evidence.read if (begin, end, server) == (None, None, None) else None,
        shadow=cut(evidence.shadow),
        control=cut(evidence.control),
        counters=[one for one in evidence.counters if is_meant(one.at, one.server)],
        flips=[one for one in evidence.flips if is_meant(one.at, server or "")],
    )


def _replace(path: Path, write: Any) -> None:
    partial = path.with_name(f".{path.name}.partial")
    write(partial)
    partial.replace(path)


def _dumped(distribution: Distribution | None) -> Any:
    return None if distribution is None else distribution.model_dump()


def _distribution(found: Any) -> Distribution | None:
    return None if found is None else Distribution.model_validate(found)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(type(value).__name__)
